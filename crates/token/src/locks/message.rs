//! What a node asks about locks of an inode, and what the owner of its shard answers.

use types::{ByteRange, Lock, LockOwner, NodeId, wire_enum, wire_struct};

/// A question of a node about the locks of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockAsk {
    /// Names a change, and orders those of an inode: each of a node's is higher than its one before, also in a repeat under a
    /// new number. 0 for `Test`.
    pub number: u64,
    /// What is asked.
    pub action: LockAction,
}
wire_struct!(LockAsk { number, action });

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAction {
    /// Take a lock, in place of what the same lock owner has on these bytes.
    Set {
        /// The lock.
        lock: Lock,
        /// Wait where another is in the way. The number names the wait.
        waits: bool,
    },
    /// Is it this wait's turn? Then the lock is held from now on.
    Claim {
        /// The wait.
        wait: u64,
    },
    /// This wait is over, offered or not.
    Cancel {
        /// The wait.
        wait: u64,
    },
    /// Unlock.
    Clear {
        /// Whose lock.
        owner: LockOwner,
        /// Which bytes of it.
        range: ByteRange,
    },
    /// Who would be in the way (F_GETLK)? Changes nothing, is not ordered.
    Test {
        /// The lock that is not taken.
        lock: Lock,
    },
}
wire_enum!(LockAction {
    1 => Set { lock, waits }, 2 => Claim { wait }, 3 => Cancel { wait }, 4 => Clear { owner, range },
    5 => Test { lock },
});

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockAnswer {
    /// Set and Claim: the lock is held. Clear and Cancel: done.
    Done,
    /// Set and Claim: it waits.
    Waits,
    /// Set: another is in the way. A flock that was to be converted is given up.
    Conflict,
    /// Set: who is in the way waits for the asker.
    Deadlock,
    /// Set, Claim, Clear: the shard has no room for more locks of this lock owner.
    Full,
    /// Not executed: the number is not above `newest`, or (Claim) there is no such wait. A new owner may have been told of the
    /// node's locks since it was sent.
    Stale {
        /// Take a higher one.
        newest: u64,
    },
    /// Test: nobody.
    Free,
    /// Test: this one, on this node.
    Held {
        /// Its node.
        node: NodeId,
        /// The lock.
        lock: Lock,
    },
}
wire_enum!(LockAnswer {
    1 => Done {}, 2 => Waits {}, 3 => Conflict {}, 4 => Deadlock {}, 5 => Full {}, 6 => Stale { newest },
    7 => Free {}, 8 => Held { node, lock },
});
