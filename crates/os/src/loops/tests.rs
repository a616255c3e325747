//! Wake-ups, timers, readiness and the end of loops.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::Duration as StdDuration;

use types::Duration;

use super::*;
use crate::clock;

const LIMIT: StdDuration = StdDuration::from_secs(20);

struct Timer(Mutex<mpsc::Sender<Instant>>);

impl Handler for Timer {
    fn on_timer(&self, now: Instant) {
        lock(&self.0).send(now).expect("the test listens");
    }
}

fn loops(count: usize) -> (Arc<Loops>, mpsc::Receiver<Instant>) {
    let (sender, receiver) = mpsc::channel();
    let handler = Arc::new(Timer(Mutex::new(sender)));
    (
        Loops::start(count, handler).expect("rings are there"),
        receiver,
    )
}

#[test]
fn no_loop_is_refused() {
    let (sender, _receiver) = mpsc::channel();
    let handler = Arc::new(Timer(Mutex::new(sender)));
    assert!(matches!(Loops::start(0, handler), Err(LoopError::Count)));
}

#[test]
fn work_runs_on_its_loop_in_order_and_no_wake_up_is_lost() {
    let (loops, _) = loops(2);
    let (sender, receiver) = mpsc::channel();
    // Each round waits for the loop's answer, so that most posts meet a loop that falls asleep.
    for round in 0..20_000_usize {
        let sender = sender.clone();
        loops.post(
            round,
            Box::new(move || {
                sender
                    .send((round, Loops::current()))
                    .expect("the test listens");
            }),
        );
        let (answer, on) = receiver.recv_timeout(LIMIT).expect("no wake-up is lost");
        assert_eq!((answer, on), (round, Some(round % 2)));
    }
    for number in 0..1000 {
        let sender = sender.clone();
        loops.post(
            0,
            Box::new(move || sender.send((number, None)).expect("the test listens")),
        );
    }
    for number in 0..1000 {
        let (answer, _) = receiver.recv_timeout(LIMIT).expect("all run");
        assert_eq!(answer, number);
    }
    assert_eq!(Loops::current(), None);
    assert_eq!(loops.counters().work_count, 21_000);
}

#[test]
fn a_post_from_the_own_thread_wakes_nobody() {
    let (loops, _) = loops(1);
    let (sender, receiver) = mpsc::channel();
    let again = Arc::clone(&loops);
    loops.post(
        0,
        Box::new(move || {
            let before = again.counters().wake_count;
            let last = Arc::clone(&again);
            again.post(
                0,
                Box::new(move || {
                    sender
                        .send(last.counters().wake_count - before)
                        .expect("the test listens");
                }),
            );
        }),
    );
    assert_eq!(receiver.recv_timeout(LIMIT), Ok(0));
    // The loop gave its references up, or its own thread would stop it: seen by the join here.
    loops.stop();
}

#[test]
fn many_threads_post_to_all_loops() {
    let (loops, _) = loops(3);
    let count = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for index in 0..5000 {
                    let count = Arc::clone(&count);
                    loops.post(
                        index,
                        Box::new(move || {
                            count.fetch_add(1, Ordering::Relaxed);
                        }),
                    );
                }
            });
        }
    });
    loops.stop();
    assert_eq!(
        count.load(Ordering::Relaxed),
        20_000,
        "stop runs what was posted"
    );
    let counted = Arc::clone(&count);
    loops.post(
        0,
        Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        }),
    );
    assert_eq!(
        Arc::strong_count(&count),
        1,
        "work after the stop is dropped"
    );
}

#[test]
fn the_earliest_deadline_counts_and_timers_keep_their_order() {
    let (loops, timer) = loops(2);
    let begin = clock::now();
    loops.set_deadline(begin + Duration::from_secs(1000));
    let soon = begin + Duration::from_millis(30);
    loops.set_deadline(soon);
    loops.set_deadline(begin + Duration::from_secs(1000));
    let fired = timer.recv_timeout(LIMIT).expect("the earlier one fires");
    assert!(fired >= soon, "never early");
    let (sender, receiver) = mpsc::channel();
    // None is due before all are posted, but where this thread stands still for a second.
    let begin = clock::now() + Duration::from_secs(1);
    for (number, ms) in [(2, 40), (1, 20), (0, 0)] {
        let sender = sender.clone();
        let at = begin + Duration::from_millis(ms);
        loops.post_at(
            1,
            at,
            Box::new(move || {
                assert!(clock::now() >= at, "never early");
                sender.send(number).expect("the test listens");
            }),
        );
    }
    let order: Vec<_> = (0..3).map(|_| receiver.recv_timeout(LIMIT)).collect();
    assert_eq!(order, [Ok(0), Ok(1), Ok(2)]);
    assert!(timer.try_recv().is_err(), "a deadline fires once");
}

#[test]
fn readiness_is_told_and_a_removed_source_is_let_go() {
    struct Pipe {
        reader: std::os::unix::net::UnixStream,
        told: Mutex<mpsc::Sender<u32>>,
    }
    impl Source for Pipe {
        fn on_ready(&self, events: u32) {
            let mut bytes = [0; 64];
            let _ = std::io::Read::read(&mut &self.reader, &mut bytes);
            lock(&self.told).send(events).expect("the test listens");
        }
    }
    let (loops, _) = loops(1);
    let (writer, reader) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let (sender, receiver) = mpsc::channel();
    let source = Arc::new(Pipe {
        reader,
        told: Mutex::new(sender),
    });
    let (ids, id) = mpsc::channel();
    let added = Arc::clone(&source);
    loops.post(
        0,
        Box::new(move || {
            let id = poll_add(added.reader.as_raw_fd(), libc::POLLIN as u32, added.clone());
            ids.send(id).expect("the test listens");
        }),
    );
    let id = id.recv_timeout(LIMIT).expect("added");
    for _ in 0..100 {
        std::io::Write::write_all(&mut &writer, b"x").expect("room");
        let events = receiver.recv_timeout(LIMIT).expect("told");
        assert_ne!(events & libc::POLLIN as u32, 0);
    }
    loops.post(0, Box::new(move || poll_remove(id)));
    loops.stop();
    assert_eq!(Arc::strong_count(&source), 1, "the loop let it go");
}
