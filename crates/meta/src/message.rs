//! What a client node asks the owner of a shard, and what it is answered.
//!
//! Invariants
//! - An operation is sent to the owner of its *home shard* (`Op::home`): the shard of the directory it
//!   changes first, or of the inode it is about.
//! - Every `Reply` says by its variant which operations it answers; `Error`, `Stale` answer any.
//! - Discriminants are part of the wire and journal format (answers are journaled): none is reused.

use types::extent::Extent;
use types::{
    Attr, Errno, FileKind, InodeId, Name, Piece, ReleaseStamp, Run, SetAttr, ShardId, SmallBytes,
    Standing, Timestamp, wire_enum, wire_struct,
};

use crate::map;

/// Who asks, as far as ownership and rights of what is made depend on it. Permission checks are the kernel's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits that what is made does not get, unless the directory has a default access control list.
    pub umask: u32,
}
wire_struct!(Caller { uid, gid, umask });

/// What `Op::Make` makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewKind {
    /// Regular file, FIFO, socket or device node.
    Node {
        /// Full `st_mode`, umask not applied.
        mode: u32,
        /// Device number as the kernel encodes it; 0 for other kinds.
        rdev: u32,
    },
    /// A directory.
    Directory {
        /// Permission bits (07777), umask not applied.
        permissions: u32,
        /// The new directory's inode number: its shard is one that the making node owns, or any (it may
        /// be another owner's; the operation then takes two phases). Index 0 lets the shard choose; any
        /// other was given by `Shard::reserve_index`.
        placement: InodeId,
    },
    /// A symbolic link.
    Symlink {
        /// Its target, 1 to `limits::SYMLINK_SIZE_MAX` bytes.
        target: SmallBytes,
    },
}
wire_enum!(NewKind {
    1 => Node { mode, rdev }, 2 => Directory { permissions, placement }, 3 => Symlink { target },
});

/// What the asking node knows of the inode that a name leads to.
///
/// With the right inode, `is_open` is believed. With another or none, the owner takes the inode to be
/// open at the asking node and says so in its reply; a node that has not got it open sends `Closed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// The inode that the node believes the name leads to.
    pub ino: InodeId,
    /// The node has it open.
    pub is_open: bool,
}
wire_struct!(Known { ino, is_open });

/// New content of a file, already durable on its NSDs (extents) or carried here (pieces).
///
/// - Extents are sorted, disjoint and lie in the sender's grants; each covers whole sectors that the
///   sender holds the write token for. Bytes of the last sector beyond the file's end are zero.
/// - Pieces may be in any order; each lies within the sender's write token. Where pieces and extents of
///   one Commit overlap, the pieces are the newer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Commit {
    /// The file.
    pub ino: InodeId,
    /// Its inode generation.
    pub generation: u64,
    /// The size generation under which the bytes were written.
    pub size_generation: u64,
    /// The writer's own end of file; merges by maximum. `None` leaves the size.
    pub size: Option<u64>,
    /// The content changed: when it did last, by the writer's clock. The owner takes it as mtime, but never
    /// a time more than a second ahead of its own clock, and never an earlier one than it has told (unless that
    /// was set further ahead of the clock): so a stat before the Commit and one after it show the same.
    pub modified: Option<Timestamp>,
    /// Set-id bits are to be cleared: the group of whoever wrote (`types::attr::set_ids_taken`).
    pub kill_set_id: Option<u32>,
    /// The content changed, but a time that was set since is the last one (`modified` is none): the rights of a program go all the same.
    pub drops_rights: bool,
    /// Bytes in sectors.
    pub extents: Vec<Extent>,
    /// Bytes kept as metadata, together at most `limits::SYNC_INLINE_SIZE_MAX` and a sector.
    pub pieces: Vec<Piece>,
}
wire_struct!(Commit {
    ino,
    generation,
    size_generation,
    size,
    modified,
    kill_set_id,
    drops_rights,
    extents,
    pieces
});

/// Adjacent sectors of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SectorRange {
    /// First.
    pub begin: u64,
    /// First behind them.
    pub end: u64,
}
wire_struct!(SectorRange { begin, end });

