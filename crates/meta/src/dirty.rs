//! Which records of a shard the tree does not have yet, and a checkpoint that takes them as they were at one moment.
//!
//! ```text
//! change -> log --freeze--> frozen keys --encode, piece by piece--> the tree's bulk apply
//!            ^                 |  a change of a key that is still to come encodes it first: its before-image
//!            '----- thaw ------'  (the checkpoint failed)
//! ```
//!
//! Invariants
//! - Every key whose record differs from the tree's is in the log or frozen, or belongs to an inode that is there as removed.
//! - An inode that was removed is one key, whatever it had; where the tree holds nothing it is none.
//! - What `encode` gives is what the keys held when they were frozen, whatever has changed since.
//! - `size` is what all of it takes beside a root, at the most.
//! - Nothing is kept for a shard that is not tracked.
//!
//! Both sets are ordered, so that freezing moves one of them and nothing is ever sorted under the shard's lock.
//!
//! [Decision 0009](../../../docs/decisions/0009-checkpoints-and-residency.md).

use std::collections::BTreeMap;

use crate::records::{Key, Named, Record};

/// Bytes of a key's record beside a root, but for its value: the key, lengths, what says of which kind it is.
const KEY_OVERHEAD: u64 = 32;
/// Bytes of values that one call of `encode` gives, but for the last one.
const PIECE_SIZE_MAX: usize = 256 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    is_tracked: bool,
    /// What is not there any more has to be said: the tree may have it.
    has_tree: bool,
    /// What changed since the last freeze.
    log: Keys,
    frozen: Option<Frozen>,
}

/// Keys, and how long their values are at the most.
#[derive(Debug, Default)]
struct Keys {
    lengths: BTreeMap<Key, u32>,
    size: u64,
}

