//! Stores that have ended, and what the driver hears of them.

use super::*;
use crate::flush::{BATCH_PAGES_MAX, STORE_PAUSE};
use crate::request::Response;

fn open(has_volatile_nsd: bool) -> Story {
    let mut s = Story::new(PAGE);
    s.has_sectors = true;
    s.has_volatile_nsd = has_volatile_nsd;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

/// Where the file's page has been stored.
fn page_extent() -> types::Extent {
    types::Extent {
        file_sector: 0,
        length: 1,
        birth: 0,
        is_shared: false,
        locations: Vec::new(),
        checksums: types::extent::Checksums::Inline { crcs: vec![0] },
    }
}

/// Begins a store of the file's page.
fn store(s: &mut Story) -> IoId {
    s.write_back(1);
    let effects = s.input(Input::WriteBack);
    let store = effects.iter().find_map(|effect| match effect {
        Effect::Store(io, ..) => Some(*io),
        _ => None,
    });
    store.unwrap_or_else(|| panic!("{effects:?}"))
}

fn forgotten(effects: &[Effect]) -> Option<&[IoId]> {
    effects.iter().find_map(|effect| match effect {
        Effect::ForgetStores(stores) => Some(&stores[..]),
        _ => None,
    })
}

/// The batch was dropped while it was on its way to a disk: no flush names that store, and the driver need not keep it.
#[test]
fn a_store_that_nobody_waits_for_is_forgotten() {
    for has_volatile_nsd in [true, false] {
        let mut s = open(has_volatile_nsd);
        let store = store(&mut s);
        s.slice.inode(INO).batches.clear();
        let effects = s.input(Input::Stored(store, Ok(Vec::new())));
        let stores = [store];
        let expected = has_volatile_nsd.then_some(&stores[..]);
        assert_eq!(forgotten(&effects), expected, "{effects:?}");
    }
}

/// One that is wanted is named by a flush.
#[test]
fn a_store_that_is_wanted_is_not_forgotten() {
    let mut s = open(true);
    let store = store(&mut s);
    let extent = page_extent();
    let effects = s.input(Input::Stored(store, Ok(vec![extent])));
    assert_eq!(forgotten(&effects), None);
    let is_flushed = |e: &Effect| matches!(e, Effect::Flush(_, stores) if stores[..] == [store]);
    assert!(effects.iter().any(is_flushed), "{effects:?}");
}

fn fsync_by(s: &mut Story, handle: Handle) -> Vec<Effect> {
    s.ask(Operation::Fsync {
        ino: INO,
        handle,
        data_only: false,
    })
}

/// Opens it once more; the token is there.
fn open_again(s: &mut Story, write: bool) -> Handle {
    let flags = OpenFlags {
        write,
        ..OpenFlags::default()
    };
    let mut effects = s.ask(Operation::Open { ino: INO, flags });
    if matches!(effects[..], [Effect::Fill(..)]) {
        effects = s.input(Input::Filled(INO, Filled::Whole));
    }
    let handle = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
        _ => None,
    });
    handle.unwrap_or_else(|| panic!("{effects:?}"))
}

/// A page is written, and the owner refuses its Commit.
fn lose_a_page(s: &mut Story) {
    s.write_back(1);
    let (call, commit) = commit_of(&s.input(Input::WriteBack)).expect("the page is dirty");
    assert_eq!(commit.pieces.len(), 1);
    let refused = Answer::bare(Body::Refused(Errno::ENOSPC));
    s.input(Input::Answer(call, Box::new(refused)));
}

/// Also where nobody asks: whoever runs the node sees it.
#[test]
fn lost_pages_are_counted() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    assert_eq!(s.slice.losses(), Losses::default());
    lose_a_page(&mut s);
    let losses = s.slice.losses();
    assert_eq!((losses.pages, losses.unknown_files), (1, 0));
    assert_eq!(losses.one, Some((INO, Errno::ENOSPC)));
}

