//! The gate of a file: parks and serves its requests and drives revokes to their release (rules R2 to R6, R8, R9, R12).
//!
//! Invariants:
//! - a ticket is in service, or parked, or unknown; never two of these;
//! - a revoke is released only when nothing in service overlaps it, every page of its scope has been notified
//!   since it was last READ (twice, if mappings may be writable), and its last flush began after that;
//! - no page of a parked page-cache READ is in a notification that was begun after it was parked;
//! - a write-back is never parked while a revoke or a drop is under way, of whatever pages;
//! - while bytes are on their way into the page cache (`begin_fill`) nothing is notified, no token goes and nothing changes them.
//!
//! Life cycle of a revoke: `Draining` -> `Notifying` -> `Draining` -> .. -> `Flushing` -> `Leaving` -> released (or back
//! to `Draining`, if something had to be served meanwhile). From the third pass on a flush lies between two passes.
//!
//! Caller's duties: a gate exists while the inode has a revoke, a lapse, a parked request or a request that is
//! not finished within one hold of the slice lock. A request that is finished under the lock (all its bytes
//! taken from or put into the pagepool) needs `on_request` only if a gate exists, and then `on_served` at once; its
//! answer may be written later: until then its folios are locked, so a notification waits for it.

use types::{ByteRange, RangeSet};

use super::{
    AttributesGo, Effect, Failure, FlushOutcome, GateRequest, NotifyId, Outbox, RequestKind,
    RevokeId, Rules, Scope, Verdict, Waiter, round_out,
};
use crate::request::Ticket;

#[derive(Clone, Copy, Debug)]
struct Entry {
    ticket: Ticket,
    kind: RequestKind,
    range: ByteRange,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum State {
    /// Waits until nothing in service overlaps.
    Draining,
    /// These notifications have not returned.
    Notifying(Vec<(NotifyId, Option<ByteRange>)>),
    /// The caller flushes.
    Flushing,
    /// Done but for a notification of another revoke that covers a page of this one: its folios may be locked by
    /// a READ that only the old token can serve (R2).
    Leaving,
}

#[derive(Debug)]
struct Revoke {
    id: RevokeId,
    scope: Scope,
    state: State,
    /// Pages to notify in the next pass: never yet, or READ since.
    due: RangeSet,
    /// Pages to notify once more (R6).
    again: RangeSet,
    /// Pages that the release of another revoke has taken out of `due`.
    gone: RangeSet,
    /// Attributes were not yet notified.
    attributes_due: bool,
    /// Kernel pages of demoted bytes go too: mappings may be writable, or became so meanwhile.
    drops_demoted: bool,
    /// Passes begun.
    pass_count: u32,
    /// Flushed since the last pass, though another one is due.
    has_paused: bool,
    is_data_lost: bool,
}

/// After so many passes each further one comes after a flush. Who uses a mapped page all the time wants it back as soon
/// as it is dropped: if the next pass begins at once, his READ must be served during it (R2), and so on without end.
/// While the flush runs nothing is notified, so the READ is parked, and the next pass leaves its page out (R3).
const PASSES_MAX: u32 = 2;

impl Revoke {
    /// Pages have to be notified before the token may go.
    fn wants_pass(&self) -> bool {
        !self.due.is_empty() || !self.again.is_empty()
    }
}

/// Pages that the kernel is told to drop while their token stays.
#[derive(Debug)]
struct Drop {
    id: RevokeId,
    pages: RangeSet,
    outstanding: Vec<(NotifyId, ByteRange)>,
    /// Pages to notify in the next pass: never yet, or READ since.
    due: RangeSet,
    /// Pages to notify once more (R6).
    again: RangeSet,
    /// Before mappings may be writable for the first time (`begin_clearing`).
    is_clearing: bool,
    /// It is over after these, whose pages may be under read tokens too.
    after: Vec<RevokeId>,
}

impl Drop {
    fn is_notified(&self) -> bool {
        self.outstanding.is_empty() && self.due.is_empty() && self.again.is_empty()
    }
}

#[derive(Debug)]
struct Lapse {
    /// The lease is over and the tokens may come back with it: requests wait. Else they are gone, and it fails them.
    is_suspended: bool,
    outstanding: Vec<(NotifyId, ByteRange)>,
    pass_count_left: u8,
    /// The kernel holds nothing of the inode but pages that wait to be READ.
    is_dropped: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    rules: Rules,
    is_mappable: bool,
    serving: Vec<Entry>,
    parked: Vec<Entry>,
    revokes: Vec<Revoke>,
    drops: Vec<Drop>,
    lapse: Option<Lapse>,
    /// Notifications of a suspension that ended before they returned.
    late: Vec<(NotifyId, ByteRange)>,
    /// Between `begin_fill` and `end_fill`.
    is_filling: bool,
    notify_next: u64,
}

impl Gate {
    /// A gate with nothing in it. `is_mappable`: see `set_mappable`.
    pub const fn new(rules: Rules, is_mappable: bool) -> Self {
        Self {
            rules,
            is_mappable,
            serving: Vec::new(),
            parked: Vec::new(),
            revokes: Vec::new(),
            drops: Vec::new(),
            lapse: None,
            late: Vec::new(),
            is_filling: false,
            notify_next: 0,
        }
    }

