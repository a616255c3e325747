//! Sectors of a dead life are free only when no write of it can be on its way: its process has ended, and every NSD
//! server refuses the life and has ended the writes that it had accepted.
//!
//! ```text
//! owner: the life is over, its process gone -> quarantine -> AskFenced to every server -> all Fenced -> free
//! server: AskFenced -> nsd::Server::on_fence -> Effect::Fenced -> Fenced to all who asked
//! ```
//!
//! Invariants
//! - A server that does not answer keeps the sectors in quarantine: it is asked again until it does, in whatever life.
//!   One that began anew has no write of before: its process took the locks of its disks.
//! - The quarantine is in the journal, what is asked is not: an owner that begins anew asks all again.

use std::collections::{BTreeMap, BTreeSet};

use types::id::NodeLife;
use types::{Instant, NodeId};

/// Both sides' memory: see the module.
#[derive(Debug, Default)]
pub struct Fences {
    /// Dead lives: since when they wait for servers, and the servers that have not fenced them.
    missing: BTreeMap<NodeLife, (Instant, BTreeSet<NodeId>)>,
    /// This node as server: who asked for a life that is being drained.
    askers: BTreeMap<NodeLife, BTreeSet<NodeId>>,
}

impl Fences {
    /// The process of a dead life has ended, and what it held is in quarantine. `servers`: the nodes that serve NSDs,
    /// this one included if it does. True: there are none, the sectors are free.
    pub fn begin(
        &mut self,
        now: Instant,
        life: NodeLife,
        servers: impl Iterator<Item = NodeId>,
    ) -> bool {
        let servers: BTreeSet<NodeId> = servers.filter(|node| *node != NodeId::default()).collect();
        let is_done = servers.is_empty();
        if !is_done {
            self.missing.insert(life, (now, servers));
        }
        is_done
    }

    /// Whom to ask for what, now and from time to time.
    pub fn asks(&self) -> Vec<(NodeId, NodeLife)> {
        let asks = self.missing.iter();
        asks.flat_map(|(life, (_, servers))| servers.iter().map(|server| (*server, *life)))
            .collect()
    }

    /// A server has fenced the life. True: all have, the sectors are free.
    pub fn on_fenced(&mut self, from: NodeId, life: NodeLife) -> bool {
        let Some((_, missing)) = self.missing.get_mut(&life) else {
            return false;
        };
        missing.remove(&from);
        let is_done = missing.is_empty();
        if is_done {
            self.missing.remove(&life);
        }
        is_done
    }

    /// This node as server is asked by `from`: the caller fences the life, and tells `drained` when it is.
    pub fn on_ask(&mut self, from: NodeId, life: NodeLife) {
        self.askers.entry(life).or_default().insert(from);
    }

    /// No write of the life is on its way here any more: who has asked is told.
    pub fn drained(&mut self, life: NodeLife) -> BTreeSet<NodeId> {
        self.askers.remove(&life).unwrap_or_default()
    }

    /// Dead lives whose sectors wait for servers, and since when: for `gupfs waiters`.
    pub fn waiters(&self) -> Vec<(String, Instant)> {
        let waiter = |(life, (since, servers)): (&NodeLife, &(Instant, BTreeSet<NodeId>))| {
            let servers: Vec<String> = servers.iter().map(|n| n.0.to_string()).collect();
            let (node, servers) = (life.node.0, servers.join(", "));
            let what = format!(
                "sectors of a former life of node {node} are quarantined until servers fence it: {servers}"
            );
            (what, *since)
        };
        self.missing.iter().map(waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Incarnation;

    #[test]
    fn sectors_are_free_when_the_last_server_has_fenced_the_life() {
        let life = |node, incarnation| NodeLife {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
        };
        let mut fences = Fences::default();
        let servers = || [1, 2, 3, 2].map(NodeId).into_iter();
        let now = Instant(7);
        assert!(fences.begin(now, life(9, 1), std::iter::empty()));
        assert!(!fences.begin(now, life(2, 1), servers()));
        assert!(!fences.begin(Instant(8), life(2, 2), servers()));
        assert_eq!(fences.asks().len(), 6);
        assert!(!fences.on_fenced(NodeId(1), life(2, 1)));
        assert!(!fences.on_fenced(NodeId(1), life(2, 1)), "a repeat");
        assert!(!fences.on_fenced(NodeId(3), life(2, 1)));
        assert!(!fences.on_fenced(NodeId(2), life(2, 2)), "another life");
        assert!(fences.on_fenced(NodeId(2), life(2, 1)));
        assert!(!fences.on_fenced(NodeId(2), life(2, 1)), "freed once");
        assert_eq!(fences.asks().len(), 2);
        let waiters = fences.waiters();
        assert_eq!(waiters.len(), 1);
        assert!(waiters[0].0.ends_with("fence it: 1, 3"), "{waiters:?}");
        assert_eq!(waiters[0].1, Instant(8));
        fences.on_ask(NodeId(1), life(2, 2));
        fences.on_ask(NodeId(3), life(2, 2));
        assert_eq!(fences.drained(life(2, 2)).len(), 2);
        assert!(fences.drained(life(2, 2)).is_empty());
    }
}
