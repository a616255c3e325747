//! Lives that end and owners that begin anew (the twin of `os::daemon::membership` without leases).

use std::collections::BTreeSet;

use client::{HeldInode, HeldLocks};
use node::grace::{Told, held_messages};
use node::moves::RENAME_TOKEN;
use node::{Message, Work};
use token::Reassert;
use types::id::NodeLife;
use types::{Epoch, NodeId, ShardId};

use super::{Item, Node};

/// Holdings and open inodes in one message: few, so that there are several parts.
const HOLDINGS_MAX: usize = 4;

/// Who has still to tell what it holds, and what this node has told.
#[derive(Debug, Default)]
pub(super) struct Grace {
    waiting: BTreeSet<NodeLife>,
    is_under_way: bool,
    held_work: Vec<Work>,
    told: Told,
    dead: BTreeSet<NodeLife>,
}

impl Node {
    /// Before an owner serves in a new life: these may hold tokens of its shards.
    pub fn begin_grace(&mut self, expected: &[NodeLife]) {
        for slice in self.shards.iter_mut().flatten() {
            slice.begin_grace(expected);
        }
        self.grace.waiting = expected.iter().copied().collect();
        self.grace.is_under_way = true;
        self.end_grace_if_over();
    }

    /// The shards are served.
    pub fn is_serving(&self) -> bool {
        !self.grace.is_under_way
    }

    /// Keeps work until the shards are served.
    pub(super) fn hold_work(&mut self, work: Work) {
        self.grace.held_work.push(work);
    }

    /// Asks who has not answered.
    pub(super) fn ask_held(&mut self) {
        let epoch = self.log.epoch;
        for life in self.grace.waiting.clone() {
            self.send(life.node, Message::AskHeld { epoch });
        }
    }

    fn end_grace_if_over(&mut self) {
        if !self.grace.is_under_way || !self.grace.waiting.is_empty() {
            return;
        }
        self.grace.is_under_way = false;
        let env = super::owner_env(self.now, self.me, &self.view, 0);
        let mut out = Vec::new();
        for slice in self.shards.iter_mut().flatten() {
            slice.end_grace(&env, &mut self.log, &mut out);
        }
        let epoch = self.log.epoch;
        let peers: Vec<NodeId> = self.view.nodes.iter().map(|n| n.id).collect();
        for peer in peers {
            if peer != self.me.node {
                self.send(peer, Message::Serving { epoch });
            }
        }
        let held = std::mem::take(&mut self.grace.held_work);
        let held = held.into_iter().map(Item::Owner);
        let mut items = (out.into_iter().map(Item::OwnerEffect))
            .chain(held)
            .collect();
        self.learn_regions(&mut items);
        self.run(items);
    }

    /// Nothing that this life says is heard any more.
    pub(super) fn is_dead(&self, life: NodeLife) -> bool {
        self.grace.dead.contains(&life)
    }

    /// A life is over, and its process has ended: what it held here is free.
    pub fn life_ended(&mut self, life: NodeLife) {
        self.grace.dead.insert(life);
        let random = self.random();
        let env = super::owner_env(self.now, self.me, &self.view, random);
        let mut out = Vec::new();
        for slice in self.shards.iter_mut().flatten() {
            slice.on_node_lost(&env, &mut self.log, life, &mut out);
        }
        self.log.quarantine_life(life);
        let nsds = self.view.nsds.iter();
        let servers = nsds.filter_map(|nsd| nsd.servers.first().copied());
        if self.fences.begin(self.now, life, servers) {
            self.log.free_life(life);
        }
        self.in_progress.life_ended(life);
        self.facts.life_ended(life);
        self.farewells.ended(life);
        let is_of = |work: &Work| matches!(work, Work::Question(q) if q.from == life);
        self.grace.held_work.retain(|work| !is_of(work));
        let mut items = out.into_iter().map(Item::OwnerEffect).collect();
        self.gather_life_ended(life, &mut items);
        self.run(items);
        self.grace.waiting.remove(&life);
        self.end_grace_if_over();
        self.ask_fences();
    }

