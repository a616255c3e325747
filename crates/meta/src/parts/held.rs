//! Parts whose names a transaction under way holds stay in memory.
//!
//! Invariants
//! - From its begin or prepare on to its end, the parts of a transaction's names are pinned: what is decided never waits for a page
//!   that cannot be read.
//! - They are the same at its end: while a directory is held, none of its names moves.

use types::{InodeId, ShardId};

use super::known_part;
use crate::locks::held;
use crate::shard::Shard;
use crate::step::Step;
use crate::transaction::TransactionId;
use crate::view::View;

const LOCKED: &str = "the caller locked the steps' shards";

/// The transaction holds its steps on `shard` from now on; the shards of their names' parts are locked.
pub(crate) fn hold(view: &mut View<'_>, shard: ShardId, id: TransactionId, steps: &[Step]) {
    let of_shard = steps.iter().filter(|step| step.shard() == shard).map(held);
    let parts = of_shard.filter_map(|(directory, name)| known_part(view, directory, name?));
    // One in a shard of another owner is damage, and makes the check of its step fail.
    let mut parts: Vec<InodeId> = parts
        .filter(|part| view.shard(part.shard()).is_some())
        .collect();
    parts.sort_unstable();
    parts.dedup();
    if parts.is_empty() {
        return;
    }
    for part in &parts {
        view.shard_mut(part.shard()).expect("just seen").pin(*part);
    }
    let held_parts = &mut view.shard_mut(shard).expect(LOCKED).held_parts;
    let old = held_parts.insert(id, parts);
    assert!(old.is_none(), "a transaction takes what it needs once");
}

/// What is prepared in these shards, all of an owner, holds its parts from now on: after a replay, before anything may leave memory.
/// What was prepared since the replay holds them already.
pub fn hold_prepared(view: &mut View<'_>) {
    let shards: Vec<ShardId> = view.own_shards().collect();
    for id in shards {
        let shard = view.shard(id).expect("the caller locked all of them");
        let prepared: Vec<_> = shard
            .prepared
            .iter()
            .filter(|(id, _)| !shard.held_parts.contains_key(id))
            .map(|(id, p)| (*id, p.steps.clone()))
            .collect();
        for (transaction, steps) in prepared {
            hold(view, id, transaction, &steps);
        }
    }
}

/// Parts, in any shard, of the names that transactions prepared in this one hold: what `hold_prepared` pins, and what must be resident
/// then. The directories themselves are (`Mutation::needs`).
pub fn parts_of_prepared(shard: &Shard) -> Vec<InodeId> {
    let steps = shard.prepared.values().flat_map(|p| &p.steps);
    let own = steps.filter(|step| step.shard() == shard.id()).map(held);
    let parts = own.filter_map(|(directory, name)| {
        let inode = shard.peek(directory)?;
        inode.parts()?;
        inode.part_of(shard.hash_key().first_cookie(name?.bytes()))
    });
    let mut parts: Vec<InodeId> = parts.collect();
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Shards that must be locked before `let_go`, beside `shard` itself.
pub(crate) fn lacking(view: &View<'_>, shard: ShardId, id: TransactionId) -> Vec<ShardId> {
    let parts = view
        .shard(shard)
        .and_then(|shard| shard.held_parts.get(&id));
    let shards = parts.into_iter().flatten().map(|part| part.shard());
    shards
        .filter(|shard| view.shard(*shard).is_none())
        .collect()
}

/// The transaction is over on `shard`.
pub(crate) fn let_go(view: &mut View<'_>, shard: ShardId, id: TransactionId) {
    let held_parts = &mut view.shard_mut(shard).expect(LOCKED).held_parts;
    for part in held_parts.remove(&id).into_iter().flatten() {
        view.shard_mut(part.shard()).expect(LOCKED).unpin(part);
    }
}
