//! Who hears of a load that failed, or of a map that cannot be had, and who does not.

use super::located::{open, read};
use super::*;
use crate::io::BLOCK_SIZE;

const SIZE: u64 = 8 * BLOCK_SIZE;
/// As the module has it.
const LOOKS_MAX: usize = 16;
const UNREACHABLE: Result<(), IoFailure> = Err(IoFailure::Unreachable);
const CORRUPT: Result<(), IoFailure> = Err(IoFailure::Corrupt);

/// What some effects come to when the owner has answered.
#[derive(Default, Debug)]
struct Seen {
    loads: Vec<(IoId, ByteRange)>,
    /// Bytes that were read, or why not.
    told: Vec<(u64, Result<u32, Errno>)>,
}

fn pages(first: u64, count: u64) -> ByteRange {
    ByteRange::at(first * PAGE, count * PAGE)
}

/// The owner knows where all bytes lie.
fn follow(s: &mut Story, effects: Vec<Effect>) -> Seen {
    let length = u32::try_from(SIZE / PAGE).expect("small");
    let mut seen = Seen::default();
    let mut due = VecDeque::from(effects);
    while let Some(effect) = due.pop_front() {
        if let Some(call) = map_question(std::slice::from_ref(&effect)) {
            due.extend(s.answer(call, map_of_one(length, s.attr)));
            continue;
        }
        match effect {
            Effect::ForSlice(_, input) => due.extend(s.input(input)),
            Effect::Load(io, pieces) => {
                let [piece] = &pieces[..] else {
                    panic!("{pieces:?}: the file lies in one place");
                };
                let (first, count) = (piece.extent.file_sector, piece.extent.length);
                seen.loads.push((io, pages(first, count.into())));
            }
            Effect::Reply(ticket, Response::Data(spans), _) => {
                let length = spans.iter().map(|span| span.length).sum();
                seen.told.push((ticket.0, Ok(length)));
            }
            Effect::Reply(ticket, Response::Error(errno), _) => {
                seen.told.push((ticket.0, Err(errno)));
            }
            _ => {}
        }
    }
    seen
}

fn ask(s: &mut Story, handle: Handle, range: ByteRange) -> (u64, Seen) {
    let effects = read(s, handle, range);
    (s.ticket, follow(s, effects))
}

fn end(s: &mut Story, io: IoId, result: Result<(), IoFailure>) -> Seen {
    let effects = s.input(Input::Loaded(io, result));
    follow(s, effects)
}

fn page_size() -> u32 {
    u32::try_from(PAGE).expect("small")
}

/// Also where who waits for other bytes came first.
#[test]
fn who_misses_the_bytes_hears_of_it() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let (well, seen) = ask(&mut s, handle, pages(0, 1));
    let (good, _) = seen.loads[0];
    let (ill, seen) = ask(&mut s, handle, pages(1000, 1));
    let (bad, _) = seen.loads[0];
    let seen = end(&mut s, bad, UNREACHABLE);
    assert_eq!(seen.told, [(ill, Err(Errno::EIO))]);
    let seen = end(&mut s, good, Ok(()));
    assert_eq!(seen.told, [(well, Ok(page_size()))]);
}

/// The disk may be well again when somebody else reads.
#[test]
fn what_nobody_waits_for_is_told_to_nobody() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let both = ByteRange::new(BLOCK_SIZE - PAGE, BLOCK_SIZE + PAGE);
    let (reader, seen) = ask(&mut s, handle, both);
    let [(first, _), (second, _)] = seen.loads[..] else {
        panic!("{seen:?}: block by block");
    };
    let seen = end(&mut s, first, UNREACHABLE);
    assert_eq!(seen.told, [(reader, Err(Errno::EIO))]);
    let seen = end(&mut s, second, UNREACHABLE);
    assert!(seen.told.is_empty(), "{seen:?}");
    for range in [pages(1000, 1), both] {
        let (reader, seen) = ask(&mut s, handle, range);
        assert!(seen.told.is_empty(), "{seen:?}");
        for (io, _) in seen.loads {
            let seen = end(&mut s, io, Ok(()));
            let length = u32::try_from(range.length()).expect("small");
            assert!(seen.told.is_empty() || seen.told == [(reader, Ok(length))]);
        }
    }
}

