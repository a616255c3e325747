//! The write plan: nothing lost, nothing twice, blocks kept apart, small runs packed; and what is
//! planned, written and read back through the read plan is the same.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use super::*;
use crate::plan::{ReadPiece, Verify, plan_read};
use std::collections::BTreeMap;
use types::{ByteRange, Grant, GrantId, NsdId, Run, SECTOR_SIZE, ShardId};

fn pool(pieces: &[(u16, u64, u32)]) -> GrantPool {
    let mut pool = GrantPool::new();
    for (nsd, sector, count) in pieces {
        let at = Location {
            nsd: NsdId(*nsd),
            sector: *sector,
        };
        pool.add(&Grant {
            id: GrantId(1),
            run: Run { at, count: *count },
            mac: 0,
        });
    }
    pool
}

fn nsds(count: u16) -> Vec<NsdId> {
    (0..count).map(NsdId).collect()
}

#[test]
fn blocks_go_to_their_nsds_in_one_write_each() {
    let striping = Striping::even(&nsds(4), 1 << 20);
    let mut pool = pool(&[(0, 0, 4000), (1, 0, 4000), (2, 0, 4000), (3, 0, 4000)]);
    let mut reservation = pool.reserve(8 * 256).expect("room");
    let ino = InodeId::new(ShardId(1), 5);
    // Eight blocks, from the middle of block 3 on.
    let dirty = [Dirty {
        ino,
        striping: &striping,
        file_sector: 3 * 256 + 128,
        count: 8 * 256,
    }];
    let writes = plan_write(&dirty, &mut pool, &mut reservation);
    assert_eq!(reservation.sectors(), 0);
    let pieces: Vec<_> = writes.iter().flat_map(|w| &w.pieces).collect();
    assert_eq!(pieces.len(), 9);
    for piece in pieces {
        let block = piece.file_sector / 256;
        assert_eq!((piece.file_sector + u64::from(piece.data) - 1) / 256, block);
        assert_eq!(piece.at.nsd, striping.nsd(ino, block));
        assert_eq!(piece.checksums, 1);
    }
    pool.release(reservation);
}

#[test]
fn small_files_share_a_write() {
    let striping = Striping::even(&nsds(2), 1 << 20);
    let mut pool = pool(&[(0, 100, 5000), (1, 100, 5000)]);
    let mut reservation = pool.reserve(300).expect("room");
    let dirty: Vec<_> = (0..100)
        .map(|index| Dirty {
            ino: InodeId::new(ShardId(1), index),
            striping: &striping,
            file_sector: 0,
            count: 3,
        })
        .collect();
    let writes = plan_write(&dirty, &mut pool, &mut reservation);
    assert!(writes.len() <= 4, "{} writes for 100 files", writes.len());
    pool.release(reservation);
}

/// Random dirty runs through scattered grants, written to a map and read back with all checks.
#[test]
fn what_is_planned_and_written_reads_back() {
    let mut seed = 1u64;
    let mut random = move |below: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    for round in 0..120u64 {
        let mut pieces = Vec::new();
        for index in 0..60 {
            pieces.push((random(3) as u16, index * 1000, 1 + random(900) as u32));
        }
        let mut pool = pool(&pieces);
        let striping = Striping::even(&nsds(3), 1 << [14, 16, 20][(round % 3) as usize]);
        let mut dirty = Vec::new();
        let mut at = 0;
        for _ in 0..1 + random(8) {
            at += random(40);
            let count = 1 + random(600) as u32;
            dirty.push(Dirty {
                ino: InodeId::new(ShardId(2), round),
                striping: &striping,
                file_sector: at,
                count,
            });
            at += u64::from(count);
        }
        let sum = dirty.iter().map(|d| u64::from(d.count)).sum();
        let mut reservation = pool.reserve(sum).expect("room");
        let writes = plan_write(&dirty, &mut pool, &mut reservation);
        pool.check();
        pool.release(reservation);
        // The bytes of a file sector are its number; `disk` holds whole sectors as their CRC or as
        // checksum sectors.
        let crc = |file_sector: u64| crate::crc32c(&file_sector.to_le_bytes());
        let mut data: BTreeMap<Location, u64> = BTreeMap::new();
        let mut sums: BTreeMap<Location, Vec<u8>> = BTreeMap::new();
        let mut extents = Vec::new();
        for write in &writes {
            let mut next = write.at;
            for piece in &write.pieces {
                assert_eq!(piece.at, next, "no gaps in a write");
                let crcs: Vec<u32> = (0..u64::from(piece.data))
                    .map(|i| crc(piece.file_sector + i))
                    .collect();
                let (extent, sectors) = piece.seal(&crcs);
                assert_eq!(sectors.len(), piece.checksums as usize * 4096);
                for index in 0..u64::from(piece.data) {
                    assert!(data.insert(next, piece.file_sector + index).is_none());
                    next.sector += 1;
                }
                if !sectors.is_empty() {
                    sums.insert(next, sectors);
                }
                next.sector += u64::from(piece.checksums);
                let run = extent.run(extent.locations[0]);
                assert_eq!(run.count, piece.data + piece.checksums);
                extents.push(extent);
            }
            assert_eq!(next.sector, write.at.sector + u64::from(write.count));
        }
        extents.sort_by_key(|extent| extent.file_sector);
        let read = plan_read(ByteRange::new(0, at * SECTOR_SIZE), &extents);
        let mut read_sectors = 0;
        for piece in &read {
            let ReadPiece::Fetch(fetch) = piece else {
                continue;
            };
            let found: Vec<u32> = (0..u64::from(fetch.count))
                .map(|index| {
                    let mut at = fetch.locations[0];
                    at.sector += index;
                    assert_eq!(data[&at], fetch.file_sector + index);
                    crc(data[&at])
                })
                .collect();
            let run_crcs = match &fetch.verify {
                Verify::Inline(_) => Vec::new(),
                Verify::Sectors {
                    key, run_length, ..
                } => {
                    let from = fetch.checksum_run(0).expect("a long run");
                    checksum::open_checksum_sectors(&sums[&from.at], key.root, *run_length)
                        .expect("whole")
                }
            };
            fetch.verify(&found, &run_crcs).expect("what was written");
            read_sectors += u64::from(fetch.count);
        }
        assert_eq!(read_sectors, sum);
    }
}
