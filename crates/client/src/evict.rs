//! Inodes that nobody uses here, forgotten beyond a limit: a scan of millions of files must not grow the daemon.
//!
//! ```text
//! known --idle, beyond the limit--> pruned --the kernel forgets it, or it does not--> tokens given up --released--> forgotten
//!   ^                                                                                                             |
//!   '----------------------------------------- anything about it ------------------------------------------------'
//! ```
//! The kernel is asked first to forget what it does not use (PRUNE): many with one notification, and what it has forgotten needs none
//! when its tokens go. What it keeps (it is in use there, or the kernel is older than 6.18) is notified; its lookups and kind stay.
//!
//! On a node that is alone the kernel is neither asked nor notified of files that have never been read through its page cache: it goes on
//! believing attributes that nobody but itself changes. So a scan of any length makes the kernel forget nothing: while that forgets anything, it
//! believes no attributes of a listing or lookup that is on its way. Beyond `limits::COLD_INODE_COUNT_MAX` of these it is asked after all.
//! Of these is also remembered whether there is no access control list, for `ls -l` asks for that of each file.
//!
//! Invariants
//! - Only what is not open, dirty, gated or on its way anywhere is forgotten, and nothing of it is cached any more, in the
//!   kernel neither, but attributes where no other node ever comes: its tokens are released as for any revoke.
//! - An inode that is known again takes up no token of before ([`token::Holder::forgotten`]): the release may still be on
//!   its way. Nor does it believe an answer that was asked for before (`epoch_floor` begins its counts).
//! - Of an inode that the kernel knows the number of its lookups stays: a later revoke must know that there is
//!   something to notify. These are as many as the kernel's own inodes, each a hundredth of that.
//! - At most `PER_TICK` at each tick. Which ones: a clock over all of them. Who was used since the hand passed stays for
//!   another turn, and a directory while there are files: at most one turn for each round, and two looks for each one that goes.
//!
//! What this deliberately does not do: count bytes. Pages have the pool's limit; the names of directories count here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustc_hash::{FxHashMap, FxHashSet};
use types::{Duration, FileKind, InodeId, Instant, ShardId, TokenNumber, limits};

use crate::belief::SEVERAL;
use crate::env::Env;
use crate::goals::Purpose;
use crate::inode::Inode;
use crate::names::{Continuation, NAMES_TOKEN};
use crate::request::Notice;
use crate::slice::{Effect, SLICE_COUNT, Slice, home_inode};

/// Inodes that were listed or looked at and no more, of which a slice may know as many as one that has been read or written: they take a
/// third of the memory.
const LIGHT_COUNT: usize = 3;
/// Names that a slice may know for each inode it may know.
const NAMES_PER_INODE: usize = 4;
/// Inodes that are looked at at one tick.
const PER_TICK: usize = 256;
/// An inode whose release takes longer than so many visits, one a tick, stays for this round.
const VISIT_COUNT_MAX: u32 = 50;
/// After so many visits the kernel has not forgotten what it was asked to: it is in use there.
const PRUNE_VISIT_COUNT: u32 = 5;
/// Inodes of one PRUNE.
const PRUNE_COUNT_MAX: usize = 1024;
/// Rounds begin so far apart, those of all slices at the same moments.
const ROUND: Duration = Duration::from_millis(100);
/// The clock has no more entries than so many beside two for each inode: those of inodes that have gone are dropped.
const CLOCK_SLACK: usize = 256;
/// Where there is nothing to forget nobody looks again before.
const PAUSE: Duration = Duration::from_millis(1000);

/// What is left of a forgotten inode that the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cold {
    pub(crate) lookup_count: u64,
    pub(crate) kind: FileKind,
    /// The kernel has not been told to drop what it knows.
    pub(crate) is_believed: bool,
    /// No other node changes it, and it had no access control list: `ls -l` asks for those of all that it shows.
    pub(crate) has_no_acl: bool,
}

