//! Blocks that are to leave a place: what moves, what is left where it is, and that nothing of it stays undone for ever.

use super::others::refuse;
use super::*;
use crate::rewrite::Clear;
use types::{Layout, Location, NsdId, Run};

const FIRST: ByteRange = ByteRange::new(0, BLOCK);
const SECOND_BLOCK: ByteRange = ByteRange::new(BLOCK, 2 * BLOCK);
const BOTH: ByteRange = ByteRange::new(0, 2 * BLOCK);

fn place_on(nsd: u16, sector: u64, count: u32) -> Run {
    let nsd = NsdId(nsd);
    let at = Location { nsd, sector };
    Run { at, count }
}

/// Where both blocks lie (`map_of`), each as one extent or as few.
fn old_place() -> Run {
    place_on(1, 4000, 6000)
}

/// Where what is taken lies (`Plenty`).
fn new_place() -> Run {
    place_on(1, 1000, 128)
}

fn clear_of(s: &mut Story, places: &[Run], ranges: &[ByteRange]) {
    let one = |range: &ByteRange| (INO, Layout::default(), *range);
    let clear = Clear {
        places: places.into(),
        files: ranges.iter().map(one).collect(),
    };
    let effects = s.input(Input::Clear(Box::new(clear)));
    assert!(effects.is_empty(), "{effects:?}");
}

fn clear(s: &mut Story, range: ByteRange) {
    clear_of(s, &[old_place()], &[range]);
}

/// A file that nobody here has open.
fn unknown() -> Story {
    let mut s = Story::new(2 * BLOCK);
    s.has_sectors = true;
    let rules = Rules::new(u32::try_from(BLOCK).expect("small"));
    s.slice.rewrite_aged(rules);
    // As if it had been opened: `check_nothing_is_left` counts the requests after that.
    s.ticket = 1;
    s
}

/// A file that is open here, and nobody else's.
fn known() -> Story {
    open(ByteRange::ALL)
}

/// What came of some ticks.
#[derive(Default, Debug)]
struct Done {
    /// Tokens asked for, and whether those alone that are free.
    asked: Vec<(Vec<Want>, bool)>,
    released: usize,
    other: Outcome,
}

/// What an owner has to say to a question for tokens; `None`: it grants them.
type Refusal = Option<Errno>;

/// Lets so many ticks pass, in which disks and owners answer; a block is one extent.
fn pass(s: &mut Story, number: usize, refusal: Refusal, failure: Option<IoFailure>) -> Done {
    let mut done = Done::default();
    for _ in 0..number {
        let mut left = VecDeque::from(tick(s));
        while let Some(effect) = left.pop_front() {
            match (&effect, refusal) {
                (
                    Effect::Call(
                        call,
                        _,
                        Ask::Acquire {
                            wants, only_free, ..
                        },
                    ),
                    _,
                ) => {
                    done.asked.push((wants.clone(), *only_free));
                    let call = *call;
                    left.extend(match refusal {
                        Some(errno) => refuse(s, call, errno),
                        None => {
                            let held = wants.iter().filter_map(range_of);
                            let held: Vec<_> = held.collect();
                            s.grant_ranges(&[effect], InodeMode::Exclusive, &held)
                        }
                    });
                }
                (Effect::Release(..), _) => done.released += 1,
                _ => {
                    let one = carry(s, vec![effect], 1, failure);
                    done.other.maps += one.maps;
                    done.other.loaded += one.loaded;
                    done.other.stored.extend(one.stored);
                    done.other.commits.extend(one.commits);
                    assert_eq!(one.acquired.len(), 0);
                }
            }
        }
    }
    done
}

fn range_of(want: &Want) -> Option<(RangeMode, ByteRange)> {
    match want {
        Want::Range { mode, required, .. } => {
            let end = required.offset + required.length;
            Some((*mode, ByteRange::new(required.offset, end)))
        }
        _ => None,
    }
}

fn left_count(s: &Story) -> u64 {
    s.slice.leaving_count()
}

/// Nothing is in the Commit but where these bytes lie now.
fn check_names(commit: &meta::Commit, range: ByteRange) {
    let nothing = (commit.size, commit.modified, commit.kill_set_id);
    assert_eq!(nothing, (None, None, None));
    assert!(!commit.drops_rights && commit.pieces.is_empty());
    let [extent] = &commit.extents[..] else {
        panic!("{commit:?}");
    };
    let bytes = (extent.file_sector * PAGE, extent.file_sector_end() * PAGE);
    assert_eq!(bytes, (range.begin, range.end));
    assert_eq!(extent.place_among(&[new_place()]), Some(0));
}

