//! Tokens at the node: asking for them, taking them, and letting them go in the order of rules R1 to R12.
//!
//! `Admission` joins the two questions that every request on an inode meets: are its tokens held
//! (`token::Holder`), and does a revoke stand against it (`revoke::Gate`)? The gate exists only while a revoke
//! of the inode is under way, so the common path asks the holder alone.

use std::collections::BTreeMap;

use token::message::{Granted, Revoke};
use types::{Attr, ByteRange, Errno, InodeId, RangeMode, RangeSet, Want};

use crate::belief;
use crate::env::Env;
use crate::gates::RevokeState;
use crate::goals::Purpose;
use crate::io::resize_kind;
use crate::message::{Answer, Ask, Body};
use crate::names::{Continuation, NAMES_TOKEN};
use crate::pages::PAGE_SIZE;
use crate::request::{Notice, Operation, Request, Response, Ticket, new_size};
use crate::revoke::{
    self, AttributesGo, DirectoryEffect, DirectoryGate, Failure, FlushOutcome, Gate, GateRequest,
    RequestKind, RevokeId, Rules, Scope, Verdict,
};
use crate::slice::{Effect, NotifyId, Slice, Waiting};

/// After the inode token was revoked the kernel is shown attributes so often without being told to believe them: while
/// another node keeps changing the file that is cheaper than the notifications.
const UNBELIEVED_SHOWS: u8 = 8;
/// Flushes of a release that writes under the old token can bring about.
const LATE_FLUSHES_MAX: u32 = 100;
/// Pieces of a pattern that are looked at one by one for whole pages.
const PAGE_PIECES_MAX: usize = 1024;
/// Pieces of a pattern that are revoked one by one; more are revoked as one range around them.
const PIECES_MAX: usize = 64;

/// Whether a request may be served now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Yes; say `served` when it is finished.
    Served,
    /// It is parked, and tokens are missing: ask for them.
    NeedsToken,
    /// It is parked or answered.
    Refused,
}

/// A revoke under way.
#[derive(Debug)]
pub(crate) struct Leaving {
    release: u64,
    lost: RangeSet,
    /// Of these the right to read stays.
    demoted: RangeSet,
    is_attr_lost: bool,
    /// Flushes that found something written after the revoke's own.
    late_count: u32,
}

/// Revokes of one slice that wait for the grants that they name.
const EARLY_COUNT_MAX: usize = 64;

impl crate::inode::Inode {
    /// See `Slice::is_leaving`.
    pub(crate) fn is_leaving(&self, range: &ByteRange) -> bool {
        self.gate.as_ref().is_some_and(|state| {
            let mut leaving = state.leaving.values();
            leaving.any(|l| l.lost.overlaps(range) || l.demoted.overlaps(range))
        })
    }
}

/// For whom tokens are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// Requests that are parked: they fail if they are refused.
    Requests,
    /// Nobody waits for them, and none are taken from other nodes: it is answered at once, and requests that were parked meanwhile ask for
    /// theirs then.
    Rewrite,
    /// The same, for a file that will be read soon.
    Ahead,
    /// For a directory that will be listed soon.
    Listing(crate::ahead::Coming),
}

impl Slice {
    /// Asks for tokens on `ino`, unless a question is under way: its answer runs the parked requests
    /// again, which ask for what is still missing.
    pub(crate) fn acquire(&mut self, _env: &Env<'_>, ino: InodeId, wants: Vec<Want>) {
        self.acquire_for(ino, wants, Asker::Requests);
    }

    /// The same for `asker`. False: nothing was asked for.
    pub(crate) fn acquire_for(&mut self, ino: InodeId, wants: Vec<Want>, asker: Asker) -> bool {
        let inode = self.inode(ino);
        if inode.is_acquiring || wants.is_empty() {
            return false;
        }
        inode.is_acquiring = true;
        if asker == Asker::Requests {
            self.keep_tokens_for(ino, &wants);
        }
        let inode = self.inode(ino);
        let ask = Ask::Acquire {
            ino,
            seen: inode.holder.seen(),
            wants,
            only_free: asker != Asker::Requests,
        };
        let then = Continuation::Acquire(ino, inode.loss_count, asker);
        self.call(ino.shard(), ask, then);
        true
    }

