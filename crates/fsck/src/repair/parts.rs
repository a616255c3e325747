//! Directories in parts: what is sound stays where it is, and only what lies in a wrong place moves.
//!
//! A directory may have a million names, and what a repair changes has to fit into half a journal. So a table is mended against the
//! parts that there are, and names move that no other way leads to:
//!
//! | the table names | the part | then |
//! |---|---|---|
//! | it, once or more | is there, of this directory and owner, has names | it stays, in the place that its first name says |
//! | it | anything else | its place goes |
//! | nothing of it | is there, and its names fit between others' | it gets a place |
//! | nothing of it | anything else | its names go to their holders, and it goes |
//!
//! Names outside of their holder's range move, and what is without names then goes. What is a part of no directory goes; the inodes
//! that it names are found without names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use node::meta::Mutation;
use node::meta::inode::Dirent;
use node::meta::name_hash::TIE_BITS;
use types::{InodeId, ShardId};

use super::{apply, free_cookie, holder_of};
use crate::{Image, Names};

/// The parts of a directory by the first cookie of their ranges.
type Table = BTreeMap<u64, InodeId>;

/// See the module.
pub(super) fn mend(image: &mut Image) {
    let mut claims: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
    for shard in image.shards() {
        for seen in shard.inspect().filter(|seen| seen.parts.is_some()) {
            claims.entry(seen.attr.ino).or_default();
        }
        for part in shard.inspect_parts() {
            claims.entry(part.directory).or_default().push(part.ino);
        }
    }
    for (directory, parts) in claims {
        mend_directory(image, directory, &parts);
    }
}

fn mend_directory(image: &mut Image, directory: InodeId, claims: &[InodeId]) {
    let seen = image.seen(directory).filter(|seen| seen.entries.is_some());
    let Some(seen) = seen else {
        for part in claims {
            take_all(image, *part);
            remove(image, *part);
        }
        return;
    };
    let old: Table = seen.parts.cloned().unwrap_or_default();
    let new = mended(image, directory, &old, claims);
    let home = directory.shard();
    let index = directory.index();
    for (begin, part) in &old {
        if new.get(begin) != Some(part) {
            let (directory, begin) = (index, *begin);
            apply(image, home, &Mutation::PartRemove { directory, begin });
        }
    }
    for (begin, part) in &new {
        if old.get(begin) != Some(part) {
            put_place(image, directory, *begin, *part);
        }
    }
    let kept: BTreeSet<InodeId> = new.values().copied().collect();
    let mut moving: Vec<(u64, Dirent)> = Vec::new();
    for part in claims.iter().filter(|part| !kept.contains(part)) {
        moving.extend(take_all(image, *part));
        remove(image, *part);
    }
    for (holder, range) in ranges(directory, &new) {
        moving.extend(take_outside(image, holder, &range));
    }
    for (cookie, entry) in moving {
        put_back(image, directory, cookie, entry);
    }
    for (begin, part) in new {
        if names_of(image, part).is_some_and(Names::is_empty) {
            let directory = index;
            apply(image, home, &Mutation::PartRemove { directory, begin });
            remove(image, part);
        }
    }
}

