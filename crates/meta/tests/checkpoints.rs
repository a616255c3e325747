//! Checkpoints under random operations: what a checkpoint gives is the shard as it was when it began, whatever changes
//! while it is taken piece by piece; the tree and what it lacks are the shard as it is; records make an equal shard.

mod common;

use std::collections::BTreeMap;

use common::model::Model;
use common::world::{KEY, World};
use common::{random_commit, random_op};
use meta::inode::InodeRecord;
use meta::parts::Bounds;
use meta::records::{BadRecord, KEY_OF_INODE_SIZE, Loader, Record, SLICE_SIZE, Unsaved};
use meta::{Caller, Loaded, Mutation, NewKind, Op, PushRecord, Shard};
use stdx::Prng;
use types::extent::Piece;
use types::{Attr, FileKind, InodeId, Name, ShardId, SmallBytes, Timestamp};

type Tree = BTreeMap<SmallBytes, SmallBytes>;

/// A shard's tree, as a plain map, and the checkpoint under way.
#[derive(Default)]
struct Saved {
    tree: Tree,
    running: Option<Checkpoint>,
    checkpoint_count: u32,
}

struct Checkpoint {
    /// The shard's records when it began.
    expected: Tree,
    changes: Vec<Record>,
}

fn apply(tree: &mut Tree, changes: impl IntoIterator<Item = Record>) {
    for (key, value) in changes {
        match value {
            Some(value) => {
                tree.insert(key, value);
            }
            None if key.len() == KEY_OF_INODE_SIZE => {
                tree.retain(|other, _| !other.starts_with(&key[..]));
            }
            None => {
                tree.remove(&key);
            }
        }
    }
}

fn records_of(shard: &Shard) -> Tree {
    let mut tree = Tree::new();
    let mut last = None;
    shard.records(&mut |(key, value)| {
        assert!(last.as_ref().is_none_or(|last| *last < key), "in order");
        last = Some(key.clone());
        tree.insert(key, value.expect("it is there"));
    });
    tree
}

fn load(tree: &Tree, beside: Vec<Unsaved>, room: u64) -> Result<Shard, BadRecord> {
    let mut shard = Shard::new(ShardId(0), KEY);
    let mut loader = Loader::new(&mut shard, beside)?.with_room(room);
    for (key, value) in tree {
        loader.push(key, value)?;
    }
    for ino in loader.finish()? {
        assert!(shard.is_cold(ino) && room < u64::MAX);
        assert!(shard.take_in(ino.index(), decode(tree, ino)));
    }
    Ok(shard)
}

/// A cold inode, read from the tree.
fn decode(tree: &Tree, ino: InodeId) -> Loaded {
    let first = &ino.index().to_be_bytes()[2..];
    let mut own = tree.iter().filter(|(key, _)| key.starts_with(first));
    let loaded = Shard::decode(ShardId(0), KEY, ino.index(), |push| {
        own.try_for_each(|(key, value)| push(key, value))
    });
    loaded.expect("its own").expect("the tree has it")
}

/// What of a shard's state is in its records.
fn recorded(shard: &Shard) -> Vec<Mutation> {
    let mut state = World::state(shard);
    state.retain(|mutation| {
        matches!(
            mutation,
            Mutation::InodePut { .. }
                | Mutation::XattrPut { .. }
                | Mutation::EntryPut { .. }
                | Mutation::PartMake { .. }
                | Mutation::PartPut { .. }
                | Mutation::MapLoad { .. }
        )
    });
    state
}

impl Saved {
    /// Begins, goes on with or ends a checkpoint.
    fn step(&mut self, shard: &mut Shard, prng: &mut Prng) {
        let Some(running) = &mut self.running else {
            let expected = records_of(shard);
            let logged = shard.logged_count();
            assert!(shard.freeze() <= logged);
            self.running = Some(Checkpoint {
                expected,
                changes: Vec::new(),
            });
            return;
        };
        let count = usize::try_from(prng.below(5)).expect("small");
        if !shard.encode_frozen(count, &mut running.changes) {
            return;
        }
        let is_sorted = running.changes.is_sorted_by(|a, b| a.0 < b.0);
        assert!(is_sorted, "the tree takes them in order");
        let is_saved = prng.chance(3, 4);
        let running = self.running.take().expect("just seen");
        if is_saved {
            apply(&mut self.tree, running.changes);
            assert_eq!(differing(&self.tree, &running.expected), []);
            self.checkpoint_count += 1;
        }
        let has_tree = !self.tree.is_empty();
        drop(shard.thaw(is_saved.then_some(has_tree)));
    }

