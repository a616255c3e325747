//! The transport over /dev/fuse: threads that read requests from cloned descriptors, answers by writev.
//!
//! A read puts the first 80 bytes of a request into a prefix and all that follows into a pagepool slab:
//! 80 bytes are what the kernel sends before a WRITE's payload, so the payload begins on a page. Of other
//! requests only what is longer than 40 bytes of arguments lies in the slab.
//!
//! Where no slab is free a thread reads into memory of its own, and a WRITE that has landed there waits for a slab in the waiting room (`room`).

use super::apart::Late;
use super::company::Company;
use super::crew::{Arrival, Crew};
use super::memory::{Memory, frames_of};
use super::room::{Guest, Landing, Room, whole};
use super::session::{
    self, Dispatched, Follow, InterruptOutcome, Serving, SessionError, Transport,
};
use fuse::abi::{self, InHeader, WRITE_PREFIX_SIZE};
use fuse::{Call, Decoded, Encoded, Route, Tail};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;
use types::{Errno, FrameRef, Span, limits};

const CLONE: libc::c_ulong = 0x8004_e500;
const HEADER_SIZE: usize = size_of::<InHeader>();
/// Pieces of an answer's data that one writev takes; more are copied together first.
const PIECE_COUNT_MAX: usize = 1000;

/// /dev/fuse, once for each thread.
#[derive(Debug)]
pub(super) struct Device {
    descriptors: Vec<OwnedFd>,
    crew: Crew,
}

/// A received request that begins in the prefix and goes on where it has landed.
struct Received {
    prefix: [u8; WRITE_PREFIX_SIZE],
    size: usize,
    landing: Landing,
    /// Where arguments are put together that lie in both.
    arguments: Vec<u8>,
}

