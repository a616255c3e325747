//! What other nodes have is theirs: a rewrite asks for what is free alone, and nobody waits for that.

use super::*;
use crate::rewrite::REFUSED_PAUSE;

pub(super) fn refuse(s: &mut Story, call: CallId, errno: Errno) -> Vec<Effect> {
    let answer = Answer::bare(Body::Refused(errno));
    s.input(Input::Answer(call, Box::new(answer)))
}

fn asks_politely(effects: &[Effect]) -> Vec<bool> {
    let only_free = |effect: &Effect| match effect {
        Effect::Call(_, _, Ask::Acquire { only_free, .. }) => Some(*only_free),
        _ => None,
    };
    effects.iter().filter_map(only_free).collect()
}

#[test]
fn a_rewrite_asks_for_what_is_free_and_an_application_for_what_it_needs() {
    let mut s = open_to_write_half();
    overwrite(&mut s, 3);
    rest(&mut s);
    let mut asked = Vec::new();
    for _ in 0..20 {
        let effects = tick(&mut s);
        asked.extend(asks_politely(&effects));
        carry(&mut s, effects, 64, None);
    }
    assert_eq!(asked, [true]);
    let mut s = open_to_write_half();
    let effects = super::super::write_page(&mut s, 70, 4096);
    assert_eq!(asks_politely(&effects), [false]);
}

/// Another node has some of it: it is not asked for again and again, and other files are rewritten.
#[test]
fn what_another_node_uses_is_left_alone_for_long() {
    let (mut s, call) = asking();
    refuse(&mut s, call, Errno::EAGAIN);
    check_nothing_is_left(&mut s, 0);
    let until = s.now + REFUSED_PAUSE;
    while s.now + Duration::from_secs(30) < until {
        overwrite(&mut s, 3);
        rest(&mut s);
        rest(&mut s);
        let done = ticks(&mut s, 5, 64, None);
        assert_eq!((done.acquired.len(), done.stored.len()), (0, 0), "{done:?}");
    }
    s.now = until;
    overwrite(&mut s, 3);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!(done.acquired.len(), 1, "{done:?}");
}

/// It is the block of another one that is refused: the slice goes on.
#[test]
fn a_block_that_is_free_is_rewritten_beside_one_that_is_not() {
    let (mut s, call) = asking();
    refuse(&mut s, call, Errno::EAGAIN);
    // The application writes to the rest, and then it is this node's.
    let effects = super::super::write_page(&mut s, 40, 4096);
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    overwrite(&mut s, 5);
    rest(&mut s);
    rest(&mut s);
    let done = ticks(&mut s, 20, 64, None);
    assert_eq!((done.acquired.len(), &done.stored[..]), (0, &[64][..]));
}

/// Nobody else would drop it: no request waits for the answer.
#[test]
fn a_file_that_goes_while_a_rewrite_asks_is_forgotten() {
    for errno in [Errno::EAGAIN, Errno::EIO] {
        let (mut s, call) = asking();
        let inode = s.slice.inode(INO);
        inode.attr.as_mut().expect("known").nlink = 0;
        (inode.open_count, inode.writer_count, inode.is_freed) = (0, 0, true);
        refuse(&mut s, call, errno);
        assert!(!s.slice.inodes.contains_key(&INO));
    }
}
