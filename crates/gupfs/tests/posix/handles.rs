//! File handles: what an NFS server keeps of a file leads to it also after a remount, and nowhere once it is gone.
#![allow(unsafe_code, reason = "file handles are not in std")]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Error, Read as _, Result};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::node::Node;

/// `struct file_handle` with room for as much as the kernel takes.
#[repr(C)]
struct Handle {
    size: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> Result<Handle> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL");
    let mut handle = Handle {
        size: 128,
        kind: 0,
        bytes: [0; 128],
    };
    let mut mount = 0_i32;
    // SAFETY: a string that ends in NUL, and two values of ours that the kernel fills.
    let result = unsafe {
        let (at, to, id) = (libc::AT_FDCWD, &raw mut handle, &raw mut mount);
        libc::syscall(libc::SYS_name_to_handle_at, at, path.as_ptr(), to, id, 0)
    };
    match result {
        0 => Ok(handle),
        _ => Err(Error::last_os_error()),
    }
}

fn open(mount: &Path, handle: &Handle) -> Result<File> {
    let place = File::open(mount)?;
    let (at, from) = (place.as_raw_fd(), &raw const *handle);
    // SAFETY: a descriptor that is open, and a handle that the kernel reads.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, at, from, libc::O_RDONLY) };
    let fd = i32::try_from(fd).expect("a descriptor or -1");
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[test]
fn handles_survive_a_remount() {
    let Some(node) = Node::new("2G") else { return };
    let mount = node.mount();
    fs::create_dir(mount.join("d")).unwrap();
    fs::write(mount.join("d/file"), b"bytes").unwrap();
    fs::write(mount.join("d/gone"), b"bytes").unwrap();
    let file = handle_of(&mount.join("d/file")).unwrap();
    let gone = handle_of(&mount.join("d/gone")).unwrap();
    let directory = handle_of(&mount.join("d")).unwrap();
    for is_remounted in [false, true] {
        if is_remounted {
            fs::rename(mount.join("d/file"), mount.join("elsewhere")).unwrap();
            fs::remove_file(mount.join("d/gone")).unwrap();
            node.gupfs(&["down"]);
            node.up(&[]).unwrap();
        }
        let mut said = Vec::new();
        open(&mount, &file).unwrap().read_to_end(&mut said).unwrap();
        assert_eq!(said, b"bytes");
        let number = open(&mount, &directory).unwrap().metadata().unwrap().ino();
        assert_eq!(number, fs::metadata(mount.join("d")).unwrap().ino());
    }
    let error = open(&mount, &gone).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
}
