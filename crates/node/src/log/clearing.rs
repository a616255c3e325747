//! Regions that files have nearly left: the client of this node writes the last blocks in them anew, elsewhere, so that other owners,
//! or trees, get these regions.
//!
//! ```text
//! another owner, or trees, are short -> plan (places) -> the files that lie there (`clearing`) -> the client rewrites these blocks
//!   -> the first regions are free -> given to who is short, which waits for it (`awaits_clearing`) -> and so on, when it asks again
//! ```
//!
//! Invariants
//! - Nothing is planned while the last plan is worked on (the driver asks for no other), and not sooner than `PAUSE` after it began. A region
//!   that nothing has left is tried later, each time twice as late; others do not wait for it.
//! - While a plan is worked on the regions that have become free are given away, and no others: what moves has to go somewhere.
//! - Who is short waits for it only where the driver has said that it plans (`offer_clearing`), and while that makes sense.
//! - It moves no more than half of what can be granted elsewhere, and no more than `SECTORS_MAX` or one region.

use std::collections::BTreeMap;

use data::space::RegionId;
use types::{Duration, Instant, Run};

use super::OwnerLog;

/// From one to the next at the least.
const PAUSE: Duration = Duration::from_secs(2);
/// Twice as long each time where the same regions are not free yet, up to this: files there may be in use on other nodes.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The same where it is tried out.
const EAGER_PAUSE: Duration = Duration::from_millis(20);
/// Nobody has wanted regions for so long: none are kept empty.
const LEAVING: Duration = Duration::from_secs(10);
/// Regions of which no more than so much is not free: for each byte that comes free nine are moved at the worst.
const SPARSE_PER_CENT: u64 = 90;
/// Sectors that a plan moves at the most, 64 MiB, or what lies in one region.
const SECTORS_MAX: u64 = 16 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Clearing {
    is_wanted: bool,
    /// The driver asks for plans, and carries them out.
    is_offered: bool,
    /// A plan is carried out.
    is_under_way: bool,
    not_before: Instant,
    /// What was to become free and is not yet.
    tried: BTreeMap<RegionId, Tried>,
    /// For simulators: as often as possible.
    is_eager: bool,
}

/// A region that was to become free.
#[derive(Clone, Copy, Debug, Default)]
struct Tried {
    /// It may be tried again.
    not_before: Instant,
    /// After that pause.
    pause: Duration,
    /// What files had there.
    used: u64,
}

impl OwnerLog {
    /// For simulators: from now on files leave regions as if somebody were always short of them.
    pub fn clear_eagerly(&mut self) {
        self.clearing.is_eager = true;
    }

    /// Somebody is short of regions, and none is free here.
    pub(crate) fn want_clearing(&mut self) {
        self.clearing.is_wanted = true;
    }

    /// The driver asks for plans from now on, or does not.
    pub fn offer_clearing(&mut self, is_offered: bool) {
        self.clearing.is_offered = is_offered;
    }

    /// Nothing of the last plan is left to do.
    pub fn end_clearing(&mut self) {
        self.clearing.is_under_way = false;
    }

    /// Somebody is short of regions, so some are wanted: whether one may be free soon.
    pub(crate) fn awaits_clearing(&mut self, now: Instant) -> bool {
        if !self.clearing.is_offered || self.journal.is_poisoned() || self.has_free_region() {
            return false;
        }
        self.want_clearing();
        // The next plan is never far away.
        self.clearing.is_under_way || !self.sparse_regions(now).is_empty()
    }

    fn has_free_region(&self) -> bool {
        !self.space.returnable().is_empty()
    }

    fn sparse_regions(&self, now: Instant) -> Vec<RegionId> {
        let clearing = &self.clearing;
        let per_cent = match clearing.is_eager {
            true => 100,
            false => SPARSE_PER_CENT,
        };
        let may_choose = |region| {
            let tried = clearing.tried.get(&region);
            // There may be more in a region than one plan names.
            let has_moved = |tried: &Tried| self.space.used_in(region) < tried.used;
            tried.is_none_or(|tried| now >= tried.not_before || has_moved(tried))
        };
        self.space.sparse(per_cent, SECTORS_MAX, &may_choose)
    }

    /// Of the regions that are entirely free, those that may go to other owners now.
    pub(crate) fn regions_to_give(&self) -> Vec<RegionId> {
        let mut regions = self.space.returnable();
        let has_left = |region: &RegionId| self.space.is_leaving_region(*region);
        if self.clearing.is_under_way && regions.iter().any(has_left) {
            regions.retain(has_left);
            return regions;
        }
        regions.truncate(regions.len().div_ceil(2));
        regions
    }

    /// Where others want regions and files keep nearly empty ones: the places that their blocks should leave. Mostly nothing.
    pub fn plan_clearing(&mut self, now: Instant) -> Vec<Run> {
        let may_begin = now >= self.clearing.not_before && !self.journal.is_poisoned();
        let is_wanted = self.clearing.is_wanted || self.clearing.is_eager;
        if !is_wanted && now >= self.clearing.not_before + LEAVING {
            // Grants ahead of need may come from there again.
            self.space.leave(&[]);
        }
        if !self.clearing.is_offered || !is_wanted || !may_begin {
            return Vec::new();
        }
        self.clearing.is_wanted = false;
        let regions = self.sparse_regions(now);
        let (clearing, space) = (&mut self.clearing, &self.space);
        clearing
            .tried
            .retain(|region, _| space.used_in(*region) > 0);
        let (least, most) = match clearing.is_eager {
            true => (EAGER_PAUSE, EAGER_PAUSE),
            false => (PAUSE, PAUSE_MAX),
        };
        for region in &regions {
            let tried = clearing.tried.entry(*region).or_default();
            let used = space.used_in(*region);
            let wanted = match used < tried.used {
                true => 0,
                false => tried.pause.0 * 2,
            };
            tried.pause = Duration(wanted.clamp(least.0, most.0));
            tried.not_before = now + tried.pause;
            tried.used = used;
        }
        clearing.not_before = now + least;
        clearing.is_under_way = !regions.is_empty();
        self.space.leave(&regions);
        self.space.places_of(&regions)
    }
}
