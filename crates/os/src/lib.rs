//! The only crate that talks to Linux: threads, rings, disks, sockets, the pagepool's memory, FUSE devices.
#![allow(
    clippy::disallowed_methods,
    reason = "OS boundary: clocks, threads and files are what this crate is for"
)]

pub mod alloc;
pub mod clock;
pub mod daemon;
pub mod disk;
pub mod fuse;
pub mod loops;
pub mod net;
pub mod netns;
pub mod pool;
