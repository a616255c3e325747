//! The bytes of a tree page, of a reference to one and of a root. See docs/disk-format.md.
//!
//! Invariants
//! - A `Page` has been verified against its reference: every slot lies in it, its keys ascend, the references
//!   of an inner page decode and are one level down. So its methods do not fail.
//! - Everything is little-endian at fixed offsets, by the tables below, which the document shows.
//! - Entries lie in key order without gaps, so a slot needs no length of the value.
//!
//! A key is the page's prefix and the rest that its entry holds. Search works on the bytes; nothing is decoded.

use std::cmp::Ordering;
use std::ops::Deref;

use data::checksum::crc32c;
use types::{DecodeError, Epoch, FsId, Location, Lsn, NsdId, Run, ShardId, limits};

use super::fault::PageFault;
use crate::format::{Field, SECTOR, field, put, u16_at, u32_at, u64_at, u128_at};

/// Version of the layouts in this file.
pub const TREE_VERSION: u16 = 1;
/// Bytes of the longest key.
pub const KEY_SIZE_MAX: usize = 512;
/// Sectors of the largest page: 64 KiB, so that offsets fit 16 bits.
pub const PAGE_SECTORS_MAX: u8 = 16;
/// Levels of the highest tree: far more than 2^48 inodes need.
pub const LEVEL_COUNT_MAX: u8 = 16;
/// Fewest entries of the largest size that a page has room for.
pub const ENTRY_COUNT_MIN: usize = 4;

/// Layout of a page's header.
pub const PAGE_HEADER: [Field; 13] = [
    field("magic \"GTPG\"", 0, 4),
    field("format version of the tree", 4, 2),
    field("level (0: leaf)", 6, 1),
    field("sectors of the page", 7, 1),
    field("file system id", 8, 16),
    field("shard", 24, 2),
    field(
        "length of the prefix that all keys of the page share",
        26,
        2,
    ),
    field("number of entries", 28, 4),
    field("LSN of the checkpoint that wrote it", 32, 8),
    field("shard epoch", 40, 8),
    field("number of the page", 48, 8),
    field("end of the last entry", 56, 4),
    field("reserved (0)", 60, 4),
];
/// Layout of a page reference.
pub const PAGE_REFERENCE: [Field; 11] = [
    field("sector of copy 0", 0, 8),
    field("sector of copy 1", 8, 8),
    field("sector of copy 2", 16, 8),
    field("NSD of copy 0", 24, 2),
    field("NSD of copy 1 (ffff: none)", 26, 2),
    field("NSD of copy 2 (ffff: none)", 28, 2),
    field("sectors of the page", 30, 1),
    field("level", 31, 1),
    field("CRC32C of the page", 32, 4),
    field("number of entries of the page", 36, 4),
    field("number of the page", 40, 8),
];
/// Layout of a root.
pub const ROOT: [Field; 10] = [
    field("format version of the tree", 0, 2),
    field("shard", 2, 2),
    field("levels (0: the tree is empty)", 4, 1),
    field("sectors of a page", 5, 1),
    field("reserved (0)", 6, 2),
    field("shard epoch", 8, 8),
    field("LSN up to which it holds everything", 16, 8),
    field("number of entries", 24, 8),
    field("number of pages", 32, 8),
    field("number of the next page", 40, 8),
];

/// Bytes of a page's header.
pub const HEADER_SIZE: usize = 64;
/// Bytes of a slot: where the entry begins (2), length of its part of the key (2).
pub const SLOT_SIZE: usize = 4;
/// Bytes of a page reference.
pub const REFERENCE_SIZE: usize = 48;
/// Bytes of a root: its fields, then the reference of the root page (zeros: none).
pub const ROOT_SIZE: usize = 48 + REFERENCE_SIZE;

const MAGIC: u32 = u32::from_le_bytes(*b"GTPG");
const NO_NSD: u16 = u16::MAX;

/// Which tree: what every page of it names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TreeId {
    /// File system.
    pub fs: FsId,
    /// Shard.
    pub shard: ShardId,
}

/// Where the copies of a page lie: 1 to 3 places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Copies {
    places: [Location; limits::REPLICA_COUNT_MAX],
    count: u8,
}

