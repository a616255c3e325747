//! One run: nodes, network and owner under a random scheduler.
//!
//! Everything that can happen next is an *actor*; each step tries actors in random order until one gets somewhere. When
//! none does, time jumps to the next delivery or timer. Time also passes by itself, so that time-outs and messages
//! interleave with steps in all ways.

mod node;
mod workload;

use std::collections::BTreeMap;

use client::revoke::NotifyId;
use stdx::Prng;
use stdx::prng::splitmix64;
use token::Message as TokenMessage;
use types::id::NodeLife;
use types::{Incarnation, Instant, NodeId};

use crate::daemon::{Daemon, Output, Setting};
use crate::history::{Access, History};
use crate::model::{Answer, CELL_COUNT};
use crate::options::Options;
use crate::owner::{Call, Owner, Sent, file_ino};
use crate::task::Program;

use node::Node;

/// Ticks without a finished call after which a run is stuck: far beyond all retries and time-outs.
const STUCK_TICKS: u64 = 60_000;
/// Steps after which a run is given up as too long.
const STEP_COUNT_MAX: u64 = 2_000_000;

/// A message on its way.
#[derive(Clone, Debug)]
enum Packet {
    ToOwner(NodeLife, ToOwner),
    ToNode(NodeLife, Sent),
}

#[derive(Clone, Debug)]
enum ToOwner {
    Token(TokenMessage),
    Call(u64, Call),
}

/// A lapse that the owner will hear of.
#[derive(Debug)]
struct Unheard {
    /// When, in ticks.
    at: u64,
    node: usize,
    old: NodeLife,
    /// Cells whose dirty contents are lost: file and cell.
    lost: Vec<(usize, usize)>,
    /// Moment of the lapse.
    since: u64,
}

/// What a run showed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash of everything that happened, in order.
    pub trace_hash: u64,
    /// Steps taken.
    pub step_count: u64,
    /// Accesses that the checker judged.
    pub access_count: usize,
    /// What was wrong, if anything.
    pub violation: Option<String>,
}

/// The world of one run.
#[derive(Debug)]
pub struct World {
    seed: u64,
    options: Options,
    prng: Prng,
    now: u64,
    step_count: u64,
    nodes: Vec<Node>,
    owner: Owner,
    network: BTreeMap<(u64, u64), Packet>,
    packet_count: u64,
    history: History,
    next_value: u64,
    last_finished: u64,
    /// Lapses to come: tick and node.
    lapses: Vec<(u64, usize)>,
    /// Lapses that the owner has not heard of.
    unheard: Vec<Unheard>,
    trace: u64,
    log: Option<Vec<String>>,
    violation: Option<String>,
}

impl World {
    /// The world of a seed. `options` may differ from what the seed draws (canaries).
    pub fn new(seed: u64, options: Options, keeps_log: bool) -> Self {
        let mut prng = Prng::new(seed ^ 0x51AE_0F5E);
        let setting = Setting {
            rules: options.rules,
            has_mappings: options.has_mappings,
            has_epoch: options.has_epoch,
        };
        let life = |index: usize| NodeLife {
            node: NodeId(u16::try_from(index + 1).expect("few nodes")),
            incarnation: Incarnation(index as u128 + 100),
        };
        let lives: Vec<NodeLife> = (0..options.node_count).map(life).collect();
        let nodes = lives
            .iter()
            .map(|life| Node::new(Daemon::new(setting, *life, options.file_count), &options))
            .collect();
        let lapses = (0..options.lapse_count).map(|_| {
            let node = prng.below(options.node_count as u64);
            (
                prng.between(20, 600),
                usize::try_from(node).expect("few nodes"),
            )
        });
        Self {
            seed,
            lapses: lapses.collect(),
            options,
            prng,
            now: 1,
            step_count: 0,
            nodes,
            owner: Owner::new(options.file_count, lives, options.rules),
            network: BTreeMap::new(),
            packet_count: 0,
            history: History::default(),
            next_value: 0,
            last_finished: 0,
            unheard: Vec::new(),
            trace: seed,
            log: keeps_log.then(Vec::new),
            violation: None,
        }
    }

