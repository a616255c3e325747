//! Free sectors: the driver's side of what owners granted to this node's clients (`node::hands`), and of how this node
//! as owner comes by regions and gathers what others do not use (`node::regions`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::env::{Grants, SpaceNews, TakenRun, WantedRun};
use client::message::{Answer, Ask};
use client::slice::{Input, SLICE_COUNT};
use data::{Hand, SetAside};
use node::{Deferred, Message, OwnerLog, RegionEffect, RegionEnv, Work};
use types::{Duration, Errno, NodeId, NodeLife, NsdId, Run, ShardId};

use super::work::Item;
use super::{Daemon, lock};
use crate::clock;

/// Between two looks whether freed sectors are durably free.
const GIVE_PAUSE: Duration = Duration::from_millis(5);
/// While files leave regions it is looked so often whether one is free.
const CLEARING_PAUSE: Duration = Duration::from_millis(100);

/// All grants in this node's hands.
#[derive(Debug)]
pub(super) struct Hands {
    core: Mutex<node::Hands>,
    /// Some hand is low: looked at without its lock.
    is_low: AtomicBool,
}

impl Hands {
    pub(super) fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            core: Mutex::new(node::Hands::new(nsds, block_size)),
            is_low: AtomicBool::new(false),
        }
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut node::Hands) -> T) -> T {
        act(&mut lock(&self.core))
    }

    /// Some hand has become low since the last call.
    pub(super) fn take_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed) && self.is_low.swap(false, Ordering::Relaxed)
    }

    /// Shows each owner's hand.
    pub(super) fn each(&self, mut show: impl FnMut(NodeId, &Hand)) {
        for (owner, hand) in lock(&self.core).iter() {
            show(owner, hand);
        }
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(|hands| hands.reserve(owner, sectors))
    }

    fn reserve_spare(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(|hands| hands.reserve_spare(owner, sectors))
    }

    fn reserve_promised(&self, owner: NodeId, sectors: u64) -> Option<SetAside> {
        self.with(|hands| hands.reserve_promised(owner, sectors))
    }

    fn unreserve(&self, owner: NodeId, part: SetAside) {
        self.with(|hands| hands.unreserve(owner, part));
    }

    fn note_returning(&self, owner: NodeId, sectors: u64) {
        self.with(|hands| hands.note_returning(owner, sectors));
    }

    fn take(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = clock::now();
        self.with(|hands| {
            let taken = hands.take(now, owner, wanted, reserved);
            if hands.of(owner).is_low(now) {
                self.is_low.store(true, Ordering::Relaxed);
            }
            taken
        })
    }

    fn take_spare(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let now = clock::now();
        self.with(|hands| hands.take_spare(now, owner, wanted, reserved))
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.committed(owner, runs));
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.burn(owner, runs));
    }

    fn discard(&self, owner: NodeId, runs: &[Run]) {
        self.with(|hands| hands.discard(owner, runs));
    }
}

type Items = VecDeque<Item>;

impl Daemon {
    /// Asks an owner what there is to ask about sectors, if no question is under way.
    pub(super) fn want_space(self: &Arc<Self>, owner: NodeId, items: &mut Items) {
        let Some(shard) = self.shard_of(owner) else {
            return;
        };
        let now = clock::now();
        let Some(ask) = self.hands.with(|hands| hands.next(now, owner)) else {
            return;
        };
        let call = self.draw_call();
        self.call_owner(call, shard, Ask::Space(ask), items);
    }

    /// Keeps some sectors of each owner in hand, ahead of need, and gives back what lies unused.
    pub(super) fn top_up(self: &Arc<Self>, items: &mut Items) {
        let now = clock::now();
        let refusing = self.hands.with(|hands| hands.avoided(now));
        lock(&self.log).avoid_for_data(refusing);
        let mut owners = Vec::new();
        self.hands.each(|owner, _| owners.push(owner));
        for owner in owners {
            self.want_space(owner, items);
        }
        self.with_regions(items, |regions, env, log, out| {
            regions.on_tick(env, log, out);
        });
    }

    /// An owner answered `want_space`.
    pub(super) fn on_space_answer(
        self: &Arc<Self>,
        shard: ShardId,
        answer: &Answer,
        items: &mut Items,
    ) {
        let owner = self.owner(shard);
        let now = clock::now();
        let taken = self.hands.with(|hands| hands.on_answer(now, owner, answer));
        let Some(mut news) = taken else { return };
        if news == SpaceNews::None(Errno::ENOSPC) {
            self.tell_scarce(owner, items);
            if (self.hands).with(|hands| hands.is_worth_waiting(now, owner)) {
                news = SpaceNews::Soon;
            }
        }
        if owner == self.me.node && matches!(news, SpaceNews::None(_)) {
            lock(&self.log).destage_state = node::DestageState::NoSpace;
        }
        for slice in 0..SLICE_COUNT {
            items.push_back(Item::Client(slice, Input::Space(owner, news)));
        }
        // What became wanted meanwhile.
        self.want_space(owner, items);
    }

