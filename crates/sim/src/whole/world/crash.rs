//! A machine that crashes, and comes back in a new life while the others run.
//!
//! 1. *Down*: what is on its way from and to it is lost but some first messages, what its disk was writing is torn, its
//!    applications are gone; their calls may have had an effect or not.
//! 2. *Restart*: the journal is replayed, the others learn that the old life is over, the new one asks what they hold.
//! 3. *Opening*: its kernel finds and opens the files again; then applications go on.

use std::collections::BTreeMap;

use client::request::{OpenFlags, Operation, Response, Ticket};
use types::{Instant, Name, NodeId};

use super::super::front::Front;
use super::super::node::Kind;
use super::{Due, Machine, Outcome, World};
use crate::kernel::Kernel;

/// Ticks after which a node that stops is gone, whatever the others have said.
const STOP_TICKS: u64 = 20_000;

/// Whether a machine runs.
#[derive(Debug)]
pub(super) enum Power {
    /// It does.
    On,
    /// It is down until this tick.
    Off(u64),
    /// Its files are being opened.
    Opening(BTreeMap<Ticket, Opening>),
}

/// A step of opening the files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Opening {
    Directory,
    Second,
    File(usize),
    Reader(usize),
    Writer(usize),
}

/// A crash that has been: whose, and from when to when what it lost may vanish.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crash {
    pub(super) who: usize,
    pub(super) span: (u64, u64),
}

impl Machine {
    /// Its daemon runs.
    pub(super) const fn is_up(&self) -> bool {
        !matches!(self.power, Power::Off(_))
    }

    /// Applications may make calls.
    pub(super) const fn has_files(&self) -> bool {
        matches!(self.power, Power::On)
    }
}

impl World {
    /// Lets crashes and restarts that are due happen.
    pub(super) fn crash_and_restart(&mut self) {
        let due: Vec<u64> = self
            .crashes_due
            .extract_if(.., |at| *at <= self.now)
            .collect();
        for _ in due {
            let index = self.prng.below(self.machines.len() as u64);
            let index = usize::try_from(index).expect("few machines");
            if self.may_begin && self.machines[index].has_files() {
                match self.options.says_farewell && self.stopping.is_none() {
                    true => self.begin_stop(index),
                    false => self.crash(index),
                }
            }
        }
        self.stop_on();
        for index in 0..self.machines.len() {
            if matches!(self.machines[index].power, Power::Off(until) if until <= self.now) {
                self.restart(index);
            }
        }
    }

    /// A node says that it stops. Then what it holds is lost as in a crash, but nothing of the others.
    fn begin_stop(&mut self, index: usize) {
        self.note(|| format!("node {index} is to stop"));
        let others = self.machines.iter().enumerate();
        let others = others.filter(|(other, m)| *other != index && m.is_up());
        let others: Vec<_> = others.map(|(_, m)| m.node.me).collect();
        self.machines[index].node.begin_farewell(&others);
        self.stopping = Some((index, self.now + STOP_TICKS));
    }

    fn stop_on(&mut self) {
        let Some((index, until)) = self.stopping else {
            return;
        };
        let machine = &mut self.machines[index];
        let has_asked = machine.node.has_asked_last();
        if !machine.has_files() {
            self.stopping = None;
        } else if machine.node.may_leave() || self.now > until {
            self.late_stop_count += u64::from(!machine.node.may_leave());
            self.stopping = None;
            self.crash(index);
        } else if !has_asked && self.prng.chance(1, 50) {
            machine.node.ask_last();
        }
    }

    pub(super) fn sweep_begins(&mut self, index: usize, sweep: u64) {
        self.sweeps.insert((index, sweep), self.step_count);
    }

    /// What the node had written when the sweep began is as durable as after an fsync of each file. What its kernel has of mappings is
    /// not asked for, and who finds no room has nothing to say it to.
    pub(super) fn sweep_ends(&mut self, index: usize, sweep: u64) {
        let Some(start) = self.sweeps.remove(&(index, sweep)) else {
            return;
        };
        if self.options.has_mappings || self.options.has_little_space() {
            return;
        }
        self.sweep_count += 1;
        let end = self.step_count;
        let files = 0..self.options.file_count;
        self.syncs
            .extend(files.map(|file| (index, file, start, end)));
    }

    fn crash(&mut self, index: usize) {
        let loses_power = self.prng.chance(1, 2);
        self.note(|| format!("node {index} crashes, power is lost: {loses_power}"));
        let id = self.machines[index].id;
        let peers: Vec<NodeId> = self.machines.iter().map(|m| m.id).collect();
        for peer in peers.iter().filter(|peer| **peer != id) {
            let arrived = self.network.break_link(id, *peer, u64::MAX, &mut self.prng);
            for (from, to, wire) in arrived.into_iter().filter(|(_, to, _)| *to != id) {
                self.deliver(from, to, wire);
            }
        }
        for machine in self.machines.iter_mut().filter(|m| m.id != id && m.is_up()) {
            machine.node.peer_down(id);
        }
        self.due.retain(|_, due| match due {
            Due::Disk(of, _) | Due::Later(of, _) => *of != index,
        });
        let node = &self.machines[index].node;
        for io in node.disk_ios() {
            if matches!(io.kind, Kind::Write | Kind::DurableWrite) {
                let disk = self.disks.get_mut(&io.at.nsd).expect("an own disk");
                disk.tear(io.at.sector, &node.written_bytes(io), &mut self.prng);
            }
        }
        if loses_power {
            let nsds = &self.machines[index].node.view.nsds;
            for nsd in nsds.iter().filter(|n| n.servers.first() == Some(&id)) {
                let disk = self.disks.get_mut(&nsd.id).expect("an own disk");
                disk.lose_power(&mut self.prng);
            }
        }
        for thread in 0..self.machines[index].threads.len() {
            if let Some((mut task, start)) = self.machines[index].threads[thread].task.take() {
                task.outcome = Outcome::Failed;
                task.result.clear();
                self.record(index, &task, start);
            }
        }
        self.drop_seats(index);
        self.drop_lockers(index);
        let until = self.now + self.prng.between(100, 3000);
        self.machines[index].power = Power::Off(until);
        self.crashes.push(Crash {
            who: index,
            span: (self.step_count, u64::MAX),
        });
        self.last_finished = self.now;
    }

