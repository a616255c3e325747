//! The page index of one inode: which bytes are in the pagepool, which of them are dirty, which are on
//! their way to disk.
//!
//! Invariants (`check()`)
//! - A page holds exactly one reference of its frame.
//! - `dirty` is a part of `valid`; a page in flight is not flushed again before `on_flushed`.
//! - Bytes of a frame that are not in `valid` are undefined; nobody reads them.
//!
//! A write to a frozen frame (an answer or a disk write holds it) goes to a copy, so that what was
//! checksummed is what is written.

use std::collections::{BTreeMap, BTreeSet};

use types::frame::FRAME_SIZE;
use types::{ByteRange, FrameRef, Piece, RangeSet, SmallBytes, Span};

use crate::Pool;

/// Bytes of a page: one frame, one sector.
pub const PAGE_SIZE: u64 = FRAME_SIZE as u64;

/// This part of the pagepool is kept for checksum sectors, the journal and other nodes' data: without it
/// nothing dirty could ever be written back.
pub(crate) const RESERVE_PART: u64 = 32;

/// Which bytes of a page: everything, or parts of it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    All,
    Some(RangeSet),
}

impl Part {
    const NONE: Self = Self::Some(RangeSet::new());

    fn insert(&mut self, range: ByteRange) {
        if let Self::Some(set) = self {
            set.insert(range);
            if set.contains(&ByteRange::new(0, PAGE_SIZE)) {
                *self = Self::All;
            }
        }
    }

    fn contains(&self, range: &ByteRange) -> bool {
        match self {
            Self::All => true,
            Self::Some(set) => set.contains(range),
        }
    }

    fn overlaps(&self, range: &ByteRange) -> bool {
        match self {
            Self::All => !range.is_empty(),
            Self::Some(set) => set.overlaps(range),
        }
    }

    fn is_none(&self) -> bool {
        matches!(self, Self::Some(set) if set.is_empty())
    }

    fn set(&self) -> RangeSet {
        match self {
            Self::All => RangeSet::of(ByteRange::new(0, PAGE_SIZE)),
            Self::Some(set) => set.clone(),
        }
    }

    fn remove(&mut self, range: ByteRange) {
        let mut set = self.set();
        set.remove(range);
        *self = Self::Some(set);
    }
}

/// One cached page.
#[derive(Debug)]
struct Page {
    frame: FrameRef,
    valid: Part,
    dirty: Part,
    /// Sequence at which it became dirty.
    dirtied: u64,
    /// What a running flush carries of it, and since when that was dirty; none when no flush runs.
    in_flight: Option<(Part, u64)>,
    /// Seen since the clock hand passed.
    is_recent: bool,
}

/// A dirty page as a flush takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyPage {
    /// Page number in the file.
    pub number: u64,
    /// The frame; the flush holds a reference of its own.
    pub frame: FrameRef,
    /// Dirty byte ranges within the page.
    pub dirty: RangeSet,
    /// Valid from the page's first byte up to here (its end when the page is whole).
    pub valid_begin_to: u64,
}

impl DirtyPage {
    /// The whole sector can be written: all bytes are known, or those up to `size_end` (bytes of the
    /// page before the end of the file), behind which only zeros are.
    pub fn is_whole(&self, size_end: u64) -> bool {
        self.valid_begin_to >= size_end.min(PAGE_SIZE)
    }
}

/// What a read finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Everything is cached; the spans carry one reference for each frame they touch.
    All(Vec<Span>),
    /// These byte ranges (page aligned, cut at nothing) must be loaded first.
    Missing(RangeSet),
}

/// No frame could be had: flush or evict, then try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoFrame;

/// The page index of an inode.
#[derive(Debug, Default)]
pub struct Pages {
    pages: BTreeMap<u64, Page>,
    /// Pages with dirty bytes that no running flush carries.
    dirty: BTreeSet<u64>,
    /// Pages that a running flush carries.
    flying: BTreeSet<u64>,
    /// Grows with each `mark_goal`.
    sequence: u64,
    /// Pages dirty or in flight, by the sequence at which they became dirty.
    outstanding: BTreeMap<u64, usize>,
    clock_hand: u64,
}

