//! Answers that the kernel takes late.
//!
//! The kernel takes an answer's attributes in the thread that asked, whenever that runs again. Meanwhile another thread's call may change
//! them and be answered. After a write, a truncation or a removal the kernel lets no answer in that was asked for before; after a rename,
//! a new name in a directory, an extended attribute or a hole it only drops what it has, and believes the late answer for as long as
//! that says. So where attributes were shown to another thread than the one whose call changes them, the kernel is told to drop them,
//! which makes answers under way void. A thread that has asked has taken its answer before it calls again.

use types::InodeId;

use crate::inode::Inode;
use crate::request::Notice;
use crate::slice::{Effect, Slice};

/// [`Inode::believed_by`]: no thread.
const NOBODY: u32 = 0;
/// [`Inode::believed_by`]: several threads, or one of which the number is not known.
const SEVERAL: u32 = u32::MAX;

impl Inode {
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
    /// A call of `thread` has changed attributes of `ino`, and the kernel lets in what it asked for before.
    pub(crate) fn note_changed(&mut self, ino: InodeId, thread: u32) {
        let inode = self.inodes.get_mut(&ino);
        if inode.is_some_and(|inode| inode.take_believed_by_others(thread)) {
            let notice = Notice::Attributes { ino };
            self.out.push(Effect::Notify(None, notice));
        }
    }
}
