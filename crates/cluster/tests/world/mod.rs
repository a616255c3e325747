//! A cluster in one value: nodes with drifting clocks, a network that loses, repeats and delays, a
//! config store that fails, and a checker that looks from outside after every event.
//!
//! Node 1 runs the cluster manager in the same process as its member. A process that is paused does
//! nothing, but what it believes (`is_valid` by its own clock) is checked all the same.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "shared by two test programs; a test that panics has failed"
)]

use std::collections::{BTreeMap, BTreeSet};

use cluster::client::{Config, Effect as MemberEffect, State};
use cluster::message::{ToManager, ToMember};
use cluster::server::Effect as ManagerEffect;
use cluster::store::{get_view, put_view};
use cluster::{ConfigStore, Manager, Member, Revision, StoreError, Stored, Timing};
use stdx::Prng;
use types::id::NodeLife;
use types::{ClusterId, ClusterView, Encode, Epoch, FsId, Incarnation, Instant, NodeId, NodeView};

/// Nanoseconds of true time.
pub(crate) type Time = u64;
pub(crate) const MS: Time = 1_000_000;
const MANAGER: u16 = 1;

#[derive(Default)]
struct Store {
    stored: Option<Stored>,
    is_down: bool,
    unknown_next: bool,
}

impl ConfigStore for Store {
    fn get(&mut self, _key: &str) -> Result<Option<Stored>, StoreError> {
        Ok(self.stored.clone())
    }

    fn put(
        &mut self,
        _key: &str,
        value: &[u8],
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        if self.is_down {
            return Err(StoreError::Unavailable);
        }
        let revision = self.stored.as_ref().map_or(Revision(0), |s| s.revision);
        if revision != expected {
            let found = self.stored.clone();
            return Err(StoreError::Conflict { found });
        }
        let revision = Revision(revision.0 + 1);
        let value = value.to_vec();
        self.stored = Some(Stored { revision, value });
        match std::mem::take(&mut self.unknown_next) {
            true => Err(StoreError::OutcomeUnknown),
            false => Ok(revision),
        }
    }
}

/// A machine: its clock and state directory outlive its processes.
pub(crate) struct Machine {
    drift_ppm: i64,
    clock_offset: u64,
    former: Vec<Incarnation>,
    pub(crate) process: Option<Process>,
    pub(crate) is_cut: bool,
}

pub(crate) struct Process {
    pub(crate) member: Member,
    manager: Option<Manager>,
    is_paused: bool,
    epochs_seen: Epoch,
    is_lapsed: bool,
    rejoin_at: Option<Time>,
}

#[derive(Clone)]
enum Packet {
    ToManager(NodeId, ToManager),
    ToMember(ToMember),
    Stored(Result<Revision, StoreError>),
}

#[derive(Clone)]
struct InFlight {
    to: u16,
    /// Process that it is for, when it is no message: 0 is any.
    process: Incarnation,
    packet: Packet,
}

/// How the network and the store treat what passes.
#[derive(Clone, Copy)]
pub(crate) struct Faults {
    pub(crate) loss_percent: u64,
    pub(crate) repeat_percent: u64,
    pub(crate) delay_max: Time,
    pub(crate) store_unknown_percent: u64,
}

pub(crate) const CALM: Faults = Faults {
    loss_percent: 0,
    repeat_percent: 0,
    delay_max: 0,
    store_unknown_percent: 0,
};

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) timing: Timing,
    pub(crate) faults: Faults,
    prng: Prng,
    pub(crate) machines: BTreeMap<u16, Machine>,
    store: Store,
    packets: BTreeMap<(Time, u64), InFlight>,
    packet_count: u64,
    next_incarnation: u128,
    dead: BTreeSet<NodeLife>,
    up: BTreeMap<NodeId, Incarnation>,
    published: Epoch,
    /// What happened, for transcripts.
    pub(crate) log: Vec<String>,
}

impl World {
    pub(crate) fn new(seed: u64, node_count: u16) -> Self {
        let mut prng = Prng::new(seed);
        let timing = Timing::default();
        let node = |id| NodeView {
            id: NodeId(id),
            address: String::new(),
            incarnation: Incarnation(0),
        };
        let view = ClusterView {
            cluster: ClusterId(1),
            fs: FsId(1),
            epoch: Epoch(1),
            manager: NodeId(MANAGER),
            nodes: (1..=node_count).map(node).collect(),
            nsds: Vec::new(),
            owners: Vec::new(),
            block_size: 1 << 20,
        };
        let mut machine = || Machine {
            drift_ppm: 0,
            clock_offset: prng.below(1 << 40),
            former: Vec::new(),
            process: None,
            is_cut: false,
        };
        let machines = (1..=node_count).map(|id| (id, machine())).collect();
        let stored = Stored {
            revision: Revision(1),
            value: view.to_bytes(),
        };
        let store = Store {
            stored: Some(stored),
            ..Store::default()
        };
        Self {
            now: 1_000_000_000,
            timing,
            faults: CALM,
            prng,
            machines,
            store,
            packets: BTreeMap::new(),
            packet_count: 0,
            next_incarnation: 1,
            dead: BTreeSet::new(),
            up: BTreeMap::new(),
            published: Epoch(1),
            log: Vec::new(),
        }
    }

