//! What the control socket tells of the whole node: status, the room on the file system, how long requests take.
//!
//! Status takes no lock of a slice or a shard: it is answered while one of these is stuck.

use std::sync::mpsc;
use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use client::request::Space;
use data::space::RegionTable;
use types::{NsdView, SECTOR_SIZE};

use super::control::quoted;
use super::free::Asker;
use super::{Daemon, OPERATION_NAMES, lock};
use crate::clock;

/// How long a sum over all owners is waited for; those who do not answer are passed over before.
const SUM_PATIENCE: Duration = Duration::from_secs(5);

impl Daemon {
    pub(super) fn status(&self) -> String {
        let shards = self.shards.iter().flatten().count();
        let (last, durable, is_poisoned, counts) = {
            let log = lock(&self.log);
            (
                log.journal.last_lsn().0,
                log.journal.durable_lsn().0,
                log.journal.is_poisoned(),
                log.space.counts(),
            )
        };
        let members = self.membership.others();
        let peers: Vec<String> = lock(&self.peers)
            .keys()
            .map(|node| {
                let is_up = self.is_connected(*node);
                // One that was declared dead may be connected: it does not know yet.
                let is_member = members.iter().any(|life| life.node == *node);
                format!(
                    "{{\"node\":{},\"connected\":{is_up},\"member\":{is_member}}}",
                    node.0
                )
            })
            .collect();
        let lapse = self.lapse_state().map_or_else(
            || "null".to_owned(),
            |(since, left)| {
                let ms = since.0 / 1_000_000;
                format!("{{\"since_ms\":{ms},\"open_files_left\":{left}}}")
            },
        );
        let nsds: Vec<String> = self
            .config
            .view
            .nsds
            .iter()
            .map(|nsd| format!("{{{}}}", self.nsd_facts(nsd)))
            .collect();
        let pool = self.pool.counters();
        let config = &self.config;
        let metrics = self.metrics_address.get().map_or_else(
            || "null".to_owned(),
            |address| quoted(&format!("http://{address}/metrics")),
        );
        format!(
            "{{\"mounted\":{},\"mount\":{},\"version\":{},\"pid\":{},\"uptime_ms\":{},\"node\":{},\
             \"manager\":{},\"cluster\":\"{:032x}\",\"fs\":\"{:032x}\",\"epoch\":{},\"lease_ms\":{},\
             \"evicted\":{},\"shut_down\":{},\"lapse\":{lapse},\"shards_owned\":{shards},\"serving\":{},\
             \"journal\":{{\"last_lsn\":{last},\"durable_lsn\":{durable},\"failed\":{is_poisoned}}},\
             \"space\":{{\"held\":{},\"free\":{},\"granted\":{},\"used\":{},\"pending\":{},\
             \"quarantined\":{}}},\"checkpoints\":{{{}}},\"in_hand\":{},\"pagepool\":{{\"frames\":{},\"free\":{}}},\
             \"unreadable\":[{}],\"metrics\":{metrics},\"connection\":{},\"peers\":[{}],\"nsds\":[{}]}}",
            self.is_mounted(),
            quoted(&config.mount.to_string_lossy()),
            quoted(env!("CARGO_PKG_VERSION")),
            std::process::id(),
            clock::now().since(self.begun).0 / 1_000_000,
            self.me.node.0,
            config.view.manager.0,
            config.view.cluster.0,
            config.view.fs.0,
            self.membership.epoch().0,
            self.lease_left().0 / 1_000_000,
            self.membership.is_evicted(),
            self.is_shut_down(),
            self.is_serving(),
            counts.total,
            counts.free,
            counts.granted,
            counts.used,
            counts.pending,
            counts.quarantined,
            self.checkpoint_facts(),
            self.hands.with(|hands| hands.unreserved()),
            pool.frame_count,
            pool.free_frame_count,
            self.keys.unreadable_facts(),
            self.connection_number(),
            peers.join(","),
            nsds.join(","),
        )
    }

    pub(super) fn is_connected(&self, node: types::NodeId) -> bool {
        let net = self.net.get();
        net.is_some_and(|net| net.peer_incarnation(node).is_some())
    }

