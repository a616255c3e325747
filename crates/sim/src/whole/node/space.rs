//! How a node comes by sectors and regions (the twin of `os::daemon::space`; owners give no regions up to others here:
//! the disks are large enough).

use std::collections::{BTreeMap, VecDeque};

use client::message::{Answer, Ask, Body};
use client::slice::{Input, SLICE_COUNT};
use data::Hand;
use data::space::RegionId;
use node::{Gather, GatherEffect, Message, Question, Work};
use types::id::NodeLife;
use types::{Lsn, NodeId, NsdId, ShardId};

use super::{Deferred, Item, Node};

/// Regions of each NSD taken at once.
const REGIONS_AT_ONCE: usize = 2;

type Items = VecDeque<Item>;

/// Questions about regions.
#[derive(Debug, Default)]
pub(super) struct Regions {
    gather: Gather,
    /// The question to the table that is under way: its id, the round that waits for it, the message.
    asked: Option<(u64, Option<u64>, Message)>,
    /// A round that wants regions when that question is answered.
    queued: Option<(u64, bool)>,
    /// At the table: the newest answer to each owner, for repeats.
    answers: BTreeMap<NodeId, (u64, Vec<RegionId>, Option<Lsn>)>,
}

impl Regions {
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_none() && self.gather.waiting().is_none()
    }

    /// What the table's owner is asked again.
    pub(super) fn repeat(&self) -> Option<Message> {
        self.asked.as_ref().map(|(_, _, message)| message.clone())
    }
}

impl Node {
    pub(super) fn want_space(&mut self, owner: NodeId, items: &mut Items) {
        let at = self.view.owners.iter().position(|o| *o == owner);
        let Some(shard) = at.and_then(|at| u16::try_from(at).ok()) else {
            return;
        };
        let now = self.now;
        if let Some(ask) = self.hands.with(owner, |hand| hand.next(now)) {
            let call = self.draw_call();
            self.call_owner(call, ShardId(shard), Ask::Space(ask), items);
        }
    }

    pub(super) fn top_up(&mut self, items: &mut Items) {
        for owner in self.hands.owners() {
            self.want_space(owner, items);
        }
        let mut out = Vec::new();
        self.regions.gather.on_tick(self.now, &mut out);
        self.gather_effects(out, items);
    }

    pub(super) fn on_space_answer(&mut self, shard: ShardId, answer: Answer, items: &mut Items) {
        let owner = self.owner(shard);
        let now = self.now;
        let is_there = match answer.body {
            Body::Space(answer) => {
                let Some(is_there) = self.hands.with(owner, |hand| hand.on_answer(now, &answer))
                else {
                    return;
                };
                is_there
            }
            _ => {
                self.hands.with(owner, Hand::on_refused);
                false
            }
        };
        for slice in 0..SLICE_COUNT {
            items.push_back(Item::Client(slice, Input::Space(owner, is_there)));
        }
        self.want_space(owner, items);
    }

    pub(super) fn on_recall(&mut self, owner: NodeId, id: u64, items: &mut Items) {
        let now = self.now;
        self.hands.with(owner, |hand| hand.on_recall(now, id));
        self.want_space(owner, items);
    }

    /// Takes regions ahead of need.
    pub(super) fn take_regions(&mut self, items: &mut Items) {
        let short = self.log.short_nsds();
        if !short.is_empty() && self.regions.asked.is_none() {
            self.ask_regions(short, None, false, items);
        }
    }

    /// This life begins, or the table's owner has begun anew.
    pub(super) fn learn_regions(&mut self, items: &mut Items) {
        if self.owner(ShardId(0)) == self.me.node {
            let held = self.log.table_held_by(self.me.node);
            self.log.adopt_regions(&held);
            return;
        }
        if let Some((_, Some(round), message)) = self.regions.asked.take() {
            let is_short = matches!(message, Message::TakeRegions { is_short: true, .. });
            self.regions.queued = Some((round, is_short));
        }
        self.ask_regions(Vec::new(), None, false, items);
    }

    fn ask_regions(
        &mut self,
        nsds: Vec<NsdId>,
        round: Option<u64>,
        is_short: bool,
        items: &mut Items,
    ) {
        let id = self.draw_call();
        let table_owner = self.owner(ShardId(0));
        let message = Message::TakeRegions {
            id,
            nsds: nsds.clone(),
            count: u32::try_from(REGIONS_AT_ONCE).expect("a small number"),
            is_short,
        };
        self.regions.asked = Some((id, round, message.clone()));
        if table_owner == self.me.node {
            self.on_take_regions(self.me.node, id, &nsds, REGIONS_AT_ONCE, items);
        } else {
            self.send(table_owner, message);
        }
    }

