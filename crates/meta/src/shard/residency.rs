//! Which inodes of a shard are in memory, with all that they have: the others are *cold*, their tree has them.
//!
//! ```text
//! an operation reads a cold inode -> it is noted as missed -> NeedKeys, nothing changed
//! the driver reads the tree -> take_in: resident again, clean -> the operation runs again from its start
//! evict: clean and not used lately -> cold
//! a start: what its tree has as it is stays cold beyond some bytes (`Loader::with_room`), until a replayed mutation names it
//! ```
//!
//! Invariants
//! - A cold inode is in the tree of the shard's root in memory, exactly as it was when it left: it is not in the dirty log, not
//!   frozen, no orphan, held by no transaction, and has nothing to be moved to sectors.
//! - An inode is resident with its whole map, all entries and attributes, or not at all. So what a resident inode does not
//!   have is known to be absent, and so is an inode that is neither resident nor cold.
//! - Nothing changes between a miss and the `NeedKeys` that it ends in.
//! - What was read for work that has not run yet is pinned: else two that want more than there is room for could take it from
//!   one another for ever.
//!
//! [Decision 0009](../../../../docs/decisions/0009-checkpoints-and-residency.md).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};
use types::{InodeId, Run, ShardId, SmallBytes};

use super::Shard;
use crate::inode::{Body, Inode};
use crate::map::tree_weight;
use crate::name_hash::HashKey;
use crate::records::{BadRecord, Loader};

/// Bytes that an inode takes in tables, beside itself.
const TABLE_WEIGHT: usize = 48;
/// So many inodes that are gone may wait for their turn of the clock, beside as many as are resident.
const TRIM_COUNT: usize = 1024;
/// Inodes in one word, and in one group, of a set.
const WORD: u64 = 64;
const GROUP: u64 = 64 * WORD;

/// A set of indices, a bit each.
#[derive(Debug, Default)]
struct Indices {
    groups: FxHashMap<u64, Box<[u64; 64]>>,
    count: u64,
}

impl Indices {
    fn at(index: u64) -> (u64, usize, u64) {
        let word = usize::try_from(index % GROUP / WORD).expect("below 64");
        (index / GROUP, word, 1 << (index % WORD))
    }

    fn contains(&self, index: u64) -> bool {
        let (group, word, bit) = Self::at(index);
        let group = self.groups.get(&group);
        group.is_some_and(|words| words[word] & bit != 0)
    }

    fn insert(&mut self, index: u64) {
        let (group, word, bit) = Self::at(index);
        let words = self
            .groups
            .entry(group)
            .or_insert_with(|| Box::new([0; 64]));
        self.count += u64::from(words[word] & bit == 0);
        words[word] |= bit;
    }

    fn remove(&mut self, index: u64) -> bool {
        let (group, word, bit) = Self::at(index);
        let Some(words) = self.groups.get_mut(&group) else {
            return false;
        };
        let was_in = words[word] & bit != 0;
        words[word] &= !bit;
        if was_in {
            self.count -= 1;
            if words.iter().all(|word| *word == 0) {
                self.groups.remove(&group);
            }
        }
        was_in
    }

    /// Those from `first` on, ascending.
    fn from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let groups = self.groups.keys().copied();
        let mut groups: Vec<u64> = groups.filter(|group| *group >= first / GROUP).collect();
        groups.sort_unstable();
        let indices = groups.into_iter().flat_map(|group| {
            let words = &self.groups[&group];
            (group * GROUP..(group + 1) * GROUP).filter(move |index| {
                let (_, word, bit) = Self::at(*index);
                words[word] & bit != 0
            })
        });
        indices.skip_while(move |index| *index < first)
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Residency {
    cold: Indices,
    /// Cold inodes that were looked for since this was taken last, and whether there are any. Who looks has a shared
    /// reference; the shard's lock orders all of it, so the lock inside never waits.
    missed: Mutex<Vec<u64>>,
    has_missed: AtomicBool,
    /// Resident inodes, and some that are gone; the next one to be looked at first. Empty where nothing is evicted.
    clock: VecDeque<u64>,
    is_evicting: bool,
    /// Bytes of all resident inodes, roughly.
    size: u64,
    /// How often each is pinned.
    pins: FxHashMap<u64, u32>,
    look: Option<Look>,
}

/// Somebody goes through all cold inodes, in order, while others come and go.
#[derive(Debug, Default)]
struct Look {
    /// Those before it have been seen, but for `missed`, which could not be.
    next: u64,
    missed: FxHashSet<u64>,
    moved: Moved,
}

/// Runs of inodes that have moved behind the back of somebody who goes through the cold ones.
#[derive(Debug, Default)]
pub struct Moved {
    /// Of inodes that were seen and are resident since.
    pub came: Vec<Run>,
    /// Of inodes that are cold since, and are not going to be seen.
    pub went: Vec<Run>,
}

impl Residency {
    /// A resident inode grew or shrank.
    pub(super) fn resized(&mut self, before: u64, after: u64) {
        self.size = self.size - before + after;
    }

