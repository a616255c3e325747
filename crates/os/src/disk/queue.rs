//! Asynchronous I/O of one disk on pool memory, from any thread.
//!
//! Invariants
//! - At most `IN_FLIGHT_COUNT_MAX` parts are with the kernel; at most `WAITING_COUNT_MAX` wait for their
//!   turn (`turns`); beyond that a request is refused.
//! - Every accepted request is answered exactly once, on a loop's thread, and after the kernel has let
//!   go of its memory.
//! - The caller holds references on all frames of a request until it is answered.
//!
//! A request made on a loop's thread goes into that loop's ring, submitted with all else that the loop
//! has to say, and is answered there. A request from another thread (a FUSE thread) is submitted by
//! that thread itself and answered by the disk's home loop: see `aio` for why.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use io_uring::{opcode, types as uring};
use smallvec::SmallVec;
use types::{Instant, SECTOR_SIZE, Span};

use super::aio::Aio;
use super::flushes::Held;
use super::turns::{Class, Turns};
use super::{Disk, DiskError};
use crate::clock;
use crate::histogram::Histogram;
use crate::loops::{self, Loops, lock};
use crate::pool::Pagepool;

/// Most requests (or parts of large ones) of one disk that are with the kernel.
pub const IN_FLIGHT_COUNT_MAX: usize = 128;
/// Most requests of one disk that wait for their turn.
pub const WAITING_COUNT_MAX: usize = 4096;
/// A write of so many bytes that need not be durable is bulk, mostly of a write-behind: it takes long whoever waits for it, and many
/// small ones fit into that.
const BULK_SIZE_MIN: u64 = 256 << 10;
/// Most pieces of memory of one system call: IOV_MAX less room to finish a sector.
const PIECE_COUNT_MAX: usize = 1000;
/// How often a durable write is made again because a flush beside it has failed.
const AGAIN_COUNT_MAX: u8 = 3;
/// Addresses and lengths of O_DIRECT are multiples of this on all devices with blocks up to a sector;
/// spans of the pool begin at such addresses when their offset is one.
const ALIGNMENT: u32 = 512;

/// Who hears of ends.
pub trait Handler: Send + Sync {
    /// The request with `tag` has ended: its bytes are read or written (and durable, where that was
    /// asked for). On a loop's thread.
    fn on_disk(&self, tag: u64, result: Result<(), DiskError>);
}

/// The queue is full: push back, or ask again when some requests have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the disk's queue is full")]
pub struct Busy;

/// What a disk did since it was attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCounters {
    /// Reads.
    pub read_count: u64,
    /// Bytes read.
    pub read_size: u64,
    /// Writes, durable ones too.
    pub write_count: u64,
    /// Bytes written.
    pub write_size: u64,
    /// Writes that were to be durable when answered.
    pub durable_write_count: u64,
    /// Flushes.
    pub flush_count: u64,
    /// Requests that failed.
    pub error_count: u64,
    /// Parts with the kernel now.
    pub in_flight_count: u64,
    /// Parts that wait for their turn now.
    pub waiting_count: u64,
}

#[derive(Default, Debug)]
struct Counters {
    reads: AtomicU64,
    read_size: AtomicU64,
    writes: AtomicU64,
    write_size: AtomicU64,
    durable_writes: AtomicU64,
    flushes: AtomicU64,
    errors: AtomicU64,
}

/// What has ended on an NSD, counted from any thread and read without a lock.
#[derive(Default, Debug)]
pub struct Meters {
    /// Reads, writes (durable ones, too) and flushes: how long they took, from the request to its answer.
    pub times: [Histogram; 3],
    /// Bytes of reads and writes that did not fail.
    pub sizes: [AtomicU64; 2],
    /// Requests that failed.
    pub errors: AtomicU64,
}

impl Meters {
    /// Names of `times`; the first two are those of `sizes`.
    pub const NAMES: [&str; 3] = ["read", "write", "flush"];

    /// Something of `kind` (an index into `NAMES`) has ended.
    pub fn ended(&self, kind: usize, begin: Instant, size: u64, is_done: bool) {
        self.times[kind].add(clock::now().since(begin));
        match self.sizes.get(kind) {
            _ if !is_done => {
                self.errors.fetch_add(1, Ordering::Relaxed);
            }
            Some(sum) => {
                sum.fetch_add(size, Ordering::Relaxed);
            }
            None => {}
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    DurableWrite,
    Flush,
}

impl Kind {
    /// Into `Meters::NAMES`.
    const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write | Self::DurableWrite => 1,
            Self::Flush => 2,
        }
    }

