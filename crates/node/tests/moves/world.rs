//! Owners with their journals, a lossy network between them, and one client per node that repeats its
//! requests: the real owner half (`OwnerSlice`, `OwnerLog`, `MoveToken`) and, as simple as can be, the driver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use client::message::{Answer, Ask, Body};
use meta::parts::Bounds;
use meta::view::{Fact, Origin, Query};
use meta::{HashKey, Mutation, Op, Reply};
use node::calls::question;
use node::message::FactResult;
use node::moves::{MoveEffect, RENAME_TOKEN, Walk, join};
use node::{
    Locked, Message, MoveToken, Need, OwnerEffect, OwnerEnv, OwnerLog, OwnerSlice, Question, Work,
};
use stdx::prng::Prng;
use store::testing::Disk;
use token::message::{Reassert, Released};
use types::{
    Duration, Errno, FileKind, Incarnation, InodeId, Instant, Lsn, Name, NodeId, NodeLife,
    RequestId, ShardId, Timestamp,
};

mod journal;

use journal::{config, flush, open};

const KEY: HashKey = HashKey(7);
const FACT: u64 = 1 << 62;
const MOVE: u64 = 1 << 61;
/// Rounds of `settle` after which something hangs.
const ROUNDS_MAX: usize = 40_000;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

#[derive(Clone, Debug)]
enum Late {
    Answer(NodeLife, u64, Answer),
    Transaction(meta::Envelope),
}

enum Item {
    Owner(Work),
    Effect(OwnerEffect),
}

/// A client's request, until its node dies.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "shown when a run hangs")]
pub struct Request {
    pub op: Op,
    pub reply: Option<Result<Reply, Errno>>,
}

pub struct Node {
    pub life: NodeLife,
    pub shards: BTreeMap<ShardId, OwnerSlice>,
    log: OwnerLog,
    disk: Disk,
    pub moves: MoveToken,
    facts: BTreeMap<u64, (NodeId, Message, Box<Question>)>,
    fact_queries: BTreeMap<(NodeId, u64), (InodeId, Option<Name>)>,
    /// Questions to other owners without an answer.
    calls: BTreeMap<u64, (NodeId, Message)>,
    late: Vec<(Lsn, Late)>,
    in_progress: BTreeSet<(NodeLife, u64)>,
    held: Vec<Work>,
    /// Holders of names that should be looked at, when nothing else is left to be done.
    due: VecDeque<InodeId>,
    /// Whom it has not heard from in its grace period.
    grace: Option<BTreeSet<NodeLife>>,
    pub requests: BTreeMap<u64, Request>,
    next: u64,
    released: u64,
}

/// Faults, in percent.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    pub loss: u64,
    pub duplicates: u64,
    pub is_reordered: bool,
}

pub struct World {
    pub nodes: Vec<Node>,
    pub network: VecDeque<(NodeLife, NodeId, Message)>,
    pub faults: Faults,
    pub random: Prng,
    owners: Vec<NodeId>,
    now: Instant,
    lives: u128,
    has_token: bool,
    parts: Option<Bounds>,
}

impl World {
    /// `node_count` nodes that own the shards in turn; `has_token` false switches the rename token off.
    pub fn new(seed: u64, node_count: u16, has_token: bool) -> Self {
        let owners: Vec<NodeId> = (0..6).map(|s| NodeId(1 + s % node_count)).collect();
        let mut world = Self {
            nodes: Vec::new(),
            network: VecDeque::new(),
            faults: Faults::default(),
            random: Prng::new(seed),
            owners,
            now: Instant(1),
            lives: 0,
            has_token,
            parts: None,
        };
        for id in 1..=node_count {
            let life = world.draw_life(NodeId(id));
            let mut disk = Disk::new();
            disk.format(config(life));
            let node = world.boot(life, disk);
            world.nodes.push(node);
        }
        world
    }

