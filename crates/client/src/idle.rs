//! Tokens that are not in use, given back when their owner's table is nearly full (`token::Reclaim`).
//!
//! Invariants
//! - What is open, dirty, or on its way anywhere keeps its tokens: nothing waits for a flush here.
//! - All inodes are looked at once for each message of an owner; then some are given up at each tick, so that
//!   requests are served between them.
//!
//! What this deliberately does not do: tell the oldest. What the kernel has forgotten goes first, then files, then
//! directories.

use types::{InodeId, ShardId};

use crate::env::Env;
use crate::inode::Inode;
use crate::slice::{Input, SLICE_COUNT, Slice};

/// Inodes whose tokens are given up at one tick.
const PER_TICK: usize = 64;

/// An owner wants the tokens of `count` inodes of its shard back: what each slice is told.
pub fn reclaims(shard: ShardId, count: u64) -> impl Iterator<Item = (usize, Input)> {
    let each = count.div_ceil(SLICE_COUNT as u64);
    (0..SLICE_COUNT).map(move |slice| (slice, Input::Reclaim(shard, each)))
}

impl Inode {
    /// Nobody uses it now.
    pub(crate) fn is_unused(&self) -> bool {
        let is_used = self.open_count > 0 || self.is_opening() || !self.parked.is_empty();
        let is_moving = self.is_acquiring || self.is_revoking() || self.closing_count > 0;
        let has_data = self.is_dirty() || !self.loads.is_empty();
        !(is_used || is_moving || has_data)
    }

    /// It has tokens and nobody uses them now.
    fn is_idle(&self) -> bool {
        !self.holder.held().is_empty() && self.is_unused()
    }
}

impl Slice {
    /// Something of an inode has ended: where nobody uses it now, it takes no more memory than it needs.
    pub(crate) fn rest(&mut self, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino);
        if let Some(inode) = inode.filter(|inode| inode.is_unused()) {
            inode.compact();
        }
    }

    /// The owner of `shard` wants the tokens of so many inodes back.
    pub(crate) fn reclaim(&mut self, env: &Env<'_>, shard: ShardId, count: u64) {
        let of_shard = self.inodes.iter().filter(|(ino, _)| ino.shard() == shard);
        let mut idle: Vec<_> = of_shard
            .filter(|(_, inode)| inode.is_idle())
            .map(|(ino, inode)| {
                let is_directory = inode.directory_mode().is_some();
                (inode.lookup_count > 0, is_directory, *ino)
            })
            .collect();
        idle.sort_unstable();
        idle.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        self.idle.retain(|ino| ino.shard() != shard);
        self.idle.extend(idle.into_iter().map(|(_, _, ino)| ino));
        self.give_up_idle(env);
    }

    /// Gives some of them up, if they are still idle.
    pub(crate) fn give_up_idle(&mut self, env: &Env<'_>) {
        if self.is_lapsed {
            // The owner may be a new one when the lease is back, and asks again.
            return self.idle.clear();
        }
        for _ in 0..PER_TICK {
            let Some(ino) = self.idle.pop_front() else {
                return;
            };
            let inode = self.inodes.get_mut(&ino);
            let plan = inode
                .filter(|inode| inode.is_idle())
                .and_then(|inode| inode.holder.give_up(ino));
            if let Some(plan) = plan {
                self.begin_release(env, ino, plan);
            }
        }
    }
}
