//! The cluster manager: grants leases, decides who is dead, publishes the view.
//!
//! Invariants (`check`)
//! - A life is declared dead for silence only when lease + margin have passed, on the manager's clock,
//!   since it last received a question of it (or since this manager began: it does not know what the
//!   manager before it granted).
//! - While a death is being stored the life gets no more leases; its death is announced (`NodeDead`)
//!   only when the view without it is in the config store. Then `NodeUp` of a new life may follow,
//!   never before.
//! - A life that was declared dead is never a member again, not even under a later manager: that one
//!   refuses every Join that may have been sent before it began (`Join::since`), unless the view it
//!   found has that life.
//! - One put to the config store is in flight at a time; each stored view has the next epoch.
//! - A manager whose put conflicts has lost its office and grants nothing any more.
//! - If this process itself was away (its timers late by more than the margin), nobody is blamed: all
//!   waits begin anew. Waiting longer is always safe.
//!
//! What this deliberately does not do: election (with etcd, a later issue: `on_leadership` bounds the
//! time in which leases may be granted), moving the shards of dead owners.

use std::collections::{BTreeMap, VecDeque};

use types::id::NodeLife;
use types::{ClusterView, Duration, Epoch, Incarnation, Instant, NodeId};

use crate::message::{Join, Refusal, ToManager, ToMember, VERSION};
use crate::store::{Revision, StoreError, StoredView};
use crate::{Timing, life, lives};

/// Dead lives of a node that are remembered, so that a late Join of one is told so.
const DEAD_COUNT_MAX: usize = 16;

/// Why a life ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// Not heard for lease + margin: the process may still run, so its grants are quarantined.
    Silent,
    /// A new life of the same state directory has joined: the process is gone.
    Replaced,
    /// It has left, with everything flushed and released.
    Left,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Put `view` into the config store (`store::put_view`), then call `on_stored`.
    Store {
        /// The view.
        view: ClusterView,
        /// Revision that it replaces.
        expected: Revision,
    },
    /// Send to `to`, in the priority lane (a direct call when that is this node).
    Send {
        /// A node.
        to: NodeId,
        /// What.
        message: ToMember,
    },
    /// `life` is not a member any more, in any view from `epoch` on.
    NodeDead {
        /// The life.
        life: NodeLife,
        /// First epoch without it.
        epoch: Epoch,
        /// Why.
        cause: Cause,
    },
    /// `life` is a member from `epoch` on.
    NodeUp {
        /// The life.
        life: NodeLife,
        /// First epoch with it.
        epoch: Epoch,
    },
    /// Another manager has changed the view: this one does nothing any more.
    SteppedDown {
        /// The view that was found, if there is one that can be read.
        found: Option<Revision>,
    },
}

/// Effects, in the order in which they are to be performed.
pub type Outbox = Vec<Effect>;

#[derive(Clone, Copy, Debug)]
struct Lease {
    dead_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Joining {
    incarnation: Incarnation,
    number: u64,
}

/// The cluster manager's core.
#[derive(Debug)]
pub struct Manager {
    own: NodeId,
    timing: Timing,
    /// What is stored and published.
    view: ClusterView,
    revision: Revision,
    /// What is being stored.
    storing: Option<ClusterView>,
    /// When a put that failed is tried again.
    store_at: Option<Instant>,
    /// What is to be stored after that.
    next: Option<ClusterView>,
    leases: BTreeMap<NodeLife, Lease>,
    joining: BTreeMap<NodeId, Joining>,
    causes: BTreeMap<NodeLife, Cause>,
    dead: BTreeMap<NodeId, VecDeque<Incarnation>>,
    /// Epoch with which this manager began: what it does not know ended before that.
    began_at: Epoch,
    leader_until: Option<Instant>,
    tick_at: Instant,
    is_down: bool,
}

impl Manager {
    /// Takes office on node `own` with what the config store holds. Every member of that view is given
    /// a full lease plus margin to be heard.
    pub fn new(
        now: Instant,
        own: NodeId,
        timing: Timing,
        stored: StoredView,
        out: &mut Outbox,
    ) -> Self {
        timing.check();
        let dead_at = now + timing.lease + timing.margin;
        let leases = lives(&stored.view)
            .map(|life| (life, Lease { dead_at }))
            .collect();
        let mut manager = Self {
            own,
            timing,
            began_at: stored.view.epoch,
            view: stored.view,
            revision: stored.revision,
            storing: None,
            store_at: None,
            next: None,
            leases,
            joining: BTreeMap::new(),
            causes: BTreeMap::new(),
            dead: BTreeMap::new(),
            leader_until: None,
            tick_at: now + timing.renewal,
            is_down: false,
        };
        if manager.view.manager != own {
            manager.change(|view| view.manager = own, out);
        }
        manager
    }

