//! What an inode needs only while somebody uses it or something of it is cached: most of what a node remembers was listed or looked at
//! and no more, and takes less than half the memory without.
//!
//! Invariants
//! - An inode without it is as one with an untouched one: reads of its fields see that one ([`BLANK`]), and the first change makes it.
//! - It goes when nothing is in it that anybody could ask for ([`Work::is_blank`]), where the inode comes to rest (`Inode::compact`).

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use data::SetAside;
use rustc_hash::FxHashMap;
use types::{ByteRange, InodeId, Name, RangeSet, Timestamp};

use super::{Inode, Load, MapCache};
use crate::batch::Batch;
use crate::goals::Goal;
use crate::pages::Pages;
use crate::request::Ticket;
use crate::slice::Parked;

/// What an inode without work shows.
static BLANK: LazyLock<Work> = LazyLock::new(|| Work::new(InodeId::ROOT, Arc::default()));

/// See the module.
#[derive(Debug)]
pub(crate) struct Work {
    /// Written since the last Commit: the time shown as mtime.
    pub(crate) modified: Option<Timestamp>,
    /// Writes take set-id bits that the owner has not heard of: the group of whoever wrote.
    pub(crate) kill_set_id: Option<u32>,
    /// Reads that the owner has not heard of.
    pub(crate) accessed: crate::access::Accessed,
    pub(crate) pages: Pages,
    pub(crate) map: MapCache,
    /// To be loaded ahead as soon as it is known where it lies.
    pub(crate) unmapped: Vec<ByteRange>,
    /// What was committed or cut since, and what tokens were lost over: the answer may be of before.
    pub(crate) changed_since: RangeSet,
    pub(crate) loads: Vec<Load>,
    pub(crate) batches: Vec<Batch>,
    /// Changes of size on their way to the owner: nothing is stored or committed meanwhile, for it would
    /// belong to the size before.
    pub(crate) resize_count: u32,
    /// Changes of size in service, with what they may cut: their tokens do not leave.
    pub(crate) resizes: Vec<(Ticket, ByteRange)>,
    pub(crate) commit: Option<Box<crate::commit::RunningCommit>>,
    /// Times that stores failed in a row, and when the last was: no other is begun for a moment.
    pub(crate) store_failures: u32,
    pub(crate) store_failed_at: types::Instant,
    /// Since when stores have failed or their links broken, and the pages of these that have not been stored since.
    pub(crate) failing_since: Option<types::Instant>,
    pub(crate) failing_pages: std::collections::BTreeSet<u64>,
    /// Sectors set aside for its dirty pages.
    pub(crate) reserved: SetAside,
    /// What is known of its promised ranges.
    pub(crate) promise: crate::promise::Promise,
    /// Since when dirty pages have found no sectors: what was written to sectors that cannot be used needs
    /// others.
    pub(crate) starved_since: Option<types::Instant>,
    /// Its pieces were refused for want of room.
    pub(crate) refused: Option<crate::refused::Refused>,
    pub(crate) goals: Vec<Goal>,
    /// Pages that lie in metadata because somebody waited for them; they go to sectors later.
    pub(crate) hasty: std::collections::BTreeSet<u64>,
    /// End of the last write.
    pub(crate) write_end: u64,
    /// Appended where the kernel does not expect it and not READ since: its pages hold what was there before.
    pub(crate) unshown: RangeSet,
    /// Write-backs that failed.
    pub(crate) errors: crate::errors::Errors,
    /// Bytes read past the page cache, if it is large, since it changed last as far as this node knows.
    pub(crate) direct_bytes: u64,
    /// Entries of a directory that the kernel was shown with their attributes, by listings or as it made them, since it looked one up, and
    /// the first when.
    pub(crate) unlooked_count: usize,
    pub(crate) unlooked_since: types::Instant,
    /// [`crate::slice::Slice::attr_looks`] then.
    pub(crate) attr_looks_before: u64,
    pub(crate) entries: Option<FxHashMap<Name, Option<InodeId>>>,
    pub(crate) parked: VecDeque<Parked>,
    /// How many there are in the slice.
    count: Arc<AtomicUsize>,
}

