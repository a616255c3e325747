//! Applications that lock a file, beside those of the kernel model: processes (fcntl) and open files (flock) on every node.
//!
//! What is judged, from what they were told alone: nobody has a lock that conflicts with another's, whoever crashes, his
//! node excepted; everybody who waits is answered in the end; and when all have let go no node and no owner keeps anything.

use client::request::{Handle, Operation, Response, Ticket};
use token::locks::pieces::Pieces;
use types::{ByteRange, Errno, InodeId, Lock, LockKind, LockMode, LockOwner};

use super::World;

/// Applications on each node: every second one uses flock.
const SEAT_COUNT: u64 = 4;
/// In so many ticks at rest all have let go.
const REST_TICKS: u64 = 60_000;

/// An application.
#[derive(Debug)]
pub(super) struct Seat {
    machine: usize,
    owner: LockOwner,
    pending: Option<(Ticket, Act)>,
    /// What it was told that it has.
    told: Pieces,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Set(Lock),
    Clear(ByteRange),
    Close,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lockers {
    seats: Vec<Seat>,
    ino: Option<InodeId>,
    calls_left: u32,
    /// Locks granted; requests refused.
    pub(super) counts: [u64; 2],
}

impl Lockers {
    /// There are some.
    pub(super) fn has_seats(&self) -> bool {
        !self.seats.is_empty()
    }
}

impl World {
    /// They use the first file.
    pub(super) fn set_up_locks(&mut self) {
        if self.options.lock_count == 0 || self.violation.is_some() {
            return;
        }
        self.lockers.ino = Some(self.machines[0].front.files[0].ino);
        self.lockers.calls_left = self.options.lock_count;
        for machine in 0..self.machines.len() {
            self.lockers.seats.extend((0..SEAT_COUNT).map(|id| Seat {
                machine,
                owner: LockOwner {
                    kind: match id % 2 {
                        0 => LockKind::Posix,
                        _ => LockKind::Flock,
                    },
                    id: id + 1,
                },
                pending: None,
                told: Pieces::default(),
            }));
        }
    }

    /// Lets one of them go on; false if the one that was picked cannot.
    pub(super) fn act_lock(&mut self) -> bool {
        let at = usize::try_from(self.prng.below(self.lockers.seats.len() as u64));
        let at = at.expect("few seats");
        let machine = self.lockers.seats[at].machine;
        if self.lockers.seats[at].pending.is_some() {
            return self.take_lock_answer(at);
        }
        let may_begin = self.may_begin && self.machines[machine].has_files();
        if !may_begin || self.lockers.calls_left == 0 || !self.prng.chance(1, 4) {
            return false;
        }
        self.lockers.calls_left -= 1;
        let (begin, length) = (self.prng.below(6), 1 + self.prng.below(4));
        let range = match self.lockers.seats[at].owner.kind {
            LockKind::Posix => ByteRange::at(begin, length),
            LockKind::Flock => ByteRange::ALL,
        };
        let act = match self.prng.below(6) {
            0 => Act::Close,
            1 | 2 => Act::Clear(range),
            pick => Act::Set(Lock {
                owner: self.lockers.seats[at].owner,
                mode: match pick {
                    3 => LockMode::Read,
                    _ => LockMode::Write,
                },
                range,
                pid: 1,
            }),
        };
        let waits = self.prng.chance(1, 2);
        self.begin_lock(at, act, waits);
        true
    }

    fn begin_lock(&mut self, at: usize, act: Act, waits: bool) {
        let seat = &mut self.lockers.seats[at];
        let (owner, index) = (seat.owner, seat.machine);
        let ino = self.lockers.ino.expect("there are seats");
        let handle = Handle(u64::MAX - owner.id);
        let operation = match act {
            Act::Set(lock) => {
                // A flock is given up before it is converted; a write lock may be one for reading as soon as that is asked.
                if owner.kind == LockKind::Flock || lock.mode == LockMode::Read {
                    seat.told.clear(lock.range);
                }
                Operation::SetLock {
                    ino,
                    handle,
                    lock,
                    waits,
                }
            }
            Act::Clear(range) => {
                seat.told.clear(range);
                Operation::ClearLock { ino, owner, range }
            }
            Act::Close => {
                seat.told.clear(ByteRange::ALL);
                let range = ByteRange::ALL;
                Operation::ClearLock { ino, owner, range }
            }
        };
        let machine = &mut self.machines[index];
        let request = machine.front.own(operation);
        seat.pending = Some((request.ticket, act));
        machine.node.request(request);
        self.note(|| format!("node {index}: {owner:?} {act:?}"));
    }

