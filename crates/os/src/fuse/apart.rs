//! Answers to reads with O_DIRECT, from threads of their own.
//!
//! The kernel ends such a read on the thread that writes its answer, and takes the locks of the pages there that were read into (FUSE_ASYNC_DIO).
//! Where these are mapped pages of a file of ours, who holds a lock may wait for a write-back that a serving thread has to take in. So no
//! thread that anybody waits for writes these answers (docs/decisions/0019).
//!
//! ```text
//! Replier::reply --(ticket says so)--> queue --> one of the threads --> /dev/fuse
//! ```
//!
//! Invariants
//! - What waits or is being written holds `SIZE_MAX` bytes of the pagepool at the most, or is one answer. Beyond that `push` waits for
//!   `PATIENCE` at the most; the read fails then, so that nothing waits for ever.
//! - Each answer's frames are released once: when it is written, or at once when the connection has ended.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use client::request::{Response, Ticket};
use types::Errno;

use super::memory::Memory;
use super::session::{self, SessionError, Transport};

/// Threads: one that waits for a lock keeps none of the others.
const THREAD_COUNT: usize = 4;
/// Bytes that wait, or are being written.
const SIZE_MAX: u64 = 16 << 20;
/// For room, before a read fails.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<(Ticket, Response)>,
    /// Bytes of the queue, and of what is being written.
    size: u64,
    /// Threads that wait for an answer.
    idle_count: usize,
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
}

impl Apart {
    /// Has an answer written. Its frames are released in the end.
    pub(super) fn push(&self, memory: &dyn Memory, ticket: Ticket, mut response: Response) {
        let size = size_of(&response);
        let until = (size > 0).then(|| Instant::now() + PATIENCE);
        let mut state = self.lock();
        while let Some(until) = until
            && state.size > 0
            && state.size + size > SIZE_MAX
            && !state.has_ended
        {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::error!(?ticket, "reads with O_DIRECT cannot be answered: one fails");
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
        // Who is not idle looks before it sleeps.
        let is_anybody_idle = state.idle_count > 0;
        drop(state);
        if is_anybody_idle {
            self.pushed.notify_one();
        }
    }

    /// The next answer; `None` when the connection has ended.
    fn pop(&self) -> Option<(Ticket, Response)> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = state.queue.pop_front() {
                return Some(answer);
            }
            if state.has_ended {
                return None;
            }
            state.idle_count += 1;
            state = self.pushed.wait(state).expect("no holder panics");
            state.idle_count -= 1;
        }
    }

    fn on_written(&self, size: u64) {
        if size > 0 {
            self.lock().size -= size;
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
    use super::super::session::{Follow, Serving};
    use super::*;
    use fuse::{Encoded, Route};
    use types::Span;

    /// Tells of each answer, and lets it go when it is told to.
    #[derive(Debug)]
    struct Gate {
        sent: Mutex<Sender<(u64, ThreadId)>>,
        may_go: Mutex<Receiver<()>>,
    }

    impl Transport for Gate {
        fn send(&self, _: &dyn Memory, _: Route, unique: u64, _: &Encoded<'_>) {
            let id = std::thread::current().id();
            self.sent.lock().unwrap().send((unique, id)).unwrap();
            let _ = self.may_go.lock().unwrap().recv();
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
        let slabs = Arc::new(Slabs::new(8).expect("memory"));
        let memory: Arc<dyn Memory> = slabs.clone();
        let (sent, came) = channel();
        let (go, may_go) = channel();
        let gate: Arc<dyn Transport> = Arc::new(Gate {
            sent: Mutex::new(sent),
            may_go: Mutex::new(may_go),
        });
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
        apart.end();
        threads
            .into_iter()
            .for_each(|t| t.join().expect("no panic"));
        apart.push(&*memory, Ticket(7), data(&*memory));
        assert!(came.try_recv().is_err(), "the connection has ended");
        assert_eq!(slabs.free_count(), 8);
    }

    #[test]
    fn what_waits_is_bounded() {
        let slabs = Arc::new(Slabs::new(20).expect("memory"));
        let memory: Arc<dyn Memory> = slabs.clone();
        let apart = Apart::default();
        for number in 1..=16 {
            apart.push(&*memory, Ticket(number), data(&*memory));
        }
        assert_eq!(apart.lock().size, SIZE_MAX);
        let begin = Instant::now();
        apart.push(&*memory, Ticket(17), data(&*memory));
        assert!(begin.elapsed() >= PATIENCE);
        let last = apart.lock().queue.back().cloned();
        assert_eq!(last, Some((Ticket(17), Response::Error(Errno::EIO))));
        assert_eq!(apart.lock().size, SIZE_MAX);
        // Who waits for room gets it.
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| apart.push(&*memory, Ticket(18), data(&*memory)));
            let (ticket, response) = apart.pop().expect("an answer");
            assert_eq!(ticket, Ticket(1));
            release(&*memory, &response);
            apart.on_written(size_of(&response));
            waiting.join().expect("no panic");
        });
        let last = apart.lock().queue.back().cloned();
        assert!(matches!(last, Some((Ticket(18), Response::Data(_)))));
    }
}
