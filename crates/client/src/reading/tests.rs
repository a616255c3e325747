//! Readers in patterns, and what is named for them.

use types::RangeSet;

use super::*;

const SIZE: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// What a reader of `ranges` gets.
struct Outcome {
    /// Bytes it asked for, of which so many had been named before.
    asked: u64,
    foreseen: u64,
    /// Bytes that were named.
    named: u64,
    /// Bytes that were named at the end and had not been asked for.
    left: u64,
}

fn read(ranges: impl IntoIterator<Item = ByteRange>) -> Outcome {
    let mut reading = Reading::default();
    let mut named = RangeSet::new();
    let mut all = RangeSet::new();
    let (mut asked, mut foreseen) = (0, 0);
    for (index, range) in ranges.into_iter().enumerate() {
        asked += range.length();
        foreseen += bytes(&named.intersection(&range));
        reading.note(Instant(index as u64), range);
        named.remove(range);
        let wanted = reading.next(SIZE, LoadTime::default(), 8 * MIB);
        let once: u64 = wanted.iter().map(ByteRange::length).sum();
        assert!(once <= 17 * MIB, "{once} bytes at once");
        for ahead in wanted {
            assert!(ahead.end <= SIZE && ahead.begin % PAGE_SIZE == 0);
            named.insert(ahead);
            all.insert(ahead);
        }
    }
    Outcome {
        asked,
        foreseen,
        named: bytes(&all),
        left: bytes(&named),
    }
}

fn bytes(set: &RangeSet) -> u64 {
    set.ranges().iter().map(ByteRange::length).sum()
}

/// As the kernel's page cache asks for it.
fn in_pages(begin: u64, length: u64) -> ByteRange {
    whole_pages(begin, begin + length, u64::MAX)
}

/// `count` records of `length` bytes, read in requests of 1 MiB at the most.
fn records(begins: impl Iterator<Item = u64>, length: u64) -> Vec<ByteRange> {
    let requests = |begin: u64| {
        let record = in_pages(begin, length);
        (record.begin..record.end)
            .step_by(1 << 20)
            .map(move |at| ByteRange::new(at, record.end.min(at + MIB)))
    };
    begins.flat_map(requests).collect()
}

fn random(count: u64, length: u64) -> Vec<ByteRange> {
    let mut state = 1_u64;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let pages = (SIZE - length) / PAGE_SIZE;
    (0..count)
        .map(|_| ByteRange::at(draw() % pages * PAGE_SIZE, length))
        .collect()
}

#[test]
fn readers_with_a_pattern_find_what_they_want() {
    // Name, records, what is foreseen at the least (in hundredths), what is left over at the most (with a page at
    // either end of records whose begins are rounded).
    let cases = [
        (
            "in sequence",
            records((0..4000).map(|n| n * 65536), 65536),
            99,
            8 * MIB,
        ),
        (
            "in sequence, large",
            records((0..200).map(|n| n * MIB), MIB),
            98,
            8 * MIB,
        ),
        (
            "stride",
            records((0..500).map(|n| n * MIB), 65536),
            98,
            8 * MIB,
        ),
        (
            "stride of small records",
            records((0..500).map(|n| n * 65536), 4096),
            98,
            8 * MIB,
        ),
        (
            "records of figure A-2",
            records((0..500).map(|n| n * 4 * 47008), 47008),
            95,
            12 * MIB,
        ),
        (
            "large records",
            records((0..60).map(|n| n * 16 * MIB), 4 * MIB),
            90,
            24 * MIB,
        ),
        (
            "records beyond the depth",
            records((0..8).map(|n| n * 128 * MIB), 64 * MIB),
            90,
            40 * MIB,
        ),
        (
            "backward",
            records((0..2000).map(|n| SIZE - (n + 1) * 65536), 65536),
            98,
            8 * MIB,
        ),
        (
            "backward, large",
            records((0..100).map(|n| SIZE - (n + 1) * 4 * MIB), 4 * MIB),
            95,
            16 * MIB,
        ),
        (
            "backward in a stride",
            records((0..500).map(|n| SIZE - (n + 1) * MIB), 65536),
            98,
            8 * MIB,
        ),
    ];
    for (name, ranges, share, left) in cases {
        let outcome = read(ranges);
        let Outcome {
            asked, foreseen, ..
        } = outcome;
        assert!(
            foreseen * 100 >= asked * share,
            "{name}: {foreseen} of {asked}"
        );
        assert!(outcome.left <= left, "{name}: {} left", outcome.left);
        assert!(
            outcome.named <= asked + left,
            "{name}: {} named",
            outcome.named
        );
    }
}

