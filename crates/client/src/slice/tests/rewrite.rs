//! Blocks of many extents become one run: what is begun, and what is left alone.

mod leaving;
mod lent;
mod limits;
mod loads;
mod others;
mod under_way;

use super::*;
use crate::request::Response;
use crate::rewrite::{PARTS_MAX, PATIENCE, REST, Rules, SHORT_PAUSE};
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

fn write_page(s: &mut Story, page: u64) {
    s.write_page_back(page);
}

/// Writes one page and has it committed.
fn overwrite(s: &mut Story, page: u64) {
    write_page(s, page);
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
                    let done = meta::Reply::Attr(s.attr);
                    s.answer(call, s.commit_error.map_or(done, meta::Reply::Error))
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
            Effect::Flush(io, _) => s.input(Input::Flushed(io, Ok(()))),
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

/// A file whose first block was overwritten, and has rested since.
fn rested() -> Story {
    let mut s = open(ByteRange::ALL);
    overwrite(&mut s, 3);
    rest(&mut s);
    s
}

/// The pages of the block that are not cached are loaded, and all go as one run. Nothing else of the file changes.
#[test]
fn a_block_of_many_extents_becomes_one_run() {
    let mut s = rested();
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
    let mut s = rested();
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
    let mut s = rested();
    let effects = tick(&mut s);
    carry(&mut s, effects, 64, None);
    let effects = tick(&mut s);
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

/// All of it may be read.
fn open_to_write_half() -> Story {
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
    s
}

/// Another node may write a part of it: without the right to write all of it nothing becomes dirty. It is asked for once.
#[test]
fn a_block_is_rewritten_under_the_right_to_write_all_of_it() {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.loaded, done.commits.len()), (0, 0), "{done:?}");
    assert_eq!(done.acquired, [vec![write_want(ByteRange::new(0, BLOCK))]]);
}

/// A file of which the first half of a block may be written, with the other one's tokens on their way for a rewrite.
fn asking() -> (Story, CallId) {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    for _ in 0..100 {
        for effect in tick(&mut s) {
            match effect {
                Effect::Call(call, _, Ask::Acquire { .. }) => return (s, call),
                other => drop(carry(&mut s, vec![other], 64, None)),
            }
        }
    }
    panic!("it is not rewritten");
}

fn asked(effects: &[Effect]) -> Vec<Vec<Want>> {
    let wants = |effect: &Effect| match effect {
        Effect::Call(_, _, Ask::Acquire { wants, .. }) => Some(wants.clone()),
        _ => None,
    };
    effects.iter().filter_map(wants).collect()
}

/// A write beside it waits for tokens, too: it was not the one who was refused, and asks for its own.
#[test]
fn what_is_refused_to_a_rewrite_is_refused_to_nobody_else() {
    for errno in [Errno::EAGAIN, Errno::EIO] {
        let (mut s, call) = asking();
        let effects = super::write_page(&mut s, 70, 4096);
        assert_eq!(asked(&effects).len(), 0, "one question at a time");
        let answer = Answer::bare(Body::Refused(errno));
        let effects = s.input(Input::Answer(call, Box::new(answer)));
        let is_error = |e: &Effect| matches!(e, Effect::Reply(_, Response::Error(_), _));
        assert!(!effects.iter().any(is_error), "{effects:?}");
        assert_eq!(asked(&effects).len(), 1, "{effects:?}");
        let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
        assert!(is_written(&effects), "{effects:?}");
        let done = ticks(&mut s, 100, 64, None);
        assert_eq!((done.acquired.len(), done.stored.len()), (0, 0), "a pause");
    }
}

/// The write's tokens are on their way when the rewrite wants some: it asks when these are there.
#[test]
fn a_rewrite_asks_for_tokens_after_others() {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    let effects = super::write_page(&mut s, 70, 4096);
    assert_eq!(asked(&effects).len(), 1, "{effects:?}");
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired.len(), 0, "{done:?}");
    let half = ByteRange::new(0, BLOCK / 2);
    let held = [
        (RangeMode::Read, ByteRange::ALL),
        (RangeMode::Write, half),
        (RangeMode::Write, ByteRange::new(BLOCK, 2 * BLOCK)),
    ];
    let effects = s.grant_ranges(&effects, InodeMode::Exclusive, &held);
    carry(&mut s, effects, 64, None);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired, [vec![write_want(ByteRange::new(0, BLOCK))]]);
}

