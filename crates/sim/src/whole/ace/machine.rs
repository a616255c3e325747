//! One node that runs alone, a request at a time, on disks that write everything down.
//!
//! No kernel is between: what is asked is what FUSE would hand to the daemon. Time passes only when nothing can be done,
//! and the disks take a drawn time for each request, so that several are under way at once.

use std::collections::BTreeMap;

use client::Pool as _;
use client::request::{Caller, Operation, Request, Response, Ticket};
use client::rewrite::Rules;
use client::slice::{Input, SLICE_COUNT, frames_of, slice_of};
use node::meta::parts::Bounds;
use stdx::Prng;
use types::id::NodeLife;
use types::{
    ClusterId, ClusterView, Duration, Epoch, FsId, Incarnation, Instant, NodeId, NodeView, NsdId,
    NsdView, Span,
};

use super::super::boot::{self, Disks};
use super::super::front::payload;
use super::super::node::{Canary as NodeCanary, Kind, Later, Node, Out, Setting, Source};
use super::super::node::{TICK_MS, Tag};
use super::tape::Tape;

/// Virtual milliseconds after which a request, or coming to rest, is stuck.
const STUCK_MS: u64 = 60_000;
/// What is done in a millisecond.
const STEPS_PER_MS: u64 = 64;
/// A disk takes so long for a request, at the most.
const DISK_MS_MAX: u64 = 4;
/// In which blocks are rewritten.
const REWRITE_MS: u64 = 600;
/// The node.
pub const NODE: NodeId = NodeId(1);

/// What the node and its disks are like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Disks have volatile caches.
    pub has_volatile_cache: bool,
    /// Sectors of each of the two NSDs for files and pages.
    pub data_sectors: u64,
    /// Sectors of a region.
    pub region_sectors: u32,
    /// Sectors of the journal.
    pub journal_sectors: u64,
    /// Rounds of checkpoints are begun every so many ticks; 0: never.
    pub round_ticks: u64,
    /// Pages of trees leave regions all the time.
    pub evacuates: bool,
    /// When directories are split and joined; `None`: never.
    pub part_bounds: Option<Bounds>,
    /// Frames of the pagepool; what is rewritten is where they are many.
    pub frame_count: u64,
    /// Blocks of more than one extent are rewritten at once.
    pub rewrites: bool,
    /// How the node is broken.
    pub node: NodeCanary,
    /// How the disks are.
    pub disks: DiskCanary,
}

/// Ways to break the disks on purpose: the checks must notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskCanary {
    /// What is to go behind the cache does not: an fsync returns before the journal is durable.
    pub is_fua_ignored: bool,
    /// Flushes of file data do nothing: a Commit is durable before its bytes are.
    pub is_flush_ignored: bool,
    /// Flushes of pages do nothing: a root is durable before its pages are.
    pub is_page_flush_ignored: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            has_volatile_cache: true,
            data_sectors: 512,
            region_sectors: 64,
            journal_sectors: 1024,
            round_ticks: 3,
            evacuates: false,
            part_bounds: Some(Bounds::of(2, 1)),
            frame_count: 1 << 10,
            rewrites: false,
            node: NodeCanary::default(),
            disks: DiskCanary::default(),
        }
    }
}

impl Shape {
    /// The same with a journal in which nothing is refused because checkpoints have failed once.
    pub const fn with_room_to_starve(self) -> Self {
        Self {
            journal_sectors: 4096,
            ..self
        }
    }

    /// The cluster: one node, two NSDs.
    pub fn view(&self) -> ClusterView {
        let nsd = |number: u16| NsdView {
            id: NsdId(number),
            servers: vec![NODE],
            sector_count: 64 + self.journal_sectors + self.data_sectors,
            data_begin: 64 + self.journal_sectors,
            failure_group: number,
            has_volatile_cache: self.has_volatile_cache,
        };
        ClusterView {
            cluster: ClusterId(5),
            fs: FsId(6),
            epoch: Epoch(1),
            manager: NODE,
            nodes: vec![NodeView {
                id: NODE,
                address: String::new(),
                incarnation: Incarnation(0),
            }],
            nsds: vec![nsd(1), nsd(2)],
            owners: vec![NODE; 3],
            block_size: 1 << 20,
        }
    }

    /// The NSDs.
    pub fn nsds(&self) -> Vec<NsdId> {
        self.view().nsds.iter().map(|nsd| nsd.id).collect()
    }

    /// A node that starts, in this life.
    pub fn setting(&self, life: u128) -> Setting {
        Setting {
            me: NodeLife {
                node: NODE,
                incarnation: Incarnation(life << 64 | 1),
            },
            view: self.view(),
            area: boot::area(NsdId(1), self.journal_sectors),
            frame_count: match self.rewrites {
                true => self.frame_count.max(1 << 12),
                false => self.frame_count,
            },
            inode_count_max: 1 << 16,
            has_prune: true,
            region_sectors: self.region_sectors,
            space_reserve: 0,
            ask_sectors: self.data_sectors.min(64),
            round_ticks: self.round_ticks,
            evacuates: self.evacuates,
            evict_ticks: 0,
            load_ticks: 0,
            access_times: client::AccessTimes::Strict,
            rewrites: self.rewrites.then_some(Rules {
                parts_max: 1,
                rest: Duration(0),
                ..Rules::new(1 << 20)
            }),
            part_bounds: self.part_bounds,
            canary: self.node,
        }
    }
}

