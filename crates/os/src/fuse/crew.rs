//! How many of the threads of /dev/fuse read from it: one while one keeps up, more when requests queue up.
//!
//! The kernel hands requests to sleeping readers in turn. With one caller and two readers each request
//! so wakes the thread that has slept longest, on a cold CPU: measured 24 us for an unlink against 18 with
//! one reader. With two callers one reader is half as fast as two. So readers come and go:
//!
//! 1. The first thread always reads. The others begin parked.
//! 2. A thread whose reads return at once calls a parked one, if the requests come from several callers
//!    or still more are queued. (A single caller on another CPU is often quick enough to have its next
//!    request there at the next read; that is no reason to share the work.) No more
//!    than there are CPUs: on two of them a third reader only wakes the others (four processes made 12,142 and
//!    10,320 files a second with two readers, 11,258 and 8,905 with four, by turns).
//! 3. A called thread parks again when many requests in a row gave no such reason.
//! 4. A parked thread that sees the others busy with the same requests for a while joins them: whatever
//!    they wait for may need a request to be served (memory reclaim that writes mapped pages back).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Reasons to share the work until a parked thread is called.
const REASON_COUNT: u32 = 3;
/// Requests without a reason until a called thread parks.
const NO_REASON_COUNT: u32 = 32;
/// Of the reads that return at once with requests of one caller, each so many-th looks for more.
const LOOK_EACH: u32 = 8;
/// A parked thread looks after the others this often.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// A read that takes less than this, and this for each KiB, did not wait for a request.
const READ_NS: u128 = 3000;
const READ_NS_PER_KIB: u128 = 200;

/// What the threads of a device know of one another.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// Requests begun, less requests finished (low half); requests finished (high half).
    progress: AtomicU64,
    /// Who made the last request.
    caller: AtomicU32,
    parked_count: AtomicUsize,
    /// Threads in all.
    member_count: AtomicUsize,
    /// So many may read before a call is of no use; more join when these are stuck.
    active_max: usize,
    calls: Mutex<usize>,
    called: Condvar,
    has_ended: AtomicBool,
}

/// One thread's view.
#[derive(Debug)]
pub(super) struct Member<'a> {
    crew: &'a Crew,
    is_first: bool,
    reason_count: u32,
    no_reason_count: u32,
    quick_count: u32,
}

/// A request as the crew sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// How long the read took.
    pub(super) took: Duration,
    /// Bytes read.
    pub(super) size: usize,
    /// The calling thread; 0 if it is the kernel.
    pub(super) caller: u32,
}

impl Arrival {
    /// It was not there when the thread began to read.
    pub(super) fn was_awaited(self) -> bool {
        let limit = READ_NS + (self.size as u128 / 1024) * READ_NS_PER_KIB;
        self.took.as_nanos() >= limit
    }
}

const FINISHED: u64 = 1 << 32;

impl Crew {
    /// So many threads are called to read at a time.
    pub(super) fn new(active_max: usize) -> Self {
        Self {
            active_max,
            ..Self::default()
        }
    }

