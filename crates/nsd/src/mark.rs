//! The mark of an NSD: which of the NSDs that a node uses were used together, and when last. So one that was put back from an older copy is
//! told from the others.
//!
//! A generation is one use of NSDs by a node, from its daemon's start on, or a part of it: a daemon that runs for long begins others. Numbers ascend. Before a daemon changes
//! anything it writes two marks:
//!
//! ```text
//! generation g, seen as before --to all, durable--> generation g, seen: whoever took the first --durable--> what is on them may change
//! ```
//!
//! Invariants
//! - What a mark has *seen* of an NSD is a generation whose first mark was durable there. So an NSD whose own mark is older than what another has seen of it has lost
//!   what was durable: it is an older copy.
//! - A mark is never written over the newest one of the NSD: where it is torn that one says what was before.
//! - An NSD that took no mark was not seen, and is as it was for those that compare later.
//!
//! What this deliberately does not do: notice that all NSDs of a node were put back together, which is how a backup is restored; tell a copy from what was written in the
//! same generation; compare NSDs of several nodes: each node knows its own; compare more than `SEEN_MAX` NSDs of a node.

use std::collections::BTreeMap;
use std::mem::size_of;

use types::checksum::crc32c;
use types::{FsId, NsdId};
use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a mark: one sector.
pub const MARK_SIZE: usize = 4096;
/// Where the two newest marks of an NSD lie; far enough from one another and from the label that one bad spot does not take two.
pub const MARK_SECTORS: [u64; 2] = [64, 128];
/// Most NSDs that a mark names.
pub const SEEN_MAX: usize = 251;

const MAGIC: [u8; 8] = *b"GUPFSUSE";
const VERSION: u32 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSeen {
    nsd: U16,
    reserved: [u8; 6],
    generation: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMark {
    magic: [u8; 8],
    version: U32,
    nsd: U16,
    seen_count: U16,
    fs: U128,
    generation: U64,
    reserved0: [u8; 24],
    seen: [RawSeen; SEEN_MAX],
    reserved1: [u8; 12],
    crc: U32,
}

const _: () = assert!(size_of::<RawMark>() == MARK_SIZE);

/// What one of an NSD's two marks says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// Its number.
    pub generation: u64,
    /// The last generation of each NSD in which that was known to be used beside this one.
    pub seen: BTreeMap<NsdId, u64>,
}

impl Mark {
    /// The sector to write.
    fn encode(&self, fs: FsId, nsd: NsdId) -> Box<[u8; MARK_SIZE]> {
        let mut raw = RawMark::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.nsd = nsd.0.into();
        raw.fs = fs.0.into();
        raw.generation = self.generation.into();
        raw.seen_count = u16::try_from(self.seen.len().min(SEEN_MAX))
            .map_or_else(|_| unreachable!("251"), U16::new);
        for (place, (nsd, generation)) in raw.seen.iter_mut().zip(&self.seen) {
            place.nsd = nsd.0.into();
            place.generation = (*generation).into();
        }
        let mut bytes = Box::new([0; MARK_SIZE]);
        bytes.copy_from_slice(raw.as_bytes());
        let crc = crc32c(&bytes[..MARK_SIZE - 4]);
        bytes[MARK_SIZE - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// What a sector says, if it holds a whole mark of this NSD.
    fn decode(sector: &[u8], fs: FsId, nsd: NsdId) -> Option<Self> {
        let raw = RawMark::ref_from_bytes(sector).ok()?;
        let is_whole = raw.crc.get() == crc32c(&sector[..MARK_SIZE - 4]);
        let is_its = raw.fs.get() == fs.0 && raw.nsd.get() == nsd.0;
        if raw.magic != MAGIC || raw.version.get() != VERSION || !is_whole || !is_its {
            return None;
        }
        let seen = raw.seen.get(..usize::from(raw.seen_count.get()))?;
        Some(Self {
            generation: raw.generation.get(),
            seen: seen
                .iter()
                .map(|seen| (NsdId(seen.nsd.get()), seen.generation.get()))
                .collect(),
        })
    }
}

/// What the marks of some NSDs say. An NSD without a good mark was never marked, or has lost both.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marks {
    fs: FsId,
    of: BTreeMap<NsdId, Newest>,
}

/// The newest mark of an NSD.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Newest {
    mark: Mark,
    /// Which of `MARK_SECTORS` holds it.
    place: usize,
}

