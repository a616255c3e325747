//! Frames that the pagepool wants back, so that whole slabs come together again.

use types::{ByteRange, FrameRef, InodeId};

use crate::env::Env;
use crate::goals::Purpose;
use crate::pages::{GivenUp, PAGE_SIZE};
use crate::slice::Slice;

/// Of so many frames one is to be free before pages are moved instead of evicted.
const MOVE_PART: u64 = 16;

/// A frame that is wanted, and the page that it was put into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The frame.
    pub frame: FrameRef,
    /// The inode whose page it was given to last.
    pub ino: InodeId,
    /// Which page.
    pub page: u64,
}

impl Slice {
    /// Evicts or moves what lies in the frames. What an answer or a disk write holds stays; the driver asks
    /// again. What is dirty and cannot be moved is written back.
    pub(crate) fn give_up(&mut self, env: &Env<'_>, frames: &[Wanted]) {
        let (total, free) = env.pool.frame_counts();
        let may_move = free > total / MOVE_PART;
        let mut dirty: Vec<InodeId> = Vec::new();
        for wanted in frames {
            let Some(inode) = self.inodes.get_mut(&wanted.ino) else {
                continue;
            };
            let bytes = ByteRange::at(wanted.page * PAGE_SIZE, PAGE_SIZE);
            if inode.is_loading(&bytes) {
                // It holds what is newer than the bytes on their way: asked again.
                continue;
            }
            let pages = &mut inode.pages;
            let given_up = pages.give_up(wanted.page, wanted.frame, may_move, env.pool);
            if given_up == GivenUp::Dirty && dirty.last() != Some(&wanted.ino) {
                dirty.push(wanted.ino);
            }
        }
        for ino in dirty {
            self.add_goal(env, ino, Purpose::Background);
        }
    }
}
