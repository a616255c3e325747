//! mount(2), umount(2), and the files of /sys that belong to a FUSE connection.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use types::limits;

use crate::mountinfo;

const CONNECTIONS: &str = "/sys/fs/fuse/connections";
const PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// How long the kernel may take from the end of the last mount to that of its connection. It takes longer only where another mount
/// name space has the file system mounted.
const END_LIMIT_MS: i32 = 1000;

/// Why a mount failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no /dev/fuse or it may not be opened: load the module, be root.
    #[error("/dev/fuse: {0}")]
    Device(#[source] io::Error),
    /// The mount point is missing or no directory: make it.
    #[error("mount point {path}: {source}")]
    MountPoint {
        /// Where.
        path: PathBuf,
        /// What stat said.
        source: io::Error,
    },
    /// mount(2) failed.
    #[error("mount at {path}: {source}")]
    Mount {
        /// Where.
        path: PathBuf,
        /// What mount(2) said; EPERM means: be root.
        source: io::Error,
    },
    /// Mounted, but the kernel's settings of the mount cannot be reached; it was unmounted again.
    #[error("{path}: {source}")]
    Settings {
        /// Which file.
        path: PathBuf,
        /// How.
        source: io::Error,
    },
}

/// A mount's connection in the kernel. Dropping it unmounts, and aborts what cannot be unmounted.
#[derive(Debug)]
pub struct Connection {
    mount_point: PathBuf,
    /// What the kernel shows as the source of every mount of it.
    source: OsString,
    number: u32,
    /// A descriptor of the connection, which knows its end. The number does not: the kernel gives it to the next file system.
    watch: OnceLock<OwnedFd>,
    is_mounted: AtomicBool,
}

fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Has the kernel allow requests of so many pages, where its limit is lower and can be changed. It counts for what
/// is mounted afterwards. Where it stays lower, large requests are cut.
pub(super) fn allow_pages(count: u16) {
    let limit = std::fs::read_to_string(PAGES_LIMIT);
    let Some(limit) = limit.ok().and_then(|l| l.trim().parse::<u32>().ok()) else {
        // Kernels before 6.13 have a fixed limit.
        return;
    };
    if limit >= u32::from(count) {
        return;
    }
    match std::fs::write(PAGES_LIMIT, count.to_string()) {
        Ok(()) => tracing::info!(limit, count, "raised fs.fuse.max_pages_limit"),
        Err(error) => tracing::info!(limit, count, %error, "fs.fuse.max_pages_limit stays"),
    }
}

/// Names of such directories begin so.
const NOOK: &str = "gupfs-mount-";

fn nook_parents() -> [PathBuf; 2] {
    [PathBuf::from("/run"), std::env::temp_dir()]
}

/// Whether that is where a daemon mounted which was killed before its mount had taken the place of a dead one: nobody wants it there.
pub fn is_passage(point: &Path) -> bool {
    let name = point.file_name().and_then(std::ffi::OsStr::to_str);
    let is_so_called = name.is_some_and(|name| name.starts_with(NOOK));
    is_so_called
        && nook_parents()
            .iter()
            .any(|parent| point.parent() == Some(parent))
}

/// A directory that is there for as long as this is: where a mount is made that then takes a dead one's place.
struct Nook(PathBuf);

impl Nook {
    fn new() -> io::Result<Self> {
        let name = format!("{NOOK}{}", std::process::id());
        let make = |parent: &Path| {
            let path = parent.join(&name);
            std::fs::create_dir(&path).map(|()| Self(path))
        };
        let [first, second] = nook_parents();
        make(&first).or_else(|_| make(&second))
    }
}

