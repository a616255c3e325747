//! The sectors that an owner node has in hand: regions, grants to nodes, used, freed, quarantined.
//!
//! Invariants
//! - A sector of a held region is in exactly one state: free, granted to one life, used (a file's),
//!   pending (freed, the record not yet durable) or quarantined (granted to a life declared dead).
//! - A sector becomes free again only when the record that freed it is durable, or nothing was ever
//!   submitted to it, or the quarantine of its life has ended.
//! - Only the life that holds a sector can have it committed; a life in quarantine cannot.
//! - Every change is a mutation, returned for the journal; `apply` of the same mutations in the same
//!   order rebuilds the same state. At replay what was freed is free: the record was durable.
//!
//! Order of things for the caller: `grant`, journal, *wait until durable*, hand out. `free`, journal,
//! `logged(lsn)` before the slice is unlocked, later `on_durable`.
//!
//! What this deliberately does not do: choose NSDs for files (`stripe`), speak with other owners (who
//! holds which region is `RegionTable`, in shard 0).

mod bitmap;
mod leaving;
mod mutation;
mod pages;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::id::NodeLife;
use types::{Grant, GrantId, Location, Lsn, NsdId, Run, SECTOR_SIZE};

use crate::sectors::SectorSet;
use bitmap::Bitmap;
pub use mutation::{RegionId, SpaceMutation, TableMutation};
pub use pages::{PageCounts, PageSpace};
pub use table::{NotHeld, RegionTable};

/// Most runs that one `grant` gives.
pub const GRANT_COUNT_MAX: usize = 32;
/// Runs in one snapshot mutation.
const SNAPSHOT_RUN_COUNT_MAX: usize = 4096;
/// A run this long is worth taking before shorter ones: a default block and its checksum sector.
const GOOD_RUN: u32 = 257;

/// How an NSD is cut into regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// The NSD.
    pub nsd: NsdId,
    /// First sector that may be granted.
    pub data_begin: u64,
    /// Sectors of the NSD.
    pub sector_count: u64,
    /// Sectors of a region; the last one may be shorter.
    pub region_sectors: u32,
}

impl Geometry {
    /// Sectors of a region on an NSD of this size, where the label does not say: 64 MiB to 1 GiB, so
    /// that there are at most some thousand; smaller on NSDs that would have fewer than 64.
    pub fn default_region_sectors(sector_count: u64) -> u32 {
        let small = (4 << 20) / SECTOR_SIZE;
        let large = (1 << 30) / SECTOR_SIZE;
        let wanted = if sector_count >= 1024 * ((64 << 20) / SECTOR_SIZE) {
            sector_count / 1024
        } else {
            (sector_count / 64).min((64 << 20) / SECTOR_SIZE)
        };
        let sectors = wanted.clamp(small, large).next_power_of_two().min(large);
        u32::try_from(sectors).expect("at most 1 GiB in sectors")
    }

    /// Regions of the NSD.
    pub fn region_count(&self) -> u32 {
        let sectors = self.sector_count.saturating_sub(self.data_begin);
        u32::try_from(sectors.div_ceil(u64::from(self.region_sectors))).unwrap_or(u32::MAX)
    }

    /// Place and length of region `index`, if there is one.
    pub fn region(&self, index: u32) -> Option<Run> {
        let begin = self.data_begin + u64::from(index) * u64::from(self.region_sectors);
        let left = self
            .sector_count
            .checked_sub(begin)
            .filter(|left| *left > 0)?;
        Some(Run {
            at: Location {
                nsd: self.nsd,
                sector: begin,
            },
            count: u32::try_from(left).map_or(self.region_sectors, |l| l.min(self.region_sectors)),
        })
    }

    /// The region that `sector` lies in.
    fn index_of(&self, sector: u64) -> Option<u32> {
        let offset = sector.checked_sub(self.data_begin)?;
        (sector < self.sector_count)
            .then(|| u32::try_from(offset / u64::from(self.region_sectors)).ok())?
    }
}

