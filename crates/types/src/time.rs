//! Time as cores see it: given as an argument, never read from a clock.

use crate::wire_struct;

const NANOS_PER_SEC: u64 = 1_000_000_000;

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
        Self(secs * NANOS_PER_SEC)
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

/// How far the clocks may be apart of two changes that follow each other: of two nodes, or of a thread that stood still.
const CLOCKS_APART: Duration = Duration::from_secs(1);

impl Timestamp {
    /// Lies so far ahead of the clock that no change can have stamped it: somebody set it, or a clock was wrong.
    pub fn is_ahead_of(self, now: Self) -> bool {
        self > now.after(CLOCKS_APART)
    }

    /// The later of this time and another one that is at most `now`, or from a clock a little ahead of it. If this lies far ahead it goes.
    #[must_use]
    pub fn merged(self, other: Self, now: Self) -> Self {
        match self.is_ahead_of(now) {
            true => other,
            false => self.max(other),
        }
    }

    /// What a change at `now` makes of this time: another one, for who compares only asks whether it is the same, and a later one
    /// unless it lies far ahead.
    #[must_use]
    pub fn stamped(self, now: Self) -> Self {
        match self.is_ahead_of(now) {
            true => now,
            false => now.max(self.after(Duration(1))),
        }
    }

    /// So long after this, at most.
    pub const fn after(self, span: Duration) -> Self {
        let nanos = self.nanos as u64 + span.0 % NANOS_PER_SEC;
        let carried = nanos / NANOS_PER_SEC;
        Self {
            secs: self
                .secs
                .saturating_add_unsigned(span.0 / NANOS_PER_SEC + carried),
            nanos: (nanos % NANOS_PER_SEC) as u32,
        }
    }
}
