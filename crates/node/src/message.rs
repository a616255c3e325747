//! What nodes say to one another, beside the NSD protocol (`nsd::message`) and membership
//! (`cluster::message`).

use client::message::{Answer, Ask};
use data::space::RegionId;
use meta::view::{Fact, Origin, Query};
use types::{Epoch, Errno, InodeId, NodeLife, NsdId, ShardId, wire_enum, wire_struct};

/// A message between the halves of two nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "answers are as usual as the rest: a box would cost each an allocation"
)]
pub enum Message {
    /// Client half to owner half.
    Question {
        /// Names the question within the sender's life.
        call: u64,
        /// For operations that change something: the slot in which the answer is kept.
        origin: Option<Origin>,
        /// The shard whose owner is asked.
        shard: ShardId,
        /// What is asked.
        ask: Ask,
    },
    /// Owner half to client half.
    Answer {
        /// The question.
        call: u64,
        /// The answer.
        answer: Answer,
    },
    /// Owner half to client half: give a token up.
    Revoke(token::message::Revoke),
    /// Owner half to client half: give tokens of so many inodes back that are not in use.
    Reclaim {
        /// Their shard.
        shard: ShardId,
        /// How many.
        count: u64,
    },
    /// Owner half to client half: it is this wait's turn to have its lock.
    LockReady {
        /// The inode.
        ino: InodeId,
        /// The wait.
        wait: u64,
    },
    /// Client half to owner half: what is left of it.
    Released {
        /// Shard of the inode.
        shard: ShardId,
        /// What is left.
        released: token::message::Released,
    },
    /// Owner half to owner half: a transaction over shards of both.
    Transaction(meta::Envelope),
    /// Owner half to owner half: something that an operation must know.
    AskFact {
        /// Names the question within the sender's life.
        id: u64,
        /// What.
        query: Query,
    },
    /// The answer.
    Fact {
        /// The question.
        id: u64,
        /// The fact, or why there is none.
        result: FactResult,
    },
    /// Owner half to the owner of shard 0: take regions.
    TakeRegions {
        /// Names the question within the sender's life; grows.
        id: u64,
        /// Of these NSDs; none: what the sender holds already.
        nsds: Vec<NsdId>,
        /// How many of each.
        count: u32,
        /// When nobody holds any: ask other owners for some that they can spare.
        is_short: bool,
    },
    /// The answer: regions that the asker holds now. Empty: none is free.
    Regions {
        /// The question.
        id: u64,
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// The owner of shard 0 to an owner half: give entirely free regions up, if there are any to spare.
    GiveRegions {
        /// Names the question within the sender's life; grows.
        id: u64,
    },
    /// The answer: these are not the sender's any more. Also an answer to `Regions` that names what the sender does not hold.
    RegionsBack {
        /// The question, or that of the `Regions`.
        id: u64,
        /// The regions.
        regions: Vec<RegionId>,
    },
    /// Owner half to client half: give back what lies unused (`SpaceAsk::recall` is the answer).
    RecallSpace {
        /// Names the recall.
        id: u64,
    },
    /// Any half to an owner half: how much space is free?
    AskFree {
        /// Names the question within the sender's life.
        id: u64,
    },
    /// The answer.
    Free {
        /// The question.
        id: u64,
        /// The answer.
        free: FreeSpace,
    },
    /// A new owner half to client half: what do you hold in my shards?
    AskHeld {
        /// Epoch of the owner's tokens in this life.
        epoch: Epoch,
    },
    /// The answer, in parts, for each shard of the owner.
    Held {
        /// As asked.
        epoch: Epoch,
        /// The shard.
        shard: ShardId,
        /// What is held.
        part: token::message::Reassert,
    },
    /// A new owner half to client half: all have answered.
    Serving {
        /// Epoch of the owner's tokens in this life.
        epoch: Epoch,
    },
    /// Owner half to NSD server: accept nothing of this dead life, and say when no write of it is on its way.
    AskFenced {
        /// The life.
        life: NodeLife,
        /// Epoch of a view without it.
        epoch: Epoch,
    },
    /// The answer.
    Fenced {
        /// The life.
        life: NodeLife,
    },
    /// To every member: the sender stops, and leaves when all have written back what they hold (`crate::farewell`).
    Stopping {
        /// 0: it writes its own back; 1: it has.
        round: u32,
    },
    /// The answer.
    WrittenBack {
        /// As asked.
        round: u32,
        /// The sender stops, too, and writes nothing any more.
        is_last: bool,
    },
}
wire_enum!(Message {
    1 => Question { call, origin, shard, ask },
    2 => Answer { call, answer },
    3 => Revoke(revoke),
    4 => Released { shard, released },
    5 => Transaction(envelope),
    6 => AskFact { id, query },
    7 => Fact { id, result },
    8 => TakeRegions { id, nsds, count, is_short },
    9 => Regions { id, regions },
    10 => AskHeld { epoch },
    11 => Held { epoch, shard, part },
    12 => Serving { epoch },
    13 => Reclaim { shard, count },
    16 => GiveRegions { id },
    17 => RegionsBack { id, regions },
    18 => RecallSpace { id },
    19 => AskFree { id },
    20 => Free { id, free },
    21 => AskFenced { life, epoch },
    22 => Fenced { life },
    23 => LockReady { ino, wait },
    24 => Stopping { round },
    25 => WrittenBack { round, is_last },
});

/// What an owner adds to the sum of a file system's space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FreeSpace {
    /// Sectors of the regions it holds that belong to no file: free, freed, granted and not committed.
    pub held: u64,
    /// Sectors of regions that nobody holds; told by the table's owner.
    pub unheld: u64,
    /// Sectors of `held` that only writes into promised ranges may have, for a time (`limits::OVERWRITE_MARGIN`).
    pub margin: u64,
    /// Inodes.
    pub inodes: u64,
}
wire_struct!(FreeSpace {
    held,
    unheld,
    margin,
    inodes
});

