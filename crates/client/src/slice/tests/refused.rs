//! An owner has no room for pieces: no acknowledged byte is lost by that, and no fsync hears of it.

mod completed;

use data::SetAside;

use super::promise::extent_of;
use super::*;

/// A file of 64 pages, all of which this node may write to. `in_hand`: there are so many sectors, and no others.
fn begin(in_hand: Option<u64>) -> Story {
    begin_holding(in_hand, &[ByteRange::ALL])
}

/// The same, but another node may write to all of page 30 behind its first 100 bytes.
fn begin_beside_another(in_hand: Option<u64>) -> Story {
    let (part, behind) = (30 * PAGE + 100, 31 * PAGE);
    let behind = ByteRange::new(behind, ByteRange::ALL.end);
    begin_holding(in_hand, &[ByteRange::new(0, part), behind])
}

fn begin_holding(in_hand: Option<u64>, writes: &[ByteRange]) -> Story {
    let mut s = Story::new(64 * PAGE);
    s.has_sectors = true;
    s.has_volatile_nsd = true;
    let held: Vec<_> = writes.iter().map(|r| (RangeMode::Write, *r)).collect();
    let effects = s.ask_open();
    s.grant_ranges(&effects, InodeMode::Exclusive, &held);
    limit(&mut s, in_hand);
    s
}

/// The same with 50 bytes more, of which this node has none: who appends writes a part of a page. And where that begins.
fn begin_in_a_page() -> (Story, u64) {
    let mut s = begin(None);
    s.attr.size += 50;
    let attr = s.attr;
    let inode = s.slice.inode(INO);
    inode.size += 50;
    inode.learn_attr(&attr);
    (s, 64 * PAGE)
}

/// A file of so many bytes, small as far as this node knows. `in_hand` as in [`begin`].
fn begin_small(size: u64, mode: InodeMode, in_hand: Option<u64>) -> Story {
    let mut s = Story::new(size);
    s.has_sectors = true;
    s.open(mode, ByteRange::ALL);
    limit(&mut s, in_hand);
    s
}

fn limit(s: &mut Story, in_hand: Option<u64>) {
    if let Some(in_hand) = in_hand {
        s.is_full = true;
        s.spare.get_mut().in_hand = in_hand;
    }
}

fn write_whole(s: &mut Story, number: u64) {
    let effects = write_page(s, number, u32::try_from(PAGE).expect("4 KiB"));
    assert!(is_written(&effects), "{effects:?}");
}

fn refuse(s: &mut Story, call: CallId) -> Vec<Effect> {
    let refused = Answer::bare(Body::Refused(Errno::ENOSPC));
    s.input(Input::Answer(call, Box::new(refused)))
}

fn accept(s: &mut Story, call: CallId) -> Vec<Effect> {
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr))
}

/// Ends the stores among `effects`, and their flushes; what else there was and came. And how many stores were flushed.
fn store(s: &mut Story, effects: Vec<Effect>) -> (Vec<Effect>, usize) {
    let (mut rest, mut flushed) = (Vec::new(), 0);
    let mut due = VecDeque::from(effects);
    while let Some(effect) = due.pop_front() {
        match effect {
            Effect::Store(io, _, pieces) => {
                let extents = pieces.iter().map(extent_of).collect();
                due.extend(s.input(Input::Stored(io, Ok(extents))));
            }
            Effect::Flush(io, stores) => {
                flushed += stores.len();
                due.extend(s.input(Input::Flushed(io, Ok(()))));
            }
            other => rest.push(other),
        }
    }
    (rest, flushed)
}

fn is_sync(effects: &[Effect]) -> bool {
    let is_it = |effect: &Effect| matches!(effect, Effect::Call(_, _, Ask::Sync));
    effects.iter().any(is_it)
}

fn sectors_of(commit: &meta::Commit) -> Vec<u64> {
    let extents = commit.extents.iter();
    extents
        .flat_map(|extent| extent.file_sector..extent.file_sector_end())
        .collect()
}

