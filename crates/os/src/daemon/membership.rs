//! Membership of this node: its lease, the view, the cluster manager where it is this node, the grace
//! period of its shards, and what waits while there is no lease.
//!
//! Invariants
//! - Owners serve (`Daemon::is_serving`) only after every member of the first view of this life has told
//!   what it holds, or is not a member any more.
//! - A life that a view does not have any more is ended at the owners once; nothing it says is heard later.
//! - An evicted life ends as a crash would end it: the process starts anew, with another incarnation.
//!
//! Lock order: `core` before shards, log and the NSD server. Nothing is sent or run under `core`.
//!
//! What happens without a lease is in `lapse`.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use client::{HeldInode, HeldLocks};
use cluster::message::{KIND_TO_MANAGER, KIND_TO_MEMBER, ToManager, ToMember, redirect};
use cluster::{Grace, Manager, Member, Revision, StoredView, Timing, client as member, grace};
use cluster::{lives, server};
use node::Message;
use node::grace::{Told, held_messages};
use node::moves::RENAME_TOKEN;
use node::token::message::Reassert;
use types::wire::Flags;
use types::{
    ClusterView, Decode, Duration, Encode, Epoch, Incarnation, NodeId, NodeLife, RequestId, ShardId,
};

use super::config::Config;
use super::lapse::Waiting;
use super::work::Item;
use super::{Daemon, Error, lock, stores};
use crate::clock;
use crate::net::{Frame, Lane};

