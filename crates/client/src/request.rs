//! What front ends ask of the file system, and what they are answered: owned values, so that a request
//! can be parked and go on later on another thread.

use types::{
    Attr, ByteRange, Errno, InodeId, Lock, LockOwner, Name, SetAttr, SmallBytes, Span, Standing,
};

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Process, 0 when the kernel asks by itself (write-back of mapped pages).
    pub pid: u32,
    /// Permission bits that what it makes does not get, unless the directory has a default access control list.
    pub umask: u32,
    /// Whose files are as good as its own, where the driver has been asked (`Effect::AskStanding`): from here.
    pub first: u32,
    /// To here; less than `first` where it has not been asked.
    pub last: u32,
}

impl Default for Caller {
    fn default() -> Self {
        Self {
            uid: 0,
            gid: 0,
            pid: 0,
            umask: 0,
            first: 1,
            last: 0,
        }
    }
}

impl Caller {
    /// As whose owner it may act; `None` for root, who may all.
    pub fn standing(&self) -> Option<Standing> {
        let Self {
            uid, first, last, ..
        } = *self;
        (uid != 0).then_some(Standing { uid, first, last })
    }

    /// The driver has been asked.
    pub const fn has_been_asked(&self) -> bool {
        self.first <= self.last
    }
}

/// A request's identity at its front end: the front end's answer goes to the same ticket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// What is known of a ticket by who did not make it: the bits under a mask. The kernel's interrupts name a request by its
/// unique number and not by the way its answer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketPart {
    /// The known bits; the others are 0.
    pub value: u64,
    /// Which bits are known.
    pub mask: u64,
}

impl TicketPart {
    /// Whether `ticket` may be the one that is meant.
    pub const fn is_of(self, ticket: Ticket) -> bool {
        ticket.0 & self.mask == self.value
    }
}

impl From<Ticket> for TicketPart {
    fn from(ticket: Ticket) -> Self {
        Self {
            value: ticket.0,
            mask: u64::MAX,
        }
    }
}

/// An open file or directory, as the front end names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u64);

/// How a file is opened (the flags of open(2) that concern a file system).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// Reads are allowed.
    pub read: bool,
    /// Writes are allowed.
    pub write: bool,
    /// O_APPEND.
    pub append: bool,
    /// O_TRUNC.
    pub truncate: bool,
    /// O_EXCL (when something is made only).
    pub exclusive: bool,
    /// O_SYNC or O_DSYNC: each write is durable before it returns.
    pub sync: bool,
    /// O_DIRECT.
    pub direct: bool,
    /// The kernel opens the file to execute it.
    pub exec: bool,
    /// O_NOATIME: reads do not change the access time.
    pub no_atime: bool,
}

/// Which of mknod's kinds; sizes and targets where the kind has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NewKind {
    /// Regular file, FIFO, socket or device node: full `st_mode` and device number.
    Node {
        /// `st_mode` with its S_IFMT bits, umask not applied.
        mode: u32,
        /// Device number.
        rdev: u32,
    },
    /// A directory with these permission bits.
    Directory {
        /// Permission bits, umask not applied.
        permissions: u32,
    },
    /// A symbolic link to `target`.
    Symlink {
        /// Its target.
        target: SmallBytes,
    },
}

/// rename(2)'s flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RenameFlags {
    /// RENAME_NOREPLACE.
    pub no_replace: bool,
    /// RENAME_EXCHANGE.
    pub exchange: bool,
    /// RENAME_WHITEOUT.
    pub whiteout: bool,
}

