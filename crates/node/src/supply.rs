//! An owner's supply of sectors: what it answers those who ask for some, and what it does before it says that
//! there are none.
//!
//! ```text
//! SpaceAsk -> take what is given back -> enough free? -> grants, one record, answered when durable
//!    |  freed sectors wait for the journal -> wait
//!    |  nothing on an NSD that a layout names -> regions of it that nobody holds -> run again
//!    |  short -> Gather: regions that nobody holds -> run again
//!    |             none: recall from every client, regions of other owners -> run for the last time
//!    -> what there is, less than needed: ENOSPC
//!    -> the table's owner does not answer: EAGAIN, and the client asks again; there may be plenty
//! ```
//!
//! Invariants
//! - A question is executed once, also when it is repeated: the newest answer of each life is kept. After this
//!   owner's process has begun anew it may be executed twice; the asker then finds by `SpaceAsk::list` what was
//!   granted twice.
//! - One round of gathering at a time; who comes meanwhile joins it. Every wait in it ends: by an answer, the end
//!   of a life, or a time. A round does not recall from who began it: a question that joined one gets another.

use std::collections::BTreeSet;

use client::message::{Ask, Body};
use data::space::{RegionId, SpaceMutation, TableMutation};
use data::{SpaceAnswer, SpaceAsk};
use store::journal::Urgency;
use types::id::NodeLife;
use types::{Duration, Errno, Instant, Lsn, NodeId, NsdId, Run};

use crate::log::{OwnerLog, Refusal, SpaceRecord};
use crate::question::{OfLayout, OwnerEffect, Question, Work};

/// Runs told of when a life asks what it holds: what does not fit goes back when the life ends.
const HELD_RUN_COUNT_MAX: usize = 16 << 10;
/// Bytes that the record of a question takes at the most: runs given back, and `GRANT_RUN_COUNT_MAX` grants.
const RECORD_SIZE_MAX: usize = 256 << 10;
/// Regions given up to another owner at once.
const GIVE_COUNT_MAX: usize = 16;
/// A recall or a question for regions without an answer is said again after this.
const REPEAT: Duration = Duration::from_millis(500);
/// A client that does not answer a recall for so long is not waited for.
const RECALL_PATIENCE: Duration = Duration::from_secs(5);
/// `Question::space_round` of a question that joined a round in which everybody but another asker was recalled: that
/// one may have sectors to spare after all, when it was answered.
const ROUND_JOINED: u32 = 2;
/// `Question::space_round` when all that can be gathered has been.
const ROUND_LAST: u32 = 3;
/// The same, but the table's owner has not answered: nobody knows whether there are regions.
const ROUND_SILENT: u32 = 4;
/// Sectors that were freed where a layout wants some are waited for so often: others may be quicker, each time.
const FREED_TRIES_MAX: u32 = 4;
/// The owner of the region table is waited for so long.
const TABLE_PATIENCE: Duration = Duration::from_secs(15);

/// What an owner makes of a question about sectors.
#[derive(Debug)]
pub enum Supply {
    /// The answer, when this is durable.
    Answer(SpaceAnswer, Option<Lsn>),
    /// A late repeat: say nothing.
    Old,
    /// Sectors or room in the journal will be there when it has been written: run it again then.
    Soon,
    /// Fewer are free than are needed: gather, then run it again.
    Short,
    /// There are enough, but none on these NSDs, which a layout names: take regions of them, then run it again.
    Lacks(Vec<NsdId>),
    /// The journal has failed.
    Failed(Errno),
}

/// What has been gathered for a question when it is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Gathered {
    /// All that there is: what is short now is told.
    pub is_all: bool,
    /// What is wanted on the NSDs of a layout: others will do now.
    pub is_of_layout: bool,
    /// What was freed there and waits for the journal has been waited for.
    pub is_freed: bool,
}

/// Counted since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SupplyCounters {
    /// Questions answered.
    pub asks: u64,
    /// Sectors granted.
    pub granted: u64,
    /// Sectors given back.
    pub given_back: u64,
    /// Answers with fewer sectors than were needed.
    pub no_space: u64,
    /// Regions taken, and regions given to other owners.
    pub regions_taken: u64,
    /// See `regions_taken`.
    pub regions_given: u64,
}

