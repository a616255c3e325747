//! One run of the whole: nodes, their kernels, disks and network under a random scheduler.
//!
//! 1. *Set-up*: nodes start, the directory and the files are made, every node opens every file.
//! 2. *Calls*: applications make system calls, links break, messages and disks take their time.
//! 3. *Rest*: everything is written back; what is still in use is a leak; all nodes read everything.

mod apps;
mod crash;
mod doors;
mod holds;
mod locks;
mod pages;
mod record;
mod rest;
mod setup;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use client::request::{Notice, Operation, Response, Ticket};
use client::rewrite::RewriteCounts;
use client::slice::{Input, NotifyId, Pin, slice_of};
use stdx::Prng;
use stdx::prng::splitmix64;
use types::id::NodeLife;
use types::{Errno, InodeId, Instant, NodeId, ShardId};

use super::boot::Disks;
use super::directory::Directory;
use super::front::{Front, OWN_TICKET};
use super::network::Network;
use super::node::{DiskIo, Kind, Later, Node, Out, Source, TICK_MS, Tag, Wire};
use super::options::Options;
use crate::history::History;
use crate::kernel::Kernel;
use crate::model::{Answer, NAME_COUNT, PAGE_COUNT};
use crate::task::{Context, Outcome, Program, Step, Task};
use crash::{Crash, Power};

/// Ticks without a finished call after which a run is stuck: beyond all retries and time-outs.
const STUCK_TICKS: u64 = 60_000;
/// Steps after which a run is given up as too long.
const STEP_COUNT_MAX: u64 = 5_000_000;

/// What a run showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash of everything that happened, in order.
    pub trace_hash: u64,
    /// Steps taken.
    pub step_count: u64,
    /// Accesses that the checkers judged.
    pub access_count: usize,
    /// Writes that were refused for want of room.
    pub no_space_count: usize,
    /// Rounds of checkpoints, checkpoints, those that failed, and rounds that moved pages out of regions, of all lives.
    pub checkpoint_counts: [u64; 4],
    /// Blocks rewritten, of all lives.
    pub rewrites: RewriteCounts,
    /// Commits that were refused for their pieces.
    pub refused_count: u64,
    /// Inodes that were evicted, that were read again, and reads that a new root made worthless, of all lives.
    pub key_counts: [u64; 3],
    /// Files that were loaded before they were opened, of all lives.
    pub loaded_file_count: u64,
    /// Files that were put into kernels.
    pub fill_count: u64,
    /// Parts of directories that there were at the ends of all lives.
    pub part_count: u64,
    /// Reads of pages that failed, and calls that failed for it.
    pub page_fault_counts: [u64; 2],
    /// Locks granted to applications, and refused to them.
    pub lock_counts: [u64; 2],
    /// Times that a node wrote back all that it had for another one that stopped.
    pub sweep_count: u64,
    /// Stops that did not wait for that any longer.
    pub late_stop_count: u64,
    /// What was wrong, if anything.
    pub violation: Option<String>,
}

/// A thread of an application.
#[derive(Debug, Default)]
struct Thread {
    /// The call under way, and the moment of its start.
    task: Option<(Task, u64)>,
    call_count: usize,
}

#[derive(Debug)]
struct Notifying {
    task: Task,
    notify: Option<NotifyId>,
}

/// A machine: kernel, daemon and applications.
#[derive(Debug)]
struct Machine {
    id: NodeId,
    kernel: Kernel,
    front: Front,
    node: Node,
    threads: Vec<Thread>,
    unwritten: Vec<(Ticket, Response, Vec<Pin>)>,
    notifications: Vec<(Program, Option<NotifyId>)>,
    notifying: Vec<Notifying>,
    fillings: Vec<doors::Filling>,
    /// When a direct read ended last.
    last_direct_read: u64,
    /// How each file is open.
    doors: Vec<doors::Door>,
    /// Answers to requests of no task, until they are taken.
    own_answers: BTreeMap<Ticket, Response>,
    power: Power,
}

/// A timer of the world.
#[derive(Debug)]
enum Due {
    Disk(usize, Tag),
    Later(usize, Later),
}

/// An append whose place is known when all has been read.
#[derive(Debug)]
struct Append {
    file: usize,
    value: u64,
    count: usize,
    span: (u64, Option<u64>),
    who: usize,
}