    /// Directories of more than `split` names are in parts.
    pub fn with_parts(mut self, split: usize) -> Self {
        let bounds = Bounds::of(split, 1);
        self.parts = Some(bounds);
        let slices = self.nodes.iter_mut().flat_map(|n| n.shards.values_mut());
        slices.for_each(|slice| slice.shard.allow_parts(bounds));
        self
    }

    fn draw_life(&mut self, node: NodeId) -> NodeLife {
        self.lives += 1;
        NodeLife {
            node,
            incarnation: Incarnation(self.lives),
        }
    }

    fn boot(&self, life: NodeLife, mut disk: Disk) -> Node {
        let (log, mut slices) = open(life, &mut disk, &self.owners);
        Locked::new(&mut slices).hold_prepared(&env(life, self.now, &self.owners, 0));
        if let Some(bounds) = self.parts {
            slices
                .iter_mut()
                .for_each(|slice| slice.shard.allow_parts(bounds));
        }
        Node {
            life,
            shards: slices.into_iter().map(|s| (s.shard.id(), s)).collect(),
            log,
            disk,
            moves: MoveToken::new(self.has_token),
            facts: BTreeMap::new(),
            fact_queries: BTreeMap::new(),
            calls: BTreeMap::new(),
            late: Vec::new(),
            in_progress: BTreeSet::new(),
            held: Vec::new(),
            due: VecDeque::new(),
            grace: None,
            requests: BTreeMap::new(),
            next: 1,
            released: 0,
        }
    }

    fn owner(&self, shard: ShardId) -> NodeId {
        self.owners[usize::from(shard.0)]
    }

    fn at(&mut self, node: NodeId) -> &mut Node {
        &mut self.nodes[usize::from(node.0) - 1]
    }

    /// The client of `node` (from 1) asks; the answer comes into `requests`.
    pub fn submit(&mut self, node: u16, op: Op) -> u64 {
        let node = NodeId(node);
        let shard = op.home();
        let owner = self.owner(shard);
        let state = self.at(node);
        state.next += 1;
        let (call, life) = (state.next, state.life);
        let request = Request {
            op: op.clone(),
            reply: None,
        };
        state.requests.insert(call, request);
        let ask = Ask::Op { op, durable: false };
        self.call(life, owner, call, shard, ask);
        call
    }

    fn call(&mut self, life: NodeLife, owner: NodeId, call: u64, shard: ShardId, ask: Ask) {
        if owner == life.node {
            let question = question(self.now, (life, call), None, shard, ask);
            return self.run(owner, Item::Owner(question));
        }
        let needs_slot = matches!(&ask, Ask::Op { op, .. } if op.is_change());
        let origin = needs_slot.then(|| Origin {
            slot: u16::try_from(call % 100).unwrap(),
            request: RequestId(call),
        });
        let message = Message::Question {
            call,
            origin,
            shard,
            ask,
        };
        self.at(life.node)
            .calls
            .insert(call, (owner, message.clone()));
        self.send(life, owner, message);
    }

    fn send(&mut self, from: NodeLife, to: NodeId, message: Message) {
        use types::{Decode as _, Encode as _};
        let bytes = message.to_bytes();
        assert_eq!(Message::from_bytes(&bytes, "message"), Ok(message.clone()));
        if self.random.below(100) < self.faults.loss {
            return;
        }
        if self.random.below(100) < self.faults.duplicates {
            self.network.push_back((from, to, message.clone()));
        }
        self.network.push_back((from, to, message));
    }

    fn run(&mut self, id: NodeId, item: Item) {
        let mut items = VecDeque::from([item]);
        let mut steps = 0;
        loop {
            let due = |world: &mut Self| world.at(id).due.pop_front();
            let Some(item) = items
                .pop_front()
                .or_else(|| due(self).map(|holder| Item::Owner(Work::tend(holder))))
            else {
                return;
            };
            steps += 1;
            assert!(steps < 10_000, "it goes round in circles");
            match item {
                Item::Owner(work) => self.run_owner(id, work, &mut items),
                Item::Effect(effect) => self.perform(id, effect, &mut items),
            }
            self.release_late(id, &mut items);
            self.at(id).moves.check();
        }
    }

