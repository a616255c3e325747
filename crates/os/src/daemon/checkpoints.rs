//! The driver of checkpoints (`node::keeper`): a thread of its own, with I/O that blocks.
//!
//! Pages lie on this node's own disks alone. A thread of its own keeps the encoding of pages off the event loops, and I/O that
//! blocks needs no frame of the pagepool: a checkpoint never waits for what waits for room in the journal.
//!
//! Invariants
//! - Lock order: the keeper's, then shards, then journal and space.
//! - Nothing is read or written under a lock.
//! - The thread ends before the disks do (`Ended`).
//! - A stop makes a last round where the next start would have much to replay. It is for speed alone: whatever fails or takes too long
//!   leaves the journal as it is.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use node::keeper::{Counters, Disks, Host, Keeper, Pending, ShardSize, Write};
use node::store::tree::{Fetch, Unreadable};
use node::{OwnerLog, OwnerSlice};
use types::{Duration, Instant, NsdId, SECTOR_SIZE, ShardId};

use super::{Daemon, Error, TICK, lock};
use crate::clock;
use crate::disk::{Disk, DiskError, marks};

/// Bytes of pages beside one another that are written at once.
const WRITE_SIZE_MAX: usize = 1 << 20;
/// A stop makes a round where trees lack so many bytes: some thousand inodes.
const LAST_ROUND_SIZE_MIN: u64 = 1 << 20;
/// Trees are written anew when nothing has changed for so long.
const QUIET: Duration = Duration::from_secs(2);
/// If they lack so many bytes: each time costs a snapshot of the journal.
const LATE_SIZE_MIN: u64 = 16 << 10;
/// If they lack less.
const LONG_QUIET: Duration = Duration::from_secs(10);
/// It waits so long for the begin of that round.
const BEGIN_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
/// And takes so long in all at the most.
const LAST_ROUND_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    keeper: Mutex<Keeper>,
    state: Mutex<State>,
    wake: Condvar,
    /// Bytes that trees lacked when that changed last, and when.
    unsaved: Mutex<(u64, Instant)>,
    /// As the last tick saw it: who asks must not wait for the keeper, which may wait for a shard.
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    counters: Counters,
    waiting: Option<(String, Instant)>,
}

#[derive(Debug, Default)]
struct State {
    is_ended: bool,
    /// There may be something to do.
    is_woken: bool,
}

impl Checkpoints {
    /// There may be something to do.
    fn wake(&self) {
        lock(&self.state).is_woken = true;
        self.wake.notify_all();
    }

    /// Waits until there may be something to do, `TICK` at the most.
    fn wait(&self) {
        let mut state = lock(&self.state);
        if !state.is_woken && !state.is_ended {
            state = self
                .wake
                .wait_timeout(state, TICK)
                .expect("a panic ends the daemon")
                .0;
        }
        state.is_woken = false;
    }

    fn is_ended(&self) -> bool {
        lock(&self.state).is_ended
    }

    /// What was done.
    pub(super) fn counters(&self) -> Counters {
        lock(&self.seen).counters
    }

    /// What is under way, and since when.
    pub(super) fn waiting(&self) -> Option<(String, Instant)> {
        lock(&self.seen).waiting.clone()
    }
}

/// Ends the thread when it goes out of scope.
#[derive(Debug)]
pub(super) struct Ended {
    daemon: Arc<Daemon>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        lock(&self.daemon.checkpoints.state).is_ended = true;
        self.daemon.checkpoints.wake.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of checkpoints has panicked");
        }
    }
}

struct Locks<'a>(&'a Daemon);

impl Host for Locks<'_> {
    fn with_shard(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice)) {
        if let Some(Some(slice)) = self.0.shards.get(usize::from(shard.0)) {
            act(&mut lock(slice));
        }
    }

    fn with_log(&mut self, act: &mut dyn FnMut(&mut OwnerLog)) {
        act(&mut lock(&self.0.log));
    }

    fn with_both(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice, &mut OwnerLog)) {
        if let Some(Some(slice)) = self.0.shards.get(usize::from(shard.0)) {
            let mut slice = lock(slice);
            act(&mut slice, &mut lock(&self.0.log));
        }
    }
}

/// Gives the disk of an NSD that pages lie on.
pub(super) type DiskOf<'a> = dyn Fn(NsdId) -> Option<&'a Disk> + 'a;

/// Reads a page; blocks.
pub(super) fn read_page(disk_of: &DiskOf<'_>, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
    let size = usize::from(fetch.sectors) * usize::try_from(SECTOR_SIZE).expect("small");
    let mut bytes = vec![0; size];
    let disk = disk_of(fetch.at.nsd).ok_or(Unreadable)?;
    match disk.read_sectors(fetch.at.sector, &mut bytes) {
        Ok(()) => Ok(bytes.into()),
        Err(error) => {
            tracing::error!(%error, "a page of a tree cannot be read");
            Err(Unreadable)
        }
    }
}

