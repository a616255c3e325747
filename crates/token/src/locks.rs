//! Locks of applications on the inodes of one shard, as the shard's owner keeps them.
//!
//! Invariants
//! - No two lock owners hold, or are offered, locks of one kind on a byte of an inode of which one is a write lock.
//! - A node's changes of an inode take effect in the order of their numbers, each once: a repeat hears the answer that was
//!   given, and one that comes too late hears `Stale`, which says that it was not executed.
//! - Who waits and can have the lock is offered it, in the order of arrival; an offer is held for its node until that has
//!   claimed or cancelled it, or is dead.
//! - Locks, waits and what is remembered of nodes are bounded, and nobody takes all of the room: `room`.
//!
//! Life cycle of a wait: `Set` that conflicts -> `Waits` -> others unlock -> offered (`Ready`, which may get lost; the node
//! asks again from time to time) -> `Claim` -> held. Or `Cancel`, or the node's death.
//!
//! A new request passes those that wait for what it does not need: as on Linux, only held locks are in its way. Were it
//! also kept behind waits, two processes could wait for one another that by POSIX do not.
//!
//! What this deliberately does not do: know of locks on other shards, so that a circle of waits over two shards is not seen;
//! and survive its process: a new owner is told of the locks by those who hold them.

pub mod message;
pub mod pieces;
mod room;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use types::id::NodeLife;
use types::{InodeId, Instant, Lock, LockKind, LockMode, LockOwner, limits};

use message::{LockAction, LockAnswer, LockAsk};
use pieces::Pieces;
use room::{Need, Room};

/// A lock owner of the cluster.
type Holder = (NodeLife, LockOwner);

/// A wait's turn has come: its node is to claim the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready {
    /// Whose wait.
    pub to: NodeLife,
    /// The inode.
    pub ino: InodeId,
    /// The number of the request that waits.
    pub wait: u64,
}

/// A request that waits, or the lock that it is offered.
#[derive(Clone, Copy, Debug)]
struct Wait {
    from: NodeLife,
    number: u64,
    lock: Lock,
    is_offered: bool,
    since: Instant,
}

impl Wait {
    const fn holder(&self) -> Holder {
        (self.from, self.lock.owner)
    }
}

/// A node's newest change of an inode.
#[derive(Clone, Copy, Debug)]
struct Heard {
    number: u64,
    answer: LockAnswer,
}

#[derive(Debug, Default)]
struct Inode {
    held: BTreeMap<Holder, Pieces>,
    waits: VecDeque<Wait>,
    heard: BTreeMap<NodeLife, Heard>,
}

/// A wait as people see it.
#[derive(Clone, Copy, Debug)]
pub struct LockWaiting {
    /// The inode.
    pub ino: InodeId,
    /// Whose wait.
    pub node: NodeLife,
    /// What is wanted.
    pub lock: Lock,
    /// The first that is in the way; none when it is offered and the node has not claimed it yet.
    pub behind: Option<(NodeLife, Lock)>,
    /// Since when.
    pub since: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Locks {
    inodes: BTreeMap<InodeId, Inode>,
    /// Where POSIX lock owners wait: the edges of the waits-for graph. Offers are none.
    waiting: BTreeMap<Holder, BTreeSet<(InodeId, u64)>>,
    /// Changes with these numbers and lower ones, of inodes on which a node has nothing, are not executed any more.
    floors: BTreeMap<NodeLife, u64>,
    /// Pieces and waits.
    room: Room,
}

impl Inode {
    /// The first lock in the way of `lock`: held by another, or offered to another.
    fn conflict(&self, of: Holder, lock: &Lock) -> Option<(NodeLife, Lock)> {
        let held = self
            .held
            .iter()
            .filter(|(holder, _)| **holder != of && holder.1.kind == lock.owner.kind);
        for ((life, owner), pieces) in held {
            if let Some(piece) = pieces.conflict(lock) {
                return Some((*life, piece.lock(*owner)));
            }
        }
        let offered = |wait: &&Wait| {
            wait.is_offered
                && wait.holder() != of
                && wait.lock.owner.kind == lock.owner.kind
                && wait.lock.mode.conflicts_with(lock.mode)
                && wait.lock.range.overlaps(&lock.range)
        };
        let offer = self.waits.iter().find(offered)?;
        Some((offer.from, offer.lock))
    }

