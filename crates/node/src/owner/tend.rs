//! Splitting and joining the parts of directories: work of an owner's own, after what made it due has been answered.

use client::message::Ask;
use meta::parts::{self, Ahead, Tended};
use types::{InodeId, NodeLife};

use super::{Locked, Need, OwnerEffect, OwnerEnv, OwnerLog, OwnerSlice, Work};

/// Bytes of the record of one step, at the most: of 640 entries, each put and removed, with names of 255 bytes.
const RECORD_SIZE_MAX: usize = 256 << 10;

impl OwnerSlice {
    /// See `Locked::begin_tending`.
    pub(super) fn begin_tending(&mut self, out: &mut Vec<OwnerEffect>) {
        out.extend(self.shard.next_to_tend().map(OwnerEffect::Tend));
    }

    /// A step waits already that begins at this holder.
    fn is_to_be_tended(&self, holder: InodeId) -> bool {
        let mut waiting = self.waiting.iter().map(|(_, work)| work);
        waiting.any(|work| matches!(work, Work::Tend { holder: other, .. } if *other == holder))
    }
}

impl Locked<'_> {
    /// Shards that the work is going to need, as far as the locked ones tell: to be locked, and asked about again, before it is run
    /// and before the journal is locked for it.
    pub fn ahead(&mut self, env: &OwnerEnv<'_>, work: &Work) -> Ahead {
        let Work::Question(question) = work else {
            return Ahead::new();
        };
        match &question.ask {
            Ask::Op { op, .. } => parts::ahead(&self.view(env), op),
            Ask::Acquire { .. } | Ask::Space(_) | Ask::Sync | Ask::Lock { .. } => Ahead::new(),
        }
    }

    /// All shards of this owner have been replayed, and are locked: what is prepared keeps what it needs in memory. Before anything
    /// may leave it.
    pub fn hold_prepared(&mut self, env: &OwnerEnv<'_>) {
        parts::hold_prepared(&mut self.view(env));
    }

    /// What changes have made due is done beside their answers, one step of each shard. What is left, and what the step itself
    /// makes due, waits for the next change or tick: a holder of a million names is no reason to keep anybody waiting.
    pub(super) fn begin_tending(&mut self, out: &mut Vec<OwnerEffect>) {
        for slice in &mut self.slices {
            slice.begin_tending(out);
        }
    }

    /// One step. Where the journal has no room, it is left until the next change says again that it is due.
    pub(super) fn tend(
        &mut self,
        env: &OwnerEnv<'_>,
        log: Option<&mut OwnerLog>,
        work: Work,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        let Work::Tend {
            holder,
            is_unreadable: false,
        } = work
        else {
            return Ok(());
        };
        let log = log.expect("what may change something has the journal");
        if !log.has_room_for_tending(RECORD_SIZE_MAX) {
            return Ok(());
        }
        let tended = parts::tend(&mut self.view(env), holder);
        match tended {
            Tended::NeedShards(shards) => Err(Need::Shards(shards, work)),
            Tended::NeedKeys(inodes) => Err(Need::Keys(inodes, work)),
            Tended::Wait(directory) => {
                let home = directory.shard();
                let slice = self.slice(home).expect("the step was planned on it");
                if !slice.is_to_be_tended(holder) {
                    self.wait(home, "a transaction", work);
                }
                Ok(())
            }
            Tended::Done(changes) if changes.mutations.is_empty() => Ok(()),
            Tended::Done(changes) => {
                let lsn = log.append(NodeLife::default(), &changes.mutations, &[], &[]);
                self.note_journaled(env, &changes.mutations, lsn, out);
                Ok(())
            }
        }
    }
}
