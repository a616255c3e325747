//! Repair, in memory: ordinary changes of the loaded shards, and space told anew from what files and trees have.
//!
//! Invariants
//! - Healthy inodes, names and bytes stay as they are.
//! - Nothing is repaired while something is lost that a copy from elsewhere could bring back (`Image::is_partial`): what follows from it would
//!   be taken for damage.
//! - What no name leads to gets one in `lost+found`, by its number. Nothing that has bytes is removed but what nobody has open and that has
//!   no name by its own count.
//!
//! Life cycle: `repair` -> `Image::check` says what is left -> the caller writes the owners as a start does, or nothing.

use std::collections::{BTreeMap, BTreeSet};

use ::data::sectors::SectorSet;
use ::data::space::{Levels, RegionId, RegionTable, Space, SpaceMutation, TableMutation};
use node::meta::acl::{self, Acl};
use node::meta::inode::{Dirent, InodeRecord};
use node::meta::shard::inspect::Seen;
use node::meta::{Mutation, Shard};
use types::attr::HAS_ACL;
use types::{
    Attr, FileKind, Grant, GrantId, InodeId, Layout, Name, NodeId, NodeLife, Run, ShardId,
    SmallBytes, Timestamp, limits,
};

use crate::finding::{Findings, Kind};
use crate::names::Paths;
use crate::{Image, Owner, names, sectors};

mod parts;

/// Where what no name leads to is named.
const LOST_AND_FOUND: &str = "lost+found";

/// Runs in one mutation.
const RUN_COUNT_MAX: usize = 4096;

/// Something is lost: see the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("something is lost that only a copy from elsewhere brings back: nothing was repaired")]
pub struct Partial;

/// Repairs what can be, of what `findings` names. `now` stamps what is made.
///
/// # Errors
/// Nothing was changed.
pub fn repair(image: &mut Image, findings: &Findings, now: Timestamp) -> Result<(), Partial> {
    if image.is_partial {
        return Err(Partial);
    }
    drop_trees(image, findings);
    parts::mend(image);
    mend_names(image);
    mend_inodes(image);
    break_cycles(image);
    adopt(image, now);
    mend_links(image);
    close_orphans(image);
    parts::mend(image);
    image.owners.iter_mut().for_each(tell_space);
    tell_table(image);
    Ok(())
}

/// The owner whose this is, and the shard.
fn shard_of(image: &mut Image, id: ShardId) -> Option<&mut Shard> {
    let mut owners = image.owners.iter_mut();
    owners.find_map(|owner| owner.shards.get_mut(&id))
}

fn apply(image: &mut Image, shard: ShardId, mutation: &Mutation) {
    if let Some(shard) = shard_of(image, shard)
        && shard.fits(mutation).is_ok()
    {
        shard.apply(mutation);
    }
}

/// Shards whose trees have a bad copy, a wrong count or a page in the wrong place: all they hold goes to the journal, and the next
/// checkpoint writes a new tree.
fn drop_trees(image: &mut Image, findings: &Findings) {
    let kinds = [
        Kind::TreePageCopy,
        Kind::TreePageUnreadable,
        Kind::TreeEntryCount,
        Kind::TreePageCount,
        Kind::PagePlace,
    ];
    let named: BTreeSet<ShardId> = kinds
        .iter()
        .flat_map(|kind| findings.trees(*kind))
        .collect();
    for owner in &mut image.owners {
        for id in named.iter().copied() {
            if owner.roots.remove(&id).is_none() {
                continue;
            }
            owner.pages.retain(|claim| claim.page_of != Some(id));
            if let Some(shard) = owner.shards.get_mut(&id) {
                shard.track();
            }
        }
    }
}

/// Who holds `name` in a directory, or will when it is put there.
fn holder_of(image: &Image, directory: InodeId, name: &Name) -> InodeId {
    let cookie = |shard: &Shard| shard.hash_key().first_cookie(name.bytes());
    let part = || {
        let cookie = cookie(image.shard(directory.shard())?);
        let parts = image.seen(directory)?.parts?;
        parts.range(..=cookie).next_back().map(|(_, part)| *part)
    };
    part().unwrap_or(directory)
}

