//! Requests of the kernel, decoded.
//!
//! A request is a header, a fixed part whose size the opcode determines, and the rest (names, values, a
//! WRITE's bytes). On /dev/fuse fixed part and rest are adjacent; in a ring entry they lie apart.

mod locks;

use crate::abi::{self, InHeader, opcode};
use crate::init::Offer;
use crate::node;
use crate::ticket::{self, NO_REPLY, Route};
use client::request::{
    Caller, Handle, NewKind, OpenFlags, Operation, RenameFlags, Request, Ticket,
};
use types::{Errno, InodeId, Name, SetAttr, SmallBytes, Span, Timestamp, limits};
use zerocopy::{FromBytes, Immutable, KnownLayout};

#[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
const ANSWER_SIZE_MAX: u32 = limits::MAX_WRITE as u32;

/// A request as the transport found it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Its header.
    pub header: InHeader,
    /// The fixed part, at least `fixed_size` bytes where the kernel sent that many.
    pub fixed: &'a [u8],
    /// What follows, without the header's extensions; empty for WRITE.
    pub rest: &'a [u8],
    /// WRITE: where its bytes lie. Their count must agree with the request.
    pub payload: Option<Span>,
    /// The way of the answer.
    pub route: Route,
}

/// What a request is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// For the client; answered to its ticket.
    Request(Request),
    /// The kernel forgets inodes; no answer.
    Forgets(Forgets<'a>),
    /// The first request of a connection; `Offer::agree` says what to answer.
    Init(Offer),
    /// The file system is unmounted; answered with `Done`.
    Destroy,
    /// The caller of request `unique` got a signal. No answer when it is passed on.
    Interrupt {
        /// The request that shall end.
        unique: u64,
    },
    /// Cached bytes that a RETRIEVE notification asked for; they are the rest of the request. No answer.
    Retrieved {
        /// The notification's own number.
        notify_unique: u64,
        /// File offset of the first byte.
        offset: u64,
        /// Bytes.
        size: u32,
    },
    /// Bytes of one file go to another one (copy_file_range); answered with `Written`, or an error.
    CopyRange(CopyRange),
    /// The mount shall answer no more (ioctl FS_IOC_SHUTDOWN).
    ShutDown(ShutDown),
    /// Not served or malformed: to be answered with this error.
    Refuse(Errno),
    /// Nothing is to be done nor answered.
    Ignore,
}

/// A place in an open file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyPlace {
    /// Inode.
    pub ino: InodeId,
    /// Open file.
    pub handle: Handle,
    /// First byte.
    pub offset: u64,
}

/// COPY_FILE_RANGE. Both places may be in one file; the kernel has seen to it that they do not overlap then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyRange {
    /// To be answered.
    pub ticket: Ticket,
    /// Who asks.
    pub caller: Caller,
    /// Where the bytes are.
    pub source: CopyPlace,
    /// Where they go.
    pub target: CopyPlace,
    /// So many bytes at the most.
    pub length: u64,
}

/// FS_IOC_SHUTDOWN. How is not said: for the kernel's FUSE the command has no argument that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShutDown {
    /// To be answered with `encode_ioctl_done`, or an error.
    pub ticket: Ticket,
    /// Who asks.
    pub caller: Caller,
    /// Where in the caller's memory 32 bits say how.
    pub address: u64,
}

/// One inode that the kernel forgets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forget {
    /// Inode.
    pub ino: InodeId,
    /// Lookups.
    pub count: u64,
}

/// The forgets of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forgets<'a> {
    bytes: &'a [u8],
    single: Option<Forget>,
}

impl Iterator for Forgets<'_> {
    type Item = Forget;
    fn next(&mut self) -> Option<Forget> {
        if let Some(one) = self.single.take() {
            return Some(one);
        }
        let (one, rest) = abi::ForgetOne::read_from_prefix(self.bytes).ok()?;
        self.bytes = rest;
        Some(Forget {
            ino: node::inode_of(one.nodeid),
            count: one.nlookup,
        })
    }
}