/// Its attributes come with the right to write the block; that is asked for if it is free, and given back.
#[test]
fn a_file_that_nobody_has_open_is_met() {
    let mut s = unknown();
    clear(&mut s, FIRST);
    assert_eq!(left_count(&s), 1);
    let done = pass(&mut s, 50, None, None);
    assert_eq!(done.asked, [(vec![write_want(FIRST)], true)]);
    assert_eq!((done.other.loaded, &done.other.stored[..]), (64, &[64][..]));
    let [commit] = &done.other.commits[..] else {
        panic!("{done:?}");
    };
    check_names(commit, FIRST);
    assert_eq!(done.released, 1);
    let counts = s.slice.rewrite_counts();
    assert_eq!((counts.blocks, counts.left, counts.given_up), (1, 1, 0));
    assert_eq!((counts.parts_before, counts.parts_after), (1, 1));
    assert_eq!(left_count(&s), 0);
    check_nothing_is_left(&mut s, 1);
}

/// Somebody has seen its name, and nobody may read it: its attributes alone do not say where it lies.
#[test]
fn a_file_that_was_seen_is_asked_for_as_well() {
    let mut s = unknown();
    let attr = s.attr;
    let inode = s.slice.inode(INO);
    inode.learn_attr(&attr);
    inode.lookup_count = 1;
    clear(&mut s, SECOND_BLOCK);
    let done = pass(&mut s, 50, None, None);
    assert_eq!(done.asked, [(vec![write_want(SECOND_BLOCK)], true)]);
    check_names(&done.other.commits[0], SECOND_BLOCK);
    assert_eq!((done.released, left_count(&s)), (1, 0));
    // Another node has it.
    rest(&mut s);
    clear(&mut s, FIRST);
    let done = pass(&mut s, 50, Some(Errno::EAGAIN), None);
    assert_eq!(
        (done.asked.len(), done.other.maps, left_count(&s)),
        (1, 0, 0)
    );
}

/// It was seen when nothing was in it, and another node has written it since: what is known without tokens is no reason to leave it.
#[test]
fn a_file_whose_attributes_are_old_is_asked_for() {
    let now = unknown().attr;
    let olds = [
        ("empty", Attr { size: 0, ..now }),
        ("shorter", Attr { size: BLOCK, ..now }),
        (
            "promised",
            Attr {
                permissions: now.permissions | types::attr::HAS_PROMISE,
                ..now
            },
        ),
    ];
    for (what, old) in olds {
        let mut s = unknown();
        let inode = s.slice.inode(INO);
        inode.learn_attr(&old);
        inode.lookup_count = 1;
        clear(&mut s, SECOND_BLOCK);
        s.attr.change += 1;
        let done = pass(&mut s, 50, None, None);
        let wants = vec![write_want(SECOND_BLOCK)];
        assert_eq!(done.asked, [(wants, true)], "{what}");
        check_names(&done.other.commits[0], SECOND_BLOCK);
        assert_eq!(left_count(&s), 0, "{what}");
    }
}

/// Where a file is to lie there is no room now: others may have some elsewhere, and it is tried again.
#[test]
fn a_layout_without_room_holds_up_no_others() {
    let mut s = known();
    s.attr.layout = Layout::new(&[NsdId(2)], None).expect("one");
    let attr = s.attr;
    s.slice.inode(INO).learn_attr(&attr);
    s.has_room = false;
    clear(&mut s, BOTH);
    let done = pass(&mut s, 25, None, None);
    assert_eq!((done.other.stored.len(), left_count(&s)), (0, 2));
    s.has_room = true;
    let done = pass(&mut s, 100, None, None);
    assert_eq!((&done.other.stored[..], left_count(&s)), (&[64, 64][..], 0));
}

/// It was removed while its copy was being written: that is no failure. What an owner refuses otherwise is one.
#[test]
fn a_file_that_was_removed_meanwhile_is_no_failure() {
    for (errno, is_failure) in [(Errno::ESTALE, false), (Errno::EIO, true)] {
        let mut s = known();
        s.commit_error = Some(errno);
        clear(&mut s, BOTH);
        let mut ticks = (0..50).map(|_| pass(&mut s, 1, None, None).other.commits.len());
        assert_eq!(ticks.find(|count| *count > 0), Some(1));
        s.commit_error = None;
        let done = pass(&mut s, 20, None, None);
        let (stored, left) = (done.other.stored.len(), left_count(&s));
        let expected = if is_failure { (0, 2) } else { (1, 0) };
        assert_eq!((stored, left), expected, "{errno:?}");
    }
}

