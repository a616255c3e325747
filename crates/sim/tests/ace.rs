//! Short workloads with a loss of power after every event of the disks, too little room, and damaged sectors: a part of what
//! `cargo run --release -p sim -- --ace` runs, each with a canary that must be caught.

use sim::survive;
use sim::whole::ace::machine::Shape;
use sim::whole::ace::ops::{self, Sequence};
use sim::whole::ace::{Bench, Canary, Counts, PROMISES, ROOMS, set_canary};

fn bench(shape: Shape) -> Bench {
    Bench::new(shape).unwrap_or_else(|text| panic!("set-up: {text}"))
}

fn must_pass(bench: &mut Bench, sequence: &Sequence) {
    if let Err(violation) = bench.run(sequence) {
        panic!("replay with `cargo run -p sim -- --ace \"{sequence}\"`: {violation}");
    }
}

/// One in five: calls of all kinds, followed by nothing or by an fsync of one kind in turn.
#[test]
fn calls_outlive_a_loss_of_power_at_every_event() {
    let mut bench = bench(Shape::default());
    let all = ops::singles(bench.begin());
    assert!(all.len() > 200, "{} sequences", all.len());
    for sequence in all.iter().step_by(5) {
        must_pass(&mut bench, sequence);
    }
    let Counts { cuts, images, .. } = bench.counts;
    eprintln!("{:?}", bench.counts);
    assert!(cuts > 600 && images > 2_000, "{:?}", bench.counts);
}

#[test]
fn two_calls_outlive_a_loss_of_power_at_every_event() {
    let mut bench = bench(Shape::default());
    let all = ops::pairs(bench.begin());
    assert!(all.len() > 10_000, "{} sequences", all.len());
    for sequence in all.iter().step_by(all.len() / 24) {
        must_pass(&mut bench, sequence);
    }
    eprintln!("{:?}", bench.counts);
}

/// Without a volatile cache nothing is flushed, and without checkpoints the journal has everything.
#[test]
fn other_disks() {
    let cached = Shape {
        round_ticks: 0,
        part_bounds: None,
        ..Shape::default()
    };
    let direct = Shape {
        has_volatile_cache: false,
        ..Shape::default()
    };
    for shape in [cached, direct] {
        let mut bench = bench(shape);
        let all = ops::pairs(bench.begin());
        for sequence in all.iter().skip(77).step_by(all.len() / 9) {
            must_pass(&mut bench, sequence);
        }
    }
}

/// Files whose bytes are written over, and rewritten as soon as they consist of more than one extent.
#[test]
fn rewritten_files_outlive_a_loss_of_power_at_every_event() {
    for has_volatile_cache in [true, false] {
        let mut bench = bench(Shape {
            rewrites: true,
            has_volatile_cache,
            ..Shape::default()
        });
        let is_write = |sequence: &&Sequence| {
            let mut calls = sequence.0.iter();
            calls.all(|(op, _)| matches!(op, ops::Op::Write(..)))
        };
        let singles = ops::singles(bench.begin());
        for sequence in singles.iter().filter(is_write).step_by(3) {
            must_pass(&mut bench, sequence);
        }
        let pairs = ops::pairs(bench.begin());
        let pairs: Vec<_> = pairs.iter().filter(is_write).collect();
        for sequence in pairs.iter().step_by(pairs.len() / 16) {
            must_pass(&mut bench, sequence);
        }
        for text in [
            "write a 0 4096 +file, truncate a 5000 +file",
            "write a 0 4096 +file, punch a 4096 8192 +none",
            "write a 4096 100 +none, rename a d/b +dir",
            "write a 0 4096 +sync, append a 300 +none",
        ] {
            let sequence = text.parse().expect("it can be read");
            must_pass(&mut bench, &sequence);
        }
        eprintln!("{:?}", bench.counts);
        assert!(bench.counts.rewrites > 10, "{:?}", bench.counts);
    }
}

/// Bytes that are in no fsync, under a name that was another file's: they are committed first.
#[test]
fn a_name_is_replaced_by_all_of_a_file() {
    let mut bench = bench(Shape::default());
    for text in [
        "create x +none, write x 0 12288 +none, rename x a +none",
        "copy a x +none, rename x d/b +none",
        "write a 100 200 +none, rename a d/b +dir, append d/b 300 +none",
    ] {
        let sequence = text.parse().expect("it can be read");
        must_pass(&mut bench, &sequence);
    }
}