#[test]
fn nothing_is_rewritten_where_sectors_are_few() {
    let mut s = rested();
    s.is_full = true;
    let done = ticks(&mut s, 10, 64, None);
    assert_eq!(done.commits.len(), 0, "{done:?}");
}

/// A tick at which nothing but its effects happens.
fn tick(s: &mut Story) -> Vec<Effect> {
    s.now = Instant(s.now.0 + SECOND / 50);
    s.input(Input::Tick)
}

/// Lets time pass until it is stored; that store.
fn until_store(s: &mut Story) -> (IoId, Vec<StorePiece>) {
    for _ in 0..100 {
        for effect in tick(s) {
            match effect {
                Effect::Store(io, _, pieces) => return (io, pieces),
                other => drop(carry(s, vec![other], 64, None)),
            }
        }
    }
    panic!("it is not rewritten");
}

fn stored(s: &mut Story, (io, pieces): &(IoId, Vec<StorePiece>)) -> Vec<Effect> {
    let extents = pieces.iter().map(|p| {
        let length = u32::try_from(p.frames.len()).expect("few");
        extent(p.file_sector, length, p.run.at.sector)
    });
    let extents = Ok(extents.collect());
    s.input(Input::Stored(*io, extents))
}

/// A file whose first block has been stored for a rewrite, but for the answer of the disks.
fn storing() -> (Story, (IoId, Vec<StorePiece>)) {
    let mut s = rested();
    let store = until_store(&mut s);
    (s, store)
}

/// The same, with the Commit sent.
fn committing() -> (Story, CallId) {
    let (mut s, store) = storing();
    let effects = stored(&mut s, &store);
    let (call, _) = commit_of(&effects).expect("nobody waits");
    (s, call)
}

/// The first block is stored, and waits for an fsync, which waits for the disks to answer this store.
fn storing_beside_an_fsync() -> (Story, (IoId, Vec<StorePiece>)) {
    let (mut s, store) = storing();
    for page in 64..64 + 20 {
        write_page(&mut s, page);
    }
    let effects = s.ask(Operation::Fsync {
        ino: INO,
        handle: Handle(0),
        data_only: false,
    });
    let other = effects.into_iter().find_map(|effect| match effect {
        Effect::Store(io, _, pieces) => Some((io, pieces)),
        _ => None,
    });
    let other = other.expect("too much for a Commit");
    let effects = stored(&mut s, &store);
    assert!(commit_of(&effects).is_none(), "{effects:?}");
    (s, other)
}

/// All that was taken for rewrites is the file's or has gone back, and no frame is held.
fn check_nothing_is_left(s: &mut Story, committed: u64) {
    let spare = s.spare.get();
    assert_eq!(spare.taken, spare.discarded + committed, "{spare:?}");
    let cached = s.slice.inode(INO).pages.count();
    let held = s.memory.0.borrow().iter().map(|frame| frame.0).sum::<u32>();
    // The tests' own writes keep theirs.
    let own = u32::try_from(s.ticket).expect("few") - 1;
    assert!(held as usize <= cached + own as usize, "{held} references");
}

/// Who reads the file asks for himself.
fn check_reader_hears_nothing(s: &mut Story) {
    let effects = located::read(s, Handle(0), ByteRange::new(0, BLOCK));
    assert!(map_question(&effects).is_some(), "{effects:?}");
    assert_eq!(error_of(&effects), None);
}

/// A bad sector: it is not read again and again.
#[test]
fn what_cannot_be_loaded_is_left_alone_for_a_while() {
    let mut s = rested();
    let mut count = 0;
    for _ in 0..500 {
        for effect in tick(&mut s) {
            match effect {
                Effect::Load(io, _) => {
                    count += 1;
                    s.input(Input::Loaded(io, Err(IoFailure::Unreachable)));
                }
                other => drop(carry(&mut s, vec![other], 64, None)),
            }
        }
    }
    assert!(
        count <= 2,
        "{count} loads: one on each side of the page that is there"
    );
    check_reader_hears_nothing(&mut s);
}

