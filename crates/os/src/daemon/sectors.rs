//! Sector I/O on any NSD: on this node's own disks, or through the node that serves the disk.
//!
//! Each request ends in one call of its `Done`, on a loop's thread. A read that a broken link lost is sent
//! again; a write or flush is not (its outcome is unknown: the caller writes elsewhere).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use client::slice::IoFailure;
use nsd::message::{KIND_REQUEST, Reply, Request, Verifier};
use rustc_hash::FxHashMap;
use types::wire::Flags;
use types::{Decode, Encode, Epoch, Instant, NodeId, NsdId, RequestId, Span};

use super::limiter::Limiter;
use super::{Daemon, lock};
use crate::clock;
use crate::disk::{DiskError, DiskQueue, Meters};
use crate::net::{Frame, Lane};

/// Called once when sector I/O has ended.
pub(super) type Done = Box<dyn FnOnce(&Arc<Daemon>, Result<Verifier, IoFailure>) + Send>;

/// What to do with sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Read,
    Write,
    /// Durable when it has ended; own disks only.
    DurableWrite,
    Flush,
}

struct Local {
    nsd: NsdId,
    kind: Kind,
    sector: u64,
    spans: Vec<Span>,
    tag: u64,
}

/// I/O on a disk of this node, handed to its queue.
struct Submitted {
    nsd: NsdId,
    kind: Kind,
    sector: u64,
    since: Instant,
    /// The disk's when it was submitted: a write is durable only once a flush ends under the same one.
    verifier: Verifier,
    done: Done,
}

struct Remote {
    nsd: NsdId,
    since: Instant,
    peer: NodeId,
    kind: Kind,
    request: Request,
    spans: Vec<Span>,
    done: Done,
    is_sent: bool,
}

/// Sector I/O under way.
#[derive(Default)]
pub(super) struct Sectors {
    /// Of NSDs that this node reaches through others only.
    pub(super) served: BTreeMap<NsdId, Meters>,
    tags: AtomicU64,
    local: [Mutex<FxHashMap<u64, Submitted>>; 8],
    refused: Refused<Local>,
    /// Lines of the log about I/O that has failed.
    lines: Mutex<Limiter>,
    remote: Mutex<BTreeMap<u64, Remote>>,
}

/// Requests that a full disk queue refused: the end of each request of a queue submits one of them.
///
/// A full queue has requests under way, but the last of them may end after it refused one and before that one is seen
/// here. Ends are counted first and look here then, so that whoever puts one here sees such an end and tries again.
#[derive(Debug)]
struct Refused<T> {
    waiting: Mutex<VecDeque<T>>,
    end_count: AtomicU64,
}

impl Sectors {
    /// `served`: the NSDs that are reached through others.
    pub(super) fn new(served: impl Iterator<Item = NsdId>) -> Self {
        Self {
            served: served.map(|nsd| (nsd, Meters::default())).collect(),
            ..Self::default()
        }
    }

    /// Whether a line about I/O that has failed may be written now, and how many were left out before it.
    pub(super) fn may_log(&self) -> Option<u64> {
        lock(&self.lines).take(clock::now())
    }

    /// At each tick: says how many were left out lately and not counted in another line.
    pub(super) fn log_left_out(&self) {
        if let Some(left_out) = lock(&self.lines).end(clock::now()) {
            tracing::error!(left_out, "lines about I/O that failed were left out");
        }
    }
}

impl<T> Default for Refused<T> {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            end_count: AtomicU64::new(0),
        }
    }
}

impl<T> Refused<T> {
    /// Submits a request with `attempt`, which answers false where the queue is full: then it waits here.
    fn submit(&self, request: T, attempt: impl Fn(&T) -> bool) {
        let mut next = Some(request);
        while let Some(request) = next {
            let end_count = self.end_count.load(Ordering::SeqCst);
            if attempt(&request) {
                return;
            }
            lock(&self.waiting).push_back(request);
            if self.end_count.load(Ordering::SeqCst) == end_count {
                return;
            }
            next = lock(&self.waiting).pop_front();
        }
    }

    /// A request of a queue has ended: there is room for another.
    fn on_end(&self, attempt: impl Fn(&T) -> bool) {
        self.end_count.fetch_add(1, Ordering::SeqCst);
        let next = lock(&self.waiting).pop_front();
        if let Some(request) = next {
            self.submit(request, attempt);
        }
    }
}

