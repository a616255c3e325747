//! Steps: what an operation comes down to, each on exactly one shard; names, on the parts that hold them too.
//!
//! An operation is resolved into steps; the steps of one owner are checked, then performed, and journaled
//! in one record. With two owners the same steps travel in a prepare message and lie in the prepare record
//! until the outcome is known.
//!
//! Invariants
//! - `check` is complete: a step whose check passed on a shard can be performed on it, also after other
//!   steps of the same operation, and also later, as long as what `locks` names stays locked.
//! - A step changes nothing outside its shard and, if it is about a name, the shard of the part that holds it.

use types::{
    Attr, Errno, FileKind, InodeId, Name, NodeLife, ShardId, SmallBytes, Timestamp, limits,
    wire_enum,
};

use crate::inode::{Inode, InodeRecord};
use crate::locks::held;
use crate::mutation::Mutation;
use crate::parts::{self, known_part};
use crate::shard::{Changes, Place, Shard};
use crate::times::{modified, stamped};
use crate::view::{Stop, View};

const CHECKED: &str = "the step was checked";
const LOCKED: &str = "the caller locked the steps' shards";

/// Why a step cannot be performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The operation fails.
    Fail(Errno),
    /// What the operation leaned on has changed: execute it again.
    Changed,
}

/// One change on one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A new name in a directory that has it not.
    EntryInsert {
        /// Directory.
        directory: InodeId,
        /// Name.
        name: Name,
        /// What it leads to.
        ino: InodeId,
        /// Of what kind that is.
        kind: FileKind,
    },
    /// A name goes.
    EntryRemove {
        /// Directory.
        directory: InodeId,
        /// Name.
        name: Name,
        /// What it must lead to.
        expects: InodeId,
    },
    /// A name leads elsewhere from now on; its cookie stays.
    EntryReplace {
        /// Directory.
        directory: InodeId,
        /// Name.
        name: Name,
        /// What it must lead to.
        expects: InodeId,
        /// What it leads to from now on.
        ino: InodeId,
        /// Of what kind that is.
        kind: FileKind,
    },
    /// A directory's entries changed: mtime and ctime, and the count of its subdirectories.
    DirectoryTouch {
        /// Directory.
        directory: InodeId,
        /// Subdirectories more (or fewer).
        nlink_delta: i32,
    },
    /// A new inode, complete with its first name's count.
    InodeCreate {
        /// The inode, under a number that `Shard::reserve_index` gave.
        record: InodeRecord,
    },
    /// An extended attribute of an inode that `InodeCreate` in the same list makes.
    NewXattr {
        /// Inode.
        ino: InodeId,
        /// Full name.
        name: SmallBytes,
        /// Value.
        value: SmallBytes,
    },
    /// One name more for what is no directory.
    LinkAdd {
        /// Inode.
        ino: InodeId,
        /// What the new name takes it for.
        kind: FileKind,
    },
    /// The first name of a file that was made without one, and is open where it was made.
    LinkNameless {
        /// File.
        ino: InodeId,
    },
    /// One name less for what is no directory. With the last one the inode goes, or becomes an orphan
    /// when a node has it open.
    LinkDrop {
        /// Inode.
        ino: InodeId,
        /// This node counts as having it open.
        open_at: Option<NodeLife>,
    },
    /// An empty directory goes, or becomes an orphan when a node has it open.
    DirectoryRemove {
        /// Directory.
        ino: InodeId,
        /// This node counts as having it open.
        open_at: Option<NodeLife>,
    },
    /// A directory's parent changed.
    DirectoryParentSet {
        /// Directory.
        ino: InodeId,
        /// Its parent from now on.
        parent: InodeId,
    },
    /// The inode's ctime is stamped (it moved).
    InodeTouch {
        /// Inode.
        ino: InodeId,
    },
}
wire_enum!(Step {
    1 => EntryInsert { directory, name, ino, kind },
    2 => EntryRemove { directory, name, expects },
    3 => EntryReplace { directory, name, expects, ino, kind },
    4 => DirectoryTouch { directory, nlink_delta },
    5 => InodeCreate { record },
    6 => LinkAdd { ino, kind },
    7 => LinkDrop { ino, open_at },
    8 => DirectoryRemove { ino, open_at },
    9 => DirectoryParentSet { ino, parent },
    10 => InodeTouch { ino },
    11 => LinkNameless { ino },
    12 => NewXattr { ino, name, value },
});