    /// An owner answered a question for tokens.
    pub(crate) fn on_acquired(
        &mut self,
        env: &Env<'_>,
        (ino, asker): (InodeId, Asker),
        answer: Answer,
        losses: u64,
    ) {
        self.inode(ino).is_acquiring = false;
        match &answer.body {
            Body::Acquired { attr: Some(attr) } => {
                self.take_told(env, attr, &answer.grants, losses);
            }
            _ => answer.grants.iter().for_each(|g| self.take_grant(env, g)),
        }
        let errno = match answer.body {
            Body::Acquired { attr: Some(_) } => None,
            Body::Acquired { attr: None } => Some(Errno::ESTALE),
            Body::Refused(errno) => Some(errno),
            Body::Op(_) | Body::Space(_) | Body::Lock(_) | Body::Synced => Some(Errno::EPROTO),
        };
        if let (Some(errno), Asker::Rewrite) = (errno, asker) {
            self.on_rewrite_refused(env, ino, errno);
        }
        match errno.filter(|_| asker == Asker::Requests) {
            None => {
                // What the gate parked looks again too, whatever came.
                self.gate_call(env, ino, Gate::on_token_granted);
                self.retry(env, ino);
                match asker {
                    Asker::Ahead => self.on_file_asked(env, ino, errno.is_none()),
                    Asker::Listing(coming) => self.on_coming_asked(env, coming, errno),
                    Asker::Requests | Asker::Rewrite => {}
                }
            }
            Some(errno) => self.fail_token_waiters(env, ino, errno),
        }
        // Its last name and its last user may have gone meanwhile.
        self.drop_if_gone(env, ino);
    }

    fn fail_token_waiters(&mut self, env: &Env<'_>, ino: InodeId, errno: Errno) {
        let inode = self.inode(ino);
        let parked = std::mem::take(&mut inode.parked);
        let (waiters, others): (Vec<_>, Vec<_>) =
            parked.into_iter().partition(|p| p.why == Waiting::Token);
        inode.parked = others.into();
        for waiter in waiters {
            self.refuse(&waiter.request, errno);
        }
        let gated = self
            .inode(ino)
            .gate
            .as_mut()
            .map(|state| std::mem::take(&mut state.parked));
        for (ticket, _) in gated.into_iter().flatten() {
            self.fail(ticket, errno);
            self.gate_call(env, ino, |gate, out| gate.on_abandoned(ticket, out));
        }
    }

    /// Takes an inode's attributes and the tokens that came with them, in this order: a grant lets parked requests go on
    /// at once, and they must not go by a size that was known under an older token. `loss_count`: the inode's when the
    /// owner was asked.
    pub(crate) fn take_told(
        &mut self,
        env: &Env<'_>,
        attr: &Attr,
        grants: &[Granted],
        loss_count: u64,
    ) {
        let inode = self.inode(attr.ino);
        inode.learn_attr(attr);
        if inode.loss_count == loss_count {
            inode.is_attr_fresh = true;
            inode.is_changed_unseen = false;
            inode.is_name_unsure = false;
        }
        for granted in grants {
            self.adopt(env, granted, granted.ino == attr.ino);
        }
    }

    /// Takes tokens that an owner granted, without attributes.
    pub(crate) fn take_grant(&mut self, env: &Env<'_>, granted: &Granted) {
        self.adopt(env, granted, false);
    }

    /// Takes tokens; `is_told`: the attributes that came with them are learnt. Whether what came is the newest that is known.
    pub(crate) fn adopt(&mut self, env: &Env<'_>, granted: &Granted, is_told: bool) -> bool {
        let ino = granted.ino;
        let inode = self.inode(ino);
        let had_names = inode.directory_mode().is_some();
        let (had_mode, was_covered) = (inode.inode_mode().is_some(), inode.covers_attr());
        let adopted = inode.holder.on_granted(granted, true);
        let is_held = matches!(adopted, token::Adopted::Current);
        match adopted {
            token::Adopted::Unasked(released) => {
                self.out.push(Effect::Release(ino.shard(), released));
                return false;
            }
            token::Adopted::Current if is_told && !granted.holdings.is_empty() => {
                inode.is_attr_fresh = !inode.is_changed_unseen;
            }
            // What is known of the attributes may be older than this token.
            token::Adopted::Current if !was_covered => {
                inode.is_attr_fresh = false;
                // So is an answer that is on its way, and was asked for before this token.
                inode.loss_count += 1;
                // Directories come with what was done in them.
                inode.is_name_unsure |= !had_mode && inode.inode_mode().is_some();
            }
            token::Adopted::Current | token::Adopted::Stale => {}
        }
        inode.distrust_partial();
        // Who asked for a name before this token is here, and was answered with another one or none, may hear of a time
        // before another node's change.
        if !had_names && inode.directory_mode().is_some() {
            inode.names_epoch += NAMES_TOKEN;
            inode.names_since = env.now;
        }
        if inode.is_contended != granted.contended {
            inode.is_contended = granted.contended;
            inode.forget_entries();
        }
        self.gate_call(env, ino, Gate::on_token_granted);
        is_held
    }

