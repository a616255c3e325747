//! Sectors for the pages of metadata trees: regions of their own, so that files cannot scatter them.
//!
//! ```text
//! free --take--> taken --link--> fresh --saved--> saved
//!   ^              |               \               /
//!   '--give_back---'                '--- stale ---'--saved--> free
//! ```
//! *Saved* pages belong to roots that the newest durable journal snapshot names. *Fresh* ones belong to newer roots, in
//! memory; *stale* ones (saved or fresh) to older roots than those in memory. A snapshot names the roots in memory, with
//! fresh pages as used and stale ones as free; when it is durable, that is so.
//!
//! Invariants
//! - A sector is in one state; stale is a mark on saved and fresh ones.
//! - No page of a root that a durable snapshot names is written again before a newer snapshot is durable.
//! - A region that is drained gets no new pages while others have room.
//! - While a snapshot is written (`seal`) no root changes, or it would name pages that its space does not have. The seal
//!   holds until what a durable one does not name is free, which takes steps (`settle`).
//!
//! Only regions and snapshots are journaled. After a crash what was taken or fresh is free: no durable root leads there. Its
//! owner must know that no write of its former life is on its way to these NSDs.

use std::collections::{BTreeMap, BTreeSet};

use types::{Location, NsdId, Run};

use super::bitmap::Bitmap;
use super::{NotThere, RegionId, SNAPSHOT_RUN_COUNT_MAX};
use crate::sectors::SectorSet;

/// Sectors of page regions by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageCounts {
    /// In page regions.
    pub total: u64,
    /// Free.
    pub free: u64,
    /// Being written.
    pub taken: u64,
    /// Of roots that no durable snapshot names yet.
    pub fresh: u64,
    /// Of roots that the newest durable snapshot names.
    pub saved: u64,
    /// Of fresh and saved ones: those that the roots in memory do not have any more.
    pub stale: u64,
}

#[derive(Debug)]
struct PageRegion {
    id: RegionId,
    length: u32,
    free: Bitmap,
    saved: Bitmap,
}

/// The sectors of an owner's page regions.
#[derive(Debug, Default)]
pub struct PageSpace {
    /// By first sector.
    regions: BTreeMap<Location, PageRegion>,
    taken: SectorSet,
    fresh: SectorSet,
    stale: SectorSet,
    /// Regions that are to become free, by first sector.
    drained: BTreeSet<Location>,
    /// NSDs that take no writes, as far as is known.
    avoided: BTreeSet<NsdId>,
    is_sealed: bool,
    is_settling: bool,
}

impl PageSpace {
    /// A free run of exactly `count` sectors on an NSD that `may_use` allows. `None`: there is none; another region is
    /// needed.
    pub fn take(&mut self, count: u32, may_use: &dyn Fn(NsdId) -> bool) -> Option<Run> {
        let order = [(false, false), (false, true), (true, false), (true, true)];
        let run = order.into_iter().find_map(|(is_avoided, is_drained)| {
            let regions = self.regions.iter_mut();
            let mut regions = regions.filter(|(at, _)| {
                may_use(at.nsd)
                    && self.avoided.contains(&at.nsd) == is_avoided
                    && self.drained.contains(at) == is_drained
            });
            regions.find_map(|(at, region)| {
                let (begin, _) = region.free.find(count)?;
                region.free.set(begin, count, false);
                let at = Location {
                    sector: at.sector + u64::from(begin),
                    ..*at
                };
                Some(Run { at, count })
            })
        })?;
        self.taken.insert(run);
        Some(run)
    }

