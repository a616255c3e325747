//! The map against its dumb twin: a byte array, a disk that remembers every sector, and the set of
//! sectors in use.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(clippy::cast_possible_truncation, reason = "small numbers of a test")]

use std::collections::{BTreeMap, BTreeSet};

use stdx::Prng;
use types::{NsdId, Promised};

use super::*;
use crate::mutation::Mutation;

const SECTORS: u64 = 40;
const SECTOR: usize = 4096;

struct Twin {
    random: Prng,
    map: FileMap,
    bytes: Vec<u8>,
    size: usize,
    disk: BTreeMap<Location, Vec<u8>>,
    used: BTreeSet<Location>,
    next: u64,
    /// Sectors written from what pieces held under a version, not in the map yet.
    late: Vec<(u64, Extent)>,
    promised: BTreeSet<u64>,
    moved: usize,
    left: usize,
}

fn sectors_of(run: &Run) -> impl Iterator<Item = Location> + '_ {
    (0..u64::from(run.count)).map(|i| Location {
        sector: run.at.sector + i,
        ..run.at
    })
}

impl Twin {
    fn new(seed: u64) -> Self {
        Self {
            random: Prng::new(seed),
            map: FileMap::default(),
            bytes: vec![0; SECTORS as usize * SECTOR],
            size: 0,
            disk: BTreeMap::new(),
            used: BTreeSet::new(),
            next: 1000,
            late: Vec::new(),
            promised: BTreeSet::new(),
            moved: 0,
            left: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.random.below(n as u64)).unwrap()
    }

    fn random_bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Writes the file's sectors `first..last`, as the twin has them, to a new run; the extent of them.
    fn write_extent(&mut self, first: u64, last: u64) -> Extent {
        let length = u32::try_from(last - first).unwrap();
        let copies = 1 + self.below(3);
        let is_long = length > limits::INLINE_CHECKSUM_COUNT_MAX || self.random.chance(1, 2);
        let (checksums, before, count) = if is_long {
            let before = u32::try_from(self.below(4)).unwrap();
            let behind = u32::try_from(self.below(4)).unwrap();
            let run_length = (before + length + behind).max(17);
            let checksums = Checksums::Sectors {
                root: 0,
                run_begin: before,
                run_length,
            };
            (
                checksums,
                before,
                run_length + checksum_sector_count(run_length),
            )
        } else {
            let crcs = (0..length).collect();
            (Checksums::Inline { crcs }, 0, length)
        };
        let mut locations = Vec::new();
        for copy in 0..copies {
            let at = Location {
                nsd: NsdId(u16::try_from(copy).unwrap()),
                sector: self.next,
            };
            self.next += u64::from(count) + self.random.below(2);
            for i in 0..u64::from(length) {
                let from = usize::try_from(first + i).unwrap() * SECTOR;
                let place = Location {
                    sector: at.sector + u64::from(before) + i,
                    ..at
                };
                self.disk
                    .insert(place, self.bytes[from..from + SECTOR].to_vec());
            }
            locations.push(Location {
                sector: at.sector + u64::from(before),
                ..at
            });
        }
        Extent {
            file_sector: first,
            length,
            birth: 0,
            is_shared: false,
            locations,
            checksums,
        }
    }

    fn put(&mut self, extents: &[Extent], pieces: &[Piece]) {
        assert_eq!(check_extents(extents), Ok(()));
        for run in runs_of(extents) {
            for sector in sectors_of(&run) {
                assert!(self.used.insert(sector), "{sector:?} is used twice");
            }
        }
        let mut freed = Vec::new();
        self.map.put(extents, pieces, &mut freed);
        self.free(&freed);
    }

    fn free(&mut self, freed: &[Run]) {
        for sector in freed.iter().flat_map(sectors_of) {
            assert!(
                self.used.remove(&sector),
                "{sector:?} is freed twice or was never used"
            );
        }
    }