impl std::fmt::Debug for Sectors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sectors")
            .field("tags", &self.tags)
            .finish_non_exhaustive()
    }
}

/// Tags of the NSD server's work, told apart from our own by this bit.
pub(super) const SERVER_TAG: u64 = 1 << 63;

fn index(tag: u64) -> usize {
    usize::try_from(tag % 8).expect("below 8")
}

impl Daemon {
    /// Starts I/O; `done` hears of its end. The caller keeps references on the frames until then.
    pub(super) fn sectors(
        self: &Arc<Self>,
        kind: Kind,
        nsd: NsdId,
        sector: u64,
        spans: Vec<Span>,
        done: Done,
    ) {
        let tag = self.io.tags.fetch_add(1, Ordering::Relaxed) + 1;
        if self.disks.contains_key(&nsd) {
            let submitted = Submitted {
                nsd,
                kind,
                sector,
                since: clock::now(),
                verifier: self.own_verifier(nsd),
                done,
            };
            lock(&self.io.local[index(tag)]).insert(tag, submitted);
            let local = Local {
                nsd,
                kind,
                sector,
                spans,
                tag,
            };
            self.io.refused.submit(local, |local| self.submit(local));
        } else {
            self.ask_server(tag, kind, nsd, sector, spans, done);
        }
    }

    /// False: the disk's queue is full.
    fn submit(&self, local: &Local) -> bool {
        let disk = &self.disks[&local.nsd];
        let result = match local.kind {
            Kind::Read => disk.read(local.tag, local.sector, &local.spans),
            Kind::Write => disk.write(local.tag, local.sector, &local.spans),
            Kind::DurableWrite => disk.write_durable(local.tag, local.sector, &local.spans),
            Kind::Flush => disk.flush(local.tag),
        };
        result.is_ok()
    }

    /// What names the present life of an own disk's write cache, for this node's own I/O.
    fn own_verifier(&self, nsd: NsdId) -> Verifier {
        let losses = self.disks[&nsd].disk().loss_count();
        Verifier::of(self.me.incarnation).after(losses)
    }

    /// A disk request of ours has ended.
    pub(super) fn on_disk(self: &Arc<Self>, tag: u64, result: Result<(), DiskError>) {
        if tag & SERVER_TAG != 0 {
            self.server_disk_done(tag & !SERVER_TAG, result);
        } else {
            let done = lock(&self.io.local[index(tag)]).remove(&tag);
            if let Err(error) = &result
                && let Some(left_out) = self.io.may_log()
            {
                tracing::error!(%error, left_out, "disk I/O failed");
            }
            let result = result.map_err(|_| IoFailure::Unreachable);
            if let Some(submitted) = done {
                let verifier = match submitted.kind {
                    Kind::Flush => self.own_verifier(submitted.nsd),
                    _ => submitted.verifier,
                };
                (submitted.done)(self, result.map(|()| verifier));
            }
        }
        self.io.refused.on_end(|local| self.submit(local));
    }

    fn ask_server(
        self: &Arc<Self>,
        tag: u64,
        kind: Kind,
        nsd: NsdId,
        sector: u64,
        spans: Vec<Span>,
        done: Done,
    ) {
        let server = self
            .config
            .view
            .nsd(nsd)
            .and_then(|n| n.servers.first().copied());
        let Some(peer) = server.filter(|peer| *peer != self.me.node) else {
            done(self, Err(IoFailure::Unreachable));
            return;
        };
        let size: u64 = spans.iter().map(|s| u64::from(s.length)).sum();
        let count = u32::try_from(size / types::SECTOR_SIZE).expect("one request is small");
        let epoch = self.membership.epoch();
        let request = match kind {
            Kind::Read => Request::Read {
                nsd,
                sector,
                count,
                epoch,
            },
            Kind::Write | Kind::DurableWrite => {
                let fua = kind == Kind::DurableWrite;
                Request::Write {
                    nsd,
                    sector,
                    count,
                    epoch,
                    grant_mac: 0,
                    fua,
                }
            }
            Kind::Flush => Request::Flush { nsd, epoch },
        };
        let remote = Remote {
            nsd,
            since: clock::now(),
            peer,
            kind,
            request,
            spans,
            done,
            is_sent: false,
        };
        lock(&self.io.remote).insert(tag, remote);
        self.send_to_server(tag);
    }