    pub(crate) fn set_drift(&mut self, node: u16, ppm: i64) {
        let now = self.now;
        let machine = self.machines.get_mut(&node).unwrap();
        let before = machine.local(now);
        machine.drift_ppm = ppm;
        // The clock goes on from where it is.
        let after = machine.local(now);
        machine.clock_offset = machine.clock_offset + before.0 - after.0;
    }

    pub(crate) fn set_store_down(&mut self, is_down: bool) {
        self.store.is_down = is_down;
    }

    fn incarnation(&mut self) -> Incarnation {
        self.next_incarnation += 1;
        Incarnation(self.next_incarnation)
    }

    /// Starts the daemon; the lock of the state directory keeps a second one out.
    pub(crate) fn start(&mut self, node: u16, has_former: bool) {
        if self.machines[&node].process.is_some() {
            return;
        }
        let incarnation = self.incarnation();
        let now = self.machines[&node].local(self.now);
        let timing = self.timing;
        let machine = self.machines.get_mut(&node).unwrap();
        if !has_former {
            machine.former.clear();
        }
        let life = NodeLife {
            node: NodeId(node),
            incarnation,
        };
        let config = Config {
            life,
            former: machine.former.clone(),
            address: format!("node{node}:1"),
            manager: NodeId(MANAGER),
            timing,
        };
        machine.former.push(incarnation);
        let mut out = Vec::new();
        let manager = (node == MANAGER).then(|| {
            let stored = get_view(&mut self.store).unwrap().unwrap();
            // The manager's memory of who is up is the stored view.
            Manager::new(now, NodeId(node), timing, stored, &mut out)
        });
        machine.process = Some(Process {
            member: Member::new(now, config),
            manager,
            is_paused: false,
            epochs_seen: Epoch(0),
            is_lapsed: true,
            rejoin_at: None,
        });
        if node == MANAGER {
            self.reconcile();
        }
        self.perform_manager(out);
    }

    /// A stored view that the killed manager did not live to announce counts from now on.
    fn reconcile(&mut self) {
        let view = self.manager().unwrap().view().clone();
        for life in cluster::lives(&view) {
            self.up.insert(life.node, life.incarnation);
        }
        for (node, incarnation) in self.up.clone() {
            let life = NodeLife { node, incarnation };
            if cluster::life(&view, node) != Some(life) {
                self.up.remove(&node);
                self.dead.insert(life);
            }
        }
        assert!(view.epoch >= self.published);
        self.published = view.epoch;
    }

    pub(crate) fn kill(&mut self, node: u16) {
        self.machines.get_mut(&node).unwrap().process = None;
    }

    pub(crate) fn pause(&mut self, node: u16, is_paused: bool) {
        if let Some(process) = &mut self.machines.get_mut(&node).unwrap().process {
            process.is_paused = is_paused;
        }
    }

    pub(crate) fn leave(&mut self, node: u16) {
        let now = self.machines[&node].local(self.now);
        let mut out = Vec::new();
        let Some(process) = &mut self.machines.get_mut(&node).unwrap().process else {
            return;
        };
        if !process.is_paused {
            process.member.leave(now, &mut out);
            self.perform_member(node, out);
        }
    }

    pub(crate) fn manager(&self) -> Option<&Manager> {
        self.machines[&MANAGER].process.as_ref()?.manager.as_ref()
    }