    fn commit(&mut self) {
        let mut extents = Vec::new();
        let mut sector = self.random.below(SECTORS);
        for _ in 0..self.below(4) {
            let last = (sector + 1 + self.random.below(24)).min(SECTORS);
            if sector >= last {
                break;
            }
            let (from, to) = (sector as usize * SECTOR, last as usize * SECTOR);
            // The writer's end lies somewhere in its last sector, unless the file goes on.
            let end = if to > self.size {
                self.size.max(to - self.below(SECTOR))
            } else {
                to
            };
            let new = self.random_bytes(end - from);
            self.bytes[from..end].copy_from_slice(&new);
            self.size = self.size.max(end);
            extents.push(self.write_extent(sector, last));
            sector = last + self.random.below(3);
        }
        let mut pieces = Vec::new();
        for _ in 0..self.below(4) {
            let offset = self.below(self.bytes.len());
            let offset = if self.random.chance(1, 2) {
                offset / SECTOR * SECTOR
            } else {
                offset
            };
            let most = if self.random.chance(1, 4) {
                3 * SECTOR
            } else {
                600
            };
            let count = (1 + self.below(most)).min(self.bytes.len() - offset);
            let new = self.random_bytes(count);
            self.bytes[offset..offset + count].copy_from_slice(&new);
            self.size = self.size.max(offset + count);
            pieces.push(Piece {
                offset: offset as u64,
                bytes: new.into(),
            });
        }
        self.put(&extents, &pieces);
    }

    fn truncate(&mut self) {
        let size = self.below(self.bytes.len() + 1);
        if size < self.size {
            self.bytes[size..].fill(0);
            let mut freed = Vec::new();
            self.map.cut(size as u64, &mut freed);
            self.free(&freed);
            let first = size.div_ceil(SECTOR) as u64;
            self.promised.retain(|sector| *sector < first);
        }
        self.size = size;
    }

    fn punch(&mut self) {
        let (one, two) = (self.below(self.bytes.len()), self.below(self.bytes.len()));
        let (mut begin, mut end) = (one.min(two), one.max(two));
        match self.below(4) {
            0 => begin = begin / SECTOR * SECTOR,
            1 => end = end / SECTOR * SECTOR,
            2 => end = end.min(begin + 100),
            _ => {}
        }
        let mut freed = Vec::new();
        let most = self.map.run_count_within(begin as u64, end as u64);
        self.map.punch(begin as u64, end as u64, &mut freed);
        assert!(freed.len() <= most, "{} of at most {most}", freed.len());
        self.free(&freed);
        if begin < end {
            self.bytes[begin..end].fill(0);
            let sectors = begin.div_ceil(SECTOR) as u64..(end / SECTOR) as u64;
            self.promised.retain(|sector| !sectors.contains(sector));
            assert!(
                sectors
                    .clone()
                    .all(|s| !self.map.is_mapped(s) && !self.map.has_pieces(s))
            );
        }
    }

    /// Promises some sectors; what that adds is known before.
    fn promise(&mut self) {
        let first = self.random.below(SECTORS);
        let last = (first + 1 + self.random.below(8)).min(SECTORS);
        let (before, adds) = (self.map.promised(), self.map.promise_adds(first, last));
        self.map.promise(first, last);
        assert_eq!(self.map.promised(), before + adds);
        self.promised.extend(first..last);
    }

    fn check_promised(&self) {
        let is_paid = |sector: &u64| self.map.extent_at(*sector).is_some_and(is_inline);
        let unpaid = self.promised.iter().filter(|s| !is_paid(s)).count() as u64;
        let total = self.promised.len() as u64;
        assert_eq!(self.map.promised(), Promised { unpaid, total });
        let told = self.map.promised_in(0, u64::MAX);
        let told: BTreeSet<u64> = told.flat_map(|(begin, end)| begin..end).collect();
        assert_eq!(told, self.promised);
    }

    fn destage(&mut self) {
        let last_of_file = self.size.div_ceil(SECTOR) as u64;
        if last_of_file == 0 {
            return;
        }
        let first = self.random.below(last_of_file);
        let last = first + 1 + self.random.below(last_of_file - first);
        let before = self.map.version();
        let extent = self.write_extent(first, last);
        self.put(&[extent], &[]);
        assert!(self.map.version() > before);
    }

