//! Inodes that are in the trees of their shards alone: read for the work that waits for them, many at once.
//!
//! ```text
//! want -> each inode is read once, however many wait for it -> next_read .. on_read
//!      -> next_done: the driver decodes it, and has it installed under the shard's lock -> settled
//!      -> the work, to be run again; when it has run: unpin what it was given
//! cannot be read -> read again after a pause (on_tick) -> .. -> for too long: the work is told
//! ```
//!
//! Invariants
//! - An inode is installed only if the shard's root is the one that it was read from; else it is read again. So what comes
//!   back is what left: an inode changes while it is resident alone, and leaves only when a newer root has the change.
//! - Pages that are freed and written anew while they are read do not verify. That counts as damage only if the root is still
//!   the shard's.
//! - Work is parked here until all that it asked for is resident, or cannot be read; then it is given back, once. What it was
//!   given stays pinned until it has run, and while it waits for more.
//! - A read that fails is no verdict: disks have bad moments, and a Commit that is refused loses what was acknowledged. What a
//!   disk does not give is asked for during `PATIENCE`, what does not verify `DAMAGE_TRIES` times. Then questions hear EIO, and a
//!   Prepare is voted against; what a transaction has decided waits on, for it must be performed. What is known to be bad is tried once for each who asks,
//!   and for the other inodes below a page that does not verify, but for Commits.
//! - Bounded by the work under way: each piece of work asks for the few inodes that an operation names, or for those of one answer to a
//!   listing, and a transaction's message that is parked is not parked twice.
//!
//! What this deliberately does not do: I/O, and locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meta::records::BadRecord;
use meta::{HashKey, Loaded, Shard};
use store::tree::{
    Arrival, Entries, Fetch, FetchId, Pages, Root, Scan, ScanStep, TreeError, TreeId, Unreadable,
    Waiter,
};
use types::{Duration, FsId, InodeId, Instant, ShardId};

use crate::log::OwnerLog;
use crate::owner::OwnerSlice;
use crate::question::{ListingState, Work};

/// Bytes of pages in memory.
const CACHE_SIZE: usize = 8 << 20;
/// Pages that are read at a time.
const READ_COUNT_MAX: usize = 16;
/// Leaves of one inode that are read ahead.
const AHEAD_COUNT: usize = 4;
/// Roots may change under a read so often before the work is told that it cannot be read.
const TRIES_MAX: u32 = 100;
/// So long an inode is read again that a disk does not give, before work is told. As long as work waits for room.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// So often an inode is read below a page that does not verify, before work is told.
const DAMAGE_TRIES: u32 = 4;
/// Pause after a read that failed; twice as long each time.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A page that did not verify so often is not tried that often again for the other inodes below it, for so long.
const BAD_FOR: Duration = Duration::from_secs(10);
/// So many such pages are remembered.
const BAD_COUNT_MAX: usize = 64;
/// So many inodes that cannot be read are remembered.
const FAULT_COUNT_MAX: usize = 4096;
/// Inodes that are read for listings at a time, roughly, and leaves of one that a listing waits for: files of many extents and large
/// directories are listed by their names.
const LISTED_COUNT_MAX: usize = 1024;
const LISTED_LEAF_COUNT_MAX: usize = 2;
/// Steps on directories' parts that wait at a time.
const TEND_COUNT_MAX: usize = 64;

/// Why an inode is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FetchError {
    /// A page has no good copy.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The pages are good, and what they hold is no inode.
    #[error("inode {ino} in the tree of its shard: {error}")]
    Record {
        /// Inode.
        ino: InodeId,
        /// What does not fit.
        error: BadRecord,
    },
    /// The tree does not have it.
    #[error("inode {ino} is not in the tree of its shard")]
    Absent {
        /// Inode.
        ino: InodeId,
    },
    /// It is larger than a listing has read.
    #[error("inode {ino} is larger than a listing waits for")]
    Large {
        /// Inode.
        ino: InodeId,
    },
    /// The root has changed under every read.
    #[error("the tree of inode {ino} changed too often while it was read")]
    Restless {
        /// Inode.
        ino: InodeId,
    },
}

