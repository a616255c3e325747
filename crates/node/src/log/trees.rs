//! The owner's side of checkpoints: roots in memory, snapshots that make them durable, and room for pages.
//!
//! Invariants
//! - While a snapshot is written no root changes (`PageSpace::seal`), and while a root changes no snapshot begins.
//! - Pages of a root are free when a durable snapshot names a newer one, and not before.
//! - Page regions are taken ahead of need: while checkpoints can be needed there is room for writing the largest tree anew and
//!   for what all trees lack, as far as regions are to be had.

use std::collections::{BTreeMap, BTreeSet};

use data::space::{RegionId, SpaceMutation};
use store::journal::{FlushFailed, FlushId, Urgency};
use store::tree::Root;
use types::{Duration, Instant, Lsn, NsdId, ShardId};

use super::{OwnerLog, Refusal};
use crate::checkpoint::Checkpoint;
use crate::keeper::{ShardSize, sectors_for};

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u8 = 4;
/// Bytes of a snapshot beside those of the shards, at the least: space, headers.
const FIXED_SIZE: u64 = 1 << 20;
/// Runs of pages that are freed at once when a snapshot is durable; the rest follows in steps.
const SETTLE_COUNT: usize = 256;
/// No more than one part in so many of the NSDs is kept free for pages.
const SHARE: u64 = 4;
/// Trees that have more than one part in so many of the NSDs may not grow into the room that their checkpoints need. Where files have the rest,
/// removing some makes room for these, too.
const MUCH: u64 = 8;
/// Nor is less than this much, in sectors: the journal has room for what trees of 4 MiB hold.
const MUCH_MIN: u64 = (4 << 20) / types::SECTOR_SIZE;
/// Who is poor of pages for so many ticks without a round of checkpoints will not have one: at the first the driver sees that one is needed.
const POOR_TICKS: u32 = 3;
/// Room in the journal that a change of page regions needs.
const CHANGE_SIZE: usize = 16 << 10;
/// Page regions that are taken or given back in one record.
const REGION_COUNT_MAX: usize = 256;

/// What clients have in hand and do not use, wanted for pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Recall {
    /// Not asked for.
    #[default]
    None,
    /// Asked for.
    Asked,
    /// Given back: free when the journal is durable up to here, and taken for pages with the next tick.
    GivenBack(Lsn),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    /// In memory; a shard without one has all its state in the journal's snapshots.
    pub(crate) roots: BTreeMap<ShardId, Root>,
    /// Where pages may lie: NSDs that this node reaches directly and alone.
    nsds: Vec<NsdId>,
    /// Free sectors for pages that there should be.
    pub(super) need: u64,
    /// A root is being changed.
    is_installing: bool,
    /// Roots have been installed that no snapshot names.
    wants_snapshot: bool,
    /// A round is under way, or will begin by itself.
    pub(super) is_checkpointing: bool,
    /// Checkpoints fail, for want of room or otherwise.
    pub(super) is_failing: bool,
    /// Free sectors for pages that writing the largest tree anew takes, with all that trees lack now.
    need_now: u64,
    /// There are fewer than `need_now`, as far as it was looked at, and trees have much of the NSDs: what fills these is metadata.
    is_poor: bool,
    /// For so many ticks it was poor and nothing was under way that could have changed that.
    poor_ticks: u32,
    /// Sectors of the NSDs where pages may lie.
    sector_count: u64,
    /// Since they fail, or there is little room for them, all owners were asked for regions for pages, and had none.
    is_exhausted: bool,
    /// Clients are asked for what they have in hand and do not use, for pages.
    recall: Recall,
    /// Since they fail a region has become one for pages, which the keeper has not heard of.
    has_room_come: bool,
    /// Snapshots that had ended when it was looked at last.
    snapshot_count: u64,
    /// Bytes that space took in the last snapshot.
    space_size: u64,
    /// When something was last done that makes room in the journal.
    moved: Instant,
}

impl OwnerLog {
    /// What replay has found: the roots of the shards' trees, and where their pages may lie.
    pub fn set_trees(&mut self, roots: impl IntoIterator<Item = Root>, nsds: Vec<NsdId>) {
        let roots = roots.into_iter().map(|root| (root.shard, root));
        self.trees.roots = roots.collect();
        self.trees.nsds = nsds;
    }

    /// The root of a shard's tree in memory.
    pub fn root(&self, shard: ShardId) -> Root {
        let root = self.trees.roots.get(&shard);
        root.copied()
            .unwrap_or_else(|| Root::empty(shard, PAGE_SECTORS))
    }