/// Where the journal is nearly full who asks for sectors is refused; it once asked again at once, for ever.
#[test]
fn a_small_journal_lets_the_node_rest() {
    bench(Shape {
        journal_sectors: 512,
        ..Shape::default()
    });
}

#[test]
fn too_little_room_is_told_at_once_and_ends_with_what_is_removed() {
    let mut refused = 0;
    for data_sectors in (0..24).step_by(3) {
        for (region_sectors, round_ticks) in [(1, 0), (16, 3)] {
            let shape = Shape {
                data_sectors: data_sectors + u64::from(round_ticks > 0),
                region_sectors,
                round_ticks,
                ..Shape::default()
            };
            let scarce = Bench::scarce(shape, data_sectors % 12 == 3);
            let (count, _) = scarce.unwrap_or_else(|text| panic!("{shape:?}: {text}"));
            refused += count;
        }
    }
    assert!(refused > 20, "{refused} calls found no room");
}

/// Refusals of all kinds, each alone and with all that follow; of every third sequence with a loss of power at every event.
#[test]
fn each_question_for_room_can_be_refused() {
    let mut bench = bench(Shape::default().with_room_to_starve());
    let (mut questions, mut calls) = ([0; ROOMS.len()], 0);
    let singles = ops::singles(bench.begin());
    for (index, sequence) in singles.iter().enumerate().step_by(14) {
        let counts = bench.refused(sequence, index % 3 == 0);
        let counts = counts.unwrap_or_else(|violation| {
            panic!("replay with `--ace refused \"{sequence}\"`: {violation}")
        });
        let sums = questions.iter_mut().zip(counts.questions);
        sums.for_each(|(sum, more)| *sum += more);
        calls += counts.calls;
    }
    eprintln!("{questions:?}, {calls} calls, {:?}", bench.counts);
    assert!(questions.iter().all(|count| *count > 4), "{questions:?}");
    assert!(calls > 10, "{calls} calls were refused");
}

fn must_be_caught_where_room_is_refused(name: &str, sequence: &str, expected: &str) {
    let (mut shape, mut canary) = (Shape::default().with_room_to_starve(), Canary::default());
    assert!(set_canary(&mut shape, &mut canary, name), "no {name}");
    let mut bench = bench(shape);
    bench.canary = canary;
    let sequence = sequence.parse().expect("it can be read");
    let violation = survive(|| bench.refused(&sequence, false).err());
    let violation = violation.unwrap_or_else(|| panic!("{name} is not caught"));
    assert!(violation.contains(expected), "{name}: {violation}");
}

#[test]
fn a_refusal_that_is_hidden_is_caught() {
    must_be_caught_where_room_is_refused("hides-refusals", "write a 4096 12288 +file", "");
}

#[test]
fn sectors_that_do_not_come_back_after_a_refusal_are_caught() {
    let sequence = "write a 4096 12288 +file";
    must_be_caught_where_room_is_refused("keeps-sectors", sequence, "all is removed");
}

#[test]
fn directories_move_to_another_parent() {
    let mut bench = bench(Shape::default());
    for text in [
        "rename d e/x +dir, rename e/x d +none",
        "mkdir d/x +none, rename d/x x +dir",
        "mkdir d/x +none, exchange d/x e +none",
        "rename d e/x +none, rename a e/x/b +file",
        // The name that is looked up next was known to be absent when it was moved there.
        "unlink a +none, rename d/b a +file",
    ] {
        let sequence = text.parse().expect("it can be read");
        must_pass(&mut bench, &sequence);
    }
}

fn little_room() -> Shape {
    Shape {
        data_sectors: 48,
        region_sectors: 8,
        round_ticks: 0,
        ..Shape::default()
    }
}

#[test]
fn what_is_promised_is_kept_after_a_loss_of_power_at_every_event() {
    let mut tried = 0;
    for text in PROMISES {
        let sequence = text.parse().expect("it can be read");
        let kept = Bench::promised(little_room(), &sequence);
        tried += kept.unwrap_or_else(|violation| panic!("{text}: {violation}"));
    }
    eprintln!("{tried} images");
    assert!(tried > 30, "{tried}");
}

