//! Files that another node renames while a thread of this one is renaming them.
//!
//! rename(2) looks up both names, one after the other, and where they lead to the same inode the kernel has nothing to do, as POSIX has it for two
//! names of one file, and answers 0. Where another node renames the file to the very same name between the two lookups, both nodes hear that they have
//! done it: whoever claims jobs or mails by renaming them would have two who got each. Likewise an exchange of two names is not made.
//!
//! So a thread that has just been shown a file of one link under one name, and asks for another one at once, as only a call does that names both, is
//! answered ESTALE where that leads to the same file: the kernel then looks both names up again, finds the old one gone, and says so.
//!
//! Left, where the kernel does not ask for both names, or not at once: it knows the old one from a listing or a lookup of before, or has the new one as
//! absent, or the thread has no processor between the two. Directories, and files of several links, are not told apart. A call that makes a name (link, mkdir, symlink,
//! mknod) is not tried again by the kernel: it hears ESTALE instead of EEXIST where its thread's last call, within a quarter of a millisecond, saw that very file under another name.

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
        if self.is_alone() {
            return false;
        }
        let attr = self.inodes.get(&ino).and_then(|inode| inode.attr);
        let is_single = |attr: Attr| attr.nlink == 1 && attr.kind == FileKind::File;
        let (pid, readers, name) = (request.caller.pid, env.readers, (*parent, name));
        let has_passed = pid != 0
            && attr.is_some_and(is_single)
            && readers.has_looked_up_another(pid, name, ino);
        match has_passed {
            true => readers.forget_looked_up(pid),
            false => readers.note_looked_up(pid, name, ino, env.now),
        }
        has_passed
    }
}
