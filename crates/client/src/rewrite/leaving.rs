//! Blocks that lie where nothing should stay: an owner wants regions free (`node::log::clearing`). They are rewritten as those of many extents
//! are, of however few they are, and whether or not anybody here has the file.
//!
//! Invariants
//! - Only what this node can have to itself at once: a file that another node uses stays where it is.
//! - Nothing moves from one of these places to another.

use std::sync::Arc;

use types::{ByteRange, Duration, InodeId, Instant, Layout, RangeMode, Run};

use super::{BLOCK_COUNT_MAX, Job, Key, Preparation, Rewriter, State, is_late, step_of};
use crate::env::{Env, TakenRun};
use crate::inode::Inode;
use crate::slice::Slice;

/// A block that changes is tried so often: the owner's next look finds it again.
const TRIES_MAX: u32 = 4;
/// So long after the last time, or as long as blocks rest, if that is less.
pub(super) const TRY_PAUSE: Duration = Duration::from_secs(1);
/// With a longer pause than this between tries that fail the rest of a plan is given up: a disk that is away for long, or cannot be read, is in the way of
/// no later plan.
pub(super) const FAILING_MAX: Duration = Duration::from_secs(8);
/// Sectors elsewhere are waited for so long.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(2);
/// So many that have to wait are passed over in a tick.
const PASSED_MAX: usize = 16;

/// Blocks that are to be written elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clear {
    /// Where nothing should lie.
    pub places: Arc<[Run]>,
    /// Files, their layouts, and which of their bytes lie there.
    pub files: Vec<(InodeId, Layout, ByteRange)>,
}

/// One of them.
#[derive(Clone, Debug)]
pub(super) struct Leaving {
    key: Key,
    step: u64,
    places: Arc<[Run]>,
    tries: u32,
    not_before: Instant,
}

impl Leaving {
    /// Something of the block lies there.
    pub(super) fn has_to_move(&self, inode: &Inode, range: &ByteRange) -> bool {
        let extents = inode.map.extents_in(range);
        extents
            .iter()
            .any(|extent| extent.place_among(&self.places).is_some())
    }

    /// The bytes of the block, also behind the end of the file.
    fn range(&self) -> ByteRange {
        let begin = self.key.1.saturating_mul(self.step);
        ByteRange::new(begin, begin.saturating_add(self.step))
    }

    /// It would come to lie in one of the places.
    pub(super) fn would_stay(&self, taken: &[TakenRun]) -> bool {
        let mut places = self.places.iter();
        places.any(|place| taken.iter().any(|run| run.run.overlaps(place)))
    }
}

impl Rewriter {
    /// The next of them.
    pub(super) fn next_leaving(&mut self, env: &Env<'_>) -> Option<Job> {
        if env.now < self.failing_until {
            return None;
        }
        let mut left = self.leaving.len().min(PASSED_MAX);
        let leaving = loop {
            left = left.checked_sub(1)?;
            let leaving = self.leaving.pop_front()?;
            if leaving.not_before <= env.now {
                break leaving;
            }
            self.leaving.push_back(leaving);
        };
        Some(Job {
            key: leaving.key,
            owner: env.owner(leaving.key.0.shard()),
            since: env.now,
            leaves: Some(leaving),
            state: State::Preparing(Preparation::default()),
        })
    }

    /// It could not be done now.
    pub(super) fn put_back(&mut self, now: Instant, mut leaving: Leaving) {
        leaving.tries += 1;
        if leaving.tries < TRIES_MAX && self.failing_pause <= FAILING_MAX {
            self.keep(now, leaving);
        }
    }

    /// It was not tried.
    pub(super) fn keep(&mut self, now: Instant, mut leaving: Leaving) {
        let rest = self.rules.map_or(TRY_PAUSE, |rules| rules.rest);
        leaving.not_before = now + Duration(rest.0.min(TRY_PAUSE.0));
        self.leaving.push_back(leaving);
    }

    /// There is nowhere else to go, or all that is tried has failed for long: a later plan finds them again, and others' blocks before.
    pub(super) fn stay(&mut self) {
        self.leaving.clear();
    }
}

impl Slice {
    /// Blocks of files of this slice are to be written elsewhere; more than are remembered are found again later.
    pub(crate) fn clear(&mut self, clear: &Clear) {
        let Some(rules) = self.rewriter.rules else {
            return;
        };
        for (ino, layout, range) in &clear.files {
            let step = step_of(layout, rules.block_size);
            for block in range.begin / step..range.end.div_ceil(step) {
                let key = (*ino, block);
                let leaving = &mut self.rewriter.leaving;
                let is_known = leaving.back().is_some_and(|last| last.key == key);
                if !is_known && leaving.len() < BLOCK_COUNT_MAX {
                    leaving.push_back(Leaving {
                        key,
                        step,
                        places: Arc::clone(&clear.places),
                        tries: 0,
                        not_before: Instant::default(),
                    });
                }
            }
        }
    }

    /// Blocks that are still to leave.
    pub(crate) fn leaving_count(&self) -> u64 {
        let job = self.rewriter.job.as_ref();
        let is_under_way = job.is_some_and(|job| job.leaves.is_some());
        self.rewriter.leaving.len() as u64 + u64::from(is_under_way)
    }

    /// Its attributes are known here, and no others: what was known without tokens may be old. Or they were asked for, and more will not come.
    pub(super) fn is_sure_of(&self, leaving: &Leaving, has: &Preparation) -> bool {
        let inode = self.inodes.get(&leaving.key.0);
        let inode = inode.filter(|inode| inode.attr.is_some());
        inode.is_some_and(|inode| {
            let is_told = has.has_asked_tokens && !inode.is_acquiring;
            is_told || inode.covers(RangeMode::Read, &leaving.range())
        })
    }

    /// Nobody here has the block: attributes of now come with the right to write it.
    pub(super) fn meet(&mut self, env: &Env<'_>, mut job: Job) -> Option<Job> {
        let leaving = job.leaves.as_ref().expect("the caller looked at it");
        let (key, range) = (job.key, leaving.range());
        let inode = self.inodes.get(&key.0);
        let is_asking = inode.is_some_and(|i| i.is_acquiring);
        let is_going = inode.is_some_and(|i| i.is_leaving(&range));
        let State::Preparing(has) = &mut job.state else {
            unreachable!("only jobs that begin come here");
        };
        let was_asked = has.has_asked_tokens && !is_asking;
        let is_others = self.rewriter.lent.was_refused(env.now, key.0, true);
        if was_asked || is_others || is_going || is_late(env.now, job.since) {
            return self.let_go(env, job);
        }
        if !has.has_asked_tokens {
            has.has_asked_tokens = self.ask_for_block(key, range);
        }
        Some(job)
    }
}
