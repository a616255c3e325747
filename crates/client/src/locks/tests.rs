//! Nodes with their owner over a network that loses, repeats and reorders, with owners and nodes that begin anew.
//!
//! What is judged, from what applications were told alone: nobody has a lock that conflicts with another's; who was told
//! that he has one has it until he gives it up; at rest owner and nodes agree, and when all have closed nothing is left.

use std::collections::BTreeMap;

use stdx::Prng;
use token::locks::Ready;
use types::id::NodeLife;
use types::{Incarnation, LockMode, NodeId, limits};

use super::*;

const INODE_COUNT: u64 = 2;
const OWNER_COUNT: u64 = 3;
const NODE_COUNT: usize = 3;

#[derive(Clone, Debug)]
enum Wire {
    Ask(NodeLife, InodeId, LockAsk),
    Answer(NodeLife, InodeId, LockAsk, LockAnswer),
    Ready(Ready),
}

/// What a request is to do when it succeeds.
#[derive(Clone, Copy, Debug)]
enum Call {
    Set(InodeId, Lock),
    Clear(InodeId, LockOwner, ByteRange),
}

/// A node: its locks, the asks without an answer, its applications.
#[derive(Debug)]
struct Node {
    life: NodeLife,
    locks: Locks,
    asked: Vec<(InodeId, LockAsk)>,
    calls: BTreeMap<Ticket, Call>,
    /// What applications have been told that they have.
    told: BTreeMap<(InodeId, LockOwner), Pieces>,
}

struct World {
    prng: Prng,
    now: Instant,
    nodes: Vec<Node>,
    owner: token::Locks,
    /// Lives that the owner in its grace period has not heard yet.
    missing: Vec<NodeLife>,
    wires: Vec<Wire>,
    next: u64,
    forgets: bool,
    counts: [u64; 5],
}

fn asker(uid: u32, waits: bool) -> Asker {
    Asker { uid, waits }
}

fn ino(index: u64) -> InodeId {
    InodeId::new(ShardId(0), index)
}

impl Node {
    fn new(index: usize, life: u64) -> Self {
        let life = NodeLife {
            node: NodeId(u16::try_from(index).unwrap()),
            incarnation: Incarnation(life.into()),
        };
        Self {
            life,
            locks: Locks::default(),
            asked: Vec::new(),
            calls: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            prng: Prng::new(seed),
            now: Instant(1),
            nodes: (0..NODE_COUNT).map(|index| Node::new(index, 0)).collect(),
            owner: token::Locks::new(),
            missing: Vec::new(),
            wires: Vec::new(),
            next: 1,
            forgets: false,
            counts: [0; 5],
        }
    }

    fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.prng.below(count as u64)).unwrap()
    }

    fn perform(&mut self, index: usize, effects: Vec<LockEffect>) {
        for effect in effects {
            match effect {
                LockEffect::Ask(ino, ask) => {
                    let node = &mut self.nodes[index];
                    node.asked.push((ino, ask));
                    self.wires.push(Wire::Ask(node.life, ino, ask));
                }
                LockEffect::Done(ticket) => self.done(index, ticket),
                LockEffect::Failed(ticket, errno) => self.failed(index, ticket, errno),
            }
        }
    }

    /// An application hears that it has what it wanted.
    fn done(&mut self, index: usize, ticket: Ticket) {
        self.counts[0] += 1;
        let call = self.nodes[index].calls.remove(&ticket).expect("one answer");
        match call {
            Call::Set(ino, lock) => {
                for (other, node) in self.nodes.iter().enumerate() {
                    for ((at, owner), pieces) in &node.told {
                        let is_other = (other, *owner) != (index, lock.owner);
                        if is_other && *at == ino && owner.kind == lock.owner.kind {
                            let conflict = pieces.conflict(&lock);
                            assert_eq!(conflict, None, "{index} {lock:?} and {other} {owner:?}");
                        }
                    }
                }
                let told = self.nodes[index].told.entry((ino, lock.owner)).or_default();
                told.set(&lock);
            }
            Call::Clear(ino, owner, range) => self.untell(index, ino, owner, range),
        }
    }

    fn failed(&mut self, index: usize, ticket: Ticket, errno: Errno) {
        self.counts[1] += 1;
        let call = self.nodes[index].calls.remove(&ticket).expect("one answer");
        if let Call::Set(ino, lock) = call {
            let errnos = [Errno::EAGAIN, Errno::EDEADLK, Errno::EINTR];
            assert!(errnos.contains(&errno), "{errno:?} for {lock:?}");
            // A flock may be lost when its conversion fails.
            if lock.owner.kind == LockKind::Flock {
                self.untell(index, ino, lock.owner, lock.range);
            }
        }
    }

    fn untell(&mut self, index: usize, ino: InodeId, owner: LockOwner, range: ByteRange) {
        let told = &mut self.nodes[index].told;
        if let Some(pieces) = told.get_mut(&(ino, owner)) {
            pieces.clear(range);
            if pieces.is_empty() {
                told.remove(&(ino, owner));
            }
        }
    }

    /// An application begins something. Unlocking counts from its beginning on.
    fn begin(&mut self, may_lock: bool) {
        let index = self.pick(NODE_COUNT);
        self.next += 1;
        let ticket = Ticket(self.next);
        let at = ino(self.prng.below(INODE_COUNT));
        let is_flock = self.prng.chance(1, 3);
        let owner = LockOwner {
            kind: if is_flock {
                LockKind::Flock
            } else {
                LockKind::Posix
            },
            id: self.prng.below(OWNER_COUNT),
        };
        let handle = Handle(owner.id * 2 + u64::from(is_flock));
        let begin = self.prng.below(8);
        let range = match is_flock {
            true => ByteRange::ALL,
            false => ByteRange::at(begin, 1 + self.prng.below(6)),
        };
        // A lock owner does one thing at a time here: what two of its threads are told at once can be in any order.
        let node = &self.nodes[index];
        let is_busy = node.calls.values().any(|call| match call {
            Call::Set(of, lock) => (*of, lock.owner) == (at, owner),
            Call::Clear(of, other, _) => (*of, *other) == (at, owner),
        });
        let mut out = Vec::new();
        let now = self.now;
        match self.prng.below(8) {
            0 if !self.nodes[index].calls.is_empty() => {
                let tickets: Vec<Ticket> = self.nodes[index].calls.keys().copied().collect();
                let ticket = tickets[self.pick(tickets.len())];
                self.nodes[index]
                    .locks
                    .on_interrupt(now, ticket.into(), &mut out);
            }
            _ if is_busy => {}
            1 if is_flock => {
                self.untell(index, at, owner, ByteRange::ALL);
                self.nodes[index].locks.release(now, (at, handle), &mut out);
            }
            1 => {
                self.untell(index, at, owner, ByteRange::ALL);
                let call = Call::Clear(at, owner, ByteRange::ALL);
                let node = &mut self.nodes[index];
                if node.locks.close(now, (ticket, at), owner.id, &mut out) {
                    node.calls.insert(ticket, call);
                }
            }
            2..=3 => {
                self.untell(index, at, owner, range);
                let node = &mut self.nodes[index];
                node.calls.insert(ticket, Call::Clear(at, owner, range));
                node.locks
                    .clear(now, (ticket, at), (owner, range), &mut out);
            }
            _ if !may_lock => {}
            pick => {
                let lock = Lock {
                    owner,
                    mode: if self.prng.chance(1, 2) {
                        LockMode::Read
                    } else {
                        LockMode::Write
                    },
                    range,
                    pid: 1,
                };
                if is_flock {
                    // Its conversion gives the old one up at some time.
                    let told = self.nodes[index].told.get(&(at, owner));
                    if told.is_some_and(|told| told.conflict(&lock).is_some()) {
                        self.untell(index, at, owner, ByteRange::ALL);
                    }
                }
                // A downgrade counts from its beginning on.
                if lock.mode == LockMode::Read {
                    self.untell(index, at, owner, range);
                }
                let node = &mut self.nodes[index];
                node.calls.insert(ticket, Call::Set(at, lock));
                let wanted = (lock, asker(0, pick >= 6));
                node.locks.set(now, ticket, (at, handle), wanted, &mut out);
            }
        }
        self.perform(index, out);
    }

    fn deliver(&mut self, at: usize) {
        let wire = match self.prng.chance(1, 10) {
            true => self.wires[at].clone(),
            false => self.wires.swap_remove(at),
        };
        let mut out = Vec::new();
        match wire {
            Wire::Ask(from, ino, ask) => {
                let is_alive = self.nodes.iter().any(|node| node.life == from);
                if !is_alive || !self.missing.is_empty() {
                    return;
                }
                let mut ready = Vec::new();
                let answer = self.owner.on_ask(self.now, from, (ino, &ask), &mut ready);
                self.owner.check();
                let said = Wire::Answer(from, ino, ask, answer);
                self.wires.push(said);
                self.wires.extend(ready.into_iter().map(Wire::Ready));
            }
            Wire::Answer(to, ino, ask, answer) => {
                let Some(index) = self.nodes.iter().position(|node| node.life == to) else {
                    return;
                };
                let node = &mut self.nodes[index];
                let Some(asked) = node.asked.iter().position(|a| *a == (ino, ask)) else {
                    return;
                };
                node.asked.remove(asked);
                node.locks.on_answer(self.now, ino, Ok(answer), &mut out);
                self.perform(index, out);
            }
            Wire::Ready(ready) => {
                let Some(index) = self.nodes.iter().position(|node| node.life == ready.to) else {
                    return;
                };
                let (now, ino, wait) = (self.now, ready.ino, ready.wait);
                self.nodes[index].locks.on_ready(now, ino, wait, &mut out);
                self.perform(index, out);
            }
        }
    }

    /// The owner's process ends, and another one begins.
    fn restart_owner(&mut self) {
        self.counts[2] += 1;
        self.owner = token::Locks::new();
        // Its connections end; what it has answered may still be on its way within the nodes.
        self.wires.retain(|wire| !matches!(wire, Wire::Ask(..)));
        self.missing = self.nodes.iter().map(|node| node.life).collect();
    }

    fn tell(&mut self) {
        let Some(life) = self.missing.pop() else {
            return;
        };
        let node = self.nodes.iter_mut().find(|node| node.life == life);
        let mut locks = Vec::new();
        let floor = node
            .expect("of the living")
            .locks
            .reassert(|_| true, &mut locks);
        if self.forgets {
            locks.clear();
        }
        assert_eq!(self.owner.reassert(life, floor, locks), None);
        self.owner.check();
    }

    fn restart_node(&mut self, index: usize) {
        self.counts[3] += 1;
        let life = self.nodes[index].life;
        self.next += 1;
        self.nodes[index] = Node::new(index, self.next);
        self.missing.retain(|missing| *missing != life);
        let mut ready = Vec::new();
        self.owner.on_node_lost(life, &mut ready);
        self.owner.check();
        self.wires.extend(ready.into_iter().map(Wire::Ready));
    }

    fn tick(&mut self) {
        let repeats = self.nodes.iter().flat_map(|node| {
            let asked = node.asked.iter();
            asked.map(|(ino, ask)| Wire::Ask(node.life, *ino, *ask))
        });
        let repeats: Vec<Wire> = repeats.collect();
        self.wires.extend(repeats);
        for index in 0..NODE_COUNT {
            let mut out = Vec::new();
            self.nodes[index].locks.on_tick(self.now, &mut out);
            self.perform(index, out);
        }
    }

    fn step(&mut self, may_lock: bool, has_faults: bool) {
        self.now.0 += 1 + self.prng.below(3_000_000);
        match self.prng.below(100) {
            0..=19 => self.begin(may_lock),
            20..=23 => {
                self.now.0 += 600_000_000;
                self.tick();
            }
            24 if has_faults => {
                let loss = self.pick(self.wires.len() + 1);
                self.wires.truncate(loss);
            }
            25 if has_faults && self.prng.chance(1, 4) => self.restart_owner(),
            26 if has_faults && self.prng.chance(1, 6) => {
                let index = self.pick(NODE_COUNT);
                self.restart_node(index);
            }
            27..=34 => self.tell(),
            _ if !self.wires.is_empty() => {
                let at = self.pick(self.wires.len());
                self.deliver(at);
            }
            _ => {}
        }
        if self.wires.len() > 200 {
            // Repeats of repeats.
            let keep = self.wires.len() - 100;
            self.wires.drain(..keep);
        }
    }

    /// Everybody unlocks and closes until nothing is left.
    fn rest(&mut self) {
        for _ in 0..2000 {
            while !self.missing.is_empty() {
                self.tell();
            }
            for index in 0..NODE_COUNT {
                self.let_go(index);
            }
            self.now.0 += 600_000_000;
            self.tick();
            while !self.wires.is_empty() {
                let at = self.pick(self.wires.len());
                self.deliver(at);
            }
            if self.owner.count() == 0 && self.nodes.iter().all(|n| n.locks.is_empty()) {
                break;
            }
        }
        for node in &self.nodes {
            assert!(node.calls.is_empty(), "unanswered: {:?}", node.calls);
            assert_eq!(node.locks.counts(), (0, 0));
            assert!(node.locks.is_empty(), "{:?}", node.locks);
        }
        let left: Vec<_> = self.owner.held().collect();
        assert_eq!(self.owner.count(), 0, "{left:?}");
    }

    fn let_go(&mut self, index: usize) {
        let now = self.now;
        let tickets: Vec<Ticket> = self.nodes[index].calls.keys().copied().collect();
        for ticket in tickets {
            let mut out = Vec::new();
            self.nodes[index]
                .locks
                .on_interrupt(now, ticket.into(), &mut out);
            self.perform(index, out);
        }
        if !self.nodes[index].calls.is_empty() {
            return;
        }
        for (id, at) in
            (0..OWNER_COUNT).flat_map(|id| (0..INODE_COUNT).map(move |at| (id, ino(at))))
        {
            let mut out = Vec::new();
            self.next += 1;
            let ticket = Ticket(self.next);
            for kind in [LockKind::Posix, LockKind::Flock] {
                self.untell(index, at, LockOwner { kind, id }, ByteRange::ALL);
            }
            let node = &mut self.nodes[index];
            let owner = LockOwner {
                kind: LockKind::Posix,
                id,
            };
            if node.locks.close(now, (ticket, at), id, &mut out) {
                let call = Call::Clear(at, owner, ByteRange::ALL);
                node.calls.insert(ticket, call);
            }
            for handle in [id * 2, id * 2 + 1] {
                node.locks.release(now, (at, Handle(handle)), &mut out);
            }
            self.perform(index, out);
        }
    }

    /// With nothing on its way, the owner has what applications were told.
    fn assert_agreement(&self) {
        let mut held: BTreeMap<(NodeLife, InodeId, LockOwner), Pieces> = BTreeMap::new();
        for (at, life, lock) in self.owner.held() {
            held.entry((life, at, lock.owner)).or_default().set(&lock);
        }
        for node in &self.nodes {
            for ((at, owner), told) in &node.told {
                let own = held.get(&(node.life, *at, *owner));
                for piece in told.iter() {
                    let within = own.map_or_else(Vec::new, |own| own.within(piece.range));
                    let length: u64 = within.iter().map(|p| p.range.length()).sum();
                    let is_held = within.iter().all(|p| p.mode >= piece.mode);
                    assert!(
                        is_held && length == piece.range.length(),
                        "{owner:?} lost {piece:?}"
                    );
                }
            }
        }
    }
}

