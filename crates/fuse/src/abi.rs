//! The kernel's structures and numbers (include/uapi/linux/fuse.h, protocol 7.45), in host byte order.
//!
//! Field names follow the kernel's; padding is named so that it is written as zero.

#![allow(
    missing_debug_implementations,
    unreachable_pub,
    reason = "the derives of zerocopy make helper types for each field"
)]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Major version; others are refused.
pub const KERNEL_VERSION: u32 = 7;
/// Newest minor version that we know.
pub const KERNEL_MINOR_VERSION: u32 = 45;
/// Oldest minor version that we serve: it has flags2.
pub const KERNEL_MINOR_VERSION_MIN: u32 = 36;
/// The first one that takes notifications of inodes to forget.
pub const PRUNE_MINOR_VERSION: u32 = 45;
/// From this one on the kernel clears what lies behind the end in a page that it is given a part of (Linux 6.12; earlier ones show what was there in memory,
/// CVE-2024-44947).
pub const STORE_MINOR_VERSION: u32 = 41;

macro_rules! abi_struct {
    ($(#[$doc:meta])* $name:ident = $size:literal { $($field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        #[repr(C)]
        #[allow(missing_docs, reason = "the kernel's header documents the fields")]
        pub struct $name { $(pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

abi_struct!(/// Before every request.
InHeader = 40 {
    len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
    total_extlen: u16, padding: u16,
});
abi_struct!(/// Before every answer and notification.
OutHeader = 16 { len: u32, error: i32, unique: u64, });
abi_struct!(/// Attributes.
Attr = 88 {
    ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
    atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
    rdev: u32, blksize: u32, flags: u32,
});
abi_struct!(/// Answer to a lookup.
EntryOut = 128 {
    nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
    entry_valid_nsec: u32, attr_valid_nsec: u32, attr: Attr,
});
abi_struct!(/// Answer to GETATTR and SETATTR.
AttrOut = 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, });
abi_struct!(/// Answer to OPEN and OPENDIR; behind an `EntryOut` for CREATE.
OpenOut = 16 { fh: u64, open_flags: u32, backing_id: i32, });
abi_struct!(/// Answer to WRITE; also to GETXATTR and LISTXATTR with size 0.
SizeOut = 8 { size: u32, padding: u32, });
abi_struct!(/// Answer to STATFS.
StatFsOut = 80 {
    blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
    bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
});
abi_struct!(/// A directory entry; its name follows, padded to 8 bytes.
Dirent = 24 { ino: u64, off: u64, namelen: u32, kind: u32, });
abi_struct!(/// Head of an INIT request, as all versions send it.
InitInCompat = 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, });
abi_struct!(/// INIT with flags2.
InitIn = 64 {
    major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11],
});
abi_struct!(/// Answer to INIT.
InitOut = 64 {
    major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
    congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
    flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
});
abi_struct!(/// FORGET.
ForgetIn = 8 { nlookup: u64, });
abi_struct!(/// One inode of a BATCH_FORGET.
ForgetOne = 16 { nodeid: u64, nlookup: u64, });
abi_struct!(/// BATCH_FORGET; `count` times `ForgetOne` follow.
BatchForgetIn = 8 { count: u32, dummy: u32, });
abi_struct!(/// GETATTR.
GetAttrIn = 16 { getattr_flags: u32, dummy: u32, fh: u64, });
abi_struct!(/// SETATTR.
SetAttrIn = 88 {
    valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
    atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
    unused5: u32,
});
abi_struct!(/// MKNOD; the name follows.
MknodIn = 16 { mode: u32, rdev: u32, umask: u32, padding: u32, });
abi_struct!(/// MKDIR; the name follows.
MkdirIn = 8 { mode: u32, umask: u32, });
abi_struct!(/// RENAME; source and target names follow.
RenameIn = 8 { newdir: u64, });
abi_struct!(/// RENAME2; source and target names follow.
Rename2In = 16 { newdir: u64, flags: u32, padding: u32, });
abi_struct!(/// LINK; the new name follows.
LinkIn = 8 { oldnodeid: u64, });
abi_struct!(/// OPEN and OPENDIR.
OpenIn = 8 { flags: u32, open_flags: u32, });
abi_struct!(/// CREATE; the name follows.
CreateIn = 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, });
abi_struct!(/// READ, READDIR and READDIRPLUS.
ReadIn = 40 {
    fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
});
abi_struct!(/// WRITE; the bytes follow.
WriteIn = 40 {
    fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
});
abi_struct!(/// RELEASE and RELEASEDIR.
ReleaseIn = 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, });
abi_struct!(/// FLUSH.
FlushIn = 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, });
abi_struct!(/// GETLK, SETLK and SETLKW: `end` is the last byte, `kind` one of `lock_type`.
LkIn = 48 {
    fh: u64, owner: u64, start: u64, end: u64, kind: u32, pid: u32, lk_flags: u32, padding: u32,
});
abi_struct!(/// To GETLK.
LkOut = 24 { start: u64, end: u64, kind: u32, pid: u32, });
abi_struct!(/// FSYNC and FSYNCDIR.
FsyncIn = 16 { fh: u64, fsync_flags: u32, padding: u32, });
abi_struct!(/// SETXATTR with SETXATTR_EXT; name and value follow.
SetXattrIn = 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, });
abi_struct!(/// GETXATTR (the name follows) and LISTXATTR.
GetXattrIn = 8 { size: u32, padding: u32, });
abi_struct!(/// FALLOCATE.
FallocateIn = 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, });
abi_struct!(/// IOCTL; of what `arg` points to nothing follows, unless the command says that it is written.
IoctlIn = 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, });
abi_struct!(/// Answer to IOCTL; bytes for the caller follow.
IoctlOut = 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, });
abi_struct!(/// COPY_FILE_RANGE; the header names the source.
CopyFileRangeIn = 56 {
    fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, length: u64, flags: u64,
});
abi_struct!(/// LSEEK.
LseekIn = 24 { fh: u64, offset: u64, whence: u32, padding: u32, });
abi_struct!(/// Answer to LSEEK.
LseekOut = 8 { offset: u64, });
abi_struct!(/// STATX.
StatxIn = 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, });
abi_struct!(/// A time in `Statx`.
StatxTime = 16 { secs: i64, nanos: u32, reserved: i32, });
abi_struct!(/// Attributes as statx(2) shows them.
Statx = 256 {
    mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
    ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime,
    ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32,
    dev_minor: u32, spare2: [u64; 14],
});
abi_struct!(/// Answer to STATX.
StatxOut = 288 {
    attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
});
abi_struct!(/// ACCESS.
AccessIn = 8 { mask: u32, padding: u32, });
abi_struct!(/// INTERRUPT.
InterruptIn = 8 { unique: u64, });
abi_struct!(/// The kernel's answer to a RETRIEVE notification; the bytes follow.
RetrieveIn = 40 { dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64, });
abi_struct!(/// Notification: drop attributes and pages.
InvalInodeOut = 24 { ino: u64, off: i64, len: i64, });
abi_struct!(/// Notification: drop a name; the name follows.
InvalEntryOut = 16 { parent: u64, namelen: u32, flags: u32, });
abi_struct!(/// Notification: a name was removed; the name follows.
DeleteOut = 24 { parent: u64, child: u64, namelen: u32, padding: u32, });
abi_struct!(/// Notification: forget inodes that nobody uses; their numbers follow.
PruneOut = 16 { count: u32, padding: u32, spare: u64, });
abi_struct!(/// Notification: send me cached pages.
RetrieveOut = 32 { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, });
abi_struct!(/// Notification: put bytes into the page cache; they follow.
StoreOut = 24 { nodeid: u64, offset: u64, size: u32, padding: u32, });
abi_struct!(/// Part of a ring entry's header: what the ring itself says of the request.
RingEntryInOut = 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, });
abi_struct!(/// Header of a ring entry: request or answer header, operation header, ring part.
RingHeader = 288 { in_out: [u64; 16], op_in: [u64; 16], entry: RingEntryInOut, });
abi_struct!(/// In the 80 command bytes of the SQE.
RingCommand = 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], });

