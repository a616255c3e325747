//! A client node's dealings with one owner about sectors: what to ask for, what to give back, and when.
//!
//! Invariants
//! - One question at a time is under way; it has a number, and the next one a higher number. So a late
//!   repeat of an older question says nothing, and a run is never given back while the grant that names it
//!   again is on its way.
//! - Runs in a question are in no state of the pool any more: they are the owner's when it executes it.
//! - What lies unused goes back: the reserve follows what was used in the last seconds, down to nothing. What was wished for
//!   stays for a moment, so that who wished for it finds it.
//! - Who asks for sectors for promised ranges has none of these to spare.
//!
//! What this deliberately does not do: send. `next` is called from time to time and when sectors are short;
//! its question is repeated by the caller until the answer comes.

use std::collections::BTreeMap;

use types::{Duration, Grant, Instant, NsdId, Run, wire_struct};

use crate::grants::{GrantPool, NeedMore, Reservation, SetAside};

/// Use is measured over this long.
const PERIOD: Duration = Duration::from_millis(500);
/// Sectors in hand for a node that has just begun to write: 64 MiB.
const BEGIN: u64 = 16 << 10;
/// Most sectors in hand ahead of need: 256 MiB.
const AHEAD_MAX: u64 = 64 << 10;
/// Fewest, while the node writes now and then: 1 MiB.
const AHEAD_MIN: u64 = 256;
/// A node that has taken nothing for so long keeps nothing.
const IDLE: Duration = Duration::from_secs(5);
/// After "there are few" or a recall nothing is asked for ahead of need for so long.
const SHORT: Duration = Duration::from_secs(1);
/// What was wished for lies here for so long: who wished looks for it every few milliseconds.
const WISH_KEPT: Duration = Duration::from_secs(1);
/// Who was refused asks again after so long.
const REFUSED: Duration = Duration::from_millis(100);
/// Who waits for sectors that are on their way asks again after so long.
const SOON: Duration = Duration::from_millis(10);
/// An NSD that the owner had nothing on has nothing for so long: less than what passes between two tries of a store that was refused
/// elsewhere, for something may have been freed there.
const FULL: Duration = Duration::from_millis(250);
/// Sectors given back at once because they lie unused: fewer are not worth a message.
const SURPLUS_MIN: u64 = 1024;
/// Runs in one question.
pub const BACK_RUN_COUNT_MAX: usize = 1024;

/// A question to an owner about sectors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpaceAsk {
    /// Grows with each question of this life to this owner.
    pub number: u64,
    /// Sectors that acknowledged or waiting writes need now.
    pub need: u64,
    /// Sectors that writes into promised ranges wait for: all of them, or none of these comes.
    pub promised: u64,
    /// Sectors wanted, `need` and `promised` among them.
    pub want: u64,
    /// On these NSDs if they have room; empty: on all.
    pub nsds: Vec<NsdId>,
    /// Given back: never submitted, or submitted, ended, and in no file.
    pub back: Vec<Run>,
    /// The recall that this answers; 0: none.
    pub recall: u64,
    /// Say what is granted to this life: answers may have been lost with the owner's process.
    pub list: bool,
}
wire_struct!(SpaceAsk {
    number,
    need,
    promised,
    want,
    nsds,
    back,
    recall,
    list
});

/// The owner's answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SpaceAnswer {
    /// The question.
    pub number: u64,
    /// Granted, and durably so.
    pub grants: Vec<Grant>,
    /// So many of these sectors are for writes into promised ranges alone.
    pub promised: u64,
    /// Everything that is granted to the life, if it was asked.
    pub held: Option<Vec<Run>>,
}
wire_struct!(SpaceAnswer {
    number,
    grants,
    promised,
    held
});

