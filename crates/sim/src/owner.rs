//! The owner of the one shard: the real token manager, and committed contents as plain arrays.
//!
//! Every operation of a node is executed at most once, whatever the network repeats. A Commit is taken only from a live
//! incarnation that holds the write token of all it writes; rule R10 says that it never waits.

use std::collections::BTreeMap;

use client::revoke::Rules;
use token::{Acquire, Effect, Manager, Message as TokenMessage, Options as ManagerOptions};
use types::id::NodeLife;
use types::{DirectoryMode, Duration, Epoch, InodeId, InodeMode, Instant, ShardId, Want};

use crate::model::{CELL_COUNT, NAME_COUNT, Value, bytes};

/// What a node asks the owner, beside tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// All committed cells of a file.
    Fetch(usize),
    /// Committed size and mtime of a file.
    FetchAttributes(usize),
    /// Dirty cells, and the size if it grew.
    Commit(usize, Vec<(usize, Value)>, usize),
    /// Cut a file.
    Truncate(usize, usize),
    /// All names.
    FetchNames,
    /// Change a name.
    Bind(usize, Value),
}

/// What the owner answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Fetch.
    Cells(Vec<Value>),
    /// FetchAttributes, Commit, Truncate: size and mtime now.
    Attributes(usize, u64),
    /// FetchNames: meanings, and the directory's change number.
    Names([Value; NAME_COUNT], u64),
    /// Bind: the directory's change number, and the write token under which it was executed. The token is recorded for the
    /// node: were it not, the node's own cache of the name would be stale between execution and answer.
    Bound(u64, token::Granted),
    /// The token is not held: nothing was done.
    Stale,
}

/// What the owner sends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// A token message.
    Token(TokenMessage),
    /// An answer to a call.
    Reply(u64, Reply),
}

/// A file's committed contents.
#[derive(Clone, Debug)]
pub struct Contents {
    /// Cells.
    pub cells: [Value; CELL_COUNT],
    /// Size in cells.
    pub size: usize,
    /// Grows with each change.
    pub mtime: u64,
}

/// The owner.
#[derive(Debug)]
pub struct Owner {
    /// Tokens.
    pub manager: Manager,
    /// Files.
    pub files: Vec<Contents>,
    /// Names.
    pub names: [Value; NAME_COUNT],
    name_change: u64,
    rules: Rules,
    lives: Vec<NodeLife>,
    answered: BTreeMap<(NodeLife, u64), Reply>,
    binding: BTreeMap<(NodeLife, u64), (usize, Value)>,
    /// Without R10: what waits behind operations that wait for tokens.
    delayed: Vec<(NodeLife, u64, Call)>,
}

/// The inode of a file.
pub fn file_ino(file: usize) -> InodeId {
    InodeId::new(ShardId(0), 10 + file as u64)
}

/// The directory.
pub const DIRECTORY: InodeId = InodeId::ROOT;

impl Owner {
    /// An owner of `file_count` empty files that serves these lives.
    pub fn new(file_count: usize, lives: Vec<NodeLife>, rules: Rules) -> Self {
        let contents = Contents {
            cells: [0; CELL_COUNT],
            size: 0,
            mtime: 1,
        };
        let options = ManagerOptions {
            silent_after: Duration::from_secs(1_000_000),
            ..ManagerOptions::default()
        };
        Self {
            manager: Manager::new(Epoch(1), options),
            files: vec![contents; file_count],
            names: [0; NAME_COUNT],
            name_change: 1,
            rules,
            lives,
            answered: BTreeMap::new(),
            binding: BTreeMap::new(),
            delayed: Vec::new(),
        }
    }

    /// A token message of a node.
    pub fn on_token(
        &mut self,
        now: Instant,
        from: NodeLife,
        message: TokenMessage,
        out: &mut Vec<(NodeLife, Sent)>,
    ) {
        if !self.lives.contains(&from) {
            return;
        }
        let mut effects = Vec::new();
        match message {
            TokenMessage::Acquire(acquire) => {
                let taken = self.manager.acquire(now, acquire, &mut effects);
                taken.expect("the model stays far below the limits");
            }
            TokenMessage::Released(released) => {
                let heard = self.manager.on_released(now, from, &released, &mut effects);
                heard.expect("no node of the model lies");
            }
            TokenMessage::Granted(_)
            | TokenMessage::Revoke(_)
            | TokenMessage::Reassert(_)
            | TokenMessage::Refused(_)
            | TokenMessage::Reclaim(_) => unreachable!("not said to an owner"),
        }
        self.perform(now, effects, out);
    }