impl OwnerLog {
    /// Executes a question about sectors. What `ask` gives back is taken out of it, so that it can be run again.
    pub fn supply(&mut self, from: NodeLife, ask: &mut SpaceAsk, gathered: Gathered) -> Supply {
        if let Some((kept, lsn)) = self.space_answers.get(&from) {
            if kept.number == ask.number {
                return Supply::Answer(kept.clone(), *lsn);
            }
            if kept.number > ask.number {
                return Supply::Old;
            }
        }
        if self.journal.is_poisoned() {
            return Supply::Failed(Errno::EIO);
        }
        if !self.journal.has_room(RECORD_SIZE_MAX, Urgency::Urgent) {
            return if self.may_have_room_soon() {
                Supply::Soon
            } else {
                Supply::Failed(Errno::ENOSPC)
            };
        }
        let mut mutations = Vec::new();
        for run in std::mem::take(&mut ask.back) {
            let freed = self.space.give_back_held(from, run, &mut mutations);
            self.supply_counters.given_back += freed;
        }
        let grantable = self.space.grantable();
        // While there is enough for everybody, nothing is taken of what is held back.
        let (needed, promised) = match grantable >= ask.need + ask.promised {
            true => (ask.need + ask.promised, 0),
            false => (ask.need, ask.promised),
        };
        let need = needed.min(grantable);
        let can_keep = self.space.grantable_for_promises() >= need + promised;
        // What an NSD refuses goes elsewhere, if it takes others' regions; in the end it is tried there once more.
        let refused = match gathered.is_all {
            true => 0,
            false => self.free_where_refused(),
        };
        let is_short = grantable.saturating_sub(refused) < needed || !can_keep;
        let is_soon = self.space.counts().pending > 0;
        if is_short && (!gathered.is_all || is_soon) {
            if !mutations.is_empty() {
                self.append_space(mutations);
            }
            return if is_soon { Supply::Soon } else { Supply::Short };
        }
        if !gathered.is_of_layout {
            let lacks = self.lacking(&ask.nsds);
            if !lacks.is_empty() {
                if !mutations.is_empty() {
                    self.append_space(mutations);
                }
                let is_soon = |nsd: &NsdId| self.space.counts_by_nsd(*nsd).pending > 0;
                return match !gathered.is_freed && lacks.iter().any(is_soon) {
                    true => Supply::Soon,
                    false => Supply::Lacks(lacks),
                };
            }
        }
        // Ahead of need only a part of what is left: others want some too.
        let ahead = ask.want.saturating_sub(ask.need + ask.promised);
        let ahead = ahead.min(grantable.saturating_sub(needed) / 8);
        // A part of what is promised would do for nobody, and be missed by who needs no more.
        let promised = if can_keep { promised } else { 0 };
        let mut grants = match promised {
            0 => Vec::new(),
            all => self.grant((from, true), (all, all), &ask.nsds, &mut mutations),
        };
        let promised: u64 = grants.iter().map(|g| u64::from(g.run.count)).sum();
        let plain = (need, need + ahead);
        grants.extend(self.grant((from, false), plain, &ask.nsds, &mut mutations));
        self.supply_counters.asks += 1;
        self.supply_counters.granted += grants.iter().map(|g| u64::from(g.run.count)).sum::<u64>();
        self.supply_counters.no_space += u64::from(is_short);
        let held: Option<Vec<Run>> = ask.list.then(|| {
            self.space
                .granted_to(from)
                .take(HELD_RUN_COUNT_MAX)
                .collect()
        });
        let lsn = (!mutations.is_empty()).then(|| self.append_space(mutations));
        let answer = SpaceAnswer {
            number: ask.number,
            grants,
            promised,
            held,
        };
        self.space_answers.insert(from, (answer.clone(), lsn));
        Supply::Answer(answer, lsn)
    }

    /// These NSDs refuse what this node writes, and others are well: what is free there is no supply. None: all are.
    pub fn avoid_for_data(&mut self, mut nsds: Vec<NsdId>) {
        if self.nsds.iter().all(|nsd| nsds.contains(nsd)) {
            nsds.clear();
        }
        self.refusing = nsds;
    }

    fn free_where_refused(&self) -> u64 {
        let free = |nsd: &NsdId| self.space.counts_of(*nsd).free;
        self.refusing.iter().map(free).sum()
    }

    /// Those of the NSDs, which a layout names, on which nothing is free here.
    fn lacking(&self, named: &[NsdId]) -> Vec<NsdId> {
        let named = named.iter().copied();
        let lacks = |nsd: &NsdId| self.space.counts_of(*nsd).free == 0;
        named
            .filter(|nsd| self.has_nsd(*nsd) && lacks(nsd))
            .collect()
    }