/// Names that lead nowhere, to the root, to another kind, lie under a wrong cookie, or come twice.
fn mend_names(image: &mut Image) {
    let mut all: Vec<(ShardId, Mutation)> = Vec::new();
    for shard in image.shards() {
        for seen in shard.inspect().filter(|seen| seen.entries.is_some()) {
            let mut names: BTreeSet<&Name> = BTreeSet::new();
            for (holder, cookie, entry) in image.entries(&seen) {
                let directory = holder.index();
                let remove = Mutation::EntryRemove { directory, cookie };
                let target = image.seen(entry.ino).filter(|_| entry.ino != InodeId::ROOT);
                // A name that comes twice goes; its inode keeps its other names, or is found without one.
                let Some(target) = target.filter(|_| names.insert(&entry.name)) else {
                    all.push((holder.shard(), remove));
                    continue;
                };
                let kind = target.attr.kind;
                let right = holder_of(image, seen.attr.ino, &entry.name);
                let place = match shard.is_cookie_of(&entry.name, cookie) {
                    true => cookie,
                    false => match free_cookie(image, right, &entry.name) {
                        Some(place) => place,
                        None => {
                            all.push((holder.shard(), remove));
                            continue;
                        }
                    },
                };
                if place != cookie {
                    all.push((holder.shard(), remove));
                }
                if place != cookie || kind != entry.kind {
                    let put = Mutation::EntryPut {
                        directory: right.index(),
                        cookie: place,
                        name: entry.name.clone(),
                        ino: entry.ino,
                        kind,
                    };
                    all.push((right.shard(), put));
                }
            }
        }
    }
    keep_one_name(image, &mut all);
    for (shard, mutation) in all {
        apply(image, shard, &mutation);
    }
}

/// See `Shard::free_cookie`.
fn free_cookie(image: &Image, holder: InodeId, name: &Name) -> Option<u64> {
    image.shard(holder.shard())?.free_cookie(holder, name)
}

/// A directory with two names keeps the one in the directory that it takes for its parent, else the first.
fn keep_one_name(image: &Image, all: &mut Vec<(ShardId, Mutation)>) {
    // Of each: in which directory, who holds it, under which cookie.
    let mut names: BTreeMap<InodeId, Vec<(InodeId, InodeId, u64)>> = BTreeMap::new();
    for seen in image.shards().flat_map(|shard| shard.inspect()) {
        for (holder, cookie, entry) in image.entries(&seen) {
            let is_directory = image
                .seen(entry.ino)
                .is_some_and(|seen| seen.entries.is_some());
            if is_directory && entry.ino != InodeId::ROOT {
                names
                    .entry(entry.ino)
                    .or_default()
                    .push((seen.attr.ino, holder, cookie));
            }
        }
    }
    for (ino, places) in names.into_iter().filter(|(_, places)| places.len() > 1) {
        let parent = image.seen(ino).and_then(|seen| seen.parent);
        let kept = places
            .iter()
            .position(|(directory, ..)| Some(*directory) == parent);
        for (at, (_, holder, cookie)) in places.iter().enumerate() {
            if at != kept.unwrap_or(0) {
                let (directory, shard, cookie) = (holder.index(), holder.shard(), *cookie);
                all.push((shard, Mutation::EntryRemove { directory, cookie }));
            }
        }
    }
}

/// Attributes, extended attributes and maps.
fn mend_inodes(image: &mut Image) {
    let mut all: Vec<(ShardId, Mutation)> = Vec::new();
    for shard in image.shards() {
        let id = shard.id();
        for seen in shard.inspect() {
            let index = seen.attr.ino.index();
            let mut attr = *seen.attr;
            let mut has_list = false;
            for (name, value) in seen.xattrs {
                let is_name = (1..=255).contains(&name.len()) && !name.contains(&0);
                let is_value = value.len() <= limits::SMALL_BYTES_MAX;
                let list = acl::is_acl(name).then(|| Acl::parse(value));
                if !is_name || !is_value || matches!(list, Some(Err(_))) {
                    let name = name.clone();
                    all.push((id, Mutation::XattrRemove { index, name }));
                    continue;
                }
                if let Some(Ok(list)) = list {
                    has_list = true;
                    if name[..] == *acl::ACCESS {
                        attr.permissions = attr.permissions & !0o777 | list.mode();
                    }
                }
            }
            mend_attr(image, &mut attr, &seen);
            attr.permissions = attr.permissions & 0o7777 | if has_list { HAS_ACL } else { 0 };
            if attr != *seen.attr {
                all.push((id, Mutation::AttrPut { index, attr }));
            }
            if attr.kind == FileKind::File {
                mend_map(id, &attr, &seen, &mut all);
            }
            if index >= shard.next_index() {
                all.push((id, Mutation::NextIndex { index: index + 1 }));
            }
        }
        for (ino, life) in shard.opens().filter(|(ino, _)| shard.seen(*ino).is_none()) {
            let (index, is_open) = (ino.index(), false);
            all.push((
                id,
                Mutation::OpenPut {
                    index,
                    life,
                    is_open,
                },
            ));
        }
    }
    for (shard, mutation) in all {
        apply(image, shard, &mutation);
    }
}

