//! A rewrite that is under way: while it is stored, its disks are flushed and it is committed.

use super::*;

/// The same on disks that may forget it, until they answer this flush.
fn flushing() -> (Story, IoId) {
    let mut s = open(ByteRange::ALL);
    s.has_volatile_nsd = true;
    overwrite(&mut s, 3);
    rest(&mut s);
    let store = until_store(&mut s);
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    let flush = effects.iter().find_map(|effect| match effect {
        Effect::Flush(io, stores) if stores[..] == [store.0] => Some(*io),
        _ => None,
    });
    (s, flush.expect("before the Commit"))
}

#[test]
fn disks_are_flushed_before_a_rewrite_is_committed() {
    let (mut s, flush) = flushing();
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
    let effects = s.input(Input::Flushed(flush, Ok(())));
    let (call, _) = commit_of(&effects).expect("it is durable");
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
    check_nothing_is_left(&mut s, 1);
}

/// A server has restarted: it may not have the bytes.
#[test]
fn what_a_disk_has_forgotten_is_not_committed() {
    let (mut s, flush) = flushing();
    let effects = s.input(Input::Flushed(flush, failed(IoFailure::Unknown)));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.stored.len(), done.commits.len()), (1, 1), "{done:?}");
}

fn failed(failure: IoFailure) -> Result<(), Undurable> {
    Err(vec![(IoId(1), failure)])
}

/// A disk that does not flush is not written to again and again: the next try is a pause away.
#[test]
fn a_disk_that_does_not_flush_is_left_alone_for_a_while() {
    let (mut s, flush) = flushing();
    let effects = s.input(Input::Flushed(flush, failed(IoFailure::Unreachable)));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.stored.len(), 0, "{done:?}");
    s.now = s.now + SHORT_PAUSE;
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.stored.len(), done.commits.len()), (1, 1), "{done:?}");
}

/// A disk that does not answer a flush holds nobody up, and what has changed by then is not committed.
#[test]
fn nobody_waits_until_disks_are_flushed_for_a_rewrite() {
    let (mut s, flush) = flushing();
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let is_sync = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
    assert!(effects.iter().any(is_sync), "{effects:?}");
    overwrite(&mut s, 5);
    assert!(!s.slice.inode(INO).is_dirty(), "committed meanwhile");
    let effects = s.input(Input::Flushed(flush, Ok(())));
    assert!(commit_of(&effects).is_none(), "older bytes: {effects:?}");
    check_nothing_is_left(&mut s, 0);

    let (mut s, flush) = flushing();
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    let effects = s.carry_out(effects);
    assert!(is_released(&effects), "{effects:?}");
    let effects = s.input(Input::Flushed(flush, Ok(())));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
}

/// A disk that is away for long keeps neither frames nor sectors.
#[test]
fn a_flush_for_a_rewrite_has_an_end() {
    let (mut s, flush) = flushing();
    s.now = s.now + PATIENCE + Duration::from_millis(1);
    tick(&mut s);
    check_nothing_is_left(&mut s, 0);
    let effects = s.input(Input::Flushed(flush, Ok(())));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    s.now = s.now + SHORT_PAUSE;
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.commits.len(), 1, "{done:?}");
}

/// Its sectors go back without the flush's answer, which concerns nobody then.
#[test]
fn a_flush_for_a_rewrite_that_is_given_up_is_not_waited_for() {
    let (mut s, flush) = flushing();
    s.input(Input::Lapsed(Vec::new()));
    tick(&mut s);
    check_nothing_is_left(&mut s, 0);
    let effects = s.input(Input::Flushed(flush, Ok(())));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
}

/// The disks refuse it: the sectors before still have the bytes, so nobody hears of it, nothing is counted as a failure of somebody's
/// write, and nothing is tried again at once.
#[test]
fn what_cannot_be_stored_is_no_loss() {
    for failure in [IoFailure::Unreachable, IoFailure::Unknown] {
        let mut s = rested();
        let done = ticks(&mut s, 200, 64, Some(failure));
        assert_eq!(done.stored, [64], "tried once: {done:?}");
        assert_eq!(done.commits.len(), 0);
        let inode = s.slice.inode(INO);
        assert!(!inode.is_dirty(), "given up");
        assert!(!inode.errors.is_untold());
        assert_eq!((inode.store_failures, inode.failing_since), (0, None));
        assert_eq!(inode.starved_since, None);
        assert_eq!(s.slice.rewrite_counts().blocks, 0);
    }
}

