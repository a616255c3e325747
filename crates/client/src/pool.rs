//! The pagepool as the client core sees it: memory is an argument, like time.
//!
//! A frame lives while someone holds a reference: the page index, an answer on its way to the kernel, a
//! disk write in flight. A frame with more than one reference is frozen: who wants to write it takes a
//! copy first, so that what was checksummed is what is written.

use types::{FrameRef, InodeId, SmallBytes, Span};

/// Frames by handle. All methods may be called from any thread; a method never blocks.
pub trait Pool {
    /// One frame with one reference and undefined contents; `None` when the limit is reached.
    fn alloc(&self) -> Option<FrameRef>;
    /// 256 adjacent frames (a whole slab) with one reference each; the first is returned.
    fn alloc_slab(&self) -> Option<FrameRef>;
    /// Adds a reference.
    fn retain(&self, frame: FrameRef);
    /// Drops a reference; the last one frees the frame.
    fn release(&self, frame: FrameRef);
    /// Adds a reference to each of `count` adjacent frames from `first` on.
    fn retain_run(&self, first: FrameRef, count: u32) {
        for number in first.0..first.0 + count {
            self.retain(FrameRef(number));
        }
    }
    /// Notes whose pages `count` adjacent frames from `first` on are: those of `ino` from `page` on.
    /// A pool that never asks for frames back need not know.
    fn own_run(&self, _first: FrameRef, _count: u32, _ino: InodeId, _page: u64) {}
    /// More than one reference: frozen.
    fn is_shared(&self, frame: FrameRef) -> bool;
    /// Copies bytes; the spans have the same length and do not overlap.
    fn copy(&self, source: Span, target: Span);
    /// Fills with zeros.
    fn zero(&self, target: Span);
    /// The bytes of a small span (at most `limits::SMALL_BYTES_MAX`).
    fn load(&self, source: Span) -> SmallBytes;
    /// Writes `bytes` at the start of `target`, which is at least as long.
    fn store(&self, target: Span, bytes: &[u8]);
    /// CRC32C of the bytes.
    fn crc(&self, source: Span) -> u32;
    /// Frames in all, and frames without a reference.
    fn frame_counts(&self) -> (u64, u64);
}
