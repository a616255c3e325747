//! A command that ends by itself when it is interrupted: SIGINT and SIGTERM only leave a note. A daemon has a thread that waits for them.

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

/// Those that ask a process to end.
const ENDS: [libc::c_int; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

fn ends() -> libc::sigset_t {
    // SAFETY: plain data, for which all zeros are valid, and which the calls fill.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDS {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action);
            // What nohup(1) and the like have had ignored stays so.
            if action.sa_sigaction != libc::SIG_IGN {
                libc::sigaddset(&raw mut set, signal);
            }
        }
        set
    }
}

/// SIGHUP, SIGINT and SIGTERM wait until `wait` takes them, in this thread and in all that it makes. To be called while it is alone.
pub fn hold() {
    let set = ends();
    // SAFETY: a set that lives through the call; the old one is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for one of those that are held.
#[must_use]
pub fn wait() -> libc::c_int {
    let (set, mut signal) = (ends(), 0);
    loop {
        // SAFETY: a set and a number that live through the call.
        if unsafe { libc::sigwait(&raw const set, &raw mut signal) } == 0 {
            IS_ASKED.store(true, Ordering::SeqCst);
            return signal;
        }
    }
}

/// Somebody wants the process to end.
#[must_use]
pub fn is_asked() -> bool {
    IS_ASKED.load(Ordering::SeqCst)
}
