//! Opens as the owner must know them: a file without a name lives as long as somebody has it open, and whoever opened a
//! file never hears that it is gone.
//!
//! The owner keeps an inode without a name for the nodes that it *takes to have it open*. It takes a node so by what
//! each release of tokens says (`still_open`), by what the node itself removes, and by what the node lists when the owner
//! begins anew (`Slice::reassert`); `Op::Closed` takes that back.
//!
//! Invariants
//! - A file with a name is opened under an inode token: a removal by another node has to revoke it, and the release
//!   says that the file is open. A file without a name is opened only if the owner takes this node to have it open:
//!   it would go with the close of whoever has it open now, token or not.
//! - Who waits for its open counts as having the file open. So does, for a moment, whoever was shown the file by name,
//!   or is about to be, if the revoke overtook the answer: the open is on its way, and a kernel tries only once more
//!   after ESTALE. Symbolic links are read as files are opened, and kept for who was shown them.
//! - So does, for longer, a kernel that knows a file of which the owner keeps what a rename here took the last name of: a thread may have
//!   found that in it at any time before, and holds the inode until it is done. An unlink of what nobody has open keeps nothing.
//! - A name is not looked up while the last name of what it leads to may be on its way out, nor shown to lead to what is gone.
//! - While `Op::Closed` is on its way nothing is opened: the owner would take the older message for the newer state.
//!
//! Life of a file that another node removes while it is opened here
//! ```text
//! lookup --> (revoke) Released{still_open} --> open: waits for a token --> nlink 0, but taken to be open --> opened
//!                          '--> not opened for OPEN_AFTER_LOOKUP --> Closed
//! ```
//! What this deliberately does not do: tell the owner of each open. Tokens do.

use std::num::NonZeroU64;

use meta::Op;
use types::{Duration, FileKind, InodeId, Instant, ReleaseStamp};

use crate::env::Env;
use crate::fill::Foreseen;
use crate::inode::Inode;
use crate::names::{Arrival, Continuation};
use crate::request::{Handle, OpenFlags, Opened, Operation, Request};
use crate::slice::{OpenFile, Slice};

/// For so long after a file was shown by name its open may be on the way.
const OPEN_AFTER_LOOKUP: Duration = Duration::from_millis(200);
/// For so long at most a file that the owner keeps for this node's own doing is kept for opens that may be on their way, while the
/// kernel knows it: a thread that walks a path holds the inode that it found. A kernel that has seen the last name go forgets it with
/// the last of them, at once as a rule, so this only bounds what is kept for one that takes it to have another name.
const KEPT_WHILE_KNOWN_MAX: Duration = Duration::from_secs(3);
/// Names that are looked up again because what they led to has none any more, for each inode. One is the rule.
pub(crate) const UNNAMED_LOOKS_MAX: u16 = 30;

/// The owner takes a file to be open for the sake of opens that may be on their way.
#[derive(Debug)]
pub(crate) struct AwaitedOpen {
    /// It is looked at again `OPEN_AFTER_LOOKUP` later.
    since: Instant,
    ino: InodeId,
    /// It counts in `Inode::awaited_count`.
    holds: bool,
    /// While the kernel knows the inode it goes on until then.
    until: Instant,
}

impl AwaitedOpen {
    /// Somebody was shown the file a moment ago.
    pub(crate) const fn holding(since: Instant, ino: InodeId) -> Self {
        Self {
            since,
            ino,
            holds: true,
            until: since,
        }
    }
}

/// When something was shown last, if ever, in eight bytes: each inode has two.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Shown(Option<NonZeroU64>);

impl Shown {
    fn at(now: Instant) -> Self {
        Self(NonZeroU64::new(now.0))
    }

    pub(crate) fn last(self) -> Option<Instant> {
        self.0.map(|at| Instant(at.get()))
    }
}

impl Inode {
    /// Somebody's open waits for something.
    pub(crate) fn is_opening(&self) -> bool {
        let opens = |request: &Request| {
            matches!(
                request.operation,
                Operation::Open { .. } | Operation::Create { .. }
            )
        };
        let mut gated = self.gate.iter().flat_map(|state| state.parked());
        // An open that truncates is at the owner.
        !self.resizes.is_empty()
            || gated.any(opens)
            || self.parked.iter().any(|p| opens(&p.request))
    }

