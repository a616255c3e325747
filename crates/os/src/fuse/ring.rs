//! The transport over fuse-over-io_uring: one queue for each possible CPU, served by a thread on that CPU.
//!
//! ```text
//!  REGISTER --> in the kernel --CQE--> with us --send--> COMMIT_AND_FETCH --> in the kernel ...
//! ```
//!
//! Invariants
//! - An entry belongs to the kernel from its SQE to its CQE, and to us from then to the answer.
//! - Only a queue's thread touches its ring; an answer from elsewhere is put into the entry, the entry's
//!   number on the queue's list, and the thread is woken.
//! - A queue that has all its entries parked gets more: with none in the kernel its CPU's requests would
//!   wait for those that are parked, which may wait for them (a write-back that a revocation asks for).
//!
//! Payload addresses are fixed at REGISTER, so WRITE payloads are copied into the pagepool. Forgets,
//! interrupts and notifications still go through /dev/fuse.

use super::device::{Device, release_slab};
use super::memory::{Memory, frames_of};
use super::room::{Guest, Room};
use super::session::{self, Follow, Serving, SessionError, Transport};
use fuse::abi::{self, RingHeader};
use fuse::{Call, Encoded, Route, Tail};
use io_uring::{IoUring, cqueue, opcode, squeue, types::Fd};
use std::cell::Cell;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread::JoinHandle;
use types::frame::FRAME_SIZE;
use types::{Errno, FrameRef, Span, limits};

const ENABLE: &str = "/sys/module/fuse/parameters/enable_uring";
/// Entries that one queue may grow to.
const ENTRY_COUNT_MAX: usize = 256;
/// Entries that a queue tries to have in the kernel.
const SPARE_COUNT: usize = 4;
/// `user_data` of the read that wakes a queue's thread.
const WAKE: u64 = u64::MAX;
/// The route of requests that come through /dev/fuse; entries follow.
const DEVICE_ROUTE_COUNT: usize = 1;

thread_local! {
    /// The queue that this thread serves.
    static SERVED: Cell<*const Queue> = const { Cell::new(ptr::null()) };
}

/// Switches fuse-over-io_uring on for connections made from now on.
pub(super) fn enable() -> Result<(), SessionError> {
    let state = std::fs::read_to_string(ENABLE).map_err(SessionError::RingDisabled)?;
    if state.starts_with('Y') {
        return Ok(());
    }
    std::fs::write(ENABLE, "Y").map_err(SessionError::RingDisabled)
}

/// All queues, and /dev/fuse beside them.
#[derive(Debug)]
pub(super) struct Ring {
    device: Arc<Device>,
    queues: Vec<Queue>,
    mount_point: Arc<CString>,
    entry_count_max: usize,
    has_ended: AtomicBool,
}

#[derive(Debug)]
struct Queue {
    cpu: u16,
    fuse_fd: RawFd,
    entries: Vec<OnceLock<Entry>>,
    entry_count: AtomicUsize,
    entry_count_first: usize,
    /// Entries that hold a request.
    parked_count: AtomicUsize,
    /// Entries whose answer lies in them, and what follows when the kernel has it.
    answered: Mutex<Vec<(u16, Option<Follow>)>>,
    wake: OwnedFd,
}

/// A request's place: header and payload, shared with the kernel.
#[derive(Debug)]
struct Entry {
    /// One page for the header, then the payload.
    memory: *mut u8,
    /// What REGISTER points to.
    pieces: Box<[libc::iovec; 2]>,
    /// The request in it, 0 when the kernel has it. Whoever exchanges it for 0 answers.
    unique: AtomicU64,
}

// SAFETY: the memory lives as long as the entry; who may touch it is decided by `unique` and the kernel.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

const ENTRY_SIZE: usize = FRAME_SIZE + limits::MAX_WRITE;

