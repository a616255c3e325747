//! Small files whose bytes are here already are put into the kernel's page cache before their open is answered: their reader asks for nothing.
//!
//! A READ of a small file is a request like any other, with two changes of threads, and brings what the pagepool often has when the
//! file is opened: `siblings` has loaded it, or it was read or written here before. The kernel takes the bytes with one notification
//! (FUSE_NOTIFY_STORE) without a change of threads, and believes its attributes as before as long as the file does not get longer by it.
//! docs/decisions/0028 has why nothing waits for it and nothing overtakes it.
//!
//! ```text
//! loaded ahead --Fill--> Filled                                    (whoever opens it meanwhile is answered then)
//! opened, not in the kernel --Fill--> Filled --> the open is answered
//! ```
//! Invariants
//! - What is put there is what a READ would be answered with now, under the same tokens, and the kernel drops it for the same reasons.
//! - Nobody has the file open here when that begins, but for the open that waits for it, and opens that come meanwhile are answered after it: no request of
//!   anybody has a folio of the file, so the kernel takes the bytes without waiting for an answer of ours. Any thread may do it.
//! - Until the kernel has returned no token of the file goes, nothing of it is notified, and neither its bytes nor its size change (rule R13, `Gate`).
//! - A read that changes the access time comes as a READ.
//!
//! What this deliberately does not do: files that the kernel may have pages of, for what it drops for want of memory it does not tell; files
//! of which some page is not here, for their READ is on its way to a disk anyway.

use types::{ByteRange, InodeId, RangeMode};

use crate::env::Env;
use crate::inode::Inode;
use crate::pages::Found;
use crate::request::{Opened, Response, Ticket};
use crate::revoke::round_out;
use crate::slice::{Effect, Slice};

/// Files up to this size are put into the kernel whole.
const SIZE_MAX: u64 = 64 << 10;

/// What a kernel has taken of the bytes that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filled {
    /// All.
    Whole,
    /// Not all of them.
    Some,
    /// None: it does not know the file.
    Nothing,
}

/// A file that is loaded for who will open it soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Foreseen {
    /// It is not.
    #[default]
    No,
    /// It is being loaded, and nobody has opened it.
    Loaded,
    /// The kernel has it, and nobody has opened it.
    Filled,
}

impl Inode {
    /// The bytes to put into the kernel, if nobody has it open but the `open_count` whose answers wait for that.
    fn content_to_fill(&self, open_count: u32) -> Option<ByteRange> {
        let is_small = (1..=SIZE_MAX).contains(&self.size);
        let is_alone = self.open_count == open_count && self.writer_count == 0;
        // A change of size under way would be answered while older bytes are still on their way.
        let is_quiet = self.gate.is_none() && self.parked.is_empty() && self.resizes.is_empty();
        if !is_small || !is_alone || !is_quiet || self.may_have_pages || !self.is_attr_current() {
            return None;
        }
        let content = ByteRange::new(0, self.size);
        self.covers(RangeMode::Read, &round_out(&content))
            .then_some(content)
    }
}

impl Slice {
    /// The kernel may be given bytes of files. To be called before the first request.
    pub const fn fill_kernel(&mut self) {
        self.fills_kernel = true;
    }

    /// Lets revokes and changes overtake bytes that are on their way into the page cache: for simulators, whose checkers must notice.
    pub const fn overtake_fills(&mut self) {
        self.overtakes_fills = true;
    }

    /// Puts a file that was just `opened` into the kernel, if that is of use; its open is answered after it then.
    pub(crate) fn fill(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        ticket: Ticket,
        opened: Opened,
    ) -> bool {
        // An open that drops what the kernel has would drop these.
        if opened.direct || !opened.keep_cache || !self.begin_fill(env, ino, 1) {
            return false;
        }
        self.gate_of(ino)
            .fill_then((ticket, Response::Opened(opened)));
        // No READ will say that it is read; those whose READs tell the order are not filled.
        self.note_watched(ino);
        true
    }

    fn begin_fill(&mut self, env: &Env<'_>, ino: InodeId, open_count: u32) -> bool {
        // The reads of some files tell whether others are loaded.
        if self.is_lapsed || !self.fills_kernel || self.is_telling_order(ino) {
            return false;
        }
        let inode = self.inode(ino);
        let Some(content) = inode.content_to_fill(open_count) else {
            return false;
        };
        let Found::All(spans) = inode.pages.read(&content, env.pool) else {
            return false;
        };
        // As for a READ.
        inode.may_have_pages = true;
        inode.has_read_pages = true;
        inode.unshown.remove(round_out(&content));
        self.gate_of(ino).begin_fill();
        self.out.push(Effect::Fill(ino, spans));
        true
    }

    /// Something of a file that is loaded for who will open it soon has come.
    pub(crate) fn fill_foreseen(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get(&ino);
        if inode.is_some_and(|inode| inode.foreseen == Foreseen::Loaded) {
            self.fill_ahead(env, ino);
        }
    }

    /// A file that is here will be opened soon.
    pub(crate) fn fill_ahead(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inode(ino);
        let is_known = inode.lookup_count > 0 && inode.may_be_opened();
        if is_known && !self.wants_read(env, ino) && self.begin_fill(env, ino, 0) {
            self.inode(ino).foreseen = Foreseen::Filled;
        }
    }

    /// The kernel has returned from a fill: who has waited for it goes on.
    pub(crate) fn on_filled(&mut self, env: &Env<'_>, ino: InodeId, filled: Filled) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        // Where it does not know the inode the answer that shows it may be on its way: again when somebody opens it. And it may have forgotten
        // the one that it knew before it took this.
        inode.may_have_pages = filled != Filled::Nothing && inode.lookup_count > 0;
        inode.has_read_pages |= inode.may_have_pages;
        if filled == Filled::Nothing {
            inode.foreseen = Foreseen::No;
        }
        self.filled_file_count += u64::from(filled == Filled::Whole);
        let Some(state) = inode.gate.as_mut() else {
            return;
        };
        let opens = state.take_filled();
        self.gate_call(env, ino, |gate, out| gate.end_fill(out));
        for (ticket, response) in opens {
            self.answer_open(env, ino, ticket, response);
        }
        // Its last name may have gone meanwhile.
        self.drop_if_gone(env, ino);
    }
}
