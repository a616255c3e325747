//! Blocks of many extents become one run: what is begun, and what is left alone.

use super::*;
use crate::rewrite::{PARTS_MAX, REST, Rules};
use types::Extent;

const BLOCK: u64 = 64 * PAGE;
const SECOND: u64 = 1_000_000_000;

/// A file of two blocks, open for writing under these tokens; blocks of 64 pages.
fn open(writes: ByteRange) -> Story {
    let mut s = Story::new(2 * BLOCK);
    s.has_sectors = true;
    let rules = Rules::new(u32::try_from(BLOCK).expect("small"));
    s.slice.rewrite_aged(rules);
    s.open(InodeMode::Exclusive, writes);
    s
}

fn extent(file_sector: u64, length: u32, sector: u64) -> Extent {
    Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![types::Location {
            nsd: types::NsdId(1),
            sector,
        }],
        checksums: types::extent::Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    }
}

/// The first block in so many extents, the second one in four.
fn map_of(count: u64, attr: Attr) -> meta::Reply {
    let of_first = 64 / count;
    let first = (0..count).map(|n| {
        extent(
            n * of_first,
            u32::try_from(of_first).expect("few"),
            5000 - 70 * n,
        )
    });
    let second = (0..4).map(|n| extent(64 + n * 16, 16, 9000 - 20 * n));
    meta::Reply::Map {
        extents: first.chain(second).collect(),
        pieces: Vec::new(),
        end: u64::MAX,
        map_version: 1,
        attr,
    }
}

/// Writes one page and has it committed.
fn overwrite(s: &mut Story, page: u64) {
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: page * PAGE,
        payload: Span::whole(frame),
        is_write_back: true,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    s.now = Instant(s.now.0 + 6 * SECOND);
    let effects = s.input(Input::Tick);
    carry(s, effects, 4, None);
}

/// What became of a rewrite.
#[derive(Default, Debug)]
struct Outcome {
    maps: usize,
    loaded: usize,
    stored: Vec<u64>,
    commits: Vec<meta::Commit>,
    acquired: Vec<Vec<Want>>,
}

/// Does what the slice wants, as disks and an owner would who answer at once; `failure`: of each store.
fn carry(s: &mut Story, effects: Vec<Effect>, count: u64, failure: Option<IoFailure>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut left = VecDeque::from(effects);
    while let Some(effect) = left.pop_front() {
        left.extend(match effect {
            Effect::Call(call, _, Ask::Op { op, .. }) => match op {
                meta::Op::GetMap { .. } => {
                    outcome.maps += 1;
                    s.answer(call, map_of(count, s.attr))
                }
                meta::Op::Commit(commit) => {
                    outcome.commits.push(commit);
                    s.attr.change += 1;
                    s.answer(call, meta::Reply::Attr(s.attr))
                }
                other => panic!("{other:?}"),
            },
            Effect::Call(_, _, Ask::Acquire { wants, .. }) => {
                outcome.acquired.push(wants);
                Vec::new()
            }
            Effect::Load(io, pieces) => {
                outcome.loaded += pieces.iter().map(|p| p.frames.len()).sum::<usize>();
                for frame in pieces.iter().flat_map(|p| &p.frames) {
                    s.memory.put(Span::whole(*frame), &[0x11; FRAME_SIZE]);
                }
                s.input(Input::Loaded(io, Ok(())))
            }
            Effect::Store(io, _, pieces) => {
                outcome
                    .stored
                    .extend(pieces.iter().map(|p| p.frames.len() as u64));
                let extents = pieces.iter().map(|p| {
                    let length = u32::try_from(p.frames.len()).expect("few");
                    extent(p.file_sector, length, p.run.at.sector)
                });
                let result = failure.map_or(Ok(extents.collect()), Err);
                s.input(Input::Stored(io, result))
            }
            Effect::ForSlice(_, input) => s.input(input),
            _ => Vec::new(),
        });
    }
    outcome
}

