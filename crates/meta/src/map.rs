//! Where a file's bytes lie: extents in sectors, pieces of bytes over them.
//!
//! Invariants (`check` asserts them)
//! - Extents are disjoint. Pieces are disjoint, none crosses a sector boundary, and two pieces of one
//!   sector never touch (they are merged): every content has one form, so equal maps are equal values.
//! - A piece is newer than the extent under it. A new extent removes the pieces in its sectors. A piece
//!   that fills a sector removes the extent's sector under it.
//! - A run with checksum sectors is counted per extent that is a piece of it, and freed, checksum sectors
//!   included, when the last of them goes; a run with inline checksums is freed sector by sector.
//! - A promised sector (fallocate) holds back one free sector until an extent with inline checksums maps it: then
//!   another one comes back whenever it is written over. Under a run with checksum sectors none does before all of
//!   that run goes. Only `cut`, `punch` and `clear` take a promise back.
//! - What a reader sees at a byte: the piece there, else the extent, else zero. Bytes at and behind the
//!   file's end read as zero, so that a later extension shows zeros: `cut` puts a piece of zeros over the
//!   rest of a last sector that stays in an extent, and Commits keep it so (their last sector is zero
//!   behind the writer's end).
//!
//! Sizes of a file are not kept here.

use std::collections::BTreeMap;

use types::extent::{Checksums, Extent, Location, Piece, checksum_sector_count};
use types::{Run, SECTOR_SIZE, SmallBytes, limits};

use crate::view::MapPart;

mod promised;

use promised::{Promises, is_inline};

/// Pieces of more bytes than this are to be moved to sectors soon.
pub const DESTAGE_BYTES_MAX: u64 = limits::SYNC_INLINE_SIZE_MAX;
/// More pieces than this are to be moved to sectors soon.
pub const DESTAGE_PIECE_COUNT_MAX: usize = 64;
/// Most bytes of pieces in one answer to `GetMap`, unless one sector has more.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// First file sector that cannot be.
const SECTOR_END_MAX: u64 = limits::FILE_SIZE_MAX / SECTOR_SIZE + 1;
/// First sector of an NSD that cannot be (2^52 sectors are 16 EiB).
const NSD_SECTOR_END_MAX: u64 = 1 << 52;

/// Extents that no right client sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BadExtents {
    /// An extent is empty, too far, or its checksums do not fit its length.
    #[error("extent at file sector {file_sector} is malformed")]
    Malformed {
        /// Its first file sector.
        file_sector: u64,
    },
    /// Extents overlap in the file or are not sorted.
    #[error("extent at file sector {file_sector} lies before the end of the one before")]
    Unsorted {
        /// Its first file sector.
        file_sector: u64,
    },
    /// Two extents use the same sectors of an NSD without being pieces of one run.
    #[error("two extents use sector {0:?}")]
    SharedSector(Location),
}

/// Checks extents from the network: order, form, and that no sector is used twice.
pub fn check_extents(extents: &[Extent]) -> Result<(), BadExtents> {
    let mut file_end = 0;
    for extent in extents {
        let file_sector = extent.file_sector;
        let malformed = BadExtents::Malformed { file_sector };
        let end = file_sector.checked_add(u64::from(extent.length));
        if extent.length == 0 || end.is_none_or(|end| end > SECTOR_END_MAX) {
            return Err(malformed);
        }
        if file_sector < file_end {
            return Err(BadExtents::Unsorted { file_sector });
        }
        file_end = extent.file_sector_end();
        let copies = extent.locations.len();
        if copies == 0 || copies > limits::REPLICA_COUNT_MAX || extent.is_shared {
            return Err(malformed);
        }
        let (before, whole) = match &extent.checksums {
            Checksums::Inline { crcs } => {
                let fits = extent.length <= limits::INLINE_CHECKSUM_COUNT_MAX;
                if !fits || crcs.len() != extent.length as usize {
                    return Err(malformed);
                }
                (0, u64::from(extent.length))
            }
            Checksums::Sectors {
                run_begin,
                run_length,
                ..
            } => {
                let end = u64::from(*run_begin) + u64::from(extent.length);
                let whole = u64::from(*run_length);
                let is_long = *run_length > limits::INLINE_CHECKSUM_COUNT_MAX;
                let fits_count = whole + u64::from(checksum_sector_count(*run_length));
                if end > whole || !is_long || u32::try_from(fits_count).is_err() {
                    return Err(malformed);
                }
                (u64::from(*run_begin), fits_count)
            }
        };
        let fits = |l: &Location| l.sector >= before && l.sector + whole < NSD_SECTOR_END_MAX;
        if !extent
            .locations
            .iter()
            .all(|l| l.sector < NSD_SECTOR_END_MAX && fits(l))
        {
            return Err(malformed);
        }
    }
    let runs = runs_of(extents);
    for pair in runs.windows(2) {
        let is_apart = pair[0].at.nsd != pair[1].at.nsd
            || pair[0].at.sector + u64::from(pair[0].count) <= pair[1].at.sector;
        if !is_apart {
            return Err(BadExtents::SharedSector(pair[1].at));
        }
    }
    Ok(())
}

