//! Appends that go elsewhere than the kernel thinks, for its size of the file is old.
//!
//! Where the kernel thinks that an append goes, it writes dirty pages back before it asks, and drops them. Where the append
//! goes the daemon has it drop them afterwards (`Gate::begin_drop`), and it writes the dirty ones back: as they were before
//! the append, up to its own end of the file, which may lie behind the new bytes if another node has cut the file. So what
//! it writes back there is left out, until the page was READ again or the drop is over.

use types::{ByteRange, Errno, InodeId, Span};

use crate::env::Env;
use crate::request::{Response, Ticket};
use crate::slice::{Slice, Waiting};
use crate::tokens::cached_pages;

/// Bytes that cannot be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoRoom {
    /// Tell this.
    None(Errno),
    /// Park it: there will be sectors or frames.
    Yet(Waiting),
}

impl Slice {
    /// Stores what is written back, without the bytes that the kernel's pages cannot show yet.
    pub(crate) fn store_shown(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: ByteRange,
        source: Span,
    ) -> Result<(), NoRoom> {
        let offset = |bytes: u64| u32::try_from(bytes).expect("within the payload");
        let shown = self.inode(ino).unshown.missing(&range);
        for part in shown.ranges() {
            let source = source.part(offset(part.begin - range.begin), offset(part.length()));
            self.store(env, ino, *part, source, true)?;
        }
        Ok(())
    }

    /// Answers a write whose bytes are where it wants them, or that failed: after a drop if it is a misplaced append.
    pub(crate) fn reply_written(&mut self, env: &Env<'_>, ticket: Ticket, response: Response) {
        match self.misplaced.remove(&ticket) {
            Some((ino, range)) => self.drop_placed(env, ino, range, (ticket, response)),
            None => self.reply(ticket, response),
        }
    }

    /// Has the kernel drop the pages of an append to `range`, whose tokens stay, and answers then.
    pub(crate) fn drop_placed(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: ByteRange,
        answer: (Ticket, Response),
    ) {
        let inode = self.inode(ino);
        let pages = cached_pages(inode, &range, false);
        if pages.is_empty() {
            inode.unshown.remove(range);
            return self.reply(answer.0, answer.1);
        }
        let id = self.gate_of(ino).add_placed(range, answer);
        self.gate_call(env, ino, |gate, out| gate.begin_drop(id, pages, out));
    }
}