/// The sector that a write was promised stays its own until the owner has its bytes.
#[test]
fn whole_pages_that_are_refused_go_to_the_sectors_set_aside_for_them() {
    for is_refused in [true, false] {
        let mut s = begin(Some(1));
        write_whole(&mut s, 2);
        assert_eq!(s.spare.get().in_hand, 0);
        let effects = fsync(&mut s);
        let (call, commit) = commit_of(&effects).expect("fsync commits");
        assert_eq!(commit.pieces.len(), 1);
        assert_eq!(s.spare.get().in_hand, 0, "nobody else may have it now");
        let effects = match is_refused {
            true => {
                let effects = refuse(&mut s, call);
                assert_eq!(s.spare.get().in_hand, 0);
                let (effects, _) = store(&mut s, effects);
                let (call, commit) = commit_of(&effects).expect("it is stored");
                assert!(commit.pieces.is_empty(), "{commit:?}");
                assert_eq!(sectors_of(&commit), [2]);
                accept(&mut s, call)
            }
            false => {
                let effects = accept(&mut s, call);
                assert_eq!(s.spare.get().in_hand, 1, "it is not needed");
                effects
            }
        };
        assert!(is_sync(&effects), "{effects:?}");
        assert_eq!(s.slice.losses().pages, 0);
        assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
    }
}

/// Others of the file do not try again at once; after a while they do.
#[test]
fn for_some_seconds_all_whole_pages_go_to_sectors() {
    let mut s = begin(None);
    write_whole(&mut s, 2);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    let effects = refuse(&mut s, call);
    let (effects, _) = store(&mut s, effects);
    let (call, _) = commit_of(&effects).expect("it is stored");
    accept(&mut s, call);
    for (seconds, are_pieces) in [(4, false), (2, true)] {
        s.now = s.now + Duration::from_secs(seconds);
        write_whole(&mut s, 3);
        let effects = fsync(&mut s);
        let (effects, _) = store(&mut s, effects);
        let (call, commit) = commit_of(&effects).expect("fsync commits");
        assert_eq!(!commit.pieces.is_empty(), are_pieces);
        accept(&mut s, call);
    }
}

/// Twenty whole pages that are stored, and a part of another one with them.
fn refused_with_stores(s: &mut Story) -> (Vec<Effect>, usize) {
    (0..20).for_each(|number| write_whole(s, number));
    write_page(s, 30, 100);
    let effects = fsync(s);
    let (effects, flushed) = store(s, effects);
    assert_eq!(flushed, 1);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!((sectors_of(&commit).len(), commit.pieces.len()), (20, 1));
    let effects = refuse(s, call);
    store(s, effects)
}

/// What has reached its sectors is not written again, nor flushed, for pieces that came along with it.
#[test]
fn what_was_stored_goes_with_the_next_commit() {
    let mut s = begin(None);
    let (effects, flushed) = refused_with_stores(&mut s);
    assert_eq!(flushed, 0, "the disks were asked to forget nothing");
    assert_eq!(s.spare.get().discarded, 0);
    let (call, commit) = commit_of(&effects).expect("it can go");
    assert_eq!(sectors_of(&commit), (0..20).collect::<Vec<u64>>());
    assert!(commit.pieces.is_empty(), "not at once");
    let effects = accept(&mut s, call);
    assert!(!is_sync(&effects), "a part is left");
    let waits = s.slice.inode(INO).flush_state();
    assert!(waits.ends_with("refused by the owner: true"), "{waits}");
    assert_eq!(commit_of(&effects), None, "which waits");
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!((commit.extents.len(), commit.pieces.len()), (0, 1));
    let effects = accept(&mut s, call);
    assert!(is_sync(&effects), "{effects:?}");
    assert_eq!(s.slice.losses().pages, 0);
    assert!(
        !s.slice.inode(INO).has_given_up(30),
        "it is the owner's now"
    );
}