/// See the module.
#[derive(Debug)]
pub struct World {
    seed: u64,
    options: Options,
    prng: Prng,
    now: u64,
    /// Steps since the tick began.
    nanos: u64,
    step_count: u64,
    machines: Vec<Machine>,
    disks: Disks,
    network: Network,
    due: BTreeMap<(u64, u64), Due>,
    due_count: u64,
    history: History,
    directory: Directory,
    appends: Vec<Append>,
    /// Cells in which the value of an append was seen.
    seen: BTreeMap<(usize, u64), BTreeSet<usize>>,
    /// Fsyncs that returned: node, file, moments of begin and end.
    syncs: Vec<(usize, usize, u64, u64)>,
    crashes_due: Vec<u64>,
    crashes: Vec<Crash>,
    /// The node that stops in good order, and when it does so in any case.
    stopping: Option<(usize, u64)>,
    /// Sweeps for it: node and number, and when they began.
    sweeps: BTreeMap<(usize, u64), u64>,
    sweep_count: u64,
    late_stop_count: u64,
    dead: BTreeSet<NodeLife>,
    /// What is to lose its name while it is open.
    holds: Vec<holds::Hold>,
    /// Who locks a file.
    lockers: locks::Lockers,
    next_value: u64,
    next_incarnation: u128,
    last_finished: u64,
    /// Writes that were refused for want of room.
    no_space_count: usize,
    checkpoint_counts: [u64; 4],
    rewrites: RewriteCounts,
    refused_count: u64,
    key_counts: [u64; 3],
    loaded_file_count: u64,
    fill_count: u64,
    part_count: u64,
    page_faults: pages::PageFaults,
    /// The last step in which it was nearly full.
    was_full_at: u64,
    may_begin: bool,
    /// Links break though no application makes calls any more.
    breaks_links: bool,
    trace: u64,
    log: Option<Vec<String>>,
    violation: Option<String>,
}

impl World {
    /// Runs to the end and judges.
    pub fn run(mut self) -> (Report, Vec<String>) {
        self.set_up();
        self.may_begin = true;
        for _ in 0..self.options.crash_count {
            let at = self.now + self.prng.between(10, 1500);
            self.crashes_due.push(at);
        }
        self.plan_outage();
        let limit = self.options.call_count;
        let is_done = |m: &Machine| {
            let mut threads = m.threads.iter();
            m.has_files() && threads.all(|t| t.task.is_none() && t.call_count >= limit)
        };
        while self.violation.is_none() && !self.machines.iter().all(is_done) {
            self.step();
        }
        self.may_begin = false;
        self.rest();
        self.judge();
        (0..self.machines.len()).for_each(|index| self.count_checkpoints(index));
        let report = Report {
            seed: self.seed,
            trace_hash: splitmix64(self.trace ^ self.prng.next_u64()),
            step_count: self.step_count,
            access_count: self.history.count() + self.directory.count(),
            no_space_count: self.no_space_count,
            checkpoint_counts: self.checkpoint_counts,
            rewrites: self.rewrites,
            refused_count: self.refused_count,
            key_counts: self.key_counts,
            loaded_file_count: self.loaded_file_count,
            fill_count: self.fill_count,
            part_count: self.part_count,
            page_fault_counts: self.page_faults.counts,
            lock_counts: self.lockers.counts,
            sweep_count: self.sweep_count,
            late_stop_count: self.late_stop_count,
            violation: self.violation,
        };
        (report, self.log.unwrap_or_default())
    }

    /// A life of a machine is over.
    fn count_checkpoints(&mut self, index: usize) {
        let counts = self.machines[index].node.checkpoint_counts();
        let sums = self.checkpoint_counts.iter_mut();
        sums.zip(counts).for_each(|(sum, count)| *sum += count);
        self.rewrites
            .add(self.machines[index].node.rewrite_counts());
        self.refused_count += self.machines[index].node.refused_count();
        let (evicted, counters) = self.machines[index].node.key_counts();
        let counts = [evicted, counters.misses, counters.stale];
        let sums = self.key_counts.iter_mut();
        sums.zip(counts).for_each(|(sum, count)| *sum += count);
        self.part_count += self.machines[index].node.part_count();
        self.loaded_file_count += self.machines[index].node.loaded_file_count();
    }

    fn fail(&mut self, text: String) {
        if self.violation.is_none() {
            self.note(|| format!("VIOLATION {text}"));
            self.violation = Some(text);
        }
    }