    fn run_owner(&mut self, id: NodeId, work: Work, items: &mut VecDeque<Item>) {
        let (now, random) = (self.now, u128::from(self.random.next_u64()) << 64);
        let owners = self.owners.clone();
        let node = self.at(id);
        if node.grace.is_some() {
            return node.held.push(work);
        }
        let env = env(node.life, now, &owners, random);
        let mut out = Vec::new();
        let mut wanted = BTreeSet::from([work.shard()]);
        let mut work = Some(work);
        while let Some(now) = work.take() {
            let locked = node.shards.iter_mut().filter(|(id, _)| wanted.contains(id));
            let mut locked = Locked::new(locked.map(|(_, slice)| slice));
            let ahead = locked.ahead(&env, &now);
            if !ahead.is_empty() {
                let before = wanted.len();
                wanted.extend(ahead);
                assert!(wanted.len() > before, "it asks for more than it has");
                work = Some(now);
                continue;
            }
            let log = now.needs_log().then_some(&mut node.log);
            if let Err(need) = locked.run(&env, log, now, &mut out) {
                let Need::Shards(more, again) = need else {
                    unreachable!("nothing is evicted here");
                };
                let before = wanted.len();
                wanted.extend(more);
                assert!(wanted.len() > before, "it asks for more than it has");
                work = Some(again);
            }
        }
        items.extend(out.into_iter().map(Item::Effect));
    }

    fn perform(&mut self, id: NodeId, effect: OwnerEffect, items: &mut VecDeque<Item>) {
        let now = self.now;
        match effect {
            OwnerEffect::Answer {
                to,
                call,
                answer,
                after,
                ends_move,
            } => {
                if ends_move {
                    self.moves(id, items, |moves, out| moves.on_over(now, (to, call), out));
                }
                let after = after.unwrap_or_default();
                self.at(id)
                    .late
                    .push((after, Late::Answer(to, call, *answer)));
            }
            OwnerEffect::Dropped {
                to,
                call,
                ends_move,
            } => {
                if ends_move {
                    self.moves(id, items, |moves, out| moves.on_over(now, (to, call), out));
                }
            }
            OwnerEffect::Revoke(to, revoke) => {
                let from = self.at(id).life;
                if to.node == id {
                    self.on_revoke(id, id, revoke, items);
                } else {
                    self.send(from, to.node, Message::Revoke(revoke));
                }
            }
            OwnerEffect::Reclaim(..) => panic!("there is room"),
            OwnerEffect::LockReady(_) => panic!("nobody locks anything"),
            OwnerEffect::Run(work) => items.push_back(Item::Owner(work)),
            OwnerEffect::Tend(holder) => self.at(id).due.push_back(holder),
            OwnerEffect::Transaction(envelope, after) => {
                self.at(id).late.push((after, Late::Transaction(*envelope)));
            }
            OwnerEffect::AskFacts(question, queries) => {
                let query = queries.into_iter().next().unwrap();
                if let Query::Ancestors { directory } = query {
                    return self.moves(id, items, |moves, out| {
                        moves.on_question(now, question, directory, out);
                    });
                }
                self.ask_fact(id, question, query, items);
            }
            // Its ticks wake it.
            OwnerEffect::Silent(..) | OwnerEffect::WakeAt(..) => {}
            OwnerEffect::Gather(_) | OwnerEffect::Recalled(..) => {
                unreachable!("nobody asks for space")
            }
        }
    }

    fn ask_fact(
        &mut self,
        id: NodeId,
        question: Box<Question>,
        query: Query,
        items: &mut VecDeque<Item>,
    ) {
        let shard = match &query {
            Query::Entry { directory, .. } | Query::Ancestors { directory } => directory.shard(),
            Query::Number { shard } => *shard,
            Query::Attributes { ino } => ino.shard(),
        };
        let owner = self.owner(shard);
        let node = self.at(id);
        node.next += 1;
        let (fact, life) = (node.next, node.life);
        let message = Message::AskFact {
            id: fact,
            query: query.clone(),
        };
        node.facts.insert(fact, (owner, message.clone(), question));
        if owner == id {
            self.find_fact(id, life, fact, query, items);
        } else {
            self.send(life, owner, message);
        }
    }

