//! Sectors that work nobody waits for has taken: who finds none hears so when these are back, or are not for long.
//!
//! Invariant: what is noted was taken, and neither committed nor given back nor burnt.

use std::collections::BTreeMap;

use data::SectorSet;
use types::{Duration, Instant, NodeId, Run};

/// Who finds no sectors waits so long for those: a disk that does not answer keeps nobody from hearing that there are none.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who asks so long after somebody began to wait is another one.
const FORGET: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spare {
    taken: BTreeMap<NodeId, SectorSet>,
    /// Since when somebody waits for some of an owner: once for all rounds of recalls and questions that follow one another.
    awaited: BTreeMap<NodeId, Instant>,
}

impl Spare {
    /// Taken, to be written to.
    pub(super) fn take(&mut self, owner: NodeId, run: Run) {
        self.taken.entry(owner).or_default().insert(run);
    }

    /// Of these runs none is taken any more.
    pub(super) fn end(&mut self, owner: NodeId, runs: &[Run]) {
        let Some(taken) = self.taken.get_mut(&owner) else {
            return;
        };
        for run in runs {
            let found = taken.intersection(*run);
            found.iter().for_each(|part| taken.remove(*part));
        }
        if taken.is_empty() {
            self.taken.remove(&owner);
        }
    }

    /// An owner has fewer sectors than somebody wants. True: he is to ask again, for more will be there soon: what is taken, or what is on
    /// its way back (`has_spent`).
    pub(super) fn is_worth_waiting(
        &mut self,
        now: Instant,
        owner: NodeId,
        has_spent: bool,
    ) -> bool {
        if !self.taken.contains_key(&owner) && !has_spent {
            self.end_wait(owner);
            return false;
        }
        let since = self.awaited.entry(owner).or_insert(now);
        if now.since(*since) > FORGET {
            *since = now;
        }
        now.since(*since) <= PATIENCE
    }

    /// There are enough.
    pub(super) fn end_wait(&mut self, owner: NodeId) {
        self.awaited.remove(&owner);
    }

    /// The owner wants what lies unused: true, it is answered when what is taken is back.
    pub(super) fn holds_up(&mut self, now: Instant, owner: NodeId) -> bool {
        self.taken.contains_key(&owner) && self.is_worth_waiting(now, owner, false)
    }
}