    /// What is stored and published.
    pub fn view(&self) -> &ClusterView {
        &self.view
    }

    /// It has lost its office.
    pub fn is_stepped_down(&self) -> bool {
        self.is_down
    }

    /// Members and how long each may still be silent, for `gupfs status`.
    pub fn silence_left(&self, now: Instant) -> impl Iterator<Item = (NodeLife, Duration)> + '_ {
        let leases = self.leases.iter();
        leases.map(move |(life, lease)| (*life, lease.dead_at.since(now)))
    }

    /// Leadership is proven until `until` (from the sending of the proof): no lease is granted later.
    /// Never called with the built-in config store, which only its own node can serve.
    pub fn on_leadership(&mut self, until: Instant) {
        self.leader_until = Some(until);
    }

    /// Changes the configuration (nodes, NSDs, owners) in the next view. `change` must leave epoch and
    /// incarnations alone.
    pub fn reconfigure(&mut self, change: impl FnOnce(&mut ClusterView), out: &mut Outbox) {
        if self.is_down {
            return;
        }
        let before: Vec<NodeLife> = lives(self.newest()).collect();
        self.change(change, out);
        let after: Vec<NodeLife> = lives(self.newest()).collect();
        assert_eq!(before, after, "membership is not configuration");
    }

    /// A message of node `from`.
    pub fn on_message(&mut self, now: Instant, from: NodeId, message: ToManager, out: &mut Outbox) {
        if self.is_down {
            return;
        }
        self.excuse_own_absence(now);
        match message {
            ToManager::Join(join) => self.on_join(now, from, join, out),
            ToManager::RenewLease {
                life,
                number,
                epoch,
            } => self.on_renew(now, life, number, epoch, out),
            ToManager::Leave { life } => self.on_leave(life, out),
            ToManager::QueryManager {} => {
                let message = ToMember::Manager {
                    node: self.view.manager,
                    epoch: self.view.epoch,
                };
                out.push(Effect::Send { to: from, message });
            }
        }
    }

    /// The put of the last `Effect::Store` has ended.
    pub fn on_stored(
        &mut self,
        now: Instant,
        result: Result<Revision, StoreError>,
        out: &mut Outbox,
    ) {
        if self.is_down {
            return;
        }
        self.excuse_own_absence(now);
        match result {
            Ok(revision) => {
                self.revision = revision;
                let view = self.storing.take().expect("one put at a time");
                self.publish(now, view, out);
                self.store_next(out);
            }
            Err(StoreError::Unavailable | StoreError::OutcomeUnknown) => {
                self.store_at = Some(now + self.timing.retry);
            }
            Err(StoreError::Conflict { found }) => {
                let found = found.map(|found| found.revision);
                self.step_down(found, out);
            }
            Err(StoreError::Damaged(_)) => self.step_down(None, out),
        }
    }

