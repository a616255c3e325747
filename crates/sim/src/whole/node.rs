//! A node: the real client slices and owner shards, and around them what `os::daemon` does around them.
//!
//! Every list of effects that a thread of the daemon would work off is a *run* here; the world takes one item of one
//! run at a time, so the threads of a node interleave in all ways. What goes out of the node is a value in `out`.

mod ahead;
mod calls;
mod checkpoints;
mod farewell;
mod grace;
mod journal;
mod keys;
mod moves;
mod peers;
mod rations;
mod space;
mod transfer;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use client::message::{Answer, Ask, Body};
use client::request::{Notice, Request, Response, Ticket};
use client::slice::{CallId, Effect, Input, NotifyId, Pin, SLICE_COUNT, Slice, frames_of};
use client::slice::{home_slice, slice_of};
use client::{Env, Pool as _};
use node::fetch::Ready;
use node::meta::parts::Bounds;
use node::moves::RENAME_TOKEN;
use node::{
    Deferred, FACT_CALL, Locked, Message, Need, OwnerEffect, OwnerEnv, OwnerLog, OwnerSlice, Work,
};
use stdx::Prng;
use store::format::Area;
use types::id::NodeLife;
use types::{
    ClusterView, Duration, InodeId, Instant, Lsn, NodeId, NsdId, ShardId, Span, Timestamp,
};

use super::hands::Hands;
use super::memory::Memory;
pub use keys::HASH_KEY;
pub use rations::{Ration, Rations, Room};
pub use transfer::{DiskIo, Kind, Source, Tag};

/// Marks calls of the driver itself.
const DRIVER_CALL: u64 = 1 << 63;
/// Marks questions for the rename token.
const MOVE_CALL: u64 = 1 << 61;
/// Milliseconds between two rounds of what only time brings on.
pub const TICK_MS: u64 = 20;
/// Journal records that nobody waits for are written after this many ticks.
const FLUSH_TICKS: u64 = 5;
/// Messages that were not answered are repeated after this many ticks.
const REPEAT_TICKS: u64 = 50;
/// Transaction messages are repeated after this many ticks.
const TRANSACTION_TICKS: u64 = 5;
/// A round of relief for the pagepool comes so long after it was asked for.
const RELIEF_MS: u64 = 2;

/// Something to be done now.
#[derive(Debug)]
pub enum Item {
    /// An input of a client slice.
    Client(usize, Input),
    /// What a client slice wants.
    Effect(Effect),
    /// Work for an owner.
    Owner(Work),
    /// The same, when what it had missed was read.
    Fetched(Ready),
    /// What an owner wants.
    OwnerEffect(OwnerEffect),
}

/// Lanes of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lane {
    /// Revokes and releases.
    Priority,
    /// Everything else between halves.
    Data,
    /// Sectors.
    Bulk(u8),
}

/// What travels between nodes.
#[derive(Clone, Debug)]
pub enum Wire {
    /// Between halves.
    Node(Box<Message>),
    /// To the server of an NSD.
    Ask(Tag, transfer::Asked),
    /// Its answer: bytes read, and the server's life; or that it failed.
    Answered(Tag, Result<(Vec<u8>, NodeLife), ()>),
}

/// What is to be done later.
#[derive(Debug)]
pub enum Later {
    /// A load that had no frames for checksums.
    Load(client::slice::IoId, Vec<client::env::LoadPiece>),
    /// A store that had none.
    Store(client::slice::IoId, Vec<client::env::StorePiece>),
    /// Somebody waits for frames.
    Relief,
    /// Regions for another owner, under the table's name for that.
    GiveRegions(u64),
    /// The keeper of checkpoints goes on.
    Checkpoints,
}

/// What leaves the node.
#[derive(Debug)]
pub enum Out {
    /// A message.
    Send(NodeId, Lane, Wire),
    /// I/O on an own disk.
    Disk(Tag),
    /// Something after this many milliseconds.
    Later(u64, Later),
    /// An answer to the kernel; then `Input::Replied` of what it tells.
    Reply(Ticket, Response, Vec<Pin>),
    /// Bytes of a file for the kernel; then their frames are given back, and `Input::Filled`.
    Fill(InodeId, Vec<Span>),
    /// A notification for the kernel.
    Notify(Option<NotifyId>, Notice),
    /// All that is dirty now is written back for a node that stops.
    Sweep(u64),
    /// It is.
    Swept(u64),
}

