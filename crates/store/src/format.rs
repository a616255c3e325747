//! The bytes of the journal: segment header, record header, part header. See docs/disk-format.md.
//!
//! Invariants
//! - Everything is little-endian at fixed offsets; the tables below are what the encoder uses and what
//!   docs/disk-format.md shows (a test compares them).
//! - The segment header lies within the first 512 bytes of its sector, so that a disk with 512-byte
//!   sectors cannot tear it either.

use data::checksum::crc32c;
use types::{
    DecodeError, Epoch, FsId, Incarnation, Location, Lsn, NodeId, NsdId, SECTOR_SIZE, ShardId,
};

/// `SECTOR_SIZE` for lengths in memory.
pub const SECTOR: usize = 4096;
const _: () = assert!(SECTOR as u64 == SECTOR_SIZE);
/// Sectors at the start of a half that hold the two copies of its header.
pub const HEADER_SECTORS: u64 = 2;
/// Bytes of the largest record, headers included.
pub const RECORD_SIZE_MAX: usize = 4 << 20;
/// Version of all that this file lays out, and of the parts in it. 2: attributes have a layout.
pub const FORMAT_VERSION: u32 = 2;
/// Sectors of the smallest area that makes sense.
pub const AREA_SECTORS_MIN: u64 = 32;

/// A field of a fixed layout: name, offset, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, as the document shows it.
    pub name: &'static str,
    /// Offset of the first byte.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

pub(crate) const fn field(name: &'static str, offset: usize, size: usize) -> Field {
    Field { name, offset, size }
}

/// Layout of a segment header sector.
pub const SEGMENT_HEADER: [Field; 14] = [
    field("magic \"GUPFSSEG\"", 0, 8),
    field("format version", 8, 4),
    field("flags (bit 0: retired)", 12, 4),
    field("file system id", 16, 16),
    field("incarnation of the writer", 32, 16),
    field("sequence number", 48, 8),
    field("LSN of the last operation before the segment", 56, 8),
    field("sequence number of the segment it continues", 64, 8),
    field("LSN up to which that one was replayed", 72, 8),
    field("area: first sector", 80, 8),
    field("area: sectors", 88, 8),
    field("owner node", 96, 2),
    field("NSD", 98, 2),
    field("CRC32C of bytes 0 to 507", 508, 4),
];
/// Layout of a record header.
pub const RECORD_HEADER: [Field; 11] = [
    field("magic \"GREC\"", 0, 4),
    field("length with all parts", 4, 4),
    field("LSN", 8, 8),
    field("tag of the segment", 16, 8),
    field("durable LSN when it was appended", 24, 8),
    field("kind (1 operation, 2 snapshot, 3 end)", 32, 1),
    field("reserved (0)", 33, 1),
    field("part count", 34, 2),
    field("header CRC of the record before", 36, 4),
    field("CRC32C of the parts", 40, 4),
    field("CRC32C of bytes 0 to 43", 44, 4),
];
/// Layout of a part header; the part's bytes follow.
pub const PART_HEADER: [Field; 5] = [
    field("kind (1 shard, 2 space, 3 region table)", 0, 1),
    field("reserved (0)", 1, 1),
    field("shard", 2, 2),
    field("length of the bytes", 4, 4),
    field("shard epoch", 8, 8),
];

/// Bytes of a record header.
pub const RECORD_HEADER_SIZE: usize = 48;
/// Bytes of a part header.
pub const PART_HEADER_SIZE: usize = 16;
/// Records begin at multiples of this.
pub const RECORD_ALIGN: usize = 8;

const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"GUPFSSEG");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"GREC");
const FLAG_RETIRED: u32 = 1;
const SEGMENT_CRC_AT: usize = 508;

/// Where a journal lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// NSD.
    pub nsd: NsdId,
    /// First sector.
    pub begin: u64,
    /// Sectors: at least `AREA_SECTORS_MIN`; an odd last one is not used.
    pub count: u64,
}

impl Area {
    /// Sectors of each half.
    pub const fn half_sectors(&self) -> u64 {
        self.count / 2
    }

    /// Bytes that records of one segment can take.
    pub const fn segment_size(&self) -> u64 {
        (self.half_sectors() - HEADER_SECTORS) * SECTOR_SIZE
    }

    /// The place of sector `index` of `half`.
    pub fn at(&self, half: u8, index: u64) -> Location {
        assert!(half < 2);
        assert!(index < self.half_sectors());
        Location {
            nsd: self.nsd,
            sector: self.begin + u64::from(half) * self.half_sectors() + index,
        }
    }
}