    /// Writes what pieces and extents hold now to new sectors. They go into the map later.
    fn begin_move(&mut self) {
        let count = 1 + self.below(12);
        let version = self.map.version();
        for sector in self.map.piece_sectors(count, false) {
            let at = sector.file_sector as usize * SECTOR;
            let mut bytes = match &sector.extent {
                Some(extent) => self.disk[&extent.locations[0]].clone(),
                None => vec![0; SECTOR],
            };
            for piece in &sector.pieces {
                let from = piece.offset as usize - at;
                bytes[from..from + piece.bytes.len()].copy_from_slice(&piece.bytes);
            }
            assert!(bytes == self.bytes[at..at + SECTOR]);
            let extent = self.write_extent(sector.file_sector, sector.file_sector + 1);
            self.late.push((version, extent));
        }
    }

    /// Some of what was written goes into the map, as far as it is still what the file holds.
    fn end_move(&mut self) {
        while !self.late.is_empty() && self.random.chance(3, 4) {
            let index = self.below(self.late.len());
            let (version, extent) = self.late.swap_remove(index);
            let parts = self.map.unchanged_parts(&extent, version);
            self.moved += parts.len();
            self.left += usize::from(parts.is_empty());
            self.put(&parts, &[]);
        }
    }

    /// What a reader sees in `begin..end`, asking for `count_max` items at a time.
    fn read(&mut self, begin: usize, end: usize, count_max: usize) -> Vec<u8> {
        let mut seen = vec![0; end - begin];
        let mut at = begin;
        while at < end {
            let part = self.map.get(at as u64, end as u64, count_max);
            let part_end = usize::try_from(part.end).unwrap();
            assert!(at < part_end && part_end <= end);
            for extent in &part.extents {
                let copy = self.below(extent.locations.len());
                for i in 0..u64::from(extent.length) {
                    let location = extent.locations[copy];
                    let place = Location {
                        sector: location.sector + i,
                        ..location
                    };
                    let sector = &self.disk[&place];
                    let base = (extent.file_sector + i) as usize * SECTOR;
                    let (from, to) = (base.max(at), (base + SECTOR).min(part_end));
                    assert!(from < to, "extents are clipped");
                    seen[from - begin..to - begin].copy_from_slice(&sector[from - base..to - base]);
                }
            }
            for piece in &part.pieces {
                let (from, to) = (piece.offset as usize, piece.end() as usize);
                assert!(at <= from && to <= part_end, "pieces are clipped");
                seen[from - begin..to - begin].copy_from_slice(&piece.bytes);
            }
            at = part_end;
        }
        seen
    }

    fn check(&mut self) {
        self.map.check();
        self.check_promised();
        let begin = self.below(self.bytes.len());
        let end = begin + self.below(self.bytes.len() - begin + 1);
        let count_max = 1 + self.below(6);
        assert!(self.read(begin, end, count_max) == self.bytes[begin..end]);
        let all = self.bytes.len();
        assert!(self.read(0, all, usize::MAX) == self.bytes);
        let counted: u64 = (0..SECTORS)
            .filter(|s| {
                let is_promised = self.promised.contains(s);
                is_promised || self.map.is_mapped(*s) || self.map.has_pieces(*s)
            })
            .count() as u64;
        assert_eq!(self.map.sector_count(), counted);
    }

    fn check_snapshot(&self) {
        let mut copy = FileMap::default();
        let extents: Vec<Extent> = self.map.extents().cloned().collect();
        let pieces: Vec<Piece> = self.map.pieces().collect();
        let half = extents.len() / 2;
        copy.load(self.map.version(), &extents[..half], &[]);
        copy.load(self.map.version(), &extents[half..], &[]);
        copy.load(self.map.version(), &[], &pieces);
        for (begin, end) in self.map.promised_in(0, u64::MAX) {
            assert!(copy.load_promise(begin, end));
        }
        assert_eq!(copy, self.map);
    }
}

