//! The work list: runs slices and owners under their locks, and performs what they want done after
//! unlocking, on the thread that brought the event.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};

use client::Filled;
use client::message::{Answer, Body};
use client::request::{Notice, Response};
use client::slice::{CallId, Effect, Input, NotifyId, frames_of, slice_of};
use client::{Coming, Env, Pool as _};
use node::fetch::Ready;
use node::moves::RENAME_TOKEN;
use node::{
    Deferred, FACT_CALL, LOOK_CALL, Locked, Message, Need, OwnerEffect, OwnerEnv, OwnerSlice, Work,
};
use smallvec::{SmallVec, smallvec};
use types::{Errno, InodeId, Instant, Lsn, NodeLife, ShardId, Timestamp, limits};

use super::lapse::Parked;
use super::{DRIVER_CALL, Daemon, MOVE_CALL, lock};
use crate::clock;

/// Something to be done now.
#[derive(Debug)]
pub(super) enum Item {
    /// An input of a client slice.
    Client(usize, Input),
    /// What a client slice wants.
    Effect(Effect),
    /// Work for an owner.
    Owner(Work),
    /// The same, when what it had missed was read.
    Fetched(Ready),
    /// What an owner wants.
    OwnerEffect(OwnerEffect),
}

/// The lists of a thread, kept from event to event: what they grew to once they need not allocate again.
#[derive(Debug, Default)]
struct Lists {
    items: VecDeque<Item>,
    effects: Vec<Effect>,
    owner_effects: Vec<OwnerEffect>,
}

/// Items that follow from one event, far more than any ends with: an endless list would hold its slices' locks
/// against the very events that it waits for.
const WORK_MAX: usize = 1 << 20;
/// Lists longer than this are not kept.
const LIST_LENGTH_MAX: usize = 1024;

/// After so many steps of one event the clocks are read again.
const STEPS_PER_CLOCK: usize = 64;

thread_local! {
    /// When the event that this thread works off began: its steps take a few microseconds, and each would read both
    /// clocks, a tenth of all its time. What must be exact (the lease before an answer) reads the clock itself.
    static EVENT_TIME: Cell<Option<EventTime>> = const { Cell::new(None) };
    static LISTS: Cell<Option<Box<Lists>>> = const { Cell::new(None) };
}

/// Both clocks, as cores are given them.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventTime {
    pub(super) now: Instant,
    pub(super) timestamp: Timestamp,
}

impl EventTime {
    /// Of the event that is being worked off; outside of one, now.
    pub(super) fn get() -> Self {
        EVENT_TIME.get().unwrap_or_else(|| Self {
            now: clock::now(),
            timestamp: clock::timestamp(),
        })
    }

    /// The same, for somebody whom another thread has given these times already: an event whose thread stood still meanwhile reads the
    /// clocks again, and goes on with that.
    fn after((now, timestamp): (Instant, Timestamp)) -> Self {
        let time = Self::get();
        if time.now >= now && time.timestamp >= timestamp {
            return time;
        }
        let is_event = EVENT_TIME.take().is_some();
        let time = Self::get();
        EVENT_TIME.set(is_event.then_some(time));
        time
    }
}

impl Lists {
    /// This thread's; new ones in a run within a run.
    fn take() -> Box<Self> {
        LISTS.take().unwrap_or_default()
    }

    fn keep(self: Box<Self>) {
        assert!(self.items.is_empty() && self.effects.is_empty() && self.owner_effects.is_empty());
        let length = self.items.capacity().max(self.effects.capacity());
        if length.max(self.owner_effects.capacity()) <= LIST_LENGTH_MAX {
            LISTS.set(Some(self));
        }
    }
}

/// Shards of this owner that are locked, in the order of their numbers.
type Guards<'a> = SmallVec<[(ShardId, MutexGuard<'a, OwnerSlice>); 4]>;

impl Daemon {
    /// Runs an input of a client slice and all that follows from it.
    pub(super) fn input(self: &Arc<Self>, slice: usize, input: Input) {
        self.work_off(Lists::take(), Some((slice, input)));
    }

