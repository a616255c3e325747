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

pub use options::Options;
pub use world::{Report, World};

/// The options that a seed draws.
pub fn options(seed: u64, canary: node::Canary) -> Options {
    Options::draw(&mut stdx::Prng::new(seed), canary)
}

/// Runs a seed; a panic of a core counts as a violation of the caller's.
pub fn run(seed: u64, canary: node::Canary) -> Report {
    World::new(seed, options(seed, canary), false).run().0
}
