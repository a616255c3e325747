//! What an owner runs, with what, and what it wants done.

use client::message::{Answer, Ask, Body};
use meta::transaction::TransactionMessage;
use meta::view::{Fact, Origin, Query};
use token::message::{Granted, Revoke};
use types::{Errno, InodeId, Instant, Lsn, NodeId, NodeLife, NsdId, ShardId, Timestamp};

/// In a call's name: who asks reads what is committed, waits for no holder of tokens and keeps none. Nobody would give them
/// back: the asker is no client slice. A version that does not know the bit answers with tokens.
pub const LOOK_CALL: u64 = 1 << 59;

/// A question on its way through an owner.
#[derive(Clone, Debug)]
pub struct Question {
    /// Who asks.
    pub from: NodeLife,
    /// The question's name at the asker.
    pub call: u64,
    /// Slot of a remote asker.
    pub origin: Option<Origin>,
    /// Whose owner is asked.
    pub shard: ShardId,
    /// What is asked.
    pub ask: Ask,
    /// What other owners have told about it.
    pub facts: Vec<Fact>,
    /// Tokens that were granted on the way.
    pub grants: Vec<Granted>,
    /// When it arrived.
    pub since: Instant,
    /// Times it has been run.
    pub tries: u32,
    /// Times it gave way to an older transaction at another owner.
    pub gave_way: u32,
    /// For sectors: what was gathered for it. 0: nothing, 1: regions that nobody holds, 2: what all but another asker
    /// could spare, 3: everything, 4: all but what the owner of the region table could tell of.
    pub space_round: u32,
    /// For sectors: those of the NSDs that a layout names.
    pub of_layout: OfLayout,
    /// The part of a chain of ancestors that is known; its first is the directory asked about.
    pub walk: Vec<InodeId>,
    /// Something that it needs cannot be read.
    pub is_unreadable: bool,
    /// It is not to be executed: what it needs to know cannot be known.
    pub refusal: Option<Errno>,
    /// For a listing: whether the inodes of what it lists have been asked for, which it can do without.
    pub listed: ListingState,
    /// It uses the rename token (`crate::moves`).
    pub is_mover: bool,
}

/// Sectors where a layout wants them, for a question.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum OfLayout {
    /// Nobody has looked yet, or something has come since.
    #[default]
    Unknown,
    /// There is nothing on these NSDs: it waits for regions of them, and is not run meanwhile.
    Lacks(Vec<NsdId>),
    /// There are none, or nobody knows: others will do.
    None,
}

/// Cold inodes that a listing shows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ListingState {
    /// Nobody has asked for them yet.
    #[default]
    Unknown,
    /// They are being read, and nothing else for it.
    Reading,
    /// They were read as far as they can be: those that are still cold are listed by name alone.
    Known,
}

impl ListingState {
    pub(crate) fn after_reading(self) -> Self {
        match self {
            Self::Reading => Self::Known,
            Self::Unknown | Self::Known => self,
        }
    }
}

/// What an owner runs.
#[derive(Clone, Debug)]
pub enum Work {
    /// A client half's question.
    Question(Box<Question>),
    /// Another owner's transaction message.
    Transaction(Box<meta::Envelope>),
    /// Another owner's Prepare, about inodes that cannot be read: it is voted against.
    Unreadable(Box<meta::Envelope>),
    /// This holder of a directory's names should be split, or joined with a neighbour (`meta::parts`).
    Tend {
        /// The directory, or a part of one.
        holder: InodeId,
        /// Something that it needs cannot be read: it stays as it is.
        is_unreadable: bool,
    },
}

impl Work {
    /// A step on the parts of a directory.
    pub fn tend(holder: InodeId) -> Self {
        let is_unreadable = false;
        Self::Tend {
            holder,
            is_unreadable,
        }
    }

    /// The first shard to lock.
    pub fn shard(&self) -> ShardId {
        match self {
            Self::Question(question) => question.shard,
            Self::Transaction(envelope) | Self::Unreadable(envelope) => envelope.to,
            Self::Tend { holder, .. } => holder.shard(),
        }
    }

    /// It may change something: the journal is locked with the shards.
    pub fn needs_log(&self) -> bool {
        match self {
            Self::Question(question) => match &question.ask {
                Ask::Op { op, .. } => op.is_change(),
                Ask::Space(_) => true,
                Ask::Acquire { .. } | Ask::Sync | Ask::Lock { .. } => false,
            },
            Self::Transaction(_) | Self::Unreadable(_) | Self::Tend { .. } => true,
        }
    }

