//! Blocks of many extents are written again, each as one run: sequential reads must not become random for ever. So are blocks, of however few
//! extents, that lie where an owner wants regions free (`leaving`): before all others, without a rest, and tried again when they change.
//!
//! A block being rewritten is a *copy* that lies beside the file until its Commit. Its pages stay clean: they are never dirty or in flight
//! by it, belong to no goal, and nobody who writes, syncs or stats the file sees anything of it. The copy holds a reference of each frame.
//! Who writes to a page whose frame has more than one gets another frame (`Pages`): so as long as all pages are clean and in the frames
//! that were stored, the file has the bytes that were stored. That is looked at where the Commit begins: what the disks may still forget is
//! flushed before (Stored, Flushing, Stored again).
//!
//! ```text
//! a Commit of a part, a load of many extents --> noted --has rested--> Preparing --all in memory--> Storing --well--> Stored --> Committing
//!                                                  ^                      |                            |               |           |
//!                                                  '---- changes ---------+----------------------------+---------------'           v
//!                                                  fails: forgotten, and a pause of the slice                              it has few extents
//! ```
//!
//! | state | has | another writes to the block, its size is cut (its tokens leave: the same, not noted) | this node's lease, the mount or the daemon ends | fails |
//! |---|---|---|---|---|
//! | Preparing | sectors set aside, loads | noted again; the sectors go back; Draining if loads are under way | the same, not noted | map, load: pause; a load that takes 10 s: the same |
//! | Draining | loads under way | - | - | - |
//! | Storing | frames, runs | nobody waits: found when the store has ended | given up when the store has ended; a stop does not wait for that | pause; runs go back, or are burnt |
//! | Stored | frames, runs | runs go back, noted again | the same, not noted | - |
//! | Flushing | frames, runs | nobody waits: found when the disks have been flushed | runs go back, not noted | runs go back, noted again; after 10 s: the same, and pause |
//! | Committing | runs | comes after it: one Commit of an inode at a time, and goals wait for it | as any Commit | runs go back, pause |
//!
//! Invariants
//! - The bytes stay the same, and so do times, size and set-id bits: such a Commit brings nothing else, not even other extents. It is made
//!   under the token to write the whole block, as any other: what another node has written meanwhile is never written over.
//! - Bytes that were lost, as somebody was told, stay lost: a block with such a page is left alone (`Pages::has_lost`).
//! - No write of an application waits for a rewrite, but for a Commit that is under way; none fails with it, and no failure of a rewrite is
//!   counted or told as one of theirs (`Inode::store_failures`, `failing_since`, `starved_since`, `errors`, `Parked::failure`).
//! - One block at a time in a slice, and a number of bytes a second on a node (`Pace`), fewer while applications read or write: then a read
//!   from a disk counts as 128 KiB at least. It is paid for before it is begun, whatever comes of it.
//! - What is on its way from disks for rewrites is counted until it has come, also where its rewrite has been put off or given up (Draining):
//!   a number of reads of all slices together, and frames as below. Where it does not come nothing else is begun.
//! - After reads and stores the disks are left alone three times as long as they took.
//! - A block that changes is left alone until it rests: what is overwritten at random all the time is not rewritten all the time.
//! - It asks for the right to write a block when all else is there, and only if no other node has or waits for what conflicts. Once one
//!   has taken it back the block is left alone, until a reader or a Commit finds it anew. It gets the block and nothing else of the file, and
//!   gives back what this node did not have before (`lent`).
//! - It takes no sectors that somebody else wants (`on_scarce`), and none where few are free (`SPARE_BLOCKS`); no frames where few are
//!   free, and a part of the pool for all slices (`Pace::hold`). Where the file's layout names NSDs, it takes none on others.
//! - Each frame that `Pace` counts as held is one of a `Preparation`, of loads that drain, or of an `Image`.
//! - A Commit begins with nobody waiting for one of the same inode.
//!
//! What this deliberately does not do: look for blocks that nobody writes or reads (who wants regions free names them), join blocks with one another, and touch files to which
//! space is promised (their runs are short, so that each sector that is written over is free by itself).

mod commits;
mod leaving;
mod lent;
mod loads;
mod notes;
mod pace;

use std::collections::{BTreeMap, VecDeque};