/// Reads in sequence until whole blocks are loaded ahead; the load of the second one.
fn read_ahead(s: &mut Story, handle: Handle) -> (IoId, ByteRange) {
    let mut ahead = Vec::new();
    for begin in [0, 64] {
        let (_, seen) = ask(s, handle, pages(begin, 64));
        for (io, range) in seen.loads {
            if range.begin < BLOCK_SIZE {
                ahead.extend(end(s, io, Ok(())).loads);
            } else {
                ahead.push((io, range));
            }
        }
    }
    let is_second = |load: &&(IoId, ByteRange)| load.1.begin == BLOCK_SIZE;
    *ahead.iter().find(is_second).expect("it is loaded ahead")
}

/// A block that was begun ahead has one sector that cannot be read: who reads others of it loads them alone, and gets them.
#[test]
fn a_sector_that_cannot_be_read_is_the_error_of_its_readers_alone() {
    for failure in [UNREACHABLE, CORRUPT] {
        let mut s = Story::new(SIZE);
        let handle = open(&mut s, ByteRange::ALL);
        let (ahead, block) = read_ahead(&mut s, handle);
        assert!(block.length() >= BLOCK_SIZE / 2, "{block:?}");
        let (bad, good) = (pages(256, 1), pages(257, 16));
        let (well, seen) = ask(&mut s, handle, good);
        assert!(!seen.loads.iter().any(|(_, range)| range.overlaps(&good)));
        let (ill, _) = ask(&mut s, handle, bad);
        let mut told = Vec::new();
        let mut due = VecDeque::from([(ahead, block)]);
        let mut alone = Vec::new();
        while let Some((io, range)) = due.pop_front() {
            let result = if range.overlaps(&bad) {
                failure
            } else {
                Ok(())
            };
            let seen = end(&mut s, io, result);
            alone.extend(seen.loads.iter().map(|(_, range)| *range));
            due.extend(seen.loads);
            told.extend(seen.told);
        }
        told.sort_by_key(|(reader, _)| *reader);
        let answered = [(well, Ok(16 * page_size())), (ill, Err(Errno::EIO))];
        assert_eq!(told, answered, "{failure:?}");
        assert!(alone.contains(&good), "{alone:?}");
        assert!(alone.contains(&bad), "{alone:?}");
    }
}

/// Two who want some of the same bytes, of which one cannot be read: the second does not wait with the first one.
#[test]
fn a_part_of_what_fails_is_loaded_alone() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let (first, seen) = ask(&mut s, handle, pages(1000, 8));
    let (io, _) = seen.loads[0];
    let (second, seen) = ask(&mut s, handle, pages(1004, 2));
    assert!(seen.loads.is_empty(), "{seen:?}: it is on its way");
    let seen = end(&mut s, io, UNREACHABLE);
    assert_eq!(seen.told, [(first, Err(Errno::EIO))]);
    let [(io, range)] = seen.loads[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(range, pages(1004, 2));
    let seen = end(&mut s, io, Ok(()));
    assert_eq!(seen.told, [(second, Ok(2 * page_size()))]);
}

/// However well others read the file meanwhile.
#[test]
fn a_read_of_what_is_corrupt_ends() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let (ill, seen) = ask(&mut s, handle, pages(1000, 1));
    let (mut bad, _) = seen.loads[0];
    for count in 1.. {
        assert!(count <= LOOKS_MAX + 1, "it goes on and on");
        let other = u64::try_from(count).expect("few");
        // In no pattern: nothing is loaded ahead.
        let (well, seen) = ask(&mut s, handle, pages(other * other * 7 % 997, 1));
        let seen = end(&mut s, seen.loads[0].0, Ok(()));
        assert_eq!(seen.told, [(well, Ok(page_size()))]);
        let seen = end(&mut s, bad, CORRUPT);
        if let Some(told) = seen.told.first() {
            assert_eq!(*told, (ill, Err(Errno::EIO)));
            assert_eq!(count, LOOKS_MAX + 1, "a map may be old");
            break;
        }
        (bad, _) = seen.loads[0];
    }
}