#[test]
fn random_readers_get_next_to_nothing_ahead() {
    for length in [4096, 65536, MIB] {
        let outcome = read(random(5000, length));
        // Three jumps are equally long now and then.
        let Outcome { asked, named, .. } = outcome;
        assert!(named * 1000 <= asked, "{length}: {named} of {asked}");
    }
}

#[test]
fn a_reader_that_becomes_random_is_left_alone() {
    let mut ranges = records((0..100).map(|n| n * MIB), 65536);
    ranges.extend(random(5000, 65536));
    let outcome = read(ranges);
    // What was ahead when it changed its mind, and no more.
    assert!(outcome.named <= 100 * 65536 + 8 * MIB, "{}", outcome.named);
}

#[test]
fn requests_that_overtake_each_other_are_in_sequence() {
    let mut ranges = records((0..1000).map(|n| n * 131_072), 131_072);
    for pair in ranges[4..].chunks_exact_mut(2) {
        pair.swap(0, 1);
    }
    let outcome = read(ranges);
    assert!(outcome.foreseen * 100 >= outcome.asked * 98);
}

#[test]
fn who_begins_anew_is_in_sequence_again() {
    let once = || records((0..64).map(|n| n * 65536), 65536);
    let outcome = read(once().into_iter().chain(once()));
    assert!(outcome.foreseen * 100 >= outcome.asked * 90);
}

#[test]
fn the_end_of_the_file_ends_a_pattern() {
    let mut reading = Reading::default();
    for n in 0..10 {
        reading.note(Instant(0), ByteRange::at(n * MIB, 65536));
    }
    let wanted = reading.next(10 * MIB, LoadTime::default(), 8 * MIB);
    assert_eq!(wanted, []);
    let mut reading = Reading::default();
    for n in 0..10 {
        reading.note(Instant(0), ByteRange::at((9 - n) * MIB, 65536));
    }
    assert_eq!(reading.next(10 * MIB, LoadTime::default(), 8 * MIB), []);
}

#[test]
fn depth_is_what_is_taken_while_the_disks_answer() {
    // Time of a load in us, time between an answer and the next 64 KiB in us, what may be ahead at the most, and what is.
    let cases = [
        (None, 10, 32 * MIB, DEPTH_UNKNOWN),
        (Some(1000), 1_000_000, 32 * MIB, DEPTH_MIN),
        (Some(10_000), 100, 32 * MIB, 100 * 2 * 65536),
        (Some(10_000), 100, 2 * MIB, 2 * MIB),
        (Some(100_000), 10, 64 * MIB, DEPTH_MAX),
    ];
    for (load_time, own_time, most, depth) in cases {
        let mut reading = Reading::default();
        let mut now = Instant(0);
        let mut time = LoadTime::default();
        for n in 0..200 {
            reading.note(now, ByteRange::at(n * 65536, 65536));
            if let Some(us) = load_time {
                // What is waited for is not the application's time.
                time.note(Duration(us * 1000));
                now = now + Duration(us * 1000);
            }
            reading.answered(now);
            now = now + Duration(own_time * 1000);
        }
        let found = reading.depth(time, most);
        assert!(
            found.abs_diff(depth) <= depth / 50,
            "{load_time:?} {own_time}: {found}"
        );
    }
}
