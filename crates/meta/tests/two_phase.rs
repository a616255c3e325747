//! Operations of two and three owners under crashes, loss, duplication and reordering: kill -9 of any
//! owners after every event of every kind of operation, and random storms.

mod common;

use std::collections::BTreeSet;

use common::model::{Model, check_world};
use common::world::World;
use common::{name, random_op};
use meta::parts::Bounds;
use meta::{Caller, Envelope, Known, NewKind, Op, Reply, transaction};
use types::{FileKind, InodeId, ShardId, SmallBytes};

const CALLER: Caller = Caller {
    uid: 1,
    gid: 2,
    umask: 0,
};

fn mkdir(parent: InodeId, text: &str, shard: u16) -> Op {
    Op::Make {
        parent,
        name: name(text),
        kind: NewKind::Directory {
            permissions: 0o755,
            placement: InodeId::new(ShardId(shard), 0),
        },
        caller: CALLER,
    }
}

fn create(parent: InodeId, text: &str) -> Op {
    Op::Create {
        parent,
        name: name(text),
        permissions: 0o644,
        exclusive: true,
        caller: CALLER,
    }
}

fn rename(
    from: (InodeId, &str),
    to: (InodeId, &str),
    exchange: bool,
    target: Option<InodeId>,
) -> Op {
    Op::Rename {
        parent: from.0,
        name: name(from.1),
        new_parent: to.0,
        new_name: name(to.1),
        no_replace: false,
        exchange,
        whiteout: None,
        known: target.map(|ino| Known {
            ino,
            is_open: false,
        }),
        standing: None,
    }
}

/// A world of three owners with a small tree, and the operations to try on it.
struct Scene {
    world: World,
    model: Model,
    operations: Vec<Op>,
}

fn made(world: &mut World, model: &mut Model, op: Op) -> InodeId {
    let reply = world.call(op.clone());
    model.follow(&op, &reply);
    match reply {
        Reply::Made { ino, .. } => ino,
        other => panic!("{op:?} answers {other:?}"),
    }
}

/// Owner, user 1000, owning group, mask, others.
const LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 5, 0, 255, 255,
    255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
];

/// Directories are split and joined all the time.
const BOUNDS: Bounds = Bounds::of(2, 1);

fn scene(has_parts: bool) -> Scene {
    let mut world = World::new(7, 6, 3);
    if has_parts {
        world = world.with_parts(BOUNDS, 4);
    }
    let mut model = Model::new();
    let root = InodeId::ROOT;
    let mut make = |op| made(&mut world, &mut model, op);
    // Shards 0 and 3 are owner 0's, 1 and 4 owner 1's, 2 and 5 owner 2's.
    let near = make(mkdir(root, "near", 3));
    let far = make(mkdir(root, "far", 1));
    let third = make(mkdir(root, "third", 2));
    let empty = make(mkdir(far, "empty", 2));
    let full = make(mkdir(root, "full", 4));
    make(create(full, "x"));
    let near_file = make(create(near, "file"));
    let far_file = make(create(far, "file"));
    let third_file = make(create(third, "file"));
    // A name in `near` whose inode is another owner's.
    let linked = make(create(far, "linked"));
    let link = |ino, parent, text| Op::Link {
        ino,
        kind: FileKind::File,
        parent,
        name: name(text),
    };
    make(link(linked, near, "link"));
    // What is made in it inherits access control lists.
    let listed = make(mkdir(root, "listed", 3));
    let list = Op::SetXattr {
        ino: listed,
        name: SmallBytes::new(meta::acl::DEFAULT),
        value: SmallBytes::new(&LIST),
        flags: 0,
        standing: None,
    };
    // Another owner's file without a name, which the client has open.
    let nameless = make(Op::CreateNameless {
        parent: far,
        permissions: 0o600,
        caller: Caller {
            uid: 1,
            gid: 2,
            umask: 0,
        },
    });
    let commit = common::random_commit(&mut world, far_file);
    let reply = world.call(commit.clone());
    model.follow(&commit, &reply);
    assert!(matches!(world.call(list), Reply::Attr(attr) if attr.has_acl()));
    world.settle();
    let known = |ino| {
        Some(Known {
            ino,
            is_open: false,
        })
    };
    let rmdir = |parent, text| Op::Rmdir {
        parent,
        name: name(text),
        known: None,
        standing: None,
    };
    let unlink = |parent, text, ino| Op::Unlink {
        parent,
        name: name(text),
        known: known(ino),
        standing: None,
    };
    let operations = vec![
        mkdir(near, "new", 1),
        mkdir(far, "new", 0),
        mkdir(listed, "new", 1),
        rmdir(far, "empty"),
        rmdir(root, "full"),
        link(far_file, near, "hard"),
        link(near_file, far, "hard"),
        Op::LinkNameless {
            ino: nameless,
            parent: near,
            name: name("first"),
        },
        unlink(near, "link", linked),
        unlink(far, "file", far_file),
        rename((near, "file"), (far, "moved"), false, None),
        rename((near, "file"), (far, "file"), false, Some(far_file)),
        rename((near, "link"), (third, "file"), false, Some(third_file)),
        rename((far, "empty"), (near, "empty"), false, None),
        rename((root, "third"), (far, "empty"), false, None),
        rename((root, "near"), (full, "sub"), false, None),
        rename((near, "file"), (far, "empty"), true, None),
        rename((far, "linked"), (near, "file"), true, None),
        rename((root, "far"), (empty, "loop"), false, None),
    ];
    Scene {
        world,
        model,
        operations,
    }
}

