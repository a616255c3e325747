//! `gupfs nsd`: the disks of file systems.

use std::path::PathBuf;

use clap::Subcommand;

use super::report;
use crate::disks::{self, Disk};
use crate::failure::{Failure, Result};
use crate::size::parse_argument;
use crate::state::Place;
use crate::{files, inspect, up};

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
                None => (inspect::look_at(&paths)?, None),
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
    let mut done = Vec::new();
    if let Some(size) = size {
        up::check_size(size, 1)?;
        if let Some(path) = paths.iter().find(|p| p.exists()) {
            return Err(Failure::new(format!("{} exists already", path.display()))
                .help("leave --size out to use it as it is, or name a new file"));
        }
        for (index, path) in paths.iter().enumerate() {
            if let Err(failure) = up::make_file(path, size) {
                // Half of them would only be in the way of the next try.
                for made in &paths[..index] {
                    files::remove(made)?;
                }
                return Err(failure);
            }
            done.push(format!("made {}", path.display()));
        }
        return Ok(done);
    }
    let opened = paths
        .iter()
        .map(|p| Disk::open_alone(p))
        .collect::<Result<Vec<_>>>()?;
    for disk in &opened {
        up::check_size(disk.sector_count * types::SECTOR_SIZE, 1)?;
    }
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
