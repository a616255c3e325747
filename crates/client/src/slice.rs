//! One slice of the client half: the inodes whose number hashes here, with their tokens, pages, open
//! files and waiting requests.
//!
//! Invariants
//! - A request is answered exactly once (`Effect::Reply`), or passed on to another slice.
//! - What an inode's tokens do not cover is neither read from nor written to its caches.
//! - An inode asks for tokens one request at a time; whoever waits is run again from its start when
//!   anything about the inode changes (*try, else start what is missing and park*).
//! - Nothing here waits: every wait is a value (`Inode::parked`, `Inode::goals`) that `waiters` shows.
//!
//! Life cycle of a request: `on_request` -> served at once, or parked on its inode -> an answer, a load, a
//! flush, a grant arrives -> `retry` -> served.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeSet, VecDeque};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use types::frame::FRAME_BYTES;
use types::{Errno, FrameRef, InodeId, Instant, NodeId, ShardId, Span, Timestamp};

use crate::env::{Env, LoadPiece, SpaceNews, StorePiece};
use crate::failed_loads::Looks;
use crate::fill::Filled;
use crate::inode::Inode;
use crate::losses::{Doubt, Losses};
use crate::message::{Answer, Ask};
use crate::names::Continuation;
use crate::renames::MovedInto;
use crate::request::{Handle, Notice, Operation, Request, Response, Ticket, TicketPart};

/// Slices of a client half.
pub const SLICE_COUNT: usize = 16;

/// The slice that keeps `ino`.
pub fn slice_of(ino: InodeId) -> usize {
    let mixed = ino.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 60).expect("four bits")
}

/// The slice that takes a request in.
pub fn home_slice(operation: &Operation) -> usize {
    slice_of(home_inode(operation))
}

/// The inode that a request names first.
pub fn home_inode(operation: &Operation) -> InodeId {
    match operation {
        Operation::Lookup { parent, .. }
        | Operation::Make { parent, .. }
        | Operation::Create { parent, .. }
        | Operation::CreateNameless { parent, .. }
        | Operation::Unlink { parent, .. }
        | Operation::Rmdir { parent, .. }
        | Operation::Rename { parent, .. } => *parent,
        Operation::LookupSelf { ino }
        | Operation::LookupParent { ino }
        | Operation::Forget { ino, .. }
        | Operation::GetAttr { ino, .. }
        | Operation::SetAttr { ino, .. }
        | Operation::Punch { ino, .. }
        | Operation::Allocate { ino, .. }
        | Operation::Link { ino, .. }
        | Operation::ReadLink { ino }
        | Operation::Open { ino, .. }
        | Operation::Read { ino, .. }
        | Operation::Seek { ino, .. }
        | Operation::Write { ino, .. }
        | Operation::Fsync { ino, .. }
        | Operation::Flush { ino, .. }
        | Operation::GetLock { ino, .. }
        | Operation::SetLock { ino, .. }
        | Operation::ClearLock { ino, .. }
        | Operation::Release { ino, .. }
        | Operation::OpenDir { ino }
        | Operation::ReadDir { ino, .. }
        | Operation::FsyncDir { ino, .. }
        | Operation::ReleaseDir { ino, .. }
        | Operation::GetXattr { ino, .. }
        | Operation::SetXattr { ino, .. }
        | Operation::ListXattr { ino, .. }
        | Operation::RemoveXattr { ino, .. }
        | Operation::Access { ino, .. } => *ino,
        Operation::StatFs | Operation::SyncFs => InodeId::ROOT,
    }
}

macro_rules! local_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u64);

        impl $name {
            /// The slice that drew the id.
            pub fn slice(self) -> usize {
                usize::try_from(self.0 % SLICE_COUNT as u64).expect("below 16")
            }
        }
    };
}
local_id!(
    /// A question to an owner; unique on this node.
    CallId
);
local_id!(
    /// A load or store of sectors; unique on this node.
    IoId
);
local_id!(
    /// A notification to the kernel; unique on this node.
    NotifyId
);

/// Why sectors could not be read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoFailure {
    /// The bytes do not match their checksum: look at the map again, then at another replica.
    Corrupt,
    /// The NSD cannot be reached or refuses; a write to it has ended, done or not.
    Unreachable,
    /// No answer: a write may still happen.
    Unknown,
}

/// Stores that have ended well and will not be durable, and why: `Unreachable` where the disk has refused to flush, `Unknown` where its server
/// has restarted meanwhile or the link has broken.
pub type Undurable = Vec<(IoId, IoFailure)>;

