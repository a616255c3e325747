//! One shard of the name space in memory.
//!
//! Invariants (`check` asserts them)
//! - Durable state changes by `apply` alone; what is volatile (locks of running transactions, refusals)
//!   is not in a snapshot and not needed after a restart.
//! - An entry's inode that is this shard's exists and is of the kind the entry says; only directories and their parts
//!   have entries; a cookie lies among the 128 of its name's hash. No part is empty.
//! - An inode without a name is an orphan; an orphan that no node has open is reaped in the record that
//!   took the last name or the last open away.
//! - An index is given once and never again.
//! - No `FxHashMap` is iterated without sorting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;
use types::attr::HAS_PROMISE;
use types::extent::{Extent, Piece};
use types::{
    Attr, Encode as _, FileKind, InodeId, Name, NodeLife, Promised, RequestId, Run, SECTOR_SIZE,
    ShardId, SmallBytes, Timestamp,
};

use crate::dirty::Dirty;
use crate::inode::{Body, Dirent, Entries, Inode, InodeRecord};
use crate::locks::Locks;
use crate::map::{FileMap, PieceDebt};
use crate::message::{Op, Reply};
use crate::mutation::Mutation;
use crate::name_hash::{HashKey, TIE_COUNT_MAX};
use crate::records::{Key, Named, PROMISE_SIZE, length_of_extent};
use crate::step::Step;
use crate::transaction::{Active, TransactionId};
use crate::view::Origin;

mod checkpoint;
mod destage;
pub mod inspect;
mod names;
mod orphans;
mod residency;

pub use residency::{Evicted, Loaded, Moved, PushRecord};

/// Extents in one mutation of a snapshot.
const SNAPSHOT_EXTENT_COUNT: usize = 256;
/// Pieces in one mutation of a snapshot.
const SNAPSHOT_PIECE_COUNT: usize = 16;

/// Bytes of a kept answer in a snapshot, roughly.
const ANSWER_SIZE: usize = 256;
/// Bytes of what a snapshot holds of a transaction, roughly.
const TRANSACTION_SIZE: usize = 1024;

/// Numbers that can be reserved, and forgotten by a restart, before their inodes are made.
const RESERVE_AHEAD_MAX: u64 = 1 << 20;

/// A prepared transaction at a participant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Prepared {
    pub(crate) now: Timestamp,
    pub(crate) steps: Vec<Step>,
}

/// What a call that changed a shard leaves to its caller: to be journaled in one record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// What was changed, in order.
    pub mutations: Vec<(ShardId, Mutation)>,
    /// Runs that no file uses any more.
    pub freed: Vec<Run>,
}

/// Where a new name can go in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Under this cookie.
    Free(u64),
    /// The name is there already.
    Taken,
    /// All 128 cookies of its hash are taken (ENOSPC).
    Full,
}

/// One shard.
#[derive(Debug)]
pub struct Shard {
    id: ShardId,
    key: HashKey,
    // Boxed: a growing table moves 8 bytes per inode instead of 200.
    inodes: FxHashMap<u64, Box<Inode>>,
    next_index: u64,
    orphans: BTreeSet<u64>,
    /// Those of them that nobody has open and that a transaction keeps, which may be about to give them a name.
    spared: BTreeSet<u64>,
    open: BTreeSet<(u64, NodeLife)>,
    answers: BTreeMap<(NodeLife, u16), (RequestId, Reply)>,
    pub(crate) prepared: BTreeMap<TransactionId, Prepared>,
    pub(crate) done: BTreeSet<TransactionId>,
    pub(crate) outcomes: BTreeMap<TransactionId, Vec<ShardId>>,
    destage_soon: BTreeSet<u64>,
    destage_later: BTreeSet<u64>,
    /// Bytes of pieces of the files in `destage_later`.
    piece_debt: PieceDebt,
    /// Promised to its files, cold ones included.
    promised: Promised,
    // Volatile from here on.
    /// Parts of directories, resident or cold.
    part_count: u64,
    /// What the shard's tree does not have yet.
    dirty: Dirty,
    /// Which inodes are in memory.
    residency: residency::Residency,
    /// Holders of names that should be split or joined.
    tending: crate::parts::Tending,
    /// Pinned parts of directories that hold names of transactions under way here, by transaction (`parts::held`).
    pub(crate) held_parts: BTreeMap<TransactionId, Vec<InodeId>>,
    /// Transactions that this shard coordinates, before their outcome.
    pub(crate) active: BTreeMap<TransactionId, Active>,
    /// Participants that have confirmed an outcome.
    pub(crate) confirmed: BTreeMap<TransactionId, BTreeSet<ShardId>>,
    /// What running and prepared transactions hold.
    pub(crate) locks: Locks,
    /// The newest request of each slot that failed, so that its late duplicate is known.
    refused: FxHashMap<(NodeLife, u16), (RequestId, Reply)>,
}

