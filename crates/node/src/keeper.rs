//! Which shards are checkpointed, and when: rounds of checkpoints, so that what the journal has to hold stays bounded.
//!
//! ```text
//! Idle -- what the trees lack has grown --> a round: the shards that lack most, one after the other
//!   Encoding, Writing -> Flushing -> Linking -> installed (a new root in memory) -> the next shard
//!                  \--------\-> Releasing -> the round is over, and the next one later
//! round over -> a snapshot of the journal makes its roots durable -> pages of the older ones are free -> Idle
//! ```
//!
//! Invariants
//! - One round at a time, and in it one shard at a time; the next round begins when the roots of the last one are durable.
//! - No call holds a lock for longer than one piece takes (`checkpoint`), and none is held between two calls.
//! - A checkpoint ends only when no write of it is under way. Reads that it leaves behind belong to the cache: each
//!   checkpoint waits under a name of its own, and what comes for another name it does not take.
//! - A tree that cannot be read holds up its own shard alone, which is tried again after a pause of its own.
//! - Whoever keeps its journal small enough never has a round: its snapshots are as they always were.
//!
//! What this deliberately does not do: I/O (`Act`), and the journal's snapshots, whose driver asks
//! `OwnerLog::begin_snapshot`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use store::tree::pages::Counters as PageCounters;
use store::tree::{
    ApplyConfig, ApplyError, Arrival, Fetch, FetchId, PageWrite, Pages, TreeId, Unreadable, Waiter,
    WriteId,
};
use types::{Duration, Instant, NsdId, Run, ShardId};

use crate::checkpoint::{Checkpoint, Failure, Todo};
use crate::log::{OwnerLog, PAGE_SECTORS};
use crate::owner::OwnerSlice;
use crate::refusing::Refusing;

/// Bytes of pages of all trees in memory.
const CACHE_SIZE: usize = 16 << 20;
/// Pages that are read at a time.
const READ_COUNT_MAX: usize = 16;
/// Pages that are written at a time.
const WRITE_COUNT_MAX: usize = 64;
/// Runs that are linked, given back or freed under one lock.
const RUN_COUNT: usize = 256;
/// After a checkpoint that failed, the next one is tried so much later; twice as late each time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// See `PAUSE_MIN`.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// The same where a disk did not take what was written.
const DISK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// After so many failures in a row operations do not wait for checkpoints any more.
const HOPELESS_COUNT: u32 = 4;
/// A round leaves one part in so many of what makes it due.
const ROUND_PART: u64 = 8;

/// The shards and the journal of an owner, each under its own lock. No lock is held when a call returns.
pub trait Host {
    /// Shows a shard, under its lock.
    fn with_shard(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice));
    /// Shows journal and space, under their lock.
    fn with_log(&mut self, act: &mut dyn FnMut(&mut OwnerLog));
    /// Shows both, the shard's lock taken first.
    fn with_both(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice, &mut OwnerLog));
}

/// A host without locks: before the daemon serves, in the simulator and in tests.
#[derive(Debug)]
pub struct PlainHost<'a> {
    /// By shard.
    pub shards: &'a mut [Option<OwnerSlice>],
    /// Journal and space.
    pub log: &'a mut OwnerLog,
}

impl Host for PlainHost<'_> {
    fn with_shard(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice)) {
        if let Some(Some(slice)) = self.shards.get_mut(usize::from(shard.0)) {
            act(slice);
        }
    }

    fn with_log(&mut self, act: &mut dyn FnMut(&mut OwnerLog)) {
        act(self.log);
    }

    fn with_both(&mut self, shard: ShardId, act: &mut dyn FnMut(&mut OwnerSlice, &mut OwnerLog)) {
        if let Some(Some(slice)) = self.shards.get_mut(usize::from(shard.0)) {
            act(slice, self.log);
        }
    }
}

/// What a shard would take in a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardSize {
    /// Which.
    pub shard: ShardId,
    /// Bytes of what its tree lacks.
    pub unsaved: u64,
    /// Bytes in all.
    pub all: u64,
}

impl ShardSize {
    /// Of this shard, now.
    pub fn of(shard: &meta::Shard) -> Self {
        Self {
            shard: shard.id(),
            unsaved: shard.unsaved_size(),
            all: shard.snapshot_size(),
        }
    }
}