/// The owner has no such file. Mostly it was removed while it was written back, which this node hears a moment later: such lines hid real
/// losses in the log of everybody who removes what he has just written.
#[test]
fn pages_of_removed_files_are_no_losses() {
    for is_removed in [true, false] {
        let mut s = Story::new(1000);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.write_back(1);
        let (call, _) = commit_of(&s.input(Input::WriteBack)).expect("the page is dirty");
        let gone = Answer::bare(Body::Op(meta::Reply::Stale));
        s.input(Input::Answer(call, Box::new(gone)));
        s.input(Input::Tick);
        assert_eq!(s.slice.losses(), Losses::default(), "it may come yet");
        s.slice.inode(INO).is_gone = is_removed;
        s.now = s.now + Duration::from_secs(3);
        s.input(Input::Tick);
        let losses = s.slice.losses();
        let unknown = (losses.unknown_files, losses.unknown);
        let expected = if is_removed {
            (0, None)
        } else {
            (1, Some(INO))
        };
        assert_eq!(unknown, expected);
        assert_eq!(losses.pages, 0);
    }
}

/// The end of the file is within the page, or a page before it.
#[test]
fn write_backs_behind_the_end_are_counted() {
    for (size, clipped) in [(1000, 0), (1, 0), (0, 1)] {
        let mut s = Story::new(size);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        s.write_back(1);
        assert_eq!(s.slice.losses().clipped, clipped, "{size} bytes");
    }
}

/// Whoever else opens and closes the file, and whatever descriptors of it its writer's children close: the writer hears
/// with fsync that its bytes are lost.
#[test]
fn a_write_back_that_failed_is_told_to_each_who_has_the_file_open() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let (writer, reader) = (open_again(&mut s, true), open_again(&mut s, false));
    lose_a_page(&mut s);
    let close = |handle| Operation::Flush {
        ino: INO,
        handle,
        lock_owner: 0,
    };
    for handle in [reader, writer, reader, writer] {
        let effects = s.ask(close(handle));
        assert_eq!(error_of(&effects), Some(Errno::ENOSPC), "{handle:?}");
    }
    // Somebody has heard: who opens it now need not.
    let late = open_again(&mut s, true);
    for (handle, error) in [
        (late, None),
        (writer, Some(Errno::ENOSPC)),
        (writer, None),
        (reader, Some(Errno::ENOSPC)),
    ] {
        let effects = fsync_by(&mut s, handle);
        assert_eq!(error_of(&effects), error, "{handle:?}");
    }
    assert_eq!(error_of(&s.ask(close(writer))), None);
}

/// Nobody had it open any more: who opens it next hears.
#[test]
fn a_write_back_that_failed_unheard_is_told_to_the_next() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    s.slice.inode(INO).lookup_count = 1;
    s.ask(Operation::Release { ino: INO, handle });
    lose_a_page(&mut s);
    let next = open_again(&mut s, false);
    assert_eq!(error_of(&fsync_by(&mut s, next)), Some(Errno::ENOSPC));
    assert_eq!(error_of(&fsync_by(&mut s, next)), None);
}

/// A rename waits for its source's data. If that is lost the name that it would replace stays as it is.
#[test]
fn a_rename_whose_data_is_lost_fails() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write_back(1);
    let name = |text: &str| types::Name::new(text.as_bytes()).expect("a name");
    let rename = Request {
        ticket: Ticket(1000),
        caller: Caller {
            uid: 0,
            gid: 0,
            pid: 1,
            ..Caller::default()
        },
        operation: Operation::Rename {
            parent: INO,
            name: name("new"),
            new_parent: INO,
            new_name: name("old"),
            flags: crate::request::RenameFlags::default(),
        },
    };
    let effects = s.input(Input::FlushThen(INO, Box::new(rename)));
    let (call, _) = commit_of(&effects).expect("the page is dirty");
    let refused = Answer::bare(Body::Refused(Errno::ENOSPC));
    let effects = s.input(Input::Answer(call, Box::new(refused)));
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC), "{effects:?}");
    let renames = |e: &Effect| {
        matches!(
            e,
            Effect::Call(
                _,
                _,
                Ask::Op {
                    op: meta::Op::Rename { .. },
                    ..
                }
            )
        )
    };
    assert!(!effects.iter().any(renames), "{effects:?}");
}

