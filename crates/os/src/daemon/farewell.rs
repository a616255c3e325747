//! The stop of this node and of others, as the other members hear of it: `node::farewell` on the network.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use client::slice::Input;
use node::Message;
use node::farewell::Act;
use types::{Duration, NodeLife};

use super::work::Item;
use super::{Daemon, REPEAT_TICKS, TICK, lock};
use crate::clock;

impl Daemon {
    /// Says to all members that this node stops.
    pub(super) fn begin_farewell(&self) {
        let members = self.membership.others();
        lock(&self.farewells).begin(clock::now(), members.into_iter());
        self.ask_farewell();
    }

    /// Asks who has not answered yet, and forgets who cannot. False: nobody is left to wait for.
    fn ask_farewell(&self) -> bool {
        let missing: Vec<NodeLife> = {
            let members = self.membership.others();
            let mut farewells = lock(&self.farewells);
            let is_member = |life| members.contains(&life);
            let is_linked = |life: NodeLife| {
                let net = self.net.get();
                let peer = net.and_then(|net| net.peer_incarnation(life.node));
                peer == Some(life.incarnation)
            };
            farewells.on_tick(clock::now(), is_member, is_linked);
            farewells.missing().collect()
        };
        for life in &missing {
            self.send_to(*life, &Message::Stopping {});
        }
        !missing.is_empty()
    }

    /// This node holds nothing any more: who stops, too, may leave. Waits until the others hold nothing for this node; no longer than
    /// `until`, nor without a lease, for then nobody takes or gives anything.
    pub(super) fn await_farewell(self: &Arc<Self>, until: Instant) {
        let acts = lock(&self.farewells).written();
        let mut items = VecDeque::new();
        acts.into_iter().for_each(|act| self.act(act, &mut items));
        let mut tick = 0u64;
        let mut ticked = Instant::now();
        let mut is_awaited = self.ask_farewell();
        while is_awaited && self.lease_left() > Duration(0) {
            if Instant::now() > until {
                let missing: Vec<u16> = self.farewell_missing();
                tracing::warn!(?missing, "leaving before these nodes have written back");
                return;
            }
            let seen = self.ends.count();
            is_awaited = !self.farewell_missing().is_empty();
            if is_awaited {
                self.ends.wait(seen, TICK);
            }
            if ticked.elapsed() >= TICK {
                ticked = Instant::now();
                tick += 1;
                self.tick_stopping(tick);
                if tick.is_multiple_of(REPEAT_TICKS) {
                    is_awaited = self.ask_farewell();
                }
            }
        }
    }

    fn farewell_missing(&self) -> Vec<u16> {
        let farewells = lock(&self.farewells);
        farewells.missing().map(|life| life.node.0).collect()
    }

    fn act(&self, act: Act, items: &mut VecDeque<Item>) {
        match act {
            Act::Sweep(sweep) => {
                let slices = 0..self.slices.len();
                items.extend(slices.map(|slice| Item::Client(slice, Input::Sweep(sweep))));
            }
            Act::Answer { to, is_last } => self.send_to(to, &Message::WrittenBack { is_last }),
        }
    }

    /// Another node stops.
    pub(super) fn on_stopping(&self, from: NodeLife, items: &mut VecDeque<Item>) {
        let slices = self.slices.len();
        let act = lock(&self.farewells).on_stopping(clock::now(), from, slices);
        if let Some(Act::Sweep(_)) = act {
            tracing::info!(
                node = from.node.0,
                "a node stops: what is dirty here is written back"
            );
        }
        act.into_iter().for_each(|act| self.act(act, items));
    }

    /// A slice has ended a sweep.
    pub(super) fn on_swept(&self, sweep: u64, items: &mut VecDeque<Item>) {
        let act = lock(&self.farewells).on_swept(sweep);
        act.into_iter().for_each(|act| self.act(act, items));
    }

    /// A member has written back what it held when it heard of this node's stop.
    pub(super) fn on_written_back(&self, from: NodeLife, is_last: bool) {
        lock(&self.farewells).on_written_back(from, is_last);
        self.ends.tell();
    }
}