    /// Answers how many inodes stay in the tree where there is little room.
    fn check(&self, shard: &Shard) -> usize {
        let mut beside = Vec::new();
        let mut size = 0;
        shard.unsaved(&mut |(key, value)| {
            size += key.len() + value.as_ref().map_or(0, |value| value.len());
            beside.push((key, value));
        });
        assert!(size as u64 <= shard.unsaved_size(), "it is never more");
        let mut loaded = load(&self.tree, beside.clone(), u64::MAX).expect("its own records");
        assert_eq!(recorded(&loaded), recorded(shard));
        assert_eq!(differing(&records_of(&loaded), &records_of(shard)), []);
        loaded.track_beside(!self.tree.is_empty(), &beside);
        let mut again = Vec::new();
        loaded.unsaved(&mut |record| again.push(record));
        if self.tree.is_empty() {
            // It has nothing to lose.
            beside.retain(|(_, value)| value.is_some());
        }
        assert_eq!(again, beside);
        let is_whole = loaded.orphans().next().is_none();
        if is_whole {
            loaded.check();
        }
        let rooms = [0, 3000].into_iter();
        rooms
            .map(|room| self.check_with_room(room, &loaded, beside.clone()))
            .sum()
    }

    /// Loaded with so little room it is the same shard, whose tree has what is not in memory.
    fn check_with_room(&self, room: u64, whole: &Shard, beside: Vec<Unsaved>) -> usize {
        let mut shard = load(&self.tree, beside.clone(), room).expect("its own records");
        shard.track_beside(!self.tree.is_empty(), &beside);
        let counts = |shard: &Shard| {
            let sums = (shard.promised(), shard.piece_debt(), shard.unsaved_size());
            (shard.inode_count(), shard.part_count(), sums)
        };
        assert_eq!(counts(&shard), counts(whole));
        if whole.orphans().next().is_none() {
            shard.check();
        }
        let cold = shard.cold_inodes();
        for ino in &cold {
            let first = &ino.index().to_be_bytes()[2..];
            assert!(beside.iter().all(|(key, _)| !key.starts_with(first)));
            assert!(shard.take_in(ino.index(), decode(&self.tree, *ino)));
        }
        assert_eq!(recorded(&shard), recorded(whole));
        assert_eq!(counts(&shard), counts(whole));
        cold.len()
    }
}

fn differing(one: &Tree, other: &Tree) -> Vec<SmallBytes> {
    let keys = one.keys().chain(other.keys());
    let mut keys: Vec<_> = keys
        .filter(|k| one.get(*k) != other.get(*k))
        .cloned()
        .collect();
    keys.dedup();
    keys
}

/// Extended attributes, long targets and long pieces: values of several slices.
fn long_op(world: &mut World, model: &Model, prng: &mut Prng) -> Op {
    let all: Vec<InodeId> = model.nodes.keys().copied().collect();
    let ino = *prng.pick(&all).expect("the root");
    let name = SmallBytes::new(format!("user.{}", prng.below(3)).as_bytes());
    let size = *prng
        .pick(&[0, 1, SLICE_SIZE, SLICE_SIZE + 1, 5000, 65_536])
        .expect("not empty");
    let mut value = vec![0; size];
    prng.fill(&mut value);
    let files = model.of_kind(FileKind::File);
    match (prng.below(4), prng.pick(&files)) {
        (0, _) => Op::RemoveXattr {
            ino,
            name,
            standing: None,
        },
        (1, Some(file)) => {
            let mut op = random_commit(world, *file);
            if let Op::Commit(commit) = &mut op {
                value.truncate(4000);
                commit.pieces[0].bytes = match value.is_empty() {
                    true => SmallBytes::new(b"x"),
                    false => value.into(),
                };
                let room = 4096 - commit.pieces[0].bytes.len() as u64;
                commit.pieces[0].offset = prng.below(room + 1);
            }
            op
        }
        (2, _) => Op::Make {
            parent: InodeId::ROOT,
            name: common::name("long"),
            kind: NewKind::Symlink {
                target: vec![b'x'; 1 + size.min(4094)].into(),
            },
            caller: Caller {
                uid: 1,
                gid: 2,
                umask: 0,
            },
        },
        _ => Op::SetXattr {
            ino,
            name,
            value: value.into(),
            flags: 0,
            standing: None,
        },
    }
}

