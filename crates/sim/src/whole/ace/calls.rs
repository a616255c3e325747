//! Performs the steps of calls on a machine, and reads all that is there.

use std::collections::BTreeMap;

use client::request::{Handle, NewKind, OpenFlags, Operation, RenameFlags, Response};
use types::{Attr, Errno, FileKind, InodeId, Name, SetAttr, SmallBytes, Timestamp};

use super::super::front::no_change;
use super::machine::Machine;
use super::posix::{Body, Fs, Inode, Number, ROOT, Step};

const XATTR: &[u8] = b"user.k";
/// Bytes read at once: more than any file has.
const READ_SIZE: u32 = 64 << 10;

/// Why a call did not do what it should.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failed {
    /// It answered this.
    Refused(Errno),
    /// It never answered, or answered what is no answer.
    Broken(String),
}

type Result<T> = std::result::Result<T, Failed>;

/// An application on a machine.
#[derive(Debug)]
pub struct Calls {
    /// The machine.
    pub machine: Machine,
    nameless: Option<(InodeId, Handle)>,
    /// Canary: a rename first removes what it replaces.
    pub renames_in_two: bool,
    /// Canary: a bit of each write is lost in memory.
    pub rots_in_memory: bool,
    /// Canary: a call that finds no room says that it is done.
    pub hides_refusals: bool,
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("names here are good")
}

const fn flags(write: bool) -> OpenFlags {
    OpenFlags {
        read: true,
        write,
        append: false,
        truncate: false,
        exclusive: true,
        sync: false,
        direct: false,
        exec: false,
        no_atime: true,
    }
}

impl Calls {
    /// Of this machine.
    pub const fn new(machine: Machine) -> Self {
        Self {
            machine,
            nameless: None,
            renames_in_two: false,
            rots_in_memory: false,
            hides_refusals: false,
        }
    }

    pub(super) fn ask(&mut self, operation: Operation) -> Result<Response> {
        match self.machine.ask(operation) {
            Ok(Response::Error(errno)) => Err(Failed::Refused(errno)),
            Ok(response) => Ok(response),
            Err(text) => Err(Failed::Broken(text)),
        }
    }

    pub(super) fn done(&mut self, operation: Operation) -> Result<()> {
        match self.ask(operation)? {
            Response::Done | Response::Attr(..) | Response::Entry(Some(_), _) => Ok(()),
            response => Err(odd(&response)),
        }
    }

    fn lookup(&mut self, parent: InodeId, part: &str) -> Result<Attr> {
        let name = name(part);
        match self.ask(Operation::Lookup { parent, name })? {
            Response::Entry(Some(entry), _) => {
                let (ino, count) = (entry.attr.ino, 1);
                self.machine.tell(Operation::Forget { ino, count });
                Ok(entry.attr)
            }
            Response::Entry(None, _) => Err(Failed::Refused(Errno::ENOENT)),
            response => Err(odd(&response)),
        }
    }

