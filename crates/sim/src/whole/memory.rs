//! A node's pagepool in the simulator: frames with reference counts, whose misuse is found.
//!
//! It may be tiny: as many frames as a limit says, at addresses of which there are always enough, so that a request's
//! payload finds adjacent ones. That slabs get whole again is tested with the real pool.
//!
//! A fresh frame holds rubbish, a freed one may not be touched, and a frame may not be freed twice: each of
//! these is a panic, which the world reports as a violation.

use std::cell::RefCell;
use std::collections::BTreeSet;

use client::Pool;
use client::pool::Levels;
use types::frame::{FRAME_SIZE, FRAMES_PER_SLAB};
use types::{FrameRef, SmallBytes, Span, crc32c};

use crate::model::PAGE_COUNT;

/// What fresh frames hold: no cell has this value.
const RUBBISH: u8 = 0xEE;

#[derive(Debug, Default)]
struct Frame {
    references: u32,
    /// `None`: nothing was ever written since it was handed out.
    bytes: Option<Box<[u8]>>,
}

#[derive(Debug, Default)]
struct Inner {
    frames: Vec<Frame>,
    /// Free frames of slabs that are partly used, and slabs that are whole.
    free: BTreeSet<u32>,
    slabs: BTreeSet<u32>,
    limit: u64,
    used: u64,
}

/// Slabs of addresses.
const SLAB_COUNT: u32 = 64;
/// The most frames that a call of the kernel model touches, and one more that it may have to copy.
const CALL_FRAMES_MAX: u64 = PAGE_COUNT as u64 + 1;

/// See the module.
#[derive(Debug)]
pub struct Memory {
    inner: RefCell<Inner>,
}

impl Memory {
    /// With `limit` frames, at most 64 slabs of 256.
    pub fn new(limit: u64) -> Self {
        let count = SLAB_COUNT * FRAMES_PER_SLAB;
        assert!(limit <= count.into());
        let inner = Inner {
            frames: Vec::new(),
            free: BTreeSet::new(),
            slabs: (0..SLAB_COUNT).collect(),
            limit,
            used: 0,
        };
        Self {
            inner: RefCell::new(inner),
        }
    }

    /// The bytes of a span.
    pub fn read(&self, span: Span) -> Vec<u8> {
        let inner = self.inner.borrow();
        let mut bytes = Vec::with_capacity(span.length as usize);
        for part in parts(span) {
            let frame = inner.live(part.0);
            match &frame.bytes {
                Some(all) => bytes.extend_from_slice(&all[part.1..part.1 + part.2]),
                None => bytes.resize(bytes.len() + part.2, RUBBISH),
            }
        }
        bytes
    }

    /// Frames in use.
    pub fn used(&self) -> u64 {
        self.inner.borrow().used
    }

    /// `count` adjacent frames for a request of the kernel; `None` while the page index may need what is free
    /// (`os::pool`).
    pub fn alloc_request(&self, count: u32) -> Option<FrameRef> {
        let (_, free) = self.frame_counts();
        if free < self.levels().requests + u64::from(count) {
            return None;
        }
        self.inner.borrow_mut().take_run(count)
    }
}

/// Frame, offset and length of each piece of a span.
fn parts(span: Span) -> Vec<(FrameRef, usize, usize)> {
    let mut parts = Vec::new();
    let (mut frame, mut offset, mut left) =
        (span.frame.0, span.offset as usize, span.length as usize);
    while left > 0 {
        let count = left.min(FRAME_SIZE - offset);
        parts.push((FrameRef(frame), offset, count));
        (frame, offset, left) = (frame + 1, 0, left - count);
    }
    parts
}

impl Inner {
    /// The first frame of a whole slab.
    fn take_slab(&mut self) -> Option<u32> {
        let first = self.slabs.pop_first()? * FRAMES_PER_SLAB;
        let end = (first + FRAMES_PER_SLAB) as usize;
        if self.frames.len() < end {
            self.frames.resize_with(end, Frame::default);
        }
        Some(first)
    }

