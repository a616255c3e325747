//! The pagepool: one file in memory, mapped once, in slabs of 256 frames with a reference count and a
//! descriptor per frame.
//!
//! Invariants
//! - The mapping never moves while the pool lives, and never grows beyond the limit it was made with.
//! - A frame is free (no reference; in its slab's bitmap of free frames) or held (one or more).
//! - A slab is `Free` exactly when all its frames are free and no thread carves it.
//! - The three sets of slabs (free, carved, leftover) name only slabs in the matching state; a slab that
//!   is full, that drains or that a thread carves is in none.
//! - A frame of the page index has its inode and page in its descriptor. Of others the descriptor is old:
//!   who reads it asks the inode whether the frame is there.
//! - Lock order: carve, slab, sets. `retain` and `release` of a frame that stays held take no lock.
//!
//! Single frames come from slabs that are carved already, then from a free slab, and only when there is
//! none from what is left of slabs handed out whole: those tend to come back whole, and whole slabs are
//! what the kernel's large writes need. When whole slabs get few, those with the fewest frames in use are
//! *drained*: nothing of them is handed out, and the owners of what lies in them are asked to give it up
//! or to move it (`reclaim`).
//!
//! Bytes are shared with the kernel (reads and writes in flight) and with other threads, so they are
//! reached by raw copies; who may write a frame when is decided above (a shared frame is frozen).

mod map;
mod reclaim;
mod slabs;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use client::pool::Pool;
use thiserror::Error;
use types::frame::{FRAME_SIZE, FRAMES_PER_SLAB};
use types::{FrameRef, InodeId, SmallBytes, Span, limits};

use map::Map;
use reclaim::{Descriptor, Shortage};
use slabs::Slabs;

/// Bytes of a slab.
pub const SLAB_SIZE: usize = FRAME_SIZE * FRAMES_PER_SLAB as usize;

/// Why there is no pool.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The size is not between one slab and the most that frame numbers reach: choose another.
    #[error("pagepool size {size} is not between 1 MiB and 16 TiB")]
    Size {
        /// Bytes asked for.
        size: u64,
    },
    /// The system has no memory or address space for it: choose a smaller one.
    #[error("pagepool of {size} bytes: {what}: {source}")]
    Memory {
        /// Bytes asked for.
        size: u64,
        /// The call that failed.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// What the pool did since it was made, and how full it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounters {
    /// Frames in all.
    pub frame_count: u64,
    /// Frames without a reference.
    pub free_frame_count: u64,
    /// Slabs handed out whole.
    pub slab_alloc_count: u64,
    /// Requests for a frame or slab that found none.
    pub refused_count: u64,
    /// Bytes copied between frames and out of and into them.
    pub copied_size: u64,
}

/// The pagepool. Cheap to share: `Arc<Pagepool>`.
#[derive(Debug)]
pub struct Pagepool {
    map: Map,
    /// Apart from the descriptors: sixteen counts share a cache line, and every use of a frame on another
    /// processor moves the line.
    references: Box<[AtomicU32]>,
    descriptors: Box<[Descriptor]>,
    slabs: Slabs,
    shortage: Shortage,
    free_frame_count: AtomicU64,
    slab_alloc_count: AtomicU64,
    refused_count: AtomicU64,
    copied_size: AtomicU64,
}

