//! Mounting a file system once more, in the place of a mount that is dead.
//!
//! Invariants:
//! - Users may own directories on the way to the place: no symbolic link is followed, and what is unmounted is the mount that was meant.
//! - It is restricted before anybody can see it, in whichever mount name space.
//! - Neither file system is asked anything.
//! - Whoever comes by the path meets the dead mount or the new one, and never what lies below: programs that write on after errors would have
//!   their files there, on another disk. The new one is put beneath the dead one (Linux 6.5), which then goes. Where the kernel does
//!   not do that (a place that it shows elsewhere as well) there is a gap of some microseconds.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags};

use crate::mountinfo::{self, Mount};

/// Of mount_setattr(2), as linux/mount.h has them.
const ATTRIBUTES: [(&str, u64); 7] = [
    ("ro", 0x1),
    ("nosuid", 0x2),
    ("nodev", 0x4),
    ("noexec", 0x8),
    ("noatime", 0x10),
    ("nodiratime", 0x80),
    ("nosymfollow", 0x20_0000),
];
/// All that says when access times change; none of them: relatime.
const ACCESS_TIMES: u64 = 0x70;
/// Access times always change; the kernel shows no word for it.
const ALWAYS: u64 = 0x20;

/// MOVE_MOUNT_BENEATH, as linux/mount.h has it.
const BENEATH: MoveMountFlags = MoveMountFlags::from_bits_retain(0x200);

/// struct mount_attr.
#[repr(C)]
struct Attributes {
    set: u64,
    clear: u64,
    propagation: u64,
    name_space: u64,
}

/// Mounts what is mounted as `first` in the place of `dead`, which is unmounted for whoever does not use it, with the restrictions of `dead`.
///
/// # Errors
/// One of the two is not there any more, or the kernel refuses. Where the place has gone in between, nothing is mounted there.
pub fn renew(first: &Mount, dead: &Mount) -> io::Result<()> {
    let tree = copy(first)?;
    restrict(&tree, &dead.options)?;
    replace(&tree, dead)
}

/// The same with the restrictions of `first`, and also where `dead` has been unmounted and nothing is in its place.
///
/// # Errors
/// As `renew`.
pub fn take_place(first: &Mount, dead: &Mount) -> io::Result<()> {
    let tree = copy(first)?;
    let outcome = replace(&tree, dead);
    if outcome.is_ok() || mountinfo::at(&dead.point)?.is_some() {
        return outcome;
    }
    put(&tree, &open(&dead.point)?, MoveMountFlags::empty())
}

/// Unmounts `dead` for whoever does not use it.
///
/// # Errors
/// It is not there any more, or the kernel refuses.
pub fn remove(dead: &Mount) -> io::Result<()> {
    let left = open(&dead.point)?;
    check(&left, dead)?;
    detach(&left)
}

fn detach(mount: &OwnedFd) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", mount.as_raw_fd());
    Ok(rustix::mount::unmount(path, UnmountFlags::DETACH)?)
}

/// Mounts `tree` at `point`, or beneath what is mounted there.
fn put(tree: &OwnedFd, point: &OwnedFd, how: MoveMountFlags) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(tree, "", point, "", flags | how)?)
}

fn copy(first: &Mount) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = rustix::mount::open_tree(CWD, &first.point, flags)?;
    check(&tree, first)?;
    Ok(tree)
}

fn replace(tree: &OwnedFd, dead: &Mount) -> io::Result<()> {
    let left = open(&dead.point)?;
    check(&left, dead)?;
    if put(tree, &left, BENEATH).is_ok() {
        return detach(&left);
    }
    detach(&left)?;
    put(tree, &open(&dead.point)?, MoveMountFlags::empty())
}

fn open(point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS;
    Ok(rustix::fs::openat2(
        CWD,
        point,
        flags,
        Mode::empty(),
        resolve,
    )?)
}

/// `found` lies in the file system of `mount`.
fn check(found: impl AsFd, mount: &Mount) -> io::Result<()> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let seen = rustix::fs::statx(found, "", flags, StatxFlags::empty())?;
    if (seen.stx_dev_major, seen.stx_dev_minor) == (mount.major, mount.minor) {
        return Ok(());
    }
    let point = mount.point.display();
    Err(io::Error::other(format!(
        "something else is mounted on {point} by now"
    )))
}

