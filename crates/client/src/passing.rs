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

//! Invariants
//! - Only a lookup that comes at once after the answer to another one counts: whatever else the thread asks for, or later, begins a new call.
//! - A thread hears so once: what it has looked up is forgotten with that.
//! - The tables are of fixed size, without a lock. What is lost, because another thread has the same place, costs the answer of before.

use std::sync::atomic::{AtomicU64, Ordering};

use types::{Attr, Duration, FileKind, InodeId, Instant, Name};

use crate::env::Env;
use crate::readers::{blank, guess, place};
use crate::request::{Operation, Request};
use crate::slice::Slice;

/// A call's second lookup comes so soon after the answer to its first: nothing is done between the two.
const CALL_TIME: Duration = Duration(250_000);

/// What threads have looked up last, if that was their last request. Shared by all slices.
#[derive(Debug)]
pub struct Lookups {
    /// Thread number, 32 bits, above those of the inode.
    inodes: Box<[AtomicU64]>,
    /// The same above those of the name and its directory.
    names: Box<[AtomicU64]>,
    /// When.
    times: Box<[AtomicU64]>,
}

impl Lookups {
    pub(crate) fn new() -> Self {
        Self {
            inodes: blank(),
            names: blank(),
            times: blank(),
        }
    }

    /// A request comes, before anything is done with it.
    pub fn on_request(&self, request: &Request, now: impl FnOnce() -> Instant) {
        let pid = request.caller.pid;
        let known = place(&self.inodes, pid).load(Ordering::Relaxed);
        if pid == 0 || known >> 32 != u64::from(pid) {
            return;
        }
        let is_lookup = matches!(request.operation, Operation::Lookup { .. });
        let last = Instant(place(&self.times, pid).load(Ordering::Relaxed));
        if !is_lookup || now().since(last) > CALL_TIME {
            self.forget(pid);
        }
    }

    /// A name in a directory leads there.
    pub(crate) fn note(&self, pid: u32, name: (InodeId, &Name), ino: InodeId, now: Instant) {
        let tables = [&self.inodes, &self.names, &self.times];
        let values = [guess(pid, ino), guess(pid, name), now.0];
        for (table, value) in tables.into_iter().zip(values) {
            place(table, pid).store(value, Ordering::Relaxed);
        }
    }

    /// What the thread asks for next belongs to another call.
    pub(crate) fn forget(&self, pid: u32) {
        place(&self.inodes, pid).store(0, Ordering::Relaxed);
    }

    /// The last name that the thread has looked up is another one than this, and leads there.
    fn has_another(&self, pid: u32, name: (InodeId, &Name), ino: InodeId) -> bool {
        let get = |table| place(table, pid).load(Ordering::Relaxed);
        let last = get(&self.names);
        let is_its = last >> 32 == u64::from(pid) && last != guess(pid, name);
        is_its && get(&self.inodes) == guess(pid, ino)
    }
}

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
        let is_single = |attr: Attr| attr.nlink == 1 && attr.kind != FileKind::Directory;
        let (pid, name) = (request.caller.pid, (*parent, name));
        let lookups = env.readers.lookups();
        let has_passed =
            pid != 0 && attr.is_some_and(is_single) && lookups.has_another(pid, name, ino);
        match has_passed {
            true => lookups.forget(pid),
            false => lookups.note(pid, name, ino, env.now),
        }
        has_passed
    }
}
