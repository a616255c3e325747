//! GetAttr, SetAttr: chmod, chown, utimes, truncate, and what they do to set-id bits.
//!
//! - chown of what is no directory clears the set-user-id bit, and the set-group-id bit when the group may
//!   execute, unless the same request gives permissions; so do truncate and write when the kernel says so
//!   (`kill_set_id`). chown and truncate drop the file's `security.capability` attribute.
//! - chmod by somebody outside the file's group loses the set-group-id bit in the kernel, which alone
//!   knows the supplementary groups; the bits that arrive are taken as they are.
//! - What only the owner may do is asked of the kernel, which knows the owner of before where another node has changed him: so it is asked here, too
//!   (`Standing`). Groups are the kernel's to ask: a file whose group another node has changed may be given set-group-id by its owner.
//! - chmod changes the access control list where there is one: its mask, or its owning group where it has none.

use types::attr::{HAS_ACL, set_ids_taken};
use types::{Attr, Errno, FileKind, InodeId, SetAttr, SmallBytes, Standing, Timestamp, limits};

use super::{not_owner, settled, xattr};
use crate::acl::{self, Acl};
use crate::execute::Resolved;
use crate::inode::Inode;
use crate::message::Reply;
use crate::mutation::Mutation;
use crate::times::{held_back, modified, stamped};
use crate::view::{Context, Stop, View};

/// Set-group-id bit.
pub(super) const SET_GID: u32 = 0o2000;

/// Names in a directory with it go by the owners of it, and by those of what they lead to.
pub(super) const STICKY: u32 = 0o1000;

/// Permission bits without the set-id bits that a change of content takes away, by somebody of the group `by`.
pub(super) fn without_set_id(attr: &Attr, by: u32) -> u32 {
    attr.permissions & !set_ids_taken(attr.permissions, by == attr.gid)
}

/// The mutation that drops the file's capability attribute, if it has one.
pub(super) fn drop_rights(inode: &Inode) -> Option<Mutation> {
    let name = SmallBytes::new(xattr::FILE_RIGHTS);
    let index = inode.attr.ino.index();
    let has_it = !inode.xattrs.is_empty() && inode.xattrs.contains_key(&name);
    has_it.then_some(Mutation::XattrRemove { index, name })
}

/// GetAttr.
pub(super) fn get(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    Ok(Resolved::Answer(Reply::Attr(settled(view, ino)?.attr)))
}

/// SetAttr.
pub(super) fn set(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    (set, standing): (&SetAttr, Option<Standing>),
) -> Result<Resolved, Stop> {
    let inode = settled(view, ino)?;
    let old = inode.attr;
    if let Some(refused) = not_owner(standing.filter(|_| set.is_owners()), old.uid) {
        return Ok(refused);
    }
    let index = ino.index();
    let is_directory = old.kind == FileKind::Directory;
    let is_owner_set = set.uid.is_some() || set.gid.is_some();
    let mut attr = match set.size {
        Some(_) => modified(&old, ctx.now),
        None => stamped(&old, ctx.now),
    };
    attr.uid = set.uid.unwrap_or(old.uid);
    attr.gid = set.gid.unwrap_or(old.gid);
    // A change of owner is the owner's or root's: as one of the file's group. The kernel asks for it with each of them.
    let as_member = is_owner_set.then_some(attr.gid);
    let taker = as_member.or(set.kill_set_id);
    if let (Some(by), false) = (taker, is_directory) {
        attr.permissions = without_set_id(&attr, by);
    }
    if let Some(permissions) = set.permissions {
        attr.permissions = permissions & 0o7777 | old.permissions & HAS_ACL;
    }
    let mut after = Vec::new();
    if set.permissions.is_some()
        && let Some(value) = inode.access_acl()
    {
        let list = Acl::parse(value).map_err(|_| Stop::Fail(Errno::EIO))?;
        after.push(Mutation::XattrPut {
            index,
            name: SmallBytes::new(acl::ACCESS),
            value: list.with_mode(attr.permissions).to_bytes(),
        });
    }
    if let Some(size) = set.size {
        check_size(&old, size)?;
        attr.size = size;
        attr.size_generation += 1;
        // What is promised behind the end goes also where the end stays: so it is given back.
        let is_promised = inode.attr.has_promise() && size == old.size;
        if (size < old.size || is_promised) && inode.map().is_some() {
            after.push(Mutation::MapCut { index, size });
        }
    }
    if (is_owner_set && !is_directory) || set.size.is_some() {
        after.extend(drop_rights(inode));
    }
    if let Some(atime) = set.atime {
        attr.atime = atime.unwrap_or_else(|| old.atime.merged(ctx.now, ctx.now));
    }
    if let Some(mtime) = set.mtime {
        attr.mtime = mtime.unwrap_or_else(|| old.mtime.merged(ctx.now, ctx.now));
    }
    let mut mutations = vec![Mutation::AttrPut { index, attr }];
    mutations.append(&mut after);
    Ok(Resolved::Inode {
        ino,
        mutations,
        used: Vec::new(),
    })
}

/// Accessed.
pub(super) fn accessed(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    (at, change): (Timestamp, u64),
) -> Result<Resolved, Stop> {
    let mut attr = settled(view, ino)?.attr;
    let at = held_back(at, ctx.now);
    // One that was set ahead of the clock goes back, as on Linux.
    if attr.change != change || (at <= attr.atime && !attr.atime.is_ahead_of(ctx.now)) {
        return Ok(Resolved::Answer(Reply::Attr(attr)));
    }
    attr.atime = at;
    Ok(Resolved::Inode {
        ino,
        mutations: vec![Mutation::AttrPut {
            index: ino.index(),
            attr,
        }],
        used: Vec::new(),
    })
}

fn check_size(attr: &Attr, size: u64) -> Result<(), Stop> {
    let errno = match attr.kind {
        FileKind::File if size <= limits::FILE_SIZE_MAX => return Ok(()),
        FileKind::File => Errno::EFBIG,
        FileKind::Directory => Errno::EISDIR,
        FileKind::Symlink
        | FileKind::Fifo
        | FileKind::Socket
        | FileKind::CharDevice
        | FileKind::BlockDevice => Errno::EINVAL,
    };
    Err(Stop::Fail(errno))
}