/// Inodes on their way out.
#[derive(Debug)]
pub(crate) struct Eviction {
    /// Of all inodes together ([`Slice::inode_weight`]).
    pub(crate) weight_max: usize,
    /// Chosen, and how often each was looked at since.
    chosen: VecDeque<(InodeId, u32)>,
    /// All inodes that are known, and when the hand was at each last. Some have gone meanwhile.
    clock: VecDeque<(InodeId, Instant)>,
    /// The kernel takes PRUNE.
    prunes: bool,
    /// Not before.
    next: Instant,
    /// The newest states of each shard that were forgotten.
    floors: FxHashMap<ShardId, TokenNumber>,
    /// No inode that was forgotten had a count of losses or tokens as high as this.
    epoch_floor: u64,
    /// Those of `Slice::cold`, oldest first; some have gone meanwhile.
    cold_order: VecDeque<InodeId>,
    /// The kernel is not asked to forget any of them before.
    next_cold: Instant,
    /// Of the last input.
    pub(crate) now: Instant,
    /// Inodes that need more than what is remembered of any.
    work_count: Arc<AtomicUsize>,
}

impl Eviction {
    pub(crate) fn new() -> Self {
        Self {
            weight_max: limits::INODE_COUNT_MAX / SLICE_COUNT * LIGHT_COUNT,
            chosen: VecDeque::new(),
            clock: VecDeque::new(),
            prunes: false,
            next: Instant(0),
            floors: FxHashMap::default(),
            epoch_floor: 0,
            cold_order: VecDeque::new(),
            next_cold: Instant(0),
            now: Instant(0),
            work_count: Arc::default(),
        }
    }

    /// Names that the slice may know.
    const fn names_max(&self) -> usize {
        self.weight_max.div_ceil(LIGHT_COUNT) * NAMES_PER_INODE
    }

    /// An inode that is known from now on.
    pub(crate) fn revive(&mut self, ino: InodeId, cold: Option<Cold>) -> Box<Inode> {
        let mut inode = Box::new(Inode::new(ino, Arc::clone(&self.work_count)));
        self.clock.push_back((ino, self.now));
        if let Some(floor) = self.floors.get(&ino.shard()) {
            inode.holder = token::Holder::forgotten(*floor);
        }
        inode.used_at = self.now;
        inode.loss_count = self.epoch_floor;
        inode.names_epoch = self.epoch_floor * NAMES_TOKEN;
        if let Some(cold) = cold {
            inode.lookup_count = cold.lookup_count;
            inode.kind = Some(cold.kind);
            if cold.is_believed {
                // Who was shown its attributes is forgotten.
                inode.believed_by = SEVERAL;
            }
        }
        inode
    }
}

impl Inode {
    /// What it is, as far as this node knows.
    pub(crate) fn known_kind(&self) -> FileKind {
        let kind = self.attr.map(|attr| attr.kind).or(self.kind);
        kind.unwrap_or(FileKind::File)
    }

    /// Its part of [`Slice::inode_weight`].
    const fn weight(&self) -> usize {
        match self.has_work() {
            true => LIGHT_COUNT,
            false => 1,
        }
    }

    /// For a node that is alone: what has changed its list since then has told its attributes here.
    fn is_known_without_acl(&self) -> bool {
        self.was_current && self.attr.is_some_and(|attr| !attr.has_acl())
    }

    fn last_use(&self) -> Instant {
        self.shown_at
            .last()
            .map_or(self.used_at, |at| at.max(self.used_at))
    }

    /// Nobody uses it here, and nothing of it has to be told or waited for. It may have tokens.
    fn is_spare(&self) -> bool {
        let is_nameless = self.is_gone || self.attr.is_some_and(|attr| attr.nlink == 0);
        // What the owner takes to be open it hears otherwise of with the release of a token under which the name cannot go unseen.
        let is_kept_open = self.is_taken_open && !self.is_surely_named();
        let is_kept = is_kept_open || self.is_linkable || self.errors.is_untold();
        let is_told = self.unwritten_replies == 0 && self.unshown.is_empty();
        let has_work = !self.goals.is_empty() || !self.hasty.is_empty() || self.resize_count > 0;
        let is_asked = self.is_map_asked || self.is_on_dirty_list || self.starved_since.is_some();
        let is_waiting = has_work || is_asked || self.failing_since.is_some();
        self.is_unused() && is_told && !(is_nameless || is_kept || is_waiting)
    }
}

