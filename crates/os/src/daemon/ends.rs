//! Wakes who waits until the daemon's work has come to an end, each time that some of it has.
//!
//! Invariant: an end that comes after `count` was asked ends the `wait` that names that count. So a waiter asks for the
//! count, then looks whether all is over, then waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use super::lock;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Somebody has asked for the count: before that an end costs no more than this look.
    is_awaited: AtomicBool,
    count: Mutex<u64>,
    wake: Condvar,
}

impl Ends {
    /// Some work has ended.
    pub(super) fn tell(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            *lock(&self.count) += 1;
            self.wake.notify_all();
        }
    }

    /// Ends so far; from now on they are counted.
    pub(super) fn count(&self) -> u64 {
        self.is_awaited.store(true, Ordering::SeqCst);
        *lock(&self.count)
    }

    /// Waits for an end after the one that was counted as `seen`, or for `limit`; false: none has come.
    pub(super) fn wait(&self, seen: u64, limit: Duration) -> bool {
        let count = lock(&self.count);
        let waited = self
            .wake
            .wait_timeout_while(count, limit, |count| *count == seen);
        !waited.expect("a panic ends the daemon").1.timed_out()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_after_the_count_ends_the_wait() {
        let ends = Ends::default();
        ends.tell();
        let seen = ends.count();
        assert_eq!(seen, 0, "nobody waited then");
        assert!(!ends.wait(seen, Duration::ZERO));
        ends.tell();
        assert!(ends.wait(seen, Duration::ZERO), "it came before the wait");
        let seen = ends.count();
        assert!(!ends.wait(seen, Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| ends.tell());
            assert!(ends.wait(seen, Duration::from_secs(60)), "it wakes");
        });
    }
}
