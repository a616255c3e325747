//! The gate of a directory: how names leave the kernel's dentry cache (rules R7, R9, R11).
//!
//! INVAL_ENTRY takes the directory's i_rwsem, which every LOOKUP and CREATE that waits for us holds. So no revoke
//! waits for it: the first revoke makes the directory *shared*, has the kernel believe none of its names any more
//! (its client waits until the longest time-out handed out has passed, `client::belief`; the simulator's first stage counts an epoch up), and from
//! then on its names and attributes are answered with time-out 0, so that a revoke has nothing to drop.
//!
//! Invariants:
//! - a time-out above 0 is handed out only while no revoke is under way and the directory is not shared;
//! - a revoke is released only when no dentry answered before it can still be believed and nothing is in service;
//! - a request is parked only if it lacks a token or the names are already dropped: never behind the dropping (R7).

use types::{Duration, Instant, limits};

use super::{NotifyId, RevokeId, Rules};
use crate::request::Ticket;

/// What to do with a directory request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryVerdict {
    /// Answer it under the token that is held; say `on_served` when the answer has been written.
    Serve,
    /// Keep it until `DirectoryEffect::Retry`; missing tokens may be asked for meanwhile.
    Park,
}

/// What the gate wants done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectoryEffect {
    /// Present a parked request again.
    Retry {
        /// Which.
        ticket: Ticket,
    },
    /// The kernel is to believe no name of the directory any more, nor its attributes; nothing of that blocks. Then `on_notified`.
    DropNames {
        /// Its name.
        notify: NotifyId,
    },
    /// INVAL_ENTRY of every name the kernel may have. Only without rule R11, which no production daemon is.
    NotifyEntries {
        /// Its name.
        notify: NotifyId,
    },
    /// The token may go.
    Release {
        /// Which revoke is over.
        revoke: RevokeId,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The notification has not returned.
    Notifying(NotifyId),
    /// No INC_EPOCH: what was in service must be answered, then the longest time-out waited out.
    Settling,
    /// Waits until the time-outs handed out have passed.
    WaitingOut(Instant),
    /// No dentry is believed any longer; the last requests are answered.
    Draining,
}

#[derive(Debug)]
struct Revoke {
    id: RevokeId,
    state: State,
}

/// See the module.
#[derive(Debug)]
pub struct DirectoryGate {
    rules: Rules,
    has_epoch: bool,
    serving: Vec<Ticket>,
    parked: Vec<Ticket>,
    revokes: Vec<Revoke>,
    is_shared: bool,
    /// Time-outs above 0 may have been handed out since names were last dropped.
    is_cached: bool,
    notify_next: u64,
}

impl DirectoryGate {
    /// A gate with nothing in it; `has_epoch`: the kernel knows INC_EPOCH (protocol 7.44).
    pub const fn new(rules: Rules, has_epoch: bool) -> Self {
        Self {
            rules,
            has_epoch,
            serving: Vec::new(),
            parked: Vec::new(),
            revokes: Vec::new(),
            is_shared: false,
            is_cached: false,
            notify_next: 0,
        }
    }

    /// Nothing is remembered that matters: the gate may be dropped with the directory's token.
    pub const fn is_idle(&self) -> bool {
        self.serving.is_empty()
            && self.parked.is_empty()
            && self.revokes.is_empty()
            && !self.is_shared
            && !self.is_cached
    }

    /// The request was served and its answer is not yet written.
    pub fn is_serving(&self, ticket: Ticket) -> bool {
        self.serving.contains(&ticket)
    }

    /// Several nodes change the directory: its answers carry time-out 0.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The time-out for a name or the attributes of this directory, given what lease and token allow. To be asked when
    /// the answer is made, while the request is in service.
    pub const fn timeout(&mut self, allowed: Duration) -> Duration {
        if self.is_shared || !self.revokes.is_empty() {
            return Duration(0);
        }
        self.is_cached |= allowed.0 > 0;
        allowed
    }

    /// The owner says that several nodes change the directory (or no longer do). Names that the kernel has already
    /// stay covered by the token; they are dropped by the next revoke.
    pub const fn set_shared(&mut self, is_shared: bool) {
        self.is_shared = is_shared;
    }

    /// Decides on a request (LOOKUP, READDIR, GETATTR of the directory; CREATE and the like, which execute at the owner:
    /// `has_token` if they need not wait for it). To be called again after `Retry`.
    pub fn on_request(&mut self, ticket: Ticket, has_token: bool) -> DirectoryVerdict {
        assert!(!self.serving.contains(&ticket), "{ticket:?} twice");
        assert!(!self.parked.contains(&ticket), "{ticket:?} twice");
        let may_answer = self.revokes.iter().all(|r| self.is_answered(r.state));
        if has_token && may_answer {
            self.serving.push(ticket);
            return DirectoryVerdict::Serve;
        }
        self.parked.push(ticket);
        if !self.rules.r9 && !has_token {
            self.serving.push(ticket); // Canary only.
        }
        DirectoryVerdict::Park
    }