impl FetchError {
    /// Reading it again may help.
    fn patience(&self) -> Patience {
        match self {
            Self::Tree(TreeError::Corrupt { .. }) => Patience::Tries(DAMAGE_TRIES),
            Self::Tree(_) | Self::Restless { .. } => Patience::Time(PATIENCE),
            // The pages are as they were written.
            Self::Record { .. } | Self::Absent { .. } | Self::Large { .. } => Patience::Tries(1),
        }
    }
}

enum Patience {
    Time(Duration),
    Tries(u32),
}

/// The leaves that have an inode's records, in order: as they are, for a directory may have a million names, and they are collected
/// under the lock of all that is fetched.
type Leaves = Vec<Entries>;

/// The records of an inode, or why there are none. To be decoded with no lock held.
#[derive(Debug)]
pub struct Fetched {
    ino: InodeId,
    root: Root,
    works: Vec<u64>,
    leaves: Result<Leaves, FetchError>,
}

/// An inode that was read, or cannot be. What is left of it when it was installed is to be dropped under no lock.
#[derive(Debug)]
pub struct Decoded {
    ino: InodeId,
    root: Root,
    works: Vec<u64>,
    /// Taken when it is installed.
    result: Option<Result<Loaded, FetchError>>,
}

impl Fetched {
    /// Which.
    pub fn ino(&self) -> InodeId {
        self.ino
    }

    /// The root of the tree that it was read from.
    pub fn root_mut(&mut self) -> &mut Root {
        &mut self.root
    }

    /// Makes the inode.
    pub fn decode(self, key: HashKey) -> Decoded {
        let ino = self.ino;
        let leaves = self.leaves;
        Decoded {
            ino,
            root: self.root,
            works: self.works,
            result: Some(leaves.and_then(|leaves| decode(key, ino, &leaves))),
        }
    }
}

impl Decoded {
    /// Which.
    pub fn ino(&self) -> InodeId {
        self.ino
    }
}

/// What became of an inode that was read.
#[derive(Debug)]
pub struct Installed {
    ino: InodeId,
    works: Vec<u64>,
    how: How,
}

#[derive(Debug)]
enum How {
    /// It is resident and pinned, or gone for good.
    Done,
    /// The shard has another root by now: read it again from this one.
    Stale {
        /// The newest root.
        root: Root,
        /// The disks gave all pages of the old one.
        was_read: bool,
    },
    /// It cannot be read.
    Failed(FetchError),
}

/// Work to be run: what it asked for is resident, or known to be unreadable. Then each of `pinned` is to be unpinned.
#[derive(Debug)]
pub struct Ready {
    /// The work.
    pub work: Work,
    /// What it was given.
    pub pinned: Vec<InodeId>,
}

/// Something for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// An inode could not be read, and will be read again.
    Begins(InodeId, FetchError),
    /// What waited for an inode is told that it cannot be read.
    Told(InodeId, FetchError),
    /// An inode could be read after all, after so many reads that failed.
    Ended(InodeId, u32),
}

/// Counted since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Inodes that were wanted and were being read for nobody else.
    pub misses: u64,
    /// Pages read.
    pub pages: u64,
    /// Reads that a new root made worthless.
    pub stale: u64,
    /// Reads of inodes that failed.
    pub failures: u64,
    /// Inodes that work was told cannot be read.
    pub told: u64,
}

#[derive(Debug)]
struct Reading {
    root: Root,
    waiter: Waiter,
    scan: Scan,
    leaves: Leaves,
    tries: u32,
    /// Work that waits for it.
    for_work: Vec<u64>,
}

#[derive(Debug)]
struct Parked {
    work: Work,
    since: Instant,
    missing: BTreeSet<InodeId>,
    pinned: Vec<InodeId>,
    has_failed: bool,
}