impl Slice {
    /// How many inodes this node may know without using them, in all its slices; three times as many of which nothing is known but their
    /// attributes. For tests and settings.
    pub fn limit_inodes(&mut self, count: usize) {
        self.eviction.weight_max = count.div_ceil(SLICE_COUNT) * LIGHT_COUNT;
    }

    /// Entries of a listing that can be known without that the first have to go for the last.
    pub(crate) const fn room_for_entries(&self) -> usize {
        self.eviction.weight_max * SLICE_COUNT / 4 * 3
    }

    /// How many times the memory of an inode that was only looked at the inodes of this slice take.
    pub(crate) fn inode_weight(&self) -> usize {
        let heavy = self.eviction.work_count.load(Ordering::Relaxed);
        self.inodes.len() + (LIGHT_COUNT - 1) * heavy
    }

    /// Forgotten inodes that the kernel knows.
    pub fn cold_count(&self) -> usize {
        self.cold.len()
    }

    /// The kernel takes [`Notice::Prune`]: since 6.18.
    pub fn prune_inodes(&mut self) {
        self.eviction.prunes = true;
    }

    #[cfg(test)]
    pub(crate) fn is_evicting(&self) -> bool {
        !self.eviction.chosen.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn clock_len(&self) -> usize {
        self.eviction.clock.len()
    }

    /// Forgets what is not used beyond the limit.
    pub(crate) fn evict_inodes(&mut self, env: &Env<'_>) {
        self.tidy_clock();
        self.prune_cold(env.now);
        let is_over = self.inode_weight() > self.eviction.weight_max
            || self.named_count > self.eviction.names_max();
        if self.is_lapsed {
            // Releases would wait for the lease.
            for (ino, _) in std::mem::take(&mut self.eviction.chosen) {
                self.keep(ino);
            }
            return;
        }
        let is_due = is_over && env.now >= self.eviction.next;
        if self.eviction.chosen.is_empty() && !is_due {
            return;
        }
        let asked: FxHashSet<InodeId> = self.calls.values().filter_map(concerned).collect();
        if self.eviction.chosen.is_empty() {
            self.choose(env, &asked);
        }
        for _ in 0..self.eviction.chosen.len().min(PER_TICK) {
            let (ino, visits) = self.eviction.chosen.pop_front().expect("so many are there");
            let is_asked = asked.contains(&ino) || visits >= VISIT_COUNT_MAX;
            let mut goes = is_asked || self.evict_one(env, ino, visits);
            let has_none_left = || {
                let inode = self.inodes.get(&ino);
                inode.is_some_and(|i| !i.is_revoking() && self.may_go_silently(i))
            };
            if !goes && has_none_left() {
                // Its tokens have gone at once.
                goes = self.evict_one(env, ino, visits);
            }
            if goes {
                self.keep(ino);
            } else {
                self.eviction.chosen.push_back((ino, visits + 1));
            }
        }
    }

    /// The kernel is asked to forget what was chosen: all of it at one moment, which is the same for all slices, for a listing or lookup
    /// that is on its way while the kernel forgets anything brings no attributes that it believes.
    fn prune(&mut self) {
        if !self.eviction.prunes {
            return;
        }
        let chosen = self.eviction.chosen.iter().map(|(ino, _)| *ino);
        let is_asked = |inode: &Inode| inode.lookup_count > 0 && !self.may_go_silently(inode);
        let known: Vec<_> = chosen.filter(|ino| is_asked(&self.inodes[ino])).collect();
        for inos in known.chunks(PRUNE_COUNT_MAX) {
            let inos = inos.to_vec();
            self.out.push(Effect::Notify(None, Notice::Prune { inos }));
        }
    }

    /// The kernel may keep what it knows of it when it is forgotten here: nobody else changes that, and there are no pages, about which rules go by
    /// what is known here.
    fn may_go_silently(&self, inode: &Inode) -> bool {
        // Names of directories go by their tokens, and who reads a symbolic link asks for nothing before.
        let is_file = inode.known_kind() == FileKind::File;
        self.is_alone() && self.eviction.prunes && !inode.may_have_pages && is_file
    }

    /// The kernel knows too many inodes that are forgotten here.
    fn prune_cold(&mut self, now: Instant) {
        const COUNT_MAX: usize = limits::COLD_INODE_COUNT_MAX / SLICE_COUNT;
        let eviction = &mut self.eviction;
        let is_over = self.cold.len() > COUNT_MAX && now >= eviction.next_cold;
        if !is_over || !eviction.prunes {
            return;
        }
        // The same moments for all slices, as of other rounds.
        eviction.next_cold = Instant((now.0 / PAUSE.0 + 1) * PAUSE.0);
        let mut asked = Vec::new();
        while asked.len() < COUNT_MAX / 8
            && let Some(ino) = eviction.cold_order.pop_front()
        {
            if self.cold.contains_key(&ino) {
                asked.push(ino);
            }
        }
        // Some of these it will keep.
        eviction.cold_order.extend(&asked);
        for inos in asked.chunks(PRUNE_COUNT_MAX) {
            let inos = inos.to_vec();
            self.out.push(Effect::Notify(None, Notice::Prune { inos }));
        }
    }

    pub(crate) fn note_cold(&mut self, ino: InodeId, cold: Cold) {
        self.cold.insert(ino, cold);
        let order = &mut self.eviction.cold_order;
        order.push_back(ino);
        if order.len() > 2 * self.cold.len() + CLOCK_SLACK {
            let mut seen = FxHashSet::default();
            order.retain(|ino| self.cold.contains_key(ino) && seen.insert(*ino));
        }
    }

    /// It does not go in this round, or has gone.
    fn keep(&mut self, ino: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && std::mem::take(&mut inode.is_chosen)
        {
            self.eviction.clock.push_back((ino, self.eviction.now));
        }
    }

    /// What comes and goes below the limit leaves entries in the clock that nobody looks at.
    fn tidy_clock(&mut self) {
        let clock = &mut self.eviction.clock;
        if clock.len() <= 2 * self.inodes.len() + CLOCK_SLACK {
            return;
        }
        let mut seen = FxHashSet::default();
        clock.retain(|(ino, _)| self.inodes.contains_key(ino) && seen.insert(*ino));
    }

    /// Chooses those that were not used for the longest, files before directories: their names go with one notification for all
    /// names of the mount. Names of directories go beyond their own limit.
    fn choose(&mut self, env: &Env<'_>, asked: &FxHashSet<InodeId>) {
        let (weight, most) = (self.inode_weight(), self.eviction.weight_max);
        let mut excess = match weight > most {
            true => weight - (most - most / 8),
            false => 0,
        };
        let mut directories = Vec::new();
        let mut chosen = Vec::new();
        for _ in 0..self.eviction.clock.len() {
            if excess == 0 {
                break;
            }
            let (ino, at) = self.eviction.clock.pop_front().expect("so many are there");
            let Some(inode) = self.inodes.get(&ino) else {
                continue;
            };
            let is_used = ino == InodeId::ROOT || inode.last_use() > at || asked.contains(&ino);
            if !inode.is_chosen && inode.has_work() {
                self.rest(ino);
            }
            let inode = &self.inodes[&ino];
            if inode.is_chosen {
                // Another entry of the same one: gone and back since.
            } else if is_used || !inode.is_spare() {
                self.eviction.clock.push_back((ino, env.now));
            } else if inode.known_kind() == FileKind::Directory {
                directories.push((ino, at));
            } else {
                excess = excess.saturating_sub(inode.weight());
                self.inode(ino).is_chosen = true;
                chosen.push((ino, 0));
            }
        }
        for (ino, at) in directories {
            if excess > 0 {
                let inode = self.inode(ino);
                excess = excess.saturating_sub(inode.weight());
                inode.is_chosen = true;
                chosen.push((ino, 0));
            } else {
                self.eviction.clock.push_back((ino, at));
            }
        }
        let rounds = env.now.0 / ROUND.0 + 1;
        self.eviction.next = match chosen.is_empty() {
            true => env.now + PAUSE,
            false => Instant(rounds * ROUND.0),
        };
        self.eviction.chosen.extend(chosen);
        self.prune();
        self.drop_names(self.eviction.names_max());
    }

    /// Forgets names of directories beyond `max`, of those first that were used longest ago: they are asked for anew.
    fn drop_names(&mut self, max: usize) {
        let known = self
            .inodes
            .values()
            .map(|inode| (inode.last_use(), inode.ino, inode.name_count()));
        let mut known: Vec<_> = known.filter(|(_, _, count)| *count > 0).collect();
        let mut sum: usize = known.iter().map(|(_, _, count)| count).sum();
        if sum > max {
            known.sort_unstable();
            for (_, ino, count) in known {
                if sum <= max / 2 {
                    break;
                }
                self.inode(ino).forget_entries();
                sum -= count;
            }
        }
        self.named_count = sum;
    }

    /// Answers whether nothing is to be done for it any more in this round.
    fn evict_one(&mut self, env: &Env<'_>, ino: InodeId, visits: u32) -> bool {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return true;
        };
        if inode.is_revoking() {
            return false;
        }
        if !inode.is_chosen || !inode.is_spare() {
            return true;
        }
        let is_silent = self.may_go_silently(&self.inodes[&ino]);
        let inode = &self.inodes[&ino];
        let may_be_forgotten = inode.lookup_count > 0 && visits < PRUNE_VISIT_COUNT;
        if self.eviction.prunes && may_be_forgotten && !is_silent {
            return false;
        }
        if inode.accessed.is_untold() && self.tell_access(ino) {
            return false;
        }
        let inode = self.inodes.get_mut(&ino).expect("known");
        inode.was_current |= inode.is_attr_current();
        if let Some(plan) = inode.holder.give_up(ino) {
            // Of what is spare all notices are sent, or left out, before this returns.
            inode.goes_silently = is_silent;
            self.begin_release(env, ino, plan);
            if let Some(inode) = self.inodes.get_mut(&ino) {
                inode.goes_silently = false;
            }
            return false;
        }
        let cold = Cold {
            lookup_count: inode.lookup_count,
            kind: inode.known_kind(),
            is_believed: is_silent,
            has_no_acl: is_silent && inode.is_known_without_acl(),
        };
        let floor = self.eviction.floors.entry(ino.shard()).or_default();
        *floor = (*floor).max(inode.holder.seen());
        self.drop_inode(env, ino);
        if cold.lookup_count > 0 {
            self.note_cold(ino, cold);
        }
        true
    }

