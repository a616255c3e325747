//! Small files that are here when they are opened are put into the kernel before the open is answered; nothing overtakes them.

use super::located::read;
use super::*;
use crate::fill::Filled;
use crate::request::{Opened, Response};
use crate::siblings::{Mark, Order};
use types::SetAttr;

const SIZE: u64 = PAGE + 100;

/// The kernel knows the file, whose bytes and tokens are here, and nobody has it open.
fn closed(size: u64) -> Story {
    closed_with(size, InodeMode::Read, RangeMode::Read)
}

fn closed_with(size: u64, inode: InodeMode, mode: RangeMode) -> Story {
    let mut s = Story::new(size);
    s.slice.inode(INO).lookup_count = 1;
    let effects = ask_open(&mut s, reader());
    let effects = s.grant_ranges(&effects, inode, &[(mode, ByteRange::ALL)]);
    let handle = opened(&effects)[0].handle;
    let effects = read(&mut s, handle, ByteRange::new(0, size));
    let map = holes_to(&s, u64::MAX);
    let effects = s.answer(map_question(&effects).expect("where it lies"), map);
    s.settle(effects);
    s.ask(Operation::Release { ino: INO, handle });
    s
}

fn ask_open(s: &mut Story, flags: OpenFlags) -> Vec<Effect> {
    s.ask(Operation::Open { ino: INO, flags })
}

fn reader() -> OpenFlags {
    OpenFlags {
        read: true,
        ..OpenFlags::default()
    }
}

fn writer() -> OpenFlags {
    OpenFlags {
        write: true,
        ..reader()
    }
}

/// Bytes that are put into the kernel.
fn filled(effects: &[Effect]) -> Option<u64> {
    effects.iter().find_map(|effect| match effect {
        Effect::Fill(INO, spans) => Some(spans.iter().map(|s| u64::from(s.length)).sum()),
        _ => None,
    })
}

fn opened(effects: &[Effect]) -> Vec<Opened> {
    let opened = |effect: &Effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(*opened),
        _ => None,
    };
    effects.iter().filter_map(opened).collect()
}

fn notices(effects: &[Effect]) -> usize {
    let is_notice = |effect: &&Effect| matches!(effect, Effect::Notify(Some(_), _));
    effects.iter().filter(is_notice).count()
}

fn returns(s: &mut Story, filled: Filled) -> Vec<Effect> {
    s.input(Input::Filled(INO, filled))
}

/// A file whose first open waits until the kernel has its bytes.
fn filling() -> Story {
    let mut s = closed(SIZE);
    let effects = ask_open(&mut s, reader());
    assert_eq!(filled(&effects), Some(SIZE), "{effects:?}");
    assert!(opened(&effects).is_empty(), "{effects:?}");
    s
}

#[test]
fn an_open_is_answered_when_the_kernel_has_the_bytes() {
    let mut s = filling();
    let effects = returns(&mut s, Filled::Whole);
    assert!(opened(&effects)[0].keep_cache, "{effects:?}");
    assert!(
        s.slice.inode(INO).gate.is_none(),
        "nothing is under way any more"
    );
    // It has them: not again, until it forgets the file.
    let handle = opened(&effects)[0].handle;
    s.ask(Operation::Release { ino: INO, handle });
    let effects = ask_open(&mut s, reader());
    assert_eq!((filled(&effects), opened(&effects).len()), (None, 1));
    let handle = opened(&effects)[0].handle;
    s.ask(Operation::Release { ino: INO, handle });
    s.ask(Operation::Forget { ino: INO, count: 1 });
    s.slice.inode(INO).lookup_count = 1;
    assert!(filled(&ask_open(&mut s, reader())).is_some());
}

#[test]
fn what_the_kernel_has_not_taken_is_offered_again() {
    let mut s = filling();
    let effects = returns(&mut s, Filled::Nothing);
    let handle = opened(&effects)[0].handle;
    s.ask(Operation::Release { ino: INO, handle });
    assert!(filled(&ask_open(&mut s, reader())).is_some());
    assert_eq!(s.slice.gauges().filled_file_count, 0);
}

