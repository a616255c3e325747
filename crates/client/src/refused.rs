//! Pieces that an owner refuses for want of room (ENOSPC): what was acknowledged is not lost by that.
//!
//! Bytes that somebody waits for travel inside a Commit, and the owner moves them to sectors later. Where there are none, a bounded
//! number of such bytes waits in its memory; a Commit that brings more is refused. The pages were dirty with sectors set aside,
//! so that a write hears ENOSPC, and an fsync behind it does not.
//!
//! Invariants
//! - Sectors that were set aside for pages that go as pieces stay so until the owner has the pieces (`Batch::aside`).
//! - Refused, whole pages go to the sectors that they have, and so do others of the file for [`REFUSED_FOR`]. Of a page of which this
//!   node does not have all a part can go as a piece alone: it gives its sector up, so that the owner may get it to make room, and is
//!   told again each [`PAUSE`], for [`PATIENCE`] at the most.
//! - Who writes to a page that has given its sector up sets another one aside for it (`Inode::sectors_to_reserve`); until then it goes
//!   as a piece, however whole it is.
//! - What was stored along with refused pieces is stored: it goes with the next Commit. Bytes and sizes behind what waits are not told
//!   before it (`crate::claims`).
//! - Small files are not concerned: their bytes stay in metadata, and need no room but the journal's.

use std::collections::BTreeSet;

use data::SetAside;
use meta::Commit;
use types::{ByteRange, Duration, Errno, InodeId, Instant, limits};

use crate::batch::put_back;
use crate::claims::span_of;
use crate::env::Env;
use crate::flush::{Batch, BatchState};
use crate::inode::Inode;
use crate::pages::{DirtyPage, PAGE_SIZE};
use crate::slice::Slice;

/// So long after a refusal whole pages go to sectors, whoever waits.
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Between two tries of what can go as pieces alone.
const PAUSE: Duration = Duration::from_millis(500);
/// So long it is tried. Who takes tokens back waits for it, and is patient for longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pieces of an inode were refused.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    /// When the first was of those that wait.
    since: Instant,
    /// When the last was.
    at: Instant,
    /// Pages that have given their sectors up.
    given: BTreeSet<u64>,
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

    /// Tries again what was refused.
    pub(crate) fn try_held(&mut self, env: &Env<'_>) {
        for ino in std::mem::take(&mut self.held) {
            self.pump(env, ino);
        }
    }

    /// The owner had no room for the pieces of these batches, and has nothing of their Commit.
    pub(crate) fn keep_refused(&mut self, env: &Env<'_>, ino: InodeId, done: Vec<Batch>) {
        self.hold_parts(ino);
        let inode = self.inodes.get_mut(&ino).expect("its Commit has ended");
        let gives_up = inode.note_refused(env.now);
        let mut lost_count = 0;
        for batch in done {
            lost_count += inode.keep_batch(env, batch, gives_up);
        }
        inode.list_as_dirty(&mut self.dirty, env.now);
        if lost_count > 0 {
            inode.errors.note(Errno::ENOSPC);
            inode.forget_refused();
            self.losses.note_pages(inode, lost_count, Errno::ENOSPC);
        }
    }
}

impl Inode {
    /// The file is too large to lie in its inode's record: what of it goes as pieces is moved to sectors later.
    fn has_sectors(&self) -> bool {
        self.size > limits::INLINE_SIZE_MAX
    }