/// Limits of an owner's space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Levels {
    /// Free sectors that are not granted: for unlink, truncate, checkpoint and tree pages.
    pub reserve: u64,
    /// Ask for another region of an NSD when fewer free sectors are left on it.
    pub low: u64,
}

/// All regions that an NSD could have.
fn every_region_of(nsd: NsdId) -> std::ops::RangeInclusive<RegionId> {
    let at = |index| RegionId { nsd, index };
    at(0)..=at(u32::MAX)
}

/// No sector of that NSD can be granted: it has none that is free, or nothing but the reserve is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no free sectors there, or none but the reserve")]
pub struct NoSpace;

/// A sector is not in the state that the operation needs; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotThere {
    /// Not granted to that life (any more): answer `Stale`.
    #[error("sectors of {run:?} are not granted to that life")]
    NotGranted {
        /// The run.
        run: Run,
    },
    /// Not a file's: freed twice, which is a bug or a damaged record.
    #[error("sectors of {run:?} are not in use")]
    NotUsed {
        /// The run.
        run: Run,
    },
    /// Not free.
    #[error("sectors of {run:?} are not free")]
    NotFree {
        /// The run.
        run: Run,
    },
    /// Not held by this owner, or held already, or not empty.
    #[error("region {region:?} cannot be taken or returned")]
    Region {
        /// The region.
        region: RegionId,
    },
}

/// What a node asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Who.
    pub life: NodeLife,
    /// On this NSD.
    pub nsd: NsdId,
    /// Sectors. Fewer may be granted.
    pub sectors: u64,
    /// For writes into promised ranges: of what is held back for these, too.
    pub is_promised: bool,
    /// Of regions that are to become free (`Space::leave`), else of the others.
    pub is_leaving: bool,
}

/// Sectors by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// In the regions held.
    pub total: u64,
    /// Free, reserve included.
    pub free: u64,
    /// Granted and not consumed.
    pub granted: u64,
    /// In files.
    pub used: u64,
    /// Freed, not yet durable.
    pub pending: u64,
    /// Of dead lives.
    pub quarantined: u64,
}

/// Lives that hold sectors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Lives {
    /// With grants, and how many sectors.
    pub granted: Vec<(NodeLife, u64)>,
    /// In quarantine, and how many sectors.
    pub quarantined: Vec<(NodeLife, u64)>,
}

#[derive(Debug)]
struct Region {
    place: Run,
    free: Bitmap,
    used: Bitmap,
}

/// The space of one owner node.
#[derive(Debug)]
pub struct Space {
    geometry: BTreeMap<NsdId, Geometry>,
    levels: Levels,
    /// Free sectors held back for promised ranges. What is promised lies with the files: the owner says how much it is.
    held_back: u64,
    /// Tests: there is nothing but what is held back, whatever there is.
    is_refusing: bool,
    regions: BTreeMap<RegionId, Region>,
    /// Those that are to become free.
    leaving: BTreeSet<RegionId>,
    granted: BTreeMap<NodeLife, SectorSet>,
    quarantined: BTreeMap<NodeLife, SectorSet>,
    /// Freed by operations that are not yet in the journal.
    unlogged: Vec<Run>,
    /// Freed, by the LSN of the record.
    pending: VecDeque<(Lsn, Vec<Run>)>,
    pending_count: u64,
    /// Replay: parts of what an operation frees whose own record has not come.
    freeing: Vec<Run>,
    /// Sectors of regions that are for pages of metadata trees alone, and not in `regions`.
    pages: PageSpace,
}

#[derive(Clone, Copy)]
enum Mark {
    Free,
    Used,
}

impl Space {
    /// An owner that holds nothing yet.
    pub fn new(geometry: &[Geometry], levels: Levels) -> Self {
        Self {
            geometry: geometry.iter().map(|g| (g.nsd, *g)).collect(),
            levels,
            held_back: 0,
            is_refusing: false,
            regions: BTreeMap::new(),
            leaving: BTreeSet::new(),
            granted: BTreeMap::new(),
            quarantined: BTreeMap::new(),
            unlogged: Vec::new(),
            pending: VecDeque::new(),
            pending_count: 0,
            freeing: Vec::new(),
            pages: PageSpace::default(),
        }
    }