impl Entry {
    fn new() -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping.
        let memory = unsafe { libc::mmap(ptr::null_mut(), ENTRY_SIZE, protection, flags, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory: *mut u8 = memory.cast();
        // SAFETY: within the mapping.
        let payload = unsafe { memory.add(FRAME_SIZE) };
        let pieces = [
            (memory, size_of::<RingHeader>()),
            (payload, limits::MAX_WRITE),
        ];
        let pieces = pieces.map(|(base, iov_len)| libc::iovec {
            iov_base: base.cast(),
            iov_len,
        });
        Ok(Self {
            memory,
            pieces: Box::new(pieces),
            unique: AtomicU64::new(0),
        })
    }

    fn header(&self) -> *mut RingHeader {
        self.memory.cast()
    }

    fn payload(&self) -> *mut u8 {
        self.pieces[1].iov_base.cast()
    }

    /// Puts an answer into the entry.
    ///
    /// # Safety
    /// The entry is not with the kernel, and the caller alone answers it.
    unsafe fn put(&self, memory: &dyn Memory, answer: &Encoded<'_>) {
        let mut size = 0;
        let mut add = |bytes: &[u8]| {
            assert!(size + bytes.len() <= limits::MAX_WRITE);
            // SAFETY: within the payload, as asserted; nobody else uses it now.
            unsafe {
                ptr::copy_nonoverlapping(bytes.as_ptr(), self.payload().add(size), bytes.len())
            };
            size += bytes.len();
        };
        add(answer.body());
        match &answer.tail {
            Tail::None => {}
            Tail::Bytes(bytes) => add(bytes),
            Tail::Owned(bytes) => add(bytes),
            Tail::Spans(spans) => {
                for span in *spans {
                    // SAFETY: the answer holds a reference of each frame until it is sent.
                    add(unsafe { memory.slice(*span) });
                }
            }
        }
        let head = answer.header();
        // SAFETY: the header is ours now, and long enough.
        unsafe {
            ptr::copy_nonoverlapping(head.as_ptr(), self.memory, head.len());
            (*self.header()).entry.payload_sz = u32::try_from(size).expect("at most 1 MiB");
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the ring that knew it is gone.
        unsafe { libc::munmap(self.memory.cast(), ENTRY_SIZE) };
    }
}

impl Ring {
    pub(super) fn new(
        device: Device,
        depth: u16,
        mount_point: CString,
    ) -> Result<Self, SessionError> {
        let cpus = possible_cpu_count()?;
        let entry_count_max = ENTRY_COUNT_MAX.min((fuse::ROUTE_COUNT_MAX - 1) / cpus);
        let depth = usize::from(depth).clamp(1, entry_count_max);
        let fuse_fd = device.main().as_raw_fd();
        let queues = (0..cpus)
            .map(|cpu| Queue::new(cpu, fuse_fd, depth, entry_count_max))
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            device: Arc::new(device),
            queues,
            mount_point: Arc::new(mount_point),
            entry_count_max,
            has_ended: AtomicBool::new(false),
        })
    }

    fn route(&self, queue: &Queue, index: usize) -> Route {
        let route = DEVICE_ROUTE_COUNT + usize::from(queue.cpu) * self.entry_count_max + index;
        Route(u16::try_from(route).expect("bounded by entry_count_max"))
    }