impl Copies {
    /// `places` in this order: 1 to `REPLICA_COUNT_MAX`.
    pub fn new(places: &[Location]) -> Self {
        assert!(!places.is_empty());
        let mut copies = [Location::default(); limits::REPLICA_COUNT_MAX];
        copies[..places.len()].copy_from_slice(places);
        let count = u8::try_from(places.len()).expect("at most three");
        Self {
            places: copies,
            count,
        }
    }

    /// With `new` in place of `old`, which is one of them.
    pub(crate) fn replace(&mut self, old: Location, new: Location) {
        let place = self.places[..usize::from(self.count)]
            .iter_mut()
            .find(|place| **place == old);
        *place.expect("a copy of the page") = new;
    }

    /// Without `old`, which is one of several.
    pub(crate) fn remove(&mut self, old: Location) {
        let left: Vec<Location> = self.iter().copied().filter(|at| *at != old).collect();
        *self = Self::new(&left);
    }
}

impl Deref for Copies {
    type Target = [Location];

    fn deref(&self) -> &[Location] {
        &self.places[..usize::from(self.count)]
    }
}

/// What a parent knows of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PageRef {
    /// Where it lies.
    pub copies: Copies,
    /// Sectors of it: the same for all pages of a tree.
    pub sectors: u8,
    /// Its level; leaves are 0.
    pub level: u8,
    /// CRC32C of all its bytes.
    pub crc: u32,
    /// Its entries.
    pub count: u32,
    /// Its number: pages of a tree are numbered in the order in which they are written. So it also tells what a
    /// snapshot of the tree shares.
    pub number: u64,
}

impl PageRef {
    /// The bytes on disk.
    pub fn encode(&self) -> [u8; REFERENCE_SIZE] {
        let f = &PAGE_REFERENCE;
        let mut bytes = [0; REFERENCE_SIZE];
        for index in 0..limits::REPLICA_COUNT_MAX {
            let at = self.copies.get(index);
            let nsd = at.map_or(NO_NSD, |at| at.nsd.0);
            let sector = at.map_or(0, |at| at.sector);
            put(&mut bytes, f[index], &sector.to_le_bytes());
            put(&mut bytes, f[3 + index], &nsd.to_le_bytes());
        }
        put(&mut bytes, f[6], &[self.sectors]);
        put(&mut bytes, f[7], &[self.level]);
        put(&mut bytes, f[8], &self.crc.to_le_bytes());
        put(&mut bytes, f[9], &self.count.to_le_bytes());
        put(&mut bytes, f[10], &self.number.to_le_bytes());
        bytes
    }

    /// Reads a reference; the error is the field that cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() != REFERENCE_SIZE {
            return Err("length of a page reference");
        }
        let f = &PAGE_REFERENCE;
        let mut places = [Location::default(); limits::REPLICA_COUNT_MAX];
        let mut count = 0;
        for index in 0..places.len() {
            let (nsd, sector) = (u16_at(bytes, f[3 + index]), u64_at(bytes, f[index]));
            if nsd == NO_NSD {
                if sector != 0 {
                    return Err("sector of no copy");
                }
                continue;
            }
            if usize::from(count) != index {
                return Err("order of the copies");
            }
            places[index] = Location {
                nsd: NsdId(nsd),
                sector,
            };
            count += 1;
        }
        let (sectors, level) = (bytes[f[6].offset], bytes[f[7].offset]);
        if count == 0 {
            return Err("number of copies");
        }
        if !is_page_sectors(sectors) {
            return Err("sectors of a page reference");
        }
        if level >= LEVEL_COUNT_MAX {
            return Err("level of a page reference");
        }
        let is_addressable = |at: &Location| at.sector.checked_add(sectors.into()).is_some();
        if !places.iter().all(is_addressable) {
            return Err("sector of a copy");
        }
        Ok(Self {
            copies: Copies { places, count },
            sectors,
            level,
            crc: u32_at(bytes, f[8]),
            count: u32_at(bytes, f[9]),
            number: u64_at(bytes, f[10]),
        })
    }

    /// Bytes of the page.
    pub fn size(&self) -> usize {
        usize::from(self.sectors) * SECTOR
    }

    /// The runs that its copies take.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let count = u32::from(self.sectors);
        self.copies.into_places().map(move |at| Run { at, count })
    }
}

