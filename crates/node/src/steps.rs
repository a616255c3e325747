//! What the steps of transactions and their answers are about.

use meta::transaction;
use types::{FileKind, InodeId, InodeMode, Want};

/// The inode that a step changes, if it is there already.
pub(crate) fn inode_of(step: &meta::Step) -> Option<InodeId> {
    match step {
        meta::Step::EntryInsert { directory, .. }
        | meta::Step::EntryRemove { directory, .. }
        | meta::Step::EntryReplace { directory, .. }
        | meta::Step::DirectoryTouch { directory, .. } => Some(*directory),
        meta::Step::InodeCreate { .. } | meta::Step::NewXattr { .. } => None,
        meta::Step::LinkAdd { ino, .. }
        | meta::Step::LinkNameless { ino }
        | meta::Step::LinkDrop { ino, .. }
        | meta::Step::DirectoryRemove { ino, .. }
        | meta::Step::DirectoryParentSet { ino, .. }
        | meta::Step::InodeTouch { ino } => Some(*ino),
    }
}

pub(crate) fn progress_id(progress: &transaction::Progress) -> meta::TransactionId {
    progress
        .messages
        .first()
        .expect("a transaction has a participant")
        .id
}

pub(crate) fn attribute_want(kind: FileKind) -> Want {
    if kind == FileKind::Directory {
        Want::Directory {
            mode: types::DirectoryMode::Read,
        }
    } else {
        Want::Inode {
            mode: InodeMode::Read,
        }
    }
}