impl Shard {
    /// An empty shard: replay follows, or, for shard 0 of a new file system, `make_root`.
    pub fn new(id: ShardId, key: HashKey) -> Self {
        Self {
            id,
            key,
            inodes: FxHashMap::default(),
            next_index: InodeId::ROOT.index() + 1,
            orphans: BTreeSet::new(),
            spared: BTreeSet::new(),
            open: BTreeSet::new(),
            answers: BTreeMap::new(),
            prepared: BTreeMap::new(),
            done: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            destage_soon: BTreeSet::new(),
            destage_later: BTreeSet::new(),
            piece_debt: PieceDebt::default(),
            promised: Promised::default(),
            part_count: 0,
            dirty: Dirty::default(),
            residency: residency::Residency::default(),
            tending: crate::parts::Tending::default(),
            held_parts: BTreeMap::new(),
            active: BTreeMap::new(),
            confirmed: BTreeMap::new(),
            locks: Locks::default(),
            refused: FxHashMap::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Makes the root directory of a new file system (shard 0, empty). Journal what is returned.
    pub fn make_root(&mut self, now: Timestamp, permissions: u32, generation: u64) -> Changes {
        assert_eq!(InodeId::ROOT.shard(), self.id);
        assert!(self.inodes.is_empty());
        let kind = FileKind::Directory;
        let attr = Attr::new(InodeId::ROOT, generation, kind, permissions, now);
        let record = InodeRecord {
            attr,
            parent: InodeId::ROOT,
            target: SmallBytes::default(),
        };
        let mut changes = Changes::default();
        self.perform(Mutation::InodePut { record }, &mut changes);
        changes
    }

    /// A free inode number; it is not given again while this shard value lives (and never, once the inode
    /// is made). Not journaled.
    pub fn reserve_index(&mut self) -> InodeId {
        let index = self.next_index;
        self.next_index += 1;
        InodeId::new(self.id, index)
    }

    /// The next free inode number, not reserved.
    pub(crate) fn next_number(&self) -> InodeId {
        InodeId::new(self.id, self.next_index)
    }

    /// What the transaction does here is its own from now on, the numbers of inodes that it makes among it: nobody is given them, and nobody
    /// waits for them.
    pub(crate) fn lock_for(&mut self, transaction: (Timestamp, TransactionId), steps: &[Step]) {
        self.locks.take(transaction, steps, self.id);
        for step in steps.iter().filter(|step| step.shard() == self.id) {
            if let Step::InodeCreate { record } = step {
                self.next_index = self.next_index.max(record.attr.ino.index() + 1);
            }
        }
    }

    /// The number can have been reserved here. One far ahead never was: making it would waste all between.
    pub(crate) fn may_take(&self, ino: InodeId) -> bool {
        ino.index() < self.next_index + RESERVE_AHEAD_MAX
    }

    /// Inodes, orphans included.
    pub fn inode_count(&self) -> u64 {
        self.inodes.len() as u64 + self.residency.cold_count() - self.part_count
    }

    /// Parts of directories.
    pub fn part_count(&self) -> u64 {
        self.part_count
    }

    /// From now on holders of names that should be split or joined are noted.
    pub fn allow_parts(&mut self, bounds: crate::parts::Bounds) {
        self.tending.allow(bounds);
    }

    /// See `allow_parts`. `None`: nothing is split here.
    pub(crate) fn part_bounds(&self) -> Option<crate::parts::Bounds> {
        self.tending.bounds()
    }

    /// From now on names are looked for with the holder before theirs: to see whether a checker notices.
    pub fn look_before_parts(&mut self) {
        self.tending.looks_before = true;
    }

    pub(crate) fn looks_before_parts(&self) -> bool {
        self.tending.looks_before
    }

    /// There is one (`next_to_tend`).
    pub fn has_to_tend(&self) -> bool {
        self.tending.is_due()
    }

    /// The next holder of names that should be split or joined (`parts::tend`), once.
    pub fn next_to_tend(&mut self) -> Option<InodeId> {
        let index = self.tending.next()?;
        Some(InodeId::new(self.id, index))
    }

    /// Attributes of an inode of this shard.
    pub fn attr(&self, ino: InodeId) -> Option<Attr> {
        self.inode(ino).filter(|i| !i.is_part()).map(|i| i.attr)
    }

    /// There is such an inode in this shard, and it is resident.
    pub fn has_inode(&self, ino: InodeId) -> bool {
        self.inode(ino).is_some_and(|inode| !inode.is_part())
    }

    /// Where the bytes of a file lie; `None` for what is no file, and for one that never had any.
    pub fn extents(&self, ino: InodeId) -> Option<impl Iterator<Item = &Extent>> {
        self.inode(ino)?.map().map(|map| map.extents())
    }

    /// Pieces of a file that lie in metadata, and their bytes.
    pub fn pieces(&self, ino: InodeId) -> (usize, u64) {
        let map = self.inode(ino).and_then(Inode::map);
        map.map_or((0, 0), |map| (map.piece_count(), map.piece_byte_count()))
    }

    /// Parts of a directory.
    pub fn part_count_of(&self, ino: InodeId) -> usize {
        let parts = self.inode(ino).and_then(Inode::parts);
        parts.map_or(0, BTreeMap::len)
    }

    /// A directory's parent.
    pub fn parent(&self, ino: InodeId) -> Option<InodeId> {
        match &self.inode(ino)?.body {
            Body::Directory { parent, .. } => Some(*parent),
            Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// An inode, or a part of a directory. A cold one is noted as missed.
    pub(crate) fn inode(&self, ino: InodeId) -> Option<&Inode> {
        assert_eq!(ino.shard(), self.id);
        let Some(inode) = self.inodes.get(&ino.index()) else {
            self.residency.note_miss(ino.index());
            return None;
        };
        inode.used.store(true, Ordering::Relaxed);
        Some(inode)
    }

    /// The entry of `name` in a directory or part that holds it (`View::holder`), and its cookie.
    pub(crate) fn entry(&self, holder: InodeId, name: &Name) -> Option<(u64, &Dirent)> {
        self.find(self.inode(holder)?.entries()?, name)
    }

    /// The same among the entries of that directory or part.
    pub(crate) fn find<'e>(
        &self,
        entries: &'e BTreeMap<u64, Dirent>,
        name: &Name,
    ) -> Option<(u64, &'e Dirent)> {
        let first = self.key.first_cookie(name.bytes());
        // Nearly every name is the first of its hash, and a point look-up costs half of a range.
        if let Some(entry) = entries.get(&first).filter(|e| e.name == *name) {
            return Some((first, entry));
        }
        entries
            .range(first..first + TIE_COUNT_MAX)
            .find(|(_, e)| e.name == *name)
            .map(|(cookie, e)| (*cookie, e))
    }

    /// The cookie for a new `name`, in one pass over its hash's entries.
    pub(crate) fn place(&self, holder: InodeId, name: &Name) -> Place {
        let first = self.key.first_cookie(name.bytes());
        let inode = self.inode(holder);
        let Some(entries) = inode.and_then(Inode::entries) else {
            return Place::Full;
        };
        let mut free = first;
        for (cookie, entry) in entries.range(first..first + TIE_COUNT_MAX) {
            if entry.name == *name {
                return Place::Taken;
            }
            if *cookie == free {
                free += 1;
            }
        }
        if free < first + TIE_COUNT_MAX {
            Place::Free(free)
        } else {
            Place::Full
        }
    }

    /// A node is known to have the inode open.
    pub fn is_open(&self, ino: InodeId) -> bool {
        let index = ino.index();
        let first = (index, NodeLife::default());
        self.open
            .range(first..)
            .next()
            .is_some_and(|(i, _)| *i == index)
    }

    /// `life` is known to have the inode open.
    pub fn is_open_at(&self, ino: InodeId, life: NodeLife) -> bool {
        self.open.contains(&(ino.index(), life))
    }

    /// Indexes of the inodes that `life` is known to have open, ascending.
    pub fn opens_of(&self, life: NodeLife) -> impl Iterator<Item = u64> + '_ {
        let is_its = move |(_, l): &&(u64, NodeLife)| *l == life;
        self.open.iter().filter(is_its).map(|(index, _)| *index)
    }

    /// A prepared transaction is about to change the inode.
    pub fn is_in_transaction(&self, ino: InodeId) -> bool {
        self.locks.inode(ino).is_some()
    }

    /// An answer that is kept for `life`, and that it may not have yet, says that it has the inode open: it was made without a name, or is
    /// kept because of that node.
    pub fn is_answered_open(&self, ino: InodeId, life: NodeLife) -> bool {
        let first = (life, u16::MIN);
        let answers = self.answers.range(first..=(life, u16::MAX));
        answers.into_iter().any(|(_, (_, reply))| match reply {
            Reply::Made { ino: made, .. } => *made == ino,
            Reply::Removed {
                ino: removed,
                kept_open,
                ..
            } => *kept_open && *removed == ino,
            Reply::Renamed {
                replaced,
                kept_open,
                ..
            } => *kept_open && *replaced == Some(ino),
            _ => false,
        })
    }

    /// Lives that the shard knows of, by opens and answers: after a restart the caller calls
    /// `on_node_lost` for those that are dead.
    pub fn lives(&self) -> BTreeSet<NodeLife> {
        let open = self.open.iter().map(|(_, l)| *l);
        open.chain(self.answers.keys().map(|(l, _)| *l)).collect()
    }

    /// Visits every run of sectors that a resident file's map names, each once.
    pub fn visit_runs(&self, visit: &mut dyn FnMut(Run)) {
        for inode in self.inodes.values() {
            runs_of(inode).into_iter().for_each(&mut *visit);
        }
    }

    /// What is promised to its files.
    pub fn promised(&self) -> Promised {
        self.promised
    }

    /// What an operation adds to that. Its inode is resident, or it adds nothing.
    pub fn promise_adds(&self, op: &Op) -> Promised {
        let Op::Allocate {
            ino, begin, end, ..
        } = *op
        else {
            return Promised::default();
        };
        let (first, last) = (begin / SECTOR_SIZE, end.div_ceil(SECTOR_SIZE));
        match self.inode(ino) {
            Some(inode) if first < last => match inode.map() {
                Some(map) => map.promise_adds(first, last),
                None => FileMap::default().promise_adds(first, last),
            },
            _ => Promised::default(),
        }
    }

    /// The kept answer of a slot.
    pub(crate) fn answer(&self, life: NodeLife, slot: u16) -> Option<(RequestId, &Reply)> {
        self.answers
            .get(&(life, slot))
            .map(|(r, reply)| (*r, reply))
    }

    /// The newest request of a slot that failed, and its answer.
    pub(crate) fn refused(&self, life: NodeLife, slot: u16) -> Option<(RequestId, &Reply)> {
        self.refused
            .get(&(life, slot))
            .map(|(r, reply)| (*r, reply))
    }

    /// A request failed: its late duplicate must not be executed after all. Volatile: a duplicate does
    /// not survive a restart of the owner, which ends every connection.
    pub fn note_refused(&mut self, life: NodeLife, origin: Origin, reply: Reply) {
        let answer = (origin.request, reply);
        self.refused.insert((life, origin.slot), answer);
    }

    /// Applies a mutation and adds it to the changes.
    pub(crate) fn perform(&mut self, mutation: Mutation, changes: &mut Changes) {
        self.apply_with(&mutation, &mut changes.freed);
        changes.mutations.push((self.id, mutation));
    }

    /// Applies a journaled mutation. Space that it frees is in the same record's space part.
    ///
    /// Mutations are only ever made by this crate against the very state they are replayed on (the journal
    /// checks their bytes), so one that does not fit is our own bug and asserts.
    pub fn apply(&mut self, mutation: &Mutation) {
        self.apply_with(mutation, &mut Vec::new());
    }

    fn apply_with(&mut self, mutation: &Mutation, freed: &mut Vec<Run>) {
        if self.dirty.is_tracked() {
            self.note_dirty(mutation);
        }
        match mutation {
            Mutation::InodePut { record } => self.put_inode(record.clone()),
            Mutation::InodeRemove { index } => self.remove_inode(*index, freed),
            Mutation::AttrPut { index, attr } => {
                let old = &mut self.inode_mut(*index).attr;
                put_attr(old, attr);
                self.note_orphan(*index, attr.nlink);
            }
            Mutation::DirectoryTouch { index, now, nlink } => {
                let attr = &mut self.inode_mut(*index).attr;
                attr.mtime = *now;
                attr.ctime = *now;
                attr.change += 1;
                attr.nlink = *nlink;
            }
            Mutation::ParentPut { index, parent: new } => match &mut self.inode_mut(*index).body {
                Body::Directory { parent, .. } => *parent = *new,
                Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => {
                    panic!("only directories have parents")
                }
            },
            Mutation::EntryPut { .. }
            | Mutation::EntryRemove { .. }
            | Mutation::PartMake { .. }
            | Mutation::PartPut { .. }
            | Mutation::PartRemove { .. } => self.apply_name(mutation),
            Mutation::XattrPut { index, name, value } => {
                self.reweighed(*index, |inode| {
                    inode.xattrs.insert(name.clone(), value.clone());
                });
            }
            Mutation::XattrRemove { index, name } => {
                let old = self.reweighed(*index, |inode| inode.xattrs.remove(name));
                assert!(old.is_some(), "an extended attribute is removed once");
            }
            Mutation::MapPut { .. }
            | Mutation::MapCut { .. }
            | Mutation::MapHole { .. }
            | Mutation::MapPromise { .. }
            | Mutation::MapLoad { .. } => self.apply_map(mutation, freed),
            Mutation::OpenPut {
                index,
                life,
                is_open,
            } => {
                if *is_open {
                    self.open.insert((*index, *life));
                } else {
                    self.open.remove(&(*index, *life));
                }
            }
            Mutation::LifeRemove { life } => {
                self.open.retain(|(_, l)| l != life);
                self.answers.retain(|(l, _), _| l != life);
            }
            Mutation::AnswerPut {
                life,
                slot,
                request,
                reply,
            } => {
                let answer = (*request, reply.clone());
                self.answers.insert((*life, *slot), answer);
            }
            Mutation::NextIndex { index } => self.next_index = self.next_index.max(*index),
            Mutation::TreeRoot { .. } | Mutation::TreeRecord { .. } => {
                unreachable!("the reader of a snapshot takes them")
            }
            Mutation::Prepare { .. }
            | Mutation::Resolve { .. }
            | Mutation::DoneForget { .. }
            | Mutation::OutcomePut { .. }
            | Mutation::OutcomeForget { .. } => self.apply_transaction(mutation),
        }
    }

    fn apply_map(&mut self, mutation: &Mutation, freed: &mut Vec<Run>) {
        match mutation {
            Mutation::MapPut {
                index,
                extents,
                pieces,
            } => self.change_map(*index, |map| map.put(extents, pieces, freed)),
            Mutation::MapCut { index, size } => {
                self.change_map(*index, |map| map.cut(*size, freed));
            }
            Mutation::MapHole { index, begin, end } => {
                self.change_map(*index, |map| map.punch(*begin, *end, freed));
            }
            Mutation::MapPromise { index, begin, end } => {
                self.change_map(*index, |map| map.promise(*begin, *end));
            }
            Mutation::MapLoad {
                index,
                version,
                extents,
                pieces,
            } => self.change_map(*index, |map| map.load(*version, extents, pieces)),
            _ => unreachable!("the caller passes the mutations of maps only"),
        }
    }

    fn apply_transaction(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::Prepare { id, now, steps } => {
                self.lock_for((*now, *id), steps);
                let prepared = Prepared {
                    now: *now,
                    steps: steps.clone(),
                };
                let old = self.prepared.insert(*id, prepared);
                assert!(old.is_none(), "a transaction is prepared once at a time");
            }
            Mutation::Resolve { id, is_commit } => {
                self.prepared.remove(id);
                self.locks.release(*id);
                if *is_commit {
                    self.done.insert(*id);
                }
            }
            Mutation::DoneForget { id } => {
                self.done.remove(id);
            }
            Mutation::OutcomePut { id, participants } => {
                self.outcomes.insert(*id, participants.clone());
            }
            Mutation::OutcomeForget { id } => {
                self.outcomes.remove(id);
                self.confirmed.remove(id);
            }
            _ => unreachable!("the caller passes the mutations of transactions only"),
        }
    }

    fn put_inode(&mut self, record: InodeRecord) {
        let ino = record.attr.ino;
        let nlink = record.attr.nlink;
        self.put_resident(Inode::new(record));
        self.note_orphan(ino.index(), nlink);
    }

    fn put_resident(&mut self, inode: Inode) {
        let ino = inode.attr.ino;
        assert_eq!(ino.shard(), self.id);
        let inode = Box::new(inode);
        self.residency.came(ino.index(), &inode);
        let old = self.inodes.insert(ino.index(), inode);
        let is_new = old.is_none() && !self.residency.is_cold(ino.index());
        assert!(is_new, "an inode is made once");
        self.trim_clock();
        self.next_index = self.next_index.max(ino.index() + 1);
    }

    fn remove_inode(&mut self, index: u64, freed: &mut Vec<Run>) {
        let mut inode = self
            .inodes
            .remove(&index)
            .expect("an inode is removed once");
        self.residency.went(&inode);
        self.trim_clock();
        if let Some(entries) = inode.entries() {
            assert!(entries.is_empty(), "a directory is removed empty");
            assert!(inode.parts().is_none(), "and without parts");
        }
        self.part_count -= u64::from(inode.is_part());
        self.tending.forget(index);
        if let Some(map) = inode.map() {
            self.piece_debt = self.piece_debt - map.piece_debt();
            self.promised = self.promised - map.promised();
            inode.map_mut().expect("just seen").clear(freed);
        }
        self.orphans.remove(&index);
        self.destage_soon.remove(&index);
        self.destage_later.remove(&index);
        while let Some(key) = self
            .open
            .range((index, NodeLife::default())..)
            .next()
            .copied()
        {
            if key.0 != index {
                break;
            }
            self.open.remove(&key);
        }
    }

    fn note_orphan(&mut self, index: u64, nlink: u32) {
        if nlink == 0 {
            self.orphans.insert(index);
        } else if !self.orphans.is_empty() {
            self.orphans.remove(&index);
        }
    }

    fn inode_mut(&mut self, index: u64) -> &mut Inode {
        self.inodes
            .get_mut(&index)
            .expect("mutations name inodes that are there")
    }

    /// Changes what of an inode takes memory.
    fn reweighed<T>(&mut self, index: u64, change: impl FnOnce(&mut Inode) -> T) -> T {
        let inode = self.inodes.get_mut(&index);
        let inode = inode.expect("mutations name inodes that are there");
        let before = inode.weight();
        let changed = change(inode);
        self.residency.resized(before, inode.weight());
        changed
    }

    fn change_map(&mut self, index: u64, change: impl FnOnce(&mut FileMap)) {
        let inode = self.inodes.get_mut(&index);
        let inode = inode.expect("mutations name inodes that are there");
        let weight = inode.weight();
        let map = inode.map_mut().expect("only files have maps");
        let before = map.piece_debt();
        let promised = map.promised();
        if self.dirty.is_tracked() {
            map.begin_log(self.dirty.wants_old());
            change(map);
            let changes = map.end_log();
            for (sector, old) in changes.extents {
                let key = Key::new(index, Named::Extent(sector));
                let length = map.extent_from(sector).map(length_of_extent);
                self.dirty
                    .note(key, length, |_| old.map(|extent| extent.to_bytes()));
            }
            for (offset, old) in changes.pieces {
                let key = Key::new(index, Named::Piece(offset));
                let length = map.piece_from(offset);
                let length = length.map(|v| u32::try_from(v.len()).expect("within a sector"));
                self.dirty
                    .note(key, length, |_| old.map(|bytes| bytes.to_vec()));
            }
            for (sector, old) in changes.promised {
                let key = Key::new(index, Named::Promise(sector));
                let length = map.promise_from(sector).map(|_| PROMISE_SIZE);
                self.dirty
                    .note(key, length, |_| old.map(|end| end.to_bytes()));
            }
        } else {
            change(map);
        }
        let after = map.piece_debt();
        let (soon, later) = (map.needs_destage(), map.may_destage());
        self.promised = self.promised + map.promised() - promised;
        let has_promise = map.promised().total > 0;
        inode.attr.permissions &= !HAS_PROMISE;
        inode.attr.permissions |= if has_promise { HAS_PROMISE } else { 0 };
        inode.attr.sector_count = inode.map().map_or(0, FileMap::sector_count);
        self.residency.resized(weight, inode.weight());
        self.piece_debt = self.piece_debt - before + after;
        for (set, is_in) in [
            (&mut self.destage_soon, soon),
            (&mut self.destage_later, later),
        ] {
            if is_in {
                set.insert(index);
            } else if !set.is_empty() {
                set.remove(&index);
            }
        }
    }

    /// The durable state as mutations: replayed on `Shard::new` they give an equal shard. Equal shards
    /// give equal lists.
    pub fn snapshot(&self, out: &mut dyn FnMut(Mutation)) {
        out(Mutation::NextIndex {
            index: self.next_index,
        });
        assert_eq!(self.residency.cold_count(), 0, "all of it is resident");
        let mut indices: Vec<u64> = self.inodes.keys().copied().collect();
        indices.sort_unstable();
        for index in indices {
            let inode = &self.inodes[&index];
            out(match inode.directory_of_part() {
                Some(directory) => Mutation::PartMake { index, directory },
                None => Mutation::InodePut {
                    record: inode.record(),
                },
            });
            for (name, value) in &inode.xattrs {
                let (name, value) = (name.clone(), value.clone());
                out(Mutation::XattrPut { index, name, value });
            }
            for (cookie, entry) in inode.entries().into_iter().flatten() {
                out(Mutation::EntryPut {
                    directory: index,
                    cookie: *cookie,
                    name: entry.name.clone(),
                    ino: entry.ino,
                    kind: entry.kind,
                });
            }
            for (begin, part) in inode.parts().into_iter().flatten() {
                out(Mutation::PartPut {
                    directory: index,
                    begin: *begin,
                    part: *part,
                });
            }
            if let Some(map) = inode.map() {
                snapshot_map(index, map, out);
            }
        }
        self.snapshot_rest(out);
    }

    /// The part of `snapshot` that no tree has: opens, answers, transactions; bounded by nodes and slots.
    fn snapshot_rest(&self, out: &mut dyn FnMut(Mutation)) {
        for (index, life) in &self.open {
            out(Mutation::OpenPut {
                index: *index,
                life: *life,
                is_open: true,
            });
        }
        for ((life, slot), (request, reply)) in &self.answers {
            out(Mutation::AnswerPut {
                life: *life,
                slot: *slot,
                request: *request,
                reply: reply.clone(),
            });
        }
        for (id, prepared) in &self.prepared {
            out(Mutation::Prepare {
                id: *id,
                now: prepared.now,
                steps: prepared.steps.clone(),
            });
        }
        for id in &self.done {
            out(Mutation::Resolve {
                id: *id,
                is_commit: true,
            });
        }
        for (id, participants) in &self.outcomes {
            out(Mutation::OutcomePut {
                id: *id,
                participants: participants.clone(),
            });
        }
    }

    /// As `snapshot`, beside a tree whose root has these bytes: first the root and what it lacks, in order, then the rest.
    pub fn snapshot_beside(&self, root: SmallBytes, out: &mut dyn FnMut(Mutation)) {
        out(Mutation::TreeRoot { root });
        self.unsaved(&mut |(key, value)| out(Mutation::TreeRecord { key, value }));
        out(Mutation::NextIndex {
            index: self.next_index,
        });
        self.snapshot_rest(out);
    }

    /// Bytes that a snapshot takes, at the most, roughly: what the tree lacks and what no tree has.
    pub fn snapshot_size(&self) -> u64 {
        let rest = self.open.len() * 40
            + self.answers.len() * ANSWER_SIZE
            + (self.prepared.len() + self.done.len() + self.outcomes.len()) * TRANSACTION_SIZE;
        self.unsaved_size() + rest as u64 + 256
    }

    /// Asserts every invariant that one shard can see. O(n).
    pub fn check(&self) {
        let mut piece_debt = PieceDebt::default();
        for (index, inode) in &self.inodes {
            assert_eq!(inode.attr.ino, InodeId::new(self.id, *index));
            assert!(*index < self.next_index);
            assert_eq!(inode.attr.nlink == 0, self.orphans.contains(index));
            let is_listed = inode.xattrs.keys().any(|name| crate::acl::is_acl(name));
            assert_eq!(inode.attr.has_acl(), is_listed);
            if inode.attr.nlink == 0 {
                let is_kept = self.is_in_transaction(inode.attr.ino);
                let is_open = self.is_open(inode.attr.ino);
                assert!(is_open || is_kept, "an orphan is open somewhere");
            }
            for (cookie, entry) in inode.entries().into_iter().flatten() {
                let first = self.key.first_cookie(entry.name.bytes());
                assert!((first..first + TIE_COUNT_MAX).contains(cookie));
                if entry.ino.shard() == self.id && !self.is_cold(entry.ino) {
                    let target = self.peek_attr(entry.ino);
                    let target = target.expect("an entry leads to an inode");
                    assert_eq!(target.kind, entry.kind);
                }
            }
            if inode.is_part() {
                let is_empty = inode.entries().is_none_or(BTreeMap::is_empty);
                assert!(!is_empty, "a part goes with its last name");
            }
            if let Some(parts) = inode.parts() {
                let first = parts.keys().next().expect("a table is not empty");
                let last = inode.entries().and_then(|e| e.keys().next_back());
                assert!(last.is_none_or(|last| last < first));
                assert!(parts.keys().all(|b| b.is_multiple_of(TIE_COUNT_MAX)));
            }
            if let Some(map) = inode.map() {
                map.check();
                assert_eq!(inode.attr.sector_count, map.sector_count());
                assert_eq!(inode.attr.has_promise(), map.promised().total > 0);
                assert_eq!(self.destage_soon.contains(index), map.needs_destage());
                assert_eq!(self.destage_later.contains(index), map.may_destage());
                piece_debt = piece_debt + map.piece_debt();
            }
        }
        assert_eq!(piece_debt, self.piece_debt);
        for set in [&self.orphans, &self.destage_soon, &self.destage_later] {
            assert!(set.iter().all(|i| self.inodes.contains_key(i)));
        }
        let is_there = |index: u64| self.exists(InodeId::new(self.id, index));
        assert!(self.open.iter().all(|(index, _)| is_there(*index)));
        self.check_residency();
        for id in self.prepared.keys().chain(self.active.keys()) {
            assert!(self.locks.holds(*id), "a transaction under way holds locks");
        }
        for id in self.held_parts.keys() {
            assert!(self.locks.holds(*id), "who holds parts holds their names");
        }
        self.locks.check();
    }
}

/// New attributes, but for what follows from the map: the sector count, and whether anything is promised.
fn put_attr(old: &mut Attr, attr: &Attr) {
    assert_eq!((old.ino, old.kind), (attr.ino, attr.kind));
    let promise = old.permissions & HAS_PROMISE;
    *old = Attr {
        permissions: attr.permissions & !HAS_PROMISE | promise,
        sector_count: old.sector_count,
        ..*attr
    };
}

/// The runs that an inode's map names.
fn runs_of(inode: &Inode) -> Vec<Run> {
    let extents = inode.map().into_iter().flat_map(|map| map.extents());
    let extents: Vec<Extent> = extents.cloned().collect();
    crate::map::runs_of(&extents)
}

fn entries_of(inode: &mut Inode) -> &mut Entries {
    match &mut inode.body {
        Body::Directory { entries, .. } | Body::Part { entries, .. } => entries,
        Body::File(_) | Body::Symlink(_) | Body::Special => panic!("only directories have entries"),
    }
}

fn snapshot_map(index: u64, map: &FileMap, out: &mut dyn FnMut(Mutation)) {
    let version = map.version();
    for (begin, end) in map.promised_in(0, u64::MAX) {
        out(Mutation::MapPromise { index, begin, end });
    }
    let mut load = |extents: Vec<Extent>, pieces: Vec<Piece>| {
        out(Mutation::MapLoad {
            index,
            version,
            extents,
            pieces,
        });
    };
    let extents: Vec<Extent> = map.extents().cloned().collect();
    let pieces: Vec<Piece> = map.pieces().collect();
    if extents.is_empty() && pieces.is_empty() {
        load(Vec::new(), Vec::new());
    }
    for part in extents.chunks(SNAPSHOT_EXTENT_COUNT) {
        load(part.to_vec(), Vec::new());
    }
    for part in pieces.chunks(SNAPSHOT_PIECE_COUNT) {
        load(Vec::new(), part.to_vec());
    }
}
