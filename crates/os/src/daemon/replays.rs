//! The shards of this node, replayed by several threads: each reads the trees of its own, while the journal is read.
//!
//! Invariants
//! - The parts of one shard are applied in the journal's order, by one thread.
//! - What waits between journal and threads is bounded (`QUEUE_COUNT` batches a thread). Parts go in batches, for most are of some hundred
//!   bytes: one at a time their hand-over costs more than they do.
//! - The first error ends all of it; nothing is changed on any disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use node::ShardReplay;
use node::meta::Shard;
use node::replay::ReplayError;
use node::store::tree::{Fetch, Root, Unreadable};
use types::{DecodeError, ShardId};

use super::checkpoints::read_page;
use super::start::Disks;

/// Threads: enough that a disk has several pages to read at once.
const THREAD_COUNT: usize = 8;
/// Batches of parts that wait for a thread.
const QUEUE_COUNT: usize = 8;
/// A batch of so many bytes is full: a part may have more, up to the 4 MiB of a record.
const BATCH_SIZE: usize = 32 << 10;

/// Parts of records for one thread, one behind the other.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    /// Whose each one is, and where it ends.
    parts: Vec<(ShardId, usize)>,
}

impl Batch {
    fn push(&mut self, shard: ShardId, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.parts.push((shard, self.bytes.len()));
    }

    fn is_full(&self) -> bool {
        self.bytes.len() + self.parts.len() * size_of::<(ShardId, usize)>() >= BATCH_SIZE
    }

    fn parts(&self) -> impl Iterator<Item = (ShardId, &[u8])> {
        let mut begin = 0;
        self.parts.iter().map(move |(shard, end)| {
            let part = &self.bytes[begin..*end];
            begin = *end;
            (*shard, part)
        })
    }
}

/// A shard as its journal and its tree say it was, and the root of its tree.
type Replayed = Vec<(Shard, Option<Root>)>;

/// See the module.
pub(super) struct Replays<'scope> {
    senders: Vec<SyncSender<Batch>>,
    /// What is gathered for each thread.
    batches: Vec<Batch>,
    is_whole: Arc<AtomicBool>,
    threads: Vec<ScopedJoinHandle<'scope, Result<Replayed, ReplayError>>>,
}

impl<'scope> Replays<'scope> {
    /// Begins with these shards.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        shards: Vec<(ShardId, ShardReplay)>,
        disks: &'env Disks,
    ) -> std::io::Result<Self> {
        let mut shares: Vec<BTreeMap<ShardId, ShardReplay>> = Vec::new();
        shares.resize_with(THREAD_COUNT, BTreeMap::new);
        for (id, shard) in shards {
            shares[thread_of(id)].insert(id, shard);
        }
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        let is_whole = Arc::new(AtomicBool::new(false));
        for (number, share) in shares.into_iter().enumerate() {
            let (sender, receiver) = sync_channel(QUEUE_COUNT);
            let is_known_whole = Arc::clone(&is_whole);
            let thread = std::thread::Builder::new()
                .name(format!("replay-{number}"))
                .spawn_scoped(scope, move || {
                    let shards = replay(share, &receiver, disks)?;
                    // What ends early says nothing of the trees.
                    match is_known_whole.load(Ordering::Acquire) {
                        true => finish(shards, disks),
                        false => Ok(Vec::new()),
                    }
                })?;
            senders.push(sender);
            threads.push(thread);
        }
        let mut batches = Vec::new();
        batches.resize_with(THREAD_COUNT, Batch::default);
        Ok(Self {
            senders,
            batches,
            is_whole,
            threads,
        })
    }

    /// The next part of a record.
    ///
    /// # Errors
    /// A thread has ended: `finish` says why.
    pub(super) fn apply(&mut self, shard: ShardId, bytes: &[u8]) -> Result<(), DecodeError> {
        let thread = thread_of(shard);
        let batch = &mut self.batches[thread];
        batch.push(shard, bytes);
        if !batch.is_full() {
            return Ok(());
        }
        let sent = self.senders[thread].send(std::mem::take(batch));
        let (what, value) = ("state of a shard", u64::from(shard.0));
        sent.map_err(|_| DecodeError::Unknown { what, value })
    }

    /// The journal is over (`is_whole`): the shards; or it could not be read to its end: none.
    ///
    /// # Errors
    /// What the journal or a tree holds is none of this version, or a page cannot be read.
    pub(super) fn finish(
        self,
        is_whole: bool,
    ) -> Result<BTreeMap<ShardId, (Shard, Option<Root>)>, ReplayError> {
        for (sender, batch) in self.senders.iter().zip(self.batches) {
            // Who has ended says why below.
            let _ = sender.send(batch);
        }
        self.is_whole.store(is_whole, Ordering::Release);
        drop(self.senders);
        let mut all = BTreeMap::new();
        let mut result = Ok(());
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(replayed)) => {
                    all.extend(
                        replayed
                            .into_iter()
                            .map(|(shard, root)| (shard.id(), (shard, root))),
                    );
                }
                Ok(Err(error)) => result = result.and(Err(error)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result.map(|()| all)
    }
}

fn thread_of(shard: ShardId) -> usize {
    usize::from(shard.0) % THREAD_COUNT
}

fn read_of(disks: &Disks) -> impl FnMut(&Fetch) -> Result<Box<[u8]>, Unreadable> {
    |fetch| read_page(&|nsd| disks.disks.get(&nsd), fetch)
}

fn replay(
    mut shards: BTreeMap<ShardId, ShardReplay>,
    batches: &Receiver<Batch>,
    disks: &Disks,
) -> Result<BTreeMap<ShardId, ShardReplay>, ReplayError> {
    for batch in batches {
        for (id, bytes) in batch.parts() {
            // Others' shards have no business in this node's journal.
            if let Some(shard) = shards.get_mut(&id) {
                shard.apply(bytes, &mut read_of(disks))?;
            }
        }
    }
    Ok(shards)
}

fn finish(shards: BTreeMap<ShardId, ShardReplay>, disks: &Disks) -> Result<Replayed, ReplayError> {
    let shards = shards.into_values();
    shards
        .map(|shard| shard.finish(&mut read_of(disks)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_out_of_a_batch_as_they_went_in() {
        let parts: [(u16, &[u8]); 4] = [(3, b"one"), (0, b""), (3, b"three"), (7, &[4; 9000])];
        let mut batch = Batch::default();
        for (shard, bytes) in parts {
            batch.push(ShardId(shard), bytes);
        }
        let came: Vec<(u16, &[u8])> = batch.parts().map(|(id, bytes)| (id.0, bytes)).collect();
        assert_eq!(came, parts);
    }

    /// Also where they have no bytes: what waits is bounded.
    #[test]
    fn a_batch_is_full_some_time() {
        for bytes in [&b""[..], &[1; 100], &[2; BATCH_SIZE]] {
            let mut batch = Batch::default();
            let mut count = 0;
            while !batch.is_full() {
                batch.push(ShardId(1), bytes);
                count += 1;
            }
            assert!(count * bytes.len().max(1) <= BATCH_SIZE, "{count} parts");
        }
    }
}
