//! What was promised to a file and made durable is there after a loss of power at every event: on a full disk it can be
//! written, and written over.

use types::{Errno, SECTOR_SIZE};

use super::calls::{Calls, Failed};
use super::judge::Bounds;
use super::machine::{Machine, Shape};
use super::ops::{Op, Sequence, pattern};
use super::posix::Step;
use super::tape::{Event, Image, Player, Tape};
use super::{Bench, seed_of};

/// Calls that promise space to the file x: before its end and behind it, to bytes that are dirty, written and not there.
pub const PROMISES: [&str; 3] = [
    "create x +none, promise x 0 40960 +file, write x 4096 300 +none",
    "create x +none, write x 0 20000 +none, allocate x 4096 49152 +file, write x 8192 12288 +file",
    "create x +none, write x 0 60000 +file, allocate x 0 57344 +sync, punch x 4096 8192 +file",
];
/// The file that takes all the room there is.
const FILLER: &str = "f";
/// Bytes that it takes at once: many, then few.
const PARTS: [u64; 2] = [8 * SECTOR_SIZE, SECTOR_SIZE];

impl Bench {
    /// Runs the calls; wherever power is lost, what is promised durably is kept. Returns in how many images that was tried.
    ///
    /// # Errors
    /// What is wrong.
    pub fn promised(shape: Shape, sequence: &Sequence) -> Result<u64, String> {
        let bench = Self::with(shape, &[])?;
        let mut runner = bench.runner(false)?;
        runner.make_calls(sequence, seed_of(sequence))?;
        runner.end()?;
        let run = runner.run();
        let calls = sequence.0.iter().zip(1..);
        let mut promises = calls.filter_map(|((op, _), step)| match op {
            Op::Allocate(_, begin, end) | Op::Promise(_, begin, end) => Some((step, *begin, *end)),
            _ => None,
        });
        let (step, begin, end) = promises.next().ok_or("nothing is promised")?;
        // A hole takes its part of the promise back.
        let holes = sequence.0.iter().filter_map(|(op, _)| match op {
            Op::Punch(_, _, end) => Some(*end),
            _ => None,
        });
        let begin = holes.fold(begin, u64::max);
        let number = run.history.now().find("x").ok_or("it is not there")?;
        let (mut player, mut bounds) = (Player::new(&bench.image), Bounds::default());
        let mut prng = stdx::Prng::new(seed_of(sequence));
        let mut tried = 0;
        for (index, event) in run.events.iter().enumerate() {
            if let Event::Mark(mark) = event {
                bounds = run.marks[*mark].clone();
            }
            let is_durable = bounds.data.get(&number).is_some_and(|done| *done >= step);
            if !player.play(event) || !is_durable {
                continue;
            }
            for image in player.images(&mut prng) {
                tried += 1;
                is_kept(&shape, &image, (begin, end))
                    .map_err(|text| format!("power lost after event {index}: {text}"))?;
            }
        }
        Ok(tried)
    }
}

/// Starts from the image, fills the disk, and writes to bytes `begin..end` of the file.
fn is_kept(shape: &Shape, image: &Image, (begin, end): (u64, u64)) -> Result<(), String> {
    let disks = image.disks(&shape.nsds(), shape.has_volatile_cache);
    let machine = Machine::start(shape, disks, 100, image.hash(), &Tape::default())?;
    let mut calls = Calls::new(machine);
    let failed = |what: &str, failed: Failed| format!("{what}: {failed:?}");
    let created = calls.step(&Step::Create(FILLER.to_owned()));
    created.map_err(|why| failed("the disk is filled", why))?;
    let mut size = 0;
    fill(&mut calls, &mut size)?;
    for tag in 0..3 {
        let bytes = pattern(900 + tag, begin, end - begin);
        let written = calls.step(&Step::Write("x".to_owned(), begin, bytes));
        written.map_err(|why| failed("what is promised is written", why))?;
        let synced = calls.fsync("x", false);
        synced.map_err(|why| failed("what is promised is synced", why))?;
        fill(&mut calls, &mut size)?;
    }
    calls.machine.node.check();
    Ok(())
}

/// Writes behind the end of another file until there is no more room.
fn fill(calls: &mut Calls, size: &mut u64) -> Result<(), String> {
    for length in PARTS {
        loop {
            let bytes = pattern(800, *size, length);
            match calls.step(&Step::Write(FILLER.to_owned(), *size, bytes)) {
                Ok(()) => *size += length,
                Err(Failed::Refused(Errno::ENOSPC)) => break,
                Err(why) => return Err(format!("the disk is filled: {why:?}")),
            }
        }
    }
    calls.machine.rest()?;
    // Bytes that find no sectors would go into metadata for some time: that hides what is missing.
    let log = &calls.machine.node.log;
    let (promised, counts) = (log.promised(), log.space.counts());
    match promised.unpaid <= counts.free + counts.pending + counts.granted {
        true => Ok(()),
        false => Err(format!("{promised:?}, and there are {counts:?}")),
    }
}