impl Drop for Nook {
    fn drop(&mut self) {
        // What is left there is an empty directory.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Mounts in the place of `dead`, whatever lies below it unseen at any time.
fn mount_instead(
    config: &super::session::SessionConfig,
    device: BorrowedFd<'_>,
    dead: &mountinfo::Mount,
    nook: &Nook,
) -> io::Result<Connection> {
    let first = super::session::SessionConfig {
        mount_point: nook.0.clone(),
        replaces: None,
        ..config.clone()
    };
    let mut connection = mount_at(&first, device).map_err(io::Error::other)?;
    let found = mountinfo::list()?;
    let found = found
        .into_iter()
        .rfind(|mount| mount.point == connection.mount_point);
    let found = found.ok_or_else(|| io::Error::other("it is not seen where it was mounted"))?;
    crate::mounting::take_place(&found, dead)?;
    // Elsewhere it goes on.
    connection.unmount_at(&found.point, libc::MNT_DETACH);
    connection.mount_point.clone_from(&dead.point);
    Ok(connection)
}

/// Mounts the connection of `device` as `fuse.gupfs`.
pub(super) fn mount(
    config: &super::session::SessionConfig,
    device: BorrowedFd<'_>,
) -> Result<Connection, MountError> {
    let Some(dead) = &config.replaces else {
        return mount_at(config, device);
    };
    let path = dead.point.clone();
    let error = |source| MountError::Mount { path, source };
    // It was seen before all that a start takes: somebody may have unmounted it since.
    if mountinfo::at(&dead.point).is_ok_and(|there| there.is_none()) {
        return mount_at(config, device);
    }
    match Nook::new() {
        Ok(nook) => mount_instead(config, device, dead, &nook).map_err(error),
        Err(reason) => {
            tracing::warn!(%reason, "no directory can be made in /run: what lies below the mount point is seen for a moment");
            crate::mounting::remove(dead).map_err(error)?;
            mount_at(config, device)
        }
    }
}

fn mount_at(
    config: &super::session::SessionConfig,
    device: BorrowedFd<'_>,
) -> Result<Connection, MountError> {
    let path = &config.mount_point;
    let point_error = |source| MountError::MountPoint {
        path: path.to_owned(),
        source,
    };
    let path = path.canonicalize().map_err(point_error)?;
    let mode = std::fs::metadata(&path).map_err(point_error)?;
    if !mode.is_dir() {
        return Err(point_error(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    let mount_error = |source| MountError::Mount {
        path: path.clone(),
        source,
    };
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={}",
        device.as_raw_fd(),
        limits::MAX_WRITE
    );
    let options = c_string(options.as_bytes()).map_err(mount_error)?;
    let source = c_string(config.source.as_bytes()).map_err(mount_error)?;
    let target = c_string(path.as_os_str().as_bytes()).map_err(mount_error)?;
    // SAFETY: four NUL-terminated strings that live through the call.
    let outcome = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            c"fuse.gupfs".as_ptr(),
            config.mount_flags,
            options.as_ptr().cast(),
        )
    };
    if outcome != 0 {
        return Err(mount_error(io::Error::last_os_error()));
    }
    let mut connection = Connection {
        mount_point: path.clone(),
        source: config.source.clone().into(),
        number: 0,
        watch: OnceLock::new(),
        is_mounted: AtomicBool::new(true),
    };
    connection.number = device_minor(&target).map_err(|source| MountError::Settings {
        path: path.clone(),
        source,
    })?;
    Ok(connection)
}

/// The minor device number of the file system at `path`, without asking its (silent) server.
fn device_minor(path: &CString) -> io::Result<u32> {
    // SAFETY: statx is plain data, for which all zeros are valid.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a NUL-terminated path and a buffer of the right type.
    let outcome = unsafe {
        let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
        libc::statx(libc::AT_FDCWD, path.as_ptr(), flags, 0, &raw mut status)
    };
    if outcome != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status.stx_dev_minor)
}

/// Makes /sys/fs/fuse/connections show what it has.
fn mount_control() {
    let target = CString::new(CONNECTIONS).expect("no NUL in a constant");
    // SAFETY: NUL-terminated strings. A failure (mounted already, no right) shows at the next access.
    unsafe {
        let kind = c"fusectl".as_ptr();
        libc::mount(kind, target.as_ptr(), kind, 0, std::ptr::null());
    }
}

impl Connection {
    /// The connection's number in /sys/fs/fuse/connections.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where it is mounted, for system calls.
    pub(super) fn c_path(&self) -> CString {
        c_string(self.mount_point.as_os_str().as_bytes()).expect("it was mounted by this path")
    }

