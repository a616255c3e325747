//! How an owner comes by regions and gathers what others do not use, and, at the region table's owner (shard 0's), who
//! gets which region.
//!
//! ```text
//! short of sectors -> Gather -> TakeRegions to the table -> free ones -> Regions, durable at the table first
//!                                                   none, and the asker is short -> GiveRegions to all owners
//!                                                                     RegionsBack, durable at the giver first
//!                           none is free, and files can leave some (`OwnerLog::awaits_clearing`): the giver answers later
//! none where a layout wants some (`layouts`) -> TakeRegions of these NSDs alone
//! ```
//!
//! Invariants
//! - An owner has at most one question to the table under way; regions that it did not ask for are not adopted (a late
//!   repeat of an answer may name what it has given up since).
//! - Who is short has the first regions that any owner gives, and hears that there are none when all have answered. Where another one took
//!   what was given they are asked again for him, at a tick: from within the table's own answer, nothing of it may be forgotten yet.
//! - While a giver waits for files, repeats of the question change nothing.
//! - A region is in nobody's hands between the record of its giver and that of its taker.
//! - The table keeps its newest answer to each owner, and an owner its newest to the table: a question that is
//!   repeated takes and gives nothing more.
//! - An owner that does not know all regions it holds gives none up: an answer to it may be on its way.
//! - What an owner gave up last and has not been given again since is not his, whatever an answer to "what do I hold?" says: that may be
//!   of before the table heard of it. He answers that answer (`refuse`), which counts while nothing was given to him since.
//!   What he told another life of the table, and comes late, does not count (names of two lives differ, `draw_id`), and what another life
//!   asked for is not given.
//! - So what was told may be lost: after it he asks what he holds until the answer names nothing that he gave up (`confirm_at`).
//!
//! What this deliberately does not do: send, and run questions. The driver performs `RegionEffect`s.

mod layouts;

use std::collections::BTreeMap;

use data::space::RegionId;
use types::id::NodeLife;
use types::{Duration, Incarnation, Instant, Lsn, NodeId, NsdId};

use crate::log::OwnerLog;
use crate::message::Message;
use crate::question::{OfLayout, Question};
use crate::supply::{Gather, GatherEffect};
use layouts::Layouts;

/// Regions of each NSD taken at once.
const REGIONS_AT_ONCE: u32 = 2;
/// Most regions of each NSD that one question is given.
const REGIONS_AT_ONCE_MAX: u32 = 64;
/// Where there are no regions for pages, they are asked for again so much later; twice as late each time.
const PAGES_PAUSE_MIN: Duration = Duration::from_millis(200);
/// See `PAGES_PAUSE_MIN`.
const PAGES_PAUSE_MAX: Duration = Duration::from_secs(30);
/// The same while checkpoints fail: creates are refused, and room that others have got is to help soon.
const PAGES_PAUSE_SHORT_MAX: Duration = Duration::from_secs(5);
/// Pages are short for long: clients are asked again for what they have in hand after so long. Each time they have nothing ahead for a second.
const PAGES_RECALL_PAUSE: Duration = Duration::from_secs(30);
/// What was given up is asked for so much later.
const CONFIRM_PAUSE: Duration = Duration::from_secs(2);
/// Who wants regions waits so long for some that files leave: less than for an owner that does not answer, and for one of 1 GiB that is
/// nearly full, at the rate of `client::rewrite`.
const CLEARING_PATIENCE: Duration = Duration::from_secs(8);
/// Another owner that does not give regions up for so long is not waited for.
const GIVE_PATIENCE: Duration = Duration::from_secs(10);

/// What is to be done.
#[derive(Debug)]
pub enum RegionEffect {
    /// Send this; what is lost is said again (`repeats`).
    Send(NodeId, Message),
    /// Send this when the journal is durable up to there.
    SendAfter(Lsn, NodeId, Message),
    /// This node's own hand is to give back what it does not use (`Hand::on_recall`).
    RecallHere(u64),
    /// Run the question again.
    Run(Box<Question>),
    /// Freed sectors wait for the journal: write it, and call `give` with this name some milliseconds later.
    GiveLater(u64),
    /// Files are leaving some regions: call `give` with this name some tenths of a second later.
    GiveWhenCleared(u64),
}