    fn step(&mut self) {
        self.step_count += 1;
        self.nanos += 1;
        if self.prng.chance(1, self.options.steps_per_tick) {
            self.pass_to(self.now + 1);
        }
        if self.step_count > STEP_COUNT_MAX || self.now > self.last_finished + STUCK_TICKS {
            let text = format!("stuck at {}:\n{}", self.now, self.describe());
            return self.fail(text);
        }
        let now = Instant(self.now * 1_000_000 + self.nanos.min(999_999));
        for machine in &mut self.machines {
            machine.node.now = now;
        }
        if !self.act() {
            let next = self.next_time();
            self.pass_to(next.max(self.now + 1));
        }
        self.drain();
        self.check();
    }

    /// Lets time pass; ticks of daemons and breaks of links happen on the way.
    fn pass_to(&mut self, now: u64) {
        let before = self.now;
        self.now = now;
        self.nanos = 0;
        for index in 0..self.machines.len() {
            let phase = index as u64 * 7;
            let is_up = self.machines[index].is_up();
            if is_up && (before + phase) / TICK_MS != (now + phase) / TICK_MS {
                self.machines[index].node.now = Instant(now * 1_000_000);
                self.machines[index].node.tick();
                self.forget_some(index);
            }
        }
        for (a, b) in self.network.come_up(now) {
            let mut ends = self.machines.iter().filter(|m| m.id == a || m.id == b);
            if ends.all(Machine::is_up) {
                self.link_up(a, b);
            }
        }
        self.crash_and_restart();
        let every = self.options.break_ticks;
        let breaks = every > 0 && (self.may_begin || self.breaks_links);
        if breaks && self.prng.chance((now - before).min(every), every) {
            self.break_some_link();
        }
    }

    fn link_up(&mut self, a: NodeId, b: NodeId) {
        self.note(|| format!("link {a:?} {b:?} is up"));
        let lives: BTreeMap<NodeId, _> = self.machines.iter().map(|m| (m.id, m.node.me)).collect();
        for machine in &mut self.machines {
            if machine.id == a {
                machine.node.peer_up(lives[&b]);
            } else if machine.id == b {
                machine.node.peer_up(lives[&a]);
            }
        }
    }

    fn break_some_link(&mut self) {
        let ids: Vec<NodeId> = self.machines.iter().map(|m| m.id).collect();
        let a = *self.prng.pick(&ids).expect("nodes");
        let b = *self.prng.pick(&ids).expect("nodes");
        if a == b || self.network.is_down(a, b) {
            return;
        }
        self.note(|| format!("link {a:?} {b:?} breaks"));
        let until = self.now + self.prng.between(1, 100);
        let arrived = self.network.break_link(a, b, until, &mut self.prng);
        for (from, to, wire) in arrived {
            self.deliver(from, to, wire);
        }
        for machine in &mut self.machines {
            if machine.id == a {
                machine.node.peer_down(b);
            } else if machine.id == b {
                machine.node.peer_down(a);
            }
        }
    }

    /// Lets one actor act; false if none can.
    fn act(&mut self) -> bool {
        let mut actors: Vec<(usize, usize)> = Vec::new();
        let machines = self.machines.iter().enumerate();
        for (index, machine) in machines.filter(|(_, m)| m.is_up()) {
            actors.extend((0..machine.actor_count()).map(|actor| (index, actor)));
            actors.extend((0..machine.node.runs.len().min(4)).map(|_| (index, usize::MAX)));
        }
        // Network and disks.
        actors.extend([
            (usize::MAX, 0),
            (usize::MAX, 0),
            (usize::MAX, 1),
            (usize::MAX, 1),
        ]);
        if !self.holds.is_empty() {
            actors.extend([(usize::MAX, 2), (usize::MAX, 2)]);
        }
        if self.options.has_reclaims {
            actors.push((usize::MAX, 3));
        }
        if self.lockers.has_seats() {
            actors.extend([(usize::MAX, 4), (usize::MAX, 4)]);
        }
        if self.options.has_doors {
            actors.push((usize::MAX, 5));
        }
        self.prng.shuffle(&mut actors);
        actors
            .into_iter()
            .any(|(index, actor)| match (index, actor) {
                (usize::MAX, 0) => self.deliver_some(),
                (usize::MAX, 1) => self.end_some(),
                (usize::MAX, 2) => self.act_hold(),
                (usize::MAX, 3) => self.reclaim_some(),
                (usize::MAX, 4) => self.act_lock(),
                (usize::MAX, _) => {
                    let index = self.number(self.machines.len());
                    self.act_door(index)
                }
                (index, usize::MAX) => {
                    let pick = usize::try_from(self.prng.below(1 << 20)).expect("small");
                    self.machines[index].node.act(pick)
                }
                (index, actor) => self.act_at(index, actor),
            })
    }