impl Forget {
    /// As a request, for front ends that treat it like any other.
    pub fn into_request(self) -> Request {
        Request {
            ticket: NO_REPLY,
            caller: Caller::default(),
            operation: Operation::Forget {
                ino: self.ino,
                count: self.count,
            },
        }
    }
}

/// Bytes of the fixed part of `opcode`'s requests.
pub const fn fixed_size(opcode: u32) -> usize {
    match opcode {
        opcode::FORGET => size_of::<abi::ForgetIn>(),
        opcode::BATCH_FORGET => size_of::<abi::BatchForgetIn>(),
        opcode::GETATTR => size_of::<abi::GetAttrIn>(),
        opcode::SETATTR => size_of::<abi::SetAttrIn>(),
        opcode::MKNOD => size_of::<abi::MknodIn>(),
        opcode::MKDIR => size_of::<abi::MkdirIn>(),
        opcode::RENAME => size_of::<abi::RenameIn>(),
        opcode::RENAME2 => size_of::<abi::Rename2In>(),
        opcode::LINK => size_of::<abi::LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<abi::OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<abi::CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<abi::ReadIn>(),
        opcode::WRITE => size_of::<abi::WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<abi::ReleaseIn>(),
        opcode::FLUSH => size_of::<abi::FlushIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<abi::FsyncIn>(),
        opcode::SETXATTR => size_of::<abi::SetXattrIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<abi::GetXattrIn>(),
        opcode::ACCESS => size_of::<abi::AccessIn>(),
        opcode::LSEEK => size_of::<abi::LseekIn>(),
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => size_of::<abi::LkIn>(),
        opcode::FALLOCATE => size_of::<abi::FallocateIn>(),
        opcode::IOCTL => size_of::<abi::IoctlIn>(),
        opcode::COPY_FILE_RANGE => size_of::<abi::CopyFileRangeIn>(),
        opcode::STATX => size_of::<abi::StatxIn>(),
        opcode::INTERRUPT => size_of::<abi::InterruptIn>(),
        opcode::NOTIFY_REPLY => size_of::<abi::RetrieveIn>(),
        opcode::INIT => size_of::<abi::InitInCompat>(),
        _ => 0,
    }
}

/// Header and arguments of a request that lies in one piece, or at least begins in `bytes`; `None` if not
/// even the header is there.
pub fn split(bytes: &[u8]) -> Option<(InHeader, &[u8])> {
    InHeader::read_from_prefix(bytes).ok()
}

impl<'a> Call<'a> {
    /// From header and adjacent arguments, as /dev/fuse has them.
    pub fn new(header: InHeader, arguments: &'a [u8], route: Route) -> Self {
        let extensions = usize::from(header.total_extlen) * 8;
        let end = arguments.len() - arguments.len().min(extensions);
        let (fixed, rest) = arguments[..end].split_at(fixed_size(header.opcode).min(end));
        Self {
            header,
            fixed,
            rest,
            payload: None,
            route,
        }
    }
}

/// Decodes one request. Never panics, whatever the bytes are.
pub fn decode<'a>(call: &Call<'a>) -> Decoded<'a> {
    decode_call(call).unwrap_or_else(|errno| match call.header.opcode {
        // These have no answer; an answer would be an error of ours.
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT | opcode::NOTIFY_REPLY => {
            Decoded::Ignore
        }
        _ => Decoded::Refuse(errno),
    })
}

