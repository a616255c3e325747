//! Several nodes write or read one file in the patterns of HPC programs; what counts is the revokes.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

mod world;

use stdx::prng::Prng;
use types::{ByteRange, InodeMode, RangeMode, Want};
use world::{INO, World, life};

/// The record of NERSC's benchmark program: no multiple of anything.
const RECORD: u64 = 47_008;

/// One request, to its end.
fn access(world: &mut World, node: usize, mode: RangeMode, range: ByteRange) {
    let want = world.range_want(node, mode, range);
    let done = world.nodes[node].done_count;
    world.want(node, vec![want]);
    world.settle();
    assert_eq!(world.nodes[node].done_count, done + 1);
    world.check();
}

fn write(world: &mut World, node: usize, range: ByteRange) {
    access(world, node, RangeMode::Write, range);
}

/// Calls `step(node, index)` for `count` steps of each node: in turn, or in a random order.
fn interleave(nodes: usize, count: u64, seed: u64, mut step: impl FnMut(usize, u64)) {
    let mut random = Prng::new(seed);
    let mut done = vec![0; nodes];
    while done.iter().any(|d| *d < count) {
        for (node, done) in done.iter_mut().enumerate() {
            let skip = seed > 0 && random.below(2) == 0;
            if *done < count && !skip {
                step(node, *done);
                *done += 1;
            }
        }
    }
}

#[test]
fn segmented_writers_settle_after_one_exchange_each() {
    for nodes in 2..=4 {
        for seed in 0..50 {
            let mut world = World::new(nodes);
            interleave(nodes, 20, seed, |node, index| {
                let segment = u64::try_from(node).unwrap() << 30;
                write(
                    &mut world,
                    node,
                    ByteRange::at(segment + index * RECORD, RECORD),
                );
            });
            let most = u64::try_from(nodes).unwrap() - 1;
            assert!(world.revoke_count <= most, "{} revokes", world.revoke_count);
        }
    }
}

/// Records of `size` bytes, written in turns of `turn` pieces each.
fn strided(nodes: usize, size: u64, turn: u64, seed: u64) -> World {
    let mut world = World::new(nodes);
    let others = u64::try_from(nodes).unwrap();
    let mut last_early = 0;
    let mut done = vec![0; nodes];
    interleave(nodes, 30 * turn, seed, |node, index| {
        let own = u64::try_from(node).unwrap();
        let block = (index / turn * others + own) * turn + index % turn;
        write(&mut world, node, ByteRange::at(block * size, size));
        done[node] += 1;
        if done.iter().any(|d| *d < 3 * turn) || done[node] == 3 * turn {
            last_early = world.revoke_count;
        }
    });
    assert_eq!(
        world.revoke_count, last_early,
        "{nodes} nodes, {size} bytes, seed {seed}"
    );
    world
}

#[test]
fn strided_writers_settle_with_the_third_record() {
    for nodes in 2..=4 {
        for size in [1, 4096, RECORD, 1 << 20] {
            for seed in 0..30 {
                let world = strided(nodes, size, 1, seed);
                let bound = 4 * u64::try_from(nodes).unwrap();
                assert!(
                    world.revoke_count <= bound,
                    "{} revokes",
                    world.revoke_count
                );
                for node in 0..nodes {
                    let (_, rights) = world.manager.rights(life(node), INO).unwrap();
                    assert!(rights.write.count() <= 8, "{:?}", rights.write);
                }
            }
        }
    }
}

#[test]
fn blocks_of_several_requests_settle_too() {
    for nodes in 2..=4 {
        for turn in [2, 4] {
            strided(nodes, RECORD, turn, 0);
        }
    }
}

#[test]
fn a_reader_behind_a_writer_and_readers_together() {
    let mut world = World::new(4);
    for index in 0..10 {
        write(&mut world, 0, ByteRange::at(index * RECORD, RECORD));
    }
    // Three readers from the start: what the writer has behind itself becomes readable once for all.
    for index in 0..9 {
        for node in 1..4 {
            access(
                &mut world,
                node,
                RangeMode::Read,
                ByteRange::at(index * RECORD, RECORD),
            );
        }
    }
    assert_eq!(world.revoke_count, 1);
    let behind = ByteRange::new(0, 9 * RECORD);
    let writer = &world.nodes[0].holder;
    assert!(writer.covers_range(RangeMode::Read, &behind));
    assert!(!writer.covers_range(RangeMode::Write, &ByteRange::at(0, 1)));
    // And goes on writing without asking.
    write(&mut world, 0, ByteRange::at(10 * RECORD, RECORD));
    assert_eq!(world.revoke_count, 1);
}

#[test]
fn modes_go_down_and_up() {
    let mut world = World::new(2);
    let inode = |mode| vec![Want::Inode { mode }];
    // Alone, a writer gets more than it asks for: it will stat what it writes.
    world.want(0, inode(InodeMode::SharedWrite));
    world.settle();
    assert!(world.nodes[0].holder.covers_inode(InodeMode::Exclusive));
    world.want(1, inode(InodeMode::SharedWrite));
    world.settle();
    for node in 0..2 {
        assert!(
            world.nodes[node]
                .holder
                .covers_inode(InodeMode::SharedWrite)
        );
        assert!(!world.nodes[node].holder.covers_inode(InodeMode::Read));
    }
    // To read and share writing is to be alone.
    world.want(0, inode(InodeMode::Read));
    world.settle();
    assert!(world.nodes[0].holder.covers_inode(InodeMode::Exclusive));
    world.want(1, inode(InodeMode::Read));
    world.settle();
    for node in 0..2 {
        assert!(world.nodes[node].holder.covers_inode(InodeMode::Read));
    }
    world.check();
    // Who does not have the file open gives all up.
    world.nodes[0].activity.is_open = false;
    write(&mut world, 1, ByteRange::at(0, 1));
    world.want(1, inode(InodeMode::Exclusive));
    world.settle();
    assert!(world.nodes[0].holder.is_idle());
    assert_eq!(world.manager.token_count(), 1);
}
