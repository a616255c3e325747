//! Requests and write-backs that find no free sectors or frames, and what gets them some.
//!
//! Invariants (`check_frames`)
//! - Who waits for frames is in `Slice::frameless`, and the driver was told (`Effect::WantFrames`) since it was
//!   last tried: it is tried again after the driver's next round (`Input::Shrink`).
//! - A round tries everybody once. What fails again waits for the next round: trying in a circle would hold the
//!   slice, and with it the ends of the very writes that free frames.
//! - After a round that found frames short every inode with dirty pages has a goal, so that its pages get clean and
//!   a later round evicts them.

use types::{ByteRange, Duration, Errno, InodeId, Instant, NodeId, limits};

use crate::appends::NoRoom;
use crate::batch::numbers_of;
use crate::env::{Env, SpaceNews};
use crate::flush::{BATCH_PAGES_MAX, STARVED_MAX};
use crate::goals::Purpose;
use crate::inode::Inode;
use crate::request::Ticket;
use crate::slice::{Effect, Slice, Waiting};

/// A write hears so often that there are too few sectors without being there to be refused: its token had been taken.
const SHORT_COUNT_MAX: u32 = 3;

/// A write hears that there are no sectors when it has heard for so long that there will be some soon, and others were quicker each time.
const SOON_MAX: Duration = Duration::from_secs(20);

/// Between two counts of what comes back.
const COUNT_PAUSE: Duration = Duration::from_millis(100);

/// Of `STARVED_MAX` at least the rest is left when an owner could not say whether it has sectors.
const HEARD_AFTER_UNKNOWN: Duration = Duration::from_secs(15);

impl Slice {
    /// Sectors arrived from an owner, or it has fewer than are needed: then writes that find none in hand hear so
    /// now, never later. All slices have heard before that there are few (`on_scarce`).
    pub(crate) fn on_space(&mut self, env: &Env<'_>, owner: NodeId, news: SpaceNews) {
        let none = match news {
            SpaceNews::None(errno) => Some(errno),
            SpaceNews::There | SpaceNews::Soon | SpaceNews::Unknown => None,
        };
        self.short = none.map(|errno| (owner, errno));
        self.is_soon = news == SpaceNews::Soon;
        for ino in std::mem::take(&mut self.starved) {
            if env.owner(ino.shard()) != owner {
                self.starved.push(ino);
                continue;
            }
            match news {
                SpaceNews::None(errno) => self.count_short(ino, errno),
                SpaceNews::Soon => self.note_soon(env, ino),
                SpaceNews::There | SpaceNews::Unknown => self.end_soon(ino),
            }
            if let Some(inode) = self.inodes.get_mut(&ino) {
                if inode.pages.dirty_count() == 0 {
                    // What lacked sectors has been cut off, or is on its way: what is written from now on waits anew.
                    inode.starved_since = None;
                }
                if news == SpaceNews::Unknown {
                    // Nothing is lost for want of an answer: what says that there are none is heard for some time more.
                    let since = env.now.before(HEARD_AFTER_UNKNOWN);
                    inode.starved_since = inode.starved_since.map(|begin| begin.max(since));
                }
            }
            self.retry(env, ino);
            self.pump(env, ino);
            // What was acknowledged waits for space to come back: the tick tries again, for some time.
            let since = self.inodes.get(&ino).and_then(|i| i.starved_since);
            if since.is_some_and(|since| env.now.since(since) > STARVED_MAX) {
                self.lose_dirty(env, ino, none.unwrap_or(Errno::ENOSPC));
            }
        }
        (self.short, self.is_soon) = (None, false);
        if none.is_some() {
            self.write_promised_back(env);
        }
    }

    /// The owner has just said that no sectors can be had of it, and why.
    pub(crate) fn none_at(&self, owner: NodeId) -> Option<Errno> {
        self.short
            .and_then(|(of, errno)| (of == owner).then_some(errno))
    }

