//! Rounds of checkpoints where some trees cannot be read.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use meta::{HashKey, Op, Shard};
use node::clearing::{Found, Search};
use node::keeper::{Disks, Keeper, Pending, PlainHost, ShardSize, checkpoint_now};
use node::store::tree::{Fetch, Pages, Unreadable};
use node::{OwnerLog, OwnerSlice};
use types::{
    Duration, Epoch, Errno, InodeId, Instant, Location, Lsn, Name, NsdId, SetAttr, ShardId,
};

mod common;

use common::owner::{NSD, PageDisk, flush, log_on};

const KEY: HashKey = HashKey(7);
/// Whose tree is damaged, and another one.
const BAD: ShardId = ShardId(0);
const GOOD: ShardId = ShardId(1);

struct World {
    shards: Vec<Option<OwnerSlice>>,
    log: OwnerLog,
    pages: PageDisk,
}

impl World {
    /// Both trees have some files, and no page of the one can be read.
    fn new() -> Self {
        Self::on(&[NSD])
    }

    fn on(nsds: &[NsdId]) -> Self {
        let shards = [BAD, GOOD].map(|id| {
            let mut shard = Shard::new(id, KEY);
            shard.track();
            let tokens = token::Manager::new(Epoch(1), token::Options::default());
            Some(OwnerSlice::new(shard, tokens, Lsn(0)))
        });
        let mut log = log_on(nsds);
        // So little is not worth a region for pages.
        log.note_starving(true);
        let mut world = Self {
            shards: shards.into(),
            log,
            pages: PageDisk::default(),
        };
        world.make(BAD, 100..200);
        world.checkpoint();
        let damaged: BTreeSet<Location> = world.pages.0.keys().copied().collect();
        world.make(GOOD, 100..200);
        world.checkpoint();
        world.pages.0.retain(|at, _| !damaged.contains(at));
        world
    }

    fn make(&mut self, id: ShardId, indices: std::ops::Range<u64>) {
        let slice = self.shards[usize::from(id.0)].as_mut().unwrap();
        for index in indices {
            slice.shard.apply(&common::file(InodeId::new(id, index), 1));
        }
    }

    fn sizes(&self) -> Vec<ShardSize> {
        let slices = self.shards.iter().flatten();
        slices.map(|slice| ShardSize::of(&slice.shard)).collect()
    }

    fn unsaved(&self, id: ShardId) -> u64 {
        let slice = self.shards[usize::from(id.0)].as_ref().unwrap();
        slice.shard.unsaved_size()
    }

    /// Before anything is damaged.
    fn checkpoint(&mut self) {
        let mut host = PlainHost {
            shards: &mut self.shards,
            log: &mut self.log,
        };
        let (counters, failure) = checkpoint_now(Instant(1), &mut host, &mut self.pages);
        assert_eq!((counters.checkpoints, failure), (1, None));
        self.snapshot();
    }

    fn snapshot(&mut self) {
        common::owner::snapshot(&mut self.log);
        flush(&mut self.log);
    }

    /// A tick of the driver.
    fn look(&mut self, keeper: &mut Keeper, now: Instant) {
        keeper.on_tick(now, self.sizes(), &mut self.log);
    }

    /// A tick of the driver, to which a round would be welcome, and all that it begins.
    fn tick(&mut self, keeper: &mut Keeper, now: Instant) {
        keeper.request_round();
        self.tick_alone(keeper, now);
    }

    /// The same, and no round would be welcome.
    fn tick_alone(&mut self, keeper: &mut Keeper, now: Instant) {
        self.look(keeper, now);
        let mut pending = Pending::default();
        loop {
            let mut host = PlainHost {
                shards: &mut self.shards,
                log: &mut self.log,
            };
            if pending.note(keeper.step(now, &mut host)) {
                continue;
            }
            if pending.is_empty() {
                return;
            }
            pending.perform(&mut self.pages, &mut |act| act(keeper));
        }
    }
}

/// One change in a shard whose tree cannot be read: it is tried now and then, and what changes in others is saved at once all the time.
#[test]
fn a_tree_that_cannot_be_read_holds_no_other_one_up() {
    let mut world = World::new();
    let mut keeper = Keeper::new();
    world.make(BAD, 300..301);
    let mut now = Instant(1_000_000_000);
    for second in 0..60 {
        for _ in 0..10 {
            world.tick(&mut keeper, now);
            now = now + Duration::from_millis(100);
        }
        world.make(GOOD, 1000 + second..1001 + second);
        world.tick(&mut keeper, now);
        assert_eq!(world.unsaved(GOOD), 0, "second {second}");
        assert!(world.unsaved(BAD) > 0);
        world.snapshot();
    }
    let counters = keeper.counters();
    assert_eq!(counters.checkpoints, 60);
    // Twice as late each time.
    assert!((5..12).contains(&counters.failures), "{counters:?}");
}

/// Where it is that tree that fills the journal what adds to it is refused, as where all checkpoints fail: removals need the rest.
#[test]
fn a_tree_that_cannot_be_read_and_fills_the_journal_is_said() {
    for id in [BAD, GOOD] {
        let mut world = World::new();
        let mut keeper = Keeper::new();
        let most = world.log.journal.segment_size() / 2;
        let mut index = 300;
        while world.unsaved(id) <= most {
            world.make(id, index..index + 1000);
            index += 1000;
        }
        let now = Instant(1_000_000_000);
        world.tick(&mut keeper, now);
        assert_eq!(keeper.counters().failures, u64::from(id == BAD));
        world.snapshot();
        world.look(&mut keeper, now + Duration::from_millis(50));
        let set = SetAttr {
            permissions: Some(0o600),
            ..SetAttr::default()
        };
        let ino = InodeId::new(id, 100);
        let change = Op::SetAttr {
            ino,
            set,
            standing: None,
        };
        let removal = Op::Unlink {
            parent: ino,
            known: None,
            name: Name::new(b"name").unwrap(),
            standing: None,
        };
        let is_refused = |op| world.log.admit(common::life(1), op, 0) == Err(Errno::ENOSPC);
        assert_eq!(is_refused(&change), id == BAD, "{id}");
        assert!(!is_refused(&removal), "{id}");
    }
}