/// Ways to break a node on purpose: the checkers must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
pub struct Canary {
    /// Kernels are not told to drop pages.
    pub skips_notices: bool,
    /// Writes of the journal do not reach the disk.
    pub skips_journal: bool,
    /// Writes of file data do not reach the disk.
    pub forgets_writes: bool,
    /// Releases are not sent.
    pub loses_releases: bool,
    /// References of answered reads are not dropped.
    pub leaks_frames: bool,
    /// Revoked tokens are reported as free before they are.
    pub releases_early: bool,
    /// The kernel believes names for longer than it was told.
    pub keeps_names: bool,
    /// A new owner is not told what is open.
    pub forgets_opens: bool,
    /// A new owner is not told what is locked.
    pub forgets_locks: bool,
    /// Owners are not told of the last close.
    pub loses_closes: bool,
    /// Sectors that are given back do not reach their owner.
    pub keeps_sectors: bool,
    /// Nothing is held back for what is promised to files.
    pub breaks_promises: bool,
    /// Writes of a tree's pages do not reach the disk.
    pub loses_pages: bool,
    /// Inodes are read from the first root of their tree, whatever it is by now.
    pub stale_keys: bool,
    /// An inode that cannot be read once counts as unreadable.
    pub gives_up_reads: bool,
    /// Rewritten blocks are committed whatever was written meanwhile.
    pub stale_rewrites: bool,
    /// Names are looked for with the part of their directory before theirs.
    pub old_parts: bool,
    /// Names that were listed ahead are shown although they have changed.
    pub shows_old_names: bool,
    /// Tokens go while bytes that they cover are on their way into a page cache.
    pub overtakes_fills: bool,
    /// Who is asked to write back for a node that stops says at once that it has.
    pub skips_sweeps: bool,
}

impl Canary {
    /// Switches one on by its name; false if there is none of that name.
    pub fn set(&mut self, name: &str) -> bool {
        let switch = match name {
            "skips-notices" => &mut self.skips_notices,
            "skips-journal" => &mut self.skips_journal,
            "forgets-writes" => &mut self.forgets_writes,
            "loses-releases" => &mut self.loses_releases,
            "leaks-frames" => &mut self.leaks_frames,
            "releases-early" => &mut self.releases_early,
            "keeps-names" => &mut self.keeps_names,
            "forgets-opens" => &mut self.forgets_opens,
            "forgets-locks" => &mut self.forgets_locks,
            "loses-closes" => &mut self.loses_closes,
            "keeps-sectors" => &mut self.keeps_sectors,
            "breaks-promises" => &mut self.breaks_promises,
            "loses-pages" => &mut self.loses_pages,
            "stale-keys" => &mut self.stale_keys,
            "gives-up-reads" => &mut self.gives_up_reads,
            "stale-rewrites" => &mut self.stale_rewrites,
            "old-parts" => &mut self.old_parts,
            "shows-old-names" => &mut self.shows_old_names,
            "overtakes-fills" => &mut self.overtakes_fills,
            "skips-sweeps" => &mut self.skips_sweeps,
            _ => return false,
        };
        *switch = true;
        true
    }
}

