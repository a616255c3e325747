//! The memory of the pagepool: a memfd mapped shared for the pool's life.

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::PoolError;

/// Where the first pool of a process is mapped: far from everything the system places, and the same in
/// every run, so that addresses in a dump can be told.
const BASE: usize = 0x2000_0000_0000;

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
        // SAFETY: the name is a NUL-terminated constant.
        let fd = unsafe { libc::memfd_create(c"gupfs-pagepool".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(failed("memfd_create"));
        }
        // SAFETY: the descriptor is new and ours alone.
        let memfd = unsafe { OwnedFd::from_raw_fd(fd) };
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
        // SAFETY: exactly the new mapping. Advice that is refused changes nothing.
        unsafe { libc::madvise(base, size, libc::MADV_DONTDUMP) };
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