    /// Runs to the end and judges.
    pub fn run(mut self) -> (Report, Vec<String>) {
        while self.violation.is_none() && !self.is_over() {
            self.step();
        }
        if self.violation.is_none() {
            self.violation = self.history.check().err();
        }
        let report = Report {
            seed: self.seed,
            // What is drawn next depends on every draw before.
            trace_hash: splitmix64(self.trace ^ self.prng.next_u64()),
            step_count: self.step_count,
            access_count: self.history.count(),
            violation: self.violation,
        };
        (report, self.log.unwrap_or_default())
    }

    fn is_over(&self) -> bool {
        let is_quiet = |node: &Node| node.is_done(self.options.call_count);
        self.nodes.iter().all(is_quiet) && self.lapses.is_empty() && self.unheard.is_empty()
    }

    fn step(&mut self) {
        self.step_count += 1;
        if self.prng.chance(1, self.options.steps_per_tick) {
            self.now += 1;
        }
        if self.step_count > STEP_COUNT_MAX || self.now > self.last_finished + STUCK_TICKS {
            self.violation = Some(format!("stuck at {}:\n{}", self.now, self.describe()));
            return;
        }
        if !self.act() {
            let may_begin = self
                .nodes
                .iter()
                .any(|n| n.may_begin(self.options.call_count));
            let next = if may_begin {
                self.now
            } else {
                self.next_time()
            };
            self.now = next.max(self.now + 1);
        }
        self.run_timers();
        self.drain();
        self.check();
        self.check_lookups();
    }

