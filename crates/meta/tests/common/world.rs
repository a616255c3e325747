//! A world of owners, a lossy network between them, and a client that repeats its requests: everything
//! around the crate `meta` that its tests need, as simple as can be.
//!
//! A record and the messages and answers that lean on it wait in `Owner::pending` until a flush makes them
//! durable; a crash loses them and rebuilds the shards from the durable records.

use std::collections::{BTreeMap, BTreeSet};

use meta::parts::{self, Bounds, Tended};
use meta::transaction::{self, Handled};
use meta::*;
use stdx::Prng;
use types::{
    Decode, Encode, Incarnation, InodeId, Location, NodeId, NodeLife, RequestId, Run, ShardId,
    SmallBytes, Timestamp,
};

pub const KEY: HashKey = HashKey(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

/// What becomes durable, or is lost, together.
#[derive(Default)]
struct Record {
    mutations: Vec<(ShardId, Mutation)>,
    used: Vec<Run>,
    freed: Vec<Run>,
    messages: Vec<Envelope>,
    answers: Vec<(RequestId, Option<Reply>)>,
}

pub struct Owner {
    pub shards: BTreeMap<ShardId, Shard>,
    durable: Vec<Vec<(ShardId, Mutation)>>,
    pending: Vec<Record>,
    /// Sectors that files use, durably.
    pub space: BTreeSet<Location>,
}

/// A request of the client, until it is answered.
pub struct Request {
    pub op: Op,
    pub id: RequestId,
    slot: u16,
    facts: Vec<Fact>,
    pub reply: Option<Reply>,
}

pub struct World {
    pub random: Prng,
    pub owners: Vec<Owner>,
    pub map: Vec<NodeId>,
    pub network: Vec<Envelope>,
    pub requests: BTreeMap<RequestId, Request>,
    pub client: NodeLife,
    /// The asking node is the owner's own.
    pub is_local: bool,
    /// Trees of the shards, where these are evicted.
    pub trees: BTreeMap<ShardId, BTreeMap<SmallBytes, SmallBytes>>,
    /// Inodes that were read again.
    pub miss_count: u64,
    /// So many answers get lost on their way to the client, which then repeats its request.
    pub lost_answers: u32,
    /// How many names there are to draw from.
    pub name_count: u64,
    /// Splits and joins.
    pub tended_count: u64,
    bounds: Option<Bounds>,
    rename_token: Option<RequestId>,
    next_request: u64,
    clock: i64,
}

fn sectors(run: &Run) -> impl Iterator<Item = Location> + '_ {
    (0..u64::from(run.count)).map(|i| Location {
        sector: run.at.sector + i,
        ..run.at
    })
}

impl World {
    /// `shard_count` shards dealt out to `owner_count` owners in turn.
    pub fn new(seed: u64, shard_count: u16, owner_count: u16) -> Self {
        let map: Vec<NodeId> = (0..shard_count)
            .map(|s| NodeId(1 + s % owner_count))
            .collect();
        let mut world = Self {
            random: Prng::new(seed),
            owners: Vec::new(),
            map,
            network: Vec::new(),
            requests: BTreeMap::new(),
            client: NodeLife {
                node: NodeId(9),
                incarnation: Incarnation(77),
            },
            is_local: false,
            trees: BTreeMap::new(),
            miss_count: 0,
            lost_answers: 0,
            name_count: 4,
            tended_count: 0,
            bounds: None,
            rename_token: None,
            next_request: 1,
            clock: 1000,
        };
        for _ in 0..owner_count {
            world.owners.push(Owner {
                shards: BTreeMap::new(),
                durable: Vec::new(),
                pending: Vec::new(),
                space: BTreeSet::new(),
            });
        }
        for id in (0..shard_count).map(ShardId) {
            let at = world.owner_of(id);
            world.owners[at].shards.insert(id, Shard::new(id, KEY));
        }
        let root = world.owners[0].shards.get_mut(&ShardId(0)).unwrap();
        let changes = root.make_root(Timestamp::default(), 0o755, 5);
        world.owners[0].durable.push(changes.mutations);
        world
    }

