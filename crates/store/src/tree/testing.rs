//! For tests and measurements: a disk of pages, a driver that answers in random order, foreign bytes as pages.

use std::collections::{BTreeMap, BTreeSet};

use data::checksum::crc32c;
use stdx::Prng;
use types::{Epoch, FsId, Location, Lsn, NsdId, Run, ShardId};

use super::apply::{Applied, Apply, ApplyConfig, ApplyError, FailedCopy, PageWrite, Step};
use super::fault::TreeError;
use super::get::{Get, Progress};
use super::ops::Change;
use super::page::{Copies, Page, PageRef, Root, Seal, TreeId, seal};
use super::pages::{Fetch, Pages, Unreadable, Waiter};
use super::scan::{Scan, ScanStep};
use super::walk::{Broken, Position, Walk, WalkStep};
use crate::format::SECTOR;

/// The tree of tests.
pub const TREE: TreeId = TreeId {
    fs: FsId(0xf5),
    shard: ShardId(7),
};

fn pick(prng: &mut Prng, count: usize) -> usize {
    usize::try_from(prng.below(count as u64)).expect("below a count in memory")
}

/// A page of one sector, with its level.
fn good_page(prng: &mut Prng) -> (Vec<u8>, u8) {
    let level = u8::try_from(prng.below(2)).expect("0 or 1");
    let count = prng.between(1, 30);
    let reference = |index: u64| PageRef {
        copies: Copies::new(&[Location {
            nsd: NsdId(1),
            sector: index,
        }]),
        sectors: 1,
        level: 0,
        crc: 5,
        count: 3,
        number: index,
    };
    let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..count)
        .map(|index| {
            let key = (prng.below(1 << 20) + (index << 20)).to_be_bytes().to_vec();
            let value = match level {
                0 => vec![3; pick(prng, 40)],
                _ => reference(index).encode().to_vec(),
            };
            (key, value)
        })
        .collect();
    let head = Seal {
        tree: TREE,
        sectors: 1,
        level,
        lsn: Lsn(1),
        epoch: Epoch(1),
        number: 9,
    };
    let list = entries.iter().map(|(k, v)| (k.as_slice(), v.as_slice()));
    (seal(&head, list).0, level)
}

/// Gives `count` damaged or random pages, references and roots to their decoders, CRCs made to fit so that
/// everything behind them is reached too. Returns how many pages were good nevertheless; all of each is read.
pub fn fuzz(seed: u64, count: u64) -> u64 {
    let mut prng = Prng::new(seed);
    let mut good_count = 0;
    for _ in 0..count {
        let (mut bytes, level) = good_page(&mut prng);
        match prng.below(8) {
            0 => prng.fill(&mut bytes),
            1 => bytes.truncate(pick(&mut prng, SECTOR + 1)),
            _ => {
                for _ in 0..prng.between(1, 4) {
                    // Mostly in the header and the slots.
                    let limit = [64, 256, SECTOR][pick(&mut prng, 3)];
                    let at = pick(&mut prng, limit);
                    bytes[at] = [0, 1, 255, bytes[at] ^ 1, bytes[at] ^ 128][pick(&mut prng, 5)];
                }
            }
        }
        let entries = bytes.get(28..32).and_then(|b| b.try_into().ok());
        let reference = PageRef {
            copies: Copies::new(&[Location::default()]),
            sectors: 1,
            level,
            crc: crc32c(&bytes),
            count: entries.map_or(0, u32::from_le_bytes),
            number: 9,
        };
        let mut noise = [0; 96];
        prng.fill(&mut noise);
        noise[0..2].copy_from_slice(&1_u16.to_le_bytes());
        if let Ok(root) = Root::decode(&noise) {
            assert_eq!(root.encode(), noise);
        }
        if let Ok(reference) = PageRef::decode(&noise[..48]) {
            assert_eq!(reference.encode(), noise[..48]);
        }
        if let Ok(page) = Page::verify(TREE, &reference, bytes.into()) {
            good_count += 1;
            read_all(&page);
        }
    }
    good_count
}

