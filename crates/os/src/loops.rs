//! Event loops: one thread each, with an io_uring that carries polls of sockets and disk I/O.
//!
//! Invariants
//! - Work posted to a loop runs on its thread, in the order in which one thread posted it. A wake-up is
//!   sent only when the loop sleeps or is about to, and never to the posting thread itself; none is lost:
//!   the loop announces its sleep, then looks at the queue; a poster fills the queue, then looks at the
//!   announcement; both with sequentially consistent order.
//! - A completion or readiness is handled on the loop that asked for it.
//! - After `stop` returned, all threads have ended, all I/O that was in flight has completed, and every
//!   descriptor that only the loops kept is closed.
//!
//! A loop never blocks but in its ring: what it calls must not.

mod local;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use thiserror::Error;
use types::Instant;

pub(crate) use local::{PollId, Source, current, poll_add, poll_remove, submit};

/// What a loop runs once.
pub type Work = Box<dyn FnOnce() + Send>;

/// What the driver does when time has passed.
pub trait Handler: Send + Sync {
    /// The deadline last set has passed; it is cleared before the call. On the first loop's thread.
    fn on_timer(&self, now: Instant);
}

/// Why there are no loops.
#[derive(Debug, Error)]
pub enum LoopError {
    /// Give at least one loop.
    #[error("the number of event loops is 0")]
    Count,
    /// The system gives no ring (switched off by sysctl or seccomp, or no locked memory), descriptor or
    /// thread.
    #[error("starting event loop {index}: {what}: {source}")]
    Start {
        /// Which loop.
        index: usize,
        /// The call that failed.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// What the loops did since they started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoopCounters {
    /// Times a loop slept.
    pub sleep_count: u64,
    /// Wake-ups sent by posting threads.
    pub wake_count: u64,
    /// Pieces of posted work.
    pub work_count: u64,
    /// Completions and readiness events.
    pub event_count: u64,
}

/// The part of a loop that other threads reach.
#[derive(Debug)]
pub(super) struct Shared {
    index: usize,
    queue: Mutex<Queue>,
    is_sleeping: AtomicBool,
    wake: OwnedFd,
    /// Nanoseconds of the deadline; `u64::MAX` is none. Only the first loop's is used.
    deadline: AtomicU64,
    /// What keeps a stopping loop open: I/O outside its ring.
    hold_count: AtomicUsize,
    sleep_count: AtomicU64,
    wake_count: AtomicU64,
    work_count: AtomicU64,
    event_count: AtomicU64,
}

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    timed: Vec<(Instant, Work)>,
    is_stopped: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} pieces of work", self.work.len())
    }
}

/// Locks what no code panics under.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .expect("no code panics while it holds this lock")
}

impl Shared {
    fn new(index: usize) -> Result<Self, LoopError> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(LoopError::Start {
                index,
                what: "eventfd",
                source: std::io::Error::last_os_error(),
            });
        }
        Ok(Self {
            index,
            queue: Mutex::default(),
            is_sleeping: AtomicBool::new(false),
            // SAFETY: the descriptor is new and ours alone.
            wake: unsafe { OwnedFd::from_raw_fd(fd) },
            deadline: AtomicU64::new(u64::MAX),
            hold_count: AtomicUsize::new(0),
            sleep_count: AtomicU64::new(0),
            wake_count: AtomicU64::new(0),
            work_count: AtomicU64::new(0),
            event_count: AtomicU64::new(0),
        })
    }

    /// To be called after the queue or deadline changed.
    fn wake(&self) {
        // The swap is the second half of the handshake in `local::Loop::sleep`; it also makes one poster
        // of many send the wake-up.
        if self.is_sleeping.swap(false, Ordering::SeqCst) && current() != Some(self.index) {
            self.wake_count.fetch_add(1, Ordering::Relaxed);
            let one = 1_u64;
            // SAFETY: eight readable bytes; the descriptor is open as long as `self`.
            let written = unsafe {
                libc::write(
                    self.wake.as_raw_fd(),
                    (&raw const one).cast(),
                    size_of_val(&one),
                )
            };
            // The counter would overflow after 2^64 wake-ups; nothing else can fail.
            assert_eq!(written, 8, "an eventfd takes a wake-up");
        }
    }
}