    /// Gives up to `GIVE_COUNT_MAX` entirely free regions up, half of those there are, for another owner that
    /// has none left. They are to be told to the table when the LSN is durable.
    pub fn give_regions(&mut self) -> (Vec<RegionId>, Option<Lsn>) {
        let mut regions = self.regions_to_give();
        if regions.is_empty() {
            self.want_evacuation();
            self.want_clearing();
        }
        regions.truncate(GIVE_COUNT_MAX);
        let mut mutations = Vec::new();
        let space = &mut self.space;
        regions.retain(|region| {
            space.can_spare(*region) && space.return_region(*region, &mut mutations).is_ok()
        });
        self.supply_counters.regions_given += regions.len() as u64;
        let lsn = (!mutations.is_empty()).then(|| self.append_space(mutations));
        (regions, lsn)
    }

    /// Gives `owner` up to `count` regions of each NSD (at the table). Durable at the LSN.
    pub fn table_take(
        &mut self,
        owner: NodeId,
        nsds: &[NsdId],
        count: usize,
    ) -> (Vec<RegionId>, Option<Lsn>) {
        let mut mutations = Vec::new();
        let mut regions = Vec::new();
        let is_refused = self.refusal == Some(Refusal::Regions);
        if let Some(table) = self.table.as_mut().filter(|_| !is_refused) {
            for nsd in nsds {
                regions.extend(table.take(owner, *nsd, count, &mut mutations));
            }
        }
        (regions, self.append_table(&mutations))
    }

    /// `owner` has given these regions up (at the table).
    pub fn table_put_back(&mut self, owner: NodeId, regions: &[RegionId]) -> Option<Lsn> {
        let mut mutations = Vec::new();
        if let Some(table) = &mut self.table {
            for region in regions {
                // One that it does not hold is a repeat: it is done.
                let _ = table.give_back(owner, *region, &mut mutations);
            }
        }
        self.append_table(&mutations)
    }

    /// What the table says `owner` holds.
    pub fn table_held_by(&self, owner: NodeId) -> Vec<RegionId> {
        let held = self.table.as_ref().map(|table| table.held_by(owner));
        held.unwrap_or_default()
    }

    fn append_table(&mut self, mutations: &[TableMutation]) -> Option<Lsn> {
        let records = mutations.iter().map(|m| SpaceRecord::Table(*m));
        (!mutations.is_empty()).then(|| self.append_records(records))
    }

    /// This owner holds these regions now (those it knows are left out).
    pub fn adopt_regions(&mut self, regions: &[RegionId]) -> Option<Lsn> {
        let mut mutations: Vec<SpaceMutation> = Vec::new();
        for region in self.space.unknown_regions(regions) {
            // One that does not fit is not of this file system's geometry: not ours to use.
            let _ = self.space.take_region(region, &mut mutations);
        }
        self.supply_counters.regions_taken += mutations.len() as u64;
        let lsn = (!mutations.is_empty()).then(|| self.append_space(mutations));
        // Before files scatter them.
        self.balance_pages();
        lsn
    }
}

/// Runs a question about sectors. Returned: it waits for the journal.
pub(crate) fn answer(
    log: &mut OwnerLog,
    mut question: Box<Question>,
    out: &mut Vec<OwnerEffect>,
) -> Option<Work> {
    let is_silent = question.space_round == ROUND_SILENT;
    let gathered = Gathered {
        is_all: is_all_gathered(&question) && !is_silent,
        is_of_layout: question.of_layout == OfLayout::None,
        is_freed: question.tries > FREED_TRIES_MAX,
    };
    let Ask::Space(ask) = &mut question.ask else {
        unreachable!("the caller matched it");
    };
    let recall = ask.recall;
    let supplied = log.supply(question.from, ask, gathered);
    let is_executed = matches!(
        supplied,
        Supply::Answer(..) | Supply::Short | Supply::Lacks(_)
    );
    if is_executed && recall != 0 {
        out.push(OwnerEffect::Recalled(question.from, recall));
    }
    match supplied {
        Supply::Answer(answer, lsn) => out.push(question.answer(Body::Space(answer), lsn)),
        Supply::Old => question.dropped(out),
        Supply::Soon => return Some(Work::Question(question)),
        Supply::Short if is_silent => out.push(question.refused(Errno::EAGAIN)),
        Supply::Short => out.push(OwnerEffect::Gather(question)),
        Supply::Lacks(nsds) => {
            question.of_layout = OfLayout::Lacks(nsds);
            out.push(OwnerEffect::Gather(question));
        }
        Supply::Failed(errno) => out.push(question.refused(errno)),
    }
    None
}