/// Every call that promises space.
#[test]
fn promises_outlive_a_loss_of_power_at_every_event() {
    let mut bench = bench(Shape::default());
    let is_promise = |sequence: &&Sequence| {
        let (op, _) = &sequence.0[0];
        matches!(op, ops::Op::Allocate(..) | ops::Op::Promise(..))
    };
    let all = ops::singles(bench.begin());
    let all: Vec<_> = all.iter().filter(is_promise).collect();
    assert_eq!(all.len(), 16);
    for sequence in all {
        must_pass(&mut bench, sequence);
    }
    eprintln!("{:?}", bench.counts);
}

#[test]
fn promises_that_are_not_held_back_are_caught() {
    let (mut shape, mut canary) = (little_room(), Canary::default());
    assert!(set_canary(&mut shape, &mut canary, "breaks-promises"));
    let sequence = PROMISES[0].parse().expect("it can be read");
    let broken = survive(|| Bench::promised(shape, &sequence).err());
    assert!(
        broken.is_some_and(|text| text.contains("and there are Counts")),
        "it is not caught"
    );
}

#[test]
fn damaged_sectors_are_never_shown() {
    let mut bench = bench(Shape::default());
    let mut unreadable = 0;
    for text in [
        "write a 100 200 +dir, write d/b 4096 12288 +sync",
        "rename a d/x +file, mkdir x +dir",
    ] {
        let sequence = text.parse().expect("it can be read");
        let counts = bench.rot(&sequence);
        let counts = counts.unwrap_or_else(|violation| panic!("{text}: {violation}"));
        eprintln!("{text}: {counts:?}");
        assert!(counts.damages > 80 && counts.refused > 10, "{counts:?}");
        unreadable += counts.unreadable;
    }
    assert!(unreadable > 10, "{unreadable}");
}

/// Something that is broken on purpose is found by what is to find it.
fn must_be_caught(name: &str, sequence: &str, expected: &str) {
    let (mut shape, mut canary) = (Shape::default(), Canary::default());
    assert!(
        set_canary(&mut shape, &mut canary, name),
        "{name} is no canary"
    );
    let mut bench = bench(shape);
    bench.canary = canary;
    let sequence = sequence.parse().expect("it can be read");
    let violation = survive(|| bench.run(&sequence).err());
    let violation = violation.unwrap_or_else(|| panic!("{name} is not caught"));
    assert!(violation.contains(expected), "{name}: {violation}");
}

#[test]
fn a_rename_that_removes_first_is_caught() {
    must_be_caught("renames-in-two", "rename a d/b +dir", "a directory of");
}

#[test]
fn an_fsync_before_the_journal_is_durable_is_caught() {
    must_be_caught("ignores-fua", "create x +dir", "");
}

#[test]
fn a_commit_before_its_bytes_are_durable_is_caught() {
    must_be_caught("ignores-flushes", "copy a d/x +none", "DataSector");
}

#[test]
fn a_root_before_its_pages_is_caught() {
    must_be_caught("ignores-page-flushes", "create x +none", "TreePage");
}

#[test]
fn wrong_bytes_are_caught() {
    must_be_caught(
        "rots-in-memory",
        "write a 0 4096 +file",
        "none that were written",
    );
}

#[test]
fn sectors_that_do_not_come_back_are_caught() {
    let (mut shape, mut canary) = (Shape::default(), Canary::default());
    assert!(set_canary(&mut shape, &mut canary, "keeps-sectors"));
    let scarce = survive(|| Bench::scarce(shape, false).err());
    assert!(
        scarce.is_some_and(|text| text.contains("all is removed")),
        "it is not caught"
    );
}

/// Each call, with all directories listed ahead before each of its steps: what is shown after it is what is there.
#[test]
fn directories_that_are_listed_ahead_show_what_is_there() {
    let mut bench = bench(Shape::default());
    let mut count = 0;
    for sequence in ops::singles(bench.begin()) {
        match bench.listed(&sequence) {
            Ok(listed) => count += listed,
            Err(violation) => panic!("{sequence}: {violation}"),
        }
    }
    assert!(count > 1_000, "{count} listings");
}

/// Names that have changed since they were listed are seen.
#[test]
fn old_names_are_caught() {
    let mut shape = Shape::default();
    assert!(set_canary(
        &mut shape,
        &mut Canary::default(),
        "shows-old-names"
    ));
    let mut bench = bench(shape);
    let all = ops::singles(bench.begin());
    let caught = all.iter().filter(|s| bench.listed(s).is_err()).count();
    eprintln!("{caught} of {}", all.len());
    assert!(caught > 20, "{caught} of {}", all.len());
}
