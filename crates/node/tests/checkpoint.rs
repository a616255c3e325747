//! Checkpoints of a shard on a disk in memory, while operations go on, writes fail and places run out. After a crash the
//! root that the newest durable snapshot names, and the records beside it, are the shard as it was then.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use data::space::{Geometry, Levels, RegionId, Space, SpaceMutation};
use meta::records::{Loader, Unsaved};
use meta::{Caller, Context, HashKey, Held, NewKind, Op, Outcome, Shard, View, execute};
use node::Checkpoint;
use node::checkpoint::{Failure, Todo};
use stdx::Prng;
use store::tree::walk::{Position, Walk, WalkStep};
use store::tree::{
    ApplyConfig, Fetch, PageWrite, Pages, Root, Scan, ScanStep, TreeId, Unreadable, Waiter,
};
use types::{
    Epoch, FsId, InodeId, Location, Lsn, Name, NodeId, NodeLife, NsdId, Run, ShardId, SmallBytes,
    Timestamp,
};

const KEY: HashKey = HashKey(77);
const NSD: NsdId = NsdId(3);
const TREE: TreeId = TreeId {
    fs: FsId(5),
    shard: ShardId(0),
};
const WAITER: Waiter = Waiter(1);
const SECTORS: u8 = 4;
/// Room for some trees: now and then too little.
const REGION_SECTORS: u32 = 700;

type Tree = BTreeMap<SmallBytes, SmallBytes>;

/// What a crash leaves.
#[derive(Clone)]
struct Durable {
    root: Root,
    beside: Vec<Unsaved>,
    space: Vec<SpaceMutation>,
    /// The shard's records then.
    expected: Tree,
}

struct World {
    prng: Prng,
    clock: i64,
    shard: Shard,
    root: Root,
    space: Space,
    pages: Pages,
    disk: BTreeMap<Location, Vec<u8>>,
    /// The checkpoint under way, and the shard's records when it began.
    running: Option<(Checkpoint, Tree)>,
    is_written: bool,
    is_linking: bool,
    writes: Vec<PageWrite>,
    fetches: Vec<Fetch>,
    durable: Durable,
    pending: Option<Durable>,
    /// The root in memory has these records.
    saved: Tree,
    made: u32,
    failures: [u32; 4],
    crashes: u32,
}

fn pick(prng: &mut Prng, count: usize) -> usize {
    usize::try_from(prng.below(count as u64)).unwrap()
}

fn geometry() -> Geometry {
    Geometry {
        nsd: NSD,
        data_begin: 8,
        sector_count: 8 + 2 * u64::from(REGION_SECTORS),
        region_sectors: REGION_SECTORS,
    }
}

fn empty_space() -> Space {
    Space::new(&[geometry()], Levels { reserve: 0, low: 0 })
}

fn records_of(shard: &Shard) -> Tree {
    let mut tree = Tree::new();
    shard.records(&mut |(key, value)| {
        tree.insert(key, value.unwrap());
    });
    tree
}