impl Copies {
    fn into_places(self) -> impl Iterator<Item = Location> {
        self.places.into_iter().take(usize::from(self.count))
    }
}

/// A page has 1, 2, 4, 8 or 16 sectors. (Fewer than 4 are for tests.)
pub const fn is_page_sectors(sectors: u8) -> bool {
    sectors.is_power_of_two() && sectors <= PAGE_SECTORS_MAX
}

/// Bytes of the largest value in leaves of pages of `sectors`: `ENTRY_COUNT_MIN` entries with the longest keys and
/// such values fit one.
pub const fn value_size_max(sectors: u8) -> usize {
    (sectors as usize * SECTOR - HEADER_SIZE) / ENTRY_COUNT_MIN - SLOT_SIZE - KEY_SIZE_MAX
}

/// The root of a tree: what the journal carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Shard.
    pub shard: ShardId,
    /// Epoch of the owner that wrote it.
    pub epoch: Epoch,
    /// The tree holds everything up to here.
    pub lsn: Lsn,
    /// Entries of all leaves.
    pub entries: u64,
    /// Pages.
    pub pages: u64,
    /// Number of the next page.
    pub next_number: u64,
    /// Sectors of each page.
    pub sectors: u8,
    /// The root page; none: the tree is empty.
    pub page: Option<PageRef>,
}

impl Root {
    /// An empty tree, of pages of `sectors` (1, 2, 4, 8 or 16; 1 and 2 are for tests).
    pub fn empty(shard: ShardId, sectors: u8) -> Self {
        assert!(is_page_sectors(sectors));
        Self {
            shard,
            epoch: Epoch(0),
            lsn: Lsn(0),
            entries: 0,
            pages: 0,
            next_number: 1,
            sectors,
            page: None,
        }
    }

    /// Levels; 0 when it is empty.
    pub fn height(&self) -> u8 {
        self.page.map_or(0, |page| page.level + 1)
    }

    /// The bytes in the journal.
    pub fn encode(&self) -> [u8; ROOT_SIZE] {
        let f = &ROOT;
        let mut bytes = [0; ROOT_SIZE];
        put(&mut bytes, f[0], &TREE_VERSION.to_le_bytes());
        put(&mut bytes, f[1], &self.shard.0.to_le_bytes());
        put(&mut bytes, f[2], &[self.height()]);
        put(&mut bytes, f[3], &[self.sectors]);
        put(&mut bytes, f[5], &self.epoch.0.to_le_bytes());
        put(&mut bytes, f[6], &self.lsn.0.to_le_bytes());
        put(&mut bytes, f[7], &self.entries.to_le_bytes());
        put(&mut bytes, f[8], &self.pages.to_le_bytes());
        put(&mut bytes, f[9], &self.next_number.to_le_bytes());
        if let Some(page) = &self.page {
            bytes[ROOT_SIZE - REFERENCE_SIZE..].copy_from_slice(&page.encode());
        }
        bytes
    }

