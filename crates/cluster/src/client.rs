//! A node's membership: joining, its lease, the view, eviction.
//!
//! Invariants (`check`)
//! - The lease is counted from the sending of the question whose answer granted it, never from the
//!   answer; it only grows, and `is_valid` needs no timer to have run.
//! - A life that was evicted or has left never becomes valid again; only `rejoin` with another
//!   incarnation goes on.
//! - The view's epoch only grows.
//!
//! ```text
//! Joining (Query, then Join) --Welcome--> Member --lease over--> Member, lapsed --LeaseGranted--> Member
//!    ^                   |  \--Evicted, or a view without us--> Evicted --rejoin--> Joining
//!    |                   \--leave--> Leaving --Left--> Left
//! ```
//!
//! What this deliberately does not do: park requests, drop kernel caches (`client`, on `Lapsed` and
//! `Evicted`).

use std::collections::BTreeMap;

use types::id::NodeLife;
use types::{ClusterView, Duration, Epoch, Incarnation, Instant, NodeId};

use crate::message::{FORMER_COUNT_MAX, Join, Refusal, ToManager, ToMember, VERSION};
use crate::{Timing, life};

/// Most questions whose sending time is remembered.
const ASKED_COUNT_MAX: usize = 16;

/// What a node is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The node in this life.
    pub life: NodeLife,
    /// Earlier lives of the same state directory (see `Join::former`), newest last.
    pub former: Vec<Incarnation>,
    /// `address:port` of its daemon.
    pub address: String,
    /// The cluster manager, as configured; the view and redirections change it.
    pub manager: NodeId,
    /// Times.
    pub timing: Timing,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Send to node `to`, in the priority lane (a direct call when that is this node).
    Send {
        /// The cluster manager.
        to: NodeId,
        /// What.
        message: ToManager,
    },
    /// This life is a member; `View` follows.
    Joined {
        /// The lease ends then, if it is not renewed.
        valid_until: Instant,
    },
    /// A newer view: hand it to everybody.
    View {
        /// The view.
        view: ClusterView,
    },
    /// The lease is over: park requests, answer nothing, see that cached answers end.
    Lapsed,
    /// The lease is back and no view was missed that evicted us: go on.
    Regained,
    /// This life is over: fail what is parked, forget tokens and dirty data, quarantine its grants;
    /// then `rejoin` or stop.
    Evicted {
        /// Epoch of the view at that time.
        epoch: Epoch,
    },
    /// The manager does not let us in; joining goes on by itself. Reported when the reason changes.
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// This life has left the cluster: the daemon may end.
    Left,
}

/// Effects, in the order in which they are to be performed.
pub type Outbox = Vec<Effect>;

/// Where a node stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// Asks to be let in.
    Joining,
    /// Is a member, with a valid or lapsed lease.
    Member,
    /// Was declared dead.
    Evicted,
    /// Has said that it goes.
    Leaving,
    /// Is gone.
    Left,
}

/// The membership of one node.
#[derive(Debug)]
pub struct Member {
    config: Config,
    state: State,
    view: Option<ClusterView>,
    /// What the manager named before the first Join of this life.
    since: Option<Epoch>,
    valid_until: Instant,
    is_lapsed: bool,
    next_number: u64,
    /// When the newest questions were sent.
    asked: BTreeMap<u64, Instant>,
    /// Newest question that was answered.
    answered: u64,
    send_at: Option<Instant>,
    refusal: Option<Refusal>,
}

impl Member {
    /// A node that begins to join: call `on_timeout` at once.
    pub fn new(now: Instant, mut config: Config) -> Self {
        config.timing.check();
        keep_newest(&mut config.former);
        Self {
            config,
            state: State::Joining,
            view: None,
            since: None,
            valid_until: Instant(0),
            is_lapsed: true,
            next_number: 1,
            asked: BTreeMap::new(),
            answered: 0,
            send_at: Some(now),
            refusal: None,
        }
    }

