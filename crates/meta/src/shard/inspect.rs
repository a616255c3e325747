//! A shard looked at from outside, for fsck: whether a mutation fits before it is applied, and all that it holds.
//!
//! Invariant: a mutation that `fits` can be applied without a panic, whoever wrote it.

use std::collections::BTreeMap;

use types::{Attr, ByteRange, InodeId, NodeLife, Run, SECTOR_SIZE, ShardId, SmallBytes};

use super::Shard;
use crate::inode::{Body, Dirent, Inode};
use crate::locks::Found;
use crate::map::{FileMap, check_extents};
use crate::mutation::Mutation;
use crate::name_hash::TIE_COUNT_MAX;
use crate::step::Step;
use crate::transaction::TransactionId;

/// Why a mutation cannot be applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfit {
    /// It makes an inode that is there, or of another shard.
    #[error("it makes inode {ino}, which is there already or is another shard's")]
    Made {
        /// Inode.
        ino: InodeId,
    },
    /// It changes an inode that is not there.
    #[error("it changes inode {ino}, which is not there")]
    Missing {
        /// Inode.
        ino: InodeId,
    },
    /// It changes what an inode of this kind has not, or removes what is not there.
    #[error("it does not fit what inode {ino} is and holds")]
    Other {
        /// Inode.
        ino: InodeId,
    },
    /// It prepares a transaction that is prepared, or steps of another shard, or on what another one holds.
    #[error("it prepares transaction {number:x} of {coordinator}, which does not fit")]
    Transaction {
        /// Coordinating shard.
        coordinator: ShardId,
        /// Its number.
        number: u64,
    },
    /// A record of a tree outside of the beginning of a snapshot.
    #[error("a record of a tree in the wrong place")]
    Tree,
}

/// An inode with all it has.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What stat shows.
    pub attr: &'a Attr,
    /// Directories: the parent.
    pub parent: Option<InodeId>,
    /// Directories: names by cookie, but for those that parts hold.
    pub entries: Option<&'a BTreeMap<u64, Dirent>>,
    /// Directories in parts: the parts by the first cookies of their ranges.
    pub parts: Option<&'a BTreeMap<u64, InodeId>>,
    /// Symbolic links: the target.
    pub target: Option<&'a SmallBytes>,
    /// Files that ever had bytes.
    pub map: Option<&'a FileMap>,
    /// Extended attributes by full name.
    pub xattrs: &'a BTreeMap<SmallBytes, SmallBytes>,
}

/// What of a file lies in some places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lying {
    /// The file.
    pub ino: InodeId,
    /// How it is laid out.
    pub layout: types::Layout,
    /// Its bytes there, whole sectors, in order, each with the number of the place.
    pub ranges: Vec<(usize, ByteRange)>,
}

/// Of a file, but for one to which space is promised or that has no name; `None`: nothing.
pub(super) fn lying_in(inode: &Inode, places: &[Run]) -> Option<Lying> {
    let attr = &inode.attr;
    if attr.nlink == 0 || attr.has_promise() {
        return None;
    }
    let extents = inode.map()?.extents();
    let there = extents.filter_map(|extent| {
        let end = extent.file_sector_end() * SECTOR_SIZE;
        let bytes = ByteRange::new(extent.file_sector * SECTOR_SIZE, end);
        extent.place_among(places).map(|place| (place, bytes))
    });
    let ranges: Vec<(usize, ByteRange)> = there.collect();
    (!ranges.is_empty()).then_some(Lying {
        ino: attr.ino,
        layout: attr.layout,
        ranges,
    })
}

/// A part of a directory.
#[derive(Clone, Copy, Debug)]
pub struct SeenPart<'a> {
    /// Its number.
    pub ino: InodeId,
    /// The directory that it says it is a part of.
    pub directory: InodeId,
    /// Names by cookie.
    pub entries: &'a BTreeMap<u64, Dirent>,
}

impl Shard {
    /// What of a file in memory lies in these places.
    pub fn lying_in(&self, ino: InodeId, places: &[Run]) -> Option<Lying> {
        lying_in(self.inodes.get(&ino.index())?, places)
    }

    /// All inodes that are in memory now.
    pub fn resident_inodes(&self) -> Vec<InodeId> {
        let indices = self.inodes.keys();
        indices.map(|index| InodeId::new(self.id, *index)).collect()
    }