/// Holdings and open inodes in one message: far below the size of a frame, and of a record.
const HOLDINGS_MAX: usize = 1024;
/// How long a stop waits for the manager to say good-bye.
const LEAVE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Membership of one node.
#[derive(Debug)]
pub(super) struct Membership {
    /// A cluster of one needs no leases.
    is_alone: bool,
    /// End of the lease in nanoseconds; 0: none.
    valid_until: AtomicU64,
    epoch: AtomicU64,
    is_evicted: AtomicBool,
    core: Mutex<Core>,
    /// What waits for the lease.
    pub(super) waiting: Mutex<Waiting>,
    /// When the lapse under way began, for the one thread that performs lapses; no lapse: none.
    pub(super) lapsed_at: Mutex<Option<types::Instant>>,
    /// The kernel does not drop what it has: this life ends.
    pub(super) is_stuck: AtomicBool,
    /// What was told to an owner instance, until it serves.
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Core {
    member: Member,
    manager: Option<(Manager, stores::ViewStore)>,
    to_store: Option<(ClusterView, Revision)>,
    grace: Option<Grace>,
    view: Option<ClusterView>,
    dead: BTreeSet<NodeLife>,
}

/// What is to be done after `core` is unlocked.
#[derive(Debug, Default)]
struct After {
    frames: Vec<(NodeId, u16, Vec<u8>)>,
    items: VecDeque<Item>,
    asks: Vec<NodeLife>,
    is_grace_over: bool,
    /// Lives are over: NSD servers are to be asked to fence them.
    has_dead: bool,
}

impl Membership {
    /// Begins to join, after these former lives; the manager takes office.
    pub(super) fn start(config: &Config, former: Vec<Incarnation>) -> Self {
        let life = NodeLife {
            node: config.node,
            incarnation: config.incarnation,
        };
        let now = clock::now();
        let timing = Timing::of_lease(config.lease);
        let node = config.view.node(config.node);
        let mut member = member::Config {
            life,
            former,
            address: node.map(|n| n.address.clone()).unwrap_or_default(),
            manager: config.view.manager,
            timing,
        };
        let mut manager = None;
        if let Some(path) = &config.view_path {
            // The state directory's lock is held: the life that its view names is over.
            let stored = cluster::life(&config.view, config.node).map(|l| l.incarnation);
            member.former.extend(stored);
            let (store, revision) = stores::ViewStore::new(path, config.view.clone());
            let view = config.view.clone();
            let mut out = Vec::new();
            let stored = StoredView { revision, view };
            let core = Manager::new(now, config.node, timing, stored, &mut out);
            assert!(out.is_empty(), "the view names this node as its manager");
            manager = Some((core, store));
        }
        Self {
            is_alone: config.view.nodes.len() <= 1,
            valid_until: AtomicU64::new(0),
            epoch: AtomicU64::new(config.view.epoch.0),
            is_evicted: AtomicBool::new(false),
            core: Mutex::new(Core {
                member: Member::new(now, member),
                manager,
                to_store: None,
                grace: None,
                view: None,
                dead: BTreeSet::new(),
            }),
            waiting: Mutex::default(),
            lapsed_at: Mutex::default(),
            is_stuck: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    /// No other node is in the cluster.
    pub(super) fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// This life was declared dead.
    pub(super) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    /// Epoch of the newest view.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// What is left of the lease; a cluster of one always has a whole one.
    pub(super) fn lease_left(&self) -> Duration {
        if self.is_alone {
            return Duration::from_millis(types::limits::LEASE_MS);
        }
        let until = types::Instant(self.valid_until.load(Ordering::Acquire));
        until.since(clock::now())
    }

    fn is_dead(&self, life: NodeLife) -> bool {
        lock(&self.core).dead.contains(&life)
    }

    /// There was a lease, and it is over.
    pub(super) fn has_lapsed(&self) -> bool {
        let until = self.valid_until.load(Ordering::Acquire);
        !self.is_alone && until != 0 && types::Instant(until) <= clock::now()
    }

    /// The lives of other nodes in the newest view; none where this node has joined nobody.
    pub(super) fn others(&self) -> Vec<NodeLife> {
        let core = lock(&self.core);
        let me = core.member.life().node;
        let all = core.view.iter().flat_map(lives);
        all.filter(|life| life.node != me).collect()
    }

    /// Members that have not told what they hold.
    pub(super) fn missing(&self) -> Vec<NodeId> {
        let core = lock(&self.core);
        let missing = core.grace.iter().flat_map(|g| g.waiting());
        missing.map(|life| life.node).collect()
    }
}

impl Core {
    /// Performs what member and manager want of each other; the rest goes to `after` and the result:
    /// views to install, in order.
    fn settle(
        &mut self,
        membership: &Membership,
        mut from_member: VecDeque<member::Effect>,
        mut from_manager: VecDeque<server::Effect>,
        after: &mut After,
    ) -> Vec<ClusterView> {
        let me = self.member.life().node;
        let now = clock::now();
        let mut views = Vec::new();
        loop {
            if let Some(effect) = from_member.pop_front() {
                match effect {
                    member::Effect::Send { to, message } if to == me => {
                        let mut out = Vec::new();
                        if let Some((manager, _)) = &mut self.manager {
                            manager.on_message(now, me, message, &mut out);
                        }
                        from_manager.extend(out);
                    }
                    member::Effect::Send { to, message } => {
                        after.frames.push((to, KIND_TO_MANAGER, message.to_bytes()));
                    }
                    member::Effect::View { view } => views.push(view),
                    member::Effect::Evicted { epoch } => {
                        tracing::error!(epoch = epoch.0, "this life was declared dead");
                        membership.is_evicted.store(true, Ordering::Release);
                    }
                    member::Effect::Joined { .. } => tracing::info!("joined the cluster"),
                    member::Effect::Lapsed => {
                        tracing::warn!("the lease is over: requests wait for the cluster manager");
                    }
                    member::Effect::Regained => tracing::info!("the lease is back"),
                    member::Effect::Refused { reason } => {
                        tracing::warn!(
                            ?reason,
                            "the cluster manager does not let this node in yet"
                        );
                    }
                    member::Effect::Left => tracing::info!("left the cluster"),
                }
            } else if let Some(effect) = from_manager.pop_front() {
                match effect {
                    server::Effect::Store { view, expected } => {
                        self.to_store = Some((view, expected));
                    }
                    server::Effect::Send { to, message } if to == me => {
                        let mut out = Vec::new();
                        self.member.on_message(now, message, &mut out);
                        from_member.extend(out);
                    }
                    server::Effect::Send { to, message } => {
                        after.frames.push((to, KIND_TO_MEMBER, message.to_bytes()));
                    }
                    server::Effect::NodeDead { life, epoch, cause } => {
                        tracing::warn!(
                            node = life.node.0,
                            epoch = epoch.0,
                            ?cause,
                            "a life is over"
                        );
                    }
                    server::Effect::NodeUp { life, epoch } => {
                        tracing::info!(node = life.node.0, epoch = epoch.0, "a node has joined");
                    }
                    server::Effect::SteppedDown { .. } => {
                        tracing::error!(
                            "the config store was changed by somebody else, or cannot be read: \
                             no lease is granted any more"
                        );
                    }
                }
            } else {
                break;
            }
        }
        let until = self.member.valid_until().unwrap_or_default();
        membership.valid_until.store(until.0, Ordering::Release);
        views
    }
}

impl Daemon {
    /// Runs `act` on member and manager, and all that follows from it.
    fn with_membership(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Core, &mut Vec<member::Effect>, &mut Vec<server::Effect>),
    ) {
        let mut after = After::default();
        {
            let mut core = lock(&self.membership.core);
            let (mut from_member, mut from_manager) = (Vec::new(), Vec::new());
            act(&mut core, &mut from_member, &mut from_manager);
            let views = core.settle(
                &self.membership,
                from_member.into(),
                from_manager.into(),
                &mut after,
            );
            for view in views {
                self.install_view(&mut core, view, &mut after);
            }
        }
        self.finish_membership(after);
    }

    fn finish_membership(self: &Arc<Self>, after: After) {
        for (to, kind, meta) in after.frames {
            self.send_membership(to, kind, meta);
        }
        let epoch = lock(&self.log).epoch;
        for life in after.asks {
            self.send(life.node, &Message::AskHeld { epoch });
        }
        self.run(after.items);
        if after.has_dead {
            self.ask_fences();
        }
        if after.is_grace_over {
            tracing::info!("the grace period is over: serving");
            for node in &self.config.view.nodes {
                if node.id != self.me.node {
                    self.send(node.id, &Message::Serving { epoch });
                }
            }
            self.begin_serving();
        }
        if self.membership.is_evicted() {
            self.stop.set();
        }
    }

    fn send_membership(&self, to: NodeId, kind: u16, meta: Vec<u8>) {
        let frame = Frame {
            kind,
            flags: Flags::default(),
            request: RequestId(0),
            epoch: self.membership.epoch(),
            meta,
            payload: Vec::new(),
        };
        // What is lost is asked again.
        drop(self.send_frame(to, Lane::Priority, frame));
    }

    /// A newer view: lives that are not in it are over; the first one begins the grace period.
    fn install_view(self: &Arc<Self>, core: &mut Core, view: ClusterView, after: &mut After) {
        self.membership.epoch.store(view.epoch.0, Ordering::Release);
        lock(&self.server).on_view(&view);
        let old = core.view.replace(view.clone());
        let mut known = self.known_lives();
        let connected = lock(&self.peers).clone();
        // Of a life that is in no view yet the next one tells.
        known.retain(|life| connected.get(&life.node) != Some(&life.incarnation));
        known.extend(old.iter().flat_map(lives));
        for life in known {
            let now = cluster::life(&view, life.node);
            if life.node == self.me.node || now == Some(life) {
                continue;
            }
            core.dead.insert(life);
            // Another life of it is there: the process of this one has ended.
            self.life_ended(life, now.is_some(), &mut after.items);
            after.has_dead = true;
        }
        self.note_members(&lives(&view).collect::<Vec<_>>());
        let mut out = Vec::new();
        match &mut core.grace {
            Some(grace) => grace.on_view(&view, &mut out),
            None => {
                let expected: Vec<NodeLife> = lives(&view)
                    .filter(|life| life.node != self.me.node)
                    .collect();
                for slice in self.shards.iter().flatten() {
                    lock(slice).begin_grace(&expected);
                }
                let grace = Grace::begin(clock::now(), self.me, &view, &mut out);
                core.grace = Some(grace);
            }
        }
        self.grace_effects(out, after);
    }

    /// Lives that the journal knows.
    fn known_lives(&self) -> BTreeSet<NodeLife> {
        let mut known: BTreeSet<NodeLife> = BTreeSet::new();
        for slice in self.shards.iter().flatten() {
            known.extend(lock(slice).shard.lives());
        }
        let held = lock(&self.log).space.lives();
        let held = held.granted.iter().chain(&held.quarantined);
        known.extend(held.map(|(life, _)| *life));
        known
    }

    fn grace_effects(self: &Arc<Self>, effects: grace::Outbox, after: &mut After) {
        for effect in effects {
            match effect {
                grace::Effect::Ask { to } => after.asks.push(to),
                grace::Effect::Over => {
                    let (env, mut out) = (self.owner_env(), Vec::new());
                    for slice in self.shards.iter().flatten() {
                        let mut slice = lock(slice);
                        slice.end_grace(&env, &mut lock(&self.log), &mut out);
                    }
                    after.items.extend(out.into_iter().map(Item::OwnerEffect));
                    after.is_grace_over = true;
                }
            }
        }
    }

    /// What only time brings on.
    pub(super) fn tick_membership(self: &Arc<Self>) {
        if !self.membership.is_alone() {
            self.renew_lease();
            self.settle_lapse();
        }
    }

    /// The same of a daemon that stops, and for which nothing waits any more: its lease is renewed while it may be.
    pub(super) fn renew_lease(self: &Arc<Self>) {
        if self.membership.is_alone() {
            return;
        }
        self.store_view();
        let mut asks = After::default();
        // First: where the disk or the machine stood still for long, the manager on this node hears its own member before it looks who is
        // silent.
        self.with_membership(|core, from_member, _| {
            core.member.on_timeout(clock::now(), from_member);
        });
        self.with_membership(|core, _, from_manager| {
            let now = clock::now();
            if let Some((manager, _)) = &mut core.manager {
                manager.on_timeout(now, from_manager);
            }
            let mut out = Vec::new();
            if let Some(grace) = &mut core.grace {
                grace.on_timeout(now, &mut out);
            }
            self.grace_effects(out, &mut asks);
        });
        self.finish_membership(asks);
    }

    /// Writes the manager's view, outside of the lock: the disk may be slow.
    fn store_view(self: &Arc<Self>) {
        let mut job = {
            let mut core = lock(&self.membership.core);
            let Some((view, expected)) = core.to_store.take() else {
                return;
            };
            let store = core.manager.as_ref().map(|(_, store)| store.clone());
            (view, expected, store.expect("only a manager stores"))
        };
        let result = cluster::store::put_view(&mut job.2, &job.0, job.1);
        if let Err(error) = &result {
            tracing::error!(%error, "the cluster view cannot be stored");
        }
        self.with_membership(|core, _, from_manager| {
            if let Some((manager, store)) = &mut core.manager {
                *store = job.2;
                manager.on_stored(clock::now(), result, from_manager);
            }
        });
    }

    /// A frame of a member or the cluster manager.
    pub(super) fn on_membership_frame(self: &Arc<Self>, from: NodeId, kind: u16, meta: &[u8]) {
        if self.membership.is_alone() {
            return;
        }
        let refused = |error| self.break_link(from, &error);
        if kind == KIND_TO_MEMBER {
            match ToMember::from_bytes(meta, "message to a member") {
                Ok(message) => self.with_membership(|core, from_member, _| {
                    core.member.on_message(clock::now(), message, from_member);
                }),
                Err(error) => refused(error),
            }
            return;
        }
        let message = match ToManager::from_bytes(meta, "message to the manager") {
            Ok(message) => message,
            Err(error) => return refused(error),
        };
        let mut answer = None;
        self.with_membership(|core, _, from_manager| match &mut core.manager {
            Some((manager, _)) => manager.on_message(clock::now(), from, message, from_manager),
            None => answer = Some(redirect(core.view.as_ref())),
        });
        if let Some(answer) = answer {
            self.send_membership(from, KIND_TO_MEMBER, answer.to_bytes());
        }
    }

    /// The link to `peer` is up.
    pub(super) fn membership_connected(self: &Arc<Self>, peer: NodeId) {
        if !self.membership.is_alone() {
            self.with_membership(|core, from_member, _| {
                core.member.on_connected(clock::now(), peer, from_member);
            });
        }
    }

    /// Leaves the cluster after everything was written back; bounded.
    pub(super) fn leave_cluster(self: &Arc<Self>) {
        if self.membership.is_alone() || self.lease_left() == Duration(0) {
            return;
        }
        self.with_membership(|core, from_member, _| core.member.leave(clock::now(), from_member));
        let until = std::time::Instant::now() + LEAVE_PATIENCE;
        let has_left = || lock(&self.membership.core).member.state() == member::State::Left;
        while !has_left() && std::time::Instant::now() < until {
            self.tick_membership();
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }

    /// A message of a life that is a member, or may be one; others are not heard.
    pub(super) fn is_heard(&self, life: NodeLife) -> bool {
        self.membership.is_alone() || !self.membership.is_dead(life)
    }

    /// A new owner asks what this node holds.
    pub(super) fn tell_held(&self, owner: NodeId, epoch: Epoch) {
        let mut told = lock(&self.membership.told);
        let messages = told.tell(owner, epoch, || self.held_of(owner, epoch));
        for message in messages {
            self.send(owner, message);
        }
    }

    fn held_of(&self, owner: NodeId, epoch: Epoch) -> Vec<Message> {
        let is_its = |shard: ShardId| self.owner(shard) == owner;
        let mut held = Vec::new();
        let mut locks = HeldLocks::default();
        for slice in &self.slices {
            let mut slice = lock(slice);
            held.extend(slice.reassert(clock::now(), is_its, epoch));
            slice.reassert_locks(is_its, &mut locks);
        }
        if is_its(RENAME_TOKEN.shard()) {
            held.push(HeldInode {
                ino: RENAME_TOKEN,
                holdings: lock(&self.moves).reassert(epoch),
                is_open: false,
            });
        }
        let count = u16::try_from(self.config.view.owners.len()).expect("shards have 16 bits");
        let shards = (0..count).map(ShardId).filter(|shard| is_its(*shard));
        let messages = held_messages(epoch, shards, held, &locks, HOLDINGS_MAX);
        tracing::info!(
            node = owner.0,
            count = messages.len(),
            "told a new owner what is held"
        );
        messages
    }

    /// A member tells what it holds.
    pub(super) fn on_held(
        self: &Arc<Self>,
        from: NodeLife,
        epoch: Epoch,
        shard: ShardId,
        part: &Reassert,
    ) {
        if lock(&self.log).epoch != epoch {
            return;
        }
        if self.is_serving() {
            self.send(from.node, &Message::Serving { epoch });
            return;
        }
        let slice = self.shards.get(usize::from(shard.0));
        let Some(slice) = slice.and_then(Option::as_ref) else {
            return;
        };
        let mut after = After::default();
        {
            let mut core = lock(&self.membership.core);
            let Some(grace) = &mut core.grace else {
                return;
            };
            if !grace.waiting().any(|waiting| waiting == from) {
                return;
            }
            let result = {
                let mut slice = lock(slice);
                let mut log = lock(&self.log);
                slice.on_reassert(&mut log, from, part)
            };
            if let Err(error) = result {
                tracing::error!(node = from.node.0, %error, "a member says what cannot be");
            }
            let is_missing = |slice: &Mutex<node::OwnerSlice>| lock(slice).is_missing(from);
            if part.is_last && !self.shards.iter().flatten().any(is_missing) {
                let mut out = Vec::new();
                grace.on_answered(from, self.me.incarnation, &mut out);
                self.grace_effects(out, &mut after);
            }
        }
        self.finish_membership(after);
    }

    /// An owner serves: it needs to be told nothing any more.
    pub(super) fn on_serving(&self, owner: NodeId, epoch: Epoch) {
        lock(&self.membership.told).on_serving(owner, epoch);
    }
}

/// Replaces this process by a new one of the same command, as after a crash: the kernel ends the FUSE
/// connection, and the new life joins. Returns only on failure.
pub(super) fn start_anew() -> Error {
    use std::os::unix::process::CommandExt as _;
    let mut arguments = std::env::args_os();
    let mut command = std::process::Command::new("/proc/self/exe");
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    tracing::warn!("starting anew");
    Error::Restart(command.args(arguments).exec())
}