/// Counted since the beginning of the life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HandCounters {
    /// Questions answered.
    pub asks: u64,
    /// Sectors granted.
    pub granted: u64,
    /// Unused sectors given back.
    pub returned: u64,
    /// Sectors given back that were written once and belong to no file.
    pub spent: u64,
    /// Sectors ever burnt.
    pub burnt: u64,
    /// Recalls answered.
    pub recalls: u64,
    /// Answers that had fewer sectors than were needed.
    pub short: u64,
}

/// What a node has of one owner.
#[derive(Debug, Default)]
pub struct Hand {
    pool: GrantPool,
    reservation: Reservation,
    number: u64,
    asked: Option<SpaceAsk>,
    need: u64,
    /// The smallest and the largest number of sectors that something in a promised range waits for.
    need_promised: Option<(u64, u64)>,
    /// The smallest is asked for next: there were too few for the largest.
    asks_smallest: bool,
    /// When sectors for promised ranges came last.
    promised_at: Instant,
    /// Sectors that work in the background could use.
    wish: u64,
    /// What was wished for last, and until when it is no surplus.
    kept: u64,
    kept_until: Instant,
    /// NSDs of a file's layout on which little or nothing is left in hand: asked for next.
    short: Vec<NsdId>,
    short_need: u64,
    /// NSDs on which the owner had nothing when it was asked last: layouts do without them. Until when that is believed, from the first time
    /// that somebody has gone by it: whoever was told so must not have to ask again.
    full: BTreeMap<NsdId, Option<Instant>>,
    recall: u64,
    wants_list: bool,
    period_begin: Instant,
    used: u64,
    rate: u64,
    last_use: Option<Instant>,
    short_until: Instant,
    refused_until: Instant,
    recalled_until: Instant,
    counters: HandCounters,
}

impl Hand {
    /// Nothing in hand.
    pub fn new() -> Self {
        Self::default()
    }

    /// The sectors.
    pub const fn pool(&self) -> &GrantPool {
        &self.pool
    }

    /// What was done.
    pub const fn counters(&self) -> HandCounters {
        self.counters
    }

    /// Sets room for `sectors` data sectors aside.
    ///
    /// # Errors
    /// Not enough in hand: call `want`, then `next`.
    pub fn reserve(&mut self, sectors: u64) -> Result<(), NeedMore> {
        let more = self.pool.reserve(sectors)?;
        self.reservation.merge(more);
        Ok(())
    }

    /// As `reserve`, for a write into promised ranges that finds nothing else in hand. False: asked for with `next`.
    pub fn reserve_promised(&mut self, sectors: u64) -> bool {
        match self.pool.reserve_promised(sectors) {
            Ok(more) => {
                self.reservation.merge(more);
                self.found_promised(sectors);
            }
            Err(_) => {
                self.want_promised(sectors);
                return false;
            }
        }
        true
    }

    /// What waits for so many sectors for promised ranges has found some: if nothing else does, none are asked for.
    pub fn found_promised(&mut self, sectors: u64) {
        self.need_promised
            .take_if(|need| *need == (sectors, sectors));
    }

    fn want_promised(&mut self, sectors: u64) {
        let (smallest, largest) = self.need_promised.unwrap_or((sectors, sectors));
        self.need_promised = Some((smallest.min(sectors), largest.max(sectors)));
        self.rate = self.rate.max(BEGIN / 2);
    }

    /// Sectors set aside for flushes to come.
    pub fn reserved(&self) -> u64 {
        self.reservation.sectors()
    }

    /// Gives room back that was reserved.
    pub fn unreserve(&mut self, part: SetAside) {
        let part = self.reservation.split(part);
        self.pool.release(part);
    }