    /// There is too little for the pages and writes of `ino` that wait, once more; writes that wait for a token now may have
    /// asked for sectors while they had it.
    fn count_short(&mut self, ino: InodeId, errno: Errno) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        inode.promise.on_none();
        for parked in &inode.parked {
            if let Some(payload) = self.payloads.get_mut(&parked.request.ticket) {
                payload.short_count += 1;
                payload.short = errno;
            }
        }
    }

    /// A write has heard so often that there are too few sectors that it is refused when it next finds none in
    /// hand, although the news is old: nodes that write to one file take its tokens from one another, and what one
    /// gives up to the others is recalled for the next. So is one that hears once more that there will be some soon, and has
    /// heard nothing else for long: others are quicker each time.
    pub(crate) fn is_often_short(&self, now: Instant, ticket: Ticket) -> bool {
        self.payloads.get(&ticket).is_some_and(|payload| {
            let is_overtaken = |since: Instant| self.is_soon && now.since(since) > SOON_MAX;
            payload.short_count >= SHORT_COUNT_MAX || payload.soon_since.is_some_and(is_overtaken)
        })
    }

    /// What waits on `ino` for sectors hears that there will be some soon.
    fn note_soon(&mut self, env: &Env<'_>, ino: InodeId) {
        let Some(inode) = self.inodes.get(&ino) else {
            return;
        };
        for parked in &inode.parked {
            if let Some(payload) = self.payloads.get_mut(&parked.request.ticket)
                && parked.why == Waiting::Space
            {
                payload.soon_since.get_or_insert(env.now);
            }
        }
    }

    /// There are some, or nobody can say: who waits begins anew.
    fn end_soon(&mut self, ino: InodeId) {
        let Some(inode) = self.inodes.get(&ino) else {
            return;
        };
        for parked in &inode.parked {
            if let Some(payload) = self.payloads.get_mut(&parked.request.ticket) {
                payload.soon_since = None;
            }
        }
    }

    /// An owner has too few sectors. What is set aside for bytes that go into metadata comes back with their Commits, so they go now: many
    /// small files that were just written have a sector each until then. O(inodes), at the most every `COUNT_PAUSE`.
    pub(crate) fn write_small_back(&mut self, env: &Env<'_>, owner: NodeId) {
        let is_new = |(of, at, _): &&(NodeId, Instant, u64)| {
            *of == owner && env.now.since(*at) < COUNT_PAUSE
        };
        if let Some((.., sectors)) = self.returning.iter().find(is_new) {
            return env.grants.note_returning(owner, *sectors);
        }
        let (mut sectors, mut inos) = (0, Vec::new());
        for (ino, inode) in &self.inodes {
            if env.owner(ino.shard()) != owner {
                continue;
            }
            let returning = inode.returning_sectors(env.now);
            sectors += returning;
            if returning > 0 && inode.is_dirty() {
                inos.push(*ino);
            }
        }
        self.returning.retain(|(of, ..)| *of != owner);
        self.returning.push((owner, env.now, sectors));
        env.grants.note_returning(owner, sectors);
        inos.sort_unstable();
        for ino in inos {
            self.add_goal(env, ino, Purpose::Background);
        }
    }

    /// What a write hears that waits no longer.
    pub(crate) fn errno_of(&self, ticket: Ticket, room: NoRoom) -> Errno {
        match room {
            NoRoom::None(errno) => errno,
            NoRoom::Yet(_) => {
                let payload = self.payloads.get(&ticket);
                payload.map_or(Errno::ENOSPC, |payload| payload.short)
            }
        }
    }

    /// Dirty pages can be written nowhere: who syncs or closes the file hears of it. Those that are promised sectors stay: there
    /// will be some. So do those that can go as pieces alone, which have their own time (`crate::refused`), and as many others as have
    /// sectors set aside, if not all have: then something else keeps them from being written.
    fn lose_dirty(&mut self, env: &Env<'_>, ino: InodeId, errno: Errno) {
        let inode = self.inodes.get_mut(&ino).expect("just seen");
        let pages = inode
            .pages
            .take_dirty(&ByteRange::ALL, usize::MAX, u64::MAX, env.pool);
        pages.iter().for_each(|page| env.pool.release(page.frame));
        let is_promised = |number: &u64| inode.is_page_promised(*number);
        let (promised, others): (Vec<u64>, Vec<u64>) = numbers_of(&pages).partition(is_promised);
        inode.pages.on_flushed(&promised, false, false);
        if self.ask_promised_of(ino, &others) {
            self.inode(ino).pages.on_flushed(&others, false, false);
            return self.await_space(ino);
        }
        let inode = self.inodes.get_mut(&ino).expect("just seen");
        let is_bare = |number: &u64| inode.has_given_up(*number);
        let (mut kept, mut lost): (Vec<u64>, Vec<u64>) = others.into_iter().partition(is_bare);
        let mut reserved = std::mem::take(&mut inode.reserved);
        let paid = usize::try_from(reserved.plain).unwrap_or(usize::MAX);
        if paid < lost.len() {
            inode.reserved += reserved.part(paid as u64, false);
            kept.extend(lost.drain(..paid));
        }
        inode.pages.on_flushed(&kept, false, false);
        inode.pages.on_flushed(&lost, false, true);
        inode.forget_idle();
        self.losses.note_pages(inode, lost.len(), errno);
        inode.reserved += reserved.part(promised.len() as u64, true);
        env.grants.unreserve(env.owner(ino.shard()), reserved);
        inode.starved_since = None;
        if (promised.is_empty() && kept.is_empty()) || !lost.is_empty() {
            inode.errors.note(errno);
        }
        self.pump(env, ino);
    }

    /// No frame can be had for `ino`: the driver has everybody evict and write back, then it is tried again.
    pub(crate) fn starve(&mut self, ino: InodeId) {
        if self.frameless.is_empty() {
            self.out.push(Effect::WantFrames);
        }
        if !self.frameless.contains(&ino) {
            self.frameless.push(ino);
        }
    }

    /// Frames are short: evicts clean pages, writes dirty ones back, and tries again what waits for frames.
    pub(crate) fn shrink(&mut self, env: &Env<'_>) {
        let (total, free) = env.pool.frame_counts();
        if free < env.pool.levels().low || !self.frameless.is_empty() {
            self.give_up_rewrite(env);
            self.evict(env, total);
        }
        for ino in std::mem::take(&mut self.frameless) {
            self.retry(env, ino);
            self.pump(env, ino);
        }
    }

    fn evict(&mut self, env: &Env<'_>, total: u64) {
        let want = usize::try_from(total / 16)
            .unwrap_or(usize::MAX)
            .max(BATCH_PAGES_MAX);
        let mut freed = 0;
        let mut inos: Vec<InodeId> = self
            .inodes
            .iter()
            .filter(|(_, i)| !i.pages.is_empty())
            .map(|(ino, _)| *ino)
            .collect();
        inos.sort_unstable();
        for ino in &inos {
            let inode = self.inodes.get_mut(ino).expect("just listed");
            let loading = inode.loading();
            freed += inode.pages.evict(want - freed, &loading, env.pool);
            if freed >= want {
                break;
            }
        }
        for ino in inos {
            let Some(inode) = self.inodes.get(&ino) else {
                continue;
            };
            if inode.pages.dirty_count() > 0 {
                self.add_goal(env, ino, Purpose::Background);
            } else if !inode.batches.is_empty() {
                // What is stored already may be committed.
                self.pump(env, ino);
            }
        }
    }

    /// Tries again what waits for sectors.
    pub(crate) fn try_starved(&mut self, env: &Env<'_>) {
        for ino in std::mem::take(&mut self.starved) {
            self.retry(env, ino);
            self.pump(env, ino);
        }
    }

    /// Somebody waits for frames.
    pub fn is_frameless(&self) -> bool {
        !self.frameless.is_empty()
    }

    /// Asserts that nobody waits for frames without being tried again. Without a lease nothing is tried.
    pub(crate) fn check_frames(&self) {
        if self.is_lapsed {
            return;
        }
        for (ino, inode) in &self.inodes {
            let mut parked = inode.parked.iter();
            if parked.any(|parked| parked.why == Waiting::Frames) {
                assert!(self.frameless.contains(ino), "{ino} is tried again");
            }
        }
    }
}

impl Inode {
    /// Sectors set aside for bytes that go into metadata, as all of a small file does: they come back with its Commits.
    fn returning_sectors(&self, now: Instant) -> u64 {
        let is_small = self.size <= limits::INLINE_SIZE_MAX;
        if !is_small || !self.has_work() || self.are_pieces_refused(now) {
            return 0;
        }
        let in_batches = self.batches.iter().map(|batch| batch.aside.plain);
        self.reserved.plain + in_batches.sum::<u64>()
    }
}
