//! All free sectors in a client node's hands, by the owner that granted them.
//!
//! Invariants
//! - What a write of unknown outcome was sent to is in `doubts` until its store says how it ended: then it is burnt,
//!   and everything else of the store goes back.
//! - Nobody hears that an owner has too few sectors while work that nobody waits for has some of it (`spare`), within limits.
//! - Nothing is put on an NSD that refused something a moment ago, while sectors can be had on others.
//! - A hand is asked for its next question whenever something in it has changed, and from time to time.
//!
//! What this deliberately does not do: send. The driver asks (`next`) and brings the answer (`on_answer`).

mod spare;

use std::collections::{BTreeMap, BTreeSet};

use client::env::{SpaceNews, TakenRun, WantedRun};
use client::message::{Answer, Body};
use data::stripe::Striping;
use data::write::{Dirty, plan_write};
use data::{Hand, SectorSet, SetAside, SpaceAsk};
use types::{Duration, Errno, Instant, Layout, NodeId, NsdId, Run, SECTOR_SIZE};

use crate::refusing::Refusing;
use spare::Spare;

/// See the module.
#[derive(Debug)]
pub struct Hands {
    owners: BTreeMap<NodeId, Hand>,
    /// Sectors of writes without an answer, until their store is burnt.
    doubts: SectorSet,
    spare: Spare,
    /// What the question that was answered last had needed.
    needs: BTreeMap<NodeId, u64>,
    /// Owners and servers that are no members: nothing is begun that can wait.
    away: BTreeSet<NodeId>,
    nsds: Vec<NsdId>,
    striping: Striping,
    refusing: Refusing,
}

impl Hands {
    /// Nothing in hand of a file system of these NSDs, striped over all of them in blocks of so many bytes.
    pub fn new(nsds: &[NsdId], block_size: u32) -> Self {
        Self {
            owners: BTreeMap::new(),
            doubts: SectorSet::new(),
            spare: Spare::default(),
            needs: BTreeMap::new(),
            away: BTreeSet::new(),
            nsds: nsds.to_vec(),
            striping: Striping::even(nsds, block_size),
            refusing: Refusing::default(),
        }
    }

    /// The hand of an owner.
    pub fn of(&mut self, owner: NodeId) -> &mut Hand {
        self.owners.entry(owner).or_default()
    }

