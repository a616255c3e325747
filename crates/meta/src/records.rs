//! A shard as records of its tree: keys that compare as bytes, values of a bounded size.
//!
//! ```text
//! key    = inode index (6, big-endian) | kind (1) | rest          all of an inode is adjacent
//! record = key, or key | slice (1) where values can be long       values of at most SLICE_SIZE bytes
//! ```
//!
//! | kind | rest | value |
//! |---|---|---|
//! | none | | the inode and all of it are gone: never in a tree, only a change of one |
//! | 10 head | | attributes, parent, version of the map |
//! | 11 target | | symbolic link's target, in slices |
//! | 12 part's head | | its directory |
//! | 20 entry | cookie (8) | name, inode, kind |
//! | 21 part | first cookie (8) | inode number of a directory's part |
//! | 30 extent | first file sector (8) | extent |
//! | 31 piece | offset (8) | bytes, in slices |
//! | 32 promise | first file sector (8) | first file sector behind the promised range (8) |
//! | 40 xattr | name, 0 | value, in slices |
//!
//! Invariants
//! - Equal shards have equal records; `Loader` makes of the records of a shard, in order, an equal shard, but for what is
//!   bounded by nodes and slots and lies in the journal's snapshots: opens, answers, transactions, `next_index`.
//! - A name of an extended attribute has no zero byte, so the order of records is the order of keys.
//! - Foreign bytes end in `BadRecord`, never in a panic.

use types::extent::{Checksums, Extent, Piece};
use types::{Attr, Decode, DecodeError, Encode, FileKind, InodeId, Name, SmallBytes, wire_struct};

use crate::inode::{Dirent, Inode, InodeRecord};
use crate::name_hash::HashKey;

/// Bytes of a slice of a long value: well below a quarter of a leaf page of the tree.
pub const SLICE_SIZE: usize = 2048;

/// Bytes of a key that names an inode with all it has.
pub const KEY_OF_INODE_SIZE: usize = 6;
/// Bytes of a head, at the most.
pub(crate) const HEAD_SIZE_MAX: u32 = 176;
/// Bytes of the value of a promised range.
pub(crate) const PROMISE_SIZE: u32 = 8;
/// Bytes of an entry, but for its name, at the most.
const ENTRY_SIZE: u32 = 24;
/// Bytes of the value of a part's head, and of a directory's record of a part.
pub(crate) const PART_SIZE: u32 = 8;

/// No record's kind: before all of them.
const WHOLE: u8 = 0;
const HEAD: u8 = 0x10;
const TARGET: u8 = 0x11;
const PART_HEAD: u8 = 0x12;
const ENTRY: u8 = 0x20;
const PART: u8 = 0x21;
const EXTENT: u8 = 0x30;
const PIECE: u8 = 0x31;
const PROMISE: u8 = 0x32;
const XATTR: u8 = 0x40;

/// Key of something that changes as a whole: without the number of a slice. Two numbers, so that it is compared as such: every
/// change of a shard looks for one in its dirty log. Keys are in the order of their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Inode index, and in the lowest byte the kind; `WHOLE`: the inode with all it has.
    place: u64,
    /// The rest of a key that ends in a number.
    number: u64,
    /// The rest of an extended attribute's. Boxed: hardly any key has one.
    name: Option<Box<SmallBytes>>,
}

const _: () = assert!(size_of::<Key>() == 24);

/// One record: its key, and its value, or that it is not there. A key of an index alone (`KEY_OF_INODE_SIZE` bytes): all
/// records of that inode are gone.
pub type Record = (SmallBytes, Option<SmallBytes>);

/// What a key names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named<'a> {
    Head,
    Target,
    PartHead,
    Entry(u64),
    Part(u64),
    Extent(u64),
    Piece(u64),
    Promise(u64),
    Xattr(&'a [u8]),
}

impl Key {
    pub(crate) fn new(index: u64, named: Named<'_>) -> Self {
        let (kind, number) = match named {
            Named::Head => (HEAD, 0),
            Named::Target => (TARGET, 0),
            Named::PartHead => (PART_HEAD, 0),
            Named::Entry(cookie) => (ENTRY, cookie),
            Named::Part(begin) => (PART, begin),
            Named::Extent(sector) => (EXTENT, sector),
            Named::Piece(offset) => (PIECE, offset),
            Named::Promise(sector) => (PROMISE, sector),
            Named::Xattr(_) => (XATTR, 0),
        };
        let name = match named {
            Named::Xattr(name) => Some(Box::new(SmallBytes::new(name))),
            _ => None,
        };
        Self {
            place: index << 8 | u64::from(kind),
            number,
            name,
        }
    }

