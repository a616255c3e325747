//! Getting whole slabs back out of a pool that small things have scattered over.
//!
//! 1. Whole slabs get few (`is_short_of_slabs`): who listens hears of it once (`on_shortage`).
//! 2. `drain_more` picks the slabs with the fewest frames in use and lets them drain; `held` names who has
//!    what of them, and the page index gives it up or moves it elsewhere.
//! 3. A slab whose last frame came back is free. One that does not get there (`undrain`) is used as before.
//! 4. `relieved` when there are enough: the next shortage is told again.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use client::pool::Pool;
use types::frame::FRAMES_PER_SLAB;
use types::{FrameRef, InodeId};

use super::Pagepool;

/// Of so many slabs one is kept free.
const SPARE_PART: u32 = 64;
const SPARE_COUNT_MIN: u32 = 2;
const SPARE_COUNT_MAX: u32 = 64;

/// Whose frame it is. Room for what an index could be rebuilt from (valid and dirty range, token number,
/// LSN) when the pool outlives its daemon.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Descriptor {
    ino: AtomicU64,
    page: AtomicU64,
    reserved: [u64; 6],
}
const _: () = assert!(size_of::<Descriptor>() == 64);

impl Descriptor {
    pub(super) fn set(&self, ino: InodeId, page: u64) {
        self.ino.store(ino.raw(), Ordering::Relaxed);
        self.page.store(page, Ordering::Relaxed);
    }
}

/// A frame in use, and the page that it was last put into; it may be in other use by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) frame: FrameRef,
    pub(crate) ino: InodeId,
    pub(crate) page: u64,
}

/// Who hears that whole slabs are few.
#[derive(Default)]
pub(super) struct Shortage {
    listener: OnceLock<Box<dyn Fn() + Send + Sync>>,
    is_told: AtomicBool,
    hand: AtomicU32,
}

impl std::fmt::Debug for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shortage")
            .field("is_told", &self.is_told)
            .finish_non_exhaustive()
    }
}

impl Shortage {
    pub(super) fn tell(&self) {
        if let Some(listener) = self.listener.get()
            && !self.is_told.swap(true, Ordering::AcqRel)
        {
            listener();
        }
    }
}

impl Pagepool {
    /// `listener` is called when whole slabs get few, once until `relieved`; by the thread that wanted
    /// one, so it must not do the work itself. Only the first listener counts.
    pub(crate) fn on_shortage(&self, listener: Box<dyn Fn() + Send + Sync>) {
        let _ = self.shortage.listener.set(listener);
    }

    fn spare_count(&self) -> u32 {
        let slabs = u32::try_from(self.references.len()).unwrap_or(u32::MAX) / FRAMES_PER_SLAB;
        // A pool of a few slabs needs them all.
        (slabs / SPARE_PART).clamp(SPARE_COUNT_MIN.min(slabs / 4), SPARE_COUNT_MAX)
    }

    /// Fewer slabs are whole than are to be kept.
    pub(crate) fn is_short_of_slabs(&self) -> bool {
        self.free_slab_count() < self.spare_count()
    }

    /// Whole slabs that are missing until the shortage is over for a while.
    pub(crate) fn wanted_slab_count(&self) -> usize {
        let wanted = (2 * self.spare_count()).max(1);
        wanted.saturating_sub(self.slabs.free_slab_count()) as usize
    }

    /// A slab for a request of the kernel. `None` also while the page index may need what is free, to take in
    /// what was requested before.
    pub(super) fn alloc_request_slab(&self) -> Option<FrameRef> {
        let (_, free) = self.frame_counts();
        if free < self.levels().intake {
            self.refused_count.fetch_add(1, Ordering::Relaxed);
            self.shortage.tell();
            return None;
        }
        Pool::alloc_slab(self)
    }

    /// The shortage is over.
    pub(crate) fn relieved(&self) {
        self.shortage.is_told.store(false, Ordering::Release);
    }

    /// Lets up to `count` more slabs drain and returns which. Looks at every slab.
    pub(crate) fn drain_more(&self, count: usize) -> Vec<u32> {
        let hand = self.shortage.hand.load(Ordering::Relaxed);
        let mut drained = Vec::with_capacity(count);
        for index in self.slabs.candidates(hand) {
            if drained.len() == count {
                break;
            }
            if self.slabs.drain(index) {
                drained.push(index);
                self.shortage.hand.store(index + 1, Ordering::Relaxed);
            }
        }
        drained
    }

    /// Slabs all of whose frames are free.
    pub(crate) fn free_slab_count(&self) -> u32 {
        self.slabs.free_slab_count()
    }

    /// The slab still drains.
    pub(crate) fn is_draining(&self, slab: u32) -> bool {
        self.slabs.is_draining(slab)
    }

    /// The slab is used as before.
    pub(crate) fn undrain(&self, slab: u32) {
        self.slabs.undrain(slab);
    }

    /// Who may have what of a slab.
    pub(crate) fn held(&self, slab: u32) -> impl Iterator<Item = Held> {
        self.slabs.held(slab).into_iter().map(|frame| {
            let descriptor = &self.descriptors[frame.0 as usize];
            Held {
                frame,
                ino: InodeId::from_raw(descriptor.ino.load(Ordering::Relaxed)),
                page: descriptor.page.load(Ordering::Relaxed),
            }
        })
    }
}
