//! The keyed 56-bit hash of names, and directory cookies made of it.
//!
//! The key is drawn when the file system is created and kept in the NSD labels: hashes decide where the
//! entries of a split directory lie, so they are part of the format. SipHash-1-3 keeps somebody who
//! chooses names from filling one hash's 128 places; an unkeyed hash would not.

/// The key of the name hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HashKey(pub u128);

/// Bits of a cookie that tell names of one hash apart.
pub const TIE_BITS: u32 = 7;
/// Names that can share one hash.
pub const TIE_COUNT_MAX: u64 = 1 << TIE_BITS;
/// Bits of the hash.
pub const HASH_BITS: u32 = 56;

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

fn siphash(key: u128, bytes: &[u8], block_rounds: u32, end_rounds: u32) -> u64 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the two halves of 128 bits"
    )]
    let (k0, k1) = (key as u64, (key >> 64) as u64);
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut blocks = bytes.chunks_exact(8);
    let mut mix = |m: u64| {
        v[3] ^= m;
        for _ in 0..block_rounds {
            round(&mut v);
        }
        v[0] ^= m;
    };
    for block in &mut blocks {
        mix(u64::from_le_bytes(block.try_into().expect("chunks of 8")));
    }
    let mut last = [0u8; 8];
    let rest = blocks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len().to_le_bytes()[0];
    mix(u64::from_le_bytes(last));
    v[2] ^= 0xff;
    for _ in 0..end_rounds {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

impl HashKey {
    /// A key under which all names share one hash.
    #[cfg(test)]
    pub(crate) const WEAK: Self = Self(u128::MAX);

    /// The hash of a name: `HASH_BITS` bits, never 0 (cookies 0 to 2 are reserved).
    pub fn hash(self, name: &[u8]) -> u64 {
        #[cfg(test)]
        if self == Self::WEAK {
            return 1;
        }
        (siphash(self.0, name, 1, 3) >> (64 - HASH_BITS)).max(1)
    }

    /// The first of the `TIE_COUNT_MAX` cookies of a name's hash.
    pub fn first_cookie(self, name: &[u8]) -> u64 {
        self.hash(name) << TIE_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_2_4_agrees_with_the_authors_vector() {
        let key = u128::from_le_bytes(std::array::from_fn(|i| i.to_le_bytes()[0]));
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(key, &bytes, 2, 4), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn cookies_leave_the_reserved_ones_and_fit_a_signed_offset() {
        for i in 0..10_000u32 {
            let first = HashKey(7).first_cookie(&i.to_le_bytes());
            assert!(first > 2);
            assert!(i64::try_from(first + TIE_COUNT_MAX - 1).is_ok());
        }
    }
}
