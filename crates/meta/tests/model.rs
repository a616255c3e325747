//! Random operations against a naive POSIX model, over shards of one owner and of several, without
//! faults; replay of the journal and of snapshots gives the same state.

mod common;

use std::collections::BTreeSet;

use common::model::Model;
use common::random_op;
use common::world::World;
use meta::parts::Bounds;
use meta::{Op, Reply};
use types::{FileKind, InodeId, Name};

fn run(mut world: World, is_local: bool, steps: u32) -> u64 {
    world.is_local = is_local;
    let mut model = Model::new();
    let mut listings = Listings::default();
    for step in 0..steps {
        let op = random_op(&mut world, &model);
        let reply = world.call(op.clone());
        model.follow(&op, &reply);
        listings.step(&mut world, &model);
        if step % 50 == 0 {
            world.settle();
            model.check(&world);
            world.check_replay();
        }
    }
    world.settle();
    model.check(&world);
    world.check_replay();
    assert!(listings.ended_count > 10, "{}", listings.ended_count);
    world.tended_count
}

/// A listing that goes on while names come and go: those that were there all the time come exactly once, in order.
#[derive(Default)]
struct Listings {
    directory: InodeId,
    cookie: u64,
    /// What has been there since the listing began.
    stayed: BTreeSet<Name>,
    seen: Vec<Name>,
    ended_count: u64,
}

impl Listings {
    fn step(&mut self, world: &mut World, model: &Model) {
        let names = |ino| -> Option<BTreeSet<Name>> {
            let node = model.nodes.get(&ino)?;
            Some(node.names.keys().cloned().collect())
        };
        let Some(there) = names(self.directory).filter(|_| self.cookie > 0) else {
            let all = model.of_kind(FileKind::Directory);
            self.directory = *world.random.pick(&all).expect("the root");
            self.cookie = 2;
            self.stayed = names(self.directory).expect("it was picked");
            self.seen.clear();
            return;
        };
        self.stayed = self.stayed.intersection(&there).cloned().collect();
        let op = Op::ReadDir {
            ino: self.directory,
            cookie: self.cookie,
            size: 1 + u32::try_from(world.random.below(100)).expect("small"),
            plus: world.random.chance(1, 2),
        };
        let Reply::Listing {
            entries, is_end, ..
        } = world.call(op)
        else {
            panic!("a directory can be listed");
        };
        assert!(is_end || !entries.is_empty(), "a listing goes on");
        for entry in entries {
            assert!(entry.cookie > self.cookie, "in order");
            assert!(there.contains(&entry.name));
            self.cookie = entry.cookie;
            self.seen.push(entry.name);
        }
        if is_end {
            let once = |name: &&Name| self.seen.iter().filter(|n| n == name).count() == 1;
            assert!(self.stayed.iter().all(|name| once(&name)));
            self.cookie = 0;
            self.ended_count += 1;
        }
    }
}

#[test]
fn one_owner_agrees_with_the_model() {
    for seed in 0..20 {
        let shards = 1 + u16::try_from(seed % 4).expect("below 4");
        run(World::new(seed, shards, 1), seed % 2 == 0, 400);
    }
}

#[test]
fn several_owners_agree_with_the_model() {
    for seed in 100..130 {
        let owners = 2 + u16::try_from(seed % 2).expect("below 2");
        run(World::new(seed, 4, owners), false, 400);
    }
}

/// Directories that are split and joined all the time are what they are in one piece.
#[test]
fn directories_in_parts_agree_with_the_model() {
    let mut tended_count = 0;
    for seed in 200..230 {
        let owners = 1 + u16::try_from(seed % 3).expect("below 3");
        let bounds = [(2, 1), (4, 2), (6, 3)][usize::try_from(seed % 3).expect("below 3")];
        let (split, join) = bounds;
        let world = World::new(seed, 6, owners).with_parts(Bounds::of(split, join), 24);
        tended_count += run(world, seed % 2 == 0 && owners == 1, 1200);
    }
    assert!(tended_count > 2000, "{tended_count}");
}