    /// An inode with all it has.
    pub(crate) fn of_inode(index: u64) -> Self {
        Self {
            place: index << 8 | u64::from(WHOLE),
            number: 0,
            name: None,
        }
    }

    /// It names an inode with all it has: which.
    pub(crate) fn removed_inode(&self) -> Option<u64> {
        (self.kind() == WHOLE).then(|| self.index())
    }

    fn kind(&self) -> u8 {
        self.place.to_le_bytes()[0]
    }

    /// As bytes.
    pub(crate) fn bytes(&self) -> SmallBytes {
        let index = self.index().to_be_bytes();
        let mut bytes = [0; 15];
        bytes[..6].copy_from_slice(&index[2..]);
        bytes[6] = self.kind();
        bytes[7..].copy_from_slice(&self.number.to_be_bytes());
        match &self.name {
            Some(name) => [&bytes[..7], name, &[0]].concat().into(),
            None => SmallBytes::new(&bytes[..self.size()]),
        }
    }

    /// How many bytes `bytes` gives.
    pub(crate) fn size(&self) -> usize {
        match self.kind() {
            WHOLE => KEY_OF_INODE_SIZE,
            HEAD | TARGET | PART_HEAD => KEY_OF_INODE_SIZE + 1,
            _ => KEY_OF_INODE_SIZE + 1 + self.name.as_ref().map_or(8, |name| name.len() + 1),
        }
    }

    /// What of the inode it names; `None`: all of it.
    pub(crate) fn named(&self) -> Option<Named<'_>> {
        Some(match self.kind() {
            HEAD => Named::Head,
            TARGET => Named::Target,
            PART_HEAD => Named::PartHead,
            ENTRY => Named::Entry(self.number),
            PART => Named::Part(self.number),
            EXTENT => Named::Extent(self.number),
            PIECE => Named::Piece(self.number),
            PROMISE => Named::Promise(self.number),
            XATTR => Named::Xattr(self.name.as_ref().expect("it was made with one")),
            _ => return None,
        })
    }

    /// A key that was read. `None`: it is none of this version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if let Ok(index) = <[u8; KEY_OF_INODE_SIZE]>::try_from(bytes) {
            return Some(Self::of_inode(index_of(&index)));
        }
        Self::parse(bytes).map(|(index, named)| Self::new(index, named))
    }

    /// Inode index, and what of the inode.
    fn parse(bytes: &[u8]) -> Option<(u64, Named<'_>)> {
        let (index, rest) = bytes.split_at_checked(KEY_OF_INODE_SIZE)?;
        let index = index_of(index);
        let (kind, rest) = rest.split_first()?;
        let number = || rest.try_into().ok().map(u64::from_be_bytes);
        let named = match *kind {
            HEAD if rest.is_empty() => Named::Head,
            TARGET if rest.is_empty() => Named::Target,
            PART_HEAD if rest.is_empty() => Named::PartHead,
            ENTRY => Named::Entry(number()?),
            PART => Named::Part(number()?),
            EXTENT => Named::Extent(number()?),
            PIECE => Named::Piece(number()?),
            PROMISE => Named::Promise(number()?),
            XATTR => match rest.split_last()? {
                (0, name) if !name.is_empty() && !name.contains(&0) => Named::Xattr(name),
                _ => return None,
            },
            _ => return None,
        };
        Some((index, named))
    }

    /// Index of the inode that it belongs to.
    pub(crate) fn index(&self) -> u64 {
        self.place >> 8
    }

    /// Most slices that a value of this kind has; `None`: it is one record without the number of a slice.
    fn slice_count_max(kind: u8) -> Option<usize> {
        match kind {
            TARGET => Some(types::limits::SYMLINK_SIZE_MAX.div_ceil(SLICE_SIZE)),
            PIECE => Some(
                usize::try_from(types::SECTOR_SIZE)
                    .expect("small")
                    .div_ceil(SLICE_SIZE),
            ),
            XATTR => Some(types::limits::SMALL_BYTES_MAX.div_ceil(SLICE_SIZE)),
            _ => None,
        }
    }

    /// The records of this key with this value, in order. What is not there is named too: it may have been.
    pub fn records(&self, value: Option<&[u8]>, out: &mut Vec<Record>) {
        let key = self.bytes();
        let Some(count_max) = Self::slice_count_max(self.kind()) else {
            return out.push((key, value.map(SmallBytes::new)));
        };
        for slice in 0..count_max {
            let begin = slice * SLICE_SIZE;
            let bytes = value.filter(|value| begin < value.len() || slice == 0);
            let bytes = bytes.map(|v| SmallBytes::new(&v[begin..v.len().min(begin + SLICE_SIZE)]));
            let slice = u8::try_from(slice).expect("few slices");
            out.push(([&key[..], &[slice]].concat().into(), bytes));
        }
    }
}

