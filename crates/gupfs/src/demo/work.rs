//! Work that several threads share out among themselves, and what went wrong in it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::failure::{Failure, Result};

/// Faults that are kept word for word; the others are counted.
const KEPT_MAX: usize = 10;

/// Faults found by any thread.
#[derive(Debug, Default)]
pub struct Faults {
    kept: Mutex<Vec<String>>,
    count: AtomicUsize,
}

impl Faults {
    /// Notes a fault.
    pub fn add(&self, fault: String) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut kept = self
            .kept
            .lock()
            .expect("no thread panics while it holds this lock");
        if kept.len() < KEPT_MAX {
            kept.push(fault);
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Fails if there are any; `what` is the phase that found them.
    pub fn check(&self, what: &str) -> Result<()> {
        let kept = self
            .kept
            .lock()
            .expect("no thread panics while it holds this lock");
        if kept.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{what}: {} faults, the first are:\n    {}",
            self.count(),
            kept.join("\n    ")
        ))
        .help("the logs are in nK/log of the lab's directory; --keep leaves the lab as it is"))
    }
}

/// Calls `work` with every index below `count`, from `thread_count` threads.
pub fn share_out(count: usize, thread_count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread_count.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    work(index);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_worked_on_once() {
        let seen: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        share_out(seen.len(), 7, |index| {
            seen[index].fetch_add(1, Ordering::Relaxed);
        });
        assert!(seen.iter().all(|s| s.load(Ordering::Relaxed) == 1));
        share_out(0, 0, |_| panic!("nothing to do"));
    }

    #[test]
    fn faults_are_counted_and_the_first_are_kept() {
        let faults = Faults::default();
        faults.check("phase").expect("none yet");
        for index in 0..25 {
            faults.add(format!("fault {index}."));
        }
        let failure = faults.check("phase").expect_err("some");
        assert!(failure.what().contains("25 faults"), "{failure}");
        assert!(failure.what().contains("fault 9."), "{failure}");
        assert!(!failure.what().contains("fault 10."), "{failure}");
    }
}