/// An inode that could not be read when it was last tried.
#[derive(Debug)]
struct Fault {
    since: Instant,
    last: Instant,
    tries: u32,
    error: FetchError,
    /// Reads in a row that found this very error: an inode lies below several pages.
    same: u32,
    /// When it is read again; `None`: it is being read, or nobody waits for it.
    retry_at: Option<Instant>,
    is_told: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Fetches {
    fs: FsId,
    pages: Pages,
    reading: BTreeMap<InodeId, Reading>,
    waiters: BTreeMap<Waiter, InodeId>,
    parked: BTreeMap<u64, Parked>,
    done: VecDeque<(InodeId, Result<Leaves, FetchError>)>,
    faults: BTreeMap<InodeId, Fault>,
    /// Pages that do not verify and that work was told of, and when.
    bad: VecDeque<(TreeError, Instant)>,
    /// Nothing is read twice: for the simulator, which must notice.
    gives_up: bool,
    next_number: u64,
    counters: Counters,
}

impl Fetches {
    /// Nothing is read.
    pub fn new(fs: FsId) -> Self {
        Self {
            fs,
            pages: Pages::new(CACHE_SIZE, READ_COUNT_MAX),
            reading: BTreeMap::new(),
            waiters: BTreeMap::new(),
            parked: BTreeMap::new(),
            done: VecDeque::new(),
            faults: BTreeMap::new(),
            bad: VecDeque::new(),
            gives_up: false,
            next_number: 1,
            counters: Counters::default(),
        }
    }

    /// From now on the first read that fails is the last: to see whether a checker notices.
    pub fn give_up_at_once(&mut self) {
        self.gives_up = true;
    }

    /// What was done.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Work that waits, for `gupfs waiters`: what for, and since when.
    pub fn waiting(&self) -> impl Iterator<Item = (String, Instant)> + '_ {
        self.parked.values().map(|parked| {
            let describe = |ino: &InodeId| match self.faults.get(ino) {
                None => ino.to_string(),
                Some(Fault { tries, error, .. }) => {
                    format!("{ino} ({error}; {tries} reads have failed)")
                }
            };
            let inodes = parked.missing.iter().map(describe);
            let inodes = inodes.collect::<Vec<_>>().join(", ");
            let what = match &parked.work {
                Work::Question(q) => format!("{:?} of {:?}", q.ask, q.from.node),
                Work::Tend { holder, .. } => format!("splitting or joining the parts of {holder}"),
                Work::Transaction(envelope) | Work::Unreadable(envelope) => {
                    format!("transaction {:?}", envelope.id)
                }
            };
            (
                format!("{what} waits for inodes {inodes} to be read"),
                parked.since,
            )
        })
    }