/// What is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Find `name` in `parent`. `.` and `..` come as `LookupSelf` and `LookupParent`.
    Lookup {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Find an inode by number (the kernel's lookup of `.` for NFS export).
    LookupSelf {
        /// Inode.
        ino: InodeId,
    },
    /// Find a directory's parent.
    LookupParent {
        /// Directory.
        ino: InodeId,
    },
    /// The kernel forgets `count` lookups of `ino`. No answer.
    Forget {
        /// Inode.
        ino: InodeId,
        /// Lookups.
        count: u64,
    },
    /// Attributes.
    GetAttr {
        /// Inode.
        ino: InodeId,
        /// Open file through which it is asked, if any.
        handle: Option<Handle>,
    },
    /// Change attributes.
    SetAttr {
        /// Inode.
        ino: InodeId,
        /// Open file through which it is asked, if any.
        handle: Option<Handle>,
        /// What changes.
        set: SetAttr,
    },
    /// Make bytes of a file zero and give back what they took (fallocate: PUNCH_HOLE, ZERO_RANGE).
    Punch {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
        /// First byte.
        begin: u64,
        /// First byte behind them.
        end: u64,
        /// They do not make the file longer.
        keeps_size: bool,
    },
    /// Promise space to bytes of a file (fallocate: mode 0, KEEP_SIZE).
    Allocate {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
        /// First byte.
        begin: u64,
        /// First byte behind them.
        end: u64,
        /// They do not make the file longer.
        keeps_size: bool,
    },
    /// Make a name and what it names (mknod, mkdir, symlink).
    Make {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// What.
        kind: NewKind,
    },
    /// Make a regular file, or open it where it exists, and open it.
    Create {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
        /// Permission bits, umask not applied.
        permissions: u32,
        /// How to open it.
        flags: OpenFlags,
    },
    /// Make a regular file without a name, and open it (O_TMPFILE). It goes with its last close, unless `Link` gives it a name.
    CreateNameless {
        /// Directory that it would be in.
        parent: InodeId,
        /// Permission bits, umask not applied.
        permissions: u32,
        /// How to open it. With `exclusive` it never gets a name.
        flags: OpenFlags,
    },
    /// Another name for a file, or the first one of a file that was made without.
    Link {
        /// File.
        ino: InodeId,
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Remove a name of what is no directory.
    Unlink {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Remove an empty directory.
    Rmdir {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// Move a name.
    Rename {
        /// Source directory.
        parent: InodeId,
        /// Source name.
        name: Name,
        /// Target directory.
        new_parent: InodeId,
        /// Target name.
        new_name: Name,
        /// Flags.
        flags: RenameFlags,
    },
    /// Target of a symbolic link.
    ReadLink {
        /// Inode.
        ino: InodeId,
    },
    /// Open a file.
    Open {
        /// Inode.
        ino: InodeId,
        /// How.
        flags: OpenFlags,
    },
    /// Read bytes.
    Read {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
        /// First byte.
        offset: u64,
        /// Bytes wanted.
        length: u32,
        /// The kernel fills its page cache with the bytes: it holds their folios locked until the answer
        /// (READ without FUSE_READ_LOCKOWNER). Else they go straight to the application.
        fills_page_cache: bool,
    },
    /// The first byte of data, or of a hole, from `offset` on (SEEK_DATA, SEEK_HOLE). ENXIO where there is none.
    Seek {
        /// Inode.
        ino: InodeId,
        /// First byte looked at.
        offset: u64,
        /// A hole is looked for; the end of the file is one.
        is_hole: bool,
    },
    /// Write the bytes of `payload`.
    Write {
        /// Inode.
        ino: InodeId,
        /// Open file; the kernel names any writable one for write-back of mapped pages.
        handle: Handle,
        /// First byte; with `append` the kernel's guess, which we ignore.
        offset: u64,
        /// The bytes. The span may be moved into the page index when it is slab aligned.
        payload: Span,
        /// The kernel writes back dirty pages of a shared mapping (FUSE_WRITE_CACHE).
        is_write_back: bool,
        /// The open file description has O_APPEND (flags of the request, they can change by fcntl).
        append: bool,
        /// The open file description has O_SYNC or O_DSYNC.
        sync: bool,
        /// Set-id bits are to be cleared.
        kill_set_id: bool,
    },
    /// Make a file's data and the chain of names made or moved through this node durable.
    Fsync {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
        /// Only what is needed to read the data back.
        data_only: bool,
    },
    /// A descriptor is closed (comes once per close).
    Flush {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
        /// Who closes, as owner of POSIX locks: they go.
        lock_owner: u64,
    },
    /// Who is in the way of a lock (F_GETLK)?
    GetLock {
        /// Inode.
        ino: InodeId,
        /// The lock that is not taken.
        lock: Lock,
    },
    /// Lock bytes of a file, or all of it (flock).
    SetLock {
        /// Inode.
        ino: InodeId,
        /// Open file: with its end goes what was locked through it alone.
        handle: Handle,
        /// The lock.
        lock: Lock,
        /// Wait until nobody is in the way; ends with EINTR when the caller gets a signal.
        waits: bool,
    },
    /// Unlock.
    ClearLock {
        /// Inode.
        ino: InodeId,
        /// Whose lock.
        owner: LockOwner,
        /// Which bytes.
        range: ByteRange,
    },
    /// The last descriptor is gone.
    Release {
        /// Inode.
        ino: InodeId,
        /// Open file.
        handle: Handle,
    },
    /// Open a directory.
    OpenDir {
        /// Directory.
        ino: InodeId,
    },
    /// List a directory from `cookie` on, at most `size` bytes as the front end counts them.
    ReadDir {
        /// Directory.
        ino: InodeId,
        /// Open directory.
        handle: Handle,
        /// 0, or the cookie of the last entry seen.
        cookie: u64,
        /// Bytes of the front end's buffer.
        size: u32,
        /// With attributes (READDIRPLUS).
        plus: bool,
    },
    /// Make a directory's entries durable.
    FsyncDir {
        /// Directory.
        ino: InodeId,
        /// Open directory.
        handle: Handle,
    },
    /// The last descriptor of a directory is gone.
    ReleaseDir {
        /// Directory.
        ino: InodeId,
        /// Open directory.
        handle: Handle,
    },
    /// Space of the file system.
    StatFs,
    /// Value of an extended attribute; `size` 0 asks for its length.
    GetXattr {
        /// Inode.
        ino: InodeId,
        /// Full name (`user.x`).
        name: SmallBytes,
        /// Bytes of the caller's buffer.
        size: u32,
    },
    /// Set an extended attribute.
    SetXattr {
        /// Inode.
        ino: InodeId,
        /// Full name.
        name: SmallBytes,
        /// Value.
        value: SmallBytes,
        /// XATTR_CREATE (1) or XATTR_REPLACE (2), or neither; with an access control list also `types::attr::XATTR_KILL_SET_GID`.
        flags: u32,
    },
    /// Names of the extended attributes, NUL-terminated; `size` 0 asks for their length.
    ListXattr {
        /// Inode.
        ino: InodeId,
        /// Bytes of the caller's buffer.
        size: u32,
    },
    /// Remove an extended attribute.
    RemoveXattr {
        /// Inode.
        ino: InodeId,
        /// Full name.
        name: SmallBytes,
    },
    /// access(2); not sent with default_permissions, answered all the same.
    Access {
        /// Inode.
        ino: InodeId,
        /// R_OK, W_OK, X_OK bits.
        mask: u32,
    },
    /// Make everything durable (syncfs).
    SyncFs,
}

/// A request: who, which, what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Names the request at its front end.
    pub ticket: Ticket,
    /// Who asks.
    pub caller: Caller,
    /// What is asked.
    pub operation: Operation,
}

/// An inode as a lookup shows it, and for how long the kernel may believe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its attributes.
    pub attr: Attr,
    /// Nanoseconds for which the name may be cached; bounded by the lease when the answer is written.
    pub entry_timeout_ns: u64,
    /// Nanoseconds for which the attributes may be cached.
    pub attr_timeout_ns: u64,
}

/// How the kernel shall treat an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// Names the open file in later requests.
    pub handle: Handle,
    /// Bypass the kernel page cache (FOPEN_DIRECT_IO).
    pub direct: bool,
    /// Keep the pages that the kernel has (FOPEN_KEEP_CACHE).
    pub keep_cache: bool,
    /// Allow parallel direct writes (FOPEN_PARALLEL_DIRECT_WRITES).
    pub parallel_writes: bool,
}

/// An entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Name, as the directory holds it (`.` and `..` included).
    pub name: SmallBytes,
    /// Inode.
    pub ino: InodeId,
    /// S_IFMT bits.
    pub mode: u32,
    /// Passed back to continue behind this entry.
    pub cookie: u64,
    /// With READDIRPLUS, and not for `.` and `..`; none when it is not at hand.
    pub entry: Option<Entry>,
}