    /// Whether a request may be served now; parks it if not.
    pub(crate) fn admit(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        request: &Request,
        kind: RequestKind,
        range: ByteRange,
        has_token: bool,
    ) -> Admission {
        if self.is_lapsed {
            self.suspend(env, ino);
        }
        let inode = self.inode(ino);
        let Some(state) = &mut inode.gate else {
            if has_token {
                return Admission::Served;
            }
            self.park(env, ino, request.clone(), Waiting::Token);
            return Admission::NeedsToken;
        };
        let mut out = Vec::new();
        let ticket = request.ticket;
        let asked = GateRequest {
            ticket,
            kind,
            range,
            has_token,
        };
        let verdict = state.gate.on_request(asked, &mut out);
        let admission = match verdict {
            Verdict::Serve => Admission::Served,
            Verdict::Park => {
                state.parked.insert(ticket, request.clone());
                self.keep_payload(env, request);
                if has_token {
                    Admission::Refused
                } else {
                    Admission::NeedsToken
                }
            }
            // A page that the kernel waits for is served under the read token that covers it (rule R2), as long as no
            // mapping is writable: else it could be dirtied, and the revokes of the right to write would not find it.
            Verdict::Fail(Failure::Again)
                if inode.holder.held().covers_range(RangeMode::Read, &range)
                    && state.gate.borrow(asked, &mut out) =>
            {
                Admission::Served
            }
            Verdict::Fail(why) => {
                self.yield_error(ticket, why);
                Admission::Refused
            }
        };
        self.gate_effects(env, ino, out);
        admission
    }

    /// A revoke under way takes bytes of the range, and will have them flushed.
    pub(crate) fn is_leaving(&self, ino: InodeId, range: &ByteRange) -> bool {
        let inode = self.inodes.get(&ino);
        inode.is_some_and(|inode| inode.is_leaving(range))
    }

    /// A request in service is finished.
    pub(crate) fn served(&mut self, env: &Env<'_>, ino: InodeId, ticket: Ticket) {
        let has_gate = self.inodes.get(&ino).is_some_and(|i| i.gate.is_some());
        if has_gate {
            // Not `on_served`: what was admitted before the gate was made is not known to it.
            self.gate_call(env, ino, |gate, out| gate.on_abandoned(ticket, out));
        }
    }

    /// A request that the gate may have parked is given up.
    pub(crate) fn abandon(&mut self, env: &Env<'_>, ino: InodeId, ticket: Ticket) {
        if self.ungate(ino, ticket).is_some() {
            self.gate_call(env, ino, |gate, out| gate.on_abandoned(ticket, out));
        }
    }

    /// Answers a request that holds a notification up with an error.
    fn yield_error(&mut self, ticket: Ticket, why: Failure) {
        self.yield_reply(ticket, Response::Error(errno_of(why)));
    }

    /// Parks a READ, a write-back or a change of size in its inode's gate, for the lease is over and the gate is about
    /// to be suspended. What needs no gate is left to the caller.
    pub(crate) fn hold(&mut self, env: &Env<'_>, request: &Request) -> Option<InodeId> {
        let (kind, range) = gate_kind(request);
        let ino = match &request.operation {
            Operation::Read { ino, .. }
            | Operation::Write { ino, .. }
            | Operation::SetAttr { ino, .. }
            | Operation::Open { ino, .. } => *ino,
            _ => return None,
        };
        self.gate_of(ino);
        match self.admit(env, ino, request, kind, range, false) {
            // Only a write-back is admitted without its tokens (rule R5).
            Admission::Served => self.serve_write(env, request.clone()),
            Admission::NeedsToken | Admission::Refused => {}
        }
        Some(ino)
    }

    /// Has the kernel drop all of a file whose tokens are in doubt, once per lapse.
    pub(crate) fn suspend(&mut self, env: &Env<'_>, ino: InodeId) {
        if !self.gate_of(ino).gate.is_suspended() {
            self.undropped.insert(ino);
            self.gate_call(env, ino, Gate::suspend);
        }
    }

    /// The tokens are good again.
    pub(crate) fn resume(&mut self, env: &Env<'_>, ino: InodeId) {
        self.gate_call(env, ino, Gate::resume);
    }

    pub(crate) fn gate_call(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        act: impl FnOnce(&mut Gate, &mut revoke::Outbox),
    ) {
        let Some(state) = self.inodes.get_mut(&ino).and_then(|i| i.gate.as_mut()) else {
            return;
        };
        let mut out = Vec::new();
        act(&mut state.gate, &mut out);
        self.gate_effects(env, ino, out);
    }

