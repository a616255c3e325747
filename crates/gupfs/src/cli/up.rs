//! `gupfs up`: everything for the first five minutes.

use std::path::PathBuf;

use clap::Args;

use super::{parse_pagepool, report};
use crate::failure::Result;
use crate::size::parse_argument;
use crate::state::{Backing, Transport};
use crate::up;

#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Where to mount: an empty directory [default: where it was mounted last].
    #[arg(long)]
    mount: Option<PathBuf>,
    /// State directory; made if it does not exist.
    #[arg(long)]
    state: PathBuf,
    /// Bytes of the four NSDs together, for a new file system.
    #[arg(long, default_value = "8G", value_parser = parse_argument)]
    size: u64,
    /// Where the NSDs of a new file system lie.
    #[arg(long, value_enum, default_value = "file")]
    backing: Backing,
    /// How requests travel between kernel and daemon.
    #[arg(long, value_enum, default_value = "device")]
    transport: Transport,
    /// Bytes of memory for caching.
    #[arg(long, default_value = "1G", value_parser = parse_pagepool)]
    pagepool: u64,
    /// Files of this size and more are read past the kernel's page cache, unless they are read in small pieces or mapped
    /// [default: 128M, and a file that is read again comes through the page cache].
    #[arg(long, value_name = "SIZE", value_parser = parse_argument)]
    direct_from: Option<u64>,
    /// Make the mount point if it is missing.
    #[arg(long)]
    mkdir: bool,
    /// Where a disk is missing: say what would be lost without it. Nothing is mounted then.
    #[arg(long)]
    degraded: bool,
}

pub(super) fn run(args: UpArgs, json: bool) -> Result<()> {
    let done = up::up(&up::Request {
        mount: args.mount.clone(),
        state: args.state.clone(),
        size: args.size,
        backing: args.backing,
        transport: args.transport,
        pagepool_size: args.pagepool,
        direct_from: args.direct_from,
        make_mount_point: args.mkdir,
        is_degraded: args.degraded,
    });
    report(done, json)?;
    // Who does not say where has been here before.
    let Some(mount) = args.mount.filter(|_| !json) else {
        return Ok(());
    };
    let (mount, state) = (mount.display(), args.state.display());
    say!("\nfive things to try:");
    say!("  cp -a /usr/share/doc {mount}/ && diff -r /usr/share/doc {mount}/doc");
    say!("  dd if=/dev/zero of={mount}/big bs=1M count=1024 conv=fsync");
    say!("  gupfs status --state {state}");
    say!("  gupfs dump counters --state {state}");
    say!("  gupfs down --state {state}    (and `gupfs up` again: the data is still there)");
    Ok(())
}
