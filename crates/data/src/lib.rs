//! Many NSDs as one space: striping, read and write plans, checksums, grants, free space.
//!
//! Everything here is a pure function or a plain value: a plan says which sectors to read or write and
//! how to verify them; `os` does it. File payload never passes through this crate, except where a
//! caller hands sectors in to have them checksummed.
//!
//! - `stripe`: which NSD a block of a file prefers.
//! - `plan`: a byte range and the extents of a file -> what to fetch, where, verified by what.
//! - `write`: dirty sectors of files and a grant pool -> NSD writes, and the extents they become.
//! - `checksum`: CRC32C per sector, checksum sectors and their root.
//! - `grants`: the sectors a client node has in hand.
//! - `hand`: what a client node asks an owner for, and gives back, when.
//! - `space`: the sectors an owner node has in hand: regions, grants given, used, freed.
//!
//! Invariants: each module's own; across them: a sector is handed out by `space` once until it is
//! freed, and taken out of a `grants` pool once.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod grants;
pub mod hand;
pub mod plan;
pub mod sectors;
pub mod space;
pub mod stripe;
pub mod write;

pub use checksum::crc32c;
pub use grants::{GrantPool, NeedMore, Reservation, SetAside, Taken};
pub use hand::{Hand, SpaceAnswer, SpaceAsk};
pub use plan::{ChecksumCache, Fetch, ReadPiece, RunKey, Verify, join_reads, plan_read};
pub use sectors::SectorSet;
pub use space::{RegionId, RegionTable, Space, SpaceMutation, TableMutation};
pub use stripe::Striping;
pub use write::{Dirty, NsdWrite, WritePiece, plan_write};
