//! The driver of reads for work whose inodes are not in memory (the twin of `os::daemon::keys`), and evictions at random.

use std::collections::{BTreeMap, VecDeque};

use meta::HashKey;
use node::Fetches;
use node::fetch::{Counters, Ready, install};
use store::tree::{Fetch, FetchId, Pages, Root, Unreadable};
use types::{FsId, InodeId, ShardId};

use super::transfer::{Done, Kind, Source};
use super::{Item, Node};

/// Key of the name hash.
pub const HASH_KEY: HashKey = HashKey(77);

/// See the module.
#[derive(Debug)]
pub(super) struct Keys {
    fetches: Fetches,
    /// Of so many ticks each brings an eviction; 0: there is none.
    evict_ticks: u64,
    /// The first roots that were read from, for who reads from these for ever.
    first_roots: BTreeMap<ShardId, Root>,
    evicted_count: u64,
}

impl Keys {
    pub(super) fn new(fs: FsId, evict_ticks: u64, gives_up: bool) -> Self {
        let mut fetches = Fetches::new(fs);
        if gives_up {
            fetches.give_up_at_once();
        }
        Self {
            fetches,
            evict_ticks,
            first_roots: BTreeMap::new(),
            evicted_count: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.fetches.count() == 0
    }
}

impl Node {
    /// Inodes that were evicted, and what reading them again did.
    pub fn key_counts(&self) -> (u64, Counters) {
        (self.keys.evicted_count, self.keys.fetches.counters())
    }

    /// Before anything is served.
    pub(super) fn allow_eviction(&mut self) {
        if self.keys.evict_ticks > 0 {
            for slice in self.shards.iter_mut().flatten() {
                slice.shard.allow_eviction();
            }
        }
    }

    /// Some of what is clean goes, now and then; now and then all of it.
    pub(super) fn evict_some(&mut self) {
        let ticks = self.keys.evict_ticks;
        if ticks == 0 || !self.tick_count.is_multiple_of(ticks) {
            return;
        }
        for slice in self.shards.iter_mut().flatten() {
            let visits = match self.prng.chance(1, 3) {
                true => usize::MAX,
                false => usize::try_from(self.prng.below(4)).expect("few"),
            };
            let evicted = slice.shard.evict(visits, u64::MAX, self.prng.chance(1, 2));
            self.keys.evicted_count += evicted.count() as u64;
        }
    }

    /// Work waits until these are resident.
    pub(super) fn want_keys(
        &mut self,
        inodes: &[InodeId],
        ready: Ready,
        items: &mut VecDeque<Item>,
    ) {
        let (log, first_roots) = (&self.log, &mut self.keys.first_roots);
        let is_stale = self.canary.stale_keys;
        let mut root_of = |shard| match is_stale {
            true => *first_roots.entry(shard).or_insert_with(|| log.root(shard)),
            false => log.root(shard),
        };
        let fetches = &mut self.keys.fetches;
        if let Err(pinned) = fetches.want(self.now, inodes, ready, &mut root_of) {
            self.unpin(&pinned);
        }
        self.drive_keys(items);
    }

    /// Work has run, or will not.
    pub(super) fn unpin(&mut self, pinned: &[InodeId]) {
        for ino in pinned {
            let slice = self.shards[usize::from(ino.shard().0)].as_mut();
            slice.expect("only own shards are read").shard.unpin(*ino);
        }
    }

    /// Time has passed: what could not be read is read again.
    pub(super) fn tick_keys(&mut self) {
        let log = &self.log;
        let mut root_of = |shard| log.root(shard);
        self.keys.fetches.on_tick(self.now, &mut root_of);
        let mut items = VecDeque::new();
        self.drive_keys(&mut items);
        self.run(items);
    }

    fn drive_keys(&mut self, items: &mut VecDeque<Item>) {
        while let Some(mut fetched) = self.keys.fetches.next_done() {
            let shard = fetched.ino().shard();
            let slice = self.shards.get_mut(usize::from(shard.0));
            let slice = slice.and_then(Option::as_mut);
            let slice = slice.expect("only own shards are read");
            if self.canary.stale_keys {
                *fetched.root_mut() = self.log.root(shard);
            }
            let mut decoded = fetched.decode(HASH_KEY);
            let installed = install(slice, &self.log, &mut decoded);
            let mut ready = Vec::new();
            let fetches = &mut self.keys.fetches;
            let _trouble = fetches.settled(self.now, installed, &mut ready);
            items.extend(ready.into_iter().map(Item::Fetched));
        }
        while let Some(fetch) = self.keys.fetches.next_read() {
            let source = Source::Count(u64::from(fetch.sectors));
            self.sectors(Kind::Read, fetch.at, source, Done::KeyRead(fetch.id));
        }
    }

    pub(super) fn key_read(&mut self, id: FetchId, bytes: Option<Vec<u8>>) {
        let bytes = bytes.map(Vec::into_boxed_slice).ok_or(Unreadable);
        self.keys.fetches.on_read(id, bytes);
        let mut items = VecDeque::new();
        self.drive_keys(&mut items);
        self.run(items);
    }

    /// The size of a file of this owner, wherever it is kept.
    pub fn owned_size(&self, ino: InodeId, read: &dyn Fn(&Fetch) -> Box<[u8]>) -> Option<u64> {
        let slice = self.shards.get(usize::from(ino.shard().0))?.as_ref()?;
        if !slice.shard.is_cold(ino) {
            return slice.shard.attr(ino).map(|attr| attr.size);
        }
        let (fs, root) = (self.view.fs, self.log.root(ino.shard()));
        let mut pages = Pages::new(1 << 20, 4);
        let read = &mut |fetch: &Fetch| Ok(read(fetch));
        let loaded = node::fetch::read_now(fs, HASH_KEY, &root, ino, &mut pages, read);
        loaded.ok().map(|loaded| loaded.attr().size)
    }

    /// At rest: all that is cold is read, so that all there is can be looked at. An error says what is not as it was.
    pub fn read_all(&mut self, read: &mut dyn FnMut(&Fetch) -> Box<[u8]>) -> Result<(), String> {
        let fs = self.view.fs;
        let mut pages = Pages::new(1 << 20, 4);
        for slice in self.shards.iter_mut().flatten() {
            let root = self.log.root(slice.shard.id());
            for ino in slice.shard.cold_inodes() {
                let read = &mut |fetch: &Fetch| Ok(read(fetch));
                let loaded = node::fetch::read_now(fs, HASH_KEY, &root, ino, &mut pages, read);
                let loaded = loaded.map_err(|error| error.to_string())?;
                slice.shard.take_in(ino.index(), loaded);
            }
        }
        Ok(())
    }
}