    /// This life has a valid lease: it may answer other nodes and acknowledge fsyncs. Ask after the
    /// journal write and right before the answer.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.state == State::Member && now < self.valid_until
    }

    /// When the lease ends, if it is not renewed; `None` when there is none.
    pub fn valid_until(&self) -> Option<Instant> {
        (self.state == State::Member).then_some(self.valid_until)
    }

    /// What is left of the lease: the bound of every time-out given to the kernel.
    pub fn remaining(&self, now: Instant) -> Duration {
        match self.state {
            State::Member => self.valid_until.since(now),
            State::Joining | State::Evicted | State::Leaving | State::Left => Duration(0),
        }
    }

    /// Where the node stands.
    pub fn state(&self) -> State {
        self.state
    }

    /// This node in this life.
    pub fn life(&self) -> NodeLife {
        self.config.life
    }

    /// Whom it asks.
    pub fn manager(&self) -> NodeId {
        self.config.manager
    }

    /// The newest view.
    pub fn view(&self) -> Option<&ClusterView> {
        self.view.as_ref()
    }

    /// Epoch of the newest view; 0 without one.
    pub fn epoch(&self) -> Epoch {
        self.view.as_ref().map_or(Epoch(0), |view| view.epoch)
    }

    /// Why the manager did not let it in, when it last did not.
    pub fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Goes on as another life, after an eviction whose consequences are done (every write that the
    /// old life submitted has completed).
    pub fn rejoin(&mut self, now: Instant, incarnation: Incarnation, out: &mut Outbox) {
        assert_eq!(
            self.state,
            State::Evicted,
            "only an evicted life is replaced"
        );
        assert_ne!(
            self.config.life.incarnation, incarnation,
            "lives are unique"
        );
        let old = self.config.life.incarnation;
        self.config.former.push(old);
        keep_newest(&mut self.config.former);
        self.config.life.incarnation = incarnation;
        self.state = State::Joining;
        self.since = None;
        self.asked.clear();
        self.is_lapsed = true;
        self.send_at = Some(now);
        self.on_timeout(now, out);
    }

    /// Leaves the cluster: everything is flushed and released. The lease is not valid from now on.
    pub fn leave(&mut self, now: Instant, out: &mut Outbox) {
        match self.state {
            State::Member => {
                self.state = State::Leaving;
                self.send_at = Some(now);
                self.on_timeout(now, out);
            }
            State::Joining | State::Evicted => {
                self.state = State::Left;
                self.send_at = None;
                out.push(Effect::Left);
            }
            State::Leaving | State::Left => {}
        }
    }

    /// The connection to the manager is there again: asks at once instead of at the next time-out.
    pub fn on_connected(&mut self, now: Instant, node: NodeId, out: &mut Outbox) {
        if node == self.config.manager && self.send_at.is_some() && self.is_unanswered() {
            self.send_at = Some(now);
            self.on_timeout(now, out);
        }
    }

    /// A message of the manager (or a redirection by another node).
    pub fn on_message(&mut self, now: Instant, message: ToMember, out: &mut Outbox) {
        self.note_lapse(now, out);
        let own = self.config.life.incarnation;
        match message {
            ToMember::Welcome {
                incarnation,
                number,
                lease_ms,
                view,
            } => {
                if incarnation == own {
                    self.on_welcome(now, number, lease_ms, view, out);
                }
            }
            ToMember::LeaseGranted {
                incarnation,
                number,
                lease_ms,
            } => {
                if incarnation == own && self.state == State::Member {
                    self.extend(now, number, lease_ms, out);
                }
            }
            ToMember::ViewChanged { view } => self.install(view, out),
            ToMember::Evicted { incarnation, epoch } => {
                if incarnation == own {
                    self.evict(epoch, out);
                }
            }
            ToMember::Left { incarnation } => {
                if incarnation == own && self.state == State::Leaving {
                    self.state = State::Left;
                    self.send_at = None;
                    out.push(Effect::Left);
                }
            }
            ToMember::Refused {
                incarnation,
                reason,
            } => {
                if incarnation == own && self.state == State::Joining {
                    // The wait shrinks with every answer: that is no news.
                    let is_news = self.refusal.map(|old| std::mem::discriminant(&old))
                        != Some(std::mem::discriminant(&reason));
                    self.refusal = Some(reason);
                    if is_news {
                        out.push(Effect::Refused { reason });
                    }
                }
            }
            ToMember::Manager { node, epoch } => self.on_manager_known(now, node, epoch, out),
        }
    }

    /// The time of `next_timeout` has come.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Outbox) {
        self.note_lapse(now, out);
        if self.send_at.is_none_or(|at| now < at) {
            return;
        }
        let to = self.config.manager;
        let life = self.config.life;
        let message = match (self.state, self.since) {
            (State::Joining, None) => ToManager::QueryManager {},
            (State::Joining, Some(since)) => ToManager::Join(Join {
                life,
                number: self.ask(now),
                version_min: VERSION,
                version_max: VERSION,
                features: 0,
                since,
                address: self.config.address.clone(),
                former: self.config.former.clone(),
            }),
            (State::Member, _) => ToManager::RenewLease {
                life,
                number: self.ask(now),
                epoch: self.epoch(),
            },
            (State::Leaving, _) => ToManager::Leave { life },
            (State::Evicted | State::Left, _) => {
                self.send_at = None;
                return;
            }
        };
        self.send_at = Some(now + self.config.timing.retry);
        out.push(Effect::Send { to, message });
    }

    /// When `on_timeout` is to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        let lapse = (self.state == State::Member && !self.is_lapsed).then_some(self.valid_until);
        [self.send_at, lapse].into_iter().flatten().min()
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        assert!(self.asked.len() <= ASKED_COUNT_MAX);
        assert!(self.asked.keys().all(|number| *number < self.next_number));
        assert!(self.answered < self.next_number);
        match self.state {
            State::Member => {
                assert!(self.send_at.is_some());
                let view = self.view.as_ref().expect("a member has a view");
                assert_eq!(life(view, self.config.life.node), Some(self.config.life));
            }
            State::Joining | State::Leaving => assert!(self.send_at.is_some()),
            State::Evicted | State::Left => assert!(self.send_at.is_none()),
        }
    }

    fn on_manager_known(&mut self, now: Instant, node: NodeId, epoch: Epoch, out: &mut Outbox) {
        if node == NodeId(0) {
            return;
        }
        // A new one is asked at the next time-out: two nodes that name each other make no storm.
        self.config.manager = node;
        if epoch != Epoch(0) && self.state == State::Joining && self.since.is_none() {
            self.since = Some(epoch);
            self.send_at = Some(now);
            self.on_timeout(now, out);
        }
    }

    fn is_unanswered(&self) -> bool {
        self.state != State::Member || self.answered + 1 < self.next_number
    }

    fn ask(&mut self, now: Instant) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        if self.asked.len() == ASKED_COUNT_MAX {
            self.asked.pop_first();
        }
        self.asked.insert(number, now);
        number
    }

    fn on_welcome(
        &mut self,
        now: Instant,
        number: u64,
        lease_ms: u32,
        view: ClusterView,
        out: &mut Outbox,
    ) {
        match self.state {
            State::Joining => {}
            State::Member => {
                self.extend(now, number, lease_ms, out);
                self.install(view, out);
                return;
            }
            State::Evicted | State::Leaving | State::Left => return,
        }
        let is_in = life(&view, self.config.life.node) == Some(self.config.life);
        if !is_in || view.epoch < self.epoch() || !self.asked.contains_key(&number) {
            return;
        }
        self.state = State::Member;
        self.refusal = None;
        self.config.manager = view.manager;
        // A joined life needs no proof against the lives before it any more.
        self.config.former.clear();
        self.view = Some(view.clone());
        let valid_until = self.count(now, number, lease_ms);
        self.is_lapsed = now >= valid_until;
        out.push(Effect::Joined { valid_until });
        out.push(Effect::View { view });
        if self.is_lapsed {
            out.push(Effect::Lapsed);
        }
    }

    /// Counts a lease from the sending of question `number`, if that is still known.
    fn count(&mut self, now: Instant, number: u64, lease_ms: u32) -> Instant {
        if let Some(sent) = self.asked.remove(&number) {
            let until = sent + Duration::from_millis(lease_ms.into());
            self.valid_until = self.valid_until.max(until);
            if number > self.answered {
                self.answered = number;
                self.asked.retain(|asked, _| *asked > number);
                let next = sent + self.config.timing.renewal;
                self.send_at = Some(next.max(now));
            }
        }
        self.valid_until
    }

    fn extend(&mut self, now: Instant, number: u64, lease_ms: u32, out: &mut Outbox) {
        let valid_until = self.count(now, number, lease_ms);
        if self.is_lapsed && now < valid_until {
            self.is_lapsed = false;
            out.push(Effect::Regained);
        }
    }

    fn note_lapse(&mut self, now: Instant, out: &mut Outbox) {
        if self.state == State::Member && !self.is_lapsed && now >= self.valid_until {
            self.is_lapsed = true;
            out.push(Effect::Lapsed);
        }
    }

    fn install(&mut self, view: ClusterView, out: &mut Outbox) {
        if self.state != State::Member || view.epoch <= self.epoch() {
            return;
        }
        let is_in = life(&view, self.config.life.node) == Some(self.config.life);
        let epoch = view.epoch;
        self.config.manager = view.manager;
        self.view = Some(view.clone());
        if is_in {
            out.push(Effect::View { view });
        } else {
            self.evict(epoch, out);
        }
    }

    fn evict(&mut self, epoch: Epoch, out: &mut Outbox) {
        match self.state {
            State::Joining | State::Member => {
                self.state = State::Evicted;
                self.send_at = None;
                out.push(Effect::Evicted { epoch });
            }
            // A leaving life that is not a member any more has left.
            State::Leaving => {
                self.state = State::Left;
                self.send_at = None;
                out.push(Effect::Left);
            }
            State::Evicted | State::Left => {}
        }
    }
}

fn keep_newest(former: &mut Vec<Incarnation>) {
    let excess = former.len().saturating_sub(FORMER_COUNT_MAX);
    former.drain(..excess);
}

#[cfg(test)]
mod tests;
