//! The serving half: checks, fences, bounds and merges what clients ask of this node's disks.
//!
//! Invariants (`check`)
//! - Per disk, reads and writes in flight stay within `Limits`; what exceeds them is answered `Busy`
//!   at once and nothing is queued here.
//! - At most one flush per disk is with the disk; flushes that arrive meanwhile are done together by
//!   the next one, which begins after all of them arrived.
//! - A fence is acknowledged only when no accepted write of the fenced life is in flight; nothing of
//!   that life is accepted afterwards.
//! - A write answers with the verifier of the moment it was submitted, a flush with that of the
//!   moment it ended: a failure in between makes the two differ, and the client writes again.
//!
//! Life of a request: `on_request` -> `Effect::Disk` -> (I/O) -> `on_disk_done` -> `Effect::Reply`.
//! Flushes of this node's own that fail are told as well (`on_losses`): of several callers the system tells one alone that what was written
//! before is lost.
//!
//! What this deliberately does not do: keep the fence table over a restart (a later issue). Until then
//! a server that has no view yet answers other nodes `Busy`, so that a life that died before a restart
//! finds no server that does not know of it.

use std::collections::BTreeMap;

use types::id::NodeLife;
use types::{ClusterView, Epoch, Errno, Incarnation, NsdId, RequestId, SECTOR_SIZE, Span, limits};

use crate::message::{NsdError, Reply, Request, Verifier};

/// Most explicit fences kept; a fence that the view implies is dropped first.
pub const FENCE_COUNT_MAX: usize = 4096;

/// How much work per disk is accepted at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Reads and writes in flight; as many flushes may wait besides.
    pub request_count_max: usize,
    /// Bytes of reads and writes in flight. One request is always accepted by an idle disk.
    pub bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request_count_max: 256,
            bytes_max: 64 << 20,
        }
    }
}

/// Names work handed to a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskTag(pub u64);

/// What a disk has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Read `count` sectors; `on_disk_done` gets the spans that hold them.
    Read {
        /// First sector.
        sector: u64,
        /// Sectors.
        count: u32,
    },
    /// Write `payload` to `count` sectors. The caller of `on_disk_done` releases the spans.
    Write {
        /// First sector.
        sector: u64,
        /// Sectors.
        count: u32,
        /// The bytes: `count` sectors.
        payload: Vec<Span>,
        /// Durable before it is reported done.
        fua: bool,
    },
    /// Make everything durable that was reported done.
    Flush,
}

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Hand `operation` to the disk, then call `on_disk_done` with `tag`.
    Disk {
        /// For `on_disk_done`.
        tag: DiskTag,
        /// Index of the disk, as given to `add_disk`.
        disk: u32,
        /// What to do.
        operation: Operation,
    },
    /// Answer request `request` of `to` (a direct call when that is this node).
    Reply {
        /// Who asked.
        to: NodeLife,
        /// The request.
        request: RequestId,
        /// The answer.
        reply: Reply,
        /// Payload of a read.
        payload: Vec<Span>,
    },
    /// A payload that came with a refused write: release it.
    Drop {
        /// The spans.
        payload: Vec<Span>,
    },
    /// Nothing of `life` is accepted any more and no write of it is in flight.
    Fenced {
        /// The life.
        life: NodeLife,
        /// The epoch it was fenced with.
        epoch: Epoch,
    },
}

/// Effects, in the order in which they are to be performed.
pub type Outbox = Vec<Effect>;

/// A flush that waits for the disk, with those who asked for it.
type Waiters = Vec<(NodeLife, RequestId)>;

#[derive(Debug)]
struct DiskState {
    disk: u32,
    sector_count: u64,
    verifier: Verifier,
    loss_count: u64,
    request_count: usize,
    bytes: u64,
    flushing: Option<DiskTag>,
    waiting: Waiters,
}

#[derive(Debug)]
enum Work {
    Read { bytes: u64 },
    Write { bytes: u64, verifier: Verifier },
    Flush { waiters: Waiters },
}

#[derive(Debug)]
struct InFlight {
    nsd: NsdId,
    from: NodeLife,
    request: RequestId,
    work: Work,
}