/// Another node changed the file by a clock that is a little ahead of this one's: its time becomes a later one, not that of this clock.
/// One that was set far ahead goes.
#[test]
fn a_write_does_not_take_the_time_of_another_node_back() {
    let seconds = |secs| Timestamp { secs, nanos: 0 };
    for (before, shown) in [
        (90, seconds(100)),
        (101, seconds(101).after(Duration(1))),
        (102, seconds(100)),
    ] {
        let mut s = open(false);
        s.attr.mtime = seconds(before);
        s.slice.inode(INO).attr = Some(s.attr);
        s.timestamp = seconds(100);
        s.write_back(1);
        let attr = s.slice.inode(INO).visible_attr().expect("known");
        assert_eq!(attr.mtime, shown, "changed at {before} before");
    }
}

fn stores_of(effects: &[Effect]) -> Vec<IoId> {
    let io = |effect: &Effect| match effect {
        Effect::Store(io, ..) => Some(*io),
        _ => None,
    };
    effects.iter().filter_map(io).collect()
}

/// Pages are written back by the kernel.
fn write_pages(s: &mut Story, pages: std::ops::Range<u64>) -> Vec<Effect> {
    pages.flat_map(|page| s.write_page_back(page)).collect()
}

/// A disk fails for a moment, and with it all stores that are under way: nothing is lost. They are tried again after a pause, and given up when
/// that has failed three times more.
#[test]
fn a_bad_moment_of_a_disk_is_one_failure() {
    for is_mended in [true, false] {
        let pages = BATCH_PAGES_MAX as u64 * 2;
        let mut s = Story::new(pages * PAGE);
        s.has_sectors = true;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let mut effects = write_pages(&mut s, 0..pages);
        let mut tries = 0;
        effects.extend(s.input(Input::WriteBack));
        for round in 1..=20 {
            let stores = stores_of(&effects);
            assert!(round > 1 || stores.len() > 4, "{stores:?}");
            tries += u32::from(!stores.is_empty());
            let mut result = Err(IoFailure::Unreachable);
            if is_mended && tries == 4 {
                result = Ok(Vec::new());
            }
            effects = Vec::new();
            for io in stores {
                effects.extend(s.input(Input::Stored(io, result.clone())));
            }
            if result.is_err() && tries < 4 {
                assert_eq!(stores_of(&effects), [], "at once, try {tries}");
                s.now = Instant(s.now.0 + STORE_PAUSE.0 / 2);
                assert_eq!(
                    stores_of(&s.input(Input::Tick)),
                    [],
                    "too soon, try {tries}"
                );
                s.now = Instant(s.now.0 + STORE_PAUSE.0 / 2);
                effects = s.input(Input::Tick);
            }
        }
        let losses = s.slice.losses().pages;
        assert_eq!(
            (tries >= 4, losses == 0),
            (true, is_mended),
            "{tries} tries, {losses} lost"
        );
    }
}

