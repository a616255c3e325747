//! The right to write a block, for as long as it is being rewritten: what is free is asked for, and given back afterwards.
//!
//! Invariants
//! - A slice has what is lent of one block at the most, and begins no other one until it is given back.
//! - What an application of this node has asked for, or has written to meanwhile, is not given back: it is no loan any more.

use std::collections::BTreeMap;

use token::PatternSet;
use types::{ByteRange, Errno, InodeId, Instant, Pattern, RangeMode, Want};

use super::{Job, Key, REFUSED_COUNT_MAX, REFUSED_PAUSE, REST, State};
use crate::env::Env;
use crate::slice::Slice;
use crate::tokens::Asker;

/// Pieces of a loan that are looked at one by one.
const PIECES_MAX: usize = 64;

/// What a slice's rewriter has to do with tokens.
#[derive(Debug, Default)]
pub(super) struct Lent {
    /// Asked for, and perhaps granted: this node could not write it before.
    block: Option<(Key, PatternSet)>,
    /// Files that other nodes use, and when their owners said so.
    refused: BTreeMap<InodeId, Instant>,
}

impl Lent {
    /// An owner has no tokens for a rewrite of this file.
    fn note_refused(&mut self, now: Instant, ino: InodeId) {
        self.refused.retain(|_, at| now.since(*at) < REFUSED_PAUSE);
        if self.refused.len() >= REFUSED_COUNT_MAX {
            let oldest = self.refused.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(ino, _)| *ino);
            oldest.and_then(|ino| self.refused.remove(&ino));
        }
        self.refused.insert(ino, now);
    }

    /// It is not asked again yet: for a block that has to leave soon, but not for each block of the file.
    pub(super) fn was_refused(&self, now: Instant, ino: InodeId, has_to_leave: bool) -> bool {
        let pause = if has_to_leave { REST } else { REFUSED_PAUSE };
        let at = self.refused.get(&ino);
        at.is_some_and(|at| now.since(*at) < pause)
    }
}

impl Slice {
    /// Asks for the right to write a block, if it is free. False: not now.
    pub(super) fn ask_for_block(&mut self, key: Key, range: ByteRange) -> bool {
        let lent = self.inode(key.0).holder.not_writable(&range);
        let required = Pattern::plain(range);
        let want = Want::Range {
            mode: RangeMode::Write,
            required,
            desired: required,
        };
        let is_asked = self.acquire_for(key.0, vec![want], Asker::Rewrite);
        if is_asked {
            self.rewriter.lent.block = Some((key, lent));
        }
        is_asked
    }

    /// An owner refuses the tokens; EAGAIN: another node has them, EBUSY: it is not known yet who has.
    pub(crate) fn on_rewrite_refused(&mut self, env: &Env<'_>, ino: InodeId, errno: Errno) {
        let is_it = |job: &mut Job| job.key.0 == ino && matches!(job.state, State::Preparing(_));
        if errno == Errno::EAGAIN {
            self.rewriter.lent.note_refused(env.now, ino);
        }
        let Some(mut job) = self.rewriter.job.take_if(is_it) else {
            return;
        };
        let job = match errno {
            // Another node's, or nobody's any more.
            Errno::EAGAIN | Errno::ESTALE => self.let_go(env, job),
            Errno::EBUSY => {
                self.rewriter.await_grace(env.now);
                match job.leaves.take() {
                    Some(leaving) => {
                        self.rewriter.keep(env.now, leaving);
                        self.let_go(env, job)
                    }
                    None => self.put_off(env, job),
                }
            }
            _ => {
                self.rewriter.pause_all(env.now, super::SHORT_PAUSE);
                self.let_go(env, job)
            }
        };
        self.set_job(job);
    }

    /// An application asks for these tokens: what it gets is not given back.
    pub(crate) fn keep_tokens_for(&mut self, ino: InodeId, wants: &[Want]) {
        let is_write = |want: &Want| {
            let mode = RangeMode::Write;
            matches!(want, Want::Range { mode: m, .. } if *m == mode)
        };
        let lent = &mut self.rewriter.lent.block;
        if wants.iter().any(is_write) {
            lent.take_if(|(key, _)| key.0 == ino);
        }
    }

    /// Gives back what was lent for a block that is not being rewritten any more. False: that is not over yet.
    pub(super) fn return_tokens(&mut self, env: &Env<'_>) -> bool {
        let Some((key, lent)) = &self.rewriter.lent.block else {
            return true;
        };
        let uses = |job: &Job| job.key == *key && !matches!(job.state, State::Draining { .. });
        if self.rewriter.job.as_ref().is_some_and(uses) {
            return true;
        }
        let ino = key.0;
        let Some(inode) = self.inodes.get_mut(&ino) else {
            self.rewriter.lent.block = None;
            return true;
        };
        let is_held = inode.holder.held().write.overlaps_set(lent);
        let ranges = lent.ranges_within(&ByteRange::ALL, PIECES_MAX);
        let is_written = |range: &ByteRange| inode.pages.is_busy(range);
        if !inode.is_acquiring && !is_held || ranges.ranges().iter().any(is_written) {
            self.rewriter.lent.block = None;
            return true;
        }
        let is_moving = inode.is_acquiring || inode.is_revoking() || inode.is_committing;
        if !is_moving
            && !self.is_lapsed
            && let Some(plan) = inode.holder.demote(ino, lent)
        {
            self.begin_release(env, ino, plan);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ShardId;

    /// There is room for so many: who was refused last is remembered, whatever his number is.
    #[test]
    fn the_oldest_refusal_is_forgotten_first() {
        let mut lent = Lent::default();
        let ino = |n: usize| InodeId::new(ShardId(0), (5000 - n) as u64);
        let at = |n: usize| Instant(1 + n as u64);
        for n in 0..=REFUSED_COUNT_MAX {
            lent.note_refused(at(n), ino(n));
        }
        let now = at(REFUSED_COUNT_MAX);
        assert!(!lent.was_refused(now, ino(0), false));
        assert!((1..=REFUSED_COUNT_MAX).all(|n| lent.was_refused(now, ino(n), false)));
    }
}