    /// The connection is gone: entries that are with us will never see a CQE.
    fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        for queue in &self.queues {
            queue.wake();
        }
    }

    /// A queue's thread.
    fn serve(&self, queue: &Queue, serving: &Serving, started: mpsc::Sender<io::Result<()>>) {
        pin(queue.cpu);
        SERVED.set(ptr::from_ref(queue));
        let mut loop_state = match QueueLoop::new(queue) {
            Ok(made) => made,
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        let _ = started.send(Ok(()));
        drop(started);
        let memory = serving.replier.memory().clone();
        let mut landing = Landing {
            slab: None,
            used: 0,
        };
        while !self.has_ended.load(Ordering::Acquire) {
            let Some(index) = loop_state.next() else {
                if loop_state.commit_answered() {
                    // What followed may have answered more.
                    continue;
                }
                if loop_state.grow() {
                    poke(queue.cpu, &self.mount_point);
                }
                if let Err(error) = loop_state.wait() {
                    tracing::error!(%error, cpu = queue.cpu, "FUSE ring");
                    break;
                }
                continue;
            };
            match index {
                Completed::Request(index) => {
                    self.receive(queue, index, serving, &mut landing);
                }
                Completed::Woken => {}
                Completed::Ended => break,
            }
        }
        SERVED.set(ptr::null());
        landing.end(&*memory);
    }

    /// Handles the request that an entry holds.
    fn receive(&self, queue: &Queue, index: usize, serving: &Serving, landing: &mut Landing) {
        let entry = queue.entry(index);
        // SAFETY: the CQE gave us the entry; its header is initialized plain data.
        let header = unsafe { ptr::read_volatile(entry.header()) };
        let request = header.request();
        let size = (header.entry.payload_sz as usize).min(limits::MAX_WRITE);
        queue.parked_count.fetch_add(1, Ordering::AcqRel);
        entry.unique.store(request.unique, Ordering::Release);
        let memory = &**serving.replier.memory();
        let route = self.route(queue, index);
        let mut call = Call {
            header: request,
            fixed: header.fixed(),
            rest: &[],
            payload: None,
            route,
        };
        let id = (route, request.unique);
        if request.opcode == abi::opcode::WRITE {
            // SAFETY: so many bytes were filled, and the entry stays ours until it is answered.
            let bytes = unsafe { std::slice::from_raw_parts(entry.payload(), size) };
            let room = &serving.replier.room;
            let coming = room.coming();
            let Some(payload) = landing.take(memory, room, bytes) else {
                let guest = Guest::copied(request, call.fixed, bytes, route);
                let entered = room.enter(guest, || self.has_ended.load(Ordering::Acquire));
                drop(coming);
                if let Err(id) = entered {
                    serving.refuse(id, Errno::EINTR);
                }
                return;
            };
            drop(coming);
            call.payload = Some(payload);
            serving.dispatch(id, fuse::decode(&call), &[]);
            landing.settle(memory, payload);
        } else {
            // SAFETY: so many bytes were filled, and the entry stays ours until it is answered; names
            // and values are copied by `decode` before that.
            let rest = unsafe { std::slice::from_raw_parts(entry.payload(), size) };
            let end = size - size.min(usize::from(request.total_extlen) * 8);
            call.rest = &rest[..end];
            serving.dispatch(id, fuse::decode(&call), rest);
        }
    }

    /// Gives `done` back where the request is gone.
    fn send_to_entry(
        &self,
        (memory, at, unique): (&dyn Memory, usize, u64),
        answer: &Encoded<'_>,
        done: Option<Follow>,
    ) -> Result<(), Option<Follow>> {
        let Some(queue) = self.queues.get(at / self.entry_count_max) else {
            return Err(done);
        };
        let index = at % self.entry_count_max;
        if index >= queue.entry_count.load(Ordering::Acquire) {
            return Err(done);
        }
        let entry = queue.entry(index);
        let taken = entry
            .unique
            .compare_exchange(unique, 0, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            return Err(done);
        }
        let size = answer.body().len() + answer.tail_size();
        // SAFETY: the entry is with us, and the exchange made us the only one to answer it.
        unsafe {
            if size <= limits::MAX_WRITE {
                entry.put(memory, answer);
            } else {
                tracing::error!(unique, size, "an answer longer than max_write");
                entry.put(memory, &fuse::encode_error(unique, Errno::EIO));
            }
        }
        queue.parked_count.fetch_sub(1, Ordering::AcqRel);
        let index = u16::try_from(index).expect("at most 256");
        let mut answered = queue.answered.lock().expect("no holder panics");
        answered.push((index, done));
        drop(answered);
        if SERVED.get() != ptr::from_ref(queue) {
            queue.wake();
        }
        Ok(())
    }
}

