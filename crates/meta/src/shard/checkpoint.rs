//! Checkpoints of a shard: which of its records its tree does not have, and loading it from its tree.

use types::attr::HAS_PROMISE;
use types::extent::{Extent, Piece};
use types::{FileKind, InodeId, SmallBytes};

use super::Shard;
use crate::dirty::Thawed;
use crate::inode::{Body, Dirent, Inode};
use crate::mutation::Mutation;
use crate::name_hash::{HashKey, TIE_COUNT_MAX};
use crate::records::{HEAD_SIZE_MAX, Key, Named, PART_SIZE, Record, Unsaved, length_of_entry};

impl Shard {
    /// From now on notes which records the shard's tree does not have: the tree has none yet.
    pub fn track(&mut self) {
        self.dirty.track(false);
        let mut indices: Vec<u64> = self.inodes.keys().copied().collect();
        indices.sort_unstable();
        for index in indices {
            let inode = &self.inodes[&index];
            for key in inode.keys() {
                let length = key.named().and_then(|named| inode.length(named));
                self.dirty.note(key, length, |_| None);
            }
        }
    }

    /// The same for a shard that was loaded from its tree (`has_tree`: there is something in it) and these records beside it,
    /// which the tree lacks: they, and every change from now on.
    pub fn track_beside<'a>(
        &mut self,
        has_tree: bool,
        beside: impl IntoIterator<Item = &'a Unsaved>,
    ) {
        self.dirty.track(has_tree);
        for (key, value) in beside {
            let Some(key) = Key::from_bytes(key) else {
                continue;
            };
            let length = value
                .as_ref()
                .map(|v| u32::try_from(v.len()).expect("short"));
            self.dirty.note(key, length, |_| None);
        }
    }

    /// Bytes of what the tree lacks, at the most, in a snapshot beside the tree's root.
    pub fn unsaved_size(&self) -> u64 {
        self.dirty.size()
    }

    /// Keys that have changed since the last checkpoint began.
    pub fn logged_count(&self) -> usize {
        self.dirty.logged_count()
    }

    /// Begins a checkpoint: what `encode_frozen` gives is the shard as it is now. Answers how many keys have changed.
    pub fn freeze(&mut self) -> usize {
        self.dirty.freeze()
    }

    /// Up to `key_count_max` more of the keys that have changed since the last checkpoint, in order, as records with
    /// what they held when this one began; fewer where values are long. True: these were the last.
    pub fn encode_frozen(&mut self, key_count_max: usize, out: &mut Vec<Record>) -> bool {
        let inodes = &self.inodes;
        let now = |key: &Key| inodes.get(&key.index())?.value(key);
        self.dirty.encode(key_count_max, now, out)
    }

    /// The checkpoint is over. `saved`: there is a tree that has what was frozen, and whether it holds anything. Drop what
    /// is returned under no lock.
    pub fn thaw(&mut self, saved: Option<bool>) -> Thawed {
        self.dirty.thaw(saved)
    }

    /// What the tree may not have as it is now, in order, for a snapshot beside the tree's root: one whole value a key, and
    /// one key for an inode that is gone.
    pub fn unsaved(&self, out: &mut dyn FnMut(Unsaved)) {
        self.dirty.unsaved(&mut |key| {
            let value = self.inodes.get(&key.index()).and_then(|i| i.value(key));
            out((key.bytes(), value.map(SmallBytes::from)));
        });
    }

    /// Every record, in order.
    pub fn records(&self, out: &mut dyn FnMut(Record)) {
        assert_eq!(self.residency.cold_count(), 0, "all of it is resident");
        let mut indices: Vec<u64> = self.inodes.keys().copied().collect();
        indices.sort_unstable();
        let mut records = Vec::new();
        for index in indices {
            let inode = &self.inodes[&index];
            for key in inode.keys() {
                key.records(inode.value(&key).as_deref(), &mut records);
                let there = records.drain(..).filter(|(_, value)| value.is_some());
                there.for_each(&mut *out);
            }
        }
    }

    /// An inode that was loaded, with all that it has; it stays in memory if it may (`stays`) or must.
    pub(crate) fn put_loaded(&mut self, mut inode: Box<Inode>, stays: bool) {
        let ino = inode.attr.ino;
        assert_eq!(ino.shard(), self.id);
        let index = ino.index();
        self.next_index = self.next_index.max(index + 1);
        inode.derive_from_map();
        if let Some(map) = inode.map() {
            self.promised = self.promised + map.promised();
        }
        let is_debtor = inode
            .map()
            .is_some_and(|m| m.may_destage() || m.needs_destage());
        if stays || is_debtor || inode.attr.nlink == 0 || ino == InodeId::ROOT {
            self.put_whole(index, inode);
        } else {
            self.leave_in_tree(index);
        }
    }

    /// A part of a directory was loaded, or passed over.
    pub(crate) fn note_part(&mut self) {
        self.part_count += 1;
    }

    /// Before a mutation: notes the records that it changes, but for extents, pieces and promised ranges, which `change_map` notes.
    pub(super) fn note_dirty(&mut self, mutation: &Mutation) {
        let length = |bytes: &SmallBytes| u32::try_from(bytes.len()).expect("values are short");
        match mutation {
            Mutation::InodePut { record } => {
                let index = record.attr.ino.index();
                self.touch(index, Named::Head, Some(HEAD_SIZE_MAX));
                if record.attr.kind == FileKind::Symlink {
                    self.touch(index, Named::Target, Some(length(&record.target)));
                }
            }
            Mutation::InodeRemove { index } => {
                let inode = &self.inodes[index];
                self.dirty
                    .note_removed(*index, || inode.keys(), |key| inode.value(key));
            }
            Mutation::AttrPut { index, .. }
            | Mutation::DirectoryTouch { index, .. }
            | Mutation::ParentPut { index, .. }
            | Mutation::MapPut { index, .. }
            | Mutation::MapCut { index, .. }
            | Mutation::MapHole { index, .. }
            | Mutation::MapPromise { index, .. }
            | Mutation::MapLoad { index, .. } => {
                self.touch(*index, Named::Head, Some(HEAD_SIZE_MAX));
            }
            Mutation::EntryPut {
                directory,
                cookie,
                name,
                ..
            } => {
                let length = Some(length_of_entry(name));
                self.touch(*directory, Named::Entry(*cookie), length);
            }
            Mutation::EntryRemove { directory, cookie } => {
                self.touch(*directory, Named::Entry(*cookie), None);
            }
            Mutation::PartMake { index, .. } => {
                self.touch(*index, Named::PartHead, Some(PART_SIZE));
            }
            Mutation::PartPut {
                directory, begin, ..
            } => self.touch(*directory, Named::Part(*begin), Some(PART_SIZE)),
            Mutation::PartRemove { directory, begin } => {
                self.touch(*directory, Named::Part(*begin), None);
            }
            Mutation::XattrPut { index, name, value } => {
                self.touch(*index, Named::Xattr(name), Some(length(value)));
            }
            Mutation::XattrRemove { index, name } => {
                self.touch(*index, Named::Xattr(name), None);
            }
            Mutation::OpenPut { .. }
            | Mutation::LifeRemove { .. }
            | Mutation::AnswerPut { .. }
            | Mutation::NextIndex { .. }
            | Mutation::Prepare { .. }
            | Mutation::Resolve { .. }
            | Mutation::DoneForget { .. }
            | Mutation::OutcomePut { .. }
            | Mutation::OutcomeForget { .. } => {}
            Mutation::TreeRoot { .. } | Mutation::TreeRecord { .. } => {
                unreachable!("the reader of a snapshot takes them")
            }
        }
    }

    /// A record changes to a value of at most `length` bytes, or goes.
    fn touch(&mut self, index: u64, named: Named<'_>, length: Option<u32>) {
        let key = Key::new(index, named);
        let inodes = &self.inodes;
        let old = |key: &Key| inodes.get(&index)?.value(key);
        self.dirty.note(key, length, old);
    }
}

