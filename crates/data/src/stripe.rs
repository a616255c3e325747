//! Which NSD a block of a file prefers: round robin, weighted, from a start that the inode decides.
//!
//! Invariants
//! - The same inode, block and table give the same NSD on every node; nothing depends on it being so
//!   (extents say where the bytes are), it only keeps files laid out evenly.
//! - Within one turn of the table an NSD comes as often as its weight says, spread out.

use types::{InodeId, NsdId, SECTOR_SIZE};

/// Slots of a turn: weights are rounded to this.
const SLOT_COUNT_MAX: u32 = 64;

/// The order in which blocks go to NSDs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Striping {
    turn: Vec<NsdId>,
    block_sectors: u32,
}

impl Striping {
    /// Round robin over `nsds` (full or missing ones left out by the caller), all alike. Panics when
    /// `nsds` is empty or the block size is no multiple of a sector.
    pub fn even(nsds: &[NsdId], block_size: u32) -> Self {
        let weights: Vec<_> = nsds.iter().map(|nsd| (*nsd, 1)).collect();
        Self::weighted(&weights, block_size)
    }

    /// Round robin in proportion to the weights (free sectors, say). NSDs of weight 0 are skipped, and
    /// so are those so much fuller than the rest that they round to nothing; all 0 counts as all alike.
    pub fn weighted(nsds: &[(NsdId, u64)], block_size: u32) -> Self {
        assert!(!nsds.is_empty());
        let sector = u32::try_from(SECTOR_SIZE).expect("4096");
        assert!(block_size > 0 && block_size.is_multiple_of(sector));
        let max = nsds.iter().map(|n| n.1).max().unwrap_or(0);
        // Equal to within a sixteenth counts as equal: a turn of one slot each is the smoothest.
        let is_even = nsds.iter().all(|n| n.1 >= max - max / 16);
        let turn = if is_even {
            nsds.iter().map(|n| n.0).collect()
        } else {
            smooth(nsds)
        };
        Self {
            turn,
            block_sectors: block_size / sector,
        }
    }

    /// Sectors of a block.
    pub const fn block_sectors(&self) -> u32 {
        self.block_sectors
    }

    /// The block that a file sector lies in.
    pub fn block_of(&self, file_sector: u64) -> u64 {
        file_sector / u64::from(self.block_sectors)
    }

    /// The NSD that block `block` of `ino` should go to.
    pub fn nsd(&self, ino: InodeId, block: u64) -> NsdId {
        let count = self.turn.len() as u64;
        // Files begin at different NSDs, so that many small files fill all alike.
        let start = (ino.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 32;
        let index = (start % count + block % count) % count;
        self.turn[usize::try_from(index).expect("below the length")]
    }

    /// The NSDs in the order to try when the preferred one has no room: every one once.
    pub fn order(&self, ino: InodeId, block: u64) -> Vec<NsdId> {
        let mut order = Vec::new();
        for step in 0..self.turn.len() as u64 {
            let nsd = self.nsd(ino, block.wrapping_add(step));
            if !order.contains(&nsd) {
                order.push(nsd);
            }
        }
        order
    }
}

/// Smooth weighted round robin: at each slot the NSD that is furthest behind its share.
fn smooth(nsds: &[(NsdId, u64)]) -> Vec<NsdId> {
    let sum: u128 = nsds.iter().map(|n| u128::from(n.1)).sum();
    let mut given = vec![0u128; nsds.len()];
    let mut turn = Vec::new();
    for slot in 1..=u128::from(SLOT_COUNT_MAX) {
        let behind = |index: usize| {
            let share = u128::from(nsds[index].1) * slot;
            i128::try_from(share).expect("sectors times 64")
                - i128::try_from(given[index] * sum).expect("sectors times 64")
        };
        let next = (0..nsds.len())
            .max_by_key(|index| (behind(*index), std::cmp::Reverse(*index)))
            .expect("not empty");
        given[next] += 1;
        turn.push(nsds[next].0);
    }
    turn
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]
mod tests {
    use super::*;
    use types::ShardId;

    fn counts(striping: &Striping, ino: InodeId, blocks: u64) -> Vec<u64> {
        let mut counts = vec![0; 4];
        for block in 0..blocks {
            counts[usize::from(striping.nsd(ino, block).0)] += 1;
        }
        counts
    }

    #[test]
    fn blocks_and_files_are_spread_evenly() {
        let nsds: Vec<_> = (0..4).map(NsdId).collect();
        let striping = Striping::even(&nsds, 1 << 20);
        assert_eq!(striping.block_sectors(), 256);
        let mut firsts = vec![0; 4];
        for index in 0..4000 {
            let ino = InodeId::new(ShardId(3), index);
            assert_eq!(counts(&striping, ino, 8), [2; 4]);
            firsts[usize::from(striping.nsd(ino, 0).0)] += 1;
            assert_eq!(striping.order(ino, 1).len(), 4);
        }
        assert!(firsts.iter().all(|f| (900..1100).contains(f)), "{firsts:?}");
    }

    #[test]
    fn weights_are_kept_and_empty_ones_skipped() {
        let weights = [
            (NsdId(0), 100),
            (NsdId(1), 300),
            (NsdId(2), 0),
            (NsdId(3), 400),
        ];
        let striping = Striping::weighted(&weights, 1 << 16);
        let found = counts(&striping, InodeId::ROOT, 6400);
        assert_eq!(found, [800, 2400, 0, 3200]);
        // Spread out: no NSD of half the weight comes more than twice in a row.
        let row: Vec<_> = (0..64).map(|b| striping.nsd(InodeId::ROOT, b)).collect();
        assert!(row.windows(3).all(|w| w[0] != w[1] || w[1] != w[2]));
        let full = [(NsdId(0), 0), (NsdId(1), 0)];
        assert_eq!(
            Striping::weighted(&full, 4096)
                .order(InodeId::ROOT, 0)
                .len(),
            2
        );
    }
}
