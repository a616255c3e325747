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
    /// Older transactions that wait for younger holders: when each began, and the inodes it needs.
    reserved: BTreeMap<TransactionId, (Timestamp, Vec<u64>)>,
}

/// The inode and, if any, the name in it that a step holds.
pub(crate) fn held(step: &Step) -> (InodeId, Option<&Name>) {
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
        | Step::LinkNameless { ino }
        | Step::NewXattr { ino, .. }
        | Step::LinkDrop { ino, .. }
        | Step::DirectoryRemove { ino, .. }
        | Step::DirectoryParentSet { ino, .. }
        | Step::InodeTouch { ino } => (*ino, None),
    }
}

/// When a transaction began, and which: the smaller is the older.
pub(crate) type Age = (Timestamp, TransactionId);

/// What a prepare finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Nothing is in the way.
    Free,
    /// All that is in the way is younger, and does not wait for this one.
    Younger,
    /// Something older is in the way.
    Older,
}

impl Locks {
    /// Who holds the inode, or has it reserved.
    pub(crate) fn inode(&self, ino: InodeId) -> Option<TransactionId> {
        let holder = self.inodes.get(&ino.index()).copied();
        holder.or_else(|| self.reservers(ino.index()).map(|(_, id)| id).next())
    }

    /// A transaction holds the inode.
    pub(crate) fn is_held(&self, ino: InodeId) -> bool {
        self.inodes.contains_key(&ino.index())
    }

    fn reservers(&self, index: u64) -> impl Iterator<Item = Age> + '_ {
        let reserved = self.reserved.iter();
        reserved
            .filter(move |(_, (_, indices))| indices.contains(&index))
            .map(|(id, (now, _))| (*now, *id))
    }

    /// Who holds the name.
    pub(crate) fn name(&self, directory: InodeId, name: &Name) -> Option<TransactionId> {
        if self.names.is_empty() {
            return None;
        }
        self.names.get(&(directory.index(), name.clone())).copied()
    }

    /// Who holds, or has reserved, something that the steps on `shard` need.
    pub(crate) fn conflict(&self, steps: &[Step], shard: ShardId) -> Option<TransactionId> {
        let mine = steps.iter().filter(|s| s.shard() == shard);
        mine.map(held).find_map(|(ino, _)| self.inode(ino))
    }

    /// What is in the way of a transaction's steps on `shard`. The older waits, the younger gives up: so
    /// waits have no cycle, and the oldest always gets through.
    pub(crate) fn find(&self, age: Age, steps: &[Step], shard: ShardId) -> Found {
        let mut found = Found::Free;
        for step in steps.iter().filter(|s| s.shard() == shard) {
            let index = held(step).0.index();
            if let Some(holder) = self.inodes.get(&index) {
                found = Found::Younger;
                if (self.ages[holder], *holder) < age {
                    return Found::Older;
                }
            }
            if self.reservers(index).any(|other| other < age) {
                return Found::Older;
            }
        }
        found
    }

    /// Keeps newcomers from what the steps on `shard` need until the transaction has got it or is dropped:
    /// without this, younger ones that come again and again could hold it at every repeated prepare.
    pub(crate) fn reserve(&mut self, (now, id): Age, steps: &[Step], shard: ShardId) {
        let mine = steps.iter().filter(|s| s.shard() == shard);
        let indices = mine.map(|step| held(step).0.index()).collect();
        self.reserved.insert(id, (now, indices));
    }

    /// Transactions that have something reserved.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = TransactionId> + '_ {
        self.reserved.keys().copied()
    }

    /// Takes what the steps on `shard` need; nobody else may hold any of it.
    pub(crate) fn take(&mut self, (now, id): Age, steps: &[Step], shard: ShardId) {
        self.reserved.remove(&id);
        self.ages.insert(id, now);
        for (ino, name) in steps.iter().filter(|s| s.shard() == shard).map(held) {
            let holder = self.inodes.insert(ino.index(), id);
            assert!(holder.is_none_or(|h| h == id), "locks are exclusive");
            if let Some(name) = name {
                self.names.insert((ino.index(), name.clone()), id);
            }
        }
    }

    /// Gives up all that a transaction holds or has reserved.
    pub(crate) fn release(&mut self, id: TransactionId) {
        self.reserved.remove(&id);
        if self.ages.remove(&id).is_some() {
            self.inodes.retain(|_, holder| *holder != id);
            self.names.retain(|_, holder| *holder != id);
        }
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
