//! Whole pages that went to the owner as pieces, because somebody waited, go to sectors later.
//!
//! Invariants
//! - `Slice::hasty_count` is the number of pages in `Inode::hasty` of all inodes.
//! - Such a page is clean: who writes to it takes it out (`Inode::forget_hasty`).

use data::SetAside;
use types::{ByteRange, InodeId, RangeMode, RangeSet};

use crate::batch::Batch;
use crate::env::Env;
use crate::goals::Purpose;
use crate::pages::PAGE_SIZE;
use crate::slice::Slice;

/// Pages of one slice that lie in metadata because somebody waited for them.
pub(crate) const HASTY_PAGES_MAX: usize = 256;
/// From so many on they go to sectors, without waiting for their age.
pub(crate) const HASTY_PAGES_MANY: usize = HASTY_PAGES_MAX / 2;

impl Slice {
    /// Metadata is no place for whole pages for long: those of `ino` that went as pieces because somebody
    /// waited become dirty again, in the background, and go to sectors together. Not before: each fsync would
    /// write all of them once more. True: some did.
    pub(crate) fn destage(&mut self, env: &Env<'_>, ino: InodeId) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return false;
        };
        // What a revoke lets go of stays where it is.
        if inode.hasty.is_empty() || inode.is_revoking() {
            return false;
        }
        if inode.is_freed || (inode.is_nameless() && inode.open_count == 0) {
            // Where its bytes lie is nobody's concern any more.
            self.hasty_count -= std::mem::take(&mut inode.hasty).len();
            return false;
        }
        let owner = env.owner(ino.shard());
        let whole = RangeSet::of(ByteRange::new(0, PAGE_SIZE));
        let mut has_some = false;
        while let Some(number) = inode.hasty.pop_first() {
            if !env.grants.reserve_spare(owner, 1) {
                inode.hasty.insert(number);
                break;
            }
            self.hasty_count -= 1;
            // A page that is not ours any more, or not cached, stays where it is. Behind the end there is nothing to move. And what of a page
            // was lost, as somebody was told, is not written as a part of the whole later on.
            let bytes = ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
            let is_within = bytes.begin < inode.size;
            if is_within
                && inode.covers(RangeMode::Write, &bytes)
                && !inode.pages.has_lost(&bytes)
                && inode.pages.redirty(number, &whole)
            {
                inode.note_reserved(&bytes, SetAside::plain(1), 1);
                has_some = true;
            } else {
                env.grants.unreserve(owner, SetAside::plain(1));
            }
        }
        if has_some {
            self.add_goal(env, ino, Purpose::Background);
        }
        has_some
    }

    /// What is to be looked at when it is old: here what could not be destaged.
    pub(crate) fn keep_on_dirty_list(&mut self, env: &Env<'_>, ino: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && !inode.hasty.is_empty()
        {
            inode.list_as_dirty(&mut self.dirty, env.now);
        }
    }
}

impl crate::inode::Inode {
    /// These batches are committed: which of their pages lie in metadata, to go to sectors later. So many pages of all inodes did, and do now.
    pub(crate) fn note_hasty(&mut self, mut count: usize, done: &[Batch]) -> usize {
        for batch in done {
            for number in &batch.numbers {
                if !batch.later().contains(number) && self.hasty.remove(number) {
                    count -= 1;
                }
            }
            for number in batch.later() {
                let page = ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
                if self.pages.is_busy(&page) {
                    // Written again meanwhile: it goes by itself, and a release waits for that.
                    continue;
                }
                count += usize::from(self.hasty.insert(*number));
            }
        }
        count
    }
}

impl Batch {
    /// Pages to be moved to sectors when it is committed.
    fn later(&self) -> &[u64] {
        match self.stays {
            true => &[],
            false => &self.whole,
        }
    }
}