    /// Each owner's hand.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &Hand)> {
        self.owners.iter().map(|(owner, hand)| (*owner, hand))
    }

    /// A write to this NSD, or a flush of it, was refused. Some: for so long others are taken, where there are some.
    pub fn note_refusing(&mut self, now: Instant, nsd: NsdId) -> Option<Duration> {
        self.refusing.note(now, nsd)
    }

    /// NSDs that nothing is put on now.
    pub fn avoided(&mut self, now: Instant) -> Vec<NsdId> {
        self.refusing.avoided(now).collect()
    }

    /// The NSDs that a file of this layout is put on; none: on all. Whether others are left out because they refuse.
    fn wanted_nsds(&mut self, now: Instant, layout: &Layout) -> (Vec<NsdId>, bool) {
        let named = self.named(layout);
        let avoided = self.avoided(now);
        let wanted = if named.is_empty() { &self.nsds } else { &named };
        if !wanted.iter().any(|nsd| avoided.contains(nsd)) {
            return (named, false);
        }
        let others = |nsds: &[NsdId]| -> Vec<NsdId> {
            let all = nsds.iter().copied();
            all.filter(|nsd| !avoided.contains(nsd)).collect()
        };
        let all = [&named, &self.nsds].map(|nsds| others(nsds));
        match all.into_iter().find(|others| !others.is_empty()) {
            Some(others) => (others, true),
            None => (named, false),
        }
    }

    /// How a file of this layout is striped over `named`; the default's is at hand.
    fn striping_of(&self, layout: &Layout, named: &[NsdId]) -> Option<Striping> {
        if layout.is_default() && named.is_empty() {
            return None;
        }
        let nsds = if named.is_empty() { &self.nsds } else { named };
        let block_size = self.striping.block_sectors() * u32::try_from(SECTOR_SIZE).expect("4096");
        let block_size = layout.block_size().unwrap_or(block_size);
        Some(Striping::even(nsds, block_size))
    }

    /// The NSDs that the layout names and that are there.
    fn named(&self, layout: &Layout) -> Vec<NsdId> {
        let nsds = layout.nsds().iter().copied();
        nsds.filter(|nsd| self.nsds.contains(nsd)).collect()
    }

    /// `Grants::reserve`.
    pub fn reserve(&mut self, owner: NodeId, sectors: u64) -> bool {
        let hand = self.of(owner);
        hand.reserve(sectors)
            .map_err(|more| hand.want(more.sectors))
            .is_ok()
    }

    /// This owner, or server of NSDs, is not in the cluster, or about to leave it; or it is there.
    pub fn set_away(&mut self, node: NodeId, is_away: bool) {
        match is_away {
            true => self.away.insert(node),
            false => self.away.remove(&node),
        };
    }

    /// Owners and servers for which nothing is begun that can wait.
    pub fn away(&self) -> impl Iterator<Item = NodeId> {
        self.away.iter().copied()
    }

    /// `Grants::reserve_spare`. None while some owner or server is away: what lies well where it is would be dirty until that is back,
    /// for sectors lie on all NSDs, and counted as lost if this node stops before.
    pub fn reserve_spare(&mut self, owner: NodeId, sectors: u64) -> bool {
        if !self.away.is_empty() {
            return false;
        }
        let hand = self.of(owner);
        let unreserved = hand.pool().unreserved();
        hand.reserve(sectors)
            .map_err(|more| hand.wish(unreserved + more.sectors))
            .is_ok()
    }

    /// `Grants::reserve_promised`.
    pub fn reserve_promised(&mut self, owner: NodeId, sectors: u64) -> Option<SetAside> {
        let hand = self.of(owner);
        if hand.reserve(sectors).is_ok() {
            hand.found_promised(sectors);
            return Some(SetAside::plain(sectors));
        }
        hand.reserve_promised(sectors).then_some(SetAside {
            plain: 0,
            promised: sectors,
        })
    }

    /// `Grants::unreserve`.
    pub fn unreserve(&mut self, owner: NodeId, part: SetAside) {
        if part.sectors() > 0 {
            self.of(owner).unreserve(part);
        }
    }

    /// An owner has too few sectors, and all slices are told so: they say what comes back (`note_returning`).
    pub fn begin_scarce(&mut self, owner: NodeId) {
        self.spare.begin_telling(owner);
    }

    /// `Grants::note_returning`.
    pub fn note_returning(&mut self, owner: NodeId, sectors: u64) {
        self.spare.note_returning(owner, sectors);
    }

    /// `Grants::take`: sectors for dirty runs of one file.
    pub fn take(
        &mut self,
        now: Instant,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let needed: u64 = wanted.iter().map(|w| u64::from(w.count)).sum();
        // All of one file.
        let layout = wanted.first().map_or_else(Layout::default, |w| w.layout);
        let (named, is_avoiding) = self.wanted_nsds(now, &layout);
        let striping = self.striping_of(&layout, &named);
        let dirty: Vec<Dirty<'_>> = wanted
            .iter()
            .map(|w| Dirty {
                ino: w.ino,
                striping: striping.as_ref().unwrap_or(&self.striping),
                file_sector: w.file_sector,
                count: w.count,
            })
            .collect();
        let hand = self.owners.entry(owner).or_default();
        if !hand.has_room_on(now, named, needed) {
            if is_avoiding {
                // The owner gathers some for it, from others too, where it has only such as are refused.
                hand.want(needed + needed / 16 + 1);
            }
            return None;
        }
        let is_promised = wanted.iter().all(|run| run.is_promised);
        let writes = hand.take(now, (needed, is_promised), reserved, |pool, part| {
            plan_write(&dirty, pool, part)
        })?;
        let pieces = writes.into_iter().flat_map(|write| write.pieces);
        let taken = pieces.map(|piece| TakenRun {
            wanted: piece.dirty,
            file_sector: piece.file_sector,
            count: piece.data,
            run: Run {
                at: piece.at,
                count: piece.data + piece.checksums,
            },
        });
        Some(taken.collect())
    }

    /// `Grants::take_spare`. None while some NSD refuses what is written: nobody waits for it.
    pub fn take_spare(
        &mut self,
        now: Instant,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>> {
        let needed: u64 = wanted.iter().map(|w| u64::from(w.count)).sum();
        let layout = wanted.first().map_or_else(Layout::default, |w| w.layout);
        let named = self.named(&layout);
        let is_complete = named.len() == layout.nsds().len() && self.avoided(now).is_empty();
        let hand = self.of(owner);
        // It also notes where they are short.
        let is_there = hand.has_room_on(now, named.clone(), needed)
            && (named.is_empty() || hand.pool().has_room_on(&named, needed));
        if !is_complete || !is_there {
            hand.unreserve(reserved);
            return None;
        }
        let Some(taken) = self.take(now, owner, wanted, reserved) else {
            self.of(owner).unreserve(reserved);
            return None;
        };
        let is_named = |run: &TakenRun| named.is_empty() || named.contains(&run.run.at.nsd);
        if taken.iter().all(is_named) {
            taken.iter().for_each(|run| self.spare.take(owner, run.run));
            return Some(taken);
        }
        // Too scattered to lie there. Nothing was written to them.
        let hand = self.of(owner);
        taken.iter().for_each(|run| hand.discard(run.run));
        None
    }

    /// `Grants::committed`.
    pub fn committed(&mut self, owner: NodeId, runs: &[Run]) {
        self.spare.end(owner, runs);
        if runs.is_empty() {
            // All of it went into metadata.
            self.spare.note_return(owner);
        }
        let hand = self.of(owner);
        runs.iter().for_each(|run| hand.committed(*run));
    }

    /// `Grants::burn`: a store of these runs has failed, and some of its writes may still be on their way.
    pub fn burn(&mut self, owner: NodeId, runs: &[Run]) {
        self.spare.end(owner, runs);
        for run in runs {
            // A store has several writes: those that were answered have ended.
            let found = self.doubts.intersection(*run);
            found.iter().for_each(|part| self.doubts.remove(*part));
            match found.is_empty() {
                true => self.of(owner).discard(*run),
                false => self.of(owner).burn(*run),
            }
        }
    }

    /// `Grants::discard`.
    pub fn discard(&mut self, owner: NodeId, runs: &[Run]) {
        self.spare.end(owner, runs);
        let hand = self.of(owner);
        runs.iter().for_each(|run| hand.discard(*run));
    }

    /// What of these runs was neither committed nor burnt goes back.
    pub fn discard_rest(&mut self, owner: NodeId, runs: &[Run]) {
        let hand = self.of(owner);
        runs.iter().for_each(|run| hand.discard_rest(*run));
    }

    /// A write to these sectors has no answer, and will have none.
    pub fn in_doubt(&mut self, run: Run) {
        self.doubts.insert(run);
    }

    /// The process that served these NSDs has ended, and with it every write that it was sent.
    pub fn server_ended(&mut self, nsds: &[NsdId]) {
        for hand in self.owners.values_mut() {
            hand.ended(|run| nsds.contains(&run.at.nsd));
        }
    }

    /// What there is to ask an owner now, if no question to it is under way.
    pub fn next(&mut self, now: Instant, owner: NodeId) -> Option<SpaceAsk> {
        let hand = self.of(owner);
        // What lies unused is wanted now, whatever else will come.
        let counts = hand.pool().counts();
        let has_some = hand.pool().has(1) || counts.promised > 0 || counts.spent > 0;
        // Who needs some himself is not kept from asking.
        let has_need = hand.has_need();
        if hand.is_recalled() && !has_some && self.spare.holds_up(now, owner, has_need) {
            return None;
        }
        self.spare.end_holding(owner);
        self.of(owner).next(now)
    }

    /// The owner's answer. `None`: to an older question. Else what the client's slices are told; and `next` may have more to
    /// ask. Where there are too few, work that nobody waits for is to give back what it has, and then `is_worth_waiting` to
    /// be asked.
    pub fn on_answer(&mut self, now: Instant, owner: NodeId, answer: &Answer) -> Option<SpaceNews> {
        let hand = self.of(owner);
        let (was_needed, need) = (hand.needs_answer(), hand.asked_need());
        let news = match &answer.body {
            Body::Space(answer) => match hand.on_answer(now, answer)? {
                true => SpaceNews::There,
                false => SpaceNews::None(Errno::ENOSPC),
            },
            body => {
                hand.on_refused(now);
                refused(body)
            }
        };
        // An answer to what nobody waited for says nothing of those who do.
        if news == SpaceNews::There && was_needed {
            self.spare.end_wait(owner);
        }
        self.needs.insert(owner, need);
        Some(news)
    }

    /// The owner has too few sectors. True: nobody hears so yet, but all who wait for some ask again, because some are on
    /// their way back to it.
    pub fn is_worth_waiting(&mut self, now: Instant, owner: NodeId) -> bool {
        let pool = self.of(owner).pool();
        let (has_spent, in_hand) = (pool.counts().spent > 0, pool.unreserved());
        let missing = self
            .needs
            .get(&owner)
            .map_or(0, |need| need.saturating_sub(in_hand));
        let is_worth = (self.spare).is_worth_waiting(now, owner, has_spent, missing);
        if is_worth {
            self.of(owner).ask_later(now);
        }
        is_worth
    }

    /// Sectors in hand and not reserved.
    pub fn unreserved(&self) -> u64 {
        self.owners.values().map(|h| h.pool().unreserved()).sum()
    }

    /// Sectors set aside for flushes to come.
    pub fn reserved(&self) -> u64 {
        self.owners.values().map(Hand::reserved).sum()
    }

    /// Sectors that will soon be in use: set aside for flushes to come, being written, or written and not committed; and those of which
    /// nobody knows.
    pub fn coming(&self) -> u64 {
        let counts = self.owners.values().map(|hand| hand.pool().counts());
        counts.map(|c| c.reserved + c.taken + c.burnt).sum()
    }

    /// Asserts what holds of every hand.
    pub fn check(&self) {
        self.owners.values().for_each(Hand::check);
    }
}

/// What a refusal says. An owner that has run the question too often (EAGAIN), or is not the owner any more (ESTALE), has not
/// said that there are no sectors.
const fn refused(body: &Body) -> SpaceNews {
    match body {
        Body::Refused(Errno::EAGAIN | Errno::ESTALE) => SpaceNews::Unknown,
        Body::Refused(errno) => SpaceNews::None(*errno),
        _ => SpaceNews::None(Errno::EPROTO),
    }
}

#[cfg(test)]
#[path = "hands/tests.rs"]
mod tests;
