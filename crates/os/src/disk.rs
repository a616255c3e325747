//! Disks behind NSDs: block devices and files, opened so that no two daemons use one.
//!
//! Invariants
//! - A disk opened writable is locked against other writers for as long as it is open: block devices by
//!   O_EXCL (which mounts and other exclusive users hold too), files by flock. The flock of a file ends
//!   with the last request in flight, which fencing of file NSDs relies on (DESIGN.md, section 4).
//! - All I/O is in whole sectors within the size that the disk had when it was opened.
//! - I/O goes past the kernel's page cache (O_DIRECT) unless `is_direct` says that the file system of a
//!   file NSD cannot do that.
//!
//! `Disk` alone offers blocking I/O, for tools and for the start of a daemon; `DiskQueue` offers
//! asynchronous I/O on pool memory.

mod aio;
mod flushes;
pub mod marks;
mod queue;
mod turns;
mod volatile;

use std::ffi::CString;
use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use thiserror::Error as ThisError;
use types::SECTOR_SIZE;

pub use queue::{
    Busy, DiskCounters, DiskQueue, Handler, IN_FLIGHT_COUNT_MAX, Meters, WAITING_COUNT_MAX,
};

use flushes::Flushes;
use volatile::Volatile;

/// How long a flush that has ended waits for those beside it. The kernel gives a request that a device does not answer up some time: with all tries
/// that takes about as long.
const FLUSH_PATIENCE: Duration = Duration::from_secs(180);

const SECTOR: usize = types::frame::FRAME_SIZE;
const _: () = assert!(SECTOR as u64 == SECTOR_SIZE);

/// What is wrong with a disk, and so what to do.
#[derive(Debug, ThisError)]
pub enum DiskError {
    /// It cannot be opened: check the path and the rights.
    #[error("disk {path}: {source}", path = path.display())]
    Open {
        /// The disk.
        path: PathBuf,
        /// The system's answer.
        source: Error,
    },
    /// Neither block device nor regular file: another path is meant.
    #[error("disk {path}: neither a block device nor a file", path = path.display())]
    Kind {
        /// The disk.
        path: PathBuf,
    },
    /// Another daemon, a mount or a tool uses it: stop that one first.
    #[error("disk {path} is in use by another process or mounted", path = path.display())]
    InUse {
        /// The disk.
        path: PathBuf,
    },
    /// A device that takes no writes, though it lets itself be opened for them: make it writable, or use another.
    #[error(
        "disk {path} is read-only (`blockdev --getro {path}` says 1): make it writable (`blockdev --setrw {path}`; a loop device: attach it without -r), or name another disk",
        path = path.display()
    )]
    ReadOnly {
        /// The disk.
        path: PathBuf,
    },
    /// Its sectors are larger than ours: it cannot be used.
    #[error("disk {path} has blocks of {size} bytes, more than {SECTOR_SIZE}", path = path.display())]
    BlockSize {
        /// The disk.
        path: PathBuf,
        /// Bytes of its smallest write.
        size: i32,
    },
    /// The request reaches beyond the disk: the disk shrank, or a wrong label is believed.
    #[error("disk {path}: sectors {sector} + {count} are beyond its end", path = path.display())]
    Bounds {
        /// The disk.
        path: PathBuf,
        /// First sector asked for.
        sector: u64,
        /// Sectors asked for.
        count: u64,
    },
    /// The disk failed. After a failed write or flush, what earlier writes left on it is unknown: use
    /// another path or replica, and write elsewhere.
    #[error("disk {path}: {what} at sector {sector}: {source}", path = path.display())]
    Io {
        /// The disk.
        path: PathBuf,
        /// `read`, `write` or `flush`.
        what: &'static str,
        /// First sector of the request; 0 for a flush.
        sector: u64,
        /// The system's answer.
        source: Error,
    },
}

/// An open disk.
#[derive(Debug)]
pub struct Disk {
    file: File,
    path: PathBuf,
    sector_count: u64,
    is_block_device: bool,
    is_direct: bool,
    has_volatile_cache: bool,
    /// A durable write is one request of the device; else it is a write and a flush.
    has_durable_writes: bool,
    /// For tests: what was not flushed is lost with this process.
    volatile: Option<Volatile>,
    losses: AtomicU64,
    flushes: Flushes,
}

