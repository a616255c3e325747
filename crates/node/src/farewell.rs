//! A node that stops in good order: what others hold for its shards and NSDs is taken before it leaves.
//!
//! Dirty data of a node lies on NSDs that another one may serve, and belongs to shards that another one may own. Once that one has
//! left nobody takes it, and if the first then stops, too, it is lost. So who stops says so first, and serves until all others have
//! written back what they held then.
//!
//! ```text
//! who stops: Stopping to every member -> writes all of its own back, unmounts -> WrittenBack{is_last} to who has asked
//!            -> every other member has answered, is a member no more, or has had no link for a while -> leaves
//! who stays: Stopping -> writes back what is dirty now (`client::slice::Input::Sweep`), durable -> WrittenBack
//! ```
//!
//! Invariants
//! - A node that stops, too, answers only when it holds nothing any more (`is_last`), and waits for the others after that. So of
//!   two that stop at once neither leaves before both have written, and neither waits for the other's answer with its own.
//! - An answer that was not the last counts no more when its sender stops, too: its unmount brings what its kernel had.
//! - Nothing here is kept longer than a life: who dies is not waited for, and is owed no answer.

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{Duration, Instant};

/// How long a member without a link is waited for: it may be on its way back.
pub const LINK_PATIENCE: Duration = Duration::from_millis(2000);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// All slices write back what is dirty now, and tell `on_swept` when that is durable.
    Sweep(u64),
    /// Tell this node that it has been done.
    Answer {
        /// Who has asked.
        to: NodeLife,
        /// This node stops, too, and has nothing left.
        is_last: bool,
    },
}

/// Both sides of a node: see the module.
#[derive(Debug, Default)]
pub struct Farewells {
    /// Lives that stop and have asked this node.
    asked: BTreeMap<NodeLife, Asked>,
    /// Sweeps that were begun.
    sweep_count: u64,
    /// This node stops.
    own: Option<Own>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// So many slices have not ended this sweep.
    Sweeping { sweep: u64, slices: usize },
    /// All have.
    Swept,
    /// It came after this node had begun to stop.
    Later,
}

#[derive(Debug, Default)]
struct Own {
    since: Instant,
    /// Who has not answered, and when it had a link last.
    missing: BTreeMap<NodeLife, Instant>,
    /// Who has nothing left.
    done: BTreeSet<NodeLife>,
    /// This node has nothing left.
    is_written: bool,
}

impl Farewells {
    /// This node stops: the other members are to be asked (`missing`), now and from time to time.
    pub fn begin(&mut self, now: Instant, members: impl Iterator<Item = NodeLife>) {
        let missing = members.map(|life| (life, now)).collect();
        self.own = Some(Own {
            since: now,
            missing,
            ..Own::default()
        });
    }

    /// This node has written all that it held, and nobody can write through it any more: who has asked is to be told.
    pub fn written(&mut self) -> Vec<Act> {
        if let Some(own) = &mut self.own {
            own.is_written = true;
        }
        let answer = |to: &NodeLife| Act::Answer {
            to: *to,
            is_last: true,
        };
        self.asked.keys().map(answer).collect()
    }

    /// Members that this node waits for before it leaves.
    pub fn missing(&self) -> impl Iterator<Item = NodeLife> {
        let missing = self.own.iter().flat_map(|own| own.missing.keys());
        missing.copied()
    }

    /// Some time has passed: who is a member no more is not waited for, nor is who has had no link for `LINK_PATIENCE`.
    pub fn on_tick(
        &mut self,
        now: Instant,
        is_member: impl Fn(NodeLife) -> bool,
        is_linked: impl Fn(NodeLife) -> bool,
    ) {
        let Some(own) = &mut self.own else { return };
        own.missing.retain(|life, linked| {
            if is_linked(*life) {
                *linked = now;
            }
            is_member(*life) && now.since(*linked) < LINK_PATIENCE
        });
    }

    /// `from` stops, and asks for what this node holds; it may ask again. `slices`: how many tell `on_swept`.
    pub fn on_stopping(&mut self, now: Instant, from: NodeLife, slices: usize) -> Option<Act> {
        let answer = |is_last| Some(Act::Answer { to: from, is_last });
        if let Some(own) = &mut self.own {
            if !own.done.contains(&from) {
                own.missing.insert(from, now);
            }
            let is_written = own.is_written;
            self.asked.entry(from).or_insert(Asked::Later);
            return answer(true).filter(|_| is_written);
        }
        match self.asked.get(&from) {
            Some(Asked::Swept) => answer(false),
            Some(Asked::Sweeping { .. }) => None,
            Some(Asked::Later) | None => {
                self.sweep_count += 1;
                let sweep = self.sweep_count;
                self.asked.insert(from, Asked::Sweeping { sweep, slices });
                Some(Act::Sweep(sweep))
            }
        }
    }

    /// A slice has written back what was dirty in it when this sweep began.
    pub fn on_swept(&mut self, sweep: u64) -> Option<Act> {
        let is_it =
            |asked: &Asked| matches!(asked, Asked::Sweeping { sweep: of, .. } if *of == sweep);
        let (life, asked) = self.asked.iter_mut().find(|(_, asked)| is_it(asked))?;
        let Asked::Sweeping { slices, .. } = asked else {
            return None;
        };
        *slices -= 1;
        if *slices > 0 {
            return None;
        }
        *asked = Asked::Swept;
        // A node that stops answers when it has nothing left.
        self.own.is_none().then_some(Act::Answer {
            to: *life,
            is_last: false,
        })
    }

    /// A member has written back what it held.
    pub fn on_written_back(&mut self, from: NodeLife, is_last: bool) {
        if let Some(own) = &mut self.own {
            own.missing.remove(&from);
            if is_last {
                own.done.insert(from);
            }
        }
    }

    /// A life is over.
    pub fn ended(&mut self, life: NodeLife) {
        self.asked.remove(&life);
        if let Some(own) = &mut self.own {
            own.missing.remove(&life);
        }
    }

    /// For `gupfs waiters`.
    pub fn waiters(&self) -> Vec<(String, Instant)> {
        let Some(own) = &self.own else {
            return Vec::new();
        };
        let waiter = |life: &NodeLife| {
            let node = life.node.0;
            let what = format!("this node stops when node {node} has written back what it holds");
            (what, own.since)
        };
        own.missing.keys().map(waiter).collect()
    }
}

#[cfg(test)]
mod tests;
