//! What is read from disks for a rewrite: a few extents at a time, of all slices together, and counted until they have been read.

use types::{ByteRange, InodeId, Instant, RangeSet};

use super::pace::READ_COST;
use super::{Job, PATIENCE, SHORT_PAUSE, State};
use crate::env::Env;
use crate::inode::Inode;
use crate::slice::{IoId, Slice};

/// Loads under way for a job.
#[derive(Debug, Default)]
pub(super) struct Loads {
    ios: Vec<IoId>,
    /// Of extents.
    reads: u64,
    since: Instant,
    /// So many more have been paid for.
    left: u64,
    /// With their bytes alone, for nobody read or wrote then, or the block leaves a region.
    is_cheap: bool,
}

impl Loads {
    pub(super) const fn is_empty(&self) -> bool {
        self.ios.is_empty()
    }

    /// What storing so many bytes costs, with so many reads before: these are paid for.
    pub(super) fn pay(&mut self, bytes: u64, reads: u64, is_cheap: bool) -> u64 {
        let cost = bytes.max(reads * READ_COST);
        self.left = cost.div_ceil(READ_COST);
        self.is_cheap = is_cheap;
        match is_cheap {
            true => bytes,
            false => cost,
        }
    }
}

impl Inode {
    /// What of these bytes is not in memory: a range for each read from a disk.
    pub(super) fn reads_of(&self, mapped: &RangeSet) -> Vec<ByteRange> {
        let mut reads = Vec::new();
        for part in mapped.ranges() {
            for missing in self.pages.missing(part).ranges() {
                let mut begin = missing.begin;
                for extent in self.map.extents_in(missing) {
                    let (first, last) = (extent.file_sector, extent.file_sector_end());
                    let bytes = ByteRange::new(first * super::PAGE_SIZE, last * super::PAGE_SIZE);
                    let Some(bytes) = bytes.intersection(missing) else {
                        continue;
                    };
                    // Pieces lie in the metadata.
                    reads.extend((begin < bytes.begin).then(|| ByteRange::new(begin, bytes.begin)));
                    reads.push(bytes);
                    begin = bytes.end;
                }
                reads.extend((begin < missing.end).then(|| ByteRange::new(begin, missing.end)));
            }
        }
        reads
    }
}

impl Slice {
    /// Loads a few of these ranges, if none are under way for the job.
    pub(super) fn load_some(
        &mut self,
        env: &Env<'_>,
        mut job: Job,
        reads: Vec<ByteRange>,
    ) -> Option<Job> {
        let State::Preparing(has) = &mut job.state else {
            unreachable!("the caller prepares it");
        };
        let ino = job.key.0;
        let inode = &self.inodes[&ino];
        let is_new = |read: &ByteRange| !inode.is_loading(read);
        let new: Vec<ByteRange> = reads.into_iter().filter(is_new).collect();
        if !has.loads.is_empty() || new.is_empty() {
            return Some(job);
        }
        if has.loads.left == 0 {
            // What was loaded has left memory again: others need the frames.
            return self.put_off(env, job);
        }
        let is_wanted = job.leaves.is_some();
        if has.loads.is_cheap && !is_wanted && !env.pace.is_idle(env.now) {
            // Somebody reads or writes since: what is left costs what it does then, and is paid before it is begun.
            let rest = has.loads.left.min(new.len() as u64);
            if !env.pace.take(env.now, rest * READ_COST, false) {
                return Some(job);
            }
            has.loads.is_cheap = false;
        }
        let before = inode.loads.len();
        let wanted = has.loads.left.min(new.len() as u64);
        let count = env.pace.begin_reads(env.now, wanted, is_wanted);
        let mut ranges = RangeSet::new();
        let few = usize::try_from(count).expect("as many as there are, at most");
        new[..few].iter().for_each(|read| ranges.insert(*read));
        for range in ranges.ranges() {
            self.load(env, ino, *range, false);
        }
        let begun = self.inodes[&ino].loads[before..].iter();
        has.loads.ios = begun.map(|load| load.io).collect();
        if has.loads.is_empty() {
            // No frames.
            env.pace.end_reads(count);
            return Some(job);
        }
        has.loads.reads = count;
        has.loads.left -= count;
        has.loads.since = env.now;
        Some(job)
    }

    /// A load has ended. True: it was one for the job, which may go on.
    pub(crate) fn on_rewrite_loaded(&mut self, env: &Env<'_>, io: IoId, is_well: bool) -> bool {
        let Some(job) = &mut self.rewriter.job else {
            return false;
        };
        let (State::Preparing(super::Preparation { loads, .. }) | State::Draining { loads, .. }) =
            &mut job.state
        else {
            return false;
        };
        let Some(at) = loads.ios.iter().position(|one| *one == io) else {
            return false;
        };
        loads.ios.swap_remove(at);
        let has_ended = loads.is_empty();
        let took = env.now.since(loads.since);
        if has_ended {
            env.pace.end_reads(std::mem::take(&mut loads.reads));
            if job.leaves.is_none() {
                env.pace.rest(env.now, took);
            }
            job.since = env.now;
        }
        let is_preparing = matches!(job.state, State::Preparing(_));
        if let (State::Draining { frames, .. }, true) = (&mut job.state, has_ended) {
            env.pace.let_go(std::mem::take(frames));
            self.set_job(None);
        }
        if !is_well || took > PATIENCE {
            // It is a disk's turn.
            self.rewriter.pause_all(env.now, SHORT_PAUSE);
        }
        if is_preparing && !is_well {
            self.fail_rewrite(env, None);
        }
        is_preparing && is_well && has_ended
    }

    /// What was loaded for the job is there: more is loaded before the next tick.
    pub(crate) fn go_on_loading(&mut self, env: &Env<'_>, ino: InodeId) {
        let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get(&ino)) else {
            return;
        };
        let has_more = |job: &mut Job| {
            let (mapped, _) = inode.mapped(&inode.block(rules, job.key.1));
            let is_preparing = matches!(job.state, State::Preparing(_));
            job.key.0 == ino && is_preparing && !inode.reads_of(&mapped).is_empty()
        };
        if self.is_lapsed || env.pace.is_off() {
            return;
        }
        if let Some(job) = self.rewriter.job.take_if(has_more) {
            let job = self.prepare(env, job);
            self.set_job(job);
        }
    }
}
