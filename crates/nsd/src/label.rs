//! The on-disk label of an NSD: what it is, whom it belongs to, and how its sectors are laid out.
//!
//! ```text
//! sector 0        label, copy 0          sector 33..64   cluster view, slot 1
//! sector 1        label, copy 1          sector 64..256  reserved, zero
//! sector 2..33    cluster view, slot 0   sector 256..    journal areas, then data from data_begin
//! ```
//! Of the reserved sectors 64 and 128 hold marks (`crate::mark`).
//!
//! Invariants
//! - A label is exactly one sector. Magic (offset 0), format version (8) and CRC32C (4092, over all
//!   bytes before it) keep their places in every version, so that a newer label is always told from
//!   a damaged one.
//! - The two copies are written one after the other, copy 1 first, each followed by a flush; the one
//!   with the higher revision counts. So a crash leaves at least one good copy.
//! - Bytes that other formats use for their signatures (510, 1080, 4086) are reserved and zero, so
//!   that no damaged label looks like another file system.
//! - Everything before `data_begin` belongs to the label and the journals and is never granted.
//!
//! What this deliberately does not do: find disks, read or write them (that is `os`).

mod foreign;
mod layout;
mod raw;
mod view;

pub use foreign::Foreign;
pub use layout::{LayoutError, Spec, journal_sector_count, sector_count_min};
pub use raw::{FIELDS, Field, MAGIC};
pub use view::{VIEW_SLOT_SECTORS, ViewSlots, ViewTooLarge, decode_views, encode_view};

use raw::CopyState;
use thiserror::Error;
use types::{ClusterId, FsId, NodeId, NsdId, NsdView, SECTOR_SIZE, Timestamp};

/// Bytes of a label copy.
pub const LABEL_SIZE: usize = 4096;
/// Sectors that hold a copy of the label: the first ones of the NSD.
pub const COPY_COUNT: usize = 2;
/// Sectors to read before `decode`: label copies, view slots, and the places where other formats
/// have their signatures.
pub const HEAD_SECTORS: u64 = 64;
/// First sector that a journal area or data may use (1 MiB: aligned for every stripe width).
pub const RESERVED_SECTORS: u64 = 256;
/// Most journal areas on one NSD.
pub const JOURNAL_COUNT_MAX: usize = 16;
/// Bytes of the longest NSD name.
pub const NSD_NAME_SIZE_MAX: usize = 64;
/// Bytes of the longest storage pool name.
pub const POOL_NAME_SIZE_MAX: usize = 32;
/// Format version that this program writes and the newest it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Incompatible feature: directories may be in parts, in journals and trees.
pub const DIRECTORY_PARTS: u64 = 1;
/// Incompatible feature bits that this program knows: with any other set the NSD is refused.
pub const FEATURES_INCOMPATIBLE: u64 = DIRECTORY_PARTS;

/// What an NSD may hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Usage {
    /// File data only.
    Data,
    /// Journals and metadata only.
    Metadata,
    /// Both.
    Both,
}

impl Usage {
    /// File data may lie here.
    pub const fn holds_data(self) -> bool {
        matches!(self, Self::Data | Self::Both)
    }

    /// Journals and metadata may lie here.
    pub const fn holds_metadata(self) -> bool {
        matches!(self, Self::Metadata | Self::Both)
    }
}

/// The journal of an owner node on this NSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct JournalArea {
    /// The owner node.
    pub owner: NodeId,
    /// Its first sector.
    pub first_sector: u64,
    /// Sectors.
    pub sector_count: u64,
}

/// The label of an NSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file system.
    pub fs: FsId,
    /// The NSD.
    pub nsd: NsdId,
    /// Its name: 1 to 64 bytes of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Grows with every rewriting of the label; the first is 1.
    pub revision: u64,
    /// NSDs of one group may fail together.
    pub failure_group: u16,
    /// What may lie here.
    pub usage: Usage,
    /// Storage pool: 1 to 32 bytes of `[A-Za-z0-9._-]`.
    pub pool: String,
    /// Sectors of the whole NSD.
    pub sector_count: u64,
    /// Journal areas, ascending, disjoint, between `RESERVED_SECTORS` and `data_begin`.
    pub journals: Vec<JournalArea>,
    /// First sector that may be granted.
    pub data_begin: u64,
    /// Sectors of a region; regions count from `data_begin`, the last may be shorter.
    pub region_sectors: u64,
    /// Stripe unit of the file system in bytes.
    pub block_size: u32,
    /// Key of the name hash of the file system.
    pub hash_key: u128,
    /// Shards of the file system at its creation.
    pub shard_count: u16,
    /// When the file system was created.
    pub created: Timestamp,
    /// Feature bits without which this NSD must not be used.
    pub features_incompatible: u64,
    /// Feature bits that a program may ignore.
    pub features_compatible: u64,
}

