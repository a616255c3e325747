//! Questions to other owners: carries out what `node::Calls` decides.

use std::collections::VecDeque;

use client::message::{Answer, Ask, Body};
use meta::view::Origin;
use node::Message;
use types::id::NodeLife;
use types::{Errno, NodeId, ShardId};

use super::{DRIVER_CALL, Item, Node};

impl Node {
    pub(super) fn call_owner(
        &mut self,
        call: u64,
        shard: ShardId,
        ask: Ask,
        items: &mut VecDeque<Item>,
    ) {
        let owner = self.owner(shard);
        if owner == NodeId::default() {
            let answer = Answer::bare(Body::Refused(Errno::ESTALE));
            return self.on_answer(call, Box::new(answer), items);
        }
        if owner == self.me.node {
            if call & DRIVER_CALL != 0 {
                self.calls.begin_own(call, shard);
            }
            self.ask_here(self.me, call, None, shard, ask, items);
            return;
        }
        let message = self.calls.begin(self.now, call, (owner, shard), ask);
        if let Some(message) = message {
            self.send(owner, message);
        }
    }

    /// A question has its answer: its slot goes to the next that waits. Returns the shard asked.
    pub(super) fn call_ended(&mut self, call: u64) -> Option<ShardId> {
        let (shard, next) = self.calls.ended(self.now, call);
        if let Some((peer, message)) = next {
            self.send(peer, message);
        }
        shard
    }

    pub(super) fn ask_here(
        &mut self,
        from: NodeLife,
        call: u64,
        origin: Option<Origin>,
        shard: ShardId,
        ask: Ask,
        items: &mut VecDeque<Item>,
    ) {
        if matches!(ask, Ask::Space(_)) {
            self.take_regions(items);
        }
        let question = node::calls::question(self.now, (from, call), origin, shard, ask);
        items.push_back(Item::Owner(question));
    }

    /// Says again what a broken link may have lost.
    pub(super) fn repeat_to(&mut self, peer: NodeId) {
        let mut messages: Vec<Message> = self.calls.of_peer(peer).collect();
        let facts = self.facts.unanswered().filter(|(owner, _)| *owner == peer);
        messages.extend(facts.map(|(_, message)| message.clone()));
        for message in messages {
            self.send(peer, message);
        }
    }

    /// Says again what has had no answer for long.
    pub(super) fn repeat_stale(&mut self) {
        let mut messages = self.calls.stale(self.now);
        let facts = self.facts.unanswered();
        messages.extend(facts.map(|(owner, message)| (owner, message.clone())));
        messages.extend(self.region_repeats());
        self.ask_fences();
        for (peer, message) in messages {
            self.send(peer, message);
        }
    }
}
