//! How a node comes by sectors and regions: performs what `node::hands` and `node::regions` want.

use std::collections::VecDeque;
use std::sync::Arc;

use client::env::SpaceNews;
use client::message::{Answer, Ask};
use client::slice::{Input, SLICE_COUNT, Slice};
use node::clearing::{Found, Search};
use node::{Deferred, Message, OwnerLog, Question, RegionEffect, RegionEnv, Regions, Work};
use types::id::NodeLife;
use types::{Errno, NodeId, NsdId, Run, ShardId};

use super::{Item, Later, Node, Out};

/// Milliseconds between two looks whether freed sectors are durably free.
const GIVE_PAUSE_MS: u64 = 5;

/// The same while files leave regions.
const CLEARING_PAUSE_MS: u64 = 50;

type Items = VecDeque<Item>;

impl Node {
    pub(super) fn want_space(&mut self, owner: NodeId, items: &mut Items) {
        let at = self.view.owners.iter().position(|o| *o == owner);
        let Some(shard) = at.and_then(|at| u16::try_from(at).ok()) else {
            return;
        };
        let now = self.now;
        if let Some(mut ask) = self.hands.with(|hands| hands.next(now, owner)) {
            if self.canary.keeps_sectors {
                ask.back.clear();
            }
            let call = self.draw_call();
            self.call_owner(call, ShardId(shard), Ask::Space(ask), items);
        }
    }

    pub(super) fn top_up(&mut self, items: &mut Items) {
        let owners: Vec<NodeId> = self
            .hands
            .with(|hands| hands.iter().map(|(o, _)| o).collect());
        for owner in owners {
            self.want_space(owner, items);
        }
        self.with_regions(items, |regions, env, log, out| {
            regions.on_tick(env, log, out);
        });
        self.clear_regions(items);
    }

    /// Files leave regions: all at once, but for those that are not in memory.
    fn clear_regions(&mut self, items: &mut Items) {
        let is_offered = self.is_serving() && self.slices.iter().all(Slice::rewrites);
        let is_over = self.slices.iter().all(|s| s.gauges().leaving_count == 0);
        self.log.offer_clearing(is_offered);
        if !is_over {
            return;
        }
        self.log.end_clearing();
        let places: Arc<[Run]> = self.log.plan_clearing(self.now).into();
        if places.is_empty() {
            return;
        }
        let mut found = Found::default();
        for slice in self.shards.iter().flatten() {
            let mut search = Search::begin(slice, &places);
            while search.look(slice, &mut found) {}
        }
        for (slice, clear) in found.by_slice(&places) {
            items.push_back(Item::Client(slice, Input::Clear(Box::new(clear))));
        }
    }

    pub(super) fn on_space_answer(&mut self, shard: ShardId, answer: &Answer, items: &mut Items) {
        let owner = self.owner(shard);
        let now = self.now;
        let taken = self.hands.with(|hands| hands.on_answer(now, owner, answer));
        let Some(mut news) = taken else { return };
        if news == SpaceNews::None(Errno::ENOSPC) {
            self.tell_scarce(owner, items);
            if (self.hands).with(|hands| hands.is_worth_waiting(now, owner)) {
                news = SpaceNews::Soon;
            }
        }
        for slice in 0..SLICE_COUNT {
            items.push_back(Item::Client(slice, Input::Space(owner, news)));
        }
        self.want_space(owner, items);
    }

    pub(super) fn on_recall(&mut self, owner: NodeId, id: u64, items: &mut Items) {
        self.tell_scarce(owner, items);
        let now = self.now;
        self.hands.with(|hands| hands.of(owner).on_recall(now, id));
        self.want_space(owner, items);
    }

    fn tell_scarce(&mut self, owner: NodeId, items: &mut Items) {
        self.hands.with(|hands| hands.begin_scarce(owner));
        for slice in 0..SLICE_COUNT {
            let effects = self.run_slice(slice, Input::Scarce(owner));
            items.extend(effects.into_iter().map(Item::Effect));
        }
    }