    /// An open need not fail: the file has a name, or the owner keeps it for this node.
    pub(crate) fn may_be_opened(&self) -> bool {
        let has_name = self.attr.is_none_or(|attr| attr.nlink > 0);
        !self.is_gone && (has_name || self.open_count > 0 || self.is_taken_open)
    }

    /// The owner has nothing of the inode any more. What has no bytes here, a directory that is removed or a pipe, nobody keeps
    /// for those who have it open or work in it: what it was is shown, without links. Answers whether it is such a one.
    pub(crate) fn is_removed_special(&mut self) -> bool {
        let attr = self.attr.as_mut();
        let Some(attr) = attr.filter(|attr| attr.kind != FileKind::File) else {
            return false;
        };
        attr.nlink = 0;
        true
    }

    /// A name is shown to lead here.
    pub(crate) fn note_shown(&mut self, now: Instant, pid: u32) {
        if self.shown_to != pid {
            self.shown_before = self.shown_at;
            self.shown_to = pid;
        }
        self.shown_at = Shown::at(now);
    }

    fn was_just_shown(&self, now: Instant) -> bool {
        self.may_be_awaited(now, self.shown_at)
    }

    /// Not counting what this thread was shown itself: it removes what it has looked up.
    pub(crate) fn was_just_shown_to_others(&self, now: Instant, pid: u32) -> bool {
        let shown = if self.shown_to == pid {
            self.shown_before
        } else {
            self.shown_at
        };
        self.may_be_awaited(now, shown)
    }

    /// What is asked for by itself after it was looked up, and must be there then: the bytes of a file, the target of a link.
    pub(crate) fn has_content(&self) -> bool {
        let kind = self.attr.map(|attr| attr.kind);
        matches!(kind, None | Some(FileKind::File | FileKind::Symlink))
    }

    /// Its last name is gone, as a removal or its attributes say, so that an answer in which a name leads here is of before: to be
    /// asked for anew. In the end it is shown all the same, should the owner know better.
    pub(crate) fn is_unnamed_again(&mut self) -> bool {
        // Attributes may be here before what this node's own change taught.
        let is_unnamed = self.is_nameless();
        self.unnamed_looks += u16::from(is_unnamed && self.unnamed_looks < UNNAMED_LOOKS_MAX);
        is_unnamed && self.unnamed_looks < UNNAMED_LOOKS_MAX
    }

    fn may_be_awaited(&self, now: Instant, shown: Shown) -> bool {
        let shown = shown.last();
        self.has_content() && shown.is_some_and(|at| now.since(at) < OPEN_AFTER_LOOKUP)
    }

    /// A revoke overtook the answer with its token: what that answer shows is shown under no token.
    pub(crate) fn note_overtaken(&mut self, now: Instant) {
        self.is_overtaken = true;
        self.shown_at = Shown::at(now);
    }

    /// What a release says now of whether the file is open.
    fn says_open(&self, now: Instant) -> bool {
        if self.holder.held().is_empty() && !self.is_overtaken {
            // The owner may have nothing on record, and does not listen then: what it took last stays true.
            return self.open_count > 0 || self.is_taken_open;
        }
        self.open_count > 0 || (self.closing_count == 0 && (self.may_come(now) || self.is_kept()))
    }

    /// A token under which nobody takes its last name without asking.
    fn has_names_token(&self) -> bool {
        self.inode_mode().is_some() || self.directory_mode().is_some()
    }

    /// It has a name, and who takes that waits for a release.
    pub(crate) fn is_surely_named(&self) -> bool {
        !self.is_nameless() && !self.is_name_unsure && self.has_names_token()
    }

    /// It lost its last name, and the owner keeps it here for opens that may be on their way.
    const fn is_kept(&self) -> bool {
        self.is_unnamed && self.is_taken_open && self.awaited_count > 0
    }

    /// Its last name is gone, as far as is known here.
    pub(crate) fn is_nameless(&self) -> bool {
        self.is_gone || self.is_unnamed || self.attr.is_some_and(|attr| attr.nlink == 0)
    }

    /// An open may be on its way. While the owner is being told of a close it waits: the older message must not be news
    /// of what comes after it.
    fn may_come(&self, now: Instant) -> bool {
        !self.is_gone && (self.is_opening() || self.was_just_shown(now))
    }

