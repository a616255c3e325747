//! What a rewrite may use: frames, sectors that are few, and disks that are slow.

use super::*;
use crate::rewrite::STEP_MAX;

/// A file of one block of 16 MiB, every page an extent of its own, open for writing.
fn of_one_large_block(size: u64) -> Story {
    let mut s = Story::new(size);
    s.has_sectors = true;
    s.slice.rewrite_aged(Rules::new(16 << 20));
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s
}

/// Answers whatever is asked for; every page is an extent.
fn carry_pages(s: &mut Story, effects: Vec<Effect>, pages: u64) -> Outcome {
    let mut left = effects;
    let mut outcome = Outcome::default();
    let mut others = Vec::new();
    while let Some(effect) = left.pop() {
        match effect {
            Effect::Call(
                call,
                _,
                Ask::Op {
                    op: meta::Op::GetMap { .. },
                    ..
                },
            ) => {
                let parts = (0..pages).map(|n| extent(n, 1, 100_000 - 2 * n));
                let map = meta::Reply::Map {
                    extents: parts.collect(),
                    pieces: Vec::new(),
                    end: u64::MAX,
                    map_version: 1,
                    attr: s.attr,
                };
                left.extend(s.answer(call, map));
            }
            other => others.push(other),
        }
    }
    let one = carry(s, others, 1, None);
    outcome.stored.extend(one.stored);
    outcome
}

/// One message and one store are bounded, and so are the frames that it holds.
#[test]
fn a_large_block_is_rewritten_in_steps() {
    let pages = (4 << 20) / PAGE;
    let mut s = of_one_large_block(pages * PAGE);
    let effects = located::read(&mut s, Handle(0), ByteRange::new(0, pages * PAGE));
    carry_pages(&mut s, effects, pages);
    rest(&mut s);
    let mut stored = Vec::new();
    for _ in 0..100 {
        let effects = tick(&mut s);
        stored.extend(carry_pages(&mut s, effects, pages).stored);
    }
    assert_eq!(stored, [STEP_MAX / PAGE; 2]);
}

/// Of a pool of 1,024 frames 64 at the most: what other slices have of these is not to be had.
#[test]
fn the_frames_of_a_node_are_shared() {
    let mut s = rested();
    let used = s.memory.0.borrow().iter().filter(|f| f.0 > 0).count();
    s.memory.1 = Some(1024 + used as u64);
    let others = 1;
    assert!(s.pace.hold(others, 64));
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.loaded, done.stored.len()), (0, 0), "{done:?}");
    s.pace.let_go(others);
    let store = until_store(&mut s);
    assert_eq!(s.pace.held(), 64);
    let effects = stored(&mut s, &store);
    assert_eq!(s.pace.held(), 0);
    assert!(commit_of(&effects).is_some(), "{effects:?}");
}

/// However it ends.
#[test]
fn all_frames_are_let_go() {
    let ends: [fn(&mut Story); 4] = [
        |s| drop(s.input(Input::Scarce(NodeId(2)))),
        |s| drop(s.input(Input::WriteBack)),
        |s| drop(s.input(Input::Lapsed(Vec::new()))),
        |s| s.pace.set_rate(0),
    ];
    for end in ends {
        let (mut s, _) = asking();
        assert_eq!(s.pace.held(), 64);
        end(&mut s);
        tick(&mut s);
        assert_eq!(s.pace.held(), 0, "waiting for tokens");

        let (mut s, store) = storing();
        end(&mut s);
        stored(&mut s, &store);
        tick(&mut s);
        assert_eq!(s.pace.held(), 0, "being stored");
    }
    let (mut s, (io, _)) = storing();
    s.input(Input::Stored(io, Err(IoFailure::Unknown)));
    assert_eq!(s.pace.held(), 0, "a store has failed");
}

/// Nobody has sectors of this owner to spare, on whichever node they are wanted.
#[test]
fn where_sectors_are_scarce_none_are_taken_for_a_while() {
    let mut s = rested();
    s.input(Input::Scarce(NodeId(2)));
    let done = ticks(&mut s, 100, 64, None);
    assert_eq!((s.spare.get().asked, done.stored.len()), (0, 0), "{done:?}");
    s.now = s.now + SHORT_PAUSE;
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// Others may use these disks, and be slow because of it.
#[test]
fn slow_disks_are_left_alone_for_longer() {
    let (mut s, store) = storing();
    s.now = s.now + Duration::from_secs(2);
    stored(&mut s, &store);
    let is_free = |s: &Story, seconds| s.pace.take(s.now + Duration::from_secs(seconds), 1, false);
    assert!(!is_free(&s, 5));
    assert!(is_free(&s, 7));
}

/// Each block of 64 KiB is an extent of its own, as it was written first: none is looked at.
#[test]
fn fresh_files_of_small_blocks_are_not_noted() {
    let block = 16 * PAGE;
    let mut s = Story::new(16 * block);
    s.has_sectors = true;
    let rules = Rules::new(u32::try_from(block).expect("small"));
    s.slice.rewrite_aged(rules);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let effects = located::read(&mut s, Handle(0), ByteRange::new(0, 16 * block));
    let mut others = Vec::new();
    for effect in effects {
        let Effect::Call(call, _, Ask::Op { .. }) = effect else {
            others.push(effect);
            continue;
        };
        let parts = (0..16).map(|n| extent(16 * n, 16, 9000 - 40 * n));
        let map = meta::Reply::Map {
            extents: parts.collect(),
            pieces: Vec::new(),
            end: u64::MAX,
            map_version: 1,
            attr: s.attr,
        };
        others.extend(s.answer(call, map));
    }
    let done = carry(&mut s, others, 64, None);
    assert_eq!(done.loaded, 256);
    assert_eq!(s.slice.rewriter.noted_count(), 0);
}

/// Others want them now.
#[test]
fn a_copy_is_dropped_where_frames_are_short() {
    let (mut s, _) = storing_beside_an_fsync();
    assert_eq!(s.pace.held(), 64);
    let used = s.memory.0.borrow().iter().filter(|f| f.0 > 0).count();
    s.memory.1 = Some(used as u64 + 3);
    s.input(Input::Shrink);
    assert_eq!(s.pace.held(), 0);
    let spare = s.spare.get();
    assert_eq!(spare.taken, spare.discarded, "{spare:?}");
}