    /// An owner revokes.
    pub(crate) fn on_revoke(&mut self, env: &Env<'_>, _from: types::NodeId, revoke: Revoke) {
        let ino = revoke.ino;
        if self.is_early(&revoke) {
            return self.early_revokes.push(revoke);
        }
        let inode = self.inode(ino);
        let is_names = |want: &Want| matches!(want, Want::Directory { .. });
        if revoke.number > inode.holder.seen() && !revoke.wants.iter().any(is_names) {
            inode.note_overtaken(env.now);
        }
        let Some(plan) = inode.holder.on_revoke(env.now, &revoke, &inode.activity) else {
            return;
        };
        self.begin_release(env, ino, plan);
    }

    /// The grant that it names is on its way to a question of ours: revokes travel ahead, and an answer to another
    /// node waits for the owner's journal. Who waited for the grant is served first, or a reader beside a busy writer
    /// would get one void grant after the other. If it comes again, the grant is lost: then it is void.
    fn is_early(&mut self, revoke: &Revoke) -> bool {
        let count = self.early_revokes.len();
        let is_same = |early: &Revoke| early.ino == revoke.ino && early.revoke == revoke.revoke;
        self.early_revokes.retain(|early| !is_same(early));
        let is_again = self.early_revokes.len() < count;
        let inode = self.inode(revoke.ino);
        let is_unseen = inode.is_acquiring && !inode.holder.has_seen(revoke.number);
        is_unseen && !is_again && !self.is_lapsed && self.early_revokes.len() < EARLY_COUNT_MAX
    }

    /// After an answer: revokes that waited for a grant in it.
    pub(crate) fn take_early_revokes(&mut self, env: &Env<'_>) {
        for revoke in std::mem::take(&mut self.early_revokes) {
            let inode = self.inode(revoke.ino);
            if inode.is_acquiring && !inode.holder.has_seen(revoke.number) {
                self.early_revokes.push(revoke);
            } else {
                self.on_revoke(env, types::NodeId(0), revoke);
            }
        }
    }

    /// Carries a plan out: stop, drop, flush; the end of it is `finish_release`.
    pub(crate) fn begin_release(&mut self, env: &Env<'_>, ino: InodeId, plan: token::Plan) {
        if plan.is_empty() {
            let finish = self.finish_release_of(env, ino, plan.release);
            self.on_finish(env, ino, finish);
        } else if plan.directory.is_some() {
            self.begin_directory_revoke(env, ino, &plan);
        } else {
            self.begin_file_revoke(env, ino, &plan);
        }
    }

    fn on_finish(&mut self, env: &Env<'_>, ino: InodeId, finish: token::Finish) {
        match finish {
            token::Finish::Release(released) => {
                self.out.push(Effect::Release(ino.shard(), released));
            }
            token::Finish::More(plan) => self.begin_release(env, ino, plan),
        }
    }

    pub(crate) fn gate_of(&mut self, ino: InodeId) -> &mut RevokeState {
        let rules = Rules {
            r13: !self.overtakes_fills,
            ..Rules::DEFAULT
        };
        let inode = self.inode(ino);
        if inode.gate.is_none() {
            let mut gate = Gate::new(rules, inode.writer_count > 0);
            // Reads that wait for their sectors are in service; the revoke waits for them.
            let mut out = Vec::new();
            for parked in inode.parked.iter().filter(|p| p.is_admitted) {
                let ticket = parked.request.ticket;
                let (kind, range) = gate_kind(&parked.request);
                let request = GateRequest {
                    ticket,
                    kind,
                    range,
                    has_token: true,
                };
                let verdict = gate.on_request(request, &mut out);
                assert_eq!(verdict, Verdict::Serve, "nothing is being revoked yet");
            }
            // So are changes of size that wait for the owner: it must not have to wait for their tokens.
            for (ticket, range) in &inode.resizes {
                let request = GateRequest {
                    ticket: *ticket,
                    kind: RequestKind::SetSize,
                    range: *range,
                    has_token: true,
                };
                let verdict = gate.on_request(request, &mut out);
                assert_eq!(verdict, Verdict::Serve, "nothing is being revoked yet");
            }
            // Reads that wait for tokens hold their folios locked: the gate keeps notifications off them
            // (rule R3).
            let mut gated = BTreeMap::new();
            let waiting = inode.present_work().map(|w| std::mem::take(&mut w.parked));
            for parked in waiting.into_iter().flatten() {
                if parked.is_admitted || parked.why != Waiting::Token {
                    inode.parked.push_back(parked);
                    continue;
                }
                let ticket = parked.request.ticket;
                let (kind, range) = gate_kind(&parked.request);
                let request = GateRequest {
                    ticket,
                    kind,
                    range,
                    has_token: false,
                };
                let verdict = gate.on_request(request, &mut out);
                assert_eq!(verdict, Verdict::Park, "its tokens are missing");
                gated.insert(ticket, parked.request);
            }
            assert!(out.is_empty(), "nothing is being revoked yet");
            inode.gate = Some(Box::new(RevokeState {
                gate,
                directory: None,
                leaving: BTreeMap::new(),
                parked: gated,
                held: Vec::new(),
                drops: BTreeMap::new(),
                placed: BTreeMap::new(),
                clearing: None,
                filling: Vec::new(),
                next_revoke: 0,
            }));
        }
        self.inode(ino).gate.as_mut().expect("just made")
    }