    /// Regions that would become free if the pages in them moved to others, the emptiest first: those of which no more than one in `part` is
    /// used. When they are gone `keep` sectors are free. Empty: there are none, or what moves would take more than half of the room elsewhere.
    pub fn sparse(&self, part: u32, keep: u64) -> Vec<Run> {
        let mut sparse: Vec<(u32, Run)> = Vec::new();
        for (at, region) in &self.regions {
            let used = region.length - region.free.count();
            if used > 0 && used <= region.length / part {
                let (at, count) = (*at, region.length);
                sparse.push((used, Run { at, count }));
            }
        }
        sparse.sort_unstable_by_key(|(used, run)| (*used, run.at));
        let mut free = self.counts().free;
        let (mut elsewhere, mut moved) = (free, 0);
        let mut places = Vec::new();
        for (used, run) in sparse {
            let (used, length) = (u64::from(used), u64::from(run.count));
            elsewhere -= length - used;
            moved += used;
            free = free.saturating_sub(length);
            if free < keep || elsewhere < moved * 2 {
                break;
            }
            places.push(run);
        }
        places
    }

    /// There are pages, or places taken for some, in the region that begins there.
    pub fn has_pages(&self, at: Location) -> bool {
        let region = self.regions.get(&at);
        region.is_some_and(|region| region.free.count() < region.length)
    }

    /// No new pages are put on these NSDs while there is room on others, from now on until it is called again.
    pub fn avoid(&mut self, nsds: BTreeSet<NsdId>) {
        self.avoided = nsds;
    }

    /// Pages are not to be put there while there is room elsewhere.
    pub fn is_avoided(&self, nsd: NsdId) -> bool {
        self.avoided.contains(&nsd)
    }

    /// Free sectors, but for those of NSDs that are avoided.
    pub fn usable(&self) -> u64 {
        let regions = self.regions.iter();
        let regions = regions.filter(|(at, _)| !self.is_avoided(at.nsd));
        regions
            .map(|(_, region)| u64::from(region.free.count()))
            .sum()
    }

    /// No new pages are put there while there is room elsewhere, from now on until `drain` is called again.
    pub fn drain(&mut self, places: &[Run]) {
        self.drained = places.iter().map(|place| place.at).collect();
    }

    /// A page was not written after all, or its root was given up, and no write to it is on its way.
    pub fn give_back(&mut self, run: Run) {
        self.taken.remove(run);
        self.set_free(run);
    }

    /// A root in memory has `new` pages instead of `old` ones.
    ///
    /// # Panics
    /// While a snapshot is written; when `new` were not taken, or `old` belong to no root.
    pub fn link(&mut self, new: &[Run], old: &[Run]) {
        assert!(!self.is_sealed, "a root changes between snapshots");
        for run in new {
            self.taken.remove(*run);
            self.fresh.insert(*run);
        }
        for run in old {
            assert!(self.is_linked(*run), "{run:?} belongs to a root");
            self.stale.insert(*run);
        }
    }

    /// Its sectors belong to a root, in memory or durable.
    fn is_linked(&self, run: Run) -> bool {
        let is_saved = || {
            let (region, begin) = self.region_of(run)?;
            Some(region.saved.is_all_set(begin, run.count))
        };
        self.fresh.contains(run) || is_saved() == Some(true)
    }

    /// A journal snapshot that names the roots in memory begins.
    pub fn seal(&mut self) {
        assert!(!self.is_sealed, "one snapshot at a time");
        self.is_sealed = true;
    }

    /// The snapshot is over. `is_durable`: its end is in the journal, durably; what it does not name is free, once `settle`
    /// has said that it is done: until then the seal holds. Else it is as if it had never begun.
    pub fn unseal(&mut self, is_durable: bool) {
        assert!(self.is_sealed && !self.is_settling, "a snapshot has begun");
        self.is_settling = is_durable;
        self.is_sealed = is_durable;
    }

    /// A durable snapshot is over, and what it does not name is not all free yet.
    pub fn is_settling(&self) -> bool {
        self.is_settling
    }

