//! What the kernel is shown, and for how long it may believe that.
//!
//! The kernel takes an answer's attributes in the thread that asked, whenever that runs again. Meanwhile another thread's call may change
//! them and be answered. After a write, a truncation or a removal the kernel lets no answer in that was asked for before; after a rename,
//! a new name in a directory, an extended attribute or a hole it only drops what it has, and believes the late answer for as long as
//! that says. So where attributes were shown to another thread than the one whose call changes them, the kernel is told to drop them,
//! which makes answers under way void. A thread that has asked has taken its answer before it calls again.
//!
//! Names are told with a time-out that is waited out when the token of their directory goes ([`Shown`]). No notification could drop them: INC_EPOCH has the
//! kernel take directories that are in use for removed ones, and detach what is mounted below them; INVAL_ENTRY waits for the directory's lock,
//! which is held by calls that may wait for the revoke (docs/decisions/0031). So that nobody waits long for somebody who has just begun, the time-out
//! is a part of the time for which this node has had the directory for itself.

use rustc_hash::FxHashMap;
use types::{Duration, FileKind, InodeId, Instant, limits};

use crate::env::Env;
use crate::inode::Inode;
use crate::names::TIMEOUT_NS;
use crate::request::{Entry, Notice, Response};
use crate::slice::{Effect, NotifyId, Slice};

/// [`Inode::believed_by`]: no thread.
pub(crate) const NOBODY: u32 = 0;
/// [`Inode::believed_by`]: several threads, or one of which the number is not known.
pub(crate) const SEVERAL: u32 = u32::MAX;

/// The longest time-out of a name where other nodes may come, and the shortest that is worth it.
const NAMES_MAX: Duration = Duration::from_millis(250);
const NAMES_MIN: Duration = Duration::from_millis(50);
/// It is such a part of the time since the directory's token came.
const NAMES_PART: u64 = 8;
/// A thread of the kernel that takes an answer so late has the time-out of it run so much longer.
const LATE: Duration = Duration::from_millis(limits::KERNEL_LINK_MS);
/// The longest time for which a name is believed that was told now.
const BELIEVED_MAX: Duration = Duration(NAMES_MAX.0 + LATE.0);

/// What is left of a name's time-out when its answer has waited for so long: nothing of one that is not worth it.
pub(crate) const fn left_of(timeout_ns: u64, waited: Duration) -> u64 {
    match timeout_ns.saturating_sub(waited.0) {
        left if left < NAMES_MIN.0 => 0,
        left => left,
    }
}

/// Until when the kernel may believe names of directories: those of which it was told any lately.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    until: FxHashMap<InodeId, Instant>,
    /// Listings of these that are not written yet: their names are believed from then on.
    unwritten: FxHashMap<InodeId, u32>,
    /// When a name of these has moved to another directory last.
    left: FxHashMap<InodeId, Instant>,
}

/// Names of a directory from which others have moved so lately are not believed: they may move, too, and who changes the other directory would
/// wait for them, each time.
const LEFT_AGE_MAX: Duration = Duration::from_secs(10);
/// Directories that are remembered for it.
const LEFT_COUNT_MAX: usize = 4096;

impl Shown {
    /// Names of the directory may be believed until then, or longer.
    pub(crate) fn note(&mut self, directory: InodeId, until: Instant) {
        let known = self.until.entry(directory).or_insert(until);
        *known = until.max(*known);
    }

    /// Until when names of the directory may be believed; none: no longer.
    fn until(&self, directory: InodeId, now: Instant) -> Option<Instant> {
        let until = self.until.get(&directory).copied();
        until.filter(|until| *until > now)
    }

    /// A listing of the directory is on its way to the kernel.
    pub(crate) fn begin_answer(&mut self, directory: InodeId) {
        *self.unwritten.entry(directory).or_default() += 1;
    }

    /// It is written.
    fn end_answer(&mut self, directory: InodeId) {
        if let Some(count) = self.unwritten.get_mut(&directory) {
            *count -= 1;
            if *count == 0 {
                self.unwritten.remove(&directory);
            }
        }
    }

    /// Some of its listings are not written yet.
    fn is_unwritten(&self, directory: InodeId) -> bool {
        self.unwritten.contains_key(&directory)
    }

    /// Time has passed.
    fn forget(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
        let is_recent = |at: &Instant| now.since(*at) < LEFT_AGE_MAX;
        self.left.retain(|_, at| is_recent(at));
    }