    fn begin_file_revoke(&mut self, env: &Env<'_>, ino: InodeId, plan: &token::Plan) {
        let inode = self.inode(ino);
        // Nothing of the file is cached behind its end as this node sees it, rounded to a page.
        let size_end = inode.size.next_multiple_of(PAGE_SIZE).max(PAGE_SIZE);
        let lost = ranges_of(&plan.invalidate, size_end);
        let mut demoted = ranges_of(&plan.flush, size_end);
        for range in lost.ranges() {
            demoted.remove(*range);
        }
        // Until the kernel has dropped what it got under read tokens, mappings are not writable yet.
        let is_clearing = inode.gate.as_ref().is_some_and(|s| s.gate.is_clearing());
        let is_mappable = inode.writer_count > 0 && !is_clearing && !inode.has_read_pages;
        let pages_of = |ranges: &RangeSet| {
            let mut pages = RangeSet::new();
            for range in ranges.ranges() {
                let within = cached_pages(inode, range, !is_mappable);
                within.ranges().iter().for_each(|r| pages.insert(*r));
            }
            pages
        };
        let attributes = match &plan.inode {
            None => AttributesGo::Stay,
            // One writer among several does not know the size and the times.
            Some(change) if change.to == Some(types::InodeMode::Read) => AttributesGo::Demoted,
            Some(_) => AttributesGo::Lost,
        };
        let is_attr_lost = attributes == AttributesGo::Lost;
        // Another revoke's notification may still be on its way.
        let is_attr_unknown = !inode.is_attr_believed && !inode.is_revoking();
        let scope = Scope {
            is_attr_unknown,
            lost_pages: pages_of(&lost),
            demoted_pages: pages_of(&demoted),
            lost: lost.clone(),
            demoted: demoted.clone(),
            attributes,
        };
        if is_attr_lost {
            inode.is_attr_believed = false;
            inode.unbelieved_shows = UNBELIEVED_SHOWS;
            if !is_attr_unknown {
                // The notice makes all answers before it void.
                inode.believed_by = belief::NOBODY;
            }
        }
        // Pages that came under the right to write stay in the kernel under the right to read.
        inode.has_read_pages |= inode.writer_count == 0 && !scope.demoted_pages.is_empty();
        // A prefetch is nobody's request: its bytes are dropped when they come.
        let loads = inode.present_work().map(|work| &mut work.loads);
        for load in loads
            .into_iter()
            .flatten()
            .filter(|l| !l.is_wanted && !lost.is_empty())
        {
            load.is_stale = true;
        }
        let state = self.gate_of(ino);
        state.next_revoke += 1;
        let id = RevokeId(state.next_revoke);
        let leaving = Leaving {
            release: plan.release,
            lost,
            demoted,
            is_attr_lost,
            late_count: 0,
        };
        state.leaving.insert(id, leaving);
        self.gate_call(env, ino, |gate, out| gate.begin_revoke(id, scope, out));
    }

    fn begin_directory_revoke(&mut self, env: &Env<'_>, ino: InodeId, plan: &token::Plan) {
        let inode = self.inode(ino);
        inode.forget_entries();
        inode.names_epoch += NAMES_TOKEN;
        let state = self.gate_of(ino);
        state.next_revoke += 1;
        let id = RevokeId(state.next_revoke);
        let leaving = Leaving {
            release: plan.release,
            lost: RangeSet::new(),
            demoted: RangeSet::new(),
            is_attr_lost: true,
            late_count: 0,
        };
        state.leaving.insert(id, leaving);
        let directory = state
            .directory
            .get_or_insert_with(|| DirectoryGate::new(Rules::DEFAULT, true));
        // Answers with time-outs have gone out while the token was held.
        directory.set_shared(false);
        let _ = directory.timeout(types::Duration::from_secs(1));
        let mut out = Vec::new();
        directory.begin_revoke(env.now, id, &mut out);
        let keeps_names = plan.directory.as_ref().is_some_and(|d| d.to.is_some());
        self.directory_effects(env, (ino, keeps_names), out);
    }

