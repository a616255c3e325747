//! Access times: kept in memory by who reads, told to the owner later, a few at each tick.
//!
//! Invariants
//! - No read waits for one, and none is told earlier than `patience` after its first read: however often a file is read
//!   meanwhile, that is one message.
//! - An owner takes a time only while the file is as this node knew it (`change`), and asks nobody's tokens back for it:
//!   no time set by utimes(2) after the read is lost by it. Other nodes show it when they next ask for attributes.
//! - An inode with a time to tell is not forgotten before; what has to be forgotten tells at once.
//! - But for that, no more than `IN_FLIGHT_MAX` wait for owners: a Commit never queues behind more.
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
/// Times on their way to owners, of a slice.
const IN_FLIGHT_MAX: usize = 8;
/// A time that the owner refuses for a change that the read came after is told so often in all.
const TELLS_MAX: u8 = 3;
/// An access time so far ahead was set, and a read takes it back; one that is less ahead is of another clock. In seconds.
const AHEAD_MAX: i64 = 2;
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
    /// So many at its head do not wait for `patience`, nor for a tick.
    hurried: usize,
    /// Told, and not answered.
    in_flight: usize,
    /// How many may still be told before the next tick.
    budget: usize,
}

/// A time as an owner was told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    at: Timestamp,
    change: u64,
}

/// What is known of reads of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Accessed {
    /// Newer than what the owner has told.
    at: Option<Timestamp>,
    /// It is in the queue, or its message is on its way.
    is_queued: bool,
    /// How often the owner has refused it for a change before.
    refusals: u8,
}

impl Accessed {
    /// It has to be told.
    pub(crate) const fn is_untold(self) -> bool {
        self.at.is_some()
    }

    /// The attributes become `new`: whoever has set a time knew better. What another node has read changes nothing else,
    /// and may be older than this.
    pub(crate) fn learn(&mut self, known: Option<&Attr>, new: &Attr) {
        let is_older = |known: &Attr| known.change == new.change && self.at > Some(new.atime);
        if !known.is_some_and(|known| known.atime == new.atime || is_older(known)) {
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
    /// whatever clock that has its time; a modification time that was set says nothing of when.
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
        let at = now.max(self.modified.map_or(attr.ctime, |at| at.max(attr.ctime)));
        let is_set_ahead = atime.secs.saturating_sub(at.secs) > AHEAD_MAX;
        (is_due && (at > atime || is_set_ahead)).then_some(at)
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
    pub(crate) fn note_access(&mut self, env: &Env<'_>, operation: &Operation, reader: u32) {
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
        // Elsewhere what is believed wrongly ends in a second, and a notice might make a read of somebody else's short (docs/tokens.md).
        if self.is_alone() {
            self.note_changed(ino, reader);
        }
    }

    /// Tells owners of reads, at a tick.
    pub(crate) fn tell_accesses(&mut self, env: &Env<'_>) {
        self.accesses.budget = PER_TICK;
        self.tell_due_accesses(env);
    }

    /// Tells all of it, however young: the daemon stops. What may not be on its way at once follows the answers.
    pub(crate) fn tell_all_accesses(&mut self, env: &Env<'_>) {
        self.accesses.hurried = self.accesses.queue.len();
        self.tell_due_accesses(env);
    }

    /// Some of what `Input::WriteBack` found has not reached its owner.
    pub fn is_telling(&self) -> bool {
        self.accesses.hurried > 0 || self.accesses.in_flight > 0
    }

    fn tell_due_accesses(&mut self, env: &Env<'_>) {
        if self.is_lapsed {
            return;
        }
        while self.accesses.in_flight < IN_FLIGHT_MAX {
            let accesses = &mut self.accesses;
            let Some((since, ino)) = accesses.queue.front().copied() else {
                accesses.hurried = 0;
                return;
            };
            let is_hurried = accesses.hurried > 0;
            let is_due = accesses.budget > 0 && env.now.since(since) >= accesses.patience;
            if !is_hurried && !is_due {
                return;
            }
            accesses.queue.pop_front();
            accesses.hurried = accesses.hurried.saturating_sub(1);
            let is_told = self.tell_access(ino);
            self.accesses.budget -= usize::from(is_told && !is_hurried);
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
        self.send_access(ino, Told { at, change });
        true
    }

    fn send_access(&mut self, ino: InodeId, told: Told) {
        let Told { at, change } = told;
        self.accesses.in_flight += 1;
        let op = Op::Accessed { ino, at, change };
        self.send_op(op, Continuation::Accessed(ino, told));
    }

    /// The owner has taken a time, or knows better.
    pub(crate) fn on_accessed(&mut self, env: &Env<'_>, ino: InodeId, told: Told, answer: &Answer) {
        self.accesses.in_flight -= 1;
        let new = match &answer.body {
            Body::Op(meta::Reply::Attr(new)) => Some(new),
            _ => None,
        };
        self.learn_taken(env, ino, told, new);
        self.tell_due_accesses(env);
    }

    fn learn_taken(&mut self, env: &Env<'_>, ino: InodeId, told: Told, new: Option<&Attr>) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let known_atime = inode.attr.map(|known| known.atime);
        // Changed before the read, and told after the owner was asked: by this node's Commit, as a rule.
        let is_before = |new: &Attr, at| {
            new.change > told.change
                && Some(new.atime) == known_atime
                && new.nlink > 0
                && new.mtime.max(new.ctime) <= at
        };
        if let (Some(at), Some(new)) = (inode.accessed.at, new)
            && is_before(new, at)
            && inode.accessed.refusals + 1 < TELLS_MAX
        {
            inode.accessed.refusals += 1;
            let change = new.change;
            return self.send_access(ino, Told { at, change });
        }
        inode.accessed.is_queued = false;
        inode.accessed.refusals = 0;
        if let (Some(new), Some(known)) = (new, &mut inode.attr)
            && known.change == new.change
        {
            known.atime = new.atime;
        }
        match inode.accessed.at {
            Some(at) if at != told.at => {
                inode.accessed.is_queued = true;
                self.accesses.queue.push_back((env.now, ino));
            }
            _ => inode.accessed.at = None,
        }
        self.drop_if_gone(env, ino);
    }
}
