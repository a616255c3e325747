//! Attributes as applications see them before the owner has heard of what changes them.

use super::*;
use types::FileKind;

use crate::request::Response;

/// What stat(2) shows of the file.
fn shown(s: &mut Story) -> Attr {
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    let attr = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Attr(attr, _), _) => Some(*attr),
        _ => None,
    });
    attr.expect("the node holds the exclusive token")
}

/// For how long the kernel may believe what stat(2) shows, in nanoseconds.
fn believed_ns(s: &mut Story) -> u64 {
    let effects = s.ask(Operation::GetAttr {
        ino: INO,
        handle: None,
    });
    let timeout = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Attr(_, timeout_ns), _) => Some(*timeout_ns),
        _ => None,
    });
    timeout.expect("the node holds the exclusive token")
}

/// The kernel believes attributes for as long as the node says that it may, but the blocks of what is on its way to disks for a second.
#[test]
fn what_is_not_on_disk_yet_is_believed_for_a_second() {
    const SECOND: u64 = 1_000_000_000;
    let mut s = Story::new(0);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    assert_eq!(believed_ns(&mut s), SECOND);
    s.slice.believe(Duration(60 * SECOND));
    assert_eq!(believed_ns(&mut s), 60 * SECOND);
    s.write(1, false);
    assert_eq!(believed_ns(&mut s), SECOND);
}

/// A file with bytes that were not written back yet has blocks: tar --sparse takes one without for a hole.
#[test]
fn dirty_pages_count_as_blocks() {
    let mut s = Story::new(0);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    assert_eq!(shown(&mut s).sector_count, 0);
    s.write(1, false);
    assert_eq!(shown(&mut s).sector_count, 1);
    // Overwritten, it is one page still, and never more than the file has.
    s.write(2, false);
    assert_eq!(shown(&mut s).sector_count, 1);
}

/// O_TRUNC gives an empty file new times: the owner is asked. By another user than root it takes the set-id bits.
#[test]
fn an_open_that_truncates_stamps_an_empty_file_and_takes_set_id_bits() {
    for (uid, is_taken) in [(0, false), (7, true)] {
        let mut s = Story::new(0);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let effects = s.ask_as(uid, open_with_truncate());
        let set = effects.iter().find_map(|effect| match effect {
            Effect::Call(
                _,
                _,
                Ask::Op {
                    op: meta::Op::SetAttr { set, .. },
                    ..
                },
            ) => Some(*set),
            _ => None,
        });
        let set = set.expect("the owner is asked");
        assert_eq!((set.size, set.kill_set_id.is_some()), (Some(0), is_taken));
    }
}

/// Who has a directory or a pipe open, or works in it, sees that it is gone by its links, as on any file system. A file without a name
/// is kept for those who have it open: of one that the owner does not know there is nothing to show.
#[test]
fn a_removed_directory_or_pipe_has_no_links() {
    for (kind, nlink) in [
        (FileKind::Directory, Some(0)),
        (FileKind::Fifo, Some(0)),
        (FileKind::File, None),
    ] {
        let mut s = Story::new(PAGE);
        let mut attr = s.attr;
        (attr.kind, attr.nlink) = (kind, 2);
        s.slice.inode(INO).learn_attr(&attr);
        let effects = s.ask(Operation::GetAttr {
            ino: INO,
            handle: None,
        });
        let call = effects.iter().find_map(|effect| match effect {
            Effect::Call(call, _, Ask::Acquire { .. }) => Some(*call),
            _ => None,
        });
        let gone = Answer::bare(Body::Acquired { attr: None });
        let effects = s.input(Input::Answer(call.expect("asked"), Box::new(gone)));
        let shown = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Attr(attr, timeout), _) => Some((attr.nlink, *timeout)),
            Effect::Reply(_, Response::Error(Errno::ESTALE), _) => None,
            other => panic!("{other:?}"),
        });
        assert_eq!(shown, nlink.map(|nlink| (nlink, 0)));
    }
}

/// A write by another user takes the set-id bits that are there, not those that a chmod sets after it.
#[test]
fn a_chmod_comes_after_the_bits_that_a_write_takes() {
    for takes_bits in [false, true] {
        let mut s = Story::new(4 * PAGE);
        s.attr.permissions = 0o4757;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let frame = crate::Pool::alloc(&s.memory).expect("plenty");
        s.ask_as(
            7,
            Operation::Write {
                ino: INO,
                handle: Handle(0),
                offset: 0,
                payload: Span::whole(frame),
                is_write_back: false,
                append: false,
                sync: false,
                kill_set_id: takes_bits,
            },
        );
        let set = types::SetAttr {
            permissions: Some(0o2755),
            ..Default::default()
        };
        let effects = s.ask(Operation::SetAttr {
            ino: INO,
            handle: None,
            set,
        });
        let asks = |effects: &[Effect]| {
            effects.iter().any(|effect| {
                let Effect::Call(_, _, Ask::Op { op, .. }) = effect else {
                    return false;
                };
                matches!(op, meta::Op::SetAttr { .. })
            })
        };
        assert_eq!(asks(&effects), !takes_bits, "{effects:?}");
        if takes_bits {
            let effects = s.carry_out(effects);
            let (call, commit) = commit_of(&effects).expect("what was written goes first");
            assert!(commit.kill_set_id.is_some());
            s.attr.permissions = 0o757;
            s.attr.change += 1;
            let effects = s.answer(call, meta::Reply::Attr(s.attr));
            assert!(asks(&effects), "{effects:?}");
        }
    }
}

