//! A replay with no room: what the tree has stays there until the journal changes it, and what comes of it is the same shard.
#![allow(clippy::unwrap_used, reason = "a test")]

use meta::{HashKey, Mutation, Shard, Step, TransactionId};
use node::keeper::{PlainHost, checkpoint_now};
use node::replay::{ReplayError, ShardReplay, take_in_held};
use node::{OwnerLog, OwnerSlice};
use store::tree::{Fetch, Root, Unreadable};
use types::extent::Piece;
use types::{
    Attr, Encode as _, Epoch, FileKind, FsId, InodeId, Instant, Lsn, Name, ShardId, SmallBytes,
    Timestamp,
};

mod common;

use common::owner::{PageDisk, log};

const KEY: HashKey = HashKey(7);
const SHARD: ShardId = ShardId(0);
const ROOM: [u64; 2] = [u64::MAX, 0];

fn ino(index: u64) -> InodeId {
    InodeId::new(SHARD, index)
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

/// A shard whose tree has all of it.
struct World {
    shard: Shard,
    log: OwnerLog,
    pages: PageDisk,
}

impl World {
    fn new(mutations: &[Mutation]) -> Self {
        let mut shard = Shard::new(SHARD, KEY);
        shard.track();
        mutations.iter().for_each(|mutation| shard.apply(mutation));
        let tokens = token::Manager::new(Epoch(1), token::Options::default());
        let mut slices = vec![Some(OwnerSlice::new(shard, tokens, Lsn(0)))];
        let (mut log, mut pages) = (log(), PageDisk::default());
        // So little is not worth a region for pages.
        log.note_starving(true);
        let mut host = PlainHost {
            shards: &mut slices,
            log: &mut log,
        };
        let (counters, failure) = checkpoint_now(Instant(1), &mut host, &mut pages);
        assert_eq!((counters.checkpoints, failure), (1, None));
        let shard = slices.remove(0).unwrap().shard;
        Self { shard, log, pages }
    }

    fn root(&self) -> Root {
        self.log.root(SHARD)
    }

    /// The shard from its snapshot, and then these from the journal; how many pages that took.
    fn replay(&self, room: u64, after: &[Mutation]) -> Result<(Shard, u32), ReplayError> {
        let mut count = 0;
        let read = &mut |fetch: &Fetch| {
            count += 1;
            let page = self.pages.0.get(&fetch.at).cloned();
            page.map(Vec::into_boxed_slice).ok_or(Unreadable)
        };
        let mut replay = ShardReplay::new(FsId(0), Shard::new(SHARD, KEY)).with_room(room);
        let mut result = Ok(());
        let root = self.root();
        node::log::shard_snapshot(&self.shard, Some(&root), 4096, &mut |bytes| {
            if result.is_ok() {
                result = replay.apply(&bytes, read);
            }
        });
        result?;
        for mutation in after {
            replay.apply(&mutation.to_bytes(), read)?;
        }
        let (mut shard, root) = replay.finish(read)?;
        take_in_held(FsId(0), [&mut shard], &[root.unwrap()], read)?;
        shard.check();
        Ok((shard, count))
    }
}

/// A directory of one name, and files.
fn tree() -> Vec<Mutation> {
    let mut all = vec![common::directory(ino(50))];
    for index in 100..110 {
        all.push(common::file(ino(index), 1));
        all.push(Mutation::XattrPut {
            index,
            name: SmallBytes::new(b"user.old"),
            value: SmallBytes::new(b"1"),
        });
    }
    all.push(entry(50, "old", 100));
    all
}

fn entry(directory: u64, text: &str, of: u64) -> Mutation {
    Mutation::EntryPut {
        directory,
        cookie: KEY.first_cookie(text.as_bytes()),
        name: name(text),
        // Of another shard, which may go as it likes.
        ino: InodeId::new(ShardId(1), of),
        kind: FileKind::File,
    }
}

/// One of each kind of mutation that is about an inode that is there, with that inode.
fn changes() -> Vec<(u64, Mutation)> {
    let now = Timestamp::default();
    let attr = Attr {
        uid: 77,
        ..Attr::new(ino(101), 1, FileKind::File, 0o600, now)
    };
    let piece = Piece {
        offset: 0,
        bytes: SmallBytes::new(b"bytes"),
    };
    let pieces = vec![piece];
    let text = SmallBytes::new(b"user.old");
    let id = TransactionId {
        coordinator: ShardId(1),
        number: 9,
    };
    let steps = vec![
        Step::EntryInsert {
            directory: ino(50),
            name: name("prepared"),
            ino: ino(105),
            kind: FileKind::File,
        },
        Step::InodeTouch { ino: ino(109) },
    ];
    vec![
        (100, Mutation::InodeRemove { index: 100 }),
        (101, Mutation::AttrPut { index: 101, attr }),
        (
            50,
            Mutation::DirectoryTouch {
                index: 50,
                now,
                nlink: 2,
            },
        ),
        (
            50,
            Mutation::ParentPut {
                index: 50,
                parent: ino(1),
            },
        ),
        (50, entry(50, "new", 101)),
        (
            50,
            Mutation::EntryRemove {
                directory: 50,
                cookie: KEY.first_cookie(b"old"),
            },
        ),
        (
            102,
            Mutation::XattrPut {
                index: 102,
                name: SmallBytes::new(b"user.x"),
                value: text.clone(),
            },
        ),
        (
            103,
            Mutation::XattrRemove {
                index: 103,
                name: text,
            },
        ),
        (
            104,
            Mutation::MapPut {
                index: 104,
                extents: Vec::new(),
                pieces,
            },
        ),
        (
            105,
            Mutation::MapCut {
                index: 105,
                size: 0,
            },
        ),
        (
            106,
            Mutation::MapHole {
                index: 106,
                begin: 0,
                end: 4096,
            },
        ),
        (
            107,
            Mutation::MapPromise {
                index: 107,
                begin: 0,
                end: 8,
            },
        ),
        (
            50,
            Mutation::PartPut {
                directory: 50,
                begin: u64::MAX - 127,
                part: ino(108),
            },
        ),
        (109, Mutation::Prepare { id, now, steps }),
    ]
}

fn state(shard: &mut Shard, world: &World) -> Vec<Mutation> {
    for cold in shard.cold_inodes() {
        let mut pages = store::tree::Pages::new(1 << 20, 1);
        let read = &mut |fetch: &Fetch| Ok(world.pages.0[&fetch.at].clone().into());
        let loaded = node::fetch::read_now(FsId(0), KEY, &world.root(), cold, &mut pages, read);
        shard.take_in(cold.index(), loaded.unwrap());
    }
    let mut all = Vec::new();
    shard.snapshot(&mut |mutation| all.push(mutation));
    all
}

#[test]
fn what_the_journal_changes_is_read_first() {
    let world = World::new(&tree());
    for (index, mutation) in changes() {
        let after = [mutation.clone()];
        let [mut whole, mut small] = ROOM.map(|room| world.replay(room, &after).unwrap().0);
        assert_eq!(whole.resident_count(), whole.inode_count(), "{mutation:?}");
        // The root of the name space is none of these.
        let others = small.cold_inodes().len();
        assert!(
            (9..=10).contains(&others),
            "{others} of 11 in the tree: {mutation:?}"
        );
        let is_removed = matches!(mutation, Mutation::InodeRemove { .. });
        assert_eq!(small.has_inode(ino(index)), !is_removed, "{mutation:?}");
        assert_eq!(small.unsaved_size(), whole.unsaved_size());
        assert_eq!(
            state(&mut small, &world),
            state(&mut whole, &world),
            "{mutation:?}"
        );
    }
}

#[test]
fn all_of_it_is_the_same_shard_however_little_stays() {
    let world = World::new(&tree());
    let after: Vec<Mutation> = changes()
        .into_iter()
        .map(|(_, mutation)| mutation)
        .collect();
    let all =
        [u64::MAX, 5000, 1].map(|room| state(&mut world.replay(room, &after).unwrap().0, &world));
    assert_eq!(all[1], all[0]);
    assert_eq!(all[2], all[0]);
}

/// A page that cannot be read is an error of the start, not a panic and not a shard without it.
#[test]
fn what_cannot_be_read_ends_the_start() {
    let mut world = World::new(&tree());
    world.pages.0.clear();
    for room in ROOM {
        assert!(matches!(world.replay(room, &[]), Err(ReplayError::Tree(_))));
    }
}