    /// An owner asks somebody for tokens back; seldom.
    fn reclaim_some(&mut self) -> bool {
        let index = self.prng.below(self.machines.len() as u64);
        let index = usize::try_from(index).expect("few machines");
        if !self.machines[index].is_up() || !self.prng.chance(1, 50) {
            return false;
        }
        let shard = self.prng.below(self.options.shard_count as u64);
        let shard = ShardId(u16::try_from(shard).expect("few shards"));
        let count = self.prng.between(1, 64);
        self.note(|| format!("node {index} is to give {count} idle tokens of {shard:?} back"));
        self.machines[index].node.reclaim(shard, count);
        true
    }

    fn deliver_some(&mut self) -> bool {
        let Some((from, to, wire)) = self.network.take(self.now, &mut self.prng) else {
            return false;
        };
        self.deliver(from, to, wire);
        true
    }

    fn deliver(&mut self, from: NodeId, to: NodeId, wire: Wire) {
        self.note(|| format!("{from:?} -> {to:?}: {wire:?}"));
        let machine = self.machines.iter_mut().find(|m| m.id == to);
        if let Some(machine) = machine.filter(|m| m.is_up()) {
            machine.node.on_wire(from, wire);
        }
    }

    /// Ends one of the disk requests that are due, or lets something later happen.
    fn end_some(&mut self) -> bool {
        let due = self.due.range(..=(self.now, u64::MAX));
        let due: Vec<(u64, u64)> = due.map(|(key, _)| *key).collect();
        let Some(key) = self.prng.pick(&due).copied() else {
            return false;
        };
        match self.due.remove(&key).expect("picked from it") {
            Due::Later(index, later) => self.machines[index].node.on_later(later),
            Due::Disk(index, tag) => {
                let node = &self.machines[index].node;
                let io = node.disk_io(tag).expect("it has not ended").clone();
                let disk = self.disks.get_mut(&io.at.nsd).expect("an own disk");
                let bytes = match io.kind {
                    Kind::Read => {
                        let count = io.sector_count();
                        disk.read(io.at.sector, count)
                    }
                    Kind::Write | Kind::DurableWrite => {
                        let bytes = node.written_bytes(&io);
                        let canary = self.options.canary;
                        let is_kept = match io.source {
                            Source::Frames(_) => !canary.forgets_writes,
                            Source::Page(_) => !canary.loses_pages,
                            Source::Bytes(_) | Source::Count(_) => !canary.skips_journal,
                        };
                        if is_kept {
                            disk.write(io.at.sector, &bytes, io.kind == Kind::DurableWrite);
                        }
                        Vec::new()
                    }
                    Kind::Flush => {
                        disk.flush();
                        Vec::new()
                    }
                };
                let result = match io.is_page_read() {
                    true => self.page_read(index, io.at, bytes),
                    false => Ok(bytes),
                };
                self.machines[index].node.on_disk(tag, result);
            }
        }
        true
    }

    fn add_due(&mut self, at: u64, due: Due) {
        self.due_count += 1;
        self.due.insert((at, self.due_count), due);
    }

    fn next_time(&self) -> u64 {
        let ticks = (0..self.machines.len() as u64).map(|index| {
            let phase = index * 7;
            ((self.now + phase) / TICK_MS + 1) * TICK_MS - phase
        });
        let due = self.due.keys().next().map(|(at, _)| *at);
        let power = self.machines.iter().filter_map(|m| match m.power {
            Power::Off(until) => Some(until),
            Power::On | Power::Opening(_) => None,
        });
        let all = ticks
            .chain(due)
            .chain(self.network.next_time())
            .chain(power);
        all.min().unwrap_or(self.now + 1)
    }

    /// Performs what the nodes want done.
    fn drain(&mut self) {
        for index in 0..self.machines.len() {
            while !self.machines[index].node.out.is_empty() {
                for out in std::mem::take(&mut self.machines[index].node.out) {
                    self.perform(index, out);
                }
            }
        }
    }