    /// Sectors for pages of metadata trees.
    pub fn pages(&self) -> &PageSpace {
        &self.pages
    }

    /// The same, to take and link pages.
    pub fn pages_mut(&mut self) -> &mut PageSpace {
        &mut self.pages
    }

    /// An entirely free region is for pages of metadata trees from now on.
    pub fn use_region_for_pages(
        &mut self,
        region: RegionId,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.execute(SpaceMutation::RegionForPages { region }, out)
    }

    /// A page region without pages is for files again.
    pub fn use_region_for_data(
        &mut self,
        region: RegionId,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.execute(SpaceMutation::RegionForData { region }, out)
    }

    /// Grants free sectors of the NSD asked for, as many as it has: long runs first. `random` gives 128
    /// random bits per grant. The grants are handed out only after the mutations are durable.
    pub fn grant(
        &mut self,
        ask: Ask,
        random: &mut dyn FnMut() -> u128,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<Vec<Grant>, NoSpace> {
        let there = match ask.is_promised {
            true => self.grantable_for_promises(),
            false => self.grantable(),
        };
        let mut left = ask.sectors.min(there);
        if left == 0 || self.quarantined.contains_key(&ask.life) {
            return Err(NoSpace);
        }
        let mut grants = Vec::new();
        let good = u32::try_from(left).unwrap_or(u32::MAX).min(GOOD_RUN);
        for length_min in [good, 1] {
            while left > 0 && grants.len() < GRANT_COUNT_MAX {
                let wanted = u32::try_from(left).unwrap_or(u32::MAX);
                let found = self.find(ask.nsd, length_min, ask.is_leaving);
                let Some(run) = found else { break };
                let run = Run {
                    count: run.count.min(wanted),
                    ..run
                };
                let grant = Grant {
                    id: GrantId(random()),
                    run,
                    mac: 0,
                };
                let mutation = SpaceMutation::Granted {
                    life: ask.life,
                    grant,
                };
                self.apply(&mutation).expect("the run was found free");
                out.push(mutation);
                grants.push(grant);
                left -= u64::from(run.count);
            }
        }
        if grants.is_empty() {
            return Err(NoSpace);
        }
        Ok(grants)
    }

    /// A Commit of `life` maps these runs to files: all of them, or nothing changes.
    pub fn consume(
        &mut self,
        life: NodeLife,
        runs: &[Run],
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        for (index, run) in runs.iter().enumerate() {
            let is_repeated = runs[..index].iter().any(|other| other.overlaps(run));
            if !self.holds(life, *run) || is_repeated {
                return Err(NotThere::NotGranted { run: *run });
            }
        }
        for run in runs {
            self.execute(SpaceMutation::Consumed { life, run: *run }, out)?;
        }
        Ok(())
    }

    /// The run is granted to `life` and not consumed.
    pub fn holds(&self, life: NodeLife, run: Run) -> bool {
        self.granted.get(&life).is_some_and(|set| set.contains(run))
    }

    /// A file gave the run up. It can be granted again after `logged` and `on_durable`.
    pub fn free(&mut self, run: Run, out: &mut Vec<SpaceMutation>) -> Result<(), NotThere> {
        self.check_marked(run, Mark::Used)?;
        self.mark(run, Mark::Used, false);
        self.unlogged.push(run);
        self.pending_count += u64::from(run.count);
        out.push(SpaceMutation::Freed { run });
        Ok(())
    }

    /// What was freed since the last call is in the record `lsn`. Called when the record is appended,
    /// before the slice is unlocked.
    pub fn logged(&mut self, lsn: Lsn) {
        if self.unlogged.is_empty() {
            return;
        }
        assert!(self.pending.back().is_none_or(|(last, _)| *last < lsn));
        self.pending
            .push_back((lsn, std::mem::take(&mut self.unlogged)));
    }

    /// Records up to `lsn` are durable on all in-sync replicas of the journal.
    pub fn on_durable(&mut self, lsn: Lsn) {
        while let Some((_, runs)) = self.pending.pop_front_if(|(freed, _)| *freed <= lsn) {
            for run in runs {
                self.mark(run, Mark::Free, true);
                self.pending_count -= u64::from(run.count);
            }
        }
    }

    /// A node gives sectors back: never submitted, or submitted and known to have ended.
    pub fn give_back(
        &mut self,
        life: NodeLife,
        run: Run,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.execute(SpaceMutation::GivenBack { life, run }, out)
    }

    /// Gives back what of `run` the life holds, and passes over the rest: a repeat finds nothing to do.
    /// Returns the sectors that became free.
    pub fn give_back_held(
        &mut self,
        life: NodeLife,
        run: Run,
        out: &mut Vec<SpaceMutation>,
    ) -> u64 {
        let held = self.granted.get(&life);
        let parts = held.map_or_else(Vec::new, |set| set.intersection(run));
        for part in &parts {
            self.execute(SpaceMutation::GivenBack { life, run: *part }, out)
                .expect("the life holds the part");
        }
        parts.iter().map(|part| u64::from(part.count)).sum()
    }

    /// The parts of `run` that are granted to `life`.
    pub fn held_parts(&self, life: NodeLife, run: Run) -> Vec<Run> {
        let held = self.granted.get(&life);
        held.map_or_else(Vec::new, |set| set.intersection(run))
    }

    /// What is granted to `life`, in order.
    pub fn granted_to(&self, life: NodeLife) -> impl Iterator<Item = Run> + '_ {
        self.granted
            .get(&life)
            .into_iter()
            .flat_map(SectorSet::iter)
    }

