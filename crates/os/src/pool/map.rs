//! The memory of the pagepool: a file in memory, mapped shared for the pool's life.
//!
//! A memfd lies in the kernel's own tmpfs, which gives no huge pages unless the administrator says so
//! (`shmem_enabled`; advice for the mapping alone does not reach it). So the file is made in a tmpfs of its own,
//! mounted nowhere, with `huge=always`: a slab is then one piece to pin and a few segments of a disk request
//! instead of 256. Where that is refused a memfd does as well, only slower.

use std::ffi::{CStr, CString};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::PoolError;

/// Where the first pool of a process is mapped: far from everything the system places, and the same in
/// every run, so that addresses in a dump can be told.
const BASE: usize = 0x2000_0000_0000;

/// Bytes of a huge page.
const HUGE_SIZE: usize = 2 << 20;

/// The mapping, undone when dropped.
#[derive(Debug)]
pub(super) struct Map {
    base: *mut u8,
    size: usize,
    /// Kept for handing the memory to a successor or to native clients.
    _memfd: OwnedFd,
}

// SAFETY: the mapping is shared memory without a thread of its own; access rules are the pool's.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn new(size: usize) -> Result<Self, PoolError> {
        let failed = |what| PoolError::Memory {
            size: size as u64,
            what,
            source: Error::last_os_error(),
        };
        let memfd = match huge_file(size).or_else(plain_file) {
            Some(file) => file,
            None => return Err(failed("memfd_create")),
        };
        let length = libc::off_t::try_from(size).expect("at most 16 TiB");
        // SAFETY: no pointers.
        if unsafe { libc::ftruncate(memfd.as_raw_fd(), length) } != 0 {
            return Err(failed("ftruncate"));
        }
        let mut base = map_at(&memfd, size, BASE, libc::MAP_FIXED_NOREPLACE);
        if base == libc::MAP_FAILED {
            // Taken: a second pool of one process (tests).
            base = map_at(&memfd, size, 0, 0);
        }
        if base == libc::MAP_FAILED {
            return Err(failed("mmap"));
        }
        // Advice for huge pages has the kernel make room for them where memory is fragmented: without it nine tenths
        // of a pool lay in small pages on a machine that had built software before, and each MiB written took 55 us
        // longer (pinning 256 pages instead of one).
        for advice in [libc::MADV_DONTDUMP, libc::MADV_HUGEPAGE] {
            // SAFETY: exactly the new mapping. Advice that is refused changes nothing.
            unsafe { libc::madvise(base, size, advice) };
        }
        Ok(Self {
            base: base.cast(),
            size,
            _memfd: memfd,
        })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }
}

fn plain_file() -> Option<OwnedFd> {
    // SAFETY: the name is a NUL-terminated constant.
    owned(unsafe { libc::memfd_create(c"gupfs-pagepool".as_ptr(), libc::MFD_CLOEXEC) }.into())
}

/// A nameless file of a tmpfs that is mounted nowhere and lives as long as the file does. `None`: the
/// kernel is older than 5.2, or this process may not mount.
fn huge_file(size: usize) -> Option<OwnedFd> {
    /// From linux/mount.h; libc lacks them.
    const FSOPEN_CLOEXEC: libc::c_long = 1;
    const FSCONFIG_SET_STRING: libc::c_long = 1;
    const FSCONFIG_CMD_CREATE: libc::c_long = 6;
    const FSMOUNT_CLOEXEC: libc::c_long = 1;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: a NUL-terminated name.
    let context =
        owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FSOPEN_CLOEXEC) })?;
    let limit = CString::new(size.next_multiple_of(HUGE_SIZE).to_string()).ok()?;
    let number = context.as_raw_fd();
    let set = |key: &CStr, value: &CStr| {
        let (key, value) = (key.as_ptr(), value.as_ptr());
        let what = FSCONFIG_SET_STRING;
        // SAFETY: NUL-terminated strings.
        unsafe { libc::syscall(libc::SYS_fsconfig, number, what, key, value, 0) == 0 }
    };
    if !set(c"huge", c"always") || !set(c"size", &limit) {
        return None;
    }
    let what = FSCONFIG_CMD_CREATE;
    // SAFETY: the command takes neither key nor value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, number, what, null, null, 0) } != 0 {
        return None;
    }
    // SAFETY: no pointers.
    let mount = owned(unsafe { libc::syscall(libc::SYS_fsmount, number, FSMOUNT_CLOEXEC, 0) })?;
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: a NUL-terminated path.
    owned(unsafe { libc::openat(mount.as_raw_fd(), c".".as_ptr(), flags, 0o600) }.into())
}

/// The new descriptor that a call returned.
fn owned(result: libc::c_long) -> Option<OwnedFd> {
    let fd = i32::try_from(result).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the descriptor is new and ours alone.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn map_at(memfd: &OwnedFd, size: usize, hint: usize, flags: i32) -> *mut libc::c_void {
    // SAFETY: without MAP_FIXED the kernel never maps over what exists; the descriptor is open.
    unsafe {
        libc::mmap(
            std::ptr::without_provenance_mut(hint),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | flags,
            memfd.as_raw_fd(),
            0,
        )
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nobody can hold a slice of it any more, because slices
        // borrow the pool.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}
