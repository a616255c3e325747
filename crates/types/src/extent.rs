//! Sectors, runs, extents and grants: where a file's bytes lie.
//!
//! A **run** is what one write put on an NSD: `length` data sectors and, when there are more than
//! `limits::INLINE_CHECKSUM_COUNT_MAX` of them, the checksum sectors right behind the data in the same
//! run. An **extent** maps a piece of a file to a run or to a piece of one.

use crate::{GrantId, NsdId, SmallBytes, limits, wire_enum, wire_struct};

/// Bytes of the unit of allocation.
pub const SECTOR_SIZE: u64 = 4096;
/// Checksums that fit in one checksum sector.
pub const CHECKSUMS_PER_SECTOR: u32 = 1024;

/// A place on an NSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Location {
    /// The NSD.
    pub nsd: NsdId,
    /// Sector number on it.
    pub sector: u64,
}
wire_struct!(Location { nsd, sector });

/// Adjacent sectors of one NSD.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Run {
    /// Where it begins.
    pub at: Location,
    /// Sectors.
    pub count: u32,
}
wire_struct!(Run { at, count });

impl Run {
    /// Whether they have a sector in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.at.nsd == other.at.nsd
            && self.at.sector < other.at.sector + u64::from(other.count)
            && other.at.sector < self.at.sector + u64::from(self.count)
    }
}

/// How the sectors of an extent are verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Checksums {
    /// CRC32C of each sector of the extent (at most `limits::INLINE_CHECKSUM_COUNT_MAX`).
    Inline {
        /// One per sector, in order.
        crcs: Vec<u32>,
    },
    /// The run's checksum sectors hold a CRC32C per data sector; `root` is the CRC32C of those
    /// checksum sectors together.
    Sectors {
        /// CRC32C of the checksum sectors.
        root: u32,
        /// Where in its run the extent begins, in sectors.
        run_begin: u32,
        /// Data sectors of the whole run; its checksum sectors follow them.
        run_length: u32,
    },
}
wire_enum!(Checksums { 1 => Inline { crcs }, 2 => Sectors { root, run_begin, run_length } });

/// Maps a piece of a file to sectors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First sector of the file that it maps.
    pub file_sector: u64,
    /// Sectors.
    pub length: u32,
    /// Snapshot sequence number at birth; 0 until snapshots exist.
    pub birth: u64,
    /// Reserved: the sectors are shared with another file.
    pub is_shared: bool,
    /// Where the bytes lie: 1 to 3 copies; each is the place of this extent's first sector.
    pub locations: Vec<Location>,
    /// How they are verified.
    pub checksums: Checksums,
}
wire_struct!(Extent {
    file_sector,
    length,
    birth,
    is_shared,
    locations,
    checksums
});

/// Checksum sectors that a run of `length` data sectors carries behind its data.
pub const fn checksum_sector_count(length: u32) -> u32 {
    if length <= limits::INLINE_CHECKSUM_COUNT_MAX {
        0
    } else {
        length.div_ceil(CHECKSUMS_PER_SECTOR)
    }
}

impl Extent {
    /// First file sector behind the extent.
    pub const fn file_sector_end(&self) -> u64 {
        self.file_sector + self.length as u64
    }

    /// The whole run that `location` (one of `self.locations`) is a piece of, checksum sectors included.
    pub fn run(&self, location: Location) -> Run {
        match &self.checksums {
            Checksums::Inline { .. } => Run {
                at: location,
                count: self.length,
            },
            Checksums::Sectors {
                run_begin,
                run_length,
                ..
            } => Run {
                at: Location {
                    sector: location.sector - u64::from(*run_begin),
                    ..location
                },
                count: run_length + checksum_sector_count(*run_length),
            },
        }
    }

    /// The first of these places in which a copy of it, checksum sectors included, lies at least in part.
    pub fn place_among(&self, places: &[Run]) -> Option<usize> {
        let lies_in = |place: &Run| {
            let mut runs = self.locations.iter().map(|at| self.run(*at));
            runs.any(|run| place.overlaps(&run))
        };
        places.iter().position(lies_in)
    }

    /// The part of this extent from file sector `begin` to `end` (a non-empty part of it).
    pub fn slice(&self, begin: u64, end: u64) -> Self {
        assert!(self.file_sector <= begin);
        assert!(begin < end);
        assert!(end <= self.file_sector_end());
        let skip = u32::try_from(begin - self.file_sector).expect("within a u32 length");
        let length = u32::try_from(end - begin).expect("within a u32 length");
        let checksums = match &self.checksums {
            Checksums::Inline { crcs } => Checksums::Inline {
                crcs: crcs[skip as usize..(skip + length) as usize].to_vec(),
            },
            Checksums::Sectors {
                root,
                run_begin,
                run_length,
            } => Checksums::Sectors {
                root: *root,
                run_begin: run_begin + skip,
                run_length: *run_length,
            },
        };
        let locations = self
            .locations
            .iter()
            .map(|l| Location {
                sector: l.sector + u64::from(skip),
                ..*l
            })
            .collect();
        Self {
            file_sector: begin,
            length,
            birth: self.birth,
            is_shared: self.is_shared,
            locations,
            checksums,
        }
    }
}

/// Bytes of a file that travel as metadata: inline files, edge pieces, synchronous writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Byte offset in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: SmallBytes,
}
wire_struct!(Piece { offset, bytes });

impl Piece {
    /// First byte behind the piece.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// Free sectors handed to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Its id.
    pub id: GrantId,
    /// The sectors.
    pub run: Run,
    /// Message authentication code for data NSD servers; 0 until client-role nodes exist.
    pub mac: u64,
}
wire_struct!(Grant { id, run, mac });