    /// All that are in the way.
    fn conflicts(&self, of: Holder, lock: &Lock) -> impl Iterator<Item = Holder> {
        let held = self.held.iter().filter(move |(holder, pieces)| {
            **holder != of && holder.1.kind == lock.owner.kind && pieces.conflict(lock).is_some()
        });
        let offered = self.waits.iter().filter(move |wait| {
            wait.is_offered
                && wait.holder() != of
                && wait.lock.owner.kind == lock.owner.kind
                && wait.lock.mode.conflicts_with(lock.mode)
                && wait.lock.range.overlaps(&lock.range)
        });
        let held = held.map(|(holder, _)| *holder);
        held.chain(offered.map(Wait::holder))
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waits.is_empty()
    }
}

impl Locks {
    /// No locks.
    pub fn new() -> Self {
        Self::with_count_max(limits::LOCKS_PER_SHARD_MAX)
    }

    /// The same with another bound: for tests.
    #[must_use]
    pub fn with_count_max(count_max: usize) -> Self {
        Self {
            room: Room::new(count_max),
            ..Self::default()
        }
    }

    /// A node asks. What can be granted by that is appended to `out`.
    pub fn on_ask(
        &mut self,
        now: Instant,
        from: NodeLife,
        (ino, ask): (InodeId, &LockAsk),
        out: &mut Vec<Ready>,
    ) -> LockAnswer {
        if let LockAction::Test { lock } = &ask.action {
            let inode = self.inodes.get(&ino);
            let found = inode.and_then(|inode| inode.conflict((from, lock.owner), lock));
            return found.map_or(LockAnswer::Free, |(life, lock)| LockAnswer::Held {
                node: life.node,
                lock,
            });
        }
        let heard = self.inodes.get(&ino).and_then(|i| i.heard.get(&from));
        let newest = match heard {
            Some(heard) if heard.number == ask.number => return heard.answer,
            Some(heard) => heard.number,
            None => self.floors.get(&from).copied().unwrap_or(0),
        };
        if ask.number <= newest {
            return LockAnswer::Stale { newest };
        }
        let answer = self.change(now, from, (ino, ask), out);
        let number = ask.number;
        self.inodes
            .entry(ino)
            .or_default()
            .heard
            .insert(from, Heard { number, answer });
        self.tidy(from, ino);
        answer
    }

