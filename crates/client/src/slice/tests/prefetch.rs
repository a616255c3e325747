//! What is read in a pattern is there before it is asked for, and what is read at random is not loaded ahead.

use super::located::{open, read};
use super::*;
use crate::request::Response;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
const RECORD: u64 = 16 * PAGE;

/// Reads records that begin at `begins`, one after the other, on disks that answer at once; those of the records that were answered
/// without a look at a disk, and bytes that were loaded.
fn read_records(begins: &[u64]) -> (usize, u64) {
    let mut s = Story::new(SIZE);
    let handle = open(&mut s, ByteRange::ALL);
    let length = u32::try_from(SIZE / PAGE).expect("small");
    let (mut ready, mut loaded) = (0, 0);
    for begin in begins {
        let mut effects = read(&mut s, handle, ByteRange::at(*begin, RECORD));
        let is_answer = |e: &Effect| matches!(e, Effect::Reply(_, Response::Data(_), _));
        ready += usize::from(effects.iter().any(is_answer));
        let mut answers = usize::from(effects.iter().any(is_answer));
        while let Some(effect) = effects.pop() {
            let more = match effect {
                Effect::Call(
                    call,
                    _,
                    Ask::Op {
                        op: meta::Op::GetMap { .. },
                        ..
                    },
                ) => s.answer(call, map_of_one(length, s.attr)),
                Effect::Load(io, pieces) => {
                    loaded += pieces
                        .iter()
                        .map(|p| p.frames.len() as u64 * PAGE)
                        .sum::<u64>();
                    s.input(Input::Loaded(io, Ok(())))
                }
                Effect::ForSlice(_, input) => s.input(input),
                _ => continue,
            };
            answers += usize::from(more.iter().any(is_answer));
            effects.extend(more);
        }
        assert_eq!(answers, 1, "the record at {begin}");
    }
    (ready, loaded)
}

#[test]
fn records_of_a_pattern_are_there_before_they_are_asked_for() {
    let strided: Vec<u64> = (0..40).map(|n| n * MIB).collect();
    let backward: Vec<u64> = (0..40).map(|n| SIZE - (n + 1) * RECORD).collect();
    for begins in [strided, backward] {
        let (ready, loaded) = read_records(&begins);
        assert!(ready >= 36, "{ready} of {} were there", begins.len());
        // What is ahead at the end, with a page at either end of each record.
        assert!(loaded <= 2 * (40 + 64) * (RECORD + 2 * PAGE), "{loaded}");
    }
}

#[test]
fn nothing_is_loaded_ahead_of_a_random_reader() {
    let begins: Vec<u64> = (1..30).map(|n| n * n * 7 % 1021 * RECORD).collect();
    let (ready, loaded) = read_records(&begins);
    assert_eq!((ready, loaded), (0, 29 * RECORD));
}
