//! `gupfs layout`: where new sectors of a file, or of what is made in a directory, go.
//!
//! It is an extended attribute, read and set by a child process that may wait for the mount (`locate`).

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use types::layout::Layout;
use types::{NsdId, limits};

use crate::failure::{Failure, Result};
use crate::locate::{self, Errand};
use crate::size;

/// Arguments of `gupfs layout set`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("layout").args(["nsds", "block_size", "default"]).required(true).multiple(true))]
pub struct SetArgs {
    /// A directory, or a file without bytes.
    path: PathBuf,
    /// Numbers of the NSDs to stripe over, in this order; all of the file system, if none are named.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    nsds: Vec<u16>,
    /// Bytes on one NSD before the next: a power of two from 64K to 1M; the file system's, if it is left out.
    #[arg(long, value_parser = size::parse_argument, value_name = "SIZE")]
    block_size: Option<u64>,
    /// Go back to the file system's own layout.
    #[arg(long, conflicts_with_all = ["nsds", "block_size"])]
    default: bool,
}

/// The layout of `path`.
pub fn get(path: &Path) -> Result<Value> {
    let (found, seen) = locate::of_path_with(path, &Errand::GetLayout)?;
    let text = seen["layout"].as_str().unwrap_or_default();
    let layout = Layout::parse(text.as_bytes()).map_err(|error| {
        Failure::new(format!("{}: {text:?}: {error}", path.display()))
            .help("the daemon is of another version: gupfs down, then gupfs up")
    })?;
    let nsds: Vec<u16> = layout.nsds().iter().map(|nsd| nsd.0).collect();
    Ok(json!({
        "path": path.to_string_lossy(), "kind": seen["kind"], "fs": found.status["fs"],
        "is_default": layout.is_default(), "nsds": nsds, "block_size": layout.block_size(),
    }))
}

/// The answer for people.
pub fn to_text(value: &Value) -> String {
    if value["is_default"] == true {
        return "default: all NSDs of the file system, in blocks of its size\n".to_owned();
    }
    let nsds = value["nsds"].as_array().map_or(&[][..], Vec::as_slice);
    let nsds: Vec<String> = nsds.iter().map(|nsd| format!("nsd{nsd}")).collect();
    let over = match nsds.is_empty() {
        true => "all NSDs".to_owned(),
        false => nsds.join(", "),
    };
    let blocks = match value["block_size"].as_u64() {
        Some(bytes) => size::show(bytes),
        None => "the file system's size".to_owned(),
    };
    format!("over {over} in blocks of {blocks}\n")
}

/// Sets the layout of a path. Returns what was done.
pub fn set(args: &SetArgs) -> Result<Vec<String>> {
    let path = args.path.display();
    let layout = layout_of(args)?;
    let (found, seen) = locate::of_path(&args.path, false)?;
    if seen["kind"] != "directory" && seen["kind"] != "file" {
        return Err(Failure::new(format!(
            "{path} is a {}: it has no layout",
            seen["kind"].as_str().unwrap_or("special file")
        ))
        .help("name a directory, or a file without bytes"));
    }
    let there: Vec<u64> = found.status["nsds"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|nsd| nsd["nsd"].as_u64())
        .collect();
    if let Some(nsd) = args
        .nsds
        .iter()
        .find(|nsd| !there.contains(&u64::from(**nsd)))
    {
        let there: Vec<String> = there.iter().map(u64::to_string).collect();
        return Err(Failure::new(format!(
            "there is no NSD {nsd} in the file system of {path}"
        ))
        .help(format!("there are: {}", there.join(", "))));
    }
    let text = layout.to_string();
    locate::of_path_with(&args.path, &Errand::SetLayout(text.clone())).map_err(|failure| {
        let help = match failure.what() {
            what if what.contains("os error 16") => {
                "it has bytes, which no layout moves: set the layout of its directory, and copy it to a new name there"
            }
            what if what.contains("os error 1)") => "layouts are set by root: run it with sudo",
            _ => return failure,
        };
        failure.help(help)
    })?;
    Ok(vec![match layout.is_default() {
        true => format!("{path} has the file system's own layout"),
        false => format!("{path} has the layout {text}"),
    }])
}

fn layout_of(args: &SetArgs) -> Result<Layout> {
    let nsds: Vec<NsdId> = args.nsds.iter().copied().map(NsdId).collect();
    let twice = (1..nsds.len()).find(|at| nsds[..*at].contains(&nsds[*at]));
    if let Some(at) = twice {
        return Err(Failure::new(format!("{} is named twice", nsds[at])).help("name each NSD once"));
    }
    if nsds.len() > limits::LAYOUT_NSD_COUNT_MAX {
        return Err(
            Failure::new(format!("{} NSDs are more than a layout names", nsds.len())).help(
                format!(
                    "name {} at most; without --nsds all are used",
                    limits::LAYOUT_NSD_COUNT_MAX
                ),
            ),
        );
    }
    let size = args
        .block_size
        .map(|size| u32::try_from(size).unwrap_or(u32::MAX));
    Layout::new(&nsds, size).ok_or_else(|| {
        let bytes = args.block_size.unwrap_or_default();
        Failure::new(format!("{bytes} bytes are no block size of a layout"))
            .help("a power of two from 64K to 1M")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(nsds: &[u16], block_size: Option<u64>) -> SetArgs {
        SetArgs {
            path: "/x".into(),
            nsds: nsds.to_vec(),
            block_size,
            default: false,
        }
    }

    #[test]
    fn what_is_no_layout_is_named() {
        let bad = |nsds: &[u16], size| layout_of(&args(nsds, size)).expect_err("bad").to_string();
        assert!(bad(&[1, 2, 1], None).contains("nsd1 is named twice"));
        let many: Vec<u16> = (1..=100).collect();
        assert!(bad(&many, None).contains("100 NSDs"));
        for size in [3 << 16, 1 << 15, 1 << 21, 1 << 40] {
            assert!(bad(&[1], Some(size)).contains("64K to 1M"), "{size}");
        }
        assert!(layout_of(&args(&[], None)).unwrap().is_default());
    }

    #[test]
    fn layouts_are_shown() {
        let own = json!({ "is_default": true });
        assert!(to_text(&own).contains("default"));
        let some = json!({ "nsds": [3, 1], "block_size": 65536 });
        assert_eq!(to_text(&some), "over nsd3, nsd1 in blocks of 64.0 KiB\n");
    }
}
