//! T, the comparator: a trivial in-memory FUSE server on our own layer, with GUPFS's open modes.
//!
//! `trivial MNT [--mem] [--dio] [--direct-from BYTES] [--ttl SECONDS] [--threads N] [--transport dev|uring] [--slabs N]
//! [--disk PATH] [--async-dio]`
//!
//! Does what benchmarks/fuse-ceiling.c does on libfuse: keeps data in buffers of 1 MiB (with `--mem`; else
//! it discards writes and reads zeros), never frees an inode, answers FLUSH. Ends when it is unmounted.
//! With `--disk` each write is a pwrite, and each read a pread, with O_DIRECT at the same offset of that device: for one file.
//! `--async-dio` asks the kernel for FUSE_ASYNC_DIO.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program of its own"
)]

use client::request::{
    Caller, Entry, Handle, Listed, NewKind, Opened, Operation, Request, Response, Space,
    TicketPart, listed_size,
};
use os::fuse::{
    Handler, InterruptOutcome, Memory, Replier, Session, SessionConfig, Slabs, TransportKind,
};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use types::frame::{FRAME_SIZE, FRAMES_PER_SLAB};
use types::{Attr, Errno, FileKind, FrameRef, InodeId, Name, SetAttr, SmallBytes, Span, Timestamp};

const BLOCK_SIZE: u64 = 1 << 20;
const NODES_PER_BLOCK: usize = 4096;

/// FNV-1a: short names, no attackers.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

/// Entries in slots, so that cookies stay valid while names come and go.
#[derive(Default)]
struct Directory {
    slots: Vec<Option<(Name, u64)>>,
    by_name: HashMap<Name, usize, BuildHasherDefault<NameHasher>>,
}

impl Directory {
    fn find(&self, name: &Name) -> Option<u64> {
        let slot = *self.by_name.get(name)?;
        self.slots[slot].as_ref().map(|(_, ino)| *ino)
    }

    fn insert(&mut self, name: Name, ino: u64) {
        self.by_name.insert(name.clone(), self.slots.len());
        self.slots.push(Some((name, ino)));
    }

    fn remove(&mut self, name: &Name) -> Option<u64> {
        let slot = self.by_name.remove(name)?;
        let gone = self.slots[slot].take().map(|(_, ino)| ino);
        if self.by_name.is_empty() {
            self.slots.clear();
        }
        gone
    }
}

struct Node {
    attr: Mutex<Attr>,
    directory: RwLock<Directory>,
    slabs: RwLock<Vec<Option<FrameRef>>>,
    target: OnceLock<SmallBytes>,
}

struct Trivial {
    memory: Arc<Slabs>,
    zeros: FrameRef,
    keeps: bool,
    /// Takes the bytes of the one file.
    disk: Option<File>,
    /// Files of this size and more are read past the page cache.
    direct_size_min: u64,
    timeout_ns: u64,
    blocks: Vec<OnceLock<Box<[OnceLock<Node>]>>>,
    next: AtomicU64,
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after 1970");
    Timestamp {
        secs: since.as_secs().cast_signed(),
        nanos: since.subsec_nanos(),
    }
}

impl Trivial {
    fn node(&self, ino: InodeId) -> Option<&Node> {
        let index = usize::try_from(ino.raw()).ok()?;
        let block = self.blocks.get(index / NODES_PER_BLOCK)?.get()?;
        block[index % NODES_PER_BLOCK].get()
    }

