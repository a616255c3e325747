//! What the standard library lacks and several crates need; nothing here knows GUPFS.
#![forbid(unsafe_code)]

pub mod prng;
pub mod queue;

pub use prng::Prng;
pub use queue::BoundedQueue;