    /// The owner begins anew and takes this node's word for what it has open, which stays said until a release or
    /// `Op::Closed`. Answers whether that is so here, and whether only an open that may be on its way makes it so, which
    /// `Slice::end_awaited_opens` has to end.
    pub(crate) fn reassert_open(&mut self, now: Instant) -> (bool, bool) {
        // Under an inode token who is shown a name is counted by the release of that.
        let is_awaited = self.is_opening() || (self.inode_mode().is_none() && self.may_come(now));
        let may_stay = self.closing_count == 0 && (self.is_taken_open || is_awaited);
        let is_open = self.open_count > 0 || may_stay;
        let is_new = is_open && !self.is_taken_open;
        self.is_taken_open = is_open;
        (is_open, is_new && self.open_count == 0)
    }
}

impl Slice {
    /// Finishes a release of tokens, and says whether the file is open.
    pub(crate) fn finish_release_of(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        release: u64,
    ) -> token::Finish {
        let inode = self.inode(ino);
        let still_open = inode.says_open(env.now);
        // Then it had a name until now, and who takes that waits for this release.
        let is_named = inode.is_surely_named();
        let finish = inode.holder.finish_release(release, still_open);
        if matches!(finish, token::Finish::Release(_)) {
            let was_taken_open = std::mem::replace(&mut inode.is_taken_open, still_open);
            inode.is_overtaken = false;
            if still_open && (inode.open_count == 0 || inode.may_come(env.now)) {
                self.await_open(env, ino);
            } else if was_taken_open && !still_open && !is_named {
                // Nobody repeats a release that is lost with a link or an owner, and nobody revokes what has no name: the owner would
                // keep the file as long as this node lives.
                self.send_closed(ino);
            }
            let inode = self.inode(ino);
            inode.is_name_unsure &= inode.inode_mode().is_some();
        }
        finish
    }

    /// An open may be on its way. Somebody's close does not end that where the name was just shown: another may come yet.
    fn await_open(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inode(ino);
        let holds = inode.was_just_shown(env.now);
        inode.awaited_count += u32::from(holds);
        self.awaited_opens.push_back(AwaitedOpen {
            since: env.now,
            ino,
            holds,
            until: env.now,
        });
    }

    /// Those whose open did not come are told to be closed.
    pub(crate) fn end_awaited_opens(&mut self, env: &Env<'_>) {
        while let Some(awaited) = self.awaited_opens.front() {
            if env.now.since(awaited.since) < OPEN_AFTER_LOOKUP {
                break;
            }
            let Some(awaited) = self.awaited_opens.pop_front() else {
                break;
            };
            let ino = awaited.ino;
            let Some(inode) = self.inodes.get_mut(&ino) else {
                continue;
            };
            if env.now < awaited.until && inode.lookup_count > 0 {
                let since = env.now;
                self.awaited_opens
                    .push_back(AwaitedOpen { since, ..awaited });
                continue;
            }
            inode.awaited_count = inode.awaited_count.saturating_sub(u32::from(awaited.holds));
            if inode.open_count == 0 && inode.is_opening() {
                self.await_open(env, ino);
                continue;
            }
            self.tell_closed(env, ino);
            self.drop_if_gone(env, ino);
        }
    }

    /// Tells the owner that nobody has the file open here, if it takes this node to have it open and hears of the end of
    /// that in no other way: under an inode token it hears with the release of that. Who waits for its open closes it
    /// later.
    ///
    /// A token that came without attributes may be one of a file whose last name went just before: it was asked for with a name that led
    /// to another file when it was looked up. Nobody ever revokes that, so it is given back, unless attributes have come since.
    pub(crate) fn tell_closed(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inode(ino);
        let is_untold = inode.is_nameless() || !inode.has_names_token();
        let is_closed = inode.open_count == 0 && !inode.is_opening() && inode.awaited_count == 0;
        if !inode.is_taken_open || !is_closed {
            return;
        }
        if is_untold {
            return self.send_closed(ino);
        }
        if !inode.is_name_unsure {
            return;
        }
        let is_quiet = inode.is_unused() && !inode.was_just_shown(env.now);
        if !is_quiet || self.is_lapsed {
            // Looked at again.
            if !self.awaited_opens.iter().any(|awaited| awaited.ino == ino) {
                self.await_open(env, ino);
            }
            return;
        }
        let plan = self.inode(ino).holder.give_up(ino);
        if let Some(plan) = plan {
            self.begin_release(env, ino, plan);
        }
        // A release may be lost.
        self.send_closed(ino);
    }