    /// `keeps_names`: what stays of the token covers the names that the kernel has been told.
    fn directory_effects(
        &mut self,
        env: &Env<'_>,
        (ino, keeps_names): (InodeId, bool),
        effects: Vec<DirectoryEffect>,
    ) {
        for effect in effects {
            match effect {
                DirectoryEffect::DropNames { notify } => {
                    // Attributes by a notification that does not block, names by their time-outs.
                    let gate_id = notify.0 | DIRECTORY_NOTIFY;
                    let notice = Notice::Attributes { ino };
                    if keeps_names {
                        self.out.push(Effect::Notify(None, notice));
                        let id = NotifyId(self.draw_id());
                        self.notifies.insert(id, (ino, gate_id));
                        self.on_notified(env, id);
                    } else {
                        self.notify(env, ino, gate_id | ATTRIBUTES_NOTIFY, notice);
                    }
                }
                DirectoryEffect::Release { revoke } => self.finish_release(env, ino, revoke),
                DirectoryEffect::Retry { .. } | DirectoryEffect::NotifyEntries { .. } => {
                    unreachable!("directory requests are not gated, and rule R11 is on")
                }
            }
        }
    }

    fn notify(&mut self, env: &Env<'_>, ino: InodeId, gate_id: u64, notice: Notice) {
        let id = NotifyId(self.draw_id());
        self.notifies.insert(id, (ino, gate_id));
        // Without a lease no reply is written before it is back: nothing waits for that.
        let is_held = !self.is_lapsed;
        let inode = self.inode(ino);
        if is_held && inode.unwritten_replies > 0 {
            let state = inode
                .gate
                .as_mut()
                .expect("a gate asked for the notification");
            state.held.push((id, notice));
        } else if (inode.lookup_count == 0 && ino != InodeId::ROOT) || inode.goes_silently {
            // The kernel does not know the inode, or may go on believing what it knows: there is nothing to drop.
            self.on_notified(env, id);
        } else {
            self.out.push(Effect::Notify(Some(id), notice));
        }
    }

    /// The replies that notifications waited for are written.
    pub(crate) fn send_held_notices(&mut self, _env: &Env<'_>, ino: InodeId) {
        let Some(state) = self.inode(ino).gate.as_mut() else {
            return;
        };
        for (id, notice) in std::mem::take(&mut state.held) {
            self.out.push(Effect::Notify(Some(id), notice));
        }
    }

    /// The kernel dropped what it was told to.
    pub(crate) fn on_notified(&mut self, env: &Env<'_>, id: NotifyId) {
        let Some((ino, gate_id)) = self.notifies.remove(&id) else {
            return;
        };
        if gate_id & DIRECTORY_NOTIFY == 0 {
            let notify = revoke::NotifyId(gate_id);
            return self.gate_call(env, ino, |gate, out| gate.on_notified(notify, out));
        }
        if gate_id & ATTRIBUTES_NOTIFY != 0 {
            let id = NotifyId(self.draw_id());
            self.notifies
                .insert(id, (ino, gate_id & !ATTRIBUTES_NOTIFY));
            return self.await_names(env, ino, id);
        }
        let notify = revoke::NotifyId(gate_id & !DIRECTORY_NOTIFY);
        let mut out = Vec::new();
        if let Some(directory) = self
            .inode(ino)
            .gate
            .as_mut()
            .and_then(|state| state.directory.as_mut())
        {
            directory.on_notified(env.now, notify, &mut out);
        }
        self.directory_effects(env, (ino, false), out);
    }

    /// The dirty data of a revoke is committed, or lost.
    pub(crate) fn on_revoke_flushed(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        revoke: RevokeId,
        outcome: FlushOutcome,
    ) {
        self.gate_call(env, ino, |gate, out| gate.on_flushed(revoke, outcome, out));
    }

