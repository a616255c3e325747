//! When clean inodes leave memory, and which shards give: how an owner keeps the bound of its metadata.
//!
//! ```text
//! on_tick: all shards together have more than the limit -> each is looked through, in steps of some hundred inodes under one lock,
//!   until enough is free or each has had its part of the tick; the next tick begins with another shard
//! all have been looked through, too little may go, and much of it because no tree has it -> a round of checkpoints is wanted
//! ```
//!
//! Invariants
//! - A tick looks at no more than `VISIT_COUNT_MAX` inodes and one step more of each shard. A shard's part of them is its part of all inodes: one that
//!   is full of what has to stay keeps no other from giving.
//! - A directory of many names that is in use stays, also where it alone is more than the limit: the rest then has a quarter of the limit. Else
//!   all others would go at each tick, and at last it too, to be read again as a whole.
//! - What is wanted of a round is measured in bytes of memory that it would let go, not in those of the records that it would write.
//!
//! What this deliberately does not do: choose among a shard's inodes (`Shard::evict`), and locks.

use types::{Duration, Instant};

/// Inodes that are looked at under one lock of a shard.
const STEP_COUNT: usize = 256;
/// Inodes that one tick looks at: a few milliseconds of it at the most.
const VISIT_COUNT_MAX: u64 = 64 * STEP_COUNT as u64;
/// What is evicted beyond the limit, as one part in so many of it: so that not every miss brings an eviction.
const SLACK: u64 = 16;
/// A round of checkpoints is not asked for before it lets go one part in so many of the limit: few and large ones write less.
const ROUND_PART: u64 = 8;
/// After a round of checkpoints was asked for to make room, the next one is asked for so much later.
const ROUND_PAUSE: Duration = Duration::from_secs(1);
/// Beside large inodes that are in use the others have one part in so many of the limit at least.
const REST_PART: u64 = 4;
/// What is large and in use is believed to be for so long; then a turn looks again.
const HEAVY_TIME: Duration = Duration::from_secs(10);
/// After a turn that found too little that may go, the next one comes so much later: what stays is looked at in vain.
const VAIN_PAUSE: Duration = Duration::from_millis(200);

/// What a shard has in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Resident {
    /// Bytes, roughly.
    pub bytes: u64,
    /// Inodes.
    pub count: u64,
}

/// What a step found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Step {
    /// Inodes that were looked at.
    pub visited: u64,
    /// Bytes that are free by it.
    pub freed: u64,
    /// Bytes of those that had to stay for no other reason than that no tree has them as they are.
    pub unsaved: u64,
    /// Bytes of large ones that had to stay for other reasons.
    pub heavy: u64,
}

/// Looks at so many inodes of a shard at the most, until so many bytes are free.
pub type Evict<'a> = dyn FnMut(usize, usize, u64) -> Step + 'a;

/// See the module.
#[derive(Debug)]
pub struct Eviction {
    /// Bytes of metadata in memory; 0: without bound.
    limit: u64,
    /// The shard that the next tick begins with.
    first: usize,
    /// Inodes looked at in this turn, which ends when that is all there are, or enough is free; and bytes of those that stayed because
    /// no tree has them.
    visited: u64,
    unsaved: u64,
    heavy: u64,
    /// Bytes of large inodes that the last whole turn found in use, and when.
    in_use: u64,
    in_use_at: Instant,
    asked: Instant,
    not_before: Instant,
}

impl Eviction {
    /// Nothing is evicted yet.
    pub const fn new(limit: u64) -> Self {
        Self {
            limit,
            first: 0,
            visited: 0,
            unsaved: 0,
            heavy: 0,
            in_use: 0,
            in_use_at: Instant(0),
            asked: Instant(0),
            not_before: Instant(0),
        }
    }