/// Who waits for the end of a round.
#[derive(Debug)]
enum Waiter {
    /// A question that is short.
    Question {
        question: Box<Question>,
        /// The round had begun for another asker.
        has_joined: bool,
    },
    /// The table wants regions of this owner for another one: its name for that.
    Give(u64),
    /// Pages of trees need regions, of which this node's clients may have the sectors in hand.
    Pages,
}

/// Who asks for sectors has none to spare itself, and may be waiting for us. Who wants some promised may have.
fn busy_asker(question: &Question) -> Option<NodeLife> {
    matches!(question.ask, Ask::Space(_)).then_some(question.from)
}

/// All that can be gathered for the question has been, within the time there is for it.
pub(crate) fn is_all_gathered(question: &Question) -> bool {
    question.space_round >= ROUND_LAST
}

/// What a round wants done.
#[derive(Debug)]
pub enum GatherEffect {
    /// Tell this client to give back what it does not use, under this name.
    Recall(NodeLife, u64),
    /// Get regions from the table's owner, under this name. True: also those that other owners can spare.
    Regions(u64, bool),
    /// Run the question again; `space_round` says whether for the last time.
    Run(Box<Question>),
    /// Give regions up for another owner, if there are any to spare; the table's name for it.
    Give(u64),
    /// All clients have given back what they do not use, for pages.
    Pages,
}

#[derive(Debug)]
struct Round {
    id: u64,
    waiters: Vec<Waiter>,
    /// Clients that have not answered the recall.
    lives: BTreeSet<NodeLife>,
    awaits_regions: bool,
    /// The table was asked for regions.
    has_asked: bool,
    has_regions: bool,
    is_table_silent: bool,
    /// Everybody was asked to give back; before, only regions that nobody holds were asked for.
    is_thorough: bool,
    since: Instant,
    said: Instant,
}

/// The rounds of one owner: see the module.
#[derive(Debug, Default)]
pub struct Gather {
    round: Option<Round>,
    next_id: u64,
    /// Rounds begun, and recalls sent.
    pub counters: (u64, u64),
}

impl Gather {
    /// A question is short of sectors. `clients`: all lives that may hold grants.
    pub fn begin(
        &mut self,
        now: Instant,
        question: Box<Question>,
        clients: &[NodeLife],
        out: &mut Vec<GatherEffect>,
    ) {
        match &mut self.round {
            Some(round) => {
                if let Some(from) = busy_asker(&question) {
                    round.lives.remove(&from);
                }
                if !round.has_asked {
                    // It was begun for somebody who wants none of the table's: who hears that there are none has asked there, too.
                    (round.has_asked, round.awaits_regions) = (true, true);
                    out.push(GatherEffect::Regions(round.id, round.is_thorough));
                }
                round.waiters.push(Waiter::Question {
                    question,
                    has_joined: true,
                });
            }
            None => {
                let is_thorough = question.space_round > 0;
                let waiter = Waiter::Question {
                    question,
                    has_joined: false,
                };
                self.start(now, waiter, is_thorough, clients, out);
            }
        }
        self.end_if_over(out);
    }

    /// The table wants regions for another owner.
    pub fn begin_give(
        &mut self,
        now: Instant,
        name: u64,
        clients: &[NodeLife],
        out: &mut Vec<GatherEffect>,
    ) {
        match &mut self.round {
            Some(round) => {
                let is_same = |w: &Waiter| matches!(w, Waiter::Give(n) if *n == name);
                if !round.waiters.iter().any(is_same) {
                    round.waiters.push(Waiter::Give(name));
                }
            }
            None => self.start(now, Waiter::Give(name), true, clients, out),
        }
        self.end_if_over(out);
    }

    /// Pages of trees are short: clients are to give back what they do not use. False: a round of another kind is under way; later.
    pub fn begin_pages(
        &mut self,
        now: Instant,
        clients: &[NodeLife],
        out: &mut Vec<GatherEffect>,
    ) -> bool {
        match &mut self.round {
            Some(round) if !round.is_thorough => return false,
            Some(round) => {
                if !round.waiters.iter().any(|w| matches!(w, Waiter::Pages)) {
                    round.waiters.push(Waiter::Pages);
                }
            }
            None => self.start(now, Waiter::Pages, true, clients, out),
        }
        self.end_if_over(out);
        true
    }

