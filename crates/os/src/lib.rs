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
pub mod histogram;
mod http;
pub mod interrupt;
pub mod loops;
pub mod mountinfo;
pub mod mounting;
pub mod net;
pub mod netns;
pub mod pool;
pub mod priority;
mod supervisor;

pub use client::rewrite::RATE_DEFAULT as REWRITE_RATE_DEFAULT;
pub use supervisor::leave_starter;

/// Bytes of memory that this machine has.
#[must_use]
pub fn memory_size() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let [pages, page_size] =
        [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    // Negative: not known, and nothing fits.
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page_size).unwrap_or(0)
}