    /// After `unseal`: frees some of what the durable snapshot does not name, at most `run_count_max` runs, so that no lock
    /// is held for long. True: all is done.
    pub fn settle(&mut self, run_count_max: usize) -> bool {
        if !self.is_settling {
            return true;
        }
        for _ in 0..run_count_max {
            let stale = self.stale.iter().next();
            if let Some(run) = stale {
                self.stale.remove(run);
                for never_saved in self.fresh.intersection(run) {
                    self.fresh.remove(never_saved);
                }
                self.set_saved(run, false);
                self.set_free(run);
                continue;
            }
            let fresh = self.fresh.iter().next();
            let Some(run) = fresh else {
                self.is_settling = false;
                self.is_sealed = false;
                return true;
            };
            self.fresh.remove(run);
            self.set_saved(run, true);
        }
        false
    }

    /// A snapshot is being written.
    pub fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    /// Sectors by state.
    pub fn counts(&self) -> PageCounts {
        let mut counts = PageCounts {
            taken: self.taken.count(),
            fresh: self.fresh.count(),
            stale: self.stale.count(),
            ..PageCounts::default()
        };
        for region in self.regions.values() {
            counts.total += u64::from(region.length);
            counts.free += u64::from(region.free.count());
            counts.saved += u64::from(region.saved.count());
        }
        counts
    }

    /// Page regions.
    pub fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Page regions that are entirely free, but for those of NSDs that are avoided.
    pub fn returnable(&self) -> Vec<RegionId> {
        let free = |(at, region): &(&Location, &PageRegion)| {
            region.free.count() == region.length && !self.is_avoided(at.nsd)
        };
        self.regions
            .iter()
            .filter(free)
            .map(|(_, r)| r.id)
            .collect()
    }

    /// What the roots in memory have: what a snapshot of now names, and what `Tree` pages must be.
    pub fn linked(&self) -> SectorSet {
        let mut all = self.fresh.clone();
        for (at, region) in &self.regions {
            region.saved.for_each_run(&mut |begin, count| {
                let at = Location {
                    sector: at.sector + u64::from(begin),
                    ..*at
                };
                all.insert(Run { at, count });
            });
        }
        self.stale.iter().for_each(|run| all.remove(run));
        all
    }

    /// The page regions.
    pub fn region_ids(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.values().map(|region| region.id)
    }

    /// All sectors of page regions.
    pub fn sectors(&self) -> SectorSet {
        let mut all = SectorSet::new();
        for (at, region) in &self.regions {
            let (at, count) = (*at, region.length);
            all.insert(Run { at, count });
        }
        all
    }

    pub(super) fn has_region(&self, id: RegionId) -> bool {
        self.regions.values().any(|region| region.id == id)
    }

    pub(super) fn add_region(&mut self, id: RegionId, place: Run) {
        let mut free = Bitmap::new(place.count);
        free.set(0, place.count, true);
        let region = PageRegion {
            id,
            length: place.count,
            free,
            saved: Bitmap::new(place.count),
        };
        let old = self.regions.insert(place.at, region);
        assert!(old.is_none(), "a region is added once");
    }

    pub(super) fn remove_region(&mut self, id: RegionId) -> Result<(), NotThere> {
        let is_it = |region: &PageRegion| region.id == id && region.free.count() == region.length;
        let found = self.regions.iter().find(|(_, region)| is_it(region));
        let at = *found.ok_or(NotThere::Region { region: id })?.0;
        self.regions.remove(&at);
        self.drained.remove(&at);
        Ok(())
    }

    /// Replay of a snapshot: these belong to its roots.
    pub(super) fn apply_used(&mut self, runs: &[Run]) -> Result<(), NotThere> {
        for run in runs {
            let region = self.region_of(*run);
            let is_free = |(region, begin): (&PageRegion, u32)| {
                run.count > 0 && region.free.is_all_set(begin, run.count)
            };
            if !region.is_some_and(is_free) {
                return Err(NotThere::NotFree { run: *run });
            }
            self.change(*run, |region, begin| {
                region.free.set(begin, run.count, false);
                region.saved.set(begin, run.count, true);
            });
        }
        Ok(())
    }

