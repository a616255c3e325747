//! Extended attributes: `user.`, `trusted.` and `security.`, and access control lists (`system.posix_acl_access`, `_default`);
//! others are not supported, and labels are off.
//!
//! The access list and the permission bits are changed together, in one record; a list that says no more than the bits is
//! not kept, and a list without entries is one that is taken away (the kernel asks for its removal).
//!
//! `trusted.gupfs.layout` is a view of the attributes' layout: not kept twice, inherited, and set on
//! directories and empty files only. That the NSDs named exist is checked by the caller, who knows them.

use std::collections::BTreeMap;

use types::attr::{HAS_ACL, XATTR_KILL_SET_GID};
use types::layout::LAYOUT_XATTR;
use types::{Errno, FileKind, InodeId, Layout, SmallBytes, Standing, limits};

use super::{attr, not_owner, settled};
use crate::acl::{self, Acl};
use crate::execute::Resolved;
use crate::inode::Inode;
use crate::message::Reply;
use crate::mutation::Mutation;
use crate::times::stamped;
use crate::view::{Context, Stop, View};

/// Rights that a program file gives; dropped when content or owner change.
pub const FILE_RIGHTS: &[u8] = b"security.capability";
/// XATTR_CREATE.
const CREATE: u32 = 1;
/// XATTR_REPLACE.
const REPLACE: u32 = 2;

/// Where attributes of this name are kept at all. Not `security.selinux`: who is told so asks once a mount. Of `system.`
/// only access control lists.
pub fn is_xattr_kept(name: &[u8]) -> bool {
    let has_name = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
    let is_known = has_name(b"user.") || has_name(b"trusted.") || has_name(b"security.");
    is_known && name != b"security.selinux" || acl::is_acl(name)
}

fn check_name(name: &[u8]) -> Result<(), Stop> {
    if name.is_empty() || name.len() > limits::NAME_SIZE_MAX || name.contains(&0) {
        return Err(Stop::Fail(Errno::ERANGE));
    }
    if is_xattr_kept(name) {
        return Ok(());
    }
    Err(Stop::Fail(Errno::EOPNOTSUPP))
}

/// Bytes of a listing of these names.
fn list_size(xattrs: &BTreeMap<SmallBytes, SmallBytes>) -> usize {
    xattrs.keys().map(|name| name.len() + 1).sum()
}

/// GetXattr.
pub(super) fn get(view: &View<'_>, ino: InodeId, name: &SmallBytes) -> Result<Resolved, Stop> {
    check_name(name)?;
    let inode = settled(view, ino)?;
    if name[..] == *LAYOUT_XATTR {
        let layout = inode.attr.layout;
        let text = layout.to_string();
        return match layout.is_default() {
            true => Err(Stop::Fail(Errno::ENODATA)),
            false => Ok(Resolved::Answer(Reply::Bytes(text.into_bytes().into()))),
        };
    }
    let value = inode.xattrs.get(name).ok_or(Stop::Fail(Errno::ENODATA))?;
    Ok(Resolved::Answer(Reply::Bytes(value.clone())))
}

/// ListXattr.
pub(super) fn list(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    let mut names = Vec::new();
    let inode = settled(view, ino)?;
    if !inode.attr.layout.is_default() {
        names.extend_from_slice(LAYOUT_XATTR);
        names.push(0);
    }
    for name in inode.xattrs.keys() {
        names.extend_from_slice(name);
        names.push(0);
    }
    Ok(Resolved::Answer(Reply::Bytes(names.into())))
}

/// Bytes of names and values together once `name` has `value`.
fn size_with(inode: &Inode, name: &SmallBytes, value: &SmallBytes) -> usize {
    let others = inode.xattrs.iter().filter(|(other, _)| *other != name);
    let others: usize = others.map(|(name, value)| name.len() + value.len()).sum();
    others + name.len() + value.len()
}

/// SetXattr. ENOSPC when the names would no longer fit in a listing of 64 KiB, or all of them with their values are too much.
pub(super) fn set(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    (name, value): (&SmallBytes, &SmallBytes),
    (flags, standing): (u32, Option<Standing>),
) -> Result<Resolved, Stop> {
    check_name(name)?;
    if value.len() > limits::SMALL_BYTES_MAX {
        return Err(Stop::Fail(Errno::ENOSPC));
    }
    let inode = settled(view, ino)?;
    if name[..] == *LAYOUT_XATTR {
        let layout = Layout::parse(value).map_err(|_| Stop::Fail(Errno::EINVAL))?;
        return set_layout(inode, ctx, layout, flags);
    }
    let is_list = acl::is_acl(name);
    if let Some(refused) = not_owner(standing.filter(|_| is_list), inode.attr.uid) {
        return Ok(refused);
    }
    let is_there = inode.xattrs.contains_key(name);
    let size = list_size(&inode.xattrs) + name.len() + 1;
    let kills_set_gid = is_list && flags & XATTR_KILL_SET_GID != 0;
    let errno = match flags & !if is_list { XATTR_KILL_SET_GID } else { 0 } {
        CREATE if is_there => Errno::EEXIST,
        REPLACE if !is_there => Errno::ENODATA,
        0 | CREATE | REPLACE if is_list => {
            return set_list(inode, ctx, (name, value), kills_set_gid);
        }
        0 | CREATE | REPLACE if !is_there && size > limits::SMALL_BYTES_MAX => Errno::ENOSPC,
        0 | CREATE | REPLACE if size_with(inode, name, value) > limits::XATTRS_SIZE_MAX => {
            Errno::ENOSPC
        }
        0 | CREATE | REPLACE => {
            let (name, value) = (name.clone(), value.clone());
            let index = ino.index();
            return Ok(changed(
                view,
                ctx,
                ino,
                Mutation::XattrPut { index, name, value },
            ));
        }
        _ => Errno::EINVAL,
    };
    Err(Stop::Fail(errno))
}

