//! The pagepool as the FUSE transports use it, and a plain implementation for tests and examples.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use types::frame::{FRAME_BYTES, FRAME_SIZE, FRAMES_PER_SLAB};
use types::{FrameRef, Span};

/// Pagepool memory by handle. Methods may be called from any thread and do not block.
///
/// A frame lives while someone holds a reference. Who holds one may read the frame; only who holds the
/// only one may write to it.
pub trait Memory: std::fmt::Debug + Send + Sync + 'static {
    /// 256 adjacent frames with one reference each; the first is returned. `None` when none are free.
    fn alloc_slab(&self) -> Option<FrameRef>;
    /// Adds a reference.
    fn retain(&self, frame: FrameRef);
    /// Drops a reference; the last one frees the frame.
    fn release(&self, frame: FrameRef);
    /// More than one reference: frozen.
    fn is_shared(&self, frame: FrameRef) -> bool;
    /// Address of a frame's first byte. The frames of a slab are adjacent. Valid while the memory lives.
    fn address(&self, frame: FrameRef) -> *mut u8;

    /// The bytes of a span.
    ///
    /// # Safety
    /// The caller holds a reference of each frame of the span for as long as it uses the bytes, and
    /// nobody writes to them meanwhile.
    unsafe fn slice(&self, span: Span) -> &[u8] {
        // SAFETY: the span lies within one slab of adjacent frames; the caller answers for the rest.
        unsafe {
            let first = self.address(span.frame).add(span.offset as usize);
            std::slice::from_raw_parts(first, span.length as usize)
        }
    }

    /// Drops one reference of each frame that `span` touches.
    fn release_span(&self, span: Span) {
        for frame in frames_of(span) {
            self.release(frame);
        }
    }
}

/// Every frame that a span touches.
pub(super) fn frames_of(span: Span) -> impl Iterator<Item = FrameRef> {
    let count = (span.offset + span.length).div_ceil(FRAME_BYTES);
    (0..count).map(move |index| FrameRef(span.frame.0 + index))
}

/// A fixed number of slabs in one anonymous mapping, with a reference count per frame.
///
/// Only whole slabs are handed out; a slab is free again when none of its frames has a reference.
#[derive(Debug)]
pub struct Slabs {
    base: *mut u8,
    size: usize,
    references: Vec<AtomicU32>,
    /// Frames in use of each slab.
    used: Vec<AtomicU32>,
    free: Mutex<Vec<u32>>,
}

// SAFETY: the mapping is plain memory that lives as long as the value; counts are atomics, and who may
// touch which bytes is the contract of `Memory`.
unsafe impl Send for Slabs {}
// SAFETY: as above.
unsafe impl Sync for Slabs {}

impl Slabs {
    /// `count` slabs of 1 MiB.
    ///
    /// # Errors
    /// The kernel's error of mmap.
    pub fn new(count: u32) -> std::io::Result<Self> {
        let frame_count = count as usize * FRAMES_PER_SLAB as usize;
        let size = frame_count * FRAME_SIZE;
        // SAFETY: a fresh anonymous mapping; no existing memory is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            base: base.cast(),
            size,
            references: (0..frame_count).map(|_| AtomicU32::new(0)).collect(),
            used: (0..count).map(|_| AtomicU32::new(0)).collect(),
            free: Mutex::new((0..count).rev().collect()),
        })
    }

    /// Slabs without a reference.
    pub fn free_count(&self) -> usize {
        self.free.lock().expect("no holder panics").len()
    }
}

impl Drop for Slabs {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody can hold an address beyond the value's life.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

impl Memory for Slabs {
    fn alloc_slab(&self) -> Option<FrameRef> {
        let slab = self.free.lock().expect("no holder panics").pop()?;
        let first = slab * FRAMES_PER_SLAB;
        for index in first..first + FRAMES_PER_SLAB {
            self.references[index as usize].store(1, Ordering::Relaxed);
        }
        self.used[slab as usize].store(FRAMES_PER_SLAB, Ordering::Release);
        Some(FrameRef(first))
    }

    fn retain(&self, frame: FrameRef) {
        let before = self.references[frame.0 as usize].fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "a reference is added by who holds one");
    }

    fn release(&self, frame: FrameRef) {
        let before = self.references[frame.0 as usize].fetch_sub(1, Ordering::Release);
        assert!(
            before > 0,
            "a frame is released as often as it was retained"
        );
        if before == 1 {
            let slab = frame.0 / FRAMES_PER_SLAB;
            if self.used[slab as usize].fetch_sub(1, Ordering::AcqRel) == 1 {
                self.free.lock().expect("no holder panics").push(slab);
            }
        }
    }

    fn is_shared(&self, frame: FrameRef) -> bool {
        self.references[frame.0 as usize].load(Ordering::Acquire) > 1
    }

    fn address(&self, frame: FrameRef) -> *mut u8 {
        let offset = frame.0 as usize * FRAME_SIZE;
        assert!(offset < self.size);
        // SAFETY: within the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test is how tests report")]
mod tests {
    use super::*;

    #[test]
    fn a_slab_is_free_when_its_last_frame_is() {
        let slabs = Slabs::new(2).unwrap();
        let first = slabs.alloc_slab().unwrap();
        let second = slabs.alloc_slab().unwrap();
        assert_eq!(slabs.alloc_slab(), None);
        let whole = Span {
            frame: first,
            offset: 0,
            length: 1 << 20,
        };
        let kept = FrameRef(first.0 + 7);
        slabs.retain(kept);
        assert!(slabs.is_shared(kept));
        slabs.release_span(whole);
        assert_eq!(slabs.free_count(), 0);
        slabs.release(kept);
        assert_eq!(slabs.free_count(), 1);
        assert!(!slabs.is_shared(second));
        assert_eq!(slabs.alloc_slab(), Some(first));
    }

    #[test]
    fn a_span_touches_the_frames_it_overlaps() {
        let count = |offset, length| {
            let frame = FrameRef(3);
            frames_of(Span {
                frame,
                offset,
                length,
            })
            .count()
        };
        assert_eq!(count(0, 1), 1);
        assert_eq!(count(0, 4096), 1);
        assert_eq!(count(0, 4097), 2);
        assert_eq!(count(4095, 2), 2);
        assert_eq!(count(0, 1 << 20), 256);
    }
}
