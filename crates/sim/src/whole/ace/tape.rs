//! What happened to the disks of a run, in order, and every state in which a loss of power may leave them.
//!
//! A write is *on its way* from its submission until it is durable: until its end, where it goes behind the device's cache,
//! else until the end of a flush that was submitted after its end. When power is lost, of what is on its way any sector may
//! be there, whatever the order in which it was submitted, and one sector may be torn between two of its 512 byte parts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use stdx::Prng;
use stdx::prng::splitmix64;
use types::NsdId;
use types::frame::FRAME_SIZE;

use super::super::boot::Disks;
use super::super::disk::{Disk, Sector};

/// Writes on the way that are alone there, or alone missing.
const SINGLE_MAX: usize = 6;
/// What a disk writes in one go whatever happens.
const ATOM_SIZE: usize = 512;

/// Where a sector lies.
pub type Place = (NsdId, u64);

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A write was submitted.
    WriteBegan {
        /// Where.
        at: Place,
        /// What.
        sectors: Vec<Sector>,
        /// It goes behind the cache.
        is_durable: bool,
    },
    /// The write that was this event has ended.
    WriteEnded(usize),
    /// A flush was submitted.
    FlushBegan(NsdId),
    /// The flush that was this event has ended.
    FlushEnded(usize),
    /// Something happened outside of the disks: `Mark`s are the run's own.
    Mark(usize),
}

/// Events of all disks of a run.
#[derive(Clone, Debug, Default)]
pub struct Tape {
    events: Rc<RefCell<Vec<Event>>>,
}

impl Tape {
    fn push(&self, event: Event) -> usize {
        let mut events = self.events.borrow_mut();
        events.push(event);
        events.len() - 1
    }

    /// Returns what names the write.
    pub fn write_begins(&self, at: Place, bytes: &[u8], is_durable: bool) -> usize {
        let sectors = bytes.chunks(FRAME_SIZE).map(Sector::from).collect();
        self.push(Event::WriteBegan {
            at,
            sectors,
            is_durable,
        })
    }

    /// It has ended.
    pub fn write_ends(&self, write: usize) {
        self.push(Event::WriteEnded(write));
    }

    /// Returns what names the flush.
    pub fn flush_begins(&self, nsd: NsdId) -> usize {
        self.push(Event::FlushBegan(nsd))
    }

    /// It has ended.
    pub fn flush_ends(&self, flush: usize) {
        self.push(Event::FlushEnded(flush));
    }

    /// Mark number `mark` of the run.
    pub fn mark(&self, mark: usize) {
        self.push(Event::Mark(mark));
    }

    /// All of it; the tape is empty then.
    pub fn take(&self) -> Vec<Event> {
        self.events.take()
    }
}

/// A sector and a number that is the same for the same bytes, 0 for zeros: of what was never written there is none.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Hashed {
    hash: u64,
    bytes: Sector,
}

impl Hashed {
    fn new(bytes: Sector) -> Self {
        let mut hash = 0_u64;
        for word in bytes.chunks(8) {
            let word = u64::from_le_bytes(word.try_into().expect("eight"));
            hash = (hash ^ word)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        Self { hash, bytes }
    }
}

/// A write on its way.
#[derive(Clone, Debug)]
struct Write {
    begun: usize,
    ended: Option<usize>,
    at: Place,
    sectors: Vec<Hashed>,
    is_durable: bool,
}

/// The disks while a tape is played.
#[derive(Clone, Debug, Default)]
pub struct Player {
    stable: BTreeMap<Place, Hashed>,
    on_the_way: Vec<Write>,
    flushes: BTreeMap<usize, NsdId>,
    position: usize,
}

/// What is on the disks after a loss of power.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Image {
    sectors: BTreeMap<Place, Hashed>,
}

impl Player {
    /// Begins with what is on the disks.
    pub fn new(image: &Image) -> Self {
        Self {
            stable: image.sectors.clone(),
            ..Self::default()
        }
    }

    /// The next event; true if a loss of power after it may leave more, or less, than one before it.
    pub fn play(&mut self, event: &Event) -> bool {
        let number = self.position;
        self.position += 1;
        match event {
            Event::WriteBegan {
                at,
                sectors,
                is_durable,
            } => self.on_the_way.push(Write {
                begun: number,
                ended: None,
                at: *at,
                sectors: sectors.iter().cloned().map(Hashed::new).collect(),
                is_durable: *is_durable,
            }),
            Event::WriteEnded(begun) => {
                let of = |write: &Write| write.begun == *begun;
                let index = self.on_the_way.iter().position(of);
                let index = index.expect("a write ends once, and before a flush covers it");
                self.on_the_way[index].ended = Some(number);
                if !self.on_the_way[index].is_durable {
                    return false;
                }
                let write = self.on_the_way.remove(index);
                self.store(&write);
            }
            Event::FlushBegan(nsd) => {
                self.flushes.insert(number, *nsd);
                return false;
            }
            Event::FlushEnded(begun) => {
                let nsd = self.flushes.remove(begun).expect("a flush ends once");
                let is_covered = |write: &Write| {
                    write.at.0 == nsd && write.ended.is_some_and(|ended| ended < *begun)
                };
                let covered: Vec<Write> = self
                    .on_the_way
                    .extract_if(.., |write| is_covered(write))
                    .collect();
                covered.iter().for_each(|write| self.store(write));
                return !covered.is_empty();
            }
            Event::Mark(_) => return false,
        }
        true
    }