/// A page to write, and the checkpoint that it is of.
#[derive(Clone, Debug)]
pub struct Write {
    /// Say this in `on_written`.
    pub checkpoint: u64,
    /// What, where.
    pub page: PageWrite,
}

/// What to do next.
#[derive(Clone, Debug)]
pub enum Act {
    /// Read these sectors; then `on_read`.
    Read(Fetch),
    /// Write this page; then `on_written`.
    Write(Write),
    /// Flush these NSDs; then `on_flushed`.
    Flush(Vec<NsdId>),
    /// Something was done: call again.
    Again,
    /// I/O is under way, or a snapshot of the journal: call again when one has ended.
    Wait,
    /// Nothing is to be done before the next `on_tick`.
    Idle,
}

/// Counted since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Rounds begun.
    pub rounds: u64,
    /// Checkpoints installed.
    pub checkpoints: u64,
    /// Keys that these took.
    pub keys: u64,
    /// Pages written.
    pub pages: u64,
    /// Checkpoints that failed.
    pub failures: u64,
    /// Rounds that moved pages out of nearly empty regions.
    pub evacuations: u64,
}

#[derive(Debug)]
enum Stage {
    Writing,
    Flushing,
    Linking,
    Releasing(Failure),
}

#[derive(Debug)]
struct Making {
    number: u64,
    shard: ShardId,
    checkpoint: Checkpoint,
    stage: Stage,
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub struct Keeper {
    pages: Pages,
    making: Option<Making>,
    /// Shards of the round that are still to come; none: no round.
    round: Option<VecDeque<ShardId>>,
    /// Where pages of all trees are to leave in the round, or the next one.
    evacuated: Vec<Run>,
    /// Something was installed in this round.
    has_installed: bool,
    is_due: bool,
    /// A round of all shards that lack anything is due, whatever the sizes say.
    is_requested: bool,
    /// One is to be requested as soon as there is room for its pages.
    is_wished: bool,
    sizes: Vec<ShardSize>,
    next_number: u64,
    not_before: Instant,
    pause: Duration,
    failure_count: u32,
    /// Shards whose trees could not be read when they were checkpointed last: when that may be tried again, and how much later the next time.
    unreadable: BTreeMap<ShardId, (Instant, Duration)>,
    /// NSDs that did not take pages.
    refusing: Refusing,
    /// Those that did not since the last tick.
    refused: BTreeSet<NsdId>,
    /// Pages of older roots are not all free yet.
    is_settling: bool,
    /// The newest failure, until it is told.
    report: Option<(ShardId, Failure)>,
    /// Grows with everything that is done; as `on_tick` saw it last.
    progress: (u64, u64),
    counters: Counters,
}

impl Default for Keeper {
    fn default() -> Self {
        Self::new()
    }
}

impl Keeper {
    /// No round is under way.
    pub fn new() -> Self {
        Self {
            pages: Pages::new(CACHE_SIZE, READ_COUNT_MAX),
            making: None,
            round: None,
            evacuated: Vec::new(),
            has_installed: false,
            is_due: false,
            is_requested: false,
            is_wished: false,
            sizes: Vec::new(),
            next_number: 1,
            not_before: Instant(0),
            pause: PAUSE_MIN,
            failure_count: 0,
            unreadable: BTreeMap::new(),
            refusing: Refusing::default(),
            refused: BTreeSet::new(),
            is_settling: false,
            report: None,
            progress: (0, 0),
            counters: Counters::default(),
        }
    }

    /// What was done.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the cache of pages did.
    pub fn page_counters(&self) -> PageCounters {
        self.pages.counters()
    }

    /// A round is under way or is about to begin.
    pub fn is_busy(&self) -> bool {
        self.round.is_some() || self.is_due || self.is_requested || self.is_settling
    }

    /// The newest failure, once.
    pub fn take_report(&mut self) -> Option<(ShardId, Failure)> {
        self.report.take()
    }

    /// What is under way, and since when: for `gupfs waiters`.
    pub fn waiting(&self) -> Option<(String, Instant)> {
        let making = self.making.as_ref()?;
        let stage = match making.stage {
            Stage::Writing => "is written",
            Stage::Flushing => "waits for the NSDs to flush",
            Stage::Linking => "waits for the journal's snapshot to be durable",
            Stage::Releasing(_) => "is given up",
        };
        let keys = making.checkpoint.key_count();
        let what = format!("the checkpoint of {} ({keys} keys) {stage}", making.shard);
        Some((what, making.since))
    }

