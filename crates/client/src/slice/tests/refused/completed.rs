//! Parts of pages that this node alone may write to: the rest of the page is loaded, and then it goes to its sector.

use super::*;
use crate::refused::COMPLETED_COUNT;

/// What answers a slice: disks, and an owner that refuses all pieces at once and takes all else.
struct Rest {
    /// Of pages from `readable_from` on; others cannot be read.
    loads: Result<(), IoFailure>,
    readable_from: u64,
    /// Loads of pages before this one do not end.
    hanging_until: u64,
    /// Loads fail until then.
    readable_since: Instant,
    /// Those that fail use up all sectors that there are.
    stores: Result<(), IoFailure>,
    /// Pages of which an answer about the map tells.
    window: u64,
    /// The file has no extents.
    is_hole: bool,
    /// What was asked of it.
    tries: usize,
    loaded: Vec<u64>,
    stored: Vec<u64>,
}

impl Rest {
    fn new() -> Self {
        Self {
            loads: Ok(()),
            readable_from: 0,
            hanging_until: 0,
            readable_since: Instant(0),
            stores: Ok(()),
            window: 1 << 20,
            is_hole: false,
            tries: 0,
            loaded: Vec::new(),
            stored: Vec::new(),
        }
    }

    /// Goes on for so long, or until somebody hears how his fsync has ended: that, and when.
    fn run(
        &mut self,
        s: &mut Story,
        mut effects: Vec<Effect>,
        time: Duration,
    ) -> (Option<Result<(), Errno>>, Duration) {
        let begin = s.now;
        loop {
            let mut due = VecDeque::from(effects);
            let mut is_short = false;
            while let Some(effect) = due.pop_front() {
                let told = match &effect {
                    Effect::Call(_, _, Ask::Sync) => Some(Ok(())),
                    _ => error_of(std::slice::from_ref(&effect)).map(Err),
                };
                if told.is_some() {
                    return (told, s.now.since(begin));
                }
                is_short |= matches!(effect, Effect::WantSpace(_));
                due.extend(self.answer(s, effect));
            }
            if s.now.since(begin) >= time {
                return (None, time);
            }
            s.now = s.now + Duration::from_millis(100);
            effects = match is_short {
                true => {
                    let news = SpaceNews::None(Errno::ENOSPC);
                    s.input(Input::Space(NodeId(2), news))
                }
                false => Vec::new(),
            };
            effects.extend(s.input(Input::Tick));
        }
    }

    fn answer(&mut self, s: &mut Story, effect: Effect) -> Vec<Effect> {
        match effect {
            Effect::Call(call, _, Ask::Op { op, .. }) => match op {
                meta::Op::GetMap { begin, .. } => {
                    let reply = self.map(s, begin);
                    s.answer(call, reply)
                }
                meta::Op::Commit(commit) if commit.pieces.is_empty() => {
                    self.stored.extend(sectors_of(&commit));
                    s.attr.size = commit.size.unwrap_or(s.attr.size);
                    accept(s, call)
                }
                meta::Op::Commit(_) => {
                    self.tries += 1;
                    refuse(s, call)
                }
                _ => Vec::new(),
            },
            Effect::Load(io, pieces) => {
                let extents = pieces.iter().map(|piece| &piece.extent);
                let sectors = extents.flat_map(|e| e.file_sector..e.file_sector_end());
                let sectors: Vec<u64> = sectors.collect();
                let is_there = sectors.iter().all(|sector| *sector >= self.readable_from);
                if sectors.iter().any(|sector| *sector < self.hanging_until) {
                    return Vec::new();
                }
                self.loaded.extend(sectors);
                let result = match is_there && s.now >= self.readable_since {
                    true => self.loads,
                    false => Err(IoFailure::Unreachable),
                };
                s.input(Input::Loaded(io, result))
            }
            Effect::Store(io, _, pieces) => {
                let extents = pieces.iter().map(extent_of).collect();
                let result = self.stores.map(|()| extents);
                s.has_sectors &= result.is_ok();
                s.input(Input::Stored(io, result))
            }
            Effect::Flush(io, _) => s.input(Input::Flushed(io, Ok(()))),
            Effect::ForSlice(_, input) => s.input(input),
            _ => Vec::new(),
        }
    }

