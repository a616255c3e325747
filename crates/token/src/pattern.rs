//! Arithmetic of strided patterns: overlap, containment, intersection, difference.
//!
//! Bytes are numbered 0 to 2^64 - 2; a pattern without end is one with as many pieces as fit, so every
//! pattern here is finite and every question has an exact answer by modular arithmetic.
//!
//! Exact: normal form, `overlaps`, `contains_range`, everything with a plain range, and `split` of two
//! patterns whose strides have a common multiple that is small enough ([`EXPANSION_MAX`]). Other
//! differences and intersections are rounded as the caller says, never silently.

use types::{ByteRange, Pattern};

/// Into so many patterns of a longer stride a pattern is taken apart, at most, to be compared with one of
/// another stride.
pub const EXPANSION_MAX: u64 = 16;

/// A pattern in normal form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shape {
    /// Adjacent bytes; empty ranges are no shape.
    Plain(ByteRange),
    /// Pieces with gaps.
    Strided(Strided),
}

/// At least two pieces with gaps between them: `0 < length < stride`, and each piece begins below 2^64 - 1
/// (the last one may be cut there).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Strided {
    offset: u64,
    length: u64,
    stride: u64,
    count: u64,
}

/// What to do with a result that no short list of patterns can say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// Say less: for what will be held.
    Down,
    /// Say more: for what will be flushed and dropped.
    Up,
}

impl Shape {
    /// The normal form; `None` when no byte is in it. Overlapping pieces of foreign patterns
    /// (`length > stride`) are taken as the bytes they cover.
    pub fn of(pattern: &Pattern) -> Option<Self> {
        let Pattern {
            offset,
            length,
            stride,
            count,
        } = *pattern;
        if length == 0 || count == 0 || offset == u64::MAX {
            return None;
        }
        if count == 1 || stride == 0 {
            return Some(Self::Plain(ByteRange::at(offset, length)));
        }
        let count = count.min((u64::MAX - 1 - offset) / stride + 1);
        if length >= stride {
            let end = (offset + (count - 1) * stride).saturating_add(length);
            return Some(Self::Plain(ByteRange::new(offset, end)));
        }
        Some(Self::strided(offset, length, stride, count))
    }

    /// For parts that are known to be in normal form but for a count of 1.
    fn strided(offset: u64, length: u64, stride: u64, count: u64) -> Self {
        debug_assert!(0 < length && length < stride && count > 0);
        if count == 1 {
            return Self::Plain(ByteRange::at(offset, length));
        }
        Self::Strided(Strided {
            offset,
            length,
            stride,
            count,
        })
    }

    /// As others say it.
    pub fn pattern(&self) -> Pattern {
        match self {
            Self::Plain(range) => Pattern::plain(*range),
            Self::Strided(s) => {
                let next = u128::from(s.offset) + u128::from(s.count) * u128::from(s.stride);
                Pattern {
                    offset: s.offset,
                    length: s.length,
                    stride: s.stride,
                    count: if next >= u128::from(u64::MAX) {
                        u64::MAX
                    } else {
                        s.count
                    },
                }
            }
        }
    }

    /// From the first byte to behind the last.
    pub fn hull(&self) -> ByteRange {
        match self {
            Self::Plain(range) => *range,
            Self::Strided(s) => s.hull(),
        }
    }

    /// Shares a byte with `range`. Exact.
    pub fn overlaps_range(&self, range: &ByteRange) -> bool {
        match self {
            Self::Plain(own) => own.overlaps(range),
            Self::Strided(s) => s.overlaps_range(range),
        }
    }

