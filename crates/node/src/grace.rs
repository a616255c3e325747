//! The grace period of an owner's shards: members say what they hold and have open before anything is granted.
//!
//! Invariants
//! - Before the shards are served, the owner takes each member to have open all that it has open: a release whose record
//!   was lost with the former life of the owner is made good.
//! - A member is taken to have closed what it does not name only where the inode has a name. One without is kept until
//!   `Op::Closed`: the member's own removal may have been answered by the former life, and the member may open the inode
//!   before it hears of that.

use std::collections::BTreeMap;

use client::{HeldInode, HeldLocks};
use meta::Changes;
use token::message::{HeldLock, Reassert};
use token::server::Misbehaved;
use types::id::NodeLife;
use types::{Epoch, InodeId, NodeId, ShardId};

use crate::OwnerEnv;
use crate::log::OwnerLog;
use crate::message::Message;
use crate::owner::OwnerSlice;
use crate::question::OwnerEffect;

/// Opens and closes in one record, far below its size.
const RECORD_MUTATIONS_MAX: usize = 4096;

/// What this node has told owners that begin anew, until they serve: what is lost is told again unchanged, though the
/// node may hold more by then (nobody is granted anything meanwhile). Made once for each life of an owner: what was told is marked as told,
/// and would be left out if it were made again. So it stays also where the view that ends the owner's former life comes after the question.
#[derive(Debug, Default)]
pub struct Told {
    by_owner: BTreeMap<NodeId, (Epoch, Vec<Message>)>,
    /// The last life of each owner that served.
    served: BTreeMap<NodeId, Epoch>,
}

impl Told {
    /// An owner asks what is held in its shards, in a life whose tokens have this epoch. `make` is called the first
    /// time. Nothing is told to one that serves by now: its question is a late one, and what was asked of it since counts.
    pub fn tell(
        &mut self,
        owner: NodeId,
        epoch: Epoch,
        make: impl FnOnce() -> Vec<Message>,
    ) -> &[Message] {
        if self
            .served
            .get(&owner)
            .is_some_and(|served| epoch <= *served)
        {
            return &[];
        }
        let told = self.by_owner.entry(owner);
        let told = told.or_insert_with(|| (Epoch(0), Vec::new()));
        if told.0 != epoch || told.1.is_empty() {
            *told = (epoch, make());
        }
        &told.1
    }

    /// It serves: it needs to be told nothing any more.
    pub fn on_serving(&mut self, owner: NodeId, epoch: Epoch) {
        let served = self.served.entry(owner).or_insert(epoch);
        *served = epoch.max(*served);
        let told = self.by_owner.get(&owner);
        if told.is_some_and(|(known, _)| *known == epoch) {
            self.by_owner.remove(&owner);
        }
    }
}

/// What a node tells an owner: for each of its shards at least one part, with about `count_max` holdings and open inodes
/// each; those of an inode are in one part.
pub fn held_messages(
    epoch: Epoch,
    shards: impl IntoIterator<Item = ShardId>,
    held: impl IntoIterator<Item = HeldInode>,
    locks: &HeldLocks,
    count_max: usize,
) -> Vec<Message> {
    let empty = |part| Reassert {
        part,
        is_last: false,
        holdings: Vec::new(),
        open: Vec::new(),
        locks: Vec::new(),
        lock_floor: locks.floor,
    };
    let is_full =
        |part: &Reassert| part.holdings.len() + part.open.len() + part.locks.len() >= count_max;
    let shards = shards.into_iter().map(|shard| (shard, vec![empty(0)]));
    let mut by_shard: BTreeMap<ShardId, Vec<Reassert>> = shards.collect();
    for inode in held {
        let parts = by_shard
            .get_mut(&inode.ino.shard())
            .expect("a shard of the owner");
        let last = parts.last().expect("each shard has a part");
        if is_full(last) {
            let part = u32::try_from(parts.len()).expect("parts have many inodes each");
            parts.push(empty(part));
        }
        let part = parts.last_mut().expect("seen above");
        part.holdings.extend(inode.holdings);
        part.open.extend(inode.is_open.then_some(inode.ino.index()));
    }
    for (ino, lock) in locks.locks.iter().copied() {
        let parts = by_shard
            .get_mut(&ino.shard())
            .expect("a shard of the owner");
        if is_full(parts.last().expect("each shard has a part")) {
            let part = u32::try_from(parts.len()).expect("parts have many locks each");
            parts.push(empty(part));
        }
        let part = parts.last_mut().expect("seen above");
        part.locks.push(HeldLock { ino, lock });
    }
    let mut messages = Vec::new();
    for (shard, mut parts) in by_shard {
        parts.last_mut().expect("each shard has a part").is_last = true;
        let told = |part| Message::Held { epoch, shard, part };
        messages.extend(parts.into_iter().map(told));
    }
    messages
}