impl Queue {
    fn new(cpu: usize, fuse_fd: RawFd, first: usize, max: usize) -> Result<Self, SessionError> {
        // SAFETY: no pointers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if wake < 0 {
            return Err(SessionError::last("eventfd"));
        }
        Ok(Self {
            cpu: u16::try_from(cpu).expect("Linux has fewer CPUs"),
            fuse_fd,
            entries: (0..max).map(|_| OnceLock::new()).collect(),
            entry_count: AtomicUsize::new(0),
            entry_count_first: first,
            parked_count: AtomicUsize::new(0),
            answered: Mutex::new(Vec::with_capacity(max)),
            // SAFETY: a fresh descriptor that nobody else owns.
            wake: unsafe { OwnedFd::from_raw_fd(wake) },
        })
    }

    fn entry(&self, index: usize) -> &Entry {
        self.entries[index]
            .get()
            .expect("indexes below entry_count are made")
    }

    fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight readable bytes. It fails only when the count is full: then the wake is pending.
        unsafe { libc::write(self.wake.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// What a queue's thread found.
enum Completed {
    /// An entry holds a request.
    Request(usize),
    /// Another thread has something to say.
    Woken,
    /// The connection has ended.
    Ended,
}

/// The ring of one queue's thread.
struct QueueLoop<'a> {
    queue: &'a Queue,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    woken: Box<u64>,
    ready: Vec<(u16, Option<Follow>)>,
}

impl<'a> QueueLoop<'a> {
    fn new(queue: &'a Queue) -> io::Result<Self> {
        let size = u32::try_from(queue.entries.len() * 2).expect("at most 512");
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(size)?;
        let mut made = Self {
            queue,
            ring,
            woken: Box::new(0),
            ready: Vec::with_capacity(queue.entries.len()),
        };
        for _ in 0..queue.entry_count_first {
            made.register()?;
        }
        made.listen();
        made.ring.submit()?;
        // A REGISTER that fails completes at once; one that succeeds completes with its first request.
        for completed in made.ring.completion() {
            if completed.result() < 0 {
                return Err(io::Error::from_raw_os_error(-completed.result()));
            }
        }
        Ok(made)
    }

    /// Gives the kernel one more entry.
    fn register(&mut self) -> io::Result<()> {
        let index = self.queue.entry_count.load(Ordering::Acquire);
        let entry = Entry::new()?;
        let pieces = entry.pieces.as_ptr();
        let _ = self.queue.entries[index].set(entry);
        self.queue.entry_count.store(index + 1, Ordering::Release);
        let sqe = self.command(abi::RING_REGISTER, 0, Some(pieces));
        self.push(&sqe.user_data(index as u64));
        Ok(())
    }

    /// An SQE for this queue.
    fn command(
        &self,
        op: u32,
        commit_id: u64,
        pieces: Option<*const libc::iovec>,
    ) -> squeue::Entry128 {
        let bytes = fuse::ring::command(self.queue.cpu, commit_id);
        let sqe = opcode::UringCmd80::new(Fd(self.queue.fuse_fd), op).cmd(bytes);
        let Some(pieces) = pieces else {
            return sqe.build();
        };
        let mut sqe = sqe.addr(Some(pieces as u64)).build();
        // The crate has no setter for `len`, where REGISTER expects the number of pieces.
        const LEN_OFFSET: usize = 24;
        // SAFETY: an Entry128 is the kernel's 128-byte SQE (the crate asserts it); `len` is its u32 at 24.
        unsafe {
            ptr::from_mut(&mut sqe)
                .cast::<u8>()
                .add(LEN_OFFSET)
                .cast::<u32>()
                .write(2)
        };
        sqe
    }

    fn push(&mut self, sqe: &squeue::Entry128) {
        loop {
            // SAFETY: entries and the wake buffer that SQEs point to live as long as the ring.
            if unsafe { self.ring.submission().push(sqe) }.is_ok() {
                return;
            }
            // Full: hand over what is there.
            if let Err(error) = self.ring.submit() {
                tracing::error!(%error, "submit");
            }
        }
    }

    /// Waits for `Queue::wake`.
    fn listen(&mut self) {
        let fd = Fd(self.queue.wake.as_raw_fd());
        let read = opcode::Read::new(fd, ptr::from_mut(&mut *self.woken).cast(), 8);
        let sqe = squeue::Entry128::from(read.build().user_data(WAKE));
        self.push(&sqe);
    }

    /// The next thing that has happened, if any.
    fn next(&mut self) -> Option<Completed> {
        let completed = self.ring.completion().next()?;
        if completed.user_data() == WAKE {
            self.listen();
            // The caller looks why: answers, or the end.
            return Some(Completed::Woken);
        }
        if completed.result() < 0 {
            return Some(Completed::Ended);
        }
        let index = usize::try_from(completed.user_data()).expect("an index we gave");
        Some(Completed::Request(index))
    }

    /// Hands the answered entries back to the kernel. True: something followed, with all of them in the kernel.
    fn commit_answered(&mut self) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        ready.append(&mut self.queue.answered.lock().expect("no holder panics"));
        let mut followers: Vec<Follow> = Vec::new();
        for (index, done) in ready.drain(..) {
            followers.extend(done);
            let entry = self.queue.entry(usize::from(index));
            // SAFETY: the entry was answered and is not yet with the kernel.
            let commit_id = unsafe { (*entry.header()).entry.commit_id };
            let sqe = self.command(abi::RING_COMMIT_AND_FETCH, commit_id, None);
            self.push(&sqe.user_data(u64::from(index)));
        }
        self.ready = ready;
        if followers.is_empty() {
            return false;
        }
        // A COMMIT is carried out within the system call that submits it.
        if let Err(error) = self.ring.submit() {
            tracing::error!(%error, cpu = self.queue.cpu, "submit");
        }
        followers.into_iter().for_each(|done| (done.0)());
        true
    }

    fn wait(&mut self) -> io::Result<()> {
        match self.ring.submit_and_wait(1) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Ok(()),
        }
    }

    /// Registers more entries when nearly all are parked. The kernel may have run out of them, and have
    /// requests waiting that a REGISTER does not fetch (6.18: only a COMMIT does): true then.
    ///
    /// To be called when all CQEs are handled: then a kernel that ran out shows as all entries parked.
    fn grow(&mut self) -> bool {
        let mut count = self.queue.entry_count.load(Ordering::Acquire);
        let parked = self.queue.parked_count.load(Ordering::Acquire);
        let wanted = (parked + SPARE_COUNT).min(self.queue.entries.len());
        if count >= wanted {
            return false;
        }
        while count < wanted {
            if let Err(error) = self.register() {
                tracing::warn!(%error, cpu = self.queue.cpu, "no memory for another ring entry");
                break;
            }
            count += 1;
        }
        if let Err(error) = self.ring.submit() {
            tracing::error!(%error, cpu = self.queue.cpu, "submit");
        }
        true
    }
}