    /// Time has passed, and the shards have these sizes now: says what a snapshot would take, how much room checkpoints need,
    /// and whether a round is due.
    pub fn on_tick(&mut self, now: Instant, sizes: Vec<ShardSize>, log: &mut OwnerLog) {
        log.settle(RUN_COUNT);
        self.avoid_refusing(now, log);
        self.is_settling = log.space.pages().is_settling();
        // Also while one is about to begin: else its room is given back before it has taken any.
        let is_coming = self.is_wished || self.is_requested || self.round.is_some();
        log.note_sizes(&sizes, is_coming);
        if self.is_wished && !log.lacks_page_room() {
            (self.is_wished, self.is_requested) = (false, true);
        }
        if self.round.is_none() && self.making.is_none() && self.evacuated.is_empty() {
            self.evacuated = log.plan_evacuation(now);
            self.is_requested |= !self.evacuated.is_empty();
        }
        let (mut unsaved, mut put_off) = (0, 0);
        for size in &sizes {
            match self.is_put_off(size.shard, now) {
                true => put_off += size.unsaved,
                false => unsaved += size.unsaved,
            }
        }
        self.sizes = sizes;
        let due = log.unsaved_size_due();
        // Where what is put off fills the journal, too, all that a round would not leave is saved.
        let is_full = unsaved + put_off > due && unsaved > due / ROUND_PART;
        self.is_due = (unsaved > due || is_full) && !log.journal.is_poisoned();
        // What fills the journal can go nowhere.
        let is_stuck = !self.is_due && unsaved + put_off > due;
        let has_moved = self.progress.0 != self.progress.1;
        self.progress.1 = self.progress.0;
        if log.take_room_come() {
            // There is more room than those that failed had.
            (self.failure_count, self.not_before) = (self.failure_count.min(1), now);
            self.pause = PAUSE_MIN;
        }
        let is_hopeful = self.failure_count < HOPELESS_COUNT && !is_stuck;
        log.note_checkpoints(now, self.is_busy() && is_hopeful, has_moved);
        log.note_starving(self.failure_count > 0 || is_stuck);
    }

    /// A round of all shards whose trees lack anything is due now, whatever the sizes say; after one that failed not before its
    /// pause is over.
    pub fn request_round(&mut self) {
        self.is_requested = true;
    }

    /// A round of all shards whose trees lack anything would be welcome. From now on room is taken for its pages, and when that is
    /// there it is requested: a round that finds none fails, and what fails is tried with everything that the file system has. While
    /// one is under way its end is waited for: what it writes counts as unsaved until then.
    pub fn wish_round(&mut self) {
        self.is_wished |= self.round.is_none();
    }

    /// The next thing to do.
    pub fn step(&mut self, now: Instant, host: &mut dyn Host) -> Act {
        if let Some(fetch) = self.pages.next_fetch() {
            return Act::Read(fetch);
        }
        let Some(mut making) = self.making.take() else {
            if self.is_settling && self.round.is_none() && matches!(self.settle(host), Act::Again) {
                return Act::Again;
            }
            return self.next_shard(now, host);
        };
        let act = match making.stage {
            Stage::Writing => self.write(&mut making, host),
            Stage::Flushing => Act::Wait,
            Stage::Linking => return self.link(making, now, host),
            Stage::Releasing(failure) => {
                let mut is_over = false;
                host.with_log(&mut |log| {
                    is_over = making.checkpoint.release(log.space.pages_mut(), RUN_COUNT);
                });
                if is_over {
                    return self.give_up(making, failure, now, host);
                }
                Act::Again
            }
        };
        self.making = Some(making);
        act
    }

    fn next_shard(&mut self, now: Instant, host: &mut dyn Host) -> Act {
        let Some(round) = &mut self.round else {
            return self.begin_round(now, host);
        };
        let Some(shard) = round.pop_front() else {
            self.end_round(host);
            return Act::Again;
        };
        let number = self.next_number;
        self.next_number += 1;
        let evacuated = &self.evacuated;
        let mut begun = None;
        host.with_both(shard, &mut |slice, log| {
            let fs = log.journal.fs();
            let config = ApplyConfig {
                tree: TreeId { fs, shard },
                epoch: log.epoch,
                lsn: log.journal.last_lsn(),
                waiter: Waiter(number),
                ahead_max: READ_COUNT_MAX,
                write_count_max: WRITE_COUNT_MAX,
                entry_count_max: u32::MAX,
            };
            let root = log.root(shard);
            begun = Checkpoint::begin(config, &root, evacuated, &mut slice.shard);
        });
        self.progress.0 += 1;
        self.making = begun.map(|checkpoint| Making {
            number,
            shard,
            checkpoint,
            stage: Stage::Writing,
            since: now,
        });
        Act::Again
    }

