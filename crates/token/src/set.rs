//! Sets of bytes as few patterns: what a holder has of a file in one mode.
//!
//! Plain ranges are kept sorted and searched by bisection; strided patterns are few and searched one by
//! one. The parts may overlap one another; only the union means anything.

use types::{ByteRange, Pattern, RangeSet};

use crate::pattern::{Rounding, Shape, Strided};

/// More strided patterns than this are not kept: the oldest is given up.
pub const STRIDED_COUNT_MAX: usize = 8;
/// More strided parts than this are not made by taking patterns out: their strides would multiply.
const SPLIT_COUNT_MAX: usize = 32;
/// In so many pieces a strided pattern is cut out of a plain range; else the rest becomes a pattern.
const CUT_COUNT_MAX: usize = 4;

/// A set of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PatternSet {
    plain: RangeSet,
    strided: Vec<Strided>,
}

impl PatternSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self {
            plain: RangeSet::new(),
            strided: Vec::new(),
        }
    }

    /// The set of one shape.
    pub fn of(shape: Shape) -> Self {
        let mut set = Self::new();
        set.add(shape);
        set
    }

    /// The union of patterns, as messages carry them.
    pub fn from_patterns(patterns: &[Pattern]) -> Self {
        let mut set = Self::new();
        for shape in patterns.iter().filter_map(Shape::of) {
            set.add(shape);
        }
        set
    }

    /// As messages carry it.
    pub fn patterns(&self) -> Vec<Pattern> {
        let mut patterns = Vec::with_capacity(self.count());
        patterns.extend(self.shapes().map(|s| s.pattern()));
        patterns
    }

    /// The parts: plain ones sorted, then strided ones, oldest first.
    pub fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        let plain = self.plain.ranges().iter().map(|r| Shape::Plain(*r));
        plain.chain(self.strided.iter().map(|s| Shape::Strided(*s)))
    }

    /// Parts.
    pub fn count(&self) -> usize {
        self.plain.ranges().len() + self.strided.len()
    }

    /// Holds nothing.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.strided.is_empty()
    }

    /// How far the bytes from `at` on are held: the first byte from there that is not, as far as one part
    /// reaches.
    fn reach(&self, at: u64) -> Option<u64> {
        let ranges = self.plain.ranges();
        let index = ranges.partition_point(|r| r.end <= at);
        let plain = ranges.get(index).filter(|r| r.begin <= at).map(|r| r.end);
        let strided = self
            .strided
            .iter()
            .filter_map(|s| Shape::Strided(*s).reach(at));
        strided.chain(plain).max()
    }

    /// Holds all bytes of `range`. Exact.
    pub fn contains_range(&self, range: &ByteRange) -> bool {
        union_contains([self], range)
    }

    /// Holds all bytes of `shape`. May say no for a strided shape that only several parts together hold.
    pub fn contains(&self, shape: &Shape) -> bool {
        match shape {
            Shape::Plain(range) => self.contains_range(range),
            Shape::Strided(_) => self.shapes().any(|s| s.contains(shape)),
        }
    }

    /// Shares a byte with `range`. Exact.
    pub fn overlaps_range(&self, range: &ByteRange) -> bool {
        self.plain.overlaps(range)
            || self
                .strided
                .iter()
                .any(|s| Shape::Strided(*s).overlaps_range(range))
    }

    /// Shares a byte with `shape`. Exact.
    pub fn overlaps(&self, shape: &Shape) -> bool {
        if let Shape::Plain(range) = shape {
            return self.overlaps_range(range);
        }
        self.shapes().any(|s| s.overlaps(shape))
    }

    /// Shares a byte with `other`. Exact.
    pub fn overlaps_set(&self, other: &Self) -> bool {
        self.shapes().any(|s| other.overlaps(&s))
    }

    /// Adds the bytes of `shape`. Exact.
    pub fn add(&mut self, shape: Shape) {
        if self.contains(&shape) {
            return;
        }
        match shape {
            Shape::Plain(range) => {
                self.plain.insert(range);
                let plain = &self.plain;
                self.strided
                    .retain(|s| !plain.contains(&Shape::Strided(*s).hull()));
            }
            Shape::Strided(new) => {
                self.strided
                    .retain(|s| !shape.contains(&Shape::Strided(*s)));
                let inside: Vec<ByteRange> = self.plain.ranges().to_vec();
                for range in inside.iter().filter(|r| shape.contains(&Shape::Plain(**r))) {
                    self.plain.remove(*range);
                }
                self.strided.push(new);
            }
        }
    }

    /// Drops the first plain parts, then the oldest strided ones, until `count` are left.
    pub fn truncate(&mut self, count: usize) {
        let excess = self.count().saturating_sub(count);
        let first: Vec<ByteRange> = self.plain.ranges().iter().take(excess).copied().collect();
        for range in &first {
            self.plain.remove(*range);
        }
        self.strided.drain(..excess - first.len());
    }

    /// Drops parts that lie in `other` as a whole.
    pub fn forget_parts_of(&mut self, other: &Self) {
        if self.is_empty() {
            return;
        }
        let inside: Vec<Shape> = self.shapes().filter(|s| other.contains(s)).collect();
        for shape in inside {
            match shape {
                Shape::Plain(range) => self.plain.remove(range),
                Shape::Strided(strided) => self.strided.retain(|s| *s != strided),
            }
        }
    }

    /// Adds all of `other`. Exact.
    pub fn add_set(&mut self, other: &Self) {
        for shape in other.shapes() {
            self.add(shape);
        }
    }

    /// Takes the bytes of `shape` out; `Down` may take out more, `Up` less.
    pub fn remove(&mut self, shape: &Shape, rounding: Rounding) {
        if !self.overlaps(shape) {
            return;
        }
        let mut rest = Self::new();
        for own in self.shapes() {
            let mut parts = Vec::new();
            own.split(shape, rounding, &mut Vec::new(), &mut parts);
            if rest.strided.len() + parts.len() > SPLIT_COUNT_MAX {
                match rounding {
                    Rounding::Down => parts.retain(|p| matches!(p, Shape::Plain(_))),
                    Rounding::Up => parts = vec![own],
                }
            }
            rest.add_all(parts);
        }
        *self = rest;
        if rounding == Rounding::Down {
            self.trim();
        }
    }

    /// Takes all of `other` out; `Down` may take out more, `Up` less.
    pub fn remove_set(&mut self, other: &Self, rounding: Rounding) {
        for shape in other.shapes() {
            self.remove(&shape, rounding);
        }
    }

    /// The bytes that `shape` has too, or some of them.
    pub fn intersection(&self, shape: &Shape) -> Self {
        let mut common = Self::new();
        for own in self.shapes() {
            let mut parts = Vec::new();
            own.split(shape, Rounding::Down, &mut parts, &mut Vec::new());
            common.add_all(parts);
        }
        common.trim();
        common
    }

    /// The bytes within `range` as plain ranges, or more: where there would be more than `count_max` of a
    /// strided part, all from its first to its last byte there. For flushing and dropping.
    pub fn ranges_within(&self, range: &ByteRange, count_max: usize) -> RangeSet {
        let mut ranges = RangeSet::new();
        let mut parts = Vec::new();
        for own in self.shapes() {
            own.clip(range, &mut parts);
        }
        for part in parts {
            let pieces = part.pieces(count_max);
            match pieces {
                Some(pieces) => pieces.into_iter().for_each(|p| ranges.insert(p)),
                None => ranges.insert(part.hull()),
            }
        }
        ranges
    }

    /// Pieces of a pattern that were few enough become plain ranges, so that neighbours melt.
    fn add_all(&mut self, parts: Vec<Shape>) {
        for part in parts {
            match part.pieces(CUT_COUNT_MAX) {
                Some(pieces) => pieces.into_iter().for_each(|p| self.add(Shape::Plain(p))),
                None => self.add(part),
            }
        }
    }

    /// Gives the oldest strided parts up when there are too many.
    fn trim(&mut self) {
        let excess = self.strided.len().saturating_sub(STRIDED_COUNT_MAX);
        self.strided.drain(..excess);
    }
}

/// Containment of a range is followed over so many adjacent parts.
const STEP_COUNT_MAX: usize = 1024;

/// The sets together hold all bytes of `range`. Exact, but for ranges made of more than `STEP_COUNT_MAX`
/// adjacent parts, to which it says no: two complementary strides would be followed for ever.
pub fn union_contains<'a>(
    sets: impl IntoIterator<Item = &'a PatternSet> + Clone,
    range: &ByteRange,
) -> bool {
    let mut at = range.begin;
    for _ in 0..STEP_COUNT_MAX {
        if at >= range.end {
            return true;
        }
        match sets.clone().into_iter().filter_map(|s| s.reach(at)).max() {
            Some(end) => at = end,
            None => return false,
        }
    }
    at >= range.end
}

#[cfg(test)]
mod tests;
