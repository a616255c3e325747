//! What a request waits for: for the log of slow operations, which asks about few, old requests while nothing is
//! expected of it.

use types::InodeId;

use crate::batch::{Batch, BatchState};
use crate::goals::Purpose;
use crate::inode::Inode;
use crate::names::Continuation;
use crate::request::Ticket;
use crate::slice::{CallId, Slice, Waiting};

/// What a request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Tokens on the inode, asked for with this question.
    Token(InodeId, Option<CallId>),
    /// The kernel and the pages of this node, which a revoke takes something from.
    Revoke,
    /// The kernel, which takes the file's bytes (`crate::fill`).
    Fill,
    /// Sectors that are being read.
    Load,
    /// Sectors that are being written, or made durable.
    Store,
    /// Free sectors from an owner, or room there for bytes in metadata (`crate::refused`).
    Space,
    /// Frames of the pagepool.
    Frames,
    /// An owner's answer to this question about the inode; no question: it has not been asked yet.
    Owner(InodeId, Option<CallId>),
}

impl Slice {
    /// What the request that names `ino`, an inode of this slice, waits for, as far as it waits here. O(what waits on the
    /// inode, and questions without an answer).
    pub fn wait_of(&self, ino: InodeId, ticket: Ticket) -> Option<Wait> {
        let at_inode = self.inodes.get(&ino);
        at_inode
            .and_then(|inode| self.wait_at(inode, ticket))
            .or_else(|| self.wait_for_answer(ino, ticket))
    }

    /// The same where `ino` may be an inode of another slice: only what owners are asked for.
    pub fn wait_for_answer(&self, ino: InodeId, ticket: Ticket) -> Option<Wait> {
        let mut calls = self.calls.iter();
        let found = calls.find(|(_, then)| ticket_of(then) == Some(ticket));
        found.map(|(call, then)| {
            let about = match then {
                Continuation::Arrival(arrival) => arrival.ino,
                _ => ino,
            };
            Wait::Owner(about, Some(*call))
        })
    }

    fn wait_at(&self, inode: &Inode, ticket: Ticket) -> Option<Wait> {
        let ino = inode.ino;
        let asking = |is_it: fn(&Continuation, InodeId) -> bool| {
            let mut calls = self.calls.iter();
            calls
                .find(|(_, then)| is_it(then, ino))
                .map(|(call, _)| *call)
        };
        let token = || {
            let is_it: fn(&Continuation, InodeId) -> bool =
                |then, ino| matches!(then, Continuation::Acquire(of, ..) if *of == ino);
            Wait::Token(ino, asking(is_it))
        };
        let flush = || {
            if inode.starved_since.is_some() || inode.waits_for_room() {
                return Wait::Space;
            }
            match inode.is_committing {
                true => Wait::Owner(
                    ino,
                    asking(|then, ino| matches!(then, Continuation::Commit(of) if *of == ino)),
                ),
                false => Wait::Store,
            }
        };
        if let Some(parked) = inode.parked.iter().find(|p| p.request.ticket == ticket) {
            return Some(match parked.why {
                Waiting::Token => token(),
                Waiting::Revoke => Wait::Revoke,
                Waiting::Load if inode.is_map_asked || inode.is_partial_map_asked => Wait::Owner(
                    ino,
                    asking(|then, ino| matches!(then, Continuation::Map(of, ..) if *of == ino)),
                ),
                Waiting::Load => Wait::Load,
                Waiting::Space | Waiting::Promise => Wait::Space,
                Waiting::Frames => Wait::Frames,
                Waiting::Listing => Wait::Owner(
                    ino,
                    asking(|then, ino| matches!(then, Continuation::Ahead(of, _) if *of == ino)),
                ),
                Waiting::Flush => flush(),
                Waiting::Closed => Wait::Owner(
                    ino,
                    asking(
                        |then, ino| matches!(then, Continuation::Closed(Some(of)) if *of == ino),
                    ),
                ),
            });
        }
        let mut filling = inode.gate.iter().flat_map(|gate| gate.filling());
        if filling.any(|of| of == ticket) {
            return Some(Wait::Fill);
        }
        let mut gated = inode.gate.iter().flat_map(|gate| gate.parked());
        if gated.any(|request| request.ticket == ticket) {
            return Some(match inode.is_acquiring {
                true => token(),
                false => Wait::Revoke,
            });
        }
        let is_for = |purpose: &Purpose| match purpose {
            Purpose::Sync(request) => request.ticket == ticket,
            Purpose::Rename(request) => request.ticket == ticket,
            Purpose::Change(change) => ticket_of(&change.1) == Some(ticket),
            Purpose::Revoke(_) | Purpose::Late(_) | Purpose::Sweep(_) | Purpose::Background => {
                false
            }
        };
        let is_goal = inode.goals.iter().any(|goal| is_for(&goal.purpose));
        is_goal.then(flush)
    }
}

/// The request that an answer is for.
fn ticket_of(then: &Continuation) -> Option<Ticket> {
    match then {
        Continuation::Names(request, _)
        | Continuation::Rename(request, _)
        | Continuation::Unlink(request, ..)
        | Continuation::RenameSource(request)
        | Continuation::SetAttr(_, request, _)
        | Continuation::Punch(_, request)
        | Continuation::Listing(request, _) => Some(request.ticket),
        Continuation::Arrival(arrival) => arrival.request.as_ref().map(|r| r.ticket),
        Continuation::Synced(ticket, _) => Some(*ticket),
        Continuation::Attributes(_, ticket, ..) | Continuation::LockTest(ticket) => *ticket,
        Continuation::Acquire(..)
        | Continuation::Ahead(..)
        | Continuation::Map(..)
        | Continuation::Promised(..)
        | Continuation::Commit(_)
        | Continuation::Lock(_)
        | Continuation::Accessed(..)
        | Continuation::Closed(_)
        | Continuation::Swept(_) => None,
    }
}

impl Inode {
    /// How far its write-back is: for `gupfs waiters`.
    pub(crate) fn flush_state(&self) -> String {
        let pages_in = |is_it: fn(&BatchState) -> bool| -> usize {
            let batches = self.batches.iter().filter(|batch| is_it(&batch.state));
            batches.map(Batch::page_count).sum()
        };
        let is_starved = self.starved_since.is_some();
        let is_refused = self.waits_for_room();
        format!(
            "pages: {} dirty, {} being stored, {} stored, {} in a Commit; {} Commits ended, committing: {}, \
             size changes at the owner: {}, failed stores: {}, without sectors: {is_starved}, \
             refused by the owner: {is_refused}",
            self.pages.dirty_count(),
            pages_in(|state| *state == BatchState::Storing),
            pages_in(|state| matches!(state, BatchState::Stored(_))),
            pages_in(|state| matches!(state, BatchState::Committing(_))),
            self.commit_count,
            self.is_committing,
            self.resize_count,
            self.store_failures,
        )
    }
}
