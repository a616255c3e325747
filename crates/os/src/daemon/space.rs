//! Free sectors: what owners granted to this node's clients, and how this node as owner comes by regions and
//! gathers what others do not use.
//!
//! Invariant: an owner has at most one question to the region table under way; regions that it did not ask for
//! are not adopted (a late repeat of an answer may name what it has given up since).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use client::env::{Grants, TakenRun, WantedRun};
use client::message::{Answer, Ask, Body};
use client::slice::{Input, SLICE_COUNT};
use data::space::RegionId;
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use data::{Hand, SectorSet};
use node::{Gather, GatherEffect, Message, Work};
use types::{Duration, Instant, Layout, Lsn, NodeId, NodeLife, NsdId, Run, SECTOR_SIZE, ShardId};

use super::work::{Deferred, Item};
use super::{Daemon, lock};
use crate::clock;

/// Regions of each NSD taken at once.
const REGIONS_AT_ONCE: usize = 2;
/// Between two looks whether freed sectors are durably free.
const GIVE_PAUSE: Duration = Duration::from_millis(5);
/// Another owner that does not give regions up for so long is not waited for.
const GIVE_PATIENCE: Duration = Duration::from_secs(10);

/// All grants in this node's hands.
#[derive(Debug)]
pub(super) struct Hands {
    owners: Mutex<BTreeMap<NodeId, Hand>>,
    /// Sectors of writes without an answer, until their store is burnt.
    doubts: Mutex<SectorSet>,
    nsds: Vec<NsdId>,
    striping: Striping,
    /// Some hand is low: looked at without its lock.
    is_low: AtomicBool,
}

impl Hands {
    pub(super) fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            owners: Mutex::default(),
            doubts: Mutex::default(),
            nsds: nsds.to_vec(),
            striping: Striping::even(nsds, block_size),
            is_low: AtomicBool::new(false),
        }
    }

    pub(super) fn with<T>(&self, owner: NodeId, act: impl FnOnce(&mut Hand) -> T) -> T {
        act(lock(&self.owners).entry(owner).or_default())
    }

    /// How a file of this layout is striped; the default's is at hand.
    fn striping_of(&self, layout: &Layout) -> Option<Striping> {
        if layout.is_default() {
            return None;
        }
        let named = self.named(layout);
        let nsds = if named.is_empty() { &self.nsds } else { &named };
        let block_size = self.striping.block_sectors() * u32::try_from(SECTOR_SIZE).expect("4096");
        let block_size = layout.block_size().unwrap_or(block_size);
        Some(Striping::even(nsds, block_size))
    }

    /// The NSDs that the layout names and that are there.
    fn named(&self, layout: &Layout) -> Vec<NsdId> {
        let nsds = layout.nsds().iter().copied();
        nsds.filter(|nsd| self.nsds.contains(nsd)).collect()
    }

    /// Some hand has become low since the last call.
    pub(super) fn take_low(&self) -> bool {
        self.is_low.load(Ordering::Relaxed) && self.is_low.swap(false, Ordering::Relaxed)
    }

    /// Shows each owner's hand.
    pub(super) fn each(&self, mut show: impl FnMut(NodeId, &Hand)) {
        for (owner, hand) in &*lock(&self.owners) {
            show(*owner, hand);
        }
    }

    /// What of these runs was neither committed nor burnt goes back.
    pub(super) fn discard_rest(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.discard_rest(*run))
        });
    }

    /// Sectors in hand and not reserved.
    pub(super) fn unreserved(&self) -> u64 {
        let mut sum = 0;
        self.each(|_, hand| sum += hand.pool().unreserved());
        sum
    }

    /// A write to these sectors has no answer, and will have none.
    pub(super) fn in_doubt(&self, run: Run) {
        lock(&self.doubts).insert(run);
    }

    /// The process that served these NSDs has ended, and with it every write that it was sent.
    pub(super) fn server_ended(&self, nsds: &[NsdId]) {
        for hand in lock(&self.owners).values_mut() {
            hand.ended(|run| nsds.contains(&run.at.nsd));
        }
    }
}

impl Grants for Hands {
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool {
        self.with(owner, |hand| match hand.reserve(sectors) {
            Ok(()) => true,
            Err(more) => {
                hand.want(more.sectors);
                false
            }
        })
    }

    fn unreserve(&self, owner: NodeId, sectors: u64) {
        if sectors > 0 {
            self.with(owner, |hand| hand.unreserve(sectors));
        }
    }