    /// The first `count` frames of a whole slab.
    fn take_run(&mut self, count: u32) -> Option<FrameRef> {
        if self.used + u64::from(count) > self.limit {
            return None;
        }
        let first = self.take_slab()?;
        self.used += u64::from(count);
        for frame in first..first + count {
            self.frames[frame as usize].references = 1;
        }
        self.free.extend(first + count..first + FRAMES_PER_SLAB);
        Some(FrameRef(first))
    }

    fn live(&self, frame: FrameRef) -> &Frame {
        let found = &self.frames[frame.0 as usize];
        assert!(found.references > 0, "{frame:?} is used after it was freed");
        found
    }

    fn bytes(&mut self, frame: FrameRef) -> &mut [u8] {
        let found = &mut self.frames[frame.0 as usize];
        assert!(found.references > 0, "{frame:?} is used after it was freed");
        found
            .bytes
            .get_or_insert_with(|| vec![RUBBISH; FRAME_SIZE].into_boxed_slice())
    }
}

impl Pool for Memory {
    fn alloc(&self) -> Option<FrameRef> {
        let mut inner = self.inner.borrow_mut();
        if inner.used == inner.limit {
            return None;
        }
        if inner.free.is_empty() {
            let first = inner.take_slab()?;
            inner.free.extend(first..first + FRAMES_PER_SLAB);
        }
        let frame = inner.free.pop_first().expect("filled above");
        inner.frames[frame as usize].references = 1;
        inner.used += 1;
        Some(FrameRef(frame))
    }

    fn alloc_slab(&self) -> Option<FrameRef> {
        self.inner.borrow_mut().take_run(FRAMES_PER_SLAB)
    }

    fn retain(&self, frame: FrameRef) {
        let mut inner = self.inner.borrow_mut();
        let found = &mut inner.frames[frame.0 as usize];
        assert!(
            found.references > 0,
            "{frame:?} is retained after it was freed"
        );
        found.references += 1;
    }

    fn release(&self, frame: FrameRef) {
        let mut inner = self.inner.borrow_mut();
        let found = &mut inner.frames[frame.0 as usize];
        assert!(found.references > 0, "{frame:?} is freed twice");
        found.references -= 1;
        if found.references > 0 {
            return;
        }
        found.bytes = None;
        inner.used -= 1;
        inner.free.insert(frame.0);
        let first = frame.0 / FRAMES_PER_SLAB * FRAMES_PER_SLAB;
        let slab = first..first + FRAMES_PER_SLAB;
        let count = inner.free.range(slab.clone()).count();
        if count == FRAMES_PER_SLAB as usize {
            for frame in slab {
                inner.free.remove(&frame);
            }
            inner.slabs.insert(first / FRAMES_PER_SLAB);
        }
    }

    fn is_shared(&self, frame: FrameRef) -> bool {
        self.inner.borrow().live(frame).references > 1
    }

    fn copy(&self, source: Span, target: Span) {
        assert_eq!(source.length, target.length);
        let bytes = self.read(source);
        self.store(target, &bytes);
    }

    fn zero(&self, target: Span) {
        self.store(target, &vec![0; target.length as usize]);
    }

    fn load(&self, source: Span) -> SmallBytes {
        SmallBytes::new(&self.read(source))
    }

    fn store(&self, target: Span, bytes: &[u8]) {
        let mut inner = self.inner.borrow_mut();
        let mut done = 0;
        let length = u32::try_from(bytes.len()).expect("a span's worth");
        assert!(length <= target.length);
        for (frame, offset, count) in parts(Span { length, ..target }) {
            inner.bytes(frame)[offset..offset + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
    }

    fn crc(&self, source: Span) -> u32 {
        crc32c(&self.read(source))
    }

    fn frame_counts(&self) -> (u64, u64) {
        let inner = self.inner.borrow();
        (inner.limit, inner.limit - inner.used)
    }

    fn levels(&self) -> Levels {
        let total = self.frame_counts().0;
        if total >= FRAMES_PER_SLAB.into() {
            return Levels::of(total);
        }
        let reserve = 2;
        let requests = reserve + CALL_FRAMES_MAX;
        Levels {
            reserve,
            requests,
            intake: requests + CALL_FRAMES_MAX,
            low: requests + CALL_FRAMES_MAX,
        }
    }
}
