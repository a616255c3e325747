//! Locks of this node's applications on the inodes of one slice: what they hold, and what is asked of the owner.
//!
//! Invariants
//! - Changes of an inode go to its owner one at a time, in the order in which they came, under numbers that grow. So what is
//!   noted here as held is what the owner has, but for the change on its way.
//! - Claims have a queue of their own, and what is not one goes before them, up to `PASSING_COUNT_MAX` changes in a row: with thousands of waits an unlock does not
//!   stand behind thousands of questions. A wait can be granted at any time of its life, so that its Claim needs no order among other changes but
//!   two: it does not follow the Cancel of its wait, with which it leaves the queue, and does not come into the midst of a grant that is undone, which
//!   would take what it has got.
//! - A request has one answer: when its change is done, when it was interrupted, or when its patience is over.
//! - Of who was told that he does not have the lock nothing stays at the owner: a wait is cancelled, a grant undone.
//! - What was told to a new owner is what it begins with: answers of the former one that come later count for nothing, and
//!   their changes are asked again.
//!
//! Life cycle of a wait: `Set` -> `Waits` -> the owner says that it is its turn, or some time has passed -> `Claim` -> held;
//! or a signal -> `Cancel`.
//!
//! Requests are bounded, and those of one user, or that wait, leave room for others: `requests`.
//!
//! An inode without locks is not here: closing a file costs a look at an empty table.

mod requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use token::locks::message::{LockAction, LockAnswer, LockAsk};
use token::locks::pieces::{LockPiece, Pieces};
use types::{
    ByteRange, Duration, Errno, InodeId, Instant, Lock, LockKind, LockMode, LockOwner, ShardId,
};

use crate::request::{Handle, Ticket, TicketPart};
pub(crate) use requests::Asker;
use requests::Requests;

/// A wait asks whether it is its turn after this: what the owner said may be lost.
const CLAIM_AFTER: Duration = Duration::from_millis(2000);
/// A close, or a change whose caller got a signal, waits no longer for an owner that is away.
const PATIENCE: Duration = Duration::from_millis(5000);

/// So many changes go before Claims that are queued: an offer keeps others from what it offers until it is claimed.
const PASSING_COUNT_MAX: u32 = 16;

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockEffect {
    /// Ask the owner of the inode; the answer goes to `on_answer`.
    Ask(InodeId, LockAsk),
    /// The request has succeeded.
    Done(Ticket),
    /// It has not.
    Failed(Ticket, Errno),
}

/// A change that waits for its turn, or for its answer.
#[derive(Clone, Copy, Debug)]
enum Job {
    Set {
        lock: Lock,
        waits: bool,
        handle: Option<Handle>,
        ticket: Option<Ticket>,
    },
    Claim {
        wait: u64,
    },
    Cancel {
        wait: u64,
    },
    Clear {
        owner: LockOwner,
        range: ByteRange,
        ticket: Option<Ticket>,
        is_close: bool,
    },
    /// An open file is gone: becomes a `Clear` when it is its turn, if the owner has nothing through another one. What is queued
    /// before it may be another file's that has its number.
    Release {
        owner: LockOwner,
        handle: Handle,
    },
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    job: Job,
    since: Instant,
    /// Its caller got a signal.
    signalled: Option<Instant>,
    /// Its caller has been told that it failed.
    is_abandoned: bool,
}

/// The change that the owner has been asked for.
#[derive(Debug)]
struct Flight {
    queued: Queued,
    /// The number of the wait that is asked about: of a Set its own.
    wait: u64,
    /// Its answer counts for nothing: it may be of an owner that is no more.
    is_void: bool,
    /// The owner said that it is its turn before it said that it waits.
    is_ready: bool,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    lock: Lock,
    handle: Option<Handle>,
    ticket: Ticket,
    since: Instant,
    asked: Instant,
    is_claiming: bool,
    signalled: Option<Instant>,
}

/// What a lock owner has.
#[derive(Debug, Default)]
struct Held {
    pieces: Pieces,
    /// The open files through which it was taken.
    handles: BTreeSet<Handle>,
}

#[derive(Debug, Default)]
struct InodeLocks {
    held: BTreeMap<LockOwner, Held>,
    /// Changes but Claims.
    queue: VecDeque<Queued>,
    /// Waits to be claimed.
    claims: VecDeque<u64>,
    /// Changes that have gone before these since the last one of them.
    passing_count: u32,
    flight: Option<Flight>,
    waits: BTreeMap<u64, Wait>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    inodes: BTreeMap<InodeId, InodeLocks>,
    /// The last number.
    number: u64,
    /// Those queued and waiting.
    requests: Requests,
}