    fn map(&self, s: &Story, begin: u64) -> meta::Reply {
        let pages = u32::try_from(s.attr.size.div_ceil(PAGE)).expect("small");
        let mut reply = map_of_one(pages, s.attr);
        if let meta::Reply::Map { end, extents, .. } = &mut reply {
            *end = begin + self.window * PAGE;
            if self.is_hole {
                extents.clear();
            }
        }
        reply
    }
}

const SOON: Duration = Duration::from_secs(3);

/// A part of page 30, which the owner has refused once.
fn refused_once(s: &mut Story) -> Vec<Effect> {
    write_page(s, 30, 100);
    let effects = fsync(s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert!(!commit.pieces.is_empty());
    refuse(s, call)
}

/// Nobody heard of anything, and no sector is left over.
fn assert_whole(s: &mut Story) {
    assert_eq!(s.slice.losses().pages, 0);
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
    assert!(!s.slice.inode(INO).waits_for_room());
}

/// It keeps the sector that its write was promised, and nobody who waits hears of anything: whether the file is open still or not, and
/// where nothing lies on a disk.
#[test]
fn a_part_is_read_and_goes_to_its_sector() {
    for (is_open, is_hole) in [(true, false), (false, false), (true, true)] {
        let mut s = begin(Some(1));
        let effects = refused_once(&mut s);
        assert_eq!(s.spare.get().in_hand, 0, "nobody else may have it");
        if !is_open {
            s.slice.inode(INO).open_count = 0;
        }
        let mut rest = Rest {
            is_hole,
            ..Rest::new()
        };
        let (told, _) = rest.run(&mut s, effects, SOON);
        assert_eq!((told, &*rest.stored), (Some(Ok(())), &[30][..]));
        let loaded = if is_hole { &[][..] } else { &[30][..] };
        assert_eq!(rest.loaded, loaded, "once");
        assert_eq!(rest.tries, 0, "it was there in time");
        assert_whole(&mut s);
    }
}

/// What is on a disk that cannot be read makes no page whole: after some seconds it gives its sector up, and is told again for as long as
/// others are.
#[test]
fn a_part_whose_page_cannot_be_read_gives_its_sector_up() {
    let mut s = begin(Some(1));
    let effects = refused_once(&mut s);
    let mut rest = Rest {
        loads: Err(IoFailure::Unreachable),
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, SOON);
    assert_eq!((told, s.spare.get().in_hand), (None, 0));
    rest.run(&mut s, Vec::new(), SOON);
    assert!(s.slice.inode(INO).has_given_up(30));
    assert_eq!(s.spare.get().in_hand, 1, "the owner may get it");
    let load_count = rest.loaded.len();
    assert!((8..13).contains(&load_count), "{load_count}");
    let (told, after) = rest.run(&mut s, Vec::new(), Duration::from_secs(30));
    assert_eq!(told, Some(Err(Errno::ENOSPC)));
    assert_eq!(rest.loaded.len(), load_count);
    assert!((18..21).contains(&(after.0 / 1_000_000_000)), "{after:?}");
    assert_eq!(s.slice.losses().pages, 1);
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
}

/// A disk that cannot be read for a moment, and readers of other pages who hear so, make no part one that cannot be loaded.
#[test]
fn a_part_is_read_once_its_disk_can_be() {
    let mut s = begin(Some(1));
    let effects = refused_once(&mut s);
    let mut rest = Rest {
        readable_since: s.now + Duration::from_secs(3),
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, Duration::from_secs(10));
    assert_eq!((told, &*rest.stored), (Some(Ok(())), &[30][..]));
    assert_whole(&mut s);
}

/// Made whole beside a try that an owner takes long to refuse: it has a sector, and is not lost for the time that it has waited.
#[test]
fn a_part_that_was_made_whole_is_not_lost() {
    for seconds in [1, 25] {
        let mut s = begin(Some(1));
        let effects = refused_once(&mut s);
        assert_eq!(commit_of(&effects), None);
        s.now = s.now + Duration::from_millis(600);
        let effects = s.input(Input::Tick);
        let (call, commit) = commit_of(&effects).expect("once more");
        assert_eq!(commit.pieces.len(), 1);
        let mut rest = Rest::new();
        for effect in effects {
            let is_commit = commit_of(std::slice::from_ref(&effect)).is_some();
            let more = match is_commit {
                true => Vec::new(),
                false => rest.answer(&mut s, effect),
            };
            assert!(more.is_empty(), "{more:?}");
        }
        for _ in 0..2 {
            let effects = s.input(Input::Tick);
            effects.into_iter().for_each(|e| _ = rest.answer(&mut s, e));
        }
        assert_eq!(rest.loaded, [30]);
        s.now = s.now + Duration::from_secs(seconds);
        let effects = refuse(&mut s, call);
        assert_eq!(s.spare.get().in_hand, 0);
        let (told, _) = rest.run(&mut s, effects, SOON);
        assert_eq!((told, &*rest.stored), (Some(Ok(())), &[30][..]));
        assert_whole(&mut s);
    }
}

/// Another node takes the rest of its page: it can go as a piece alone then, and gives its sector up.
#[test]
fn a_part_whose_page_is_taken_gives_its_sector_up() {
    let mut s = begin(Some(1));
    refused_once(&mut s);
    assert_eq!(s.spare.get().in_hand, 0);
    let rest = ByteRange::new(30 * PAGE + 100, 31 * PAGE);
    s.revoke(9, vec![write_want(rest)]);
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!(commit.pieces.len(), 1);
    refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 1);
    assert!(s.slice.inode(INO).has_given_up(30));
}