    fn take(&self, owner: NodeId, wanted: &[WantedRun], reserved: u64) -> Option<Vec<TakenRun>> {
        let needed: u64 = wanted.iter().map(|w| u64::from(w.count)).sum();
        // All of one file.
        let layout = wanted.first().map_or_else(Layout::default, |w| w.layout);
        let striping = self.striping_of(&layout);
        let dirty: Vec<Dirty<'_>> = wanted
            .iter()
            .map(|w| Dirty {
                ino: w.ino,
                striping: striping.as_ref().unwrap_or(&self.striping),
                file_sector: w.file_sector,
                count: w.count,
            })
            .collect();
        let now = clock::now();
        let writes = self.with(owner, |hand| {
            if !hand.has_room_on(self.named(&layout), needed) {
                return None;
            }
            let plan = hand.take(now, needed, reserved, |pool, part| {
                plan_write(&dirty, pool, part)
            });
            if hand.is_low(now) {
                self.is_low.store(true, Ordering::Relaxed);
            }
            if plan.is_none() {
                hand.want(needed + needed / 16 + 1);
            }
            plan
        })?;
        let pieces = writes.into_iter().flat_map(|write| write.pieces);
        Some(
            pieces
                .map(|piece| TakenRun {
                    wanted: piece.dirty,
                    file_sector: piece.file_sector,
                    count: piece.data,
                    run: Run {
                        at: piece.at,
                        count: piece.data + piece.checksums,
                    },
                })
                .collect(),
        )
    }

    fn committed(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| {
            runs.iter().for_each(|run| hand.committed(*run))
        });
    }

    fn burn(&self, owner: NodeId, runs: &[Run]) {
        for run in runs {
            // A store has several writes: those that were answered have ended.
            let doubts = {
                let mut doubts = lock(&self.doubts);
                let found = doubts.intersection(*run);
                found.iter().for_each(|part| doubts.remove(*part));
                found
            };
            self.with(owner, |hand| match doubts.is_empty() {
                true => hand.discard(*run),
                false => hand.burn(*run),
            });
        }
    }

    fn discard(&self, owner: NodeId, runs: &[Run]) {
        self.with(owner, |hand| runs.iter().for_each(|run| hand.discard(*run)));
    }
}

/// How this node comes by regions, and, at the table, how others do.
#[derive(Debug, Default)]
pub(super) struct Regions {
    gather: Mutex<Gather>,
    state: Mutex<RegionState>,
}

#[derive(Debug, Default)]
struct RegionState {
    /// The question to the table that is under way: its id, the round that waits for it, the message.
    asked: Option<(u64, Option<u64>, Message)>,
    /// A round that wants regions when that question is answered; whether also those of other owners.
    queued: Option<(u64, bool)>,
    /// This life knows all regions that the table says it holds.
    is_known: bool,
    /// At the table: the newest answer to each owner, for repeats.
    answers: BTreeMap<NodeId, (u64, Vec<RegionId>, Option<Lsn>)>,
    /// At the table: who waits for regions of others; `None` waits on this node.
    waiting: Vec<(NodeId, u64)>,
    /// At the table: owners asked to give regions up, under which name, since when.
    giving: BTreeMap<NodeId, (u64, Instant)>,
    /// At the table: the newest answer of each to that.
    given: BTreeMap<NodeId, u64>,
}

type Items = VecDeque<Item>;

impl Daemon {
    /// Asks an owner what there is to ask about sectors, if no question is under way.
    pub(super) fn want_space(self: &Arc<Self>, owner: NodeId, items: &mut Items) {
        let Some(shard) = self.shard_of(owner) else {
            return;
        };
        let Some(ask) = self.hands.with(owner, |hand| hand.next(clock::now())) else {
            return;
        };
        let call = self.draw_call();
        self.call_owner(call, shard, Ask::Space(ask), items);
    }

    /// Keeps some sectors of each owner in hand, ahead of need, and gives back what lies unused.
    pub(super) fn top_up(self: &Arc<Self>, items: &mut Items) {
        let mut owners = Vec::new();
        self.hands.each(|owner, _| owners.push(owner));
        for owner in owners {
            self.want_space(owner, items);
        }
        let mut out = Vec::new();
        lock(&self.regions.gather).on_tick(clock::now(), &mut out);
        self.gather_effects(out, items);
        self.end_slow_gives(items);
    }

