//! Inodes that are in the trees of their shards alone: read for the work that waits for them, many at once.
//!
//! ```text
//! want -> each inode is read once, however many wait for it -> next_read .. on_read
//!      -> next_done: the driver has it installed under the shard's lock -> settled -> the work, to be run again
//! ```
//!
//! Invariants
//! - An inode is installed only if the shard's root is the one that it was read from; else it is read again. So what comes
//!   back is what left: an inode changes while it is resident alone, and leaves only when a newer root has the change.
//! - Pages that are freed and written anew while they are read do not verify. That counts as damage only if the root is still
//!   the shard's.
//! - Work is parked here until all that it asked for is resident, or cannot be read; then it is given back, once.
//! - Bounded by the work under way: each piece of work asks for the few inodes that an operation names.
//!
//! What this deliberately does not do: I/O, and locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meta::records::BadRecord;
use meta::{HashKey, Loaded, Shard};
use store::tree::{
    Arrival, Fetch, FetchId, Pages, Root, Scan, ScanStep, TreeError, TreeId, Unreadable, Waiter,
};
use types::{FsId, InodeId, Instant, ShardId, SmallBytes};

use crate::log::OwnerLog;
use crate::owner::OwnerSlice;
use crate::question::Work;

/// Bytes of pages in memory.
const CACHE_SIZE: usize = 8 << 20;
/// Pages that are read at a time.
const READ_COUNT_MAX: usize = 16;
/// Leaves of one inode that are read ahead.
const AHEAD_COUNT: usize = 4;
/// Roots may change under a read so often before the work is told that it cannot be read.
const TRIES_MAX: u32 = 100;

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
    /// The root has changed under every read.
    #[error("the tree of inode {ino} changed too often while it was read")]
    Restless {
        /// Inode.
        ino: InodeId,
    },
}

/// An inode that was read, or cannot be.
#[derive(Debug)]
pub struct Fetched {
    /// Which.
    pub ino: InodeId,
    /// The root of the tree that it was read from.
    pub root: Root,
    /// It.
    pub result: Result<Loaded, FetchError>,
}

/// What became of an inode that was read.
#[derive(Debug)]
pub enum Installed {
    /// It is resident, or gone for good.
    Done,
    /// The shard has another root by now: read it again from this one.
    Stale(Root),
    /// It cannot be read.
    Failed(FetchError),
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
    /// Inodes that could not be read.
    pub failures: u64,
}

#[derive(Debug)]
struct Reading {
    root: Root,
    waiter: Waiter,
    scan: Scan,
    records: Vec<(SmallBytes, SmallBytes)>,
    tries: u32,
    /// Work that waits for it.
    for_work: Vec<u64>,
}

#[derive(Debug)]
struct Parked {
    work: Work,
    since: Instant,
    missing: BTreeSet<InodeId>,
    has_failed: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Fetches {
    fs: FsId,
    key: HashKey,
    pages: Pages,
    reading: BTreeMap<InodeId, Reading>,
    waiters: BTreeMap<Waiter, InodeId>,
    parked: BTreeMap<u64, Parked>,
    done: VecDeque<Fetched>,
    next_number: u64,
    counters: Counters,
}

impl Fetches {
    /// Nothing is read.
    pub fn new(fs: FsId, key: HashKey) -> Self {
        Self {
            fs,
            key,
            pages: Pages::new(CACHE_SIZE, READ_COUNT_MAX),
            reading: BTreeMap::new(),
            waiters: BTreeMap::new(),
            parked: BTreeMap::new(),
            done: VecDeque::new(),
            next_number: 1,
            counters: Counters::default(),
        }
    }

    /// What was done.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Work that waits, for `gupfs waiters`: what for, and since when.
    pub fn waiting(&self) -> impl Iterator<Item = (String, Instant)> + '_ {
        self.parked.values().map(|parked| {
            let inodes = parked.missing.iter().map(InodeId::to_string);
            let inodes = inodes.collect::<Vec<_>>().join(", ");
            let what = match &parked.work {
                Work::Question(q) => format!("{:?} of {:?}", q.ask, q.from.node),
                Work::Transaction(envelope) => format!("transaction {:?}", envelope.id),
            };
            (
                format!("{what} waits for inodes {inodes} to be read"),
                parked.since,
            )
        })
    }

    /// Work that waits.
    pub fn count(&self) -> usize {
        self.parked.len()
    }

