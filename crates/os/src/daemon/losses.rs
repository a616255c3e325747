//! Says what applications wrote and will not get back: they hear of it once, and some do not ask.
//!
//! Invariant: each loss is said once, by the thread that ticks, within a second, or when the daemon ends.

use std::sync::Mutex;

use client::losses::Losses;

use super::{Daemon, lock};

/// Ticks between two looks.
const LOOK_TICKS: u64 = 50;

/// Losses as they were said last.
#[derive(Debug, Default)]
pub(super) struct Said(Mutex<Losses>);

impl Daemon {
    /// What was lost since the start.
    pub(super) fn losses(&self) -> Losses {
        let mut all = Losses::default();
        for slice in &self.slices {
            all.add(&lock(slice).losses());
        }
        all
    }

    /// Time has passed.
    pub(super) fn look_at_losses(&self, tick: u64) {
        if tick.is_multiple_of(LOOK_TICKS) {
            self.tell_losses();
        }
    }

    /// Nothing will be written any more: says what was not said yet.
    pub(super) fn tell_last_losses(&self) {
        for slice in &self.slices {
            lock(slice).settle_all_doubts();
        }
        self.tell_losses();
    }

    /// Pages and write-backs whose loss has been said.
    pub(super) fn said_losses(&self) -> u64 {
        let said = lock(&self.said_losses.0);
        said.pages + said.write_backs
    }

    fn tell_losses(&self) {
        let all = self.losses();
        let before = std::mem::replace(&mut *lock(&self.said_losses.0), all);
        let pages = all.pages - before.pages;
        let write_backs = all.write_backs - before.write_backs;
        if pages + write_backs > 0 {
            tracing::error!(
                pages,
                write_backs,
                one = ?all.one,
                "written bytes are lost: there was no space for them, or their owner or disks refused them"
            );
        }
        let unknown = all.unknown_files - before.unknown_files;
        if unknown > 0 {
            tracing::warn!(
                pages = unknown,
                one = ?all.unknown,
                "written bytes were dropped: their owner does not know the file any more (mostly it was removed before they were written back), or not these sectors"
            );
        }
    }
}