/// What happens to a slice.
///
/// Inputs and effects are copied from list to list: what is larger than a request or an answer to the kernel is in a box.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "requests are the usual input: a box would cost each an allocation"
)]
pub enum Input {
    /// A front end asks.
    Request(Request),
    /// The front end's caller was interrupted: if its request still waits some seconds later it is answered EINTR.
    Interrupt(TicketPart),
    /// An owner answered.
    Answer(CallId, Box<Answer>),
    /// An owner revokes a token.
    Revoke(NodeId, token::message::Revoke),
    /// A name led here: take attributes and tokens, then answer the request.
    Arrive(Box<crate::names::Arrival>),
    /// A reply that told the kernel so much has been written.
    Replied(Pin),
    /// The kernel has returned from `Effect::Fill`.
    Filled(InodeId, Filled),
    /// Sectors were loaded.
    Loaded(IoId, Result<(), IoFailure>),
    /// Sectors were written: the extents with their checksums.
    Stored(IoId, Result<Vec<types::Extent>, IoFailure>),
    /// What a commit needs has reached stable storage, or these stores have not.
    Flushed(IoId, Result<(), Undurable>),
    /// The kernel has dropped what it was told to.
    Notified(NotifyId),
    /// This owner has too few free sectors: what nobody waits for gives back those that it has in hand. All slices hear it before any
    /// hears `Space` of a lack, and before the owner is answered that wants back what lies unused.
    Scarce(NodeId),
    /// These blocks are to be written elsewhere (`rewrite::leaving`).
    Clear(Box<crate::rewrite::Clear>),
    /// This owner has answered a question for sectors.
    Space(NodeId, SpaceNews),
    /// Write the inode's dirty data back, then run the request in its own slice.
    FlushThen(InodeId, Box<Request>),
    /// A rename whose source is written back.
    RenameNow(Box<Request>),
    /// A rename has moved a name to a directory.
    MovedInto(Box<MovedInto>),
    /// A link whose inode is known.
    LinkNow(Box<Request>, crate::names::LinkTarget),
    /// An unlink whose name leads to an inode of this slice, which knows whether it is open.
    UnlinkTarget(InodeId, Request),
    /// An unlink on its way to the owner, and the inode of which the owner is told that nobody has it open here.
    UnlinkNow(InodeId, Request, Option<InodeId>),
    /// What an unlink has done to an inode of this slice.
    Unlinked(InodeId, crate::unlink::Unlinked),
    /// A token of an inode of this slice came with an answer to another one.
    Granted(Box<token::message::Granted>),
    /// A name led to an inode that is gone: to be looked up anew.
    LookAgain(Box<(Request, InodeId)>),
    /// A listing that wants the attributes of an inode of this slice.
    Tour(Box<crate::listing::Tour>),
    /// Entries of a directory of this slice were shown: those behind them will be wanted.
    ListAhead(crate::ahead::Behind),
    /// A reader of a tree goes on from a directory of this slice.
    Turn(crate::walk::Turn),
    /// A directory of this slice will be opened soon.
    ListComing(crate::ahead::Coming),
    /// What is to be known of entries before they are wanted is known.
    AheadKnown(InodeId, u64),
    /// A READ of a file of this slice says that those of this directory are being read.
    Watch(InodeId, InodeId, crate::siblings::Mark),
    /// It says so of a directory of this slice.
    WatchedRead(InodeId, InodeId, crate::siblings::Mark),
    /// A small file of this slice will be opened soon.
    LoadFile(InodeId),
    /// Write all dirty data back: the daemon stops.
    WriteBack,
    /// Another node stops: write back what is dirty now, and tell `Effect::Swept` when it is durable.
    Sweep(u64),
    /// The node's lease is over: the kernel drops what it has, and nothing more is served (rule R8). Of the requests
    /// that came since, those that a notification may wait for.
    Lapsed(Vec<Request>),
    /// The lease is back, and the tokens with it.
    Regained,
    /// Frames are short: evict, write back.
    Shrink,
    /// The pool wants these frames back.
    GiveUp(Vec<crate::reclaim::Wanted>),
    /// The owner of a shard wants tokens back: those of so many inodes of this slice.
    Reclaim(ShardId, u64),
    /// The owner of an inode says that it is the turn of this wait for a lock.
    LockReady(InodeId, u64),
    /// Some time has passed.
    Tick,
}

const _: () = assert!(size_of::<Input>() <= 192);
const _: () = assert!(size_of::<Effect>() <= 224);

/// Something that an answer tells, and that changes only when it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// An inode: what the kernel is to drop of it is told afterwards.
    Inode(InodeId),
    /// Names of a directory: they are believed from then on.
    Names(InodeId),
}

impl Pin {
    /// The inode, or the directory: its slice wants `Input::Replied`.
    pub const fn ino(self) -> InodeId {
        match self {
            Self::Inode(ino) | Self::Names(ino) => ino,
        }
    }
}

/// What an answer tells; nearly always nothing or of one inode.
pub type Pinned = SmallVec<[Pin; 2]>;

