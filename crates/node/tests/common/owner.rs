//! An owner's journal and pages in memory.
#![allow(dead_code, reason = "not every test file has an owner")]

use std::collections::BTreeMap;

use data::space::{Geometry, Levels, RegionId, Space};
use node::OwnerLog;
use node::keeper::{Disks, Write};
use stdx::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal, Part};
use store::testing::{Disk, recover};
use store::tree::{Fetch, Root, Unreadable};
use types::{Epoch, FsId, Location, NodeId, NsdId};

/// Where pages lie.
pub(crate) const NSD: NsdId = NsdId(2);

/// Pages by their place; an NSD that takes none; and one that does not flush.
#[derive(Default)]
pub(crate) struct PageDisk(
    pub(crate) BTreeMap<Location, Vec<u8>>,
    pub(crate) Option<NsdId>,
    pub(crate) Option<NsdId>,
);

impl Disks for PageDisk {
    fn read(&mut self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        let bytes = self.0.get(&fetch.at).cloned();
        bytes.map(Vec::into_boxed_slice).ok_or(Unreadable)
    }

    fn write(&mut self, writes: Vec<Write>) -> Vec<(Write, bool)> {
        let mut write = |write: Write| {
            let is_taken = self.1 != Some(write.page.at.nsd);
            if is_taken {
                let bytes = write.page.page.bytes().to_vec();
                self.0.insert(write.page.at, bytes);
            }
            (write, is_taken)
        };
        writes.into_iter().map(&mut write).collect()
    }

    fn flush(&mut self, nsds: &[NsdId]) -> Vec<NsdId> {
        let failed = |nsd: &&NsdId| self.2 == Some(**nsd);
        nsds.iter().filter(failed).copied().collect()
    }
}

/// A journal without shards, and a region for pages.
pub(crate) fn log() -> OwnerLog {
    log_on(&[NSD])
}

/// The same: the region is on the first of these NSDs, and one of each other is free.
pub(crate) fn log_on(nsds: &[NsdId]) -> OwnerLog {
    let area = Area {
        nsd: NsdId(1),
        begin: 0,
        count: 16 << 10,
    };
    let config = Config {
        fs: FsId(0),
        owner: NodeId(1),
        incarnation: super::life(1).incarnation,
        area,
        flight_count_max: 1,
    };
    let mut disk = Disk::new();
    disk.format(config);
    let recovered = recover(&disk, area, FsId(0), NodeId(1), &mut |_| Ok(())).unwrap();
    let geometry = |nsd: &NsdId| Geometry {
        nsd: *nsd,
        data_begin: 0,
        sector_count: 2 << 14,
        region_sectors: 1 << 14,
    };
    let geometries: Vec<Geometry> = nsds.iter().map(geometry).collect();
    let space = Space::new(&geometries, Levels { reserve: 0, low: 0 });
    let journal = Journal::start(config, &recovered);
    let all = nsds.to_vec();
    let mut log = OwnerLog::new(journal, space, None, Epoch(1), all, Prng::new(1));
    log.journal.end_snapshot();
    flush(&mut log);
    let mut changes = Vec::new();
    let regions = nsds.iter().map(|nsd| RegionId {
        nsd: *nsd,
        index: 0,
    });
    for region in regions.clone() {
        log.space.take_region(region, &mut changes).unwrap();
    }
    for region in regions.take(1) {
        let used = log.space.use_region_for_pages(region, &mut changes);
        used.unwrap();
    }
    log.append_space(changes);
    flush(&mut log);
    let root: [Root; 0] = [];
    log.set_trees(root, nsds.to_vec());
    log
}

/// All of the journal is durable.
pub(crate) fn flush(log: &mut OwnerLog) {
    while let Some(flush) = log.journal.take_flush() {
        log.journal.on_flushed(flush.id, Ok(()));
    }
    log.space.on_durable(log.journal.durable_lsn());
}

/// Roots in memory become durable, and pages of older ones free.
pub(crate) fn snapshot(log: &mut OwnerLog) {
    if !log.begin_snapshot() {
        return;
    }
    let mut pieces = Vec::new();
    log.space_snapshot(64 << 10, &mut |bytes| pieces.push(bytes));
    for bytes in pieces {
        let (key, epoch) = (PartKey::Space, log.epoch);
        let bytes = &bytes[..];
        log.journal
            .append_snapshot(Part { key, epoch, bytes })
            .unwrap();
    }
    log.end_snapshot();
    while let Some(flush) = log.journal.take_flush() {
        log.on_flushed(flush.id, Ok(()));
    }
}