impl Disk {
    /// Opens a block device or regular file; `is_writable` also locks it against others that do so.
    pub fn open(path: &Path, is_writable: bool) -> Result<Self, DiskError> {
        let failed = |source| DiskError::Open {
            path: path.into(),
            source,
        };
        let metadata = std::fs::metadata(path).map_err(failed)?;
        let is_block_device = metadata.file_type().is_block_device();
        if !is_block_device && !metadata.is_file() {
            return Err(DiskError::Kind { path: path.into() });
        }
        let access = if is_writable {
            libc::O_RDWR
        } else {
            libc::O_RDONLY
        };
        let exclusive = if is_writable && is_block_device {
            libc::O_EXCL
        } else {
            0
        };
        let flags = access | exclusive | libc::O_CLOEXEC;
        let (file, is_direct) = match open(path, flags | libc::O_DIRECT) {
            // Older tmpfs, and some network file systems.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && !is_block_device => {
                (open(path, flags).map_err(failed)?, false)
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                return Err(DiskError::InUse { path: path.into() });
            }
            other => (other.map_err(failed)?, true),
        };
        if is_writable && !is_block_device {
            lock(&file, path)?;
        }
        let mut disk = Self {
            sector_count: metadata.len() / SECTOR_SIZE,
            has_volatile_cache: true,
            volatile: None,
            losses: AtomicU64::new(0),
            flushes: Flushes::default(),
            has_durable_writes: false,
            file,
            path: path.into(),
            is_block_device,
            is_direct,
        };
        if is_block_device {
            disk.sector_count = device_size(&disk.file).map_err(failed)? / SECTOR_SIZE;
            disk.has_volatile_cache = device_attribute(metadata.rdev(), "write_cache")
                .is_none_or(|text| text != "write through");
            disk.has_durable_writes =
                device_attribute(metadata.rdev(), "fua").is_some_and(|text| text == "1");
            if is_writable && device_is_read_only(&disk.file).map_err(failed)? {
                return Err(DiskError::ReadOnly { path: path.into() });
            }
            let size = device_block_size(&disk.file).map_err(failed)?;
            if i64::from(size) > SECTOR_SIZE.cast_signed() {
                return Err(DiskError::BlockSize {
                    path: path.into(),
                    size,
                });
            }
        }
        Ok(disk)
    }

    /// For tests: what is written stays in this process until a flush, and is lost with it. `seed` draws what reaches the file
    /// all the same.
    #[must_use]
    pub fn with_volatile_cache(mut self, seed: u64) -> Self {
        self.volatile = Some(Volatile::new(seed));
        self.has_volatile_cache = true;
        self.has_durable_writes = false;
        self
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whole sectors of it.
    #[must_use]
    pub const fn sector_count(&self) -> u64 {
        self.sector_count
    }

    /// A write is durable only after a flush. Always for files (fdatasync); for devices as they say,
    /// and yes if they do not say.
    #[must_use]
    pub const fn has_volatile_cache(&self) -> bool {
        self.has_volatile_cache
    }

    /// I/O goes past the kernel's page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// A block device, not a file.
    #[must_use]
    pub const fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Reads whole sectors; blocks.
    pub fn read_sectors(&self, sector: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.check_bounds(sector, bytes.len() as u64)?;
        let offset = sector * SECTOR_SIZE;
        let result = if let Some(volatile) = &self.volatile {
            volatile.read(self, sector, bytes)
        } else if bytes.as_ptr().addr().is_multiple_of(SECTOR) {
            self.file.read_exact_at(bytes, offset)
        } else {
            let mut aligned = Aligned::new(bytes.len());
            let result = self.file.read_exact_at(aligned.bytes(), offset);
            bytes.copy_from_slice(aligned.bytes());
            result
        };
        result.map_err(|source| self.failed("read", sector, source, false))
    }

    /// Writes whole sectors; blocks. Durable after `flush`.
    pub fn write_sectors(&self, sector: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.check_bounds(sector, bytes.len() as u64)?;
        let offset = sector * SECTOR_SIZE;
        let result = if let Some(volatile) = &self.volatile {
            volatile.write(self, sector, bytes, false)
        } else if bytes.as_ptr().addr().is_multiple_of(SECTOR) {
            self.file.write_all_at(bytes, offset)
        } else {
            let mut aligned = Aligned::new(bytes.len());
            aligned.bytes().copy_from_slice(bytes);
            self.file.write_all_at(aligned.bytes(), offset)
        };
        result.map_err(|source| self.failed("write", sector, source, false))
    }

    /// Makes all writes that have returned durable; blocks, also until all flushes that are under way at its end have ended, so that
    /// `loss_count` counts what they were told.
    pub fn flush(&self) -> Result<(), DiskError> {
        let number = self.flushes.begin();
        let result = match &self.volatile {
            Some(volatile) => volatile.flush(self),
            None => self.file.sync_data(),
        };
        let result = result.map_err(|source| self.failed("flush", 0, source, true));
        let (told, hears) = mpsc::channel();
        // Who has stopped waiting hears nothing.
        let tell = || {
            Box::new(move || {
                let _ = told.send(());
            }) as flushes::Held
        };
        if !self.flushes.end(number, tell) && hears.recv_timeout(FLUSH_PATIENCE).is_err() {
            let source = Error::other("another flush of it does not end");
            return result.and_then(|()| Err(self.failed("flush", 0, source, true)));
        }
        result
    }

    fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    fn check_bounds(&self, sector: u64, size: u64) -> Result<(), DiskError> {
        assert_eq!(size % SECTOR_SIZE, 0, "I/O is in whole sectors");
        let count = size / SECTOR_SIZE;
        match sector.checked_add(count) {
            Some(end) if end <= self.sector_count => Ok(()),
            _ => Err(DiskError::Bounds {
                path: self.path.clone(),
                sector,
                count,
            }),
        }
    }

    /// Flushes, and writes with one, that have failed, of whomever: of several callers the system tells one alone that what was written is lost, so
    /// who flushes compares this with what it was before the first write.
    pub fn loss_count(&self) -> u64 {
        self.losses.load(Ordering::SeqCst)
    }

    /// Fails if flushes have failed since `loss_count` was `losses`: what was written since may be what somebody else was told is lost.
    fn nothing_lost_since(&self, losses: u64) -> Result<(), DiskError> {
        match self.loss_count() == losses {
            true => Ok(()),
            false => Err(DiskError::Io {
                path: self.path.clone(),
                what: "flush",
                sector: 0,
                source: Error::other("another flush of it has failed meanwhile"),
            }),
        }
    }

    fn failed(&self, what: &'static str, sector: u64, source: Error, is_flush: bool) -> DiskError {
        self.losses.fetch_add(u64::from(is_flush), Ordering::SeqCst);
        DiskError::Io {
            path: self.path.clone(),
            what,
            sector,
            source,
        }
    }
}

