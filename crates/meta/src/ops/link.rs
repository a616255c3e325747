//! Link: another name for what is no directory.

use types::{Errno, FileKind, InodeId, Name};

use super::{entry, live_directory};
use crate::execute::{Resolved, Target};
use crate::step::Step;
use crate::transaction::Finish;
use crate::view::{Context, Stop, View};

/// Link. The directory is this owner's; the inode may be another's.
pub(super) fn link(
    view: &View<'_>,
    ctx: &Context<'_>,
    (ino, kind): Target,
    parent: InodeId,
    name: &Name,
) -> Result<Resolved, Stop> {
    live_directory(view, parent)?;
    if kind == FileKind::Directory {
        return Err(Stop::Fail(Errno::EPERM));
    }
    if entry(view, ctx, parent, name)?.is_some() {
        return Err(Stop::Fail(Errno::EEXIST));
    }
    let steps = vec![
        Step::LinkAdd { ino, kind },
        Step::EntryInsert {
            directory: parent,
            name: name.clone(),
            ino,
            kind,
        },
        Step::DirectoryTouch {
            directory: parent,
            nlink_delta: 0,
        },
    ];
    let finish = Finish::Made {
        directory: parent,
        ino,
        is_new: false,
    };
    Ok(Resolved::Steps { steps, finish })
}
