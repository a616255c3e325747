//! The n-th time that something asks for room it finds none: in the owner (`node::Refusal`), or in this node's hands.
//!
//! What asks is known from a run in which nothing is refused: each *step* of the driver that may ask (work of an owner, what
//! concerns regions, a step of the keeper of checkpoints) is looked at before and after. The same run again, up to that step
//! the same, is refused there.

use std::collections::BTreeSet;

use node::{OwnerLog, Refusal};

use super::Node;

/// Steps in a row in which pieces are refused.
const BURST: u64 = 40;

/// What is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Room {
    /// Sectors in this node's hands, which then asks its owner for more.
    Hands,
    /// Room of an owner.
    Owner(Refusal),
}

/// What is refused, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ration {
    /// What.
    pub room: Room,
    /// In this step.
    pub step: u64,
    /// In all steps after it, too.
    pub goes_on: bool,
}

/// Steps of a run in which something was asked for, and what is refused in it.
#[derive(Debug, Default)]
pub struct Rations {
    ration: Option<Ration>,
    steps: u64,
    hand_steps: u64,
    asked: BTreeSet<(Room, u64)>,
    refused: u64,
    /// Pieces are refused in bursts, and nothing is noted.
    has_bursts: bool,
}

/// What an owner has handed out.
#[derive(PartialEq, Eq)]
struct Holdings {
    granted: u64,
    regions: u64,
    page_regions: u64,
    pages: u64,
    records: u64,
}

impl Holdings {
    fn of(log: &OwnerLog) -> Self {
        let (counts, pages) = (log.space.counts(), log.space.pages().counts());
        Self {
            granted: counts.granted + log.space.held_back(),
            regions: counts.total + pages.total,
            page_regions: pages.total,
            pages: pages.taken,
            records: log.journal.last_lsn().0,
        }
    }

    /// What was handed out between.
    fn asked(&self, after: &Self) -> impl Iterator<Item = Room> {
        let has_regions = after.regions > self.regions || after.page_regions > self.page_regions;
        let has_records = after.records > self.records;
        let all = [
            (Refusal::Sectors, after.granted > self.granted),
            (Refusal::Regions, has_regions),
            (Refusal::Pages, after.pages > self.pages),
            (Refusal::Records, has_records),
            (Refusal::RecordsForNow, has_records),
            (Refusal::Pieces, has_records),
        ];
        let asked = all.into_iter().filter(|(_, is_asked)| *is_asked);
        asked.map(|(refusal, _)| Room::Owner(refusal))
    }
}

impl Ration {
    fn refuses(self, step: u64) -> bool {
        step == self.step || (self.goes_on && step > self.step)
    }
}

impl Rations {
    /// Nothing is refused, or this.
    pub fn new(ration: Option<Ration>) -> Self {
        Self {
            ration,
            ..Self::default()
        }
    }

    /// Pieces are refused for some steps in a row, now and then.
    pub fn of_pieces() -> Self {
        Self {
            has_bursts: true,
            ..Self::default()
        }
    }

    /// Steps that asked for room, with what they asked for.
    pub fn asked(&self) -> impl Iterator<Item = (Room, u64)> + '_ {
        self.asked.iter().copied()
    }

    /// Steps in which something was refused, whether they asked or not.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn begin(&mut self) -> Option<Refusal> {
        self.steps += 1;
        if self.has_bursts {
            let refuses = self.steps / BURST % 6 == 5;
            self.refused += u64::from(refuses);
            return refuses.then_some(Refusal::Pieces);
        }
        let ration = self.ration.filter(|ration| ration.refuses(self.steps))?;
        match ration.room {
            Room::Hands => None,
            Room::Owner(refusal) => {
                self.refused += 1;
                Some(refusal)
            }
        }
    }

    /// Sectors in hand are asked for. True: they are not there.
    pub fn refuses_hands(&mut self) -> bool {
        if self.has_bursts {
            return false;
        }
        self.hand_steps += 1;
        self.asked.insert((Room::Hands, self.hand_steps));
        let is_refused =
            |ration: &Ration| ration.room == Room::Hands && ration.refuses(self.hand_steps);
        let is_refused = self.ration.as_ref().is_some_and(is_refused);
        self.refused += u64::from(is_refused);
        is_refused
    }
}

impl Node {
    /// From now on room is refused as this says.
    pub fn ration(&mut self, rations: Option<Rations>) {
        self.hands.ration(rations);
    }

    /// Commits of this life that were refused for their pieces.
    pub fn refused_count(&self) -> u64 {
        let slices = self.slices.iter();
        slices.map(|slice| slice.gauges().refused_count).sum()
    }

    /// What was asked for and refused until now.
    pub fn end_rations(&mut self) -> Option<Rations> {
        self.hands.end_rations()
    }

    /// A step that may ask its owner for room.
    pub(super) fn rationed<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        if !self.hands.is_rationed() {
            return act(self);
        }
        let before = Holdings::of(&self.log);
        let refusal = self.hands.with_rations(Rations::begin).flatten();
        self.log.refuse(refusal);
        let result = act(self);
        self.log.refuse(None);
        let after = Holdings::of(&self.log);
        self.hands.with_rations(|rations| {
            let step = rations.steps;
            if !rations.has_bursts {
                let asked = before.asked(&after).map(|room| (room, step));
                rations.asked.extend(asked);
            }
        });
        result
    }
}