    fn walk(&mut self, path: &str) -> Result<InodeId> {
        let mut at = InodeId::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = self.lookup(at, part)?.ino;
        }
        Ok(at)
    }

    fn parent(&mut self, path: &str) -> Result<(InodeId, Name)> {
        let (parent, last) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.walk(parent)?, name(last)))
    }

    fn open(&mut self, ino: InodeId, write: bool) -> Result<Handle> {
        let flags = flags(write);
        match self.ask(Operation::Open { ino, flags })? {
            Response::Opened(opened) => Ok(opened.handle),
            response => Err(odd(&response)),
        }
    }

    fn close(&mut self, ino: InodeId, handle: Handle) -> Result<()> {
        let lock_owner = 0;
        self.done(Operation::Flush {
            ino,
            handle,
            lock_owner,
        })?;
        self.done(Operation::Release { ino, handle })
    }

    fn with_open<T>(
        &mut self,
        path: &str,
        write: bool,
        act: impl FnOnce(&mut Self, InodeId, Handle) -> Result<T>,
    ) -> Result<T> {
        let ino = self.walk(path)?;
        let handle = self.open(ino, write)?;
        let result = act(self, ino, handle);
        self.close(ino, handle)?;
        result
    }

    fn punch(&mut self, path: &str, (begin, end): (u64, u64), keeps_size: bool) -> Result<()> {
        self.with_open(path, true, |calls, ino, handle| {
            calls.done(Operation::Punch {
                ino,
                handle,
                begin,
                end,
                keeps_size,
            })
        })
    }

    fn allocate(&mut self, path: &str, (begin, end): (u64, u64), keeps_size: bool) -> Result<()> {
        self.with_open(path, true, |calls, ino, handle| {
            calls.done(Operation::Allocate {
                ino,
                handle,
                begin,
                end,
                keeps_size,
            })
        })
    }

    fn write(&mut self, ino: InodeId, handle: Handle, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut bytes = bytes.to_vec();
        if let (true, Some(byte)) = (self.rots_in_memory, bytes.last_mut()) {
            *byte ^= 0x10;
        }
        let payload = self.machine.payload(&bytes);
        let written = self.ask(Operation::Write {
            ino,
            handle,
            offset,
            payload,
            is_write_back: false,
            append: false,
            sync: false,
            kill_set_id: false,
        });
        self.machine.release_payload(payload);
        match written? {
            Response::Written(count) if count as usize == bytes.len() => Ok(()),
            response => Err(odd(&response)),
        }
    }

    fn set(&mut self, path: &str, set: SetAttr) -> Result<()> {
        let ino = self.walk(path)?;
        let handle = None;
        self.done(Operation::SetAttr { ino, handle, set })
    }

    fn make(&mut self, path: &str, kind: NewKind) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.done(Operation::Make { parent, name, kind })
    }

    fn create(&mut self, path: &str) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let (permissions, flags) = (0o644, flags(true));
        let created = self.ask(Operation::Create {
            parent,
            name,
            permissions,
            flags,
        })?;
        match created {
            Response::Created(entry, opened) => self.close(entry.attr.ino, opened.handle),
            response => Err(odd(&response)),
        }
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        if self.renames_in_two && !flags.exchange {
            match self.step(&Step::Unlink(to.to_owned())) {
                Ok(()) | Err(Failed::Refused(_)) => {}
                Err(broken) => return Err(broken),
            }
        }
        let (parent, name) = self.parent(from)?;
        let (new_parent, new_name) = self.parent(to)?;
        self.done(Operation::Rename {
            parent,
            name,
            new_parent,
            new_name,
            flags,
        })
    }

    fn remove(&mut self, path: &str, is_rmdir: bool) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        self.done(match is_rmdir {
            true => Operation::Rmdir { parent, name },
            false => Operation::Unlink { parent, name },
        })
    }

    fn create_nameless(&mut self) -> Result<()> {
        let made = self.ask(Operation::CreateNameless {
            parent: InodeId::ROOT,
            permissions: 0o644,
            flags: OpenFlags {
                exclusive: false,
                ..flags(true)
            },
        })?;
        match made {
            Response::Created(entry, opened) => {
                self.nameless = Some((entry.attr.ino, opened.handle));
                Ok(())
            }
            response => Err(odd(&response)),
        }
    }

    fn close_nameless(&mut self) -> Result<()> {
        match self.nameless.take() {
            Some((ino, handle)) => self.close(ino, handle),
            None => Ok(()),
        }
    }

    /// Does a step.
    ///
    /// # Errors
    /// It cannot be done, or has no answer.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        match self.try_step(step) {
            Err(Failed::Refused(Errno::ENOSPC)) if self.hides_refusals => Ok(()),
            result => result,
        }
    }

    fn try_step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Create(path) => self.create(path),
            Step::Mkdir(path) => self.make(path, NewKind::Directory { permissions: 0o755 }),
            Step::Symlink(path, target) => {
                let target = SmallBytes::new(target.as_bytes());
                self.make(path, NewKind::Symlink { target })
            }
            Step::Write(path, offset, bytes) => self.with_open(path, true, |calls, ino, handle| {
                calls.write(ino, handle, *offset, bytes)
            }),
            Step::Truncate(path, size) => {
                let size = Some(*size);
                self.set(
                    path,
                    SetAttr {
                        size,
                        ..no_change()
                    },
                )
            }
            Step::Punch(path, begin, end, keeps_size) => {
                self.punch(path, (*begin, *end), *keeps_size)
            }
            Step::Allocate(path, begin, end, keeps_size) => {
                self.allocate(path, (*begin, *end), *keeps_size)
            }
            Step::Link(from, to) => {
                let ino = self.walk(from)?;
                let (parent, name) = self.parent(to)?;
                self.done(Operation::Link { ino, parent, name })
            }
            Step::Unlink(path) => self.remove(path, false),
            Step::Rmdir(path) => self.remove(path, true),
            Step::Rename(from, to) => self.rename(from, to, RenameFlags::default()),
            Step::Exchange(from, to) => {
                let flags = RenameFlags {
                    exchange: true,
                    ..RenameFlags::default()
                };
                self.rename(from, to, flags)
            }
            Step::Chmod(path, mode) => {
                let permissions = Some(*mode);
                self.set(
                    path,
                    SetAttr {
                        permissions,
                        ..no_change()
                    },
                )
            }
            Step::Chown(path, uid) => {
                let uid = Some(*uid);
                self.set(path, SetAttr { uid, ..no_change() })
            }
            Step::Times(path, seconds) => {
                let secs = i64::try_from(*seconds).expect("a time of today");
                let mtime = Some(Some(Timestamp { secs, nanos: 0 }));
                self.set(
                    path,
                    SetAttr {
                        mtime,
                        ..no_change()
                    },
                )
            }
            Step::SetXattr(path, value) => {
                let ino = self.walk(path)?;
                self.done(Operation::SetXattr {
                    ino,
                    name: SmallBytes::new(XATTR),
                    value: SmallBytes::new(value),
                    flags: 0,
                })
            }
            Step::RemoveXattr(path) => {
                let (ino, name) = (self.walk(path)?, SmallBytes::new(XATTR));
                self.done(Operation::RemoveXattr { ino, name })
            }
            Step::CreateNameless => self.create_nameless(),
            Step::WriteNameless(offset, bytes) => {
                let (ino, handle) = self.nameless.ok_or(Failed::Refused(Errno::EBADF))?;
                self.write(ino, handle, *offset, bytes)
            }
            Step::LinkNameless(path) => {
                let (ino, _) = self.nameless.ok_or(Failed::Refused(Errno::EBADF))?;
                let (parent, name) = self.parent(path)?;
                self.done(Operation::Link { ino, parent, name })?;
                self.close_nameless()
            }
            Step::CloseNameless => self.close_nameless(),
        }
    }

    /// fsync of a file or directory.
    ///
    /// # Errors
    /// It cannot be done, or has no answer.
    pub fn fsync(&mut self, path: &str, is_directory: bool) -> Result<()> {
        if !is_directory {
            return self.with_open(path, true, |calls, ino, handle| {
                calls.done(Operation::Fsync {
                    ino,
                    handle,
                    data_only: false,
                })
            });
        }
        let ino = self.walk(path)?;
        let handle = self.open_directory(ino)?;
        self.done(Operation::FsyncDir { ino, handle })?;
        self.done(Operation::ReleaseDir { ino, handle })
    }

    pub(super) fn open_directory(&mut self, ino: InodeId) -> Result<Handle> {
        match self.ask(Operation::OpenDir { ino })? {
            Response::Opened(opened) => Ok(opened.handle),
            response => Err(odd(&response)),
        }
    }

    /// Reads everything there is. Files that cannot be read are named in the second part.
    ///
    /// # Errors
    /// Something else cannot be read.
    pub fn observe(&mut self) -> Result<(Fs, BTreeMap<Number, Errno>)> {
        let mut seen = Fs::default();
        seen.inodes.clear();
        let mut unreadable = BTreeMap::new();
        let root = self.attributes(InodeId::ROOT)?;
        self.observe_at(root, &mut seen, &mut unreadable)?;
        Ok((seen, unreadable))
    }

    fn attributes(&mut self, ino: InodeId) -> Result<Attr> {
        match self.ask(Operation::GetAttr { ino, handle: None })? {
            Response::Attr(attr, _) => Ok(attr),
            response => Err(odd(&response)),
        }
    }

    fn observe_at(
        &mut self,
        attr: Attr,
        seen: &mut Fs,
        unreadable: &mut BTreeMap<Number, Errno>,
    ) -> Result<Number> {
        let ino = attr.ino;
        let number = if ino == InodeId::ROOT {
            ROOT
        } else {
            ino.raw()
        };
        if seen.inodes.contains_key(&number) {
            return Ok(number);
        }
        let xattr = self.xattr(ino)?;
        let body = match attr.kind {
            FileKind::File => match self.content(&attr) {
                Ok(bytes) => Body::File(bytes),
                Err(Failed::Refused(errno)) => {
                    unreadable.insert(number, errno);
                    Body::File(Vec::new())
                }
                Err(broken) => return Err(broken),
            },
            FileKind::Symlink => match self.ask(Operation::ReadLink { ino })? {
                Response::Bytes(bytes) => Body::Symlink(text(&bytes)),
                response => return Err(odd(&response)),
            },
            FileKind::Directory => Body::Directory(BTreeMap::new()),
            FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => {
                return Err(Failed::Broken(format!("nobody made {attr:?}")));
            }
        };
        let is_directory = matches!(body, Body::Directory(_));
        let inode = Inode {
            body,
            permissions: attr.permissions & 0o7777,
            uid: attr.uid,
            xattr,
            mtime: u64::try_from(attr.mtime.secs).ok(),
            nlink: attr.nlink,
        };
        seen.inodes.insert(number, inode);
        if is_directory {
            let mut entries = BTreeMap::new();
            for (part, listed) in self.list(ino)? {
                let attr = self.lookup(ino, &part)?;
                if attr.ino != listed {
                    let text = format!("{part} is listed as {listed} and is {}", attr.ino);
                    return Err(Failed::Broken(text));
                }
                entries.insert(part, self.observe_at(attr, seen, unreadable)?);
            }
            seen.inodes.get_mut(&number).expect("just put there").body = Body::Directory(entries);
        }
        Ok(number)
    }

    fn xattr(&mut self, ino: InodeId) -> Result<Option<Vec<u8>>> {
        let (name, size) = (SmallBytes::new(XATTR), 64);
        match self.ask(Operation::GetXattr { ino, name, size }) {
            Ok(Response::Bytes(bytes)) => Ok(Some(bytes.to_vec())),
            Err(Failed::Refused(Errno::ENODATA)) => Ok(None),
            Ok(response) => Err(odd(&response)),
            Err(error) => Err(error),
        }
    }

    fn content(&mut self, attr: &Attr) -> Result<Vec<u8>> {
        let ino = attr.ino;
        let handle = self.open(ino, false)?;
        let read = self.ask(Operation::Read {
            ino,
            handle,
            offset: 0,
            length: READ_SIZE,
            fills_page_cache: false,
        });
        self.close(ino, handle)?;
        match read? {
            Response::Data(spans) => {
                let bytes = self.machine.gather(&spans);
                if bytes.len() as u64 != attr.size {
                    let text = format!("{} bytes were read of {attr:?}", bytes.len());
                    return Err(Failed::Broken(text));
                }
                Ok(bytes)
            }
            response => Err(odd(&response)),
        }
    }

    fn list(&mut self, ino: InodeId) -> Result<Vec<(String, InodeId)>> {
        let handle = self.open_directory(ino)?;
        let mut found = Vec::new();
        let mut cookie = 0;
        loop {
            let listing = self.ask(Operation::ReadDir {
                ino,
                handle,
                cookie,
                size: 4096,
                plus: false,
            })?;
            let Response::Listing(listed) = listing else {
                return Err(odd(&listing));
            };
            let Some(last) = listed.last() else { break };
            cookie = last.cookie;
            let named = listed.iter().map(|entry| (text(&entry.name), entry.ino));
            found.extend(named.filter(|(name, _)| name != "." && name != ".."));
        }
        self.done(Operation::ReleaseDir { ino, handle })?;
        Ok(found)
    }
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn odd(response: &Response) -> Failed {
    Failed::Broken(format!("no answer to that: {response:?}"))
}
