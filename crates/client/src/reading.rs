//! How an open file is read, and what its reader will want next: pure arithmetic, the loads are `prefetch`'s.
//!
//! Requests form *records* of adjacent bytes. Where one record follows the other at equal distances, forward or backward, the
//! next ones are known; where a record goes on and on, the file is read in sequence. What is neither is random, and nothing is
//! loaded ahead for it.
//!
//! How far ahead: as many bytes as the application takes while the disks answer, twice, as the reference
//! documents of GPFS have it.
//!
//! Invariants
//! - What is wanted next begins and ends with pages, and lies before the end of the file.
//! - No record is named twice while the pattern holds.
//! - A guess costs no more than the depth in bytes, and `RECORD_COUNT_MAX` records; of a longer record its beginning is named.
//!
//! What this deliberately does not do: patterns of several strides, and readers that share one open file.

use types::{ByteRange, Duration, Instant, limits};

use crate::pages::PAGE_SIZE;

/// A reader counts as sequential from this many bytes in a row on.
const SEQUENTIAL_SIZE_MIN: u64 = 256 << 10;
/// Requests of one reader overtake each other by so many bytes (the kernel's read-ahead comes by several threads).
const OVERTAKEN_SIZE_MAX: u64 = limits::MAX_WRITE as u64;
/// Equal distances in a row that make a pattern.
const DISTANCE_COUNT_MIN: u64 = 2;
/// Begins and lengths of records that reach us through the kernel's page cache are rounded to pages.
const ROUNDING: u64 = PAGE_SIZE;
/// Shorter distances must be equal to the byte: rounding would be too large a part of them.
const ROUNDED_DISTANCE_MIN: u64 = 16 * PAGE_SIZE;
/// Records that are loaded ahead at the most.
const RECORD_COUNT_MAX: u64 = 64;
/// Bytes ahead at the least and at the most, once the speeds are known, and before.
const DEPTH_MIN: u64 = 1 << 20;
const DEPTH_MAX: u64 = 32 << 20;
const DEPTH_UNKNOWN: u64 = 8 << 20;
/// An application's speed is that of about so much of its time.
const RATE_TIME: Duration = Duration::from_millis(100);
/// Of a measured time that is new, one part in so many counts.
const SMOOTHING: u64 = 8;

/// Time that loads take, from the request to the last byte; a moving mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadTime(Option<u64>);

impl LoadTime {
    /// A load took so long.
    pub(crate) fn note(&mut self, time: Duration) {
        self.0 = Some(match self.0 {
            None => time.0,
            Some(mean) => mean - mean / SMOOTHING + time.0 / SMOOTHING,
        });
    }
}

/// Bytes that an application takes in the time that it has to itself: while it waits for us nothing is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    time: u64,
    /// When it had its last answer, if it has not asked since.
    answered: Option<Instant>,
}

impl Rate {
    fn asks(&mut self, now: Instant, length: u64) {
        self.bytes = self.bytes.saturating_add(length);
        if let Some(answered) = self.answered.take() {
            self.time = self.time.saturating_add(now.since(answered).0);
        }
        if self.time > RATE_TIME.0 {
            self.time /= 2;
            self.bytes /= 2;
        }
    }

    /// Bytes that it takes in `time` nanoseconds; `None`: nothing is known.
    fn bytes_in(&self, time: u64) -> Option<u64> {
        if self.bytes == 0 {
            return None;
        }
        let bytes = u128::from(self.bytes) * u128::from(time) / u128::from(self.time.max(1));
        Some(u64::try_from(bytes).unwrap_or(u64::MAX))
    }
}

/// Records at equal distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Regular {
    /// Where the first record began.
    origin: u64,
    /// Where the latest one began.
    latest: u64,
    /// Distances between them.
    count: u64,
    /// Bytes of a record, the longest.
    length: u64,
    /// The last record that was named, counted like `count`.
    named: u64,
}

impl Regular {
    /// Begin of the record with this number; `None`: before the file, or beyond all files. Distances are of rounded begins, so
    /// that of the first to the latest is the most exact.
    fn begin_of(&self, number: u64) -> Option<u64> {
        let way = i128::from(self.latest) - i128::from(self.origin);
        let begin = i128::from(self.origin) + way * i128::from(number) / i128::from(self.count);
        u64::try_from(begin).ok()
    }

    fn distance(&self) -> u64 {
        self.latest.abs_diff(self.origin) / self.count
    }

    /// How far begins and lengths may be off.
    fn slack(&self) -> u64 {
        if self.distance() < ROUNDED_DISTANCE_MIN {
            0
        } else {
            ROUNDING
        }
    }

    /// Whether a record of `length` bytes was one of these, and the next begins at `begin`.
    fn fits(&self, length: u64, begin: u64) -> bool {
        let next = self.begin_of(self.count + 1);
        length.abs_diff(self.length) <= self.slack()
            && next.is_some_and(|next| next.abs_diff(begin) <= 2 * self.slack())
    }
}

/// The reader of one open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Adjacent bytes, the latest.
    record: ByteRange,
    /// Bytes in it that were overtaken and have not come yet.
    overtaken: u64,
    /// Bytes read in a row.
    sequential: u64,
    /// Bytes up to here were named as the next ones of this record.
    named_end: u64,
    regular: Option<Regular>,
    rate: Rate,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            record: ByteRange::new(0, 0),
            overtaken: 0,
            sequential: 0,
            named_end: 0,
            regular: None,
            rate: Rate::default(),
        }
    }
}

