//! Writes into ranges that space was promised to (fallocate).
//!
//! Such a write is acknowledged with sectors set aside as every other: with those in hand, and where there are none,
//! with sectors that the owner grants for promised ranges alone. Those are fewer than may be written, and come back with
//! Commits: so a write may wait for Commits, of other nodes too, and never hears ENOSPC. Some may not come back for long:
//! those of stores that a broken link ended (`burnt`). Who has waited for some time needs none: its bytes go as pieces
//! inside of Commits, a few pages at a time, and the owner moves them to sectors when there are some.
//!
//! Invariants
//! - Sectors granted for promised ranges are set aside only for bytes whose sectors are all known to be promised, while
//!   the right to write to them is held. A promise is taken back under the exclusive inode token and the right to write
//!   to what is cut, in a new size generation: with that all that is known is forgotten.
//! - Of a file with promises every write goes to runs without checksum sectors: each sector that is written over is
//!   free by itself.

use data::SetAside;
use meta::{Op, Reply};
use types::{ByteRange, Duration, InodeId, Instant, Layout, RangeSet, SECTOR_SIZE, limits};

use crate::appends::NoRoom;
use crate::batch::{numbers_of, put_back};
use crate::env::{Env, WantedRun};
use crate::flush::BATCH_PAGES_MAX;
use crate::goals::Purpose;
use crate::inode::{Inode, sectors_around};
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::pages::{DirtyPage, PAGE_SIZE};
use crate::slice::{Effect, Slice, Waiting};

/// A write into a promised range waits so long for sectors; then its bytes go inside of Commits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Pages that are written back at once where sectors are short.
#[allow(clippy::cast_possible_truncation, reason = "a few hundred")]
const PAGES_ASKED_MAX: usize = limits::PROMISED_ASK_MAX as usize;

/// What is known of a file's promised ranges, in bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Promise {
    known: RangeSet,
    ranges: RangeSet,
    is_asked: bool,
    /// There have been too few sectors for promised pages since.
    short_since: Option<Instant>,
    /// Pages that find no sectors go inside of the next Commit.
    goes_without: bool,
    /// So many pages are written back at once, where there were too few sectors for more.
    pages_max: Option<usize>,
    /// The last Commit was of promised bytes.
    was_committed: bool,
}

impl Promise {
    /// Whether the next Commit is of promised bytes, where some of either kind may be stored: those first, and then by turns. A stream into
    /// a promised range keeps nobody's fsync waiting.
    pub(crate) fn take_turn(&mut self, has_promised: bool, has_others: bool) -> bool {
        let is_promised = has_promised && !(has_others && self.was_committed);
        self.was_committed = is_promised;
        is_promised
    }

    /// The size generation is another one.
    pub(crate) fn forget(&mut self) {
        self.known = RangeSet::new();
        self.ranges = RangeSet::new();
    }

    /// There are too few sectors for what is promised. True: it has been so for long.
    fn note_short(&mut self, now: Instant) -> bool {
        let since = *self.short_since.get_or_insert(now);
        now.since(since) > PATIENCE
    }

    /// Dirty pages have found no sectors: the next ones need none if that has been so for long.
    pub(crate) fn pages_are_short(&mut self, now: Instant) {
        self.goes_without = self.note_short(now);
        let count_max = self.pages_max.unwrap_or(usize::MAX);
        self.pages_max = Some(count_max.min(PAGES_ASKED_MAX));
    }

    /// There were too few sectors for as many as that.
    pub(crate) fn on_none(&mut self) {
        self.pages_max = self.pages_max.map(|count| (count / 2).max(1));
    }

    /// Dirty pages have sectors.
    pub(crate) fn pages_are_stored(&mut self) {
        self.short_since = None;
        let more = self.pages_max.map(|count| count * 2);
        self.pages_max = more.filter(|count| *count <= BATCH_PAGES_MAX);
    }

    /// Pages go inside of a Commit now: once.
    pub(crate) fn take_goes_without(&mut self) -> bool {
        std::mem::take(&mut self.goes_without)
    }
}

