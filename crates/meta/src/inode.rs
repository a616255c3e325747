//! An inode in memory, and its record.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use types::{Attr, FileKind, InodeId, Name, SmallBytes, Timestamp, wire_struct};

use crate::map::{FileMap, tree_weight};

/// The part of an inode that is journaled when it is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// What stat shows.
    pub attr: Attr,
    /// Directories: the parent (the root's is itself). Others: the default number.
    pub parent: InodeId,
    /// Symbolic links: the target. Others: empty.
    pub target: SmallBytes,
}
wire_struct!(InodeRecord {
    attr,
    parent,
    target
});

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dirent {
    /// The name.
    pub name: Name,
    /// What it leads to.
    pub ino: InodeId,
    /// Of what kind that is (an inode never changes its kind).
    pub kind: FileKind,
}

/// The names of a directory by cookie, and how much memory they take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entries {
    map: BTreeMap<u64, Dirent>,
    /// Bytes of names that are too long to lie in their entries.
    long_size: usize,
}

impl Entries {
    /// All of them.
    pub(crate) const fn map(&self) -> &BTreeMap<u64, Dirent> {
        &self.map
    }

    /// Puts one in; what had its cookie before.
    pub(crate) fn insert(&mut self, cookie: u64, entry: Dirent) -> Option<Dirent> {
        self.long_size += entry.name.heap_size();
        let old = self.map.insert(cookie, entry);
        self.forget(old)
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, cookie: u64) -> Option<Dirent> {
        let old = self.map.remove(&cookie);
        self.forget(old)
    }

    fn forget(&mut self, old: Option<Dirent>) -> Option<Dirent> {
        self.long_size -= old.as_ref().map_or(0, |old| old.name.heap_size());
        old
    }

    /// Bytes that they take in memory, roughly. O(1).
    pub(crate) fn weight(&self) -> usize {
        tree_weight::<u64, Dirent>(self.map.len()) + self.long_size
    }
}

/// The parts of a directory by the first cookie of their ranges; each range ends where the next begins.
pub(crate) type Parts = BTreeMap<u64, InodeId>;

/// What belongs to an inode beside its attributes, by kind.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Regular file: where its bytes lie; `None` while it never had any.
    File(Option<Box<FileMap>>),
    /// Directory.
    Directory {
        /// Parent.
        parent: InodeId,
        /// Names by cookie: those of its own range, which ends where the first part begins.
        entries: Entries,
        /// Who holds the others (`crate::parts`); `None`: there are none.
        parts: Option<Box<Parts>>,
    },
    /// A range of a directory's names: no inode that anybody can name.
    Part {
        /// The directory.
        directory: InodeId,
        /// Names by cookie.
        entries: Entries,
    },
    /// Symbolic link.
    Symlink(SmallBytes),
    /// FIFO, socket, device.
    Special,
}

/// An inode.
#[derive(Debug)]
pub(crate) struct Inode {
    /// What stat shows.
    pub(crate) attr: Attr,
    /// The rest.
    pub(crate) body: Body,
    /// Extended attributes by full name.
    pub(crate) xattrs: BTreeMap<SmallBytes, SmallBytes>,
    /// Somebody has looked at it since the clock of evictions did.
    pub(crate) used: AtomicBool,
}

impl Inode {
    /// A new inode.
    pub(crate) fn new(record: InodeRecord) -> Self {
        let body = match record.attr.kind {
            FileKind::File => Body::File(None),
            FileKind::Directory => Body::Directory {
                parent: record.parent,
                entries: Entries::default(),
                parts: None,
            },
            FileKind::Symlink => Body::Symlink(record.target),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                Body::Special
            }
        };
        Self {
            attr: record.attr,
            body,
            xattrs: BTreeMap::new(),
            used: AtomicBool::new(true),
        }
    }

    /// A new part of a directory.
    pub(crate) fn new_part(ino: InodeId, directory: InodeId) -> Self {
        // Attributes that nobody is shown.
        let attr = Attr::new(ino, 0, FileKind::Directory, 0, Timestamp::default());
        Self {
            attr,
            body: Body::Part {
                directory,
                entries: Entries::default(),
            },
            xattrs: BTreeMap::new(),
            used: AtomicBool::new(true),
        }
    }

    /// The record that makes it again, without entries, map and extended attributes.
    pub(crate) fn record(&self) -> InodeRecord {
        let mut record = InodeRecord {
            attr: self.attr,
            parent: InodeId::default(),
            target: SmallBytes::default(),
        };
        match &self.body {
            Body::Directory { parent, .. } => record.parent = *parent,
            Body::Symlink(target) => record.target = target.clone(),
            Body::File(_) | Body::Part { .. } | Body::Special => {}
        }
        record
    }

    /// The access control list, if the inode has one.
    pub(crate) fn access_acl(&self) -> Option<&SmallBytes> {
        match self.attr.has_acl() {
            true => self.xattrs.get(crate::acl::ACCESS),
            false => None,
        }
    }

    /// The file map, made when there is none yet. `None`: no regular file.
    pub(crate) fn map_mut(&mut self) -> Option<&mut FileMap> {
        match &mut self.body {
            Body::File(map) => Some(map.get_or_insert_default()),
            Body::Directory { .. } | Body::Part { .. } | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The file map, if it has one.
    pub(crate) fn map(&self) -> Option<&FileMap> {
        match &self.body {
            Body::File(map) => map.as_deref(),
            Body::Directory { .. } | Body::Part { .. } | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The names that a directory or a part holds itself.
    pub(crate) fn entries(&self) -> Option<&BTreeMap<u64, Dirent>> {
        match &self.body {
            Body::Directory { entries, .. } | Body::Part { entries, .. } => Some(entries.map()),
            Body::File(_) | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The parts of a directory; `None`: it has none.
    pub(crate) fn parts(&self) -> Option<&Parts> {
        match &self.body {
            Body::Directory { parts, .. } => parts.as_deref(),
            Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// The part of a directory that a cookie lies in; `None`: the directory holds it itself.
    pub(crate) fn part_of(&self, cookie: u64) -> Option<InodeId> {
        let part = self.parts()?.range(..=cookie).next_back();
        part.map(|(_, part)| *part)
    }

    /// It is a part: of which directory.
    pub(crate) fn directory_of_part(&self) -> Option<InodeId> {
        match &self.body {
            Body::Part { directory, .. } => Some(*directory),
            Body::File(_) | Body::Directory { .. } | Body::Symlink(_) | Body::Special => None,
        }
    }

    /// It is a part of a directory.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.body, Body::Part { .. })
    }

    /// A directory without any name, in parts or itself.
    pub(crate) fn is_empty_directory(&self) -> bool {
        match &self.body {
            Body::Directory { entries, parts, .. } => entries.map().is_empty() && parts.is_none(),
            Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => false,
        }
    }
}