    /// Handles everything that happens until `until`.
    pub(crate) fn run_until(&mut self, until: Time) {
        while let Some(at) = self.next_event().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            self.step();
            self.check();
        }
        self.now = until;
        self.check();
    }

    fn next_event(&self) -> Option<Time> {
        let packet = self
            .packets
            .iter()
            .find(|(_, packet)| !self.is_paused(packet.to))
            .map(|((at, _), _)| *at);
        let timers = self.machines.values().filter_map(|m| m.next_timeout());
        timers.chain(packet).min()
    }

    fn is_paused(&self, node: u16) -> bool {
        let process = self.machines[&node].process.as_ref();
        process.is_some_and(|process| process.is_paused)
    }

    fn step(&mut self) {
        let due = self
            .packets
            .iter()
            .find(|((at, _), packet)| *at <= self.now && !self.is_paused(packet.to))
            .map(|(key, _)| *key);
        if let Some(key) = due {
            let packet = self.packets.remove(&key).unwrap();
            self.deliver(packet);
            return;
        }
        for node in self.machines.keys().copied().collect::<Vec<_>>() {
            self.fire(node);
        }
    }

    fn fire(&mut self, node: u16) {
        let now = self.now;
        let machine = &self.machines[&node];
        if machine.next_timeout().is_none_or(|at| at > now) {
            return;
        }
        let rejoin_at = machine.process.as_ref().unwrap().rejoin_at;
        let is_rejoining = rejoin_at.is_some_and(|at| at <= now);
        let fresh = is_rejoining.then(|| self.incarnation());
        let machine = self.machines.get_mut(&node).unwrap();
        let local = machine.local(now);
        let process = machine.process.as_mut().unwrap();
        let mut manager_out = Vec::new();
        if let Some(manager) = &mut process.manager {
            manager.on_timeout(local, &mut manager_out);
        }
        let mut out = Vec::new();
        if let Some(fresh) = fresh {
            process.rejoin_at = None;
            machine.former.push(fresh);
            process.member.rejoin(local, fresh, &mut out);
        } else {
            process.member.on_timeout(local, &mut out);
        }
        self.perform_manager(manager_out);
        self.perform_member(node, out);
    }

    fn deliver(&mut self, packet: InFlight) {
        let machine = self.machines.get_mut(&packet.to).unwrap();
        let local = machine.local(self.now);
        let Some(process) = &mut machine.process else {
            return;
        };
        match packet.packet {
            Packet::ToMember(message) => {
                let mut out = Vec::new();
                process.member.on_message(local, message, &mut out);
                self.perform_member(packet.to, out);
            }
            Packet::ToManager(from, message) => {
                let mut out = Vec::new();
                let manager = process.manager.as_mut().unwrap();
                manager.on_message(local, from, message, &mut out);
                self.perform_manager(out);
            }
            Packet::Stored(result) => {
                if process.member.life().incarnation != packet.process {
                    return;
                }
                let mut out = Vec::new();
                let manager = process.manager.as_mut().unwrap();
                manager.on_stored(local, result, &mut out);
                self.perform_manager(out);
            }
        }
    }

    fn send(&mut self, from: u16, to: u16, packet: Packet) {
        let is_local = from == to;
        let is_cut = self.machines[&from].is_cut || self.machines[&to].is_cut;
        let is_lost = self.prng.chance(self.faults.loss_percent, 100);
        if !is_local && (is_cut || is_lost) {
            return;
        }
        let copies = 1 + u64::from(self.prng.chance(self.faults.repeat_percent, 100));
        for _ in 0..copies {
            let delay = match is_local {
                true => 0,
                false => MS / 10 + self.prng.below(self.faults.delay_max + 1),
            };
            self.post(delay, to, Incarnation(0), packet.clone());
        }
    }

    fn post(&mut self, delay: Time, to: u16, process: Incarnation, packet: Packet) {
        self.packet_count += 1;
        let in_flight = InFlight {
            to,
            process,
            packet,
        };
        self.packets
            .insert((self.now + delay, self.packet_count), in_flight);
    }

    fn perform_member(&mut self, node: u16, out: Vec<MemberEffect>) {
        for effect in out {
            let name = self.name(node);
            let local = self.machines[&node].local(self.now);
            let rejoin_at = self.now + self.prng.below(1000 * MS);
            let machine = self.machines.get_mut(&node).unwrap();
            let process = machine.process.as_mut().unwrap();
            match effect {
                MemberEffect::Send { to, message } => {
                    let packet = Packet::ToManager(NodeId(node), message);
                    self.send(node, to.0, packet);
                    continue;
                }
                MemberEffect::Joined { valid_until } => {
                    let left = valid_until.since(local).0 / MS;
                    process.is_lapsed = left == 0;
                    // The state directory forgets the lives before a joined one.
                    machine.former = vec![process.member.life().incarnation];
                    self.log(format!("{name} joined, lease left {left} ms"));
                }
                MemberEffect::View { view } => {
                    assert!(view.epoch > process.epochs_seen, "epochs ascend");
                    process.epochs_seen = view.epoch;
                    let text = show(&view);
                    self.log(format!("{name} sees {text}"));
                }
                MemberEffect::Lapsed => {
                    process.is_lapsed = true;
                    self.log(format!("{name} lapsed"));
                }
                MemberEffect::Regained => {
                    assert!(process.is_lapsed);
                    process.is_lapsed = false;
                    self.log(format!("{name} regained"));
                }
                MemberEffect::Evicted { epoch } => {
                    process.rejoin_at = Some(rejoin_at);
                    process.is_lapsed = true;
                    self.log(format!("{name} evicted in {epoch}"));
                }
                MemberEffect::Refused { reason } => self.log(format!("{name} refused: {reason:?}")),
                MemberEffect::Left => {
                    self.kill(node);
                    self.log(format!("{name} left"));
                    return;
                }
            }
        }
    }

    fn perform_manager(&mut self, out: Vec<ManagerEffect>) {
        for effect in out {
            match effect {
                ManagerEffect::Store { view, expected } => {
                    let percent = self.faults.store_unknown_percent;
                    self.store.unknown_next = self.prng.chance(percent, 100);
                    let result = put_view(&mut self.store, &view, expected);
                    let delay = self.prng.below(self.faults.delay_max + 1);
                    let process = self.machines[&MANAGER].process.as_ref().unwrap();
                    let incarnation = process.member.life().incarnation;
                    self.post(delay, MANAGER, incarnation, Packet::Stored(result));
                }
                ManagerEffect::Send { to, message } => {
                    self.send(MANAGER, to.0, Packet::ToMember(message));
                }
                ManagerEffect::NodeDead { life, epoch, cause } => {
                    assert_eq!(self.up.remove(&life.node), Some(life.incarnation));
                    self.dead.insert(life);
                    self.note_epoch(epoch);
                    self.log(format!(
                        "manager: {} dead in {epoch}: {cause:?}",
                        text(life)
                    ));
                }
                ManagerEffect::NodeUp { life, epoch } => {
                    let old = self.up.insert(life.node, life.incarnation);
                    assert_eq!(old, None, "two lives of a node at once");
                    self.note_epoch(epoch);
                    self.log(format!("manager: {} up in {epoch}", text(life)));
                }
                ManagerEffect::SteppedDown { .. } => panic!("there is no other manager"),
            }
        }
    }

    fn note_epoch(&mut self, epoch: Epoch) {
        assert!(epoch >= self.published, "epochs ascend");
        self.published = epoch;
    }

    fn name(&self, node: u16) -> String {
        text(self.machines[&node].process.as_ref().unwrap().member.life())
    }

    fn log(&mut self, line: String) {
        self.log.push(format!("{:>6} {line}", self.now / MS - 1000));
    }

    /// What must hold at every moment, seen from outside.
    pub(crate) fn check(&self) {
        for machine in self.machines.values() {
            let Some(process) = &machine.process else {
                continue;
            };
            process.member.check();
            if let Some(manager) = &process.manager {
                manager.check();
            }
            let life = process.member.life();
            let believes = process.member.is_valid(machine.local(self.now));
            let is_dead = self.dead.contains(&life);
            assert!(
                !(believes && is_dead),
                "{} believes in its lease after its death:\n{}",
                text(life),
                self.log.join("\n")
            );
        }
    }

    /// Every running node is a member with a valid lease and the manager's view.
    pub(crate) fn check_all_well(&self) {
        let manager = self.manager().unwrap();
        for (id, machine) in &self.machines {
            let Some(process) = &machine.process else {
                continue;
            };
            let member = &process.member;
            assert_eq!(member.state(), State::Member, "node {id}");
            assert!(member.is_valid(machine.local(self.now)), "node {id}");
            assert_eq!(member.view(), Some(manager.view()), "node {id}");
        }
        for life in cluster::lives(manager.view()) {
            let process = self.machines[&life.node.0].process.as_ref().unwrap();
            assert_eq!(process.member.life(), life, "no ghosts");
        }
    }
}