/// However few extents it has, and without a rest. Nobody asks for what is there.
#[test]
fn a_block_of_one_extent_leaves_a_place() {
    let mut s = known();
    clear(&mut s, FIRST);
    let done = pass(&mut s, 50, None, None);
    assert_eq!((done.asked.len(), done.released), (0, 0));
    let [commit] = &done.other.commits[..] else {
        panic!("{done:?}");
    };
    check_names(commit, FIRST);
    assert_eq!(s.slice.rewrite_counts().left, 1);
    // The other block lies there, too, and nobody has named it.
    let done = pass(&mut s, 2000, None, None);
    assert_eq!(done.other.commits.len(), 0, "{done:?}");
}

/// A block is named once, whatever of it lies there; each block that has a part of the bytes.
#[test]
fn blocks_are_named_by_their_bytes() {
    let mut s = known();
    let parts = [
        ByteRange::new(0, PAGE),
        ByteRange::new(5 * PAGE, 6 * PAGE),
        ByteRange::new(BLOCK - PAGE, BLOCK + PAGE),
    ];
    clear_of(&mut s, &[old_place()], &parts);
    assert_eq!(left_count(&s), 2);
    let done = pass(&mut s, 300, None, None);
    assert_eq!(done.other.stored, [64, 64]);
    assert_eq!(s.slice.rewrite_counts().left, 2);
    // More than are remembered are found again later.
    let many = ByteRange::new(0, 5000 * BLOCK);
    clear(&mut s, many);
    assert_eq!(left_count(&s), 4096);
    // A mount for reading only.
    let mut s = Story::new(2 * BLOCK);
    clear(&mut s, FIRST);
    assert_eq!(left_count(&s), 0);
}

/// It has moved since, or lies beside it: the map says so.
#[test]
fn a_block_with_nothing_in_the_places_is_left_alone() {
    let others = [
        place_on(1, 4900, 100),
        place_on(1, 5064, 100),
        place_on(2, 5000, 64),
    ];
    for mut s in [known(), unknown()] {
        clear_of(&mut s, &others, &[FIRST]);
        let done = pass(&mut s, 50, None, None);
        let other = &done.other;
        assert_eq!(
            (other.loaded, other.stored.len(), other.commits.len()),
            (0, 0, 0)
        );
        assert_eq!((other.maps, left_count(&s)), (1, 0));
        assert_eq!(s.slice.rewrite_counts().blocks, 0);
        assert_eq!(done.asked.len(), done.released, "what was lent goes back");
        check_nothing_is_left(&mut s, 0);
    }
    // One sector is enough.
    for sector in [4901, 5063] {
        let mut s = known();
        clear_of(&mut s, &[others[2], place_on(1, sector, 100)], &[FIRST]);
        let done = pass(&mut s, 50, None, None);
        assert_eq!(done.other.stored, [64], "{sector}");
    }
}

/// Another node uses it: it stays, and so do the file's other blocks, which nobody asks for now. Soon somebody may.
#[test]
fn a_file_that_another_node_uses_stays_where_it_is() {
    let mut s = unknown();
    clear(&mut s, BOTH);
    let done = pass(&mut s, 100, Some(Errno::EAGAIN), None);
    assert_eq!(done.asked, [(vec![write_want(FIRST)], true)]);
    assert_eq!((done.other.maps, done.other.stored.len()), (0, 0));
    assert_eq!(left_count(&s), 0);
    check_nothing_is_left(&mut s, 0);
    rest(&mut s);
    clear(&mut s, SECOND_BLOCK);
    let done = pass(&mut s, 100, None, None);
    assert_eq!(done.other.stored, [64]);
    assert_eq!(done.asked, [(vec![write_want(SECOND_BLOCK)], true)]);
}

/// The same where it is open here, and the other node has a part of it.
#[test]
fn a_block_that_another_node_uses_stays_where_it_is() {
    let mut s = open_to_write_half();
    clear(&mut s, BOTH);
    let done = pass(&mut s, 100, Some(Errno::EAGAIN), None);
    assert_eq!(done.asked, [(vec![write_want(FIRST)], true)]);
    assert_eq!((done.other.loaded, done.other.stored.len()), (0, 0));
    assert_eq!(left_count(&s), 0);
}