#[test]
fn a_checkpoint_is_the_shard_as_it_was() {
    let (mut checkpoint_count, mut cold_count) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed, 1, 1);
        if seed % 3 == 0 {
            world = world.with_parts(BOUNDS, 24);
        }
        world.is_local = seed % 2 == 0;
        let mut prng = Prng::new(seed);
        let mut model = Model::new();
        let mut saved = Saved::default();
        for step in 0..300 {
            // Some are tracked from the first inode on, some begin later.
            let shard = world.owners[0].shards.get_mut(&ShardId(0)).expect("one");
            if step == seed {
                shard.track();
            }
            if step >= seed && prng.chance(1, 2) {
                saved.step(shard, &mut prng);
            }
            let op = match prng.chance(1, 4) {
                true => long_op(&mut world, &model, &mut prng),
                false => random_op(&mut world, &model),
            };
            let reply = world.call(op.clone());
            if !matches!(op, Op::SetXattr { .. } | Op::RemoveXattr { .. }) {
                model.follow(&op, &reply);
            }
            if step >= seed && step % 20 == 0 {
                cold_count += saved.check(world.shard(ShardId(0)));
            }
        }
        cold_count += saved.check(world.shard(ShardId(0)));
        checkpoint_count += saved.checkpoint_count;
    }
    assert!(checkpoint_count > 100, "{checkpoint_count} checkpoints");
    assert!(cold_count > 1000, "{cold_count} stayed in trees");
}

/// Directories are split and joined all the time.
const BOUNDS: Bounds = Bounds::of(4, 2);

/// Takes a whole checkpoint of a shard, as the tree's bulk apply would.
fn save(world: &mut World, id: ShardId) {
    let owner = world.owner_of(id);
    let tree = world.trees.entry(id).or_default();
    let shard = world.owners[owner].shards.get_mut(&id).expect("its own");
    let mut changes = Vec::new();
    shard.freeze();
    while !shard.encode_frozen(100, &mut changes) {}
    apply(tree, changes);
    drop(shard.thaw(Some(!tree.is_empty())));
}

/// What is clean goes and comes back at random: every answer is as the model has it, and at the end the shards are what the
/// journals say.
#[test]
fn what_is_evicted_is_read_again_before_anything_is_done() {
    let (mut evicted_count, mut miss_count, mut tended_count) = (0, 0, 0);
    for seed in 0..24 {
        let (shard_count, owner_count) =
            [(1, 1), (3, 1), (3, 2)][usize::try_from(seed % 3).expect("small")];
        let mut world = World::new(seed, shard_count, owner_count);
        if seed % 2 == 0 {
            world = world.with_parts(BOUNDS, 24);
        }
        let mut prng = Prng::new(seed);
        let mut model = Model::new();
        for shard in world.owners.iter_mut().flat_map(|o| o.shards.values_mut()) {
            shard.track();
            shard.allow_eviction();
        }
        for _ in 0..300 {
            for id in (0..shard_count).map(ShardId) {
                if prng.chance(1, 4) {
                    save(&mut world, id);
                }
                let owner = world.owner_of(id);
                let shard = world.owners[owner].shards.get_mut(&id).expect("its own");
                let before = shard.inode_count();
                let visits = usize::try_from(prng.below(20)).expect("small");
                let evicted = shard.evict(visits, prng.below(4000), prng.chance(1, 2));
                evicted_count += evicted.count();
                drop(evicted);
                assert_eq!(shard.inode_count(), before);
                shard.check();
            }
            let op = match prng.chance(1, 4) {
                true => long_op(&mut world, &model, &mut prng),
                false => random_op(&mut world, &model),
            };
            let reply = world.call(op.clone());
            if !matches!(
                op,
                Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::GetAttr { .. }
            ) {
                model.follow(&op, &reply);
            }
        }
        world.settle();
        for id in (0..shard_count).map(ShardId) {
            let cold = world.shard(id).cold_inodes();
            world.read(&cold);
            world.shard(id).check();
            miss_count += world.miss_count;
        }
        world.check_replay();
        tended_count += world.tended_count;
    }
    assert!(
        tended_count > 100,
        "{tended_count} steps of splits and joins"
    );
    assert!(evicted_count > 2000, "{evicted_count} were evicted");
    assert!(miss_count > 1000, "{miss_count} were read again");
}

