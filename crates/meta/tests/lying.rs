//! What of a file lies in some places: the bytes of each extent of which a copy, or its checksums, lie there.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::name;
use common::world::World;
use meta::shard::inspect::Lying;
use meta::{Caller, Commit, Op, Reply};
use types::extent::Checksums;
use types::{ByteRange, Extent, InodeId, Location, NsdId, Piece, Run};

const SECTOR: u64 = 4096;

fn at(nsd: u16, sector: u64) -> Location {
    let nsd = NsdId(nsd);
    Location { nsd, sector }
}

fn place(nsd: u16, sector: u64, count: u32) -> Run {
    let at = at(nsd, sector);
    Run { at, count }
}

fn extent(file_sector: u64, length: u32, locations: Vec<Location>) -> Extent {
    Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations,
        checksums: Checksums::Inline {
            crcs: vec![0; length as usize],
        },
    }
}

/// A file of three extents, the second one in two copies, the third with its checksums beside it.
fn with_file() -> (World, InodeId) {
    let mut world = World::new(1, 1, 1);
    let made = world.call(Op::Create {
        parent: InodeId::ROOT,
        name: name("file"),
        permissions: 0o644,
        exclusive: true,
        caller: Caller {
            uid: 1,
            gid: 2,
            umask: 0,
        },
    });
    let Reply::Made {
        attr: Some(attr), ..
    } = made
    else {
        panic!("{made:?}");
    };
    let third = Extent {
        checksums: Checksums::Sectors {
            root: 0,
            run_begin: 0,
            run_length: 32,
        },
        ..extent(20, 32, vec![at(0, 3000)])
    };
    let reply = world.call(Op::Commit(Commit {
        ino: attr.ino,
        generation: attr.generation,
        size_generation: attr.size_generation,
        size: Some(60 * SECTOR),
        modified: None,
        kill_set_id: None,
        drops_rights: false,
        pieces: vec![Piece {
            offset: 59 * SECTOR,
            bytes: vec![1].into(),
        }],
        extents: vec![
            extent(0, 4, vec![at(0, 1000)]),
            extent(10, 2, vec![at(0, 2000), at(1, 50)]),
            third,
        ],
    }));
    assert!(matches!(reply, Reply::Attr(_)), "{reply:?}");
    (world, attr.ino)
}

/// What lies there: the number of the place, and sectors of the file.
fn lying(world: &World, ino: InodeId, places: &[Run]) -> Vec<(usize, u64, u64)> {
    let Some(lying) = world.shard(ino.shard()).lying_in(ino, places) else {
        return Vec::new();
    };
    let Lying {
        ino: of, ranges, ..
    } = lying;
    assert_eq!(of, ino);
    assert!(!ranges.is_empty(), "that is nothing");
    let sectors = |(number, bytes): (usize, ByteRange)| {
        assert_eq!((bytes.begin % SECTOR, bytes.end % SECTOR), (0, 0));
        (number, bytes.begin / SECTOR, bytes.end / SECTOR)
    };
    ranges.into_iter().map(sectors).collect()
}

#[test]
fn an_extent_lies_where_a_part_of_a_copy_lies() {
    let (world, ino) = with_file();
    let all = [place(0, 0, 10_000)];
    let everything = [(0, 0, 4), (0, 10, 12), (0, 20, 52)];
    assert_eq!(lying(&world, ino, &all), everything);
    // The first place of those that have a part of it; in the order of the file.
    let several = [place(1, 40, 11), place(0, 1003, 1), place(0, 900, 1200)];
    assert_eq!(lying(&world, ino, &several), [(1, 0, 4), (0, 10, 12)]);
    // Beside them, and on other NSDs.
    let beside = [
        place(0, 900, 100),
        place(0, 1004, 996),
        place(0, 2002, 998),
        place(1, 0, 50),
        place(1, 52, 5000),
        place(2, 0, 10_000),
    ];
    assert_eq!(lying(&world, ino, &beside), []);
    // The checksums of 32 sectors are one.
    assert_eq!(lying(&world, ino, &[place(0, 3032, 1)]), [(0, 20, 52)]);
    assert_eq!(lying(&world, ino, &[place(0, 3033, 1)]), []);
    assert_eq!(lying(&world, ino, &[]), []);
}

/// Directories have no extents, and who is not there has nothing.
#[test]
fn those_in_memory_are_looked_at() {
    let (world, ino) = with_file();
    let shard = world.shard(ino.shard());
    let mut resident = shard.resident_inodes();
    resident.sort_unstable();
    assert!(resident.contains(&InodeId::ROOT) && resident.contains(&ino));
    let all = [place(0, 0, 10_000)];
    let found = resident
        .iter()
        .filter(|ino| shard.lying_in(**ino, &all).is_some());
    assert_eq!(found.collect::<Vec<_>>(), [&ino]);
    let nobody = InodeId::new(ino.shard(), 1 << 30);
    assert_eq!(shard.lying_in(nobody, &all), None);
}

/// Its runs are short, so that each sector that is written over is free by itself: nobody joins them.
#[test]
fn a_file_with_a_promise_is_left_alone() {
    let (mut world, ino) = with_file();
    let reply = world.call(Op::Allocate {
        ino,
        begin: 4 * SECTOR,
        end: 5 * SECTOR,
        keeps_size: true,
    });
    let attr = world.shard(ino.shard()).attr(ino).unwrap();
    assert!(attr.has_promise(), "{reply:?}");
    assert_eq!(lying(&world, ino, &[place(0, 0, 10_000)]), []);
}