/// Whom an NSD is expected to belong to; `None` accepts any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Expected {
    /// The cluster.
    pub cluster: Option<ClusterId>,
    /// The file system.
    pub fs: Option<FsId>,
    /// The NSD.
    pub nsd: Option<NsdId>,
}

/// A label as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// The label that counts.
    pub label: Label,
    /// Copies that are damaged or older and should be written again.
    pub copies_to_repair: Vec<usize>,
}

/// Why an NSD cannot be used with what its first sectors hold.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LabelError {
    /// Fewer bytes were given than the label copies need.
    #[error("the disk's first {needed} bytes are needed, {found} were read")]
    Short {
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// All bytes are zero: a fresh disk, to be labelled with `gupfs nsd create`.
    #[error("no label: the disk's first sectors are empty ('gupfs fs create' writes one)")]
    Blank,
    /// Another format's data is there: not ours, do not touch.
    #[error("no GUPFS label: the disk holds {found}")]
    Foreign {
        /// What it looks like.
        found: Foreign,
    },
    /// Copy 0 was overwritten by another format while copy 1 is still ours: somebody made another
    /// file system over this NSD. Stop, and let a human look.
    #[error(
        "NSD '{name}' (id {nsd}) was overwritten with {found}: only copy 1 of its label is left"
    )]
    Overwritten {
        /// What was put over it.
        found: Foreign,
        /// Name in the copy that is left.
        name: String,
        /// Id in the copy that is left.
        nsd: NsdId,
    },
    /// Neither copy can be used: restore from another NSD's records or recreate.
    #[error("both copies of the label are damaged: copy 0: {copy0}, copy 1: {copy1}")]
    Damaged {
        /// What is wrong with copy 0.
        copy0: Damage,
        /// What is wrong with copy 1.
        copy1: Damage,
    },
    /// A newer program wrote it: upgrade this one.
    #[error("the label has format version {found}, this program knows up to {known}: upgrade it")]
    NewerVersion {
        /// Version on disk.
        found: u32,
        /// Newest version known here.
        known: u32,
    },
    /// It uses features that this program lacks: upgrade.
    #[error("the label has incompatible feature bits {unknown:#x} that this program does not know")]
    UnknownFeatures {
        /// The bits not known.
        unknown: u64,
    },
    /// The label is good but belongs elsewhere.
    #[error("NSD '{name}' has another {field}: {found:x} instead of {expected:x}")]
    Mismatch {
        /// `cluster id`, `file system id` or `NSD id`.
        field: &'static str,
        /// Name in the label.
        name: String,
        /// Value in the label.
        found: u128,
        /// Value that was expected.
        expected: u128,
    },
    /// Its mark is older than what another NSD has seen of it: an older copy was put back.
    #[error(
        "NSD '{name}' is an older copy, of generation {generation}: {by} has seen it in use in generation {seen}"
    )]
    Older {
        /// Name in the label.
        name: String,
        /// The generation that its own mark names; 0: it has none.
        generation: u64,
        /// A later one in which it was used.
        seen: u64,
        /// Who says so.
        by: NsdId,
    },
    /// The disk has fewer sectors than its label says (truncated file, wrong device).
    #[error("NSD '{name}': the disk has {found} sectors, its label says {expected}")]
    Shrunk {
        /// Name in the label.
        name: String,
        /// Sectors of the disk.
        found: u64,
        /// Sectors in the label.
        expected: u64,
    },
}

/// What is wrong with one copy of a label.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Damage {
    /// The sector is zero.
    #[error("empty")]
    Empty,
    /// The magic is not there.
    #[error("no magic")]
    Magic,
    /// The checksum does not match.
    #[error("checksum {computed:08x} instead of {stored:08x}")]
    Checksum {
        /// In the sector.
        stored: u32,
        /// Of the sector's bytes.
        computed: u32,
    },
    /// The checksum matches but a field is impossible: a bug of whoever wrote it.
    #[error("field '{field}' has the impossible value {value}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

