//! Extended attributes: `user.`, `trusted.` and `security.capability`; others are not supported.

use std::collections::BTreeMap;

use types::{Errno, InodeId, SmallBytes, limits};

use super::settled;
use crate::execute::Resolved;
use crate::message::Reply;
use crate::mutation::Mutation;
use crate::step::stamped;
use crate::view::{Context, Stop, View};

/// Rights that a program file gives; dropped when content or owner change.
pub(crate) const FILE_RIGHTS: &[u8] = b"security.capability";
/// XATTR_CREATE.
const CREATE: u32 = 1;
/// XATTR_REPLACE.
const REPLACE: u32 = 2;

fn check_name(name: &[u8]) -> Result<(), Stop> {
    if name.is_empty() || name.len() > limits::NAME_SIZE_MAX || name.contains(&0) {
        return Err(Stop::Fail(Errno::ERANGE));
    }
    let has_name = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
    if has_name(b"user.") || has_name(b"trusted.") || name == FILE_RIGHTS {
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
    let xattrs = &settled(view, ino)?.xattrs;
    let value = xattrs.get(name).ok_or(Stop::Fail(Errno::ENODATA))?;
    Ok(Resolved::Answer(Reply::Bytes(value.clone())))
}

/// ListXattr.
pub(super) fn list(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    let mut names = Vec::new();
    for name in settled(view, ino)?.xattrs.keys() {
        names.extend_from_slice(name);
        names.push(0);
    }
    Ok(Resolved::Answer(Reply::Bytes(names.into())))
}

/// SetXattr. ENOSPC when the names would no longer fit in a listing of 64 KiB.
pub(super) fn set(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    (name, value): (&SmallBytes, &SmallBytes),
    flags: u32,
) -> Result<Resolved, Stop> {
    check_name(name)?;
    if value.len() > limits::SMALL_BYTES_MAX {
        return Err(Stop::Fail(Errno::ENOSPC));
    }
    let inode = settled(view, ino)?;
    let is_there = inode.xattrs.contains_key(name);
    let size = list_size(&inode.xattrs) + name.len() + 1;
    let errno = match flags {
        CREATE if is_there => Errno::EEXIST,
        REPLACE if !is_there => Errno::ENODATA,
        0 | CREATE | REPLACE if !is_there && size > limits::SMALL_BYTES_MAX => Errno::ENOSPC,
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

/// RemoveXattr.
pub(super) fn remove(
    view: &View<'_>,
    ctx: &Context<'_>,
    ino: InodeId,
    name: &SmallBytes,
) -> Result<Resolved, Stop> {
    check_name(name)?;
    let xattrs = &settled(view, ino)?.xattrs;
    if !xattrs.contains_key(name) {
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