fn name(number: u64) -> Name {
    Name::new(format!("name-{number}").as_bytes()).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut shard = Shard::new(ShardId(0), KEY);
        shard.make_root(Timestamp::default(), 0o755, 1);
        shard.track();
        let mut space = empty_space();
        let mut changes = Vec::new();
        let region = RegionId { nsd: NSD, index: 0 };
        space.take_region(region, &mut changes).unwrap();
        space.use_region_for_pages(region, &mut changes).unwrap();
        let mut beside = Vec::new();
        shard.unsaved(&mut |record| beside.push(record));
        let root = Root::empty(ShardId(0), SECTORS);
        Self {
            prng: Prng::new(seed),
            clock: 0,
            durable: Durable {
                root,
                beside,
                space: changes,
                expected: records_of(&shard),
            },
            shard,
            root,
            space,
            pages: Pages::new(40 << 14, 4),
            disk: BTreeMap::new(),
            running: None,
            is_written: false,
            is_linking: false,
            writes: Vec::new(),
            fetches: Vec::new(),
            pending: None,
            saved: Tree::new(),
            made: 0,
            failures: [0; 4],
            crashes: 0,
        }
    }

    fn random_op(&mut self) -> Op {
        let parent = InodeId::ROOT;
        let caller = Caller {
            uid: 1,
            gid: 1,
            umask: 0,
        };
        let one = name(self.prng.below(600));
        let ino = InodeId::new(ShardId(0), 1 + self.prng.below(900));
        match self.prng.below(10) {
            0..5 => Op::Create {
                parent,
                name: one,
                permissions: 0o644,
                exclusive: true,
                caller,
            },
            5 => Op::Make {
                parent,
                name: one,
                kind: NewKind::Symlink {
                    target: vec![b'x'; 1 + pick(&mut self.prng, 4000)].into(),
                },
                caller,
            },
            6 => Op::Unlink {
                parent,
                name: one,
                known: None,
                standing: None,
            },
            7 => Op::Rename {
                parent,
                name: one,
                new_parent: parent,
                new_name: name(self.prng.below(600)),
                no_replace: false,
                exchange: false,
                whiteout: None,
                known: None,
                standing: None,
            },
            _ => Op::SetXattr {
                ino,
                name: SmallBytes::new(b"user.x"),
                value: vec![7; pick(&mut self.prng, 5000)].into(),
                flags: 0,
                standing: None,
            },
        }
    }

    fn operate(&mut self) {
        let op = self.random_op();
        self.clock += 1;
        let context = Context {
            now: Timestamp {
                secs: self.clock,
                nanos: 0,
            },
            from: NodeLife::default(),
            origin: None,
            random: u128::from(self.prng.next_u64()) << 64 | 1,
            held: Held::All,
            facts: &[],
        };
        let owners = [NodeId(1)];
        let mut view = View::new([&mut self.shard], &owners, NodeId(1));
        let outcome = execute(&mut view, &context, &op);
        assert!(matches!(outcome, Outcome::Done(_)), "{outcome:?}");
    }

    fn begin(&mut self) {
        if self.running.is_some() {
            return;
        }
        let expected = records_of(&self.shard);
        self.clock += 1;
        let config = ApplyConfig {
            tree: TREE,
            epoch: Epoch(1),
            lsn: Lsn(u64::try_from(self.clock).unwrap()),
            waiter: WAITER,
            ahead_max: 4,
            write_count_max: 4,
            entry_count_max: 8,
        };
        let begun = Checkpoint::begin(config, &self.root, &[], &mut self.shard);
        match begun {
            Some(checkpoint) => self.running = Some((checkpoint, expected)),
            None => assert_eq!(expected, self.saved, "nothing has changed"),
        }
    }

    fn poll(&mut self) {
        let Some((checkpoint, _)) = &mut self.running else {
            return;
        };
        if self.is_written {
            return self.end();
        }
        let todo = checkpoint.poll(&mut self.pages);
        self.fetches
            .extend(std::iter::from_fn(|| self.pages.next_fetch()));
        match todo {
            Todo::Write(write) => {
                let all = self.space.pages().linked();
                let run = Run {
                    at: write.at,
                    count: u32::from(SECTORS),
                };
                assert!(!all.overlaps(run), "no page is written over");
                self.writes.push(write);
            }
            Todo::Wait => {}
            Todo::Encode => {
                checkpoint.encode(&mut self.shard);
                checkpoint.push();
            }
            Todo::Places => checkpoint.take_places(self.space.pages_mut(), &|nsd| nsd == NSD),
            Todo::Written => self.is_written = true,
            Todo::Failed(failure) => self.give_up(failure),
        }
    }

    fn give_up(&mut self, failure: Failure) {
        let (mut checkpoint, _) = self.running.take().unwrap();
        self.failures[match failure {
            Failure::Apply(_) => 0,
            Failure::NoPlaces => 1,
            Failure::NotFlushed => 2,
            Failure::NotWritten => 3,
        }] += 1;
        self.pages.forget(WAITER);
        while !checkpoint.release(self.space.pages_mut(), 3) {}
        checkpoint.give_up(&mut self.shard);
        self.is_written = false;
    }

    /// Its pages are written.
    fn end(&mut self) {
        if self.space.pages().is_sealed() {
            return;
        }
        if !self.is_linking && self.prng.chance(1, 10) {
            return self.give_up(Failure::NotFlushed);
        }
        let count = 1 + pick(&mut self.prng, 20);
        let (checkpoint, _) = self.running.as_mut().unwrap();
        self.is_linking = !checkpoint.link(self.space.pages_mut(), count);
        if self.is_linking {
            return;
        }
        let (checkpoint, expected) = self.running.take().unwrap();
        let (applied, thawed) = checkpoint.install(&mut self.shard);
        drop(thawed);
        self.root = applied.root;
        self.saved = expected;
        self.is_written = false;
        self.made += 1;
        self.check();
    }

    fn end_write(&mut self) {
        if self.writes.is_empty() {
            return;
        }
        let at = pick(&mut self.prng, self.writes.len());
        let write = self.writes.swap_remove(at);
        // A broken disk, now and then.
        let is_broken = self.clock / 64 % 16 == 7;
        let is_written = !self.prng.chance(if is_broken { 20 } else { 1 }, 60);
        let is_there = is_written || self.prng.chance(1, 2);
        if is_there {
            self.disk.insert(write.at, write.page.bytes().to_vec());
        }
        let (checkpoint, _) = self.running.as_mut().unwrap();
        checkpoint.on_written(write.id, is_written);
    }

    fn read(&self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        let bytes = self.disk.get(&fetch.at).ok_or(Unreadable)?;
        Ok(bytes.clone().into_boxed_slice())
    }

    fn end_fetch(&mut self) {
        if self.fetches.is_empty() {
            return;
        }
        let at = pick(&mut self.prng, self.fetches.len());
        let fetch = self.fetches.swap_remove(at);
        let bytes = match self.prng.chance(1, 400) {
            true => Err(Unreadable),
            false => self.read(&fetch),
        };
        let arrival = self.pages.on_fetched(fetch.id, bytes);
        if let (Some((checkpoint, _)), Some(arrival)) = (&mut self.running, arrival) {
            checkpoint.on_page(&arrival);
        }
        self.fetches
            .extend(std::iter::from_fn(|| self.pages.next_fetch()));
    }

    /// A snapshot of the journal begins, or the one that has begun is durable, or has failed.
    fn snapshot(&mut self) {
        if let Some(pending) = self.pending.take() {
            let is_durable = self.prng.chance(4, 5);
            self.space.pages_mut().unseal(is_durable);
            if is_durable {
                self.durable = pending;
            }
            return;
        }
        if self.is_linking || self.space.pages().is_settling() {
            self.space.pages_mut().settle(5);
            return;
        }
        self.space.pages_mut().seal();
        let mut beside = Vec::new();
        self.shard.unsaved(&mut |record| beside.push(record));
        let mut space = Vec::new();
        self.space.snapshot(&mut |mutation| space.push(mutation));
        self.pending = Some(Durable {
            root: self.root,
            beside,
            space,
            expected: records_of(&self.shard),
        });
    }

    /// All records of the tree of a root, through a cache of its own.
    fn scan(&self, root: &Root) -> Tree {
        let mut pages = Pages::new(1 << 20, 4);
        let mut scan = Scan::new(TREE, root, (Vec::new(), None), WAITER, 4);
        let mut tree = Tree::new();
        loop {
            match scan.next(&mut pages).unwrap() {
                ScanStep::Entries(entries) => {
                    let page = &entries.page;
                    for at in entries.begin..entries.end {
                        tree.insert(page.key(at).into(), SmallBytes::new(page.value(at)));
                    }
                }
                ScanStep::Waiting => {
                    while let Some(fetch) = pages.next_fetch() {
                        let bytes = self.read(&fetch);
                        let arrival = pages.on_fetched(fetch.id, bytes).unwrap();
                        scan.on_page(&arrival);
                    }
                }
                ScanStep::Done => return tree,
            }
        }
    }

    /// The tree in memory is the shard when its checkpoint began, and its pages are those that the space knows.
    fn check(&mut self) {
        assert_eq!(self.scan(&self.root), self.saved);
        self.space.check();
        let mut walk = Walk::new(TREE, &self.root, Position::BEGIN, 4);
        let mut runs = data::SectorSet::new();
        let mut reads = Vec::new();
        loop {
            match walk.poll(&mut |run| {
                runs.insert(run);
                true
            }) {
                WalkStep::Fetch(fetch) => reads.push(fetch),
                WalkStep::Waiting => {
                    let fetch = reads.pop().unwrap();
                    walk.on_read(fetch.id, self.read(&fetch));
                }
                WalkStep::Broken(broken) => panic!("{broken:?}"),
                WalkStep::Leaf(_) => {}
                WalkStep::Done => break,
            }
        }
        assert_eq!(runs, self.space.pages().linked());
    }

    /// Everything that is not durable is gone; so may be writes that were under way.
    fn crash(&mut self) {
        for write in std::mem::take(&mut self.writes) {
            if self.prng.chance(1, 2) {
                self.disk.insert(write.at, write.page.bytes().to_vec());
            }
        }
        (self.running, self.pending, self.is_written) = (None, None, false);
        self.is_linking = false;
        self.fetches.clear();
        self.pages = Pages::new(40 << 14, 4);
        let durable = self.durable.clone();
        self.space = empty_space();
        for mutation in &durable.space {
            self.space.apply(mutation).unwrap();
        }
        self.saved = self.scan(&durable.root);
        let mut shard = Shard::new(ShardId(0), KEY);
        let mut loader = Loader::new(&mut shard, durable.beside.clone()).unwrap();
        for (key, value) in &self.saved {
            loader.push(key, value).unwrap();
        }
        loader.finish().unwrap();
        shard.track_beside(!self.saved.is_empty(), &durable.beside);
        assert_eq!(records_of(&shard), durable.expected);
        (self.shard, self.root) = (shard, durable.root);
        self.crashes += 1;
        self.check();
    }

    fn step(&mut self) {
        match self.prng.below(100) {
            0..25 => self.operate(),
            25..28 => self.begin(),
            28..60 => self.poll(),
            60..80 => self.end_write(),
            80..98 => self.end_fetch(),
            98 => self.snapshot(),
            _ if self.prng.chance(1, 10) => self.crash(),
            _ => {}
        }
    }
}

#[test]
fn what_is_durable_is_the_shard_as_it_was() {
    let (mut made, mut crashes, mut failures) = (0, 0, [0; 4]);
    for seed in 0..12 {
        let mut world = World::new(seed);
        for _ in 0..6000 {
            world.step();
        }
        world.crash();
        made += world.made;
        crashes += world.crashes;
        for (sum, count) in failures.iter_mut().zip(world.failures) {
            *sum += count;
        }
    }
    eprintln!("{made} checkpoints, {crashes} crashes, failures {failures:?}");
    assert!(made > 20 && crashes > 20, "{made}, {crashes}");
    assert!(failures.iter().all(|count| *count > 0), "{failures:?}");
}
