//! The ranges that one lock owner has locked on one inode.
//!
//! Invariants
//! - Sorted, disjoint, none empty; adjacent ones differ in their mode.

use types::{ByteRange, Lock, LockMode, LockOwner};

/// A locked range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockPiece {
    /// The bytes.
    pub range: ByteRange,
    /// How.
    pub mode: LockMode,
    /// The process that took it last.
    pub pid: u32,
}

impl LockPiece {
    /// As a lock of `owner`.
    pub const fn lock(&self, owner: LockOwner) -> Lock {
        Lock {
            owner,
            mode: self.mode,
            range: self.range,
            pid: self.pid,
        }
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    all: Vec<LockPiece>,
}

impl Pieces {
    /// Pieces.
    pub const fn count(&self) -> usize {
        self.all.len()
    }

    /// None is locked.
    pub const fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &LockPiece> {
        self.all.iter()
    }

    /// The pieces that share bytes with `range`, cut to it.
    pub fn within(&self, range: ByteRange) -> Vec<LockPiece> {
        let cut = |piece: &LockPiece| {
            let range = piece.range.intersection(&range)?;
            Some(LockPiece { range, ..*piece })
        };
        self.from(range.begin).iter().map_while(cut).collect()
    }

    /// All bytes of `range` are locked.
    pub fn cover(&self, range: ByteRange) -> bool {
        let within = self.within(range);
        within.iter().map(|piece| piece.range.length()).sum::<u64>() == range.length()
    }

    /// The pieces that are not in `after`, and those that are there in their place.
    pub fn changed<'a>(&'a self, after: &'a Self) -> (&'a [LockPiece], &'a [LockPiece]) {
        let pairs = self.all.iter().zip(&after.all);
        let front = pairs.take_while(|(old, new)| old == new).count();
        let (old, new) = (&self.all[front..], &after.all[front..]);
        let pairs = old.iter().rev().zip(new.iter().rev());
        let back = pairs.take_while(|(old, new)| old == new).count();
        (&old[..old.len() - back], &new[..new.len() - back])
    }

    /// From the first piece on that ends behind `begin`.
    fn from(&self, begin: u64) -> &[LockPiece] {
        &self.all[self.all.partition_point(|piece| piece.range.end <= begin)..]
    }

    /// The first piece that another's `lock` would conflict with.
    pub fn conflict(&self, lock: &Lock) -> Option<LockPiece> {
        let near = self.from(lock.range.begin).iter();
        let mut near = near.take_while(|piece| piece.range.begin < lock.range.end);
        near.find(|piece| piece.mode.conflicts_with(lock.mode))
            .copied()
    }

    /// Unlocks these bytes.
    pub fn clear(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        let first = self
            .all
            .partition_point(|piece| piece.range.end <= range.begin);
        let count = self.from(range.begin).iter();
        let count = count
            .take_while(|piece| piece.range.begin < range.end)
            .count();
        let mut left = Vec::with_capacity(2);
        for piece in &self.all[first..first + count] {
            if piece.range.begin < range.begin {
                let range = ByteRange::new(piece.range.begin, range.begin);
                left.push(LockPiece { range, ..*piece });
            }
            if piece.range.end > range.end {
                let range = ByteRange::new(range.end, piece.range.end);
                left.push(LockPiece { range, ..*piece });
            }
        }
        self.all.splice(first..first + count, left);
    }

    /// Locks, in place of what was locked there.
    pub fn set(&mut self, lock: &Lock) {
        if lock.range.is_empty() {
            return;
        }
        self.clear(lock.range);
        let mut at = self
            .all
            .partition_point(|piece| piece.range.end <= lock.range.begin);
        let mut piece = LockPiece {
            range: lock.range,
            mode: lock.mode,
            pid: lock.pid,
        };
        if let Some(next) = self.all.get(at)
            && next.range.begin == piece.range.end
            && next.mode == piece.mode
        {
            piece.range.end = next.range.end;
            self.all.remove(at);
        }
        if let Some(before) = at.checked_sub(1).and_then(|before| self.all.get(before))
            && before.range.end == piece.range.begin
            && before.mode == piece.mode
        {
            piece.range.begin = before.range.begin;
            at -= 1;
            self.all.remove(at);
        }
        self.all.insert(at, piece);
    }

    /// Asserts the invariants.
    ///
    /// # Panics
    /// One does not hold.
    pub fn check(&self) {
        assert!(self.all.iter().all(|piece| !piece.range.is_empty()));
        for pair in self.all.windows(2) {
            assert!(pair[0].range.end <= pair[1].range.begin);
            let is_adjacent = pair[0].range.end == pair[1].range.begin;
            assert!(!is_adjacent || pair[0].mode != pair[1].mode);
        }
    }
}