/// It was stored a moment ago with what the file had then: the newer bytes stay, and go their own way.
#[test]
fn who_writes_meanwhile_ends_it() {
    let (mut s, store) = storing();
    overwrite(&mut s, 5);
    assert!(!s.slice.inode(INO).is_dirty(), "committed meanwhile");
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "older bytes: {effects:?}");
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
    check_nothing_is_left(&mut s, 0);
    // With the next rest.
    rest(&mut s);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// Space was promised to the file, or it was cut: its extents are to be others.
#[test]
fn a_file_of_another_size_generation_is_not_rewritten() {
    let (mut s, store) = storing();
    let attr = &mut s.slice.inode(INO).attr;
    attr.as_mut().expect("known").size_generation += 1;
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
}

/// Dirty again in the hands of somebody who waits for sectors: his.
#[test]
fn a_page_written_meanwhile_stays_dirty_when_the_rewrite_fails() {
    let (mut s, (io, _)) = storing();
    let effects = s.write_back(7);
    carry(&mut s, effects, 64, None);
    s.input(Input::Stored(io, Err(IoFailure::Unreachable)));
    let inode = s.slice.inode(INO);
    assert_eq!(inode.pages.dirty_count(), 1);
    assert_eq!((inode.store_failures, inode.failing_since), (0, None));
    s.now = Instant(s.now.0 + 6 * SECOND);
    let done = ticks(&mut s, 2, 64, None);
    assert_eq!(done.stored, [1], "{done:?}");
    assert_eq!(done.commits.len(), 1);
}

/// Nothing of the application's is under way.
#[test]
fn fsync_does_not_wait_for_a_store_of_a_rewrite() {
    let (mut s, _) = storing();
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let is_sync = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
    assert!(effects.iter().any(is_sync), "{effects:?}");
    assert_eq!(
        s.slice
            .inode(INO)
            .visible_attr()
            .expect("known")
            .sector_count,
        0
    );
}

/// A Commit of an application carries its time, and the one of a rewrite does not stand in for it.
#[test]
fn a_commit_of_a_rewrite_is_not_the_one_that_somebody_waits_for() {
    let (mut s, call) = committing();
    let effects = s.write_back(7);
    carry(&mut s, effects, 64, None);
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let done = carry(&mut s, effects, 64, None);
    assert_eq!(done.commits.len(), 0, "one at a time: {done:?}");
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let is_sync = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
    assert!(!effects.iter().any(is_sync), "not yet: {effects:?}");
    let done = carry(&mut s, effects, 64, None);
    assert_eq!(done.commits.len(), 1);
    assert!(done.commits[0].modified.is_some());
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
}

/// Another node wants it: the tokens go at once, and the copy is not committed.
#[test]
fn tokens_do_not_wait_for_a_store_of_a_rewrite() {
    let (mut s, store) = storing();
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    let effects = s.carry_out(effects);
    let is_release = |e: &Effect| matches!(e, Effect::Release(..));
    assert!(effects.iter().any(is_release), "{effects:?}");
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    ticks(&mut s, 5, 64, None);
    check_nothing_is_left(&mut s, 0);
}

/// Another node reads it: the pages stay, the right to write goes.
#[test]
fn without_the_right_to_write_nothing_is_committed() {
    let (mut s, store) = storing();
    let required = Pattern::plain(ByteRange::ALL);
    let want = Want::Range {
        mode: RangeMode::Read,
        required,
        desired: required,
    };
    let effects = s.revoke(1, vec![want]);
    let effects = s.carry_out(effects);
    let is_release = |e: &Effect| matches!(e, Effect::Release(..));
    assert!(effects.iter().any(is_release), "{effects:?}");
    assert!(s.slice.inode(INO).pages.clean_frame(0).is_some());
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    check_nothing_is_left(&mut s, 0);
    check_tokens_are_not_taken_back(&mut s);
}

