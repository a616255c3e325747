//! The client half: open files, pagepool index, prefetch, write-behind, POSIX rules.
#![forbid(unsafe_code)]

pub mod pool;
pub mod request;
pub mod revoke;

pub use pool::Pool;
