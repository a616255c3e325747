//! A sorted batch of changes onto a root: a new root, beside the old tree, which stays as it is.
//!
//! Invariants
//! - Nothing that the old root reaches is written to. Pages are written once, children before their parents, and
//!   the root is given out when every page it reaches has been written.
//! - A subtree without changes is shared and never read, except where a page beside it got so empty that they are
//!   joined, or where pages are to leave some places (`evacuate`): then all inner pages are read and written anew, and the leaves that lie
//!   there. A page of a quarter or less exists only at the right end of a level.
//! - Memory does not depend on the batch or the tree: unused changes (the caller pushes when asked), one old page
//!   per level, at most `ahead_max` more, two new pages per level, at most `write_count_max` being written.
//!
//! Life cycle: `new` -> `push`, `end` and `poll` in turn until `Done`, or an error: then `abandon`.
//!
//! ```text
//!   old tree, from left to right          changes, sorted
//!      child without changes ----+-----------+
//!      child with changes: open  |           |
//!        its children, in turn   v           v
//!        leaf: merge with changes ----> level 0 |page|page..    full pages are sealed and written,
//!                      shared children > level 1 |page|page..    their references go one level up
//!                                        level 2 ...
//! ```
//!
//! What this deliberately does not do: flush, journal, or free anything: what it names as freed is free when the
//! new root is durable, and readers of the old root are gone.

mod writes;

use std::sync::Arc;

use rustc_hash::FxHashMap;
use types::{Epoch, Location, Lsn, Run};

use super::build::Level;
use super::fault::TreeError;
use super::ops::{Change, Ops};
use super::page::{
    Copies, LEVEL_COUNT_MAX, Page, PageRef, Root, Seal, TreeId, common_prefix, value_size_max,
};
use super::pages::{Arrival, Asked, Pages, Waiter};
use crate::format::SECTOR;
use writes::Writes;
pub use writes::{FailedCopy, PageWrite, WriteId};

/// Changes are asked for until so many bytes are there: enough to see many leaves ahead.
const CHANGES_SIZE: usize = 1 << 20;

/// What an apply is told.
#[derive(Clone, Copy, Debug)]
pub struct ApplyConfig {
    /// The tree.
    pub tree: TreeId,
    /// Epoch of the owner.
    pub epoch: Epoch,
    /// The new tree holds everything up to here.
    pub lsn: Lsn,
    /// Who waits for its pages.
    pub waiter: Waiter,
    /// Old pages that are read ahead.
    pub ahead_max: usize,
    /// New pages that are written at a time.
    pub write_count_max: usize,
    /// Most entries of a page, at least 4: `u32::MAX`, or few, so that tests get high trees.
    pub entry_count_max: u32,
}

/// What `poll` says.
#[derive(Clone, Debug)]
pub enum Step {
    /// Write this.
    Write(PageWrite),
    /// A new page lies here: part of the new tree.
    Used(Run),
    /// Was submitted, failed, and is part of no tree.
    Spent(Run),
    /// An old page: free when the new root is durable.
    Freed(Run),
    /// A copy needs another place: answer with `on_copy`, at any time.
    NeedCopy(FailedCopy),
    /// `push` more changes (until `wants_changes` is false), or `end`.
    NeedChanges,
    /// `give` places for new pages, or `abandon`.
    NeedPlaces,
    /// Pages or writes are under way: poll after `on_page` or `on_written`.
    Waiting,
    /// The new tree is written. Flush, journal the root, then free what was named.
    Done(Box<Applied>),
}

/// An apply that is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// The new root.
    pub root: Root,
    /// Places that were not needed.
    pub unused: Vec<Copies>,
    /// What was done.
    pub counters: ApplyCounters,
}

/// What an apply has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ApplyCounters {
    /// Old pages that were opened.
    pub opened: u64,
    /// Pages written.
    pub written: u64,
    /// Subtrees taken over as they are.
    pub shared: u64,
}

/// What was given to an apply that does not come to its end; the old tree is as it was. The runs named by `Used` and
/// `Spent` so far are in no tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abandoned {
    /// Places that were never submitted.
    pub unused: Vec<Copies>,
    /// Submitted, and not named by `Used` or `Spent`; writes to them may still be under way.
    pub submitted: Vec<Run>,
}

/// Why an apply cannot go on: `abandon` it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    /// An old page has no good copy.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// No copy of a new page could be written, and there is no other place.
    #[error("there is no place for a copy of page {number}")]
    NoPlace {
        /// Number of the page.
        number: u64,
    },
}