    /// An owner answered `want_space`.
    pub(super) fn on_space_answer(
        self: &Arc<Self>,
        shard: ShardId,
        answer: Answer,
        items: &mut Items,
    ) {
        let owner = self.owner(shard);
        let is_there = match answer.body {
            Body::Space(answer) => {
                let now = clock::now();
                let taken = self.hands.with(owner, |hand| hand.on_answer(now, &answer));
                match taken {
                    Some(is_there) => is_there,
                    None => return,
                }
            }
            _ => {
                self.hands.with(owner, Hand::on_refused);
                false
            }
        };
        if owner == self.me.node && !is_there {
            lock(&self.log).destage_state = node::DestageState::NoSpace;
        }
        for slice in 0..SLICE_COUNT {
            items.push_back(Item::Client(slice, Input::Space(owner, is_there)));
        }
        // What became wanted meanwhile.
        self.want_space(owner, items);
    }

    /// The owner needs what lies unused here.
    pub(super) fn on_recall(self: &Arc<Self>, owner: NodeId, id: u64, items: &mut Items) {
        let now = clock::now();
        self.hands.with(owner, |hand| hand.on_recall(now, id));
        self.want_space(owner, items);
    }

    /// Takes regions ahead of need where this owner is short of them.
    pub(super) fn take_regions(self: &Arc<Self>, items: &mut Items) {
        let short = lock(&self.log).short_nsds();
        if !short.is_empty() && lock(&self.regions.state).asked.is_none() {
            self.ask_regions(short, None, false, items);
        }
    }

    /// This life begins, or the table's owner has begun anew: regions may have been given to this node in an
    /// answer that was lost.
    pub(super) fn learn_regions(self: &Arc<Self>, items: &mut Items) {
        if self.owner(ShardId(0)) == self.me.node {
            let mut log = lock(&self.log);
            let held = log.table_held_by(self.me.node);
            log.adopt_regions(&held);
            lock(&self.regions.state).is_known = true;
            return;
        }
        {
            let mut state = lock(&self.regions.state);
            state.is_known = false;
            let is_short = |message: &Message| matches!(message, Message::TakeRegions { is_short, .. } if *is_short);
            if let Some((_, Some(round), message)) = state.asked.take() {
                state.queued = Some((round, is_short(&message)));
            }
        }
        self.ask_regions(Vec::new(), None, false, items);
    }

    fn ask_regions(
        self: &Arc<Self>,
        nsds: Vec<NsdId>,
        round: Option<u64>,
        is_short: bool,
        items: &mut Items,
    ) {
        let id = self.draw_call();
        let table_owner = self.owner(ShardId(0));
        let count = u32::try_from(REGIONS_AT_ONCE).expect("a small number");
        let message = Message::TakeRegions {
            id,
            nsds: nsds.clone(),
            count,
            is_short,
        };
        lock(&self.regions.state).asked = Some((id, round, message.clone()));
        if table_owner == self.me.node {
            self.on_take_regions(self.me.node, id, &nsds, REGIONS_AT_ONCE, is_short, items);
        } else {
            self.send(table_owner, &message);
        }
    }

    /// The table's owner is asked again: the question or its answer may be lost.
    pub(super) fn region_repeats(&self) -> Vec<(NodeId, Message)> {
        let state = lock(&self.regions.state);
        let table_owner = self.owner(ShardId(0));
        let mut all: Vec<_> = (state.asked.iter())
            .filter(|_| table_owner != self.me.node)
            .map(|(_, _, message)| (table_owner, message.clone()))
            .collect();
        let gives = state.giving.iter();
        all.extend(gives.map(|(owner, (id, _))| (*owner, Message::GiveRegions { id: *id })));
        all
    }