/// One event, in a fixed order: deliver, else flush, else the client and all owners speak again.
fn event(world: &mut World, request: types::RequestId) {
    if !world.network.is_empty() {
        return world.deliver(0);
    }
    if let Some(owner) = (0..world.owners.len()).find(|o| world.has_pending(*o)) {
        return world.flush(owner);
    }
    world.execute(request);
    for owner in 0..world.owners.len() {
        world.tick(owner);
    }
}

fn is_at_rest(world: &World) -> bool {
    let owners = &world.owners;
    let shards = || owners.iter().flat_map(|o| o.shards.values());
    world.network.is_empty()
        && (0..owners.len()).all(|o| !world.has_pending(o))
        && shards().all(|s| transaction::repeat_messages(s).is_empty())
}

/// Runs one operation with crashes of sets of owners after given events; how many events it took.
fn run_with_crashes(index: usize, crashes: &[(usize, u8)], lost_answers: u32) -> usize {
    // Directories are in parts where no answer gets lost.
    let mut scene = scene(lost_answers == 0);
    scene.world.lost_answers = lost_answers;
    let op = scene.operations[index].clone();
    let world = &mut scene.world;
    let request = world.submit(op.clone());
    let mut count = 0;
    world.execute(request);
    while world.requests[&request].reply.is_none() || !is_at_rest(world) {
        for (_, owners) in crashes.iter().filter(|(at, _)| *at == count) {
            for owner in (0..3).filter(|o| owners & 1 << o != 0) {
                world.crash(owner);
            }
        }
        event(world, request);
        count += 1;
        assert!(count < 500, "{op:?} does not end");
    }
    let reply = world.requests[&request]
        .reply
        .clone()
        .expect("the loop ends with it");
    scene.model.follow(&op, &reply);
    scene.model.check(&scene.world);
    scene.world.check_replay();
    count
}

/// The maker of a file without a name dies while another owner gives it one: it has the name, or is gone, and is never gone with the name
/// there. Whatever was decided can be performed.
#[test]
fn a_file_that_is_about_to_get_a_name_outlives_its_maker() {
    const AT: usize = 1;
    let (mut linked, mut gone) = (0, 0);
    for at in 0..40 {
        for is_killed in [false, true] {
            let Scene {
                mut world,
                operations,
                ..
            } = scene(false);
            let is_link = |op: &&Op| matches!(op, Op::LinkNameless { .. });
            let op = operations.iter().find(is_link).expect("one of them");
            let Op::LinkNameless { ino, .. } = *op else {
                panic!("just looked for");
            };
            assert_eq!(world.owner_of(ino.shard()), AT);
            let request = world.submit(op.clone());
            world.execute(request);
            let mut count = 0;
            while world.requests[&request].reply.is_none() || !is_at_rest(&world) || count <= at {
                if count == at {
                    world.lose_client(AT);
                    if is_killed {
                        world.crash(AT);
                        world.lose_client(AT);
                    }
                }
                event(&mut world, request);
                count += 1;
                assert!(count < 500, "it does not end");
            }
            check_world(&world);
            world.check_replay();
            let shard = world.shard(ino.shard());
            assert_eq!(shard.orphans().count(), 0, "event {at}");
            let is_there = shard.attr(ino).is_some();
            let is_named = common::model::entries(&world)
                .iter()
                .any(|(_, _, named)| *named == ino);
            assert_eq!(is_there, is_named, "event {at}");
            *(if is_named { &mut linked } else { &mut gone }) += 1;
        }
    }
    assert!(linked > 10 && gone > 2, "{linked} {gone}");
}

