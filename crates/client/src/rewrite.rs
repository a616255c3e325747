//! Blocks of many extents are written again, each as one run: sequential reads must not become random for ever.
//!
//! ```text
//! a Commit of a part, a load of many extents --> noted --has rested--> its map --few extents--> done
//!          ^                                                             | many
//!          '--changed meanwhile-- pages loaded <-- the node's pace <-- tokens to write it
//!                                   '--> dirty again --> the ordinary flush and Commit --> done
//! ```
//!
//! Invariants
//! - The bytes stay the same, and so do times, size and set-id bits: such a Commit names none of them. It is made under the token to
//!   write the whole block, as any other: what another node has written meanwhile is never written over.
//! - One block at a time in a slice, and a number of bytes a second on a node (`Pace`), fewer while applications read or write.
//! - A block that changes is left alone until it rests: what is overwritten at random all the time is not rewritten all the time.
//! - It takes no sectors that somebody else wants, and none where few are free (`SPARE_BLOCKS`); no frames where few are free.
//! - If it cannot be stored nothing is lost, and nobody hears of it: the sectors before still have the bytes.
//!
//! What this deliberately does not do: look for blocks that nobody writes or reads, and join blocks with one another.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use data::SetAside;
use meta::Commit;
use types::{
    ByteRange, Duration, Extent, InodeId, Instant, Pattern, Piece, RangeMode, RangeSet, Want,
};

use crate::env::Env;
use crate::flush::{Batch, Purpose};
use crate::inode::Inode;
use crate::pages::PAGE_SIZE;
use crate::slice::Slice;

/// Bytes a second of a node that nobody reads or writes on: a disk of today does some ten times as much.
const IDLE_RATE: u64 = 32 << 20;
/// And while somebody does: a tenth of a hard disk.
const BUSY_RATE: u64 = 4 << 20;
/// A node is idle when nobody has read or written for so long.
const IDLE_AFTER: Duration = Duration::from_millis(500);
/// A rewrite may begin so much later than the rate would have it, and the next one be on time.
const LATE_MAX: Duration = Duration::from_millis(100);
/// Uses that follow one another so closely are noted once.
const USE_GRAIN: Duration = Duration::from_millis(20);
/// A block is changed no more if it has not been for so long.
pub const REST: Duration = Duration::from_secs(10);
/// A block of so many extents is as good as one: 128 KiB each, in blocks of the default size.
pub const PARTS_MAX: u64 = 8;
/// An extent of so many bytes is long enough, whatever the size of the block.
const EXTENT_SIZE_GOOD: u64 = 128 << 10;
/// Blocks that a slice remembers; readers find the others.
const BLOCK_COUNT_MAX: usize = 4096;
/// Tokens, a map, loads, frames and sectors are waited for so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// As many blocks must fit into the sectors in hand, or into what an owner gives ahead of need: at most an eighth of what it has left.
const SPARE_BLOCKS: u64 = 4;
/// Where there were no sectors nobody tries again before.
const SHORT_PAUSE: Duration = Duration::from_secs(60);
/// Where a block consists of many extents again, free sectors are scattered.
const SCATTERED_PAUSE: Duration = Duration::from_secs(600);
/// Of the pool one part in so many may be one block.
const POOL_PART: u64 = 16;

/// How fast a node rewrites, all its slices together. Without a lock: who loses a race waits for the next tick.
#[derive(Debug, Default)]
pub struct Pace {
    /// When an application read or wrote last.
    used_at: AtomicU64,
    /// Nothing is rewritten before.
    next: AtomicU64,
}

impl Pace {
    /// An application reads or writes.
    pub(crate) fn note_use(&self, now: Instant) {
        let last = Instant(self.used_at.load(Ordering::Relaxed));
        if now.since(last) > USE_GRAIN {
            self.used_at.store(now.0, Ordering::Relaxed);
        }
    }