/// Makes a request on `cpu`'s queue: the answer's COMMIT fetches what waits there. On a thread of its own,
/// as the caller is the one who answers it.
fn poke(cpu: u16, mount_point: &Arc<CString>) {
    let mount_point = mount_point.clone();
    let spawned = std::thread::Builder::new()
        .name(format!("fuse-poke-{cpu}"))
        .spawn(move || {
            pin(cpu);
            // SAFETY: statfs is plain data, and the path is NUL-terminated. The outcome does not matter.
            unsafe {
                let mut status: libc::statfs = std::mem::zeroed();
                libc::statfs(mount_point.as_ptr(), &raw mut status);
            }
        });
    if let Err(error) = spawned {
        tracing::error!(%error, cpu, "requests may wait for a place in the ring");
    }
}

/// Where WRITE payloads are copied to: a slab that is filled from its start.
struct Landing {
    /// None as long as there was none free.
    slab: Option<FrameRef>,
    /// Frames of the slab that were kept by somebody.
    used: u32,
}

impl Landing {
    /// Copies a payload into frames of which only we hold a reference; none where no slab is free.
    fn take(&mut self, memory: &dyn Memory, room: &Room, source: &[u8]) -> Option<Span> {
        let size = source.len();
        let count = u32::try_from(size.div_ceil(FRAME_SIZE)).expect("at most 256");
        if self.used + count > types::frame::FRAMES_PER_SLAB {
            self.release_rest(memory);
            self.slab = None;
        }
        if self.slab.is_none() {
            self.slab = room.slab_soon(memory);
            self.used = 0;
        }
        let frame = FrameRef(self.slab?.0 + self.used);
        // SAFETY: the target frames are referenced by us alone, and are no part of an entry.
        unsafe { ptr::copy_nonoverlapping(source.as_ptr(), memory.address(frame), size) };
        Some(Span {
            frame,
            offset: 0,
            length: u32::try_from(size).expect("at most 1 MiB"),
        })
    }