    /// All roots in memory.
    pub fn roots(&self) -> impl Iterator<Item = &Root> {
        self.trees.roots.values()
    }

    /// The shards have these sizes now: what a snapshot would take, and the room that checkpoints need. `is_coming`: there will be some, or
    /// are, however little the trees lack.
    pub fn note_sizes(&mut self, sizes: &[ShardSize], is_coming: bool) {
        let shards: u64 = sizes.iter().map(|size| size.all).sum();
        self.journal.set_overlay_size(self.fixed_size() + shards);
        let unsaved: u64 = sizes.iter().map(|size| size.unsaved).sum();
        let due = self.unsaved_size_due();
        let pages = self.roots().map(|root| root.pages).max().unwrap_or(0);
        let may_come = is_coming || pages > 0 || unsaved > due / 4 || self.trees.is_failing;
        let all: u64 = (self.trees.nsds.iter())
            .map(|nsd| self.space.sector_count_of(*nsd))
            .sum();
        // A small file system is for files, too.
        let needed = |unsaved| match may_come {
            true => (pages * u64::from(PAGE_SECTORS) + sectors_for(unsaved)).min(all / SHARE),
            false => 0,
        };
        self.trees.sector_count = all;
        self.trees.need = needed(unsaved.max(due));
        self.balance_pages();
        let durable = self.journal.durable_lsn();
        if matches!(self.trees.recall, Recall::GivenBack(lsn) if lsn <= durable) {
            self.trees.recall = Recall::None;
        }
        self.trees.need_now = needed(unsaved);
        self.judge_page_room();
    }

    /// Bytes of a snapshot beside those of the shards.
    fn fixed_size(&self) -> u64 {
        // At the worst each page is a run of its own. What space took in the last snapshot has grown since.
        let pages: u64 = self.roots().map(|root| root.pages).sum();
        let space = self.trees.space_size / 8 * 9 + (64 << 10);
        space.max(FIXED_SIZE) + pages * 14
    }

    /// Space took so many bytes in a snapshot.
    pub(super) fn note_space_size(&mut self, bytes: u64) {
        self.trees.space_size = bytes;
    }

    /// Measures what space takes in a snapshot: after replay, before anything is decided by it.
    pub fn measure_space(&mut self) {
        let mut bytes = 0;
        self.space_snapshot(64 << 10, &mut |piece| bytes += piece.len() as u64);
        self.note_space_size(bytes);
    }

    /// When trees lack more bytes than this, a round of checkpoints is due: well before the journal refuses anything.
    pub fn unsaved_size_due(&self) -> u64 {
        let room = self.journal.segment_size() / 8 * 5;
        (room.saturating_sub(self.fixed_size()) / 5 * 2).max(64 << 10)
    }

    /// Checkpoints fail, and what the journal has to hold has grown to where only what frees something may add to it.
    pub(super) fn is_starved(&self) -> bool {
        let limit = self.journal.segment_size() / 8 * 3;
        self.trees.is_failing && self.journal.overlay_size() > limit
    }

    /// There is so little room for pages that what adds to the trees might leave none for the checkpoints that make room. Removals go on, and
    /// the checkpoints that make trees smaller.
    pub fn is_poor_of_pages(&self) -> bool {
        self.trees.is_poor
    }

    /// It is poor of pages and may not be any more soon: a round of checkpoints may be about to begin, or what one has written is not durable
    /// yet, and the pages of before are not free.
    pub(super) fn may_page_room_return(&self) -> bool {
        self.trees.is_poor && self.trees.poor_ticks < POOR_TICKS
    }

    /// To be called at each tick, and when regions for pages have come. O(page regions).
    fn judge_page_room(&mut self) {
        let counts = self.space.pages().counts();
        let is_much = counts.total > MUCH_MIN.max(self.trees.sector_count / MUCH);
        // Also on disks that are avoided: where nothing else is free pages go there.
        self.trees.is_poor = is_much && counts.free < self.trees.need_now;
    }

    /// The keeper says whether rounds are under way, and whether they have done something since it said so last.
    pub fn note_checkpoints(&mut self, now: Instant, is_checkpointing: bool, has_moved: bool) {
        self.trees.is_checkpointing = is_checkpointing;
        let is_stuck = self.trees.is_poor && !is_checkpointing && !self.has_new_roots();
        self.trees.poor_ticks = match is_stuck {
            true => self.trees.poor_ticks.saturating_add(1),
            false => 0,
        };
        let snapshot_count = self.journal.counters().snapshots;
        if has_moved || snapshot_count != self.trees.snapshot_count {
            self.trees.moved = now;
        }
        self.trees.snapshot_count = snapshot_count;
    }