/// What a client node asks the owner of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// What `name` in `parent` leads to. Answer: `Entry`, or `Absent`.
    Lookup {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// A directory's parent. Answer: `Entry`.
    LookupParent {
        /// Directory.
        ino: InodeId,
    },
    /// Attributes. Answer: `Attr`.
    GetAttr {
        /// Inode.
        ino: InodeId,
    },
    /// Change attributes. Answer: `Attr`.
    SetAttr {
        /// Inode.
        ino: InodeId,
        /// What changes.
        set: SetAttr,
        /// Who must be the owner for it; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Bytes of a file read as zero from now on, and whole sectors of them are free (fallocate: PUNCH_HOLE, ZERO_RANGE).
    /// Answer: `Attr`.
    Punch {
        /// File.
        ino: InodeId,
        /// First byte.
        begin: u64,
        /// First byte behind them.
        end: u64,
        /// They do not make the file longer.
        keeps_size: bool,
    },
    /// Promise space to bytes of a file: later writes there find sectors (fallocate with mode 0 or KEEP_SIZE). The owner's
    /// space is asked before it is executed. Answer: `Attr`.
    Allocate {
        /// File.
        ino: InodeId,
        /// First byte.
        begin: u64,
        /// First byte behind them.
        end: u64,
        /// They do not make the file longer.
        keeps_size: bool,
    },
    /// Which sectors of a file are promised. Answer: `Promised`.
    GetPromised {
        /// File.
        ino: InodeId,
        /// First file sector asked about.
        begin: u64,
    },
    /// Make a regular file without a name, which the asking node counts as having open from the beginning (O_TMPFILE).
    /// Answer: `Made`.
    CreateNameless {
        /// Directory that it would be in.
        parent: InodeId,
        /// Permission bits (07777), umask not applied.
        permissions: u32,
        /// Who makes it.
        caller: Caller,
    },
    /// The first name of a file that the asking node has made without one, and has open. Where another node has taken
    /// that name away again meanwhile, it gets this one all the same. Answer: `Made` with `is_new` false.
    LinkNameless {
        /// File.
        ino: InodeId,
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Make a name and what it names; EEXIST when there is one. Answer: `Made`.
    Make {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// What.
        kind: NewKind,
        /// Who makes it.
        caller: Caller,
    },
    /// Make a regular file, or find it where it is there (O_CREAT). Answer: `Made`; `is_new` says which.
    Create {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// Permission bits (07777), umask not applied.
        permissions: u32,
        /// O_EXCL: EEXIST when the name is there.
        exclusive: bool,
        /// Who makes it.
        caller: Caller,
    },
    /// Another name for what is no directory. Answer: `Made` with `is_new` false.
    Link {
        /// Inode.
        ino: InodeId,
        /// Its kind, as the asking node knows it (checked where the inode lives); no directory (EPERM).
        kind: FileKind,
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Remove a name of what is no directory. Answer: `Removed`.
    Unlink {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// What the asking node knows of the target.
        known: Option<Known>,
        /// Who asks, for directories with the sticky bit; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Remove an empty directory. Answer: `Removed`.
    Rmdir {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// What the asking node knows of the target; `None` counts as not open here.
        known: Option<Known>,
        /// Who asks, for directories with the sticky bit; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Move a name. Answer: `Renamed`.
    Rename {
        /// Source directory.
        parent: InodeId,
        /// Source name.
        name: Name,
        /// Target directory.
        new_parent: InodeId,
        /// Target name.
        new_name: Name,
        /// RENAME_NOREPLACE.
        no_replace: bool,
        /// RENAME_EXCHANGE.
        exchange: bool,
        /// RENAME_WHITEOUT: who makes a character device 0, 0 of what the source name leads to then.
        whiteout: Option<Caller>,
        /// What the asking node knows of what the target name leads to.
        known: Option<Known>,
        /// Who asks, for directories with the sticky bit; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Target of a symbolic link. Answer: `Bytes`.
    ReadLink {
        /// Inode.
        ino: InodeId,
    },
    /// Entries behind `cookie` (0 is from the start; `.` and `..` are the client's, cookies 1 and 2).
    /// Answer: `Listing`.
    ReadDir {
        /// Directory.
        ino: InodeId,
        /// Cookie of the last entry seen.
        cookie: u64,
        /// Bytes of the listing as `listed_size` counts them.
        size: u32,
        /// With attributes where they are at hand.
        plus: bool,
    },
    /// Value of an extended attribute. Answer: `Bytes`, or ENODATA.
    GetXattr {
        /// Inode.
        ino: InodeId,
        /// Full name (`user.x`).
        name: SmallBytes,
    },
    /// Set an extended attribute. Answer: `Attr`.
    SetXattr {
        /// Inode.
        ino: InodeId,
        /// Full name.
        name: SmallBytes,
        /// Value, at most 64 KiB.
        value: SmallBytes,
        /// XATTR_CREATE (1) or XATTR_REPLACE (2), or neither (0); with an access control list also `types::attr::XATTR_KILL_SET_GID`.
        flags: u32,
        /// Who must be the owner for it, where it is an access control list; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Names of the extended attributes, NUL-terminated. Answer: `Bytes`.
    ListXattr {
        /// Inode.
        ino: InodeId,
    },
    /// Remove an extended attribute. Answer: `Attr`.
    RemoveXattr {
        /// Inode.
        ino: InodeId,
        /// Full name.
        name: SmallBytes,
        /// Who must be the owner for it, where it is an access control list; `None`: whoever asks may (root).
        standing: Option<Standing>,
    },
    /// Where the bytes of a file lie. Answer: `Map`.
    GetMap {
        /// File.
        ino: InodeId,
        /// First byte asked for.
        begin: u64,
        /// First byte not asked for; `u64::MAX` is without end.
        end: u64,
        /// Most extents and pieces together to answer (at least one of each kind is answered).
        count_max: u32,
    },
    /// New content. Answer: `Attr`, `Stale` or `Resized`.
    Commit(Commit),
    /// The same bytes, moved from pieces to sectors. Sectors whose pieces have changed since `map_version` was read
    /// are left out, and so are their runs. Answer: `Attr`, or `Stale` when none is left.
    Destage {
        /// File.
        ino: InodeId,
        /// Version of the map that the bytes were read under.
        map_version: u64,
        /// Sectors that hold what extents and pieces of that version held there.
        extents: Vec<Extent>,
    },
    /// The asking node has the inode no longer open. Answer: `Done`, or `Absent` when nobody keeps the inode.
    Closed {
        /// Inode.
        ino: InodeId,
        /// Its last release of tokens on the inode: what that says of opens, and those before it, is out of date.
        after: ReleaseStamp,
    },
    /// The asking node has read the inode: its access time goes on to `at`, or back to it where it was set ahead of the owner's
    /// clock, if nothing has changed since, and no token is asked back for that. Answer: `Attr`, whether it was taken or not.
    Accessed {
        /// Inode.
        ino: InodeId,
        /// When, by the reader's clock; the owner's where that is behind.
        at: Timestamp,
        /// The inode's change number as the reader knows it.
        change: u64,
    },
    /// Counts of the home shard. Answer: `Statistics`.
    StatFs {
        /// Shard.
        shard: ShardId,
    },
    /// The directories above a directory, as far as this owner holds them. Only for who holds the
    /// cluster-wide rename token: without it the answer may be old before it is read. Answer: `Chain`.
    Ancestors {
        /// Directory.
        ino: InodeId,
    },
}
wire_enum!(Op {
    1 => Lookup { parent, name },
    2 => LookupParent { ino },
    3 => GetAttr { ino },
    4 => SetAttr { ino, set, standing },
    5 => Make { parent, name, kind, caller },
    6 => Create { parent, name, permissions, exclusive, caller },
    7 => Link { ino, kind, parent, name },
    8 => Unlink { parent, name, known, standing },
    9 => Rmdir { parent, name, known, standing },
    10 => Rename { parent, name, new_parent, new_name, no_replace, exchange, whiteout, known, standing },
    11 => ReadLink { ino },
    12 => ReadDir { ino, cookie, size, plus },
    13 => GetXattr { ino, name },
    14 => SetXattr { ino, name, value, flags, standing },
    15 => ListXattr { ino },
    16 => RemoveXattr { ino, name, standing },
    17 => GetMap { ino, begin, end, count_max },
    18 => Commit(commit),
    19 => Destage { ino, map_version, extents },
    20 => Closed { ino, after },
    21 => StatFs { shard },
    22 => Ancestors { ino },
    23 => Punch { ino, begin, end, keeps_size },
    24 => CreateNameless { parent, permissions, caller },
    25 => LinkNameless { ino, parent, name },
    26 => Accessed { ino, at, change },
    27 => Allocate { ino, begin, end, keeps_size },
    28 => GetPromised { ino, begin },
});

impl Op {
    /// The shard whose owner executes the operation.
    pub fn home(&self) -> ShardId {
        match self {
            Self::Lookup { parent, .. }
            | Self::Make { parent, .. }
            | Self::Create { parent, .. }
            | Self::CreateNameless { parent, .. }
            | Self::Link { parent, .. }
            | Self::LinkNameless { parent, .. }
            | Self::Unlink { parent, .. }
            | Self::Rmdir { parent, .. }
            | Self::Rename { parent, .. } => parent.shard(),
            Self::LookupParent { ino }
            | Self::GetAttr { ino }
            | Self::SetAttr { ino, .. }
            | Self::Punch { ino, .. }
            | Self::Allocate { ino, .. }
            | Self::GetPromised { ino, .. }
            | Self::ReadLink { ino }
            | Self::ReadDir { ino, .. }
            | Self::GetXattr { ino, .. }
            | Self::SetXattr { ino, .. }
            | Self::ListXattr { ino }
            | Self::RemoveXattr { ino, .. }
            | Self::GetMap { ino, .. }
            | Self::Destage { ino, .. }
            | Self::Ancestors { ino }
            | Self::Accessed { ino, .. }
            | Self::Closed { ino, .. } => ino.shard(),
            Self::Commit(commit) => commit.ino.shard(),
            Self::StatFs { shard } => *shard,
        }
    }

    /// The operation changes something when it succeeds, so that a repeat of it must be recognised:
    /// a remote node sends it with a slot, and the answer is kept.
    pub const fn is_change(&self) -> bool {
        match self {
            Self::Lookup { .. }
            | Self::LookupParent { .. }
            | Self::GetAttr { .. }
            | Self::ReadLink { .. }
            | Self::ReadDir { .. }
            | Self::GetXattr { .. }
            | Self::ListXattr { .. }
            | Self::GetMap { .. }
            | Self::GetPromised { .. }
            | Self::Ancestors { .. }
            | Self::StatFs { .. } => false,
            Self::SetAttr { .. }
            | Self::Punch { .. }
            | Self::Allocate { .. }
            | Self::Make { .. }
            | Self::Create { .. }
            | Self::CreateNameless { .. }
            | Self::Link { .. }
            | Self::LinkNameless { .. }
            | Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::Rename { .. }
            | Self::SetXattr { .. }
            | Self::RemoveXattr { .. }
            | Self::Commit(_)
            | Self::Destage { .. }
            | Self::Accessed { .. }
            // A late repeat would be taken for news of an open that came after it.
            | Self::Closed { .. } => true,
        }
    }

    /// The runs that the operation would take into use: the caller checks that all of them lie in the
    /// asking node's grants *before* it executes (execution does not fail for want of a grant).
    /// `None` when the extents are malformed; executing then answers EINVAL without a change.
    pub fn runs_used(&self) -> Option<Vec<Run>> {
        match self {
            Self::Commit(Commit { extents, .. }) | Self::Destage { extents, .. } => {
                map::check_extents(extents).ok()?;
                Some(map::runs_of(extents))
            }
            _ => Some(Vec::new()),
        }
    }
}

/// A directory entry in an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Its name.
    pub name: Name,
    /// What it leads to.
    pub ino: InodeId,
    /// Of what kind that is.
    pub kind: FileKind,
    /// Passed back to go on behind this entry.
    pub cookie: u64,
    /// With `plus`, where the inode's shard is at hand. A hint: no token goes with it, so a node that has
    /// not got one asks (GetAttr) before it shows the size of a file that another node may be writing.
    pub attr: Option<Attr>,
}
wire_struct!(Listed {
    name,
    ino,
    kind,
    cookie,
    attr
});

/// Bytes that an entry counts in a listing: those of FUSE's `fuse_dirent` and `fuse_direntplus`.
pub const fn listed_size(name_size: usize, plus: bool) -> usize {
    let header = if plus { 152 } else { 24 };
    (header + name_size).next_multiple_of(8)
}

/// What the owner answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// It failed, and nothing changed.
    Error(Errno),
    /// Commit, Destage: not applied. The sender's token, size generation, inode generation or map version
    /// is not the current one; it looks again and, where the bytes are still its own, sends them anew.
    Stale,
    /// Commit: not applied, for the size was changed under another token since the generation that it names. The
    /// attributes are those of now: what of the bytes the sender's tokens still cover goes anew under them.
    Resized(Attr),
    /// Lookup, LookupParent. Without `attr` the inode is another owner's: ask there (GetAttr).
    Entry {
        /// What the name leads to.
        ino: InodeId,
        /// Of what kind.
        kind: FileKind,
        /// Its attributes.
        attr: Option<Attr>,
    },
    /// Lookup: the name is not there. Closed: the inode is not there any more.
    Absent,
    /// GetAttr, SetAttr, Punch, Allocate, SetXattr, RemoveXattr, Commit, Destage: the inode's attributes after it.
    Attr(Attr),
    /// Make, Create, Link.
    Made {
        /// Attributes of what the name now leads to. For `Create` of a name that was there whose inode is
        /// another owner's (a link from elsewhere) `None`: ask there.
        attr: Option<Attr>,
        /// What the name now leads to.
        ino: InodeId,
        /// The directory's attributes after it.
        directory: Attr,
        /// The inode was made by this operation.
        is_new: bool,
    },
    /// Unlink, Rmdir.
    Removed {
        /// What lost its name.
        ino: InodeId,
        /// Its attributes, when it still exists and this owner holds it.
        attr: Option<Attr>,
        /// It has no name left and the owner takes the asking node to have it open.
        kept_open: bool,
        /// The directory's attributes after it.
        directory: Attr,
    },
    /// Rename.
    Renamed {
        /// What moved.
        ino: InodeId,
        /// What the target name led to before, when it was replaced or has the source's name now (RENAME_EXCHANGE).
        replaced: Option<InodeId>,
        /// The replaced inode has no name left and the owner takes the asking node to have it open.
        kept_open: bool,
        /// The source directory's attributes after it.
        directory: Attr,
        /// The target directory's attributes after it, when this owner holds it and it is another.
        new_directory: Option<Attr>,
    },
    /// ReadLink, GetXattr, ListXattr.
    Bytes(SmallBytes),
    /// ReadDir.
    Listing {
        /// The entries, by cookie.
        entries: Vec<Listed>,
        /// The directory's parent (its own number for the root).
        parent: InodeId,
        /// Nothing lies behind the last entry.
        is_end: bool,
    },
    /// GetMap.
    Map {
        /// Extents, clipped to the sectors asked for, by file sector.
        extents: Vec<Extent>,
        /// Pieces, clipped to the bytes asked for, by offset; they lie over the extents.
        pieces: Vec<Piece>,
        /// The answer is complete up to this byte; ask again from here for the rest.
        end: u64,
        /// Version of the map, for Destage.
        map_version: u64,
        /// The inode's attributes.
        attr: Attr,
    },
    /// Closed, of an inode that has names or that somebody else has open.
    Done,
    /// SetAttr, SetXattr, RemoveXattr, Unlink, Rmdir, Rename: only the owner may do that, and who asks is another one by the `standing` that he has. Nothing
    /// has happened.
    NotOwner {
        /// Whose it is.
        uid: u32,
    },
    /// StatFs.
    Statistics {
        /// Inodes in the shard.
        inode_count: u64,
    },
    /// Ancestors: the directory itself first, each followed by its parent. The last is the root, or the
    /// first of another owner's: ask there for the rest.
    Chain(Vec<InodeId>),
    /// GetPromised: promised ranges of file sectors from the one asked about on, as far as `end`.
    Promised {
        /// First sector and end of each, in order.
        ranges: Vec<SectorRange>,
        /// First file sector not told of.
        end: u64,
        /// The inode's attributes.
        attr: Attr,
    },
}
wire_enum!(Reply {
    1 => Error(errno),
    2 => Stale {},
    3 => Entry { ino, kind, attr },
    4 => Absent {},
    5 => Attr(attr),
    6 => Made { attr, ino, directory, is_new },
    7 => Removed { ino, attr, kept_open, directory },
    8 => Renamed { ino, replaced, kept_open, directory, new_directory },
    9 => Bytes(bytes),
    10 => Listing { entries, parent, is_end },
    11 => Map { extents, pieces, end, map_version, attr },
    12 => Done {},
    13 => Statistics { inode_count },
    14 => Resized(attr),
    15 => Chain(chain),
    16 => Promised { ranges, end, attr },
    17 => NotOwner { uid },
});