impl Machine {
    fn local(&self, now: Time) -> Instant {
        let drift = i128::from(now) * i128::from(self.drift_ppm) / 1_000_000;
        let time = i128::from(now) + drift + i128::from(self.clock_offset);
        Instant(u64::try_from(time).unwrap())
    }

    /// The true time at which a local instant is reached (rounded up).
    fn true_time(&self, local: Instant) -> Time {
        let passed = i128::from(local.0) - i128::from(self.clock_offset);
        let rate = 1_000_000 + i128::from(self.drift_ppm);
        let time = (passed * 1_000_000).div_euclid(rate) + 2;
        u64::try_from(time.max(0)).unwrap()
    }

    fn next_timeout(&self) -> Option<Time> {
        let process = self.process.as_ref().filter(|process| !process.is_paused)?;
        let manager = process.manager.as_ref().and_then(Manager::next_timeout);
        let timers = [process.member.next_timeout(), manager];
        let timer = timers.into_iter().flatten().min();
        let timer = timer.map(|at| self.true_time(at));
        [timer, process.rejoin_at].into_iter().flatten().min()
    }
}

fn text(life: NodeLife) -> String {
    format!("{}/{}", life.node, life.incarnation)
}

fn show(view: &ClusterView) -> String {
    let lives: Vec<String> = cluster::lives(view).map(text).collect();
    format!("{}: {}", view.epoch, lives.join(" "))
}