    fn find_fact(
        &mut self,
        id: NodeId,
        from: NodeLife,
        fact: u64,
        query: Query,
        items: &mut VecDeque<Item>,
    ) {
        let now = self.now;
        let (asked, op) = match query {
            Query::Entry { directory, name } => {
                let parent = directory;
                let op = Op::Lookup {
                    parent,
                    name: name.clone(),
                };
                ((directory, Some(name)), op)
            }
            Query::Ancestors { directory } => ((directory, None), Op::Ancestors { ino: directory }),
            Query::Attributes { ino } => ((ino, None), Op::GetAttr { ino }),
            Query::Number { shard } => {
                let node = self.at(id);
                let ino = node.shards.get_mut(&shard).unwrap().shard.reserve_index();
                let result = FactResult::Found(Fact::Number { ino });
                let life = node.life;
                return self.send(life, from.node, Message::Fact { id: fact, result });
            }
        };
        self.at(id).fact_queries.insert((from.node, fact), asked);
        let shard = op.home();
        let ask = Ask::Op { op, durable: false };
        let question = question(now, (from, fact | FACT), None, shard, ask);
        items.push_back(Item::Owner(question));
    }

    fn on_fact(&mut self, id: NodeId, fact: u64, result: FactResult, items: &mut VecDeque<Item>) {
        let Some((_, _, mut question)) = self.at(id).facts.remove(&fact) else {
            return;
        };
        match result {
            FactResult::Found(Fact::Ancestors { chain, .. }) => match join(&mut question, &chain) {
                Walk::Next(directory) => {
                    self.ask_fact(id, question, Query::Ancestors { directory }, items);
                }
                Walk::Done => items.push_back(Item::Owner(Work::Question(question))),
                Walk::Broken => panic!("a walk breaks: {:?} {chain:?}", question.walk),
            },
            FactResult::Found(fact) => {
                question.facts.push(fact);
                items.push_back(Item::Owner(Work::Question(question)));
            }
            FactResult::Failed(errno) => {
                items.push_back(Item::Owner(question.to_be_refused(errno)))
            }
        }
    }

    fn moves(
        &mut self,
        id: NodeId,
        items: &mut VecDeque<Item>,
        act: impl FnOnce(&mut MoveToken, &mut Vec<MoveEffect>),
    ) {
        let mut out = Vec::new();
        act(&mut self.at(id).moves, &mut out);
        for effect in out {
            match effect {
                MoveEffect::Acquire(ask) => {
                    let owner = self.owner(RENAME_TOKEN.shard());
                    let node = self.at(id);
                    node.next += 1;
                    let (call, life) = (node.next | MOVE, node.life);
                    let shard = RENAME_TOKEN.shard();
                    if owner == id {
                        let question = question(self.now, (life, call), None, shard, ask);
                        items.push_back(Item::Owner(question));
                    } else {
                        self.call(life, owner, call, shard, ask);
                    }
                }
                MoveEffect::Release(released) => {
                    let life = self.at(id).life;
                    self.release(id, life, released, items);
                }
                MoveEffect::Walk(question) => {
                    let directory = *question.walk.last().unwrap();
                    self.ask_fact(id, question, Query::Ancestors { directory }, items);
                }
                MoveEffect::Refuse(question, errno) => {
                    items.push_back(Item::Owner(question.to_be_refused(errno)));
                }
            }
        }
    }

    fn release(
        &mut self,
        id: NodeId,
        life: NodeLife,
        released: Released,
        items: &mut VecDeque<Item>,
    ) {
        let shard = released.ino.shard();
        let owner = self.owner(shard);
        if owner == id {
            self.on_released(id, life, &released, items);
        } else {
            self.send(life, owner, Message::Released { shard, released });
        }
    }