/// Whose state a part belongs to: replay is filtered by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PartKey {
    /// Metadata of a shard.
    Shard(ShardId),
    /// Regions, grants and sectors of this owner.
    Space,
    /// Who holds which region: of the owner of shard 0 only.
    RegionTable,
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// Parts to apply; has the LSN behind the last operation's.
    Operation,
    /// Part of the snapshot; has the LSN of the last operation before it.
    Snapshot,
    /// The snapshot is complete.
    End,
}

impl RecordKind {
    const fn number(self) -> u8 {
        match self {
            Self::Operation => 1,
            Self::Snapshot => 2,
            Self::End => 3,
        }
    }
}

/// The header of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The half is free: the segment with this sequence number, in the other half, is complete.
    pub is_retired: bool,
    /// File system.
    pub fs: FsId,
    /// Owner node.
    pub owner: NodeId,
    /// Life of the daemon that writes the segment.
    pub incarnation: Incarnation,
    /// Grows with each segment of the area.
    pub sequence: u64,
    /// LSN of the last operation before the segment.
    pub base: Lsn,
    /// The segment it continues; 0 is none.
    pub previous: u64,
    /// Nothing of that segment behind this LSN is ever replayed.
    pub replayed_to: Lsn,
    /// Where the journal lies.
    pub area: Area,
}

/// What a header sector may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderSector {
    /// Zeros: never used.
    Blank,
    /// A header.
    Valid(SegmentHeader),
    /// Neither.
    Bad(HeaderFault),
}

/// What is wrong with a header sector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderFault {
    /// Magic or CRC do not fit.
    Damaged,
    /// A version or flag that this program does not know.
    Version(u32),
    /// A good header, of something else: the field that differs.
    Foreign(&'static str),
}

pub(crate) fn put(bytes: &mut [u8], at: Field, value: &[u8]) {
    bytes[at.offset..at.offset + at.size].copy_from_slice(value);
}