/// One page less that became dirty at `since`.
fn settle(outstanding: &mut BTreeMap<u64, usize>, since: u64) {
    let count = outstanding
        .get_mut(&since)
        .expect("every dirty page is counted");
    *count -= 1;
    if *count == 0 {
        outstanding.remove(&since);
    }
}

fn page_of(byte: u64) -> u64 {
    byte / PAGE_SIZE
}

/// The part of `range` that lies in page `number`, relative to the page's start.
fn part_of(range: &ByteRange, number: u64) -> ByteRange {
    let base = number * PAGE_SIZE;
    ByteRange::new(
        range.begin.max(base) - base,
        range.end.min(base + PAGE_SIZE) - base,
    )
}

fn pages_of(range: &ByteRange) -> std::ops::RangeInclusive<u64> {
    page_of(range.begin)..=page_of(range.end - 1)
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "offsets within a page are below 4096"
)]
fn span_of(frame: FrameRef, part: &ByteRange) -> Span {
    Span {
        frame,
        offset: part.begin as u32,
        length: part.length() as u32,
    }
}

/// Appends `span`, joining it to the last one where memory is adjacent (spans stay within a slab).
fn push_span(spans: &mut Vec<Span>, span: Span) {
    let position = |s: &Span| u64::from(s.frame.0) * PAGE_SIZE + u64::from(s.offset);
    if let Some(last) = spans.last_mut() {
        let slab = |s: &Span| s.frame.0 / types::frame::FRAMES_PER_SLAB;
        if position(last) + u64::from(last.length) == position(&span) && slab(last) == slab(&span) {
            last.length += span.length;
            return;
        }
    }
    spans.push(span);
}

impl Pages {
    /// No page is cached.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages cached.
    pub fn count(&self) -> usize {
        self.pages.len()
    }

    /// Pages with dirty bytes that no running flush carries.
    pub fn dirty_count(&self) -> usize {
        self.dirty.len()
    }

    /// Pages of `range` that a write would make dirty and that are not dirty yet: what has to be
    /// reserved before the write.
    pub fn newly_dirty_count(&self, range: &ByteRange) -> u64 {
        let all = page_of(range.end - 1) - page_of(range.begin) + 1;
        let dirty = self.dirty.range(pages_of(range)).count();
        all - dirty as u64
    }

    /// Looks up `range` (not empty, within the file's size).
    pub fn read(&mut self, range: &ByteRange, pool: &dyn Pool) -> Found {
        let missing = self.missing(range);
        if !missing.is_empty() {
            return Found::Missing(missing);
        }
        let mut spans = Vec::with_capacity(4);
        for (number, page) in self.pages.range_mut(pages_of(range)) {
            page.is_recent = true;
            pool.retain(page.frame);
            push_span(&mut spans, span_of(page.frame, &part_of(range, *number)));
        }
        Found::All(spans)
    }

    /// Pages of `range` of which bytes in it are not valid, as whole pages.
    pub fn missing(&self, range: &ByteRange) -> RangeSet {
        let mut missing = RangeSet::new();
        let mut next = page_of(range.begin);
        let last = page_of(range.end - 1);
        for (number, page) in self.pages.range(pages_of(range)) {
            if next < *number {
                missing.insert(ByteRange::new(next * PAGE_SIZE, *number * PAGE_SIZE));
            }
            if !page.valid.contains(&part_of(range, *number)) {
                missing.insert(ByteRange::at(*number * PAGE_SIZE, PAGE_SIZE));
            }
            next = *number + 1;
        }
        if next <= last {
            missing.insert(ByteRange::new(next * PAGE_SIZE, (last + 1) * PAGE_SIZE));
        }
        missing
    }

