//! The log of slow operations: what each waited for, and how long.
//!
//! Invariants
//! - An operation that is answered by the thread that took it costs two writes to that thread's own memory. Only one
//!   that waits is written down, when its thread leaves it.
//! - The answer of another thread may come before that: then it leaves a mark, which the thread takes away. So what is
//!   written down is taken away exactly once.
//! - Lines are bounded (`Limiter`); what is left out is counted and said.
//!
//! Life cycle of an operation that waits: written down -> looked at by the thread that ticks, from half the threshold
//! on: the time since the look before counts for what it waits for now -> said once when it crosses the threshold ->
//! said again, with all causes, when it is answered.
//!
//! What this deliberately does not do: ask other nodes what they wait for in turn. Their own logs say it.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use client::request::{Request, Ticket};
use client::slice::{CallId, SLICE_COUNT, home_inode, slice_of};
use client::waits::Wait;
use rustc_hash::FxHashMap;
use types::{Duration, InodeId, Instant, NodeId, NsdId};

use super::limiter::Limiter;
use super::{Daemon, OPERATION_NAMES, lock};
use crate::clock;

/// Operations that wait are looked at after so many ticks.
const LOOK_TICKS: u64 = 5;
/// So many at once, the oldest; more would hold locks of the operations that go on.
const LOOK_COUNT_MAX: usize = 64;
/// Causes of one operation that are told apart.
const CAUSE_COUNT_MAX: usize = 8;
/// Operations that are written down, in each table.
const TABLE_COUNT_MAX: usize = 4096;
const TABLE_COUNT: usize = 16;
/// A thread leaves what it has taken long before this.
const MARK_TIME: Duration = Duration::from_millis(60_000);

/// What an operation waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cause {
    what: &'static str,
    node: Option<NodeId>,
    nsd: Option<NsdId>,
}

impl Cause {
    const fn new(what: &'static str) -> Self {
        Self {
            what,
            node: None,
            nsd: None,
        }
    }

    const fn of(what: &'static str, node: NodeId) -> Self {
        Self {
            what,
            node: Some(node),
            nsd: None,
        }
    }
}

/// An operation, while the thread that took it is at it and after.
#[derive(Clone, Copy, Debug)]
struct Begun {
    ticket: Ticket,
    operation: usize,
    ino: InodeId,
    /// Of the last tick: 20 ms too early at the most.
    at: Instant,
}

#[derive(Debug)]
struct Waiting {
    begun: Begun,
    /// When it was looked at last.
    seen: Instant,
    is_said: bool,
    causes: Vec<(Cause, Duration)>,
}

#[derive(Debug)]
enum Entry {
    Waiting(Waiting),
    /// It was answered then, before it was written down. What is answered twice, or found no place in the table, leaves
    /// such a mark, too, which nobody takes away: it goes after `MARK_TIME`.
    Answered(Instant),
}

thread_local! {
    /// What this thread has taken and not answered.
    static CURRENT: Cell<Option<Begun>> = const { Cell::new(None) };
}

/// See the module.
#[derive(Debug)]
pub(super) struct Slow {
    /// 0: nothing is logged.
    threshold: Duration,
    /// Of the last tick.
    now: AtomicU64,
    tables: [Mutex<FxHashMap<Ticket, Entry>>; TABLE_COUNT],
    limiter: Mutex<Limiter>,
    /// By operation, said or not.
    pub(super) counts: [AtomicU64; OPERATION_NAMES.len()],
    /// At the last look.
    pub(super) waiting: AtomicU64,
}

impl Waiting {
    fn count(&mut self, cause: Cause, now: Instant) {
        let time = now.since(self.seen);
        self.seen = now;
        let is_full = self.causes.len() == CAUSE_COUNT_MAX;
        match self.causes.iter_mut().find(|(of, _)| *of == cause) {
            Some((_, sum)) => sum.0 += time.0,
            None if is_full => {
                let (of, sum) = &mut self.causes[CAUSE_COUNT_MAX - 1];
                *of = Cause::new("other");
                sum.0 += time.0;
            }
            None => self.causes.push((cause, time)),
        }
    }
}

impl Slow {
    pub(super) fn new(threshold: Duration) -> Self {
        Self {
            threshold,
            now: AtomicU64::new(clock::now().0),
            tables: Default::default(),
            limiter: Mutex::default(),
            counts: Default::default(),
            waiting: AtomicU64::new(0),
        }
    }

    const fn is_off(&self) -> bool {
        self.threshold.0 == 0
    }

    fn table(&self, ticket: Ticket) -> &Mutex<FxHashMap<Ticket, Entry>> {
        let hash = ticket.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        &self.tables[usize::try_from(hash).expect("four bits")]
    }