    fn make(&self, kind: FileKind, permissions: u32, uid: u32, gid: u32) -> (Attr, &Node) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let index = usize::try_from(number).expect("64 bit");
        let block = self.blocks[index / NODES_PER_BLOCK]
            .get_or_init(|| (0..NODES_PER_BLOCK).map(|_| OnceLock::new()).collect());
        let time = now();
        let attr = Attr {
            ino: InodeId::from_raw(number),
            generation: 0,
            kind,
            permissions,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid,
            gid,
            rdev: 0,
            size: 0,
            sector_count: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            change: 0,
            size_generation: 0,
            layout: types::Layout::default(),
        };
        let node = block[index % NODES_PER_BLOCK].get_or_init(|| Node {
            attr: Mutex::new(attr),
            directory: RwLock::default(),
            slabs: RwLock::default(),
            target: OnceLock::new(),
        });
        (attr, node)
    }

    fn entry(&self, attr: Attr) -> Entry {
        Entry {
            attr,
            entry_timeout_ns: self.timeout_ns,
            attr_timeout_ns: self.timeout_ns,
        }
    }

    fn opened(&self, writable: bool, size: u64) -> Opened {
        let direct = writable || size >= self.direct_size_min;
        Opened {
            handle: Handle(0),
            direct,
            keep_cache: true,
            parallel_writes: direct,
        }
    }

    fn answer(&self, request: &Request) -> Result<Response, Errno> {
        let node = |ino| self.node(ino).ok_or(Errno::ESTALE);
        let caller = request.caller;
        Ok(match &request.operation {
            Operation::Lookup { parent, name } => {
                let found = node(*parent)?.directory.read().expect("lock").find(name);
                let ino = InodeId::from_raw(found.ok_or(Errno::ENOENT)?);
                Response::Entry(Some(self.entry(*node(ino)?.attr.lock().expect("lock"))), 0)
            }
            Operation::GetAttr { ino, .. } => {
                Response::Attr(*node(*ino)?.attr.lock().expect("lock"), self.timeout_ns)
            }
            Operation::SetAttr { ino, set, .. } => {
                Response::Attr(set_attr(node(*ino)?, set), self.timeout_ns)
            }
            Operation::Make { parent, name, kind } => {
                self.add(caller, node(*parent)?, name, kind)?
            }
            Operation::Create {
                parent,
                name,
                permissions,
                flags,
            } => {
                let directory = &node(*parent)?.directory;
                let (uid, gid) = (caller.uid, caller.gid);
                let (attr, _) = self.make(FileKind::File, *permissions, uid, gid);
                insert(directory, name, attr)?;
                Response::Created(self.entry(attr), self.opened(flags.write, 0))
            }
            Operation::Unlink { parent, name } | Operation::Rmdir { parent, name } => {
                let gone = node(*parent)?.directory.write().expect("lock").remove(name);
                self.drop_data(node(InodeId::from_raw(gone.ok_or(Errno::ENOENT)?))?);
                Response::Done
            }
            Operation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                ..
            } => rename((node(*parent)?, name), (node(*new_parent)?, new_name))?,
            Operation::Open { ino, flags } => {
                let mut attr = node(*ino)?.attr.lock().expect("lock");
                if flags.truncate {
                    attr.size = 0;
                }
                Response::Opened(self.opened(flags.write, attr.size))
            }
            Operation::Read {
                ino,
                offset,
                length,
                ..
            } => self.read(node(*ino)?, *offset, *length)?,
            Operation::Write {
                ino,
                offset,
                payload,
                append,
                ..
            } => self.write(node(*ino)?, *offset, *payload, *append)?,
            Operation::ReadDir {
                ino,
                cookie,
                size,
                plus,
                ..
            } => self.list(node(*ino)?, *cookie, *size, *plus),
            Operation::ReadLink { ino } => {
                Response::Bytes(node(*ino)?.target.get().ok_or(Errno::EINVAL)?.clone())
            }
            Operation::OpenDir { .. } => Response::Opened(Opened {
                handle: Handle(0),
                direct: false,
                keep_cache: false,
                parallel_writes: false,
            }),
            Operation::StatFs => Response::Space(Space {
                sector_count: 1 << 24,
                sector_free_count: 1 << 24,
                sector_available_count: 1 << 24,
                inode_count: 0,
            }),
            Operation::Fsync { .. } => {
                if let Some(disk) = &self.disk {
                    disk.sync_data().map_err(errno)?;
                }
                Response::Done
            }
            Operation::Flush { .. }
            | Operation::Release { .. }
            | Operation::ReleaseDir { .. }
            | Operation::FsyncDir { .. }
            | Operation::Access { .. }
            | Operation::SyncFs => Response::Done,
            _ => return Err(Errno::ENOSYS),
        })
    }

    fn add(
        &self,
        caller: Caller,
        parent: &Node,
        name: &Name,
        kind: &NewKind,
    ) -> Result<Response, Errno> {
        let (kind, permissions, target) = match kind {
            NewKind::Node { mode, .. } => {
                let kind = FileKind::from_mode(*mode).ok_or(Errno::EINVAL)?;
                (kind, *mode & 0o7777, None)
            }
            NewKind::Directory { permissions } => (FileKind::Directory, *permissions, None),
            NewKind::Symlink { target } => (FileKind::Symlink, 0o777, Some(target.clone())),
        };
        let (attr, made) = self.make(kind, permissions, caller.uid, caller.gid);
        if let Some(target) = target {
            let _ = made.target.set(target);
        }
        insert(&parent.directory, name, attr)?;
        Ok(Response::Entry(Some(self.entry(attr)), 0))
    }

    fn list(&self, node: &Node, cookie: u64, size: u32, plus: bool) -> Response {
        let directory = node.directory.read().expect("lock");
        let mut left = size as usize;
        let mut listed = Vec::new();
        let start = usize::try_from(cookie).expect("64 bit");
        for (slot, entry) in directory.slots.iter().enumerate().skip(start) {
            let Some((name, number)) = entry else {
                continue;
            };
            let needed = listed_size(name.bytes().len(), plus);
            if needed > left {
                break;
            }
            left -= needed;
            let ino = InodeId::from_raw(*number);
            let attr = *self.node(ino).expect("listed").attr.lock().expect("lock");
            listed.push(Listed {
                name: SmallBytes::new(name.bytes()),
                ino,
                mode: attr.mode(),
                cookie: slot as u64 + 1,
                entry: plus.then(|| self.entry(attr)),
            });
        }
        Response::Listing(listed)
    }

    fn read(&self, node: &Node, offset: u64, length: u32) -> Result<Response, Errno> {
        let size = node.attr.lock().expect("lock").size;
        let end = size.min(offset + u64::from(length));
        if let Some(disk) = &self.disk {
            return self.read_disk(disk, offset, end.saturating_sub(offset));
        }
        let slabs = node.slabs.read().expect("lock");
        let mut spans = Vec::with_capacity(2);
        let mut at = offset;
        while at < end {
            let (index, skip) = (at / BLOCK_SIZE, at % BLOCK_SIZE);
            let part = (BLOCK_SIZE - skip).min(end - at);
            let slab = slabs.get(usize::try_from(index).expect("64 bit"));
            let slab = slab.copied().flatten().unwrap_or(self.zeros);
            let span = part_of_slab(slab, skip, part);
            for frame in frames(span) {
                self.memory.retain(frame);
            }
            spans.push(span);
            at += part;
        }
        Ok(Response::Data(spans))
    }

    fn read_disk(&self, disk: &File, offset: u64, length: u64) -> Result<Response, Errno> {
        let slab = self.memory.alloc_slab().ok_or(Errno::ENOMEM)?;
        let whole = part_of_slab(slab, 0, BLOCK_SIZE);
        let span = part_of_slab(slab, 0, length);
        let size = usize::try_from(length).expect("at most 1 MiB");
        // SAFETY: fresh frames of which only we hold a reference.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.memory.address(slab), size) };
        let outcome = disk.read_exact_at(bytes, offset).map_err(errno);
        // The answer holds what it brings; the rest of the slab goes.
        if outcome.is_ok() {
            frames(span).for_each(|frame| self.memory.retain(frame));
        }
        self.memory.release_span(whole);
        outcome.map(|()| Response::Data(vec![span]))
    }

    fn write(
        &self,
        node: &Node,
        offset: u64,
        payload: Span,
        append: bool,
    ) -> Result<Response, Errno> {
        let mut offset = offset;
        if append {
            offset = node.attr.lock().expect("lock").size;
        }
        if let Some(disk) = &self.disk {
            // SAFETY: the transport holds the payload until it is answered.
            let bytes = unsafe { self.memory.slice(payload) };
            disk.write_all_at(bytes, offset).map_err(errno)?;
        } else if self.keeps {
            self.store(node, offset, payload)?;
        }
        let end = offset + u64::from(payload.length);
        let mut attr = node.attr.lock().expect("lock");
        attr.size = attr.size.max(end);
        Ok(Response::Written(payload.length))
    }

    fn store(&self, node: &Node, offset: u64, payload: Span) -> Result<(), Errno> {
        let mut done = 0;
        while done < payload.length {
            let at = offset + u64::from(done);
            let (index, skip) = (at / BLOCK_SIZE, at % BLOCK_SIZE);
            let index = usize::try_from(index).expect("64 bit");
            let left = u64::from(payload.length - done);
            let part = (BLOCK_SIZE - skip).min(left);
            let length = u32::try_from(part).expect("at most 1 MiB");
            let source = payload.part(done, length);
            done += length;
            if part == BLOCK_SIZE
                && source.frame.0.is_multiple_of(FRAMES_PER_SLAB)
                && source.offset == 0
            {
                // A whole slab: it moves.
                for frame in frames(source) {
                    self.memory.retain(frame);
                }
                let mut slabs = node.slabs.write().expect("lock");
                grow(&mut slabs, index);
                if let Some(old) = slabs[index].replace(source.frame) {
                    self.memory.release_span(part_of_slab(old, 0, BLOCK_SIZE));
                }
                continue;
            }
            let slab = self.slab(node, index)?;
            let target = part_of_slab(slab, skip, part);
            // SAFETY: the transport holds the payload, the node its slab; two writers of the same bytes
            // at once are the application's affair, and only bytes are at stake.
            unsafe {
                let target = self
                    .memory
                    .address(target.frame)
                    .add(target.offset as usize);
                let source = self.memory.slice(source);
                std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len());
            }
        }
        Ok(())
    }

    /// The slab of a block, made where it is missing.
    fn slab(&self, node: &Node, index: usize) -> Result<FrameRef, Errno> {
        let found = node.slabs.read().expect("lock").get(index).copied();
        if let Some(slab) = found.flatten() {
            return Ok(slab);
        }
        let mut slabs = node.slabs.write().expect("lock");
        grow(&mut slabs, index);
        if let Some(slab) = slabs[index] {
            return Ok(slab);
        }
        let slab = self.memory.alloc_slab().ok_or(Errno::ENOSPC)?;
        let size = usize::try_from(BLOCK_SIZE).expect("1 MiB");
        // SAFETY: fresh frames of which only we hold a reference.
        unsafe { std::ptr::write_bytes(self.memory.address(slab), 0, size) };
        slabs[index] = Some(slab);
        Ok(slab)
    }

    fn drop_data(&self, node: &Node) {
        for slab in node.slabs.write().expect("lock").drain(..).flatten() {
            self.memory.release_span(part_of_slab(slab, 0, BLOCK_SIZE));
        }
    }
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