    /// Directories are split and joined by these bounds, and there are so many names.
    pub fn with_parts(mut self, bounds: Bounds, name_count: u64) -> Self {
        self.bounds = Some(bounds);
        self.name_count = name_count;
        for shard in self.owners.iter_mut().flat_map(|o| o.shards.values_mut()) {
            shard.allow_parts(bounds);
        }
        self
    }

    /// Splits and joins what is due, as the owner does after an operation.
    fn tend(&mut self, owner: usize) {
        let due = |o: &mut Owner| o.shards.values_mut().find_map(Shard::next_to_tend);
        while let Some(holder) = due(&mut self.owners[owner]) {
            let mut locked = BTreeSet::from([holder.shard()]);
            loop {
                match self.with_view(owner, &locked, |view| parts::tend(view, holder)) {
                    Tended::Done(changes) => {
                        self.tended_count += u64::from(!changes.mutations.is_empty());
                        assert_eq!(changes.freed, vec![]);
                        self.owners[owner].pending.push(Record {
                            mutations: changes.mutations,
                            ..Record::default()
                        });
                        break;
                    }
                    Tended::NeedShards(more) => {
                        let before = locked.len();
                        locked.extend(more);
                        assert!(locked.len() > before, "it asks for more than it has");
                    }
                    Tended::NeedKeys(inodes) => self.read(&inodes),
                    // The next change there says again that it is due.
                    Tended::Wait(_) => break,
                }
            }
        }
    }

    pub fn owner_of(&self, shard: ShardId) -> usize {
        usize::from(self.map[usize::from(shard.0)].0) - 1
    }

    pub fn shard(&self, id: ShardId) -> &Shard {
        &self.owners[self.owner_of(id)].shards[&id]
    }

    /// Runs `f` on a view of some shards of an owner.
    fn with_view<T>(
        &mut self,
        owner: usize,
        locked: &BTreeSet<ShardId>,
        f: impl FnOnce(&mut View<'_>) -> T,
    ) -> T {
        let me = NodeId(u16::try_from(owner).unwrap() + 1);
        let all = &mut self.owners[owner].shards;
        let shards = all
            .iter_mut()
            .filter(|(id, _)| locked.contains(id))
            .map(|(_, s)| s);
        f(&mut View::new(shards, &self.map, me))
    }

    pub fn submit(&mut self, op: Op) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        // More slots than a test ever has requests open, so that none is taken while in use.
        let slot = u16::try_from(id.0 % u64::from(types::limits::SLOTS_PER_SHARD)).unwrap();
        let is_free = |r: &Request| r.slot != slot || r.reply.is_some();
        assert!(
            self.requests.values().all(is_free),
            "the client reuses a slot"
        );
        let request = Request {
            op,
            id,
            slot,
            facts: Vec::new(),
            reply: None,
        };
        self.requests.insert(id, request);
        id
    }