/// A fact or the error that takes its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FactResult {
    /// Found.
    Found(Fact),
    /// Not to be had.
    Failed(Errno),
}
wire_enum!(FactResult { 1 => Found(fact), 2 => Failed(errno) });

/// What messages are counted as, by `Message::class`.
pub const CLASS_NAMES: [&str; 10] = [
    "question",
    "answer",
    "revoke",
    "released",
    "transaction",
    "fact",
    "regions",
    "grace",
    "space",
    "lock",
];

impl Message {
    /// What it is counted as: an index into `CLASS_NAMES`.
    pub const fn class(&self) -> usize {
        match self {
            Self::Question { .. } => 0,
            Self::Answer { .. } => 1,
            Self::Revoke(_) | Self::Reclaim { .. } => 2,
            Self::Released { .. } => 3,
            Self::Transaction(_) => 4,
            Self::AskFact { .. } | Self::Fact { .. } => 5,
            Self::TakeRegions { .. }
            | Self::Regions { .. }
            | Self::GiveRegions { .. }
            | Self::RegionsBack { .. } => 6,
            Self::LockReady { .. } => 9,
            Self::RecallSpace { .. } | Self::AskFree { .. } | Self::Free { .. } => 8,
            Self::AskHeld { .. }
            | Self::Held { .. }
            | Self::Serving { .. }
            | Self::AskFenced { .. }
            | Self::Fenced { .. }
            | Self::Stopping { .. }
            | Self::WrittenBack { .. } => 7,
        }
    }

    /// Gives a question its slot.
    ///
    /// # Panics
    /// When it is no question.
    pub fn set_origin(&mut self, slot: Origin) {
        match self {
            Self::Question { origin, .. } => *origin = Some(slot),
            _ => panic!("only questions have slots"),
        }
    }
}
