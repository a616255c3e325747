//! The grace period of an owner's shards: members say what they hold before anything is granted.

use token::message::Reassert;
use token::server::Misbehaved;
use types::Instant;
use types::id::NodeLife;

use crate::owner::OwnerSlice;

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
