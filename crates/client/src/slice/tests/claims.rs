//! The size that a Commit tells: after a crash a file that nobody synced ends where its bytes do.

use super::*;

const BLOCK_PAGES: u64 = 256;

/// Pages of a block that is written back as soon as it is full.
fn block_at(number: u64) -> std::ops::Range<u64> {
    number * BLOCK_PAGES..(number + 1) * BLOCK_PAGES
}

fn empty() -> Story {
    let mut s = Story::new(0);
    s.has_sectors = true;
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

fn write_pages(s: &mut Story, pages: std::ops::Range<u64>) -> Vec<Effect> {
    pages.flat_map(|page| write_page(s, page, 4096)).collect()
}

fn stores_of(effects: &[Effect]) -> Vec<IoId> {
    let store = |effect: &Effect| match effect {
        Effect::Store(io, ..) => Some(*io),
        _ => None,
    };
    effects.iter().filter_map(store).collect()
}

/// So many extents of these pages.
fn extents(pages: std::ops::Range<u64>, count: u64) -> Vec<types::Extent> {
    let length = (pages.end - pages.start) / count;
    let extent = |at: u64| types::Extent {
        file_sector: pages.start + at * length,
        length: u32::try_from(length).expect("few"),
        birth: 0,
        is_shared: false,
        locations: Vec::new(),
        checksums: types::extent::Checksums::Inline {
            crcs: vec![0; usize::try_from(length).expect("few")],
        },
    };
    (0..count).map(extent).collect()
}

fn stored(s: &mut Story, io: IoId, extents: Vec<types::Extent>) -> Vec<Effect> {
    s.input(Input::Stored(io, Ok(extents)))
}

/// The owner knows this end now.
fn commit(s: &mut Story, call: CallId, told: Option<u64>) -> Vec<Effect> {
    s.attr.change += 1;
    s.attr.size = s.attr.size.max(told.unwrap_or(0));
    s.answer(call, meta::Reply::Attr(s.attr))
}

/// Its writer goes on while the first pages are written back.
#[test]
fn a_commit_that_nobody_waits_for_tells_the_end_of_what_it_carries() {
    let mut s = empty();
    write_pages(&mut s, 0..8);
    let first = stores_of(&s.input(Input::WriteBack))[0];
    write_pages(&mut s, 8..12);
    let effects = stored(&mut s, first, extents(0..8, 1));
    let (call, told) = commit_of(&effects).expect("all of it is stored");
    assert_eq!((told.extents.len(), told.size), (1, Some(8 * PAGE)));
    commit(&mut s, call, told.size);
    assert_eq!(
        s.slice.size_grown(INO),
        Some(12 * PAGE),
        "here it is longer"
    );
    // The rest, with all there is to tell.
    let second = stores_of(&s.input(Input::WriteBack))[0];
    let effects = stored(&mut s, second, extents(8..12, 1));
    let (call, told) = commit_of(&effects).expect("all of it is stored");
    assert_eq!(told.size, Some(12 * PAGE));
    commit(&mut s, call, told.size);
    assert_eq!(s.slice.size_grown(INO), None);
}

/// A last page that is written on while it is stored: what was stored of it is told.
#[test]
fn the_end_is_the_one_of_when_the_bytes_were_stored() {
    let mut s = empty();
    write_pages(&mut s, 0..2);
    write_page(&mut s, 2, 100);
    let first = stores_of(&s.input(Input::WriteBack))[0];
    write_page(&mut s, 2, 200);
    write_page(&mut s, 3, 300);
    let effects = stored(&mut s, first, extents(0..3, 1));
    let (_, told) = commit_of(&effects).expect("all of it is stored");
    assert_eq!(told.size, Some(2 * PAGE + 100));
}

/// fsync, a revoke and what changes the inode make the owner know what this node knows.
#[test]
fn who_waits_has_the_newest_size_told() {
    let revoke = |s: &mut Story| {
        let mode = InodeMode::Exclusive;
        s.revoke(1, vec![Want::Inode { mode }])
    };
    for wait in [fsync as fn(&mut Story) -> Vec<Effect>, revoke] {
        let mut s = empty();
        write_pages(&mut s, 0..8);
        let first = stores_of(&s.input(Input::WriteBack))[0];
        write_pages(&mut s, 8..9);
        let effects = wait(&mut s);
        let mut told = commit_of(&effects);
        for (io, pages) in [(Some(first), 0..8), (stores_of(&effects).pop(), 8..9)] {
            let Some(io) = io else { continue };
            let effects = stored(&mut s, io, extents(pages, 1));
            told = told.or_else(|| commit_of(&effects));
        }
        let (call, told) = told.expect("somebody waits");
        assert_eq!(told.size, Some(9 * PAGE));
        let effects = commit(&mut s, call, told.size);
        assert_eq!(error_of(&effects), None);
        assert_eq!(s.slice.size_grown(INO), None);
    }
}

/// Two blocks are on their way to disks; the second one is there first.
fn second_first(s: &mut Story, extent_count: u64) -> (IoId, Vec<Effect>) {
    let stores = stores_of(&write_pages(s, 0..2 * BLOCK_PAGES));
    let [first, second] = stores[..] else {
        panic!("{stores:?}")
    };
    let extents = extents(block_at(1), extent_count);
    (first, stored(s, second, extents))
}

/// The same in a new file.
fn second_before_first(extent_count: u64) -> (Story, IoId, Vec<Effect>) {
    let mut s = empty();
    let (first, effects) = second_first(&mut s, extent_count);
    (s, first, effects)
}

#[test]
fn what_lies_behind_bytes_that_are_being_stored_waits_for_them() {
    let (mut s, first, effects) = second_before_first(128);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    let effects = stored(&mut s, first, extents(block_at(0), 1));
    let (_, told) = commit_of(&effects).expect("both are there");
    assert_eq!(
        (told.extents.len(), told.size),
        (129, Some(2 * BLOCK_PAGES * PAGE))
    );
}

#[test]
fn a_first_block_that_is_lost_holds_nothing_up() {
    let (mut s, first, _) = second_before_first(128);
    let lost = Err(IoFailure::Unknown);
    let effects = s.input(Input::Stored(first, lost));
    // It is dirty again. What is stored goes, as far as anybody knows there will be no more of it soon.
    let (_, told) = commit_of(&effects).expect("nothing is being stored");
    assert_eq!(
        (told.extents.len(), told.size),
        (128, Some(2 * BLOCK_PAGES * PAGE))
    );
}

#[test]
fn it_does_not_wait_where_the_owner_knows_the_end_or_much_would_wait() {
    for (known_pages, extent_count) in [(2 * BLOCK_PAGES, 128), (0, 256)] {
        let mut s = Story::new(known_pages * PAGE);
        s.has_sectors = true;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        // There is more to tell, in any case.
        write_page(&mut s, 9 * BLOCK_PAGES, 4096);
        let (_, effects) = second_first(&mut s, extent_count);
        let (_, told) = commit_of(&effects).expect("it goes");
        assert_eq!(told.extents.len() as u64, extent_count);
        let end = 2 * BLOCK_PAGES * PAGE;
        assert_eq!(told.size, (known_pages == 0).then_some(end));
    }
}

/// What is committed can be evicted.
#[test]
fn it_does_not_wait_where_frames_are_short() {
    let (mut s, ..) = second_before_first(64);
    assert!(commit_of(&s.input(Input::Shrink)).is_none());
    let used = s.memory.0.borrow().iter().filter(|f| f.0 > 0).count() as u64;
    s.memory.1 = Some(used + 2);
    write_page(&mut s, 0, 4096);
    let effects = s.input(Input::Shrink);
    let (_, told) = commit_of(&effects).unwrap_or_else(|| panic!("{effects:?}"));
    assert_eq!(told.extents.len(), 64);
}

/// Nor where somebody waits.
#[test]
fn fsync_waits_for_what_was_dirty_and_no_longer() {
    let (mut s, first, _) = second_before_first(128);
    let effects = fsync(&mut s);
    assert!(commit_of(&effects).is_none(), "the first block was dirty");
    write_pages(&mut s, block_at(4));
    let effects = stored(&mut s, first, extents(block_at(0), 1));
    let (_, told) = commit_of(&effects).expect("all that was dirty is there");
    assert_eq!(told.extents.len(), 129);
    assert_eq!(told.size, Some(5 * BLOCK_PAGES * PAGE));
    // What is written in front of it meanwhile is none of that.
    let mut s = empty();
    let block = stores_of(&write_pages(&mut s, block_at(1)))[0];
    assert!(commit_of(&fsync(&mut s)).is_none(), "it is being stored");
    assert_eq!(stores_of(&write_pages(&mut s, block_at(0))).len(), 1);
    let effects = stored(&mut s, block, extents(block_at(1), 1));
    let (_, told) = commit_of(&effects).expect("it is there");
    assert_eq!(
        (told.extents.len(), told.size),
        (1, Some(2 * BLOCK_PAGES * PAGE))
    );
}

/// What is promised goes with Commits of its own.
#[test]
fn what_goes_apart_goes_in_the_order_of_the_file() {
    let mut s = empty();
    let stores = stores_of(&write_pages(&mut s, 0..2 * BLOCK_PAGES));
    s.slice.inode(INO).batches[1].is_promised = true;
    assert!(commit_of(&fsync(&mut s)).is_none());
    let second = extents(block_at(1), 1);
    assert!(commit_of(&stored(&mut s, stores[1], second)).is_none());
    let effects = stored(&mut s, stores[0], extents(block_at(0), 1));
    let (call, told) = commit_of(&effects).expect("both are stored");
    let end = BLOCK_PAGES * PAGE;
    assert_eq!((told.extents[0].file_sector, told.size), (0, Some(end)));
    let effects = commit(&mut s, call, told.size);
    let (call, told) = commit_of(&effects).expect("the rest");
    assert_eq!(
        (told.extents[0].file_sector, told.size),
        (BLOCK_PAGES, Some(2 * end))
    );
    let effects = commit(&mut s, call, told.size);
    let is_synced = |e: &Effect| matches!(e, Effect::Call(_, _, Ask::Sync));
    assert!(effects.iter().any(is_synced), "fsync goes on: {effects:?}");
}

/// Who waits is not held up by what was written in front of it afterwards.
#[test]
fn what_goes_apart_and_came_later_is_not_waited_for() {
    for is_later in [true, false] {
        let mut s = empty();
        let behind = stores_of(&write_pages(&mut s, block_at(1)))[0];
        s.slice.inode(INO).batches[0].is_promised = true;
        if is_later {
            assert!(commit_of(&fsync(&mut s)).is_none(), "it is being stored");
        }
        let front = stores_of(&write_pages(&mut s, block_at(0)))[0];
        let effects = stored(&mut s, front, extents(block_at(0), 1));
        assert!(commit_of(&effects).is_none(), "{effects:?}");
        if !is_later {
            assert!(
                commit_of(&fsync(&mut s)).is_none(),
                "all of it is waited for"
            );
        }
        let behind_extents = extents(block_at(1), 1);
        let effects = stored(&mut s, behind, behind_extents);
        let (_, told) = commit_of(&effects).expect("it is stored");
        let (begin, blocks) = if is_later { (BLOCK_PAGES, 2) } else { (0, 1) };
        assert_eq!(told.extents[0].file_sector, begin);
        assert_eq!(told.size, Some(blocks * BLOCK_PAGES * PAGE));
    }
}

/// A Commit has told less than all, for frames were short, and the bytes that were left are lost. The token of the size does not go before
/// the owner has heard what this node shows.
#[test]
fn a_token_does_not_go_while_there_is_a_size_to_tell() {
    let mut s = empty();
    let stores = stores_of(&write_pages(&mut s, 0..2 * BLOCK_PAGES));
    let mode = InodeMode::Exclusive;
    assert!(!is_released(&s.revoke(1, vec![Want::Inode { mode }])));
    let used = s.memory.0.borrow().iter().filter(|f| f.0 > 0).count() as u64;
    s.memory.1 = Some(used + 1);
    let effects = stored(&mut s, stores[0], extents(block_at(0), 1));
    let (call, told) = commit_of(&effects).expect("what is stored is to be evicted");
    assert_eq!(told.size, Some(BLOCK_PAGES * PAGE));
    let effects = commit(&mut s, call, told.size);
    assert!(
        !is_released(&effects) && commit_of(&effects).is_none(),
        "{effects:?}"
    );
    s.slice.inode(INO).store_failures = 100;
    let effects = s.input(Input::Stored(stores[1], Err(IoFailure::Corrupt)));
    assert!(!is_released(&effects), "{effects:?}");
    let (call, told) = commit_of(&effects).expect("the size is to be told");
    assert_eq!(told.size, Some(2 * BLOCK_PAGES * PAGE));
    assert!(is_released(&commit(&mut s, call, told.size)));
    assert_eq!(s.slice.size_grown(INO), None);
}

/// What fills a Commit up ends it: nothing behind goes with it, however small.
#[test]
fn a_commit_that_is_full_carries_nothing_of_what_is_behind() {
    // Of 1,024 extents at the most.
    let counts = [256, 256, 256, 128, 256, 1];
    let mut s = empty();
    let stores = stores_of(&write_pages(&mut s, 0..6 * BLOCK_PAGES));
    assert!(commit_of(&fsync(&mut s)).is_none());
    let mut effects = Vec::new();
    for ((block, count), io) in (0..6_u32).zip(counts).zip(stores).rev() {
        let block = u64::from(block);
        let pages = block_at(block);
        effects = stored(&mut s, io, extents(pages, count));
    }
    let (call, told) = commit_of(&effects).expect("all are stored");
    assert_eq!(
        (told.extents.len(), told.size),
        (896, Some(4 * BLOCK_PAGES * PAGE))
    );
    let effects = commit(&mut s, call, told.size);
    let (_, told) = commit_of(&effects).expect("the rest");
    assert_eq!(
        (told.extents.len(), told.size),
        (257, Some(6 * BLOCK_PAGES * PAGE))
    );
}

/// The blocks were written when a write-back of before was under way: they are none of its, and nobody comes back to the file.
#[test]
fn what_is_stored_behind_a_write_back_is_committed_with_time() {
    let mut s = empty();
    write_pages(&mut s, 0..8);
    let first = stores_of(&s.input(Input::WriteBack))[0];
    let second = stores_of(&write_pages(&mut s, block_at(1)))[0];
    s.now = s.now + Duration::from_secs(6);
    assert!(
        commit_of(&s.input(Input::Tick)).is_none(),
        "that one is under way"
    );
    let effects = stored(&mut s, first, extents(0..8, 1));
    let (call, told) = commit_of(&effects).expect("it ends");
    assert_eq!(told.size, Some(8 * PAGE));
    commit(&mut s, call, told.size);
    assert!(commit_of(&stored(&mut s, second, extents(block_at(1), 1))).is_none());
    s.now = s.now + Duration::from_secs(6);
    let (_, told) = commit_of(&s.input(Input::Tick)).expect("it is old");
    assert_eq!(told.size, Some(2 * BLOCK_PAGES * PAGE));
}

/// Nothing is told apart while what waits will take it along.
#[test]
fn what_waits_for_bytes_in_front_of_it_takes_the_times_along() {
    let mut s = empty();
    write_pages(&mut s, BLOCK_PAGES..BLOCK_PAGES + 8);
    let behind = stores_of(&s.input(Input::WriteBack))[0];
    let front = stores_of(&write_pages(&mut s, block_at(0)))[0];
    let effects = stored(&mut s, behind, extents(BLOCK_PAGES..BLOCK_PAGES + 8, 1));
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    let effects = stored(&mut s, front, extents(block_at(0), 1));
    let (_, told) = commit_of(&effects).expect("both");
    assert_eq!(told.extents.len(), 2);
    assert!(told.modified.is_some());
}

/// What fills Commits up in front of it, and was written after he began to wait, does not hold up who waits.
#[test]
fn what_is_waited_for_goes_first() {
    let mut s = empty();
    let behind = stores_of(&write_pages(&mut s, block_at(5)))[0];
    assert!(commit_of(&fsync(&mut s)).is_none());
    let front = stores_of(&write_pages(&mut s, 0..4 * BLOCK_PAGES));
    for (block, io) in (0..4).zip(front) {
        let pages = block_at(block);
        assert!(commit_of(&stored(&mut s, io, extents(pages, 256))).is_none());
    }
    let effects = stored(&mut s, behind, extents(block_at(5), 256));
    let (_, told) = commit_of(&effects).expect("it is stored");
    assert_eq!(told.extents.len(), 1024, "and others");
    let is_it = |e: &types::Extent| e.file_sector >= 5 * BLOCK_PAGES;
    assert_eq!(told.extents.iter().filter(|e| is_it(e)).count(), 256);
}

/// The write-back of before was under way when it was old enough; then that one is refused.
#[test]
fn what_was_written_beside_a_write_back_that_is_refused_is_written_back_with_time() {
    let mut s = empty();
    write_pages(&mut s, 0..2);
    let first = stores_of(&s.input(Input::WriteBack))[0];
    let effects = stored(&mut s, first, extents(0..2, 1));
    let (call, _) = commit_of(&effects).expect("it is stored");
    write_pages(&mut s, 2..4);
    s.now = s.now + Duration::from_secs(6);
    assert!(stores_of(&s.input(Input::Tick)).is_empty(), "one at a time");
    let refused = Answer::bare(Body::Refused(Errno::ENOSPC));
    s.input(Input::Answer(call, Box::new(refused)));
    s.now = s.now + Duration::from_secs(6);
    assert_eq!(stores_of(&s.input(Input::Tick)).len(), 1);
}

/// A block was stored and nobody waits for it: its Commit waits for more of them, or for five seconds, unless frames are so few that the
/// kernel's requests wait (100 MiB took 15 s with a pagepool of 32 MiB).
#[test]
fn what_is_stored_does_not_wait_where_requests_do() {
    let levels = crate::Pool::levels(&Story::new(0).memory);
    for free in [levels.intake, levels.intake - 1] {
        for is_short_before in [false, true] {
            let mut s = empty();
            let first = stores_of(&write_pages(&mut s, block_at(0)))[0];
            let used = s.memory.0.borrow().iter().filter(|f| f.0 > 0).count() as u64;
            let limit = Some(used + free);
            s.memory.1 = limit.filter(|_| is_short_before);
            let mut effects = stored(&mut s, first, extents(block_at(0), 1));
            if !is_short_before {
                assert_eq!(commit_of(&effects), None, "there are few extents");
                s.memory.1 = limit;
                effects = s.input(Input::Shrink);
            }
            let is_told = commit_of(&effects).is_some();
            assert_eq!(is_told, free < levels.intake, "{is_short_before}");
        }
    }
}
