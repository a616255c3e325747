//! Rename: a name moves, replaces another, or two names change places. What moves may leave a whiteout behind: a character device 0, 0, by which a union of
//! directories (overlayfs) knows that the name is not to be looked for in lower ones.

use types::{Errno, FileKind, InodeId, Name, Standing};

use super::make::{self, New};
use super::{entry, live_directory, not_removable, open_at, shard};
use crate::execute::{Resolved, Target};
use crate::message::{Caller, Known, Op, Reply};
use crate::step::Step;
use crate::transaction::Finish;
use crate::view::{Context, Fact, Query, Stop, View};

/// What moves where.
struct Rename<'a> {
    source: (InodeId, &'a Name),
    target: (InodeId, &'a Name),
    no_replace: bool,
    exchange: bool,
    whiteout: Option<Caller>,
    known: Option<Known>,
    standing: Option<Standing>,
}

impl<'a> Rename<'a> {
    fn of(op: &'a Op) -> Self {
        let Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            no_replace,
            exchange,
            whiteout,
            known,
            standing,
        } = op
        else {
            unreachable!("only renames come here");
        };
        Self {
            source: (*parent, name),
            target: (*new_parent, new_name),
            no_replace: *no_replace,
            exchange: *exchange,
            whiteout: *whiteout,
            known: *known,
            standing: *standing,
        }
    }
}

/// A directory `moved` below the directories of `chain` (from the new parent up to the root) would be its
/// own ancestor.
pub fn would_cycle(chain: &[InodeId], moved: InodeId) -> bool {
    chain.contains(&moved)
}

