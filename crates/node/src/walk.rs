//! Whether the sectors that the files of an owner name are those that its space has in use.
//!
//! A walk is a sum: what is visited may be taken back again, in any order. So files that come into memory and leave it while others
//! are read (`look`) cost no list of who was seen.

use std::collections::BTreeMap;

use data::SectorSet;
use types::{Location, Run};

/// The sectors that maps name. Visit all runs, then compare.
#[derive(Debug, Default)]
pub struct Walk {
    /// Where the number of runs that name a sector changes, and by how much: never by nothing. Behind the last, and on each NSD
    /// before the first, it is none.
    steps: BTreeMap<Location, i64>,
    /// Named by at least one run.
    pub mapped: u64,
    /// Named by two runs: as many as are named too often.
    pub twice: u64,
    /// In use.
    pub used: u64,
    /// In use, but in no map.
    pub leaked: u64,
    /// In a map, but not in use.
    pub missing: u64,
}

impl Walk {
    /// A run of a map.
    pub fn visit(&mut self, run: Run) {
        self.add(run, 1);
    }

    /// A run that was visited, or will be, does not count.
    pub fn take_back(&mut self, run: Run) {
        self.add(run, -1);
    }

    fn add(&mut self, run: Run, count: i64) {
        if run.count == 0 {
            return;
        }
        let behind = Location {
            nsd: run.at.nsd,
            sector: run.at.sector + u64::from(run.count),
        };
        for (at, step) in [(run.at, count), (behind, -count)] {
            let sum = self.steps.entry(at).or_default();
            *sum += step;
            if *sum == 0 {
                self.steps.remove(&at);
            }
        }
    }

    /// Compares with what the owner's space has in use (`Space::used`), when all runs have been visited.
    pub fn compare(&mut self, used: &SectorSet) {
        (self.mapped, self.twice) = (0, 0);
        let mut common = 0;
        let mut count = 0;
        let behind = self.steps.keys().skip(1);
        for ((at, step), behind) in self.steps.iter().zip(behind) {
            count += step;
            assert!(count >= 0, "what was never visited is not taken back");
            if count == 0 {
                continue;
            }
            assert_eq!(at.nsd, behind.nsd, "what begins on an NSD ends there");
            let length = behind.sector - at.sector;
            self.mapped += length;
            self.twice += length * (count.unsigned_abs() - 1);
            common += used.count_within(*at, length);
        }
        self.used = used.count();
        self.leaked = self.used - common;
        self.missing = self.mapped - common;
    }

    /// What the maps name is what is in use.
    pub const fn is_clean(&self) -> bool {
        self.twice == 0 && self.leaked == 0 && self.missing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::NsdId;

    fn run(sector: u64, count: u32) -> Run {
        run_on(1, sector, count)
    }

    fn run_on(nsd: u16, sector: u64, count: u32) -> Run {
        let nsd = NsdId(nsd);
        let at = Location { nsd, sector };
        Run { at, count }
    }

    fn compared(mut walk: Walk, used: &[Run]) -> (bool, u64, u64, u64) {
        let mut set = SectorSet::new();
        used.iter().for_each(|run| set.insert(*run));
        walk.compare(&set);
        (walk.is_clean(), walk.twice, walk.leaked, walk.missing)
    }

    fn walked(runs: &[Run], used: &[Run]) -> (bool, u64, u64, u64) {
        let mut walk = Walk::default();
        runs.iter().for_each(|run| walk.visit(*run));
        compared(walk, used)
    }

    #[test]
    fn differences_are_counted() {
        let two = [run(8, 4), run(12, 2)];
        assert_eq!(walked(&two, &[run(8, 6)]), (true, 0, 0, 0));
        assert_eq!(walked(&two, &[run(8, 7)]), (false, 0, 1, 0));
        assert_eq!(walked(&two, &[run(9, 5)]), (false, 0, 0, 1));
        assert_eq!(
            walked(&[run(8, 4), run(10, 1)], &[run(8, 4)]),
            (false, 1, 0, 0)
        );
        let nsds = [run_on(1, 8, 4), run_on(2, 12, 2)];
        assert_eq!(walked(&nsds, &[run_on(1, 8, 4)]), (false, 0, 0, 2));
        assert_eq!(walked(&nsds, &nsds), (true, 0, 0, 0));
        assert_eq!(walked(&[], &[run(3, 3)]), (false, 0, 3, 0));
    }

    #[test]
    fn what_is_taken_back_does_not_count_whenever_that_is() {
        let mut walk = Walk::default();
        walk.take_back(run(10, 1));
        walk.visit(run(8, 4));
        walk.visit(run(10, 1));
        walk.visit(run(20, 4));
        walk.take_back(run(20, 4));
        assert_eq!(walk.steps.len(), 2, "what is nothing takes no memory");
        assert_eq!(compared(walk, &[run(8, 4)]), (true, 0, 0, 0));
    }
}
