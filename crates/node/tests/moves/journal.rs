//! An owner's journal on its disk: formatted, replayed into shards and begun anew, flushed.

use std::collections::BTreeMap;

use data::space::{Levels, Space};
use meta::Shard;
use node::{OwnerLog, OwnerSlice, ShardReplay, log};
use stdx::prng::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal, Part};
use store::testing::{Disk, recover};
use store::tree::Unreadable;
use token::{Manager, Options};
use types::{Epoch, FsId, InodeId, NodeId, NodeLife, NsdId, ShardId, Timestamp};

use super::KEY;

fn area(node: NodeId) -> Area {
    Area {
        nsd: NsdId(node.0),
        begin: 8,
        count: 512,
    }
}

pub(super) fn config(life: NodeLife) -> Config {
    Config {
        fs: FsId::default(),
        owner: life.node,
        incarnation: life.incarnation,
        area: area(life.node),
        flight_count_max: 1,
    }
}

pub(super) fn open(
    life: NodeLife,
    disk: &mut Disk,
    owners: &[NodeId],
) -> (OwnerLog, Vec<OwnerSlice>) {
    let mine = (0u16..).zip(owners).filter(|(_, o)| **o == life.node);
    let fs = FsId::default();
    let mut replays: BTreeMap<ShardId, ShardReplay> = mine
        .map(|(id, _)| (ShardId(id), Shard::new(ShardId(id), KEY)))
        .map(|(id, shard)| (id, ShardReplay::new(fs, shard)))
        .collect();
    let area = area(life.node);
    let recovered = recover(disk, area, fs, life.node, &mut |part| {
        if let PartKey::Shard(id) = part.key {
            let replay = replays.get_mut(&id).unwrap();
            replay.apply(part.bytes, &mut |_| Err(Unreadable)).unwrap();
        }
        Ok(())
    })
    .unwrap();
    let mut shards: BTreeMap<ShardId, Shard> = BTreeMap::new();
    for (id, replay) in replays {
        let (shard, root) = replay.finish(&mut |_| Err(Unreadable)).unwrap();
        assert!(root.is_none(), "no tree here");
        shards.insert(id, shard);
    }
    let epoch = Epoch(recovered.next_sequence);
    let journal = Journal::start(config(life), &recovered);
    let space = Space::new(&[], Levels { reserve: 0, low: 0 });
    let random = Prng::new(1);
    let mut log = OwnerLog::new(journal, space, None, epoch, Vec::new(), random);
    for (id, shard) in &shards {
        log::shard_snapshot(shard, None, 8192, &mut |bytes| {
            let key = PartKey::Shard(*id);
            let part = Part {
                key,
                epoch,
                bytes: &bytes,
            };
            log.journal.append_snapshot(part).unwrap();
        });
    }
    let part = Part {
        key: PartKey::Space,
        epoch,
        bytes: &[],
    };
    log.journal.append_snapshot(part).unwrap();
    log.journal.end_snapshot();
    flush(&mut log, disk);
    if let Some(shard) = shards.get_mut(&ShardId(0))
        && shard.attr(InodeId::ROOT).is_none()
    {
        let changes = shard.make_root(Timestamp::default(), 0o755, 1);
        log.append_changes(ShardId(0), &changes);
        flush(&mut log, disk);
    }
    let lsn = log.journal.last_lsn();
    let slices = shards.into_values().map(|shard| {
        let tokens = Manager::new(epoch, Options::default());
        OwnerSlice::new(shard, tokens, lsn)
    });
    (log, slices.collect())
}

pub(super) fn flush(log: &mut OwnerLog, disk: &mut Disk) {
    while let Some(flush) = log.journal.take_flush() {
        let id = disk.submit(flush.at, &flush.bytes);
        disk.complete_flushed(id);
        log.journal.on_flushed(flush.id, Ok(()));
    }
}