pub(crate) fn u16_at(bytes: &[u8], at: Field) -> u16 {
    u16::from_le_bytes(fixed(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: Field) -> u32 {
    u32::from_le_bytes(fixed(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: Field) -> u64 {
    u64::from_le_bytes(fixed(bytes, at))
}

pub(crate) fn u128_at(bytes: &[u8], at: Field) -> u128 {
    u128::from_le_bytes(fixed(bytes, at))
}

fn fixed<const N: usize>(bytes: &[u8], at: Field) -> [u8; N] {
    bytes[at.offset..at.offset + at.size]
        .try_into()
        .expect("the layout table has the type's size")
}

impl SegmentHeader {
    /// Appends one sector.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        let f = &SEGMENT_HEADER;
        let begin = out.len();
        out.resize(begin + SECTOR, 0);
        let b = &mut out[begin..];
        let flags = if self.is_retired { FLAG_RETIRED } else { 0 };
        put(b, f[0], &SEGMENT_MAGIC.to_le_bytes());
        put(b, f[1], &FORMAT_VERSION.to_le_bytes());
        put(b, f[2], &flags.to_le_bytes());
        put(b, f[3], &self.fs.0.to_le_bytes());
        put(b, f[4], &self.incarnation.0.to_le_bytes());
        put(b, f[5], &self.sequence.to_le_bytes());
        put(b, f[6], &self.base.0.to_le_bytes());
        put(b, f[7], &self.previous.to_le_bytes());
        put(b, f[8], &self.replayed_to.0.to_le_bytes());
        put(b, f[9], &self.area.begin.to_le_bytes());
        put(b, f[10], &self.area.count.to_le_bytes());
        put(b, f[11], &self.owner.0.to_le_bytes());
        put(b, f[12], &self.area.nsd.0.to_le_bytes());
        let crc = crc32c(&b[..SEGMENT_CRC_AT]);
        put(b, f[13], &crc.to_le_bytes());
    }

    /// Reads a header sector of a journal that should be `fs`'s and `owner`'s in `area`.
    pub fn read(bytes: &[u8], fs: FsId, owner: NodeId, area: Area) -> HeaderSector {
        assert_eq!(bytes.len(), SECTOR);
        let f = &SEGMENT_HEADER;
        if bytes.iter().all(|b| *b == 0) {
            return HeaderSector::Blank;
        }
        let crc = u32_at(bytes, f[13]);
        if u64_at(bytes, f[0]) != SEGMENT_MAGIC || crc != crc32c(&bytes[..SEGMENT_CRC_AT]) {
            return HeaderSector::Bad(HeaderFault::Damaged);
        }
        let (version, flags) = (u32_at(bytes, f[1]), u32_at(bytes, f[2]));
        if version != FORMAT_VERSION || flags & !FLAG_RETIRED != 0 {
            return HeaderSector::Bad(HeaderFault::Version(version));
        }
        let header = Self {
            is_retired: flags & FLAG_RETIRED != 0,
            fs: FsId(u128_at(bytes, f[3])),
            incarnation: Incarnation(u128_at(bytes, f[4])),
            sequence: u64_at(bytes, f[5]),
            base: Lsn(u64_at(bytes, f[6])),
            previous: u64_at(bytes, f[7]),
            replayed_to: Lsn(u64_at(bytes, f[8])),
            area: Area {
                begin: u64_at(bytes, f[9]),
                count: u64_at(bytes, f[10]),
                nsd: NsdId(u16_at(bytes, f[12])),
            },
            owner: NodeId(u16_at(bytes, f[11])),
        };
        let foreign = if header.fs != fs {
            Some("file system id")
        } else if header.owner != owner {
            Some("owner node")
        } else if header.area != area {
            Some("area")
        } else {
            None
        };
        match foreign {
            Some(field) => HeaderSector::Bad(HeaderFault::Foreign(field)),
            None => HeaderSector::Valid(header),
        }
    }

    /// What every record of the segment carries: differs between any two segments of an area.
    pub fn tag(&self) -> u64 {
        let random = self.incarnation.0 ^ (self.incarnation.0 >> 64);
        #[allow(
            clippy::cast_possible_truncation,
            reason = "folds 128 random bits into 64"
        )]
        let random = random as u64;
        random ^ self.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// What the first record of the segment chains to.
    pub fn chain(&self) -> u32 {
        let mut sector = Vec::new();
        self.encode_to(&mut sector);
        crc32c(&sector)
    }
}

/// The fixed part of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// Bytes with all parts, without the padding to `RECORD_ALIGN`.
    pub length: usize,
    /// LSN.
    pub lsn: Lsn,
    /// The segment's tag.
    pub tag: u64,
    /// What was durable when the record was appended.
    pub durable: Lsn,
    /// What it is.
    pub kind: RecordKind,
    /// Parts.
    pub part_count: u16,
    /// `crc` of the record before, or the segment header's chain.
    pub previous: u32,
    /// CRC32C of the parts.
    pub body_crc: u32,
    /// CRC32C of the header: what the next record chains to.
    pub crc: u32,
}

impl RecordHeader {
    /// Writes the header over the first `RECORD_HEADER_SIZE` bytes; returns its CRC.
    pub fn encode_over(&self, b: &mut [u8]) -> u32 {
        let f = &RECORD_HEADER;
        let length = u32::try_from(self.length).expect("records are at most RECORD_SIZE_MAX");
        put(b, f[0], &RECORD_MAGIC.to_le_bytes());
        put(b, f[1], &length.to_le_bytes());
        put(b, f[2], &self.lsn.0.to_le_bytes());
        put(b, f[3], &self.tag.to_le_bytes());
        put(b, f[4], &self.durable.0.to_le_bytes());
        put(b, f[5], &[self.kind.number()]);
        put(b, f[6], &[0]);
        put(b, f[7], &self.part_count.to_le_bytes());
        put(b, f[8], &self.previous.to_le_bytes());
        put(b, f[9], &self.body_crc.to_le_bytes());
        let crc = crc32c(&b[..RECORD_HEADER_SIZE - 4]);
        put(b, f[10], &crc.to_le_bytes());
        crc
    }

    /// The header at the start of `bytes` if there is one that is whole in itself.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let f = &RECORD_HEADER;
        let crc = u32_at(bytes, f[10]);
        if u32_at(bytes, f[0]) != RECORD_MAGIC || crc != crc32c(&bytes[..RECORD_HEADER_SIZE - 4]) {
            return None;
        }
        let kind = match bytes[f[5].offset] {
            1 => RecordKind::Operation,
            2 => RecordKind::Snapshot,
            3 => RecordKind::End,
            _ => return None,
        };
        let length = u32_at(bytes, f[1]) as usize;
        (RECORD_HEADER_SIZE..=RECORD_SIZE_MAX)
            .contains(&length)
            .then(|| Self {
                length,
                lsn: Lsn(u64_at(bytes, f[2])),
                tag: u64_at(bytes, f[3]),
                durable: Lsn(u64_at(bytes, f[4])),
                kind,
                part_count: u16_at(bytes, f[7]),
                previous: u32_at(bytes, f[8]),
                body_crc: u32_at(bytes, f[9]),
                crc,
            })
    }
}