fn run(seed: u64, forgets: bool) -> [u64; 5] {
    let mut world = World::new(seed);
    world.forgets = forgets;
    for _ in 0..400 {
        world.step(true, true);
    }
    while !world.missing.is_empty() {
        world.tell();
    }
    world.assert_agreement();
    world.rest();
    world.counts
}

#[test]
fn nobody_has_what_another_has_and_nothing_is_left() {
    let mut sums = [0; 5];
    for seed in 0..300 {
        let counts = run(seed, false);
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    assert!(
        sums[0] > 5000 && sums[1] > 500 && sums[2] > 100 && sums[3] > 50,
        "{sums:?}"
    );
}

#[test]
fn an_owner_that_is_not_told_of_locks_is_caught() {
    let caught = (0..20).filter(|seed| {
        let result = std::panic::catch_unwind(|| run(*seed, true));
        result.is_err()
    });
    assert!(caught.count() > 5);
}

const HERE: InodeId = InodeId::new(ShardId(0), 1);

fn lock_of(id: u64, mode: LockMode, begin: u64, end: u64) -> Lock {
    Lock {
        owner: LockOwner {
            kind: LockKind::Posix,
            id,
        },
        mode,
        range: ByteRange::new(begin, end),
        pid: 1,
    }
}

/// One node whose owner's answers the test makes up.
#[derive(Default)]
struct Asking {
    locks: Locks,
    ticket: u64,
}

impl Asking {
    fn set(&mut self, handle: u64, lock: Lock, waits: bool) -> Vec<LockEffect> {
        self.set_of(0, (HERE, handle), lock, waits)
    }

    /// A user's request.
    fn set_of(
        &mut self,
        uid: u32,
        (ino, handle): (InodeId, u64),
        lock: Lock,
        waits: bool,
    ) -> Vec<LockEffect> {
        self.ticket += 1;
        let (mut out, ticket) = (Vec::new(), Ticket(self.ticket));
        let (at, wanted) = ((ino, Handle(handle)), (lock, asker(uid, waits)));
        self.locks.set(Instant(1), ticket, at, wanted, &mut out);
        out
    }

    fn answer(&mut self, answer: LockAnswer) -> Vec<LockEffect> {
        let mut out = Vec::new();
        self.locks.on_answer(Instant(2), HERE, Ok(answer), &mut out);
        out
    }

    fn release(&mut self, handle: u64) -> Vec<LockEffect> {
        let mut out = Vec::new();
        self.locks
            .release(Instant(3), (HERE, Handle(handle)), &mut out);
        out
    }

    fn ready(&mut self, wait: u64) -> Vec<LockEffect> {
        let mut out = Vec::new();
        self.locks.on_ready(Instant(4), HERE, wait, &mut out);
        out
    }
}

fn asked(effects: &[LockEffect]) -> Option<(u64, LockAction)> {
    effects.iter().find_map(|effect| match effect {
        LockEffect::Ask(_, ask) => Some((ask.number, ask.action)),
        _ => None,
    })
}

/// The kernel gives an open file the number of one that is gone: its release comes when the new one's lock is on its way.
#[test]
fn a_late_release_leaves_the_lock_of_the_next_file_with_its_number() {
    let mut node = Asking::default();
    let lock = lock_of(7, LockMode::Write, 0, 10);
    node.set(1, lock, false);
    node.answer(LockAnswer::Done);
    node.set(2, lock, false);
    assert_eq!(asked(&node.release(1)), None, "a change is on its way");
    assert_eq!(
        asked(&node.answer(LockAnswer::Done)),
        None,
        "nothing is unlocked"
    );
    assert_eq!(node.locks.held(HERE), [lock]);
    // Nor does a lock stay whose open file goes while it is on its way.
    let more = lock_of(7, LockMode::Write, 20, 30);
    node.set(2, more, false);
    assert_eq!(asked(&node.release(2)), None);
    let clear = asked(&node.answer(LockAnswer::Done));
    let all = LockAction::Clear {
        owner: lock.owner,
        range: ByteRange::ALL,
    };
    assert_eq!(clear.map(|(_, action)| action), Some(all));
    node.answer(LockAnswer::Done);
    assert!(node.locks.is_empty());
}

/// Nobody waits by this number here, whatever the reason: it must not stay in everybody's way.
#[test]
fn an_offer_that_nobody_waits_for_is_given_back() {
    let mut node = Asking::default();
    assert_eq!(
        asked(&node.ready(9)).map(|(_, action)| action),
        Some(LockAction::Cancel { wait: 9 })
    );
    node.answer(LockAnswer::Done);
    assert!(node.locks.is_empty());
    // Who waits claims it, once.
    let (wait, _) = asked(&node.set(1, lock_of(7, LockMode::Read, 0, 1), true)).expect("asked");
    node.answer(LockAnswer::Waits);
    assert_eq!(
        asked(&node.ready(wait)).map(|(_, action)| action),
        Some(LockAction::Claim { wait })
    );
    assert_eq!(asked(&node.ready(wait)), None);
    node.answer(LockAnswer::Done);
    assert_eq!(node.locks.held(HERE).len(), 1);
}

/// A change that its caller has given up and that is refused then takes nothing from what was there before.
#[test]
fn a_change_that_was_given_up_and_refused_leaves_what_was_there() {
    let mut node = Asking::default();
    let before = lock_of(7, LockMode::Read, 0, 10);
    node.set(1, before, false);
    node.answer(LockAnswer::Done);
    node.set(1, lock_of(7, LockMode::Write, 0, 10), false);
    let (mut out, part) = (Vec::new(), TicketPart::from(Ticket(2)));
    assert!(node.locks.on_interrupt(Instant(5), part, &mut out));
    node.locks.on_tick(Instant(5 + PATIENCE.0), &mut out);
    assert!(
        matches!(out[..], [LockEffect::Failed(Ticket(2), Errno::EINTR)]),
        "{out:?}"
    );
    node.answer(LockAnswer::Conflict);
    assert_eq!(node.locks.held(HERE), [before]);
}

fn is_refused(effects: &[LockEffect]) -> bool {
    matches!(effects, [LockEffect::Failed(_, Errno::ENOLCK)])
}

/// Users' threads wait for locks on files whose owner does not answer: what others ask is not refused for that, and nobody's unlocking.
#[test]
fn who_waits_leaves_room_for_others() {
    let mut node = Asking::default();
    let held = lock_of(1, LockMode::Write, 0, 1);
    node.set(1, held, false);
    node.answer(LockAnswer::Done);
    let mut ask = |uid: u32, index, waits| {
        let lock = lock_of(uid.into(), LockMode::Write, 0, 1);
        is_refused(&node.set_of(uid, (ino(index), 1), lock, waits))
    };
    let fill = |ask: &mut dyn FnMut(u32, u64, bool) -> bool, uid, waits| {
        (0..).take_while(|at| !ask(uid, 2 + at % 7, waits)).count()
    };
    // A user has a quarter of the room, and others are not kept from theirs.
    let quarter = limits::LOCK_REQUESTS_MAX / 4;
    for uid in 1..=3 {
        assert_eq!(fill(&mut ask, uid, true), quarter, "user {uid}");
        assert!(ask(uid, 10, false));
    }
    // No more waits, not even root's, but requests that do not wait.
    assert!(ask(4, 10, true) && ask(0, 10, true));
    assert!(!ask(4, 10, false) && !ask(0, 10, false));
    // They are bounded as well.
    assert_eq!(fill(&mut ask, 0, false), quarter - 2);
    let mut out = Vec::new();
    let what = (held.owner, ByteRange::ALL);
    node.locks
        .clear(Instant(2), (Ticket(0), HERE), what, &mut out);
    assert!(asked(&out).is_some(), "unlocking is not refused");
    // What ends makes room.
    for ticket in 2..=5000 {
        let part = TicketPart::from(Ticket(ticket));
        node.locks.on_interrupt(Instant(5), part, &mut Vec::new());
    }
    let lock = lock_of(1, LockMode::Write, 0, 1);
    assert!(!is_refused(&node.set_of(1, (ino(10), 1), lock, true)));
}

/// Its caller has given a change up that the owner has made; what is asked to undo it, until nothing is. The owner keeps locks for the node and
/// another one, which waits for byte 5.
fn undo(before: &[Lock], change: Lock) -> (Vec<LockAction>, Vec<Lock>, Vec<Lock>) {
    let (mut node, mut owner) = (Asking::default(), token::Locks::new());
    let [own, other] = [0, 1].map(|index| Node::new(index, 0).life);
    let mut ready = Vec::new();
    let mut say = |from, number, action| {
        let ask = LockAsk { number, action };
        owner.on_ask(Instant(1), from, (HERE, &ask), &mut ready)
    };
    for lock in before {
        let (number, action) = asked(&node.set(1, *lock, false)).expect("asked");
        node.answer(say(own, number, action));
    }
    let (number, action) = asked(&node.set(1, change, false)).expect("asked");
    let answer = say(own, number, action);
    assert_eq!(answer, LockAnswer::Done);
    let (lock, waits) = (lock_of(1, LockMode::Write, 5, 6), true);
    let wait = LockAction::Set { lock, waits };
    assert_eq!(say(other, 1, wait), LockAnswer::Waits);
    let (mut out, part) = (Vec::new(), TicketPart::from(Ticket(node.ticket)));
    assert!(node.locks.on_interrupt(Instant(5), part, &mut out));
    node.locks.on_tick(Instant(5 + PATIENCE.0), &mut out);
    assert!(matches!(out[..], [LockEffect::Failed(_, Errno::EINTR)]));
    let (mut effects, mut undone) = (node.answer(answer), Vec::new());
    while let Some((number, action)) = asked(&effects) {
        undone.push(action);
        effects = node.answer(say(own, number, action));
    }
    let of_node = |(_, life, lock)| (life == own).then_some(lock);
    (
        undone,
        node.locks.held(HERE),
        owner.held().filter_map(of_node).collect(),
    )
}

/// A reader that wants to write gives that up: what he read he can read still, though another waits to write it.
#[test]
fn an_upgrade_that_is_undone_keeps_what_was_there_before() {
    use LockMode::{Read, Write};
    let of = |mode, begin, end| lock_of(7, mode, begin, end);
    let set = |lock| LockAction::Set { lock, waits: false };
    let clear = |begin, end| LockAction::Clear {
        owner: of(Read, 0, 1).owner,
        range: ByteRange::new(begin, end),
    };
    let before = [of(Read, 2, 10), of(Read, 12, 14)];
    let (undone, held, at_owner) = undo(&before, of(Write, 0, 20));
    let expected = [
        set(before[0]),
        set(before[1]),
        clear(0, 2),
        clear(10, 12),
        clear(14, 20),
    ];
    assert_eq!(undone, expected);
    assert_eq!((held, at_owner), (before.to_vec(), before.to_vec()));
    // What has become a lock for reading meanwhile is one to write again.
    let before = [of(Write, 0, 10)];
    let (undone, held, at_owner) = undo(&before, of(Read, 0, 8));
    assert_eq!(undone, [set(of(Write, 0, 8))]);
    assert_eq!((held, at_owner), (before.to_vec(), before.to_vec()));
}

/// All who wait ask whether it is their turn: an unlock goes before them, and who gives up, and what a file that is closed has; whose turn it is goes before the rest.
#[test]
fn unlocking_goes_before_what_waits_ask() {
    let mut node = Asking::default();
    let write = |id, begin| lock_of(id, LockMode::Write, begin, begin + 1);
    for id in [1, 2] {
        node.set(id, write(id, id), false);
        node.answer(LockAnswer::Done);
    }
    let waits = (0..limits::LOCK_WAITS_MAX as u64).map(|id| {
        let (wait, _) = asked(&node.set(3, write(10 + id, 1), true)).expect("asked");
        assert_eq!(node.answer(LockAnswer::Waits), []);
        wait
    });
    let waits: Vec<u64> = waits.collect();
    let next = |node: &mut Asking, answer| asked(&node.answer(answer)).map(|(_, action)| action);
    let claim = |at: usize| Some(LockAction::Claim { wait: waits[at] });
    let mut out = Vec::new();
    node.locks.on_tick(Instant(5) + CLAIM_AFTER, &mut out);
    assert_eq!(asked(&out).map(|(_, action)| action), claim(0));
    // The second one's caller gets a signal, one file is unlocked, and another one closed.
    let part = TicketPart::from(Ticket(4));
    assert!(node.locks.on_interrupt(Instant(6), part, &mut out));
    let (owner, range) = (write(1, 1).owner, ByteRange::ALL);
    node.ticket += 1;
    let by = (Ticket(node.ticket), HERE);
    node.locks.clear(Instant(6), by, (owner, range), &mut out);
    assert_eq!(node.release(2), []);
    let wait = waits[1];
    let expected = Some(LockAction::Cancel { wait });
    assert_eq!(next(&mut node, LockAnswer::Waits), expected);
    let expected = Some(LockAction::Clear { owner, range });
    assert_eq!(next(&mut node, LockAnswer::Done), expected);
    let owner = write(2, 2).owner;
    let expected = Some(LockAction::Clear { owner, range });
    assert_eq!(next(&mut node, LockAnswer::Done), expected);
    assert_eq!(next(&mut node, LockAnswer::Done), claim(2));
    node.ready(waits[900]);
    assert_eq!(next(&mut node, LockAnswer::Waits), claim(900));
    // Nor do they wait for ever where changes never end.
    for id in 0..1000 {
        node.set(4, write(4, 10 + 2 * id), false);
    }
    let mut answer = LockAnswer::Waits;
    let claims = (0..1000).filter(|_| {
        let action = next(&mut node, answer).expect("there is more");
        let is_claim = matches!(action, LockAction::Claim { .. });
        answer = if is_claim {
            LockAnswer::Waits
        } else {
            LockAnswer::Done
        };
        is_claim
    });
    assert_eq!(claims.count(), 1000 / 17);
}

/// A wait of the same lock owner, whose turn it is meanwhile, keeps what it gets.
#[test]
fn nothing_is_claimed_in_the_midst_of_what_is_undone() {
    let mut node = Asking::default();
    let of = |mode, begin, end| lock_of(7, mode, begin, end);
    let pieces: Vec<Lock> = (0..20)
        .map(|at| of(LockMode::Read, 4 * at, 4 * at + 2))
        .collect();
    for piece in &pieces {
        node.set(1, *piece, false);
        node.answer(LockAnswer::Done);
    }
    let (wait, _) = asked(&node.set(1, of(LockMode::Write, 0, 100), true)).expect("asked");
    node.answer(LockAnswer::Waits);
    // Another thread's upgrade of all is given up after its signal, and granted then.
    let change = of(LockMode::Write, 0, 80);
    node.set(1, change, false);
    let mut out = Vec::new();
    let part = TicketPart::from(Ticket(node.ticket));
    assert!(node.locks.on_interrupt(Instant(6), part, &mut out));
    node.locks.on_tick(Instant(7) + PATIENCE, &mut out);
    node.ready(wait);
    let mut next = asked(&node.answer(LockAnswer::Done));
    let mut undone = 0;
    while let Some((_, action)) = next {
        if action == (LockAction::Claim { wait }) {
            break;
        }
        undone += 1;
        next = asked(&node.answer(LockAnswer::Done));
    }
    assert_eq!(
        undone, 40,
        "all pieces of before, and what was between them"
    );
    assert!(next.is_some(), "and then it is its turn");
    node.answer(LockAnswer::Done);
    assert_eq!(node.locks.held(HERE), [of(LockMode::Write, 0, 100)]);
}

/// What says that it is a wait's turn may come before the answer that it is not.
#[test]
fn a_turn_that_comes_while_it_is_asked_for_is_not_forgotten() {
    let mut node = Asking::default();
    let (wait, _) = asked(&node.set(1, lock_of(7, LockMode::Write, 0, 9), true)).expect("asked");
    node.answer(LockAnswer::Waits);
    let mut out = Vec::new();
    node.locks.on_tick(Instant(5) + CLAIM_AFTER, &mut out);
    let claim = Some(LockAction::Claim { wait });
    assert_eq!(asked(&out).map(|(_, action)| action), claim);
    assert_eq!(node.ready(wait), []);
    let again = asked(&node.answer(LockAnswer::Waits));
    assert_eq!(again.map(|(_, action)| action), claim);
}