    /// An inode is resident from now on.
    pub(super) fn came(&mut self, index: u64, inode: &Inode) {
        self.size += inode.weight();
        if self.is_evicting {
            self.clock.push_back(index);
        }
    }

    /// An inode is not resident any more.
    pub(super) fn went(&mut self, inode: &Inode) {
        self.size -= inode.weight();
    }

    /// Something was looked for that is not resident.
    #[cold]
    pub(super) fn note_miss(&self, index: u64) {
        if self.cold.contains(index) {
            self.has_missed.store(true, Ordering::Relaxed);
            let mut missed = self.missed.lock().unwrap_or_else(PoisonError::into_inner);
            if !missed.contains(&index) {
                missed.push(index);
            }
        }
    }

    pub(super) fn is_cold(&self, index: u64) -> bool {
        self.cold.count > 0 && self.cold.contains(index)
    }

    pub(super) fn cold_count(&self) -> u64 {
        self.cold.count
    }
}

impl Inode {
    /// Bytes that it takes in memory, roughly. O(extended attributes).
    pub(crate) fn weight(&self) -> u64 {
        let mut weight = size_of::<Self>() + TABLE_WEIGHT;
        match &self.body {
            Body::Directory { entries, parts, .. } => {
                let parts = parts.as_ref().map(|parts| parts.len());
                weight += entries.weight() + parts.map_or(0, tree_weight::<u64, InodeId>);
            }
            Body::Part { entries, .. } => weight += entries.weight(),
            Body::Symlink(target) => weight += target.heap_size(),
            Body::File(_) | Body::Special => {}
        }
        let xattrs = self.xattrs.iter();
        weight += tree_weight::<SmallBytes, SmallBytes>(self.xattrs.len());
        weight += xattrs
            .map(|(name, value)| name.heap_size() + value.heap_size())
            .sum::<usize>();
        weight as u64 + self.map().map_or(0, crate::map::FileMap::weight)
    }
}

/// An inode as the tree has it.
#[derive(Debug)]
pub struct Loaded(Box<Inode>);

impl Loaded {
    /// What stat shows of it.
    pub fn attr(&self) -> &types::Attr {
        &self.0.attr
    }

    /// Every run of sectors that its map names, each once.
    pub fn runs(&self) -> Vec<Run> {
        super::runs_of(&self.0)
    }

    /// What of it lies in these places.
    pub fn lying_in(&self, places: &[Run]) -> Option<super::inspect::Lying> {
        super::inspect::lying_in(&self.0, places)
    }
}

/// Takes a record: its key, its value.
pub type PushRecord<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), BadRecord> + 'a;

/// An inode of so many bytes takes long to be read again: some thousand names, or extents.
const HEAVY: u64 = 1 << 20;

/// What an eviction did. Drop it under no lock.
#[derive(Debug, Default)]
#[must_use = "dropping it takes time: not under a lock"]
pub struct Evicted {
    /// Inodes that were looked at.
    pub visited: usize,
    /// Bytes that are free now, when this is dropped, roughly.
    pub bytes: u64,
    /// Bytes of those that had to stay for no other reason than that no tree has them as they are: a checkpoint lets them go.
    pub unsaved: u64,
    /// Bytes of those of `HEAVY` bytes and more that had to stay for other reasons: directories of many names that are in use.
    pub heavy: u64,
    #[allow(
        clippy::vec_box,
        reason = "they are moved out of the table as they are, under a lock"
    )]
    inodes: Vec<Box<Inode>>,
}

impl Evicted {
    /// Inodes that are cold now.
    pub fn count(&self) -> usize {
        self.inodes.len()
    }
}