impl Step {
    /// The shard that the step is on.
    pub fn shard(&self) -> ShardId {
        match self {
            Self::EntryInsert { directory, .. }
            | Self::EntryRemove { directory, .. }
            | Self::EntryReplace { directory, .. }
            | Self::DirectoryTouch { directory, .. } => directory.shard(),
            Self::InodeCreate { record } => record.attr.ino.shard(),
            Self::LinkAdd { ino, .. }
            | Self::LinkNameless { ino }
            | Self::NewXattr { ino, .. }
            | Self::LinkDrop { ino, .. }
            | Self::DirectoryRemove { ino, .. }
            | Self::DirectoryParentSet { ino, .. }
            | Self::InodeTouch { ino } => ino.shard(),
        }
    }
}

fn directory(shard: &Shard, ino: InodeId) -> Result<&Inode, Refusal> {
    let inode = shard.inode(ino).filter(|inode| !inode.is_part());
    let inode = inode.ok_or(Refusal::Fail(Errno::ESTALE))?;
    if inode.attr.kind != FileKind::Directory {
        return Err(Refusal::Fail(Errno::ENOTDIR));
    }
    Ok(inode)
}

/// Who holds the name in a directory that was looked at, and the holder's shard. The caller has locked it (`lacking`).
fn holder<'v>(
    view: &'v View<'_>,
    directory: InodeId,
    name: &Name,
) -> Result<(&'v Shard, InodeId), Refusal> {
    match view.holder(directory, name) {
        Ok(holder) => Ok((view.shard(holder.shard()).expect(LOCKED), holder)),
        Err(Stop::Fail(errno)) => Err(Refusal::Fail(errno)),
        Err(_) => unreachable!("{LOCKED}"),
    }
}

fn check_first_name(shard: &Shard, ino: InodeId) -> Result<(), Refusal> {
    let attr = shard.attr(ino).ok_or(Refusal::Fail(Errno::ENOENT))?;
    match attr.kind {
        FileKind::File if attr.nlink < limits::LINK_COUNT_MAX => Ok(()),
        FileKind::File => Err(Refusal::Fail(Errno::EMLINK)),
        _ => Err(Refusal::Fail(Errno::ESTALE)),
    }
}

fn touched_nlink(nlink: u32, delta: i32) -> u32 {
    nlink
        .checked_add_signed(delta)
        .expect("checked: a directory's links stay in range")
}

fn expect_entry(
    view: &View<'_>,
    (directory, name): (InodeId, &Name),
    to: InodeId,
) -> Result<(), Refusal> {
    let (shard, holder) = holder(view, directory, name)?;
    let found = shard.entry(holder, name).map(|(_, entry)| entry.ino);
    if found == Some(to) {
        Ok(())
    } else {
        Err(Refusal::Changed)
    }
}

/// Shards of this owner that the steps need beside their own, which are locked: those of the parts that hold their names.
pub(crate) fn lacking<'s>(
    view: &View<'_>,
    steps: impl IntoIterator<Item = &'s Step>,
) -> Vec<ShardId> {
    let mut lacking = Vec::new();
    for step in steps {
        if let (directory, Some(name)) = held(step)
            && let Some(part) = known_part(view, directory, name)
            && view.shard(part.shard()).is_none()
            && view.is_mine(part.shard())
        {
            lacking.push(part.shard());
        }
    }
    lacking
}