/// Which node has what is not known yet: it is asked again.
#[test]
fn a_grace_period_is_waited_out_to_leave() {
    let mut s = unknown();
    clear(&mut s, FIRST);
    // Also for longer than a disk may fail.
    for _ in 0..7 {
        let done = pass(&mut s, 50, Some(Errno::EBUSY), None);
        assert_eq!((done.asked.len(), left_count(&s)), (1, 1));
        rest(&mut s);
    }
    let done = pass(&mut s, 100, None, None);
    assert_eq!((&done.other.stored[..], left_count(&s)), (&[64][..], 0));
}

/// Somebody writes to it: after a while it is tried again, and when that is over it leaves.
#[test]
fn a_busy_block_is_tried_again() {
    let mut s = known();
    write_page(&mut s, 3);
    clear(&mut s, FIRST);
    let done = pass(&mut s, 100, None, None);
    assert_eq!((done.other.stored.len(), left_count(&s)), (0, 1));
    // What was written is stored, and the next try finds it at rest.
    s.now = s.now + Duration::from_secs(6);
    let done = pass(&mut s, 100, None, None);
    let commits = done.other.commits;
    check_names(commits.last().expect("the write's, and this"), FIRST);
    assert_eq!((s.slice.rewrite_counts().left, left_count(&s)), (1, 0));
}

/// And a few times only: who looks next finds it.
#[test]
fn a_block_that_stays_busy_is_dropped() {
    let mut s = known();
    clear(&mut s, FIRST);
    let begin = s.now;
    while left_count(&s) > 0 {
        assert!(s.now.since(begin) < Duration::from_secs(20));
        // It is never at rest, and never old enough to be stored.
        s.slice.inode(INO).goals.clear();
        write_page(&mut s, 3);
        let effects = tick(&mut s);
        assert!(!effects.iter().any(|e| matches!(e, Effect::Load(..))));
    }
    let took = s.now.since(begin);
    let (least, most) = (Duration::from_millis(2900), Duration::from_secs(5));
    assert!(least < took && took < most, "{took:?}");
    assert_eq!(s.slice.rewrite_counts().blocks, 0);
    // Others do not wait for it.
    clear(&mut s, BOTH);
    let done = pass(&mut s, 30, None, None);
    assert_eq!(done.other.stored, [64]);
    check_names(&done.other.commits[0], SECOND_BLOCK);
}

/// Free sectors are left in such places alone: nothing moves from one to another. Each block is tried a few times, and holds up no others.
#[test]
fn nothing_moves_from_one_place_to_another() {
    // The first block would lie there, or both.
    let places = [
        (place_on(1, 900, 101), 1),
        (place_on(1, 1063, 1), 1),
        (new_place(), 0),
    ];
    for (place, moved) in places {
        let mut s = known();
        clear_of(&mut s, &[old_place(), place], &[BOTH]);
        assert_eq!(left_count(&s), 2);
        let done = pass(&mut s, 300, None, None);
        assert_eq!(done.other.stored, vec![64; moved]);
        let moved = u64::try_from(moved).expect("small");
        assert_eq!((s.slice.rewrite_counts().left, left_count(&s)), (moved, 0));
        assert_eq!(s.spare.get().taken, moved + (2 - moved) * 4, "four times");
        check_nothing_is_left(&mut s, moved);
        // Whoever leaves other places has somewhere to go.
        clear(&mut s, FIRST);
        let done = pass(&mut s, 50, None, None);
        assert_eq!(done.other.stored, [64]);
    }
}

/// Blocks of many extents do not pause for that: it was not sectors that were missing.
#[test]
fn who_stays_in_a_place_stops_no_others() {
    let mut s = rested();
    clear_of(&mut s, &[old_place(), new_place()], &[SECOND_BLOCK]);
    let effects = tick(&mut s);
    carry(&mut s, effects, 64, None);
    let done = ticks(&mut s, 250, 64, None);
    assert_eq!(s.spare.get().discarded, 4, "{done:?}");
    assert_eq!((&done.stored[..], left_count(&s)), (&[64][..], 0));
    assert_eq!(s.slice.rewrite_counts().left, 0);
}

/// Neither is anything moved where no sectors can be had at all.
#[test]
fn where_there_are_no_others_all_stays() {
    let mut s = known();
    s.has_room = false;
    clear(&mut s, BOTH);
    let done = pass(&mut s, 50, None, None);
    assert_eq!((done.other.stored.len(), left_count(&s)), (0, 0));
    check_nothing_is_left(&mut s, 0);
}

