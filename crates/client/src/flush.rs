//! Write-behind: dirty pages become runs on NSDs or pieces in a Commit, and then the owner's knowledge.
//!
//! Per inode: `take_dirty` -> batch (Storing -> Stored) -> one Commit at a time -> clean. The order of a
//! commit is DESIGN.md section 4: data written, NSDs flushed, then the Commit (`crate::commit`). Who waits for that is a goal
//! (`crate::goals`).

use std::collections::VecDeque;

use data::SetAside;
use types::{ByteRange, Duration, Errno, Extent, InodeId, Instant, NodeId, RangeMode, limits};

use crate::batch::{
    Batch, BatchState, cap_pieces, clip, numbers_of, put_back, store_pieces, whole_pieces,
};
use crate::claims::span_of;
use crate::destage::HASTY_PAGES_MAX;
use crate::env::{Env, TakenRun};
use crate::goals::Purpose;
use crate::losses::Losses;
use crate::pages::{DirtyPage, PAGE_SIZE, pieces_of};
use crate::promise::{keep_small, wanted_runs};
use crate::slice::{Effect, IoFailure, IoId, Slice};

/// Pages of one batch: 4 MiB.
pub(crate) const BATCH_PAGES_MAX: usize = 1024;
/// Pages of one inode on their way to disks.
const IN_FLIGHT_PAGES_MAX: usize = 32 << 8;
/// Extents that make a Commit worth while by themselves.
const COMMIT_EXTENTS_MIN: usize = 64;
/// Dirty data older than this is written back.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(5);
/// What was acknowledged and lost its sectors to a broken link waits so long for others.
pub(crate) const STARVED_MAX: Duration = Duration::from_secs(30);
/// Failed stores of an inode in a row before its writers hear of it.
const STORE_FAILURES_MAX: u32 = 3;
/// From one to the next: a bad moment of a disk is one failure, however many stores it hits.
pub(crate) const STORE_PAUSE: Duration = Duration::from_millis(500);

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

impl Slice {
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
            if inode.waits_to_store(env.now) && inode.pages.dirty_count() > 0 {
                self.failing.insert(ino);
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
            let bytes = ByteRange::at(page.number * PAGE_SIZE, PAGE_SIZE);
            page.is_whole(PAGE_SIZE)
                && inode.owns_page(page.number)
                && !inode.has_given_up(page.number)
                // Somebody was told that bytes of it are lost: nothing makes them the file's. What was written over all of it is another matter.
                && (page.is_all_dirty() || !inode.pages.has_lost(&bytes))
        };
        let (mut sectors, rest): (Vec<_>, Vec<_>) = dirty
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
        let mut rest_reserved = inode.reserved;
        let reserved = rest_reserved.part(sectors.len() as u64, is_promised);
        let with_sectors = rest.iter().filter(|page| !inode.has_given_up(page.number));
        let aside = rest_reserved.part(with_sectors.count() as u64, is_promised);
        let take = |pages: &[DirtyPage]| match wanted_runs(inode, pages) {
            none if none.is_empty() => Some(Vec::new()),
            wanted => env.grants.take(owner, &wanted, reserved),
        };
        let mut taken = take(&sectors);
        let is_short = taken.is_none();
        if is_short && !is_promised && !inode.is_size_dirty {
            // Those that have sectors do not wait for others that have none; but what makes a file longer goes in its order.
            let count = usize::try_from(reserved.sectors()).unwrap_or(usize::MAX);
            let others = sectors.split_off(sectors.len().min(count));
            taken = take(&sectors);
            put_back(inode, &others, env);
        }
        if is_short {
            self.lack_sectors(env, ino, is_promised);
        }
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        let Some(taken) = taken else {
            put_back(inode, &sectors, env);
            put_back(inode, &rest, env);
            return false;
        };
        if sectors.is_empty() && rest.is_empty() {
            return false;
        }
        inode.reserved = rest_reserved;
        let aside = match is_promised {
            true => {
                env.grants.unreserve(owner, aside);
                SetAside::default()
            }
            false => aside,
        };
        if is_promised && !sectors.is_empty() {
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
        !is_short
    }

