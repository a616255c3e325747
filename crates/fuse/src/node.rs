//! Node numbers: what inodes are called between the kernel and us.
//!
//! The kernel finds an inode by its node number in one hash table of all file systems, and that hash takes next to nothing of the
//! upper bits (`fs/inode.c`, `hash`: a product with the address of the super block, whose lower bits are zero, and the number
//! divided by 64). Inode numbers of the same index in many shards fell into one chain each: 65 inodes where there should be 1.5
//! with a million inodes in 64 shards, twice for every name that the kernel takes. So the shard is mixed into the lower bits.
//!
//! Invariants
//! - One number for each inode and back; the shard stays in the upper 16 bits, and shard 0's numbers are the inode's: the root is 1.
//! - Applications never see it: attributes and directory entries carry the inode number itself. Handles of files
//!   (`name_to_handle_at`) hold it, so it does not change.

use types::{InodeId, ShardId};

/// Odd, and far from all regular patterns: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is mixed into the index: 48 bits, none of shard 0.
const fn mask(shard: ShardId) -> u64 {
    (shard.0 as u64).wrapping_mul(FACTOR) >> (64 - InodeId::INDEX_BITS)
}

/// The number by which the kernel knows an inode.
pub(crate) const fn number_of(ino: InodeId) -> u64 {
    ino.raw() ^ mask(ino.shard())
}

/// The inode that the kernel knows by this number.
pub const fn inode_of(number: u64) -> InodeId {
    InodeId::from_raw(number ^ mask(InodeId::from_raw(number).shard()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back_and_the_root_is_one() {
        assert_eq!(number_of(InodeId::ROOT), 1);
        let indices = [0, 1, 2, 77, 1 << 20, (1 << 48) - 1];
        for shard in [0, 1, 2, 63, 64, 4095, u16::MAX].map(ShardId) {
            for index in indices {
                let ino = InodeId::new(shard, index);
                assert_eq!(inode_of(number_of(ino)), ino);
                assert_eq!(InodeId::from_raw(number_of(ino)).shard(), shard);
            }
        }
    }

    /// The kernel's table (`fs/inode.c`, Linux 6.18, 64-bit), as many bits as on a machine of 24 GiB.
    fn bucket(number: u64, super_block: u64) -> usize {
        const PRIME: u64 = 0x61c8_8646_80b5_83eb;
        const BITS: u32 = 21;
        let sum = number.wrapping_mul(super_block) ^ (PRIME.wrapping_add(number) / 64);
        let folded = sum ^ ((sum ^ PRIME) >> BITS);
        (folded & ((1 << BITS) - 1)) as usize
    }

    /// Inodes in the chain of an inode, in the mean.
    fn chain(count: u64, shard_count: u64, super_block: u64, number: fn(InodeId) -> u64) -> f64 {
        let mut buckets = vec![0u32; 1 << 21];
        for n in 0..count {
            let shard = ShardId((n % shard_count) as u16);
            let ino = InodeId::new(shard, n / shard_count + 1);
            buckets[bucket(number(ino), super_block)] += 1;
        }
        let seen: f64 = buckets.iter().map(|n| f64::from(*n) * f64::from(*n)).sum();
        seen / count as f64
    }

    #[test]
    fn the_kernels_chains_are_short_however_many_shards_there_are() {
        const COUNT: u64 = 300_000;
        for super_block in [0xffff_8881_0203_4000, 0xffff_8885_7a5b_c800] {
            for shard_count in [1, 2, 64, 1024, 65_536] {
                let chain = chain(COUNT, shard_count, super_block, number_of);
                assert!(chain < 1.6, "{shard_count} shards: {chain}");
            }
            // What it is for.
            let raw = chain(COUNT, 64, super_block, InodeId::raw);
            assert!(raw > 32.0, "{raw}");
        }
    }
}
