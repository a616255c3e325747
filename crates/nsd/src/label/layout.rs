//! Lays a new NSD out: journal areas, data, regions.

use thiserror::Error;
use types::{ClusterId, FsId, NodeId, NsdId, SECTOR_SIZE, Timestamp, limits};

use super::{
    JOURNAL_COUNT_MAX, JournalArea, Label, NSD_NAME_SIZE_MAX, POOL_NAME_SIZE_MAX, RESERVED_SECTORS,
    Usage, is_block_size, is_name,
};

const MIB: u64 = (1 << 20) / SECTOR_SIZE;
/// Everything is laid out in steps of 1 MiB.
const ALIGN: u64 = MIB;
/// Smallest NSD without and with journals, before their areas make it larger: 64 MiB.
const NSD_SECTORS_MIN: u64 = 64 * MIB;
/// Smallest and largest journal area: 16 MiB and 1 GiB.
const JOURNAL_SECTORS_MIN: u64 = 16 * MIB;
const JOURNAL_SECTORS_MAX: u64 = 1024 * MIB;
/// Data that every NSD has room for.
const DATA_SECTORS_MIN: u64 = 16 * MIB;
/// Smallest and largest region: 64 MiB and 1 GiB.
const REGION_SECTORS_MIN: u64 = 64 * MIB;
const REGION_SECTORS_MAX: u64 = 1024 * MIB;

/// What a new label says besides its layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file system.
    pub fs: FsId,
    /// The NSD.
    pub nsd: NsdId,
    /// Its name: 1 to 64 bytes of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Failure group.
    pub failure_group: u16,
    /// What may lie here.
    pub usage: Usage,
    /// Storage pool: 1 to 32 bytes of `[A-Za-z0-9._-]`.
    pub pool: String,
    /// Stripe unit in bytes: a power of two from 64 KiB to 16 MiB.
    pub block_size: u32,
    /// Key of the file system's name hash (random, the same on all its NSDs).
    pub hash_key: u128,
    /// When the file system was created.
    pub created: Timestamp,
}

/// Why an NSD cannot be laid out as asked.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LayoutError {
    /// Take a larger disk, or fewer journals on this one.
    #[error(
        "NSD '{name}' is too small: {found} MiB, at least {minimum} MiB are needed \
         with {journal_count} journals on it",
        found = (sector_count * SECTOR_SIZE) >> 20,
        minimum = (sector_count_min * SECTOR_SIZE) >> 20
    )]
    TooSmall {
        /// The NSD.
        name: String,
        /// Sectors that it has.
        sector_count: u64,
        /// Sectors that it needs.
        sector_count_min: u64,
        /// Journals asked for.
        journal_count: usize,
    },
    /// Spread the journals over more NSDs.
    #[error("NSD '{name}': {count} journals asked for, at most {JOURNAL_COUNT_MAX} fit")]
    TooManyJournals {
        /// The NSD.
        name: String,
        /// Journals asked for.
        count: usize,
    },
    /// Node 0 is no node, and a node has one journal.
    #[error("NSD '{name}': node {owner} cannot have a journal here: named twice, or no node")]
    BadOwner {
        /// The NSD.
        name: String,
        /// The node.
        owner: NodeId,
    },
    /// An NSD for data only holds no journal.
    #[error("NSD '{name}' is for data only: it cannot hold a journal")]
    DataOnly {
        /// The NSD.
        name: String,
    },
    /// Choose another name.
    #[error("'{name}' is no {what} name: 1 to {size_max} letters, digits, '.', '_' or '-'")]
    BadName {
        /// `NSD` or `pool`.
        what: &'static str,
        /// The name.
        name: String,
        /// Most bytes.
        size_max: usize,
    },
    /// Choose another block size.
    #[error("block size {bytes}: must be a power of two from 64 KiB to 16 MiB")]
    BadBlockSize {
        /// The size asked for.
        bytes: u32,
    },
}

