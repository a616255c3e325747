//! The name space: shards of inodes, entries and file maps, executed in memory, changed by mutations.
//!
//! ```text
//! client node --Op--> owner: wants() -> token manager -> execute(View, Context, Op) -> Outcome
//!                                                            |
//!                      resolve -> [Step] -> check -> perform -> [Mutation] -> Shard::apply
//!                                   |                              |
//!                     other owners: Plan -> transaction        one journal record with the space changes
//! ```
//!
//! Invariants
//! - An operation that fails, or needs anything more, has changed nothing.
//! - Everything that changes is in the mutations that the call returns; replaying them gives the same state.
//! - No call reads a clock or draws random bits: time and randomness are arguments.
//! - A run of sectors is returned in `freed` exactly once after it was in `used`.
//! - No operation costs more than O(log n) of what it names, listings and maps than what they answer.
//!
//! What this deliberately does not do: journaling, space and tokens (the caller joins them), permission
//! checks (the kernel's, `default_permissions`, by mode and access control list), sticky bits (likewise).
#![forbid(unsafe_code)]

pub mod acl;
mod bound;
mod dirty;
pub mod execute;
pub mod inode;
mod locks;
pub mod map;
pub mod message;
pub mod mutation;
pub mod name_hash;
mod ops;
pub mod parts;
pub mod records;
pub mod shard;
pub mod step;
mod times;
pub mod transaction;
pub mod view;
pub mod wants;

pub use bound::{envelope_frees_at_most, freed_at_most};
pub use dirty::Thawed;
pub use execute::{answered, execute};
pub use message::{Caller, Commit, Known, Listed, NewKind, Op, Reply};
pub use mutation::Mutation;
pub use name_hash::HashKey;
pub use ops::rename::would_cycle;
pub use ops::xattr::{FILE_RIGHTS, is_xattr_kept};
pub use shard::{Changes, Evicted, Loaded, Moved, PushRecord, Shard};
pub use step::Step;
pub use transaction::{Envelope, Finished, Plan, Progress, TransactionId, TransactionMessage};
pub use view::{Context, Executed, Fact, Held, Origin, Outcome, Query, View};
pub use wants::{Wanted, wants};
