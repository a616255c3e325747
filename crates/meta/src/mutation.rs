//! Mutations: everything that can change in a shard, as journaled.
//!
//! Invariants
//! - Replaying the mutations of a shard in order on the state they began from gives the same state.
//! - A snapshot is a list of mutations, too; replayed on an empty shard it gives the same state.
//! - Discriminants are part of the journal format: none is reused.

use types::extent::Extent;
use types::{
    Attr, FileKind, InodeId, Name, NodeLife, Piece, RequestId, ShardId, SmallBytes, Timestamp,
    wire_enum,
};

use crate::inode::InodeRecord;
use crate::locks::held;
use crate::message::Reply;
use crate::step::Step;
use crate::transaction::TransactionId;

/// A change of one shard. Inodes are named by their index in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// A new inode.
    InodePut {
        /// It.
        record: InodeRecord,
    },
    /// An inode goes, with its map and extended attributes. A directory, or a part of one, is empty.
    InodeRemove {
        /// Index.
        index: u64,
    },
    /// New attributes; number and kind stay.
    AttrPut {
        /// Index.
        index: u64,
        /// All of them.
        attr: Attr,
    },
    /// mtime and ctime are stamped, the change counter grows by one.
    DirectoryTouch {
        /// Index.
        index: u64,
        /// When.
        now: Timestamp,
        /// Its link count from now on.
        nlink: u32,
    },
    /// A directory has another parent.
    ParentPut {
        /// Index.
        index: u64,
        /// The parent.
        parent: InodeId,
    },
    /// A name leads to an inode, whether or not it was there.
    EntryPut {
        /// Directory.
        directory: u64,
        /// Where in it.
        cookie: u64,
        /// Name.
        name: Name,
        /// What it leads to.
        ino: InodeId,
        /// Of what kind that is.
        kind: FileKind,
    },
    /// A name goes.
    EntryRemove {
        /// Directory.
        directory: u64,
        /// Where in it.
        cookie: u64,
    },
    /// An extended attribute is set.
    XattrPut {
        /// Index.
        index: u64,
        /// Full name.
        name: SmallBytes,
        /// Value.
        value: SmallBytes,
    },
    /// An extended attribute goes.
    XattrRemove {
        /// Index.
        index: u64,
        /// Full name.
        name: SmallBytes,
    },
    /// New content: extents first, pieces over them. The map's version grows by one.
    MapPut {
        /// Index.
        index: u64,
        /// Extents.
        extents: Vec<Extent>,
        /// Pieces.
        pieces: Vec<Piece>,
    },
    /// Nothing lies at or behind `size` any more; bytes there read as zero. The map's version grows by one.
    MapCut {
        /// Index.
        index: u64,
        /// New size.
        size: u64,
    },
    /// Nothing lies in `begin..end` any more; bytes there read as zero. The map's version grows by one.
    MapHole {
        /// Index.
        index: u64,
        /// First byte.
        begin: u64,
        /// First byte behind it.
        end: u64,
    },
    /// File sectors `begin..end` are promised. The map's version grows by one.
    MapPromise {
        /// Index.
        index: u64,
        /// First sector.
        begin: u64,
        /// First sector behind them.
        end: u64,
    },
    /// Snapshot: part of a map as it is, under this version.
    MapLoad {
        /// Index.
        index: u64,
        /// Version.
        version: u64,
        /// Extents.
        extents: Vec<Extent>,
        /// Pieces.
        pieces: Vec<Piece>,
    },
    /// A node counts as having an inode open, or no more.
    OpenPut {
        /// Index.
        index: u64,
        /// Node.
        life: NodeLife,
        /// Open or closed.
        is_open: bool,
    },
    /// A node is dead: its opens and answers go.
    LifeRemove {
        /// Node.
        life: NodeLife,
    },
    /// What a remote request was answered.
    AnswerPut {
        /// Asking node.
        life: NodeLife,
        /// Its slot.
        slot: u16,
        /// Its request.
        request: RequestId,
        /// The answer.
        reply: Reply,
    },
    /// The next inode index to give is this or more.
    NextIndex {
        /// Index.
        index: u64,
    },
    /// Participant: steps are prepared; they will be performed or dropped as the coordinator says.
    Prepare {
        /// Transaction.
        id: TransactionId,
        /// When it was asked: stamps what changes.
        now: Timestamp,
        /// The steps of this shard.
        steps: Vec<Step>,
    },
    /// Participant: the transaction is over here. When committed, the steps' mutations lie beside this in
    /// the record, and the transaction is remembered as done.
    Resolve {
        /// Transaction.
        id: TransactionId,
        /// Performed, or dropped.
        is_commit: bool,
    },
    /// Participant: the coordinator has forgotten the transaction; so may we.
    DoneForget {
        /// Transaction.
        id: TransactionId,
    },
    /// Coordinator: the transaction is committed; to be remembered until these have confirmed.
    OutcomePut {
        /// Transaction.
        id: TransactionId,
        /// Participants.
        participants: Vec<ShardId>,
    },
    /// Coordinator: every participant has confirmed.
    OutcomeForget {
        /// Transaction.
        id: TransactionId,
    },
    /// A part of a directory, without names yet.
    PartMake {
        /// Its index.
        index: u64,
        /// The directory.
        directory: InodeId,
    },
    /// A range of a directory's cookies, from `begin` on, is a part's from now on.
    PartPut {
        /// Directory.
        directory: u64,
        /// First cookie.
        begin: u64,
        /// The part.
        part: InodeId,
    },
    /// A range of a directory's cookies belongs to the range before it from now on.
    PartRemove {
        /// Directory.
        directory: u64,
        /// First cookie.
        begin: u64,
    },
    /// Snapshot: the shard begins with the tree of this root, and the records that follow it.
    TreeRoot {
        /// The root, as `store::tree` writes it.
        root: SmallBytes,
    },
    /// Snapshot: what the tree lacks, in order of keys: a whole value, or that it is not there.
    TreeRecord {
        /// Key (`records`).
        key: SmallBytes,
        /// Value.
        value: Option<SmallBytes>,
    },
}