/// What every input brings.
#[derive(Debug)]
pub struct RegionEnv<'a> {
    /// Now.
    pub now: Instant,
    /// This node.
    pub me: NodeLife,
    /// Owner of each shard.
    pub owners: &'a [NodeId],
    /// All NSDs.
    pub nsds: &'a [NsdId],
}

/// A question to the table.
#[derive(Debug)]
struct Asked {
    id: u64,
    /// The round of gathering that waits for it.
    round: Option<u64>,
    /// None: which regions do I hold?
    nsds: Vec<NsdId>,
    /// Others are to give some up.
    is_short: bool,
    /// For pages of trees.
    is_for_pages: bool,
}

/// Who waits at the table for regions of others.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    from: NodeId,
    /// Its question.
    id: u64,
    /// Somebody else took what an owner gave since the owners were asked: that one may have more.
    is_overtaken: bool,
}

impl Waiting {
    const fn new((from, id): (NodeId, u64)) -> Self {
        Self {
            from,
            id,
            is_overtaken: false,
        }
    }

    const fn of(&self) -> (NodeId, u64) {
        (self.from, self.id)
    }
}

/// An answer: the question, the regions, and the record that gave them.
type Given = (u64, Vec<RegionId>, Option<Lsn>);

/// See the module.
#[derive(Debug, Default)]
pub struct Regions {
    gather: Gather,
    next_id: u64,
    asked: Option<Asked>,
    /// A round that wants regions when that question is answered; whether also those of other owners.
    queued: Option<(u64, bool)>,
    layouts: Layouts,
    /// This life knows all regions that the table says it holds.
    is_known: bool,
    /// The newest answer to the table that wanted regions: under which name, which of them it may not have heard of, in which record.
    gave: Option<Given>,
    /// What it wants now, if it has asked in this life of its.
    wanted: Option<u64>,
    /// Since when.
    wanted_since: Instant,
    /// Under which name some are wanted that files have still to leave, and since when.
    clearing_for: Option<(u64, Instant)>,
    /// Whether it has heard what was given up is asked then.
    confirm_at: Option<Instant>,
    /// At the table: for repeats.
    answers: BTreeMap<NodeId, Given>,
    /// At the table: who waits for regions of others.
    waiting: Vec<Waiting>,
    /// At the table: the same, for whom the others are to be asked again.
    again: Vec<(NodeId, u64)>,
    /// At the table: owners asked to give regions up, under which name, since when.
    giving: BTreeMap<NodeId, (u64, Instant)>,
    /// At the table: the newest answer of each to that.
    given: BTreeMap<NodeId, u64>,
    /// There was no room in the journal for regions of this owner.
    must_learn: bool,
    /// Regions for pages are not asked for before this, and how much later again where there were none.
    pages_not_before: Instant,
    pages_pause: Duration,
    /// Those that were needed last were wanted of others, too.
    were_pages_short: bool,
    /// When clients were asked for what they have in hand and do not use, since pages are short.
    pages_recalled_at: Option<Instant>,
}

type Outbox = Vec<RegionEffect>;

impl RegionEnv<'_> {
    fn table_owner(&self) -> NodeId {
        self.owners.first().copied().unwrap_or_default()
    }

    fn is_table(&self) -> bool {
        self.table_owner() == self.me.node
    }
}

/// The half of a name that says which life drew it.
fn life_half(life: NodeLife) -> u64 {
    let incarnation = life.incarnation.0;
    let folded = incarnation ^ incarnation >> 64;
    types::wire::incarnation_low(Incarnation(folded ^ folded >> 32)) << 32
}

impl Asked {
    fn message(&self) -> Message {
        Message::TakeRegions {
            id: self.id,
            nsds: self.nsds.clone(),
            count: REGIONS_AT_ONCE,
            is_short: self.is_short,
        }
    }
}

impl Regions {
    /// Takes regions ahead of need where this owner is short of them.
    pub fn take_ahead(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        if self.asked.is_some() {
            return;
        }
        let nsds = log.short_nsds();
        if !nsds.is_empty() {
            self.ask(env, log, (nsds, None, false), out);
        }
    }

