//! 64 adjacent pages of a file: one bit for each in a word for each thing that can be true of a page.
//!
//! Large reads and writes touch whole pages, many at a time: they are a few operations on words here. What
//! is known of parts of a page is kept aside, for the few pages that are torn.
//!
//! Invariants (`check()`)
//! - All words are parts of `present`; `dirty_whole` of `dirty` and of `whole`, `flying_whole` of `flying`.
//! - A page of `lost` has valid bytes.
//! - A torn page's sets are not empty all three; `valid` is empty when the page is whole, `dirty` when it is
//!   not dirty or dirty as a whole, `carried` likewise.
//! - Times are there when a page is dirty or in flight.

use smallvec::SmallVec;
use types::{ByteRange, FrameRef, RangeSet};

use super::PAGE_SIZE;

/// Pages of a group.
pub(super) const GROUP_PAGES: u64 = COUNT as u64;
const COUNT: usize = 64;
/// Pages of a small file: their frames lie in the group itself.
const FEW: usize = 4;

/// All bytes of a page.
const ALL: ByteRange = ByteRange::new(0, PAGE_SIZE);

/// Parts of one page.
#[derive(Debug, Default)]
struct Torn {
    valid: RangeSet,
    dirty: RangeSet,
    carried: RangeSet,
}

/// Torn pages of a group, in order: a file's last page in most groups, so that they take what they need and no more.
#[derive(Debug, Default)]
struct Tears(Vec<(u8, Torn)>);

impl Tears {
    fn find(&self, at: u8) -> Result<usize, usize> {
        self.0.binary_search_by_key(&at, |(at, _)| *at)
    }

    fn get(&self, at: u8) -> Option<&Torn> {
        self.find(at).ok().map(|index| &self.0[index].1)
    }

    fn get_mut(&mut self, at: u8) -> Option<&mut Torn> {
        let index = self.find(at).ok()?;
        Some(&mut self.0[index].1)
    }

    fn or_new(&mut self, at: u8) -> &mut Torn {
        let index = self.find(at).unwrap_or_else(|index| {
            if self.0.is_empty() {
                self.0.reserve_exact(1);
            }
            self.0.insert(index, (at, Torn::default()));
            index
        });
        &mut self.0[index].1
    }
}

/// Sequences at which pages became dirty.
#[derive(Debug)]
struct Times {
    dirtied: [u64; COUNT],
    carried: [u64; COUNT],
}

/// See the module.
#[derive(Debug)]
pub(super) struct Group {
    /// Those of the first pages, as many as have ever been needed: `FEW` or all.
    frames: SmallVec<[FrameRef; FEW]>,
    /// Pages that have a frame.
    pub(super) present: u64,
    /// Pages of which all bytes are valid.
    pub(super) whole: u64,
    /// Pages with dirty bytes that no running flush carries.
    pub(super) dirty: u64,
    dirty_whole: u64,
    /// Pages of which a running flush carries bytes.
    pub(super) flying: u64,
    flying_whole: u64,
    /// Pages with valid bytes that a flush was to write and did not, and that none will.
    pub(super) lost: u64,
    /// Pages seen since the clock hand passed.
    pub(super) recent: u64,
    torn: Tears,
    times: Option<Box<Times>>,
}

impl Default for Group {
    fn default() -> Self {
        Self {
            frames: SmallVec::from_elem(FrameRef(0), FEW),
            present: 0,
            whole: 0,
            dirty: 0,
            dirty_whole: 0,
            flying: 0,
            flying_whole: 0,
            lost: 0,
            recent: 0,
            torn: Tears::default(),
            times: None,
        }
    }
}

/// The positions of the bits of `mask`, ascending.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u8> {
    std::iter::from_fn(move || {
        let at = u8::try_from(mask.trailing_zeros()).expect("at most 64");
        mask &= mask.wrapping_sub(1);
        (at < 64).then_some(at)
    })
}

const fn bit(at: u8) -> u64 {
    1 << at
}

impl Group {
    pub(super) fn frame(&self, at: u8) -> FrameRef {
        self.frames[usize::from(at)]
    }

    /// Gives a page a frame, which may have been there before; the bytes are not judged.
    pub(super) fn set_frame(&mut self, at: u8, frame: FrameRef) {
        if usize::from(at) >= self.frames.len() {
            self.frames.resize(COUNT, FrameRef(0));
        }
        self.frames[usize::from(at)] = frame;
        self.present |= bit(at);
        self.recent |= bit(at);
    }

    /// Forgets pages that are neither dirty nor in flight.
    pub(super) fn remove(&mut self, mask: u64) {
        assert_eq!(mask & (self.dirty | self.flying), 0);
        self.present &= !mask;
        self.whole &= !mask;
        self.lost &= !mask;
        self.recent &= !mask;
        self.each_torn(mask, |torn| *torn = Torn::default());
    }

