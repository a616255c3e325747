//! Operations: each reads the state and says what it comes down to. One file per operation.

mod attr;
mod content;
mod create;
mod link;
mod lookup;
mod make;
mod read_dir;
pub(crate) mod rename;
mod rmdir;
mod unlink;
pub(crate) mod xattr;

#[cfg(test)]
mod tests;

use types::{Attr, Errno, FileKind, InodeId, Name, NodeLife, ShardId, Standing};

use crate::execute::{Resolved, Target};
use crate::inode::Inode;
use crate::message::{Known, Op, Reply};
use crate::shard::Shard;
use crate::view::{Context, Fact, Query, Stop, View};

/// What `op` comes down to. Reads only.
pub(crate) fn resolve(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Resolved, Stop> {
    match op {
        Op::Lookup { parent, name } => lookup::lookup(view, *parent, name),
        Op::LookupParent { ino } => lookup::parent(view, *ino),
        Op::Ancestors { ino } => lookup::ancestors(view, *ino),
        Op::GetAttr { ino } => attr::get(view, *ino),
        Op::SetAttr { ino, set, standing } => attr::set(view, ctx, *ino, (set, *standing)),
        Op::Punch { .. } => content::punch(view, ctx, op),
        Op::Allocate { .. } => content::allocate(view, ctx, op),
        Op::GetPromised { ino, begin } => content::get_promised(view, *ino, *begin),
        Op::Make {
            parent,
            name,
            kind,
            caller,
        } => make::make(view, ctx, (*parent, name), kind, *caller),
        Op::Create {
            parent,
            name,
            permissions,
            exclusive,
            caller,
        } => {
            let new = create::New {
                permissions: *permissions,
                exclusive: *exclusive,
                caller: *caller,
            };
            create::create(view, ctx, (*parent, name), &new)
        }
        Op::CreateNameless {
            parent,
            permissions,
            caller,
        } => create::nameless(view, ctx, *parent, *permissions, *caller),
        Op::Link { .. } | Op::LinkNameless { .. } => link::link(view, ctx, op),
        Op::Unlink {
            parent,
            name,
            known,
            standing,
        } => unlink::unlink(view, ctx, (*parent, name), *known, *standing),
        Op::Rmdir {
            parent,
            name,
            known,
            standing,
        } => rmdir::rmdir(view, ctx, (*parent, name), *known, *standing),
        Op::Rename { .. } => rename::rename(view, ctx, op),
        Op::ReadLink { ino } => lookup::read_link(view, *ino),
        Op::ReadDir {
            ino,
            cookie,
            size,
            plus,
        } => read_dir::read_dir(view, *ino, *cookie, *size, *plus),
        Op::GetXattr { ino, name } => xattr::get(view, *ino, name),
        Op::SetXattr {
            ino,
            name,
            value,
            flags,
            standing,
        } => xattr::set(view, ctx, *ino, (name, value), (*flags, *standing)),
        Op::ListXattr { ino } => xattr::list(view, *ino),
        Op::RemoveXattr {
            ino,
            name,
            standing,
        } => xattr::remove(view, ctx, *ino, (name, *standing)),
        Op::GetMap {
            ino,
            begin,
            end,
            count_max,
        } => content::get_map(view, *ino, (*begin, *end), *count_max),
        Op::Commit(commit) => content::commit(view, ctx, commit),
        Op::Destage {
            ino,
            map_version,
            extents,
        } => content::destage(view, *ino, *map_version, extents),
        Op::Closed { ino, .. } => closed(view, *ino),
        Op::Accessed { ino, at, change } => attr::accessed(view, ctx, *ino, (*at, *change)),
        Op::StatFs { shard: id } => Ok(Resolved::Answer(Reply::Statistics {
            inode_count: shard(view, *id)?.inode_count(),
        })),
    }
}

/// The answer to who is not the owner of an inode as he would have to be.
fn not_owner(standing: Option<Standing>, uid: u32) -> Option<Resolved> {
    let is_owner = standing.is_none_or(|standing| standing.covers(uid));
    (!is_owner).then_some(Resolved::Answer(Reply::NotOwner { uid }))
}

/// Attributes of an inode of this owner or of another.
fn attributes(view: &View<'_>, ctx: &Context<'_>, ino: InodeId) -> Result<Attr, Stop> {
    if view.is_mine(ino.shard()) {
        return Ok(inode(view, ino)?.attr);
    }
    let known = ctx.facts.iter().find_map(|fact| match fact {
        Fact::Attributes { attr } if attr.ino == ino => Some(*attr),
        _ => None,
    });
    known.ok_or(Stop::Fact(Query::Attributes { ino }))
}

/// The answer to who may not take the name of `ino` from `directory` if that has the sticky bit: it is for the owners of either. A whiteout has
/// nothing to be kept: who makes something over one through overlayfs has the rights of who mounted that, and is somebody else by his number.
fn not_removable(
    view: &View<'_>,
    ctx: &Context<'_>,
    (directory, ino): (InodeId, InodeId),
    standing: Option<Standing>,
) -> Result<Option<Resolved>, Stop> {
    let Some(who) = standing else {
        return Ok(None);
    };
    let above = attributes(view, ctx, directory)?;
    if above.permissions & attr::STICKY == 0 || who.covers(above.uid) {
        return Ok(None);
    }
    let attr = attributes(view, ctx, ino)?;
    let is_whiteout = attr.kind == FileKind::CharDevice && attr.rdev == 0;
    Ok(not_owner(standing.filter(|_| !is_whiteout), attr.uid))
}

/// Closed. The asker's own removal by way of another owner may have taken it to have the inode open, and told it so, before
/// that is performed here: what it says then is news of after that.
fn closed(view: &View<'_>, ino: InodeId) -> Result<Resolved, Stop> {
    match shard(view, ino.shard())?.locks.inode(ino) {
        Some(id) => Err(Stop::Wait(id)),
        None => Ok(Resolved::Closed { ino }),
    }
}

/// A shard of ours. ESTALE when it is not: the request came to the wrong owner.
pub(crate) fn shard<'v>(view: &'v View<'_>, id: ShardId) -> Result<&'v Shard, Stop> {
    match view.shard(id) {
        Some(shard) => Ok(shard),
        None if view.is_mine(id) => Err(Stop::Shard(id)),
        None => Err(Stop::Fail(Errno::ESTALE)),
    }
}

/// An inode of ours, whether or not a transaction is changing it.
pub(crate) fn inode<'v>(view: &'v View<'_>, ino: InodeId) -> Result<&'v Inode, Stop> {
    let found = shard(view, ino.shard())?.inode(ino);
    // A part of a directory is no inode to anybody.
    let found = found.filter(|inode| !inode.is_part());
    found.ok_or(Stop::Fail(Errno::ESTALE))
}

/// An inode of ours that no transaction is changing.
fn settled<'v>(view: &'v View<'_>, ino: InodeId) -> Result<&'v Inode, Stop> {
    if let Some(id) = shard(view, ino.shard())?.locks.inode(ino) {
        return Err(Stop::Wait(id));
    }
    inode(view, ino)
}

/// A directory of ours that no transaction is changing.
pub(crate) fn directory<'v>(view: &'v View<'_>, ino: InodeId) -> Result<&'v Inode, Stop> {
    let inode = settled(view, ino)?;
    if inode.attr.kind != FileKind::Directory {
        return Err(Stop::Fail(Errno::ENOTDIR));
    }
    Ok(inode)
}

/// A directory of ours that can take a new name.
fn live_directory<'v>(view: &'v View<'_>, ino: InodeId) -> Result<&'v Inode, Stop> {
    let inode = directory(view, ino)?;
    if inode.attr.nlink == 0 {
        return Err(Stop::Fail(Errno::ENOENT));
    }
    Ok(inode)
}

/// What a name leads to: by our own directory, or by the facts about another's.
pub(crate) fn entry(
    view: &View<'_>,
    ctx: &Context<'_>,
    parent: InodeId,
    name: &Name,
) -> Result<Option<Target>, Stop> {
    let id = parent.shard();
    if !view.is_mine(id) {
        let known = ctx.facts.iter().find_map(|fact| match fact {
            Fact::Entry {
                directory,
                name: of,
                found,
            } if *directory == parent && of == name => Some(*found),
            _ => None,
        });
        let query = || Query::Entry {
            directory: parent,
            name: name.clone(),
        };
        return known.ok_or_else(|| Stop::Fact(query()));
    }
    directory(view, parent)?;
    let found = view.entry(parent, name)?;
    Ok(found.map(|(_, entry)| (entry.ino, entry.kind)))
}

/// Whom to take to have the target of a name open, beside those known: the asking node, when it says so
/// or when it speaks of another inode than this.
fn open_at(ctx: &Context<'_>, target: InodeId, known: Option<Known>) -> Option<NodeLife> {
    let is_open = match known {
        Some(known) if known.ino == target => known.is_open,
        Some(_) | None => true,
    };
    is_open.then_some(ctx.from)
}