#[test]
fn map_agrees_with_a_byte_array_and_frees_every_sector_once() {
    let (mut moved, mut left) = (0, 0);
    for seed in 0..24 {
        let mut twin = Twin::new(seed);
        for step in 0..250 {
            match twin.below(20) {
                18.. => twin.promise(),
                16.. => twin.punch(),
                0..6 => twin.commit(),
                6..8 => twin.truncate(),
                8..10 => twin.destage(),
                10..13 => twin.begin_move(),
                _ => twin.end_move(),
            }
            twin.check();
            if step % 16 == 0 {
                twin.check_snapshot();
            }
        }
        let mut freed = Vec::new();
        twin.map.clear(&mut freed);
        twin.free(&freed);
        assert_eq!(twin.map.promised(), Promised::default());
        assert!(
            twin.used.is_empty(),
            "everything is free when the file is gone"
        );
        twin.map.check();
        (moved, left) = (moved + twin.moved, left + twin.left);
    }
    assert!(moved > 100 && left > 100, "{moved} {left}: both happen");
}

fn inline(file_sector: u64, length: u32, sector: u64) -> Extent {
    Extent {
        file_sector,
        length,
        birth: 0,
        is_shared: false,
        locations: vec![Location {
            nsd: NsdId(1),
            sector,
        }],
        checksums: Checksums::Inline {
            crcs: (0..length).collect(),
        },
    }
}

fn long(file_sector: u64, length: u32, run: (u64, u32, u32)) -> Extent {
    let (run_at, run_begin, run_length) = run;
    Extent {
        locations: vec![Location {
            nsd: NsdId(1),
            sector: run_at + u64::from(run_begin),
        }],
        checksums: Checksums::Sectors {
            root: 7,
            run_begin,
            run_length,
        },
        length,
        ..inline(file_sector, 1, 0)
    }
}

fn run(sector: u64, count: u32) -> Run {
    Run {
        at: Location {
            nsd: NsdId(1),
            sector,
        },
        count,
    }
}

#[test]
fn a_long_run_is_freed_with_its_last_piece_and_its_checksum_sectors() {
    let mut map = FileMap::default();
    let mut freed = Vec::new();
    map.put(&[long(0, 20, (100, 0, 20))], &[], &mut freed);
    map.put(&[inline(5, 10, 500)], &[], &mut freed);
    assert_eq!(freed, vec![]);
    map.cut(5 * SECTOR_SIZE, &mut freed);
    assert_eq!(freed, vec![run(500, 10)]);
    map.put(&[inline(0, 4, 600)], &[], &mut freed);
    assert_eq!(freed.len(), 1);
    map.put(&[inline(4, 1, 700)], &[], &mut freed);
    assert_eq!(freed, vec![run(500, 10), run(100, 21)]);
}

#[test]
fn old_bytes_do_not_come_back_after_truncate_down_and_up() {
    let mut map = FileMap::default();
    let mut freed = Vec::new();
    map.put(&[inline(0, 2, 100)], &[], &mut freed);
    map.cut(10, &mut freed);
    assert_eq!(freed, vec![run(101, 1)]);
    let part = map.get(0, 8192, 100);
    assert_eq!(part.pieces.len(), 1);
    assert_eq!(
        (part.pieces[0].offset, part.pieces[0].bytes.len()),
        (10, 4086)
    );
    assert!(part.pieces[0].bytes.iter().all(|b| *b == 0));
}

#[test]
fn a_piece_that_fills_its_sector_frees_the_sector_under_it() {
    let mut map = FileMap::default();
    let mut freed = Vec::new();
    map.put(&[inline(0, 3, 100)], &[], &mut freed);
    let piece = |offset, count| Piece {
        offset,
        bytes: vec![1; count].into(),
    };
    map.put(&[], &[piece(4096, 4000)], &mut freed);
    assert_eq!(freed, vec![]);
    map.put(&[], &[piece(8096, 96)], &mut freed);
    assert_eq!(freed, vec![run(101, 1)]);
    assert_eq!((map.sector_count(), map.piece_count()), (3, 1));
    map.check();
}

#[test]
fn appended_pieces_of_one_sector_become_one() {
    let mut map = FileMap::default();
    for i in 0..5000u64 {
        let piece = Piece {
            offset: i,
            bytes: vec![1].into(),
        };
        map.put(&[], &[piece], &mut Vec::new());
    }
    assert_eq!(
        (
            map.piece_count(),
            map.piece_byte_count(),
            map.sector_count()
        ),
        (2, 5000, 2)
    );
}

