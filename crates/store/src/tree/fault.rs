//! What can be wrong with the bytes of a page, and the errors that readers of a tree get.

use types::{Location, ShardId};

/// Why bytes are not the page that its parent means.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageFault {
    /// Fewer or more bytes than a page of this tree has.
    #[error("it has {size} bytes")]
    Size {
        /// Bytes that came.
        size: usize,
    },
    /// Nothing was ever written there, or it was discarded.
    #[error("it is all zeros")]
    Zeros,
    /// The bytes do not match the CRC that the parent has, and are no other page either.
    #[error("its checksum is wrong")]
    Checksum,
    /// Another page lies there: a write went astray, or the page was lost and an older one shows.
    #[error("page {number} of {shard}, written by checkpoint {lsn}, lies there")]
    Other {
        /// The shard that it names.
        shard: ShardId,
        /// Its number.
        number: u64,
        /// The checkpoint that wrote it.
        lsn: u64,
    },
    /// Written by a later version.
    #[error("format version {version} is not known")]
    Version {
        /// The version found.
        version: u16,
    },
    /// The checksum fits, but a field does not: a bug of the writer.
    #[error("{field} is wrong")]
    Field {
        /// Which field.
        field: &'static str,
    },
}

/// Why an operation on a tree cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TreeError {
    /// No copy of a page is good: the part of the tree below it is lost unless it is repaired.
    #[error("tree of {shard}, level {level}, page {number} at {} sector {}: {fault}", at.nsd, at.sector)]
    Corrupt {
        /// The tree.
        shard: ShardId,
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// Its first copy.
        at: Location,
        /// What is wrong with that one.
        fault: PageFault,
    },
    /// A copy could not be read and the others are not good either: try again when the NSD is back.
    #[error("tree of {shard}, level {level}, page {number}: {} sector {} cannot be read", at.nsd, at.sector)]
    Unreachable {
        /// The tree.
        shard: ShardId,
        /// Level of the page.
        level: u8,
        /// Its number.
        number: u64,
        /// The copy that could not be read.
        at: Location,
    },
}
