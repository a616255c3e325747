//! A command that ends by itself when it is interrupted: SIGINT and SIGTERM only leave a note.

use std::io::Error;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_ASKED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    IS_ASKED.store(true, Ordering::SeqCst);
}

/// From now on SIGINT and SIGTERM do not end the process.
///
/// # Errors
/// What the system says; then they do.
pub fn watch() -> Result<(), Error> {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: the handler does nothing but store to an atomic, which a handler may.
        let old = unsafe { libc::signal(signal, handler as libc::sighandler_t) };
        if old == libc::SIG_ERR {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

/// Somebody wants the process to end.
#[must_use]
pub fn is_asked() -> bool {
    IS_ASKED.load(Ordering::SeqCst)
}