/// Lets so many ticks pass, 20 ms each, with all that comes of them.
fn ticks(s: &mut Story, number: usize, count: u64, failure: Option<IoFailure>) -> Outcome {
    let mut all = Outcome::default();
    for _ in 0..number {
        s.now = Instant(s.now.0 + SECOND / 50);
        let effects = s.input(Input::Tick);
        let one = carry(s, effects, count, failure);
        all.maps += one.maps;
        all.loaded += one.loaded;
        all.stored.extend(one.stored);
        all.commits.extend(one.commits);
        all.acquired.extend(one.acquired);
    }
    all
}

fn rest(s: &mut Story) {
    s.now = s.now + REST;
}

/// The pages of the block that are not cached are loaded, and all go as one run. Nothing else of the file changes.
#[test]
fn a_block_of_many_extents_becomes_one_run() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
    let [commit] = &done.commits[..] else {
        panic!("{done:?}");
    };
    assert_eq!(
        (commit.size, commit.modified, commit.kill_set_id),
        (None, None, None)
    );
    assert!(!commit.drops_rights);
    assert_eq!(commit.extents.len(), 1);
    assert_eq!(done.loaded, 63);
    let counts = s.slice.rewrite_counts();
    assert_eq!((counts.blocks, counts.bytes), (1, BLOCK));
    assert_eq!((counts.parts_before, counts.parts_after), (64, 1));
    // It is one run now: nobody looks at it again.
    rest(&mut s);
    let again = ticks(&mut s, 20, 64, None);
    assert_eq!((again.maps, again.stored.len()), (0, 0), "{again:?}");
}

/// The map says so, after a look at it alone.
#[test]
fn a_block_of_few_extents_is_left_alone() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 10, PARTS_MAX, None);
    assert_eq!(
        (done.maps, done.loaded, done.commits.len()),
        (1, 0, 0),
        "{done:?}"
    );
}

#[test]
fn a_block_that_changes_all_the_time_is_left_alone() {
    let mut s = open(ByteRange::ALL);
    for page in 0..8 {
        overwrite(&mut s, page);
        let done = ticks(&mut s, 100, 64, None);
        assert_eq!(
            (done.maps, done.commits.len()),
            (0, 0),
            "write {page}: {done:?}"
        );
    }
    rest(&mut s);
    rest(&mut s);
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// Written while the rest of it is loaded: it has not rested after all.
#[test]
fn a_block_that_changes_while_it_is_loaded_waits_again() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    s.now = Instant(s.now.0 + SECOND / 50);
    let effects = s.input(Input::Tick);
    carry(&mut s, effects, 64, None);
    s.now = Instant(s.now.0 + SECOND / 50);
    let effects = s.input(Input::Tick);
    assert!(
        effects.iter().any(|e| matches!(e, Effect::Load(..))),
        "{effects:?}"
    );
    overwrite(&mut s, 4);
    let done = carry(&mut s, effects, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
    rest(&mut s);
    rest(&mut s);
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// Another node may write a part of it: without the right to write all of it nothing becomes dirty. It is asked for once.
#[test]
fn a_block_is_rewritten_under_the_right_to_write_all_of_it() {
    let half = ByteRange::new(0, BLOCK / 2);
    let read = [(RangeMode::Read, ByteRange::ALL), (RangeMode::Write, half)];
    let mut s = Story::new(2 * BLOCK);
    s.has_sectors = true;
    let rules = Rules::new(u32::try_from(BLOCK).expect("small"));
    s.slice.rewrite_aged(rules);
    let flags = OpenFlags {
        write: true,
        ..OpenFlags::default()
    };
    let effects = s.ask(Operation::Open { ino: INO, flags });
    s.grant_ranges(&effects, InodeMode::Exclusive, &read);
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.loaded, done.commits.len()), (0, 0), "{done:?}");
    assert_eq!(done.acquired, [vec![write_want(ByteRange::new(0, BLOCK))]]);
}

#[test]
fn nothing_is_rewritten_where_sectors_are_few() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    s.is_full = true;
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
}

/// The disks refuse it again and again: the sectors before still have the bytes, so nobody hears of it.
#[test]
fn what_cannot_be_stored_is_no_loss() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 200, 64, Some(IoFailure::Unreachable));
    assert!(done.stored.len() >= 4, "tried: {done:?}");
    assert_eq!(done.commits.len(), 0);
    let inode = s.slice.inode(INO);
    assert!(!inode.is_dirty(), "given up");
    assert!(!inode.errors.is_untold());
    assert_eq!(s.slice.rewrite_counts().blocks, 0);
}