    /// Lets one actor act; false if none can.
    fn act(&mut self) -> bool {
        let mut actors: Vec<(usize, usize)> = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            actors.extend((0..node.actor_count()).map(|actor| (index, actor)));
        }
        let due = self.network.range(..=(self.now, u64::MAX)).count();
        actors.extend((0..due.min(4)).map(|_| (usize::MAX, 0)));
        self.prng.shuffle(&mut actors);
        actors.into_iter().any(|(node, actor)| {
            if node == usize::MAX {
                self.deliver()
            } else {
                self.act_at(node, actor)
            }
        })
    }

    /// Delivers one of the messages that are due.
    fn deliver(&mut self) -> bool {
        let due: Vec<(u64, u64)> = self
            .network
            .range(..=(self.now, u64::MAX))
            .map(|(key, _)| *key)
            .collect();
        let Some(key) = self.prng.pick(&due).copied() else {
            return false;
        };
        let packet = self.network.remove(&key).expect("picked from it");
        self.note(|| format!("deliver {packet:?}"));
        let now = Instant(self.now * 1_000_000);
        let mut out = Vec::new();
        match packet {
            Packet::ToOwner(from, ToOwner::Token(message)) => {
                self.owner.on_token(now, from, message, &mut out);
            }
            Packet::ToOwner(from, ToOwner::Call(id, call)) => {
                self.owner.on_call(now, from, (id, call), &mut out);
            }
            Packet::ToNode(to, sent) => {
                let node = self.nodes.iter_mut().find(|n| n.daemon.life() == to);
                match (node, sent) {
                    (None, _) => {}
                    (Some(node), Sent::Token(message)) => node.daemon.on_token(self.now, message),
                    (Some(node), Sent::Reply(id, reply)) => {
                        node.daemon.on_reply(self.now, id, reply);
                    }
                }
            }
        }
        self.post_all(out);
        true
    }

    fn post_all(&mut self, out: Vec<(NodeLife, Sent)>) {
        for (to, sent) in out {
            self.post(to.node == NodeId(1), Packet::ToNode(to, sent));
        }
    }

    /// Puts a message on the wire. What a node says to itself is a direct call: it is neither lost nor late.
    fn post(&mut self, is_local: bool, packet: Packet) {
        let Options {
            loss_percent,
            duplicate_percent,
            delay_max,
            ..
        } = self.options;
        let copies = match is_local {
            true => 1,
            false if self.prng.chance(loss_percent, 100) => 0,
            false => 1 + u64::from(self.prng.chance(duplicate_percent, 100)),
        };
        for _ in 0..copies {
            let delay = if is_local {
                0
            } else {
                self.prng.between(1, delay_max)
            };
            self.packet_count += 1;
            self.network
                .insert((self.now + delay, self.packet_count), packet.clone());
        }
    }

    fn run_timers(&mut self) {
        let now = Instant(self.now * 1_000_000);
        if self
            .owner
            .manager
            .next_timeout()
            .is_some_and(|at| at <= now)
        {
            let mut out = Vec::new();
            self.owner.on_timeout(now, &mut out);
            self.post_all(out);
        }
        for node in &mut self.nodes {
            if node.daemon.next_timeout().is_some_and(|at| at <= self.now) {
                node.daemon.on_timeout(self.now);
            }
        }
        self.run_lapses(now);
    }

    fn run_lapses(&mut self, now: Instant) {
        let due = |(at, _): &mut (u64, usize)| *at <= self.now;
        let lapsed: Vec<(u64, usize)> = self.lapses.extract_if(.., due).collect();
        if !lapsed.is_empty() {
            // What the old lives have said goes out under their names.
            self.drain();
        }
        for (_, index) in lapsed {
            let old = self.nodes[index].daemon.life();
            let new = NodeLife {
                incarnation: Incarnation(old.incarnation.0 + 100),
                ..old
            };
            let lost = self.nodes[index].lapse(self.now, new);
            self.note(|| format!("lease of {old:?} lapses, lost {lost:?}"));
            let at = self.now + self.prng.between(1, 100);
            let since = self.step_count;
            self.unheard.push(Unheard {
                at,
                node: index,
                old,
                lost,
                since,
            });
        }
        let due = |unheard: &mut Unheard| unheard.at <= self.now;
        let heard: Vec<Unheard> = self.unheard.extract_if(.., due).collect();
        for Unheard {
            node: index,
            old,
            lost,
            since,
            ..
        } in heard
        {
            let new = self.nodes[index].daemon.life();
            // What was dirty is lost: as if somebody had written the committed contents again.
            for (file, cell) in lost {
                let value = self.owner.files[file].cells[cell];
                let span = (since, Some(self.step_count));
                self.history
                    .add((file, cell), Access::Write(value), span, index);
            }
            let mut out = Vec::new();
            self.owner.on_life(now, old, new, &mut out);
            self.post_all(out);
        }
    }

    fn next_time(&self) -> u64 {
        let network = self.network.keys().next().map(|(at, _)| *at);
        let manager = self
            .owner
            .manager
            .next_timeout()
            .map(|at| at.0.div_ceil(1_000_000));
        let daemons = self.nodes.iter().filter_map(|n| n.daemon.next_timeout());
        let lapses = self.lapses.iter().map(|(at, _)| *at);
        let unheard = self.unheard.iter().map(|u| u.at);
        let all = daemons
            .chain(network)
            .chain(manager)
            .chain(lapses)
            .chain(unheard);
        all.min().unwrap_or(self.last_finished + STUCK_TICKS + 1)
    }

    /// Performs what the daemons want done.
    fn drain(&mut self) {
        for index in 0..self.nodes.len() {
            while !self.nodes[index].daemon.shared.out.is_empty() {
                for output in std::mem::take(&mut self.nodes[index].daemon.shared.out) {
                    self.perform(index, output);
                }
            }
        }
    }

    fn perform(&mut self, index: usize, output: Output) {
        self.note(|| format!("node {index}: {output:?}"));
        let node = &mut self.nodes[index];
        let life = node.daemon.life();
        match output {
            Output::Answer(id, answer) => node.unwritten.push((id, answer)),
            Output::Token(message) => {
                self.post(index == 0, Packet::ToOwner(life, ToOwner::Token(message)));
            }
            Output::Call(id, call) => {
                self.post(index == 0, Packet::ToOwner(life, ToOwner::Call(id, call)));
            }
            Output::NotifyPages(file, notify, pages) => {
                node.notifications
                    .push((Program::NotifyPages(file, pages), Some(file), notify));
            }
            Output::NotifyEntries(notify) => {
                node.notifications
                    .push((Program::NotifyEntries, None, notify));
            }
            Output::NotifyAttributes(file, notify) => {
                node.kernel.drop_attributes(file);
                node.daemon.on_notified(self.now, file, notify);
            }
            Output::NotifyEpoch(notify) => self.increase_epoch(index, notify),
            Output::Violation(text) => {
                self.violation
                    .get_or_insert(format!("node {index}: {text}"));
            }
        }
    }

    fn increase_epoch(&mut self, index: usize, notify: NotifyId) {
        let node = &mut self.nodes[index];
        node.kernel.epoch += 1;
        node.daemon.on_names_notified(self.now, notify);
    }

    /// R7, seen from outside: nobody waits until the names that this node itself caches have timed out. Messages that are lost
    /// may take as long, so this is judged only without loss.
    fn check_lookups(&mut self) {
        let longest = crate::model::TIMEOUT_TICKS * 9 / 10;
        for (index, node) in self.nodes.iter().enumerate() {
            let since = node.daemon.names.parked_since();
            if since.is_some_and(|at| at + longest < self.now) && self.options.loss_percent == 0 {
                let text = format!("node {index}: a lookup waits for the node's own names");
                self.violation.get_or_insert(text);
            }
        }
    }

    /// Invariants of all cores, and tokens as their holders see them.
    fn check(&mut self) {
        // Not Manager::check: a waiter that was asked about before the manager began to hold it back trips it.
        for node in &self.nodes {
            node.daemon.check();
            node.kernel.check();
        }
        for file in 0..self.options.file_count {
            for (index, node) in self.nodes.iter().enumerate() {
                for (other, rival) in self.nodes[..index].iter().enumerate() {
                    let held = node.daemon.files[file].holder.held();
                    let is_live = |n: &Node| {
                        !self
                            .unheard
                            .iter()
                            .any(|u| n.daemon.life().node == u.old.node)
                    };
                    if is_live(node)
                        && is_live(rival)
                        && held.conflicts_with(rival.daemon.files[file].holder.held())
                    {
                        let text = format!(
                            "nodes {other} and {index} hold conflicting tokens on {:?}",
                            file_ino(file)
                        );
                        self.violation.get_or_insert(text);
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
        for (index, node) in self.nodes.iter().enumerate() {
            lines.extend(
                node.describe()
                    .into_iter()
                    .map(|line| format!("node {index}: {line}")),
            );
        }
        for waiting in self.owner.manager.waiters() {
            lines.push(format!("manager: {waiting:?}"));
        }
        lines.join("\n")
    }

    fn finish(&mut self) {
        self.last_finished = self.now;
    }

    /// A time that orders what the history holds: steps, not ticks.
    const fn moment(&self) -> u64 {
        self.step_count
    }
}

/// Time-outs that answers under way carry are void when the lease is over.
fn void_timeout(answer: &mut Answer) {
    match answer {
        Answer::Attributes(attributes) => attributes.timeout = 0,
        Answer::Entry {
            timeout,
            attributes,
            ..
        } => {
            *timeout = 0;
            *attributes = None;
        }
        Answer::Data(_)
        | Answer::Written(_)
        | Answer::Done
        | Answer::Refused(_)
        | Answer::Failed
        | Answer::Interrupted => {}
    }
}

const _: () = assert!(CELL_COUNT < 64);
