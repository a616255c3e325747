//! What is asked for to rewrite a block is given back when that is over: other nodes find the file as it was.

use super::others::refuse;
use super::*;
use token::message::Released;

const HALF: ByteRange = ByteRange::new(0, BLOCK / 2);

/// Answers the question of a rewrite: these bytes may be written, all may be read.
fn granted(s: &mut Story, call: CallId, writes: ByteRange) -> Vec<Effect> {
    let ask = Ask::Acquire {
        ino: INO,
        seen: TokenNumber(0),
        wants: Vec::new(),
        only_free: true,
    };
    let asked = [Effect::Call(call, INO.shard(), ask)];
    let held = [
        (RangeMode::Read, ByteRange::ALL),
        (RangeMode::Write, writes),
    ];
    s.grant_ranges(&asked, InodeMode::Exclusive, &held)
}

/// What is released in so many ticks, in which disks and owners answer.
fn released(s: &mut Story, number: usize) -> Vec<Released> {
    let mut all = Vec::new();
    for _ in 0..number {
        for effect in tick(s) {
            match effect {
                Effect::Release(_, released) => all.push(released),
                other => drop(carry(s, vec![other], 64, None)),
            }
        }
    }
    all
}

/// The node may write what it could before, and read all.
fn check_is_as_before(s: &mut Story) {
    let inode = s.slice.inode(INO);
    assert!(inode.covers(RangeMode::Write, &HALF));
    assert!(inode.covers(RangeMode::Read, &ByteRange::ALL));
    let other = ByteRange::new(HALF.end, BLOCK);
    let mut held = inode.holder.held().write.shapes();
    assert!(held.all(|shape| !shape.hull().overlaps(&other)));
}

/// A block has been rewritten a moment ago, and nothing has been given back yet.
fn rewritten_under_a_loan() -> Story {
    let (mut s, call) = asking();
    granted(&mut s, call, ByteRange::new(0, BLOCK));
    while s.slice.rewrite_counts().blocks == 0 {
        assert_eq!(released(&mut s, 1), []);
    }
    s
}

#[test]
fn the_right_to_write_a_block_goes_back_after_the_commit() {
    let (mut s, call) = asking();
    granted(&mut s, call, ByteRange::new(0, BLOCK));
    let gone = released(&mut s, 20);
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
    let [gone] = &gone[..] else {
        panic!("{gone:?}");
    };
    assert_eq!(gone.revoke, 0, "nobody has asked for it");
    check_is_as_before(&mut s);
    assert!(s.slice.inode(INO).gate.is_none());
    // The bytes stay in memory.
    let pages = &s.slice.inode(INO).pages;
    assert!(pages.missing(&ByteRange::new(0, BLOCK)).is_empty());
}

/// Also where it comes when nobody wants it any more.
#[test]
fn the_right_to_write_a_block_goes_back_when_its_rewrite_is_given_up() {
    for is_late in [false, true] {
        let (mut s, call) = asking();
        if is_late {
            s.input(Input::Scarce(NodeId(2)));
            assert_eq!(released(&mut s, 10).len(), 0, "it is on its way");
        }
        granted(&mut s, call, ByteRange::new(0, BLOCK));
        s.input(Input::Scarce(NodeId(2)));
        let gone = released(&mut s, 20);
        assert_eq!(s.slice.rewrite_counts().blocks, 0);
        assert_eq!(gone.len(), 1, "{gone:?}");
        check_is_as_before(&mut s);
    }
}

/// Who writes to the file has asked for all of it, and would have to ask again.
#[test]
fn what_an_application_asks_for_stays() {
    let (mut s, call) = asking();
    granted(&mut s, call, ByteRange::new(0, BLOCK));
    let effects = super::super::write_page(&mut s, 70, 4096);
    s.grant(&effects, InodeMode::Exclusive, ByteRange::ALL);
    let gone = released(&mut s, 50);
    assert_eq!(s.slice.rewrite_counts().blocks, 1);
    assert_eq!(gone, []);
    assert!(s.slice.inode(INO).covers(RangeMode::Write, &ByteRange::ALL));
}

/// It was not asked for again, because it was there.
#[test]
fn what_an_application_writes_to_stays() {
    let mut s = rewritten_under_a_loan();
    let effects = super::super::write_page(&mut s, 40, 4096);
    assert_eq!(asked(&effects).len(), 0, "the loan has not gone yet");
    let gone = released(&mut s, 1000);
    assert_eq!(gone, []);
    let block = ByteRange::new(0, BLOCK);
    assert!(s.slice.inode(INO).covers(RangeMode::Write, &block));
}

/// Another node wants it meanwhile: it goes as anything else does, once.
#[test]
fn what_is_revoked_is_not_given_back() {
    let (mut s, call) = asking();
    granted(&mut s, call, ByteRange::new(0, BLOCK));
    let other = ByteRange::new(HALF.end, BLOCK);
    let effects = s.revoke(1, vec![write_want(other)]);
    let effects = s.carry_out(effects);
    assert!(is_released(&effects), "{effects:?}");
    let gone = released(&mut s, 50);
    assert_eq!(gone, []);
}

/// Which node has what is known soon: the block is not forgotten, and asked for again.
#[test]
fn a_grace_period_is_waited_out() {
    let (mut s, call) = asking();
    refuse(&mut s, call, Errno::EBUSY);
    check_nothing_is_left(&mut s, 0);
    let begun = s.now;
    let done = ticks(&mut s, 100, 64, None);
    assert_eq!(done.acquired.len(), 0, "not at once: {done:?}");
    let mut asked = 0;
    while asked == 0 && s.now.since(begun) < Duration::from_secs(60) {
        asked = ticks(&mut s, 1, 64, None).acquired.len();
    }
    let after = s.now.since(begun);
    assert!(asked == 1 && after < Duration::from_secs(25), "{after:?}");
}
