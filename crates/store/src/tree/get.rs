//! Looking keys up: one that is cached at once, many with all their fetches under way together.
//!
//! Invariants
//! - Every page is visited once, with all the keys that lead there.
//! - At most `flight_count_max` pages are waited for; a page is held only while it is visited.
//!
//! Life cycle: `new` -> `poll` -> (`on_page` -> `poll`)* -> `Done` -> `finish`.

use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::fault::TreeError;
use super::page::{Page, PageRef, Root, TreeId};
use super::pages::{Arrival, Asked, Pages, Waiter};

/// A value where it lies. Keeps its page in memory: copy what is kept for long.
#[derive(Clone, Debug)]
pub struct Value {
    page: Arc<Page>,
    index: usize,
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.page.value(self.index)
    }
}

/// What `lookup` finds.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// The key's value.
    Found(Value),
    /// The tree does not have the key.
    Absent,
    /// This page on the way is not cached: use `Get`.
    Cold(PageRef),
}

/// Looks a key up in cached pages.
pub fn lookup(pages: &mut Pages, tree: TreeId, root: &Root, key: &[u8]) -> Lookup {
    let Some(mut reference) = root.page else {
        return Lookup::Absent;
    };
    loop {
        let Some(page) = pages.look(tree, &reference) else {
            return Lookup::Cold(reference);
        };
        if page.level() > 0 {
            reference = page.child(page.child_index(key));
            continue;
        }
        return match page.search(key) {
            Ok(index) => Lookup::Found(Value { page, index }),
            Err(_) => Lookup::Absent,
        };
    }
}

/// Keys of the sorted order that lead to a page.
#[derive(Clone, Copy, Debug)]
struct Visit {
    reference: PageRef,
    begin: usize,
    end: usize,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Pages are under way: give it their arrivals, then poll again.
    Waiting,
    /// Over: call `finish`.
    Done,
}

/// A lookup of many keys.
#[derive(Debug)]
pub struct Get {
    tree: TreeId,
    waiter: Waiter,
    flight_count_max: usize,
    keys: Vec<Vec<u8>>,
    /// Indexes of `keys`, by key.
    order: Vec<usize>,
    values: Vec<Option<Box<[u8]>>>,
    todo: Vec<Visit>,
    waiting: FxHashMap<u64, Visit>,
    error: Option<TreeError>,
}

impl Get {
    /// Looks `keys` up (any order) with at most `flight_count_max` pages under way.
    pub fn new(
        tree: TreeId,
        root: &Root,
        keys: Vec<Vec<u8>>,
        waiter: Waiter,
        flight_count_max: usize,
    ) -> Self {
        assert!(flight_count_max > 0);
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by(|a, b| keys[*a].cmp(&keys[*b]));
        let all = |reference| Visit {
            reference,
            begin: 0,
            end: keys.len(),
        };
        let todo = if keys.is_empty() { None } else { root.page };
        Self {
            tree,
            waiter,
            flight_count_max,
            todo: todo.map(all).into_iter().collect(),
            values: vec![None; keys.len()],
            keys,
            order,
            waiting: FxHashMap::default(),
            error: None,
        }
    }

    /// Goes on as far as it can. Then do `Pages::next_fetch`.
    pub fn poll(&mut self, pages: &mut Pages) -> Progress {
        while self.waiting.len() < self.flight_count_max {
            let Some(visit) = self.todo.pop() else { break };
            match pages.ask(self.tree, &visit.reference, self.waiter) {
                Asked::Hit(page) => self.visit(&page, visit),
                Asked::Coming => {
                    self.waiting.insert(visit.reference.number, visit);
                }
            }
        }
        if self.waiting.is_empty() {
            Progress::Done
        } else {
            Progress::Waiting
        }
    }

    /// A page came that it asked for; others are ignored. Then poll.
    pub fn on_page(&mut self, arrival: &Arrival) {
        let Some(visit) = self.waiting.remove(&arrival.reference.number) else {
            return;
        };
        match &arrival.page {
            Ok(page) => self.visit(page, visit),
            Err(error) => {
                self.error.get_or_insert(*error);
                self.todo.clear();
            }
        }
    }

    fn visit(&mut self, page: &Page, visit: Visit) {
        let mut at = visit.begin;
        while at < visit.end {
            let key = &self.keys[self.order[at]];
            if page.level() == 0 {
                let found = page.search(key).ok();
                self.values[self.order[at]] = found.map(|index| page.value(index).into());
                at += 1;
                continue;
            }
            let index = page.child_index(key);
            let rest = &self.order[at..visit.end];
            let is_before = |k: &usize| page.compare(index + 1, &self.keys[*k]).is_gt();
            let end = if index + 1 < page.count() {
                at + rest.partition_point(is_before)
            } else {
                visit.end
            };
            if self.error.is_none() {
                self.todo.push(Visit {
                    reference: page.child(index),
                    begin: at,
                    end,
                });
            }
            at = end;
        }
    }

    /// The values, in the order of the keys; `None`: the tree does not have the key.
    ///
    /// # Errors
    /// A page on the way to one of the keys has no good copy.
    pub fn finish(self) -> Result<Vec<Option<Box<[u8]>>>, TreeError> {
        assert!(self.todo.is_empty() && self.waiting.is_empty());
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.values),
        }
    }
}