    /// Nothing is in service or parked and no revoke or lapse is under way: the gate may be dropped.
    pub const fn is_idle(&self) -> bool {
        self.serving.is_empty()
            && self.parked.is_empty()
            && self.revokes.is_empty()
            && self.drops.is_empty()
            && self.lapse.is_none()
            && self.late.is_empty()
            && !self.is_filling
    }

    /// Bytes of the file, taken from the pagepool under the tokens of now, are being put into the kernel's page cache
    /// (rule R13): until `end_fill` no token goes and nothing is notified, for what would arrive after that would stay; and
    /// who changes bytes or the size waits. The caller has all answers to opens wait, too, and nobody has the file open: so no
    /// folio is locked by a request, and the kernel takes the bytes without waiting for anybody.
    pub fn begin_fill(&mut self) {
        assert!(self.is_idle(), "nothing else is under way");
        self.is_filling = true;
    }

    /// The kernel has returned from it.
    pub fn end_fill(&mut self, out: &mut Outbox) {
        self.is_filling = false;
        self.advance_lapse(out);
        self.advance_drops(out);
        // Without a lease they wait for that.
        if self.lapse.is_none() {
            self.retry_unblocked(|_| true, out);
        }
        self.advance(out);
    }

    /// Between `begin_fill` and `end_fill`.
    pub const fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// Between `suspend` and `resume`.
    pub fn is_suspended(&self) -> bool {
        self.lapse.as_ref().is_some_and(|lapse| lapse.is_suspended)
    }

    /// Says whether a writable handle is open here, so that pages may be dirtied through a mapping.
    /// The kernel keeps the handle while a mapping lives. A downgrade under way then drops pages after all, or
    /// they could be dirtied under the read token that stays.
    pub fn set_mappable(&mut self, is_mappable: bool) {
        self.is_mappable = is_mappable;
        for revoke in &mut self.revokes {
            if is_mappable && !revoke.drops_demoted {
                revoke.drops_demoted = true;
                // Without those that another revoke's release has taken and that were not read again.
                let mut pages = revoke.scope.demoted_pages.clone();
                for range in revoke.gone.ranges() {
                    pages.remove(*range);
                }
                add(&mut revoke.due, &pages);
            }
        }
    }

    /// Whether an answer with attributes may let the kernel cache them (else time-out 0).
    pub fn may_cache_attributes(&self) -> bool {
        let leaves = |r: &Revoke| r.scope.attributes == AttributesGo::Lost;
        self.lapse.is_none() && !self.revokes.iter().any(leaves)
    }

    /// Decides on a request. To be called once per request, and again after `Effect::Retry`.
    pub fn on_request(&mut self, request: GateRequest, out: &mut Outbox) -> Verdict {
        // The kernel clips what it writes back to the end of the file, but a notification of the page waits for it.
        let range = match request.kind {
            RequestKind::WriteBack => round_out(&request.range),
            _ => request.range,
        };
        let entry = Entry {
            ticket: request.ticket,
            kind: request.kind,
            range,
        };
        assert!(!self.knows(request.ticket), "{:?} twice", request.ticket);
        let verdict = self.decide(&entry, request.has_token);
        match verdict {
            Verdict::Serve => self.take_in_service(entry),
            Verdict::Park => {
                self.parked.push(entry);
                // Without R9 a request that waits for a token counts as in service: canary only.
                if !self.rules.r9 && !request.has_token {
                    self.serving.push(entry);
                }
            }
            Verdict::Fail(_) => {}
        }
        self.advance(out);
        verdict
    }

    /// A request in service is finished: its bytes are in the pagepool, or taken from there, or it failed.
    pub fn on_served(&mut self, ticket: Ticket, out: &mut Outbox) {
        let before = self.serving.len();
        self.serving.retain(|e| e.ticket != ticket);
        assert!(before > self.serving.len(), "{ticket:?} is not in service");
        self.advance(out);
    }