fn write_want(range: ByteRange) -> Want {
    Want::Range {
        mode: RangeMode::Write,
        required: Pattern::plain(range),
        desired: Pattern::plain(range),
    }
}

/// Tokens that are taken back do not keep it from being loaded, whether they are its own or others.
#[test]
fn a_part_is_read_beside_a_revoke() {
    for page in [0, 30] {
        let mut s = begin(Some(1));
        let mut effects = refused_once(&mut s);
        let wanted = s.revoke(9, vec![write_want(ByteRange::at(page * PAGE, PAGE))]);
        effects.extend(s.carry_out(wanted));
        let mut rest = Rest::new();
        rest.run(&mut s, effects, SOON);
        assert_eq!(rest.stored, [30], "{page}");
        assert_whole(&mut s);
    }
}

/// Of several parts those that this node may make whole keep their sectors, and the others theirs not.
#[test]
fn each_part_keeps_or_gives_up_its_own_sector() {
    let mut s = begin_beside_another(Some(2));
    write_page(&mut s, 10, 100);
    let effects = refused_once(&mut s);
    assert_eq!(s.spare.get().in_hand, 1);
    assert_eq!(s.slice.inode(INO).reserved.sectors(), 1);
    let given_up = [10, 30].map(|number| s.slice.inode(INO).has_given_up(number));
    assert_eq!(given_up, [false, true]);
    let mut rest = Rest::new();
    let (told, _) = rest.run(&mut s, effects, SOON);
    assert_eq!((told, &*rest.loaded), (None, &[10][..]));
    assert_eq!(rest.stored, [10]);
    assert_eq!(s.spare.get().in_hand, 1);
    assert_eq!(s.slice.losses().pages, 0);
}

/// A part that had no sector to begin with keeps none: not that of another one, and no batch waits for it.
#[test]
fn a_part_without_a_sector_does_not_count_as_one_that_has_one() {
    let mut s = begin(Some(2));
    write_page(&mut s, 10, 100);
    write_page(&mut s, 30, 100);
    let inode = s.slice.inode(INO);
    assert_eq!(inode.reserved.sectors(), 2);
    inode.reserved = SetAside::plain(1);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    let effects = refuse(&mut s, call);
    let given_up = [10, 30].map(|number| s.slice.inode(INO).has_given_up(number));
    assert_eq!(given_up, [false, true]);
    let mut rest = Rest::new();
    rest.run(&mut s, effects, SOON);
    assert_eq!(rest.stored, [10]);
}

