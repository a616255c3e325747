//! Locks of applications on the inodes of one shard, as the shard's owner keeps them.
//!
//! Invariants
//! - No two lock owners hold, or are offered, locks of one kind on a byte of an inode of which one is a write lock.
//! - A node's changes of an inode take effect in the order of their numbers, each once: a repeat hears the answer that was
//!   given, and one that comes too late hears `Stale`, which says that it was not executed.
//! - Who waits and can have the lock is offered it, in the order of arrival; an offer is held for its node until that has
//!   claimed or cancelled it, or is dead.
//! - Waits are looked at when those have less behind whom they stand (`queue`), and who is in the way is found by ranges (`taken`): with thousands of locks and
//!   waits no ask takes long.
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
mod queue;
mod room;
mod taken;

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{ByteRange, InodeId, Instant, Lock, LockKind, LockMode, LockOwner, limits};

use message::{LockAction, LockAnswer, LockAsk};
use pieces::Pieces;
use queue::{Queue, Wait};
use room::{Need, Room};
use taken::{Table, Taken};

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

/// A node's newest change of an inode.
#[derive(Clone, Copy, Debug)]
struct Heard {
    number: u64,
    answer: LockAnswer,
}

#[derive(Debug, Default)]
struct Inode {
    held: BTreeMap<Holder, Pieces>,
    /// The same, and what is offered, by its ranges.
    taken: Table,
    waits: Queue,
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
    /// One that is in the way; none when it is offered and the node has not claimed it yet.
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
    /// A lock in the way of `lock`: held by another, or offered to another.
    fn conflict(&self, of: Holder, lock: &Lock) -> Option<&Taken> {
        self.taken.conflicts(of, *lock).next()
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
            return found.map_or(LockAnswer::Free, |taken| LockAnswer::Held {
                node: taken.life.node,
                lock: taken.lock,
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
                let inode = self.inodes.entry(ino).or_default();
                let behind = inode.conflict(holder, &lock).map(Taken::holder);
                match behind {
                    None => self.set((ino, holder), &lock, Need::Lock, out),
                    Some(_) if !waits => LockAnswer::Conflict,
                    Some(_) => {
                        let number = ask.number;
                        let wait = Wait {
                            from,
                            number,
                            lock,
                            behind,
                            since: now,
                        };
                        self.wait(ino, wait)
                    }
                }
            }
            LockAction::Claim { wait } => {
                let inode = self.inodes.entry(ino).or_default();
                let Some(claimed) = inode.waits.get(from, wait).copied() else {
                    let newest = ask.number;
                    return LockAnswer::Stale { newest };
                };
                if claimed.behind.is_some() {
                    return LockAnswer::Waits;
                }
                self.end_wait(ino, &claimed);
                let (of, lock) = (claimed.holder(), &claimed.lock);
                let answer = self.set((ino, of), lock, Need::Claimed, out);
                if answer == LockAnswer::Full {
                    // Nobody has what it was offered.
                    self.offer((ino, of), lock.range, out);
                }
                answer
            }
            LockAction::Cancel { wait } => {
                let inode = self.inodes.entry(ino).or_default();
                if let Some(wait) = inode.waits.get(from, wait).copied() {
                    self.end_wait(ino, &wait);
                    // One that was offered nothing was in nobody's way.
                    if wait.behind.is_none() {
                        self.offer((ino, wait.holder()), wait.lock.range, out);
                    }
                }
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
                self.offer((ino, (from, owner)), range, out);
                LockAnswer::Done
            }
        }
    }

    /// A flock is given up.
    fn clear(&mut self, from: NodeLife, ino: InodeId, lock: &Lock, out: &mut Vec<Ready>) {
        let of = (from, lock.owner);
        self.put(ino, of, Pieces::default(), Need::Rest);
        self.offer((ino, of), ByteRange::ALL, out);
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
        self.replace(ino, of, after);
        true
    }