/// RemoveXattr. No access control list is there afterwards, whether there was one or not; of other attributes ENODATA says that there was none.
pub(super) fn remove(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    (name, standing): (&SmallBytes, Option<Standing>),
) -> Result<Resolved, Stop> {
    check_name(name)?;
    let inode = settled(view, ino)?;
    if name[..] == *LAYOUT_XATTR {
        return set_layout(inode, ctx, Layout::default(), REPLACE);
    }
    if acl::is_acl(name) {
        if let Some(refused) = not_owner(standing, inode.attr.uid) {
            return Ok(refused);
        }
        // Also one that is not there, as on other file systems.
        return Ok(with_list(inode, ctx, name, None));
    }
    if !inode.xattrs.contains_key(name) {
        return Err(Stop::Fail(Errno::ENODATA));
    }
    let (index, name) = (ino.index(), name.clone());
    Ok(changed(
        view,
        ctx,
        ino,
        Mutation::XattrRemove { index, name },
    ))
}

/// Another access control list: the access list with the permission bits that it comes to.
fn set_list(
    inode: &Inode,
    ctx: &Context<'_>,
    (name, value): (&SmallBytes, &SmallBytes),
    kills_set_gid: bool,
) -> Result<Resolved, Stop> {
    let list = Acl::parse(value).map_err(Stop::Fail)?;
    let is_access = name[..] == *acl::ACCESS;
    match inode.attr.kind {
        FileKind::Symlink => return Err(Stop::Fail(Errno::EOPNOTSUPP)),
        FileKind::Directory => {}
        _ if is_access => {}
        _ => return Err(Stop::Fail(Errno::EACCES)),
    }
    let is_kept = !is_access || !list.is_mode_alone();
    let mut resolved = with_list(inode, ctx, name, is_kept.then_some(value));
    if let Resolved::Inode { mutations, .. } = &mut resolved
        && let Some(Mutation::AttrPut { attr, .. }) = mutations.first_mut()
        && is_access
    {
        let set_gid = if kills_set_gid { attr::SET_GID } else { 0 };
        attr.permissions = attr.permissions & !(0o777 | set_gid) | list.mode();
    }
    Ok(resolved)
}

/// The inode with this list, or without it: new attributes first.
fn with_list(
    inode: &Inode,
    ctx: &Context<'_>,
    name: &SmallBytes,
    value: Option<&SmallBytes>,
) -> Resolved {
    let mut attr = stamped(&inode.attr, ctx.now);
    let index = attr.ino.index();
    let is_other = |other: &SmallBytes| acl::is_acl(other) && other != name;
    let has_list = value.is_some() || inode.xattrs.keys().any(is_other);
    attr.permissions = attr.permissions & !HAS_ACL | if has_list { HAS_ACL } else { 0 };
    let mut mutations = vec![Mutation::AttrPut { index, attr }];
    let name = name.clone();
    match value.cloned() {
        Some(value) => mutations.push(Mutation::XattrPut { index, name, value }),
        None if inode.xattrs.contains_key(&name) => {
            mutations.push(Mutation::XattrRemove { index, name });
        }
        None => {}
    }
    Resolved::Inode {
        ino: attr.ino,
        mutations,
        used: Vec::new(),
    }
}

/// Another layout for a directory, or for a file that has no bytes yet (EBUSY): bytes do not move by it.
fn set_layout(
    inode: &Inode,
    ctx: &Context<'_>,
    layout: Layout,
    flags: u32,
) -> Result<Resolved, Stop> {
    let is_there = !inode.attr.layout.is_default();
    let is_empty = inode.attr.size == 0 && inode.map().is_none_or(|m| m.sector_count() == 0);
    let errno = match (flags, inode.attr.kind) {
        (CREATE, _) if is_there => Errno::EEXIST,
        (REPLACE, _) if !is_there => Errno::ENODATA,
        (0 | CREATE | REPLACE, FileKind::File) if !is_empty => Errno::EBUSY,
        (0 | CREATE | REPLACE, FileKind::File | FileKind::Directory) => {
            let mut attr = stamped(&inode.attr, ctx.now);
            attr.layout = layout;
            let index = attr.ino.index();
            return Ok(Resolved::Inode {
                ino: attr.ino,
                mutations: vec![Mutation::AttrPut { index, attr }],
                used: Vec::new(),
            });
        }
        _ => Errno::EINVAL,
    };
    Err(Stop::Fail(errno))
}

fn changed(view: &View<'_>, ctx: &Context<'_>, ino: InodeId, mutation: Mutation) -> Resolved {
    let old = super::inode(view, ino).map(|i| i.attr);
    let attr = stamped(&old.expect("the caller has looked"), ctx.now);
    let index = ino.index();
    Resolved::Inode {
        ino,
        mutations: vec![Mutation::AttrPut { index, attr }, mutation],
        used: Vec::new(),
    }
}
