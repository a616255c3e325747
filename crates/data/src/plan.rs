//! The read plan: a byte range and the extents of a file -> sectors to fetch and how to verify them.
//!
//! Invariants
//! - The pieces cover the sectors of the range once, in order, without gaps; what no extent covers is a
//!   hole (zeros).
//! - Every fetched sector is verified, also when only part of an extent is read: inline checksums are
//!   cut to the part; for longer runs the run's checksum sectors are fetched once, verified by their
//!   root, and kept in a `ChecksumCache` under the run's key.

use std::collections::BTreeMap;
use std::sync::Arc;

use types::extent::checksum_sector_count;
use types::{ByteRange, Checksums, Extent, Location, Run, SECTOR_SIZE};

use crate::checksum::{self, Mismatch};

/// Names a run whose checksum sectors were verified. The root is part of it: sectors that were freed
/// and written again have another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunKey {
    /// First sector of the run (of its first copy).
    pub at: Location,
    /// CRC32C of its checksum sectors.
    pub root: u32,
}

/// What the fetched sectors must match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verify {
    /// These, one per sector.
    Inline(Vec<u32>),
    /// Part of the checksums of a run, from its checksum sectors.
    Sectors {
        /// The run, as the cache knows it.
        key: RunKey,
        /// First sector of the fetch, counted in the run.
        begin: u32,
        /// Data sectors of the run.
        run_length: u32,
    },
}

/// Adjacent sectors to fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fetch {
    /// First sector of the file.
    pub file_sector: u64,
    /// Sectors.
    pub count: u32,
    /// The copies: the place of the first sector in each.
    pub locations: Vec<Location>,
    /// What they must match.
    pub verify: Verify,
}

/// A piece of a range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadPiece {
    /// Zeros.
    Hole {
        /// First sector of the file.
        file_sector: u64,
        /// Sectors.
        count: u64,
    },
    /// Sectors to read.
    Fetch(Fetch),
}

impl Fetch {
    /// The run of this fetch in copy `copy`.
    pub fn run(&self, copy: usize) -> Run {
        Run {
            at: self.locations[copy],
            count: self.count,
        }
    }

    /// The checksum sectors to read from copy `copy` when the cache does not have them.
    pub fn checksum_run(&self, copy: usize) -> Option<Run> {
        match &self.verify {
            Verify::Inline(_) => None,
            Verify::Sectors {
                begin, run_length, ..
            } => {
                let at = self.locations[copy];
                Some(Run {
                    at: Location {
                        nsd: at.nsd,
                        sector: at.sector - u64::from(*begin) + u64::from(*run_length),
                    },
                    count: checksum_sector_count(*run_length),
                })
            }
        }
    }

    /// Data and checksum sectors in one read, where the fetch reaches the end of its run.
    pub fn joined_run(&self, copy: usize) -> Option<Run> {
        let sums = self.checksum_run(copy)?;
        let data = self.run(copy);
        (data.at.sector + u64::from(data.count) == sums.at.sector).then_some(Run {
            at: data.at,
            count: data.count + sums.count,
        })
    }

    /// Compares the CRC32C of each sector read with what it must be. `run_crcs` are the checksums of
    /// the whole run, from the cache (ignored for inline ones).
    pub fn verify(&self, found: &[u32], run_crcs: &[u32]) -> Result<(), Mismatch> {
        let expected = match &self.verify {
            Verify::Inline(crcs) => &crcs[..],
            Verify::Sectors { begin, .. } => {
                &run_crcs[*begin as usize..(*begin + self.count) as usize]
            }
        };
        checksum::verify(found, expected)
    }
}

/// The pieces of `range`, rounded out to sectors. `extents` are sorted by file sector and disjoint;
/// those outside the range are skipped.
pub fn plan_read(range: ByteRange, extents: &[Extent]) -> Vec<ReadPiece> {
    let mut pieces = Vec::new();
    if range.is_empty() {
        return pieces;
    }
    let mut at = range.begin / SECTOR_SIZE;
    let end = range.end.div_ceil(SECTOR_SIZE);
    let first = extents.partition_point(|extent| extent.file_sector_end() <= at);
    for extent in &extents[first..] {
        if extent.file_sector >= end {
            break;
        }
        let begin = extent.file_sector.max(at);
        if begin > at {
            pieces.push(ReadPiece::Hole {
                file_sector: at,
                count: begin - at,
            });
        }
        at = extent.file_sector_end().min(end);
        pieces.push(ReadPiece::Fetch(fetch(extent, begin, at)));
    }
    if at < end {
        pieces.push(ReadPiece::Hole {
            file_sector: at,
            count: end - at,
        });
    }
    pieces
}