    /// The inode is not known here any more.
    fn drop_inode(&mut self, env: &Env<'_>, ino: InodeId) {
        let Some(mut inode) = self.inodes.remove(&ino) else {
            return;
        };
        // Its counts begin anew, above these.
        let floor = &mut self.eviction.epoch_floor;
        *floor = (*floor).max(inode.loss_count);
        *floor = (*floor).max(inode.names_epoch / NAMES_TOKEN) + 1;
        self.aheads.retain(|ahead| ahead.directory != ino);
        let Some(work) = inode.present_work() else {
            return;
        };
        let goals = std::mem::take(&mut work.goals);
        work.pages.clear(env.pool);
        let owner = env.owner(ino.shard());
        env.grants.unreserve(owner, work.reserved);
        let batches = work.batches.iter();
        batches.for_each(|batch| env.grants.unreserve(owner, batch.aside));
        self.hasty_count -= work.hasty.len();
        for goal in goals {
            match goal.purpose {
                // What nobody can reach any more need not be written.
                Purpose::Sweep(sweep) => self.end_swept(env, sweep),
                Purpose::Background => {}
                _ => debug_assert!(false, "somebody waits: {goal:?}"),
            }
        }
    }

    /// Whether it is known of a forgotten inode that it has no access control list.
    pub(crate) fn is_cold_without_acl(&self, ino: InodeId) -> bool {
        self.cold.get(&ino).is_some_and(|cold| cold.has_no_acl)
    }