    /// Its owner had no room for pieces a moment ago.
    pub(crate) fn are_pieces_refused(&self, now: Instant) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refused| now.since(refused.at) < REFUSED_FOR)
    }

    /// The page has no sector: it was given up.
    pub(crate) fn has_given_up(&self, number: u64) -> bool {
        let refused = self.refused.as_ref();
        refused.is_some_and(|refused| refused.given.contains(&number))
    }

    fn is_dirty_page(&self, number: u64) -> bool {
        self.pages.newly_dirty_count(&page(number)) == 0
    }

    /// The first page behind `end` that was refused and waits.
    pub(crate) fn first_held(&self, end: u64) -> Option<u64> {
        let refused = self.refused.as_ref()?;
        let mut behind = refused.given.range(end / PAGE_SIZE..);
        behind.find(|number| self.is_dirty_page(**number)).copied()
    }

    /// Sectors that a write of `range` needs.
    pub(crate) fn sectors_to_reserve(&self, range: &ByteRange) -> u64 {
        let newly = self.pages.newly_dirty_count(range);
        let Some(refused) = &self.refused else {
            return newly;
        };
        let (first, end) = (range.begin / PAGE_SIZE, range.end.div_ceil(PAGE_SIZE));
        let given = refused.given.range(first..end);
        newly + given.filter(|number| self.is_dirty_page(**number)).count() as u64
    }

    /// The dirty pages of `range` have so many more sectors, which is one for each.
    pub(crate) fn note_reserved(&mut self, range: &ByteRange, reserved: SetAside) {
        if let Some(refused) = &mut self.refused {
            let (first, end) = (range.begin / PAGE_SIZE, range.end.div_ceil(PAGE_SIZE));
            refused
                .given
                .retain(|number| !(first..end).contains(number));
        }
        self.reserved += reserved;
    }

    /// Pages are not dirty any more that were dropped or cut. How many of them had no sectors.
    pub(crate) fn note_dropped(&mut self) -> u64 {
        let Some(mut refused) = self.refused.take() else {
            return 0;
        };
        let before = refused.given.len();
        let is_busy = |number: &u64| self.pages.is_busy(&page(*number));
        refused.given.retain(is_busy);
        let dropped = before - refused.given.len();
        self.refused = Some(refused);
        dropped as u64
    }

    /// The owner has the pieces of these batches.
    pub(crate) fn note_taken(&mut self, done: &[Batch]) {
        if let Some(refused) = &mut self.refused {
            let pieces = done.iter().flat_map(|b| &b.numbers[b.sector_count..]);
            pieces.for_each(|number| _ = refused.given.remove(number));
        }
    }

    /// The Commit that is to be made may be refused for its pieces: what else it brings must be known then.
    pub(crate) fn may_pieces_be_refused(&self, is_promised: bool) -> bool {
        !is_promised && self.has_sectors() && self.batches.iter().any(Batch::has_pieces)
    }

    /// Keeps of pages that can go as pieces alone those that may go now. The others are dirty again.
    pub(crate) fn hold_refused(
        &mut self,
        is_promised: bool,
        pages: Vec<DirtyPage>,
        env: &Env<'_>,
    ) -> Vec<DirtyPage> {
        let refused = self.refused.as_ref();
        let is_fresh = refused.is_some_and(|refused| env.now.since(refused.at) < PAUSE);
        if is_promised || !is_fresh || !self.has_sectors() {
            return pages;
        }
        put_back(self, &pages, env);
        Vec::new()
    }

    /// The Commit that was refused for want of room brought pieces, which may be why.
    pub(crate) fn are_pieces_in(&self, commit: &Commit, done: &[Batch]) -> bool {
        let is_promised = done.iter().any(|batch| batch.is_promised);
        !commit.pieces.is_empty() && !is_promised && self.has_sectors()
    }

    /// Pieces were refused. True: others that wait have been refused for too long.
    fn note_refused(&mut self, now: Instant) -> bool {
        self.note_dropped();
        let (since, given) = match self.refused.take() {
            Some(refused) if !refused.given.is_empty() => (refused.since, refused.given),
            _ => (now, BTreeSet::new()),
        };
        self.refused = Some(Refused {
            since,
            at: now,
            given,
        });
        now.since(since) > PATIENCE
    }

    /// What of a batch goes with the next Commit or is dirty again, and what has waited for too long: so many pages are lost.
    fn keep_batch(&mut self, env: &Env<'_>, mut batch: Batch, gives_up: bool) -> usize {
        let owner = env.owner(self.ino.shard());
        let pieces = batch.numbers.split_off(batch.sector_count);
        let (whole, parts): (Vec<u64>, Vec<u64>) = pieces
            .into_iter()
            .partition(|number| batch.later.contains(number) && !self.has_given_up(*number));
        let mut aside = std::mem::take(&mut batch.aside);
        let kept = aside.part(whole.len() as u64, false);
        self.reserved += kept;
        env.grants.unreserve(owner, aside);
        self.pages.on_flushed(&whole, false, false);
        let lost_count = match gives_up {
            true => parts.len(),
            false => 0,
        };
        // What was written to meanwhile has a sector for that.
        let is_bare = |number: &u64| !gives_up && !self.is_dirty_page(*number);
        let bare: Vec<u64> = parts.iter().copied().filter(is_bare).collect();
        let refused = self.refused.as_mut().expect("just noted");
        parts
            .iter()
            .for_each(|number| _ = refused.given.remove(number));
        refused.given.extend(bare);
        self.pages.on_flushed(&parts, false, gives_up);
        match &mut batch.state {
            BatchState::Committing(extents) if !extents.is_empty() && !batch.is_cut => {
                batch.state = BatchState::Stored(std::mem::take(extents));
                batch.is_flushed = true;
                batch.later.clear();
                batch.span = span_of(&batch.numbers, self.size);
                self.batches.push(batch);
            }
            // Cut, or the file was a small one when the Commit was made and nothing was kept of what was stored.
            _ => {
                env.grants.discard(owner, &batch.runs);
                self.write_again(env, &batch);
            }
        }
        lost_count
    }

    /// A Commit was refused, and its pages are lost. What it told beside them is told again for others that are to be written:
    /// those behind the end that the owner knows would be refused without it.
    pub(crate) fn forget_refused(&mut self) {
        let known = self.attr.map_or(0, |attr| attr.size);
        let end = self.pages.busy_end();
        self.size = self.size.min(end.unwrap_or(0)).max(known);
        self.is_size_dirty &= self.size > known;
        if end.is_none() {
            self.modified = None;
            self.kill_set_id = None;
            self.drops_rights = false;
        }
    }

    /// The sectors of these pages cannot be used: they are dirty again and go to others. Where none are in hand,
    /// the write-back asks for some.
    pub(crate) fn write_again(&mut self, env: &Env<'_>, batch: &Batch) {
        let (owner, numbers) = (env.owner(self.ino.shard()), &batch.numbers);
        let sectors = numbers.len() as u64 - batch.aside.sectors();
        let part = match numbers.iter().all(|number| self.is_page_promised(*number)) {
            true => {
                let sectors = sectors.min(limits::PROMISED_ASK_MAX);
                env.grants.reserve_promised(owner, sectors)
            }
            false => {
                let is_there = env.grants.reserve(owner, sectors);
                is_there.then_some(SetAside::plain(sectors))
            }
        };
        self.reserved += batch.aside;
        self.reserved += part.unwrap_or_default();
        self.pages.on_flushed(numbers, false, false);
    }
}
