//! What the kernel is shown, and for how long it may believe that.
//!
//! The kernel takes an answer's attributes in the thread that asked, whenever that runs again. Meanwhile another thread's call may change
//! them and be answered. After a write, a truncation or a removal the kernel lets no answer in that was asked for before; after a rename,
//! a new name in a directory, an extended attribute or a hole it only drops what it has, and believes the late answer for as long as
//! that says. So where attributes were shown to another thread than the one whose call changes them, the kernel is told to drop them,
//! which makes answers under way void. A thread that has asked has taken its answer before it calls again.

use types::{Duration, FileKind, InodeId};

use crate::inode::Inode;
use crate::names::TIMEOUT_NS;
use crate::request::{Entry, Notice};
use crate::slice::{Effect, Slice};

/// [`Inode::believed_by`]: no thread.
pub(crate) const NOBODY: u32 = 0;
/// [`Inode::believed_by`]: several threads, or one of which the number is not known.
pub(crate) const SEVERAL: u32 = u32::MAX;

impl Inode {
    /// No other node changes names of the directory unseen.
    pub(crate) fn may_keep_names(&self) -> bool {
        self.directory_mode().is_some() && !self.is_revoking() && !self.is_contended
    }

    /// `thread` is shown attributes for the kernel to keep; 0 is a thread of which the number is not known.
    pub(crate) fn note_believed(&mut self, thread: u32) {
        self.believed_by = match self.believed_by {
            _ if thread == 0 => SEVERAL,
            NOBODY => thread,
            one if one == thread => thread,
            _ => SEVERAL,
        };
    }

    /// Whether an answer with attributes may still be under way to another thread than this one.
    fn take_believed_by_others(&mut self, thread: u32) -> bool {
        let is_others = self.believed_by != NOBODY && self.believed_by != thread;
        if is_others {
            self.believed_by = NOBODY;
        }
        is_others
    }
}

impl Slice {
    /// The kernel may believe what a token covers for so long. More than a second only where no other node ever comes: a daemon that does not
    /// run drops nothing, and its tokens end with its lease.
    pub fn believe(&mut self, timeout: Duration) {
        self.timeout_ns = timeout.0;
    }

    /// The kernel cannot be told to drop names (`Notice::Epoch`): where other nodes may come it is not to keep any.
    pub fn keep_no_names(&mut self) {
        self.keeps_no_names = true;
    }

    /// No other node ever comes.
    pub(crate) const fn is_alone(&self) -> bool {
        self.timeout_ns > TIMEOUT_NS
    }

    /// The kernel sends writes without waiting for their answers (FUSE_ASYNC_DIO). It takes its attributes for old when it sends one, not when that is
    /// answered: what it was shown between the two it would believe.
    pub fn expect_async_writes(&mut self) {
        self.has_async_writes = true;
    }

    /// For how long the kernel may keep names of `parent`.
    pub(crate) fn entry_timeout(&self, parent: InodeId) -> u64 {
        let directory = self.inodes.get(&parent);
        let can_be_dropped = !self.keeps_no_names || self.is_alone();
        match can_be_dropped && directory.is_some_and(|directory| directory.may_keep_names()) {
            true => self.timeout_ns,
            false => 0,
        }
    }

    /// The inode as the kernel may be shown it now, in the answer to a call of `thread`.
    pub(crate) fn show(
        &mut self,
        ino: InodeId,
        thread: u32,
        entry_timeout_ns: u64,
    ) -> Option<Entry> {
        let timeout_ns = self.timeout_ns;
        let inode = self.inode(ino);
        let attr = inode.visible_attr()?;
        let is_believable = inode.is_attr_current() && !inode.is_revoking();
        let is_believed = is_believable && inode.unbelieved_shows == 0;
        inode.unbelieved_shows -= u8::from(is_believable && !is_believed);
        inode.is_attr_believed |= is_believed;
        // After a write the kernel asks for size and times anew, and not for the mode, of which the write may have taken bits.
        let may_lose_rights = attr.kind == FileKind::File && attr.permissions & 0o6000 != 0;
        let is_kept = is_believed && !may_lose_rights;
        // The size on disk of what is on its way there is a guess, of which the kernel hears nothing more.
        let longest_ns = match inode.pages.busy_count() {
            0 => timeout_ns,
            _ => timeout_ns.min(TIMEOUT_NS),
        };
        let attr_timeout_ns = if is_kept { longest_ns } else { 0 };
        if attr_timeout_ns > 0 {
            inode.is_shown_to_writers |= inode.writer_count > 0;
            inode.note_believed(thread);
        }
        Some(Entry {
            attr,
            entry_timeout_ns,
            attr_timeout_ns,
        })
    }

    /// A call of `thread` has changed attributes of `ino`, and the kernel lets in what it asked for before.
    pub(crate) fn note_changed(&mut self, ino: InodeId, thread: u32) {
        let is_believed = match self.inodes.get_mut(&ino) {
            Some(inode) => inode.take_believed_by_others(thread),
            // It may have been shown to anybody before it was forgotten.
            None => self.cold.contains_key(&ino),
        };
        if is_believed {
            let notice = Notice::Attributes { ino };
            self.out.push(Effect::Notify(None, notice));
        }
    }
}