impl Job {
    const fn ticket(&self) -> Option<Ticket> {
        match self {
            Self::Set { ticket, .. } | Self::Clear { ticket, .. } => *ticket,
            Self::Claim { .. } | Self::Cancel { .. } | Self::Release { .. } => None,
        }
    }

    /// A part of a grant that is undone: nobody has asked for it.
    const fn is_undo(&self) -> bool {
        match self {
            Self::Set { ticket, .. } => ticket.is_none(),
            Self::Clear {
                ticket, is_close, ..
            } => ticket.is_none() && !*is_close,
            Self::Claim { .. } | Self::Cancel { .. } | Self::Release { .. } => false,
        }
    }

    const fn action(&self) -> LockAction {
        match *self {
            Self::Set { lock, waits, .. } => LockAction::Set { lock, waits },
            Self::Claim { wait } => LockAction::Claim { wait },
            Self::Cancel { wait } => LockAction::Cancel { wait },
            Self::Clear { owner, range, .. } => LockAction::Clear { owner, range },
            Self::Release { owner, .. } => LockAction::Clear {
                owner,
                range: ByteRange::ALL,
            },
        }
    }
}

impl Queued {
    const fn new(job: Job, since: Instant) -> Self {
        Self {
            job,
            since,
            signalled: None,
            is_abandoned: false,
        }
    }
}

impl InodeLocks {
    fn is_empty(&self) -> bool {
        let is_idle = self.queue.is_empty() && self.flight.is_none();
        is_idle && self.held.is_empty() && self.waits.is_empty()
    }

    /// This lock owner may have something: noted, or on its way.
    fn concerns(&self, owner: LockOwner) -> bool {
        let mut jobs = self.flight.iter().map(|f| &f.queued).chain(&self.queue);
        self.held.contains_key(&owner)
            || jobs.any(|queued| matches!(queued.job, Job::Set { lock, .. } if lock.owner == owner))
    }

    /// What the owner is to be asked next.
    fn next_job(&mut self, now: Instant) -> Option<Queued> {
        if self.claims.is_empty() {
            self.passing_count = 0;
            return self.next_queued();
        }
        let is_undoing = self.queue.front().is_some_and(|next| next.job.is_undo());
        if (is_undoing || self.passing_count < PASSING_COUNT_MAX)
            && let Some(queued) = self.next_queued()
        {
            self.passing_count += 1;
            return Some(queued);
        }
        self.passing_count = 0;
        let wait = self.claims.pop_front()?;
        Some(Queued::new(Job::Claim { wait }, now))
    }

    fn next_queued(&mut self) -> Option<Queued> {
        while let Some(mut queued) = self.queue.pop_front() {
            let Job::Release { owner, handle } = queued.job else {
                return Some(queued);
            };
            let Some(held) = self.held.get_mut(&owner) else {
                continue;
            };
            if held.handles.remove(&handle) && held.handles.is_empty() {
                queued.job = Job::Clear {
                    owner,
                    range: ByteRange::ALL,
                    ticket: None,
                    is_close: true,
                };
                return Some(queued);
            }
        }
        None
    }

    fn note_set(&mut self, lock: &Lock, handle: Option<Handle>) {
        let held = self.held.entry(lock.owner).or_default();
        held.pieces.set(lock);
        held.handles.extend(handle);
    }

    fn note_clear(&mut self, owner: LockOwner, range: ByteRange) {
        if let Some(held) = self.held.get_mut(&owner) {
            held.pieces.clear(range);
            if held.pieces.is_empty() {
                self.held.remove(&owner);
            }
        }
    }

    /// A flock that was to be converted is given up where the new one is not to be had at once.
    fn note_unconverted(&mut self, lock: &Lock) {
        let held = self.held.get(&lock.owner);
        let converts = held.is_some_and(|held| held.pieces.conflict(lock).is_some());
        if lock.owner.kind == LockKind::Flock && converts {
            self.note_clear(lock.owner, ByteRange::ALL);
        }
    }

