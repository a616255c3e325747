//! What a sequential reader will want next is loaded ahead, and what it has behind it may go first.
//!
//! Invariants
//! - A prefetch needs tokens that are held already, and frames that nobody waits for.
//! - A file that fills the pool by itself keeps its beginning there: by age each page would go just before the next pass over the
//!   file wants it.

use types::{ByteRange, InodeId, RangeMode, limits};

use crate::Pool;
use crate::env::Env;
use crate::inode::Inode;
use crate::io::BLOCK_SIZE;
use crate::pages::PAGE_SIZE;
use crate::request::Handle;
use crate::slice::Slice;

/// Bytes read ahead of a sequential reader at the most.
const PREFETCH_SIZE_MAX: u64 = 8 << 20;
/// A reader counts as sequential from this many bytes in a row on.
const SEQUENTIAL_SIZE_MIN: u64 = 256 << 10;
/// Bytes behind a sequential reader that are dropped at once at the most.
const BEHIND_SIZE_MAX: u64 = 2 * PREFETCH_SIZE_MAX;

impl Inode {
    /// Frames get short while its only reader is at `offset`: drops pages behind it, if most of the pool is this file's.
    fn drop_behind(&mut self, offset: u64, pool: &dyn Pool) {
        let (total, free) = pool.frame_counts();
        // Before the driver has all slices evict (`pool::Levels::low`).
        let shortage = (total / 8 + total / 16).saturating_sub(free) * PAGE_SIZE;
        if shortage == 0 || self.open_count > 1 || (self.pages.count() as u64) < total / 2 {
            return;
        }
        // The block before is still being answered from.
        let end = offset.saturating_sub(BLOCK_SIZE);
        let begin = end.saturating_sub(shortage.min(BEHIND_SIZE_MAX));
        if begin < end {
            let loading = self.loading();
            let behind = ByteRange::new(begin, end);
            self.pages.drop_clean(&behind, &loading, pool);
        }
    }
}

impl Slice {
    /// Starts loads for what a sequential reader will want next.
    pub(crate) fn prefetch(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        handle: Handle,
        range: ByteRange,
    ) {
        let Some(file) = self.handles.get_mut(&handle) else {
            return;
        };
        if file.read_end == range.begin {
            file.sequential += range.length();
        } else if range.begin > file.read_end + limits::MAX_WRITE as u64
            || range.end < file.read_end.saturating_sub(limits::MAX_WRITE as u64)
        {
            file.sequential = 0;
            file.prefetch_end = 0;
        }
        file.read_end = range.end;
        if file.sequential < SEQUENTIAL_SIZE_MIN {
            return;
        }
        let window = (file.sequential * 2).min(PREFETCH_SIZE_MAX);
        let begin = file.prefetch_end.max(range.end);
        let target = range.end + window;
        // Ahead in whole blocks, and not for a few pages at a time.
        if target < begin + window / 2 {
            return;
        }
        let inode = self
            .inodes
            .get_mut(&ino)
            .expect("a handle's inode is known");
        let end = target.min(inode.size.next_multiple_of(PAGE_SIZE));
        inode.drop_behind(range.begin, env.pool);
        let (total, free) = env.pool.frame_counts();
        if begin >= end || inode.is_revoking() || free < total / 8 {
            return;
        }
        let ahead = ByteRange::new(begin, end);
        if !inode.covers(RangeMode::Read, &ahead) {
            return;
        }
        let missing = inode.pages.missing(&ahead).ranges().to_vec();
        self.handles
            .get_mut(&handle)
            .expect("just seen")
            .prefetch_end = end;
        for range in missing {
            self.load(env, ino, range, false);
        }
    }
}
