//! The room of a shard's table of locks, and who has how much of it.
//!
//! A piece takes one place, and a wait. Whoever fills the table must leave others room: those who have little, and all who give something up.
//!
//! Invariants
//! - What is granted takes no more than `count_max` places; what one node has on one inode, a quarter of them.
//! - The shares add up: of nodes on inodes, and of lock owners, to all that there is.

use std::collections::BTreeMap;

use types::id::NodeLife;
use types::{InodeId, limits};

use super::Holder;

/// What places are needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// A lock, or a wait for one.
    Lock,
    /// A lock in the place of a wait for it, which is over.
    Claimed,
    /// What is left of a lock of which a part is given up.
    Rest,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Room {
    count: usize,
    count_max: usize,
    of_node: BTreeMap<(InodeId, NodeLife), usize>,
    of_owner: BTreeMap<Holder, usize>,
}

impl Room {
    pub(super) fn new(count_max: usize) -> Self {
        Self {
            count_max,
            ..Self::default()
        }
    }

    /// Places that are taken.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Places that a node has on an inode.
    pub(super) fn of_node(&self, ino: InodeId, life: NodeLife) -> usize {
        self.of_node.get(&(ino, life)).copied().unwrap_or(0)
    }

    /// Places that a lock owner has in the shard.
    pub(super) fn of_owner(&self, of: Holder) -> usize {
        self.of_owner.get(&of).copied().unwrap_or(0)
    }

    /// This lock owner can have so many more places.
    pub(super) fn has(&self, (ino, of): (InodeId, Holder), need: Need, more: usize) -> bool {
        let has_few = self.of_owner(of) + more <= limits::LOCKS_OF_OWNER_FEW;
        let sixteenths = match (has_few, need) {
            (false, Need::Lock | Need::Claimed) => 12,
            (false, Need::Rest) => 14,
            (true, Need::Lock | Need::Claimed) => 15,
            (true, Need::Rest) => 16,
        };
        let more = more - usize::from(more > 0 && need == Need::Claimed);
        let fits = |count: usize, max: usize| count + more <= max * sixteenths / 16;
        let of_node = self.of_node(ino, of.0);
        more == 0 || fits(self.count, self.count_max) && fits(of_node, self.count_max / 4)
    }

    /// This lock owner has so many places, where it had so many before.
    pub(super) fn change(&mut self, (ino, of): (InodeId, Holder), before: usize, after: usize) {
        self.count = self.count - before + after;
        share(&mut self.of_node, (ino, of.0), before, after);
        share(&mut self.of_owner, of, before, after);
    }

    /// Asserts the invariants, of the places that each lock owner has on each inode.
    pub(super) fn check(&self, places: impl IntoIterator<Item = (InodeId, Holder, usize)>) {
        let mut sums = Self::new(self.count_max);
        for (ino, of, count) in places {
            sums.change((ino, of), 0, count);
        }
        assert_eq!(sums.count, self.count);
        assert_eq!(sums.of_node, self.of_node);
        assert_eq!(sums.of_owner, self.of_owner);
    }
}

fn share<K: Ord + Copy>(shares: &mut BTreeMap<K, usize>, key: K, before: usize, after: usize) {
    let own = shares.get(&key).copied().unwrap_or(0);
    match own - before + after {
        0 => shares.remove(&key),
        own => shares.insert(key, own),
    };
}