/// Writes pages, those beside one another at once; blocks. Says of each whether it is there.
fn write_pages(disk_of: &DiskOf<'_>, mut writes: Vec<Write>) -> Vec<(Write, bool)> {
    writes.sort_unstable_by_key(|write| write.page.at);
    let mut ended = Vec::with_capacity(writes.len());
    let mut writes = writes.into_iter().peekable();
    while let Some(first) = writes.next() {
        let at = first.page.at;
        let mut bytes = first.page.page.bytes().to_vec();
        let mut run = vec![first];
        while let Some(next) = writes.next_if(|next| {
            let behind = at.sector + bytes.len() as u64 / SECTOR_SIZE;
            let is_beside = next.page.at.nsd == at.nsd && next.page.at.sector == behind;
            is_beside && bytes.len() < WRITE_SIZE_MAX
        }) {
            bytes.extend_from_slice(next.page.page.bytes());
            run.push(next);
        }
        let result = disk_of(at.nsd).map(|disk| disk.write_sectors(at.sector, &bytes));
        if let Some(Err(error)) = &result {
            tracing::error!(%error, "pages of a tree cannot be written");
        }
        let is_written = matches!(result, Some(Ok(())));
        ended.extend(run.into_iter().map(|write| (write, is_written)));
    }
    ended
}

/// False: perhaps not.
fn flush_nsd(disk_of: &DiskOf<'_>, nsd: NsdId) -> bool {
    let flush = || -> Option<Result<(), DiskError>> { Some(disk_of(nsd)?.flush()) };
    match flush() {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            tracing::error!(%error, "pages of a tree cannot be flushed");
            false
        }
        None => false,
    }
}

/// This node's own disks; calls block.
pub(super) struct OwnDisks<'a> {
    disk_of: &'a DiskOf<'a>,
    /// Requests of anybody that had failed when the first page of this checkpoint was written that is not flushed.
    losses_before: BTreeMap<NsdId, u64>,
    checkpoint: u64,
}

impl<'a> OwnDisks<'a> {
    /// Pages lie on these.
    pub(super) fn new(disk_of: &'a DiskOf<'a>) -> Self {
        let losses_before = BTreeMap::new();
        Self {
            disk_of,
            losses_before,
            checkpoint: 0,
        }
    }

    fn loss_count(&self, nsd: NsdId) -> u64 {
        (self.disk_of)(nsd).map_or(0, Disk::loss_count)
    }
}

impl Disks for OwnDisks<'_> {
    fn read(&mut self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        read_page(self.disk_of, fetch)
    }

    fn write(&mut self, writes: Vec<Write>) -> Vec<(Write, bool)> {
        for write in &writes {
            if std::mem::replace(&mut self.checkpoint, write.checkpoint) != write.checkpoint {
                // What the one before has written it has given up.
                self.losses_before.clear();
            }
            let nsd = write.page.at.nsd;
            let count = self.loss_count(nsd);
            self.losses_before.entry(nsd).or_insert(count);
        }
        write_pages(self.disk_of, writes)
    }

    fn flush(&mut self, nsds: &[NsdId]) -> Vec<NsdId> {
        let mut failed = Vec::new();
        for nsd in nsds {
            let is_flushed = flush_nsd(self.disk_of, *nsd);
            // Somebody else may have been told that what we wrote is lost.
            let before = self.losses_before.remove(nsd);
            let is_sure = before.is_none_or(|count| count == self.loss_count(*nsd));
            if !is_flushed || !is_sure {
                failed.push(*nsd);
            }
        }
        self.losses_before.clear();
        failed
    }
}

