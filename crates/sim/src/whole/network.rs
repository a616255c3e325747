//! Links between nodes: lanes in order, messages on a broken link lost in both directions.

use std::collections::{BTreeMap, VecDeque};

use stdx::Prng;
use types::NodeId;

use super::node::{Lane, Wire};

type LaneId = (NodeId, NodeId, Lane);

/// See the module.
#[derive(Debug, Default)]
pub struct Network {
    lanes: BTreeMap<LaneId, VecDeque<(u64, Wire)>>,
    /// Links that are down, and when they are up again.
    down: BTreeMap<(NodeId, NodeId), u64>,
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl Network {
    /// Puts a message on its lane, to arrive after `delay` and after all before it. Nothing gets on a link that is down.
    pub fn send(&mut self, (from, to): (NodeId, NodeId), lane: Lane, wire: Wire, at: u64) {
        if !self.down.contains_key(&pair(from, to)) {
            let queue = self.lanes.entry((from, to, lane)).or_default();
            let at = queue.back().map_or(at, |(last, _)| at.max(*last));
            queue.push_back((at, wire));
        }
    }

    /// Takes one of the messages that are due.
    pub fn take(&mut self, now: u64, prng: &mut Prng) -> Option<(NodeId, NodeId, Wire)> {
        let is_due =
            |queue: &VecDeque<(u64, Wire)>| queue.front().is_some_and(|(at, _)| *at <= now);
        let due = self.lanes.iter().filter(|(_, queue)| is_due(queue));
        let due: Vec<LaneId> = due.map(|(lane, _)| *lane).collect();
        let lane = *prng.pick(&due)?;
        let queue = self.lanes.get_mut(&lane).expect("picked from them");
        let (_, wire) = queue.pop_front().expect("it has one that is due");
        Some((lane.0, lane.1, wire))
    }

    /// When the next message is due.
    pub fn next_time(&self) -> Option<u64> {
        let heads = self.lanes.values().filter_map(VecDeque::front);
        let all = heads.map(|(at, _)| *at).chain(self.down.values().copied());
        all.filter(|at| *at < u64::MAX).min()
    }

    /// Breaks a link until `until`: of each lane some first messages have arrived, which are returned; the rest is lost.
    pub fn break_link(
        &mut self,
        a: NodeId,
        b: NodeId,
        until: u64,
        prng: &mut Prng,
    ) -> Vec<(NodeId, NodeId, Wire)> {
        let mut arrived = Vec::new();
        for ((from, to, _), queue) in &mut self.lanes {
            if pair(*from, *to) == pair(a, b) {
                let count = prng.below(queue.len() as u64 + 1);
                let count = usize::try_from(count).expect("few");
                arrived.extend(queue.drain(..count).map(|(_, wire)| (*from, *to, wire)));
                queue.clear();
            }
        }
        self.down.insert(pair(a, b), until);
        arrived
    }

    /// The link may be up again.
    pub fn mend(&mut self, a: NodeId, b: NodeId) {
        self.down.remove(&pair(a, b));
    }

    /// The link is down.
    pub fn is_down(&self, a: NodeId, b: NodeId) -> bool {
        self.down.contains_key(&pair(a, b))
    }

    /// Links that come up now.
    pub fn come_up(&mut self, now: u64) -> Vec<(NodeId, NodeId)> {
        let due = self.down.extract_if(.., |_, at| *at <= now);
        due.map(|(pair, _)| pair).collect()
    }

    /// Nothing is on its way.
    pub fn is_quiet(&self) -> bool {
        self.lanes.values().all(VecDeque::is_empty) && self.down.is_empty()
    }
}