    /// A parked request is gone (the application was killed, the caller answered it).
    pub fn on_abandoned(&mut self, ticket: Ticket, out: &mut Outbox) {
        self.parked.retain(|e| e.ticket != ticket);
        self.serving.retain(|e| e.ticket != ticket);
        self.advance(out);
    }

    /// New tokens are here: parked requests that no revoke blocks are to be presented again.
    pub fn on_token_granted(&mut self, out: &mut Outbox) {
        self.retry_unblocked(|_| true, out);
        self.advance(out);
    }

    /// A token is to leave. The caller has stopped to count it for new requests' `desired` ranges, but goes on
    /// to count it in `has_token` until `Effect::Release`.
    pub fn begin_revoke(&mut self, revoke: RevokeId, scope: Scope, out: &mut Outbox) {
        assert!(
            self.revokes.iter().all(|r| r.id != revoke),
            "{revoke:?} twice"
        );
        let mut due = scope.lost_pages.clone();
        if self.is_mappable {
            add(&mut due, &scope.demoted_pages);
        }
        let attributes_due = scope.attributes == AttributesGo::Lost && !scope.is_attr_unknown;
        // Its scope has what the kernel may have under read tokens alone, as long as that is not dropped.
        let clearing = self.drops.iter_mut().filter(|drop| drop.is_clearing);
        for drop in clearing.filter(|drop| !drop.is_notified()) {
            drop.after.push(revoke);
        }
        self.revokes.push(Revoke {
            id: revoke,
            scope,
            state: State::Draining,
            due,
            again: RangeSet::new(),
            gone: RangeSet::new(),
            attributes_due,
            drops_demoted: self.is_mappable,
            pass_count: 0,
            has_paused: false,
            is_data_lost: false,
        });
        self.unpark_for_notifications(out);
        self.advance(out);
    }

    /// Has the kernel drop pages whose token stays, for a request in service that changed them behind its back: an
    /// append that went elsewhere than the kernel thinks. Call it when the new bytes are what READs get, and answer the
    /// request after `Effect::Release` of this number. `pages` are as in `Scope::lost_pages`; `drop` is a number as for a revoke.
    pub fn begin_drop(&mut self, drop: RevokeId, pages: RangeSet, out: &mut Outbox) {
        self.add_drop(drop, pages, false, out);
    }

    /// Has the kernel drop the pages that it may have got under read tokens alone, before the answer that lets mappings
    /// be writable for the first time: from then on a page may be dirtied without a request, so the kernel may have it
    /// only under the right to write. Answer after `Effect::Release` of this number. It is over after all revokes of now, and
    /// after those that begin before all is notified: they too may notify pages that no right to write covers.
    pub fn begin_clearing(&mut self, drop: RevokeId, pages: RangeSet, out: &mut Outbox) {
        self.add_drop(drop, pages, true, out);
    }

    fn add_drop(&mut self, id: RevokeId, pages: RangeSet, is_clearing: bool, out: &mut Outbox) {
        assert!(self.drops.iter().all(|d| d.id != id), "{id:?} twice");
        let revokes = self.revokes.iter().filter(|_| is_clearing);
        let after = revokes.map(|r| r.id).collect();
        self.drops.push(Drop {
            id,
            due: pages.clone(),
            again: RangeSet::new(),
            pages,
            outstanding: Vec::new(),
            is_clearing,
            after,
        });
        self.unpark_for_notifications(out);
        self.advance_drops(out);
        self.advance(out);
    }

    /// The kernel is still told to drop what it got under read tokens alone.
    pub fn is_clearing(&self) -> bool {
        let mut drops = self.drops.iter();
        drops.any(|drop| drop.is_clearing && !drop.is_notified())
    }

    /// A revoke is under way.
    pub const fn has_revoke(&self) -> bool {
        !self.revokes.is_empty()
    }

    /// Takes a READ in service under read tokens, though pages need the right to write now: a notification in progress
    /// waits for its folio, and no mapping is writable yet, because `begin_clearing` is not over. Its pages are dropped
    /// again before that. `false`: it cannot be served so.
    pub fn borrow(&mut self, request: GateRequest, out: &mut Outbox) -> bool {
        let pages = round_out(&request.range);
        let revokes = &self.revokes;
        let Some(drop) = self.drops.iter_mut().find(|drop| drop.is_clearing) else {
            return false;
        };
        let mut dropped = drop.pages.clone();
        for revoke in revokes.iter().filter(|r| drop.after.contains(&r.id)) {
            add(&mut dropped, &revoke.scope.lost_pages);
            add(&mut dropped, &revoke.scope.demoted_pages);
        }
        if request.kind != RequestKind::Read || !dropped.contains(&pages) {
            return false;
        }
        add(&mut drop.due, &drop.pages.intersection(&pages));
        self.take_in_service(Entry {
            ticket: request.ticket,
            kind: request.kind,
            range: request.range,
        });
        self.advance(out);
        true
    }

