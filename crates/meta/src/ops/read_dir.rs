//! ReadDir: entries by cookie, as many as fit.

use std::ops::Bound;

use types::{Errno, FileKind, InodeId, ShardId};

use super::directory;
use crate::execute::Resolved;
use crate::inode::{Body, Inode};
use crate::message::{Listed, Reply, listed_size};
use crate::view::{Stop, View};

/// Most bytes that an answer counts, whatever was asked.
const SIZE_MAX: usize = 1 << 20;

/// ReadDir. The first entry comes even when the size is too small for it, so that a listing ends.
pub(super) fn read_dir(
    view: &View<'_>,
    ino: InodeId,
    cookie: u64,
    size: u32,
    plus: bool,
) -> Result<Resolved, Stop> {
    let inode = directory(view, ino)?;
    let Body::Directory { parent, .. } = inode.body else {
        return Err(Stop::Fail(Errno::ENOTDIR));
    };
    let mut listing = Listing {
        view,
        plus,
        size_max: SIZE_MAX.min(size as usize),
        size: 0,
        entries: Vec::new(),
        lacking: Vec::new(),
    };
    // Cookies up to 2 are the start and the client's own entries; the first of ours is far behind them.
    let from = (Bound::Excluded(cookie), Bound::Unbounded);
    let first_part = inode.parts().and_then(|parts| parts.keys().next());
    let mut is_full = false;
    if first_part.is_none_or(|begin| cookie < *begin) {
        is_full = listing.add(inode, from);
    }
    let parts = inode.parts().into_iter().flat_map(|parts| {
        let at = parts.range(..=cookie).next_back();
        parts.range(at.map_or(0, |(begin, _)| *begin)..)
    });
    for (_, part) in parts {
        if is_full {
            break;
        }
        // What would have to be locked or read first comes with the next call, when there is something to answer.
        let is_at_hand = view
            .shard(part.shard())
            .is_some_and(|s| s.peek(*part).is_some());
        if !is_at_hand && !listing.is_empty() {
            is_full = true;
            break;
        }
        is_full = listing.add(view.part(ino, *part)?, from);
    }
    if !listing.lacking.is_empty() {
        return Err(Stop::Shards(listing.lacking));
    }
    Ok(Resolved::Answer(Reply::Listing {
        entries: listing.entries,
        parent,
        is_end: !is_full,
    }))
}

struct Listing<'v, 's> {
    view: &'v View<'s>,
    plus: bool,
    size_max: usize,
    size: usize,
    entries: Vec<Listed>,
    /// Shards with attributes of what is listed. With the first of them the answer will have to be made again, and entries are
    /// looked at for others alone: so a batch takes one round more, however many shards its names spread over.
    lacking: Vec<ShardId>,
}

impl Listing<'_, '_> {
    /// Nothing is listed yet.
    fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.lacking.is_empty()
    }

    /// Adds what a directory or a part holds in the range. True: not all of it fits.
    fn add(&mut self, holder: &Inode, from: (Bound<u64>, Bound<u64>)) -> bool {
        let first = self.entries.len();
        let was_lacking = !self.lacking.is_empty();
        let held = holder.entries().into_iter();
        for (cookie, entry) in held.flat_map(|entries| entries.range(from)) {
            self.size += listed_size(entry.name.bytes().len(), self.plus);
            if self.size > self.size_max && !self.is_empty() {
                return true;
            }
            let shard = self.view.shard(entry.ino.shard()).filter(|_| self.plus);
            if self.plus && shard.is_none() {
                self.note_lacking(entry.ino, entry.kind);
            }
            if !self.lacking.is_empty() {
                if first > 0 && !was_lacking {
                    // The parts before this one have all, and it comes with the next call.
                    self.entries.truncate(first);
                    self.lacking.clear();
                    return true;
                }
                continue;
            }
            let settled = shard.filter(|s| s.locks.inode(entry.ino).is_none());
            self.entries.push(Listed {
                name: entry.name.clone(),
                ino: entry.ino,
                kind: entry.kind,
                cookie: *cookie,
                // Of a cold one the listing says no more than its name: the driver may have it read, and list again.
                attr: settled.and_then(|s| s.peek_attr(entry.ino)),
            });
        }
        false
    }

    /// The files of a directory in parts spread over its owner's shards. Directories do everywhere: nobody is kept waiting for the
    /// shards of all of these.
    fn note_lacking(&mut self, ino: InodeId, kind: FileKind) {
        let shard = ino.shard();
        let is_new = kind != FileKind::Directory && !self.lacking.contains(&shard);
        if is_new && self.view.is_mine(shard) {
            self.lacking.push(shard);
        }
    }
}