fn fetch(extent: &Extent, begin: u64, end: u64) -> Fetch {
    let part = extent.slice(begin, end);
    let verify = match part.checksums {
        Checksums::Inline { crcs } => Verify::Inline(crcs),
        Checksums::Sectors {
            root,
            run_begin,
            run_length,
        } => Verify::Sectors {
            key: RunKey {
                at: extent.run(extent.locations[0]).at,
                root,
            },
            begin: run_begin,
            run_length,
        },
    };
    Fetch {
        file_sector: begin,
        count: part.length,
        locations: part.locations,
        verify,
    }
}

/// Adjacent pieces that one disk read can fetch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedRead {
    /// First sector, of the first copy.
    pub run: Run,
    /// The pieces of the plan: `pieces[first..first + count]`, all `Fetch`.
    pub first: usize,
    /// Pieces.
    pub count: usize,
}

/// Joins pieces that follow one another in the file *and* on the NSD (their first copy) into reads of
/// at most `sectors_max`. Checksum sectors are not included.
pub fn join_reads(pieces: &[ReadPiece], sectors_max: u32) -> Vec<JoinedRead> {
    let mut reads: Vec<JoinedRead> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let ReadPiece::Fetch(fetch) = piece else {
            continue;
        };
        let run = fetch.run(0);
        if let Some(last) = reads.last_mut()
            && last.first + last.count == index
            && last.run.at.nsd == run.at.nsd
            && last.run.at.sector + u64::from(last.run.count) == run.at.sector
            && last.run.count + run.count <= sectors_max
        {
            last.run.count += run.count;
            last.count += 1;
        } else {
            reads.push(JoinedRead {
                run,
                first: index,
                count: 1,
            });
        }
    }
    reads
}

/// Checksums of runs whose checksum sectors were verified: bounded, least recently used goes first.
#[derive(Debug)]
pub struct ChecksumCache {
    runs: BTreeMap<RunKey, (Arc<[u32]>, u64)>,
    ages: BTreeMap<u64, RunKey>,
    tick: u64,
    count: usize,
    count_max: usize,
}

impl ChecksumCache {
    /// Keeps at most `count_max` checksums (4 bytes each).
    pub const fn new(count_max: usize) -> Self {
        Self {
            runs: BTreeMap::new(),
            ages: BTreeMap::new(),
            tick: 0,
            count: 0,
            count_max,
        }
    }

    /// The checksums of a run, if they are known.
    pub fn get(&mut self, key: RunKey) -> Option<Arc<[u32]>> {
        let (crcs, age) = self.runs.get_mut(&key)?;
        self.tick += 1;
        self.ages.remove(age);
        self.ages.insert(self.tick, key);
        *age = self.tick;
        Some(Arc::clone(crcs))
    }

    /// Verifies the checksum sectors of a run and keeps its checksums.
    pub fn open(
        &mut self,
        key: RunKey,
        run_length: u32,
        sectors: &[u8],
    ) -> Result<Arc<[u32]>, Mismatch> {
        let crcs = checksum::open_checksum_sectors(sectors, key.root, run_length)?;
        let crcs: Arc<[u32]> = crcs.into();
        self.insert(key, Arc::clone(&crcs));
        Ok(crcs)
    }

    /// Keeps the checksums of a run that this node has just written.
    pub fn insert(&mut self, key: RunKey, crcs: Arc<[u32]>) {
        if let Some((old, age)) = self.runs.remove(&key) {
            self.ages.remove(&age);
            self.count -= old.len();
        }
        self.tick += 1;
        self.count += crcs.len();
        self.ages.insert(self.tick, key);
        self.runs.insert(key, (crcs, self.tick));
        while self.count > self.count_max {
            let Some((_, oldest)) = self.ages.pop_first() else {
                break;
            };
            if let Some((old, _)) = self.runs.remove(&oldest) {
                self.count -= old.len();
            }
        }
    }
}

#[cfg(test)]
mod tests;
