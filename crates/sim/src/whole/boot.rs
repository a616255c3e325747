//! A node's start: its journal is replayed and begun anew (the twin of `os::daemon::start`), on disks that answer at once.

use std::collections::BTreeMap;

use data::space::{Geometry, Levels, RegionTable, Space};
use meta::Shard;
use node::keeper::{self, PlainHost, Write, checkpoint_now};
use node::log::replay_space;
use node::{OwnerLog, OwnerSlice, ShardReplay, replay};
use stdx::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal};
use store::recovery::Recovery;
use store::tree::{Fetch, Unreadable};
use token::Manager;
use types::{Epoch, InodeId, Instant, Location, NsdId, NsdView, ShardId};

use super::disk::Disk;
use super::node::{HASH_KEY, Node, Setting, timestamp};

/// Writes of a journal that may be under way at once.
pub const FLIGHT_COUNT_MAX: usize = 2;

/// Disks by NSD.
pub type Disks = BTreeMap<NsdId, Disk>;

struct State {
    shards: Vec<Option<ShardReplay>>,
    space: Space,
    table: Option<RegionTable>,
}

/// Formats the journal of a node in a new file system.
pub fn format(setting: &Setting, disks: &mut Disks) {
    for (at, bytes) in Journal::format(journal_config(setting)) {
        let disk = disks.get_mut(&at.nsd).expect("the journal's own disk");
        disk.write(at.sector, &bytes, true);
    }
}

fn journal_config(setting: &Setting) -> Config {
    Config {
        fs: setting.view.fs,
        owner: setting.me.node,
        incarnation: setting.me.incarnation,
        area: setting.area,
        flight_count_max: FLIGHT_COUNT_MAX,
    }
}

/// How the NSDs are cut into regions.
pub fn geometry(setting: &Setting) -> Vec<Geometry> {
    let of = |n: &NsdView| Geometry {
        nsd: n.id,
        data_begin: n.data_begin,
        sector_count: n.sector_count,
        region_sectors: setting.region_sectors,
    };
    setting.view.nsds.iter().map(of).collect()
}

/// Bytes of inodes that are in memory after a start: as little as nothing, those of a few, or all. Drawn aside.
fn room(setting: &Setting, mut aside: Prng) -> u64 {
    match setting.evict_ticks > 0 && aside.chance(2, 3) {
        true => aside.below(8) * 500,
        false => u64::MAX,
    }
}

/// Starts a node from what its journal says.
///
/// # Errors
/// The journal cannot be replayed, or the state does not fit: what a crash may never bring about.
pub fn start(setting: Setting, disks: &mut Disks, prng: &mut Prng) -> Result<Node, String> {
    let view = &setting.view;
    let geometry = geometry(&setting);
    let levels = Levels {
        reserve: setting.space_reserve,
        low: setting.ask_sectors,
    };
    let has_table = view.owner(ShardId(0)) == Some(setting.me.node);
    let room = room(&setting, prng.clone());
    let owners = view.owners.iter().zip(0u16..);
    let mut state = State {
        shards: owners
            .map(|(owner, id)| {
                let shard = || ShardReplay::new(view.fs, Shard::new(ShardId(id), HASH_KEY));
                (*owner == setting.me.node).then(|| shard().with_room(room))
            })
            .collect(),
        space: Space::new(&geometry, levels),
        table: has_table.then(|| RegionTable::new(&geometry)),
    };
    let mut failed = None;
    let shown: &Disks = disks;
    let read_tree = &mut |fetch: &Fetch| Ok(read_page(shown, fetch));
    let recovered = {
        let mut recovery = Recovery::new(setting.area, view.fs, setting.me.node);
        while let Some(read) = recovery.next_read() {
            let bytes = disks[&setting.area.nsd].read(read.at.sector, read.count);
            recovery
                .on_read(&bytes, &mut |part| match part.key {
                    PartKey::RegionTable => Ok(()),
                    PartKey::Space => replay_space(part.bytes, &mut state.space, &mut state.table),
                    PartKey::Shard(id) => match state.shards.get_mut(usize::from(id.0)) {
                        Some(Some(shard)) => shard.apply(part.bytes, read_tree).map_err(|error| {
                            failed = Some(error.to_string());
                            let (what, value) = ("tree of a shard", 0);
                            types::DecodeError::Unknown { what, value }
                        }),
                        _ => Ok(()),
                    },
                })
                .map_err(|error| {
                    let failed = failed.take().unwrap_or_default();
                    format!("the journal cannot be replayed: {error} {failed}")
                })?;
        }
        recovery.finish()
    };
    // As the daemon does: what was read is durable before anything is written.
    let own = view.nsds.iter();
    for nsd in own.filter(|n| n.servers.first() == Some(&setting.me.node)) {
        disks.get_mut(&nsd.id).expect("an own disk").flush();
    }
    state.space.on_durable(recovered.last_lsn);
    let epoch = Epoch(recovered.next_sequence);
    let journal = Journal::start(journal_config(&setting), &recovered);
    let nsds: Vec<NsdId> = view.nsds.iter().map(|n| n.id).collect();
    let random = Prng::new(prng.next_u64());
    let mut log = OwnerLog::new(journal, state.space, state.table, epoch, nsds, random);
    if setting.evacuates {
        log.evacuate_eagerly();
        log.clear_eagerly();
    }
    let (mut roots, mut shards) = (Vec::new(), Vec::new());
    for replay in state.shards {
        let Some(replay) = replay else {
            shards.push(None);
            continue;
        };
        let (shard, root) = replay
            .finish(&mut |fetch: &Fetch| Ok(read_page(disks, fetch)))
            .map_err(|error| error.to_string())?;
        roots.extend(root);
        log.note_promised(&shard);
        let tokens = Manager::new(epoch, token::Options::default());
        shards.push(Some(OwnerSlice::new(shard, tokens, recovered.last_lsn)));
    }
    let own = shards.iter_mut().flatten().map(|slice| &mut slice.shard);
    let read_tree = &mut |fetch: &Fetch| Ok(read_page(disks, fetch));
    replay::take_in_held(view.fs, own, &roots, read_tree).map_err(|error| error.to_string())?;
    let own = view.nsds.iter();
    let own =
        own.filter(|n| n.servers.first() == Some(&setting.me.node) && setting.round_ticks > 0);
    log.set_trees(roots, own.map(|n| n.id).collect());
    if setting.round_ticks > 0 && prng.chance(1, 4) {
        let mut host = PlainHost {
            shards: &mut shards,
            log: &mut log,
        };
        // Without room it fails, and the journal holds all.
        let _ = checkpoint_now(Instant(0), &mut host, &mut AtOnce { disks, prng });
    }
    log.begin_first_snapshot();
    restart_journal(&setting, &mut shards, &mut log, disks)?;
    let seed = Prng::new(prng.next_u64());
    Ok(Node::new(setting, shards, log, seed))
}

