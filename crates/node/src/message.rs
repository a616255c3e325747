//! What nodes say to one another, beside the NSD protocol (`nsd::message`) and membership
//! (`cluster::message`).

use client::message::{Answer, Ask};
use data::space::RegionId;
use meta::view::{Fact, Origin, Query};
use types::{Epoch, Errno, NsdId, ShardId, wire_enum};

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
    /// Owner half to the owner of shard 0: take regions of an NSD.
    TakeRegions {
        /// Names the question within the sender's life.
        id: u64,
        /// The NSD; `None` asks for what the sender holds already.
        nsd: Option<NsdId>,
        /// How many.
        count: u32,
    },
    /// The answer: regions that the asker holds now. Empty: none is free.
    Regions {
        /// The question.
        id: u64,
        /// The regions.
        regions: Vec<RegionId>,
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
}
wire_enum!(Message {
    1 => Question { call, origin, shard, ask },
    2 => Answer { call, answer },
    3 => Revoke(revoke),
    4 => Released { shard, released },
    5 => Transaction(envelope),
    6 => AskFact { id, query },
    7 => Fact { id, result },
    8 => TakeRegions { id, nsd, count },
    9 => Regions { id, regions },
    10 => AskHeld { epoch },
    11 => Held { epoch, shard, part },
    12 => Serving { epoch },
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
pub const CLASS_NAMES: [&str; 8] = [
    "question",
    "answer",
    "revoke",
    "released",
    "transaction",
    "fact",
    "regions",
    "grace",
];

impl Message {
    /// What it is counted as: an index into `CLASS_NAMES`.
    pub const fn class(&self) -> usize {
        match self {
            Self::Question { .. } => 0,
            Self::Answer { .. } => 1,
            Self::Revoke(_) => 2,
            Self::Released { .. } => 3,
            Self::Transaction(_) => 4,
            Self::AskFact { .. } | Self::Fact { .. } => 5,
            Self::TakeRegions { .. } | Self::Regions { .. } => 6,
            Self::AskHeld { .. } | Self::Held { .. } | Self::Serving { .. } => 7,
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
