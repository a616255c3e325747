//! The client half: open files, pagepool index, prefetch, write-behind, POSIX rules.
#![forbid(unsafe_code)]

mod access;
mod answers;
mod appends;
mod destage;
pub mod env;
mod errors;
mod evict;
mod flush;
mod idle;
mod inode;
mod interrupts;
mod io;
mod lapse;
mod listing;
mod lock_requests;
mod locks;
pub mod message;
mod names;
mod opens;
pub mod pages;
pub mod pool;
mod prefetch;
mod pressure;
mod promise;
mod punch;
pub mod readers;
mod reading;
pub mod reclaim;
pub mod request;
pub mod revoke;
pub mod rewrite;
mod seek;
pub mod slice;
mod tokens;
pub mod transfer;
mod unlink;
pub mod waits;

pub use access::AccessTimes;
pub use env::{Env, Grants};
pub use idle::reclaims;
pub use lapse::{HeldInode, HeldLocks};
pub use pool::Pool;
pub use readers::Readers;
pub use rewrite::Pace;
pub use slice::{Effect, Input, Slice};