/// What a slice wants done.
#[derive(Debug)]
pub enum Effect {
    /// Answer a request; the slices of what it tells want `Input::Replied` once it is written.
    Reply(Ticket, Response, Pinned),
    /// Answer a request without a look at the lease: what holds a notification to the kernel up, and tells nobody
    /// anything (a write-back is taken, a request is failed for the notification's sake).
    Yield(Ticket, Response),
    /// Ask the owner of a shard; the answer comes as `Input::Answer`.
    Call(CallId, ShardId, Ask),
    /// Drop a reference of each frame of a parked write's payload.
    DropPayload(Span),
    /// Read sectors into frames.
    Load(IoId, Vec<LoadPiece>),
    /// Write runs.
    Store(IoId, InodeId, Vec<StorePiece>),
    /// Make what these stores wrote durable on its NSDs.
    Flush(IoId, Vec<IoId>),
    /// What these stores wrote is not wanted: no flush will name them.
    ForgetStores(Vec<IoId>),
    /// Put these bytes of a file, from its beginning to its end, into the kernel's page cache, at once, and drop a reference of
    /// each of their frames; then `Input::Filled`, whether it went well or not. No request has a folio of the file locked, so this waits for no
    /// answer, and may be done by any thread.
    Fill(InodeId, Vec<Span>),
    /// Tell the kernel to drop something, on a notify thread.
    Notify(Option<NotifyId>, Notice),
    /// Tell the owner of a shard that a token was released.
    Release(ShardId, token::message::Released),
    /// What the request is about is this user's, not its caller's: it comes again (`Input::Request`) with whose files are as good as the caller's own if
    /// the caller has a capability for this one, or is answered EPERM.
    AskStanding(Box<Request>, u32),
    /// Hand an input to the slice of an inode.
    ForSlice(InodeId, Input),
    /// Hand `Input::LoadFile` to the slice of each of these, soon, on a thread that answers nobody.
    LoadFiles(Vec<InodeId>),
    /// Hand `Input::ListComing` to the directory's slice, likewise.
    ListSoon(crate::ahead::Coming),
    /// Get free sectors from an owner: as many as were last not in hand (`Grants`).
    WantSpace(NodeId),
    /// What was dirty here when this sweep began is durable, or lost.
    Swept(u64),
    /// Frames are short, and somebody waits for some: `Input::Shrink` to all slices, soon, but not at once and not
    /// from here.
    WantFrames,
}

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub(crate) flags: crate::request::OpenFlags,
    /// Where its reader is and goes.
    pub(crate) reading: crate::reading::Reading,
    /// In which pieces it is read.
    pub(crate) sample: crate::readers::Sample,
    /// Of write-backs that failed.
    pub(crate) heard: crate::errors::Heard,
}