impl Inode {
    /// All sectors that hold a byte of `range` are promised; `None`: that is not known here.
    pub(crate) fn is_promised(&self, range: &ByteRange) -> Option<bool> {
        if !self.attr.is_some_and(|attr| attr.has_promise()) {
            return Some(false);
        }
        let sectors = sectors_around(range);
        if !self.promise.known.missing(&sectors).is_empty() {
            return None;
        }
        Some(self.promise.ranges.missing(&sectors).is_empty())
    }

    /// The page is known to be promised.
    pub(crate) fn is_page_promised(&self, number: u64) -> bool {
        let page = ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
        self.is_promised(&page) == Some(true)
    }
}

impl Slice {
    /// Sets sectors aside for a write of `range`, which dirties so many pages.
    pub(crate) fn reserve(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: &ByteRange,
        sectors: u64,
    ) -> Result<SetAside, NoRoom> {
        let owner = env.owner(ino.shard());
        let is_promised = self.inode(ino).is_promised(range);
        if is_promised == Some(true) {
            if let Some(part) = env.grants.reserve_promised(owner, sectors) {
                return Ok(part);
            }
            let inode = self.inode(ino);
            if inode.promise.note_short(env.now) && inode.pages.busy_count() == 0 {
                // One at a time, for metadata holds little of that.
                return Ok(SetAside::default());
            }
            // Who has just been told that there are none now asks again with the next tick.
            if self.none_at(owner).is_none() {
                self.out.push(Effect::WantSpace(owner));
            }
            self.await_space(ino);
            return Err(NoRoom::Yet(Waiting::Promise));
        }
        if env.grants.reserve(owner, sectors) {
            return Ok(SetAside::plain(sectors));
        }
        if is_promised.is_none() {
            self.ask_promised(ino, sectors_around(range).begin);
            return Err(NoRoom::Yet(Waiting::Promise));
        }
        if let Some(errno) = self.none_at(owner) {
            return Err(NoRoom::None(errno));
        }
        self.out.push(Effect::WantSpace(owner));
        self.await_space(ino);
        Err(NoRoom::Yet(Waiting::Space))
    }

    pub(crate) fn await_space(&mut self, ino: InodeId) {
        if !self.starved.contains(&ino) {
            self.starved.push(ino);
        }
    }

    /// Whether these pages are promised sectors is asked, if that is not known. True: it is not.
    pub(crate) fn ask_promised_of(&mut self, ino: InodeId, numbers: &[u64]) -> bool {
        let inode = self.inode(ino);
        let page = |number: &u64| ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
        let mut pages = numbers.iter().map(page);
        let unknown = pages.find(|page| inode.is_promised(page).is_none());
        if let Some(page) = unknown {
            self.ask_promised(ino, page.begin);
        }
        unknown.is_some()
    }

    fn ask_promised(&mut self, ino: InodeId, begin: u64) {
        if std::mem::replace(&mut self.inode(ino).promise.is_asked, true) {
            return;
        }
        let begin = begin / SECTOR_SIZE;
        let op = Op::GetPromised { ino, begin };
        let then = Continuation::Promised(ino, begin);
        self.call(ino.shard(), Ask::Op { op, durable: false }, then);
    }

    /// The owner told which sectors from `begin` on are promised.
    pub(crate) fn on_promised(&mut self, env: &Env<'_>, ino: InodeId, begin: u64, answer: Answer) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        inode.promise.is_asked = false;
        let bytes = |begin: u64, end: u64| {
            let end = end.saturating_mul(SECTOR_SIZE);
            ByteRange::new(begin * SECTOR_SIZE, end)
        };
        match answer.body {
            Body::Op(Reply::Promised { ranges, end, attr }) => {
                inode.learn_attr(&attr);
                let newest = inode.attr.map(|known| known.size_generation);
                if newest == Some(attr.size_generation) {
                    inode.promise.known.insert(bytes(begin, end));
                    for range in ranges {
                        inode.promise.ranges.insert(bytes(range.begin, range.end));
                    }
                }
            }
            // The owner cannot say it now: with the next tick it is asked again.
            Body::Refused(_) => return self.await_space(ino),
            // Nothing is promised to what is gone; who waits hears what there is to hear.
            _ => inode.promise.known.insert(ByteRange::ALL),
        }
        self.retry(env, ino);
        self.pump(env, ino);
    }