/// Calls everything that a verified page can be asked.
fn read_all(page: &Page) {
    for index in 0..page.count() {
        let key = page.key(index);
        assert_eq!(page.search(&key), Ok(index));
        assert!(page.value(index).len() <= page.bytes().len());
        if page.level() > 0 {
            assert_eq!(page.child_index(&key), index);
            let child = page.child(index);
            assert_eq!(PageRef::decode(&child.encode()), Ok(child));
        }
    }
}

/// A key and its value.
pub type Entry = (Vec<u8>, Vec<u8>);

/// A change with bytes of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// `Change::Put`.
    Put(Vec<u8>),
    /// `Change::Delete`.
    Delete,
    /// `Change::DeleteTo`.
    DeleteTo(Vec<u8>),
}

impl Edit {
    /// The change.
    pub fn change(&self) -> Change<'_> {
        match self {
            Self::Put(value) => Change::Put(value),
            Self::Delete => Change::Delete,
            Self::DeleteTo(end) => Change::DeleteTo(end),
        }
    }
}

/// How an apply of the rig did not come to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The apply's own error.
    Apply(ApplyError),
    /// There were no places left.
    NoPlaces,
    /// Power was lost, as asked for.
    PowerLost,
}

/// A tree on a disk of pages, and what drives it. Reads and writes end in random order.
#[derive(Debug)]
pub struct Rig {
    /// Pages by their first sector.
    pub disk: BTreeMap<Location, Box<[u8]>>,
    /// The cache.
    pub pages: Pages,
    /// The durable root.
    pub root: Root,
    /// Draws the order of everything.
    pub prng: Prng,
    /// Copies of each page, on NSD 1, 2, 3.
    pub copy_count: u16,
    /// `ApplyConfig::entry_count_max`.
    pub entry_count_max: u32,
    /// Of 100 writes, so many fail.
    pub failing: u64,
    /// Power is lost when so many writes have ended.
    pub writes_left: Option<u64>,
    /// Pages that there are places for.
    pub places_left: Option<u64>,
    /// What the next applies are told to leave (`Apply::evacuate`).
    pub evacuated: Vec<Run>,
    /// Places that cannot be read.
    pub unreadable: BTreeSet<Location>,
    /// Most reads that were under way at a time.
    pub reads_max: usize,
    /// Places ever read by `Pages`.
    pub fetched: Vec<Location>,
    /// Most memory that an apply held.
    pub memory_max: usize,
    /// Writes that ended in the last apply.
    pub write_count: u64,
    free: BTreeMap<u16, Vec<u64>>,
    next_sector: u64,
    /// Submitted since they were last free.
    submitted: BTreeSet<Location>,
    reads: Vec<Fetch>,
}

impl Rig {
    /// An empty tree of pages of `sectors`, and a cache of `cache` bytes.
    pub fn new(seed: u64, sectors: u8, cache: usize) -> Self {
        Self {
            disk: BTreeMap::new(),
            pages: Pages::new(cache, 8),
            root: Root::empty(TREE.shard, sectors),
            prng: Prng::new(seed),
            copy_count: 1,
            entry_count_max: u32::MAX,
            failing: 0,
            writes_left: None,
            places_left: None,
            evacuated: Vec::new(),
            unreadable: BTreeSet::new(),
            reads_max: 0,
            fetched: Vec::new(),
            memory_max: 0,
            write_count: 0,
            free: BTreeMap::new(),
            next_sector: 0,
            submitted: BTreeSet::new(),
            reads: Vec::new(),
        }
    }

    /// A cache without anything in it.
    pub fn cool(&mut self, cache: usize) {
        self.pages = Pages::new(cache, 8);
        self.reads.clear();
    }

