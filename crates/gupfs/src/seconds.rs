//! Second mounts of a file system (`gupfs mount` where it is mounted already, `mount --bind`): a daemon that died leaves them dead, and
//! the next one brings them back as they were.
//!
//! ```text
//!  the daemon has mounted its own place ---- what is dead is unmounted, and bound there again ---- it says that it is mounted
//! ```
//!
//! Invariants:
//! - Only whole file systems come back: what was a directory of it is unmounted, and said.
//! - A mount that allowed less than the first one is restricted before anybody is told that the file system is mounted, or is not there.
//! - Nothing that the daemon waits for asks its file system anything, and what cannot be brought back keeps nobody from using the rest.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::failure::{Failure, Result};
use crate::state::Place;
use crate::system::mounts::{self, Mount};
use crate::{locate, mount, service};

/// Brings back what a daemon of `place` that died has left anywhere but at `first`, where the file system is mounted now.
pub fn bring_back(place: &Place, first: &Path) {
    let mut left = match service::mounts_of(place) {
        Ok(left) => left,
        Err(failure) => {
            tracing::error!(%failure, "what a dead daemon has left mounted is not brought back: gupfs mount");
            return;
        }
    };
    left.retain(|mount| mount.point != first);
    let mut entering = Vec::new();
    for mount in left {
        let point = mount.point.clone();
        match renew(first, mount) {
            Ok(table) => entering.extend(table),
            Err(failure) => {
                let point = point.display();
                tracing::error!(%point, %failure, "is not mounted there any more: gupfs mount");
            }
        }
    }
    if entering.is_empty() {
        return;
    }
    // mount(8) looks at the file system, which may wait for what this daemon does next.
    let entering = move || entering.iter().for_each(enter);
    let started = std::thread::Builder::new()
        .name("mount table".to_owned())
        .spawn(entering);
    if let Err(error) = started {
        tracing::warn!(%error, "{NOT_IN_TABLE}");
    }
}

/// Mounts what is mounted at `first` in place of `left`, if that is dead. Returns the line that mount(8)'s table had.
fn renew(first: &Path, left: Mount) -> Result<Option<Line>> {
    if !locate::is_ended(&left.point)? {
        return Ok(None);
    }
    let table = mounts::entered(&left.point);
    service::unmount_dead(&left.point)?;
    if !left.is_whole() {
        let root = left.root.display();
        return Err(
            Failure::new(format!("it was the directory {root} of the file system"))
                .help("mount --bind"),
        );
    }
    bind(first, &left)?;
    tracing::info!(point = %left.point.display(), "mounted there again, too");
    Ok(table.map(|options| Line {
        point: left.point,
        source: left.source.into(),
        options,
    }))
}

/// As `gupfs mount` says it.
const NOT_IN_TABLE: &str = "umount(8) will not wait until all is written back";

/// A line of mount(8)'s own table.
struct Line {
    source: PathBuf,
    point: PathBuf,
    options: String,
}

fn enter(line: &Line) {
    if let Err(failure) = mounts::enter(&line.source, &line.point, &line.options) {
        tracing::warn!(point = %line.point.display(), %failure, "{NOT_IN_TABLE}");
    }
}

/// Mounts what is mounted at `first` where `left` was, and as it was.
fn bind(first: &Path, left: &Mount) -> Result<()> {
    let point = &left.point;
    if let Some(there) = mounts::at(point)? {
        return Err(Failure::new(format!("{} is mounted there", there.kind)));
    }
    let failed = |what: &str, error: Errno| Failure::io(what, point, &error.into());
    rustix::mount::mount_bind(first, point).map_err(|e| failed("mount at", e))?;
    let flags = MountFlags::BIND | MountFlags::from_bits_retain(flags_of(&left.options));
    let Err(error) = rustix::mount::mount_remount(point, flags, "") else {
        return Ok(());
    };
    // Without its restrictions it would allow more.
    rustix::mount::unmount(point, UnmountFlags::DETACH).map_err(|e| failed("unmount", e))?;
    Err(failed("restrict", error))
}

fn flags_of(options: &str) -> u32 {
    let flags = options.split(',').filter_map(mount::flag);
    flags.fold(0, |all, flag| all | u32::try_from(flag).unwrap_or(0))
}