    fn store(&mut self, write: &Write) {
        for (index, sector) in (write.at.1..).zip(&write.sectors) {
            self.stable.insert((write.at.0, index), sector.clone());
        }
    }

    /// What a loss of power now may leave: nothing of what is on its way, all of it, each write alone, all but each, the last
    /// one torn, and a few drawn sets of sectors.
    pub fn images(&self, prng: &mut Prng) -> Vec<Image> {
        let none = Image {
            sectors: self.stable.clone(),
        };
        let count = self.on_the_way.len();
        let with = |is_kept: &dyn Fn(usize) -> bool| {
            let mut image = none.clone();
            let kept = self.on_the_way.iter().enumerate();
            kept.filter(|(index, _)| is_kept(*index))
                .for_each(|(_, write)| image.store(write, &mut |_| true));
            image
        };
        let mut images = vec![none.clone()];
        if count == 0 {
            return images;
        }
        images.push(with(&|_| true));
        // The last ones where there are many: the others were the last ones before.
        let some = count.saturating_sub(SINGLE_MAX)..count;
        if count > 1 {
            images.extend(some.clone().map(|only| with(&|index| index == only)));
        }
        if count > 2 {
            images.extend(some.map(|lost| with(&|index| index != lost)));
        }
        let last = &self.on_the_way[count - 1];
        for (others, begins) in [(true, true), (false, true), (false, false)] {
            let mut image = with(&|index| others && index != count - 1);
            image.tear(last, begins, prng);
            images.push(image);
        }
        let sectors: usize = self.on_the_way.iter().map(|w| w.sectors.len()).sum();
        for _ in 0..(sectors - 1).min(3) {
            let mut image = none.clone();
            for write in &self.on_the_way {
                image.store(write, &mut |_| prng.chance(1, 2));
            }
            images.push(image);
        }
        images
    }
}

impl Image {
    /// What is on these disks, whose caches are empty.
    pub fn of(disks: &Disks) -> Self {
        let of = |(nsd, disk): (&NsdId, &Disk)| {
            let nsd = *nsd;
            let sectors = disk.sectors().iter();
            let of = |(at, bytes): (&u64, &Sector)| ((nsd, *at), Hashed::new(bytes.clone()));
            let sectors: Vec<_> = sectors.map(of).collect();
            sectors
        };
        Self {
            sectors: disks.iter().flat_map(of).collect(),
        }
    }

    /// Disks with these bytes.
    pub fn disks(&self, nsds: &[NsdId], has_volatile_cache: bool) -> Disks {
        let of = |nsd: &NsdId| {
            let sectors = self.sectors.range((*nsd, 0)..=(*nsd, u64::MAX));
            let sectors = sectors.map(|((_, at), sector)| (*at, sector.bytes.clone()));
            let disk = Disk::holding(sectors.collect(), has_volatile_cache);
            (*nsd, disk)
        };
        nsds.iter().map(of).collect()
    }

    /// Sectors that were ever written.
    pub fn places(&self) -> Vec<Place> {
        self.sectors.keys().copied().collect()
    }

    /// The bytes of a sector.
    pub fn get(&self, at: Place) -> Sector {
        let zeros = || Sector::from(vec![0; FRAME_SIZE]);
        let found = self.sectors.get(&at).map(|sector| sector.bytes.clone());
        found.unwrap_or_else(zeros)
    }

    /// Other bytes.
    pub fn put(&mut self, at: Place, sector: Sector) {
        self.sectors.insert(at, Hashed::new(sector));
    }

    fn store(&mut self, write: &Write, is_kept: &mut dyn FnMut(u64) -> bool) {
        for (index, sector) in (write.at.1..).zip(&write.sectors) {
            if is_kept(index) {
                self.sectors.insert((write.at.0, index), sector.clone());
            }
        }
    }

    /// The beginning of a write, or its end, down to a part of a sector.
    fn tear(&mut self, write: &Write, begins: bool, prng: &mut Prng) {
        let atoms = write.sectors.len() * (FRAME_SIZE / ATOM_SIZE);
        let cut = usize::try_from(prng.between(1, atoms as u64 - 1)).expect("a few");
        let kept = if begins { 0..cut } else { cut..atoms };
        for (at, sector) in (write.at.1..).zip(&write.sectors) {
            let place = (write.at.0, at);
            let first = usize::try_from(at - write.at.1).expect("a few") * (FRAME_SIZE / ATOM_SIZE);
            let mut bytes = self.get(place).to_vec();
            let parts = bytes
                .chunks_mut(ATOM_SIZE)
                .zip(sector.bytes.chunks(ATOM_SIZE));
            for (atom, (old, new)) in (first..).zip(parts) {
                if kept.contains(&atom) {
                    old.copy_from_slice(new);
                }
            }
            self.put(place, bytes.into());
        }
    }

    /// The same number for the same bytes.
    pub fn hash(&self) -> u64 {
        let of = |(place, sector): (&Place, &Hashed)| match sector.hash {
            0 => 0,
            hash => splitmix64(hash ^ splitmix64(u64::from(place.0.0) << 48 ^ place.1)),
        };
        self.sectors.iter().map(of).fold(0, |sum, hash| sum ^ hash)
    }
}
