//! The stop of this node and of others, as the other members hear of it: `node::farewell` on the network.
//!
//! Lock order: the cluster's core before `farewells`, `farewells` before hands. Slices are not looked at under `farewells`: a view, and with it
//! the lease, would wait for them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use client::slice::Input;
use node::farewell::Act;
use node::{Farewells, Message};
use types::{Duration, NodeId, NodeLife, NsdId};

use super::{Daemon, TICK, lock};
use crate::clock;

/// How long others may write back what they have for this node, however long it took itself.
const PATIENCE_MIN: std::time::Duration = std::time::Duration::from_secs(5);

impl Daemon {
    /// Says to all members that this node stops.
    pub(super) fn begin_farewell(self: &Arc<Self>) {
        let members = self.membership.others();
        lock(&self.farewells).begin(clock::now(), &members);
        self.tick_farewell();
    }

    /// Asks again who has not answered, where this node stops; answers who waits in vain. Once a second.
    pub(super) fn tick_farewell(self: &Arc<Self>) {
        if !lock(&self.farewells).is_any() {
            return;
        }
        let members = self.membership.others();
        let is_linked = |life: NodeLife| {
            let net = self.net.get();
            let peer = net.and_then(|net| net.peer_incarnation(life.node));
            peer == Some(life.incarnation)
        };
        let is_gone = |node: NodeId| {
            let mut lives = members.iter().filter(|life| life.node == node);
            node != self.me.node && !lives.any(|life| is_linked(*life))
        };
        let has_gone = self.config.view.nodes.iter().any(|node| is_gone(node.id));
        let mut stuck = match has_gone {
            true => lock(&self.farewells).sweeps(),
            false => Vec::new(),
        };
        stuck.retain(|(asker, sweep, left)| {
            let is_gone = |node: NodeId| node != asker.node && is_gone(node);
            self.stuck_slices(*sweep, is_gone) == *left
        });
        let (acts, missing, round) = {
            let mut farewells = lock(&self.farewells);
            let acts = farewells.on_tick(clock::now(), &members, is_linked, &stuck);
            let missing: Vec<NodeLife> = farewells.missing().collect();
            (acts, missing, farewells.round())
        };
        acts.into_iter().for_each(|act| self.act(act));
        for life in missing {
            self.send_to(life, &Message::Stopping { round });
        }
    }

    /// Slices of which all that is left of a sweep waits for nodes that are gone.
    fn stuck_slices(&self, sweep: u64, is_gone: impl Fn(NodeId) -> bool) -> usize {
        let view = &self.config.view;
        let is_away = |shard| is_gone(self.owner(shard));
        let is_unreachable = |id: NsdId| {
            let nsd = view.nsds.iter().find(|nsd| nsd.id == id);
            !self.disks.contains_key(&id)
                && nsd.is_some_and(|nsd| nsd.servers.iter().all(|server| is_gone(*server)))
        };
        let slices = self.slices.iter();
        let stuck = slices.filter(|s| lock(s).is_sweep_stuck(sweep, is_away, is_unreachable));
        stuck.count()
    }

    /// This node writes nothing any more: who stops, too, may leave. Waits until the others hold nothing for this node, no longer than
    /// `until` or `PATIENCE_MIN`. Without a lease only those count that stop as well: nobody else takes or gives anything then.
    pub(super) fn await_farewell(self: &Arc<Self>, until: Instant) {
        let until = until.max(Instant::now() + PATIENCE_MIN);
        let acts = lock(&self.farewells).written();
        acts.into_iter().for_each(|act| self.act(act));
        self.tick_farewell();
        let mut tick = 0u64;
        let mut ticked = Instant::now();
        loop {
            let seen = self.ends.count();
            let missing = self.farewell_missing();
            if missing.is_empty() {
                return;
            }
            if Instant::now() > until {
                tracing::warn!(?missing, "leaving before these nodes have written back");
                return;
            }
            self.ends.wait(seen, TICK);
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                tick += 1;
                self.tick_stopping(tick);
            }
        }
    }

    /// Nodes that are waited for.
    fn farewell_missing(&self) -> Vec<u16> {
        let has_lease = self.lease_left() > Duration(0);
        let farewells = lock(&self.farewells);
        let missing = farewells.missing();
        let missing = missing.filter(|life| has_lease || farewells.has_asked(*life));
        missing.map(|life| life.node.0).collect()
    }

    fn act(self: &Arc<Self>, act: Act) {
        match act {
            Act::Sweep(sweep) => {
                // Each on its own event loop: there may be very much to write.
                for slice in 0..self.slices.len() {
                    let daemon = Arc::clone(self);
                    let run = move || daemon.input(slice, Input::Sweep(sweep));
                    self.loops.post(slice, Box::new(run));
                }
            }
            Act::Answer { to, round, is_last } => {
                self.send_to(to, &Message::WrittenBack { round, is_last })
            }
        }
    }

    /// Another node stops.
    pub(super) fn on_stopping(self: &Arc<Self>, from: NodeLife, round: u32) {
        let members = self.membership.others();
        let slices = self.slices.len();
        let act = {
            let mut farewells = lock(&self.farewells);
            let act = farewells.on_stopping((from, round), slices);
            // What would be moved to its sectors from now on might not be there in time.
            self.note_away(&farewells, &members);
            act
        };
        if let Some(Act::Sweep(_)) = act {
            tracing::info!(
                node = from.node.0,
                round,
                "a node stops: what is dirty here is written back"
            );
        }
        act.into_iter().for_each(|act| self.act(act));
    }

    /// A slice has ended a sweep.
    pub(super) fn on_swept(self: &Arc<Self>, sweep: u64) {
        let act = lock(&self.farewells).on_swept(sweep);
        act.into_iter().for_each(|act| self.act(act));
    }

    /// A member has written back what it held in this round of this node's stop.
    pub(super) fn on_written_back(&self, from: NodeLife, round: u32, is_last: bool) {
        lock(&self.farewells).on_written_back(from, round, is_last);
        self.ends.tell();
    }

    /// A newer view: who has left is not waited for, and has nothing to be told.
    pub(super) fn note_members(&self, members: &[NodeLife]) {
        let mut farewells = lock(&self.farewells);
        farewells.keep_members(members);
        self.note_away(&farewells, members);
    }

    /// Owners and servers that are not in the newest view, or have said that they stop, get no work that can wait.
    fn note_away(&self, farewells: &Farewells, members: &[NodeLife]) {
        let view = &self.config.view;
        let is_there = |node: NodeId| {
            let mut lives = members.iter().filter(|life| life.node == node);
            node == self.me.node || lives.any(|life| !farewells.has_asked(*life))
        };
        let servers = view.nsds.iter().flat_map(|nsd| &nsd.servers);
        let needed: BTreeSet<NodeId> = view.owners.iter().chain(servers).copied().collect();
        self.hands.with(|hands| {
            for node in needed.into_iter().filter(|n| *n != NodeId::default()) {
                hands.set_away(node, !is_there(node));
            }
        });
    }
}
