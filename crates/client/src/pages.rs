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

mod group;

use std::collections::{BTreeMap, BTreeSet};

use types::frame::FRAME_SIZE;
use types::{ByteRange, FrameRef, InodeId, Piece, RangeSet, SmallBytes, Span};

use crate::Pool;
use group::{GROUP_PAGES, Group, bits};

/// Bytes of a page: one frame, one sector.
pub const PAGE_SIZE: u64 = FRAME_SIZE as u64;

/// A dirty page as a flush takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyPage {
    /// Page number in the file.
    pub number: u64,
    /// The frame; the flush holds a reference of its own.
    pub frame: FrameRef,
    /// Dirty byte ranges within the page; `None`: all of it, as in most pages of a large write.
    part: Option<RangeSet>,
    /// Valid from the page's first byte up to here (its end when the page is whole).
    valid_begin_to: u64,
}

impl DirtyPage {
    /// The whole sector can be written: all bytes are known, or those up to `size_end` (bytes of the
    /// page before the end of the file), behind which only zeros are.
    pub fn is_whole(&self, size_end: u64) -> bool {
        self.valid_begin_to >= size_end.min(PAGE_SIZE)
    }

    /// Every byte of it was written.
    pub fn is_all_dirty(&self) -> bool {
        self.part.is_none()
    }

