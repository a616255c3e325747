//! The receiving half of a connection: cuts the stream into frames, payload straight into pool frames.
//!
//! Invariants
//! - The buffer holds, from `begin` on, the header and metadata part of the frame at hand; behind them
//!   (or from `begin` on between frames) lie bytes up to `end` that have not been looked at.
//! - It grows beyond `BUFFER_SIZE` only for a metadata part of a checked header, and shrinks after it.
//! - While a payload comes in, the input holds the references of its spans.

use std::net::TcpStream;

use client::pool::Pool;
use types::frame::FRAME_SIZE;
use types::wire::{Flags, HEADER_SIZE, Header, WireError};
use types::{Crc32c, Span, crc32c};

use super::socket::{self, Moved};
use crate::pool::Pagepool;

/// Bytes asked for at once when no payload is due. More would mean more bytes of a payload that must be
/// copied from here, less more system calls for small messages.
const BUFFER_SIZE: usize = 16 << 10;
/// Room kept behind a metadata part, so that one call brings the end of a payload and what follows.
const TAIL_SIZE: usize = 4 << 10;
/// Bytes taken before other connections of the loop get their turn.
const BUDGET_SIZE: usize = 8 << 20;

/// Why a connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The other side ended it.
    #[error("closed by the other node")]
    End,
    /// The socket failed.
    #[error("{0}")]
    Socket(#[from] std::io::Error),
    /// A header is wrong.
    #[error("{0}")]
    Header(#[from] WireError),
    /// A metadata part or a covered payload does not match its checksum.
    #[error("a frame of kind {kind:#x} is damaged")]
    Damaged { kind: u16 },
    /// A header is right but not from the node that shook hands, or not at its place.
    #[error("a frame of kind {kind:#x} is not expected here")]
    Unexpected { kind: u16 },
}

/// Whether frames are still wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    Continue,
    Pause,
}

/// What takes frames.
pub(super) trait Sink {
    /// May this frame come now?
    fn on_header(&self, header: &Header) -> Result<(), Fault>;
    /// Where its payload goes.
    fn place(&self, header: &Header, meta: &[u8]) -> Vec<Span>;
    /// It is here.
    fn on_frame(&self, header: &Header, meta: &[u8], payload: Vec<Span>) -> Result<Flow, Fault>;
}

/// How a receive ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Received {
    /// All that had come is handled; readiness will be told.
    Waiting,
    /// There may be more: come back after the others.
    More,
    /// The sink wants no more for now.
    Paused,
}

#[derive(Debug)]
enum Stage {
    Header,
    Meta(Header),
    Data {
        header: Header,
        spans: Vec<Span>,
        received: usize,
    },
    Drop {
        header: Header,
        left: usize,
    },
}

enum Step {
    Again,
    Need,
    Pause,
}

