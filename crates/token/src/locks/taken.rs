//! What is held and offered on one inode, in the order of its ranges: who is in the way of a lock is found without a look at everybody.
//!
//! Ranges of readers overlap, so that their order alone does not tell where those end that reach into a range. They lie in blocks, of which each
//! knows the largest end in it: a search passes the blocks that end before its range, and those with nothing but the searcher's own, and finds
//! what it searches in one of the next.
//!
//! Invariants
//! - What is taken lies in the order of first byte, lock owner and wait, in blocks that are neither empty nor larger than `BLOCK_COUNT_MAX`.
//! - Two blocks beside one another have more than `BLOCK_COUNT_MAX / 2` together.

use std::collections::BTreeMap;

use types::id::NodeLife;
use types::{ByteRange, Lock, LockKind, LockMode};

use super::Holder;
use super::pieces::Pieces;

const BLOCK_COUNT_MAX: usize = 256;

/// A lock that is held, or offered to a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    /// Whose.
    pub(super) life: NodeLife,
    /// The lock.
    pub(super) lock: Lock,
    /// The wait that it is offered to.
    pub(super) wait: Option<u64>,
}

#[derive(Debug)]
struct Block {
    /// The largest end.
    end: u64,
    /// All of it is this one's.
    only: Option<Holder>,
    all: Vec<Taken>,
}

/// What is taken in one mode, by locks of one kind.
#[derive(Debug, Default)]
struct Sorted {
    blocks: Vec<Block>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Table {
    sorted: BTreeMap<(LockKind, LockMode), Sorted>,
}

impl Taken {
    /// Whose.
    pub(super) const fn holder(&self) -> Holder {
        (self.life, self.lock.owner)
    }

    const fn key(&self) -> (u64, Holder, Option<u64>) {
        (self.lock.range.begin, self.holder(), self.wait)
    }
}

impl Block {
    fn new(all: Vec<Taken>) -> Self {
        let end = all.iter().map(|taken| taken.lock.range.end).max();
        let end = end.expect("no block is empty");
        let first = all[0].holder();
        let is_only = all.iter().all(|taken| taken.holder() == first);
        let only = is_only.then_some(first);
        Self { end, only, all }
    }
}

impl Sorted {
    /// The block in which it is, or would be.
    fn block(&self, taken: &Taken) -> usize {
        let from = self
            .blocks
            .partition_point(|b| b.all[0].key() <= taken.key());
        from.saturating_sub(1)
    }

    fn insert(&mut self, taken: Taken) {
        let at = self.block(&taken);
        let Some(block) = self.blocks.get_mut(at) else {
            return self.blocks.push(Block::new(vec![taken]));
        };
        let place = block.all.partition_point(|t| t.key() < taken.key());
        block.all.insert(place, taken);
        block.end = block.end.max(taken.lock.range.end);
        block.only = block.only.filter(|only| *only == taken.holder());
        if block.all.len() > BLOCK_COUNT_MAX {
            let mut front = std::mem::take(&mut block.all);
            let back = Block::new(front.split_off(BLOCK_COUNT_MAX / 2));
            self.blocks.splice(at..=at, [Block::new(front), back]);
        }
    }

    fn remove(&mut self, taken: &Taken) {
        let at = self.block(taken);
        let mut all = std::mem::take(&mut self.blocks[at].all);
        let place = all.binary_search_by_key(&taken.key(), Taken::key);
        all.remove(place.expect("what is taken is in its place"));
        if all.is_empty() {
            self.blocks.remove(at);
        } else {
            self.blocks[at] = Block::new(all);
        }
        for at in [at, at.saturating_sub(1)] {
            self.join(at);
        }
    }

    /// Makes one of a block and the next one, if that is a small one.
    fn join(&mut self, at: usize) {
        let [front, back] = self.blocks.get(at..at + 2).unwrap_or_default() else {
            return;
        };
        if front.all.len() + back.all.len() <= BLOCK_COUNT_MAX / 2 {
            let both = Block::new([&front.all[..], &back.all[..]].concat());
            self.blocks.splice(at..at + 2, [both]);
        }
    }

    /// What others than `of` have there.
    fn overlapping(&self, of: Holder, range: ByteRange) -> impl Iterator<Item = &Taken> {
        let blocks = self.blocks.iter().inspect(|_| count_look());
        let blocks = blocks.take_while(move |block| block.all[0].lock.range.begin < range.end);
        let near = blocks.filter(move |block| block.end > range.begin && block.only != Some(of));
        let near = near.flat_map(|block| &block.all).inspect(|_| count_look());
        near.filter(move |taken| taken.holder() != of && taken.lock.range.overlaps(&range))
    }
}

impl Table {
    /// This is taken.
    pub(super) fn insert(&mut self, taken: Taken) {
        let key = (taken.lock.owner.kind, taken.lock.mode);
        self.sorted.entry(key).or_default().insert(taken);
    }

    /// This is not taken any more.
    pub(super) fn remove(&mut self, taken: &Taken) {
        let key = (taken.lock.owner.kind, taken.lock.mode);
        let sorted = self.sorted.get_mut(&key);
        sorted.expect("it was taken").remove(taken);
    }

    /// A lock owner holds other pieces than before.
    pub(super) fn replace(&mut self, of: Holder, before: &Pieces, after: &Pieces) {
        let (gone, new) = before.changed(after);
        let held = |lock| Taken {
            life: of.0,
            lock,
            wait: None,
        };
        for piece in gone {
            self.remove(&held(piece.lock(of.1)));
        }
        for piece in new {
            self.insert(held(piece.lock(of.1)));
        }
    }

    /// What others have that is in the way of `lock`.
    pub(super) fn conflicts(&self, of: Holder, lock: Lock) -> impl Iterator<Item = &Taken> {
        let modes = [LockMode::Write, LockMode::Read].into_iter();
        let modes = modes.filter(move |mode| mode.conflicts_with(lock.mode));
        let sorted = modes.filter_map(move |mode| self.sorted.get(&(lock.owner.kind, mode)));
        sorted.flat_map(move |sorted| sorted.overlapping(of, lock.range))
    }

    /// All that is taken.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Taken> {
        let blocks = self.sorted.values().flat_map(|sorted| &sorted.blocks);
        blocks.flat_map(|block| &block.all)
    }

    /// Asserts the invariants.
    pub(super) fn check(&self) {
        for sorted in self.sorted.values() {
            for block in &sorted.blocks {
                assert!(block.all.len() <= BLOCK_COUNT_MAX);
                let end = block.all.iter().map(|taken| taken.lock.range.end).max();
                assert_eq!(Some(block.end), end);
                let mut holders = block.all.iter().map(Taken::holder);
                assert!(block.only.is_none_or(|only| holders.all(|of| of == only)));
            }
            for pair in sorted.blocks.windows(2) {
                assert!(pair[0].all.len() + pair[1].all.len() > BLOCK_COUNT_MAX / 2);
            }
            let all = sorted.blocks.iter().flat_map(|block| &block.all);
            assert!(all.is_sorted_by(|a, b| a.key() < b.key()));
        }
    }
}

#[cfg(not(test))]
const fn count_look() {}

/// Looks at blocks and at what is taken, of this thread: tests bound them.
#[cfg(test)]
fn count_look() {
    LOOKS.set(LOOKS.get() + 1);
}

#[cfg(test)]
thread_local! {
    pub(super) static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}
