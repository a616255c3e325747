//! What was written and will never be with an owner, counted: who syncs or closes such a file hears of it, once; whoever runs the node
//! should, too.

use types::{ByteRange, Duration, Errno, InodeId, Instant};

use crate::batch::Batch;
use crate::inode::Inode;
use crate::pages::PAGE_SIZE;
use crate::request::{Operation, Request};
use crate::slice::Slice;

/// An owner knows no such file: so long it may turn out that somebody has removed it, and nobody misses what was written.
const DOUBT: Duration = Duration::from_secs(2);
/// So many files in doubt are remembered; the oldest is looked at then.
const DOUBT_COUNT_MAX: usize = 256;

/// Pages of a file that its owner does not know.
#[derive(Debug)]
pub(crate) struct Doubt {
    ino: InodeId,
    pages: u64,
    since: Instant,
}

/// Since the slice was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Pages that were written and could not be stored or committed: their bytes are in this node's memory alone.
    pub pages: u64,
    /// Write-backs of mapped pages that were refused: their bytes are in the kernel's memory alone.
    pub write_backs: u64,
    /// Write-backs that reached a page or more behind the end of their file. No loss where another node has cut the file meanwhile; alone
    /// on a file it would be one.
    pub clipped: u64,
    /// Pages whose owner knew no such file, or not these sectors, and this node did not hear that it was removed: mostly it was, elsewhere.
    pub unknown_files: u64,
    /// One of these files: the newest of its slice.
    pub unknown: Option<InodeId>,
    /// One of the files, and what was told: the newest of its slice.
    pub one: Option<(InodeId, Errno)>,
}

impl Losses {
    /// Those of another slice, too.
    pub fn add(&mut self, more: &Self) {
        self.pages += more.pages;
        self.write_backs += more.write_backs;
        self.clipped += more.clipped;
        self.unknown_files += more.unknown_files;
        self.unknown = more.unknown.or(self.unknown);
        self.one = more.one.or(self.one);
    }

    /// A request is refused. Who called write(2) hears so; nobody has, of a page that the kernel writes back. Of a file that is gone
    /// nobody misses it.
    fn note_refused(&mut self, operation: &Operation, errno: Errno) {
        if let Operation::Write {
            ino,
            is_write_back: true,
            ..
        } = operation
            && errno != Errno::ESTALE
        {
            self.write_backs += 1;
            self.one = Some((*ino, errno));
        }
    }

    /// Pages of a file are lost; of one that is gone nobody misses them.
    pub(crate) fn note_pages(&mut self, inode: &Inode, count: usize, errno: Errno) {
        if !inode.is_gone {
            self.pages += count as u64;
            self.one = Some((inode.ino, errno));
        }
    }
}

impl Slice {
    /// An owner refuses a Commit of these batches. One that knows no such file may have removed it meanwhile.
    pub(crate) fn note_lost(&mut self, now: Instant, ino: InodeId, lost: &[Batch], errno: Errno) {
        let count = lost.iter().map(|batch| batch.numbers.len()).sum();
        let inode = &self.inodes[&ino];
        if errno != Errno::ESTALE || inode.is_gone {
            return self.losses.note_pages(inode, count, errno);
        }
        if self.doubts.len() >= DOUBT_COUNT_MAX
            && let Some(oldest) = self.doubts.pop_front()
        {
            self.settle_doubt(&oldest);
        }
        let (pages, since) = (count as u64, now);
        self.doubts.push_back(Doubt { ino, pages, since });
    }

    /// Time has passed.
    pub(crate) fn settle_doubts(&mut self, now: Instant) {
        let is_old = |doubt: &Doubt| now.since(doubt.since) >= DOUBT;
        while let Some(doubt) = self.doubts.pop_front_if(|doubt| is_old(doubt)) {
            self.settle_doubt(&doubt);
        }
    }

    /// Nothing more will be heard of any file.
    pub fn settle_all_doubts(&mut self) {
        while let Some(doubt) = self.doubts.pop_front() {
            self.settle_doubt(&doubt);
        }
    }

    fn settle_doubt(&mut self, doubt: &Doubt) {
        let inode = self.inodes.get(&doubt.ino);
        if inode.is_some_and(|inode| !inode.is_gone) {
            self.losses.unknown_files += doubt.pages;
            self.losses.unknown = Some(doubt.ino);
        }
    }

    /// Answers a request with an error, and counts what is lost by it.
    pub(crate) fn refuse(&mut self, request: &Request, errno: Errno) {
        self.losses.note_refused(&request.operation, errno);
        self.fail(request.ticket, errno);
    }
}

impl Inode {
    /// What of a write-back is content of the file: the kernel writes whole pages.
    pub(crate) fn content_of(&self, range: ByteRange, losses: &mut Losses) -> ByteRange {
        let end = self.size.max(range.begin);
        losses.clipped += u64::from(range.end >= end + PAGE_SIZE);
        ByteRange::new(range.begin, range.end.min(end))
    }
}