/// Who only takes himself for the owner changes no time, neither that of bytes on their way; and what came with the refusal is held.
#[test]
fn a_refused_time_leaves_that_of_what_was_written() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write(1, false);
    let before = s.slice.inode(INO).modified;
    assert!(before.is_some());
    let set = types::SetAttr {
        mtime: Some(Some(Timestamp { secs: 5, nanos: 0 })),
        ..Default::default()
    };
    let set = || Operation::SetAttr {
        ino: INO,
        handle: None,
        set,
    };
    let asked = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::SetAttr { standing, .. },
                    ..
                },
            ) => Some((*call, standing.map(|by| (by.uid, by.covers(9))))),
            _ => None,
        })
    };
    let refused = || meta::Reply::NotOwner { uid: 9 };
    let effects = s.ask_as(7, set());
    let (call, by) = asked(&effects).expect("the owner is asked");
    assert_eq!(by, Some((7, false)));
    assert_eq!(s.slice.inode(INO).modified, None);
    let effects = s.answer(call, refused());
    assert_eq!(s.slice.inode(INO).modified, before);
    // The driver is asked whether he may act for the owner, and gives the request in again if so: once.
    let [Effect::AskStanding(request, 9)] = &effects[..] else {
        panic!("{effects:?}");
    };
    let mut request = (**request).clone();
    (request.caller.first, request.caller.last) = (9, 9);
    let effects = s.input(Input::Request(request));
    let (call, by) = asked(&effects).expect("the owner is asked again");
    assert_eq!(by, Some((7, true)));
    let effects = s.answer(call, refused());
    assert!(
        matches!(
            effects[..],
            [Effect::Reply(_, Response::Error(Errno::EPERM), _)]
        ),
        "{effects:?}"
    );
    assert_eq!(s.slice.inode(INO).modified, before);
    // Root is not asked who he is.
    let (_, by) = asked(&s.ask(set())).expect("the owner is asked");
    assert_eq!(by, None);
}

/// The owner says that the size was changed meanwhile. What the Commit was to tell beside bytes is told with the next one, for which
/// an fsync waits, and which comes by itself where nobody waits.
#[test]
fn what_a_resized_commit_was_to_tell_is_told_again() {
    for is_synced in [true, false] {
        let mut s = Story::new(PAGE);
        s.open(InodeMode::SharedWrite, ByteRange::ALL);
        s.slice.inode(INO).drops_rights = true;
        let effects = match is_synced {
            true => s.ask(Operation::Fsync {
                ino: INO,
                handle: Handle(0),
                data_only: false,
            }),
            false => s.input(Input::WriteBack),
        };
        let (call, commit) = commit_of(&effects).expect("something is to be told");
        assert!(commit.drops_rights);
        s.attr.size_generation += 1;
        s.attr.change += 1;
        let effects = s.answer(call, meta::Reply::Resized(s.attr));
        let is_sync = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
        assert!(!effects.iter().any(is_sync), "{effects:?}");
        let (call, commit) = commit_of(&effects).expect("told again");
        assert!(commit.drops_rights);
        assert_eq!(commit.size_generation, s.attr.size_generation);
        s.attr.change += 1;
        let effects = s.answer(call, meta::Reply::Attr(s.attr));
        assert_eq!(effects.iter().any(is_sync), is_synced);
        assert!(!s.slice.is_dirty());
    }
}

/// Nobody waits: it is looked at with what is dirty for long.
#[test]
fn what_a_resized_commit_was_to_tell_is_not_forgotten() {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::SharedWrite, ByteRange::ALL);
    s.slice.inode(INO).drops_rights = true;
    let effects = s.input(Input::WriteBack);
    let (call, _) = commit_of(&effects).expect("something is to be told");
    s.slice.inode(INO).goals.clear();
    s.attr.size_generation += 1;
    s.answer(call, meta::Reply::Resized(s.attr));
    assert!(s.slice.is_dirty());
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let (_, commit) = commit_of(&effects).expect("told again");
    assert!(commit.drops_rights);
}

/// The kernel takes its attributes for old when it sends an asynchronous write. What it is shown before that is answered it would believe, and
/// show the time of before.
#[test]
fn what_is_shown_beside_an_asynchronous_write_is_taken_back() {
    for is_async in [true, false] {
        let mut s = Story::new(4 * PAGE);
        if is_async {
            s.slice.expect_async_writes();
        }
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let is_told = |effects: &[Effect]| {
            let notice = Notice::Attributes { ino: INO };
            let is_it = |e: &Effect| matches!(e, Effect::Notify(None, n) if *n == notice);
            effects.iter().any(is_it)
        };
        assert!(!is_told(&s.write(1, false)), "nothing was shown");
        let effects = s.ask(Operation::GetAttr {
            ino: INO,
            handle: None,
        });
        let is_shown = |e: &Effect| matches!(e, Effect::Reply(_, Response::Attr(_, 1..), _));
        assert!(effects.iter().any(is_shown), "{effects:?}");
        // The kernel may have sent it before it asked.
        assert_eq!(is_told(&s.write(2, false)), is_async);
        assert!(!is_told(&s.write(3, false)), "it knows");
    }
}
