//! Relief of a pagepool that is short: of whole slabs, or of frames at all.
//!
//! The pool says once that it is short (`Pagepool::on_shortage`); rounds on loop 0 follow until it is not.
//! Each round lets the slices give up what lies in draining slabs. A round costs one look at every slab and
//! at the frames of those that drain, of which there are few.

use std::sync::Arc;

use client::Pool as _;
use client::reclaim::Wanted;
use client::slice::{Input, SLICE_COUNT, slice_of};

use super::{Daemon, lock};

/// Between two rounds.
const ROUND_MS: u64 = 2;
/// A slab that has not drained after so many rounds holds what will not go soon: others are tried.
const ROUND_COUNT_MAX: u32 = 25;
/// Slabs that drain at a time.
const DRAIN_COUNT_MAX: usize = 32;

/// Slabs that drain, with the rounds that each has seen. Taken out while a round runs.
#[derive(Debug, Default)]
pub(super) struct Drain {
    slabs: Vec<(u32, u32)>,
}

impl Daemon {
    /// Has the pool call for relief.
    pub(super) fn watch_pool(self: &Arc<Self>) {
        let (loops, daemon) = (Arc::clone(&self.loops), Arc::downgrade(self));
        self.pool.on_shortage(Box::new(move || {
            let daemon = daemon.clone();
            let relieve = move || {
                if let Some(daemon) = daemon.upgrade() {
                    daemon.relieve_pool();
                }
            };
            loops.post(0, Box::new(relieve));
        }));
    }

    /// One round.
    fn relieve_pool(self: &Arc<Self>) {
        let (total, free) = self.pool.frame_counts();
        if free < total / 8 {
            for slice in 0..SLICE_COUNT {
                self.input(slice, Input::Shrink);
            }
        }
        let mut slabs = std::mem::take(&mut lock(&self.drain).slabs);
        let wanted = self.pool.wanted_slab_count().min(DRAIN_COUNT_MAX);
        if slabs.len() < wanted {
            let more = self.pool.drain_more(wanted - slabs.len());
            slabs.extend(more.into_iter().map(|slab| (slab, 0)));
        }
        let mut frames: [Vec<Wanted>; SLICE_COUNT] = std::array::from_fn(|_| Vec::new());
        for (slab, rounds) in &mut slabs {
            *rounds += 1;
            for held in self.pool.held(*slab) {
                frames[slice_of(held.ino)].push(Wanted {
                    frame: held.frame,
                    ino: held.ino,
                    page: held.page,
                });
            }
        }
        for (slice, frames) in frames.into_iter().enumerate() {
            if !frames.is_empty() {
                self.input(slice, Input::GiveUp(frames));
            }
        }
        let is_over = self.pool.wanted_slab_count() == 0;
        slabs.retain(|(slab, rounds)| {
            let is_draining = self.pool.is_draining(*slab);
            if is_draining && (is_over || *rounds >= ROUND_COUNT_MAX) {
                self.pool.undrain(*slab);
                return false;
            }
            is_draining
        });
        lock(&self.drain).slabs = slabs;
        if !is_over {
            return self.relieve_pool_again();
        }
        self.pool.relieved();
        // Somebody may have wanted a slab between the look and the word.
        if self.pool.is_short_of_slabs() {
            self.relieve_pool_again();
        }
    }

    fn relieve_pool_again(self: &Arc<Self>) {
        let daemon = Arc::downgrade(self);
        let at = crate::clock::now() + types::Duration::from_millis(ROUND_MS);
        let relieve = move || {
            if let Some(daemon) = daemon.upgrade() {
                daemon.relieve_pool();
            }
        };
        self.loops.post_at(0, at, Box::new(relieve));
    }
}