    /// Sectors that can be granted now: free ones above the reserve and what is held back for promises.
    pub fn grantable(&self) -> u64 {
        self.grantable_for_promises().saturating_sub(self.held_back)
    }

    /// Sectors that can be granted now to writes into promised ranges: free ones above the reserve.
    pub fn grantable_for_promises(&self) -> u64 {
        let there = self.free_count().saturating_sub(self.levels.reserve);
        match self.is_refusing {
            true => there.min(self.held_back),
            false => there,
        }
    }

    /// For tests of what a refusal does: until it is said otherwise there is nothing but what is held back for promises.
    pub fn refuse(&mut self, is_refusing: bool) {
        self.is_refusing = is_refusing;
    }

    /// Sectors that can be promised now: what is freed and not yet durable will be there.
    pub fn promisable(&self) -> u64 {
        if self.is_refusing {
            return 0;
        }
        (self.free_count() + self.pending_count)
            .saturating_sub(self.levels.reserve)
            .saturating_sub(self.held_back)
    }

    /// Sectors of all NSDs for files and trees, whoever has them.
    pub fn capacity(&self) -> u64 {
        let nsds = self.geometry.keys();
        nsds.map(|nsd| self.sector_count_of(*nsd)).sum()
    }

    /// Free sectors held back for promised ranges.
    pub fn held_back(&self) -> u64 {
        self.held_back
    }

    /// So many are held back from now on: after replay, and when what is promised has changed.
    pub fn hold_back(&mut self, sectors: u64) {
        self.held_back = sectors;
    }

    /// A free region may go: what is promised is there without it.
    pub fn can_spare(&self, region: RegionId) -> bool {
        // Promised writes are granted what is above the reserve.
        let reserve = if self.held_back > 0 {
            self.levels.reserve
        } else {
            0
        };
        self.free_count() >= self.held_back + reserve + self.region_sectors(region)
    }

    /// A life was declared dead: what it holds is not reused until `release_quarantine`.
    pub fn node_lost(&mut self, life: NodeLife, out: &mut Vec<SpaceMutation>) {
        if self.granted.contains_key(&life) {
            self.execute(SpaceMutation::NodeLost { life }, out)
                .expect("the life holds sectors");
        }
    }

