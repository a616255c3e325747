//! Changes whose clock stands behind that of a change before them.

use super::*;

fn seconds(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

/// What changes the file "f" in the root, and its times.
fn of_file(file: &Attr) -> Vec<Op> {
    let ino = file.ino;
    let set = |set| Op::SetAttr {
        ino,
        set,
        standing: None,
    };
    let (begin, end, keeps_size) = (0, 4096, false);
    let commit = || commit(file, 1, vec![]);
    vec![
        set(SetAttr {
            permissions: Some(0o600),
            ..SetAttr::default()
        }),
        set(SetAttr {
            size: Some(5),
            ..SetAttr::default()
        }),
        set(SetAttr {
            mtime: Some(None),
            atime: Some(None),
            ..SetAttr::default()
        }),
        Op::Punch {
            ino,
            begin,
            end,
            keeps_size,
        },
        Op::Allocate {
            ino,
            begin,
            end,
            keeps_size,
        },
        Op::SetXattr {
            ino,
            name: small("user.x"),
            value: small("y"),
            flags: 0,
            standing: None,
        },
        Op::Commit(Commit {
            modified: Some(seconds(150)),
            ..commit()
        }),
        Op::Commit(Commit {
            modified: None,
            kill_set_id: Some(0),
            ..commit()
        }),
        Op::Link {
            ino,
            kind: FileKind::File,
            parent: ROOT,
            name: name("g"),
        },
        rename("f", "g"),
    ]
}

fn rename(from: &str, to: &str) -> Op {
    Op::Rename {
        parent: ROOT,
        name: name(from),
        new_parent: ROOT,
        new_name: name(to),
        no_replace: false,
        exchange: false,
        whiteout: None,
        known: None,
        standing: None,
    }
}

/// A file and the root, both changed at 200.
fn changed() -> (Fixture, Attr) {
    let mut f = Fixture::new();
    f.now = 198;
    f.create("e");
    let file = f.create("f");
    assert_eq!(f.attr(ROOT).mtime, seconds(200));
    (f, file)
}

/// Times of the file and of the root after an operation at `now`.
fn after(op: &Op, now: i64) -> [Timestamp; 4] {
    let (mut f, file) = changed();
    f.now = now - 1;
    let reply = f.run(op);
    assert!(
        !matches!(reply, Reply::Error(_) | Reply::Stale | Reply::Resized(_)),
        "{op:?}: {reply:?}"
    );
    let (file, root) = (f.attr(file.ino), f.attr(ROOT));
    [file.mtime, file.ctime, root.mtime, root.ctime]
}

/// Both owners' clocks and all threads are within a second of each other.
#[test]
fn a_change_that_read_its_clock_too_early_does_not_take_times_back() {
    let (_, file) = changed();
    for op in of_file(&file) {
        let times = after(&op, 199);
        assert!(times.iter().all(|time| time.secs == 200), "{op:?}");
        // Who asks whether it has changed sees it; a Commit brings the time of its writes.
        let is_commit = matches!(&op, Op::Commit(commit) if commit.modified.is_some());
        assert!(is_commit || times[1] > seconds(200), "{op:?}");
    }
    for op in [
        create(ROOT, "g"),
        mkdir(ROOT, "g", 1),
        unlink("e", None),
        rename("e", "g"),
    ] {
        let [_, _, modified, changed] = after(&op, 199);
        assert_eq!(modified, changed, "{op:?}");
        assert!(modified > seconds(200) && modified.secs == 200, "{op:?}");
    }
}

/// A clock that was wrong does not hold times in the future.
#[test]
fn a_change_takes_times_back_that_are_far_ahead() {
    let (_, file) = changed();
    for op in of_file(&file) {
        assert_eq!(
            after(&op, 190)[1].secs,
            match &op {
                Op::Commit(Commit {
                    modified: Some(_), ..
                }) => 150,
                _ => 190,
            },
            "{op:?}"
        );
    }
    for op in [create(ROOT, "g"), unlink("e", None), rename("e", "g")] {
        let times = after(&op, 190).map(|time| time.secs);
        assert_eq!(times, [200, 200, 190, 190], "{op:?}");
    }
}

/// Nor by one that read its clock too early.
#[test]
fn an_access_is_not_taken_back_by_one_before_it() {
    let (mut f, file) = changed();
    let mut access = |at: i64, now: i64| {
        f.now = now - 1;
        let (at, change) = (seconds(at), file.change);
        match f.run(&Op::Accessed {
            ino: file.ino,
            at,
            change,
        }) {
            Reply::Attr(attr) => attr.atime.secs,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(access(300, 300), 300);
    assert_eq!(access(300, 299), 300);
    assert_eq!(access(290, 298), 290);
}