    fn place(&mut self, nsd: u16) -> Location {
        let sectors = u64::from(self.root.sectors);
        let is_left = |sector: u64| {
            let is_in = |run: &Run| {
                run.at.nsd.0 == nsd
                    && (run.at.sector..run.at.sector + u64::from(run.count)).contains(&sector)
            };
            self.evacuated.iter().any(is_in)
        };
        let free = self.free.entry(nsd).or_default();
        let sector = match free.iter().rposition(|sector| !is_left(*sector)) {
            Some(at) => free.remove(at),
            None => {
                self.next_sector += sectors;
                while is_left(self.next_sector) {
                    self.next_sector += sectors;
                }
                self.next_sector
            }
        };
        let nsd = NsdId(nsd);
        Location { nsd, sector }
    }

    fn places(&mut self) -> Copies {
        let places: Vec<Location> = (1..=self.copy_count).map(|nsd| self.place(nsd)).collect();
        Copies::new(&places)
    }

    /// A run is free again: it may be given out and written once more.
    fn free(&mut self, at: Location) {
        self.submitted.remove(&at);
        self.free.entry(at.nsd.0).or_default().push(at.sector);
    }

    fn fetch(&mut self) {
        while let Some(fetch) = self.pages.next_fetch() {
            self.fetched.push(fetch.at);
            self.reads.push(fetch);
        }
        self.reads_max = self.reads_max.max(self.reads.len());
        self.pages.check();
    }

    fn read(&self, fetch: &Fetch) -> Result<Box<[u8]>, Unreadable> {
        if self.unreadable.contains(&fetch.at) {
            return Err(Unreadable);
        }
        let size = usize::from(fetch.sectors) * SECTOR;
        let bytes = self.disk.get(&fetch.at).cloned();
        Ok(bytes.unwrap_or_else(|| vec![0; size].into()))
    }

    /// Ends one of the reads. `None`: there is none.
    fn end_read(&mut self) -> Option<Option<super::pages::Arrival>> {
        if self.reads.is_empty() {
            return None;
        }
        let index = pick(&mut self.prng, self.reads.len());
        let fetch = self.reads.swap_remove(index);
        let bytes = self.read(&fetch);
        Some(self.pages.on_fetched(fetch.id, bytes))
    }

    /// Applies sorted `edits` to the durable root; the new root becomes durable. On failure everything is given
    /// back.
    ///
    /// # Errors
    /// Why there is no new root.
    pub fn apply(&mut self, edits: &[(Vec<u8>, Edit)]) -> Result<Applied, Failure> {
        let config = ApplyConfig {
            tree: TREE,
            epoch: Epoch(1),
            lsn: Lsn(self.root.lsn.0 + 1),
            waiter: Waiter(1),
            ahead_max: 4,
            write_count_max: 3,
            entry_count_max: self.entry_count_max,
        };
        let mut drive = Drive {
            apply: {
                let mut apply = Apply::new(config, &self.root);
                apply.evacuate(&self.evacuated);
                apply
            },
            writes: Vec::new(),
            used: Vec::new(),
            freed: Vec::new(),
            next_edit: 0,
        };
        self.write_count = 0;
        let result = self.drive(&mut drive, edits);
        if result.is_err() {
            self.pages.forget(Waiter(1));
        }
        self.drain();
        let Drive {
            apply, used, freed, ..
        } = drive;
        match result {
            Ok(applied) => {
                self.root = applied.root;
                for place in applied.unused.iter().flat_map(|copies| copies.iter()) {
                    assert!(!self.submitted.contains(place));
                    self.free(*place);
                }
                for run in freed {
                    self.free(run.at);
                }
                Ok(*applied)
            }
            Err(failure) => {
                let abandoned = apply.abandon();
                for place in abandoned.unused.iter().flat_map(|copies| copies.iter()) {
                    assert!(!self.submitted.contains(place), "it was never submitted");
                    self.free(*place);
                }
                for run in abandoned.submitted.iter().chain(&used) {
                    assert!(self.submitted.contains(&run.at), "it was submitted");
                    self.free(run.at);
                }
                Err(failure)
            }
        }
    }