/// As `options`, which the kernel has shown, say.
fn restrict(tree: &OwnedFd, options: &str) -> io::Result<()> {
    let (mut set, mut has_times) = (0, false);
    for word in options.split(',') {
        let found = ATTRIBUTES.iter().find(|(name, _)| *name == word);
        set |= found.map_or(0, |(_, flag)| *flag);
        has_times |= matches!(word, "relatime" | "noatime");
    }
    if !has_times {
        set |= ALWAYS;
    }
    let attributes = Attributes {
        set,
        clear: ACCESS_TIMES | ATTRIBUTES.iter().fold(0, |all, (_, flag)| all | flag),
        propagation: 0,
        name_space: 0,
    };
    let size = size_of::<Attributes>();
    // SAFETY: an open descriptor, an empty string, and a structure of the size that is said.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size,
        )
    };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test at a time: the other one sees what is mounted.
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// What is below the place is never seen while a mount takes another one's place.
    #[test]
    fn nothing_below_is_seen_when_a_place_is_taken() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let _turn = TURN.lock();
        let directory = tempfile::tempdir().expect("a directory");
        let [old, new] = ["old", "new"].map(|name| directory.path().join(name));
        let mount = |point: &Path| {
            let (kind, none) = (c"tmpfs", rustix::mount::MountFlags::empty());
            rustix::mount::mount(kind, point, kind, none, None).expect("mounted");
        };
        let newest = |point: &Path| {
            let list = mountinfo::list().expect("listed");
            list.into_iter().rfind(|mount| mount.point == point)
        };
        for point in [&old, &new] {
            std::fs::create_dir(point).expect("made");
            mount(point);
        }
        std::fs::write(old.join("mounted"), "").expect("written");
        std::fs::write(new.join("mounted"), "").expect("written");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::SeqCst;
        let misses = std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut misses = 0;
                while !is_over.load(order) {
                    misses += usize::from(!old.join("mounted").exists());
                }
                misses
            });
            for _ in 0..200 {
                let (first, dead) = (newest(&new).expect("there"), newest(&old).expect("there"));
                if (first.major, first.minor) == (dead.major, dead.minor) {
                    // Another one, as a new daemon's is.
                    rustix::mount::unmount(&new, UnmountFlags::DETACH).expect("unmounted");
                    mount(&new);
                    std::fs::write(new.join("mounted"), "").expect("written");
                    continue;
                }
                take_place(&first, &dead).expect("taken");
                let now = newest(&old).expect("there");
                assert_eq!((now.major, now.minor), (first.major, first.minor));
            }
            is_over.store(true, order);
            looks.join().expect("no panic")
        });
        // Also where nothing is there any more.
        let (first, dead) = (newest(&new).expect("there"), newest(&old).expect("there"));
        rustix::mount::unmount(&old, UnmountFlags::DETACH).expect("unmounted");
        take_place(&first, &dead).expect("taken");
        let left = mountinfo::list().expect("listed");
        let count = left.iter().filter(|mount| mount.point == old).count();
        for point in [&old, &new] {
            rustix::mount::unmount(point, UnmountFlags::DETACH).expect("unmounted");
        }
        assert_eq!((count, misses), (1, 0));
    }

    /// A user has put a link in the way, or the place is another file system's: nothing is unmounted, and nothing mounted.
    #[test]
    fn nothing_is_mounted_where_a_link_leads_or_something_else_is() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let _turn = TURN.lock();
        let directory = tempfile::tempdir().expect("a directory");
        // Others mount and unmount elsewhere meanwhile.
        let list = || -> Vec<Mount> {
            let all = mountinfo::list().expect("listed").into_iter();
            all.filter(|mount| {
                mount.point == Path::new("/") || mount.point.starts_with(directory.path())
            })
            .collect()
        };
        let root = list()
            .into_iter()
            .rfind(|mount| mount.point == Path::new("/"));
        let root = root.expect("a root");
        let (real, link) = (directory.path().join("real"), directory.path().join("link"));
        std::fs::create_dir(&real).expect("made");
        std::os::unix::fs::symlink(&real, &link).expect("made");
        let dead = |point: &Path| Mount {
            minor: u32::MAX,
            point: point.to_owned(),
            ..root.clone()
        };
        let before = list();
        let error = renew(&root, &dead(&link)).expect_err("a link");
        assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{error}");
        let error = renew(&root, &dead(&real)).expect_err("not dead");
        assert!(error.to_string().contains("something else"), "{error}");
        assert_eq!(list(), before);
    }
}