/// Cut while the Commit was on its way: it may hold what was cut off, and is written anew.
#[test]
fn what_was_cut_beside_a_refusal_is_written_again() {
    let mut s = begin(None);
    (0..20).for_each(|number| write_whole(&mut s, number));
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let (effects, _) = store(&mut s, effects);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    for batch in &mut s.slice.inode(INO).batches {
        batch.is_cut = true;
    }
    let effects = refuse(&mut s, call);
    assert_eq!(s.spare.get().discarded, 1);
    let (effects, flushed) = store(&mut s, effects);
    assert_eq!(flushed, 1);
    let (_, commit) = commit_of(&effects).expect("once more");
    assert_eq!(sectors_of(&commit), (0..20).collect::<Vec<u64>>());
}

/// A cut in between: what was stored is given back, and nothing is kept of it.
#[test]
fn what_was_stored_before_a_refusal_can_be_cut() {
    let mut s = begin(Some(41));
    let (effects, _) = refused_with_stores(&mut s);
    let (call, _) = commit_of(&effects).expect("it can go");
    // The size was changed by somebody else: the owner has nothing of it.
    s.attr.size_generation += 1;
    let effects = s.answer(call, meta::Reply::Resized(s.attr));
    assert_eq!(s.spare.get().discarded, 1);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!(sectors_of(&commit), (0..20).collect::<Vec<u64>>());
    accept(&mut s, call);
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (call, _) = commit_of(&effects).expect("the part of a page");
    assert!(is_sync(&accept(&mut s, call)));
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
}

/// A part of a page of which another node may write the rest has no other way: it is told again for some seconds, and then whoever waits hears of it.
#[test]
fn parts_of_pages_are_told_again_for_a_while() {
    let mut s = begin_beside_another(Some(1));
    write_page(&mut s, 30, 100);
    let mut effects = fsync(&mut s);
    let (mut tries, mut ticks) = (0, 0);
    let begin = s.now;
    while error_of(&effects).is_none() {
        if let Some((call, commit)) = commit_of(&effects) {
            effects = match commit.pieces.is_empty() {
                // The time of the write can go.
                true => accept(&mut s, call),
                false => {
                    tries += 1;
                    refuse(&mut s, call)
                }
            };
            let again = commit_of(&effects);
            assert!(
                again.is_none_or(|(_, commit)| commit.pieces.is_empty()),
                "it pauses"
            );
            continue;
        }
        assert_eq!(
            s.spare.get().in_hand,
            u64::from(tries > 0),
            "the owner may get it"
        );
        ticks += 1;
        assert!(ticks < 10_000, "it ends");
        s.now = s.now + Duration::from_millis(20);
        effects = s.input(Input::Tick);
    }
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC));
    let seconds = s.now.since(begin).0 / 1_000_000_000;
    assert!((20..21).contains(&seconds), "{seconds} s");
    assert!((39..44).contains(&tries), "{tries} tries");
    assert_eq!(s.slice.losses().pages, 1);
}

/// The owner keeps small files in its records whatever room there is for pieces: it has no room at all.
#[test]
fn small_files_hear_it_at_once() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    write_page(&mut s, 0, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    let effects = refuse(&mut s, call);
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC));
}

/// What was appended and is lost does not lie behind the end for whoever makes the file longer later on.
#[test]
fn what_was_lost_behind_the_end_is_not_there() {
    let mut s = Story::new(1000);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    write_at(&mut s, 900, 300);
    let appended = ByteRange::new(1000, 1200);
    assert!(s.slice.inode(INO).pages.missing(&appended).is_empty());
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    let effects = refuse(&mut s, call);
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC));
    let inode = s.slice.inode(INO);
    assert_eq!(inode.size, 1000);
    assert!(!inode.pages.missing(&appended).is_empty());
}

