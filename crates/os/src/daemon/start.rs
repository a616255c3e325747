//! Starting a daemon: disks by their labels, the journal replayed, the shards as they were.

use std::collections::BTreeMap;
use std::path::Path;

use data::space::{Geometry, Levels, RegionTable, Space};
use node::log::replay_space;
use node::meta::{HashKey, Shard};
use node::replay::take_in_held;
use node::store::format::{Area, PartKey};
use node::store::journal::Journal;
use node::store::recovery::{Recovered, Recovery};
use node::store::tree::Fetch;
use node::token::Manager;
use node::{OwnerLog, OwnerSlice, ShardReplay};
use nsd::LabelError;
use nsd::label::{Expected, HEAD_SECTORS, Label};
use nsd::mark::Marks;
use types::{Epoch, Incarnation, Location, NsdId, SECTOR_SIZE, ShardId};

use super::Error;
use super::checkpoints::read_page;
use super::config::Config;
use super::replays::Replays;
use crate::disk::{Disk, DiskError, marks};

/// Free sectors that an owner keeps for unlink, truncate and the journal's needs.
pub(super) const SPACE_RESERVE: u64 = 256;
/// Another region is taken when an NSD has fewer free sectors than this: 64 MiB.
const REGION_LOW: u64 = 16 << 10;

/// The disks of this node and the place of its journal.
pub(super) struct Disks {
    pub(super) disks: BTreeMap<NsdId, Disk>,
    marks: Marks,
    pub(super) area: Area,
    pub(super) has_volatile: bool,
}

/// How long a disk may still be held by a daemon that has just been killed.
const FREE_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
/// How often it is tried meanwhile: nothing tells when a lock is given up.
const FREE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// Opens a disk. A killed daemon keeps its disks until its last request in flight has ended, which may be
/// after the end of its process: that is waited for.
fn open_disk(path: &Path) -> Result<Disk, DiskError> {
    let begin = std::time::Instant::now();
    loop {
        match Disk::open(path, true) {
            Err(DiskError::InUse { .. }) if begin.elapsed() < FREE_LIMIT => {
                std::thread::sleep(FREE_INTERVAL);
            }
            other => return other,
        }
    }
}

/// Opens the disks, checks their labels, and that none is an older copy; finds the journal.
pub(super) fn open_disks(config: &Config) -> Result<Disks, Error> {
    let mut disks = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut area = None;
    for entry in &config.disks {
        let mut disk = open_disk(&entry.path)?;
        if entry.is_volatile {
            #[allow(clippy::cast_possible_truncation, reason = "folds random bits")]
            let seed = config.incarnation.0 as u64 ^ u64::from(entry.nsd.0);
            disk = disk.with_volatile_cache(seed);
        }
        let size = usize::try_from(HEAD_SECTORS * SECTOR_SIZE).expect("256 KiB");
        let mut head = vec![0; size];
        disk.read_sectors(0, &mut head)?;
        let label_error = |source| Error::Label {
            path: entry.path.clone(),
            source,
        };
        let label = Label::decode(&head).map_err(label_error)?.label;
        let expected = Expected {
            cluster: Some(config.view.cluster),
            fs: Some(config.view.fs),
            nsd: Some(entry.nsd),
        };
        label
            .check(&expected, disk.sector_count())
            .map_err(label_error)?;
        if let Some(journal) = label.journal(config.node) {
            area = Some(Area {
                nsd: entry.nsd,
                begin: journal.first_sector,
                count: journal.sector_count,
            });
        }
        if disks.insert(entry.nsd, disk).is_some() {
            return Err(Error::Twice { nsd: entry.nsd });
        }
        names.insert(entry.nsd, label.name);
    }
    let (marks, failures) = marks::read(config.view.fs, marks::by_nsd(&disks));
    if let Some(error) = failures.into_iter().next() {
        return Err(error.into());
    }
    if let Some(older) = marks.older().first() {
        let source = LabelError::Older {
            name: names.remove(&older.nsd).unwrap_or_default(),
            generation: older.generation,
            seen: older.seen,
            by: older.by,
        };
        let path = disks[&older.nsd].path().to_owned();
        return Err(Error::Label { path, source });
    }
    let area = area.ok_or(Error::NoJournal { node: config.node })?;
    let has_volatile = config.view.nsds.iter().any(|n| n.has_volatile_cache)
        || disks.values().any(Disk::has_volatile_cache);
    Ok(Disks {
        disks,
        marks,
        area,
        has_volatile,
    })
}

/// Marks the disks as in use from now on: before anything on them changes.
pub(super) fn mark_disks(disks: &Disks) {
    log_unmarked(marks::begin(&disks.marks, marks::by_nsd(&disks.disks)));
}

/// Says which disks took no mark.
pub(super) fn log_unmarked(failures: Vec<DiskError>) {
    for error in failures {
        tracing::warn!(%error, "a disk cannot be marked as in use: whether it is replaced by an older copy later will not be seen");
    }
}

/// What must be written to a disk with this label, in this order, so that its journals can be replayed: (first
/// sector, whole sectors).
pub fn format_journals(label: &Label, life: Incarnation) -> Vec<(u64, Vec<u8>)> {
    let journals = label.journals.iter().flat_map(|journal| {
        Journal::format(node::store::journal::Config {
            fs: label.fs,
            owner: journal.owner,
            incarnation: life,
            area: Area {
                nsd: label.nsd,
                begin: journal.first_sector,
                count: journal.sector_count,
            },
            flight_count_max: 1,
        })
    });
    journals.map(|(at, bytes)| (at.sector, bytes)).collect()
}

/// What recovery gives the daemon.
pub(super) struct State {
    pub(super) shards: Vec<Option<OwnerSlice>>,
    pub(super) log: OwnerLog,
    pub(super) operation_count: u64,
}

