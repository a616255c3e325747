//! Answers to direct reads, from threads that nobody waits for.
//!
//! A direct read may be asynchronous (FUSE_ASYNC_DIO), and nothing in the request says so. The kernel ends such a read on the thread that writes
//! its answer, and takes the locks of the pages there that were read into. Where these are mapped pages of a file of ours, who holds a lock may wait
//! for a write-back that a serving thread has to take in (docs/decisions/0019).
//!
//! ```text
//! Replier::reply -- on a serving thread --> Late: when the thread has done all else, if enough others are left --> /dev/fuse
//!               \-- on another one, or not enough are left --> queue --> one of the threads here --> /dev/fuse
//! ```
//!
//! Invariants
//! - No answer to a direct read is written by a thread that has anything else to do, and two serving threads at least write none.
//! - What waits in the queue or is being written from it holds `SIZE_MAX` bytes of the pagepool at the most, or is one answer. Beyond that `push`
//!   waits as long as answers are written; when none was for `PATIENCE`, reads fail at once until one is.
//! - What waits behind a thread that is in a lock is taken by another one within two `LOOK_INTERVAL`s, as long as one is left.
//! - Each answer's frames are released once: when it is written, or at once when the connection has ended.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::request::{Response, Ticket};
use types::Errno;

use super::memory::Memory;
use super::session::{self, Replier, SessionError, Transport};

/// Threads: one that waits for a lock keeps none of the others.
const THREAD_COUNT: usize = 4;
/// Bytes that wait, or are being written.
const SIZE_MAX: u64 = 8 << 20;
/// Of what waits for each thread that is busy before another one is woken.
const EACH_SIZE: u64 = 1 << 20;
/// Answers that wait for each thread that is busy before another one is woken.
const EACH_COUNT: usize = 8;
/// While answers are written a thread looks so often whether one is left behind.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The last answer was taken so long ago: nobody needs to look any more.
const QUIET_TIME: Duration = Duration::from_secs(1);
/// No answer was written for so long: before reads fail.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Ticket, Response)>,
    /// Bytes of the queue, and of what is being written.
    size: u64,
    /// Threads that write an answer.
    busy_count: usize,
    /// When the last one was taken from the queue.
    taken: Option<Instant>,
    /// When the last one was written, or the first of those that wait came.
    moved: Option<Instant>,
    /// A thread looks whether one is left behind.
    is_watched: bool,
    has_ended: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Apart {
    state: Mutex<State>,
    /// There is an answer, or it has ended.
    pushed: Condvar,
    /// There is room, or it has ended.
    written: Condvar,
    /// Serving threads that write such an answer.
    late_count: AtomicUsize,
}

thread_local! {
    /// What a serving thread will answer; `None`: this is none.
    static LATE: RefCell<Option<Vec<(Ticket, Response)>>> = const { RefCell::new(None) };
}

/// The answers of one serving thread that wait until it has done all else.
#[derive(Debug)]
pub(super) struct Late<'a> {
    replier: &'a Replier,
    thread_count_max: usize,
}

impl<'a> Late<'a> {
    /// From now on this thread's answers wait for `send`, which so many threads may do at a time.
    pub(super) fn new(replier: &'a Replier, thread_count_max: usize) -> Self {
        if replier.apart.is_some() {
            LATE.set(Some(Vec::new()));
        }
        Self {
            replier,
            thread_count_max,
        }
    }

    /// Sends what was answered.
    pub(super) fn send(&self) {
        let Some(apart) = &self.replier.apart else {
            return;
        };
        LATE.with_borrow_mut(|answers| {
            for (ticket, response) in answers.iter_mut().flat_map(|answers| answers.drain(..)) {
                let memory = &*self.replier.memory;
                let before = apart.late_count.fetch_add(1, Ordering::AcqRel);
                let are_enough_left = before < self.thread_count_max;
                if are_enough_left {
                    session::send(&*self.replier.transport, memory, ticket, &response);
                    release(memory, &response);
                }
                apart.late_count.fetch_sub(1, Ordering::AcqRel);
                if !are_enough_left {
                    apart.push(memory, ticket, response);
                }
            }
        });
    }
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.send();
        LATE.set(None);
    }
}