    fn drive(
        &mut self,
        drive: &mut Drive,
        edits: &[(Vec<u8>, Edit)],
    ) -> Result<Box<Applied>, Failure> {
        loop {
            let step = drive.apply.poll(&mut self.pages).map_err(Failure::Apply)?;
            self.memory_max = self.memory_max.max(drive.apply.memory());
            self.fetch();
            match step {
                Step::Write(write) => {
                    assert!(self.submitted.insert(write.at), "submitted at most once");
                    drive.writes.push(write);
                }
                Step::Used(run) => drive.used.push(run),
                Step::Freed(run) => drive.freed.push(run),
                Step::Spent(run) => self.free(run.at),
                Step::NeedCopy(failed) => self.give_copy(drive, &failed),
                Step::NeedChanges => {
                    for _ in 0..self.prng.between(1, 40) {
                        match edits.get(drive.next_edit) {
                            Some((key, edit)) if drive.apply.wants_changes() => {
                                drive.apply.push(key, edit.change());
                                drive.next_edit += 1;
                            }
                            Some(_) => {}
                            None => {
                                drive.apply.end();
                                break;
                            }
                        }
                    }
                }
                Step::NeedPlaces => {
                    for _ in 0..self.prng.between(1, 4) {
                        match &mut self.places_left {
                            Some(0) => return Err(Failure::NoPlaces),
                            Some(left) => *left -= 1,
                            None => {}
                        }
                        let copies = self.places();
                        drive.apply.give(copies);
                    }
                }
                Step::Waiting => self.end_one(drive)?,
                Step::Done(applied) => return Ok(applied),
            }
            if self.prng.chance(1, 4) && !(self.reads.is_empty() && drive.writes.is_empty()) {
                self.end_one(drive)?;
            }
        }
    }

    fn give_copy(&mut self, drive: &mut Drive, failed: &FailedCopy) {
        let is_lost = self.prng.chance(1, 4) && failed.copies.len() > 1;
        let place = (!is_lost).then(|| self.place(failed.at.nsd.0));
        drive.apply.on_copy(failed, place);
    }

    /// Ends a read or a write.
    fn end_one(&mut self, drive: &mut Drive) -> Result<(), Failure> {
        let is_write = self.reads.is_empty() || self.prng.chance(1, 2);
        if !is_write || drive.writes.is_empty() {
            let ended = self.end_read().expect("an apply never waits for nothing");
            if let Some(arrival) = ended {
                drive.apply.on_page(&arrival);
            }
            self.fetch();
            return Ok(());
        }
        let index = pick(&mut self.prng, drive.writes.len());
        let PageWrite { id, at, page } = drive.writes.swap_remove(index);
        if self.writes_left == Some(0) {
            return Err(Failure::PowerLost);
        }
        self.writes_left = self.writes_left.map(|left| left - 1);
        self.write_count += 1;
        let is_written = !self.prng.chance(self.failing, 100);
        if is_written || self.prng.chance(1, 2) {
            self.disk.insert(at, page.bytes().into());
        }
        drive.apply.on_written(id, is_written);
        Ok(())
    }

    /// The values of `keys`.
    ///
    /// # Errors
    /// A page has no good copy.
    pub fn get(&mut self, keys: Vec<Vec<u8>>) -> Result<Vec<Option<Box<[u8]>>>, TreeError> {
        let mut get = Get::new(TREE, &self.root, keys, Waiter(2), 3);
        while get.poll(&mut self.pages) == Progress::Waiting {
            self.fetch();
            let arrival = self.end_read().expect("a get never waits for nothing");
            if let Some(arrival) = arrival {
                assert_eq!(arrival.waiters, [Waiter(2)]);
                get.on_page(&arrival);
            }
        }
        get.finish()
    }

