//! What a slice is given with every input: time, memory, grants and the view. Arguments, not state.

use data::SetAside;
use types::{Duration, Errno, Extent, Instant, NodeId, Run, ShardId, Timestamp};

use crate::{Pace, Pool, Readers};

/// What an owner's answer to a question for sectors says to those who wait for some.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceNews {
    /// Some have come.
    There,
    /// There are too few, and more will be there soon: what somebody has set aside or taken is on its way back.
    Soon,
    /// The owner could not say: it is asked again, and nobody is refused meanwhile.
    Unknown,
    /// It has none (ENOSPC), or can give none (EIO: its journal has failed): writes that find none in hand hear so.
    None(Errno),
}

/// Free sectors in this node's hands, by the owner node that granted them. Shared by all slices; the
/// driver keeps it behind a lock of its own that is held for these calls only.
pub trait Grants {
    /// Sets `sectors` aside for a coming flush to a file of `owner`; false when there are not enough.
    fn reserve(&self, owner: NodeId, sectors: u64) -> bool;
    /// As `reserve`, for work that nobody waits for: where there are not enough, nobody is made to give some back.
    fn reserve_spare(&self, owner: NodeId, sectors: u64) -> bool;
    /// As `reserve`, for a write into promised ranges (fallocate): also of what is for these alone. `None`: not enough in
    /// hand; they are asked for with the next question, and come.
    fn reserve_promised(&self, owner: NodeId, sectors: u64) -> Option<SetAside>;
    /// Gives back what was reserved and is not needed.
    fn unreserve(&self, owner: NodeId, part: SetAside);
    /// So many of what is set aside come back when what is dirty is committed: its bytes go into metadata. Said when an owner has too few
    /// (`Input::Scarce`): nobody is refused meanwhile.
    fn note_returning(&self, owner: NodeId, sectors: u64);
    /// Cuts dirty sectors into runs: each of `wanted` becomes one or more runs. The sectors are used up
    /// and what was `reserved` with them. `None`: not enough in hand (nothing taken).
    fn take(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>>;
    /// As `take`, for work that nobody waits for: on no NSD that the file's layout does not name. `None`: then nothing was taken, and
    /// what was reserved is given back.
    fn take_spare(
        &self,
        owner: NodeId,
        wanted: &[WantedRun],
        reserved: SetAside,
    ) -> Option<Vec<TakenRun>>;
    /// The owner has committed these runs to a file: they are no longer in hand.
    fn committed(&self, owner: NodeId, runs: &[Run]);
    /// The outcome of writes to these runs is unknown: they are not written again.
    fn burn(&self, owner: NodeId, runs: &[Run]);
    /// Writes to these runs have ended, and no file has them, nor ever will: they go back to the owner.
    fn discard(&self, owner: NodeId, runs: &[Run]);
}

/// Adjacent file sectors to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedRun {
    /// Inode, for the choice of the NSD.
    pub ino: types::InodeId,
    /// The file's layout, for the same.
    pub layout: types::Layout,
    /// First sector of the file.
    pub file_sector: u64,
    /// Sectors.
    pub count: u32,
    /// All of them are promised: what is held back for that may be taken. At most as many sectors as go without checksum
    /// sectors then.
    pub is_promised: bool,
}

/// Where a part of a wanted run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenRun {
    /// Index into the wanted runs.
    pub wanted: usize,
    /// First sector of the file.
    pub file_sector: u64,
    /// Data sectors; `run.count` may be larger by the checksum sectors.
    pub count: u32,
    /// Where.
    pub run: Run,
}

/// The surroundings of a slice at one input.
pub struct Env<'a> {
    /// Now.
    pub now: Instant,
    /// Now, as files show it.
    pub timestamp: Timestamp,
    /// What is left of this node's lease.
    pub lease: Duration,
    /// This node in its present life.
    pub life: types::id::NodeLife,
    /// The pagepool.
    pub pool: &'a dyn Pool,
    /// Free sectors in hand.
    pub grants: &'a dyn Grants,
    /// How processes read large files.
    pub readers: &'a Readers,
    /// How fast this node rewrites blocks.
    pub pace: &'a Pace,
    /// Owner of each shard.
    pub owners: &'a [NodeId],
    /// Some NSD has a volatile cache: a flush precedes each Commit.
    pub has_volatile_nsd: bool,
}

impl std::fmt::Debug for Env<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env")
            .field("now", &self.now)
            .field("life", &self.life)
            .finish()
    }
}

impl Env<'_> {
    /// Owner of `shard`.
    pub fn owner(&self, shard: ShardId) -> NodeId {
        self.owners[usize::from(shard.0) % self.owners.len()]
    }
}

/// A piece of a load: sectors to read and verify, and the frames they go to (one per sector, in order).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadPiece {
    /// What to read: exactly the sectors wanted.
    pub extent: Extent,
    /// One frame per sector.
    pub frames: Vec<types::FrameRef>,
}

/// A run to be written: data frames (one per sector, in order); the driver adds checksum sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorePiece {
    /// First sector of the file.
    pub file_sector: u64,
    /// One frame per data sector, frozen by the flush's reference.
    pub frames: Vec<types::FrameRef>,
    /// Where.
    pub run: Run,
}
