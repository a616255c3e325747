//! The owner's side of promises (fallocate): they are made only if the sectors are there.

use client::message::Body;
use meta::Op;
use types::{Errno, limits};

use super::{Locked, OwnerEffect, OwnerLog, Question};
use crate::supply::is_all_gathered;

impl Locked<'_> {
    /// Whether there are sectors for what the operation promises. `None`: they are being gathered, or there are none.
    pub(super) fn admit_promise(
        &mut self,
        log: &OwnerLog,
        question: Box<Question>,
        op: &Op,
        out: &mut Vec<OwnerEffect>,
    ) -> Option<Box<Question>> {
        let slice = self.slice(question.shard);
        let adds = slice.map(|slice| slice.shard.promise_adds(op));
        if adds.is_some_and(|adds| adds.total > log.space.capacity()) {
            // No gathering would help.
            self.refuse(question, Body::Refused(Errno::ENOSPC), out);
            return None;
        }
        let is_refused = adds.is_some_and(|adds| adds.total > limits::PROMISED_SECTORS_MAX);
        if is_refused || log.can_promise(adds.unwrap_or_default()) {
            return Some(question);
        }
        match is_all_gathered(&question) {
            true => self.refuse(question, Body::Refused(Errno::ENOSPC), out),
            false => out.push(OwnerEffect::Gather(question)),
        }
        None
    }

    /// Something has changed: what is promised may be another amount.
    pub(super) fn note_promised(&self, log: &mut OwnerLog) {
        for slice in &self.slices {
            log.note_promised(&slice.shard);
        }
    }
}
