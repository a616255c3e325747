//! `gupfs fs destroy`: removes a file system that nobody uses, with all its data, after asking.
//!
//! Invariants:
//! - All that can be refused is refused before the question, and nothing is written before the answer.
//! - `gupfs.toml` goes last, so what is interrupted can be run again.

use std::path::Path;

use crate::disks::Disk;
use crate::failure::{Failure, Result};
use crate::service::{self, Liveness};
use crate::state::{Place, State, from_hex};
use crate::{agree, size, system, up};

/// Destroys the file system of the state directory `state`. Returns what was done.
pub fn run(state: &Path, is_agreed: bool) -> Result<Vec<String>> {
    system::require_root("gupfs fs destroy")?;
    let place = Place::new(state)?;
    let state = place.require()?;
    check(&place, &state)?;
    let lock = place.try_lock()?;
    let disks = given_disks(&place, &state)?;
    if !is_agreed {
        ask(&state)?;
    }
    let mut done = Vec::new();
    for (disk, is_ours) in disks {
        let path = disk.path().display();
        done.push(if is_ours {
            disk.clear()?;
            format!("erased the label of {path}")
        } else {
            format!("left {path} alone: it holds nothing of this file system")
        });
    }
    done.extend(up::remove_backing(place.root())?);
    place.remove()?;
    drop(lock);
    done.push(format!(
        "destroyed the file system {} of {}",
        state.fs,
        place.root().display()
    ));
    Ok(done)
}

fn check(place: &Place, state: &State) -> Result<()> {
    let root = place.root().display();
    if !state.peers.is_empty() {
        return Err(Failure::new(format!(
            "{root} is node {} of a cluster of {}: it cannot be destroyed alone",
            state.node,
            state.peers.len() + 1
        ))
        .help("`gupfs lab down --dir DIR` removes a lab"));
    }
    match service::look(place)? {
        Liveness::Absent => {}
        Liveness::Mounted(_) | Liveness::Busy => {
            return Err(Failure::new(format!(
                "the file system of {root} is in use: its daemon serves {}",
                state.mount.display()
            ))
            .help(format!("gupfs down --state {root}")));
        }
    }
    if let Some(mount) = service::mounts_of(place)?.first() {
        return Err(Failure::new(format!(
            "{} is still mounted, and its daemon is gone",
            mount.point.display()
        ))
        .help(format!("gupfs down --state {root}")));
    }
    Ok(())
}

/// The disks that were given to `gupfs fs create`, opened, and whether each is still of this file system. Those that we
/// made go with the directory.
fn given_disks(place: &Place, state: &State) -> Result<Vec<(Disk, bool)>> {
    if state.backing.is_some() {
        return Ok(Vec::new());
    }
    let fs = from_hex(&state.fs, "file system")?;
    let look = |disk: &crate::state::Disk| {
        let opened = Disk::open_alone(&disk.path).map_err(|failure| {
            Failure::new(failure.what()).help(format!(
                "bring the disk back (a read-only one: make it writable), or run `gupfs down --state {} --destroy`, which leaves labels on the disks",
                place.root().display()
            ))
        })?;
        let label = opened.label()?;
        let is_ours = label.is_ok_and(|found| found.label.fs.0 == fs);
        Ok((opened, is_ours))
    };
    state.disks.iter().map(look).collect()
}

fn ask(state: &State) -> Result<()> {
    let question = format!(
        "destroy the file system {} ({} on {} NSDs) with all its data?",
        state.fs,
        size::show(state.size),
        state.disks.len()
    );
    agree::ask(&question, "nothing was destroyed")
}