impl Shard {
    /// Makes the inode of `index` of its records: `visit` gives each, in order, to what it is called with.
    ///
    /// # Errors
    /// They are not what a shard has. `Ok(None)`: there are none.
    pub fn decode(
        id: ShardId,
        key: HashKey,
        index: u64,
        visit: impl FnOnce(&mut PushRecord<'_>) -> Result<(), BadRecord>,
    ) -> Result<Option<Loaded>, BadRecord> {
        let mut scratch = Self::new(id, key);
        let mut loader = Loader::new(&mut scratch, Vec::new())?;
        visit(&mut |key, value| loader.push(key, value))?;
        let missing = loader.finish()?;
        assert!(missing.is_empty(), "there is room for all");
        Ok(scratch.inodes.remove(&index).map(Loaded))
    }

    /// The key of its name hash.
    pub fn hash_key(&self) -> HashKey {
        self.key
    }

    /// While the shard is loaded from its tree: this inode is cold.
    pub(crate) fn leave_in_tree(&mut self, index: u64) {
        self.next_index = self.next_index.max(index + 1);
        self.residency.cold.insert(index);
    }

    /// From now on `evict` may be called.
    pub fn allow_eviction(&mut self) {
        assert!(self.dirty.is_tracked(), "what is in no tree cannot go");
        if !std::mem::replace(&mut self.residency.is_evicting, true) {
            let mut indices: Vec<u64> = self.inodes.keys().copied().collect();
            indices.sort_unstable();
            self.residency.clock = indices.into();
        }
    }

    /// Bytes that the resident inodes take, roughly. O(1).
    pub fn resident_size(&self) -> u64 {
        self.residency.size
    }

    /// Inodes that are resident.
    pub fn resident_count(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Some inodes are in the tree alone.
    pub fn has_cold(&self) -> bool {
        self.residency.cold.count > 0
    }

    /// The inode is in the tree alone.
    pub fn is_cold(&self, ino: InodeId) -> bool {
        self.residency.is_cold(ino.index())
    }

    /// All inodes that are in the tree alone, ascending.
    pub fn cold_inodes(&self) -> Vec<InodeId> {
        self.cold_inodes_within(0, u64::MAX, usize::MAX)
    }

    /// Up to `count_max` of them, from `first` to `last`.
    pub fn cold_inodes_within(&self, first: u64, last: u64, count_max: usize) -> Vec<InodeId> {
        let indices = self.residency.cold.from(first);
        let indices = indices.take_while(|index| *index <= last).take(count_max);
        indices.map(|index| InodeId::new(self.id, index)).collect()
    }

    /// Somebody begins to go through the cold inodes, in order, with the shard unlocked while they are read. From now on what moves
    /// behind his back is noted (`moved`).
    pub fn begin_look(&mut self) {
        assert!(self.residency.look.is_none(), "one at a time");
        self.residency.look = Some(Look::default());
    }

    /// He has seen all cold inodes before `next`, but for these, which cannot be read.
    pub fn looked(&mut self, next: u64, missed: &[u64]) {
        let look = self.residency.look.as_mut().expect("it has begun");
        look.next = next;
        look.missed.extend(missed);
    }

    /// What has moved since the last call.
    pub fn moved(&mut self) -> Moved {
        let look = self.residency.look.as_mut().expect("it has begun");
        std::mem::take(&mut look.moved)
    }

    /// He has done.
    pub fn end_look(&mut self) {
        self.residency.look = None;
    }

    /// There is such an inode, resident or cold.
    pub fn exists(&self, ino: InodeId) -> bool {
        assert_eq!(ino.shard(), self.id);
        let inode = self.inodes.get(&ino.index());
        inode.is_some_and(|inode| !inode.is_part()) || self.is_cold(ino)
    }

    /// Attributes of a resident inode, for who can do without.
    pub(crate) fn peek_attr(&self, ino: InodeId) -> Option<types::Attr> {
        self.peek(ino).map(|inode| inode.attr)
    }

    /// A resident inode or part, for who can do without.
    pub(crate) fn peek(&self, ino: InodeId) -> Option<&Inode> {
        self.inodes.get(&ino.index()).map(|inode| &**inode)
    }

    /// Cold inodes that were looked for since the last call: what was read meanwhile is worth nothing.
    pub fn take_missed(&self) -> Vec<InodeId> {
        let residency = &self.residency;
        if !residency.has_missed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        residency.has_missed.store(false, Ordering::Relaxed);
        let mut missed = residency
            .missed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let missed = std::mem::take(&mut *missed).into_iter();
        missed.map(|index| InodeId::new(self.id, index)).collect()
    }

    /// A cold inode has been read from the tree of the shard's root. False: it is resident by now, or gone.
    pub fn take_in(&mut self, index: u64, loaded: Loaded) -> bool {
        if !self.residency.cold.remove(index) {
            return false;
        }
        let Loaded(inode) = loaded;
        assert_eq!(inode.attr.ino, InodeId::new(self.id, index));
        inode.used.store(true, Ordering::Relaxed);
        if let Some(look) = &mut self.residency.look
            && index < look.next
            && !look.missed.remove(&index)
        {
            look.moved.came.extend(super::runs_of(&inode));
        }
        self.put_whole(index, inode);
        true
    }

    /// An inode that was read is resident from now on.
    pub(super) fn put_whole(&mut self, index: u64, inode: Box<Inode>) {
        self.residency.came(index, &inode);
        self.note_orphan(index, inode.attr.nlink);
        if let Some(map) = inode.map() {
            self.piece_debt = self.piece_debt + map.piece_debt();
            if map.may_destage() {
                self.destage_later.insert(index);
            }
            if map.needs_destage() {
                self.destage_soon.insert(index);
            }
        }
        let old = self.inodes.insert(index, inode);
        assert!(old.is_none(), "what is read is not resident");
    }

    /// Looks at up to `visit_max` inodes and drops those that are clean and have not been used since they were looked at last,
    /// or, with `is_strict`, whether used or not, until `bytes` are free.
    pub fn evict(&mut self, visit_max: usize, bytes: u64, is_strict: bool) -> Evicted {
        let mut evicted = Evicted::default();
        let turns = visit_max.min(self.residency.clock.len());
        while evicted.visited < turns && evicted.bytes < bytes {
            evicted.visited += 1;
            let Some(index) = self.residency.clock.pop_front() else {
                break;
            };
            let Some(inode) = self.inodes.get(&index) else {
                continue;
            };
            let is_used = inode.used.swap(false, Ordering::Relaxed) && !is_strict;
            let weight = inode.weight();
            let is_kept = is_used || self.is_held(index);
            if is_kept || self.dirty.touches(index) {
                match is_kept {
                    true if weight >= HEAVY => evicted.heavy += weight,
                    true => {}
                    false => evicted.unsaved += weight,
                }
                self.residency.clock.push_back(index);
                continue;
            }
            let inode = self.inodes.remove(&index).expect("just seen");
            self.residency.went(&inode);
            self.residency.cold.insert(index);
            if let Some(look) = &mut self.residency.look
                && index < look.next
            {
                look.moved.went.extend(super::runs_of(&inode));
            }
            evicted.bytes += inode.weight();
            evicted.inodes.push(inode);
        }
        self.trim_clock();
        self.shrink_tables();
        evicted
    }

    /// A start reads everything: tables that were as large give their memory back when most has gone.
    fn shrink_tables(&mut self) {
        let len = self.inodes.len();
        let is_sparse = |capacity: usize| capacity > TRIM_COUNT && capacity / 8 > len;
        if is_sparse(self.inodes.capacity()) {
            self.inodes.shrink_to(2 * len);
        }
        let clock = &mut self.residency.clock;
        if is_sparse(clock.capacity()) {
            clock.shrink_to(2 * len);
        }
    }

    /// It stays until it is unpinned as often. Whether it is there does not matter.
    pub fn pin(&mut self, ino: InodeId) {
        assert_eq!(ino.shard(), self.id);
        *self.residency.pins.entry(ino.index()).or_default() += 1;
    }

    /// See `pin`.
    pub fn unpin(&mut self, ino: InodeId) {
        let pins = &mut self.residency.pins;
        let count = pins.get_mut(&ino.index()).expect("it was pinned");
        *count -= 1;
        if *count == 0 {
            pins.remove(&ino.index());
        }
    }

    /// Inodes that are pinned.
    pub fn pinned_count(&self) -> usize {
        self.residency.pins.len()
    }

    /// Forgets inodes that are gone, where most are.
    pub(super) fn trim_clock(&mut self) {
        let clock = &mut self.residency.clock;
        if clock.len() > 2 * self.inodes.len() + TRIM_COUNT {
            clock.retain(|index| self.inodes.contains_key(index));
        }
    }

    /// The inode has to stay: its tree does not have it as it is, or something that is found by looking at all that is
    /// resident depends on it.
    fn is_pinned(&self, index: u64) -> bool {
        self.is_held(index) || self.dirty.touches(index)
    }

    /// It has to stay, saved or not.
    fn is_held(&self, index: u64) -> bool {
        let ino = InodeId::new(self.id, index);
        ino == InodeId::ROOT
            || self.residency.pins.contains_key(&index)
            || self.orphans.contains(&index)
            || self.destage_soon.contains(&index)
            || self.destage_later.contains(&index)
            || self.locks.inode(ino).is_some()
    }

    /// Asserts what `Residency` says. O(n).
    pub(super) fn check_residency(&self) {
        // Who looks for what can go finds at most so much that has gone.
        assert!(self.residency.clock.len() <= 2 * self.inodes.len() + TRIM_COUNT);
        let size: u64 = self.inodes.values().map(|inode| inode.weight()).sum();
        assert_eq!(self.residency.size, size);
        for index in self.residency.cold.from(0) {
            assert!(!self.inodes.contains_key(&index) && !self.is_pinned(index));
            assert!(index < self.next_index);
        }
    }
}