    /// Writes `payload` at `offset`. Frames of a large page-aligned payload are taken over (a reference
    /// is added), others copied. On `NoFrame` nothing has changed.
    pub fn write(&mut self, offset: u64, payload: Span, pool: &dyn Pool) -> Result<(), NoFrame> {
        const MOVE_SIZE_MIN: u32 = 128 << 10;
        let range = ByteRange::at(offset, payload.length.into());
        let may_move = payload.offset == 0
            && offset.is_multiple_of(PAGE_SIZE)
            && payload.length >= MOVE_SIZE_MIN;
        let mut fresh = self.frames_for(&range, may_move, pool)?;
        let mut done = 0u32;
        for number in pages_of(&range) {
            let part = part_of(&range, number);
            let source = payload.part(done, span_of(payload.frame, &part).length);
            done += source.length;
            if may_move && source.length as usize == FRAME_SIZE {
                pool.retain(source.frame);
                self.put(number, source.frame, part, pool);
                continue;
            }
            let frame = match fresh.pop() {
                Some((at, frame)) if at == number => {
                    self.replace_frame(number, frame, pool);
                    frame
                }
                other => {
                    fresh.extend(other);
                    self.pages[&number].frame
                }
            };
            pool.copy(source, span_of(frame, &part));
            self.mark(number, part);
        }
        assert!(fresh.is_empty());
        Ok(())
    }

    /// Allocates, before anything changes, the frames that copying `range` in needs: for pages that are
    /// absent or frozen. Sorted so that `pop` gives them in ascending order of page.
    fn frames_for(
        &self,
        range: &ByteRange,
        may_move: bool,
        pool: &dyn Pool,
    ) -> Result<Vec<(u64, FrameRef)>, NoFrame> {
        let mut fresh = Vec::new();
        let (total, free) = pool.frame_counts();
        if free <= total / RESERVE_PART {
            return Err(NoFrame);
        }
        for number in pages_of(range).rev() {
            if may_move && part_of(range, number).length() == PAGE_SIZE {
                continue;
            }
            if self
                .pages
                .get(&number)
                .is_some_and(|p| !pool.is_shared(p.frame))
            {
                continue;
            }
            match pool.alloc() {
                Some(frame) => fresh.push((number, frame)),
                None => {
                    fresh.iter().for_each(|(_, frame)| pool.release(*frame));
                    return Err(NoFrame);
                }
            }
        }
        Ok(fresh)
    }

    /// Gives page `number` the new `frame`, with the old one's bytes if there is an old one.
    fn replace_frame(&mut self, number: u64, frame: FrameRef, pool: &dyn Pool) {
        match self.pages.get_mut(&number) {
            Some(page) => {
                pool.copy(Span::whole(page.frame), Span::whole(frame));
                pool.release(page.frame);
                page.frame = frame;
            }
            None => {
                let page = Page {
                    frame,
                    valid: Part::NONE,
                    dirty: Part::NONE,
                    dirtied: 0,
                    in_flight: None,
                    is_recent: true,
                };
                self.pages.insert(number, page);
            }
        }
    }

    /// Gives page `number` a frame whose bytes in `part` are new and dirty.
    fn put(&mut self, number: u64, frame: FrameRef, part: ByteRange, pool: &dyn Pool) {
        assert!(part.length() == PAGE_SIZE);
        if let Some(page) = self.pages.get_mut(&number) {
            pool.release(page.frame);
            page.frame = frame;
        } else {
            let page = Page {
                frame,
                valid: Part::NONE,
                dirty: Part::NONE,
                dirtied: 0,
                in_flight: None,
                is_recent: true,
            };
            self.pages.insert(number, page);
        }
        self.mark(number, part);
    }

    fn mark(&mut self, number: u64, part: ByteRange) {
        let page = self
            .pages
            .get_mut(&number)
            .expect("the caller has just put it there");
        if page.dirty.is_none() {
            self.dirty.insert(number);
            page.dirtied = self.sequence;
            *self.outstanding.entry(self.sequence).or_default() += 1;
        }
        page.valid.insert(part);
        page.dirty.insert(part);
        page.is_recent = true;
    }