/// Space of the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Sectors in all.
    pub sector_count: u64,
    /// Sectors that no file has.
    pub sector_free_count: u64,
    /// Those of them that files can get: without what owners keep back.
    pub sector_available_count: u64,
    /// Inodes in use.
    pub inode_count: u64,
}

/// What is answered. Which variant belongs to which operation is said at each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// Any operation: it failed.
    Error(Errno),
    /// Punch, Allocate, SetXattr, RemoveXattr, Unlink, Rmdir, Rename, Fsync, Flush, Release, ReleaseDir, FsyncDir,
    /// Access, SyncFs, SetLock, ClearLock: done.
    Done,
    /// Lookup*, Make, Link: what the name leads to. Lookup only: `None` is a name known to be absent.
    Entry(
        Option<Entry>,
        /* entry time-out of an absent name, ns */ u64,
    ),
    /// GetAttr, SetAttr: attributes and for how many nanoseconds they hold.
    Attr(Attr, u64),
    /// Create, CreateNameless.
    Created(Entry, Opened),
    /// Open, OpenDir.
    Opened(Opened),
    /// Read: the bytes lie in these spans; the driver releases one reference of each frame touched
    /// when the answer has been written.
    Data(Vec<Span>),
    /// ReadLink, GetXattr, ListXattr with a size: the bytes.
    Bytes(SmallBytes),
    /// GetXattr, ListXattr with size 0: the length.
    Size(u32),
    /// Seek: the byte.
    Offset(u64),
    /// GetLock: a lock in the way; its pid is 0 where that is another node's.
    Lock(Option<Lock>),
    /// Write: bytes written.
    Written(u32),
    /// ReadDir: entries that fit (the client counts with `listed_size`).
    Listing(Vec<Listed>),
    /// StatFs.
    Space(Space),
}

