//! Loads that fail, and maps that cannot be had: who of those that wait hears of it.
//!
//! A load is often larger than what one reader misses: several wait for it, or it was begun ahead of all of them. It fails as a whole, by one
//! sector that nobody of them may want. So who misses only part of its bytes loads that part alone.
//!
//! Invariants
//! - A read hears of a failed load only if it misses all bytes of that load: those who can be answered without the bad sector are.
//! - It hears of its own: nothing is left of a failure when those who waited have been run again, and who comes later asks the disk.
//! - Whether bytes that are not what they should be are looked at again, each read counts for itself: what others read changes nothing.
//!
//! Each failure ends one who waits, or makes him look again (`LOOKS_MAX` times), or is of a load that nobody began for himself; the ones that
//! follow it are smaller. So a read ends when all before it have.

use types::{ByteRange, Errno, InodeId, RangeSet};

use crate::env::Env;
use crate::inode::{Inode, Load, sectors_around};
use crate::request::Operation;
use crate::seek;
use crate::slice::{IoFailure, IoId, Parked, Slice, Waiting};

/// The owner moves pieces to sectors and frees what lay under them, so that loads by an older map meet other bytes:
/// a read asks for the map again this often.
const LOOKS_MAX: u32 = 16;

/// How often a read has looked again.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Looks {
    count: u32,
    /// Loads before this one were begun before the last look.
    since: Option<IoId>,
}

impl Looks {
    /// `load` met other bytes. False: that is what is there.
    fn look(&mut self, load: IoId, next: IoId) -> bool {
        // Loads that were begun together count once.
        if self.since.is_some_and(|since| load < since) {
            return true;
        }
        let may_look = self.count < LOOKS_MAX;
        if may_look {
            self.count += 1;
            self.since = Some(next);
        }
        may_look
    }
}

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
        let (range, next, is_lapsed) = (load.range(), IoId(self.draw_id()), self.is_lapsed);
        let inode = self.inode(ino);
        // By an old map: the owner is asked once more before the application hears of it.
        let is_old = failure == IoFailure::Corrupt || !inode.map.known.contains(&range);
        inode.map.forget(&sectors_around(&range));
        if is_lapsed {
            // Who waits for the lease looks again then.
            return;
        }
        for at in 0..inode.parked.len() {
            if !inode.misses(&inode.parked[at]).contains(&range) {
                continue;
            }
            let parked = &mut inode.parked[at];
            if !(is_old && parked.looks.look(load.io, next)) {
                parked.failure = Some(Errno::EIO);
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

    /// A read that waited looks whether its bytes are there now.
    pub(crate) fn read_on(&mut self, env: &Env<'_>, ino: InodeId, parked: Parked) {
        let (ticket, looks) = (parked.request.ticket, parked.looks);
        self.serve_read(env, parked.request);
        let inode = self.inodes.get_mut(&ino);
        let work = inode.and_then(|inode| inode.present_work());
        let mut again = work.into_iter().flat_map(|work| &mut work.parked).rev();
        if let Some(again) = again.find(|p| p.request.ticket == ticket) {
            again.looks = looks;
        }
    }
}