    /// Time has passed; the shards have these in memory. True: a round of checkpoints should begin, for what is left is mostly in
    /// no tree.
    pub fn on_tick(&mut self, now: Instant, shards: &[Resident], evict: &mut Evict<'_>) -> bool {
        let all: u64 = shards.iter().map(|shard| shard.bytes).sum();
        let limit = self.limit_beside(now);
        if self.limit == 0 || all <= limit {
            (self.visited, self.unsaved, self.heavy) = (0, 0, 0);
            return false;
        }
        if now < self.not_before {
            return false;
        }
        let goal = all - (limit - limit / SLACK);
        let freed = self.evict(goal, shards, evict);
        let count: u64 = shards.iter().map(|shard| shard.count).sum();
        if freed < goal && self.visited < count {
            return false;
        }
        let unsaved = std::mem::take(&mut self.unsaved);
        let heavy = std::mem::take(&mut self.heavy);
        if std::mem::take(&mut self.visited) >= count {
            (self.in_use, self.in_use_at) = (heavy, now);
        }
        if freed >= goal {
            return false;
        }
        self.not_before = now + VAIN_PAUSE;
        let enough = ((goal - freed) / 2).max(self.limit / ROUND_PART);
        if unsaved < enough || now.since(self.asked) < ROUND_PAUSE {
            return false;
        }
        self.asked = now;
        true
    }

    /// The limit, or more where what is large and in use leaves too little for the rest.
    fn limit_beside(&self, now: Instant) -> u64 {
        let is_known = now.since(self.in_use_at) < HEAVY_TIME;
        let in_use = if is_known { self.in_use } else { 0 };
        self.limit.max(in_use + self.limit / REST_PART)
    }

