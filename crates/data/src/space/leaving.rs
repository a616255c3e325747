//! Regions of files that are to become free: those in which the fewest sectors are in use, so that few bytes have to move.

use std::collections::BTreeSet;

use types::{Location, NsdId, Run};

use super::{Region, RegionId, Space, every_region_of};

/// Regions that are chosen at once, at the most: each extent of a file is compared with all of them.
const COUNT_MAX: usize = 64;

impl Region {
    /// Sectors that keep it from being free: in files, granted, on their way back.
    fn kept(&self) -> u64 {
        u64::from(self.place.count - self.free.count())
    }
}

impl Space {
    /// Regions that would become free if what lies in them moved to others, the emptiest first: those of which no more than `per_cent` of the
    /// sectors are not free, and in all of them `sectors_max` at most, but one in any case: regions may be large; some dozens at most. Empty: there are none, or
    /// what moves would take more than half of what could be granted elsewhere. Others than those that `may_choose` allows are not looked at.
    pub fn sparse(
        &self,
        per_cent: u64,
        sectors_max: u64,
        may_choose: &dyn Fn(RegionId) -> bool,
    ) -> Vec<RegionId> {
        let is_sparse = |(id, region): &(&RegionId, &Region)| {
            // What is granted alone comes back when it is asked for.
            may_choose(**id)
                && region.used.count() > 0
                && region.kept() * 100 <= self.region_sectors(**id) * per_cent
        };
        let regions = self.regions.iter().filter(is_sparse);
        let mut sparse: Vec<(u64, RegionId)> =
            regions.map(|(id, region)| (region.kept(), *id)).collect();
        sparse.sort_unstable();
        let (mut elsewhere, mut moved) = (self.grantable(), 0);
        let mut chosen = Vec::new();
        for (kept, id) in sparse.into_iter().take(COUNT_MAX) {
            elsewhere = elsewhere.saturating_sub(self.region_sectors(id) - kept);
            moved += kept;
            let is_too_much = moved > sectors_max && !chosen.is_empty();
            if is_too_much || elsewhere < moved * 2 {
                break;
            }
            chosen.push(id);
        }
        chosen
    }

    /// From now on, until it is called again, these are to become free: sectors there are granted when there are no others (`Ask::is_leaving`).
    pub fn leave(&mut self, regions: &[RegionId]) {
        self.leaving = regions.iter().copied().collect();
    }

    /// Some regions are to become free.
    pub fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// This one is.
    pub fn is_leaving_region(&self, region: RegionId) -> bool {
        self.leaving.contains(&region)
    }

    /// Sectors of it that files have.
    pub fn used_in(&self, region: RegionId) -> u64 {
        let region = self.regions.get(&region);
        region.map_or(0, |region| u64::from(region.used.count()))
    }

    /// Where these regions lie.
    pub fn places_of(&self, regions: &[RegionId]) -> Vec<Run> {
        let regions = regions.iter().filter_map(|id| self.regions.get(id));
        regions.map(|region| region.place).collect()
    }

    /// A free run of at least `length_min` on the NSD, in a region that is to become free or in another one.
    pub(super) fn find(&mut self, nsd: NsdId, length_min: u32, is_leaving: bool) -> Option<Run> {
        let leaving: &BTreeSet<RegionId> = &self.leaving;
        let regions = self.regions.range_mut(every_region_of(nsd));
        let mut regions = regions.filter(|(id, _)| leaving.contains(id) == is_leaving);
        regions.find_map(|(_, region)| {
            let (begin, count) = region.free.find(length_min)?;
            Some(Run {
                at: Location {
                    nsd: region.place.at.nsd,
                    sector: region.place.at.sector + u64::from(begin),
                },
                count,
            })
        })
    }
}
