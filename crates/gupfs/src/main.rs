//! The binary: everything is in the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: os::alloc::Allocator = os::alloc::Allocator;

fn main() -> ExitCode {
    gupfs::cli::main()
}
