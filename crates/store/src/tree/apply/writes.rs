//! Pages on their way to disk: their places, writes that are out, copies that failed.
//!
//! Invariants
//! - A place is submitted at most once: a copy whose write failed goes to another place.
//! - A page is written when every copy that its reference names is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rustc_hash::FxHashMap;
use types::{Location, Run};

use super::Step;
use crate::tree::page::{Copies, Page, PageRef};

/// The number of a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// One copy to write: submit it once, then say how it ended (`Apply::on_written`).
#[derive(Clone, Debug)]
pub struct PageWrite {
    /// Say this in `on_written`.
    pub id: WriteId,
    /// First sector.
    pub at: Location,
    /// The page: write all its bytes.
    pub page: Arc<Page>,
}

/// A copy whose write failed or has an unknown outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailedCopy {
    /// Number of the page.
    pub number: u64,
    /// Where the copy should have been: it is spent.
    pub at: Location,
    /// All places of the page, this one among them: the new one belongs in another failure group than the others.
    pub copies: Copies,
}

#[derive(Debug)]
struct Writing {
    page: Arc<Page>,
    reference: PageRef,
    /// Copies that are.
    written: Vec<Location>,
}

/// Writes of an apply.
#[derive(Debug, Default)]
pub(super) struct Writes {
    places: VecDeque<Copies>,
    pages: FxHashMap<u64, Writing>,
    todo: VecDeque<PageWrite>,
    out: BTreeMap<WriteId, (u64, Location)>,
    next_id: u64,
    steps: VecDeque<Step>,
}

impl Writes {
    pub(super) fn give(&mut self, place: Copies) {
        self.places.push_back(place);
    }

    pub(super) fn take_place(&mut self) -> Option<Copies> {
        self.places.pop_front()
    }

    /// Pages that are not written.
    pub(super) fn count(&self) -> usize {
        self.pages.len()
    }

    /// Whether a page of `level` numbered up to `number` is not written.
    pub(super) fn has_up_to(&self, level: u8, number: u64) -> bool {
        let is_it = |w: &Writing| w.reference.level == level && w.reference.number <= number;
        self.pages.values().any(is_it)
    }

    fn push(&mut self, number: u64, page: &Arc<Page>, at: Location) {
        let id = WriteId(self.next_id);
        self.next_id += 1;
        self.out.insert(id, (number, at));
        let page = Arc::clone(page);
        self.todo.push_back(PageWrite { id, at, page });
    }

    pub(super) fn begin(&mut self, page: &Arc<Page>, reference: PageRef) {
        for at in reference.copies.iter() {
            self.push(reference.number, page, *at);
        }
        let writing = Writing {
            page: Arc::clone(page),
            reference,
            written: Vec::new(),
        };
        self.pages.insert(reference.number, writing);
    }

    /// What the driver should do or know next.
    pub(super) fn next_step(&mut self) -> Option<Step> {
        let write = self.todo.pop_front().map(Step::Write);
        write.or_else(|| self.steps.pop_front())
    }

    pub(super) fn note(&mut self, step: Step) {
        self.steps.push_back(step);
    }

    pub(super) fn on_written(&mut self, id: WriteId, is_written: bool) {
        let (number, at) = self.out.remove(&id).expect("this write is out");
        if is_written {
            let writing = self.pages.get_mut(&number).expect("it is being written");
            writing.written.push(at);
            self.end_if_written(number);
            return;
        }
        let reference = self.pages[&number].reference;
        let count = u32::from(reference.sectors);
        self.steps.push_back(Step::Spent(Run { at, count }));
        self.steps.push_back(Step::NeedCopy(FailedCopy {
            number,
            at,
            copies: reference.copies,
        }));
    }

    fn end_if_written(&mut self, number: u64) {
        let writing = &self.pages[&number];
        if writing.written.len() == writing.reference.copies.len() {
            let used = writing.reference.runs().map(Step::Used);
            self.steps.extend(used);
            self.pages.remove(&number);
        }
    }

    /// Another place for a failed copy, or none: then the page has one copy less. Returns its reference as it is
    /// now; `None`: it has no copy left.
    pub(super) fn on_copy(
        &mut self,
        failed: &FailedCopy,
        place: Option<Location>,
    ) -> Option<PageRef> {
        let number = failed.number;
        let writing = self.pages.get_mut(&number).expect("a copy is missing");
        match place {
            Some(place) => {
                writing.reference.copies.replace(failed.at, place);
                let (page, reference) = (Arc::clone(&writing.page), writing.reference);
                self.push(number, &page, place);
                Some(reference)
            }
            None if writing.reference.copies.len() > 1 => {
                writing.reference.copies.remove(failed.at);
                let reference = writing.reference;
                self.end_if_written(number);
                Some(reference)
            }
            None => None,
        }
    }

    /// Bytes of pages that are not written.
    pub(super) fn memory(&self) -> usize {
        self.pages.values().map(|w| w.page.bytes().len()).sum()
    }

    /// Places that were never submitted, and runs that were and about which nothing was said.
    pub(super) fn abandon(self, sectors: u8) -> (Vec<Copies>, Vec<Run>) {
        let mut unused: Vec<Copies> = self.places.into();
        unused.extend(self.todo.iter().map(|write| Copies::new(&[write.at])));
        let is_handed_out = |id: &WriteId| self.todo.iter().all(|write| write.id != *id);
        let out = self.out.iter().filter(|(id, _)| is_handed_out(id));
        let count = u32::from(sectors);
        let mut submitted: Vec<Run> = out.map(|(_, (_, at))| Run { at: *at, count }).collect();
        let written = self.pages.values().flat_map(|writing| &writing.written);
        submitted.extend(written.map(|at| Run { at: *at, count }));
        for step in &self.steps {
            if let Step::Used(run) | Step::Spent(run) = step {
                submitted.push(*run);
            }
        }
        submitted.sort_unstable();
        (unused, submitted)
    }
}