    /// The entries of a range.
    ///
    /// # Errors
    /// A page has no good copy.
    pub fn scan(&mut self, begin: &[u8], end: Option<&[u8]>) -> Result<Vec<Entry>, TreeError> {
        let range = (begin.to_vec(), end.map(<[u8]>::to_vec));
        let mut scan = Scan::new(TREE, &self.root, range, Waiter(3), 5);
        let mut found = Vec::new();
        let result = loop {
            let step = scan.next(&mut self.pages);
            self.fetch();
            match step {
                Ok(ScanStep::Entries(entries)) => {
                    let prefix = entries.page.prefix().to_vec();
                    for (rest, value) in entries.iter() {
                        found.push(([&prefix[..], rest].concat(), value.to_vec()));
                    }
                }
                Ok(ScanStep::Waiting) => {
                    let arrival = self.end_read().expect("a scan never waits for nothing");
                    if let Some(arrival) = arrival {
                        scan.on_page(&arrival);
                    }
                }
                Ok(ScanStep::Done) => break Ok(found),
                Err(error) => break Err(error),
            }
        };
        self.pages.forget(Waiter(3));
        self.drain();
        result
    }

    /// Ends all reads, whoever asked.
    fn drain(&mut self) {
        loop {
            self.fetch();
            if self.end_read().is_none() {
                break;
            }
        }
    }

    /// What a walk finds: the runs it claims, what is broken, entries of its leaves. `stop`: after so many leaves
    /// another walk goes on from there.
    pub fn walk(&mut self, stop: Option<u64>) -> Walked {
        self.walk_beside(BTreeSet::new(), stop)
    }

    /// The same, where `runs` are in use already.
    pub fn walk_beside(&mut self, runs: BTreeSet<Run>, stop: Option<u64>) -> Walked {
        let mut walked = Walked {
            runs,
            ..Walked::default()
        };
        let mut position = Position::BEGIN;
        loop {
            let mut walk = Walk::new(TREE, &self.root, position, 4);
            let mut reads = Vec::new();
            let mut leaves = 0;
            loop {
                let runs = &mut walked.runs;
                match walk.poll(&mut |run| runs.insert(run)) {
                    WalkStep::Fetch(fetch) => reads.push(fetch),
                    WalkStep::Broken(broken) => walked.broken.push(broken),
                    WalkStep::Leaf(leaf) => {
                        let entry = |i| (leaf.key(i), leaf.value(i).to_vec());
                        walked.entries.extend((0..leaf.count()).map(entry));
                        walked.used.push(leaf.used());
                        leaves += 1;
                    }
                    WalkStep::Waiting => {
                        let index = pick(&mut self.prng, reads.len());
                        let fetch = reads.swap_remove(index);
                        walk.on_read(fetch.id, self.read(&fetch));
                    }
                    WalkStep::Done => return walked,
                }
                if stop.is_some_and(|stop| leaves >= stop)
                    && let Some(next) = walk.position()
                {
                    position = next;
                    break;
                }
            }
        }
    }

    /// Places that are neither free nor never used: those of the tree, when no apply is under way.
    pub const fn submitted(&self) -> &BTreeSet<Location> {
        &self.submitted
    }

    /// Places on the disk that the tree of the root uses, by a good walk.
    pub fn reachable(&mut self) -> BTreeSet<Location> {
        let walked = self.walk(None);
        assert_eq!(walked.broken, []);
        walked.runs.iter().map(|run| run.at).collect()
    }
}

#[derive(Debug)]
struct Drive {
    apply: Apply,
    writes: Vec<PageWrite>,
    used: Vec<Run>,
    freed: Vec<Run>,
    next_edit: usize,
}

/// What `Rig::walk` found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Walked {
    /// Claimed.
    pub runs: BTreeSet<Run>,
    /// What is wrong.
    pub broken: Vec<Broken>,
    /// Of good leaves.
    pub entries: Vec<Entry>,
    /// Bytes used of each good leaf.
    pub used: Vec<usize>,
}