    /// Asks NSD servers that have not fenced a dead life.
    pub(super) fn ask_fences(&mut self) {
        let epoch = self.log.epoch;
        for (server, life) in self.fences.asks() {
            if server == self.me.node {
                self.on_ask_fenced(server, life);
            } else {
                self.send(server, Message::AskFenced { life, epoch });
            }
        }
    }

    /// An owner wants to use the sectors of a dead life again.
    pub(super) fn on_ask_fenced(&mut self, from: NodeId, life: NodeLife) {
        self.grace.dead.insert(life);
        self.fences.on_ask(from, life);
        self.tell_fenced(life);
    }

    /// Tells who has asked, when no write of the life is on its way here.
    pub(super) fn tell_fenced(&mut self, life: NodeLife) {
        if self.serves_write_of(life) {
            return;
        }
        for to in self.fences.drained(life) {
            if to == self.me.node {
                self.on_fenced(to, life);
            } else {
                self.send(to, Message::Fenced { life });
            }
        }
    }

    /// A server has fenced a dead life.
    pub(super) fn on_fenced(&mut self, from: NodeId, life: NodeLife) {
        if self.fences.on_fenced(from, life) {
            self.log.free_life(life);
        }
    }

    /// Lives that the journal knows and that are not among the present ones are over.
    pub fn end_former_lives(&mut self, present: &[NodeLife]) {
        let shards = self.shards.iter().flatten();
        let mut former: BTreeSet<NodeLife> = shards.flat_map(|s| s.shard.lives()).collect();
        let lives = self.log.space.lives();
        let held = lives.granted.iter().chain(&lives.quarantined);
        former.extend(held.map(|(life, _)| *life));
        for life in former {
            if !present.contains(&life) {
                self.life_ended(life);
            }
        }
    }

    /// A new owner asks what this node holds.
    pub(super) fn tell_held(&mut self, owner: NodeId, epoch: Epoch) {
        let owners = &self.view.owners;
        let is_its = |shard: ShardId| owners.get(usize::from(shard.0)) == Some(&owner);
        let (slices, moves, now) = (&mut self.slices, &mut self.moves, self.now);
        let forgets_opens = self.canary.forgets_opens;
        let forgets_locks = self.canary.forgets_locks;
        let make = || {
            let mut locks = HeldLocks::default();
            let held = slices.iter_mut().flat_map(|slice| {
                slice.reassert_locks(is_its, &mut locks);
                slice.reassert(now, is_its, epoch)
            });
            let mut held: Vec<_> = held.collect();
            if forgets_locks {
                locks.locks.clear();
            }
            if forgets_opens {
                held.iter_mut().for_each(|held| held.is_open = false);
            }
            if is_its(RENAME_TOKEN.shard()) {
                held.push(HeldInode {
                    ino: RENAME_TOKEN,
                    holdings: moves.reassert(epoch),
                    is_open: false,
                });
            }
            let count = u16::try_from(owners.len()).expect("shards have 16 bits");
            let shards = (0..count).map(ShardId).filter(|shard| is_its(*shard));
            held_messages(epoch, shards, held, &locks, HOLDINGS_MAX)
        };
        for message in self.grace.told.tell(owner, epoch, make).to_vec() {
            self.send(owner, message);
        }
    }

    /// A member tells what it holds.
    pub(super) fn on_held(
        &mut self,
        from: NodeLife,
        epoch: Epoch,
        shard: ShardId,
        part: &Reassert,
    ) {
        if self.log.epoch != epoch {
            return;
        }
        if self.is_serving() {
            return self.send(from.node, Message::Serving { epoch });
        }
        if !self.grace.waiting.contains(&from) {
            return;
        }
        let slice = self.shards.get_mut(usize::from(shard.0));
        let Some(slice) = slice.and_then(Option::as_mut) else {
            return;
        };
        let result = slice.on_reassert(&mut self.log, from, part);
        assert!(result.is_ok(), "a member says what cannot be: {result:?}");
        let mut shards = self.shards.iter().flatten();
        if part.is_last && !shards.any(|slice| slice.is_missing(from)) {
            self.grace.waiting.remove(&from);
            self.end_grace_if_over();
        }
    }

    /// An owner serves: it needs to be told nothing any more.
    pub(super) fn on_serving(&mut self, owner: NodeId, epoch: Epoch) {
        self.grace.told.on_serving(owner, epoch);
    }
}