/// An old inner page whose children are taken in turn.
#[derive(Debug)]
struct Frame {
    page: Arc<Page>,
    next: usize,
    /// Keys below it are less; none: the last of the level.
    upper: Option<Vec<u8>>,
    /// Children before this one have been looked at by `read_ahead`.
    planned: usize,
}

impl Frame {
    fn is_below_upper(&self, index: usize, key: &[u8]) -> bool {
        if index + 1 < self.page.count() {
            self.page.compare(index + 1, key).is_gt()
        } else {
            self.upper.as_ref().is_none_or(|upper| key < &upper[..])
        }
    }

    fn upper(&self, index: usize) -> Option<Vec<u8>> {
        if index + 1 < self.page.count() {
            Some(self.page.key(index + 1))
        } else {
            self.upper.clone()
        }
    }
}

#[derive(Debug)]
enum Stage {
    /// The root of the old tree.
    Root(PageRef),
    /// The next child of the lowest frame.
    Descend,
    /// Read this page: its level, and everything below, is built anew.
    Open(PageRef, Option<Vec<u8>>),
    /// Entries of an old leaf (none: the tree was empty) from `index` on, and the changes below `upper`.
    Merge {
        page: Option<Arc<Page>>,
        index: usize,
        upper: Option<Vec<u8>>,
    },
    /// The rest of each level becomes its last page.
    Finish,
    /// The only page of the highest level; what has one child is not needed.
    Top(PageRef),
    Done,
}

/// What is known of the keys before the next one.
#[derive(Debug)]
enum Floor {
    /// There are none.
    Begin,
    /// This is the last one.
    After(Vec<u8>),
    /// They are less than this, the next one is not.
    From(Vec<u8>),
}

/// A checkpoint of a tree.
#[derive(Debug)]
pub struct Apply {
    config: ApplyConfig,
    sectors: u8,
    ops: Ops,
    stage: Stage,
    frames: Vec<Frame>,
    levels: Vec<Level>,
    floor: Floor,
    /// Old keys below this go.
    cut: Option<Vec<u8>>,
    /// Old pages that lie there are written anew, changed or not.
    evacuated: Vec<Run>,
    /// Pages asked for and not opened yet, by number.
    ahead: FxHashMap<u64, Option<Arc<Page>>>,
    writes: Writes,
    error: Option<ApplyError>,
    first_number: u64,
    next_number: u64,
    entries: u64,
    pages: u64,
    counters: ApplyCounters,
    key: Vec<u8>,
}

impl Apply {
    /// Begins with the tree of `root`.
    pub fn new(config: ApplyConfig, root: &Root) -> Self {
        assert!(config.write_count_max > 0);
        assert!(config.entry_count_max >= 4);
        assert_eq!(config.tree.shard, root.shard);
        Self {
            config,
            sectors: root.sectors,
            ops: Ops::default(),
            stage: root.page.map_or(
                Stage::Merge {
                    page: None,
                    index: 0,
                    upper: None,
                },
                Stage::Root,
            ),
            frames: Vec::new(),
            levels: Vec::new(),
            floor: Floor::Begin,
            cut: None,
            evacuated: Vec::new(),
            ahead: FxHashMap::default(),
            writes: Writes::default(),
            error: None,
            first_number: root.next_number,
            next_number: root.next_number,
            entries: root.entries,
            pages: root.pages,
            counters: ApplyCounters::default(),
            key: Vec::new(),
        }
    }

    /// The new tree is to have no page there, changed or not. Before anything else. Places that are given should lie elsewhere. It reads and
    /// writes all inner pages.
    pub fn evacuate(&mut self, places: &[Run]) {
        self.evacuated = places.to_vec();
        self.evacuated.sort_unstable_by_key(|run| run.at);
    }

    /// It is written anew for what it is or leads to.
    fn is_leaving(&self, child: &PageRef) -> bool {
        let is_there = |run: Run| {
            let end = self.evacuated.partition_point(|place| place.at <= run.at);
            let place = end.checked_sub(1).and_then(|at| self.evacuated.get(at));
            place.is_some_and(|place| {
                place.at.nsd == run.at.nsd
                    && run.at.sector < place.at.sector + u64::from(place.count)
            })
        };
        !self.evacuated.is_empty() && (child.level > 0 || child.runs().any(is_there))
    }

