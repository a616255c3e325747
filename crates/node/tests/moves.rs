//! Directories that move to other parents, through several owners at once: no loop arises, exactly one of two
//! moves that exclude one another wins, whatever is lost, repeated, reordered or killed; and all this is
//! noticed when the rename token is switched off.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, reason = "a module of a test program")]
#![allow(missing_debug_implementations, reason = "tests")]
#![allow(clippy::large_enum_variant, reason = "a test moves few of them")]

#[path = "moves/world.rs"]
mod world;

use std::collections::{BTreeMap, VecDeque};

use meta::{Caller, NewKind, Op, Reply};
use node::Message;
use types::{Errno, InodeId, NodeId, NodeLife, ShardId};
use world::{Faults, World, name};

fn mkdir(parent: InodeId, text: &str, shard: u16) -> Op {
    Op::Make {
        parent,
        name: name(text),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(shard), 0),
        },
        caller: Caller::default(),
    }
}

fn rename(from: (InodeId, &str), to: (InodeId, &str), exchange: bool) -> Op {
    Op::Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        no_replace: false,
        exchange,
        whiteout: None,
        known: None,
        standing: None,
    }
}

fn made(world: &mut World, op: Op) -> InodeId {
    match world.now(1, op) {
        Ok(Reply::Made { ino, .. }) => ino,
        other => panic!("{other:?}"),
    }
}

fn part_count(world: &World) -> u64 {
    let slices = world.nodes.iter().flat_map(|n| n.shards.values());
    slices.map(|slice| slice.shard.part_count()).sum()
}

/// /p/a and /q/b, each below a directory of another owner; node 1 moves a/ into b/, node 2 b/ into a/.
struct Crossing {
    world: World,
    moves: [(u16, Op); 2],
    /// Directories that there are.
    count: usize,
}

fn crossing(seed: u64, nodes: u16, has_token: bool) -> Crossing {
    crossing_in(World::new(seed, nodes, has_token))
}

/// The same with all four directories in parts.
fn crossing_in_parts(seed: u64, nodes: u16) -> Crossing {
    let mut crossing = crossing_in(World::new(seed, nodes, true).with_parts(2));
    let world = &mut crossing.world;
    let homes = crossing.moves.iter().flat_map(|(_, op)| match op {
        Op::Rename {
            parent, new_parent, ..
        } => [*parent, *new_parent],
        other => panic!("{other:?}"),
    });
    for home in homes {
        for number in 0..4 {
            made(world, mkdir(home, &format!("beside{number}"), number));
            crossing.count += 1;
        }
    }
    assert!(part_count(world) >= 4);
    crossing
}

fn crossing_in(mut world: World) -> Crossing {
    let root = InodeId::ROOT;
    let p = made(&mut world, mkdir(root, "p", 0));
    let q = made(&mut world, mkdir(root, "q", 1));
    // The directories moved are owned by the other node than their parents, or by a third.
    let a = made(&mut world, mkdir(p, "a", 5));
    let b = made(&mut world, mkdir(q, "b", 4));
    let moves = [
        (1, rename((p, "a"), (b, "a"), false)),
        (2, rename((q, "b"), (a, "b"), false)),
    ];
    let count = 5;
    Crossing {
        world,
        moves,
        count,
    }
}

/// One step: what may happen next, chosen by the seed.
fn step(world: &mut World) {
    let nodes = world.nodes.len() as u64;
    let node = u16::try_from(1 + world.random.below(nodes)).unwrap();
    match world.random.below(10) {
        0..6 if !world.network.is_empty() => world.deliver(),
        6..9 => world.flush(node),
        _ => world.tick(node),
    }
}

#[test]
fn of_two_moves_into_one_another_exactly_one_wins() {
    for seed in 0..300 {
        let nodes = 2 + u16::try_from(seed % 2).unwrap();
        let Crossing {
            mut world,
            moves,
            count,
        } = match seed % 4 {
            3 => crossing_in_parts(seed, nodes),
            _ => crossing(seed, nodes, true),
        };
        world.faults = Faults {
            loss: [0, 0, 10][usize::try_from(seed % 3).unwrap()],
            duplicates: [0, 10][usize::try_from(seed % 2).unwrap()],
            is_reordered: seed % 5 != 0,
        };
        let calls = moves.map(|(node, op)| (node, world.submit(node, op)));
        for _ in 0..60 {
            step(&mut world);
        }
        world.settle();
        let replies = calls.map(|(node, call)| {
            let requests = &world.nodes[usize::from(node) - 1].requests;
            requests[&call].reply.clone().unwrap()
        });
        let won = replies.iter().filter(|r| r.is_ok()).count();
        let refused = replies.iter().filter(|r| **r == Err(Errno::EINVAL)).count();
        assert_eq!((won, refused), (1, 1), "seed {seed}: {replies:?}");
        assert_eq!(world.check_tree(), Ok(count), "seed {seed}");
    }
}