/// The index that a key begins with.
fn index_of(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Value of a head.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Head {
    attr: Attr,
    parent: InodeId,
    map_version: Option<u64>,
}
wire_struct!(Head {
    attr,
    parent,
    map_version
});

/// Value of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct EntryValue {
    name: Name,
    ino: InodeId,
    kind: FileKind,
}
wire_struct!(EntryValue { name, ino, kind });

impl Inode {
    /// What a key of this inode holds now.
    pub(crate) fn value(&self, key: &Key) -> Option<Vec<u8>> {
        match key.named()? {
            Named::Head => {
                let record = self.record();
                let head = Head {
                    attr: record.attr,
                    parent: record.parent,
                    map_version: self.map().map(crate::map::FileMap::version),
                };
                Some(head.to_bytes())
            }
            Named::Target => Some(self.record().target.to_vec()),
            Named::PartHead => self.directory_of_part().map(|ino| ino.to_bytes()),
            Named::Part(begin) => self.parts()?.get(&begin).map(Encode::to_bytes),
            Named::Entry(cookie) => {
                let entry = self.entries()?.get(&cookie)?;
                Some(value_of_entry(entry))
            }
            Named::Extent(sector) => self.map()?.extent_from(sector).map(Encode::to_bytes),
            Named::Piece(offset) => self.map()?.piece_from(offset).map(|bytes| bytes.to_vec()),
            Named::Promise(sector) => self.map()?.promise_from(sector).map(|end| end.to_bytes()),
            Named::Xattr(name) => self.xattrs.get(&SmallBytes::new(name)).map(|v| v.to_vec()),
        }
    }

    /// Bytes of what a key of this inode holds, at the most. `None`: it holds nothing.
    pub(crate) fn length(&self, named: Named<'_>) -> Option<u32> {
        let short = |bytes: &SmallBytes| u32::try_from(bytes.len()).expect("values are short");
        match named {
            Named::Head => Some(HEAD_SIZE_MAX),
            Named::Target => Some(u32::try_from(self.record().target.len()).expect("short")),
            Named::PartHead => self.directory_of_part().map(|_| PART_SIZE),
            Named::Part(begin) => self.parts()?.get(&begin).map(|_| PART_SIZE),
            Named::Entry(cookie) => {
                let entry = self.entries()?.get(&cookie)?;
                Some(length_of_entry(&entry.name))
            }
            Named::Extent(sector) => self.map()?.extent_from(sector).map(length_of_extent),
            Named::Piece(offset) => self.map()?.piece_from(offset).map(short),
            Named::Promise(sector) => self.map()?.promise_from(sector).map(|_| PROMISE_SIZE),
            Named::Xattr(name) => self.xattrs.get(&SmallBytes::new(name)).map(short),
        }
    }

    /// Keys of all that it holds, in order.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let key = |named| Key::new(self.attr.ino.index(), named);
        let is_part = self.directory_of_part().is_some();
        let head = if is_part {
            Named::PartHead
        } else {
            Named::Head
        };
        let mut keys = vec![key(head)];
        if self.attr.kind == FileKind::Symlink {
            keys.push(key(Named::Target));
        }
        let cookies = self.entries().into_iter().flatten();
        keys.extend(cookies.map(|(cookie, _)| key(Named::Entry(*cookie))));
        let parts = self.parts().into_iter().flatten();
        keys.extend(parts.map(|(begin, _)| key(Named::Part(*begin))));
        if let Some(map) = self.map() {
            keys.extend(map.extents().map(|e| key(Named::Extent(e.file_sector))));
            keys.extend(map.piece_offsets().map(|offset| key(Named::Piece(offset))));
            let promises = map.promise_begins();
            keys.extend(promises.map(|sector| key(Named::Promise(sector))));
        }
        keys.extend(self.xattrs.keys().map(|name| key(Named::Xattr(name))));
        keys
    }
}

