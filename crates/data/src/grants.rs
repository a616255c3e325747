//! The free sectors that a client node has in hand, granted by one owner node.
//!
//! Invariants
//! - Every granted sector is in exactly one place: free, taken (a write of it is being made or in
//!   flight), burnt (submitted with unknown outcome), spent (burnt, and the write is known to have
//!   ended) or no longer ours (committed, given back).
//! - A sector leaves `free` towards a write once: `take` never gives a sector twice, and only
//!   `put_back`, for what was never submitted, returns it.
//! - Sectors granted for writes into promised ranges are for these alone, until they are taken or given back; which of
//!   the free ones they are does not matter.
//! - What is reserved can be taken: `reserved + reserved / 17 <= free`. A run carries checksum sectors
//!   only beyond 16 data sectors, and then at most one for each 17 (`checksum_sector_count`), so this
//!   bound is exact in sum and no reservation rounds up. However scattered the free sectors are, runs
//!   of up to 16 use every one of them: ENOSPC is told at `reserve` or never.
//!
//! What this deliberately does not do: it sends nothing and knows no time. `hand` says when to ask the owner
//! and what to give back.

use types::extent::{CHECKSUMS_PER_SECTOR, checksum_sector_count};
use types::limits::INLINE_CHECKSUM_COUNT_MAX;
use types::{Grant, Location, NsdId, Run};

use crate::sectors::SectorSet;

/// Data sectors per checksum sector in the worst case.
const OVERHEAD: u64 = INLINE_CHECKSUM_COUNT_MAX as u64 + 1;

/// Data sectors set aside for writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAside {
    /// Of what is in hand for any write.
    pub plain: u64,
    /// Of what was granted for writes into promised ranges.
    pub promised: u64,
}

impl SetAside {
    /// So many for any write.
    pub const fn plain(sectors: u64) -> Self {
        Self {
            plain: sectors,
            promised: 0,
        }
    }

    /// Both.
    pub const fn sectors(&self) -> u64 {
        self.plain + self.promised
    }

    /// Takes `sectors` of it, or all there are: for bytes that are promised sectors those that are for these alone first,
    /// for others none of those.
    #[must_use]
    pub fn part(&mut self, sectors: u64, is_promised: bool) -> Self {
        let promised = match is_promised {
            true => self.promised.min(sectors),
            false => 0,
        };
        let plain = self.plain.min(sectors - promised);
        self.plain -= plain;
        self.promised -= promised;
        Self { plain, promised }
    }
}

impl std::ops::AddAssign for SetAside {
    fn add_assign(&mut self, more: Self) {
        self.plain += more.plain;
        self.promised += more.promised;
    }
}

/// Sectors set aside for writes that were acknowledged. Goes back by `take` or `release`; dropping it
/// leaks the room until the pool is dropped.
#[must_use = "reserved sectors are given back by take or release"]
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Reservation {
    aside: SetAside,
}

impl Reservation {
    /// Of nothing.
    pub const fn none() -> Self {
        Self {
            aside: SetAside::plain(0),
        }
    }

    /// Data sectors.
    pub const fn sectors(&self) -> u64 {
        self.aside.sectors()
    }

    /// The same, by what they are for.
    pub const fn aside(&self) -> SetAside {
        self.aside
    }

    /// Moves `part` into a reservation of its own.
    pub fn split(&mut self, part: SetAside) -> Self {
        assert!(part.plain <= self.aside.plain && part.promised <= self.aside.promised);
        self.aside.plain -= part.plain;
        self.aside.promised -= part.promised;
        Self { aside: part }
    }

    /// Moves all of `other`, of the same pool, into this one.
    pub fn merge(&mut self, other: Self) {
        self.aside += other.aside;
    }
}

/// The pool does not hold enough: ask the owner for at least this many sectors, then try again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{sectors} more sectors are needed from the owner")]
pub struct NeedMore {
    /// Sectors, checksum sectors included.
    pub sectors: u64,
}

/// A run to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// All of it, checksum sectors behind the data.
    pub run: Run,
    /// Data sectors.
    pub data: u32,
}