fn begin_evicting(world: &mut World, owner: usize) {
    for shard in world.owners[owner].shards.values_mut() {
        shard.track();
        shard.allow_eviction();
    }
}

/// All that may go is cold, and then nothing that a decided transaction needs: `World::receive` asserts it. Owners die in between.
#[test]
fn what_transactions_hold_stays_in_memory() {
    let (mut evicted_count, mut prepared_count, mut held_count) = (0, 0, 0);
    for seed in 0..24 {
        let mut world = World::new(seed, 6, 2).with_parts(BOUNDS, 24);
        let mut prng = Prng::new(seed);
        let mut model = Model::new();
        (0..2).for_each(|owner| begin_evicting(&mut world, owner));
        for _ in 0..150 {
            let op = random_op(&mut world, &model);
            let id = world.submit(op.clone());
            let mut rounds = 0;
            while world.requests[&id].reply.is_none() {
                world.execute(id);
                for owner in 0..2 {
                    if prng.chance(1, 100) {
                        world.crash(owner);
                        begin_evicting(&mut world, owner);
                    }
                    if prng.chance(1, 4) {
                        world.tick(owner);
                    }
                    while world.has_pending(owner) {
                        world.flush(owner);
                    }
                    world.hold_prepared(owner);
                }
                for shard in (0..6).map(ShardId) {
                    save(&mut world, shard);
                    let owner = world.owner_of(shard);
                    let shard = world.owners[owner].shards.get_mut(&shard).expect("own");
                    evicted_count += shard.evict(usize::MAX, u64::MAX, true).count();
                    prepared_count += shard.prepared().count();
                    held_count += shard.pinned_count();
                    shard.check();
                }
                for _ in 0..world.network.len() {
                    world.deliver(0);
                }
                rounds += 1;
                assert!(rounds < 2000, "seed {seed}: no answer to {op:?}");
            }
            let reply = world.requests.remove(&id).and_then(|r| r.reply);
            if !matches!(op, Op::GetAttr { .. }) {
                model.follow(&op, &reply.expect("just seen"));
            }
        }
        world.settle();
        for shard in (0..6).map(ShardId) {
            assert_eq!(world.shard(shard).pinned_count(), 0);
            let cold = world.shard(shard).cold_inodes();
            world.read(&cold);
        }
        model.check(&world);
        world.check_replay();
    }
    assert!(evicted_count > 2000, "{evicted_count} were evicted");
    assert!(prepared_count > 100, "{prepared_count} were prepared");
    assert!(held_count > 50, "{held_count} parts were held");
}

fn inode(index: u64, kind: FileKind, nlink: u32) -> Mutation {
    let attr = Attr {
        nlink,
        ..Attr::new(of(index), 1, kind, 0o644, Timestamp::default())
    };
    let (parent, target) = (InodeId::ROOT, SmallBytes::default());
    Mutation::InodePut {
        record: InodeRecord {
            attr,
            parent,
            target,
        },
    }
}

fn of(index: u64) -> InodeId {
    InodeId::new(ShardId(0), index)
}

