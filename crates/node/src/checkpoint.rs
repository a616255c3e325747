//! A checkpoint of one shard: what its tree lacks, as it was at one moment, becomes pages and a new root in memory.
//!
//! ```text
//! begin (freezes the shard) -> poll: Write, Wait, Encode (under the shard's lock), Places (under the space's)
//!                           -> Written: flush the NSDs -> install (both locks; no snapshot is being written)
//!                           -> Failed -> give_up (both locks)
//! ```
//!
//! Invariants
//! - The shard and its old tree are as they were until `install`; after `give_up` nothing has happened.
//! - Every place that was taken is linked to the new root or given back, and that only when no write to it is under way.
//! - Memory: the apply's (`store::tree::apply`), and one piece of records.
//!
//! Durable is the new root with the next journal snapshot (decision 0009). What this deliberately does not do: I/O, flushes,
//! and the choice of shards.

use std::collections::BTreeSet;

use data::space::PageSpace;
use meta::Shard;
use meta::records::Record;
use store::tree::apply::FailedCopy;
use store::tree::{
    Applied, Apply, ApplyConfig, ApplyError, Arrival, Change, Copies, PageWrite, Pages, Root, Step,
    WriteId,
};
use types::{NsdId, Run};

/// Keys that are encoded under the shard's lock at once: some hundred microseconds.
const PIECE_KEY_COUNT: usize = 256;
/// Places that are taken at once.
const PLACE_COUNT: usize = 16;

/// What to do next.
#[derive(Debug)]
pub enum Todo {
    /// Write this page, then say how it ended (`on_written`).
    Write(PageWrite),
    /// Pages or writes are under way: poll again when one has come or ended.
    Wait,
    /// Call `encode` with the shard.
    Encode,
    /// Call `take_places` with the space.
    Places,
    /// All pages are written: flush their NSDs, then `install`, or `give_up`.
    Written,
    /// It cannot be done, and no write is under way any more: `give_up`.
    Failed(Failure),
}

/// Why a checkpoint was not made. The tree is as it was; what changed is still noted as changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// The old tree cannot be read, or no copy of a page can be written.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// There are no free sectors for pages: another page region is needed.
    #[error("no sectors for pages of a tree")]
    NoPlaces,
    /// The NSDs did not flush what was written.
    #[error("pages of a tree were not flushed")]
    NotFlushed,
}

/// See the module.
#[derive(Debug)]
pub struct Checkpoint {
    apply: Option<Apply>,
    sectors: u8,
    is_encoded: bool,
    records: Vec<Record>,
    /// Places that were taken and are not linked yet.
    taken: BTreeSet<Run>,
    /// Writes under way.
    out: BTreeSet<WriteId>,
    new: Vec<Run>,
    old: Vec<Run>,
    failed_copies: Vec<FailedCopy>,
    needs_places: bool,
    done: Option<Box<Applied>>,
    failure: Option<Failure>,
}

impl Checkpoint {
    /// Freezes what has changed in the shard since its tree of `root` was made. `None`: nothing has.
    pub fn begin(config: ApplyConfig, root: &Root, shard: &mut Shard) -> Option<Self> {
        assert_eq!(config.tree.shard, shard.id());
        if shard.freeze() == 0 {
            shard.thaw(true);
            return None;
        }
        Some(Self {
            apply: Some(Apply::new(config, root)),
            sectors: root.sectors,
            is_encoded: false,
            records: Vec::new(),
            taken: BTreeSet::new(),
            out: BTreeSet::new(),
            new: Vec::new(),
            old: Vec::new(),
            failed_copies: Vec::new(),
            needs_places: false,
            done: None,
            failure: None,
        })
    }

