//! Who waits for locks of one inode, in the order of arrival, and behind whom.
//!
//! Invariants
//! - A wait that is offered nothing stands behind one lock owner that is in its way. As long as that one has what he has, and has been offered, nothing
//!   that others do lets it go on: so only when he has less are those looked at that stand behind him.

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{ByteRange, Instant, Lock};

use super::Holder;
use super::taken::Taken;

/// A request that waits, or the lock that it is offered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) from: NodeLife,
    pub(super) number: u64,
    pub(super) lock: Lock,
    /// None: it is offered the lock.
    pub(super) behind: Option<Holder>,
    pub(super) since: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By their arrival.
    waits: BTreeMap<u64, Wait>,
    /// When which one has come.
    arrivals: BTreeMap<(NodeLife, u64), u64>,
    behind: BTreeMap<Holder, BTreeSet<u64>>,
    /// Those that have come.
    count: u64,
}

impl Wait {
    /// Who waits.
    pub(super) const fn holder(&self) -> Holder {
        (self.from, self.lock.owner)
    }

    /// What it is offered.
    pub(super) const fn offer(&self) -> Taken {
        Taken {
            life: self.from,
            lock: self.lock,
            wait: Some(self.number),
        }
    }
}

impl Queue {
    /// Nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// All, in the order of arrival.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.waits.values()
    }

    /// A node's wait.
    pub(super) fn get(&self, from: NodeLife, number: u64) -> Option<&Wait> {
        let arrival = self.arrivals.get(&(from, number))?;
        self.waits.get(arrival)
    }

    /// The one that came then.
    pub(super) fn at(&self, arrival: u64) -> Wait {
        self.waits[&arrival]
    }

    /// One more.
    pub(super) fn push(&mut self, wait: Wait) {
        let arrival = self.count;
        self.count += 1;
        self.arrivals.insert((wait.from, wait.number), arrival);
        self.waits.insert(arrival, wait);
        self.stand(arrival, wait.behind);
    }

    /// One is over.
    pub(super) fn remove(&mut self, from: NodeLife, number: u64) -> Option<Wait> {
        let arrival = self.arrivals.remove(&(from, number))?;
        self.leave(arrival);
        self.waits.remove(&arrival)
    }

    /// It stands behind this one now, or behind nobody.
    pub(super) fn stand(&mut self, arrival: u64, behind: Option<Holder>) {
        self.leave(arrival);
        let wait = self.waits.get_mut(&arrival).expect("it waits");
        wait.behind = behind;
        if let Some(holder) = behind {
            self.behind.entry(holder).or_default().insert(arrival);
        }
    }

    fn leave(&mut self, arrival: u64) {
        if let Some(holder) = self.waits[&arrival].behind
            && let Some(standing) = self.behind.get_mut(&holder)
        {
            standing.remove(&arrival);
            if standing.is_empty() {
                self.behind.remove(&holder);
            }
        }
    }

    /// Who stands behind this one for some of these bytes, in the order of arrival.
    pub(super) fn behind(&self, holder: Holder, range: ByteRange) -> Vec<u64> {
        let standing = self.behind.get(&holder).into_iter().flatten().copied();
        standing
            .filter(|arrival| self.waits[arrival].lock.range.overlaps(&range))
            .collect()
    }

    /// Who stands behind lock owners of this life, in the order of arrival.
    pub(super) fn behind_life(&self, life: NodeLife) -> Vec<u64> {
        let is_its = |wait: &Wait| wait.behind.is_some_and(|(of, _)| of == life);
        let standing = self.waits.iter().filter(|(_, wait)| is_its(wait));
        standing.map(|(arrival, _)| *arrival).collect()
    }

    /// Asserts that it agrees with itself.
    pub(super) fn check(&self) {
        assert_eq!(self.arrivals.len(), self.waits.len());
        let mut standing = 0;
        for (arrival, wait) in &self.waits {
            assert_eq!(self.arrivals[&(wait.from, wait.number)], *arrival);
            if let Some(holder) = &wait.behind {
                assert!(self.behind[holder].contains(arrival));
                standing += 1;
            }
        }
        assert_eq!(
            self.behind.values().map(BTreeSet::len).sum::<usize>(),
            standing
        );
    }
}