    fn each_torn(&mut self, mask: u64, act: impl Fn(&mut Torn)) {
        let tears = &mut self.torn.0;
        if tears.is_empty() {
            return;
        }
        tears.retain_mut(|(at, torn)| {
            if mask & bit(*at) != 0 {
                act(torn);
            }
            !(torn.valid.is_empty() && torn.dirty.is_empty() && torn.carried.is_empty())
        });
    }

    /// The valid bytes of a page.
    pub(super) fn valid(&self, at: u8) -> RangeSet {
        if self.whole & bit(at) != 0 {
            return RangeSet::of(ALL);
        }
        let torn = self.torn.get(at);
        torn.map(|torn| torn.valid.clone()).unwrap_or_default()
    }

    pub(super) fn is_valid(&self, at: u8, part: &ByteRange) -> bool {
        let is_part = |torn: &Torn| torn.valid.contains(part);
        self.whole & bit(at) != 0
            || part.is_empty()
            || (self.present & bit(at) != 0 && self.torn.get(at).is_some_and(is_part))
    }

    /// No byte of the page is valid.
    pub(super) fn is_blank(&self, at: u8) -> bool {
        let has = |torn: &Torn| !torn.valid.is_empty();
        self.whole & bit(at) == 0 && !self.torn.get(at).is_some_and(has)
    }

    pub(super) fn add_valid(&mut self, at: u8, part: ByteRange) {
        if self.whole & bit(at) != 0 || part.is_empty() {
            return;
        }
        let torn = self.torn.or_new(at);
        torn.valid.insert(part);
        if torn.valid.contains(&ALL) {
            self.set_whole(bit(at));
        }
    }

    /// All bytes of these pages are valid.
    pub(super) fn set_whole(&mut self, mask: u64) {
        self.whole |= mask;
        self.each_torn(mask, |torn| torn.valid = RangeSet::new());
    }

    pub(super) fn remove_valid(&mut self, at: u8, part: ByteRange) {
        let mut valid = self.valid(at);
        valid.remove(part);
        self.whole &= !bit(at);
        if valid.is_empty() {
            self.lost &= !bit(at);
            self.each_torn(bit(at), |torn| torn.valid = RangeSet::new());
        } else if valid.contains(&ALL) {
            self.set_whole(bit(at));
        } else {
            self.torn.or_new(at).valid = valid;
        }
    }

    /// The dirty bytes of a page that no running flush carries; `None`: all of it.
    pub(super) fn dirty_part(&self, at: u8) -> Option<RangeSet> {
        if self.dirty_whole & bit(at) != 0 {
            return None;
        }
        let torn = self.torn.get(at);
        Some(torn.map(|torn| torn.dirty.clone()).unwrap_or_default())
    }

    /// Makes a part of a page dirty. True: the page was clean. The bytes are valid.
    pub(super) fn add_dirty(&mut self, at: u8, part: ByteRange, sequence: u64) -> bool {
        if part.is_empty() {
            return false;
        }
        if part == ALL {
            return self.add_dirty_whole(bit(at), sequence) != 0;
        }
        let fresh = bit(at) & !self.dirty;
        self.note_dirtied(fresh, sequence);
        if self.dirty_whole & bit(at) == 0 {
            let torn = self.torn.or_new(at);
            torn.dirty.insert(part);
            if torn.dirty.contains(&ALL) {
                self.add_dirty_whole(bit(at), sequence);
            }
        }
        fresh != 0
    }

    /// Makes pages dirty as a whole. Returns those that were clean.
    pub(super) fn add_dirty_whole(&mut self, mask: u64, sequence: u64) -> u64 {
        let fresh = mask & !self.dirty;
        self.note_dirtied(fresh, sequence);
        self.dirty_whole |= mask;
        self.each_torn(mask, |torn| torn.dirty = RangeSet::new());
        fresh
    }

    fn note_dirtied(&mut self, fresh: u64, sequence: u64) {
        self.dirty |= fresh;
        if fresh != 0 {
            let times = self.times();
            for at in bits(fresh) {
                times.dirtied[usize::from(at)] = sequence;
            }
        }
    }

    fn times(&mut self) -> &mut Times {
        let none = || {
            Box::new(Times {
                dirtied: [0; COUNT],
                carried: [0; COUNT],
            })
        };
        self.times.get_or_insert_with(none)
    }

    /// Gives back memory that nothing is in.
    pub(super) fn compact(&mut self) {
        if self.torn.0.is_empty() {
            self.torn.0 = Vec::new();
        }
    }

    fn drop_times(&mut self) {
        if self.dirty | self.flying == 0 {
            self.times = None;
        }
    }

    /// When the dirty bytes of a page that no flush carries became dirty.
    pub(super) fn dirtied(&self, at: u8) -> u64 {
        let times = self.times.as_ref().expect("a dirty page has its time");
        times.dirtied[usize::from(at)]
    }