    /// The time of `next_timeout` has come.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.is_down {
            return;
        }
        self.excuse_own_absence(now);
        if self.store_at.is_some_and(|at| now >= at) {
            self.store_at = None;
            let view = self.storing.clone().expect("a failed put is repeated");
            let expected = self.revision;
            out.push(Effect::Store { view, expected });
        }
        let silent: Vec<NodeLife> = self
            .leases
            .iter()
            .filter(|(life, lease)| now >= lease.dead_at && self.is_staying(**life))
            .map(|(life, _)| *life)
            .collect();
        for life in silent {
            self.end(life, Cause::Silent, out);
        }
    }

    /// When `on_timeout` is to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.is_down {
            return None;
        }
        let staying = self
            .leases
            .iter()
            .filter(|(life, _)| self.is_staying(**life));
        let dead_at = staying.map(|(_, lease)| lease.dead_at).min();
        let times = [Some(self.tick_at), self.store_at, dead_at];
        times.into_iter().flatten().min()
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        let members: Vec<NodeLife> = lives(&self.view).collect();
        let leased: Vec<NodeLife> = self.leases.keys().copied().collect();
        assert_eq!(members, leased, "every member has a lease record");
        if let Some(storing) = &self.storing {
            assert_eq!(storing.epoch.0, self.view.epoch.0 + 1);
        } else {
            assert!(self.is_down || self.next.is_none());
            assert_eq!(self.store_at, None);
        }
        if let (Some(next), Some(storing)) = (&self.next, &self.storing) {
            assert_eq!(next.epoch.0, storing.epoch.0 + 1);
        }
        for (node, joining) in &self.joining {
            let coming = life(self.newest(), *node).map(|life| life.incarnation);
            assert_eq!(coming, Some(joining.incarnation));
        }
        for (node, dead) in &self.dead {
            assert!(dead.len() <= DEAD_COUNT_MAX);
            let member = life(&self.view, *node).map(|life| life.incarnation);
            assert!(member.is_none_or(|member| !dead.contains(&member)));
        }
    }

    /// The view as it will be when all is stored.
    fn newest(&self) -> &ClusterView {
        let storing = self.storing.as_ref();
        self.next.as_ref().or(storing).unwrap_or(&self.view)
    }

    /// `life` is a member and nothing decided will end it.
    fn is_staying(&self, life: NodeLife) -> bool {
        crate::life(self.newest(), life.node) == Some(life)
    }

    /// If this process was stopped, the members' messages wait unread: do not blame them.
    fn excuse_own_absence(&mut self, now: Instant) {
        if now > self.tick_at + self.timing.margin {
            let dead_at = now + self.timing.lease + self.timing.margin;
            for lease in self.leases.values_mut() {
                lease.dead_at = lease.dead_at.max(dead_at);
            }
        }
        self.tick_at = now + self.timing.renewal;
    }

    fn lease_ms(&self) -> u32 {
        u32::try_from(self.timing.lease.0 / 1_000_000).expect("leases are seconds long")
    }

    fn on_join(&mut self, now: Instant, from: NodeId, join: Join, out: &mut Outbox) {
        let node = join.life.node;
        let incarnation = join.life.incarnation;
        if let Some(reason) = self.refusal(now, &join) {
            let message = ToMember::Refused {
                incarnation,
                reason,
            };
            out.push(Effect::Send { to: from, message });
            return;
        }
        let was = |dead: &VecDeque<Incarnation>| dead.contains(&incarnation);
        let is_known = life(self.newest(), node) == Some(join.life);
        if self.dead.get(&node).is_some_and(was) || (!is_known && join.since < self.began_at) {
            self.send_evicted(join.life, out);
            return;
        }
        if life(&self.view, node) == Some(join.life) {
            // Repeated: the Welcome was lost. While its end is being stored it hears nothing.
            if self.is_staying(join.life) {
                self.welcome(now, join.life, join.number, out);
            }
            return;
        }
        let number = join.number;
        let joining = Joining {
            incarnation,
            number,
        };
        let known = self.joining.get_mut(&node);
        if let Some(known) = known.filter(|known| known.incarnation == incarnation) {
            known.number = number.max(known.number);
            return;
        }
        if let Some(old) = life(self.newest(), node) {
            self.causes.insert(old, Cause::Replaced);
        }
        self.joining.insert(node, joining);
        let enter = |view: &mut ClusterView| {
            let node = view.nodes.iter_mut().find(|view| view.id == node);
            let node = node.expect("refused before if it is unknown");
            node.incarnation = incarnation;
            node.address = join.address;
        };
        self.change(enter, out);
    }

    /// Why `join` cannot be followed; `None` when it can.
    fn refusal(&self, now: Instant, join: &Join) -> Option<Refusal> {
        let node = join.life.node;
        if self.newest().node(node).is_none() || join.life.incarnation == Incarnation(0) {
            return Some(Refusal::UnknownNode);
        }
        if join.version_min > VERSION || join.version_max < VERSION {
            return Some(Refusal::Version {
                version_min: VERSION,
                version_max: VERSION,
            });
        }
        let current = life(self.newest(), node)?;
        let is_proven = join.former.contains(&current.incarnation);
        if current == join.life || is_proven {
            return None;
        }
        let wait = match self.leases.get(&current) {
            Some(lease) => lease.dead_at.since(now),
            None => self.timing.lease,
        };
        let wait_ms = u32::try_from(wait.0.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        Some(Refusal::FormerLifeMayRun { wait_ms })
    }

    fn on_renew(
        &mut self,
        now: Instant,
        life: NodeLife,
        number: u64,
        epoch: Epoch,
        out: &mut Outbox,
    ) {
        if crate::life(&self.view, life.node) != Some(life) {
            let is_coming = self
                .joining
                .get(&life.node)
                .is_some_and(|joining| joining.incarnation == life.incarnation);
            if !is_coming {
                self.send_evicted(life, out);
            }
            return;
        }
        if !self.is_staying(life) || !self.may_grant(now) {
            return;
        }
        self.heard(now, life);
        let message = ToMember::LeaseGranted {
            incarnation: life.incarnation,
            number,
            lease_ms: self.lease_ms(),
        };
        let to = life.node;
        out.push(Effect::Send { to, message });
        if epoch < self.view.epoch {
            let view = self.view.clone();
            let message = ToMember::ViewChanged { view };
            out.push(Effect::Send { to, message });
        }
    }

    fn on_leave(&mut self, life: NodeLife, out: &mut Outbox) {
        if crate::life(&self.view, life.node) == Some(life) {
            if self.is_staying(life) {
                self.end(life, Cause::Left, out);
            }
            return;
        }
        let incarnation = life.incarnation;
        let message = ToMember::Left { incarnation };
        let to = life.node;
        out.push(Effect::Send { to, message });
    }

    fn may_grant(&self, now: Instant) -> bool {
        self.leader_until.is_none_or(|until| now < until)
    }

    fn heard(&mut self, now: Instant, life: NodeLife) {
        let dead_at = now + self.timing.lease + self.timing.margin;
        let lease = self.leases.get_mut(&life).expect("members have records");
        lease.dead_at = lease.dead_at.max(dead_at);
    }

    fn welcome(&mut self, now: Instant, life: NodeLife, number: u64, out: &mut Outbox) {
        if !self.may_grant(now) {
            return;
        }
        self.heard(now, life);
        let message = ToMember::Welcome {
            incarnation: life.incarnation,
            number,
            lease_ms: self.lease_ms(),
            view: self.view.clone(),
        };
        let to = life.node;
        out.push(Effect::Send { to, message });
    }

    fn send_evicted(&self, life: NodeLife, out: &mut Outbox) {
        let message = ToMember::Evicted {
            incarnation: life.incarnation,
            epoch: self.view.epoch,
        };
        let to = life.node;
        out.push(Effect::Send { to, message });
    }

    fn end(&mut self, life: NodeLife, cause: Cause, out: &mut Outbox) {
        assert!(self.is_staying(life), "a life ends once");
        self.causes.insert(life, cause);
        self.joining.remove(&life.node);
        let leave = |view: &mut ClusterView| {
            let node = view.nodes.iter_mut().find(|node| node.id == life.node);
            node.expect("it is a member").incarnation = Incarnation(0);
        };
        self.change(leave, out);
    }

    /// Puts a change into the next view and has it stored as soon as no other put is in flight.
    fn change(&mut self, change: impl FnOnce(&mut ClusterView), out: &mut Outbox) {
        let mut next = self.newest().clone();
        change(&mut next);
        let before = self.storing.as_ref().unwrap_or(&self.view);
        next.epoch = Epoch(before.epoch.0 + 1);
        next.manager = self.own;
        self.next = Some(next);
        self.store_next(out);
    }

    fn store_next(&mut self, out: &mut Outbox) {
        if self.storing.is_some() {
            return;
        }
        if let Some(view) = self.next.take() {
            self.storing = Some(view.clone());
            let expected = self.revision;
            out.push(Effect::Store { view, expected });
        }
    }

    /// `view` is stored: says who is dead, who is up, and sends it to all members.
    fn publish(&mut self, now: Instant, view: ClusterView, out: &mut Outbox) {
        let old = std::mem::replace(&mut self.view, view);
        let epoch = self.view.epoch;
        let members: Vec<NodeLife> = lives(&self.view).collect();
        for life in lives(&old).filter(|life| !members.contains(life)) {
            self.leases.remove(&life);
            let cause = self.causes.remove(&life).unwrap_or(Cause::Replaced);
            let dead = self.dead.entry(life.node).or_default();
            if dead.len() == DEAD_COUNT_MAX {
                dead.pop_front();
            }
            dead.push_back(life.incarnation);
            out.push(Effect::NodeDead { life, epoch, cause });
            let incarnation = life.incarnation;
            let to = life.node;
            let message = match cause {
                Cause::Left => ToMember::Left { incarnation },
                Cause::Silent | Cause::Replaced => ToMember::Evicted { incarnation, epoch },
            };
            out.push(Effect::Send { to, message });
        }
        let dead_at = now + self.timing.lease + self.timing.margin;
        for life in &members {
            if crate::life(&old, life.node) == Some(*life) {
                let view = self.view.clone();
                let to = life.node;
                let message = ToMember::ViewChanged { view };
                out.push(Effect::Send { to, message });
                continue;
            }
            self.leases.insert(*life, Lease { dead_at });
            out.push(Effect::NodeUp { life: *life, epoch });
            let joining = self.joining.get(&life.node).copied();
            let joining = joining.filter(|joining| joining.incarnation == life.incarnation);
            if let Some(joining) = joining {
                self.joining.remove(&life.node);
                self.welcome(now, *life, joining.number, out);
            }
        }
        let mut causes = std::mem::take(&mut self.causes);
        causes.retain(|life, _| self.leases.contains_key(life));
        self.causes = causes;
    }

    fn step_down(&mut self, found: Option<Revision>, out: &mut Outbox) {
        self.is_down = true;
        self.storing = None;
        self.next = None;
        self.store_at = None;
        self.joining.clear();
        out.push(Effect::SteppedDown { found });
    }
}

#[cfg(test)]
pub(crate) mod tests;