/// A write takes the rights of a program, a time is set, and then the bytes can be stored nowhere: the owner hears of the rights
/// all the same.
#[test]
fn rights_that_a_lost_write_takes_are_told() {
    let mut s = open(false);
    s.write_back(1);
    let set = types::SetAttr {
        mtime: Some(None),
        ..types::SetAttr::default()
    };
    let effects = s.ask(Operation::SetAttr {
        ino: INO,
        handle: None,
        set,
    });
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Op { .. }) => Some(*call),
        _ => None,
    });
    s.attr.change += 1;
    s.answer(call.expect("a change of times"), meta::Reply::Attr(s.attr));
    let mut effects = s.input(Input::WriteBack);
    let mut told = None;
    while let Some(io) = stores_of(&effects).pop() {
        effects = s.input(Input::Stored(io, Err(IoFailure::Unreachable)));
        told = told.or(commit_of(&effects));
        if !s.slice.inode(INO).errors.is_untold() {
            s.now = s.now + STORE_PAUSE;
            effects = s.input(Input::Tick);
            told = told.or(commit_of(&effects));
        }
    }
    assert!(s.slice.inode(INO).errors.is_untold(), "the bytes are lost");
    let (call, commit) = told.expect("the owner is told");
    assert!(commit.drops_rights);
    assert!(commit.extents.is_empty() && commit.modified.is_none());
    assert!(s.slice.is_dirty(), "until it has answered");
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert!(!s.slice.is_dirty());
}

/// A disk takes what is written and does not flush: that is tried again after a pause, as stores are, and given up when it has failed four times. One that
/// has restarted meanwhile, or whose link has broken, ends nobody's writes.
#[test]
fn a_disk_that_does_not_flush_is_given_up() {
    for (failure, is_lost) in [(IoFailure::Unreachable, true), (IoFailure::Unknown, false)] {
        let mut s = open(true);
        let mut waiting = vec![store(&mut s)];
        let begin = s.now;
        for attempt in 1..=4 {
            let store = waiting.pop().expect("it is tried again");
            let extent = page_extent();
            let effects = s.input(Input::Stored(store, Ok(vec![extent])));
            let flush = effects.iter().find_map(|effect| match effect {
                Effect::Flush(io, _) => Some(*io),
                _ => None,
            });
            let flush = flush.unwrap_or_else(|| panic!("{effects:?}"));
            let effects = s.input(Input::Flushed(flush, Err(vec![(store, failure)])));
            let is_over = is_lost && attempt == 4;
            let told = commit_of(&effects);
            assert_eq!(told.is_some(), is_over, "its times");
            if let Some((call, commit)) = told {
                assert!(commit.extents.is_empty());
                s.attr.change += 1;
                s.answer(call, meta::Reply::Attr(s.attr));
            }
            waiting = stores_of(&effects);
            assert_eq!(waiting.is_empty(), is_lost, "at once, attempt {attempt}");
            assert_eq!(s.slice.inode(INO).errors.is_untold(), is_over);
            if is_lost && !is_over {
                s.now = s.now + STORE_PAUSE;
                waiting = stores_of(&s.input(Input::Tick));
            }
        }
        assert_eq!(s.slice.is_dirty(), !is_lost);
        assert!(s.now.since(begin) < Duration::from_secs(3));
    }
}

fn flush_of(effects: &[Effect]) -> Option<(IoId, Vec<IoId>)> {
    effects.iter().find_map(|effect| match effect {
        Effect::Flush(io, stores) => Some((*io, stores.clone())),
        _ => None,
    })
}