    fn begin_round(&mut self, now: Instant, host: &mut dyn Host) -> Act {
        if !(self.is_due || self.is_requested) || now < self.not_before {
            return Act::Idle;
        }
        let (mut may_begin, mut due) = (false, 0);
        host.with_log(&mut |log| {
            may_begin = log.may_begin_round();
            due = log.unsaved_size_due();
        });
        if !may_begin {
            return Act::Idle;
        }
        let mut sizes = std::mem::take(&mut self.sizes);
        sizes.retain(|size| !self.is_put_off(size.shard, now));
        // Those whose trees cannot be read come last. After failures the smallest come first: there may be room for these, and they leave more.
        let is_failing = self.failure_count > 0;
        sizes.sort_unstable_by_key(|size| {
            let is_last = self.unreadable.contains_key(&size.shard);
            let order = if is_failing {
                size.unsaved
            } else {
                !size.unsaved
            };
            (is_last, order)
        });
        let enough = if self.is_requested {
            0
        } else {
            due / ROUND_PART
        };
        let mut left: u64 = sizes.iter().map(|size| size.unsaved).sum();
        let mut round = VecDeque::new();
        for size in sizes {
            let is_of_all = !self.evacuated.is_empty();
            if size.unsaved == 0 && !is_of_all {
                continue;
            }
            if left <= enough && !is_of_all {
                break;
            }
            left -= size.unsaved;
            round.push_back(size.shard);
        }
        (self.is_due, self.is_requested) = (false, false);
        if round.is_empty() {
            self.evacuated.clear();
            return Act::Idle;
        }
        self.counters.rounds += 1;
        self.counters.evacuations += u64::from(!self.evacuated.is_empty());
        self.has_installed = false;
        self.round = Some(round);
        Act::Again
    }

    /// Pages go to other NSDs than those that have refused some, for a while.
    fn avoid_refusing(&mut self, now: Instant, log: &mut OwnerLog) {
        if self.refusing.is_empty() && self.refused.is_empty() {
            return;
        }
        for nsd in std::mem::take(&mut self.refused) {
            self.refusing.note(now, nsd);
        }
        log.avoid_for_pages(self.refusing.avoided(now).collect());
    }

    /// Its tree could not be read a moment ago.
    fn is_put_off(&self, shard: ShardId, now: Instant) -> bool {
        let unreadable = self.unreadable.get(&shard);
        unreadable.is_some_and(|(not_before, _)| now < *not_before)
    }

    fn end_round(&mut self, host: &mut dyn Host) {
        self.round = None;
        self.evacuated.clear();
        // What was installed is durable, and older pages are free, with the next snapshot.
        host.with_log(&mut |log| log.want_snapshot_of_roots());
    }

    fn write(&mut self, making: &mut Making, host: &mut dyn Host) -> Act {
        let checkpoint = &mut making.checkpoint;
        match checkpoint.poll(&mut self.pages) {
            Todo::Write(page) => {
                self.progress.0 += 1;
                self.counters.pages += 1;
                let checkpoint = making.number;
                Act::Write(Write { checkpoint, page })
            }
            Todo::Wait => match self.pages.next_fetch() {
                Some(fetch) => Act::Read(fetch),
                None => Act::Wait,
            },
            Todo::Encode => {
                loop {
                    host.with_shard(making.shard, &mut |slice| {
                        checkpoint.encode(&mut slice.shard);
                    });
                    if !checkpoint.push() {
                        break;
                    }
                }
                self.progress.0 += 1;
                Act::Again
            }
            Todo::Places => {
                host.with_log(&mut |log| log.take_places(checkpoint));
                Act::Again
            }
            Todo::Written => {
                making.stage = Stage::Flushing;
                Act::Flush(checkpoint.nsds().into_iter().collect())
            }
            Todo::Failed(failure) => {
                making.stage = Stage::Releasing(failure);
                Act::Again
            }
        }
    }