/// Where there is no room, what need not be in memory is not looked at, and what has to be is there, or named.
#[test]
fn without_room_what_need_not_be_in_memory_is_passed_over() {
    const DIRECTORY: u64 = 11;
    let piece = |index, size| Mutation::MapPut {
        index,
        extents: Vec::new(),
        pieces: vec![Piece {
            offset: 0,
            bytes: vec![7; size].into(),
        }],
    };
    let name = Name::new(b"name").expect("a name");
    let mutations = [
        inode(10, FileKind::File, 1),
        piece(10, 100),
        inode(DIRECTORY, FileKind::Directory, 2),
        Mutation::EntryPut {
            directory: DIRECTORY,
            cookie: KEY.first_cookie(name.bytes()),
            name,
            ino: of(10),
            kind: FileKind::File,
        },
        // Bytes that are to be moved to sectors.
        inode(12, FileKind::File, 1),
        piece(12, 3000),
        inode(13, FileKind::File, 1),
        Mutation::MapPromise {
            index: 13,
            begin: 0,
            end: 9,
        },
        inode(14, FileKind::File, 0),
        Mutation::PartMake {
            index: 15,
            directory: of(DIRECTORY),
        },
        inode(16, FileKind::File, 1),
    ];
    let mut whole = Shard::new(ShardId(0), KEY);
    mutations.iter().for_each(|mutation| whole.apply(mutation));
    let mut tree = records_of(&whole);
    let missing = |tree: &Tree, room| {
        let mut shard = Shard::new(ShardId(0), KEY);
        let mut loader = Loader::new(&mut shard, Vec::new())?.with_room(room);
        for (key, value) in tree {
            loader.push(key, value)?;
        }
        let missing = loader.finish()?;
        Ok::<_, BadRecord>((shard, missing))
    };
    let (loaded, named) = missing(&tree, u64::MAX).expect("its own");
    assert_eq!((recorded(&loaded), named), (recorded(&whole), Vec::new()));
    // The name's value ends early.
    let entry = tree.iter_mut().filter(|(key, _)| {
        key.starts_with(&DIRECTORY.to_be_bytes()[2..]) && key.len() > KEY_OF_INODE_SIZE + 1
    });
    let entry: Vec<_> = entry.map(|(_, value)| value).collect();
    assert_eq!(entry.len(), 1);
    entry
        .into_iter()
        .for_each(|value| *value = SmallBytes::new(&value[..3]));
    assert!(matches!(
        missing(&tree, u64::MAX),
        Err(BadRecord::Value { .. })
    ));
    let (mut shard, named) = missing(&tree, 0).expect("nobody looks at the name");
    let cold = [10, DIRECTORY, 12, 13, 15, 16].map(of);
    assert_eq!((shard.cold_inodes(), named), (cold.to_vec(), vec![of(12)]));
    assert!(shard.take_in(12, decode(&tree, of(12))));
    let counts = |shard: &Shard| {
        let sums = (shard.promised(), shard.piece_debt(), shard.part_count());
        let orphans: Vec<InodeId> = shard.orphans().collect();
        (shard.inode_count(), sums, orphans)
    };
    assert_eq!(counts(&shard), counts(&whole));
    assert_eq!(counts(&whole).2, [of(14)]);
    let own = |push: &mut PushRecord<'_>| tree.iter().try_for_each(|(k, v)| push(k, v));
    let read = Shard::decode(ShardId(0), KEY, DIRECTORY, own);
    assert!(matches!(read, Err(BadRecord::Value { .. })));
}

/// A tree page may be of another version, or our own code wrong: records that do not fit are errors.
#[test]
fn records_that_do_not_fit_are_refused() {
    let mut world = World::new(1, 1, 1).with_parts(BOUNDS, 24);
    let mut model = Model::new();
    for _ in 0..300 {
        let op = random_op(&mut world, &model);
        let reply = world.call(op.clone());
        model.follow(&op, &reply);
    }
    let whole: Vec<(SmallBytes, SmallBytes)> =
        records_of(world.shard(ShardId(0))).into_iter().collect();
    let push_all = |records: &[(SmallBytes, SmallBytes)]| {
        let mut shard = Shard::new(ShardId(0), KEY);
        let mut loader = Loader::new(&mut shard, Vec::new())?;
        for (key, value) in records {
            loader.push(key, value)?;
        }
        loader.finish()
    };
    push_all(&whole).expect("as it was");
    let mut prng = Prng::new(2);
    let mut refused = 0;
    for _ in 0..3000 {
        let mut records = whole.clone();
        let at = usize::try_from(prng.below(records.len() as u64)).expect("an index");
        match prng.below(5) {
            0 => {
                records.remove(at);
            }
            1 => {
                let other = usize::try_from(prng.below(records.len() as u64)).expect("an index");
                records.swap(at, other);
            }
            what @ (2 | 3) => {
                let place = if what == 2 {
                    &mut records[at].0
                } else {
                    &mut records[at].1
                };
                let mut bytes = place.to_vec();
                if !bytes.is_empty() {
                    let byte = usize::try_from(prng.below(bytes.len() as u64)).expect("small");
                    bytes[byte] ^= 1 << prng.below(8);
                }
                *place = bytes.into();
            }
            _ => {
                let short = records[at].1.len() / 2;
                records[at].1 = SmallBytes::new(&records[at].1[..short]);
            }
        }
        refused += u32::from(push_all(&records).is_err());
    }
    assert!(refused > 1000, "{refused} of 3000 were refused");
}