    fn on_released(
        &mut self,
        id: NodeId,
        from: NodeLife,
        released: &Released,
        items: &mut VecDeque<Item>,
    ) {
        let (now, owners) = (self.now, self.owners.clone());
        let node = self.at(id);
        let env = env(node.life, now, &owners, 0);
        let mut out = Vec::new();
        let slice = node.shards.get_mut(&released.ino.shard()).unwrap();
        slice.on_released(&env, &mut node.log, from, released, &mut out);
        items.extend(out.into_iter().map(Item::Effect));
    }

    /// Clients keep no tokens here; the rename token is the owner half's.
    fn on_revoke(
        &mut self,
        id: NodeId,
        _from: NodeId,
        revoke: token::message::Revoke,
        items: &mut VecDeque<Item>,
    ) {
        let now = self.now;
        if revoke.ino == RENAME_TOKEN {
            return self.moves(id, items, |moves, out| moves.on_revoke(now, &revoke, out));
        }
        let node = self.at(id);
        node.released += 1;
        let (life, sequence) = (node.life, node.released);
        let released = Released {
            ino: revoke.ino,
            number: revoke.number,
            sequence,
            revoke: revoke.revoke,
            kept: Vec::new(),
            still_open: false,
        };
        self.release(id, life, released, items);
    }

    /// Lets out what waited for the journal.
    fn release_late(&mut self, id: NodeId, items: &mut VecDeque<Item>) {
        let node = self.at(id);
        let (life, durable) = (node.life, node.log.journal.durable_lsn());
        let (ready, left) = std::mem::take(&mut node.late)
            .into_iter()
            .partition(|(lsn, _)| *lsn <= durable);
        node.late = left;
        let ready: Vec<(Lsn, Late)> = ready;
        for (_, late) in ready {
            match late {
                Late::Transaction(envelope) => {
                    let owner = self.owner(envelope.to);
                    if owner == id {
                        items.push_back(Item::Owner(Work::Transaction(Box::new(envelope))));
                    } else {
                        self.send(life, owner, Message::Transaction(envelope));
                    }
                }
                Late::Answer(to, call, answer) if call & FACT != 0 => {
                    self.answer_fact(id, to, call & !FACT, answer, items);
                }
                Late::Answer(to, call, answer) => {
                    self.at(id).in_progress.remove(&(to, call));
                    if to.node == id {
                        self.on_answer(id, call, answer, items);
                    } else {
                        self.send(life, to.node, Message::Answer { call, answer });
                    }
                }
            }
        }
    }

    fn answer_fact(
        &mut self,
        id: NodeId,
        to: NodeLife,
        fact: u64,
        answer: Answer,
        items: &mut VecDeque<Item>,
    ) {
        let node = self.at(id);
        let life = node.life;
        let Some((directory, name)) = node.fact_queries.remove(&(to.node, fact)) else {
            return;
        };
        let found = match answer.body {
            Body::Op(Reply::Entry { ino, kind, .. }) => Ok(Fact::Entry {
                directory,
                name: name.unwrap(),
                found: Some((ino, kind)),
            }),
            Body::Op(Reply::Absent) => Ok(Fact::Entry {
                directory,
                name: name.unwrap(),
                found: None,
            }),
            Body::Op(Reply::Attr(attr)) => Ok(Fact::Attributes { attr }),
            Body::Op(Reply::Chain(chain)) => Ok(Fact::Ancestors { directory, chain }),
            Body::Op(Reply::Error(errno)) | Body::Refused(errno) => Err(errno),
            other => panic!("{other:?} is no fact"),
        };
        let result = match found {
            Ok(fact) => FactResult::Found(fact),
            Err(errno) => FactResult::Failed(errno),
        };
        if to.node == id {
            self.on_fact(id, fact, result, items);
        } else {
            self.send(life, to.node, Message::Fact { id: fact, result });
        }
    }