    /// Lets `plan` take `needed` sectors out of the pool: those reserved for it, and others; for a promised range
    /// (`is_promised`) also of what is for these. `None`: not enough, nothing was taken; they are asked for with `next`.
    pub fn take<T>(
        &mut self,
        now: Instant,
        (needed, is_promised): (u64, bool),
        reserved: SetAside,
        plan: impl FnOnce(&mut GrantPool, &mut Reservation) -> T,
    ) -> Option<T> {
        let there = self.reservation.aside();
        assert!(is_promised || reserved.promised == 0);
        let reserved = SetAside {
            plain: reserved.plain.min(there.plain),
            promised: reserved.promised.min(there.promised),
        };
        let mut part = self.reservation.split(reserved);
        if part.sectors() < needed {
            let missing = needed - part.sectors();
            let mut more = self.pool.reserve(missing);
            if more.is_err() && is_promised {
                more = self.pool.reserve_promised(missing);
            }
            match more {
                Ok(more) => {
                    part.merge(more);
                    if is_promised {
                        self.found_promised(missing);
                    }
                }
                Err(_) => {
                    self.reservation.merge(part);
                    match is_promised {
                        true => self.want_promised(missing),
                        false => self.want(needed + needed / 16 + 1),
                    }
                    return None;
                }
            }
        }
        let planned = plan(&mut self.pool, &mut part);
        self.pool.release(part);
        self.used += needed;
        self.last_use = Some(now);
        Some(planned)
    }

    /// The owner has committed the run to a file.
    pub fn committed(&mut self, run: Run) {
        self.pool.committed(run);
    }

    /// The outcome of a write to the run is unknown.
    pub fn burn(&mut self, run: Run) {
        self.counters.burnt += u64::from(run.count);
        self.pool.burn(run);
    }

    /// A write to the run has ended, and no file has it: it goes back with the next question.
    pub fn discard(&mut self, run: Run) {
        self.pool.discard(run);
    }

    /// What of the run was neither committed nor burnt goes back.
    pub fn discard_rest(&mut self, run: Run) {
        self.pool.discard_rest(run);
    }

    /// The writes of burnt runs for which `has_ended` holds are known to have ended.
    pub fn ended(&mut self, mut has_ended: impl FnMut(&Run) -> bool) {
        for run in self.pool.burnt_runs() {
            if has_ended(&run) {
                self.pool.ended(run);
            }
        }
    }

    /// A write waits for this many sectors.
    pub fn want(&mut self, sectors: u64) {
        self.need = self.need.max(sectors);
        // Who has just begun to write will soon want more.
        self.rate = self.rate.max(BEGIN / 2);
    }

    /// Work that nobody waits for could use so many: asked for if the owner has them at hand, without that anybody is
    /// made to give some back. Say it again if that helps nothing.
    pub fn wish(&mut self, sectors: u64) {
        self.wish = self.wish.max(sectors);
    }

    /// Whether `needed` sectors can be taken on the NSDs that a file's layout names (none: anywhere); notes where
    /// they are short. NSDs that the owner has nothing on do not count: then the bytes go elsewhere.
    pub fn has_room_on(&mut self, now: Instant, mut named: Vec<NsdId>, needed: u64) -> bool {
        named.retain(|nsd| match self.full.get_mut(nsd) {
            Some(until) => now >= *until.get_or_insert(now + FULL),
            None => true,
        });
        if named.is_empty() {
            return true;
        }
        let is_there = self.pool.has_room_on(&named, needed);
        if self.pool.free_on(&named) < needed + BEGIN / 2 {
            self.short = named;
            self.short_need = needed;
            self.rate = self.rate.max(BEGIN / 2);
        }
        is_there
    }

    /// A question should be asked soon.
    pub fn is_low(&self, now: Instant) -> bool {
        let is_low = self.pool.unreserved() < self.target(now) / 2 && now >= self.short_until;
        self.asked.is_none() && (is_low || !self.short.is_empty())
    }

    /// The owner needs what lies unused here: the next question gives it back and names `recall`.
    pub fn on_recall(&mut self, now: Instant, recall: u64) {
        self.recall = recall;
        self.recalled_until = now + SHORT;
    }

    /// The owner's process began anew: answers may have been lost with the old one.
    pub fn on_owner_restarted(&mut self) {
        self.wants_list = self.number > 0;
    }

