//! Which writes are durable: the books between a write's answer and the flush that covers it.
//!
//! Invariants (`check`)
//! - Every acknowledged write that needs a flush ends exactly once, as durable or as lost.
//! - Durable means: a flush that began after the write's answer, on the same path, ended with the
//!   verifier that the write's answer carried. Everything else is lost: another verifier, a path that
//!   cannot be flushed any more. The caller writes the bytes of lost writes again, to other sectors.
//!
//! Life of a write: `on_write_done` -> (`Durable` | waiting) -> `begin_flush` covers it ->
//! `on_flush_done` or `on_flush_failed` -> `Settled`. A flush covers what was acknowledged before it
//! began; writes acknowledged meanwhile wait for the next one.

use std::collections::{BTreeMap, BTreeSet};

use types::NsdId;

use super::Path;
use crate::message::Verifier;

/// The caller's name of a write, never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// Names a flush under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlushId(pub u64);

/// What an acknowledged write still needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Durability {
    /// Nothing.
    Durable,
    /// A flush (`begin_flush`); the write's end comes with that.
    NeedsFlush,
}

/// A flush to be sent: on this NSD by this path, and by no other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FlushStart {
    /// For `on_flush_done` or `on_flush_failed`.
    pub flush: FlushId,
    /// The NSD.
    pub nsd: NsdId,
    /// The path by which the writes went.
    pub path: Path,
}

/// Writes that a flush brought to their end.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// They survive a power loss now.
    pub durable: Vec<WriteId>,
    /// They may be gone: write their bytes again, to other sectors.
    pub lost: Vec<WriteId>,
}

type Place = (NsdId, Path);

#[derive(Debug)]
struct Flush {
    place: Place,
    covers: Vec<WriteId>,
}

/// Acknowledged writes of one node that are not yet durable.
#[derive(Debug, Default)]
pub struct Writes {
    waiting: BTreeMap<Place, BTreeMap<WriteId, Verifier>>,
    places: BTreeMap<WriteId, Place>,
    flushes: BTreeMap<FlushId, Flush>,
    next_flush: u64,
}

impl Writes {
    /// Empty books.
    pub fn new() -> Self {
        Self::default()
    }

    /// The write `id` was answered by `path` with `verifier`. `is_durable`: it was sent with FUA, or
    /// the disk has no volatile cache (`NsdView::has_volatile_cache`).
    pub fn on_write_done(
        &mut self,
        id: WriteId,
        nsd: NsdId,
        path: Path,
        verifier: Verifier,
        is_durable: bool,
    ) -> Durability {
        if is_durable {
            return Durability::Durable;
        }
        let place = (nsd, path);
        let old = self.places.insert(id, place);
        assert_eq!(old, None, "a write is answered once");
        self.waiting.entry(place).or_default().insert(id, verifier);
        Durability::NeedsFlush
    }

    /// NSDs that have writes waiting for a flush.
    pub fn unflushed(&self) -> BTreeSet<NsdId> {
        self.waiting.keys().map(|(nsd, _)| *nsd).collect()
    }

    /// Begins the flushes that cover every write acknowledged so far on `nsd`: one per path by which
    /// such writes went, whether or not that is the path that I/O takes now. Nothing to send: all are
    /// durable already.
    pub fn begin_flush(&mut self, nsd: NsdId) -> Vec<FlushStart> {
        let mut starts = Vec::new();
        for (place, writes) in &self.waiting {
            if place.0 != nsd {
                continue;
            }
            self.next_flush += 1;
            let flush = FlushId(self.next_flush);
            let covers = writes.keys().copied().collect();
            let place = *place;
            self.flushes.insert(flush, Flush { place, covers });
            starts.push(FlushStart {
                flush,
                nsd,
                path: place.1,
            });
        }
        starts
    }

    /// The flush was answered with `verifier`. An unknown or repeated answer settles nothing.
    pub fn on_flush_done(&mut self, flush: FlushId, verifier: Verifier) -> Settled {
        self.settle(flush, |of_write| of_write == verifier)
    }

    /// The flush failed, or its path is gone for good: what it covers may be lost. After a time-out
    /// with the path still there, rather begin another flush: that covers these writes too.
    pub fn on_flush_failed(&mut self, flush: FlushId) -> Settled {
        self.settle(flush, |_| false)
    }

    /// The books are given up for `nsd` by `path` (the disk was pulled out): all its writes are lost.
    pub fn on_path_gone(&mut self, nsd: NsdId, path: Path) -> Settled {
        let place = (nsd, path);
        self.flushes.retain(|_, flush| flush.place != place);
        let lost: Vec<WriteId> = self
            .waiting
            .remove(&place)
            .map(|writes| writes.into_keys().collect())
            .unwrap_or_default();
        for id in &lost {
            self.places.remove(id);
        }
        Settled {
            durable: Vec::new(),
            lost,
        }
    }

    /// Writes that are neither durable nor lost yet.
    pub fn waiting_count(&self) -> usize {
        self.places.len()
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        let count: usize = self.waiting.values().map(BTreeMap::len).sum();
        assert_eq!(count, self.places.len());
        for (place, writes) in &self.waiting {
            assert!(!writes.is_empty());
            for id in writes.keys() {
                assert_eq!(self.places.get(id), Some(place));
            }
        }
    }

    fn settle(&mut self, flush: FlushId, is_durable: impl Fn(Verifier) -> bool) -> Settled {
        let mut settled = Settled::default();
        let Some(flush) = self.flushes.remove(&flush) else {
            return settled;
        };
        let Some(writes) = self.waiting.get_mut(&flush.place) else {
            return settled;
        };
        for id in flush.covers {
            // An earlier flush that covered it too may have settled it.
            let Some(verifier) = writes.remove(&id) else {
                continue;
            };
            self.places.remove(&id);
            match is_durable(verifier) {
                true => settled.durable.push(id),
                false => settled.lost.push(id),
            }
        }
        if writes.is_empty() {
            self.waiting.remove(&flush.place);
        }
        settled
    }
}

#[cfg(test)]
mod tests;
