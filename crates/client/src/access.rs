//! Access times: kept in memory by who reads, told to the owner later, a few at each tick.
//!
//! Invariants
//! - No read waits for one, and none is told earlier than `patience` after its first read: however often a file is read
//!   meanwhile, that is one message.
//! - An owner takes a time only while the file is as this node knew it (`change`), and asks nobody's tokens back for it:
//!   no time set by utimes(2) after the read is lost by it. Other nodes show it when they next ask for attributes.
//! - An inode with a time to tell is not forgotten before; what has to be forgotten tells at once.
//!
//! What this deliberately does not do: keep a time over a crash, or over a change of the file by another node within
//! `patience`. With relatime nobody asks for more: the file has been changed since.

use std::collections::VecDeque;

use meta::Op;
use types::{Attr, Duration, InodeId, Instant, Timestamp};

use crate::env::Env;
use crate::inode::Inode;
use crate::message::{Answer, Body};
use crate::names::Continuation;
use crate::request::Operation;
use crate::slice::Slice;

/// Times that a slice tells at one tick.
const PER_TICK: usize = 32;
/// With relatime a time older than this goes on, whatever has changed; in seconds.
const RELATIVE_AGE_MAX: i64 = 24 * 3600;

/// Which reads change a file's access time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AccessTimes {
    /// None (noatime, and mounts for reading only).
    #[default]
    Never,
    /// The first one after a change of the file, and one a day (relatime).
    Relative,
    /// All that reach the daemon: of each open that the kernel caches the first one (strictatime).
    Strict,
}

/// What a slice knows of times that it has to tell.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    kept: AccessTimes,
    has_directories: bool,
    patience: Duration,
    /// Each inode once, with the time of its first read; oldest first.
    queue: VecDeque<(Instant, InodeId)>,
}

/// What is known of reads of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Accessed {
    /// Newer than what the owner has told.
    at: Option<Timestamp>,
    /// It is in the queue, or its message is on its way.
    is_queued: bool,
}

impl Accessed {
    /// It has to be told.
    pub(crate) const fn is_untold(self) -> bool {
        self.at.is_some()
    }

    /// The attributes become `new`: whoever has set a time knew better.
    pub(crate) fn learn(&mut self, known: Option<&Attr>, new: &Attr) {
        if known.is_none_or(|known| known.atime != new.atime) {
            self.at = None;
        }
    }

    /// A time was set.
    pub(crate) const fn forget(&mut self) {
        self.at = None;
    }

    /// The access time to show where the owner has told `atime`.
    pub(crate) fn shown(self, atime: Timestamp) -> Timestamp {
        self.at.unwrap_or(atime)
    }
}

impl Inode {
    /// The access time that a read makes now, if it makes another. It is never before the change that was read, by
    /// whatever clock that has its time.
    fn due_access(&self, kept: AccessTimes, now: Timestamp) -> Option<Timestamp> {
        let attr = self.attr.as_ref()?;
        let atime = self.accessed.shown(attr.atime);
        let changed = attr.mtime.max(attr.ctime);
        let changed = self.modified.map_or(changed, |at| at.max(changed));
        let is_due = match kept {
            AccessTimes::Never => false,
            AccessTimes::Strict => true,
            AccessTimes::Relative => atime <= changed || now.secs - atime.secs >= RELATIVE_AGE_MAX,
        };
        let at = now.max(changed);
        (is_due && at > atime).then_some(at)
    }
}

impl Slice {
    /// Has reads change access times; `has_directories`: of directories, too. A time waits for `patience` before it is told.
    /// To be called before the first request.
    pub fn keep_access_times(
        &mut self,
        kept: AccessTimes,
        has_directories: bool,
        patience: Duration,
    ) {
        self.accesses.kept = kept;
        self.accesses.has_directories = has_directories;
        self.accesses.patience = patience;
    }

    /// Whether the next read of `ino` should come here although the kernel has its pages.
    pub(crate) fn wants_read(&mut self, env: &Env<'_>, ino: InodeId) -> bool {
        let kept = self.accesses.kept;
        kept != AccessTimes::Never && self.inode(ino).due_access(kept, env.timestamp).is_some()
    }

    /// Notes that something is read.
    pub(crate) fn note_access(&mut self, env: &Env<'_>, operation: &Operation) {
        let kept = self.accesses.kept;
        if kept == AccessTimes::Never {
            return;
        }
        let (ino, handle) = match operation {
            Operation::Read { ino, handle, .. } => (*ino, Some(handle)),
            Operation::ReadDir { ino, .. } if self.accesses.has_directories => (*ino, None),
            Operation::ReadLink { ino } => (*ino, None),
            _ => return,
        };
        let inode = self.inodes.get_mut(&ino);
        let due = inode.and_then(|inode| Some((inode.due_access(kept, env.timestamp)?, inode)));
        let Some((at, inode)) = due else { return };
        let file = handle.and_then(|handle| self.handles.get(handle));
        if file.is_some_and(|file| file.flags.no_atime) {
            return;
        }
        inode.accessed.at = Some(at);
        if !inode.accessed.is_queued {
            inode.accessed.is_queued = true;
            self.accesses.queue.push_back((env.now, ino));
        }
    }

    /// Tells owners of reads, at a tick.
    pub(crate) fn tell_accesses(&mut self, env: &Env<'_>) {
        if self.is_lapsed {
            return;
        }
        let mut count = 0;
        while count < PER_TICK {
            let Some((since, ino)) = self.accesses.queue.front().copied() else {
                return;
            };
            if env.now.since(since) < self.accesses.patience {
                return;
            }
            self.accesses.queue.pop_front();
            count += usize::from(self.tell_access(ino));
        }
    }

    /// Tells all of it now: the daemon stops.
    pub(crate) fn tell_all_accesses(&mut self) {
        for (_, ino) in std::mem::take(&mut self.accesses.queue) {
            self.tell_access(ino);
        }
    }

    /// Tells the owner of reads of `ino`, if there were any; whether it did.
    pub(crate) fn tell_access(&mut self, ino: InodeId) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return false;
        };
        let told = match (&inode.attr, inode.accessed.at) {
            (Some(attr), Some(at)) if attr.nlink > 0 => Some((at, attr.change)),
            _ => None,
        };
        let Some((at, change)) = told else {
            inode.accessed = Accessed::default();
            return false;
        };
        let op = Op::Accessed { ino, at, change };
        self.send_op(op, Continuation::Accessed(ino, at));
        true
    }

    /// The owner has taken a time, or knows better.
    pub(crate) fn on_accessed(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        told: Timestamp,
        answer: &Answer,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        inode.accessed.is_queued = false;
        if let Body::Op(meta::Reply::Attr(new)) = &answer.body
            && let Some(known) = &mut inode.attr
            && known.change == new.change
        {
            known.atime = new.atime;
        }
        match inode.accessed.at {
            Some(at) if at > told => {
                inode.accessed.is_queued = true;
                self.accesses.queue.push_back((env.now, ino));
            }
            _ => inode.accessed.at = None,
        }
        self.drop_if_gone(env, ino);
    }
}