    /// Whether so many bytes may be rewritten now.
    pub(crate) fn take(&self, now: Instant, bytes: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        if now.0 < next {
            return false;
        }
        let last = Instant(self.used_at.load(Ordering::Relaxed));
        let rate = match now.since(last) > IDLE_AFTER {
            true => IDLE_RATE,
            false => BUSY_RATE,
        };
        let pause = Duration(bytes.saturating_mul(1_000_000_000) / rate);
        // What the last ticks were late is made up for.
        let from = Instant(next.max(now.0.saturating_sub(LATE_MAX.0)));
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        self.next
            .compare_exchange(next, (from + pause).0, order, failed)
            .is_ok()
    }
}

/// What is rewritten, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Bytes of a block of files whose layout says nothing.
    pub block_size: u32,
    /// Extents and pieces that a block may consist of.
    pub parts_max: u64,
    /// A block is left alone until it has not changed for so long.
    pub rest: Duration,
}

impl Rules {
    /// Those of a file system of blocks of so many bytes.
    pub const fn new(block_size: u32) -> Self {
        Self {
            block_size,
            parts_max: PARTS_MAX,
            rest: REST,
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
}

impl RewriteCounts {
    /// Adds those of another slice.
    pub const fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.bytes += other.bytes;
        self.parts_before += other.parts_before;
        self.parts_after += other.parts_after;
    }
}

type Key = (InodeId, u64);

/// A block being rewritten.
#[derive(Debug)]
struct Job {
    key: Key,
    /// Since when it waits for what it waits for.
    since: Instant,
    has_asked_tokens: bool,
    is_allowed: bool,
    /// What is dirty by it; nothing: it is not yet.
    written: RangeSet,
    parts_before: u64,
    parts_after: u64,
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
    job: Option<Job>,
    /// The job's.
    key: Option<Key>,
    paused_until: Instant,
    counts: RewriteCounts,
}

impl Rewriter {
    /// A block changed, or was found to be of many extents.
    fn note(&mut self, now: Instant, key: Key, has_changed: bool) {
        let Some(rules) = self.rules else { return };
        if !has_changed && self.key == Some(key) {
            // Loaded to be rewritten.
            return;
        }
        let is_full = self.blocks.len() >= BLOCK_COUNT_MAX;
        match self.blocks.entry(key) {
            std::collections::btree_map::Entry::Occupied(mut known) if has_changed => {
                known.insert(now);
            }
            std::collections::btree_map::Entry::Vacant(free) if !is_full => {
                free.insert(now);
                self.queue.push_back((now + rules.rest, key));
            }
            _ => {}
        }
    }

