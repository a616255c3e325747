//! A bit per sector of a region.
//!
//! Invariants: `set_count` is the number of ones; bits behind `length` are zero; no run of ones is
//! longer than `longest_max` (a search that failed is not made again until a bit is set).

/// Bits, counted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bitmap {
    words: Vec<u64>,
    length: u32,
    set_count: u32,
    longest_max: u32,
}

const BITS: u32 = u64::BITS;

/// The bits of word `word` that lie in `begin..end`.
fn mask(word: u32, begin: u32, end: u32) -> u64 {
    let low = begin.saturating_sub(word * BITS).min(BITS);
    let high = end.saturating_sub(word * BITS).min(BITS);
    if low >= high {
        return 0;
    }
    (u64::MAX >> (BITS - (high - low))) << low
}

impl Bitmap {
    /// All zero.
    pub(super) fn new(length: u32) -> Self {
        Self {
            words: vec![0; length.div_ceil(BITS) as usize],
            length,
            set_count: 0,
            longest_max: length,
        }
    }

    /// Ones.
    pub(super) const fn count(&self) -> u32 {
        self.set_count
    }

    fn words_of(&self, begin: u32, count: u32) -> std::ops::Range<u32> {
        assert!(begin + count <= self.length);
        if count == 0 {
            return 0..0;
        }
        begin / BITS..(begin + count).div_ceil(BITS)
    }

    /// Sets or clears bits.
    pub(super) fn set(&mut self, begin: u32, count: u32, value: bool) {
        if value {
            self.longest_max = self.length;
        }
        for word in self.words_of(begin, count) {
            let mask = mask(word, begin, begin + count);
            let bits = &mut self.words[word as usize];
            if value {
                self.set_count += (mask & !*bits).count_ones();
                *bits |= mask;
            } else {
                self.set_count -= (mask & *bits).count_ones();
                *bits &= !mask;
            }
        }
    }

    /// Every bit is one.
    pub(super) fn is_all_set(&self, begin: u32, count: u32) -> bool {
        self.words_of(begin, count).all(|word| {
            let mask = mask(word, begin, begin + count);
            self.words[word as usize] & mask == mask
        })
    }

    /// Some bit is one.
    pub(super) fn is_any_set(&self, begin: u32, count: u32) -> bool {
        self.words_of(begin, count)
            .any(|word| self.words[word as usize] & mask(word, begin, begin + count) != 0)
    }

    /// No bit is one in both.
    pub(super) fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    /// First bit at or behind `from` that is `value`; the length if there is none.
    fn next(&self, from: u32, value: bool) -> u32 {
        let mut at = from;
        while at < self.length {
            let word = self.words[(at / BITS) as usize];
            let word = if value { word } else { !word } >> (at % BITS);
            if word != 0 {
                return (at + word.trailing_zeros()).min(self.length);
            }
            at = (at / BITS + 1) * BITS;
        }
        self.length
    }

    /// Visits the runs of ones in order: first bit and length.
    pub(super) fn for_each_run(&self, visit: &mut dyn FnMut(u32, u32)) {
        let mut at = self.next(0, true);
        while at < self.length {
            let end = self.next(at, false);
            visit(at, end - at);
            at = self.next(end, true);
        }
    }

    /// The first run of at least `length_min` ones: first bit and length.
    pub(super) fn find(&mut self, length_min: u32) -> Option<(u32, u32)> {
        if length_min > self.set_count.min(self.longest_max) {
            return None;
        }
        let mut at = self.next(0, true);
        while at < self.length {
            let end = self.next(at, false);
            if end - at >= length_min {
                return Some((at, end - at));
            }
            at = self.next(end, true);
        }
        self.longest_max = length_min - 1;
        None
    }

    /// Asserts the invariants.
    pub(super) fn check(&self) {
        let ones: u32 = self.words.iter().map(|w| w.count_ones()).sum();
        assert_eq!(ones, self.set_count);
        self.for_each_run(&mut |_, count| assert!(count <= self.longest_max));
        if let Some(last) = self.words.last() {
            let word = self.length.div_ceil(BITS) - 1;
            assert_eq!(last & !mask(word, 0, self.length), 0);
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_vector_of_bools() {
        for length in [1u32, 63, 64, 65, 130] {
            let mut map = Bitmap::new(length);
            let mut twin = vec![false; length as usize];
            let mut seed = u64::from(length);
            let mut random = move |below: u32| {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                ((seed >> 33) % u64::from(below)) as u32
            };
            for _ in 0..2000 {
                let begin = random(length);
                let count = random(length - begin + 1);
                let value = random(2) == 0;
                map.set(begin, count, value);
                let range = begin as usize..(begin + count) as usize;
                twin[range].fill(value);
                map.check();
                let begin = random(length);
                let count = random(length - begin + 1);
                let range = begin as usize..(begin + count) as usize;
                assert_eq!(
                    map.is_all_set(begin, count),
                    twin[range.clone()].iter().all(|b| *b)
                );
                assert_eq!(map.is_any_set(begin, count), twin[range].iter().any(|b| *b));
                let mut runs = Vec::new();
                map.for_each_run(&mut |begin, count| runs.push((begin, count)));
                let mut expected: Vec<(u32, u32)> = Vec::new();
                for at in (0..length).filter(|at| twin[*at as usize]) {
                    match expected.last_mut() {
                        Some((begin, count)) if *begin + *count == at => *count += 1,
                        _ => expected.push((at, 1)),
                    }
                }
                let wanted = random(9) + 1;
                let found = expected.iter().find(|run| run.1 >= wanted).copied();
                assert_eq!(map.find(wanted), found);
                assert_eq!(runs, expected);
            }
        }
    }
}