    fn perform(&mut self, index: usize, out: Out) {
        self.note(|| format!("node {index}: {out:?}"));
        let from = self.machines[index].id;
        match out {
            Out::Send(to, lane, wire) => {
                // A full queue drops what is said between halves; what sectors wait for is sent again.
                let may_drop = matches!(wire, Wire::Node(_));
                if may_drop && self.prng.chance(self.options.loss_per_mille, 1000) {
                    return self.note(|| "lost".to_owned());
                }
                let at = self.now + self.prng.between(1, self.options.delay_max);
                self.network.send((from, to), lane, wire, at);
            }
            Out::Disk(tag) => {
                let node = &self.machines[index].node;
                let is_page = node.disk_io(tag).is_some_and(DiskIo::is_page_read);
                let delay_max = match is_page && self.may_begin && self.options.page_delay_max > 0 {
                    true => self.options.page_delay_max,
                    false => self.options.disk_delay_max,
                };
                let at = self.now + self.prng.between(1, delay_max);
                self.add_due(at, Due::Disk(index, tag));
            }
            Out::Later(ms, later) => self.add_due(self.now + ms, Due::Later(index, later)),
            Out::Reply(ticket, response, pinned) => {
                let machine = &mut self.machines[index];
                machine.unwritten.push((ticket, response, pinned));
            }
            Out::Notify(id, notice) => self.notify(index, id, &notice),
            Out::Fill(ino, spans) => self.fill_begins(index, ino, spans),
            Out::Sweep(sweep) => self.sweep_begins(index, sweep),
            Out::Swept(sweep) => self.sweep_ends(index, sweep),
        }
    }

    fn notify(&mut self, index: usize, id: Option<NotifyId>, notice: &Notice) {
        let machine = &mut self.machines[index];
        let program = match notice {
            Notice::Data {
                ino,
                offset,
                length,
            } => machine.front.file_of(*ino).map(|file| {
                let page = |at: u64| usize::try_from(at).unwrap_or(PAGE_COUNT).min(PAGE_COUNT);
                let end = if *length == 0 {
                    PAGE_COUNT
                } else {
                    page((offset + length).div_ceil(4096))
                };
                Program::NotifyPages(file, page(offset / 4096)..end)
            }),
            Notice::Attributes { ino } => {
                if let Some(file) = machine.front.file_of(*ino) {
                    machine.kernel.drop_attributes(file);
                }
                None
            }
            Notice::Entry { parent, name } => {
                let number = (0..NAME_COUNT).find(|n| super::front::name(*n) == *name);
                number
                    .filter(|n| *parent == machine.front.parent_of(*n))
                    .map(Program::NotifyEntry)
            }
            Notice::Epoch => {
                machine.kernel.epoch += 1;
                None
            }
            Notice::Prune { inos } => {
                self.prune(index, inos);
                return;
            }
        };
        match program {
            Some(program) => machine.notifications.push((program, id)),
            None => {
                if let Some(id) = id {
                    machine.node.input(id.slice(), Input::Notified(id));
                }
            }
        }
    }

    /// Invariants of all cores, and tokens as their holders see them.
    fn check(&mut self) {
        if self.options.has_little_space() && self.is_nearly_full() {
            self.was_full_at = self.step_count;
        }
        if self.step_count.is_multiple_of(16) {
            for machine in self.machines.iter().filter(|m| m.is_up()) {
                machine.node.check();
                machine.kernel.check();
            }
            self.check_regions();
        }
        let Some(first) = self.machines.first() else {
            return;
        };
        let files = first.front.files.iter().map(|f| f.ino);
        let inos: Vec<InodeId> = files.chain(first.front.directories()).collect();
        for ino in inos {
            let slice = slice_of(ino);
            for (index, machine) in self.machines.iter().enumerate() {
                let held = machine.node.slices[slice].held(ino);
                let Some(held) = held.filter(|_| machine.is_up()) else {
                    continue;
                };
                for (other, rival) in self.machines[..index].iter().enumerate() {
                    let rights = rival.node.slices[slice].held(ino);
                    let rights = rights.filter(|_| rival.is_up());
                    if rights.is_some_and(|rights| held.conflicts_with(rights)) {
                        let text = format!(
                            "nodes {other} and {index} hold conflicting tokens on {ino:?}: {:?} and {held:?}",
                            rival.node.slices[slice].held(ino)
                        );
                        return self.fail(text);
                    }
                }
            }
        }
    }

    fn note(&mut self, text: impl Fn() -> String) {
        self.trace = splitmix64(self.trace ^ self.now ^ self.step_count << 32);
        if let Some(log) = &mut self.log {
            log.push(format!("{:>6} {:>6} {}", self.step_count, self.now, text()));
        }
    }

    /// Who waits for what.
    fn describe(&self) -> String {
        let mut lines = Vec::new();
        for (index, machine) in self.machines.iter().enumerate() {
            let described = machine.describe();
            lines.extend(
                described
                    .into_iter()
                    .map(|line| format!("node {index}: {line}")),
            );
        }
        lines.join("\n")
    }
}