    /// There are too few sectors for dirty pages.
    fn lack_sectors(&mut self, env: &Env<'_>, ino: InodeId, is_promised: bool) {
        let owner = env.owner(ino.shard());
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        match is_promised {
            true => inode.promise.pages_are_short(env.now),
            false => _ = inode.starved_since.get_or_insert(env.now),
        }
        if self.none_at(owner).is_none() {
            self.out.push(Effect::WantSpace(owner));
        }
        self.await_space(ino);
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
        let is_dropped = result.is_ok() && inode.batches[at].is_cut;
        match result {
            Ok(extents) if !is_dropped => {
                if !env.has_volatile_nsd {
                    let numbers = std::mem::take(&mut inode.batches[at].numbers);
                    inode.note_stored(&numbers);
                    inode.batches[at].numbers = numbers;
                }
                inode.batches[at].state = BatchState::Stored(extents);
            }
            ended => {
                // The sectors are used up; the pages are written again, elsewhere.
                let batch = inode.batches.swap_remove(at);
                let owner = env.owner(ino.shard());
                let failure = ended.err();
                if failure == Some(IoFailure::Unknown) {
                    env.grants.burn(owner, &batch.runs);
                } else {
                    env.grants.discard(owner, &batch.runs);
                }
                let is_lost =
                    failure.is_some_and(|f| inode.count_store_failure(env.now, f, &batch.numbers));
                if is_lost {
                    inode.lose(env, owner, &batch, &mut self.losses);
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
        let is_urgent = inode.is_urgent();
        if inode.pages.dirty_count() == 0 && inode.batches.is_empty() && !inode.is_committing {
            // They were of bytes that are there, or are lost, or were cut off.
            inode.forget_store_failures();
        }
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
        // Where frames are short, what is stored does not wait for what is being stored: it can be evicted then.
        let is_short = env.pool.frame_counts().1 < env.pool.levels().intake;
        let has_dirty = inode.pages.dirty_count() > 0 && !inode.pages.is_reached(until);
        // Its store has failed and is tried again soon: no size is told before its bytes.
        let is_put_off = !is_short && has_dirty && inode.waits_to_store(env.now);
        let is_awaited = is_put_off
            || (inode.batches.iter()).any(|b| {
                b.state == BatchState::Storing && inode.pages.has_older(&b.numbers, until)
            });
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

    /// Writes all dirty data back.
    pub(crate) fn write_all_back(&mut self, env: &Env<'_>) {
        for ino in self.dirty_inodes() {
            self.add_goal(env, ino, Purpose::Background);
        }
    }

    /// Inodes with something that an owner has not been told, in order.
    pub(crate) fn dirty_inodes(&self) -> Vec<InodeId> {
        let dirty = self.inodes.iter().filter(|(_, inode)| inode.is_dirty());
        let mut inos: Vec<InodeId> = dirty.map(|(ino, _)| *ino).collect();
        inos.sort_unstable();
        inos
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
        let waits = |ino: &InodeId| {
            let inode = self.inodes.get(ino);
            inode.is_some_and(|inode| inode.waits_to_store(env.now))
        };
        let is_due: Vec<InodeId> = self.failing.extract_if(.., |ino| !waits(ino)).collect();
        for ino in is_due {
            self.pump(env, ino);
        }
    }
}

impl crate::inode::Inode {
    /// A store of these pages, or the flush that makes it durable, has failed. True: that was tried often enough, and the bytes are lost.
    #[must_use]
    pub(crate) fn count_store_failure(
        &mut self,
        now: Instant,
        failure: IoFailure,
        numbers: &[u64],
    ) -> bool {
        self.failing_pages.extend(numbers);
        let since = *self.failing_since.get_or_insert(now);
        // A broken link ends nobody's writes, unless it breaks for long.
        if failure == IoFailure::Unknown && now.since(since) <= STARVED_MAX {
            return false;
        }
        if !self.waits_to_store(now) {
            self.store_failures += 1;
            self.store_failed_at = now;
        }
        self.store_failures > STORE_FAILURES_MAX
    }

    /// What was stored of these pages is as durable as its disks make it. Failures are over when all pages that have failed are: others
    /// may lie on disks that are well.
    pub(crate) fn note_stored(&mut self, numbers: &[u64]) {
        if self.failing_since.is_none() {
            return;
        }
        for number in numbers {
            self.failing_pages.remove(number);
        }
        // Also what was cut off, or lost, meanwhile.
        let mut failing = std::mem::take(&mut self.failing_pages);
        failing.retain(|number| self.is_dirty_page(*number) || self.pages.is_flying(*number));
        self.failing_pages = failing;
        if self.failing_pages.is_empty() {
            self.forget_store_failures();
        }
    }

    fn forget_store_failures(&mut self) {
        self.store_failures = 0;
        self.failing_since = None;
        self.failing_pages.clear();
    }

    /// The bytes of a batch are lost; its sectors are what the caller has made of them.
    pub(crate) fn lose(
        &mut self,
        env: &Env<'_>,
        owner: NodeId,
        batch: &Batch,
        losses: &mut Losses,
    ) {
        self.errors.note(Errno::EIO);
        // The others are not tried any more often for that: the disk is what it is.
        for number in &batch.numbers {
            self.failing_pages.remove(number);
        }
        self.pages.on_flushed(&batch.numbers, false, true);
        env.grants.unreserve(owner, batch.aside);
        self.forget_idle();
        losses.note_pages(self, batch.numbers.len(), Errno::EIO);
    }

    /// A store of it failed a moment ago.
    fn waits_to_store(&self, now: Instant) -> bool {
        self.store_failures > 0 && now.since(self.store_failed_at) < STORE_PAUSE
    }

    /// It is looked at when it is old: what is dirty then is written back.
    pub(crate) fn list_as_dirty(&mut self, list: &mut VecDeque<(Instant, InodeId)>, now: Instant) {
        if !std::mem::replace(&mut self.is_on_dirty_list, true) {
            list.push_back((now, self.ino));
        }
    }
}