fn decode_call<'a>(call: &Call<'a>) -> Result<Decoded<'a>, Errno> {
    let header = &call.header;
    match header.opcode {
        opcode::FORGET => {
            let args: abi::ForgetIn = call.args()?;
            Ok(Decoded::Forgets(Forgets {
                bytes: &[],
                single: Some(Forget {
                    ino: call.ino()?,
                    count: args.nlookup,
                }),
            }))
        }
        opcode::BATCH_FORGET => {
            let args: abi::BatchForgetIn = call.args()?;
            let size = (args.count as usize).saturating_mul(size_of::<abi::ForgetOne>());
            let bytes = call.rest.get(..size).ok_or(Errno::EINVAL)?;
            Ok(Decoded::Forgets(Forgets {
                bytes,
                single: None,
            }))
        }
        opcode::INIT => Offer::decode(call.fixed, call.rest)
            .map(Decoded::Init)
            .ok_or(Errno::EPROTO),
        opcode::DESTROY => Ok(Decoded::Destroy),
        opcode::INTERRUPT => {
            let args: abi::InterruptIn = call.args()?;
            Ok(Decoded::Interrupt {
                unique: args.unique,
            })
        }
        opcode::IOCTL => {
            let args: abi::IoctlIn = call.args()?;
            if args.cmd != abi::IOC_SHUTDOWN {
                return Err(Errno::ENOTTY);
            }
            Ok(Decoded::ShutDown(ShutDown {
                ticket: ticket::ticket(header.unique, call.route, false).ok_or(Errno::EIO)?,
                caller: caller(call)?,
                address: args.arg,
            }))
        }
        opcode::COPY_FILE_RANGE => decode_copy(call).map(Decoded::CopyRange),
        opcode::NOTIFY_REPLY => {
            let args: abi::RetrieveIn = call.args()?;
            Ok(Decoded::Retrieved {
                notify_unique: header.unique,
                offset: args.offset,
                size: args.size,
            })
        }
        _ => {
            let operation = match decode_names(call)? {
                Some(operation) => operation,
                None => decode_files(call)?,
            };
            // A direct read may be asynchronous: nothing tells the two apart.
            let is_direct = matches!(
                operation,
                Operation::Read {
                    fills_page_cache: false,
                    ..
                }
            );
            let is_plus = matches!(header.opcode, opcode::READDIRPLUS | opcode::STATX);
            let ticket: Ticket = ticket::ticket(header.unique, call.route, is_direct || is_plus)
                .ok_or(Errno::EIO)?;
            Ok(Decoded::Request(Request {
                ticket,
                caller: caller(call)?,
                operation,
            }))
        }
    }
}

fn caller(call: &Call<'_>) -> Result<Caller, Errno> {
    let InHeader { uid, gid, pid, .. } = call.header;
    let umask = umask(call)?;
    Ok(Caller {
        uid,
        gid,
        pid,
        umask,
        ..Caller::default()
    })
}

/// The umask of who makes something; 0 with what makes nothing.
fn umask(call: &Call<'_>) -> Result<u32, Errno> {
    let umask = match call.header.opcode {
        opcode::CREATE | opcode::TMPFILE => call.args::<abi::CreateIn>()?.umask,
        opcode::MKNOD => call.args::<abi::MknodIn>()?.umask,
        opcode::MKDIR => call.args::<abi::MkdirIn>()?.umask,
        _ => 0,
    };
    Ok(umask & 0o777)
}

