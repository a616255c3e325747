//! What a slice says when an owner or this node's membership begins anew: to a new owner instance, what it
//! holds; at the end of an evicted life, who waits and what the kernel has.
//!
//! Invariant: what was told is at least what is held. Grants of the owner's former life that are still on
//! their way are void from then on (`token::Holder::reassert`).
//!
//! What this deliberately does not do: the lapse of a lease. The driver parks requests until the lease is
//! back; an evicted life ends with its process, and with it every cache.

use token::server::first_number;
use types::{Epoch, Holding, InodeId, ShardId};

use crate::request::Ticket;
use crate::slice::Slice;

impl Slice {
    /// What this slice holds on inodes of the shards that `is_asked` names, for their owner under `epoch`:
    /// one list per inode, by inode. Asked again under the same epoch it tells nothing: the caller keeps
    /// what it was told until the owner has it.
    pub fn reassert(
        &mut self,
        is_asked: impl Fn(ShardId) -> bool,
        epoch: Epoch,
    ) -> Vec<(InodeId, Vec<Holding>)> {
        let number = first_number(epoch);
        let mut all = Vec::new();
        for (ino, inode) in &mut self.inodes {
            if is_asked(ino.shard()) && inode.holder.seen() < number {
                let holdings = inode.holder.reassert(*ino, epoch);
                if !holdings.is_empty() {
                    all.push((*ino, holdings));
                }
            }
        }
        all.sort_by_key(|(ino, _)| *ino);
        all
    }

    /// This life is over and the slice is not used any more: the requests that wait on inodes, to be
    /// failed so that no page stays locked, and then the inodes of which the kernel may have pages.
    pub fn expired(&self) -> (Vec<Ticket>, Vec<InodeId>) {
        let (mut tickets, mut known) = (Vec::new(), Vec::new());
        for (ino, inode) in &self.inodes {
            tickets.extend(inode.parked.iter().map(|p| p.request.ticket));
            let gated = inode.gate.iter().flat_map(|state| state.parked());
            tickets.extend(gated.map(|request| request.ticket));
            if inode.lookup_count > 0 {
                known.push(*ino);
            }
        }
        known.sort_unstable();
        (tickets, known)
    }
}
