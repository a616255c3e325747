//! Directories in parts: what is missing is an error, a step is bounded, and a lookup needs one part in memory.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::name;
use common::world::{KEY, World};
use meta::name_hash::TIE_COUNT_MAX;
use meta::parts::{self, Bounds, Tended};
use meta::records::Record;
use meta::view::{Context, Held, Outcome};
use meta::{Caller, Mutation, NewKind, Op, Reply, Shard, View};
use stdx::Prng;
use types::{Errno, InodeId, NodeId, ShardId};

const BOUNDS: Bounds = Bounds::of(64, 8);

const CALLER: Caller = Caller {
    uid: 1,
    gid: 2,
    umask: 0,
};

fn create(text: &str) -> Op {
    Op::Create {
        parent: InodeId::ROOT,
        name: name(text),
        permissions: 0o644,
        exclusive: true,
        caller: CALLER,
    }
}

fn lookup(text: &str) -> Op {
    Op::Lookup {
        parent: InodeId::ROOT,
        name: name(text),
    }
}

fn text(number: u64) -> String {
    format!("name-{number}")
}

fn made(world: &mut World, count: u64) {
    for number in 0..count {
        let reply = world.call(create(&text(number)));
        assert!(matches!(reply, Reply::Made { .. }), "{reply:?}");
    }
}

/// Names of the root until the end or an error.
fn list(world: &mut World) -> Result<Vec<String>, Errno> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let ino = InodeId::ROOT;
        let (size, plus) = (1000, false);
        let op = Op::ReadDir {
            ino,
            cookie,
            size,
            plus,
        };
        match world.call(op) {
            Reply::Listing {
                entries, is_end, ..
            } => {
                let names = entries.iter().map(|entry| entry.name.bytes());
                all.extend(names.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()));
                if is_end {
                    return Ok(all);
                }
                cookie = entries.last().expect("more is to come").cookie;
            }
            Reply::Error(errno) => return Err(errno),
            other => panic!("{other:?}"),
        }
    }
}

/// Takes a part of the root away as damage does: its names, and its inode.
fn lose_a_part(world: &mut World) -> Vec<String> {
    let shards = world.owners[0].shards.values();
    let parts = shards.flat_map(|shard| shard.inspect_parts());
    let parts: Vec<(InodeId, Vec<(u64, String)>)> = parts
        .map(|part| {
            let entries = part.entries.iter();
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            let names = entries.map(|(cookie, entry)| (*cookie, text(entry.name.bytes())));
            (part.ino, names.collect())
        })
        .collect();
    let (part, names) = parts.into_iter().nth(1).expect("several");
    let (index, directory) = (part.index(), part.index());
    let shard = world.owners[0].shards.get_mut(&part.shard()).unwrap();
    for (cookie, _) in &names {
        let cookie = *cookie;
        shard.apply(&Mutation::EntryRemove { directory, cookie });
    }
    shard.apply(&Mutation::InodeRemove { index });
    names.into_iter().map(|(_, name)| name).collect()
}

/// Nobody takes the names of a part that is not there for gone: no lookup says so, no listing ends there, nothing is made in it.
#[test]
fn what_needs_a_missing_part_is_an_error() {
    let mut world = World::new(1, 3, 1).with_parts(BOUNDS, 0);
    made(&mut world, 500);
    assert_eq!(list(&mut world).map(|names| names.len()), Ok(500));
    let lost = lose_a_part(&mut world);
    assert!(lost.len() >= BOUNDS.join);
    let failed = Reply::Error(Errno::EIO);
    assert_eq!(list(&mut world), Err(Errno::EIO));
    for text in lost.iter().take(10) {
        assert_eq!(world.call(lookup(text)), failed);
        assert_eq!(world.call(create(text)), failed);
        let (parent, name) = (InodeId::ROOT, name(text));
        let known = None;
        let unlink = Op::Unlink {
            parent,
            name: name.clone(),
            known,
            standing: None,
        };
        assert_eq!(world.call(unlink), failed);
        let rename = Op::Rename {
            parent,
            name,
            new_parent: parent,
            new_name: common::name("other"),
            no_replace: false,
            exchange: false,
            whiteout: None,
            known,
            standing: None,
        };
        assert_eq!(world.call(rename), failed);
    }
    let found = (0..500).map(text).filter(|text| !lost.contains(text));
    for text in found {
        let reply = world.call(lookup(&text));
        assert!(matches!(reply, Reply::Entry { .. }), "{text}: {reply:?}");
    }
}