impl Pagepool {
    /// A pool of `size` bytes, rounded down to whole slabs. Memory is taken as it is touched.
    pub fn new(size: u64) -> Result<Arc<Self>, PoolError> {
        let slab_count = u32::try_from(size / SLAB_SIZE as u64).unwrap_or(u32::MAX);
        if slab_count == 0 || slab_count > u32::MAX / FRAMES_PER_SLAB {
            return Err(PoolError::Size { size });
        }
        let map = Map::new(slab_count as usize * SLAB_SIZE)?;
        let frame_count = slab_count * FRAMES_PER_SLAB;
        Ok(Arc::new(Self {
            map,
            references: (0..frame_count).map(|_| AtomicU32::new(0)).collect(),
            descriptors: (0..frame_count).map(|_| Descriptor::default()).collect(),
            slabs: Slabs::new(slab_count),
            shortage: Shortage::default(),
            free_frame_count: AtomicU64::new(frame_count.into()),
            slab_alloc_count: AtomicU64::new(0),
            refused_count: AtomicU64::new(0),
            copied_size: AtomicU64::new(0),
        }))
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> PoolCounters {
        PoolCounters {
            frame_count: self.references.len() as u64,
            free_frame_count: self.free_frame_count.load(Ordering::Relaxed),
            slab_alloc_count: self.slab_alloc_count.load(Ordering::Relaxed),
            refused_count: self.refused_count.load(Ordering::Relaxed),
            copied_size: self.copied_size.load(Ordering::Relaxed),
        }
    }

    /// The span as the kernel's scatter-gather calls take it. The caller keeps references on its frames
    /// for as long as the kernel may use it, and allows writes by the kernel only when nobody else reads.
    #[must_use]
    pub fn iovec(&self, span: Span) -> libc::iovec {
        libc::iovec {
            iov_base: self.address(span).cast(),
            iov_len: span.length as usize,
        }
    }

    /// The bytes of `span`.
    ///
    /// # Safety
    /// While the slice lives, the caller holds a reference on every frame of the span and nobody, the
    /// kernel included, writes those bytes.
    #[must_use]
    pub unsafe fn slice(&self, span: Span) -> &[u8] {
        // SAFETY: `address` checked that the span lies in the mapping, which lives as long as `self`; the
        // caller promises that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.address(span), span.length as usize) }
    }

    /// The bytes of `span`, to be written.
    ///
    /// # Safety
    /// While the slice lives, the caller holds the only reference on every frame of the span (or agreed
    /// with the other holders), and nobody else, the kernel included, reads or writes those bytes.
    #[must_use]
    #[allow(
        clippy::mut_from_ref,
        reason = "the pool is shared memory; the contract says who may"
    )]
    pub unsafe fn slice_mut(&self, span: Span) -> &mut [u8] {
        // SAFETY: as in `slice`; the caller promises that nobody else uses those bytes.
        unsafe { std::slice::from_raw_parts_mut(self.address(span), span.length as usize) }
    }

    /// Has the system give the memory of the first `size` bytes now; contents stay. Returns how many it
    /// gave (all, unless memory is short or the kernel is older than 5.14).
    ///
    /// Memory touched for the first time costs 785 to 1940 us per MiB on a virtual machine, afterwards
    /// 43 us: a daemon calls this on a thread of its own when it starts. May run beside all other use.
    pub fn populate(&self, size: u64) -> u64 {
        let slab_count = self.map.size() / SLAB_SIZE;
        let wanted = usize::try_from(size)
            .unwrap_or(usize::MAX)
            .div_ceil(SLAB_SIZE);
        let given = (0..slab_count.min(wanted)).take_while(|slab| {
            let begin = self.map.base().wrapping_add(slab * SLAB_SIZE);
            // SAFETY: a slab of the mapping; the advice leaves its contents alone.
            unsafe { libc::madvise(begin.cast(), SLAB_SIZE, libc::MADV_POPULATE_WRITE) == 0 }
        });
        (given.count() * SLAB_SIZE) as u64
    }

    /// First byte of the mapping and its length, to register it with a ring.
    #[must_use]
    pub fn memory(&self) -> libc::iovec {
        libc::iovec {
            iov_base: self.map.base().cast(),
            iov_len: self.map.size(),
        }
    }

    /// The frames that `span` touches.
    pub fn frames(span: Span) -> impl Iterator<Item = FrameRef> {
        assert!(
            (span.offset as usize) < FRAME_SIZE,
            "an offset is within its frame"
        );
        let frame_count = (span.offset as usize + span.length as usize).div_ceil(FRAME_SIZE);
        let frame_count = u32::try_from(frame_count).expect("a span never leaves its slab");
        (span.frame.0..span.frame.0 + frame_count).map(FrameRef)
    }

    /// Adds a reference to every frame that `span` touches.
    pub fn retain_span(&self, span: Span) {
        for frame in Self::frames(span) {
            self.retain(frame);
        }
    }

    /// Drops a reference of every frame that `span` touches.
    pub fn release_span(&self, span: Span) {
        for frame in Self::frames(span) {
            self.release(frame);
        }
    }

    fn address(&self, span: Span) -> *mut u8 {
        let begin = span.frame.0 as usize * FRAME_SIZE + span.offset as usize;
        assert!(
            begin + span.length as usize <= self.map.size(),
            "the span lies in the pool"
        );
        self.map.base().wrapping_add(begin)
    }

    fn references(&self, frame: FrameRef) -> &AtomicU32 {
        &self.references[frame.0 as usize]
    }

    fn count_copied(&self, size: u32) {
        self.copied_size.fetch_add(size.into(), Ordering::Relaxed);
    }
}