    /// At the table: an owner wants regions.
    pub(super) fn on_take_regions(
        self: &Arc<Self>,
        from: NodeId,
        id: u64,
        nsds: &[NsdId],
        count: usize,
        is_short: bool,
        items: &mut Items,
    ) {
        {
            let state = lock(&self.regions.state);
            if let Some((last, regions, lsn)) = state.answers.get(&from)
                && *last >= id
            {
                if *last == id {
                    let (regions, lsn) = (regions.clone(), *lsn);
                    drop(state);
                    self.answer_regions(from, id, regions, lsn, items);
                }
                return;
            }
            if state.waiting.contains(&(from, id)) {
                return;
            }
        }
        let (regions, lsn) = {
            let mut log = lock(&self.log);
            if nsds.is_empty() {
                (log.table_held_by(from), None)
            } else {
                log.table_take(from, nsds, count)
            }
        };
        if !regions.is_empty() || !is_short || nsds.is_empty() {
            self.keep_regions(from, id, regions, lsn, items);
            return;
        }
        lock(&self.regions.state).waiting.push((from, id));
        let mut owners: Vec<NodeId> = self.config.view.owners.clone();
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            if owner == from || owner == NodeId::default() {
                continue;
            }
            let name = {
                let mut state = lock(&self.regions.state);
                if state.giving.contains_key(&owner) {
                    continue;
                }
                let name = self.draw_call();
                state.giving.insert(owner, (name, clock::now()));
                name
            };
            if owner == self.me.node {
                self.on_give_regions(name, items);
            } else {
                self.send(owner, &Message::GiveRegions { id: name });
            }
        }
        self.end_table_waits(items);
    }

    fn keep_regions(
        self: &Arc<Self>,
        to: NodeId,
        id: u64,
        regions: Vec<RegionId>,
        lsn: Option<Lsn>,
        items: &mut Items,
    ) {
        let kept = (id, regions.clone(), lsn);
        lock(&self.regions.state).answers.insert(to, kept);
        self.answer_regions(to, id, regions, lsn, items);
    }

    fn answer_regions(
        self: &Arc<Self>,
        to: NodeId,
        id: u64,
        regions: Vec<RegionId>,
        lsn: Option<Lsn>,
        items: &mut Items,
    ) {
        if to == self.me.node {
            // The table's record and ours are in one journal, in this order.
            self.on_regions(id, &regions, items);
            return;
        }
        let deferred = Deferred::Message(to, Box::new(Message::Regions { id, regions }));
        match lsn {
            Some(lsn) => self.defer(lsn, deferred, items),
            None => self.deliver(deferred, items),
        }
    }

    /// The table has answered.
    pub(super) fn on_regions(self: &Arc<Self>, id: u64, regions: &[RegionId], items: &mut Items) {
        let round = {
            let mut state = lock(&self.regions.state);
            let Some((_, round, message)) = state.asked.take_if(|(asked, ..)| *asked == id) else {
                return;
            };
            if matches!(message, Message::TakeRegions { ref nsds, .. } if nsds.is_empty()) {
                state.is_known = true;
            }
            round
        };
        lock(&self.log).adopt_regions(regions);
        if let Some(round) = round {
            let mut out = Vec::new();
            lock(&self.regions.gather).on_regions(round, !regions.is_empty(), &mut out);
            self.gather_effects(out, items);
        }
        let queued = lock(&self.regions.state).queued.take();
        if let Some((round, is_short)) = queued {
            self.round_regions(round, is_short, items);
        }
    }

    /// The table wants regions of this owner for another.
    pub(super) fn on_give_regions(self: &Arc<Self>, id: u64, items: &mut Items) {
        if !lock(&self.regions.state).is_known || !self.is_serving() {
            // Asked again: an answer to us that is on its way may name what we would give up.
            return;
        }
        let clients = self.client_lives();
        let mut out = Vec::new();
        lock(&self.regions.gather).begin_give(clock::now(), id, &clients, &mut out);
        self.gather_effects(out, items);
    }

    /// At the table: an owner has given regions up.
    pub(super) fn on_regions_back(
        self: &Arc<Self>,
        from: NodeId,
        id: u64,
        regions: &[RegionId],
        items: &mut Items,
    ) {
        {
            let mut state = lock(&self.regions.state);
            if state.given.get(&from).is_some_and(|last| *last >= id) {
                return;
            }
            state.given.insert(from, id);
            state
                .giving
                .retain(|owner, (name, _)| *owner != from || *name > id);
        }
        lock(&self.log).table_put_back(from, regions);
        self.end_table_waits(items);
    }

    /// At the table: those who wait for regions of others get what there is, when all have answered.
    fn end_table_waits(self: &Arc<Self>, items: &mut Items) {
        let waiting = {
            let mut state = lock(&self.regions.state);
            let RegionState {
                giving, waiting, ..
            } = &mut *state;
            // Who waits is not waited for: the others' answers do.
            let is_over = |from: &NodeId| giving.keys().all(|owner| owner == from);
            let over: Vec<_> = waiting.extract_if(.., |(from, _)| is_over(from)).collect();
            over
        };
        for (from, id) in waiting {
            let nsds: Vec<NsdId> = self.config.view.nsds.iter().map(|n| n.id).collect();
            let (regions, lsn) = lock(&self.log).table_take(from, &nsds, REGIONS_AT_ONCE);
            self.keep_regions(from, id, regions, lsn, items);
        }
    }

    fn end_slow_gives(self: &Arc<Self>, items: &mut Items) {
        let now = clock::now();
        let waits = {
            let mut state = lock(&self.regions.state);
            let giving = state.giving.len();
            let is_waited_for = |since: Instant| now.since(since) < GIVE_PATIENCE;
            state.giving.retain(|_, (_, since)| is_waited_for(*since));
            state.giving.len() < giving
        };
        if waits {
            self.end_table_waits(items);
        }
    }

    /// A question to this owner is short of sectors.
    pub(super) fn gather(self: &Arc<Self>, question: Box<node::Question>, items: &mut Items) {
        let clients = self.client_lives();
        let mut out = Vec::new();
        lock(&self.regions.gather).begin(clock::now(), question, &clients, &mut out);
        self.gather_effects(out, items);
    }

    /// A client has answered a recall.
    pub(super) fn recalled(self: &Arc<Self>, from: NodeLife, id: u64, items: &mut Items) {
        let mut out = Vec::new();
        lock(&self.regions.gather).on_recalled(from, id, &mut out);
        self.gather_effects(out, items);
    }

    /// A life is over: nothing is recalled from it, and nothing that it asked is answered.
    pub(super) fn gather_life_ended(self: &Arc<Self>, life: NodeLife, items: &mut Items) {
        {
            let mut state = lock(&self.regions.state);
            // The next life counts its questions anew.
            state.answers.remove(&life.node);
            state.given.remove(&life.node);
            state.giving.remove(&life.node);
            state.waiting.retain(|(from, _)| *from != life.node);
        }
        self.end_table_waits(items);
        let mut out = Vec::new();
        lock(&self.regions.gather).on_node_lost(life, &mut out);
        self.gather_effects(out, items);
    }

    /// What waits for sectors here, for `gupfs waiters`.
    pub(super) fn gather_waiting(&self) -> Option<(String, Instant)> {
        lock(&self.regions.gather).waiting()
    }

    /// Rounds of gathering and recalls.
    pub(super) fn gather_counters(&self) -> (u64, u64) {
        lock(&self.regions.gather).counters
    }

    /// Lives that this owner has granted sectors to.
    fn client_lives(&self) -> Vec<NodeLife> {
        let lives = lock(&self.log).space.lives();
        lives.granted.into_iter().map(|(life, _)| life).collect()
    }

    fn gather_effects(self: &Arc<Self>, effects: Vec<GatherEffect>, items: &mut Items) {
        for effect in effects {
            match effect {
                GatherEffect::Recall(life, id) if life == self.me => {
                    self.on_recall(self.me.node, id, items);
                }
                GatherEffect::Recall(life, id) => {
                    self.send(life.node, &Message::RecallSpace { id });
                }
                GatherEffect::Regions(round, is_short) => {
                    self.round_regions(round, is_short, items)
                }
                GatherEffect::Run(question) => {
                    items.push_back(Item::Owner(Work::Question(question)));
                }
                GatherEffect::Give(id) => self.give_regions(id, items),
            }
        }
    }

    /// A round wants regions: the question that is under way serves it, or a new one.
    fn round_regions(self: &Arc<Self>, round: u64, is_short: bool, items: &mut Items) {
        {
            let mut state = lock(&self.regions.state);
            if let Some((_, asker, _)) = &state.asked {
                if *asker != Some(round) {
                    state.queued = Some((round, is_short));
                }
                return;
            }
        }
        let nsds = self.config.view.nsds.iter().map(|n| n.id).collect();
        self.ask_regions(nsds, Some(round), is_short, items);
    }

    /// Gives regions up that nobody here uses, and tells the table when that is durable.
    fn give_regions(self: &Arc<Self>, id: u64, items: &mut Items) {
        if lock(&self.log).has_pending_space() {
            // What was freed a moment ago counts too.
            self.kick_journal();
            let daemon = Arc::clone(self);
            let again = Box::new(move || {
                let mut items = VecDeque::new();
                daemon.give_regions(id, &mut items);
                daemon.run(items);
            });
            self.loops.post_at(0, clock::now() + GIVE_PAUSE, again);
            return;
        }
        let (regions, lsn) = lock(&self.log).give_regions();
        let table_owner = self.owner(ShardId(0));
        if table_owner == self.me.node {
            // One journal: our record stands before the table's.
            self.on_regions_back(self.me.node, id, &regions, items);
            return;
        }
        let message = Message::RegionsBack { id, regions };
        let deferred = Deferred::Message(table_owner, Box::new(message));
        match lsn {
            Some(lsn) => self.defer(lsn, deferred, items),
            None => self.deliver(deferred, items),
        }
    }
}