use data::SetAside;
use types::{
    ByteRange, Duration, Extent, FrameRef, InodeId, Instant, Layout, NodeId, Piece, RangeMode,
    RangeSet, Run,
};

use crate::env::{Env, StorePiece, WantedRun};
use crate::inode::Inode;
use crate::pages::{PAGE_SIZE, Pages};
use crate::slice::{Effect, IoFailure, IoId, Slice, Undurable};
pub use leaving::Clear;
use leaving::Leaving;
use lent::Lent;
use loads::Loads;
pub use pace::{Pace, RATE_DEFAULT};

/// A block is changed no more if it has not been for so long.
pub const REST: Duration = Duration::from_secs(10);
/// A block of so many extents is as good as one: 128 KiB each, in blocks of the default size.
pub const PARTS_MAX: u64 = 8;
/// An extent of so many bytes is long enough, whatever the size of the block.
const EXTENT_SIZE_GOOD: u64 = 128 << 10;
/// Blocks that a slice remembers; readers find the others.
const BLOCK_COUNT_MAX: usize = 4096;
/// Tokens, a map, loads, frames and sectors are waited for so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// As many blocks must fit into the sectors in hand, or into what an owner gives ahead of need: at most an eighth of what it has left.
const SPARE_BLOCKS: u64 = 4;
/// Where there were no sectors, or something failed, nobody tries again before.
pub(crate) const SHORT_PAUSE: Duration = Duration::from_secs(60);
/// Of a file that other nodes use no tokens are asked for before.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_secs(600);
/// So many of them are remembered by a slice.
const REFUSED_COUNT_MAX: usize = 1024;
/// Where a block consists of many extents again, free sectors are scattered.
const SCATTERED_PAUSE: Duration = Duration::from_secs(600);
/// Of the pool rewrites hold one part in so many at most, all together.
const POOL_PART: u64 = 16;
/// Larger blocks are rewritten in steps of so many bytes, as if they were several.
pub const STEP_MAX: u64 = 2 << 20;

/// What is rewritten, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Bytes of a block of files whose layout says nothing.
    pub block_size: u32,
    /// Extents and pieces that a block may consist of.
    pub parts_max: u64,
    /// A block is left alone until it has not changed for so long.
    pub rest: Duration,
    /// What was stored is committed only if the file has these bytes still; `false` is for the simulator, which has to notice.
    pub looks_again: bool,
}

impl Rules {
    /// Those of a file system of blocks of so many bytes.
    pub const fn new(block_size: u32) -> Self {
        Self {
            block_size,
            parts_max: PARTS_MAX,
            rest: REST,
            looks_again: true,
        }
    }

    fn parts_max_of(&self, range: &ByteRange) -> u64 {
        self.parts_max.max(range.length() / EXTENT_SIZE_GOOD)
    }
}

/// Counted since the slice was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RewriteCounts {
    /// Blocks rewritten.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Extents and pieces that they consisted of.
    pub parts_before: u64,
    /// Extents and pieces that they consist of.
    pub parts_after: u64,
    /// Blocks among them that left a place where nothing should lie.
    pub left: u64,
    /// Blocks stored for nothing: they changed meanwhile, or something failed.
    pub given_up: u64,
}

impl RewriteCounts {
    /// Adds those of another slice.
    pub const fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.parts_before += other.parts_before;
        self.parts_after += other.parts_after;
        self.left += other.left;
        self.given_up += other.given_up;
    }
}

type Key = (InodeId, u64);

/// A block being rewritten.
#[derive(Debug)]
struct Job {
    key: Key,
    /// Whose sectors are used.
    owner: NodeId,
    /// Since when it is in this state.
    since: Instant,
    /// It is to be written elsewhere.
    leaves: Option<Leaving>,
    state: State,
}

/// See the module.
#[derive(Debug)]
enum State {
    Preparing(Preparation),
    /// Put off, or given up. What is on its way from disks is still counted.
    Draining {
        loads: Loads,
        frames: u64,
    },
    Storing {
        image: Image,
        is_given_up: bool,
    },
    Stored(Image, Vec<Extent>),
    Flushing {
        image: Image,
        extents: Vec<Extent>,
        flush: IoId,
    },
    Committing {
        image: Image,
        parts_after: u64,
    },
}