    /// The keeper says whether the last checkpoint failed.
    pub fn note_starving(&mut self, is_failing: bool) {
        self.trees.is_failing = is_failing;
        self.trees.is_exhausted &= is_failing || self.is_poor_of_pages();
        self.trees.has_room_come &= is_failing;
    }

    /// The table has answered a question for regions for pages. `were_all_asked`: also those of other owners were wanted.
    pub(crate) fn note_page_regions(&mut self, were_all_asked: bool, has_some: bool) {
        self.trees.is_exhausted = were_all_asked && !has_some;
    }

    /// All clients are asked to give back what they do not use, for pages.
    pub(crate) fn begin_recall_for_pages(&mut self) {
        self.trees.recall = Recall::Asked;
    }

    /// They have, or are not waited for any longer.
    pub(crate) fn end_recall_for_pages(&mut self) {
        self.trees.recall = Recall::GivenBack(self.journal.last_lsn());
    }

    /// Whether failing checkpoints have got a region for pages since this was asked last.
    pub(crate) fn take_room_come(&mut self) -> bool {
        std::mem::take(&mut self.trees.has_room_come)
    }

    /// Checkpoints fail for want of room for pages, and it is not known yet that no owner has any to give; or some has come.
    pub(super) fn may_page_room_come(&self) -> bool {
        let is_wanted =
            (self.page_shortage()).is_some_and(|(_, must_others_give)| must_others_give);
        let is_coming = !self.trees.is_exhausted || self.trees.recall != Recall::None;
        self.trees.has_room_come || (is_wanted && is_coming)
    }

    /// How long nothing has been done that makes room in the journal, at the most since `since`.
    pub fn stalled_for(&self, now: Instant, since: Instant) -> Duration {
        now.since(since.max(self.trees.moved))
    }

    /// A round of checkpoints may begin: what the last one installed is durable, or cannot be before there is more room.
    pub fn may_begin_round(&self) -> bool {
        let is_over = !self.space.pages().is_sealed()
            && (!self.trees.wants_snapshot || self.journal.is_snapshot_held_back());
        is_over && !self.journal.is_poisoned()
    }

    /// Takes places for pages.
    pub fn take_places(&mut self, checkpoint: &mut Checkpoint) {
        let nsds = &self.trees.nsds;
        let is_refused = self.refusal == Some(Refusal::Pages);
        checkpoint.take_places(self.space.pages_mut(), &|nsd| {
            !is_refused && nsds.contains(&nsd)
        });
    }

    /// A root is about to change. False: a snapshot is being written; later.
    pub fn begin_install(&mut self) -> bool {
        if self.space.pages().is_sealed() {
            return false;
        }
        self.trees.is_installing = true;
        true
    }

    /// A root has changed.
    pub fn end_install(&mut self, root: Root) {
        assert!(self.trees.is_installing, "it was begun");
        self.trees.is_installing = false;
        self.trees.roots.insert(root.shard, root);
    }

    /// Where roots in memory are not those that are durable, a snapshot is to be written soon, needed or not.
    pub fn want_snapshot_of_roots(&mut self) {
        if self.has_new_roots() {
            self.trees.wants_snapshot = true;
            // What did not fit before may fit now.
            self.journal.forget_abort();
        }
    }

    /// Roots in memory are not those that are durable.
    pub fn has_new_roots(&self) -> bool {
        let counts = self.space.pages().counts();
        counts.fresh + counts.stale > 0
    }

    /// Begins a snapshot if one is needed or wanted, and may begin. True: append all state, then `end_snapshot` or
    /// `abort_snapshot`.
    pub fn begin_snapshot(&mut self) -> bool {
        let journal = &self.journal;
        let is_due =
            journal.needs_snapshot() || (self.trees.wants_snapshot && journal.may_begin_snapshot());
        if !is_due || self.trees.is_installing || self.space.pages().is_sealed() {
            return false;
        }
        self.trees.wants_snapshot = false;
        let size = journal.overlay_bound().min(journal.segment_size());
        self.journal.begin_snapshot(size);
        self.space.pages_mut().seal();
        true
    }

    /// The first snapshot of this life begins: what recovery found is to be appended.
    pub fn begin_first_snapshot(&mut self) {
        self.trees.wants_snapshot = false;
        self.space.pages_mut().seal();
    }