    /// Works the list off.
    pub(super) fn run(self: &Arc<Self>, mut items: VecDeque<Item>) {
        let mut lists = Lists::take();
        lists.items.append(&mut items);
        self.work_off(lists, None);
    }

    /// Works off `first` and then the list, in the order of a queue that each step's effects are put at the end of.
    fn work_off(self: &Arc<Self>, mut lists: Box<Lists>, first: Option<(usize, Input)>) {
        let Lists {
            items,
            effects,
            owner_effects,
        } = &mut *lists;
        let outer = EVENT_TIME.get();
        let mut count = 0;
        if let Some((slice, input)) = first {
            EVENT_TIME.set(None);
            EVENT_TIME.set(Some(EventTime::get()));
            count = 1;
            self.run_slice(slice, input, effects);
            self.perform_all(effects, items);
        }
        while let Some(item) = items.pop_front() {
            if count % STEPS_PER_CLOCK == 0 {
                EVENT_TIME.set(None);
                EVENT_TIME.set(Some(EventTime::get()));
            }
            count += 1;
            debug_assert!(count < WORK_MAX, "a work list ends: {item:?}");
            match item {
                Item::Client(slice, input) => {
                    self.run_slice(slice, input, effects);
                    self.perform_all(effects, items);
                }
                Item::Effect(effect) => self.perform(effect, items),
                Item::Owner(work) => {
                    let pinned = Vec::new();
                    self.run_owner(Ready { work, pinned }, owner_effects, items);
                    self.perform_all_of_owner(owner_effects, items);
                }
                Item::Fetched(ready) => {
                    self.run_owner(ready, owner_effects, items);
                    self.perform_all_of_owner(owner_effects, items);
                }
                Item::OwnerEffect(effect) => self.perform_owner(effect, items),
            }
        }
        EVENT_TIME.set(outer);
        lists.keep();
        self.ends.tell();
    }

    /// Performs a slice's effects as if they were queued behind `items`. With nothing before them they need not be: an
    /// effect is large, and a queue costs two copies of it.
    fn perform_all(self: &Arc<Self>, effects: &mut Vec<Effect>, items: &mut VecDeque<Item>) {
        if !items.is_empty() {
            items.extend(effects.drain(..).map(Item::Effect));
            return;
        }
        let mut effects = effects.drain(..);
        while let Some(effect) = effects.next() {
            if matches!(effect, Effect::ForSlice(..)) {
                // The slice's turn comes before the effects that follow, and these before what the earlier ones began.
                for later in effects.rev() {
                    items.push_front(Item::Effect(later));
                }
                return self.perform(effect, items);
            }
            self.perform(effect, items);
        }
    }

    /// The same with an owner's effects.
    fn perform_all_of_owner(
        self: &Arc<Self>,
        effects: &mut Vec<OwnerEffect>,
        items: &mut VecDeque<Item>,
    ) {
        if !items.is_empty() {
            items.extend(effects.drain(..).map(Item::OwnerEffect));
            return;
        }
        for effect in effects.drain(..) {
            self.perform_owner(effect, items);
        }
    }

    pub(super) fn run_slice(&self, slice: usize, input: Input, effects: &mut Vec<Effect>) {
        let lease = self.lease_left();
        let mut slice = lock(&self.slices[slice]);
        let EventTime { now, timestamp } = EventTime::after(slice.seen());
        let env = Env {
            now,
            timestamp,
            lease,
            life: self.me,
            pool: &*self.pool,
            grants: &self.hands,
            readers: &self.readers,
            pace: &self.pace,
            owners: &self.config.view.owners,
            has_volatile_nsd: self.has_volatile_nsd,
        };
        slice.on_input(&env, input, effects);
    }