    /// Whether `apply` can take the mutation.
    ///
    /// # Errors
    /// What of it does not fit the shard as it is.
    pub fn fits(&self, mutation: &Mutation) -> Result<(), Unfit> {
        let is_made_well = |made: bool, ino: InodeId| made.then_some(()).ok_or(Unfit::Made { ino });
        match mutation {
            Mutation::InodePut { record } => {
                let ino = record.attr.ino;
                let is_new = ino.shard() == self.id && !self.inodes.contains_key(&ino.index());
                is_made_well(is_new, ino)
            }
            Mutation::InodeRemove { index } => self.has(*index, |body| match body {
                Body::Directory { entries, parts, .. } => {
                    entries.map().is_empty() && parts.is_none()
                }
                Body::Part { entries, .. } => entries.map().is_empty(),
                Body::File(_) | Body::Symlink(_) | Body::Special => true,
            }),
            Mutation::AttrPut { index, attr } => {
                self.has(*index, |_| true)?;
                let old = &self.inodes[index].attr;
                let is_it = (old.ino, old.kind) == (attr.ino, attr.kind);
                is_it.then_some(()).ok_or(Unfit::Other { ino: old.ino })
            }
            Mutation::DirectoryTouch { index, .. } | Mutation::XattrPut { index, .. } => {
                self.has(*index, |_| true)
            }
            Mutation::PartMake { index, directory } => {
                let is_number = *index < 1 << InodeId::INDEX_BITS;
                let ino = is_number.then(|| InodeId::new(self.id, *index));
                let is_new = is_number && !self.inodes.contains_key(index);
                is_made_well(is_new, ino.unwrap_or(*directory))
            }
            Mutation::PartPut {
                directory, begin, ..
            } => self.has(*directory, |body| {
                matches!(body, Body::Directory { .. }) && begin.is_multiple_of(TIE_COUNT_MAX)
            }),
            Mutation::ParentPut { index, .. } => {
                self.has(*index, |body| matches!(body, Body::Directory { .. }))
            }
            Mutation::PartRemove { directory, begin } => self.has(*directory, |body| match body {
                Body::Directory { parts, .. } => {
                    parts.as_ref().is_some_and(|p| p.contains_key(begin))
                }
                Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => false,
            }),
            Mutation::EntryPut {
                directory: index, ..
            } => self.has(*index, |body| {
                matches!(body, Body::Directory { .. } | Body::Part { .. })
            }),
            Mutation::EntryRemove { directory, cookie } => {
                self.has(*directory, |body| match body {
                    Body::Directory { entries, .. } | Body::Part { entries, .. } => {
                        entries.map().contains_key(cookie)
                    }
                    Body::File(_) | Body::Symlink(_) | Body::Special => false,
                })
            }
            Mutation::XattrRemove { index, name } => {
                self.has(*index, |_| true)?;
                let inode = &self.inodes[index];
                let ino = inode.attr.ino;
                let is_there = inode.xattrs.contains_key(name);
                is_there.then_some(()).ok_or(Unfit::Other { ino })
            }
            Mutation::MapPut { .. }
            | Mutation::MapCut { .. }
            | Mutation::MapHole { .. }
            | Mutation::MapPromise { .. }
            | Mutation::MapLoad { .. } => self.fits_map(mutation),
            Mutation::Prepare { id, now, steps } => {
                let is_own = steps.iter().all(|step| step.shard() == self.id);
                let is_free = self.locks.find((*now, *id), steps, self.id) == Found::Free;
                let is_new = !self.prepared.contains_key(id);
                let (coordinator, number) = (id.coordinator, id.number);
                (is_own && is_free && is_new)
                    .then_some(())
                    .ok_or(Unfit::Transaction {
                        coordinator,
                        number,
                    })
            }
            Mutation::OpenPut { .. }
            | Mutation::LifeRemove { .. }
            | Mutation::AnswerPut { .. }
            | Mutation::NextIndex { .. }
            | Mutation::Resolve { .. }
            | Mutation::DoneForget { .. }
            | Mutation::OutcomePut { .. }
            | Mutation::OutcomeForget { .. } => Ok(()),
            Mutation::TreeRoot { .. } | Mutation::TreeRecord { .. } => Err(Unfit::Tree),
        }
    }

    fn has(&self, index: u64, is_right: impl FnOnce(&Body) -> bool) -> Result<(), Unfit> {
        let ino = InodeId::from_raw(u64::from(self.id.0) << InodeId::INDEX_BITS | index);
        let Some(inode) = self.inodes.get(&index) else {
            return Err(Unfit::Missing { ino });
        };
        is_right(&inode.body)
            .then_some(())
            .ok_or(Unfit::Other { ino })
    }