    /// `work` is to be given back when these inodes are resident; `root_of` says which root a shard has now.
    pub fn want(
        &mut self,
        now: Instant,
        inodes: &[InodeId],
        work: Work,
        root_of: &mut dyn FnMut(ShardId) -> Root,
    ) {
        assert!(!inodes.is_empty(), "work that misses something says what");
        let number = self.draw_number();
        for ino in inodes {
            if let Some(reading) = self.reading.get_mut(ino) {
                reading.for_work.push(number);
                continue;
            }
            self.counters.misses += 1;
            self.begin(*ino, root_of(ino.shard()), 0, vec![number]);
        }
        let parked = Parked {
            work,
            since: now,
            missing: inodes.iter().copied().collect(),
            has_failed: false,
        };
        self.parked.insert(number, parked);
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
            records: Vec::new(),
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
        let result = match collect(&mut reading.scan, &mut self.pages, &mut reading.records) {
            Ok(false) => return,
            Ok(true) => decode(self.key, ino, &std::mem::take(&mut reading.records)),
            Err(error) => Err(error.into()),
        };
        self.pages.forget(reading.waiter);
        self.waiters.remove(&reading.waiter);
        let root = reading.root;
        self.done.push_back(Fetched { ino, root, result });
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

    /// An inode that was read: to be installed (`install`), and then `settled`.
    pub fn next_done(&mut self) -> Option<Fetched> {
        self.done.pop_front()
    }

    /// An inode was installed, or not. What need not wait any longer is given back.
    pub fn settled(&mut self, ino: InodeId, installed: Installed, out: &mut Vec<Work>) {
        let reading = self.reading.remove(&ino).expect("it is being read");
        let has_failed = match installed {
            Installed::Done => false,
            Installed::Stale(root) if reading.tries < TRIES_MAX => {
                self.counters.stale += 1;
                return self.begin(ino, root, reading.tries + 1, reading.for_work);
            }
            Installed::Stale(_) | Installed::Failed(_) => {
                self.counters.failures += 1;
                true
            }
        };
        for number in reading.for_work {
            let Some(parked) = self.parked.get_mut(&number) else {
                continue;
            };
            parked.missing.remove(&ino);
            parked.has_failed |= has_failed;
            if parked.missing.is_empty()
                && let Some(parked) = self.parked.remove(&number)
            {
                out.extend(given_back(parked));
            }
        }
    }
}

/// A question whose inodes cannot be read is answered EIO; a transaction's message comes again.
fn given_back(parked: Parked) -> Option<Work> {
    match parked.work {
        Work::Question(mut question) => {
            question.is_unreadable |= parked.has_failed;
            Some(Work::Question(question))
        }
        Work::Transaction(_) if parked.has_failed => None,
        work @ Work::Transaction(_) => Some(work),
    }
}

/// Installs an inode in its shard, whose lock is held, as that of `log` is.
pub fn install(slice: &mut OwnerSlice, log: &OwnerLog, fetched: Fetched) -> Installed {
    let root = log.root(slice.shard.id());
    if !slice.shard.is_cold(fetched.ino) {
        return Installed::Done;
    }
    if root != fetched.root {
        return Installed::Stale(root);
    }
    match fetched.result {
        Ok(loaded) => {
            slice.shard.take_in(fetched.ino.index(), loaded);
            Installed::Done
        }
        Err(error) => Installed::Failed(error),
    }
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
    let mut records = Vec::new();
    while !collect(&mut scan, pages, &mut records)? {
        while let Some(fetch) = pages.next_fetch() {
            if let Some(arrival) = pages.on_fetched(fetch.id, read(&fetch)) {
                scan.on_page(&arrival);
            }
        }
    }
    decode(key, ino, &records)
}

fn scan_of(fs: FsId, root: &Root, ino: InodeId, waiter: Waiter) -> Scan {
    let shard = ino.shard();
    let first = |index: u64| index.to_be_bytes()[2..].to_vec();
    let range = (first(ino.index()), Some(first(ino.index() + 1)));
    Scan::new(TreeId { fs, shard }, root, range, waiter, AHEAD_COUNT)
}

/// Collects what is there; true: that is all.
fn collect(
    scan: &mut Scan,
    pages: &mut Pages,
    records: &mut Vec<(SmallBytes, SmallBytes)>,
) -> Result<bool, TreeError> {
    let mut key = Vec::new();
    loop {
        match scan.next(pages)? {
            ScanStep::Entries(entries) => {
                for at in entries.begin..entries.end {
                    entries.page.key_into(at, &mut key);
                    let value = SmallBytes::new(entries.page.value(at));
                    records.push((SmallBytes::new(&key), value));
                }
            }
            ScanStep::Waiting => return Ok(false),
            ScanStep::Done => return Ok(true),
        }
    }
}

fn decode(
    key: HashKey,
    ino: InodeId,
    records: &[(SmallBytes, SmallBytes)],
) -> Result<Loaded, FetchError> {
    let loaded = Shard::decode(ino.shard(), key, ino.index(), records);
    let loaded = loaded.map_err(|error| FetchError::Record { ino, error })?;
    loaded.ok_or(FetchError::Absent { ino })
}
