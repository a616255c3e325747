//! Rmdir: an empty directory goes. That it is empty is checked, and kept so, where its entries lie.

use types::{Errno, FileKind, InodeId, Name, Standing};

use super::{entry, not_removable, open_at};
use crate::execute::Resolved;
use crate::message::Known;
use crate::step::Step;
use crate::transaction::Finish;
use crate::view::{Context, Stop, View};

/// Rmdir.
pub(super) fn rmdir(
    view: &View<'_>,
    ctx: &Context<'_>,
    (parent, name): (InodeId, &Name),
    known: Option<Known>,
    standing: Option<Standing>,
) -> Result<Resolved, Stop> {
    let Some((ino, kind)) = entry(view, ctx, parent, name)? else {
        return Err(Stop::Fail(Errno::ENOENT));
    };
    if kind != FileKind::Directory {
        return Err(Stop::Fail(Errno::ENOTDIR));
    }
    if let Some(refused) = not_removable(view, ctx, (parent, ino), standing)? {
        return Ok(refused);
    }
    let open_at = known.and_then(|_| open_at(ctx, ino, known));
    let steps = vec![
        Step::DirectoryRemove { ino, open_at },
        Step::EntryRemove {
            directory: parent,
            name: name.clone(),
            expects: ino,
        },
        Step::DirectoryTouch {
            directory: parent,
            nlink_delta: -1,
        },
    ];
    let finish = Finish::Removed {
        directory: parent,
        ino,
        is_open: open_at.is_some(),
    };
    Ok(Resolved::Steps { steps, finish })
}
