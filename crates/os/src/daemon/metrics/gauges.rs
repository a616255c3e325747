//! What metrics show of tables behind locks: looked at by the thread that ticks, read from atomics.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use client::slice::Waiting;
use types::{NodeId, NsdId, SECTOR_SIZE};

use super::super::{Daemon, TICK, lock};
use crate::clock;

/// Between two looks.
const LOOK_TICKS: u64 = 50;
/// Between two looks at what takes longer.
const LONG_LOOK_TICKS: u64 = 10 * LOOK_TICKS;

const _: () = assert!(LOOK_TICKS as u128 * TICK.as_millis() == 1000);

/// States of sectors, in the order of `Gauges::space`.
pub(super) const SPACE_NAMES: [&str; 5] = ["free", "granted", "used", "pending", "quarantined"];

/// The last look.
#[derive(Debug, Default)]
pub(in super::super) struct Gauges {
    /// When it was, in nanoseconds.
    pub(super) looked_at: AtomicU64,
    pub(super) inodes: AtomicU64,
    pub(super) dirty: AtomicU64,
    pub(super) handles: AtomicU64,
    pub(super) waits: [AtomicU64; Waiting::NAMES.len()],
    /// Pages that could not be stored.
    pub(super) lost_pages: AtomicU64,
    /// Write-backs of mapped pages that were refused.
    pub(super) lost_write_backs: AtomicU64,
    /// Commits that an owner had no room for.
    pub(super) refused: AtomicU64,
    pub(super) rewritten: AtomicU64,
    pub(super) rewritten_size: AtomicU64,
    pub(super) notices_busy: AtomicU64,
    pub(super) notices_waiting: AtomicU64,
    pub(super) last_lsn: AtomicU64,
    pub(super) durable_lsn: AtomicU64,
    pub(super) durable_waiting: AtomicU64,
    pub(super) is_failed: AtomicU64,
    /// Parts with the kernel, parts that wait.
    pub(super) queues: BTreeMap<NsdId, [AtomicU64; 2]>,
    pub(super) tokens: AtomicU64,
    pub(super) token_waits: AtomicU64,
    pub(super) questions: AtomicU64,
    pub(super) parked: AtomicU64,
    /// Whether each other node is connected.
    pub(super) peers: BTreeMap<NodeId, AtomicU64>,
    /// Bytes by `SPACE_NAMES`.
    pub(super) space: [AtomicU64; SPACE_NAMES.len()],
    pub(super) in_hand: AtomicU64,
    /// Inodes that were missed, pages read for them, reads that failed.
    pub(super) metadata: [AtomicU64; 3],
}

