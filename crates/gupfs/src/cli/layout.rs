//! `gupfs layout`: where new sectors go.

use std::path::PathBuf;

use clap::Subcommand;

use super::{report, show_as};
use crate::failure::Result;
use crate::layout::{self, SetArgs};

#[derive(Debug, Subcommand)]
pub(super) enum LayoutCommand {
    /// The layout of a file, or of what is made in a directory.
    #[command(
        after_help = "Examples:\n  gupfs layout get /mnt/gupfs/scratch\n  gupfs layout get /mnt/gupfs/file --json\n\nWhere the bytes of a file lie by now: gupfs stat FILE."
    )]
    Get {
        /// A file or a directory.
        path: PathBuf,
    },
    /// Set the layout of a directory for what is made in it from now on, or of a file that has no bytes yet.
    #[command(
        after_help = "Examples:\n  gupfs layout set /mnt/gupfs/scratch --nsds 3,4\n  gupfs layout set /mnt/gupfs/scratch --nsds 1,2 --block-size 256K\n  gupfs layout set /mnt/gupfs/scratch --default\n\nNothing moves: what is in a directory already keeps its own."
    )]
    Set(SetArgs),
}

pub(super) fn run(command: LayoutCommand, json: bool) -> Result<()> {
    match command {
        LayoutCommand::Get { path } => {
            show_as(&layout::get(&path)?, json, layout::to_text);
            Ok(())
        }
        LayoutCommand::Set(args) => report(layout::set(&args), json),
    }
}
