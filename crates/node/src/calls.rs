//! Questions of this node to owners elsewhere, and of other nodes to this one.
//!
//! Invariants
//! - A question to another owner is kept until its answer: a broken link repeats it, and so does time, under the same
//!   slot and request id, so that it is executed once.
//! - A slot of a shard has at most one unanswered question; who finds none free waits for one, in order.
//! - A question of another node that is being worked on is taken once; when it ends, answered or not, the next repeat
//!   of it is taken again (and finds the answer that was kept).
//!
//! What this deliberately does not do: send, and know who owns a shard.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use client::message::Ask;
use meta::view::Origin;
use types::id::NodeLife;
use types::{Duration, Instant, NodeId, RequestId, ShardId, limits};

use crate::message::Message;
use crate::question::{ListingState, OfLayout, Question, Work};

/// A question without an answer is said again after this: a full queue drops messages, and so may the other side.
const REPEAT_AFTER: Duration = Duration::from_secs(1);

/// A question on its way to another owner.
#[derive(Debug)]
struct RemoteCall {
    peer: NodeId,
    shard: ShardId,
    slot: Option<u16>,
    needs_slot: bool,
    message: Message,
    /// When it was sent last.
    asked: Instant,
    /// When it was asked first.
    since: Instant,
}

impl RemoteCall {
    fn may_go(&self) -> bool {
        !self.needs_slot || self.slot.is_some()
    }
}

#[derive(Debug)]
struct Slots {
    free: Vec<u16>,
    waiting: VecDeque<u64>,
}

