//! Time as cores see it: given as an argument, never read from a clock.

use crate::wire_struct;

/// A point of CLOCK_BOOTTIME in nanoseconds: monotonic, counts suspend, local to one machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Duration(pub u64);

impl Duration {
    /// From milliseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1_000_000)
    }

    /// From seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000_000_000)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Instant {
    /// How long after `earlier` this is; nothing if it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }

    /// So long before this; at the earliest the clock's beginning.
    pub const fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A time of the cluster's wall clock, as files carry it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub secs: i64,
    /// Nanoseconds within the second, below 10^9.
    pub nanos: u32,
}
wire_struct!(Timestamp { secs, nanos });