/// Bytes of the value of an entry with this name.
pub(crate) fn length_of_entry(name: &Name) -> u32 {
    ENTRY_SIZE + u32::try_from(name.bytes().len()).expect("a name is short")
}

/// Bytes of the value of an extent, at the most.
pub(crate) fn length_of_extent(extent: &Extent) -> u32 {
    let checksums = match &extent.checksums {
        Checksums::Inline { crcs } => crcs.len() * 4,
        Checksums::Sectors { .. } => 12,
    };
    u32::try_from(34 + extent.locations.len() * 10 + checksums).expect("a short record")
}

fn value_of_entry(entry: &Dirent) -> Vec<u8> {
    let value = EntryValue {
        name: entry.name.clone(),
        ino: entry.ino,
        kind: entry.kind,
    };
    value.to_bytes()
}

/// A record that no shard has.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadRecord {
    /// The key is none of this version.
    #[error("record with key {key:?}: no key of this version")]
    Key {
        /// Key.
        key: SmallBytes,
    },
    /// The value is none of this version.
    #[error("record with key {key:?}: {error}")]
    Value {
        /// Key.
        key: SmallBytes,
        /// What does not fit.
        error: DecodeError,
    },
    /// It does not fit what lies before it: its inode is not there or of another kind, a slice is missing, its own key is
    /// another, or the order is wrong.
    #[error("record with key {key:?} does not fit what lies before it")]
    Misfit {
        /// Key.
        key: SmallBytes,
    },
}

impl BadRecord {
    /// Inode index and kind of record in words, as far as the key shows them.
    pub fn describe(&self) -> String {
        let (Self::Key { key } | Self::Value { key, .. } | Self::Misfit { key }) = self;
        let what = match self {
            Self::Key { .. } => "no key of this version".to_owned(),
            Self::Value { error, .. } => error.to_string(),
            Self::Misfit { .. } => "it does not fit what lies before it".to_owned(),
        };
        let index = index_of(&key[..key.len().min(KEY_OF_INODE_SIZE)]);
        let kind = match key.get(KEY_OF_INODE_SIZE) {
            Some(&HEAD) => "head",
            Some(&TARGET) => "target",
            Some(&PART_HEAD) => "head of a part",
            Some(&ENTRY) => "entry",
            Some(&PART) => "part",
            Some(&EXTENT) => "extent",
            Some(&PIECE) => "piece",
            Some(&XATTR) => "extended attribute",
            Some(_) | None => "unknown record",
        };
        format!("index {index:x}, {kind}: {what}")
    }
}

/// What the tree of a shard lacks, of one key: its whole value, or that it is not there.
pub type Unsaved = (SmallBytes, Option<SmallBytes>);

/// The inode whose records come now.
#[derive(Debug)]
struct Current {
    index: u64,
    /// The tree lacks something of it.
    is_beside: bool,
    gathered: Gathered,
}

/// What has come of an inode.
#[derive(Debug)]
enum Gathered {
    /// No head.
    Nothing,
    /// All so far.
    Whole(Box<Inode>),
    /// There is no room for it: what tells whether it has to be in memory all the same.
    Passed {
        piece_byte_count: u64,
        piece_count: usize,
    },
}

/// Who knows that there is less room than this passes over what comes: nearly nothing would fit.
const ROOM_MIN: u64 = 1024;

/// A value in slices, its key without their numbers, and how many have come. The buffers are used again.
#[derive(Debug, Default)]
struct Long {
    key: Vec<u8>,
    value: Vec<u8>,
    count: usize,
}

/// Makes a shard of the records of its tree, which come in order, and of what that tree lacks.
///
/// A start has all records of a node's trees pass through here. An inode is gathered whole and put into the shard once; where there is no
/// room for one, none of its records but the head is decoded, and what is wrong with them is found by who reads it.
#[derive(Debug)]
pub struct Loader<'a> {
    shard: &'a mut crate::Shard,
    beside: std::iter::Peekable<std::vec::IntoIter<(Key, Option<SmallBytes>)>>,
    /// The inode that is gone, whose records are passed over.
    removed: Option<u64>,
    long: Long,
    /// Key of the last record.
    last: Vec<u8>,
    /// What did not fit and was passed over; `None`: the first such record ends the loading.
    passed_over: Option<Vec<BadRecord>>,
    current: Option<Current>,
    /// Bytes of inodes that may stay in memory.
    room: u64,
    /// Inodes that were passed over and have to be in memory.
    missing: Vec<InodeId>,
}