/// A kernel without memory has taken some pages: a revoke must have it drop them.
#[test]
fn what_the_kernel_has_taken_a_part_of_it_may_have() {
    let mut s = filling();
    let effects = returns(&mut s, Filled::Some);
    assert_eq!(opened(&effects).len(), 1);
    assert_eq!(s.slice.gauges().filled_file_count, 0);
    let inode = s.slice.inode(INO);
    assert!(inode.may_have_pages && inode.has_read_pages);
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    assert_eq!(notices(&effects), 1, "{effects:?}");
}

/// The last look of the kernel at a file comes while it takes its bytes: nobody else looks whether it is still wanted.
#[test]
fn what_goes_during_a_fill_is_dropped_after_it() {
    let mut s = closed(SIZE);
    assert!(filled(&s.input(Input::LoadFile(INO))).is_some());
    let inode = s.slice.inode(INO);
    (inode.is_gone, inode.is_freed) = (true, true);
    inode.attr.iter_mut().for_each(|attr| attr.nlink = 0);
    s.ask(Operation::Forget { ino: INO, count: 1 });
    assert!(
        s.slice.inodes.contains_key(&INO),
        "its bytes are on their way"
    );
    returns(&mut s, Filled::Whole);
    assert!(!s.slice.inodes.contains_key(&INO), "nobody wants it");
}

/// Its READ tells whether the files of its directory are read.
#[test]
fn a_file_whose_read_tells_the_order_is_read() {
    let mut s = closed(SIZE);
    s.input(Input::Watch(INO, InodeId::ROOT, Mark::First));
    let effects = ask_open(&mut s, reader());
    assert_eq!(
        (filled(&effects), opened(&effects).len()),
        (None, 1),
        "{effects:?}"
    );
}

/// The directory's slice hears that the file with this mark is read.
fn tells_of_read(effects: &[Effect], mark: Mark) -> bool {
    let tells = |e: &Effect| matches!(e, Effect::ForSlice(_, Input::WatchedRead(_, INO, of)) if *of == mark);
    effects.iter().any(tells)
}

/// Nor does the kernel ask for one that is put there as it is opened.
#[test]
fn the_open_of_a_file_that_is_filled_tells_of_its_read() {
    let mut s = closed(SIZE);
    let order = Order::Name;
    let mark = Mark::Step(order, 1);
    s.input(Input::Watch(INO, InodeId::ROOT, mark));
    let effects = ask_open(&mut s, reader());
    assert!(filled(&effects).is_some());
    assert!(tells_of_read(&effects, mark), "{effects:?}");
}

/// Of a file that was loaded ahead and put into the kernel the open tells that it is read.
#[test]
fn the_open_of_a_file_that_was_filled_before_tells_of_its_read() {
    let mut s = closed(SIZE);
    let order = Order::Listed;
    let mark = Mark::Step(order, 0);
    s.input(Input::Watch(INO, InodeId::ROOT, mark));
    assert!(filled(&s.input(Input::LoadFile(INO))).is_some());
    returns(&mut s, Filled::Whole);
    let effects = ask_open(&mut s, reader());
    assert!(tells_of_read(&effects, mark), "{effects:?}");
}

#[test]
fn only_small_files_of_readers_that_are_alone_are_filled() {
    let mut s = closed((64 << 10) + 1);
    assert_eq!(filled(&ask_open(&mut s, reader())), None, "too large");
    let mut s = closed(SIZE);
    assert_eq!(filled(&ask_open(&mut s, writer())), None, "a writer");
    let direct = OpenFlags {
        direct: true,
        ..reader()
    };
    let mut s = closed(SIZE);
    assert_eq!(filled(&ask_open(&mut s, direct)), None, "past the cache");
    assert_eq!(filled(&ask_open(&mut s, reader())), None, "not alone");
    let mut s = closed(SIZE);
    s.slice.inode(INO).pages.discard(&ByteRange::ALL, &s.memory);
    assert_eq!(filled(&ask_open(&mut s, reader())), None, "not here");
}

