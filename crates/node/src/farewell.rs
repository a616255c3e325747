//! A node that stops in good order: what others hold for its shards and NSDs is taken before it leaves.
//!
//! Dirty data of a node lies on NSDs that another one may serve, and belongs to shards that another one may own. Once that one has
//! left nobody takes it, and if the first then stops, too, it is lost. So who stops says so first, and serves until all others have
//! written back what they held then.
//!
//! ```text
//! who stops: Stopping{0} to every member -> writes all of its own back, unmounts -> WrittenBack{is_last} to who has asked
//!            -> Stopping{1} -> every other member has answered that, is a member no more, or has had no link for a while -> leaves
//! who stays: Stopping -> writes back what is dirty now (`client::slice::Input::Sweep`), durable -> WrittenBack
//! ```
//!
//! The first round only has the others begin: what they write while the node that stops is busy with its own goes with the second.
//!
//! Invariants
//! - A node that stops, too, answers only when it will write nothing any more (`is_last`), and waits for the others after that. So of
//!   two that stop at once neither leaves before both have written, and neither waits for the other's answer with its own.
//! - Who stays answers in bounded time: what cannot be written because a third node is away keeps nobody (`STUCK_PATIENCE`).
//! - Nothing here is kept longer than a life: who dies is not waited for, and is owed no answer.

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{Duration, Instant};

/// How long a member without a link is waited for: it may be on its way back.
pub const LINK_PATIENCE: Duration = Duration::from_millis(2000);
/// How long a sweep waits of which all that is left is for nodes that are away.
pub const STUCK_PATIENCE: Duration = Duration::from_millis(3000);

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// All slices write back what is dirty now, and tell `on_swept` when that is durable.
    Sweep(u64),
    /// Tell this node that it has been done.
    Answer {
        /// Who has asked.
        to: NodeLife,
        /// In which round.
        round: u32,
        /// This node stops, too, and writes nothing any more.
        is_last: bool,
    },
}

/// Both sides of a node: see the module.
#[derive(Debug, Default)]
pub struct Farewells {
    /// Lives that stop and have asked this node, and in which round.
    asked: BTreeMap<NodeLife, (u32, Asked)>,
    /// Sweeps that were begun.
    sweep_count: u64,
    /// This node stops.
    own: Option<Own>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// So many slices have not ended this sweep; since when what is left is for nodes that are away.
    Sweeping {
        sweep: u64,
        slices: usize,
        stuck: Option<Instant>,
    },
    /// All have, or what is left cannot be written.
    Swept,
    /// It came after this node had begun to stop.
    Later,
}

#[derive(Debug, Default)]
struct Own {
    since: Instant,
    /// Members that were seen since.
    known: BTreeSet<NodeLife>,
    /// Who has not answered, and since when it is without a link.
    missing: BTreeMap<NodeLife, Option<Instant>>,
    /// Who writes nothing any more.
    done: BTreeSet<NodeLife>,
    /// Nor does this node.
    is_written: bool,
}

impl Farewells {
    /// This node stops: the other members are to be asked (`missing`), now and from time to time.
    pub fn begin(&mut self, now: Instant, members: &[NodeLife]) {
        let mut own = Own {
            since: now,
            ..Own::default()
        };
        own.meet(members);
        self.own = Some(own);
    }

    /// This node writes nothing any more, and nobody can write through it: who has asked is to be told, and the others are to be asked
    /// once more.
    pub fn written(&mut self) -> Vec<Act> {
        if let Some(own) = &mut self.own {
            own.is_written = true;
            let open = own.known.difference(&own.done);
            own.missing.extend(open.map(|life| (*life, None)));
        }
        let answer = |(to, (round, _)): (&NodeLife, &(u32, Asked))| Act::Answer {
            to: *to,
            round: *round,
            is_last: true,
        };
        self.asked.iter().map(answer).collect()
    }

    /// The round in which this node asks.
    pub fn round(&self) -> u32 {
        u32::from(self.own.as_ref().is_some_and(|own| own.is_written))
    }

    /// Members that this node waits for before it leaves.
    pub fn missing(&self) -> impl Iterator<Item = NodeLife> {
        let missing = self.own.iter().flat_map(|own| own.missing.keys());
        missing.copied()
    }

    /// This one stops, too: so it takes and answers also without a lease.
    pub fn has_asked(&self, life: NodeLife) -> bool {
        self.asked.contains_key(&life)
    }

    /// Somebody has asked this node, or is asked by it: `on_tick` is wanted.
    pub fn is_any(&self) -> bool {
        self.own.is_some() || !self.asked.is_empty()
    }