/// Operations on names and attributes; `None` if it is another.
fn decode_names(call: &Call<'_>) -> Result<Option<Operation>, Errno> {
    let parent = call.ino();
    Ok(Some(match call.header.opcode {
        opcode::LOOKUP => decode_lookup(call)?,
        opcode::GETATTR => {
            let args: abi::GetAttrIn = call.args()?;
            let by_handle = args.getattr_flags & abi::getattr_flag::FH != 0;
            Operation::GetAttr {
                ino: parent?,
                handle: by_handle.then_some(Handle(args.fh)),
            }
        }
        opcode::SETATTR => {
            let args: abi::SetAttrIn = call.args()?;
            Operation::SetAttr {
                ino: parent?,
                handle: (args.valid & abi::fattr::FH != 0).then_some(Handle(args.fh)),
                set: set_attr(&args, call.header.gid)?,
            }
        }
        opcode::STATX => {
            let args: abi::StatxIn = call.args()?;
            let by_handle = args.getattr_flags & abi::getattr_flag::FH != 0;
            Operation::GetAttr {
                ino: parent?,
                handle: by_handle.then_some(Handle(args.fh)),
            }
        }
        opcode::READLINK => Operation::ReadLink { ino: parent? },
        opcode::SYMLINK => {
            let [name, target] = strings(call.rest)?;
            if target.is_empty() || target.len() > limits::SYMLINK_SIZE_MAX {
                return Err(Errno::ENAMETOOLONG);
            }
            let target = SmallBytes::new(target);
            make(parent?, name, NewKind::Symlink { target })?
        }
        opcode::MKNOD => {
            let args: abi::MknodIn = call.args()?;
            let [name] = strings(call.rest)?;
            let (mode, rdev) = (args.mode, args.rdev);
            make(parent?, name, NewKind::Node { mode, rdev })?
        }
        opcode::MKDIR => {
            let args: abi::MkdirIn = call.args()?;
            let [name] = strings(call.rest)?;
            let permissions = args.mode & 0o7777;
            make(parent?, name, NewKind::Directory { permissions })?
        }
        opcode::UNLINK => {
            let [bytes] = strings(call.rest)?;
            Operation::Unlink {
                parent: parent?,
                name: name(bytes)?,
            }
        }
        opcode::RMDIR => {
            let [bytes] = strings(call.rest)?;
            Operation::Rmdir {
                parent: parent?,
                name: name(bytes)?,
            }
        }
        opcode::RENAME => {
            let args: abi::RenameIn = call.args()?;
            rename(call, args.newdir, 0)?
        }
        opcode::RENAME2 => {
            let args: abi::Rename2In = call.args()?;
            rename(call, args.newdir, args.flags)?
        }
        opcode::LINK => {
            let args: abi::LinkIn = call.args()?;
            let [bytes] = strings(call.rest)?;
            Operation::Link {
                ino: inode(args.oldnodeid)?,
                parent: parent?,
                name: name(bytes)?,
            }
        }
        opcode::CREATE | opcode::TMPFILE => decode_create(call)?,
        _ => return Ok(None),
    }))
}

/// A regular file that is made and opened, with a name or without.
fn decode_create(call: &Call<'_>) -> Result<Operation, Errno> {
    let args: abi::CreateIn = call.args()?;
    let [bytes] = strings(call.rest)?;
    let (parent, permissions) = (call.ino()?, args.mode & 0o7777);
    let flags = open_flags(args.flags);
    if call.header.opcode == opcode::TMPFILE {
        // The kernel says "/" for the name that there is not.
        return Ok(Operation::CreateNameless {
            parent,
            permissions,
            flags,
        });
    }
    Ok(Operation::Create {
        parent,
        name: name(bytes)?,
        permissions,
        flags,
    })
}

