//! The attributes that a listing brings, of inodes that are in the trees of their shards alone.

use client::message::Ask;
use meta::{Op, Reply};
use types::InodeId;

use super::{Locked, Question};
use crate::question::ListingState;

/// Inodes that are read for one answer: a listing of more says the names of the rest, which are read when somebody asks for them.
const COUNT_MAX: usize = 1024;

impl Locked<'_> {
    /// Those that should be read before this answer is given, all at once: the asker would ask for them one by one. Once for each
    /// answer, and what cannot be read is listed by its name.
    pub(super) fn cold_in_listing(&self, question: &Question, reply: &Reply) -> Vec<InodeId> {
        let Reply::Listing { entries, .. } = reply else {
            return Vec::new();
        };
        if question.listed != ListingState::Unknown || !wants_attributes(question) {
            return Vec::new();
        }
        let lacking = entries.iter().filter(|entry| entry.attr.is_none());
        let is_cold = |ino: &InodeId| {
            let slice = self.slices.iter().find(|s| s.shard.id() == ino.shard());
            slice.is_some_and(|slice| slice.shard.is_cold(*ino))
        };
        let cold = lacking.map(|entry| entry.ino).filter(is_cold);
        let mut cold: Vec<InodeId> = cold.take(COUNT_MAX).collect();
        // Names of one file.
        cold.sort_unstable();
        cold.dedup();
        cold
    }
}

fn wants_attributes(question: &Question) -> bool {
    let Ask::Op { op, .. } = &question.ask else {
        return false;
    };
    matches!(op, Op::ReadDir { plus: true, .. })
}