fn set(gauge: &AtomicU64, value: impl TryInto<u64>) {
    gauge.store(value.try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
}

impl Gauges {
    pub(in super::super) fn new(
        disks: impl Iterator<Item = NsdId>,
        peers: impl Iterator<Item = NodeId>,
    ) -> Self {
        Self {
            queues: disks.map(|nsd| (nsd, Default::default())).collect(),
            peers: peers.map(|node| (node, AtomicU64::new(0))).collect(),
            ..Self::default()
        }
    }
}

impl Daemon {
    /// Looks at what is due in this tick, where metrics are asked for.
    pub(in super::super) fn look_at_gauges(&self, tick: u64) {
        if self.config.metrics.is_none() || !tick.is_multiple_of(LOOK_TICKS) {
            return;
        }
        let gauges = &self.gauges;
        let (mut inodes, mut dirty, mut handles) = (0, 0, 0);
        let mut waits = [0; Waiting::NAMES.len()];
        let mut rewrites = client::rewrite::RewriteCounts::default();
        let (mut losses, mut refused) = (client::losses::Losses::default(), 0);
        for slice in &self.slices {
            let (seen, lost) = {
                let slice = lock(slice);
                (slice.gauges(), slice.losses())
            };
            losses.add(&lost);
            refused += seen.refused_count;
            inodes += seen.inode_count;
            dirty += seen.dirty_count;
            handles += seen.handle_count;
            rewrites.add(seen.rewrites);
            waits
                .iter_mut()
                .zip(seen.wait_counts)
                .for_each(|(sum, n)| *sum += n);
        }
        set(&gauges.inodes, inodes);
        set(&gauges.dirty, dirty);
        set(&gauges.handles, handles);
        set(&gauges.lost_pages, losses.pages);
        set(&gauges.lost_write_backs, losses.write_backs);
        set(&gauges.refused, refused);
        set(&gauges.rewritten, rewrites.blocks);
        set(&gauges.rewritten_size, rewrites.bytes);
        gauges
            .waits
            .iter()
            .zip(waits)
            .for_each(|(gauge, n)| set(gauge, n));
        let (mut tokens, mut token_waits) = (0, 0);
        for shard in self.shards.iter().flatten() {
            let (granted, waiting) = lock(shard).token_counts();
            tokens += granted;
            token_waits += waiting;
        }
        set(&gauges.tokens, tokens);
        set(&gauges.token_waits, token_waits);
        if let Some(notifier) = self.notifier.get() {
            let (busy, waiting) = notifier.pending_counts();
            set(&gauges.notices_busy, busy);
            set(&gauges.notices_waiting, waiting);
        }
        for (nsd, queue) in &gauges.queues {
            if let Some(disk) = self.disk(*nsd) {
                let counters = disk.counters();
                set(&queue[0], counters.in_flight_count);
                set(&queue[1], counters.waiting_count);
            }
        }
        for (node, is_up) in &gauges.peers {
            set(is_up, u64::from(self.is_connected(*node)));
        }
        set(&gauges.durable_waiting, self.durable_waiter_count());
        set(&gauges.questions, lock(&self.calls).count());
        set(&gauges.parked, self.parked_count());
        let in_hand = self.hands.with(|hands| hands.unreserved());
        set(&gauges.in_hand, in_hand * SECTOR_SIZE);
        let read = self.keys.counters();
        let read = [read.misses, read.pages, read.failures];
        let metadata = gauges.metadata.iter().zip(read);
        metadata.for_each(|(gauge, n)| set(gauge, n));
        self.look_at_log(tick.is_multiple_of(LONG_LOOK_TICKS));
        set(&gauges.looked_at, clock::now().0);
    }

    fn look_at_log(&self, with_space: bool) {
        let gauges = &self.gauges;
        let log = lock(&self.log);
        set(&gauges.last_lsn, log.journal.last_lsn().0);
        set(&gauges.durable_lsn, log.journal.durable_lsn().0);
        set(&gauges.is_failed, u64::from(log.journal.is_poisoned()));
        if with_space {
            // O(regions).
            let c = log.space.counts();
            let sectors = [c.free, c.granted, c.used, c.pending, c.quarantined];
            let space = gauges.space.iter().zip(sectors);
            space.for_each(|(gauge, n)| set(gauge, n * SECTOR_SIZE));
        }
    }
}

/// What the system says of this process; zeros where it says nothing.
#[derive(Debug, Default)]
pub(super) struct Process {
    /// Bytes.
    pub(super) resident_size: u64,
    /// Seconds.
    pub(super) cpu: f64,
    /// Seconds since 1970.
    pub(super) start: f64,
    pub(super) fd_count: u64,
    pub(super) thread_count: u64,
}

impl Process {
    pub(super) fn look() -> Self {
        // SAFETY: sysconf has no preconditions.
        let [page_size, ticks] =
            [libc::_SC_PAGESIZE, libc::_SC_CLK_TCK].map(|name| unsafe { libc::sysconf(name) });
        let (page_size, ticks) = (
            u64::try_from(page_size).unwrap_or(4096),
            u64::try_from(ticks).unwrap_or(100).max(1),
        );
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "));
        let boot: u64 = boot.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        let fields = fields(&stat);
        #[allow(clippy::cast_precision_loss, reason = "metrics are doubles")]
        let seconds = |count: u64| count as f64 / ticks as f64;
        #[allow(clippy::cast_precision_loss, reason = "seconds fit a double")]
        let boot = boot as f64;
        Self {
            resident_size: fields[3] * page_size,
            cpu: seconds(fields[0]),
            start: boot + seconds(fields[2]),
            // The directory that is being read has one, too.
            fd_count: std::fs::read_dir("/proc/self/fd")
                .map_or(0, |all| all.count().saturating_sub(1) as u64),
            thread_count: fields[1],
        }
    }
}

/// Of /proc/self/stat (proc(5)): ticks of utime and stime, num_threads, starttime, rss.
fn fields(stat: &str) -> [u64; 4] {
    // The second field, the name, may hold anything; what follows its last bracket is the third.
    let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
    let all: Vec<&str> = after.split_whitespace().collect();
    let field = |number: usize| -> u64 {
        all.get(number - 3)
            .and_then(|field| field.parse().ok())
            .unwrap_or(0)
    };
    [field(14) + field(15), field(20), field(22), field(24)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual() {
        let numbers: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let stat = format!("1 (a) b (c) S {}", numbers.join(" "));
        assert_eq!(fields(&stat), [29, 20, 22, 24]);
        assert_eq!(fields("nonsense"), [0; 4]);
    }

    #[test]
    fn this_process_is_seen() {
        let seen = Process::look();
        assert!(seen.resident_size > 1 << 20 && seen.fd_count >= 3 && seen.thread_count >= 2);
        assert!(seen.start > 1.6e9, "{seen:?}");
    }
}
