//! Answers as the kernel reads them: a small head in a fixed buffer, and where there is more, a tail.

use crate::abi::{self, OutHeader};
use crate::node;
use crate::ticket;
use client::request::{Entry, Listed, Opened, Response, Space, Ticket, listed_size};
use types::{Attr, Errno, FileKind, Lock, LockMode, SECTOR_SIZE, Span, limits};
use zerocopy::IntoBytes;

/// `st_blksize` of directories: with larger answers who changes names there waits longer for who lists them, with smaller ones listing takes
/// longer.
const DIRECTORY_BLOCK_SIZE: u32 = 64 << 10;
/// Bytes of the largest head: header, entry and open file of a CREATE.
pub const HEAD_SIZE_MAX: usize =
    size_of::<OutHeader>() + size_of::<abi::EntryOut>() + size_of::<abi::OpenOut>();

/// An answer in the form in which it is written: head, then tail.
#[derive(Clone, Debug)]
pub struct Encoded<'a> {
    head: [u8; HEAD_SIZE_MAX],
    head_size: usize,
    /// What follows the head.
    pub tail: Tail<'a>,
}

/// What follows the head of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Tail<'a> {
    /// Nothing.
    None,
    /// Bytes of the response.
    Bytes(&'a [u8]),
    /// A directory listing.
    Owned(Vec<u8>),
    /// Pagepool memory.
    Spans(&'a [Span]),
}

impl Tail<'_> {
    fn size(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Owned(bytes) => bytes.len(),
            Self::Spans(spans) => spans.iter().map(|span| span.length as usize).sum(),
        }
    }
}

impl<'a> Encoded<'a> {
    fn new(unique: u64, error: i32, tail: Tail<'a>) -> Self {
        let mut made = Self {
            head: [0; HEAD_SIZE_MAX],
            head_size: size_of::<OutHeader>(),
            tail,
        };
        made.set_header(unique, error);
        made
    }

    fn push(&mut self, part: &(impl IntoBytes + zerocopy::Immutable)) {
        let bytes = part.as_bytes();
        self.head[self.head_size..][..bytes.len()].copy_from_slice(bytes);
        self.head_size += bytes.len();
    }

    fn set_header(&mut self, unique: u64, error: i32) {
        let size = self.head_size + self.tail.size();
        let header = OutHeader {
            len: u32::try_from(size).expect("an answer is at most max_write and a header"),
            error,
            unique,
        };
        self.head[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
    }

    /// Header and fixed part.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_size]
    }

    /// The header alone (a ring entry keeps it apart).
    pub fn header(&self) -> &[u8] {
        &self.head[..size_of::<OutHeader>()]
    }

    /// Bytes of the tail.
    pub fn tail_size(&self) -> usize {
        self.tail.size()
    }

    /// The fixed part without the header.
    pub fn body(&self) -> &[u8] {
        &self.head[size_of::<OutHeader>()..self.head_size]
    }
}

/// An answer that reports `errno`. Numbers that the kernel would not take become EIO.
pub fn encode_error(unique: u64, errno: Errno) -> Encoded<'static> {
    let number = match errno.0 {
        1..=511 => errno.0,
        _ => Errno::EIO.0,
    };
    Encoded::new(unique, -number, Tail::None)
}

/// An answer that says done.
pub fn encode_done(unique: u64) -> Encoded<'static> {
    Encoded::new(unique, 0, Tail::None)
}

/// An answer to IOCTL that says done, with nothing for the caller's memory.
pub fn encode_ioctl_done(unique: u64) -> Encoded<'static> {
    let mut made = Encoded::new(unique, 0, Tail::None);
    made.push(&abi::IoctlOut::default());
    made.set_header(unique, 0);
    made
}

