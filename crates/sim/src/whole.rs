//! The simulator of the whole: the real client slices, owner shards, journals and spaces of several nodes.
//!
//! `client::Slice` and `node::{OwnerSlice, OwnerLog}` run as in the daemon, between kernels (`crate::kernel`), disks and
//! links that are models. What `os::daemon` does around the cores is repeated in `node`, as thinly as it goes.
//! docs/testing.md says what is checked and what is not modelled.

pub mod ace;
pub mod boot;
pub mod directory;
pub mod disk;
pub mod front;
pub mod hands;
pub mod memory;
pub mod network;
pub mod node;
pub mod options;
pub mod world;

pub use options::{Names, Options};
pub use world::{Report, World};

/// Those of a seed in which blocks of more than one extent are rewritten as soon as they rest, while nodes write, cut and revoke, links break
/// and machines crash.
pub fn rewriting(seed: u64, canary: node::Canary) -> Options {
    Options {
        rewrite_ms: 1 + seed % 3 * 20,
        crash_count: usize::from(seed.is_multiple_of(4)),
        data_sectors: 1 << 20,
        frame_count: 1 << 14,
        call_count: 150,
        name_percent: 0,
        ..options(seed, canary)
    }
}

/// The options that a seed draws.
pub fn options(seed: u64, canary: node::Canary) -> Options {
    Options::draw(&mut stdx::Prng::new(seed), canary)
}

/// Runs a seed; a panic of a core counts as a violation of the caller's.
pub fn run(seed: u64, canary: node::Canary) -> Report {
    World::new(seed, options(seed, canary), false).run().0
}
