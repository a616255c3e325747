//! The end of a file that a Commit tells its owner while nobody waits for it.
//!
//! The owner hears of bytes when they are stored, and after a crash a file ends where its owner has heard that it does. So what is
//! written to a file from its beginning to its end, and synced by nobody, is there up to some point and no further: a size that
//! was told ahead of its bytes would be zeros.
//!
//! Invariants
//! - Where somebody waits (fsync, a revoke, a change of the inode, a rename), the last Commit that he waits for tells the newest size,
//!   as does one with nothing left to write behind what it carries.
//! - Another one tells no more than the end of what it carries: one more will come with what is behind it.
//! - Bytes behind the end that the owner knows are not committed before those in front of them that go with another Commit (promised
//!   bytes and others go apart), that were refused and wait (`crate::refused`) or, while nobody waits for an answer, that are being stored. That
//!   holds up no more than `STORED_COUNT_MAX` extents and pieces, nothing where frames are short, and nobody for what was written
//!   after he began to wait.

use types::ByteRange;

use crate::batch::{Batch, BatchState};
use crate::goals::{Goal, Purpose};
use crate::inode::Inode;
use crate::pages::PAGE_SIZE;
use crate::pool::Pool;

/// Extents and pieces of one inode that wait for what is in front of them.
const STORED_COUNT_MAX: usize = 256;

/// Which batches a Commit may carry now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Front {
    /// The end that the owner knows: what ends behind it waits for what is in front of it.
    known_end: u64,
    /// Where the first batch begins that is being stored, or the first page that was refused.
    storing: u64,
    /// Whether the first batch that is stored and ends behind `known_end` is of promised bytes.
    first: Option<bool>,
}

impl Front {
    /// Whether a batch may go.
    pub(crate) fn admits(&self, batch: &Batch) -> bool {
        let is_in_front = || {
            let is_first = self.first.is_none_or(|first| first == batch.is_promised);
            is_first && batch.span.end <= self.storing
        };
        batch.is_stored() && (batch.span.end <= self.known_end || is_in_front())
    }
}

impl Inode {
    /// Somebody waits for what is written back.
    pub(crate) fn is_waited_for(&self) -> bool {
        let mut goals = self.goals.iter();
        goals.any(|goal| !matches!(goal.purpose, Purpose::Background))
    }

    /// He waits for an answer. A sweep does not: what it brings is to be as if nobody had asked, in the order of the file, and to stay
    /// where it goes (what goes inside a Commit goes to sectors later).
    pub(crate) fn is_urgent(&self) -> bool {
        let is_patient =
            |goal: &Goal| matches!(goal.purpose, Purpose::Background | Purpose::Sweep(_));
        !self.goals.iter().all(is_patient)
    }

    /// Who waits last waits for what was dirty before this.
    pub(crate) fn awaited_until(&self) -> u64 {
        let sequences = self.goals.iter().map(|goal| goal.sequence);
        sequences.max().unwrap_or(0)
    }

    /// What may be committed now. `is_short`: frames are.
    pub(crate) fn front(&self, is_short: bool) -> Front {
        let known_end = self.known_end();
        let mut front = Front {
            known_end,
            storing: u64::MAX,
            first: None,
        };
        let stored: usize = self.batches.iter().map(Batch::stored_count).sum();
        if !self.is_size_dirty || is_short || stored >= STORED_COUNT_MAX {
            return front;
        }
        let (is_waited_for, is_urgent) = (self.is_waited_for(), self.is_urgent());
        let until = self.awaited_until();
        let held_until = if is_waited_for { until } else { u64::MAX };
        if let Some(held) = self.first_held(known_end, held_until) {
            front.storing = held * PAGE_SIZE;
        }
        let mut begin = u64::MAX;
        for batch in self.batches.iter().filter(|b| b.span.end > known_end) {
            match batch.state {
                BatchState::Storing
                    if !is_waited_for
                        || !is_urgent && self.pages.has_older(&batch.numbers, until) =>
                {
                    front.storing = front.storing.min(batch.span.begin);
                }
                BatchState::Stored(_)
                    if batch.span.begin < begin
                        && (!is_waited_for || self.pages.has_older(&batch.numbers, until)) =>
                {
                    begin = batch.span.begin;
                    front.first = Some(batch.is_promised);
                }
                _ => {}
            }
        }
        front
    }

    /// In the order in which they go: what is waited for first, each in the order of the file.
    pub(crate) fn sort_batches(&mut self) {
        let is_waited_for = self.is_waited_for();
        let until = self.awaited_until();
        let work = self.work();
        let pages = &work.pages;
        work.batches.sort_by_cached_key(|batch| {
            let came_later = is_waited_for && !pages.has_older(&batch.numbers, until);
            (came_later, batch.span.begin)
        });
    }

    /// The size that a Commit tells which carries bytes up to `carried`; its batches are marked.
    pub(crate) fn size_to_tell(&self, carried: u64) -> Option<u64> {
        if !self.is_size_dirty {
            return None;
        }
        let until = self.awaited_until();
        let is_left = |batch: &Batch| {
            !matches!(batch.state, BatchState::Committing(_))
                && self.pages.has_older(&batch.numbers, until)
        };
        let left = self.pages.busy_end().unwrap_or(0).min(self.size);
        let is_last = self.is_urgent()
            && !self.batches.iter().any(is_left)
            && self.first_held(0, until).is_none();
        if left <= carried || is_last {
            return Some(self.size);
        }
        (carried > self.known_end()).then_some(carried)
    }

    /// The Commit that has ended did not tell all: who gives the token of the size away, or has the owner change the file, waits for the one
    /// that does, even if the bytes that it was to bring are lost meanwhile. A Commit of after that would be refused, with all that is in it.
    pub(crate) fn await_next_commit(&mut self) {
        let commit_count = self.commit_count;
        let gives = |goal: &&mut Goal| {
            matches!(
                goal.purpose,
                Purpose::Revoke(_) | Purpose::Late(_) | Purpose::Change(_)
            ) && goal.commit <= commit_count
        };
        let waiting = self.goals.iter_mut().filter(gives);
        waiting.for_each(|goal| goal.commit = commit_count + 1);
    }

    /// A Commit was refused, and its pages are lost. What it told beside them is told again for others that are to be written:
    /// those behind the end that the owner knows would be refused without it.
    pub(crate) fn forget_refused(&mut self, pool: &dyn Pool) {
        let known = self.attr.map_or(0, |attr| attr.size);
        let end = self.pages.busy_end();
        self.size = self.size.min(end.unwrap_or(0)).max(known);
        self.is_size_dirty &= self.size > known;
        // What lies behind was lost: who makes the file longer later on makes zeros. None of it is dirty.
        let size = self.size;
        self.pages.truncate(size, pool);
        if end.is_none() {
            self.modified = None;
            self.kill_set_id = None;
            self.drops_rights = false;
        }
    }

    /// The end of the file that its owner knows.
    fn known_end(&self) -> u64 {
        self.attr.map_or(0, |attr| attr.size)
    }
}

/// From the first of these pages to the last, of a file that ends at `size`.
pub(crate) fn span_of(numbers: &[u64], size: u64) -> ByteRange {
    let begin = numbers.iter().min().map_or(0, |first| first * PAGE_SIZE);
    let end = numbers
        .iter()
        .max()
        .map_or(0, |last| (last + 1) * PAGE_SIZE);
    ByteRange::new(begin.min(size), end.min(size))
}
