//! Questions to other owners: slots, repeats (the twin of `os::daemon::peers::Calls`).

use std::collections::{BTreeMap, VecDeque};

use client::message::{Answer, Ask, Body};
use meta::view::Origin;
use node::{Message, Question, Work};
use types::id::NodeLife;
use types::{Duration, Errno, Instant, NodeId, RequestId, ShardId, limits};

use super::{DRIVER_CALL, Item, Node};

/// A question without an answer is said again after this.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// A question on its way to another owner.
#[derive(Debug)]
struct RemoteCall {
    peer: NodeId,
    shard: ShardId,
    slot: Option<u16>,
    message: Message,
    /// When it was sent last.
    asked: Instant,
}

/// Questions to owners, by call.
#[derive(Debug, Default)]
pub struct Calls {
    calls: BTreeMap<u64, RemoteCall>,
    /// Free slots by shard; absent: all are.
    slots: BTreeMap<ShardId, Slots>,
    request: u64,
    /// Shards of calls of the driver itself to this node's own shards.
    own: BTreeMap<u64, ShardId>,
}

struct Slots {
    free: Vec<u16>,
    waiting: VecDeque<u64>,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} free, {:?} wait", self.free.len(), self.waiting)
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            free: (0..limits::SLOTS_PER_SHARD).rev().collect(),
            waiting: VecDeque::new(),
        }
    }
}

fn needs_slot(message: &Message) -> bool {
    matches!(message, Message::Question { ask: Ask::Op { op, .. }, .. } if op.is_change())
}

impl Calls {
    /// Questions without an answer.
    pub fn count(&self) -> usize {
        self.calls.len()
    }
}

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
            return self.on_answer(call, answer, items);
        }
        if owner == self.me.node {
            if call & DRIVER_CALL != 0 {
                self.calls.own.insert(call, shard);
            }
            self.ask_here(self.me, call, None, shard, ask, items);
            return;
        }
        let mut message = Message::Question {
            call,
            origin: None,
            shard,
            ask,
        };
        let calls = &mut self.calls;
        calls.request += 1;
        let request = RequestId(calls.request);
        let mut slot = None;
        let mut is_ready = true;
        if needs_slot(&message) {
            let slots = calls.slots.entry(shard).or_default();
            slot = slots.free.pop();
            match slot {
                Some(slot) => message.set_origin(Origin { slot, request }),
                None => {
                    slots.waiting.push_back(call);
                    is_ready = false;
                }
            }
        }
        let remote = RemoteCall {
            peer: owner,
            shard,
            slot,
            message: message.clone(),
            asked: self.now,
        };
        calls.calls.insert(call, remote);
        if is_ready {
            self.send(owner, message);
        }
    }

    /// A question has its answer: its slot goes to the next that waits. Returns the shard asked.
    pub(super) fn call_ended(&mut self, call: u64) -> Option<ShardId> {
        let calls = &mut self.calls;
        if let Some(shard) = calls.own.remove(&call) {
            return Some(shard);
        }
        let remote = calls.calls.remove(&call)?;
        let mut next = None;
        if let Some(slot) = remote.slot {
            calls.request += 1;
            let request = RequestId(calls.request);
            let slots = calls.slots.entry(remote.shard).or_default();
            match slots.waiting.pop_front() {
                None => slots.free.push(slot),
                Some(waiting) => {
                    if let Some(other) = calls.calls.get_mut(&waiting) {
                        other.slot = Some(slot);
                        other.message.set_origin(Origin { slot, request });
                        next = Some((other.peer, other.message.clone()));
                    }
                }
            }
        }
        if let Some((peer, message)) = next {
            self.send(peer, message);
        }
        Some(remote.shard)
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
        let question = self.question(from, call, origin, shard, ask);
        items.push_back(Item::Owner(question));
    }

    pub(super) fn question(
        &self,
        from: NodeLife,
        call: u64,
        origin: Option<Origin>,
        shard: ShardId,
        ask: Ask,
    ) -> Work {
        Work::Question(Box::new(Question {
            from,
            call,
            origin,
            shard,
            ask,
            facts: Vec::new(),
            grants: Vec::new(),
            since: self.now,
            tries: 0,
            space_round: 0,
            walk: Vec::new(),
            is_mover: false,
        }))
    }

    /// Says again what a broken link may have lost.
    pub(super) fn repeat_to(&mut self, peer: NodeId) {
        let of_peer = self.calls.calls.values().filter(|c| c.peer == peer);
        let mut messages: Vec<Message> = of_peer
            .filter(|c| !needs_slot(&c.message) || c.slot.is_some())
            .map(|c| c.message.clone())
            .collect();
        let facts = self.facts.values().filter(|f| f.0 == peer);
        messages.extend(facts.map(|f| f.1.clone()));
        for message in messages {
            self.send(peer, message);
        }
    }

    /// Says again what has had no answer for long.
    pub(super) fn repeat_stale(&mut self) {
        let now = self.now;
        let mut messages: Vec<(NodeId, Message)> = Vec::new();
        for call in self.calls.calls.values_mut() {
            let may_go = !needs_slot(&call.message) || call.slot.is_some();
            if may_go && now.since(call.asked) > REPEAT_AFTER {
                call.asked = now;
                messages.push((call.peer, call.message.clone()));
            }
        }
        messages.extend(self.facts.values().map(|f| (f.0, f.1.clone())));
        messages.extend(self.region_repeats());
        self.ask_fences();
        for (peer, message) in messages {
            self.send(peer, message);
        }
    }
}
