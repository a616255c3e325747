//! Directories in parts: the table of each directory against the parts that there are.
//!
//! Invariant: where a shard is not whole, nothing is concluded from what it lacks.

use std::ops::Range;

use rustc_hash::FxHashSet;
use types::InodeId;

use node::meta::shard::inspect::Seen;

use crate::finding::{Findings, Kind};
use crate::{Image, Names};

/// See the module.
pub fn check(image: &Image, findings: &mut Findings) {
    let mut named: FxHashSet<InodeId> = FxHashSet::default();
    for shard in image.shards() {
        for seen in shard.inspect().filter(|seen| seen.parts.is_some()) {
            check_table(image, &seen, &mut named, findings);
        }
    }
    for shard in image.shards() {
        for part in shard.inspect_parts() {
            let (ino, directory) = (part.ino, part.directory);
            let text = format!("part {ino} of directory {directory}");
            if !named.contains(&ino) && image.is_whole(directory.shard()) {
                findings.of_name(Kind::PartUnnamed, (directory, ino), text);
            } else if part.entries.is_empty() {
                findings.of_name(Kind::PartEmpty, (directory, ino), text);
            }
        }
    }
}

fn check_table(
    image: &Image,
    seen: &Seen<'_>,
    named: &mut FxHashSet<InodeId>,
    findings: &mut Findings,
) {
    let directory = seen.attr.ino;
    let owner = |ino: InodeId| image.setup.owners.get(usize::from(ino.shard().0));
    let begins: Vec<u64> = seen.parts.into_iter().flatten().map(|(b, _)| *b).collect();
    let first = begins.first().copied().unwrap_or(u64::MAX);
    if let Some(names) = seen.entries {
        check_range((directory, directory), names, 0..first, findings);
    }
    for (at, (begin, ino)) in seen.parts.into_iter().flatten().enumerate() {
        let end = begins.get(at + 1).copied().unwrap_or(u64::MAX);
        let shard = image.shard(ino.shard());
        let part = shard.and_then(|shard| shard.seen_part(*ino));
        let text = format!("part {ino} of directory {directory}, from {begin:x} on");
        match part.filter(|part| part.directory == directory) {
            None if part.is_some() || owner(*ino).is_none() || image.is_whole(ino.shard()) => {
                findings.of_name(Kind::PartMissing, (directory, *ino), text);
            }
            None => {}
            Some(part) => {
                named.insert(*ino);
                if owner(*ino) != owner(directory) {
                    findings.of_name(Kind::PartForeign, (directory, *ino), text);
                }
                check_range((directory, *ino), part.entries, *begin..end, findings);
            }
        }
    }
}

fn check_range(
    (directory, holder): (InodeId, InodeId),
    names: &Names,
    range: Range<u64>,
    findings: &mut Findings,
) {
    if let Some(outside) = names.keys().find(|at| !range.contains(at)) {
        let text = format!("{outside:x} in {holder} of directory {directory}");
        findings.of_name(Kind::PartRange, (directory, holder), text);
    }
}