/// What a node is made of.
#[derive(Debug)]
pub struct Setting {
    /// Its life.
    pub me: NodeLife,
    /// The cluster.
    pub view: ClusterView,
    /// Its journal.
    pub area: Area,
    /// Frames of its pagepool.
    pub frame_count: u64,
    /// Inodes that it may know without using them.
    pub inode_count_max: usize,
    /// Its kernel takes PRUNE.
    pub has_prune: bool,
    /// Sectors of a region.
    pub region_sectors: u32,
    /// Free sectors that it grants to nobody, for unlink, truncate and the journal's needs.
    pub space_reserve: u64,
    /// Sectors asked for at once.
    pub ask_sectors: u64,
    /// Rounds of checkpoints are begun every so many ticks; 0: never.
    pub round_ticks: u64,
    /// Pages of trees leave regions all the time.
    pub evacuates: bool,
    /// Clean inodes leave memory every so many ticks; 0: never.
    pub evict_ticks: u64,
    /// Files are loaded before anybody opens them every so many ticks; 0: only where the client sees that they are read in turn.
    pub load_ticks: u64,
    /// Which reads change access times.
    pub access_times: client::AccessTimes,
    /// Which blocks are rewritten; none without.
    pub rewrites: Option<client::rewrite::Rules>,
    /// When directories are split and joined; `None`: never.
    pub part_bounds: Option<Bounds>,
    /// How it is broken.
    pub canary: Canary,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    pub(super) me: NodeLife,
    pub(super) view: ClusterView,
    pub(super) now: Instant,
    pub(super) memory: Memory,
    pub(super) hands: Hands,
    pub(super) slices: Vec<Slice>,
    pub(super) shards: Vec<Option<OwnerSlice>>,
    pub(super) log: OwnerLog,
    pub(super) runs: Vec<VecDeque<Item>>,
    pub(super) out: Vec<Out>,
    pub(super) canary: Canary,
    pub(super) peers: BTreeMap<NodeId, NodeLife>,
    links: BTreeSet<NodeId>,
    grace: grace::Grace,
    calls: node::Calls,
    facts: node::Facts,
    moves: node::MoveToken,
    regions: node::Regions,
    fences: node::Fences,
    farewells: node::Farewells,
    in_progress: node::InProgress,
    durable: node::Durable,
    transfers: transfer::Transfers,
    has_volatile_nsd: bool,
    readers: client::Readers,
    pace: client::Pace,
    prng: Prng,
    next_call: u64,
    tick_count: u64,
    is_relief_due: bool,
    /// Fills that the kernel has not returned from.
    filling_count: usize,
    load_ticks: u64,
    checkpoints: checkpoints::Checkpoints,
    keys: keys::Keys,
}

impl Node {
    /// A node whose journal has been replayed.
    pub fn new(
        setting: Setting,
        shards: Vec<Option<OwnerSlice>>,
        log: OwnerLog,
        prng: Prng,
    ) -> Self {
        let Setting {
            me,
            view,
            frame_count,
            inode_count_max,
            has_prune,
            round_ticks,
            evict_ticks,
            load_ticks,
            access_times,
            rewrites,
            part_bounds,
            canary,
            ..
        } = setting;
        let own: Vec<ShardId> = (0u16..)
            .zip(&shards)
            .filter(|(_, slice)| slice.is_some())
            .map(|(id, _)| ShardId(id))
            .collect();
        let placements = if own.is_empty() {
            vec![ShardId(0)]
        } else {
            own
        };
        let slices = (0..SLICE_COUNT).map(|index| {
            let mut placements = placements.clone();
            let count = placements.len();
            placements.rotate_left(index * 5 % count);
            let mut slice = Slice::new(index, placements);
            slice.limit_inodes(inode_count_max);
            ahead::prepare(&mut slice, load_ticks > 0, canary);
            if view.nodes.len() <= 1 {
                slice.believe(Duration::from_millis(
                    types::limits::KERNEL_TIMEOUT_ALONE_MS,
                ));
            }
            if has_prune {
                slice.prune_inodes();
            }
            // Told soon, while other things are under way.
            let patience = Duration::from_millis(30);
            slice.keep_access_times(access_times, true, patience);
            if let Some(rules) = rewrites {
                slice.rewrite_aged(rules);
            }
            slice
        });
        let nsds: Vec<NsdId> = view.nsds.iter().map(|n| n.id).collect();
        let durable = node::Durable::new(log.journal.durable_lsn());
        let mut node = Self {
            me,
            now: Instant(0),
            memory: Memory::new(frame_count),
            hands: Hands::new(&nsds, view.block_size),
            slices: slices.collect(),
            shards,
            log,
            runs: Vec::new(),
            out: Vec::new(),
            canary,
            peers: BTreeMap::new(),
            links: BTreeSet::new(),
            grace: grace::Grace::default(),
            calls: node::Calls::default(),
            facts: node::Facts::default(),
            moves: node::MoveToken::default(),
            regions: node::Regions::default(),
            fences: node::Fences::default(),
            farewells: node::Farewells::default(),
            in_progress: node::InProgress::default(),
            durable,
            transfers: transfer::Transfers::default(),
            keys: keys::Keys::new(view.fs, evict_ticks, canary.gives_up_reads),
            has_volatile_nsd: view.nsds.iter().any(|n| n.has_volatile_cache),
            readers: client::Readers::new(types::limits::DIRECT_SIZE_MIN, 0),
            pace: client::Pace::default(),
            view,
            prng,
            next_call: 0,
            tick_count: 0,
            is_relief_due: false,
            filling_count: 0,
            load_ticks,
            checkpoints: checkpoints::Checkpoints::new(round_ticks),
        };
        node.hold_prepared();
        node.allow_eviction();
        node.allow_parts(part_bounds);
        node
    }