impl Apart {
    /// Has an answer written when this thread has done all else, or by another one.
    pub(super) fn send(&self, memory: &dyn Memory, ticket: Ticket, response: Response) {
        let left = LATE.with_borrow_mut(|answers| match answers {
            Some(answers) => {
                answers.push((ticket, response));
                None
            }
            None => Some(response),
        });
        if let Some(response) = left {
            self.push(memory, ticket, response);
        }
    }

    /// Has an answer written by one of the threads here. Its frames are released in the end.
    fn push(&self, memory: &dyn Memory, ticket: Ticket, mut response: Response) {
        let size = size_of(&response);
        let mut state = self.lock();
        if state.size == 0 {
            state.moved = Some(Instant::now());
        }
        while size > 0 && state.size > 0 && state.size + size > SIZE_MAX && !state.has_ended {
            let still = state.moved.map_or(Duration::ZERO, |at| at.elapsed());
            let left = PATIENCE.saturating_sub(still);
            if left.is_zero() {
                tracing::error!(
                    ?ticket,
                    "no answer to a direct read was written for seconds: one more fails"
                );
                release(memory, &response);
                response = Response::Error(Errno::EIO);
                break;
            }
            let waited = self.written.wait_timeout(state, left);
            state = waited.expect("no holder panics").0;
        }
        if state.has_ended {
            drop(state);
            return release(memory, &response);
        }
        state.size += size_of(&response);
        state.queue.push_back((ticket, response));
        // Who is busy takes the next one as well. A thread is woken for some of them, not for each: that would cost more than the answers.
        let busy_count = state.busy_count;
        let needs_thread = state.queue.len() > busy_count * EACH_COUNT
            || state.size > busy_count as u64 * EACH_SIZE;
        drop(state);
        if needs_thread {
            self.pushed.notify_one();
        }
    }

    /// The next answer; `None` when the connection has ended.
    fn pop(&self) -> Option<(Ticket, Response)> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = state.queue.pop_front() {
                state.busy_count += 1;
                state.taken = Some(Instant::now());
                let needs_watch = !state.is_watched;
                drop(state);
                if needs_watch {
                    // Whoever it is finds the queue empty, or something to do.
                    self.pushed.notify_one();
                }
                return Some(answer);
            }
            if state.has_ended {
                return None;
            }
            let is_quiet =
                state.busy_count == 0 && state.taken.is_none_or(|at| at.elapsed() > QUIET_TIME);
            if is_quiet || state.is_watched {
                state = self.pushed.wait(state).expect("no holder panics");
            } else {
                state.is_watched = true;
                let waited = self.pushed.wait_timeout(state, LOOK_INTERVAL);
                state = waited.expect("no holder panics").0;
                state.is_watched = false;
            }
        }
    }

    /// An answer that `pop` gave is written.
    fn on_written(&self, size: u64) {
        let mut state = self.lock();
        state.busy_count -= 1;
        state.size -= size;
        state.moved = Some(Instant::now());
        drop(state);
        if size > 0 {
            self.written.notify_all();
        }
    }

    /// The connection has ended: what waits is written in vain, and the threads end.
    pub(super) fn end(&self) {
        self.lock().has_ended = true;
        self.pushed.notify_all();
        self.written.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    /// Starts the threads.
    pub(super) fn start(
        self: &Arc<Self>,
        transport: &Arc<dyn Transport>,
        memory: &Arc<dyn Memory>,
    ) -> Result<Vec<JoinHandle<()>>, SessionError> {
        let start = |number: usize| {
            let (apart, transport) = (Arc::clone(self), Arc::clone(transport));
            let memory = Arc::clone(memory);
            std::thread::Builder::new()
                .name(format!("fuse-apart-{number}"))
                .spawn(move || {
                    session::serve_without_reclaim();
                    while let Some((ticket, response)) = apart.pop() {
                        session::send(&*transport, &*memory, ticket, &response);
                        release(&*memory, &response);
                        apart.on_written(size_of(&response));
                    }
                })
                .map_err(|source| SessionError::Io {
                    call: "spawn",
                    source,
                })
        };
        (0..THREAD_COUNT).map(start).collect()
    }
}

