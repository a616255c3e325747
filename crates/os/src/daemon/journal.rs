//! The driver of the journal: group commit and snapshots; what waits for it is in `node::durable`.
//!
//! Invariant: a flush is taken under the journal's lock and written after unlocking.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use client::Pool as _;
use client::slice::IoFailure;
use node::Deferred;
use node::store::journal::{Flush, FlushFailed};
use nsd::message::Verifier;
use types::frame::FRAME_SIZE;
use types::{FrameRef, Lsn, Span};

use super::reclaim::FrameUser;
use super::sectors::Kind;
use super::work::Item;
use super::{Daemon, lock};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct JournalDriver {
    durable: Mutex<node::Durable>,
}

impl Daemon {
    /// True: it waits now. False: it was durable and has been delivered.
    pub(super) fn wait_durable(
        self: &Arc<Self>,
        after: Lsn,
        deferred: Deferred,
        items: &mut VecDeque<Item>,
    ) -> bool {
        let waited = lock(&self.journal.durable).wait(after, deferred);
        match waited {
            Err(node::durable::Waits) => true,
            Ok(deferred) => {
                if let Some(deferred) = deferred {
                    self.deliver(deferred, items);
                }
                false
            }
        }
    }

    /// Answers that wait for the journal, for `gupfs waiters`.
    pub(super) fn durable_waiter_count(&self) -> usize {
        lock(&self.journal.durable).count()
    }

    /// Writes what the journal has ready.
    pub(super) fn kick_journal(self: &Arc<Self>) {
        loop {
            let (flush, is_poisoned) = {
                let mut log = lock(&self.log);
                (log.journal.take_flush(), log.journal.is_poisoned())
            };
            if is_poisoned {
                return self.give_shards_up();
            }
            let Some(flush) = flush else { return };
            self.write_journal(flush);
        }
    }

    /// The journal has failed: who waits for it hears of it, once.
    fn give_shards_up(self: &Arc<Self>) {
        let lost: Vec<Deferred> = match lock(&self.journal.durable).fail() {
            Some(lost) => lost.collect(),
            None => return,
        };
        tracing::error!("the journal has failed: this node's shards are given up");
        let mut items = VecDeque::new();
        for deferred in lost {
            self.deliver(deferred, &mut items);
        }
        self.run(items);
    }

    fn write_journal(self: &Arc<Self>, flush: Flush) {
        let Some(frames) = self.frames_with(&flush.bytes) else {
            // No frame is free: wait for some; the records are not lost, only later.
            return self.when_frames(FrameUser::Journal, move |daemon| {
                daemon.write_journal(flush)
            });
        };
        let spans: Vec<Span> = frames.iter().map(|frame| Span::whole(*frame)).collect();
        let (id, at, needs_flush) = (flush.id, flush.at, flush.needs_flush);
        let done = move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
            frames.iter().for_each(|frame| daemon.pool.release(*frame));
            daemon.journal_written(id, result.is_ok());
        };
        self.counters.journal_size.fetch_add(
            flush.bytes.len() as u64,
            std::sync::atomic::Ordering::Relaxed,
        );
        self.counters
            .journal_flushes
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        lock(&self.log).journal.reuse(flush.bytes);
        let kind = if needs_flush {
            Kind::DurableWrite
        } else {
            Kind::Write
        };
        self.sectors(kind, at.nsd, at.sector, spans, Box::new(done));
    }

    /// Copies bytes to frames of their own.
    fn frames_with(&self, bytes: &[u8]) -> Option<Vec<FrameRef>> {
        let mut frames = Vec::with_capacity(bytes.len() / FRAME_SIZE);
        for sector in bytes.chunks(FRAME_SIZE) {
            let Some(frame) = self.pool.alloc() else {
                frames.iter().for_each(|frame| self.pool.release(*frame));
                return None;
            };
            self.pool.store(Span::whole(frame), sector);
            frames.push(frame);
        }
        Some(frames)
    }

    fn journal_written(self: &Arc<Self>, id: node::store::journal::FlushId, is_ok: bool) {
        let durable_lsn = {
            let result = if is_ok { Ok(()) } else { Err(FlushFailed) };
            lock(&self.log).on_flushed(id, result)
        };
        if !is_ok {
            return self.give_shards_up();
        }
        let released: Vec<Deferred> = lock(&self.journal.durable)
            .on_durable(durable_lsn)
            .collect();
        // The next flush goes before the answers: the disk works while we do.
        self.kick_journal();
        let mut items = VecDeque::new();
        for deferred in released {
            self.deliver(deferred, &mut items);
        }
        self.run(items);
    }

    /// What recovery and start have made durable.
    pub(super) fn set_durable(&self, lsn: Lsn) {
        *lock(&self.journal.durable) = node::Durable::new(lsn);
    }

    /// Moves the journal into its other half when half of this one is used, or when that makes checkpoints durable.
    pub(super) fn snapshot_if_due(self: &Arc<Self>) {
        if !lock(&self.log).begin_snapshot() {
            return;
        }
        tracing::info!("the journal moves to its other half");
        let is_complete = self.append_snapshots();
        let mut log = lock(&self.log);
        if is_complete {
            log.end_snapshot();
        } else {
            tracing::error!("the snapshot does not fit the journal's other half");
            log.abort_snapshot();
        }
        drop(log);
        self.kick_journal();
    }

    /// Appends the state of every shard and of the space; each under its own lock.
    pub(super) fn append_snapshots(self: &Arc<Self>) -> bool {
        let mut is_ok = true;
        for slice in self.shards.iter().flatten() {
            let slice = lock(slice);
            let mut log = lock(&self.log);
            is_ok &= log.append_shard_snapshot(&slice.shard);
            drop(log);
            drop(slice);
            self.kick_journal();
        }
        is_ok && lock(&self.log).append_space_snapshot()
    }
}