/// Parts of so many pages of a large file, each in a block of its own, and all that an fsync of them asks for.
fn many_parts(count: u64) -> (Story, Vec<Effect>) {
    let mut s = begin(Some(count));
    s.attr.size = count * 20 * PAGE;
    let attr = s.attr;
    let inode = s.slice.inode(INO);
    inode.size = attr.size;
    inode.learn_attr(&attr);
    (0..count).for_each(|index| _ = write_page(&mut s, index * 20, 100));
    let effects = fsync(&mut s);
    (s, effects)
}

/// Where little of the map is told at a time, and there are more of them than are loaded at a time, all become whole.
#[test]
fn many_parts_all_over_a_file_become_whole() {
    let count = 600;
    let (mut s, effects) = many_parts(count);
    let mut rest = Rest {
        window: 1,
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, Duration::from_secs(90));
    rest.stored.sort_unstable();
    let all: Vec<u64> = (0..count).map(|index| index * 20).collect();
    assert_eq!((told, rest.stored), (Some(Ok(())), all));
    assert_whole(&mut s);
}

/// Those that cannot be read do not stand before one that can.
#[test]
fn a_part_behind_many_that_cannot_be_read_becomes_whole() {
    let (mut s, effects) = many_parts(150);
    let mut rest = Rest {
        readable_from: 149 * 20,
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, Duration::from_secs(10));
    assert_eq!((told, &*rest.stored), (None, &[149 * 20][..]));
}

/// Nor do those that are not answered for.
#[test]
fn a_part_behind_many_loads_that_hang_becomes_whole() {
    let (mut s, effects) = many_parts(200);
    let mut rest = Rest {
        hanging_until: 199 * 20,
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, Duration::from_secs(20));
    assert_eq!((told, &*rest.stored), (None, &[199 * 20][..]));
}

/// However slow disks are, few are loaded at a time.
#[test]
fn few_parts_are_loaded_at_a_time() {
    let (mut s, effects) = many_parts(200);
    let mut rest = Rest::new();
    let mut due = VecDeque::from(effects);
    let mut load_count = 0;
    for _ in 0..50 {
        while let Some(effect) = due.pop_front() {
            match effect {
                Effect::Load(_, pieces) => load_count += pieces.len(),
                other => due.extend(rest.answer(&mut s, other)),
            }
        }
        s.now = s.now + Duration::from_millis(15);
        due.extend(s.input(Input::Tick));
    }
    assert_eq!(load_count, COMPLETED_COUNT);
}

/// A page without a sector does not keep those that have one from being written.
#[test]
fn pages_with_sectors_do_not_wait_for_one_without() {
    let mut s = begin(Some(2));
    write_whole(&mut s, 2);
    write_whole(&mut s, 3);
    s.slice.inode(INO).reserved = SetAside::plain(1);
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let (effects, _) = store(&mut s, effects);
    let (_, commit) = commit_of(&effects).expect("one has a sector");
    assert_eq!(sectors_of(&commit), [2]);
    assert!(s.slice.inode(INO).starved_since.is_some());
}

/// Nor what goes as a piece.
#[test]
fn pieces_do_not_wait_for_a_page_without_a_sector() {
    let mut s = begin_beside_another(Some(2));
    write_whole(&mut s, 2);
    write_page(&mut s, 30, 100);
    s.slice.inode(INO).reserved = SetAside::default();
    s.spare.get_mut().in_hand = 0;
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let (_, commit) = commit_of(&effects).expect("the piece can go");
    assert_eq!((commit.extents.len(), commit.pieces.len()), (0, 1));
}

/// In the end one is lost, and no other with it.
#[test]
fn pages_with_sectors_are_not_lost_with_one_without() {
    let mut s = begin(Some(3));
    (64..67).for_each(|number| write_whole(&mut s, number));
    s.slice.inode(INO).reserved = SetAside::plain(2);
    let mut rest = Rest::new();
    rest.run(&mut s, Vec::new(), Duration::from_secs(30));
    assert_eq!((s.slice.losses().pages, rest.stored.len()), (0, 0));
    rest.run(&mut s, Vec::new(), Duration::from_secs(15));
    assert_eq!((s.slice.losses().pages, &*rest.stored), (1, &[64, 65][..]));
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
    let told = fsync(&mut s);
    assert_eq!(error_of(&told), Some(Errno::ENOSPC));
}