/// What is appended behind a part that waits, and the new size, come after it: a crash leaves no hole of zeros.
#[test]
fn nothing_is_told_of_what_lies_behind_a_part_that_waits() {
    let (mut s, begin) = begin_in_a_page();
    // A part of the last page, of which this node has not the beginning, and whole ones behind it.
    write_at(&mut s, begin + 50, 100);
    let effects = fsync(&mut s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!((commit.pieces.len(), commit.size), (1, Some(begin + 150)));
    let effects = refuse(&mut s, call);
    assert_eq!(commit_of(&effects), None, "nor its size: {effects:?}");
    (65..90).for_each(|number| write_whole(&mut s, number));
    let effects = fsync(&mut s);
    let (effects, _) = store(&mut s, effects);
    assert_eq!(commit_of(&effects), None, "{effects:?}");
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!((commit.pieces.len(), commit.extents.len()), (1, 1));
    assert_eq!(commit.size, Some(90 * PAGE));
    s.attr.size = 90 * PAGE;
    let effects = accept(&mut s, call);
    assert!(is_sync(&effects), "{effects:?}");
}

/// The same where the part is the last of it: what was stored in front of it can go, with its own end.
#[test]
fn a_commit_in_front_of_a_part_that_waits_tells_its_own_end() {
    let mut s = begin(None);
    (64..84).for_each(|number| write_whole(&mut s, number));
    write_at(&mut s, 90 * PAGE + 50, 100);
    let effects = fsync(&mut s);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!((sectors_of(&commit).len(), commit.pieces.len()), (20, 1));
    let effects = refuse(&mut s, call);
    let (call, commit) = commit_of(&effects).expect("what was stored");
    assert_eq!((sectors_of(&commit).len(), commit.pieces.len()), (20, 0));
    assert_eq!(commit.size, Some(84 * PAGE));
    s.attr.size = 84 * PAGE;
    let effects = accept(&mut s, call);
    assert_eq!(commit_of(&effects), None, "{effects:?}");
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!(
        (commit.pieces.len(), commit.size),
        (1, Some(90 * PAGE + 150))
    );
    s.attr.size = 90 * PAGE + 150;
    assert!(is_sync(&accept(&mut s, call)));
}

/// It has no sector any more: who makes it whole sets one aside for it. Others' are never taken for it, nor given up by it.
#[test]
fn a_part_that_gave_its_sector_up_gets_another_one_with_the_next_write() {
    let mut s = begin_beside_another(Some(3));
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    let effects = refuse(&mut s, call);
    assert_eq!(commit_of(&effects), None);
    assert_eq!(s.spare.get().in_hand, 3, "given up");
    // Written while the first waits.
    write_whole(&mut s, 40);
    assert_eq!(s.spare.get().in_hand, 2);
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("once more");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![40], 1));
    assert_eq!(s.spare.get().in_hand, 2);
    let effects = refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 2, "that of the other page is used");
    let (call, commit) = commit_of(&effects).expect("the other page");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![40], 0));
    accept(&mut s, call);
    // Others let go of the page.
    let whole = u32::try_from(PAGE).expect("4 KiB");
    let effects = write_page(&mut s, 30, whole);
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(is_written(&effects), "{effects:?}");
    assert_eq!(s.spare.get().in_hand, 1, "it has one again");
    let effects = fsync(&mut s);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![30], 0));
    assert!(is_sync(&accept(&mut s, call)));
    assert_eq!(s.slice.inode(INO).reserved, SetAside::default());
}