    /// Reads a root.
    ///
    /// # Errors
    /// The bytes are no root of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let what = "tree root";
        if bytes.len() < ROOT_SIZE {
            return Err(DecodeError::Short { what });
        }
        if bytes.len() > ROOT_SIZE {
            let count = bytes.len() - ROOT_SIZE;
            return Err(DecodeError::Trailing { what, count });
        }
        let f = &ROOT;
        let unknown = |value: u64| Err(DecodeError::Unknown { what, value });
        let version = u16_at(bytes, f[0]);
        if version != TREE_VERSION {
            return unknown(version.into());
        }
        let (height, sectors) = (bytes[f[2].offset], bytes[f[3].offset]);
        if !is_page_sectors(sectors) {
            return unknown(sectors.into());
        }
        if u16_at(bytes, f[4]) != 0 {
            return unknown(u16_at(bytes, f[4]).into());
        }
        let reference = &bytes[ROOT_SIZE - REFERENCE_SIZE..];
        let page = match height {
            0 if reference.iter().all(|b| *b == 0) => None,
            0 => return unknown(0),
            _ => match PageRef::decode(reference) {
                Ok(page) if page.level + 1 == height && page.sectors == sectors => Some(page),
                Ok(_) | Err(_) => return unknown(height.into()),
            },
        };
        let root = Self {
            shard: ShardId(u16_at(bytes, f[1])),
            epoch: Epoch(u64_at(bytes, f[5])),
            lsn: Lsn(u64_at(bytes, f[6])),
            entries: u64_at(bytes, f[7]),
            pages: u64_at(bytes, f[8]),
            next_number: u64_at(bytes, f[9]),
            sectors,
            page,
        };
        let is_empty = root.page.is_none();
        if is_empty != (root.entries == 0) || is_empty != (root.pages == 0) {
            return unknown(root.entries);
        }
        if root
            .page
            .is_some_and(|page| page.number >= root.next_number)
        {
            return unknown(root.next_number);
        }
        Ok(root)
    }
}

/// What the header of a new page says beside what follows from its entries.
#[derive(Clone, Copy, Debug)]
pub struct Seal {
    /// The tree.
    pub tree: TreeId,
    /// Sectors of the page.
    pub sectors: u8,
    /// Level.
    pub level: u8,
    /// Checkpoint.
    pub lsn: Lsn,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Number of the page.
    pub number: u64,
}

/// Bytes of a page of `count` entries whose keys share `prefix` bytes and whose keys and values have `raw` bytes.
pub const fn page_size(count: usize, prefix: usize, raw: usize) -> usize {
    HEADER_SIZE + count * SLOT_SIZE + raw + prefix - count * prefix
}

/// How many bytes two keys share at the front.
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The bytes of a page with `entries` (keys ascending), which fit it; and its CRC.
pub fn seal<'a>(
    seal: &Seal,
    entries: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
) -> (Vec<u8>, u32) {
    let size = usize::from(seal.sectors) * SECTOR;
    let mut count = 0;
    let (mut first, mut last): (&[u8], &[u8]) = (&[], &[]);
    for (key, _) in entries.clone() {
        if count == 0 {
            first = key;
        }
        last = key;
        count += 1;
    }
    assert!(count > 0);
    let prefix = common_prefix(first, last);
    let mut bytes = vec![0; size];
    let slots_end = HEADER_SIZE + count * SLOT_SIZE;
    let mut at = slots_end + prefix;
    bytes[slots_end..at].copy_from_slice(&first[..prefix]);
    for (index, (key, value)) in entries.enumerate() {
        let rest = &key[prefix..];
        let begin = u16::try_from(at).expect("offsets of a page fit 16 bits");
        let length = u16::try_from(rest.len()).expect("keys are at most KEY_SIZE_MAX");
        let slot = HEADER_SIZE + index * SLOT_SIZE;
        bytes[slot..slot + 2].copy_from_slice(&begin.to_le_bytes());
        bytes[slot + 2..slot + 4].copy_from_slice(&length.to_le_bytes());
        bytes[at..at + rest.len()].copy_from_slice(rest);
        at += rest.len();
        bytes[at..at + value.len()].copy_from_slice(value);
        at += value.len();
    }
    let f = &PAGE_HEADER;
    let b = &mut bytes[..];
    let number = |value: usize| u32::try_from(value).expect("below 64 KiB").to_le_bytes();
    let prefix = u16::try_from(prefix).expect("keys are at most KEY_SIZE_MAX");
    put(b, f[0], &MAGIC.to_le_bytes());
    put(b, f[1], &TREE_VERSION.to_le_bytes());
    put(b, f[2], &[seal.level]);
    put(b, f[3], &[seal.sectors]);
    put(b, f[4], &seal.tree.fs.0.to_le_bytes());
    put(b, f[5], &seal.tree.shard.0.to_le_bytes());
    put(b, f[6], &prefix.to_le_bytes());
    put(b, f[7], &number(count));
    put(b, f[8], &seal.lsn.0.to_le_bytes());
    put(b, f[9], &seal.epoch.0.to_le_bytes());
    put(b, f[10], &seal.number.to_le_bytes());
    put(b, f[11], &number(at));
    let crc = crc32c(b);
    (bytes, crc)
}

