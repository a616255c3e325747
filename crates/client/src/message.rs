//! What the client half asks an owner half, and what it is answered. Between nodes these travel in
//! frames; on one node the driver calls the owner directly.

use data::{SpaceAnswer, SpaceAsk};
use token::locks::message::{LockAnswer, LockAsk};
use token::message::Granted;
use types::{Attr, InodeId, TokenNumber, Want, wire_enum, wire_struct};

/// What is asked of the owner of a shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Execute an operation. `durable`: answer when the journal holds it (answers to another node always
    /// wait for that).
    Op {
        /// The operation.
        op: meta::Op,
        /// Answer when durable.
        durable: bool,
    },
    /// Tokens on one inode. Answer: `Acquired`.
    Acquire {
        /// The inode.
        ino: InodeId,
        /// The newest state of the inode's tokens that this node has seen.
        seen: TokenNumber,
        /// What is wanted.
        wants: Vec<Want>,
        /// Only if no other node holds or waits for what conflicts: nothing is taken from anybody. Else the answer is
        /// `Refused(EAGAIN)`, at once.
        only_free: bool,
    },
    /// Free sectors for files of this owner's shards, and such that go back to it. Answer: `Space`.
    Space(SpaceAsk),
    /// Make durable what this owner has executed so far. Answer: `Synced`.
    Sync,
    /// About locks of an inode. Answer: `Lock`.
    Lock {
        /// The inode.
        ino: InodeId,
        /// What.
        ask: LockAsk,
    },
}
wire_enum!(Ask {
    1 => Op { op, durable }, 2 => Acquire { ino, seen, wants, only_free }, 4 => Sync {}, 5 => Space(ask),
    6 => Lock { ino, ask },
});

/// The body of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// To `Ask::Op`.
    Op(meta::Reply),
    /// To `Ask::Acquire`: the inode's attributes at the moment of the grant; none when it is gone.
    Acquired {
        /// Attributes.
        attr: Option<Attr>,
    },
    /// To `Ask::Space`; fewer sectors than are needed when there are no more.
    Space(SpaceAnswer),
    /// To `Ask::Sync`.
    Synced,
    /// To `Ask::Lock`.
    Lock(LockAnswer),
    /// Any: the owner cannot serve now and will not; the operation was not executed.
    Refused(types::Errno),
}
wire_enum!(Body {
    1 => Op(reply), 2 => Acquired { attr }, 4 => Synced {}, 5 => Refused(errno), 6 => Space(answer),
    7 => Lock(answer),
});

/// An owner's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What was answered.
    pub body: Body,
    /// Tokens that came with it, at most one grant per inode.
    pub grants: Vec<Granted>,
}
wire_struct!(Answer { body, grants });

impl Answer {
    /// An answer without tokens.
    pub const fn bare(body: Body) -> Self {
        Self {
            body,
            grants: Vec::new(),
        }
    }
}
