//! A manager, some nodes and a network in one thread, with a checker that looks at what holders may use.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test uses a part; tests may panic"
)]

use std::collections::BTreeMap;

use token::activity::Activity;
use token::client::{Adopted, Cover, Finish, Holder, Plan};
use token::pattern::Shape;
use token::server::{Effect, Manager, Options};
use token::{Acquire, Granted, Message, Outbox, Reassert, Revoke, Rights};
use types::id::NodeLife;
use types::{
    ByteRange, Epoch, Incarnation, InodeId, Instant, NodeId, RangeMode, TokenNumber, Want,
};

/// The inode of most tests.
pub(crate) const INO: InodeId = InodeId::from_raw(7);

/// Under way.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    /// To or from this node.
    pub(crate) node: usize,
    pub(crate) message: Message,
}

/// One node's client side, of one inode.
#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) holder: Holder,
    pub(crate) activity: Activity,
    /// Unanswered requests.
    pub(crate) tickets: BTreeMap<u64, Vec<Want>>,
    /// Wait for a release of our own.
    pub(crate) parked: Vec<Vec<Want>>,
    /// Revokes being carried out.
    pub(crate) plans: Vec<Plan>,
    pub(crate) done_count: u64,
    pub(crate) is_lost: bool,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) epoch: Epoch,
    pub(crate) manager: Manager,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Vec<Envelope>,
    pub(crate) revoke_count: u64,
    pub(crate) notes: Vec<String>,
    /// Prints every message.
    pub(crate) is_loud: bool,
    ticket: u64,
}

pub(crate) fn life(node: usize) -> NodeLife {
    NodeLife {
        node: NodeId(u16::try_from(node + 1).unwrap()),
        incarnation: Incarnation(1),
    }
}

impl World {
    pub(crate) fn new(nodes: usize) -> Self {
        let open = || {
            let mut node = Node::default();
            node.activity.is_open = true;
            node
        };
        Self {
            now: Instant(1),
            epoch: Epoch(1),
            manager: Manager::new(Epoch(1), Options::default()),
            nodes: (0..nodes).map(|_| open()).collect(),
            network: Vec::new(),
            revoke_count: 0,
            notes: Vec::new(),
            is_loud: false,
            ticket: 0,
        }
    }

    /// A byte-range want as the client makes it.
    pub(crate) fn range_want(&mut self, node: usize, mode: RangeMode, range: ByteRange) -> Want {
        let activity = &mut self.nodes[node].activity;
        activity.note(self.now, 0, range);
        Want::Range {
            mode,
            required: types::Pattern::plain(range),
            desired: activity.desired(0, range),
        }
    }

    /// Asks unless it is covered; true if it is.
    pub(crate) fn want(&mut self, node: usize, wants: Vec<Want>) -> bool {
        let owner = &mut self.nodes[node];
        match owner.holder.cover(&wants) {
            Cover::Covered => {
                owner.done_count += 1;
                return true;
            }
            Cover::Releasing => {
                owner.parked.push(wants);
                return false;
            }
            Cover::Missing => {}
        }
        self.ticket += 1;
        owner.tickets.insert(self.ticket, wants);
        self.send_acquire(node, self.ticket);
        false
    }

    /// Sends a request (again).
    pub(crate) fn send_acquire(&mut self, node: usize, ticket: u64) {
        let message = Message::Acquire(Acquire {
            holder: life(node),
            ticket,
            ino: INO,
            seen: self.nodes[node].holder.seen(),
            wants: self.nodes[node].tickets[&ticket].clone(),
            transient: false,
        });
        self.network.push(Envelope { node, message });
    }

    /// Takes a message out of the network and hands it over.
    pub(crate) fn deliver(&mut self, index: usize) {
        let Envelope { node, message } = self.network.remove(index);
        self.handle(node, message);
    }

    pub(crate) fn handle(&mut self, node: usize, message: Message) {
        if self.nodes[node].is_lost {
            return;
        }
        if self.is_loud {
            eprintln!("n{} {message:?}", node + 1);
        }
        let bytes = types::Encode::to_bytes(&message);
        let decoded: Message = types::Decode::from_bytes(&bytes, "message").unwrap();
        assert_eq!(decoded, message);
        let mut out = Outbox::new();
        match message {
            Message::Acquire(request) => {
                self.manager.acquire(self.now, request, &mut out).unwrap();
            }
            Message::Released(released) => {
                let result = self
                    .manager
                    .on_released(self.now, life(node), &released, &mut out);
                result.unwrap();
            }
            Message::Granted(granted) => self.on_granted(node, &granted),
            Message::Revoke(revoke) => self.on_revoke(node, &revoke),
            Message::Reassert(reassert) => {
                if let Err(wrong) = self.manager.reassert(life(node), &reassert) {
                    self.notes.push(wrong.to_string());
                }
            }
            Message::Refused(_) | Message::Reclaim(_) => panic!("there is room"),
        }
        self.perform(out);
    }

    pub(crate) fn perform(&mut self, out: Outbox) {
        for effect in out {
            let (to, message) = match effect {
                Effect::Revoke { to, message } => {
                    self.revoke_count += 1;
                    (to, Message::Revoke(message))
                }
                Effect::Granted { holder, message } => (holder, Message::Granted(message)),
                Effect::Silent { holder, since } => {
                    let note =
                        format!("{} is silent since {} ms", holder.node, since.0 / 1_000_000);
                    self.notes.push(note);
                    continue;
                }
                Effect::Refused { .. } | Effect::Reclaim { .. } => panic!("there is room"),
            };
            let node = usize::from(to.node.0) - 1;
            self.network.push(Envelope { node, message });
        }
    }

