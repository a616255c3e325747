//! Write-backs that failed, and who has heard of it.
//!
//! Invariants
//! - Each open file hears of every failure that came while it was open: with its next write once, with each close of a
//!   descriptor until it was synced, and with its next sync. What another one hears takes nothing from it.
//! - A failure that nobody has heard of is told to who opens the file next, or renames it.
//!
//! What this deliberately does not do: remember which bytes were lost.

use types::{Errno, InodeId};

use crate::request::Handle;
use crate::slice::Slice;

/// The failed write-backs of an inode.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Errors {
    last: Option<Errno>,
    count: u64,
    is_untold: bool,
}

/// Failures that an open file has heard of, counted from the inode's first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heard {
    by_sync: u64,
    by_write: u64,
}

/// How an open file hears of failures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hears {
    Write,
    Close,
    Sync,
}

impl Errors {
    /// Something that was acknowledged is lost.
    pub(crate) fn note(&mut self, errno: Errno) {
        self.last = Some(errno);
        self.count += 1;
        self.is_untold = true;
    }

    /// Nobody has heard of the last failure.
    pub(crate) const fn is_untold(&self) -> bool {
        self.is_untold
    }

    /// What who has no open file is to hear.
    pub(crate) fn take_untold(&mut self) -> Option<Errno> {
        std::mem::take(&mut self.is_untold)
            .then_some(self.last)
            .flatten()
    }

    /// What a file that is opened now need not hear.
    pub(crate) fn heard_at_open(&self) -> Heard {
        let count = self.count - u64::from(self.is_untold);
        Heard {
            by_sync: count,
            by_write: count,
        }
    }

    fn tell(&mut self, heard: &mut Heard, how: Hears) -> Option<Errno> {
        let before = match how {
            Hears::Write => heard.by_write,
            Hears::Close | Hears::Sync => heard.by_sync,
        };
        if before >= self.count {
            return None;
        }
        match how {
            Hears::Write => heard.by_write = self.count,
            Hears::Close => {}
            Hears::Sync => heard.by_sync = self.count,
        }
        self.is_untold = false;
        self.last
    }
}

impl Slice {
    /// What an open file hears now of write-backs that failed.
    pub(crate) fn tell_error(&mut self, ino: InodeId, handle: Handle, how: Hears) -> Option<Errno> {
        let inode = self.inodes.get_mut(&ino)?;
        match self.handles.get_mut(&handle) {
            Some(file) => inode.errors.tell(&mut file.heard, how),
            None => inode.errors.take_untold(),
        }
    }
}