    fn start(
        &mut self,
        now: Instant,
        waiter: Waiter,
        is_thorough: bool,
        clients: &[NodeLife],
        out: &mut Vec<GatherEffect>,
    ) {
        self.next_id += 1;
        self.counters.0 += 1;
        let asker = match &waiter {
            Waiter::Question { question, .. } => busy_asker(question),
            Waiter::Give(_) | Waiter::Pages => None,
        };
        let awaits_regions = matches!(waiter, Waiter::Question { .. });
        let lives: BTreeSet<NodeLife> = clients
            .iter()
            .copied()
            .filter(|life| is_thorough && Some(*life) != asker)
            .collect();
        self.counters.1 += lives.len() as u64;
        let round = Round {
            id: self.next_id,
            waiters: vec![waiter],
            lives,
            awaits_regions,
            has_asked: awaits_regions,
            has_regions: false,
            is_table_silent: false,
            is_thorough,
            since: now,
            said: now,
        };
        round.say(out);
        self.round = Some(round);
    }

    /// A client has given back what it does not use, or says that it has nothing.
    pub fn on_recalled(&mut self, from: NodeLife, id: u64, out: &mut Vec<GatherEffect>) {
        if let Some(round) = self.round.as_mut().filter(|round| round.id == id) {
            round.lives.remove(&from);
        }
        self.end_if_over(out);
    }

    /// The table's owner has answered; the regions are adopted.
    pub fn on_regions(&mut self, id: u64, is_any: bool, out: &mut Vec<GatherEffect>) {
        if let Some(round) = self.round.as_mut().filter(|round| round.id == id) {
            round.awaits_regions = false;
            round.has_regions = is_any;
            if is_any {
                // That may do: who needs more comes again.
                round.lives.clear();
            }
        }
        self.end_if_over(out);
    }

    /// A life is over: it gives nothing back any more, and what it asked is not answered.
    pub fn on_node_lost(&mut self, life: NodeLife, out: &mut Vec<GatherEffect>) {
        if let Some(round) = &mut self.round {
            round.lives.remove(&life);
            round.waiters.retain(
                |w| !matches!(w, Waiter::Question { question, .. } if question.from == life),
            );
        }
        self.end_if_over(out);
    }

    /// Says again what was not answered, and gives up whom it has waited for long enough.
    pub fn on_tick(&mut self, now: Instant, out: &mut Vec<GatherEffect>) {
        let Some(round) = &mut self.round else { return };
        if now.since(round.since) > RECALL_PATIENCE {
            round.lives.clear();
        }
        if now.since(round.since) > TABLE_PATIENCE && round.awaits_regions {
            round.awaits_regions = false;
            round.is_table_silent = true;
        }
        if now.since(round.said) > REPEAT {
            round.said = now;
            round.say(out);
        }
        self.end_if_over(out);
    }

    /// What waits, and since when, for `gupfs waiters`.
    pub fn waiting(&self) -> Option<(String, Instant)> {
        let round = self.round.as_ref()?;
        let nodes: Vec<u16> = round.lives.iter().map(|life| life.node.0).collect();
        let what = format!(
            "{} questions for sectors wait for recalls from nodes {nodes:?}, regions: {}",
            round.waiters.len(),
            round.awaits_regions
        );
        Some((what, round.since))
    }

    fn end_if_over(&mut self, out: &mut Vec<GatherEffect>) {
        let Some(round) = &mut self.round else { return };
        if !round.lives.is_empty() {
            return;
        }
        // Who gives does not wait for regions itself, or two owners would wait for one another.
        let is_giving = |w: &mut Waiter| matches!(w, Waiter::Give(_) | Waiter::Pages);
        for waiter in round.waiters.extract_if(.., is_giving) {
            match waiter {
                Waiter::Give(name) => out.push(GatherEffect::Give(name)),
                Waiter::Pages => out.push(GatherEffect::Pages),
                Waiter::Question { .. } => unreachable!("not taken out"),
            }
        }
        if round.awaits_regions && !round.waiters.is_empty() {
            return;
        }
        let round = self.round.take().expect("seen above");
        for waiter in round.waiters {
            if let Waiter::Question {
                mut question,
                has_joined,
            } = waiter
            {
                question.space_round = match (round.has_regions, round.is_thorough) {
                    // Where regions came from, there may be more.
                    (true, _) | (false, false) => 1,
                    (false, true) if has_joined && question.space_round < ROUND_JOINED => {
                        ROUND_JOINED
                    }
                    (false, true) if round.is_table_silent => ROUND_SILENT,
                    (false, true) => ROUND_LAST,
                };
                out.push(GatherEffect::Run(question));
            }
        }
    }
}

impl Round {
    fn say(&self, out: &mut Vec<GatherEffect>) {
        for life in &self.lives {
            out.push(GatherEffect::Recall(*life, self.id));
        }
        if self.awaits_regions {
            out.push(GatherEffect::Regions(self.id, self.is_thorough));
        }
    }
}

#[cfg(test)]
mod tests;