#[test]
fn each_operation_happens_once_whoever_is_killed_at_whatever_event() {
    let operations = scene(false).operations.len();
    let mut runs = 0;
    for index in 0..operations {
        let count = run_with_crashes(index, &[], 1);
        for at in 0..count + 1 {
            for owners in 1..8 {
                run_with_crashes(index, &[(at, owners)], 0);
                run_with_crashes(index, &[(at, owners)], 1);
                runs += 1;
            }
        }
    }
    assert!(runs > 1000, "{runs} runs");
}

#[test]
fn a_second_crash_at_whatever_event_changes_nothing() {
    for index in [0, 2, 9, 12, 14] {
        let count = run_with_crashes(index, &[], 1);
        for first in 0..count {
            for second in first + 1..first + 9 {
                run_with_crashes(index, &[(first, 1), (second, 2)], 1);
                run_with_crashes(index, &[(first, 2), (second, 1)], 0);
                run_with_crashes(index, &[(first, 7), (second, 7)], 0);
            }
        }
    }
}

/// A random event: anything may be lost, doubled, reordered, and come again much later.
fn storm_event(world: &mut World, past: &mut Vec<Envelope>, crash_one_in: u64) {
    let owner = usize::try_from(world.random.below(world.owners.len() as u64)).expect("few");
    match world.random.below(20) {
        0..8 if !world.network.is_empty() => {
            let index = usize::try_from(world.random.below(world.network.len() as u64));
            let index = index.expect("few");
            past.push(world.network[index].clone());
            match world.random.below(8) {
                0 => drop(world.network.remove(index)),
                1 => world.receive(&world.network[index].clone()),
                _ => world.deliver(index),
            }
        }
        8..14 => world.flush(owner),
        14..17 => {
            let open: Vec<_> = world.requests.keys().copied().collect();
            world.lost_answers = u32::from(world.random.chance(1, 4));
            if let Some(id) = world.random.pick(&open).copied() {
                world.execute(id);
            }
        }
        17 => world.tick(owner),
        // Seldom: each old prepare that comes again holds its locks until its coordinator has said no.
        18 if world.random.chance(1, 5) => {
            if let Some(old) = world.random.pick(past).cloned() {
                world.receive(&old);
            }
        }
        18 => {}
        _ => {
            if world.random.chance(1, crash_one_in) {
                world.crash(owner);
            }
        }
    }
}

#[test]
fn one_request_at_a_time_agrees_with_the_model_in_a_storm() {
    for seed in 0..12 {
        let mut world = World::new(seed, 4, 2);
        if seed % 2 == 0 {
            world = world.with_parts(BOUNDS, 16);
        }
        let mut model = Model::new();
        let mut past = Vec::new();
        for _ in 0..150 {
            let op = random_op(&mut world, &model);
            let id = world.submit(op.clone());
            let mut count = 0;
            while world.requests[&id].reply.is_none() {
                storm_event(&mut world, &mut past, 2);
                count += 1;
                assert!(count < 20_000, "seed {seed}: no answer to {op:?}");
            }
            let reply = world.requests.remove(&id).and_then(|r| r.reply);
            model.follow(&op, &reply.expect("just seen"));
            past.truncate(200);
        }
        world.settle();
        model.check(&world);
        world.check_replay();
    }
}

/// Requests that run at the same time: every one is answered, and the world stays whole.
#[test]
fn requests_at_the_same_time_leave_a_whole_world() {
    let mut answered = 0;
    let mut errors = BTreeSet::new();
    for seed in 1000..1030 {
        let mut world = World::new(seed, 6, 3);
        if seed % 2 == 0 {
            world = world.with_parts(BOUNDS, 4);
        }
        let mut model = Model::new();
        for _ in 0..60 {
            let op = random_op(&mut world, &model);
            let reply = world.call(op.clone());
            model.follow(&op, &reply);
        }
        let mut past = Vec::new();
        for _ in 0..30 {
            for _ in 0..4 {
                let op = random_op(&mut world, &model);
                if !matches!(op, Op::Commit(_) | Op::SetAttr { .. }) {
                    world.submit(op);
                }
            }
            for _ in 0..120 {
                storm_event(&mut world, &mut past, 3);
            }
            past.truncate(200);
            for request in world.requests.values() {
                if let Some(Reply::Error(errno)) = &request.reply {
                    errors.insert(*errno);
                }
            }
            answered += world
                .requests
                .values()
                .filter(|r| r.reply.is_some())
                .count();
            world.requests.retain(|_, r| r.reply.is_none());
        }
        world.settle();
        check_world(&world);
        world.check_replay();
    }
    assert!(answered > 1000, "{answered}");
    assert!(errors.contains(&types::Errno::ENOTEMPTY), "{errors:?}");
}
