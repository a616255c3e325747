//! One network shared disk: its label, the protocol to read and write it, its server and its client.
//!
//! ```text
//!  data, store                                  os (disks, sockets)
//!      | read, write, flush a run                      ^
//!  +---v-----------------+   Request, Reply   +--------+----------+
//!  | client: Paths,      | -----------------> | server: admission,|
//!  | Writes (durable or  | <----------------- | fence, checks,    |
//!  | lost?)              |     (or direct)    | verifiers         |
//!  +---------------------+                    +-------------------+
//! ```
//!
//! Invariants
//! - What is reported durable was covered by a flush that the same disk cache survived: write and
//!   flush carried the same verifier.
//! - A server accepts nothing from a life that it has fenced, and acknowledges the fence only when no
//!   accepted write of that life is in flight.
//! - Work per disk is bounded in requests and bytes; what exceeds it is pushed back with `Busy`.
//!
//! What this deliberately does not do: I/O, striping over NSDs (`data`), verifying checksums (`data`).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that panics has failed")
)]

pub mod backlog;
pub mod client;
pub mod label;
pub mod mark;
pub mod message;
pub mod server;

pub use backlog::Backlog;
pub use client::{Path, Paths, Policy, Writes};
pub use label::{Label, LabelError};
pub use message::{NsdError, Reply, Request, Verifier};
pub use server::Server;