/// The NSD server of a node.
#[derive(Debug)]
pub struct Server {
    own: NodeLife,
    limits: Limits,
    disks: BTreeMap<NsdId, DiskState>,
    in_flight: BTreeMap<DiskTag, InFlight>,
    next_tag: u64,
    /// Live incarnation of each node, by the newest view.
    live: BTreeMap<types::NodeId, Incarnation>,
    epoch: Epoch,
    fences: BTreeMap<NodeLife, Epoch>,
    draining: BTreeMap<NodeLife, Epoch>,
}

impl Server {
    /// A server without disks.
    pub fn new(own: NodeLife, limits: Limits) -> Self {
        assert!(limits.request_count_max > 0);
        Self {
            own,
            limits,
            disks: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            next_tag: 0,
            live: BTreeMap::new(),
            epoch: Epoch(0),
            fences: BTreeMap::new(),
            draining: BTreeMap::new(),
        }
    }

    /// Serves `nsd` from the driver's disk `disk`. Adding it again (a disk that came back) changes
    /// its verifier.
    pub fn add_disk(&mut self, nsd: NsdId, disk: u32, sector_count: u64) {
        if let Some(state) = self.disks.get_mut(&nsd) {
            // What is in flight ends on the old disk and carries the old verifier.
            state.disk = disk;
            state.sector_count = sector_count;
            state.verifier = state.verifier.next();
            return;
        }
        let state = DiskState {
            disk,
            sector_count,
            verifier: Verifier::of(self.own.incarnation),
            loss_count: 0,
            request_count: 0,
            bytes: 0,
            flushing: None,
            waiting: Vec::new(),
        };
        self.disks.insert(nsd, state);
    }

    /// The present verifier of one of this node's disks; `None` if it is not here.
    pub fn verifier(&self, nsd: NsdId) -> Option<Verifier> {
        self.disks.get(&nsd).map(|disk| disk.verifier)
    }

    /// The driver's disk behind `nsd`.
    pub fn disk(&self, nsd: NsdId) -> Option<u32> {
        self.disks.get(&nsd).map(|disk| disk.disk)
    }

    /// So many flushes of `nsd` have failed by now, of whomever: where they are more than before nobody's unflushed writes count.
    pub fn on_losses(&mut self, nsd: NsdId, count: u64) {
        if let Some(disk) = self.disks.get_mut(&nsd)
            && std::mem::replace(&mut disk.loss_count, count) != count
        {
            disk.verifier = disk.verifier.next();
        }
    }

    /// Learns which lives are members. From then on a request of another life that names this epoch
    /// or an older one is refused.
    pub fn on_view(&mut self, view: &ClusterView) {
        if view.epoch <= self.epoch {
            return;
        }
        self.epoch = view.epoch;
        self.live = view
            .nodes
            .iter()
            .map(|node| (node.id, node.incarnation))
            .collect();
    }

    /// Refuses everything of `life` from now on. `Effect::Fenced` follows when the last accepted write
    /// of it has ended (at once if there is none). Repeatable.
    pub fn on_fence(&mut self, life: NodeLife, epoch: Epoch, out: &mut Outbox) {
        if self.fences.len() >= FENCE_COUNT_MAX && !self.fences.contains_key(&life) {
            // What the view already refuses needs no entry; among those the oldest epoch goes.
            let oldest = self
                .fences
                .iter()
                .filter(|(life, epoch)| {
                    **epoch <= self.epoch && self.live.get(&life.node) != Some(&life.incarnation)
                })
                .min_by_key(|(_, epoch)| **epoch)
                .map(|(life, _)| *life);
            if let Some(oldest) = oldest {
                self.fences.remove(&oldest);
            }
        }
        let entry = self.fences.entry(life).or_insert(epoch);
        *entry = epoch.max(*entry);
        self.draining.insert(life, epoch);
        self.drain(out);
    }

