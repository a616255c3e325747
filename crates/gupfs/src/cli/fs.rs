//! `gupfs fs`: file systems.

use std::path::{Path, PathBuf};

use clap::Subcommand;

use super::{report, show_as};
use crate::failure::{Failure, Result};
use crate::filesystem::{self, NewDisk, NewFileSystem, NewNode};
use crate::size::parse_argument;
use crate::state::{Disk, Place, State};
use crate::{destroy, files, inspect, locate, system, up};

#[derive(Debug, Subcommand)]
pub(super) enum FsCommand {
    /// Make a file system over given disks, for one node.
    #[command(
        after_help = "Example:\n  gupfs nsd create --size 2G /data/1.img /data/2.img\n  gupfs fs create --state /var/lib/gupfs --mount /mnt/gupfs /data/1.img /data/2.img\n  gupfs up --state /var/lib/gupfs --mount /mnt/gupfs"
    )]
    Create {
        /// State directory; made if it does not exist.
        #[arg(long)]
        state: PathBuf,
        /// Where it will be mounted.
        #[arg(long)]
        mount: PathBuf,
        /// Stripe unit in bytes.
        #[arg(long, default_value = "1M", value_parser = parse_argument)]
        block_size: u64,
        /// Destroy what the disks hold.
        #[arg(long)]
        force: bool,
        /// Files or block devices.
        #[arg(required = true)]
        disks: Vec<PathBuf>,
    },
    /// Show the file systems of this machine, or of the named disks.
    #[command(
        after_help = "Examples:\n  gupfs fs list\n  gupfs fs list --state /var/lib/gupfs\n  gupfs fs list --json /data/1.img /data/2.img"
    )]
    List {
        /// The file system of this state directory.
        #[arg(long, conflicts_with = "paths")]
        state: Option<PathBuf>,
        /// Files or block devices.
        paths: Vec<PathBuf>,
    },
    /// Remove a file system that is not mounted, with all its data; asks first.
    #[command(
        after_help = "Examples:\n  gupfs fs destroy --state /var/lib/gupfs\n  gupfs fs destroy --state /var/lib/gupfs --yes\n\nNSDs that were given to `gupfs fs create` are blank afterwards; those that `gupfs up` made are removed."
    )]
    Destroy {
        /// State directory; it is removed, too.
        #[arg(long)]
        state: PathBuf,
        /// Do not ask.
        #[arg(long)]
        yes: bool,
    },
}

pub(super) fn run(command: FsCommand, json: bool) -> Result<()> {
    match command {
        FsCommand::Create {
            state,
            mount,
            block_size,
            force,
            disks,
        } => report(create_fs(&state, &mount, block_size, force, &disks), json),
        FsCommand::List { state, paths } => {
            let (all, _) = locate::daemons()?;
            let (found, missing) = match state {
                Some(state) => inspect::disks_of(&Place::new(&state)?)?,
                None if paths.is_empty() => (inspect::scan_with(&all)?, None),
                None => (inspect::look_at(&paths)?, None),
            };
            if !paths.is_empty() {
                inspect::require_labels(&found)?;
            }
            show_as(
                &inspect::file_systems(&found, &all),
                json,
                inspect::file_systems_to_text,
            );
            missing.map_or(Ok(()), Err)
        }
        FsCommand::Destroy { state, yes } => report(destroy::run(&state, yes), json),
    }
}

fn create_fs(
    state: &Path,
    mount: &Path,
    block_size: u64,
    force: bool,
    disks: &[PathBuf],
) -> Result<Vec<String>> {
    let place = Place::new(state)?;
    if let Some(found) = place.load()? {
        return Err(Failure::new(format!(
            "{} holds the file system {} already",
            place.root().display(),
            found.fs
        ))
        .help("mount it with `gupfs up`, or name another state directory"));
    }
    let absolute = |path: &PathBuf| {
        std::fs::canonicalize(path).map_err(|e| Failure::io("find disk", path, &e))
    };
    let paths = disks.iter().map(absolute).collect::<Result<Vec<_>>>()?;
    let view = filesystem::create(&NewFileSystem {
        nodes: vec![NewNode {
            id: 1,
            address: None,
        }],
        disks: paths
            .iter()
            .map(|path| NewDisk {
                path: path.clone(),
                server: 1,
            })
            .collect(),
        block_size: u32::try_from(block_size).unwrap_or(u32::MAX),
        force,
    })?;
    files::make_directory(place.root())?;
    place.store_view(&view)?;
    let disks = (1..).zip(paths).map(|(nsd, path)| Disk {
        nsd,
        path,
        is_loop: false,
    });
    place.store(&State {
        disks: disks.collect(),
        ..up::single(&view, &system::absolute(mount)?)
    })?;
    Ok(vec![
        format!(
            "made the file system {:032x} over {} NSDs",
            view.fs.0,
            view.nsds.len()
        ),
        format!(
            "mount it: gupfs up --state {} --mount {}",
            state.display(),
            mount.display()
        ),
    ])
}