    /// Takes the bytes that a load brought for page `number`: those that tokens cover (`covered`; `None`
    /// is all of the page) and that are not valid yet. `frame` is taken over with one reference.
    pub fn fill(
        &mut self,
        number: u64,
        frame: FrameRef,
        covered: Option<&RangeSet>,
        pool: &dyn Pool,
    ) {
        let loaded = match covered {
            None => Part::All,
            Some(set) => Part::Some(set.clone()),
        };
        let Some(page) = self.pages.get_mut(&number) else {
            if loaded.is_none() {
                pool.release(frame);
                return;
            }
            let page = Page {
                frame,
                valid: loaded,
                dirty: Part::NONE,
                dirtied: 0,
                in_flight: None,
                is_recent: true,
            };
            self.pages.insert(number, page);
            return;
        };
        if page.valid == Part::All || loaded.is_none() {
            pool.release(frame);
            return;
        }
        // The loaded frame is ours alone: put the newer bytes of the page into it.
        for newer in page.valid.set().ranges() {
            pool.copy(span_of(page.frame, newer), span_of(frame, newer));
        }
        pool.release(page.frame);
        page.frame = frame;
        for range in loaded.set().ranges() {
            page.valid.insert(*range);
        }
    }

    /// Lays `piece` (bytes kept as metadata) over what was just loaded into `frame`, a frame of page
    /// `number` that is not in the index yet.
    pub fn overlay(piece: &Piece, number: u64, frame: FrameRef, pool: &dyn Pool) {
        let base = number * PAGE_SIZE;
        let page = ByteRange::at(base, PAGE_SIZE);
        let bytes = ByteRange::new(piece.offset, piece.end());
        if let Some(both) = page.intersection(&bytes) {
            let skip = usize::try_from(both.begin - piece.offset).expect("pieces are small");
            let length = usize::try_from(both.length()).expect("pieces are small");
            let target = span_of(frame, &part_of(&both, number));
            pool.store(target, &piece.bytes[skip..skip + length]);
        }
    }

    /// Takes up to `count_max` dirty pages of `range` for a flush: they are clean until they are written
    /// again, in flight until `on_flushed`, and each frame carries one reference more. Pages in flight are
    /// left out, and those that became dirty after the goal `until`.
    pub fn take_dirty(
        &mut self,
        range: &ByteRange,
        count_max: usize,
        until: u64,
        pool: &dyn Pool,
    ) -> Vec<DirtyPage> {
        let mut taken = Vec::new();
        if self.dirty.is_empty() || range.is_empty() {
            return taken;
        }
        let numbers: Vec<u64> = self
            .dirty
            .range(pages_of(range))
            .filter(|number| !self.flying.contains(number))
            .filter(|number| self.pages[number].dirtied <= until)
            .take(count_max)
            .copied()
            .collect();
        taken.reserve(numbers.len());
        for number in numbers {
            let page = self.pages.get_mut(&number).expect("a dirty page is cached");
            let dirty = std::mem::replace(&mut page.dirty, Part::NONE);
            let valid_begin_to = match &page.valid {
                Part::All => PAGE_SIZE,
                Part::Some(set) => set
                    .ranges()
                    .first()
                    .filter(|r| r.begin == 0)
                    .map_or(0, |r| r.end),
            };
            pool.retain(page.frame);
            let bytes = dirty.set();
            taken.push(DirtyPage {
                number,
                frame: page.frame,
                dirty: bytes,
                valid_begin_to,
            });
            page.in_flight = Some((dirty, page.dirtied));
            self.dirty.remove(&number);
            self.flying.insert(number);
        }
        taken
    }

