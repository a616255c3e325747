//! How many lines of the log something gets that may happen thousands of times a second.

use types::{Duration, Instant};

/// Lines in a window.
const LINE_COUNT_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_millis(10_000);

/// Lines in this window, and those that were left out since the last line.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    begin: Instant,
    line_count: u32,
    left_out: u64,
}

impl Limiter {
    /// Whether a line may be written now, and how many were left out before it.
    pub(super) fn take(&mut self, now: Instant) -> Option<u64> {
        if now.since(self.begin) >= WINDOW {
            self.begin = now;
            self.line_count = 0;
        }
        if self.line_count == LINE_COUNT_MAX {
            self.left_out += 1;
            return None;
        }
        self.line_count += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// What was left out of a window that is over, if there was anything.
    pub(super) fn end(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.left_out > 0 && now.since(self.begin) >= WINDOW;
        is_over.then(|| std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn lines_are_bounded_and_what_is_left_out_is_counted() {
        let mut limiter = Limiter::default();
        let at = |ms: u64| Instant(SECOND * 100 + ms * 1_000_000);
        let lines = (0..100).filter_map(|_| limiter.take(at(0))).count();
        assert_eq!(lines, usize::try_from(LINE_COUNT_MAX).expect("small"));
        assert_eq!(limiter.end(at(9_999)), None);
        assert_eq!(limiter.take(at(10_000)), Some(80));
        assert_eq!(limiter.take(at(10_000)), Some(0));
        assert_eq!(limiter.end(at(30_000)), None);
        let more = (0..100).filter_map(|_| limiter.take(at(10_001))).count();
        assert_eq!(more, usize::try_from(LINE_COUNT_MAX).expect("small") - 2);
        assert_eq!(limiter.end(at(20_000)), Some(82));
        assert_eq!(limiter.end(at(20_000)), None);
    }
}