    fn change(
        &mut self,
        now: Instant,
        from: NodeLife,
        (ino, ask): (InodeId, &LockAsk),
        out: &mut Vec<Ready>,
    ) -> LockAnswer {
        match ask.action {
            LockAction::Test { .. } => unreachable!("the caller has answered it"),
            LockAction::Set { lock, waits } => {
                let inode = self.inodes.entry(ino).or_default();
                let holder = (from, lock.owner);
                if let (LockKind::Flock, Some(held)) = (lock.owner.kind, inode.held.get(&holder))
                    && held.conflict(&lock).is_some()
                {
                    // flock(2): a conversion gives the old lock up first, and others may get the new one before.
                    self.clear(from, ino, &lock, out);
                }
                if self
                    .inodes
                    .entry(ino)
                    .or_default()
                    .conflict(holder, &lock)
                    .is_none()
                {
                    return self.set((ino, holder), &lock, Need::Lock, out);
                }
                match waits {
                    false => LockAnswer::Conflict,
                    true => self.wait(now, from, ino, (ask.number, lock)),
                }
            }
            LockAction::Claim { wait } => {
                let inode = self.inodes.entry(ino).or_default();
                let at = inode
                    .waits
                    .iter()
                    .position(|w| w.from == from && w.number == wait);
                let Some(at) = at else {
                    let newest = ask.number;
                    return LockAnswer::Stale { newest };
                };
                if !inode.waits[at].is_offered {
                    return LockAnswer::Waits;
                }
                let claimed = inode.waits.remove(at).expect("it was found there");
                self.room.change((ino, claimed.holder()), 1, 0);
                self.set((ino, claimed.holder()), &claimed.lock, Need::Claimed, out)
            }
            LockAction::Cancel { wait } => {
                self.end_waits(ino, |w| w.from == from && w.number == wait);
                self.offer(ino, out);
                LockAnswer::Done
            }
            LockAction::Clear { owner, range } => {
                let Some(pieces) = self.pieces(ino, (from, owner)) else {
                    return LockAnswer::Done;
                };
                let mut after = pieces.clone();
                after.clear(range);
                if !self.put(ino, (from, owner), after, Need::Rest) {
                    return LockAnswer::Full;
                }
                self.offer(ino, out);
                LockAnswer::Done
            }
        }
    }

    /// A flock is given up.
    fn clear(&mut self, from: NodeLife, ino: InodeId, lock: &Lock, out: &mut Vec<Ready>) {
        self.put(ino, (from, lock.owner), Pieces::default(), Need::Rest);
        self.offer(ino, out);
    }

    /// What a lock owner has on an inode.
    fn pieces(&self, ino: InodeId, of: Holder) -> Option<&Pieces> {
        self.inodes.get(&ino).and_then(|inode| inode.held.get(&of))
    }

    /// Puts what a lock owner has now in place of what it had. False: there is no room, and nothing has changed.
    fn put(&mut self, ino: InodeId, of: Holder, after: Pieces, need: Need) -> bool {
        let before = self.pieces(ino, of).map_or(0, Pieces::count);
        let more = after.count().saturating_sub(before);
        if !self.room.has((ino, of), need, more) {
            return false;
        }
        self.room.change((ino, of), before, after.count());
        let inode = self.inodes.entry(ino).or_default();
        match after.is_empty() {
            true => inode.held.remove(&of),
            false => inode.held.insert(of, after),
        };
        true
    }

    /// Nobody is in the way.
    fn set(
        &mut self,
        (ino, of): (InodeId, Holder),
        lock: &Lock,
        need: Need,
        out: &mut Vec<Ready>,
    ) -> LockAnswer {
        let before = self.pieces(ino, of);
        // A write lock that becomes one for reading is given up in part.
        let is_less = lock.mode == LockMode::Read && before.is_some_and(|b| b.cover(lock.range));
        let need = if is_less { Need::Rest } else { need };
        let mut after = before.cloned().unwrap_or_default();
        after.set(lock);
        let has_room = self.put(ino, of, after, need);
        // Also without room: it may have been offered what it cannot have.
        self.offer(ino, out);
        match has_room {
            true => LockAnswer::Done,
            false => LockAnswer::Full,
        }
    }

    fn wait(
        &mut self,
        now: Instant,
        from: NodeLife,
        ino: InodeId,
        (number, lock): (u64, Lock),
    ) -> LockAnswer {
        let holder = (from, lock.owner);
        if !self.room.has((ino, holder), Need::Lock, 1) {
            return LockAnswer::Full;
        }
        if lock.owner.kind == LockKind::Posix {
            if self.is_deadlock(holder, ino, &lock) {
                return LockAnswer::Deadlock;
            }
            self.waiting
                .entry(holder)
                .or_default()
                .insert((ino, number));
        }
        self.inodes.entry(ino).or_default().waits.push_back(Wait {
            from,
            number,
            lock,
            is_offered: false,
            since: now,
        });
        self.room.change((ino, holder), 0, 1);
        LockAnswer::Waits
    }