impl Pool for Pagepool {
    fn alloc(&self) -> Option<FrameRef> {
        let Some(frame) = self.slabs.take_frame() else {
            self.refused_count.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.free_frame_count.fetch_sub(1, Ordering::Relaxed);
        let old = self.references(frame).swap(1, Ordering::Relaxed);
        assert_eq!(old, 0, "a free frame has no reference");
        Some(frame)
    }

    fn alloc_slab(&self) -> Option<FrameRef> {
        let slab = self.slabs.take_slab();
        if self.is_short_of_slabs() {
            self.shortage.tell();
        }
        let Some(slab) = slab else {
            self.refused_count.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        self.free_frame_count
            .fetch_sub(FRAMES_PER_SLAB.into(), Ordering::Relaxed);
        self.slab_alloc_count.fetch_add(1, Ordering::Relaxed);
        let first = slab * FRAMES_PER_SLAB;
        for frame in first..first + FRAMES_PER_SLAB {
            let old = self.references(FrameRef(frame)).swap(1, Ordering::Relaxed);
            assert_eq!(old, 0, "a free slab's frames have no reference");
        }
        Some(FrameRef(first))
    }

    fn retain(&self, frame: FrameRef) {
        let old = self.references(frame).fetch_add(1, Ordering::Relaxed);
        assert!(old > 0, "only who holds a reference adds one");
        assert!(old < u32::MAX / 2, "references are released");
    }

    fn own_run(&self, first: FrameRef, count: u32, ino: InodeId, page: u64) {
        for (at, page) in (first.0..first.0 + count).zip(page..) {
            self.descriptors[at as usize].set(ino, page);
        }
    }

    fn release(&self, frame: FrameRef) {
        // Release, so that what this holder did to the bytes is done before another takes the frame;
        // Acquire, so that it is done before the frame is seen free here.
        let old = self.references(frame).fetch_sub(1, Ordering::AcqRel);
        assert!(old > 0, "a reference is released once");
        if old == 1 {
            self.free_frame_count.fetch_add(1, Ordering::Relaxed);
            self.slabs.give_frame(frame);
        }
    }

    fn is_shared(&self, frame: FrameRef) -> bool {
        self.references(frame).load(Ordering::Acquire) > 1
    }

    fn copy(&self, source: Span, target: Span) {
        assert_eq!(source.length, target.length);
        self.count_copied(source.length);
        // SAFETY: `address` checked both spans; `ptr::copy` allows overlap, so that a caller's mistake
        // spoils bytes at worst.
        unsafe {
            std::ptr::copy(
                self.address(source),
                self.address(target),
                source.length as usize,
            );
        }
    }

    fn zero(&self, target: Span) {
        // SAFETY: `address` checked the span.
        unsafe { std::ptr::write_bytes(self.address(target), 0, target.length as usize) };
    }

    fn load(&self, source: Span) -> SmallBytes {
        assert!(source.length as usize <= limits::SMALL_BYTES_MAX);
        self.count_copied(source.length);
        let mut bytes = Vec::with_capacity(source.length as usize);
        // SAFETY: `address` checked the span; the vector has room for all of it and is new, so that the
        // two do not overlap; all of it is initialised before the length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address(source),
                bytes.as_mut_ptr(),
                source.length as usize,
            );
            bytes.set_len(source.length as usize);
        }
        bytes.into()
    }

    fn store(&self, target: Span, bytes: &[u8]) {
        assert!(bytes.len() <= target.length as usize);
        self.copied_size
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // SAFETY: `address` checked the span, which is at least as long as `bytes`. `ptr::copy` allows
        // overlap, should `bytes` be a slice of this very pool.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.address(target), bytes.len()) };
    }

    fn crc(&self, source: Span) -> u32 {
        // SAFETY: the caller holds a reference, and checksums frozen bytes (trait's contract).
        types::crc32c(unsafe { self.slice(source) })
    }

    fn frame_counts(&self) -> (u64, u64) {
        let counters = self.counters();
        (counters.frame_count, counters.free_frame_count)
    }
}

/// The same pool as the FUSE transports see it.
impl crate::fuse::Memory for Pagepool {
    fn alloc_slab(&self) -> Option<FrameRef> {
        self.alloc_request_slab()
    }

    fn retain(&self, frame: FrameRef) {
        Pool::retain(self, frame);
    }

    fn release(&self, frame: FrameRef) {
        Pool::release(self, frame);
    }

    fn is_shared(&self, frame: FrameRef) -> bool {
        Pool::is_shared(self, frame)
    }

    fn address(&self, frame: FrameRef) -> *mut u8 {
        Self::address(self, Span::whole(frame))
    }
}

#[cfg(test)]
mod tests;