/// Something has failed: a disk may be away. What leaves is tried again soon, for somebody waits for it, each time twice as late.
#[test]
fn what_leaves_is_tried_again_soon_after_failures() {
    let mut s = known();
    clear(&mut s, BOTH);
    let mut tries = Vec::new();
    let begin = s.now;
    while s.now.since(begin) < Duration::from_secs(70) {
        let done = pass(&mut s, 1, None, Some(IoFailure::Unreachable));
        assert_eq!(done.other.commits.len(), 0);
        if !done.other.stored.is_empty() {
            assert_eq!(done.other.stored, [64], "one at a time");
            tries.push(s.now.since(begin).0 / SECOND);
        }
    }
    // Then they are given up: what another plan finds may be better off.
    assert_eq!(tries, [0, 1, 3, 7, 15], "seconds");
    assert_eq!(left_count(&s), 0);
    clear(&mut s, BOTH);
    // When the disk is good again.
    let done = pass(&mut s, 60 * 50, None, None);
    assert_eq!((&done.other.stored[..], left_count(&s)), (&[64, 64][..], 0));
    s.now = s.now + SHORT_PAUSE;
    clear(&mut s, FIRST);
    tries.clear();
    let begin = s.now;
    while s.now.since(begin) < Duration::from_secs(5) {
        let done = pass(&mut s, 1, None, Some(IoFailure::Unreachable));
        if !done.other.stored.is_empty() {
            tries.push(s.now.since(begin).0 / SECOND);
        }
    }
    assert_eq!(tries, [0, 1, 3], "from the beginning again");
}

/// Somebody is short of sectors: then it is that regions are to become free. Blocks of many extents wait.
#[test]
fn a_pause_for_scarcity_does_not_hold_for_what_leaves() {
    let mut s = rested();
    s.input(Input::Scarce(NodeId(2)));
    let done = ticks(&mut s, 50, 64, None);
    assert_eq!(done.stored.len(), 0, "the aged one waits");
    clear(&mut s, SECOND_BLOCK);
    let done = pass(&mut s, 50, None, None);
    check_names(&done.other.commits[0], SECOND_BLOCK);
    assert_eq!((done.other.stored.len(), left_count(&s)), (1, 0));
    let done = ticks(&mut s, 50, 64, None);
    assert_eq!(done.stored.len(), 0, "{done:?}");
    // It is not over with that.
    s.now = s.now + SHORT_PAUSE;
    let done = ticks(&mut s, 50, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// Whatever becomes of the first one: the count of those that are still to leave comes to nothing, or the next plan would never be made.
#[test]
fn nothing_is_still_to_leave_in_the_end() {
    type End = fn(&mut Story);
    let revoke: End = |s| {
        let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
        s.carry_out(effects);
    };
    let ends: [(&str, End); 9] = [
        ("refused", |s| drop(pass(s, 50, Some(Errno::EAGAIN), None))),
        ("an error", |s| drop(pass(s, 50, Some(Errno::EIO), None))),
        ("unreachable", |s| {
            drop(pass(s, 50, None, Some(IoFailure::Unreachable)))
        }),
        ("unknown", |s| {
            drop(pass(s, 50, None, Some(IoFailure::Unknown)))
        }),
        ("short", |s| drop(s.input(Input::Scarce(NodeId(2))))),
        ("full for a minute", |s| {
            s.is_full = true;
            pass(s, 60 * 50, None, None);
            s.is_full = false;
        }),
        ("revoked", revoke),
        ("cut", |s| s.attr.size = 0),
        ("off for a while", |s| {
            s.pace.set_rate(0);
            pass(s, 500, None, None);
            s.pace.set_rate(crate::rewrite::RATE_DEFAULT);
        }),
    ];
    for (what, end) in ends {
        for is_known in [false, true] {
            let mut s = if is_known { known() } else { unknown() };
            if what == "revoked" && !is_known {
                continue;
            }
            clear(&mut s, BOTH);
            end(&mut s);
            let mut left = Vec::new();
            while left_count(&s) > 0 && left.len() < 100 {
                pass(&mut s, 50, None, None);
                left.push(left_count(&s));
            }
            assert_eq!(left_count(&s), 0, "{what}, {is_known}: {left:?}");
        }
    }
}

/// Once it is under way: the tokens, a load, a store or a Commit.
#[test]
fn what_is_under_way_is_counted_until_it_has_ended() {
    let steps: [fn(&Effect) -> bool; 5] = [
        |e| {
            matches!(
                e,
                Effect::Call(
                    _,
                    _,
                    Ask::Op {
                        op: meta::Op::GetMap { .. },
                        ..
                    }
                )
            )
        },
        |e| matches!(e, Effect::Load(..)),
        |e| matches!(e, Effect::Store(..)),
        |e| matches!(e, Effect::Flush(..)),
        |e| {
            matches!(
                e,
                Effect::Call(
                    _,
                    _,
                    Ask::Op {
                        op: meta::Op::Commit(_),
                        ..
                    }
                )
            )
        },
    ];
    for is_step in steps {
        let mut s = known();
        s.has_volatile_nsd = true;
        clear(&mut s, FIRST);
        let effects = (0..50).find_map(|_| {
            let mut left = VecDeque::from(tick(&mut s));
            while let Some(effect) = left.pop_front() {
                if is_step(&effect) {
                    return Some(effect);
                }
                left.extend(step(&mut s, effect));
            }
            None
        });
        let effect = effects.expect("it comes to that");
        assert_eq!(left_count(&s), 1, "{effect:?}");
        tick(&mut s);
        assert_eq!(left_count(&s), 1, "{effect:?}");
        carry(&mut s, vec![effect], 1, None);
        pass(&mut s, 50, None, None);
        assert_eq!(left_count(&s), 0);
        assert_eq!(s.slice.rewrite_counts().left, 1);
    }
}

/// Does what one effect wants, and nothing of what follows.
fn step(s: &mut Story, effect: Effect) -> Vec<Effect> {
    match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::GetMap { .. },
                ..
            },
        ) => {
            let map = map_of(1, s.attr);
            s.answer(call, map)
        }
        Effect::Load(io, _) => s.input(Input::Loaded(io, Ok(()))),
        Effect::Store(io, _, pieces) => stored(s, &(io, pieces)),
        Effect::Flush(io, _) => s.input(Input::Flushed(io, Ok(()))),
        Effect::ForSlice(_, input) => s.input(input),
        other => drop_other(other),
    }
}

