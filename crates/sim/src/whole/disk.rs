//! A disk in the simulator: sectors, a cache that power loss empties, and writes in flight that a crash tears.
//!
//! The bytes of a write are taken from memory at a moment between its submission and its end, as DMA does:
//! who changes a frozen frame is found by the checksum.

use std::collections::BTreeMap;
use std::rc::Rc;

use stdx::Prng;
use types::NsdId;
use types::frame::FRAME_SIZE;

use super::ace::tape::Tape;

/// A sector.
pub type Sector = Rc<[u8]>;

/// See the module.
#[derive(Debug, Default)]
pub struct Disk {
    stable: BTreeMap<u64, Sector>,
    /// Written since the last flush, in the device's cache.
    cache: BTreeMap<u64, Sector>,
    has_volatile_cache: bool,
    /// Where all that happens to it is written down, if anywhere.
    tape: Option<(NsdId, Tape)>,
}

impl Disk {
    /// An empty disk.
    pub fn new(has_volatile_cache: bool) -> Self {
        Self {
            has_volatile_cache,
            ..Self::default()
        }
    }

    /// A disk that holds these sectors.
    pub fn holding(stable: BTreeMap<u64, Sector>, has_volatile_cache: bool) -> Self {
        Self {
            stable,
            has_volatile_cache,
            ..Self::default()
        }
    }

    /// From now on what is written at once, and flushed, is written down.
    pub fn record(&mut self, nsd: NsdId, tape: Tape) {
        self.tape = Some((nsd, tape));
    }

    /// What is on the medium, where nothing is in the cache.
    pub const fn sectors(&self) -> &BTreeMap<u64, Sector> {
        &self.stable
    }

    /// Reads sectors; what was never written is zero.
    pub fn read(&self, sector: u64, count: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FRAME_SIZE);
        for at in sector..sector + count {
            match self.cache.get(&at).or_else(|| self.stable.get(&at)) {
                Some(found) => bytes.extend_from_slice(found),
                None => bytes.resize(bytes.len() + FRAME_SIZE, 0),
            }
        }
        bytes
    }

    /// Writes whole sectors at once. `is_durable`: behind the cache.
    pub fn write(&mut self, sector: u64, bytes: &[u8], is_durable: bool) {
        if let Some((nsd, tape)) = &self.tape {
            let is_durable = is_durable || !self.has_volatile_cache;
            let begun = tape.write_begins((*nsd, sector), bytes, is_durable);
            tape.write_ends(begun);
        }
        self.put(sector, bytes, is_durable);
    }

    /// A write whose way is written down by others has ended.
    pub fn put(&mut self, sector: u64, bytes: &[u8], is_durable: bool) {
        assert!(bytes.len().is_multiple_of(FRAME_SIZE));
        for (at, part) in (sector..).zip(bytes.chunks(FRAME_SIZE)) {
            if is_durable || !self.has_volatile_cache {
                self.cache.remove(&at);
                self.stable.insert(at, part.into());
            } else {
                self.cache.insert(at, part.into());
            }
        }
    }

    /// What is in the cache is stable.
    pub fn flush(&mut self) {
        if let Some((nsd, tape)) = &self.tape {
            let begun = tape.flush_begins(*nsd);
            tape.flush_ends(begun);
        }
        self.settle();
    }

    /// A flush whose way is written down by others has ended.
    pub fn settle(&mut self) {
        self.stable.append(&mut self.cache);
    }

    /// A write that a crash interrupted: any of its sectors may be there.
    pub fn tear(&mut self, sector: u64, bytes: &[u8], prng: &mut Prng) {
        let count_max = bytes.len() / FRAME_SIZE;
        let all = prng.below(3);
        for (at, part) in (sector..).zip(bytes.chunks(FRAME_SIZE)).take(count_max) {
            if all == 0 || (all == 1 && prng.chance(1, 2)) {
                self.write(at, part, false);
            }
        }
    }

    /// Power is lost: any sector of the cache may have got to the medium.
    pub fn lose_power(&mut self, prng: &mut Prng) {
        for (at, sector) in std::mem::take(&mut self.cache) {
            if prng.chance(1, 2) {
                self.stable.insert(at, sector);
            }
        }
    }
}