    /// Inodes that could not be read when they were last tried, and why.
    pub fn faults(&self) -> impl Iterator<Item = (InodeId, &FetchError, Instant)> + '_ {
        let faults = self.faults.iter();
        faults.map(|(ino, fault)| (*ino, &fault.error, fault.since))
    }

    /// Work that waits.
    pub fn count(&self) -> usize {
        self.parked.len()
    }

    /// `work` is to be given back when these inodes are resident; `root_of` says which root a shard has now. `pinned` is
    /// what it was given before, and keeps. `false`: it is parked already, and drops out; its pins are the caller's.
    #[must_use = "who is not parked keeps its pins"]
    pub fn want(
        &mut self,
        now: Instant,
        inodes: &[InodeId],
        ready: Ready,
        root_of: &mut dyn FnMut(ShardId) -> Root,
    ) -> Result<(), Vec<InodeId>> {
        assert!(!inodes.is_empty(), "work that misses something says what");
        let Ready { work, pinned } = ready;
        if self.is_parked(&work) {
            return Err(pinned);
        }
        let number = self.draw_number();
        let is_listing = work.is_listing();
        let mut missing = BTreeSet::new();
        for ino in inodes {
            // It does without what others wait for in vain, and, but for one, without what is beyond the bound of all listings.
            let is_late = self
                .faults
                .get(ino)
                .is_some_and(|fault| fault.retry_at.is_some());
            let is_beyond = self.reading.len() >= LISTED_COUNT_MAX || is_late;
            if is_listing && is_beyond && !(missing.is_empty() && inodes.last() == Some(ino)) {
                continue;
            }
            missing.insert(*ino);
            if let Some(reading) = self.reading.get_mut(ino) {
                reading.for_work.push(number);
                continue;
            }
            self.counters.misses += 1;
            // Nobody has asked for long: what is wrong now may be another trouble. While somebody waits it is the same one, however
            // long each read takes to fail.
            let is_old = |fault: &Fault| now.since(fault.last) > PATIENCE;
            if self.faults.get(ino).is_some_and(is_old) {
                self.faults.remove(ino);
            }
            self.begin(*ino, root_of(ino.shard()), 0, vec![number]);
        }
        let parked = Parked {
            work,
            since: now,
            missing,
            pinned,
            has_failed: false,
        };
        self.parked.insert(number, parked);
        Ok(())
    }

    /// The same message is parked: a repeat of it adds nothing. So is the same step on a directory's parts, or as many as may be:
    /// the next change there says again that it is due.
    fn is_parked(&self, work: &Work) -> bool {
        let mut parked = self.parked.values().map(|parked| &parked.work);
        match work {
            Work::Transaction(envelope) => {
                parked.any(|work| matches!(work, Work::Transaction(other) if other == envelope))
            }
            Work::Tend { holder: new, .. } => {
                let holders = parked.filter_map(|work| match work {
                    Work::Tend { holder, .. } => Some(*holder),
                    Work::Question(_) | Work::Transaction(_) | Work::Unreadable(_) => None,
                });
                let holders: Vec<InodeId> = holders.collect();
                holders.len() >= TEND_COUNT_MAX || holders.contains(new)
            }
            Work::Question(_) | Work::Unreadable(_) => false,
        }
    }

    /// Time has passed: what could not be read is read again. True: something is; then `next_read`, `next_done`.
    pub fn on_tick(&mut self, now: Instant, root_of: &mut dyn FnMut(ShardId) -> Root) -> bool {
        let is_due = |fault: &Fault| fault.retry_at.is_some_and(|at| at <= now);
        let due = self.faults.iter().filter(|(_, fault)| is_due(fault));
        let due: Vec<InodeId> = due.map(|(ino, _)| *ino).collect();
        for ino in &due {
            self.faults.get_mut(ino).expect("just seen").retry_at = None;
            let reading = self.reading.remove(ino).expect("somebody waits for it");
            self.begin(*ino, root_of(ino.shard()), 0, reading.for_work);
        }
        !due.is_empty()
    }

    fn draw_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn begin(&mut self, ino: InodeId, root: Root, tries: u32, for_work: Vec<u64>) {
        let waiter = Waiter(self.draw_number());
        let reading = Reading {
            root,
            waiter,
            scan: scan_of(self.fs, &root, ino, waiter),
            leaves: Vec::new(),
            tries,
            for_work,
        };
        self.waiters.insert(waiter, ino);
        self.reading.insert(ino, reading);
        self.go_on(ino);
    }

    /// Reads as far as pages are there.
    fn go_on(&mut self, ino: InodeId) {
        let Some(reading) = self.reading.get_mut(&ino) else {
            return;
        };
        let parked = &self.parked;
        let is_listed = |number: &u64| parked.get(number).is_some_and(|p| p.work.is_listing());
        let collected = collect(&mut reading.scan, &mut self.pages, &mut reading.leaves);
        let is_large = reading.leaves.len() > LISTED_LEAF_COUNT_MAX;
        let leaves = match collected {
            Ok(_) if is_large && reading.for_work.iter().all(is_listed) => {
                Err(FetchError::Large { ino })
            }
            Ok(false) => return,
            Ok(true) => Ok(std::mem::take(&mut reading.leaves)),
            Err(error) => Err(error.into()),
        };
        self.pages.forget(reading.waiter);
        self.waiters.remove(&reading.waiter);
        self.done.push_back((ino, leaves));
    }

    /// The next page to read; ask until there is none, after `want`, `on_read` and `settled`.
    #[must_use]
    pub fn next_read(&mut self) -> Option<Fetch> {
        let fetch = self.pages.next_fetch()?;
        self.counters.pages += 1;
        Some(fetch)
    }

    /// A read has ended.
    pub fn on_read(&mut self, id: FetchId, bytes: Result<Box<[u8]>, Unreadable>) {
        let Some(arrival): Option<Arrival> = self.pages.on_fetched(id, bytes) else {
            return;
        };
        for waiter in &arrival.waiters {
            let Some(ino) = self.waiters.get(waiter).copied() else {
                continue;
            };
            if let Some(reading) = self.reading.get_mut(&ino) {
                reading.scan.on_page(&arrival);
            }
            self.go_on(ino);
        }
    }

    /// An inode that was read: to be decoded, installed (`install`), and then `settled`.
    pub fn next_done(&mut self) -> Option<Fetched> {
        let (ino, leaves) = self.done.pop_front()?;
        let reading = self.reading.get_mut(&ino).expect("it is being read");
        Some(Fetched {
            ino,
            root: reading.root,
            works: std::mem::take(&mut reading.for_work),
            leaves,
        })
    }

    /// An inode was installed, or not. What need not wait any longer is given back.
    pub fn settled(
        &mut self,
        now: Instant,
        installed: Installed,
        out: &mut Vec<Ready>,
    ) -> Option<Trouble> {
        let Installed { ino, works, how } = installed;
        let reading = self.reading.get_mut(&ino).expect("it is being read");
        let late = std::mem::take(&mut reading.for_work);
        let (root, tries) = (reading.root, reading.tries);
        let error = match how {
            How::Done => {
                self.reading.remove(&ino);
                self.give(ino, works, false, out);
                if !late.is_empty() {
                    // They came too late to be counted when it was pinned.
                    self.begin(ino, root, 0, late);
                }
                let fault = self.faults.remove(&ino)?;
                return Some(Trouble::Ended(ino, fault.tries));
            }
            How::Stale { root, was_read } if tries < TRIES_MAX => {
                self.counters.stale += 1;
                self.begin(ino, root, tries + 1, [works, late].concat());
                // The disks' bad moment is over: the next one is another.
                let over = was_read.then(|| self.faults.remove(&ino)).flatten();
                return over.map(|fault| Trouble::Ended(ino, fault.tries));
            }
            How::Stale { .. } => FetchError::Restless { ino },
            How::Failed(error) => error,
        };
        reading.for_work = [works, late].concat();
        self.counters.failures += 1;
        self.on_failure(now, ino, error, out)
    }

    /// It is read again after a pause, or those that wait for it are told.
    fn on_failure(
        &mut self,
        now: Instant,
        ino: InodeId,
        error: FetchError,
        out: &mut Vec<Ready>,
    ) -> Option<Trouble> {
        // Who can do without does not wait for a better moment of the disk, and where nobody else wants it that is no fault: it would
        // count for who asks later.
        let reading = self.reading.get_mut(&ino).expect("it was being read");
        let (root, mut works) = (reading.root, std::mem::take(&mut reading.for_work));
        let parked = &self.parked;
        let can_do_without = |number: &u64| parked.get(number).is_some_and(|p| p.work.is_listing());
        let without: Vec<u64> = works
            .extract_if(.., |number| can_do_without(number))
            .collect();
        self.give(ino, without, true, out);
        if works.is_empty() {
            self.reading.remove(&ino);
            return None;
        }
        if matches!(error, FetchError::Large { .. }) {
            self.begin(ino, root, 0, works);
            return None;
        }
        let reading = self.reading.get_mut(&ino).expect("it was being read");
        reading.for_work = works;
        if self.faults.len() >= FAULT_COUNT_MAX && !self.faults.contains_key(&ino) {
            // Of those that nobody waits for; the others are bounded by the work under way.
            let idle = self
                .faults
                .iter()
                .find(|(ino, _)| !self.reading.contains_key(ino));
            let idle = idle.map(|(ino, _)| *ino);
            idle.and_then(|ino| self.faults.remove(&ino));
        }
        let new = || Fault {
            since: now,
            last: now,
            tries: 0,
            error: error.clone(),
            same: 0,
            retry_at: None,
            is_told: false,
        };
        let fault = self.faults.entry(ino).or_insert_with(new);
        fault.last = now;
        fault.tries = fault.tries.saturating_add(1);
        fault.same = match fault.error == error {
            true => fault.same.saturating_add(1),
            false => 1,
        };
        fault.error = error.clone();
        let is_known_bad = self.is_known_bad(now, &error);
        let fault = self.faults.get_mut(&ino).expect("just made");
        let is_tried = self.gives_up
            || match error.patience() {
                Patience::Time(limit) => now.since(fault.since) >= limit,
                // Errors may take turns.
                Patience::Tries(count) => fault.same >= count || now.since(fault.since) >= PATIENCE,
            };
        let is_over = is_tried || is_known_bad;
        // One line for a page, not for each inode below it.
        let is_first = fault.tries == 1 && !is_known_bad;
        let is_news = is_over && !std::mem::replace(&mut fault.is_told, is_over);
        let doublings = fault.tries.saturating_sub(1).min(16);
        let pause = Duration(PAUSE_MIN.0 << doublings).min(PAUSE_MAX);
        let reading = self.reading.get_mut(&ino).expect("it was being read");
        let mut works = std::mem::take(&mut reading.for_work);
        if is_over {
            let parked = &self.parked;
            // What a Commit brings was acknowledged: it waits as long as it may, whoever asked before it.
            let may_hope = |p: &Parked| {
                let has_time =
                    matches!(error.patience(), Patience::Time(limit) if now.since(p.since) < limit);
                (has_time || !is_tried) && p.work.is_commit() && !self.gives_up
            };
            let may_fail = |number: &u64| {
                parked
                    .get(number)
                    .is_none_or(|p| p.work.may_fail() && !may_hope(p))
            };
            let told: Vec<u64> = works.extract_if(.., |number| may_fail(number)).collect();
            self.counters.told += u64::from(is_news);
            self.note_bad(now, &error, is_tried);
            self.give(ino, told, true, out);
        }
        if works.is_empty() {
            self.reading.remove(&ino);
        } else {
            self.reading.get_mut(&ino).expect("just seen").for_work = works;
            self.faults.get_mut(&ino).expect("just made").retry_at = Some(now + pause);
        }
        match (is_news && !is_known_bad, is_first) {
            (true, _) => Some(Trouble::Told(ino, error)),
            (false, true) => Some(Trouble::Begins(ino, error)),
            (false, false) => None,
        }
    }

    /// The page was tried often enough for another inode just now.
    fn is_known_bad(&self, now: Instant, error: &FetchError) -> bool {
        let FetchError::Tree(error @ TreeError::Corrupt { .. }) = error else {
            return false;
        };
        let is_it = |(bad, at): &(TreeError, Instant)| bad == error && now.since(*at) < BAD_FOR;
        self.bad.iter().any(is_it)
    }

    /// What does not verify is known to be bad from now on, if it `is_tried` often enough.
    fn note_bad(&mut self, now: Instant, error: &FetchError, is_tried: bool) {
        let FetchError::Tree(error @ TreeError::Corrupt { .. }) = error else {
            return;
        };
        if !is_tried {
            return;
        }
        self.bad.retain(|(bad, _)| bad != error);
        self.bad.truncate(BAD_COUNT_MAX - 1);
        self.bad.push_front((*error, now));
    }

    /// Work has an inode, or is not to get it.
    fn give(&mut self, ino: InodeId, works: Vec<u64>, has_failed: bool, out: &mut Vec<Ready>) {
        for number in works {
            let Some(parked) = self.parked.get_mut(&number) else {
                continue;
            };
            parked.missing.remove(&ino);
            parked.has_failed |= has_failed;
            if !has_failed {
                parked.pinned.push(ino);
            }
            if parked.missing.is_empty()
                && let Some(parked) = self.parked.remove(&number)
            {
                out.push(given_back(parked));
            }
        }
    }
}