/// One slice.
#[derive(Debug)]
pub struct Slice {
    pub(crate) index: u64,
    /// The times of the newest input.
    seen: (Instant, Timestamp),
    /// For how long the kernel may believe what a token covers.
    pub(crate) timeout_ns: u64,
    /// The kernel sends writes without waiting for their answers.
    pub(crate) has_async_writes: bool,
    pub(crate) inodes: FxHashMap<InodeId, Box<Inode>>,
    pub(crate) handles: FxHashMap<Handle, OpenFile>,
    pub(crate) calls: FxHashMap<CallId, Continuation>,
    pub(crate) ios: FxHashMap<IoId, InodeId>,
    /// Until when the kernel may believe names (`belief`).
    pub(crate) shown: crate::belief::Shown,
    /// Lookups of names that lead to what is gone (`dangling`).
    pub(crate) again: crate::dangling::Again,
    /// Revokes of directories that wait until the kernel believes no names of them, and since when it does not.
    pub(crate) awaited_names: Vec<(Instant, NotifyId)>,
    /// Renames that are answered when the kernel believes the name no more that has moved.
    pub(crate) late_answers: Vec<(Instant, Ticket)>,
    /// Listings asked for before they are wanted, oldest first.
    pub(crate) aheads: VecDeque<crate::ahead::Ahead>,
    /// Directories whose files may be read one after the other, oldest first, and files whose opens say so.
    pub(crate) scans: VecDeque<crate::siblings::Scan>,
    pub(crate) watched: FxHashMap<InodeId, crate::siblings::Watch>,
    pub(crate) loaded_file_count: u64,
    pub(crate) filled_file_count: u64,
    /// See `fill_kernel`.
    pub(crate) fills_kernel: bool,
    /// Directories that have some, and who goes through them, oldest first.
    pub(crate) walks: VecDeque<crate::walk::Walk>,
    pub(crate) listed_directory_count: u64,
    /// Those of them that were shown.
    pub(crate) shown_directory_count: u64,
    /// See `show_old_names`.
    pub(crate) shows_old_names: bool,
    /// See `overtake_fills`.
    pub(crate) overtakes_fills: bool,
    pub(crate) losses: Losses,
    /// Oldest first.
    pub(crate) doubts: VecDeque<Doubt>,
    pub(crate) loads_written_files: bool,
    /// Tokens for files that will be read soon are not asked for before.
    pub(crate) next_file_ask: Instant,
    /// Nor for directories.
    pub(crate) next_list_ask: Instant,
    /// An answer is written when all that follows from its request is done.
    pub(crate) has_late_answers: bool,
    pub(crate) notifies: FxHashMap<NotifyId, (InodeId, u64)>,
    /// Sweeps under way, and how many inodes of each are not written back yet.
    pub(crate) sweeps: Vec<(u64, usize)>,
    /// Inodes with dirty data, oldest first, for write-behind by age.
    pub(crate) dirty: VecDeque<(Instant, InodeId)>,
    /// Attributes that the kernel has asked for by themselves, not through an open file.
    pub(crate) attr_looks: u64,
    /// Oldest first.
    pub(crate) awaited_opens: VecDeque<crate::opens::AwaitedOpen>,
    /// Pages of all inodes in `Inode::hasty`.
    pub(crate) hasty_count: usize,
    /// Revokes that wait for the grants that they name, which are on their way.
    pub(crate) early_revokes: Vec<token::message::Revoke>,
    /// Inodes whose tokens an owner wants back, and that were idle when it said so.
    pub(crate) idle: VecDeque<InodeId>,
    /// Forgotten inodes that the kernel knows.
    pub(crate) cold: FxHashMap<InodeId, crate::evict::Cold>,
    pub(crate) eviction: crate::evict::Eviction,
    /// Names that were learnt since they were counted last, and those there were then.
    pub(crate) named_count: usize,
    /// Inodes that wait for sectors.
    pub(crate) starved: Vec<InodeId>,
    /// Stores of these failed a moment ago: they are tried again at ticks.
    pub(crate) failing: BTreeSet<InodeId>,
    /// Inodes with parts of pages that were refused (`crate::refused`): tried again with each tick.
    pub(crate) held: Vec<InodeId>,
    /// See [`Gauges`].
    pub(crate) refused_count: u64,
    /// What the disks take for a load.
    pub(crate) load_time: crate::reading::LoadTime,
    /// Inodes that wait for frames.
    pub(crate) frameless: Vec<InodeId>,
    /// This owner has just said that it has no more sectors, or can give none: who wants some now does not wait.
    pub(crate) short: Option<(NodeId, Errno)>,
    /// An owner has just said that there will be some soon.
    pub(crate) is_soon: bool,
    /// What is to come back with Commits, of whom, and when it was counted (`Slice::write_small_back`): a few owners.
    pub(crate) returning: Vec<(NodeId, Instant, u64)>,
    /// Shard for the directories this node makes: chosen round robin by the driver.
    pub(crate) placements: Vec<ShardId>,
    /// Appends that go elsewhere than the kernel thought.
    pub(crate) misplaced: FxHashMap<Ticket, (InodeId, types::ByteRange)>,
    /// Requests whose callers got signals, oldest first.
    pub(crate) signalled: VecDeque<(Instant, TicketPart)>,
    /// Payloads of parked writes.
    pub(crate) payloads: FxHashMap<Ticket, Payload>,
    /// Locks of applications.
    pub(crate) locks: crate::locks::Locks,
    pub(crate) accesses: crate::access::Accesses,
    pub(crate) rewriter: crate::rewrite::Rewriter,
    /// Closes that wait until locks are dropped.
    pub(crate) closing: FxHashMap<Ticket, (InodeId, Handle)>,
    /// The node has no valid lease.
    pub(crate) is_lapsed: bool,
    /// Open files of which the kernel has not dropped everything since the lease ended.
    pub(crate) undropped: rustc_hash::FxHashSet<InodeId>,
    pub(crate) out: Vec<Effect>,
    next_id: u64,
    /// How often requests were parked, by `Waiting`.
    wait_counts: [u64; Waiting::NAMES.len()],
}

/// Sizes of a slice's tables, and how often requests had to wait, by `Waiting`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gauges {
    /// Inodes known.
    pub inode_count: usize,
    /// Inodes that write-behind will look at.
    pub dirty_count: usize,
    /// Open files and directories.
    pub handle_count: usize,
    /// Since the slice was made; in the order of `Waiting::NAMES`.
    pub wait_counts: [u64; Waiting::NAMES.len()],
    /// Blocks that were rewritten.
    pub rewrites: crate::rewrite::RewriteCounts,
    /// Blocks that are still to be written elsewhere.
    pub leaving_count: u64,
    /// Small files that were loaded before they were opened.
    pub loaded_file_count: u64,
    /// Small files that were put into the kernel whole before their open was answered (`crate::fill`).
    pub filled_file_count: u64,
    /// Directories that were listed before they were opened.
    pub listed_directory_count: u64,
    /// Those of them that were shown when they were.
    pub shown_directory_count: u64,
    /// Commits that owners had no room for, and whose bytes were kept.
    pub refused_count: u64,
}