    const fn name(self) -> &'static str {
        Meters::NAMES[self.index()]
    }
}

/// A request; its parts share it.
struct Request {
    tag: u64,
    kind: Kind,
    sector: u64,
    size: u64,
    begin: Instant,
    parts_left: AtomicUsize,
    failure: Mutex<Option<DiskError>>,
}

/// What one system call does.
pub(super) struct Part {
    request: Arc<Request>,
    pub(super) offset: u64,
    size: usize,
    class: Class,
    pub(super) pieces: Vec<libc::iovec>,
    /// Its number among the flushes under way, and how many had failed when it was submitted.
    flush: Option<(u64, u64)>,
    /// How often it may be written again where a flush beside it has failed.
    tries_left: u8,
}

// SAFETY: the pieces point into the pool, whose memory any thread may hand to the kernel; the caller of
// the request holds the frames until it is answered.
unsafe impl Send for Part {}

impl Part {
    pub(super) fn kind(&self) -> Kind {
        self.request.kind
    }

    /// Its bytes, as one.
    pub(super) fn gather(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size);
        for piece in &self.pieces {
            // SAFETY: the caller of the request holds the frames until it is answered, and nobody writes to what is being written.
            let piece = unsafe { std::slice::from_raw_parts(piece.iov_base.cast(), piece.iov_len) };
            bytes.extend_from_slice(piece);
        }
        bytes
    }

    /// The bytes that were read.
    pub(super) fn scatter(&self, mut bytes: &[u8]) {
        for piece in &self.pieces {
            let (head, rest) = bytes.split_at(piece.iov_len);
            // SAFETY: as in `gather`; what is read into is nobody else's until the request is answered.
            unsafe {
                std::ptr::copy_nonoverlapping(head.as_ptr(), piece.iov_base.cast(), head.len())
            };
            bytes = rest;
        }
    }

    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Drops the first `size` bytes, which are done.
    fn advance(&mut self, size: usize) {
        self.size -= size;
        self.offset += size as u64;
        let mut left = size;
        let mut done = 0;
        for piece in &mut self.pieces {
            if left < piece.iov_len {
                piece.iov_base = piece.iov_base.wrapping_byte_add(left);
                piece.iov_len -= left;
                break;
            }
            left -= piece.iov_len;
            done += 1;
        }
        self.pieces.drain(..done);
    }
}

/// A disk that takes requests. Dropped when the last request in flight has ended.
pub struct DiskQueue {
    disk: Arc<Disk>,
    loops: Arc<Loops>,
    pool: Arc<Pagepool>,
    home: usize,
    handler: Arc<dyn Handler>,
    aio: Option<Arc<Aio>>,
    turns: Mutex<Turns<Part>>,
    counters: Counters,
    meters: Meters,
}

impl std::fmt::Debug for DiskQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskQueue")
            .field("disk", &self.disk)
            .finish_non_exhaustive()
    }
}

impl Drop for DiskQueue {
    fn drop(&mut self) {
        if let Some(aio) = self.aio.take() {
            aio.close();
        }
    }
}

impl DiskQueue {
    /// Takes requests for `disk` from now on. Requests of threads that are no loop are answered on loop
    /// `home % loops.count()`.
    pub fn new(
        disk: Disk,
        loops: &Arc<Loops>,
        pool: &Arc<Pagepool>,
        home: usize,
        handler: Arc<dyn Handler>,
    ) -> Arc<Self> {
        // Files may block the submitter (allocation); devices do not. Without it all goes by the loops.
        let aio = if disk.is_block_device {
            Aio::new(loops, home)
        } else {
            None
        };
        Arc::new(Self {
            disk: Arc::new(disk),
            loops: Arc::clone(loops),
            pool: Arc::clone(pool),
            home,
            handler,
            aio,
            turns: Mutex::new(Turns::new(IN_FLIGHT_COUNT_MAX)),
            counters: Counters::default(),
            meters: Meters::default(),
        })
    }