    /// Dirty byte ranges within the page.
    pub fn dirty(&self) -> &[ByteRange] {
        const ALL: &[ByteRange] = &[ByteRange::new(0, PAGE_SIZE)];
        self.part.as_ref().map_or(ALL, RangeSet::ranges)
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
#[derive(Debug)]
pub struct Pages {
    ino: InodeId,
    groups: BTreeMap<u64, Box<Group>>,
    /// Groups with dirty pages.
    dirty: BTreeSet<u64>,
    /// Groups with pages that a running flush carries.
    flying: BTreeSet<u64>,
    count: usize,
    dirty_count: usize,
    /// Grows with each `mark_goal`.
    sequence: u64,
    outstanding: Outstanding,
    clock_hand: u64,
}

/// Pages dirty or in flight, by the sequence at which they became dirty.
#[derive(Debug, Default)]
struct Outstanding(BTreeMap<u64, usize>);

impl Outstanding {
    fn add(&mut self, since: u64, count: u32) {
        if count > 0 {
            *self.0.entry(since).or_default() += count as usize;
        }
    }

    /// So many pages less that became dirty at `since`.
    fn settle(&mut self, since: u64, count: usize) {
        let left = self.0.get_mut(&since).expect("every dirty page is counted");
        *left -= count;
        if *left == 0 {
            self.0.remove(&since);
        }
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

/// Cuts `numbers` where two neighbours do not belong together.
pub(crate) fn parts_of(
    numbers: &[u64],
    belong: impl Fn(u64, u64) -> bool,
) -> impl Iterator<Item = &[u64]> {
    let mut rest = numbers;
    std::iter::from_fn(move || {
        let cut = rest.windows(2).position(|pair| !belong(pair[0], pair[1]));
        let (part, behind) = rest.split_at(cut.map_or(rest.len(), |at| at + 1));
        rest = behind;
        (!part.is_empty()).then_some(part)
    })
}

/// Group of page `number` and its place in it.
fn place(number: u64) -> (u64, u8) {
    let at = u8::try_from(number % GROUP_PAGES).expect("below 64");
    (number / GROUP_PAGES, at)
}

/// The pages of `group` that `range` (not empty) touches, one bit for each.
fn mask_of(group: u64, range: &ByteRange) -> u64 {
    let base = group * GROUP_PAGES;
    let first = page_of(range.begin).max(base) - base;
    let last = page_of(range.end - 1).min(base + GROUP_PAGES - 1) - base;
    u64::MAX << first & u64::MAX >> (GROUP_PAGES - 1 - last)
}

/// The clean pages of `group`, number `index`, that nobody uses and no load is under way for.
fn idle_of(index: u64, group: &Group, loading: &RangeSet, pool: &dyn Pool) -> u64 {
    let mut idle = group.present & !group.dirty & !group.flying;
    for at in bits(idle) {
        let page = ByteRange::at((index * GROUP_PAGES + u64::from(at)) * PAGE_SIZE, PAGE_SIZE);
        if pool.is_shared(group.frame(at)) || loading.overlaps(&page) {
            idle &= !(1 << at);
        }
    }
    idle
}

fn groups_of(range: &ByteRange) -> std::ops::RangeInclusive<u64> {
    page_of(range.begin) / GROUP_PAGES..=page_of(range.end - 1) / GROUP_PAGES
}

/// What became of a frame that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GivenUp {
    /// The page index does not have it (any more).
    Gone,
    /// An answer or a disk write holds it: ask again.
    InUse,
    /// Its page is dirty and there was no frame to move it to: write it back, ask again.
    Dirty,
}

impl Pages {
    /// Gives back memory that nothing is in: an empty tree keeps its last node.
    pub(crate) fn compact(&mut self) {
        for set in [&mut self.dirty, &mut self.flying] {
            if set.is_empty() {
                *set = BTreeSet::new();
            }
        }
        if self.outstanding.0.is_empty() {
            self.outstanding.0 = BTreeMap::new();
        }
        if self.groups.is_empty() {
            self.groups = BTreeMap::new();
        }
        // Large files have many, and little of their memory is not frames.
        if self.groups.len() == 1 {
            self.groups.values_mut().for_each(|group| group.compact());
        }
    }

    /// No page of `ino`.
    pub fn new(ino: InodeId) -> Self {
        Self {
            ino,
            groups: BTreeMap::new(),
            dirty: BTreeSet::new(),
            flying: BTreeSet::new(),
            count: 0,
            dirty_count: 0,
            sequence: 0,
            outstanding: Outstanding::default(),
            clock_hand: 0,
        }
    }

    /// No page is cached.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Nothing is cached or on its way, and nobody waits for what was: a new one does as well.
    pub(crate) fn is_blank(&self) -> bool {
        let is_rid = self.groups.is_empty() && self.dirty.is_empty() && self.flying.is_empty();
        is_rid && self.is_empty() && self.dirty_count == 0 && self.outstanding.0.is_empty()
    }

    /// Pages cached.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Pages with dirty bytes that no running flush carries.
    pub fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Pages with dirty bytes, also those that a running flush carries.
    pub fn busy_count(&self) -> usize {
        self.outstanding.0.values().sum()
    }

    /// Pages of `range` that a write would make dirty and that are not dirty yet: what has to be
    /// reserved before the write.
    pub fn newly_dirty_count(&self, range: &ByteRange) -> u64 {
        let all = page_of(range.end - 1) - page_of(range.begin) + 1;
        let groups = self.dirty.range(groups_of(range));
        let dirty =
            groups.map(|group| (self.groups[group].dirty & mask_of(*group, range)).count_ones());
        all - u64::from(dirty.sum::<u32>())
    }

    /// Looks up `range` (not empty, within the file's size).
    pub fn read(&mut self, range: &ByteRange, pool: &dyn Pool) -> Found {
        let missing = self.missing(range);
        if !missing.is_empty() {
            return Found::Missing(missing);
        }
        let mut spans = Vec::with_capacity(4);
        for (index, group) in self.groups.range_mut(groups_of(range)) {
            let mask = mask_of(*index, range);
            group.recent |= mask;
            for at in bits(mask) {
                let part = part_of(range, index * GROUP_PAGES + u64::from(at));
                push_span(&mut spans, span_of(group.frame(at), &part));
            }
        }
        for span in &spans {
            let count = (span.offset + span.length).div_ceil(types::frame::FRAME_BYTES);
            pool.retain_run(span.frame, count);
        }
        Found::All(spans)
    }

    /// Pages of `range` of which bytes in it are not valid, as whole pages.
    pub fn missing(&self, range: &ByteRange) -> RangeSet {
        let mut missing = RangeSet::new();
        for index in groups_of(range) {
            let mask = mask_of(index, range);
            let group = self.groups.get(&index);
            let whole = group.map_or(0, |group| group.whole);
            for at in bits(mask & !whole) {
                let number = index * GROUP_PAGES + u64::from(at);
                let part = part_of(range, number);
                if !group.is_some_and(|group| group.is_valid(at, &part)) {
                    missing.insert(ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
                }
            }
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
        // What is moved comes first; at most the last page is copied.
        let moved = if may_move {
            payload.length / types::frame::FRAME_BYTES
        } else {
            0
        };
        let begin = offset + u64::from(moved) * PAGE_SIZE;
        let copied = ByteRange::new(begin, range.end);
        let mut fresh = self.frames_for(&copied, pool)?;
        if moved > 0 {
            let range = ByteRange::new(offset, begin);
            self.put(&range, payload.frame, moved, pool);
        }
        if copied.is_empty() {
            return Ok(());
        }
        let mut done = moved * types::frame::FRAME_BYTES;
        for number in pages_of(&copied) {
            let part = part_of(&copied, number);
            let source = payload.part(done, span_of(payload.frame, &part).length);
            done += source.length;
            if let Some((_, frame)) = fresh.pop_if(|(at, _)| *at == number) {
                self.replace_frame(number, frame, pool);
            }
            let (index, at) = place(number);
            let group = self.groups.get_mut(&index).expect("it has a frame now");
            pool.copy(source, span_of(group.frame(at), &part));
            group.recent |= 1 << at;
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
        pool: &dyn Pool,
    ) -> Result<Vec<(u64, FrameRef)>, NoFrame> {
        let mut fresh = Vec::new();
        if range.is_empty() {
            return Ok(fresh);
        }
        let room = pool.frame_counts().1.saturating_sub(pool.levels().reserve);
        for number in pages_of(range).rev() {
            if self
                .frame_of(number)
                .is_some_and(|frame| !pool.is_shared(frame))
            {
                continue;
            }
            let has_room = (fresh.len() as u64) < room;
            match has_room.then(|| pool.alloc()).flatten() {
                Some(frame) => fresh.push((number, frame)),
                None => {
                    fresh.iter().for_each(|(_, frame)| pool.release(*frame));
                    return Err(NoFrame);
                }
            }
        }
        Ok(fresh)
    }

    /// The frame of page `number`.
    fn frame_of(&self, number: u64) -> Option<FrameRef> {
        let (index, at) = place(number);
        let group = self.groups.get(&index)?;
        (group.present & 1 << at != 0).then(|| group.frame(at))
    }

    /// Some page of `range` has bytes that were to be written and never will be, as far as is known. They stay valid, but not even other
    /// nodes are to see them. True until the page goes, or is written as a whole.
    pub fn has_lost(&self, range: &ByteRange) -> bool {
        !range.is_empty() && {
            let mut groups = self.groups.range(groups_of(range));
            groups.any(|(index, group)| group.lost & mask_of(*index, range) != 0)
        }
    }

    /// The frame of a page of which all bytes are valid and none is dirty, in flight or lost. Who holds a reference of it and finds the page
    /// in it later on knows that it has not been written to: that takes another frame.
    pub fn clean_frame(&self, number: u64) -> Option<FrameRef> {
        let (index, at) = place(number);
        let group = self.groups.get(&index)?;
        let is_clean = group.whole & !(group.dirty | group.flying | group.lost) & 1 << at != 0;
        is_clean.then(|| group.frame(at))
    }

    /// Gives page `number` the new `frame`, with the old one's bytes if there is an old one.
    fn replace_frame(&mut self, number: u64, frame: FrameRef, pool: &dyn Pool) {
        let (index, at) = place(number);
        let group = self.groups.entry(index).or_default();
        if group.present & 1 << at == 0 {
            self.count += 1;
        } else {
            pool.copy(Span::whole(group.frame(at)), Span::whole(frame));
            pool.release(group.frame(at));
        }
        group.set_frame(at, frame);
        pool.own_run(frame, 1, self.ino, number);
    }

    /// Gives the pages of `range` (whole pages) the `count` frames from `first` on, whose bytes are new and
    /// dirty; a reference of each is added.
    fn put(&mut self, range: &ByteRange, first: FrameRef, count: u32, pool: &dyn Pool) {
        pool.retain_run(first, count);
        pool.own_run(first, count, self.ino, page_of(range.begin));
        let mut frame = first.0;
        for index in groups_of(range) {
            let mask = mask_of(index, range);
            let group = self.groups.entry(index).or_default();
            let old = mask & group.present;
            self.count += (mask & !old).count_ones() as usize;
            for at in bits(mask) {
                if old & 1 << at != 0 {
                    pool.release(group.frame(at));
                }
                group.set_frame(at, FrameRef(frame));
                frame += 1;
            }
            group.set_whole(mask);
            let fresh = group.add_dirty_whole(mask, self.sequence).count_ones();
            self.note_dirty(index, fresh);
        }
    }

    fn mark(&mut self, number: u64, part: ByteRange) {
        let (index, at) = place(number);
        let group = self.groups.get_mut(&index);
        let group = group.expect("the caller has just put it there");
        group.add_valid(at, part);
        let is_fresh = group.add_dirty(at, part, self.sequence);
        self.note_dirty(index, is_fresh.into());
    }

    /// So many clean pages of a group became dirty just now.
    fn note_dirty(&mut self, index: u64, fresh: u32) {
        if fresh > 0 {
            self.outstanding.add(self.sequence, fresh);
            self.dirty_count += fresh as usize;
            self.dirty.insert(index);
        }
    }

    /// A page of a group is dirty no more.
    fn note_clean(&mut self, index: u64) {
        self.dirty_count -= 1;
        if self.groups[&index].dirty == 0 {
            self.dirty.remove(&index);
        }
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
        if covered.is_some_and(RangeSet::is_empty) {
            pool.release(frame);
            return;
        }
        let (index, at) = place(number);
        let group = self.groups.entry(index).or_default();
        if group.whole & 1 << at != 0 {
            pool.release(frame);
            return;
        }
        if group.present & 1 << at == 0 {
            self.count += 1;
        } else {
            // The loaded frame is ours alone: put the newer bytes of the page into it.
            for newer in group.valid(at).ranges() {
                pool.copy(span_of(group.frame(at), newer), span_of(frame, newer));
            }
            pool.release(group.frame(at));
        }
        group.set_frame(at, frame);
        pool.own_run(frame, 1, self.ino, number);
        match covered {
            None => group.set_whole(1 << at),
            Some(set) => set.ranges().iter().for_each(|r| group.add_valid(at, *r)),
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
        taken.reserve(self.dirty_count.min(count_max));
        let indexes: Vec<u64> = self.dirty.range(groups_of(range)).copied().collect();
        for index in indexes {
            let group = self.groups.get_mut(&index).expect("a dirty page is cached");
            let mask = group.dirty & !group.flying & mask_of(index, range);
            let before = taken.len();
            for at in bits(mask) {
                if taken.len() == count_max {
                    break;
                }
                if group.dirtied(at) > until {
                    continue;
                }
                let frame = group.frame(at);
                pool.retain(frame);
                let valid_begin_to = match group.whole & 1 << at {
                    0 => {
                        let valid = group.valid(at);
                        let first = valid.ranges().first().filter(|r| r.begin == 0);
                        first.map_or(0, |r| r.end)
                    }
                    _ => PAGE_SIZE,
                };
                taken.push(DirtyPage {
                    number: index * GROUP_PAGES + u64::from(at),
                    frame,
                    part: group.dirty_part(at),
                    valid_begin_to,
                });
                group.take_off(at);
            }
            if taken.len() > before {
                self.flying.insert(index);
                if group.dirty == 0 {
                    self.dirty.remove(&index);
                }
            }
            if taken.len() == count_max {
                break;
            }
        }
        self.dirty_count -= taken.len();
        taken
    }

    /// A flush of `numbers` ended. On failure what it carried is dirty again, unless `drop_failed`.
    pub fn on_flushed(&mut self, numbers: &[u64], is_ok: bool, drop_failed: bool) {
        let is_over = is_ok || drop_failed;
        for of_group in parts_of(numbers, |a, b| a / GROUP_PAGES == b / GROUP_PAGES) {
            let index = of_group[0] / GROUP_PAGES;
            let Some(group) = self.groups.get_mut(&index) else {
                continue;
            };
            let mask = of_group.iter().fold(0, |mask, n| mask | 1 << place(*n).1);
            let flown = group.flying & mask;
            for at in bits(flown) {
                let since = group.carried_since(at).expect("it is in flight");
                if is_over {
                    self.outstanding.settle(since, 1);
                } else {
                    Self::land_again(group, at, since, &mut self.outstanding);
                }
            }
            let before = if is_over { group.dirty } else { 0 };
            match (is_ok, drop_failed) {
                (true, _) => group.settle(flown),
                (false, true) => group.lose(flown),
                (false, false) => {}
            }
            assert!(!is_over || before == group.dirty);
            if group.flying == 0 {
                self.flying.remove(&index);
            }
            if group.dirty != 0 {
                self.dirty.insert(index);
            }
        }
        if !is_over {
            let dirty = self.dirty.iter().map(|g| self.groups[g].dirty.count_ones());
            self.dirty_count = dirty.sum::<u32>() as usize;
        }
    }

    /// What a failed flush carried is dirty again, but not what was cut off meanwhile.
    fn land_again(group: &mut Group, at: u8, since: u64, outstanding: &mut Outstanding) {
        let carried = group.land(at);
        let valid = group.valid(at);
        let was_dirty = group.dirty & 1 << at != 0;
        let dirtied = if was_dirty {
            group.dirtied(at)
        } else {
            u64::MAX
        };
        let mut is_again = false;
        for range in carried.ranges() {
            for still in valid.intersection(range).ranges() {
                is_again = true;
                group.add_dirty(at, *still, since);
            }
        }
        if !is_again {
            outstanding.settle(since, 1);
        } else if was_dirty {
            // One entry for the page: the older one.
            outstanding.settle(since.max(dirtied), 1);
            group.set_dirtied(at, since.min(dirtied));
        }
    }

    /// Makes clean bytes dirty again, so that a later flush puts them elsewhere. True: the page is dirty by
    /// it now, and was not before.
    pub fn redirty(&mut self, number: u64, bytes: &RangeSet) -> bool {
        let (index, at) = place(number);
        let Some(group) = self.groups.get_mut(&index) else {
            return false;
        };
        if (group.flying | group.dirty | !group.present) & 1 << at != 0 {
            return false;
        }
        let valid = group.valid(at);
        let mut is_dirty = false;
        for range in bytes.ranges() {
            for still in valid.intersection(range).ranges() {
                group.add_dirty(at, *still, self.sequence);
                is_dirty = true;
            }
        }
        self.note_dirty(index, is_dirty.into());
        is_dirty
    }

    /// Pages with bytes of `range` that are dirty or in flight.
    pub fn busy(&self, range: &ByteRange) -> Vec<u64> {
        let mut found = Vec::new();
        if range.is_empty() {
            return found;
        }
        let dirty = self.dirty.range(groups_of(range));
        let flying = self.flying.range(groups_of(range));
        let indexes: BTreeSet<u64> = dirty.chain(flying).copied().collect();
        for index in indexes {
            let group = &self.groups[&index];
            for at in bits((group.dirty | group.flying) & mask_of(index, range)) {
                let number = index * GROUP_PAGES + u64::from(at);
                if group.is_busy(at, &part_of(range, number)) {
                    found.push(number);
                }
            }
        }
        found
    }

    /// End of what is dirty or in flight; `None`: nothing is.
    pub fn busy_end(&self) -> Option<u64> {
        let last = [&self.dirty, &self.flying].map(|groups| groups.last());
        let index = last.into_iter().flatten().max()?;
        let group = &self.groups[index];
        let at = bits(group.dirty | group.flying).last()?;
        Some((index * GROUP_PAGES + u64::from(at)) * PAGE_SIZE + group.busy_end(at))
    }

    /// Names what is dirty or in flight now: `is_reached` says when all of it is clean.
    pub fn mark_goal(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }

    /// What was dirty at `goal` has been flushed (or dropped).
    pub fn is_reached(&self, goal: u64) -> bool {
        let oldest = self.outstanding.0.first_key_value();
        oldest.is_none_or(|(oldest, _)| *oldest > goal)
    }

    /// One of `numbers` became dirty before `goal`.
    pub fn has_older(&self, numbers: &[u64], goal: u64) -> bool {
        let since = |number: &u64| {
            let (index, at) = place(*number);
            self.groups.get(&index)?.carried_since(at)
        };
        numbers.iter().filter_map(since).any(|at| at <= goal)
    }

    /// When the page became dirty, if it is, beside what a running flush carries.
    pub fn dirty_since(&self, number: u64) -> Option<u64> {
        let (index, at) = place(number);
        let group = self.groups.get(&index)?;
        (group.dirty & 1 << at != 0).then(|| group.dirtied(at))
    }

    /// A running flush carries bytes of the page.
    pub fn is_flying(&self, number: u64) -> bool {
        let (index, at) = place(number);
        let group = self.groups.get(&index);
        group.is_some_and(|group| group.flying & 1 << at != 0)
    }

    /// Some page of `range` has dirty bytes or is in flight.
    pub fn is_busy(&self, range: &ByteRange) -> bool {
        if range.is_empty() {
            return false;
        }
        let mut dirty = self.dirty.range(groups_of(range));
        let mut flying = self.flying.range(groups_of(range));
        dirty.any(|index| self.groups[index].dirty & mask_of(*index, range) != 0)
            || flying.any(|index| self.groups[index].flying & mask_of(*index, range) != 0)
    }

    /// Forgets the bytes of `range`, dirty ones too. Returns how many pages stopped being dirty.
    pub fn discard(&mut self, range: &ByteRange, pool: &dyn Pool) -> usize {
        if range.is_empty() {
            return 0;
        }
        let before = self.dirty_count;
        let touched = self.groups.range(groups_of(range));
        let indexes: Vec<u64> = touched.map(|(index, _)| *index).collect();
        for index in indexes {
            let group = self.groups.get_mut(&index).expect("just listed");
            for at in bits(group.present & mask_of(index, range)) {
                let group = self.groups.get_mut(&index).expect("just listed");
                let part = part_of(range, index * GROUP_PAGES + u64::from(at));
                let since = (group.dirty & 1 << at != 0).then(|| group.dirtied(at));
                group.remove_valid(at, part);
                let is_clean = group.remove_dirty(at, part);
                if group.is_blank(at) && group.flying & 1 << at == 0 {
                    pool.release(group.frame(at));
                    group.remove(1 << at);
                    self.count -= 1;
                }
                if is_clean {
                    self.outstanding.settle(since.expect("it was dirty"), 1);
                    self.note_clean(index);
                }
            }
            self.drop_if_empty(index);
        }
        before - self.dirty_count
    }

    fn drop_if_empty(&mut self, index: u64) {
        if self.groups[&index].present == 0 {
            self.groups.remove(&index);
        }
    }

    /// The file now ends at `size`: later bytes are forgotten; bytes behind it in the last page are zero.
    pub fn truncate(&mut self, size: u64, pool: &dyn Pool) -> usize {
        self.discard(&ByteRange::new(size, u64::MAX), pool)
    }

    /// Makes bytes `range` (within one page) zero and valid without making them dirty: what lies behind
    /// an old end of file. Does nothing when the page is not cached; a frozen frame is copied first.
    pub fn zero_gap(&mut self, range: &ByteRange, pool: &dyn Pool) -> Result<(), NoFrame> {
        let number = page_of(range.begin);
        let (index, at) = place(number);
        let part = part_of(range, number);
        let Some(frame) = self.frame_of(number) else {
            return Ok(());
        };
        let missing = self.groups[&index].valid(at).missing(&part);
        if missing.is_empty() {
            return Ok(());
        }
        if pool.is_shared(frame) {
            let frame = pool.alloc().ok_or(NoFrame)?;
            self.replace_frame(number, frame, pool);
        }
        let group = self.groups.get_mut(&index).expect("just seen");
        for gap in missing.ranges() {
            pool.zero(span_of(group.frame(at), gap));
            group.add_valid(at, *gap);
        }
        Ok(())
    }

    /// Frees up to `count_max` clean pages that nobody uses, those not seen lately first. Returns how many.
    /// Pages of `loading` stay: what is newer in them than the bytes on their way must be there when those come.
    pub fn evict(&mut self, count_max: usize, loading: &RangeSet, pool: &dyn Pool) -> usize {
        let mut freed = 0;
        let first = self.clock_hand / GROUP_PAGES;
        let mut last = first;
        let mut empty = Vec::new();
        for (index, group) in self.groups.range_mut(first..) {
            if freed >= count_max {
                break;
            }
            last = index + 1;
            let idle = idle_of(*index, group, loading, pool);
            let victims = idle & !group.recent;
            group.recent &= !idle;
            bits(victims).for_each(|at| pool.release(group.frame(at)));
            group.remove(victims);
            freed += victims.count_ones() as usize;
            if group.present == 0 {
                empty.push(*index);
            }
        }
        let is_over = self.groups.range(last..).next().is_none();
        self.clock_hand = if is_over { 0 } else { last * GROUP_PAGES };
        for index in empty {
            self.groups.remove(&index);
        }
        self.count -= freed;
        freed
    }

    /// Frees the clean pages of `range` (not empty) that nobody uses, whenever they were seen last. Returns how many. Pages of
    /// `loading` stay, as for `evict`.
    pub fn drop_clean(&mut self, range: &ByteRange, loading: &RangeSet, pool: &dyn Pool) -> usize {
        let mut freed = 0;
        let mut empty = Vec::new();
        for (index, group) in self.groups.range_mut(groups_of(range)) {
            let victims = idle_of(*index, group, loading, pool) & mask_of(*index, range);
            bits(victims).for_each(|at| pool.release(group.frame(at)));
            group.remove(victims);
            freed += victims.count_ones() as usize;
            if group.present == 0 {
                empty.push(*index);
            }
        }
        for index in empty {
            self.groups.remove(&index);
        }
        self.count -= freed;
        freed
    }

    /// The pool wants `frame`, in which page `number` was: the page goes, or moves to another frame. Clean
    /// pages move only if they were used lately and `may_move` says that there is room.
    pub fn give_up(
        &mut self,
        number: u64,
        frame: FrameRef,
        may_move: bool,
        pool: &dyn Pool,
    ) -> GivenUp {
        if self.frame_of(number) != Some(frame) {
            return GivenUp::Gone;
        }
        if pool.is_shared(frame) {
            return GivenUp::InUse;
        }
        let (index, at) = place(number);
        let group = &self.groups[&index];
        let is_dirty = (group.dirty | group.flying) & 1 << at != 0;
        let is_recent = group.recent & 1 << at != 0;
        if (is_dirty || (may_move && is_recent))
            && let Some(other) = pool.alloc()
        {
            self.replace_frame(number, other, pool);
            return GivenUp::Gone;
        }
        if is_dirty {
            return GivenUp::Dirty;
        }
        let group = self.groups.get_mut(&index).expect("just seen");
        group.remove(1 << at);
        pool.release(frame);
        self.count -= 1;
        self.drop_if_empty(index);
        GivenUp::Gone
    }

    /// Drops everything, dirty bytes too.
    pub fn clear(&mut self, pool: &dyn Pool) {
        for group in std::mem::take(&mut self.groups).into_values() {
            bits(group.present).for_each(|at| pool.release(group.frame(at)));
        }
        self.dirty.clear();
        self.flying.clear();
        self.outstanding = Outstanding::default();
        self.count = 0;
        self.dirty_count = 0;
    }

    /// Asserts the invariants.
    pub fn check(&self) {
        let mut counts = (0, 0, 0);
        for (index, group) in &self.groups {
            group.check();
            assert!(group.present != 0, "a group has a page");
            assert_eq!(self.dirty.contains(index), group.dirty != 0);
            assert_eq!(self.flying.contains(index), group.flying != 0);
            counts.0 += group.present.count_ones() as usize;
            counts.1 += group.dirty.count_ones() as usize;
            counts.2 += (group.dirty.count_ones() + group.flying.count_ones()) as usize;
        }
        let outstanding: usize = self.outstanding.0.values().sum();
        let ours = (self.count, self.dirty_count, outstanding);
        assert_eq!(ours, counts, "pages are counted");
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
    page.dirty().iter().map(piece).collect()
}

#[cfg(test)]
mod tests;