impl Slice {
    /// An empty slice, the `index`th of `SLICE_COUNT`. `placements`: shards for new directories.
    pub fn new(index: usize, placements: Vec<ShardId>) -> Self {
        assert!(index < SLICE_COUNT);
        assert!(!placements.is_empty());
        Self {
            index: index as u64,
            seen: (Instant(0), Timestamp::default()),
            timeout_ns: crate::names::TIMEOUT_NS,
            has_async_writes: false,
            inodes: FxHashMap::default(),
            handles: FxHashMap::default(),
            calls: FxHashMap::default(),
            ios: FxHashMap::default(),
            shown: crate::belief::Shown::default(),
            again: crate::dangling::Again::default(),
            awaited_names: Vec::new(),
            late_answers: Vec::new(),
            aheads: VecDeque::new(),
            walks: VecDeque::new(),
            listed_directory_count: 0,
            shown_directory_count: 0,
            shows_old_names: false,
            overtakes_fills: false,
            scans: VecDeque::new(),
            watched: FxHashMap::default(),
            loaded_file_count: 0,
            filled_file_count: 0,
            fills_kernel: false,
            losses: Losses::default(),
            doubts: VecDeque::new(),
            loads_written_files: false,
            next_file_ask: Instant(0),
            next_list_ask: Instant(0),
            has_late_answers: false,
            notifies: FxHashMap::default(),
            sweeps: Vec::new(),
            dirty: VecDeque::new(),
            attr_looks: 0,
            awaited_opens: VecDeque::new(),
            hasty_count: 0,
            early_revokes: Vec::new(),
            idle: VecDeque::new(),
            cold: FxHashMap::default(),
            eviction: crate::evict::Eviction::new(),
            named_count: 0,
            starved: Vec::new(),
            failing: BTreeSet::new(),
            held: Vec::new(),
            refused_count: 0,
            load_time: crate::reading::LoadTime::default(),
            frameless: Vec::new(),
            short: None,
            is_soon: false,
            returning: Vec::new(),
            placements,
            misplaced: FxHashMap::default(),
            signalled: VecDeque::new(),
            payloads: FxHashMap::default(),
            locks: crate::locks::Locks::default(),
            accesses: crate::access::Accesses::default(),
            rewriter: crate::rewrite::Rewriter::default(),
            closing: FxHashMap::default(),
            is_lapsed: false,
            undropped: rustc_hash::FxHashSet::default(),
            out: Vec::new(),
            next_id: 0,
            wait_counts: [0; Waiting::NAMES.len()],
        }
    }

