//! How much an operation frees at the most: asked before it is executed, so that its record has room in the journal.

use types::{Extent, InodeId, Name, SECTOR_SIZE, limits};

use crate::map::FileMap;
use crate::message::Op;
use crate::step::Step;
use crate::transaction::{Envelope, TransactionMessage};
use crate::view::View;

/// Runs that executing `op` frees at the most. Of shards that are not locked nothing is known: with these an
/// operation is not executed, or is another owner's.
pub fn freed_at_most(view: &View<'_>, op: &Op) -> usize {
    match op {
        Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. } => {
            named_at_most(view, *parent, name)
        }
        Op::Rename {
            new_parent,
            new_name,
            ..
        } => named_at_most(view, *new_parent, new_name),
        // What lies in the inode or in pieces is no run, and is given back as well.
        Op::SetAttr { ino, set, .. } => set.size.map_or(0, |size| {
            let shard = view.shard(ino.shard());
            let attr = shard.and_then(|shard| shard.attr(*ino));
            let is_cut = attr.is_some_and(|attr| attr.size > size);
            behind(view, *ino, size).max(usize::from(is_cut))
        }),
        Op::Punch {
            ino, begin, end, ..
        } => map_of(view, *ino).map_or(0, |map| map.run_count_within(*begin, *end)),
        // Only what has no name goes with the last close.
        Op::Closed { ino, .. } => match view.shard(ino.shard()) {
            Some(shard) if shard.is_orphan(*ino) => dropped_at_most(view, *ino),
            _ => 0,
        },
        Op::Commit(commit) => {
            // A piece that fills a sector frees what lay there.
            let of_pieces = commit.pieces.iter();
            let of_pieces = of_pieces.map(|p| p.bytes.len() as u64 / SECTOR_SIZE + 2);
            within(
                view,
                commit.ino,
                sectors_of(&commit.extents) + of_pieces.sum::<u64>(),
            )
        }
        Op::Destage { ino, extents, .. } => within(view, *ino, sectors_of(extents)),
        _ => 0,
    }
}

/// Runs that what follows `envelope` frees at the most.
pub fn envelope_frees_at_most(view: &View<'_>, envelope: &Envelope) -> usize {
    let Some(shard) = view.shard(envelope.to) else {
        return 0;
    };
    let steps = match &envelope.message {
        TransactionMessage::Commit => shard.prepared.get(&envelope.id).map(|p| &p.steps),
        TransactionMessage::Voted(_) => shard.active.get(&envelope.id).map(|a| &a.plan.local),
        _ => None,
    };
    let dropped = steps.into_iter().flatten().filter_map(|step| match step {
        Step::LinkDrop { ino, .. } => Some(dropped_at_most(view, *ino)),
        _ => None,
    });
    dropped.sum()
}

fn sectors_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|e| u64::from(e.length)).sum()
}

fn map_of<'a>(view: &'a View<'_>, ino: InodeId) -> Option<&'a FileMap> {
    view.shard(ino.shard())?.inode(ino)?.map()
}

fn named_at_most(view: &View<'_>, directory: InodeId, name: &Name) -> usize {
    let entry = view.entry(directory, name).ok().flatten();
    entry.map_or(0, |(_, entry)| dropped_at_most(view, entry.ino))
}

/// Runs of a file that is about to lose a name or an opener: all of them, when it has no other name.
fn dropped_at_most(view: &View<'_>, ino: InodeId) -> usize {
    let shard = view.shard(ino.shard());
    match shard.and_then(|shard| shard.attr(ino)) {
        Some(attr) if attr.nlink <= 1 => map_of(view, ino).map_or(0, |map| map.run_count_behind(0)),
        _ => 0,
    }
}

fn behind(view: &View<'_>, ino: InodeId, size: u64) -> usize {
    map_of(view, ino).map_or(0, |map| map.run_count_behind(size / SECTOR_SIZE))
}

/// Runs under so many sectors.
fn within(view: &View<'_>, ino: InodeId, sectors: u64) -> usize {
    let sectors = usize::try_from(sectors).unwrap_or(usize::MAX);
    let extents = map_of(view, ino).map_or(0, FileMap::extent_count);
    sectors.min(extents) * limits::REPLICA_COUNT_MAX
}