impl Daemon {
    /// Starts the thread.
    pub(super) fn start_checkpoints(self: &Arc<Self>) -> Result<Ended, Error> {
        let daemon = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || daemon.keep_checkpoints())
            .map_err(Error::Thread)?;
        Ok(Ended {
            daemon: Arc::clone(self),
            thread: Some(thread),
        })
    }

    /// Time has passed: sizes are taken, and a round may be due.
    pub(super) fn tick_checkpoints(&self) {
        self.retry_keys();
        let shards = self.shards.iter().flatten();
        let sizes = shards.map(|slice| ShardSize::of(&lock(slice).shard));
        let sizes: Vec<ShardSize> = sizes.collect();
        let is_wanted = self.evict_keys();
        let is_late = self.is_late(&sizes);
        let is_busy = {
            let mut keeper = lock(&self.checkpoints.keeper);
            if is_wanted {
                keeper.wish_round();
            }
            if is_late && !keeper.is_busy() {
                keeper.request_round();
            }
            keeper.on_tick(clock::now(), sizes, &mut lock(&self.log));
            if let Some((shard, failure)) = keeper.take_report() {
                tracing::warn!(%shard, %failure, "a checkpoint was not made; it will be tried again");
            }
            *lock(&self.checkpoints.seen) = Seen {
                counters: keeper.counters(),
                waiting: keeper.waiting(),
            };
            keeper.is_busy()
        };
        if is_busy {
            self.checkpoints.wake();
        }
    }

    /// Trees have pages and lack something, and nothing has changed for a while, or there is little room for pages: what was removed is in
    /// them still, and keeps its room until they are written anew.
    fn is_late(&self, sizes: &[ShardSize]) -> bool {
        let unsaved: u64 = sizes.iter().map(|size| size.unsaved).sum();
        let now = clock::now();
        let changed_at = {
            let mut seen = lock(&self.checkpoints.unsaved);
            if seen.0 != unsaved {
                *seen = (unsaved, now);
            }
            seen.1
        };
        if unsaved == 0 {
            return false;
        }
        // Little that is unsaved may be the removal of much.
        let quiet = if unsaved < LATE_SIZE_MIN {
            LONG_QUIET
        } else {
            QUIET
        };
        let log = lock(&self.log);
        let is_short = log.is_poor_of_pages() && unsaved >= LATE_SIZE_MIN;
        let is_time = now.since(changed_at) >= quiet || is_short;
        is_time && log.roots().any(|root| root.pages > 0)
    }

    /// Nothing is dirty any more: moves what the journal holds to the trees, so that the next start need not replay it.
    pub(super) fn checkpoint_before_end(self: &Arc<Self>) {
        let shards = self.shards.iter().flatten();
        let unsaved: u64 = shards.map(|slice| lock(slice).shard.unsaved_size()).sum();
        if unsaved < LAST_ROUND_SIZE_MIN || lock(&self.log).journal.is_poisoned() {
            return;
        }
        let begin = std::time::Instant::now();
        let before = lock(&self.checkpoints.keeper).counters();
        let mut tick = 0;
        let is_made = loop {
            let (counters, is_busy) = {
                let mut keeper = lock(&self.checkpoints.keeper);
                if keeper.counters().rounds == before.rounds {
                    keeper.wish_round();
                }
                (keeper.counters(), keeper.is_busy())
            };
            let is_given_up = lock(&self.log).journal.is_poisoned() || self.membership.is_evicted();
            if counters.failures > before.failures || is_given_up {
                break false;
            }
            let is_over = counters.rounds > before.rounds && !is_busy;
            if is_over && !lock(&self.log).has_new_roots() {
                break true;
            }
            // There may be no room for its pages, or a pause after failures.
            let patience = match counters.rounds > before.rounds {
                true => LAST_ROUND_PATIENCE,
                false => BEGIN_PATIENCE,
            };
            if begin.elapsed() > patience {
                break false;
            }
            tick += 1;
            self.tick_stopping(tick);
            std::thread::sleep(TICK);
        };
        tracing::info!(is_made, unsaved, took = ?begin.elapsed(), "the last round of checkpoints");
    }

    fn keep_checkpoints(self: &Arc<Self>) {
        let disk_of = |nsd: NsdId| self.disks.get(&nsd).map(|queue| queue.disk());
        let mut disks = OwnDisks::new(&disk_of);
        let keeper = &self.checkpoints.keeper;
        let mut pending = Pending::default();
        let mut marked = clock::now();
        while !self.checkpoints.is_ended() {
            let act = lock(keeper).step(clock::now(), &mut Locks(self));
            if pending.note(act) {
                continue;
            }
            if pending.is_empty() {
                if clock::now().since(marked) >= self.config.mark_interval {
                    let own = || self.disks.iter().map(|(nsd, queue)| (*nsd, queue.disk()));
                    super::start::log_unmarked(marks::renew(self.config.view.fs, own));
                    marked = clock::now();
                }
                self.checkpoints.wait();
            } else {
                pending.perform(&mut disks, &mut |tell| tell(&mut lock(keeper)));
            }
        }
    }

    /// Numbers of checkpoints, as members of a JSON object.
    pub(super) fn checkpoint_facts(&self) -> String {
        let counters = self.checkpoints.counters();
        let (pages, unsaved_due, overlay, segment) = {
            let log = lock(&self.log);
            (
                log.space.pages().counts(),
                log.unsaved_size_due(),
                log.journal.overlay_size(),
                log.journal.segment_size(),
            )
        };
        let counts: BTreeMap<&str, u64> = BTreeMap::from([
            ("rounds", counters.rounds),
            ("checkpoints", counters.checkpoints),
            ("keys", counters.keys),
            ("pages_written", counters.pages),
            ("failures", counters.failures),
            ("evacuations", counters.evacuations),
            ("page_sectors", pages.total),
            ("page_sectors_free", pages.free),
            ("page_sectors_taken", pages.taken),
            ("page_sectors_stale", pages.stale),
            ("unsaved_due_bytes", unsaved_due),
            ("overlay_bytes", overlay),
            ("segment_bytes", segment),
        ]);
        let members = counts
            .iter()
            .map(|(name, count)| format!("\"{name}\":{count}"));
        members.collect::<Vec<_>>().join(",")
    }
}
