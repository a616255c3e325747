//! A shard as its journal and its tree say it was.
//!
//! ```text
//! snapshot: TreeRoot, TreeRecord ..., the rest      -> the tree is read, with the records laid over it; then the rest
//! snapshot: InodePut ...  (no tree yet)             -> applied one by one
//! operations                                        -> applied one by one
//! ```
//!
//! Invariants
//! - The tree is read once, when the first mutation comes that is neither its root nor a record beside it.
//! - Of what the tree has as it is, inodes stay in memory as far as there is room (`with_room`); of the others the shard knows that they are
//!   there. They are read when a mutation names them.
//! - Every page is verified against its parent, and the root against the journal's CRC.
//! - What the tree lacks is noted: the next checkpoint, or snapshot, has it.
//!
//! What this deliberately does not do: I/O. The caller reads the pages that `read` is asked for.

use std::collections::BTreeMap;

use meta::records::{BadRecord, Loader, Unsaved};
use meta::{Mutation, Shard, parts};
use store::tree::{Fetch, Pages, Root, Scan, ScanStep, TreeError, TreeId, Unreadable, Waiter};
use types::{Decode as _, DecodeError, FsId, InodeId, Reader, ShardId};

use crate::fetch::{FetchError, read_now};

/// Bytes of pages that are kept while a tree is read.
const CACHE_SIZE: usize = 4 << 20;
/// The same afterwards, where single inodes are read: of all shards of an owner at once.
const LATER_CACHE_SIZE: usize = 256 << 10;
/// Leaves that are asked for ahead.
const AHEAD_COUNT: usize = 16;
const WAITER: Waiter = Waiter(0);

