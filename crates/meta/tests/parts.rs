//! Directories in parts: what is missing is an error, a step is bounded, and a lookup needs one part in memory.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::name;
use common::world::{KEY, World};
use meta::name_hash::TIE_COUNT_MAX;
use meta::parts::{self, Bounds, Tended};
use meta::records::Record;
use meta::{Caller, Mutation, Op, Reply, Shard, View};
use stdx::Prng;
use types::{Errno, InodeId, NodeId, ShardId};

const BOUNDS: Bounds = Bounds { split: 64, join: 8 };

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
        };
        assert_eq!(world.call(unlink), failed);
        let rename = Op::Rename {
            parent,
            name,
            new_parent: parent,
            new_name: common::name("other"),
            no_replace: false,
            exchange: false,
            known,
        };
        assert_eq!(world.call(rename), failed);
    }
    let found = (0..500).map(text).filter(|text| !lost.contains(text));
    for text in found {
        let reply = world.call(lookup(&text));
        assert!(matches!(reply, Reply::Entry { .. }), "{text}: {reply:?}");
    }
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