/// What is there, of all that a store needs.
#[derive(Debug, Default)]
struct Preparation {
    /// Sectors set aside.
    reserved: SetAside,
    has_asked_tokens: bool,
    has_had_tokens: bool,
    /// That it may hold, and the node's other rewrites not.
    frames: u64,
    /// The node's pace allows it.
    is_allowed: bool,
    loads: Loads,
}

impl Preparation {
    /// Sets so many sectors aside where there are some to spare.
    fn reserve(&mut self, env: &Env<'_>, owner: NodeId, sectors: u64) -> bool {
        if self.reserved.sectors() >= sectors {
            return true;
        }
        env.grants
            .unreserve(owner, std::mem::take(&mut self.reserved));
        if !env.grants.reserve_spare(owner, sectors * SPARE_BLOCKS) {
            return false;
        }
        let rest = SetAside::plain(sectors * (SPARE_BLOCKS - 1));
        env.grants.unreserve(owner, rest);
        self.reserved = SetAside::plain(sectors);
        true
    }

    /// Whether the node's pace allows it now to store so many bytes, with so many reads before.
    fn pay(&mut self, env: &Env<'_>, bytes: u64, reads: u64, is_wanted: bool) -> bool {
        let is_cheap = is_wanted || env.pace.is_idle(env.now);
        let cost = self.loads.pay(bytes, reads, is_cheap);
        self.is_allowed = env.pace.take(env.now, cost, is_wanted);
        self.is_allowed
    }

    /// Whether it may hold so many frames, of `most` of all rewrites of the node.
    fn hold(&mut self, env: &Env<'_>, frames: u64, most: u64) -> bool {
        if self.frames != frames {
            env.pace.let_go(std::mem::take(&mut self.frames));
            if !env.pace.hold(frames, most) {
                return false;
            }
            self.frames = frames;
        }
        true
    }
}

/// A block's pages as they were stored.
#[derive(Debug)]
struct Image {
    io: IoId,
    /// No disk can forget it any more.
    is_durable: bool,
    range: ByteRange,
    /// Of the file: another one says that it was cut, or that space was promised to it.
    size_generation: u64,
    /// What of it has sectors.
    mapped: RangeSet,
    parts_before: u64,
    /// Each page and its frame, with a reference until the Commit.
    frames: Vec<(u64, FrameRef)>,
    runs: Vec<Run>,
}

impl Image {
    /// The file has these bytes.
    fn is_what_is_there(&self, pages: &Pages) -> bool {
        let mut frames = self.frames.iter();
        frames.all(|(number, frame)| pages.clean_frame(*number) == Some(*frame))
    }

    fn release(&mut self, env: &Env<'_>) {
        env.pace.let_go(self.frames.len() as u64);
        let frames = self.frames.drain(..);
        frames.for_each(|(_, frame)| env.pool.release(frame));
    }
}

/// What a slice has to rewrite.
#[derive(Debug, Default)]
pub(crate) struct Rewriter {
    /// Nothing is rewritten without.
    rules: Option<Rules>,
    /// Blocks that may consist of many extents, and when they changed last.
    blocks: BTreeMap<Key, Instant>,
    /// The same, each once, by the time to look at it.
    queue: VecDeque<(Instant, Key)>,
    /// To be written elsewhere, before all others.
    leaving: VecDeque<Leaving>,
    lent: Lent,
    job: Option<Job>,
    /// The job's.
    key: Option<Key>,
    /// No block of many extents is begun before.
    paused_until: Instant,
    /// None at all: something failed.
    failing_until: Instant,
    /// How long that was the last time.
    failing_pause: Duration,
    counts: RewriteCounts,
}

impl Rewriter {
    #[cfg(test)]
    pub(crate) fn noted_count(&self) -> usize {
        self.blocks.len()
    }

    /// No block of many extents is begun before.
    fn pause(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(until);
    }

    /// Nothing is begun for so long: a disk may be away. What leaves regions, for which somebody waits, is tried again sooner, each time
    /// twice as late.
    fn pause_all(&mut self, now: Instant, pause: Duration) {
        self.pause(now + pause);
        if now >= self.failing_until {
            let twice = self.failing_pause.0 * 2;
            self.failing_pause = Duration(twice.clamp(leaving::TRY_PAUSE.0, SHORT_PAUSE.0));
            self.failing_until = now + Duration(self.failing_pause.0.min(pause.0));
        }
        if self.failing_pause > leaving::FAILING_MAX {
            self.stay();
        }
    }

