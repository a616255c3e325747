//! CRC32C (CRC-32/ISCSI): the checksum of every structure on disk, on the wire and of all data.
//!
//! crc-fast runs at memory speed (70 to 100 GB/s where the processor has vector carry-less
//! multiplication); a test compares it with an independent implementation.

use crc_fast::CrcAlgorithm::Crc32Iscsi;

/// CRC32C of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    low(crc_fast::checksum(Crc32Iscsi, bytes))
}

/// CRC32C of bytes that do not lie together: the same as of the parts in a row.
#[derive(Debug)]
pub struct Crc32c(crc_fast::Digest);

impl Crc32c {
    /// Of no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self(crc_fast::Digest::new(Crc32Iscsi))
    }

    /// Adds `bytes` at the end.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn finish(&self) -> u32 {
        low(self.0.finalize())
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

fn low(crc: u64) -> u32 {
    u32::try_from(crc).expect("a 32-bit checksum in 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc32c_at_every_length_and_cut() {
        // The check value of the catalogue of CRCs.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        let mut bytes = vec![0; 5000];
        stdx::Prng::new(1).fill(&mut bytes);
        for length in (0..600).chain(4000..5000) {
            for begin in [0, 1, 3, 8] {
                let part = &bytes[begin.min(length)..length];
                assert_eq!(crc32c(part), crc32c::crc32c(part), "{begin}..{length}");
            }
        }
        for cut in 0..300 {
            let mut digest = Crc32c::default();
            digest.update(&bytes[..cut]);
            digest.update(&bytes[cut..300]);
            assert_eq!(digest.finish(), crc32c(&bytes[..300]));
        }
    }
}