/// Bytes of the pagepool that an answer holds, roughly.
fn size_of(response: &Response) -> u64 {
    match response {
        Response::Data(spans) => spans.iter().map(|span| u64::from(span.length)).sum(),
        _ => 0,
    }
}

/// Releases the frames of an answer.
pub(super) fn release(memory: &dyn Memory, response: &Response) {
    if let Response::Data(spans) = response {
        for span in spans {
            memory.release_span(*span);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;

    use super::super::memory::Slabs;
    use super::super::room::Room;
    use super::super::session::{Follow, Serving};
    use super::*;
    use fuse::{Encoded, Route};
    use types::Span;

    /// Called with the unique number of an answer before it is let go.
    type Hold = Box<dyn Fn(u64) + Send + Sync>;

    /// Tells of each answer, before (`is_told_first`) or after it is held.
    struct Gate {
        sent: Mutex<Sender<(u64, ThreadId)>>,
        hold: Hold,
        is_told_first: bool,
    }

    impl Gate {
        fn transport(
            is_told_first: bool,
            hold: Hold,
        ) -> (Arc<dyn Transport>, Receiver<(u64, ThreadId)>) {
            let (sent, came) = channel();
            let gate = Self {
                sent: Mutex::new(sent),
                hold,
                is_told_first,
            };
            (Arc::new(gate), came)
        }

        fn tell(&self, unique: u64) {
            let id = std::thread::current().id();
            self.sent.lock().unwrap().send((unique, id)).unwrap();
        }
    }

    impl std::fmt::Debug for Gate {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Gate")
        }
    }

    impl Transport for Gate {
        fn send(&self, _: &dyn Memory, _: Route, unique: u64, _: &Encoded<'_>) {
            if self.is_told_first {
                self.tell(unique);
            }
            (self.hold)(unique);
            if !self.is_told_first {
                self.tell(unique);
            }
        }

        fn is_immediate(&self, _: Route) -> bool {
            true
        }

        fn send_then(&self, _: (&dyn Memory, Route, u64), _: &Encoded<'_>, _: Follow) {
            unreachable!("answers to reads alone");
        }

        fn start(self: Arc<Self>, _: &Arc<Serving>) -> Result<Vec<JoinHandle<()>>, SessionError> {
            unreachable!("nobody serves");
        }
    }

    /// Slabs, and as what the front end knows them.
    fn memory(count: u32) -> (Arc<Slabs>, Arc<dyn Memory>) {
        let slabs = Arc::new(Slabs::new(count).expect("memory"));
        (slabs.clone(), slabs)
    }

    fn end(apart: &Apart, threads: Vec<JoinHandle<()>>) {
        apart.end();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }

    fn data(memory: &dyn Memory) -> Response {
        let frame = memory.alloc_slab().expect("a slab");
        let length = 1 << 20;
        Response::Data(vec![Span {
            frame,
            offset: 0,
            length,
        }])
    }

    #[test]
    fn answers_wait_for_their_own_threads_alone_and_their_frames_are_released() {
        let (slabs, memory) = memory(8);
        let (go, may_go) = channel::<()>();
        let may_go = Mutex::new(may_go);
        let hold = Box::new(move |_| {
            let _ = may_go.lock().unwrap().recv();
        });
        let (gate, came) = Gate::transport(true, hold);
        let apart = Arc::new(Apart::default());
        let threads = apart.start(&gate, &memory).expect("threads");
        for number in 1..=6 {
            // Comes back while none is written.
            apart.push(&*memory, Ticket(number), data(&*memory));
        }
        let mut uniques = Vec::new();
        for _ in 0..6 {
            let (unique, thread) = came.recv().expect("an answer");
            assert_ne!(thread, std::thread::current().id());
            uniques.push(unique);
            go.send(()).expect("it waits");
        }
        uniques.sort_unstable();
        assert_eq!(uniques, [1, 2, 3, 4, 5, 6]);
        end(&apart, threads);
        apart.push(&*memory, Ticket(7), data(&*memory));
        assert!(came.try_recv().is_err(), "the connection has ended");
        assert_eq!(slabs.free_count(), 8);
    }

    #[test]
    fn a_serving_thread_answers_when_it_has_done_all_else_and_if_enough_are_left() {
        let (slabs, memory) = memory(2);
        let (gate, came) = Gate::transport(true, Box::new(|_| {}));
        let replier = Replier {
            transport: gate.clone(),
            memory: memory.clone(),
            apart: Some(Arc::default()),
            room: Room::new(None),
        };
        let apart = replier.apart.clone().expect("it has");
        let threads = apart.start(&gate, &memory).expect("threads");
        let me = std::thread::current().id();
        let direct = |unique: u64| Ticket(1 << 62 | unique);
        assert!(fuse::ticket::is_apart(direct(2)));
        for (thread_count_max, is_mine) in [(1, true), (0, false)] {
            let late = Late::new(&replier, thread_count_max);
            replier.reply(direct(2), &data(&*memory));
            assert!(came.try_recv().is_err(), "it has something else to do");
            replier.reply(Ticket(4), &Response::Done);
            assert_eq!(came.recv(), Ok((4, me)), "it may wait for no lock");
            late.send();
            let (unique, thread) = came.recv().expect("an answer");
            assert_eq!((unique, thread == me), (2, is_mine));
        }
        // No serving thread.
        replier.reply(direct(6), &Response::Error(Errno::EIO));
        let (unique, thread) = came.recv().expect("an answer");
        assert_eq!((unique, thread == me), (6, false));
        end(&apart, threads);
        assert_eq!(slabs.free_count(), 2);
    }

    /// One is in a lock, and what came behind it is not left until somebody reads again.
    #[test]
    fn what_waits_behind_a_lock_is_written() {
        let (_, memory) = memory(4);
        let lock = Arc::new(Mutex::new(()));
        let taken = Arc::clone(&lock);
        let hold = Box::new(move |unique| {
            if unique % 2 == 1 {
                drop(taken.lock().unwrap());
            }
        });
        let (gate, came) = Gate::transport(false, hold);
        let apart = Arc::new(Apart::default());
        let threads = apart.start(&gate, &memory).expect("threads");
        let held = lock.lock().expect("no panic");
        // The odd ones take the lock.
        for number in [1, 2, 3, 4] {
            apart.push(&*memory, Ticket(number), Response::Error(Errno::EIO));
        }
        let patience = Duration::from_secs(10);
        let mut written = [(); 2].map(|()| came.recv_timeout(patience).expect("an answer").0);
        written.sort_unstable();
        assert_eq!(written, [2, 4]);
        drop(held);
        let mut written = [(); 2].map(|()| came.recv_timeout(patience).expect("an answer").0);
        written.sort_unstable();
        assert_eq!(written, [1, 3]);
        end(&apart, threads);
    }

    #[test]
    fn what_waits_is_bounded() {
        let (_slabs, memory) = memory(20);
        let apart = Apart::default();
        let begin = Instant::now();
        for number in 1..=8 {
            apart.push(&*memory, Ticket(number), data(&*memory));
        }
        assert_eq!(apart.lock().size, SIZE_MAX);
        apart.push(&*memory, Ticket(9), data(&*memory));
        assert!(begin.elapsed() >= PATIENCE);
        let last = apart.lock().queue.back().cloned();
        assert_eq!(last, Some((Ticket(9), Response::Error(Errno::EIO))));
        assert_eq!(apart.lock().size, SIZE_MAX);
        // The queue stands: the next one fails at once.
        let begin = Instant::now();
        apart.push(&*memory, Ticket(11), data(&*memory));
        assert!(begin.elapsed() < PATIENCE / 2);
        // Who waits for room gets it.
        apart.lock().moved = Some(Instant::now());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| apart.push(&*memory, Ticket(10), data(&*memory)));
            let (ticket, response) = apart.pop().expect("an answer");
            assert_eq!(ticket, Ticket(1));
            release(&*memory, &response);
            apart.on_written(size_of(&response));
            waiting.join().expect("no panic");
        });
        let last = apart.lock().queue.back().cloned();
        assert!(matches!(last, Some((Ticket(10), Response::Data(_)))));
    }
}