impl OwnerSlice {
    /// Before the shard is served for the first time in this life: `expected` may hold tokens of it.
    pub fn begin_grace(&mut self, expected: &[NodeLife]) {
        self.tokens.begin_grace(expected);
    }

    /// A member says what it holds; repeats are ignored. A part is not taken before those that come first: where one of them
    /// was lost the member is still missing, is asked again and says all of it again.
    ///
    /// # Errors
    /// The member was not expected, or says what cannot be: a bug of one of the two nodes.
    pub fn on_reassert(
        &mut self,
        log: &mut OwnerLog,
        from: NodeLife,
        part: &Reassert,
    ) -> Result<(), Misbehaved> {
        let mut locks = Ok(());
        if self.tokens.is_next_part(from, part.part) {
            self.take_opens(log, from, part);
            locks = self.take_locks(from, part);
        }
        match self.tokens.reassert(from, part) {
            Err(Misbehaved::Order { .. }) => Ok(()),
            result => result.and(locks),
        }
    }

    /// Counts what a member has open; with the last part what it had open once is closed.
    fn take_opens(&mut self, log: &mut OwnerLog, from: NodeLife, part: &Reassert) {
        let shard = &mut self.shard;
        let unheard = self
            .unheard_opens
            .entry(from)
            .or_insert_with(|| shard.opens_of(from).collect());
        let id = shard.id();
        let mut mutations = Vec::new();
        let mut note = |shard: &mut meta::Shard, index, is_open| {
            let noted = shard.note_open(InodeId::new(id, index), from, is_open);
            mutations.extend(noted.mutations);
            assert!(noted.freed.is_empty(), "no inode goes here");
        };
        for index in &part.open {
            unheard.remove(index);
            note(shard, *index, true);
        }
        if part.is_last {
            let unheard = self.unheard_opens.remove(&from).unwrap_or_default();
            let has_name = |shard: &meta::Shard, index| {
                // What is without a name is resident.
                let ino = InodeId::new(id, index);
                shard.is_cold(ino) || shard.attr(ino).is_some_and(|attr| attr.nlink > 0)
            };
            for index in unheard {
                let ino = InodeId::new(id, index);
                if has_name(shard, index) {
                    note(shard, index, false);
                } else if !shard.is_answered_open(ino, from) {
                    // It goes, but nothing does in the grace period.
                    self.not_open.push((ino, from));
                }
            }
        }
        // What is closed has no bound of its own: each of them stands by itself.
        for some in mutations.chunks(RECORD_MUTATIONS_MAX) {
            let changes = Changes {
                mutations: some.to_vec(),
                ..Changes::default()
            };
            self.last_lsn = log.append_changes(id, &changes);
            log.note_promised(&self.shard);
        }
    }

    /// `life` has not yet said all that it holds of this shard.
    pub fn is_missing(&self, life: NodeLife) -> bool {
        self.tokens.missing().any(|missing| missing == life)
    }