/// The receiving half.
#[derive(Debug)]
pub(super) struct Input {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    stage: Stage,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            buffer: vec![0; BUFFER_SIZE],
            begin: 0,
            end: 0,
            stage: Stage::Header,
        }
    }

    /// Takes what has come. With `is_thorough`, asks until the socket says that it is empty; otherwise a
    /// short answer is taken for that (what comes later is told anew).
    pub(super) fn receive(
        &mut self,
        stream: &TcpStream,
        pool: &Pagepool,
        sink: &dyn Sink,
        is_thorough: bool,
    ) -> Result<Received, Fault> {
        let mut budget = BUDGET_SIZE;
        let mut is_empty = false;
        loop {
            loop {
                match self.step(pool, sink)? {
                    Step::Again => {}
                    Step::Need => break,
                    Step::Pause => return Ok(Received::Paused),
                }
            }
            if is_empty {
                return Ok(Received::Waiting);
            }
            if budget == 0 {
                return Ok(Received::More);
            }
            let mut pieces = self.pieces(pool);
            let asked: usize = pieces.iter().map(|piece| piece.iov_len).sum();
            // SAFETY: the pieces are the rest of spans whose references the input holds and which the
            // sink gave for this, and the free end of the buffer, which is borrowed mutably.
            match unsafe { socket::receive(stream, &mut pieces) }? {
                Moved::Bytes(size) => {
                    self.on_bytes(size);
                    budget = budget.saturating_sub(size);
                    is_empty = size < asked && !is_thorough;
                }
                Moved::Blocked => is_empty = true,
                Moved::End => return Err(Fault::End),
            }
        }
    }

    /// Drops what it holds.
    pub(super) fn close(&mut self, pool: &Pagepool) {
        if let Stage::Data { spans, .. } = std::mem::replace(&mut self.stage, Stage::Header) {
            for span in spans {
                pool.release_span(span);
            }
        }
        self.buffer = Vec::new();
        (self.begin, self.end) = (0, 0);
    }

    fn step(&mut self, pool: &Pagepool, sink: &dyn Sink) -> Result<Step, Fault> {
        match &self.stage {
            Stage::Header => self.step_header(sink),
            Stage::Meta(header) => {
                let header = *header;
                self.step_meta(&header, pool, sink)
            }
            Stage::Data {
                spans, received, ..
            } if *received == span_size(spans) => {
                let stage = std::mem::replace(&mut self.stage, Stage::Header);
                let Stage::Data { header, spans, .. } = stage else {
                    unreachable!("just seen");
                };
                self.check_covered(&header, pool, &spans)?;
                self.deliver(&header, spans, sink)
            }
            Stage::Drop { left: 0, header } => {
                let header = *header;
                self.stage = Stage::Header;
                self.deliver(&header, Vec::new(), sink)
            }
            Stage::Data { .. } | Stage::Drop { .. } => Ok(Step::Need),
        }
    }

    fn step_header(&mut self, sink: &dyn Sink) -> Result<Step, Fault> {
        if self.begin == self.end {
            (self.begin, self.end) = (0, 0);
            if self.buffer.len() > BUFFER_SIZE {
                self.buffer.truncate(BUFFER_SIZE);
                self.buffer.shrink_to_fit();
            }
        }
        let Some(bytes) = self.buffer[self.begin..self.end].first_chunk::<HEADER_SIZE>() else {
            self.make_room(HEADER_SIZE);
            return Ok(Step::Need);
        };
        let header = Header::decode(bytes)?;
        sink.on_header(&header)?;
        self.make_room(HEADER_SIZE + header.meta_length as usize);
        self.stage = Stage::Meta(header);
        Ok(Step::Again)
    }

    /// Room for `size` bytes from `begin` on and a tail.
    fn make_room(&mut self, size: usize) {
        if self.begin + size + TAIL_SIZE <= self.buffer.len() {
            return;
        }
        self.buffer.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        if size + TAIL_SIZE > self.buffer.len() {
            self.buffer.resize(size + TAIL_SIZE, 0);
        }
    }

    fn step_meta(
        &mut self,
        header: &Header,
        pool: &Pagepool,
        sink: &dyn Sink,
    ) -> Result<Step, Fault> {
        let meta_end = self.meta_end(header);
        if self.end < meta_end {
            return Ok(Step::Need);
        }
        let meta = &self.buffer[self.begin + HEADER_SIZE..meta_end];
        let is_covered = header.flags.has(Flags::DATA_COVERED) && header.data_length > 0;
        if !is_covered && crc32c(meta) != header.data_crc {
            return Err(Fault::Damaged { kind: header.kind });
        }
        let size = header.data_length as usize;
        if size == 0 {
            self.stage = Stage::Header;
            return self.deliver(header, Vec::new(), sink);
        }
        let spans = sink.place(header, meta);
        // What of the payload has come already is copied; what follows it moves to its place.
        let come = (self.end - meta_end).min(size);
        if spans.is_empty() {
            let left = size - come;
            self.stage = Stage::Drop {
                header: *header,
                left,
            };
        } else {
            assert_eq!(
                span_size(&spans),
                size,
                "the place is as large as the payload"
            );
            let mut at = meta_end;
            for span in rest(&spans, 0) {
                let part = (meta_end + come - at).min(span.length as usize);
                pool.store(span, &self.buffer[at..at + part]);
                at += part;
            }
            self.stage = Stage::Data {
                header: *header,
                spans,
                received: come,
            };
        }
        self.buffer.copy_within(meta_end + come..self.end, meta_end);
        self.end -= come;
        Ok(Step::Again)
    }

    fn deliver(
        &mut self,
        header: &Header,
        payload: Vec<Span>,
        sink: &dyn Sink,
    ) -> Result<Step, Fault> {
        let meta_end = self.meta_end(header);
        let meta = &self.buffer[self.begin + HEADER_SIZE..meta_end];
        let flow = sink.on_frame(header, meta, payload)?;
        self.begin = meta_end;
        Ok(match flow {
            Flow::Continue => Step::Again,
            Flow::Pause => Step::Pause,
        })
    }

    fn check_covered(&self, header: &Header, pool: &Pagepool, spans: &[Span]) -> Result<(), Fault> {
        if !header.flags.has(Flags::DATA_COVERED) {
            return Ok(());
        }
        let mut crc = Crc32c::new();
        crc.update(&self.buffer[self.begin + HEADER_SIZE..self.meta_end(header)]);
        for span in spans {
            // SAFETY: the input holds the frames, and nobody writes what was placed for this frame.
            crc.update(unsafe { pool.slice(*span) });
        }
        if crc.finish() == header.data_crc {
            return Ok(());
        }
        for span in spans {
            pool.release_span(*span);
        }
        Err(Fault::Damaged { kind: header.kind })
    }

    fn meta_end(&self, header: &Header) -> usize {
        self.begin + HEADER_SIZE + header.meta_length as usize
    }

    /// Where the next bytes go: the rest of the payload, then the buffer's free end.
    fn pieces(&mut self, pool: &Pagepool) -> Vec<libc::iovec> {
        let mut pieces = Vec::with_capacity(4);
        if let Stage::Data {
            spans, received, ..
        } = &self.stage
        {
            // IOV_MAX less one for the buffer.
            pieces.extend(
                rest(spans, *received)
                    .take(1023)
                    .map(|span| pool.iovec(span)),
            );
            let asked: usize = pieces.iter().map(|piece| piece.iov_len).sum();
            if asked < span_size(spans) - received {
                return pieces;
            }
        }
        let tail = &mut self.buffer[self.end..];
        pieces.push(libc::iovec {
            iov_base: tail.as_mut_ptr().cast(),
            iov_len: tail.len(),
        });
        pieces
    }

    fn on_bytes(&mut self, size: usize) {
        match &mut self.stage {
            Stage::Header | Stage::Meta(_) => self.end += size,
            Stage::Data {
                spans, received, ..
            } => {
                let part = size.min(span_size(spans) - *received);
                *received += part;
                self.end += size - part;
            }
            Stage::Drop { left, .. } => {
                let part = size.min(*left);
                *left -= part;
                self.buffer
                    .copy_within(self.end + part..self.end + size, self.end);
                self.end += size - part;
            }
        }
    }
}

fn span_size(spans: &[Span]) -> usize {
    spans.iter().map(|span| span.length as usize).sum()
}

/// `spans` but for their first `skip` bytes.
fn rest(spans: &[Span], mut skip: usize) -> impl Iterator<Item = Span> {
    spans.iter().filter_map(move |span| {
        let length = span.length as usize;
        let skipped = skip.min(length);
        skip -= skipped;
        let skipped = u32::try_from(skipped).expect("below a u32 length");
        (skipped < span.length).then(|| span.part(skipped, span.length - skipped))
    })
}

const _: () = assert!(TAIL_SIZE + HEADER_SIZE <= BUFFER_SIZE && FRAME_SIZE <= TAIL_SIZE);
