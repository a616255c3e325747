//! The manager: who may cache what of the inodes of one shard.
//!
//! Invariants
//! - What the manager has recorded of a holder contains all that the holder believes to hold.
//! - No two holders' recorded rights on an inode conflict.
//! - State numbers ascend over the life of the shard, across owners; each grant makes a new one.
//! - A request waits only for: the grace period, an earlier request that conflicts with it, or holders
//!   that it has asked. Who asks waits for nobody else, and delays nobody else.
//! - Waiting requests and recorded rights are bounded.
//!
//! Life of a request
//! ```text
//!   acquire --covered or free------------------------------------> Granted
//!      `--> waiting --first among those that conflict--> asking --all have released--> Granted
//!              ^                                           | Revoke, repeated; Silent after a limit
//!              `--grace, an earlier request----------------'
//! ```
//!
//! What this does not do: it never times a holder out by itself (the caller expels it and says
//! [`Manager::on_node_lost`]), it keeps nothing on disk, and it does not know what a token is good for.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use types::id::NodeLife;
use types::{
    ByteRange, Duration, Epoch, Holding, InodeId, Instant, RangeMode, ReleaseStamp, TokenNumber,
    Want,
};

use crate::message::{Acquire, Busy, Granted, Reassert, Reclaim, Refused, Released, Revoke};
use crate::rights::Rights;
use inode::{Asked, Entry, Inode, Verdict, Waiter};

mod inode;

/// What the manager wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send this.
    Revoke {
        /// The holder.
        to: NodeLife,
        /// What to say.
        message: Revoke,
    },
    /// A request is granted: answer it, or execute the operation that asked.
    Granted {
        /// Who asked.
        holder: NodeLife,
        /// What to say.
        message: Granted,
    },
    /// A request that had been taken on cannot be granted after all.
    Refused {
        /// Who asked.
        holder: NodeLife,
        /// What to say.
        message: Refused,
    },
    /// The table is nearly full: ask this node to give tokens back.
    Reclaim {
        /// The holder.
        to: NodeLife,
        /// What to say.
        message: Reclaim,
    },
    /// A holder has not answered a revoke since then: expel it. Said again after each limit.
    Silent {
        /// Who.
        holder: NodeLife,
        /// Asked first at.
        since: Instant,
    },
}

/// Effects in the order in which they are to happen.
pub type Outbox = Vec<Effect>;

/// Limits and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// An unanswered revoke is said again after this.
    pub retry_after: Duration,
    /// A holder that has not answered for so long is reported.
    pub silent_after: Duration,
    /// A directory is contended for so long after the last two changes by different nodes.
    pub contended_for: Duration,
    /// Most requests that wait.
    pub waiting_count_max: usize,
    /// Most (inode, holder) pairs with rights.
    pub token_count_max: usize,
    /// Most pieces of one inode that a holder may have in one mode; holders tidy up far below it.
    pub piece_count_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            retry_after: Duration::from_millis(500),
            silent_after: Duration::from_secs(30),
            contended_for: Duration::from_secs(5),
            waiting_count_max: 65_536,
            token_count_max: 1 << 20,
            piece_count_max: 1024,
        }
    }
}

/// Another node's words do not go with what is recorded: its bug or ours. Its tokens on the inode stay
/// recorded as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misbehaved {
    /// Two nodes claim what only one can have: expel the second.
    #[error("inode {ino}: the tokens of {first:?} and {second:?} conflict")]
    Conflict {
        /// The inode.
        ino: InodeId,
        /// Who claimed first.
        first: NodeLife,
        /// Who claims now.
        second: NodeLife,
    },
    /// Two nodes claim locks of applications of which only one can be: the second is not taken.
    #[error("inode {ino}: the locks of {first:?} and {second:?} conflict")]
    Lock {
        /// The inode.
        ino: InodeId,
        /// Who claimed first.
        first: NodeLife,
        /// Who claims now.
        second: NodeLife,
    },
    /// A number that was never given out, or one of another epoch: ignore the message.
    #[error("inode {ino}: {number} is not a state of {holder:?}")]
    Number {
        /// The inode.
        ino: InodeId,
        /// Who says so.
        holder: NodeLife,
        /// The number.
        number: TokenNumber,
    },
    /// A part of a reassertion came out of order: send from `next` on.
    #[error("{holder:?}: part {next} is next")]
    Order {
        /// Who.
        holder: NodeLife,
        /// The part that is missing.
        next: u32,
    },
    /// No grace period, or the node is not expected in it: it holds nothing, and must be told so.
    #[error("{holder:?} is not expected to reassert")]
    Unexpected {
        /// Who.
        holder: NodeLife,
    },
}

