//! `gupfs dump`: inner tables of a daemon, and what lies on disks.

use std::ffi::OsStr;
use std::path::Path;

use clap::error::ErrorKind;
use serde_json::{Value, json};

use super::{AskArgs, run_ask, show};
use crate::failure::{Failure, Result};
use crate::fsck::offline;
use crate::state::Place;
use crate::{dump, inspect, settings};

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Dump {
    /// Requests, messages, context switches, copied bytes, flushes, journal bytes.
    Counters,
    /// Sectors of each NSD by state, what this node has in hand, and whether its files use what is counted.
    Space,
    /// The configuration that the state directory holds.
    Config,
    /// The cluster view that the state directory holds.
    View,
    /// Attributes, layout and extents of an inode, at its owner.
    Inode,
    /// The labels on the disks of the state directory, daemon or not.
    Superblock,
    /// The segment headers of the journals on these disks.
    Journal,
    /// A page of a tree of metadata, on the disks of a file system that nobody uses; without NSD:SECTOR all roots.
    TreePage,
    /// A record of the journals, on the disks of a file system that nobody uses; without an LSN the last of each.
    JournalRecord,
}

/// What clap cannot know: which tables take a second word, and which need one. `Err`: what is wrong with the command line.
pub(super) fn check(
    what: Dump,
    of: Option<&OsStr>,
    is_offline: bool,
) -> std::result::Result<(), (ErrorKind, &'static str)> {
    let takes_more = matches!(what, Dump::Inode | Dump::TreePage | Dump::JournalRecord);
    match (what, of) {
        (Dump::Inode, None) => Err((
            ErrorKind::MissingRequiredArgument,
            "`dump inode` needs a number, or a path (with --offline: from the root of the file system)",
        )),
        (_, Some(_)) if !takes_more => Err((
            ErrorKind::UnknownArgument,
            "only `dump inode`, `tree-page` and `journal-record` take a second word",
        )),
        _ if is_offline && !takes_more => Err((
            ErrorKind::ArgumentConflict,
            "only `dump inode` can be asked of a daemon or --offline",
        )),
        _ => Ok(()),
    }
}

/// After `check`.
pub(super) fn run(
    what: Dump,
    of: Option<&OsStr>,
    is_offline: bool,
    args: &AskArgs,
    json: bool,
) -> Result<()> {
    let place = Place::new(&args.state)?;
    let root = || place.root().to_owned();
    // What is no text is no number either, and is shown as such.
    let shown = of.map(OsStr::to_string_lossy);
    let number = || shown.as_deref();
    match what {
        Dump::TreePage => offline::tree_page(root(), number()).map(|value| show(&value, json)),
        Dump::JournalRecord => {
            offline::journal_record(root(), number()).map(|value| show(&value, json))
        }
        Dump::Inode if is_offline => {
            let of = of.expect("checked");
            offline::inode(root(), of).map(|value| show(&value, json))
        }
        Dump::Counters => run_ask(args, "counters", json),
        Dump::Space => run_ask(args, "space", json),
        Dump::Config => {
            show(&settings::to_json(&place.require()?), json);
            Ok(())
        }
        Dump::Superblock | Dump::Journal => {
            let on_disk = match what {
                Dump::Superblock => dump::superblock,
                _ => dump::journal,
            };
            on_disk(&place).map(|value| show(&value, json))
        }
        Dump::View => {
            show(&view_to_json(&place.load_view()?), json);
            Ok(())
        }
        Dump::Inode => {
            let of = of.expect("checked");
            let value = inspect::ask(&place, &format!("inode {}", inode_number(of)?))?;
            if let Some(error) = value["error"].as_str() {
                return Err(Failure::new(format!("inode {}: {error}", of.display())));
            }
            show(&value, json);
            Ok(())
        }
    }
}

/// A number as it is, or the number of what a path leads to.
fn inode_number(of: &OsStr) -> Result<u64> {
    if let Some(number) = of.to_str().and_then(|text| text.parse().ok()) {
        return Ok(number);
    }
    let path = Path::new(of);
    let found = std::fs::symlink_metadata(path).map_err(|e| Failure::io("look at", path, &e))?;
    Ok(std::os::unix::fs::MetadataExt::ino(&found))
}

fn view_to_json(view: &types::ClusterView) -> Value {
    json!({
        "cluster": format!("{:032x}", view.cluster.0),
        "fs": format!("{:032x}", view.fs.0),
        "epoch": view.epoch.0,
        "manager": view.manager.0,
        "block_size": view.block_size,
        "nodes": view.nodes.iter().map(|n| json!({
            "node": n.id.0, "address": n.address, "incarnation": format!("{:032x}", n.incarnation.0),
        })).collect::<Vec<_>>(),
        "nsds": view.nsds.iter().map(|n| json!({
            "nsd": n.id.0, "servers": n.servers.iter().map(|s| s.0).collect::<Vec<_>>(),
            "sectors": n.sector_count, "data_begin": n.data_begin, "failure_group": n.failure_group,
        })).collect::<Vec<_>>(),
        "owners": view.owners.iter().map(|o| o.0).collect::<Vec<_>>(),
    })
}