    /// It may be told that what it needs cannot be read. What a transaction has decided may not: it has to be performed.
    pub(crate) fn is_commit(&self) -> bool {
        let Self::Question(question) = self else {
            return false;
        };
        matches!(
            &question.ask,
            Ask::Op {
                op: meta::Op::Commit(_),
                ..
            }
        )
    }

    /// It waits for what it can do without.
    pub(crate) fn is_listing(&self) -> bool {
        matches!(self, Self::Question(q) if q.listed == ListingState::Reading)
    }

    pub(crate) fn may_fail(&self) -> bool {
        match self {
            Self::Question(_) | Self::Unreadable(_) | Self::Tend { .. } => true,
            Self::Transaction(envelope) => {
                matches!(envelope.message, TransactionMessage::Prepare { .. })
            }
        }
    }
}

/// What an owner wants done.
#[derive(Debug)]
pub enum OwnerEffect {
    /// Answer a question, when the journal is durable up to `after`.
    Answer {
        /// Who asked.
        to: NodeLife,
        /// Which question.
        call: u64,
        /// The answer; its box goes on to the client half.
        answer: Box<Answer>,
        /// Not before this is durable.
        after: Option<Lsn>,
        /// It used the rename token, which is free now (`MoveToken::on_over`).
        ends_move: bool,
    },
    /// A question is dropped: it will have no answer, and a repeat of it is another one.
    Dropped {
        /// Who asked.
        to: NodeLife,
        /// Which question.
        call: u64,
        /// It used the rename token, which is free now (`MoveToken::on_over`).
        ends_move: bool,
    },
    /// Tell a holder to give up.
    Revoke(NodeLife, Revoke),
    /// Ask a holder for tokens of so many inodes of the shard that it does not use.
    Reclaim(NodeLife, ShardId, u64),
    /// It is a wait's turn to have its lock.
    LockReady(token::locks::Ready),
    /// Run this (again).
    Run(Work),
    /// The shard has work that pauses until then: `OwnerSlice::resume_paused`. A tick does it, too, where nobody is in a hurry.
    WakeAt(ShardId, Instant),
    /// Run `Work::tend` of this holder of names when nobody waits for it: beside the answers, or behind them.
    Tend(InodeId),
    /// Say this to another owner (or another shard of this one), when durable.
    Transaction(Box<meta::Envelope>, Lsn),
    /// Find these facts out, then run the question again.
    AskFacts(Box<Question>, Vec<Query>),
    /// A holder does not answer a revoke.
    Silent(NodeLife, Instant),
    /// A question for sectors is short of them, or of those that a layout wants: gather, then run it again.
    Gather(Box<Question>),
    /// A client has answered the recall of this name.
    Recalled(NodeLife, u64),
}

const _: () = assert!(size_of::<OwnerEffect>() <= 128);

/// What an owner is given with every input.
#[derive(Debug)]
pub struct OwnerEnv<'a> {
    /// Now.
    pub now: Instant,
    /// Now, as files show it.
    pub timestamp: Timestamp,
    /// This node.
    pub me: NodeLife,
    /// Owner of each shard.
    pub owners: &'a [NodeId],
    /// Fresh random bits.
    pub random: u128,
}

impl Question {
    /// Who asks wants to know what is committed, and keeps nothing ([`LOOK_CALL`]). What changes something never only looks.
    pub(crate) fn only_looks(&self) -> bool {
        let is_change = match &self.ask {
            Ask::Op { op, .. } => op.is_change(),
            _ => true,
        };
        self.call & LOOK_CALL != 0 && !is_change
    }

    pub(crate) fn keep_grant(&mut self, granted: Granted) {
        self.grants.retain(|g| g.ino != granted.ino);
        self.grants.push(granted);
    }

    pub(crate) fn answer(self, body: Body, after: Option<Lsn>) -> OwnerEffect {
        let answer = Box::new(Answer {
            body,
            grants: self.grants,
        });
        OwnerEffect::Answer {
            to: self.from,
            call: self.call,
            answer,
            after,
            ends_move: self.is_mover,
        }
    }

    /// To be run once more, to be refused: as it would have been executed, under the lock of its shard, so that a repeat which is still on
    /// its way finds that it was.
    pub fn to_be_refused(mut self: Box<Self>, errno: Errno) -> Work {
        self.refusal = Some(errno);
        Work::Question(self)
    }

    /// The answer that says that the operation was not executed: of what changes no file. Else [`Self::to_be_refused`].
    pub(crate) fn refused(self, errno: Errno) -> OwnerEffect {
        self.answer(Body::Refused(errno), None)
    }

    /// It ends without an answer.
    pub(crate) fn dropped(&self, out: &mut Vec<OwnerEffect>) {
        out.push(OwnerEffect::Dropped {
            to: self.from,
            call: self.call,
            ends_move: self.is_mover,
        });
    }
}