    /// A request of `from` with its payload. Always answered by exactly one `Effect::Reply`, now or
    /// after `on_disk_done`.
    pub fn on_request(
        &mut self,
        from: NodeLife,
        request: RequestId,
        message: Request,
        payload: Vec<Span>,
        out: &mut Outbox,
    ) {
        if let Err(error) = self.admit(from, &message, &payload) {
            let verifier = self.verifier(message.nsd()).unwrap_or_default();
            if !payload.is_empty() {
                out.push(Effect::Drop { payload });
            }
            out.push(Effect::Reply {
                to: from,
                request,
                reply: Reply::Failed { error, verifier },
                payload: Vec::new(),
            });
            return;
        }
        let nsd = message.nsd();
        let tag = self.take_tag();
        let disk = self.disks.get_mut(&nsd).expect("admitted: it is here");
        let (work, operation) = match message {
            Request::Flush { .. } => {
                disk.waiting.push((from, request));
                self.start_flush(nsd, out);
                return;
            }
            Request::Read { sector, count, .. } => {
                let bytes = u64::from(count) * SECTOR_SIZE;
                (Work::Read { bytes }, Operation::Read { sector, count })
            }
            Request::Write {
                sector, count, fua, ..
            } => {
                let work = Work::Write {
                    bytes: u64::from(count) * SECTOR_SIZE,
                    verifier: disk.verifier,
                };
                let operation = Operation::Write {
                    sector,
                    count,
                    payload,
                    fua,
                };
                (work, operation)
            }
        };
        disk.request_count += 1;
        disk.bytes += work.bytes();
        let disk = disk.disk;
        let in_flight = InFlight {
            nsd,
            from,
            request,
            work,
        };
        self.in_flight.insert(tag, in_flight);
        out.push(Effect::Disk {
            tag,
            disk,
            operation,
        });
    }

    /// The disk has done `tag`: with the spans of a read (none otherwise), or with an error.
    pub fn on_disk_done(
        &mut self,
        tag: DiskTag,
        result: Result<Vec<Span>, Errno>,
        out: &mut Outbox,
    ) {
        let done = self
            .in_flight
            .remove(&tag)
            .expect("each tag is handed out once and reported once");
        let disk = self
            .disks
            .get_mut(&done.nsd)
            .expect("disks are not removed");
        let is_read = matches!(done.work, Work::Read { .. });
        if result.is_err() && !is_read {
            disk.verifier = disk.verifier.next();
        }
        let verifier = disk.verifier;
        let failed = |errno| Reply::Failed {
            error: NsdError::Io { errno },
            verifier,
        };
        let mut spans = Vec::new();
        let reply = match (&done.work, result) {
            (_, Err(errno)) => failed(errno),
            (Work::Read { .. }, Ok(payload)) => {
                spans = payload;
                Reply::Read { verifier }
            }
            (Work::Write { verifier, .. }, Ok(_)) => Reply::Written {
                verifier: *verifier,
            },
            (Work::Flush { .. }, Ok(_)) => Reply::Flushed { verifier },
        };
        match done.work {
            Work::Read { bytes } | Work::Write { bytes, .. } => {
                disk.request_count -= 1;
                disk.bytes -= bytes;
                out.push(Effect::Reply {
                    to: done.from,
                    request: done.request,
                    reply,
                    payload: spans,
                });
            }
            Work::Flush { waiters } => {
                assert_eq!(disk.flushing, Some(tag), "one flush at a time");
                disk.flushing = None;
                out.extend(waiters.into_iter().map(|(to, request)| Effect::Reply {
                    to,
                    request,
                    reply,
                    payload: Vec::new(),
                }));
                self.start_flush(done.nsd, out);
            }
        }
        self.drain(out);
    }