    fn on_granted(&mut self, node: usize, granted: &Granted) {
        let owner = &mut self.nodes[node];
        let wants = owner.tickets.remove(&granted.ticket);
        match owner.holder.on_granted(granted, wants.is_some()) {
            Adopted::Unasked(released) => {
                let message = Message::Released(released);
                self.network.push(Envelope { node, message });
            }
            Adopted::Current | Adopted::Stale => {
                if let Some(wants) = wants {
                    self.want(node, wants);
                }
            }
        }
    }

    fn on_revoke(&mut self, node: usize, revoke: &Revoke) {
        let owner = &mut self.nodes[node];
        if let Some(plan) = owner.holder.on_revoke(self.now, revoke, &owner.activity) {
            owner.plans.push(plan);
        }
    }

    /// The node has carried out one of its plans.
    pub(crate) fn finish(&mut self, node: usize, index: usize) {
        let owner = &mut self.nodes[node];
        let plan = owner.plans.remove(index);
        let is_open = owner.activity.is_open;
        match owner.holder.finish_release(plan.release, is_open) {
            Finish::Release(released) => {
                let message = Message::Released(released);
                self.network.push(Envelope { node, message });
            }
            Finish::More(more) => owner.plans.push(more),
        }
        for wants in std::mem::take(&mut self.nodes[node].parked) {
            self.want(node, wants);
        }
    }

    /// Delivers in order and finishes plans until nothing moves.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.network.is_empty() {
                self.deliver(0);
            } else if let Some(node) = self.nodes.iter().position(|n| !n.plans.is_empty()) {
                self.finish(node, 0);
            } else {
                return;
            }
        }
        panic!("the nodes do not settle: {:?}", self.manager.waiters());
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now = Instant(self.now.0 + ms * 1_000_000);
        let mut out = Outbox::new();
        self.manager.on_timeout(self.now, &mut out);
        self.perform(out);
    }

    pub(crate) fn lose(&mut self, node: usize) {
        self.nodes[node].is_lost = true;
        self.nodes[node].holder = Holder::new();
        self.nodes[node].plans.clear();
        self.nodes[node].tickets.clear();
        self.nodes[node].parked.clear();
        let mut out = Outbox::new();
        self.manager.on_node_lost(self.now, life(node), &mut out);
        self.perform(out);
    }

    /// The owner dies, another collects what the nodes hold.
    pub(crate) fn change_owner(&mut self) {
        self.epoch.0 += 1;
        self.manager = Manager::new(self.epoch, Options::default());
        let alive = |n: &usize| !self.nodes[*n].is_lost;
        let expected: Vec<usize> = (0..self.nodes.len()).filter(alive).collect();
        let lives: Vec<NodeLife> = expected.iter().map(|n| life(*n)).collect();
        self.manager.begin_grace(&lives);
        for node in expected {
            let message = Reassert {
                part: 0,
                is_last: true,
                holdings: self.nodes[node].holder.reassert(INO, self.epoch),
                open: Vec::new(),
                locks: Vec::new(),
                lock_floor: 0,
            };
            self.manager.reassert(life(node), &message).unwrap();
            // A repeat changes nothing.
            self.manager.reassert(life(node), &message).unwrap();
        }
        assert_eq!(self.manager.missing().count(), 0);
        let mut out = Outbox::new();
        self.manager.end_grace(self.now, &mut out);
        self.perform(out);
    }

    /// No two nodes may use what conflicts, and the manager knows of all that anybody has.
    pub(crate) fn check(&self) {
        self.manager.check();
        for (index, node) in self.nodes.iter().enumerate() {
            node.holder.check();
            let held = node.holder.held();
            for other in &self.nodes[index + 1..] {
                let other = other.holder.held();
                assert!(
                    !held.conflicts_with(other),
                    "{held:?} and {other:?} conflict"
                );
            }
            let recorded = self.manager.rights(life(index), INO);
            let nothing = Rights::new();
            let recorded = recorded.map_or(&nothing, |(_, rights)| rights);
            assert!(
                is_part(held, recorded),
                "n{}: {held:?} held, {recorded:?} recorded",
                index + 1
            );
        }
    }

    pub(crate) fn number(&self, node: usize) -> TokenNumber {
        self.nodes[node].holder.seen()
    }
}

fn is_part(held: &Rights, recorded: &Rights) -> bool {
    let modes = (held.directory.is_none() || held.directory <= recorded.directory)
        && (held.inode.is_none()
            || held
                .inode
                .zip(recorded.inode)
                .is_some_and(|(a, b)| token::compat::inode_covers(b, a)));
    let is_held = |mode, shape: &Shape| match shape {
        Shape::Plain(range) => recorded.covers_range(mode, range),
        Shape::Strided(_) => {
            let write = recorded.write.contains(shape);
            write || (mode == RangeMode::Read && recorded.read.contains(shape))
        }
    };
    // Where the arithmetic cannot tell, byte by byte.
    let is_part = |mode, shape: Shape| {
        let byte = |at| Shape::Plain(ByteRange::at(at, 1));
        let mut bytes = (0..40).map(byte).filter(|b| shape.overlaps(b));
        is_held(mode, &shape) || bytes.all(|b| is_held(mode, &b))
    };
    let read = held.read.shapes().all(|s| is_part(RangeMode::Read, s));
    let write = held.write.shapes().all(|s| is_part(RangeMode::Write, s));
    modes && read && write
}
