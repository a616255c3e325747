//! Pieces (bytes in metadata, from small synchronous writes) move to sectors. The owner does it: pieces lie in its
//! memory and its journal, outlive the client that wrote them, and a client that wrote a part of a sector does not
//! have the rest.
//!
//! ```text
//! plan under the shard's lock -> read what lies under the pieces -> lay them over it -> sectors from this node's
//! own hand -> store -> flush -> Op::Destage: takes the sectors whose pieces are still those of the plan
//! ```
//!
//! Invariants
//! - Nothing changes before `Op::Destage`: a crash before it leaves the pieces, one after it the sectors.
//! - One job at a time, of at most `SECTORS_MAX` sectors: bounded frames, and I/O that leaves room for others.
//! - What the operation did not take is given back: it was written once and belongs to no file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use client::Pool as _;
use client::env::{Grants as _, LoadPiece, StorePiece, TakenRun, WantedRun};
use client::message::{Answer, Ask, Body};
use client::slice::{Input, IoFailure, IoId};
use data::SetAside;
use node::DestageState;
use node::meta::{Op, Reply};
use types::frame::FRAME_BYTES;
use types::{Extent, FrameRef, InodeId, Instant, Layout, Piece, Run, ShardId, Span, limits};

use super::work::Item;
use super::{Daemon, lock};
use crate::clock;

/// Sectors moved by one job.
const SECTORS_MAX: usize = 256;
/// After a job that failed, nothing is tried for so long.
const PAUSE: types::Duration = types::Duration::from_millis(500);
/// Without sectors nothing is tried for so long where some may be had, and for up to `HUNGER_MAX` where there are none.
const HUNGER_MIN: types::Duration = types::Duration::from_millis(20);
/// See `HUNGER_MIN`.
const HUNGER_MAX: types::Duration = types::Duration::from_secs(8);
/// Files with few pieces are looked at this often.
const IDLE_PERIOD: types::Duration = types::Duration::from_secs(2);
/// Marks I/O of jobs among that of the client's slices.
const DESTAGE_IO: u64 = 1 << 60;
/// Marks calls of jobs.
pub(super) const DESTAGE_CALL: u64 = 1 << 60;

#[derive(Debug)]
struct Job {
    io: IoId,
    ino: InodeId,
    layout: Layout,
    map_version: u64,
    /// By sector of the file.
    frames: Vec<(u64, FrameRef)>,
    pieces: Vec<Piece>,
    /// Its sectors are promised ones.
    is_promised: bool,
    runs: Vec<Run>,
    extents: Vec<Extent>,
}

impl Job {
    fn frame_of(&self, sector: u64) -> Option<FrameRef> {
        let at = self.frames.binary_search_by_key(&sector, |(s, _)| *s);
        at.ok().map(|at| self.frames[at].1)
    }
}

#[derive(Debug, Default)]
struct State {
    /// A job is under way: it lies in `job` while it waits, and in the hands of one thread else.
    is_busy: bool,
    job: Option<Job>,
    not_before: Instant,
    /// Without sectors, each try waits twice as long as the one before: all clients are asked to give some back.
    hunger: Option<Hunger>,
    idle_since: Instant,
    /// The shard that is looked at first.
    cursor: usize,
    /// The file of each shard that was moved, or tried, last.
    tried: BTreeMap<ShardId, u64>,
}

/// There were no sectors when a job began last.
#[derive(Clone, Copy, Debug)]
struct Hunger {
    tried: Instant,
    pause: types::Duration,
    /// So many are tried next: half as many each time.
    sectors: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Destage {
    state: Mutex<State>,
    next: AtomicU64,
    jobs: AtomicU64,
    sectors: AtomicU64,
    left: AtomicU64,
    failures: AtomicU64,
}

impl Destage {
    /// The job waits for an answer; the one job that there is.
    fn wait(&self, job: Job) {
        let mut state = lock(&self.state);
        assert!(state.is_busy && state.job.is_none(), "one job at a time");
        state.job = Some(job);
    }

