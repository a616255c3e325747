//! Loads and stores of file data: which sectors to read and write with which frames, and how what came is verified.
//!
//! Invariants
//! - A load ends when every request has ended, and well only if every sector of it was verified.
//! - A store computes its checksums on the frozen frames; a run goes with its checksum sectors in one write, and what
//!   is adjacent on an NSD too. It is in doubt as a whole when a part of it is.
//! - A flush covers writes of the verifier that it names: another one means that the cache that took them is gone.
//! - Frames taken for checksums are released when the transfer ends.
//!
//! What this deliberately does not do: I/O. `V` is what the driver has as verifiers.

use std::collections::BTreeMap;
use std::sync::Arc;

use data::plan::{Fetch, ReadPiece, RunKey, Verify, plan_read};
use data::{ChecksumCache, checksum};
use types::frame::FRAME_SIZE;
use types::{ByteRange, Extent, FrameRef, Location, NsdId, SECTOR_SIZE, Span};

use crate::Pool;
use crate::env::{LoadPiece, StorePiece};
use crate::slice::{IoFailure, IoId, Undurable};

/// Sectors of one write at the most.
const WRITE_SECTORS_MAX: usize = 1024;

/// Adjacent sectors and the frames that their bytes go to or come from, one for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// First sector.
    pub at: Location,
    /// Frames.
    pub frames: Vec<FrameRef>,
}

#[derive(Debug)]
struct Job {
    fetch: Fetch,
    frames: Vec<FrameRef>,
    checksum_frames: Vec<FrameRef>,
    /// Of the run, where they were known; none for inline ones.
    cached: Option<Arc<[u32]>>,
}

/// A load under way.
#[derive(Debug, Default)]
pub struct Load {
    jobs: Vec<Job>,
    extra: Vec<FrameRef>,
    left: usize,
    failure: Option<IoFailure>,
}

impl Load {
    /// Plans a load; `cached` knows the checksums of some runs. Each of the requests is to be read, and ends in one
    /// `on_read`. `None`: no frames for checksums; try again in a moment.
    pub fn plan(
        pieces: &[LoadPiece],
        pool: &dyn Pool,
        mut cached: impl FnMut(RunKey) -> Option<Arc<[u32]>>,
    ) -> Option<(Self, Vec<Request>)> {
        let mut this = Self {
            jobs: Vec::with_capacity(pieces.len()),
            ..Self::default()
        };
        let mut requests = Vec::with_capacity(pieces.len());
        for (fetch, frames) in pieces.iter().flat_map(fetches_of) {
            let cached = match &fetch.verify {
                Verify::Inline(_) => None,
                Verify::Sectors { key, .. } => cached(*key),
            };
            let mut checksum_frames = Vec::new();
            if cached.is_none()
                && let Some(run) = fetch.checksum_run(0)
            {
                for _ in 0..run.count {
                    let Some(frame) = pool.alloc() else {
                        this.extra.iter().for_each(|frame| pool.release(*frame));
                        return None;
                    };
                    this.extra.push(frame);
                    checksum_frames.push(frame);
                }
            }
            let job = Job {
                fetch,
                frames,
                checksum_frames,
                cached,
            };
            job.requests(&mut requests);
            this.jobs.push(job);
        }
        this.left = requests.len();
        Some((this, requests))
    }

    /// A request has ended. True: it was the last, call `end`.
    pub fn on_read(&mut self, result: Result<(), IoFailure>) -> bool {
        self.failure = self.failure.or(result.err());
        self.left -= 1;
        self.left == 0
    }

    /// All has been read: verifies it, and hands on checksums of runs with `keep`, and with `damaged` the first sectors
    /// that are not what was written.
    ///
    /// # Errors
    /// Why the bytes cannot be used.
    pub fn end(
        self,
        pool: &dyn Pool,
        mut keep: impl FnMut(RunKey, Arc<[u32]>),
        damaged: impl FnOnce(&Fetch),
    ) -> Result<(), IoFailure> {
        let mut jobs = self.jobs.iter();
        let wrong = match self.failure {
            None => jobs.find(|job| !job.verify(pool, &mut keep)),
            Some(_) => None,
        };
        if let Some(job) = wrong {
            damaged(&job.fetch);
        }
        let is_right = wrong.is_none();
        self.extra.iter().for_each(|frame| pool.release(*frame));
        match (self.failure, is_right) {
            (Some(failure), _) => Err(failure),
            (None, true) => Ok(()),
            (None, false) => Err(IoFailure::Corrupt),
        }
    }
}