    /// For a snapshot: the regions, and runs of the roots in memory.
    pub(super) fn snapshot(&self, visit: &mut dyn FnMut(Result<RegionId, Vec<Run>>)) {
        self.regions
            .values()
            .for_each(|region| visit(Ok(region.id)));
        let runs: Vec<Run> = self
            .linked()
            .iter()
            .flat_map(|run| self.split(run))
            .collect();
        for some in runs.chunks(SNAPSHOT_RUN_COUNT_MAX) {
            visit(Err(some.to_vec()));
        }
    }

    /// Adjacent regions make one run of a set: cut where they meet.
    fn split(&self, run: Run) -> Vec<Run> {
        let mut parts = Vec::new();
        let end = run.at.sector + u64::from(run.count);
        let mut at = run.at;
        while at.sector < end {
            let (begin, region) = self.region_at(at).expect("pages lie in regions");
            let region_end = begin.sector + u64::from(region.length);
            let count = u32::try_from(end.min(region_end) - at.sector).expect("within a run");
            parts.push(Run { at, count });
            at.sector += u64::from(count);
        }
        parts
    }

    fn region_at(&self, at: Location) -> Option<(Location, &PageRegion)> {
        let (begin, region) = self.regions.range(..=at).next_back()?;
        let is_in = begin.nsd == at.nsd && at.sector < begin.sector + u64::from(region.length);
        is_in.then_some((*begin, region))
    }

    /// The region that all of the run lies in, and where in it.
    fn region_of(&self, run: Run) -> Option<(&PageRegion, u32)> {
        let (begin, region) = self.region_at(run.at)?;
        let offset = u32::try_from(run.at.sector - begin.sector).ok()?;
        let fits = offset.checked_add(run.count)? <= region.length;
        fits.then_some((region, offset))
    }

    fn change(&mut self, run: Run, change: impl FnOnce(&mut PageRegion, u32)) {
        let (begin, _) = self.region_at(run.at).expect("pages lie in regions");
        let region = self.regions.get_mut(&begin).expect("just found");
        let offset = u32::try_from(run.at.sector - begin.sector).expect("within a region");
        assert!(
            offset + run.count <= region.length,
            "pages lie in one region"
        );
        change(region, offset);
    }

    fn set_free(&mut self, run: Run) {
        for part in self.split(run) {
            self.change(part, |region, begin| {
                region.free.set(begin, part.count, true);
            });
        }
    }

    fn set_saved(&mut self, run: Run, value: bool) {
        for part in self.split(run) {
            self.change(part, |region, begin| {
                region.saved.set(begin, part.count, value);
            });
        }
    }

    /// Asserts the invariants; O(sectors of runs).
    pub(super) fn check(&self) {
        let counts = self.counts();
        let sum = counts.free + counts.taken + counts.fresh + counts.saved;
        assert_eq!(counts.total, sum);
        let mut elsewhere = SectorSet::new();
        // `insert` asserts that no sector comes twice.
        let sets = [&self.taken, &self.fresh].into_iter();
        sets.flat_map(SectorSet::iter)
            .for_each(|run| elsewhere.insert(run));
        for run in elsewhere.iter().flat_map(|run| self.split(run)) {
            let (region, begin) = self.region_of(run).expect("pages lie in regions");
            assert!(!region.free.is_any_set(begin, run.count));
            assert!(!region.saved.is_any_set(begin, run.count));
        }
        for run in self.stale.iter().flat_map(|run| self.split(run)) {
            let (region, begin) = self.region_of(run).expect("pages lie in regions");
            let fresh: u64 = self
                .fresh
                .intersection(run)
                .iter()
                .map(|r| u64::from(r.count))
                .sum();
            let saved = (begin..begin + run.count).filter(|at| region.saved.is_all_set(*at, 1));
            assert_eq!(fresh + saved.count() as u64, u64::from(run.count));
        }
        for region in self.regions.values() {
            region.free.check();
            region.saved.check();
            assert!(region.free.is_disjoint(&region.saved));
        }
    }
}