    /// Sends a request that is not with its server yet. It goes to the life of the server that is known now, or waits for the next one:
    /// of a write that was with a life which has ended its sectors are free with that, so none of it may reach the next.
    fn send_to_server(self: &Arc<Self>, tag: u64) {
        let (life, frame) = {
            let mut remote = lock(&self.io.remote);
            let Some(io) = remote.get_mut(&tag).filter(|io| !io.is_sent) else {
                return;
            };
            // Known before the link is said to be up, and known as long as it is up.
            let Some(life) = self.peer_life(io.peer) else {
                return;
            };
            io.is_sent = true;
            let payload = match io.kind {
                Kind::Write | Kind::DurableWrite => io.spans.clone(),
                Kind::Read | Kind::Flush => Vec::new(),
            };
            payload.iter().for_each(|span| self.pool.retain_span(*span));
            let frame = Frame {
                kind: KIND_REQUEST,
                flags: Flags::default(),
                request: RequestId(tag),
                epoch: Epoch(0),
                meta: io.request.to_bytes(),
                payload,
            };
            (life, frame)
        };
        let lane = u16::try_from(tag % 64).expect("below 64");
        if let Err(error) = self.send_frame_to_life(life, Lane::Data(lane), frame) {
            for span in error.payload {
                self.pool.release_span(span);
            }
            // It goes when the link is up, or with the next sweep when the queue was full.
            if let Some(io) = lock(&self.io.remote).get_mut(&tag) {
                io.is_sent = false;
            }
        }
    }

    /// Where the payload of a server's answer goes.
    pub(super) fn place_reply(&self, request: RequestId, length: u32) -> Vec<Span> {
        let remote = lock(&self.io.remote);
        let Some(io) = remote.get(&request.0).filter(|io| io.kind == Kind::Read) else {
            return Vec::new();
        };
        // A server that sends another number of bytes than asked for has none of ours to fill.
        if io
            .spans
            .iter()
            .map(|span| u64::from(span.length))
            .sum::<u64>()
            != u64::from(length)
        {
            return Vec::new();
        }
        io.spans
            .iter()
            .for_each(|span| self.pool.retain_span(*span));
        io.spans.clone()
    }

    /// A server answered.
    pub(super) fn on_nsd_reply(
        self: &Arc<Self>,
        request: RequestId,
        meta: &[u8],
        payload: Vec<Span>,
    ) {
        let has_payload = !payload.is_empty();
        for span in payload {
            self.pool.release_span(span);
        }
        let reply = Reply::from_bytes(meta, "NSD reply");
        if let Ok(Reply::Failed {
            error: nsd::NsdError::Busy,
            ..
        }) = reply
        {
            if let Some(io) = lock(&self.io.remote).get_mut(&request.0) {
                io.is_sent = false;
            }
            return;
        }
        let Some(io) = lock(&self.io.remote).remove(&request.0) else {
            return;
        };
        let result = match (io.kind, reply) {
            (Kind::Read, Ok(Reply::Read { verifier })) if has_payload => Ok(verifier),
            (Kind::Write | Kind::DurableWrite, Ok(Reply::Written { verifier })) => Ok(verifier),
            (Kind::Flush, Ok(Reply::Flushed { verifier })) => Ok(verifier),
            (_, reply) => {
                tracing::error!(?reply, request = ?io.request, "an NSD server did not do its work");
                Err(IoFailure::Unreachable)
            }
        };
        self.count_served(&io, result.is_ok());
        (io.done)(self, result);
    }

    /// The link to a server broke: reads are sent again when it is back, the rest is lost or not.
    pub(super) fn on_server_down(self: &Arc<Self>, peer: NodeId) {
        let lost: Vec<Remote> = {
            let mut remote = lock(&self.io.remote);
            for io in remote
                .values_mut()
                .filter(|io| io.peer == peer && io.kind == Kind::Read)
            {
                io.is_sent = false;
            }
            let tags: Vec<u64> = remote
                .iter()
                .filter(|(_, io)| io.peer == peer && io.is_sent)
                .map(|(tag, _)| *tag)
                .collect();
            tags.iter().filter_map(|tag| remote.remove(tag)).collect()
        };
        for io in lost {
            self.count_served(&io, false);
            (io.done)(self, Err(IoFailure::Unknown));
        }
    }