    /// INVAL_INODE has returned.
    pub fn on_notified(&mut self, notify: NotifyId, out: &mut Outbox) {
        self.late.retain(|(id, _)| *id != notify);
        if let Some(lapse) = &mut self.lapse {
            lapse.outstanding.retain(|(id, _)| *id != notify);
        }
        for drop in &mut self.drops {
            drop.outstanding.retain(|(id, _)| *id != notify);
        }
        self.advance_drops(out);
        for revoke in &mut self.revokes {
            if let State::Notifying(outstanding) = &mut revoke.state {
                outstanding.retain(|(id, _)| *id != notify);
                if outstanding.is_empty() {
                    revoke.state = State::Draining;
                }
            }
        }
        self.advance_lapse(out);
        self.advance(out);
    }

    /// A flush asked for has ended.
    pub fn on_flushed(&mut self, revoke: RevokeId, outcome: FlushOutcome, out: &mut Outbox) {
        let Some(index) = self.revokes.iter().position(|r| r.id == revoke) else {
            return; // A lapse ended the revoke meanwhile.
        };
        assert!(self.revokes[index].state == State::Flushing);
        self.revokes[index].is_data_lost |= outcome == FlushOutcome::Lost;
        self.revokes[index].state = State::Leaving;
        self.advance(out);
    }

    /// The node's lease is over; its tokens may come back with it (R8). First what a notification would wait for
    /// is served or failed, then the kernel drops all it has but the pages of READs that wait: these are locked
    /// and empty. `Effect::LapseDone` says that it has. Everything else waits for `resume` or `begin_lapse`.
    pub fn suspend(&mut self, out: &mut Outbox) {
        assert!(self.lapse.is_none(), "a lease that is over cannot end");
        if self.rules.r8 {
            for entry in std::mem::take(&mut self.parked) {
                let ticket = entry.ticket;
                match entry.kind {
                    RequestKind::WriteBack => {
                        out.push(Effect::Serve { ticket });
                        self.serving.retain(|e| e.ticket != ticket); // Canary R9 only.
                        self.serving.push(entry);
                    }
                    RequestKind::SetSize if self.is_mappable => {
                        self.serving.retain(|e| e.ticket != ticket); // Canary R9 only.
                        let why = Failure::Interrupted;
                        out.push(Effect::Fail { ticket, why });
                    }
                    RequestKind::Read
                    | RequestKind::DirectRead
                    | RequestKind::Write
                    | RequestKind::SetSize
                    | RequestKind::Attributes
                    | RequestKind::Other => self.parked.push(entry),
                }
            }
        }
        self.lapse = Some(Lapse {
            is_suspended: true,
            outstanding: Vec::new(),
            pass_count_left: self.pass_count(),
            is_dropped: false,
        });
        self.advance_lapse(out);
    }

    /// The lease is back and the tokens with it: what waited goes on.
    pub fn resume(&mut self, out: &mut Outbox) {
        let Some(lapse) = self.lapse.take_if(|lapse| lapse.is_suspended) else {
            return;
        };
        self.late.extend(lapse.outstanding);
        self.retry_unblocked(|_| true, out);
        self.advance(out);
    }

    /// The node's lease has lapsed and its tokens are gone (R8): fails what is parked, drops what the kernel
    /// has, ends with `Effect::LapseDone`. Revokes under way are forgotten: there is nothing left to release.
    pub fn begin_lapse(&mut self, out: &mut Outbox) {
        self.revokes.clear();
        self.drops.clear();
        if self.rules.r8 {
            for entry in std::mem::take(&mut self.parked) {
                self.serving.retain(|e| e.ticket != entry.ticket); // Canary R9 only.
                out.push(Effect::Fail {
                    ticket: entry.ticket,
                    why: Failure::LeaseLost,
                });
            }
        }
        let before = self.lapse.take();
        self.lapse = Some(Lapse {
            is_suspended: false,
            outstanding: before.map_or_else(Vec::new, |lapse| lapse.outstanding),
            pass_count_left: self.pass_count(),
            is_dropped: false,
        });
        self.advance_lapse(out);
    }

    /// Notifications until nothing is left: twice where the kernel may hide -EBUSY (R6).
    const fn pass_count(&self) -> u8 {
        if self.is_mappable && self.rules.r6 {
            2
        } else {
            1
        }
    }