/// Appends a part to a record's bytes.
pub fn encode_part(key: PartKey, epoch: Epoch, bytes: &[u8], out: &mut Vec<u8>) {
    let (kind, shard) = match key {
        PartKey::Shard(shard) => (1, shard),
        PartKey::Space => (2, ShardId(0)),
        PartKey::RegionTable => (3, ShardId(0)),
    };
    let f = &PART_HEADER;
    let length = u32::try_from(bytes.len()).expect("records are at most RECORD_SIZE_MAX");
    let mut header = [0; PART_HEADER_SIZE];
    put(&mut header, f[0], &[kind]);
    put(&mut header, f[2], &shard.0.to_le_bytes());
    put(&mut header, f[3], &length.to_le_bytes());
    put(&mut header, f[4], &epoch.0.to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(bytes);
}

/// A part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedPart<'a> {
    /// Whose.
    pub key: PartKey,
    /// Epoch of the shard.
    pub epoch: Epoch,
    /// The mutations.
    pub bytes: &'a [u8],
}

/// Takes the first part off the front of `body`.
pub fn decode_part<'a>(body: &mut &'a [u8]) -> Result<DecodedPart<'a>, DecodeError> {
    let what = "journal part";
    let f = &PART_HEADER;
    if body.len() < PART_HEADER_SIZE {
        return Err(DecodeError::Short { what });
    }
    let (header, rest) = body.split_at(PART_HEADER_SIZE);
    let key = match header[0] {
        1 => PartKey::Shard(ShardId(u16_at(header, f[2]))),
        2 => PartKey::Space,
        3 => PartKey::RegionTable,
        kind => {
            return Err(DecodeError::Unknown {
                what,
                value: kind.into(),
            });
        }
    };
    let length = u32_at(header, f[3]) as usize;
    if rest.len() < length {
        return Err(DecodeError::Short { what });
    }
    let (bytes, rest) = rest.split_at(length);
    *body = rest;
    let epoch = Epoch(u64_at(header, f[4]));
    Ok(DecodedPart { key, epoch, bytes })
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]
mod tests {
    use super::*;

    fn whole(fields: &[Field], size: usize, gap: Option<(usize, usize)>) {
        let mut at = 0;
        for field in fields {
            if let Some((begin, end)) = gap
                && at == begin
            {
                at = end;
            }
            assert_eq!(field.offset, at, "{}", field.name);
            at += field.size;
        }
        assert_eq!(at, size);
    }

    #[test]
    fn layouts_have_no_holes() {
        whole(&SEGMENT_HEADER, 512, Some((100, SEGMENT_CRC_AT)));
        whole(&RECORD_HEADER, RECORD_HEADER_SIZE, None);
        whole(&PART_HEADER, PART_HEADER_SIZE, None);
    }

    #[test]
    fn the_document_shows_these_layouts() {
        let document = include_str!("../../../docs/disk-format.md");
        for table in [&SEGMENT_HEADER[..], &RECORD_HEADER[..], &PART_HEADER[..]] {
            let rows: String = table
                .iter()
                .map(|f| format!("| {} | {} | {} |\n", f.offset, f.size, f.name))
                .collect();
            assert!(document.contains(&rows), "disk-format.md lacks:\n{rows}");
        }
    }

    fn header() -> SegmentHeader {
        SegmentHeader {
            is_retired: false,
            fs: FsId(1 << 100),
            owner: NodeId(3),
            incarnation: Incarnation(77 << 64),
            sequence: 9,
            base: Lsn(10),
            previous: 8,
            replayed_to: Lsn(u64::MAX),
            area: Area {
                nsd: NsdId(2),
                begin: 64,
                count: 4096,
            },
        }
    }

    #[test]
    fn every_bit_flip_of_a_header_is_seen() {
        let header = header();
        let mut sector = Vec::new();
        header.encode_to(&mut sector);
        let read = |s: &[u8]| SegmentHeader::read(s, header.fs, header.owner, header.area);
        assert_eq!(read(&sector), HeaderSector::Valid(header));
        for bit in 0..512 * 8 {
            sector[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&sector), HeaderSector::Bad(HeaderFault::Damaged));
            sector[bit / 8] ^= 1 << (bit % 8);
        }
        let other = SegmentHeader::read(&sector, FsId(5), header.owner, header.area);
        assert_eq!(
            other,
            HeaderSector::Bad(HeaderFault::Foreign("file system id"))
        );
    }

    #[test]
    fn tags_differ_between_the_segments_of_an_incarnation() {
        let tags: std::collections::BTreeSet<u64> = (0..1000)
            .map(|sequence| {
                SegmentHeader {
                    sequence,
                    ..header()
                }
                .tag()
            })
            .collect();
        assert_eq!(tags.len(), 1000);
    }
}
