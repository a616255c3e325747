//! The driver of reads for work whose inodes are not in memory (`node::fetch`), and what makes them leave it.
//!
//! Reads block on threads of their own, as those of checkpoints do: they need no frame of the pagepool, and no event loop waits
//! for them. The thread whose read was the last that some work waited for runs it.
//!
//! Invariants
//! - Lock order: that of the reads, then shards, then journal and space; the first is never held while a shard is locked.
//! - Nothing is read under a lock, but for who asks to look at an inode, or at all of them, by a command.
//! - The threads end before the disks do (`Ended`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use node::fetch::{Counters, install, read_now};
use node::meta::{Evicted, HashKey, Loaded, Shard};
use node::store::tree::{Fetch, Pages};
use node::{Fetches, Work};
use types::{FsId, InodeId, Instant, NsdId};

use super::checkpoints::read_page;
use super::work::Item;
use super::{Daemon, Error, TICK, lock};
use crate::clock;

/// Threads that read: as many reads are under way at a time.
const THREAD_COUNT: usize = 4;
/// Inodes that are looked at under one lock of a shard.
const VISIT_COUNT: usize = 256;
/// Locks of one tick: a few milliseconds of it at the most.
const STEP_COUNT_MAX: usize = 64;
/// What is evicted beyond the limit, as one part in so many of it: so that not every miss brings an eviction.
const SLACK: u64 = 16;
/// After a round of checkpoints was asked for to make room, the next one is asked for so much later.
const ROUND_PAUSE: types::Duration = types::Duration::from_secs(1);
/// After an eviction that found too little that may go, the next one comes so much later: what stays is looked at in vain.
const VAIN_PAUSE: types::Duration = types::Duration::from_millis(200);
/// Bytes of pages in memory while all there is is looked at.
const WALK_CACHE_SIZE: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Keys {
    fetches: Mutex<Fetches>,
    wake: Condvar,
    is_ended: AtomicBool,
    evicted: AtomicU64,
    /// Bytes of all resident inodes, as the last tick saw them.
    resident: AtomicU64,
    /// When a round of checkpoints was last asked for to make room.
    asked: Mutex<Instant>,
    /// The next eviction comes no sooner.
    not_before: Mutex<Instant>,
}

impl Keys {
    pub(super) fn new(fs: FsId, key: HashKey) -> Self {
        Self {
            fetches: Mutex::new(Fetches::new(fs, key)),
            wake: Condvar::new(),
            is_ended: AtomicBool::new(false),
            evicted: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            asked: Mutex::new(Instant(0)),
            not_before: Mutex::new(Instant(0)),
        }
    }

    /// What reading did.
    pub(super) fn counters(&self) -> Counters {
        lock(&self.fetches).counters()
    }

    /// Inodes evicted since the start, and bytes of those that are resident.
    pub(super) fn evicted_and_resident(&self) -> (u64, u64) {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (load(&self.evicted), load(&self.resident))
    }

    /// Who waits for which inodes, and since when.
    pub(super) fn waiting(&self) -> Vec<(String, Instant)> {
        lock(&self.fetches).waiting().collect()
    }
}

/// Ends the threads when it goes out of scope.
#[derive(Debug)]
pub(super) struct Ended {
    daemon: Arc<Daemon>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.daemon.keys.is_ended.store(true, Ordering::Release);
        self.daemon.keys.wake.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that reads trees has panicked");
            }
        }
    }
}

impl Daemon {
    /// Starts the threads, and lets inodes leave memory if there is a limit.
    pub(super) fn start_keys(self: &Arc<Self>) -> Result<Ended, Error> {
        if self.config.metadata_bytes_max > 0 {
            for slice in self.shards.iter().flatten() {
                lock(slice).shard.allow_eviction();
            }
        }
        let mut ended = Ended {
            daemon: Arc::clone(self),
            threads: Vec::new(),
        };
        for number in 0..THREAD_COUNT {
            let daemon = Arc::clone(self);
            let thread = std::thread::Builder::new()
                .name(format!("keys-{number}"))
                .spawn(move || daemon.read_keys())
                .map_err(Error::Thread)?;
            ended.threads.push(thread);
        }
        Ok(ended)
    }

    /// Work waits until these are resident.
    pub(super) fn want_keys(
        self: &Arc<Self>,
        inodes: &[InodeId],
        work: Work,
        items: &mut VecDeque<Item>,
    ) {
        {
            let mut fetches = lock(&self.keys.fetches);
            let mut root_of = |shard| lock(&self.log).root(shard);
            fetches.want(clock::now(), inodes, work, &mut root_of);
        }
        self.settle_keys(items);
        self.keys.wake.notify_all();
    }

    /// Installs what has been read.
    fn settle_keys(&self, items: &mut VecDeque<Item>) {
        loop {
            let Some(fetched) = lock(&self.keys.fetches).next_done() else {
                return;
            };
            let ino = fetched.ino;
            let slice = self.shards.get(usize::from(ino.shard().0));
            let slice = slice.and_then(Option::as_ref);
            let slice = slice.expect("only own shards miss inodes");
            let installed = {
                let mut slice = lock(slice);
                let log = lock(&self.log);
                install(&mut slice, &log, fetched)
            };
            if let node::fetch::Installed::Failed(error) = &installed {
                tracing::error!(%error, "metadata cannot be read");
            }
            let mut ready = Vec::new();
            lock(&self.keys.fetches).settled(ino, installed, &mut ready);
            items.extend(ready.into_iter().map(Item::Owner));
        }
    }

