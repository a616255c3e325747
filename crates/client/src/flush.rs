//! Write-behind: dirty pages become runs on NSDs or pieces in a Commit, and then the owner's knowledge.
//!
//! Per inode: `take_dirty` -> batch (Storing -> Stored) -> one Commit at a time -> clean. The order of a
//! commit is DESIGN.md section 4: data written, NSDs flushed, then the Commit.
//!
//! A *goal* is somebody who waits until what is dirty now is committed: fsync, a revoke, a synchronous
//! write, a setattr or rename that must come after it, or age. Goals of applications end after two Commits
//! at the latest, so that a busy writer starves nobody; a revoke's goal ends when the range is clean (the
//! gate keeps new writes away).

use std::collections::VecDeque;

use data::SetAside;
use meta::{Commit, Op};
use types::{
    ByteRange, Duration, Errno, Extent, FrameRef, InodeId, Instant, Piece, RangeMode, Run,
    Timestamp, limits,
};

use crate::batch::{cap_pieces, clip, numbers_of, put_back, store_pieces, whole_pieces};
use crate::claims::{Front, span_of};
use crate::destage::{HASTY_PAGES_MANY, HASTY_PAGES_MAX};
use crate::env::{Env, TakenRun};
use crate::errors::Hears;
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::pages::{DirtyPage, PAGE_SIZE, parts_of, pieces_of};
use crate::promise::{keep_small, wanted_runs};
use crate::request::{Operation, Request, Response};
use crate::revoke::{FlushOutcome, RevokeId};
use crate::slice::{Effect, Input, IoFailure, IoId, Slice, slice_of};

/// Pages of one batch: 4 MiB.
pub(crate) const BATCH_PAGES_MAX: usize = 1024;
/// Pages of one inode on their way to disks.
const IN_FLIGHT_PAGES_MAX: usize = 32 << 8;
/// Extents that make a Commit worth while by themselves.
const COMMIT_EXTENTS_MIN: usize = 64;
/// Extents, pieces and bytes of pieces in one Commit: far below what an owner takes.
const COMMIT_EXTENTS_MAX: usize = 1024;
const COMMIT_PIECES_MAX: usize = 1024;
const COMMIT_PIECE_BYTES_MAX: usize = 256 << 10;
/// Dirty data older than this is written back.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(5);
/// What was acknowledged and lost its sectors to a broken link waits so long for others.
pub(crate) const STARVED_MAX: Duration = Duration::from_secs(30);
/// Failed stores of an inode in a row before its writers hear of it.
const STORE_FAILURES_MAX: u32 = 3;

/// Who waits for a write-back.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// fsync, or a synchronous write: answered when durable.
    Sync(Request),
    /// The tokens of a revoke go when it is done.
    Revoke(RevokeId),
    /// Written after the flush of a revoke that was about to end: the release waits for it.
    Late(RevokeId),
    /// A change by the owner (`Slice::ask_change`) that must come after what was written before it.
    Change(Box<(Op, Continuation)>),
    /// A rename that must come after its source's data.
    Rename(Box<Request>),
    /// Age or pressure.
    Background,
}

/// A write-back that somebody waits for.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) purpose: Purpose,
    /// What was dirty when it came (`Pages::mark_goal`).
    pub(crate) sequence: u64,
    /// Size and times were dirty: they go with this Commit of the inode, counted from its first.
    pub(crate) commit: u64,
    pub(crate) since: Instant,
}

impl Goal {
    /// Who waits, and what must come about: for `gupfs waiters`.
    pub(crate) fn what(&self) -> String {
        let Self {
            purpose,
            sequence,
            commit,
            ..
        } = self;
        format!("{purpose:?} (pages of sequence {sequence}, Commit {commit})")
    }