    /// All have said what they hold, or are dead. What is without a name and that nobody has open is freed.
    pub fn end_grace(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        out: &mut Vec<OwnerEffect>,
    ) {
        assert!(self.unheard_opens.is_empty(), "all have said all");
        let mut effects = Vec::new();
        self.tokens.end_grace(env.now, &mut effects);
        assert!(
            effects.is_empty(),
            "work is held back during the grace period"
        );
        for (ino, life) in std::mem::take(&mut self.not_open) {
            // What is about to get a name stays.
            if !self.shard.is_in_transaction(ino) {
                self.note_open(env, log, (ino, life, false), out);
            }
        }
        let changes = self.shard.reap_closed();
        self.note_reaped(env, log, &changes, out);
    }
}

#[cfg(test)]
mod tests {
    use types::{Epoch, Holding, InodeId, InodeMode, NodeId, ShardId, TokenKind, TokenNumber};

    use super::*;

    #[test]
    fn what_is_told_is_told_again_unchanged_until_the_owner_serves() {
        let holding = |index| Holding {
            ino: InodeId::new(ShardId(3), index),
            number: TokenNumber(1),
            kind: TokenKind::Inode {
                mode: InodeMode::Read,
            },
        };
        let held = (0..5).map(|i| HeldInode {
            ino: holding(i).ino,
            holdings: vec![holding(i), holding(i)],
            is_open: i > 2,
        });
        let open = (5..9).map(|i| HeldInode {
            ino: InodeId::new(ShardId(3), i),
            holdings: Vec::new(),
            is_open: true,
        });
        let lock = types::Lock {
            owner: types::LockOwner {
                kind: types::LockKind::Posix,
                id: 1,
            },
            mode: types::LockMode::Read,
            range: types::ByteRange::ALL,
            pid: 1,
        };
        let locks = HeldLocks {
            floor: 12,
            locks: [1, 2].map(|i| (InodeId::new(ShardId(3), i), lock)).to_vec(),
        };
        let messages = held_messages(Epoch(7), [1, 3].map(ShardId), held.chain(open), &locks, 4);
        type Summary<'a> = (u16, u32, bool, usize, &'a [u64], usize);
        let parts: Vec<Summary<'_>> = messages
            .iter()
            .map(|message| match message {
                Message::Held { shard, part, .. } => {
                    let count = part.holdings.len();
                    assert_eq!(part.lock_floor, 12);
                    let (is_last, locks) = (part.is_last, part.locks.len());
                    (shard.0, part.part, is_last, count, &part.open[..], locks)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected: [Summary<'_>; 6] = [
            (1, 0, true, 0, &[], 0),
            (3, 0, false, 4, &[], 0),
            (3, 1, false, 4, &[3], 0),
            (3, 2, false, 2, &[4, 5], 0),
            (3, 3, false, 0, &[6, 7, 8], 1),
            (3, 4, true, 0, &[], 1),
        ];
        assert_eq!(parts, expected);
        let mut told = Told::default();
        let owner = NodeId(2);
        let first = told.tell(owner, Epoch(7), || messages.clone()).to_vec();
        assert_eq!(first, messages);
        let again = told.tell(owner, Epoch(7), || panic!("made once")).to_vec();
        assert_eq!(again, messages);
        told.on_serving(owner, Epoch(6));
        told.tell(owner, Epoch(7), || panic!("another life of it serves"));
        let newer = held_messages(Epoch(8), [ShardId(1)], [], &HeldLocks::default(), 4);
        assert_eq!(told.tell(owner, Epoch(8), || newer.clone()), newer);
        told.on_serving(owner, Epoch(8));
        // A question that comes late, or twice, after that.
        assert!(
            told.tell(owner, Epoch(8), || panic!("it serves"))
                .is_empty()
        );
        assert!(
            told.tell(owner, Epoch(7), || panic!("it is over"))
                .is_empty()
        );
        assert_eq!(told.tell(owner, Epoch(9), || messages.clone()), messages);
    }
}