    /// Whoever is in the way waits for `of`, be it over others.
    fn is_deadlock(&self, of: Holder, ino: InodeId, lock: &Lock) -> bool {
        let Some(inode) = self.inodes.get(&ino) else {
            return false;
        };
        let mut to_see: Vec<Holder> = inode.conflicts(of, lock).collect();
        let mut seen = BTreeSet::new();
        while let Some(holder) = to_see.pop() {
            if holder == of {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            if seen.len() > limits::LOCK_CHAIN_MAX {
                return false;
            }
            for (ino, number) in self.waiting.get(&holder).into_iter().flatten() {
                let inode = &self.inodes[ino];
                let mut waits = inode.waits.iter();
                let wait = waits.find(|w| w.from == holder.0 && w.number == *number);
                let wait = wait.expect("what waits is indexed");
                to_see.extend(inode.conflicts(holder, &wait.lock));
            }
        }
        false
    }

    /// Offers locks to who waits for them and can have them, in the order of arrival.
    fn offer(&mut self, ino: InodeId, out: &mut Vec<Ready>) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        for at in 0..inode.waits.len() {
            let wait = inode.waits[at];
            if wait.is_offered || inode.conflict(wait.holder(), &wait.lock).is_some() {
                continue;
            }
            inode.waits[at].is_offered = true;
            forget_edge(&mut self.waiting, &wait, ino);
            let (to, wait) = (wait.from, wait.number);
            out.push(Ready { to, ino, wait });
        }
    }

    fn end_waits(&mut self, ino: InodeId, ends: impl Fn(&Wait) -> bool) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let (waiting, room) = (&mut self.waiting, &mut self.room);
        inode.waits.retain(|wait| {
            let is_over = ends(wait);
            if is_over {
                forget_edge(waiting, wait, ino);
                room.change((ino, wait.holder()), 1, 0);
            }
            !is_over
        });
    }