fn mend_attr(image: &Image, attr: &mut Attr, seen: &Seen<'_>) {
    for time in [
        &mut attr.atime,
        &mut attr.mtime,
        &mut attr.ctime,
        &mut attr.btime,
    ] {
        time.nanos = time.nanos.min(999_999_999);
    }
    if !matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice) {
        attr.rdev = 0;
    }
    if attr
        .layout
        .nsds()
        .iter()
        .any(|nsd| image.setup.nsd(*nsd).is_none())
    {
        attr.layout = Layout::default();
    }
    if attr.size > limits::FILE_SIZE_MAX {
        let extents = seen.map.and_then(|map| map.extents().last());
        let pieces = seen.map.and_then(|map| map.pieces().last());
        let extents = extents.map_or(0, |extent| extent.file_sector_end() * types::SECTOR_SIZE);
        attr.size = extents.max(pieces.map_or(0, |piece| piece.end()));
    }
    if let Some(target) = seen.target {
        attr.size = target.len() as u64;
    }
}

fn mend_map(shard: ShardId, attr: &Attr, seen: &Seen<'_>, all: &mut Vec<(ShardId, Mutation)>) {
    let index = attr.ino.index();
    let end = attr.size.div_ceil(types::SECTOR_SIZE);
    let map = seen.map;
    let extents = map.and_then(|map| map.extents().last());
    let pieces = map.and_then(|map| map.pieces().last());
    let extents = extents.map_or(0, |extent| extent.file_sector_end());
    let pieces = pieces.map_or(0, |piece| piece.end().div_ceil(types::SECTOR_SIZE));
    if extents.max(pieces) > end {
        let size = attr.size;
        all.push((shard, Mutation::MapCut { index, size }));
    }
    // The count of sectors follows from the map.
    if attr.sector_count != map.map_or(0, |map| map.sector_count()) {
        let version = map.map_or(0, |map| map.version());
        let (extents, pieces) = (Vec::new(), Vec::new());
        all.push((
            shard,
            Mutation::MapLoad {
                index,
                version,
                extents,
                pieces,
            },
        ));
    }
}

/// All of it: what is repaired must not depend on how many findings are shown.
fn look(image: &Image) -> (Findings, Paths) {
    let mut findings = Findings::complete();
    let paths = names::check(image, &mut findings);
    (findings, paths)
}

/// Of each cycle one directory loses its name there, and is adopted then.
fn break_cycles(image: &mut Image) {
    let (findings, paths) = look(image);
    let cycles = findings
        .list()
        .iter()
        .filter(|f| f.kind == Kind::DirectoryCycle);
    let cut: Vec<(InodeId, u64)> = cycles
        .filter_map(|finding| paths.place(finding.ino?))
        .collect();
    for (holder, cookie) in cut {
        let (shard, directory) = (holder.shard(), holder.index());
        apply(image, shard, &Mutation::EntryRemove { directory, cookie });
    }
}

