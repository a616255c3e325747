//! Holes: what is dirty goes first, nothing of before comes back.

use super::*;
use crate::request::Response;

fn punch_of(effects: &[Effect]) -> Option<CallId> {
    effects.iter().find_map(|effect| match effect {
        Effect::Call(
            call,
            _,
            Ask::Op {
                op: meta::Op::Punch { .. },
                ..
            },
        ) => Some(*call),
        _ => None,
    })
}

fn hole(begin: u64, end: u64) -> Operation {
    Operation::Punch {
        ino: INO,
        handle: Handle(0),
        begin,
        end,
        keeps_size: true,
    }
}

/// What was written before goes to the owner before the hole is asked for; what is written back while it is asked
/// for is not committed until it is answered, and then without the bytes of the hole.
#[test]
fn no_commit_brings_back_what_was_in_a_hole() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write_back(1);
    let effects = s.ask(hole(100, PAGE));
    assert_eq!(punch_of(&effects), None, "the page is dirty");
    let (call, commit) = commit_of(&effects).expect("it goes first");
    assert_eq!(commit.pieces[0].bytes[..], [1; FRAME_SIZE][..]);
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let call = punch_of(&effects).expect("the owner has everything");

    // A store through a mapping, of the moment before.
    let effects = s.write_back(2);
    assert!(commit_of(&effects).is_none());
    let effects = s.input(Input::WriteBack);
    assert!(commit_of(&effects).is_none(), "it may bring back the hole");

    s.attr.change += 1;
    s.attr.size_generation += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    let is_done = |e: &Effect| matches!(e, Effect::Reply(_, Response::Done, _));
    assert!(effects.iter().any(is_done));
    let inode = s.slice.inode(INO);
    let known = inode.pages.missing(&ByteRange::new(0, PAGE));
    assert!(!known.is_empty(), "the hole is looked up anew");
    assert!(inode.resizes.is_empty() && inode.resize_count == 0);
    let (_, commit) = commit_of(&effects).expect("what is left of the page goes now");
    let bytes = commit.pieces.iter().map(|p| (p.offset, p.end()));
    assert_eq!(bytes.collect::<Vec<_>>(), [(0, 100)]);
}

/// A page that was dirtied again while its first Commit was on its way has what was in the hole: it does not go beside the
/// question for the hole, but after it, without that.
#[test]
fn a_page_that_is_dirty_again_goes_after_the_hole() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Exclusive, ByteRange::ALL);
    s.write_back(1);
    let effects = s.ask(hole(100, PAGE));
    let (first, _) = commit_of(&effects).expect("it goes first");
    // Dirty again, and wanted by somebody else than the hole: it goes with the next Commit.
    s.write_back(2);
    s.input(Input::WriteBack);
    s.attr.change += 1;
    let effects = s.answer(first, meta::Reply::Attr(s.attr));
    let punch = punch_of(&effects).expect("what was dirty when it came is with the owner");
    assert!(commit_of(&effects).is_none(), "it may bring back the hole");
    s.attr.change += 1;
    s.attr.size_generation += 1;
    let effects = s.answer(punch, meta::Reply::Attr(s.attr));
    let (_, commit) = commit_of(&effects).expect("what is left of the page");
    assert_eq!(commit.size_generation, s.attr.size_generation);
    let bytes = commit.pieces.iter().map(|p| (p.offset, p.end()));
    assert_eq!(bytes.collect::<Vec<_>>(), [(0, 100)]);
}

/// Without the right to write to all of it nothing is asked of the owner; a revoke that comes while it is asked waits.
#[test]
fn a_hole_takes_the_tokens_of_its_bytes_and_keeps_them() {
    let mut s = Story::new(4 * PAGE);
    s.open(InodeMode::Exclusive, ByteRange::new(0, PAGE));
    let effects = s.ask(hole(0, 2 * PAGE));
    assert_eq!(punch_of(&effects), None);
    let effects = s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    let call = punch_of(&effects).expect("the tokens are here");
    let wants = vec![write_want(ByteRange::new(0, PAGE))];
    let effects = s.revoke(1, wants);
    assert!(
        !is_released(&s.carry_out(effects)),
        "the hole is on its way"
    );
    s.attr.change += 1;
    let effects = s.answer(call, meta::Reply::Attr(s.attr));
    assert!(is_released(&s.carry_out(effects)));
}

/// Who may write to a file of somebody else takes its set-id bits by a hole, too, as on a local file system.
#[test]
fn a_hole_by_another_user_takes_the_set_id_bits() {
    for (uid, is_taken) in [(0, false), (7, true)] {
        let mut s = Story::new(4 * PAGE);
        s.attr.permissions = 0o6757;
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        let effects = s.ask_as(uid, hole(0, PAGE));
        let commit = commit_of(&effects);
        assert_eq!(
            commit.is_some_and(|(_, c)| c.kill_set_id.is_some()),
            is_taken
        );
        assert_eq!(punch_of(&effects).is_some(), !is_taken, "the Commit first");
    }
}
