//! A checkpoint of one shard: what its tree lacks, as it was at one moment, becomes pages and a new root in memory.
//!
//! ```text
//! begin (freezes the shard) -> poll: Write, Wait, Encode (under the shard's lock), Places (under the space's)
//!                           -> Written: flush the NSDs -> link (space, in steps; no snapshot is being written)
//!                                                      -> install (both locks)
//!                           -> Failed -> release (space, in steps) -> give_up (the shard's)
//! ```
//!
//! Invariants
//! - The shard and its old tree are as they were until `install`; after `give_up` nothing has happened.
//! - No call holds a lock for longer than some hundred keys or runs take.
//! - Every place that was taken is linked to the new root or given back, and that only when no write to it is under way.
//! - Memory: the apply's (`store::tree::apply`), and one piece of records.
//!
//! Durable is the new root with the next journal snapshot (decision 0009). What this deliberately does not do: I/O, flushes,
//! and the choice of shards.

use std::collections::BTreeSet;

use data::space::PageSpace;
use meta::records::{KEY_OF_INODE_SIZE, Record};
use meta::{Shard, Thawed};
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
/// Writes of pages that may fail before the checkpoint ends: the disk is broken.
const FAILURE_COUNT_MAX: u32 = 8;

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
    /// All pages are written: flush their NSDs, then `link` and `install`, or `release` and `give_up`.
    Written,
    /// It cannot be done, and no write is under way any more: `release`, then `give_up`.
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
    /// Too many writes have failed.
    #[error("pages of a tree cannot be written")]
    NotWritten,
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
    failure_count: u32,
    key_count: usize,
    /// Of `new` and of `old`, so many are linked.
    linked: (usize, usize),
}

impl Checkpoint {
    /// Freezes what has changed in the shard since its tree of `root` was made. `None`: nothing has, and no page of it is to leave the places
    /// in `evacuated`.
    pub fn begin(
        config: ApplyConfig,
        root: &Root,
        evacuated: &[Run],
        shard: &mut Shard,
    ) -> Option<Self> {
        assert_eq!(config.tree.shard, shard.id());
        let key_count = shard.freeze();
        if key_count == 0 && (evacuated.is_empty() || root.page.is_none()) {
            drop(shard.thaw(Some(root.page.is_some())));
            return None;
        }
        let mut apply = Apply::new(config, root);
        apply.evacuate(evacuated);
        Some(Self {
            apply: Some(apply),
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
            failure_count: 0,
            key_count,
            linked: (0, 0),
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

    /// Keys that have changed since the checkpoint before.
    pub fn key_count(&self) -> usize {
        self.key_count
    }

    /// Some of the next records of the shard, as they were when the checkpoint began: one piece. Then `push`.
    pub fn encode(&mut self, shard: &mut Shard) {
        if !self.is_encoded && self.apply.is_some() {
            self.is_encoded = shard.encode_frozen(PIECE_KEY_COUNT, &mut self.records);
        }
    }

    /// Hands what was encoded to the tree, under no lock. True: another piece is welcome now.
    pub fn push(&mut self) -> bool {
        let Some(apply) = &mut self.apply else {
            return false;
        };
        for (key, value) in self.records.drain(..) {
            let behind;
            let change = match &value {
                Some(value) => Change::Put(value),
                None if key.len() == KEY_OF_INODE_SIZE => {
                    behind = key_behind(&key);
                    Change::DeleteTo(&behind)
                }
                None => Change::Delete,
            };
            apply.push(&key, change);
        }
        !self.is_encoded && apply.wants_changes()
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
        self.failure_count += u32::from(!is_written);
        if self.failure_count >= FAILURE_COUNT_MAX {
            self.failure.get_or_insert(Failure::NotWritten);
        }
        if let Some(apply) = &mut self.apply {
            apply.on_written(id, is_written);
        }
    }

    /// NSDs of the new tree's pages: what is to be flushed.
    pub fn nsds(&self) -> BTreeSet<NsdId> {
        self.new.iter().map(|run| run.at.nsd).collect()
    }

    /// The pages are flushed: links some of them, `run_count_max` at the most. True: all are, `install`. From the first call
    /// to `install` no snapshot may begin.
    ///
    /// # Panics
    /// While a snapshot is written (`PageSpace::is_sealed`).
    pub fn link(&mut self, space: &mut PageSpace, run_count_max: usize) -> bool {
        assert!(self.done.is_some(), "all pages are written");
        let (new, old) = self.linked;
        let new_end = self.new.len().min(new + run_count_max);
        let old_end = self.old.len().min(old + run_count_max);
        space.link(&self.new[new..new_end], &self.old[old..old_end]);
        for run in &self.new[new..new_end] {
            self.taken.remove(run);
        }
        self.linked = (new_end, old_end);
        let is_over = (new_end, old_end) == (self.new.len(), self.old.len());
        is_over && self.release(space, run_count_max)
    }

    /// Gives places back that are in no tree, some at a time. True: all are.
    pub fn release(&mut self, space: &mut PageSpace, run_count_max: usize) -> bool {
        assert!(self.out.is_empty(), "no write is under way");
        for _ in 0..run_count_max {
            let Some(run) = self.taken.pop_first() else {
                return true;
            };
            space.give_back(run);
        }
        self.taken.is_empty()
    }

    /// All pages are linked: this is the shard's root in memory from now on. Drop the second under no lock.
    pub fn install(mut self, shard: &mut Shard) -> (Box<Applied>, Thawed) {
        let done = self.done.take().expect("all pages are written");
        assert_eq!(
            self.linked,
            (self.new.len(), self.old.len()),
            "all are linked"
        );
        let thawed = shard.thaw(Some(done.root.page.is_some()));
        (done, thawed)
    }

    /// It was not made: what was frozen counts as changed. `Pages::forget` its waiter.
    pub fn give_up(self, shard: &mut Shard) {
        assert!(self.taken.is_empty(), "its places are free again");
        drop(shard.thaw(None));
    }
}

/// The key of the inode behind that of this key.
fn key_behind(key: &[u8]) -> Vec<u8> {
    let mut behind = key.to_vec();
    for byte in behind.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            break;
        }
    }
    behind
}