    /// The disk.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// What has ended.
    #[must_use]
    pub fn meters(&self) -> &Meters {
        &self.meters
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> DiskCounters {
        let (in_flight, waiting) = {
            let turns = lock(&self.turns);
            (turns.in_flight_count(), turns.waiting_count())
        };
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCounters {
            read_count: get(&self.counters.reads),
            read_size: get(&self.counters.read_size),
            write_count: get(&self.counters.writes),
            write_size: get(&self.counters.write_size),
            durable_write_count: get(&self.counters.durable_writes),
            flush_count: get(&self.counters.flushes),
            error_count: get(&self.counters.errors),
            in_flight_count: in_flight as u64,
            waiting_count: waiting as u64,
        }
    }

    /// Reads sectors from `sector` on into `spans` (whole sectors in all; offsets and lengths multiples
    /// of 512).
    pub fn read(self: &Arc<Self>, tag: u64, sector: u64, spans: &[Span]) -> Result<(), Busy> {
        self.start(tag, Kind::Read, sector, spans)
    }

    /// Writes `spans` to the sectors from `sector` on. Durable after the next flush.
    pub fn write(self: &Arc<Self>, tag: u64, sector: u64, spans: &[Span]) -> Result<(), Busy> {
        self.start(tag, Kind::Write, sector, spans)
    }

    /// As `write`, and durable when answered (FUA; cheaper than a flush behind it).
    pub fn write_durable(
        self: &Arc<Self>,
        tag: u64,
        sector: u64,
        spans: &[Span],
    ) -> Result<(), Busy> {
        self.start(tag, Kind::DurableWrite, sector, spans)
    }

    /// Makes all writes that have been answered durable.
    pub fn flush(self: &Arc<Self>, tag: u64) -> Result<(), Busy> {
        self.start(tag, Kind::Flush, 0, &[])
    }

    fn start(
        self: &Arc<Self>,
        tag: u64,
        kind: Kind,
        sector: u64,
        spans: &[Span],
    ) -> Result<(), Busy> {
        let size: u64 = spans.iter().map(|span| u64::from(span.length)).sum();
        let request = Arc::new(Request {
            tag,
            kind,
            sector,
            size,
            begin: clock::now(),
            parts_left: AtomicUsize::new(1),
            failure: Mutex::new(None),
        });
        if let Err(error) = self.disk.check_bounds(sector, size) {
            self.answer_later(request, error);
            return Ok(());
        }
        let parts = if kind == Kind::Flush {
            vec![Part {
                request,
                offset: 0,
                size: 0,
                class: Class::Awaited,
                pieces: Vec::new(),
                flush: None,
                tries_left: 0,
            }]
        } else {
            self.parts(request, sector, spans)
        };
        let mut turns = lock(&self.turns);
        if turns.waiting_count() + parts.len() > WAITING_COUNT_MAX {
            return Err(Busy);
        }
        for part in parts {
            let class = part.class;
            turns.enter(part, class);
        }
        let now: SmallVec<[Part; 2]> = std::iter::from_fn(|| turns.next()).collect();
        drop(turns);
        self.count(kind, size);
        for part in now {
            self.submit(part);
        }
        Ok(())
    }

    fn count(&self, kind: Kind, size: u64) {
        let add = |counter: &AtomicU64, value| counter.fetch_add(value, Ordering::Relaxed);
        match kind {
            Kind::Read => {
                add(&self.counters.reads, 1);
                add(&self.counters.read_size, size);
            }
            Kind::Write | Kind::DurableWrite => {
                add(&self.counters.writes, 1);
                add(&self.counters.write_size, size);
                add(
                    &self.counters.durable_writes,
                    u64::from(kind == Kind::DurableWrite),
                );
            }
            Kind::Flush => {
                add(&self.counters.flushes, 1);
            }
        }
    }

    /// Cuts a request into what one system call takes, adjacent spans as one piece.
    fn parts(&self, request: Arc<Request>, sector: u64, spans: &[Span]) -> Vec<Part> {
        let mut offset = sector * SECTOR_SIZE;
        let mut parts: Vec<Part> = Vec::new();
        for span in spans {
            assert_eq!(span.offset % ALIGNMENT, 0, "direct I/O is aligned");
            assert_eq!(span.length % ALIGNMENT, 0, "direct I/O is aligned");
            let piece = self.pool.iovec(*span);
            let size = piece.iov_len;
            let is_joined = parts.last_mut().is_some_and(|part| part.join(piece));
            if !is_joined {
                parts.push(Part {
                    request: Arc::clone(&request),
                    offset,
                    size,
                    class: Class::Awaited,
                    pieces: vec![piece],
                    flush: None,
                    tries_left: AGAIN_COUNT_MAX,
                });
            }
            offset += size as u64;
        }
        if request.kind == Kind::Write {
            let is_bulk = request.size >= BULK_SIZE_MIN;
            for part in &mut parts {
                part.class = match is_bulk {
                    true => Class::Bulk(part.size as u64),
                    false => Class::Small,
                };
            }
        }
        request.parts_left.store(parts.len(), Ordering::Relaxed);
        parts
    }

    /// Hands a part to the kernel. It is counted as in flight.
    fn submit(self: &Arc<Self>, mut part: Part) {
        self.note_flush(&mut part);
        if self.disk.volatile.is_some() {
            return self.perform(part);
        }
        if Loops::current().is_some() {
            self.submit_to_ring(part);
            return;
        }
        let part = match &self.aio {
            Some(aio) => {
                let this = Arc::clone(self);
                let completion = Box::new(move |part, result| this.on_result(part, result));
                match aio.submit(self.disk.fd(), self.durable_flag(), part, completion) {
                    Ok(()) => return,
                    Err(part) => part,
                }
            }
            None => part,
        };
        let this = Arc::clone(self);
        self.loops
            .post(self.home, Box::new(move || this.submit_to_ring(part)));
    }

    /// A part that flushes is among the flushes under way from here on until it ends.
    fn note_flush(&self, part: &mut Part) {
        let is_flush = match part.kind() {
            Kind::Flush => true,
            Kind::DurableWrite => self.disk.has_volatile_cache && !self.disk.has_durable_writes,
            Kind::Read | Kind::Write => false,
        };
        if is_flush && part.flush.is_none() {
            part.flush = Some((self.disk.flushes.begin(), self.disk.loss_count()));
        }
    }

    fn submit_to_ring(self: &Arc<Self>, mut part: Part) {
        self.note_flush(&mut part);
        if self.disk.volatile.is_some() {
            return self.perform(part);
        }
        let fd = uring::Fd(self.disk.fd());
        let count = u32::try_from(part.pieces.len()).expect("at most 1024");
        let pieces = part.pieces.as_ptr();
        let entry = match part.kind() {
            Kind::Read => opcode::Readv::new(fd, pieces, count)
                .offset(part.offset)
                .build(),
            Kind::Write => opcode::Writev::new(fd, pieces, count)
                .offset(part.offset)
                .build(),
            Kind::DurableWrite => opcode::Writev::new(fd, pieces, count)
                .offset(part.offset)
                .rw_flags(self.durable_flag())
                .build(),
            Kind::Flush => opcode::Fsync::new(fd)
                .flags(uring::FsyncFlags::DATASYNC)
                .build(),
        };
        let this = Arc::clone(self);
        // SAFETY: the completion owns the part with its list of pieces (whose heap memory does not move)
        // and the disk; the caller holds the frames until the request is answered.
        unsafe {
            loops::submit(entry, Box::new(move |result| this.on_result(part, result)));
        }
    }

    /// A disk with a volatile cache in this process (tests): done here and now, and answered on a loop's thread as any other.
    fn perform(self: &Arc<Self>, part: Part) {
        let result = match self.disk.perform(&part) {
            Ok(()) => i32::try_from(part.size).expect("a part is below 2 GiB"),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        let index = Loops::current().unwrap_or(self.home);
        let this = Arc::clone(self);
        self.loops
            .post(index, Box::new(move || this.on_result(part, result)));
    }

    /// What makes a write durable when it returns; nothing when the disk keeps what it took.
    fn durable_flag(&self) -> i32 {
        if self.disk.has_volatile_cache {
            libc::RWF_DSYNC
        } else {
            0
        }
    }

    /// The kernel let go of a part. On a loop's thread.
    fn on_result(self: &Arc<Self>, mut part: Part, result: i32) {
        let done = match usize::try_from(result) {
            Ok(done) => done,
            Err(_) if result == -libc::EAGAIN || result == -libc::EINTR => {
                return self.submit_to_ring(part);
            }
            Err(_) => return self.finish(part, Some(std::io::Error::from_raw_os_error(-result))),
        };
        if done == part.size || part.kind() == Kind::Flush {
            return self.finish(part, None);
        }
        if done == 0 {
            let source = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
            return self.finish(part, Some(source));
        }
        part.advance(done);
        // Its beginning is not known any more.
        part.tries_left = 0;
        self.submit_to_ring(part);
    }

    fn finish(self: &Arc<Self>, part: Part, failure: Option<std::io::Error>) {
        let mut turns = lock(&self.turns);
        turns.end(part.class);
        let now: SmallVec<[Part; 2]> = std::iter::from_fn(|| turns.next()).collect();
        drop(turns);
        // The disk works on the next one while this one is answered.
        for next in now {
            self.submit_to_ring(next);
        }
        let request = Arc::clone(&part.request);
        if let Some(source) = failure {
            let (what, sector) = (request.kind.name(), request.sector);
            let is_flush = matches!(request.kind, Kind::DurableWrite | Kind::Flush);
            let error = self.disk.failed(what, sector, source, is_flush);
            *lock(&request.failure) = Some(error);
        }
        let Some((number, _)) = part.flush else {
            return self.end_part(&request);
        };
        let mut part = Some(part);
        let held = || {
            let this = Arc::clone(self);
            let part = part.take().expect("asked for once");
            Box::new(move || match Loops::current() {
                Some(_) => this.on_flushed(part),
                None => {
                    let queue = Arc::clone(&this);
                    this.loops
                        .post(this.home, Box::new(move || queue.on_flushed(part)));
                }
            }) as Held
        };
        if self.disk.flushes.end(number, held) {
            self.on_flushed(part.expect("nobody has asked for it"));
        }
    }

    /// A part that flushes has ended, and so have the flushes beside it. On a loop's thread.
    fn on_flushed(self: &Arc<Self>, mut part: Part) {
        let losses = part.flush.take().map_or(0, |(_, losses)| losses);
        let request = Arc::clone(&part.request);
        // It may be this one's bytes whose loss another one was told. (Of a flush those who wrote before judge.)
        if part.kind() == Kind::DurableWrite
            && lock(&request.failure).is_none()
            && let Err(error) = self.disk.nothing_lost_since(losses)
        {
            if part.tries_left > 0 {
                part.tries_left -= 1;
                return self.again(part);
            }
            *lock(&request.failure) = Some(error);
        }
        self.end_part(&request);
    }

    /// Writes a part once more, in its turn.
    fn again(self: &Arc<Self>, part: Part) {
        let class = part.class;
        let mut turns = lock(&self.turns);
        turns.enter(part, class);
        let now: SmallVec<[Part; 2]> = std::iter::from_fn(|| turns.next()).collect();
        drop(turns);
        for next in now {
            self.submit_to_ring(next);
        }
    }

    fn end_part(&self, request: &Request) {
        if request.parts_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.answer(request);
        }
    }

    fn answer(&self, request: &Request) {
        let result = match lock(&request.failure).take() {
            None => Ok(()),
            Some(error) => {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        };
        let kind = request.kind.index();
        (self.meters).ended(kind, request.begin, request.size, result.is_ok());
        self.handler.on_disk(request.tag, result);
    }

    fn answer_later(self: &Arc<Self>, request: Arc<Request>, error: DiskError) {
        *lock(&request.failure) = Some(error);
        let this = Arc::clone(self);
        let index = Loops::current().unwrap_or(self.home);
        self.loops
            .post(index, Box::new(move || this.answer(&request)));
    }
}

impl Part {
    /// Takes `piece` in if it fits: in the memory behind the last piece, or as one more piece.
    fn join(&mut self, piece: libc::iovec) -> bool {
        let last = self.pieces.last_mut().expect("a part has a piece");
        if last.iov_base.wrapping_byte_add(last.iov_len) == piece.iov_base {
            last.iov_len += piece.iov_len;
            self.size += piece.iov_len;
            return true;
        }
        // A part ends at a sector's end, so that no sector is written by two system calls.
        if self.pieces.len() == PIECE_COUNT_MAX && (self.size as u64).is_multiple_of(SECTOR_SIZE) {
            return false;
        }
        assert!(
            self.pieces.len() < PIECE_COUNT_MAX + 8,
            "sectors are in eight pieces at most"
        );
        self.pieces.push(piece);
        self.size += piece.iov_len;
        true
    }
}