    /// Before anything may leave memory.
    fn hold_prepared(&mut self) {
        let env = owner_env(self.now, self.me, &self.view, 0);
        let slices = self.shards.iter_mut().flatten();
        Locked::new(slices).hold_prepared(&env);
    }

    /// Before anything is served.
    fn allow_parts(&mut self, bounds: Option<Bounds>) {
        let Some(bounds) = bounds else { return };
        for slice in self.shards.iter_mut().flatten() {
            slice.shard.allow_parts(bounds);
            if self.canary.old_parts {
                slice.shard.look_before_parts();
            }
        }
    }

    /// Parts of directories that there are.
    pub fn part_count(&self) -> u64 {
        let slices = self.shards.iter().flatten();
        slices.map(|slice| slice.shard.part_count()).sum()
    }

    /// Begins a run.
    pub fn run(&mut self, items: VecDeque<Item>) {
        if !items.is_empty() {
            self.runs.push(items);
        }
    }

    /// An input of a slice.
    pub fn input(&mut self, slice: usize, input: Input) {
        self.run(VecDeque::from([Item::Client(slice, input)]));
    }

    /// An owner wants tokens back.
    pub fn reclaim(&mut self, shard: ShardId, count: u64) {
        self.run(reclaims(shard, count).collect());
    }

    /// A request of the kernel, taken in at once; references of a payload's frames stay the caller's.
    pub fn request(&mut self, request: Request) {
        let slice = home_slice(&request.operation);
        self.readers.lookups().on_request(&request, || self.now);
        let mut items = VecDeque::from([Item::Client(slice, Input::Request(request))]);
        self.step_run(&mut items);
        self.run(items);
    }

    /// Takes one item of a run; false when there is none.
    pub fn act(&mut self, pick: usize) -> bool {
        if self.runs.is_empty() {
            return false;
        }
        let index = pick % self.runs.len();
        let mut items = std::mem::take(&mut self.runs[index]);
        self.step_run(&mut items);
        // Nothing removes runs meanwhile, only new ones come behind.
        if items.is_empty() {
            self.runs.swap_remove(index);
        } else {
            self.runs[index] = items;
        }
        true
    }

    fn step_run(&mut self, items: &mut VecDeque<Item>) {
        let Some(item) = items.pop_front() else {
            return;
        };
        match item {
            Item::Client(slice, input) => {
                if let (true, Input::Revoke(_, revoke)) = (self.canary.releases_early, &input) {
                    let released = release_all(revoke);
                    let effect = Effect::Release(revoke.ino.shard(), released);
                    items.push_back(Item::Effect(effect));
                }
                let effects = self.run_slice(slice, input);
                items.extend(effects.into_iter().map(Item::Effect));
            }
            Item::Effect(effect) => self.perform(effect, items),
            Item::Owner(work) => self.run_owner(work, Vec::new(), items),
            Item::Fetched(ready) => self.run_owner(ready.work, ready.pinned, items),
            Item::OwnerEffect(effect) => self.perform_owner(effect, items),
        }
    }

    pub(super) fn run_slice(&mut self, slice: usize, input: Input) -> Vec<Effect> {
        self.hands.now.set(self.now);
        let env = Env {
            now: self.now,
            timestamp: timestamp(self.now),
            lease: self.lease_left(),
            life: self.me,
            pool: &self.memory,
            grants: &self.hands,
            readers: &self.readers,
            pace: &self.pace,
            owners: &self.view.owners,
            has_volatile_nsd: self.has_volatile_nsd,
        };
        let mut effects = Vec::new();
        self.slices[slice].on_input(&env, input, &mut effects);
        effects
    }

    fn lease_left(&self) -> Duration {
        Duration::from_millis(types::limits::LEASE_MS)
    }

    fn random(&mut self) -> u128 {
        u128::from(self.prng.next_u64()) << 64 | u128::from(self.prng.next_u64())
    }

    fn owner(&self, shard: ShardId) -> NodeId {
        self.view.owner(shard).unwrap_or_default()
    }

