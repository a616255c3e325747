//! The write plan: dirty sectors of files and a grant pool -> NSD writes, and the extents they become.
//!
//! Invariants
//! - Every dirty sector is in exactly one piece, in order within its file run.
//! - A piece never crosses a block boundary of its file, and its checksum sectors lie right behind it.
//! - The pieces of one NSD write are adjacent on the NSD: small runs of many files become one write.

use types::extent::checksum_sector_count;
use types::{Extent, InodeId, Location};

use crate::checksum;
use crate::grants::{GrantPool, Reservation};
use crate::stripe::Striping;

/// Sectors up to which adjacent pieces are joined into one write: a default block and its checksums.
pub const JOINED_SECTORS_MAX: u32 = 257;

/// Consecutive dirty sectors of a file.
#[derive(Clone, Copy, Debug)]
pub struct Dirty<'a> {
    /// The file.
    pub ino: InodeId,
    /// How the file is striped.
    pub striping: &'a Striping,
    /// First sector of the file.
    pub file_sector: u64,
    /// Sectors.
    pub count: u32,
}

/// What one NSD write holds of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritePiece {
    /// Index of the `Dirty` that it comes from.
    pub dirty: usize,
    /// First sector of the file.
    pub file_sector: u64,
    /// Where it goes.
    pub at: Location,
    /// Data sectors.
    pub data: u32,
    /// Checksum sectors behind them.
    pub checksums: u32,
}

impl WritePiece {
    /// The extent that the piece becomes, and the checksum sectors to write behind its data, given the
    /// CRC32C of each data sector as it is written (of the frozen bytes).
    pub fn seal(&self, crcs: &[u32]) -> (Extent, Vec<u8>) {
        assert_eq!(crcs.len(), self.data as usize);
        let (checksums, sectors) = checksum::seal(crcs);
        let extent = Extent {
            file_sector: self.file_sector,
            length: self.data,
            birth: 0,
            is_shared: false,
            locations: vec![self.at],
            checksums,
        };
        (extent, sectors)
    }
}

/// One write to one NSD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NsdWrite {
    /// First sector.
    pub at: Location,
    /// Sectors, checksum sectors included.
    pub count: u32,
    /// What lies in it, in order, without gaps.
    pub pieces: Vec<WritePiece>,
}

/// Plans the writes of `dirty`. All its sectors are in `reservation` and are taken out of it.
pub fn plan_write(
    dirty: &[Dirty<'_>],
    pool: &mut GrantPool,
    reservation: &mut Reservation,
) -> Vec<NsdWrite> {
    let mut writes: Vec<NsdWrite> = Vec::new();
    for (index, run) in dirty.iter().enumerate() {
        let mut at = run.file_sector;
        let end = at + u64::from(run.count);
        while at < end {
            let block = run.striping.block_of(at);
            let block_end = (block + 1) * u64::from(run.striping.block_sectors());
            let count = u32::try_from(end.min(block_end) - at).expect("at most a block");
            let order = run.striping.order(run.ino, block);
            for taken in pool.take(reservation, &order, count) {
                push(
                    &mut writes,
                    WritePiece {
                        dirty: index,
                        file_sector: at,
                        at: taken.run.at,
                        data: taken.data,
                        checksums: checksum_sector_count(taken.data),
                    },
                );
                at += u64::from(taken.data);
            }
        }
    }
    writes
}

/// Joins the piece to the write that ends where it begins, or begins a new write.
fn push(writes: &mut Vec<NsdWrite>, piece: WritePiece) {
    let count = piece.data + piece.checksums;
    let joined = writes.iter_mut().rev().take(8).find(|write| {
        write.at.nsd == piece.at.nsd
            && write.at.sector + u64::from(write.count) == piece.at.sector
            && write.count + count <= JOINED_SECTORS_MAX
    });
    match joined {
        Some(write) => {
            write.count += count;
            write.pieces.push(piece);
        }
        None => writes.push(NsdWrite {
            at: piece.at,
            count,
            pieces: vec![piece],
        }),
    }
}

#[cfg(test)]
mod tests;
