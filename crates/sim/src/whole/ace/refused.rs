//! Each question for room is refused once, one after the other: what the n-th one is for finds none. Then the same with all
//! questions from the n-th on.
//!
//! - Whoever is refused only once, and may ask again, does: no call fails. What may be refused at once (`Refusal::Records`)
//!   answers ENOSPC and has had no effect.
//! - Where refusals go on, calls that take nothing of what is refused succeed, among them all that free something, and no
//!   fsync fails: what was acknowledged needs nothing more.
//! - After a loss of power all that was made durable is there.
//! - What is removed, while it is still refused, comes back to the last sector; then calls find room again.

use std::collections::BTreeSet;

use node::Refusal;

use super::super::node::{Ration, Rations, Room};
use super::ops::{Op, Sequence};
use super::runner::Runner;
use super::scarce::{nothing_in_use, remove_all};
use super::{Bench, seed_of};

/// What refusals showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RefusalCounts {
    /// Questions for room, by what is asked for, each refused in a run of its own.
    pub questions: [u64; 7],
    /// Runs.
    pub runs: u64,
    /// Calls that answered ENOSPC.
    pub calls: u64,
}

/// What is asked for, in the order of the counts.
pub const ROOMS: [Room; 7] = [
    Room::Hands,
    Room::Owner(Refusal::Sectors),
    Room::Owner(Refusal::Regions),
    Room::Owner(Refusal::Pages),
    Room::Owner(Refusal::Records),
    Room::Owner(Refusal::RecordsForNow),
    Room::Owner(Refusal::Pieces),
];

impl Bench {
    /// A sequence, with each question for room refused. Power is lost at every event of the disks, or only at the end.
    ///
    /// # Errors
    /// What is wrong, with what was refused.
    pub fn refused(&mut self, sequence: &Sequence, cuts: bool) -> Result<RefusalCounts, String> {
        let mut counts = RefusalCounts::default();
        for (room, step) in self.questions(sequence)? {
            let index = ROOMS.iter().position(|r| *r == room);
            counts.questions[index.expect("all are there")] += 1;
            for goes_on in [false, true] {
                let ration = Ration {
                    room,
                    step,
                    goes_on,
                };
                // Who asks again and again is answered one day: these are about a moment.
                let is_momentary = matches!(
                    room,
                    Room::Hands | Room::Owner(Refusal::RecordsForNow | Refusal::Pieces)
                );
                if goes_on && is_momentary {
                    continue;
                }
                let calls = self.refused_once(sequence, ration, cuts);
                counts.calls += calls.map_err(|text| format!("{ration:?}: {text}"))?;
                counts.runs += 1;
            }
        }
        Ok(counts)
    }

    /// What is asked for in a run in which nothing is refused.
    fn questions(&self, sequence: &Sequence) -> Result<BTreeSet<(Room, u64)>, String> {
        let mut runner = self.runner(false)?;
        runner.calls.machine.node.ration(Some(Rations::new(None)));
        runner.make_calls(sequence, seed_of(sequence))?;
        runner.end()?;
        let rations = runner.calls.machine.node.end_rations();
        Ok(rations.expect("put there above").asked().collect())
    }

    fn refused_once(
        &mut self,
        sequence: &Sequence,
        ration: Ration,
        cuts: bool,
    ) -> Result<u64, String> {
        let seed = seed_of(sequence);
        let mut runner = self.runner(true)?;
        let rations = Rations::new(Some(ration));
        runner.calls.machine.node.ration(Some(rations));
        runner.make_calls(sequence, seed)?;
        runner.end()?;
        let refused = std::mem::take(&mut runner.refused);
        let cuts_of_nothing = std::mem::take(&mut runner.cuts_of_nothing);
        for (at, op) in refused.iter().enumerate() {
            if !may_fail(ration, op, frees(op) && !cuts_of_nothing.contains(&at)) {
                return Err(format!("{op} answers ENOSPC"));
            }
        }
        let run = runner.run();
        match cuts {
            true => self.cut_everywhere(&run, seed)?,
            false => self.cut_at_end(&run, seed)?,
        }
        remove_all(&mut runner)?;
        let rations = runner.calls.machine.node.end_rations();
        let rations = rations.expect("put there above");
        if rations.refused() == 0 {
            return Err("nothing was refused: the run is not the same".to_owned());
        }
        nothing_in_use(&runner.calls.machine.node)?;
        finds_room(&mut runner)?;
        Ok(refused.len() as u64)
    }
}

/// The call may hear that there is no room.
fn may_fail(ration: Ration, op: &Op, frees: bool) -> bool {
    match (ration.room, ration.goes_on) {
        (
            Room::Hands | Room::Owner(Refusal::Pages | Refusal::RecordsForNow | Refusal::Pieces),
            _,
        )
        | (Room::Owner(Refusal::Sectors | Refusal::Regions), false) => false,
        (Room::Owner(Refusal::Sectors | Refusal::Regions), true) => takes_sectors(op),
        (Room::Owner(Refusal::Records), _) => !frees,
    }
}

fn takes_sectors(op: &Op) -> bool {
    matches!(
        op,
        Op::Write(..)
            | Op::Append(..)
            | Op::Allocate(..)
            | Op::Promise(..)
            | Op::Tmpfile(..)
            | Op::Copy(..)
    )
}

fn frees(op: &Op) -> bool {
    matches!(op, Op::Unlink(_) | Op::Rmdir(_) | Op::Truncate(_, 0))
}

/// Nothing is refused any more: there is room for everything.
fn finds_room(runner: &mut Runner) -> Result<(), String> {
    let op = Op::Tmpfile("x".to_owned(), 12_288);
    runner.call(&op, 600)?;
    match runner.refused.is_empty() {
        true => runner.end(),
        false => Err(format!("{op}: no room when nothing is refused any more")),
    }
}