    fn perform(&mut self, effect: Effect, items: &mut VecDeque<Item>) {
        match effect {
            Effect::Reply(ticket, mut response, pinned) => {
                if self.canary.keeps_names {
                    super::front::keep_names(&mut response);
                }
                self.out
                    .push(Out::Reply(ticket, response, pinned.into_vec()));
            }
            Effect::DropPayload(span) => frames_of(span).for_each(|f| self.memory.release(f)),
            Effect::Call(call, _, ask) if self.canary.loses_closes && is_closed(&ask) => {
                let answer = Answer::bare(Body::Op(meta::Reply::Done));
                let input = Input::Answer(call, Box::new(answer));
                items.push_back(Item::Client(call.slice(), input));
            }
            Effect::Call(call, shard, ask) => self.call_owner(call.0, shard, ask, items),
            Effect::Load(io, pieces) => self.load(io, pieces),
            Effect::Store(io, _, pieces) => self.store(io, pieces),
            Effect::Flush(io, stores) => self.flush_stores(io, &stores),
            Effect::ForgetStores(stores) => self.transfers.forget_stores(&stores),
            Effect::Notify(id, notice) => {
                let is_skipped = self.canary.skips_notices;
                match id {
                    Some(id) if is_skipped => self.input(id.slice(), Input::Notified(id)),
                    None if is_skipped => {}
                    _ => self.out.push(Out::Notify(id, notice)),
                }
            }
            Effect::Fill(ino, spans) => {
                self.filling_count += 1;
                self.out.push(Out::Fill(ino, spans));
            }
            Effect::Release(..) if self.canary.loses_releases => {}
            Effect::Release(shard, released) => self.release_token(shard, released, items),
            // Before what follows, as in the daemon: who is answered that a name was moved must find it.
            Effect::ForSlice(ino, input) => items.push_front(Item::Client(slice_of(ino), input)),
            Effect::WantSpace(owner) => self.want_space(owner, items),
            Effect::WantFrames => self.want_frames(),
            Effect::LoadFiles(files) => self.load_files(files),
            Effect::ListSoon(coming) => self.list_soon(coming),
            Effect::Swept(sweep) => self.on_swept(sweep, items),
            Effect::AskStanding(..) => unreachable!("all are root here"),
            Effect::Yield(ticket, response) => {
                self.out.push(Out::Reply(ticket, response, Vec::new()));
            }
        }
    }

    fn release_token(
        &mut self,
        shard: ShardId,
        released: token::message::Released,
        items: &mut VecDeque<Item>,
    ) {
        let owner = self.owner(shard);
        if owner == self.me.node {
            self.on_released(self.me, shard, &released, items);
        } else {
            self.send(owner, Message::Released { shard, released });
        }
    }

    fn on_released(
        &mut self,
        from: NodeLife,
        shard: ShardId,
        released: &token::message::Released,
        items: &mut VecDeque<Item>,
    ) {
        let random = self.random();
        let mut out = Vec::new();
        if let Some(Some(slice)) = self.shards.get_mut(usize::from(shard.0)) {
            let env = owner_env(self.now, self.me, &self.view, random);
            slice.on_released(&env, &mut self.log, from, released, &mut out);
        }
        items.extend(out.into_iter().map(Item::OwnerEffect));
    }

    fn run_owner(&mut self, work: Work, pinned: Vec<InodeId>, items: &mut VecDeque<Item>) {
        self.rationed(|node| node.run_work(work, pinned, items));
    }

    fn run_work(&mut self, work: Work, pinned: Vec<InodeId>, items: &mut VecDeque<Item>) {
        if !self.is_serving() {
            self.unpin(&pinned);
            return self.hold_work(work);
        }
        let random = self.random();
        let mut out = Vec::new();
        let mut wanted: BTreeSet<ShardId> = BTreeSet::from([work.shard()]);
        let mut work = Some(work);
        let mut missed = None;
        while let Some(now) = work.take() {
            let is_mine = |shard: &ShardId| {
                self.shards
                    .get(usize::from(shard.0))
                    .is_some_and(Option::is_some)
            };
            if !wanted.iter().all(is_mine) {
                self.not_mine(now, items);
                return self.unpin(&pinned);
            }
            let env = owner_env(self.now, self.me, &self.view, random);
            let needs_log = now.needs_log();
            let locked = self.shards.iter_mut().flatten();
            let locked = locked.filter(|slice| wanted.contains(&slice.shard.id()));
            let mut locked = Locked::new(locked);
            let ahead = locked.ahead(&env, &now);
            if !ahead.is_empty() {
                wanted.extend(ahead);
                work = Some(now);
                continue;
            }
            if self.canary.breaks_promises {
                self.log.space.hold_back(0);
            }
            let log = needs_log.then_some(&mut self.log);
            match locked.run(&env, log, now, &mut out) {
                Ok(()) => {}
                Err(Need::Shards(more, again)) => {
                    wanted.extend(more);
                    work = Some(again);
                }
                Err(Need::Keys(inodes, again)) => missed = Some((inodes, again)),
            }
        }
        items.extend(out.into_iter().map(Item::OwnerEffect));
        match missed {
            Some((inodes, work)) => self.want_keys(&inodes, Ready { work, pinned }, items),
            None => self.unpin(&pinned),
        }
    }