/// One of the disks does not flush: what lies on others is not lost with what was written there.
#[test]
fn what_other_disks_have_is_not_lost_with_a_disk_that_does_not_flush() {
    let pages = BATCH_PAGES_MAX as u64 + 10;
    let mut s = Story::new(pages * PAGE);
    s.has_sectors = true;
    s.has_volatile_nsd = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let mut effects = write_pages(&mut s, 0..pages);
    effects.extend(s.input(Input::WriteBack));
    let mut ends = Vec::new();
    for attempt in 1..=4 {
        assert_eq!(s.slice.losses().pages, 0, "attempt {attempt}");
        let stores = stores_of(&effects);
        assert!(stores.len() > 1, "{stores:?}");
        let mut flush = None;
        for io in &stores {
            let extent = page_extent();
            let effects = s.input(Input::Stored(*io, Ok(vec![extent])));
            flush = flush.or(flush_of(&effects));
        }
        let (flush, flushed) = flush.expect("all are stored");
        let bad = vec![(flushed[0], IoFailure::Unreachable)];
        ends = s.input(Input::Flushed(flush, Err(bad)));
        s.now = s.now + STORE_PAUSE;
        effects = s.input(Input::Tick);
    }
    let lost = s.slice.losses().pages;
    assert!(0 < lost && lost < pages, "{lost}");
    assert!(s.slice.inode(INO).errors.is_untold());
    // The rest is written again, and told.
    ends.extend(effects);
    for _ in 0..20 {
        let mut next = Vec::new();
        for io in stores_of(&ends) {
            next.extend(s.input(Input::Stored(io, Ok(vec![page_extent()]))));
        }
        if let Some((flush, _)) = flush_of(&ends) {
            next.extend(s.input(Input::Flushed(flush, Ok(()))));
        }
        if let Some((call, _)) = commit_of(&ends) {
            next.extend(s.answer(call, meta::Reply::Attr(s.attr)));
        }
        s.now = s.now + STORE_PAUSE;
        next.extend(s.input(Input::Tick));
        ends = next;
    }
    assert!(!s.slice.is_dirty());
    assert_eq!(s.slice.losses().pages, lost);
}

/// One of the disks refuses what is written while others take what comes beside it: it is tried as often as where nothing else is written, and no
/// more.
#[test]
fn stores_that_end_well_do_not_hide_those_that_fail() {
    for is_volatile in [false, true] {
        let pages = BATCH_PAGES_MAX as u64 + 10;
        let mut s = Story::new(100_000 * PAGE);
        s.has_sectors = true;
        s.has_volatile_nsd = is_volatile;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let mut effects = write_pages(&mut s, 0..pages);
        effects.extend(s.input(Input::WriteBack));
        for attempt in 1..=4 {
            assert_eq!(s.slice.losses().pages, 0, "attempt {attempt}");
            let stores = stores_of(&effects);
            let (good, bad) = stores.split_last().expect("all is written");
            assert!(!bad.is_empty(), "attempt {attempt}: {stores:?}");
            let mut after = Vec::new();
            for io in bad {
                after.extend(s.input(Input::Stored(*io, Err(IoFailure::Unreachable))));
            }
            after.extend(s.input(Input::Stored(*good, Ok(vec![page_extent()]))));
            assert_eq!(stores_of(&after), [], "there is a pause, attempt {attempt}");
            s.now = s.now + STORE_PAUSE;
            effects = s.input(Input::Tick);
            // A block, which goes by itself.
            let block = u64::from(types::limits::BLOCK_SIZE_DEFAULT) / PAGE;
            let fresh = (10 + attempt) * block;
            effects.extend(write_pages(&mut s, fresh..fresh + block));
        }
        assert_eq!(s.slice.losses().pages, BATCH_PAGES_MAX as u64);
        assert!(s.slice.inode(INO).errors.is_untold());
    }
}

/// Whatever failed before, a link that breaks and a size that is cut take nobody's bytes; and a file with nothing to store is in nobody's way.
#[test]
fn failures_of_before_are_not_those_of_now() {
    let lost = |s: &Story| s.slice.losses().pages;
    let mut s = open(false);
    let io = store(&mut s);
    // Of other bytes of the file.
    s.slice.inode(INO).store_failures = 4;
    s.input(Input::Stored(io, Err(IoFailure::Unknown)));
    assert_eq!(lost(&s), 0, "a link has broken once");

    // A cut while the store is on its way, and nothing left then.
    let mut s = open(false);
    let io = store(&mut s);
    let set = types::SetAttr {
        size: Some(0),
        ..types::SetAttr::default()
    };
    s.ask(Operation::SetAttr {
        ino: INO,
        handle: None,
        set,
    });
    s.input(Input::Stored(io, Ok(vec![page_extent()])));
    let inode = s.slice.inode(INO);
    assert_eq!((inode.store_failures, inode.failing_since), (0, None));

    // What was lost is not waited for.
    let mut s = open(false);
    let mut io = store(&mut s);
    for attempt in 1..=4 {
        s.input(Input::Stored(io, Err(IoFailure::Unreachable)));
        s.now = s.now + STORE_PAUSE;
        let next = stores_of(&s.input(Input::Tick)).pop();
        assert_eq!(next.is_some(), attempt < 4);
        io = next.unwrap_or(io);
    }
    assert_eq!(lost(&s), 1);
    let inode = s.slice.inode(INO);
    assert_eq!((inode.store_failures, inode.failing_since), (0, None));
}