impl<'a> Loader<'a> {
    /// Into a shard that has no inode yet and is not tracked. `beside`: what the tree lacks, in order.
    ///
    /// # Errors
    /// `beside` holds what no shard lacks, or not in order. The shard is not to be used.
    pub fn new(shard: &'a mut crate::Shard, beside: Vec<Unsaved>) -> Result<Self, BadRecord> {
        assert_eq!(
            shard.inode_count(),
            0,
            "records are loaded into an empty shard"
        );
        let mut all: Vec<(Key, Option<SmallBytes>)> = Vec::with_capacity(beside.len());
        for (bytes, value) in beside {
            let Some(key) = Key::from_bytes(&bytes) else {
                return Err(BadRecord::Key { key: bytes });
            };
            let is_next = all.last().is_none_or(|(last, _)| *last < key);
            let is_removal = key.removed_inode().is_some();
            if !is_next || (is_removal && value.is_some()) {
                return Err(BadRecord::Misfit { key: bytes });
            }
            all.push((key, value));
        }
        Ok(Self {
            shard,
            beside: all.into_iter().peekable(),
            removed: None,
            long: Long::default(),
            last: Vec::new(),
            passed_over: None,
            current: None,
            room: u64::MAX,
            missing: Vec::new(),
        })
    }

    /// Inodes that the tree has as they are stay in memory as far as all take no more bytes than this, roughly; of the others the shard
    /// knows that the tree has them (they are *cold*), and what counts for all of them. Their records are not looked at, but for what tells
    /// that one has to be in memory: `finish` names those.
    #[must_use]
    pub fn with_room(mut self, bytes: u64) -> Self {
        self.room = bytes;
        self
    }