    fn evict(&mut self, goal: u64, shards: &[Resident], evict: &mut Evict<'_>) -> u64 {
        let count: u64 = shards.iter().map(|shard| shard.count).sum();
        let mut freed = 0;
        let order = (0..shards.len()).map(|at| (self.first + at) % shards.len());
        for shard in order.collect::<Vec<_>>() {
            let own = shards[shard].count;
            let part = u128::from(own) * u128::from(VISIT_COUNT_MAX) / u128::from(count.max(1));
            let part = u64::try_from(part)
                .expect("no more than all")
                .saturating_add(1);
            let mut left = part.min(own);
            while left > 0 && freed < goal {
                let visits = usize::try_from(left).map_or(STEP_COUNT, |left| left.min(STEP_COUNT));
                let step = evict(shard, visits, goal - freed);
                if step.visited == 0 {
                    break;
                }
                left = left.saturating_sub(step.visited);
                freed += step.freed;
                self.visited += step.visited;
                self.unsaved += step.unsaved;
                self.heavy += step.heavy;
            }
        }
        self.first = (self.first + 1) % shards.len();
        freed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEIGHT: u64 = 1000;

    /// Shards of inodes that are clean, or in no tree yet, in the order of their clocks.
    struct Shards(Vec<Vec<bool>>);

    impl Shards {
        fn new(clean: &[(u64, u64)]) -> Self {
            let shard = |&(unsaved, clean): &(u64, u64)| {
                let unsaved = (0..unsaved).map(|_| false);
                unsaved.chain((0..clean).map(|_| true)).collect()
            };
            Self(clean.iter().map(shard).collect())
        }

        fn resident(&self) -> Vec<Resident> {
            let of = |shard: &Vec<bool>| Resident {
                bytes: shard.len() as u64 * WEIGHT,
                count: shard.len() as u64,
            };
            self.0.iter().map(of).collect()
        }

        fn size(&self) -> u64 {
            self.resident().iter().map(|shard| shard.bytes).sum()
        }

        fn evict(&mut self, shard: usize, visits: usize, bytes: u64) -> Step {
            let clock = &mut self.0[shard];
            let mut step = Step::default();
            let visits = visits.min(clock.len());
            while step.visited < visits as u64 && step.freed < bytes {
                step.visited += 1;
                if clock.remove(0) {
                    step.freed += WEIGHT;
                } else {
                    step.unsaved += WEIGHT;
                    clock.push(false);
                }
            }
            step
        }

        /// Ticks until the bound is kept, or a round is wanted.
        fn run(&mut self, limit: u64) -> (u32, bool) {
            let mut eviction = Eviction::new(limit);
            for tick in 1..1000 {
                let resident = self.resident();
                let now = Instant(u64::from(tick) * 1_000_000_000);
                let evict = &mut |shard, visits, bytes| self.evict(shard, visits, bytes);
                let is_wanted = eviction.on_tick(now, &resident, evict);
                if is_wanted || self.size() <= limit {
                    return (tick, is_wanted);
                }
            }
            panic!("the bound is never kept");
        }
    }

    /// Before, all of a tick was spent on the first shard.
    #[test]
    fn a_shard_full_of_what_has_to_stay_keeps_no_other_from_giving() {
        let mut shards = Shards::new(&[(40_000, 0), (0, 40_000)]);
        let (ticks, is_wanted) = shards.run(60_000 * WEIGHT);
        assert!(!is_wanted);
        assert!(ticks <= 4, "{ticks} ticks");
        assert_eq!(shards.0[0].len(), 40_000);
    }

    #[test]
    fn what_is_in_no_tree_asks_for_a_round() {
        let mut shards = Shards::new(&[(30_000, 100), (30_000, 100)]);
        let (ticks, is_wanted) = shards.run(40_000 * WEIGHT);
        assert!(is_wanted);
        assert!(ticks <= 5, "{ticks} ticks");
        assert!(
            shards.0.iter().all(|shard| shard.len() == 30_000),
            "what may go has gone"
        );
    }

    /// A round for every inode that is made beyond the limit would write the tree again and again.
    #[test]
    fn little_that_is_in_no_tree_asks_for_none() {
        let mut eviction = Eviction::new(10_000 * WEIGHT);
        let mut shards = Shards::new(&[(100, 9950)]);
        let resident = shards.resident();
        let evict = &mut |shard, visits, bytes| shards.evict(shard, visits, bytes);
        assert!(!eviction.on_tick(Instant(1), &resident, evict));
        assert!(shards.size() <= 10_000 * WEIGHT);
    }

    /// Before, what was used some ticks ago went at each turn, because the directory alone was more than the limit.
    #[test]
    fn a_large_directory_in_use_leaves_room_for_others() {
        const DIRECTORY: u64 = 12_000 * WEIGHT;
        let mut eviction = Eviction::new(10_000 * WEIGHT);
        // The directory, which is always in use, and 2,000 files, of which each tick uses 20: each is used once in two seconds.
        let mut clock: std::collections::VecDeque<Option<u64>> = [None].into();
        let mut used = std::collections::BTreeMap::new();
        let (mut read_count, mut largest) = (0, 0);
        let mut now = Instant(0);
        for tick in 1..3000_u64 {
            now = Instant(tick * 20_000_000);
            for file in (0..20).map(|at| (tick * 20 + at) % 2000) {
                if used.insert(file, true).is_none() {
                    read_count += 1;
                    clock.push_back(Some(file));
                }
            }
            let count = clock.len() as u64;
            let bytes = DIRECTORY + (count - 1) * WEIGHT;
            largest = largest.max(bytes);
            let evict = &mut |_, visits: usize, bytes: u64| {
                let mut step = Step::default();
                while step.visited < visits as u64 && step.freed < bytes {
                    step.visited += 1;
                    match clock.pop_front().expect("no more than there are") {
                        None => {
                            step.heavy += DIRECTORY;
                            clock.push_back(None);
                        }
                        Some(file) if used[&file] => {
                            used.insert(file, false);
                            clock.push_back(Some(file));
                        }
                        Some(file) => {
                            used.remove(&file);
                            step.freed += WEIGHT;
                        }
                    }
                }
                step
            };
            let resident = [Resident { bytes, count }];
            assert!(
                !eviction.on_tick(now, &resident, evict),
                "no round would help"
            );
        }
        assert!(read_count < 6000, "{read_count} of 60,000 uses were misses");
        assert!(largest <= DIRECTORY + 2500 * WEIGHT);
        // Is it used no more, the bound is what it was.
        assert_eq!(eviction.limit_beside(now + HEAVY_TIME), 10_000 * WEIGHT);
    }

    #[test]
    fn without_a_bound_nothing_goes() {
        let resident = [Resident {
            bytes: u64::MAX,
            count: 1,
        }];
        let evict = &mut |_, _, _| unreachable!("nobody asks");
        assert!(!Eviction::new(0).on_tick(Instant(1), &resident, evict));
    }
}
