//! Shared by the tests of the name space.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, reason = "a module that test programs share")]
#![allow(missing_debug_implementations, reason = "tests")]

pub mod model;
pub mod world;

use meta::{Caller, Commit, NewKind, Op};
use model::Model;
use types::extent::{Checksums, Extent};
use types::{FileKind, InodeId, Location, Name, NsdId, Piece, SetAttr, ShardId, Timestamp};
use world::World;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn pick<T: Clone>(world: &mut World, items: &[T]) -> Option<T> {
    world.random.pick(items).cloned()
}

/// A random operation on what the model knows; names are few, so that they meet.
pub fn random_op(world: &mut World, model: &Model) -> Op {
    let directories = model.of_kind(FileKind::Directory);
    let files = model.of_kind(FileKind::File);
    let parent = pick(world, &directories).unwrap();
    let new_parent = pick(world, &directories).unwrap();
    let mut any_name = || name(&format!("n{}", world.random.below(world.name_count)));
    let (name1, name2) = (any_name(), any_name());
    let shard = ShardId(u16::try_from(world.random.below(world.map.len() as u64)).unwrap());
    let caller = Caller {
        uid: 1,
        gid: 2,
        umask: 0,
    };
    match world.random.below(20) {
        0..4 => Op::Make {
            parent,
            name: name1,
            kind: NewKind::Directory {
                permissions: 0o755,
                placement: InodeId::new(shard, 0),
            },
            caller,
        },
        4..8 => Op::Create {
            parent,
            name: name1,
            permissions: 0o644,
            exclusive: world.random.chance(1, 2),
            caller,
        },
        8..10 => match pick(world, &files) {
            Some(ino) => Op::Link {
                ino,
                kind: FileKind::File,
                parent,
                name: name1,
            },
            None => Op::Make {
                parent,
                name: name1,
                kind: NewKind::Symlink {
                    target: vec![b'x'; 7].into(),
                },
                caller,
            },
        },
        10..12 => {
            let known = model.nodes[&parent]
                .names
                .get(&name1)
                .map(|ino| meta::Known {
                    ino: *ino,
                    is_open: false,
                });
            Op::Unlink {
                parent,
                name: name1,
                known,
                standing: None,
            }
        }
        12..13 => Op::Rmdir {
            parent,
            name: name1,
            known: None,
            standing: None,
        },
        13..18 => {
            let known = model.nodes[&new_parent]
                .names
                .get(&name2)
                .map(|ino| meta::Known {
                    ino: *ino,
                    is_open: false,
                });
            Op::Rename {
                parent,
                name: name1,
                new_parent,
                new_name: name2,
                no_replace: world.random.chance(1, 8),
                exchange: false,
                whiteout: None,
                known,
                standing: None,
            }
        }
        18 => Op::Rename {
            parent,
            name: name1,
            new_parent,
            new_name: name2,
            no_replace: false,
            exchange: true,
            whiteout: None,
            known: None,
            standing: None,
        },
        _ => match pick(world, &files) {
            Some(ino) if world.random.chance(2, 3) => random_commit(world, ino),
            Some(ino) if world.random.chance(1, 4) => {
                let begin = world.random.below(90_000);
                Op::Allocate {
                    ino,
                    begin,
                    end: begin + 1 + world.random.below(70_000),
                    keeps_size: world.random.chance(1, 2),
                }
            }
            Some(ino) if world.random.chance(1, 2) => {
                let begin = world.random.below(70_000);
                Op::Punch {
                    ino,
                    begin,
                    end: begin + 1 + world.random.below(70_000),
                    keeps_size: world.random.chance(1, 2),
                }
            }
            Some(ino) => Op::SetAttr {
                ino,
                set: SetAttr {
                    size: Some(world.random.below(70_000)),
                    ..SetAttr::default()
                },
                standing: None,
            },
            None => Op::Make {
                parent,
                name: name1,
                kind: NewKind::Node {
                    mode: 0o100_644,
                    rdev: 0,
                },
                caller,
            },
        },
    }
}

/// New content for a file, in sectors never used before.
pub fn random_commit(world: &mut World, ino: InodeId) -> Op {
    let Some(attr) = world.shard(ino.shard()).attr(ino) else {
        return Op::GetAttr { ino };
    };
    let file_sector = world.random.below(8);
    let length = u32::try_from(1 + world.random.below(16)).unwrap();
    let extent = Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![Location {
            nsd: NsdId(0),
            sector: world.random.below(1 << 40),
        }],
        checksums: Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    };
    Op::Commit(Commit {
        ino,
        generation: attr.generation,
        size_generation: attr.size_generation,
        size: Some(extent.file_sector_end() * 4096),
        // Before and after the owner's clock, which begins at 0.
        modified: Some(Timestamp {
            secs: i64::try_from(world.random.below(2000)).unwrap(),
            nanos: 0,
        }),
        kill_set_id: None,
        drops_rights: false,
        pieces: vec![Piece {
            offset: world.random.below(4096),
            bytes: vec![1, 2, 3].into(),
        }],
        extents: vec![extent],
    })
}