    fn on_answer(&mut self, id: NodeId, call: u64, answer: Answer, items: &mut VecDeque<Item>) {
        let now = self.now;
        let node = self.at(id);
        let was_asked = node.calls.remove(&call).is_some();
        if call & MOVE != 0 {
            // A duplicate is told by its call.
            if was_asked || self.owner(RENAME_TOKEN.shard()) == id {
                self.moves(id, items, |moves, out| moves.on_answer(now, answer, out));
            }
            return;
        }
        if let Some(request) = node.requests.get_mut(&call)
            && request.reply.is_none()
        {
            request.reply = Some(match answer.body {
                Body::Op(Reply::Error(errno)) | Body::Refused(errno) => Err(errno),
                Body::Op(reply) => Ok(reply),
                other => panic!("{other:?} answers an operation"),
            });
        }
    }

    /// Takes the next message out of the network; under reordering, any.
    pub fn deliver(&mut self) {
        let count = self.network.len();
        if count == 0 {
            return;
        }
        let index = if self.faults.is_reordered {
            usize::try_from(self.random.below(count as u64)).unwrap()
        } else {
            0
        };
        let (from, to, message) = self.network.remove(index).unwrap();
        if self.at(from.node).life != from {
            // Of a life that is over.
            return;
        }
        let mut items = VecDeque::new();
        self.take(to, from, message, &mut items);
        for item in items {
            self.run(to, item);
        }
        let mut items = VecDeque::new();
        self.release_late(to, &mut items);
        for item in items {
            self.run(to, item);
        }
    }

    fn take(&mut self, to: NodeId, from: NodeLife, message: Message, items: &mut VecDeque<Item>) {
        match message {
            Message::Question {
                call,
                origin,
                shard,
                ask,
            } => {
                let now = self.now;
                if self.at(to).in_progress.insert((from, call)) {
                    let question = question(now, (from, call), origin, shard, ask);
                    items.push_back(Item::Owner(question));
                }
            }
            Message::Answer { call, answer } => self.on_answer(to, call, answer, items),
            Message::Revoke(revoke) => self.on_revoke(to, from.node, revoke, items),
            Message::Released { released, .. } => self.on_released(to, from, &released, items),
            Message::Transaction(envelope) => {
                items.push_back(Item::Owner(Work::Transaction(Box::new(envelope))));
            }
            Message::AskFact { id, query } => self.find_fact(to, from, id, query, items),
            Message::Fact { id, result } => self.on_fact(to, id, result, items),
            Message::AskHeld { epoch } => {
                let life = self.at(to).life;
                let shards: Vec<ShardId> = (0..6).map(ShardId).collect();
                for shard in shards {
                    if self.owner(shard) != from.node {
                        continue;
                    }
                    // Only shard 0's owner is told of its token: others have other epochs.
                    let holdings = if shard == RENAME_TOKEN.shard() {
                        self.at(to).moves.reassert(epoch)
                    } else {
                        Vec::new()
                    };
                    let part = Reassert {
                        part: 0,
                        is_last: true,
                        holdings,
                        open: Vec::new(),
                        locks: Vec::new(),
                        lock_floor: 0,
                    };
                    // The real driver keeps what it told until it is heard; here it is never lost.
                    self.network
                        .push_back((life, from.node, Message::Held { epoch, shard, part }));
                }
            }
            Message::Held { epoch, shard, part } => {
                let node = self.at(to);
                if node.log.epoch != epoch || node.grace.is_none() {
                    return;
                }
                let slice = node.shards.get_mut(&shard).unwrap();
                if slice.is_missing(from) {
                    slice.on_reassert(&mut node.log, from, &part).unwrap();
                }
                if !node.shards.values().any(|s| s.is_missing(from)) {
                    node.grace.as_mut().unwrap().remove(&from);
                }
                self.end_grace(to, items);
            }
            other => panic!("nobody says {other:?} here"),
        }
    }