/// Why a shard cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The journal holds what this version does not write.
    #[error(transparent)]
    Journal(#[from] DecodeError),
    /// A page has no good copy.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The pages are good, and what they hold is no shard.
    #[error("the tree of {shard}: {error}")]
    Record {
        /// Shard.
        shard: ShardId,
        /// What does not fit.
        error: BadRecord,
    },
    /// An inode that the journal changes cannot be read.
    #[error(transparent)]
    Inode(#[from] FetchError),
}

/// Reads the sectors of a page.
pub type ReadPage<'a> = dyn FnMut(&Fetch) -> Result<Box<[u8]>, Unreadable> + 'a;

/// See the module.
#[derive(Debug)]
pub struct ShardReplay {
    fs: FsId,
    shard: Shard,
    root: Option<Root>,
    beside: Vec<Unsaved>,
    is_begun: bool,
    room: u64,
    pages: Pages,
}

impl ShardReplay {
    /// An empty shard of this file system.
    pub fn new(fs: FsId, shard: Shard) -> Self {
        Self {
            fs,
            shard,
            root: None,
            beside: Vec::new(),
            is_begun: false,
            room: u64::MAX,
            pages: Pages::new(LATER_CACHE_SIZE, AHEAD_COUNT),
        }
    }

    /// Inodes that the tree has as they are take no more than these bytes of memory, roughly.
    #[must_use]
    pub fn with_room(mut self, bytes: u64) -> Self {
        self.room = bytes;
        self
    }

    /// A part of a journal record.
    ///
    /// # Errors
    /// The bytes, or the tree that they name, are not what this version writes, or a page cannot be read. The shard is
    /// not to be used.
    pub fn apply(&mut self, bytes: &[u8], read: &mut ReadPage<'_>) -> Result<(), ReplayError> {
        let mut reader = Reader::new(bytes);
        while reader.remaining() > 0 {
            match Mutation::decode(&mut reader)? {
                Mutation::TreeRoot { root } => {
                    let root = Root::decode(&root)?;
                    if self.is_begun || self.root.is_some() || root.shard != self.shard.id() {
                        let what = "tree root";
                        let value = u64::from(root.shard.0);
                        return Err(DecodeError::Unknown { what, value }.into());
                    }
                    self.root = Some(root);
                }
                Mutation::TreeRecord { key, value } => {
                    if self.is_begun || self.root.is_none() {
                        let (what, value) = ("record beside a tree", 0);
                        return Err(DecodeError::Unknown { what, value }.into());
                    }
                    self.beside.push((key, value));
                }
                mutation => {
                    self.begin(read)?;
                    if self.shard.has_cold() {
                        self.take_in(&mutation, read)?;
                    }
                    self.shard.apply(&mutation);
                }
            }
        }
        Ok(())
    }

    /// The journal is over: the shard, and the root of its tree.
    ///
    /// # Errors
    /// As `apply`.
    pub fn finish(mut self, read: &mut ReadPage<'_>) -> Result<(Shard, Option<Root>), ReplayError> {
        self.begin(read)?;
        Ok((self.shard, self.root))
    }

    /// Reads the tree, if there is one.
    fn begin(&mut self, read: &mut ReadPage<'_>) -> Result<(), ReplayError> {
        if self.is_begun {
            return Ok(());
        }
        self.is_begun = true;
        let Some(root) = &self.root else {
            self.shard.track();
            return Ok(());
        };
        let shard = self.shard.id();
        let bad = |error| ReplayError::Record { shard, error };
        let beside = std::mem::take(&mut self.beside);
        let tree = TreeId { fs: self.fs, shard };
        let loader = Loader::new(&mut self.shard, beside.clone());
        let mut loader = loader.map_err(bad)?.with_room(self.room);
        let mut pages = Pages::new(CACHE_SIZE, AHEAD_COUNT);
        let mut scan = Scan::new(tree, root, (Vec::new(), None), WAITER, AHEAD_COUNT);
        let mut key = Vec::new();
        loop {
            match scan.next(&mut pages)? {
                ScanStep::Entries(entries) => {
                    for at in entries.begin..entries.end {
                        key.clear();
                        entries.page.key_into(at, &mut key);
                        loader.push(&key, entries.page.value(at)).map_err(bad)?;
                    }
                }
                ScanStep::Waiting => {
                    while let Some(fetch) = pages.next_fetch() {
                        if let Some(arrival) = pages.on_fetched(fetch.id, read(&fetch)) {
                            scan.on_page(&arrival);
                        }
                    }
                }
                ScanStep::Done => break,
            }
        }
        let missing = loader.finish().map_err(bad)?;
        for ino in missing {
            take_in(self.fs, &mut self.shard, root, ino, &mut self.pages, read)?;
        }
        self.shard.track_beside(root.page.is_some(), &beside);
        Ok(())
    }
    /// Reads what the mutation is about, as far as the tree alone has it.
    fn take_in(&mut self, mutation: &Mutation, read: &mut ReadPage<'_>) -> Result<(), ReplayError> {
        let root = self.root.as_ref().expect("what is cold is in a tree");
        for index in mutation.needs(self.shard.id()) {
            let ino = InodeId::new(self.shard.id(), index);
            take_in(self.fs, &mut self.shard, root, ino, &mut self.pages, read)?;
        }
        Ok(())
    }
}

/// Reads the parts of directories that prepared transactions hold, after the replay of all shards of an owner: what is decided must not
/// wait for a page that cannot be read.
///
/// # Errors
/// One cannot be read.
pub fn take_in_held<'a>(
    fs: FsId,
    shards: impl IntoIterator<Item = &'a mut Shard>,
    roots: &[Root],
    read: &mut ReadPage<'_>,
) -> Result<(), ReplayError> {
    let mut shards: BTreeMap<ShardId, &mut Shard> = shards
        .into_iter()
        .map(|shard| (shard.id(), shard))
        .collect();
    let held = shards
        .values()
        .flat_map(|shard| parts::parts_of_prepared(shard));
    let held: Vec<InodeId> = held.collect();
    let mut pages = Pages::new(LATER_CACHE_SIZE, AHEAD_COUNT);
    for part in held {
        // One in a shard of another owner is damage, and makes the check of its step fail.
        let root = roots.iter().find(|root| root.shard == part.shard());
        if let (Some(shard), Some(root)) = (shards.get_mut(&part.shard()), root) {
            take_in(fs, shard, root, part, &mut pages, read)?;
        }
    }
    Ok(())
}

fn take_in(
    fs: FsId,
    shard: &mut Shard,
    root: &Root,
    ino: InodeId,
    pages: &mut Pages,
    read: &mut ReadPage<'_>,
) -> Result<(), ReplayError> {
    if shard.is_cold(ino) {
        let loaded = read_now(fs, shard.hash_key(), root, ino, pages, read)?;
        shard.take_in(ino.index(), loaded);
    }
    Ok(())
}