    /// The answer has been written.
    pub fn on_served(&mut self, now: Instant, ticket: Ticket, out: &mut Vec<DirectoryEffect>) {
        let index = self.serving.iter().position(|t| *t == ticket);
        self.serving
            .swap_remove(index.expect("only a request in service is finished"));
        self.advance(now, out);
    }

    /// A parked request is gone.
    pub fn on_abandoned(&mut self, now: Instant, ticket: Ticket, out: &mut Vec<DirectoryEffect>) {
        self.parked.retain(|t| *t != ticket);
        self.serving.retain(|t| *t != ticket);
        self.advance(now, out);
    }

    /// New tokens are here.
    pub fn on_token_granted(&mut self, out: &mut Vec<DirectoryEffect>) {
        if self.revokes.is_empty() {
            self.retry_all(out);
        }
    }

    /// The token is to leave; it counts as held until `Release`.
    pub fn begin_revoke(&mut self, now: Instant, revoke: RevokeId, out: &mut Vec<DirectoryEffect>) {
        assert!(self.revokes.iter().all(|r| r.id != revoke));
        let notify = NotifyId(self.notify_next);
        let state = if !self.is_cached {
            State::Draining
        } else if !self.rules.r11 {
            self.notify_next += 1;
            out.push(DirectoryEffect::NotifyEntries { notify });
            State::Notifying(notify)
        } else if self.has_epoch {
            self.notify_next += 1;
            out.push(DirectoryEffect::DropNames { notify });
            State::Notifying(notify)
        } else {
            State::Settling
        };
        if self.rules.r11 {
            self.is_shared = true;
        }
        self.revokes.push(Revoke { id: revoke, state });
        self.advance(now, out);
    }

    /// INC_EPOCH (or INVAL_ENTRY) has returned.
    pub fn on_notified(&mut self, now: Instant, notify: NotifyId, out: &mut Vec<DirectoryEffect>) {
        for revoke in &mut self.revokes {
            if revoke.state == State::Notifying(notify) {
                revoke.state = State::Draining;
            }
        }
        self.advance(now, out);
    }

    /// When to call `on_timeout`.
    pub fn next_timeout(&self) -> Option<Instant> {
        let times = self.revokes.iter().filter_map(|r| match r.state {
            State::WaitingOut(until) => Some(until),
            State::Notifying(_) | State::Settling | State::Draining => None,
        });
        times.min()
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Vec<DirectoryEffect>) {
        self.advance(now, out);
    }

    /// Requests that wait.
    pub fn waiters(&self) -> &[Ticket] {
        &self.parked
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        for revoke in &self.revokes {
            assert!(self.is_shared || !self.rules.r11);
            if revoke.state == State::Draining || revoke.state == State::Settling {
                assert!(!self.serving.is_empty(), "{:?} has no reason", revoke.id);
            }
        }
        if self.rules.r9 {
            assert!(self.parked.iter().all(|t| !self.serving.contains(t)));
        }
    }

    /// In this state of a revoke requests are still answered under the old token.
    const fn is_answered(&self, state: State) -> bool {
        match state {
            State::Notifying(_) | State::WaitingOut(_) => self.rules.r7,
            // Else the last answer would never be given while others come.
            State::Settling | State::Draining => false,
        }
    }

    fn advance(&mut self, now: Instant, out: &mut Vec<DirectoryEffect>) {
        let is_quiet = self.serving.is_empty();
        let longest = Duration::from_millis(limits::KERNEL_TIMEOUT_MS_MAX);
        let mut has_settled = false;
        for revoke in &mut self.revokes {
            match revoke.state {
                State::Settling if is_quiet => {
                    revoke.state = State::WaitingOut(now + longest);
                    has_settled = true;
                }
                State::WaitingOut(until) if now >= until => revoke.state = State::Draining,
                State::Notifying(_) | State::Settling | State::WaitingOut(_) | State::Draining => {}
            }
        }
        if has_settled && self.rules.r7 {
            self.retry_all(out); // They need not wait for the time-outs.
        }
        if !is_quiet {
            return;
        }
        let before = self.revokes.len();
        self.revokes.retain(|revoke| {
            let is_done = revoke.state == State::Draining;
            if is_done {
                out.push(DirectoryEffect::Release { revoke: revoke.id });
            }
            !is_done
        });
        if before > self.revokes.len() && self.revokes.is_empty() {
            self.is_cached = false;
            self.retry_all(out);
        }
    }

    fn retry_all(&mut self, out: &mut Vec<DirectoryEffect>) {
        for ticket in std::mem::take(&mut self.parked) {
            self.serving.retain(|t| *t != ticket); // Canary only.
            out.push(DirectoryEffect::Retry { ticket });
        }
    }
}