/// The answer `response` to the request of `ticket`.
pub fn encode_reply(ticket: Ticket, response: &Response) -> Encoded<'_> {
    let unique = ticket::unique(ticket);
    let tail = match response {
        Response::Bytes(bytes) => Tail::Bytes(bytes),
        Response::Data(spans) => Tail::Spans(spans),
        Response::Listing(listed) => Tail::Owned(listing(listed, ticket::is_plus(ticket))),
        Response::Attr(attr, timeout_ns) if ticket::is_plus(ticket) => {
            Tail::Owned(statx_out(attr, *timeout_ns).as_bytes().to_vec())
        }
        Response::Error(errno) => return encode_error(unique, *errno),
        _ => Tail::None,
    };
    if tail.size() > limits::MAX_WRITE {
        return encode_error(unique, Errno::EIO);
    }
    let mut made = Encoded::new(unique, 0, tail);
    match response {
        Response::Entry(Some(entry), _) => made.push(&entry_out(entry)),
        Response::Entry(None, timeout_ns) => {
            let (secs, nanos) = split(*timeout_ns);
            made.push(&abi::EntryOut {
                entry_valid: secs,
                entry_valid_nsec: nanos,
                ..Default::default()
            });
        }
        Response::Attr(..) if ticket::is_plus(ticket) => {}
        Response::Attr(attr, timeout_ns) => {
            let (secs, nanos) = split(*timeout_ns);
            made.push(&abi::AttrOut {
                attr_valid: secs,
                attr_valid_nsec: nanos,
                dummy: 0,
                attr: attr_out(attr),
            });
        }
        Response::Created(entry, opened) => {
            made.push(&entry_out(entry));
            made.push(&open_out(opened));
        }
        Response::Opened(opened) => made.push(&open_out(opened)),
        Response::Size(size) | Response::Written(size) => made.push(&abi::SizeOut {
            size: *size,
            padding: 0,
        }),
        Response::Lock(lock) => made.push(&lock_out(lock.as_ref())),
        Response::Offset(offset) => made.push(&abi::LseekOut { offset: *offset }),
        Response::Space(space) => made.push(&statfs_out(space)),
        Response::Error(_)
        | Response::Done
        | Response::Data(_)
        | Response::Bytes(_)
        | Response::Listing(_) => {}
    }
    made.set_header(unique, 0);
    made
}

/// A lock as fcntl(2) shows it, with its last byte.
fn lock_out(lock: Option<&Lock>) -> abi::LkOut {
    let Some(lock) = lock else {
        return abi::LkOut {
            kind: abi::lock_type::UNLCK,
            ..Default::default()
        };
    };
    abi::LkOut {
        start: lock.range.begin,
        end: match lock.range.end {
            u64::MAX => abi::LOCK_END_MAX,
            end => end - 1,
        },
        kind: match lock.mode {
            LockMode::Read => abi::lock_type::RDLCK,
            LockMode::Write => abi::lock_type::WRLCK,
        },
        pid: lock.pid,
    }
}

/// Seconds and nanoseconds of a time-out.
#[allow(clippy::cast_possible_truncation, reason = "below 10^9")]
const fn split(ns: u64) -> (u64, u32) {
    (ns / 1_000_000_000, (ns % 1_000_000_000) as u32)
}

/// What programs read and write at a time. Of a directory it is what opendir(3) makes its buffer of, and while one is filled nobody changes
/// names there: the kernel holds the directory's lock.
fn block_size_of(attr: &Attr) -> u32 {
    match attr.kind {
        FileKind::Directory => DIRECTORY_BLOCK_SIZE,
        _ => limits::BLOCK_SIZE_DEFAULT,
    }
}

/// Attributes as the kernel takes them.
fn attr_out(attr: &Attr) -> abi::Attr {
    abi::Attr {
        ino: attr.ino.raw(),
        size: attr.size,
        blocks: attr.sector_count.saturating_mul(SECTOR_SIZE / 512),
        atime: attr.atime.secs.cast_unsigned(),
        mtime: attr.mtime.secs.cast_unsigned(),
        ctime: attr.ctime.secs.cast_unsigned(),
        atimensec: attr.atime.nanos,
        mtimensec: attr.mtime.nanos,
        ctimensec: attr.ctime.nanos,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: block_size_of(attr),
        flags: 0,
    }
}

