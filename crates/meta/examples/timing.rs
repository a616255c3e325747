//! Time of the common operations on one shard in memory, release: `cargo run --release -p meta --example timing`.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures time; no core runs here"
)]
#![allow(clippy::unwrap_used, reason = "a measuring program may stop")]

use std::time::{Duration, Instant};

use meta::parts::{Bounds, Tended, tend};
use meta::{
    Caller, Commit, Context, HashKey, Held, Known, Op, Outcome, Reply, Shard, View, execute,
};
use types::extent::{Checksums, Extent};
use types::{Attr, InodeId, Location, Name, NodeId, NodeLife, NsdId, ShardId, Timestamp};

fn name(i: usize) -> Name {
    Name::new(format!("file.{i:08}").as_bytes()).unwrap()
}

fn main() {
    for count in [10_000, 200_000] {
        println!("among {count} names");
        measure(count, None);
        for split in [512, 1024, 2048, 4096] {
            println!("among {count} names, in parts of at most {split}");
            let join = split / 16;
            measure(count, Some(Bounds::of(split, join)));
        }
    }
}

fn measure(count: usize, bounds: Option<Bounds>) {
    let mut shard = Shard::new(ShardId(0), HashKey(3));
    shard.make_root(Timestamp::default(), 0o755, 1);
    if let Some(bounds) = bounds {
        shard.allow_parts(bounds);
    }
    let owners = [NodeId(1)];
    let ctx = Context {
        now: Timestamp::default(),
        from: NodeLife::default(),
        origin: None,
        random: 7,
        held: Held::All,
        facts: &[],
    };
    let mut replies: Vec<Reply> = Vec::with_capacity(count);
    let mut time = |label: &str, make: &dyn Fn(usize, &Attr) -> Op| {
        let attrs: Vec<Attr> = if replies.is_empty() {
            Vec::new()
        } else {
            replies.drain(..).map(|r| attr_of(&r)).collect()
        };
        let root = shard.attr(InodeId::ROOT).unwrap();
        let ops: Vec<Op> = (0..count)
            .map(|i| make(i, attrs.get(i).unwrap_or(&root)))
            .collect();
        let begin = Instant::now();
        let (mut step_count, mut longest) = (0, Duration::ZERO);
        for op in &ops {
            let mut view = View::new(vec![&mut shard], &owners, NodeId(1));
            match execute(&mut view, &ctx, op) {
                Outcome::Done(done) => replies.push(done.reply),
                other => panic!("{other:?}"),
            }
            drop(view);
            while let Some(holder) = shard.next_to_tend() {
                let begin = Instant::now();
                let mut view = View::new(vec![&mut shard], &owners, NodeId(1));
                assert!(matches!(tend(&mut view, holder), Tended::Done(_)));
                step_count += 1;
                longest = longest.max(begin.elapsed());
            }
        }
        let ns = begin.elapsed().as_nanos() / count as u128;
        let longest = longest.as_micros();
        println!("{label:24} {ns:6} ns, {step_count} splits and joins, the longest {longest} us");
    };
    time("create", &|i, _| Op::Create {
        parent: InodeId::ROOT,
        name: name(i),
        permissions: 0o644,
        exclusive: true,
        caller: Caller::default(),
    });
    time("lookup", &|i, _| Op::Lookup {
        parent: InodeId::ROOT,
        name: name(i),
    });
    time("getattr", &|_, attr| Op::GetAttr { ino: attr.ino });
    time("commit of one extent", &|i, attr| {
        Op::Commit(Commit {
            ino: attr.ino,
            generation: attr.generation,
            size: Some(4096),
            modified: Some(Timestamp::default()),
            extents: vec![Extent {
                file_sector: 0,
                length: 1,
                birth: 0,
                is_shared: false,
                locations: vec![Location {
                    nsd: NsdId(0),
                    sector: i as u64,
                }],
                checksums: Checksums::Inline { crcs: vec![1] },
            }],
            ..Commit::default()
        })
    });
    time("unlink", &|i, attr| Op::Unlink {
        parent: InodeId::ROOT,
        name: name(i),
        known: Some(Known {
            ino: attr.ino,
            is_open: false,
        }),
        standing: None,
    });
    time("lookup of absent", &|i, _| Op::Lookup {
        parent: InodeId::ROOT,
        name: name(i),
    });
}

fn attr_of(reply: &Reply) -> Attr {
    match reply {
        Reply::Made { attr, .. } | Reply::Entry { attr, .. } | Reply::Removed { attr, .. } => {
            attr.unwrap_or_else(empty)
        }
        Reply::Attr(attr) => *attr,
        other => panic!("{other:?}"),
    }
}

fn empty() -> Attr {
    let mut shard = Shard::new(ShardId(0), HashKey(3));
    shard.make_root(Timestamp::default(), 0o755, 1);
    shard.attr(InodeId::ROOT).unwrap()
}
