//! `gupfs dump superblock` and `gupfs dump journal`: what lies on the disks of a state directory, daemon or not.
//!
//! Invariant: disks are opened for reading only, and nothing is locked: beside a running daemon this is what it has written so far.

use node::store::format::{Area, HEADER_SECTORS, HeaderSector, SECTOR, SegmentHeader};
use nsd::label::{Label, decode_views};
use nsd::mark::{MARK_SECTORS, Marks};
use serde_json::{Value, json};

use crate::disks::{self, Disk};
use crate::failure::Result;
use crate::state::{Place, State};
use crate::system;

/// The disk of an entry: the loop device over a file that has one.
fn open(entry: &crate::state::Disk) -> Result<Disk> {
    let device = match entry.is_loop {
        true => system::loops::over(&entry.path)?.into_iter().next(),
        false => None,
    };
    Disk::open(device.as_ref().unwrap_or(&entry.path))
}

fn label(disk: &Disk) -> Result<Label> {
    let found = disk.label()?;
    found
        .map(|decoded| decoded.label)
        .map_err(|error| disks::explain_own(disk.path(), &error))
}

/// The labels of the disks, both copies, and the views that they hold.
pub fn superblock(place: &Place) -> Result<Value> {
    let state: State = place.require()?;
    let mut all = Vec::new();
    for entry in &state.disks {
        let disk = open(entry)?;
        let head = disk.head()?;
        let decoded = match Label::decode(&head) {
            Ok(decoded) => decoded,
            Err(error) => {
                all.push(json!({ "path": disk.path(), "error": error.to_string() }));
                continue;
            }
        };
        let label = decoded.label;
        let view = decode_views(&head).newest;
        let mut marks = Marks::new(label.fs);
        let sectors = MARK_SECTORS.map(|sector| disk.read(sector).ok());
        marks.add(label.nsd, sectors.each_ref().map(Option::as_deref));
        all.push(json!({
            "path": disk.path(), "nsd": label.nsd.0, "name": label.name, "revision": label.revision,
            "bad_copies": decoded.copies_to_repair,
            "cluster": format!("{:032x}", label.cluster.0), "fs": format!("{:032x}", label.fs.0),
            "failure_group": label.failure_group, "usage": format!("{:?}", label.usage).to_lowercase(),
            "pool": label.pool, "sectors": label.sector_count, "disk_sectors": disk.sector_count,
            "data_begin": label.data_begin, "region_sectors": label.region_sectors,
            "block_size": label.block_size, "shards": label.shard_count,
            "created_s": label.created.secs,
            "features": [label.features_incompatible, label.features_compatible],
            "journals": label.journals.iter().map(|journal| json!({
                "owner": journal.owner.0, "first_sector": journal.first_sector, "sectors": journal.sector_count,
            })).collect::<Vec<_>>(),
            "generation": marks.generation(label.nsd), "view_epoch": view.map(|view| view.epoch.0),
        }));
    }
    Ok(json!({ "nsds": all }))
}

/// The segment headers of the journals on the disks, both copies of both halves.
pub fn journal(place: &Place) -> Result<Value> {
    let state: State = place.require()?;
    let mut all = Vec::new();
    for entry in &state.disks {
        let disk = open(entry)?;
        let label = label(&disk)?;
        for journal in &label.journals {
            let area = Area {
                nsd: label.nsd,
                begin: journal.first_sector,
                count: journal.sector_count,
            };
            for half in 0..2 {
                for copy in 0..HEADER_SECTORS {
                    let at = area.at(half, copy);
                    let bytes = disk.read(at.sector)?;
                    assert_eq!(bytes.len(), SECTOR);
                    let header = SegmentHeader::read(&bytes, label.fs, journal.owner, area);
                    let mut row = json!({
                        "nsd": label.nsd.0, "owner": journal.owner.0, "half": half, "copy": copy, "sector": at.sector,
                    });
                    row["header"] = header_to_json(&header);
                    all.push(row);
                }
            }
        }
    }
    Ok(json!({ "headers": all }))
}

fn header_to_json(header: &HeaderSector) -> Value {
    match header {
        HeaderSector::Blank => json!("blank"),
        HeaderSector::Bad(fault) => json!(format!("bad: {fault:?}")),
        HeaderSector::Valid(header) => json!({
            "retired": header.is_retired, "sequence": header.sequence, "base_lsn": header.base.0,
            "continues": header.previous, "replayed_to": header.replayed_to.0,
            "incarnation": format!("{:032x}", header.incarnation.0),
        }),
    }
}