/// The runs that well-formed extents lie in, checksum sectors included, each once, by location.
pub fn runs_of(extents: &[Extent]) -> Vec<Run> {
    let mut runs: Vec<Run> = extents
        .iter()
        .flat_map(|e| e.locations.iter().map(move |l| e.run(*l)))
        .collect();
    runs.sort_unstable();
    // Pieces of one run name it alike, but two inline runs never are the same: a repeat of one of these
    // is kept and so found by `check_extents`.
    runs.dedup_by(|a, b| a == b && a.count > limits::INLINE_CHECKSUM_COUNT_MAX);
    runs
}

/// A file with so many bytes in so many pieces has some that are to be moved to sectors, soon or when there is time.
pub(crate) const fn are_to_be_destaged(byte_count: u64, piece_count: usize) -> bool {
    byte_count > limits::INLINE_SIZE_MAX || piece_count > DESTAGE_PIECE_COUNT_MAX
}

/// Bytes of an extent's list of locations, or of checksums, as they are allocated.
const EXTENT_LISTS_SIZE: usize = 48;

/// Bytes that a `BTreeMap` of so many entries takes: its nodes have room for eleven, and beyond the first are some six and a half
/// full. So a file with one extent takes as much as one with eleven.
pub(crate) const fn tree_weight<K, V>(count: usize) -> usize {
    const CAPACITY: usize = 11;
    let node = CAPACITY * (size_of::<K>() + size_of::<V>()) + 32;
    match count {
        0 => 0,
        1..=CAPACITY => node,
        _ => count * node * 2 / 13,
    }
}

/// Values by number, with a log of what changes while somebody wants it.
#[derive(Clone, Debug)]
struct Logged<V> {
    map: BTreeMap<u64, V>,
    log: Option<Box<Log<V>>>,
}

/// Numbers whose values changed, with what they were.
#[derive(Clone, Debug)]
struct Log<V> {
    wants_old: bool,
    changes: Vec<(u64, Option<V>)>,
}

impl<V> Logged<V> {
    fn begin(&mut self, wants_old: bool) {
        let changes = Vec::new();
        self.log = Some(Box::new(Log { wants_old, changes }));
    }

    fn end(&mut self) -> Vec<(u64, Option<V>)> {
        self.log.take().map_or_else(Vec::new, |log| log.changes)
    }
}

impl<V: Clone> Logged<V> {
    fn insert(&mut self, number: u64, value: V) -> Option<V> {
        let old = self.map.insert(number, value);
        self.note(number, old.as_ref());
        old
    }

    fn remove(&mut self, number: &u64) -> Option<V> {
        let old = self.map.remove(number);
        self.note(*number, old.as_ref());
        old
    }

    fn note(&mut self, number: u64, old: Option<&V>) {
        if let Some(log) = &mut self.log {
            let old = old.filter(|_| log.wants_old).cloned();
            log.changes.push((number, old));
        }
    }
}

impl<V> std::ops::Deref for Logged<V> {
    type Target = BTreeMap<u64, V>;
    fn deref(&self) -> &BTreeMap<u64, V> {
        &self.map
    }
}

impl<V> Default for Logged<V> {
    fn default() -> Self {
        Self {
            map: BTreeMap::new(),
            log: None,
        }
    }
}

