//! Tells whoever started the daemon, systemd as a rule, that it is ready (sd_notify(3)).

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The file system is mounted. Nobody may have asked to be told.
pub(crate) fn ready() {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = tell(&name, b"READY=1\nSTATUS=mounted\n")
    {
        tracing::warn!(%error, "whoever started this daemon does not hear that it is ready");
    }
}

/// Closes all descriptors but the standard ones: those that whoever started this process had open. A daemon that kept them
/// would hold locks and pipes of a script for as long as the file system is mounted. And takes as many of its own as it may have: a shell's limit
/// is meant for its programs. To be called before anything is opened.
pub fn leave_starter() {
    // SAFETY: nothing of this process has been opened yet, so nobody uses what is closed.
    let result = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    if result != 0 {
        // Older than 5.9: they stay open, as they always did there.
        let error = std::io::Error::last_os_error();
        tracing::debug!(%error, "inherited descriptors stay open");
    }
    if let Err(error) = raise_descriptor_limit() {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

/// As many descriptors as the hard limit allows.
fn raise_descriptor_limit() -> std::io::Result<()> {
    let mut limit = descriptor_limit()?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the structure, and nothing else.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn descriptor_limit() -> std::io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes the structure, which lives here.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sends a message to a socket: a path, or behind an `@` an abstract name.
fn tell(name: &OsStr, message: &[u8]) -> std::io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // Nobody who does not listen is waited for.
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_takes_all_descriptors_that_it_may_have() {
        let mut limit = descriptor_limit().expect("a limit");
        limit.rlim_cur = limit.rlim_max / 2;
        // SAFETY: the call reads the structure, and nothing else.
        let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
        assert_eq!(result, 0, "lower is always allowed");
        raise_descriptor_limit().expect("the hard limit allows it");
        let limit = descriptor_limit().expect("a limit");
        assert_eq!(limit.rlim_cur, limit.rlim_max);
    }

    #[test]
    fn who_listens_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notify");
        let abstract_name = format!("gupfs-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a name");
        for (listener, name) in [
            (
                UnixDatagram::bind(&path).expect("bound"),
                path.display().to_string(),
            ),
            (
                UnixDatagram::bind_addr(&address).expect("bound"),
                format!("@{abstract_name}"),
            ),
        ] {
            tell(OsStr::new(&name), b"READY=1").expect("told");
            let mut bytes = [0; 100];
            let size = listener.recv(&mut bytes).expect("received");
            assert_eq!(&bytes[..size], b"READY=1");
        }
        tell(OsStr::new("/no/such/socket"), b"x").expect_err("nobody listens");
    }
}