    /// The next change, in the order of keys (`Change` says more). Values have at most `value_size_max` bytes.
    pub fn push(&mut self, key: &[u8], change: Change<'_>) {
        if let Change::Put(value) = change {
            assert!(value.len() <= value_size_max(self.sectors));
        }
        self.ops.push(key, change);
    }

    /// More changes are welcome: pushing while it says so keeps memory bounded and lets leaves be read ahead.
    pub fn wants_changes(&self) -> bool {
        !self.ops.is_ended() && self.ops.size() < CHANGES_SIZE
    }

    /// There are no more changes.
    pub fn end(&mut self) {
        self.ops.end();
    }

    /// Places for the copies of a new page, in different failure groups, in free metadata sectors. They are
    /// submitted at most once.
    pub fn give(&mut self, place: Copies) {
        self.writes.give(place);
    }

    /// A page came; those it did not ask for are ignored: of other trees, and what an apply before this one still had under
    /// way when it was given up. Then poll.
    pub fn on_page(&mut self, arrival: &Arrival) {
        if arrival.tree != self.config.tree || !arrival.waiters.contains(&self.config.waiter) {
            return;
        }
        let number = arrival.reference.number;
        let Some(held) = self.ahead.get_mut(&number) else {
            return;
        };
        match &arrival.page {
            Ok(page) => *held = Some(Arc::clone(page)),
            Err(error) => {
                self.error.get_or_insert(ApplyError::Tree(*error));
            }
        }
    }

    /// A write has ended. `is_written` only if the bytes are there; failed and unknown are the same. Then poll.
    pub fn on_written(&mut self, id: WriteId, is_written: bool) {
        self.writes.on_written(id, is_written);
    }

    /// Another place for a failed copy; none: the page will have one copy less. Then poll.
    pub fn on_copy(&mut self, failed: &FailedCopy, place: Option<Location>) {
        match self.writes.on_copy(failed, place) {
            Some(child) => self.levels[usize::from(child.level) + 1].patch(&child),
            None => {
                let number = failed.number;
                self.error.get_or_insert(ApplyError::NoPlace { number });
            }
        }
    }

    /// Goes on. Afterwards do `Pages::next_fetch`.
    ///
    /// # Errors
    /// It cannot go on: `abandon` it.
    pub fn poll(&mut self, pages: &mut Pages) -> Result<Step, ApplyError> {
        loop {
            if let Some(error) = self.error {
                return Err(error);
            }
            if let Some(step) = self.writes.next_step() {
                return Ok(step);
            }
            match self.advance(pages) {
                Ok(()) => {}
                Err(step) => return Ok(step),
            }
        }
    }

    /// Gives everything up; the old tree is as it was. `Pages::forget` its waiter.
    pub fn abandon(self) -> Abandoned {
        let (unused, submitted) = self.writes.abandon(self.sectors);
        Abandoned { unused, submitted }
    }

    /// Bytes of memory that it holds, pages included.
    pub fn memory(&self) -> usize {
        let levels: usize = self.levels.iter().map(Level::memory).sum();
        let page = usize::from(self.sectors) * SECTOR;
        let old = (self.frames.len() + self.ahead.len() + 1) * page;
        self.ops.size() + levels + old + self.writes.memory()
    }

    fn advance(&mut self, pages: &mut Pages) -> Result<(), Step> {
        self.settle(pages)?;
        match std::mem::replace(&mut self.stage, Stage::Descend) {
            Stage::Root(root) => {
                self.stage = Stage::Root(root);
                self.choose_root(root)
            }
            Stage::Descend => {
                self.read_ahead(pages);
                self.descend(pages)
            }
            Stage::Open(child, upper) => self.open(pages, child, upper),
            Stage::Merge { page, index, upper } => self.merge(page, index, upper),
            Stage::Finish => {
                self.stage = Stage::Finish;
                self.finish(pages)
            }
            Stage::Top(page) => {
                self.stage = Stage::Top(page);
                self.top(pages, page)
            }
            Stage::Done => unreachable!("nothing is polled after Done"),
        }
    }

    fn known(&self) -> Result<(), Step> {
        if self.ops.is_known() {
            Ok(())
        } else {
            Err(Step::NeedChanges)
        }
    }

    fn choose_root(&mut self, root: PageRef) -> Result<(), Step> {
        self.known()?;
        if self.ops.first().is_some() || self.is_leaving(&root) {
            self.stage = Stage::Open(root, None);
        } else {
            self.share(&[], &root, None);
            self.stage = Stage::Finish;
        }
        Ok(())
    }

