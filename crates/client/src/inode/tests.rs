//! The map of a file against one of its sectors.

use std::collections::BTreeMap;

use stdx::Prng;
use types::extent::Checksums;
use types::{Location, NsdId, SECTOR_SIZE};

use super::*;

const SECTORS: u64 = 64;

fn extent(sectors: std::ops::Range<u64>, at: u64) -> Extent {
    let length = u32::try_from(sectors.end - sectors.start).expect("few");
    Extent {
        file_sector: sectors.start,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![Location {
            nsd: NsdId(1),
            sector: at,
        }],
        checksums: Checksums::Inline {
            crcs: (0..length).collect(),
        },
    }
}

/// Where each known sector lies; holes are `None`.
type Twin = BTreeMap<u64, Option<u64>>;

fn check(map: &MapCache, twin: &Twin) {
    let ordered = |pair: &[Extent]| pair[0].file_sector_end() <= pair[1].file_sector;
    assert!(map.extents.windows(2).all(ordered), "{:?}", map.extents);
    let mut seen = Twin::new();
    for range in map.known.ranges() {
        let sectors = range.begin / SECTOR_SIZE..range.end / SECTOR_SIZE;
        seen.extend(sectors.map(|sector| (sector, None)));
    }
    for extent in &map.extents {
        for skip in 0..u64::from(extent.length) {
            let found = extent.locations[0].sector + skip;
            let was = seen.insert(extent.file_sector + skip, Some(found));
            assert_eq!(was, Some(None), "all of an extent is known");
        }
    }
    assert_eq!(&seen, twin);
}

/// Extents of one to five sectors with holes between them are learnt and forgotten in part, one range or many at a time.
#[test]
fn what_is_known_of_a_map_is_what_was_learnt_and_not_forgotten() {
    for seed in 0..200 {
        let mut random = Prng::new(seed);
        let (mut map, mut twin) = (MapCache::default(), Twin::new());
        for step in 0..100 {
            let mut range = || {
                let begin = random.below(SECTORS);
                begin..begin + 1 + random.below(SECTORS - begin).min(random.below(16))
            };
            let bytes = |sectors: &std::ops::Range<u64>| {
                // Parts of sectors count as whole ones.
                let inset = u64::from(sectors.start % 2 == 1);
                let end = sectors.end * SECTOR_SIZE - inset;
                ByteRange::new(sectors.start * SECTOR_SIZE + inset, end)
            };
            let first = range();
            match step % 3 {
                0 => {
                    let mut extents = Vec::new();
                    let mut sector = first.start.saturating_sub(2);
                    while sector < first.end {
                        let length = 1 + random.below(5);
                        let place = 1000 * (step + 1) + sector;
                        if random.below(4) > 0 {
                            extents.push(extent(sector..sector + length, place));
                        }
                        sector += length;
                    }
                    twin.extend(first.clone().map(|sector| (sector, None)));
                    for extent in &extents {
                        for skip in 0..u64::from(extent.length) {
                            let known = twin.get_mut(&(extent.file_sector + skip));
                            if let Some(known) = known
                                && first.contains(&(extent.file_sector + skip))
                            {
                                *known = Some(extent.locations[0].sector + skip);
                            }
                        }
                    }
                    let sectors =
                        ByteRange::new(first.start * SECTOR_SIZE, first.end * SECTOR_SIZE);
                    map.learn(sectors, extents, Vec::new());
                }
                1 => {
                    twin.retain(|sector, _| !first.contains(sector));
                    map.forget(&bytes(&first));
                }
                _ => {
                    let all = [first, range(), range()];
                    twin.retain(|sector, _| !all.iter().any(|part| part.contains(sector)));
                    let mut ranges = RangeSet::new();
                    all.iter().for_each(|part| ranges.insert(bytes(part)));
                    map.forget_all(&ranges);
                }
            }
            check(&map, &twin);
        }
    }
}

/// What is not forgotten is not copied either: rewriting a fragmented file whose map was known went through all of it for each page (37,000
/// writes a second became 80, and the node stood still).
#[test]
fn what_is_not_forgotten_stays_where_it_is() {
    let mut map = MapCache::default();
    let extents = (0..SECTORS).map(|sector| extent(sector..sector + 1, sector * 3));
    map.learn(
        ByteRange::new(0, SECTORS * SECTOR_SIZE),
        extents.collect(),
        Vec::new(),
    );
    let place = |extent: &Extent| match &extent.checksums {
        Checksums::Inline { crcs } => (extent.file_sector, crcs.as_ptr()),
        Checksums::Sectors { .. } => panic!("it has its own"),
    };
    let places = |map: &MapCache| -> Vec<_> { map.extents.iter().map(place).collect() };
    let mut before = places(&map);
    let sector = |number: u64| ByteRange::at(number * SECTOR_SIZE, SECTOR_SIZE);
    map.forget(&sector(7));
    before.retain(|(number, _)| *number != 7);
    assert_eq!(places(&map), before);
    let mut ranges = RangeSet::of(sector(20));
    ranges.insert(sector(40));
    map.forget_all(&ranges);
    before.retain(|(number, _)| ![20, 40].contains(number));
    assert_eq!(places(&map), before);
}
