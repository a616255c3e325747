//! Looking at what is there: labels on disks, file systems, the state of a daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nsd::label::{Label, LabelError};
use serde_json::{Value, json};
use types::SECTOR_SIZE;

use crate::disks::{self, Disk};
use crate::failure::{Failure, Result};
use crate::state::Place;
use crate::{control, locate, size, state, system};

/// A disk and what its first sectors hold.
#[derive(Debug)]
pub struct Found {
    /// Where it is.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// Its label, or what is there instead.
    pub label: std::result::Result<Label, LabelError>,
}

/// Looks at `path`.
fn look(path: &Path) -> Result<Found> {
    let disk = Disk::open(path)?;
    let label = disk.label()?.map(|decoded| decoded.label);
    Ok(Found {
        path: path.to_owned(),
        size: disk.sector_count * SECTOR_SIZE,
        label,
    })
}

/// Looks at `paths`: those that can be looked at, and why the others cannot.
pub fn look_at<P: AsRef<Path>>(paths: &[P]) -> (Vec<Found>, Option<Failure>) {
    let (mut found, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        match look(path.as_ref()) {
            Ok(one) => found.push(one),
            Err(failure) => failures.push(failure),
        }
    }
    let failure = Failure::join(&failures);
    (
        found,
        failure.map(|all| match failures.len() {
            1 => all,
            _ => all.help("name the right paths"),
        }),
    )
}

/// Every block device of this machine that carries one of our labels. Devices that cannot be read are
/// passed over.
pub fn scan() -> Result<Vec<Found>> {
    system::require_root("looking at the machine's block devices")?;
    let root = Path::new("/sys/class/block");
    let entries = fs::read_dir(root).map_err(|e| Failure::io("read", root, &e))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|e| Some(Path::new("/dev").join(e.ok()?.file_name())))
        .collect();
    paths.sort();
    let found = paths.iter().filter_map(|path| look(path).ok());
    Ok(found.filter(|f| f.label.is_ok()).collect())
}

/// The same, and the disks of `daemons`, which may be files. A loop device and its file count once.
pub fn scan_with(daemons: &[locate::Found]) -> Result<Vec<Found>> {
    let mut found = scan()?;
    for daemon in daemons {
        // It may have ended and its directory be gone meanwhile.
        if let Ok((disks, _)) = disks_of(&daemon.place) {
            found.extend(disks);
        }
    }
    let mut seen = BTreeSet::new();
    found.retain(|f| match &f.label {
        Ok(label) => seen.insert((label.fs, label.nsd)),
        Err(_) => true,
    });
    Ok(found)
}

/// The disks of a state directory, as far as they can be looked at, and why others cannot.
pub fn disks_of(place: &Place) -> Result<(Vec<Found>, Option<Failure>)> {
    let disks = place.require()?.disks;
    let paths: Vec<PathBuf> = disks.into_iter().map(|disk| disk.path).collect();
    Ok(look_at(&paths))
}

/// The ids of the file systems that `found` are disks of.
pub fn ids_of(found: &[Found]) -> Vec<String> {
    let labels = found.iter().filter_map(|found| found.label.as_ref().ok());
    labels.map(|label| state::to_hex(label.fs.0)).collect()
}

/// NSDs as JSON.
pub fn nsds_to_json(found: &[Found]) -> Value {
    let row = |f: &Found| match &f.label {
        Ok(label) => json!({
            "path": f.path.to_string_lossy(), "size": f.size, "nsd": label.nsd.0, "name": label.name,
            "cluster": format!("{:032x}", label.cluster.0), "fs": format!("{:032x}", label.fs.0),
            "failure_group": label.failure_group, "pool": label.pool,
            "usage": format!("{:?}", label.usage).to_lowercase(),
            "journals": label.journals.iter().map(|j| j.owner.0).collect::<Vec<_>>(),
        }),
        Err(error) => {
            let said = disks::without_label(error);
            json!({ "path": f.path.to_string_lossy(), "size": f.size, "error": said })
        }
    };
    Value::Array(found.iter().map(row).collect())
}

/// NSDs as a table.
pub fn nsds_to_text(found: &[Found]) -> String {
    let mut rows =
        vec![["PATH", "NSD", "SIZE", "FILE SYSTEM", "GROUP", "JOURNALS"].map(str::to_owned)];
    for f in found {
        rows.push(match &f.label {
            Ok(label) => [
                f.path.display().to_string(),
                label.name.clone(),
                size::show(f.size),
                format!("{:032x}", label.fs.0),
                label.failure_group.to_string(),
                label
                    .journals
                    .iter()
                    .map(|j| j.owner.to_string())
                    .collect::<Vec<_>>()
                    .join(","),
            ],
            Err(error) => [
                f.path.display().to_string(),
                "-".to_owned(),
                size::show(f.size),
                disks::without_label(error),
                String::new(),
                String::new(),
            ],
        });
    }
    table(&rows)
}