    /// Which node has what is not known yet: nothing is begun for a moment, and nothing has failed.
    fn await_grace(&mut self, now: Instant) {
        self.pause(now + REST);
        self.failing_until = self.failing_until.max(now + leaving::TRY_PAUSE);
    }

    /// The next block that has rested. Those that have not are looked at again after a rest.
    fn next(&mut self, env: &Env<'_>) -> Option<Job> {
        let now = env.now;
        // Where reads do not end nothing else is begun.
        let rules = (self.rules).filter(|_| env.pace.reads() < pace::READS_MAX)?;
        if let Some(job) = self.next_leaving(env) {
            return Some(job);
        }
        if now < self.paused_until {
            return None;
        }
        while let Some((_, key)) = self.queue.pop_front_if(|(due, _)| *due <= now) {
            let changed = self.blocks[&key];
            if now.since(changed) < rules.rest {
                self.queue.push_back((now + rules.rest, key));
                continue;
            }
            self.blocks.remove(&key);
            return Some(Job {
                key,
                owner: env.owner(key.0.shard()),
                since: now,
                leaves: None,
                state: State::Preparing(Preparation::default()),
            });
        }
        None
    }
}

/// The bytes of each extent and each piece.
fn parts_of_map(extents: &[Extent], pieces: &[Piece]) -> impl Iterator<Item = ByteRange> {
    let of_extents = extents.iter().map(|e| {
        let begin = e.file_sector * PAGE_SIZE;
        ByteRange::new(begin, e.file_sector_end() * PAGE_SIZE)
    });
    let of_pieces = pieces.iter().map(|p| ByteRange::new(p.offset, p.end()));
    of_extents.chain(of_pieces)
}

/// What a job waits for has not come in time.
fn is_late(now: Instant, since: Instant) -> bool {
    now.since(since) > PATIENCE
}

/// Bytes that are rewritten at a time, of a file with this layout where blocks of files are otherwise of so many bytes.
fn step_of(layout: &Layout, block_size: u32) -> u64 {
    u64::from(layout.block_size().unwrap_or(block_size)).min(STEP_MAX)
}

impl Inode {
    /// Of what is rewritten at a time.
    fn block_size(&self, rules: Rules) -> u64 {
        let layout = self.attr.map(|attr| attr.layout).unwrap_or_default();
        step_of(&layout, rules.block_size)
    }

    /// The bytes of a block that the file has, as whole pages; nothing behind its end.
    fn block(&self, rules: Rules, block: u64) -> ByteRange {
        let size = self.block_size(rules);
        let end = self.size.next_multiple_of(PAGE_SIZE);
        let begin = (block * size).min(end);
        ByteRange::new(begin, end.min(begin + size))
    }

    /// Nothing is on its way that concerns these bytes.
    fn is_resting(&self, range: &ByteRange) -> bool {
        let is_moving = self.is_revoking() || self.is_held_back() || self.pages.is_busy(range);
        let is_failing = self.starved_since.is_some() || self.failing_since.is_some();
        !is_moving && !is_failing
    }

    /// This node may write all of it.
    fn has_to_itself(&self, range: &ByteRange) -> bool {
        self.covers(RangeMode::Write, range) && !self.holder.is_tearing(range)
    }

    /// Sectors that hold bytes of the block, and in how many extents and pieces.
    fn mapped(&self, range: &ByteRange) -> (RangeSet, u64) {
        let mut mapped = RangeSet::new();
        let mut count = 0;
        for part in parts_of_map(&self.map.extents_in(range), &self.map.pieces) {
            if let Some(within) = part.intersection(range) {
                mapped.insert(crate::inode::sectors_around(&within));
                count += 1;
            }
        }
        (mapped, count)
    }
}

impl Slice {
    /// Has blocks of many extents rewritten when they rest. Not on a mount for reading only. To be called before the first request.
    pub fn rewrite_aged(&mut self, rules: Rules) {
        self.rewriter.rules = Some(rules);
    }

    /// Blocks are rewritten here.
    pub const fn rewrites(&self) -> bool {
        self.rewriter.rules.is_some()
    }

    /// The daemon stops: nothing is begun any more.
    pub(crate) fn stop_rewriting(&mut self, env: &Env<'_>) {
        self.rewriter.rules = None;
        self.give_up_rewrite(env);
        self.rewriter.stay();
    }