fn grow(slabs: &mut Vec<Option<FrameRef>>, index: usize) {
    if slabs.len() <= index {
        slabs.resize(index + 1, None);
    }
}

fn part_of_slab(slab: FrameRef, skip: u64, length: u64) -> Span {
    let whole = Span {
        frame: slab,
        offset: 0,
        length: u32::try_from(BLOCK_SIZE).expect("1 MiB"),
    };
    whole.part(
        u32::try_from(skip).expect("within a block"),
        u32::try_from(length).expect("within a block"),
    )
}

fn frames(span: Span) -> impl Iterator<Item = FrameRef> {
    let size = u32::try_from(FRAME_SIZE).expect("4096");
    (0..(span.offset + span.length).div_ceil(size)).map(move |i| FrameRef(span.frame.0 + i))
}

fn insert(directory: &RwLock<Directory>, name: &Name, attr: Attr) -> Result<(), Errno> {
    let mut directory = directory.write().expect("lock");
    if directory.by_name.contains_key(name) {
        return Err(Errno::EEXIST);
    }
    directory.insert(name.clone(), attr.ino.raw());
    Ok(())
}

fn rename(from: (&Node, &Name), to: (&Node, &Name)) -> Result<Response, Errno> {
    let moved = from.0.directory.write().expect("lock").remove(from.1);
    let moved = moved.ok_or(Errno::ENOENT)?;
    let mut target = to.0.directory.write().expect("lock");
    target.remove(to.1);
    target.insert(to.1.clone(), moved);
    Ok(Response::Done)
}