    fn not_mine(&mut self, work: Work, items: &mut VecDeque<Item>) {
        if let Work::Question(question) = work {
            items.push_back(Item::OwnerEffect(OwnerEffect::Answer {
                to: question.from,
                call: question.call,
                answer: Box::new(Answer::bare(Body::Refused(types::Errno::ESTALE))),
                after: None,
                ends_move: question.is_mover,
            }));
        }
    }

    fn perform_owner(&mut self, effect: OwnerEffect, items: &mut VecDeque<Item>) {
        match effect {
            OwnerEffect::Answer {
                to,
                call,
                answer,
                after,
                ends_move,
            } => {
                if ends_move {
                    self.end_move((to, call), items);
                }
                let deferred = Deferred::Answer(to, call, answer);
                match after {
                    Some(lsn) => self.defer(lsn, deferred, items),
                    None => self.deliver(deferred, items),
                }
            }
            OwnerEffect::Revoke(to, revoke) => {
                if to.node == self.me.node && revoke.ino == RENAME_TOKEN {
                    self.revoke_moves(&revoke, items);
                } else if to.node == self.me.node {
                    let slice = slice_of(revoke.ino);
                    items.push_back(Item::Client(slice, Input::Revoke(self.me.node, revoke)));
                } else {
                    self.send(to.node, Message::Revoke(revoke));
                }
            }
            OwnerEffect::Reclaim(to, shard, count) if to.node == self.me.node => {
                items.extend(reclaims(shard, count));
            }
            OwnerEffect::Reclaim(to, shard, count) => {
                self.send(to.node, Message::Reclaim { shard, count });
            }
            OwnerEffect::LockReady(ready) if ready.to.node == self.me.node => {
                let input = Input::LockReady(ready.ino, ready.wait);
                items.push_back(Item::Client(slice_of(ready.ino), input));
            }
            OwnerEffect::LockReady(ready) => {
                let (ino, wait) = (ready.ino, ready.wait);
                self.send(ready.to.node, Message::LockReady { ino, wait });
            }
            OwnerEffect::Run(work) => items.push_back(Item::Owner(work)),
            OwnerEffect::Tend(holder) => items.push_back(Item::Owner(Work::tend(holder))),
            OwnerEffect::Transaction(envelope, after) => {
                self.defer(after, Deferred::Transaction(envelope), items);
            }
            OwnerEffect::AskFacts(question, queries) => self.ask_facts(question, queries, items),
            OwnerEffect::Gather(question) => self.gather(question, items),
            OwnerEffect::Recalled(life, id) => self.recalled(life, id, items),
            OwnerEffect::Dropped {
                to,
                call,
                ends_move,
            } => {
                self.in_progress.ended(to, call);
                self.facts.dropped(to, call);
                if ends_move {
                    self.end_move((to, call), items);
                }
            }
            // Its ticks wake what pauses.
            OwnerEffect::Silent(..) | OwnerEffect::WakeAt(..) => {}
        }
    }

    fn defer(&mut self, after: Lsn, deferred: Deferred, items: &mut VecDeque<Item>) {
        let after = if after == Lsn(u64::MAX) {
            self.log.journal.last_lsn()
        } else {
            after
        };
        if self.wait_durable(after, deferred, items) {
            self.kick_journal();
        }
    }

    /// Delivers what waited.
    fn deliver(&mut self, deferred: Deferred, items: &mut VecDeque<Item>) {
        match deferred {
            Deferred::Answer(to, call, answer) => {
                if call & FACT_CALL != 0 {
                    self.answer_fact(to, call, *answer, items);
                } else if to.node != self.me.node {
                    self.in_progress.ended(to, call);
                    let answer = *answer;
                    self.send(to.node, Message::Answer { call, answer });
                } else {
                    self.on_answer(call, answer, items);
                }
            }
            Deferred::Transaction(envelope) => {
                let owner = self.owner(envelope.to);
                if owner == self.me.node {
                    items.push_back(Item::Owner(Work::Transaction(envelope)));
                } else {
                    self.send(owner, Message::Transaction(*envelope));
                }
            }
            Deferred::Message(to, message) => self.send(to, *message),
        }
    }

