//! The daemon of one node as far as tokens and revocation go: the real `token::Holder`, `client::revoke::Gate` and
//! `DirectoryGate`, around a page store of cells.
//!
//! It does what the crate `client` does with them: a request is presented to the gate, parked or served; served ones
//! fetch what is missing from the owner and answer; dirty cells are committed in the background, at the latest in a
//! revoke. Answers are written later than they are made: `Output::Answer` may be delivered at any time.

mod file;
mod names;

use std::collections::BTreeMap;

use client::request::Ticket;
use client::revoke::{NotifyId, Rules};
use token::{Holder, Message as TokenMessage};
use types::id::NodeLife;
use types::{InodeId, Instant};

use crate::model::{Answer, Ask, FuseRequest, Value};
use crate::owner::{Call, DIRECTORY, Reply, file_ino};

pub use file::File;
pub use names::Names;

/// Ticks after which an unanswered message is sent again.
pub const RETRY_TICKS: u64 = 150;

/// What the daemon wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// Write this answer to the kernel, some time.
    Answer(u64, Answer),
    /// Send to the owner.
    Token(TokenMessage),
    /// Send to the owner; repeated until answered.
    Call(u64, Call),
    /// INVAL_INODE of pages; then `on_notified`.
    NotifyPages(usize, NotifyId, std::ops::Range<usize>),
    /// INVAL_INODE with offset -1; does not block.
    NotifyAttributes(usize, NotifyId),
    /// INC_EPOCH; does not block.
    NotifyEpoch(NotifyId),
    /// INVAL_ENTRY of all names.
    NotifyEntries(NotifyId),
    /// Something that must not be.
    Violation(String),
}

/// What is fixed for a daemon.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Rules in force.
    pub rules: Rules,
    /// Files are mapped writable: page-cache READs take write tokens.
    pub has_mappings: bool,
    /// The kernel knows INC_EPOCH.
    pub has_epoch: bool,
}

/// For which part of the daemon a call was made.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Purpose {
    /// A parked or served request of a file goes on.
    Request(usize, u64),
    /// Dirty cells that were sent, and how often the inode token had been lost then.
    Commit(usize, Vec<(usize, Value)>, u64),
    /// A truncate to this size for a request.
    Truncate(usize, u64, usize),
    /// Lookups that wait for the names.
    Names,
    /// A Bind of a request.
    Bind(u64, usize, Value),
}

/// What all parts of a daemon share.
#[derive(Debug)]
pub struct Shared {
    setting: Setting,
    life: NodeLife,
    now: u64,
    next_id: u64,
    calls: BTreeMap<u64, (Purpose, Call, u64)>,
    /// Outputs in order.
    pub out: Vec<Output>,
}

impl Shared {
    fn instant(&self) -> Instant {
        Instant(self.now * 1_000_000)
    }

    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn call(&mut self, purpose: Purpose, call: Call) {
        let id = self.id();
        self.calls
            .insert(id, (purpose, call.clone(), self.now + RETRY_TICKS));
        self.out.push(Output::Call(id, call));
    }
}

/// One node's daemon.
#[derive(Debug)]
pub struct Daemon {
    /// Outputs, clock and calls.
    pub shared: Shared,
    /// Files.
    pub files: Vec<File>,
    /// The directory.
    pub names: Names,
}

impl Daemon {
    /// A daemon at its start.
    pub fn new(setting: Setting, life: NodeLife, file_count: usize) -> Self {
        let file = |index| File::new(index, &setting);
        Self {
            shared: Shared {
                setting,
                life,
                now: 0,
                next_id: 0,
                calls: BTreeMap::new(),
                out: Vec::new(),
            },
            files: (0..file_count).map(file).collect(),
            names: Names::new(&setting),
        }
    }

    /// This life of the node.
    pub const fn life(&self) -> NodeLife {
        self.shared.life
    }

    /// A request was read from the kernel.
    pub fn on_request(&mut self, now: u64, request: FuseRequest) {
        self.shared.now = now;
        match request.ask {
            Ask::Lookup(_) | Ask::Bind(..) => self.names.on_request(&mut self.shared, request),
            Ask::Read(_)
            | Ask::DirectRead(_)
            | Ask::Write { .. }
            | Ask::WriteBack { .. }
            | Ask::SetSize(_)
            | Ask::GetAttr
            | Ask::Fsync
            | Ask::Create(_)
            | Ask::Remove(_)
            | Ask::Move(..) => self.files[request.file].present(&mut self.shared, request),
        }
    }

    /// An answer has been written.
    pub fn on_written(&mut self, now: u64, id: u64) {
        self.shared.now = now;
        self.names.on_written(&mut self.shared, Ticket(id));
    }

    /// A notification of a file has returned.
    pub fn on_notified(&mut self, now: u64, file: usize, notify: NotifyId) {
        self.shared.now = now;
        self.files[file].on_notified(&mut self.shared, notify);
    }

    /// A notification of the directory has returned.
    pub fn on_names_notified(&mut self, now: u64, notify: NotifyId) {
        self.shared.now = now;
        self.names.on_notified(&mut self.shared, notify);
    }

    /// A token message of the owner.
    pub fn on_token(&mut self, now: u64, message: TokenMessage) {
        self.shared.now = now;
        let (TokenMessage::Granted(token::Granted { ino, .. })
        | TokenMessage::Revoke(token::Revoke { ino, .. })) = &message
        else {
            unreachable!("not said to a holder");
        };
        if *ino == DIRECTORY {
            return self.names.on_token(&mut self.shared, message);
        }
        let ino = *ino;
        let index = self.files.iter().position(|f| file_ino(f.index()) == ino);
        let file = &mut self.files[index.expect("a file of the model")];
        file.on_token(&mut self.shared, message);
    }

