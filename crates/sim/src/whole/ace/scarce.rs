//! Room for one sector more each time: a workload runs into the end of the space at each of its allocations.
//!
//! - A call that finds no room answers ENOSPC and has had no effect; no other call, and no fsync, fails.
//! - After a loss of power at every event all that was made durable is there, as with much room.
//! - What is removed makes room: when all is gone no sector is in use, and the call that was refused first can be made.

use super::super::node::Node;
use super::machine::Shape;
use super::ops::{Op, Sequence};
use super::posix::{Body, ROOT};
use super::runner::Runner;
use super::{Bench, Counts, seed_of};

/// Sectors that the largest single call of the workload needs.
const LARGEST_CALL: u64 = 4;
/// Sectors of a journal that has room for a question for sectors whatever else it holds.
const JOURNAL_SECTORS_ENOUGH: u64 = 1024;
/// Milliseconds in which sectors that were freed, or lie in hand, are free again.
const FREE_MS: u64 = 15_000;

/// Calls that need sectors in every way there is.
pub const WORKLOAD: &str = "create a +none, write a 0 12288 +file, create b +dir, write b 0 5000 +none, \
    append b 300 +file, mkdir d +none, tmpfile d/t 6000 +none, write a 4096 4096 +file, \
    copy a d/c +file, truncate b 20000 +none, append b 5000 +sync, rename d/t b +none, \
    punch a 50 6000 +none, setxattr a +none, write d/c 2000 9000 +file, append a 200 +none, \
    create x +none, write x 0 16384 +none, unlink d/c +none, write x 4096 8192 +sync";

impl Bench {
    /// Runs the workload where there is as little room as `shape` says; power is lost at every event, or only at the end.
    /// Returns how many calls found no room.
    ///
    /// # Errors
    /// What is wrong.
    pub fn scarce(shape: Shape, cuts: bool) -> Result<(usize, Counts), String> {
        let data_sectors = shape.data_sectors;
        let mut bench = Self::with(shape, &[])?;
        let sequence: Sequence = WORKLOAD.parse()?;
        let seed = seed_of(&sequence) ^ data_sectors;
        let mut runner = bench.runner(true)?;
        runner.make_calls(&sequence, seed)?;
        runner.end()?;
        let run = runner.run();
        if cuts {
            bench.cut_everywhere(&run, seed)?;
        } else {
            bench.cut_at_end(&run, seed)?;
        }
        let refused = std::mem::take(&mut runner.refused);
        remove_all(&mut runner)?;
        nothing_in_use(&runner.calls.machine.node)?;
        // Pages of trees keep a region or two.
        let for_pages = match shape.round_ticks {
            0 => 0,
            _ => 2 * u64::from(shape.region_sectors),
        };
        let has_room = 2 * data_sectors >= LARGEST_CALL + for_pages;
        let has_room = has_room && shape.journal_sectors >= JOURNAL_SECTORS_ENOUGH;
        if let Some(op) = refused.first().filter(|_| has_room) {
            again(&mut runner, op).map_err(|text| format!("{op}, with all else gone: {text}"))?;
        }
        Ok((refused.len(), bench.counts))
    }
}

/// What is needed for a refused call is made, and then it.
fn again(runner: &mut Runner, op: &Op) -> Result<(), String> {
    let path = op.path().trim_start_matches("d/").to_owned();
    let needs_file = matches!(
        op,
        Op::Write(..) | Op::Append(..) | Op::Truncate(..) | Op::Punch(..)
    );
    let op = match op {
        Op::Write(_, offset, length) => Op::Write(path.clone(), *offset, *length),
        Op::Append(_, length) => Op::Append(path.clone(), *length),
        Op::Tmpfile(_, length) => Op::Tmpfile(path.clone(), *length),
        // What it copied is gone: as many bytes.
        Op::Copy(..) => Op::Tmpfile(path.clone(), 12_288),
        other => other.clone(),
    };
    if needs_file {
        runner.call(&Op::Create(path), 500)?;
    }
    runner.call(&op, 501)?;
    match runner.refused.is_empty() {
        true => runner.end(),
        false => {
            let space = &runner.calls.machine.node.log.space;
            let (counts, pages) = (space.counts(), space.pages().counts());
            Err(format!("no room, with {counts:?}, {pages:?}"))
        }
    }
}

/// Removes every name, and waits until what that freed can be used again.
pub(super) fn remove_all(runner: &mut Runner) -> Result<(), String> {
    loop {
        let fs = runner.history.now();
        let mut paths = fs.paths();
        let Some((path, number)) = paths.pop() else {
            break;
        };
        let op = match fs.inodes[&number].body {
            Body::Directory(_) => Op::Rmdir(path),
            Body::File(_) | Body::Symlink(_) => Op::Unlink(path),
        };
        runner
            .call(&op, 400)
            .map_err(|text| format!("{op} when it is full: {text}"))?;
        if let Some(op) = runner.refused.first() {
            return Err(format!("{op} finds no room"));
        }
    }
    runner.calls.machine.rest()?;
    runner.calls.machine.wait(FREE_MS);
    runner.calls.machine.rest()
}

pub(super) fn nothing_in_use(node: &Node) -> Result<(), String> {
    let (counts, pages) = (node.log.space.counts(), node.log.space.pages().counts());
    match counts.used + counts.pending + counts.quarantined + counts.granted + pages.taken {
        0 => Ok(()),
        _ => Err(format!("all is removed, and {counts:?}, {pages:?}")),
    }
}

impl super::posix::Fs {
    /// Every path but the root's, those in a directory behind it.
    fn paths(&self) -> Vec<(String, u64)> {
        let mut paths = Vec::new();
        self.visit("", ROOT, &mut |path, number| {
            paths.push((path.to_owned(), number))
        });
        paths
    }
}