/// Smallest NSD in sectors that has room for `journal_count` journals.
pub fn sector_count_min(journal_count: usize) -> u64 {
    let areas = journal_count as u64 * JOURNAL_SECTORS_MIN;
    NSD_SECTORS_MIN.max(RESERVED_SECTORS + areas + DATA_SECTORS_MIN)
}

/// Sectors of each of `journal_count` journal areas on an NSD of `sector_count` sectors: an eighth
/// of the NSD, less if all together would take more than half, from 16 MiB to 1 GiB, whole MiB.
pub fn journal_sector_count(sector_count: u64, journal_count: usize) -> u64 {
    let shares = 8.max(2 * journal_count as u64);
    let area = (sector_count / shares).clamp(JOURNAL_SECTORS_MIN, JOURNAL_SECTORS_MAX);
    area - area % ALIGN
}

fn region_sector_count(sector_count: u64) -> u64 {
    let share = (sector_count / 64).max(1);
    let power = 1 << share.ilog2();
    u64::clamp(power, REGION_SECTORS_MIN, REGION_SECTORS_MAX)
}

impl Label {
    /// The label of a new NSD with `sector_count` sectors on which each node of `owners` keeps its
    /// journal.
    ///
    /// # Errors
    /// Says which part of the request cannot be had, before anything is written.
    pub fn layout(spec: &Spec, sector_count: u64, owners: &[NodeId]) -> Result<Self, LayoutError> {
        check_spec(spec, owners)?;
        let name = || spec.name.clone();
        let needed = sector_count_min(owners.len());
        if sector_count < needed {
            return Err(LayoutError::TooSmall {
                name: name(),
                sector_count,
                sector_count_min: needed,
                journal_count: owners.len(),
            });
        }
        let area_count = journal_sector_count(sector_count, owners.len());
        let mut data_begin = RESERVED_SECTORS;
        let mut journals = Vec::with_capacity(owners.len());
        for owner in owners {
            journals.push(JournalArea {
                owner: *owner,
                first_sector: data_begin,
                sector_count: area_count,
            });
            data_begin += area_count;
        }
        let label = Self {
            cluster: spec.cluster,
            fs: spec.fs,
            nsd: spec.nsd,
            name: name(),
            revision: 1,
            failure_group: spec.failure_group,
            usage: spec.usage,
            pool: spec.pool.clone(),
            sector_count,
            journals,
            data_begin,
            region_sectors: region_sector_count(sector_count),
            block_size: spec.block_size,
            hash_key: spec.hash_key,
            shard_count: limits::SHARD_COUNT,
            created: spec.created,
            features_incompatible: 0,
            features_compatible: 0,
        };
        assert_eq!(label.validate(), Ok(()), "layout makes valid labels only");
        Ok(label)
    }
}

fn check_spec(spec: &Spec, owners: &[NodeId]) -> Result<(), LayoutError> {
    let bad_name = |what, name: &str, size_max| {
        Err(LayoutError::BadName {
            what,
            name: name.to_owned(),
            size_max,
        })
    };
    if !is_name(&spec.name, NSD_NAME_SIZE_MAX) {
        return bad_name("NSD", &spec.name, NSD_NAME_SIZE_MAX);
    }
    if !is_name(&spec.pool, POOL_NAME_SIZE_MAX) {
        return bad_name("pool", &spec.pool, POOL_NAME_SIZE_MAX);
    }
    if !is_block_size(spec.block_size) {
        return Err(LayoutError::BadBlockSize {
            bytes: spec.block_size,
        });
    }
    let name = || spec.name.clone();
    if owners.len() > JOURNAL_COUNT_MAX {
        return Err(LayoutError::TooManyJournals {
            name: name(),
            count: owners.len(),
        });
    }
    if !owners.is_empty() && !spec.usage.holds_metadata() {
        return Err(LayoutError::DataOnly { name: name() });
    }
    for (index, owner) in owners.iter().enumerate() {
        if *owner == NodeId(0) || owners[..index].contains(owner) {
            return Err(LayoutError::BadOwner {
                name: name(),
                owner: *owner,
            });
        }
    }
    Ok(())
}
