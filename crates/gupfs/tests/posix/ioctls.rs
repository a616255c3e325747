//! ioctl(2): what is not served says so in the one way that programs know, and goes on saying it.
#![allow(unsafe_code, reason = "ioctl is not in std")]

use std::fs::{self, File};
use std::io::{Error, Write as _};
use std::os::fd::AsRawFd as _;

use crate::node::Node;

fn errno(file: &File, request: libc::Ioctl) -> Option<i32> {
    let mut flags: libc::c_long = 0;
    // SAFETY: a descriptor that is open, and a place that is large enough for either of these.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut flags) };
    (result != 0).then(|| Error::last_os_error().raw_os_error().unwrap_or(0))
}

/// lsattr and chattr, cp and tar ask for inode flags, and take ENOTTY for a file system that has none.
#[test]
fn inode_flags_are_not_kept() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    fs::create_dir(mount.join("d")).unwrap();
    let mut file = File::create(mount.join("d/file")).unwrap();
    let directory = File::open(mount.join("d")).unwrap();
    /// A number that nobody has.
    const UNKNOWN: libc::Ioctl = 0xc008_660b;
    for _ in 0..2 {
        for request in [libc::FS_IOC_GETFLAGS, libc::FS_IOC_SETFLAGS, UNKNOWN] {
            assert_eq!(errno(&file, request), Some(libc::ENOTTY), "{request:#x}");
            assert_eq!(
                errno(&directory, request),
                Some(libc::ENOTTY),
                "{request:#x}"
            );
        }
        // What the kernel answers itself for any file.
        assert_eq!(errno(&file, libc::FIONREAD), None);
        file.write_all(b"bytes").unwrap();
    }
}