/// Attributes as statx(2) shows them, with the time of birth.
fn statx_out(attr: &Attr, timeout_ns: u64) -> abi::StatxOut {
    let (attr_valid, attr_valid_nsec) = split(timeout_ns);
    let time = |at: types::Timestamp| abi::StatxTime {
        secs: at.secs,
        nanos: at.nanos,
        reserved: 0,
    };
    // As the kernel encodes device numbers (new_encode_dev).
    let (major, minor) = (
        attr.rdev >> 8 & 0xfff,
        attr.rdev & 0xff | attr.rdev >> 12 & 0xf_ff00,
    );
    let stat = abi::Statx {
        mask: abi::STATX_BASIC_AND_BTIME,
        blksize: block_size_of(attr),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: u16::try_from(attr.mode()).expect("S_IFMT and 07777"),
        ino: attr.ino.raw(),
        size: attr.size,
        blocks: attr.sector_count.saturating_mul(SECTOR_SIZE / 512),
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: major,
        rdev_minor: minor,
        ..Default::default()
    };
    abi::StatxOut {
        attr_valid,
        attr_valid_nsec,
        flags: 0,
        spare: [0; 2],
        stat,
    }
}

fn entry_out(entry: &Entry) -> abi::EntryOut {
    let (entry_valid, entry_valid_nsec) = split(entry.entry_timeout_ns);
    let (attr_valid, attr_valid_nsec) = split(entry.attr_timeout_ns);
    abi::EntryOut {
        nodeid: node::number_of(entry.attr.ino),
        generation: entry.attr.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr_out(&entry.attr),
    }
}

fn open_out(opened: &Opened) -> abi::OpenOut {
    let flag = |set, bit| if set { bit } else { 0 };
    abi::OpenOut {
        fh: opened.handle.0,
        open_flags: flag(opened.direct, abi::fopen::DIRECT_IO)
            | flag(opened.keep_cache, abi::fopen::KEEP_CACHE)
            | flag(opened.parallel_writes, abi::fopen::PARALLEL_DIRECT_WRITES),
        backing_id: 0,
    }
}

fn statfs_out(space: &Space) -> abi::StatFsOut {
    const INODES: u64 = 1 << 40;
    let sector_size = u32::try_from(SECTOR_SIZE).expect("4096");
    abi::StatFsOut {
        blocks: space.sector_count,
        bfree: space.sector_free_count,
        bavail: space.sector_available_count,
        files: INODES,
        ffree: INODES.saturating_sub(space.inode_count),
        bsize: sector_size,
        namelen: u32::try_from(limits::NAME_SIZE_MAX).expect("255"),
        frsize: sector_size,
        padding: 0,
        spare: [0; 6],
    }
}

/// A listing as `fuse_dirent` or `fuse_direntplus` records.
fn listing(listed: &[Listed], plus: bool) -> Vec<u8> {
    let size = listed.iter().map(|one| listed_size(one.name.len(), plus));
    let mut out = Vec::with_capacity(size.sum());
    for one in listed {
        let end = out.len() + listed_size(one.name.len(), plus);
        if plus {
            // Without an entry the node number stays 0: the kernel takes the name only.
            let entry = one.entry.as_ref().map(entry_out).unwrap_or_default();
            out.extend_from_slice(entry.as_bytes());
        }
        let dirent = abi::Dirent {
            ino: one.ino.raw(),
            off: one.cookie,
            namelen: u32::try_from(one.name.len()).expect("names are at most 255 bytes"),
            kind: (one.mode & 0o170_000) >> 12,
        };
        out.extend_from_slice(dirent.as_bytes());
        out.extend_from_slice(&one.name);
        out.resize(end, 0);
    }
    out
}

#[cfg(test)]
mod tests;
