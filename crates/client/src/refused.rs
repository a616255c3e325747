//! Pieces that an owner refuses for want of room (ENOSPC): what was acknowledged is not lost by that.
//!
//! Bytes that somebody waits for travel inside a Commit, and the owner moves them to sectors later. Where there are none, a bounded
//! number of such bytes waits in its memory; a Commit that brings more is refused. The pages were dirty with sectors set aside,
//! so that a write hears ENOSPC, and an fsync behind it does not.
//!
//! Invariants
//! - Sectors that were set aside for pages that go as pieces stay so until the owner has the pieces (`Batch::aside`).
//! - Refused, whole pages go to the sectors that they have, and so do others of the file for [`REFUSED_FOR`]. Of a page of which this
//!   node does not have all a *part* can go as a piece alone. Where the whole page is this node's to write, the rest of it is loaded
//!   (`Slice::complete_parts`), and it keeps its sector for that. Else it gives its sector up, so that the owner may get it to make
//!   room; so it does if the rest cannot be read for [`UNREADABLE_FOR`], or is not there after [`LOADED_FOR`].
//! - What has no sector can go as a piece alone, however whole it is: where a store has failed, or none was set aside.
//! - What waits is told again [`PAUSE`] after the last refusal. What has no sector is lost if it is refused [`PATIENCE`] after it was
//!   first without; what has one is not lost. Who takes tokens back waits for that, as for other writes that find no room.
//! - Bytes of a page that were lost, as somebody was told, stay lost: nothing is loaded into it.
//! - Who writes to a page that has given its sector up sets another one aside for it (`Inode::sectors_to_reserve`); until then it goes
//!   as a piece, however whole it is.
//! - What was stored along with refused pieces is stored: it goes with the next Commit.
//! - Bytes and sizes behind a part that waits are not told before it, where they make the file longer (`crate::claims`). It holds up
//!   nobody who began to wait before it was written, but for a new size.
//! - What waits is in [`Refused::waiting`] until it is taken or lost, and its inode in `Slice::held`, whether or not anybody waits for
//!   it.
//! - Small files are not concerned: their bytes stay in metadata, and need no room but the journal's. One that is small as far as this
//!   node knows may be a large one: refused, its whole pages go to sectors, too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use data::SetAside;
use meta::Commit;
use types::{ByteRange, Duration, Errno, InodeId, InodeMode, Instant, limits};

use crate::batch::{Batch, BatchState, numbers_of, put_back};
use crate::claims::span_of;
use crate::env::Env;
use crate::inode::{Inode, Load};
use crate::pages::{DirtyPage, PAGE_SIZE};
use crate::slice::Slice;

/// So long after a refusal whole pages go to sectors, whoever waits.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Between two tries of what can go as pieces alone.
const PAUSE: Duration = Duration::from_millis(500);
/// So long what has no sector is tried, beside the time that the owner takes to refuse it.
const PATIENCE: Duration = Duration::from_secs(20);
/// So long reads of a part's page may fail, once each [`PAUSE`].
const UNREADABLE_FOR: Duration = Duration::from_secs(5);
/// So long a part waits until its page has been loaded: disks are slow, or away, and there may be many of them.
const LOADED_FOR: Duration = Duration::from_secs(120);
/// Pages of parts of a file that are being loaded at a time, and parts that are looked at in a tick.
pub(crate) const COMPLETED_COUNT: usize = 64;
/// A load that takes longer does not count among these.
const SLOW_LOAD: Duration = Duration::from_secs(1);
/// With those that take longer.
const LOAD_COUNT_MAX: usize = 8 * COMPLETED_COUNT;

/// Pieces of an inode were refused.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// Last.
    at: Instant,
    /// Pages that can go as pieces alone, and wait.
    waiting: BTreeMap<u64, Part>,
    /// The first of them to be looked at in the next tick.
    next: u64,
}

/// A page that can go as a piece alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    /// Its page is being loaded; else it stays what it is.
    is_loaded: bool,
    /// Since when that is so.
    since: Instant,
    /// It has given its sector up, or had none.
    is_bare: bool,
    /// When the loads of its page began to fail, and when the last one did.
    failing: Option<(Instant, Instant)>,
}

impl Part {
    const fn new(since: Instant) -> Self {
        Self {
            is_loaded: true,
            since,
            is_bare: false,
            failing: None,
        }
    }

    /// Its page may be there in time.
    fn may_complete(&self, now: Instant) -> bool {
        let is_readable = |(since, last): (Instant, Instant)| last.since(since) < UNREADABLE_FOR;
        self.is_loaded
            && !self.is_bare
            && now.since(self.since) < LOADED_FOR
            && self.failing.is_none_or(is_readable)
    }

