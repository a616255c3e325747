//! The deterministic simulator, first stage: tokens, revocation and the kernels of several nodes.
//!
//! One thread, one seed. The real `token::Manager`, `token::Holder`, `client::revoke::Gate` and `DirectoryGate` run between
//! a model of each node's kernel and a network that loses, repeats, delays and reorders. Checkers look from outside: one
//! order explains all that applications saw of every cell and name (`history`), no two nodes hold conflicting tokens,
//! every core's `check()` holds after every step, and every call ends. docs/testing.md says how to use it and what
//! it does not model.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod history;
pub mod kernel;
pub mod model;
pub mod options;
pub mod owner;
pub mod task;
pub mod whole;
pub mod world;

pub use client::revoke::Rules;
pub use options::Options;
pub use world::{Report, World};

use std::panic::{AssertUnwindSafe, catch_unwind};

use stdx::Prng;

/// The options that a seed draws.
pub fn options(seed: u64, rules: Rules) -> Options {
    Options::draw(&mut Prng::new(seed), rules)
}

/// Runs a seed.
pub fn run(seed: u64, rules: Rules) -> Report {
    World::new(seed, options(seed, rules), false).run().0
}

/// What a run found; a panic in it, of a check or of a core, is a violation, and the next seed can go on.
pub fn survive(run: impl FnOnce() -> Option<String>) -> Option<String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|t| (*t).to_owned()));
        Some(format!("a check failed: {}", text.unwrap_or_default()))
    })
}