    /// A thread takes a request.
    pub(super) fn begin(&self, request: &Request, operation: usize) {
        // Without a ticket there is no answer.
        if self.is_off() || request.ticket.0 == 0 {
            return;
        }
        CURRENT.set(Some(Begun {
            ticket: request.ticket,
            operation,
            ino: home_inode(&request.operation),
            at: Instant(self.now.load(Ordering::Relaxed)),
        }));
    }

    /// The thread leaves it: if it has no answer yet it waits.
    pub(super) fn leave(&self) {
        let Some(begun) = CURRENT.take() else { return };
        let mut table = lock(self.table(begun.ticket));
        if matches!(table.get(&begun.ticket), Some(Entry::Answered(_))) {
            table.remove(&begun.ticket);
            return;
        }
        if table.len() < TABLE_COUNT_MAX {
            let waiting = Waiting {
                begun,
                seen: begun.at,
                is_said: false,
                causes: Vec::new(),
            };
            table.insert(begun.ticket, Entry::Waiting(waiting));
        }
    }

    /// It is being answered.
    pub(super) fn answered(&self, ticket: Ticket) {
        if self.is_off() || ticket.0 == 0 {
            return;
        }
        if let Some(begun) = CURRENT.get()
            && begun.ticket == ticket
        {
            CURRENT.set(None);
            let now = Instant(self.now.load(Ordering::Relaxed));
            if now.since(begun.at) >= self.threshold {
                let busy = (Cause::new("this daemon's threads"), now.since(begun.at));
                self.say(begun, now, &[busy], "it has ended");
                self.counts[begun.operation].fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let waiting = {
            let mut table = lock(self.table(ticket));
            match table.remove(&ticket) {
                Some(Entry::Waiting(waiting)) => waiting,
                Some(Entry::Answered(_)) => return,
                None => {
                    if table.len() < TABLE_COUNT_MAX {
                        let now = Instant(self.now.load(Ordering::Relaxed));
                        table.insert(ticket, Entry::Answered(now));
                    }
                    return;
                }
            }
        };
        let now = clock::now();
        if now.since(waiting.begun.at) >= self.threshold {
            self.end(waiting, now);
        }
    }

    fn end(&self, mut waiting: Waiting, now: Instant) {
        let last = waiting.causes.last().map(|(cause, _)| *cause);
        waiting.count(last.unwrap_or(Cause::new("not looked at")), now);
        if !waiting.is_said {
            self.counts[waiting.begun.operation].fetch_add(1, Ordering::Relaxed);
        }
        self.say(waiting.begun, now, &waiting.causes, "it has ended");
    }

    fn say(&self, begun: Begun, now: Instant, causes: &[(Cause, Duration)], state: &str) {
        let Some(left_out) = lock(&self.limiter).take(now) else {
            return;
        };
        tracing::warn!(
            target: "gupfs::slow",
            operation = OPERATION_NAMES[begun.operation],
            inode = begun.ino.raw(),
            ms = now.since(begun.at).0 / 1_000_000,
            state,
            waited_for = text(causes),
            left_out,
            "slow operation"
        );
    }

    /// Those that have waited for half the threshold, the oldest first. Marks that nobody took away go.
    fn old(&self, now: Instant) -> Vec<Begun> {
        let mut all = Vec::new();
        let mut count = 0;
        for table in &self.tables {
            let mut table = lock(table);
            table.retain(|_, entry| match entry {
                Entry::Waiting(waiting) => {
                    count += 1;
                    if now.since(waiting.begun.at).0 >= self.threshold.0 / 2 {
                        all.push(waiting.begun);
                    }
                    true
                }
                Entry::Answered(at) => now.since(*at) < MARK_TIME,
            });
        }
        self.waiting.store(count, Ordering::Relaxed);
        all.sort_by_key(|begun| begun.at);
        all.truncate(LOOK_COUNT_MAX);
        all
    }

    /// One of them waits for this.
    fn note(&self, ticket: Ticket, cause: Cause, now: Instant) {
        let said = {
            let mut table = lock(self.table(ticket));
            let Some(Entry::Waiting(waiting)) = table.get_mut(&ticket) else {
                return;
            };
            waiting.count(cause, now);
            let is_slow = now.since(waiting.begun.at) >= self.threshold;
            if !is_slow || std::mem::replace(&mut waiting.is_said, true) {
                return;
            }
            (waiting.begun, waiting.causes.clone())
        };
        let (begun, causes) = said;
        self.counts[begun.operation].fetch_add(1, Ordering::Relaxed);
        self.say(begun, now, &causes, "it waits");
    }
}

/// `token of node 2: 1503 ms, nsd 3: 20 ms`.
fn text(causes: &[(Cause, Duration)]) -> String {
    let mut out = String::new();
    for (Cause { what, node, nsd }, time) in causes {
        let separator = if out.is_empty() { "" } else { ", " };
        let node = node.map_or_else(String::new, |node| format!(" of node {}", node.0));
        let nsd = nsd.map_or_else(String::new, |nsd| format!(" of nsd {}", nsd.0));
        let ms = time.0 / 1_000_000;
        write!(out, "{separator}{what}{nsd}{node}: {ms} ms").expect("a String takes all");
    }
    out
}

impl Daemon {
    /// Looks at what has waited for long. On the thread that ticks.
    pub(super) fn look_at_slow(self: &Arc<Self>, tick: u64) {
        let slow = &self.slow;
        if slow.is_off() {
            return;
        }
        let now = clock::now();
        slow.now.store(now.0, Ordering::Relaxed);
        if !tick.is_multiple_of(LOOK_TICKS) {
            return;
        }
        for begun in slow.old(now) {
            slow.note(begun.ticket, self.cause_of(begun), now);
        }
        if let Some(left_out) = lock(&slow.limiter).end(now) {
            tracing::warn!(target: "gupfs::slow", left_out, "lines about slow operations were left out");
        }
    }

    fn cause_of(&self, begun: Begun) -> Cause {
        if self.must_park() {
            return Cause::new("this node's lease");
        }
        let home = slice_of(begun.ino);
        let wait = lock(&self.slices[home]).wait_of(begun.ino, begun.ticket);
        // A rename, or an open that truncates, may have gone on to the slice of another inode.
        let others = (0..SLICE_COUNT).filter(|slice| *slice != home);
        let wait = wait.or_else(|| {
            let (ino, ticket) = (begun.ino, begun.ticket);
            let found = others.map(|slice| lock(&self.slices[slice]).wait_for_answer(ino, ticket));
            found.flatten().next()
        });
        match wait {
            Some(Wait::Token(ino, call)) => self.cause_of_question("token", ino, call),
            Some(Wait::Owner(ino, call)) => self.cause_of_question("answer", ino, call),
            Some(Wait::Revoke) => Cause::new("a revoke that this node carries out"),
            Some(Wait::Load) => self.cause_of_io("read"),
            Some(Wait::Store) => self.cause_of_io("write"),
            Some(Wait::Space) => Cause::new("free sectors"),
            Some(Wait::Fill) => Cause::new("the kernel, which takes the file's bytes"),
            Some(Wait::Frames) => Cause::new("frames of the pagepool"),
            None => Cause::new("another inode (gupfs waiters shows it)"),
        }
    }

    /// A question to an owner: why that has not answered, if it is this node.
    fn cause_of_question(&self, what: &'static str, ino: InodeId, call: Option<CallId>) -> Cause {
        let asked = call.and_then(|call| lock(&self.calls).asked(call.0));
        if let Some((peer, may_go)) = asked {
            return match may_go {
                true => Cause::of(what, peer),
                false => Cause::of("a slot for a question", peer),
            };
        }
        let owner = self.owner(ino.shard());
        if owner != self.me.node {
            return Cause::of(what, owner);
        }
        if !self.is_serving() {
            let missing = self.membership.missing();
            return Cause {
                node: missing.first().copied(),
                ..Cause::new("grace period")
            };
        }
        if let Some(cause) = self.cause_at_owner(ino) {
            return cause;
        }
        if self.durable_waiter_count() > 0 {
            return Cause {
                what: "journal",
                ..self.cause_of_io("write")
            };
        }
        Cause::of(what, owner)
    }

    /// Whom this owner waits for when it has a question about `ino`.
    fn cause_at_owner(&self, ino: InodeId) -> Option<Cause> {
        let holder = |shard: &Mutex<node::OwnerSlice>, ino| lock(shard).silent_holder(ino);
        let home = self.shards.get(usize::from(ino.shard().0));
        let home = home.and_then(Option::as_ref);
        if let Some((_, holder)) = home.and_then(|shard| holder(shard, Some(ino))) {
            return Some(Cause::of("token", holder.node));
        }
        if let Some((peer, _)) = lock(&self.facts).unanswered().next() {
            return Some(Cause::of("answer", peer));
        }
        let targets = home.map(|shard| lock(shard).transaction_targets());
        let mut peers = targets.into_iter().flatten().map(|shard| self.owner(shard));
        if let Some(peer) = peers.find(|peer| *peer != self.me.node) {
            return Some(Cause::of("answer", peer));
        }
        // A name may lead to an inode of another shard.
        let all = self.shards.iter().flatten();
        let oldest = all
            .filter_map(|shard| holder(shard, None))
            .min_by_key(|(since, _)| *since);
        oldest.map(|(_, holder)| Cause::of("token", holder.node))
    }

    /// The oldest I/O of this kind, which may be another's: what waits for an NSD waits in its queue.
    fn cause_of_io(&self, what: &'static str) -> Cause {
        let oldest = self.oldest_io(what == "read");
        Cause {
            what,
            node: oldest.and_then(|(_, node)| node),
            nsd: oldest.map(|(nsd, _)| nsd),
        }
    }
}

#[cfg(test)]
#[path = "slow/tests.rs"]
mod tests;
