//! What transactions under way hold: names and inodes of one shard.
//!
//! Invariants
//! - A name or inode is held by one transaction at a time.
//! - Locks follow from the steps of prepared and active transactions; they are never journaled themselves.
//!
//! A step on a name also holds its directory: the directory's attributes are about to change, and an
//! answer that shows them would be cached. So a directory takes part in one two-owner operation at a time,
//! and only lookups of its other names go on meanwhile.

use std::collections::BTreeMap;

use types::{InodeId, Name, ShardId, Timestamp};

use crate::step::Step;
use crate::transaction::TransactionId;

/// The locks of one shard.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    inodes: BTreeMap<u64, TransactionId>,
    names: BTreeMap<(u64, Name), TransactionId>,
    /// When each holder began.
    ages: BTreeMap<TransactionId, Timestamp>,
}

/// The inode and, if any, the name in it that a step holds.
fn held(step: &Step) -> (InodeId, Option<&Name>) {
    match step {
        Step::EntryInsert {
            directory, name, ..
        }
        | Step::EntryRemove {
            directory, name, ..
        }
        | Step::EntryReplace {
            directory, name, ..
        } => (*directory, Some(name)),
        Step::DirectoryTouch { directory, .. } => (*directory, None),
        Step::InodeCreate { record } => (record.attr.ino, None),
        Step::LinkAdd { ino, .. }
        | Step::LinkDrop { ino, .. }
        | Step::DirectoryRemove { ino, .. }
        | Step::DirectoryParentSet { ino, .. }
        | Step::InodeTouch { ino } => (*ino, None),
    }
}

impl Locks {
    /// Who holds the inode.
    pub(crate) fn inode(&self, ino: InodeId) -> Option<TransactionId> {
        self.inodes.get(&ino.index()).copied()
    }

    /// Who holds the name.
    pub(crate) fn name(&self, directory: InodeId, name: &Name) -> Option<TransactionId> {
        if self.names.is_empty() {
            return None;
        }
        self.names.get(&(directory.index(), name.clone())).copied()
    }

    /// Who else holds something that the steps on `shard` need.
    pub(crate) fn conflict(&self, steps: &[Step], shard: ShardId) -> Option<TransactionId> {
        let mine = steps.iter().filter(|s| s.shard() == shard);
        mine.map(held).find_map(|(ino, _)| self.inode(ino))
    }

    /// A transaction that began `now` is older than the holder of everything that its steps on `shard`
    /// need and others hold. The older waits, the younger gives up: so waits have no cycle, and the
    /// oldest always gets through.
    pub(crate) fn is_older(
        &self,
        (now, id): (Timestamp, TransactionId),
        steps: &[Step],
        shard: ShardId,
    ) -> bool {
        let mine = steps.iter().filter(|s| s.shard() == shard);
        let mut holders = mine.filter_map(|step| self.inode(held(step).0));
        holders.all(|holder| (now, id) < (self.ages[&holder], holder))
    }

    /// Takes what the steps on `shard` need; nobody else may hold any of it.
    pub(crate) fn take(
        &mut self,
        (now, id): (Timestamp, TransactionId),
        steps: &[Step],
        shard: ShardId,
    ) {
        self.ages.insert(id, now);
        for (ino, name) in steps.iter().filter(|s| s.shard() == shard).map(held) {
            let holder = self.inodes.insert(ino.index(), id);
            assert!(holder.is_none_or(|h| h == id), "locks are exclusive");
            if let Some(name) = name {
                self.names.insert((ino.index(), name.clone()), id);
            }
        }
    }

    /// Gives up all that a transaction holds.
    pub(crate) fn release(&mut self, id: TransactionId) {
        self.inodes.retain(|_, holder| *holder != id);
        self.names.retain(|_, holder| *holder != id);
        self.ages.remove(&id);
    }

    /// The transaction is known here.
    pub(crate) fn holds(&self, id: TransactionId) -> bool {
        self.ages.contains_key(&id)
    }

    /// Asserts that a held name's directory is held by the same transaction, and every holder has an age.
    pub(crate) fn check(&self) {
        for id in self.inodes.values() {
            assert!(self.ages.contains_key(id));
        }
        for ((index, _), id) in &self.names {
            assert_eq!(self.inodes.get(index), Some(id));
        }
    }
}
