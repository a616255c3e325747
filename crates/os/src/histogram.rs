//! Histograms of times: counted from any thread, read without a lock.
//!
//! Invariant: what was counted is the sum of the buckets, so that a reader who comes between two additions never sees
//! more in the buckets than in all.

use std::sync::atomic::{AtomicU64, Ordering};

use types::Duration;

/// Buckets of a histogram: below 1 us, below 2 us, below 4 us and so on; the last takes all that is longer.
pub const BUCKET_COUNT: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub struct Histogram {
    time: AtomicU64,
    buckets: [AtomicU64; BUCKET_COUNT],
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// What was counted.
    pub count: u64,
    /// Nanoseconds of all of them.
    pub time: u64,
    /// How many took less than 1 us, 2 us, 4 us ...; without the empty ones at the end.
    pub buckets: Vec<u64>,
}

impl Histogram {
    /// Counts something that took so long.
    pub fn add(&self, time: Duration) {
        self.time.fetch_add(time.0, Ordering::Relaxed);
        self.buckets[bucket_of(time.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// What was counted until now.
    #[must_use]
    pub fn timed(&self) -> Timed {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let mut buckets: Vec<u64> = self.buckets.iter().map(get).collect();
        while buckets.pop_if(|count| *count == 0).is_some() {}
        Timed {
            count: buckets.iter().sum(),
            time: get(&self.time),
            buckets,
        }
    }
}

/// Microseconds that all of a bucket's times are below; `None` of the last.
#[must_use]
pub fn bound_us(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKET_COUNT).then(|| 1 << bucket)
}

fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - (ns / 1000).leading_zeros();
    usize::try_from(bits)
        .expect("64 at the most")
        .min(BUCKET_COUNT - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_double() {
        let at = [0, 999, 1000, 1999, 2000, 1_000_000, u64::MAX].map(bucket_of);
        assert_eq!(at, [0, 0, 1, 1, 2, 10, 31]);
    }

    #[test]
    fn times_are_below_the_bound_of_their_bucket() {
        for ns in (0..63).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, 1000 << (bit % 50)]) {
            let bucket = bucket_of(ns);
            assert!(bound_us(bucket).is_none_or(|us| ns < us * 1000), "{ns}");
            let before = bucket.checked_sub(1).and_then(bound_us);
            assert!(before.is_none_or(|us| ns >= us * 1000), "{ns}");
        }
    }

    #[test]
    fn what_is_counted_is_in_the_buckets() {
        let all = Histogram::default();
        for ns in [0, 1500, 1700, 5000] {
            all.add(Duration(ns));
        }
        let expected = Timed {
            count: 4,
            time: 8200,
            buckets: vec![1, 2, 0, 1],
        };
        assert_eq!(all.timed(), expected);
    }
}