impl Step {
    /// Whether the step can be performed on the shards as they are now.
    pub(crate) fn check(&self, view: &View<'_>) -> Result<(), Refusal> {
        let shard = view.shard(self.shard()).expect(LOCKED);
        match self {
            Self::EntryInsert {
                directory: parent,
                name,
                ..
            } => {
                if directory(shard, *parent)?.attr.nlink == 0 {
                    return Err(Refusal::Fail(Errno::ENOENT));
                }
                let (shard, holder) = holder(view, *parent, name)?;
                match shard.place(holder, name) {
                    Place::Free(_) => Ok(()),
                    Place::Taken => Err(Refusal::Changed),
                    Place::Full => Err(Refusal::Fail(Errno::ENOSPC)),
                }
            }
            Self::EntryRemove {
                directory: parent,
                name,
                expects,
            }
            | Self::EntryReplace {
                directory: parent,
                name,
                expects,
                ..
            } => {
                directory(shard, *parent)?;
                expect_entry(view, (*parent, name), *expects)
            }
            Self::DirectoryTouch {
                directory: ino,
                nlink_delta,
            } => {
                let nlink = directory(shard, *ino)?.attr.nlink;
                let fits = nlink
                    .checked_add_signed(*nlink_delta)
                    .is_some_and(|n| n >= 2);
                let full = if *nlink_delta > 0 {
                    Errno::EMLINK
                } else {
                    Errno::ESTALE
                };
                if fits {
                    Ok(())
                } else {
                    Err(Refusal::Fail(full))
                }
            }
            Self::InodeCreate { record } => {
                if !shard.may_take(record.attr.ino) {
                    return Err(Refusal::Fail(Errno::ESTALE));
                }
                let is_new = shard.inode(record.attr.ino).is_none();
                if is_new {
                    Ok(())
                } else {
                    Err(Refusal::Changed)
                }
            }
            Self::LinkAdd { ino, kind } => {
                let attr = shard.attr(*ino).ok_or(Refusal::Fail(Errno::ESTALE))?;
                let errno = match attr.kind {
                    FileKind::Directory => Errno::EPERM,
                    found if found != *kind => Errno::ESTALE,
                    _ if attr.nlink == 0 => Errno::ENOENT,
                    _ if attr.nlink >= limits::LINK_COUNT_MAX => Errno::EMLINK,
                    _ => return Ok(()),
                };
                Err(Refusal::Fail(errno))
            }
            // Checked with the inode.
            Self::NewXattr { .. } => Ok(()),
            Self::LinkNameless { ino } => check_first_name(shard, *ino),
            Self::LinkDrop { ino, .. } => {
                let attr = shard.attr(*ino).ok_or(Refusal::Changed)?;
                let is_right = attr.nlink > 0 && attr.kind != FileKind::Directory;
                if is_right {
                    Ok(())
                } else {
                    Err(Refusal::Changed)
                }
            }
            Self::DirectoryRemove { ino, .. } => {
                if directory(shard, *ino)?.is_empty_directory() {
                    Ok(())
                } else {
                    Err(Refusal::Fail(Errno::ENOTEMPTY))
                }
            }
            Self::DirectoryParentSet { ino, .. } => directory(shard, *ino).map(|_| ()),
            Self::InodeTouch { ino } => shard
                .attr(*ino)
                .map(|_| ())
                .ok_or(Refusal::Fail(Errno::ESTALE)),
        }
    }

    /// Performs the step; `check` has passed.
    pub(crate) fn perform(&self, view: &mut View<'_>, now: Timestamp, changes: &mut Changes) {
        match self {
            Self::EntryInsert {
                directory,
                name,
                ino,
                kind,
            } => {
                let (shard, holder) = holder(view, *directory, name).expect(CHECKED);
                let Place::Free(cookie) = shard.place(holder, name) else {
                    unreachable!("{CHECKED}");
                };
                let put = entry_put(holder, cookie, name, (*ino, *kind));
                perform_on(view, holder, put, changes);
            }
            Self::EntryReplace {
                directory,
                name,
                ino,
                kind,
                ..
            } => {
                let (shard, holder) = holder(view, *directory, name).expect(CHECKED);
                let (cookie, _) = shard.entry(holder, name).expect(CHECKED);
                let put = entry_put(holder, cookie, name, (*ino, *kind));
                perform_on(view, holder, put, changes);
            }
            Self::EntryRemove {
                directory, name, ..
            } => {
                let (shard, holder) = holder(view, *directory, name).expect(CHECKED);
                let (cookie, _) = shard.entry(holder, name).expect(CHECKED);
                let remove = Mutation::EntryRemove {
                    directory: holder.index(),
                    cookie,
                };
                perform_on(view, holder, remove, changes);
                drop_empty_part(view, (*directory, holder), cookie, changes);
            }
            _ => {
                let shard = view.shard_mut(self.shard()).expect(LOCKED);
                self.perform_alone(shard, now, changes);
            }
        }
    }

