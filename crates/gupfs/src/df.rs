//! `gupfs df`: the room on file systems as statfs shows it, and where it is, NSD by NSD.
//!
//! An owner counts the sectors of the regions that it holds, so the figures of one NSD are the sum over all owners. Those
//! whose daemons run on this machine are asked; where one is missing, the NSD's figures are not known and said so.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::control;
use crate::failure::{Failure, Result};
use crate::locate;
use crate::state::Place;
use crate::{inspect, size};

/// The file systems of the state directory, of the path, or of all daemons of this machine; then a failure if a daemon
/// does not answer.
pub fn look(path: Option<&Path>, state: Option<&Path>) -> Result<(Value, Option<Failure>)> {
    let silence = |root: &PathBuf| {
        Failure::new(format!("the daemon of {} does not answer", root.display()))
            .help("see its log, and `gupfs waiters`; `gupfs down` ends it in any case")
    };
    let rooms = match (path, state) {
        (Some(path), _) => vec![room(&locate::of_path(path, false)?.0.place)?],
        (None, Some(state)) => {
            let place = Place::new(state)?;
            place.require()?;
            vec![room(&place)?]
        }
        (None, None) => {
            let (all, silent) = locate::daemons()?;
            let (mut rooms, mut failure) = (Vec::new(), silent.first().map(silence));
            for found in &all {
                match room(&found.place) {
                    Ok(room) => rooms.push(room),
                    // One that has ended meanwhile keeps nobody from hearing of the others.
                    Err(one) => failure = failure.or(Some(one)),
                }
            }
            return Ok((json!({ "file_systems": rooms }), failure));
        }
    };
    Ok((json!({ "file_systems": rooms }), None))
}

fn room(place: &Place) -> Result<Value> {
    let mut own = control::require(&place.control(), "df")?;
    if let Some(error) = own["error"].as_str() {
        return Err(Failure::new(format!("{}: {error}", place.root().display()))
            .help("run it again when the daemon is up"));
    }
    let mut parts = vec![own["nsds"].take()];
    let mut owners_missing = Vec::new();
    let me = own["node"].clone();
    let owners = own["owners"].as_array().into_iter().flatten();
    let others: Vec<&Value> = owners.filter(|owner| **owner != me).collect();
    // Once: one that hangs is waited for.
    let there = match others.is_empty() {
        true => Vec::new(),
        false => locate::nodes_of(&own["fs"])?,
    };
    for owner in others {
        let found = there.iter().find(|found| found.status["node"] == *owner);
        match found {
            Some(found) => {
                parts.push(control::require(&found.place.control(), "df")?["nsds"].take());
            }
            None => owners_missing.push(owner.clone()),
        }
    }
    let nsds = sum(&parts, owners_missing.is_empty());
    Ok(json!({
        "fs": own["fs"], "state": place.root(), "mount": own["mount"], "node": me,
        "capacity": own["capacity"], "used": own["used"], "free": own["free"],
        "available": own["available"], "inodes": own["inodes"], "owners_silent": own["owners_silent"],
        "owners_missing": owners_missing, "nsds": nsds,
    }))
}

/// The figures of each NSD: `parts` are what the owners say of all, the first is of the daemon that was asked.
fn sum(parts: &[Value], is_complete: bool) -> Vec<Value> {
    let rows = parts[0].as_array().into_iter().flatten();
    rows.map(|row| {
        let of_all = |name: &str| {
            let rows = parts.iter().filter_map(Value::as_array).flatten();
            let same = rows.filter(|r| r["nsd"] == row["nsd"]);
            same.filter_map(|r| r[name].as_u64()).reduce(|a, b| a + b)
        };
        let capacity = row["capacity"].as_u64().unwrap_or(0);
        // Answers of different moments may count a region twice that changed hands between.
        let free = of_all("free_here").zip(of_all("free_unheld"));
        let free = free.map(|(held, unheld)| (held + unheld).min(capacity));
        let free = free.filter(|_| is_complete);
        json!({
            "nsd": row["nsd"], "failure_group": row["failure_group"], "state": row["state"],
            "servers": row["servers"], "size": row["size"], "capacity": capacity,
            "used": free.map(|free| capacity - free), "free": free,
            "quarantined": of_all("quarantined_here").filter(|_| is_complete),
        })
    })
    .collect()
}

/// The answer as tables.
pub fn to_text(value: &Value) -> String {
    let mut out = String::new();
    let bytes = |v: &Value| v.as_u64().map_or_else(|| "?".to_owned(), size::show);
    let use_ = |row: &Value| match (row["used"].as_u64(), row["capacity"].as_u64()) {
        (Some(used), Some(capacity @ 1..)) => format!("{}%", (used * 100).div_ceil(capacity)),
        _ => "?".to_owned(),
    };
    for fs in value["file_systems"].as_array().into_iter().flatten() {
        let text = |v: &Value| v.as_str().unwrap_or("?").to_owned();
        let mut rows = vec![
            [
                "",
                "FAILURE GROUP",
                "STATE",
                "CAPACITY",
                "USED",
                "FREE",
                "AVAILABLE",
                "USE",
            ]
            .map(str::to_owned),
        ];
        for nsd in fs["nsds"].as_array().into_iter().flatten() {
            rows.push([
                format!("nsd{}", nsd["nsd"]),
                nsd["failure_group"].to_string(),
                text(&nsd["state"]),
                bytes(&nsd["capacity"]),
                bytes(&nsd["used"]),
                bytes(&nsd["free"]),
                String::new(),
                use_(nsd),
            ]);
        }
        rows.push([
            "all".to_owned(),
            String::new(),
            String::new(),
            bytes(&fs["capacity"]),
            bytes(&fs["used"]),
            bytes(&fs["free"]),
            bytes(&fs["available"]),
            use_(fs),
        ]);
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(&format!("{} on {}\n", text(&fs["fs"]), text(&fs["mount"])));
        out.push_str(&inspect::table(&rows));
        for (name, what) in [
            (
                "owners_missing",
                "not on this machine, or their daemons do not answer, so what each NSD holds is not known: node",
            ),
            (
                "owners_silent",
                "did not answer in time, so its last known figures are in these, or all that it holds as used where none are known: node",
            ),
        ] {
            for node in fs[name].as_array().into_iter().flatten() {
                out.push_str(&format!("{what} {node}\n"));
            }
        }
    }
    if out.is_empty() {
        out.push_str("no daemon runs on this machine\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(free_here: u64, unheld: Option<u64>) -> Value {
        json!([{
            "nsd": 1, "failure_group": 2, "state": "direct", "servers": [1], "size": 120, "capacity": 100,
            "free_here": free_here, "used_here": 0, "quarantined_here": 3, "free_unheld": unheld,
        }])
    }

    #[test]
    fn what_all_owners_count_is_summed() {
        let sums = sum(&[part(10, Some(50)), part(5, None)], true);
        assert_eq!(
            (&sums[0]["free"], &sums[0]["used"]),
            (&json!(65), &json!(35))
        );
        assert_eq!(sums[0]["quarantined"], 6);
        let sums = sum(&[part(80, Some(50))], true);
        assert_eq!(sums[0]["free"], 100, "not more than there is");
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        for sums in [
            sum(&[part(10, Some(50))], false),
            sum(&[part(10, None)], true),
        ] {
            assert!(sums[0]["free"].is_null() && sums[0]["used"].is_null());
            let fs = json!({"fs": "f", "mount": "/m", "nsds": sums, "owners_missing": [2]});
            let text = to_text(&json!({ "file_systems": [fs] }));
            assert!(text.contains('?') && text.contains("node 2"), "{text}");
        }
    }
}
