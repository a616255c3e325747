//! Handles of pagepool memory: plain values, turned into bytes by `os` alone.

/// Bytes of a frame.
pub const FRAME_SIZE: usize = 4096;
/// The same, as a [`Span`] counts.
#[allow(clippy::cast_possible_truncation, reason = "4096")]
pub const FRAME_BYTES: u32 = FRAME_SIZE as u32;
/// Frames of a slab (1 MiB).
pub const FRAMES_PER_SLAB: u32 = 256;

/// A 4 KiB frame of the pagepool, by its place in the pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameRef(pub u32);

/// Adjacent bytes of the pagepool. It never leaves its slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// Frame of the first byte.
    pub frame: FrameRef,
    /// Offset of the first byte in that frame, below `FRAME_SIZE`.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

impl Span {
    /// The whole of `frame`.
    pub const fn whole(frame: FrameRef) -> Self {
        Self {
            frame,
            offset: 0,
            length: FRAME_BYTES,
        }
    }

    /// The part from byte `skip` on, `length` bytes long.
    pub fn part(self, skip: u32, length: u32) -> Self {
        assert!(skip + length <= self.length);
        let at = self.offset + skip;
        Self {
            frame: FrameRef(self.frame.0 + at / FRAME_BYTES),
            offset: at % FRAME_BYTES,
            length,
        }
    }
}
