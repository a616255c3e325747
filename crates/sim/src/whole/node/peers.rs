//! Messages between nodes and links: carries out what `node::{calls, facts, regions, fences}` decide.

use std::collections::VecDeque;

use client::message::Answer;
use client::slice::{Input, slice_of};
use meta::view::{Fact, Query};
use node::message::FactResult;
use node::moves::RENAME_TOKEN;
use node::{Find, Known, Message, Question, Work};
use types::id::NodeLife;
use types::{Errno, NodeId};

use super::{Item, Lane, Node, Out, Wire};

impl Node {
    pub(super) fn send(&mut self, peer: NodeId, message: Message) {
        let lane = match message {
            Message::Revoke(_) | Message::Released { .. } => Lane::Priority,
            _ => Lane::Data,
        };
        self.out
            .push(Out::Send(peer, lane, Wire::Node(Box::new(message))));
    }

    /// The link to a peer is up, with this life of it.
    pub fn peer_up(&mut self, life: NodeLife) {
        let before = self.peers.insert(life.node, life);
        if before.is_some_and(|before| before != life) {
            self.peer_began_anew(life.node);
        }
        self.links.insert(life.node);
        let is_leaving = self.farewells.has_asked(life);
        self.hands
            .with(|hands| hands.set_away(life.node, is_leaving));
        self.ask_held();
        self.repeat_to(life.node);
        self.resend_to_servers();
    }

    /// The link to a peer is down.
    pub fn peer_down(&mut self, peer: NodeId) {
        self.links.remove(&peer);
        self.on_server_down(peer);
    }

    /// Something came from a peer.
    pub fn on_wire(&mut self, peer: NodeId, wire: Wire) {
        let Some(life) = self.peers.get(&peer).copied() else {
            return;
        };
        if self.is_dead(life) {
            return;
        }
        match wire {
            Wire::Node(message) => self.handle_message(life, *message),
            Wire::Ask(tag, asked) => self.serve(life, tag, asked),
            Wire::Answered(tag, result) => self.on_server_answer(tag, result),
        }
    }

    fn handle_message(&mut self, life: NodeLife, message: Message) {
        if let Message::Question { call, .. } = &message
            && !self.in_progress.begin(life, *call)
        {
            // A repeat of what is being worked on.
            return;
        }
        let peer = life.node;
        let mut items = VecDeque::new();
        match message {
            Message::Question {
                call,
                origin,
                shard,
                ask,
            } => self.ask_here(life, call, origin, shard, ask, &mut items),
            Message::Answer { call, answer } => {
                self.on_answer(call, Box::new(answer), &mut items);
            }
            Message::Revoke(revoke) if revoke.ino == RENAME_TOKEN => {
                self.revoke_moves(&revoke, &mut items);
            }
            Message::Revoke(revoke) => {
                let slice = slice_of(revoke.ino);
                items.push_back(Item::Client(slice, Input::Revoke(peer, revoke)));
            }
            Message::Reclaim { shard, count } => items.extend(super::reclaims(shard, count)),
            Message::LockReady { ino, wait } => {
                items.push_back(Item::Client(slice_of(ino), Input::LockReady(ino, wait)));
            }
            Message::Released { shard, released } => {
                self.on_released(life, shard, &released, &mut items);
            }
            Message::Transaction(envelope) => {
                items.push_back(Item::Owner(Work::Transaction(Box::new(envelope))));
            }
            Message::AskFact { id, query } => self.find_fact(life, id, query, &mut items),
            Message::Fact { id, result } => self.on_fact(id, result, &mut items),
            Message::TakeRegions { .. }
            | Message::Regions { .. }
            | Message::GiveRegions { .. }
            | Message::RegionsBack { .. } => {
                self.on_region_message(peer, &message, &mut items);
            }
            Message::RecallSpace { id } => self.on_recall(peer, id, &mut items),
            Message::AskFree { .. } | Message::Free { .. } => {}
            Message::AskHeld { epoch } => self.tell_held(peer, epoch),
            Message::Held { epoch, shard, part } => self.on_held(life, epoch, shard, &part),
            Message::Serving { epoch } => self.on_serving(peer, epoch),
            Message::AskFenced { life, .. } => self.on_ask_fenced(peer, life),
            Message::Fenced { life } => self.on_fenced(peer, life),
            Message::Stopping { round } => self.on_stopping(life, round, &mut items),
            Message::WrittenBack { round, is_last } => {
                self.farewells.on_written_back(life, round, is_last);
            }
        }
        self.run(items);
    }

    pub(super) fn ask_facts(
        &mut self,
        question: Box<Question>,
        queries: Vec<Query>,
        items: &mut VecDeque<Item>,
    ) {
        let Some(query) = queries.into_iter().next() else {
            items.push_back(Item::Owner(Work::Question(question)));
            return;
        };
        let shard = match &query {
            Query::Entry { directory, .. } => directory.shard(),
            Query::Ancestors { directory } => return self.begin_move(question, *directory, items),
            Query::Number { shard } => *shard,
            Query::Attributes { ino } => ino.shard(),
        };
        let id = self.draw_call();
        let owner = self.owner(shard);
        let message = self.facts.ask(id, owner, query, question);
        self.send(owner, message);
    }

    pub(super) fn find_fact(
        &mut self,
        from: NodeLife,
        id: u64,
        query: Query,
        items: &mut VecDeque<Item>,
    ) {
        match self.facts.find(self.now, from, id, query) {
            Find::Run(work) => items.push_back(Item::Owner(work)),
            Find::Running => {}
            Find::Number(shard) => {
                let slice = self.shards.get_mut(usize::from(shard.0));
                let result = match slice.and_then(Option::as_mut) {
                    Some(slice) => {
                        let ino = slice.shard.reserve_index();
                        FactResult::Found(Fact::Number { ino })
                    }
                    None => FactResult::Failed(Errno::ESTALE),
                };
                self.send(from.node, Message::Fact { id, result });
            }
        }
    }

    pub(super) fn answer_fact(
        &mut self,
        to: NodeLife,
        call: u64,
        answer: Answer,
        items: &mut VecDeque<Item>,
    ) {
        let Some((id, result)) = self.facts.answered(to, call, answer) else {
            return;
        };
        if to == self.me {
            self.on_fact(id, result, items);
        } else {
            self.send(to.node, Message::Fact { id, result });
        }
    }

    fn on_fact(&mut self, id: u64, result: FactResult, items: &mut VecDeque<Item>) {
        let known = self.facts.on_fact(id, result);
        match known {
            Some(Known::Run(work)) => items.push_back(Item::Owner(work)),
            Some(Known::Walk(question, chain)) => self.walk_on(question, &chain, items),
            None => {}
        }
    }
}