fn open(path: &Path, flags: i32) -> Result<File, Error> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a NUL-terminated path. (std's OpenOptions cannot express O_EXCL without O_CREAT.)
    let fd = unsafe { libc::open(path.as_ptr(), flags) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours alone.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn lock(file: &File, path: &Path) -> Result<(), DiskError> {
    // SAFETY: no pointers.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    let source = Error::last_os_error();
    Err(match source.raw_os_error() {
        Some(libc::EWOULDBLOCK) => DiskError::InUse { path: path.into() },
        _ => DiskError::Open {
            path: path.into(),
            source,
        },
    })
}

fn device_size(file: &File) -> Result<u64, Error> {
    /// `_IOR(0x12, 114, size_t)` of linux/fs.h.
    const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
    let mut size = 0_u64;
    // SAFETY: the call writes eight bytes to `size`.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) } {
        0 => Ok(size),
        _ => Err(Error::last_os_error()),
    }
}

fn device_block_size(file: &File) -> Result<i32, Error> {
    /// `_IO(0x12, 104)` of linux/fs.h.
    const BLKSSZGET: libc::Ioctl = 0x1268;
    let mut size = 0_i32;
    // SAFETY: the call writes four bytes to `size`.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET, &raw mut size) } {
        0 => Ok(size),
        _ => Err(Error::last_os_error()),
    }
}

/// Whether the block device `file` takes no writes. The kernel lets such a one be opened for writing and refuses each write.
///
/// # Errors
/// It is no block device, or it is gone.
pub fn device_is_read_only(file: &File) -> Result<bool, Error> {
    /// `_IO(0x12, 94)` of linux/fs.h.
    const BLKROGET: libc::Ioctl = 0x125e;
    let mut answer = 0_i32;
    // SAFETY: the call writes four bytes to `answer`.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut answer) } {
        0 => Ok(answer != 0),
        _ => Err(Error::last_os_error()),
    }
}

/// What the kernel says of a device's queue, without the end of its line.
fn device_attribute(device: u64, name: &str) -> Option<String> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let folder = Path::new("/sys/dev/block").join(number);
    // A partition has no queue of its own, its parent has.
    ["queue", "../queue"]
        .iter()
        .find_map(|queue| std::fs::read_to_string(folder.join(queue).join(name)).ok())
        .map(|text| text.trim().to_owned())
}

/// Bytes at a multiple of the sector size, as O_DIRECT wants them.
struct Aligned {
    bytes: Vec<u8>,
    begin: usize,
    size: usize,
}

impl Aligned {
    fn new(size: usize) -> Self {
        let bytes = vec![0; size + SECTOR];
        let begin = bytes.as_ptr().addr().next_multiple_of(SECTOR) - bytes.as_ptr().addr();
        Self { bytes, begin, size }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..self.begin + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_flush_loses_what_others_wrote() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("disk");
        std::fs::write(&path, vec![7; 4 * SECTOR]).expect("written");
        let mut disk = Disk::open(&path, true).expect("opened");
        let mut bytes = vec![0; SECTOR];
        disk.file.set_len(0).expect("cut");
        disk.read_sectors(3, &mut bytes).expect_err("it is cut");
        disk.flush().expect("flushed");
        assert_eq!(disk.loss_count(), 0);
        // What cannot be flushed.
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        disk.file = File::from(std::os::fd::OwnedFd::from(reader));
        disk.write_sectors(0, &bytes).expect_err("no disk any more");
        assert_eq!(disk.loss_count(), 0);
        disk.flush().expect_err("no disk any more");
        assert_eq!(disk.loss_count(), 1);
    }
}
