//! The part of a loop that only its own thread touches: the ring and what is in flight on it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use io_uring::{IoUring, cqueue, opcode, squeue, types as uring};
use types::Instant;

use super::{Handler, LoopError, Shared, Work, lock};
use crate::clock;

/// Entries of the submission queue; when it is full it is submitted early.
const ENTRY_COUNT: u32 = 256;
/// Places for completions; the kernel keeps those that do not fit.
const COMPLETION_COUNT: u32 = 4096;

/// What hears of a descriptor's readiness.
pub(crate) trait Source: Send + Sync {
    /// The descriptor is ready for some of `events` (POLLIN, POLLOUT, ...). Readiness is told once per
    /// change: read or write until the system says EAGAIN.
    fn on_ready(&self, events: u32);
}

/// A poll of this loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PollId(usize);

enum Slot {
    Free,
    Poll {
        fd: RawFd,
        events: u32,
        source: Arc<dyn Source>,
        is_removed: bool,
    },
    Once(Box<dyn FnOnce(i32)>),
    /// A cancel request of our own.
    Cancel,
}

struct Ring {
    uring: IoUring,
    slots: Vec<Slot>,
    free: Vec<usize>,
}

struct Local {
    shared: Arc<Shared>,
    ring: RefCell<Ring>,
}

thread_local! {
    static LOCAL: RefCell<Option<Rc<Local>>> = const { RefCell::new(None) };
}

/// The loop that runs on this thread.
pub(crate) fn current() -> Option<usize> {
    LOCAL.with_borrow(|local| local.as_ref().map(|l| l.shared.index))
}

fn with_ring<R>(act: impl FnOnce(&mut Ring) -> R) -> R {
    let local = LOCAL.with_borrow(Clone::clone);
    let local = local.expect("only a loop's thread uses its ring");
    let mut ring = local.ring.borrow_mut();
    act(&mut ring)
}

/// Tells `source` when `fd` gets ready for `events`, until `poll_remove`. `source` keeps `fd` open for
/// as long as it lives; the loop keeps `source` until the kernel has forgotten the poll.
pub(crate) fn poll_add(fd: RawFd, events: u32, source: Arc<dyn Source>) -> PollId {
    with_ring(|ring| {
        let index = ring.slot(Slot::Poll {
            fd,
            events,
            source,
            is_removed: false,
        });
        ring.arm(index, fd, events);
        PollId(index)
    })
}

/// Ends a poll; its source hears nothing more.
pub(crate) fn poll_remove(id: PollId) {
    with_ring(|ring| {
        let Slot::Poll { is_removed, .. } = &mut ring.slots[id.0] else {
            panic!("a poll is removed by its owner, once");
        };
        assert!(!*is_removed, "a poll is removed by its owner, once");
        *is_removed = true;
        let cancel = ring.slot(Slot::Cancel);
        let entry = opcode::AsyncCancel::new(id.0 as u64).build();
        // SAFETY: the entry points to nothing.
        unsafe { ring.push(&entry.user_data(cancel as u64)) };
    });
}

/// Submits `entry` on this thread's loop; `completion` is called with its result.
///
/// # Safety
/// What the entry points to stays valid until `completion` is called (which may own it).
pub(crate) unsafe fn submit(entry: squeue::Entry, completion: Box<dyn FnOnce(i32)>) {
    with_ring(|ring| {
        let index = ring.slot(Slot::Once(completion));
        // SAFETY: the caller's promise.
        unsafe { ring.push(&entry.user_data(index as u64)) };
    });
}

impl Ring {
    fn new() -> std::io::Result<Self> {
        // Completions wait until the loop asks for them: no interrupts in the middle of a request.
        let best = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_cqsize(COMPLETION_COUNT)
            .build(ENTRY_COUNT);
        let uring = match best {
            // Before Linux 6.1.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder()
                .setup_cqsize(COMPLETION_COUNT)
                .build(ENTRY_COUNT)?,
            other => other?,
        };
        Ok(Self {
            uring,
            slots: Vec::new(),
            free: Vec::new(),
        })
    }

    fn slot(&mut self, slot: Slot) -> usize {
        if let Some(index) = self.free.pop() {
            self.slots[index] = slot;
            return index;
        }
        self.slots.push(slot);
        self.slots.len() - 1
    }

    fn take(&mut self, index: usize) -> Slot {
        self.free.push(index);
        std::mem::replace(&mut self.slots[index], Slot::Free)
    }