    /// Takes regions for pages of trees where these need some, others' too where checkpoints fail for want of them.
    fn take_for_pages(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        if self.asked.is_some() || !self.is_known {
            return;
        }
        let Some((nsds, is_short)) = log.page_shortage() else {
            (self.pages_pause, self.were_pages_short) = (PAGES_PAUSE_MIN, false);
            self.pages_recalled_at = None;
            return;
        };
        // That the table had none says nothing of what the other owners have.
        let was_short = std::mem::replace(&mut self.were_pages_short, is_short);
        if is_short && !was_short {
            (self.pages_pause, self.pages_not_before) = (Duration(0), env.now);
        }
        if env.now < self.pages_not_before {
            return;
        }
        if is_short {
            log.want_clearing();
        }
        let is_recall_due =
            (self.pages_recalled_at).is_none_or(|at| env.now.since(at) >= PAGES_RECALL_PAUSE);
        if is_short && is_recall_due {
            // Others are asked by the table; what this owner has granted lies in hands that may not use it.
            let mut effects = Vec::new();
            let clients = clients(log);
            if !self.gather.begin_pages(env.now, &clients, &mut effects) {
                // A round that asks for regions alone is soon over.
                return;
            }
            self.pages_recalled_at = Some(env.now);
            log.begin_recall_for_pages();
            self.perform(env, log, effects, out);
        }
        let most = match is_short {
            true => PAGES_PAUSE_SHORT_MAX,
            false => PAGES_PAUSE_MAX,
        };
        self.pages_pause = Duration((self.pages_pause.0 * 2).clamp(PAGES_PAUSE_MIN.0, most.0));
        self.pages_not_before = env.now + self.pages_pause;
        let asked = Asked {
            id: self.draw_id(env.me),
            round: None,
            nsds,
            is_short,
            is_for_pages: true,
        };
        self.put(env, log, asked, out);
    }

    /// This life begins, or the table's owner has begun anew: regions may have been given to this node in an answer
    /// that was lost. Or it is time to see whether the table has heard of what was given up.
    pub fn learn(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        if !log.has_room_for_regions() {
            (self.is_known, self.must_learn) = (false, true);
            return;
        }
        // Another life of the table may have wanted it.
        (self.wanted, self.confirm_at) = (None, None);
        if env.is_table() {
            let held = log.table_held_by(env.me.node);
            self.forget_given(&held);
            log.adopt_regions(&held);
            self.is_known = true;
            return;
        }
        self.is_known = false;
        if let Some(Asked {
            round: Some(round),
            is_short,
            ..
        }) = self.asked.take()
        {
            self.queued = Some((round, is_short));
        }
        self.ask(env, log, (Vec::new(), None, false), out);
    }

    /// A name: no other life of this node draws it (but for one chance in 2^32), and those of one life grow.
    fn draw_id(&mut self, me: NodeLife) -> u64 {
        self.next_id = (self.next_id + 1) & u64::from(u32::MAX);
        life_half(me) | self.next_id
    }

    /// The table may not have heard of regions that were given up.
    fn has_untold(&self) -> bool {
        (self.gave.as_ref()).is_some_and(|(_, regions, _)| !regions.is_empty())
    }

    /// The table gave these to us after it heard what we gave up.
    fn forget_given(&mut self, regions: &[RegionId]) {
        if let Some((_, given, _)) = &mut self.gave {
            given.retain(|region| !regions.contains(region));
        }
    }

    fn ask(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        (nsds, round, is_short): (Vec<NsdId>, Option<u64>, bool),
        out: &mut Outbox,
    ) {
        let asked = Asked {
            id: self.draw_id(env.me),
            round,
            nsds,
            is_short,
            is_for_pages: false,
        };
        self.put(env, log, asked, out);
    }

    fn put(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, asked: Asked, out: &mut Outbox) {
        let message = asked.message();
        self.asked = Some(asked);
        if env.is_table() {
            self.on_take(env, log, env.me.node, &message, out);
        } else {
            out.push(RegionEffect::Send(env.table_owner(), message));
        }
    }

    /// What was asked and has no answer: to be said again from time to time.
    pub fn repeats(&self, env: &RegionEnv<'_>) -> Vec<(NodeId, Message)> {
        let asked = self.asked.iter().filter(|_| !env.is_table());
        let asked = asked.map(|asked| (env.table_owner(), asked.message()));
        let gives = self.giving.iter();
        let gives = gives.map(|(owner, (id, _))| (*owner, Message::GiveRegions { id: *id }));
        asked.chain(gives).collect()
    }