    fn fits_map(&self, mutation: &Mutation) -> Result<(), Unfit> {
        let (index, is_right) = match mutation {
            Mutation::MapPut {
                index,
                extents,
                pieces,
            } => {
                let fits = |piece: &types::Piece| {
                    let end = piece.offset.checked_add(piece.bytes.len() as u64);
                    end.is_some_and(|end| end <= types::limits::FILE_SIZE_MAX)
                };
                let is_right = check_extents(extents).is_ok() && pieces.iter().all(fits);
                (*index, is_right)
            }
            Mutation::MapCut { index, size } => (*index, *size <= types::limits::FILE_SIZE_MAX),
            Mutation::MapHole { index, begin, end } => {
                (*index, begin.max(end) <= &types::limits::FILE_SIZE_MAX)
            }
            Mutation::MapPromise { index, begin, end } => {
                let last = types::limits::FILE_SIZE_MAX.div_ceil(SECTOR_SIZE);
                (*index, begin < end && *end <= last)
            }
            Mutation::MapLoad {
                index,
                extents,
                pieces,
                ..
            } => {
                let map = self.inodes.get(index).and_then(|inode| inode.map());
                let empty = FileMap::default();
                (*index, map.unwrap_or(&empty).can_load(extents, pieces))
            }
            _ => unreachable!("the caller passes the mutations of maps only"),
        };
        self.has(index, |body| matches!(body, Body::File(_)) && is_right)
    }

    /// Every inode, by number.
    pub fn inspect(&self) -> impl Iterator<Item = Seen<'_>> {
        let inodes = self.indices().into_iter();
        let inodes = inodes.filter(|index| !self.inodes[index].is_part());
        inodes.map(|index| self.seen_at(index))
    }

    fn indices(&self) -> Vec<u64> {
        let mut indices: Vec<u64> = self.inodes.keys().copied().collect();
        indices.sort_unstable();
        indices
    }

    /// Every part of a directory, by number.
    pub fn inspect_parts(&self) -> impl Iterator<Item = SeenPart<'_>> {
        let parts = self.indices().into_iter();
        parts.filter_map(|index| self.seen_part(InodeId::new(self.id, index)))
    }

    /// One part.
    pub fn seen_part(&self, ino: InodeId) -> Option<SeenPart<'_>> {
        let inode = self.peek(ino)?;
        Some(SeenPart {
            ino,
            directory: inode.directory_of_part()?,
            entries: inode.entries()?,
        })
    }

    /// One inode.
    pub fn seen(&self, ino: InodeId) -> Option<Seen<'_>> {
        let inode = self.inode(ino)?;
        (!inode.is_part()).then(|| self.seen_at(ino.index()))
    }

    fn seen_at(&self, index: u64) -> Seen<'_> {
        let inode = &self.inodes[&index];
        let parent = match &inode.body {
            Body::Directory { parent, .. } => Some(*parent),
            Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => None,
        };
        let target = match &inode.body {
            Body::Symlink(target) => Some(target),
            Body::File(_) | Body::Directory { .. } | Body::Part { .. } | Body::Special => None,
        };
        Seen {
            attr: &inode.attr,
            parent,
            entries: inode.entries(),
            parts: inode.parts(),
            target,
            map: inode.map(),
            xattrs: &inode.xattrs,
        }
    }

    /// No inode has this index or a higher one.
    pub fn next_index(&self) -> u64 {
        self.next_index
    }

    /// Which lives have which inodes open.
    pub fn opens(&self) -> impl Iterator<Item = (InodeId, NodeLife)> + '_ {
        let id =
            |index: u64| InodeId::from_raw(u64::from(self.id.0) << InodeId::INDEX_BITS | index);
        self.open
            .iter()
            .map(move |(index, life)| (id(*index), *life))
    }

    /// The slots whose answers are kept.
    pub fn slots(&self) -> impl Iterator<Item = (NodeLife, u16)> + '_ {
        self.answers.keys().copied()
    }

    /// Transactions that are prepared here, with their steps.
    pub fn prepared(&self) -> impl Iterator<Item = (TransactionId, &[Step])> {
        let prepared = self.prepared.iter();
        prepared.map(|(id, prepared)| (*id, &prepared.steps[..]))
    }

    /// Transactions that were performed here and are remembered.
    pub fn done(&self) -> impl Iterator<Item = TransactionId> + '_ {
        self.done.iter().copied()
    }

    /// Transactions that this shard has committed as coordinator, with their participants.
    pub fn outcomes(&self) -> impl Iterator<Item = (TransactionId, &[ShardId])> {
        self.outcomes.iter().map(|(id, to)| (*id, &to[..]))
    }

    /// A cookie for another name of a directory, in it or the part of it that holds the name; `None`: the name is there, or its
    /// hash is full.
    pub fn free_cookie(&self, holder: InodeId, name: &types::Name) -> Option<u64> {
        match self.place(holder, name) {
            super::Place::Free(cookie) => Some(cookie),
            super::Place::Taken | super::Place::Full => None,
        }
    }

    /// The cookie is one of those that a name may have.
    pub fn is_cookie_of(&self, name: &types::Name, cookie: u64) -> bool {
        let first = self.key.first_cookie(name.bytes());
        (first..first + TIE_COUNT_MAX).contains(&cookie)
    }
}
