//! One call, and what it answers on either file system, as text that can be compared.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    self, AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, Uid, XattrFlags,
};

use crate::calls::{self, Mapping};

/// Files that a player has open at most.
pub const SLOT_COUNT: usize = 6;

/// Times that utimensat sets lie before this; the clock's behind it.
const OLD: i64 = 1_500_000_000;

/// Index of an open file.
pub type Slot = usize;

/// A call. Paths are relative to the player's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Open {
        slot: Slot,
        path: String,
        flags: OFlags,
        mode: u32,
    },
    Tmpfile {
        slot: Slot,
        path: String,
        mode: u32,
    },
    Close {
        slot: Slot,
    },
    Read {
        slot: Slot,
        at: u64,
        size: usize,
    },
    Write {
        slot: Slot,
        at: u64,
        size: usize,
        fill: u8,
    },
    Store {
        slot: Slot,
        at: u64,
        size: usize,
        fill: u8,
    },
    Load {
        slot: Slot,
        at: u64,
        size: usize,
    },
    Cut {
        slot: Slot,
        size: u64,
    },
    Allocate {
        slot: Slot,
        is_zero: bool,
        keeps_size: bool,
        at: u64,
        size: u64,
    },
    Copy {
        from: Slot,
        to: Slot,
        from_at: u64,
        to_at: u64,
        size: usize,
    },
    Holes {
        slot: Slot,
        at: u64,
    },
    Sync {
        slot: Slot,
        is_data: bool,
    },
    Name {
        slot: Slot,
        path: String,
    },
    StatOpen {
        slot: Slot,
    },
    Stat {
        path: String,
        follows: bool,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Mknod {
        path: String,
        mode: u32,
    },
    Symlink {
        path: String,
        target: String,
    },
    Readlink {
        path: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Rename {
        from: String,
        to: String,
        flags: RenameFlags,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        user: Option<u32>,
        group: Option<u32>,
    },
    Utimes {
        path: String,
        seconds: i64,
        follows: bool,
    },
    SetXattr {
        path: String,
        name: String,
        size: usize,
        fill: u8,
        flags: XattrFlags,
    },
    GetXattr {
        path: String,
        name: String,
    },
    ListXattr {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    List {
        path: String,
    },
    ReadPath {
        path: String,
    },
}

/// What a call gave: its answer, or the number of its error.
pub type Answer = Result<String, i32>;

/// One side: where it is, and what it has open.
pub struct Side {
    pub root: PathBuf,
    pub slots: [Option<Opened>; SLOT_COUNT],
}

/// An open file.
pub struct Opened {
    pub file: File,
}

/// The bytes that `fill` stands for: they depend on the place, so that a piece of elsewhere is seen.
pub fn bytes(fill: u8, at: u64, size: usize) -> Vec<u8> {
    let mix = |n: u64| stdx::prng::splitmix64(((at + n) / 8) ^ (u64::from(fill) << 56));
    (0..size as u64)
        .map(|n| mix(n).to_le_bytes()[usize::try_from((at + n) % 8).expect("small")] | 1)
        .collect()
}

fn digest(bytes: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    format!(
        "{} bytes, {:016x}, {} zero",
        bytes.len(),
        hasher.finish(),
        bytes.iter().filter(|b| **b == 0).count()
    )
}

fn shown_time(seconds: i64, nanoseconds: u32) -> String {
    match seconds < OLD {
        true => format!("{seconds}.{nanoseconds:09}"),
        false => "now".to_owned(),
    }
}

/// The change time of an inode, in nanoseconds.
fn changed(found: &fs::Statx) -> i128 {
    i128::from(found.stx_ctime.tv_sec) * 1_000_000_000 + i128::from(found.stx_ctime.tv_nsec)
}

fn shown(found: &fs::Statx) -> String {
    let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
    // What a directory's size is, every file system has its own idea of.
    let size = (kind != FileType::Directory).then_some(found.stx_size);
    format!(
        "mode {:o} links {} owner {}:{} size {size:?} device {}:{} mtime {}",
        found.stx_mode,
        found.stx_nlink,
        found.stx_uid,
        found.stx_gid,
        found.stx_rdev_major,
        found.stx_rdev_minor,
        shown_time(found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
    )
}

fn errno(error: &Error) -> i32 {
    error.raw_os_error().unwrap_or(-1)
}

impl Side {
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            slots: [const { None }; SLOT_COUNT],
        }
    }

    fn at(&self, path: &str) -> PathBuf {
        match path.is_empty() {
            true => self.root.clone(),
            false => self.root.join(path),
        }
    }

    fn file(&self, slot: Slot) -> &File {
        &self.slots[slot]
            .as_ref()
            .expect("drawn for an open file")
            .file
    }

    /// ctime of what the path names; nothing if there is none.
    pub fn change_time(&self, path: &str) -> Option<i128> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = fs::statx(CWD, self.at(path), flags, fs::StatxFlags::BASIC_STATS);
        found.ok().map(|found| changed(&found))
    }

    /// ctime of an open file.
    pub fn change_time_of(&self, slot: Slot) -> Option<i128> {
        let file = self.slots[slot].as_ref()?;
        let found = fs::statx(
            &file.file,
            "",
            AtFlags::EMPTY_PATH,
            fs::StatxFlags::BASIC_STATS,
        );
        found.ok().map(|found| changed(&found))
    }

    /// Makes the call.
    pub fn call(&mut self, call: &Call) -> Answer {
        self.perform(call).map_err(|error| errno(&error))
    }

    fn perform(&mut self, call: &Call) -> Result<String, Error> {
        let done = Ok(String::new());
        match call {
            Call::Open {
                slot,
                path,
                flags,
                mode,
            } => {
                let mode = Mode::from_raw_mode(*mode);
                let opened = fs::open(self.at(path), *flags | OFlags::CLOEXEC, mode)?;
                self.slots[*slot] = Some(Opened {
                    file: opened.into(),
                });
                done
            }
            Call::Tmpfile { slot, path, mode } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let opened = fs::open(self.at(path), flags, Mode::from_raw_mode(*mode))?;
                self.slots[*slot] = Some(Opened {
                    file: opened.into(),
                });
                done
            }
            Call::Close { slot } => {
                self.slots[*slot] = None;
                done
            }
            Call::Read { .. }
            | Call::Write { .. }
            | Call::Store { .. }
            | Call::Load { .. }
            | Call::Cut { .. } => self.data(call),
            Call::Allocate { .. } | Call::Copy { .. } | Call::Holes { .. } | Call::Sync { .. } => {
                self.space(call)
            }
            Call::Name { slot, path } => {
                calls::link_descriptor(self.file(*slot), &self.at(path))?;
                done
            }
            Call::StatOpen { slot } => {
                let (file, flags) = (self.file(*slot), AtFlags::EMPTY_PATH);
                let found = fs::statx(file, "", flags, fs::StatxFlags::BASIC_STATS)?;
                let kind = FileType::from_raw_mode(u32::from(found.stx_mode));
                match kind != FileType::RegularFile && found.stx_nlink == 0 {
                    // Nothing is kept of a directory or pipe that is gone: what else is shown is of before (docs/posix.md).
                    true => done,
                    false => Ok(shown(&found)),
                }
            }
            Call::SetXattr { .. }
            | Call::GetXattr { .. }
            | Call::ListXattr { .. }
            | Call::RemoveXattr { .. } => self.xattr(call),
            _ => self.name(call),
        }
    }

    /// Calls that move bytes of an open file.
    fn data(&self, call: &Call) -> Result<String, Error> {
        match call {
            Call::Read { slot, at, size } => {
                let mut found = vec![0; *size];
                let count = read_fully(self.file(*slot), &mut found, *at)?;
                Ok(digest(&found[..count]))
            }
            Call::Write {
                slot,
                at,
                size,
                fill,
            } => {
                let count = self.file(*slot).write_at(&bytes(*fill, *at, *size), *at)?;
                Ok(format!("{count}"))
            }
            Call::Store {
                slot,
                at,
                size,
                fill,
            } => {
                let Some((mapping, end)) = self.mapping(*slot, *at, *size, true)? else {
                    return Ok("nothing to map".to_owned());
                };
                let size = usize::try_from(end - at).expect("small");
                mapping.store(
                    usize::try_from(*at).expect("small"),
                    &bytes(*fill, *at, size),
                )?;
                mapping.sync()?;
                Ok(format!("{size}"))
            }
            Call::Load { slot, at, size } => {
                let Some((mapping, end)) = self.mapping(*slot, *at, *size, false)? else {
                    return Ok("nothing to map".to_owned());
                };
                let mut found = vec![0; usize::try_from(end - at).expect("small")];
                mapping.load(usize::try_from(*at).expect("small"), &mut found)?;
                Ok(digest(&found))
            }
            Call::Cut { slot, size } => {
                fs::ftruncate(self.file(*slot), *size)?;
                Ok(String::new())
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// A mapping of the file up to the end of the piece, which ends at the file's end at the latest.
    fn mapping(
        &self,
        slot: Slot,
        at: u64,
        size: usize,
        is_writable: bool,
    ) -> Result<Option<(Mapping, u64)>, Error> {
        let file = self.file(slot);
        let found = file.metadata()?;
        let end = found.len().min(at + size as u64);
        if end <= at || !found.is_file() {
            return Ok(None);
        }
        let mapping = Mapping::new(file, usize::try_from(end).expect("small"), is_writable)?;
        Ok(Some((mapping, end)))
    }

    /// Calls about an open file's room.
    fn space(&self, call: &Call) -> Result<String, Error> {
        let done = Ok(String::new());
        match call {
            Call::Allocate {
                slot,
                is_zero,
                keeps_size,
                at,
                size,
            } => {
                let file = self.file(*slot);
                let mode = match (is_zero, keeps_size) {
                    (true, true) => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                    (true, false) => FallocateFlags::ZERO_RANGE,
                    (false, _) => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                };
                match fs::fallocate(file, mode, *at, *size) {
                    // Memory has no ZERO_RANGE: the same with what it has.
                    Err(rustix::io::Errno::OPNOTSUPP) if *is_zero => {
                        let (old, end) = (file.metadata()?.len(), at + size);
                        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        fs::fallocate(file, punch, *at, *size)?;
                        if !keeps_size && end > old {
                            fs::ftruncate(file, end)?;
                        }
                        done
                    }
                    Err(error) => Err(error.into()),
                    Ok(()) => done,
                }
            }
            Call::Copy {
                from,
                to,
                from_at,
                to_at,
                size,
            } => {
                let (mut input, mut output) = (*from_at, *to_at);
                let (source, target) = (self.file(*from), self.file(*to));
                // The kernel goes by the size that it knows, and another node may have cut the file since.
                source.metadata()?;
                let mut copied = 0;
                while copied < *size {
                    let rest = size - copied;
                    let count = fs::copy_file_range(
                        source,
                        Some(&mut input),
                        target,
                        Some(&mut output),
                        rest,
                    )?;
                    if count == 0 {
                        break;
                    }
                    copied += count;
                }
                Ok(format!("{copied}"))
            }
            Call::Holes { slot, at } => self.holes(*slot, *at),
            Call::Sync { slot, is_data } => {
                match is_data {
                    true => fs::fdatasync(self.file(*slot))?,
                    false => fs::fsync(self.file(*slot))?,
                }
                done
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Where data and holes are is each file system's affair; that holes are zero and lie inside is not.
    fn holes(&self, slot: Slot, at: u64) -> Result<String, Error> {
        let file = self.file(slot);
        let found = file.metadata()?;
        if !found.is_file() {
            // Directories and pipes: each kind of file system has its own idea.
            return Ok("no file".to_owned());
        }
        let size = found.len();
        let is_zero = |from: u64, to: u64| {
            let mut found = vec![1; usize::try_from(to - from).expect("small")];
            let count = read_fully(file, &mut found, from).expect("it can be read");
            found[..count].iter().all(|b| *b == 0)
        };
        let can_read = OFlags::from_bits_retain(fs::fcntl_getfl(file)?.bits()) & OFlags::ACCMODE
            != OFlags::WRONLY;
        let data = calls::seek(file, at, false)?;
        let hole = calls::seek(file, at, true)?;
        if at >= size {
            return Ok(format!("{data:?} {hole:?}"));
        }
        let hole = hole.ok_or_else(|| Error::other("no hole before the end"))?;
        let next = data.unwrap_or(size);
        assert!(
            at <= next && next <= size && at <= hole && hole <= size,
            "{at} {data:?} {hole} {size}"
        );
        assert!(
            next == at || hole == at,
            "neither data nor hole at {at}: {data:?} {hole}, size {size}"
        );
        assert!(
            !can_read || next == at || is_zero(at, next),
            "a hole with bytes from {at} to {next}"
        );
        Ok("inside".to_owned())
    }

    fn xattr(&self, call: &Call) -> Result<String, Error> {
        match call {
            Call::SetXattr {
                path,
                name,
                size,
                fill,
                flags,
            } => {
                fs::lsetxattr(
                    self.at(path),
                    name.as_str(),
                    &bytes(*fill, 0, *size),
                    *flags,
                )?;
                Ok(String::new())
            }
            Call::GetXattr { path, name } => {
                let mut value = vec![0_u8; 8192];
                let count = fs::lgetxattr(self.at(path), name.as_str(), &mut value[..])?;
                Ok(digest(&value[..count]))
            }
            Call::ListXattr { path } => {
                let mut list = vec![0_u8; 8192];
                let count = fs::llistxattr(self.at(path), &mut list[..])?;
                let text = String::from_utf8_lossy(&list[..count]).into_owned();
                let mut names: Vec<&str> = text.split('\0').filter(|n| !n.is_empty()).collect();
                names.sort_unstable();
                Ok(names.join(" "))
            }
            Call::RemoveXattr { path, name } => {
                fs::lremovexattr(self.at(path), name.as_str())?;
                Ok(String::new())
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// Calls on names.
    fn name(&self, call: &Call) -> Result<String, Error> {
        let at = |path: &str| self.at(path);
        match call {
            Call::Stat { path, follows } => {
                let flags = if *follows {
                    AtFlags::empty()
                } else {
                    AtFlags::SYMLINK_NOFOLLOW
                };
                return Ok(shown(&fs::statx(
                    CWD,
                    at(path),
                    flags,
                    fs::StatxFlags::BASIC_STATS,
                )?));
            }
            Call::Readlink { path } => {
                return Ok(format!("{:?}", fs::readlink(at(path), Vec::new())?));
            }
            Call::List { path } => return list(&at(path)),
            Call::ReadPath { path } => {
                let kind = std::fs::symlink_metadata(at(path))?.file_type();
                return match kind.is_file() {
                    true => Ok(digest(&std::fs::read(at(path))?)),
                    false => Ok("not a file".to_owned()),
                };
            }
            Call::Mkdir { path, mode } => fs::mkdir(at(path), Mode::from_raw_mode(*mode))?,
            Call::Mknod { path, mode } => {
                let (kind, mode) = (FileType::from_raw_mode(*mode), Mode::from_raw_mode(*mode));
                fs::mknodat(CWD, at(path), kind, mode, 0)?;
            }
            Call::Symlink { path, target } => fs::symlink(target.as_str(), at(path))?,
            Call::Unlink { path } => fs::unlink(at(path))?,
            Call::Rmdir { path } => fs::rmdir(at(path))?,
            Call::Link { from, to } => fs::linkat(CWD, at(from), CWD, at(to), AtFlags::empty())?,
            Call::Rename { from, to, flags } => {
                fs::renameat_with(CWD, at(from), CWD, at(to), *flags)?
            }
            Call::Truncate { path, size } => {
                let file = fs::open(at(path), OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty())?;
                fs::ftruncate(file.as_fd(), *size)?;
            }
            Call::Chmod { path, mode } => fs::chmod(at(path), Mode::from_raw_mode(*mode))?,
            Call::Chown { path, user, group } => {
                let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
                fs::chownat(CWD, at(path), user, group, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Call::Utimes {
                path,
                seconds,
                follows,
            } => {
                let time = Timespec {
                    tv_sec: *seconds,
                    tv_nsec: 123_456_789,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                let flags = if *follows {
                    AtFlags::empty()
                } else {
                    AtFlags::SYMLINK_NOFOLLOW
                };
                fs::utimensat(CWD, at(path), &times, flags)?;
            }
            other => unreachable!("{other:?}"),
        }
        Ok(String::new())
    }
}

/// Names and kinds of a directory, in order.
fn list(path: &Path) -> Result<String, Error> {
    let opened = fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(&opened)? {
        let entry = entry?;
        names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
    }
    names.sort_unstable();
    Ok(names.join(", "))
}

/// Reads up to the end of the file or of the buffer; the number of bytes.
fn read_fully(file: &File, buffer: &mut [u8], at: u64) -> Result<usize, Error> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}
