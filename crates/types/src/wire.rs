//! The 64-byte header in front of every message between nodes.
//!
//! A frame on the wire is the header, the metadata part (`meta_length` bytes), then the payload
//! (`data_length` bytes). Layout (little-endian), fixed by a test:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 1 | version |
//! | 5 | 1 | flags |
//! | 6 | 2 | kind: what the metadata part is |
//! | 8 | 4 | length of the metadata part |
//! | 12 | 4 | length of the payload |
//! | 16 | 4 | CRC32C of the metadata part (then of the payload, with `DATA_COVERED`) |
//! | 20 | 4 | CRC32C of the header with this field zero |
//! | 24 | 8 | request id |
//! | 32 | 16 | cluster id |
//! | 48 | 8 | epoch |
//! | 56 | 8 | low 64 bits of the sender's incarnation |
//!
//! Invariants
//! - `decode(encode(x)) == x`; decoding foreign bytes never panics and never allocates.
//! - A header that decodes announces no more than the limits allow.

use thiserror::Error;

use crate::{ClusterId, Epoch, Incarnation, RequestId, checksum, limits};

/// Bytes of a header.
pub const HEADER_SIZE: usize = 64;
/// "GUPf".
pub const MAGIC: u32 = u32::from_le_bytes(*b"GUPf");
/// The version that this code speaks.
pub const VERSION: u8 = 1;
/// Kind of the first frame on a connection, in both directions; kinds below `KIND_FIRST` belong to the
/// transport.
pub const KIND_HELLO: u16 = 1;
/// Kind of the frame with which a connection is refused.
pub const KIND_REFUSE: u16 = 2;
/// First kind that the transport carries without looking at it.
pub const KIND_FIRST: u16 = 16;

const OFFSET_HEADER_CRC: usize = 20;

/// One-bit properties of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Hash)]
pub struct Flags(u8);

impl Flags {
    /// No property.
    pub const NONE: Self = Self(0);
    /// The frame answers the request with its id.
    pub const REPLY: Self = Self(1);
    /// Served before frames without it: leases, revocations and what answers them.
    pub const PRIORITY: Self = Self(2);
    /// Reserved: metadata part and payload are sealed by a cipher. Refused by this version.
    pub const SEALED: Self = Self(4);
    /// The data CRC covers the payload too. Otherwise block checksums cover it end to end.
    pub const DATA_COVERED: Self = Self(8);
    const KNOWN: u8 = 1 | 2 | 8;

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Has all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What a frame says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// What the metadata part is; numbers are given by `node`.
    pub kind: u16,
    /// Properties.
    pub flags: Flags,
    /// The request that this is, or answers.
    pub request: RequestId,
    /// The cluster of the sender.
    pub cluster: ClusterId,
    /// The epoch of the view that the sender acted under.
    pub epoch: Epoch,
    /// Low 64 bits of the sender's incarnation (all 128 are exchanged in the handshake).
    pub incarnation: u64,
    /// Bytes of the metadata part.
    pub meta_length: u32,
    /// Bytes of the payload.
    pub data_length: u32,
    /// CRC32C of the metadata part, and of the payload behind it with `Flags::DATA_COVERED`.
    pub data_crc: u32,
}

/// Why the first 64 bytes of a frame were not taken. After any of these the connection is useless: the
/// place of the next frame is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum WireError {
    /// Not our protocol.
    #[error("not a GUPFS frame (magic {magic:#010x})")]
    Foreign {
        /// The first four bytes.
        magic: u32,
    },
    /// A version that this one does not speak: the older side must be upgraded.
    #[error("frame version {version}, this node speaks {VERSION}")]
    Version {
        /// The other side's.
        version: u8,
    },
    /// The header was damaged on its way: connect again.
    #[error("header checksum is wrong")]
    Damaged,
    /// A flag that this version does not know.
    #[error("frame flags {flags:#04x} are not known to this version")]
    Flags {
        /// All flags.
        flags: u8,
    },
    /// A length above the limit.
    #[error("frame announces {meta_length} + {data_length} bytes, more than the limits allow")]
    TooLong {
        /// Bytes of the metadata part.
        meta_length: u32,
        /// Bytes of the payload.
        data_length: u32,
    },
}

