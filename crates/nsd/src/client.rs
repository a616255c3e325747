//! The asking half: which way each NSD is reached, and which writes are durable.
//!
//! `Paths` chooses a way for each I/O; `Writes` keeps the books of what was written and not yet
//! flushed. Both are values of one node; `data` and `store` ask them, `os` and `node` do the I/O.

mod paths;
mod writes;

pub use paths::{Path, Paths, Policy, RETRY_MAX, RETRY_MIN, Unreachable};
pub use writes::{Durability, FlushId, FlushStart, Settled, WriteId, Writes};
