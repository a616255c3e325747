//! Mounts as /proc/self/mountinfo lists them.
//!
//! Nothing here looks *into* a mount: the daemon behind it may be dead or hung.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// The type of our mounts.
pub const KIND: &str = "fuse.gupfs";

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's name of this mount, and that of the one it is mounted on.
    pub id: u32,
    /// See `id`.
    pub parent: u32,
    /// Major number of the device.
    pub major: u32,
    /// Minor number: for FUSE the number of the connection.
    pub minor: u32,
    /// Which directory of the file system is mounted: `/`, unless a part of it was bound.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// What the kernel allows there, such as `rw,nosuid,relatime`.
    pub options: String,
    /// Type, such as `fuse.gupfs`.
    pub kind: String,
    /// Source, as given to mount.
    pub source: OsString,
    /// Nobody may write to the file system, wherever it is mounted.
    pub is_read_only: bool,
    /// Who mounted it, as FUSE says; none: no FUSE file system.
    pub user: Option<u32>,
}

impl Mount {
    /// Whether this is a GUPFS mount.
    pub fn is_gupfs(&self) -> bool {
        self.kind == KIND
    }

    /// Whether the whole file system is mounted there, and not a directory in it.
    pub fn is_whole(&self) -> bool {
        self.root == Path::new("/")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (id, parent) = (words.next()?, words.next()?);
        let (major, minor) = words.next()?.split_once(':')?;
        let (root, point) = (words.next()?, words.next()?);
        let options = words.next()?.to_owned();
        let mut rest = words.skip_while(|word| *word != "-").skip(1);
        let read = |word: &str| OsString::from_vec(unescape(word.as_bytes()));
        let (kind, source) = (rest.next()?, rest.next()?);
        let super_options = rest.next()?;
        let user = (super_options.split(',')).find_map(|word| word.strip_prefix("user_id="));
        Some(Self {
            id: id.parse().ok()?,
            parent: parent.parse().ok()?,
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            root: read(root).into(),
            point: read(point).into(),
            options,
            kind: kind.to_owned(),
            source: read(source),
            is_read_only: super_options.split(',').any(|word| word == "ro"),
            user: user.and_then(|user| user.parse().ok()),
        })
    }
}

/// All mounts of this mount name space, oldest first.
///
/// # Errors
/// The kernel's list could not be read.
pub fn list() -> io::Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    // Names are bytes; those that are no UTF-8 are of mounts that are not ours to find.
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().filter_map(Mount::parse).collect())
}

/// What is seen at exactly `point`: the uppermost of the mounts there, which need not be the newest (a new one may take its place beneath).
///
/// # Errors
/// The kernel's list could not be read.
pub fn at(point: &Path) -> io::Result<Option<Mount>> {
    let mut there = list()?;
    there.retain(|mount| mount.point == point);
    let is_below = |mount: &Mount| there.iter().any(|other| other.parent == mount.id);
    let upper = there.iter().rfind(|mount| !is_below(mount));
    Ok(upper.or(there.last()).cloned())
}

/// Sees that mounts come, go or change.
#[derive(Debug)]
pub struct Watch(File);

impl Watch {
    /// What changes from now on.
    ///
    /// # Errors
    /// The kernel's list could not be opened.
    pub fn new() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// Something has changed since this was last asked. proc(5) and mounts_poll(): each open file is told of a change once, with POLLPRI.
    pub fn has_changed(&mut self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLPRI,
            revents: 0,
        };
        // SAFETY: one descriptor, which lives through the call.
        let count = unsafe { libc::poll(&raw mut poll, 1, 0) };
        count == 1 && poll.revents & (libc::POLLPRI | libc::POLLERR) != 0
    }
}

/// Undoes the kernel's octal escapes (blank, tab, newline, backslash).
pub fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut at = 0;
    while at < word.len() {
        let octal = word.get(at + 1..at + 4).and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        match octal {
            Some(byte) if word[at] == b'\\' => {
                out.push(byte);
                at += 4;
            }
            _ => {
                out.push(word[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line =
            "98 30 0:52 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.gupfs /var/s\\040t rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!(mount.source, "/var/s t");
        assert_eq!((mount.major, mount.minor), (0, 52));
        assert!(mount.is_gupfs() && mount.is_whole() && !mount.is_read_only);
        let mount = Mount::parse(&line.replace("s\\040t rw", "s\\040t ro,x=1"));
        assert!(mount.expect("a mount").is_read_only);
        assert_eq!(Mount::parse("nonsense"), None);
        assert_eq!(Mount::parse("1 2 x:y / /a rw - t s"), None);
    }

    #[test]
    fn a_part_that_was_bound_is_told_from_the_whole() {
        let line = "98 30 0:52 /a\\040part /mnt rw - fuse.gupfs /state rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(mount.root, Path::new("/a part"));
        assert!(!mount.is_whole());
    }

    #[test]
    fn escapes_are_undone_and_plain_backslashes_stay() {
        assert_eq!(unescape(b"a\\040b\\134"), b"a b\\");
        assert_eq!(unescape(b"\\9"), b"\\9");
        assert_eq!(unescape(b"\\"), b"\\");
    }
}