    /// Runs an input of the regions' core.
    pub(super) fn with_regions(
        &mut self,
        items: &mut Items,
        act: impl FnOnce(&mut Regions, &RegionEnv<'_>, &mut OwnerLog, &mut Vec<RegionEffect>),
    ) {
        let nsds: Vec<NsdId> = self.view.nsds.iter().map(|n| n.id).collect();
        let mut out = Vec::new();
        self.rationed(|node| {
            let env = RegionEnv {
                now: node.now,
                me: node.me,
                owners: &node.view.owners,
                nsds: &nsds,
            };
            act(&mut node.regions, &env, &mut node.log, &mut out);
        });
        for effect in out {
            match effect {
                RegionEffect::Send(to, message) => self.send(to, message),
                RegionEffect::SendAfter(lsn, to, message) => {
                    self.defer(lsn, Deferred::Message(to, Box::new(message)), items);
                }
                RegionEffect::RecallHere(id) => self.on_recall(self.me.node, id, items),
                RegionEffect::Run(question) => {
                    items.push_back(Item::Owner(Work::Question(question)));
                }
                RegionEffect::GiveLater(name) => {
                    self.kick_journal();
                    let later = Later::GiveRegions(name);
                    self.out.push(Out::Later(GIVE_PAUSE_MS, later));
                }
                RegionEffect::GiveWhenCleared(name) => {
                    let later = Later::GiveRegions(name);
                    self.out.push(Out::Later(CLEARING_PAUSE_MS, later));
                }
            }
        }
    }

    /// Takes regions ahead of need.
    pub(super) fn take_regions(&mut self, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.take_ahead(env, log, out);
        });
    }

    /// This life begins, or the table's owner has begun anew.
    pub(super) fn learn_regions(&mut self, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| regions.learn(env, log, out));
    }

    /// What was asked about regions and has no answer.
    pub(super) fn region_repeats(&self) -> Vec<(NodeId, Message)> {
        let env = RegionEnv {
            now: self.now,
            me: self.me,
            owners: &self.view.owners,
            nsds: &[],
        };
        self.regions.repeats(&env)
    }

    /// A message about regions.
    pub(super) fn on_region_message(&mut self, from: NodeId, message: &Message, items: &mut Items) {
        let is_serving = self.is_serving();
        self.with_regions(items, |regions, env, log, out| match message {
            Message::TakeRegions { .. } => regions.on_take(env, log, from, message, out),
            Message::Regions { id, regions: more } => regions.on_regions(env, log, *id, more, out),
            Message::GiveRegions { id } if is_serving => regions.on_give(env, log, *id, out),
            Message::RegionsBack { id, regions: back } => {
                regions.on_back(env, log, from, (*id, back), out);
            }
            _ => {}
        });
    }

    pub(super) fn gather(&mut self, question: Box<Question>, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.gather(env, log, question, out);
        });
    }

    pub(super) fn recalled(&mut self, from: NodeLife, id: u64, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.on_recalled(env, log, (from, id), out);
        });
    }

    pub(super) fn gather_life_ended(&mut self, life: NodeLife, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.on_life_ended(env, log, life, out);
        });
    }

    /// A peer's process began anew: what it served has ended, and what it answered last may be lost.
    pub(super) fn peer_began_anew(&mut self, peer: NodeId) {
        let nsds = self.view.nsds.iter();
        let served = nsds.filter(|nsd| nsd.servers.first() == Some(&peer));
        let served: Vec<NsdId> = served.map(|nsd| nsd.id).collect();
        self.hands.with(|hands| {
            hands.server_ended(&served);
            hands.of(peer).on_owner_restarted();
        });
        if self.owner(ShardId(0)) == peer {
            let mut items = VecDeque::new();
            self.learn_regions(&mut items);
            self.run(items);
        }
    }
}