    fn arm(&mut self, index: usize, fd: RawFd, events: u32) {
        let entry = opcode::PollAdd::new(uring::Fd(fd), events)
            .multi(true)
            .build()
            .user_data(index as u64);
        // SAFETY: the entry points to nothing; the source in the slot keeps the descriptor open.
        unsafe { self.push(&entry) };
    }

    /// # Safety
    /// What the entry points to stays valid until its completion.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller's promise.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.enter(0, None);
        }
    }

    fn enter(&self, want: usize, timeout: Option<uring::Timespec>) {
        let args = uring::SubmitArgs::new();
        let result = match &timeout {
            Some(timespec) => self
                .uring
                .submitter()
                .submit_with_args(want, &args.timespec(timespec)),
            None => self.uring.submitter().submit_and_wait(want),
        };
        match result.map_err(|error| (error.raw_os_error(), error)) {
            Ok(_) => {}
            // The time-out; a signal; completions to be taken first.
            Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
            Err((_, error)) => panic!("io_uring_enter on our own ring: {error}"),
        }
    }

    /// Nothing is in flight, polls included.
    fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| matches!(slot, Slot::Free))
    }

    fn cancel_polls(&mut self) {
        for index in 0..self.slots.len() {
            if let Slot::Poll { is_removed, .. } = &mut self.slots[index]
                && !std::mem::replace(is_removed, true)
            {
                let cancel = self.slot(Slot::Cancel);
                let entry = opcode::AsyncCancel::new(index as u64).build();
                // SAFETY: the entry points to nothing.
                unsafe { self.push(&entry.user_data(cancel as u64)) };
            }
        }
    }
}

/// The wake-up descriptor needs nothing but to end the sleep.
struct Wake;

impl Source for Wake {
    fn on_ready(&self, _events: u32) {}
}

struct Loop {
    local: Rc<Local>,
    handler: Arc<dyn Handler>,
    timers: BTreeMap<(Instant, u64), Work>,
    timer_number: u64,
    work: Vec<Work>,
    events: Vec<(usize, i32, u32)>,
}

pub(super) fn spawn(
    shared: Arc<Shared>,
    handler: Arc<dyn Handler>,
) -> Result<JoinHandle<()>, LoopError> {
    let index = shared.index;
    let failed = |what| {
        move |source| LoopError::Start {
            index,
            what,
            source,
        }
    };
    // The ring belongs to the thread that runs it, so its thread makes it and reports.
    let (report, made) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new()
        .name(format!("loop{index}"))
        .spawn(move || {
            crate::fuse::serve_without_reclaim();
            let ring = match Ring::new() {
                Ok(ring) => ring,
                Err(error) => {
                    let _ = report.send(Err(error));
                    return;
                }
            };
            let local = Rc::new(Local {
                shared,
                ring: RefCell::new(ring),
            });
            LOCAL.set(Some(Rc::clone(&local)));
            let _ = report.send(Ok(()));
            Loop {
                local,
                handler,
                timers: BTreeMap::new(),
                timer_number: 0,
                work: Vec::new(),
                events: Vec::new(),
            }
            .run();
            LOCAL.set(None);
        })
        .map_err(failed("thread"))?;
    match made.recv().expect("the thread reports before it ends") {
        Ok(()) => Ok(thread),
        Err(source) => {
            thread.join().expect("it ended after its report");
            Err(failed("io_uring_setup")(source))
        }
    }
}

impl Loop {
    fn run(mut self) {
        let wake = self.local.shared.wake.as_raw_fd();
        poll_add(wake, libc::POLLIN as u32, Arc::new(Wake));
        loop {
            let is_stopped = self.run_posted();
            self.run_timers();
            if is_stopped {
                break;
            }
            self.sleep();
            self.dispatch();
        }
        // Nothing more is posted. Polls end; I/O in flight completes; both may start more of it.
        self.timers.clear();
        loop {
            let mut ring = self.local.ring.borrow_mut();
            let is_held = self.local.shared.hold_count.load(Ordering::SeqCst) > 0;
            if !is_held {
                ring.cancel_polls();
            }
            if ring.is_idle() {
                break;
            }
            // A hold may end on another thread, which then sends nothing: look again soon.
            ring.enter(1, is_held.then(|| uring::Timespec::new().nsec(10_000_000)));
            drop(ring);
            self.dispatch();
        }
    }