/// A question whose inodes cannot be read is answered EIO, a Prepare is voted against.
fn given_back(parked: Parked) -> Ready {
    let work = match parked.work {
        Work::Question(mut question) => {
            // A listing can do without attributes.
            let is_needed = question.listed != ListingState::Reading;
            question.is_unreadable |= parked.has_failed && is_needed;
            question.listed = question.listed.after_reading();
            Work::Question(question)
        }
        Work::Transaction(envelope) if parked.has_failed => Work::Unreadable(envelope),
        Work::Tend { holder, .. } => Work::Tend {
            holder,
            is_unreadable: parked.has_failed,
        },
        work @ (Work::Transaction(_) | Work::Unreadable(_)) => work,
    };
    let pinned = parked.pinned;
    Ready { work, pinned }
}

/// Installs an inode in its shard, whose lock is held, as that of `log` is; it is pinned for each piece of work that waits for it.
/// What was read in vain stays in `decoded`.
pub fn install(slice: &mut OwnerSlice, log: &OwnerLog, decoded: &mut Decoded) -> Installed {
    let ino = decoded.ino;
    let works = std::mem::take(&mut decoded.works);
    let newest = log.root(slice.shard.id());
    let how = if !slice.shard.is_cold(ino) {
        How::Done
    } else if newest != decoded.root {
        let was_read = matches!(decoded.result, Some(Ok(_)));
        How::Stale {
            root: newest,
            was_read,
        }
    } else {
        match decoded.result.take().expect("it is installed once") {
            Ok(loaded) => {
                slice.shard.take_in(ino.index(), loaded);
                How::Done
            }
            Err(error) => How::Failed(error),
        }
    };
    if matches!(how, How::Done) {
        works.iter().for_each(|_| slice.shard.pin(ino));
    }
    Installed { ino, works, how }
}