    pub(super) fn owner_env(&self) -> OwnerEnv<'_> {
        let EventTime { now, timestamp } = EventTime::get();
        OwnerEnv {
            now,
            timestamp,
            me: self.me,
            owners: &self.config.view.owners,
            random: self.random(),
        }
    }

    fn perform(self: &Arc<Self>, effect: Effect, items: &mut VecDeque<Item>) {
        match effect {
            Effect::Reply(ticket, mut response, pinned) => {
                if self.must_park() {
                    return self.park_reply(ticket, response, pinned);
                }
                if let Some(copy) = self.copy_of(ticket, &response) {
                    return self.write_copy(&copy, &response);
                }
                if let Some(notice) = self.stale_copy(ticket, &response) {
                    return self.drop_copied(ticket, response, notice);
                }
                if !self.membership.is_alone() {
                    clamp(&mut response, self.lease_left().0);
                }
                self.counters.replies.fetch_add(1, Ordering::Relaxed);
                if pinned.is_empty() || self.replier().is_immediate(ticket) {
                    self.answer(ticket, &response);
                    for pin in pinned {
                        items.push_back(Item::Client(slice_of(pin.ino()), Input::Replied(pin)));
                    }
                    return;
                }
                // A notification that the slices hold back until then must not overtake the answer.
                let daemon = Arc::clone(self);
                let replied = move || {
                    for pin in pinned {
                        daemon.input(slice_of(pin.ino()), Input::Replied(pin));
                    }
                };
                let replied = crate::fuse::Follow(Box::new(replied));
                self.latencies.end(ticket, clock::now);
                self.slow.answered(ticket);
                self.replier().reply_then(ticket, &response, replied);
            }
            Effect::Yield(ticket, response) => {
                self.counters.replies.fetch_add(1, Ordering::Relaxed);
                self.answer(ticket, &response);
            }
            Effect::DropPayload(span) => frames_of(span).for_each(|f| self.pool.release(f)),
            Effect::Call(call, shard, ask) => self.call_owner(call.0, shard, ask, items),
            Effect::Load(io, pieces) => {
                self.counters.loads.fetch_add(1, Ordering::Relaxed);
                self.load(io, pieces);
            }
            Effect::Store(io, _, pieces) => {
                self.counters.stores.fetch_add(1, Ordering::Relaxed);
                self.store(io, pieces);
                if self.hands.take_low() {
                    self.top_up(items);
                }
            }
            Effect::Flush(io, stores) => self.flush_stores(io, &stores),
            Effect::ForgetStores(stores) => self.forget_stores(&stores),
            Effect::Notify(id, notice) => self.notify(id, notice),
            Effect::Fill(ino, spans) => {
                let filled = self.fill(ino, spans);
                items.push_front(Item::Client(slice_of(ino), Input::Filled(ino, filled)));
            }
            Effect::Release(shard, released) => self.release_token(shard, released, items),
            // Before what follows: who is answered that a file was unlinked must not be shown its link count of before.
            Effect::ForSlice(ino, input) => items.push_front(Item::Client(slice_of(ino), input)),
            Effect::LoadFiles(files) => self.load_files(files),
            Effect::ListSoon(coming) => self.list_soon(coming),
            Effect::WantSpace(owner) => self.want_space(owner, items),
            Effect::WantFrames => self.want_frames(),
            Effect::Swept(sweep) => self.on_swept(sweep),
            Effect::AskStanding(request, uid) => items.push_front(self.ask_standing(*request, uid)),
        }
    }

    /// Small files will be opened soon. On a loop: the application waits for the thread that this is.
    fn load_files(self: &Arc<Self>, files: Vec<InodeId>) {
        let Some(first) = files.first() else { return };
        let (index, daemon) = (slice_of(*first), Arc::clone(self));
        let load = move || {
            for ino in files {
                daemon.input(slice_of(ino), Input::LoadFile(ino));
            }
        };
        self.loops.post(index, Box::new(load));
    }

    /// A directory will be opened soon: likewise.
    fn list_soon(self: &Arc<Self>, coming: Coming) {
        let (index, daemon) = (slice_of(coming.ino), Arc::clone(self));
        let list = move || daemon.input(index, Input::ListComing(coming));
        self.loops.post(index, Box::new(list));
    }

    /// Has the slices do as this session's kernel and transport can.
    pub(super) fn suit(&self, session: &crate::fuse::Session) {
        for slice in &self.slices {
            let mut slice = lock(slice);
            if session.is_async() {
                slice.expect_async_writes();
            }
            if session.is_over_ring() {
                slice.expect_late_answers();
            }
            if session.takes_prune() {
                slice.prune_inodes();
            }
            if session.takes_fills() {
                slice.fill_kernel();
            }
        }
    }

    /// Puts bytes into the kernel's page cache, unless the lease is over or nothing is to be read any more. What it does not take a READ asks for.
    fn fill(&self, ino: InodeId, spans: Vec<types::Span>) -> Filled {
        let is_allowed = !self.must_park() && !self.is_shut_down();
        let outcome = is_allowed.then(|| self.notifier().fill(&*self.pool, ino, &spans));
        for span in spans {
            frames_of(span).for_each(|frame| self.pool.release(frame));
        }
        match outcome {
            Some(Ok(())) => Filled::Whole,
            // It does not know the inode.
            None | Some(Err(Errno::ENOENT)) => Filled::Nothing,
            Some(Err(errno)) => {
                tracing::debug!(?errno, "the kernel has not taken all bytes of a file");
                Filled::Some
            }
        }
    }

    /// Has the kernel look all names up again: for the end of a mount alone, for it detaches what is mounted inside (decision 0031).
    pub(super) fn drop_names(&self) {
        self.counters.notices.fetch_add(1, Ordering::Relaxed);
        if let Err(errno) = self.notifier().drop_names() {
            // One that does not know it, or has ended the session.
            tracing::debug!(?errno, "the kernel was not told to drop names");
        }
    }

    /// Has the kernel drop something, on a notify thread (rule R1).
    pub(super) fn notify(self: &Arc<Self>, id: Option<NotifyId>, notice: Notice) {
        self.counters.notices.fetch_add(1, Ordering::Relaxed);
        self.send_notice(id, notice, false);
    }

    fn send_notice(self: &Arc<Self>, id: Option<NotifyId>, notice: Notice, is_second: bool) {
        let daemon = Arc::clone(self);
        let same = notice.clone();
        let done = Box::new(move |result: Result<(), Errno>| {
            // ENOENT: the kernel does not know the inode, so it has nothing of it; or not yet: an answer that shows it was written a
            // moment ago. What it makes then is not kept from believing the attributes of before.
            match (result, id) {
                (Err(Errno::ENOENT), Some(_)) if !is_second => {
                    return daemon.send_notice_in(limits::KERNEL_LINK_MS, id, same, true);
                }
                (Ok(()) | Err(Errno::ENOENT), _) => {}
                (Err(errno), _) => tracing::debug!(?errno, "a notification was refused"),
            }
            if let Some(id) = id {
                daemon.input(id.slice(), Input::Notified(id));
            }
        });
        if self.notifier().notify(&notice, done).is_err() {
            // The queue is full: again when some have returned.
            self.send_notice_in(5, id, notice, is_second);
        }
    }

    fn send_notice_in(
        self: &Arc<Self>,
        ms: u64,
        id: Option<NotifyId>,
        notice: Notice,
        is_second: bool,
    ) {
        let daemon = Arc::clone(self);
        let at = clock::now() + types::Duration::from_millis(ms);
        let send = move || daemon.send_notice(id, notice, is_second);
        self.loops.post_at(0, at, Box::new(send));
    }

    /// Runs what pauses at the owner of a shard here again, then.
    fn wake_at(self: &Arc<Self>, shard: ShardId, at: Instant) {
        let daemon = Arc::clone(self);
        let wake = move || {
            let Some(slice) = &daemon.shards[usize::from(shard.0)] else {
                return;
            };
            let mut out = Vec::new();
            lock(slice).resume_paused(clock::now(), &mut out);
            daemon.run(out.into_iter().map(Item::OwnerEffect).collect());
        };
        self.loops.post_at(0, at, Box::new(wake));
    }

    pub(super) fn release_token(
        self: &Arc<Self>,
        shard: ShardId,
        released: node::token::message::Released,
        items: &mut VecDeque<Item>,
    ) {
        let owner = self.owner(shard);
        if owner == self.me.node {
            self.on_released(self.me, shard, &released, items);
        } else {
            self.send(owner, &Message::Released { shard, released });
        }
    }

    pub(super) fn on_released(
        self: &Arc<Self>,
        from: NodeLife,
        shard: ShardId,
        released: &node::token::message::Released,
        items: &mut VecDeque<Item>,
    ) {
        let mut out = Vec::new();
        if let Some(slice) = self
            .shards
            .get(usize::from(shard.0))
            .and_then(Option::as_ref)
        {
            let env = self.owner_env();
            let mut slice = lock(slice);
            let mut log = lock(&self.log);
            slice.on_released(&env, &mut log, from, released, &mut out);
        }
        items.extend(out.into_iter().map(Item::OwnerEffect));
    }

    /// Runs an owner's work under the locks of the shards it needs.
    fn run_owner(
        self: &Arc<Self>,
        ready: Ready,
        out: &mut Vec<OwnerEffect>,
        items: &mut VecDeque<Item>,
    ) {
        let Ready { work, pinned } = ready;
        if !self.is_serving() {
            let mut held = lock(&self.held_work);
            // The grace period may have ended meanwhile.
            if !self.is_serving() {
                held.push(work);
                drop(held);
                return self.unpin(&pinned);
            }
        }
        let mut wanted: SmallVec<[ShardId; 4]> = smallvec![work.shard()];
        let mut guards = Guards::new();
        let mut work = Some(work);
        let mut missed = None;
        let env = self.owner_env();
        while let Some(now) = work.take() {
            let needs_log = now.needs_log();
            if !self.lock_more(&wanted, &mut guards) {
                drop(guards);
                self.not_mine(now, items);
                return self.unpin(&pinned);
            }
            let mut locked = Locked::new(guards.iter_mut().map(|(_, slice)| &mut **slice));
            let ahead = locked.ahead(&env, &now);
            if !ahead.is_empty() {
                wanted.extend(ahead);
                wanted.sort_unstable();
                work = Some(now);
                continue;
            }
            let mut log = needs_log.then(|| lock(&self.log));
            match locked.run(&env, log.as_deref_mut(), now, out) {
                Ok(()) => {}
                Err(Need::Shards(more, again)) => {
                    wanted.extend(more);
                    wanted.sort_unstable();
                    wanted.dedup();
                    work = Some(again);
                }
                Err(Need::Keys(inodes, again)) => missed = Some((inodes, again)),
            }
        }
        drop(guards);
        // All is unlocked here.
        match missed {
            Some((inodes, work)) => self.want_keys(&inodes, Ready { work, pinned }, items),
            None => self.unpin(&pinned),
        }
    }

    /// Locks those of `wanted`, in order, that are not locked yet. A shard is waited for only behind all that are locked: where one
    /// before them is not free, all are unlocked and locked anew. False: one is not this node's.
    fn lock_more<'a>(&'a self, wanted: &[ShardId], guards: &mut Guards<'a>) -> bool {
        let own = |shard: ShardId| self.shards.get(usize::from(shard.0))?.as_ref();
        let mut is_anew = false;
        let mut next = 0;
        while let Some(shard) = wanted.get(next).copied() {
            next += 1;
            let Some(slice) = own(shard) else {
                return false;
            };
            match guards.binary_search_by_key(&shard, |(locked, _)| *locked) {
                Ok(_) => {}
                Err(at) if at == guards.len() => guards.push((shard, lock(slice))),
                Err(at) => match slice.try_lock() {
                    Ok(guard) => guards.insert(at, (shard, guard)),
                    Err(TryLockError::WouldBlock) => {
                        assert!(!is_anew, "nothing is locked behind what comes in order");
                        is_anew = true;
                        guards.clear();
                        next = 0;
                    }
                    Err(TryLockError::Poisoned(_)) => panic!("a panic ends the daemon"),
                },
            }
        }
        true
    }

    /// A question for a shard that this node does not own.
    fn not_mine(self: &Arc<Self>, work: Work, items: &mut VecDeque<Item>) {
        if let Work::Question(question) = work {
            let answer = Box::new(Answer::bare(Body::Refused(Errno::ESTALE)));
            let (to, call) = (question.from, question.call);
            items.push_back(Item::OwnerEffect(OwnerEffect::Answer {
                to,
                call,
                answer,
                after: None,
                ends_move: question.is_mover,
            }));
        }
    }

    fn perform_owner(self: &Arc<Self>, effect: OwnerEffect, items: &mut VecDeque<Item>) {
        match effect {
            OwnerEffect::Answer {
                to,
                call,
                answer,
                after,
                ends_move,
            } => {
                if ends_move {
                    self.end_move((to, call), items);
                }
                let deferred = Deferred::Answer(to, call, answer);
                match after {
                    Some(lsn) => self.defer(lsn, deferred, items),
                    None => self.deliver(deferred, items),
                }
            }
            OwnerEffect::Dropped {
                to,
                call,
                ends_move,
            } => {
                lock(&self.in_progress).ended(to, call);
                lock(&self.facts).dropped(to, call);
                if ends_move {
                    self.end_move((to, call), items);
                }
            }
            OwnerEffect::Revoke(to, revoke) => {
                self.counters.revokes.fetch_add(1, Ordering::Relaxed);
                if to.node == self.me.node && revoke.ino == RENAME_TOKEN {
                    self.revoke_moves(&revoke, items);
                } else if to.node == self.me.node {
                    let slice = slice_of(revoke.ino);
                    items.push_back(Item::Client(slice, Input::Revoke(self.me.node, revoke)));
                } else {
                    self.send_to(to, &Message::Revoke(revoke));
                }
            }
            OwnerEffect::Reclaim(to, shard, count) if to.node == self.me.node => {
                self.reclaim_tokens(shard, count, items);
            }
            OwnerEffect::Reclaim(to, shard, count) => {
                self.send_to(to, &Message::Reclaim { shard, count });
            }
            OwnerEffect::LockReady(ready) if ready.to.node == self.me.node => {
                let input = Input::LockReady(ready.ino, ready.wait);
                items.push_back(Item::Client(slice_of(ready.ino), input));
            }
            OwnerEffect::LockReady(ready) => {
                let (ino, wait) = (ready.ino, ready.wait);
                self.send_to(ready.to, &Message::LockReady { ino, wait });
            }
            OwnerEffect::Run(work) => items.push_back(Item::Owner(work)),
            OwnerEffect::WakeAt(shard, at) => self.wake_at(shard, at),
            OwnerEffect::Tend(holder) => self.tend(holder),
            OwnerEffect::Transaction(envelope, after) => {
                self.defer(after, Deferred::Transaction(envelope), items);
            }
            OwnerEffect::AskFacts(question, queries) => self.ask_facts(question, queries, items),
            OwnerEffect::Gather(question) => self.gather(question, items),
            OwnerEffect::Recalled(life, id) => self.recalled(life, id, items),
            OwnerEffect::Silent(holder, since) => {
                let waited_ms = clock::now().since(since).0 / 1_000_000;
                tracing::warn!(
                    node = holder.node.0,
                    waited_ms,
                    "a holder does not answer a revoke"
                );
            }
        }
    }

    /// Lets something wait for the journal, or does it at once when that is durable already.
    pub(super) fn defer(
        self: &Arc<Self>,
        after: Lsn,
        deferred: Deferred,
        items: &mut VecDeque<Item>,
    ) {
        let after = if after == Lsn(u64::MAX) {
            lock(&self.log).journal.last_lsn()
        } else {
            after
        };
        if self.wait_durable(after, deferred, items) {
            self.kick_journal();
        }
    }

    /// Delivers what waited.
    pub(super) fn deliver(self: &Arc<Self>, deferred: Deferred, items: &mut VecDeque<Item>) {
        match deferred {
            Deferred::Answer(to, call, answer) => {
                if call & FACT_CALL != 0 {
                    self.answer_fact(to, call, *answer, items);
                } else if to.node != self.me.node {
                    if self.must_park() {
                        let answer = Deferred::Answer(to, call, answer);
                        self.park(Parked::Deferred(Box::new(answer)));
                        return;
                    }
                    lock(&self.in_progress).ended(to, call);
                    let answer = *answer;
                    self.send_to(to, &Message::Answer { call, answer });
                } else {
                    self.on_answer(call, answer, items);
                }
            }
            Deferred::Transaction(envelope) => {
                let owner = self.owner(envelope.to);
                if owner == self.me.node {
                    items.push_back(Item::Owner(Work::Transaction(envelope)));
                } else {
                    self.send(owner, &Message::Transaction(*envelope));
                }
            }
            Deferred::Message(to, message) => self.send(to, &message),
        }
    }

    /// An answer for this node's client half.
    pub(super) fn on_answer(
        self: &Arc<Self>,
        call: u64,
        answer: Box<Answer>,
        items: &mut VecDeque<Item>,
    ) {
        let shard = self.call_ended(call);
        if call & MOVE_CALL != 0 {
            return self.on_rename_token(*answer, items);
        }
        if call & super::destage::DESTAGE_CALL != 0 && call & DRIVER_CALL == 0 {
            return self.destage_answered(call, &answer, items);
        }
        if call & LOOK_CALL != 0 && call & DRIVER_CALL != 0 {
            return self.on_usage_answer(call, *answer);
        }
        if call & DRIVER_CALL != 0 {
            if let Some(shard) = shard {
                self.on_space_answer(shard, &answer, items);
            }
            return;
        }
        let call = CallId(call);
        items.push_back(Item::Client(call.slice(), Input::Answer(call, answer)));
    }
}