    /// The payload was handled: frames that somebody keeps are given up, else they are used again.
    fn settle(&mut self, memory: &dyn Memory, payload: Span) {
        if frames_of(payload).any(|frame| memory.is_shared(frame)) {
            let count = frames_of(payload).count();
            memory.release_span(payload);
            self.used += u32::try_from(count).expect("at most 256");
        }
    }

    fn release_rest(&self, memory: &dyn Memory) {
        let Some(slab) = self.slab else { return };
        for index in self.used..types::frame::FRAMES_PER_SLAB {
            memory.release(FrameRef(slab.0 + index));
        }
    }

    fn end(self, memory: &dyn Memory) {
        match self.slab {
            Some(slab) if self.used == 0 => release_slab(memory, slab),
            _ => self.release_rest(memory),
        }
    }
}

impl Transport for Ring {
    fn send(&self, memory: &dyn Memory, route: Route, unique: u64, answer: &Encoded<'_>) {
        match usize::from(route.0).checked_sub(DEVICE_ROUTE_COUNT) {
            None => self.device.send(memory, route, unique, answer),
            // A request that is gone needs no answer.
            Some(at) => drop(self.send_to_entry((memory, at, unique), answer, None)),
        }
    }

    fn is_immediate(&self, route: Route) -> bool {
        usize::from(route.0) < DEVICE_ROUTE_COUNT
    }

    fn send_then(
        &self,
        (memory, route, unique): (&dyn Memory, Route, u64),
        answer: &Encoded<'_>,
        done: Follow,
    ) {
        let Some(at) = usize::from(route.0).checked_sub(DEVICE_ROUTE_COUNT) else {
            self.device.send(memory, route, unique, answer);
            return (done.0)();
        };
        if let Err(Some(done)) = self.send_to_entry((memory, at, unique), answer, Some(done)) {
            (done.0)();
        }
    }

    fn start(self: Arc<Self>, serving: &Arc<Serving>) -> Result<Vec<JoinHandle<()>>, SessionError> {
        let error = |call| move |source| SessionError::Io { call, source };
        let at_end = self.clone();
        let device = self.device.clone();
        let mut threads = vec![device.start_thread(0, serving, move || at_end.end())?];
        let (sender, receiver) = mpsc::channel();
        for index in 0..self.queues.len() {
            let (ring, shared, sender) = (self.clone(), serving.clone(), sender.clone());
            serving.on_thread_start();
            let thread = std::thread::Builder::new()
                .name(format!("fuse-ring-{index}"))
                .spawn(move || {
                    session::serve_without_reclaim();
                    ring.serve(&ring.queues[index], &shared, sender);
                    shared.on_thread_end();
                })
                .map_err(error("spawn"))?;
            threads.push(thread);
        }
        // A thread that dies says nothing; then `recv` fails only when all have died.
        drop(sender);
        for _ in 0..self.queues.len() {
            let outcome = receiver
                .recv()
                .unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::ENOTCONN)));
            outcome.map_err(error("FUSE_IO_URING_CMD_REGISTER"))?;
        }
        Ok(threads)
    }
}

fn possible_cpu_count() -> Result<usize, SessionError> {
    // The kernel wants a queue for each possible CPU, present or not.
    let path = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(path).map_err(|source| SessionError::Io {
        call: "/sys/devices/system/cpu/possible",
        source,
    })?;
    let last = text.trim().rsplit(['-', ',']).next().unwrap_or_default();
    Ok(last.parse::<usize>().unwrap_or(0) + 1)
}

/// Runs this thread on one CPU; a CPU that is not there leaves it where it is (its queue stays idle).
fn pin(cpu: u16) {
    // SAFETY: cpu_set_t is plain data; the set lives through the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::from(cpu), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
