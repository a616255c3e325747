//! Shared mappings whose faults are errors.
//!
//! A page of a mapping is touched only by the kernel (`read` and `write` of a pipe), never by an instruction of
//! ours: a mount that was aborted then answers EFAULT, where a load would end the whole test with SIGBUS.
#![allow(unsafe_code, reason = "mmap is not in std")]

use std::fs::File;
use std::io::{Error, PipeReader, PipeWriter, Read as _, Result, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;

/// Bytes that go through the pipe at once: less than its capacity, so that nobody blocks in it.
pub const PIECE_SIZE: usize = 16 << 10;

/// A shared mapping of a file from its beginning.
pub struct Mapping {
    address: usize,
    size: usize,
    pipe: Mutex<(PipeReader, PipeWriter)>,
}

impl Mapping {
    pub fn new(file: &File, size: usize, is_writable: bool) -> Result<Self> {
        let protection = libc::PROT_READ | if is_writable { libc::PROT_WRITE } else { 0 };
        let (null, fd) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe { libc::mmap(null, size, protection, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Self {
            address: address as usize,
            size,
            pipe: Mutex::new(std::io::pipe()?),
        })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    /// Where it begins. Nothing of ours may point into it.
    pub fn address(&self) -> usize {
        self.address
    }

    /// Loads `bytes` from `offset` on.
    pub fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.size, "outside of the mapping");
        let mut pipe = self.pipe.lock().expect("never poisoned");
        let mut at = offset;
        for piece in bytes.chunks_mut(PIECE_SIZE) {
            let mut done = 0;
            while done < piece.len() {
                let from = (self.address + at + done) as *const libc::c_void;
                let fd = pipe.1.as_raw_fd();
                // SAFETY: the kernel reads inside of the mapping, and answers EFAULT where it cannot.
                let count = unsafe { libc::write(fd, from, piece.len() - done) };
                let Ok(count) = usize::try_from(count) else {
                    let error = Error::last_os_error();
                    *pipe = std::io::pipe()?;
                    return Err(error);
                };
                pipe.0.read_exact(&mut piece[done..done + count])?;
                done += count;
            }
            at += piece.len();
        }
        Ok(())
    }

    /// Stores `bytes` from `offset` on.
    pub fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.size, "outside of the mapping");
        let mut pipe = self.pipe.lock().expect("never poisoned");
        let mut at = offset;
        for piece in bytes.chunks(PIECE_SIZE) {
            pipe.1.write_all(piece)?;
            let mut done = 0;
            while done < piece.len() {
                let to = (self.address + at + done) as *mut libc::c_void;
                let fd = pipe.0.as_raw_fd();
                // SAFETY: the kernel writes inside of the mapping, which no Rust reference points into.
                let count = unsafe { libc::read(fd, to, piece.len() - done) };
                let Ok(count) = usize::try_from(count) else {
                    let error = Error::last_os_error();
                    *pipe = std::io::pipe()?;
                    return Err(error);
                };
                done += count;
            }
            at += piece.len();
        }
        Ok(())
    }

    /// Writes what was stored back to the file, and the file to disks.
    pub fn sync(&self) -> Result<()> {
        self.sync_part(0, self.size)
    }

    /// The same for the pages of `size` bytes from `offset` on, a multiple of the page size.
    pub fn sync_part(&self, offset: usize, size: usize) -> Result<()> {
        assert!(offset + size <= self.size, "outside of the mapping");
        let address = (self.address + offset) as *mut libc::c_void;
        // SAFETY: inside of our mapping.
        match unsafe { libc::msync(address, size, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, and nobody uses it any more.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.size) };
    }
}
