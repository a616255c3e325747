//! A disk whose cache is lost with the daemon, for tests: a write stays in this process until a flush, so that the end of the process is
//! the loss of power of its disks.
//!
//! Invariants
//! - What was written before a flush began is in the file when the flush ends; so is a durable write when it ends.
//! - Of the rest any sectors may be in the file, in any order: now and then one that nobody flushed goes there, as with real caches.
//! - Reads see the newest bytes.
//!
//! Requests of one disk run one after the other, on the thread that makes them: this is no disk for figures.

use std::collections::BTreeMap;
use std::io::Error;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;

use stdx::Prng;
use types::SECTOR_SIZE;

use super::queue::{Kind, Part};
use super::{Aligned, Disk, SECTOR};
use crate::loops::lock;

/// Sectors kept at most: then the cache writes back by itself, as real ones do.
const SECTOR_COUNT_MAX: usize = 1 << 15;
/// One write in so many puts a sector of the cache into the file.
const LEAK: u64 = 8;

/// What was written and is not in the file.
#[derive(Debug)]
pub(super) struct Volatile {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sectors: BTreeMap<u64, Box<[u8]>>,
    prng: Prng,
}

impl Volatile {
    /// Nothing yet. `seed` draws what leaks out of the cache.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(State {
                sectors: BTreeMap::new(),
                prng: Prng::new(seed),
            }),
        }
    }

    /// Reads whole sectors.
    pub(super) fn read(&self, disk: &Disk, sector: u64, bytes: &mut [u8]) -> Result<(), Error> {
        let state = lock(&self.state);
        let mut aligned = Aligned::new(bytes.len());
        (disk.file).read_exact_at(aligned.bytes(), sector * SECTOR_SIZE)?;
        bytes.copy_from_slice(aligned.bytes());
        for (number, place) in (sector..).zip(bytes.chunks_exact_mut(SECTOR)) {
            if let Some(newest) = state.sectors.get(&number) {
                place.copy_from_slice(newest);
            }
        }
        Ok(())
    }

    /// Takes whole sectors in; with `is_durable` to the file.
    pub(super) fn write(
        &self,
        disk: &Disk,
        sector: u64,
        bytes: &[u8],
        is_durable: bool,
    ) -> Result<(), Error> {
        let mut state = lock(&self.state);
        for (number, bytes) in (sector..).zip(bytes.chunks_exact(SECTOR)) {
            if is_durable {
                state.sectors.remove(&number);
                put(disk, number, bytes)?;
            } else {
                state.sectors.insert(number, bytes.into());
            }
        }
        let is_full = state.sectors.len() > SECTOR_COUNT_MAX;
        while state.sectors.len() > SECTOR_COUNT_MAX {
            state.leak(disk)?;
        }
        if !is_full && state.prng.chance(1, LEAK) {
            state.leak(disk)?;
        }
        Ok(())
    }

    /// Everything goes to the file, in any order.
    pub(super) fn flush(&self, disk: &Disk) -> Result<(), Error> {
        let mut state = lock(&self.state);
        while !state.sectors.is_empty() {
            state.leak(disk)?;
        }
        disk.file.sync_data()
    }
}

impl Disk {
    /// Does what `part` asks for.
    pub(super) fn perform(&self, part: &Part) -> Result<(), Error> {
        let volatile = self.volatile.as_ref().expect("asked for such disks alone");
        let sector = part.offset / SECTOR_SIZE;
        match part.kind() {
            Kind::Read => {
                let mut bytes = vec![0; part.size()];
                volatile.read(self, sector, &mut bytes)?;
                part.scatter(&bytes);
                Ok(())
            }
            Kind::Write => volatile.write(self, sector, &part.gather(), false),
            Kind::DurableWrite => {
                volatile.write(self, sector, &part.gather(), true)?;
                self.file.sync_data()
            }
            Kind::Flush => volatile.flush(self),
        }
    }
}

impl State {
    /// A sector drawn by chance goes to the file.
    fn leak(&mut self, disk: &Disk) -> Result<(), Error> {
        let (Some((first, _)), Some((last, _))) = (
            self.sectors.first_key_value(),
            self.sectors.last_key_value(),
        ) else {
            return Ok(());
        };
        let from = self.prng.between(*first, *last);
        let (number, _) = self
            .sectors
            .range(from..)
            .next()
            .expect("the last is there");
        let number = *number;
        let bytes = self.sectors.remove(&number).expect("just found");
        put(disk, number, &bytes)
    }
}

fn put(disk: &Disk, sector: u64, bytes: &[u8]) -> Result<(), Error> {
    let mut aligned = Aligned::new(bytes.len());
    aligned.bytes().copy_from_slice(bytes);
    disk.file
        .write_all_at(aligned.bytes(), sector * SECTOR_SIZE)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn sector(value: u8) -> Vec<u8> {
        vec![value; SECTOR]
    }

    /// Which of the sectors from 0 on the file has in the end, when the cache is gone.
    fn kept(path: &std::path::Path, count: u64) -> Vec<u8> {
        let disk = Disk::open(path, false).unwrap();
        let mut found = Vec::new();
        for number in 0..count {
            let mut bytes = sector(0xff);
            disk.read_sectors(number, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == bytes[0]), "sectors are whole");
            found.push(bytes[0]);
        }
        found
    }

    #[test]
    fn what_is_not_flushed_is_lost_but_for_what_leaks() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        std::fs::File::create(&path)
            .unwrap()
            .set_len(64 << 12)
            .unwrap();
        let disk = Disk::open(&path, true).unwrap().with_volatile_cache(5);
        disk.write_sectors(0, &sector(1)).unwrap();
        disk.write_sectors(1, &[sector(2), sector(3)].concat())
            .unwrap();
        disk.flush().unwrap();
        for number in 0..64 {
            disk.write_sectors(number, &sector(9)).unwrap();
        }
        let volatile = disk.volatile.as_ref().unwrap();
        volatile.write(&disk, 63, &sector(7), true).unwrap();
        let mut newest = sector(0);
        disk.read_sectors(1, &mut newest).unwrap();
        assert_eq!(newest, sector(9), "reads see the cache");
        disk.read_sectors(63, &mut newest).unwrap();
        assert_eq!(newest, sector(7));
        drop(disk);
        let found = kept(&path, 64);
        assert_eq!(found[63], 7, "a durable write");
        for (found, flushed) in found.iter().zip([1, 2, 3]) {
            assert!(*found == flushed || *found == 9, "{found}");
        }
        let leaked = found.iter().filter(|v| **v == 9).count();
        assert!((1..40).contains(&leaked), "{leaked} of 63 leaked");
    }

    #[test]
    fn the_cache_is_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let count = SECTOR_COUNT_MAX as u64 + 64;
        std::fs::File::create(&path)
            .unwrap()
            .set_len(count << 12)
            .unwrap();
        let disk = Disk::open(&path, true).unwrap().with_volatile_cache(5);
        for number in 0..count {
            disk.write_sectors(number, &sector(1)).unwrap();
        }
        let volatile = disk.volatile.as_ref().unwrap();
        assert!(lock(&volatile.state).sectors.len() <= SECTOR_COUNT_MAX);
    }
}