#[test]
fn extents_that_no_client_sends_are_refused() {
    let good = [
        inline(0, 16, 100),
        long(16, 20, (200, 3, 40)),
        long(40, 5, (200, 30, 40)),
    ];
    assert_eq!(check_extents(&good), Ok(()));
    assert_eq!(runs_of(&good), vec![run(100, 16), run(200, 41)]);
    let malformed = |extent: Extent| {
        let file_sector = extent.file_sector;
        assert_eq!(
            check_extents(&[extent]),
            Err(BadExtents::Malformed { file_sector })
        );
    };
    malformed(inline(0, 0, 100));
    malformed(inline(0, 17, 100));
    malformed(inline(u64::MAX, 1, 100));
    malformed(inline(SECTOR_END_MAX, 1, 100));
    malformed(inline(0, 1, NSD_SECTOR_END_MAX));
    malformed(inline(0, 1, u64::MAX));
    malformed(long(0, 10, (100, 0, 16)));
    malformed(long(0, 10, (100, 11, 20)));
    malformed(long(0, 10, (100, u32::MAX, u32::MAX)));
    malformed(Extent {
        is_shared: true,
        ..inline(0, 1, 1)
    });
    malformed(Extent {
        locations: vec![],
        ..inline(0, 1, 1)
    });
    malformed(Extent {
        locations: vec![Location::default(); 4],
        ..inline(0, 1, 1)
    });
    malformed(Extent {
        checksums: Checksums::Inline { crcs: vec![1, 2] },
        ..inline(0, 1, 1)
    });
    let before_its_run = Extent {
        locations: vec![Location {
            nsd: NsdId(1),
            sector: 2,
        }],
        ..long(0, 5, (100, 3, 20))
    };
    malformed(before_its_run);
    let unsorted = [inline(5, 2, 100), inline(6, 2, 200)];
    assert_eq!(
        check_extents(&unsorted),
        Err(BadExtents::Unsorted { file_sector: 6 })
    );
    for twice in [
        [inline(0, 2, 100), inline(2, 2, 101)],
        [inline(0, 2, 100), inline(2, 2, 100)],
        [inline(0, 2, 220), long(2, 20, (200, 0, 20))],
        [long(0, 20, (200, 0, 20)), long(20, 5, (200, 0, 21))],
    ] {
        assert!(matches!(
            check_extents(&twice),
            Err(BadExtents::SharedSector(_))
        ));
    }
}

#[test]
fn map_mutations_come_back_from_their_bytes() {
    use types::{Decode, Encode};
    let put = Mutation::MapPut {
        index: 3,
        extents: vec![inline(0, 2, 100), long(16, 20, (200, 3, 40))],
        pieces: vec![Piece {
            offset: 5,
            bytes: vec![1, 2, 3].into(),
        }],
    };
    let bytes = put.to_bytes();
    assert_eq!(Mutation::from_bytes(&bytes, "mutation"), Ok(put));
    for cut in 0..bytes.len() {
        assert!(Mutation::from_bytes(&bytes[..cut], "mutation").is_err());
    }
}

/// Where only promised sectors can be had, what lies in others before them is in nobody's way.
#[test]
fn promised_pieces_are_found_behind_any_number_of_others() {
    let mut map = FileMap::default();
    map.promise(1000, 1002);
    let piece = |sector: u64| Piece {
        offset: sector * SECTOR as u64,
        bytes: SmallBytes::new(&[1; 10]),
    };
    let mut freed = Vec::new();
    let pieces: Vec<Piece> = (0..300).chain(1000..1002).map(piece).collect();
    map.put(&[], &pieces, &mut freed);
    let found = |map: &FileMap, count, are_promised| -> Vec<u64> {
        let sectors = map.piece_sectors(count, are_promised);
        sectors.iter().map(|s| s.file_sector).collect()
    };
    assert_eq!(found(&map, 256, true), [1000, 1001]);
    assert_eq!(found(&map, 1, true), [1000]);
    assert_eq!(found(&map, 3, false), [0, 1, 2]);
    map.cut(900 * SECTOR as u64, &mut freed);
    assert_eq!(found(&map, 256, true), []);
}
