//! The driver of stops in good order (the twin of `os::daemon::farewell`).

use std::collections::VecDeque;

use client::slice::Input;
use node::Message;
use node::farewell::Act;
use types::NodeLife;

use super::{Item, Node, Out};

impl Node {
    /// Says to these lives that this node stops.
    pub fn begin_farewell(&mut self, others: &[NodeLife]) {
        self.farewells.begin(self.now, others.iter().copied());
        self.ask_farewell();
    }

    /// Asks again who has not answered.
    pub fn ask_farewell(&mut self) {
        let missing: Vec<NodeLife> = self.farewells.missing().collect();
        for life in missing {
            self.send(life.node, Message::Stopping {});
        }
    }

    /// Everybody has written back what was for this node.
    pub fn may_leave(&self) -> bool {
        self.farewells.missing().next().is_none()
    }

    pub(super) fn on_stopping(&mut self, from: NodeLife, items: &mut VecDeque<Item>) {
        let slices = self.slices.len();
        let act = self.farewells.on_stopping(self.now, from, slices);
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
                        false => items.push_back(Item::Client(slice, Input::Sweep(sweep))),
                    }
                }
            }
            Some(Act::Answer { to, is_last }) => {
                self.send(to.node, Message::WrittenBack { is_last });
            }
            None => {}
        }
    }
}