    /// Sectors to have in hand ahead of need.
    fn target(&self, now: Instant) -> u64 {
        let is_idle = self.last_use.is_none_or(|last| now.since(last) > IDLE);
        if is_idle || now < self.recalled_until {
            return 0;
        }
        (self.rate * 2).clamp(AHEAD_MIN, AHEAD_MAX)
    }

    /// Sectors that lie here for who wished for them; none where others need them.
    fn kept_at(&self, now: Instant) -> u64 {
        let is_kept = now < self.kept_until && now >= self.recalled_until;
        if is_kept { self.kept + AHEAD_MIN } else { 0 }
    }

    /// The next question, if one is due and none is under way.
    pub fn next(&mut self, now: Instant) -> Option<SpaceAsk> {
        if now.since(self.period_begin) >= PERIOD {
            self.rate = self.used.max(self.rate / 2);
            self.used = 0;
            self.period_begin = now;
        }
        if self.asked.is_some() || now < self.refused_until {
            return None;
        }
        let target = self.target(now);
        let in_hand = self.pool.unreserved();
        let mut ask = SpaceAsk {
            need: std::mem::take(&mut self.need),
            ..SpaceAsk::default()
        };
        if let Some((smallest, largest)) = self.need_promised.take() {
            let needs = if self.asks_smallest {
                [smallest, largest]
            } else {
                [largest; 2]
            };
            // What is in hand has come since.
            let is_missing =
                |need: &u64| *need > self.pool.unreserved_promised() && !self.pool.has(*need);
            ask.promised = needs.into_iter().find(is_missing).unwrap_or_default();
        }
        let needed = ask.need + ask.promised;
        if needed > 0 {
            self.last_use = Some(now);
            let is_short = now < self.short_until.max(self.recalled_until);
            ask.want = needed + if is_short { 0 } else { target.max(BEGIN) };
        } else if in_hand < target / 2 && now >= self.short_until {
            ask.want = target - in_hand;
        }
        let wish = std::mem::take(&mut self.wish);
        if wish > 0 {
            (self.kept, self.kept_until) = (wish, now + WISH_KEPT);
        }
        if wish > in_hand && now >= self.short_until.max(self.recalled_until) {
            self.last_use = Some(now);
            ask.want = ask.want.max(wish + AHEAD_MIN - in_hand);
        }
        if !self.short.is_empty() {
            self.last_use = Some(now);
            ask.nsds = std::mem::take(&mut self.short);
            ask.want = ask.want.max(needed + self.short_need + BEGIN);
        }
        let is_recalled = self.recall != 0;
        let surplus = if is_recalled && needed == 0 {
            in_hand
        } else if ask.want > 0 {
            0
        } else {
            in_hand.saturating_sub((target * 2).max(self.kept_at(now)))
        };
        let is_surplus = surplus >= SURPLUS_MIN || (target == 0 && surplus > 0);
        if is_recalled || is_surplus {
            let runs = self.pool.give_up(surplus, BACK_RUN_COUNT_MAX);
            self.counters.returned += runs.iter().map(|r| u64::from(r.count)).sum::<u64>();
            ask.back = runs;
        }
        // What was granted for promised ranges and is not used soon is others'. And who needs more of it waits with empty
        // hands, and asks for all: two that each kept what is too little would wait for one another.
        let is_idle = now.since(self.promised_at) > SHORT;
        if self.pool.unreserved_promised() > 0 && (ask.promised > 0 || is_recalled || is_idle) {
            let room = BACK_RUN_COUNT_MAX - ask.back.len();
            let runs = self.pool.give_up_promised(room);
            let count = runs.iter().map(|r| u64::from(r.count)).sum::<u64>();
            self.counters.returned += count;
            ask.back.extend(runs);
        }
        let room = BACK_RUN_COUNT_MAX - ask.back.len();
        let spent = self.pool.take_spent(room);
        self.counters.spent += spent.iter().map(|r| u64::from(r.count)).sum::<u64>();
        ask.back.extend(spent);
        ask.recall = std::mem::take(&mut self.recall);
        self.counters.recalls += u64::from(is_recalled);
        ask.list = std::mem::take(&mut self.wants_list);
        let is_due = ask.want > 0 || !ask.back.is_empty() || is_recalled || ask.list;
        if !is_due {
            return None;
        }
        self.number += 1;
        ask.number = self.number;
        self.asked = Some(ask.clone());
        Some(ask)
    }