impl Device {
    pub(super) fn open() -> Result<Self, SessionError> {
        // More of them only wake one another.
        let cpu_count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Self {
            descriptors: vec![open_device()?],
            crew: Crew::new(cpu_count),
        })
    }

    /// The descriptor that was mounted.
    pub(super) fn main(&self) -> BorrowedFd<'_> {
        self.descriptors[0].as_fd()
    }

    /// A descriptor of the same connection, for notifications.
    pub(super) fn duplicate(&self) -> Result<OwnedFd, SessionError> {
        let made = open_device()?;
        let mut main = self.main().as_raw_fd().cast_unsigned();
        // SAFETY: the request takes a pointer to one 32-bit descriptor number.
        let outcome = unsafe { libc::ioctl(made.as_raw_fd(), CLONE, &raw mut main) };
        if outcome != 0 {
            return Err(SessionError::last("FUSE_DEV_IOC_CLONE"));
        }
        Ok(made)
    }

    /// Makes descriptors for `count` threads.
    pub(super) fn clone_descriptors(&mut self, count: usize) -> Result<(), SessionError> {
        while self.descriptors.len() < count {
            let made = self.duplicate()?;
            self.descriptors.push(made);
        }
        Ok(())
    }

    /// Reads and answers INIT, the first request of the connection; the kernel's minor version.
    pub(super) fn handshake(&self, wishes: fuse::Wishes) -> Result<u32, SessionError> {
        // The kernel wants room for the largest request from the first read on.
        let mut buffer = vec![0_u8; WRITE_PREFIX_SIZE + limits::MAX_WRITE];
        let fd = self.main().as_raw_fd();
        // SAFETY: the buffer is writable for its length.
        let size = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
        let size = usize::try_from(size).map_err(|_| SessionError::last("read of INIT"))?;
        let protocol = |call| SessionError::Io {
            call,
            source: io::Error::from_raw_os_error(libc::EPROTO),
        };
        let (header, args) =
            fuse::split(&buffer[..size]).ok_or_else(|| protocol("INIT: cut short"))?;
        let call = Call::new(header, args, Route(0));
        let Decoded::Init(offer) = fuse::decode(&call) else {
            return Err(protocol("the first request is no INIT"));
        };
        let agreed = match offer.agree(wishes) {
            Ok(agreed) => agreed,
            Err(error) => {
                let answer = fuse::encode_error(header.unique, Errno::EPROTO);
                let _ = self.write(fd, answer.head());
                return Err(error.into());
            }
        };
        let answer = agreed.encode(header.unique);
        self.write(fd, &answer).map_err(|source| SessionError::Io {
            call: "answer to INIT",
            source,
        })?;
        tracing::debug!(minor = agreed.minor, flags = agreed.flags, "FUSE agreed");
        Ok(agreed.minor)
    }

    fn write(&self, fd: RawFd, bytes: &[u8]) -> io::Result<()> {
        // SAFETY: `bytes` is readable for its length.
        let outcome = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
        if outcome < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn write_pieces(&self, fd: RawFd, pieces: &[libc::iovec]) -> io::Result<()> {
        let count = i32::try_from(pieces.len()).expect("at most PIECE_COUNT_MAX and a head");
        // SAFETY: each piece points to memory that the caller of `send` keeps readable.
        let outcome = unsafe { libc::writev(fd, pieces.as_ptr(), count) };
        if outcome < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn write_answer(&self, memory: &dyn Memory, fd: RawFd, answer: &Encoded<'_>) -> io::Result<()> {
        let head = piece(answer.head());
        match &answer.tail {
            Tail::None => self.write(fd, answer.head()),
            Tail::Bytes(bytes) => self.write_pieces(fd, &[head, piece(bytes)]),
            Tail::Owned(bytes) => self.write_pieces(fd, &[head, piece(bytes)]),
            Tail::Spans([span]) => self.write_pieces(fd, &[head, span_piece(memory, *span)]),
            Tail::Spans(spans) if spans.len() <= PIECE_COUNT_MAX => {
                let mut pieces = Vec::with_capacity(1 + spans.len());
                pieces.push(head);
                pieces.extend(spans.iter().map(|span| span_piece(memory, *span)));
                self.write_pieces(fd, &pieces)
            }
            Tail::Spans(spans) => {
                let mut bytes = Vec::new();
                for span in *spans {
                    // SAFETY: the answer holds a reference of each frame until it is sent.
                    bytes.extend_from_slice(unsafe { memory.slice(*span) });
                }
                self.write_pieces(fd, &[head, piece(&bytes)])
            }
        }
    }

    /// One serving thread: reads until the connection ends.
    fn serve(&self, index: u16, serving: &Serving) {
        let fd = self.descriptors[usize::from(index)].as_raw_fd();
        let memory = serving.replier.memory().clone();
        let room = &serving.replier.room;
        // Two threads at least write none of the answers that may wait for locks, and so take in what these locks wait for.
        let late_max = self.descriptors.len().saturating_sub(2);
        let late = Late::new(&serving.replier, late_max);
        let mut received = Received {
            prefix: [0; WRITE_PREFIX_SIZE],
            size: 0,
            landing: room.landing(&*memory),
            arguments: Vec::new(),
        };
        let mut member = self.crew.member(index == 0);
        let mut company = Company::new();
        member.park_if_new();
        let mut asked = Instant::now();
        loop {
            if !received.read(fd, &*memory) {
                break;
            }
            let arrival = Arrival {
                took: asked.elapsed(),
                size: received.size,
                caller: received.caller(),
            };
            member.on_request(arrival, || has_more(fd));
            company.on_request(arrival.caller, member.is_alone());
            let payload = self.handle(Route(index), &mut received, &*memory, serving);
            late.send();
            // Whoever waits for memory has nothing else to do.
            if payload.is_some_and(|span| frames_of(span).any(|frame| memory.is_shared(frame))) {
                let landing = std::mem::replace(&mut received.landing, Landing::none());
                landing.release(&*memory);
                received.landing = room.landing(&*memory);
            }
            let (begun, caller) = (asked + arrival.took, arrival.caller);
            asked = Instant::now();
            company.on_handled(caller, (asked - begun, arrival.was_awaited()));
            if member.on_handled() {
                asked = Instant::now();
            }
        }
        self.crew.end();
        received.landing.release(&*memory);
    }

    /// Decodes the request received and does with it what is to be done; the payload of a WRITE, which somebody may have kept.
    fn handle(
        &self,
        route: Route,
        received: &mut Received,
        memory: &dyn Memory,
        serving: &Serving,
    ) -> Option<Span> {
        let Some((header, _)) = fuse::split(received.bytes()) else {
            tracing::error!(size = received.size, "a FUSE request without header");
            return None;
        };
        let id = (route, header.unique);
        if header.opcode == abi::opcode::WRITE && received.size >= WRITE_PREFIX_SIZE {
            let room = &serving.replier.room;
            let fd = self.descriptors[usize::from(route.0)].as_raw_fd();
            let payload = match received.payload(memory, room, (route, fd)) {
                Ok(payload) => payload?,
                Err(id) => {
                    serving.refuse(id, Errno::EINTR);
                    return None;
                }
            };
            let call = Call {
                header,
                fixed: &received.prefix[HEADER_SIZE..],
                rest: &[],
                payload: Some(payload),
                route,
            };
            serving.dispatch(id, fuse::decode(&call), &[]);
            return Some(payload);
        }
        let call = Call::new(header, received.arguments(memory), route);
        match serving.dispatch(id, fuse::decode(&call), call.rest) {
            Dispatched::Done => {}
            Dispatched::Interrupt(target) => self.interrupt(serving, header.unique, target),
        }
        None
    }

    /// Passes an interrupt on. Of a request that nobody knows the kernel is told to interrupt again: it
    /// was read by another thread that has not got far enough, or is answered (then nothing comes).
    /// ENOSYS would switch interrupts off for the whole connection.
    fn interrupt(&self, serving: &Serving, unique: u64, target: u64) {
        let is_waiting = serving.replier.room.interrupt(target);
        if is_waiting || serving.interrupt(target) == InterruptOutcome::Taken {
            return;
        }
        std::thread::yield_now();
        let answer = fuse::encode_error(unique, Errno::EAGAIN);
        for descriptor in &self.descriptors {
            // Only the descriptor by which the request was read knows it.
            if self.write(descriptor.as_raw_fd(), answer.head()).is_ok() {
                return;
            }
        }
    }
}

impl Received {
    /// Reads one request; false when the connection has ended.
    fn read(&mut self, fd: RawFd, memory: &dyn Memory) -> bool {
        let pieces = [
            libc::iovec {
                iov_base: self.prefix.as_mut_ptr().cast(),
                iov_len: WRITE_PREFIX_SIZE,
            },
            libc::iovec {
                iov_base: self.landing.address(memory).cast(),
                iov_len: limits::MAX_WRITE,
            },
        ];
        loop {
            // SAFETY: the prefix is ours; the landing is 1 MiB that only this thread knows (of a slab it holds
            // the only references), so nobody else reads or writes it.
            let size = unsafe { libc::readv(fd, pieces.as_ptr(), 2) };
            if let Ok(size) = usize::try_from(size) {
                self.size = size;
                return true;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // ENOENT: the request was interrupted while it was being read.
                Some(libc::EINTR | libc::EAGAIN | libc::ENOENT) => {}
                Some(libc::ENODEV | libc::ECONNABORTED) => return false,
                _ => {
                    tracing::error!(%error, "read of /dev/fuse");
                    return false;
                }
            }
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.prefix[..self.size.min(WRITE_PREFIX_SIZE)]
    }

    /// The thread that asks, 0 if the kernel does by itself.
    fn caller(&self) -> u32 {
        fuse::split(self.bytes()).map_or(0, |(header, _)| header.pid)
    }

    /// What follows a WRITE's prefix, in a slab. None where there is none: then the WRITE is in the waiting room.
    ///
    /// # Errors
    /// Its caller is to hear EINTR.
    fn payload(
        &mut self,
        memory: &dyn Memory,
        room: &Room,
        (route, fd): (Route, RawFd),
    ) -> Result<Option<Span>, (Route, u64)> {
        let size = self.size - WRITE_PREFIX_SIZE;
        let landed = match &mut self.landing {
            Landing::Slab(slab) => return Ok(Some(whole(*slab, size))),
            Landing::Own(landed) => landed,
        };
        let coming = room.coming();
        let Some(slab) = room.slab_soon(memory) else {
            let (header, _) = fuse::split(&self.prefix).expect("it was read before");
            let fixed = &self.prefix[HEADER_SIZE..];
            let guest = Guest::new((header, fixed), (landed, size), route);
            let entered = room.enter(guest, || has_ended(fd));
            drop(coming);
            if landed.is_empty() {
                self.landing = room.landing(memory);
            }
            return entered.map(|()| None);
        };
        // SAFETY: a slab of which only this thread holds references, and memory of its own.
        unsafe { std::ptr::copy_nonoverlapping(landed.as_ptr(), memory.address(slab), size) };
        self.landing = Landing::Slab(slab);
        Ok(Some(whole(slab, size)))
    }

    /// What follows the header, in one piece: in place where it is short, else copied together.
    fn arguments(&mut self, memory: &dyn Memory) -> &[u8] {
        let head = HEADER_SIZE..self.size.min(WRITE_PREFIX_SIZE);
        if self.size <= WRITE_PREFIX_SIZE {
            return &self.prefix[head];
        }
        let size = self.size - WRITE_PREFIX_SIZE;
        // SAFETY: only this thread uses what it has landed in.
        let tail = unsafe { self.landing.bytes(memory, size) };
        self.arguments.clear();
        self.arguments.extend_from_slice(&self.prefix[head]);
        self.arguments.extend_from_slice(tail);
        &self.arguments
    }
}

impl Transport for Device {
    fn is_immediate(&self, _route: Route) -> bool {
        true
    }

    fn send_then(
        &self,
        (memory, route, unique): (&dyn Memory, Route, u64),
        answer: &Encoded<'_>,
        done: Follow,
    ) {
        self.send(memory, route, unique, answer);
        (done.0)();
    }

    fn send(&self, memory: &dyn Memory, route: Route, unique: u64, answer: &Encoded<'_>) {
        let Some(descriptor) = self.descriptors.get(usize::from(route.0)) else {
            return;
        };
        let fd = descriptor.as_raw_fd();
        let Err(error) = self.write_answer(memory, fd, answer) else {
            return;
        };
        match error.raw_os_error() {
            // The request was aborted, or was answered already.
            Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM) => {}
            _ => {
                // Its caller must not wait for ever because we made an answer the kernel refuses.
                tracing::error!(%error, unique, "answer refused by the kernel");
                let _ = self.write(fd, fuse::encode_error(unique, Errno::EIO).head());
            }
        }
    }

    fn start(self: Arc<Self>, serving: &Arc<Serving>) -> Result<Vec<JoinHandle<()>>, SessionError> {
        let count = u16::try_from(self.descriptors.len()).expect("as many as threads");
        (0..count)
            .map(|index| self.clone().start_thread(index, serving, || {}))
            .collect()
    }
}

impl Device {
    /// Starts the serving thread of one descriptor; `at_end` is called when the connection has ended.
    pub(super) fn start_thread(
        self: Arc<Self>,
        index: u16,
        serving: &Arc<Serving>,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Result<JoinHandle<()>, SessionError> {
        let shared = serving.clone();
        serving.on_thread_start();
        std::thread::Builder::new()
            .name(format!("fuse-{index}"))
            .spawn(move || {
                session::serve_without_reclaim();
                self.serve(index, &shared);
                at_end();
                shared.on_thread_end();
            })
            .map_err(|source| SessionError::Io {
                call: "spawn",
                source,
            })
    }
}

fn open_device() -> Result<OwnedFd, SessionError> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path.
    let fd = unsafe { libc::open(c"/dev/fuse".as_ptr(), flags) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return Err(super::MountError::Device(error).into());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Requests are queued, or the connection has ended.
fn has_more(fd: RawFd) -> bool {
    look(fd) != 0
}

/// The connection has ended.
fn has_ended(fd: RawFd) -> bool {
    look(fd) & libc::POLLERR != 0
}

fn look(fd: RawFd) -> libc::c_short {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, and no waiting.
    unsafe { libc::poll(&raw mut poll, 1, 0) };
    poll.revents
}

fn piece(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn span_piece(memory: &dyn Memory, span: Span) -> libc::iovec {
    // SAFETY: the answer holds a reference of each frame until it is sent.
    piece(unsafe { memory.slice(span) })
}

#[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
pub(super) fn release_slab(memory: &dyn Memory, slab: FrameRef) {
    memory.release_span(Span {
        frame: slab,
        offset: 0,
        length: limits::MAX_WRITE as u32,
    });
}