impl Inode {
    /// What of the attributes follows from the map.
    pub(super) fn derive_from_map(&mut self) {
        if let Some(map) = self.map() {
            let (has_promise, sector_count) = (map.promised().total > 0, map.sector_count());
            self.attr.permissions &= !HAS_PROMISE;
            self.attr.permissions |= if has_promise { HAS_PROMISE } else { 0 };
            self.attr.sector_count = sector_count;
        }
    }

    /// By its head: whether there is room or not, it is loaded whole. What is promised is counted for all, and the others stay.
    pub(crate) fn is_loaded_first(&self) -> bool {
        self.attr.nlink == 0 || self.attr.has_promise() || self.attr.ino == InodeId::ROOT
    }

    /// Loads a symbolic link's target. False: it is none.
    pub(crate) fn load_target(&mut self, bytes: SmallBytes) -> bool {
        let is_link = matches!(self.body, Body::Symlink(_));
        if is_link {
            self.body = Body::Symlink(bytes);
        }
        is_link
    }

    /// Loads a directory's record of a part. False: it is no directory, or the range begins where none can.
    pub(crate) fn load_part(&mut self, begin: u64, part: InodeId) -> bool {
        let is_directory = matches!(self.body, Body::Directory { .. });
        if !is_directory || !begin.is_multiple_of(TIE_COUNT_MAX) {
            return false;
        }
        let parts = super::names::parts_of(self).get_or_insert_default();
        parts.insert(begin, part).is_none()
    }

    /// Loads a name. False: this is no directory, or the cookie is another's.
    pub(crate) fn load_entry(&mut self, key: HashKey, cookie: u64, entry: Dirent) -> bool {
        let first = key.first_cookie(entry.name.bytes());
        let is_its = (first..first + TIE_COUNT_MAX).contains(&cookie);
        is_its
            && self.entries().is_some()
            && super::entries_of(self).insert(cookie, entry).is_none()
    }

    /// Loads an extent. False: there is no map, or it does not fit what was loaded before.
    pub(crate) fn load_extent(&mut self, extent: Extent) -> bool {
        self.map().is_some() && self.map_mut().is_some_and(|map| map.load_extent(extent))
    }

    /// Loads a piece. False: there is no map, or it does not fit what was loaded before.
    pub(crate) fn load_piece(&mut self, piece: Piece) -> bool {
        self.map().is_some() && self.map_mut().is_some_and(|map| map.load_piece(piece))
    }

    /// Loads a promised range, behind the extents. False: there is no map, or it does not fit what was loaded before.
    pub(crate) fn load_promise(&mut self, begin: u64, end: u64) -> bool {
        let has_map = self.map().is_some();
        has_map
            && self
                .map_mut()
                .is_some_and(|map| map.load_promise(begin, end))
    }
}