    /// Runs what was posted; true when the loop is to end.
    fn run_posted(&mut self) -> bool {
        loop {
            let mut queue = lock(&self.local.shared.queue);
            self.work.extend(queue.work.drain(..));
            let timed = std::mem::take(&mut queue.timed);
            let is_stopped = queue.is_stopped;
            drop(queue);
            for (at, work) in timed {
                self.timer_number += 1;
                self.timers.insert((at, self.timer_number), work);
            }
            let shared = &self.local.shared;
            let count = self.work.len() as u64;
            shared.work_count.fetch_add(count, Ordering::Relaxed);
            for work in self.work.drain(..) {
                work();
            }
            // After a stop nothing is added, so that one more round finds nothing.
            if !is_stopped || count == 0 {
                return is_stopped;
            }
        }
    }

    fn run_timers(&mut self) {
        let deadline = &self.local.shared.deadline;
        let next = deadline.load(Ordering::SeqCst);
        if next == u64::MAX && self.timers.is_empty() {
            return;
        }
        let now = clock::now();
        if next <= now.0 {
            deadline.store(u64::MAX, Ordering::SeqCst);
            self.handler.on_timer(now);
        }
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            entry.remove()();
        }
    }

    /// Submits what was pushed, and waits for the first event unless there is something to do.
    fn sleep(&mut self) {
        let shared = &self.local.shared;
        shared.is_sleeping.store(true, Ordering::SeqCst);
        // The first half of the handshake with `Shared::wake`: announce, then look.
        let queue = lock(&shared.queue);
        let has_work = !queue.work.is_empty() || !queue.timed.is_empty() || queue.is_stopped;
        drop(queue);
        let mut at = shared.deadline.load(Ordering::SeqCst);
        if let Some(((first, _), _)) = self.timers.first_key_value() {
            at = at.min(first.0);
        }
        let timeout = (at != u64::MAX).then(|| at.saturating_sub(clock::now().0));
        let ring = self.local.ring.borrow();
        if has_work || timeout == Some(0) {
            shared.is_sleeping.store(false, Ordering::SeqCst);
            // Zero time instead of no wait: with deferred task work only a wait takes completions.
            ring.enter(1, Some(uring::Timespec::new()));
            return;
        }
        shared.sleep_count.fetch_add(1, Ordering::Relaxed);
        let timespec = timeout.map(|nanos| {
            uring::Timespec::new()
                .sec(nanos / 1_000_000_000)
                .nsec(u32::try_from(nanos % 1_000_000_000).expect("below 10^9"))
        });
        ring.enter(1, timespec);
        shared.is_sleeping.store(false, Ordering::SeqCst);
    }

    fn dispatch(&mut self) {
        loop {
            let mut ring = self.local.ring.borrow_mut();
            let index = |entry: &cqueue::Entry| {
                usize::try_from(entry.user_data()).expect("user data is a slot number")
            };
            self.events.extend(
                ring.uring
                    .completion()
                    .map(|entry| (index(&entry), entry.result(), entry.flags())),
            );
            drop(ring);
            if self.events.is_empty() {
                return;
            }
            let count = self.events.len() as u64;
            self.local
                .shared
                .event_count
                .fetch_add(count, Ordering::Relaxed);
            let mut events = std::mem::take(&mut self.events);
            for (index, result, flags) in events.drain(..) {
                self.on_event(index, result, cqueue::more(flags));
            }
            self.events = events;
        }
    }

    fn on_event(&self, index: usize, result: i32, has_more: bool) {
        let mut ring = self.local.ring.borrow_mut();
        let source = match &ring.slots[index] {
            Slot::Free => unreachable!("a slot is free only after its last completion"),
            Slot::Cancel | Slot::Once(_) => {
                let slot = ring.take(index);
                drop(ring);
                if let Slot::Once(completion) = slot {
                    completion(result);
                }
                return;
            }
            Slot::Poll {
                source, is_removed, ..
            } if *is_removed => {
                if has_more {
                    return;
                }
                // Dropped outside the borrow: it may be the last reference to the source.
                let slot = ring.take(index);
                drop(ring);
                drop(slot);
                return;
            }
            Slot::Poll {
                fd, events, source, ..
            } => {
                let (fd, events, source) = (*fd, *events, Arc::clone(source));
                if !has_more {
                    // The kernel gave the poll up (a full completion queue): ask again. Readiness that
                    // exists is told at once.
                    ring.arm(index, fd, events);
                }
                source
            }
        };
        drop(ring);
        if let Ok(events) = u32::try_from(result) {
            source.on_ready(events);
        } else {
            // The poll itself failed, as on a descriptor without poll: whoever reads it sees why.
            source.on_ready((libc::POLLERR | libc::POLLHUP) as u32);
        }
    }
}