/// Where a part has waited for too long, what came along is not lost with it.
#[test]
fn who_gives_up_loses_the_parts_alone() {
    let mut s = begin_beside_another(None);
    write_page(&mut s, 30, 100);
    let mut effects = fsync(&mut s);
    let begin = s.now;
    let mut committed = Vec::new();
    while error_of(&effects).is_none() {
        if let Some((call, commit)) = commit_of(&effects) {
            committed.extend(sectors_of(&commit));
            effects = match commit.pieces.is_empty() {
                true => accept(&mut s, call),
                false => refuse(&mut s, call),
            };
            effects = store(&mut s, effects).0;
            continue;
        }
        let waited = s.now.since(begin);
        assert!(waited < Duration::from_secs(30), "it ends");
        effects = match waited > Duration::from_millis(19_500) {
            true => {
                s.now = s.now + Duration::from_secs(1);
                write_whole(&mut s, 2);
                let effects = fsync(&mut s);
                let (effects, _) = store(&mut s, effects);
                let (_, last) = commit_of(&effects).expect("both go");
                assert_eq!((sectors_of(&last), last.pieces.len()), (vec![2], 1));
                effects
            }
            false => {
                s.now = s.now + Duration::from_millis(100);
                s.input(Input::Tick)
            }
        };
    }
    assert_eq!(s.slice.losses().pages, 1);
    effects.extend(fsync(&mut s));
    let (effects, _) = store(&mut s, effects);
    if let Some((call, commit)) = commit_of(&effects) {
        committed.extend(sectors_of(&commit));
        accept(&mut s, call);
    }
    assert_eq!(committed, [2, 2], "refused, and then not");
    assert!(!s.slice.inode(INO).is_dirty());
}

/// A read has made the page whole: it still has no sector, and takes none of others.
#[test]
fn a_part_that_gave_its_sector_up_stays_one_when_it_is_read() {
    let mut s = begin_beside_another(None);
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    refuse(&mut s, call);
    let frame = crate::Pool::alloc(&s.memory).expect("plenty");
    let Story { slice, memory, .. } = &mut s;
    slice.inode(INO).pages.fill(30, frame, None, memory);
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (_, commit) = commit_of(&effects).expect("once more");
    assert_eq!(commit.pieces.len(), 1);
}

/// Refuses what brings pieces and takes the rest, until somebody hears an error or `until`; `each` is done every 100 ms.
fn refuse_until(
    s: &mut Story,
    mut effects: Vec<Effect>,
    until: Duration,
    mut each: impl FnMut(&mut Story),
) -> Vec<Effect> {
    let begin = s.now;
    loop {
        effects = store(s, effects).0;
        if error_of(&effects).is_some() {
            return effects;
        }
        if let Some((call, commit)) = commit_of(&effects) {
            effects = match commit.pieces.is_empty() {
                true => accept(s, call),
                false => refuse(s, call),
            };
            continue;
        }
        if s.now.since(begin) >= until {
            return effects;
        }
        s.now = s.now + Duration::from_millis(100);
        each(s);
        effects = s.input(Input::Tick);
    }
}

/// Also one that is written again all the time: each time it has a sector for that, and none for what it is to become.
#[test]
fn a_part_that_is_written_again_is_not_told_for_ever() {
    let mut s = begin_beside_another(Some(2));
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let begin = s.now;
    let again = |s: &mut Story| _ = write_page(s, 30, 100);
    let effects = refuse_until(&mut s, effects, Duration::from_secs(30), again);
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC));
    let waited = s.now.since(begin);
    assert!(waited < Duration::from_secs(22), "{waited:?}");
}

/// Each part has its time.
#[test]
fn a_later_part_is_not_lost_with_one_of_before() {
    let mut s = begin_beside_another(None);
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let effects = refuse_until(&mut s, effects, Duration::from_secs(15), |_| ());
    assert_eq!(error_of(&effects), None);
    write_page(&mut s, 40, 100);
    let begin = s.now;
    let effects = fsync(&mut s);
    let effects = refuse_until(&mut s, effects, Duration::from_secs(30), |_| ());
    assert_eq!(error_of(&effects), Some(Errno::ENOSPC), "the first");
    assert!(s.now.since(begin) < Duration::from_secs(7));
    assert_eq!(s.slice.losses().pages, 1);
    s.now = s.now + Duration::from_secs(1);
    let effects = s.input(Input::Tick);
    let (call, commit) = commit_of(&effects).expect("the other one");
    assert_eq!(commit.pieces[0].offset, 40 * PAGE);
    accept(&mut s, call);
    assert_eq!(s.slice.losses().pages, 1);
}

