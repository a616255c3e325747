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

    /// A member says what it holds; repeats are ignored.
    ///
    /// # Errors
    /// The member was not expected, or says what cannot be: a bug of one of the two nodes.
    pub fn on_reassert(&mut self, from: NodeLife, part: &Reassert) -> Result<(), Misbehaved> {
        self.tokens.reassert(from, part)
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