    /// A name of the directory has moved to another one.
    fn note_left(&mut self, directory: InodeId, now: Instant) {
        if self.left.len() < LEFT_COUNT_MAX || self.left.contains_key(&directory) {
            self.left.insert(directory, now);
        }
    }
}

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

    /// No other node ever comes.
    pub(crate) const fn is_alone(&self) -> bool {
        self.timeout_ns > TIMEOUT_NS
    }

    /// The kernel sends writes without waiting for their answers (FUSE_ASYNC_DIO). It takes its attributes for old when it sends one, not when that is
    /// answered: what it was shown between the two it would believe.
    pub fn expect_async_writes(&mut self) {
        self.has_async_writes = true;
    }

    /// For how long the kernel may keep names of `parent`, of which it is told some.
    pub(crate) fn entry_timeout(&mut self, env: &Env<'_>, parent: InodeId) -> u64 {
        let Some(directory) = self.inodes.get(&parent).filter(|d| d.may_keep_names()) else {
            return 0;
        };
        if self.is_alone() {
            return self.timeout_ns;
        }
        if self.shown.left.contains_key(&parent) {
            return 0;
        }
        let part = Duration(env.now.since(directory.names_since).0 / NAMES_PART);
        let timeout = part.min(NAMES_MAX).min(Duration(self.timeout_ns));
        if timeout < NAMES_MIN {
            return 0;
        }
        self.shown.note(parent, env.now + timeout + LATE);
        timeout.0
    }

    /// Names have come to the directory that the kernel believes for as long as it may believe any.
    fn note_longest(&mut self, env: &Env<'_>, directory: InodeId) {
        if !self.is_alone() {
            self.shown.note(directory, env.now + BELIEVED_MAX);
        }
    }

    /// A listing of the directory is written: its names are believed from now on, and whoever waits for that waits from now on.
    pub(crate) fn note_written(&mut self, env: &Env<'_>, directory: InodeId) {
        self.shown.end_answer(directory);
        self.note_longest(env, directory);
        for (until, id) in &mut self.awaited_names {
            if self
                .notifies
                .get(id)
                .is_some_and(|(ino, _)| *ino == directory)
            {
                *until = (*until).max(env.now + BELIEVED_MAX);
            }
        }
    }

    /// A name of `directory` has moved to another directory, for which one has come where they were exchanged: until when the kernel may believe what it
    /// was told of it.
    pub(crate) fn note_moved_out(
        &mut self,
        env: &Env<'_>,
        directory: InodeId,
        is_exchange: bool,
    ) -> Instant {
        if self.is_alone() {
            return env.now;
        }
        self.shown.note_left(directory, env.now);
        if is_exchange || self.shown.is_unwritten(directory) {
            self.note_longest(env, directory);
        }
        self.shown.until(directory, env.now).unwrap_or(env.now)
    }

    /// Names of a directory whose token goes are waited for until the kernel believes none; answers that are not written yet tell it some later.
    pub(crate) fn await_names(&mut self, env: &Env<'_>, ino: InodeId, id: NotifyId) {
        let until = self.shown.until(ino, env.now);
        let inode = self.inode(ino);
        // Of what the kernel has forgotten no name is left.
        let is_known = inode.lookup_count > 0 || ino == InodeId::ROOT;
        if !is_known || inode.goes_silently {
            return self.on_notified(env, id);
        }
        let is_unwritten = self.shown.is_unwritten(ino) && !self.is_lapsed;
        let until = match is_unwritten {
            true => Some(env.now + BELIEVED_MAX),
            false => until,
        };
        match until {
            Some(until) => self.awaited_names.push((until, id)),
            None => self.on_notified(env, id),
        }
    }

    /// Time has passed.
    pub(crate) fn end_beliefs(&mut self, env: &Env<'_>) {
        self.shown.forget(env.now);
        let is_over = |until: &Instant| *until <= env.now;
        let names = self
            .awaited_names
            .extract_if(.., |(until, _)| is_over(until));
        for (_, id) in names.collect::<Vec<_>>() {
            let directory = self.notifies.get(&id).map(|(ino, _)| *ino);
            let is_unwritten = directory.is_some_and(|ino| self.shown.is_unwritten(ino));
            match is_unwritten && !self.is_lapsed {
                true => self.awaited_names.push((env.now + BELIEVED_MAX, id)),
                false => self.on_notified(env, id),
            }
        }
        let answers = self
            .late_answers
            .extract_if(.., |(until, _)| is_over(until));
        for (_, ticket) in answers.collect::<Vec<_>>() {
            self.reply(ticket, Response::Done);
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

/// An answer that waits: when it is written nobody may wait any more for the kernel to believe its name no more.
pub(crate) fn told_once(mut response: Response) -> Response {
    if let Response::Created(entry, _) = &mut response {
        entry.entry_timeout_ns = 0;
    }
    response
}