    pub(super) fn set_dirtied(&mut self, at: u8, sequence: u64) {
        self.times().dirtied[usize::from(at)] = sequence;
    }

    /// When what a flush carries became dirty.
    pub(super) fn carried_since(&self, at: u8) -> Option<u64> {
        let times = self.times.as_ref()?;
        (self.flying & bit(at) != 0).then(|| times.carried[usize::from(at)])
    }

    /// A part of a page is not dirty any more. True: nothing of it is.
    pub(super) fn remove_dirty(&mut self, at: u8, part: ByteRange) -> bool {
        if self.dirty & bit(at) == 0 {
            return false;
        }
        let mut dirty = self.dirty_part(at).unwrap_or_else(|| RangeSet::of(ALL));
        dirty.remove(part);
        if dirty.contains(&ALL) {
            return false;
        }
        self.dirty_whole &= !bit(at);
        if dirty.is_empty() {
            self.dirty &= !bit(at);
            self.each_torn(bit(at), |torn| torn.dirty = RangeSet::new());
            self.drop_times();
            return true;
        }
        self.torn.or_new(at).dirty = dirty;
        false
    }

    /// A flush takes the dirty bytes of a page with it.
    pub(super) fn take_off(&mut self, at: u8) {
        assert_eq!(self.flying & bit(at), 0, "one flush at a time");
        if self.dirty_whole & bit(at) != 0 {
            self.flying_whole |= bit(at);
        } else {
            let torn = self.torn.get_mut(at).expect("dirty in part");
            torn.carried = std::mem::take(&mut torn.dirty);
        }
        self.flying |= bit(at);
        self.dirty &= !bit(at);
        self.dirty_whole &= !bit(at);
        let times = self.times();
        times.carried[usize::from(at)] = times.dirtied[usize::from(at)];
    }

    /// The flush of a page has ended: what it carried.
    pub(super) fn land(&mut self, at: u8) -> RangeSet {
        let torn = self.torn.get(at);
        let carried = if self.flying_whole & bit(at) != 0 {
            RangeSet::of(ALL)
        } else {
            torn.map(|torn| torn.carried.clone()).unwrap_or_default()
        };
        self.land_all(bit(at));
        carried
    }

    /// What a flush carried of these pages is lost.
    pub(super) fn lose(&mut self, mask: u64) {
        self.lost |= bits(mask)
            .filter(|at| !self.is_blank(*at))
            .fold(0, |lost, at| lost | bit(at));
        self.land_all(mask);
    }

    /// These pages have been written: nothing of those that were dirty as a whole is lost any more.
    pub(super) fn settle(&mut self, mask: u64) {
        self.lost &= !(mask & self.flying_whole);
        self.land_all(mask);
    }

    /// The flush of pages has ended.
    fn land_all(&mut self, mask: u64) {
        self.flying &= !mask;
        self.flying_whole &= !mask;
        self.each_torn(mask, |torn| torn.carried = RangeSet::new());
        self.drop_times();
    }

    /// A byte of `part` is dirty or in flight.
    pub(super) fn is_busy(&self, at: u8, part: &ByteRange) -> bool {
        if part.is_empty() {
            return false;
        }
        let is_part = |torn: &Torn| torn.dirty.overlaps(part) || torn.carried.overlaps(part);
        (self.dirty_whole | self.flying_whole) & bit(at) != 0
            || self.torn.get(at).is_some_and(is_part)
    }

    /// End of what of a page is dirty or in flight.
    pub(super) fn busy_end(&self, at: u8) -> u64 {
        if (self.dirty_whole | self.flying_whole) & bit(at) != 0 {
            return ALL.end;
        }
        let torn = self.torn.get(at);
        let parts = torn.into_iter().flat_map(|t| [&t.dirty, &t.carried]);
        let ends = parts.filter_map(|part| part.ranges().last());
        ends.map(|last| last.end).max().unwrap_or_default()
    }

    pub(super) fn check(&self) {
        let words = self.whole | self.dirty | self.flying | self.lost | self.recent;
        assert_eq!(words & !self.present, 0, "what is known is of pages here");
        assert_eq!(self.dirty_whole & !(self.dirty & self.whole), 0);
        assert_eq!(self.flying_whole & !self.flying, 0);
        assert!(bits(self.lost).all(|at| !self.is_blank(at)));
        assert!(self.times.is_some() || self.dirty | self.flying == 0);
        for (at, torn) in &self.torn.0 {
            let has = |word: u64| word & bit(*at) != 0;
            assert!(has(self.present));
            assert!(torn.valid.is_empty() || !has(self.whole));
            assert_eq!(!torn.dirty.is_empty(), has(self.dirty & !self.dirty_whole));
            let carries = has(self.flying & !self.flying_whole);
            assert_eq!(!torn.carried.is_empty(), carries);
            let valid = self.valid(*at);
            assert!(torn.dirty.ranges().iter().all(|r| valid.contains(r)));
        }
    }
}