    pub(crate) fn rewrite_counts(&self) -> RewriteCounts {
        self.rewriter.counts
    }

    /// Goes on with the block that is being rewritten, or begins the next one, at a tick.
    pub(crate) fn rewrite_some(&mut self, env: &Env<'_>) {
        let may_begin = self.return_tokens(env);
        if self.is_lapsed || env.pace.is_off() {
            return self.give_up_rewrite(env);
        }
        let job = self.rewriter.job.take();
        let next = || may_begin.then(|| self.rewriter.next(env)).flatten();
        let Some(job) = job.or_else(next) else {
            return;
        };
        self.rewriter.key = Some(job.key);
        let job = match job.state {
            State::Preparing(_) => self.prepare(env, job),
            State::Stored(..) => self.commit_block(env, job),
            State::Flushing { .. } if env.now.since(job.since) > PATIENCE => {
                // It is a disk's turn, which may be away for long. What is flushed can be forgotten.
                self.rewriter.pause_all(env.now, SHORT_PAUSE);
                self.put_off(env, job)
            }
            State::Storing { .. }
            | State::Draining { .. }
            | State::Flushing { .. }
            | State::Committing { .. } => Some(job),
        };
        self.set_job(job);
    }

    /// Nobody waits for a Commit of `ino` any more: one that is stored may be the next.
    pub(crate) fn commit_rewrite_of(&mut self, env: &Env<'_>, ino: InodeId) {
        let is_it = |job: &mut Job| job.key.0 == ino && matches!(job.state, State::Stored(..));
        if let Some(job) = self.rewriter.job.take_if(is_it) {
            let job = self.commit_block(env, job);
            self.set_job(job);
        }
    }

    fn set_job(&mut self, job: Option<Job>) {
        self.rewriter.key = job.as_ref().map(|job| job.key);
        self.rewriter.job = job;
    }

    /// Nothing is to be rewritten now; what was begun is looked at again later.
    pub(crate) fn give_up_rewrite(&mut self, env: &Env<'_>) {
        if let Some(job) = self.rewriter.job.take() {
            let job = self.put_off(env, job);
            self.set_job(job);
        }
    }

    /// Something that the job needs has failed. Nobody tries again at once: it may be a disk.
    fn fail_rewrite(&mut self, env: &Env<'_>, leaves: Option<Leaving>) {
        self.rewriter.pause_all(env.now, SHORT_PAUSE);
        let mut job = self.rewriter.job.take();
        let leaves = leaves.or_else(|| job.as_mut()?.leaves.take());
        if let Some(leaving) = leaves {
            self.rewriter.put_back(env.now, leaving);
        }
        if let Some(job) = job {
            let job = self.let_go(env, job);
            self.set_job(job);
        }
    }

    /// Where bytes of `ino` lie, or what they are, cannot be learnt.
    pub(crate) fn on_load_failed(&mut self, env: &Env<'_>, ino: InodeId, range: &ByteRange) {
        let Some(rules) = self.rewriter.rules else {
            return;
        };
        let is_waiting = self.rewriter.job.as_ref().is_some_and(|job| {
            let inode = self.inodes.get(&ino).filter(|_| job.key.0 == ino);
            let block = inode.map(|inode| inode.block(rules, job.key.1));
            let is_preparing = matches!(job.state, State::Preparing(_));
            is_preparing && block.is_some_and(|block| block.overlaps(range))
        });
        if is_waiting {
            self.fail_rewrite(env, None);
        }
    }

    /// An owner has fewer sectors than applications want, here or on another node: before any of them hears so they get those that are in
    /// hand here. And none are taken for a while.
    pub(crate) fn on_scarce(&mut self, env: &Env<'_>, owner: NodeId) {
        self.rewriter.pause(env.now + SHORT_PAUSE);
        let has_some = |job: &Job| {
            let is_with_disk = matches!(job.state, State::Storing { .. });
            let has_none = matches!(job.state, State::Draining { .. });
            let is_with_owner = matches!(job.state, State::Committing { .. });
            job.owner == owner && !is_with_disk && !is_with_owner && !has_none
        };
        if self.rewriter.job.as_ref().is_some_and(has_some) {
            self.give_up_rewrite(env);
        }
    }

