//! Lives and files that the tests of a shard have in common.

pub(crate) mod owner;

use meta::Mutation;
use meta::inode::InodeRecord;
use types::{Attr, FileKind, Incarnation, InodeId, NodeId, NodeLife, SmallBytes, Timestamp};

/// The first life of a node.
pub(crate) const fn life(node: u16) -> NodeLife {
    NodeLife {
        node: NodeId(node),
        incarnation: Incarnation(1),
    }
}

/// Makes an empty file with so many names.
pub(crate) fn file(ino: InodeId, nlink: u32) -> Mutation {
    inode(ino, FileKind::File, nlink)
}

/// Makes an empty directory.
#[allow(dead_code, reason = "not every test file has directories")]
pub(crate) fn directory(ino: InodeId) -> Mutation {
    inode(ino, FileKind::Directory, 2)
}

fn inode(ino: InodeId, kind: FileKind, nlink: u32) -> Mutation {
    let attr = Attr {
        nlink,
        ..Attr::new(ino, 1, kind, 0o644, Timestamp::default())
    };
    let record = InodeRecord {
        attr,
        parent: InodeId::default(),
        target: SmallBytes::default(),
    };
    Mutation::InodePut { record }
}
