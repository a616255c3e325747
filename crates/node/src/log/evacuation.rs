//! Regions that trees have nearly left: a round of checkpoints moves the last pages out, so that files get these regions.
//!
//! ```text
//! files are short -> plan (places) -> a round of all trees -> its snapshot is durable -> the regions are free -> `balance_pages`
//! ```
//!
//! Invariants
//! - One at a time, and `PAUSE` after the last one began at the earliest, whatever became of it; later, where it did not empty what it should.
//! - It moves no more than a quarter of what it frees, and leaves what checkpoints need twice (`balance_pages` gives back no more).

use types::{Duration, Instant, Run};

use super::OwnerLog;

/// From one to the next at the least.
const PAUSE: Duration = Duration::from_secs(5);

/// Twice as long each time where the same regions are not empty yet, up to this.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// The same where it is tried out: who reads a page has to have the time for it.
const EAGER_PAUSE: Duration = Duration::from_millis(200);
/// Files are short for so many looks in a row.
const SHORT_COUNT: u32 = 3;
/// Regions of which no more than one sector in so many is used are emptied.
const SPARSE_PART: u32 = 4;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Evacuation {
    /// Another owner has wanted regions, and there were few.
    is_wanted: bool,
    not_before: Instant,
    /// What was to become free last, and after what pause the same may be tried again: a page there may be unreadable.
    last: Vec<Run>,
    pause: Duration,
    /// So often in a row files were short when it was looked at: what the table still has comes sooner.
    short_count: u32,
    /// For simulators: as often as possible.
    is_eager: bool,
}

impl OwnerLog {
    /// Other owners' files are short of regions.
    pub(crate) fn want_evacuation(&mut self) {
        self.evacuation.is_wanted = true;
    }

    /// For simulators: from now on pages move as if files were always short and checkpoints needed no room.
    pub fn evacuate_eagerly(&mut self) {
        self.evacuation.is_eager = true;
    }

    /// Where files want regions and trees keep nearly empty ones: where no page should lie when all trees have been checkpointed, from now
    /// on. Mostly nothing. To be called where no round is under way.
    pub fn plan_evacuation(&mut self, now: Instant) -> Vec<Run> {
        self.evacuation.short_count = match self.short_nsds().is_empty() {
            true => 0,
            false => self.evacuation.short_count.saturating_add(1),
        };
        // What was emptied may be tried again at once, should there be pages again.
        let pages = self.space.pages();
        self.evacuation
            .last
            .retain(|place| pages.has_pages(place.at));
        let is_short = self.evacuation.is_wanted || self.evacuation.short_count >= SHORT_COUNT;
        let is_busy = self.has_new_roots() || self.space.pages().is_sealed();
        let is_in_trouble = self.trees.is_failing || self.journal.is_poisoned();
        let is_eager = self.evacuation.is_eager;
        let is_time = (is_short || is_eager) && now >= self.evacuation.not_before;
        if is_busy || is_in_trouble || !is_time {
            return Vec::new();
        }
        let (part, keep, pause) = match is_eager {
            true => (1, 0, EAGER_PAUSE),
            false => (SPARSE_PART, self.trees.need * 2, PAUSE),
        };
        let places = self.space.pages().sparse(part, keep);
        if !places.is_empty() {
            let evacuation = &mut self.evacuation;
            let is_again = places.iter().any(|place| evacuation.last.contains(place));
            evacuation.pause = match is_again && !is_eager {
                true => Duration((evacuation.pause.0 * 2).min(PAUSE_MAX.0)),
                false => pause,
            };
            evacuation.not_before = now + evacuation.pause;
            evacuation.last.clone_from(&places);
        }
        self.evacuation.is_wanted = false;
        self.space.pages_mut().drain(&places);
        places
    }
}