    fn end_grace(&mut self, id: NodeId, items: &mut VecDeque<Item>) {
        let (now, owners) = (self.now, self.owners.clone());
        let node = self.at(id);
        if node.grace.as_ref().is_some_and(BTreeSet::is_empty) {
            node.grace = None;
            let (env, mut out) = (env(node.life, now, &owners, 0), Vec::new());
            for slice in node.shards.values_mut() {
                slice.end_grace(&env, &mut node.log, &mut out);
            }
            assert!(out.is_empty(), "nobody waits in the grace period");
            items.extend(std::mem::take(&mut node.held).into_iter().map(Item::Owner));
        }
    }

    /// Makes the journal durable, and lets out what waited for it.
    pub fn flush(&mut self, node: u16) {
        let id = NodeId(node);
        let state = self.at(id);
        flush(&mut state.log, &mut state.disk);
        let mut items = VecDeque::new();
        self.release_late(id, &mut items);
        for item in items {
            self.run(id, item);
        }
    }

    pub fn is_behind(&mut self, node: u16) -> bool {
        let state = self.at(NodeId(node));
        state.log.journal.durable_lsn() < state.log.journal.last_lsn()
    }

    /// Time passes for a node: repeats.
    pub fn tick(&mut self, node: u16) {
        self.now = self.now + Duration::from_millis(600);
        let (now, owners, id) = (self.now, self.owners.clone(), NodeId(node));
        let state = self.at(id);
        let life = state.life;
        let mut out = Vec::new();
        let env = env(life, now, &owners, 0);
        if state.grace.is_none() {
            for slice in state.shards.values_mut() {
                slice.on_tick(&env, &mut out);
                slice.repeats(&mut out);
            }
        }
        let calls = state.calls.values().cloned();
        let facts = state.facts.values().filter(|f| f.0 != id);
        let again: Vec<(NodeId, Message)> =
            calls.chain(facts.map(|f| (f.0, f.1.clone()))).collect();
        for (to, message) in again {
            self.send(life, to, message);
        }
        for effect in out {
            self.run(id, Item::Effect(effect));
        }
    }

    /// kill -9, and a new life from what was durable. Nobody hears the old one any more.
    pub fn crash(&mut self, node: u16) {
        let id = NodeId(node);
        let old = self.at(id).life;
        let disk = self.at(id).disk.clone();
        let life = self.draw_life(id);
        let mut new = self.boot(life, disk);
        // Its own former life's slots and opens are void.
        let others: Vec<NodeLife> = self
            .nodes
            .iter()
            .map(|n| n.life)
            .filter(|l| *l != old)
            .collect();
        new.grace = Some(others.iter().copied().collect());
        for slice in new.shards.values_mut() {
            slice.begin_grace(&others);
        }
        let epoch = new.log.epoch;
        *self.at(id) = new;
        for other in others {
            self.network
                .push_back((life, other.node, Message::AskHeld { epoch }));
        }
        for other in 1..=u16::try_from(self.nodes.len()).unwrap() {
            self.lose(NodeId(other), old);
            let state = self.at(NodeId(other));
            if let Some(grace) = &mut state.grace {
                grace.remove(&old);
            }
            let mut items = VecDeque::new();
            self.end_grace(NodeId(other), &mut items);
            for item in items {
                self.run(NodeId(other), item);
            }
        }
    }

    fn lose(&mut self, id: NodeId, life: NodeLife) {
        let (now, owners) = (self.now, self.owners.clone());
        let node = self.at(id);
        let env = env(node.life, now, &owners, 0);
        let mut out = Vec::new();
        for slice in node.shards.values_mut() {
            slice.on_node_lost(&env, &mut node.log, life, &mut out);
        }
        node.in_progress.retain(|(of, _)| *of != life);
        node.held
            .retain(|work| !matches!(work, Work::Question(q) if q.from == life));
        for effect in out {
            self.run(id, Item::Effect(effect));
        }
    }