/// Reads an inode from a tree; `read` blocks. For who looks at all there is, with no lock that work waits for, or at rest.
///
/// # Errors
/// It cannot be read, or is not there.
pub fn read_now(
    fs: FsId,
    key: HashKey,
    root: &Root,
    ino: InodeId,
    pages: &mut Pages,
    read: &mut crate::replay::ReadPage<'_>,
) -> Result<Loaded, FetchError> {
    let mut scan = scan_of(fs, root, ino, Waiter(0));
    let mut leaves = Vec::new();
    while !collect(&mut scan, pages, &mut leaves)? {
        while let Some(fetch) = pages.next_fetch() {
            if let Some(arrival) = pages.on_fetched(fetch.id, read(&fetch)) {
                scan.on_page(&arrival);
            }
        }
    }
    decode(key, ino, &leaves)
}

fn scan_of(fs: FsId, root: &Root, ino: InodeId, waiter: Waiter) -> Scan {
    let shard = ino.shard();
    let first = |index: u64| index.to_be_bytes()[2..].to_vec();
    let range = (first(ino.index()), Some(first(ino.index() + 1)));
    Scan::new(TreeId { fs, shard }, root, range, waiter, AHEAD_COUNT)
}

/// Collects what is there; true: that is all.
fn collect(scan: &mut Scan, pages: &mut Pages, leaves: &mut Leaves) -> Result<bool, TreeError> {
    loop {
        match scan.next(pages)? {
            ScanStep::Entries(entries) => leaves.push(entries),
            ScanStep::Waiting => return Ok(false),
            ScanStep::Done => return Ok(true),
        }
    }
}

fn decode(key: HashKey, ino: InodeId, leaves: &[Entries]) -> Result<Loaded, FetchError> {
    let mut record = Vec::new();
    let loaded = Shard::decode(ino.shard(), key, ino.index(), |push| {
        for leaf in leaves {
            for at in leaf.begin..leaf.end {
                leaf.page.key_into(at, &mut record);
                push(&record, leaf.page.value(at))?;
            }
        }
        Ok(())
    });
    let loaded = loaded.map_err(|error| FetchError::Record { ino, error })?;
    loaded.ok_or(FetchError::Absent { ino })
}