/// kill -9 of every set of nodes after every event of the crossing moves.
#[test]
fn a_crash_after_any_event_leaves_a_tree() {
    crash_after_any_event(&[2, 3], |at, nodes| crossing(at, nodes, true));
}

#[test]
fn a_crash_after_any_event_leaves_a_tree_of_directories_in_parts() {
    crash_after_any_event(&[2], crossing_in_parts);
}

fn crash_after_any_event(node_counts: &[u16], crossing: impl Fn(u64, u16) -> Crossing) {
    let mut tried = 0;
    for nodes in node_counts.iter().copied() {
        for set in 1..(1_u16 << nodes) {
            let mut at = 0_u32;
            loop {
                let Crossing {
                    mut world,
                    moves,
                    count,
                } = crossing(u64::from(at), nodes);
                for (node, op) in moves {
                    world.submit(node, op);
                }
                let mut events = 0;
                while events < at && event(&mut world) {
                    events += 1;
                }
                let is_over = events < at;
                for node in (1..=nodes).filter(|node| set >> (node - 1) & 1 == 1) {
                    world.crash(node);
                }
                world.settle();
                let tree = world.check_tree();
                assert_eq!(
                    tree,
                    Ok(count),
                    "{nodes} nodes, set {set}, after event {at}"
                );
                // Nobody keeps the token: a move of each node still goes.
                for node in 1..=nodes {
                    assert!(can_move(&mut world, node), "set {set}, after event {at}");
                }
                tried += 1;
                if is_over {
                    break;
                }
                at += 1;
            }
        }
    }
    assert!(tried > 50, "{tried}");
}

fn can_move(world: &mut World, node: u16) -> bool {
    let text = format!("free{node}");
    let root = InodeId::ROOT;
    let home = made(world, mkdir(root, &text, node % 2));
    made(world, mkdir(home, "x", 1 - node % 2));
    world
        .now(
            node,
            rename((home, "x"), (root, &format!("y{node}")), false),
        )
        .is_ok()
}

/// One event in a fixed order: a message, else a flush, else a round of repeats. False: nothing was left.
fn event(world: &mut World) -> bool {
    if !world.network.is_empty() {
        world.deliver();
        return true;
    }
    let nodes = u16::try_from(world.nodes.len()).unwrap();
    if let Some(node) = (1..=nodes).find(|n| world.is_behind(*n)) {
        world.flush(node);
        return true;
    }
    let is_open = |n: &world::Node| n.requests.values().any(|r| r.reply.is_none());
    if world.nodes.iter().any(is_open) {
        (1..=nodes).for_each(|node| world.tick(node));
        return true;
    }
    false
}

/// Moves and exchanges of six directories by all nodes, under loss, duplicates, reordering and kill -9.
fn storm(seed: u64, has_token: bool, crashes: u64) -> Result<u64, String> {
    let nodes = 2 + u16::try_from(seed % 2).unwrap();
    let mut world = World::new(seed, nodes, has_token);
    if seed.is_multiple_of(3) {
        world = world.with_parts(2);
    }
    let mut directories = vec![InodeId::ROOT];
    for (index, text) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
        let shard = u16::try_from(index % 6).unwrap();
        let parent = *world.random.pick(&directories).unwrap();
        directories.push(made(&mut world, mkdir(parent, text, shard)));
    }
    world.faults = Faults {
        loss: world.random.below(2) * 5,
        duplicates: world.random.below(2) * 5,
        is_reordered: world.random.chance(1, 2),
    };
    let texts = ["a", "b", "c", "d", "e", "f"];
    for _ in 0..400 {
        if world.random.chance(1, 6) {
            let node = u16::try_from(1 + world.random.below(u64::from(nodes))).unwrap();
            let parent = *world.random.pick(&directories).unwrap();
            let new_parent = *world.random.pick(&directories).unwrap();
            let (from, to) = (
                *world.random.pick(&texts).unwrap(),
                *world.random.pick(&texts).unwrap(),
            );
            let exchange = world.random.chance(1, 4);
            // A directory that is replaced would be gone; names are unique, so only exchanges meet.
            let to = if exchange { to } else { from };
            world.submit(node, rename((parent, from), (new_parent, to), exchange));
        }
        if crashes > 0 && world.random.below(1000) < crashes {
            let node = u16::try_from(1 + world.random.below(u64::from(nodes))).unwrap();
            world.crash(node);
        }
        step(&mut world);
    }
    world.settle();
    world.check_tree().map(|_| part_count(&world))
}

