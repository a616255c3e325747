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
//! - Every page is verified against its parent, and the root against the journal's CRC.
//! - What the tree lacks is noted: the next checkpoint, or snapshot, has it.
//!
//! What this deliberately does not do: I/O. The caller reads the pages that `read` is asked for.

use meta::records::{BadRecord, Loader, Unsaved};
use meta::{Mutation, Shard};
use store::tree::{Fetch, Pages, Root, Scan, ScanStep, TreeError, TreeId, Unreadable, Waiter};
use types::{Decode as _, DecodeError, FsId, Reader, ShardId};

/// Bytes of pages that are kept while a tree is read.
const CACHE_SIZE: usize = 4 << 20;
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
        }
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
        let mut loader = Loader::new(&mut self.shard, beside.clone()).map_err(bad)?;
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
        loader.finish().map_err(bad)?;
        self.shard.track_beside(root.page.is_some(), &beside);
        Ok(())
    }
}