/// Nobody reads it: who does so later hears nothing of that.
#[test]
fn a_map_that_cannot_be_had_is_nobodys_error() {
    let mut s = rested();
    let mut count = 0;
    for _ in 0..100 {
        for effect in tick(&mut s) {
            if let Effect::Call(call, _, Ask::Op { .. }) = effect {
                count += 1;
                s.answer(call, meta::Reply::Error(Errno::EIO));
            }
        }
    }
    assert_eq!(count, 1, "asked for once");
    check_reader_hears_nothing(&mut s);
}

/// Sectors come first: nothing is taken from anybody or read for what cannot be stored. And it is not wished for all the time.
#[test]
fn where_sectors_are_few_nothing_else_is_asked_for() {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    s.is_full = true;
    let begun = s.now;
    while s.now < begun + PATIENCE + Duration::from_secs(1) {
        let done = ticks(&mut s, 10, 64, None);
        assert_eq!((done.loaded, done.acquired.len()), (0, 0), "{done:?}");
    }
    let asked = s.spare.get().asked;
    assert!(asked > 0);
    while s.now < begun + SHORT_PAUSE {
        ticks(&mut s, 10, 64, None);
    }
    assert_eq!(s.spare.get().asked, asked, "a pause");
    s.is_full = false;
    while s.now < begun + PATIENCE + SHORT_PAUSE + Duration::from_secs(2) {
        ticks(&mut s, 10, 64, None);
    }
    assert!(s.spare.get().asked > asked, "then again");
}

/// A write that finds no sectors gets those of the rewrite; it is not told that there are none.
fn check_a_write_gets_what_a_rewrite_has(s: &mut Story) {
    s.is_full = true;
    let effects = super::write_page(s, 6, 4096);
    let wants_space = |e: &Effect| matches!(e, Effect::WantSpace(_));
    assert!(effects.iter().any(wants_space), "{effects:?}");
    s.input(Input::Scarce(NodeId(2)));
    let effects = s.input(Input::Space(NodeId(2), NONE));
    let effects = settle(s, effects);
    assert!(is_written(&effects), "{effects:?}");
}

#[test]
fn a_write_gets_the_sectors_that_were_set_aside_for_a_rewrite() {
    let (mut s, _) = asking();
    check_a_write_gets_what_a_rewrite_has(&mut s);
}

/// They have been written to: they go back to the owner before anybody hears that it has none (`node::Hands`).
#[test]
fn the_sectors_that_a_rewrite_has_stored_to_go_back_at_once() {
    let (mut s, _) = storing_beside_an_fsync();
    assert!(s.spare.get().taken > 0);
    s.input(Input::Scarce(NodeId(2)));
    let spare = s.spare.get();
    assert_eq!(spare.taken, spare.discarded, "{spare:?}");
}

/// Its Commit is refused, or it cannot be stored: whoever wrote it was told that it is lost, and it stays so.
#[test]
fn what_was_lost_is_not_rewritten() {
    let loses: [fn(&mut Story); 2] = [
        |s| {
            s.now = Instant(s.now.0 + 6 * SECOND);
            let store = until_store(s);
            let effects = stored(s, &store);
            let (call, _) = commit_of(&effects).expect("it is stored");
            s.answer(call, meta::Reply::Error(Errno::EIO));
        },
        |s| {
            s.now = Instant(s.now.0 + 6 * SECOND);
            ticks(s, 400, 64, Some(IoFailure::Unreachable));
        },
    ];
    for lose in loses {
        let mut s = open(ByteRange::ALL);
        overwrite(&mut s, 3);
        write_page(&mut s, 5);
        lose(&mut s);
        let inode = s.slice.inode(INO);
        assert!(inode.errors.is_untold() && !inode.is_dirty());
        rest(&mut s);
        rest(&mut s);
        let done = ticks(&mut s, 100, 64, None);
        assert_eq!((done.loaded, done.stored.len()), (0, 0), "{done:?}");
        // Another write of all of it is none of those that were lost.
        overwrite(&mut s, 5);
        rest(&mut s);
        rest(&mut s);
        let done = ticks(&mut s, 20, 64, None);
        assert_eq!(done.stored, [64], "{done:?}");
    }
}