    /// Requests accepted and not yet answered, for `gupfs status`.
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.len() + self.disks.values().map(|d| d.waiting.len()).sum::<usize>()
    }

    /// Asserts the invariants of the module.
    pub fn check(&self) {
        let mut flush_count = 0;
        for (nsd, disk) in &self.disks {
            let work = || self.in_flight.values().filter(|work| work.nsd == *nsd);
            let data = || work().filter(|work| !matches!(work.work, Work::Flush { .. }));
            assert_eq!(data().count(), disk.request_count);
            assert_eq!(
                data().map(|work| work.work.bytes()).sum::<u64>(),
                disk.bytes
            );
            assert!(disk.request_count <= self.limits.request_count_max);
            assert!(disk.bytes <= self.limits.bytes_max || disk.request_count == 1);
            assert!(disk.waiting.len() <= self.limits.request_count_max);
            assert!(disk.waiting.is_empty() || disk.flushing.is_some());
            let flushes = work().filter(|work| matches!(work.work, Work::Flush { .. }));
            assert_eq!(flushes.count(), usize::from(disk.flushing.is_some()));
            flush_count += usize::from(disk.flushing.is_some());
        }
        assert!(flush_count <= self.disks.len());
        for life in self.draining.keys() {
            assert!(self.fences.contains_key(life));
            assert!(self.has_writes_of(*life), "a drained fence is acknowledged");
        }
    }

    fn admit(&self, from: NodeLife, message: &Request, payload: &[Span]) -> Result<(), NsdError> {
        // This node's own requests are ruled by its lease; it replays its journal before it joins.
        if from != self.own {
            if self.epoch == Epoch(0) {
                return Err(NsdError::Busy);
            }
            if let Some(epoch) = self.fenced(from, message.epoch()) {
                return Err(NsdError::Fenced { epoch });
            }
        }
        let nsd = message.nsd();
        let Some(disk) = self.disks.get(&nsd) else {
            return Err(NsdError::NoSuchNsd { nsd });
        };
        let Some((sector, count)) = message.range() else {
            return match disk.waiting.len() < self.limits.request_count_max {
                true => Ok(()),
                false => Err(NsdError::Busy),
            };
        };
        let bytes = u64::from(count) * SECTOR_SIZE;
        let end = sector.checked_add(count.into());
        if count == 0
            || bytes > limits::WIRE_PAYLOAD_SIZE_MAX as u64
            || end.is_none_or(|end| end > disk.sector_count)
        {
            return Err(NsdError::OutOfRange {
                nsd,
                sector,
                count,
                sector_count: disk.sector_count,
            });
        }
        let found: u64 = payload.iter().map(|span| u64::from(span.length)).sum();
        let expected = match message {
            Request::Write { .. } => bytes,
            Request::Read { .. } | Request::Flush { .. } => 0,
        };
        if found != expected {
            return Err(NsdError::BadPayload { count, found });
        }
        let is_idle = disk.request_count == 0;
        let has_room = disk.request_count < self.limits.request_count_max
            && disk.bytes + bytes <= self.limits.bytes_max;
        match is_idle || has_room {
            true => Ok(()),
            false => Err(NsdError::Busy),
        }
    }

    /// The epoch with which `from` is refused, if it is.
    fn fenced(&self, from: NodeLife, epoch: Epoch) -> Option<Epoch> {
        if let Some(epoch) = self.fences.get(&from) {
            return Some(*epoch.max(&self.epoch));
        }
        // A sender that knows a newer view than this node is a member of that one.
        let is_member = self.live.get(&from.node) == Some(&from.incarnation);
        (epoch <= self.epoch && !is_member).then_some(self.epoch)
    }

    fn take_tag(&mut self) -> DiskTag {
        self.next_tag += 1;
        DiskTag(self.next_tag)
    }

    fn start_flush(&mut self, nsd: NsdId, out: &mut Outbox) {
        let tag = self.take_tag();
        let disk = self.disks.get_mut(&nsd).expect("disks are not removed");
        if disk.flushing.is_some() || disk.waiting.is_empty() {
            return;
        }
        let waiters = std::mem::take(&mut disk.waiting);
        disk.flushing = Some(tag);
        let (from, request) = waiters[0];
        let disk = disk.disk;
        let in_flight = InFlight {
            nsd,
            from,
            request,
            work: Work::Flush { waiters },
        };
        self.in_flight.insert(tag, in_flight);
        out.push(Effect::Disk {
            tag,
            disk,
            operation: Operation::Flush,
        });
    }

    fn has_writes_of(&self, life: NodeLife) -> bool {
        self.in_flight
            .values()
            .any(|work| work.from == life && matches!(work.work, Work::Write { .. }))
    }

    fn drain(&mut self, out: &mut Outbox) {
        if self.draining.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.draining);
        for (life, epoch) in waiting {
            if self.has_writes_of(life) {
                self.draining.insert(life, epoch);
            } else {
                out.push(Effect::Fenced { life, epoch });
            }
        }
    }
}

impl Work {
    fn bytes(&self) -> u64 {
        match self {
            Self::Read { bytes } | Self::Write { bytes, .. } => *bytes,
            Self::Flush { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests;
