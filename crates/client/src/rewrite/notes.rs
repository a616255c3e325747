//! Which blocks may consist of many extents: those of which a Commit replaced a part, and those that readers find so.

use std::collections::btree_map::Entry;

use meta::Commit;
use types::{ByteRange, InodeId, Instant};

use super::{BLOCK_COUNT_MAX, Key, Rewriter, parts_of_map};
use crate::env::{Env, LoadPiece};
use crate::pages::PAGE_SIZE;
use crate::slice::Slice;

impl Rewriter {
    /// A block changed, or was found to be of many extents.
    pub(super) fn note(&mut self, now: Instant, key: Key, has_changed: bool) {
        let Some(rules) = self.rules else { return };
        if !has_changed && self.key == Some(key) {
            // Loaded to be rewritten.
            return;
        }
        let is_full = self.blocks.len() >= BLOCK_COUNT_MAX;
        match self.blocks.entry(key) {
            Entry::Occupied(mut known) if has_changed => {
                known.insert(now);
            }
            Entry::Vacant(free) if !is_full => {
                free.insert(now);
                self.queue.push_back((now + rules.rest, key));
            }
            _ => {}
        }
    }
}

impl Slice {
    /// The owner has taken a Commit.
    pub(crate) fn note_committed(&mut self, env: &Env<'_>, ino: InodeId, commit: &Commit) {
        let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get(&ino)) else {
            return;
        };
        let size = inode.block_size(rules);
        for bytes in parts_of_map(&commit.extents, &commit.pieces) {
            for block in bytes.begin / size..bytes.end.div_ceil(size) {
                let (key, range) = ((ino, block), inode.block(rules, block));
                let may_be_many = range.length() / PAGE_SIZE > rules.parts_max_of(&range);
                if !bytes.contains(&range) && may_be_many {
                    self.rewriter.note(env.now, key, true);
                }
            }
        }
    }

    /// A reader loads these bytes: blocks of many parts among them are noted.
    pub(crate) fn note_loaded(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: &ByteRange,
        loads: &[LoadPiece],
    ) {
        let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get(&ino)) else {
            return;
        };
        if loads.len() as u64 <= rules.parts_max {
            return;
        }
        let size = inode.block_size(rules);
        for block in range.begin / size..range.end.div_ceil(size) {
            let whole = inode.block(rules, block);
            let Some(loaded) = whole.intersection(range) else {
                continue;
            };
            let (first, last) = (loaded.begin / PAGE_SIZE, loaded.end / PAGE_SIZE);
            let is_in =
                |l: &&LoadPiece| l.extent.file_sector < last && l.extent.file_sector_end() > first;
            if loads.iter().filter(is_in).count() as u64 > rules.parts_max_of(&loaded) {
                self.rewriter.note(env.now, (ino, block), false);
            }
        }
    }
}