    /// Jobs, sectors moved, sectors that had changed meanwhile, jobs that failed.
    pub(super) fn counters(&self) -> [u64; 4] {
        [&self.jobs, &self.sectors, &self.left, &self.failures].map(|c| c.load(Ordering::Relaxed))
    }
}

type Items = VecDeque<Item>;

impl Daemon {
    /// I/O has ended: of a slice, or of a job.
    pub(super) fn io_ended(self: &Arc<Self>, io: IoId, input: Input) {
        if io.0 & DESTAGE_IO == 0 {
            return self.input(io.slice(), input);
        }
        let mut items = VecDeque::new();
        let Some(job) = lock(&self.destage.state).job.take_if(|job| job.io == io) else {
            return;
        };
        match input {
            Input::Loaded(_, Ok(())) => self.destage_store(job, &mut items),
            Input::Stored(_, Ok(extents)) => self.destage_stored(job, extents),
            Input::Flushed(_, Ok(())) => self.destage_execute(job, &mut items),
            Input::Stored(_, Err(IoFailure::Unknown)) => {
                self.hands.burn(self.me.node, &job.runs);
                self.end_destage(job, Vec::new(), DestageState::Stalled);
            }
            _ => self.end_destage(job, Vec::new(), DestageState::Stalled),
        }
        self.run(items);
    }

    /// Begins a job if there is something to move and none is under way.
    pub(super) fn start_destage(self: &Arc<Self>, items: &mut Items) {
        if !self.is_serving() || self.must_park() || self.stop.is_set() {
            return;
        }
        let now = clock::now();
        let mut state = lock(&self.destage.state);
        if state.is_busy || now < state.not_before {
            return;
        }
        if let Some(hunger) = state.hunger {
            let waited = now.since(hunger.tried);
            let me = self.me.node;
            let has_promised =
                |hands: &mut node::Hands| hands.of(me).pool().unreserved_promised() > 0;
            let may_have_some =
                || lock(&self.log).space.grantable() > 0 || self.hands.with(has_promised);
            if waited < HUNGER_MIN || (waited < hunger.pause && !may_have_some()) {
                return;
            }
        }
        let is_idle_round = now.since(state.idle_since) > IDLE_PERIOD;
        let plan = self.plan_destage(&mut state, is_idle_round);
        let Some((mut job, loads)) = plan else {
            if is_idle_round {
                state.idle_since = now;
            }
            return;
        };
        if job.frames.is_empty() {
            state.not_before = now + PAUSE;
            drop(state);
            lock(&self.log).destage_state = DestageState::Stalled;
            return;
        }
        state.is_busy = true;
        let number = self.destage.next.fetch_add(1, Ordering::Relaxed);
        job.io = IoId(number | DESTAGE_IO);
        let io = job.io;
        self.destage.jobs.fetch_add(1, Ordering::Relaxed);
        drop(state);
        if loads.is_empty() {
            self.destage_store(job, items);
        } else {
            self.destage.wait(job);
            self.load(io, loads);
        }
    }

    /// What to move next, in frames that are filled already where nothing has to be read.
    fn plan_destage(
        &self,
        state: &mut State,
        is_idle_round: bool,
    ) -> Option<(Job, Vec<LoadPiece>)> {
        let count = self.shards.len();
        let is_hungry = state.hunger.is_some();
        let sectors_max = state.hunger.map_or(SECTORS_MAX, |hunger| hunger.sectors);
        let (attr, map_version, sectors) = (0..count).find_map(|step| {
            let at = (state.cursor + step) % count.max(1);
            let slice = lock(self.shards[at].as_ref()?);
            let shard = &slice.shard;
            let tried = state.tried.entry(shard.id()).or_default();
            // Where there are no sectors, there are some for what is promised.
            let soon = shard.destage_behind(*tried, is_hungry);
            // Commits would wait for these.
            let is_due = is_idle_round || node::log::is_piece_debt_high(shard.piece_debt());
            let ino = soon.or_else(|| is_due.then(|| shard.may_destage(*tried).next())?)?;
            (state.cursor, *tried) = (at + 1, ino.index());
            let (version, mut sectors) = shard.destage_plan(ino, sectors_max, is_hungry)?;
            if sectors.iter().any(|sector| sector.is_promised) {
                sectors.retain(|sector| sector.is_promised);
            }
            Some((shard.attr(ino)?, version, sectors))
        })?;
        let mut job = Job {
            io: IoId(0),
            ino: attr.ino,
            layout: attr.layout,
            map_version,
            frames: Vec::with_capacity(sectors.len()),
            pieces: Vec::new(),
            is_promised: sectors.iter().all(|sector| sector.is_promised),
            runs: Vec::new(),
            extents: Vec::new(),
        };
        let mut loads = Vec::new();
        for sector in sectors {
            let Some(frame) = self.pool.alloc() else {
                break;
            };
            job.frames.push((sector.file_sector, frame));
            job.pieces.extend(sector.pieces);
            match sector.extent {
                Some(extent) => loads.push(LoadPiece {
                    extent,
                    frames: vec![frame],
                }),
                None => self.pool.zero(Span::whole(frame)),
            }
        }
        Some((job, loads))
    }

