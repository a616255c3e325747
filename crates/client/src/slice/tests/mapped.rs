//! Files with writable mappings: a page that the kernel may dirty without a request is there only under the right to
//! write, or revokes of that right do not find it.

use super::*;
use crate::request::Response;

/// Opens the file; the effects of the open, or of the grant that it needs.
fn open(s: &mut Story, write: bool, held: &[(RangeMode, ByteRange)]) -> Vec<Effect> {
    let effects = s.ask(Operation::Open {
        ino: INO,
        flags: OpenFlags {
            read: true,
            write,
            ..OpenFlags::default()
        },
    });
    if held.is_empty() {
        return effects;
    }
    grant(s, &effects, held)
}

/// Answers the token question among `effects` with these ranges and the exclusive inode token.
fn grant(s: &mut Story, effects: &[Effect], held: &[(RangeMode, ByteRange)]) -> Vec<Effect> {
    s.grant_ranges(effects, InodeMode::Exclusive, held)
}

/// A READ of these pages into the page cache.
fn read(s: &mut Story, first: u64, count: u64) -> Vec<Effect> {
    s.ask(Operation::Read {
        ino: INO,
        handle: Handle(0),
        offset: first * PAGE,
        length: u32::try_from(count * PAGE).expect("small"),
        fills_page_cache: true,
    })
}

/// Answers the question for the map among `effects` with a hole, and has it loaded.
fn load(s: &mut Story, effects: &[Effect]) -> Vec<Effect> {
    let map = holes_to(s, u64::MAX);
    let mut done = Vec::new();
    for effect in s.answer(map_question(effects).expect("the map is asked for"), map) {
        match effect {
            Effect::ForSlice(_, input) => done.extend(s.input(input)),
            other => done.push(other),
        }
    }
    done
}

fn notices(effects: &[Effect]) -> Vec<(NotifyId, u64, u64)> {
    let notice = |effect: &Effect| match effect {
        Effect::Notify(Some(id), Notice::Data { offset, length, .. }) => {
            Some((*id, offset / PAGE, length / PAGE))
        }
        _ => None,
    };
    effects.iter().filter_map(notice).collect()
}

pub(super) fn has_data(effects: &[Effect]) -> bool {
    let is_data = |e: &Effect| matches!(e, Effect::Reply(_, Response::Data(_), _));
    effects.iter().any(is_data)
}

fn is_opened(effects: &[Effect]) -> bool {
    let is_open = |e: &Effect| matches!(e, Effect::Reply(_, Response::Opened(_), _));
    effects.iter().any(is_open)
}

/// Makes the kernel know the inode, or it would not be notified.
fn look_up(s: &mut Story) {
    s.slice.inode(INO).lookup_count = 1;
}

/// The kernel reads ahead over pages that only read tokens cover into one that is notified: it got all of them once,
/// dirtied them through its mapping, and wrote them back when another node had them (ESTALE, and old bytes).
#[test]
fn a_read_that_a_notification_waits_for_gets_no_pages_without_the_right_to_write() {
    let mut s = Story::new(8 * PAGE);
    look_up(&mut s);
    let ahead = ByteRange::new(4 * PAGE, u64::MAX);
    let held = [(RangeMode::Read, ByteRange::ALL), (RangeMode::Write, ahead)];
    open(&mut s, true, &held);
    let effects = s.revoke(1, vec![write_want(ahead)]);
    let [(id, 4, 0)] = notices(&effects)[..] else {
        panic!("{effects:?}: from page 4 on");
    };
    let effects = read(&mut s, 2, 4);
    let is_failed = |e: &Effect| matches!(e, Effect::Yield(_, Response::Error(Errno::EAGAIN)));
    assert!(effects.iter().any(is_failed), "{effects:?}");
    // What the revoke's own pages need is served meanwhile (rule R2).
    let effects = read(&mut s, 4, 1);
    assert!(has_data(&load(&mut s, &effects)));
    let effects = s.input(Input::Notified(id));
    assert!(!is_released(&effects), "{effects:?}: page 4 was READ");
}

/// A READ that was admitted when no mapping could be writable brings its pages in after one can be: the open waits.
#[test]
fn a_first_writable_open_waits_for_reads_in_service() {
    let mut s = Story::new(8 * PAGE);
    look_up(&mut s);
    open(&mut s, false, &[(RangeMode::Read, ByteRange::ALL)]);
    let reading = read(&mut s, 0, 1);
    let effects = open(&mut s, true, &[]);
    assert!(!is_opened(&effects), "{effects:?}");
    let all = notices(&effects);
    assert_eq!(all.len(), 1, "{effects:?}");
    // Another open for writing waits with it.
    let effects = open(&mut s, true, &[]);
    assert!(effects.is_empty(), "{effects:?}");
    assert!(has_data(&load(&mut s, &reading)));
    let effects = s.input(Input::Notified(all[0].0));
    let again = notices(&effects);
    assert_eq!(again.len(), 1, "{effects:?}: twice, for -EBUSY is hidden");
    let effects = s.input(Input::Notified(again[0].0));
    let opened = |e: &&Effect| matches!(e, Effect::Reply(_, Response::Opened(_), _));
    assert_eq!(effects.iter().filter(opened).count(), 2, "{effects:?}");
}

