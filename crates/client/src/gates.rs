//! What an inode keeps while something of it is on its way to the kernel or out of it: its gate, and who waits for that.
//!
//! Invariants
//! - There is one as long as the gate is not idle, or somebody waits for it; `tokens` makes it and drops it.
//! - A request that the gate has parked is here until it is served, tried again or failed.
//! - Opens wait in `filling` only between `begin_fill` and `Input::Filled`.

use std::collections::BTreeMap;

use types::ByteRange;

use crate::request::{Notice, Request, Response, Ticket};
use crate::revoke::{DirectoryGate, Gate, RevokeId};
use crate::slice::NotifyId;
use crate::tokens::Leaving;

/// What an inode keeps while tokens of it are being revoked, or bytes of it put into the kernel.
#[derive(Debug)]
pub(crate) struct RevokeState {
    pub(crate) gate: Gate,
    pub(crate) directory: Option<DirectoryGate>,
    pub(crate) leaving: BTreeMap<RevokeId, Leaving>,
    pub(crate) parked: BTreeMap<Ticket, Request>,
    /// Notifications held back until replies about the inode are written: before that the kernel may not
    /// know the inode, and would take the old attributes afterwards.
    pub(crate) held: Vec<(NotifyId, Notice)>,
    /// Answers that wait until the kernel has dropped what a misplaced append changed, or what it got under read tokens
    /// before mappings may be writable.
    pub(crate) drops: BTreeMap<RevokeId, Vec<(Ticket, Response)>>,
    /// Of the former: the bytes.
    pub(crate) placed: BTreeMap<RevokeId, ByteRange>,
    /// The latter among them.
    pub(crate) clearing: Option<RevokeId>,
    /// Opens that are answered when the kernel has the file's bytes, in the order in which they came (`crate::fill`).
    pub(crate) filling: Vec<(Ticket, Response)>,
    pub(crate) next_revoke: u64,
}

impl RevokeState {
    /// A writable handle was opened while a revoke is under way.
    pub(crate) fn set_mappable(&mut self) {
        self.gate.set_mappable(true);
    }

    /// The number of a drop for an append to `range`, which is answered so when it is over.
    pub(crate) fn add_placed(&mut self, range: ByteRange, answer: (Ticket, Response)) -> RevokeId {
        self.next_revoke += 1;
        let id = RevokeId(self.next_revoke);
        self.placed.insert(id, range);
        self.drops.insert(id, vec![answer]);
        id
    }

    /// Bytes begin their way into the page cache.
    pub(crate) fn begin_fill(&mut self) {
        self.gate.begin_fill();
    }

    /// An open that is answered when the kernel has the file's bytes.
    pub(crate) fn fill_then(&mut self, answer: (Ticket, Response)) {
        self.filling.push(answer);
    }

    /// Bytes are on their way into the page cache.
    pub(crate) const fn is_filling(&self) -> bool {
        self.gate.is_filling()
    }

    /// The opens that have waited for it.
    pub(crate) fn take_filled(&mut self) -> Vec<(Ticket, Response)> {
        std::mem::take(&mut self.filling)
    }

    /// Opens that wait until the kernel has the file's bytes.
    pub(crate) fn filling(&self) -> impl Iterator<Item = Ticket> {
        self.filling.iter().map(|(ticket, _)| *ticket)
    }

    /// Requests that wait, for `gupfs waiters`.
    pub(crate) fn parked(&self) -> impl Iterator<Item = &Request> {
        self.parked.values()
    }
}