/// Bytes that an entry takes in a FUSE directory listing (fuse_dirent or fuse_direntplus, 8-aligned).
pub const fn listed_size(name_size: usize, plus: bool) -> usize {
    let header = if plus { 152 } else { 24 };
    (header + name_size).next_multiple_of(8)
}

/// What a front end's kernel caches are told to drop. Performed on notify threads only (rule R1).
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// Pages in the range and the attributes of an inode.
    Data {
        /// Inode.
        ino: InodeId,
        /// First byte.
        offset: u64,
        /// Bytes; 0 is to the end of the file.
        length: u64,
    },
    /// Attributes only.
    Attributes {
        /// Inode.
        ino: InodeId,
    },
    /// One name. Takes the directory's lock in the kernel: never waited for by a revoke (rule R11).
    Entry {
        /// Directory.
        parent: InodeId,
        /// Name.
        name: Name,
    },
    /// All names of the mount must be looked up again (INC_EPOCH); does not block.
    Epoch,
    /// Inodes that the kernel shall forget, with their names, where it does not use them (PRUNE, since 6.18): it says so of each that it
    /// has forgotten.
    Prune {
        /// Some hundred.
        inos: Vec<InodeId>,
    },
}

/// The size that an operation gives a file: SETATTR, or an open or create that truncates.
pub(crate) fn new_size(operation: &Operation) -> Option<u64> {
    match operation {
        Operation::SetAttr { set, .. } => set.size,
        Operation::Open { flags, .. } | Operation::Create { flags, .. } => {
            flags.truncate.then_some(0)
        }
        _ => None,
    }
}