    /// A notification did not return within its limit. Only a lapse has a last resort; a revoke waits, and the
    /// manager expels a holder that stays silent.
    pub fn on_notify_overdue(&self, out: &mut Outbox) {
        if self.lapse.as_ref().is_some_and(|lapse| !lapse.is_dropped) {
            out.push(Effect::Abort);
        }
    }

    /// Requests that wait, and for what.
    pub fn waiters(&self) -> Vec<Waiter> {
        self.parked
            .iter()
            .map(|entry| Waiter {
                ticket: entry.ticket,
                kind: entry.kind,
                revoke: self.revokes.iter().find(|r| blocks(r, entry)).map(|r| r.id),
            })
            .collect()
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        for (index, entry) in self.parked.iter().enumerate() {
            assert!(
                self.parked[..index]
                    .iter()
                    .all(|e| e.ticket != entry.ticket)
            );
            if self.rules.r9 {
                assert!(self.serving.iter().all(|e| e.ticket != entry.ticket));
            }
            if self.rules.r5 && entry.kind == RequestKind::WriteBack {
                assert!(self.lapse.is_some() || !self.may_await_write_back());
            }
        }
        for revoke in &self.revokes {
            match &revoke.state {
                State::Draining => assert!(
                    self.is_used(revoke) || self.lapse.is_some() || self.is_filling,
                    "{:?} drains, and nothing is in use",
                    revoke.id
                ),
                State::Notifying(outstanding) => assert!(!outstanding.is_empty()),
                State::Flushing => assert!(revoke.again.is_empty() || revoke.has_paused),
                State::Leaving => assert!(revoke.again.is_empty() && revoke.due.is_empty()),
            }
        }
    }

    fn knows(&self, ticket: Ticket) -> bool {
        let mut all = self.serving.iter().chain(&self.parked);
        all.any(|e| e.ticket == ticket)
    }

    fn decide(&self, entry: &Entry, has_token: bool) -> Verdict {
        match &self.lapse {
            Some(lapse) if lapse.is_suspended => return self.decide_suspended(entry),
            Some(_) => return self.decide_in_lapse(entry),
            None => {}
        }
        if entry.kind == RequestKind::WriteBack && self.rules.r5 && self.may_await_write_back() {
            return Verdict::Serve;
        }
        let changes = matches!(entry.kind, RequestKind::Write | RequestKind::SetSize);
        if self.is_filling && changes && self.rules.r13 {
            return Verdict::Park;
        }
        let is_blocked = self.revokes.iter().any(|r| blocks(r, entry));
        // A fill would wait for the folios of a READ; nobody has the file open, so there is none.
        let is_awaited = || self.rules.r2 && (self.is_filling || self.is_notifying(&entry.range));
        let no_revoke = match entry.kind {
            _ if has_token => Verdict::Serve,
            RequestKind::Read if is_awaited() => Verdict::Fail(Failure::Again),
            // NOWRITE holds back all of the file, whatever is cut.
            RequestKind::SetSize if self.rules.r12 && self.may_launder() => {
                Verdict::Fail(Failure::Interrupted)
            }
            _ => Verdict::Park,
        };
        if !is_blocked {
            return no_revoke;
        }
        match entry.kind {
            RequestKind::Read if is_awaited() => no_revoke,
            RequestKind::SetSize if self.rules.r12 && (has_token || self.may_launder()) => {
                no_revoke
            }
            RequestKind::Read
            | RequestKind::DirectRead
            | RequestKind::Write
            | RequestKind::WriteBack
            | RequestKind::SetSize
            | RequestKind::Attributes => Verdict::Park,
            RequestKind::Other => Verdict::Serve,
        }
    }

    /// Without a lease nothing is served but write-backs, and nothing fails but what a notification in progress
    /// waits for.
    fn decide_suspended(&self, entry: &Entry) -> Verdict {
        let is_dropped = self.lapse.as_ref().is_some_and(|lapse| lapse.is_dropped);
        match entry.kind {
            RequestKind::WriteBack if self.rules.r8 => Verdict::Serve,
            RequestKind::Read if self.rules.r8 && self.is_notifying(&entry.range) => {
                Verdict::Fail(Failure::LeaseLost)
            }
            RequestKind::SetSize
                if self.rules.r8 && self.is_mappable && (!is_dropped || self.may_launder()) =>
            {
                Verdict::Fail(Failure::Interrupted)
            }
            RequestKind::Read
            | RequestKind::DirectRead
            | RequestKind::Write
            | RequestKind::WriteBack
            | RequestKind::SetSize
            | RequestKind::Attributes
            | RequestKind::Other => Verdict::Park,
        }
    }