    /// Runs without faults until every request is answered and every transaction is over.
    pub fn settle(&mut self) {
        self.faults = Faults::default();
        let all: Vec<u16> = (1..).take(self.nodes.len()).collect();
        for _ in 0..ROUNDS_MAX {
            for node in &all {
                self.flush(*node);
            }
            if !self.network.is_empty() {
                self.deliver();
                continue;
            }
            let is_open = |n: &Node| {
                n.requests.values().any(|r| r.reply.is_none())
                    || n.shards.values().any(OwnerSlice::has_transactions)
                    || !n.late.is_empty()
                    || n.grace.is_some()
            };
            if !self.nodes.iter().any(is_open) {
                return;
            }
            for node in &all {
                self.tick(*node);
            }
        }
        let open = self.nodes.iter().flat_map(|n| n.requests.values());
        let open: Vec<&Request> = open.filter(|r| r.reply.is_none()).collect();
        let waiters: Vec<_> = self.nodes.iter().map(|n| n.moves.waiters()).collect();
        let calls: Vec<_> = self.nodes.iter().map(|n| &n.calls).collect();
        let slices = self.nodes.iter().flat_map(|n| n.shards.values());
        let slices: Vec<_> = slices.flat_map(OwnerSlice::waiters).collect();
        let progress: Vec<_> = self.nodes.iter().map(|n| &n.in_progress).collect();
        panic!(
            "it does not come to rest: {open:#?} {waiters:#?} {calls:#?} {slices:#?} {progress:?}"
        );
    }

    /// The answer to an operation that meets no faults.
    pub fn now(&mut self, node: u16, op: Op) -> Result<Reply, Errno> {
        let call = self.submit(node, op);
        self.settle();
        self.at(NodeId(node))
            .requests
            .remove(&call)
            .unwrap()
            .reply
            .unwrap()
    }

    /// The tree as the shards have it: every directory is reached from the root by exactly one name, and its
    /// parent is where that name is. `Err`: what is not so.
    pub fn check_tree(&self) -> Result<usize, String> {
        let mut names: BTreeMap<InodeId, Vec<InodeId>> = BTreeMap::new();
        let mut directories: BTreeMap<InodeId, Option<InodeId>> = BTreeMap::new();
        for (id, slice) in self.nodes.iter().flat_map(|n| &n.shards) {
            let mut parts: BTreeMap<u64, InodeId> = BTreeMap::new();
            slice.shard.snapshot(&mut |mutation| match mutation {
                Mutation::PartMake { index, directory } => {
                    parts.insert(index, directory);
                }
                Mutation::InodePut { record } if record.attr.kind == FileKind::Directory => {
                    directories.entry(record.attr.ino).or_default();
                }
                Mutation::EntryPut {
                    directory,
                    ino,
                    kind: FileKind::Directory,
                    ..
                } => {
                    let own = InodeId::new(*id, directory);
                    let parent = parts.get(&directory).copied().unwrap_or(own);
                    names.entry(parent).or_default().push(ino);
                }
                _ => {}
            });
        }
        let mut reached = BTreeSet::from([InodeId::ROOT]);
        let mut queue = VecDeque::from([InodeId::ROOT]);
        while let Some(parent) = queue.pop_front() {
            for ino in names.get(&parent).into_iter().flatten() {
                if !reached.insert(*ino) {
                    return Err(format!("{ino} has two names"));
                }
                queue.push_back(*ino);
            }
        }
        for ino in directories.keys() {
            if !reached.contains(ino) {
                return Err(format!("{ino} is not below the root: a loop, or lost"));
            }
        }
        Ok(reached.len())
    }
}

fn env(me: NodeLife, now: Instant, owners: &[NodeId], random: u128) -> OwnerEnv<'_> {
    let nanos = u32::try_from(now.0 % 1_000_000_000).unwrap();
    let secs = i64::try_from(now.0 / 1_000_000_000).unwrap();
    OwnerEnv {
        now,
        timestamp: Timestamp { secs, nanos },
        me,
        owners,
        random,
    }
}

// The area lies on a disk whose places are like any other's.