    fn restart(&mut self, index: usize) {
        self.note(|| format!("node {index} restarts"));
        let view = self.machines[index].node.view.clone();
        let old = self.machines[index].node.me;
        let node = match self.start_node(index, &view) {
            Ok(node) => node,
            Err(text) => return self.fail(format!("node {index}: {text}")),
        };
        self.count_checkpoints(index);
        let id = self.machines[index].id;
        let machine = &mut self.machines[index];
        let mut front = Front::new();
        front.directory = machine.front.directory;
        front.second = machine.front.second;
        front.files.clone_from(&machine.front.files);
        front.skip_tickets(&machine.front);
        machine.front = front;
        machine.node = node;
        machine.node.now = Instant(self.now * 1_000_000);
        machine.kernel = Kernel::new(self.options.file_count);
        machine.unwritten.clear();
        machine.notifications.clear();
        machine.notifying.clear();
        machine.fillings.clear();
        machine.doors.fill(super::doors::Door::default());
        machine.own_answers.clear();
        // Lives of nodes that are down are still members: their tokens are theirs until they are said to be over.
        let lives: Vec<_> = self.machines.iter().map(|m| m.node.me).collect();
        self.machines[index].node.end_former_lives(&lives);
        let others: Vec<_> = lives.into_iter().filter(|life| life.node != id).collect();
        self.machines[index].node.begin_grace(&others);
        for machine in self.machines.iter_mut().filter(|m| m.id != id && m.is_up()) {
            machine.node.life_ended(old);
        }
        self.dead.insert(old);
        // Those that were down when other lives ended learn it now.
        for life in self.dead.clone() {
            if life.node != id {
                self.machines[index].node.life_ended(life);
            }
        }
        let until = self.step_count;
        for crash in self.crashes.iter_mut().filter(|c| c.who == index) {
            crash.span.1 = crash.span.1.min(until);
        }
        let machine = &mut self.machines[index];
        let mut opening = BTreeMap::new();
        for ino in machine.front.directories() {
            let request = machine.front.own(Operation::LookupSelf { ino });
            let is_first = ino == machine.front.directory;
            let step = if is_first {
                Opening::Directory
            } else {
                Opening::Second
            };
            opening.insert(request.ticket, step);
            machine.node.request(request);
        }
        machine.power = Power::Opening(opening);
        for peer in 0..self.machines.len() {
            if peer != index && self.machines[peer].is_up() {
                let peer = self.machines[peer].id;
                self.network.mend(id, peer);
                self.link_up(id.min(peer), id.max(peer));
            }
        }
        self.last_finished = self.now;
    }

    /// An answer that the opening of the files waits for; false: it does not.
    pub(super) fn opened(&mut self, index: usize, ticket: Ticket, response: &Response) -> bool {
        let machine = &mut self.machines[index];
        let Power::Opening(opening) = &mut machine.power else {
            return false;
        };
        let Some(step) = opening.remove(&ticket) else {
            return false;
        };
        let front = &mut machine.front;
        let mut next = Vec::new();
        match (step, response) {
            (Opening::Directory, Response::Entry(Some(_), _)) => {
                for file in 0..front.files.len() {
                    let name = Name::new(format!("f{file}").as_bytes()).expect("a name");
                    let parent = front.directory;
                    next.push((Opening::File(file), Operation::Lookup { parent, name }));
                }
            }
            (Opening::Second, Response::Entry(Some(_), _)) => {}
            (Opening::File(file), Response::Entry(Some(entry), _)) => {
                let ino = entry.attr.ino;
                let flags = |write| OpenFlags {
                    read: true,
                    write,
                    ..OpenFlags::default()
                };
                for write in [false, true] {
                    let step = if write {
                        Opening::Writer(file)
                    } else {
                        Opening::Reader(file)
                    };
                    let flags = flags(write);
                    next.push((step, Operation::Open { ino, flags }));
                }
            }
            (Opening::Reader(file), Response::Opened(opened)) => {
                front.files[file].reader = opened.handle;
            }
            (Opening::Writer(file), Response::Opened(opened)) => {
                front.files[file].writer = opened.handle;
            }
            _ => {
                self.fail(format!("node {index}: {response:?} of {step:?}"));
                return true;
            }
        }
        for (step, operation) in next {
            let request = front.own(operation);
            opening.insert(request.ticket, step);
            machine.node.request(request);
        }
        if opening.is_empty() {
            machine.power = Power::On;
            self.last_finished = self.now;
        }
        true
    }
}
