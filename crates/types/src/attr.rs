//! What stat shows of an inode, names, and what setattr changes.

use crate::codec::{Decode, DecodeError, Encode, Reader, SmallBytes};
use crate::{InodeId, Layout, Timestamp, limits, wire_enum, wire_struct};

/// A name within a directory: 1 to 255 bytes, no slash, no NUL, neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(SmallBytes);

impl Name {
    /// Checks and copies `bytes`; `None` if they are no name.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let fits = !bytes.is_empty() && bytes.len() <= limits::NAME_SIZE_MAX;
        let clean = !bytes.contains(&b'/') && !bytes.contains(&0);
        (fits && clean && bytes != b"." && bytes != b"..").then(|| Self(SmallBytes::new(bytes)))
    }

    /// Bytes that it takes beside itself, roughly.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }

    /// The name's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Encode for Name {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
}

impl Decode for Name {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let bytes = SmallBytes::decode(reader)?;
        Self::new(&bytes).ok_or(DecodeError::Unknown {
            what: "name",
            value: bytes.len() as u64,
        })
    }
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}
wire_enum!(FileKind {
    1 => File {}, 2 => Directory {}, 3 => Symlink {}, 4 => Fifo {}, 5 => Socket {},
    6 => CharDevice {}, 7 => BlockDevice {},
});

impl FileKind {
    /// The S_IFMT bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// From `st_mode`.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::File,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }
}

/// What stat shows, and what caches need to know beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// The inode.
    pub ino: InodeId,
    /// Distinguishes successive uses of the number; random at creation.
    pub generation: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits (07777); and `HAS_ACL`, `HAS_PROMISE`.
    pub permissions: u32,
    /// Names that lead here; for directories 2 and one for each subdirectory.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes, as the kernel encodes it.
    pub rdev: u32,
    /// Bytes of a file or symlink target.
    pub size: u64,
    /// Sectors of 4 KiB that the data occupies.
    pub sector_count: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Grows with every change the owner applies; orders two views of the same inode.
    pub change: u64,
    /// Grows with each truncation: sizes merge by maximum only within one size generation.
    pub size_generation: u64,
    /// Where new sectors of a file go; directories: what is made there inherits it.
    pub layout: Layout,
}
wire_struct!(Attr {
    ino,
    generation,
    kind,
    permissions,
    nlink,
    uid,
    gid,
    rdev,
    size,
    sector_count,
    atime,
    mtime,
    ctime,
    btime,
    change,
    size_generation,
    layout,
});

/// Among the permissions: the inode has an access control list (or a directory one for what is made in it). So who may
/// cache the attributes need not ask for a list that is not there, for each file of a listing.
pub const HAS_ACL: u32 = 1 << 16;

/// Among the permissions: space is promised to ranges of the file (fallocate). It follows from the file's map.
pub const HAS_PROMISE: u32 = 1 << 17;

/// Flag of setting an access control list, beside those of setxattr(2): the set-group-id bit goes, as who sets the list is not
/// of the inode's group.
pub const XATTR_KILL_SET_GID: u32 = 1 << 16;

impl Attr {
    /// A new, empty inode of root with the names that its kind begins with, and the default layout.
    pub fn new(
        ino: InodeId,
        generation: u64,
        kind: FileKind,
        permissions: u32,
        now: Timestamp,
    ) -> Self {
        Self {
            ino,
            generation,
            kind,
            permissions,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            sector_count: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            change: 1,
            size_generation: 0,
            layout: Layout::default(),
        }
    }

    /// `st_mode`.
    pub const fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions & 0o7777
    }

    /// Space is promised to ranges of it.
    pub const fn has_promise(&self) -> bool {
        self.permissions & HAS_PROMISE != 0
    }

    /// It has an access control list of either kind.
    pub const fn has_acl(&self) -> bool {
        self.permissions & HAS_ACL != 0
    }
}

/// What a setattr changes; `None` leaves a field as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// New permission bits (07777).
    pub permissions: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size: truncates or extends.
    pub size: Option<u64>,
    /// New access time; `Some(None)` is "now", stamped by the owner (not earlier than one of another clock, up to a second ahead).
    pub atime: Option<Option<Timestamp>>,
    /// New modification time; `Some(None)` is "now", stamped by the owner as the access time.
    pub mtime: Option<Option<Timestamp>>,
    /// Set-id bits are to be cleared (a write or truncate by one who may not keep them): the group of whoever does it.
    pub kill_set_id: Option<u32>,
}

impl SetAttr {
    /// Only the owner may do it, or root. (A time that is set to now, or a size, is anybody's who may write.)
    pub const fn is_owners(&self) -> bool {
        self.permissions.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || matches!(self.atime, Some(Some(_)))
            || matches!(self.mtime, Some(Some(_)))
    }
}

/// As whose owner somebody may act who is not root: what only the owner of an inode may do is his whose uid this covers. The kernel asks the same
/// before it asks this node, by the owner that it knows of, which another node may have changed since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Who asks.
    pub uid: u32,
    /// The first of those for whom the kernel lets him act (by a capability, in his user namespace).
    pub first: u32,
    /// The last one; less than `first` where there are none.
    pub last: u32,
}
wire_struct!(Standing { uid, first, last });

impl Standing {
    /// Whether what is `uid`'s is as good as his own.
    pub const fn covers(&self, uid: u32) -> bool {
        self.uid == uid || self.first <= uid && uid <= self.last
    }
}

/// Set-id bits among `permissions` that are cleared when somebody changes the content who may not keep them: set-user-id; set-group-id
/// where the group may execute the file. Where set-user-id goes, set-group-id goes along if it is not the file's group that does it. It stays on a file
/// that no group may execute and that has no set-user-id: as on Linux, which then does not look.
pub const fn set_ids_taken(permissions: u32, is_of_its_group: bool) -> u32 {
    let is_program = permissions & 0o010 != 0;
    let taken = match is_program || permissions & 0o4000 != 0 && !is_of_its_group {
        true => 0o6000,
        false => 0o4000,
    };
    permissions & taken
}
wire_struct!(SetAttr {
    permissions,
    uid,
    gid,
    size,
    atime,
    mtime,
    kill_set_id
});