    /// The owner is no more. Whether it has executed the change that is on its way nobody knows: the change is asked for again,
    /// and what is left by it and without it alike is noted as held. Another may have been granted the rest.
    fn weaken(&mut self) {
        let Some(flight) = &mut self.flight else {
            return;
        };
        flight.is_void = true;
        let lock = match flight.queued.job {
            Job::Clear { owner, range, .. } => return self.note_clear(owner, range),
            Job::Cancel { .. } | Job::Release { .. } => return,
            Job::Set { lock, .. } => lock,
            Job::Claim { wait } => match self.waits.get(&wait) {
                Some(wait) => wait.lock,
                None => return,
            },
        };
        self.note_unconverted(&lock);
        self.note_weaker(&lock);
    }

    /// Where a lock for reading is set, a write lock is none any more.
    fn note_weaker(&mut self, lock: &Lock) {
        if lock.mode == LockMode::Read
            && let Some(held) = self.held.get_mut(&lock.owner)
        {
            for piece in held.pieces.within(lock.range) {
                let mode = LockMode::Read;
                held.pieces
                    .set(&LockPiece { mode, ..piece }.lock(lock.owner));
            }
        }
    }

    /// What nobody was told of is given back, and what its lock owner had there before is his again, without a moment in which others can have it: a
    /// write lock becomes one for reading in its place, then the bytes between are unlocked. What is noted meanwhile is no more than the owner has.
    ///
    /// A write lock that had become one for reading may be refused: the lock for reading, which was asked for, stays. A flock's conversion
    /// gives the old one up, here as when it is made: another may have it then.
    fn undo(&mut self, now: Instant, lock: &Lock) {
        let held = self.held.get(&lock.owner);
        let before = held.map_or_else(Vec::new, |held| held.pieces.within(lock.range));
        let handle = held.and_then(|held| held.handles.first().copied());
        let again = before.iter().map(|piece| Job::Set {
            lock: piece.lock(lock.owner),
            waits: false,
            handle,
            ticket: None,
        });
        let clear = |range| Job::Clear {
            owner: lock.owner,
            range,
            ticket: None,
            is_close: false,
        };
        let jobs: Vec<Job> = match lock.owner.kind {
            LockKind::Posix => again.chain(gaps(lock.range, &before).map(clear)).collect(),
            LockKind::Flock => [clear(lock.range)].into_iter().chain(again).collect(),
        };
        self.note_weaker(lock);
        for job in jobs.into_iter().rev() {
            self.queue.push_front(Queued::new(job, now));
        }
    }
}