    /// All state has been appended.
    pub fn end_snapshot(&mut self) {
        self.journal.end_snapshot();
    }

    /// It does not fit.
    pub fn abort_snapshot(&mut self) {
        self.journal.abort_snapshot();
        self.space.pages_mut().unseal(false);
        self.trees.wants_snapshot = self.has_new_roots();
    }

    /// A flush of the journal has ended; what is durable now.
    pub fn on_flushed(&mut self, id: FlushId, result: Result<(), FlushFailed>) -> Lsn {
        let before = self.journal.counters().snapshots;
        self.journal.on_flushed(id, result);
        let pages = self.space.pages_mut();
        if self.journal.counters().snapshots > before && pages.is_sealed() {
            pages.unseal(true);
            pages.settle(SETTLE_COUNT);
        }
        let lsn = self.journal.durable_lsn();
        self.space.on_durable(lsn);
        lsn
    }

    /// Frees pages that the newest durable snapshot does not name, some at a time.
    pub fn settle(&mut self, run_count_max: usize) {
        self.space.pages_mut().settle(run_count_max);
    }

    /// There is room in the journal for a change of regions: of what does not fit, nothing is taken and nothing given.
    pub fn has_room_for_regions(&self) -> bool {
        !self.journal.is_serving() || self.journal.has_room(CHANGE_SIZE, Urgency::Rescue)
    }

    /// There are fewer free sectors for pages than there should be.
    pub fn lacks_page_room(&self) -> bool {
        self.space.pages().usable() < self.trees.need
    }

    /// Pages could not be written on these NSDs a moment ago: they go to others from now on, if there are any, until it is called again.
    pub fn avoid_for_pages(&mut self, mut nsds: BTreeSet<NsdId>) {
        if self.trees.nsds.iter().all(|nsd| nsds.contains(nsd)) {
            nsds.clear();
        }
        self.space.pages_mut().avoid(nsds);
    }

    /// NSDs for pages that take them.
    fn page_nsds(&self) -> Vec<NsdId> {
        let nsds = self.trees.nsds.iter().copied();
        nsds.filter(|nsd| !self.space.pages().is_avoided(*nsd))
            .collect()
    }

    /// NSDs of which regions for pages should be taken, and whether others should give some up for that: checkpoints fail, or would soon.
    pub fn page_shortage(&self) -> Option<(Vec<NsdId>, bool)> {
        let must_others_give = self.trees.is_failing || self.trees.is_poor;
        (self.lacks_page_room() && !self.trees.nsds.is_empty() && self.has_room_for_regions())
            .then(|| (self.page_nsds(), must_others_give))
    }

    /// Uses regions that are entirely free for pages where these need some, and gives back what is far more than they need.
    pub fn balance_pages(&mut self) {
        let need = self.trees.need;
        let mut free = self.space.pages().usable();
        let is_serving = self.journal.is_serving();
        if is_serving && !self.journal.has_room(CHANGE_SIZE, Urgency::Rescue) {
            return;
        }
        let mut mutations: Vec<SpaceMutation> = Vec::new();
        let size = |log: &Self, region: RegionId| log.space.region_sectors(region);
        if free < need {
            if self.refusal == Some(Refusal::Regions) {
                return;
            }
            let regions = self.space.returnable().into_iter().rev();
            for region in regions.take(REGION_COUNT_MAX) {
                if free >= need {
                    break;
                }
                let is_usable = self.trees.nsds.contains(&region.nsd)
                    && !self.space.pages().is_avoided(region.nsd)
                    && size(self, region) >= u64::from(PAGE_SECTORS);
                let is_taken = is_usable
                    && self.space.can_spare(region)
                    && self
                        .space
                        .use_region_for_pages(region, &mut mutations)
                        .is_ok();
                free += if is_taken { size(self, region) } else { 0 };
                self.trees.has_room_come |= is_taken && self.trees.is_failing;
            }
        } else {
            let regions = self.space.pages().returnable();
            for region in regions.into_iter().take(REGION_COUNT_MAX) {
                let size = size(self, region);
                // Twice as much, so that it does not go to and fro.
                if free - size < need * 2 {
                    break;
                }
                let given = self.space.use_region_for_data(region, &mut mutations);
                free -= if given.is_ok() { size } else { 0 };
            }
        }
        self.judge_page_room();
        // Before the journal serves, its first snapshot has it.
        if is_serving && !mutations.is_empty() {
            self.append_space(mutations);
        }
    }
}