    fn count_served(&self, io: &Remote, is_done: bool) {
        let kind = match io.kind {
            Kind::Read => 0,
            Kind::Write | Kind::DurableWrite => 1,
            Kind::Flush => 2,
        };
        if let Some(meters) = self.io.served.get(&io.nsd) {
            let size = io.spans.iter().map(|span| u64::from(span.length)).sum();
            meters.ended(kind, io.since, size, is_done);
        }
    }

    /// Sends what waits for its server: after the link came up, and now and then.
    pub(super) fn resend_to_servers(self: &Arc<Self>) {
        let waiting: Vec<u64> = lock(&self.io.remote)
            .iter()
            .filter(|(_, io)| !io.is_sent)
            .map(|(tag, _)| *tag)
            .collect();
        for tag in waiting {
            self.send_to_server(tag);
        }
    }

    /// I/O that has not ended, and since when: for `gupfs waiters`.
    pub(super) fn io_waiters(&self) -> Vec<(String, Instant)> {
        let mut all = Vec::new();
        for local in &self.io.local {
            for io in lock(local).values() {
                let Submitted {
                    nsd, kind, sector, ..
                } = io;
                let what = format!("{kind:?} of sector {sector} of {nsd} is with the disk");
                all.push((what, io.since));
            }
        }
        for io in lock(&self.io.remote).values() {
            let (kind, peer) = (io.kind, io.peer.0);
            let where_ = if io.is_sent { "with" } else { "not sent to" };
            let what = format!("{kind:?} {:?} is {where_} node {peer}", io.request);
            all.push((what, io.since));
        }
        all
    }

    /// The NSD of the oldest read, or of the oldest write or flush, that has not ended, and the node that was asked for
    /// it, if one was. O(I/O under way).
    pub(super) fn oldest_io(&self, is_read: bool) -> Option<(NsdId, Option<NodeId>)> {
        let mut oldest: Option<(Instant, NsdId, Option<NodeId>)> = None;
        let mut see = |kind: Kind, since: Instant, nsd: NsdId, peer: Option<NodeId>| {
            let is_older = oldest.is_none_or(|(at, ..)| since < at);
            if (kind == Kind::Read) == is_read && is_older {
                oldest = Some((since, nsd, peer));
            }
        };
        for local in &self.io.local {
            let local = lock(local);
            local
                .values()
                .for_each(|io| see(io.kind, io.since, io.nsd, None));
        }
        let remote = lock(&self.io.remote);
        (remote.values()).for_each(|io| see(io.kind, io.since, io.nsd, Some(io.peer)));
        oldest.map(|(_, nsd, peer)| (nsd, peer))
    }

    /// The disk of one of this node's own NSDs.
    pub(super) fn disk(&self, nsd: NsdId) -> Option<&Arc<DiskQueue>> {
        self.disks.get(&nsd)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// The last request under way ends just after the queue has refused one: that one is not left behind.
    #[test]
    fn a_refused_request_is_submitted_also_when_the_last_end_comes_first() {
        let refused: Refused<u32> = Refused::default();
        let is_full = Cell::new(true);
        let submitted = RefCell::new(Vec::new());
        refused.submit(1, |request| {
            if is_full.replace(false) {
                refused.on_end(|_| unreachable!("it is not there yet"));
                return false;
            }
            submitted.borrow_mut().push(*request);
            true
        });
        assert_eq!(*submitted.borrow(), [1]);
        assert!(lock(&refused.waiting).is_empty());
    }

    #[test]
    fn each_end_submits_one() {
        let refused: Refused<u32> = Refused::default();
        let room = Cell::new(0);
        let submitted = RefCell::new(Vec::new());
        let attempt = |request: &u32| {
            let has_room = room.get() > 0;
            if has_room {
                room.set(room.get() - 1);
                submitted.borrow_mut().push(*request);
            }
            has_room
        };
        for request in 1..=3 {
            refused.submit(request, attempt);
        }
        assert!(submitted.borrow().is_empty());
        for count in 1..=3 {
            room.set(1);
            refused.on_end(attempt);
            assert_eq!(submitted.borrow().len(), count);
        }
        assert_eq!(*submitted.borrow(), [1, 2, 3]);
        refused.on_end(attempt);
    }
}
