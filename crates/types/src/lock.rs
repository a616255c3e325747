//! Locks of applications: fcntl's (POSIX and open file description locks) and flock's.

use crate::{ByteRange, wire_enum, wire_struct};

/// Kinds of locks. Locks of different kinds do not know of one another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockKind {
    /// fcntl: byte ranges, of a process or of an open file (OFD).
    Posix,
    /// flock: whole files, of an open file.
    Flock,
}
wire_enum!(LockKind { 1 => Posix {}, 2 => Flock {} });

/// What a lock keeps others from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LockMode {
    /// Others may read too: shared.
    Read,
    /// Exclusive.
    Write,
}
wire_enum!(LockMode { 1 => Read {}, 2 => Write {} });

impl LockMode {
    /// Two owners cannot have both on the same byte.
    pub const fn conflicts_with(self, other: Self) -> bool {
        matches!((self, other), (Self::Write, _) | (_, Self::Write))
    }
}

/// Who has a lock, among all of one node's life: a process's table of files, or an open file, as the kernel numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockOwner {
    /// Which kind of locks.
    pub kind: LockKind,
    /// The kernel's number of it.
    pub id: u64,
}
wire_struct!(LockOwner { kind, id });

/// A lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Who has it, or wants it.
    pub owner: LockOwner,
    /// Against whom.
    pub mode: LockMode,
    /// On which bytes; of flock all.
    pub range: ByteRange,
    /// The process that took it, as its node numbers it; for who looks only.
    pub pid: u32,
}
wire_struct!(Lock {
    owner,
    mode,
    range,
    pid
});