/// What no name leads to gets one in `lost+found`.
fn adopt(image: &mut Image, now: Timestamp) {
    // An orphan with names of its own is no orphan.
    let full = |seen: &Seen<'_>| image.entries(seen).next().is_some();
    let mut orphans: Vec<Attr> = Vec::new();
    for seen in image.shards().flat_map(|shard| shard.inspect()) {
        if seen.attr.nlink == 0 && full(&seen) && seen.attr.ino != InodeId::ROOT {
            orphans.push(*seen.attr);
        }
    }
    for attr in orphans {
        let attr = Attr { nlink: 2, ..attr };
        let index = attr.ino.index();
        apply(image, attr.ino.shard(), &Mutation::AttrPut { index, attr });
    }
    let (findings, _) = look(image);
    let found = findings.list().iter().filter(|f| f.kind == Kind::Nameless);
    let lost: Vec<InodeId> = found.filter_map(|finding| finding.ino).collect();
    if lost.is_empty() {
        return;
    }
    let Some(parent) = lost_and_found(image, now) else {
        return;
    };
    for ino in lost {
        let Some(kind) = image.seen(ino).map(|seen| seen.attr.kind) else {
            continue;
        };
        let text = format!("#{ino}");
        put_name(image, parent, &text, (ino, kind));
        if kind == FileKind::Directory {
            let index = ino.index();
            apply(image, ino.shard(), &Mutation::ParentPut { index, parent });
        }
    }
}

fn put_name(image: &mut Image, parent: InodeId, text: &str, (ino, kind): (InodeId, FileKind)) {
    let Some(name) = Name::new(text.as_bytes()) else {
        return;
    };
    let holder = holder_of(image, parent, &name);
    let Some(cookie) = free_cookie(image, holder, &name) else {
        return;
    };
    let directory = holder.index();
    let put = Mutation::EntryPut {
        directory,
        cookie,
        name,
        ino,
        kind,
    };
    apply(image, holder.shard(), &put);
}

/// `/lost+found`, or `/lost+found.1` and so on where that name is something else's; made if there is none. `None`: there is no root.
fn lost_and_found(image: &mut Image, now: Timestamp) -> Option<InodeId> {
    let root = image.seen(InodeId::ROOT)?;
    let entries = image.entries(&root);
    let taken: BTreeMap<&[u8], InodeId> = entries
        .map(|(.., entry)| (entry.name.bytes(), entry.ino))
        .filter(|(name, _)| name.starts_with(LOST_AND_FOUND.as_bytes()))
        .collect();
    let names = (1u64..).map(|n| format!("{LOST_AND_FOUND}.{n}"));
    let mut free = None;
    for name in std::iter::once(LOST_AND_FOUND.to_owned()).chain(names) {
        let Some(ino) = taken.get(name.as_bytes()) else {
            free = Some(name);
            break;
        };
        if image.seen(*ino).is_some_and(|seen| seen.entries.is_some()) {
            return Some(*ino);
        }
    }
    let name = free?;
    let root = *root.attr;
    let shard = shard_of(image, InodeId::ROOT.shard())?;
    let ino = shard.reserve_index();
    let attr = Attr::new(ino, root.generation, FileKind::Directory, 0o700, now);
    let record = InodeRecord {
        attr,
        parent: InodeId::ROOT,
        target: SmallBytes::default(),
    };
    apply(image, ino.shard(), &Mutation::InodePut { record });
    put_name(image, InodeId::ROOT, &name, (ino, FileKind::Directory));
    Some(ino)
}

/// Counts and parents as the names say.
fn mend_links(image: &mut Image) {
    let (findings, paths) = look(image);
    let mut all: Vec<(ShardId, Mutation)> = Vec::new();
    for finding in findings.list() {
        let Some(seen) = finding.ino.and_then(|ino| image.seen(ino)) else {
            continue;
        };
        let ino = seen.attr.ino;
        let index = ino.index();
        if finding.kind == Kind::OrphanNamed
            && seen.entries.is_some()
            && let Some(parent) = paths.directory(ino)
            && seen.parent != Some(parent)
        {
            all.push((ino.shard(), Mutation::ParentPut { index, parent }));
        }
        let nlink = match finding.kind {
            Kind::LinkCount | Kind::DirectoryLinks | Kind::OrphanNamed => {
                let is_directory = |entry: &Dirent| {
                    image
                        .seen(entry.ino)
                        .is_some_and(|seen| seen.entries.is_some())
                };
                match seen.entries {
                    Some(_) => {
                        let entries = image.entries(&seen);
                        2 + entries.filter(|(.., entry)| is_directory(entry)).count()
                    }
                    None => paths.count(ino) as usize,
                }
            }
            Kind::DirectoryParent => {
                if let Some(parent) = paths.directory(ino) {
                    all.push((ino.shard(), Mutation::ParentPut { index, parent }));
                }
                continue;
            }
            _ => continue,
        };
        let nlink = u32::try_from(nlink).unwrap_or(u32::MAX);
        let attr = Attr {
            nlink,
            ..*seen.attr
        };
        all.push((ino.shard(), Mutation::AttrPut { index, attr }));
    }
    for (shard, mutation) in all {
        apply(image, shard, &mutation);
    }
}