/// While the kernel drops what it had under read tokens, a page that it waits for comes under them once more, and goes
/// again before a mapping can be writable.
#[test]
fn a_page_served_under_read_tokens_goes_before_the_open_is_answered() {
    let mut s = Story::new(8 * PAGE);
    look_up(&mut s);
    open(&mut s, false, &[(RangeMode::Read, ByteRange::ALL)]);
    let effects = read(&mut s, 0, 1);
    assert!(has_data(&load(&mut s, &effects)));
    let effects = open(&mut s, true, &[]);
    let first = notices(&effects)[0].0;
    assert!(
        has_data(&read(&mut s, 0, 1)),
        "the notification waits for it"
    );
    let mut notice = first;
    for passes in 0.. {
        assert!(passes < 4, "it ends");
        let effects = s.input(Input::Notified(notice));
        let [(id, begin, _)] = notices(&effects)[..] else {
            assert!(is_opened(&effects), "{effects:?}");
            assert_eq!(passes, 2, "page 0 was notified again, twice");
            break;
        };
        assert_eq!(begin, 0);
        notice = id;
    }
}

/// A revoke that began when no mapping could be writable notifies pages that no right to write covers: if the kernel
/// wants one back meanwhile it is served under the read token, so no mapping may be writable before that revoke is over.
#[test]
fn a_first_writable_open_waits_for_the_revokes_of_read_pages() {
    let mut s = Story::new(8 * PAGE);
    look_up(&mut s);
    open(&mut s, false, &[(RangeMode::Read, ByteRange::ALL)]);
    let effects = s.revoke(1, vec![write_want(ByteRange::new(0, PAGE))]);
    let [(id, 0, _)] = notices(&effects)[..] else {
        panic!("{effects:?}: page 0");
    };
    let effects = open(&mut s, true, &[]);
    assert!(!is_opened(&effects), "{effects:?}");
    let effects = read(&mut s, 0, 1);
    assert!(has_data(&load(&mut s, &effects)), "the notification waits");
    let effects = s.input(Input::Notified(id));
    assert!(!is_opened(&effects), "{effects:?}");
    let mut all = notices(&effects);
    let mut effects = effects;
    while let Some((id, ..)) = all.pop() {
        assert!(!is_released(&effects), "{effects:?}: page 0 was READ again");
        effects = s.input(Input::Notified(id));
        all.extend(notices(&effects));
    }
    assert!(is_released(&effects), "{effects:?}");
    assert!(is_opened(&effects), "{effects:?}");
}

fn read_want(range: ByteRange) -> Want {
    let required = Pattern::plain(range);
    Want::Range {
        mode: RangeMode::Read,
        required,
        desired: required,
    }
}

fn handle_of(effects: &[Effect]) -> Handle {
    let handle = effects.iter().find_map(|effect| match effect {
        Effect::Reply(_, Response::Opened(opened), _) => Some(opened.handle),
        _ => None,
    });
    handle.expect("it is opened")
}

/// Pages that came under the right to write stay in the kernel when only that right goes while nobody has the file open
/// for writing. They are under read tokens then, so the next writable open has them dropped: beside it a revoke of read
/// tokens notifies nothing.
#[test]
fn a_page_that_outlived_its_writer_goes_before_the_next_one() {
    let mut s = Story::new(8 * PAGE);
    look_up(&mut s);
    open(&mut s, false, &[(RangeMode::Write, ByteRange::ALL)]);
    let handle = handle_of(&open(&mut s, true, &[]));
    let effects = read(&mut s, 0, 1);
    assert!(has_data(&load(&mut s, &effects)));
    s.ask(Operation::Release { ino: INO, handle });
    let effects = s.revoke(1, vec![read_want(ByteRange::ALL)]);
    assert!(is_released(&effects), "{effects:?}: reading goes on");
    let effects = open(&mut s, true, &[]);
    assert!(!is_opened(&effects), "{effects:?}");
    let [(id, 0, _)] = notices(&effects)[..] else {
        panic!("{effects:?}: from page 0 on");
    };
    let effects = s.input(Input::Notified(id));
    let [(id, 0, _)] = notices(&effects)[..] else {
        panic!("{effects:?}: twice, for -EBUSY is hidden");
    };
    let effects = s.input(Input::Notified(id));
    assert!(is_opened(&effects), "{effects:?}");
}