fn drop_other(effect: Effect) -> Vec<Effect> {
    assert!(!matches!(effect, Effect::Call(..)), "{effect:?}");
    Vec::new()
}

/// Whoever stops waits for no block, and none is begun.
#[test]
fn a_stop_forgets_what_is_still_to_leave() {
    let mut s = known();
    clear(&mut s, BOTH);
    s.input(Input::WriteBack);
    assert_eq!(left_count(&s), 0);
    let done = pass(&mut s, 500, None, None);
    assert_eq!((done.other.maps, done.other.stored.len()), (0, 0));
    clear(&mut s, BOTH);
    assert_eq!(left_count(&s), 0);
}

/// Also the one that has been begun.
#[test]
fn a_stop_forgets_a_block_that_is_about_to_leave() {
    let mut s = known();
    clear(&mut s, BOTH);
    let load = until(&mut s, |e| matches!(e, Effect::Load(..)));
    s.input(Input::WriteBack);
    carry(&mut s, vec![load], 1, None);
    pass(&mut s, 500, None, None);
    assert_eq!(left_count(&s), 0);
}

/// It was removed meanwhile: that is no failure, and holds up no others.
#[test]
fn a_file_that_is_gone_holds_up_no_others() {
    let mut s = unknown();
    clear(&mut s, FIRST);
    let effects = tick(&mut s);
    let [Effect::Call(call, _, Ask::Acquire { .. })] = &effects[..] else {
        panic!("{effects:?}");
    };
    let answer = Answer::bare(Body::Acquired { attr: None });
    s.input(Input::Answer(*call, Box::new(answer)));
    assert_eq!(left_count(&s), 0);
    clear(&mut s, SECOND_BLOCK);
    let done = pass(&mut s, 100, None, None);
    assert_eq!((&done.other.stored[..], left_count(&s)), (&[64][..], 0));
}

/// Ticks until something of this kind is wanted, which nobody does.
fn until(s: &mut Story, is_it: fn(&Effect) -> bool) -> Effect {
    for _ in 0..200 {
        for effect in tick(s) {
            if is_it(&effect) {
                return effect;
            }
            carry(s, vec![effect], 1, None);
        }
    }
    panic!("it does not come");
}