/// Operations on open files, attributes by name and the file system.
fn decode_files(call: &Call<'_>) -> Result<Operation, Errno> {
    let ino = call.ino();
    Ok(match call.header.opcode {
        opcode::OPEN => {
            let args: abi::OpenIn = call.args()?;
            Operation::Open {
                ino: ino?,
                flags: open_flags(args.flags),
            }
        }
        opcode::READ => {
            let args: abi::ReadIn = call.args()?;
            Operation::Read {
                ino: ino?,
                handle: Handle(args.fh),
                offset: args.offset,
                length: args.size,
                // Direct reads name the lock owner, reads into the page cache do not.
                fills_page_cache: args.read_flags & abi::read_flag::LOCKOWNER == 0,
            }
        }
        opcode::FALLOCATE => decode_fallocate(call)?,
        opcode::LSEEK => {
            let args: abi::LseekIn = call.args()?;
            let is_hole = match args.whence {
                abi::SEEK_DATA => false,
                abi::SEEK_HOLE => true,
                _ => return Err(Errno::EINVAL),
            };
            Operation::Seek {
                ino: ino?,
                offset: args.offset,
                is_hole,
            }
        }
        opcode::WRITE => decode_write(call)?,
        opcode::FSYNC | opcode::FSYNCDIR => {
            let args: abi::FsyncIn = call.args()?;
            let (ino, handle) = (ino?, Handle(args.fh));
            if call.header.opcode == opcode::FSYNCDIR {
                Operation::FsyncDir { ino, handle }
            } else {
                let data_only = args.fsync_flags & abi::fsync_flag::DATASYNC != 0;
                Operation::Fsync {
                    ino,
                    handle,
                    data_only,
                }
            }
        }
        opcode::FLUSH => {
            let args: abi::FlushIn = call.args()?;
            Operation::Flush {
                ino: ino?,
                handle: Handle(args.fh),
                lock_owner: args.lock_owner,
            }
        }
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => locks::decode(call)?,
        opcode::RELEASE | opcode::RELEASEDIR => {
            let args: abi::ReleaseIn = call.args()?;
            let (ino, handle) = (ino?, Handle(args.fh));
            if call.header.opcode == opcode::RELEASEDIR {
                Operation::ReleaseDir { ino, handle }
            } else {
                Operation::Release { ino, handle }
            }
        }
        opcode::OPENDIR => {
            let _: abi::OpenIn = call.args()?;
            Operation::OpenDir { ino: ino? }
        }
        opcode::READDIR | opcode::READDIRPLUS => {
            let args: abi::ReadIn = call.args()?;
            Operation::ReadDir {
                ino: ino?,
                handle: Handle(args.fh),
                cookie: args.offset,
                // A request may have a page more than an answer.
                size: args.size.min(ANSWER_SIZE_MAX),
                plus: call.header.opcode == opcode::READDIRPLUS,
            }
        }
        opcode::STATFS => Operation::StatFs,
        opcode::GETXATTR | opcode::SETXATTR | opcode::LISTXATTR | opcode::REMOVEXATTR => {
            decode_xattrs(call)?
        }
        opcode::ACCESS => {
            let args: abi::AccessIn = call.args()?;
            Operation::Access {
                ino: ino?,
                mask: args.mask,
            }
        }
        opcode::SYNCFS => Operation::SyncFs,
        // The kernel remembers ENOSYS for the life of the connection and stops asking: right for all
        // that is left, as no connection outlives the daemon that lacks them.
        _ => return Err(Errno::ENOSYS),
    })
}

/// Operations on extended attributes.
fn decode_xattrs(call: &Call<'_>) -> Result<Operation, Errno> {
    let ino = call.ino()?;
    Ok(match call.header.opcode {
        opcode::GETXATTR => {
            let args: abi::GetXattrIn = call.args()?;
            let [bytes] = strings(call.rest)?;
            Operation::GetXattr {
                ino,
                name: xattr_name(bytes)?,
                size: args.size,
            }
        }
        opcode::SETXATTR => decode_setxattr(call)?,
        opcode::LISTXATTR => {
            let args: abi::GetXattrIn = call.args()?;
            Operation::ListXattr {
                ino,
                size: args.size,
            }
        }
        opcode::REMOVEXATTR => {
            let [bytes] = strings(call.rest)?;
            Operation::RemoveXattr {
                ino,
                name: xattr_name(bytes)?,
            }
        }
        _ => return Err(Errno::ENOSYS),
    })
}

impl Call<'_> {
    fn args<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.fixed)
            .map(|(args, _)| args)
            .map_err(|_| Errno::EINVAL)
    }

    fn ino(&self) -> Result<InodeId, Errno> {
        inode(self.header.nodeid)
    }
}

fn inode(nodeid: u64) -> Result<InodeId, Errno> {
    if nodeid == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(node::inode_of(nodeid))
}

