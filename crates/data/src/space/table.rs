//! Who holds which region: the part of shard 0 that shares the NSDs out among owner nodes.
//!
//! Invariants: a region has at most one holder, and every region in the table exists.
//!
//! Taking: the table's record is durable, then the taker is told, then it records `RegionTaken`. An
//! answer that is lost costs nothing: a taker compares `held_by` with what it knows before it asks
//! for more, and takes what it does not know (`Space::unknown_regions`), which is still entirely free.
//! Returning goes the other way round: the holder's `RegionReturned` is durable, then the table is
//! told, again and again until it answers.

use std::collections::BTreeMap;

use types::{NodeId, NsdId};

use super::Geometry;
use super::mutation::{RegionId, TableMutation};

/// The node does not hold that region: a repeated return, already done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("region {region:?} is not held by node {owner}")]
pub struct NotHeld {
    /// The region.
    pub region: RegionId,
    /// Who returned it.
    pub owner: NodeId,
}

/// The region table.
#[derive(Debug)]
pub struct RegionTable {
    geometry: BTreeMap<NsdId, Geometry>,
    holders: BTreeMap<RegionId, NodeId>,
}

impl RegionTable {
    /// A table in which nobody holds anything.
    pub fn new(geometry: &[Geometry]) -> Self {
        Self {
            geometry: geometry.iter().map(|g| (g.nsd, *g)).collect(),
            holders: BTreeMap::new(),
        }
    }

    /// Gives `owner` up to `count` regions of `nsd`, the first free ones. Empty: none is left.
    pub fn take(
        &mut self,
        owner: NodeId,
        nsd: NsdId,
        count: usize,
        out: &mut Vec<TableMutation>,
    ) -> Vec<RegionId> {
        let regions = self.geometry.get(&nsd).map_or(0, Geometry::region_count);
        let free: Vec<_> = (0..regions)
            .map(|index| RegionId { nsd, index })
            .filter(|id| !self.holders.contains_key(id))
            .take(count)
            .collect();
        for region in &free {
            self.holders.insert(*region, owner);
            out.push(TableMutation::Taken {
                region: *region,
                owner,
            });
        }
        free
    }

    /// `owner` gives a region back. An error is an answer to a repeat: it is done.
    pub fn give_back(
        &mut self,
        owner: NodeId,
        region: RegionId,
        out: &mut Vec<TableMutation>,
    ) -> Result<(), NotHeld> {
        if self.holders.get(&region) != Some(&owner) {
            return Err(NotHeld { region, owner });
        }
        self.holders.remove(&region);
        out.push(TableMutation::Returned { region });
        Ok(())
    }

    /// What `owner` holds.
    pub fn held_by(&self, owner: NodeId) -> Vec<RegionId> {
        let held = self.holders.iter().filter(|(_, holder)| **holder == owner);
        held.map(|(region, _)| *region).collect()
    }

    /// Every region that is held, and by whom.
    pub fn holders(&self) -> impl Iterator<Item = (RegionId, NodeId)> + '_ {
        self.holders.iter().map(|(region, owner)| (*region, *owner))
    }

    /// Regions of `nsd` that nobody holds.
    pub fn free_count(&self, nsd: NsdId) -> u32 {
        let all = self.geometry.get(&nsd).map_or(0, Geometry::region_count);
        let held = self.holders.keys().filter(|id| id.nsd == nsd).count();
        all - u32::try_from(held).expect("held regions exist")
    }

    /// Sectors that nobody holds, for statfs.
    pub fn free_sectors(&self) -> u64 {
        let nsds = self.geometry.keys();
        nsds.map(|nsd| self.free_sectors_of(*nsd)).sum()
    }

    /// The same of one NSD.
    pub fn free_sectors_of(&self, nsd: NsdId) -> u64 {
        let Some(geometry) = self.geometry.get(&nsd) else {
            return 0;
        };
        let regions = (0..geometry.region_count()).filter_map(|index| {
            let place = geometry.region(index)?;
            let is_held = self.holders.contains_key(&RegionId { nsd, index });
            (!is_held).then_some(u64::from(place.count))
        });
        regions.sum()
    }

    /// Applies a mutation read from the journal.
    pub fn apply(&mut self, mutation: &TableMutation) {
        match mutation {
            TableMutation::Taken { region, owner } => {
                self.holders.insert(*region, *owner);
            }
            TableMutation::Returned { region } => {
                self.holders.remove(region);
            }
        }
    }

    /// Everything as mutations that rebuild it.
    pub fn snapshot(&self, visit: &mut dyn FnMut(TableMutation)) {
        for (region, owner) in &self.holders {
            visit(TableMutation::Taken {
                region: *region,
                owner: *owner,
            });
        }
    }
}
