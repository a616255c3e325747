//! Enters a named network name space, and nothing else: mounts stay visible to the machine.
//!
//! `ip netns exec` would also enter a mount name space of its own, and FUSE mounts made there are
//! invisible outside. setns(2) with CLONE_NEWNET moves the calling thread alone; threads that it starts
//! later inherit the name space, so a daemon calls this before it starts any.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use thiserror::Error;

/// Why the name space was not entered; the thread stays where it was.
#[derive(Debug, Error)]
pub enum NetnsError {
    /// The name is empty, or would leave the folder of names.
    #[error("'{name}' is not the name of a network name space")]
    Name {
        /// The name asked for.
        name: String,
    },
    /// No such name space: create it first (`ip netns add`).
    #[error("network name space {path}: {source}; `ip netns add` creates one", path = path.display())]
    Open {
        /// File that stands for it.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The kernel refused: the daemon is not root, or the file is not a network name space.
    #[error("entering network name space {path}: {source}", path = path.display())]
    Enter {
        /// File that stands for it.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Moves the calling thread, and the threads it starts from now on, to the network name space `name` as
/// `ip netns` knows it.
pub fn enter(name: &str) -> Result<(), NetnsError> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(NetnsError::Name { name: name.into() });
    }
    let path = PathBuf::from("/run/netns").join(name);
    let file = File::open(&path).map_err(|source| NetnsError::Open {
        path: path.clone(),
        source,
    })?;
    // SAFETY: the descriptor is open for the duration of the call, which takes no pointers.
    match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(NetnsError::Enter {
            path,
            source: std::io::Error::last_os_error(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Removed when dropped.
    struct Named(String);
    impl Named {
        /// None when this is not root.
        fn new() -> Option<Self> {
            let name = format!("gupfs-test-{}", std::process::id());
            let status = Command::new("ip").args(["netns", "add", &name]).status();
            status.is_ok_and(|s| s.success()).then(|| Self(name))
        }
    }
    impl Drop for Named {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
        }
    }

    #[test]
    fn the_thread_and_those_it_starts_enter_and_mounts_stay() {
        let Some(named) = Named::new() else { return };
        let read = |what| std::fs::read_link(format!("/proc/thread-self/ns/{what}")).ok();
        let (net, mounts) = (read("net"), read("mnt"));
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter(&named.0).expect("it was just made");
                let started = std::thread::spawn(move || (read("net"), read("mnt")));
                assert_eq!(started.join().expect("it only reads").0, read("net"));
                (read("net"), read("mnt"))
            });
            let (net_inside, mounts_inside) = inside.join().expect("entered");
            assert_ne!(net_inside, net);
            assert_eq!(mounts_inside, mounts);
        });
        assert_eq!(read("net"), net, "other threads stay where they were");
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["", ".", "..", "../../etc/passwd", "a/b"] {
            assert!(
                matches!(enter(name), Err(NetnsError::Name { .. })),
                "{name}"
            );
        }
        let error = enter("gupfs-no-such-name-space").expect_err("it does not exist");
        assert!(
            error.to_string().contains("/run/netns/gupfs-no-such"),
            "{error}"
        );
    }
}
