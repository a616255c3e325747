//! A thread that runs seldom takes an answer long after it was written. What has changed here since the kernel must not be told of by
//! it: it would believe it.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FallocateFlags, Statx, StatxFlags, XattrFlags};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::node::Node;

const ROUND_COUNT: u32 = 60;
/// The slow thread has asked by then, and has no answer yet or does not run.
const UNTIL_IT_HAS_ASKED: Duration = Duration::from_micros(200);
/// Longest wait for what should come in no time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the slow thread: other work may keep it from its processor for long.
const PATIENCE_SLOW: Duration = Duration::from_secs(60);

fn ctime(path: &Path, how: AtFlags) -> (i64, u32) {
    let Statx { stx_ctime, .. } = rustix::fs::statx(CWD, path, how, StatxFlags::CTIME).unwrap();
    (stx_ctime.tv_sec, stx_ctime.tv_nsec)
}

fn await_that(what: &str, patience: Duration, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < patience, "{what}");
        std::thread::yield_now();
    }
}

/// Changes what `path` leads to while a slow thread asks for its attributes, and looks what the kernel keeps afterwards.
fn change_beside_a_slow_thread(path: &Path, change: impl Fn(u32)) {
    // Rounds in which the slow thread is to ask, in which it is about to, and in which it has its answer.
    let (asked, asking, answered) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let over = AtomicU32::new(0);
    let on_first_cpu = || {
        let mut cpus = CpuSet::new();
        cpus.set(0);
        sched_setaffinity(None, &cpus).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            on_first_cpu();
            while over.load(Ordering::SeqCst) == 0 {
                std::hint::spin_loop();
            }
        });
        scope.spawn(|| {
            on_first_cpu();
            rustix::process::nice(19).unwrap();
            while over.load(Ordering::SeqCst) == 0 {
                let round = asked.load(Ordering::SeqCst);
                if round == answered.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_micros(50));
                    continue;
                }
                asking.store(round, Ordering::SeqCst);
                ctime(path, AtFlags::STATX_FORCE_SYNC);
                answered.store(round, Ordering::SeqCst);
            }
        });
        let end = End(&over);
        for round in 1..=ROUND_COUNT {
            let before = ctime(path, AtFlags::STATX_FORCE_SYNC);
            asked.store(round, Ordering::SeqCst);
            await_that("the slow thread asks", PATIENCE_SLOW, || {
                asking.load(Ordering::SeqCst) == round
            });
            std::thread::sleep(UNTIL_IT_HAS_ASKED);
            change(round);
            await_that("the slow thread has its answer", PATIENCE_SLOW, || {
                answered.load(Ordering::SeqCst) == round
            });
            await_that("the kernel knows of the change", PATIENCE, || {
                ctime(path, AtFlags::empty()) > before
            });
        }
        drop(end);
    });
}

/// Ends the threads, also where a test fails.
struct End<'a>(&'a AtomicU32);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(1, Ordering::SeqCst);
    }
}

#[test]
fn an_answer_of_before_a_change_is_not_believed_after_it() {
    let Some(node) = Node::new("1G") else { return };
    let (file, directory) = (node.mount().join("file"), node.mount().join("directory"));
    File::create(&file).unwrap();
    fs::create_dir(&directory).unwrap();
    change_beside_a_slow_thread(&file, |round| {
        let value = round.to_le_bytes();
        rustix::fs::lsetxattr(&file, "user.round", &value, XattrFlags::empty()).unwrap();
    });
    change_beside_a_slow_thread(&file, |round| {
        let whole = OpenOptions::new().write(true).open(&file).unwrap();
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(whole, mode, u64::from(round), 1).unwrap();
    });
    let names = [node.mount().join("one"), node.mount().join("two")];
    fs::hard_link(&file, &names[1]).unwrap();
    change_beside_a_slow_thread(&file, |round| {
        let to = usize::try_from(round % 2).unwrap();
        fs::rename(&names[to], &names[1 - to]).unwrap();
    });
    change_beside_a_slow_thread(&directory, |round| {
        File::create(directory.join(round.to_string())).unwrap();
    });
    change_beside_a_slow_thread(&directory, |round| {
        fs::remove_file(directory.join(round.to_string())).unwrap();
    });
}
