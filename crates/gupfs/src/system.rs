//! What the commands ask of the machine: programs, mounts, loop devices, name spaces, processes.
//!
//! Nothing here keeps state: each question is answered from /proc, /sys or the program that knows, so that
//! the answers are right whatever a crash has left.

pub mod loops;
pub mod mounts;
pub mod netns;
pub mod process;
pub mod shell;

use std::fs;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

/// Fails unless the effective user is root.
pub fn require_root(what: &str) -> Result<()> {
    let path = Path::new("/proc/self/status");
    let status = fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))?;
    if effective_uid(&status) == Some(0) {
        return Ok(());
    }
    Err(
        Failure::new(format!("{what} needs root: it mounts and opens disks"))
            .help("run it with sudo, or as root"),
    )
}

/// Fails unless /dev/fuse can be opened.
pub fn require_fuse() -> Result<()> {
    let path = device_of_fuse();
    match fs::OpenOptions::new().read(true).write(true).open(&path) {
        Ok(_) => Ok(()),
        Err(e) => Err(Failure::io("open", &path, &e).help(
            "load the kernel module (modprobe fuse); in a container pass the device (--device /dev/fuse)",
        )),
    }
}

/// The FUSE device; the environment variable is there so that tests can show its absence.
fn device_of_fuse() -> PathBuf {
    std::env::var_os("GUPFS_FUSE_DEVICE").map_or_else(|| PathBuf::from("/dev/fuse"), PathBuf::from)
}

fn effective_uid(status: &str) -> Option<u32> {
    let line = status.lines().find(|l| l.starts_with("Uid:"))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

/// Fails unless the file of a state directory, which is text, can name `path`.
pub fn require_text(path: &Path) -> Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} is not UTF-8 (what is not is shown as \u{fffd}): gupfs.toml cannot name it",
        path.display()
    ))
    .help("state directories, mount points and disks need names in UTF-8, and so do the directories above them; files on GUPFS do not"))
}

/// `path` made absolute without looking at its last part, which may be a mount that does not answer. For state directories and
/// mount points.
///
/// # Errors
/// A state directory could not name it: it is not UTF-8.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let full = full(path)?;
    require_text(&full)?;
    Ok(full)
}

fn full(path: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(path).map_err(|e| Failure::io("find", path, &e))?;
    let (Some(parent), Some(name)) = (full.parent(), full.file_name()) else {
        return Ok(full);
    };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(parent.join(name)),
        Err(_) => Ok(full),
    }
}

/// 128 random bits from the kernel.
pub fn random_u128() -> Result<u128> {
    use std::io::Read as _;
    let path = Path::new("/dev/urandom");
    let mut bytes = [0u8; 16];
    fs::File::open(path)
        .and_then(|mut f| f.read_exact(&mut bytes))
        .map_err(|e| Failure::io("read", path, &e))?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_user_is_the_second_number() {
        assert_eq!(effective_uid("Name:\tx\nUid:\t1000\t0\t5\t6\n"), Some(0));
        assert_eq!(effective_uid("Uid:\t0\t1000\t0\t0\n"), Some(1000));
        assert_eq!(effective_uid("Gid:\t0\n"), None);
    }

    #[test]
    fn absolute_leaves_the_last_part_alone() {
        let path = absolute(Path::new("/tmp/../tmp/none-of-this-name")).expect("a parent");
        assert_eq!(path, Path::new("/tmp/none-of-this-name"));
        assert_eq!(absolute(Path::new("/")).expect("root"), Path::new("/"));
        let name: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"/tmp/\xff");
        let failure = absolute(Path::new(name)).expect_err("no text");
        assert!(failure.what().contains("/tmp/\u{fffd}"), "{failure}");
    }
}
