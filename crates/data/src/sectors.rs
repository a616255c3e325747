//! A set of sectors of any NSDs, as runs.
//!
//! Invariants: runs are not empty, disjoint and not adjacent; `count` is their sum.

use std::collections::BTreeMap;

use types::{Location, NsdId, Run};

/// A set of sectors. Runs are merged when adjacent; a run may be longer than a `types::Run` can say,
/// and is then given out in several.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SectorSet {
    /// First sector -> sectors.
    runs: BTreeMap<Location, u64>,
    count: u64,
}

fn end(at: Location, count: u64) -> Location {
    Location {
        nsd: at.nsd,
        sector: at.sector + count,
    }
}

impl SectorSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self {
            runs: BTreeMap::new(),
            count: 0,
        }
    }

    /// Sectors in it.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Holds nothing.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of separate runs.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// The runs in order.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.iter().flat_map(|(at, count)| split(*at, *count))
    }

    /// The runs of one NSD in order.
    pub fn of_nsd(&self, nsd: NsdId) -> impl Iterator<Item = Run> + '_ {
        let first = Location { nsd, sector: 0 };
        let last = Location {
            nsd,
            sector: u64::MAX,
        };
        let range = self.runs.range(first..=last);
        range.flat_map(|(at, count)| split(*at, *count))
    }

    /// The run that begins at or before `at`, on the same NSD.
    fn before(&self, at: Location) -> Option<(Location, u64)> {
        let (begin, count) = self.runs.range(..=at).next_back()?;
        (begin.nsd == at.nsd).then_some((*begin, *count))
    }

    /// Holds every sector of `run`.
    pub fn contains(&self, run: Run) -> bool {
        run.count == 0
            || self.before(run.at).is_some_and(|(begin, count)| {
                run.at.sector + u64::from(run.count) <= begin.sector + count
            })
    }

    /// Holds a sector of `run`.
    pub fn overlaps(&self, run: Run) -> bool {
        if run.count == 0 {
            return false;
        }
        let last = end(run.at, u64::from(run.count) - 1);
        self.before(last)
            .is_some_and(|(begin, count)| begin.sector + count > run.at.sector)
    }

    /// The sectors of `run` that are in the set, as runs in order.
    pub fn intersection(&self, run: Run) -> Vec<Run> {
        let parts = self.parts(run.at, u64::from(run.count));
        parts.flat_map(|(at, count)| split(at, count)).collect()
    }

    /// How many of the `count` sectors from `at` on are in the set.
    pub fn count_within(&self, at: Location, count: u64) -> u64 {
        self.parts(at, count).map(|(_, count)| count).sum()
    }

    fn parts(&self, at: Location, count: u64) -> impl Iterator<Item = (Location, u64)> + '_ {
        let behind = at.sector + count;
        let first = self.before(at).map_or(at, |(begin, _)| begin);
        let runs = self.runs.range(first..end(at, count));
        runs.filter_map(move |(begin, count)| {
            let from = begin.sector.max(at.sector);
            let to = (begin.sector + count).min(behind);
            let nsd = at.nsd;
            let begin = Location { nsd, sector: from };
            (from < to).then(|| (begin, to - from))
        })
    }

    /// Adds sectors that are not in the set (else this is a bug of the caller).
    pub fn insert(&mut self, run: Run) {
        if run.count == 0 {
            return;
        }
        assert!(!self.overlaps(run), "{run:?} is in the set already");
        let mut at = run.at;
        let mut count = u64::from(run.count);
        self.count += count;
        if let Some((begin, before)) = self.before(run.at)
            && end(begin, before) == run.at
        {
            at = begin;
            count += before;
        }
        let behind = end(run.at, u64::from(run.count));
        if let Some(more) = self.runs.remove(&behind) {
            count += more;
        }
        self.runs.insert(at, count);
    }

    /// Takes out sectors that are in the set (else this is a bug of the caller).
    pub fn remove(&mut self, run: Run) {
        if run.count == 0 {
            return;
        }
        let (begin, count) = self.before(run.at).expect("the sectors are in the set");
        let behind = end(run.at, u64::from(run.count));
        assert!(behind <= end(begin, count), "{run:?} is not in the set");
        self.runs.remove(&begin);
        if begin < run.at {
            self.runs.insert(begin, run.at.sector - begin.sector);
        }
        let rest = begin.sector + count - behind.sector;
        if rest > 0 {
            self.runs.insert(behind, rest);
        }
        self.count -= u64::from(run.count);
    }

    /// Asserts the invariants; O(runs).
    pub fn check(&self) {
        let mut sum = 0;
        let mut last: Option<Location> = None;
        for (at, count) in &self.runs {
            assert!(*count > 0);
            assert!(last.is_none_or(|last| last < *at));
            last = Some(end(*at, *count));
            sum += count;
        }
        assert_eq!(sum, self.count);
    }
}

fn split(at: Location, count: u64) -> impl Iterator<Item = Run> {
    let step = u64::from(u32::MAX);
    (0..count.div_ceil(step)).map(move |index| Run {
        at: end(at, index * step),
        count: u32::try_from((count - index * step).min(step)).expect("at most u32::MAX"),
    })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_a_set_of_numbers() {
        let mut seed = 7u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut set = SectorSet::new();
        let mut twin: BTreeSet<(u16, u64)> = BTreeSet::new();
        for _ in 0..30_000 {
            let nsd = random(2) as u16;
            let begin = random(40);
            let count = random(6);
            let at = Location {
                nsd: NsdId(nsd),
                sector: begin,
            };
            let run = Run {
                at,
                count: count as u32,
            };
            let sectors: Vec<_> = (begin..begin + count).map(|s| (nsd, s)).collect();
            let all = sectors.iter().all(|s| twin.contains(s));
            let any = sectors.iter().any(|s| twin.contains(s));
            assert_eq!(set.contains(run), all);
            assert_eq!(set.overlaps(run), any);
            let common: Vec<(u16, u64)> = (set.intersection(run).iter())
                .flat_map(|r| (0..u64::from(r.count)).map(move |i| (r.at.nsd.0, r.at.sector + i)))
                .collect();
            let expected: Vec<_> = sectors.iter().filter(|s| twin.contains(s)).collect();
            assert_eq!(common.iter().collect::<Vec<_>>(), expected);
            if !any {
                set.insert(run);
                twin.extend(sectors);
            } else if all {
                set.remove(run);
                for sector in sectors {
                    twin.remove(&sector);
                }
            }
            set.check();
            assert_eq!(set.count(), twin.len() as u64);
        }
        let listed: Vec<(u16, u64)> = set
            .iter()
            .flat_map(|r| (0..u64::from(r.count)).map(move |i| (r.at.nsd.0, r.at.sector + i)))
            .collect();
        assert_eq!(listed, twin.into_iter().collect::<Vec<_>>());
    }
}
