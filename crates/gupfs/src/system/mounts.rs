//! Mounts as the kernel lists them, mount points that may be used, and the end of a FUSE connection.
//!
//! Invariant: nothing here looks *into* a mount (no stat, no readdir of it), because the daemon behind it
//! may be dead or hung; all is read from /proc/self/mountinfo and /sys.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::shell;
use crate::failure::{Failure, Result};

/// One line of mountinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Major number of the device.
    pub major: u32,
    /// Minor number: for FUSE the number of the connection.
    pub minor: u32,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type, such as `fuse.gupfs`.
    pub kind: String,
    /// Source, as given to mount.
    pub source: String,
}

impl Mount {
    /// Whether this is a GUPFS mount.
    pub fn is_gupfs(&self) -> bool {
        self.kind == "fuse.gupfs"
    }
}

/// All mounts, oldest first.
pub fn list() -> Result<Vec<Mount>> {
    let path = Path::new("/proc/self/mountinfo");
    let text = fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    Ok(text.lines().filter_map(parse).collect())
}

/// The newest mount at exactly `point`.
pub fn at(point: &Path) -> Result<Option<Mount>> {
    Ok(list()?.into_iter().rev().find(|m| m.point == point))
}

/// Mounts at `directory` or below it, newest first: the order in which they can be unmounted.
pub fn below(directory: &Path) -> Result<Vec<Mount>> {
    let mut found: Vec<Mount> = list()?
        .into_iter()
        .filter(|m| m.point.starts_with(directory))
        .collect();
    found.reverse();
    Ok(found)
}

fn parse(line: &str) -> Option<Mount> {
    let mut words = line.split(' ');
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let point = words.nth(1)?;
    let mut rest = words.skip_while(|w| *w != "-").skip(1);
    Some(Mount {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        point: PathBuf::from(std::ffi::OsString::from_vec(unescape(point.as_bytes()))),
        kind: rest.next()?.to_owned(),
        source: rest.next()?.to_owned(),
    })
}

/// Undoes the kernel's octal escapes (blank, tab, newline, backslash).
fn unescape(word: &[u8]) -> Vec<u8> {
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

/// Fails unless `point` is an empty directory on which nothing is mounted.
pub fn check_point(point: &Path) -> Result<()> {
    if let Some(mount) = at(point)? {
        return Err(Failure::new(format!(
            "mount point {} is in use: {} is mounted there",
            point.display(),
            mount.kind
        ))
        .help(format!(
            "unmount it (umount {}) or take another directory",
            point.display()
        )));
    }
    let metadata = match fs::metadata(point) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(
                Failure::new(format!("mount point {} does not exist", point.display()))
                    .help(format!("mkdir -p {}", point.display())),
            );
        }
        Err(e) => return Err(Failure::io("use mount point", point, &e)),
    };
    if !metadata.is_dir() {
        return Err(Failure::new(format!(
            "mount point {} is not a directory",
            point.display()
        ))
        .help("name an empty directory"));
    }
    let mut entries =
        fs::read_dir(point).map_err(|e| Failure::io("read mount point", point, &e))?;
    if entries.next().is_some() {
        return Err(Failure::new(format!(
            "mount point {} is in use: it holds files, which the mount would hide",
            point.display()
        ))
        .help("name an empty directory"));
    }
    Ok(())
}

/// Ends the FUSE connection of `mount`, so that nobody can hang on it any longer.
pub fn abort(mount: &Mount) -> Result<()> {
    let root = Path::new("/sys/fs/fuse/connections");
    if root.is_dir() && fs::read_dir(root).is_ok_and(|mut d| d.next().is_none()) {
        // Not mounted yet, or no connection is left; mounting it twice is harmless and refused.
        let _ = shell::run(
            "mount",
            &["-t", "fusectl", "fusectl", "/sys/fs/fuse/connections"],
        );
    }
    let path = root.join(mount.minor.to_string()).join("abort");
    match fs::write(&path, "1") {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Failure::io("abort through", &path, &e)),
    }
}

/// Unmounts `mount`; a FUSE mount whose daemon does not answer is aborted first.
pub fn remove(mount: &Mount) -> Result<()> {
    let point = mount.point.as_os_str();
    if mount.is_gupfs() {
        abort(mount)?;
        // Not through our own helper, which waits for the daemon.
        return shell::run("umount", &["-i".as_ref(), "-l".as_ref(), point]).map(drop);
    }
    if shell::run("umount", &[point]).is_ok() {
        return Ok(());
    }
    shell::run("umount", &["-l".as_ref(), point]).map(drop)
}

/// Unmounts what is mounted at `point` if nobody uses it, and not through our own helper.
pub fn umount(point: &Path) -> Result<()> {
    shell::run("umount", &["-i".as_ref(), point.as_os_str()]).map(drop)
}

/// Changes how `point` is mounted, and not through our own helper.
pub fn remount(point: &Path, options: &str) -> Result<()> {
    let words = [
        "-i".as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        point.as_os_str(),
    ];
    shell::run("mount", &words).map(drop)
}

/// Mounts a tmpfs of `size` bytes at `point`.
pub fn tmpfs(point: &Path, size: u64) -> Result<()> {
    let options = format!("size={size},mode=0700");
    shell::run(
        "mount",
        &[
            "-t".as_ref(),
            "tmpfs".as_ref(),
            "-o".as_ref(),
            options.as_ref(),
            "gupfs-ram".as_ref(),
            point.as_os_str(),
        ],
    )
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = "98 30 0:52 / /mnt/a\\040b rw,nosuid shared:1 master:2 - fuse.gupfs gupfs rw";
        let mount = parse(line).expect("a mount");
        assert_eq!(mount.point, Path::new("/mnt/a b"));
        assert_eq!((mount.major, mount.minor), (0, 52));
        assert!(mount.is_gupfs());
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse("1 2 x:y / /a rw - t s"), None);
    }

    #[test]
    fn escapes_are_undone_and_plain_backslashes_stay() {
        assert_eq!(unescape(b"a\\040b\\134"), b"a b\\");
        assert_eq!(unescape(b"\\9"), b"\\9");
        assert_eq!(unescape(b"\\"), b"\\");
    }

    #[test]
    fn the_root_is_mounted_and_cannot_be_a_mount_point() {
        assert!(at(Path::new("/")).expect("mountinfo").is_some());
        let failure = check_point(Path::new("/")).expect_err("in use");
        assert!(failure.what().contains("in use"), "{failure}");
    }

    #[test]
    fn bad_mount_points_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "x").expect("a file");
        for (point, word) in [
            (file.as_path(), "not a directory"),
            (directory.path(), "holds files"),
            (Path::new("/no/such/place"), "does not exist"),
        ] {
            let failure = check_point(point).expect_err("bad");
            assert!(failure.what().contains(word), "{failure}");
        }
        fs::remove_file(&file).expect("remove");
        check_point(directory.path()).expect("an empty directory");
    }
}