/// A waiting request, for `gupfs waiters`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The inode.
    pub ino: InodeId,
    /// Who asks.
    pub holder: NodeLife,
    /// The request.
    pub ticket: u64,
    /// What it wants.
    pub wants: Vec<Want>,
    /// Since when.
    pub since: Instant,
    /// Holders that were asked and have not answered, and since when. Empty: waits for an earlier request
    /// or for the end of the grace period.
    pub waits_for: Vec<(NodeLife, Instant)>,
}

/// Why the manager wants to be called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    /// Ask again for a waiter.
    Retry(InodeId, u64),
    /// Forget who changed the directory.
    Forget(InodeId),
}

/// Who must still reassert.
#[derive(Debug)]
struct Grace {
    /// Next part of each node that is not done.
    expected: BTreeMap<NodeLife, u32>,
    done: BTreeSet<NodeLife>,
}

/// The token manager of one shard.
#[derive(Debug)]
pub struct Manager {
    options: Options,
    epoch: Epoch,
    number: u64,
    waiter_id: u64,
    inodes: FxHashMap<InodeId, Inode>,
    held: Held,
    waiting_count: usize,
    timers: BTreeSet<(Instant, Timer)>,
    grace: Option<Grace>,
    reclaimed: Option<Instant>,
}

/// A state number has the shard's epoch above this bit.
pub(crate) const EPOCH_SHIFT: u32 = 44;

/// The first state number of an epoch of a shard: states of earlier epochs have lower ones, and a
/// reasserted state has this one.
pub const fn first_number(epoch: Epoch) -> TokenNumber {
    assert!(
        epoch.0 < 1 << (64 - EPOCH_SHIFT),
        "a shard changes its owner less than a million times"
    );
    TokenNumber((epoch.0 << EPOCH_SHIFT) + 1)
}

impl Manager {
    /// The manager of a shard whose owner has just changed to us, under `epoch`.
    pub fn new(epoch: Epoch, options: Options) -> Self {
        Self {
            options,
            epoch,
            number: first_number(epoch).0,
            waiter_id: 0,
            inodes: FxHashMap::default(),
            held: Held::default(),
            waiting_count: 0,
            timers: BTreeSet::new(),
            grace: None,
            reclaimed: None,
        }
    }

    /// Asks for wants on one inode. The answer is an `Effect::Granted`, now or later, once per ticket; a
    /// repeat of a waiting ticket changes nothing, one of a granted ticket is answered again.
    pub fn acquire(
        &mut self,
        now: Instant,
        request: Acquire,
        out: &mut Outbox,
    ) -> Result<(), Busy> {
        let Acquire { holder, ino, .. } = request;
        if let Some(inode) = self.inodes.get(&ino) {
            // Who knows the newest state, or has forgotten all up to a later one, and asks for part of it has given that up,
            // and its release is on its way or lost: it gets a new state below, which makes the release void.
            if let Some(entry) = inode.entry(holder)
                && (request.transient || request.seen < entry.number)
                && request.wants.iter().all(|w| entry.rights.covers(w))
                && !inode.is_behind_other(holder, &request.wants, inode.queue.len())
            {
                let holdings = if request.transient {
                    Vec::new()
                } else {
                    entry.rights.holdings(ino, entry.number)
                };
                let message = Granted {
                    ticket: request.ticket,
                    ino,
                    number: entry.number,
                    holdings,
                    contended: inode.is_contended(now, self.options.contended_for),
                };
                out.push(Effect::Granted { holder, message });
                return Ok(());
            }
            let is_repeat = |w: &Waiter| w.holder == holder && w.ticket == request.ticket;
            if inode.queue.iter().any(is_repeat) {
                return Ok(());
            }
        }
        let is_new = !request.transient && self.rights(holder, ino).is_none();
        self.has_room(now, is_new, out)?;
        self.waiter_id += 1;
        let waiter = Waiter {
            id: self.waiter_id,
            holder,
            ticket: request.ticket,
            wants: request.wants,
            transient: request.transient,
            since: now,
            asked: Vec::new(),
            timer: None,
        };
        let inode = self.inodes.entry(ino).or_default();
        match inode.judge(&waiter, inode.queue.len(), self.grace.is_some()) {
            Verdict::Grant => self.grant(now, ino, &waiter, out),
            Verdict::Wait(holders) => {
                let index = inode.queue.len();
                inode.queue.push(waiter);
                self.waiting_count += 1;
                self.ask(now, (ino, index), &holders, out);
            }
        }
        Ok(())
    }

