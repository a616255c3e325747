//! Regions that files have nearly left: the client of this node writes the last blocks in them anew, elsewhere, so that other owners,
//! or trees, get these regions.
//!
//! ```text
//! another owner, or trees, are short -> plan (places) -> the files that lie there (`clearing`) -> the client rewrites these blocks
//!   -> the first regions are free -> given to who is short, which waits for it (`awaits_clearing`) -> and so on, when it asks again
//! ```
//!
//! Invariants
//! - Nothing is planned while the last plan is worked on (the driver asks for no other), and not sooner than `PAUSE` after it began; later,
//!   where it did not free what it should.
//! - Who is short waits for it only where the driver has said that it plans (`offer_clearing`), and while that makes sense.
//! - It moves no more than half of what can be granted elsewhere, and no more than `SECTORS_MAX`.

use data::space::RegionId;
use types::{Duration, Instant, Run};

use super::OwnerLog;

/// From one to the next at the least.
const PAUSE: Duration = Duration::from_secs(2);
/// Twice as long each time where the same regions are not free yet, up to this: files there may be in use on other nodes.
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// The same where it is tried out.
const EAGER_PAUSE: Duration = Duration::from_millis(20);
/// Regions of which no more than one sector in so many is used.
const SPARSE_PART: u32 = 2;
/// Sectors that a plan moves at the most: 64 MiB.
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
    /// What was to become free last, and after what pause the same may be tried again.
    last: Vec<RegionId>,
    pause: Duration,
    /// For simulators: as often as possible.
    is_eager: bool,
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

    /// Somebody is short of regions, and some may be free soon.
    pub(crate) fn awaits_clearing(&mut self, now: Instant) -> bool {
        if !self.clearing.is_offered || self.journal.is_poisoned() || self.has_free_region() {
            return false;
        }
        self.want_clearing();
        let is_due = now >= self.clearing.not_before;
        self.clearing.is_under_way || is_due && !self.sparse_regions().is_empty()
    }

    fn has_free_region(&self) -> bool {
        !self.space.returnable().is_empty()
    }

    fn sparse_regions(&self) -> Vec<RegionId> {
        let part = if self.clearing.is_eager {
            1
        } else {
            SPARSE_PART
        };
        self.space.sparse(part, SECTORS_MAX)
    }

    /// Where others want regions and files keep nearly empty ones: the places that their blocks should leave. Mostly nothing.
    pub fn plan_clearing(&mut self, now: Instant) -> Vec<Run> {
        let may_begin = now >= self.clearing.not_before && !self.journal.is_poisoned();
        let is_wanted = self.clearing.is_wanted || self.clearing.is_eager;
        if !self.clearing.is_offered || !is_wanted || !may_begin {
            return Vec::new();
        }
        self.clearing.is_wanted = false;
        let regions = self.sparse_regions();
        let clearing = &mut self.clearing;
        let is_again = regions.iter().any(|region| clearing.last.contains(region));
        clearing.pause = match (clearing.is_eager, is_again) {
            (true, _) => EAGER_PAUSE,
            (false, true) => Duration((clearing.pause.0 * 2).min(PAUSE_MAX.0)),
            (false, false) => PAUSE,
        };
        clearing.not_before = now + clearing.pause;
        clearing.last.clone_from(&regions);
        clearing.is_under_way = !regions.is_empty();
        self.space.leave(&regions);
        self.space.places_of(&regions)
    }
}