impl Default for Slots {
    fn default() -> Self {
        Self {
            free: (0..limits::SLOTS_PER_SHARD).rev().collect(),
            waiting: VecDeque::new(),
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Calls {
    calls: BTreeMap<u64, RemoteCall>,
    /// Free slots by shard; absent: all are.
    slots: BTreeMap<ShardId, Slots>,
    request: u64,
    /// Shards of calls to this node's own shards whose answer must know them.
    own: BTreeMap<u64, ShardId>,
}

impl Calls {
    /// Questions to other owners without an answer.
    pub fn count(&self) -> usize {
        self.calls.len()
    }

    /// Who has not answered how many questions, and since when the oldest waits. O(questions).
    pub fn waiters(&self) -> Vec<(String, Instant)> {
        // Of each peer: questions sent, those that wait for a slot, the oldest.
        let mut peers: BTreeMap<NodeId, (usize, usize, &RemoteCall)> = BTreeMap::new();
        for call in self.calls.values() {
            let peer = peers.entry(call.peer).or_insert((0, 0, call));
            match call.may_go() {
                true => peer.0 += 1,
                false => peer.1 += 1,
            }
            if call.since < peer.2.since {
                peer.2 = call;
            }
        }
        let all = peers.into_iter().map(|(peer, (sent, held, oldest))| {
            let (peer, shard) = (peer.0, oldest.shard.0);
            let what = format!(
                "{sent} questions wait for node {peer}, {held} more for a slot: the oldest is to shard {shard}"
            );
            (what, oldest.since)
        });
        all.collect()
    }

    /// Who was asked this, if another node was, and whether that has been sent: else it waits for a slot.
    pub fn asked(&self, call: u64) -> Option<(NodeId, bool)> {
        let call = self.calls.get(&call)?;
        Some((call.peer, call.may_go()))
    }

    /// A question to a shard of this node whose answer must know the shard (`ended`).
    pub fn begin_own(&mut self, call: u64, shard: ShardId) {
        self.own.insert(call, shard);
    }

    /// A question to a shard of `owner`, another node. Returned: what to send it now; `None`: it waits for a slot.
    pub fn begin(
        &mut self,
        now: Instant,
        call: u64,
        (owner, shard): (NodeId, ShardId),
        ask: Ask,
    ) -> Option<Message> {
        let needs_slot = matches!(&ask, Ask::Op { op, .. } if op.is_change());
        let mut message = Message::Question {
            call,
            origin: None,
            shard,
            ask,
        };
        let mut slot = None;
        if needs_slot {
            self.request += 1;
            let request = RequestId(self.request);
            let slots = self.slots.entry(shard).or_default();
            slot = slots.free.pop();
            match slot {
                Some(slot) => message.set_origin(Origin { slot, request }),
                None => slots.waiting.push_back(call),
            }
        }
        let remote = RemoteCall {
            peer: owner,
            shard,
            slot,
            needs_slot,
            message: message.clone(),
            asked: now,
            since: now,
        };
        let may_go = remote.may_go();
        self.calls.insert(call, remote);
        may_go.then_some(message)
    }

    /// A question has its answer: its slot goes to the next that waits, which is to be sent now. Returned with the
    /// shard that was asked, if that is known: for a repeated answer it is not.
    pub fn ended(
        &mut self,
        now: Instant,
        call: u64,
    ) -> (Option<ShardId>, Option<(NodeId, Message)>) {
        if let Some(shard) = self.own.remove(&call) {
            return (Some(shard), None);
        }
        let Some(remote) = self.calls.remove(&call) else {
            return (None, None);
        };
        let Some(slot) = remote.slot else {
            return (Some(remote.shard), None);
        };
        let slots = self.slots.entry(remote.shard).or_default();
        let Some(waiting) = slots.waiting.pop_front() else {
            slots.free.push(slot);
            return (Some(remote.shard), None);
        };
        self.request += 1;
        let request = RequestId(self.request);
        let next = self.calls.get_mut(&waiting);
        let next = next.expect("who waits for a slot has not been sent, and has no answer");
        next.slot = Some(slot);
        next.asked = now;
        next.message.set_origin(Origin { slot, request });
        let next = (next.peer, next.message.clone());
        (Some(remote.shard), Some(next))
    }

    /// The link to a peer is there again: what a broken one may have lost.
    pub fn of_peer(&self, peer: NodeId) -> impl Iterator<Item = Message> {
        let of_peer = self.calls.values().filter(move |c| c.peer == peer);
        of_peer.filter(|c| c.may_go()).map(|c| c.message.clone())
    }

    /// What has had no answer for long: to be said again.
    pub fn stale(&mut self, now: Instant) -> Vec<(NodeId, Message)> {
        let mut all = Vec::new();
        for call in self.calls.values_mut() {
            if call.may_go() && now.since(call.asked) > REPEAT_AFTER {
                call.asked = now;
                all.push((call.peer, call.message.clone()));
            }
        }
        all
    }

    /// Asserts the invariants.
    pub fn check(&self) {
        for (shard, slots) in &self.slots {
            let of_shard = self.calls.values().filter(|c| c.shard == *shard);
            let used: Vec<u16> = of_shard.filter_map(|c| c.slot).collect();
            let all: BTreeSet<u16> = used.iter().chain(&slots.free).copied().collect();
            assert_eq!(all.len(), used.len() + slots.free.len());
            assert_eq!(all.len(), usize::from(limits::SLOTS_PER_SHARD));
            assert!(slots.waiting.is_empty() || slots.free.is_empty());
        }
    }
}

/// Questions of other nodes that are being worked on here.
#[derive(Debug, Default)]
pub struct InProgress {
    calls: BTreeSet<(NodeLife, u64)>,
}

impl InProgress {
    /// A question comes. False: it is a repeat of what is being worked on.
    pub fn begin(&mut self, from: NodeLife, call: u64) -> bool {
        self.calls.insert((from, call))
    }

    /// It has its answer, or never will have one.
    pub fn ended(&mut self, from: NodeLife, call: u64) {
        self.calls.remove(&(from, call));
    }

    /// A life is over: nothing of it is repeated.
    pub fn life_ended(&mut self, life: NodeLife) {
        self.calls.retain(|(of, _)| *of != life);
    }

    /// Questions.
    pub fn count(&self) -> usize {
        self.calls.len()
    }
}

/// A question as it arrives at its owner.
pub fn question(
    now: Instant,
    (from, call): (NodeLife, u64),
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
        since: now,
        tries: 0,
        gave_way: 0,
        space_round: 0,
        of_layout: OfLayout::default(),
        walk: Vec::new(),
        is_unreadable: false,
        refusal: None,
        listed: ListingState::Unknown,
        is_mover: false,
    }))
}

#[cfg(test)]
#[path = "calls/tests.rs"]
mod tests;