impl<V: PartialEq> PartialEq for Logged<V> {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<V: Eq> Eq for Logged<V> {}

/// What a change of a map has changed: extents by file sector, pieces by offset and promised ranges by their first sector, with
/// what was there.
#[derive(Debug, Default)]
pub(crate) struct MapChanges {
    pub(crate) extents: Vec<(u64, Option<Extent>)>,
    pub(crate) pieces: Vec<(u64, Option<SmallBytes>)>,
    pub(crate) promised: Vec<(u64, Option<u64>)>,
}

/// A file's map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileMap {
    /// By first file sector.
    extents: Logged<Extent>,
    /// By byte offset.
    pieces: Logged<SmallBytes>,
    /// For each run with checksum sectors, by its first sector: extents that are pieces of it.
    runs: BTreeMap<Location, u32>,
    /// File sectors that extents map.
    extent_sector_count: u64,
    /// File sectors that have pieces and no extent.
    piece_sector_count: u64,
    /// Promised file sectors: first sector and end of each range. Ranges never touch.
    promised: Logged<u64>,
    /// Promised file sectors: all, those that no extent maps, those that no extent with inline checksums maps; and the bytes of
    /// pieces in them.
    promises: Promises,
    /// Bytes of all pieces.
    piece_byte_count: u64,
    /// Grows with every change.
    version: u64,
    /// Of file sectors that have pieces.
    changed: Changed,
}

/// For each file sector that has pieces: the version of the map at which these last changed. Volatile, so it is the
/// same for all maps as far as equality is concerned.
#[derive(Clone, Debug, Default)]
struct Changed(BTreeMap<u64, u64>);

impl PartialEq for Changed {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Changed {}

/// Bytes in pieces that are to be moved to sectors. They are counted apart: where there are no sectors, there are some for
/// what is promised, and neither takes the room of the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PieceDebt {
    /// In promised sectors.
    pub promised: u64,
    /// In others.
    pub other: u64,
}

impl PieceDebt {
    /// Both.
    pub const fn bytes(&self) -> u64 {
        self.promised + self.other
    }
}

impl std::ops::Add for PieceDebt {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            promised: self.promised + more.promised,
            other: self.other + more.other,
        }
    }
}

impl std::ops::Sub for PieceDebt {
    type Output = Self;

    fn sub(self, less: Self) -> Self {
        Self {
            promised: self.promised - less.promised,
            other: self.other - less.other,
        }
    }
}

/// A sector whose bytes lie in pieces, over those of an extent or over zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PieceSector {
    /// Sector of the file.
    pub file_sector: u64,
    /// What lies under the pieces.
    pub extent: Option<Extent>,
    /// It is promised.
    pub is_promised: bool,
    /// The pieces, in order.
    pub pieces: Vec<Piece>,
}

const fn sector_of(byte: u64) -> u64 {
    byte / SECTOR_SIZE
}

fn piece_end(offset: u64, bytes: &[u8]) -> u64 {
    offset + bytes.len() as u64
}

fn within(bytes: &[u8], base: u64, begin: u64, end: u64) -> &[u8] {
    let skip = usize::try_from(begin - base).expect("within a piece of at most a sector");
    let count = usize::try_from(end - begin).expect("within a piece of at most a sector");
    &bytes[skip..skip + count]
}

impl FileMap {
    /// Grows with every change; an answer of `get` is current as long as it is the same.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// File sectors with bytes in extents or pieces, or promised.
    pub fn sector_count(&self) -> u64 {
        let all = self.extent_sector_count + self.piece_sector_count + self.promises.unmapped;
        if self.promises.unmapped == 0 || self.piece_sector_count == 0 {
            return all;
        }
        let sectors = self.changed.0.keys().copied();
        let is_counted_twice = |s: &u64| self.is_promised(*s) && !self.is_mapped(*s);
        all - sectors.filter(is_counted_twice).count() as u64
    }

    /// Bytes of all pieces.
    pub fn piece_byte_count(&self) -> u64 {
        self.piece_byte_count
    }

    /// Bytes of pieces that are to be moved to sectors when there is time: all, or none.
    pub(crate) fn piece_debt(&self) -> PieceDebt {
        if !self.may_destage() {
            return PieceDebt::default();
        }
        PieceDebt {
            promised: self.promises.piece_bytes,
            other: self.piece_byte_count - self.promises.piece_bytes,
        }
    }

    /// Bytes that it takes in memory, roughly. O(1).
    pub(crate) fn weight(&self) -> u64 {
        let trees = tree_weight::<u64, Extent>(self.extents.len())
            + tree_weight::<u64, u64>(self.promised.len())
            + tree_weight::<u64, SmallBytes>(self.pieces.len())
            + tree_weight::<Location, u32>(self.runs.len())
            + tree_weight::<u64, u64>(self.changed.0.len());
        let all = size_of::<Self>() + trees + self.extents.len() * EXTENT_LISTS_SIZE;
        all as u64 + self.piece_byte_count
    }

    /// Extents.
    pub fn extent_count(&self) -> usize {
        self.extents.len()
    }