    /// The request that waits for it and may be given up.
    pub(crate) fn waiter(&self) -> Option<crate::request::Ticket> {
        match &self.purpose {
            // A synchronous write has happened: it is not told EINTR, or it would be done twice.
            Purpose::Sync(request) if !matches!(request.operation, Operation::Write { .. }) => {
                Some(request.ticket)
            }
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum BatchState {
    Storing,
    Stored(Vec<Extent>),
    /// With its extents where the Commit may be refused for what others bring.
    Committing(Vec<Extent>),
}

/// Pages on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    io: IoId,
    pub(crate) numbers: Vec<u64>,
    /// The file's bytes from its first page to its last, whatever of them it has.
    pub(crate) span: ByteRange,
    frames: Vec<FrameRef>,
    pub(crate) runs: Vec<Run>,
    pieces: Vec<Piece>,
    pub(crate) state: BatchState,
    /// The size was cut while it was on its way: it is written anew.
    pub(crate) is_cut: bool,
    /// Its pages are promised sectors; else none of them is.
    pub(crate) is_promised: bool,
    /// Whole pages that go as pieces.
    pub(crate) whole: Vec<u64>,
    /// They stay where they are then; else they go to sectors later.
    pub(crate) stays: bool,
    /// The first so many of `numbers` go to sectors, the others as pieces.
    pub(crate) sector_count: usize,
    /// Sectors that stay set aside for what goes as pieces until the owner has it (`crate::refused`).
    pub(crate) aside: SetAside,
    /// Its stores are flushed.
    pub(crate) is_flushed: bool,
}

impl Batch {
    pub(crate) fn page_count(&self) -> usize {
        self.numbers.len()
    }
}

/// What becomes a batch.
struct Prepared {
    /// Pages that go to sectors.
    sectors: Vec<DirtyPage>,
    /// Those that go as pieces.
    rest: Vec<DirtyPage>,
    /// See [`Batch`].
    whole: Vec<u64>,
    stays: bool,
    aside: SetAside,
    is_promised: bool,
}

/// What a running Commit carries beside its batches.
#[derive(Debug)]
pub(crate) struct RunningCommit {
    pub(crate) commit: Commit,
    pub(crate) modified: Option<Timestamp>,
    /// The file ends behind what it tells.
    pub(crate) is_partial: bool,
    /// It brings a rewrite, and nothing else.
    pub(crate) is_rewrite: bool,
}

impl Slice {
    /// fsync, fsyncdir, syncfs.
    pub(crate) fn fsync(&mut self, env: &Env<'_>, request: Request) {
        match request.operation {
            Operation::Fsync { ino, .. } => self.flush_for(env, ino, request),
            _ => self.sync_journal(request.ticket, Response::Done),
        }
    }

    /// Answers when this node's journal is durable: then so are the names made through this node, for
    /// what other owners executed was durable when they answered.
    fn sync_journal(&mut self, ticket: crate::request::Ticket, response: Response) {
        let own = self.placements[0];
        self.call(own, Ask::Sync, Continuation::Synced(ticket, response));
    }

    /// Answers `request` (fsync or a synchronous write) when the inode's data is durable.
    pub(crate) fn flush_for(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        self.add_goal(env, ino, Purpose::Sync(request));
    }

    /// Has the owner change the inode when its dirty state is committed.
    pub(crate) fn flush_before(&mut self, env: &Env<'_>, ino: InodeId, op: Op, then: Continuation) {
        self.add_goal(env, ino, Purpose::Change(Box::new((op, then))));
    }

    /// Runs a rename when its source's data is committed.
    pub(crate) fn flush_then(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let is_dirty = self.inodes.get(&ino).is_some_and(|i| i.is_dirty());
        if is_dirty {
            let purpose = Purpose::Rename(Box::new(request));
            self.add_goal(env, ino, purpose);
        } else {
            self.send_rename(request);
        }
    }

    fn send_rename(&mut self, request: Request) {
        let Operation::Rename { parent, .. } = &request.operation else {
            return;
        };
        let parent = *parent;
        if slice_of(parent) as u64 == self.index {
            self.rename_now(request);
        } else {
            self.out.push(Effect::ForSlice(
                parent,
                Input::RenameNow(Box::new(request)),
            ));
        }
    }

    pub(crate) fn add_goal(&mut self, env: &Env<'_>, ino: InodeId, purpose: Purpose) {
        let inode = self.inode(ino);
        let is_background = |goal: &Goal| matches!(goal.purpose, Purpose::Background);
        if matches!(purpose, Purpose::Background) && inode.goals.iter().any(is_background) {
            return self.pump(env, ino);
        }
        // A Commit under way does not have the newest.
        let commit = if inode.is_changed() {
            inode.commit_count + 1 + u64::from(inode.is_committing)
        } else if inode.commit.as_ref().is_some_and(|c| c.is_rewrite) {
            // Its pages are clean, but tokens do not go and sizes do not change before it has ended.
            inode.commit_count + 1
        } else {
            0
        };
        let sequence = inode.pages.mark_goal();
        inode.goals.push(Goal {
            purpose,
            sequence,
            commit,
            since: env.now,
        });
        self.pump(env, ino);
    }

    /// After a write: notes the age of the dirty data, and starts whole blocks on their way.
    pub(crate) fn write_behind(&mut self, env: &Env<'_>, ino: InodeId, written: ByteRange) {
        let inode = self.inodes.get_mut(&ino).expect("just written");
        inode.list_as_dirty(&mut self.dirty, env.now);
        let block = u64::from(limits::BLOCK_SIZE_DEFAULT);
        let end = written.end / block * block;
        let (total, free) = env.pool.frame_counts();
        // A writer that fills blocks does not come back to them. One that writes here and there may: its pages
        // wait for their age, and go out once for many writes.
        let is_near = written.begin.abs_diff(inode.write_end) < block || written.length() >= block;
        inode.write_end = written.end;
        let is_filled = written.begin / block != written.end / block && {
            let last = ByteRange::new(end - block, end);
            let pages = block / PAGE_SIZE;
            let dirty = pages - inode.pages.newly_dirty_count(&last);
            dirty * 8 >= pages * if is_near { 1 } else { 7 }
        };
        if is_filled && inode.pages.dirty_count() as u64 >= block / PAGE_SIZE {
            let whole = ByteRange::new(0, end);
            self.start_batches(env, ino, &whole, u64::MAX, false);
            self.pump(env, ino);
        } else if free < total / 2 && inode.pages.dirty_count() > BATCH_PAGES_MAX {
            self.start_batches(env, ino, &ByteRange::ALL, u64::MAX, false);
        }
    }

    /// Starts batches for the dirty pages of `range`, as far as the bound on pages in flight allows.
    /// `is_urgent`: somebody waits, so that a little data goes inside the Commit.
    pub(crate) fn start_batches(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        range: &ByteRange,
        until: u64,
        is_urgent: bool,
    ) {
        loop {
            let inode = self.inodes.get_mut(&ino).expect("the caller has it");
            if inode.is_held_back() {
                return;
            }
            let storing = inode
                .batches
                .iter()
                .filter(|b| b.state == BatchState::Storing);
            let in_flight: usize = storing.map(Batch::page_count).sum();
            if in_flight >= IN_FLIGHT_PAGES_MAX || inode.pages.dirty_count() == 0 {
                return;
            }
            self.zero_tail(env, ino);
            let inode = self.inodes.get_mut(&ino).expect("the caller has it");
            let dirty = inode
                .pages
                .take_dirty(range, BATCH_PAGES_MAX, until, env.pool);
            if dirty.is_empty() || !self.start_batch(env, ino, dirty, is_urgent) {
                return;
            }
        }
    }

    /// Behind the end of the file are zeros: where this node may write the rest of the last sector, the
    /// sector is whole.
    fn zero_tail(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        if inode.size.is_multiple_of(PAGE_SIZE) {
            return;
        }
        let tail = ByteRange::new(inode.size, inode.size.next_multiple_of(PAGE_SIZE));
        if inode.covers(RangeMode::Write, &tail) {
            // Without a frame for a frozen page the tail goes as a piece: no harm.
            let _ = inode.pages.zero_gap(&tail, env.pool);
        }
    }

    /// Turns dirty pages, all of them promised sectors or none, into a batch.
    pub(crate) fn start_batch_of(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        (dirty, is_promised): (Vec<DirtyPage>, bool),
        is_urgent: bool,
    ) -> bool {
        let owner = env.owner(ino.shard());
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let goes_without = is_promised && inode.promise.take_goes_without();
        let dirty = match goes_without {
            true => keep_small(inode, dirty, env),
            false => dirty,
        };
        let bytes: u64 = dirty
            .iter()
            .flat_map(|p| p.dirty())
            .map(ByteRange::length)
            .sum();
        // Bytes in metadata are few at a time: those that are there already, and a bounded number more.
        let fresh = numbers_of(&dirty)
            .filter(|n| !inode.hasty.contains(n))
            .count();
        let is_refused = inode.are_pieces_refused(env.now);
        let is_hasty = is_urgent && self.hasty_count + fresh <= HASTY_PAGES_MAX && !is_refused;
        let is_urgent = is_hasty || goes_without;
        let is_small = bytes <= limits::SYNC_INLINE_SIZE_MAX;
        let is_small_file = inode.size <= limits::INLINE_SIZE_MAX && !is_refused;
        let is_inline = is_small_file || (is_urgent && is_small);
        let is_whole = |page: &DirtyPage| {
            page.is_whole(PAGE_SIZE)
                && inode.owns_page(page.number)
                && !inode.has_given_up(page.number)
        };
        let (sectors, rest): (Vec<_>, Vec<_>) = dirty
            .into_iter()
            .partition(|page| !(is_inline && is_small) && is_whole(page));
        let rest = cap_pieces(inode, rest, env);
        let rest = inode.hold_refused(is_promised, rest, env);
        if sectors.is_empty() && rest.is_empty() {
            self.hold_parts(ino);
            return false;
        }
        let whole = whole_pieces(inode, &rest);
        // What had no sectors is the owner's to move: it would wait for some here, too. Of small files nothing is moved.
        let stays = goes_without || inode.size <= limits::INLINE_SIZE_MAX;
        let wanted = wanted_runs(inode, &sectors);
        let mut rest_reserved = inode.reserved;
        let reserved = rest_reserved.part(sectors.len() as u64, is_promised);
        let with_sectors = rest.iter().filter(|page| !inode.has_given_up(page.number));
        let aside = rest_reserved.part(with_sectors.count() as u64, is_promised);
        let taken = if wanted.is_empty() {
            Some(Vec::new())
        } else {
            env.grants.take(owner, &wanted, reserved)
        };
        let Some(taken) = taken else {
            put_back(inode, &sectors, env);
            put_back(inode, &rest, env);
            match is_promised {
                true => inode.promise.pages_are_short(env.now),
                false => _ = inode.starved_since.get_or_insert(env.now),
            }
            if self.none_at(owner).is_none() {
                self.out.push(Effect::WantSpace(owner));
            }
            self.await_space(ino);
            return false;
        };
        inode.reserved = rest_reserved;
        let aside = match is_promised {
            true => {
                env.grants.unreserve(owner, aside);
                SetAside::default()
            }
            false => aside,
        };
        if is_promised && !wanted.is_empty() {
            inode.promise.pages_are_stored();
        }
        let batch = Prepared {
            sectors,
            rest,
            whole,
            stays,
            aside,
            is_promised,
        };
        self.push_batch(env, ino, batch, &taken);
        true
    }

    /// Adds a batch, and starts its stores.
    fn push_batch(&mut self, env: &Env<'_>, ino: InodeId, batch: Prepared, taken: &[TakenRun]) {
        let io = IoId(self.draw_id());
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let numbers: Vec<u64> = batch
            .sectors
            .iter()
            .chain(&batch.rest)
            .map(|p| p.number)
            .collect();
        let size = inode.size;
        let mut pieces = Vec::new();
        for page in &batch.rest {
            let within = pieces_of(page, env.pool)
                .into_iter()
                .filter_map(|p| clip(p, size));
            pieces.extend(within);
            env.pool.release(page.frame);
        }
        let stores = store_pieces(taken, &batch.sectors);
        let state = if stores.is_empty() {
            BatchState::Stored(Vec::new())
        } else {
            BatchState::Storing
        };
        inode.batches.push(Batch {
            io,
            span: span_of(&numbers, size),
            numbers,
            frames: batch.sectors.iter().map(|p| p.frame).collect(),
            runs: taken.iter().map(|t| t.run).collect(),
            pieces,
            state,
            is_cut: false,
            is_promised: batch.is_promised,
            whole: batch.whole,
            stays: batch.stays,
            sector_count: batch.sectors.len(),
            aside: batch.aside,
            is_flushed: false,
        });
        if !stores.is_empty() {
            self.ios.insert(io, ino);
            self.out.push(Effect::Store(io, ino, stores));
        }
    }

    /// Runs reached their NSDs, or not.
    pub(crate) fn on_stored(
        &mut self,
        env: &Env<'_>,
        io: IoId,
        result: Result<Vec<Extent>, IoFailure>,
    ) {
        if self.on_rewrite_stored(env, io, &result) {
            return;
        }
        let ino = self.ios.remove(&io);
        let Some((ino, inode, at)) = ino.and_then(|ino| {
            let inode = self.inodes.get_mut(&ino)?;
            let at = inode.batches.iter().position(|b| b.io == io)?;
            Some((ino, inode, at))
        }) else {
            return self.forget_stores(env, vec![io]);
        };
        for frame in std::mem::take(&mut inode.batches[at].frames) {
            env.pool.release(frame);
        }
        let result = match result {
            Ok(_) if inode.batches[at].is_cut => Err(None),
            Ok(extents) => Ok(extents),
            Err(failure) => Err(Some(failure)),
        };
        let mut is_dropped = false;
        match result {
            Ok(extents) => {
                inode.store_failures = 0;
                inode.failing_since = None;
                inode.batches[at].state = BatchState::Stored(extents);
            }
            Err(failure) => {
                // The sectors are used up; the pages are written again, elsewhere.
                let batch = inode.batches.swap_remove(at);
                is_dropped = failure.is_none();
                let since = *inode.failing_since.get_or_insert(env.now);
                let is_old = env.now.since(since) > STARVED_MAX;
                match failure {
                    // A broken link ends nobody's writes, unless it breaks for long.
                    Some(IoFailure::Unknown) if !is_old => {}
                    Some(_) => inode.store_failures += 1,
                    None => {}
                }
                let owner = env.owner(ino.shard());
                if failure == Some(IoFailure::Unknown) {
                    env.grants.burn(owner, &batch.runs);
                } else {
                    env.grants.discard(owner, &batch.runs);
                }
                if inode.store_failures > STORE_FAILURES_MAX {
                    inode.errors.note(Errno::EIO);
                    inode.pages.on_flushed(&batch.numbers, false, true);
                    env.grants.unreserve(owner, batch.aside);
                    inode.forget_idle();
                    let count = batch.numbers.len();
                    self.losses.note_pages(inode, count, Errno::EIO);
                } else {
                    inode.write_again(env, &batch);
                }
            }
        }
        if is_dropped {
            self.forget_stores(env, vec![io]);
        }
        self.pump(env, ino);
    }

    /// These stores have ended well, and what they wrote will not be flushed: the driver need not remember them.
    pub(crate) fn forget_stores(&mut self, env: &Env<'_>, stores: Vec<IoId>) {
        if env.has_volatile_nsd && !stores.is_empty() {
            self.out.push(Effect::ForgetStores(stores));
        }
    }

    /// The size was cut: batches made before hold bytes that may be cut off. They are written anew.
    pub(crate) fn cut_batches(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inode(ino);
        for batch in &mut inode.batches {
            batch.is_cut |= !batch.is_stored();
        }
        let stored: Vec<Batch> = inode
            .batches
            .extract_if(.., |batch| matches!(batch.state, BatchState::Stored(_)))
            .collect();
        for batch in &stored {
            env.grants.discard(env.owner(ino.shard()), &batch.runs);
            inode.write_again(env, batch);
        }
        self.forget_stores(env, stored.iter().map(|batch| batch.io).collect());
    }

    /// Pages stopped being dirty without being written: the sectors set aside for them are free. Those for promised ranges
    /// first: there are always others for these.
    pub(crate) fn give_back(&mut self, env: &Env<'_>, ino: InodeId, pages: usize) {
        let owner = env.owner(ino.shard());
        let inode = self.inode(ino);
        let with_sectors = (pages as u64).saturating_sub(inode.forget_idle());
        let part = inode.reserved.part(with_sectors, true);
        env.grants.unreserve(owner, part);
    }

    /// Drives an inode's write-back: starts batches that a goal needs, commits, ends goals.
    pub(crate) fn pump(&mut self, env: &Env<'_>, ino: InodeId) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let has_goal = !inode.goals.is_empty();
        let is_urgent = inode.is_waited_for();
        // What became dirty after the last goal goes by itself: a busy writer does not hold fsync up.
        let until = inode.awaited_until();
        if has_goal && inode.pages.dirty_count() > 0 && !inode.pages.is_reached(until) {
            self.start_batches(env, ino, &ByteRange::ALL, until, is_urgent);
        }
        self.end_goals(env, ino);
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        if inode.is_committing || inode.is_held_back() {
            return;
        }
        let has_goal = !inode.goals.is_empty();
        let is_awaited = inode
            .batches
            .iter()
            .any(|b| b.state == BatchState::Storing && inode.pages.has_older(&b.numbers, until));
        // Where frames are short, what is stored does not wait for what is being stored: it can be evicted then.
        let is_short = env.pool.frame_counts().1 < env.pool.levels().requests;
        let front = inode.front(is_short);
        let may_go = inode.batches.iter().filter(|batch| front.admits(batch));
        let stored: usize = may_go.map(Batch::extent_count).sum();
        let is_due = if is_short {
            true
        } else if has_goal {
            !is_awaited
        } else {
            stored >= COMMIT_EXTENTS_MIN
        };
        let needs_attributes = inode.goals.iter().any(|g| g.commit > inode.commit_count);
        let has_stored = inode.batches.iter().any(|b| front.admits(b));
        // What there is to tell goes with what is waited for, or waits for bytes in front of it, when these are stored.
        let is_held = |batch: &Batch| batch.is_stored() && !front.admits(batch);
        let is_early = is_awaited || inode.batches.iter().any(is_held) || inode.holds_attributes();
        if is_due && (has_stored || needs_attributes && !is_early) {
            self.start_commit(env, ino, front);
        } else {
            self.commit_rewrite_of(env, ino);
        }
    }

    fn start_commit(&mut self, env: &Env<'_>, ino: InodeId, front: Front) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let Some(attr) = inode.attr else { return };
        let mut extents = Vec::new();
        let mut pieces = Vec::new();
        let mut piece_bytes = 0;
        let mut stores = Vec::new();
        // Pieces of others may be refused for want of room: what is promised goes by itself, with the size it needs.
        let may_go = |is_promised| {
            let mut batches = inode.batches.iter();
            batches.any(|b| b.is_promised == is_promised && front.admits(b))
        };
        let (has_promised, has_others) = (may_go(true), may_go(false));
        let is_promised = inode.promise.take_turn(has_promised, has_others);
        let may_be_refused = !is_promised && inode.batches.iter().any(Batch::has_pieces);
        let mut carried = 0;
        let grows = inode.is_size_dirty;
        if grows {
            inode.sort_batches();
        }
        for batch in &mut inode.batches {
            if batch.is_promised != is_promised || !front.admits(batch) {
                continue;
            }
            let BatchState::Stored(stored) = &mut batch.state else {
                unreachable!("what is admitted is stored");
            };
            let bytes: usize = batch.pieces.iter().map(|p| p.bytes.len()).sum();
            let is_first = extents.is_empty() && pieces.is_empty();
            let fits = extents.len() + stored.len() <= COMMIT_EXTENTS_MAX
                && pieces.len() + batch.pieces.len() <= COMMIT_PIECES_MAX
                && piece_bytes + bytes <= COMMIT_PIECE_BYTES_MAX;
            if !is_first && !fits {
                if grows {
                    break;
                }
                continue;
            }
            piece_bytes += bytes;
            pieces.append(&mut batch.pieces);
            if !stored.is_empty() && !batch.is_flushed {
                stores.push(batch.io);
            }
            let kept = match may_be_refused {
                true => stored.clone(),
                false => Vec::new(),
            };
            extents.append(stored);
            carried = carried.max(batch.span.end);
            batch.state = BatchState::Committing(kept);
        }
        extents.sort_by_key(|e: &Extent| e.file_sector);
        let size = inode.size_to_tell(carried);
        let is_partial = inode.is_size_dirty && size != Some(inode.size);
        let commit = Commit {
            ino,
            generation: attr.generation,
            size_generation: attr.size_generation,
            size,
            modified: inode.modified,
            kill_set_id: inode.kill_set_id,
            drops_rights: inode.drops_rights,
            extents,
            pieces,
        };
        let running = RunningCommit {
            commit,
            modified: inode.modified,
            is_partial,
            is_rewrite: false,
        };
        self.run_commit(env, ino, running, stores);
    }

    /// Sends a Commit when these stores cannot be forgotten by their disks. The caller sees to it that no other one is under way.
    pub(crate) fn run_commit(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        running: RunningCommit,
        stores: Vec<IoId>,
    ) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        assert!(!inode.is_committing, "one Commit of an inode at a time");
        inode.is_committing = true;
        inode.commit = Some(Box::new(running));
        if env.has_volatile_nsd && !stores.is_empty() {
            let io = IoId(self.draw_id());
            self.ios.insert(io, ino);
            self.out.push(Effect::Flush(io, stores));
        } else {
            self.send_commit(ino);
        }
    }

    fn send_commit(&mut self, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("it is committing");
        let running = inode.commit.as_mut().expect("it is committing");
        // The pages stay cached until the answer: the Commit's own copy is not needed for a repeat, which
        // the driver does with the encoded question.
        let commit = running.commit.clone();
        let ask = Ask::Op {
            op: Op::Commit(commit),
            durable: false,
        };
        self.call(ino.shard(), ask, Continuation::Commit(ino));
    }

    /// The NSDs of a commit's stores are flushed, or lost what was written.
    pub(crate) fn on_nsds_flushed(
        &mut self,
        env: &Env<'_>,
        io: IoId,
        result: Result<(), IoFailure>,
    ) {
        let Some(ino) = self.ios.remove(&io) else {
            return;
        };
        match result {
            Ok(()) => self.send_commit(ino),
            // Written again, elsewhere: a server restarted between write and flush.
            Err(_) => self.end_commit(env, ino, Err(None)),
        }
    }

    /// The owner has the Commit, or refused it.
    pub(crate) fn on_committed(&mut self, env: &Env<'_>, ino: InodeId, answer: Answer) {
        let result = match answer.body {
            Body::Op(meta::Reply::Attr(attr)) => Ok(attr),
            Body::Op(meta::Reply::Error(errno)) | Body::Refused(errno) => Err(Some(errno)),
            // The size was changed meanwhile: the bytes are still ours, and go under the new size. Another node may
            // have changed it while we held no more than the range: then nobody has told us before.
            Body::Op(meta::Reply::Resized(attr)) => {
                self.inode(ino).learn_attr(&attr);
                Err(None)
            }
            Body::Op(meta::Reply::Stale) => Err(Some(Errno::ESTALE)),
            _ => Err(Some(Errno::EPROTO)),
        };
        self.end_commit(env, ino, result);
    }

    /// `Err(None)`: write the pages again. `Err(Some(errno))`: they are lost; tell fsync and close.
    fn end_commit(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        result: Result<types::Attr, Option<Errno>>,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let Some(running) = inode.commit.take() else {
            return;
        };
        inode.is_committing = false;
        inode.commit_count += 1;
        if running.is_rewrite {
            self.end_rewrite(env, ino, result);
            return self.go_on(env, ino);
        }
        let done: Vec<Batch> = inode
            .batches
            .extract_if(.., |b| matches!(b.state, BatchState::Committing(_)))
            .collect();
        if result == Err(Some(Errno::ENOSPC)) && inode.are_pieces_in(&running.commit, &done) {
            self.keep_refused(env, ino, done);
            self.tell_again(env, ino);
            return self.go_on(env, ino);
        }
        match result {
            Ok(attr) => {
                for batch in &done {
                    env.grants.committed(env.owner(ino.shard()), &batch.runs);
                    env.grants.unreserve(env.owner(ino.shard()), batch.aside);
                    inode.pages.on_flushed(&batch.numbers, true, false);
                    for run in parts_of(&batch.numbers, |a, b| a + 1 == b) {
                        let bytes = ByteRange::at(run[0] * PAGE_SIZE, run.len() as u64 * PAGE_SIZE);
                        inode.forget_map(&bytes);
                    }
                }
                self.hasty_count = inode.note_hasty(self.hasty_count, &done);
                inode.note_taken(&done);
                if running.modified == inode.modified {
                    inode.modified = None;
                }
                if running.commit.drops_rights {
                    inode.drops_rights = false;
                }
                if running.commit.kill_set_id == inode.kill_set_id {
                    inode.kill_set_id = None;
                }
                inode.learn_attr(&attr);
                if running.is_partial {
                    inode.await_next_commit();
                }
                // Also what is stored and waits for what is in front of it, or for the next Commit.
                let has_later = inode.pages.dirty_count() > 0
                    || !inode.hasty.is_empty()
                    || !inode.batches.is_empty()
                    || inode.is_size_dirty;
                if has_later {
                    inode.list_as_dirty(&mut self.dirty, env.now);
                }
            }
            Err(errno) => {
                let owner = env.owner(ino.shard());
                for batch in &done {
                    env.grants.discard(owner, &batch.runs);
                    match errno {
                        None => inode.write_again(env, batch),
                        Some(errno) => {
                            env.grants.unreserve(owner, batch.aside);
                            inode.pages.on_flushed(&batch.numbers, false, true);
                            let count = batch.numbers.len();
                            self.losses.note_pages(inode, count, errno);
                        }
                    }
                }
                if let Some(errno) = errno {
                    inode.errors.note(errno);
                    inode.forget_idle();
                    inode.forget_refused();
                }
            }
        }
        match result {
            Ok(_) => self.note_committed(env, ino, &running.commit),
            Err(None) => self.tell_again(env, ino),
            Err(Some(_)) => {}
        }
        if !self.frameless.is_empty() {
            // Pages are clean by it.
            self.out.push(Effect::ForSlice(ino, Input::Shrink));
        }
        if self.hasty_count > HASTY_PAGES_MANY {
            self.destage(env, ino);
        }
        self.go_on(env, ino);
    }

    /// A Commit is to be made again. What it was to tell beside bytes goes with the next one, and so does who waits for it.
    fn tell_again(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("its Commit has ended");
        if !inode.is_changed() {
            return;
        }
        let commit_count = inode.commit_count;
        let waiting = inode.goals.iter_mut();
        let waiting = waiting.filter(|goal| goal.commit == commit_count);
        waiting.for_each(|goal| goal.commit += 1);
        inode.list_as_dirty(&mut self.dirty, env.now);
    }

    /// A Commit has ended: who waits for that goes on.
    fn go_on(&mut self, env: &Env<'_>, ino: InodeId) {
        self.pump(env, ino);
        self.retry(env, ino);
        self.rest(ino);
        self.drop_if_gone(env, ino);
    }

    /// Ends the goals that are reached.
    fn end_goals(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        if inode.goals.is_empty() {
            return;
        }
        let commit_count = inode.commit_count;
        let work = inode.work();
        let pages = &work.pages;
        let is_over =
            |goal: &mut Goal| pages.is_reached(goal.sequence) && goal.commit <= commit_count;
        let done: Vec<Goal> = work.goals.extract_if(.., is_over).collect();
        if done.is_empty() {
            return;
        }
        // What was written meanwhile was old before, and did not become a goal beside this one.
        if inode.goals.is_empty() && inode.is_dirty() {
            inode.list_as_dirty(&mut self.dirty, env.now);
        }
        let is_lost = inode.errors.is_untold();
        for goal in done {
            match goal.purpose {
                Purpose::Sync(request) => self.end_sync(env, ino, request),
                Purpose::Revoke(revoke) => {
                    let outcome = match is_lost {
                        false => FlushOutcome::Committed,
                        true => FlushOutcome::Lost,
                    };
                    self.on_revoke_flushed(env, ino, revoke, outcome);
                }
                Purpose::Late(revoke) => self.finish_release(env, ino, revoke),
                Purpose::Change(change) => {
                    let (op, then) = *change;
                    self.ask_change(ino, op, then);
                }
                // What it would replace may be good.
                Purpose::Rename(request) => match self.inode(ino).errors.take_untold() {
                    Some(errno) => self.fail(request.ticket, errno),
                    None => self.send_rename(*request),
                },
                Purpose::Background => {}
            }
        }
        self.retry(env, ino);
    }

    fn end_sync(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let error = match &request.operation {
            Operation::Fsync { handle, .. } | Operation::Write { handle, .. } => {
                self.tell_error(ino, *handle, Hears::Sync)
            }
            _ => self.inode(ino).errors.take_untold(),
        };
        if let Some(errno) = error {
            return self.reply_written(env, request.ticket, Response::Error(errno));
        }
        let response = match &request.operation {
            Operation::Write { payload, .. } => Response::Written(payload.length),
            _ => Response::Done,
        };
        self.sync_journal(request.ticket, response);
    }

    /// Writes back what has been dirty for long, and tries again what waits for frames.
    pub(crate) fn on_tick(&mut self, env: &Env<'_>) {
        self.end_awaited_opens(env);
        while let Some((since, ino)) = self.dirty.front().copied() {
            if env.now.since(since) < DIRTY_AGE_MAX {
                break;
            }
            self.dirty.pop_front();
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.is_on_dirty_list = false;
                let is_dirty = inode.is_dirty();
                let has_destaged = self.destage(env, ino);
                if is_dirty && !has_destaged {
                    self.add_goal(env, ino, Purpose::Background);
                }
                self.keep_on_dirty_list(env, ino);
            }
        }
        self.try_starved(env);
        self.try_held(env);
    }
}

impl crate::inode::Inode {
    /// It is looked at when it is old: what is dirty then is written back.
    pub(crate) fn list_as_dirty(&mut self, list: &mut VecDeque<(Instant, InodeId)>, now: Instant) {
        if !std::mem::replace(&mut self.is_on_dirty_list, true) {
            list.push_back((now, self.ino));
        }
    }
}

impl Batch {
    pub(crate) const fn is_stored(&self) -> bool {
        matches!(self.state, BatchState::Stored(_))
    }

    /// Extents and pieces that wait for a Commit.
    pub(crate) fn stored_count(&self) -> usize {
        if self.is_stored() {
            self.extent_count() + self.pieces.len()
        } else {
            0
        }
    }

    /// It carries bytes that go with the Commit.
    pub(crate) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    fn extent_count(&self) -> usize {
        match &self.state {
            BatchState::Stored(extents) => extents.len(),
            BatchState::Storing | BatchState::Committing(_) => 0,
        }
    }
}