    fn replace(&mut self, ino: InodeId, of: Holder, after: Pieces) {
        let inode = self.inodes.entry(ino).or_default();
        let before = inode.held.remove(&of).unwrap_or_default();
        inode.taken.replace(of, &before, &after);
        self.room.change((ino, of), before.count(), after.count());
        if !after.is_empty() {
            inode.held.insert(of, after);
        }
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
        let is_write = |held: &Pieces| held.conflict(lock).is_some();
        let lets_in = lock.mode == LockMode::Read && before.is_some_and(is_write);
        after.set(lock);
        if !self.put(ino, of, after, need) {
            return LockAnswer::Full;
        }
        if lets_in {
            self.offer((ino, of), lock.range, out);
        }
        LockAnswer::Done
    }

    fn wait(&mut self, ino: InodeId, wait: Wait) -> LockAnswer {
        let holder = wait.holder();
        if !self.room.has((ino, holder), Need::Lock, 1) {
            return LockAnswer::Full;
        }
        if wait.lock.owner.kind == LockKind::Posix {
            // Nobody waits for one that has nothing.
            let has_some = self.room.of_owner(holder) > 0;
            if has_some && self.is_deadlock(holder, ino, wait.lock) {
                return LockAnswer::Deadlock;
            }
            let edges = self.waiting.entry(holder).or_default();
            edges.insert((ino, wait.number));
        }
        self.inodes.entry(ino).or_default().waits.push(wait);
        self.room.change((ino, holder), 0, 1);
        LockAnswer::Waits
    }

    /// Whoever is in the way waits for `of`, be it over others.
    fn is_deadlock(&self, of: Holder, ino: InodeId, lock: Lock) -> bool {
        let mut to_see = vec![(ino, of, lock)];
        let mut seen = BTreeSet::new();
        let mut look_count = 0;
        while let Some((ino, waiter, lock)) = to_see.pop() {
            let inode = self.inodes.get(&ino);
            let taken = inode.map(|inode| inode.taken.conflicts(waiter, lock));
            for taken in taken.into_iter().flatten() {
                let holder = taken.holder();
                if holder == of {
                    return true;
                }
                look_count += 1;
                if look_count > limits::LOCK_LOOKS_MAX {
                    return false;
                }
                let Some(edges) = self.waiting.get(&holder) else {
                    continue;
                };
                if !seen.insert(holder) {
                    continue;
                }
                if seen.len() > limits::LOCK_CHAIN_MAX {
                    return false;
                }
                to_see.extend(edges.iter().map(|(ino, number)| {
                    let wait = self.inodes[ino].waits.get(holder.0, *number);
                    (*ino, holder, wait.expect("what waits is indexed").lock)
                }));
            }
        }
        false
    }

    /// A lock owner has less of these bytes: who stood behind him is offered what he waits for, or stands behind another now, in the order
    /// of arrival. Whoever waits for other bytes, or stands behind others, can have his lock no more than before.
    fn offer(&mut self, (ino, of): (InodeId, Holder), range: ByteRange, out: &mut Vec<Ready>) {
        if let Some(inode) = self.inodes.get(&ino) {
            let arrivals = inode.waits.behind(of, range);
            self.offer_to(ino, arrivals, out);
        }
    }

    fn offer_to(&mut self, ino: InodeId, arrivals: Vec<u64>, out: &mut Vec<Ready>) {
        let inode = self.inodes.get_mut(&ino).expect("somebody waits there");
        for arrival in arrivals {
            let wait = inode.waits.at(arrival);
            let behind = inode.conflict(wait.holder(), &wait.lock);
            let behind = behind.map(Taken::holder);
            inode.waits.stand(arrival, behind);
            if behind.is_none() {
                inode.taken.insert(wait.offer());
                forget_edge(&mut self.waiting, &wait, ino);
                let (to, wait) = (wait.from, wait.number);
                out.push(Ready { to, ino, wait });
            }
        }
    }