    /// From now on what does not fit is passed over and noted, for who wants to see all that is wrong.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.passed_over = Some(Vec::new());
        self
    }

    /// What was passed over since the last call.
    pub fn take_passed_over(&mut self) -> Vec<BadRecord> {
        let passed_over = self.passed_over.as_mut();
        passed_over.map(std::mem::take).unwrap_or_default()
    }

    fn note(&mut self, result: Result<(), BadRecord>) -> Result<(), BadRecord> {
        match (&mut self.passed_over, result) {
            (Some(passed_over), Err(error)) => {
                passed_over.push(error);
                Ok(())
            }
            (_, result) => result,
        }
    }

    /// The next record of the tree.
    ///
    /// # Errors
    /// It is no record of a shard, or not the next of this one. The shard is not to be used.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let result = self.push_next(key, value);
        self.note(result)
    }

    fn push_next(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let misfit = || BadRecord::Misfit {
            key: SmallBytes::new(key),
        };
        if *self.last >= *key && !self.last.is_empty() {
            return Err(misfit());
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        let kind = key.get(KEY_OF_INODE_SIZE).copied();
        let bad_key = || BadRecord::Key {
            key: SmallBytes::new(key),
        };
        let kind = kind.ok_or_else(bad_key)?;
        let Some(count_max) = Key::slice_count_max(kind) else {
            self.end_long()?;
            return self.whole(key, value);
        };
        let (slice, whole) = key.split_last().ok_or_else(bad_key)?;
        let slice = usize::from(*slice);
        if value.len() > SLICE_SIZE || slice >= count_max {
            return Err(misfit());
        }
        if slice == 0 {
            self.end_long()?;
            self.long.key.extend_from_slice(whole);
            self.long.value.extend_from_slice(value);
            self.long.count = 1;
            return Ok(());
        }
        let long = &mut self.long;
        if long.count != slice || *long.key != *whole {
            return Err(misfit());
        }
        long.value.extend_from_slice(value);
        long.count += 1;
        Ok(())
    }

    /// All have come. Inodes that have to be in memory and were passed over, for there was no room: they are to be taken in
    /// (`Shard::take_in`) before anything else.
    ///
    /// # Errors
    /// As `push`.
    pub fn finish(mut self) -> Result<Vec<InodeId>, BadRecord> {
        self.end()?;
        Ok(self.missing)
    }

    /// `push` of a loader that is lenient: a record that does not fit is passed over, and said by `finish_lenient`.
    pub fn push_lenient(&mut self, key: &[u8], value: &[u8]) {
        let result = self.push_next(key, value);
        self.pass_over(result);
    }

    /// All have come, with room for all: what was passed over since the last call.
    pub fn finish_lenient(mut self) -> Vec<BadRecord> {
        let result = self.end();
        assert!(self.missing.is_empty(), "there is room for all");
        self.pass_over(result);
        self.take_passed_over()
    }

    fn pass_over(&mut self, result: Result<(), BadRecord>) {
        if let Err(error) = result {
            let passed_over = self.passed_over.get_or_insert_default();
            passed_over.push(error);
        }
    }

    fn end(&mut self) -> Result<(), BadRecord> {
        let mut result = self.end_long();
        while let (Ok(()), Some((key, value))) = (&result, self.beside.next()) {
            result = self.put_beside(&key, value);
        }
        self.settle();
        result
    }

    fn end_long(&mut self) -> Result<(), BadRecord> {
        if self.long.count == 0 {
            return Ok(());
        }
        let mut long = std::mem::take(&mut self.long);
        let result = self.whole(&long.key, &long.value);
        long.key.clear();
        long.value.clear();
        long.count = 0;
        self.long = long;
        self.note(result)
    }

    /// A value of the tree: what lies beside comes in between, or instead of it.
    fn whole(&mut self, key: &[u8], value: &[u8]) -> Result<(), BadRecord> {
        let Some((index, named)) = Key::parse(key) else {
            let key = SmallBytes::new(key);
            return Err(BadRecord::Key { key });
        };
        let mut is_replaced = false;
        let at = Key::new(index, named);
        while let Some((next, newer)) = self.beside.next_if(|(next, _)| *next <= at) {
            is_replaced |= next == at;
            self.put_beside(&next, newer)?;
        }
        if is_replaced || self.removed == Some(index) {
            return Ok(());
        }
        self.enter(index);
        self.put(key, named, value)
    }

    fn put_beside(&mut self, key: &Key, value: Option<SmallBytes>) -> Result<(), BadRecord> {
        self.enter(key.index());
        let current = self.current.as_mut().expect("just entered");
        current.is_beside = true;
        if key.removed_inode().is_some() {
            self.removed = key.removed_inode();
        }
        let result = match (value, key.named()) {
            (Some(value), Some(named)) => self.put(&key.bytes(), named, &value),
            (Some(_), None) | (None, _) => Ok(()),
        };
        self.note(result)
    }

    /// Records of this inode come now: the one before is whole.
    fn enter(&mut self, index: u64) {
        if (self.current.as_ref()).is_some_and(|current| current.index == index) {
            return;
        }
        self.settle();
        // All of `beside` that lies before it has been put.
        let next = self.beside.peek().map(|(key, _)| key.index());
        self.current = Some(Current {
            index,
            is_beside: next == Some(index),
            gathered: Gathered::Nothing,
        });
    }

    /// The inode whose records have come goes into the shard, or stays in the tree.
    fn settle(&mut self) {
        let Some(current) = self.current.take() else {
            return;
        };
        match current.gathered {
            Gathered::Nothing => {}
            Gathered::Whole(inode) => {
                let stays = current.is_beside || self.has_room(inode.weight());
                self.shard.put_loaded(inode, stays);
            }
            Gathered::Passed {
                piece_byte_count,
                piece_count,
            } => {
                self.shard.leave_in_tree(current.index);
                if crate::map::are_to_be_destaged(piece_byte_count, piece_count) {
                    let ino = InodeId::new(self.shard.id(), current.index);
                    self.missing.push(ino);
                }
            }
        }
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.shard.resident_size().saturating_add(bytes) <= self.room
    }

    fn put(&mut self, key: &[u8], named: Named<'_>, value: &[u8]) -> Result<(), BadRecord> {
        let bad_value = |error| BadRecord::Value {
            key: SmallBytes::new(key),
            error,
        };
        let has_room = self.has_room(ROOM_MIN);
        let resident = self.shard.resident_size();
        let current = self.current.as_mut().expect("it was entered");
        let (id, hash_key) = (self.shard.id(), self.shard.hash_key());
        let ino = InodeId::new(id, current.index);
        let is_put = match &mut current.gathered {
            Gathered::Passed {
                piece_byte_count,
                piece_count,
            } => {
                match named {
                    Named::Piece(_) => {
                        *piece_byte_count += value.len() as u64;
                        *piece_count += 1;
                        true
                    }
                    // A file with promises says so in its head, and is not passed over; nobody has two heads.
                    Named::Head | Named::PartHead | Named::Promise(_) => false,
                    Named::Target
                    | Named::Entry(_)
                    | Named::Part(_)
                    | Named::Extent(_)
                    | Named::Xattr(_) => true,
                }
            }
            Gathered::Nothing => {
                let inode = match named {
                    Named::Head => {
                        let head =
                            Head::from_bytes(value, "head of an inode").map_err(bad_value)?;
                        loaded(ino, head)
                    }
                    Named::PartHead => {
                        let directory =
                            InodeId::from_bytes(value, "head of a part").map_err(bad_value)?;
                        self.shard.note_part();
                        Some(Inode::new_part(ino, directory))
                    }
                    Named::Target
                    | Named::Entry(_)
                    | Named::Part(_)
                    | Named::Extent(_)
                    | Named::Piece(_)
                    | Named::Promise(_)
                    | Named::Xattr(_) => None,
                };
                let is_put = inode.is_some();
                if let Some(inode) = inode {
                    let is_passed = !has_room && !current.is_beside && !inode.is_loaded_first();
                    current.gathered = match is_passed {
                        true => Gathered::PASSED,
                        false => Gathered::Whole(Box::new(inode)),
                    };
                }
                is_put
            }
            Gathered::Whole(inode) => {
                let is_put = put_into(inode, hash_key, named, value).map_err(bad_value)?;
                // A directory of a million names is not made whole only to be left in the tree.
                let is_full = matches!(named, Named::Entry(_))
                    && resident.saturating_add(inode.weight()) > self.room;
                if is_full && !current.is_beside && !inode.is_loaded_first() {
                    current.gathered = Gathered::PASSED;
                }
                is_put
            }
        };
        let misfit = || BadRecord::Misfit {
            key: SmallBytes::new(key),
        };
        is_put.then_some(()).ok_or_else(misfit)
    }
}

