//! `gupfs nsd`: the disks of file systems.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use nsd::label::sector_count_min;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use types::SECTOR_SIZE;

use super::report;
use crate::disks::{self, Disk};
use crate::failure::{Failure, Result};
use crate::size::parse_argument;
use crate::state::Place;
use crate::{files, inspect, size, up};

#[derive(Debug, Subcommand)]
pub(super) enum NsdCommand {
    /// Make files to be used as NSDs, or check that disks can be.
    #[command(
        after_help = "Examples:\n  gupfs nsd create --size 2G /data/1.img /data/2.img\n  gupfs nsd create /dev/sdb           (checks it; nothing is written)\n  gupfs nsd create --force /dev/sdb   (erases its first sectors)"
    )]
    Create {
        /// Make sparse files of this size.
        #[arg(long, value_parser = parse_argument)]
        size: Option<u64>,
        /// Erase what the first sectors hold.
        #[arg(long)]
        force: bool,
        /// Files or block devices.
        #[arg(required = true)]
        paths: Vec<PathBuf>,
    },
    /// Show the labels of disks.
    #[command(
        after_help = "Examples:\n  gupfs nsd list                   (all block devices of this machine)\n  gupfs nsd list --state /var/lib/gupfs\n  gupfs nsd list /data/1.img --json"
    )]
    List {
        /// The disks of this state directory.
        #[arg(long)]
        state: Option<PathBuf>,
        /// Files or block devices.
        paths: Vec<PathBuf>,
    },
}

pub(super) fn run(command: NsdCommand, json: bool) -> Result<()> {
    match command {
        NsdCommand::Create { size, force, paths } => report(create_nsds(size, force, &paths), json),
        NsdCommand::List { state, paths } => {
            let (found, missing) = match state {
                Some(state) => inspect::disks_of(&Place::new(&state)?)?,
                None if paths.is_empty() => (inspect::scan()?, None),
                None => inspect::look_at(&paths),
            };
            match json {
                true => say!("{}", inspect::nsds_to_json(&found)),
                false => say!("{}", inspect::nsds_to_text(&found).trim_end()),
            }
            missing.map_or(Ok(()), Err)
        }
    }
}

fn create_nsds(size: Option<u64>, force: bool, paths: &[PathBuf]) -> Result<Vec<String>> {
    if let Some(size) = size {
        up::check_size(size, 1)?;
        return make_files(size, paths);
    }
    let mut done = Vec::new();
    let opened = paths
        .iter()
        .map(|p| Disk::open_alone(p))
        .collect::<Result<Vec<_>>>()?;
    opened.iter().try_for_each(check_size)?;
    for disk in &opened {
        match disk.label()? {
            Err(nsd::label::LabelError::Blank) => {
                done.push(format!("{} can be used", disk.path().display()))
            }
            _ if force => {
                disk.clear()?;
                done.push(format!(
                    "erased the first sectors of {}: it can be used",
                    disk.path().display()
                ));
            }
            Err(error) => return Err(disks::explain(disk.path(), &error)),
            Ok(found) => {
                return Err(Failure::new(format!(
                    "{} is NSD '{}' of the file system {:032x}",
                    disk.path().display(),
                    found.label.name,
                    found.label.fs.0
                ))
                .help("name another disk; if that file system may be destroyed, give --force"));
            }
        }
    }
    Ok(done)
}

/// Fails if a disk that is there is too small.
fn check_size(disk: &Disk) -> Result<()> {
    let path = disk.path().display();
    let least = sector_count_min(1);
    if disk.sector_count >= least {
        return Ok(());
    }
    let least = size::show(least * SECTOR_SIZE);
    Err(match (disk.is_block, disk.sector_count) {
        (true, 0) => Failure::new(format!(
            "disk {path} has no size: there is no medium in it, or nothing is attached to it"
        ))
        .help("insert the medium (a loop device: losetup), or name another disk"),
        (false, 0) => Failure::new(format!(
            "disk {path} is too small: it is empty, and an NSD needs {least}"
        ))
        .help("remove the file and give --size, or name another one"),
        (_, sectors) => Failure::new(format!(
            "disk {path} is too small: it has {}, and an NSD needs {least}",
            size::show(sectors * SECTOR_SIZE)
        ))
        .help("name a larger disk"),
    })
}

/// Makes the files `paths` of `size` bytes, all or none. Those that an interrupted command has made are as good as new.
fn make_files(size: u64, paths: &[PathBuf]) -> Result<Vec<String>> {
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok();
    let (there, missing): (Vec<&PathBuf>, _) = paths.iter().partition(|path| is_there(path));
    if let Some(path) = there.iter().find(|path| !is_blank(path, size)) {
        return Err(Failure::new(format!("{} exists already", path.display()))
            .help("leave --size out to use it as it is, or name a new file"));
    }
    let as_made = |path: &&PathBuf| format!("{} is there as it would be made", path.display());
    let mut done: Vec<String> = there.iter().map(as_made).collect();
    for (index, path) in missing.iter().enumerate() {
        if let Err(failure) = up::make_file(path, size) {
            // Half of them would only be in the way of the next try.
            for made in &missing[..index] {
                files::remove(made)?;
            }
            return Err(failure);
        }
        done.push(format!("made {}", path.display()));
    }
    done.extend(up::warn_of_thin(paths)?);
    Ok(done)
}

/// Whether `path` is a file of `size` bytes that nothing was ever written to.
fn is_blank(path: &Path, size: u64) -> bool {
    let is_file = |metadata: &Metadata| metadata.is_file() && metadata.len() == size;
    if !path.symlink_metadata().is_ok_and(|found| is_file(&found)) {
        return false;
    }
    let data = File::open(path).map(|file| seek(&file, SeekFrom::Data(0)));
    matches!(data, Ok(Err(Errno::NXIO)))
}