/// Sectors of a pool by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolCounts {
    /// Of the free ones: granted for writes into promised ranges, set aside for acknowledged ones or not.
    pub promised: u64,
    /// Free, reserved ones included.
    pub free: u64,
    /// Of the free ones: set aside for acknowledged writes, checksum sectors included.
    pub reserved: u64,
    /// Being written, or written and not committed.
    pub taken: u64,
    /// Submitted with unknown outcome.
    pub burnt: u64,
    /// Submitted, ended, to be given back.
    pub spent: u64,
}

/// The grants of one owner node.
#[derive(Debug, Default)]
pub struct GrantPool {
    free: SectorSet,
    reserved: u64,
    /// Set aside of what is for writes into promised ranges, and the rest of that.
    reserved_promised: u64,
    unreserved_promised: u64,
    taken: SectorSet,
    burnt: SectorSet,
    spent: SectorSet,
}

fn with_overhead(data: u64) -> u64 {
    data + data / OVERHEAD
}

/// Most data sectors that `room` adjacent sectors can take with their checksum sectors.
fn data_that_fits(room: u32) -> u32 {
    if room <= INLINE_CHECKSUM_COUNT_MAX {
        return room;
    }
    let data = room - room.div_ceil(CHECKSUMS_PER_SECTOR + 1);
    data.max(INLINE_CHECKSUM_COUNT_MAX)
}

impl GrantPool {
    /// An empty pool.
    pub const fn new() -> Self {
        Self {
            free: SectorSet::new(),
            reserved: 0,
            reserved_promised: 0,
            unreserved_promised: 0,
            taken: SectorSet::new(),
            burnt: SectorSet::new(),
            spent: SectorSet::new(),
        }
    }

    /// A grant has come. Its record is durable at the owner (else it must not be handed out).
    /// Returns false for one that is here already (a repeated message).
    pub fn add(&mut self, grant: &Grant) -> bool {
        let sets = [&self.free, &self.taken, &self.burnt, &self.spent];
        if sets.iter().any(|set| set.overlaps(grant.run)) {
            return false;
        }
        self.free.insert(grant.run);
        true
    }

    /// Sets room for `sectors` data sectors aside, checksum sectors included. A write is acknowledged
    /// only with its reservation in hand.
    pub fn reserve(&mut self, sectors: u64) -> Result<Reservation, NeedMore> {
        let need = self.free_for(sectors);
        if need > self.free.count() {
            return Err(NeedMore {
                sectors: need - self.free.count(),
            });
        }
        self.reserved += sectors;
        Ok(Reservation {
            aside: SetAside::plain(sectors),
        })
    }

    /// Free sectors that there have to be to reserve so many more.
    fn free_for(&self, sectors: u64) -> u64 {
        with_overhead(self.reserved + sectors) + self.promised()
    }

    /// So many can be reserved.
    pub fn has(&self, sectors: u64) -> bool {
        self.free_for(sectors) <= self.free.count()
    }

    /// The most that can be reserved.
    pub fn reservable(&self) -> u64 {
        let mut sectors = self.unreserved() / (OVERHEAD + 1) * OVERHEAD;
        while self.has(sectors + 1) {
            sectors += 1;
        }
        sectors
    }

    /// As `reserve`, of what was granted for promised ranges. These go to runs without checksum sectors: each sector
    /// that is written over comes back by itself, so that they never become more.
    pub fn reserve_promised(&mut self, sectors: u64) -> Result<Reservation, NeedMore> {
        if sectors > self.unreserved_promised {
            return Err(NeedMore {
                sectors: sectors - self.unreserved_promised,
            });
        }
        self.unreserved_promised -= sectors;
        self.reserved_promised += sectors;
        Ok(Reservation {
            aside: SetAside {
                plain: 0,
                promised: sectors,
            },
        })
    }

    /// So many of the sectors that were added now are for writes into promised ranges.
    pub fn keep_promised(&mut self, sectors: u64) {
        self.unreserved_promised += sectors;
        assert!(with_overhead(self.reserved) + self.promised() <= self.free.count());
    }

    /// Sectors for writes into promised ranges.
    fn promised(&self) -> u64 {
        self.reserved_promised + self.unreserved_promised
    }

    /// Those of them that are not set aside for a write.
    pub fn unreserved_promised(&self) -> u64 {
        self.unreserved_promised
    }