    /// Shares a byte with `other`. Exact.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Plain(range)) => self.overlaps_range(range),
            (Self::Plain(range), _) => other.overlaps_range(range),
            (Self::Strided(a), Self::Strided(b)) => a.overlaps(b),
        }
    }

    /// End of the piece that holds byte `at`.
    pub fn reach(&self, at: u64) -> Option<u64> {
        match self {
            Self::Plain(range) => (range.begin <= at && at < range.end).then_some(range.end),
            Self::Strided(s) => s.reach(at),
        }
    }

    /// Holds all of `other`. May say no where two strides are not multiples of each other.
    pub fn contains(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plain(own), _) => own.contains(&other.hull()),
            (Self::Strided(s), Self::Plain(range)) => {
                s.reach(range.begin).is_some_and(|end| end >= range.end)
            }
            (Self::Strided(a), Self::Strided(b)) => a.contains(b),
        }
    }

    /// Sorts the bytes of `self` by whether `other` has them: appends those it has to `both`, the rest to
    /// `rest`. Where the strides do not go together, nothing (`Down`) or all that is in doubt (`Up`)
    /// is said to be in either.
    pub fn split(
        &self,
        other: &Self,
        rounding: Rounding,
        both: &mut Vec<Self>,
        rest: &mut Vec<Self>,
    ) {
        if !self.overlaps(other) {
            rest.push(*self);
            return;
        }
        let hull = other.hull();
        let [before, inside, behind] = [
            ByteRange::new(0, hull.begin),
            hull,
            ByteRange::new(hull.end, u64::MAX),
        ];
        self.clip(&before, rest);
        self.clip(&behind, rest);
        let Self::Strided(b) = other else {
            self.clip(&inside, both);
            return;
        };
        let mut parts = Vec::new();
        self.clip(&inside, &mut parts);
        for part in parts {
            match part {
                Self::Plain(range) => b.divide(&range, both, rest),
                Self::Strided(a) => a.split(b, rounding, both, rest),
            }
        }
    }

    /// The pieces one by one, if there are at most `count_max`.
    pub fn pieces(&self, count_max: usize) -> Option<Vec<ByteRange>> {
        match self {
            Self::Plain(range) => Some(vec![*range]),
            Self::Strided(s) => {
                let is_short = usize::try_from(s.count).is_ok_and(|count| count <= count_max);
                is_short.then(|| (0..s.count).map(|index| s.piece(index)).collect())
            }
        }
    }

    /// Appends the bytes that lie in `range`. Exact.
    pub fn clip(&self, range: &ByteRange, out: &mut Vec<Self>) {
        match self {
            Self::Plain(own) => out.extend(own.intersection(range).map(Self::Plain)),
            Self::Strided(s) => s.clip(range, out),
        }
    }
}

impl Strided {
    /// Bytes of a piece.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// From piece to piece.
    pub const fn stride(&self) -> u64 {
        self.stride
    }

    fn begin(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        self.offset + index * self.stride
    }

    fn piece(&self, index: u64) -> ByteRange {
        ByteRange::at(self.begin(index), self.length)
    }

    fn hull(&self) -> ByteRange {
        ByteRange::new(self.offset, self.piece(self.count - 1).end)
    }

    /// Pieces that begin before `at`.
    fn count_before(&self, at: u64) -> u64 {
        if at <= self.offset {
            return 0;
        }
        ((at - 1 - self.offset) / self.stride + 1).min(self.count)
    }

    /// Pieces `from..to` as a shape, if there are any.
    fn slice(&self, from: u64, to: u64) -> Option<Shape> {
        (from < to).then(|| Shape::strided(self.begin(from), self.length, self.stride, to - from))
    }

    fn overlaps_range(&self, range: &ByteRange) -> bool {
        let count = self.count_before(range.end);
        !range.is_empty() && count > 0 && self.piece(count - 1).end > range.begin
    }

    fn reach(&self, at: u64) -> Option<u64> {
        let count = self.count_before(at.checked_add(1)?);
        let piece = self.piece(count.checked_sub(1)?);
        (at < piece.end).then_some(piece.end)
    }

    fn clip(&self, range: &ByteRange, out: &mut Vec<Shape>) {
        // Whole pieces are `from..to`; a cut one may lie before them and one behind.
        let mut from = self.count_before(range.begin);
        let mut to = self.count_before(range.end);
        if from > 0
            && let Some(cut) = self.piece(from - 1).intersection(range)
        {
            out.push(Shape::Plain(cut));
        }
        let mut last = None;
        if from < to && self.piece(to - 1).end > range.end {
            to -= 1;
            last = self.piece(to).intersection(range);
        }
        from = from.min(to);
        out.extend(self.slice(from, to));
        out.extend(last.map(Shape::Plain));
    }

    fn overlaps(&self, other: &Self) -> bool {
        let Some(common) = self.hull().intersection(&other.hull()) else {
            return false;
        };
        let from = self.count_before(common.begin);
        let to = self.count_before(common.end);
        // Pieces over an edge of the other's hull are looked at one by one ...
        if from > 0 && other.overlaps_range(&self.piece(from - 1)) {
            return true;
        }
        if from == to {
            return false;
        }
        if other.overlaps_range(&self.piece(from)) || other.overlaps_range(&self.piece(to - 1)) {
            return true;
        }
        // ... and those inside meet a piece of `other` exactly if they meet one of it continued for ever:
        // begin - other.offset + length - 1, modulo the other's stride, is below both lengths less one.
        let near = u128::from(self.length) + u128::from(other.length) - 1;
        let modulus = u128::from(other.stride);
        if near >= modulus {
            return true;
        }
        let step = u128::from(self.stride) % modulus;
        let first = u128::from(self.begin(from)) + u128::from(self.length) - 1;
        let first = (first + modulus - u128::from(other.offset) % modulus) % modulus;
        let cycle = modulus / greatest_divisor(step, modulus);
        let count = u128::from(to - from).min(cycle);
        count_below(count, modulus, (step, first), near) > 0
    }

