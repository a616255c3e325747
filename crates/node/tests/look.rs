//! A look at all files of a shard while they come into memory, change, are saved and leave it again: what it counts is what the files name
//! when it ends.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use data::SectorSet;
use meta::{HashKey, Mutation, Shard};
use node::fetch::read_now;
use node::keeper::{Disks, PlainHost, checkpoint_now};
use node::{Look, OwnerLog, OwnerSlice, Walk};
use stdx::Prng;
use store::tree::{Fetch, Pages, Unreadable};
use types::extent::{Checksums, Extent};
use types::{Epoch, FsId, InodeId, Instant, Location, Lsn, NsdId, Run, ShardId};

mod common;

use common::owner::{PageDisk, log, snapshot};

const KEY: HashKey = HashKey(7);
const SHARD: ShardId = ShardId(0);
const FS: FsId = FsId(0);
const DATA: NsdId = NsdId(9);
/// More than the look reads between two locks.
const FILE_COUNT: u64 = 900;
const FIRST: u64 = 10;

struct World {
    prng: Prng,
    slices: Vec<Option<OwnerSlice>>,
    log: OwnerLog,
    pages: PageDisk,
    /// Where each file lies.
    expected: BTreeMap<u64, Run>,
    next_sector: u64,
}

fn ino(index: u64) -> InodeId {
    InodeId::new(SHARD, index)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut shard = Shard::new(SHARD, KEY);
        shard.track();
        for index in FIRST..FIRST + FILE_COUNT {
            shard.apply(&common::file(ino(index), 1));
        }
        let tokens = token::Manager::new(Epoch(1), token::Options::default());
        let mut world = Self {
            prng: Prng::new(seed),
            slices: vec![Some(OwnerSlice::new(shard, tokens, Lsn(0)))],
            log: log(),
            pages: PageDisk::default(),
            expected: BTreeMap::new(),
            next_sector: 1,
        };
        for index in FIRST..FIRST + FILE_COUNT {
            world.write(index);
        }
        world.log.note_starving(true);
        world.checkpoint();
        world.shard().allow_eviction();
        let evicted = world.shard().evict(usize::MAX, u64::MAX, true);
        assert_eq!(evicted.count() as u64, FILE_COUNT);
        world
    }

    fn slice(&mut self) -> &mut OwnerSlice {
        self.slices[0].as_mut().unwrap()
    }

    fn shard(&mut self) -> &mut Shard {
        &mut self.slice().shard
    }

    fn draw(&mut self, count: u64) -> u64 {
        self.prng.below(count)
    }

    /// A resident file lies elsewhere from now on.
    fn write(&mut self, index: u64) {
        let at = Location {
            nsd: DATA,
            sector: self.next_sector,
        };
        self.next_sector += 2;
        let extent = Extent {
            file_sector: 0,
            length: 1,
            birth: 0,
            is_shared: false,
            locations: vec![at],
            checksums: Checksums::Inline { crcs: vec![7] },
        };
        self.shard().apply(&Mutation::MapPut {
            index,
            extents: vec![extent],
            pieces: Vec::new(),
        });
        self.expected.insert(index, Run { at, count: 1 });
    }

    fn checkpoint(&mut self) {
        let mut host = PlainHost {
            shards: &mut self.slices,
            log: &mut self.log,
        };
        let (_, failure) = checkpoint_now(Instant(1), &mut host, &mut self.pages);
        assert_eq!(failure, None);
        assert_eq!(self.shard().unsaved_size(), 0, "a round was made");
        snapshot(&mut self.log);
    }

    fn take_in(&mut self, index: u64) {
        let root = self.log.root(SHARD);
        let mut pages = Pages::new(1 << 20, 1);
        let read = &mut |fetch: &Fetch| self.pages.read(fetch);
        let loaded = read_now(FS, KEY, &root, ino(index), &mut pages, read).unwrap();
        assert!(self.shard().take_in(index, loaded));
    }

    /// What others do while nobody holds the lock.
    fn disturb(&mut self) {
        for _ in 0..self.draw(20) {
            let index = FIRST + self.draw(FILE_COUNT);
            let is_gone = !self.shard().exists(ino(index));
            match self.draw(13) {
                _ if is_gone => {}
                0..4 if self.shard().is_cold(ino(index)) => self.take_in(index),
                4..7 if !self.shard().is_cold(ino(index)) => self.write(index),
                7 if !self.shard().is_cold(ino(index)) => {
                    self.shard().apply(&Mutation::InodeRemove { index });
                    self.expected.remove(&index);
                }
                8..11 => drop(self.shard().evict(30, u64::MAX, true)),
                11 if self.draw(3) == 0 => self.checkpoint(),
                // All of it at once: whoever has read it before has read what it was.
                12 if self.draw(3) == 0 && self.shard().is_cold(ino(index)) => {
                    self.take_in(index);
                    self.write(index);
                    self.checkpoint();
                    drop(self.shard().evict(usize::MAX, u64::MAX, true));
                }
                _ => {}
            }
        }
    }

    /// Every so many reads of a page fail. Returns how often more was cold than was read.
    fn look(&mut self, walk: &mut Walk, fails: Option<u32>) -> u32 {
        let (mut more, mut errors, mut reads) = (0, 0, 0);
        let mut look = Look::begin(self.slice());
        while let Some(mut batch) = look.next(self.slices[0].as_mut().unwrap(), &self.log) {
            loop {
                self.disturb();
                let mut pages = Pages::new(1 << 20, 1);
                batch.read(FS, KEY, &mut pages, &mut |fetch| {
                    reads += 1;
                    match fails {
                        Some(every) if reads % every == 0 => Err(Unreadable),
                        _ => self.pages.read(fetch),
                    }
                });
                self.disturb();
                let slice = self.slices[0].as_mut().unwrap();
                match look.took(slice, &self.log, batch, walk) {
                    Ok(found) => {
                        errors += found.len();
                        break;
                    }
                    Err(rest) => {
                        more += 1;
                        batch = *rest;
                    }
                }
            }
        }
        assert_eq!(fails.is_some(), errors > 0);
        more
    }

    fn compare(&mut self, walk: &mut Walk) {
        let slice = self.slice();
        Look::moved(slice, walk);
        slice.shard.end_look();
        slice.shard.visit_runs(&mut |run| walk.visit(run));
        slice.shard.check();
        let mut used = SectorSet::new();
        self.expected.values().for_each(|run| used.insert(*run));
        walk.compare(&used);
    }
}

fn counts(walk: &Walk) -> (u64, u64, u64) {
    (walk.twice, walk.leaked, walk.missing)
}

#[test]
fn what_moves_behind_the_back_of_a_look_is_counted_once() {
    let mut more = 0;
    for seed in 0..40 {
        let mut world = World::new(seed);
        let mut walk = Walk::default();
        more += world.look(&mut walk, None);
        world.disturb();
        world.compare(&mut walk);
        assert!(walk.is_clean(), "seed {seed}: {:?}", counts(&walk));
        assert_eq!(walk.mapped, world.expected.len() as u64);
    }
    assert!(more > 0, "nothing left memory while a batch was read");
}

/// What cannot be read is missing in the walk, and no more than that: it may be read later, and come into memory.
#[test]
fn what_cannot_be_read_is_missing_and_nothing_else() {
    for seed in 0..10 {
        let mut world = World::new(seed);
        let mut walk = Walk::default();
        world.look(&mut walk, Some(7));
        world.disturb();
        world.compare(&mut walk);
        let (twice, leaked, missing) = counts(&walk);
        assert_eq!((twice, missing), (0, 0), "seed {seed}");
        assert!(leaked > 0, "seed {seed}");
    }
}
