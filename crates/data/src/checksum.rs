//! CRC32C per sector, checksum sectors and their root.
//!
//! A checksum sector is 1024 little-endian CRC32Cs, one per data sector in order, zeros behind the
//! last. It has no header: its root, in the extent record, covers it. The root is the CRC32C of all
//! checksum sectors of the run together, so that one verification serves every later read of the run.

use types::extent::{CHECKSUMS_PER_SECTOR, checksum_sector_count};
use types::{Checksums, SECTOR_SIZE};

/// `SECTOR_SIZE` for lengths in memory.
pub const SECTOR: usize = 4096;
const _: () = assert!(SECTOR as u64 == SECTOR_SIZE);
const _: () = assert!(CHECKSUMS_PER_SECTOR as usize * 4 == SECTOR);

pub use types::checksum::crc32c;

/// The bytes do not match what the extent says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// This sector of what was read (counted from its first) is wrong: read another copy.
    #[error("data sector {index} does not match its checksum")]
    Data {
        /// Sector.
        index: u32,
    },
    /// The run's checksum sectors are wrong: read another copy of them.
    #[error("the checksum sectors do not match their root")]
    Root,
}

/// CRC32C of each sector of `bytes` (whole sectors).
pub fn sector_crcs(bytes: &[u8]) -> Vec<u32> {
    assert!(bytes.len().is_multiple_of(SECTOR));
    bytes.chunks_exact(SECTOR).map(crc32c).collect()
}

/// Whether a run of `length` data sectors carries checksum sectors.
pub const fn has_checksum_sectors(length: u32) -> bool {
    checksum_sector_count(length) > 0
}

/// The checksum sectors of a run whose data sectors have these checksums, and their root. Empty and
/// unused (root 0) when the run is short enough for inline checksums.
pub fn checksum_sectors(crcs: &[u32]) -> (Vec<u8>, u32) {
    let length = u32::try_from(crcs.len()).expect("a run has far less than 2^32 sectors");
    let size = checksum_sector_count(length) as usize * SECTOR;
    if size == 0 {
        return (Vec::new(), 0);
    }
    let mut bytes = Vec::with_capacity(size);
    for crc in crcs {
        bytes.extend_from_slice(&crc.to_le_bytes());
    }
    bytes.resize(size, 0);
    let root = crc32c(&bytes);
    (bytes, root)
}

/// What an extent record of a whole run says, and the checksum sectors to write behind the data.
pub fn seal(crcs: &[u32]) -> (Checksums, Vec<u8>) {
    let (sectors, root) = checksum_sectors(crcs);
    let checksums = if sectors.is_empty() {
        Checksums::Inline {
            crcs: crcs.to_vec(),
        }
    } else {
        Checksums::Sectors {
            root,
            run_begin: 0,
            run_length: u32::try_from(crcs.len()).expect("a run has far less than 2^32 sectors"),
        }
    };
    (checksums, sectors)
}

/// Verifies the checksum sectors of a run of `run_length` data sectors and returns its checksums.
pub fn open_checksum_sectors(
    sectors: &[u8],
    root: u32,
    run_length: u32,
) -> Result<Vec<u32>, Mismatch> {
    if sectors.len() != checksum_sector_count(run_length) as usize * SECTOR
        || crc32c(sectors) != root
    {
        return Err(Mismatch::Root);
    }
    let words = sectors.chunks_exact(4).take(run_length as usize);
    Ok(words
        .map(|w| u32::from_le_bytes(w.try_into().expect("four bytes")))
        .collect())
}

/// Compares what was read with what is expected; both count from the first sector read.
pub fn verify(found: &[u32], expected: &[u32]) -> Result<(), Mismatch> {
    assert_eq!(found.len(), expected.len());
    match found.iter().zip(expected).position(|(f, e)| f != e) {
        None => Ok(()),
        Some(index) => Err(Mismatch::Data {
            index: u32::try_from(index).expect("a run has far less than 2^32 sectors"),
        }),
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]
mod tests {
    use super::*;

    #[test]
    fn sealed_runs_open_and_every_flip_is_seen() {
        for length in [1u32, 16, 17, 1024, 1025, 2049] {
            let crcs: Vec<u32> = (0..length).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
            let (checksums, mut sectors) = seal(&crcs);
            assert_eq!(
                sectors.len(),
                checksum_sector_count(length) as usize * SECTOR
            );
            match checksums {
                Checksums::Inline { crcs: inline } => {
                    assert!(length <= 16);
                    assert_eq!(inline, crcs);
                }
                Checksums::Sectors {
                    root,
                    run_begin,
                    run_length,
                } => {
                    assert_eq!((run_begin, run_length), (0, length));
                    assert_eq!(open_checksum_sectors(&sectors, root, length), Ok(crcs));
                    for at in (0..sectors.len()).step_by(97) {
                        sectors[at] ^= 1;
                        let opened = open_checksum_sectors(&sectors, root, length);
                        assert_eq!(opened, Err(Mismatch::Root));
                        sectors[at] ^= 1;
                    }
                    let short = &sectors[..sectors.len() - SECTOR];
                    assert_eq!(
                        open_checksum_sectors(short, root, length),
                        Err(Mismatch::Root)
                    );
                }
            }
        }
    }

    #[test]
    fn the_wrong_sector_is_named() {
        let mut bytes = vec![7; 4 * SECTOR];
        let crcs = sector_crcs(&bytes);
        assert_eq!(verify(&sector_crcs(&bytes), &crcs), Ok(()));
        bytes[2 * SECTOR + 5] ^= 0x10;
        let found = verify(&sector_crcs(&bytes), &crcs);
        assert_eq!(found, Err(Mismatch::Data { index: 2 }));
    }
}
