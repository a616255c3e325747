//! ReadDir: entries by cookie, as many as fit.

use std::ops::Bound;

use types::{Errno, InodeId};

use super::directory;
use crate::execute::Resolved;
use crate::inode::Body;
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
    let Body::Directory { parent, entries } = &directory(view, ino)?.body else {
        return Err(Stop::Fail(Errno::ENOTDIR));
    };
    let size_max = SIZE_MAX.min(size as usize);
    let mut listed = Vec::new();
    let mut size = 0;
    let mut is_end = true;
    // Cookies up to 2 are the start and the client's own entries; the first of ours is far behind them.
    let from = (Bound::Excluded(cookie), Bound::Unbounded);
    for (cookie, entry) in entries.map().range(from) {
        size += listed_size(entry.name.bytes().len(), plus);
        if size > size_max && !listed.is_empty() {
            is_end = false;
            break;
        }
        let shard = view.shard(entry.ino.shard()).filter(|_| plus);
        let settled = shard.filter(|s| s.locks.inode(entry.ino).is_none());
        listed.push(Listed {
            name: entry.name.clone(),
            ino: entry.ino,
            kind: entry.kind,
            cookie: *cookie,
            // Of a cold one the listing says no more than its name: who wants more looks it up.
            attr: settled.and_then(|s| s.peek_attr(entry.ino)),
        });
    }
    Ok(Resolved::Answer(Reply::Listing {
        entries: listed,
        parent: *parent,
        is_end,
    }))
}
