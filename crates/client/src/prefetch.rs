//! What a reader will want next is loaded ahead, and what a sequential one has behind it may go first.
//!
//! Invariants
//! - A prefetch needs tokens that are held already, and frames that nobody waits for.
//! - A file that fills the pool by itself keeps its beginning there: by age each page would go just before the next pass over the
//!   file wants it.

use types::{ByteRange, InodeId, RangeMode};

use crate::Pool;
use crate::env::Env;
use crate::inode::Inode;
use crate::io::BLOCK_SIZE;
use crate::pages::PAGE_SIZE;
use crate::request::Handle;
use crate::slice::Slice;

/// Of the pool one part in so many may be ahead of one reader.
const POOL_PART: u64 = 16;
/// Bytes behind a sequential reader that are dropped at once at the most.
const BEHIND_SIZE_MAX: u64 = 16 << 20;
/// Of the frames one in so many must be free: others need some, too.
const FREE_PART: u64 = 8;

/// What nobody waits for may have frames.
pub(crate) fn has_spare_frames(pool: &dyn Pool) -> bool {
    let (total, free) = pool.frame_counts();
    free >= total / FREE_PART
}

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
    /// Starts loads for what a reader will want next (`reading`).
    pub(crate) fn prefetch(&mut self, env: &Env<'_>, ino: InodeId, handle: Handle) {
        let Some(file) = self.handles.get_mut(&handle) else {
            return;
        };
        let inode = self
            .inodes
            .get_mut(&ino)
            .expect("a handle's inode is known");
        if let Some(at) = file.reading.sequential_at() {
            inode.drop_behind(at.saturating_sub(BLOCK_SIZE), env.pool);
        }
        if inode.is_revoking() || !has_spare_frames(env.pool) {
            return;
        }
        let (total, _) = env.pool.frame_counts();
        let most = (total / POOL_PART * PAGE_SIZE).max(BLOCK_SIZE);
        let mut wanted = file.reading.next(inode.size, self.load_time, most);
        wanted.retain(|ahead| inode.covers(RangeMode::Read, ahead));
        if wanted.is_empty() {
            return;
        }
        self.load_ahead(env, ino, wanted);
    }

    /// Loads what its tokens cover, as soon as it is known where it lies.
    pub(crate) fn load_ahead(&mut self, env: &Env<'_>, ino: InodeId, mut wanted: Vec<ByteRange>) {
        let inode = self.inode(ino);
        if !wanted.iter().all(|ahead| inode.map.known.contains(ahead)) {
            // One question for all of them, which goes forward from the first byte.
            wanted.sort_unstable_by_key(|ahead| ahead.begin);
            inode.unmapped.clone_from(&wanted);
        } else {
            inode.unmapped.clear();
        }
        for ahead in wanted {
            self.load_missing(env, ino, ahead);
        }
    }

    /// Where bytes lie has become known: loads what was to be loaded ahead and waited for it.
    pub(crate) fn prefetch_mapped(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inode(ino);
        let wanted = std::mem::take(&mut inode.unmapped);
        // What is small is loaded before it is opened, too.
        let is_wanted = inode.open_count > 0 || inode.is_small();
        if inode.is_revoking() || !is_wanted {
            return;
        }
        let end = inode.size.next_multiple_of(PAGE_SIZE);
        for ahead in wanted {
            let Some(ahead) = ahead.intersection(&ByteRange::new(0, end)) else {
                continue;
            };
            if self.inode(ino).covers(RangeMode::Read, &ahead) {
                self.load_missing(env, ino, ahead);
            }
        }
    }

    fn load_missing(&mut self, env: &Env<'_>, ino: InodeId, ahead: ByteRange) {
        if !has_spare_frames(env.pool) {
            return;
        }
        let missing = self.inode(ino).pages.missing(&ahead).ranges().to_vec();
        for range in missing {
            self.load(env, ino, range, false);
        }
    }
}
