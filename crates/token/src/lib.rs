//! Tokens: what a node may cache, who says so, and how it is taken back.
//!
//! ```text
//!    node n1                                   owner of the shard                 node n2
//!    client slice                              shard slice                        client slice
//!   +-----------+   Acquire{wants}            +------------------+               +-----------+
//!   | Holder    | --------------------------> | Manager          |  Revoke       | Holder    |
//!   | per inode |                             |  inode: entries, | ------------> | per inode |
//!   |           |                             |         queue    |               |  stop use, flush,
//!   |           |   Granted{state, number}    |                  |  Released     |  drop     |
//!   |           | <-------------------------- |                  | <------------ |           |
//!   +-----------+                             +------------------+               +-----------+
//! ```
//!
//! Invariants
//! - No two holders may use conflicting tokens at a time, whatever is lost, repeated or reordered.
//! - A holder gives a token up only after the caller has stopped its use, flushed and dropped.
//! - Everything is bounded: waiting requests, tokens, pieces of a file per holder.
//!
//! The files: `message` (what is said), `client` (the holder), `server` (the manager), `compat` (tables of
//! modes), `rights` (all that one node holds on one inode), `pattern` and `set` (arithmetic of strided byte
//! ranges), `activity` (where a node's readers and writers are, and what it should ask for), `locks` (what applications
//! have locked: no tokens, but kept beside them). The protocol is told in docs/tokens.md.
#![forbid(unsafe_code)]

pub mod activity;
pub mod client;
pub mod compat;
pub mod locks;
pub mod message;
pub mod pattern;
pub mod rights;
pub mod server;
pub mod set;

pub use activity::Activity;
pub use client::{Adopted, Cover, Finish, Holder, Plan};
pub use locks::{LockWaiting, Locks};
pub use message::{Acquire, Busy, Granted, Message, Reassert, Reclaim, Refused, Released, Revoke};
pub use rights::Rights;
pub use server::{Effect, Manager, Misbehaved, Options, Outbox, Waiting};
pub use set::PatternSet;
