//! Loads and stores of file data: carries out what `client::transfer` plans.
//!
//! Checksums are computed outside of every slice's lock, on the thread that started the store or ended the load.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use client::env::{LoadPiece, StorePiece};
use client::slice::{Input, IoFailure, IoId};
use client::transfer::{Load, Request, Store, Unflushed, checksum_cache};
use data::ChecksumCache;
use data::plan::Fetch;
use nsd::message::Verifier;
use types::frame::{FRAME_BYTES, FRAMES_PER_SLAB};
use types::{FrameRef, Location, NsdId, Run, Span};

use super::reclaim::FrameUser;
use super::sectors::Kind;
use super::{Daemon, lock};
use crate::clock;

/// Checksums of runs, and what stores wrote under which verifier.
#[derive(Debug)]
pub(super) struct Transfers {
    crcs: Mutex<ChecksumCache>,
    unflushed: Mutex<Unflushed<Verifier>>,
    mismatches: Mutex<Mismatches>,
    flushes: Mutex<Flushes>,
}

type FlushDone = Box<dyn FnOnce(&Arc<Daemon>, Result<Verifier, IoFailure>) + Send>;

/// NSDs that are being flushed, and who wants a flush that begins after that: one for all of them.
#[derive(Default)]
struct Flushes(BTreeMap<NsdId, Vec<FlushDone>>);

impl std::fmt::Debug for Flushes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waiting = self.0.iter().map(|(nsd, all)| (nsd, all.len()));
        f.debug_map().entries(waiting).finish()
    }
}

impl Flushes {
    /// Gives back who is to begin a flush; none: one is under way, and another one begins after it.
    fn add(&mut self, nsd: NsdId, done: FlushDone) -> Option<FlushDone> {
        match self.0.entry(nsd) {
            Entry::Vacant(entry) => {
                entry.insert(Vec::new());
                Some(done)
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(done);
                None
            }
        }
    }

    /// A flush has ended: those for whom the next one begins now, if any.
    fn end(&mut self, nsd: NsdId) -> Vec<FlushDone> {
        match self.0.get_mut(&nsd) {
            Some(waiting) if !waiting.is_empty() => std::mem::take(waiting),
            _ => {
                self.0.remove(&nsd);
                Vec::new()
            }
        }
    }
}

/// Where checksums did not match of late, oldest first, when, and how often.
///
/// Once is no fault of a disk: the owner may have freed the place while it was read, and somebody else has written to it. The slice
/// asks for the map and reads again, at once; a place that the map still names, and that mismatches once more, is damaged.
#[derive(Debug, Default)]
struct Mismatches(VecDeque<(Location, types::Instant, u32)>);

/// Places of mismatches that are remembered: more than are read at a time.
const MISMATCH_COUNT_MAX: usize = 1024;
/// For so long: what mismatches later may have been written to since.
const MISMATCH_AGE_MAX: types::Duration = types::Duration::from_secs(60);

impl Mismatches {
    /// It has not matched. True: for the second time, which is to be told.
    fn note(&mut self, now: types::Instant, at: Location) -> bool {
        let is_old = |(_, since, _): &(_, types::Instant, _)| now.since(*since) > MISMATCH_AGE_MAX;
        while self.0.front().is_some_and(is_old) || self.0.len() == MISMATCH_COUNT_MAX {
            self.0.pop_front();
        }
        if let Some((.., count)) = self.0.iter_mut().find(|(place, ..)| *place == at) {
            *count = count.saturating_add(1);
            return *count == 2;
        }
        self.0.push_back((at, now, 1));
        false
    }
}

impl Default for Transfers {
    fn default() -> Self {
        Self {
            crcs: Mutex::new(checksum_cache()),
            unflushed: Mutex::default(),
            mismatches: Mutex::default(),
            flushes: Mutex::default(),
        }
    }
}

/// A transfer that its last request takes.
type Shared<T> = Arc<Mutex<Option<T>>>;

