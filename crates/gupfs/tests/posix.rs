//! What POSIX promises, on one real mount: test suites of others (`.ci/tools` installs them), and what they do not look at.
//!
//! Needs root, /dev/fuse and the suites' programs; says so and passes where these are missing. The results and the reason
//! of each skip are in docs/posix.md.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "posix/atime.rs"]
mod atime;
#[path = "posix/fsx.rs"]
mod fsx;
#[path = "posix/handles.rs"]
mod handles;
#[path = "posix/ioctls.rs"]
mod ioctls;
#[path = "posix/late.rs"]
mod late;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "posix/links.rs"]
mod links;
#[path = "labs/node.rs"]
mod node;
#[path = "posix/overlay.rs"]
mod overlay;
#[path = "posix/pjdfstest.rs"]
mod pjdfstest;
#[path = "posix/set_ids.rs"]
mod set_ids;
#[path = "posix/stress.rs"]
mod stress;
#[path = "posix/swaps.rs"]
mod swaps;
#[path = "posix/times.rs"]
mod times;
#[path = "posix/tools.rs"]
mod tools;