/// Replays the journal.
pub(super) fn recover(config: &Config, disks: &Disks) -> Result<State, Error> {
    let view = &config.view;
    let geometry: Vec<Geometry> = view
        .nsds
        .iter()
        .map(|n| Geometry {
            nsd: n.id,
            data_begin: n.data_begin,
            sector_count: n.sector_count,
            region_sectors: Geometry::default_region_sectors(n.sector_count),
        })
        .collect();
    let mut space = Space::new(
        &geometry,
        Levels {
            reserve: SPACE_RESERVE,
            low: REGION_LOW,
        },
    );
    let has_table = view.owner(ShardId(0)) == Some(config.node);
    let mut table = has_table.then(|| RegionTable::new(&geometry));
    let key = HashKey(config.hash_key);
    let own_count = view.owners.iter().filter(|owner| **owner == config.node);
    let room = match config.metadata_bytes_max {
        0 => u64::MAX,
        bytes => bytes / (own_count.count() as u64).max(1),
    };
    let own = view.owners.iter().zip(0u16..);
    let shards = own
        .filter(|(owner, _)| **owner == config.node)
        .map(|(_, id)| {
            let shard = ShardReplay::new(view.fs, Shard::new(ShardId(id), key));
            (ShardId(id), shard.with_room(room))
        })
        .collect();
    let (recovered, mut replayed) = std::thread::scope(|scope| {
        let mut replays = Replays::start(scope, shards, disks).map_err(Error::Thread)?;
        let recovered = replay(config, disks, &mut |part, bytes| match part {
            // This version keeps the table's records in the space part.
            PartKey::RegionTable => Ok(()),
            PartKey::Space => replay_space(bytes, &mut space, &mut table),
            PartKey::Shard(id) => replays.apply(id, bytes),
        });
        // Where a thread has ended, that is the error, and not that it took no more.
        let replayed = replays.finish(recovered.is_ok()).map_err(Error::from)?;
        Ok::<_, Error>((recovered?, replayed))
    })?;
    flush_all(disks)?;
    let read = &mut |fetch: &Fetch| read_page(&|nsd| disks.disks.get(&nsd), fetch);
    let mut roots = Vec::new();
    let ids = (0u16..).zip(&view.owners).map(|(id, _)| ShardId(id));
    let mut whole: Vec<Option<Shard>> = ids
        .map(|id| {
            let (shard, root) = replayed.remove(&id)?;
            roots.extend(root);
            Some(shard)
        })
        .collect();
    take_in_held(view.fs, whole.iter_mut().flatten(), &roots, read)?;
    space.on_durable(recovered.last_lsn);
    let epoch = next_epoch(&recovered);
    let journal = Journal::start(
        node::store::journal::Config {
            fs: view.fs,
            owner: config.node,
            incarnation: config.incarnation,
            area: disks.area,
            flight_count_max: 2,
        },
        &recovered,
    );
    let nsds = view.nsds.iter().map(|n| n.id).collect();
    let bits = config.incarnation.0;
    #[allow(
        clippy::cast_possible_truncation,
        reason = "half of the random bits seed the ids"
    )]
    let random = stdx::prng::Prng::new((bits >> 64) as u64 ^ bits as u64);
    let mut log = OwnerLog::new(journal, space, table, epoch, nsds, random);
    log.set_trees(roots, disks.disks.keys().copied().collect());
    whole.iter().flatten().for_each(|s| log.note_promised(s));
    let shards = whole
        .into_iter()
        .map(|shard| {
            let tokens = Manager::new(epoch, node::token::Options::default());
            shard.map(|shard| OwnerSlice::new(shard, tokens, recovered.last_lsn))
        })
        .collect();
    Ok(State {
        shards,
        log,
        operation_count: recovered.operation_count,
    })
}

/// What was read may lie in a device's volatile cache: before anything is written over what it makes free, it is durable.
fn flush_all(disks: &Disks) -> Result<(), DiskError> {
    disks.disks.values().try_for_each(Disk::flush)
}

/// Token numbers ascend over the owner's lives: the segment's sequence number is the epoch of this one.
fn next_epoch(recovered: &Recovered) -> Epoch {
    Epoch(recovered.next_sequence)
}

/// Takes one part of a record that is replayed.
type Apply<'a> = dyn FnMut(PartKey, &[u8]) -> Result<(), types::DecodeError> + 'a;

fn replay(config: &Config, disks: &Disks, apply: &mut Apply<'_>) -> Result<Recovered, Error> {
    let disk = &disks.disks[&disks.area.nsd];
    let mut recovery = Recovery::new(disks.area, config.view.fs, config.node);
    while let Some(read) = recovery.next_read() {
        let size = usize::try_from(read.count * SECTOR_SIZE).expect("one read is small");
        let mut bytes = vec![0; size];
        disk.read_sectors(read.at.sector, &mut bytes)?;
        recovery.on_read(&bytes, &mut |part| apply(part.key, part.bytes))?;
    }
    Ok(recovery.finish())
}

/// Writes what the journal has ready and waits for it: before the event loops run.
pub(super) fn flush_blocking(disks: &Disks, log: &mut OwnerLog) -> Result<(), Error> {
    while let Some(flush) = log.journal.take_flush() {
        let Location { nsd, sector } = flush.at;
        let disk = &disks.disks[&nsd];
        disk.write_sectors(sector, &flush.bytes)?;
        if flush.needs_flush {
            disk.flush()?;
        }
        log.on_flushed(flush.id, Ok(()));
    }
    log.settle(usize::MAX);
    log.space.on_durable(log.journal.durable_lsn());
    Ok(())
}