/// Writes the recovered state as the first records of a new segment; a new file system gets its root.
fn restart_journal(
    setting: &Setting,
    shards: &mut [Option<OwnerSlice>],
    log: &mut OwnerLog,
    disks: &mut Disks,
) -> Result<(), String> {
    let mut is_full = false;
    for slice in shards.iter().flatten() {
        is_full |= !log.append_shard_snapshot(&slice.shard);
        flush(log, disks);
    }
    is_full |= !log.append_space_snapshot();
    if is_full {
        return Err("the state does not fit half of the journal".to_owned());
    }
    log.end_snapshot();
    flush(log, disks);
    if setting.view.owner(ShardId(0)) == Some(setting.me.node)
        && let Some(Some(slice)) = shards.first_mut()
        && slice.shard.attr(InodeId::ROOT).is_none()
    {
        let changes = slice.shard.make_root(timestamp(Instant(0)), 0o755, 1);
        slice.last_lsn = log.append_changes(ShardId(0), &changes);
        flush(log, disks);
    }
    Ok(())
}

fn flush(log: &mut OwnerLog, disks: &mut Disks) {
    while let Some(flush) = log.journal.take_flush() {
        let Location { nsd, sector } = flush.at;
        let disk = disks.get_mut(&nsd).expect("the journal's own disk");
        disk.write(sector, &flush.bytes, flush.needs_flush);
        if flush.needs_flush {
            disk.flush();
        }
        log.on_flushed(flush.id, Ok(()));
    }
    log.settle(usize::MAX);
    log.space.on_durable(log.journal.durable_lsn());
}

/// Reads a page of a tree.
pub fn read_page(disks: &Disks, fetch: &Fetch) -> Box<[u8]> {
    let disk = &disks[&fetch.at.nsd];
    disk.read(fetch.at.sector, u64::from(fetch.sectors)).into()
}

/// Disks that answer at once; a write fails now and then.
struct AtOnce<'a> {
    disks: &'a mut Disks,
    prng: &'a mut Prng,
}

impl keeper::Disks for AtOnce<'_> {
    fn read(&mut self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        Ok(read_page(self.disks, fetch))
    }

    fn write(&mut self, writes: Vec<Write>) -> Vec<(Write, bool)> {
        let mut ended = Vec::new();
        for write in writes {
            let at = write.page.at;
            let disk = self.disks.get_mut(&at.nsd).expect("an own disk");
            disk.write(at.sector, write.page.page.bytes(), false);
            ended.push((write, !self.prng.chance(1, 50)));
        }
        ended
    }

    fn flush(&mut self, nsds: &[NsdId]) -> Vec<NsdId> {
        for nsd in nsds {
            self.disks.get_mut(nsd).expect("an own disk").flush();
        }
        Vec::new()
    }
}

/// The journal of node number `index` on its disk.
pub fn area(nsd: NsdId, sector_count: u64) -> Area {
    Area {
        nsd,
        begin: 64,
        count: sector_count,
    }
}