/// The kernel may let them go on at once.
#[test]
fn other_opens_wait_for_a_fill() {
    let mut s = filling();
    assert!(opened(&ask_open(&mut s, reader())).is_empty());
    assert!(opened(&ask_open(&mut s, writer())).is_empty());
    // All three can say for what.
    assert_eq!(s.slice.waiters().len(), 3, "{:?}", s.slice.waiters());
    let waits = s.slice.wait_of(INO, Ticket(s.ticket));
    assert_eq!(waits, Some(crate::waits::Wait::Fill));
    let effects = returns(&mut s, Filled::Whole);
    // The writer's mappings must not meet pages of read tokens.
    assert_eq!(notices(&effects), 1, "{effects:?}");
    let effects = s.carry_out(effects);
    assert_eq!(opened(&effects).len(), 3, "{effects:?}");
}

#[test]
fn a_revoke_waits_for_a_fill_and_takes_its_pages() {
    let mut s = filling();
    let effects = s.revoke(1, vec![write_want(ByteRange::ALL)]);
    assert!(
        !is_released(&effects) && notices(&effects) == 0,
        "{effects:?}"
    );
    let effects = returns(&mut s, Filled::Whole);
    assert_eq!(
        (opened(&effects).len(), notices(&effects)),
        (1, 1),
        "{effects:?}"
    );
    assert!(!is_released(&effects), "the kernel has them");
    assert!(is_released(&s.carry_out(effects)));
    assert!(
        !s.slice.inode(INO).may_have_pages,
        "it has dropped all of them"
    );
}

fn cut(s: &mut Story, size: u64) -> Vec<Effect> {
    s.ask(Operation::SetAttr {
        ino: INO,
        handle: None,
        set: SetAttr {
            size: Some(size),
            permissions: None,
            uid: None,
            gid: None,
            atime: None,
            mtime: None,
            kill_set_id: None,
        },
    })
}

fn asks(effects: &[Effect]) -> bool {
    effects.iter().any(|e| matches!(e, Effect::Call(..)))
}

/// Its bytes would arrive after it.
#[test]
fn a_change_of_size_waits_for_a_fill() {
    let mut s = closed_with(SIZE, InodeMode::Exclusive, RangeMode::Write);
    assert!(filled(&ask_open(&mut s, reader())).is_some());
    let effects = cut(&mut s, 10);
    assert!(!asks(&effects), "{effects:?}");
    let effects = returns(&mut s, Filled::Whole);
    assert!(asks(&effects), "{effects:?}: it goes on");
}

/// The kernel may hear of the new size before it has the bytes of before.
#[test]
fn a_file_whose_size_is_being_changed_is_not_filled() {
    let mut s = closed_with(SIZE, InodeMode::Exclusive, RangeMode::Write);
    assert!(asks(&cut(&mut s, 10)));
    let effects = ask_open(&mut s, reader());
    assert_eq!((filled(&effects), opened(&effects).len()), (None, 1));
}

/// A read that changes the access time has to be seen.
#[test]
fn a_file_whose_access_time_is_due_is_read() {
    for (kept, is_filled) in [
        (crate::AccessTimes::Never, true),
        (crate::AccessTimes::Relative, false),
        (crate::AccessTimes::Strict, false),
    ] {
        let mut s = closed(SIZE);
        s.slice
            .keep_access_times(kept, false, Duration::from_millis(1));
        let effects = ask_open(&mut s, reader());
        assert_eq!(filled(&effects).is_some(), is_filled, "{kept:?}");
    }
}

#[test]
fn a_file_that_will_be_opened_soon_is_filled_before() {
    let mut s = closed(SIZE);
    let effects = s.input(Input::LoadFile(INO));
    assert_eq!(filled(&effects), Some(SIZE), "{effects:?}");
    // Whoever opens it meanwhile waits.
    assert!(opened(&ask_open(&mut s, reader())).is_empty());
    let effects = returns(&mut s, Filled::Whole);
    assert_eq!(opened(&effects).len(), 1, "{effects:?}");
    // One that the kernel does not know, or that somebody has open, is left alone.
    let mut s = closed(SIZE);
    s.slice.inode(INO).lookup_count = 0;
    assert_eq!(filled(&s.input(Input::LoadFile(INO))), None);
    let mut s = closed(SIZE);
    ask_open(&mut s, writer());
    assert_eq!(filled(&s.input(Input::LoadFile(INO))), None);
}
