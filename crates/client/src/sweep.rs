//! Sweeps: all that is dirty in a slice is written back for another node, which stops and will not be there to take it.
//!
//! A sweep is one goal (`crate::goals`) for each inode that is dirty when it begins, and then a sync of this node's own journal, which
//! may lie on the other one's disks. What is written meanwhile does not hold it up. Errors are those of the files: the sweep ends.

use types::{NsdId, ShardId};

use crate::batch::Batch;
use crate::env::Env;
use crate::goals::{Goal, Purpose};
use crate::inode::Inode;
use crate::message::{Ask, Body};
use crate::names::Continuation;
use crate::slice::{Effect, Slice};

impl Slice {
    /// Begins a sweep.
    pub(crate) fn sweep(&mut self, env: &Env<'_>, sweep: u64) {
        let dirty = self.dirty_inodes();
        // One more, for the sweep itself: a goal may end as it comes.
        self.sweeps.push((sweep, dirty.len() + 1));
        for ino in dirty {
            match self.inodes.contains_key(&ino) {
                true => self.add_goal(env, ino, Purpose::Sweep(sweep)),
                // It went with one of those before.
                false => self.end_swept(env, sweep),
            }
        }
        self.end_swept(env, sweep);
    }

    /// This sweep is under way here, and each inode that is left of it waits for a node that is away: the owner of its shard, or who
    /// serves an NSD that some of it is on its way to. `is_away` and `is_unreachable` say which.
    pub fn is_sweep_stuck(
        &self,
        sweep: u64,
        is_away: impl Fn(ShardId) -> bool,
        is_unreachable: impl Fn(NsdId) -> bool,
    ) -> bool {
        let is_its = |goal: &Goal| matches!(goal.purpose, Purpose::Sweep(of) if of == sweep);
        let has_run = |batch: &Batch| batch.runs.iter().any(|run| is_unreachable(run.at.nsd));
        let is_stuck =
            |inode: &Inode| is_away(inode.ino.shard()) || inode.batches.iter().any(has_run);
        let inodes = self.inodes.values();
        let mut left = inodes.filter(|inode| inode.goals.iter().any(is_its));
        self.sweeps.iter().any(|(of, _)| *of == sweep) && left.all(|inode| is_stuck(inode))
    }

    /// An inode of a sweep is written back.
    pub(crate) fn end_swept(&mut self, env: &Env<'_>, sweep: u64) {
        let mut sweeps = self.sweeps.iter_mut();
        let (_, left) = sweeps
            .find(|(of, _)| *of == sweep)
            .expect("it ends with its last inode");
        *left -= 1;
        if *left > 0 {
            return;
        }
        self.sweeps.retain(|(of, _)| *of != sweep);
        let own = self.placements[0];
        if env.owner(own) != env.life.node {
            // It owns nothing: what it has done is durable with others, or not answered yet.
            return self.out.push(Effect::Swept(sweep));
        }
        self.call(own, Ask::Sync, Continuation::Swept(sweep));
    }

    /// The journal holds what the sweep has brought; or it cannot, and whoever syncs a file hears of that.
    pub(crate) fn on_sweep_synced(&mut self, sweep: u64, answer: &Body) {
        debug_assert!(matches!(answer, Body::Synced | Body::Refused(_)));
        self.out.push(Effect::Swept(sweep));
    }
}