    /// Executes a request at its home owner, once, with what is known. Repeats are fine at any time.
    pub fn execute(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id).filter(|r| r.reply.is_none()) else {
            return;
        };
        let (op, slot) = (request.op.clone(), request.slot);
        assert_eq!(Op::from_bytes(&op.to_bytes(), "op"), Ok(op.clone()));
        let owner = self.owner_of(op.home());
        let mut locked = BTreeSet::from([op.home()]);
        self.clock += 1;
        loop {
            let facts = self.requests[&id].facts.clone();
            let random = u128::from(self.random.next_u64()) << 64 | 3;
            let ctx = Context {
                now: Timestamp {
                    secs: self.clock,
                    nanos: 0,
                },
                from: self.client,
                origin: (!self.is_local).then_some(Origin { slot, request: id }),
                random,
                held: Held::All,
                facts: &facts,
            };
            let outcome = self.with_view(owner, &locked, |view| {
                let outcome = execute(view, &ctx, &op);
                if let Outcome::NeedOwners(plan) = outcome {
                    return Err(Box::new(transaction::begin(view, *plan)));
                }
                Ok(outcome)
            });
            match outcome {
                Ok(Outcome::Done(done)) => {
                    let bytes = done.reply.to_bytes();
                    assert_eq!(Reply::from_bytes(&bytes, "reply"), Ok(done.reply.clone()));
                    self.owners[owner].pending.push(Record {
                        mutations: done.mutations,
                        used: done.used,
                        freed: done.freed,
                        messages: Vec::new(),
                        answers: vec![(id, Some(done.reply))],
                    });
                    self.tend(owner);
                }
                Ok(Outcome::NeedShards(more)) => {
                    let before = locked.len();
                    locked.extend(more);
                    assert!(locked.len() > before, "it asks for more than it has");
                    continue;
                }
                Ok(Outcome::NeedKeys(inodes)) => {
                    self.read(&inodes);
                    continue;
                }
                Ok(Outcome::NeedFacts(queries)) => {
                    if self.learn(id, &queries) {
                        continue;
                    }
                }
                Err(progress) => self.took(owner, *progress),
                Ok(Outcome::Wait(_) | Outcome::Ignore) => {}
                Ok(Outcome::NeedOwners(_)) => unreachable!("begun in the view"),
            }
            return;
        }
    }

    fn took(&mut self, owner: usize, progress: Progress) {
        let answers = progress.finished.into_iter();
        let answers = answers
            .filter_map(|f| Some((f.origin?.request, f.reply)))
            .collect();
        self.owners[owner].pending.push(Record {
            mutations: progress.mutations,
            freed: progress.freed,
            messages: progress.messages,
            answers,
            ..Record::default()
        });
        self.tend(owner);
    }

    /// Reads inodes from the trees.
    pub fn read(&mut self, inodes: &[InodeId]) {
        for ino in inodes {
            let first = &ino.index().to_be_bytes()[2..];
            let records = self.trees[&ino.shard()].iter();
            let mut own = records.filter(|(key, _)| key.starts_with(first));
            let loaded = Shard::decode(ino.shard(), KEY, ino.index(), |push| {
                own.try_for_each(|(key, value)| push(key, value))
            });
            let loaded = loaded.unwrap().expect("the tree has what is cold");
            let owner = self.owner_of(ino.shard());
            let shard = self.owners[owner].shards.get_mut(&ino.shard()).unwrap();
            assert!(
                shard.take_in(ino.index(), loaded),
                "it is read when it is missed"
            );
            self.miss_count += 1;
        }
    }

    /// Reads at whatever owner. `None`: it would have to wait.
    pub fn ask(&mut self, op: &Op) -> Option<Reply> {
        let owner = self.owner_of(op.home());
        let all: BTreeSet<ShardId> = self.owners[owner].shards.keys().copied().collect();
        let ctx = Context {
            now: Timestamp::default(),
            from: self.client,
            origin: None,
            random: 0,
            held: Held::Nothing,
            facts: &[],
        };
        let outcome = self.with_view(owner, &all, |view| execute(view, &ctx, op));
        match outcome {
            Outcome::NeedKeys(inodes) => {
                self.read(&inodes);
                self.ask(op)
            }
            Outcome::Done(done) => {
                assert_eq!(done.mutations, vec![]);
                Some(done.reply)
            }
            Outcome::Wait(_) => None,
            other => panic!("reading ended in {other:?}"),
        }
    }

    fn learn(&mut self, id: RequestId, queries: &[Query]) -> bool {
        for query in queries {
            let fact = match query {
                Query::Entry { directory, name } => {
                    let (parent, name) = (*directory, name.clone());
                    let found = match self.ask(&Op::Lookup {
                        parent,
                        name: name.clone(),
                    }) {
                        Some(Reply::Entry { ino, kind, .. }) => Some((ino, kind)),
                        Some(_) => None,
                        None => return false,
                    };
                    Fact::Entry {
                        directory: parent,
                        name,
                        found,
                    }
                }
                Query::Attributes { ino } => match self.ask(&Op::GetAttr { ino: *ino }) {
                    Some(Reply::Attr(attr)) => Fact::Attributes { attr },
                    _ => return false,
                },
                Query::Number { shard } => {
                    let owner = self.owner_of(*shard);
                    let shard = self.owners[owner].shards.get_mut(shard).unwrap();
                    Fact::Number {
                        ino: shard.reserve_index(),
                    }
                }
                Query::Ancestors { directory } => {
                    if *self.rename_token.get_or_insert(id) != id {
                        return false;
                    }
                    let Some(chain) = self.chain(*directory) else {
                        return false;
                    };
                    Fact::Ancestors {
                        directory: *directory,
                        chain,
                    }
                }
            };
            self.requests.get_mut(&id).unwrap().facts.push(fact);
        }
        true
    }

    fn chain(&mut self, directory: InodeId) -> Option<Vec<InodeId>> {
        let mut chain = vec![directory];
        while *chain.last().unwrap() != InodeId::ROOT {
            let ino = *chain.last().unwrap();
            match self.ask(&Op::LookupParent { ino })? {
                Reply::Entry { ino, .. } => chain.push(ino),
                _ => break,
            }
            assert!(chain.len() < 1000, "the tree has a cycle");
        }
        Some(chain)
    }

    pub fn has_pending(&self, owner: usize) -> bool {
        !self.owners[owner].pending.is_empty()
    }

    /// Makes the oldest pending record durable, and lets out what leaned on it.
    pub fn flush(&mut self, owner: usize) {
        if self.owners[owner].pending.is_empty() {
            return;
        }
        let record = self.owners[owner].pending.remove(0);
        for sector in record.used.iter().flat_map(sectors) {
            assert!(self.owners[owner].space.insert(sector), "used twice");
        }
        for sector in record.freed.iter().flat_map(sectors) {
            assert!(self.owners[owner].space.remove(&sector), "freed twice");
        }
        if !record.mutations.is_empty() {
            self.owners[owner].durable.push(record.mutations);
        }
        self.network.extend(record.messages);
        for (id, reply) in record.answers {
            let Some(request) = self.requests.get_mut(&id) else {
                continue;
            };
            request.facts.clear();
            if reply.is_some() && request.reply.is_none() && self.lost_answers > 0 {
                self.lost_answers -= 1;
                continue;
            }
            if reply.is_some() && request.reply.is_none() {
                request.reply = reply;
                if self.rename_token == Some(id) {
                    self.rename_token = None;
                }
            }
        }
    }

    pub fn deliver(&mut self, index: usize) {
        let envelope = self.network.remove(index);
        self.receive(&envelope);
    }

    /// Takes a message as if it had come.
    pub fn receive(&mut self, envelope: &Envelope) {
        let bytes = envelope.to_bytes();
        assert_eq!(
            Envelope::from_bytes(&bytes, "envelope").as_ref(),
            Ok(envelope)
        );
        let owner = self.owner_of(envelope.to);
        let mut locked = BTreeSet::new();
        loop {
            let missing = |view: &mut View<'_>| transaction::missing(view, envelope);
            let missing = self.with_view(owner, &locked, missing);
            let is_decided = matches!(
                envelope.message,
                TransactionMessage::Commit | TransactionMessage::Voted(_)
            );
            if is_decided {
                assert_eq!(missing, [], "what a transaction holds stays in memory");
            }
            self.read(&missing);
            let on = |view: &mut View<'_>| transaction::on_message(view, envelope);
            match self.with_view(owner, &locked, on) {
                Handled::Done(progress) => return self.took(owner, progress),
                Handled::NeedShards(more) => {
                    let before = locked.len();
                    locked.extend(more);
                    assert!(locked.len() > before);
                }
            }
        }
    }

    /// Every shard of the owner says again what it waits for.
    pub fn tick(&mut self, owner: usize) {
        let shards = self.owners[owner].shards.values();
        let messages: Vec<Envelope> = shards.flat_map(transaction::repeat_messages).collect();
        if !messages.is_empty() {
            self.owners[owner].pending.push(Record {
                messages,
                ..Record::default()
            });
        }
    }

    /// As a start does, which may come after the first work.
    pub fn hold_prepared(&mut self, owner: usize) {
        let all: BTreeSet<ShardId> = self.owners[owner].shards.keys().copied().collect();
        self.with_view(owner, &all, parts::hold_prepared);
    }

    /// An owner hears that the client's life is over, or begins to serve knowing that.
    pub fn lose_client(&mut self, owner: usize) {
        let life = self.client;
        let owner = &mut self.owners[owner];
        for shard in owner.shards.values_mut() {
            for changes in [shard.on_node_lost(life), shard.reap_closed()] {
                shard.check();
                owner.pending.push(Record {
                    mutations: changes.mutations,
                    freed: changes.freed,
                    ..Record::default()
                });
            }
        }
    }

    /// kill -9, and a new life from the durable records.
    pub fn crash(&mut self, owner: usize) {
        let old = &mut self.owners[owner];
        old.pending.clear();
        for (id, shard) in &mut old.shards {
            *shard = Shard::new(*id, KEY);
        }
        for (id, mutation) in old.durable.iter().flatten() {
            old.shards.get_mut(id).unwrap().apply(mutation);
        }
        let all: BTreeSet<ShardId> = old.shards.keys().copied().collect();
        for id in &all {
            self.trees.remove(id);
        }
        self.hold_prepared(owner);
        let old = &mut self.owners[owner];
        if let Some(bounds) = self.bounds {
            old.shards
                .values_mut()
                .for_each(|shard| shard.allow_parts(bounds));
        }
        for request in self.requests.values_mut() {
            request.facts.clear();
        }
    }

    /// Runs without faults until everything is answered and every transaction is over.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            let waiting: Vec<RequestId> = self.requests.keys().copied().collect();
            for id in waiting {
                self.execute(id);
            }
            for owner in 0..self.owners.len() {
                while self.has_pending(owner) {
                    self.flush(owner);
                }
            }
            while !self.network.is_empty() {
                self.deliver(0);
                for owner in 0..self.owners.len() {
                    while self.has_pending(owner) {
                        self.flush(owner);
                    }
                }
            }
            self.requests.retain(|_, r| r.reply.is_none());
            let busy = |o: &Owner| {
                o.shards
                    .values()
                    .any(|s| !transaction::repeat_messages(s).is_empty())
            };
            if self.requests.is_empty() && !self.owners.iter().any(busy) {
                return;
            }
            for owner in 0..self.owners.len() {
                self.tick(owner);
            }
        }
        let open: Vec<&Op> = self.requests.values().map(|r| &r.op).collect();
        let shards = self.owners.iter().flat_map(|o| o.shards.values());
        let said: Vec<Envelope> = shards.flat_map(transaction::repeat_messages).collect();
        panic!(
            "it does not come to rest: {open:#?}, {said:#?}, token {:?}",
            self.rename_token
        );
    }

    /// Runs one operation without faults.
    pub fn call(&mut self, op: Op) -> Reply {
        let id = self.submit(op);
        for _ in 0..1000 {
            self.execute(id);
            for owner in 0..self.owners.len() {
                while self.has_pending(owner) {
                    self.flush(owner);
                }
            }
            while self.requests[&id].reply.is_none() && !self.network.is_empty() {
                self.deliver(0);
                for owner in 0..self.owners.len() {
                    while self.has_pending(owner) {
                        self.flush(owner);
                    }
                }
            }
            if let Some(reply) = self.requests[&id].reply.clone() {
                self.requests.remove(&id);
                return reply;
            }
        }
        panic!("no answer to {:?}", self.requests[&id].op);
    }

    /// The durable state of a shard as mutations, without the number reserve.
    pub fn state(shard: &Shard) -> Vec<Mutation> {
        let mut state = Vec::new();
        shard.snapshot(&mut |m| {
            if !matches!(m, Mutation::NextIndex { .. }) {
                state.push(m);
            }
        });
        state
    }

    /// Replaying the records, or the snapshot, gives the state.
    pub fn check_replay(&self) {
        for owner in self.owners.iter().filter(|o| o.pending.is_empty()) {
            for (id, shard) in &owner.shards {
                let state = Self::state(shard);
                let mut replayed = Shard::new(*id, KEY);
                for (_, mutation) in owner.durable.iter().flatten().filter(|(s, _)| s == id) {
                    let bytes = mutation.to_bytes();
                    let back = Mutation::from_bytes(&bytes, "mutation").unwrap();
                    assert_eq!(back, *mutation);
                    replayed.apply(&back);
                }
                assert_eq!(Self::state(&replayed), state);
                let mut copy = Shard::new(*id, KEY);
                shard.snapshot(&mut |m| copy.apply(&m));
                copy.check();
                let mut whole = (Vec::new(), Vec::new());
                shard.snapshot(&mut |m| whole.0.push(m));
                copy.snapshot(&mut |m| whole.1.push(m));
                assert_eq!(whole.0, whole.1);
            }
        }
    }
}
