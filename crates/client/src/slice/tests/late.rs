//! What changes beside an answer that the kernel has not taken yet.

use types::Name;

use super::story::granted;
use super::*;
use crate::names::Arrival;
use crate::request::Response;

const ATTRIBUTES: Operation = Operation::GetAttr {
    ino: INO,
    handle: None,
};

/// Attributes are shown for the kernel to keep.
fn is_kept(effect: &Effect) -> bool {
    matches!(effect, Effect::Reply(_, Response::Attr(_, 1..), _))
}

/// INO is shown to thread 1.
fn shown() -> Story {
    let mut s = Story::new(PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    let effects = s.ask(ATTRIBUTES);
    assert!(effects.iter().any(is_kept), "{effects:?}");
    s
}

fn is_told(effects: &[Effect]) -> bool {
    let notice = Notice::Attributes { ino: INO };
    let is_it = |e: &Effect| matches!(e, Effect::Notify(None, n) if *n == notice);
    effects.iter().any(is_it)
}

/// It has changed by a call of `thread`.
fn change(s: &mut Story, thread: u32) -> Vec<Effect> {
    let lesson = Arrival::lesson(INO, None, false, (thread, false));
    s.input(Input::Arrive(lesson))
}

#[test]
fn what_others_may_not_have_taken_yet_is_made_void() {
    let mut s = shown();
    assert!(!is_told(&change(&mut s, 1)), "it has taken its answer");
    assert!(is_told(&change(&mut s, 2)), "1 may have it under way");
    assert!(!is_told(&change(&mut s, 3)), "nothing was shown since");
    let mut s = shown();
    s.slice.inode(INO).note_believed(2);
    assert!(is_told(&change(&mut s, 1)), "2 may have it under way");
}

#[test]
fn a_thread_without_a_number_may_be_any() {
    let mut s = shown();
    assert!(is_told(&change(&mut s, 0)));
    s.slice.inode(INO).note_believed(0);
    assert!(is_told(&change(&mut s, 0)));
}

/// A name is looked up while what it leads to moves: the answer of before the move comes after that of the move, by way of another
/// directory's slice, and with a token.
#[test]
fn what_was_told_before_a_move_is_not_taken_for_what_is_now() {
    let mut s = shown();
    change(&mut s, 1);
    found(&mut s);
    let effects = s.ask(ATTRIBUTES);
    assert!(!effects.iter().any(is_kept), "of before: {effects:?}");
    s.attr.change += 1;
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    assert!(effects.iter().any(is_kept), "{effects:?}");
    let effects = s.ask(ATTRIBUTES);
    assert!(effects.iter().any(is_kept), "it is known: {effects:?}");
}

/// The owner has told what a name leads to, and given a token with it.
fn found(s: &mut Story) -> Vec<Effect> {
    s.number += 1;
    let mode = InodeMode::Exclusive;
    let granted = granted(INO, s.number, TokenKind::Inode { mode });
    let arrival = Arrival {
        attr: Some(s.attr),
        grants: vec![granted],
        request: Some(Request {
            ticket: Ticket(100),
            caller: Caller {
                uid: 0,
                gid: 0,
                pid: 2,
                ..Caller::default()
            },
            operation: Operation::Lookup {
                parent: InodeId::ROOT,
                name: Name::new(b"name").expect("a name"),
            },
        }),
        ..*Arrival::lesson(INO, None, false, (0, false))
    };
    s.input(Input::Arrive(Box::new(arrival)))
}

/// An extended attribute is set, as the owner is asked for.
fn set_attribute(s: &mut Story) -> CallId {
    let effects = s.ask(Operation::SetXattr {
        ino: INO,
        name: SmallBytes::from(b"user.a".to_vec()),
        value: SmallBytes::from(b"b".to_vec()),
        flags: 0,
    });
    assert!(!is_told(&effects), "the owner has not changed it yet");
    call_of(&effects)
}

#[test]
fn attributes_told_with_a_change_are_new() {
    let mut s = shown();
    s.slice.inode(INO).note_believed(2);
    let call = set_attribute(&mut s);
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(is_told(&effects));
}

/// A name that leads to an inode which is not known here is looked up before an extended attribute of it is set, and the answer comes after
/// that, with a token.
#[test]
fn what_was_told_before_an_attribute_was_set_is_old_of_what_was_not_known_too() {
    let mut s = Story::new(PAGE);
    let call = set_attribute(&mut s);
    let before = s.attr;
    s.attr.change += 1;
    s.answer(call, meta::Reply::Attr(s.attr));
    let now = std::mem::replace(&mut s.attr, before);
    found(&mut s);
    s.attr = now;
    let effects = s.ask(ATTRIBUTES);
    let told = effects.iter().find_map(|e| match e {
        Effect::Reply(_, Response::Attr(attr, _), _) => Some(attr.change),
        _ => None,
    });
    assert_eq!(told, Some(now.change), "{effects:?}");
}
