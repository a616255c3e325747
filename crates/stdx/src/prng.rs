//! A seeded random number generator whose sequence never changes: a seed in a bug report replays it.
//!
//! xoshiro256** (Blackman and Vigna), its state filled by splitmix64 as its authors advise, because
//! similar seeds must not give similar sequences. Not for secrets.

/// The generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prng {
    state: [u64; 4],
}

/// One step of splitmix64: also a good mixer of a counter or of an address into a seed.
#[must_use]
pub const fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Prng {
    /// The generator of `seed`; any seed is good, 0 too.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        Self {
            state: [
                splitmix64(seed),
                splitmix64(seed.wrapping_add(GAMMA)),
                splitmix64(seed.wrapping_add(GAMMA.wrapping_mul(2))),
                splitmix64(seed.wrapping_add(GAMMA.wrapping_mul(3))),
            ],
        }
    }

    /// 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s1 << 17;
        let s2 = s2 ^ s0;
        let s3 = s3 ^ s1;
        self.state = [s0 ^ s3, s1 ^ s2, s2 ^ t, s3.rotate_left(45)];
        result
    }

    /// A number below `n` (`n` is not 0), every one equally likely.
    pub const fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0);
        // Lemire's method: the high half of a 128-bit product, refusing the few low halves that
        // would make some results likelier than others.
        let threshold = n.wrapping_neg() % n;
        loop {
            let product = self.next_u64() as u128 * n as u128;
            #[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// A number from `low` to `high`, both included (`low <= high`).
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(n) => low + self.below(n),
            None => self.next_u64(),
        }
    }

    /// True in `numerator` of `denominator` cases (`denominator` is not 0).
    pub const fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Puts `items` in random order, every order equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// One of `items`, or `None` when there is none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() {
            return None;
        }
        items.get(self.index(items.len()))
    }

    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
    }

    /// A generator whose sequence has nothing in common with this one's rest: one per component keeps
    /// a component's draws the same when another one draws more.
    #[must_use]
    pub const fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    #[allow(clippy::cast_possible_truncation, reason = "below a usize")]
    const fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_never_changes() {
        // splitmix64's published sequence for the seed 1234567.
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = 1_234_567_u64;
        let drawn: Vec<u64> = (0..3_u64)
            .map(|i| splitmix64(seed.wrapping_add(GAMMA.wrapping_mul(i))))
            .collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
        // xoshiro256** from the state 1, 2, 3, 4, as its reference implementation gives it.
        let mut prng = Prng {
            state: [1, 2, 3, 4],
        };
        let drawn: Vec<u64> = (0..4).map(|_| prng.next_u64()).collect();
        assert_eq!(drawn, [11520, 0, 1_509_978_240, 1_215_971_899_390_074_240]);
    }

    #[test]
    fn below_is_even_and_bounded() {
        let mut prng = Prng::new(0);
        for n in 1..=9_u64 {
            let mut counts = [0_u32; 9];
            for _ in 0..9000 {
                let drawn = prng.below(n);
                assert!(drawn < n);
                counts[usize::try_from(drawn).expect("small")] += 1;
            }
            let fair = 9000 / u32::try_from(n).expect("small");
            for count in &counts[..usize::try_from(n).expect("small")] {
                assert!(count.abs_diff(fair) < fair / 5 + 1, "{n}: {counts:?}");
            }
        }
        assert!(prng.below(u64::MAX) < u64::MAX);
        prng.between(0, u64::MAX);
        assert_eq!(prng.between(7, 7), 7);
        assert!(prng.chance(1, 1));
        assert!(!prng.chance(0, 1));
    }

    #[test]
    fn shuffle_reaches_every_order() {
        let mut prng = Prng::new(7);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let mut items = [1, 2, 3, 4];
            prng.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 24);
        assert_eq!(prng.pick::<u8>(&[]), None);
        assert_eq!(prng.pick(&[5]), Some(&5));
    }

    #[test]
    fn seeds_and_forks_differ() {
        let mut first = Prng::new(1);
        let mut second = Prng::new(2);
        assert_ne!(first.next_u64(), second.next_u64());
        let mut fork = first.fork();
        let mut bytes = [0; 13];
        fork.fill(&mut bytes);
        assert_ne!(bytes, [0; 13]);
        assert_ne!(fork, first);
    }
}
