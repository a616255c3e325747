//! The pagepool as the client core sees it: memory is an argument, like time.
//!
//! A frame lives while someone holds a reference: the page index, an answer on its way to the kernel, a
//! disk write in flight. A frame with more than one reference is frozen: who wants to write it takes a
//! copy first, so that what was checksummed is what is written.

//! Who waits for frames (`Waiting::Frames`, `Effect::WantFrames`) gets some, because each level below leaves
//! enough for the next. From a full pool down:
//! - `low`: the driver has the slices evict what is clean and write back what is dirty.
//! - `requests`: no more requests are taken from the kernel, so that parked writes never hold what their own
//!   way into the page index needs.
//! - `reserve`: the page index takes no more frames. Below it are the journal, checksum sectors, moves of pieces to
//!   sectors, and other nodes' data: each of these ends by itself and gives back what it took.
//!
//! So when a request waits, either pages are cached (clean ones are evicted; dirty ones have a flush that needs
//! nothing above `reserve`), or loads are on their way, or frames are free. `Slice::check_frames` asserts it.

use types::frame::FRAMES_PER_SLAB;
use types::{ByteRange, FrameRef, InodeId, SmallBytes, Span};

use crate::io::BLOCK_SIZE;
use crate::pages::PAGE_SIZE;

/// Free frames below which a pool gives less, see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// The page index leaves so many to what writes its dirty pages back.
    pub reserve: u64,
    /// The front end takes no request in that would leave fewer: the page index can still take a write of the
    /// largest size whose pages it must copy.
    pub requests: u64,
    /// So it takes none in where fewer are free than these: what is stored is committed then, however little it is, so that it can be evicted.
    pub intake: u64,
    /// Clean pages are evicted and dirty ones written back.
    pub low: u64,
}

impl Levels {
    /// Those of a pool of `total` frames.
    pub fn of(total: u64) -> Self {
        // A flush of the journal with one large record, a move of pieces to sectors, checksums.
        const NEEDS: u64 = 512 + 256 + 64;
        // The largest write, and as much again.
        const STEP: u64 = 2 * FRAMES_PER_SLAB as u64;
        let reserve = (total / 32).max(NEEDS).min(total / 4);
        let requests = (reserve + STEP).min(total / 2);
        let intake = requests + u64::from(FRAMES_PER_SLAB);
        let low = (total / 8).max(requests + STEP);
        Self {
            reserve,
            requests,
            intake,
            low,
        }
    }
}

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
    /// When it gives less.
    fn levels(&self) -> Levels {
        Levels::of(self.frame_counts().0)
    }
}

/// Frames for the pages of `part`, adjacent ones for a whole block: fewer than it has when the pool is full.
pub(crate) fn frames_for(part: ByteRange, pool: &dyn Pool) -> Vec<(u64, FrameRef)> {
    let numbers = part.begin / PAGE_SIZE..part.end / PAGE_SIZE;
    // Some frames are kept for what writes dirty ones back.
    let room = pool.frame_counts().1.saturating_sub(pool.levels().reserve);
    if part.length() == BLOCK_SIZE
        && room >= u64::from(FRAMES_PER_SLAB)
        && let Some(first) = pool.alloc_slab()
    {
        return numbers.zip((first.0..).map(FrameRef)).collect();
    }
    let mut pages = Vec::with_capacity(usize::try_from(part.length() / PAGE_SIZE).unwrap_or(0));
    for number in numbers {
        if pages.len() as u64 >= room {
            break;
        }
        match pool.alloc() {
            Some(frame) => pages.push((number, frame)),
            None => break,
        }
    }
    pages
}