impl Job {
    fn requests(&self, requests: &mut Vec<Request>) {
        let mut frames = self.frames.clone();
        if !self.checksum_frames.is_empty() {
            if let Some(joined) = self.fetch.joined_run(0) {
                frames.extend(&self.checksum_frames);
                let at = joined.at;
                requests.push(Request { at, frames });
                return;
            }
            if let Some(sums) = self.fetch.checksum_run(0) {
                let (at, frames) = (sums.at, self.checksum_frames.clone());
                requests.push(Request { at, frames });
            }
        }
        let at = self.fetch.run(0).at;
        requests.push(Request { at, frames });
    }

    fn verify(&self, pool: &dyn Pool, keep: &mut impl FnMut(RunKey, Arc<[u32]>)) -> bool {
        let crcs: Arc<[u32]> = match (&self.fetch.verify, &self.cached) {
            (_, Some(crcs)) => Arc::clone(crcs),
            (Verify::Inline(_), None) => Arc::default(),
            (
                Verify::Sectors {
                    key, run_length, ..
                },
                None,
            ) => {
                let mut bytes = Vec::with_capacity(self.checksum_frames.len() * FRAME_SIZE);
                for frame in &self.checksum_frames {
                    bytes.extend_from_slice(&pool.load(Span::whole(*frame)));
                }
                let opened = checksum::open_checksum_sectors(&bytes, key.root, *run_length);
                let Ok(crcs) = opened else { return false };
                let crcs: Arc<[u32]> = crcs.into();
                keep(*key, Arc::clone(&crcs));
                crcs
            }
        };
        let found = self.frames.iter().map(|f| pool.crc(Span::whole(*f)));
        let found: Vec<u32> = found.collect();
        self.fetch.verify(&found, &crcs).is_ok()
    }
}

/// The fetches of a piece with the frames of each.
fn fetches_of(piece: &LoadPiece) -> Vec<(Fetch, Vec<FrameRef>)> {
    let extent = &piece.extent;
    let begin = extent.file_sector * SECTOR_SIZE;
    let range = ByteRange::at(begin, u64::from(extent.length) * SECTOR_SIZE);
    let mut taken = 0;
    let mut fetches = Vec::new();
    for part in plan_read(range, std::slice::from_ref(extent)) {
        if let ReadPiece::Fetch(fetch) = part {
            let count = fetch.count as usize;
            fetches.push((fetch, piece.frames[taken..taken + count].to_vec()));
            taken += count;
        }
    }
    fetches
}

/// A store under way.
#[derive(Debug)]
pub struct Store<V> {
    extents: Vec<Extent>,
    extra: Vec<FrameRef>,
    written: Vec<(NsdId, V)>,
    left: usize,
    failure: Option<IoFailure>,
}

/// What a store has written: the extents, and the NSDs with the verifiers of the writes.
pub type Stored<V> = (Vec<Extent>, Vec<(NsdId, V)>);

impl<V> Store<V> {
    /// Plans a store. Each of the requests is to be written, and ends in one `on_written`.
    ///
    /// # Errors
    /// No frames for checksums: the pieces, to be tried again in a moment (they have been acknowledged).
    pub fn plan(
        pieces: Vec<StorePiece>,
        pool: &dyn Pool,
    ) -> Result<(Self, Vec<Request>), Vec<StorePiece>> {
        let sums = |p: &StorePiece| (p.run.count as usize).saturating_sub(p.frames.len());
        let wanted: usize = pieces.iter().map(sums).sum();
        let mut extra = Vec::with_capacity(wanted);
        while extra.len() < wanted {
            let Some(frame) = pool.alloc() else {
                extra.iter().for_each(|frame| pool.release(*frame));
                return Err(pieces);
            };
            extra.push(frame);
        }
        let mut free = extra.iter();
        let mut extents = Vec::with_capacity(pieces.len());
        let mut requests: Vec<Request> = Vec::new();
        for piece in pieces {
            let crcs = piece.frames.iter().map(|f| pool.crc(Span::whole(*f)));
            let (checksums, sectors) = checksum::seal(&crcs.collect::<Vec<u32>>());
            let length = u32::try_from(piece.frames.len()).expect("a run is at most a block");
            let mut frames = piece.frames;
            for sector in sectors.chunks(FRAME_SIZE) {
                let frame = free.next();
                let frame = *frame.expect("a run has as many sectors as its checksums need");
                pool.store(Span::whole(frame), sector);
                frames.push(frame);
            }
            extents.push(Extent {
                file_sector: piece.file_sector,
                length,
                birth: 0,
                is_shared: false,
                locations: vec![piece.run.at],
                checksums,
            });
            let at = piece.run.at;
            match requests.last_mut() {
                Some(last)
                    if last.at.nsd == at.nsd
                        && last.at.sector + last.frames.len() as u64 == at.sector
                        && last.frames.len() + frames.len() <= WRITE_SECTORS_MAX =>
                {
                    last.frames.extend(frames);
                }
                _ => requests.push(Request { at, frames }),
            }
        }
        let this = Self {
            extents,
            extra,
            written: Vec::with_capacity(requests.len()),
            left: requests.len(),
            failure: None,
        };
        Ok((this, requests))
    }

