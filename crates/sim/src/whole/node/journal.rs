//! The driver of the journal; what waits for it is in `node::durable`.

use std::collections::VecDeque;

use node::Deferred;
use store::journal::{FlushFailed, FlushId};
use types::Lsn;

use super::transfer::{Done, Kind, Source};
use super::{Item, Node};

impl Node {
    /// True: it waits now. False: it was durable and has been delivered.
    pub(super) fn wait_durable(
        &mut self,
        after: Lsn,
        deferred: Deferred,
        items: &mut VecDeque<Item>,
    ) -> bool {
        match self.durable.wait(after, deferred) {
            Err(node::durable::Waits) => true,
            Ok(deferred) => {
                if let Some(deferred) = deferred {
                    self.deliver(deferred, items);
                }
                false
            }
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
        if self.log.journal.is_poisoned() {
            self.give_shards_up();
        }
    }

    /// The journal has failed: who waits for it hears of it, once.
    fn give_shards_up(&mut self) {
        let lost: Vec<Deferred> = self.durable.fail().into_iter().flatten().collect();
        let mut items = VecDeque::new();
        for deferred in lost {
            self.deliver(deferred, &mut items);
        }
        self.run(items);
    }

    pub(super) fn journal_written(&mut self, id: FlushId, is_ok: bool) {
        let result = if is_ok { Ok(()) } else { Err(FlushFailed) };
        let lsn = self.log.on_flushed(id, result);
        let mut items = VecDeque::new();
        if self.log.journal.is_poisoned() {
            return self.give_shards_up();
        }
        let released: Vec<Deferred> = self.durable.on_durable(lsn).collect();
        self.kick_journal();
        for deferred in released {
            self.deliver(deferred, &mut items);
        }
        self.run(items);
    }

    /// Moves the journal into its other half when half of this one is used, or when that makes checkpoints durable.
    pub(super) fn snapshot_if_due(&mut self) {
        if !self.log.begin_snapshot() {
            return;
        }
        if self.append_snapshots() {
            self.log.end_snapshot();
        } else {
            self.log.abort_snapshot();
        }
        self.kick_journal();
    }

    /// Appends the state of every shard and of the space.
    pub(super) fn append_snapshots(&mut self) -> bool {
        let mut is_ok = true;
        for slice in self.shards.iter().flatten() {
            is_ok &= self.log.append_shard_snapshot(&slice.shard);
        }
        is_ok && self.log.append_space_snapshot()
    }
}