    /// Its page failed to be loaded a moment ago.
    fn is_pausing(&self, now: Instant) -> bool {
        self.failing
            .is_some_and(|(_, last)| now.since(last) < PAUSE)
    }
}

const fn page(number: u64) -> ByteRange {
    ByteRange::at(number * PAGE_SIZE, PAGE_SIZE)
}

impl Slice {
    /// Parts of pages wait for room at the owner.
    pub(crate) fn hold_parts(&mut self, ino: InodeId) {
        if !self.held.contains(&ino) {
            self.held.push(ino);
        }
    }

    /// Tries again what was refused, when it is time.
    pub(crate) fn try_held(&mut self, env: &Env<'_>) {
        for ino in std::mem::take(&mut self.held) {
            let Some(inode) = self.inodes.get(&ino) else {
                continue;
            };
            if !inode.has_parts() {
                self.pump(env, ino);
                continue;
            }
            let is_due = !inode.is_pausing(env.now) && inode.waits_for_room();
            self.hold_parts(ino);
            self.complete_parts(env, ino);
            if is_due {
                self.start_batches(env, ino, &ByteRange::ALL, u64::MAX, false);
                self.pump(env, ino);
            }
        }
    }

    /// The owner had no room for the pieces of these batches, and has nothing of their Commit.
    pub(crate) fn keep_refused(&mut self, env: &Env<'_>, ino: InodeId, done: Vec<Batch>) {
        self.refused_count += 1;
        self.hold_parts(ino);
        let inode = self.inodes.get_mut(&ino).expect("its Commit has ended");
        inode.note_refused(env.now);
        let mut lost_count = 0;
        for batch in done {
            lost_count += inode.keep_batch(env, batch);
        }
        inode.forget_idle();
        inode.list_as_dirty(&mut self.dirty, env.now);
        if lost_count > 0 {
            inode.errors.note(Errno::ENOSPC);
            inode.forget_refused(env.pool);
            self.losses.note_pages(inode, lost_count, Errno::ENOSPC);
        }
    }

    /// Loads what is missing of pages that wait, where nobody else may write to it: some in each tick, in turn.
    fn complete_parts(&mut self, env: &Env<'_>, ino: InodeId) {
        if self.is_lapsed {
            return;
        }
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let is_slow = |begun| env.now.since(begun) >= SLOW_LOAD;
        let loads = inode.loads.iter().filter(|load| load.is_of_part());
        let busy = loads
            .clone()
            .filter(|load| !load.begun.is_some_and(is_slow));
        let room = COMPLETED_COUNT.saturating_sub(busy.count());
        let room = room.min(LOAD_COUNT_MAX.saturating_sub(loads.count()));
        let numbers = inode.next_parts(env.now);
        let inode = &self.inodes[&ino];
        let to_load = numbers.iter().filter(|n| inode.may_complete(**n, env.now));
        let to_load = to_load.take(room);
        let missing: Vec<_> = to_load
            .flat_map(|number| inode.pages.missing(&page(*number)).ranges().to_vec())
            .collect();
        for range in missing {
            self.load(env, ino, range, false);
        }
    }
}

impl Inode {
    /// The file lies in its inode's record, as this node knows for sure: none of its bytes are moved to sectors.
    fn is_surely_small(&self) -> bool {
        let is_known = self.inode_mode() == Some(InodeMode::Exclusive) && self.is_attr_current();
        is_known && self.size <= limits::INLINE_SIZE_MAX
    }

