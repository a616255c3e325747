//! Inodes without a name: kept while somebody has them open, or a transaction is about to give them one.
//!
//! Invariants
//! - One that nobody has open is in `spared`, and some transaction has locked it; it goes when no transaction has, unless it has got a name.
//! - `spared` is not in the journal: an owner that begins to serve finds it again (`reap_closed`).

use types::InodeId;
use types::id::NodeLife;

use super::{Changes, Shard};
use crate::Mutation;
use crate::transaction::TransactionId;

impl Shard {
    /// Inodes without a name that are kept for those who have them open, ascending.
    pub fn orphans(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.orphans.iter().map(|i| InodeId::new(self.id, *i))
    }

    /// The inode has no name, and is kept for those who have it open.
    pub(crate) fn is_orphan(&self, ino: InodeId) -> bool {
        self.orphans.contains(&ino.index())
    }

    /// A node said, with a release or 'kept open', whether it has an inode open; when the last open of an
    /// orphan goes, the inode goes. Nothing changes when it was known or the inode is gone.
    pub fn note_open(&mut self, ino: InodeId, life: NodeLife, is_open: bool) -> Changes {
        let mut changes = Changes::default();
        let index = ino.index();
        if !self.exists(ino) || self.is_open_at(ino, life) == is_open {
            return changes;
        }
        let mutation = Mutation::OpenPut {
            index,
            life,
            is_open,
        };
        self.perform(mutation, &mut changes);
        self.reap(index, &mut changes);
        changes
    }

    /// A node is dead: what it had open is closed, its answers are dropped.
    pub fn on_node_lost(&mut self, life: NodeLife) -> Changes {
        let mut changes = Changes::default();
        let had_open: Vec<u64> = self.opens_of(life).collect();
        self.refused.retain(|(l, _), _| *l != life);
        let has_answer = self.answers.keys().any(|(l, _)| *l == life);
        if had_open.is_empty() && !has_answer {
            return changes;
        }
        self.perform(Mutation::LifeRemove { life }, &mut changes);
        for index in had_open {
            self.reap(index, &mut changes);
        }
        changes
    }

    /// The inode goes when it has no name and nobody has it open.
    pub(crate) fn reap(&mut self, index: u64, changes: &mut Changes) {
        let ino = InodeId::new(self.id, index);
        if !self.orphans.contains(&index) || self.is_open(ino) {
            return;
        }
        if self.is_in_transaction(ino) {
            self.spared.insert(index);
        } else {
            self.perform(Mutation::InodeRemove { index }, changes);
        }
    }

    /// A transaction lets go of what it has locked or reserved, and has changed nothing.
    pub(crate) fn let_go(&mut self, id: TransactionId, changes: &mut Changes) {
        self.locks.release(id);
        self.reap_spared(changes);
    }

    /// A transaction has ended: what it kept, and gave no name, goes.
    pub(crate) fn reap_spared(&mut self, changes: &mut Changes) {
        for index in std::mem::take(&mut self.spared) {
            self.reap(index, changes);
        }
    }

    /// As the owner begins to serve: what is without a name and that nobody has open goes. Its last life had kept it for a transaction.
    pub fn reap_closed(&mut self) -> Changes {
        let mut changes = Changes::default();
        for index in self.orphans.clone() {
            self.reap(index, &mut changes);
        }
        changes
    }
}
