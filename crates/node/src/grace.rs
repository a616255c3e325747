//! The grace period of an owner's shards: members say what they hold before anything is granted.

use std::collections::BTreeMap;

use token::message::Reassert;
use token::server::Misbehaved;
use types::id::NodeLife;
use types::{Epoch, Holding, InodeId, Instant, NodeId, ShardId};

use crate::message::Message;
use crate::owner::OwnerSlice;

/// What this node has told owners that begin anew, until they serve: what is lost is told again unchanged, though the
/// node may hold more by then (nobody is granted anything meanwhile).
#[derive(Debug, Default)]
pub struct Told {
    by_owner: BTreeMap<NodeId, (Epoch, Vec<Message>)>,
}

impl Told {
    /// An owner asks what is held in its shards, in a life whose tokens have this epoch. `make` is called the first
    /// time.
    pub fn tell(
        &mut self,
        owner: NodeId,
        epoch: Epoch,
        make: impl FnOnce() -> Vec<Message>,
    ) -> &[Message] {
        let told = self.by_owner.entry(owner);
        let told = told.or_insert_with(|| (Epoch(0), Vec::new()));
        if told.0 != epoch || told.1.is_empty() {
            *told = (epoch, make());
        }
        &told.1
    }

    /// It serves: it needs to be told nothing any more.
    pub fn on_serving(&mut self, owner: NodeId, epoch: Epoch) {
        let told = self.by_owner.get(&owner);
        if told.is_some_and(|(known, _)| *known == epoch) {
            self.by_owner.remove(&owner);
        }
    }

    /// A life of a node is over: it does not ask again.
    pub fn forget(&mut self, owner: NodeId) {
        self.by_owner.remove(&owner);
    }
}

/// What a node tells an owner: for each of its shards at least one part, with about `holdings_max` holdings each; those
/// of an inode are in one part.
pub fn held_messages(
    epoch: Epoch,
    shards: impl IntoIterator<Item = ShardId>,
    held: impl IntoIterator<Item = (InodeId, Vec<Holding>)>,
    holdings_max: usize,
) -> Vec<Message> {
    let shards = shards.into_iter().map(|shard| (shard, vec![Vec::new()]));
    let mut by_shard: BTreeMap<ShardId, Vec<Vec<Holding>>> = shards.collect();
    for (ino, mut holdings) in held {
        let parts = by_shard
            .get_mut(&ino.shard())
            .expect("a shard of the owner");
        match parts.last_mut() {
            Some(last) if last.len() < holdings_max => last.append(&mut holdings),
            _ => parts.push(holdings),
        }
    }
    let mut messages = Vec::new();
    for (shard, parts) in by_shard {
        let count = parts.len();
        for (index, holdings) in parts.into_iter().enumerate() {
            let part = Reassert {
                part: u32::try_from(index).expect("parts have many holdings each"),
                is_last: index + 1 == count,
                holdings,
            };
            messages.push(Message::Held { epoch, shard, part });
        }
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
    pub fn on_reassert(&mut self, from: NodeLife, part: &Reassert) -> Result<(), Misbehaved> {
        match self.tokens.reassert(from, part) {
            Err(Misbehaved::Order { .. }) => Ok(()),
            result => result,
        }
    }

    /// `life` has not yet said all that it holds of this shard.
    pub fn is_missing(&self, life: NodeLife) -> bool {
        self.tokens.missing().any(|missing| missing == life)
    }

    /// All have said what they hold, or are dead.
    pub fn end_grace(&mut self, now: Instant) {
        let mut effects = Vec::new();
        self.tokens.end_grace(now, &mut effects);
        assert!(
            effects.is_empty(),
            "work is held back during the grace period"
        );
    }
}

#[cfg(test)]
mod tests {
    use types::id::Incarnation;
    use types::{Epoch, Holding, InodeId, InodeMode, Lsn, NodeId, ShardId, TokenKind, TokenNumber};

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
        let held = (0..5).map(|i| (holding(i).ino, vec![holding(i), holding(i)]));
        let messages = held_messages(Epoch(7), [1, 3].map(ShardId), held, 4);
        let parts: Vec<(u16, u32, bool, usize)> = messages
            .iter()
            .map(|message| match message {
                Message::Held { shard, part, .. } => {
                    (shard.0, part.part, part.is_last, part.holdings.len())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        let expected = [
            (1, 0, true, 0),
            (3, 0, false, 4),
            (3, 1, false, 4),
            (3, 2, true, 2),
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
        let newer = held_messages(Epoch(8), [ShardId(1)], [], 4);
        assert_eq!(told.tell(owner, Epoch(8), || newer.clone()), newer);
        told.on_serving(owner, Epoch(8));
        assert_eq!(told.tell(owner, Epoch(8), || messages.clone()), messages);
    }

    /// Parts of what a member says are lost with a link: what comes without them is no fault of the member's, and what it
    /// says again is taken whole.
    #[test]
    fn a_lost_part_is_said_again() {
        let epoch = Epoch(2);
        let tokens = token::Manager::new(epoch, token::Options::default());
        let shard = meta::Shard::new(ShardId(0), meta::HashKey(7));
        let mut slice = OwnerSlice::new(shard, tokens, Lsn(0));
        let life = NodeLife {
            node: NodeId(2),
            incarnation: Incarnation(1),
        };
        let number = token::server::first_number(epoch);
        let ino = |part: u32| InodeId::new(ShardId(0), 10 + u64::from(part));
        let part = |part: u32| Reassert {
            part,
            is_last: part == 1,
            holdings: vec![Holding {
                ino: ino(part),
                number,
                kind: TokenKind::Inode {
                    mode: InodeMode::Exclusive,
                },
            }],
        };
        slice.begin_grace(&[life]);
        assert_eq!(slice.on_reassert(life, &part(1)), Ok(()));
        assert!(slice.is_missing(life), "the first part was lost");
        assert_eq!(slice.on_reassert(life, &part(0)), Ok(()));
        assert_eq!(slice.on_reassert(life, &part(1)), Ok(()));
        assert!(!slice.is_missing(life));
        let mut wrong = part(0);
        wrong.holdings[0].number = TokenNumber(1);
        assert_eq!(slice.on_reassert(life, &wrong), Ok(()), "said before");
        slice.end_grace(Instant(1));
        assert_eq!(slice.tokens.token_count(), 2);
    }
}
