//! What is said between a holder and the manager of a shard.
//!
//! All messages may be lost, duplicated, delayed and reordered; docs/tokens.md goes through the cases.
//! The number in a message names the *state* of one holder on one inode: all it may cache there. Every
//! grant makes a new state with a higher number and says all of it, so that a lost grant needs no repair
//! but the next one.

use types::id::NodeLife;
use types::{Holding, InodeId, Lock, TokenKind, TokenNumber, Want, wire_enum, wire_struct};

/// Holder to manager: wants on one inode, granted together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acquire {
    /// Who will hold.
    pub holder: NodeLife,
    /// Names the request within the holder's life; a repeat has the same.
    pub ticket: u64,
    /// The inode.
    pub ino: InodeId,
    /// The newest state that the holder has seen ([`crate::Holder::seen`]); 0 when it has none, or when
    /// the owner asks in the holder's name. Who names the newest state and asks for part of it has given
    /// that part up, and gets a new state.
    pub seen: TokenNumber,
    /// What is wanted, at most one of each kind.
    pub wants: Vec<Want>,
    /// Nothing is recorded: it is enough that nobody else holds a conflicting token at the moment of
    /// the answer. For operations that the owner executes.
    pub transient: bool,
}
wire_struct!(Acquire {
    holder,
    ticket,
    ino,
    seen,
    wants,
    transient
});

/// Manager to holder: the wants of `ticket` are granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Granted {
    /// The request answered.
    pub ticket: u64,
    /// The inode.
    pub ino: InodeId,
    /// The holder's state on the inode; 0 when it has none (transient).
    pub number: TokenNumber,
    /// All of that state; empty for a transient request.
    pub holdings: Vec<Holding>,
    /// Several nodes have been changing this directory: cache none of its names in the kernel (R11).
    pub contended: bool,
}
wire_struct!(Granted {
    ticket,
    ino,
    number,
    holdings,
    contended
});

/// Manager to holder: give up what conflicts with another node's wants.
///
/// What may be kept of a mode follows from [`crate::compat`]; the required bytes must be given up, more
/// may be. Repeated until it is answered by a [`Released`] that names the same revoke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Revoke {
    /// The inode.
    pub ino: InodeId,
    /// The holder's newest state. One that it has not seen yet is void for it from now on.
    pub number: TokenNumber,
    /// Names the revoke in its answer; not 0.
    pub revoke: u64,
    /// What the requester wants.
    pub wants: Vec<Want>,
}
wire_struct!(Revoke {
    ino,
    number,
    revoke,
    wants
});

/// Holder to manager: all that is left of a state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Released {
    /// The inode.
    pub ino: InodeId,
    /// The state it is about.
    pub number: TokenNumber,
    /// Grows with each release of one state: an older one says nothing any more.
    pub sequence: u64,
    /// The revoke that is answered; 0 when the holder gives up by itself.
    pub revoke: u64,
    /// All that is still held.
    pub kept: Vec<TokenKind>,
    /// The node still has the inode open; for the owner's list of orphans.
    pub still_open: bool,
}
wire_struct!(Released {
    ino,
    number,
    sequence,
    revoke,
    kept,
    still_open
});

/// Holder to a new owner in its grace period: what it holds in the shard, in parts that fit a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reassert {
    /// Counts from 0; parts are taken in order, repeats are ignored.
    pub part: u32,
    /// No more parts.
    pub is_last: bool,
    /// From [`crate::Holder::reassert`], all of an inode in one part.
    pub holdings: Vec<Holding>,
    /// Inodes that the node has open, or takes the owner to keep for it: their indexes in the shard. For the owner's
    /// list of orphans; the manager does not look at them.
    pub open: Vec<u64>,
    /// What applications have locked ([`crate::Locks`]), and the inodes.
    pub locks: Vec<HeldLock>,
    /// The last number of a change of locks that the owner before may have been asked for; in each part.
    pub lock_floor: u64,
}
wire_struct!(Reassert {
    part,
    is_last,
    holdings,
    open,
    locks,
    lock_floor
});

/// A lock, and on what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldLock {
    /// The inode.
    pub ino: InodeId,
    /// The lock.
    pub lock: Lock,
}
wire_struct!(HeldLock { ino, lock });

/// A request was not taken on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Busy {
    /// Too many requests wait: ask again later.
    #[error("{count} requests wait already")]
    Waiting {
        /// Requests that wait.
        count: u64,
    },
    /// The shard's table of tokens is full: nodes are being asked to give some back, ask again later.
    #[error("{count} tokens are held already")]
    Tokens {
        /// Inodes times holders.
        count: u64,
    },
    /// The holder has too many pieces of this inode: give up all of its ranges, then ask again.
    #[error("the holder has {count} pieces of the inode already")]
    Pieces {
        /// Pieces.
        count: u64,
    },
}
wire_enum!(Busy { 1 => Waiting { count }, 2 => Tokens { count }, 3 => Pieces { count } });

/// Manager to holder: the request was not taken on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// The request.
    pub ticket: u64,
    /// The inode.
    pub ino: InodeId,
    /// Why.
    pub busy: Busy,
}
wire_struct!(Refused { ticket, ino, busy });

/// Manager to holder: the table of tokens is nearly full, give up some that are not in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reclaim {
    /// How many inodes to give up.
    pub count: u64,
}
wire_struct!(Reclaim { count });

/// Everything that is said, as one wire message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// Holder to manager.
    Acquire(Acquire),
    /// Manager to holder.
    Granted(Granted),
    /// Manager to holder.
    Revoke(Revoke),
    /// Holder to manager.
    Released(Released),
    /// Holder to manager.
    Reassert(Reassert),
    /// Manager to holder.
    Refused(Refused),
    /// Manager to holder.
    Reclaim(Reclaim),
}
wire_enum!(Message {
    1 => Acquire(acquire), 2 => Granted(granted), 3 => Revoke(revoke), 4 => Released(released),
    5 => Reassert(reassert), 6 => Refused(refused), 7 => Reclaim(reclaim),
});