/// Nodes that take a file from one another would do so with each rest.
fn check_tokens_are_not_taken_back(s: &mut Story) {
    for _ in 0..3 {
        rest(s);
        let done = ticks(s, 20, 64, None);
        assert_eq!((done.acquired.len(), done.stored.len()), (0, 0), "{done:?}");
    }
    check_nothing_is_left(s, 0);
}

/// They were granted, and another node had them before anything was loaded.
#[test]
fn tokens_that_another_node_takes_at_once_are_not_asked_for_again() {
    let (mut s, call) = asking();
    let answer = Answer::bare(Body::Acquired { attr: Some(s.attr) });
    s.input(Input::Answer(call, Box::new(answer)));
    check_tokens_are_not_taken_back(&mut s);
}

/// Nothing is taken from other nodes before it can be used.
#[test]
fn tokens_are_asked_for_when_there_are_frames_and_it_is_time() {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    assert!(
        s.pace.take(s.now, u64::from(u32::MAX), false),
        "for two minutes"
    );
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired.len(), 0, "{done:?}");
    s.now = s.now + Duration::from_secs(200);
    // It has waited for long enough, and is looked at again later.
    ticks(&mut s, 1, 64, None);
    let used = s
        .memory
        .0
        .borrow()
        .iter()
        .filter(|frame| frame.0 > 0)
        .count() as u64;
    let total = 2048;
    s.memory.1 = Some(total);
    let frames: Vec<_> = (used..total)
        .map(|_| crate::Pool::alloc(&s.memory).expect("so many"))
        .collect();
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired.len(), 0, "{done:?}");
    frames
        .iter()
        .for_each(|frame| crate::Pool::release(&s.memory, *frame));
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired, [vec![write_want(ByteRange::new(0, BLOCK))]]);
}

/// Somebody waits for a store, after which a Commit is to bring his time: one of a rewrite would count as that.
#[test]
fn a_rewrite_is_not_committed_while_somebody_waits() {
    let (mut s, other) = storing_beside_an_fsync();
    let effects = stored(&mut s, &other);
    let (call, commit) = commit_of(&effects).expect("his");
    assert!(commit.modified.is_some());
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let is_sync = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
    assert!(effects.iter().any(is_sync), "{effects:?}");
    let (call, commit) = commit_of(&effects).expect("then this one, at once");
    assert_eq!(commit.modified, None);
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
}

/// The owner takes a Commit under the right to write only.
#[test]
fn tokens_wait_for_a_commit_of_a_rewrite() {
    let (mut s, call) = committing();
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    let effects = s.carry_out(effects);
    let is_release = |e: &Effect| matches!(e, Effect::Release(..));
    assert!(!effects.iter().any(is_release), "{effects:?}");
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let effects = s.carry_out(effects);
    assert!(effects.iter().any(is_release), "{effects:?}");
    check_nothing_is_left(&mut s, 1);
}

/// The daemon stops, the lease ends, or it is switched off: what is under way is not committed, and nothing else begins.
#[test]
fn whatever_ends_rewriting_is_seen_at_once() {
    let ends: [fn(&mut Story) -> Vec<Effect>; 4] = [
        |s| {
            s.pace.set_rate(0);
            Vec::new()
        },
        |s| s.input(Input::WriteBack),
        |s| s.input(Input::Lapsed(Vec::new())),
        |s| {
            s.pace.set_rate(0);
            tick(s)
        },
    ];
    for end in ends {
        let (mut s, store) = storing();
        end(&mut s);
        assert!(!s.slice.is_dirty(), "a stop does not wait for its disk");
        let effects = stored(&mut s, &store);
        assert!(commit_of(&effects).is_none(), "{effects:?}");
        check_nothing_is_left(&mut s, 0);
        rest(&mut s);
        rest(&mut s);
        let done = ticks(&mut s, 50, 64, None);
        assert_eq!((done.maps, done.loaded, done.stored.len()), (0, 0, 0));
    }
}
