//! What members and the cluster manager say to each other: frame kinds 0x0101 and 0x0102.
//!
//! All of it travels in the priority lane. Every message may be lost, repeated, late or out of order:
//! questions carry a number that grows within a life, answers name it, and what is not answered is
//! asked again.

use types::id::NodeLife;
use types::{ClusterView, Epoch, Incarnation, NodeId, wire_enum, wire_struct};

/// Frame kind of a `ToManager`.
pub const KIND_TO_MANAGER: u16 = 0x0101;
/// Frame kind of a `ToMember`.
pub const KIND_TO_MEMBER: u16 = 0x0102;
/// Version of these messages; a manager serves its own and the one before.
pub const VERSION: u16 = 1;
/// Most former lives that a Join names.
pub const FORMER_COUNT_MAX: usize = 64;

/// A node asks to become a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Join {
    /// Who, in which life.
    pub life: NodeLife,
    /// Number of this question.
    pub number: u64,
    /// Oldest version of the messages that it speaks.
    pub version_min: u16,
    /// Newest version of the messages that it speaks.
    pub version_max: u16,
    /// Feature bits that it knows.
    pub features: u64,
    /// Epoch that the manager named before this life sent its first Join. A later manager refuses
    /// what was sent before its time: an earlier one may have let that life in and declared it dead.
    pub since: Epoch,
    /// `address:port` of its daemon.
    pub address: String,
    /// Earlier lives of the same state directory, whose lock the sender holds: their processes are
    /// gone. Newest last, at most `FORMER_COUNT_MAX`; lives from before the last joined one may be
    /// left out.
    pub former: Vec<Incarnation>,
}
wire_struct!(Join {
    life,
    number,
    version_min,
    version_max,
    features,
    since,
    address,
    former
});

/// What a node says to the cluster manager.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToManager {
    /// Let me in.
    Join(Join),
    /// I am alive.
    RenewLease {
        /// Who.
        life: NodeLife,
        /// Number of this question.
        number: u64,
        /// Epoch of the newest view that it has: the manager sends a newer one.
        epoch: Epoch,
    },
    /// I am going: everything is flushed, all tokens are released, the lease is not used any more.
    Leave {
        /// Who.
        life: NodeLife,
    },
    /// Who is the cluster manager, in which epoch? Any node answers.
    QueryManager {},
}
wire_enum!(ToManager {
    1 => Join(join),
    2 => RenewLease { life, number, epoch },
    3 => Leave { life },
    4 => QueryManager {},
});

/// What the cluster manager says to a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToMember {
    /// You are a member.
    Welcome {
        /// Life that was let in.
        incarnation: Incarnation,
        /// Number of the Join that is answered.
        number: u64,
        /// Length of the lease, from the sending of that Join, in milliseconds.
        lease_ms: u32,
        /// The view, with the node in it.
        view: ClusterView,
    },
    /// Your lease is extended.
    LeaseGranted {
        /// Whose.
        incarnation: Incarnation,
        /// Number of the RenewLease that is answered.
        number: u64,
        /// Length of the lease, from the sending of that question, in milliseconds.
        lease_ms: u32,
    },
    /// A newer view.
    ViewChanged {
        /// The view.
        view: ClusterView,
    },
    /// That life is not a member any more: it must not go on.
    Evicted {
        /// Which.
        incarnation: Incarnation,
        /// Epoch of the view at that time.
        epoch: Epoch,
    },
    /// That life has left, as it asked.
    Left {
        /// Which.
        incarnation: Incarnation,
    },
    /// You cannot join (now).
    Refused {
        /// Which life.
        incarnation: Incarnation,
        /// Why.
        reason: Refusal,
    },
    /// The cluster manager, as far as the sender knows.
    Manager {
        /// The node; 0 when it knows none.
        node: NodeId,
        /// Epoch of the manager's view; 0 when the sender is not the manager.
        epoch: Epoch,
    },
}
wire_enum!(ToMember {
    1 => Welcome { incarnation, number, lease_ms, view },
    2 => LeaseGranted { incarnation, number, lease_ms },
    3 => ViewChanged { view },
    4 => Evicted { incarnation, epoch },
    5 => Left { incarnation },
    6 => Refused { incarnation, reason },
    7 => Manager { node, epoch },
});

/// Why a node cannot join.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Refusal {
    /// The configuration has no such node: add it first.
    UnknownNode,
    /// The manager speaks other versions: upgrade the older side.
    Version {
        /// Oldest that the manager speaks.
        version_min: u16,
        /// Newest that the manager speaks.
        version_max: u16,
    },
    /// Another life of the node may still run: ask again, it is over by then.
    FormerLifeMayRun {
        /// Longest wait in milliseconds.
        wait_ms: u32,
    },
}
wire_enum!(Refusal {
    1 => UnknownNode {},
    2 => Version { version_min, version_max },
    3 => FormerLifeMayRun { wait_ms },
});

/// What a node that is not the manager answers to a `ToManager`.
pub fn redirect(view: Option<&ClusterView>) -> ToMember {
    ToMember::Manager {
        node: view.map_or(NodeId(0), |view| view.manager),
        epoch: Epoch(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{Decode, Encode};

    #[test]
    fn messages_come_back_and_cuts_are_refused() {
        let incarnation = Incarnation(7);
        let life = NodeLife {
            node: NodeId(2),
            incarnation,
        };
        let (number, lease_ms, epoch) = (3, 10_000, Epoch(4));
        let join = Join {
            life,
            number,
            version_min: 1,
            version_max: 2,
            features: 3,
            since: epoch,
            address: "10.0.0.1:7000".to_owned(),
            former: vec![Incarnation(5), Incarnation(6)],
        };
        let to_manager = [
            ToManager::Join(join),
            ToManager::RenewLease {
                life,
                number,
                epoch,
            },
            ToManager::Leave { life },
            ToManager::QueryManager {},
        ];
        for message in to_manager {
            let bytes = message.to_bytes();
            for cut in 0..bytes.len() {
                assert!(ToManager::from_bytes(&bytes[..cut], "message").is_err());
            }
            assert_eq!(ToManager::from_bytes(&bytes, "message"), Ok(message));
        }
        let view = crate::server::tests::view(&[1, 2]);
        let reasons = [
            Refusal::UnknownNode,
            Refusal::Version {
                version_min: 1,
                version_max: 2,
            },
            Refusal::FormerLifeMayRun { wait_ms: 9 },
        ];
        let refused = reasons.map(|reason| ToMember::Refused {
            incarnation,
            reason,
        });
        let to_member = [
            ToMember::Welcome {
                incarnation,
                number,
                lease_ms,
                view: view.clone(),
            },
            ToMember::LeaseGranted {
                incarnation,
                number,
                lease_ms,
            },
            ToMember::Evicted { incarnation, epoch },
            ToMember::Left { incarnation },
            redirect(Some(&view)),
            redirect(None),
            ToMember::ViewChanged { view },
        ];
        for message in to_member.into_iter().chain(refused) {
            let bytes = message.to_bytes();
            for cut in 0..bytes.len() {
                assert!(ToMember::from_bytes(&bytes[..cut], "message").is_err());
            }
            assert_eq!(ToMember::from_bytes(&bytes, "message"), Ok(message));
        }
    }
}