    /// Runs of the extents that have file sectors from `first` on, at the most. O(extents).
    pub fn run_count_behind(&self, first: u64) -> usize {
        let extents = self.extents_in(first, u64::MAX);
        extents.map(|extent| extent.locations.len()).sum()
    }

    /// Runs that a hole in `begin..end` frees at the most. O(extents there).
    pub fn run_count_within(&self, begin: u64, end: u64) -> usize {
        let (first, last) = (sector_of(begin), end.div_ceil(SECTOR_SIZE));
        let extents = self.extents_in(first, last.max(first));
        // The sectors at both ends, too, where zeros fill them.
        let count: usize = extents.map(|extent| extent.locations.len()).sum();
        count + 2 * limits::REPLICA_COUNT_MAX
    }

    /// Pieces.
    pub fn piece_count(&self) -> usize {
        self.pieces.len()
    }

    /// The pieces are so many that they are to be moved to sectors soon.
    pub fn needs_destage(&self) -> bool {
        self.piece_byte_count > DESTAGE_BYTES_MAX || self.pieces.len() > DESTAGE_PIECE_COUNT_MAX
    }

    /// The pieces are more than a small file's: they may be moved to sectors when there is time.
    pub fn may_destage(&self) -> bool {
        self.piece_byte_count > limits::INLINE_SIZE_MAX
    }

    /// The parts of `extent` whose sectors have pieces, all of them as they were at version `version`: what was read
    /// under that version is what they hold now. For what makes a sector's pieces another's, be it a write, an extent
    /// over them or a cut, changes or removes them. An extent with checksum sectors goes whole or not at all.
    pub fn unchanged_parts(&self, extent: &Extent, version: u64) -> Vec<Extent> {
        let is_same = |sector: &u64| self.changed.0.get(sector).is_some_and(|v| *v <= version);
        let (first, last) = (extent.file_sector, extent.file_sector_end());
        if let Checksums::Sectors { .. } = extent.checksums {
            let is_whole = (first..last).all(|sector| is_same(&sector));
            return is_whole.then(|| extent.clone()).into_iter().collect();
        }
        let mut parts = Vec::new();
        let mut at = first;
        while at < last {
            let end = (at..last).find(|s| !is_same(s)).unwrap_or(last);
            if at < end {
                parts.push(extent.slice(at, end));
            }
            at = end + 1;
        }
        parts
    }

    /// The first sectors that have pieces, or those of them that are promised, at most `count_max`: each with what lies under its pieces.
    pub fn piece_sectors(&self, count_max: usize, are_promised: bool) -> Vec<PieceSector> {
        let mut sectors = Vec::new();
        let has_any = !are_promised || self.promises.piece_bytes > 0;
        let changed = self.changed.0.keys().copied().filter(|_| has_any);
        let changed = changed.filter(|sector| !are_promised || self.is_promised(*sector));
        for sector in changed.take(count_max) {
            let begin = sector * SECTOR_SIZE;
            let pieces = self.pieces_in(begin, begin + SECTOR_SIZE);
            let extent = self.extent_at(sector);
            sectors.push(PieceSector {
                file_sector: sector,
                extent: extent.map(|e| e.slice(sector, sector + 1)),
                is_promised: self.is_promised(sector),
                pieces: pieces
                    .map(|(offset, bytes)| Piece {
                        offset: *offset,
                        bytes: bytes.clone(),
                    })
                    .collect(),
            });
        }
        sectors
    }

    /// One of the extents is a piece of `run` (with checksum sectors).
    pub fn uses_run(&self, run: &Run) -> bool {
        self.runs.contains_key(&run.at)
    }

    /// New content: `extents` (checked by `check_extents`), then `pieces` over them. Runs that nothing
    /// uses any more are added to `freed`; runs of `extents` may be among them.
    pub fn put(&mut self, extents: &[Extent], pieces: &[Piece], freed: &mut Vec<Run>) {
        self.version += 1;
        for extent in extents {
            self.put_extent(extent, freed);
        }
        for piece in pieces {
            self.put_piece(piece, freed);
        }
    }

    /// Nothing lies at or behind `size` any more, and it reads as zero from there on.
    pub fn cut(&mut self, size: u64, freed: &mut Vec<Run>) {
        self.version += 1;
        self.remove_pieces(size, u64::MAX);
        self.cut_extents(size.div_ceil(SECTOR_SIZE), u64::MAX, freed);
        self.take_promise_back(size.div_ceil(SECTOR_SIZE), u64::MAX);
        let last = sector_of(size);
        if !size.is_multiple_of(SECTOR_SIZE) && self.is_mapped(last) {
            let end = (last + 1) * SECTOR_SIZE;
            let count = usize::try_from(end - size).expect("less than a sector");
            self.put_part(size, &vec![0; count], freed);
        }
    }

