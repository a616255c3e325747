//! Second mounts of a file system (`gupfs mount` where it is mounted already, `mount --bind`): a daemon that died leaves them dead, and
//! the next one brings them back as they were.
//!
//! ```text
//!  the daemon has mounted its own place ---- what is dead is unmounted, and mounted there again ---- it says that it is mounted
//! ```
//!
//! Invariants:
//! - Only what root has mounted comes back (anybody may call a FUSE mount of his own by our name), and only whole file systems: a directory
//!   of it stays dead, for whoever writes there must not write to the disk below.
//! - Nothing that the daemon waits for asks its file system anything, and what cannot be brought back keeps nobody from using the rest.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};
use crate::state::Place;
use crate::system::mounts::{self, Mount};
use crate::{locate, service};

/// Mounts that do not say whether they are dead keep a daemon from its work for so long, all together.
const LIMIT: Duration = Duration::from_secs(6);

/// Brings back what a daemon of `place` that died has left anywhere but at `first`, where the file system is mounted now.
pub fn bring_back(place: &Place, first: &Path) {
    let found = mounts::at(first).and_then(|own| Ok((own, service::mounts_of(place)?)));
    let (own, left) = match found {
        Ok((Some(own), left)) if own.is_gupfs() => (own, left),
        Ok(_) => {
            let first = first.display();
            tracing::warn!(%first, "it is not seen there: what a dead daemon has left mounted elsewhere stays dead");
            return;
        }
        Err(failure) => {
            tracing::error!(%failure, "what a dead daemon has left mounted is not brought back: gupfs mount");
            return;
        }
    };
    let begin = Instant::now();
    let is_own = |mount: &Mount| (mount.major, mount.minor) == (own.major, own.minor);
    for mount in left {
        if is_own(&mount) || mount.user != Some(0) || mount.point == first {
            continue;
        }
        let point = mount.point.display();
        let outcome = match begin.elapsed() < LIMIT {
            true => renew(&own, &mount),
            false => Err(Failure::new(
                "others took too long to say whether they are dead",
            )),
        };
        match outcome {
            Ok(true) => tracing::info!(%point, "mounted there again, too"),
            Ok(false) => {}
            Err(failure) => {
                tracing::error!(%point, %failure, "what a dead daemon has left there is not mounted anew");
            }
        }
    }
}

/// Mounts what is mounted as `own` in place of `left`. False: that is not dead.
fn renew(own: &Mount, left: &Mount) -> Result<bool> {
    if !locate::is_ended(&left.point)? {
        return Ok(false);
    }
    if !left.is_whole() {
        let root = left.root.display();
        let what = format!("it was the directory {root} of the file system: umount, mount --bind");
        return Err(Failure::new(what));
    }
    if os::fuse::is_passage(&left.point) {
        service::unmount_dead(&left.point)?;
        // What is left otherwise is an empty directory.
        let _ = std::fs::remove_dir(&left.point);
        return Ok(false);
    }
    os::mounting::renew(own, left).map_err(|e| Failure::io("mount at", &left.point, &e))?;
    Ok(true)
}