    /// At the table: an owner wants regions (`Message::TakeRegions`).
    pub fn on_take(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        from: NodeId,
        message: &Message,
        out: &mut Outbox,
    ) {
        let Message::TakeRegions {
            id,
            nsds,
            count,
            is_short,
        } = message
        else {
            unreachable!("the caller matched it");
        };
        let id = *id;
        if let Some((last, regions, lsn)) = self.answers.get(&from)
            && *last >= id
        {
            if *last == id {
                let (regions, lsn) = (regions.clone(), *lsn);
                self.answer(env, log, (from, id), (regions, lsn), out);
            }
            return;
        }
        // Nothing that it knows will be durable.
        if log.journal.is_poisoned() {
            return;
        }
        // Without room in the journal nothing is given. Where some may come soon it is asked again; else there is none, for who is short.
        if !nsds.is_empty() && !log.has_room_for_regions() {
            if *is_short && !log.may_have_room_soon() {
                self.waiting.retain(|waiting| waiting.of() != (from, id));
                self.again.retain(|waiting| *waiting != (from, id));
                self.keep(env, log, (from, id), (Vec::new(), None), out);
            }
            return;
        }
        let is_waiting = self.waiting.iter().any(|w| w.of() == (from, id));
        if is_waiting || self.again.contains(&(from, id)) {
            return;
        }
        let count = usize::try_from(*count.min(&REGIONS_AT_ONCE_MAX)).expect("small");
        let (regions, lsn) = match nsds.is_empty() {
            // What was given last may not be durable yet: if it never is, it is somebody else's.
            true => (log.table_held_by(from), Some(log.journal.last_lsn())),
            false => log.table_take(from, nsds, count),
        };
        if !regions.is_empty() || !*is_short || nsds.is_empty() {
            self.keep(env, log, (from, id), (regions, lsn), out);
            return;
        }
        self.waiting.push(Waiting::new((from, id)));
        self.ask_others(env, log, from, out);
        self.end_waits(env, log, out);
    }