/// `N` NUL-terminated strings and nothing behind them.
fn strings<const N: usize>(mut bytes: &[u8]) -> Result<[&[u8]; N], Errno> {
    let mut found = [&bytes[..0]; N];
    for place in &mut found {
        let end = bytes.iter().position(|b| *b == 0).ok_or(Errno::EINVAL)?;
        *place = &bytes[..end];
        bytes = &bytes[end + 1..];
    }
    if !bytes.is_empty() {
        return Err(Errno::EINVAL);
    }
    Ok(found)
}

fn name(bytes: &[u8]) -> Result<Name, Errno> {
    if bytes.len() > limits::NAME_SIZE_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    Name::new(bytes).ok_or(Errno::EINVAL)
}

fn xattr_name(bytes: &[u8]) -> Result<SmallBytes, Errno> {
    match bytes.len() {
        0 => Err(Errno::EINVAL),
        size if size > limits::NAME_SIZE_MAX => Err(Errno::ERANGE),
        // A name space and no name: elsewhere the kernel says so itself.
        _ if [&b"user."[..], b"trusted.", b"security."].contains(&bytes) => Err(Errno::EINVAL),
        _ => Ok(SmallBytes::new(bytes)),
    }
}

fn decode_lookup(call: &Call<'_>) -> Result<Operation, Errno> {
    let ino = call.ino()?;
    let [bytes] = strings(call.rest)?;
    Ok(match bytes {
        b"." => Operation::LookupSelf { ino },
        b".." => Operation::LookupParent { ino },
        _ => Operation::Lookup {
            parent: ino,
            name: name(bytes)?,
        },
    })
}

fn make(parent: InodeId, bytes: &[u8], kind: NewKind) -> Result<Operation, Errno> {
    let name = name(bytes)?;
    Ok(Operation::Make { parent, name, kind })
}

fn rename(call: &Call<'_>, newdir: u64, flags: u32) -> Result<Operation, Errno> {
    const NO_REPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    const WHITEOUT: u32 = 4;
    let is_known = flags & !(NO_REPLACE | EXCHANGE | WHITEOUT) == 0;
    if !is_known || flags & EXCHANGE != 0 && flags != EXCHANGE {
        return Err(Errno::EINVAL);
    }
    let [source, target] = strings(call.rest)?;
    Ok(Operation::Rename {
        parent: call.ino()?,
        name: name(source)?,
        new_parent: inode(newdir)?,
        new_name: name(target)?,
        flags: RenameFlags {
            no_replace: flags & NO_REPLACE != 0,
            exchange: flags & EXCHANGE != 0,
            whiteout: flags & WHITEOUT != 0,
        },
    })
}

fn open_flags(flags: u32) -> OpenFlags {
    use crate::abi::open_flag as o;
    let access = flags & o::ACCMODE;
    OpenFlags {
        read: access != o::WRONLY,
        // 3 is Linux's "neither, but checked as both" (ioctl only).
        write: access == o::WRONLY || access == o::RDWR,
        append: flags & o::APPEND != 0,
        truncate: flags & o::TRUNC != 0,
        exclusive: flags & o::EXCL != 0,
        sync: flags & o::DSYNC != 0,
        direct: flags & o::DIRECT != 0,
        exec: flags & o::EXEC != 0,
        no_atime: flags & o::NOATIME != 0,
    }
}

/// Holes, and room for later writes.
fn decode_fallocate(call: &Call<'_>) -> Result<Operation, Errno> {
    use crate::abi::fallocate_mode as m;
    let args: abi::FallocateIn = call.args()?;
    let keeps_size = args.mode & m::KEEP_SIZE != 0;
    match args.mode & !m::KEEP_SIZE {
        m::PUNCH_HOLE if keeps_size => {}
        m::ZERO_RANGE | 0 => {}
        _ => return Err(Errno::EOPNOTSUPP),
    }
    let (ino, handle, begin) = (call.ino()?, Handle(args.fh), args.offset);
    let end = begin.checked_add(args.length).ok_or(Errno::EFBIG)?;
    Ok(match args.mode & !m::KEEP_SIZE {
        0 => Operation::Allocate {
            ino,
            handle,
            begin,
            end,
            keeps_size,
        },
        _ => Operation::Punch {
            ino,
            handle,
            begin,
            end,
            keeps_size,
        },
    })
}

