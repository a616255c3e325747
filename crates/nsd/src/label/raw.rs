//! The label's bytes: one fixed little-endian layout, from which `FIELDS` is derived.

use std::mem::{offset_of, size_of};

use types::{ClusterId, FsId, NodeId, NsdId, Timestamp};
use zerocopy::byteorder::little_endian::{I64, U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    Damage, FEATURES_INCOMPATIBLE, FORMAT_VERSION, JOURNAL_COUNT_MAX, JournalArea, LABEL_SIZE,
    Label, NSD_NAME_SIZE_MAX, POOL_NAME_SIZE_MAX, Usage,
};
use types::checksum::crc32c;

/// What a label begins with.
pub const MAGIC: [u8; 8] = *b"GUPFSNSD";

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawArea {
    owner: U16,
    reserved: [u8; 6],
    first_sector: U64,
    sector_count: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawLabel {
    magic: [u8; 8],
    version: U32,
    copy: u8,
    usage: u8,
    nsd: U16,
    features_incompatible: U64,
    features_compatible: U64,
    cluster: U128,
    fs: U128,
    hash_key: U128,
    revision: U64,
    sector_count: U64,
    data_begin: U64,
    region_sectors: U64,
    block_size: U32,
    shard_count: U16,
    failure_group: U16,
    created_secs: I64,
    created_nanos: U32,
    name_size: u8,
    pool_size: u8,
    journal_count: U16,
    name: [u8; NSD_NAME_SIZE_MAX],
    pool: [u8; POOL_NAME_SIZE_MAX],
    reserved0: [u8; 384],
    journals: [RawArea; 16],
    reserved1: [u8; 3092],
    crc: U32,
}

/// A field of the label as the documents show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Byte offset in the sector.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

macro_rules! fields {
    ($($name:ident: $size:expr),* $(,)?) => {
        &[$(Field { name: stringify!($name), offset: offset_of!(RawLabel, $name), size: $size }),*]
    };
}

/// The label's byte layout, in order and without holes.
pub const FIELDS: &[Field] = fields! {
    magic: 8, version: 4, copy: 1, usage: 1, nsd: 2, features_incompatible: 8,
    features_compatible: 8, cluster: 16, fs: 16, hash_key: 16, revision: 8, sector_count: 8,
    data_begin: 8, region_sectors: 8, block_size: 4, shard_count: 2, failure_group: 2,
    created_secs: 8, created_nanos: 4, name_size: 1, pool_size: 1, journal_count: 2, name: 64,
    pool: 32, reserved0: 384, journals: 16 * size_of::<RawArea>(), reserved1: 3092, crc: 4,
};

const _: () = {
    assert!(size_of::<RawLabel>() == LABEL_SIZE);
    assert!(offset_of!(RawLabel, version) == 8);
    assert!(offset_of!(RawLabel, crc) == LABEL_SIZE - 4);
    // The signatures of MBR (510) and ext (1080) fall into reserved bytes.
    assert!(offset_of!(RawLabel, reserved0) <= 510);
    assert!(offset_of!(RawLabel, journals) >= 512);
    assert!(offset_of!(RawLabel, reserved1) <= 1080);
};

/// What one sector holds where a copy of a label should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum CopyState {
    /// A label that this program can use.
    Good(Box<Label>),
    /// Our magic, but not usable.
    Damaged(Damage),
    /// Nothing but zeros.
    Empty,
    /// Something without our magic.
    NoMagic,
    /// A whole label of a newer format version.
    Newer(u32),
    /// A whole label with incompatible features not known here.
    Features(u64),
}

impl CopyState {
    pub(super) fn damage(&self) -> Damage {
        match self {
            Self::Damaged(damage) => *damage,
            Self::Empty => Damage::Empty,
            Self::NoMagic => Damage::Magic,
            Self::Good(_) | Self::Newer(_) | Self::Features(_) => {
                unreachable!("a whole copy is not asked for its damage")
            }
        }
    }
}

