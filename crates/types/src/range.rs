//! Byte ranges, strided patterns and sets of ranges.

use std::ops::Range;

use smallvec::SmallVec;

use crate::wire_struct;

/// Bytes from `begin` to before `end`; `end == u64::MAX` is without end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteRange {
    /// First byte.
    pub begin: u64,
    /// First byte behind.
    pub end: u64,
}
wire_struct!(ByteRange { begin, end });

impl ByteRange {
    /// Everything.
    pub const ALL: Self = Self {
        begin: 0,
        end: u64::MAX,
    };

    /// `begin..end`.
    pub const fn new(begin: u64, end: u64) -> Self {
        assert!(begin <= end);
        Self { begin, end }
    }

    /// `length` bytes from `begin`.
    pub const fn at(begin: u64, length: u64) -> Self {
        Self {
            begin,
            end: begin.saturating_add(length),
        }
    }

    /// Holds no byte.
    pub const fn is_empty(&self) -> bool {
        self.begin >= self.end
    }

    /// Bytes in it.
    pub const fn length(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    /// Shares a byte with `other`.
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end && !self.is_empty() && !other.is_empty()
    }

    /// Holds all bytes of `other`.
    pub const fn contains(&self, other: &Self) -> bool {
        other.is_empty() || (self.begin <= other.begin && other.end <= self.end)
    }

    /// The bytes in both.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        let both = Self {
            begin: self.begin.max(other.begin),
            end: self.end.min(other.end),
        };
        (!both.is_empty()).then_some(both)
    }
}

/// Bytes that repeat: `count` pieces of `length` bytes, each `stride` behind the one before.
///
/// A plain range is one piece. `count == u64::MAX` is without end. `length <= stride` unless `count` is 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pattern {
    /// First byte of the first piece.
    pub offset: u64,
    /// Bytes of a piece; `u64::MAX - offset` or more is without end.
    pub length: u64,
    /// From the start of a piece to the start of the next.
    pub stride: u64,
    /// Pieces.
    pub count: u64,
}
wire_struct!(Pattern {
    offset,
    length,
    stride,
    count
});

impl Pattern {
    /// One plain range.
    pub const fn plain(range: ByteRange) -> Self {
        Self {
            offset: range.begin,
            length: range.end - range.begin,
            stride: 0,
            count: 1,
        }
    }
}

/// A set of bytes as sorted, disjoint, non-adjacent, non-empty ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    // Nearly every set is one range, such as the whole file.
    ranges: SmallVec<[ByteRange; 1]>,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self {
            ranges: SmallVec::new_const(),
        }
    }

    /// The set of one range.
    pub fn of(range: ByteRange) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }

    /// Holds nothing.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, sorted.
    pub fn ranges(&self) -> &[ByteRange] {
        &self.ranges
    }

    /// Adds the bytes of `range`.
    pub fn insert(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end < range.begin);
        let last = self.ranges.partition_point(|r| r.begin <= range.end);
        let mut merged = range;
        if first < last {
            merged.begin = merged.begin.min(self.ranges[first].begin);
            merged.end = merged.end.max(self.ranges[last - 1].end);
        }
        self.replace(first..last, [merged]);
    }

    /// Takes the bytes of `range` out.
    pub fn remove(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|r| r.end <= range.begin);
        let last = self.ranges.partition_point(|r| r.begin < range.end);
        if first >= last {
            return;
        }
        let head = ByteRange {
            begin: self.ranges[first].begin,
            end: range.begin,
        };
        let tail = ByteRange {
            begin: range.end,
            end: self.ranges[last - 1].end,
        };
        let rest = [head, tail].into_iter().filter(|r| !r.is_empty());
        self.replace(first..last, rest);
    }

    fn replace(&mut self, old: Range<usize>, new: impl IntoIterator<Item = ByteRange>) {
        let mut at = old.start;
        for range in new {
            match at < old.end {
                true => self.ranges[at] = range,
                false => self.ranges.insert(at, range),
            }
            at += 1;
        }
        if at < old.end {
            self.ranges.drain(at..old.end);
        }
    }

    /// Holds all bytes of `range`.
    pub fn contains(&self, range: &ByteRange) -> bool {
        let index = self.ranges.partition_point(|r| r.end < range.end);
        range.is_empty() || self.ranges.get(index).is_some_and(|r| r.contains(range))
    }

    /// Holds a byte of `range`.
    pub fn overlaps(&self, range: &ByteRange) -> bool {
        let index = self.ranges.partition_point(|r| r.end <= range.begin);
        self.ranges.get(index).is_some_and(|r| r.overlaps(range))
    }

    /// The ranges that overlap `range`.
    fn overlapping(&self, range: &ByteRange) -> &[ByteRange] {
        let first = self.ranges.partition_point(|r| r.end <= range.begin);
        let count = self.ranges[first..].partition_point(|r| r.begin < range.end);
        &self.ranges[first..first + count]
    }

    /// The bytes of `range` that are in the set.
    pub fn intersection(&self, range: &ByteRange) -> Self {
        let overlapping = self.overlapping(range).iter();
        let ranges = overlapping.filter_map(|r| r.intersection(range)).collect();
        Self { ranges }
    }

    /// The bytes of `range` that are not in the set.
    pub fn missing(&self, range: &ByteRange) -> Self {
        let mut rest = Self::of(*range);
        for held in self.overlapping(range) {
            rest.remove(*held);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_set_agrees_with_a_set_of_bytes() {
        let mut seed = 1u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut set = RangeSet::new();
        let mut twin = [false; 64];
        let place = |byte: u64| usize::try_from(byte).expect("below 64");
        for _ in 0..20_000 {
            let begin = random(64);
            let range = ByteRange::new(begin, begin + random(65 - begin));
            let add = random(2) == 0;
            if add {
                set.insert(range)
            } else {
                set.remove(range)
            }
            for byte in range.begin..range.end {
                twin[place(byte)] = add;
            }
            for pair in set.ranges().windows(2) {
                assert!(pair[0].end < pair[1].begin);
            }
            for byte in 0..64u64 {
                assert_eq!(set.overlaps(&ByteRange::at(byte, 1)), twin[place(byte)]);
            }
            let probe = random(64);
            let probe = ByteRange::new(probe, probe + random(65 - probe));
            let bytes = || (probe.begin..probe.end).map(|b| twin[place(b)]);
            assert_eq!(set.contains(&probe), bytes().all(|b| b));
            assert_eq!(set.overlaps(&probe), bytes().any(|b| b));
            let (held, missing) = (set.intersection(&probe), set.missing(&probe));
            for byte in probe.begin..probe.end {
                let byte_at = ByteRange::at(byte, 1);
                assert_eq!(held.overlaps(&byte_at), twin[place(byte)]);
                assert_eq!(missing.overlaps(&byte_at), !twin[place(byte)]);
            }
            let within = |part: &ByteRange| probe.contains(part);
            assert!(held.ranges().iter().chain(missing.ranges()).all(within));
        }
    }
}