    fn on_answer(&mut self, call: u64, answer: Box<Answer>, items: &mut VecDeque<Item>) {
        let shard = self.call_ended(call);
        if call & MOVE_CALL != 0 {
            return self.on_rename_token(*answer, items);
        }
        if call & DRIVER_CALL != 0 {
            if let Some(shard) = shard {
                self.on_space_answer(shard, &answer, items);
            }
            return;
        }
        let call = CallId(call);
        items.push_back(Item::Client(call.slice(), Input::Answer(call, answer)));
    }

    fn draw_call(&mut self) -> u64 {
        self.next_call += 1;
        self.next_call | DRIVER_CALL
    }

    /// What only time brings on (`Daemon::tick_until_stopped`).
    pub fn tick(&mut self) {
        self.tick_count += 1;
        let mut items: VecDeque<Item> = (0..SLICE_COUNT)
            .map(|slice| Item::Client(slice, Input::Tick))
            .collect();
        let random = self.random();
        let env = owner_env(self.now, self.me, &self.view, random);
        let mut out = Vec::new();
        for slice in self.shards.iter_mut().flatten() {
            if !slice.is_quiet() {
                slice.on_tick(&env, &mut out);
            }
            if self.tick_count.is_multiple_of(TRANSACTION_TICKS) {
                slice.repeats(&mut out);
            }
        }
        items.extend(out.into_iter().map(Item::OwnerEffect));
        self.top_up(&mut items);
        self.run(items);
        self.tick_checkpoints();
        self.evict_some();
        self.load_known_files();
        self.tick_keys();
        self.snapshot_if_due();
        if self.tick_count.is_multiple_of(REPEAT_TICKS) {
            self.repeat_stale();
            self.tick_farewell();
            self.ask_held();
        }
        if self.tick_count.is_multiple_of(FLUSH_TICKS) {
            self.kick_journal();
            self.resend_to_servers();
        }
        if self.memory.frame_counts().1 < self.memory.levels().low {
            self.want_frames();
        }
    }

    /// A round of relief for the pagepool (`os::daemon::reclaim`).
    fn shrink(&mut self) {
        // A few files: the slices without any would only fill the scheduler's lists.
        let used = (0..SLICE_COUNT).filter(|slice| self.slices[*slice].counts().0 > 0);
        let items = used.map(|slice| Item::Client(slice, Input::Shrink));
        let items = items.collect();
        self.run(items);
    }

    /// Somebody waits for frames: a round, soon.
    fn want_frames(&mut self) {
        if !std::mem::replace(&mut self.is_relief_due, true) {
            self.out.push(Out::Later(RELIEF_MS, Later::Relief));
        }
    }

    /// Something that had to wait.
    pub fn on_later(&mut self, later: Later) {
        match later {
            Later::Load(io, pieces) => self.load(io, pieces),
            Later::Store(io, pieces) => self.store(io, pieces),
            Later::Relief => {
                self.is_relief_due = false;
                self.shrink();
            }
            Later::Checkpoints => self.on_checkpoints_due(),
            Later::GiveRegions(name) => {
                let mut items = VecDeque::new();
                self.with_regions(&mut items, |regions, env, log, out| {
                    regions.give(env, log, name, out);
                });
                self.run(items);
            }
        }
    }

    /// Something is under way that needs no time to go on.
    /// Stores that have ended and that nobody has flushed or forgotten.
    pub fn has_unflushed(&self) -> bool {
        self.transfers.has_unflushed()
    }

    pub fn is_busy(&self) -> bool {
        !self.runs.is_empty() || self.transfers.is_busy()
    }

    /// Something has not reached its owner's journal, or that is not durable.
    pub fn is_dirty(&self) -> bool {
        let is_behind = self.log.journal.durable_lsn() < self.log.journal.last_lsn();
        is_behind || self.slices.iter().any(Slice::is_dirty)
    }

    /// Blocks rewritten in this life.
    pub fn rewrite_counts(&self) -> client::rewrite::RewriteCounts {
        let mut sum = client::rewrite::RewriteCounts::default();
        let slices = self.slices.iter();
        slices.for_each(|slice| sum.add(slice.gauges().rewrites));
        sum
    }

