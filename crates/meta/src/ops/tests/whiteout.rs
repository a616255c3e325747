//! What moves may leave a whiteout behind.

use super::*;

fn rename(from: &str, (new_parent, to): (InodeId, &str), exchange: bool) -> Op {
    Op::Rename {
        parent: ROOT,
        name: name(from),
        new_parent,
        new_name: name(to),
        no_replace: false,
        exchange,
        whiteout: Some(CALLER),
        known: None,
        standing: None,
    }
}

fn attr(f: &Fixture, ino: InodeId) -> Option<Attr> {
    let shard = f.shards.iter().find(|shard| shard.id() == ino.shard());
    shard.unwrap().attr(ino)
}

/// The attributes of what the name leads to.
fn found(f: &mut Fixture, parent: InodeId, text: &str) -> Attr {
    let lookup = Op::Lookup {
        parent,
        name: name(text),
    };
    match f.run(&lookup) {
        Reply::Entry { ino, kind, .. } => {
            let attr = attr(f, ino).unwrap();
            assert_eq!(attr.kind, kind);
            attr
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_whiteout_stands_where_a_name_was() {
    let mut f = Fixture::new();
    let d = f.mkdir(ROOT, "d").ino;
    for (from, to) in [
        ("file", (ROOT, "new")),
        ("other", (ROOT, "new")),
        ("third", (d, "new")),
        ("directory", (ROOT, "moved")),
    ] {
        let is_directory = from == "directory";
        let moved = match is_directory {
            true => f.mkdir(ROOT, from),
            false => f.create(from),
        };
        let before = f.shards[0].attr(ROOT).unwrap();
        let renamed = f.run(&rename(from, to, false));
        assert!(matches!(renamed, Reply::Renamed { .. }), "{renamed:?}");
        assert_eq!(found(&mut f, to.0, to.1).ino, moved.ino);
        let whiteout = found(&mut f, ROOT, from);
        assert_eq!(
            (whiteout.kind, whiteout.rdev, whiteout.permissions),
            (FileKind::CharDevice, 0, 0)
        );
        assert_eq!((whiteout.nlink, whiteout.uid), (1, CALLER.uid));
        let after = f.shards[0].attr(ROOT).unwrap();
        assert_eq!(after.nlink, before.nlink, "no directory came or went");
        // It is a name like others.
        f.run(&unlink(from, None));
        assert!(attr(&f, whiteout.ino).is_none_or(|attr| attr.nlink == 0));
    }
}

#[test]
fn two_names_that_change_places_leave_none() {
    let mut f = Fixture::new();
    let both = ["a", "b"].map(|text| f.create(text).ino);
    let refused = f.run(&rename("a", (ROOT, "b"), true));
    assert!(
        matches!(refused, Reply::Error(Errno::EINVAL)),
        "{refused:?}"
    );
    assert_eq!(["a", "b"].map(|text| found(&mut f, ROOT, text).ino), both);
    // Two names of one file stay, and nothing is left.
    let link = Op::Link {
        ino: both[0],
        kind: FileKind::File,
        parent: ROOT,
        name: name("c"),
    };
    f.run(&link);
    f.run(&rename("a", (ROOT, "c"), false));
    assert_eq!(found(&mut f, ROOT, "a").ino, both[0]);
}

/// What is moved to another owner has the number of its whiteout for itself until the votes are there.
#[test]
fn the_number_of_a_whiteout_in_doubt_is_nobody_elses() {
    let mut f = Fixture::new();
    let d = f.made(&mkdir(ROOT, "d", 0)).ino;
    assert_eq!(d.shard(), ROOT.shard());
    let moved = f.create("file").ino;
    let far = InodeId::new(ShardId(2), 40);
    let absent = crate::Fact::Entry {
        directory: far,
        name: name("new"),
        found: None,
    };
    let op = rename("file", (far, "new"), false);
    let plan = match f.outcome_by(&op, None, Held::All, &[absent]) {
        Outcome::NeedOwners(plan) => plan,
        other => panic!("the target is another owner's: {other:?}"),
    };
    f.begin(&plan);
    // Made meanwhile, with a name and without, in another directory of that shard.
    let nameless = Op::CreateNameless {
        parent: d,
        permissions: 0o600,
        caller: CALLER,
    };
    let others = [f.made(&create(d, "z")).ino, f.made(&nameless).ino];
    f.all_agree(&plan);
    let whiteout = found(&mut f, ROOT, "file");
    assert_eq!(whiteout.kind, FileKind::CharDevice);
    assert!(whiteout.ino != moved && !others.contains(&whiteout.ino));
}