/// The low half of an incarnation, as headers carry it.
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "the low half is meant")]
pub const fn incarnation_low(incarnation: Incarnation) -> u64 {
    incarnation.0 as u64
}

impl Header {
    /// Bytes of the whole frame.
    #[must_use]
    pub const fn frame_size(&self) -> u64 {
        HEADER_SIZE as u64 + self.meta_length as u64 + self.data_length as u64
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut bytes = [0; HEADER_SIZE];
        let mut put = |offset: usize, value: &[u8]| {
            bytes[offset..offset + value.len()].copy_from_slice(value);
        };
        put(0, &MAGIC.to_le_bytes());
        put(4, &[VERSION, self.flags.0]);
        put(6, &self.kind.to_le_bytes());
        put(8, &self.meta_length.to_le_bytes());
        put(12, &self.data_length.to_le_bytes());
        put(16, &self.data_crc.to_le_bytes());
        put(24, &self.request.0.to_le_bytes());
        put(32, &self.cluster.0.to_le_bytes());
        put(48, &self.epoch.0.to_le_bytes());
        put(56, &self.incarnation.to_le_bytes());
        let crc = checksum::crc32c(&bytes);
        bytes[OFFSET_HEADER_CRC..OFFSET_HEADER_CRC + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header off the wire.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, WireError> {
        let u32_at = |offset: usize| u32::from_le_bytes(array(bytes, offset));
        let u64_at = |offset: usize| u64::from_le_bytes(array(bytes, offset));
        let magic = u32_at(0);
        if magic != MAGIC {
            return Err(WireError::Foreign { magic });
        }
        // The version comes before the checksum: another version may compute it otherwise.
        if bytes[4] != VERSION {
            return Err(WireError::Version { version: bytes[4] });
        }
        let mut zeroed = *bytes;
        zeroed[OFFSET_HEADER_CRC..OFFSET_HEADER_CRC + 4].fill(0);
        if checksum::crc32c(&zeroed) != u32_at(OFFSET_HEADER_CRC) {
            return Err(WireError::Damaged);
        }
        let flags = bytes[5];
        if flags & !Flags::KNOWN != 0 {
            return Err(WireError::Flags { flags });
        }
        let (meta_length, data_length) = (u32_at(8), u32_at(12));
        if meta_length as usize > limits::WIRE_META_SIZE_MAX
            || data_length as usize > limits::WIRE_PAYLOAD_SIZE_MAX
        {
            return Err(WireError::TooLong {
                meta_length,
                data_length,
            });
        }
        Ok(Self {
            kind: u16::from_le_bytes(array(bytes, 6)),
            flags: Flags(flags),
            request: RequestId(u64_at(24)),
            cluster: ClusterId(u128::from_le_bytes(array(bytes, 32))),
            epoch: Epoch(u64_at(48)),
            incarnation: u64_at(56),
            meta_length,
            data_length,
            data_crc: u32_at(16),
        })
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_SIZE], offset: usize) -> [u8; N] {
    bytes[offset..offset + N]
        .try_into()
        .expect("offsets of the layout lie within the header")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(prng: &mut stdx::Prng) -> Header {
        let flags = [
            Flags::NONE,
            Flags::REPLY,
            Flags::PRIORITY.with(Flags::REPLY),
            Flags::DATA_COVERED,
        ];
        let word = |value: u64| u32::try_from(value).expect("below a u32 limit");
        Header {
            kind: u16::try_from(prng.below(65_536)).expect("below 2^16"),
            flags: *prng.pick(&flags).expect("not empty"),
            request: RequestId(prng.next_u64()),
            cluster: ClusterId(u128::from(prng.next_u64()) << 64 | u128::from(prng.next_u64())),
            epoch: Epoch(prng.next_u64()),
            incarnation: prng.next_u64(),
            meta_length: word(prng.between(0, limits::WIRE_META_SIZE_MAX as u64)),
            data_length: word(prng.between(0, limits::WIRE_PAYLOAD_SIZE_MAX as u64)),
            data_crc: word(prng.below(1 << 32)),
        }
    }

    fn seal(bytes: &mut [u8; HEADER_SIZE]) {
        bytes[20..24].fill(0);
        let crc = checksum::crc32c(bytes);
        bytes[20..24].copy_from_slice(&crc.to_le_bytes());
    }

    #[test]
    fn headers_come_back_and_every_flipped_bit_is_seen() {
        let mut prng = stdx::Prng::new(3);
        for _ in 0..200 {
            let header = sample(&mut prng);
            let bytes = header.encode();
            assert_eq!(Header::decode(&bytes), Ok(header));
            for bit in 0..HEADER_SIZE * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(Header::decode(&flipped).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn the_layout_is_the_table() {
        let bytes = Header {
            kind: 0x0201,
            flags: Flags::REPLY,
            request: RequestId(3),
            cluster: ClusterId(4),
            epoch: Epoch(5),
            incarnation: 6,
            meta_length: 7,
            data_length: 8,
            data_crc: 9,
        }
        .encode();
        assert_eq!(
            &bytes[..20],
            b"GUPf\x01\x01\x01\x02\x07\0\0\0\x08\0\0\0\x09\0\0\0"
        );
        for (offset, value) in [(24, 3), (32, 4), (48, 5), (56, 6)] {
            assert_eq!(bytes[offset], value);
            assert_eq!(bytes[offset + 1..offset + 8], [0; 7]);
        }
    }

    #[test]
    fn foreign_versions_flags_and_lengths_are_refused_by_name() {
        let bytes = sample(&mut stdx::Prng::new(4)).encode();
        let with = |offset: usize, value: &[u8]| {
            let mut changed = bytes;
            changed[offset..offset + value.len()].copy_from_slice(value);
            seal(&mut changed);
            Header::decode(&changed)
        };
        assert!(matches!(with(0, b"HTTP"), Err(WireError::Foreign { .. })));
        assert_eq!(with(4, &[9]), Err(WireError::Version { version: 9 }));
        assert_eq!(with(5, &[4]), Err(WireError::Flags { flags: 4 }));
        let meta = u32::try_from(limits::WIRE_META_SIZE_MAX + 1).expect("small");
        let data = u32::try_from(limits::WIRE_PAYLOAD_SIZE_MAX + 1).expect("small");
        for (offset, length) in [(8, meta), (8, u32::MAX), (12, data), (12, u32::MAX)] {
            assert!(matches!(
                with(offset, &length.to_le_bytes()),
                Err(WireError::TooLong { .. })
            ));
        }
    }

    #[test]
    fn random_bytes_never_panic_nor_pass_the_limits() {
        let mut prng = stdx::Prng::new(5);
        let mut taken = 0;
        for round in 0..100_000 {
            let mut bytes = [0; HEADER_SIZE];
            prng.fill(&mut bytes);
            if round % 4 != 0 {
                bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
            }
            if round % 4 > 1 {
                bytes[4] = VERSION;
                bytes[5] &= 15;
                bytes[10] &= 127;
                bytes[11] = 0;
                bytes[15] &= 1;
                seal(&mut bytes);
            }
            if let Ok(header) = Header::decode(&bytes) {
                taken += 1;
                assert!(header.meta_length as usize <= limits::WIRE_META_SIZE_MAX);
                assert!(header.data_length as usize <= limits::WIRE_PAYLOAD_SIZE_MAX);
                assert_eq!(header.encode(), bytes);
            }
        }
        assert!(
            taken > 1000,
            "the inputs reach the end of the decoder: {taken}"
        );
    }
}