    /// A write to `nsd` has ended; `Unknown`: its sectors are in doubt. True: it was the last, call `end`.
    pub fn on_written(&mut self, nsd: NsdId, result: Result<V, IoFailure>) -> bool {
        match result {
            Ok(verifier) => self.written.push((nsd, verifier)),
            Err(failure) if self.failure != Some(IoFailure::Unknown) => {
                self.failure = Some(failure);
            }
            Err(_) => {}
        }
        self.left -= 1;
        self.left == 0
    }

    /// All writes have ended.
    ///
    /// # Errors
    /// Some did not do what they should.
    pub fn end(self, pool: &dyn Pool) -> Result<Stored<V>, IoFailure> {
        self.extra.iter().for_each(|frame| pool.release(*frame));
        match self.failure {
            None => Ok((self.extents, self.written)),
            Some(failure) => Err(failure),
        }
    }
}

/// Stores that are not flushed yet: NSDs and the verifiers of their writes.
#[derive(Debug)]
pub struct Unflushed<V> {
    stores: BTreeMap<IoId, Vec<(NsdId, V)>>,
}

impl<V> Default for Unflushed<V> {
    fn default() -> Self {
        Self {
            stores: BTreeMap::new(),
        }
    }
}

impl<V> Unflushed<V> {
    /// A store has ended well.
    pub fn insert(&mut self, io: IoId, written: Vec<(NsdId, V)>) {
        self.stores.insert(io, written);
    }

    /// Nobody wants what these stores wrote.
    pub fn forget(&mut self, stores: &[IoId]) {
        for store in stores {
            self.stores.remove(store);
        }
    }

    /// None waits for a flush or its end.
    pub fn is_empty(&self) -> bool {
        self.stores.is_empty()
    }

    /// What is to be flushed to make these stores durable. Of one that is not known here nobody can say that it will be: the flush
    /// has failed then, and what it wrote is written again.
    pub fn take(&mut self, stores: &[IoId]) -> Flushing<V> {
        let mut wanted: BTreeMap<NsdId, Vec<(IoId, V)>> = BTreeMap::new();
        let mut failed = BTreeMap::new();
        for store in stores {
            let Some(written) = self.stores.remove(store) else {
                failed.insert(*store, IoFailure::Unknown);
                continue;
            };
            for (nsd, verifier) in written {
                wanted.entry(nsd).or_default().push((*store, verifier));
            }
        }
        Flushing {
            left: wanted.len(),
            wanted,
            failed,
        }
    }
}

/// Flushes under way for some stores.
#[derive(Debug)]
pub struct Flushing<V> {
    wanted: BTreeMap<NsdId, Vec<(IoId, V)>>,
    left: usize,
    failed: BTreeMap<IoId, IoFailure>,
}

impl<V: PartialEq> Flushing<V> {
    /// The NSDs to flush; each ends in one `on_flushed`. None: it is over, with `result`.
    pub fn nsds(&self) -> Vec<NsdId> {
        self.wanted.keys().copied().collect()
    }

    /// A flush has ended. With the last one: whether all stores are durable.
    pub fn on_flushed(
        &mut self,
        nsd: NsdId,
        result: Result<V, IoFailure>,
    ) -> Option<Result<(), Undurable>> {
        for (store, then) in self.wanted.get(&nsd).into_iter().flatten() {
            let failure = match &result {
                Ok(now) if now == then => continue,
                // Another verifier: the cache that took the writes is not the one that was flushed. What is written again may fare better.
                Ok(_) => IoFailure::Unknown,
                Err(failure) => *failure,
            };
            let known = self.failed.entry(*store).or_insert(failure);
            if failure == IoFailure::Unreachable {
                *known = failure;
            }
        }
        self.left -= 1;
        (self.left == 0).then(|| self.result())
    }

    /// Whether all stores are durable, as far as is known yet.
    ///
    /// # Errors
    /// These are not: they are to be written again.
    pub fn result(&self) -> Result<(), Undurable> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let failed = self.failed.iter();
        Err(failed.map(|(store, failure)| (*store, *failure)).collect())
    }
}

/// How many checksums of runs a node keeps: of 4 GiB of data.
pub const CHECKSUM_COUNT_MAX: usize = 1 << 20;

/// The checksums of runs that a node knows.
pub fn checksum_cache() -> ChecksumCache {
    ChecksumCache::new(CHECKSUM_COUNT_MAX)
}

#[cfg(test)]
#[path = "transfer/tests.rs"]
mod tests;