    /// Members of a JSON object: which NSD it is, and how this node reaches it.
    fn nsd_facts(&self, nsd: &NsdView) -> String {
        let is_direct = self.disks.contains_key(&nsd.id);
        let state = if is_direct {
            "direct"
        } else if nsd.servers.iter().any(|server| self.is_connected(*server)) {
            "served"
        } else {
            "unreachable"
        };
        let servers: Vec<String> = nsd.servers.iter().map(|s| s.0.to_string()).collect();
        format!(
            "\"nsd\":{},\"direct\":{is_direct},\"state\":\"{state}\",\"failure_group\":{},\"servers\":[{}]",
            nsd.id.0,
            nsd.failure_group,
            servers.join(","),
        )
    }

    /// The room on the file system as statfs shows it, and by NSD what this owner counts, as JSON. In bytes.
    pub(super) fn df_json(self: &Arc<Self>) -> String {
        let (told, sum) = mpsc::channel();
        self.sum_space(Asker::Control(told));
        let Ok((space, silent)) = sum.recv_timeout(SUM_PATIENCE) else {
            return "{\"error\":\"the daemon is stopping\"}".to_owned();
        };
        let Space {
            sector_count,
            sector_free_count,
            sector_available_count,
            inode_count,
        } = space;
        let silent: Vec<String> = silent.iter().map(|node| node.0.to_string()).collect();
        let mut owners = self.config.view.owners.clone();
        owners.sort_unstable();
        owners.dedup();
        let owners: Vec<String> = owners.iter().map(|node| node.0.to_string()).collect();
        let nsds: Vec<String> = self
            .config
            .view
            .nsds
            .iter()
            .map(|n| self.nsd_room(n))
            .collect();
        format!(
            "{{\"fs\":\"{:032x}\",\"node\":{},\"mount\":{},\"capacity\":{},\"used\":{},\"free\":{},\"available\":{},\
             \"inodes\":{inode_count},\"owners\":[{}],\"owners_silent\":[{}],\"nsds\":[{}]}}",
            self.config.view.fs.0,
            self.me.node.0,
            quoted(&self.config.mount.to_string_lossy()),
            sector_count * SECTOR_SIZE,
            (sector_count - sector_free_count) * SECTOR_SIZE,
            sector_free_count * SECTOR_SIZE,
            sector_available_count * SECTOR_SIZE,
            owners.join(","),
            silent.join(","),
            nsds.join(","),
        )
    }

    fn nsd_room(&self, nsd: &NsdView) -> String {
        let (counts, unheld) = {
            let log = lock(&self.log);
            let table = log.table.as_ref();
            (
                log.space.counts_by_nsd(nsd.id),
                table.map(|table: &RegionTable| table.free_sectors_of(nsd.id)),
            )
        };
        let unheld = unheld.map_or_else(
            || "null".to_owned(),
            |sectors| (sectors * SECTOR_SIZE).to_string(),
        );
        format!(
            "{{{},\"size\":{},\"capacity\":{},\"free_here\":{},\"used_here\":{},\
             \"quarantined_here\":{},\"free_unheld\":{unheld}}}",
            self.nsd_facts(nsd),
            nsd.sector_count * SECTOR_SIZE,
            (nsd.sector_count - nsd.data_begin) * SECTOR_SIZE,
            (counts.free + counts.pending + counts.granted) * SECTOR_SIZE,
            counts.used * SECTOR_SIZE,
            counts.quarantined * SECTOR_SIZE,
        )
    }

    /// Requests by kind: how many, and how long those took that were timed, as JSON.
    pub(super) fn operations_json(&self) -> String {
        let counts = self.counters.operations.iter();
        let all: Vec<String> = OPERATION_NAMES
            .iter()
            .zip(counts)
            .zip(self.latencies.timed())
            .map(|((name, count), timed)| {
                let buckets: Vec<String> = timed.buckets.iter().map(u64::to_string).collect();
                format!(
                    "\"{name}\":{{\"count\":{},\"timed\":{},\"timed_ns\":{},\"buckets\":[{}]}}",
                    count.load(Ordering::Relaxed),
                    timed.count,
                    timed.time,
                    buckets.join(","),
                )
            })
            .collect();
        format!(
            "{{\"at_ms\":{},\"operations\":{{{}}}}}",
            clock::now().since(self.begun).0 / 1_000_000,
            all.join(",")
        )
    }
}