    pub(crate) fn draw_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id * SLICE_COUNT as u64 + self.index
    }

    /// The times that the newest input was given. The next one's are not before them, but where the clock that files show was set
    /// back: who changes a file after another would show an older time, or change that of the other.
    pub const fn seen(&self) -> (Instant, Timestamp) {
        self.seen
    }

    /// Takes an input; what is to be done is appended to `out`. Call it for every event of the slice.
    pub fn on_input(&mut self, env: &Env<'_>, input: Input, out: &mut Vec<Effect>) {
        assert!(self.out.is_empty());
        debug_assert!(
            env.now >= self.seen.0,
            "time goes on: {:?}, {:?}",
            self.seen.0,
            env.now
        );
        self.seen = (env.now, env.timestamp);
        std::mem::swap(&mut self.out, out);
        self.eviction.now = env.now;
        self.dispatch(env, input);
        std::mem::swap(&mut self.out, out);
    }

    fn dispatch(&mut self, env: &Env<'_>, input: Input) {
        match input {
            Input::Request(request) => {
                // What the kernel forgets is not used by that.
                let is_use = !matches!(request.operation, Operation::Forget { .. });
                let home = home_inode(&request.operation);
                if let Some(inode) = self.inodes.get_mut(&home).filter(|_| is_use) {
                    inode.used_at = env.now;
                }
                self.note_activity(env, &request.operation);
                if !self.watched.is_empty() {
                    self.note_watched_read(&request.operation);
                }
                self.note_access(env, &request.operation, request.caller.pid);
                self.start(env, request);
            }
            Input::Interrupt(part) => self.on_interrupt(env, part),
            Input::Answer(call, answer) => {
                self.on_answer(env, call, *answer);
                self.take_early_revokes(env);
            }
            Input::Revoke(from, revoke) => self.on_revoke(env, from, revoke),
            Input::Arrive(arrival) => self.on_arrival(env, *arrival),
            Input::Replied(pin) => self.on_replied(env, pin),
            Input::Filled(ino, filled) => self.on_filled(env, ino, filled),
            Input::Loaded(io, result) => self.on_loaded(env, io, result),
            Input::Stored(io, result) => self.on_stored(env, io, result),
            Input::Flushed(io, result) => {
                if !self.on_rewrite_flushed(env, io, &result) {
                    self.on_nsds_flushed(env, io, result);
                }
            }
            Input::Notified(notify) => self.on_notified(env, notify),
            Input::Scarce(owner) => {
                self.on_scarce(env, owner);
                self.write_small_back(env, owner);
            }
            Input::Clear(clear) => self.clear(&clear),
            Input::Space(owner, news) => self.on_space(env, owner, news),
            Input::FlushThen(ino, request) => self.flush_then(env, ino, *request),
            Input::RenameNow(request) => self.rename_now(env, *request),
            Input::MovedInto(moved) => self.on_moved_into(env, *moved),
            Input::LinkNow(request, target) => self.link_now(*request, target),
            Input::UnlinkTarget(ino, request) => self.unlink_target(env, ino, request),
            Input::UnlinkNow(parent, request, told) => self.unlink_now(parent, request, told),
            Input::Unlinked(ino, unlinked) => self.on_unlinked(env, ino, unlinked),
            Input::Granted(granted) => self.take_grant(env, &granted),
            Input::LookAgain(request) => self.look_again(env, *request),
            Input::Tour(tour) => self.on_tour(env, tour),
            Input::ListAhead(behind) => {
                self.begin_scan(env, behind.directory);
                self.list_ahead(env, behind);
            }
            Input::AheadKnown(directory, id) => self.on_ahead_known(env, directory, id),
            Input::Watch(ino, directory, mark) => self.watch(env, ino, directory, mark),
            Input::WatchedRead(directory, ino, mark) => {
                self.on_watched_read(env, directory, ino, mark);
            }
            Input::LoadFile(ino) => self.load_file(env, ino),
            Input::Turn(turn) => self.turn(env, turn),
            Input::ListComing(coming) => self.list_coming(env, coming),
            Input::WriteBack => {
                self.stop_rewriting(env);
                self.tell_all_accesses(env);
                self.write_all_back(env);
            }
            Input::Sweep(sweep) => self.sweep(env, sweep),
            Input::Lapsed(requests) => self.on_lapsed(env, requests),
            Input::Regained => self.on_regained(env),
            Input::Shrink => self.shrink(env),
            Input::GiveUp(frames) => self.give_up(env, &frames),
            Input::Reclaim(shard, count) => self.reclaim(env, shard, count),
            Input::LockReady(ino, wait) => self.on_lock_ready(env, ino, wait),
            Input::Tick => {
                self.tick_locks(env);
                self.tell_accesses(env);
                self.settle_doubts(env.now);
                self.give_up_idle(env);
                self.evict_inodes(env);
                self.forget_aheads(env);
                self.forget_scans(env);
                self.forget_walks(env);
                self.end_beliefs(env);
                self.look_again_late(env);
                self.end_signalled(env);
                self.rewrite_some(env);
                self.on_tick(env);
            }
        }
    }

    pub(crate) fn reply(&mut self, ticket: Ticket, response: Response) {
        if let Some(payload) = self.payloads.remove(&ticket) {
            self.out.push(Effect::DropPayload(payload.span));
        }
        self.out
            .push(Effect::Reply(ticket, response, Pinned::new()));
    }

    /// Answers what holds a notification up: also without a lease.
    pub(crate) fn yield_reply(&mut self, ticket: Ticket, response: Response) {
        if let Some(payload) = self.payloads.remove(&ticket) {
            self.out.push(Effect::DropPayload(payload.span));
        }
        self.out.push(Effect::Yield(ticket, response));
    }

    pub(crate) fn fail(&mut self, ticket: Ticket, errno: Errno) {
        self.reply(ticket, Response::Error(errno));
    }

    pub(crate) fn call(&mut self, shard: ShardId, ask: Ask, then: Continuation) -> CallId {
        let call = CallId(self.draw_id());
        self.calls.insert(call, then);
        self.out.push(Effect::Call(call, shard, ask));
        call
    }

    pub(crate) fn inode(&mut self, ino: InodeId) -> &mut Inode {
        let (eviction, cold) = (&mut self.eviction, &mut self.cold);
        self.inodes
            .entry(ino)
            .or_insert_with(|| eviction.revive(ino, cold.remove(&ino)))
    }

    /// Runs a request from its start.
    pub(crate) fn start(&mut self, env: &Env<'_>, request: Request) {
        match &request.operation {
            // One that has waited at its file: names are another slice's.
            Operation::Create { parent, .. } | Operation::Lookup { parent, .. }
                if slice_of(*parent) as u64 != self.index =>
            {
                let parent = *parent;
                self.out
                    .push(Effect::ForSlice(parent, Input::Request(request)));
            }
            Operation::Read { .. } => self.read(env, request),
            Operation::Seek { .. } => self.seek(env, request),
            Operation::Punch { .. } | Operation::Allocate { .. } => self.punch(env, request),
            Operation::Write { .. } => self.write(env, request),
            Operation::Open { .. } => self.open(env, request),
            Operation::GetAttr { .. } => self.get_attr(env, request),
            Operation::SetAttr { .. } => self.set_attr(env, request),
            Operation::Fsync { .. } | Operation::FsyncDir { .. } | Operation::SyncFs => {
                self.fsync(env, request);
            }
            Operation::Flush { .. } => self.close(env, request),
            Operation::Release { .. } => self.release(env, request),
            Operation::GetLock { .. } | Operation::SetLock { .. } | Operation::ClearLock { .. } => {
                self.lock_operation(env, &request)
            }
            Operation::Forget { ino, count } => {
                let (ino, count) = (*ino, *count);
                self.forget(env, ino, count);
            }
            Operation::OpenDir { .. }
            | Operation::ReleaseDir { .. }
            | Operation::ReadDir { .. } => {
                self.directory(env, request);
            }
            Operation::Lookup { .. }
            | Operation::LookupSelf { .. }
            | Operation::LookupParent { .. }
            | Operation::Make { .. }
            | Operation::Create { .. }
            | Operation::CreateNameless { .. }
            | Operation::Link { .. }
            | Operation::Unlink { .. }
            | Operation::Rmdir { .. }
            | Operation::Rename { .. }
            | Operation::ReadLink { .. }
            | Operation::StatFs
            | Operation::GetXattr { .. }
            | Operation::SetXattr { .. }
            | Operation::ListXattr { .. }
            | Operation::RemoveXattr { .. }
            | Operation::Access { .. } => self.name_operation(env, request),
        }
    }

    /// Parks a request on `ino` until something about the inode changes.
    pub(crate) fn park(&mut self, env: &Env<'_>, ino: InodeId, request: Request, why: Waiting) {
        self.park_as(env, ino, request, why, false);
    }

    /// Parks a request that is in service: it goes on where it was, not from its start.
    pub(crate) fn park_serving(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        request: Request,
        why: Waiting,
    ) {
        self.park_as(env, ino, request, why, true);
    }

    fn park_as(
        &mut self,
        env: &Env<'_>,
        ino: InodeId,
        request: Request,
        why: Waiting,
        is_admitted: bool,
    ) {
        self.keep_payload(env, &request);
        if why != Waiting::Space
            && let Some(payload) = self.payloads.get_mut(&request.ticket)
        {
            payload.soon_since = None;
        }
        self.wait_counts[why as usize] += 1;
        let parked = Parked {
            request,
            why,
            since: env.now,
            is_admitted,
            looks: Looks::default(),
            failure: None,
        };
        self.inode(ino).parked.push_back(parked);
    }

    /// The front end drops a payload's frames when it has handed the request over: who parks a write
    /// keeps them until the answer.
    pub(crate) fn keep_payload(&mut self, env: &Env<'_>, request: &Request) {
        let Operation::Write { payload, .. } = request.operation else {
            return;
        };
        if payload.length == 0 || self.payloads.contains_key(&request.ticket) {
            return;
        }
        frames_of(payload).for_each(|frame| env.pool.retain(frame));
        let held = Payload {
            span: payload,
            short_count: 0,
            soon_since: None,
            short: Errno::ENOSPC,
        };
        self.payloads.insert(request.ticket, held);
    }

    /// Runs all parked requests of `ino` again.
    pub(crate) fn retry(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino);
        let Some(work) = inode.and_then(|inode| inode.present_work()) else {
            return;
        };
        for parked in std::mem::take(&mut work.parked) {
            if let Some(errno) = parked.failure {
                self.tell_failed(env, ino, &parked, errno);
                continue;
            }
            match &parked.request.operation {
                Operation::Write {
                    is_write_back: true,
                    ..
                } => self.start(env, parked.request),
                // Without a lease it waits; it is run again when the lease is back.
                _ if self.is_lapsed => self.inode(ino).parked.push_back(parked),
                Operation::Read { .. } if parked.is_admitted => self.read_on(env, ino, parked),
                _ => self.start(env, parked.request),
            }
        }
    }

    /// Who waits, for what, since when: for `gupfs waiters`.
    pub fn waiters(&self) -> Vec<(InodeId, String, Instant)> {
        let mut all = Vec::new();
        for (ino, inode) in &self.inodes {
            for parked in &inode.parked {
                let what = format!("{:?} waits for {:?}", parked.request.operation, parked.why);
                all.push((*ino, what, parked.since));
            }
            for request in inode.gate.iter().flat_map(|state| state.parked()) {
                let what = format!("{:?} waits for a revoke of this inode", request.operation);
                all.push((*ino, what, Instant(0)));
            }
            for ticket in inode.gate.iter().flat_map(|state| state.filling()) {
                let what = format!("open {ticket:?} waits until the kernel has taken the bytes");
                all.push((*ino, what, Instant(0)));
            }
            for goal in &inode.goals {
                let (what, state) = (goal.what(), inode.flush_state());
                all.push((*ino, format!("flush for {what}: {state}"), goal.since));
            }
        }
        all.extend(self.lock_waiters());
        all.extend(self.dangling());
        all.sort_by_key(|(ino, _, since)| (*since, *ino));
        all
    }

    /// For metrics. O(1).
    pub fn gauges(&self) -> Gauges {
        Gauges {
            inode_count: self.inodes.len(),
            dirty_count: self.dirty.len(),
            handle_count: self.handles.len(),
            wait_counts: self.wait_counts,
            rewrites: self.rewrite_counts(),
            leaving_count: self.leaving_count(),
            loaded_file_count: self.loaded_file_count,
            filled_file_count: self.filled_file_count,
            listed_directory_count: self.listed_directory_count,
            shown_directory_count: self.shown_directory_count,
            refused_count: self.refused_count,
        }
    }

    /// What was written and is lost.
    pub const fn losses(&self) -> Losses {
        self.losses
    }

    /// Inodes that are known here, in no order.
    pub fn known(&self) -> impl Iterator<Item = InodeId> {
        self.inodes.keys().copied()
    }

    /// This inode is known here, and that it is a directory.
    pub fn knows_directory(&self, ino: InodeId) -> bool {
        let attr = self.inodes.get(&ino).and_then(|inode| inode.attr);
        attr.is_some_and(|attr| attr.kind == types::FileKind::Directory)
    }

    /// Something that an application wrote has not been committed yet.
    pub fn is_dirty(&self) -> bool {
        self.inodes.values().any(|inode| inode.is_dirty())
    }

    /// Inodes known, pages cached, pages dirty.
    pub fn counts(&self) -> (usize, usize, usize) {
        let pages = self.inodes.values().map(|i| i.pages.count()).sum();
        let dirty = self.inodes.values().map(|i| i.pages.dirty_count()).sum();
        (self.inodes.len(), pages, dirty)
    }

    /// What this node holds on `ino`, also while it is being given up: for checks from outside.
    pub fn held(&self, ino: InodeId) -> Option<&token::Rights> {
        self.inodes.get(&ino).map(|inode| inode.holder.held())
    }

    /// End of file in bytes, where this node has moved it and the owner has not heard of that: for checks from outside.
    pub fn size_grown(&self, ino: InodeId) -> Option<u64> {
        let inode = self.inodes.get(&ino)?;
        inode.is_size_dirty.then_some(inode.size)
    }

    /// End of file in bytes as this node knows it: for checks from outside.
    pub fn known_size(&self, ino: InodeId) -> Option<u64> {
        self.inodes.get(&ino).map(|inode| inode.size)
    }

    /// Asserts the invariants of all inodes.
    pub fn check(&self) {
        for (ino, inode) in &self.inodes {
            assert_eq!(*ino, inode.ino);
            inode.pages.check();
            assert!(!self.cold.contains_key(ino));
        }
        assert!(self.cold.values().all(|cold| cold.lookup_count > 0));
        self.check_frames();
    }
}