    /// Reads from disks that are under way for rewrites, and frames that are counted for them.
    pub fn rewrite_loads(&self) -> (u64, u64) {
        (self.pace.reads(), self.pace.held())
    }

    /// Drops a reference of each frame of a span, as the front end does after an answer.
    pub fn release(&self, span: Span) {
        if !self.canary.leaks_frames {
            frames_of(span).for_each(|frame| self.memory.release(frame));
        }
    }

    /// No question, fact, release or wait is open.
    pub fn is_idle(&self) -> bool {
        self.calls.count() == 0
            && self.is_serving()
            && self.facts.count() == 0
            && self.regions.is_idle()
            && self.durable.count() == 0
            && self.keys.is_idle()
            && self
                .shards
                .iter()
                .flatten()
                .all(|s| s.is_quiet() && !s.has_transactions())
    }

    /// Asserts the invariants of all cores.
    pub fn check(&self) {
        self.slices.iter().for_each(Slice::check);
        // Who waits for frames is tried again, and then something is there or on its way that frees some: pages are
        // cached, or sectors are being read or written, or frames are free.
        if self.slices.iter().any(Slice::is_frameless) {
            assert!(
                self.is_relief_due || !self.runs.is_empty(),
                "a round is due"
            );
            let free = self.memory.frame_counts().1;
            let is_cached = self.slices.iter().any(|slice| slice.counts().1 > 0);
            let is_moving = self.transfers.is_busy() || self.filling_count > 0;
            let is_hopeful = is_cached || is_moving || free > self.memory.levels().reserve;
            assert!(is_hopeful, "something will free frames");
        }
        for slice in self.shards.iter().flatten() {
            slice.shard.check();
        }
        self.log.space.check();
        self.log.journal.check();
        self.hands.with(|hands| hands.check());
        self.calls.check();
        self.moves.check();
    }

    /// Who waits for what.
    pub fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for slice in &self.slices {
            for (ino, what, since) in slice.waiters() {
                lines.push(format!("{ino:?} since {}: {what}", since.0 / 1_000_000));
            }
        }
        for slice in self.shards.iter().flatten() {
            for (what, since) in slice.waiters() {
                lines.push(format!("owner since {}: {what}", since.0 / 1_000_000));
            }
        }
        for (what, since) in self.moves.waiters() {
            lines.push(format!("since {}: {what}", since.0 / 1_000_000));
        }
        lines.push(format!(
            "runs {:?}, {} facts, {} regions, {} durable waiters, keys {:?}",
            self.runs,
            self.facts.count(),
            usize::from(!self.regions.is_idle()),
            self.durable.count(),
            self.keys
        ));
        for slice in self.slices.iter().filter(|slice| slice.is_dirty()) {
            lines.push(format!("dirty: {slice:?}"));
        }
        lines.push(format!("calls {:?}", self.calls));
        lines.push(format!("transfers {:?}", self.transfers));
        lines
    }
}

fn is_closed(ask: &Ask) -> bool {
    let closed = |op: &meta::Op| matches!(op, meta::Op::Closed { .. });
    matches!(ask, Ask::Op { op, .. } if closed(op))
}

/// An owner wants tokens back.
fn reclaims(shard: ShardId, count: u64) -> impl Iterator<Item = Item> {
    client::reclaims(shard, count).map(|(slice, input)| Item::Client(slice, input))
}

/// What a holder says that has given everything up; it lies.
fn release_all(revoke: &token::Revoke) -> token::Released {
    token::Released {
        ino: revoke.ino,
        number: revoke.number,
        sequence: 1 << 40,
        revoke: revoke.revoke,
        kept: Vec::new(),
        still_open: true,
    }
}

fn owner_env(now: Instant, me: NodeLife, view: &ClusterView, random: u128) -> OwnerEnv<'_> {
    OwnerEnv {
        now,
        timestamp: timestamp(now),
        me,
        owners: &view.owners,
        random,
    }
}

/// The cluster's wall clock.
pub fn timestamp(now: Instant) -> Timestamp {
    let nanos = now.0 % 1_000_000_000;
    Timestamp {
        secs: 1_700_000_000 + i64::try_from(now.0 / 1_000_000_000).expect("short runs"),
        nanos: u32::try_from(nanos).expect("below 10^9"),
    }
}