    fn link(&mut self, mut making: Making, now: Instant, host: &mut dyn Host) -> Act {
        let (mut may_link, mut is_over) = (false, false);
        host.with_log(&mut |log| {
            may_link = log.begin_install();
            is_over = may_link && making.checkpoint.link(log.space.pages_mut(), RUN_COUNT);
        });
        if !is_over {
            self.making = Some(making);
            return if may_link {
                Act::Again
            } else {
                self.settle(host)
            };
        }
        let keys = making.checkpoint.key_count();
        let mut checkpoint = Some(making.checkpoint);
        let mut thawed = None;
        host.with_both(making.shard, &mut |slice, log| {
            if let Some(checkpoint) = checkpoint.take() {
                let (applied, left) = checkpoint.install(&mut slice.shard);
                log.end_install(applied.root);
                thawed = Some(left);
            }
        });
        drop(thawed);
        self.unreadable.remove(&making.shard);
        self.counters.checkpoints += 1;
        self.counters.keys += keys as u64;
        self.progress.0 += 1;
        self.has_installed = true;
        self.failure_count = 0;
        self.pause = PAUSE_MIN;
        self.not_before = now;
        Act::Again
    }

    /// Frees some pages of older roots, if a snapshot has made newer ones durable.
    fn settle(&mut self, host: &mut dyn Host) -> Act {
        let mut is_settling = false;
        host.with_log(&mut |log| {
            is_settling = log.space.pages().is_settling();
            log.settle(RUN_COUNT);
        });
        self.is_settling = is_settling;
        if !is_settling {
            return Act::Wait;
        }
        self.progress.0 += 1;
        Act::Again
    }

    fn give_up(
        &mut self,
        making: Making,
        failure: Failure,
        now: Instant,
        host: &mut dyn Host,
    ) -> Act {
        self.pages.forget(Waiter(making.number));
        let mut checkpoint = Some(making.checkpoint);
        host.with_shard(making.shard, &mut |slice| {
            if let Some(checkpoint) = checkpoint.take() {
                checkpoint.give_up(&mut slice.shard);
            }
        });
        self.counters.failures += 1;
        self.report = Some((making.shard, failure));
        if matches!(failure, Failure::Apply(ApplyError::Tree(_))) {
            // Its old tree cannot be read: that says nothing of the others, and holds none of them up.
            let (not_before, pause) = self.unreadable.entry(making.shard).or_default();
            *pause = Duration((pause.0 * 2).clamp(PAUSE_MIN.0, PAUSE_MAX.0));
            *not_before = now + *pause;
            return Act::Again;
        }
        // Where another one was made there is hope: a snapshot frees its older pages.
        self.failure_count += u32::from(!self.has_installed);
        self.not_before = now + self.pause;
        // Others may take what one disk does not; where there are none it may be good again any time.
        let is_of_disk = matches!(failure, Failure::NotWritten | Failure::NotFlushed);
        let most = if is_of_disk {
            DISK_PAUSE_MAX
        } else {
            PAUSE_MAX
        };
        self.pause = Duration((self.pause.0 * 2).min(most.0));
        // The others would hardly fare better; a snapshot may free pages first.
        self.end_round(host);
        Act::Again
    }

    /// A read has ended.
    pub fn on_read(&mut self, id: FetchId, bytes: Result<Box<[u8]>, Unreadable>) {
        let arrival: Option<Arrival> = self.pages.on_fetched(id, bytes);
        if let (Some(making), Some(arrival)) = (&mut self.making, arrival) {
            making.checkpoint.on_page(&arrival);
        }
    }

    /// A write has ended. `is_written`: its bytes are there; failed and unknown are the same.
    pub fn on_written(&mut self, checkpoint: u64, (id, nsd): (WriteId, NsdId), is_written: bool) {
        if !is_written {
            self.refused.insert(nsd);
        }
        let making = self.making.as_mut();
        let making = making.filter(|making| making.number == checkpoint);
        // It ends when no write of it is under way.
        let making = making.expect("a write is of the checkpoint under way");
        making.checkpoint.on_written(id, is_written);
    }