/// What makes the file longer goes in its order: a crash would leave zeros where the page without a sector lies.
#[test]
fn nothing_goes_before_a_page_without_a_sector_where_the_file_grows() {
    let mut s = begin(Some(3));
    write_whole(&mut s, 64);
    write_whole(&mut s, 65);
    write_at(&mut s, 66 * PAGE + 100, 50);
    s.slice.inode(INO).reserved = SetAside::plain(1);
    s.spare.get_mut().in_hand = 0;
    s.now = s.now + Duration::from_secs(6);
    let effects = s.input(Input::Tick);
    let (effects, _) = store(&mut s, effects);
    if let Some((_, commit)) = commit_of(&effects) {
        // The time of the writes can go.
        let told = (commit.extents.len(), commit.pieces.len(), commit.size);
        assert_eq!(told, (0, 0, None));
    }
}

/// While a part is on its way nothing else of its file is written for it.
#[test]
fn what_is_written_beside_a_part_on_its_way_waits_for_its_own_time() {
    let mut s = begin(None);
    refused_once(&mut s);
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    assert!(commit_of(&effects).is_some(), "it is on its way");
    write_whole(&mut s, 2);
    for _ in 0..50 {
        s.now = s.now + Duration::from_millis(20);
        let effects = s.input(Input::Tick);
        let is_store = |effect: &Effect| matches!(effect, Effect::Store(..));
        assert!(!effects.iter().any(is_store), "{effects:?}");
    }
}

/// One frame is enough.
#[test]
fn a_part_is_read_where_few_frames_are_free() {
    let mut s = begin(Some(1));
    write_page(&mut s, 30, 100);
    let frames = s.memory.0.borrow();
    let used = frames.iter().filter(|frame| frame.0 > 0).count() as u64;
    drop(frames);
    (0..900).for_each(|_| _ = crate::Pool::alloc(&s.memory));
    s.memory.1 = Some(1000 + used);
    let effects = fsync(&mut s);
    let mut rest = Rest::new();
    let (told, _) = rest.run(&mut s, effects, SOON);
    assert_eq!((told, &*rest.stored), (Some(Ok(())), &[30][..]));
}

/// Bytes of which somebody heard that they are lost do not become durable by that.
#[test]
fn nothing_is_read_into_a_page_with_lost_bytes() {
    let mut s = begin(Some(2));
    let effects = refused_once(&mut s);
    let mut rest = Rest {
        loads: Err(IoFailure::Unreachable),
        ..Rest::new()
    };
    let (told, _) = rest.run(&mut s, effects, Duration::from_secs(30));
    assert_eq!(told, Some(Err(Errno::ENOSPC)));
    write_at(&mut s, 30 * PAGE + 200, 50);
    s.now = s.now + Duration::from_secs(6);
    let effects = fsync(&mut s);
    let mut rest = Rest::new();
    rest.run(&mut s, effects, SOON);
    assert_eq!((rest.loaded.len(), rest.stored.len()), (0, 0));
    assert!(rest.tries > 1);
}

/// Whole, by itself or since it was loaded, but its sector was used up by a store that failed, and there is no other: it does not wait
/// for ever.
#[test]
fn a_page_whose_store_fails_is_told_of_in_the_end() {
    for is_whole in [true, false] {
        let mut s = begin(Some(1));
        let effects = match is_whole {
            false => refused_once(&mut s),
            true => {
                write_whole(&mut s, 30);
                fsync(&mut s)
            }
        };
        let mut rest = Rest {
            stores: Err(IoFailure::Unknown),
            ..Rest::new()
        };
        let (told, after) = rest.run(&mut s, effects, Duration::from_secs(600));
        assert_eq!(told, Some(Err(Errno::ENOSPC)));
        assert!(after < Duration::from_secs(60), "{after:?}");
    }
}