    /// It is certain that no write of the life can be in flight (DESIGN.md section 4 lists the proofs).
    /// Returns the sectors that became free.
    pub fn release_quarantine(&mut self, life: NodeLife, out: &mut Vec<SpaceMutation>) -> u64 {
        let count = self.quarantined.get(&life).map_or(0, SectorSet::count);
        if self.quarantined.contains_key(&life) {
            self.execute(SpaceMutation::QuarantineReleased { life }, out)
                .expect("the life is in quarantine");
        }
        count
    }

    /// Lives that hold grants, and lives in quarantine, with their sectors.
    pub fn lives(&self) -> Lives {
        let list = |map: &BTreeMap<NodeLife, SectorSet>| {
            map.iter().map(|(life, set)| (*life, set.count())).collect()
        };
        Lives {
            granted: list(&self.granted),
            quarantined: list(&self.quarantined),
        }
    }

    /// Shard 0 says that this owner holds the region: all of it is free.
    pub fn take_region(
        &mut self,
        region: RegionId,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.execute(SpaceMutation::RegionTaken { region }, out)
    }

    /// Gives an entirely free region up. When the record is durable, shard 0 is told.
    pub fn return_region(
        &mut self,
        region: RegionId,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.execute(SpaceMutation::RegionReturned { region }, out)
    }

    /// Regions that are entirely free.
    pub fn returnable(&self) -> Vec<RegionId> {
        let free = |region: &Region| region.free.count() == region.place.count;
        let regions = self.regions.iter().filter(|(_, region)| free(region));
        regions.map(|(id, _)| *id).collect()
    }

    /// What shard 0 says this owner holds and it does not know: an answer was lost. To be taken.
    pub fn unknown_regions(&self, held: &[RegionId]) -> Vec<RegionId> {
        let regions = held.iter().copied();
        regions
            .filter(|id| !self.regions.contains_key(id) && !self.pages.has_region(*id))
            .collect()
    }

    /// Sectors of an NSD that files and pages may use.
    pub fn sector_count_of(&self, nsd: NsdId) -> u64 {
        let geometry = self.geometry.get(&nsd);
        geometry.map_or(0, |g| g.sector_count.saturating_sub(g.data_begin))
    }

    /// Sectors of a region; 0 where there is none.
    pub fn region_sectors(&self, id: RegionId) -> u64 {
        let geometry = self.geometry.get(&id.nsd);
        let place = geometry.and_then(|geometry| geometry.region(id.index));
        place.map_or(0, |place| u64::from(place.count))
    }

    /// Another region of the NSD should be taken.
    pub fn wants_region(&self, nsd: NsdId) -> bool {
        self.counts_of(nsd).free < self.levels.low
    }

    fn free_count(&self) -> u64 {
        let regions = self.regions.values();
        regions.map(|region| u64::from(region.free.count())).sum()
    }

    /// Sectors by state, of all NSDs.
    pub fn counts(&self) -> Counts {
        let sum = |map: &BTreeMap<NodeLife, SectorSet>| map.values().map(SectorSet::count).sum();
        let mut counts = Counts {
            granted: sum(&self.granted),
            quarantined: sum(&self.quarantined),
            pending: self.pending_count,
            ..Counts::default()
        };
        for region in self.regions.values() {
            counts.total += u64::from(region.place.count);
            counts.free += u64::from(region.free.count());
            counts.used += u64::from(region.used.count());
        }
        counts
    }

    /// Sectors by state, of one NSD. O(runs).
    pub fn counts_by_nsd(&self, nsd: NsdId) -> Counts {
        let of_nsd = |map: &BTreeMap<NodeLife, SectorSet>| -> u64 {
            let runs = map.values().flat_map(|set| set.of_nsd(nsd));
            runs.map(|run| u64::from(run.count)).sum()
        };
        let pending = self.pending.iter().flat_map(|(_, runs)| runs);
        let pending = pending.chain(&self.unlogged);
        let pending = pending.filter(|run| run.at.nsd == nsd);
        Counts {
            granted: of_nsd(&self.granted),
            quarantined: of_nsd(&self.quarantined),
            pending: pending.map(|run| u64::from(run.count)).sum(),
            ..self.counts_of(nsd)
        }
    }

