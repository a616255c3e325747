//! Reading a range of keys in order, leaf by leaf, with the next leaves under way.
//!
//! Invariants
//! - Leaves come in key order, each once; entries outside the range are left out.
//! - At most `ahead_max` leaves are held or under way, and one inner page per level and one more.
//!
//! A planner walks the inner pages `ahead_max` leaves before the reader; when it enters an inner page it asks for
//! the next one beside it too, so that the reader does not stop at their borders.
//!
//! Life cycle: `new` -> `next` until `Done`; at `Waiting`, `on_page` comes first.

use std::collections::VecDeque;
use std::sync::Arc;

use super::fault::TreeError;
use super::page::{Page, PageRef, Root, TreeId};
use super::pages::{Arrival, Asked, Pages, Waiter};

/// Consecutive entries of a leaf: at least one.
#[derive(Clone, Debug)]
pub struct Entries {
    /// The leaf.
    pub page: Arc<Page>,
    /// First entry.
    pub begin: usize,
    /// Behind the last.
    pub end: usize,
}

impl Entries {
    /// Of each entry: its key behind the leaf's prefix, its value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (self.begin..self.end).map(|index| (self.page.rest(index), self.page.value(index)))
    }
}

/// What `next` says.
#[derive(Clone, Debug)]
pub enum ScanStep {
    /// The next entries.
    Entries(Entries),
    /// The next leaf is under way: call again after `on_page`.
    Waiting,
    /// There are no more.
    Done,
}

#[derive(Debug)]
struct Frame {
    page: Arc<Page>,
    /// Child to plan next.
    next: usize,
}

#[derive(Debug)]
enum Slot {
    Coming(u64),
    Here(Arc<Page>),
}

/// A scan of a range.
#[derive(Debug)]
pub struct Scan {
    tree: TreeId,
    waiter: Waiter,
    begin: Vec<u8>,
    end: Option<Vec<u8>>,
    ahead_max: usize,
    /// Inner pages on the planner's way, the lowest last.
    frames: Vec<Frame>,
    /// The page that the planner goes into next: the root, or an inner page that is under way.
    entering: Option<PageRef>,
    is_asked: bool,
    slots: VecDeque<Slot>,
    error: Option<TreeError>,
}

impl Scan {
    /// Scans keys from `begin` to `end` (not included; none: to the last).
    pub fn new(
        tree: TreeId,
        root: &Root,
        range: (Vec<u8>, Option<Vec<u8>>),
        waiter: Waiter,
        ahead_max: usize,
    ) -> Self {
        assert!(ahead_max > 0);
        Self {
            tree,
            waiter,
            begin: range.0,
            end: range.1,
            ahead_max,
            frames: Vec::new(),
            entering: root.page,
            is_asked: false,
            slots: VecDeque::new(),
            error: None,
        }
    }

    /// The next entries. Afterwards do `Pages::next_fetch`.
    ///
    /// # Errors
    /// A page has no good copy; entries before it have been given out.
    pub fn next(&mut self, pages: &mut Pages) -> Result<ScanStep, TreeError> {
        loop {
            self.plan(pages);
            match self.slots.front() {
                Some(Slot::Here(_)) => {}
                Some(Slot::Coming(_)) | None => {
                    if let Some(error) = self.error {
                        return Err(error);
                    }
                    let is_over = self.slots.is_empty() && self.entering.is_none();
                    return Ok(if is_over {
                        ScanStep::Done
                    } else {
                        ScanStep::Waiting
                    });
                }
            }
            let Some(Slot::Here(page)) = self.slots.pop_front() else {
                unreachable!("looked at above");
            };
            let begin = page.lower_bound(&self.begin);
            let end = match &self.end {
                Some(end) => page.lower_bound(end),
                None => page.count(),
            };
            if begin < end {
                return Ok(ScanStep::Entries(Entries { page, begin, end }));
            }
        }
    }

    /// A page came; those it did not ask for are ignored. Then call `next`.
    pub fn on_page(&mut self, arrival: &Arrival) {
        let number = arrival.reference.number;
        let is_entered = self.is_asked && self.entering.is_some_and(|e| e.number == number);
        let is_it = |slot: &Slot| matches!(slot, Slot::Coming(n) if *n == number);
        let slot = self.slots.iter().position(is_it);
        match &arrival.page {
            Ok(page) => {
                if is_entered {
                    self.enter(page);
                }
                if let Some(slot) = slot {
                    self.slots[slot] = Slot::Here(Arc::clone(page));
                }
            }
            Err(error) if is_entered || slot.is_some() => {
                self.error.get_or_insert(*error);
            }
            Err(_) => {}
        }
    }

    fn enter(&mut self, page: &Arc<Page>) {
        self.entering = None;
        self.is_asked = false;
        if page.level() == 0 {
            self.slots.push_back(Slot::Here(Arc::clone(page)));
            return;
        }
        self.frames.push(Frame {
            page: Arc::clone(page),
            next: page.child_index(&self.begin),
        });
    }

    /// Asks for leaves until enough are under way.
    fn plan(&mut self, pages: &mut Pages) {
        while self.error.is_none() && self.slots.len() < self.ahead_max {
            if let Some(reference) = self.entering {
                if self.is_asked {
                    return;
                }
                match pages.ask(self.tree, &reference, self.waiter) {
                    Asked::Hit(page) => self.enter(&page),
                    Asked::Coming => self.is_asked = true,
                }
                continue;
            }
            let Some(frame) = self.frames.last_mut() else {
                return;
            };
            let index = frame.next;
            if index == frame.page.count() {
                self.frames.pop();
                continue;
            }
            let is_behind = |index| {
                (self.end.as_ref()).is_some_and(|end| frame.page.compare(index, end).is_ge())
            };
            // The first child may hold less than its separator.
            if index > 0 && is_behind(index) {
                self.frames.clear();
                return;
            }
            let child = frame.page.child(index);
            let beside = (index + 1 < frame.page.count() && !is_behind(index + 1))
                .then(|| frame.page.child(index + 1));
            frame.next += 1;
            if child.level > 0 {
                self.entering = Some(child);
                if let Some(beside) = beside.filter(|_| self.ahead_max > 1) {
                    // It comes into the cache; this scan asks again when it gets there.
                    let _ = pages.ask(self.tree, &beside, self.waiter);
                }
                continue;
            }
            let slot = match pages.ask(self.tree, &child, self.waiter) {
                Asked::Hit(page) => Slot::Here(page),
                Asked::Coming => Slot::Coming(child.number),
            };
            self.slots.push_back(slot);
        }
    }
}