impl Keys {
    fn insert(&mut self, key: Key, length: u32) {
        let size = size_beside(&key);
        self.size += u64::from(length) + size;
        if let Some(old) = self.lengths.insert(key, length) {
            self.size -= u64::from(old) + size;
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(length) = self.lengths.remove(key) {
            self.size -= u64::from(length) + size_beside(key);
        }
    }

    /// Removes all keys of an inode.
    fn remove_inode(&mut self, index: u64) {
        // Most that go have no other.
        self.remove(&Key::new(index, Named::Head));
        let all = || Key::of_inode(index)..Key::of_inode(index + 1);
        while let Some((key, _)) = self.lengths.range(all()).next() {
            let key = key.clone();
            self.remove(&key);
        }
    }
}

/// Bytes of a key's record, but for its value.
fn size_beside(key: &Key) -> u64 {
    key.size() as u64 + KEY_OVERHEAD
}

#[derive(Debug)]
struct Frozen {
    keys: Keys,
    /// Those before it have been encoded; none: all.
    next: Option<Key>,
    /// What keys behind that held when they were frozen, of those that have changed since.
    images: BTreeMap<Key, Option<Vec<u8>>>,
}

impl Frozen {
    /// It has to be encoded before it changes.
    fn needs_image(&self, key: &Key) -> bool {
        self.next.as_ref().is_some_and(|next| key >= next)
            && self.keys.lengths.contains_key(key)
            && !self.images.contains_key(key)
    }
}

/// What is left of a checkpoint that is over: to be dropped when no lock is held.
#[derive(Debug)]
#[must_use = "dropping it takes time: not under a lock"]
pub struct Thawed {
    _frozen: Option<Frozen>,
}

impl Dirty {
    /// Notes changes from now on. `has_tree`: the tree holds something.
    pub(crate) fn track(&mut self, has_tree: bool) {
        self.is_tracked = true;
        self.has_tree = has_tree;
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// A checkpoint is under way, so the old values of what changes may be needed.
    pub(crate) fn wants_old(&self) -> bool {
        self.frozen.as_ref().is_some_and(|f| f.next.is_some())
    }

    /// The record of `key` changes: to a value of at most `length` bytes, or it goes; `old` says what it held until now.
    pub(crate) fn note(
        &mut self,
        key: Key,
        length: Option<u32>,
        old: impl FnOnce(&Key) -> Option<Vec<u8>>,
    ) {
        if !self.is_tracked {
            return;
        }
        if let Some(frozen) = &mut self.frozen
            && frozen.needs_image(&key)
        {
            let image = old(&key);
            frozen.images.insert(key.clone(), image);
        }
        match length {
            Some(length) => self.log.insert(key, length),
            None if self.may_be_in_tree() => self.log.insert(key, 0),
            None => self.log.remove(&key),
        }
    }

    /// An inode with these keys goes; `old` says what a key of it held until now.
    pub(crate) fn note_removed(
        &mut self,
        index: u64,
        keys: impl FnOnce() -> Vec<Key>,
        old: impl Fn(&Key) -> Option<Vec<u8>>,
    ) {
        if !self.is_tracked {
            return;
        }
        if self.wants_old()
            && let Some(frozen) = &mut self.frozen
        {
            for key in keys() {
                if frozen.needs_image(&key) {
                    let image = old(&key);
                    frozen.images.insert(key, image);
                }
            }
        }
        self.log.remove_inode(index);
        if self.may_be_in_tree() {
            self.log.insert(Key::of_inode(index), 0);
        }
    }

    /// The tree has something, or will have when the checkpoint under way is over.
    fn may_be_in_tree(&self) -> bool {
        self.has_tree || self.frozen.is_some()
    }

    /// Bytes that what the tree lacks takes in a snapshot, at the most.
    pub(crate) fn size(&self) -> u64 {
        self.log.size + self.frozen.as_ref().map_or(0, |frozen| frozen.keys.size)
    }

    /// Something of the inode is not in the tree as it is, or may not be.
    pub(crate) fn touches(&self, index: u64) -> bool {
        let all = Key::of_inode(index)..Key::of_inode(index + 1);
        let is_in = |keys: &Keys| keys.lengths.range(all.clone()).next().is_some();
        is_in(&self.log) || self.frozen.as_ref().is_some_and(|f| is_in(&f.keys))
    }

    /// Keys that have changed since the last freeze.
    pub(crate) fn logged_count(&self) -> usize {
        self.log.lengths.len()
    }

    /// Begins a checkpoint of all that has changed; how many keys that are.
    pub(crate) fn freeze(&mut self) -> usize {
        assert!(self.frozen.is_none(), "one checkpoint at a time");
        let keys = std::mem::take(&mut self.log);
        let count = keys.lengths.len();
        self.frozen = Some(Frozen {
            next: keys.lengths.keys().next().cloned(),
            keys,
            images: BTreeMap::new(),
        });
        count
    }

    /// Encodes up to `count_max` more of the frozen keys, in order; `now` says what a key holds now. True: these were the
    /// last.
    pub(crate) fn encode(
        &mut self,
        count_max: usize,
        now: impl Fn(&Key) -> Option<Vec<u8>>,
        out: &mut Vec<Record>,
    ) -> bool {
        let frozen = self.frozen.as_mut().expect("a checkpoint has begun");
        let Frozen { keys, next, images } = frozen;
        let Some(first) = next.take() else {
            return true;
        };
        let mut size = 0;
        for (count, (key, _)) in keys.lengths.range(first..).enumerate() {
            if count == count_max || size > PIECE_SIZE_MAX {
                *next = Some(key.clone());
                return false;
            }
            let value = match images.remove(key) {
                Some(image) => image,
                None => now(key),
            };
            size += value.as_ref().map_or(0, Vec::len);
            key.records(value.as_deref(), out);
        }
        true
    }

    /// The checkpoint is over. `saved`: the tree has what was frozen, and whether that is anything. If not, it counts as
    /// changed again.
    pub(crate) fn thaw(&mut self, saved: Option<bool>) -> Thawed {
        let frozen = self.frozen.take().expect("a checkpoint has begun");
        if let Some(has_tree) = saved {
            self.has_tree = has_tree;
            let _frozen = Some(frozen);
            return Thawed { _frozen };
        }
        let newer = std::mem::replace(&mut self.log, frozen.keys);
        for (key, length) in newer.lengths {
            if let Some(index) = key.removed_inode() {
                self.log.remove_inode(index);
            }
            self.log.insert(key, length);
        }
        Thawed { _frozen: None }
    }

    /// Shows the keys that the tree may not have as they are now, in order, each once.
    pub(crate) fn unsaved(&self, visit: &mut dyn FnMut(&Key)) {
        let mut frozen = self
            .frozen
            .iter()
            .flat_map(|frozen| frozen.keys.lengths.keys())
            .peekable();
        let mut log = self.log.lengths.keys().peekable();
        let mut removed = None;
        loop {
            let (key, is_new) = match (frozen.peek(), log.peek()) {
                (None, None) => return,
                (Some(_), None) => (frozen.next(), false),
                (None, Some(_)) => (log.next(), true),
                (Some(old), Some(new)) => match old.cmp(new) {
                    std::cmp::Ordering::Less => (frozen.next(), false),
                    std::cmp::Ordering::Greater => (log.next(), true),
                    std::cmp::Ordering::Equal => {
                        frozen.next();
                        (log.next(), true)
                    }
                },
            };
            let key = key.expect("just peeked at");
            // What was frozen is gone with its inode; what came after the removal is there.
            if !is_new && removed == Some(key.index()) {
                continue;
            }
            if is_new {
                removed = key.removed_inode().or(removed);
            }
            visit(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::SmallBytes;

    fn keys(dirty: &Dirty) -> Vec<Key> {
        let mut all = Vec::new();
        dirty.unsaved(&mut |key| all.push(key.clone()));
        all
    }

    fn key(index: u64, named: Named<'_>) -> Key {
        Key::new(index, named)
    }

    #[test]
    fn keys_are_in_the_order_of_their_bytes() {
        let numbers = [0, 1, 0xff, 0x100, u64::MAX - 1, u64::MAX];
        let mut all = Vec::new();
        for index in [0, 1, 0xff, 0x100, (1 << 48) - 1] {
            all.push(Key::of_inode(index));
            let plain = [Named::Head, Named::Target, Named::PartHead];
            let numbered = numbers.iter().flat_map(|n| {
                [
                    Named::Entry(*n),
                    Named::Part(*n),
                    Named::Extent(*n),
                    Named::Piece(*n),
                    Named::Promise(*n),
                ]
            });
            let names: [&[u8]; 4] = [b"a", b"ab", b"b", &[b'x'; 200]];
            let named = names.map(Named::Xattr);
            let of_inode = plain.into_iter().chain(numbered).chain(named);
            all.extend(of_inode.map(|named| key(index, named)));
        }
        for one in &all {
            assert_eq!(one.bytes().len(), one.size(), "{one:?}");
            assert_eq!(Key::from_bytes(&one.bytes()).as_ref(), Some(one));
            let named = one.named();
            let again = named.map_or_else(
                || Key::of_inode(one.index()),
                |named| key(one.index(), named),
            );
            assert_eq!(*one, again);
            for other in &all {
                assert_eq!(one.cmp(other), one.bytes().cmp(&other.bytes()));
            }
        }
    }

    #[test]
    fn what_comes_and_goes_leaves_nothing_where_the_tree_is_empty() {
        let mut dirty = Dirty::default();
        dirty.track(false);
        for index in 1..100 {
            dirty.note(key(1, Named::Entry(index)), Some(9), |_| None);
            dirty.note(key(index, Named::Head), Some(100), |_| None);
            dirty.note(key(index, Named::Xattr(b"user.x")), Some(5000), |_| None);
            dirty.note(key(1, Named::Entry(index)), None, |_| None);
            dirty.note_removed(index, Vec::new, |_| None);
        }
        assert_eq!((keys(&dirty), dirty.size()), (Vec::new(), 0));
    }

    #[test]
    fn an_inode_that_is_gone_is_one_key() {
        let mut dirty = Dirty::default();
        dirty.track(true);
        for index in [5, 6, 7] {
            dirty.note(key(index, Named::Head), Some(100), |_| None);
            dirty.note(key(index, Named::Extent(0)), Some(44), |_| None);
        }
        dirty.note_removed(6, Vec::new, |_| None);
        assert_eq!(dirty.freeze(), 5);
        dirty.note(key(7, Named::Extent(9)), Some(44), |_| None);
        let all = vec![key(7, Named::Head), key(7, Named::Extent(0))];
        let old = |key: &Key| Some(key.bytes().to_vec());
        dirty.note_removed(7, || all.clone(), old);
        let expected = [
            key(5, Named::Head),
            key(5, Named::Extent(0)),
            Key::of_inode(6),
            Key::of_inode(7),
        ];
        assert_eq!(keys(&dirty), expected);
        // The checkpoint takes what was there when it began.
        let mut records = Vec::new();
        assert!(dirty.encode(100, |_| Some(vec![1]), &mut records));
        assert_eq!(records.len(), 5);
        let gone = (Key::of_inode(6).bytes(), Some(SmallBytes::new(&[1])));
        assert_eq!(records[2], gone);
        let (at, value) = &records[3];
        assert_eq!(value.as_ref(), Some(at), "its before-image");
        // It failed: all of that has still to be saved, but for what went meanwhile.
        drop(dirty.thaw(None));
        assert_eq!(keys(&dirty), expected);
        let size = |key: &Key, length: u64| size_beside(key) + length;
        let sizes = [
            size(&expected[0], 100),
            size(&expected[1], 44),
            size(&expected[2], 0),
            size(&expected[3], 0),
        ];
        assert_eq!(dirty.size(), sizes.iter().sum());
        let count = dirty.freeze();
        drop(dirty.thaw(Some(true)));
        assert_eq!((count, keys(&dirty), dirty.size()), (4, Vec::new(), 0));
    }

    #[test]
    fn a_number_that_is_used_again_is_not_lost() {
        let mut dirty = Dirty::default();
        dirty.track(true);
        dirty.note(key(7, Named::Head), Some(100), |_| None);
        dirty.note_removed(7, Vec::new, |_| None);
        dirty.note(key(7, Named::Head), Some(100), |_| None);
        assert_eq!(keys(&dirty), [Key::of_inode(7), key(7, Named::Head)]);
    }

    #[test]
    fn a_piece_is_bounded_by_keys_and_by_bytes() {
        let mut dirty = Dirty::default();
        dirty.track(false);
        for offset in 0..1000 {
            dirty.note(key(1, Named::Entry(offset)), Some(20_000), |_| None);
        }
        dirty.freeze();
        let mut records = Vec::new();
        assert!(!dirty.encode(10, |_| Some(vec![0; 20_000]), &mut records));
        assert_eq!(records.len(), 10);
        records.clear();
        assert!(!dirty.encode(500, |_| Some(vec![0; 20_000]), &mut records));
        assert_eq!(records.len(), PIECE_SIZE_MAX / 20_000 + 1);
    }
}
