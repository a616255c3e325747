//! Files that another node renames while a thread of this one is renaming them.
//!
//! rename(2) looks up both names, one after the other, and where they lead to the same inode the kernel has nothing to do, as POSIX has it for two
//! names of one file, and answers 0. Where another node renames the file to the very same name between the two lookups, both nodes hear that they have
//! done it: whoever claims jobs or mails by renaming them would have two who got each. Likewise an exchange of two names is not made.
//!
//! So a thread that has just been shown a file of one link under one name and looks it up under another one next is answered ESTALE, once: the
//! kernel then looks all names of the call up again, finds the old one gone, and says so. Any other call but a rename does that, too, and costs a lookup more.
//!
//! Left, where the kernel does not ask for both names: it knows the old one from a listing or a lookup of before, or has the new one as absent. Directories, and files of several
//! links, are not told apart.

use types::{Attr, FileKind, InodeId};

use crate::env::Env;
use crate::request::{Operation, Request};
use crate::slice::Slice;

impl Slice {
    /// The name that is looked up leads to a file that this thread has just been shown under another one, which can be its name no more. Says so once.
    pub(crate) fn has_passed(&self, env: &Env<'_>, request: &Request, ino: InodeId) -> bool {
        let Operation::Lookup { parent, name } = &request.operation else {
            return false;
        };
        let attr = self.inodes.get(&ino).and_then(|inode| inode.attr);
        let is_single = |attr: Attr| attr.nlink == 1 && attr.kind == FileKind::File;
        if self.is_alone() || !attr.is_some_and(is_single) {
            return false;
        }
        let (pid, readers) = (request.caller.pid, env.readers);
        let has_passed = pid != 0 && readers.has_looked_up_another(pid, (*parent, name), ino);
        match has_passed {
            true => readers.forget_looked_up(pid),
            false => readers.note_looked_up(pid, (*parent, name), ino),
        }
        has_passed
    }
}