    /// What a job has goes back. It stays as long as a disk or the owner has to do with it.
    fn let_go(&mut self, env: &Env<'_>, mut job: Job) -> Option<Job> {
        let owner = job.owner;
        match &mut job.state {
            State::Preparing(preparation) => {
                let reserved = std::mem::take(&mut preparation.reserved);
                env.grants.unreserve(owner, reserved);
                let frames = std::mem::take(&mut preparation.frames);
                if preparation.loads.is_empty() {
                    env.pace.let_go(frames);
                    return None;
                }
                let loads = std::mem::take(&mut preparation.loads);
                job.state = State::Draining { loads, frames };
                Some(job)
            }
            State::Storing { is_given_up, .. } => {
                *is_given_up = true;
                Some(job)
            }
            State::Stored(image, _) => {
                image.release(env);
                env.grants.discard(owner, &image.runs);
                if !image.is_durable {
                    self.forget_stores(env, vec![image.io]);
                }
                self.rewriter.counts.given_up += 1;
                None
            }
            // The disks are still flushed, with whatever is in these sectors by then.
            State::Flushing { image, .. } => {
                image.release(env);
                env.grants.discard(owner, &image.runs);
                self.rewriter.counts.given_up += 1;
                None
            }
            State::Draining { .. } | State::Committing { .. } => Some(job),
        }
    }

    /// The block is looked at again when it has rested.
    fn put_off(&mut self, env: &Env<'_>, mut job: Job) -> Option<Job> {
        match job.leaves.take() {
            Some(leaving) => self.rewriter.put_back(env.now, leaving),
            None if matches!(job.state, State::Draining { .. }) => {}
            None => self.rewriter.note(env.now, job.key, true),
        }
        self.let_go(env, job)
    }