    /// Its owner had no room for pieces a moment ago.
    pub(crate) fn are_pieces_refused(&self, now: Instant) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refused| now.since(refused.at) < REFUSED_FOR)
    }

    fn is_pausing(&self, now: Instant) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refused| now.since(refused.at) < PAUSE)
    }

    /// Something waits, or is on its way once more.
    fn has_parts(&self) -> bool {
        let refused = self.refused.as_ref();
        let is_busy = |number: &u64| self.pages.is_busy(&page(*number));
        refused.is_some_and(|refused| refused.waiting.keys().any(is_busy))
    }

    /// Those of what waits that are looked at in this tick.
    fn next_parts(&mut self, now: Instant) -> Vec<u64> {
        let Some(refused) = &mut self.refused else {
            return Vec::new();
        };
        let (before, behind) = (..refused.next, refused.next..);
        let parts = refused.waiting.range(behind);
        let parts = parts.chain(refused.waiting.range(before));
        let seen: Vec<(u64, Part)> = parts
            .map(|(number, part)| (*number, *part))
            .take(COMPLETED_COUNT)
            .collect();
        refused.next = seen.last().map_or(0, |(number, _)| number + 1);
        let due = seen.into_iter().filter(|(_, part)| !part.is_pausing(now));
        due.map(|(number, _)| number).collect()
    }

    /// The page may be loaded, and go to a sector then.
    fn may_complete(&self, number: u64, now: Instant) -> bool {
        let part = self.refused.as_ref().and_then(|r| r.waiting.get(&number));
        part.is_none_or(|part| part.may_complete(now))
            && self.owns_page(number)
            && !self.pages.has_lost(&page(number))
    }

    /// A load has failed: it may have been that of a part.
    pub(crate) fn note_failed(&mut self, load: &Load, now: Instant) {
        if let Some(refused) = &mut self.refused
            && load.pages.len() == 1
            && let Some(part) = refused.waiting.get_mut(&load.pages[0].0)
        {
            let since = part.failing.map_or(now, |(since, _)| since);
            part.failing = Some((since, now));
        }
    }

    /// The page has no sector.
    pub(crate) fn has_given_up(&self, number: u64) -> bool {
        let part = self.refused.as_ref().and_then(|r| r.waiting.get(&number));
        part.is_some_and(|part| part.is_bare)
    }

    pub(crate) fn is_dirty_page(&self, number: u64) -> bool {
        self.pages.dirty_since(number).is_some()
    }

    /// The first page behind `end` that was refused and waits, of those that were dirty at `until` ([`crate::pages::Pages::mark_goal`]).
    /// What a batch carries does not wait, whatever was written to it since: its own Commit would wait for it.
    pub(crate) fn first_held(&self, end: u64, until: u64) -> Option<u64> {
        let refused = self.refused.as_ref()?;
        if self.pages.dirty_count() == 0 {
            return None;
        }
        let behind = refused.waiting.range(end / PAGE_SIZE..);
        let is_it = |number: &u64| {
            let since = self.pages.dirty_since(*number);
            since.is_some_and(|since| since <= until) && !self.pages.is_flying(*number)
        };
        behind.map(|(number, _)| *number).find(is_it)
    }

    /// Some part waits for its next try.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.first_held(0, u64::MAX).is_some()
    }

    /// What there is to tell beside bytes waits for a part: that of who waits first or, where a new size is to be told, of anybody.
    pub(crate) fn holds_attributes(&self) -> bool {
        let waiting = self.goals.iter().filter(|g| g.commit > self.commit_count);
        let until = match self.is_size_dirty {
            true => self.awaited_until(),
            false => waiting.map(|goal| goal.sequence).min().unwrap_or(0),
        };
        self.first_held(0, until).is_some()
    }

    /// Sectors that a write of `range` needs.
    pub(crate) fn sectors_to_reserve(&self, range: &ByteRange) -> u64 {
        let newly = self.pages.newly_dirty_count(range);
        let Some(refused) = &self.refused else {
            return newly;
        };
        let (first, end) = (range.begin / PAGE_SIZE, range.end.div_ceil(PAGE_SIZE));
        let bare = refused.waiting.range(first..end);
        let is_it = |(number, part): &(&u64, &Part)| part.is_bare && self.is_dirty_page(**number);
        newly + bare.filter(is_it).count() as u64
    }

    /// `reserved` is set aside for the dirty pages of `range`, which wanted `sectors`.
    pub(crate) fn note_reserved(&mut self, range: &ByteRange, reserved: SetAside, sectors: u64) {
        if let Some(refused) = &mut self.refused
            && reserved.sectors() >= sectors
        {
            let (first, end) = (range.begin / PAGE_SIZE, range.end.div_ceil(PAGE_SIZE));
            let parts = refused.waiting.range_mut(first..end);
            parts.for_each(|(_, part)| part.is_bare = false);
        }
        self.reserved += reserved;
    }

    /// Pages are not dirty any more that were lost, dropped or cut, and do not wait. How many of them had no sectors.
    pub(crate) fn forget_idle(&mut self) -> u64 {
        let Some(mut refused) = self.refused.take() else {
            return 0;
        };
        let mut bare_count = 0;
        refused.waiting.retain(|number, part| {
            let is_busy = self.pages.is_busy(&page(*number));
            bare_count += u64::from(!is_busy && part.is_bare);
            is_busy
        });
        self.refused = Some(refused);
        bare_count
    }

    /// The owner has what these batches brought.
    pub(crate) fn note_taken(&mut self, done: &[Batch]) {
        if let Some(refused) = &mut self.refused {
            let numbers = done.iter().flat_map(|batch| &batch.numbers);
            numbers.for_each(|number| _ = refused.waiting.remove(number));
        }
    }

    /// Keeps of pages that can go as pieces alone those that may go now. The others are dirty again, and wait.
    pub(crate) fn hold_refused(
        &mut self,
        is_promised: bool,
        pages: Vec<DirtyPage>,
        env: &Env<'_>,
    ) -> Vec<DirtyPage> {
        if is_promised || !self.is_pausing(env.now) || self.is_surely_small() {
            return pages;
        }
        put_back(self, &pages, env);
        let fresh = Part::new(env.now);
        let refused = self.refused.as_mut().expect("it pauses");
        numbers_of(&pages).for_each(|number| _ = refused.waiting.entry(number).or_insert(fresh));
        Vec::new()
    }

    /// The Commit that was refused for want of room brought pieces, which may be why.
    pub(crate) fn are_pieces_in(&self, commit: &Commit, done: &[Batch]) -> bool {
        let is_promised = done.iter().any(|batch| batch.is_promised);
        !commit.pieces.is_empty() && !is_promised && !self.is_surely_small()
    }

    fn note_refused(&mut self, now: Instant) {
        self.forget_idle();
        let refused = self.refused.get_or_insert_with(|| Refused {
            at: now,
            waiting: BTreeMap::new(),
            next: 0,
        });
        refused.at = now;
    }

    /// Its Commit was refused: whether the page may go to a sector, now or when the rest of it has been loaded, and has one. What it does
    /// not need of what was set aside for its batch stays there.
    fn keep_sector(
        &mut self,
        number: u64,
        is_whole: bool,
        aside: &mut SetAside,
        now: Instant,
    ) -> bool {
        if self.has_given_up(number) {
            return false;
        }
        // What was written to meanwhile has a sector for that.
        if self.is_dirty_page(number) {
            return true;
        }
        if !is_whole && !self.may_complete(number, now) {
            return false;
        }
        let sector = aside.part(1, false);
        self.reserved += sector;
        sector.sectors() == 1
    }

    /// What of a batch goes with the next Commit or is dirty again, and what has waited for too long: so many pages are lost.
    fn keep_batch(&mut self, env: &Env<'_>, mut batch: Batch) -> usize {
        let owner = env.owner(self.ino.shard());
        let pieces = batch.numbers.split_off(batch.sector_count);
        let is_whole = |number: &u64| {
            let is_completed =
                || self.owns_page(*number) && self.pages.missing(&page(*number)).is_empty();
            batch.whole.contains(number) || is_completed()
        };
        let (whole, parts): (Vec<u64>, Vec<u64>) = pieces.into_iter().partition(is_whole);
        let mut aside = std::mem::take(&mut batch.aside);
        let (mut lost, mut again) = (Vec::new(), Vec::new());
        let whole_count = whole.len();
        for (index, number) in whole.into_iter().chain(parts).enumerate() {
            let is_whole = index < whole_count;
            let has_sector = self.keep_sector(number, is_whole, &mut aside, env.now);
            let may_complete = self.may_complete(number, env.now);
            let refused = self.refused.as_mut().expect("just noted");
            let part = match refused.waiting.entry(number) {
                Entry::Vacant(_) if is_whole && has_sector => {
                    again.push(number);
                    continue;
                }
                Entry::Vacant(free) => free.insert(Part::new(env.now)),
                Entry::Occupied(known) => known.into_mut(),
            };
            part.is_bare = !has_sector;
            let is_over = !has_sector || (!is_whole && !may_complete);
            if is_over && std::mem::take(&mut part.is_loaded) {
                part.since = env.now;
            }
            let is_late = !part.is_loaded && env.now.since(part.since) > PATIENCE;
            if is_late && !(is_whole && has_sector) {
                // Who writes to it now, or has since, has the whole time before him.
                refused.waiting.remove(&number);
                lost.push(number);
            } else {
                again.push(number);
            }
        }
        env.grants.unreserve(owner, aside);
        self.pages.on_flushed(&again, false, false);
        self.pages.on_flushed(&lost, false, true);
        match &mut batch.state {
            BatchState::Committing(extents) if !extents.is_empty() && !batch.is_cut => {
                batch.state = BatchState::Stored(std::mem::take(extents));
                batch.is_flushed = true;
                batch.whole.clear();
                batch.span = span_of(&batch.numbers, self.size);
                self.batches.push(batch);
            }
            // Cut: it is written again. Of pieces alone nothing is left.
            _ => {
                env.grants.discard(owner, &batch.runs);
                self.write_again(env, &batch);
            }
        }
        lost.len()
    }
}
