//! Visiting every page of a tree, every copy of it, for fsck: what is reachable, and what is wrong.
//!
//! Invariants
//! - Every page whose parent is good is visited once, in order, parents before children; every copy is read from its
//!   place, not from a cache.
//! - What is wrong is yielded, and the walk goes on beside it; only what lies below a page without a good copy is not seen.
//! - Memory: an inner page per level, and at most `ahead_max` pages under way.
//!
//! Each run is claimed from the caller, who keeps the map of all that is in use and says whether it was free: so
//! what is used twice is found across trees and files, and this has no table that grows with the tree.
//!
//! Life cycle: `new` -> `poll` until `Done`; `position` says from where another walk can go on.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use types::{Location, Run};

use super::fault::PageFault;
use super::page::{Page, PageRef, Root, TreeId};
use super::pages::{Fetch, FetchId, Unreadable};

/// What is wrong with a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// A copy is not the page; others may be.
    #[error("level {level}, page {number} at {} sector {}: {fault}", at.nsd, at.sector)]
    Copy {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// The copy.
        at: Location,
        /// What is wrong with it.
        fault: PageFault,
    },
    /// A copy cannot be read.
    #[error("level {level}, page {number} at {} sector {} cannot be read", at.nsd, at.sector)]
    Unreadable {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// The copy.
        at: Location,
    },
    /// No copy of a page is good: nothing below it can be seen.
    #[error("level {level}, page {number} at {} sector {}: no copy is good", at.nsd, at.sector)]
    Lost {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// Its first copy.
        at: Location,
    },
    /// A key lies outside what the parent's separators say.
    #[error("level {level}, page {number}: its keys are not between its separators")]
    Separators {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
    },
    /// A page claims to be newer than its tree.
    #[error("level {level}, page {number}: it is newer than the root")]
    Newer {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
    },
    /// Two copies of a page, or it and its parent, lie in the same sectors.
    #[error("level {level}, page {number} at {} sector {}: used twice", at.nsd, at.sector)]
    Double {
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// The copy.
        at: Location,
    },
    /// The root counts other entries than there are.
    #[error("{found} entries, but the root says {said}")]
    Entries {
        /// Those that were seen.
        found: u64,
        /// What the root says.
        said: u64,
    },
    /// The root counts other pages than there are.
    #[error("{found} pages, but the root says {said}")]
    Pages {
        /// Those that were seen.
        found: u64,
        /// What the root says.
        said: u64,
    },
}

/// From where a walk can go on: all pages that come before this one, in the order of the walk, have been visited.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Position {
    /// The way to the next page from the root: which child at each level. (Not a key: those of a broken tree may be
    /// in any order.)
    pub path: Vec<u32>,
    /// Pages visited.
    pub pages: u64,
    /// Entries of their leaves.
    pub entries: u64,
    /// Something could not be visited, so that the counts cannot be judged.
    pub is_partial: bool,
}

impl Position {
    /// Nothing has been visited.
    pub const BEGIN: Self = Self {
        path: Vec::new(),
        pages: 0,
        entries: 0,
        is_partial: false,
    };
}

/// What `poll` says.
#[derive(Clone, Debug)]
pub enum WalkStep {
    /// Read this, and give it to `on_read`.
    Fetch(Fetch),
    /// Something is wrong.
    Broken(Broken),
    /// A good leaf, for who looks at its entries.
    Leaf(Arc<Page>),
    /// Reads are under way.
    Waiting,
    /// Every page was visited.
    Done,
}

/// A page on its way.
#[derive(Debug)]
struct Slot {
    serial: u64,
    path: Vec<u32>,
    reference: PageRef,
    separator: Vec<u8>,
    upper: Option<Vec<u8>>,
    left: usize,
    page: Option<Arc<Page>>,
    broken: Vec<Broken>,
}

#[derive(Debug)]
struct Frame {
    page: Arc<Page>,
    path: Vec<u32>,
    upper: Option<Vec<u8>>,
    next: usize,
}