/// Tells a transfer of a request's end; returns it if that was the last.
fn ended<T>(shared: &Shared<T>, tell: impl FnOnce(&mut T) -> bool) -> Option<T> {
    let mut transfer = lock(shared);
    let is_last = tell(transfer.as_mut().expect("until its last request"));
    transfer.take_if(|_| is_last)
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

impl Daemon {
    /// Reads and verifies the pieces; the slice hears `Loaded`.
    pub(super) fn load(self: &Arc<Self>, io: IoId, pieces: Vec<LoadPiece>) {
        let cached = |key| lock(&self.transfers.crcs).get(key);
        let Some((load, requests)) = Load::plan(&pieces, &*self.pool, cached) else {
            return self.when_frames(FrameUser::Load, move |daemon| daemon.load(io, pieces));
        };
        let shared: Shared<Load> = Arc::new(Mutex::new(Some(load)));
        for Request { at, frames } in requests {
            let shared = Arc::clone(&shared);
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    let last = ended(&shared, |load| load.on_read(result.map(|_| ())));
                    if let Some(load) = last {
                        daemon.loaded(io, load);
                    }
                },
            );
            self.sectors(Kind::Read, at.nsd, at.sector, spans_of(&frames), done);
        }
    }

    fn loaded(self: &Arc<Self>, io: IoId, load: Load) {
        let keep = |key, crcs| lock(&self.transfers.crcs).insert(key, crcs);
        let result = load.end(&*self.pool, keep, |fetch| self.log_mismatch(fetch));
        match result {
            Err(IoFailure::Corrupt) | Ok(()) => {}
            Err(failure) => {
                if let Some(left_out) = self.io.may_log() {
                    tracing::error!(?failure, ?io, left_out, "a load failed");
                }
            }
        }
        self.io_ended(io, Input::Loaded(io, result));
    }

    /// See `Mismatches`: one place is named once.
    fn log_mismatch(&self, fetch: &Fetch) {
        let Some(at) = fetch.locations.first().copied() else {
            return;
        };
        let is_damaged = lock(&self.transfers.mismatches).note(clock::now(), at);
        let Location { nsd, sector } = at;
        let (count, file_sector) = (fetch.count, fetch.file_sector);
        if is_damaged {
            tracing::error!(%nsd, sector, count, file_sector, "these sectors are not what was written");
        } else {
            tracing::debug!(%nsd, sector, count, file_sector, "what was read is not what was written: the map is asked for anew");
        }
    }

    /// Writes runs; the slice hears `Stored` with their extents.
    pub(super) fn store(self: &Arc<Self>, io: IoId, pieces: Vec<StorePiece>) {
        let (store, requests) = match Store::plan(pieces, &*self.pool) {
            Ok(planned) => planned,
            Err(pieces) => {
                return self.when_frames(FrameUser::Store, move |daemon| daemon.store(io, pieces));
            }
        };
        let shared: Shared<Store<Verifier>> = Arc::new(Mutex::new(Some(store)));
        for Request { at, frames } in requests {
            let shared = Arc::clone(&shared);
            let count = u32::try_from(frames.len()).expect("a write is at most some blocks");
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    match result {
                        Ok(_) | Err(IoFailure::Corrupt) => {}
                        Err(IoFailure::Unknown) => {
                            let run = Run { at, count };
                            daemon.hands.with(|hands| hands.in_doubt(run));
                        }
                        Err(IoFailure::Unreachable) => daemon.note_refusing(at.nsd),
                    }
                    let last = ended(&shared, |store| store.on_written(at.nsd, result));
                    if let Some(store) = last {
                        daemon.stored(io, store);
                    }
                },
            );
            self.sectors(Kind::Write, at.nsd, at.sector, spans_of(&frames), done);
        }
    }

    /// What is written again goes to others.
    fn note_refusing(&self, nsd: NsdId) {
        let now = clock::now();
        let pause = self.hands.with(|hands| hands.note_refusing(now, nsd));
        if let Some(pause) = pause {
            let seconds = pause.0 / 1_000_000_000;
            tracing::warn!(%nsd, seconds, "an NSD refuses what is written: for so long others are used, where they have room");
        }
    }

    fn stored(self: &Arc<Self>, io: IoId, store: Store<Verifier>) {
        let result = store.end(&*self.pool).map(|(extents, written)| {
            if self.has_volatile_nsd {
                lock(&self.transfers.unflushed).insert(io, written);
            }
            extents
        });
        self.io_ended(io, Input::Stored(io, result));
    }

    /// What these stores wrote will not be flushed.
    pub(super) fn forget_stores(&self, stores: &[IoId]) {
        lock(&self.transfers.unflushed).forget(stores);
    }

    /// Makes stores durable; the slice hears `Flushed`.
    pub(super) fn flush_stores(self: &Arc<Self>, io: IoId, stores: &[IoId]) {
        let flushing = lock(&self.transfers.unflushed).take(stores);
        let nsds = flushing.nsds();
        if nsds.is_empty() {
            self.io_ended(io, Input::Flushed(io, flushing.result()));
            return;
        }
        let shared = Arc::new(Mutex::new(flushing));
        for nsd in nsds {
            let shared = Arc::clone(&shared);
            let done = Box::new(
                move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                    if result == Err(IoFailure::Unreachable) {
                        daemon.note_refusing(nsd);
                    }
                    let over = lock(&shared).on_flushed(nsd, result);
                    if let Some(result) = over {
                        daemon.io_ended(io, Input::Flushed(io, result));
                    }
                },
            );
            let first = lock(&self.transfers.flushes).add(nsd, done);
            if let Some(done) = first {
                self.begin_flush(nsd, vec![done]);
            }
        }
    }

    /// One flush for all of these, whose stores have ended.
    fn begin_flush(self: &Arc<Self>, nsd: NsdId, all: Vec<FlushDone>) {
        let ended = Box::new(
            move |daemon: &Arc<Self>, result: Result<Verifier, IoFailure>| {
                let next = lock(&daemon.transfers.flushes).end(nsd);
                if !next.is_empty() {
                    daemon.begin_flush(nsd, next);
                }
                all.into_iter().for_each(|done| done(daemon, result));
            },
        );
        self.sectors(Kind::Flush, nsd, 0, Vec::new(), ended);
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn who_comes_during_a_flush_shares_the_next_one() {
        let mut flushes = Flushes::default();
        let done = || -> FlushDone { Box::new(|_, _| {}) };
        let (one, other) = (NsdId(1), NsdId(2));
        assert!(flushes.add(one, done()).is_some());
        assert!(flushes.add(other, done()).is_some(), "another disk");
        for _ in 0..3 {
            assert!(flushes.add(one, done()).is_none());
        }
        assert_eq!(flushes.end(one).len(), 3);
        // The one for these three is under way.
        assert!(flushes.add(one, done()).is_none());
        assert_eq!(flushes.end(one).len(), 1);
        assert_eq!(flushes.end(one).len(), 0);
        assert_eq!(flushes.end(other).len(), 0);
        assert!(flushes.add(one, done()).is_some(), "at once");
    }

    fn at(sector: u64) -> Location {
        Location {
            nsd: NsdId(1),
            sector,
        }
    }

    #[test]
    fn a_place_is_named_when_it_mismatches_again_and_once() {
        let mut mismatches = Mismatches::default();
        let noted = [7, 8, 7, 7, 8].map(|sector| mismatches.note(types::Instant(1), at(sector)));
        assert_eq!(noted, [false, false, true, false, true]);
        // What was remembered is forgotten with time: it is told anew.
        let later = types::Instant(2) + MISMATCH_AGE_MAX;
        let noted = [7, 7].map(|sector| mismatches.note(later, at(sector)));
        assert_eq!(noted, [false, true]);
        // Not for what others do, within bounds.
        let mut mismatches = Mismatches::default();
        let mut note = |sector| mismatches.note(types::Instant(1), at(sector));
        note(5000);
        (0..MISMATCH_COUNT_MAX as u64 - 2).for_each(|sector| _ = note(sector));
        assert!(note(5000));
        (0..MISMATCH_COUNT_MAX as u64 * 2).for_each(|sector| _ = note(sector));
        assert!(mismatches.0.len() <= MISMATCH_COUNT_MAX);
    }
}