    /// Regions of an NSD that are held, and how many of them are entirely free.
    pub fn regions_of(&self, nsd: NsdId) -> (usize, usize) {
        let regions = self.regions.iter().filter(|(id, _)| id.nsd == nsd);
        regions.fold((0, 0), |(all, free), (_, region)| {
            let is_free = region.free.count() == region.place.count;
            (all + 1, free + usize::from(is_free))
        })
    }

    /// All sectors of files: what the maps of this owner's files must name, no more and no less.
    pub fn used(&self) -> SectorSet {
        let mut all = SectorSet::new();
        for region in self.regions.values() {
            region.used.for_each_run(&mut |begin, count| {
                let at = Location {
                    nsd: region.place.at.nsd,
                    sector: region.place.at.sector + u64::from(begin),
                };
                all.insert(Run { at, count });
            });
        }
        all
    }

    /// What lives declared dead hold still.
    pub fn quarantined(&self) -> SectorSet {
        let mut all = SectorSet::new();
        let runs = self.quarantined.values().flat_map(SectorSet::iter);
        runs.for_each(|run| all.insert(run));
        all
    }

    /// What a life that was declared dead holds still, in order.
    pub fn quarantined_of(&self, life: NodeLife) -> impl Iterator<Item = Run> + '_ {
        let held = self.quarantined.get(&life).into_iter();
        held.flat_map(SectorSet::iter)
    }

    /// How the NSDs are cut into regions.
    pub fn geometries(&self) -> Vec<Geometry> {
        self.geometry.values().copied().collect()
    }

    /// Where a region lies, if it exists.
    pub fn region_place(&self, id: RegionId) -> Option<Run> {
        self.geometry.get(&id.nsd)?.region(id.index)
    }

    /// Regions that are held, for files or for pages.
    pub fn held_regions(&self) -> impl Iterator<Item = RegionId> + '_ {
        self.regions.keys().copied().chain(self.pages.region_ids())
    }

    /// All sectors of regions that are held for files.
    pub fn data_sectors(&self) -> SectorSet {
        let mut all = SectorSet::new();
        let regions = self.regions.values();
        regions.for_each(|region| all.insert(region.place));
        all
    }

    /// Total, free and used sectors of one NSD (the other states are not counted here).
    pub fn counts_of(&self, nsd: NsdId) -> Counts {
        let mut counts = Counts::default();
        for region in self
            .regions
            .range(every_region_of(nsd))
            .map(|(_, region)| region)
        {
            counts.total += u64::from(region.place.count);
            counts.free += u64::from(region.free.count());
            counts.used += u64::from(region.used.count());
        }
        counts
    }

    fn execute(
        &mut self,
        mutation: SpaceMutation,
        out: &mut Vec<SpaceMutation>,
    ) -> Result<(), NotThere> {
        self.apply(&mutation)?;
        out.push(mutation);
        Ok(())
    }

    /// Applies a mutation read from the journal. Nothing is changed when it does not fit.
    pub fn apply(&mut self, mutation: &SpaceMutation) -> Result<(), NotThere> {
        match mutation {
            SpaceMutation::RegionTaken { region } => self.apply_taken(*region)?,
            SpaceMutation::RegionReturned { region } => {
                let held = self.regions.get(region);
                held.filter(|r| r.free.count() == r.place.count)
                    .ok_or(NotThere::Region { region: *region })?;
                self.regions.remove(region);
                self.leaving.remove(region);
            }
            SpaceMutation::Granted { life, grant } => {
                self.check_marked(grant.run, Mark::Free)?;
                self.mark(grant.run, Mark::Free, false);
                self.granted.entry(*life).or_default().insert(grant.run);
            }
            SpaceMutation::Consumed { life, run } => {
                self.take_from(*life, *run)?;
                self.mark(*run, Mark::Used, true);
            }
            SpaceMutation::Freed { run } => self.apply_freed(*run)?,
            SpaceMutation::Freeing { runs } => self.freeing.extend(runs),
            SpaceMutation::FreeingEnds {} => {
                for run in std::mem::take(&mut self.freeing) {
                    self.apply_freed(run)?;
                }
            }
            SpaceMutation::GivenBack { life, run } => {
                self.take_from(*life, *run)?;
                self.mark(*run, Mark::Free, true);
            }
            SpaceMutation::NodeLost { life } => {
                let lost = self.granted.remove(life).unwrap_or_default();
                let set = self.quarantined.entry(*life).or_default();
                lost.iter().for_each(|run| set.insert(run));
            }
            SpaceMutation::QuarantineReleased { life } => {
                let released = self.quarantined.remove(life).unwrap_or_default();
                for run in released.iter() {
                    self.mark(run, Mark::Free, true);
                }
            }
            SpaceMutation::RegionForPages { region } => {
                let held = self.regions.get(region);
                let held = held.filter(|r| r.free.count() == r.place.count);
                let place = held.ok_or(NotThere::Region { region: *region })?.place;
                self.regions.remove(region);
                self.leaving.remove(region);
                self.pages.add_region(*region, place);
            }
            SpaceMutation::RegionForData { region } => {
                self.pages.remove_region(*region)?;
                self.apply_taken(*region).expect("it was held for pages");
            }
            SpaceMutation::PagesUsed { runs } => self.pages.apply_used(runs)?,
            SpaceMutation::Used { runs } => {
                for run in runs {
                    self.check_marked(*run, Mark::Free)?;
                }
                for run in runs {
                    self.mark(*run, Mark::Free, false);
                    self.mark(*run, Mark::Used, true);
                }
            }
        }
        Ok(())
    }

    fn apply_freed(&mut self, run: Run) -> Result<(), NotThere> {
        self.check_marked(run, Mark::Used)?;
        self.mark(run, Mark::Used, false);
        self.mark(run, Mark::Free, true);
        Ok(())
    }

    /// The journal has been replayed: an operation of which only some parts are in it was never executed.
    pub fn end_replay(&mut self) {
        self.freeing = Vec::new();
    }

    fn apply_taken(&mut self, id: RegionId) -> Result<(), NotThere> {
        let fault = NotThere::Region { region: id };
        let geometry = self.geometry.get(&id.nsd).ok_or(fault)?;
        let place = geometry.region(id.index).ok_or(fault)?;
        if self.regions.contains_key(&id) || self.pages.has_region(id) {
            return Err(fault);
        }
        let mut free = Bitmap::new(place.count);
        free.set(0, place.count, true);
        let used = Bitmap::new(place.count);
        self.regions.insert(id, Region { place, free, used });
        Ok(())
    }

    fn take_from(&mut self, life: NodeLife, run: Run) -> Result<(), NotThere> {
        if !self.holds(life, run) || run.count == 0 {
            return Err(NotThere::NotGranted { run });
        }
        let set = self.granted.get_mut(&life).expect("the life holds the run");
        set.remove(run);
        if set.is_empty() {
            self.granted.remove(&life);
        }
        Ok(())
    }

    /// Every sector of the run is in a held region and marked so.
    fn check_marked(&self, run: Run, mark: Mark) -> Result<(), NotThere> {
        let fault = match mark {
            Mark::Free => NotThere::NotFree { run },
            Mark::Used => NotThere::NotUsed { run },
        };
        let mut ok = run.count > 0;
        self.pieces(run, &mut |id, begin, count| {
            ok &= self.regions.get(&id).is_some_and(|region| {
                let map = match mark {
                    Mark::Free => &region.free,
                    Mark::Used => &region.used,
                };
                map.is_all_set(begin, count)
            });
        })
        .ok_or(fault)?;
        if ok { Ok(()) } else { Err(fault) }
    }

    /// Marks sectors of held regions.
    fn mark(&mut self, run: Run, mark: Mark, value: bool) {
        let mut list = Vec::new();
        self.pieces(run, &mut |id, begin, count| list.push((id, begin, count)))
            .expect("the run lies in held regions");
        for (id, begin, count) in list {
            let region = self.regions.get_mut(&id).expect("the region is held");
            match mark {
                Mark::Free => region.free.set(begin, count, value),
                Mark::Used => region.used.set(begin, count, value),
            }
        }
    }

    /// Cuts a run at region boundaries: (region, first sector within it, sectors). `None` when a part
    /// lies in no region. A node may join grants of adjacent regions, so runs do cross them.
    fn pieces(&self, run: Run, visit: &mut dyn FnMut(RegionId, u32, u32)) -> Option<()> {
        let geometry = self.geometry.get(&run.at.nsd)?;
        let end = run.at.sector.checked_add(u64::from(run.count))?;
        let mut at = run.at.sector;
        while at < end {
            let index = geometry.index_of(at)?;
            let place = geometry.region(index)?;
            let piece_end = end.min(place.at.sector + u64::from(place.count));
            let id = RegionId {
                nsd: run.at.nsd,
                index,
            };
            let begin = u32::try_from(at - place.at.sector).ok()?;
            let count = u32::try_from(piece_end - at).ok()?;
            visit(id, begin, count);
            at = piece_end;
        }
        Some(())
    }

    /// Everything as mutations that rebuild it, for a journal snapshot. What is freed and not yet
    /// durable counts as free: the snapshot contains the record that freed it.
    pub fn snapshot(&self, visit: &mut dyn FnMut(SpaceMutation)) {
        assert!(self.unlogged.is_empty());
        for (id, region) in &self.regions {
            visit(SpaceMutation::RegionTaken { region: *id });
            let mut runs = Vec::new();
            region.used.for_each_run(&mut |begin, count| {
                runs.push(Run {
                    at: Location {
                        nsd: id.nsd,
                        sector: region.place.at.sector + u64::from(begin),
                    },
                    count,
                });
            });
            for some in runs.chunks(SNAPSHOT_RUN_COUNT_MAX) {
                let runs = some.to_vec();
                visit(SpaceMutation::Used { runs });
            }
        }
        self.pages.snapshot(&mut |part| match part {
            Ok(region) => {
                visit(SpaceMutation::RegionTaken { region });
                visit(SpaceMutation::RegionForPages { region });
            }
            Err(runs) => visit(SpaceMutation::PagesUsed { runs }),
        });
        for (map, is_lost) in [(&self.granted, false), (&self.quarantined, true)] {
            for (life, set) in map {
                for run in set.iter() {
                    let grant = Grant {
                        id: GrantId(0),
                        run,
                        mac: 0,
                    };
                    visit(SpaceMutation::Granted { life: *life, grant });
                }
                if is_lost {
                    visit(SpaceMutation::NodeLost { life: *life });
                }
            }
        }
    }

    /// Asserts the invariants; O(sectors of runs).
    pub fn check(&self) {
        self.pages.check();
        let counts = self.counts();
        let sum = counts.free + counts.granted + counts.used + counts.pending + counts.quarantined;
        assert_eq!(counts.total, sum);
        let mut elsewhere = SectorSet::new();
        let sets = self.granted.values().chain(self.quarantined.values());
        // `insert` asserts that no sector comes twice.
        sets.flat_map(SectorSet::iter)
            .for_each(|run| elsewhere.insert(run));
        let pending = self.pending.iter().flat_map(|(_, runs)| runs);
        let pending = pending.chain(&self.unlogged);
        pending.for_each(|run| elsewhere.insert(*run));
        for run in elsewhere.iter() {
            self.pieces(run, &mut |id, begin, count| {
                let region = self.regions.get(&id).expect("the region is held");
                assert!(!region.free.is_any_set(begin, count));
                assert!(!region.used.is_any_set(begin, count));
            })
            .expect("the run lies in regions");
        }
        for region in self.regions.values() {
            region.free.check();
            region.used.check();
            assert!(region.free.is_disjoint(&region.used));
        }
        assert!(self.granted.values().all(|set| !set.is_empty()));
        assert!(
            self.granted
                .keys()
                .all(|life| !self.quarantined.contains_key(life))
        );
    }
}

#[cfg(test)]
mod tests;
