//! Requests for locks of one slice that have no answer yet, and whether there may be more.
//!
//! Invariants
//! - Those that wait for others' locks leave room for those that do not, and those of one user for other users'. Root has all the room.
//! - Unlocking is never refused.

use std::collections::BTreeMap;

use types::limits;

use crate::request::Ticket;

/// Who wants a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asker {
    /// The user.
    pub(crate) uid: u32,
    /// He waits where another is in the way.
    pub(crate) waits: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// All, those that unlock too.
    count: usize,
    askers: BTreeMap<Ticket, Asker>,
    wait_count: usize,
    of_user: BTreeMap<u32, usize>,
}

impl Requests {
    /// Requests.
    #[cfg(test)]
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// There may be one more.
    pub(super) fn has_room(&self, asker: Asker) -> bool {
        let of_user = self.of_user.get(&asker.uid).copied().unwrap_or(0);
        self.count < limits::LOCK_REQUESTS_MAX
            && (!asker.waits || self.wait_count < limits::LOCK_WAITS_MAX)
            && (asker.uid == 0 || of_user < limits::LOCK_REQUESTS_OF_USER_MAX)
    }

    /// A request to lock, or (no asker) to unlock.
    pub(super) fn begin(&mut self, ticket: Ticket, asker: Option<Asker>) {
        self.count += 1;
        if let Some(asker) = asker {
            self.askers.insert(ticket, asker);
            self.wait_count += usize::from(asker.waits);
            *self.of_user.entry(asker.uid).or_default() += 1;
        }
    }

    /// It has its answer.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.count -= 1;
        let Some(asker) = self.askers.remove(&ticket) else {
            return;
        };
        self.wait_count -= usize::from(asker.waits);
        let of_user = self.of_user.entry(asker.uid).or_default();
        *of_user -= 1;
        if *of_user == 0 {
            self.of_user.remove(&asker.uid);
        }
    }
}