    /// A flush of `numbers` ended. On failure what it carried is dirty again, unless `drop_failed`.
    pub fn on_flushed(&mut self, numbers: &[u64], is_ok: bool, drop_failed: bool) {
        for number in numbers {
            let Some(page) = self.pages.get_mut(number) else {
                continue;
            };
            let Some((carried, since)) = page.in_flight.take() else {
                continue;
            };
            self.flying.remove(number);
            let mut again = RangeSet::new();
            if !is_ok && !drop_failed {
                // What was cut off meanwhile does not come back.
                for range in carried.set().ranges() {
                    for still in page.valid.set().intersection(range).ranges() {
                        again.insert(*still);
                    }
                }
            }
            if again.is_empty() {
                settle(&mut self.outstanding, since);
                continue;
            }
            if page.dirty.is_none() {
                self.dirty.insert(*number);
                page.dirtied = since;
            } else {
                // One entry for the page: the older one.
                settle(&mut self.outstanding, since.max(page.dirtied));
                page.dirtied = since.min(page.dirtied);
            }
            for range in again.ranges() {
                page.dirty.insert(*range);
            }
        }
    }

    /// Makes clean bytes dirty again, so that a later flush puts them elsewhere. True: the page is dirty by
    /// it now, and was not before.
    pub fn redirty(&mut self, number: u64, bytes: &RangeSet) -> bool {
        let Some(page) = self.pages.get_mut(&number) else {
            return false;
        };
        if page.in_flight.is_some() || !page.dirty.is_none() {
            return false;
        }
        let valid = page.valid.set();
        for range in bytes.ranges() {
            for still in valid.intersection(range).ranges() {
                page.dirty.insert(*still);
            }
        }
        if page.dirty.is_none() {
            return false;
        }
        page.dirtied = self.sequence;
        self.dirty.insert(number);
        *self.outstanding.entry(self.sequence).or_default() += 1;
        true
    }