/// Its end is told with its bytes, and not while these wait to be stored again: a crash would leave zeros.
#[test]
fn no_end_is_told_before_bytes_whose_store_has_failed() {
    let mut s = Story::new(0);
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let handle = *s.slice.handles.keys().next().expect("opened");
    // More than lies in a Commit.
    for page in 0..40 {
        let frame = crate::Pool::alloc(&s.memory).expect("plenty");
        s.ask(Operation::Write {
            ino: INO,
            handle,
            offset: page * PAGE,
            payload: Span::whole(frame),
            is_write_back: false,
            append: false,
            sync: false,
            kill_set_id: false,
        });
    }
    let mut effects = fsync_by(&mut s, handle);
    for _ in 0..3 {
        let stores = stores_of(&effects);
        assert!(!stores.is_empty(), "{effects:?}");
        for io in stores {
            let effects = s.input(Input::Stored(io, Err(IoFailure::Unreachable)));
            assert_eq!(commit_of(&effects).map(|(_, commit)| commit), None);
        }
        let begin = s.now;
        effects = Vec::new();
        while stores_of(&effects).is_empty() {
            assert!(s.now.since(begin) <= STORE_PAUSE);
            s.now = s.now + Duration::from_millis(20);
            effects = s.input(Input::Tick);
            assert_eq!(commit_of(&effects).map(|(_, commit)| commit), None);
        }
    }
}

/// What the kernel is told of the names `names` that the owner tells, for a buffer of `size` bytes of the user `uid`.
fn listed(s: &mut Story, uid: u32, size: u32, names: &[u8]) -> Option<Response> {
    let effects = s.ask_as(uid, Operation::ListXattr { ino: INO, size });
    let call = effects.iter().find_map(|effect| match effect {
        Effect::Call(call, _, Ask::Op { .. }) => Some(*call),
        _ => None,
    });
    let names = SmallBytes::new(names);
    let effects = s.answer(call.expect("asked"), meta::Reply::Bytes(names));
    effects.into_iter().find_map(|effect| match effect {
        Effect::Reply(_, told, _) => Some(told),
        _ => None,
    })
}

/// The names that the owner tells while it does not know of a write yet.
#[test]
fn a_list_of_attributes_is_without_rights_that_a_write_has_taken() {
    for is_written in [true, false] {
        let mut s = open(false);
        if is_written {
            s.write_back(1);
        }
        let names = b"user.a\0security.capability\0user.b\0";
        let expected: &[u8] = match is_written {
            true => b"user.a\0user.b\0",
            false => names,
        };
        let told = listed(&mut s, 0, 100, names);
        let expected = Response::Bytes(SmallBytes::new(expected));
        assert_eq!(told, Some(expected), "written: {is_written}");
    }
}

/// As on a local file system, where the kernel leaves them out for who has not CAP_SYS_ADMIN.
#[test]
fn trusted_attributes_are_listed_for_root_alone() {
    let names = b"trusted.t\0user.a\0";
    let mut s = open(false);
    for (uid, left) in [(0, &names[..]), (1, &b"user.a\0"[..])] {
        let length = u32::try_from(left.len()).expect("short");
        let bytes = Response::Bytes(SmallBytes::new(left));
        assert_eq!(listed(&mut s, uid, length, names), Some(bytes));
        let size = Response::Size(length);
        assert_eq!(listed(&mut s, uid, 0, names), Some(size));
    }
}