/// A walk.
#[derive(Debug)]
pub struct Walk {
    tree: TreeId,
    root: Root,
    ahead_max: usize,
    /// Where it began: pages before were visited by an earlier walk.
    from: Position,
    position: Position,
    /// Inner pages whose children are planned, the lowest last.
    frames: Vec<Frame>,
    /// The inner page that the planner goes into.
    entering: Option<Slot>,
    /// Pages that were planned and not reported, in order.
    slots: VecDeque<Slot>,
    /// Which copy of which slot is read.
    reads: FxHashMap<FetchId, (u64, Location)>,
    next_id: u64,
    steps: VecDeque<WalkStep>,
    is_over: bool,
}

impl Walk {
    /// Walks the tree of `root` from `position` on, with at most `ahead_max` pages under way.
    pub fn new(tree: TreeId, root: &Root, position: Position, ahead_max: usize) -> Self {
        assert!(ahead_max > 0);
        let mut walk = Self {
            tree,
            root: *root,
            ahead_max,
            from: position.clone(),
            position,
            frames: Vec::new(),
            entering: None,
            slots: VecDeque::new(),
            reads: FxHashMap::default(),
            next_id: 0,
            steps: VecDeque::new(),
            is_over: false,
        };
        if let Some(page) = root.page {
            walk.plan_page(page, Vec::new(), (Vec::new(), None));
        }
        walk
    }

    /// From where another walk can go on. `None`: there is more to say about the last page (poll), or it is done.
    pub fn position(&self) -> Option<Position> {
        let is_said = |step: &WalkStep| matches!(step, WalkStep::Fetch(_));
        if !self.steps.iter().all(is_said) {
            return None;
        }
        let next = self.slots.front().or(self.entering.as_ref())?;
        Some(Position {
            // On the way to where it began nothing is new.
            path: next.path.clone().max(self.from.path.clone()),
            ..self.position.clone()
        })
    }

    /// Goes on. `claim` takes the runs of each page in turn, and says whether each was free.
    pub fn poll(&mut self, claim: &mut dyn FnMut(Run) -> bool) -> WalkStep {
        loop {
            if let Some(step) = self.steps.pop_front() {
                return step;
            }
            self.plan();
            if !self.steps.is_empty() {
                continue;
            }
            if self.slots.front().is_some_and(|slot| slot.left == 0) {
                let slot = self.slots.pop_front().expect("looked at");
                self.report(slot, claim);
            } else if !self.slots.is_empty() || self.entering.is_some() {
                return WalkStep::Waiting;
            } else if self.is_over {
                return WalkStep::Done;
            } else {
                self.is_over = true;
                self.judge_counts();
            }
        }
    }

    /// A read has ended; then poll. One that is not wanted any more is ignored.
    pub fn on_read(&mut self, id: FetchId, bytes: Result<Box<[u8]>, Unreadable>) {
        let Some((serial, at)) = self.reads.remove(&id) else {
            return;
        };
        let tree = self.tree;
        let all = self.slots.iter_mut().chain(&mut self.entering);
        let is_it = |slot: &&mut Slot| slot.serial == serial;
        let Some(slot) = all.into_iter().find(is_it) else {
            return;
        };
        slot.left -= 1;
        let (level, number) = (slot.reference.level, slot.reference.number);
        let fault = match bytes.map(|bytes| Page::verify(tree, &slot.reference, bytes)) {
            Ok(Ok(page)) => {
                slot.page = Some(Arc::new(page));
                return;
            }
            Ok(Err(fault)) => Broken::Copy {
                level,
                number,
                at,
                fault,
            },
            Err(Unreadable) => Broken::Unreadable { level, number, at },
        };
        slot.broken.push(fault);
    }

    /// Asks for the page at the end of `path`; its keys should be from the first of `bounds` to below the second.
    fn plan_page(
        &mut self,
        reference: PageRef,
        path: Vec<u32>,
        bounds: (Vec<u8>, Option<Vec<u8>>),
    ) {
        let serial = self.next_id;
        for at in reference.copies.iter() {
            let id = FetchId(self.next_id);
            self.next_id += 1;
            self.reads.insert(id, (serial, *at));
            self.steps.push_back(WalkStep::Fetch(Fetch {
                id,
                at: *at,
                sectors: reference.sectors,
            }));
        }
        let slot = Slot {
            serial,
            left: reference.copies.len(),
            path,
            reference,
            separator: bounds.0,
            upper: bounds.1,
            page: None,
            broken: Vec::new(),
        };
        if reference.level == 0 {
            self.slots.push_back(slot);
        } else {
            self.entering = Some(slot);
        }
    }