    fn gate_effects(&mut self, env: &Env<'_>, ino: InodeId, effects: revoke::Outbox) {
        for effect in effects {
            match effect {
                revoke::Effect::Serve { ticket } => {
                    if let Some(request) = self.ungate(ino, ticket) {
                        match request.operation {
                            Operation::Read { .. } => self.serve_read(env, request),
                            Operation::Write { .. } => self.serve_write(env, request),
                            _ => unreachable!("the gate serves parked write-back only"),
                        }
                    }
                }
                revoke::Effect::Retry { ticket } => {
                    if let Some(request) = self.ungate(ino, ticket) {
                        self.start(env, request);
                    }
                }
                revoke::Effect::Fail { ticket, why } => {
                    self.ungate(ino, ticket);
                    self.yield_error(ticket, why);
                }
                revoke::Effect::Notify { notify, pages } => {
                    let notice = match pages {
                        None => Notice::Attributes { ino },
                        Some(pages) if pages.end == u64::MAX => Notice::Data {
                            ino,
                            offset: pages.begin,
                            length: 0,
                        },
                        Some(pages) => Notice::Data {
                            ino,
                            offset: pages.begin,
                            length: pages.length(),
                        },
                    };
                    self.notify(env, ino, notify.0, notice);
                }
                revoke::Effect::Flush { revoke, .. } => {
                    self.add_goal(env, ino, Purpose::Revoke(revoke));
                }
                revoke::Effect::Release { revoke, .. } => {
                    let inode = self.inode(ino);
                    let state = inode.gate.as_mut().expect("its gate says so");
                    if let Some(answers) = state.drops.remove(&revoke) {
                        if state.clearing == Some(revoke) {
                            state.clearing = None;
                        }
                        if let Some(range) = state.placed.remove(&revoke) {
                            inode.unshown.remove(range);
                        }
                        self.drop_gate_if_idle(ino);
                        for (ticket, response) in answers {
                            self.reply_opened(ticket, response, ino);
                        }
                    } else {
                        self.finish_release(env, ino, revoke);
                    }
                }
                revoke::Effect::LapseDone => {
                    self.undropped.remove(&ino);
                }
                // The driver has a limit of its own for all files together.
                revoke::Effect::Abort => {}
            }
        }
        self.drop_gate_if_idle(ino);
    }

    /// Answers a writable open when the kernel has nothing any more that it got under read tokens alone: through a
    /// mapping it could be dirtied without the right to write.
    pub(crate) fn reply_without_read_pages(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        ticket: Ticket,
        response: Response,
    ) {
        let inode = self.inode(ino);
        if let Some(state) = inode.gate.as_mut()
            && let Some(id) = state.clearing
        {
            let answers = state.drops.get_mut(&id).expect("it is not over");
            return answers.push((ticket, belief::told_once(response)));
        }
        let is_first = inode.writer_count == 1;
        let has_revoke = inode.gate.as_ref().is_some_and(|s| s.gate.has_revoke());
        let has_pages = std::mem::take(&mut inode.has_read_pages);
        let must_wait = has_pages || (is_first && has_revoke);
        if !must_wait {
            return self.reply_opened(ticket, response, ino);
        }
        let response = belief::told_once(response);
        let pages = match has_pages {
            true => cached_pages(inode, &ByteRange::ALL, true),
            false => RangeSet::new(),
        };
        let state = self.gate_of(ino);
        state.next_revoke += 1;
        let id = RevokeId(state.next_revoke);
        state.clearing = Some(id);
        state.drops.insert(id, vec![(ticket, response)]);
        self.gate_call(env, ino, |gate, out| gate.begin_clearing(id, pages, out));
    }

    fn drop_gate_if_idle(&mut self, ino: InodeId) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        let is_idle = inode.gate.as_ref().is_some_and(|state| {
            state.leaving.is_empty()
                && state.gate.is_idle()
                && state.parked.is_empty()
                && state.held.is_empty()
                && state.drops.is_empty()
                && state.filling.is_empty()
        });
        if is_idle {
            inode.gate = None;
        }
    }

    fn ungate(&mut self, ino: InodeId, ticket: Ticket) -> Option<Request> {
        self.inodes
            .get_mut(&ino)?
            .gate
            .as_mut()?
            .parked
            .remove(&ticket)
    }

    /// Bytes of what leaves in the revoke are dirty and not with the owner. Bounded: a writer that never stops
    /// hears an error at last.
    fn has_late_writes(&mut self, ino: InodeId, revoke: RevokeId) -> bool {
        let inode = self.inode(ino);
        let state = inode.gate.as_ref().expect("its gate says so");
        let leaving = state.leaving.get(&revoke).expect("its gate says so");
        let mut ranges = leaving.lost.ranges().iter().chain(leaving.demoted.ranges());
        if !ranges.any(|range| !inode.pages.busy(range).is_empty()) {
            return false;
        }
        let state = inode.gate.as_mut().expect("as above");
        let leaving = state.leaving.get_mut(&revoke).expect("as above");
        leaving.late_count += 1;
        if leaving.late_count > LATE_FLUSHES_MAX {
            inode.errors.note(Errno::EIO);
            return false;
        }
        true
    }

    /// Nothing of what leaves is cached, dirty or in use here any more: it goes.
    pub(crate) fn finish_release(&mut self, env: &Env<'_>, ino: InodeId, revoke: RevokeId) {
        if self.has_late_writes(ino, revoke) {
            // Served under the old token after the flush: it goes to the owner before the token.
            return self.add_goal(env, ino, Purpose::Late(revoke));
        }
        let inode = self.inode(ino);
        let state = inode.gate.as_mut().expect("its gate says so");
        let leaving = state.leaving.remove(&revoke).expect("its gate says so");
        if !leaving.lost.is_empty()
            && let Some(work) = inode.present_work()
        {
            // A load that outlived its request must not bring old bytes under a later token.
            work.loads.iter_mut().for_each(|load| load.is_stale = true);
        }
        let (mut dropped, mut forgotten) = (0, 0);
        for range in leaving.lost.ranges() {
            if let Some(work) = inode.present_work() {
                dropped += work.pages.discard(range, env.pool);
            }
            // Where its bytes lie is another node's business now.
            forgotten += inode.forget_hasty(range);
            inode.forget_map(range);
        }
        if leaving.is_attr_lost {
            inode.is_attr_fresh = false;
            inode.loss_count += 1;
        }
        self.hasty_count -= forgotten;
        self.give_back(env, ino, dropped);
        let finish = self.finish_release_of(env, ino, leaving.release);
        let inode = self.inode(ino);
        // What no token covers the kernel has dropped.
        if inode.may_have_pages {
            inode.may_have_pages = !cached_pages(inode, &ByteRange::ALL, true).is_empty();
        }
        self.drop_gate_if_idle(ino);
        self.on_finish(env, ino, finish);
        self.retry(env, ino);
        self.drop_if_gone(env, ino);
    }
}