impl Reading {
    /// A request for `range`: once for each, in the order in which they come.
    pub(crate) fn note(&mut self, now: Instant, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        self.rate.asks(now, range.length());
        let record = self.record;
        if record.contains(&range) && range.begin + OVERTAKEN_SIZE_MAX >= record.end {
            // Overtaken, or read again.
            self.overtaken = self.overtaken.saturating_sub(range.length());
            return;
        }
        if range.begin >= record.begin && range.end > record.end {
            let gap = range.begin.saturating_sub(record.end);
            let is_overtaking = self.is_sequential()
                && self.regular().is_none()
                && self.overtaken + gap <= OVERTAKEN_SIZE_MAX;
            if gap == 0 || is_overtaking {
                self.overtaken += gap;
                self.sequential += range.end - record.end;
                self.record.end = range.end;
                let length = self.record.length();
                // It goes on and on.
                self.regular = self.regular.filter(|r| length <= r.length + r.slack());
                return;
            }
        }
        self.jump(range);
    }

    /// The request was answered: what follows is the application's own time.
    pub(crate) fn answered(&mut self, now: Instant) {
        self.rate.answered = Some(now);
    }

    fn jump(&mut self, range: ByteRange) {
        let record = std::mem::replace(&mut self.record, range);
        self.overtaken = 0;
        self.sequential = 0;
        self.named_end = 0;
        if let Some(regular) = &mut self.regular
            && regular.fits(record.length(), range.begin)
        {
            regular.latest = range.begin;
            regular.count += 1;
            regular.length = regular.length.max(record.length());
            return;
        }
        let is_first = record.is_empty() || record.begin == range.begin;
        self.regular = (!is_first).then_some(Regular {
            origin: record.begin,
            latest: range.begin,
            count: 1,
            length: record.length(),
            named: 1,
        });
    }

    fn is_sequential(&self) -> bool {
        self.sequential >= SEQUENTIAL_SIZE_MIN
    }

    /// The pattern, once distances have repeated.
    fn regular(&self) -> Option<Regular> {
        self.regular.filter(|r| r.count >= DISTANCE_COUNT_MIN)
    }

    /// Bytes to be ahead, of at most `most`: what the application takes while the disks answer, twice.
    fn depth(&self, load_time: LoadTime, most: u64) -> u64 {
        let taken = load_time.0.and_then(|time| self.rate.bytes_in(time));
        let depth = taken.map_or(DEPTH_UNKNOWN, |bytes| {
            bytes.saturating_mul(2).clamp(DEPTH_MIN, DEPTH_MAX)
        });
        depth.min(most)
    }

    /// Where the reader is: what lies far before it may go, if it reads in sequence.
    pub(crate) fn sequential_at(&self) -> Option<u64> {
        let is_sequential = self.is_sequential() && self.regular().is_none();
        is_sequential.then_some(self.record.end)
    }

    /// What is to be loaded ahead now, nearest first, of a file with `size` bytes: named once. At most `most` bytes are
    /// to be ahead.
    pub(crate) fn next(&mut self, size: u64, load_time: LoadTime, most: u64) -> Vec<ByteRange> {
        let depth = self.depth(load_time, most);
        let end = size.next_multiple_of(PAGE_SIZE);
        let mut wanted = Vec::new();
        if let Some(mut regular) = self.regular() {
            self.name_records(&mut regular, depth, end, &mut wanted);
            self.regular = Some(regular);
        } else if self.is_sequential() {
            let window = (self.sequential * 2).min(depth);
            let begin = self.named_end.max(self.record.end);
            let target = self.record.end.saturating_add(window);
            // In large pieces, not a few pages at a time.
            if target >= begin + window / 2 && begin < end {
                self.named_end = target.min(end);
                wanted.push(whole_pages(begin, self.named_end, end));
            }
        }
        wanted.retain(|range| !range.is_empty());
        wanted
    }

    fn name_records(
        &mut self,
        regular: &mut Regular,
        depth: u64,
        end: u64,
        wanted: &mut Vec<ByteRange>,
    ) {
        // The rest of this record, if it was not named as a whole.
        let is_long = regular.length > depth;
        let record_end = self.record.begin.saturating_add(regular.length);
        let target = record_end.min(self.record.end.saturating_add(depth));
        let begin = self.named_end.max(self.record.end);
        let is_last_part = target == record_end;
        if (is_long || regular.named < regular.count)
            && begin < target
            && (is_last_part || target - begin >= depth / 2)
        {
            self.named_end = target;
            wanted.push(whole_pages(begin, target, end));
        }
        if is_long && !is_last_part {
            return;
        }
        // A pattern that is young may be chance, and its distance is known the less exactly.
        let count_max = RECORD_COUNT_MAX.min(regular.count - 1);
        let count = (depth / regular.length.max(PAGE_SIZE)).clamp(1, count_max);
        let length = regular.length.min(depth);
        let first = regular.named.max(regular.count) + 1;
        let last = regular.count + count;
        if last + 1 < first + count.div_ceil(2) {
            return;
        }
        for number in first..=last {
            let Some(begin) = regular.begin_of(number) else {
                break;
            };
            // A page more at either end, where begins are rounded.
            let range = whole_pages(
                begin.saturating_sub(regular.slack()),
                begin.saturating_add(length).saturating_add(regular.slack()),
                end,
            );
            if begin >= end {
                break;
            }
            wanted.push(range);
        }
        regular.named = last;
    }
}

/// The pages of these bytes before `end`.
fn whole_pages(begin: u64, behind: u64, end: u64) -> ByteRange {
    let begin = begin / PAGE_SIZE * PAGE_SIZE;
    let behind = behind
        .checked_next_multiple_of(PAGE_SIZE)
        .unwrap_or(u64::MAX)
        .min(end);
    ByteRange::new(begin, behind.max(begin))
}

#[cfg(test)]
mod tests;