    /// Drops a waiting request (its caller gave up). Revokes that it sent still count for others.
    pub fn cancel(
        &mut self,
        now: Instant,
        (holder, ticket): (NodeLife, u64),
        ino: InodeId,
        out: &mut Outbox,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let is_meant = |w: &Waiter| w.holder == holder && w.ticket == ticket;
        if let Some(index) = inode.queue.iter().position(is_meant) {
            let waiter = inode.queue.remove(index);
            self.drop_waiter(ino, &waiter);
            self.pump(now, ino, 0, out);
        }
    }

    /// The node holds all that the wants require: an operation may execute for it now.
    pub fn is_covered(&self, holder: NodeLife, ino: InodeId, wants: &[Want]) -> bool {
        let entry = self.inodes.get(&ino).and_then(|i| i.entry(holder));
        wants.is_empty() || entry.is_some_and(|e| wants.iter().all(|w| e.rights.covers(w)))
    }

    /// No other node holds or waits for what conflicts: the wants would be granted at once.
    pub fn is_free(&self, holder: NodeLife, ino: InodeId, wants: &[Want]) -> bool {
        let Some(inode) = self.inodes.get(&ino) else {
            return self.grace.is_none();
        };
        let waiter = Waiter {
            id: 0,
            holder,
            ticket: 0,
            wants: wants.to_vec(),
            transient: false,
            since: Instant(0),
            asked: Vec::new(),
            timer: None,
        };
        let verdict = inode.judge(&waiter, inode.queue.len(), self.grace.is_some());
        matches!(verdict, Verdict::Grant)
    }

    /// Nodes are still saying what they hold: nothing is granted.
    pub const fn is_in_grace(&self) -> bool {
        self.grace.is_some()
    }

    /// Nobody else holds what conflicts with the wants: a transient operation may execute for the node now.
    pub fn is_clear(&self, holder: NodeLife, ino: InodeId, wants: &[Want]) -> bool {
        let conflicts =
            |e: &Entry| e.holder != holder && wants.iter().any(|w| e.rights.conflicts(w));
        self.grace.is_none()
            && !self
                .inodes
                .get(&ino)
                .is_some_and(|i| i.entries.iter().any(conflicts))
    }

    /// What a node holds on an inode, and the number of that state; for the owner's check of Commits.
    pub fn rights(&self, holder: NodeLife, ino: InodeId) -> Option<(TokenNumber, &Rights)> {
        let entry = self.inodes.get(&ino)?.entry(holder)?;
        Some((entry.number, &entry.rights))
    }

    /// The node may change all of `range` in its cache; for the owner's check of Commits.
    pub fn covers_write(&self, holder: NodeLife, ino: InodeId, range: &ByteRange) -> bool {
        let rights = self.rights(holder, ino);
        rights.is_some_and(|(_, r)| r.covers_range(RangeMode::Write, range))
    }