    pub(super) fn member(&self, is_first: bool) -> Member<'_> {
        self.member_count.fetch_add(1, Ordering::Relaxed);
        Member {
            crew: self,
            is_first,
            reason_count: 0,
            no_reason_count: 0,
            quick_count: 0,
        }
    }

    /// The connection has ended: nobody stays parked.
    pub(super) fn end(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        let _calls = self.calls.lock().expect("no holder panics");
        self.has_ended.store(true, Ordering::Release);
        self.called.notify_all();
    }

    fn call(&self) {
        let parked_count = self.parked_count.load(Ordering::Relaxed);
        let active_count = self.member_count.load(Ordering::Relaxed) - parked_count;
        if parked_count == 0 || active_count >= self.active_max {
            return;
        }
        *self.calls.lock().expect("no holder panics") = 1;
        self.called.notify_one();
    }

    fn park(&self) {
        self.parked_count.fetch_add(1, Ordering::Relaxed);
        let mut calls = self.calls.lock().expect("no holder panics");
        let mut seen = self.progress.load(Ordering::Relaxed);
        while *calls == 0 && !self.has_ended.load(Ordering::Acquire) {
            let (guard, outcome) = self
                .called
                .wait_timeout(calls, LOOK_INTERVAL)
                .expect("no holder panics");
            calls = guard;
            if outcome.timed_out() {
                let now = self.progress.load(Ordering::Relaxed);
                if now == seen && !now.is_multiple_of(FINISHED) {
                    break;
                }
                seen = now;
            }
        }
        *calls = 0;
        drop(calls);
        self.parked_count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Member<'_> {
    /// To be called once, before the first read.
    pub(super) fn park_if_new(&mut self) {
        if !self.is_first {
            self.crew.park();
        }
    }

    /// A request was read. `has_more` says whether others are queued; it is rarely asked.
    pub(super) fn on_request(&mut self, arrival: Arrival, has_more: impl FnOnce() -> bool) {
        self.crew.progress.fetch_add(1, Ordering::Relaxed);
        if arrival.caller == 0 {
            return;
        }
        let before = self.crew.caller.load(Ordering::Relaxed);
        let mut is_reason = before != arrival.caller;
        if is_reason {
            self.crew.caller.store(arrival.caller, Ordering::Relaxed);
        }
        let is_quick = !arrival.was_awaited();
        if is_quick && !is_reason {
            self.quick_count += 1;
            is_reason = self.quick_count.is_multiple_of(LOOK_EACH) && has_more();
        }
        if !is_reason {
            self.no_reason_count += 1;
            if self.no_reason_count >= NO_REASON_COUNT {
                self.reason_count = 0;
            }
            return;
        }
        self.no_reason_count = 0;
        if is_quick {
            self.reason_count += 1;
            if self.reason_count >= REASON_COUNT {
                self.reason_count = 0;
                self.crew.call();
            }
        }
    }

    /// No other thread reads, and there are some that could.
    pub(super) fn is_alone(&self) -> bool {
        let parked_count = self.crew.parked_count.load(Ordering::Relaxed);
        let count = self.crew.member_count.load(Ordering::Relaxed);
        count > 1 && count <= parked_count + 1
    }

    /// The request was handled; the thread is about to read again. Parks it when it is not needed, and says so.
    pub(super) fn on_handled(&mut self) -> bool {
        let progress = &self.crew.progress;
        progress.fetch_add(FINISHED - 1, Ordering::Relaxed);
        let parks = !self.is_first && self.no_reason_count >= NO_REASON_COUNT;
        if parks {
            self.no_reason_count = 0;
            self.reason_count = 0;
            self.crew.park();
        }
        parks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(ns: u64, caller: u32) -> Arrival {
        let took = Duration::from_nanos(ns);
        let size = 80;
        Arrival { took, size, caller }
    }

    const QUICK: u64 = 500;
    const SLOW: u64 = 50_000;

    #[test]
    fn a_thread_with_one_caller_parks_and_the_first_never_does() {
        for is_first in [true, false] {
            let crew = Crew::new(2);
            // Parking returns at once then; it starts the count anew.
            crew.end();
            let mut member = crew.member(is_first);
            for _ in 0..=NO_REASON_COUNT {
                member.on_request(arrival(QUICK, 7), || false);
                member.on_handled();
            }
            assert_eq!(member.no_reason_count == 0, !is_first);
        }
    }

    /// Whether requests from these callers call a parked thread.
    fn calls(ns: u64, callers: [u32; 16], has_more: bool) -> bool {
        calls_of(2, ns, callers, has_more)
    }

    fn calls_of(active_max: usize, ns: u64, callers: [u32; 16], has_more: bool) -> bool {
        let crew = Crew::new(active_max);
        std::thread::scope(|scope| {
            scope.spawn(|| crew.member(false).park_if_new());
            while crew.parked_count.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            let mut first = crew.member(true);
            let mut is_called = false;
            for caller in callers.repeat(4) {
                first.on_request(arrival(ns, caller), || has_more);
                first.on_handled();
                is_called |= *crew.calls.lock().expect("lock") > 0
                    || crew.parked_count.load(Ordering::Relaxed) == 0;
            }
            crew.end();
            is_called
        })
    }

    #[test]
    fn a_parked_thread_is_called_when_there_is_work_for_two() {
        let mixed = [1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2];
        assert!(calls(QUICK, mixed, false));
        assert!(!calls(SLOW, mixed, false), "one thread keeps up");
        assert!(calls(QUICK, [1; 16], true));
        assert!(!calls_of(1, QUICK, mixed, true), "there is one CPU");
        assert!(!calls(QUICK, [1; 16], false), "one caller needs one thread");
        assert!(!calls(QUICK, [0; 16], true), "forgets are no reason");
    }

    #[test]
    fn a_parked_thread_joins_others_that_are_stuck() {
        let crew = Crew::new(2);
        let mut first = crew.member(true);
        first.on_request(arrival(SLOW, 1), || false);
        // Returns by itself: the first thread stays busy with one request.
        crew.park();
        first.on_handled();
        assert_eq!(crew.progress.load(Ordering::Relaxed), FINISHED);
    }
}
