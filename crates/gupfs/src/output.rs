//! Standard output: where the answer goes.
//!
//! Invariant: an answer that could not be written is no success. A command goes on all the same, since what it does is worth more than
//! what it says of it, and fails at its end; a reader that has gone away (`gupfs ... | head`) is no fault.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write as _};
use std::sync::OnceLock;

use crate::failure::{Failure, Result};

/// Why the first part of the answer that is lost could not be written.
static LOST: OnceLock<Error> = OnceLock::new();

/// Writes a part of the answer. Whether anybody reads on.
pub fn write(text: Arguments<'_>) -> bool {
    let mut out = std::io::stdout().lock();
    let written = out.write_fmt(text).and_then(|()| out.flush());
    let has_reader = written.is_ok();
    note(written);
    has_reader
}

/// Takes note of how a part of the answer was written.
pub fn note(written: std::io::Result<()>) {
    if let Err(error) = written
        && error.kind() != ErrorKind::BrokenPipe
    {
        // The first one says it all.
        let _ = LOST.set(error);
    }
}

/// Fails if a part of the answer could not be written.
pub fn check() -> Result<()> {
    match LOST.get() {
        None => Ok(()),
        Some(error) => Err(
            Failure::new(format!("cannot write to standard output: {error}"))
                .help("the command has done its work, and only its answer is lost: let it go where there is room"),
        ),
    }
}