impl Work {
    fn new(ino: InodeId, count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self {
            modified: None,
            kill_set_id: None,
            accessed: crate::access::Accessed::default(),
            pages: Pages::new(ino),
            map: MapCache::default(),
            unmapped: Vec::new(),
            changed_since: RangeSet::new(),
            loads: Vec::new(),
            batches: Vec::new(),
            resize_count: 0,
            resizes: Vec::new(),
            commit: None,
            store_failures: 0,
            store_failed_at: types::Instant::default(),
            failing_since: None,
            failing_pages: std::collections::BTreeSet::new(),
            reserved: SetAside::default(),
            promise: crate::promise::Promise::default(),
            starved_since: None,
            refused: None,
            goals: Vec::new(),
            hasty: std::collections::BTreeSet::new(),
            write_end: 0,
            unshown: RangeSet::new(),
            errors: crate::errors::Errors::default(),
            direct_bytes: 0,
            unlooked_count: 0,
            unlooked_since: types::Instant(0),
            attr_looks_before: 0,
            entries: None,
            parked: VecDeque::new(),
            count,
        }
    }

    /// Nothing of it differs from a new one in what can be seen.
    fn is_blank(&self) -> bool {
        let Self {
            modified,
            kill_set_id,
            accessed,
            pages,
            map,
            unmapped,
            changed_since,
            loads,
            batches,
            resize_count,
            resizes,
            commit,
            store_failures,
            // It says nothing where there are none.
            store_failed_at: _,
            failing_since,
            // There are none where nothing fails.
            failing_pages: _,
            reserved,
            promise,
            starved_since,
            // It says how pages go that are dirty, and there are none.
            refused: _,
            goals,
            hasty,
            write_end,
            unshown,
            errors,
            direct_bytes,
            unlooked_count,
            // Counts from the first entry that is shown.
            unlooked_since: _,
            attr_looks_before: _,
            entries,
            parked,
            count: _,
        } = self;
        let is_read = !map.is_empty() || !unmapped.is_empty() || !loads.is_empty();
        let is_written =
            !pages.is_blank() || !batches.is_empty() || !goals.is_empty() || commit.is_some();
        let is_resized = *resize_count > 0 || !resizes.is_empty() || *write_end > 0;
        let is_promised =
            *promise != crate::promise::Promise::default() || *reserved != SetAside::default();
        let is_short = starved_since.is_some() || !hasty.is_empty() || !unshown.is_empty();
        let has_failed = *errors != crate::errors::Errors::default()
            || failing_since.is_some()
            || *store_failures > 0;
        let has_times = modified.is_some() || *accessed != crate::access::Accessed::default();
        // What few entries would say of a directory is not worth its memory.
        let is_scanned = *unlooked_count >= crate::listing::SAMPLE;
        let has_names = entries.is_some() || is_scanned;
        let is_pending = kill_set_id.is_some() || !changed_since.is_empty() || *direct_bytes > 0;
        let is_used = is_read || is_written || is_resized || is_promised || is_short;
        !(is_used || has_failed || has_times || has_names || is_pending || !parked.is_empty())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Deref for Inode {
    type Target = Work;

    fn deref(&self) -> &Work {
        match &self.work {
            Some(work) => work,
            None => &BLANK,
        }
    }
}

impl DerefMut for Inode {
    fn deref_mut(&mut self) -> &mut Work {
        let (ino, count) = (self.ino, &self.work_count);
        self.work
            .get_or_insert_with(|| Box::new(Work::new(ino, Arc::clone(count))))
    }
}

impl Inode {
    /// What it needs while it is used, made if there is none: to change several parts of it at once.
    pub(crate) fn work(&mut self) -> &mut Work {
        self
    }

    /// What it needs while it is used, if it has that: to change what only something that is there can have.
    pub(crate) fn present_work(&mut self) -> Option<&mut Work> {
        self.work.as_deref_mut()
    }

    /// Gives up what nothing is in.
    pub(super) fn drop_blank_work(&mut self) {
        if self.work.as_ref().is_some_and(|work| work.is_blank()) {
            self.work = None;
        }
    }

    /// It has one now.
    pub(crate) const fn has_work(&self) -> bool {
        self.work.is_some()
    }
}
