//! The command `gupfs`, as a library so that its parts can be tested and the binary stays one call.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "OS boundary"
)]

/// Prints a line of the answer; what cannot be written is told at the end (`output::check`).
macro_rules! say {
    ($($text:tt)*) => {{
        $crate::output::write(format_args!("{}\n", format_args!($($text)*)));
    }};
}

pub mod agree;
pub mod bench;
pub mod cli;
pub mod control;
pub mod create;
pub mod daemon;
pub mod demo;
pub mod destroy;
pub mod df;
pub mod disks;
pub mod du;
pub mod dump;
pub mod failure;
pub mod files;
pub mod filesystem;
pub mod fsck;
pub mod inspect;
pub mod lab;
pub mod layout;
pub mod locate;
pub mod mount;
pub mod output;
pub mod seconds;
pub mod service;
pub mod settings;
pub mod size;
mod source;
pub mod stat;
pub mod state;
pub mod system;
pub mod top;
pub mod up;