/// The loops of a daemon. Dropping it stops them.
#[derive(Debug)]
pub struct Loops {
    loops: Vec<Arc<Shared>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Loops {
    /// Starts `count` loops; `handler` hears of deadlines.
    pub fn start(count: usize, handler: Arc<dyn Handler>) -> Result<Arc<Self>, LoopError> {
        if count == 0 {
            return Err(LoopError::Count);
        }
        let loops = (0..count)
            .map(|index| Shared::new(index).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let this = Arc::new(Self {
            loops,
            threads: Mutex::default(),
        });
        for shared in &this.loops {
            // Dropping `this` on failure stops those that run already.
            let thread = local::spawn(Arc::clone(shared), Arc::clone(&handler))?;
            lock(&this.threads).push(thread);
        }
        Ok(this)
    }

    /// Loops in all.
    #[must_use]
    pub fn count(&self) -> usize {
        self.loops.len()
    }

    /// The loop whose thread this is.
    #[must_use]
    pub fn current() -> Option<usize> {
        current()
    }

    /// Runs `work` on loop `index % count()`, soon. After `stop`, `work` is dropped.
    pub fn post(&self, index: usize, work: Work) {
        let shared = &self.loops[index % self.loops.len()];
        let mut queue = lock(&shared.queue);
        if queue.is_stopped {
            return;
        }
        queue.work.push_back(work);
        drop(queue);
        shared.wake();
    }

    /// Runs `work` on loop `index % count()` when `at` has come. After `stop`, `work` is dropped.
    pub fn post_at(&self, index: usize, at: Instant, work: Work) {
        let shared = &self.loops[index % self.loops.len()];
        let mut queue = lock(&shared.queue);
        if queue.is_stopped {
            return;
        }
        queue.timed.push((at, work));
        drop(queue);
        shared.wake();
    }

    /// Keeps loop `index % count()` from ending until `unhold`, for I/O that is answered on it but not in
    /// flight on its ring; false when it is stopping already.
    pub(crate) fn hold(&self, index: usize) -> bool {
        let shared = &self.loops[index % self.loops.len()];
        let queue = lock(&shared.queue);
        if !queue.is_stopped {
            shared.hold_count.fetch_add(1, Ordering::SeqCst);
        }
        !queue.is_stopped
    }

    /// Ends a `hold`.
    pub(crate) fn unhold(&self, index: usize) {
        let shared = &self.loops[index % self.loops.len()];
        let old = shared.hold_count.fetch_sub(1, Ordering::SeqCst);
        assert!(old > 0, "one unhold per hold");
    }

    /// Calls the handler's `on_timer` at `at`, or earlier when an earlier deadline is set already (one
    /// is kept: the earliest; the handler sets the next one).
    pub fn set_deadline(&self, at: Instant) {
        let shared = &self.loops[0];
        if shared.deadline.fetch_min(at.0, Ordering::SeqCst) > at.0 {
            shared.wake();
        }
    }

    /// The counters of all loops together.
    #[must_use]
    pub fn counters(&self) -> LoopCounters {
        let mut sum = LoopCounters::default();
        for shared in &self.loops {
            sum.sleep_count += shared.sleep_count.load(Ordering::Relaxed);
            sum.wake_count += shared.wake_count.load(Ordering::Relaxed);
            sum.work_count += shared.work_count.load(Ordering::Relaxed);
            sum.event_count += shared.event_count.load(Ordering::Relaxed);
        }
        sum
    }

    /// Lets each loop run the work posted so far, waits for the I/O in flight, ends the threads and
    /// waits for them (but for the caller's own, when called on a loop). Twice is as good as once.
    pub fn stop(&self) {
        for shared in &self.loops {
            lock(&shared.queue).is_stopped = true;
            shared.wake();
        }
        let threads = std::mem::take(&mut *lock(&self.threads));
        let own = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != own {
                thread
                    .join()
                    .expect("a loop that panicked has reported why");
            }
        }
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