    /// The flush has ended; these NSDs may have lost what was written to them.
    pub fn on_flushed(&mut self, failed: &[NsdId]) {
        let making = self.making.as_mut().expect("the checkpoint waits for it");
        assert!(matches!(making.stage, Stage::Flushing));
        self.refused.extend(failed);
        making.stage = match failed.is_empty() {
            true => Stage::Linking,
            false => Stage::Releasing(Failure::NotFlushed),
        };
    }
}

/// Disks whose calls end when the I/O has.
pub trait Disks {
    /// Reads a page.
    fn read(&mut self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable>;
    /// Writes pages; says of each whether it is there.
    fn write(&mut self, writes: Vec<Write>) -> Vec<(Write, bool)>;
    /// Makes durable what was written to these NSDs; returns those where it may not be.
    fn flush(&mut self, nsds: &[NsdId]) -> Vec<NsdId>;
}

/// Shows the keeper, under its lock.
pub type Tell<'a> = dyn FnMut(&mut dyn FnMut(&mut Keeper)) + 'a;

/// What a keeper has asked for and what has not been done.
#[derive(Debug, Default)]
pub struct Pending {
    reads: Vec<Fetch>,
    writes: Vec<Write>,
    flush: Option<Vec<NsdId>>,
}

impl Pending {
    /// Notes I/O. False: that is none, and what is noted should be done now.
    pub fn note(&mut self, act: Act) -> bool {
        match act {
            Act::Read(fetch) => self.reads.push(fetch),
            Act::Write(write) => self.writes.push(write),
            Act::Flush(nsds) => self.flush = Some(nsds),
            Act::Again => {}
            Act::Wait | Act::Idle => return false,
        }
        true
    }

    /// Nothing is noted.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.flush.is_none()
    }

    /// Does all of it; `tell` is shown the keeper for each that has ended.
    pub fn perform(&mut self, disks: &mut dyn Disks, tell: &mut Tell<'_>) {
        for (write, is_written) in disks.write(std::mem::take(&mut self.writes)) {
            let page = (write.page.id, write.page.at.nsd);
            tell(&mut |keeper| keeper.on_written(write.checkpoint, page, is_written));
        }
        for fetch in std::mem::take(&mut self.reads) {
            let mut bytes = Some(disks.read(&fetch));
            tell(&mut |keeper| {
                if let Some(bytes) = bytes.take() {
                    keeper.on_read(fetch.id, bytes);
                }
            });
        }
        if let Some(nsds) = self.flush.take() {
            let failed = disks.flush(&nsds);
            tell(&mut |keeper| keeper.on_flushed(&failed));
        }
    }
}

/// Makes a round of checkpoints at once, before anything is served: what recovery found leaves too little room in the
/// journal for what is to come. Returns what was done, and a failure.
pub fn checkpoint_now(
    now: Instant,
    host: &mut PlainHost<'_>,
    disks: &mut dyn Disks,
) -> (Counters, Option<(ShardId, Failure)>) {
    let mut keeper = Keeper::new();
    let slices = host.shards.iter().flatten();
    let sizes: Vec<ShardSize> = slices.map(|slice| ShardSize::of(&slice.shard)).collect();
    keeper.on_tick(now, sizes, host.log);
    keeper.request_round();
    let mut pending = Pending::default();
    loop {
        let act = keeper.step(now, host);
        if pending.note(act) {
            continue;
        }
        if pending.is_empty() {
            break;
        }
        pending.perform(disks, &mut |act| act(&mut keeper));
    }
    (keeper.counters(), keeper.take_report())
}

/// Sectors that pages take which hold `bytes` of records, half full at the worst.
pub(crate) fn sectors_for(bytes: u64) -> u64 {
    (bytes * 2).div_ceil(types::SECTOR_SIZE) + 8 * u64::from(PAGE_SECTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Host for Nobody {
        fn with_shard(&mut self, _: ShardId, _: &mut dyn FnMut(&mut OwnerSlice)) {
            unreachable!("nothing is begun");
        }

        fn with_log(&mut self, _: &mut dyn FnMut(&mut OwnerLog)) {
            unreachable!("nothing is begun");
        }

        fn with_both(&mut self, _: ShardId, _: &mut dyn FnMut(&mut OwnerSlice, &mut OwnerLog)) {
            unreachable!("nothing is begun");
        }
    }

    /// Who wants memory asks each second: a disk that fails must not be written to each time.
    #[test]
    fn a_request_does_not_end_the_pause_after_a_failure() {
        let mut keeper = Keeper::new();
        keeper.not_before = Instant(100);
        keeper.request_round();
        assert!(matches!(keeper.step(Instant(99), &mut Nobody), Act::Idle));
        assert_eq!(keeper.counters(), Counters::default());
    }
}
