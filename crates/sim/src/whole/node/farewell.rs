//! The driver of stops in good order (the twin of `os::daemon::farewell`).

use std::collections::VecDeque;

use client::slice::Input;
use node::Message;
use node::farewell::Act;
use types::{NodeId, NodeLife};

use super::{Item, Node, Out};

impl Node {
    /// Says to these lives that this node stops.
    pub fn begin_farewell(&mut self, others: &[NodeLife]) {
        self.farewells.begin(self.now, others);
        self.tick_farewell();
    }

    /// The second round: it is as if all of this node's were written.
    pub fn ask_last(&mut self) {
        let acts = self.farewells.written();
        let mut items = VecDeque::new();
        for act in acts {
            self.act_farewell(Some(act), &mut items);
        }
        self.run(items);
        self.tick_farewell();
    }

    /// Asks again who has not answered; answers who waits in vain.
    pub(super) fn tick_farewell(&mut self) {
        if !self.farewells.is_any() {
            return;
        }
        let members: Vec<NodeLife> = self.peers.values().copied().collect();
        let is_linked = |life: NodeLife| self.links.contains(&life.node);
        let mut stuck = self.farewells.sweeps();
        stuck.retain(|(asker, sweep, left)| {
            let is_gone = |node: NodeId| {
                node != asker.node && node != self.me.node && !self.links.contains(&node)
            };
            let is_away = |shard| is_gone(self.owner(shard));
            let is_unreachable = |id| {
                let nsd = self.view.nsds.iter().find(|nsd| nsd.id == id);
                nsd.is_some_and(|nsd| nsd.servers.iter().all(|server| is_gone(*server)))
            };
            let slices = self.slices.iter();
            let stuck = slices.filter(|s| s.is_sweep_stuck(*sweep, is_away, is_unreachable));
            stuck.count() == *left
        });
        let acts = self
            .farewells
            .on_tick(self.now, &members, is_linked, &stuck);
        let mut items = VecDeque::new();
        for act in acts {
            self.act_farewell(Some(act), &mut items);
        }
        self.run(items);
        let round = self.farewells.round();
        let missing: Vec<NodeLife> = self.farewells.missing().collect();
        for life in missing {
            self.send(life.node, Message::Stopping { round });
        }
    }

    /// Whether the second round has begun.
    pub fn has_asked_last(&self) -> bool {
        self.farewells.round() > 0
    }

    /// Everybody has written back what was for this node.
    pub fn may_leave(&self) -> bool {
        self.has_asked_last() && self.farewells.missing().next().is_none()
    }

    pub(super) fn on_stopping(&mut self, from: NodeLife, round: u32, items: &mut VecDeque<Item>) {
        self.hands.with(|hands| hands.set_away(from.node, true));
        let slices = self.slices.len();
        let act = self.farewells.on_stopping((from, round), slices);
        self.act_farewell(act, items);
    }

    pub(super) fn on_swept(&mut self, sweep: u64, items: &mut VecDeque<Item>) {
        let act = self.farewells.on_swept(sweep);
        if act.is_some() {
            self.out.push(Out::Swept(sweep));
        }
        self.act_farewell(act, items);
    }

    fn act_farewell(&mut self, act: Option<Act>, items: &mut VecDeque<Item>) {
        match act {
            Some(Act::Sweep(sweep)) => {
                self.out.push(Out::Sweep(sweep));
                for slice in 0..self.slices.len() {
                    match self.canary.skips_sweeps {
                        true => self.on_swept(sweep, items),
                        // Each on an event loop: a run of its own.
                        false => {
                            let item = Item::Client(slice, Input::Sweep(sweep));
                            self.runs.push(vec![item].into());
                        }
                    }
                }
            }
            Some(Act::Answer { to, round, is_last }) => {
                self.send(to.node, Message::WrittenBack { round, is_last })
            }
            None => {}
        }
    }
}