    /// After a lapse nothing is answered but errors that free a folio or NOWRITE.
    fn decide_in_lapse(&self, entry: &Entry) -> Verdict {
        match entry.kind {
            RequestKind::Read
            | RequestKind::DirectRead
            | RequestKind::Write
            | RequestKind::WriteBack
            | RequestKind::SetSize
                if self.rules.r8 =>
            {
                Verdict::Fail(Failure::LeaseLost)
            }
            RequestKind::Read
            | RequestKind::DirectRead
            | RequestKind::Write
            | RequestKind::WriteBack
            | RequestKind::SetSize
            | RequestKind::Attributes
            | RequestKind::Other => Verdict::Park,
        }
    }

    /// Counts an entry as in service, and its pages as cached again where they are revoked: also those that the kernel
    /// could not have when the revoke began, for a token that has come since may cover them whole.
    fn take_in_service(&mut self, entry: Entry) {
        if entry.kind == RequestKind::Read && self.rules.r4 {
            let read = round_out(&entry.range);
            for revoke in &mut self.revokes {
                let scope = &mut revoke.scope;
                let cached = pages_of(&scope.lost).intersection(&read);
                add(&mut revoke.due, &cached);
                add(&mut scope.lost_pages, &cached);
                if revoke.drops_demoted {
                    let cached = pages_of(&scope.demoted).intersection(&read);
                    add(&mut revoke.due, &cached);
                    add(&mut scope.demoted_pages, &cached);
                }
            }
        }
        self.serving.push(entry);
    }

    /// Parked requests that keep the notifications of a new revoke or drop from returning are served or failed.
    fn unpark_for_notifications(&mut self, out: &mut Outbox) {
        let may_launder = self.may_launder();
        let mut kept = Vec::with_capacity(self.parked.len());
        for entry in std::mem::take(&mut self.parked) {
            match entry.kind {
                RequestKind::WriteBack if self.rules.r5 => {
                    out.push(Effect::Serve {
                        ticket: entry.ticket,
                    });
                    self.serving.retain(|e| e.ticket != entry.ticket); // Canary R9 only.
                    self.serving.push(entry);
                }
                RequestKind::SetSize if self.rules.r12 && may_launder => {
                    self.serving.retain(|e| e.ticket != entry.ticket); // Canary R9 only.
                    out.push(Effect::Fail {
                        ticket: entry.ticket,
                        why: Failure::Interrupted,
                    });
                }
                RequestKind::Read
                | RequestKind::DirectRead
                | RequestKind::Write
                | RequestKind::WriteBack
                | RequestKind::SetSize
                | RequestKind::Attributes
                | RequestKind::Other => kept.push(entry),
            }
        }
        self.parked = kept;
    }

    /// A notification in progress, or one to come, may wait for any write-back of the file, whichever pages it tells of: a
    /// truncate that the kernel has not sent yet waits for all WRITEs that are sent (`fuse_set_nowrite`), and meanwhile
    /// keeps those of other pages back. And what the kernel clips to the end of the file stands for pages behind it.
    const fn may_await_write_back(&self) -> bool {
        !self.revokes.is_empty() || !self.drops.is_empty() || !self.late.is_empty()
    }

    /// A notification of a revoke under way may have to write mapped pages back.
    fn may_launder(&self) -> bool {
        let notifies = |r: &Revoke| {
            let is_notifying = matches!(r.state, State::Notifying(_));
            is_notifying || r.wants_pass()
        };
        self.is_mappable && (!self.drops.is_empty() || self.revokes.iter().any(notifies))
    }

    /// A notification in progress waits for folios of the range, or will.
    fn is_notifying(&self, range: &ByteRange) -> bool {
        let mut all = self.notified_pages();
        all.any(|pages| pages.overlaps(range))
    }