    fn take_lock_answer(&mut self, at: usize) -> bool {
        let seat = &mut self.lockers.seats[at];
        let (index, owner) = (seat.machine, seat.owner);
        let Some((ticket, act)) = seat.pending else {
            return false;
        };
        let Some(response) = self.machines[index].own_answers.remove(&ticket) else {
            return false;
        };
        seat.pending = None;
        self.last_finished = self.now;
        self.note(|| format!("node {index}: {owner:?} {act:?}: {response:?}"));
        match (act, response) {
            (Act::Set(lock), Response::Done) => {
                self.lockers.counts[0] += 1;
                self.judge_lock(at, &lock);
                self.lockers.seats[at].told.set(&lock);
            }
            (Act::Set(_), Response::Error(Errno::EAGAIN | Errno::EDEADLK)) => {
                self.lockers.counts[1] += 1;
            }
            (Act::Clear(_) | Act::Close, Response::Done) => {}
            (_, response) => {
                self.fail(format!("node {index}: {owner:?} {act:?}: {response:?}"));
            }
        }
        true
    }

    fn judge_lock(&mut self, at: usize, lock: &Lock) {
        let index = self.lockers.seats[at].machine;
        for (other, seat) in self.lockers.seats.iter().enumerate() {
            if other != at
                && seat.owner.kind == lock.owner.kind
                && let Some(piece) = seat.told.conflict(lock)
            {
                let text = format!("node {} has {piece:?} of {:?}", seat.machine, seat.owner);
                return self.fail(format!("node {index} is told that it has {lock:?}: {text}"));
            }
        }
    }

    /// A node has crashed: its applications are gone.
    pub(super) fn drop_lockers(&mut self, index: usize) {
        let seats = self.lockers.seats.iter_mut();
        for seat in seats.filter(|seat| seat.machine == index) {
            seat.pending = None;
            seat.told.clear(ByteRange::ALL);
        }
    }

    /// All let go, and nothing is left.
    pub(super) fn end_locks(&mut self) {
        let Some(ino) = self.lockers.ino else {
            return;
        };
        for at in 0..self.lockers.seats.len() {
            if self.lockers.seats[at].pending.is_none() {
                self.begin_lock(at, Act::Close, false);
            }
        }
        let until = self.now + REST_TICKS;
        loop {
            if self.violation.is_some() {
                return;
            }
            for at in 0..self.lockers.seats.len() {
                self.take_lock_answer(at);
                let seat = &self.lockers.seats[at];
                if seat.pending.is_none() && !seat.told.is_empty() {
                    self.begin_lock(at, Act::Close, false);
                }
            }
            let shards = self.machines.iter().flat_map(|m| &m.node.shards).flatten();
            let kept: usize = shards.map(|slice| slice.locks.count()).sum();
            let slices = self.machines.iter().flat_map(|m| &m.node.slices);
            let noted: usize = slices.map(|slice| slice.locks_on(ino).len()).sum();
            let is_answered = self.lockers.seats.iter().all(|seat| seat.pending.is_none());
            if is_answered && kept + noted == 0 {
                return;
            }
            if self.now > until {
                let text = format!("{kept} locks are kept by owners and {noted} by nodes");
                let waits: Vec<_> = self
                    .lockers
                    .seats
                    .iter()
                    .filter(|s| s.pending.is_some())
                    .collect();
                return self.fail(format!("{text}; without an answer: {waits:?}"));
            }
            self.last_finished = self.now;
            self.step();
        }
    }
}
