//! The directory at a node: lookups under its read token, changes executed by the owner.

use std::collections::BTreeMap;

use client::request::Ticket;
use client::revoke::{DirectoryEffect, DirectoryGate, DirectoryVerdict, NotifyId, RevokeId};
use token::{Activity, Adopted, Finish, Granted, Holder, Message as TokenMessage, Plan};
use types::{DirectoryMode, Duration, Want};

use super::{Asked, Output, Purpose, Setting, Shared};
use crate::model::{Answer, Ask, FuseRequest, NAME_COUNT, TIMEOUT_TICKS, Value};
use crate::owner::{Call, DIRECTORY, Reply};

/// The directory of a daemon.
#[derive(Debug)]
pub struct Names {
    /// Its token.
    pub holder: Holder,
    /// Unanswered token requests.
    pub asked: Asked,
    gate: DirectoryGate,
    /// Names under the read token, and the change number they are of.
    known: Option<([Value; NAME_COUNT], u64)>,
    /// The newest change of its own that was answered: a fetch from before it says nothing.
    own_change: u64,
    is_fetching: bool,
    requests: BTreeMap<u64, FuseRequest>,
    waiting: Vec<u64>,
    /// Lookups that were parked although the token was held, and since when.
    parked: BTreeMap<u64, u64>,
    leaving: BTreeMap<RevokeId, Plan>,
    next_revoke: u64,
}

impl Names {
    /// Knows nothing.
    pub fn new(setting: &Setting) -> Self {
        Self {
            holder: Holder::new(),
            asked: Asked::default(),
            gate: DirectoryGate::new(setting.rules, setting.has_epoch),
            known: None,
            own_change: 0,
            is_fetching: false,
            requests: BTreeMap::new(),
            waiting: Vec::new(),
            parked: BTreeMap::new(),
            leaving: BTreeMap::new(),
            next_revoke: 0,
        }
    }

    pub(super) fn on_request(&mut self, shared: &mut Shared, request: FuseRequest) {
        match request.ask {
            Ask::Bind(name, value) => {
                shared.call(
                    Purpose::Bind(request.id, name, value),
                    Call::Bind(name, value),
                );
            }
            _ => self.present(shared, request),
        }
    }

    fn present(&mut self, shared: &mut Shared, request: FuseRequest) {
        let id = request.id;
        let want = Want::Directory {
            mode: DirectoryMode::Read,
        };
        let has_token = self.holder.held().covers(&want);
        self.requests.insert(id, request);
        match self.gate.on_request(Ticket(id), has_token) {
            DirectoryVerdict::Serve => self.serve(shared, id),
            DirectoryVerdict::Park if !has_token => {
                self.asked
                    .ask(shared, id, DIRECTORY, &self.holder, vec![want]);
            }
            DirectoryVerdict::Park => {
                self.parked.insert(id, shared.now);
            }
        }
    }

    /// The oldest lookup that was parked under a token, since when.
    pub fn parked_since(&self) -> Option<u64> {
        self.parked.values().min().copied()
    }

    fn serve(&mut self, shared: &mut Shared, id: u64) {
        let Some((names, _)) = self.known else {
            self.waiting.push(id);
            if !self.is_fetching {
                self.is_fetching = true;
                shared.call(Purpose::Names, Call::FetchNames);
            }
            return;
        };
        let request = self.requests.remove(&id).expect("in service");
        let Ask::Lookup(name) = request.ask else {
            unreachable!("only lookups are gated");
        };
        let value = names[name];
        let timeout = self.timeout();
        shared.out.push(Output::Answer(
            id,
            Answer::Entry {
                value,
                timeout,
                attributes: None,
            },
        ));
    }

    fn timeout(&mut self) -> u64 {
        self.gate.timeout(Duration::from_millis(TIMEOUT_TICKS)).0 / 1_000_000
    }

    pub(super) fn on_reply(&mut self, shared: &mut Shared, purpose: &Purpose, reply: &Reply) {
        match (purpose, reply) {
            (Purpose::Names, Reply::Names(names, change)) => {
                self.is_fetching = false;
                let is_new = self.known.is_none_or(|(_, known)| known < *change);
                if is_new && *change >= self.own_change {
                    self.known = Some((*names, *change));
                }
                for id in std::mem::take(&mut self.waiting) {
                    self.serve(shared, id);
                }
            }
            (Purpose::Bind(id, name, value), Reply::Bound(change, granted)) => {
                self.own_change = self.own_change.max(*change);
                self.adopt(shared, granted, true);
                // What the token covers stays current; the kernel may believe the name only if it is.
                let mut is_current = false;
                if let Some((names, known)) = &mut self.known {
                    if *known + 1 == *change {
                        names[*name] = *value;
                        *known = *change;
                    } else if *known < *change {
                        self.known = None;
                    }
                    is_current = self.known.is_some_and(|(names, _)| names[*name] == *value);
                }
                let timeout = if is_current { self.timeout() } else { 0 };
                let attributes = None;
                shared.out.push(Output::Answer(
                    *id,
                    Answer::Entry {
                        value: *value,
                        timeout,
                        attributes,
                    },
                ));
            }
            _ => unreachable!("replies answer their calls"),
        }
    }