    /// Tells the owner that nobody has the inode open here. Opens wait until it has heard.
    pub(crate) fn send_closed(&mut self, ino: InodeId) {
        let mut after = ReleaseStamp::LAST;
        let counted = self.inodes.get_mut(&ino).map(|inode| {
            inode.closing_count += 1;
            inode.is_taken_open = false;
            after = inode.holder.last_release();
            ino
        });
        self.send_op(Op::Closed { ino, after }, Continuation::Closed(counted));
    }

    /// The owner has heard, and may have freed it by that.
    pub(crate) fn on_closed(&mut self, env: &Env<'_>, ino: InodeId, is_freed: bool) {
        // It was not dropped meanwhile: it counts them.
        let inode = self.inode(ino);
        inode.closing_count -= 1;
        inode.is_freed |= is_freed;
        self.retry(env, ino);
        self.drop_if_gone(env, ino);
    }

    /// What this node's own change of names taught of an inode.
    pub(crate) fn learn_lesson(&mut self, env: &Env<'_>, arrival: &Arrival) {
        let ino = arrival.ino;
        let Some(inode) = self.inodes.get_mut(&ino) else {
            if arrival.is_kept_open {
                self.send_closed(ino);
            }
            if !arrival.is_removal {
                self.note_changed(ino, arrival.changer);
            }
            return;
        };
        // It may have been moved: `..` is shown with its names.
        inode.names_epoch += 1;
        if arrival.kind == FileKind::Directory {
            // A name of it has changed by a rename from elsewhere.
            inode.forget_entries();
        }
        match &arrival.attr {
            Some(attr) => inode.learn_attr(attr),
            None => inode.note_changed_unseen(),
        }
        if !arrival.is_removal {
            return self.note_changed(ino, arrival.changer);
        }
        if arrival.is_kept_open {
            return self.keep_or_close(env, ino, arrival.changer);
        }
        // Of a directory the owner hears nothing with its removal. What it took us to have open once it does still.
        let is_directory = inode.directory_mode().is_some()
            || inode.attr.is_some_and(|a| a.kind == FileKind::Directory);
        if is_directory {
            inode.is_gone |= inode.open_count == 0;
            inode.attr.iter_mut().for_each(|attr| attr.nlink = 0);
        }
        self.tell_closed(env, ino);
        self.drop_if_gone(env, ino);
    }

    /// The last name of a file went by this node's own doing, and the owner takes us to have it open: so it may stay if it
    /// is, or may be in a moment, for the kernel knows it.
    pub(crate) fn keep_or_close(&mut self, env: &Env<'_>, ino: InodeId, remover: u32) {
        let inode = self.inode(ino);
        if let Some(attr) = &mut inode.attr {
            attr.nlink = 0;
        }
        inode.is_unnamed = true;
        inode.is_taken_open = true;
        if inode.lookup_count > 0 && inode.has_content() {
            inode.awaited_count += 1;
            return self.awaited_opens.push_back(AwaitedOpen {
                until: env.now + KEPT_WHILE_KNOWN_MAX,
                ..AwaitedOpen::holding(env.now, ino)
            });
        }
        if inode.is_opening() || inode.was_just_shown_to_others(env.now, remover) {
            return self.await_open(env, ino);
        }
        if inode.open_count > 0 {
            return;
        }
        inode.is_gone = true;
        self.send_closed(ino);
    }

    /// Opens a handle on `ino`.
    pub(crate) fn open_handle(&mut self, ino: InodeId, flags: OpenFlags) -> Opened {
        let handle = Handle(self.draw_id());
        let heard = self.inode(ino).errors.heard_at_open();
        let file = OpenFile {
            flags,
            reading: crate::reading::Reading::default(),
            sample: crate::readers::Sample::default(),
            heard,
        };
        self.handles.insert(handle, file);
        if std::mem::take(&mut self.inode(ino).foreseen) == Foreseen::Filled && flags.read {
            // No READ will say that it is read.
            self.note_watched(ino);
        }
        let inode = self.inode(ino);
        inode.open_count += 1;
        inode.activity.is_open = true;
        if flags.write
            && let Some(state) = &mut inode.gate
        {
            state.set_mappable();
        }
        inode.writer_count += u32::from(flags.write);
        inode.exec_count += u32::from(flags.exec);
        // Every writable open is direct (DESIGN.md section 7); readers are cached under read tokens, but for those of
        // large files (`readers`).
        let direct = flags.write || flags.direct;
        Opened {
            handle,
            direct,
            keep_cache: !direct,
            parallel_writes: direct,
        }
    }
}
