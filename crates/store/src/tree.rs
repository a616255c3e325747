//! The tree of a shard on disk: a copy-on-write B+tree whose pages are written once and verified at every read.
//!
//! Keys and values are bytes; keys are ordered bytewise. A page lies in 1 to 3 copies; its parent, and for the
//! root the journal, names their places, the CRC of the page and its number. A checkpoint (`Apply`) writes
//! new pages for what changes, up to a new root, and names the pages that are free once the root is durable.
//! What it does not touch is shared by both trees.
//!
//! ```text
//!             root (journal)          a page is named once in a tree, by its parent:
//!                  |                  places, CRC32C, level, number, count of entries
//!          [ a | f | m | t ]  level 1
//!           /    |    |    \          separator <= every key of the child < the next separator
//!        [a..] [f..] [m..] [t..]      level 0: leaves, with the values
//! ```
//!
//! Invariants
//! - A page is written once, to places that were free; nothing of the old tree is changed. So power may fail
//!   at any moment: the journal names the old root or the new one, and all of it is there.
//! - No byte of a page is used before the page is verified: CRC, that it is this very page of this tree, and
//!   that every offset in it lies in it and its keys ascend.
//! - Memory is bounded whatever the tree and the batch: `Pages` by its limit, `Get`, `Scan` and `Apply` by
//!   pages in flight and one or two pages per level.
//!
//! - `page`: the bytes of a page, of a reference to one, of the root; search on the bytes.
//! - `pages`: the cache of verified pages, and fetches; shared by everything that reads.
//! - `get`, `scan`: reading.
//! - `apply`: a sorted batch onto a root; `ops` its input, `build` the pages that grow.
//! - `walk`: every page and every copy, for fsck.
//! - `fault`: what can be wrong with a page, and the errors.
//!
//! What this deliberately does not do: I/O (fetches and writes are values), durability (the caller flushes the
//! NSDs and journals the root), allocation (the caller gives places and takes freed runs back).

pub mod apply;
mod build;
pub mod fault;
pub mod get;
mod ops;
pub mod page;
pub mod pages;
pub mod scan;
pub mod testing;
pub mod walk;

pub use apply::{Applied, Apply, ApplyConfig, ApplyError, PageWrite, Step, WriteId};
pub use fault::{PageFault, TreeError};
pub use get::{Get, Lookup, Progress, Value, lookup};
pub use ops::Change;
pub use page::{Copies, Page, PageRef, Root, TreeId};
pub use pages::{Arrival, Asked, Fetch, FetchId, Pages, Unreadable, Waiter};
pub use scan::{Entries, Scan, ScanStep};
pub use walk::{Broken, Position, Walk, WalkStep};

#[cfg(test)]
mod tests;
