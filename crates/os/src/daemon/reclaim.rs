//! Relief of a pagepool that is short: of whole slabs, or of frames at all.
//!
//! The pool says once that whole slabs are short (`Pagepool::on_shortage`), and who finds no frame says so
//! (`want_frames`); rounds on loop 0 follow until neither is so. Each round lets the slices evict while frames are
//! short, and give up what lies in draining slabs. A round costs one look at every slab and at the frames of those
//! that drain, of which there are few.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use client::Pool as _;
use client::reclaim::Wanted;
use client::slice::{Input, SLICE_COUNT, slice_of};

use super::{Daemon, lock};

/// Between two rounds.
const ROUND_MS: u64 = 2;
/// Work that found no frame is tried again so much later.
const RETRY_MS: u64 = 1;
/// A slab that has not drained after so many rounds holds what will not go soon: others are tried.
const ROUND_COUNT_MAX: u32 = 25;
/// Slabs that drain at a time.
const DRAIN_COUNT_MAX: usize = 32;

/// What the rounds keep.
#[derive(Debug, Default)]
pub(super) struct Relief {
    /// Slabs that drain, with the rounds that each has seen. Taken out while a round runs.
    slabs: Mutex<Vec<(u32, u32)>>,
    /// A round is due or runs.
    is_called: AtomicBool,
    /// Somebody has found no frame since the last round began.
    has_asker: AtomicBool,
    /// Work of the driver that found no frame and is tried again, by `FrameUser`.
    waiting: [AtomicU64; FRAME_USERS.len()],
}

/// What takes frames below the page index's reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FrameUser {
    Load,
    Store,
    Journal,
    Server,
}

const FRAME_USERS: [&str; 4] = [
    "loads",
    "stores",
    "journal writes",
    "requests of other nodes",
];

impl Daemon {
    /// Has the pool call for relief.
    pub(super) fn watch_pool(self: &Arc<Self>) {
        let daemon = Arc::downgrade(self);
        self.pool.on_shortage(Box::new(move || {
            if let Some(daemon) = daemon.upgrade() {
                daemon.call_relief();
            }
        }));
    }

    /// Somebody has found no frame, and tries again: a slice with `Input::Shrink`, others by themselves.
    pub(super) fn want_frames(self: &Arc<Self>) {
        self.relief.has_asker.store(true, Ordering::SeqCst);
        self.call_relief();
    }

    /// Does `work` again when there may be frames.
    pub(super) fn when_frames(
        self: &Arc<Self>,
        user: FrameUser,
        work: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        self.relief.waiting[user as usize].fetch_add(1, Ordering::Relaxed);
        self.want_frames();
        let daemon = Arc::clone(self);
        let at = crate::clock::now() + types::Duration::from_millis(RETRY_MS);
        let again = move || {
            daemon.relief.waiting[user as usize].fetch_sub(1, Ordering::Relaxed);
            work(&daemon);
        };
        self.loops.post_at(0, at, Box::new(again));
    }

    /// What of the driver waits for frames, and how full the pool is if anything may: for `gupfs waiters`.
    pub(super) fn frame_waiters(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (user, count) in FRAME_USERS.iter().zip(&self.relief.waiting) {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                all.push(format!("{count} {user} wait for frames of the pagepool"));
            }
        }
        let (total, free) = self.pool.frame_counts();
        let has_starving = self.slices.iter().any(|slice| lock(slice).is_frameless());
        if has_starving || !all.is_empty() || free < self.pool.levels().intake {
            let (mut cached, mut dirty) = (0, 0);
            for slice in &self.slices {
                let (_, pages, of_them) = lock(slice).counts();
                cached += pages;
                dirty += of_them;
            }
            let slabs = self.pool.free_slab_count();
            all.push(format!(
                "pagepool: {free} of {total} frames are free, {slabs} slabs whole; {cached} pages cached, {dirty} of \
                 them dirty and not yet on their way"
            ));
        }
        all
    }

    pub(super) fn call_relief(self: &Arc<Self>) {
        if !self.relief.is_called.swap(true, Ordering::SeqCst) {
            let daemon = Arc::downgrade(self);
            self.loops.post(0, Box::new(move || relieve(&daemon)));
        }
    }

    /// Looks whether the pool is short, with each tick.
    pub(super) fn relieve_if_short(self: &Arc<Self>) {
        let pool: &dyn client::Pool = &*self.pool;
        if pool.frame_counts().1 < pool.levels().low {
            self.call_relief();
        }
    }

    /// One round.
    fn relieve_pool(self: &Arc<Self>) {
        let (_, free) = self.pool.frame_counts();
        // Before the slices are tried: one that fails again asks for the next round.
        let has_asker = self.relief.has_asker.swap(false, Ordering::SeqCst);
        if has_asker || free < self.pool.levels().low {
            for slice in 0..SLICE_COUNT {
                self.input(slice, Input::Shrink);
            }
        }
        self.drain_slabs();
        let is_over = self.pool.wanted_slab_count() == 0;
        if !is_over || self.relief.has_asker.load(Ordering::SeqCst) {
            return self.relieve_pool_again();
        }
        self.relief.is_called.store(false, Ordering::SeqCst);
        self.pool.relieved();
        // Somebody may have wanted a slab or a frame between the look and the word.
        if self.pool.is_short_of_slabs() || self.relief.has_asker.load(Ordering::SeqCst) {
            self.call_relief();
        }
    }

    /// Lets slabs drain while whole ones are few, and the slices give up what lies in them.
    fn drain_slabs(self: &Arc<Self>) {
        let mut slabs = std::mem::take(&mut *lock(&self.relief.slabs));
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
        *lock(&self.relief.slabs) = slabs;
    }

    fn relieve_pool_again(self: &Arc<Self>) {
        let daemon = Arc::downgrade(self);
        let at = crate::clock::now() + types::Duration::from_millis(ROUND_MS);
        self.loops
            .post_at(0, at, Box::new(move || relieve(&daemon)));
    }
}

fn relieve(daemon: &Weak<Daemon>) {
    if let Some(daemon) = daemon.upgrade() {
        daemon.relieve_pool();
    }
}
