//! What lies on the disks of a file system that nobody uses, for people: `gupfs dump --offline`, and what a missing disk takes along.
//!
//! Invariant: nothing is written, and bytes that are not what they should be are named and never shown as if they were.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use fsck::{Findings, Image, Kind, Paths};
use node::log::SpaceRecord;
use node::meta::Mutation;
use node::meta::shard::inspect::Seen;
use node::store::format::{Field, PartKey, SECTOR};
use node::store::recovery::{Recovery, RecoveryError};
use node::store::tree::page::{PAGE_HEADER, Page, PageRef, TreeId};
use serde_json::{Value, json};
use types::{Decode as _, FileKind, InodeId, Location, Lsn, NodeId, NsdId, Reader, ShardId};

use super::disks::Held;
use crate::failure::{Failure, Result};
use crate::size;
use crate::state::Place;

/// Names, entries and mutations that are shown.
const SHOWN_MAX: usize = 1000;
/// Paths of files that a missing disk damages that are named.
const PATHS_SHOWN_MAX: usize = 5;

/// Takes the state directory (or lab) at `path`, and loads what can be.
fn load(path: PathBuf) -> Result<(Held, Image, Paths, Findings)> {
    let mut findings = Findings::default();
    let held = Held::take(&[path], &mut findings)?;
    let (mut image, _) = held.load(&mut findings, &mut |_| {})?;
    let paths = image.check(&mut findings);
    Ok((held, image, paths, findings))
}

/// An inode by its number, or by its path from the root of the file system (with a `/` before it).
pub(crate) fn inode(state: PathBuf, of: &OsStr) -> Result<Value> {
    let (_, image, paths, findings) = load(state)?;
    let number = || of.to_str().and_then(|text| text.parse().ok());
    let ino = match of.as_bytes().starts_with(b"/") {
        true => find(&image, of)?,
        false => InodeId::from_raw(number().ok_or_else(|| {
            Failure::new(format!("{of:?} is neither a number nor a path that begins with /"))
                .help("name the inode as `gupfs stat` shows it, or its path from the root of the file system")
        })?),
    };
    let of_it = findings.list().iter().filter(|f| f.ino == Some(ino));
    let damage: Vec<Value> = of_it
        .map(|f| json!({ "kind": f.kind.name(), "text": f.text }))
        .collect();
    let is_whole = image.is_whole(ino.shard());
    let Some(seen) = image.seen(ino) else {
        let why = match (image.shard(ino.shard()), is_whole) {
            (None, _) => "the shard that it would be in cannot be read",
            (_, false) => "its shard is damaged, and it may be among what is lost",
            (_, true) => "there is no such inode",
        };
        return Err(Failure::new(format!("inode {}: {why}", of.display()))
            .help("gupfs fsck says what is wrong with the file system"));
    };
    let mut value = seen_to_json(&seen);
    value["path"] = json!(paths.of(&image, ino));
    value["damage"] = Value::Array(damage);
    value["shard_is_whole"] = json!(is_whole);
    Ok(value)
}

