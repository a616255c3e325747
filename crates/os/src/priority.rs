//! A command that works in the background gives way to those who serve.

use std::io::Error;

/// As `nice` does.
const BACKGROUND: libc::c_int = 10;

/// From now on this process computes when others leave room for it.
///
/// # Errors
/// What the system says; then nothing has changed.
pub fn lower() -> Result<(), Error> {
    // SAFETY: the call takes three numbers and touches no memory.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, BACKGROUND) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
