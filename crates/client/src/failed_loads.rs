//! Loads that fail, and maps that cannot be had: who of those that wait hears of it.
//!
//! A load is often larger than what one reader misses: several wait for it, or it was begun ahead of all of them. It fails as a whole, by one
//! sector that nobody of them may want. So who misses only part of its bytes loads that part alone.
//!
//! Invariants
//! - A read hears of a failed load only if it misses all bytes of that load: those who can be answered without the bad sector are.
//! - It hears of its own: nothing is left of a failure when those who waited have been run again, and who comes later asks the disk.

use types::{ByteRange, Errno, InodeId, RangeSet};

use crate::env::Env;
use crate::inode::{Inode, Load, sectors_around};
use crate::request::Operation;
use crate::seek;
use crate::slice::{IoFailure, Parked, Slice, Waiting};

/// The owner moves pieces to sectors and frees what lay under them, so that loads by an older map meet other bytes:
/// the map is asked for again this often in a row.
const LOOKS_MAX: u32 = 16;

impl Inode {
    /// Where a read ends. A short answer to the kernel's page cache would tell it that the file ends there.
    pub(crate) fn read_end(&self, offset: u64, length: u32, fills_page_cache: bool) -> u64 {
        let end = offset.saturating_add(length.into());
        match fills_page_cache && !self.is_attr_current() {
            true => end,
            false => end.min(self.size),
        }
    }

    /// The pages that `parked` waits for, if it is a read that does.
    fn misses(&self, parked: &Parked) -> RangeSet {
        match parked.request.operation {
            Operation::Read {
                offset,
                length,
                fills_page_cache,
                ..
            } if parked.why == Waiting::Load => {
                let end = self.read_end(offset, length, fills_page_cache);
                match offset < end {
                    true => self.pages.missing(&ByteRange::new(offset, end)),
                    false => RangeSet::new(),
                }
            }
            _ => RangeSet::new(),
        }
    }

    /// `parked` waits to learn where these bytes lie, all of them.
    fn asks_for(&self, parked: &Parked, range: &ByteRange) -> bool {
        match parked.request.operation {
            Operation::Seek {
                offset, is_hole, ..
            } if parked.why == Waiting::Load => {
                seek::unknown_from(self, offset, is_hole) == Some(range.begin)
            }
            _ => self.misses(parked).contains(range),
        }
    }
}

impl Slice {
    /// The sectors of `load` cannot be had. To be called before `retry`.
    pub(crate) fn note_unread(&mut self, ino: InodeId, load: &Load, failure: IoFailure) {
        let (range, is_lapsed) = (load.range(), self.is_lapsed);
        let inode = self.inode(ino);
        // A mismatch may mean that the map we read by is old: ask the owner once more before
        // the application hears of it.
        inode.map.forget(&sectors_around(&range));
        // Nobody asked: whoever reads it looks for himself. And who waits for the lease looks again then.
        if is_lapsed || !load.is_wanted {
            return;
        }
        if failure == IoFailure::Corrupt && inode.look_count < LOOKS_MAX {
            inode.look_count += 1;
            return;
        }
        inode.look_count = 0;
        for at in 0..inode.parked.len() {
            if inode.misses(&inode.parked[at]).contains(&range) {
                inode.parked[at].failure = Some(Errno::EIO);
            }
        }
    }

    /// The owner does not say where the bytes of `range` lie. To be called before `retry`.
    pub(crate) fn note_unmapped(&mut self, ino: InodeId, range: &ByteRange, errno: Errno) {
        let is_lapsed = self.is_lapsed;
        let inode = self.inode(ino);
        for at in 0..inode.parked.len() {
            if !is_lapsed && inode.asks_for(&inode.parked[at], range) {
                inode.parked[at].failure = Some(errno);
            }
        }
    }

    /// A request hears why it cannot have what it waited for.
    pub(crate) fn tell_failed(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        parked: &Parked,
        errno: Errno,
    ) {
        let ticket = parked.request.ticket;
        self.fail(ticket, errno);
        if parked.is_admitted {
            self.served(env, ino, ticket);
        }
    }
}
