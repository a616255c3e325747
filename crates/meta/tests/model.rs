//! Random operations against a naive POSIX model, over shards of one owner and of several, without
//! faults; replay of the journal and of snapshots gives the same state.

mod common;

use common::model::Model;
use common::random_op;
use common::world::World;

fn run(seed: u64, shards: u16, owners: u16, is_local: bool) {
    let mut world = World::new(seed, shards, owners);
    world.is_local = is_local;
    let mut model = Model::new();
    for step in 0..400 {
        let op = random_op(&mut world, &model);
        let reply = world.call(op.clone());
        model.follow(&op, &reply);
        if step % 50 == 0 {
            world.settle();
            model.check(&world);
            world.check_replay();
        }
    }
    world.settle();
    model.check(&world);
    world.check_replay();
}

#[test]
fn one_owner_agrees_with_the_model() {
    for seed in 0..20 {
        run(
            seed,
            1 + u16::try_from(seed % 4).expect("below 4"),
            1,
            seed % 2 == 0,
        );
    }
}

#[test]
fn several_owners_agree_with_the_model() {
    for seed in 100..130 {
        let owners = 2 + u16::try_from(seed % 2).expect("below 2");
        run(seed, 4, owners, false);
    }
}