    /// Decides about the next old child: share, open or drop it.
    fn descend(&mut self, pages: &mut Pages) -> Result<(), Step> {
        let Some(frame) = self.frames.last() else {
            self.stage = Stage::Finish;
            return Ok(());
        };
        let index = frame.next;
        if index == frame.page.count() {
            self.frames.pop();
            return Ok(());
        }
        self.known()?;
        let child = frame.page.child(index);
        let first = self.ops.first();
        let has_changes = first.is_some_and(|(key, _)| frame.is_below_upper(index, key));
        let (mut is_cut, mut is_gone) = (false, false);
        if let Some(cut) = &self.cut {
            is_cut = frame.page.compare(index, cut).is_lt();
            // Its keys are below `upper`: gone, if that is not above the cut.
            is_gone = is_cut && !frame.is_below_upper(index, cut);
        }
        if is_gone && !has_changes && child.level == 0 {
            self.free(&child);
            self.entries -= u64::from(child.count);
            self.ahead.remove(&child.number);
            self.step_over();
            return Ok(());
        }
        let mut is_opened = has_changes || is_cut || self.is_leaving(&child);
        for level in 0..=usize::from(child.level) {
            let Some(building) = self.levels.get(level) else {
                break;
            };
            if is_opened || building.count() == 0 {
                continue;
            }
            if building.is_underfull() {
                is_opened = true;
            } else {
                // Then it is looked at again: the level above has got an entry.
                return self.emit(pages, level, false);
            }
        }
        let frame = self.frames.last().expect("looked at above");
        let upper = frame.upper(index);
        if is_opened {
            self.stage = Stage::Open(child, upper);
        } else {
            let separator = frame.page.key(index);
            self.share(&separator, &child, upper);
        }
        self.step_over();
        Ok(())
    }

    fn step_over(&mut self) {
        let frame = self.frames.last_mut().expect("its child was looked at");
        frame.next += 1;
    }

    /// Takes an old subtree over as it is.
    fn share(&mut self, separator: &[u8], child: &PageRef, upper: Option<Vec<u8>>) {
        let level = usize::from(child.level) + 1;
        self.level(level).push(separator, &child.encode(), false);
        self.counters.shared += 1;
        if let Some(upper) = upper {
            self.floor = Floor::From(upper);
        }
    }

    fn free(&mut self, page: &PageRef) {
        self.pages -= 1;
        for run in page.runs() {
            self.writes.note(Step::Freed(run));
        }
    }

    fn fetch(&mut self, pages: &mut Pages, reference: &PageRef) -> Result<Arc<Page>, Step> {
        let number = reference.number;
        match self.ahead.get(&number) {
            Some(Some(_)) => {}
            Some(None) => return Err(Step::Waiting),
            None => match pages.ask(self.config.tree, reference, self.config.waiter) {
                Asked::Hit(page) => return Ok(page),
                Asked::Coming => {
                    self.ahead.insert(number, None);
                    return Err(Step::Waiting);
                }
            },
        }
        let page = self.ahead.remove(&number).flatten();
        Ok(page.expect("looked at above"))
    }

    fn open(
        &mut self,
        pages: &mut Pages,
        child: PageRef,
        upper: Option<Vec<u8>>,
    ) -> Result<(), Step> {
        let page = match self.fetch(pages, &child) {
            Ok(page) => page,
            Err(stop) => {
                self.stage = Stage::Open(child, upper);
                return Err(stop);
            }
        };
        self.counters.opened += 1;
        self.free(&child);
        if child.level == 0 {
            let page = Some(page);
            self.stage = Stage::Merge {
                page,
                index: 0,
                upper,
            };
            return Ok(());
        }
        assert!(child.level < LEVEL_COUNT_MAX);
        self.frames.push(Frame {
            page,
            next: 0,
            upper,
            planned: 0,
        });
        self.stage = Stage::Descend;
        Ok(())
    }

