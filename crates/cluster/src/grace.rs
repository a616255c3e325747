//! The grace period of an owner that (re)starts: who must still answer before it serves.
//!
//! Tokens, locks and opens are soft state: the members tell a new owner instance what they hold and
//! repeat their unfinished requests (messages of the crate `token`). This core only keeps the set.
//!
//! Invariants (`check`)
//! - It ends when every life that was a member at its beginning has answered *this* owner instance or
//!   is not a member any more. It never goes on without: a silent node is expelled by the cluster
//!   manager after lease and margin, so the wait is bounded.
//! - `Effect::Over` comes exactly once.
//!
//! Lives that join later hold nothing of the owner's former instance and are not waited for.

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{ClusterView, Duration, Incarnation, Instant};

use crate::lives;

/// A member that has not answered is asked again after this.
pub const ASK_AGAIN: Duration = Duration::from_millis(1000);

/// What the driver has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Ask `to` for what it holds, naming the owner instance.
    Ask {
        /// A member.
        to: NodeLife,
    },
    /// Everybody has answered: serve.
    Over,
}

/// Effects, in the order in which they are to be performed.
pub type Outbox = Vec<Effect>;

/// The grace period of one owner instance.
#[derive(Debug)]
pub struct Grace {
    owner: NodeLife,
    waiting: BTreeSet<NodeLife>,
    answered: BTreeSet<NodeLife>,
    ask_at: Option<Instant>,
    begun_at: Instant,
}

impl Grace {
    /// Begins the grace period of `owner`, a member of `view`. Its own node needs no question: what a
    /// former life of it held is gone with that life.
    pub fn begin(now: Instant, owner: NodeLife, view: &ClusterView, out: &mut Outbox) -> Self {
        let waiting = lives(view).filter(|life| life.node != owner.node).collect();
        let mut grace = Self {
            owner,
            waiting,
            answered: BTreeSet::new(),
            ask_at: Some(now),
            begun_at: now,
        };
        if grace.waiting.is_empty() {
            grace.ask_at = None;
            out.push(Effect::Over);
        } else {
            grace.on_timeout(now, out);
        }
        grace
    }

    /// It has ended: requests are served.
    pub fn is_over(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Who has not answered yet, for `gupfs waiters`.
    pub fn waiting(&self) -> impl Iterator<Item = NodeLife> + '_ {
        self.waiting.iter().copied()
    }

    /// When it began.
    pub fn begun_at(&self) -> Instant {
        self.begun_at
    }

    /// `from` has told all it holds to the owner instance `owner`. An answer to a former instance does
    /// not count.
    pub fn on_answered(&mut self, from: NodeLife, owner: Incarnation, out: &mut Outbox) {
        if owner == self.owner.incarnation && self.waiting.remove(&from) {
            self.answered.insert(from);
            self.end_if_complete(out);
        }
    }

    /// `life` was declared dead.
    pub fn on_dead(&mut self, life: NodeLife, out: &mut Outbox) {
        if self.waiting.remove(&life) {
            self.end_if_complete(out);
        }
    }

    /// A newer view: lives that are not in it are dead.
    pub fn on_view(&mut self, view: &ClusterView, out: &mut Outbox) {
        let members: BTreeMap<_, _> = lives(view).map(|life| (life, ())).collect();
        let before = self.waiting.len();
        self.waiting.retain(|life| members.contains_key(life));
        if self.waiting.len() < before {
            self.end_if_complete(out);
        }
    }

    /// The time of `next_timeout` has come: those who have not answered are asked again.
    pub fn on_timeout(&mut self, now: Instant, out: &mut Outbox) {
        if self.ask_at.is_some_and(|at| now >= at) {
            self.ask_at = Some(now + ASK_AGAIN);
            out.extend(self.waiting.iter().map(|to| Effect::Ask { to: *to }));
        }
    }

    /// When `on_timeout` is to be called next.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.ask_at
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        assert_eq!(self.ask_at.is_none(), self.waiting.is_empty());
        assert!(self.waiting.is_disjoint(&self.answered));
        assert!(self.waiting.iter().all(|life| life.node != self.owner.node));
    }

    fn end_if_complete(&mut self, out: &mut Outbox) {
        if self.waiting.is_empty() {
            self.ask_at = None;
            out.push(Effect::Over);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::tests::{life, view};
    use types::Epoch;

    const SECOND: Duration = Duration::from_secs(1);

    fn members() -> ClusterView {
        let mut view = view(&[1, 2, 3, 4]);
        for node in &mut view.nodes[..3] {
            node.incarnation = Incarnation(u128::from(node.id.0) * 10);
        }
        view
    }

    #[test]
    fn an_owner_alone_serves_at_once() {
        let mut view = members();
        view.nodes[1].incarnation = Incarnation(0);
        view.nodes[2].incarnation = Incarnation(0);
        let mut out = Vec::new();
        let mut grace = Grace::begin(Instant(0), life(1, 10), &view, &mut out);
        assert_eq!(out, [Effect::Over]);
        assert!(grace.is_over());
        assert_eq!(grace.next_timeout(), None);
        grace.on_dead(life(2, 20), &mut out);
        grace.on_view(&view, &mut out);
        assert_eq!(out.len(), 1, "over comes once");
    }

    /// Every order and combination in which two members answer, die or vanish from the view.
    #[test]
    fn it_ends_with_the_last_member_whatever_becomes_of_each() {
        for (first, second) in [(2, 3), (3, 2)] {
            for ways in 0..9 {
                let mut out = Vec::new();
                let mut grace = Grace::begin(Instant(0), life(1, 10), &members(), &mut out);
                let mut view = members();
                for (node, way) in [(first, ways % 3), (second, ways / 3)] {
                    assert!(!grace.is_over());
                    assert!(!out.contains(&Effect::Over));
                    let member = life(node, u128::from(node) * 10);
                    match way {
                        0 => grace.on_answered(member, Incarnation(10), &mut out),
                        1 => grace.on_dead(member, &mut out),
                        _ => {
                            view.epoch = Epoch(view.epoch.0 + 1);
                            view.nodes[usize::from(node) - 1].incarnation = Incarnation(99);
                            grace.on_view(&view, &mut out);
                        }
                    }
                    grace.check();
                }
                assert!(grace.is_over());
                assert_eq!(out.iter().filter(|e| **e == Effect::Over).count(), 1);
            }
        }
    }

    #[test]
    fn answers_that_do_not_count_and_questions_repeated() {
        let mut out = Vec::new();
        let mut grace = Grace::begin(Instant(0), life(1, 10), &members(), &mut out);
        let (two, three) = (life(2, 20), life(3, 30));
        let asked = [Effect::Ask { to: two }, Effect::Ask { to: three }];
        assert_eq!(out, asked);
        out.clear();
        // To a former instance, from a former life, from a life that joined later, twice.
        grace.on_answered(two, Incarnation(9), &mut out);
        grace.on_answered(life(2, 19), Incarnation(10), &mut out);
        grace.on_answered(life(4, 40), Incarnation(10), &mut out);
        grace.on_answered(two, Incarnation(10), &mut out);
        grace.on_answered(two, Incarnation(10), &mut out);
        assert_eq!(out, []);
        grace.check();
        grace.on_timeout(Instant(0), &mut out);
        assert_eq!(out, [], "not yet");
        assert_eq!(grace.next_timeout(), Some(Instant(0) + SECOND));
        grace.on_timeout(Instant(0) + SECOND, &mut out);
        assert_eq!(out, [Effect::Ask { to: three }]);
        assert_eq!(grace.waiting().collect::<Vec<_>>(), [three]);
    }
}