/// The owner has moved many pieces: all that was on its way meets other bytes, and the map that comes then is right.
#[test]
fn many_loads_by_one_old_map_are_looked_at_again_once() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    for page in 0..32_u8 {
        // In no pattern.
        let page = u64::from(page.reverse_bits() >> 3);
        let (_, seen) = ask(&mut s, handle, pages(2 * page, 1));
        end(&mut s, seen.loads[0].0, Ok(()));
    }
    let (reader, seen) = ask(&mut s, handle, pages(0, 64));
    let apart = |(_, range): &&(IoId, ByteRange)| range.begin < 64 * PAGE;
    let loads: Vec<_> = seen.loads.iter().filter(apart).collect();
    assert!(loads.len() > LOOKS_MAX, "{loads:?}");
    let mut again = Vec::new();
    for (io, _) in loads {
        let seen = end(&mut s, *io, CORRUPT);
        assert!(seen.told.is_empty(), "{seen:?}");
        again.extend(seen.loads);
    }
    let mut told = Vec::new();
    for (io, _) in again {
        told.extend(end(&mut s, io, Ok(())).told);
    }
    assert_eq!(told, [(reader, Ok(64 * page_size()))]);
}

/// A load by a map that is not that of now: the bytes have gone elsewhere, perhaps because the disk is going.
#[test]
fn where_bytes_lie_elsewhere_by_now_they_are_loaded_from_there() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let (reader, seen) = ask(&mut s, handle, pages(1000, 1));
    s.slice.inode(INO).forget_map(&pages(1000, 1));
    let seen = end(&mut s, seen.loads[0].0, UNREACHABLE);
    assert!(seen.told.is_empty(), "{seen:?}");
    let seen = end(&mut s, seen.loads[0].0, Ok(()));
    assert_eq!(seen.told, [(reader, Ok(page_size()))]);
}

/// The map of the first 64 pages.
fn map_of_some(s: &Story) -> meta::Reply {
    let mut reply = map_of_one(64, s.attr);
    if let meta::Reply::Map { end, .. } = &mut reply {
        *end = 64 * PAGE;
    }
    reply
}

/// Also where who waits for a disk came first.
#[test]
fn a_map_that_cannot_be_had_is_the_error_of_who_asked() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let effects = read(&mut s, handle, pages(0, 1));
    let (well, call) = (s.ticket, map_question(&effects).expect("where it lies"));
    let reply = map_of_some(&s);
    let effects = s.answer(call, reply);
    let (io, _) = follow(&mut s, effects).loads[0];
    let effects = read(&mut s, handle, pages(1000, 1));
    let (ill, call) = (s.ticket, map_question(&effects).expect("where it lies"));
    let effects = s.answer(call, meta::Reply::Error(Errno::EIO));
    let seen = follow(&mut s, effects);
    assert_eq!(seen.told, [(ill, Err(Errno::EIO))]);
    let seen = end(&mut s, io, Ok(()));
    assert_eq!(seen.told, [(well, Ok(page_size()))]);
}

/// A seek needs the map, and no disk.
#[test]
fn a_seek_hears_of_maps_alone() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let effects = read(&mut s, handle, pages(0, 1));
    let call = map_question(&effects).expect("where it lies");
    let reply = map_of_some(&s);
    s.answer(call, reply);
    let (reader, seen) = ask(&mut s, handle, pages(63, 1));
    let (io, _) = seen.loads[0];
    let effects = s.ask(Operation::Seek {
        ino: INO,
        offset: 0,
        is_hole: true,
    });
    let (seeker, call) = (s.ticket, map_question(&effects).expect("what is behind it"));
    let effects = s.input(Input::Loaded(io, UNREACHABLE));
    let told = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Reply(ticket, Response::Error(errno), _) => Some((ticket.0, *errno)),
            _ => None,
        })
    };
    assert_eq!(told(&effects), Some((reader, Errno::EIO)));
    // What it must know first is another place by now.
    let effects = s.answer(call, meta::Reply::Error(Errno::EIO));
    assert_eq!(told(&effects), None);
    let call = map_question(&effects).expect("from there on");
    let effects = s.answer(call, meta::Reply::Error(Errno::EIO));
    assert_eq!(told(&effects), Some((seeker, Errno::EIO)));
}

/// It was not only the disk: the read goes on when the lease is back.
#[test]
fn what_fails_without_a_lease_is_loaded_again() {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let (reader, seen) = ask(&mut s, handle, pages(1000, 1));
    let (io, _) = seen.loads[0];
    s.input(Input::Lapsed(Vec::new()));
    let seen = end(&mut s, io, UNREACHABLE);
    assert!(seen.told.is_empty(), "{seen:?}");
    let effects = s.input(Input::Regained);
    let seen = follow(&mut s, effects);
    let seen = end(&mut s, seen.loads[0].0, Ok(()));
    assert_eq!(seen.told, [(reader, Ok(page_size()))]);
}
