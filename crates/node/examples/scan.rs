//! CPU time of a start per inode that it reads from a tree: `cargo run --release -p node --example scan`.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures time; no core runs here"
)]
#![allow(clippy::unwrap_used, reason = "a measuring program may stop")]

use std::time::Instant;

use meta::{HashKey, Mutation, Shard};
use node::keeper::{PlainHost, checkpoint_now};
use node::replay::ShardReplay;
use node::{OwnerLog, OwnerSlice};
use store::tree::{Fetch, Unreadable};
use types::extent::Piece;
use types::{Epoch, FileKind, FsId, InodeId, Lsn, Name, ShardId, SmallBytes};

#[path = "../tests/common/mod.rs"]
mod common;

use common::owner::{PageDisk, log};

const KEY: HashKey = HashKey(7);
const SHARD: ShardId = ShardId(0);
const DIRECTORY_COUNT: u64 = 20;
/// Files of a directory, of 100 bytes each.
const FILE_COUNT: u64 = 1_000;

fn mutations() -> impl Iterator<Item = Mutation> {
    (0..DIRECTORY_COUNT).flat_map(|directory| {
        let base = 100 + directory * (FILE_COUNT + 1);
        let made = std::iter::once(common::directory(InodeId::new(SHARD, base)));
        let files = (0..FILE_COUNT).flat_map(move |file| {
            let index = base + 1 + file;
            let name = format!("f{}", directory * FILE_COUNT + file);
            let piece = Piece {
                offset: 0,
                bytes: SmallBytes::new(&[0x6d; 100]),
            };
            [
                common::file(InodeId::new(SHARD, index), 1),
                Mutation::MapPut {
                    index,
                    extents: Vec::new(),
                    pieces: vec![piece],
                },
                Mutation::EntryPut {
                    directory: base,
                    cookie: KEY.first_cookie(name.as_bytes()),
                    name: Name::new(name.as_bytes()).unwrap(),
                    ino: InodeId::new(SHARD, index),
                    kind: FileKind::File,
                },
            ]
        });
        made.chain(files)
    })
}

fn main() {
    let mut shard = Shard::new(SHARD, KEY);
    shard.track();
    mutations().for_each(|mutation| shard.apply(&mutation));
    let tokens = token::Manager::new(Epoch(1), token::Options::default());
    let mut slices = vec![Some(OwnerSlice::new(shard, tokens, Lsn(0)))];
    let (mut log, mut pages): (OwnerLog, _) = (log(), PageDisk::default());
    log.note_starving(true);
    let mut host = PlainHost {
        shards: &mut slices,
        log: &mut log,
    };
    let (counters, failure) = checkpoint_now(types::Instant(1), &mut host, &mut pages);
    assert_eq!((counters.checkpoints, failure), (1, None));
    let shard = slices.remove(0).unwrap().shard;
    let root = log.root(SHARD);
    let count = DIRECTORY_COUNT * (FILE_COUNT + 1);
    println!("{} pages, {count} inodes", root.pages);
    for (what, room) in [("all stay", u64::MAX), ("none stays", 0)] {
        for _ in 0..3 {
            let begin = Instant::now();
            replay(&shard, &log, &pages, room);
            let time = begin.elapsed().as_secs_f64();
            println!("{what}: {:.2} us an inode", time * 1e6 / count as f64);
        }
    }
}

#[inline(never)]
fn replay(shard: &Shard, log: &OwnerLog, pages: &PageDisk, room: u64) {
    let read = &mut |fetch: &Fetch| {
        let page = pages.0.get(&fetch.at).cloned();
        page.map(Vec::into_boxed_slice).ok_or(Unreadable)
    };
    let mut replay = ShardReplay::new(FsId(0), Shard::new(SHARD, KEY)).with_room(room);
    let root = log.root(SHARD);
    node::log::shard_snapshot(shard, Some(&root), 4096, &mut |bytes| {
        replay.apply(&bytes, read).unwrap();
    });
    let (shard, _) = replay.finish(read).unwrap();
    std::mem::forget(shard);
}