    /// `begin..end` reads as zero from now on; whole sectors of it are freed.
    pub fn punch(&mut self, begin: u64, end: u64, freed: &mut Vec<Run>) {
        self.version += 1;
        if begin >= end {
            return;
        }
        self.remove_pieces(begin, end);
        let (first, last) = (begin.div_ceil(SECTOR_SIZE), sector_of(end));
        if first <= last {
            self.cut_extents(first, last, freed);
            self.take_promise_back(first, last);
            self.put_zeros(begin, first * SECTOR_SIZE, freed);
            self.put_zeros(last * SECTOR_SIZE, end, freed);
        } else {
            self.put_zeros(begin, end, freed);
        }
    }

    /// Zeros over bytes of one sector, if there is an extent under them. Without one there is nothing but pieces.
    fn put_zeros(&mut self, begin: u64, end: u64, freed: &mut Vec<Run>) {
        if begin < end && self.is_mapped(sector_of(begin)) {
            let count = usize::try_from(end - begin).expect("less than a sector");
            self.put_part(begin, &vec![0; count], freed);
        }
    }

    /// Everything goes: all runs are added to `freed`.
    pub fn clear(&mut self, freed: &mut Vec<Run>) {
        self.version += 1;
        self.remove_pieces(0, u64::MAX);
        self.cut_extents(0, u64::MAX, freed);
        self.take_promise_back(0, u64::MAX);
    }

    /// Adds part of a snapshot's map as it is.
    pub fn load(&mut self, version: u64, extents: &[Extent], pieces: &[Piece]) {
        self.version = version;
        extents
            .iter()
            .for_each(|extent| self.add_extent(extent.clone()));
        pieces
            .iter()
            .for_each(|piece| self.add_piece(piece.clone()));
    }

    fn add_extent(&mut self, extent: Extent) {
        self.count_runs(&extent);
        self.extent_sector_count += u64::from(extent.length);
        let sectors = (extent.file_sector, extent.file_sector_end());
        self.note_mapped(sectors, is_inline(&extent), true);
        let old = self.extents.insert(extent.file_sector, extent);
        assert!(old.is_none(), "a snapshot names an extent once");
    }

    fn add_piece(&mut self, piece: Piece) {
        let sector = sector_of(piece.offset);
        if !self.has_pieces(sector) && !self.is_mapped(sector) {
            self.piece_sector_count += 1;
        }
        self.note_piece(piece.offset, piece.bytes.len(), true);
        self.pieces.insert(piece.offset, piece.bytes);
        self.changed.0.insert(sector, self.version);
    }

    /// Adds an extent as it is. False: it is malformed, or not behind all that are there.
    pub(crate) fn load_extent(&mut self, extent: Extent) -> bool {
        let fits = self.can_load(std::slice::from_ref(&extent), &[]);
        if fits {
            self.add_extent(extent);
        }
        fits
    }

    /// Adds a piece as it is. False: it is malformed, or not behind all that are there.
    pub(crate) fn load_piece(&mut self, piece: Piece) -> bool {
        let fits = self.can_load(&[], std::slice::from_ref(&piece));
        if fits {
            self.add_piece(piece);
        }
        fits
    }

    /// What is to be loaded is well-formed, and lies behind all extents, or pieces, that are there.
    pub(crate) fn can_load(&self, extents: &[Extent], pieces: &[Piece]) -> bool {
        let last = self.extents.last_key_value();
        let mut end = last.map_or(0, |(_, extent)| extent.file_sector_end());
        let are_behind = check_extents(extents).is_ok()
            && extents.iter().all(|extent| {
                let is_behind = extent.file_sector >= end;
                end = extent.file_sector_end();
                is_behind
            });
        let last = self.pieces.last_key_value();
        let mut end = last.map_or(0, |(offset, bytes)| piece_end(*offset, bytes));
        let are_apart = pieces.iter().all(|piece| {
            let is_touching = piece.offset == end && !end.is_multiple_of(SECTOR_SIZE);
            let is_apart = piece.offset >= end && !is_touching;
            let to = piece.offset.checked_add(piece.bytes.len() as u64);
            let is_one = to.is_some_and(|to| {
                to > piece.offset && sector_of(piece.offset) == sector_of(to - 1)
            });
            end = to.unwrap_or(u64::MAX);
            is_apart && is_one
        });
        are_behind && are_apart
    }

