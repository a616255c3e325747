//! A look at all files of a shard while others use it: those that are not in memory are read with no lock held.
//!
//! ```text
//! begin -> next: some cold inodes, in order -> read, no lock held -> took: they are visited, or have to be read again -> next ..
//! all are seen, and everything is locked: moved, and what is resident -> the walk is what the files name now
//! ```
//!
//! Invariants
//! - What the walk has of a shard, with what has moved since, are the runs of its cold inodes before the next one: whoever is seen
//!   and comes into memory is taken back, and whoever goes behind the look's back is visited as he goes.
//! - What was read counts only if the root that it was read from is still the shard's: a cold inode is in that one as it is.
//!
//! What this deliberately does not do: locks. One look at a time.

use std::collections::BTreeMap;

use meta::HashKey;
use store::tree::{Pages, Root};
use types::{FsId, InodeId, Run};

use crate::fetch::{FetchError, read_now};
use crate::log::OwnerLog;
use crate::owner::OwnerSlice;
use crate::replay::ReadPage;
use crate::walk::Walk;

/// Inodes that are read between two locks.
const BATCH_COUNT: usize = 256;

/// See the module.
#[derive(Debug)]
pub struct Look {
    next: u64,
    /// Fewer, while the root changes faster than so many are read.
    count: usize,
}

/// Inodes to be read.
#[derive(Debug)]
pub struct Batch {
    root: Root,
    last: u64,
    /// What they have; `None`: it is still to be read.
    read: BTreeMap<InodeId, Option<Result<Vec<Run>, FetchError>>>,
}

impl Batch {
    /// Reads them; `read` blocks.
    pub fn read(&mut self, fs: FsId, key: HashKey, pages: &mut Pages, read: &mut ReadPage<'_>) {
        for (ino, found) in &mut self.read {
            if found.is_some() {
                continue;
            }
            let loaded = read_now(fs, key, &self.root, *ino, pages, read);
            *found = Some(loaded.map(|loaded| loaded.runs()));
        }
    }
}

impl Look {
    /// Begins with a shard.
    pub fn begin(slice: &mut OwnerSlice) -> Self {
        slice.shard.begin_look();
        Self {
            next: 0,
            count: BATCH_COUNT,
        }
    }

    /// What is to be read next. `None`: all have been seen.
    pub fn next(&mut self, slice: &mut OwnerSlice, log: &OwnerLog) -> Option<Batch> {
        let inodes = slice
            .shard
            .cold_inodes_within(self.next, u64::MAX, self.count);
        let Some(last) = inodes.last().map(|ino| ino.index()) else {
            slice.shard.looked(u64::MAX, &[]);
            return None;
        };
        Some(Batch {
            root: log.root(slice.shard.id()),
            last,
            read: inodes.into_iter().map(|ino| (ino, None)).collect(),
        })
    }

    /// A batch was read. `Err`: more of its inodes are cold by now; read them. What cannot be read is missing in the walk.
    ///
    /// # Errors
    /// See there.
    pub fn took(
        &mut self,
        slice: &mut OwnerSlice,
        log: &OwnerLog,
        mut batch: Batch,
        walk: &mut Walk,
    ) -> Result<Vec<FetchError>, Box<Batch>> {
        let shard = &mut slice.shard;
        if log.root(shard.id()) != batch.root {
            self.count = (self.count / 2).max(1);
            return Ok(Vec::new());
        }
        let cold = shard.cold_inodes_within(self.next, batch.last, usize::MAX);
        let known = batch.read.len();
        for ino in &cold {
            batch.read.entry(*ino).or_insert(None);
        }
        if batch.read.len() > known {
            return Err(Box::new(batch));
        }
        let (mut missed, mut errors) = (Vec::new(), Vec::new());
        for ino in cold {
            match batch.read.remove(&ino).flatten().expect("it was read") {
                Ok(runs) => runs.into_iter().for_each(|run| walk.visit(run)),
                Err(error) => {
                    missed.push(ino.index());
                    errors.push(error);
                }
            }
        }
        self.next = batch.last + 1;
        self.count = BATCH_COUNT;
        shard.looked(self.next, &missed);
        Ok(errors)
    }

    /// What has moved since the last call.
    pub fn moved(slice: &mut OwnerSlice, walk: &mut Walk) {
        let moved = slice.shard.moved();
        moved.came.into_iter().for_each(|run| walk.take_back(run));
        moved.went.into_iter().for_each(|run| walk.visit(run));
    }
}