/// Inodes that count no names, have none, and that nobody has open go.
fn close_orphans(image: &mut Image) {
    let (findings, _) = look(image);
    let closed = findings
        .list()
        .iter()
        .filter(|f| f.kind == Kind::OrphanClosed);
    let closed: Vec<InodeId> = closed.filter_map(|finding| finding.ino).collect();
    for ino in closed {
        let index = ino.index();
        apply(image, ino.shard(), &Mutation::InodeRemove { index });
    }
}

/// The space of an owner from its regions, what its files and trees have, and what lives hold beside that.
fn tell_space(owner: &mut Owner) {
    let old = &owner.space;
    let mut new = Space::new(&old.geometries(), Levels { reserve: 0, low: 0 });
    let (mut files, mut pages) = (SectorSet::new(), SectorSet::new());
    for claim in sectors::claims(owner) {
        let set = match claim.page_of {
            Some(_) => &mut pages,
            None => &mut files,
        };
        for part in sectors::missing(set, claim.run) {
            set.insert(part);
        }
    }
    let mut all: Vec<SpaceMutation> = Vec::new();
    let page_regions: BTreeSet<RegionId> = old.pages().region_ids().collect();
    for region in old.held_regions() {
        all.push(SpaceMutation::RegionTaken { region });
        let Some(place) = old.region_place(region) else {
            continue;
        };
        let is_of_pages = page_regions.contains(&region);
        if is_of_pages {
            all.push(SpaceMutation::RegionForPages { region });
        }
        let own = if is_of_pages { &pages } else { &files };
        for runs in own.intersection(place).chunks(RUN_COUNT_MAX) {
            let runs = runs.to_vec();
            all.push(match is_of_pages {
                true => SpaceMutation::PagesUsed { runs },
                false => SpaceMutation::Used { runs },
            });
        }
    }
    let mut grant = |life: NodeLife, run: Run| {
        for run in sectors::missing(&files, run) {
            let (id, mac) = (GrantId(0), 0);
            let grant = Grant { id, run, mac };
            all.push(SpaceMutation::Granted { life, grant });
        }
    };
    let lives = old.lives();
    for (life, _) in lives.granted {
        old.granted_to(life).for_each(|run| grant(life, run));
    }
    for (life, _) in &lives.quarantined {
        old.quarantined_of(*life).for_each(|run| grant(*life, run));
    }
    let lost = lives.quarantined.into_iter();
    all.extend(lost.map(|(life, _)| SpaceMutation::NodeLost { life }));
    for mutation in all {
        // What does not fit lies where no region is, or is used twice: findings of their own, which the look after the repair
        // has again.
        let _ = new.apply(&mutation);
    }
    owner.space = new;
    owner.is_space_partial = false;
}

/// The region table from what owners hold, and what it says beside that of regions and owners that there are.
fn tell_table(image: &mut Image) {
    let mut holders: BTreeMap<RegionId, NodeId> = BTreeMap::new();
    for owner in &image.owners {
        for region in owner.space.held_regions() {
            holders.entry(region).or_insert(owner.node);
        }
    }
    let setup = &image.setup;
    let exists = |region: RegionId| {
        let nsd = setup.nsd(region.nsd);
        nsd.is_some_and(|nsd| nsd.region(region.index).is_some())
    };
    for owner in &mut image.owners {
        let Some(old) = &owner.table else { continue };
        for (region, node) in old.holders() {
            if exists(region) && setup.owners.contains(&node) {
                holders.entry(region).or_insert(node);
            }
        }
        let mut table = RegionTable::new(&setup.geometry);
        for (region, owner) in &holders {
            let (region, owner) = (*region, *owner);
            table.apply(&TableMutation::Taken { region, owner });
        }
        owner.table = Some(table);
    }
}