#[derive(Debug)]
enum Due {
    /// I/O, and what names it on the tape.
    Disk(Tag, Option<usize>),
    Later(Later),
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    shape: Shape,
    /// The node.
    pub node: Node,
    /// Its disks.
    pub disks: Disks,
    tape: Tape,
    prng: Prng,
    now_ms: u64,
    step_count: u64,
    due: BTreeMap<(u64, u64), Due>,
    due_count: u64,
    next_ticket: u64,
    answers: BTreeMap<Ticket, Response>,
    /// Longest time that a disk takes for a request.
    pub disk_ms_max: u64,
    /// Reads of files' bytes take so long; 0: as anything else.
    pub read_ms: u64,
}

impl Machine {
    /// Empty disks with a new file system on them.
    pub fn format(shape: &Shape) -> Disks {
        let disks = shape.nsds().into_iter();
        let disk = |id| (id, super::super::disk::Disk::new(shape.has_volatile_cache));
        let mut disks: Disks = disks.map(disk).collect();
        boot::format(&shape.setting(1), &mut disks);
        disks
    }

    /// Starts it: what its journal has is replayed, and what it was given and no Commit names comes back.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(
        shape: &Shape,
        mut disks: Disks,
        life: u128,
        seed: u64,
        tape: &Tape,
    ) -> Result<Self, String> {
        for (nsd, disk) in &mut disks {
            disk.record(*nsd, tape.clone());
        }
        let mut prng = Prng::new(seed);
        let node = boot::start(shape.setting(life), &mut disks, &mut prng)?;
        let mut machine = Self {
            shape: *shape,
            node,
            disks,
            tape: tape.clone(),
            prng,
            now_ms: 1000,
            step_count: 0,
            due: BTreeMap::new(),
            due_count: 0,
            next_ticket: 0,
            answers: BTreeMap::new(),
            disk_ms_max: DISK_MS_MAX,
            read_ms: 0,
        };
        machine.pass_time();
        let me = machine.node.me;
        machine.node.end_former_lives(&[me]);
        machine.node.begin_grace(&[]);
        Ok(machine)
    }

    /// Has a request answered.
    ///
    /// # Errors
    /// There is no answer.
    pub fn ask(&mut self, operation: Operation) -> Result<Response, String> {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let text = format!("{operation:?}");
        self.node.request(Request {
            ticket,
            caller: Caller::default(),
            operation,
        });
        let until = self.now_ms + STUCK_MS;
        loop {
            self.drain();
            if let Some(response) = self.answers.remove(&ticket) {
                return Ok(response);
            }
            if self.now_ms > until {
                let lines = self.node.describe().join("\n");
                return Err(format!("no answer to {text}:\n{lines}"));
            }
            self.step();
        }
    }

    /// A request that has no answer.
    pub fn tell(&mut self, operation: Operation) {
        self.next_ticket += 1;
        self.node.request(Request {
            ticket: Ticket(self.next_ticket),
            caller: Caller::default(),
            operation,
        });
        self.drain();
    }

    /// From now on the disks take other times.
    pub const fn reseed(&mut self, seed: u64) {
        self.prng = Prng::new(seed);
    }

    /// Memory with these bytes, for a write; `release_payload` once it is answered.
    pub fn payload(&self, bytes: &[u8]) -> Span {
        payload(&self.node.memory, bytes).expect("far more frames than the node needs")
    }

    /// The front end's references of a payload go.
    pub fn release_payload(&self, span: Span) {
        frames_of(span).for_each(|frame| self.node.memory.release(frame));
    }

    /// The bytes of an answer, whose frames are free then.
    pub fn gather(&self, spans: &[Span]) -> Vec<u8> {
        let bytes = super::super::front::gather(spans, &self.node.memory);
        spans.iter().for_each(|span| self.release_payload(*span));
        bytes
    }

    /// Virtual milliseconds.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Lets time pass, in which everything happens that only time brings on.
    pub fn wait(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.step();
        }
    }

    /// Everything is written back, all that is under way ends, and there is nothing to checkpoint.
    ///
    /// # Errors
    /// That does not end.
    pub fn rest(&mut self) -> Result<(), String> {
        for slice in 0..SLICE_COUNT {
            self.node.input(slice, Input::WriteBack);
        }
        self.quieten(STUCK_MS)
    }

    /// Waits until all is written back and nothing is under way, at most so long.
    ///
    /// # Errors
    /// That does not end.
    pub fn quieten(&mut self, ms: u64) -> Result<(), String> {
        let until = self.now_ms + ms;
        while self.node.is_busy() || self.node.is_dirty() || !self.node.is_idle() {
            if self.now_ms > until {
                return Err(format!("no rest:\n{}", self.node.describe().join("\n")));
            }
            self.step();
        }
        self.node.check();
        Ok(())
    }

    /// What is to be rewritten is.
    ///
    /// # Errors
    /// There is no rest then.
    pub fn let_rewrite(&mut self) -> Result<(), String> {
        if self.shape.rewrites {
            self.wait(REWRITE_MS);
            self.quieten(STUCK_MS)?;
        }
        Ok(())
    }

    fn step(&mut self) {
        self.step_count += 1;
        // Who asks again and again waits for something that takes time.
        let is_slow = self.step_count.is_multiple_of(STEPS_PER_MS);
        if self.end_due() || (!is_slow && self.node.act(0)) {
            return self.drain();
        }
        let tick = (self.now_ms / TICK_MS + 1) * TICK_MS;
        let next = match self.node.is_busy() {
            true => self.now_ms + 1,
            false => self.due.keys().next().map_or(tick, |(at, _)| *at),
        };
        self.now_ms = tick.min(next.max(self.now_ms + 1));
        self.pass_time();
        if self.now_ms == tick {
            self.node.tick();
        }
        self.drain();
    }

    fn pass_time(&mut self) {
        self.node.now = Instant(self.now_ms * 1_000_000);
    }

    fn drain(&mut self) {
        while !self.node.out.is_empty() {
            for out in std::mem::take(&mut self.node.out) {
                self.perform(out);
            }
        }
    }

    fn perform(&mut self, out: Out) {
        match out {
            Out::Disk(tag) => self.submit(tag),
            Out::Later(ms, later) => self.add_due(ms, Due::Later(later)),
            Out::Reply(ticket, response, pinned) => {
                self.answers.insert(ticket, response);
                for pin in pinned {
                    self.node.input(slice_of(pin.ino()), Input::Replied(pin));
                }
            }
            // There is no kernel that could keep anything.
            Out::Fill(ino, spans) => self.node.filled(ino, &spans, client::Filled::Whole),
            Out::Notify(Some(id), _) => self.node.input(id.slice(), Input::Notified(id)),
            Out::Notify(None, _) | Out::Sweep(_) | Out::Swept(_) => {}
            Out::Send(to, ..) => unreachable!("there is no {to:?}"),
        }
    }

    fn add_due(&mut self, ms: u64, due: Due) {
        self.due_count += 1;
        let key = (self.now_ms + ms, self.due_count);
        self.due.insert(key, due);
    }

    fn submit(&mut self, tag: Tag) {
        let io = self.node.disk_io(tag).expect("it has just begun");
        let (at, canary) = (io.at, self.shape.disks);
        let begun = match io.kind {
            Kind::Read => None,
            Kind::Write | Kind::DurableWrite => {
                let is_durable = io.kind == Kind::DurableWrite && !canary.is_fua_ignored;
                let is_durable = is_durable || !self.shape.has_volatile_cache;
                let bytes = self.node.written_bytes(io);
                Some(
                    self.tape
                        .write_begins((at.nsd, at.sector), &bytes, is_durable),
                )
            }
            Kind::Flush => {
                let is_ignored = match io.is_of_pages() {
                    true => canary.is_page_flush_ignored,
                    false => canary.is_flush_ignored,
                };
                (!is_ignored).then(|| self.tape.flush_begins(at.nsd))
            }
        };
        let is_slow = matches!((io.kind, &io.source), (Kind::Read, Source::Frames(_)));
        let ms = match is_slow && self.read_ms > 0 {
            true => self.read_ms,
            false => self.prng.between(1, self.disk_ms_max),
        };
        self.add_due(ms, Due::Disk(tag, begun));
    }

    fn end_due(&mut self) -> bool {
        let due = self.due.first_entry();
        let Some(due) = due.filter(|due| due.key().0 <= self.now_ms) else {
            return false;
        };
        match due.remove() {
            Due::Later(later) => self.node.on_later(later),
            Due::Disk(tag, begun) => self.end_io(tag, begun),
        }
        true
    }

    fn end_io(&mut self, tag: Tag, begun: Option<usize>) {
        let io = self.node.disk_io(tag).expect("it has not ended");
        let disk = self.disks.get_mut(&io.at.nsd).expect("an own disk");
        let mut read = Vec::new();
        match (io.kind, begun) {
            (Kind::Read, _) => read = disk.read(io.at.sector, io.sector_count()),
            (Kind::Write | Kind::DurableWrite, begun) => {
                let bytes = self.node.written_bytes(io);
                let is_file = matches!(io.source, Source::Frames(_));
                let is_kept = !(is_file && self.shape.node.forgets_writes);
                if is_kept {
                    disk.put(io.at.sector, &bytes, io.kind == Kind::DurableWrite);
                }
                self.tape
                    .write_ends(begun.expect("a write is written down"));
            }
            (Kind::Flush, Some(begun)) => {
                disk.settle();
                self.tape.flush_ends(begun);
            }
            (Kind::Flush, None) => {}
        }
        self.node.on_disk(tag, Ok(read));
    }
}