/// File systems among `found` as JSON: id, NSDs, and which of `daemons` serves it.
pub fn file_systems(found: &[Found], daemons: &[locate::Found]) -> Value {
    let mut by_fs: BTreeMap<u128, Vec<&Found>> = BTreeMap::new();
    for f in found {
        if let Ok(label) = &f.label {
            by_fs.entry(label.fs.0).or_default().push(f);
        }
    }
    let row = |(fs, disks): (&u128, &Vec<&Found>)| {
        let id = state::to_hex(*fs);
        let daemon = daemons.iter().find(|d| d.status["fs"] == id);
        let labels: Vec<&Label> = disks.iter().filter_map(|f| f.label.as_ref().ok()).collect();
        json!({
            "fs": id,
            "cluster": format!("{:032x}", labels[0].cluster.0),
            "block_size": labels[0].block_size,
            "nsds": disks.iter().zip(&labels).map(|(f, l)| json!({"nsd": l.nsd.0, "path": f.path.to_string_lossy()})).collect::<Vec<_>>(),
            "size": disks.iter().map(|f| f.size).sum::<u64>(),
            "state": daemon.map(|d| d.place.root()),
            "mount": daemon.map(|d| d.status["mount"].clone()),
            "mounted": daemon.is_some_and(|d| d.status["mounted"] == true),
        })
    };
    Value::Array(by_fs.iter().map(row).collect())
}

/// The same as a table.
pub fn file_systems_to_text(list: &Value) -> String {
    let mut rows =
        vec![["FILE SYSTEM", "SIZE", "MOUNT", "STATE DIRECTORY", "NSDS"].map(str::to_owned)];
    let known = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    for row in list.as_array().into_iter().flatten() {
        let nsds = row["nsds"].as_array().into_iter().flatten();
        let names: Vec<String> = nsds
            .map(|n| n["path"].as_str().unwrap_or("?").to_owned())
            .collect();
        rows.push([
            row["fs"].as_str().unwrap_or("?").to_owned(),
            size::show(row["size"].as_u64().unwrap_or(0)),
            known(&row["mount"]),
            known(&row["state"]),
            names.join(" "),
        ]);
    }
    table(&rows)
}

/// Every inode of the own shards is looked at, those that are not in memory too: some 20 us each.
const SPACE_PATIENCE: Duration = Duration::from_secs(600);

/// What the daemon of `place` answers to `request`.
pub fn ask(place: &Place, request: &str) -> Result<Value> {
    place.require()?;
    let limit = match request {
        "space" => SPACE_PATIENCE,
        _ => control::PATIENCE,
    };
    control::require_within(&place.control(), request, limit)
}

/// A JSON answer for people: one `name: value` a line, nested ones indented.
pub fn to_text(value: &Value) -> String {
    let mut out = String::new();
    write_text(value, 0, &mut out);
    if out.is_empty() {
        out.push_str("nothing\n");
    }
    out
}

fn write_text(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    let mut line = |name: &str, value: &Value| match value {
        Value::Object(map) if !map.is_empty() => {
            out.push_str(&format!("{pad}{name}:\n"));
            write_text(value, depth + 1, out);
        }
        Value::Array(list) if list.iter().any(|v| v.is_object() || v.is_array()) => {
            out.push_str(&format!("{pad}{name}:\n"));
            write_text(value, depth + 1, out);
        }
        Value::String(text) => out.push_str(&format!("{pad}{name}: {text}\n")),
        other => out.push_str(&format!("{pad}{name}: {other}\n")),
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| line(name, value)),
        Value::Array(list) => {
            for (index, value) in list.iter().enumerate() {
                line(&index.to_string(), value);
            }
        }
        Value::Null => {}
        other => out.push_str(&format!("{pad}{other}\n")),
    }
}

/// Rows as columns, each as wide as its widest cell.
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Fails with the first disk that has no label.
pub fn require_labels(found: &[Found]) -> Result<()> {
    match found
        .iter()
        .find_map(|f| f.label.as_ref().err().map(|e| (f, e)))
    {
        Some((f, error)) => Err(disks::explain(&f.path, error)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_shown_line_by_line() {
        let value = json!({"a": 1, "b": {"c": "x", "d": []}, "e": [{"f": null}]});
        assert_eq!(
            to_text(&value),
            "a: 1\nb:\n  c: x\n  d: []\ne:\n  0:\n    f: null\n"
        );
        assert_eq!(to_text(&json!({})), "nothing\n");
    }

    #[test]
    fn columns_line_up() {
        let rows = [["A", "B"], ["long", "x"]].map(|r| r.map(str::to_owned));
        assert_eq!(table(&rows), "A     B\nlong  x\n");
    }
}