impl Locks {
    /// Nothing is locked, nor asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.inodes.is_empty()
    }

    fn push(&mut self, now: Instant, ino: InodeId, job: Job, asker: Option<Asker>) {
        if let Some(ticket) = job.ticket() {
            self.requests.begin(ticket, asker);
        }
        let inode = self.inodes.entry(ino).or_default();
        inode.queue.push_back(Queued::new(job, now));
    }

    /// An application locks.
    pub(crate) fn set(
        &mut self,
        now: Instant,
        ticket: Ticket,
        (ino, handle): (InodeId, Handle),
        (lock, asker): (Lock, Asker),
        out: &mut Vec<LockEffect>,
    ) {
        if !self.requests.has_room(asker) {
            return out.push(LockEffect::Failed(ticket, Errno::ENOLCK));
        }
        let job = Job::Set {
            lock,
            waits: asker.waits,
            handle: Some(handle),
            ticket: Some(ticket),
        };
        self.push(now, ino, job, Some(asker));
        self.pump(now, ino, out);
    }

    /// An application unlocks.
    pub(crate) fn clear(
        &mut self,
        now: Instant,
        (ticket, ino): (Ticket, InodeId),
        (owner, range): (LockOwner, ByteRange),
        out: &mut Vec<LockEffect>,
    ) {
        let inode = self.inodes.get(&ino);
        if !inode.is_some_and(|inode| inode.concerns(owner)) {
            return out.push(LockEffect::Done(ticket));
        }
        let job = Job::Clear {
            owner,
            range,
            ticket: Some(ticket),
            is_close: false,
        };
        self.push(now, ino, job, None);
        self.pump(now, ino, out);
    }

    /// A process closes a descriptor of the inode: its locks go, whichever descriptor they were taken by. False: it has none,
    /// and the close need not wait.
    pub(crate) fn close(
        &mut self,
        now: Instant,
        (ticket, ino): (Ticket, InodeId),
        id: u64,
        out: &mut Vec<LockEffect>,
    ) -> bool {
        let owner = LockOwner {
            kind: LockKind::Posix,
            id,
        };
        let inode = self.inodes.get(&ino);
        if !inode.is_some_and(|inode| inode.concerns(owner)) {
            return false;
        }
        let job = Job::Clear {
            owner,
            range: ByteRange::ALL,
            ticket: Some(ticket),
            is_close: true,
        };
        self.push(now, ino, job, None);
        self.pump(now, ino, out);
        true
    }

    /// An open file is gone: what was taken through it alone goes.
    pub(crate) fn release(
        &mut self,
        now: Instant,
        (ino, handle): (InodeId, Handle),
        out: &mut Vec<LockEffect>,
    ) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let has_it =
            |(owner, held): (&LockOwner, &Held)| held.handles.contains(&handle).then_some(*owner);
        let mut owners: BTreeSet<LockOwner> = inode.held.iter().filter_map(has_it).collect();
        let jobs = inode.flight.iter().map(|f| &f.queued).chain(&inode.queue);
        owners.extend(jobs.filter_map(|queued| match queued.job {
            Job::Set {
                lock,
                handle: through,
                ..
            } if through == Some(handle) => Some(lock.owner),
            _ => None,
        }));
        for owner in owners {
            let job = Job::Release { owner, handle };
            inode.queue.push_back(Queued::new(job, now));
        }
        self.pump(now, ino, out);
    }

    /// Asks the owner for the next change, unless one is on its way.
    fn pump(&mut self, now: Instant, ino: InodeId, out: &mut Vec<LockEffect>) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        if inode.flight.is_none()
            && let Some(queued) = inode.next_job(now)
        {
            self.number = now.0.max(self.number.saturating_add(1));
            let number = self.number;
            let action = queued.job.action();
            out.push(LockEffect::Ask(ino, LockAsk { number, action }));
            let wait = match queued.job {
                Job::Claim { wait } => wait,
                _ => number,
            };
            inode.flight = Some(Flight {
                queued,
                wait,
                is_void: false,
                is_ready: false,
            });
        }
        if inode.is_empty() {
            self.inodes.remove(&ino);
        }
    }

    fn end(
        &mut self,
        ticket: Option<Ticket>,
        result: Result<(), Errno>,
        out: &mut Vec<LockEffect>,
    ) {
        let Some(ticket) = ticket else {
            return;
        };
        self.requests.end(ticket);
        out.push(match result {
            Ok(()) => LockEffect::Done(ticket),
            Err(errno) => LockEffect::Failed(ticket, errno),
        });
    }

    /// The owner has answered the change that is on its way. `Err`: it was not executed, and never will be.
    pub(crate) fn on_answer(
        &mut self,
        now: Instant,
        ino: InodeId,
        answer: Result<LockAnswer, Errno>,
        out: &mut Vec<LockEffect>,
    ) {
        let inode = self.inodes.get_mut(&ino);
        let Some(flight) = inode.and_then(|inode| inode.flight.take()) else {
            return;
        };
        match answer {
            Ok(LockAnswer::Stale { newest }) => {
                self.number = self.number.max(newest);
                self.ask_again(ino, flight);
            }
            _ if flight.is_void => self.ask_again(ino, flight),
            answer => self.take_answer(now, ino, flight, answer, out),
        }
        self.pump(now, ino, out);
    }

    /// It was not executed by this owner, and goes first again.
    fn ask_again(&mut self, ino: InodeId, flight: Flight) {
        let inode = self.inodes.get_mut(&ino).expect("it had a flight");
        let mut queued = flight.queued;
        if let Job::Claim { wait } = queued.job {
            // The owner does not know the wait.
            let Some(wait) = inode.waits.remove(&wait) else {
                return;
            };
            queued.signalled = wait.signalled;
            queued.since = wait.since;
            queued.job = Job::Set {
                lock: wait.lock,
                waits: true,
                handle: wait.handle,
                ticket: Some(wait.ticket),
            };
        }
        let is_pointless = matches!(queued.job, Job::Set { .. }) && queued.is_abandoned;
        if !is_pointless && !matches!(queued.job, Job::Cancel { .. }) {
            inode.queue.push_front(queued);
        }
    }

    fn take_answer(
        &mut self,
        now: Instant,
        ino: InodeId,
        flight: Flight,
        answer: Result<LockAnswer, Errno>,
        out: &mut Vec<LockEffect>,
    ) {
        let inode = self.inodes.get_mut(&ino).expect("it had a flight");
        let queued = flight.queued;
        match queued.job {
            Job::Set {
                lock,
                handle,
                ticket,
                ..
            } => match answer {
                Ok(LockAnswer::Done) if queued.is_abandoned => inode.undo(now, &lock),
                Ok(LockAnswer::Done) => {
                    inode.note_set(&lock, handle);
                    self.end(ticket, Ok(()), out);
                }
                Ok(LockAnswer::Waits) => {
                    inode.note_unconverted(&lock);
                    let wait = flight.wait;
                    if queued.is_abandoned || queued.signalled.is_some() {
                        let cancel = Job::Cancel { wait };
                        inode.queue.push_front(Queued::new(cancel, now));
                        return self.end(ticket, Err(Errno::EINTR), out);
                    }
                    let Some(ticket) = ticket else {
                        // Something to be taken again, which was not to wait.
                        let cancel = Job::Cancel { wait };
                        return inode.queue.push_front(Queued::new(cancel, now));
                    };
                    let held = Wait {
                        lock,
                        handle,
                        ticket,
                        since: queued.since,
                        asked: now,
                        is_claiming: flight.is_ready,
                        signalled: None,
                    };
                    inode.waits.insert(wait, held);
                    if flight.is_ready {
                        inode.claims.push_front(wait);
                    }
                }
                Ok(LockAnswer::Conflict) => {
                    inode.note_unconverted(&lock);
                    self.end(ticket, Err(Errno::EAGAIN), out);
                }
                Ok(LockAnswer::Deadlock) => self.end(ticket, Err(Errno::EDEADLK), out),
                Ok(_) => {
                    inode.note_unconverted(&lock);
                    self.end(ticket, Err(Errno::ENOLCK), out);
                }
                Err(errno) => self.end(ticket, Err(errno), out),
            },
            Job::Claim { wait } => {
                self.take_claim(now, (ino, wait, flight.is_ready), answer, out);
            }
            Job::Cancel { .. } | Job::Release { .. } => {}
            Job::Clear {
                owner,
                range,
                ticket,
                ..
            } => {
                if answer == Ok(LockAnswer::Full) {
                    return self.end(ticket, Err(Errno::ENOLCK), out);
                }
                // Of an inode that is gone there is nothing to unlock.
                inode.note_clear(owner, range);
                self.end(ticket, Ok(()), out);
            }
        }
    }

    fn take_claim(
        &mut self,
        now: Instant,
        (ino, number, is_ready): (InodeId, u64, bool),
        answer: Result<LockAnswer, Errno>,
        out: &mut Vec<LockEffect>,
    ) {
        let inode = self.inodes.get_mut(&ino).expect("it had a flight");
        let Some(mut wait) = inode.waits.remove(&number) else {
            return;
        };
        match answer {
            Ok(LockAnswer::Done) => {
                inode.note_set(&wait.lock, wait.handle);
                self.end(Some(wait.ticket), Ok(()), out);
            }
            Ok(LockAnswer::Waits) if wait.signalled.is_none() => {
                // It may have become its turn after the owner had answered.
                wait.is_claiming = is_ready;
                wait.asked = now;
                inode.waits.insert(number, wait);
                if is_ready {
                    inode.claims.push_front(number);
                }
            }
            Ok(LockAnswer::Waits) => {
                let cancel = Job::Cancel { wait: number };
                inode.queue.push_front(Queued::new(cancel, now));
                self.end(Some(wait.ticket), Err(Errno::EINTR), out);
            }
            Ok(_) => self.end(Some(wait.ticket), Err(Errno::ENOLCK), out),
            Err(errno) => self.end(Some(wait.ticket), Err(errno), out),
        }
    }

    /// The owner says that it is a wait's turn.
    pub(crate) fn on_ready(
        &mut self,
        now: Instant,
        ino: InodeId,
        wait: u64,
        out: &mut Vec<LockEffect>,
    ) {
        let inode = self.inodes.entry(ino).or_default();
        let flight = inode.flight.as_mut().filter(|flight| flight.wait == wait);
        match (flight, inode.waits.get_mut(&wait)) {
            (Some(flight), _) => flight.is_ready = true,
            (None, Some(held)) => {
                // It goes before those that ask whether it is their turn.
                if std::mem::replace(&mut held.is_claiming, true) {
                    inode.claims.retain(|other| *other != wait);
                }
                inode.claims.push_front(wait);
            }
            // Nobody here waits by this number any more: what is kept for it would be in everybody's way.
            (None, None) => {
                let is_it =
                    |job: &Job| matches!(job, Job::Cancel { wait: other } if *other == wait);
                if !inode.queue.iter().any(|queued| is_it(&queued.job)) {
                    let cancel = Job::Cancel { wait };
                    inode.queue.push_back(Queued::new(cancel, now));
                }
            }
        }
        self.pump(now, ino, out);
    }

    /// The caller of a request got a signal: it does not wait for a lock any more. False: there is no such request here.
    pub(crate) fn on_interrupt(
        &mut self,
        now: Instant,
        part: TicketPart,
        out: &mut Vec<LockEffect>,
    ) -> bool {
        let is_it = |ticket: Option<Ticket>| ticket.is_some_and(|ticket| part.is_of(ticket));
        let found = self.inodes.iter().find(|(_, inode)| {
            let jobs = inode.flight.iter().map(|f| &f.queued).chain(&inode.queue);
            let mut tickets = jobs.map(|queued| queued.job.ticket());
            tickets.any(is_it) || inode.waits.values().any(|wait| is_it(Some(wait.ticket)))
        });
        let Some(ino) = found.map(|(ino, _)| *ino) else {
            return false;
        };
        let inode = self.inodes.get_mut(&ino).expect("just found");
        let mut ended = None;
        if let Some(flight) = &mut inode.flight
            && is_it(flight.queued.job.ticket())
        {
            // It is answered when the owner has, or when that takes too long.
            flight.queued.signalled = Some(now);
        }
        let queued = inode.queue.iter().position(|q| is_it(q.job.ticket()));
        if let Some(at) = queued {
            match inode.queue[at].job {
                Job::Set { ticket, .. } => {
                    inode.queue.remove(at);
                    ended = ticket;
                }
                _ => inode.queue[at].signalled = Some(now),
            }
        }
        let mut waits = inode.waits.iter_mut();
        if let Some((number, wait)) = waits.find(|(_, wait)| is_it(Some(wait.ticket))) {
            let number = *number;
            let is_claimed = inode.flight.as_ref().is_some_and(
                |flight| matches!(flight.queued.job, Job::Claim { wait } if wait == number),
            );
            if is_claimed {
                wait.signalled = Some(now);
            } else {
                ended = Some(wait.ticket);
                inode.waits.remove(&number);
                inode.claims.retain(|wait| *wait != number);
                let cancel = Job::Cancel { wait: number };
                inode.queue.push_back(Queued::new(cancel, now));
            }
        }
        self.end(ended, Err(Errno::EINTR), out);
        self.pump(now, ino, out);
        true
    }

    /// Time has passed.
    pub(crate) fn on_tick(&mut self, now: Instant, out: &mut Vec<LockEffect>) {
        if self.inodes.is_empty() {
            return;
        }
        let inodes: Vec<InodeId> = self.inodes.keys().copied().collect();
        for ino in inodes {
            let inode = self.inodes.get_mut(&ino).expect("a key");
            let mut ended = Vec::new();
            for (number, wait) in &mut inode.waits {
                if !wait.is_claiming && now.since(wait.asked) >= CLAIM_AFTER {
                    wait.is_claiming = true;
                    inode.claims.push_back(*number);
                }
            }
            let is_over = |since: Option<Instant>| since.is_some_and(|s| now.since(s) >= PATIENCE);
            let jobs = inode.flight.iter_mut().map(|flight| &mut flight.queued);
            for queued in jobs.chain(&mut inode.queue) {
                let closing = matches!(queued.job, Job::Clear { is_close: true, .. });
                if closing && is_over(Some(queued.since)) {
                    ended.extend(queued.abandon().map(|ticket| (ticket, Ok(()))));
                } else if is_over(queued.signalled) {
                    let interrupted = |ticket| (ticket, Err(Errno::EINTR));
                    ended.extend(queued.abandon().map(interrupted));
                }
            }
            // A claim whose owner is away: it is asked anew under another number, and undone.
            if let Some(flight) = &mut inode.flight
                && let Job::Claim { wait } = flight.queued.job
                && let Some(held) = inode.waits.get(&wait).copied()
                && is_over(held.signalled)
            {
                inode.waits.remove(&wait);
                flight.queued.is_abandoned = true;
                flight.queued.job = Job::Set {
                    lock: held.lock,
                    waits: true,
                    handle: held.handle,
                    ticket: None,
                };
                ended.push((held.ticket, Err(Errno::EINTR)));
            }
            for (ticket, result) in ended {
                self.end(Some(ticket), result, out);
            }
            self.pump(now, ino, out);
        }
    }

    /// Adds what is held on inodes of the shards that `is_asked` names, for their new owner, and returns the last number: what it
    /// has not been asked under a higher one counts for nothing.
    pub(crate) fn reassert(
        &mut self,
        is_asked: impl Fn(ShardId) -> bool,
        told: &mut Vec<(InodeId, Lock)>,
    ) -> u64 {
        for (ino, inode) in &mut self.inodes {
            if !is_asked(ino.shard()) {
                continue;
            }
            inode.weaken();
            // They are asked about as soon as may be.
            for wait in inode.waits.values_mut() {
                wait.asked = Instant(0);
            }
            let held = inode.held.iter();
            let locks = held.flat_map(|(owner, held)| held.pieces.iter().map(|p| p.lock(*owner)));
            told.extend(locks.map(|lock| (*ino, lock)));
        }
        self.number
    }

    /// Requests that wait for others' locks, or for the owner.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = (InodeId, String, Instant)> {
        self.inodes.iter().flat_map(|(ino, inode)| {
            let waits = inode.waits.values().map(|wait| {
                let what = format!("{} waits for another's lock", describe(&wait.lock));
                (*ino, what, wait.since)
            });
            let jobs = inode.flight.iter().map(|f| &f.queued).chain(&inode.queue);
            let asked = jobs.filter(|queued| queued.job.ticket().is_some());
            waits.chain(asked.map(|queued| {
                let what = match queued.job {
                    Job::Set { lock, .. } => describe(&lock),
                    Job::Clear { range, .. } => format!("unlock of bytes {}", show(range)),
                    Job::Claim { .. } | Job::Cancel { .. } | Job::Release { .. } => {
                        unreachable!("without a ticket")
                    }
                };
                (*ino, format!("{what} waits for the owner"), queued.since)
            }))
        })
    }

    /// What is held on `ino`: for checks from outside.
    pub(crate) fn held(&self, ino: InodeId) -> Vec<Lock> {
        let held = self.inodes.get(&ino).into_iter().flat_map(|i| &i.held);
        held.flat_map(|(owner, held)| held.pieces.iter().map(|p| p.lock(*owner)))
            .collect()
    }

    /// Inodes with locks or requests, and requests that wait.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.inodes.len(), self.requests.count())
    }
}

