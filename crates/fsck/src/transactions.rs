//! Two-owner operations that were under way, slots and opens. What is prepared ends here as its coordinator says, in memory,
//! as a start would end it: so the rest is checked as it will be.

use types::ShardId;

use node::meta::{TransactionId, View, transaction};

use crate::Image;
use crate::finding::{Findings, Kind};

/// See the module.
pub fn check(image: &mut Image, findings: &mut Findings) {
    check_outcomes(image, findings);
    end_prepared(image, findings);
    for shard in image.owners.iter().flat_map(|owner| owner.shards.values()) {
        for (ino, life) in shard.opens() {
            if shard.seen(ino).is_none() && image.is_whole(shard.id()) {
                let text = format!("inode {ino} is open at {}", life.node);
                findings.of(Kind::OpenMissing, ino, text);
            }
        }
        for (life, slot) in shard.slots() {
            if slot >= types::limits::SLOTS_PER_SHARD {
                let text = format!("{}: slot {slot} of {}", shard.id(), life.node);
                findings.add(Kind::SlotNumber, None, text);
            }
        }
    }
}

/// The coordinator has committed the transaction, for this participant.
fn is_committed(image: &Image, id: TransactionId, participant: ShardId) -> bool {
    let coordinator = image.shard(id.coordinator);
    let outcome = coordinator.and_then(|c| c.outcomes().find(|(other, _)| *other == id));
    outcome.is_some_and(|(_, participants)| participants.contains(&participant))
}

fn check_outcomes(image: &Image, findings: &mut Findings) {
    let exists = |shard: ShardId| usize::from(shard.0) < image.setup.owners.len();
    let name = |id: TransactionId| format!("transaction {:x} of {}", id.number, id.coordinator);
    for shard in image.shards() {
        for (id, participants) in shard.outcomes() {
            for participant in participants {
                if !exists(*participant) {
                    let text = format!("{}: participant {participant}", name(id));
                    findings.add(Kind::TransactionShard, None, text);
                    continue;
                }
                let is_whole = image.is_whole(*participant);
                let Some(other) = image.shard(*participant).filter(|_| is_whole) else {
                    continue;
                };
                let is_known = other.prepared().any(|(known, _)| known == id)
                    || other.done().any(|known| known == id);
                if !is_known {
                    let text = format!("{}: {participant} has forgotten it", name(id));
                    findings.add(Kind::TransactionLost, None, text);
                }
            }
        }
        for (id, _) in shard.prepared() {
            if !exists(id.coordinator) {
                let text = format!("{}, prepared at {}", name(id), shard.id());
                findings.add(Kind::TransactionShard, None, text);
            }
        }
    }
}

fn end_prepared(image: &mut Image, findings: &mut Findings) {
    let mut ends = Vec::new();
    for (at, owner) in image.owners.iter().enumerate() {
        for (shard, value) in &owner.shards {
            for (id, _) in value.prepared() {
                ends.push((at, *shard, id, is_committed(image, id, *shard)));
            }
        }
    }
    for (at, shard, id, is_commit) in ends {
        let is_heard = image.is_whole(id.coordinator);
        let owner = &mut image.owners[at];
        if !is_heard {
            // Nobody says how it ended.
            owner.partial.insert(shard);
            image.is_partial = true;
        }
        let shards = owner.shards.values_mut();
        let mut view = View::new(shards, &image.setup.owners, owner.node);
        let ended = transaction::end_prepared(&mut view, shard, id, is_commit);
        drop(view);
        let Some(changes) = ended else {
            let text = format!(
                "transaction {:x} of {}, at {shard}",
                id.number, id.coordinator
            );
            findings.add(Kind::TransactionSteps, None, text);
            owner.partial.insert(shard);
            image.is_partial = true;
            continue;
        };
        // What is journaled of it is not: only what the space says then is looked at.
        let mut unused = Vec::new();
        for run in changes.freed {
            let is_freed = owner.space.free(run, &mut unused).is_ok();
            if !is_freed && !owner.is_space_partial {
                let text = format!(
                    "{run:?}, which transaction {:x} of {} frees, does not count as used",
                    id.number, id.coordinator
                );
                findings.add(Kind::SectorFree, None, text);
            }
        }
    }
}