    /// At the table: an owner wants regions.
    pub(super) fn on_take_regions(
        &mut self,
        from: NodeId,
        id: u64,
        nsds: &[NsdId],
        count: usize,
        items: &mut Items,
    ) {
        let kept = match self.regions.answers.get(&from) {
            Some((last, ..)) if *last > id => return,
            Some((last, regions, lsn)) if *last == id => (regions.clone(), *lsn),
            _ if nsds.is_empty() => (self.log.table_held_by(from), None),
            _ => self.log.table_take(from, nsds, count),
        };
        let (regions, lsn) = kept;
        let answer = (id, regions.clone(), lsn);
        self.regions.answers.insert(from, answer);
        if from == self.me.node {
            return self.on_regions(id, &regions, items);
        }
        let deferred = Deferred::Message(from, Box::new(Message::Regions { id, regions }));
        match lsn {
            Some(lsn) => self.defer(lsn, deferred, items),
            None => self.deliver(deferred, items),
        }
    }

    /// The table has answered.
    pub(super) fn on_regions(&mut self, id: u64, regions: &[RegionId], items: &mut Items) {
        let asked = self.regions.asked.take_if(|(asked, ..)| *asked == id);
        let Some((_, round, _)) = asked else {
            return;
        };
        self.log.adopt_regions(regions);
        if let Some(round) = round {
            let mut out = Vec::new();
            let gather = &mut self.regions.gather;
            gather.on_regions(round, !regions.is_empty(), &mut out);
            self.gather_effects(out, items);
        }
        if let Some((round, is_short)) = self.regions.queued.take() {
            self.round_regions(round, is_short, items);
        }
    }

    pub(super) fn gather(&mut self, question: Box<Question>, items: &mut Items) {
        let lives = self.log.space.lives();
        let clients: Vec<NodeLife> = lives.granted.into_iter().map(|(life, _)| life).collect();
        let mut out = Vec::new();
        let gather = &mut self.regions.gather;
        gather.begin(self.now, question, &clients, &mut out);
        self.gather_effects(out, items);
    }

    pub(super) fn recalled(&mut self, from: NodeLife, id: u64, items: &mut Items) {
        let mut out = Vec::new();
        self.regions.gather.on_recalled(from, id, &mut out);
        self.gather_effects(out, items);
    }

    pub(super) fn gather_life_ended(&mut self, life: NodeLife, items: &mut Items) {
        // The next life counts its questions anew.
        self.regions.answers.remove(&life.node);
        let mut out = Vec::new();
        self.regions.gather.on_node_lost(life, &mut out);
        self.gather_effects(out, items);
    }

    fn gather_effects(&mut self, effects: Vec<GatherEffect>, items: &mut Items) {
        for effect in effects {
            match effect {
                GatherEffect::Recall(life, id) if life == self.me => {
                    self.on_recall(self.me.node, id, items);
                }
                GatherEffect::Recall(life, id) => {
                    self.send(life.node, Message::RecallSpace { id });
                }
                GatherEffect::Regions(round, is_short) => {
                    self.round_regions(round, is_short, items);
                }
                GatherEffect::Run(question) => {
                    items.push_back(Item::Owner(Work::Question(question)));
                }
                GatherEffect::Give(_) => unreachable!("nobody is asked to give"),
            }
        }
    }

    fn round_regions(&mut self, round: u64, is_short: bool, items: &mut Items) {
        if let Some((_, asker, _)) = &self.regions.asked {
            if *asker != Some(round) {
                self.regions.queued = Some((round, is_short));
            }
            return;
        }
        let nsds = self.view.nsds.iter().map(|n| n.id).collect();
        self.ask_regions(nsds, Some(round), is_short, items);
    }

    /// A peer's process began anew: what it served has ended, and what it answered last may be lost.
    pub(super) fn peer_began_anew(&mut self, peer: NodeId) {
        let nsds = self.view.nsds.iter();
        let served = nsds.filter(|nsd| nsd.servers.first() == Some(&peer));
        let served: Vec<NsdId> = served.map(|nsd| nsd.id).collect();
        self.hands.server_ended(&served);
        self.hands.with(peer, Hand::on_owner_restarted);
        if self.owner(ShardId(0)) == peer {
            let mut items = VecDeque::new();
            self.learn_regions(&mut items);
            self.run(items);
        }
    }
}