    /// A wait is over, and what it is offered free.
    fn end_wait(&mut self, ino: InodeId, wait: &Wait) {
        let inode = self.inodes.get_mut(&ino).expect("somebody waits there");
        inode.waits.remove(wait.from, wait.number);
        match wait.behind {
            None => inode.taken.remove(&wait.offer()),
            Some(_) => forget_edge(&mut self.waiting, wait, ino),
        }
        self.room.change((ino, wait.holder()), 1, 0);
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
            let inode = self.inodes.get_mut(&ino).expect("a key");
            inode.heard.remove(&life);
            let waits = inode.waits.iter().filter(|wait| wait.from == life);
            let waits: Vec<Wait> = waits.copied().collect();
            let holders = inode.held.keys().filter(|(of, _)| *of == life);
            let holders: Vec<Holder> = holders.copied().collect();
            for wait in &waits {
                self.end_wait(ino, wait);
            }
            for of in holders {
                self.replace(ino, of, Pieces::default());
            }
            let arrivals = self.inodes[&ino].waits.behind_life(life);
            self.offer_to(ino, arrivals, out);
            if self.inodes[&ino].is_empty() {
                self.inodes.remove(&ino);
            }
        }
    }

    /// An inode is gone, which nobody has open any more.
    pub fn on_inode_gone(&mut self, ino: InodeId) {
        let Some(inode) = self.inodes.remove(&ino) else {
            return;
        };
        for wait in inode.waits.iter() {
            forget_edge(&mut self.waiting, wait, ino);
            self.room.change((ino, wait.holder()), 1, 0);
        }
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
            if let Some(other) = inode.conflict((from, lock.owner), &lock) {
                wrong = wrong.or(Some((ino, other.life)));
                self.tidy(from, ino);
                continue;
            }
            let of = (from, lock.owner);
            let mut pieces = inode.held.get(&of).cloned().unwrap_or_default();
            pieces.set(&lock);
            // Without regard to the room: it had it at the former owner.
            self.replace(ino, of, pieces);
            let answer = LockAnswer::Stale { newest: floor };
            let heard = Heard {
                number: floor,
                answer,
            };
            let inode = self.inodes.entry(ino).or_default();
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
                behind: wait.behind.and_then(|_| {
                    let taken = inode.conflict(wait.holder(), &wait.lock)?;
                    Some((taken.life, taken.lock))
                }),
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
            inode.taken.check();
            inode.waits.check();
            let mut taken_count = 0;
            places.extend(inode.waits.iter().map(|wait| (*ino, wait.holder(), 1)));
            for (holder, pieces) in &inode.held {
                pieces.check();
                assert!(inode.heard.contains_key(&holder.0));
                places.push((*ino, *holder, pieces.count()));
                taken_count += pieces.count();
                for piece in pieces.iter() {
                    let lock = piece.lock(holder.1);
                    assert_eq!(inode.conflict(*holder, &lock), None);
                }
            }
            for wait in inode.waits.iter() {
                assert!(inode.heard.contains_key(&wait.from));
                let is_offered = wait.behind.is_none();
                taken_count += usize::from(is_offered);
                let mut conflicts = inode.taken.conflicts(wait.holder(), wait.lock);
                match wait.behind {
                    None => assert_eq!(conflicts.next(), None),
                    Some(behind) => assert!(conflicts.any(|taken| taken.holder() == behind)),
                }
                let at = (*ino, wait.number);
                let of_holder = self.waiting.get(&wait.holder());
                let is_edge = of_holder.is_some_and(|all| all.contains(&at));
                let is_posix = wait.lock.owner.kind == LockKind::Posix;
                assert_eq!(is_edge, is_posix && !is_offered);
                edges += usize::from(is_edge);
            }
            assert_eq!(inode.taken.iter().count(), taken_count);
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