/// Follows names from the root.
fn find(image: &Image, path: &OsStr) -> Result<InodeId> {
    let mut at = InodeId::ROOT;
    let names = path.as_bytes().split(|byte| *byte == b'/');
    for name in names.filter(|name| !name.is_empty()) {
        let missing = || {
            let is_whole = image.is_whole(at.shard());
            let why = if is_whole {
                ""
            } else {
                " (its directory's shard is damaged)"
            };
            let (path, name) = (path.display(), text(name));
            Failure::new(format!("{path}: there is no {name:?}{why}"))
                .help("name it from the root of the file system, or by its inode's number")
        };
        let entries = image.seen(at).and_then(|seen| seen.entries);
        let mut entries = entries.into_iter().flat_map(BTreeMap::values);
        let entry = entries.find(|entry| entry.name.bytes() == name);
        at = entry.ok_or_else(missing)?.ino;
    }
    Ok(at)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn seen_to_json(seen: &Seen<'_>) -> Value {
    let attr = seen.attr;
    let time = |at: types::Timestamp| {
        let ns = i128::from(at.secs) * 1_000_000_000 + i128::from(at.nanos);
        i64::try_from(ns).ok()
    };
    let place = |at: &Location| json!({ "nsd": at.nsd.0, "sector": at.sector });
    let extents = seen.map.into_iter().flat_map(|map| map.extents());
    let extents: Vec<Value> = extents
        .take(SHOWN_MAX)
        .map(|extent| {
            let at: Vec<Value> = extent.locations.iter().map(place).collect();
            json!({ "file_sector": extent.file_sector, "sectors": extent.length, "at": at })
        })
        .collect();
    let entries = seen.entries.into_iter().flatten().take(SHOWN_MAX);
    let entries: Vec<Value> = entries
        .map(|(cookie, entry)| {
            json!({ "name": text(entry.name.bytes()), "inode": entry.ino.raw(), "cookie": cookie })
        })
        .collect();
    let xattrs: Vec<String> = seen.xattrs.keys().map(|name| text(name)).collect();
    json!({
        "inode": attr.ino.raw(), "shard": attr.ino.shard().0, "generation": attr.generation,
        "kind": format!("{:?}", attr.kind).to_lowercase(), "mode": format!("{:04o}", attr.permissions & 0o7777),
        "links": attr.nlink, "uid": attr.uid, "gid": attr.gid, "device": attr.rdev, "size": attr.size,
        "sectors": attr.sector_count, "change": attr.change, "size_generation": attr.size_generation,
        "atime_ns": time(attr.atime), "mtime_ns": time(attr.mtime), "ctime_ns": time(attr.ctime),
        "btime_ns": time(attr.btime), "layout": attr.layout.to_string(),
        "parent": seen.parent.map(InodeId::raw), "target": seen.target.map(|target| text(target)),
        "entry_count": seen.entries.map(BTreeMap::len), "entries": entries, "xattrs": xattrs,
        "extent_count": seen.map.map(|map| map.extent_count()), "extents": extents,
        "pieces": seen.map.map(|map| map.piece_count()), "piece_bytes": seen.map.map(|map| map.piece_byte_count()),
    })
}

/// The page of a tree that has a copy at `of` (`NSD:SECTOR`); without, the roots of all trees.
pub(crate) fn tree_page(state: PathBuf, of: Option<&str>) -> Result<Value> {
    let (held, image, ..) = load(state)?;
    let roots = || {
        image.owners.iter().flat_map(|owner| {
            owner
                .roots
                .iter()
                .map(|(shard, root)| (owner.node, *shard, root))
        })
    };
    let Some(of) = of else {
        let rows: Vec<Value> = roots()
            .map(|(owner, shard, root)| {
                json!({
                    "owner": owner.0, "shard": shard.0, "lsn": root.lsn.0, "epoch": root.epoch.0,
                    "entries": root.entries, "pages": root.pages, "height": root.height(),
                    "at": root.page.map(|page| places(&page)),
                })
            })
            .collect();
        return Ok(json!({ "roots": rows }));
    };
    let at = location(of)?;
    for (owner, shard, root) in roots() {
        let tree = TreeId {
            fs: image.setup.fs,
            shard,
        };
        if let Some(reference) = root.page.and_then(|page| search(&held, tree, page, at)) {
            return Ok(page_to_json(&held, (owner, tree), &reference));
        }
    }
    let bytes = held.read(at, 1)?;
    let header = match bytes.iter().all(|byte| *byte == 0) {
        true => Value::Null,
        false => header_to_json(&bytes),
    };
    Ok(json!({
        "at": { "nsd": at.nsd.0, "sector": at.sector }, "is_in_use": false,
        "what": match &header {
            Value::Null => "all zeros: no tree has a page here",
            other if other["magic \"GTPG\""] == "GTPG" => "no tree has this page: it is one of an older checkpoint",
            _ => "no page of a tree",
        },
        "header": header,
    }))
}

fn location(of: &str) -> Result<Location> {
    let parse = || {
        let (nsd, sector) = of.split_once(':')?;
        let nsd = NsdId(nsd.trim_start_matches("nsd").parse().ok()?);
        let sector = sector.parse().ok()?;
        Some(Location { nsd, sector })
    };
    parse().ok_or_else(|| {
        Failure::new(format!("{of:?} is no place of a page"))
            .help("write NSD:SECTOR, such as 1:6400; without it the roots of all trees are shown")
    })
}

fn places(page: &PageRef) -> Value {
    let at = page.copies.iter();
    at.map(|at| json!({ "nsd": at.nsd.0, "sector": at.sector }))
        .collect()
}

/// The reference to the page that has a copy at `at`, below `page` or it. Leaves are not read.
fn search(held: &Held, tree: TreeId, page: PageRef, at: Location) -> Option<PageRef> {
    let mut left = vec![page];
    while let Some(page) = left.pop() {
        if page.copies.contains(&at) {
            return Some(page);
        }
        if page.level == 0 {
            continue;
        }
        let good = page.copies.iter().find_map(|copy| {
            let bytes = held.read(*copy, page.sectors.into()).ok()?;
            Page::verify(tree, &page, bytes.into()).ok()
        });
        // What lies below a page without a good copy belongs to no tree any more; fsck says so.
        if let Some(inner) = good {
            left.extend((0..inner.count()).map(|index| inner.child(index)));
        }
    }
    None
}

fn page_to_json(held: &Held, (owner, tree): (NodeId, TreeId), page: &PageRef) -> Value {
    let mut good = None;
    let mut copies = Vec::new();
    for at in page.copies.iter() {
        let state = match held.read(*at, page.sectors.into()) {
            Err(failure) => failure.what().to_owned(),
            Ok(bytes) => match Page::verify(tree, page, bytes.into()) {
                Ok(verified) => {
                    good = Some(verified);
                    "good".to_owned()
                }
                Err(fault) => format!("damaged: {fault}"),
            },
        };
        copies.push(json!({ "nsd": at.nsd.0, "sector": at.sector, "state": state }));
    }
    let mut value = json!({
        "is_in_use": true, "owner": owner.0, "shard": tree.shard.0, "level": page.level, "number": page.number,
        "sectors": page.sectors, "entry_count": page.count, "crc": format!("{:08x}", page.crc), "copies": copies,
        "lsn": null, "entries": null,
    });
    if let Some(page) = good {
        let entry = |index: usize| {
            let key: String = page
                .key(index)
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            match page.level() {
                0 => json!({ "key": key, "value_bytes": page.value(index).len() }),
                _ => json!({ "key": key, "child": places(&page.child(index)) }),
            }
        };
        value["lsn"] = json!(page.lsn().0);
        value["entries"] = (0..page.count().min(SHOWN_MAX)).map(entry).collect();
    }
    value
}

/// The fields of what may be a page's header, by the names of docs/disk-format.md.
fn header_to_json(bytes: &[u8]) -> Value {
    let field = |field: &Field| {
        let bytes = &bytes[field.offset..][..field.size];
        let number = bytes
            .iter()
            .rev()
            .fold(0_u128, |sum, byte| sum << 8 | u128::from(*byte));
        let value = match field.size {
            _ if field.offset == 0 => json!(text(bytes)),
            16 => json!(format!("{number:032x}")),
            _ => json!(u64::try_from(number).ok()),
        };
        (field.name.to_owned(), value)
    };
    Value::Object(PAGE_HEADER.iter().map(field).collect())
}

/// The record of the journal of each owner that a start would apply under `of`, an LSN; without, the last ones.
pub(crate) fn journal_record(state: PathBuf, of: Option<&str>) -> Result<Value> {
    let wanted = of.map(str::parse).transpose().map_err(|_| {
        Failure::new(format!("{:?} is no LSN", of.unwrap_or_default()))
            .help("give the number of a record; without it the last one of each owner is shown")
    })?;
    let mut findings = Findings::default();
    let held = Held::take(&[state], &mut findings)?;
    let mut nodes = held.view.owners.clone();
    nodes.sort_unstable();
    nodes.dedup();
    let mut journals = Vec::new();
    for node in nodes {
        journals.push(match held.area_of(node) {
            None => {
                json!({ "owner": node.0, "damage": "no label that is good names this journal" })
            }
            Some(area) => one_journal(&held, node, area, wanted)?,
        });
    }
    let is_there = journals.iter().any(|journal| !journal["parts"].is_null());
    if let (Some(lsn), false) = (wanted, is_there) {
        let ranges: Vec<String> = journals
            .iter()
            .map(|j| {
                format!(
                    "node {}: {} to {}",
                    j["owner"], j["first_lsn"], j["last_lsn"]
                )
            })
            .collect();
        let damage = journals.iter().find_map(|j| j["damage"].as_str());
        let why = damage.map_or_else(String::new, |damage| format!(" ({damage})"));
        return Err(
            Failure::new(format!("no journal would apply a record {lsn}{why}"))
                .help(format!("records are: {}", ranges.join("; "))),
        );
    }
    Ok(json!({ "journals": journals }))
}

fn one_journal(
    held: &Held,
    node: NodeId,
    area: node::store::format::Area,
    wanted: Option<u64>,
) -> Result<Value> {
    let mut recovery = Recovery::new(area, held.view.fs, node);
    let (mut first, mut last) = (None, Lsn(0));
    let mut parts: Vec<Value> = Vec::new();
    let mut damage: Option<RecoveryError> = None;
    while let Some(read) = recovery.next_read() {
        let bytes = held.read(read.at, read.count)?;
        let outcome = recovery.on_read(&bytes, &mut |part| {
            first.get_or_insert(part.lsn);
            if wanted.is_none() && part.lsn > last {
                parts.clear();
            }
            last = last.max(part.lsn);
            if wanted.is_none_or(|wanted| wanted == part.lsn.0) && parts.len() < SHOWN_MAX {
                let mut row = part_to_json(part.key, part.bytes);
                row["epoch"] = json!(part.epoch.0);
                row["is_snapshot"] = json!(part.is_snapshot);
                parts.push(row);
            }
            Ok(())
        });
        if let Err(error) = outcome {
            damage = Some(error);
            break;
        }
    }
    let lsn = wanted.unwrap_or(last.0);
    Ok(json!({
        "owner": node.0, "nsd": area.nsd.0, "first_lsn": first.map(|lsn| lsn.0), "last_lsn": last.0,
        "damage": damage.map(|error| error.to_string()),
        "lsn": lsn, "parts": if parts.is_empty() { Value::Null } else { Value::Array(parts) },
    }))
}

fn part_to_json(key: PartKey, bytes: &[u8]) -> Value {
    let mut reader = Reader::new(bytes);
    let (mut changes, mut damage) = (Vec::new(), None);
    while reader.remaining() > 0 && changes.len() < SHOWN_MAX {
        let change = match key {
            PartKey::Shard(_) => Mutation::decode(&mut reader).map(|m| format!("{m:?}")),
            PartKey::Space => SpaceRecord::decode(&mut reader).map(|m| format!("{m:?}")),
            PartKey::RegionTable => break,
        };
        match change {
            Ok(change) => changes.push(change),
            Err(error) => {
                damage = Some(error.to_string());
                break;
            }
        }
    }
    json!({ "key": format!("{key:?}"), "bytes": bytes.len(), "changes": changes, "damage": damage })
}

/// What cannot be read while disks of `place` are missing; none if all are there.
pub(crate) fn loss(place: &Place) -> Result<Option<Failure>> {
    let (held, image, paths, findings) = load(place.root().to_owned())?;
    let of_kind = |kind: Kind| findings.list().iter().filter(move |f| f.kind == kind);
    let missing: Vec<&str> = of_kind(Kind::NsdMissing).map(|f| f.text.as_str()).collect();
    if missing.is_empty() {
        return Ok(None);
    }
    let mut lost = Vec::new();
    for node in held
        .view
        .owners
        .iter()
        .collect::<std::collections::BTreeSet<_>>()
    {
        if held.area_of(*node).is_none() {
            lost.push(format!(
                "the journal of {node}, and with it all names and files of its shards"
            ));
        }
    }
    let partial = |shard: &ShardId| !image.is_whole(*shard);
    let broken = image.owners.iter().flat_map(|owner| owner.shards.keys());
    let broken = broken.filter(|shard| partial(shard)).count();
    if broken > 0 {
        lost.push(format!("names and files in {broken} damaged shards"));
    }
    let (mut files, mut bytes, mut named) = (0_u64, 0_u64, Vec::new());
    for seen in image.shards().flat_map(|shard| shard.inspect()) {
        let Some(map) = seen.map.filter(|_| seen.attr.kind == FileKind::File) else {
            continue;
        };
        let gone = |extent: &&types::Extent| {
            extent
                .locations
                .iter()
                .all(|at| held.disk(at.nsd).is_none())
        };
        let sectors: u64 = map
            .extents()
            .filter(gone)
            .map(|e| u64::from(e.length))
            .sum();
        if sectors > 0 {
            files += 1;
            bytes += sectors * SECTOR as u64;
            if named.len() < PATHS_SHOWN_MAX {
                let path = paths.of(&image, seen.attr.ino);
                named.push(path.unwrap_or_else(|| format!("inode {}", seen.attr.ino)));
            }
        }
    }
    if files > 0 {
        let more = if files > PATHS_SHOWN_MAX as u64 {
            ", ..."
        } else {
            ""
        };
        lost.push(format!(
            "{} of {files} files: {}{more}",
            size::show(bytes),
            named.join(", ")
        ));
    }
    if lost.is_empty() {
        lost.push("nothing: no file and no metadata lies there".to_owned());
    }
    Ok(Some(
        Failure::new(format!(
            "{}. Without it would be lost: {}",
            missing.join("; "),
            lost.join("; ")
        ))
        .help("bring the disk back, or correct its path in gupfs.toml: this version mounts with all disks only, and nothing was changed"),
    ))
}
