//! Create: a regular file by its name, made or found (O_CREAT), or without one (O_TMPFILE).

use types::{Errno, FileKind, InodeId, Name, SmallBytes};

use super::{entry, live_directory, make, settled, shard};
use crate::execute::Resolved;
use crate::message::{Caller, Reply};
use crate::view::{Context, Stop, View};

/// How to make it.
pub(super) struct New {
    pub(super) permissions: u32,
    pub(super) exclusive: bool,
    pub(super) caller: Caller,
}

/// Create.
pub(super) fn create(
    view: &View<'_>,
    ctx: &Context<'_>,
    (parent, name): (InodeId, &Name),
    new: &New,
) -> Result<Resolved, Stop> {
    let above = live_directory(view, parent)?.attr;
    if let Some((ino, kind)) = entry(view, ctx, parent, name)? {
        if new.exclusive {
            return Err(Stop::Fail(Errno::EEXIST));
        }
        if kind == FileKind::Directory {
            return Err(Stop::Fail(Errno::EISDIR));
        }
        let attr = if view.is_mine(ino.shard()) {
            Some(settled(view, ino)?.attr)
        } else {
            None
        };
        return Ok(Resolved::Answer(Reply::Made {
            attr,
            ino,
            directory: above,
            is_new: false,
        }));
    }
    let ino = shard(view, view.holder(parent, name)?.shard())?.next_number();
    let new = make::New {
        kind: FileKind::File,
        permissions: new.permissions,
        rdev: 0,
        target: SmallBytes::default(),
        caller: new.caller,
    };
    make::named(view, ctx, (parent, name), ino, new)
}

/// CreateNameless.
pub(super) fn nameless(
    view: &View<'_>,
    ctx: &Context<'_>,
    parent: InodeId,
    permissions: u32,
    caller: Caller,
) -> Result<Resolved, Stop> {
    let above = live_directory(view, parent)?;
    let new = make::New {
        kind: FileKind::File,
        permissions,
        rdev: 0,
        target: SmallBytes::default(),
        caller,
    };
    let ino = shard(view, parent.shard())?.next_number();
    let (mut record, xattrs) = make::record(ctx, above, ino, new)?;
    record.attr.nlink = 0;
    Ok(Resolved::Nameless {
        record: Box::new(record),
        xattrs,
        parent,
    })
}