    fn read_keys(self: &Arc<Self>) {
        let keys = &self.keys;
        while !keys.is_ended.load(Ordering::Acquire) {
            let fetch = {
                let mut fetches = lock(&keys.fetches);
                match fetches.next_read() {
                    Some(fetch) => fetch,
                    None => {
                        let waited = keys.wake.wait_timeout(fetches, TICK);
                        drop(waited.unwrap_or_else(PoisonError::into_inner));
                        continue;
                    }
                }
            };
            let bytes = self.read_tree(&fetch);
            lock(&keys.fetches).on_read(fetch.id, bytes);
            // It may have made more reads due than this thread takes.
            keys.wake.notify_all();
            let mut items = VecDeque::new();
            self.settle_keys(&mut items);
            self.run(items);
        }
    }

    /// Reads a page of an own tree; blocks.
    fn read_tree(&self, fetch: &Fetch) -> Result<Box<[u8]>, node::store::tree::Unreadable> {
        let disk_of = |nsd: NsdId| self.disks.get(&nsd).map(|queue| queue.disk());
        read_page(&disk_of, fetch)
    }

    /// Time has passed: what is clean and has not been used leaves memory, as far as there is too much. True: what is left is
    /// mostly not in the trees yet, and a round of checkpoints should begin.
    pub(super) fn evict_keys(&self, unsaved: u64) -> bool {
        let limit = self.config.metadata_bytes_max;
        let sizes = self.shards.iter().flatten();
        let sizes: Vec<u64> = sizes.map(|s| lock(s).shard.resident_size()).collect();
        let all: u64 = sizes.iter().sum();
        self.keys.resident.store(all, Ordering::Relaxed);
        if limit == 0 || all <= limit || !self.is_serving() {
            return false;
        }
        let now = clock::now();
        if now < *lock(&self.keys.not_before) {
            return false;
        }
        let goal = all - (limit - limit / SLACK);
        let mut freed = 0;
        let mut steps = STEP_COUNT_MAX;
        for (slice, size) in self.shards.iter().flatten().zip(sizes) {
            // Each gives as it has.
            let share = u64::try_from(u128::from(goal) * u128::from(size) / u128::from(all));
            let share = share.expect("no more than the goal").max(1);
            let mut left = share;
            let mut visits = lock(slice).shard.resident_count();
            while left > 0 && visits > 0 && steps > 0 && freed < goal {
                steps -= 1;
                let evicted: Evicted = lock(slice).shard.evict(VISIT_COUNT, left, false);
                if evicted.visited == 0 {
                    break;
                }
                visits = visits.saturating_sub(evicted.visited as u64);
                left = left.saturating_sub(evicted.bytes);
                freed += evicted.bytes;
                let count = evicted.count() as u64;
                self.keys.evicted.fetch_add(count, Ordering::Relaxed);
            }
        }
        if freed < goal / 2 {
            *lock(&self.keys.not_before) = now + VAIN_PAUSE;
        }
        if freed >= goal || unsaved < limit / 4 {
            return false;
        }
        let mut asked = lock(&self.keys.asked);
        if now.since(*asked) < ROUND_PAUSE {
            return false;
        }
        *asked = now;
        true
    }

    /// Shows all cold inodes of an own shard; blocks, with the shard and the log locked by the caller: for who looks at all
    /// there is.
    pub(super) fn visit_cold(
        &self,
        shard: &Shard,
        root: &node::store::tree::Root,
        visit: &mut dyn FnMut(InodeId, Option<Loaded>),
    ) {
        let mut pages = Pages::new(WALK_CACHE_SIZE, 1);
        for ino in shard.cold_inodes() {
            visit(ino, self.read_cold(shard, root, ino, &mut pages));
        }
    }

    /// A cold inode of an own shard, read from its tree; blocks. `None`: it cannot be read.
    pub(super) fn read_cold(
        &self,
        shard: &Shard,
        root: &node::store::tree::Root,
        ino: InodeId,
        pages: &mut Pages,
    ) -> Option<Loaded> {
        let (fs, key) = (self.config.view.fs, shard.hash_key());
        let read = &mut |fetch: &Fetch| self.read_tree(fetch);
        match read_now(fs, key, root, ino, pages, read) {
            Ok(loaded) => Some(loaded),
            Err(error) => {
                tracing::error!(%error, "metadata cannot be read");
                None
            }
        }
    }

    /// Takes a cold inode of an own shard in, for who looks at it alone. False: it cannot be read.
    pub(super) fn take_in_now(&self, ino: InodeId) -> bool {
        let Some(Some(slice)) = self.shards.get(usize::from(ino.shard().0)) else {
            return false;
        };
        let mut slice = lock(slice);
        if !slice.shard.is_cold(ino) {
            return true;
        }
        // While the shard is locked its root does not change.
        let root = lock(&self.log).root(ino.shard());
        let mut pages = Pages::new(WALK_CACHE_SIZE, 1);
        let loaded = self.read_cold(&slice.shard, &root, ino, &mut pages);
        loaded.is_some_and(|loaded| slice.shard.take_in(ino.index(), loaded))
    }
}