    /// Nodes that hold a token on the inode, sorted.
    pub fn holders(&self, ino: InodeId) -> impl Iterator<Item = NodeLife> + '_ {
        let inode = self.inodes.get(&ino);
        inode
            .into_iter()
            .flat_map(|i| i.entries.iter().map(|e| e.holder))
    }

    /// A holder says what is left of a state. Answers whether this is the newest that it has said about a state on
    /// record: what else stands in the message (`still_open`) is out of date otherwise.
    pub fn on_released(
        &mut self,
        now: Instant,
        from: NodeLife,
        message: &Released,
        out: &mut Outbox,
    ) -> Result<bool, Misbehaved> {
        let ino = message.ino;
        let wrong = Misbehaved::Number {
            ino,
            holder: from,
            number: message.number,
        };
        if message.number.0 > self.number {
            return Err(wrong);
        }
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return Ok(false);
        };
        let Ok(at) = inode.find(from) else {
            return Ok(false);
        };
        let entry = &mut inode.entries[at];
        if message.number > entry.number {
            return Err(wrong);
        }
        if message.number < entry.number {
            // It crossed a grant: the holder will take that grant up, so nothing is given up yet.
            entry.crossed = true;
            let number = entry.number;
            inode.ask_again(ino, message.revoke, (from, number), out);
            self.pump(now, ino, 0, out);
            return Ok(false);
        }
        if message.sequence <= entry.sequence {
            // A newer release was here before; it said at least as much.
            inode.mark_answered(message.revoke, from);
            self.pump(now, ino, 0, out);
            return Ok(false);
        }
        let kept = Rights::from_kinds(&message.kept);
        let conflicts = |e: &&Entry| e.holder != from && e.rights.conflicts_with(&kept);
        if let Some(other) = inode.entries.iter().find(conflicts) {
            return Err(Misbehaved::Conflict {
                ino,
                first: other.holder,
                second: from,
            });
        }
        let entry = &mut inode.entries[at];
        entry.sequence = message.sequence;
        let is_news = message.sequence > entry.closed_sequence;
        entry.crossed = false;
        entry.rights = kept;
        if entry.rights.is_empty() {
            inode.entries.remove(at);
            self.held.remove(from);
        }
        inode.mark_answered(message.revoke, from);
        self.pump(now, ino, 0, out);
        Ok(is_news)
    }

    /// A holder has closed the inode after this release of its. What that or an earlier one says of opens is out of date
    /// when it comes: messages that are sent one after the other may overtake one another.
    pub fn on_closed(&mut self, from: NodeLife, ino: InodeId, after: ReleaseStamp) {
        let inode = self.inodes.get_mut(&ino);
        let found = inode.and_then(|inode| {
            let at = inode.find(from).ok()?;
            inode.entries.get_mut(at)
        });
        let Some(entry) = found else {
            // No release of it is heard any more.
            return;
        };
        let sequence = match after.number.cmp(&entry.number) {
            // Earlier ones name an earlier state.
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => after.sequence,
            // The holder knows the inode no longer.
            std::cmp::Ordering::Greater => u64::MAX,
        };
        entry.closed_sequence = entry.closed_sequence.max(sequence);
    }

    /// A life of a node is over, and nothing it holds can be used any more (its lease is over, or its
    /// mounts are aborted): its tokens and requests are gone.
    pub fn on_node_lost(&mut self, now: Instant, life: NodeLife, out: &mut Outbox) {
        if let Some(grace) = &mut self.grace {
            grace.expected.remove(&life);
        }
        let concerns = |i: &Inode| i.find(life).is_ok() || i.queue.iter().any(|w| w.holder == life);
        let concerned = self.inodes.iter().filter(|(_, i)| concerns(i));
        let mut concerned: Vec<InodeId> = concerned.map(|(ino, _)| *ino).collect();
        concerned.sort_unstable();
        for ino in concerned {
            let inode = self.inodes.get_mut(&ino).expect("it was there just now");
            if let Ok(at) = inode.find(life) {
                inode.entries.remove(at);
                self.held.remove(life);
            }
            let gone = |w: &mut Waiter| w.holder == life;
            let dropped: Vec<Waiter> = inode.queue.extract_if(.., gone).collect();
            for waiter in &dropped {
                self.drop_waiter(ino, waiter);
            }
            self.pump(now, ino, 0, out);
        }
    }

    /// The inode is gone for good, and its number is never given again: what is recorded of it would stay for ever,
    /// for its holders have nothing to release. Who waits for it is granted what it wants, and finds it gone.
    pub fn on_inode_gone(&mut self, now: Instant, ino: InodeId, out: &mut Outbox) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        for entry in inode.entries.drain(..) {
            self.held.remove(entry.holder);
        }
        self.pump(now, ino, 0, out);
    }

    /// The shard has a new owner: until [`Manager::end_grace`] nothing is granted, and the expected nodes
    /// say what they hold. To be called on a new manager.
    pub fn begin_grace(&mut self, expected: &[NodeLife]) {
        assert!(
            self.inodes.is_empty(),
            "grace is the first phase of a manager"
        );
        self.grace = Some(Grace {
            expected: expected.iter().map(|life| (*life, 0)).collect(),
            done: BTreeSet::new(),
        });
    }

    /// Nodes that have not said yet what they hold; none when there is no grace period.
    pub fn missing(&self) -> impl Iterator<Item = NodeLife> + '_ {
        self.grace.iter().flat_map(|g| g.expected.keys().copied())
    }

    /// [`Manager::reassert`] would take this part now: it is neither a repeat nor out of order, and its sender is expected.
    pub fn is_next_part(&self, life: NodeLife, part: u32) -> bool {
        let next = self.grace.as_ref().and_then(|g| g.expected.get(&life));
        next == Some(&part)
    }

    /// A node says what it holds. On a conflict, a bug of one of the two, the inode's part is not recorded.
    pub fn reassert(&mut self, life: NodeLife, message: &Reassert) -> Result<(), Misbehaved> {
        let Some(grace) = &mut self.grace else {
            return Err(Misbehaved::Unexpected { holder: life });
        };
        if grace.done.contains(&life) {
            return Ok(());
        }
        let Some(next) = grace.expected.get_mut(&life) else {
            return Err(Misbehaved::Unexpected { holder: life });
        };
        if message.part < *next {
            return Ok(());
        }
        if message.part > *next {
            let next = *next;
            return Err(Misbehaved::Order { holder: life, next });
        }
        *next += 1;
        if message.is_last {
            grace.expected.remove(&life);
            grace.done.insert(life);
        }
        let mut by_inode: BTreeMap<InodeId, Vec<&Holding>> = BTreeMap::new();
        for holding in &message.holdings {
            by_inode.entry(holding.ino).or_default().push(holding);
        }
        let mut result = Ok(());
        for (ino, holdings) in by_inode {
            result = result.and(self.reassert_inode(life, ino, &holdings));
        }
        result
    }

    fn reassert_inode(
        &mut self,
        life: NodeLife,
        ino: InodeId,
        holdings: &[&Holding],
    ) -> Result<(), Misbehaved> {
        let number = first_number(self.epoch);
        if let Some(wrong) = holdings.iter().find(|h| h.number != number) {
            return Err(Misbehaved::Number {
                ino,
                holder: life,
                number: wrong.number,
            });
        }
        let rights = Rights::from_kinds(holdings.iter().map(|h| &h.kind));
        let inode = self.inodes.entry(ino).or_default();
        let conflicts = |e: &&Entry| e.holder != life && e.rights.conflicts_with(&rights);
        if let Some(other) = inode.entries.iter().find(conflicts) {
            return Err(Misbehaved::Conflict {
                ino,
                first: other.holder,
                second: life,
            });
        }
        if let Err(at) = inode.find(life)
            && !rights.is_empty()
        {
            self.held.add(life);
            inode.entries.insert(at, Entry::new(life, number, rights));
        }
        Ok(())
    }

    /// Every leased node has reasserted or is dead: requests go on.
    pub fn end_grace(&mut self, now: Instant, out: &mut Outbox) {
        let grace = self.grace.take().expect("the grace period had begun");
        assert!(
            grace.expected.is_empty(),
            "every expected node has answered or is lost"
        );
        let mut waited: Vec<InodeId> = self.inodes.keys().copied().collect();
        waited.sort_unstable();
        for ino in waited {
            self.pump(now, ino, 0, out);
        }
    }

    /// Call [`Manager::on_timeout`] then. Ask again after each call of another method.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Says again what was not answered, reports who is silent, forgets who changed directories.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Outbox) {
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Retry(ino, id) => self.retry(now, ino, id, out),
                Timer::Forget(ino) => {
                    if let Some(inode) = self.inodes.get_mut(&ino) {
                        let contended_for = self.options.contended_for;
                        let is_old = |t: Instant| now >= t + contended_for;
                        if inode.changed[0].is_some_and(|(_, t)| is_old(t)) {
                            inode.changed = [None; 2];
                        } else if let Some((_, t)) = inode.changed[0] {
                            self.timers.insert((t + contended_for, timer));
                        }
                        self.tidy(ino);
                    }
                }
            }
        }
    }

    /// Refuses when a table is full, and asks for tokens back before it is.
    fn has_room(&mut self, now: Instant, is_new: bool, out: &mut Outbox) -> Result<(), Busy> {
        let count_of = |count: usize| u64::try_from(count).expect("a count of things in memory");
        if self.waiting_count >= self.options.waiting_count_max {
            let count = count_of(self.waiting_count);
            return Err(Busy::Waiting { count });
        }
        let count = self.held.count;
        let due = self
            .reclaimed
            .is_none_or(|at| now >= at + self.options.retry_after);
        if is_new && due && count >= self.options.token_count_max - self.options.token_count_max / 8
        {
            self.reclaimed = Some(now);
            if let Some(to) = self.held.most() {
                let count = count_of(self.options.token_count_max / 8).max(1);
                let message = Reclaim { count };
                out.push(Effect::Reclaim { to, message });
            }
        }
        if is_new && count >= self.options.token_count_max {
            let count = count_of(count);
            return Err(Busy::Tokens { count });
        }
        Ok(())
    }

    /// Looks at the waiting requests from place `index` on: grants what can be, asks whom it takes.
    fn pump(&mut self, now: Instant, ino: InodeId, mut index: usize, out: &mut Outbox) {
        let grace = self.grace.is_some();
        while let Some(inode) = self.inodes.get_mut(&ino)
            && index < inode.queue.len()
        {
            let verdict = inode.judge(&inode.queue[index], index, grace);
            match verdict {
                Verdict::Grant => {
                    let waiter = inode.queue.remove(index);
                    self.drop_waiter(ino, &waiter);
                    self.grant(now, ino, &waiter, out);
                }
                Verdict::Wait(holders) => {
                    self.ask(now, (ino, index), &holders, out);
                    index += 1;
                }
            }
        }
        self.tidy(ino);
    }

    /// Asks `holders` for the waiter at a place of the queue, if it has not asked them; forgets whom it
    /// waits for no longer.
    fn ask(
        &mut self,
        now: Instant,
        (ino, index): (InodeId, usize),
        holders: &[NodeLife],
        out: &mut Outbox,
    ) {
        let inode = self
            .inodes
            .get_mut(&ino)
            .expect("the caller has just had it");
        let wants = inode.effective_wants(&inode.queue[index]).into_owned();
        let waiter = &mut inode.queue[index];
        waiter
            .asked
            .retain(|a| a.is_answered || holders.contains(&a.holder));
        for holder in holders {
            match waiter.asked.iter_mut().find(|a| a.holder == *holder) {
                Some(asked) if !asked.is_answered => continue,
                // It has answered and still holds what is required: ask until it has given that up.
                Some(asked) => asked.is_answered = false,
                None => waiter.asked.push(Asked {
                    holder: *holder,
                    since: now,
                    reported: now,
                    is_answered: false,
                }),
            }
            let entry = inode.entries.iter().find(|e| e.holder == *holder);
            let message = Revoke {
                ino,
                number: entry.expect("who has nothing is not asked").number,
                revoke: waiter.id,
                wants: wants.clone(),
            };
            out.push(Effect::Revoke {
                to: *holder,
                message,
            });
        }
        let timer = Timer::Retry(ino, waiter.id);
        if waiter.asked.iter().all(|a| a.is_answered) {
            if let Some(at) = waiter.timer.take() {
                self.timers.remove(&(at, timer));
            }
        } else if waiter.timer.is_none() {
            let at = now + self.options.retry_after;
            waiter.timer = Some(at);
            self.timers.insert((at, timer));
        }
    }

    /// Records and answers a request that nothing stands against. The waiter is not in the queue.
    fn grant(&mut self, now: Instant, ino: InodeId, waiter: &Waiter, out: &mut Outbox) {
        let inode = self
            .inodes
            .get_mut(&ino)
            .expect("the caller has just had it");
        if inode.note_change(now, waiter) {
            let at = now + self.options.contended_for;
            self.timers.insert((at, Timer::Forget(ino)));
        }
        let contended = inode.is_contended(now, self.options.contended_for);
        let holder = waiter.holder;
        let mut number = TokenNumber(0);
        let mut holdings = Vec::new();
        if !waiter.transient {
            let found = inode.find(holder);
            let old = found.ok().map(|at| &inode.entries[at].rights);
            let rights = match inode.rights_after(waiter, old, self.options.piece_count_max) {
                Ok(rights) => rights,
                Err(busy) => {
                    let message = Refused {
                        ticket: waiter.ticket,
                        ino,
                        busy,
                    };
                    out.push(Effect::Refused { holder, message });
                    return;
                }
            };
            self.number += 1;
            number = TokenNumber(self.number);
            holdings = rights.holdings(ino, number);
            match found {
                Ok(at) => {
                    let crossed = inode.entries[at].crossed;
                    inode.entries[at] = Entry::new(holder, number, rights);
                    inode.entries[at].crossed = crossed;
                }
                Err(at) => {
                    // Most inodes have one holder; room for four would be most of the memory.
                    inode.entries.reserve_exact(1);
                    inode.entries.insert(at, Entry::new(holder, number, rights));
                    self.held.add(holder);
                }
            }
        }
        let message = Granted {
            ticket: waiter.ticket,
            ino,
            number,
            holdings,
            contended,
        };
        out.push(Effect::Granted { holder, message });
        self.tidy(ino);
    }

    /// Takes a waiter that has left the queue off the books.
    fn drop_waiter(&mut self, ino: InodeId, waiter: &Waiter) {
        self.waiting_count -= 1;
        if let Some(at) = waiter.timer {
            self.timers.remove(&(at, Timer::Retry(ino, waiter.id)));
        }
    }

    /// Forgets an inode about which there is nothing to know.
    fn tidy(&mut self, ino: InodeId) {
        let is_idle = |i: &Inode| i.entries.is_empty() && i.queue.is_empty();
        let inode = self.inodes.get(&ino);
        if inode.is_some_and(|i| is_idle(i) && i.changed[0].is_none()) {
            self.inodes.remove(&ino);
        }
    }

    fn retry(&mut self, now: Instant, ino: InodeId, id: u64, out: &mut Outbox) {
        let inode = self.inodes.get_mut(&ino).expect("a timer's inode is there");
        let index = inode.queue.iter().position(|w| w.id == id);
        let index = index.expect("a timer's waiter is there");
        let wants = inode.effective_wants(&inode.queue[index]).into_owned();
        let waiter = &mut inode.queue[index];
        for asked in waiter.asked.iter_mut().filter(|a| !a.is_answered) {
            let entry = inode.entries.iter().find(|e| e.holder == asked.holder);
            let message = Revoke {
                ino,
                number: entry.expect("who has nothing is not asked").number,
                revoke: id,
                wants: wants.clone(),
            };
            out.push(Effect::Revoke {
                to: asked.holder,
                message,
            });
            if now >= asked.reported + self.options.silent_after {
                asked.reported = now;
                out.push(Effect::Silent {
                    holder: asked.holder,
                    since: asked.since,
                });
            }
        }
        let at = now + self.options.retry_after;
        waiter.timer = Some(at);
        self.timers.insert((at, Timer::Retry(ino, id)));
    }

    /// Who waits for whom, since when; sorted by inode, then in order of arrival.
    pub fn waiters(&self) -> Vec<Waiting> {
        let mut all: Vec<Waiting> = Vec::with_capacity(self.waiting_count);
        for (ino, inode) in &self.inodes {
            all.extend(inode.queue.iter().map(|w| Waiting {
                ino: *ino,
                holder: w.holder,
                ticket: w.ticket,
                wants: w.wants.clone(),
                since: w.since,
                waits_for: w.asked.iter().map(|a| (a.holder, a.since)).collect(),
            }));
        }
        // Stable: the order within an inode stays.
        all.sort_by_key(|w| w.ino);
        all
    }

    /// (Inode, holder) pairs with rights.
    pub fn token_count(&self) -> usize {
        self.held.count
    }

    /// Who has not answered a revoke of tokens for the longest time, and since when: of those on `ino`, where that is given, else of all.
    /// O(requests that wait).
    pub fn silent_holder(&self, ino: Option<InodeId>) -> Option<(Instant, NodeLife)> {
        let silent = |ino: InodeId| {
            let inode = self.inodes.get(&ino)?;
            let asked = inode.queue.iter().flat_map(|waiter| &waiter.asked);
            let silent = asked.filter(|asked| !asked.is_answered);
            silent
                .min_by_key(|asked| asked.since)
                .map(|a| (a.since, a.holder))
        };
        let all = self.timers.iter().filter_map(|(_, timer)| match timer {
            Timer::Retry(ino, _) => silent(*ino),
            Timer::Forget(_) => None,
        });
        match ino {
            Some(ino) => silent(ino),
            None => all.min_by_key(|(since, _)| *since),
        }
    }

    /// Requests that wait for what others hold.
    pub fn waiting_count(&self) -> usize {
        self.waiting_count
    }

    /// Asserts the invariants of this module.
    pub fn check(&self) {
        let (mut token_count, mut waiting_count, mut timer_count) = (0, 0, 0);
        for (ino, inode) in &self.inodes {
            token_count += inode.entries.len();
            waiting_count += inode.queue.len();
            assert!(inode.entries.is_sorted_by(|a, b| a.holder < b.holder));
            for (index, entry) in inode.entries.iter().enumerate() {
                assert!(!entry.rights.is_empty());
                assert!(entry.number.0 <= self.number);
                for other in &inode.entries[index + 1..] {
                    assert!(
                        !entry.rights.conflicts_with(&other.rights),
                        "{ino}: {entry:?} and {other:?} conflict"
                    );
                }
            }
            for (index, waiter) in inode.queue.iter().enumerate() {
                let is_open = waiter.asked.iter().any(|a| !a.is_answered);
                assert_eq!(waiter.timer.is_some(), is_open);
                if let Some(at) = waiter.timer {
                    assert!(self.timers.contains(&(at, Timer::Retry(*ino, waiter.id))));
                    timer_count += 1;
                }
                match inode.judge(waiter, index, self.grace.is_some()) {
                    Verdict::Grant => panic!("{ino}: {waiter:?} waits for nothing"),
                    Verdict::Wait(holders) => {
                        let asked = waiter.asked.iter().filter(|a| !a.is_answered);
                        let asked: BTreeSet<NodeLife> = asked.map(|a| a.holder).collect();
                        let mut more: BTreeSet<NodeLife> = holders.into_iter().collect();
                        // One whose own release crossed a grant after it asked asks nobody new.
                        let is_known = inode.is_held_back(waiter) || asked.is_subset(&more);
                        assert!(is_known, "{ino}: {waiter:?} {more:?}");
                        // Others may get what it only desires meanwhile: it asks them when it is looked at again.
                        more.retain(|holder| inode.must_release(waiter, *holder));
                        assert!(more.is_subset(&asked), "{ino}: {waiter:?} {more:?}");
                    }
                }
            }
            timer_count += usize::from(inode.changed[0].is_some());
            let is_known = !inode.entries.is_empty() || !inode.queue.is_empty();
            assert!(is_known || inode.changed[0].is_some());
        }
        assert_eq!(token_count, self.held.count);
        assert_eq!(waiting_count, self.waiting_count);
        assert_eq!(timer_count, self.timers.len());
    }
}

/// How many inodes each node has rights on.
#[derive(Debug, Default)]
struct Held {
    count: usize,
    by_holder: BTreeMap<NodeLife, usize>,
}

impl Held {
    fn add(&mut self, holder: NodeLife) {
        self.count += 1;
        *self.by_holder.entry(holder).or_default() += 1;
    }

    fn remove(&mut self, holder: NodeLife) {
        self.count -= 1;
        let count = self.by_holder.get_mut(&holder).expect("it was added");
        *count -= 1;
        if *count == 0 {
            self.by_holder.remove(&holder);
        }
    }

    /// Who has most.
    fn most(&self) -> Option<NodeLife> {
        let most = self.by_holder.iter().max_by_key(|(_, count)| **count);
        most.map(|(holder, _)| *holder)
    }
}