/// A directory in one piece may hold more names than a part, and each of several holders no more than one.
#[test]
fn a_directory_in_one_piece_may_be_larger_than_a_part() {
    let bounds = Bounds {
        whole: 200,
        ..BOUNDS
    };
    let mut world = World::new(1, 3, 1).with_parts(bounds, 0);
    made(&mut world, 200);
    assert_eq!(sizes(&world), vec![], "in one piece");
    world.call(create("one more"));
    let parts = sizes(&world);
    let at_home = 201 - parts.iter().sum::<usize>();
    let holders: Vec<usize> = parts.into_iter().chain([at_home]).collect();
    assert!(holders.len() > 2, "{holders:?}");
    assert!(
        holders.iter().all(|count| *count <= BOUNDS.split),
        "{holders:?}"
    );
    assert_eq!(list(&mut world).map(|names| names.len()), Ok(201));
}

/// How many names each part of the root has.
fn sizes(world: &World) -> Vec<usize> {
    let parts = world.owners[0]
        .shards
        .values()
        .flat_map(|shard| shard.inspect_parts());
    parts.map(|part| part.entries.len()).collect()
}

/// Whole checkpoints of all shards, then all leaves memory.
fn chill(world: &mut World) {
    for (id, shard) in &mut world.owners[0].shards {
        let mut changes: Vec<Record> = Vec::new();
        shard.freeze();
        while !shard.encode_frozen(1000, &mut changes) {}
        let tree = world.trees.entry(*id).or_default();
        for (key, value) in changes {
            match value {
                Some(value) => tree.insert(key, value),
                None => tree.remove(&key),
            };
        }
        drop(shard.thaw(Some(!tree.is_empty())));
        drop(shard.evict(usize::MAX, u64::MAX, true));
    }
}

/// Lookups at random in a directory of many names need little memory: a part each.
#[test]
fn a_lookup_needs_one_part_in_memory() {
    let mut world = World::new(1, 3, 1).with_parts(BOUNDS, 0);
    for shard in world.owners[0].shards.values_mut() {
        shard.track();
        shard.allow_eviction();
    }
    made(&mut world, 4000);
    let resident = |world: &World| -> u64 {
        let shards = world.owners[0].shards.values();
        shards.map(Shard::resident_size).sum()
    };
    let all = resident(&world);
    chill(&mut world);
    let least = resident(&world);
    let mut prng = Prng::new(1);
    for _ in 0..500 {
        let reply = world.call(lookup(&text(prng.below(4000))));
        assert!(matches!(reply, Reply::Entry { .. }), "{reply:?}");
        // The root, a part, an inode.
        let used = resident(&world) - least;
        assert!(used < all / 20, "{used} of {all} bytes, {least} at rest");
        chill(&mut world);
    }
    assert!(world.miss_count > 500);
}

/// A directory of a file system of before, or from a repair, is split by bounded steps, however many names it has.
#[test]
fn a_large_directory_is_split_by_bounded_steps() {
    let mut world = World::new(1, 3, 1);
    made(&mut world, 3000);
    for shard in world.owners[0].shards.values_mut() {
        shard.allow_parts(BOUNDS);
    }
    made_one_more(&mut world);
    let mut shard = world.owners[0].shards.remove(&ShardId(0)).unwrap();
    assert_eq!(
        shard.next_to_tend(),
        Some(InodeId::ROOT),
        "the change said so"
    );
    let owners = vec![NodeId(1)];
    let (mut step_count, mut is_noted) = (0, true);
    loop {
        let tended = {
            let mut view = View::new([&mut shard], &owners, NodeId(1));
            parts::tend(&mut view, InodeId::ROOT)
        };
        let Tended::Done(changes) = tended else {
            panic!("one shard has it all");
        };
        if changes.mutations.is_empty() {
            break;
        }
        assert!(is_noted, "what was left was noted");
        step_count += 1;
        assert!(changes.mutations.len() <= 2 * BOUNDS.split / 2 + 2);
        is_noted = shard.has_to_tend();
    }
    assert!(step_count > 3000 / BOUNDS.split, "{step_count}");
    assert_eq!(shard.part_count(), step_count as u64);
    shard.check();
    let mut copy = Shard::new(ShardId(0), KEY);
    shard.snapshot(&mut |mutation| copy.apply(&mutation));
    copy.check();
}