    /// Performs a step that is about one inode.
    fn perform_alone(&self, shard: &mut Shard, now: Timestamp, changes: &mut Changes) {
        match self {
            Self::EntryInsert { .. } | Self::EntryReplace { .. } | Self::EntryRemove { .. } => {
                unreachable!("names may be held elsewhere")
            }
            Self::DirectoryTouch {
                directory,
                nlink_delta,
            } => {
                let attr = shard.attr(*directory).expect(CHECKED);
                let touch = Mutation::DirectoryTouch {
                    index: directory.index(),
                    now: modified(&attr, now).mtime,
                    nlink: touched_nlink(attr.nlink, *nlink_delta),
                };
                shard.perform(touch, changes);
            }
            Self::InodeCreate { record } => {
                let record = record.clone();
                shard.perform(Mutation::InodePut { record }, changes);
            }
            Self::NewXattr { ino, name, value } => {
                let (index, name, value) = (ino.index(), name.clone(), value.clone());
                shard.perform(Mutation::XattrPut { index, name, value }, changes);
            }
            Self::LinkAdd { ino, .. } | Self::LinkNameless { ino } | Self::InodeTouch { ino } => {
                let attr = self.attr_after(shard, now).expect(CHECKED);
                let index = ino.index();
                shard.perform(Mutation::AttrPut { index, attr }, changes);
            }
            Self::LinkDrop { ino, open_at } | Self::DirectoryRemove { ino, open_at } => {
                let attr = self.attr_after(shard, now).expect(CHECKED);
                drop_link(shard, *ino, attr, *open_at, changes);
            }
            Self::DirectoryParentSet { ino, parent } => {
                let (index, parent) = (ino.index(), *parent);
                shard.perform(Mutation::ParentPut { index, parent }, changes);
            }
        }
    }

    /// The attributes of the step's inode as performing it would leave them (with a link count of 0 where
    /// the inode may go). `None`: the step changes none that an answer shows.
    pub(crate) fn attr_after(&self, shard: &Shard, now: Timestamp) -> Option<Attr> {
        let stamp = |ino: InodeId| shard.attr(ino).map(|attr| stamped(&attr, now));
        match self {
            Self::NewXattr { .. }
            | Self::EntryInsert { .. }
            | Self::EntryRemove { .. }
            | Self::EntryReplace { .. }
            | Self::DirectoryParentSet { .. } => None,
            Self::InodeCreate { record } => Some(record.attr),
            Self::DirectoryTouch {
                directory,
                nlink_delta,
            } => shard.attr(*directory).map(|attr| Attr {
                nlink: touched_nlink(attr.nlink, *nlink_delta),
                ..modified(&attr, now)
            }),
            Self::LinkAdd { ino, .. } | Self::LinkNameless { ino } => {
                stamp(*ino).map(|attr| Attr {
                    nlink: attr.nlink + 1,
                    ..attr
                })
            }
            Self::LinkDrop { ino, .. } => stamp(*ino).map(|attr| Attr {
                nlink: attr.nlink - 1,
                ..attr
            }),
            Self::DirectoryRemove { ino, .. } => stamp(*ino).map(|attr| Attr { nlink: 0, ..attr }),
            Self::InodeTouch { ino } => stamp(*ino),
        }
    }
}

fn perform_on(view: &mut View<'_>, ino: InodeId, mutation: Mutation, changes: &mut Changes) {
    let shard = view.shard_mut(ino.shard()).expect(LOCKED);
    shard.perform(mutation, changes);
}

/// A part goes with the last of its names, which had this cookie.
fn drop_empty_part(
    view: &mut View<'_>,
    (directory, holder): (InodeId, InodeId),
    cookie: u64,
    changes: &mut Changes,
) {
    let entries = |ino: InodeId| view.shard(ino.shard())?.peek(ino)?.entries();
    if holder == directory || entries(holder).is_none_or(|entries| !entries.is_empty()) {
        return;
    }
    let home = view
        .shard(directory.shard())
        .and_then(|s| s.peek(directory));
    let parts = home.and_then(Inode::parts).expect(CHECKED);
    let (begin, _) = parts.range(..=cookie).next_back().expect(CHECKED);
    parts::remove(view, directory, (*begin, holder), changes);
}

fn entry_put(
    directory: InodeId,
    cookie: u64,
    name: &Name,
    (ino, kind): (InodeId, FileKind),
) -> Mutation {
    Mutation::EntryPut {
        directory: directory.index(),
        cookie,
        name: name.clone(),
        ino,
        kind,
    }
}

/// Sets the new attributes; without a link left the inode goes, unless a node has it open.
fn drop_link(
    shard: &mut Shard,
    ino: InodeId,
    attr: Attr,
    open_at: Option<NodeLife>,
    changes: &mut Changes,
) {
    let index = ino.index();
    if attr.nlink == 0 {
        if open_at.is_none() && !shard.is_open(ino) {
            shard.perform(Mutation::InodeRemove { index }, changes);
            return;
        }
        if let Some(life) = open_at.filter(|life| !shard.is_open_at(ino, *life)) {
            let is_open = true;
            let open = Mutation::OpenPut {
                index,
                life,
                is_open,
            };
            shard.perform(open, changes);
        }
    }
    shard.perform(Mutation::AttrPut { index, attr }, changes);
}
