//! The journal of an owner node: append, group commit, snapshot, recovery. Knows nothing of files.
//!
//! One journal per owner node and file system lies in an *area* of an NSD, cut into two halves. Each
//! half holds one *segment*: what one instance of the journal wrote there since the half was last
//! taken into use. A segment begins with a snapshot of everything the owner holds and goes on with
//! operation records; when it fills, the next snapshot goes into the other half.
//!
//! ```text
//!   operations ----> [ segment n, half A ]              recovery reads A
//!   begin_snapshot   [ A ] + [ n+1, half B: snapshot... ]   operations go to both; recovery reads A
//!   end record       [ A ]   [ B: snapshot, end, operations ]   recovery reads B once the end is there
//!   end is durable   [ A: retired ]   [ B ]              recovery reads B; A is free
//! ```
//!
//! Invariants
//! - Recovery reads exactly one segment, and everything acknowledged is in it. (Rejected: replaying
//!   the old segment and then the operations of a half-written new one: a crash there leaves two
//!   halves that are both needed and none to write to. docs/decisions/0005 has the interleaving.)
//! - An operation record that the new segment holds behind its end record implies the end record,
//!   because records are chained; one before the end is in the old segment too.
//! - A sector is written once per use of its half; stale bytes of an older use never pass, because
//!   every record carries the segment's tag, the CRC of the record before it and its LSN.
//! - A half is taken into use again only when no write to it is in flight.
//!
//! The crate does no I/O: `Journal::take_flush` gives writes as values, `Recovery::next_read` reads.
#![forbid(unsafe_code)]

pub mod format;
pub mod journal;
pub mod recovery;
pub mod testing;
pub mod tree;

#[cfg(test)]
mod crash;

pub use format::{Area, PartKey, RecordKind, SegmentHeader};
pub use journal::{Config, Counters, Flush, FlushFailed, FlushId, Journal, Part, Refused, Urgency};
pub use recovery::{Read, Recovered, Recovery, RecoveryError, Replay};
