//! The driver of the journal (the twin of `os::daemon::journal`).

use std::collections::{BTreeMap, VecDeque};

use client::message::{Answer, Body};
use store::format::PartKey;
use store::journal::{FlushFailed, FlushId, Part};
use types::{Errno, Lsn};

use super::transfer::{Done, Kind, Source};
use super::{Deferred, Item, Node};

/// Bytes of one record of a snapshot.
const SNAPSHOT_RECORD_SIZE: usize = 64 << 10;

/// What is durable, and who waits for more.
#[derive(Debug)]
pub(super) struct Durable {
    lsn: Lsn,
    is_failed: bool,
    waiters: BTreeMap<Lsn, Vec<Deferred>>,
}

impl Durable {
    pub(super) fn new(lsn: Lsn) -> Self {
        Self {
            lsn,
            is_failed: false,
            waiters: BTreeMap::new(),
        }
    }

    pub(super) fn count(&self) -> usize {
        self.waiters.values().map(Vec::len).sum()
    }
}

impl Node {
    /// True: it waits now. False: it was durable and has been delivered.
    pub(super) fn wait_durable(
        &mut self,
        after: Lsn,
        deferred: Deferred,
        items: &mut VecDeque<Item>,
    ) -> bool {
        if after > self.durable.lsn && !self.durable.is_failed {
            self.durable
                .waiters
                .entry(after)
                .or_default()
                .push(deferred);
            return true;
        }
        if after > self.durable.lsn {
            self.fail_deferred(deferred, items);
        } else {
            self.deliver(deferred, items);
        }
        false
    }

    fn fail_deferred(&mut self, deferred: Deferred, items: &mut VecDeque<Item>) {
        if let Deferred::Answer(to, call, _) = deferred {
            let answer = Answer::bare(Body::Refused(Errno::EIO));
            self.deliver(Deferred::Answer(to, call, answer), items);
        }
    }

    /// Writes what the journal has ready.
    pub(super) fn kick_journal(&mut self) {
        while let Some(flush) = self.log.journal.take_flush() {
            let kind = if flush.needs_flush {
                Kind::DurableWrite
            } else {
                Kind::Write
            };
            let done = Done::Journal(flush.id);
            self.sectors(kind, flush.at, Source::Bytes(flush.bytes), done);
        }
    }

    pub(super) fn journal_written(&mut self, id: FlushId, is_ok: bool) {
        let result = if is_ok { Ok(()) } else { Err(FlushFailed) };
        self.log.journal.on_flushed(id, result);
        let lsn = self.log.journal.durable_lsn();
        self.log.space.on_durable(lsn);
        let mut items = VecDeque::new();
        if !is_ok {
            self.durable.is_failed = true;
            for deferred in std::mem::take(&mut self.durable.waiters)
                .into_values()
                .flatten()
            {
                self.fail_deferred(deferred, &mut items);
            }
            return self.run(items);
        }
        self.durable.lsn = self.durable.lsn.max(lsn);
        let later = self.durable.waiters.split_off(&Lsn(self.durable.lsn.0 + 1));
        let released = std::mem::replace(&mut self.durable.waiters, later);
        self.kick_journal();
        for deferred in released.into_values().flatten() {
            self.deliver(deferred, &mut items);
        }
        self.run(items);
    }

    /// Moves the journal into its other half when half of this one is used.
    pub(super) fn snapshot_if_due(&mut self) {
        let shards = self.shards.iter().flatten();
        let inodes: u64 = shards.map(|s| s.shard.inode_count()).sum();
        let estimate = inodes * 512 + (1 << 20);
        self.log.journal.set_overlay_size(estimate);
        if !self.log.journal.needs_snapshot() {
            return;
        }
        self.log.journal.begin_snapshot(estimate);
        if self.append_snapshots() {
            self.log.journal.end_snapshot();
        } else {
            self.log.journal.abort_snapshot();
        }
        self.kick_journal();
    }

    /// Appends the state of every shard and of the space.
    pub(super) fn append_snapshots(&mut self) -> bool {
        let mut is_ok = true;
        let epoch = self.log.epoch;
        for slice in self.shards.iter().flatten() {
            let key = PartKey::Shard(slice.shard.id());
            let journal = &mut self.log.journal;
            node::log::shard_snapshot(&slice.shard, SNAPSHOT_RECORD_SIZE, &mut |bytes| {
                let part = Part {
                    key,
                    epoch,
                    bytes: &bytes,
                };
                is_ok &= journal.append_snapshot(part).is_ok();
            });
        }
        let mut pieces = Vec::new();
        self.log
            .space_snapshot(SNAPSHOT_RECORD_SIZE, &mut |bytes| pieces.push(bytes));
        for bytes in pieces {
            let part = Part {
                key: PartKey::Space,
                epoch,
                bytes: &bytes,
            };
            is_ok &= self.log.journal.append_snapshot(part).is_ok();
        }
        is_ok
    }
}