    /// Forgets what need not be known of a node that has nothing left on an inode.
    fn tidy(&mut self, from: NodeLife, ino: InodeId) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        if self.room.of_node(ino, from) == 0
            && let Some(heard) = inode.heard.remove(&from)
        {
            let floor = self.floors.entry(from).or_default();
            *floor = heard.number.max(*floor);
        }
        if inode.is_empty() {
            assert!(inode.heard.is_empty(), "nobody has anything here");
            self.inodes.remove(&ino);
        }
    }

    /// A life is over: its locks are free.
    pub fn on_node_lost(&mut self, life: NodeLife, out: &mut Vec<Ready>) {
        self.floors.remove(&life);
        let inodes: Vec<InodeId> = self.inodes.keys().copied().collect();
        for ino in inodes {
            self.end_waits(ino, |wait| wait.from == life);
            let inode = self.inodes.get_mut(&ino).expect("a key");
            let of_life = inode.held.extract_if(.., |(of, _), _| *of == life);
            for (of, pieces) in of_life {
                self.room.change((ino, of), pieces.count(), 0);
            }
            inode.heard.remove(&life);
            self.offer(ino, out);
            if self.inodes[&ino].is_empty() {
                self.inodes.remove(&ino);
            }
        }
    }

    /// An inode is gone, which nobody has open any more.
    pub fn on_inode_gone(&mut self, ino: InodeId) {
        self.end_waits(ino, |_| true);
        let Some(inode) = self.inodes.remove(&ino) else {
            return;
        };
        for (of, pieces) in &inode.held {
            self.room.change((ino, *of), pieces.count(), 0);
        }
        for (life, heard) in inode.heard {
            let floor = self.floors.entry(life).or_default();
            *floor = heard.number.max(*floor);
        }
    }

    /// In the grace period: a member holds these. Its changes up to `floor` are not executed any more. Returned: a lock
    /// that it cannot have, because another has it.
    pub fn reassert(
        &mut self,
        from: NodeLife,
        floor: u64,
        locks: impl IntoIterator<Item = (InodeId, Lock)>,
    ) -> Option<(InodeId, NodeLife)> {
        let own = self.floors.entry(from).or_default();
        *own = floor.max(*own);
        let mut wrong = None;
        for (ino, lock) in locks {
            let inode = self.inodes.entry(ino).or_default();
            if let Some((other, _)) = inode.conflict((from, lock.owner), &lock) {
                wrong = wrong.or(Some((ino, other)));
                self.tidy(from, ino);
                continue;
            }
            let of = (from, lock.owner);
            let pieces = inode.held.entry(of).or_default();
            let before = pieces.count();
            pieces.set(&lock);
            // Without regard to the room: it had it at the former owner.
            self.room.change((ino, of), before, pieces.count());
            let answer = LockAnswer::Stale { newest: floor };
            let heard = Heard {
                number: floor,
                answer,
            };
            inode.heard.insert(from, heard);
        }
        wrong
    }

    /// Who waits.
    pub fn waiters(&self) -> impl Iterator<Item = LockWaiting> {
        self.inodes.iter().flat_map(|(ino, inode)| {
            inode.waits.iter().map(|wait| LockWaiting {
                ino: *ino,
                node: wait.from,
                lock: wait.lock,
                behind: match wait.is_offered {
                    true => None,
                    false => inode.conflict(wait.holder(), &wait.lock),
                },
                since: wait.since,
            })
        })
    }

    /// What is held: for checks from outside.
    pub fn held(&self) -> impl Iterator<Item = (InodeId, NodeLife, Lock)> {
        self.inodes.iter().flat_map(|(ino, inode)| {
            inode.held.iter().flat_map(|((life, owner), pieces)| {
                pieces.iter().map(|piece| (*ino, *life, piece.lock(*owner)))
            })
        })
    }

    /// Locked pieces and waits.
    pub const fn count(&self) -> usize {
        self.room.count()
    }

    /// Asserts the invariants.
    ///
    /// # Panics
    /// One does not hold.
    pub fn check(&self) {
        let mut places = Vec::new();
        let mut edges = 0;
        for (ino, inode) in &self.inodes {
            assert!(!inode.is_empty());
            places.extend(inode.waits.iter().map(|wait| (*ino, wait.holder(), 1)));
            for (holder, pieces) in &inode.held {
                pieces.check();
                assert!(inode.heard.contains_key(&holder.0));
                places.push((*ino, *holder, pieces.count()));
                for piece in pieces.iter() {
                    let lock = piece.lock(holder.1);
                    assert_eq!(inode.conflict(*holder, &lock), None);
                }
            }
            for wait in &inode.waits {
                assert!(inode.heard.contains_key(&wait.from));
                let is_free = inode.conflict(wait.holder(), &wait.lock).is_none();
                assert_eq!(wait.is_offered, is_free, "who can have it is offered it");
                let at = (*ino, wait.number);
                let of_holder = self.waiting.get(&wait.holder());
                let is_edge = of_holder.is_some_and(|all| all.contains(&at));
                let is_posix = wait.lock.owner.kind == LockKind::Posix;
                assert_eq!(is_edge, is_posix && !wait.is_offered);
                edges += usize::from(is_edge);
            }
        }
        self.room.check(places);
        assert_eq!(
            edges,
            self.waiting.values().map(BTreeSet::len).sum::<usize>()
        );
    }
}

/// A wait is none any more.
fn forget_edge(
    waiting: &mut BTreeMap<Holder, BTreeSet<(InodeId, u64)>>,
    wait: &Wait,
    ino: InodeId,
) {
    if let Some(edges) = waiting.get_mut(&wait.holder()) {
        edges.remove(&(ino, wait.number));
        if edges.is_empty() {
            waiting.remove(&wait.holder());
        }
    }
}

#[cfg(test)]
mod tests;