fn set_attr(node: &Node, set: &SetAttr) -> Attr {
    let mut attr = node.attr.lock().expect("lock");
    attr.size = set.size.unwrap_or(attr.size);
    attr.permissions = set.permissions.unwrap_or(attr.permissions);
    attr.uid = set.uid.unwrap_or(attr.uid);
    attr.gid = set.gid.unwrap_or(attr.gid);
    if let Some(time) = set.mtime {
        attr.mtime = time.unwrap_or_else(now);
    }
    if let Some(time) = set.atime {
        attr.atime = time.unwrap_or_else(now);
    }
    *attr
}

impl Handler for Trivial {
    fn on_request(&self, replier: &Replier, request: Request) {
        if matches!(request.operation, Operation::Forget { .. }) {
            return;
        }
        let response = self.answer(&request).unwrap_or_else(Response::Error);
        replier.reply(request.ticket, &response);
    }

    fn on_interrupt(&self, _replier: &Replier, _part: TicketPart) -> InterruptOutcome {
        // Every request is answered at once.
        InterruptOutcome::Taken
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).cloned()
    };
    let has = |name: &str| arguments.iter().any(|word| word == name);
    let number =
        |name, default| value(name).map_or(default, |text| text.parse().expect("a number"));
    let mount_point = arguments.get(1).expect("usage: trivial MNT [options]");

    let mut config = SessionConfig::new(Path::new(mount_point));
    "trivial".clone_into(&mut config.source);
    config.thread_count = number("--threads", config.thread_count);
    config.async_direct_io = has("--async-dio");
    if value("--transport").as_deref() == Some("uring") {
        config.transport = TransportKind::Ring;
    }
    let slab_count = u32::try_from(number("--slabs", 4096)).expect("few");
    let memory = Arc::new(Slabs::new(slab_count).expect("address space"));
    let seconds: f64 = value("--ttl").map_or(1.0, |text| text.parse().expect("seconds"));
    let limit = usize::try_from(types::limits::DIRECT_SIZE_MIN).expect("64 bit");
    let trivial = Arc::new(Trivial {
        zeros: memory.alloc_slab().expect("the first slab"),
        memory: memory.clone(),
        keeps: has("--mem"),
        disk: value("--disk").map(|path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT)
                .open(path)
                .expect("the disk opens")
        }),
        direct_size_min: if has("--dio") {
            0
        } else {
            number("--direct-from", limit) as u64
        },
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a command line"
        )]
        timeout_ns: (seconds * 1e9) as u64,
        blocks: (0..65_536).map(|_| OnceLock::new()).collect(),
        next: AtomicU64::new(1),
    });
    trivial.make(FileKind::Directory, 0o777, 0, 0);
    let mut session = Session::mount(config, memory).expect("mount");
    session.start(trivial).expect("start");
    println!("mounted at {mount_point}");
    session.wait();
}