    /// The owner needs what lies unused here.
    pub(super) fn on_recall(self: &Arc<Self>, owner: NodeId, id: u64, items: &mut Items) {
        self.tell_scarce(owner, items);
        let now = clock::now();
        self.hands.with(|hands| hands.of(owner).on_recall(now, id));
        self.want_space(owner, items);
    }

    /// An owner has too few sectors: before anybody hears so, and before the owner hears what lies unused here, all slices give back what
    /// nobody waits for.
    fn tell_scarce(&self, owner: NodeId, items: &mut Items) {
        self.hands.with(|hands| hands.begin_scarce(owner));
        let mut effects = Vec::new();
        for slice in 0..SLICE_COUNT {
            self.run_slice(slice, Input::Scarce(owner), &mut effects);
        }
        items.extend(effects.into_iter().map(Item::Effect));
    }

    /// Runs an input of the regions' core. The journal's lock is taken after the core's own.
    pub(super) fn with_regions(
        self: &Arc<Self>,
        items: &mut Items,
        act: impl FnOnce(&mut node::Regions, &RegionEnv<'_>, &mut OwnerLog, &mut Vec<RegionEffect>),
    ) {
        let mut out = Vec::new();
        {
            let env = RegionEnv {
                now: clock::now(),
                me: self.me,
                owners: &self.config.view.owners,
                nsds: &self.nsds,
            };
            let mut regions = lock(&self.regions);
            let mut log = lock(&self.log);
            act(&mut regions, &env, &mut log, &mut out);
        }
        for effect in out {
            match effect {
                RegionEffect::Send(to, message) => self.send(to, &message),
                RegionEffect::SendAfter(lsn, to, message) => {
                    self.defer(lsn, Deferred::Message(to, Box::new(message)), items);
                }
                RegionEffect::RecallHere(id) => self.on_recall(self.me.node, id, items),
                RegionEffect::Run(question) => {
                    items.push_back(Item::Owner(Work::Question(question)));
                }
                RegionEffect::GiveLater(name) => {
                    self.kick_journal();
                    self.give_later(name, GIVE_PAUSE);
                }
                RegionEffect::GiveWhenCleared(name) => {
                    self.clearing.call();
                    self.give_later(name, CLEARING_PAUSE);
                }
            }
        }
    }

    fn give_later(self: &Arc<Self>, name: u64, pause: Duration) {
        let daemon = Arc::clone(self);
        let again = Box::new(move || {
            let mut items = VecDeque::new();
            daemon.with_regions(&mut items, |regions, env, log, out| {
                regions.give(env, log, name, out);
            });
            daemon.run(items);
        });
        self.loops.post_at(0, clock::now() + pause, again);
    }

    /// This life begins, or the table's owner has begun anew.
    pub(super) fn learn_regions(self: &Arc<Self>, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| regions.learn(env, log, out));
    }

    /// What was asked about regions and has no answer.
    pub(super) fn region_repeats(&self) -> Vec<(NodeId, Message)> {
        let env = RegionEnv {
            now: clock::now(),
            me: self.me,
            owners: &self.config.view.owners,
            nsds: &self.nsds,
        };
        lock(&self.regions).repeats(&env)
    }

    /// A question about sectors comes: regions are taken ahead of need.
    pub(super) fn take_regions(self: &Arc<Self>, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.take_ahead(env, log, out);
        });
    }

    /// A message about regions.
    pub(super) fn on_region_message(
        self: &Arc<Self>,
        from: NodeId,
        message: &Message,
        items: &mut Items,
    ) {
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

    /// A question to this owner is short of sectors.
    pub(super) fn gather(self: &Arc<Self>, question: Box<node::Question>, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.gather(env, log, question, out);
        });
    }

    /// A client has answered a recall.
    pub(super) fn recalled(self: &Arc<Self>, from: NodeLife, id: u64, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.on_recalled(env, log, (from, id), out);
        });
    }

    /// A life is over: nothing is recalled from it, and nothing that it asked is answered.
    pub(super) fn gather_life_ended(self: &Arc<Self>, life: NodeLife, items: &mut Items) {
        self.with_regions(items, |regions, env, log, out| {
            regions.on_life_ended(env, log, life, out);
        });
    }
}