    /// An access control list may be on its way to it.
    pub(crate) fn distrust_cold(&mut self, ino: InodeId) {
        if let Some(cold) = self.cold.get_mut(&ino) {
            cold.has_no_acl = false;
        }
    }

    fn forget_cold(&mut self, ino: InodeId, count: u64) {
        if let Some(cold) = self.cold.get_mut(&ino) {
            cold.lookup_count = cold.lookup_count.saturating_sub(count);
            if cold.lookup_count == 0 {
                self.cold.remove(&ino);
            }
        }
    }

    /// The kernel forgets lookups.
    pub(crate) fn forget(&mut self, env: &Env<'_>, ino: InodeId, count: u64) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return self.forget_cold(ino, count);
        };
        inode.lookup_count = inode.lookup_count.saturating_sub(count);
        // What it forgets takes its pages along.
        inode.may_have_pages &= inode.lookup_count > 0;
        let is_asked_for = inode.is_chosen && !inode.accessed.is_untold();
        let may_go = is_asked_for && inode.lookup_count == 0 && !self.is_lapsed;
        self.drop_if_gone(env, ino);
        // It was pruned: nobody need wait for the next ticks. Where something is under way they see to it.
        if may_go && !self.calls.values().any(|then| concerned(then) == Some(ino)) {
            // The second time it goes, if its tokens have gone at once.
            if self.evict_one(env, ino, 1) || self.evict_one(env, ino, 1) {
                self.keep(ino);
            }
        }
    }

    /// Drops an inode that has no name any more and that nobody uses here. What is dirty in it goes to the owner first,
    /// unless that has freed it: another node may have it open.
    pub(crate) fn drop_if_gone(&mut self, env: &Env<'_>, ino: InodeId) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let is_gone = inode.is_unnamed || inode.attr.is_some_and(|a| a.nlink == 0);
        let is_used = inode.lookup_count > 0 || inode.open_count > 0 || inode.closing_count > 0;
        if !is_gone || is_used {
            return;
        }
        if inode.is_taken_open {
            // Nobody can open it any more, and nobody else would tell.
            return self.send_closed(ino);
        }
        if inode.is_revoking() || inode.is_acquiring || !inode.loads.is_empty() {
            return;
        }
        if inode.is_dirty() && !inode.is_freed {
            return self.add_goal(env, ino, Purpose::Background);
        }
        if inode.is_committing || !inode.batches.is_empty() || inode.unwritten_replies > 0 {
            return;
        }
        if !inode.is_freed
            && let Some(plan) = inode.holder.give_up(ino)
        {
            // Revoked when nothing is known here any more they would be answered as of the beginning: the owner takes
            // that for a late message, and who waits for them waits until it has asked often enough.
            return self.begin_release(env, ino, plan);
        }
        self.drop_inode(env, ino);
    }
}

/// The inode of this slice that an answer will be about.
fn concerned(then: &Continuation) -> Option<InodeId> {
    match then {
        Continuation::Names(request, _)
        | Continuation::Rename(request, _)
        | Continuation::Unlink(request, _, _)
        | Continuation::RenameSource(request)
        | Continuation::SetAttr(_, request, _)
        | Continuation::Punch(_, request)
        | Continuation::Listing(request, _) => {
            let directory = crate::names::directory_of(&request.operation);
            Some(directory.unwrap_or_else(|| home_inode(&request.operation)))
        }
        Continuation::Attributes(ino, ..)
        | Continuation::Acquire(ino, ..)
        | Continuation::Ahead(ino, _)
        | Continuation::Map(ino, _, _)
        | Continuation::Promised(ino, _)
        | Continuation::Commit(ino)
        | Continuation::Accessed(ino, _)
        | Continuation::Lock(ino) => Some(*ino),
        Continuation::Arrival(arrival) => Some(arrival.ino),
        Continuation::Closed(ino) => *ino,
        Continuation::Synced(_, _) | Continuation::LockTest(_) | Continuation::Swept(_) => None,
    }
}