impl Gathered {
    const PASSED: Self = Self::Passed {
        piece_byte_count: 0,
        piece_count: 0,
    };
}

/// An inode of its head. `None`: it is another's, or none.
fn loaded(ino: InodeId, head: Head) -> Option<Inode> {
    let has_map = head.map_version.is_some();
    if head.attr.ino != ino || (has_map && head.attr.kind != FileKind::File) {
        return None;
    }
    let mut inode = Inode::new(InodeRecord {
        attr: head.attr,
        parent: head.parent,
        target: SmallBytes::default(),
    });
    if let Some(version) = head.map_version {
        inode.map_mut()?.load(version, &[], &[]);
    }
    Some(inode)
}

/// Puts a record into the inode that it belongs to. False: it does not fit what is there.
fn put_into(
    inode: &mut Inode,
    key: HashKey,
    named: Named<'_>,
    value: &[u8],
) -> Result<bool, DecodeError> {
    Ok(match named {
        Named::Head | Named::PartHead => false,
        Named::Target => inode.load_target(SmallBytes::new(value)),
        Named::Part(begin) => inode.load_part(begin, InodeId::from_bytes(value, "part")?),
        Named::Entry(cookie) => {
            let entry = EntryValue::from_bytes(value, "entry")?;
            let entry = Dirent {
                name: entry.name,
                ino: entry.ino,
                kind: entry.kind,
            };
            inode.load_entry(key, cookie, entry)
        }
        Named::Extent(sector) => {
            let extent = Extent::from_bytes(value, "extent")?;
            extent.file_sector == sector && inode.load_extent(extent)
        }
        Named::Piece(offset) => {
            let bytes = SmallBytes::new(value);
            inode.load_piece(Piece { offset, bytes })
        }
        Named::Promise(sector) => inode.load_promise(sector, u64::from_bytes(value, "promise")?),
        Named::Xattr(name) => {
            let (name, value) = (SmallBytes::new(name), SmallBytes::new(value));
            inode.xattrs.insert(name, value).is_none()
        }
    })
}