impl Mutation {
    /// Indices of inodes of `shard` that have to be resident before this is applied: those that it changes, and those that a transaction
    /// holds from then on.
    pub fn needs(&self, shard: ShardId) -> Vec<u64> {
        match self {
            Self::InodeRemove { index }
            | Self::AttrPut { index, .. }
            | Self::DirectoryTouch { index, .. }
            | Self::ParentPut { index, .. }
            | Self::XattrPut { index, .. }
            | Self::XattrRemove { index, .. }
            | Self::MapPut { index, .. }
            | Self::MapCut { index, .. }
            | Self::MapHole { index, .. }
            | Self::MapPromise { index, .. }
            | Self::MapLoad { index, .. } => vec![*index],
            Self::EntryPut { directory, .. }
            | Self::EntryRemove { directory, .. }
            | Self::PartPut { directory, .. }
            | Self::PartRemove { directory, .. } => vec![*directory],
            Self::Prepare { steps, .. } => {
                let own = steps.iter().filter(|step| step.shard() == shard);
                own.map(|step| held(step).0.index()).collect()
            }
            Self::InodePut { .. }
            | Self::OpenPut { .. }
            | Self::LifeRemove { .. }
            | Self::AnswerPut { .. }
            | Self::NextIndex { .. }
            | Self::Resolve { .. }
            | Self::DoneForget { .. }
            | Self::OutcomePut { .. }
            | Self::OutcomeForget { .. }
            | Self::PartMake { .. }
            | Self::TreeRoot { .. }
            | Self::TreeRecord { .. } => Vec::new(),
        }
    }
}

wire_enum!(Mutation {
    1 => InodePut { record },
    2 => InodeRemove { index },
    3 => AttrPut { index, attr },
    4 => DirectoryTouch { index, now, nlink },
    5 => ParentPut { index, parent },
    6 => EntryPut { directory, cookie, name, ino, kind },
    7 => EntryRemove { directory, cookie },
    8 => XattrPut { index, name, value },
    9 => XattrRemove { index, name },
    10 => MapPut { index, extents, pieces },
    11 => MapCut { index, size },
    12 => MapLoad { index, version, extents, pieces },
    13 => OpenPut { index, life, is_open },
    14 => LifeRemove { life },
    15 => AnswerPut { life, slot, request, reply },
    16 => NextIndex { index },
    17 => Prepare { id, now, steps },
    18 => Resolve { id, is_commit },
    19 => DoneForget { id },
    20 => OutcomePut { id, participants },
    21 => OutcomeForget { id },
    22 => MapHole { index, begin, end },
    23 => MapPromise { index, begin, end },
    24 => PartMake { index, directory },
    25 => PartPut { directory, begin, part },
    26 => PartRemove { directory, begin },
    30 => TreeRoot { root },
    31 => TreeRecord { key, value },
});