pub(super) fn encode(label: &Label, copy: usize) -> Box<[u8; LABEL_SIZE]> {
    let mut raw = RawLabel::new_zeroed();
    raw.magic = MAGIC;
    raw.version = FORMAT_VERSION.into();
    raw.copy = small(copy);
    raw.usage = match label.usage {
        Usage::Data => 1,
        Usage::Metadata => 2,
        Usage::Both => 3,
    };
    raw.nsd = label.nsd.0.into();
    raw.features_incompatible = label.features_incompatible.into();
    raw.features_compatible = label.features_compatible.into();
    raw.cluster = label.cluster.0.into();
    raw.fs = label.fs.0.into();
    raw.hash_key = label.hash_key.into();
    raw.revision = label.revision.into();
    raw.sector_count = label.sector_count.into();
    raw.data_begin = label.data_begin.into();
    raw.region_sectors = label.region_sectors.into();
    raw.block_size = label.block_size.into();
    raw.shard_count = label.shard_count.into();
    raw.failure_group = label.failure_group.into();
    raw.created_secs = label.created.secs.into();
    raw.created_nanos = label.created.nanos.into();
    raw.name_size = small(label.name.len());
    raw.pool_size = small(label.pool.len());
    raw.journal_count = u16::from(small(label.journals.len())).into();
    raw.name[..label.name.len()].copy_from_slice(label.name.as_bytes());
    raw.pool[..label.pool.len()].copy_from_slice(label.pool.as_bytes());
    for (raw, area) in raw.journals.iter_mut().zip(&label.journals) {
        raw.owner = area.owner.0.into();
        raw.first_sector = area.first_sector.into();
        raw.sector_count = area.sector_count.into();
    }
    let crc = crc32c(&raw.as_bytes()[..LABEL_SIZE - 4]);
    raw.crc = crc.into();
    let mut bytes = Box::new([0; LABEL_SIZE]);
    bytes.copy_from_slice(raw.as_bytes());
    bytes
}

fn small(value: usize) -> u8 {
    u8::try_from(value).expect("a validated label has no size above 64")
}

pub(super) fn decode_copy(sector: &[u8], copy: usize) -> CopyState {
    let raw = RawLabel::ref_from_bytes(sector).expect("the caller cuts out one sector");
    if raw.magic != MAGIC {
        return match sector.iter().all(|byte| *byte == 0) {
            true => CopyState::Empty,
            false => CopyState::NoMagic,
        };
    }
    let computed = crc32c(&sector[..LABEL_SIZE - 4]);
    let stored = raw.crc.get();
    if stored != computed {
        return CopyState::Damaged(Damage::Checksum { stored, computed });
    }
    if raw.version.get() > FORMAT_VERSION {
        return CopyState::Newer(raw.version.get());
    }
    let unknown = raw.features_incompatible.get() & !FEATURES_INCOMPATIBLE;
    if unknown != 0 {
        return CopyState::Features(unknown);
    }
    match from_raw(raw, copy) {
        Ok(label) => CopyState::Good(Box::new(label)),
        Err(damage) => CopyState::Damaged(damage),
    }
}

fn from_raw(raw: &RawLabel, copy: usize) -> Result<Label, Damage> {
    let wrong = |field, value| Damage::Field { field, value };
    if raw.version.get() == 0 {
        return Err(wrong("version", 0));
    }
    if usize::from(raw.copy) != copy {
        return Err(wrong("copy", raw.copy.into()));
    }
    let usage = match raw.usage {
        1 => Usage::Data,
        2 => Usage::Metadata,
        3 => Usage::Both,
        other => return Err(wrong("usage", other.into())),
    };
    let count = usize::from(raw.journal_count.get());
    if count > JOURNAL_COUNT_MAX {
        return Err(wrong("journal count", raw.journal_count.get().into()));
    }
    if raw.created_nanos.get() >= 1_000_000_000 {
        return Err(wrong("created", raw.created_nanos.get().into()));
    }
    let journals = raw.journals[..count]
        .iter()
        .map(|area| JournalArea {
            owner: NodeId(area.owner.get()),
            first_sector: area.first_sector.get(),
            sector_count: area.sector_count.get(),
        })
        .collect();
    let label = Label {
        cluster: ClusterId(raw.cluster.get()),
        fs: FsId(raw.fs.get()),
        nsd: NsdId(raw.nsd.get()),
        name: text(&raw.name, raw.name_size, "name")?,
        revision: raw.revision.get(),
        failure_group: raw.failure_group.get(),
        usage,
        pool: text(&raw.pool, raw.pool_size, "pool")?,
        sector_count: raw.sector_count.get(),
        journals,
        data_begin: raw.data_begin.get(),
        region_sectors: raw.region_sectors.get(),
        block_size: raw.block_size.get(),
        hash_key: raw.hash_key.get(),
        shard_count: raw.shard_count.get(),
        created: Timestamp {
            secs: raw.created_secs.get(),
            nanos: raw.created_nanos.get(),
        },
        features_incompatible: raw.features_incompatible.get(),
        features_compatible: raw.features_compatible.get(),
    };
    label.validate()?;
    Ok(label)
}

fn text(bytes: &[u8], size: u8, field: &'static str) -> Result<String, Damage> {
    let wrong = Damage::Field {
        field,
        value: size.into(),
    };
    let bytes = bytes.get(..usize::from(size)).ok_or(wrong)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| wrong)
}