/// Nothing is written where the layout does not want it.
#[test]
fn a_block_stays_on_the_disks_of_its_layout() {
    let mut s = rested();
    s.has_room = false;
    let done = ticks(&mut s, 100, 64, None);
    assert_eq!((done.stored.len(), done.commits.len()), (0, 0), "{done:?}");
    check_nothing_is_left(&mut s, 0);
}

/// A page beside it, in the same block, is not waited for.
#[test]
fn a_rewrite_ends_whatever_else_is_written_to_its_block() {
    let (mut s, call) = committing();
    let effects = s.write_back(7);
    carry(&mut s, effects, 64, None);
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
    assert_eq!(s.slice.inode(INO).pages.dirty_count(), 1);
    check_nothing_is_left(&mut s, 1);
}

/// A write into a page of it is not: who syncs the file hears of it.
#[test]
fn a_write_that_cannot_be_stored_with_it_is_told() {
    let mut s = rested();
    let store = until_store(&mut s);
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
    s.input(Input::Stored(store.0, Err(IoFailure::Unreachable)));
    ticks(&mut s, 400, 64, Some(IoFailure::Unreachable));
    assert!(s.slice.inode(INO).errors.is_untold());
}

/// An owner refuses the Commit of a rewrite: nothing is lost by that, nor tried again at once, and the file is longer than that Commit knew.
#[test]
fn a_refused_rewrite_forgets_nothing_that_was_written_since() {
    let (mut s, commit) = committing();
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
    // The owner may have executed it before it began anew: where the bytes lie now is not known.
    assert!(!inode.map.known.overlaps(&ByteRange::new(0, BLOCK)));
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

/// One load reaches over several blocks.
#[test]
fn a_reader_finds_all_blocks_that_it_loads() {
    let mut s = open(ByteRange::ALL);
    let effects = located::read(&mut s, Handle(0), ByteRange::new(0, 2 * BLOCK));
    let of_many = |s: &mut Story, effects| {
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                Effect::Call(call, _, Ask::Op { op, .. }) => {
                    assert!(matches!(op, meta::Op::GetMap { .. }), "{op:?}");
                    let parts = (0..128).map(|n| extent(n, 1, 9000 - 2 * n));
                    let map = meta::Reply::Map {
                        extents: parts.collect(),
                        pieces: Vec::new(),
                        end: u64::MAX,
                        map_version: 1,
                        attr: s.attr,
                    };
                    answers.extend(s.answer(call, map));
                }
                other => answers.push(other),
            }
        }
        answers
    };
    let effects = of_many(&mut s, effects);
    carry(&mut s, effects, 64, None);
    rest(&mut s);
    let mut stored = Vec::new();
    for _ in 0..50 {
        let effects = tick(&mut s);
        let effects = of_many(&mut s, effects);
        stored.extend(carry(&mut s, effects, 64, None).stored);
    }
    assert_eq!(stored, [64, 64]);
}

/// A node that is used rewrites slower, and never faster than it should.
#[test]
fn the_pace_is_kept() {
    let pace = crate::Pace::default();
    let second = |n: u64| Instant(n * SECOND);
    let in_use = |from: u64, is_wanted: bool| {
        let taken = (from * 200..(from + 2) * 200).filter(|n| {
            let now = Instant(n * SECOND / 200);
            pace.note_use(now);
            pace.take(now, 1 << 20, is_wanted)
        });
        taken.count()
    };
    assert!((8..=9).contains(&in_use(1, false)), "4 MiB a second");
    // Somebody waits for the space.
    let wanted = in_use(4, true);
    assert!((256..=270).contains(&wanted), "128 MiB a second: {wanted}");
    pace.rest(second(6), Duration(SECOND));
    assert!(!pace.take(second(7), 1, false) && pace.take(second(7), 1, true));
    assert_eq!(pace.begin_reads(second(7), 3, false), 0);
    assert_eq!(pace.begin_reads(second(7), 3, true), 3);
    pace.end_reads(3);
    let idle = (1000..1200).filter(|n| pace.take(Instant(n * SECOND / 100), 1 << 20, false));
    assert!((64..=68).contains(&idle.count()), "32 MiB a second");
    assert!(pace.take(second(100), 64 << 20, false));
    assert!(!pace.take(second(101), 1, false), "paid later");
    assert!(pace.take(second(102), 1, false));
}