    /// Pages with bytes of `range` that are dirty or in flight.
    pub fn busy(&self, range: &ByteRange) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let is_busy = |number: &&u64| {
            let page = &self.pages[*number];
            let part = part_of(range, **number);
            let carried = page
                .in_flight
                .as_ref()
                .is_some_and(|(bytes, _)| bytes.overlaps(&part));
            carried || page.dirty.overlaps(&part)
        };
        let dirty = self.dirty.range(pages_of(range));
        dirty
            .chain(self.flying.range(pages_of(range)))
            .filter(is_busy)
            .copied()
            .collect()
    }

    /// Names what is dirty or in flight now: `is_reached` says when all of it is clean.
    pub fn mark_goal(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// What was dirty at `goal` has been flushed (or dropped).
    pub fn is_reached(&self, goal: u64) -> bool {
        self.outstanding
            .first_key_value()
            .is_none_or(|(oldest, _)| *oldest > goal)
    }

    /// One of `numbers` became dirty before `goal`.
    pub fn has_older(&self, numbers: &[u64], goal: u64) -> bool {
        let since = |number: &u64| {
            self.pages
                .get(number)?
                .in_flight
                .as_ref()
                .map(|(_, at)| *at)
        };
        numbers.iter().filter_map(since).any(|at| at <= goal)
    }

    /// Some page of `range` has dirty bytes or is in flight.
    pub fn is_busy(&self, range: &ByteRange) -> bool {
        !range.is_empty()
            && (self.dirty.range(pages_of(range)).next().is_some()
                || self.flying.range(pages_of(range)).next().is_some())
    }

    /// Forgets the bytes of `range`, dirty ones too. Returns how many pages stopped being dirty.
    pub fn discard(&mut self, range: &ByteRange, pool: &dyn Pool) -> usize {
        if range.is_empty() {
            return 0;
        }
        let before = self.dirty.len();
        let numbers: Vec<u64> = self.pages.range(pages_of(range)).map(|(n, _)| *n).collect();
        for number in numbers {
            let page = self.pages.get_mut(&number).expect("just listed");
            let part = part_of(range, number);
            let was_dirty = !page.dirty.is_none();
            page.valid.remove(part);
            page.dirty.remove(part);
            if was_dirty && page.dirty.is_none() {
                self.dirty.remove(&number);
                settle(&mut self.outstanding, page.dirtied);
            }
            if page.valid.is_none() && page.in_flight.is_none() {
                pool.release(page.frame);
                self.pages.remove(&number);
            }
        }
        before - self.dirty.len()
    }

    /// The file now ends at `size`: later bytes are forgotten; bytes behind it in the last page are zero.
    pub fn truncate(&mut self, size: u64, pool: &dyn Pool) -> usize {
        self.discard(&ByteRange::new(size, u64::MAX), pool)
    }

    /// Makes bytes `range` (within one page) zero and valid without making them dirty: what lies behind
    /// an old end of file. Does nothing when the page is not cached; a frozen frame is copied first.
    pub fn zero_gap(&mut self, range: &ByteRange, pool: &dyn Pool) -> Result<(), NoFrame> {
        let number = page_of(range.begin);
        let Some(page) = self.pages.get_mut(&number) else {
            return Ok(());
        };
        let part = part_of(range, number);
        let missing = match &page.valid {
            Part::All => return Ok(()),
            Part::Some(set) => set.missing(&part),
        };
        if missing.is_empty() {
            return Ok(());
        }
        if pool.is_shared(page.frame) {
            let frame = pool.alloc().ok_or(NoFrame)?;
            pool.copy(Span::whole(page.frame), Span::whole(frame));
            pool.release(page.frame);
            page.frame = frame;
        }
        for gap in missing.ranges() {
            pool.zero(span_of(page.frame, gap));
            page.valid.insert(*gap);
        }
        Ok(())
    }

    /// Frees up to `count_max` clean pages that nobody uses, those not seen lately first. Returns how many.
    pub fn evict(&mut self, count_max: usize, pool: &dyn Pool) -> usize {
        let mut victims = Vec::new();
        let hand = self.clock_hand;
        let mut last = hand;
        for (number, page) in self.pages.range_mut(hand..) {
            if victims.len() == count_max {
                break;
            }
            last = *number + 1;
            let is_busy = !page.dirty.is_none() || page.in_flight.is_some();
            if is_busy || pool.is_shared(page.frame) {
                continue;
            }
            if std::mem::replace(&mut page.is_recent, false) {
                continue;
            }
            victims.push(*number);
        }
        let wrapped = self.pages.range(last..).next().is_none();
        self.clock_hand = if wrapped { 0 } else { last };
        for number in &victims {
            let page = self.pages.remove(number).expect("just listed");
            pool.release(page.frame);
        }
        victims.len()
    }

    /// Drops everything, dirty bytes too.
    pub fn clear(&mut self, pool: &dyn Pool) {
        for page in std::mem::take(&mut self.pages).into_values() {
            pool.release(page.frame);
        }
        self.dirty.clear();
        self.flying.clear();
        self.outstanding.clear();
    }

    /// Asserts the invariants.
    pub fn check(&self) {
        for (number, page) in &self.pages {
            assert_eq!(self.dirty.contains(number), !page.dirty.is_none());
            assert_eq!(self.flying.contains(number), page.in_flight.is_some());
        }
        for page in self.pages.values() {
            for range in page.dirty.set().ranges() {
                assert!(page.valid.contains(range), "dirty bytes are valid");
            }
        }
    }
}

/// The bytes of `dirty` of a page as pieces that travel as metadata.
pub fn pieces_of(page: &DirtyPage, pool: &dyn Pool) -> Vec<Piece> {
    let base = page.number * PAGE_SIZE;
    let piece = |range: &ByteRange| {
        let bytes: SmallBytes = pool.load(span_of(page.frame, range));
        Piece {
            offset: base + range.begin,
            bytes,
        }
    };
    page.dirty.ranges().iter().map(piece).collect()
}