macro_rules! opcodes {
    ($($name:ident = $number:literal;)*) => {
        /// Request numbers.
        #[allow(missing_docs, reason = "named as in the kernel's header")]
        pub mod opcode {
            $(pub const $name: u32 = $number;)*
            /// The kernel's name of a request, for logs.
            pub const fn name(opcode: u32) -> &'static str {
                match opcode { $($number => stringify!($name),)* _ => "?" }
            }
        }
    };
}

opcodes! {
    LOOKUP = 1; FORGET = 2; GETATTR = 3; SETATTR = 4; READLINK = 5; SYMLINK = 6; MKNOD = 8;
    MKDIR = 9; UNLINK = 10; RMDIR = 11; RENAME = 12; LINK = 13; OPEN = 14; READ = 15; WRITE = 16;
    STATFS = 17; RELEASE = 18; FSYNC = 20; SETXATTR = 21; GETXATTR = 22; LISTXATTR = 23;
    REMOVEXATTR = 24; FLUSH = 25; INIT = 26; OPENDIR = 27; READDIR = 28; RELEASEDIR = 29;
    FSYNCDIR = 30; GETLK = 31; SETLK = 32; SETLKW = 33; ACCESS = 34; CREATE = 35; INTERRUPT = 36;
    BMAP = 37; DESTROY = 38; IOCTL = 39; POLL = 40; NOTIFY_REPLY = 41; BATCH_FORGET = 42;
    FALLOCATE = 43; READDIRPLUS = 44; RENAME2 = 45; LSEEK = 46; COPY_FILE_RANGE = 47;
    SETUPMAPPING = 48; REMOVEMAPPING = 49; SYNCFS = 50; TMPFILE = 51; STATX = 52;
    COPY_FILE_RANGE_64 = 53;
}

