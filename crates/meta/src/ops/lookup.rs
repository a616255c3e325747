//! Lookup, LookupParent, ReadLink: what leads where.

use types::{Errno, FileKind, InodeId, Name, limits};

use super::{directory, inode, live_directory, settled, shard};
use crate::execute::{Resolved, Target};
use crate::inode::Body;
use crate::message::Reply;
use crate::view::{Stop, View};

/// The answer that shows an inode: with attributes when it is ours.
fn found(view: &View<'_>, (ino, kind): Target) -> Result<Resolved, Stop> {
    let attr = if view.is_mine(ino.shard()) {
        Some(settled(view, ino)?.attr)
    } else {
        None
    };
    Ok(Resolved::Answer(Reply::Entry { ino, kind, attr }))
}

/// Lookup. Other names of a directory that a transaction is changing are found meanwhile.
pub(super) fn lookup(view: &View<'_>, parent: InodeId, name: &Name) -> Result<Resolved, Stop> {
    let home = shard(view, parent.shard())?;
    if inode(view, parent)?.attr.kind != FileKind::Directory {
        return Err(Stop::Fail(Errno::ENOTDIR));
    }
    if let Some(id) = home.locks.name(parent, name) {
        return Err(Stop::Wait(id));
    }
    match view.entry(parent, name)? {
        Some((_, entry)) => found(view, (entry.ino, entry.kind)),
        None => Ok(Resolved::Answer(Reply::Absent)),
    }
}

/// LookupParent.
pub(super) fn parent(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    match directory(view, ino)?.body {
        Body::Directory { parent, .. } => found(view, (parent, FileKind::Directory)),
        Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => {
            Err(Stop::Fail(Errno::ENOTDIR))
        }
    }
}

/// Ancestors. A directory that a transaction is changing is waited for: it may be about to move.
pub(super) fn ancestors(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    let mut chain = vec![ino];
    let mut at = ino;
    while at != InodeId::ROOT && chain.len() <= limits::ANCESTOR_COUNT_MAX {
        if at != ino && !view.is_mine(at.shard()) {
            break;
        }
        // Who has no name any more has no ancestors either.
        let Body::Directory { parent, .. } = &live_directory(view, at)?.body else {
            return Err(Stop::Fail(Errno::ENOTDIR));
        };
        at = *parent;
        chain.push(at);
    }
    Ok(Resolved::Answer(Reply::Chain(chain)))
}

/// ReadLink.
pub(super) fn read_link(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    match &inode(view, ino)?.body {
        Body::Symlink(target) => Ok(Resolved::Answer(Reply::Bytes(target.clone()))),
        Body::Directory { .. } | Body::Part { .. } | Body::File(_) | Body::Special => {
            Err(Stop::Fail(Errno::EINVAL))
        }
    }
}
