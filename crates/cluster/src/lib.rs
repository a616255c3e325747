//! Who is in the cluster, in which life, and until when: membership, leases, epochs, grace.
//!
//! ```text
//!   client::Member (every node)                     server::Manager (the cluster manager)
//!   Joining --Join--------------------------------> checks, next view --Store--> config store
//!      ^   <--Welcome{view, lease}----------------- published when stored
//!   Member --RenewLease--------------------------->
//!      |   <--LeaseGranted / ViewChanged-----------  silent for lease + margin: NodeDead
//!   (lapsed: requests park) --> Evicted: this life is over
//! ```
//!
//! Invariants
//! - A node counts its lease from *sending* the request for it, the manager from *receiving* it plus
//!   `Timing::margin`: no node believes in its lease after the manager declared it dead, as long as
//!   clocks drift less than `Timing::drift_tolerance_ppm` against each other.
//! - Two lives of a node are never members at once. A new life replaces the old one at once only with
//!   the proof that the old process is gone (it holds the lock of the same state directory);
//!   otherwise it waits for the old lease to end.
//! - Every change of the view raises its epoch by one and is in the config store before anybody sees
//!   it; no node goes back to an older view.
//! - An owner that starts serves only after every member of its view has answered or was declared
//!   dead (`Grace`).
//!
//! What this deliberately does not do: elect managers, move shards (a later issue), keep the config
//! store (`ConfigStore` is implemented in `os`).
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that panics has failed")
)]

pub mod client;
pub mod grace;
pub mod message;
pub mod server;
pub mod store;

pub use client::Member;
pub use grace::Grace;
pub use server::Manager;
pub use store::{ConfigStore, Revision, StoreError, Stored, StoredView};

use types::id::NodeLife;
use types::{ClusterView, Duration, Incarnation, NodeId, ShardId, limits};

/// The times that all nodes of a cluster agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How long a lease is valid.
    pub lease: Duration,
    /// A member renews this often.
    pub renewal: Duration,
    /// What the manager adds before it calls a silent node dead: clocks may drift this much over a
    /// lease, both ways.
    pub margin: Duration,
    /// An unanswered message is sent again after this.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self::of_lease(Duration::from_millis(limits::LEASE_MS))
    }
}

impl Timing {
    /// The times that go with leases of this length: five renewals in each.
    pub const fn of_lease(lease: Duration) -> Self {
        const RENEWALS: u64 = limits::LEASE_MS / limits::LEASE_RENEWAL_MS;
        Self {
            lease,
            renewal: Duration(lease.0 / RENEWALS),
            // 5 %: a hundred times what a quartz clock does, and short against the lease.
            margin: Duration(lease.0 / 20),
            retry: Duration(lease.0 / RENEWALS / 4),
        }
    }

    /// Drift between two clocks, in parts per million, below which the lease rule holds.
    pub const fn drift_tolerance_ppm(&self) -> u64 {
        // lease * (1 + d) <= (lease + margin) * (1 - d)  <=>  d <= margin / (2 * lease + margin)
        self.margin.0 * 1_000_000 / (2 * self.lease.0 + self.margin.0)
    }

    /// Asserts that the times make sense together.
    pub fn check(&self) {
        assert!(self.retry.0 > 0);
        assert!(self.retry <= self.renewal);
        assert!(self.renewal.0 * 2 < self.lease.0, "one renewal may be lost");
        assert!(self.margin.0 > 0);
    }
}

/// The owner of a shard as the view shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// It is a member: send the operation.
    Up(NodeLife),
    /// It is dead or has not joined: park the operation, bounded; a later view ends the wait.
    Away(NodeId),
    /// The view has no such shard: the inode number is wrong.
    NoShard,
}

/// Who owns `shard` now.
pub fn owner(view: &ClusterView, shard: ShardId) -> Owner {
    let Some(node) = view.owner(shard) else {
        return Owner::NoShard;
    };
    match life(view, node) {
        Some(life) => Owner::Up(life),
        None => Owner::Away(node),
    }
}

/// The present life of `node`, if it is a member.
pub fn life(view: &ClusterView, node: NodeId) -> Option<NodeLife> {
    let incarnation = view.node(node)?.incarnation;
    (incarnation != Incarnation(0)).then_some(NodeLife { node, incarnation })
}

/// Every life that is a member, by node.
pub fn lives(view: &ClusterView) -> impl Iterator<Item = NodeLife> + '_ {
    view.nodes.iter().filter_map(|node| life(view, node.id))
}
