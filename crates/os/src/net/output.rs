//! The sending half of a connection: a bounded queue and at most one writer at a time.
//!
//! Invariants
//! - `is_writing` is true while exactly one thread drains the queue; others only append.
//! - The queue is not empty and nobody writes: the socket was full, and its loop is told when it no longer
//!   is, or the sender has left the writing to the loop (`is_blocked` in both cases; `on_writable` ends it).
//!   Readiness that is told while somebody writes makes the writer try again.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::sync::Mutex;

use types::Span;
use types::wire::HEADER_SIZE;

use super::{QUEUE_COUNT_MAX, QUEUE_SIZE_MAX, socket};
use crate::loops::lock;
use crate::pool::Pagepool;

/// Most frames of one system call.
const BATCH_COUNT: usize = 32;
/// Most pieces of memory of one system call (IOV_MAX).
const PIECE_COUNT_MAX: usize = 1024;

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) header: [u8; HEADER_SIZE],
    pub(super) meta: Vec<u8>,
    pub(super) payload: Vec<Span>,
}

impl Outgoing {
    pub(super) fn size(&self) -> usize {
        HEADER_SIZE + self.meta.len() + self.payload_size()
    }

    /// Bytes of the payload.
    pub(super) fn payload_size(&self) -> usize {
        self.payload.iter().map(|span| span.length as usize).sum()
    }

    /// Appends its pieces but for the first `skip` bytes.
    fn pieces(&self, pool: &Pagepool, mut skip: usize, pieces: &mut Vec<libc::iovec>) {
        let own = |bytes: &[u8]| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let payload = self.payload.iter().map(|span| pool.iovec(*span));
        for mut piece in [own(&self.header), own(&self.meta)]
            .into_iter()
            .chain(payload)
        {
            let skipped = skip.min(piece.iov_len);
            skip -= skipped;
            piece.iov_base = piece.iov_base.wrapping_byte_add(skipped);
            piece.iov_len -= skipped;
            if piece.iov_len > 0 {
                pieces.push(piece);
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Outgoing>,
    /// Frames and bytes accepted and not yet with the kernel.
    count: usize,
    size: usize,
    is_writing: bool,
    is_blocked: bool,
    is_retry: bool,
    is_closed: bool,
}

/// What only the writer touches.
#[derive(Debug, Default)]
struct Active {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that are with the kernel.
    sent: usize,
}

/// The sending half.
#[derive(Debug, Default)]
pub(super) struct Output {
    state: Mutex<State>,
    active: Mutex<Active>,
}

/// Why a frame was not taken.
#[derive(Debug)]
pub(super) enum Refused {
    Full(Outgoing),
    Closed(Outgoing),
}

/// How a drain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Drained {
    /// Everything is with the kernel, or another thread sees to it.
    Done,
    /// The socket is full.
    Blocked,
    /// The loop is to call `on_writable`.
    Left,
    /// The connection is broken.
    Broken,
}

impl Output {
    /// Takes a frame, and sends as much as the socket takes now unless another thread is at it, or the sender
    /// leaves that to the connection's loop (`is_left`).
    pub(super) fn send(
        &self,
        stream: &TcpStream,
        pool: &Pagepool,
        frame: Outgoing,
        is_left: bool,
    ) -> Result<Drained, Refused> {
        let size = frame.size();
        let mut state = lock(&self.state);
        if state.is_closed {
            return Err(Refused::Closed(frame));
        }
        let is_full = state.count >= QUEUE_COUNT_MAX
            || (state.count > 0 && state.size + size > QUEUE_SIZE_MAX);
        if is_full {
            return Err(Refused::Full(frame));
        }
        state.count += 1;
        state.size += size;
        state.queue.push_back(frame);
        if state.is_writing {
            return Ok(Drained::Done);
        }
        if state.is_blocked {
            return Ok(Drained::Blocked);
        }
        if is_left {
            state.is_blocked = true;
            return Ok(Drained::Left);
        }
        state.is_writing = true;
        drop(state);
        Ok(self.drain(stream, pool))
    }

    /// The socket takes bytes again.
    pub(super) fn on_writable(&self, stream: &TcpStream, pool: &Pagepool) -> Drained {
        let mut state = lock(&self.state);
        if state.is_writing {
            state.is_retry = true;
            return Drained::Done;
        }
        if !state.is_blocked || state.is_closed {
            return Drained::Done;
        }
        state.is_blocked = false;
        state.is_writing = true;
        drop(state);
        self.drain(stream, pool)
    }

    /// Throws away what waits, and refuses from now on.
    pub(super) fn close(&self, pool: &Pagepool) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        // A writer that is at it finds the socket shut down, and ends; then its frames are ours.
        let active = std::mem::take(&mut lock(&self.active).frames);
        for frame in active.into_iter().chain(queue) {
            release(pool, &frame);
        }
    }

    fn drain(&self, stream: &TcpStream, pool: &Pagepool) -> Drained {
        let mut active = lock(&self.active);
        let mut pieces = Vec::new();
        loop {
            let mut state = lock(&self.state);
            while active.frames.len() < BATCH_COUNT {
                match state.queue.pop_front() {
                    Some(frame) => active.frames.push_back(frame),
                    None => break,
                }
            }
            if active.frames.is_empty() {
                state.is_writing = false;
                return Drained::Done;
            }
            drop(state);
            pieces.clear();
            let mut skip = active.sent;
            for frame in &active.frames {
                frame.pieces(pool, skip, &mut pieces);
                skip = 0;
                if pieces.len() >= PIECE_COUNT_MAX {
                    pieces.truncate(PIECE_COUNT_MAX);
                    break;
                }
            }
            // SAFETY: the pieces are parts of frames in `active`, which holds them and their references.
            match unsafe { socket::send(stream, &mut pieces) } {
                Ok(socket::Moved::Bytes(size)) => self.on_sent(&mut active, pool, size),
                Ok(socket::Moved::Blocked) => {
                    let mut state = lock(&self.state);
                    if !std::mem::take(&mut state.is_retry) {
                        state.is_blocked = true;
                        state.is_writing = false;
                        return Drained::Blocked;
                    }
                }
                Ok(socket::Moved::End) | Err(_) => {
                    let mut state = lock(&self.state);
                    state.is_closed = true;
                    state.is_writing = false;
                    return Drained::Broken;
                }
            }
        }
    }

    fn on_sent(&self, active: &mut Active, pool: &Pagepool, size: usize) {
        active.sent += size;
        let mut count = 0;
        while let Some(first) = active.frames.front()
            && active.sent >= first.size()
        {
            active.sent -= first.size();
            release(pool, first);
            active.frames.pop_front();
            count += 1;
        }
        let mut state = lock(&self.state);
        state.count -= count;
        state.size -= size;
    }
}

fn release(pool: &Pagepool, frame: &Outgoing) {
    for span in &frame.payload {
        pool.release_span(*span);
    }
}