/// The table as it should be.
fn mended(image: &Image, directory: InodeId, old: &Table, claims: &[InodeId]) -> Table {
    let owner = |ino: InodeId| image.setup.owners.get(usize::from(ino.shard().0));
    // The first and last cookie of each sound part.
    let sound: BTreeMap<InodeId, (u64, u64)> = claims
        .iter()
        .filter(|part| owner(**part) == owner(directory))
        .filter_map(|part| {
            let names = names_of(image, *part)?;
            let (first, last) = (names.keys().next()?, names.keys().next_back()?);
            Some((*part, (*first, *last)))
        })
        .collect();
    let mut new = Table::new();
    let mut places_of: BTreeMap<InodeId, Vec<u64>> = BTreeMap::new();
    for (begin, part) in old {
        places_of.entry(*part).or_default().push(*begin);
    }
    let mut placed: BTreeSet<InodeId> = BTreeSet::new();
    for (part, (first, _)) in &sound {
        let places = places_of.get(part).map_or(&[][..], Vec::as_slice);
        let right = places.iter().rev().find(|begin| *begin <= first);
        if let Some(begin) = right.or(places.first()) {
            new.insert(*begin, *part);
            placed.insert(*part);
        }
    }
    for (part, (first, last)) in &sound {
        let begin = first >> TIE_BITS << TIE_BITS;
        let is_placed = placed.contains(part) || new.contains_key(&begin);
        let end = new.range(begin..).next().map_or(u64::MAX, |(end, _)| *end);
        let before = new.range(..begin).next_back();
        let before = before.map_or(directory, |(_, part)| *part);
        let is_between =
            names_of(image, before).is_none_or(|names| names.range(begin..end).next().is_none());
        if !is_placed && *last < end && is_between {
            new.insert(begin, *part);
        }
    }
    new
}

/// The ranges of a directory's holders, itself first.
fn ranges(directory: InodeId, table: &Table) -> Vec<(InodeId, Range<u64>)> {
    let begins = std::iter::once(0).chain(table.keys().copied());
    let ends = table.keys().copied().chain([u64::MAX]);
    let holders = std::iter::once(directory).chain(table.values().copied());
    holders
        .zip(begins.zip(ends).map(|(begin, end)| begin..end))
        .collect()
}

/// The names that a directory or a part holds itself.
fn names_of(image: &Image, holder: InodeId) -> Option<&Names> {
    let shard = image.shard(holder.shard())?;
    match shard.seen_part(holder) {
        Some(part) => Some(part.entries),
        None => shard.seen(holder)?.entries,
    }
}

fn take_all(image: &mut Image, holder: InodeId) -> Vec<(u64, Dirent)> {
    take_outside(image, holder, &(0..0))
}

/// Takes the names out that are not in the range.
fn take_outside(image: &mut Image, holder: InodeId, range: &Range<u64>) -> Vec<(u64, Dirent)> {
    let names = names_of(image, holder).into_iter().flatten();
    let outside = names.filter(|(cookie, _)| !range.contains(cookie));
    let outside: Vec<(u64, Dirent)> = outside.map(|(at, entry)| (*at, entry.clone())).collect();
    for (cookie, _) in &outside {
        let (directory, cookie) = (holder.index(), *cookie);
        let remove = Mutation::EntryRemove { directory, cookie };
        apply(image, holder.shard(), &remove);
    }
    outside
}

fn remove(image: &mut Image, part: InodeId) {
    let index = part.index();
    apply(image, part.shard(), &Mutation::InodeRemove { index });
}

fn put_place(image: &mut Image, directory: InodeId, begin: u64, part: InodeId) {
    let (home, directory): (ShardId, u64) = (directory.shard(), directory.index());
    let put = Mutation::PartPut {
        directory,
        begin,
        part,
    };
    apply(image, home, &put);
}

/// Gives a directory a name back, under its cookie if that is the name's and free. One that is there already goes: its inode keeps its
/// other names, or is found without one.
fn put_back(image: &mut Image, directory: InodeId, cookie: u64, entry: Dirent) {
    let holder = holder_of(image, directory, &entry.name);
    let Some(free) = free_cookie(image, holder, &entry.name) else {
        return;
    };
    let is_own = image
        .shard(directory.shard())
        .is_some_and(|shard| shard.is_cookie_of(&entry.name, cookie));
    let is_free = names_of(image, holder).is_some_and(|names| !names.contains_key(&cookie));
    let put = Mutation::EntryPut {
        directory: holder.index(),
        cookie: if is_own && is_free { cookie } else { free },
        name: entry.name,
        ino: entry.ino,
        kind: entry.kind,
    };
    apply(image, holder.shard(), &put);
}