    /// The owner answered a call; a repeat is ignored.
    pub fn on_reply(&mut self, now: u64, id: u64, reply: Reply) {
        self.shared.now = now;
        let Some((purpose, _, _)) = self.shared.calls.remove(&id) else {
            return;
        };
        match purpose {
            Purpose::Request(file, ticket) => {
                self.files[file].on_fetched(&mut self.shared, ticket, reply);
            }
            Purpose::Commit(file, sent, losses) => {
                self.files[file].on_committed(&mut self.shared, (&sent, losses), &reply);
            }
            Purpose::Truncate(file, ticket, size) => {
                self.files[file].on_truncated(&mut self.shared, (ticket, size), &reply);
            }
            Purpose::Names | Purpose::Bind(..) => {
                self.names.on_reply(&mut self.shared, &purpose, &reply);
            }
        }
    }

    /// Time has passed: repeats what was not answered.
    pub fn on_timeout(&mut self, now: u64) {
        self.shared.now = now;
        let Shared { calls, out, .. } = &mut self.shared;
        for (id, (_, call, at)) in calls {
            if *at <= now {
                *at = now + RETRY_TICKS;
                out.push(Output::Call(*id, call.clone()));
            }
        }
        for file in &mut self.files {
            file.asked.repeat(now, &mut self.shared.out);
        }
        self.names.on_timeout(&mut self.shared);
    }

    /// When to call `on_timeout`.
    pub fn next_timeout(&self) -> Option<u64> {
        let calls = self.shared.calls.values().map(|(_, _, at)| *at);
        let asked = self
            .files
            .iter()
            .map(|f| &f.asked)
            .chain([&self.names.asked]);
        let asked = asked.filter_map(Asked::next_timeout);
        calls.chain(asked).chain(self.names.next_timeout()).min()
    }

    /// Commits some dirty cells by itself.
    pub fn write_behind(&mut self, now: u64, file: usize) {
        self.shared.now = now;
        self.files[file].write_behind(&mut self.shared);
    }

    /// Requests for names that are not answered.
    pub fn name_request_ids(&self) -> Vec<u64> {
        let binds = self
            .shared
            .calls
            .values()
            .filter_map(|(purpose, ..)| match purpose {
                Purpose::Bind(id, ..) => Some(*id),
                Purpose::Request(..)
                | Purpose::Commit(..)
                | Purpose::Truncate(..)
                | Purpose::Names => None,
            });
        self.names.request_ids().into_iter().chain(binds).collect()
    }

    /// The lease lapsed: everything held is gone. Returned are cells whose dirty contents are lost.
    pub fn lapse(&mut self, now: u64, life: NodeLife) -> Vec<(usize, usize)> {
        self.shared.now = now;
        self.shared.life = life;
        self.shared.calls.clear();
        let mut lost = Vec::new();
        for file in &mut self.files {
            let index = file.index();
            lost.extend(
                file.lapse(&mut self.shared)
                    .into_iter()
                    .map(|cell| (index, cell)),
            );
        }
        self.names.lapse(&mut self.shared);
        lost
    }

    /// Asserts invariants of all cores.
    pub fn check(&self) {
        for file in &self.files {
            file.check();
        }
        self.names.check();
    }

    /// For dumps.
    pub fn describe(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.files.iter().map(File::describe).collect();
        lines.push(self.names.describe());
        for (id, (purpose, call, _)) in &self.shared.calls {
            lines.push(format!("call {id} {call:?} for {purpose:?}"));
        }
        lines
    }
}

/// Token requests that are not answered, by ticket.
#[derive(Debug, Default)]
pub struct Asked {
    requests: BTreeMap<u64, (token::Acquire, u64)>,
    /// Which request of the kernel has asked under which ticket.
    by_request: BTreeMap<u64, u64>,
}

impl Asked {
    fn ask(
        &mut self,
        shared: &mut Shared,
        request: u64,
        ino: InodeId,
        holder: &Holder,
        wants: Vec<types::Want>,
    ) {
        if self.by_request.contains_key(&request) {
            return;
        }
        let ticket = shared.id();
        let acquire = token::Acquire {
            holder: shared.life,
            ticket,
            ino,
            seen: holder.seen(),
            wants,
            transient: false,
        };
        self.by_request.insert(request, ticket);
        shared
            .out
            .push(Output::Token(TokenMessage::Acquire(acquire.clone())));
        self.requests
            .insert(ticket, (acquire, shared.now + RETRY_TICKS));
    }

    /// Whether the ticket was unanswered; it is answered now.
    fn answer(&mut self, ticket: u64) -> bool {
        self.by_request.retain(|_, t| *t != ticket);
        self.requests.remove(&ticket).is_some()
    }

    fn repeat(&mut self, now: u64, out: &mut Vec<Output>) {
        for (acquire, at) in self.requests.values_mut() {
            if *at <= now {
                *at = now + RETRY_TICKS;
                out.push(Output::Token(TokenMessage::Acquire(acquire.clone())));
            }
        }
    }

    fn next_timeout(&self) -> Option<u64> {
        self.requests.values().map(|(_, at)| *at).min()
    }
}