fn made_one_more(world: &mut World) {
    // `World::call` would tend at once.
    let shard = world.owners[0].shards.get_mut(&ShardId(0)).unwrap();
    let cookie = KEY.first_cookie(b"one-more");
    let ino = shard.reserve_index();
    let kind = types::FileKind::File;
    let attr = types::Attr::new(ino, 1, kind, 0o644, types::Timestamp::default());
    let record = meta::inode::InodeRecord {
        attr,
        parent: InodeId::default(),
        target: types::SmallBytes::default(),
    };
    shard.apply(&Mutation::InodePut { record });
    shard.apply(&Mutation::EntryPut {
        directory: InodeId::ROOT.index(),
        cookie,
        name: name("one-more"),
        ino,
        kind,
    });
}

/// Runs `op` as its owner does: with what it is known to need locked, and more when it asks for more. The reply, and how often it
/// was run.
fn run(world: &mut World, op: &Op) -> (Reply, usize) {
    let owners = [NodeId(1); 5];
    let mut locked = vec![op.home()];
    let mut run_count = 0;
    loop {
        let shards = world.owners[0].shards.iter_mut();
        let shards = shards.filter(|(id, _)| locked.contains(id));
        let mut view = View::new(shards.map(|(_, shard)| shard), &owners, NodeId(1));
        let ahead = parts::ahead(&view, op);
        if !ahead.is_empty() {
            assert!(!ahead.iter().any(|id| locked.contains(id)), "{ahead:?}");
            locked.extend(ahead);
            continue;
        }
        let ctx = Context {
            now: types::Timestamp::default(),
            from: world.client,
            origin: None,
            random: 1,
            held: Held::All,
            facts: &[],
        };
        run_count += 1;
        match meta::execute(&mut view, &ctx, op) {
            Outcome::Done(done) => return (done.reply, run_count),
            Outcome::NeedShards(more) => {
                assert!(!more.iter().any(|id| locked.contains(id)), "{more:?}");
                locked.extend(more);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// An operation on a name runs once, wherever the name and its inode are.
#[test]
fn what_a_name_needs_is_known_ahead() {
    let mut world = World::new(1, 5, 1).with_parts(BOUNDS, 0);
    made(&mut world, 500);
    let parent = InodeId::ROOT;
    let known = None;
    for number in 0..100 {
        let (reply, count) = run(&mut world, &lookup(&text(number)));
        let Reply::Entry { ino, .. } = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(count, 1);
        let more = [
            create(&text(10_000 + number)),
            Op::Link {
                ino,
                kind: types::FileKind::File,
                parent,
                name: name(&text(20_000 + number)),
            },
            Op::Rename {
                parent,
                name: name(&text(number)),
                new_parent: parent,
                new_name: name(&text(number + 100)),
                no_replace: false,
                exchange: false,
                whiteout: None,
                known,
                standing: None,
            },
            Op::Unlink {
                parent,
                name: name(&text(number + 100)),
                known,
                standing: None,
            },
        ];
        for op in more {
            let (reply, count) = run(&mut world, &op);
            assert!(!matches!(reply, Reply::Error(_)), "{op:?}: {reply:?}");
            // The inode that a link is to is no matter of the directory.
            let most = 1 + usize::from(matches!(op, Op::Link { .. }));
            assert!(count <= most, "{op:?}");
        }
        let (reply, count) = run(&mut world, &lookup(&text(number)));
        assert_eq!((reply, count), (Reply::Absent, 1));
    }
}

/// A batch of a listing with attributes has those of all its files, in one round more than without.
#[test]
fn a_listing_has_the_attributes_of_all_shards() {
    let mut world = World::new(1, 5, 1).with_parts(BOUNDS, 0);
    made(&mut world, 500);
    let (mut cookie, mut found) = (0, 0);
    loop {
        let op = Op::ReadDir {
            ino: InodeId::ROOT,
            cookie,
            size: 4000,
            plus: true,
        };
        let (reply, count) = run(&mut world, &op);
        let Reply::Listing {
            entries, is_end, ..
        } = reply
        else {
            panic!("{reply:?}");
        };
        assert!(count <= 2, "a batch of {} ran {count} times", entries.len());
        assert!(entries.iter().all(|entry| entry.attr.is_some()));
        found += entries.len();
        if is_end {
            break;
        }
        cookie = entries.last().expect("more is to come").cookie;
    }
    assert_eq!(found, 500);
}

/// Where an owner has few shards, parts are locked for what others hold: their names come in whole batches all the same.
#[test]
fn a_listing_of_few_shards_does_not_come_in_crumbs() {
    let mut world = World::new(1, 5, 1).with_parts(BOUNDS, 0);
    made(&mut world, 2000);
    let (mut cookie, mut found, mut counts) = (0, 0, Vec::new());
    loop {
        let op = Op::ReadDir {
            ino: InodeId::ROOT,
            cookie,
            size: 1 << 20,
            plus: true,
        };
        let (reply, _) = run(&mut world, &op);
        let Reply::Listing {
            entries, is_end, ..
        } = reply
        else {
            panic!("{reply:?}");
        };
        found += entries.len();
        if is_end {
            break;
        }
        counts.push(entries.len());
        cookie = entries.last().expect("more is to come").cookie;
    }
    assert_eq!(found, 2000);
    // A part has at least as many.
    assert!(counts.iter().all(|count| *count >= 8), "{counts:?}");
}

/// Of what was read in to be removed nothing is left, so that who looks for what may leave memory finds it.
#[test]
fn what_is_removed_cold_leaves_nothing_behind() {
    let mut world = World::new(1, 1, 1).with_parts(BOUNDS, 0);
    for shard in world.owners[0].shards.values_mut() {
        shard.track();
        shard.allow_eviction();
    }
    for number in 0..4000 {
        let reply = world.call(Op::Make {
            parent: InodeId::ROOT,
            name: name(&text(number)),
            kind: NewKind::Directory {
                permissions: 0o755,
                placement: InodeId::new(ShardId(0), 0),
            },
            caller: CALLER,
        });
        assert!(matches!(reply, Reply::Made { .. }), "{reply:?}");
    }
    chill(&mut world);
    for number in 0..4000 {
        let reply = world.call(Op::Rmdir {
            parent: InodeId::ROOT,
            name: name(&text(number)),
            known: None,
            standing: None,
        });
        assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
        if number % 500 == 0 {
            world.shard(ShardId(0)).check();
        }
    }
}

/// Foreign bytes end in findings: a number that no inode has, a range that begins within a hash.
#[test]
fn parts_that_cannot_be_do_not_fit() {
    let world = World::new(1, 1, 1).with_parts(BOUNDS, 24);
    let shard = world.shard(ShardId(0));
    let directory = InodeId::ROOT;
    let make = |index| shard.fits(&Mutation::PartMake { index, directory }).is_ok();
    assert!(make((1 << InodeId::INDEX_BITS) - 1));
    assert!(!make(1 << InodeId::INDEX_BITS));
    let put = |begin| {
        let part = InodeId::new(ShardId(0), 9);
        let (directory, begin) = (directory.index(), begin);
        let mutation = Mutation::PartPut {
            directory,
            begin,
            part,
        };
        shard.fits(&mutation).is_ok()
    };
    assert!(put(TIE_COUNT_MAX));
    assert!(!put(TIE_COUNT_MAX + 1));
}
