//! The driver of reads for work whose inodes are not in memory (`node::fetch`), and what makes them leave it.
//!
//! Reads block on threads of their own, as those of checkpoints do: they need no frame of the pagepool, and no event loop waits
//! for them. The thread whose read was the last that some work waited for runs it.
//!
//! Invariants
//! - Lock order: that of the reads, then shards, then journal and space; the first is never held while a shard is locked.
//! - Nothing is read under a lock.
//! - The threads end before the disks do (`Ended`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use node::eviction::{Eviction, Resident, Step};
use node::fetch::{Counters, Decoded, Fetched, Ready, Trouble, install, read_now};
use node::meta::parts::Bounds;
use node::meta::{Evicted, HashKey};
use node::store::tree::{Fetch, Pages};
use node::{Fetches, Locked, Look, OwnerLog, OwnerSlice, Walk};
use types::{FsId, InodeId, Instant, NsdId};

use super::checkpoints::read_page;
use super::control::quoted;
use super::work::Item;
use super::{Daemon, Error, TICK, lock};
use crate::clock;

/// Threads that read: as many reads are under way at a time.
const THREAD_COUNT: usize = 4;
/// Inodes that are installed under one lock of their shard, the most.
const INSTALL_COUNT: usize = 32;
/// Inodes that cannot be read which `gupfs status` shows.
const FAULTS_SHOWN_MAX: usize = 16;
/// Bytes of pages in memory while all there is is looked at.
const WALK_CACHE_SIZE: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Keys {
    fetches: Mutex<Fetches>,
    key: HashKey,
    wake: Condvar,
    is_ended: AtomicBool,
    evicted: AtomicU64,
    /// Bytes of all resident inodes, as the last tick saw them.
    resident: AtomicU64,
    eviction: Mutex<Eviction>,
    /// Somebody looks at all there is.
    looking: Mutex<()>,
}

impl Keys {
    pub(super) fn new(fs: FsId, key: HashKey, limit: u64) -> Self {
        Self {
            fetches: Mutex::new(Fetches::new(fs)),
            key,
            wake: Condvar::new(),
            is_ended: AtomicBool::new(false),
            evicted: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            eviction: Mutex::new(Eviction::new(limit)),
            looking: Mutex::new(()),
        }
    }

