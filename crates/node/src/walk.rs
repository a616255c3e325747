//! Whether the sectors that the files of an owner name are those that its space has in use.

use data::SectorSet;
use types::Run;

/// The sectors that maps name. Visit all runs, then compare.
#[derive(Debug, Default)]
pub struct Walk {
    /// Named by at least one run.
    pub mapped: SectorSet,
    /// Named by two runs.
    pub twice: u64,
    /// In use, but in no map.
    pub leaked: u64,
    /// In a map, but not in use.
    pub missing: u64,
}

impl Walk {
    /// A run of a map.
    pub fn visit(&mut self, run: Run) {
        if self.mapped.overlaps(run) {
            self.twice += u64::from(run.count);
        } else {
            self.mapped.insert(run);
        }
    }

    /// Compares with what the owner's space has in use (`Space::used`), when all runs have been visited.
    pub fn compare(&mut self, used: &SectorSet) {
        let common: u64 = (self.mapped.iter())
            .flat_map(|run| used.intersection(run))
            .map(|run| u64::from(run.count))
            .sum();
        self.leaked = used.count() - common;
        self.missing = self.mapped.count() - common;
    }

    /// What the maps name is what is in use.
    pub const fn is_clean(&self) -> bool {
        self.twice == 0 && self.leaked == 0 && self.missing == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Location, NsdId};

    fn run(sector: u64, count: u32) -> Run {
        let nsd = NsdId(1);
        let at = Location { nsd, sector };
        Run { at, count }
    }

    #[test]
    fn differences_are_counted() {
        let walked = |runs: &[Run], used: &[Run]| {
            let mut walk = Walk::default();
            runs.iter().for_each(|run| walk.visit(*run));
            let mut set = SectorSet::new();
            used.iter().for_each(|run| set.insert(*run));
            walk.compare(&set);
            (walk.is_clean(), walk.twice, walk.leaked, walk.missing)
        };
        let two = [run(8, 4), run(12, 2)];
        assert_eq!(walked(&two, &[run(8, 6)]), (true, 0, 0, 0));
        assert_eq!(walked(&two, &[run(8, 7)]), (false, 0, 1, 0));
        assert_eq!(walked(&two, &[run(9, 5)]), (false, 0, 0, 1));
        assert_eq!(
            walked(&[run(8, 4), run(10, 1)], &[run(8, 4)]),
            (false, 1, 0, 0)
        );
    }
}