impl Queued {
    /// Its caller is answered now; what it wanted goes on without it.
    fn abandon(&mut self) -> Option<Ticket> {
        self.signalled = None;
        self.is_abandoned = true;
        match &mut self.job {
            Job::Set { ticket, .. } | Job::Clear { ticket, .. } => ticket.take(),
            Job::Claim { .. } | Job::Cancel { .. } | Job::Release { .. } => None,
        }
    }
}

/// What is not in these pieces of `range`, which lie in order.
fn gaps(range: ByteRange, pieces: &[LockPiece]) -> impl Iterator<Item = ByteRange> {
    let begins = [range.begin].into_iter();
    let begins = begins.chain(pieces.iter().map(|piece| piece.range.end));
    let ends = pieces.iter().map(|piece| piece.range.begin);
    let ends = ends.chain([range.end]);
    let gaps = begins
        .zip(ends)
        .map(|(begin, end)| ByteRange { begin, end });
    gaps.filter(|gap| !gap.is_empty())
}

fn show(range: ByteRange) -> String {
    match range.end {
        u64::MAX => format!("{}..", range.begin),
        end => format!("{}..{end}", range.begin),
    }
}

/// For people.
pub(crate) fn describe(lock: &Lock) -> String {
    let kind = match lock.owner.kind {
        LockKind::Posix => "fcntl",
        LockKind::Flock => "flock",
    };
    let Lock {
        mode, range, pid, ..
    } = lock;
    format!(
        "{kind} {mode:?} lock of bytes {} by pid {pid}",
        show(*range)
    )
}

#[cfg(test)]
mod tests;