    /// All extents, in order.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.values()
    }

    /// Notes what changes until `end_log`, with the old values if these are wanted.
    pub(crate) fn begin_log(&mut self, wants_old: bool) {
        self.extents.begin(wants_old);
        self.pieces.begin(wants_old);
        self.promised.begin(wants_old);
    }

    /// What has changed since `begin_log`, in the order of the changes.
    pub(crate) fn end_log(&mut self) -> MapChanges {
        MapChanges {
            extents: self.extents.end(),
            pieces: self.pieces.end(),
            promised: self.promised.end(),
        }
    }

    /// The extent that begins at a file sector.
    pub(crate) fn extent_from(&self, file_sector: u64) -> Option<&Extent> {
        self.extents.get(&file_sector)
    }

    /// The piece that begins at an offset.
    pub(crate) fn piece_from(&self, offset: u64) -> Option<&SmallBytes> {
        self.pieces.get(&offset)
    }

    /// Where pieces begin, in order.
    pub(crate) fn piece_offsets(&self) -> impl Iterator<Item = u64> + '_ {
        self.pieces.keys().copied()
    }

    /// All pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().map(|(offset, bytes)| Piece {
            offset: *offset,
            bytes: bytes.clone(),
        })
    }

    /// What lies in `begin..end`: extents clipped to its sectors, pieces to its bytes. At most
    /// `count_max` items, but always all of the first sector that has any; `MapPart::end` says how far
    /// the answer goes (`end` itself, or a sector boundary).
    pub fn get(&self, begin: u64, end: u64, count_max: usize) -> MapPart {
        let mut part = MapPart {
            end,
            ..MapPart::default()
        };
        if begin >= end {
            return part;
        }
        let (first, last) = (sector_of(begin), end.div_ceil(SECTOR_SIZE));
        let mut extents = self.extents_in(first, last).peekable();
        let mut pieces = self.pieces_in(begin, end).peekable();
        let mut byte_count = 0;
        loop {
            let extent_at = extents.peek().map(|e| e.file_sector.max(first));
            let piece_at = pieces.peek().map(|p| sector_of(*p.0));
            let Some(at) = extent_at.into_iter().chain(piece_at).min() else {
                break;
            };
            let count = part.extents.len() + part.pieces.len();
            let is_full = count >= count_max.max(1) || byte_count >= ANSWER_BYTES_MAX;
            if is_full && count > 0 && at > first {
                part.end = part.end.min(at * SECTOR_SIZE);
                break;
            }
            if extent_at == Some(at) {
                part.extents.extend(extents.next().cloned());
            }
            while let Some((offset, bytes)) = pieces.next_if(|p| sector_of(*p.0) == at) {
                let (from, to) = ((*offset).max(begin), piece_end(*offset, bytes).min(end));
                byte_count += bytes.len();
                part.pieces.push(Piece {
                    offset: from,
                    bytes: SmallBytes::new(within(bytes, *offset, from, to)),
                });
            }
        }
        let last = part.end.div_ceil(SECTOR_SIZE);
        for extent in &mut part.extents {
            let (from, to) = (extent.file_sector, extent.file_sector_end());
            if from < first || to > last {
                *extent = extent.slice(from.max(first), to.min(last));
            }
        }
        part
    }

    /// Asserts every invariant. O(n).
    pub fn check(&self) {
        let mut end = 0;
        let mut runs: BTreeMap<Location, u32> = BTreeMap::new();
        let mut sectors = 0;
        for (at, extent) in self.extents.iter() {
            assert_eq!(*at, extent.file_sector);
            assert!(end <= *at, "extents are disjoint");
            assert!(extent.length > 0);
            end = extent.file_sector_end();
            sectors += u64::from(extent.length);
            for location in &extent.locations {
                if let Checksums::Sectors { .. } = extent.checksums {
                    *runs.entry(extent.run(*location).at).or_default() += 1;
                }
            }
        }
        assert_eq!(sectors, self.extent_sector_count);
        self.check_promises();
        assert_eq!(runs, self.runs);
        let mut before: Option<u64> = None;
        let mut alone = std::collections::BTreeSet::new();
        let mut bytes = 0;
        for (offset, piece) in self.pieces.iter() {
            let (sector, end) = (sector_of(*offset), piece_end(*offset, piece));
            assert!(!piece.is_empty());
            assert_eq!(sector, sector_of(end - 1), "a piece lies in one sector");
            if let Some(before) = before {
                assert!(before <= *offset, "pieces are disjoint");
                let is_apart = before < *offset || offset.is_multiple_of(SECTOR_SIZE);
                assert!(is_apart, "pieces of a sector do not touch");
            }
            before = Some(end);
            bytes += piece.len() as u64;
            if !self.is_mapped(sector) {
                alone.insert(sector);
            } else {
                assert!(
                    (piece.len() as u64) < SECTOR_SIZE,
                    "no extent under a full piece"
                );
            }
        }
        assert_eq!(alone.len() as u64, self.piece_sector_count);
        assert_eq!(bytes, self.piece_byte_count);
        let with_pieces = self.pieces.keys().map(|offset| sector_of(*offset));
        let with_pieces: std::collections::BTreeSet<u64> = with_pieces.collect();
        assert!(self.changed.0.keys().eq(with_pieces.iter()));
        assert!(self.changed.0.values().all(|v| *v <= self.version));
    }

    /// The extent that maps `sector`.
    fn extent_at(&self, sector: u64) -> Option<&Extent> {
        let (_, extent) = self.extents.range(..=sector).next_back()?;
        (sector < extent.file_sector_end()).then_some(extent)
    }

    fn is_mapped(&self, sector: u64) -> bool {
        self.extent_at(sector).is_some()
    }

    fn has_pieces(&self, sector: u64) -> bool {
        let begin = sector * SECTOR_SIZE;
        self.pieces
            .range(begin..begin + SECTOR_SIZE)
            .next()
            .is_some()
    }

    /// Extents that share a sector with `first..last`.
    fn extents_in(&self, first: u64, last: u64) -> impl Iterator<Item = &Extent> {
        let from = self.extent_at(first).map_or(first, |e| e.file_sector);
        self.extents.range(from..last.max(from)).map(|(_, e)| e)
    }

    /// Pieces that share a byte with `begin..end`.
    fn pieces_in(&self, begin: u64, end: u64) -> impl Iterator<Item = (&u64, &SmallBytes)> {
        let before = self.pieces.range(..begin).next_back();
        let from = before
            .filter(|(offset, bytes)| piece_end(**offset, bytes) > begin)
            .map_or(begin, |(offset, _)| *offset);
        self.pieces.range(from..end.max(from))
    }

    fn put_extent(&mut self, extent: &Extent, freed: &mut Vec<Run>) {
        let (first, last) = (extent.file_sector, extent.file_sector_end());
        self.remove_pieces(first * SECTOR_SIZE, last * SECTOR_SIZE);
        // Counted before the old is cut, so that a run that is named by both does not go in between.
        self.count_runs(extent);
        self.cut_extents(first, last, freed);
        self.extent_sector_count += u64::from(extent.length);
        self.extents.insert(first, extent.clone());
        self.note_mapped((first, last), is_inline(extent), true);
    }

    fn count_runs(&mut self, extent: &Extent) {
        if let Checksums::Sectors { .. } = extent.checksums {
            for location in &extent.locations {
                *self.runs.entry(extent.run(*location).at).or_default() += 1;
            }
        }
    }

    /// Unmaps file sectors `first..last`. Pieces stay.
    fn cut_extents(&mut self, first: u64, last: u64, freed: &mut Vec<Run>) {
        if first >= last {
            return;
        }
        let starts: Vec<u64> = self
            .extents_in(first, last)
            .map(|e| e.file_sector)
            .collect();
        for start in starts {
            let extent = self.extents.remove(&start).expect("just listed");
            let (begin, end) = (extent.file_sector, extent.file_sector_end());
            let (from, to) = (begin.max(first), end.min(last));
            let left = (begin < from).then(|| extent.slice(begin, from));
            let right = (to < end).then(|| extent.slice(to, end));
            for rest in [&left, &right].into_iter().flatten() {
                self.count_runs(rest);
            }
            self.release(&extent.slice(from, to), freed);
            for rest in [left, right].into_iter().flatten() {
                self.extents.insert(rest.file_sector, rest);
            }
            self.extent_sector_count -= to - from;
            self.note_mapped((from, to), is_inline(&extent), false);
            if !self.pieces.is_empty() {
                let alone = (from..to).filter(|s| self.has_pieces(*s)).count();
                self.piece_sector_count += alone as u64;
            }
        }
    }

    /// One extent less that uses its runs.
    fn release(&mut self, extent: &Extent, freed: &mut Vec<Run>) {
        for location in &extent.locations {
            let run = extent.run(*location);
            match extent.checksums {
                Checksums::Inline { .. } => freed.push(run),
                Checksums::Sectors { .. } => {
                    let count = self
                        .runs
                        .get_mut(&run.at)
                        .expect("every piece of a run is counted");
                    *count -= 1;
                    if *count == 0 {
                        self.runs.remove(&run.at);
                        freed.push(run);
                    }
                }
            }
        }
    }

    fn put_piece(&mut self, piece: &Piece, freed: &mut Vec<Run>) {
        let mut at = piece.offset;
        while at < piece.end() {
            let end = piece.end().min((sector_of(at) + 1) * SECTOR_SIZE);
            let bytes = within_any(&piece.bytes, piece.offset, at, end);
            self.put_part(at, bytes, freed);
            at = end;
        }
    }

    /// Puts bytes that lie in one sector, merging what they touch there.
    fn put_part(&mut self, begin: u64, bytes: &[u8], freed: &mut Vec<Run>) {
        let sector = sector_of(begin);
        let (sector_begin, sector_end) = (sector * SECTOR_SIZE, (sector + 1) * SECTOR_SIZE);
        let end = piece_end(begin, bytes);
        assert!(begin < end);
        assert!(end <= sector_end);
        let had_pieces = self.has_pieces(sector);
        let touched: Vec<u64> = self
            .pieces
            .range(sector_begin..=end.min(sector_end - 1))
            .filter(|(offset, old)| piece_end(**offset, old) >= begin)
            .map(|(offset, _)| *offset)
            .collect();
        let old: Vec<(u64, SmallBytes)> = touched
            .into_iter()
            .map(|offset| (offset, self.pieces.remove(&offset).expect("just listed")))
            .collect();
        let from = old.first().map_or(begin, |(offset, _)| begin.min(*offset));
        let to = old.last().map_or(end, |(o, b)| end.max(piece_end(*o, b)));
        let place = |offset: u64| usize::try_from(offset - from).expect("within a sector");
        let mut merged = vec![0; place(to)];
        for (offset, old) in &old {
            merged[place(*offset)..place(piece_end(*offset, old))].copy_from_slice(old);
            self.note_piece(*offset, old.len(), false);
        }
        merged[place(begin)..place(end)].copy_from_slice(bytes);
        self.note_piece(from, merged.len(), true);
        let is_full = to - from == SECTOR_SIZE;
        self.pieces.insert(from, merged.into());
        self.changed.0.insert(sector, self.version);
        if !had_pieces && !self.is_mapped(sector) {
            self.piece_sector_count += 1;
        }
        if is_full {
            self.cut_extents(sector, sector + 1, freed);
        }
    }

    /// A piece of so many bytes comes, or goes.
    fn note_piece(&mut self, offset: u64, length: usize, is_added: bool) {
        let length = length as u64;
        let promised = match self.is_promised(sector_of(offset)) {
            true => length,
            false => 0,
        };
        if is_added {
            self.piece_byte_count += length;
            self.promises.piece_bytes += promised;
        } else {
            self.piece_byte_count -= length;
            self.promises.piece_bytes -= promised;
        }
    }

    /// Removes the bytes of pieces in `begin..end`.
    fn remove_pieces(&mut self, begin: u64, end: u64) {
        let touched: Vec<u64> = self.pieces_in(begin, end).map(|(o, _)| *o).collect();
        for offset in touched {
            let bytes = self.pieces.remove(&offset).expect("just listed");
            let bytes_end = piece_end(offset, &bytes);
            self.note_piece(offset, bytes.len(), false);
            for (from, to) in [(offset, begin.min(bytes_end)), (end.max(offset), bytes_end)] {
                if from < to {
                    let rest = SmallBytes::new(within(&bytes, offset, from, to));
                    self.note_piece(from, rest.len(), true);
                    self.pieces.insert(from, rest);
                }
            }
            let sector = sector_of(offset);
            let has_pieces = self.has_pieces(sector);
            if has_pieces {
                self.changed.0.insert(sector, self.version);
            } else {
                self.changed.0.remove(&sector);
            }
            if !has_pieces && !self.is_mapped(sector) {
                self.piece_sector_count -= 1;
            }
        }
    }
}

fn within_any(bytes: &[u8], base: u64, begin: u64, end: u64) -> &[u8] {
    let skip = usize::try_from(begin - base).expect("within bytes in memory");
    let count = usize::try_from(end - begin).expect("within bytes in memory");
    &bytes[skip..skip + count]
}

#[cfg(test)]
mod tests;
