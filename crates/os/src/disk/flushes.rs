//! Which flushes of a disk are under way, so that none is believed before those beside it have been heard.
//!
//! Of several flushes at once the system tells one alone that what was written before is lost (the error of a file is reported once for each
//! description of it, and a loop device has one). So a flush that ended well counts when all that were under way at its end have ended, too,
//! and their failures are counted (`Disk::loss_count`).
//!
//! Invariants
//! - What is held is released once, by whoever ends the last flush that it waits for, and not under the lock.
//! - What waits waits for flushes that had begun before, so for no longer than one flush takes.

use std::collections::VecDeque;
use std::sync::Mutex;

use smallvec::SmallVec;

use crate::loops::lock;

/// What is done when all flushes that it waits for have ended.
pub(super) type Held = Box<dyn FnOnce() + Send>;

/// Those of one disk.
#[derive(Default)]
pub(super) struct Flushes {
    state: Mutex<State>,
}

impl std::fmt::Debug for Flushes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flushes").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    next: u64,
    /// Numbers of those under way, the oldest first.
    open: SmallVec<[u64; 8]>,
    /// What waits for all with numbers below, which do not fall.
    held: VecDeque<(u64, Held)>,
}

impl Flushes {
    /// One begins; its number.
    pub(super) fn begin(&self) -> u64 {
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.open.push(number);
        number
    }

    /// One has ended, and is counted if it failed. True: no other is under way, so that its end may be told. False: what `held` makes does that later;
    /// it is asked then only.
    pub(super) fn end(&self, number: u64, held: impl FnOnce() -> Held) -> bool {
        let mut state = lock(&self.state);
        let place = state.open.iter().position(|open| *open == number);
        state
            .open
            .remove(place.expect("it has begun, and ends once"));
        let is_alone = state.open.is_empty();
        if !is_alone {
            let bound = state.next;
            state.held.push_back((bound, held()));
        }
        let first = state.open.first().copied().unwrap_or(u64::MAX);
        let ready = state.held.partition_point(|(bound, _)| *bound <= first);
        let ready: SmallVec<[(u64, Held); 2]> = state.held.drain(..ready).collect();
        drop(state);
        for (_, held) in ready {
            held();
        }
        is_alone
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use client::pool::Pool as _;
    use types::{Instant, Span};

    use super::*;
    use crate::disk::{Disk, DiskError, DiskQueue, Handler};
    use crate::loops::{self, Loops};
    use crate::pool::Pagepool;

    /// Ends `number`; `told` hears of it when it counts.
    fn end(flushes: &Flushes, number: u64, told: &Arc<Mutex<Vec<u64>>>) {
        let later = Arc::clone(told);
        if flushes.end(number, || Box::new(move || lock(&later).push(number))) {
            lock(told).push(number);
        }
    }

    #[test]
    fn a_flush_counts_when_those_beside_it_have_ended() {
        let flushes = Flushes::default();
        let told = Arc::default();
        let numbers: Vec<u64> = (0..3).map(|_| flushes.begin()).collect();
        end(&flushes, numbers[1], &told);
        // Begun after that: nothing that it waits for.
        let later = flushes.begin();
        end(&flushes, numbers[2], &told);
        assert!(lock(&told).is_empty(), "the first one may fail yet");
        end(&flushes, numbers[0], &told);
        assert_eq!(
            *lock(&told),
            [numbers[1]],
            "the third has the later one beside it"
        );
        end(&flushes, later, &told);
        lock(&told).sort_unstable();
        assert_eq!(*lock(&told), [numbers[0], numbers[1], numbers[2], later]);
        let alone = flushes.begin();
        assert!(flushes.end(alone, || unreachable!("nothing is beside it")));
    }

    struct NoTimer;
    impl loops::Handler for NoTimer {
        fn on_timer(&self, _now: Instant) {}
    }

    struct Ends(Mutex<mpsc::Sender<(u64, bool)>>);
    impl Handler for Ends {
        fn on_disk(&self, tag: u64, result: Result<(), DiskError>) {
            assert!(
                Loops::current().is_some(),
                "answers come on a loop's thread"
            );
            lock(&self.0)
                .send((tag, result.is_ok()))
                .expect("the test hears");
        }
    }

    /// A flush that failed ends after those beside it that the system told nothing of it.
    #[test]
    fn what_was_flushed_beside_a_failure_is_not_told_before_it() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("disk");
        std::fs::write(&path, vec![7; 1 << 20]).expect("written");
        let disk = Disk::open(&path, true).expect("opened");
        let loops = Loops::start(1, Arc::new(NoTimer)).expect("loops");
        let pool = Pagepool::new(64 << 20).expect("a pool");
        let (sender, ends) = mpsc::channel();
        let handler = Arc::new(Ends(Mutex::new(sender)));
        let queue = DiskQueue::new(disk, &loops, &pool, 0, handler);
        let disk = queue.disk();
        let span = Span::whole(pool.alloc().expect("a frame"));
        for fails in [true, false] {
            let losses = disk.loss_count();
            let slow = disk.flushes.begin();
            queue.write_durable(1, 3, &[span]).expect("room");
            queue.flush(2).expect("room");
            std::thread::scope(|threads| {
                let blocking = threads.spawn(|| {
                    disk.flush().expect("flushed");
                    disk.loss_count()
                });
                // All three have ended at the disk: they are what is held.
                while lock(&disk.flushes.state).held.len() < 3 {
                    std::thread::yield_now();
                }
                ends.try_recv().expect_err("the slow one may fail yet");
                if fails {
                    disk.failed("flush", 0, std::io::Error::other("a test"), true);
                }
                assert!(
                    disk.flushes
                        .end(slow, || unreachable!("the others have ended"))
                );
                let counted = blocking.join().expect("no panic");
                assert_eq!(
                    counted,
                    losses + u64::from(fails),
                    "it hears after the failure"
                );
            });
            let mut heard: Vec<(u64, bool)> = (0..2)
                .map(|_| {
                    ends.recv_timeout(Duration::from_secs(30))
                        .expect("an answer")
                })
                .collect();
            heard.sort_unstable();
            // Whether a flush covers what was written before is for who wrote it to judge, by the count; the write was made again.
            assert_eq!(heard, [(1, true), (2, true)]);
        }
        // One that has such neighbours again and again ends as a failure.
        let mut slow = disk.flushes.begin();
        queue.write_durable(1, 3, &[span]).expect("room");
        let mut count = 0;
        let heard = loop {
            let heard = ends.try_recv();
            if let Ok(heard) = heard {
                break heard;
            }
            // The end of the slow one before is held, too.
            if lock(&disk.flushes.state).held.len() <= usize::from(count > 0) {
                std::thread::yield_now();
                continue;
            }
            disk.failed("flush", 0, std::io::Error::other("a test"), true);
            let next = disk.flushes.begin();
            // The next one is under way when what waits for the slow one is let go.
            assert!(!disk.flushes.end(slow, || Box::new(|| {})));
            slow = next;
            count += 1;
        };
        assert_eq!((heard, count), ((1, false), 4), "three tries more");
    }
}