    /// Sweeps under way: who has asked, its number, and how many slices have not ended it.
    pub fn sweeps(&self) -> Vec<(NodeLife, u64, usize)> {
        let sweep = |(asker, (_, asked)): (&NodeLife, &(u32, Asked))| match asked {
            Asked::Sweeping { sweep, slices, .. } => Some((*asker, *sweep, *slices)),
            Asked::Swept | Asked::Later => None,
        };
        self.asked.iter().filter_map(sweep).collect()
    }

    /// Some time has passed: who is a member no more is not waited for, nor is who has had no link for `LINK_PATIENCE`; new members are.
    /// `stuck`: those of `sweeps` of which all that is left is for nodes that are away, and for others than who has asked.
    pub fn on_tick(
        &mut self,
        now: Instant,
        members: &[NodeLife],
        is_linked: impl Fn(NodeLife) -> bool,
        stuck: &[(NodeLife, u64, usize)],
    ) -> Vec<Act> {
        if let Some(own) = &mut self.own {
            own.meet(members);
            own.missing.retain(|life, unlinked| {
                *unlinked = match is_linked(*life) {
                    true => None,
                    false => unlinked.or(Some(now)),
                };
                let for_long = unlinked.is_some_and(|since| now.since(since) >= LINK_PATIENCE);
                members.contains(life) && !for_long
            });
            return Vec::new();
        }
        let mut acts = Vec::new();
        for (to, (round, asked)) in &mut self.asked {
            let Asked::Sweeping {
                sweep,
                slices,
                stuck: since,
            } = asked
            else {
                continue;
            };
            // One that has gone on since it was looked at is not.
            *since = match stuck.contains(&(*to, *sweep, *slices)) {
                true => since.or(Some(now)),
                false => None,
            };
            if since.is_some_and(|since| now.since(since) >= STUCK_PATIENCE) {
                *asked = Asked::Swept;
                acts.push(Act::Answer {
                    to: *to,
                    round: *round,
                    is_last: false,
                });
            }
        }
        acts
    }

    /// `from` stops, and asks for what this node holds; it may ask again. `slices`: how many tell `on_swept`.
    pub fn on_stopping(&mut self, (from, round): (NodeLife, u32), slices: usize) -> Option<Act> {
        let answer = |is_last| {
            Some(Act::Answer {
                to: from,
                round,
                is_last,
            })
        };
        let former = self.asked.get(&from).copied();
        if former.is_some_and(|(of, _)| round < of) {
            // A late one.
            return None;
        }
        if let Some(own) = &mut self.own {
            if !own.done.contains(&from) {
                own.missing.insert(from, None);
            }
            let is_written = own.is_written;
            self.asked.insert(from, (round, Asked::Later));
            return answer(true).filter(|_| is_written);
        }
        match former {
            Some((of, Asked::Swept)) if of == round => answer(false),
            Some((of, Asked::Sweeping { .. })) if of == round => None,
            _ => {
                self.sweep_count += 1;
                let sweep = self.sweep_count;
                let asked = Asked::Sweeping {
                    sweep,
                    slices,
                    stuck: None,
                };
                self.asked.insert(from, (round, asked));
                Some(Act::Sweep(sweep))
            }
        }
    }

    /// A slice has written back what was dirty in it when this sweep began.
    pub fn on_swept(&mut self, sweep: u64) -> Option<Act> {
        let is_stopping = self.own.is_some();
        let (to, round) = self.asked.iter_mut().find_map(|(life, (round, asked))| {
            let Asked::Sweeping {
                sweep: of, slices, ..
            } = asked
            else {
                return None;
            };
            if *of != sweep {
                return None;
            }
            *slices -= 1;
            if *slices > 0 {
                return None;
            }
            *asked = Asked::Swept;
            Some((*life, *round))
        })?;
        // A node that stops answers when it writes nothing any more.
        let is_last = false;
        (!is_stopping).then_some(Act::Answer { to, round, is_last })
    }

    /// A member has written back what it held in this round.
    pub fn on_written_back(&mut self, from: NodeLife, round: u32, is_last: bool) {
        let round_now = self.round();
        let Some(own) = &mut self.own else { return };
        if is_last {
            own.done.insert(from);
        }
        // The first round's are of before.
        if is_last || own.is_written && round == round_now {
            own.missing.remove(&from);
        }
    }

    /// Who is no member has nothing to be told.
    pub fn keep_members(&mut self, members: &[NodeLife]) {
        self.asked.retain(|life, _| members.contains(life));
    }

    /// A life is over.
    pub fn ended(&mut self, life: NodeLife) {
        self.asked.remove(&life);
        if let Some(own) = &mut self.own {
            own.missing.remove(&life);
            own.known.remove(&life);
            own.done.remove(&life);
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

impl Own {
    /// Members that were not seen before have not answered.
    fn meet(&mut self, members: &[NodeLife]) {
        for life in members {
            if self.known.insert(*life) {
                self.missing.insert(*life, None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
