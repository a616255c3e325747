//! What an operation is executed on and with, and how the execution can end.
//!
//! `execute` never waits and never does half of something: it runs on the shards that are locked now and
//! ends in exactly one `Outcome`. Every outcome but `Done` left everything as it was; the caller gets what
//! is missing and calls again from the start.

use types::extent::{Extent, Piece};
use types::token::InodeMode;
use types::{
    Attr, ByteRange, Errno, FileKind, InodeId, Name, NodeId, NodeLife, Pattern, RequestId, Run,
    ShardId, Timestamp, wire_enum, wire_struct,
};

use crate::message::Reply;
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::transaction::{Plan, TransactionId};

/// Where a remote node's request came from, for recognising its repeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Slot of the sender in the home shard, below `limits::SLOTS_PER_SHARD`.
    pub slot: u16,
    /// Grows from request to request of one slot.
    pub request: RequestId,
}
wire_struct!(Origin { slot, request });

/// What the asking node's tokens on the file cover, as the token manager knows it (Commit only).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held<'a> {
    /// Nothing: a Commit is `Stale`.
    Nothing,
    /// These bytes for writing, and this inode token.
    Tokens {
        /// Mode of the inode token; a Commit with a size needs SharedWrite or Exclusive.
        inode: Option<InodeMode>,
        /// Patterns of the write token.
        writes: &'a [Pattern],
    },
    /// Everything (the caller has checked by other means; tests).
    All,
}

/// Steps of a pattern walk after which a range counts as not covered: bounds the work for foreign input.
const COVER_STEP_COUNT_MAX: u32 = 4096;

impl Held<'_> {
    /// All bytes of `range` are covered for writing.
    pub fn covers(&self, range: ByteRange) -> bool {
        let writes = match self {
            Self::Nothing => return range.is_empty(),
            Self::All => return true,
            Self::Tokens { writes, .. } => *writes,
        };
        let mut at = range.begin;
        for _ in 0..COVER_STEP_COUNT_MAX {
            if at >= range.end {
                return true;
            }
            match writes.iter().filter_map(|p| piece_end(p, at)).max() {
                Some(end) => at = end,
                None => return false,
            }
        }
        at >= range.end
    }

    /// The size may be raised.
    pub fn covers_size(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::All => true,
            Self::Tokens { inode, .. } => {
                matches!(inode, Some(InodeMode::SharedWrite | InodeMode::Exclusive))
            }
        }
    }
}

/// The end of the pattern's piece that holds byte `at`.
fn piece_end(pattern: &Pattern, at: u64) -> Option<u64> {
    let skip = at.checked_sub(pattern.offset)?;
    let (index, within) = if pattern.stride == 0 || pattern.count == 1 {
        (0, skip)
    } else {
        (skip / pattern.stride, skip % pattern.stride)
    };
    let is_inside = index < pattern.count && within < pattern.length;
    is_inside.then(|| (at - within).saturating_add(pattern.length))
}

/// Something about another owner's shard that an operation must know. It may have changed since it was
/// asked; the steps that lean on it are checked again where they happen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fact {
    /// What a name of a remote directory leads to (from a `Lookup` there).
    Entry {
        /// Directory.
        directory: InodeId,
        /// Name.
        name: Name,
        /// What it leads to.
        found: Option<(InodeId, FileKind)>,
    },
    /// The directories above `directory`, itself first, the root last (by `LookupParent`, while the
    /// cluster-wide rename token was held).
    Ancestors {
        /// Where the chain begins.
        directory: InodeId,
        /// The chain.
        chain: Vec<InodeId>,
    },
    /// A free inode number of a remote shard (from `Shard::reserve_index` there).
    Number {
        /// The number.
        ino: InodeId,
    },
    /// Attributes of a remote inode (from a `GetAttr` there): whose it is.
    Attributes {
        /// The attributes.
        attr: Attr,
    },
}
wire_enum!(Fact {
    1 => Entry { directory, name, found }, 2 => Ancestors { directory, chain }, 3 => Number { ino },
    4 => Attributes { attr },
});

/// A fact that is missing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// `Fact::Entry`: ask the owner of the directory's shard with `Lookup`.
    Entry {
        /// Directory.
        directory: InodeId,
        /// Name.
        name: Name,
    },
    /// `Fact::Ancestors`: take the rename token (hold it until the operation is over), then follow
    /// `LookupParent` from here to the root.
    Ancestors {
        /// Where to begin.
        directory: InodeId,
    },
    /// `Fact::Number`: ask the owner of the shard for `Shard::reserve_index`.
    Number {
        /// The shard.
        shard: ShardId,
    },
    /// `Fact::Attributes`: ask the owner of the inode's shard with `GetAttr`.
    Attributes {
        /// The inode.
        ino: InodeId,
    },
}
wire_enum!(Query {
    1 => Entry { directory, name }, 2 => Ancestors { directory }, 3 => Number { shard },
    4 => Attributes { ino },
});

