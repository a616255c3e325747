//! The stop of this node and of others, as the other members hear of it: `node::farewell` on the network.

use std::sync::Arc;
use std::time::Instant;

use client::slice::Input;
use node::Message;
use node::farewell::Act;
use types::{Duration, NodeLife};

use super::{Daemon, TICK, lock};
use crate::clock;

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
        let nodes = self.config.view.nodes.iter().map(|node| node.id);
        let mut others = nodes.filter(|node| *node != self.me.node);
        let is_hindered = others.any(|node| {
            let life = members.iter().find(|life| life.node == node);
            life.is_none_or(|life| !is_linked(*life))
        });
        let (acts, missing, round) = {
            let mut farewells = lock(&self.farewells);
            let acts = farewells.on_tick(clock::now(), &members, is_linked, is_hindered);
            let missing: Vec<NodeLife> = farewells.missing().collect();
            (acts, missing, farewells.round())
        };
        acts.into_iter().for_each(|act| self.act(act));
        for life in missing {
            self.send_to(life, &Message::Stopping { round });
        }
    }

    /// This node writes nothing any more: who stops, too, may leave. Waits until the others hold nothing for this node, no longer than
    /// `until`. Without a lease only those count that stop as well: nobody else takes or gives anything then.
    pub(super) fn await_farewell(self: &Arc<Self>, until: Instant) {
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
        // What would be moved to its sectors from now on might not be there in time.
        self.hands.with(|hands| hands.set_away(from.node, true));
        let slices = self.slices.len();
        let act = lock(&self.farewells).on_stopping(clock::now(), (from, round), slices);
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
        let act = lock(&self.farewells).on_swept(clock::now(), sweep);
        act.into_iter().for_each(|act| self.act(act));
    }

    /// A member has written back what it held in this round of this node's stop.
    pub(super) fn on_written_back(&self, from: NodeLife, round: u32, is_last: bool) {
        lock(&self.farewells).on_written_back(from, round, is_last);
        self.ends.tell();
    }

    /// Who is not in the newest view, or has said that it stops, gets no work that can wait.
    pub(super) fn note_away(&self, members: &[NodeLife]) {
        let farewells = lock(&self.farewells);
        let is_there = |node| {
            let mut lives = members.iter().filter(|life| life.node == node);
            lives.any(|life| !farewells.has_asked(*life))
        };
        self.hands.with(|hands| {
            for node in &self.config.view.nodes {
                hands.set_away(node.id, !is_there(node.id));
            }
        });
    }
}