    /// What lies under the pieces is in the frames: the pieces go over it, and all of it to new sectors.
    fn destage_store(self: &Arc<Self>, mut job: Job, items: &mut Items) {
        for piece in &job.pieces {
            let sector = piece.offset / types::SECTOR_SIZE;
            let Some(frame) = job.frame_of(sector) else {
                continue;
            };
            let offset = u32::try_from(piece.offset % types::SECTOR_SIZE).expect("within a sector");
            let target = Span {
                frame,
                offset,
                length: FRAME_BYTES - offset,
            };
            self.pool.store(target, &piece.bytes);
        }
        // Runs with inline checksums can be taken in parts.
        let mut wanted: Vec<WantedRun> = Vec::new();
        for (sector, _) in &job.frames {
            match wanted.last_mut() {
                Some(run)
                    if run.file_sector + u64::from(run.count) == *sector
                        && run.count < limits::INLINE_CHECKSUM_COUNT_MAX =>
                {
                    run.count += 1;
                }
                _ => wanted.push(WantedRun {
                    ino: job.ino,
                    layout: job.layout,
                    file_sector: *sector,
                    count: 1,
                    is_promised: job.is_promised,
                }),
            }
        }
        let Some(taken) = self.take_for_destage(&mut job, wanted) else {
            // Where there are none, that stays so until some come.
            let state = match lock(&self.log).destage_state {
                DestageState::NoSpace => DestageState::NoSpace,
                DestageState::Works | DestageState::Stalled => DestageState::Works,
            };
            self.end_destage(job, Vec::new(), state);
            self.want_space(self.me.node, items);
            return;
        };
        let stores = taken.iter().map(|run| StorePiece {
            file_sector: run.file_sector,
            frames: (run.file_sector..run.file_sector + u64::from(run.count))
                .filter_map(|sector| job.frame_of(sector))
                .collect(),
            run: run.run,
        });
        let stores: Vec<StorePiece> = stores.collect();
        job.runs = taken.iter().map(|run| run.run).collect();
        let io = job.io;
        self.destage.wait(job);
        self.store(io, stores);
    }

    /// Sectors for the job; where fewer are in hand than it wants, it gets smaller. `None`: there are none.
    fn take_for_destage(&self, job: &mut Job, mut wanted: Vec<WantedRun>) -> Option<Vec<TakenRun>> {
        let me = self.me.node;
        let none = SetAside::default();
        let taken = self.hands.take(me, &wanted, none);
        if taken.is_some() {
            return taken;
        }
        let is_promised = job.is_promised;
        let mut left = self.hands.with(|hands| {
            let pool = hands.of(me).pool();
            match is_promised {
                true => pool.reservable().max(pool.unreserved_promised()),
                false => pool.reservable(),
            }
        });
        for run in &mut wanted {
            run.count = run.count.min(u32::try_from(left).unwrap_or(u32::MAX));
            left -= u64::from(run.count);
        }
        wanted.retain(|run| run.count > 0);
        let last = wanted.last()?;
        let end = last.file_sector + u64::from(last.count);
        let taken = self.hands.take(me, &wanted, none)?;
        for (_, frame) in job.frames.extract_if(.., |(sector, _)| *sector >= end) {
            self.pool.release(frame);
        }
        Some(taken)
    }

