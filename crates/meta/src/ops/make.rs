//! Make: mknod, mkdir, symlink; and the inode record that Create shares, with the rights that it inherits.

use types::attr::HAS_ACL;
use types::{Attr, Errno, FileKind, InodeId, Layout, Name, SmallBytes, limits};

use super::{entry, live_directory, shard};
use crate::acl::{self, Acl};
use crate::execute::Resolved;
use crate::inode::{Inode, InodeRecord};
use crate::message::{Caller, NewKind};
use crate::step::Step;
use crate::transaction::Finish;
use crate::view::{Context, Fact, Query, Stop, View};

/// A directory with this bit gives its group to what is made in it, and the bit to directories.
const SET_GID: u32 = 0o2000;

/// What is to be made, as far as it does not come from the directory.
pub(super) struct New {
    pub(super) kind: FileKind,
    pub(super) permissions: u32,
    pub(super) rdev: u32,
    pub(super) target: SmallBytes,
    pub(super) caller: Caller,
}

impl New {
    /// What stands where a name was moved away. No umask counts, and nobody may do anything with it, as other file systems have it.
    pub(super) fn whiteout(caller: Caller) -> Self {
        Self {
            kind: FileKind::CharDevice,
            permissions: 0,
            rdev: 0,
            target: SmallBytes::default(),
            caller,
        }
    }
}

/// Make.
pub(super) fn make(
    view: &View<'_>,
    ctx: &Context<'_>,
    (parent, name): (InodeId, &Name),
    kind: &NewKind,
    caller: Caller,
) -> Result<Resolved, Stop> {
    live_directory(view, parent)?;
    if entry(view, ctx, parent, name)?.is_some() {
        return Err(Stop::Fail(Errno::EEXIST));
    }
    let mut new = New {
        kind: FileKind::Directory,
        permissions: 0,
        rdev: 0,
        target: SmallBytes::default(),
        caller,
    };
    // With its name: the inodes of a directory in parts spread over the shards of its owner.
    let mut ino = shard(view, view.holder(parent, name)?.shard())?.next_number();
    match kind {
        NewKind::Node { mode, rdev } => {
            new.kind = node_kind(*mode)?;
            new.permissions = *mode;
            new.rdev = *rdev;
        }
        NewKind::Directory {
            permissions,
            placement,
        } => {
            new.permissions = *permissions;
            ino = place(view, ctx, *placement)?;
        }
        NewKind::Symlink { target } => {
            if target.is_empty() {
                return Err(Stop::Fail(Errno::ENOENT));
            }
            if target.len() > limits::SYMLINK_SIZE_MAX {
                return Err(Stop::Fail(Errno::ENAMETOOLONG));
            }
            new.kind = FileKind::Symlink;
            new.permissions = 0o777;
            new.target = target.clone();
        }
    }
    named(view, ctx, (parent, name), ino, new)
}

/// The steps that make an inode and its name; the name is known to be free.
pub(super) fn named(
    view: &View<'_>,
    ctx: &Context<'_>,
    (parent, name): (InodeId, &Name),
    ino: InodeId,
    new: New,
) -> Result<Resolved, Stop> {
    let above = live_directory(view, parent)?;
    let kind = new.kind;
    let is_directory = kind == FileKind::Directory;
    let (record, xattrs) = record(ctx, above, ino, new)?;
    let mut steps = vec![
        Step::InodeCreate { record },
        Step::EntryInsert {
            directory: parent,
            name: name.clone(),
            ino,
            kind,
        },
        Step::DirectoryTouch {
            directory: parent,
            nlink_delta: i32::from(is_directory),
        },
    ];
    let lists = xattrs.into_iter();
    steps.extend(lists.map(|(name, value)| Step::NewXattr { ino, name, value }));
    let finish = Finish::Made {
        directory: parent,
        ino,
        is_new: true,
    };
    Ok(Resolved::Steps { steps, finish })
}

/// Extended attributes that a new inode has from the beginning.
pub(super) type Xattrs = Vec<(SmallBytes, SmallBytes)>;

/// The permissions of a new inode in the directory `above`, and its access control lists. Where the directory has a default
/// list, what is asked for and that list decide; elsewhere the umask is taken away.
fn rights(above: &Inode, new: &New) -> Result<(u32, Xattrs), Stop> {
    let asked = new.permissions & 0o7777;
    if new.kind == FileKind::Symlink {
        return Ok((asked, Xattrs::new()));
    }
    let default = match above.attr.has_acl() {
        true => above.xattrs.get(acl::DEFAULT),
        false => None,
    };
    let Some(default) = default else {
        return Ok((asked & !(new.caller.umask & 0o777), Xattrs::new()));
    };
    let list = Acl::parse(default).map_err(|_| Stop::Fail(Errno::EIO))?;
    let access = list.inherited(asked);
    let mut xattrs = Xattrs::new();
    if !access.is_mode_alone() {
        xattrs.push((SmallBytes::new(acl::ACCESS), access.to_bytes()));
    }
    if new.kind == FileKind::Directory {
        xattrs.push((SmallBytes::new(acl::DEFAULT), default.clone()));
    }
    let flag = if xattrs.is_empty() { 0 } else { HAS_ACL };
    Ok((asked & !0o777 | access.mode() | flag, xattrs))
}

/// The record of a new inode in the directory `above`, and its extended attributes.
pub(super) fn record(
    ctx: &Context<'_>,
    above: &Inode,
    ino: InodeId,
    new: New,
) -> Result<(InodeRecord, Xattrs), Stop> {
    let (permissions, xattrs) = rights(above, &new)?;
    let above = &above.attr;
    let kind = new.kind;
    let is_directory = kind == FileKind::Directory;
    let layout = match kind {
        FileKind::File | FileKind::Directory => above.layout,
        _ => Layout::default(),
    };
    let inherits = above.permissions & SET_GID != 0;
    let inherited = if inherits && is_directory { SET_GID } else { 0 };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the lower half of 128 bits"
    )]
    let generation = ctx.random as u64;
    let attr = Attr {
        uid: new.caller.uid,
        gid: if inherits { above.gid } else { new.caller.gid },
        rdev: new.rdev,
        size: new.target.len() as u64,
        layout,
        ..Attr::new(ino, generation, kind, permissions | inherited, ctx.now)
    };
    let record = InodeRecord {
        attr,
        parent: if is_directory {
            above.ino
        } else {
            InodeId::default()
        },
        target: new.target,
    };
    Ok((record, xattrs))
}

fn node_kind(mode: u32) -> Result<FileKind, Stop> {
    let kind = match FileKind::from_mode(mode) {
        Some(kind) => kind,
        None if mode & 0o170_000 == 0 => FileKind::File,
        None => return Err(Stop::Fail(Errno::EINVAL)),
    };
    match kind {
        FileKind::Directory | FileKind::Symlink => Err(Stop::Fail(Errno::EINVAL)),
        FileKind::File
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Ok(kind),
    }
}

/// The number of a new directory.
fn place(view: &View<'_>, ctx: &Context<'_>, placement: InodeId) -> Result<InodeId, Stop> {
    let id = placement.shard();
    if !view.is_known(id) {
        return Err(Stop::Fail(Errno::ESTALE));
    }
    if placement.index() != 0 {
        return Ok(placement);
    }
    if view.is_mine(id) {
        return Ok(shard(view, id)?.next_number());
    }
    let number = ctx.facts.iter().find_map(|fact| match fact {
        Fact::Number { ino } if ino.shard() == id => Some(*ino),
        _ => None,
    });
    number.ok_or(Stop::Fact(Query::Number { shard: id }))
}