#[test]
fn storms_leave_a_tree() {
    let mut parts = 0;
    for seed in 0..40 {
        let crashes = [0, 10][usize::try_from(seed / 2 % 2).unwrap()];
        match storm(seed, true, crashes) {
            Ok(count) => parts += count,
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    assert!(parts > 10, "{parts} parts at the ends");
}

/// Operations of two owners that hold a directory one after the other, with others waiting at all times: a step on its parts has
/// its turn like them, and no holder has many more than eight names.
#[test]
fn a_directory_is_split_under_steady_traffic() {
    const NAMES: u16 = 40;
    for seed in 0..6 {
        let mut world = World::new(seed, 3, true).with_parts(8);
        let root = InodeId::ROOT;
        // Node 1 owns the root, others what is made there.
        let make = |number: u16| mkdir(root, &format!("made-{number}"), 1 + number % 2);
        let mut ops: VecDeque<Op> = (0..3 * NAMES).map(make).collect();
        let (mut open, mut count) = (BTreeMap::new(), 0);
        while count < NAMES {
            while open.len() < 12 {
                let op = ops.pop_front().unwrap();
                open.insert(world.submit(1, op.clone()), op);
            }
            step(&mut world);
            open.retain(|call, op| {
                let requests = &mut world.nodes[0].requests;
                match &requests[call].reply {
                    None => return true,
                    Some(Ok(_)) => count += 1,
                    Some(Err(errno)) => panic!("{op:?}: {errno:?}"),
                }
                requests.remove(call);
                false
            });
        }
        let parts = part_count(&world);
        assert!(parts >= 5, "seed {seed}: {parts} parts of {count} names");
    }
}

/// Two renames into one directory. The older one's owner does not go on between its vote and its outcome: the younger one waits
/// for it without a storm of messages for minutes, and its program does not hear of it.
#[test]
fn a_rename_gives_way_to_an_older_one_for_minutes() {
    let mut world = World::new(1, 3, true);
    let root = InodeId::ROOT;
    // Of node 1, of node 2, and of node 3.
    let [from, into, other] = [("a", 0), ("b", 1), ("c", 2)]
        .map(|(text, shard)| made(&mut world, mkdir(root, text, shard)));
    let node = || NewKind::Node {
        mode: 0o100_644,
        rdev: 0,
    };
    for parent in [from, other] {
        let make = Op::Make {
            parent,
            name: name("file"),
            kind: node(),
            caller: Caller::default(),
        };
        made(&mut world, make);
    }
    let older = world.submit(1, rename((from, "file"), (into, "one"), false));
    // Node 2 votes, and node 1 does not hear it.
    let is_vote = |(_, to, message): &(NodeLife, NodeId, Message)| {
        *to == NodeId(1) && matches!(message, Message::Transaction(_))
    };
    let mut votes = Vec::new();
    let mut go_on = |world: &mut World| {
        for count in 0..1000 {
            (1..=3).for_each(|node| world.flush(node));
            votes.extend(world.network.iter().filter(|m| is_vote(m)).cloned());
            world.network.retain(|message| !is_vote(message));
            if world.network.is_empty() {
                return count;
            }
            world.deliver();
        }
        panic!("it goes on and on: {:?}", world.network);
    };
    go_on(&mut world);
    let younger = world.submit(3, rename((other, "file"), (into, "two"), false));
    let local = world.submit(2, mkdir(into, "three", 1));
    let mut messages = 0;
    for tick in 0..80 {
        messages += go_on(&mut world);
        for (node, call) in [(2, younger), (1, local)] {
            let reply = &world.nodes[node].requests[&call].reply;
            assert_eq!(*reply, None, "after {tick} ticks, {messages} messages");
        }
        world.tick(2);
        world.tick(3);
    }
    assert!(!votes.is_empty());
    assert!((80..80 * 10).contains(&messages), "{messages} messages");
    world.network.extend(votes);
    world.settle();
    for (node, call) in [(0, older), (2, younger), (1, local)] {
        let reply = &world.nodes[node].requests[&call].reply;
        assert!(matches!(reply, Some(Ok(_))), "{reply:?}");
    }
}

/// The canary: without the token some run ends with directories that are below themselves.
#[test]
fn without_the_token_loops_arise() {
    let is_caught = |seed: &u64| {
        let Crossing {
            mut world, moves, ..
        } = crossing(*seed, 2, false);
        world.faults.is_reordered = true;
        for (node, op) in moves {
            world.submit(node, op);
        }
        for _ in 0..60 {
            step(&mut world);
        }
        world.settle();
        world.check_tree().is_err()
    };
    let caught = (0..100).filter(is_caught).count();
    assert!(caught > 0, "the switched-off token is not noticed");
}