    /// Asks for pages with changes before their turn comes: of the lowest inner page as many as may be, of the
    /// others the next one.
    fn read_ahead(&mut self, pages: &mut Pages) {
        let lowest = self.frames.len().saturating_sub(1);
        for at in (0..self.frames.len()).rev() {
            loop {
                let frame = &mut self.frames[at];
                let is_far = at != lowest && frame.planned > frame.next;
                if is_far || self.ahead.len() >= self.config.ahead_max {
                    break;
                }
                let from = frame.planned.max(frame.next);
                if from >= frame.page.count() {
                    break;
                }
                frame.page.key_into(from, &mut self.key);
                let key = self.ops.at_or_behind(&self.key);
                let last = frame.page.count() - 1;
                let Some(key) = key.filter(|key| frame.is_below_upper(last, key)) else {
                    // Nothing that is known now; more changes may come.
                    break;
                };
                let index = frame.page.child_index(key);
                let child = frame.page.child(index);
                frame.planned = index + 1;
                if self.ahead.contains_key(&child.number) {
                    continue;
                }
                let asked = pages.ask(self.config.tree, &child, self.config.waiter);
                let page = match asked {
                    Asked::Hit(page) => Some(page),
                    Asked::Coming => None,
                };
                self.ahead.insert(child.number, page);
            }
        }
    }

    /// Old entries and changes of one leaf, in order, until a page must be sealed or changes are wanted.
    fn merge(
        &mut self,
        page: Option<Arc<Page>>,
        mut index: usize,
        upper: Option<Vec<u8>>,
    ) -> Result<(), Step> {
        self.level(0);
        let stop = loop {
            if self.levels[0].is_due() {
                break None;
            }
            if !self.ops.is_known() {
                break Some(Step::NeedChanges);
            }
            let is_here = |key: &[u8]| upper.as_ref().is_none_or(|upper| key < &upper[..]);
            let change = self.ops.first().filter(|(key, _)| is_here(key));
            let has_change = change.is_some();
            if let Some(page) = &page {
                let before = match change {
                    Some((key, _)) => page.lower_bound(key),
                    None => page.count(),
                };
                index = self.copy(page, index, before);
                if index < before {
                    break None;
                }
            }
            if !has_change {
                self.stage = Stage::Descend;
                return Ok(());
            }
            if self.levels[0].is_due() {
                break None;
            }
            if self.change(page.as_deref(), index) {
                index += 1;
            }
        };
        self.stage = Stage::Merge { page, index, upper };
        stop.map_or(Ok(()), Err)
    }

    /// Takes old entries from `index` to `end` over, as far as the level has room; returns the next one.
    fn copy(&mut self, page: &Page, mut index: usize, end: usize) -> usize {
        if let Some(cut) = &self.cut {
            let kept = page.lower_bound(cut).clamp(index, end);
            self.entries -= (kept - index) as u64;
            index = kept;
        }
        let level = &mut self.levels[0];
        self.key.clear();
        self.key.extend_from_slice(page.prefix());
        let prefix = self.key.len();
        while index < end && !level.is_due() {
            self.key.truncate(prefix);
            self.key.extend_from_slice(page.rest(index));
            level.push(&self.key, page.value(index), false);
            index += 1;
        }
        index
    }

    /// The first change, where the old entries before its key are done. Whether it uses up the old entry `index`.
    fn change(&mut self, page: Option<&Page>, index: usize) -> bool {
        let (key, change) = self.ops.first().expect("the caller looked");
        let is_old =
            page.is_some_and(|page| index < page.count() && page.compare(index, key).is_eq());
        let is_used = match change {
            Change::Put(value) => {
                self.levels[0].push(key, value, true);
                self.entries += u64::from(!is_old);
                is_old
            }
            Change::Delete => {
                self.entries -= u64::from(is_old);
                is_old
            }
            Change::DeleteTo(end) => {
                if self.cut.as_ref().is_none_or(|cut| &cut[..] < end) {
                    self.cut = Some(end.to_vec());
                }
                false
            }
        };
        self.ops.pop();
        is_used
    }

    fn level(&mut self, level: usize) -> &mut Level {
        let size = usize::from(self.sectors) * SECTOR;
        let count = self.config.entry_count_max as usize;
        while self.levels.len() <= level {
            self.levels.push(Level::new(size, count));
        }
        &mut self.levels[level]
    }

    /// Seals what must be before anything is pushed, the highest level first.
    fn settle(&mut self, pages: &mut Pages) -> Result<(), Step> {
        while let Some(level) = self.levels.iter().rposition(Level::is_due) {
            self.emit(pages, level, false)?;
        }
        Ok(())
    }