    /// Looks at everything that a store needs and asks for what is missing. `None`: the block is left alone.
    fn prepare(&mut self, env: &Env<'_>, mut job: Job) -> Option<Job> {
        let State::Preparing(has) = &mut job.state else {
            unreachable!("only jobs that begin come here");
        };
        let (ino, block) = job.key;
        let has_to_leave = job.leaves.is_some();
        if job
            .leaves
            .as_ref()
            .is_some_and(|l| !self.is_sure_of(l, has))
        {
            return self.meet(env, job);
        }
        let has_changed = !has_to_leave && self.rewriter.blocks.contains_key(&job.key);
        let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get_mut(&ino)) else {
            return self.let_go(env, job);
        };
        let range = inode.block(rules, block);
        let is_worth = |attr: types::Attr| attr.nlink > 0 && !attr.has_promise();
        let is_named = inode.attr.is_some_and(is_worth);
        let is_covered = inode.covers(RangeMode::Read, &range);
        if has_changed || range.is_empty() || !is_named || !is_covered && !has_to_leave {
            return self.let_go(env, job);
        }
        let is_ours = inode.has_to_itself(&range);
        has.has_had_tokens |= is_ours || has.has_asked_tokens && !inode.is_acquiring;
        let is_others = self.rewriter.lent.was_refused(env.now, ino, has_to_leave);
        let may_not_ask = has.has_had_tokens || is_others;
        if inode.is_leaving(&range) || may_not_ask && !is_ours {
            return self.let_go(env, job);
        }
        let owner = job.owner;
        if !inode.is_resting(&range) || env.owner(ino.shard()) != owner {
            return self.put_off(env, job);
        }
        if inode.pages.has_lost(&range) {
            // They are not to be the file's, and where they are not what is on disks is not known.
            return self.let_go(env, job);
        }
        let is_late = is_late(env.now, job.since);
        if !is_covered || !inode.map.known.contains(&range) {
            if is_late {
                return self.put_off(env, job);
            }
            // Where it lies is known under tokens alone.
            if is_covered {
                self.learn_map(ino, &range);
            } else if !has.has_asked_tokens {
                has.has_asked_tokens = self.ask_for_block(job.key, range);
            }
            return Some(job);
        }
        let (mapped, count) = inode.mapped(&range);
        // Holes stay holes: what lies between them is a run each.
        let best = mapped.ranges().len() as u64;
        let (total, free) = env.pool.frame_counts();
        let is_too_large = range.length() / PAGE_SIZE > total / POOL_PART;
        let is_many = count > rules.parts_max_of(&range) && count >= 2 * best;
        let has_to_move = |leaving: &Leaving| leaving.has_to_move(inode, &range);
        if !job.leaves.as_ref().map_or(is_many, has_to_move) || is_too_large {
            return self.let_go(env, job);
        }
        let bytes: u64 = mapped.ranges().iter().map(ByteRange::length).sum();
        let sectors = bytes / PAGE_SIZE;
        if !has.reserve(env, owner, sectors) {
            return self.lack_spare(env, job);
        }
        if is_late {
            return self.end_late(env, job);
        }
        let reads = inode.reads_of(&mapped);
        if !has.is_allowed && has.pay(env, bytes, reads.len() as u64, has_to_leave) {
            // What follows has its own patience: a disk is not away because others came first.
            job.since = env.now;
        }
        // Others need frames, too.
        let is_short = free < (total / 8).max(env.pool.levels().low);
        if !has.is_allowed || is_short {
            return Some(job);
        }
        if !has.hold(env, sectors, total / POOL_PART) {
            return Some(job);
        }
        if !is_ours {
            if !has.has_asked_tokens {
                has.has_asked_tokens = self.ask_for_block(job.key, range);
            }
            return Some(job);
        }
        if env.pace.is_resting(env.now) && !has_to_leave {
            return Some(job);
        }
        match reads.is_empty() && has.loads.is_empty() {
            true => self.store_block(env, job, range, mapped, count),
            false => self.load_some(env, job, reads),
        }
    }

    /// It has taken too long.
    fn end_late(&mut self, env: &Env<'_>, job: Job) -> Option<Job> {
        let is_loading =
            matches!(&job.state, State::Preparing(preparation) if !preparation.loads.is_empty());
        if is_loading {
            // A disk may be away.
            self.rewriter.pause_all(env.now, SHORT_PAUSE);
        }
        self.put_off(env, job)
    }

    /// There are too few sectors to spare.
    fn lack_spare(&mut self, env: &Env<'_>, job: Job) -> Option<Job> {
        if job.leaves.is_some() && env.now.since(job.since) > leaving::ROOM_PATIENCE {
            // There is nowhere to go: another plan may leave other regions.
            self.rewriter.stay();
            return self.let_go(env, job);
        }
        if is_late(env.now, job.since) {
            self.rewriter.paused_until = env.now + SHORT_PAUSE;
            return self.put_off(env, job);
        }
        Some(job)
    }

    /// All of the block is in memory, and this node's to write: stores it elsewhere.
    fn store_block(
        &mut self,
        env: &Env<'_>,
        mut job: Job,
        range: ByteRange,
        mapped: RangeSet,
        parts_before: u64,
    ) -> Option<Job> {
        let (ino, owner) = (job.key.0, job.owner);
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let attr = inode.attr.expect("the caller has looked at them");
        let mut wanted = Vec::new();
        let mut frames = Vec::new();
        for part in mapped.ranges() {
            let numbers = part.begin / PAGE_SIZE..part.end / PAGE_SIZE;
            wanted.push(WantedRun {
                ino,
                layout: attr.layout,
                file_sector: numbers.start,
                count: u32::try_from(numbers.end - numbers.start).expect("at most a block"),
                is_promised: false,
            });
            for number in numbers {
                let frame = inode.pages.clean_frame(number);
                let frame = frame.expect("nothing is missing, and nothing is on its way");
                env.pool.retain(frame);
                frames.push((number, frame));
            }
        }
        let State::Preparing(has) = &mut job.state else {
            unreachable!("the caller prepared it");
        };
        assert_eq!(has.frames, frames.len() as u64, "let go of with the image");
        let reserved = std::mem::take(&mut has.reserved);
        let taken = env.grants.take_spare(owner, &wanted, reserved);
        let is_there = taken.is_some();
        let taken = taken.unwrap_or_default();
        let io = IoId(self.draw_id());
        let runs = taken.iter().map(|run| run.run).collect();
        let mut image = Image {
            io,
            is_durable: !env.has_volatile_nsd,
            range,
            size_generation: attr.size_generation,
            mapped,
            parts_before,
            frames,
            runs,
        };
        let parts_max = self.rewriter.rules.map_or(0, |r| r.parts_max_of(&range));
        let is_too_many = match &job.leaves {
            Some(_) => taken.len() as u64 > parts_before.max(parts_max),
            None => taken.len() as u64 * 2 > parts_before,
        };
        let would_stay = (job.leaves.as_ref()).is_some_and(|leaving| leaving.would_stay(&taken));
        if !is_there || is_too_many || would_stay {
            image.release(env);
            env.grants.discard(owner, &image.runs);
            if job.leaves.is_some() && is_too_many {
                return None;
            }
            if let Some(leaving) = job.leaves {
                // Others may find some: where this one is to lie, or has found one, there are none.
                match is_there || !attr.layout.nsds().is_empty() {
                    true => self.rewriter.put_back(env.now, leaving),
                    false => self.rewriter.stay(),
                }
                return None;
            }
            let pause = match is_there {
                true => SCATTERED_PAUSE,
                // Where the file is to lie.
                false => SHORT_PAUSE,
            };
            self.rewriter.paused_until = env.now + pause;
            self.rewriter.note(env.now, job.key, true);
            return None;
        }
        let frame_of = |number: u64| {
            let at = image.frames.binary_search_by_key(&number, |(n, _)| *n);
            image.frames[at.expect("what was wanted was taken")].1
        };
        let piece = |run: &crate::env::TakenRun| StorePiece {
            file_sector: run.file_sector,
            frames: (run.file_sector..run.file_sector + u64::from(run.count))
                .map(frame_of)
                .collect(),
            run: run.run,
        };
        let pieces = taken.iter().map(piece).collect();
        self.out.push(Effect::Store(io, ino, pieces));
        Some(Job {
            since: env.now,
            state: State::Storing {
                image,
                is_given_up: false,
            },
            ..job
        })
    }

    /// A store has ended. False: it was none for a rewrite.
    pub(crate) fn on_rewrite_stored(
        &mut self,
        env: &Env<'_>,
        io: IoId,
        result: &Result<Vec<Extent>, IoFailure>,
    ) -> bool {
        let is_it =
            |job: &mut Job| matches!(&job.state, State::Storing { image, .. } if image.io == io);
        let Some(job) = self.rewriter.job.take_if(is_it) else {
            return false;
        };
        let State::Storing {
            mut image,
            is_given_up,
        } = job.state
        else {
            unreachable!("just seen");
        };
        let owner = job.owner;
        if job.leaves.is_none() {
            env.pace.rest(env.now, env.now.since(job.since));
        }
        match result {
            Ok(extents) => {
                let job = Job {
                    since: env.now,
                    state: State::Stored(image, extents.clone()),
                    ..job
                };
                let job = match is_given_up {
                    true => self.let_go(env, job),
                    false => self.commit_block(env, job),
                };
                self.set_job(job);
            }
            Err(failure) => {
                image.release(env);
                match failure {
                    IoFailure::Unknown => env.grants.burn(owner, &image.runs),
                    IoFailure::Corrupt | IoFailure::Unreachable => {
                        env.grants.discard(owner, &image.runs);
                    }
                }
                self.rewriter.key = None;
                self.rewriter.counts.given_up += 1;
                self.fail_rewrite(env, job.leaves);
            }
        }
        true
    }

    /// Disks have been flushed, or have lost what was written. False: not for a rewrite.
    pub(crate) fn on_rewrite_flushed(
        &mut self,
        env: &Env<'_>,
        io: IoId,
        result: &Result<(), Undurable>,
    ) -> bool {
        let is_it =
            |job: &mut Job| matches!(&job.state, State::Flushing { flush, .. } if *flush == io);
        let Some(job) = self.rewriter.job.take_if(is_it) else {
            return false;
        };
        let State::Flushing {
            mut image, extents, ..
        } = job.state
        else {
            unreachable!("just seen");
        };
        image.is_durable = true;
        let job = Job {
            since: env.now,
            state: State::Stored(image, extents),
            ..job
        };
        let job = match result {
            Ok(()) => self.commit_block(env, job),
            // A server restarted between write and flush, or the disk does not flush: it is not written to again at once.
            Err(failed) => {
                if failed.iter().any(|(_, why)| *why == IoFailure::Unreachable) {
                    self.rewriter.pause_all(env.now, SHORT_PAUSE);
                }
                self.put_off(env, job)
            }
        };
        self.set_job(job);
        true
    }
}