    /// Of names and attributes in trees.
    pub(super) const fn hash_key(&self) -> HashKey {
        self.key
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

    /// Inodes that could not be read when they were last tried, the first of them, as members of a JSON array.
    pub(super) fn unreadable_facts(&self) -> String {
        let fetches = lock(&self.fetches);
        let now = clock::now();
        let shown = fetches.faults().take(FAULTS_SHOWN_MAX);
        let shown = shown.map(|(ino, error, since)| {
            let ms = now.since(since).0 / 1_000_000;
            let error = quoted(&error.to_string());
            format!(
                "{{\"inode\":{},\"for_ms\":{ms},\"error\":{error}}}",
                ino.raw()
            )
        });
        shown.collect::<Vec<_>>().join(",")
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

fn report(trouble: &Trouble) {
    match trouble {
        Trouble::Begins(inode, error) => {
            tracing::warn!(%inode, %error, "metadata cannot be read; it will be tried again");
        }
        Trouble::Told(inode, error) => {
            tracing::error!(%inode, %error, "metadata cannot be read; what needs it is answered EIO");
        }
        Trouble::Ended(inode, tries) => {
            tracing::warn!(%inode, tries, "metadata could be read after reads that failed");
        }
    }
}

impl Daemon {
    /// Starts the threads, lets inodes leave memory if there is a limit, and directories be split if the labels allow it.
    pub(super) fn start_keys(self: &Arc<Self>) -> Result<Ended, Error> {
        if self.config.has_parts {
            for slice in self.shards.iter().flatten() {
                lock(slice).shard.allow_parts(Bounds::DEFAULT);
            }
        }
        {
            let mut slices: Vec<_> = self.shards.iter().flatten().map(lock).collect();
            let mut locked = Locked::new(slices.iter_mut().map(|slice| &mut **slice));
            locked.hold_prepared(&self.owner_env());
        }
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
        ready: Ready,
        items: &mut VecDeque<Item>,
    ) {
        let parked = {
            let mut fetches = lock(&self.keys.fetches);
            let mut root_of = |shard| lock(&self.log).root(shard);
            fetches.want(clock::now(), inodes, ready, &mut root_of)
        };
        if let Err(pinned) = parked {
            self.unpin(&pinned);
        }
        self.settle_keys(items);
        self.keys.wake.notify_all();
    }

    /// Work has run, or will not.
    pub(super) fn unpin(&self, pinned: &[InodeId]) {
        for ino in pinned {
            lock(self.own_slice(*ino)).shard.unpin(*ino);
        }
    }

    fn own_slice(&self, ino: InodeId) -> &Mutex<OwnerSlice> {
        let slice = self.shards.get(usize::from(ino.shard().0));
        let slice = slice.and_then(Option::as_ref);
        slice.expect("only own shards miss inodes")
    }

    /// Time has passed: what could not be read is read again.
    pub(super) fn retry_keys(&self) {
        let is_any = {
            let mut fetches = lock(&self.keys.fetches);
            let mut root_of = |shard| lock(&self.log).root(shard);
            fetches.on_tick(clock::now(), &mut root_of)
        };
        if is_any {
            self.keys.wake.notify_all();
        }
    }

    /// Installs what has been read: what a page has brought is of one shard mostly, which is locked once for it.
    fn settle_keys(&self, items: &mut VecDeque<Item>) {
        loop {
            let fetched: Vec<Fetched> = {
                let mut fetches = lock(&self.keys.fetches);
                let done = std::iter::from_fn(|| fetches.next_done());
                done.take(INSTALL_COUNT).collect()
            };
            if fetched.is_empty() {
                return;
            }
            let decoded = fetched.into_iter().map(|one| one.decode(self.keys.key));
            let mut decoded: Vec<Decoded> = decoded.collect();
            let mut installed = Vec::with_capacity(decoded.len());
            let mut left = &mut decoded[..];
            while let Some(first) = left.first() {
                let ino = first.ino();
                let is_other = |one: &Decoded| one.ino().shard() != ino.shard();
                let count = left.iter().position(is_other).unwrap_or(left.len());
                let (of_shard, others) = left.split_at_mut(count);
                left = others;
                let mut slice = lock(self.own_slice(ino));
                let log = lock(&self.log);
                let one = |decoded| install(&mut slice, &log, decoded);
                installed.extend(of_shard.iter_mut().map(one));
            }
            let mut ready = Vec::new();
            let mut troubles = Vec::new();
            {
                let (mut fetches, now) = (lock(&self.keys.fetches), clock::now());
                for installed in installed {
                    troubles.extend(fetches.settled(now, installed, &mut ready));
                }
            }
            troubles.iter().for_each(report);
            items.extend(ready.into_iter().map(Item::Fetched));
        }
    }

    fn read_keys(self: &Arc<Self>) {
        let keys = &self.keys;
        while !keys.is_ended.load(Ordering::Acquire) {
            let fetch = {
                let mut fetches = lock(&keys.fetches);
                let fetch = fetches.next_read();
                if fetch.is_none() {
                    let waited = keys.wake.wait_timeout(fetches, TICK);
                    drop(waited.unwrap_or_else(PoisonError::into_inner));
                }
                fetch
            };
            if let Some(fetch) = fetch {
                let bytes = self.read_tree(&fetch);
                lock(&keys.fetches).on_read(fetch.id, bytes);
                // It may have made more reads due than this thread takes.
                keys.wake.notify_all();
            }
            // Also what a retry found in the pages that were there: nobody else looks for that.
            let mut items = VecDeque::new();
            self.settle_keys(&mut items);
            self.run(items);
        }
    }

    /// Reads a page of an own tree; blocks.
    pub(super) fn read_tree(
        &self,
        fetch: &Fetch,
    ) -> Result<Box<[u8]>, node::store::tree::Unreadable> {
        let disk_of = |nsd: NsdId| self.disks.get(&nsd).map(|queue| queue.disk());
        read_page(&disk_of, fetch)
    }

    /// Time has passed: what is clean and has not been used leaves memory, as far as there is too much. True: what is left is
    /// mostly not in the trees yet, and a round of checkpoints should begin.
    pub(super) fn evict_keys(&self) -> bool {
        let shards: Vec<&Mutex<OwnerSlice>> = self.shards.iter().flatten().collect();
        let resident = |slice: &&Mutex<OwnerSlice>| {
            let slice = lock(slice);
            Resident {
                bytes: slice.shard.resident_size(),
                count: slice.shard.resident_count(),
            }
        };
        let resident: Vec<Resident> = shards.iter().map(resident).collect();
        let all = resident.iter().map(|shard| shard.bytes).sum();
        self.keys.resident.store(all, Ordering::Relaxed);
        if !self.is_serving() {
            return false;
        }
        let mut evict = |shard: usize, visits: usize, bytes: u64| {
            // Dropped when the shard is unlocked again.
            let evicted: Evicted = lock(shards[shard]).shard.evict(visits, bytes, false);
            let count = evicted.count() as u64;
            self.keys.evicted.fetch_add(count, Ordering::Relaxed);
            Step {
                visited: evicted.visited as u64,
                freed: evicted.bytes,
                unsaved: evicted.unsaved,
                heavy: evicted.heavy,
            }
        };
        lock(&self.keys.eviction).on_tick(clock::now(), &resident, &mut evict)
    }

    /// The walk over all files of the own shards, and what the space has in use at that moment. Blocks, and holds everybody up only
    /// while what is in memory is looked at.
    /// `None`: the daemon stops.
    pub(super) fn walk_space<T>(&self, show: impl FnOnce(&OwnerLog) -> T) -> Option<(Walk, T)> {
        let _one = lock(&self.keys.looking);
        let mut walk = Walk::default();
        let shards: Vec<&Mutex<OwnerSlice>> = self.shards.iter().flatten().collect();
        for (done, shard) in shards.iter().enumerate() {
            if !self.look_at(shard, &mut walk) {
                shards.iter().for_each(|s| lock(s).shard.end_look());
                return None;
            }
            for seen in &shards[..=done] {
                Look::moved(&mut lock(seen), &mut walk);
            }
        }
        let mut guards: Vec<MutexGuard<'_, OwnerSlice>> =
            shards.iter().map(|shard| lock(shard)).collect();
        let log = lock(&self.log);
        for slice in &mut guards {
            Look::moved(slice, &mut walk);
            slice.shard.end_look();
            slice.shard.visit_runs(&mut |run| walk.visit(run));
        }
        let used = log.space.used();
        let shown = show(&log);
        drop((guards, log));
        walk.compare(&used);
        Some((walk, shown))
    }

    /// False: the daemon stops.
    fn look_at(&self, shard: &Mutex<OwnerSlice>, walk: &mut Walk) -> bool {
        let mut pages = Pages::new(WALK_CACHE_SIZE, 1);
        let mut look = Look::begin(&mut lock(shard));
        let next = |look: &mut Look| look.next(&mut lock(shard), &lock(&self.log));
        while let Some(mut batch) = next(&mut look) {
            if self.stop.is_set() {
                return false;
            }
            loop {
                let (fs, key) = (self.config.view.fs, self.keys.key);
                batch.read(fs, key, &mut pages, &mut |fetch| self.read_tree(fetch));
                let took = look.took(&mut lock(shard), &lock(&self.log), batch, walk);
                match took {
                    Ok(errors) => {
                        for error in errors {
                            tracing::error!(%error, "metadata cannot be read");
                        }
                        break;
                    }
                    Err(more) => batch = *more,
                }
            }
        }
        true
    }

    /// Takes a cold inode of an own shard in, for who looks at it alone; blocks. False: it cannot be read.
    pub(super) fn take_in_now(&self, ino: InodeId) -> bool {
        let Some(Some(shard)) = self.shards.get(usize::from(ino.shard().0)) else {
            return false;
        };
        let (fs, key) = (self.config.view.fs, self.keys.key);
        let mut pages = Pages::new(WALK_CACHE_SIZE, 1);
        let root_if_cold = |slice: &OwnerSlice| {
            let is_cold = slice.shard.is_cold(ino);
            is_cold.then(|| lock(&self.log).root(ino.shard()))
        };
        loop {
            let Some(root) = root_if_cold(&lock(shard)) else {
                return true;
            };
            let read = &mut |fetch: &Fetch| self.read_tree(fetch);
            let loaded = read_now(fs, key, &root, ino, &mut pages, read);
            let mut slice = lock(shard);
            // From another root it may be as it was once, or nothing at all.
            if root_if_cold(&slice) != Some(root) {
                continue;
            }
            match loaded {
                Ok(loaded) => return slice.shard.take_in(ino.index(), loaded),
                Err(error) => {
                    drop(slice);
                    tracing::error!(%error, "metadata cannot be read");
                    return false;
                }
            }
        }
    }
}