    /// Turns dirty pages into batches: those that are promised sectors by themselves, for there may be some for them alone, and
    /// nobody refuses them for want of room. False: not enough sectors in hand, or it is not known what is promised; pages are
    /// dirty again.
    pub(crate) fn start_batch(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        dirty: Vec<DirtyPage>,
        is_urgent: bool,
    ) -> bool {
        let numbers: Vec<u64> = numbers_of(&dirty).collect();
        if self.ask_promised_of(ino, &numbers) {
            put_back(self.inode(ino), &dirty, env);
            return false;
        }
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let is_promised = |page: &DirtyPage| inode.is_page_promised(page.number);
        let has_promise = inode.attr.is_some_and(|attr| attr.has_promise());
        let (mut promised, others): (Vec<_>, Vec<_>) = match has_promise {
            true => dirty.into_iter().partition(is_promised),
            false => (Vec::new(), dirty),
        };
        let count_max = inode.promise.pages_max.unwrap_or(usize::MAX);
        let excess = promised.split_off(promised.len().min(count_max));
        if !excess.is_empty() {
            put_back(inode, &excess, env);
        }
        // What is promised to none goes first: what is set aside is all that it may take.
        let has_begun = [(others, false), (promised, true)].map(|(pages, is_promised)| {
            pages.is_empty() || self.start_batch_of(env, ino, (pages, is_promised), is_urgent)
        });
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        if has_begun[0] && inode.starved_since.is_some() {
            // Also where what lacked sectors has turned out to be promised some.
            inode.starved_since = None;
        }
        if inode.has_work() && inode.pages.dirty_count() == 0 {
            let rest = std::mem::take(&mut inode.reserved);
            env.grants.unreserve(env.owner(ino.shard()), rest);
        }
        has_begun == [true; 2]
    }

    /// There are too few sectors for a write into a promised range: what this slice has set aside of them comes back with
    /// its Commits.
    pub(crate) fn write_promised_back(&mut self, env: &Env<'_>) {
        let is_it = |inode: &Inode| inode.reserved.promised > 0 && inode.is_dirty();
        let inodes = self.inodes.iter().filter(|(_, inode)| is_it(inode));
        let mut inos: Vec<InodeId> = inodes.map(|(ino, _)| *ino).collect();
        inos.sort_unstable();
        for ino in inos {
            self.add_goal(env, ino, Purpose::Background);
        }
    }
}

/// Keeps as many pages as go inside of a Commit; the others are dirty again.
pub(crate) fn keep_small(
    inode: &mut Inode,
    mut pages: Vec<DirtyPage>,
    env: &Env<'_>,
) -> Vec<DirtyPage> {
    let count = usize::try_from(limits::SYNC_INLINE_SIZE_MAX / PAGE_SIZE).expect("small");
    let excess = pages.split_off(count.min(pages.len()));
    put_back(inode, &excess, env);
    pages
}

/// Adjacent pages as runs. Those of a file with promises are short, so that no checksum sectors go with them.
pub(crate) fn wanted_runs(inode: &Inode, pages: &[DirtyPage]) -> Vec<WantedRun> {
    let layout = inode.attr.map_or_else(Layout::default, |a| a.layout);
    let count_max = match inode.attr.is_some_and(|attr| attr.has_promise()) {
        true => limits::INLINE_CHECKSUM_COUNT_MAX,
        false => u32::MAX,
    };
    let mut runs: Vec<WantedRun> = Vec::new();
    for page in pages {
        let is_promised = inode.is_page_promised(page.number);
        match runs.last_mut() {
            Some(run)
                if run.file_sector + u64::from(run.count) == page.number
                    && run.count < count_max
                    && run.is_promised == is_promised =>
            {
                run.count += 1;
            }
            _ => runs.push(WantedRun {
                ino: inode.ino,
                layout,
                file_sector: page.number,
                count: 1,
                is_promised,
            }),
        }
    }
    runs
}
