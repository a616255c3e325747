//! Submission by threads that have no ring of their own: Linux AIO, answered through a loop.
//!
//! Why not io_uring here too: a request's completion is finished by the thread that submitted it (task
//! work), or, with deferred task work, only one thread may submit. So a FUSE thread would either have to
//! hand its request to a loop (one more wake-up before the disk starts) or be woken from its read of
//! /dev/fuse to finish it. AIO is submitted by the caller and finished in the disk's own context, which
//! wakes the loop through an eventfd. Measured, 4 KiB write at depth 1 on a loop device over tmpfs, from
//! the call to the completion on the loop's thread, fastest tenth: hand-over to the loop 14.6 us, shared
//! ring 14.4 to 15.8, AIO 12.1 to 12.9, blocking write 9.7 to 14; medians on a busy machine (2 processors)
//! 15 to 52, 16 to 56, 13 to 31 and 11 to 36.
//!
//! Invariants
//! - A request that the kernel took is answered once, and holds its loop open until then.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

use super::queue::{Kind, Part};
use crate::loops::{self, Loops, PollId, Source, lock};

/// Events that the kernel keeps for us: more than a disk has in flight.
const EVENT_COUNT: libc::c_long = 256;
/// Completions taken at once.
const BATCH_COUNT: u8 = 32;

/// Called on the loop's thread with the part and the result: bytes, or a negative errno.
pub(super) type Completion = Box<dyn FnOnce(Part, i32) + Send>;

/// `struct iocb` of linux/aio_abi.h for little-endian machines.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    count: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    result_fd: u32,
}
const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const OPCODE_FDSYNC: u16 = 3;
const OPCODE_PREADV: u16 = 7;
const OPCODE_PWRITEV: u16 = 8;
const FLAG_RESULT_FD: u32 = 1;

struct InFlight {
    part: Part,
    completion: Completion,
}

/// An AIO context whose completions are taken by one loop.
#[derive(Debug)]
pub(super) struct Aio {
    context: libc::c_ulong,
    wake: OwnedFd,
    loops: Arc<Loops>,
    home: usize,
    poll: Mutex<Option<PollId>>,
}

impl Aio {
    /// `None` when the system has no AIO left to give (fs.aio-max-nr): the loops' rings do as well.
    pub(super) fn new(loops: &Arc<Loops>, home: usize) -> Option<Arc<Self>> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return None;
        }
        // SAFETY: the descriptor is new and ours alone.
        let wake = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes the context.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, EVENT_COUNT, &raw mut context) };
        if result != 0 {
            return None;
        }
        let this = Arc::new(Self {
            context,
            wake,
            loops: Arc::clone(loops),
            home,
            poll: Mutex::new(None),
        });
        let added = Arc::clone(&this);
        let add = move || {
            let id = loops::poll_add(added.wake.as_raw_fd(), libc::POLLIN as u32, added.clone());
            *lock(&added.poll) = Some(id);
        };
        loops.post(home, Box::new(add));
        Some(this)
    }

    /// Ends the poll; nothing is in flight any more.
    pub(super) fn close(self: Arc<Self>) {
        let loops = Arc::clone(&self.loops);
        loops.post(
            self.home,
            Box::new(move || {
                if let Some(id) = lock(&self.poll).take() {
                    loops::poll_remove(id);
                }
            }),
        );
    }

    /// Hands `part` to the kernel, or gives it back when the kernel has no room for it now.
    pub(super) fn submit(
        &self,
        fd: RawFd,
        durable_flag: i32,
        part: Part,
        completion: Completion,
    ) -> Result<(), Part> {
        if !self.loops.hold(self.home) {
            return Err(part);
        }
        let (opcode, rw_flags) = match part.kind() {
            Kind::Read => (OPCODE_PREADV, 0),
            Kind::Write => (OPCODE_PWRITEV, 0),
            Kind::DurableWrite => (OPCODE_PWRITEV, durable_flag),
            Kind::Flush => (OPCODE_FDSYNC, 0),
        };
        let number = |fd: RawFd| u32::try_from(fd).expect("an open descriptor");
        let mut iocb = Iocb {
            opcode,
            rw_flags,
            fd: number(fd),
            flags: FLAG_RESULT_FD,
            result_fd: number(self.wake.as_raw_fd()),
            ..Iocb::default()
        };
        if part.kind() != Kind::Flush {
            iocb.buffer = part.pieces.as_ptr().addr() as u64;
            iocb.count = part.pieces.len() as u64;
            iocb.offset = i64::try_from(part.offset).expect("within the disk");
        }
        let in_flight = Box::into_raw(Box::new(InFlight { part, completion }));
        iocb.data = in_flight.expose_provenance() as u64;
        let mut list = [&raw mut iocb];
        // SAFETY: one valid iocb, which the kernel copies; the memory that it names lives in `in_flight`
        // and in the frames that the request's caller holds, until the completion.
        let taken =
            unsafe { libc::syscall(libc::SYS_io_submit, self.context, 1_i64, list.as_mut_ptr()) };
        if taken == 1 {
            return Ok(());
        }
        // SAFETY: the kernel did not take it, so that it is ours alone again.
        let in_flight = unsafe { Box::from_raw(in_flight) };
        self.loops.unhold(self.home);
        Err(in_flight.part)
    }
}

impl Source for Aio {
    fn on_ready(&self, _events: u32) {
        loop {
            let mut events = [Event::default(); BATCH_COUNT as usize];
            // SAFETY: the call writes up to as many events as there are places.
            let count = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    0_i64,
                    libc::c_long::from(BATCH_COUNT),
                    events.as_mut_ptr(),
                    std::ptr::null_mut::<libc::timespec>(),
                )
            };
            let Ok(count) = usize::try_from(count) else {
                let error = Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::EINTR), "our own context");
                continue;
            };
            for event in &events[..count] {
                let address = usize::try_from(event.data).expect("64-bit addresses");
                // SAFETY: the address that `submit` gave the kernel, which gives it back once.
                let in_flight = unsafe {
                    Box::from_raw(std::ptr::with_exposed_provenance_mut::<InFlight>(address))
                };
                let result = i32::try_from(event.result).expect("parts are below 2 GiB");
                (in_flight.completion)(in_flight.part, result);
                self.loops.unhold(self.home);
            }
            if count < events.len() {
                return;
            }
        }
    }
}

impl Drop for Aio {
    fn drop(&mut self) {
        // SAFETY: our own context; the call waits for what is in flight (nothing).
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}
