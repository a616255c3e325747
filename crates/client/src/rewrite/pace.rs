//! How fast a node rewrites, all its slices together.

use std::sync::atomic::{AtomicU64, Ordering};

use types::{Duration, Instant};

/// Bytes a second of a node that nobody reads or writes on, unless it is set otherwise: a disk of today does some ten times as much.
pub const RATE_DEFAULT: u64 = 32 << 20;
/// While somebody does it is one part in so many: by default 4 MiB, a tenth of what a slow hard disk does at random.
const BUSY_PART: u64 = 8;
/// A node is idle when nobody has read or written for so long.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// A rewrite may begin so much later than the rate would have it, and the next one be on time.
const LATE_MAX: Duration = Duration::from_millis(100);
/// Blocks that leave regions are rewritten so many times as fast, whatever else is read or written here: an application waits for these
/// regions, and has no space until then.
const WANTED_TIMES: u64 = 4;
/// After reads and stores nothing is rewritten for so many times as long as they took: other nodes' applications may use the same disks.
const REST_TIMES: u64 = 3;
/// Reads from disks that are under way for all rewrites of a node, at the most: a hard disk does them in a tenth of a second.
pub(crate) const READS_MAX: u64 = 8;
/// A read takes a disk as long as one of so many bytes. It is paid for like that while somebody reads or writes. While nobody does bytes are: a
/// disk is left alone for three times as long as its reads took, so no more than a quarter of its time is used, however slow they are.
pub(crate) const READ_COST: u64 = 128 << 10;
/// Uses that follow one another so closely are noted once.
const USE_GRAIN: Duration = Duration::from_millis(20);

/// How fast a node rewrites, all its slices together. Without a lock: who loses a race waits for the next tick.
#[derive(Debug)]
pub struct Pace {
    /// Bytes a second while nobody reads or writes; 0: nothing is rewritten.
    rate: AtomicU64,
    /// When an application read or wrote last.
    used_at: AtomicU64,
    /// Nothing is begun before.
    next: AtomicU64,
    /// Disks have nothing to do with rewrites before.
    rests_until: AtomicU64,
    /// Frames that rewrites hold.
    frames: AtomicU64,
    /// Reads from disks under way.
    reads: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            rate: AtomicU64::new(RATE_DEFAULT),
            used_at: AtomicU64::new(0),
            next: AtomicU64::new(0),
            rests_until: AtomicU64::new(0),
            frames: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        }
    }
}

impl Pace {
    /// So many bytes a second from now on; 0: nothing is begun, and what is under way is given up.
    pub fn set_rate(&self, rate: u64) {
        if self.rate.swap(rate, Ordering::Relaxed) != rate {
            // A pause that was for another rate.
            self.next.store(0, Ordering::Relaxed);
        }
    }

    /// Nothing is rewritten.
    pub fn is_off(&self) -> bool {
        self.rate.load(Ordering::Relaxed) == 0
    }

    /// An application reads or writes.
    pub(crate) fn note_use(&self, now: Instant) {
        let last = Instant(self.used_at.load(Ordering::Relaxed));
        if now.since(last) > USE_GRAIN {
            self.used_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Nobody reads or writes.
    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        now.since(Instant(self.used_at.load(Ordering::Relaxed))) > IDLE_AFTER
    }

    /// Whether so many bytes may be rewritten now; `is_wanted`: somebody waits for the space that comes free with that.
    pub(crate) fn take(&self, now: Instant, bytes: u64, is_wanted: bool) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        if now.0 < next || self.is_resting(now) && !is_wanted {
            return false;
        }
        let rate = self.rate.load(Ordering::Relaxed);
        let rate = match is_wanted {
            true => rate.saturating_mul(WANTED_TIMES),
            false if self.is_idle(now) => rate,
            false => rate.div_ceil(BUSY_PART),
        };
        if rate == 0 {
            return false;
        }
        let pause = Duration(bytes.saturating_mul(1_000_000_000) / rate);
        // What the last ticks were late is made up for.
        let from = Instant(next.max(now.0.saturating_sub(LATE_MAX.0)));
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.next
            .compare_exchange(next, (from + pause).0, order, failed)
            .is_ok()
    }

    /// Disks are left alone.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        now.0 < self.rests_until.load(Ordering::Relaxed)
    }

    /// Disks had to do with a rewrite for so long, until now.
    pub(crate) fn rest(&self, now: Instant, took: Duration) {
        let rest = Duration(took.0.saturating_mul(REST_TIMES));
        let until = (now + rest).0;
        self.rests_until.fetch_max(until, Ordering::Relaxed);
    }

    /// How many reads may be begun now, of as many as are wanted.
    pub(crate) fn begin_reads(&self, now: Instant, wanted: u64, is_wanted: bool) -> u64 {
        if self.is_resting(now) && !is_wanted {
            return 0;
        }
        let order = Ordering::Relaxed;
        let room = |under_way: u64| wanted.min(READS_MAX.saturating_sub(under_way));
        let more = |under_way: u64| Some(under_way + room(under_way));
        let before = self.reads.fetch_update(order, order, more);
        before.map_or(0, room)
    }

    /// So many reads have ended.
    pub(crate) fn end_reads(&self, count: u64) {
        let under_way = self.reads.fetch_sub(count, Ordering::Relaxed);
        assert!(under_way >= count, "begun before");
    }

    /// Reads from disks under way.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Whether so many frames more may be held, where `most` is what all rewrites of the node may hold.
    pub(crate) fn hold(&self, frames: u64, most: u64) -> bool {
        let order = Ordering::Relaxed;
        let more = |held: u64| Some(held + frames).filter(|sum| *sum <= most);
        self.frames.fetch_update(order, order, more).is_ok()
    }

    /// So many of them are held no more.
    pub(crate) fn let_go(&self, frames: u64) {
        let held = self.frames.fetch_sub(frames, Ordering::Relaxed);
        assert!(held >= frames, "held before");
    }

    /// Frames that rewrites hold, or may hold at once.
    pub fn held(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }
}