    /// Gives up a reservation that is not needed (the write was overtaken, or went inline).
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a reservation is given back once"
    )]
    pub fn release(&mut self, reservation: Reservation) {
        let SetAside { plain, promised } = reservation.aside;
        assert!(plain <= self.reserved && promised <= self.reserved_promised);
        self.reserved -= plain;
        self.reserved_promised -= promised;
        self.unreserved_promised += promised;
    }

    /// Takes `data` reserved sectors for writing, in as few runs as can be, on the first NSD of `order`
    /// that has a run long enough; further NSDs of the pool are used when none of `order` has.
    pub fn take(
        &mut self,
        reservation: &mut Reservation,
        order: &[NsdId],
        data: u32,
    ) -> Vec<Taken> {
        assert!(u64::from(data) <= reservation.sectors());
        let mut taken = Vec::new();
        let mut left = data;
        while left > 0 {
            // What is set aside for promised ranges has no room for checksum sectors.
            let wanted = match reservation.aside.promised {
                0 => left,
                _ => left.min(INLINE_CHECKSUM_COUNT_MAX),
            };
            let piece = self.piece(order, wanted);
            let data = wanted.min(data_that_fits(piece.count));
            let count = data + checksum_sector_count(data);
            let run = Run {
                at: piece.at,
                count,
            };
            self.free.remove(run);
            self.taken.insert(run);
            let used = reservation.aside.part(data.into(), true);
            self.reserved -= used.plain;
            self.reserved_promised -= used.promised;
            taken.push(Taken { run, data });
            left -= data;
        }
        taken
    }

    /// The free run that the next `data` sectors go to.
    fn piece(&self, order: &[NsdId], data: u32) -> Run {
        let need = data + checksum_sector_count(data);
        // First fit keeps small runs taken one after the other adjacent: they become one NSD write.
        let fitting = |nsd: &NsdId| self.free.of_nsd(*nsd).find(|run| run.count >= need);
        if let Some(run) = order.iter().find_map(fitting) {
            return run;
        }
        let longest = order
            .iter()
            .filter_map(|nsd| self.free.of_nsd(*nsd).max_by_key(|run| run.count))
            .find(|run| run.count >= INLINE_CHECKSUM_COUNT_MAX);
        // All of the NSDs asked for, however scattered, before another one.
        let asked = || {
            let runs = order.iter().flat_map(|nsd| self.free.of_nsd(*nsd));
            runs.max_by_key(|run| run.count)
        };
        longest
            .or_else(asked)
            .or_else(|| self.free.iter().max_by_key(|run| run.count))
            .expect("reserved sectors are free sectors")
    }

    /// A run was taken, nothing of it was submitted, and it is not needed any more (the data was cut
    /// off or written over): it is free again. A write that is only delayed keeps its run instead:
    /// the reservation was spent on it and may not be had again.
    pub fn put_back(&mut self, taken: Taken) {
        self.taken.remove(taken.run);
        self.free.insert(taken.run);
    }

    /// The owner has committed the run to a file: it is no longer ours.
    pub fn committed(&mut self, run: Run) {
        self.taken.remove(run);
    }

    /// The outcome of a write is unknown, or its Commit was refused: its sectors must not be written
    /// again. The data goes to others (`reserve` and `take` anew).
    pub fn burn(&mut self, run: Run) {
        self.taken.remove(run);
        self.burnt.insert(run);
    }

    /// A write has ended and its sectors belong to no file: they were written once and go back.
    pub fn discard(&mut self, run: Run) {
        self.taken.remove(run);
        self.spent.insert(run);
    }

    /// What of `run` is still taken has ended and belongs to no file.
    pub fn discard_rest(&mut self, run: Run) {
        for part in self.taken.intersection(run) {
            self.discard(part);
        }
    }

    /// That very write of burnt sectors is known to have ended.
    pub fn ended(&mut self, run: Run) {
        self.burnt.remove(run);
        self.spent.insert(run);
    }

    /// Sectors that were submitted once, ended and never committed: to be given back to the owner, in at
    /// most `run_count_max` runs. They leave the pool.
    pub fn take_spent(&mut self, run_count_max: usize) -> Vec<Run> {
        let runs: Vec<Run> = self.spent.iter().take(run_count_max).collect();
        runs.iter().for_each(|run| self.spent.remove(*run));
        runs
    }

    /// Sectors that the owner says are granted to this node and that are in no state here: they go back.
    pub fn adopt_spent(&mut self, run: Run) {
        self.spent.insert(run);
    }

    /// Answers a recall, or empties the pool: up to `sectors` unreserved ones leave it, in at most
    /// `run_count_max` runs. Nothing was ever submitted to them.
    pub fn give_up(&mut self, sectors: u64, run_count_max: usize) -> Vec<Run> {
        let sectors = self.unreserved().min(sectors);
        self.remove_free(sectors, run_count_max)
    }

    /// As `give_up`, of what was granted for promised ranges.
    pub fn give_up_promised(&mut self, run_count_max: usize) -> Vec<Run> {
        let runs = self.remove_free(self.unreserved_promised, run_count_max);
        let count: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        self.unreserved_promised -= count;
        runs
    }

    fn remove_free(&mut self, sectors: u64, run_count_max: usize) -> Vec<Run> {
        let mut left = sectors;
        // The shortest first: what stays is in long runs. But few messages rather than the last sector.
        let mut all: Vec<Run> = self.free.iter().collect();
        all.sort_by_key(|run| run.count);
        if all.len() > run_count_max {
            all.reverse();
        }
        let mut runs = Vec::new();
        for run in all.into_iter().take(run_count_max) {
            let count = run.count.min(u32::try_from(left).unwrap_or(u32::MAX));
            if count == 0 {
                break;
            }
            let run = Run { count, ..run };
            self.free.remove(run);
            runs.push(run);
            left -= u64::from(count);
        }
        runs
    }

    /// Sectors free on `nsds`, set aside or not.
    pub fn free_on(&self, nsds: &[NsdId]) -> u64 {
        let runs = nsds.iter().flat_map(|nsd| self.free.of_nsd(*nsd));
        runs.map(|run| u64::from(run.count)).sum()
    }

    /// Whether `data` more sectors, with their checksum sectors, fit on `nsds`.
    pub fn has_room_on(&self, nsds: &[NsdId], data: u64) -> bool {
        with_overhead(data) <= self.free_on(nsds)
    }

    /// Sectors free and not set aside.
    pub fn unreserved(&self) -> u64 {
        self.free.count() - with_overhead(self.reserved) - self.promised()
    }

    /// Sectors burnt: shown in status.
    pub fn burnt(&self) -> u64 {
        self.burnt.count()
    }

    /// Sectors by state.
    pub fn counts(&self) -> PoolCounts {
        PoolCounts {
            free: self.free.count(),
            reserved: with_overhead(self.reserved),
            promised: self.promised(),
            taken: self.taken.count(),
            burnt: self.burnt.count(),
            spent: self.spent.count(),
        }
    }

    /// The burnt runs: each until its own write is known to have ended.
    pub fn burnt_runs(&self) -> Vec<Run> {
        self.burnt.iter().collect()
    }

    /// The parts of `runs` that are in no state here: granted, but the answer was lost.
    pub fn unknown(&self, runs: &[Run]) -> Vec<Run> {
        let mut left = SectorSet::new();
        for run in runs {
            left.insert(*run);
        }
        for set in [&self.free, &self.taken, &self.burnt, &self.spent] {
            for run in runs {
                for known in set.intersection(*run) {
                    left.remove(known);
                }
            }
        }
        left.iter().collect()
    }

    /// Asserts the invariants; O(runs).
    pub fn check(&self) {
        assert!(with_overhead(self.reserved) + self.promised() <= self.free.count());
        let sets = [&self.free, &self.taken, &self.burnt, &self.spent];
        for (index, set) in sets.iter().enumerate() {
            set.check();
            for other in &sets[index + 1..] {
                assert!(set.iter().all(|run| !other.overlaps(run)));
            }
        }
    }

    /// The place of the first free sector of `nsd` (for tests and status).
    pub fn first_free(&self, nsd: NsdId) -> Option<Location> {
        self.free.of_nsd(nsd).next().map(|run| run.at)
    }
}

#[cfg(test)]
mod tests;