    /// The next block that has rested. Those that have not are looked at again after a rest.
    fn next(&mut self, now: Instant) -> Option<Job> {
        let rules = self.rules.filter(|_| now >= self.paused_until)?;
        while let Some((_, key)) = self.queue.pop_front_if(|(due, _)| *due <= now) {
            let changed = self.blocks[&key];
            if now.since(changed) < rules.rest {
                self.queue.push_back((now + rules.rest, key));
                continue;
            }
            self.blocks.remove(&key);
            return Some(Job {
                key,
                since: now,
                has_asked_tokens: false,
                is_allowed: false,
                written: RangeSet::new(),
                parts_before: 0,
                parts_after: 0,
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

impl Inode {
    fn block_size(&self, rules: Rules) -> u64 {
        let of_layout = self.attr.and_then(|attr| attr.layout.block_size());
        u64::from(of_layout.unwrap_or(rules.block_size))
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

    /// All of these pages are dirty for the sake of a rewrite alone: the sectors before have the same bytes.
    pub(crate) fn is_only_rewritten(&self, numbers: &[u64]) -> bool {
        let page = |number: &u64| ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
        !numbers.is_empty() && numbers.iter().all(|n| self.rewritten.contains(&page(n)))
    }

    /// A Commit of these batches brings nothing but what the owner has.
    pub(crate) fn is_only_rewritten_by(&self, commit: &Commit, batches: &[Batch]) -> bool {
        let is_change = commit.size.is_some() || commit.modified.is_some() || commit.drops_rights;
        let is_same = |batch: &Batch| self.is_only_rewritten(batch.numbers());
        let has_pages = !batches.is_empty() && batches.iter().all(is_same);
        !is_change && commit.kill_set_id.is_none() && has_pages
    }

    /// Somebody writes these bytes: a page that they touch is dirty for his sake.
    pub(crate) fn is_rewritten_no_more(&mut self, range: &ByteRange) {
        if !self.rewritten.is_empty() {
            self.rewritten.remove(crate::inode::sectors_around(range));
        }
    }
}

impl Slice {
    /// Has blocks of many extents rewritten when they rest. Not on a mount for reading only. To be called before the first request.
    pub fn rewrite_aged(&mut self, rules: Rules) {
        self.rewriter.rules = Some(rules);
    }

    /// The daemon stops: what is being rewritten is committed, nothing else is begun.
    pub(crate) fn stop_rewriting(&mut self) {
        self.rewriter.rules = None;
    }

    pub(crate) fn rewrite_counts(&self) -> RewriteCounts {
        self.rewriter.counts
    }

    /// The owner has taken a Commit.
    pub(crate) fn note_committed(&mut self, env: &Env<'_>, ino: InodeId, commit: &Commit) {
        let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get(&ino)) else {
            return;
        };
        let size = inode.block_size(rules);
        for bytes in parts_of_map(&commit.extents, &commit.pieces) {
            for block in bytes.begin / size..bytes.end.div_ceil(size) {
                let (key, range) = ((ino, block), inode.block(rules, block));
                let job = self.rewriter.job.as_mut();
                if let Some(job) = job.filter(|j| j.key == key && !j.written.is_empty()) {
                    job.parts_after += 1;
                    continue;
                }
                let may_be_many = range.length() / PAGE_SIZE > rules.parts_max_of(&range);
                if !bytes.contains(&range) && may_be_many {
                    self.rewriter.note(env.now, key, true);
                }
            }
        }
    }

    /// A reader loads these bytes, and they lie in so many pieces.
    pub(crate) fn note_loaded(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: &ByteRange,
        count: usize,
    ) {
        if let (Some(rules), Some(inode)) = (self.rewriter.rules, self.inodes.get(&ino))
            && count as u64 > rules.parts_max_of(range)
        {
            let key = (ino, range.begin / inode.block_size(rules));
            self.rewriter.note(env.now, key, false);
        }
    }

    /// Goes on with the block that is being rewritten, or begins the next one, at a tick.
    pub(crate) fn rewrite_some(&mut self, env: &Env<'_>) {
        if self.is_lapsed {
            return;
        }
        let job = self.rewriter.job.take();
        let Some(job) = job.or_else(|| self.rewriter.next(env.now)) else {
            return;
        };
        self.rewriter.key = Some(job.key);
        self.rewriter.job = match job.written.is_empty() {
            true => self.begin_rewrite(env, job),
            false => self.await_rewrite(env, job),
        };
        self.rewriter.key = self.rewriter.job.as_ref().map(|job| job.key);
    }

    /// Takes the next step until the block is dirty; `None`: it is left alone.
    fn begin_rewrite(&mut self, env: &Env<'_>, mut job: Job) -> Option<Job> {
        let rules = self.rewriter.rules?;
        let (ino, block) = job.key;
        let has_changed = self.rewriter.blocks.contains_key(&job.key);
        let inode = self.inodes.get_mut(&ino)?;
        let range = inode.block(rules, block);
        // What is promised to goes to short runs: it would not become fewer.
        let is_worth = |attr: types::Attr| attr.nlink > 0 && !attr.has_promise();
        let is_named = inode.attr.is_some_and(is_worth);
        if range.is_empty() || !is_named || !inode.covers(RangeMode::Read, &range) {
            return None;
        }
        if has_changed {
            return None;
        }
        if !inode.is_resting(&range) || env.now.since(job.since) > PATIENCE {
            // After another rest.
            self.rewriter.note(env.now, job.key, true);
            return None;
        }
        if !inode.map.known.contains(&range) {
            self.learn_map(ino, &range);
            return Some(job);
        }
        let mut mapped = RangeSet::new();
        let mut count = 0;
        for part in parts_of_map(&inode.map.extents_in(&range), &inode.map.pieces) {
            if let Some(within) = part.intersection(&range) {
                mapped.insert(crate::inode::sectors_around(&within));
                count += 1;
            }
        }
        // Holes stay holes: what lies between them is a run each.
        let best = mapped.ranges().len() as u64;
        let (total, free) = env.pool.frame_counts();
        let is_too_large = range.length() / PAGE_SIZE > total / POOL_PART;
        if count <= rules.parts_max_of(&range) || count < 2 * best || is_too_large {
            return None;
        }
        if !inode.covers(RangeMode::Write, &range) || inode.holder.is_tearing(&range) {
            if !std::mem::replace(&mut job.has_asked_tokens, true) {
                let required = Pattern::plain(range);
                let want = Want::Range {
                    mode: RangeMode::Write,
                    required,
                    desired: required,
                };
                self.acquire(env, ino, vec![want]);
            }
            return Some(job);
        }
        let bytes: u64 = mapped.ranges().iter().map(ByteRange::length).sum();
        if !job.is_allowed {
            job.is_allowed = env.pace.take(env.now, bytes);
            job.since = env.now;
        }
        if !job.is_allowed {
            return Some(job);
        }
        let parts = mapped.ranges().iter();
        let missing: Vec<RangeSet> = parts.map(|part| inode.pages.missing(part)).collect();
        let missing = missing.iter().flat_map(RangeSet::ranges);
        let mut is_missing = false;
        for part in missing {
            is_missing = true;
            // Others need frames, too.
            if free >= total / 8 {
                self.load(env, ino, *part, false);
            }
        }
        if is_missing {
            return Some(job);
        }
        self.redirty_block(env, job, mapped, count)
    }

    /// All of the block is in memory, and this node's to write: makes it dirty.
    fn redirty_block(
        &mut self,
        env: &Env<'_>,
        mut job: Job,
        mapped: RangeSet,
        parts_before: u64,
    ) -> Option<Job> {
        let ino = job.key.0;
        let owner = env.owner(ino.shard());
        let bytes: u64 = mapped.ranges().iter().map(ByteRange::length).sum();
        let sectors = bytes / PAGE_SIZE;
        if !env.grants.reserve_spare(owner, sectors * SPARE_BLOCKS) {
            if env.now.since(job.since) >= PATIENCE {
                self.rewriter.paused_until = env.now + SHORT_PAUSE;
            }
            return Some(job);
        }
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let whole = RangeSet::of(ByteRange::new(0, PAGE_SIZE));
        let mut count = 0;
        for part in mapped.ranges() {
            for number in part.begin / PAGE_SIZE..part.end / PAGE_SIZE {
                count += u64::from(inode.pages.redirty(number, &whole));
            }
            // They go to sectors now.
            self.hasty_count -= inode.forget_hasty(part);
            inode.rewritten.insert(*part);
        }
        inode.reserved += SetAside::plain(count);
        let rest = SetAside::plain(sectors * SPARE_BLOCKS - count);
        env.grants.unreserve(owner, rest);
        job.written = mapped;
        job.parts_before = parts_before;
        self.add_goal(env, ino, Purpose::Background);
        Some(job)
    }

    /// The block is on its way; `None`: it is over.
    fn await_rewrite(&mut self, env: &Env<'_>, job: Job) -> Option<Job> {
        let inode = self.inodes.get_mut(&job.key.0)?;
        let mut parts = job.written.ranges().iter();
        if parts.any(|part| inode.pages.is_busy(part)) {
            return Some(job);
        }
        for part in job.written.ranges() {
            inode.rewritten.remove(*part);
        }
        let bytes: u64 = job.written.ranges().iter().map(ByteRange::length).sum();
        let counts = &mut self.rewriter.counts;
        if job.parts_after > 0 {
            counts.blocks += 1;
            counts.bytes += bytes;
            counts.parts_before += job.parts_before;
            counts.parts_after += job.parts_after;
        }
        if job.parts_after * 2 > job.parts_before {
            self.rewriter.paused_until = env.now + SCATTERED_PAUSE;
        }
        None
    }
}