/// Who asks, when, and what the caller knows beside the shards.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Cluster time: stamps what changes.
    pub now: Timestamp,
    /// The asking node.
    pub from: NodeLife,
    /// `None`: the owner's own node asks (no repeats, acknowledged before it is durable).
    pub origin: Option<Origin>,
    /// Fresh random bits for every call: inode generations and transaction ids.
    pub random: u128,
    /// What the asking node's tokens cover (Commit only).
    pub held: Held<'a>,
    /// Answers to earlier `NeedFacts` of this operation.
    pub facts: &'a [Fact],
}

/// Locked shards; nearly every operation needs one or two.
pub type Shards<'a> = smallvec::SmallVec<[&'a mut Shard; 4]>;

/// The shards that are locked now, and who owns the others.
#[derive(Debug)]
pub struct View<'a> {
    shards: Shards<'a>,
    owners: &'a [NodeId],
    me: NodeId,
}

impl<'a> View<'a> {
    /// `shards` are the locked ones (of this owner, `me`), `owners` says whose each shard of the file
    /// system is.
    pub fn new(
        shards: impl IntoIterator<Item = &'a mut Shard>,
        owners: &'a [NodeId],
        me: NodeId,
    ) -> Self {
        let shards = shards.into_iter().collect();
        Self { shards, owners, me }
    }

    /// The shard, if it is locked now.
    pub fn shard(&self, id: ShardId) -> Option<&Shard> {
        self.shards.iter().find(|s| s.id() == id).map(|s| &**s)
    }

    /// The shard, if it is locked now.
    pub fn shard_mut(&mut self, id: ShardId) -> Option<&mut Shard> {
        self.shards
            .iter_mut()
            .find(|s| s.id() == id)
            .map(|s| &mut **s)
    }

    /// Cold inodes of locked shards that were looked for since the last call: what was found meanwhile is worth nothing.
    pub fn take_missed(&self) -> Vec<InodeId> {
        let mut missed = Vec::new();
        for shard in &self.shards {
            missed.append(&mut shard.take_missed());
        }
        missed
    }

    /// Whether this owner owns the shard. A shard beyond the map is nobody's.
    pub fn is_mine(&self, id: ShardId) -> bool {
        self.owners.get(usize::from(id.0)) == Some(&self.me)
    }

    /// The shards that this owner owns, by id.
    pub(crate) fn own_shards(&self) -> impl Iterator<Item = ShardId> + '_ {
        let all = (0u16..).map(ShardId).zip(self.owners);
        all.filter(|(_, owner)| **owner == self.me)
            .map(|(id, _)| id)
    }

    /// The shard exists in the file system.
    pub fn is_known(&self, id: ShardId) -> bool {
        usize::from(id.0) < self.owners.len()
    }
}

/// What an executed operation leaves to its caller.
///
/// The caller journals `mutations` (already applied) with the space changes in ONE record, before it
/// unlocks the shards; then it answers when it may.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The answer.
    pub reply: Reply,
    /// What was changed, in order, by shard. Empty: nothing to journal.
    pub mutations: Vec<(ShardId, Mutation)>,
    /// Runs that files took into use: they leave the asking node's grants in the same record.
    pub used: Vec<Run>,
    /// Runs that no file uses any more: freed in the same record.
    pub freed: Vec<Run>,
    /// The answer leaves only when everything it shows is durable: true for remote askers (commit on
    /// share), and for every outcome of a two-phase transaction.
    pub durable_before_reply: bool,
}

impl Executed {
    /// An answer that changed nothing.
    pub fn answer(reply: Reply, is_local: bool) -> Self {
        Self {
            reply,
            mutations: Vec::new(),
            used: Vec::new(),
            freed: Vec::new(),
            durable_before_reply: !is_local,
        }
    }
}

/// How an execution ended.
#[allow(
    clippy::large_enum_variant,
    reason = "made once per call and moved, never kept; a box would cost an allocation per operation"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is done (or failed for good: `Reply::Error`).
    Done(Executed),
    /// These shards of the same owner are needed too: lock them all, in id order, and call again.
    NeedShards(Vec<ShardId>),
    /// These inodes are in the trees of their shards alone: read them (`Shard::decode`), have them taken in
    /// (`Shard::take_in`), and call again.
    NeedKeys(Vec<InodeId>),
    /// Other owners must be asked first; call again with the facts.
    NeedFacts(Vec<Query>),
    /// Other owners take part: run the plan by `transaction::begin`, with the same shards locked.
    NeedOwners(Box<Plan>),
    /// A name or inode involved is being changed by a transaction: call again when it is resolved; the
    /// caller bounds the wait.
    Wait(TransactionId),
    /// A late duplicate of a request whose sender has gone on: drop it without an answer.
    Ignore,
}

/// Why an operation cannot go on as it is; `?` inside operations.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// Answer this error.
    Fail(Errno),
    /// Answer `Stale`.
    Stale,
    /// See `Outcome::NeedShards`.
    Shard(ShardId),
    /// The same, of several at once.
    Shards(Vec<ShardId>),
    /// See `Outcome::NeedFacts`.
    Fact(Query),
    /// See `Outcome::Wait`.
    Wait(TransactionId),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Fail(errno)
    }
}

/// Part of a file's map.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MapPart {
    /// Extents, by file sector.
    pub extents: Vec<Extent>,
    /// Pieces, by offset.
    pub pieces: Vec<Piece>,
    /// Complete up to this byte.
    pub end: u64,
}