/// A verified page.
pub struct Page {
    bytes: Box<[u8]>,
    level: u8,
    count: usize,
    prefix_size: usize,
    end: usize,
    number: u64,
    lsn: Lsn,
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Page")
            .field("number", &self.number)
            .field("level", &self.level)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Page {
    /// Takes bytes that should be the page `reference` of `tree`; verifies all that its methods rely on.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn verify(tree: TreeId, reference: &PageRef, bytes: Box<[u8]>) -> Result<Self, PageFault> {
        if bytes.len() != reference.size() {
            let size = bytes.len();
            return Err(PageFault::Size { size });
        }
        if crc32c(&bytes) != reference.crc {
            return Err(what_it_is(tree, reference, &bytes));
        }
        let f = &PAGE_HEADER;
        let b = &bytes[..];
        let wrong = |field| Err(PageFault::Field { field });
        if u32_at(b, f[0]) != MAGIC {
            return wrong("magic");
        }
        let version = u16_at(b, f[1]);
        if version != TREE_VERSION {
            return Err(PageFault::Version { version });
        }
        let shard = ShardId(u16_at(b, f[5]));
        let (number, lsn) = (u64_at(b, f[10]), u64_at(b, f[8]));
        if u128_at(b, f[4]) != tree.fs.0 || shard != tree.shard || number != reference.number {
            return Err(PageFault::Other { shard, number, lsn });
        }
        let count = u32_at(b, f[7]);
        if b[f[2].offset] != reference.level {
            return wrong("level");
        }
        if b[f[3].offset] != reference.sectors {
            return wrong("sectors of the page");
        }
        if count != reference.count || count == 0 {
            return wrong("number of entries");
        }
        if u32_at(b, f[12]) != 0 {
            return wrong("reserved field");
        }
        let page = Self {
            level: reference.level,
            count: count as usize,
            prefix_size: u16_at(b, f[6]).into(),
            end: u32_at(b, f[11]) as usize,
            number,
            lsn: Lsn(lsn),
            bytes,
        };
        page.verify_entries()?;
        Ok(page)
    }

    /// Slots, keys and references. Nothing is read before it is known to lie in the page.
    fn verify_entries(&self) -> Result<(), PageFault> {
        let wrong = |field| Err(PageFault::Field { field });
        let size = self.bytes.len();
        if self.end > size || self.count > (size - HEADER_SIZE) / SLOT_SIZE {
            return wrong("end of the last entry");
        }
        let begin = self.slots_end() + self.prefix_size;
        if begin > self.end || self.prefix_size > KEY_SIZE_MAX {
            return wrong("length of the prefix");
        }
        let mut at = begin;
        let mut before: Option<&[u8]> = None;
        for index in 0..self.count {
            let (entry, length) = self.slot(index);
            if (index == 0 && entry != begin) || entry < at || entry + length > self.end {
                return wrong("slot");
            }
            if self.prefix_size + length > KEY_SIZE_MAX {
                return wrong("length of a key");
            }
            at = entry + length;
            let rest = &self.bytes[entry..at];
            if before.is_some_and(|before| before >= rest) {
                return wrong("order of the keys");
            }
            before = Some(rest);
        }
        if self.level > 0 {
            for index in 0..self.count {
                let value = self.checked_value(index).unwrap_or(&[]);
                match PageRef::decode(value) {
                    Ok(child) if child.level + 1 != self.level => return wrong("level of a child"),
                    Ok(child) if usize::from(child.sectors) * SECTOR != size => {
                        return wrong("sectors of a child");
                    }
                    Ok(_) => {}
                    Err(field) => return wrong(field),
                }
            }
        }
        Ok(())
    }

    const fn slots_end(&self) -> usize {
        HEADER_SIZE + self.count * SLOT_SIZE
    }