    /// A call of a node.
    pub fn on_call(
        &mut self,
        now: Instant,
        from: NodeLife,
        (id, call): (u64, Call),
        out: &mut Vec<(NodeLife, Sent)>,
    ) {
        if !self.lives.contains(&from) {
            return;
        }
        if let Some(reply) = self.answered.get(&(from, id)) {
            out.push((from, Sent::Reply(id, reply.clone())));
            return;
        }
        if self.has_to_wait(from, &call) {
            let is_known = self
                .delayed
                .iter()
                .any(|(life, i, _)| *life == from && *i == id);
            if !is_known {
                self.delayed.push((from, id, call));
            }
            return;
        }
        if let Call::Bind(name, value) = call {
            self.binding.insert((from, id), (name, value));
            let request = Acquire {
                holder: from,
                ticket: id | 1 << 63,
                ino: DIRECTORY,
                seen: types::TokenNumber(0),
                wants: vec![Want::Directory {
                    mode: DirectoryMode::Write,
                }],
                transient: false,
            };
            let mut effects = Vec::new();
            let taken = self.manager.acquire(now, request, &mut effects);
            taken.expect("the model stays far below the limits");
            self.perform(now, effects, out);
            return;
        }
        let reply = self.execute(from, &call);
        if matches!(call, Call::Commit(..) | Call::Truncate(..)) {
            self.answered.insert((from, id), reply.clone());
        }
        out.push((from, Sent::Reply(id, reply)));
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Vec<(NodeLife, Sent)>) {
        let mut effects = Vec::new();
        self.manager.on_timeout(now, &mut effects);
        self.perform(now, effects, out);
    }

    /// A life is over, and the next one of that node begins.
    pub fn on_life(
        &mut self,
        now: Instant,
        old: NodeLife,
        new: NodeLife,
        out: &mut Vec<(NodeLife, Sent)>,
    ) {
        self.lives.retain(|life| *life != old);
        self.lives.push(new);
        self.binding.retain(|(life, _), _| *life != old);
        self.delayed.retain(|(life, _, _)| *life != old);
        let mut effects = Vec::new();
        self.manager.on_node_lost(now, old, &mut effects);
        self.perform(now, effects, out);
    }

    /// Only without R10: what changes a file queues behind operations that wait for its tokens.
    fn has_to_wait(&self, from: NodeLife, call: &Call) -> bool {
        let (Call::Commit(file, ..) | Call::Truncate(file, _)) = call else {
            return false;
        };
        let waiters = || self.manager.waiters();
        !self.rules.r10
            && waiters()
                .iter()
                .any(|w| w.ino == file_ino(*file) && w.holder != from)
    }

    fn execute(&mut self, from: NodeLife, call: &Call) -> Reply {
        let manager = &self.manager;
        let covers = |file: usize, cells: std::ops::Range<usize>| {
            manager.covers_write(from, file_ino(file), &bytes(&cells))
        };
        let has_mode = |file: usize, mode: InodeMode| {
            manager.is_covered(from, file_ino(file), &[Want::Inode { mode }])
        };
        match call {
            Call::Fetch(file) => Reply::Cells(self.files[*file].cells.to_vec()),
            Call::FetchAttributes(file) => self.attributes(*file),
            Call::Commit(file, cells, size) => {
                let is_covered = cells
                    .iter()
                    .all(|(cell, _)| covers(*file, *cell..*cell + 1));
                if !is_covered || (*size > 0 && !has_mode(*file, InodeMode::SharedWrite)) {
                    return Reply::Stale;
                }
                let contents = &mut self.files[*file];
                for (cell, value) in cells {
                    contents.cells[*cell] = *value;
                }
                contents.size = contents.size.max(*size);
                contents.mtime += 1;
                self.attributes(*file)
            }
            Call::Truncate(file, size) => {
                let is_covered = covers(*file, *size..CELL_COUNT);
                if !is_covered || !has_mode(*file, InodeMode::Exclusive) {
                    return Reply::Stale;
                }
                let contents = &mut self.files[*file];
                contents.cells[*size..].fill(0);
                contents.size = *size;
                contents.mtime += 1;
                self.attributes(*file)
            }
            Call::FetchNames => Reply::Names(self.names, self.name_change),
            Call::Bind(..) => unreachable!("waits for the directory first"),
        }
    }

    fn attributes(&self, file: usize) -> Reply {
        Reply::Attributes(self.files[file].size, self.files[file].mtime)
    }

    fn perform(&mut self, now: Instant, effects: Vec<Effect>, out: &mut Vec<(NodeLife, Sent)>) {
        for effect in effects {
            match effect {
                Effect::Revoke { to, message } => {
                    out.push((to, Sent::Token(TokenMessage::Revoke(message))));
                }
                Effect::Granted { holder, message } if message.ticket >> 63 == 1 => {
                    let id = message.ticket & !(1 << 63);
                    // A repeat of a request that was granted before changes nothing.
                    if let Some((name, value)) = self.binding.remove(&(holder, id)) {
                        self.names[name] = value;
                        self.name_change += 1;
                        let reply = Reply::Bound(self.name_change, message);
                        self.answered.insert((holder, id), reply.clone());
                        out.push((holder, Sent::Reply(id, reply)));
                    }
                }
                Effect::Granted { holder, message } => {
                    out.push((holder, Sent::Token(TokenMessage::Granted(message))));
                }
                Effect::Refused { .. } | Effect::Reclaim { .. } | Effect::Silent { .. } => {
                    unreachable!("the model stays far below the limits")
                }
            }
        }
        if !self.delayed.is_empty() {
            for (from, id, call) in std::mem::take(&mut self.delayed) {
                self.on_call(now, from, (id, call), out);
            }
        }
    }
}
