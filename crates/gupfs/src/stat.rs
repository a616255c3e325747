//! `gupfs stat`: a file as applications see it (through the mount), and where its bytes lie (at its owner).

use std::path::Path;

use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Result};
use crate::locate;
use crate::{inspect, size};

/// What is known of `path`; with `is_synced` its data is brought to its place before.
pub fn look(path: &Path, is_synced: bool) -> Result<Value> {
    let (found, seen) = locate::of_path(path, is_synced)?;
    let request = format!("inode {}", seen["inode"]);
    let mut place = found.place.clone();
    let mut map = control::require(&place.control(), &request)?;
    let mut owner = found.status["node"].clone();
    if map["owner"].is_u64() {
        owner = map["owner"].take();
        // Another node's daemon may run here, too: in a lab it does.
        map = match locate::node_of(&found.status["fs"], &owner)? {
            Some(other) => {
                place = other.place;
                control::require(&place.control(), &request)?
            }
            None => Value::Null,
        };
    }
    if let Some(error) = map["error"].as_str() {
        return Err(Failure::new(format!("{}: {error}", path.display()))
            .help("the file may have been removed meanwhile: run it again"));
    }
    let mut out = json!({
        "path": path.to_string_lossy(), "fs": found.status["fs"], "mount": found.status["mount"], "owner": owner,
        "has_map": !map.is_null(),
        "layout": map["layout"], "committed_size": map["size"],
        "inline_pieces": map["pieces"], "inline_bytes": map["piece_bytes"],
        "parts": map["parts"], "more_extents": map["more_extents"], "extents": extents(&map),
    });
    for (name, value) in seen.as_object().into_iter().flatten() {
        if !name.starts_with("dev_") {
            out[name] = value.clone();
        }
    }
    Ok(out)
}

/// The extents of what an owner says of an inode; null if it says nothing.
fn extents(map: &Value) -> Value {
    let Some(list) = map["extents"].as_array() else {
        return Value::Null;
    };
    let row = |extent: &Value| {
        let at = extent["at"].as_array().into_iter().flatten();
        let at: Vec<Value> = at.map(|l| json!({ "nsd": l[0], "sector": l[1] })).collect();
        json!({ "file_sector": extent["sector"], "sectors": extent["sectors"], "at": at })
    };
    list.iter().map(row).collect()
}

/// The answer for people.
pub fn to_text(value: &Value) -> String {
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let mut out = String::new();
    let mut line = |name: &str, what: String| out.push_str(&format!("{name}: {what}\n"));
    let bytes = value["size"].as_u64().unwrap_or(0);
    line("path", text(&value["path"]));
    line("kind", text(&value["kind"]));
    line("size", format!("{bytes} ({})", size::show(bytes)));
    line("allocated", value["allocated"].to_string());
    line(
        "inode",
        format!("{} of node {}", value["inode"], value["owner"]),
    );
    line("links", value["links"].to_string());
    line(
        "mode",
        format!("{} {}:{}", text(&value["mode"]), value["uid"], value["gid"]),
    );
    for name in ["atime_ns", "mtime_ns", "ctime_ns", "btime_ns"] {
        line(name, value[name].to_string());
    }
    if value["has_map"] == false {
        line(
            "layout and extents",
            format!(
                "node {} has them, and its daemon is not on this machine: run this there",
                value["owner"]
            ),
        );
        return out;
    }
    let layout = text(&value["layout"]);
    let is_default = layout.is_empty();
    line(
        "layout",
        if is_default {
            "default".to_owned()
        } else {
            layout
        },
    );
    if value["parts"].as_u64().is_some_and(|count| count > 0) {
        line(
            "parts",
            format!("names lie in {} parts and in it", value["parts"]),
        );
    }
    if value["kind"] != "file" {
        return out;
    }
    line("committed size", value["committed_size"].to_string());
    line(
        "inline",
        format!(
            "{} bytes in {} pieces lie in metadata",
            value["inline_bytes"], value["inline_pieces"]
        ),
    );
    out.push_str(&extents_to_text(value));
    out
}

fn extents_to_text(value: &Value) -> String {
    let list = value["extents"].as_array().map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return "extents: none\n".to_owned();
    }
    let mut rows = vec![["FILE SECTOR", "SECTORS", "NSD", "SECTOR"].map(str::to_owned)];
    for extent in list {
        let at = |name: &str| {
            let places = extent["at"].as_array().into_iter().flatten();
            let places: Vec<String> = places.map(|l| l[name].to_string()).collect();
            places.join(",")
        };
        rows.push([
            extent["file_sector"].to_string(),
            extent["sectors"].to_string(),
            at("nsd"),
            at("sector"),
        ]);
    }
    let mut out = inspect::table(&rows);
    if value["more_extents"] == true {
        out.push_str(&format!("and more than these {}\n", list.len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_have_their_places() {
        let map = json!({"extents": [{"sector": 3, "sectors": 2, "at": [[1, 77], [2, 88]]}]});
        let extents = extents(&map);
        assert_eq!(extents[0]["at"][1], json!({"nsd": 2, "sector": 88}));
        let text = extents_to_text(&json!({ "extents": extents, "more_extents": true }));
        assert!(text.contains("3            2        1,2  77,88"), "{text}");
        assert!(text.contains("more than these 1"), "{text}");
        assert!(super::extents(&Value::Null).is_null());
    }
}