    /// Seals the next page of a level, begins to write it, and puts its reference one level up.
    fn emit(&mut self, pages: &mut Pages, level: usize, is_last: bool) -> Result<(), Step> {
        if self.writes.count() >= self.config.write_count_max {
            return Err(Step::Waiting);
        }
        let above = level + 1;
        assert!(!self.level(above).is_due());
        let building = &self.levels[level];
        let count = building.cut(is_last);
        let number = self.next_number;
        let level_number = u8::try_from(level).expect("trees have few levels");
        if level > 0 {
            let newest = building.newest_child(count, self.first_number);
            if newest.is_some_and(|newest| self.writes.has_up_to(level_number - 1, newest)) {
                return Err(Step::Waiting);
            }
        }
        let Some(copies) = self.writes.take_place() else {
            return Err(Step::NeedPlaces);
        };
        let head = Seal {
            tree: self.config.tree,
            sectors: self.sectors,
            level: level_number,
            lsn: self.config.lsn,
            epoch: self.config.epoch,
            number,
        };
        let (bytes, crc) = building.seal(&head, count);
        let reference = PageRef {
            copies,
            sectors: self.sectors,
            level: level_number,
            crc,
            count: u32::try_from(count).expect("entries of a page"),
            number,
        };
        // As a reader will, while the old tree is still there.
        let page = Page::verify(self.config.tree, &reference, bytes.into());
        let page = Arc::new(page.expect("what is written can be read"));
        let separator = if level == 0 {
            let separator = self.floor.separator(building.key(0));
            self.floor = Floor::After(building.key(count - 1).to_vec());
            separator
        } else {
            building.key(0).to_vec()
        };
        self.levels[level].take(count);
        self.levels[above].push(&separator, &reference.encode(), true);
        pages.insert(self.config.tree, crc, &page);
        self.writes.begin(&page, reference);
        self.next_number += 1;
        self.pages += 1;
        self.counters.written += 1;
        Ok(())
    }

    fn finish(&mut self, pages: &mut Pages) -> Result<(), Step> {
        let Some(top) = self.levels.iter().rposition(|level| level.count() > 0) else {
            return self.done(None);
        };
        let lowest = self.levels.iter().position(|level| level.count() > 0);
        let lowest = lowest.expect("there is one");
        if lowest < top || top == 0 || self.levels[top].count() > 1 {
            return self.emit(pages, lowest, true);
        }
        // A failed copy of it must still be found there.
        if self.writes.count() > 0 {
            return Err(Step::Waiting);
        }
        self.stage = Stage::Top(self.levels[top].child(0));
        Ok(())
    }

    fn top(&mut self, pages: &mut Pages, root: PageRef) -> Result<(), Step> {
        if root.level == 0 || root.count > 1 {
            return self.done(Some(root));
        }
        assert!(root.number < self.first_number, "such a page is not built");
        let page = self.fetch(pages, &root)?;
        self.counters.opened += 1;
        self.free(&root);
        self.stage = Stage::Top(page.child(0));
        Ok(())
    }

    fn done(&mut self, page: Option<PageRef>) -> Result<(), Step> {
        assert_eq!(self.writes.count(), 0);
        if let Some(step) = self.writes.next_step() {
            return Err(step);
        }
        assert!(self.ops.is_ended() && self.ops.first().is_none());
        assert_eq!(page.is_none(), self.entries == 0);
        assert_eq!(page.is_none(), self.pages == 0);
        let unused = std::iter::from_fn(|| self.writes.take_place()).collect();
        self.stage = Stage::Done;
        let root = Root {
            shard: self.config.tree.shard,
            epoch: self.config.epoch,
            lsn: self.config.lsn,
            entries: self.entries,
            pages: self.pages,
            next_number: self.next_number,
            sectors: self.sectors,
            page,
        };
        let counters = self.counters;
        Err(Step::Done(Box::new(Applied {
            root,
            unused,
            counters,
        })))
    }
}

impl Floor {
    /// The shortest separator between the keys before and `key`.
    fn separator(&self, key: &[u8]) -> Vec<u8> {
        match self {
            Self::Begin => Vec::new(),
            Self::After(last) => {
                assert!(&last[..] < key, "keys ascend");
                key[..=common_prefix(last, key)].to_vec()
            }
            Self::From(bound) => {
                assert!(&bound[..] <= key, "keys ascend");
                let common = common_prefix(bound, key);
                let length = if common == bound.len() {
                    common
                } else {
                    common + 1
                };
                key[..length].to_vec()
            }
        }
    }
}
