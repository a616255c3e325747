//! System calls that std lacks: shared mappings ([`Mapping`]), sendfile, and extended attributes.
#![allow(unsafe_code, reason = "sendfile and xattrs are not in std")]

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, Read as _, Result};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

pub use crate::mapping::Mapping;

/// `size` bytes of `file` from its beginning, through sendfile(2), which does not ask for attributes first.
pub fn send(file: &File, size: usize) -> Result<Vec<u8>> {
    let (mut from, to) = std::io::pipe()?;
    let mut bytes = vec![0; size];
    let (mut at, mut done) = (0, 0);
    while done < size {
        let count = crate::mapping::PIECE_SIZE.min(size - done);
        // SAFETY: two descriptors that are open and an offset of ours.
        let sent = unsafe { libc::sendfile(to.as_raw_fd(), file.as_raw_fd(), &raw mut at, count) };
        let sent = usize::try_from(sent).map_err(|_| Error::last_os_error())?;
        if sent == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        from.read_exact(&mut bytes[done..done + sent])?;
        done += sent;
    }
    Ok(bytes)
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path of ours")
}

/// Sets the extended attribute `name` of `path`.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    let (path, name) = (c_path(path), CString::new(name).expect("no NUL"));
    let bytes = value.as_ptr().cast();
    // SAFETY: strings that end in NUL and a buffer of the length given.
    match unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), bytes, value.len(), 0) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// The extended attribute `name` of `path`.
pub fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>> {
    let (path, name) = (c_path(path), CString::new(name).expect("no NUL"));
    let mut value = vec![0_u8; 4096];
    let (bytes, size) = (value.as_mut_ptr().cast(), value.len());
    // SAFETY: strings that end in NUL and a buffer of the length given.
    let count = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), bytes, size) };
    let count = usize::try_from(count).map_err(|_| Error::last_os_error())?;
    value.truncate(count);
    Ok(value)
}

/// Removes the extended attribute `name` of `path`.
pub fn remove_xattr(path: &Path, name: &str) -> Result<()> {
    let (path, name) = (c_path(path), CString::new(name).expect("no NUL"));
    // SAFETY: strings that end in NUL.
    match unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Does `step` as user `uid`, without any of root's rights: on a thread of its own, for these belong to threads.
pub fn as_user<T: Send>(uid: libc::uid_t, step: impl FnOnce() -> T + Send) -> T {
    let thread = || {
        // SAFETY: no pointers; the call itself (not the C library's) changes this thread only.
        let result = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(result, 0, "root may become anybody");
        step()
    };
    std::thread::scope(|scope| scope.spawn(thread).join().expect("the step does not panic"))
}

/// Does `step` as user `uid` who has these of root's capabilities (bits of the first word of the set), as `as_user`.
pub fn with_capabilities<T: Send>(
    (uid, capabilities): (libc::uid_t, u32),
    step: impl FnOnce() -> T + Send,
) -> T {
    let thread = || {
        // SAFETY: no pointers but to arrays of the sizes that version 3 of the calls has; they change this thread only.
        unsafe {
            // Its capabilities leave the effective set with root's number, and not the permitted one.
            libc::syscall(libc::SYS_setfsuid, uid);
            let mut header = [0x2008_0522_u32, 0];
            let mut sets = [0_u32; 6];
            let got = libc::syscall(libc::SYS_capget, &raw mut header, &raw mut sets);
            assert_eq!(got, 0, "{}", Error::last_os_error());
            (sets[0], sets[3]) = (sets[1] & capabilities, 0);
            let set = libc::syscall(libc::SYS_capset, &raw mut header, &raw const sets);
            assert_eq!(set, 0, "{}", Error::last_os_error());
        }
        step()
    };
    std::thread::scope(|scope| scope.spawn(thread).join().expect("the step does not panic"))
}

/// lseek(2) for the next data, or hole, from `offset` on; `None`: there is none (ENXIO).
pub fn seek(file: &File, offset: u64, is_hole: bool) -> Result<Option<u64>> {
    let whence = if is_hole {
        libc::SEEK_HOLE
    } else {
        libc::SEEK_DATA
    };
    let offset = i64::try_from(offset).expect("an offset");
    // SAFETY: a descriptor that is open.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
    match u64::try_from(found) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// fallocate(2).
pub fn allocate(file: &File, mode: i32, offset: u64, length: u64) -> Result<()> {
    let part = |value| i64::try_from(value).expect("an offset");
    // SAFETY: a descriptor that is open.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, part(offset), part(length)) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// renameat2(2): fail with EEXIST rather than replace.
pub const RENAME_NOREPLACE: u32 = libc::RENAME_NOREPLACE;
/// renameat2(2): both names stay and change places.
pub const RENAME_EXCHANGE: u32 = libc::RENAME_EXCHANGE;

/// renameat2(2).
pub fn rename_with(from: &Path, to: &Path, flags: u32) -> Result<()> {
    let (from, to, at) = (c_path(from), c_path(to), libc::AT_FDCWD);
    // SAFETY: strings that end in NUL.
    match unsafe { libc::renameat2(at, from.as_ptr(), at, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

extern "C" fn ignore(_signal: libc::c_int) {}

/// Has SIGUSR1 do nothing, and system calls go on after it.
pub fn catch_signals() {
    // SAFETY: a handler that does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

/// The calling thread, for `interrupt`.
pub fn me() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Sends SIGUSR1 to a thread of this process.
pub fn interrupt(thread: i32) {
    // SAFETY: no pointers.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

/// open(2) with O_TRUNC, once, and close(2). False: EINTR.
pub fn open_cut(path: &Path) -> bool {
    let path = c_path(path);
    // SAFETY: a string that ends in NUL.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_TRUNC) };
    if fd < 0 {
        return Error::last_os_error().raw_os_error() != Some(libc::EINTR);
    }
    // SAFETY: ours.
    unsafe { libc::close(fd) };
    true
}

/// linkat(2) of an open file that may have no name.
pub fn link_descriptor(file: &File, to: &Path) -> Result<()> {
    let from = c_path(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
    let (to, at) = (c_path(to), libc::AT_FDCWD);
    let flags = libc::AT_SYMLINK_FOLLOW;
    // SAFETY: strings that end in NUL.
    match unsafe { libc::linkat(at, from.as_ptr(), at, to.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}
