//! `gupfs fs`: file systems.

use std::path::PathBuf;

use clap::Subcommand;

use super::{report, show_as};
use crate::failure::Result;
use crate::size::parse_argument;
use crate::state::Place;
use crate::{create, destroy, inspect, locate};

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
        } => report(
            create::run(&create::Request {
                state: &state,
                mount: &mount,
                block_size,
                force,
                disks: &disks,
            }),
            json,
        ),
        FsCommand::List { state, paths } => {
            let (all, (found, missing)) = match state {
                None if paths.is_empty() => {
                    let (all, _) = locate::daemons()?;
                    let found = inspect::scan_with(&all)?;
                    (all, (found, None))
                }
                named => {
                    let looked = match named {
                        Some(state) => inspect::disks_of(&Place::new(&state)?)?,
                        None => inspect::look_at(&paths),
                    };
                    (locate::daemons_of(&inspect::ids_of(&looked.0))?, looked)
                }
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
