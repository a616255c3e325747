//! A disk in memory that loses what was not flushed: for crash tests of this crate and of others.
//!
//! Invariants
//! - Sectors are atomic: after `crash` each holds the bytes of one write, whole.
//! - What was completed with `complete_flushed`, or completed before a `flush`, survives every crash.
//!
//! Writes that do not overlap in time may be completed in any order; of what was not flushed, any
//! subset of the sectors may survive (`crash` asks for each). Clones share sectors, so that forking a
//! disk at every step of a run is cheap.

use std::collections::BTreeMap;
use std::sync::Arc;

use types::{Location, SECTOR_SIZE};

use crate::format::{Area, SECTOR};
use crate::journal::{Config, Journal};
use crate::recovery::{Recovered, Recovery, RecoveryError, Visit};
use types::{FsId, NodeId};

type Sector = Arc<[u8]>;

/// One submitted write.
#[derive(Clone, Debug)]
struct Write {
    id: u64,
    sectors: Vec<(Location, Sector)>,
    is_complete: bool,
}

/// The disk: any number of NSDs, all sectors zero at first.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    durable: BTreeMap<Location, Sector>,
    /// Not yet durable, in the order in which they were submitted.
    writes: Vec<Write>,
    next_id: u64,
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a write of whole sectors; returns its number.
    pub fn submit(&mut self, at: Location, bytes: &[u8]) -> u64 {
        assert!(bytes.len().is_multiple_of(SECTOR));
        let id = self.next_id;
        self.next_id += 1;
        let place = |index: usize| Location {
            nsd: at.nsd,
            sector: at.sector + index as u64,
        };
        let sectors = bytes.chunks_exact(SECTOR).enumerate();
        self.writes.push(Write {
            id,
            sectors: sectors.map(|(i, s)| (place(i), s.into())).collect(),
            is_complete: false,
        });
        id
    }

    /// The write has ended; it is in the device's cache.
    pub fn complete(&mut self, id: u64) {
        let write = self.writes.iter_mut().find(|w| w.id == id);
        write.expect("the write was submitted").is_complete = true;
    }

    /// The write has ended and is behind the device's cache (FUA).
    pub fn complete_flushed(&mut self, id: u64) {
        let index = self.writes.iter().position(|w| w.id == id);
        let write = self.writes.remove(index.expect("the write was submitted"));
        self.durable.extend(write.sectors);
    }

    /// Flushes the device's cache: all completed writes become durable.
    pub fn flush(&mut self) {
        let (done, left) = self.writes.drain(..).partition(|w| w.is_complete);
        self.writes = left;
        let done: Vec<Write> = done;
        self.durable
            .extend(done.into_iter().flat_map(|w| w.sectors));
    }

    /// Sectors of writes that are not durable: those that `crash` asks about.
    pub fn at_risk(&self) -> usize {
        self.writes.iter().map(|w| w.sectors.len()).sum()
    }

    /// Power is lost: of the sectors at risk, those for whose index `survives` says so are there.
    pub fn crash(&mut self, mut survives: impl FnMut(usize) -> bool) {
        let writes = std::mem::take(&mut self.writes);
        for (index, (at, sector)) in writes.into_iter().flat_map(|w| w.sectors).enumerate() {
            if survives(index) {
                self.durable.insert(at, sector);
            }
        }
    }

    /// Power is lost on a disk with 512-byte sectors: of each sector at risk, those eighths survive
    /// whose bit is set in what `survives` says.
    pub fn crash_in_eighths(&mut self, mut survives: impl FnMut(usize) -> u8) {
        const EIGHTH: usize = SECTOR / 8;
        let writes = std::mem::take(&mut self.writes);
        for (index, (at, new)) in writes.into_iter().flat_map(|w| w.sectors).enumerate() {
            let eighths = survives(index);
            let mut sector = self.read(at, 1);
            for eighth in (0..8).filter(|eighth| eighths >> eighth & 1 == 1) {
                let range = eighth * EIGHTH..(eighth + 1) * EIGHTH;
                sector[range.clone()].copy_from_slice(&new[range]);
            }
            self.durable.insert(at, sector.into());
        }
    }

    /// What a read sees: the newest write that has ended, else what is durable.
    pub fn read(&self, at: Location, count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for index in 0..count {
            let place = Location {
                nsd: at.nsd,
                sector: at.sector + index,
            };
            let ended = self.writes.iter().rev().filter(|w| w.is_complete);
            let cached = ended
                .flat_map(|w| &w.sectors)
                .find(|(at, _)| *at == place)
                .map(|(_, sector)| sector);
            match cached.or_else(|| self.durable.get(&place)) {
                Some(sector) => bytes.extend_from_slice(sector),
                None => bytes.resize(bytes.len() + SECTOR, 0),
            }
        }
        bytes
    }

    /// Formats a journal's area (`Journal::format`).
    pub fn format(&mut self, config: Config) {
        for (at, bytes) in Journal::format(config) {
            let id = self.submit(at, &bytes);
            self.complete_flushed(id);
        }
    }

    /// Flips bit `bit` of a durable sector (rot).
    pub fn flip(&mut self, at: Location, bit: usize) {
        let mut sector = self.read(at, 1);
        sector[bit / 8] ^= 1 << (bit % 8);
        self.durable.insert(at, sector.into());
    }

    /// Puts the durable sector of `source` in place of `target`'s (a misdirected write).
    pub fn copy(&mut self, source: Location, target: Location) {
        let sector = self.read(source, 1);
        self.durable.insert(target, sector.into());
    }
}

/// Recovers a journal from the disk, applying its parts with `visit`.
pub fn recover(
    disk: &Disk,
    area: Area,
    fs: FsId,
    owner: NodeId,
    visit: &mut Visit<'_>,
) -> Result<Recovered, RecoveryError> {
    let mut recovery = Recovery::new(area, fs, owner);
    while let Some(read) = recovery.next_read() {
        assert!(read.at.sector >= area.begin);
        assert!(read.at.sector + read.count <= area.begin + area.count);
        recovery.on_read(&disk.read(read.at, read.count), visit)?;
    }
    Ok(recovery.finish())
}

const _: () = assert!(SECTOR as u64 == SECTOR_SIZE);