    /// Where it is mounted.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Ends the connection: every caller that waits, and every later one, gets an error. The mount point
    /// stays until it is unmounted. Works while requests are stuck. Not to be called when the connection
    /// has ended and the mount is gone: the kernel may have given the number to another one.
    ///
    /// # Errors
    /// /sys/fs/fuse/connections could not be used.
    pub fn abort(&self) -> io::Result<()> {
        let path = format!("{CONNECTIONS}/{}/abort", self.number);
        match std::fs::write(&path, "1") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                mount_control();
                std::fs::write(&path, "1")
            }
            outcome => outcome,
        }
    }

    /// Sets how far the kernel reads ahead of a sequential reader, in bytes.
    pub(super) fn set_readahead(&self, size: u32) -> Result<(), MountError> {
        let path = format!("/sys/class/bdi/0:{}/read_ahead_kb", self.number);
        let text = (size / 1024).to_string();
        std::fs::write(&path, text).map_err(|source| MountError::Settings {
            path: path.into(),
            source,
        })
    }

    /// Has `device`, a descriptor of this connection, tell its end.
    pub(super) fn watch(&self, device: OwnedFd) {
        let _ = self.watch.set(device);
    }

    /// Whether the connection has ended, unmounted everywhere or aborted, or does so within this time. One without a descriptor never
    /// began.
    fn ends_within(&self, limit_ms: i32) -> bool {
        let Some(device) = self.watch.get() else {
            return true;
        };
        let mut poll = libc::pollfd {
            fd: device.as_raw_fd(),
            events: 0,
            revents: 0,
        };
        // SAFETY: one descriptor, which lives through the call.
        let count = unsafe { libc::poll(&raw mut poll, 1, limit_ms) };
        count == 1 && poll.revents & libc::POLLERR != 0
    }

    /// Where it is mounted, newest first: the order in which it can be unmounted. Its source tells it from a later file system that was
    /// given the same number.
    fn mounts(&self) -> io::Result<Vec<PathBuf>> {
        let is_ours = |mount: &mountinfo::Mount| {
            (mount.major, mount.minor) == (0, self.number)
                && mount.is_gupfs()
                && mount.source == self.source
        };
        let ours = mountinfo::list()?.into_iter().filter(is_ours);
        Ok(ours.map(|mount| mount.point).rev().collect())
    }

    /// Unmounts at `point`; false: that is in use, or another file system is mounted over it.
    fn unmount_at(&self, point: &Path, flags: libc::c_int) -> bool {
        let Ok(target) = c_string(point.as_os_str().as_bytes()) else {
            return false;
        };
        if device_minor(&target).ok() != Some(self.number) {
            return false;
        }
        // SAFETY: a NUL-terminated path.
        unsafe { libc::umount2(target.as_ptr(), flags | libc::UMOUNT_NOFOLLOW) == 0 }
    }

    /// Unmounts wherever it is mounted; what is in use is detached, and the connection aborted. When this returns nobody can
    /// reach the file system any more. Does nothing a second time.
    ///
    /// A connection that has been aborted is unmounted only where it was mounted first: at the other places callers go on to
    /// get errors, and do not write to the directories below.
    pub(super) fn unmount(&self) {
        if !self.is_mounted.swap(false, Ordering::AcqRel) {
            return;
        }
        let mut points = self.mounts().unwrap_or_else(|error| {
            tracing::error!(%error, "cannot read where it is mounted");
            vec![self.mount_point.clone()]
        });
        let had_ended = self.ends_within(0);
        if had_ended {
            points.retain(|point| *point == self.mount_point);
        }
        points.retain(|point| !self.unmount_at(point, 0));
        if had_ended || (points.is_empty() && self.ends_within(END_LIMIT_MS)) {
            for point in &points {
                self.unmount_at(point, libc::MNT_DETACH);
            }
            return;
        }
        for point in &points {
            tracing::info!(point = %point.display(), "in use: detached");
            self.unmount_at(point, libc::MNT_DETACH);
        }
        if let Err(error) = self.abort() {
            tracing::error!(%error, "the connection cannot be aborted");
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.unmount();
    }
}