    /// An answer. `None`: it is not to the question under way. Else: whether what was needed has come.
    pub fn on_answer(&mut self, now: Instant, answer: &SpaceAnswer) -> Option<bool> {
        let asked = self.asked.take_if(|ask| ask.number == answer.number)?;
        self.counters.asks += 1;
        let has = |nsd: &NsdId| answer.grants.iter().any(|grant| grant.run.at.nsd == *nsd);
        self.full.retain(|nsd, _| !has(nsd));
        if !asked.nsds.iter().any(has) {
            self.full.extend(asked.nsds.iter().map(|nsd| (*nsd, None)));
        }
        let mut granted = 0;
        for grant in &answer.grants {
            if self.pool.add(grant) {
                granted += u64::from(grant.run.count);
            }
        }
        self.counters.granted += granted;
        if answer.promised > 0 {
            self.pool.keep_promised(answer.promised.min(granted));
            self.promised_at = now;
        }
        if let Some(held) = &answer.held {
            for run in self.pool.unknown(held) {
                self.pool.adopt_spent(run);
            }
        }
        let is_enough = granted >= asked.need + asked.promised;
        if asked.promised > 0 {
            let has_come = is_enough || answer.promised >= asked.promised;
            self.asks_smallest = !has_come && !self.asks_smallest;
        }
        // The owner has little: what is in hand stays, but it is not asked again and again.
        if !is_enough || granted < asked.want / 8 {
            self.short_until = now + SHORT;
        }
        self.counters.short += u64::from(!is_enough);
        Some(is_enough)
    }

    /// The question under way was refused: what it gave back is tried again with the next one, after a while. Who refuses
    /// for want of room in its journal, or because that has failed, refuses again at once.
    pub fn on_refused(&mut self, now: Instant) {
        self.refused_until = now + REFUSED;
        if let Some(asked) = self.asked.take() {
            // The owner may have taken these all the same, and grant them anew.
            self.wants_list |= !asked.back.is_empty();
            for run in asked.back {
                self.pool.adopt_spent(run);
            }
            self.wants_list |= asked.list;
        }
    }

    /// What is asked for now will be there soon: the next question waits for a while.
    pub fn ask_later(&mut self, now: Instant) {
        self.refused_until = self.refused_until.max(now + SOON);
    }

    /// The next question answers a recall.
    pub const fn is_recalled(&self) -> bool {
        self.recall != 0
    }

    /// When sectors were taken or needed last; never: none. For `gupfs dump space`.
    pub const fn idle_since(&self) -> Option<Instant> {
        self.last_use
    }

    /// A question is under way whose sectors somebody waits for.
    pub fn needs_answer(&self) -> bool {
        let needs = |ask: &SpaceAsk| ask.need + ask.promised > 0;
        self.asked.as_ref().is_some_and(needs)
    }

    /// Sectors that the question under way needs at once; none: nobody waits for it.
    pub fn asked_need(&self) -> u64 {
        self.asked.as_ref().map_or(0, |ask| ask.need)
    }

    /// Somebody waits for sectors that no question has asked for yet.
    pub const fn has_need(&self) -> bool {
        self.need > 0 || self.need_promised.is_some()
    }

    /// A question is under way.
    pub const fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// Asserts the invariants; O(runs).
    pub fn check(&self) {
        self.pool.check();
        assert!(self.reservation.sectors() <= self.pool.counts().free);
    }
}

#[cfg(test)]
#[path = "hand/tests.rs"]
mod tests;