/// An NSD that was used later than it says itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Older {
    /// The NSD.
    pub nsd: NsdId,
    /// The generation that its own mark names; 0: it has none.
    pub generation: u64,
    /// A later one in which it was used.
    pub seen: u64,
    /// Who says so.
    pub by: NsdId,
}

impl Marks {
    /// Of no NSD.
    pub const fn new(fs: FsId) -> Self {
        Self {
            fs,
            of: BTreeMap::new(),
        }
    }

    /// Takes an NSD in: what its sectors `MARK_SECTORS` hold, as far as the disk returns them.
    pub fn add(&mut self, nsd: NsdId, sectors: [Option<&[u8]>; 2]) {
        let marks = sectors
            .into_iter()
            .enumerate()
            .filter_map(|(place, sector)| {
                let mark = Mark::decode(sector?, self.fs, nsd)?;
                Some(Newest { mark, place })
            });
        // Of one generation the second mark of an NSD is the one that has seen it.
        let age = |newest: &Newest| {
            let mark = &newest.mark;
            (
                mark.generation,
                mark.seen.get(&nsd) == Some(&mark.generation),
            )
        };
        self.of
            .insert(nsd, marks.max_by_key(age).unwrap_or_default());
    }

    /// The generation that an NSD's own mark names; 0: it has none.
    pub fn generation(&self, nsd: NsdId) -> u64 {
        self.of.get(&nsd).map_or(0, |newest| newest.mark.generation)
    }

    /// The NSDs that are older than others say, by their numbers.
    pub fn older(&self) -> Vec<Older> {
        let mut older: BTreeMap<NsdId, Older> = BTreeMap::new();
        for (by, newest) in &self.of {
            for (nsd, seen) in &newest.mark.seen {
                let Some(own) = self.of.get(nsd).map(|own| &own.mark) else {
                    continue;
                };
                let is_newest = older.get(nsd).is_none_or(|known| known.seen < *seen);
                if own.generation < *seen && is_newest {
                    let (nsd, generation, seen, by) = (*nsd, own.generation, *seen, *by);
                    older.insert(
                        nsd,
                        Older {
                            nsd,
                            generation,
                            seen,
                            by,
                        },
                    );
                }
            }
        }
        older.into_values().collect()
    }

    /// Begins the next generation.
    pub fn begin(&self) -> Round<'_> {
        let mut seen: BTreeMap<NsdId, u64> = BTreeMap::new();
        for (nsd, generation) in self.of.values().flat_map(|own| &own.mark.seen) {
            let newest = seen.entry(*nsd).or_default();
            *newest = (*newest).max(*generation);
        }
        let own = self.of.values().map(|own| own.mark.generation);
        let last = own.chain(seen.values().copied()).max().unwrap_or(0);
        Round {
            marks: self,
            mark: Mark {
                generation: last.saturating_add(1),
                seen,
            },
        }
    }
}

/// The marks of a generation that begins.
#[derive(Debug)]
pub struct Round<'a> {
    marks: &'a Marks,
    mark: Mark,
}

impl Round<'_> {
    /// Its number.
    pub const fn generation(&self) -> u64 {
        self.mark.generation
    }

    /// The next mark of an NSD: its sector, and what to write there. The first, or after `see` the second.
    pub fn mark(&self, nsd: NsdId, is_second: bool) -> (u64, Box<[u8; MARK_SIZE]>) {
        let newest = self.marks.of.get(&nsd).map_or(0, |newest| newest.place);
        let place = if is_second { newest } else { 1 - newest };
        (MARK_SECTORS[place], self.mark.encode(self.marks.fs, nsd))
    }

    /// All first marks are written; on these NSDs they are durable.
    pub fn see(&mut self, begun: impl IntoIterator<Item = NsdId>) {
        let generation = self.mark.generation;
        let begun = begun.into_iter().map(|nsd| (nsd, generation));
        self.mark.seen.extend(begun);
        // Those that are not used any more, and were not for longest, go first.
        while self.mark.seen.len() > SEEN_MAX {
            let oldest = self
                .mark
                .seen
                .iter()
                .min_by_key(|(nsd, seen)| (**seen, **nsd));
            let oldest = oldest.map(|(nsd, _)| *nsd);
            oldest.and_then(|nsd| self.mark.seen.remove(&nsd));
        }
    }
}

#[cfg(test)]
mod tests;