    /// At the table: all owners but the one that waits are to give regions up, if they have not been asked already.
    fn ask_others(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        from: NodeId,
        out: &mut Outbox,
    ) {
        let mut owners = env.owners.to_vec();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|owner| *owner != from && *owner != NodeId::default());
        let mut of_own = None;
        for owner in owners {
            if self.giving.contains_key(&owner) {
                continue;
            }
            let name = self.draw_id(env.me);
            self.giving.insert(owner, (name, env.now));
            if owner == env.me.node {
                of_own = Some(name);
            } else {
                out.push(RegionEffect::Send(owner, Message::GiveRegions { id: name }));
            }
        }
        // It may answer at once: last, or nobody else would be waited for.
        if let Some(name) = of_own {
            self.on_give(env, log, name, out);
        }
    }

    fn keep(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        (to, id): (NodeId, u64),
        (regions, lsn): (Vec<RegionId>, Option<Lsn>),
        out: &mut Outbox,
    ) {
        self.answers.insert(to, (id, regions.clone(), lsn));
        self.answer(env, log, (to, id), (regions, lsn), out);
    }

    fn answer(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        (to, id): (NodeId, u64),
        (regions, lsn): (Vec<RegionId>, Option<Lsn>),
        out: &mut Outbox,
    ) {
        if to == env.me.node {
            // The table's record and ours are in one journal, in this order.
            self.on_regions(env, log, id, &regions, out);
            return;
        }
        let message = Message::Regions { id, regions };
        out.push(match lsn {
            Some(lsn) => RegionEffect::SendAfter(lsn, to, message),
            None => RegionEffect::Send(to, message),
        });
    }

    /// The table has answered (`Message::Regions`).
    pub fn on_regions(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        id: u64,
        regions: &[RegionId],
        out: &mut Outbox,
    ) {
        let Some(asked) = self.asked.take_if(|asked| asked.id == id) else {
            return;
        };
        let is_of_all_held = asked.nsds.is_empty();
        let mut mine = regions.to_vec();
        if !is_of_all_held {
            self.forget_given(regions);
        } else if let Some((_, given, _)) = &mut self.gave {
            // What it does not name it has heard of.
            given.retain(|region| regions.contains(region));
            mine.retain(|region| !given.contains(region));
            self.refuse(env, id, out);
        }
        let regions = &mine[..];
        let has_room = log.has_room_for_regions();
        if has_room {
            self.is_known |= is_of_all_held;
            log.adopt_regions(regions);
        } else {
            // The table has them as ours: they are learnt of again when there is room.
            (self.is_known, self.must_learn) = (false, true);
        }
        let regions = if has_room { regions } else { &[] };
        // Without room here nothing is known of the table.
        if has_room {
            let given: Vec<NsdId> = regions.iter().map(|region| region.nsd).collect();
            self.layouts.on_regions(env.now, &asked.nsds, &given);
        }
        self.layouts.run_all(out);
        if asked.is_for_pages && has_room {
            log.note_page_regions(asked.is_short, !regions.is_empty());
        }
        if asked.is_for_pages && !regions.is_empty() {
            // There may be more.
            self.pages_pause = PAGES_PAUSE_MIN;
            self.pages_not_before = env.now;
        }
        if let Some(round) = asked.round {
            let mut effects = Vec::new();
            // Others may have given up what nobody can use: then there are none, and what there is will do.
            let is_use = |region: &RegionId| !log.refusing.contains(&region.nsd);
            let is_any = regions.iter().any(is_use);
            self.gather.on_regions(round, is_any, &mut effects);
            self.perform(env, log, effects, out);
        }
        if let Some((round, is_short)) = self.queued.take() {
            self.round(env, log, round, is_short, out);
        }
    }

    /// The table wants regions of this owner for another (`Message::GiveRegions`). Not while an answer of the table
    /// to us may be on its way that names what we would give up: it asks again.
    pub fn on_give(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        name: u64,
        out: &mut Outbox,
    ) {
        if !self.is_known {
            return;
        }
        if self.gave.as_ref().is_some_and(|(last, ..)| *last == name) {
            return self.tell_given(env, log, out);
        }
        if self.has_untold() {
            // First whether it has heard of the last ones: it asks again.
            self.confirm_at = Some(env.now);
            return;
        }
        if self.wanted == Some(name) && self.clearing_for.is_some() {
            // It waits. To recall what lies unused once more would hold up what it waits for.
            return;
        }
        if self.wanted != Some(name) {
            self.wanted_since = env.now;
        }
        self.wanted = Some(name);
        self.clearing_for = None;
        let mut effects = Vec::new();
        let clients = clients(log);
        self.gather
            .begin_give(env.now, name, &clients, &mut effects);
        self.perform(env, log, effects, out);
    }

    /// At the table: an owner has given regions up (`Message::RegionsBack`), as he was asked to, or refuses some of those that the answer
    /// with this name says he holds.
    pub fn on_back(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        from: NodeId,
        (name, regions): (u64, &[RegionId]),
        out: &mut Outbox,
    ) {
        if !log.has_room_for_regions() {
            return;
        }
        let is_asked_for = name & !u64::from(u32::MAX) == life_half(env.me);
        if is_asked_for {
            if self.given.get(&from).is_some_and(|last| *last >= name) {
                return;
            }
            self.given.insert(from, name);
            self.giving
                .retain(|owner, (asked, _)| *owner != from || *asked > name);
        } else if (self.answers.get(&from)).is_none_or(|(last, ..)| *last != name) {
            return;
        }
        log.table_put_back(from, regions);
        self.end_waits(env, log, out);
    }

    /// At the table: those who wait for regions of others get what there is, and where there is nothing hear so when all have answered.
    fn end_waits(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        if !log.has_room_for_regions() {
            return;
        }
        let (mut is_any_taken, mut again) = (false, Vec::new());
        for waiting in std::mem::take(&mut self.waiting) {
            let (from, id) = waiting.of();
            let count = usize::try_from(REGIONS_AT_ONCE).expect("small");
            let taken = log.table_take(from, env.nsds, count);
            // Who waits is not waited for: the others' answers do. The first that gives any is enough.
            let is_over = self.giving.keys().all(|owner| *owner == from);
            match (taken.0.is_empty(), is_over) {
                (true, false) => self.waiting.push(waiting),
                (true, true) if is_any_taken || waiting.is_overtaken => again.push((from, id)),
                _ => {
                    is_any_taken |= !taken.0.is_empty();
                    self.keep(env, log, (from, id), taken, out);
                }
            }
        }
        for waiting in &mut self.waiting {
            waiting.is_overtaken |= is_any_taken;
        }
        // Somebody else had what there was: the owners may have more by now. Not from here: one of them may be about to forget what it gave.
        self.again.extend(again);
    }

    /// Time has passed: what was not answered is said again, and who does not answer is not waited for any longer.
    pub fn on_tick(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        let mut effects = Vec::new();
        let asked = self.asked.as_ref().map(|asked| asked.nsds.as_slice());
        self.layouts
            .on_tick(env.now, asked.unwrap_or_default(), out);
        self.gather.on_tick(env.now, &mut effects);
        self.perform(env, log, effects, out);
        self.take_for_pages(env, log, out);
        let is_time = self.confirm_at.is_some_and(|at| env.now >= at);
        let may_confirm = is_time && self.asked.is_none() && self.is_known;
        if (self.must_learn || may_confirm) && log.has_room_for_regions() {
            self.must_learn = false;
            self.learn(env, log, out);
        }
        if env.is_table()
            && let Some(message) = self.asked.as_ref().map(Asked::message)
        {
            // It found no room in the journal, or waits.
            self.on_take(env, log, env.me.node, &message, out);
        }
        self.giving
            .retain(|_, (_, since)| env.now.since(*since) < GIVE_PATIENCE);
        // In front of those that have asked since they were overtaken.
        let again = std::mem::take(&mut self.again);
        let overtaken = again.iter().copied().map(Waiting::new);
        self.waiting.splice(0..0, overtaken);
        for (from, _) in again {
            self.ask_others(env, log, from, out);
        }
        self.end_waits(env, log, out);
    }

    /// A question to this owner is short of sectors, or of those that a layout wants.
    pub fn gather(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        question: Box<Question>,
        out: &mut Outbox,
    ) {
        if let OfLayout::Lacks(nsds) = &question.of_layout {
            let nsds = nsds.clone();
            return self.await_layout(env, log, question, &nsds, out);
        }
        let mut effects = Vec::new();
        let clients = clients(log);
        self.gather.begin(env.now, question, &clients, &mut effects);
        self.perform(env, log, effects, out);
    }

    /// A client has answered a recall.
    pub fn on_recalled(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        (from, id): (NodeLife, u64),
        out: &mut Outbox,
    ) {
        let mut effects = Vec::new();
        self.gather.on_recalled(from, id, &mut effects);
        self.perform(env, log, effects, out);
    }

    /// A life is over: nothing is recalled from it, and nothing that it asked is answered.
    pub fn on_life_ended(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        life: NodeLife,
        out: &mut Outbox,
    ) {
        // The next life counts its questions anew.
        self.answers.remove(&life.node);
        self.given.remove(&life.node);
        self.giving.remove(&life.node);
        self.waiting.retain(|waiting| waiting.from != life.node);
        self.again.retain(|(from, _)| *from != life.node);
        self.end_waits(env, log, out);
        self.layouts.on_life_ended(life);
        let mut effects = Vec::new();
        self.gather.on_node_lost(life, &mut effects);
        self.perform(env, log, effects, out);
    }

    fn perform(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        effects: Vec<GatherEffect>,
        out: &mut Outbox,
    ) {
        for effect in effects {
            match effect {
                GatherEffect::Recall(life, id) if life == env.me => {
                    out.push(RegionEffect::RecallHere(id));
                }
                GatherEffect::Recall(life, id) => {
                    let message = Message::RecallSpace { id };
                    out.push(RegionEffect::Send(life.node, message));
                }
                GatherEffect::Regions(round, is_short) => {
                    self.round(env, log, round, is_short, out);
                }
                GatherEffect::Run(question) => out.push(RegionEffect::Run(question)),
                GatherEffect::Give(name) => self.give(env, log, name, out),
                GatherEffect::Pages => log.end_recall_for_pages(),
            }
        }
    }

    /// A round wants regions: the question that is under way serves it, or a new one.
    fn round(
        &mut self,
        env: &RegionEnv<'_>,
        log: &mut OwnerLog,
        round: u64,
        is_short: bool,
        out: &mut Outbox,
    ) {
        match &self.asked {
            Some(asked) if asked.round == Some(round) => {}
            Some(_) => self.queued = Some((round, is_short)),
            None => {
                // Of a disk that refuses what is written more would help nobody.
                let is_well = |nsd: &NsdId| !log.refusing.contains(nsd);
                let nsds = env.nsds.iter().copied().filter(is_well).collect();
                self.ask(env, log, (nsds, Some(round), is_short), out);
            }
        }
    }

    /// Gives regions up that nobody here uses, and tells the table when that is durable.
    pub fn give(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, name: u64, out: &mut Outbox) {
        if self.wanted != Some(name) {
            return;
        }
        if log.has_pending_space() || !self.is_known {
            // What was freed a moment ago counts too. And what the table is about to say that we hold may be of before: what is given up now
            // would be taken up again, when somebody else has it.
            out.push(RegionEffect::GiveLater(name));
            return;
        }
        if self.gave.as_ref().is_none_or(|(last, ..)| *last != name) {
            // Since it was asked, not since clients have given back what they had: it is given up itself at some time.
            let (_, since) = *self.clearing_for.get_or_insert((name, self.wanted_since));
            let is_patient = env.now.since(since) < CLEARING_PATIENCE;
            if is_patient && log.awaits_clearing(env.now) {
                out.push(RegionEffect::GiveWhenCleared(name));
                return;
            }
            self.clearing_for = None;
            let (regions, lsn) = log.give_regions();
            self.gave = Some((name, regions, lsn));
        }
        self.tell_given(env, log, out);
    }

    /// An answer to "what do I hold?" may name regions that were given up: the table is to know it, when that is durable.
    fn refuse(&mut self, env: &RegionEnv<'_>, id: u64, out: &mut Outbox) {
        let Some((_, regions, lsn)) = self.gave.clone() else {
            return;
        };
        if regions.is_empty() {
            return;
        }
        let message = Message::RegionsBack { id, regions };
        let lsn = lsn.expect("what was given up has a record");
        out.push(RegionEffect::SendAfter(lsn, env.table_owner(), message));
        self.confirm_at = Some(env.now + CONFIRM_PAUSE);
    }

    fn tell_given(&mut self, env: &RegionEnv<'_>, log: &mut OwnerLog, out: &mut Outbox) {
        let Some((name, regions, lsn)) = self.gave.clone() else {
            return;
        };
        if env.is_table() {
            // One journal: our record stands before the table's.
            self.on_back(env, log, env.me.node, (name, &regions), out);
            if self.given.get(&env.me.node) == Some(&name) {
                self.forget_given(&regions);
            }
            return;
        }
        if !regions.is_empty() {
            self.confirm_at = Some(env.now + CONFIRM_PAUSE);
        }
        let message = Message::RegionsBack { id: name, regions };
        let table_owner = env.table_owner();
        out.push(match lsn {
            Some(lsn) => RegionEffect::SendAfter(lsn, table_owner, message),
            None => RegionEffect::Send(table_owner, message),
        });
    }

    /// What waits for sectors here, and since when, for `gupfs waiters`.
    pub fn waiting(&self) -> impl Iterator<Item = (String, Instant)> {
        [self.gather.waiting(), self.layouts.waiting()]
            .into_iter()
            .flatten()
    }

    /// Rounds of gathering, and recalls sent.
    pub fn counters(&self) -> (u64, u64) {
        self.gather.counters
    }

    /// Nothing is asked and nobody waits.
    pub fn is_idle(&self) -> bool {
        let is_told = self.confirm_at.is_none();
        self.asked.is_none()
            && self.waiting.is_empty()
            && self.again.is_empty()
            && self.waiting().next().is_none()
            && is_told
    }
}

/// Lives that this owner has granted sectors to.
fn clients(log: &OwnerLog) -> Vec<NodeLife> {
    let lives = log.space.lives();
    lives.granted.into_iter().map(|(life, _)| life).collect()
}

#[cfg(test)]
#[path = "regions/tests.rs"]
mod tests;