impl Label {
    /// The bytes of copy `copy` (0 or 1), to be written to sector `copy`.
    ///
    /// # Panics
    /// If the label is not valid (`Label::validate`) or `copy` is not below `COPY_COUNT`.
    pub fn encode(&self, copy: usize) -> Box<[u8; LABEL_SIZE]> {
        assert!(copy < COPY_COUNT);
        if let Err(damage) = self.validate() {
            panic!("a label that cannot be read back must not be written: {damage}");
        }
        raw::encode(self, copy)
    }

    /// The first `HEAD_SECTORS` sectors of a new NSD: both copies and empty view slots.
    pub fn encode_head(&self) -> Vec<u8> {
        let size = usize::try_from(HEAD_SECTORS * SECTOR_SIZE).expect("256 KiB");
        let mut head = vec![0; size];
        for copy in 0..COPY_COUNT {
            head[copy * LABEL_SIZE..][..LABEL_SIZE].copy_from_slice(&self.encode(copy)[..]);
        }
        head
    }

    /// The label in `head`: the first `HEAD_SECTORS` sectors of the disk (the two copies at least;
    /// with less than all of it, some foreign formats are not recognised).
    ///
    /// # Errors
    /// Says what is there instead; `Label::check` then compares with what is expected.
    pub fn decode(head: &[u8]) -> Result<Decoded, LabelError> {
        let needed = COPY_COUNT * LABEL_SIZE;
        if head.len() < needed {
            return Err(LabelError::Short {
                needed,
                found: head.len(),
            });
        }
        let copy0 = raw::decode_copy(&head[..LABEL_SIZE], 0);
        let copy1 = raw::decode_copy(&head[LABEL_SIZE..needed], 1);
        // Only where our magic is missing: nothing of ours can be taken for another format then.
        let foreign = match copy0 {
            CopyState::Empty | CopyState::NoMagic => Foreign::recognise(head),
            CopyState::Good(_)
            | CopyState::Damaged(_)
            | CopyState::Newer(_)
            | CopyState::Features(_) => None,
        };
        choose(copy0, copy1, foreign, head.iter().all(|byte| *byte == 0))
    }

    /// Compares the label with what is expected and with the disk's size in sectors.
    ///
    /// # Errors
    /// `Mismatch` naming the first field that differs, `Shrunk` if the disk is too small for it.
    pub fn check(&self, expected: &Expected, sector_count: u64) -> Result<(), LabelError> {
        let fields = [
            (
                "cluster id",
                self.cluster.0,
                expected.cluster.map(|id| id.0),
            ),
            ("file system id", self.fs.0, expected.fs.map(|id| id.0)),
            (
                "NSD id",
                u128::from(self.nsd.0),
                expected.nsd.map(|id| u128::from(id.0)),
            ),
        ];
        for (field, found, expected) in fields {
            if let Some(expected) = expected.filter(|expected| *expected != found) {
                return Err(LabelError::Mismatch {
                    field,
                    name: self.name.clone(),
                    found,
                    expected,
                });
            }
        }
        if sector_count < self.sector_count {
            return Err(LabelError::Shrunk {
                name: self.name.clone(),
                found: sector_count,
                expected: self.sector_count,
            });
        }
        Ok(())
    }

    /// The journal area of `owner` on this NSD.
    pub fn journal(&self, owner: NodeId) -> Option<&JournalArea> {
        self.journals.iter().find(|area| area.owner == owner)
    }

    /// What the cluster view says of this NSD. `has_volatile_cache` is the disk's.
    pub fn nsd_view(&self, servers: Vec<NodeId>, has_volatile_cache: bool) -> NsdView {
        NsdView {
            id: self.nsd,
            servers,
            sector_count: self.sector_count,
            data_begin: self.data_begin,
            failure_group: self.failure_group,
            has_volatile_cache,
        }
    }

    /// Sectors that may be granted.
    pub fn data_sector_count(&self) -> u64 {
        self.sector_count - self.data_begin
    }

    /// Regions on this NSD; the last may be shorter than `region_sectors`.
    pub fn region_count(&self) -> u64 {
        self.data_sector_count().div_ceil(self.region_sectors)
    }