    /// Goes on. Afterwards do `Pages::next_fetch`.
    pub fn poll(&mut self, pages: &mut Pages) -> Todo {
        loop {
            if let Some(failure) = self.failure {
                self.apply = None;
                return match self.out.is_empty() {
                    true => Todo::Failed(failure),
                    false => Todo::Wait,
                };
            }
            if self.needs_places || !self.failed_copies.is_empty() {
                return Todo::Places;
            }
            let Some(apply) = &mut self.apply else {
                return Todo::Written;
            };
            match apply.poll(pages) {
                Ok(Step::Write(write)) => {
                    self.out.insert(write.id);
                    return Todo::Write(write);
                }
                Ok(Step::Used(run)) => self.new.push(run),
                // It stays taken until the end, when its write has ended for sure.
                Ok(Step::Spent(_)) => {}
                Ok(Step::Freed(run)) => self.old.push(run),
                Ok(Step::NeedCopy(failed)) => self.failed_copies.push(failed),
                Ok(Step::NeedPlaces) => self.needs_places = true,
                Ok(Step::NeedChanges) if self.is_encoded => apply.end(),
                Ok(Step::NeedChanges) => return Todo::Encode,
                Ok(Step::Waiting) => return Todo::Wait,
                Ok(Step::Done(applied)) => {
                    assert!(self.out.is_empty(), "every page is written");
                    self.done = Some(applied);
                    self.apply = None;
                }
                Err(error) => self.failure = Some(error.into()),
            }
        }
    }

    /// The next records of the shard, as they were when the checkpoint began.
    pub fn encode(&mut self, shard: &mut Shard) {
        let Some(apply) = &mut self.apply else { return };
        while !self.is_encoded && apply.wants_changes() {
            self.is_encoded = shard.encode_frozen(PIECE_KEY_COUNT, &mut self.records);
            for (key, value) in self.records.drain(..) {
                let change = value.as_deref().map_or(Change::Delete, Change::Put);
                apply.push(&key, change);
            }
        }
    }

    /// Takes places for pages, on NSDs that `may_use` allows.
    pub fn take_places(&mut self, space: &mut PageSpace, may_use: &dyn Fn(NsdId) -> bool) {
        let Some(apply) = &mut self.apply else { return };
        let mut take = || space.take(u32::from(self.sectors), may_use);
        for failed in self.failed_copies.drain(..) {
            let run = take();
            apply.on_copy(&failed, run.map(|run| run.at));
            self.taken.extend(run);
        }
        if std::mem::take(&mut self.needs_places) {
            let runs: Vec<Run> = std::iter::from_fn(take).take(PLACE_COUNT).collect();
            if runs.is_empty() {
                self.failure = Some(Failure::NoPlaces);
            }
            for run in runs {
                self.taken.insert(run);
                apply.give(Copies::new(&[run.at]));
            }
        }
    }

    /// A page came that this checkpoint waits for.
    pub fn on_page(&mut self, arrival: &Arrival) {
        if let Some(apply) = &mut self.apply {
            apply.on_page(arrival);
        }
    }

    /// A write has ended.
    pub fn on_written(&mut self, id: WriteId, is_written: bool) {
        assert!(self.out.remove(&id), "this write is under way");
        if let Some(apply) = &mut self.apply {
            apply.on_written(id, is_written);
        }
    }

    /// Runs of the new tree's pages: what is to be flushed.
    pub fn new_runs(&self) -> &[Run] {
        &self.new
    }

    /// The pages are flushed: the shard's root in memory from now on. Not while a snapshot is being written
    /// (`PageSpace::is_sealed`).
    pub fn install(mut self, shard: &mut Shard, space: &mut PageSpace) -> Box<Applied> {
        let done = self.done.take().expect("all pages are written");
        space.link(&self.new, &self.old);
        for run in &self.new {
            self.taken.remove(run);
        }
        self.taken.iter().for_each(|run| space.give_back(*run));
        shard.thaw(true);
        done
    }

    /// It was not made: the places are free again, and what was frozen counts as changed. `Pages::forget` its waiter.
    pub fn give_up(self, shard: &mut Shard, space: &mut PageSpace) {
        assert!(self.out.is_empty(), "no write is under way");
        self.taken.iter().for_each(|run| space.give_back(*run));
        shard.thaw(false);
    }
}
