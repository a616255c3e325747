//! Link: another name for what is no directory.

use types::{Errno, FileKind};

use super::{entry, live_directory};
use crate::execute::Resolved;
use crate::message::Op;
use crate::step::Step;
use crate::transaction::Finish;
use crate::view::{Context, Stop, View};

/// Link, LinkNameless. The directory is this owner's; the inode may be another's.
pub(super) fn link(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Resolved, Stop> {
    let (ino, kind, parent, name) = match op {
        Op::Link {
            ino,
            kind,
            parent,
            name,
        } => (*ino, *kind, *parent, name),
        Op::LinkNameless { ino, parent, name } => (*ino, FileKind::File, *parent, name),
        _ => unreachable!("the caller matched it"),
    };
    let step = match op {
        Op::LinkNameless { .. } => Step::LinkNameless { ino },
        _ => Step::LinkAdd { ino, kind },
    };
    live_directory(view, parent)?;
    if kind == FileKind::Directory {
        return Err(Stop::Fail(Errno::EPERM));
    }
    if entry(view, ctx, parent, name)?.is_some() {
        return Err(Stop::Fail(Errno::EEXIST));
    }
    let steps = vec![
        step,
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