/// A write into a page of it is not: who syncs the file hears of it.
#[test]
fn a_write_that_cannot_be_stored_with_it_is_told() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    let mut store = None;
    for _ in 0..20 {
        s.now = Instant(s.now.0 + SECOND / 50);
        let effects = s.input(Input::Tick);
        let is_store = |e: &Effect| matches!(e, Effect::Store(..));
        if effects.iter().any(is_store) {
            store = Some(effects);
            break;
        }
        carry(&mut s, effects, 64, None);
    }
    let effects = store.expect("it is rewritten");
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    s.ask(Operation::Write {
        ino: INO,
        handle: Handle(0),
        offset: 10,
        payload: Span {
            length: 20,
            ..Span::whole(frame)
        },
        is_write_back: true,
        append: false,
        sync: false,
        kill_set_id: false,
    });
    carry(&mut s, effects, 64, Some(IoFailure::Unreachable));
    ticks(&mut s, 400, 64, Some(IoFailure::Unreachable));
    assert!(s.slice.inode(INO).errors.is_untold());
}

/// An owner refuses the Commit of a rewrite: nothing is lost by that, and the file is longer than that Commit knew.
#[test]
fn a_refused_rewrite_forgets_nothing_that_was_written_since() {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    let mut commit = None;
    for _ in 0..100 {
        s.now = Instant(s.now.0 + SECOND / 50);
        let mut left = VecDeque::from(s.input(Input::Tick));
        while let Some(effect) = left.pop_front() {
            match effect {
                Effect::Call(
                    call,
                    _,
                    Ask::Op {
                        op: meta::Op::Commit(_),
                        ..
                    },
                ) => commit = Some(call),
                Effect::Store(io, _, pieces) => {
                    let extents = pieces.iter().map(|p| {
                        let length = u32::try_from(p.frames.len()).expect("few");
                        extent(p.file_sector, length, p.run.at.sector)
                    });
                    let result = Ok(extents.collect());
                    left.extend(s.input(Input::Stored(io, result)));
                }
                other => drop(carry(&mut s, vec![other], 64, None)),
            }
        }
    }
    let commit = commit.expect("it is rewritten");
    let inode = s.slice.inode(INO);
    let size = inode.size + 100;
    (inode.size, inode.is_size_dirty, inode.drops_rights) = (size, true, true);
    s.answer(commit, meta::Reply::Error(Errno::EIO));
    let inode = s.slice.inode(INO);
    assert!(!inode.errors.is_untold());
    assert_eq!(
        (inode.size, inode.is_size_dirty, inode.drops_rights),
        (size, true, true)
    );
}

/// Who reads it finds it: after a restart nobody knows any more what was overwritten.
#[test]
fn a_reader_finds_blocks_of_many_extents() {
    let mut s = open(ByteRange::ALL);
    let handle = Handle(0);
    let effects = located::read(&mut s, handle, ByteRange::new(0, BLOCK));
    carry(&mut s, effects, 64, None);
    rest(&mut s);
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.stored, [64], "{done:?}");
}

/// A node that is used rewrites slower, and never faster than it should.
#[test]
fn the_pace_is_kept() {
    let pace = crate::Pace::default();
    let second = |n: u64| Instant(n * SECOND);
    let in_use = |from: u64| {
        let taken = (from * 100..(from + 2) * 100).filter(|n| {
            let now = Instant(n * SECOND / 100);
            pace.note_use(now);
            pace.take(now, 1 << 20)
        });
        taken.count()
    };
    assert!((8..=9).contains(&in_use(1)), "4 MiB a second");
    let idle = (1000..1200).filter(|n| pace.take(Instant(n * SECOND / 100), 1 << 20));
    assert!((64..=68).contains(&idle.count()), "32 MiB a second");
    assert!(pace.take(second(100), 64 << 20));
    assert!(!pace.take(second(101), 1), "paid later");
    assert!(pace.take(second(102), 1));
}