    pub(super) fn on_written(&mut self, shared: &mut Shared, ticket: Ticket) {
        if !self.gate.is_serving(ticket) {
            return;
        }
        let mut out = Vec::new();
        self.gate.on_served(shared.instant(), ticket, &mut out);
        self.perform(shared, out);
    }

    pub(super) fn on_token(&mut self, shared: &mut Shared, message: TokenMessage) {
        match message {
            TokenMessage::Granted(granted) => {
                let is_asked = self.asked.answer(granted.ticket);
                self.adopt(shared, &granted, is_asked);
            }
            TokenMessage::Revoke(revoke) => {
                let activity = Activity::default();
                if let Some(plan) = self.holder.on_revoke(shared.instant(), &revoke, &activity) {
                    self.begin(shared, plan);
                }
            }
            _ => unreachable!("not said to a holder"),
        }
    }

    fn adopt(&mut self, shared: &mut Shared, granted: &Granted, is_asked: bool) {
        if let Adopted::Unasked(released) = self.holder.on_granted(granted, is_asked) {
            shared
                .out
                .push(Output::Token(TokenMessage::Released(released)));
        }
        let mut out = Vec::new();
        self.gate.on_token_granted(&mut out);
        self.perform(shared, out);
    }

    fn begin(&mut self, shared: &mut Shared, plan: Plan) {
        if plan.directory.is_none() {
            return self.finish(shared, &plan);
        }
        self.next_revoke += 1;
        let revoke = RevokeId(self.next_revoke);
        self.leaving.insert(revoke, plan);
        let mut out = Vec::new();
        self.gate.begin_revoke(shared.instant(), revoke, &mut out);
        self.perform(shared, out);
    }

    fn finish(&mut self, shared: &mut Shared, plan: &Plan) {
        match self.holder.finish_release(plan.release, true) {
            Finish::Release(released) => {
                shared
                    .out
                    .push(Output::Token(TokenMessage::Released(released)));
            }
            Finish::More(more) => self.begin(shared, more),
        }
    }

    pub(super) fn on_notified(&mut self, shared: &mut Shared, notify: NotifyId) {
        let mut out = Vec::new();
        self.gate.on_notified(shared.instant(), notify, &mut out);
        self.perform(shared, out);
    }

    pub(super) fn on_timeout(&mut self, shared: &mut Shared) {
        self.asked.repeat(shared.now, &mut shared.out);
        let mut out = Vec::new();
        self.gate.on_timeout(shared.instant(), &mut out);
        self.perform(shared, out);
    }

    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.gate.next_timeout().map(|at| at.0.div_ceil(1_000_000))
    }

    fn perform(&mut self, shared: &mut Shared, effects: Vec<DirectoryEffect>) {
        for effect in effects {
            match effect {
                DirectoryEffect::Retry { ticket } => {
                    let request = self.requests.remove(&ticket.0).expect("parked");
                    self.parked.remove(&ticket.0);
                    self.present(shared, request);
                }
                DirectoryEffect::DropNames { notify } => {
                    shared.out.push(Output::NotifyEpoch(notify));
                }
                DirectoryEffect::NotifyEntries { notify } => {
                    shared.out.push(Output::NotifyEntries(notify));
                }
                DirectoryEffect::Release { revoke } => {
                    let plan = self.leaving.remove(&revoke).expect("begun");
                    self.known = None;
                    self.finish(shared, &plan);
                }
            }
        }
    }

    /// Lookups that are not answered.
    pub fn request_ids(&self) -> Vec<u64> {
        self.requests.keys().copied().collect()
    }

    pub(super) fn lapse(&mut self, shared: &mut Shared) {
        let old = std::mem::replace(self, Self::new(&shared.setting));
        self.next_revoke = old.next_revoke;
    }

    pub(super) fn check(&self) {
        self.holder.check();
        self.gate.check();
    }

    pub(super) fn describe(&self) -> String {
        let Self { gate, requests, .. } = self;
        format!(
            "directory: {gate:?}, requests {requests:?}, held {:?}",
            self.holder.held()
        )
    }
}