    fn destage_stored(self: &Arc<Self>, mut job: Job, mut extents: Vec<Extent>) {
        extents.sort_by_key(|extent| extent.file_sector);
        job.extents = extents;
        let io = job.io;
        self.destage.wait(job);
        // Ends at once where no NSD has a volatile cache.
        self.flush_stores(io, &[io]);
    }

    fn destage_execute(self: &Arc<Self>, mut job: Job, items: &mut Items) {
        let op = Op::Destage {
            ino: job.ino,
            map_version: job.map_version,
            extents: std::mem::take(&mut job.extents),
        };
        let ask = Ask::Op { op, durable: false };
        let (call, shard) = (job.io.0 | DESTAGE_CALL, job.ino.shard());
        self.destage.wait(job);
        self.call_owner(call, shard, ask, items);
    }

    /// The operation has been executed: what it took is the file's, the rest goes back.
    pub(super) fn destage_answered(
        self: &Arc<Self>,
        call: u64,
        answer: &Answer,
        items: &mut Items,
    ) {
        let Some(job) = lock(&self.destage.state)
            .job
            .take_if(|job| job.io.0 == call)
        else {
            return;
        };
        let is_done = matches!(answer.body, Body::Op(Reply::Attr(_) | Reply::Stale));
        let mut taken = Vec::new();
        {
            let log = lock(&self.log);
            for run in &job.runs {
                let kept = log.space.held_parts(self.me, *run);
                let mut at = run.at.sector;
                let end = run.at.sector + u64::from(run.count);
                for (begin, behind) in kept
                    .iter()
                    .map(|k| (k.at.sector, k.at.sector + u64::from(k.count)))
                    .chain([(end, end)])
                {
                    if at < begin {
                        taken.push(Run {
                            at: types::Location {
                                sector: at,
                                ..run.at
                            },
                            count: u32::try_from(begin - at).expect("within a run"),
                        });
                    }
                    at = behind;
                }
            }
        }
        let state = match is_done {
            true => DestageState::Works,
            false => DestageState::Stalled,
        };
        self.end_destage(job, taken, state);
        self.start_destage(items);
    }

    /// A job is over. `taken`: the parts of its runs that are a file's now.
    fn end_destage(self: &Arc<Self>, job: Job, taken: Vec<Run>, state: DestageState) {
        for (_, frame) in &job.frames {
            self.pool.release(*frame);
        }
        let moved: u64 = taken.iter().map(|run| u64::from(run.count)).sum();
        let all: u64 = job.runs.iter().map(|run| u64::from(run.count)).sum();
        self.hands.committed(self.me.node, &taken);
        let me = self.me.node;
        self.hands.with(|hands| hands.discard_rest(me, &job.runs));
        self.destage.sectors.fetch_add(moved, Ordering::Relaxed);
        self.destage.left.fetch_add(all - moved, Ordering::Relaxed);
        let has_failed = state == DestageState::Stalled;
        lock(&self.log).destage_state = state;
        let mut state = lock(&self.destage.state);
        state.is_busy = false;
        let now = clock::now();
        state.hunger = (job.runs.is_empty() && !has_failed).then(|| Hunger {
            tried: now,
            pause: state.hunger.map_or(PAUSE, |hunger| {
                types::Duration((hunger.pause.0 * 2).min(HUNGER_MAX.0))
            }),
            sectors: (state.hunger.map_or(SECTORS_MAX, |hunger| hunger.sectors) / 2).max(1),
        });
        if has_failed || job.runs.is_empty() {
            self.destage.failures.fetch_add(1, Ordering::Relaxed);
        }
        if has_failed {
            state.not_before = now + PAUSE;
        }
    }

    /// Bytes of pieces that are to be moved, in all shards.
    pub(super) fn piece_debt(&self) -> u64 {
        let shards = self.shards.iter().flatten();
        shards
            .map(|slice| lock(slice).shard.piece_debt().bytes())
            .sum()
    }
}