fn decode_copy(call: &Call<'_>) -> Result<CopyRange, Errno> {
    let args: abi::CopyFileRangeIn = call.args()?;
    if args.flags != 0 {
        return Err(Errno::EINVAL);
    }
    let ticket = ticket::ticket(call.header.unique, call.route, false);
    Ok(CopyRange {
        ticket: ticket.ok_or(Errno::EIO)?,
        caller: caller(call)?,
        source: CopyPlace {
            ino: call.ino()?,
            handle: Handle(args.fh_in),
            offset: args.off_in,
        },
        target: CopyPlace {
            ino: inode(args.nodeid_out)?,
            handle: Handle(args.fh_out),
            offset: args.off_out,
        },
        length: args.length,
    })
}

fn decode_write(call: &Call<'_>) -> Result<Operation, Errno> {
    let args: abi::WriteIn = call.args()?;
    let payload = call.payload.ok_or(Errno::EINVAL)?;
    if payload.length != args.size || args.offset.checked_add(u64::from(args.size)).is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(Operation::Write {
        ino: call.ino()?,
        handle: Handle(args.fh),
        offset: args.offset,
        payload,
        is_write_back: args.write_flags & abi::write_flag::CACHE != 0,
        append: args.flags & abi::open_flag::APPEND != 0,
        sync: args.flags & abi::open_flag::DSYNC != 0,
        kill_set_id: args.write_flags & abi::write_flag::KILL_SUIDGID != 0,
    })
}

fn decode_setxattr(call: &Call<'_>) -> Result<Operation, Errno> {
    let args: abi::SetXattrIn = call.args()?;
    let end = call.rest.iter().position(|b| *b == 0);
    let end = end.ok_or(Errno::EINVAL)?;
    let value = &call.rest[end + 1..];
    if value.len() != args.size as usize || value.len() > limits::SMALL_BYTES_MAX {
        return Err(Errno::EINVAL);
    }
    Ok(Operation::SetXattr {
        ino: call.ino()?,
        name: xattr_name(&call.rest[..end])?,
        value: SmallBytes::new(value),
        flags: match args.setxattr_flags & abi::setxattr_flag::ACL_KILL_SGID {
            0 => args.flags,
            _ => args.flags | types::attr::XATTR_KILL_SET_GID,
        },
    })
}

fn set_attr(args: &abi::SetAttrIn, gid: u32) -> Result<SetAttr, Errno> {
    use crate::abi::fattr as f;
    let has = |bit| args.valid & bit != 0;
    let time = |set, now, secs: u64, nanos: u32| {
        if !has(set) {
            Ok(None)
        } else if has(now) {
            Ok(Some(None))
        } else if nanos >= 1_000_000_000 {
            Err(Errno::EINVAL)
        } else {
            let secs = secs.cast_signed();
            Ok(Some(Some(Timestamp { secs, nanos })))
        }
    };
    if has(f::SIZE) && args.size > limits::FILE_SIZE_MAX {
        return Err(Errno::EFBIG);
    }
    Ok(SetAttr {
        permissions: has(f::MODE).then_some(args.mode & 0o7777),
        uid: has(f::UID).then_some(args.uid),
        gid: has(f::GID).then_some(args.gid),
        size: has(f::SIZE).then_some(args.size),
        atime: time(f::ATIME, f::ATIME_NOW, args.atime, args.atimensec)?,
        mtime: time(f::MTIME, f::MTIME_NOW, args.mtime, args.mtimensec)?,
        kill_set_id: has(f::KILL_SUIDGID).then_some(gid),
    })
}

#[cfg(test)]
mod tests;