    /// Plans pages until enough are under way.
    fn plan(&mut self) {
        while self.slots.len() < self.ahead_max {
            if self.entering.as_ref().is_some_and(|slot| slot.left > 0) {
                return;
            }
            if let Some(slot) = self.entering.take() {
                if let Some(page) = &slot.page {
                    let depth = slot.path.len();
                    let is_on_the_way = self.from.path.starts_with(&slot.path);
                    let first = self.from.path.get(depth).filter(|_| is_on_the_way);
                    self.frames.push(Frame {
                        page: Arc::clone(page),
                        path: slot.path.clone(),
                        upper: slot.upper.clone(),
                        next: first.map_or(0, |index| *index as usize),
                    });
                }
                self.slots.push_back(slot);
                continue;
            }
            let Some(frame) = self.frames.last_mut() else {
                return;
            };
            let index = frame.next;
            if index >= frame.page.count() {
                self.frames.pop();
                continue;
            }
            frame.next += 1;
            let upper = if index + 1 < frame.page.count() {
                Some(frame.page.key(index + 1))
            } else {
                frame.upper.clone()
            };
            let (child, separator) = (frame.page.child(index), frame.page.key(index));
            let mut path = frame.path.clone();
            path.push(u32::try_from(index).expect("entries of a page"));
            self.plan_page(child, path, (separator, upper));
        }
    }

    /// Everything about a page that has been read, in its turn.
    fn report(&mut self, slot: Slot, claim: &mut dyn FnMut(Run) -> bool) {
        let (level, number) = (slot.reference.level, slot.reference.number);
        if slot.path < self.from.path {
            // Reported before the walk was resumed; read again only to get to its children.
            if slot.page.is_none() {
                self.position.is_partial = true;
            }
            return;
        }
        let mut broken = slot.broken;
        let mut is_double = false;
        for run in slot.reference.runs() {
            if !claim(run) {
                is_double = true;
                let at = run.at;
                broken.push(Broken::Double { level, number, at });
            }
        }
        match &slot.page {
            None => {
                self.position.is_partial = true;
                let at = slot.reference.copies[0];
                broken.push(Broken::Lost { level, number, at });
            }
            Some(page) => {
                let last = page.count() - 1;
                let is_low = page.compare(0, &slot.separator).is_lt();
                let is_high =
                    (slot.upper.as_ref()).is_some_and(|upper| page.compare(last, upper).is_ge());
                if is_low || is_high {
                    broken.push(Broken::Separators { level, number });
                }
                if page.lsn() > self.root.lsn || number >= self.root.next_number {
                    broken.push(Broken::Newer { level, number });
                }
                self.position.pages += 1;
                if level == 0 {
                    self.position.entries += page.count() as u64;
                }
            }
        }
        self.steps.extend(broken.into_iter().map(WalkStep::Broken));
        match slot.page {
            Some(page) if level == 0 => self.steps.push_back(WalkStep::Leaf(page)),
            Some(_) if is_double => self.skip_below(level),
            Some(_) | None => {}
        }
    }

    /// Leaves out what was planned below the inner page of `level` that was reported last: it is in use twice, so
    /// its children have been seen, or it is none of this tree's.
    fn skip_below(&mut self, level: u8) {
        self.position.is_partial = true;
        while (self.slots.front()).is_some_and(|slot| slot.reference.level < level) {
            self.slots.pop_front();
        }
        if !self.slots.is_empty() {
            return;
        }
        if (self.entering.as_ref()).is_some_and(|slot| slot.reference.level < level) {
            self.entering = None;
        }
        while (self.frames.last()).is_some_and(|frame| frame.page.level() <= level) {
            self.frames.pop();
        }
    }

    fn judge_counts(&mut self) {
        if self.position.is_partial {
            return;
        }
        let (found, said) = (self.position.entries, self.root.entries);
        if found != said {
            let broken = Broken::Entries { found, said };
            self.steps.push_back(WalkStep::Broken(broken));
        }
        let (found, said) = (self.position.pages, self.root.pages);
        if found != said {
            let broken = Broken::Pages { found, said };
            self.steps.push_back(WalkStep::Broken(broken));
        }
    }
}
