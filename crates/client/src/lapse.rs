//! What a slice does when the node's lease ends and comes back, and what it says when an owner or this node's
//! membership begins anew: to a new owner instance, what it holds; at the end of an evicted life, who waits,
//! what the kernel has, and what is lost.
//!
//! Invariants:
//! - what was told is at least what is held and open. Grants of the owner's former life that are still on their way are void
//!   from then on (`token::Holder::reassert`);
//! - from `Lapsed` to `Regained` every inode that is open, or asked for, has a suspended gate: nothing of it is served
//!   but write-backs of mapped pages, which become dirty data of this life.
//!
//! Only open files are dropped from the kernel: of the others nobody can see a page before an open, which waits for
//! the lease, and names and attributes end with their time-outs, which never exceed the lease.
//!
//! What this deliberately does not do: go on after an eviction. An evicted life ends with its process, and with it
//! every cache and descriptor.

use token::server::first_number;
use types::{Epoch, Holding, InodeId, Instant, ShardId};

use crate::env::Env;
use crate::request::{Notice, Request, Ticket};
use crate::slice::Effect;
use crate::slice::Slice;

/// What this node tells the owner of an inode when that begins anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldInode {
    /// The inode.
    pub ino: InodeId,
    /// The tokens held on it.
    pub holdings: Vec<Holding>,
    /// It is open here, or may be in a moment: the owner is to keep it also without a name.
    pub is_open: bool,
}

/// What applications of this node have locked in shards of an owner that begins anew.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct HeldLocks {
    /// The last number of a change that the owner before may have been asked for.
    pub floor: u64,
    /// The locks.
    pub locks: Vec<(InodeId, types::Lock)>,
}

impl Slice {
    /// What this slice holds on inodes of the shards that `is_asked` names and which of them are open, for their owner
    /// under `epoch`, by inode. Asked again under the same epoch it tells nothing: the caller keeps what it was told
    /// until the owner has it.
    pub fn reassert(
        &mut self,
        now: Instant,
        is_asked: impl Fn(ShardId) -> bool,
        epoch: Epoch,
    ) -> Vec<HeldInode> {
        let number = first_number(epoch);
        let mut all = Vec::new();
        for (ino, inode) in &mut self.inodes {
            if !is_asked(ino.shard()) || inode.holder.seen() >= number {
                continue;
            }
            let (is_open, is_awaited) = inode.reassert_open(now);
            let holdings = inode.holder.reassert(*ino, epoch);
            if is_awaited {
                inode.awaited_count += 1;
                let awaited = crate::opens::AwaitedOpen::holding(now, *ino);
                self.awaited_opens.push_back(awaited);
            }
            if is_open || !holdings.is_empty() {
                all.push(HeldInode {
                    ino: *ino,
                    holdings,
                    is_open,
                });
            }
        }
        all.sort_by_key(|held| held.ino);
        all
    }

    /// The lease is over.
    pub(crate) fn on_lapsed(&mut self, env: &Env<'_>, requests: Vec<Request>) {
        // Those that have a gate wait in it before it notifies, so that it leaves their pages alone.
        let (mut others, mut held) = (Vec::new(), Vec::new());
        for request in requests {
            match self.hold(env, &request) {
                Some(ino) => held.push(ino),
                None => others.push(request),
            }
        }
        self.is_lapsed = true;
        // Who waits for one of these asks itself once the lease is back.
        self.aheads.clear();
        self.give_up_rewrite(env);
        for ino in held {
            self.suspend(env, ino);
        }
        let open = self.inodes.iter().filter(|(_, inode)| inode.open_count > 0);
        let mut open: Vec<_> = open
            .map(|(ino, inode)| (*ino, inode.directory_mode().is_some()))
            .collect();
        open.sort_unstable();
        for (ino, is_directory) in open {
            if is_directory {
                // It has no pages, and its attributes go without a wait.
                let notice = Notice::Attributes { ino };
                self.out.push(Effect::Notify(None, notice));
            } else {
                self.suspend(env, ino);
                // Write-backs that wait for sectors do without.
                self.retry(env, ino);
            }
        }
        for request in others {
            self.start(env, request);
        }
    }

    /// The lease is back and no view has ended this life: its tokens were valid all the time.
    pub(crate) fn on_regained(&mut self, env: &Env<'_>) {
        self.is_lapsed = false;
        self.undropped.clear();
        let mut waiting: Vec<InodeId> = self
            .inodes
            .iter()
            .filter(|(_, inode)| inode.gate.is_some() || !inode.parked.is_empty())
            .map(|(ino, _)| *ino)
            .collect();
        waiting.sort_unstable();
        for ino in waiting {
            self.resume(env, ino);
            self.retry(env, ino);
        }
    }

    /// Open files of which the kernel has not dropped everything since the lease ended.
    pub fn undropped_count(&self) -> usize {
        self.undropped.len()
    }

    /// Inodes with data or times that no owner has, and their dirty bytes: lost with this life.
    pub fn uncommitted(&self) -> (usize, u64) {
        let dirty = self.inodes.values().filter(|inode| inode.has_unsaved());
        dirty.fold((0, 0), |(count, size), inode| {
            let pages = inode.pages.busy_count() as u64;
            (count + 1, size + pages * crate::pages::PAGE_SIZE)
        })
    }

    /// This life is over and the slice is not used any more: the requests that wait on inodes, to be
    /// failed so that no page stays locked, and then the inodes of which the kernel may have pages, open ones first.
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
        known.extend(self.cold.keys());
        known.sort_unstable_by_key(|ino| (!self.has_open(*ino), *ino));
        (tickets, known)
    }

    /// Whether an application of this node has `ino` open, as far as the kernel has said.
    pub fn has_open(&self, ino: InodeId) -> bool {
        self.inodes.get(&ino).is_some_and(|i| i.open_count > 0)
    }
}