/// Nor is the size told of a part that was written to beside its Commit, or while it waited.
#[test]
fn nothing_is_told_of_a_part_that_is_written_again() {
    for is_beside in [true, false] {
        let (mut s, begin) = begin_in_a_page();
        write_at(&mut s, begin + 50, 100);
        let effects = fsync(&mut s);
        let (call, _) = commit_of(&effects).expect("fsync commits");
        if is_beside {
            write_at(&mut s, begin + 150, 100);
        }
        let effects = refuse(&mut s, call);
        assert_eq!(commit_of(&effects), None, "{effects:?}");
        if !is_beside {
            write_at(&mut s, begin + 150, 100);
        }
        let effects = s.input(Input::Tick);
        assert_eq!(commit_of(&effects), None, "{effects:?}");
        s.now = s.now + Duration::from_millis(600);
        let effects = s.input(Input::Tick);
        let (_, commit) = commit_of(&effects).expect("once more");
        assert_eq!(commit.size, Some(begin + 250));
        assert!(!commit.pieces.is_empty());
    }
}

/// Another node may have made it longer: then its owner has no room for the pieces of what is a small file here.
#[test]
fn files_that_are_small_as_far_as_is_known_are_asked_for_again() {
    let mut s = begin_small(1000, InodeMode::SharedWrite, None);
    write_page(&mut s, 0, 100);
    let effects = fsync(&mut s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert!(!commit.pieces.is_empty());
    let effects = refuse(&mut s, call);
    assert_eq!(error_of(&effects), None);
    assert_eq!(s.slice.losses().pages, 0);
}

/// The file was small when its page was taken, and is not any more: the page is whole, and has a sector.
#[test]
fn a_small_file_that_grows_keeps_its_sector() {
    let mut s = begin_small(0, InodeMode::Exclusive, Some(2));
    write_at(&mut s, 0, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    write_at(&mut s, 10 * PAGE, 100);
    let effects = refuse(&mut s, call);
    assert_eq!(error_of(&effects), None);
    let (effects, _) = store(&mut s, effects);
    let (_, commit) = commit_of(&effects).expect("it is stored");
    assert!(sectors_of(&commit).contains(&0), "{commit:?}");
    assert_eq!(s.slice.losses().pages, 0);
}

/// A part that was written to beside its Commit has a sector for that; refused once more it gives that up, too.
#[test]
fn a_part_that_is_written_beside_its_commit_has_a_sector() {
    let mut s = begin_beside_another(Some(2));
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    write_page(&mut s, 30, 100);
    assert_eq!(s.spare.get().in_hand, 0);
    refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 1);
    assert!(!s.slice.inode(INO).has_given_up(30));
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (call, _) = commit_of(&effects).expect("once more");
    refuse(&mut s, call);
    assert_eq!(s.spare.get().in_hand, 2);
    assert!(s.slice.inode(INO).has_given_up(30));
}

/// A part that is not told because others were just refused is one that waits.
#[test]
fn nothing_is_told_of_what_lies_behind_a_part_that_others_hold_up() {
    let (mut s, begin) = begin_in_a_page();
    write_page(&mut s, 3, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    refuse(&mut s, call);
    write_at(&mut s, begin + 50, 100);
    (65..90).for_each(|number| write_whole(&mut s, number));
    let effects = fsync(&mut s);
    let (effects, _) = store(&mut s, effects);
    assert_eq!(commit_of(&effects), None, "{effects:?}");
    s.now = s.now + Duration::from_millis(600);
    let effects = s.input(Input::Tick);
    let (effects, _) = store(&mut s, effects);
    let (_, commit) = commit_of(&effects).expect("once more");
    assert_eq!((commit.pieces.len(), commit.size), (2, Some(90 * PAGE)));
}

/// Whole pages of small files stay where they are.
#[test]
fn small_files_are_not_moved_to_sectors() {
    let mut s = begin_small(0, InodeMode::Exclusive, None);
    write_at(&mut s, 0, 100);
    let effects = fsync(&mut s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!(commit.pieces.len(), 1);
    s.attr.size = 100;
    accept(&mut s, call);
    assert!(s.slice.inode(INO).hasty.is_empty());
}

/// A part is on its way together with what is being stored, and is written to meanwhile: what carries it does not wait for it.
#[test]
fn a_part_that_is_written_on_its_way_does_not_hold_itself_up() {
    let (mut s, begin) = begin_in_a_page();
    write_at(&mut s, begin + 50, 100);
    let effects = fsync(&mut s);
    let (call, _) = commit_of(&effects).expect("fsync commits");
    refuse(&mut s, call);
    write_whole(&mut s, 2);
    s.now = s.now + Duration::from_millis(600);
    let mut storing = s.input(Input::Tick);
    assert!(
        storing.iter().any(|e| matches!(e, Effect::Store(..))),
        "{storing:?}"
    );
    write_at(&mut s, begin + 150, 100);
    storing.extend(fsync(&mut s));
    let (effects, _) = store(&mut s, storing);
    let (call, commit) = commit_of(&effects).expect("it goes");
    assert_eq!((sectors_of(&commit), commit.pieces.len()), (vec![2], 1));
    s.attr.size = begin + 250;
    let effects = accept(&mut s, call);
    let (effects, _) = store(&mut s, effects);
    let (call, _) = commit_of(&effects).expect("and the rest");
    assert!(is_sync(&accept(&mut s, call)));
}

/// Also where the file is small as far as this node knows: refused, a whole page goes to the sector that it has.
#[test]
fn whole_pages_of_what_may_be_a_large_file_go_to_sectors() {
    let mut s = begin_small(1000, InodeMode::SharedWrite, Some(1));
    write_page(&mut s, 0, 1000);
    let effects = fsync(&mut s);
    let (call, commit) = commit_of(&effects).expect("fsync commits");
    assert_eq!((commit.pieces.len(), commit.extents.len()), (1, 0));
    let effects = refuse(&mut s, call);
    let (effects, _) = store(&mut s, effects);
    let (call, commit) = commit_of(&effects).expect("it is stored");
    assert_eq!((commit.pieces.len(), commit.extents.len()), (0, 1));
    assert!(is_sync(&accept(&mut s, call)));
}

/// Bytes that were written beside the Commit that was a part's last try are no older than themselves.
#[test]
fn what_is_written_over_a_lost_part_has_its_own_time() {
    let mut s = begin_beside_another(None);
    write_page(&mut s, 30, 100);
    let effects = fsync(&mut s);
    let effects = refuse_until(&mut s, effects, Duration::from_secs(19), |_| ());
    assert_eq!(error_of(&effects), None);
    s.now = s.now + Duration::from_secs(2);
    let effects = s.input(Input::Tick);
    let (call, commit) = commit_of(&effects).expect("the last try");
    assert_eq!(commit.pieces.len(), 1);
    write_page(&mut s, 30, 100);
    let mut effects = refuse(&mut s, call);
    assert_eq!(s.slice.losses().pages, 1);
    effects.extend(fsync(&mut s));
    refuse_until(&mut s, effects, Duration::from_secs(15), |_| ());
    let effects = fsync(&mut s);
    refuse_until(&mut s, effects, Duration::from_secs(4), |_| ());
    assert_eq!(s.slice.losses().pages, 1);
}
