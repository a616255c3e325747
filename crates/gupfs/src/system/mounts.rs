//! Mounts as the kernel lists them, mount points that may be used, and the end of a FUSE connection.
//!
//! Invariant: nothing here looks *into* a mount (no stat, no readdir of it), because the daemon behind it
//! may be dead or hung; all is read from /proc/self/mountinfo and /sys.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use os::mountinfo::Mount;
use os::mountinfo::{KIND, unescape};

use super::shell;
use crate::failure::{Failure, Result};

/// Symbolic links, one behind the other, that are followed.
const LINK_COUNT_MAX: usize = 40;

/// All mounts, oldest first.
pub fn list() -> Result<Vec<Mount>> {
    os::mountinfo::list().map_err(|e| Failure::io("read", Path::new("/proc/self/mountinfo"), &e))
}

/// The uppermost mount at exactly `point`.
pub fn at(point: &Path) -> Result<Option<Mount>> {
    os::mountinfo::at(point).map_err(|e| Failure::io("read", Path::new("/proc/self/mountinfo"), &e))
}

/// `point` with a symbolic link at its end followed: where the kernel mounts what is to be mounted there. Does not look at what is mounted.
pub fn follow(point: &Path) -> Result<PathBuf> {
    let mut point = point.to_owned();
    for _ in 0..LINK_COUNT_MAX {
        if at(&point)?.is_some() {
            break;
        }
        let Ok(target) = fs::read_link(&point) else {
            break;
        };
        point = super::absolute(&point.parent().unwrap_or(&point).join(target))?;
    }
    Ok(point)
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

/// Fails unless `point` is a directory on which nothing is mounted. Returns whether it holds anything.
pub fn check_point(point: &Path) -> Result<bool> {
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
        return Err(no_directory(point));
    }
    let mut entries =
        fs::read_dir(point).map_err(|e| Failure::io("read mount point", point, &e))?;
    Ok(entries.next().is_some())
}

/// What is said of a mount point that is something else.
pub fn no_directory(point: &Path) -> Failure {
    Failure::new(format!(
        "mount point {} is not a directory",
        point.display()
    ))
    .help("name an empty directory")
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

/// The same where the daemon of `point` may hang: `is_waited_for` says every `step` whether to wait on. False: nobody waits any longer.
pub fn umount_while(
    point: &Path,
    step: Duration,
    is_waited_for: &mut dyn FnMut() -> Result<bool>,
) -> Result<bool> {
    let words = ["-i".as_ref(), point.as_os_str()];
    Ok(shell::run_while("umount", &words, step, is_waited_for)?.is_some())
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

/// Has mount(8)'s own table (/run/mount/utab) say that `source` is mounted at `point` with these options of mount(8)'s own, as if it had
/// mounted it.
pub fn enter(source: &Path, point: &Path, options: &str) -> Result<()> {
    let words = [
        "-i".as_ref(),
        "-f".as_ref(),
        "-t".as_ref(),
        KIND.as_ref(),
        "-o".as_ref(),
        options.as_ref(),
        source.as_os_str(),
        point.as_os_str(),
    ];
    shell::run("mount", &words).map(drop)
}

/// Takes the line of `point` out of that table, where nothing is mounted there any more.
pub fn leave(point: &Path) -> Result<()> {
    match at(point)? {
        Some(_) => Ok(()),
        None => forget(point),
    }
}

/// Takes the line of `point` out of that table.
pub fn forget(point: &Path) -> Result<()> {
    let table = fs::read("/run/mount/utab").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    let mut words = lines.flat_map(|line| line.split(|byte| *byte == b' '));
    let is_there = words.any(|word| {
        let target = word.strip_prefix(b"TARGET=");
        target.is_some_and(|target| unescape(target) == point.as_os_str().as_encoded_bytes())
    });
    if !is_there {
        return Ok(());
    }
    let words = ["-i".as_ref(), "--fake".as_ref(), point.as_os_str()];
    shell::run("umount", &words).map(drop)
}

/// Where the file system with this device is mounted as a whole, in this mount name space, oldest first.
pub fn of_connection(number: u64) -> Result<Vec<Mount>> {
    let is_it = |m: &Mount| m.is_gupfs() && m.major == 0 && u64::from(m.minor) == number;
    let mut all = list()?;
    all.retain(|mount| is_it(mount) && mount.is_whole());
    Ok(all)
}

/// Mounts what is mounted at `source` at `point` as well.
pub fn bind(source: &Path, point: &Path) -> Result<()> {
    let words = ["--bind".as_ref(), source.as_os_str(), point.as_os_str()];
    shell::run("mount", &words).map(drop)
}

/// Where else the file system of `mount` is mounted, in this mount name space. The kernel gives the number of one that has gone to the
/// next: its source tells it from that.
pub fn others(mount: &Mount) -> Result<Vec<Mount>> {
    let of = |m: &Mount| (m.major, m.minor, m.kind.clone(), m.source.clone());
    let ours = of(mount);
    let is_other = |m: &Mount| of(m) == ours && m != mount;
    Ok(list()?.into_iter().filter(is_other).collect())
}

/// What tells the connection of `mount` from the next one that is given its number: the inode of its directory, which the kernel makes
/// anew for each. None where there is no connection, or the kernel's table of them is not mounted.
pub fn connection(mount: &Mount) -> Option<u64> {
    let directory = Path::new("/sys/fs/fuse/connections").join(mount.minor.to_string());
    fs::symlink_metadata(directory)
        .ok()
        .map(|found| found.ino())
}

/// Whether the file system of `mount`, which is unmounted here and had this connection, is mounted somewhere still, or in another mount
/// name space: then the kernel has the connection.
pub fn is_alive(mount: &Mount, had: Option<u64>) -> Result<bool> {
    let is_there = had.is_some() && connection(mount) == had;
    Ok(is_there || !others(mount)?.is_empty())
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
    fn the_root_is_mounted_and_cannot_be_a_mount_point() {
        assert!(at(Path::new("/")).expect("mountinfo").is_some());
        let failure = check_point(Path::new("/")).expect_err("in use");
        assert!(failure.what().contains("in use"), "{failure}");
    }

    #[test]
    fn links_are_followed_to_their_end() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = fs::canonicalize(directory.path()).expect("there");
        let link = |name: &str, target: &str| {
            std::os::unix::fs::symlink(target, root.join(name)).expect("linked");
        };
        link("a", "c");
        link("c", "none");
        link("round", "round");
        for name in ["a", "c"] {
            assert_eq!(follow(&root.join(name)), Ok(root.join("none")));
        }
        assert_eq!(follow(&root.join("round")), Ok(root.join("round")));
        link("to-root", root.to_str().expect("text"));
        assert_eq!(follow(&root.join("to-root")), Ok(root.clone()));
        link("proc", "/proc");
        assert_eq!(follow(&root.join("proc")), Ok("/proc".into()));
    }

    #[test]
    fn bad_mount_points_are_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        fs::write(&file, "x").expect("a file");
        for (point, word) in [
            (file.as_path(), "not a directory"),
            (Path::new("/no/such/place"), "does not exist"),
        ] {
            let failure = check_point(point).expect_err("bad");
            assert!(failure.what().contains(word), "{failure}");
        }
        assert!(check_point(directory.path()).expect("a directory"));
        fs::remove_file(&file).expect("remove");
        assert!(!check_point(directory.path()).expect("an empty directory"));
    }
}
