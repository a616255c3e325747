//! Loads and stores of file data: plan, I/O, checksums.
//!
//! A load ends when every piece is read and every sector verified. A store computes its checksums on the
//! frozen frames, outside of every slice's lock, writes each run with its checksum sectors in one request,
//! and answers with the extents.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use client::Pool as _;
use client::env::{LoadPiece, StorePiece};
use client::slice::{Input, IoFailure, IoId};
use data::plan::{Fetch, ReadPiece, Verify, plan_read};
use nsd::message::Verifier;
use rustc_hash::FxHashMap;
use types::frame::{FRAME_BYTES, FRAME_SIZE, FRAMES_PER_SLAB};
use types::{ByteRange, Extent, FrameRef, Location, NsdId, Run, SECTOR_SIZE, Span};

use super::reclaim::FrameUser;
use super::sectors::Kind;
use super::{Daemon, lock};

/// Runs whose verified checksums are kept.
const CRC_CACHE_MAX: usize = 4096;

/// Checksums of runs, and what stores wrote under which verifier.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    crcs: Mutex<FxHashMap<data::plan::RunKey, Arc<Vec<u32>>>>,
    /// Stores that are not flushed yet: NSDs and the verifiers of their writes.
    stores: Mutex<BTreeMap<IoId, Vec<(NsdId, Verifier)>>>,
    /// Where a checksum did not match last.
    mismatch: Mutex<Option<Location>>,
}

/// Several requests that end together.
struct Join<T> {
    left: AtomicUsize,
    state: Mutex<T>,
}

