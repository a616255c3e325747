//! Sectors that are on their way back: taken by work that nobody waits for, or set aside for bytes that go into metadata and come back
//! with their Commits. Who finds none hears so when these are back, or are not for long.
//!
//! Invariant: what is noted as taken was taken, and neither committed nor given back nor burnt.

use std::collections::{BTreeMap, BTreeSet};

use data::SectorSet;
use types::{Duration, Instant, NodeId, Run};

/// Who finds no sectors waits so long for those: a disk that does not answer keeps nobody from hearing that there are none.
const PATIENCE: Duration = Duration::from_secs(2);

/// As long as an operation waits for room in the journal: for those that come back with Commits, which may wait for checkpoints.
const COMMIT_PATIENCE: Duration = Duration::from_secs(20);

/// Who asks so long after somebody began to wait is another one.
const FORGET: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Spare {
    taken: BTreeMap<NodeId, SectorSet>,
    /// Since when somebody waits for some of an owner: once for all rounds of recalls and questions that follow one another.
    awaited: BTreeMap<NodeId, Instant>,
    /// Set aside for bytes that go into metadata, as it was told when the owner had too few last.
    returning: BTreeMap<NodeId, u64>,
    /// Since when a recall is not answered because of those.
    held_up: BTreeMap<NodeId, Instant>,
    /// Some have come back since somebody who waits was told so last.
    has_returned: BTreeSet<NodeId>,
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

    /// An owner has too few: what comes back is told anew (`note_returning`).
    pub(super) fn begin_telling(&mut self, owner: NodeId) {
        self.returning.remove(&owner);
    }

    /// So many will come back with Commits.
    pub(super) fn note_returning(&mut self, owner: NodeId, sectors: u64) {
        if sectors > 0 {
            *self.returning.entry(owner).or_default() += sectors;
        }
    }

    /// Some have come back.
    pub(super) fn note_return(&mut self, owner: NodeId) {
        if self.returning.contains_key(&owner) {
            self.has_returned.insert(owner);
        }
    }

    /// An owner has fewer sectors than somebody wants, who has all but `missing` of them in hand. True: he is to ask again, for more will be
    /// there soon: what is taken, what is on its way to the owner (`has_spent`), or as many as he misses of those that are set aside. As long
    /// as some of these come back he is patient: each write has a bound of its own (`client::pressure`).
    pub(super) fn is_worth_waiting(
        &mut self,
        now: Instant,
        owner: NodeId,
        has_spent: bool,
        missing: u64,
    ) -> bool {
        let returning = self.returning.get(&owner);
        let is_returning = returning.is_some_and(|sectors| *sectors >= missing.max(1));
        if !self.taken.contains_key(&owner) && !has_spent && !is_returning {
            self.end_wait(owner);
            return false;
        }
        let has_returned = self.has_returned.remove(&owner) && is_returning;
        let since = self.awaited.entry(owner).or_insert(now);
        if now.since(*since) > FORGET || has_returned {
            *since = now;
        }
        let patience = match is_returning {
            true => COMMIT_PATIENCE,
            false => PATIENCE,
        };
        now.since(*since) <= patience
    }

    /// There are enough.
    pub(super) fn end_wait(&mut self, owner: NodeId) {
        self.awaited.remove(&owner);
        self.returning.remove(&owner);
        self.has_returned.remove(&owner);
    }

    /// The owner wants what lies unused: true, it is answered when something is back. `has_need`: this node needs some itself, and hears
    /// from the owner whether there are any.
    pub(super) fn holds_up(&mut self, now: Instant, owner: NodeId, has_need: bool) -> bool {
        if self.taken.contains_key(&owner) {
            return self.is_worth_waiting(now, owner, false, u64::MAX);
        }
        let is_returning = self.returning.contains_key(&owner);
        let since = *self.held_up.entry(owner).or_insert(now);
        is_returning && !has_need && now.since(since) <= PATIENCE
    }

    /// A recall is answered, or there is none.
    pub(super) fn end_holding(&mut self, owner: NodeId) {
        self.held_up.remove(&owner);
    }
}
