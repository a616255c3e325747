//! Many short runs under loss, repetition, delay and reordering, each from a seed.
//!
//! `SEED=n cargo test -p token --test random` runs one.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests may panic and read SEED"
)]

mod world;

use stdx::prng::Prng;
use types::{ByteRange, InodeMode, RangeMode, Want};
use world::World;

const RUN_COUNT: u64 = 20_000;
const STEP_COUNT: u64 = 24;

fn below(random: &mut Prng, n: usize) -> usize {
    usize::try_from(random.below(u64::try_from(n).unwrap())).unwrap()
}

fn any_wants(world: &mut World, random: &mut Prng, node: usize) -> Vec<Want> {
    let mut wants = Vec::new();
    if random.below(3) == 0 {
        let modes = [
            InodeMode::Read,
            InodeMode::SharedWrite,
            InodeMode::Exclusive,
        ];
        let mode = modes[below(random, 3)];
        wants.push(Want::Inode { mode });
    }
    if wants.is_empty() || random.below(2) == 0 {
        let mode = [RangeMode::Read, RangeMode::Write][below(random, 2)];
        let range = match random.below(3) {
            // Interleaved records, one place or any place.
            0 => ByteRange::at(4 * random.below(8) + u64::try_from(node).unwrap(), 1),
            1 => ByteRange::at(random.below(2), 3),
            _ => ByteRange::at(random.below(30), 1 + random.below(8)),
        };
        wants.push(world.range_want(node, mode, range));
    }
    wants
}

fn run(seed: u64, is_loud: bool) {
    let mut random = Prng::new(seed);
    let count = 2 + below(&mut random, 3);
    let mut world = World::new(count);
    world.is_loud = is_loud;
    let (loss, repeat) = (random.below(4), random.below(4));
    for _ in 0..STEP_COUNT {
        let node = below(&mut random, count);
        match random.below(20) {
            0..5 if !world.nodes[node].is_lost => {
                let wants = any_wants(&mut world, &mut random, node);
                world.want(node, wants);
            }
            5..14 if !world.network.is_empty() => {
                // Mostly in order.
                let index = match random.below(2) {
                    0 => 0,
                    _ => below(&mut random, world.network.len()),
                };
                if random.below(12) < repeat {
                    let copy = world.network[index].clone();
                    world.network.push(copy);
                }
                if random.below(12) < loss {
                    world.network.remove(index);
                } else {
                    world.deliver(index);
                }
            }
            14..17 if !world.nodes[node].plans.is_empty() => {
                let index = below(&mut random, world.nodes[node].plans.len());
                world.finish(node, index);
            }
            17 => world.advance(random.below(1500)),
            18 => {
                // The client asks again, or evicts the inode, or closes the file.
                let ticket = world.nodes[node].tickets.keys().next().copied();
                match (ticket, random.below(4)) {
                    (Some(ticket), 0..3) => world.send_acquire(node, ticket),
                    (None, 0) => world.nodes[node].activity.is_open ^= true,
                    (None, 1) if world.nodes[node].holder.is_idle() => {
                        // What it has forgotten of other inodes of the shard counts, too.
                        let newest = (0..count).map(|n| world.number(n)).max();
                        let floors = [world.number(node), newest.unwrap()];
                        let floor = floors[below(&mut random, 2)];
                        world.nodes[node].holder = token::Holder::forgotten(floor);
                    }
                    (None, 2 | 3) => {
                        let plan = world.nodes[node].holder.give_up(world::INO);
                        world.nodes[node].plans.extend(plan);
                    }
                    _ => {}
                }
            }
            19 if random.below(10) == 0 => {
                // Nothing that the old owner said or was told is heard any more.
                if random.below(2) == 0 {
                    world.change_owner();
                } else if count > 2 && !world.nodes[node].is_lost {
                    world.lose(node);
                }
            }
            _ => {}
        }
        world.check();
    }
    // Nothing is lost any more: everybody gets what he wants.
    for _ in 0..100 {
        world.settle();
        // A repeat of a question that was answered waits like any other.
        let is_done = world.manager.waiters().is_empty();
        if is_done && world.nodes.iter().all(|n| n.tickets.is_empty()) {
            assert!(world.nodes.iter().all(|n| n.parked.is_empty()));
            world.check();
            return;
        }
        for node in 0..count {
            let tickets: Vec<u64> = world.nodes[node].tickets.keys().copied().collect();
            for ticket in tickets {
                world.send_acquire(node, ticket);
            }
        }
        world.advance(1000);
    }
    panic!("somebody waits for ever: {:?}", world.manager.waiters());
}

#[test]
fn no_conflict_and_no_hang_whatever_the_network_does() {
    if let Ok(seed) = std::env::var("SEED") {
        run(seed.parse().unwrap(), true);
        return;
    }
    for seed in 0..RUN_COUNT {
        if std::panic::catch_unwind(|| run(seed, false)).is_err() {
            panic!("seed {seed}");
        }
    }
}