impl<T> Join<T> {
    fn new(count: usize, state: T) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(count),
            state: Mutex::new(state),
        })
    }

    /// One has ended; true for the last.
    fn end(&self) -> bool {
        self.left.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// Adjacent frames as spans.
fn spans_of(frames: &[FrameRef]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for frame in frames {
        if let Some(last) = spans.last_mut() {
            let next = last.frame.0 + last.length / FRAME_BYTES;
            let is_same_slab = last.frame.0 / FRAMES_PER_SLAB == frame.0 / FRAMES_PER_SLAB;
            if next == frame.0 && is_same_slab {
                last.length += FRAME_BYTES;
                continue;
            }
        }
        spans.push(Span::whole(*frame));
    }
    spans
}

/// What a load gathers.
struct Loading {
    failure: Option<IoFailure>,
    extra: Vec<FrameRef>,
}

struct FetchJob {
    fetch: Fetch,
    frames: Vec<FrameRef>,
    checksum_frames: Vec<FrameRef>,
    cached: Option<Arc<Vec<u32>>>,
}

impl Daemon {
    /// Reads and verifies the pieces; the slice hears `Loaded`.
    pub(super) fn load(self: &Arc<Self>, io: IoId, pieces: Vec<LoadPiece>) {
        let mut jobs = Vec::with_capacity(pieces.len());
        let mut requests: Vec<(NsdId, u64, Vec<Span>, usize)> = Vec::new();
        let mut extra = Vec::new();
        let mut is_short = false;
        for piece in &pieces {
            for (fetch, frames) in fetches_of(piece) {
                let cached = self.cached_crcs(&fetch);
                let mut checksum_frames = Vec::new();
                if cached.is_none()
                    && let Some(run) = fetch.checksum_run(0)
                {
                    for _ in 0..run.count {
                        match self.pool.alloc() {
                            Some(frame) => checksum_frames.push(frame),
                            None => is_short = true,
                        }
                    }
                }
                extra.extend(&checksum_frames);
                let job = FetchJob {
                    fetch,
                    frames,
                    checksum_frames,
                    cached,
                };
                plan_job(&job, jobs.len(), &mut requests);
                jobs.push(job);
            }
        }
        if is_short {
            // No frame for checksums: the load waits for one.
            extra.iter().for_each(|frame| self.pool.release(*frame));
            return self.when_frames(FrameUser::Load, move |daemon| daemon.load(io, pieces));
        }
        let jobs = Arc::new(jobs);
        let join = Join::new(
            requests.len(),
            Loading {
                failure: None,
                extra,
            },
        );
        for (nsd, sector, spans, _) in requests {
            let join = Arc::clone(&join);
            let jobs = Arc::clone(&jobs);
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    if let Err(failure) = result {
                        lock(&join.state).failure = Some(failure);
                    }
                    if join.end() {
                        daemon.loaded(io, &jobs, &join);
                    }
                },
            );
            self.sectors(Kind::Read, nsd, sector, spans, done);
        }
    }

    fn loaded(self: &Arc<Self>, io: IoId, jobs: &[FetchJob], join: &Join<Loading>) {
        let mut failure = lock(&join.state).failure;
        if failure.is_none() {
            for job in jobs {
                if !self.verify(job) {
                    self.log_mismatch(&job.fetch);
                    failure = Some(IoFailure::Corrupt);
                    break;
                }
            }
        }
        for frame in std::mem::take(&mut lock(&join.state).extra) {
            self.pool.release(frame);
        }
        let result = failure.map_or(Ok(()), Err);
        self.io_ended(io, Input::Loaded(io, result));
    }

    /// The slice asks for the map and reads again, since the owner may have moved the file's bytes: one place is
    /// named once in a row.
    fn log_mismatch(&self, fetch: &Fetch) {
        let Some(&Location { nsd, sector }) = fetch.locations.first() else {
            return;
        };
        let before = lock(&self.transfers.mismatch).replace(Location { nsd, sector });
        if before != Some(Location { nsd, sector }) {
            let (count, file_sector) = (fetch.count, fetch.file_sector);
            tracing::error!(%nsd, sector, count, file_sector, "these sectors are not what was written");
        }
    }

    fn cached_crcs(&self, fetch: &Fetch) -> Option<Arc<Vec<u32>>> {
        match &fetch.verify {
            Verify::Inline(_) => Some(Arc::new(Vec::new())),
            Verify::Sectors { key, .. } => lock(&self.transfers.crcs).get(key).cloned(),
        }
    }

    fn verify(&self, job: &FetchJob) -> bool {
        let crcs = match (&job.fetch.verify, &job.cached) {
            (_, Some(crcs)) => Arc::clone(crcs),
            (
                Verify::Sectors {
                    key, run_length, ..
                },
                None,
            ) => {
                let mut bytes = Vec::with_capacity(job.checksum_frames.len() * FRAME_SIZE);
                for frame in &job.checksum_frames {
                    bytes.extend_from_slice(&self.pool.load(Span::whole(*frame)));
                }
                let opened = data::checksum::open_checksum_sectors(&bytes, key.root, *run_length);
                let Ok(crcs) = opened else { return false };
                let crcs = Arc::new(crcs);
                let mut cache = lock(&self.transfers.crcs);
                if cache.len() >= CRC_CACHE_MAX {
                    cache.clear();
                }
                cache.insert(*key, Arc::clone(&crcs));
                crcs
            }
            (Verify::Inline(_), None) => return false,
        };
        let found: Vec<u32> = job
            .frames
            .iter()
            .map(|frame| self.pool.crc(Span::whole(*frame)))
            .collect();
        job.fetch.verify(&found, &crcs).is_ok()
    }

    /// Writes runs; the slice hears `Stored` with their extents.
    pub(super) fn store(self: &Arc<Self>, io: IoId, pieces: Vec<StorePiece>) {
        // Frames for the checksum sectors first: without them the store waits, for what it is to write has
        // been acknowledged.
        let wanted: usize = pieces
            .iter()
            .map(|piece| (piece.run.count as usize).saturating_sub(piece.frames.len()))
            .sum();
        let mut extra = Vec::with_capacity(wanted);
        while extra.len() < wanted {
            let Some(frame) = self.pool.alloc() else {
                extra.iter().for_each(|frame| self.pool.release(*frame));
                return self.when_frames(FrameUser::Store, move |daemon| daemon.store(io, pieces));
            };
            extra.push(frame);
        }
        let mut free = extra.clone();
        let mut extents = Vec::with_capacity(pieces.len());
        let mut writes: Vec<(Location, u64, Vec<FrameRef>)> = Vec::new();
        for piece in pieces {
            let crcs: Vec<u32> = piece
                .frames
                .iter()
                .map(|f| self.pool.crc(Span::whole(*f)))
                .collect();
            let (checksums, sectors) = data::checksum::seal(&crcs);
            let length = u32::try_from(piece.frames.len()).expect("a run is at most a block");
            let mut frames = piece.frames;
            for sector in sectors.chunks(FRAME_SIZE) {
                let frame = free
                    .pop()
                    .expect("a run has as many sectors as its checksums need");
                self.pool.store(Span::whole(frame), sector);
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
            let count = frames.len() as u64;
            match writes.last_mut() {
                Some((at, so_far, list))
                    if at.nsd == piece.run.at.nsd
                        && at.sector + *so_far == piece.run.at.sector
                        && *so_far + count <= 1024 =>
                {
                    *so_far += count;
                    list.extend(frames);
                }
                _ => writes.push((piece.run.at, count, frames)),
            }
        }
        let join = Join::new(writes.len(), (extents, extra, Vec::new(), None));
        for (at, _, frames) in writes {
            let join = Arc::clone(&join);
            let nsd = at.nsd;
            let count = u32::try_from(frames.len()).expect("a write is at most some blocks");
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    match result {
                        Ok(verifier) => lock(&join.state).2.push((nsd, verifier)),
                        Err(failure) => {
                            if failure == IoFailure::Unknown {
                                daemon.hands.with(|hands| hands.in_doubt(Run { at, count }));
                            }
                            let mut state = lock(&join.state);
                            // The whole store is in doubt when a part of it is.
                            if state.3 != Some(IoFailure::Unknown) {
                                state.3 = Some(failure);
                            }
                        }
                    }
                    if join.end() {
                        let (extents, extra, written, failure) =
                            std::mem::take(&mut *lock(&join.state));
                        extra
                            .iter()
                            .for_each(|frame: &FrameRef| daemon.pool.release(*frame));
                        let result = match failure {
                            None => Ok(extents),
                            Some(failure) => Err(failure),
                        };
                        if result.is_ok() && daemon.has_volatile_nsd {
                            lock(&daemon.transfers.stores).insert(io, written);
                        }
                        daemon.io_ended(io, Input::Stored(io, result));
                    }
                },
            );
            self.sectors(Kind::Write, nsd, at.sector, spans_of(&frames), done);
        }
    }

    /// Makes stores durable; the slice hears `Flushed`.
    pub(super) fn flush_stores(self: &Arc<Self>, io: IoId, stores: &[IoId]) {
        let mut wanted: BTreeMap<NsdId, Vec<Verifier>> = BTreeMap::new();
        {
            let mut known = lock(&self.transfers.stores);
            for store in stores {
                for (nsd, verifier) in known.remove(store).unwrap_or_default() {
                    wanted.entry(nsd).or_default().push(verifier);
                }
            }
        }
        if wanted.is_empty() {
            self.io_ended(io, Input::Flushed(io, Ok(())));
            return;
        }
        let join = Join::new(wanted.len(), None);
        for (nsd, verifiers) in wanted {
            let join = Arc::clone(&join);
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    // Another verifier: the cache that took the writes is not the one that was flushed.
                    let is_same = |now: Verifier| verifiers.iter().all(|then| *then == now);
                    if !result.is_ok_and(is_same) {
                        *lock(&join.state) = Some(IoFailure::Unreachable);
                    }
                    if join.end() {
                        let failure = lock(&join.state).take();
                        daemon.io_ended(io, Input::Flushed(io, failure.map_or(Ok(()), Err)));
                    }
                },
            );
            self.sectors(Kind::Flush, nsd, 0, Vec::new(), done);
        }
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

fn plan_job(job: &FetchJob, index: usize, requests: &mut Vec<(NsdId, u64, Vec<Span>, usize)>) {
    let run = job.fetch.run(0);
    if !job.checksum_frames.is_empty() {
        if let Some(joined) = job.fetch.joined_run(0) {
            let mut frames = job.frames.clone();
            frames.extend(&job.checksum_frames);
            requests.push((joined.at.nsd, joined.at.sector, spans_of(&frames), index));
            return;
        }
        if let Some(sums) = job.fetch.checksum_run(0) {
            let spans = spans_of(&job.checksum_frames);
            requests.push((sums.at.nsd, sums.at.sector, spans, index));
        }
    }
    requests.push((run.at.nsd, run.at.sector, spans_of(&job.frames), index));
}