    /// Where entry `index` begins, and the length of its part of the key.
    fn slot(&self, index: usize) -> (usize, usize) {
        let at = HEADER_SIZE + index * SLOT_SIZE;
        let b = &self.bytes[at..at + SLOT_SIZE];
        let begin = u16::from_le_bytes([b[0], b[1]]);
        let length = u16::from_le_bytes([b[2], b[3]]);
        (begin.into(), length.into())
    }

    fn entry_end(&self, index: usize) -> usize {
        if index + 1 < self.count {
            self.slot(index + 1).0
        } else {
            self.end
        }
    }

    fn checked_value(&self, index: usize) -> Option<&[u8]> {
        let (begin, length) = self.slot(index);
        self.bytes.get(begin + length..self.entry_end(index))
    }

    /// Its level; leaves are 0.
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Its entries: at least one.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Bytes up to the end of its last entry: how full it is.
    pub const fn used(&self) -> usize {
        self.end
    }

    /// Its number.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// The checkpoint that wrote it.
    pub const fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// All its bytes.
    pub const fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What all its keys begin with.
    pub fn prefix(&self) -> &[u8] {
        &self.bytes[self.slots_end()..self.slots_end() + self.prefix_size]
    }

    /// The key of entry `index` behind the prefix.
    pub fn rest(&self, index: usize) -> &[u8] {
        let (begin, length) = self.slot(index);
        &self.bytes[begin..begin + length]
    }

    /// The key of entry `index`, put into `key`.
    pub fn key_into(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.rest(index));
    }

    /// The key of entry `index`.
    pub fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix_size + self.rest(index).len());
        self.key_into(index, &mut key);
        key
    }

    /// The value of entry `index`; of an inner page: a page reference.
    pub fn value(&self, index: usize) -> &[u8] {
        self.checked_value(index)
            .expect("slots were verified to ascend")
    }

    /// The child `index` of an inner page.
    pub fn child(&self, index: usize) -> PageRef {
        assert!(self.level > 0);
        PageRef::decode(self.value(index)).expect("references were verified")
    }

    /// Orders the key of entry `index` against `key`.
    pub fn compare(&self, index: usize, key: &[u8]) -> Ordering {
        match key.split_at_checked(self.prefix_size) {
            Some((head, rest)) => self
                .prefix()
                .cmp(head)
                .then_with(|| self.rest(index).cmp(rest)),
            // A key that is shorter than the prefix is never equal to it.
            None => self.prefix().cmp(key),
        }
    }

    /// The entry with `key`, or else (`Err`) where it would be: the number of entries before it.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let Some((head, rest)) = key.split_at_checked(self.prefix_size) else {
            return Err(if self.prefix() > key { 0 } else { self.count });
        };
        match self.prefix().cmp(head) {
            Ordering::Greater => return Err(0),
            Ordering::Less => return Err(self.count),
            Ordering::Equal => {}
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.rest(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The first entry whose key is not below `key`.
    pub fn lower_bound(&self, key: &[u8]) -> usize {
        self.search(key).unwrap_or_else(|index| index)
    }

    /// The child of an inner page below which `key` belongs. What is below the first separator belongs to the
    /// first child.
    pub fn child_index(&self, key: &[u8]) -> usize {
        assert!(self.level > 0);
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }
}

/// What lies where a page should be, as far as its bytes can be believed.
fn what_it_is(tree: TreeId, reference: &PageRef, bytes: &[u8]) -> PageFault {
    let f = &PAGE_HEADER;
    if bytes.iter().all(|b| *b == 0) {
        return PageFault::Zeros;
    }
    if u32_at(bytes, f[0]) != MAGIC {
        return PageFault::Checksum;
    }
    let version = u16_at(bytes, f[1]);
    if version > TREE_VERSION {
        return PageFault::Version { version };
    }
    let shard = ShardId(u16_at(bytes, f[5]));
    let (number, lsn) = (u64_at(bytes, f[10]), u64_at(bytes, f[8]));
    let is_ours = u128_at(bytes, f[4]) == tree.fs.0 && shard == tree.shard;
    if is_ours && number == reference.number {
        return PageFault::Checksum;
    }
    PageFault::Other { shard, number, lsn }
}

#[cfg(test)]
#[path = "page/tests.rs"]
mod tests;