/// The frames that `span` touches.
pub fn frames_of(span: Span) -> impl Iterator<Item = FrameRef> {
    let last = (span.offset + span.length.max(1) - 1) / FRAME_BYTES;
    (span.frame.0..=span.frame.0 + last).map(FrameRef)
}

/// What a parked request waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// Tokens asked for.
    Token,
    /// A revoke in progress.
    Revoke,
    /// Sectors being loaded, or the map.
    Load,
    /// Free sectors from the owner.
    Space,
    /// Frames of the pagepool.
    Frames,
    /// Dirty data being written back.
    Flush,
    /// The owner to hear that the file was closed.
    Closed,
    /// Sectors that were promised: they come back with Commits.
    Promise,
    /// Names of a directory that were asked for before they were wanted.
    Listing,
}

impl Waiting {
    /// In the order of the variants.
    pub const NAMES: [&str; 9] = [
        "token", "revoke", "load", "space", "frames", "flush", "closed", "promise", "listing",
    ];
}

const _: () = assert!(Waiting::Listing as usize + 1 == Waiting::NAMES.len());

/// What a parked write brings, with a reference of each frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    pub(crate) span: Span,
    /// Times that an owner had too few sectors for it while it waited for some.
    pub(crate) short_count: u32,
    /// Since when it has heard nothing but that there will be some soon.
    pub(crate) soon_since: Option<Instant>,
    /// What it said last.
    pub(crate) short: Errno,
}

/// A request that waits on an inode.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) request: Request,
    pub(crate) why: Waiting,
    pub(crate) since: Instant,
    /// Its tokens are held and it counts as in service.
    pub(crate) is_admitted: bool,
    /// For bytes that are not what they should be.
    pub(crate) looks: Looks,
    /// It cannot have what it waits for, and hears so when it is run again.
    pub(crate) failure: Option<Errno>,
}