/// `moved` goes below `below`: EINVAL when that is in it.
fn check_cycle(ctx: &Context<'_>, below: InodeId, moved: InodeId) -> Result<(), Stop> {
    let chain = ctx.facts.iter().find_map(|fact| match fact {
        Fact::Ancestors { directory, chain } if *directory == below => Some(chain),
        _ => None,
    });
    let chain = chain.ok_or(Stop::Fact(Query::Ancestors { directory: below }))?;
    // A chain that does not reach the root is of a directory that was removed meanwhile.
    if chain.first() != Some(&below) || chain.last() != Some(&InodeId::ROOT) {
        return Err(Stop::Fail(Errno::ENOENT));
    }
    if would_cycle(chain, moved) {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    Ok(())
}

/// Rename.
pub(super) fn rename(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Resolved, Stop> {
    let rename = &Rename::of(op);
    let (parent, name) = rename.source;
    let (new_parent, new_name) = rename.target;
    if rename.exchange && (rename.no_replace || rename.whiteout.is_some()) {
        return Err(Stop::Fail(Errno::EINVAL));
    }
    let above = live_directory(view, parent)?.attr;
    if view.is_mine(new_parent.shard()) {
        live_directory(view, new_parent)?;
    }
    let Some(moved) = entry(view, ctx, parent, name)? else {
        return Err(Stop::Fail(Errno::ENOENT));
    };
    let found = entry(view, ctx, new_parent, new_name)?;
    match found {
        Some(_) if rename.no_replace => return Err(Stop::Fail(Errno::EEXIST)),
        None if rename.exchange => return Err(Stop::Fail(Errno::ENOENT)),
        Some((ino, _)) if ino == moved.0 => {
            // Two names of one inode: POSIX wants both to stay.
            return Ok(Resolved::Answer(Reply::Renamed {
                ino,
                replaced: None,
                kept_open: false,
                directory: above,
                new_directory: None,
            }));
        }
        Some(_) | None => {}
    }
    if let Some(refused) = refused(view, ctx, rename, (moved.0, found))? {
        return Ok(refused);
    }
    let is_moving = parent != new_parent;
    if is_moving && moved.1 == FileKind::Directory {
        check_cycle(ctx, new_parent, moved.0)?;
    }
    match found {
        Some(other) if rename.exchange => {
            if is_moving && other.1 == FileKind::Directory {
                check_cycle(ctx, parent, other.0)?;
            }
            Ok(exchange(rename, moved, other))
        }
        found => replace(view, ctx, rename, (moved, found)),
    }
}

/// The answer to who may not take what moves from its directory, or what is there already from that one.
fn refused(
    view: &View<'_>,
    ctx: &Context<'_>,
    rename: &Rename<'_>,
    (moved, found): (InodeId, Option<Target>),
) -> Result<Option<Resolved>, Stop> {
    let (parent, new_parent) = (rename.source.0, rename.target.0);
    let refused = not_removable(view, ctx, (parent, moved), rename.standing)?;
    match found {
        Some((ino, _)) if refused.is_none() => {
            not_removable(view, ctx, (new_parent, ino), rename.standing)
        }
        _ => Ok(refused),
    }
}

/// Steps of a rename that replaces `found`, if any.
fn replace(
    view: &View<'_>,
    ctx: &Context<'_>,
    rename: &Rename<'_>,
    (moved, found): (Target, Option<Target>),
) -> Result<Resolved, Stop> {
    let (parent, name) = rename.source;
    let (new_parent, new_name) = rename.target;
    let (ino, kind) = moved;
    let is_directory = kind == FileKind::Directory;
    let mut steps = Vec::with_capacity(8);
    let mut open = None;
    match found {
        None => steps.push(Step::EntryInsert {
            directory: new_parent,
            name: new_name.clone(),
            ino,
            kind,
        }),
        Some((old, old_kind)) => {
            let was_directory = old_kind == FileKind::Directory;
            if is_directory != was_directory {
                let errno = if is_directory {
                    Errno::ENOTDIR
                } else {
                    Errno::EISDIR
                };
                return Err(Stop::Fail(errno));
            }
            open = match rename.known {
                None if was_directory => None,
                known => open_at(ctx, old, known),
            };
            steps.push(if was_directory {
                Step::DirectoryRemove {
                    ino: old,
                    open_at: open,
                }
            } else {
                Step::LinkDrop {
                    ino: old,
                    open_at: open,
                }
            });
            steps.push(Step::EntryReplace {
                directory: new_parent,
                name: new_name.clone(),
                expects: old,
                ino,
                kind,
            });
        }
    }
    match rename.whiteout {
        None => steps.push(Step::EntryRemove {
            directory: parent,
            name: name.clone(),
            expects: ino,
        }),
        Some(caller) => leave_whiteout(view, ctx, &mut steps, (rename, ino, caller))?,
    }
    let leaves = i32::from(is_directory);
    let arrives = i32::from(is_directory && found.is_none());
    touch_both(&mut steps, rename, -leaves, arrives);
    follow(&mut steps, rename, moved, new_parent);
    let finish = Finish::Renamed {
        directory: parent,
        new_directory: new_parent,
        ino,
        replaced: found.map(|(old, _)| old),
        is_open: open.is_some(),
    };
    Ok(Resolved::Steps { steps, finish })
}

/// Steps that put a whiteout where `moved` was.
fn leave_whiteout(
    view: &View<'_>,
    ctx: &Context<'_>,
    steps: &mut Vec<Step>,
    (rename, moved, caller): (&Rename<'_>, InodeId, Caller),
) -> Result<(), Stop> {
    let (parent, name) = rename.source;
    let above = live_directory(view, parent)?;
    let ino = shard(view, view.holder(parent, name)?.shard())?.next_number();
    let kind = FileKind::CharDevice;
    let (record, xattrs) = make::record(ctx, above, ino, New::whiteout(caller))?;
    steps.push(Step::InodeCreate { record });
    steps.push(Step::EntryReplace {
        directory: parent,
        name: name.clone(),
        expects: moved,
        ino,
        kind,
    });
    let lists = xattrs.into_iter();
    steps.extend(lists.map(|(name, value)| Step::NewXattr { ino, name, value }));
    Ok(())
}

/// Steps of two names that change places.
fn exchange(rename: &Rename<'_>, moved: Target, other: Target) -> Resolved {
    let (parent, name) = rename.source;
    let (new_parent, new_name) = rename.target;
    let mut steps = vec![
        Step::EntryReplace {
            directory: new_parent,
            name: new_name.clone(),
            expects: other.0,
            ino: moved.0,
            kind: moved.1,
        },
        Step::EntryReplace {
            directory: parent,
            name: name.clone(),
            expects: moved.0,
            ino: other.0,
            kind: other.1,
        },
    ];
    let leaves = i32::from(moved.1 == FileKind::Directory);
    let comes = i32::from(other.1 == FileKind::Directory);
    touch_both(&mut steps, rename, comes - leaves, leaves - comes);
    follow(&mut steps, rename, moved, new_parent);
    follow(&mut steps, rename, other, parent);
    let finish = Finish::Renamed {
        directory: parent,
        new_directory: new_parent,
        ino: moved.0,
        replaced: Some(other.0),
        is_open: false,
    };
    Resolved::Steps { steps, finish }
}

/// Stamps the directories, each once.
fn touch_both(steps: &mut Vec<Step>, rename: &Rename<'_>, delta: i32, new_delta: i32) {
    let (directory, new_directory) = (rename.source.0, rename.target.0);
    if directory == new_directory {
        steps.push(Step::DirectoryTouch {
            directory,
            nlink_delta: delta + new_delta,
        });
        return;
    }
    steps.push(Step::DirectoryTouch {
        directory,
        nlink_delta: delta,
    });
    steps.push(Step::DirectoryTouch {
        directory: new_directory,
        nlink_delta: new_delta,
    });
}

/// What moved is stamped, and a directory learns its new parent.
fn follow(steps: &mut Vec<Step>, rename: &Rename<'_>, (ino, kind): Target, parent: InodeId) {
    if kind == FileKind::Directory && rename.source.0 != rename.target.0 {
        steps.push(Step::DirectoryParentSet { ino, parent });
    }
    steps.push(Step::InodeTouch { ino });
}