/// The kernel never believes anything for longer than the node's lease.
pub(super) fn clamp(response: &mut Response, lease_ns: u64) {
    match response {
        Response::Entry(entry, absent_ns) => {
            *absent_ns = (*absent_ns).min(lease_ns);
            if let Some(entry) = entry {
                entry.entry_timeout_ns = entry.entry_timeout_ns.min(lease_ns);
                entry.attr_timeout_ns = entry.attr_timeout_ns.min(lease_ns);
            }
        }
        Response::Created(entry, _) => {
            entry.entry_timeout_ns = entry.entry_timeout_ns.min(lease_ns);
            entry.attr_timeout_ns = entry.attr_timeout_ns.min(lease_ns);
        }
        Response::Attr(_, timeout_ns) => *timeout_ns = (*timeout_ns).min(lease_ns),
        Response::Listing(listed) => {
            for entry in listed.iter_mut().filter_map(|l| l.entry.as_mut()) {
                entry.entry_timeout_ns = entry.entry_timeout_ns.min(lease_ns);
                entry.attr_timeout_ns = entry.attr_timeout_ns.min(lease_ns);
            }
        }
        Response::Error(_)
        | Response::Done
        | Response::Opened(_)
        | Response::Lock(_)
        | Response::Data(_)
        | Response::Bytes(_)
        | Response::Size(_)
        | Response::Offset(_)
        | Response::Written(_)
        | Response::Space(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an event that began before somebody else's.
    fn stood_still() -> EventTime {
        let time = EventTime::get();
        EVENT_TIME.set(Some(time));
        time
    }

    #[test]
    fn an_event_keeps_its_time_unless_another_one_was_ahead() {
        let old = stood_still();
        let same = EventTime::after((old.now, old.timestamp));
        assert_eq!((same.now, same.timestamp), (old.now, old.timestamp));
        let later = (clock::now(), clock::timestamp());
        assert!(later.0 > old.now);
        let new = EventTime::after(later);
        assert!(new.now >= later.0 && new.timestamp >= later.1);
        // What follows in this event has it, too; what comes after it has its own.
        assert_eq!(EventTime::get().now, new.now);
        EVENT_TIME.set(None);
        assert!(EventTime::after(later).now > new.now);
        assert!(EVENT_TIME.get().is_none());
    }

    /// The clock that files show was read before another thread's, and the other one after it.
    #[test]
    fn both_clocks_count() {
        let old = stood_still();
        let later = clock::timestamp();
        assert!(EventTime::after((old.now, later)).timestamp >= later);
        EVENT_TIME.set(None);
    }
}