    /// Names the first field whose value is impossible.
    ///
    /// # Errors
    /// `Damage::Field`.
    pub fn validate(&self) -> Result<(), Damage> {
        let wrong = |field, value| Err(Damage::Field { field, value });
        if !is_name(&self.name, NSD_NAME_SIZE_MAX) {
            return wrong("name", self.name.len() as u64);
        }
        if !is_name(&self.pool, POOL_NAME_SIZE_MAX) {
            return wrong("pool", self.pool.len() as u64);
        }
        if self.journals.len() > JOURNAL_COUNT_MAX {
            return wrong("journal count", self.journals.len() as u64);
        }
        if !is_block_size(self.block_size) {
            return wrong("block size", self.block_size.into());
        }
        if self.region_sectors == 0 {
            return wrong("region sectors", 0);
        }
        if self.shard_count == 0 {
            return wrong("shard count", 0);
        }
        if self.revision == 0 {
            return wrong("revision", 0);
        }
        let mut end = RESERVED_SECTORS;
        for (index, area) in self.journals.iter().enumerate() {
            let is_known = self.journals[..index].iter().any(|a| a.owner == area.owner);
            if area.owner == NodeId(0) || is_known {
                return wrong("journal owner", area.owner.0.into());
            }
            if area.first_sector < end {
                return wrong("journal first sector", area.first_sector);
            }
            if area.sector_count == 0 || area.sector_count > self.sector_count {
                return wrong("journal sector count", area.sector_count);
            }
            end = match area.first_sector.checked_add(area.sector_count) {
                Some(end) => end,
                None => return wrong("journal first sector", area.first_sector),
            };
        }
        if self.data_begin < end || self.data_begin >= self.sector_count {
            return wrong("data begin", self.data_begin);
        }
        if self.sector_count > u64::MAX / SECTOR_SIZE {
            return wrong("sector count", self.sector_count);
        }
        Ok(())
    }
}

/// Which copy counts: one row per pair of states, none left out.
fn choose(
    copy0: CopyState,
    copy1: CopyState,
    foreign: Option<Foreign>,
    is_blank: bool,
) -> Result<Decoded, LabelError> {
    use CopyState::{Damaged, Empty, Features, Good, Newer, NoMagic};
    match (copy0, copy1) {
        (Good(label0), Good(label1)) => Ok(newest(*label0, *label1)),
        (Newer(found), _) | (_, Newer(found)) => Err(LabelError::NewerVersion {
            found,
            known: FORMAT_VERSION,
        }),
        (Features(unknown), _) | (_, Features(unknown)) => {
            Err(LabelError::UnknownFeatures { unknown })
        }
        (Good(label), Damaged(_) | Empty | NoMagic) => Ok(Decoded {
            label: *label,
            copies_to_repair: vec![1],
        }),
        (Damaged(_), Good(label)) => Ok(Decoded {
            label: *label,
            copies_to_repair: vec![0],
        }),
        (Empty | NoMagic, Good(label)) => match foreign {
            Some(found) => Err(LabelError::Overwritten {
                found,
                name: label.name,
                nsd: label.nsd,
            }),
            None => Ok(Decoded {
                label: *label,
                copies_to_repair: vec![0],
            }),
        },
        (copy0 @ Damaged(_), copy1) | (copy0, copy1 @ Damaged(_)) => Err(LabelError::Damaged {
            copy0: copy0.damage(),
            copy1: copy1.damage(),
        }),
        (Empty | NoMagic, Empty | NoMagic) => Err(match foreign {
            Some(found) => LabelError::Foreign { found },
            None if is_blank => LabelError::Blank,
            None => LabelError::Foreign {
                found: Foreign::Unknown,
            },
        }),
    }
}

fn newest(label0: Label, label1: Label) -> Decoded {
    // Copy 1 is written first, so after a crash in between it is the newer one.
    match label0.revision.cmp(&label1.revision) {
        std::cmp::Ordering::Equal => Decoded {
            label: label0,
            copies_to_repair: Vec::new(),
        },
        std::cmp::Ordering::Greater => Decoded {
            label: label0,
            copies_to_repair: vec![1],
        },
        std::cmp::Ordering::Less => Decoded {
            label: label1,
            copies_to_repair: vec![0],
        },
    }
}

fn is_name(text: &str, size_max: usize) -> bool {
    (1..=size_max).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

fn is_block_size(bytes: u32) -> bool {
    bytes.is_power_of_two() && (64 << 10..=16 << 20).contains(&bytes)
}

#[cfg(test)]
mod tests;