/// Marks the notifications of a `DirectoryGate` among those of an inode.
const DIRECTORY_NOTIFY: u64 = 1 << 63;
/// Among these, that for attributes: names are waited for after it.
const ATTRIBUTES_NOTIFY: u64 = 1 << 62;

fn errno_of(why: Failure) -> Errno {
    match why {
        Failure::Again => Errno::EAGAIN,
        Failure::Interrupted => Errno::EINTR,
        Failure::LeaseLost => Errno::EIO,
    }
}

/// How the gate sees a request that is in service already.
fn gate_kind(request: &Request) -> (RequestKind, ByteRange) {
    match request.operation {
        Operation::Read {
            offset,
            length,
            fills_page_cache,
            ..
        } => {
            let kind = if fills_page_cache {
                RequestKind::Read
            } else {
                RequestKind::DirectRead
            };
            (kind, ByteRange::at(offset, length.into()))
        }
        Operation::Write {
            offset,
            payload,
            is_write_back,
            ..
        } => {
            let kind = if is_write_back {
                RequestKind::WriteBack
            } else {
                RequestKind::Write
            };
            (kind, ByteRange::at(offset, payload.length.into()))
        }
        Operation::Seek { offset, .. } => {
            (RequestKind::DirectRead, ByteRange::new(offset, u64::MAX))
        }
        Operation::Punch { begin, end, .. } | Operation::Allocate { begin, end, .. } => {
            (RequestKind::Write, ByteRange::new(begin, end))
        }
        _ if new_size(&request.operation).is_some() => {
            // What is cut is not known here: all that may be.
            (resize_kind(request), ByteRange::ALL)
        }
        Operation::SetAttr { .. } => (RequestKind::Attributes, ByteRange::default()),
        _ => (RequestKind::Other, ByteRange::default()),
    }
}

/// The pages that overlap `range` and that the kernel may have in its page cache: those that the tokens a READ takes
/// cover whole. Where a mapping may be writable that is the right to write; others must not be notified, for a READ of
/// them could not be served meanwhile. `with_read`: those that only read tokens cover, too.
pub(crate) fn cached_pages(
    inode: &crate::inode::Inode,
    range: &ByteRange,
    with_read: bool,
) -> RangeSet {
    let range = revoke::round_out(range);
    let held = inode.holder.held();
    let mut covered = held.write.ranges_within(&range, PAGE_PIECES_MAX);
    if with_read {
        for more in held.read.ranges_within(&range, PAGE_PIECES_MAX).ranges() {
            covered.insert(*more);
        }
    }
    let mut pages = RangeSet::new();
    for bytes in covered.ranges() {
        let Some(begin) = bytes.begin.checked_next_multiple_of(PAGE_SIZE) else {
            continue;
        };
        let end = match bytes.end {
            u64::MAX => u64::MAX,
            end => end / PAGE_SIZE * PAGE_SIZE,
        };
        pages.insert(ByteRange::new(begin, end.max(begin)));
    }
    pages
}

/// The bytes of `set`, as far as anything of the file is cached (`size_end`) one by one, and all that lies
/// behind as one range: parked and new requests there must wait for the release too.
fn ranges_of(set: &token::PatternSet, size_end: u64) -> RangeSet {
    let mut ranges = set.ranges_within(&ByteRange::new(0, size_end), PIECES_MAX);
    for shape in set.shapes() {
        let hull = shape.hull();
        if hull.end > size_end {
            ranges.insert(ByteRange::new(hull.begin.max(size_end), u64::MAX));
        }
    }
    ranges
}