    /// Pages of all notifications in progress.
    fn notified_pages(&self) -> impl Iterator<Item = ByteRange> + '_ {
        let of_revoke = |revoke: &'_ Revoke| match &revoke.state {
            State::Notifying(outstanding) => outstanding.clone(),
            State::Draining | State::Flushing | State::Leaving => Vec::new(),
        };
        let revokes = self.revokes.iter().flat_map(of_revoke);
        let drops = self.drops.iter().flat_map(|drop| &drop.outstanding);
        let suspended = self.lapse.iter().filter(|lapse| lapse.is_suspended);
        let suspended = suspended.flat_map(|lapse| &lapse.outstanding);
        let others = drops.chain(suspended).chain(&self.late);
        revokes
            .filter_map(|(_, pages)| pages)
            .chain(others.map(|(_, pages)| *pages))
    }

    fn is_in_use(&self, index: usize) -> bool {
        self.must_await_fill() || self.is_used(&self.revokes[index])
    }

    const fn must_await_fill(&self) -> bool {
        self.is_filling && self.rules.r13
    }

    fn is_used(&self, revoke: &Revoke) -> bool {
        self.serving.iter().any(|e| blocks(revoke, e))
    }

    fn advance(&mut self, out: &mut Outbox) {
        if self.lapse.is_some() {
            return; // Tokens got since it began wait for its end; nothing is served under them before.
        }
        // Releases first: another revoke's next pass then leaves their pages alone.
        let mut index = 0;
        while index < self.revokes.len() {
            if self.revokes[index].state != State::Leaving {
                index += 1;
            } else if self.is_in_use(index) || self.revokes[index].wants_pass() {
                self.revokes[index].state = State::Draining;
            } else if self.is_notified_for_other(index) {
                index += 1;
            } else {
                self.release(index, out);
                self.advance_drops(out);
            }
        }
        for index in 0..self.revokes.len() {
            if self.revokes[index].state == State::Draining && !self.is_in_use(index) {
                self.begin_pass(index, out);
            }
        }
    }

    /// A notification in progress, which is another one's, covers a page of this revoke: also one that the kernel could
    /// not have when this began.
    fn is_notified_for_other(&self, index: usize) -> bool {
        let scope = &self.revokes[index].scope;
        let overlaps =
            |pages: &ByteRange| scope.lost.overlaps(pages) || scope.demoted.overlaps(pages);
        self.notified_pages().any(|pages| overlaps(&pages))
    }

    /// The token goes. The kernel has no page of it, nor can it get one without a new token: other revokes need not
    /// notify them, and must not, for a READ of them could not be served under an old token any more. They stay in the
    /// others' scopes: a page of which only a part has gone is theirs again when a new token has come for that part.
    fn release(&mut self, index: usize, out: &mut Outbox) {
        let done = self.revokes.remove(index);
        let mut gone = pages_of(&done.scope.lost);
        if done.drops_demoted {
            add(&mut gone, &pages_of(&done.scope.demoted));
        }
        for range in gone.ranges() {
            for other in &mut self.revokes {
                other.due.remove(*range);
                other.again.remove(*range);
                other.gone.insert(*range);
            }
        }
        out.push(Effect::Release {
            revoke: done.id,
            is_data_lost: done.is_data_lost,
        });
        self.retry_unblocked(|entry| blocks(&done, entry), out);
    }

    /// Nothing in service overlaps: the next pass of notifications, or the flush if none is due.
    fn begin_pass(&mut self, index: usize, out: &mut Outbox) {
        let wants_second = self.is_mappable && self.rules.r6;
        let revoke = &mut self.revokes[index];
        if revoke.pass_count >= PASSES_MAX && revoke.wants_pass() && !revoke.has_paused {
            revoke.has_paused = true;
            return Self::begin_flush(revoke, out);
        }
        let mut first = std::mem::take(&mut revoke.due);
        let mut pass = std::mem::take(&mut revoke.again);
        add(&mut pass, &first);
        if self.rules.r3 {
            for entry in &self.parked {
                if entry.kind == RequestKind::Read {
                    let pages = round_out(&entry.range);
                    first.remove(pages);
                    pass.remove(pages);
                }
            }
        }
        if wants_second {
            revoke.again = first;
        }
        let mut outstanding = Vec::new();
        for range in pass.ranges() {
            outstanding.push((NotifyId(self.notify_next), Some(*range)));
            self.notify_next += 1;
        }
        if outstanding.is_empty() && revoke.attributes_due {
            outstanding.push((NotifyId(self.notify_next), None));
            self.notify_next += 1;
        }
        revoke.attributes_due = false;
        if outstanding.is_empty() {
            return Self::begin_flush(revoke, out);
        }
        revoke.pass_count += 1;
        revoke.has_paused = false;
        for (notify, pages) in &outstanding {
            out.push(Effect::Notify {
                notify: *notify,
                pages: *pages,
            });
        }
        revoke.state = State::Notifying(outstanding);
    }

    fn begin_flush(revoke: &mut Revoke, out: &mut Outbox) {
        revoke.state = State::Flushing;
        let mut ranges = revoke.scope.lost.clone();
        add(&mut ranges, &revoke.scope.demoted);
        out.push(Effect::Flush {
            revoke: revoke.id,
            ranges,
        });
    }

    fn advance_drops(&mut self, out: &mut Outbox) {
        if self.must_await_fill() {
            return;
        }
        let is_twice = self.is_mappable && self.rules.r6;
        let parked = self.parked.iter().filter(|e| e.kind == RequestKind::Read);
        let parked: Vec<ByteRange> = parked.map(|e| round_out(&e.range)).collect();
        let revokes = &self.revokes;
        for drop in &mut self.drops {
            while drop.outstanding.is_empty() && !drop.is_notified() {
                let mut first = std::mem::take(&mut drop.due);
                let mut pass = std::mem::take(&mut drop.again);
                add(&mut pass, &first);
                if self.rules.r3 {
                    for range in &parked {
                        first.remove(*range);
                        pass.remove(*range);
                    }
                }
                if is_twice {
                    drop.again = first;
                }
                for range in pass.ranges() {
                    let notify = NotifyId(self.notify_next);
                    self.notify_next += 1;
                    drop.outstanding.push((notify, *range));
                    out.push(Effect::Notify {
                        notify,
                        pages: Some(*range),
                    });
                }
            }
            let is_under_way = |id: &RevokeId| revokes.iter().any(|r| r.id == *id);
            drop.after.retain(is_under_way);
        }
        self.drops.retain(|drop| {
            let is_done = drop.is_notified() && drop.after.is_empty();
            if is_done {
                out.push(Effect::Release {
                    revoke: drop.id,
                    is_data_lost: false,
                });
            }
            !is_done
        });
    }

    fn advance_lapse(&mut self, out: &mut Outbox) {
        if self.must_await_fill() {
            return;
        }
        let Some(lapse) = &mut self.lapse else {
            return;
        };
        if !lapse.outstanding.is_empty() || lapse.is_dropped {
            return;
        }
        if lapse.pass_count_left > 0 {
            lapse.pass_count_left -= 1;
            let mut pages = RangeSet::of(ByteRange::ALL);
            if lapse.is_suspended && self.rules.r8 {
                // Of a READ that is on its way to the disks or waits: locked, and empty until it is answered (R3).
                let reads = self.parked.iter().chain(&self.serving);
                for read in reads.filter(|e| e.kind == RequestKind::Read) {
                    pages.remove(round_out(&read.range));
                }
            }
            for range in pages.ranges() {
                let notify = NotifyId(self.notify_next);
                self.notify_next += 1;
                lapse.outstanding.push((notify, *range));
                out.push(Effect::Notify {
                    notify,
                    pages: Some(*range),
                });
            }
            return;
        }
        lapse.is_dropped = true;
        out.push(Effect::LapseDone);
        if lapse.is_suspended {
            return;
        }
        self.lapse = None;
        self.retry_unblocked(|_| true, out);
        self.advance(out);
    }

    /// Hands back parked requests that no revoke blocks any more and that `concerns` picks.
    fn retry_unblocked(&mut self, concerns: impl Fn(&Entry) -> bool, out: &mut Outbox) {
        let revokes = &self.revokes;
        let mut ready = Vec::new();
        self.parked.retain(|entry| {
            let goes = concerns(entry) && !revokes.iter().any(|r| blocks(r, entry));
            if goes {
                ready.push(entry.ticket);
            }
            !goes
        });
        for ticket in ready {
            self.serving.retain(|e| e.ticket != ticket); // Canary R9 only.
            out.push(Effect::Retry { ticket });
        }
    }
}

/// Adds the ranges of `more` to `set`.
fn add(set: &mut RangeSet, more: &RangeSet) {
    for range in more.ranges() {
        set.insert(*range);
    }
}

/// The pages that share a byte with `bytes`.
fn pages_of(bytes: &RangeSet) -> RangeSet {
    let mut pages = RangeSet::new();
    for range in bytes.ranges() {
        pages.insert(round_out(range));
    }
    pages
}

/// Whether the request uses what leaves in this revoke.
fn blocks(revoke: &Revoke, entry: &Entry) -> bool {
    let scope = &revoke.scope;
    let is_lost = scope.lost.overlaps(&entry.range);
    let is_demoted = || scope.demoted.overlaps(&entry.range);
    match entry.kind {
        RequestKind::Read => is_lost || (revoke.drops_demoted && is_demoted()),
        RequestKind::DirectRead => is_lost,
        RequestKind::Write | RequestKind::WriteBack | RequestKind::SetSize => {
            is_lost || is_demoted() || scope.attributes != AttributesGo::Stay
        }
        RequestKind::Attributes => scope.attributes == AttributesGo::Lost,
        RequestKind::Other => false,
    }
}