    fn contains(&self, other: &Self) -> bool {
        let (first, last) = (other.piece(0), other.piece(other.count - 1));
        let holds = |piece: ByteRange| self.reach(piece.begin).is_some_and(|end| end >= piece.end);
        holds(first)
            && holds(last)
            && (other.count == 2 || other.stride.is_multiple_of(self.stride))
    }

    /// Sorts the bytes of `range`, which lies in our hull, by whether we have them.
    fn divide(&self, range: &ByteRange, both: &mut Vec<Shape>, rest: &mut Vec<Shape>) {
        self.clip(range, both);
        let gaps = Shape::strided(
            self.offset + self.length,
            self.stride - self.length,
            self.stride,
            self.count - 1,
        );
        gaps.clip(range, rest);
    }

    /// As [`Shape::split`], for pieces inside the other's hull.
    fn split(
        &self,
        other: &Self,
        rounding: Rounding,
        both: &mut Vec<Shape>,
        rest: &mut Vec<Shape>,
    ) {
        let divisor = greatest_divisor(u128::from(self.stride), u128::from(other.stride));
        let multiple = u128::from(self.stride) / divisor * u128::from(other.stride);
        let (own, others) = (
            multiple / u128::from(self.stride),
            multiple / u128::from(other.stride),
        );
        let limit = u128::from(EXPANSION_MAX);
        if own > limit || others > limit || multiple > u128::from(u64::MAX) {
            if rounding == Rounding::Up {
                both.push(Shape::Strided(*self));
                rest.push(Shape::Strided(*self));
            }
            return;
        }
        for part in self.expand(own) {
            part.split_repeating(other, both, rest);
        }
    }

    /// The same bytes as `factor` patterns of a stride `factor` times as long.
    fn expand(&self, factor: u128) -> Vec<Self> {
        let factor = u64::try_from(factor).expect("checked against EXPANSION_MAX");
        let stride = self.stride.saturating_mul(factor);
        (0..factor.min(self.count))
            .map(|k| Self {
                offset: self.begin(k),
                length: self.length,
                stride,
                count: (self.count - k).div_ceil(factor),
            })
            .collect()
    }

    /// As [`Shape::split`], when our stride is a multiple of the other's and we lie inside its hull: every
    /// piece of ours is cut in the same places.
    fn split_repeating(&self, other: &Self, both: &mut Vec<Shape>, rest: &mut Vec<Shape>) {
        // The last piece may be cut by the end of all bytes, before some part of it begins.
        let part = |from: u64, to: u64| {
            let last = u128::from(self.begin(self.count - 1)) + u128::from(from);
            let count = self.count - u64::from(last >= u128::from(u64::MAX));
            (count > 0).then(|| Shape::strided(self.offset + from, to - from, self.stride, count))
        };
        let first = self.piece(0);
        let phase = (self.offset - other.offset) % other.stride;
        // Begin of the other's piece at or before our first byte, as a distance that may be negative.
        let mut at = 0;
        let mut end = other.length.saturating_sub(phase).min(self.length);
        let mut next = other.stride - phase;
        while at < first.length() {
            if end > at {
                both.extend(part(at, end));
                at = end;
            }
            let until = next.min(self.length);
            if at < until {
                rest.extend(part(at, until));
            }
            at = until;
            end = next.saturating_add(other.length).min(self.length);
            next = next.saturating_add(other.stride);
        }
    }
}

fn greatest_divisor(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// How many `i < count` have `(step * i + first) mod modulus < below`; `count <= modulus < 2^64`,
/// `step`, `first` and `below` less than `modulus`.
fn count_below(count: u128, modulus: u128, (step, first): (u128, u128), below: u128) -> u128 {
    floor_sum(count, modulus, step, first + modulus)
        - floor_sum(count, modulus, step, first + modulus - below)
}

/// Sum over `i < n` of `(a * i + b) / m`, by Euclid's algorithm.
fn floor_sum(mut n: u128, mut m: u128, mut a: u128, mut b: u128) -> u128 {
    let mut sum = 0;
    while n > 0 {
        sum += n * (n - 1) / 2 * (a / m);
        a %= m;
        sum += n * (b / m);
        b %= m;
        let top = a * n + b;
        if top < m {
            break;
        }
        n = top / m;
        b = top % m;
        (m, a) = (a, m);
    }
    sum
}

#[cfg(test)]
mod tests;
