//! Token vocabulary shared by the siblings `token` and `meta`: modes, wants and what is held.

use crate::{InodeId, Pattern, TokenNumber, wire_enum, wire_struct};

/// Right to cache a directory's entries and attributes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DirectoryMode {
    /// Others may cache too; nobody changes.
    Read,
    /// No other node caches anything of it.
    Write,
}
wire_enum!(DirectoryMode { 1 => Read {}, 2 => Write {} });

/// Right to cache the attributes of what is no directory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InodeMode {
    /// Attributes are current.
    Read,
    /// One of several writers: keeps its own size and 'modified' mark.
    SharedWrite,
    /// Alone: may append, truncate, change attributes.
    Exclusive,
}
wire_enum!(InodeMode { 1 => Read {}, 2 => SharedWrite {}, 3 => Exclusive {} });

/// Right to cache bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RangeMode {
    /// Bytes may be cached.
    Read,
    /// Bytes may be changed in the cache.
    Write,
}
wire_enum!(RangeMode { 1 => Read {}, 2 => Write {} });

/// What a token is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TokenKind {
    /// A directory's entries and attributes. `hash_begin..=hash_end` is the part of the name hash
    /// space; the whole until directories split.
    Directory {
        /// Mode.
        mode: DirectoryMode,
        /// First name hash.
        hash_begin: u64,
        /// Last name hash.
        hash_end: u64,
    },
    /// Attributes of what is no directory.
    Inode {
        /// Mode.
        mode: InodeMode,
    },
    /// Bytes of a file.
    Range {
        /// Mode.
        mode: RangeMode,
        /// The bytes: one or several patterns, disjoint.
        patterns: Vec<Pattern>,
    },
}
wire_enum!(TokenKind {
    1 => Directory { mode, hash_begin, hash_end }, 2 => Inode { mode }, 3 => Range { mode, patterns },
});

/// What a node asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Want {
    /// A directory token on all names.
    Directory {
        /// Mode.
        mode: DirectoryMode,
    },
    /// An inode token.
    Inode {
        /// Mode.
        mode: InodeMode,
    },
    /// A byte-range token.
    Range {
        /// Mode.
        mode: RangeMode,
        /// What the operation cannot do without.
        required: Pattern,
        /// What would be of use; contains `required`.
        desired: Pattern,
    },
}
wire_enum!(Want { 1 => Directory { mode }, 2 => Inode { mode }, 3 => Range { mode, required, desired } });

/// A token in a node's hands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// The inode.
    pub ino: InodeId,
    /// Its number, per (inode, holder), under the shard's epoch.
    pub number: TokenNumber,
    /// What it is for.
    pub kind: TokenKind,
}
wire_struct!(Holding { ino, number, kind });

/// Names a release of tokens on an inode among those of its holder: a state, and a release of that.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct ReleaseStamp {
    /// The state.
    pub number: TokenNumber,
    /// Grows with each release of one state.
    pub sequence: u64,
}
wire_struct!(ReleaseStamp { number, sequence });

impl ReleaseStamp {
    /// Not before any release.
    pub const LAST: Self = Self {
        number: TokenNumber(u64::MAX),
        sequence: u64::MAX,
    };
}