macro_rules! bits {
    ($(#[$doc:meta])* $module:ident: $type:ty { $($name:ident = $bit:literal;)* }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "named as in the kernel's header")]
        pub mod $module { $(pub const $name: $type = 1 << $bit;)* }
    };
}

bits!(/// INIT: flags, with flags2 as the upper half.
init_flag: u64 {
    ASYNC_READ = 0; POSIX_LOCKS = 1; ATOMIC_O_TRUNC = 3; EXPORT_SUPPORT = 4; BIG_WRITES = 5;
    DONT_MASK = 6; SPLICE_WRITE = 7; SPLICE_MOVE = 8; SPLICE_READ = 9; FLOCK_LOCKS = 10;
    AUTO_INVAL_DATA = 12; DO_READDIRPLUS = 13; READDIRPLUS_AUTO = 14; ASYNC_DIO = 15;
    WRITEBACK_CACHE = 16; NO_OPEN_SUPPORT = 17; PARALLEL_DIROPS = 18; HANDLE_KILLPRIV = 19;
    POSIX_ACL = 20; ABORT_ERROR = 21; MAX_PAGES = 22; CACHE_SYMLINKS = 23; NO_OPENDIR_SUPPORT = 24;
    EXPLICIT_INVAL_DATA = 25; HANDLE_KILLPRIV_V2 = 28; SETXATTR_EXT = 29; INIT_EXT = 30;
    SECURITY_CTX = 32; HAS_INODE_DAX = 33; CREATE_SUPP_GROUP = 34; HAS_EXPIRE_ONLY = 35;
    DIRECT_IO_ALLOW_MMAP = 36; PASSTHROUGH = 37; NO_EXPORT_SUPPORT = 38; HAS_RESEND = 39;
    ALLOW_IDMAP = 40; OVER_IO_URING = 41; REQUEST_TIMEOUT = 42;
});
bits!(/// SETATTR: which fields are set.
fattr: u32 {
    MODE = 0; UID = 1; GID = 2; SIZE = 3; ATIME = 4; MTIME = 5; FH = 6; ATIME_NOW = 7;
    MTIME_NOW = 8; LOCKOWNER = 9; CTIME = 10; KILL_SUIDGID = 11;
});
bits!(/// GETATTR: flags.
getattr_flag: u32 { FH = 0; });
bits!(/// WRITE: flags.
write_flag: u32 { CACHE = 0; LOCKOWNER = 1; KILL_SUIDGID = 2; });
bits!(/// SETXATTR: flags beside those of setxattr(2).
setxattr_flag: u32 { ACL_KILL_SGID = 0; });
bits!(/// FALLOCATE: mode.
fallocate_mode: u32 { KEEP_SIZE = 0; PUNCH_HOLE = 1; ZERO_RANGE = 4; });

/// IOCTL: the file system goes down (FS_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN): `_IOR('X', 125, __u32)`.
pub const IOC_SHUTDOWN: u32 = 0x8004_587d;
/// GETLK, SETLK, SETLKW: last byte of a lock without end.
pub const LOCK_END_MAX: u64 = i64::MAX as u64;
/// GETLK, SETLK, SETLKW: kinds of locks.
#[allow(missing_docs, reason = "named as in fcntl(2)")]
pub mod lock_type {
    pub const RDLCK: u32 = 0;
    pub const WRLCK: u32 = 1;
    pub const UNLCK: u32 = 2;
}

/// LSEEK: the next data.
pub const SEEK_DATA: u32 = 3;
/// LSEEK: the next hole.
pub const SEEK_HOLE: u32 = 4;
/// STATX: all that stat(2) shows, and the time of birth.
pub const STATX_BASIC_AND_BTIME: u32 = 0xfff;

bits!(/// READ: flags.
read_flag: u32 { LOCKOWNER = 1; });
bits!(/// GETLK, SETLK, SETLKW: flags.
lk_flag: u32 { FLOCK = 0; });
bits!(/// FSYNC: flags.
fsync_flag: u32 { DATASYNC = 0; });
bits!(/// Answer to OPEN: flags.
fopen: u32 {
    DIRECT_IO = 0; KEEP_CACHE = 1; NONSEEKABLE = 2; CACHE_DIR = 3; STREAM = 4; NOFLUSH = 5;
    PARALLEL_DIRECT_WRITES = 6; PASSTHROUGH = 7;
});
bits!(/// INVAL_ENTRY: flags.
inval_entry_flag: u32 { EXPIRE_ONLY = 0; });

/// Notification numbers (in the error field of the header, unique 0).
#[allow(missing_docs, reason = "named as in the kernel's header")]
pub mod notify_code {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const RETRIEVE: i32 = 5;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
    pub const PRUNE: i32 = 9;
}

/// SQE command: hand an entry to the kernel and wait for a request.
pub const RING_REGISTER: u32 = 1;
/// SQE command: the answer lies in the entry; wait for the next request.
pub const RING_COMMIT_AND_FETCH: u32 = 2;
/// An interrupt's own unique number has this bit.
pub const UNIQUE_INTERRUPT: u64 = 1;
/// Smallest buffer the kernel accepts in read(2).
pub const READ_BUFFER_SIZE_MIN: usize = 8192;
/// Bytes before a WRITE's payload.
pub const WRITE_PREFIX_SIZE: usize = size_of::<InHeader>() + size_of::<WriteIn>();

/// open(2) flags as the kernel passes them (asm-generic, as on x86-64; aarch64 differs in O_DIRECT).
#[allow(missing_docs, reason = "named as in the kernel's header")]
pub mod open_flag {
    pub const ACCMODE: u32 = 0o3;
    pub const WRONLY: u32 = 0o1;
    pub const RDWR: u32 = 0o2;
    pub const EXCL: u32 = 0o200;
    pub const TRUNC: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const DSYNC: u32 = 0o10000;
    #[cfg(not(target_arch = "aarch64"))]
    pub const DIRECT: u32 = 0o40000;
    #[cfg(target_arch = "aarch64")]
    pub const DIRECT: u32 = 0o200000;
    pub const NOATIME: u32 = 0o1_000_000;
    /// Set by the kernel when it opens a file to execute it.
    pub const EXEC: u32 = 0o40;
}