/// Together they fill the journal, each alone is less than what makes a round due: what can be saved is, and nobody is refused anything.
#[test]
fn what_can_be_saved_makes_room_for_what_cannot() {
    let mut world = World::new();
    let mut keeper = Keeper::new();
    let due = world.log.unsaved_size_due();
    let mut index = 300;
    let mut fill = |world: &mut World, id, most: u64| {
        while world.unsaved(id) + (due / 100) < most {
            world.make(id, index..index + 10);
            index += 10;
        }
        assert!(world.unsaved(id) <= most);
    };
    fill(&mut world, BAD, due / 5 * 4);
    let now = Instant(1_000_000_000);
    world.tick(&mut keeper, now);
    assert_eq!(keeper.counters().failures, 1, "it is put off");
    // Less than what a round would leave is not worth one.
    fill(&mut world, GOOD, due / 10);
    world.tick_alone(&mut keeper, now);
    assert!(world.unsaved(GOOD) > 0);
    fill(&mut world, GOOD, due);
    world.tick_alone(&mut keeper, now);
    assert_eq!(world.unsaved(GOOD), 0);
    world.snapshot();
    let set = SetAttr {
        permissions: Some(0o600),
        ..SetAttr::default()
    };
    let ino = InodeId::new(GOOD, 100);
    let change = Op::SetAttr {
        ino,
        set,
        standing: None,
    };
    world.look(&mut keeper, now);
    assert_eq!(world.log.admit(common::life(1), &change, 0), Ok(()));
}

/// One of two NSDs takes no pages, or does not flush them: after one round that fails they go to the other one, where a region is taken for them. It is
/// tried again when it has been left alone for a while, and used when it is good again.
#[test]
fn pages_go_to_an_nsd_that_takes_them() {
    pages_go_to_another(false);
    pages_go_to_another(true);
}

fn pages_go_to_another(is_written: bool) {
    let mut world = World::on(&[NSD, NsdId(NSD.0 + 1)]);
    let mut keeper = Keeper::new();
    let mut now = Instant(1_000_000_000);
    assert!(world.pages.0.keys().all(|at| at.nsd == NSD));
    let fault = match is_written {
        true => &mut world.pages.2,
        false => &mut world.pages.1,
    };
    *fault = Some(NSD);
    let mut index = 300;
    let mut failures = Vec::new();
    let written = |world: &World, nsd| world.pages.0.keys().filter(|at| at.nsd == nsd).count();
    let before_fault = written(&world, NSD);
    for second in 0..200 {
        if second == 120 {
            assert!(is_written || written(&world, NSD) == before_fault);
            (world.pages.1, world.pages.2) = (None, None);
        }
        world.make(GOOD, index..index + 10);
        index += 10;
        let before = keeper.counters().failures;
        for _ in 0..10 {
            world.tick(&mut keeper, now);
            world.snapshot();
            now = now + Duration::from_millis(100);
        }
        let failed = keeper.counters().failures - before;
        failures.extend((failed > 0).then_some(second));
        assert_eq!(world.unsaved(GOOD), 0, "second {second}");
    }
    // Left alone for 10 s, 20 s, and so on.
    assert!(failures.len() <= 5 && failures[0] == 0, "{failures:?}");
    assert!(
        failures.is_sorted_by_key(|second| *second) && failures[1] >= 9,
        "{failures:?}"
    );
    assert!(failures.iter().all(|second| *second < 120), "{failures:?}");
    assert!(written(&world, NSD) > before_fault, "it is used again");
}

/// A search for files in places that are to become free reads a bad tree a few times, not once for each file below it.
#[test]
fn a_search_leaves_a_tree_that_cannot_be_read_alone() {
    for is_bad in [true, false] {
        let mut world = World::new();
        world.make(GOOD, 300..1300);
        world.checkpoint();
        let shard = usize::from(GOOD.0);
        let places: Arc<[types::Run]> = Arc::new([]);
        let slice = world.shards[shard].as_mut().unwrap();
        slice.shard.allow_eviction();
        drop(slice.shard.evict(usize::MAX, u64::MAX, true));
        assert_eq!(slice.shard.resident_inodes(), []);
        let mut search = Search::begin(slice, &places);
        let mut found = Found::default();
        assert!(!search.look(slice, &mut found));
        let (mut pages, mut read_count, mut batch_count) = (Pages::new(1 << 20, 1), 0, 0);
        let of = (world.log.journal.fs(), KEY);
        while let Some(cold) = search.next(world.shards[shard].as_ref().unwrap(), &world.log) {
            batch_count += 1;
            let read = &mut |fetch: &Fetch| {
                read_count += 1;
                match is_bad {
                    true => Err(Unreadable),
                    false => Disks::read(&mut world.pages, fetch),
                }
            };
            if !search.read(&cold, of, &mut pages, read, &mut found) {
                break;
            }
        }
        let unread = found.unread.map(|(count, _)| count);
        match is_bad {
            true => assert_eq!((unread, batch_count), (Some(4), 1)),
            false => assert_eq!((unread, batch_count), (None, 5)),
        }
        assert!(read_count < 300, "{read_count} reads");
    }
}
