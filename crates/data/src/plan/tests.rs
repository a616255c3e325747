//! The read plan against a naive map of sectors, and the cache of checksums.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use super::*;
use crate::checksum::seal;
use types::NsdId;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

fn place(nsd: u16, sector: u64) -> Location {
    Location {
        nsd: NsdId(nsd),
        sector,
    }
}

/// The CRC that the sector at a place "has".
fn crc_at(at: Location) -> u32 {
    crate::crc32c(&[at.nsd.0.to_le_bytes().as_slice(), &at.sector.to_le_bytes()].concat())
}

/// A whole run of `length` sectors from `at` on, mapped at `file_sector`, with its checksum sectors.
fn run(file_sector: u64, at: Location, length: u32) -> (Extent, Vec<u8>) {
    let crcs: Vec<u32> = (0..u64::from(length))
        .map(|i| crc_at(place(at.nsd.0, at.sector + i)))
        .collect();
    let (checksums, sectors) = seal(&crcs);
    let copy = place(9, at.sector + 7);
    let extent = Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![at, copy],
        checksums,
    };
    (extent, sectors)
}

#[test]
fn plans_agree_with_a_map_of_sectors() {
    let mut random = Random(3);
    for _ in 0..3000 {
        let mut extents = Vec::new();
        let mut map: BTreeMap<u64, Location> = BTreeMap::new();
        let mut sums: BTreeMap<Location, Vec<u8>> = BTreeMap::new();
        let mut at = random.below(5);
        let mut disk = 1000;
        for _ in 0..random.below(6) {
            let length = [1, 5, 16, 17, 40, 1030][random.below(6) as usize];
            let home = place(random.below(2) as u16, disk);
            let (whole, sectors) = run(at, home, length);
            disk += u64::from(length + checksum_sector_count(length)) + random.below(2);
            // A file may hold only a part of the run.
            let skip = random.below(u64::from(length));
            let end = skip + 1 + random.below(u64::from(length) - skip);
            let part = whole.slice(at + skip, at + end);
            for sector in skip..end {
                map.insert(at + sector, place(home.nsd.0, home.sector + sector));
            }
            sums.insert(home, sectors);
            at += end + random.below(4);
            extents.push(part);
        }
        let begin = random.below(at + 5) * SECTOR_SIZE + random.below(2) * random.below(4096);
        let range = ByteRange::at(begin, random.below(60 * 4096));
        let pieces = plan_read(range, &extents);
        let mut cache = ChecksumCache::new(10_000);
        let mut expected = range.begin / SECTOR_SIZE;
        for piece in &pieces {
            match piece {
                ReadPiece::Hole { file_sector, count } => {
                    assert_eq!(*file_sector, expected);
                    assert!(*count > 0);
                    expected += count;
                    assert!((*file_sector..expected).all(|s| !map.contains_key(&s)));
                }
                ReadPiece::Fetch(fetch) => {
                    assert_eq!(fetch.file_sector, expected);
                    assert_eq!(fetch.locations.len(), 2);
                    assert_eq!(fetch.locations[1].sector, fetch.locations[0].sector + 7);
                    let found: Vec<u32> = (0..u64::from(fetch.count))
                        .map(|i| crc_at(map[&(expected + i)]))
                        .collect();
                    assert_eq!(fetch.locations[0], map[&expected]);
                    let run_crcs = match &fetch.verify {
                        Verify::Inline(_) => Arc::from([]),
                        Verify::Sectors {
                            key, run_length, ..
                        } => {
                            let sectors = &sums[&key.at];
                            let from = fetch.checksum_run(0).expect("a long run");
                            assert_eq!(from.at.sector, key.at.sector + u64::from(*run_length));
                            assert_eq!(from.count as usize * 4096, sectors.len());
                            cache.open(*key, *run_length, sectors).expect("whole")
                        }
                    };
                    assert_eq!(fetch.verify(&found, &run_crcs), Ok(()));
                    let mut wrong = found.clone();
                    let bad = random.below(u64::from(fetch.count)) as u32;
                    wrong[bad as usize] ^= 1;
                    assert_eq!(
                        fetch.verify(&wrong, &run_crcs),
                        Err(Mismatch::Data { index: bad })
                    );
                    expected += u64::from(fetch.count);
                }
            }
        }
        if range.is_empty() {
            assert!(pieces.is_empty());
        } else {
            assert_eq!(expected, range.end.div_ceil(SECTOR_SIZE));
        }
        joined_reads_cover_the_fetches(&pieces);
    }
}

fn joined_reads_cover_the_fetches(pieces: &[ReadPiece]) {
    let reads = join_reads(pieces, 300);
    let mut seen = 0;
    for read in &reads {
        let mut at = read.run.at;
        for piece in &pieces[read.first..read.first + read.count] {
            let ReadPiece::Fetch(fetch) = piece else {
                panic!("a hole was joined");
            };
            assert_eq!(fetch.locations[0], at);
            at.sector += u64::from(fetch.count);
            seen += 1;
        }
        assert_eq!(at.sector, read.run.at.sector + u64::from(read.run.count));
        assert!(read.count == 1 || read.run.count <= 300);
    }
    let fetches = pieces.iter().filter(|p| matches!(p, ReadPiece::Fetch(_)));
    assert_eq!(seen, fetches.count());
}

#[test]
fn a_block_read_to_its_end_brings_its_checksums_along() {
    let (extent, _) = run(256, place(0, 5000), 256);
    let all = plan_read(
        ByteRange::at(1 << 20, 1 << 20),
        std::slice::from_ref(&extent),
    );
    let [ReadPiece::Fetch(fetch)] = &all[..] else {
        panic!("{all:?}");
    };
    let joined = fetch.joined_run(0).expect("to the end");
    assert_eq!((joined.at, joined.count), (place(0, 5000), 257));
    assert_eq!(fetch.joined_run(1).expect("to the end").at, place(9, 5007));
    let head = plan_read(ByteRange::at(1 << 20, 4096), &[extent]);
    let [ReadPiece::Fetch(fetch)] = &head[..] else {
        panic!("{head:?}");
    };
    assert_eq!(fetch.joined_run(0), None);
    let sums = fetch.checksum_run(0).expect("a long run");
    assert_eq!((sums.at, sums.count), (place(0, 5256), 1));
}

#[test]
fn the_cache_is_bounded_and_keeps_what_is_used() {
    let mut cache = ChecksumCache::new(100);
    let key = |index: u32| RunKey {
        at: place(0, u64::from(index)),
        root: index,
    };
    for index in 0..50 {
        cache.insert(key(index), vec![index; 20].into());
        assert!(cache.get(key(0)).is_some(), "used all the time");
        assert!(cache.count <= 100);
        assert_eq!(cache.runs.len(), cache.ages.len());
    }
    assert!(cache.get(key(49)).is_some());
    assert!(cache.get(key(30)).is_none());
    // The same place with another root is another run.
    let other = RunKey { root: 7, ..key(49) };
    assert!(cache.get(other).is_none());
    assert_eq!(cache.open(other, 20, &[0; 4096]), Err(Mismatch::Root));
    assert!(cache.get(other).is_none());
}
