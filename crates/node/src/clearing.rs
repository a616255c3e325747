//! Which blocks of which files lie in places that are to become free (`log::clearing`): the shards are gone through while others use them.
//!
//! ```text
//! begin -> look: inodes that are in memory, some at a time -> next: cold ones -> read, no lock held -> took -> next .. -> blocks
//! ```
//!
//! Invariant: it is a hint. What moves in or away meanwhile may be missed, or named and not be there any more: the client looks again under
//! tokens, and the next plan finds what was missed.
//!
//! What this deliberately does not do: locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::rewrite::Clear;
use client::slice::slice_of;
use meta::HashKey;
use meta::shard::inspect::Lying;
use store::tree::{Pages, Root};
use types::{ByteRange, FsId, InodeId, Layout, Run};

use crate::fetch::{FetchError, read_now};
use crate::log::OwnerLog;
use crate::owner::OwnerSlice;
use crate::replay::ReadPage;

/// Inodes that are looked at, or read, between two locks.
const BATCH_COUNT: usize = 256;
/// So many pieces of files are found at the most: what a plan moves is bounded, too.
const COUNT_MAX: usize = 16 << 10;
/// After so many inodes that a tree does not give the rest of it is left alone: each of them may be a disk's whole patience.
const UNREAD_MAX: u32 = 4;

/// A search in one shard.
#[derive(Debug)]
pub struct Search {
    places: Arc<[Run]>,
    resident: Vec<InodeId>,
    next: u64,
    /// Inodes that the tree did not give.
    unread_count: u32,
}

/// Inodes to be read.
#[derive(Debug)]
pub struct Cold {
    root: Root,
    inodes: Vec<InodeId>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// Each with the number of the place.
    files: Vec<(usize, (InodeId, Layout, ByteRange))>,
    /// Inodes that could not be read, and the last error.
    pub unread: Option<(u64, FetchError)>,
}

impl Found {
    fn add(&mut self, lying: Option<Lying>) {
        let Some(lying) = lying else { return };
        let room = COUNT_MAX.saturating_sub(self.files.len());
        let ranges = lying.ranges.into_iter().take(room);
        let one = |(place, range)| (place, (lying.ino, lying.layout, range));
        self.files.extend(ranges.map(one));
    }

    /// No more are wanted.
    pub fn is_full(&self) -> bool {
        self.files.len() >= COUNT_MAX
    }

    /// What each slice of the client has to do: one place after the other.
    pub fn by_slice(mut self, places: &Arc<[Run]>) -> Vec<(usize, Clear)> {
        self.files.sort_by_key(|(place, _)| *place);
        let mut slices: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for (_, file) in self.files {
            slices.entry(slice_of(file.0)).or_default().push(file);
        }
        let clear = |files| Clear {
            places: Arc::clone(places),
            files,
        };
        let slices = slices.into_iter();
        slices.map(|(slice, files)| (slice, clear(files))).collect()
    }
}

impl Search {
    /// Begins with a shard.
    pub fn begin(slice: &OwnerSlice, places: &Arc<[Run]>) -> Self {
        Self {
            places: Arc::clone(places),
            resident: slice.shard.resident_inodes(),
            next: 0,
            unread_count: 0,
        }
    }

    /// Looks at some of those that are in memory. False: that was all.
    pub fn look(&mut self, slice: &OwnerSlice, found: &mut Found) -> bool {
        let left = self.resident.len().saturating_sub(BATCH_COUNT);
        for ino in self.resident.drain(left..) {
            found.add(slice.shard.lying_in(ino, &self.places));
        }
        !self.resident.is_empty()
    }

    /// Cold ones to be read next. `None`: that was all.
    pub fn next(&mut self, slice: &OwnerSlice, log: &OwnerLog) -> Option<Cold> {
        let shard = &slice.shard;
        let inodes = shard.cold_inodes_within(self.next, u64::MAX, BATCH_COUNT);
        self.next = inodes.last()?.index() + 1;
        Some(Cold {
            root: log.root(shard.id()),
            inodes,
        })
    }

    /// Reads them; `read` blocks. False: the tree cannot be read, and the rest of it is left alone.
    pub fn read(
        &mut self,
        cold: &Cold,
        (fs, key): (FsId, HashKey),
        pages: &mut Pages,
        read: &mut ReadPage<'_>,
        found: &mut Found,
    ) -> bool {
        for ino in &cold.inodes {
            match read_now(fs, key, &cold.root, *ino, pages, read) {
                Ok(loaded) => found.add(loaded.lying_in(&self.places)),
                Err(error) => {
                    self.unread_count += u32::from(matches!(error, FetchError::Tree(_)));
                    let count = found.unread.take().map_or(0, |(count, _)| count);
                    found.unread = Some((count + 1, error));
                }
            }
            if self.unread_count >= UNREAD_MAX {
                return false;
            }
        }
        true
    }
}
