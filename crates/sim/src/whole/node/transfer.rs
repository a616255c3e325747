//! Loads and stores of file data: carries out what `client::transfer` plans; and sectors on own and served NSDs (the
//! twin of `os::daemon::sectors`).

use std::collections::BTreeMap;

use client::Pool as _;
use client::env::{LoadPiece, StorePiece};
use client::slice::{Input, IoFailure, IoId};
use client::transfer::{Flushing, Load, Request, Store, Unflushed, checksum_cache};
use data::ChecksumCache;
use store::journal::FlushId;
use store::tree::{FetchId, WriteId};
use types::frame::FRAME_SIZE;
use types::id::NodeLife;
use types::{FrameRef, Location, NodeId, NsdId, Run, Span};

use super::{Lane, Later, Node, Out, Wire};

/// Names sector I/O within a node's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Tag(pub u64);

/// What to do with sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Durable when it has ended.
    DurableWrite,
    /// Make what was written before durable.
    Flush,
}

/// Memory of I/O.
#[derive(Clone, Debug)]
pub enum Source {
    /// Frames: bytes are taken from or put into them while the I/O is in flight.
    Frames(Vec<FrameRef>),
    /// Bytes of its own.
    Bytes(Vec<u8>),
    /// A page of a tree.
    Page(Vec<u8>),
    /// As many sectors are read for another node.
    Count(u64),
}

/// What follows I/O.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    Load(IoId),
    Store(IoId, NsdId),
    Flush(IoId, NsdId),
    Journal(FlushId),
    PageRead(FetchId),
    KeyRead(FetchId),
    PageWrite(u64, (WriteId, NsdId)),
    PageFlush(NsdId),
    /// For another node.
    Serve(NodeLife, Tag),
}

/// I/O on an own disk.
#[derive(Clone, Debug)]
pub struct DiskIo {
    /// What.
    pub kind: Kind,
    /// Where.
    pub at: Location,
    /// Memory.
    pub source: Source,
    done: Done,
}

impl DiskIo {
    /// It reads a page of a tree.
    pub fn is_page_read(&self) -> bool {
        matches!(self.done, Done::PageRead(_) | Done::KeyRead(_))
    }

    /// It makes pages of trees durable.
    pub const fn is_of_pages(&self) -> bool {
        matches!(self.done, Done::PageFlush(_))
    }

    /// Sectors that a read wants.
    pub fn sector_count(&self) -> u64 {
        match &self.source {
            Source::Frames(frames) => frames.len() as u64,
            Source::Bytes(bytes) | Source::Page(bytes) => (bytes.len() / FRAME_SIZE) as u64,
            Source::Count(count) => *count,
        }
    }
}

/// What a node asks of the server of an NSD.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What.
    pub kind: Kind,
    /// Where.
    pub at: Location,
    /// Sectors to read.
    pub count: u64,
    /// Bytes to write.
    pub bytes: Vec<u8>,
}

#[derive(Debug)]
struct Remote {
    peer: NodeId,
    io: DiskIo,
    is_sent: bool,
}

/// I/O under way.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    next_tag: u64,
    own: BTreeMap<Tag, DiskIo>,
    remote: BTreeMap<Tag, Remote>,
    loads: BTreeMap<IoId, Load>,
    stores: BTreeMap<IoId, Store<NodeLife>>,
    flushes: BTreeMap<IoId, Flushing<NodeLife>>,
    unflushed: Unflushed<NodeLife>,
    crcs: Option<ChecksumCache>,
}

impl Transfers {
    pub(super) fn is_busy(&self) -> bool {
        !self.own.is_empty() || !self.remote.is_empty()
    }

    pub(super) fn forget_stores(&mut self, stores: &[IoId]) {
        self.unflushed.forget(stores);
    }

    /// Stores that have ended and that nobody has flushed or forgotten.
    pub(super) fn has_unflushed(&self) -> bool {
        !self.unflushed.is_empty()
    }
}

impl Node {
    /// Starts I/O.
    pub(super) fn sectors(&mut self, kind: Kind, at: Location, source: Source, done: Done) {
        self.transfers.next_tag += 1;
        let tag = Tag(self.transfers.next_tag);
        let io = DiskIo {
            kind,
            at,
            source,
            done,
        };
        let servers = self.view.nsd(at.nsd).map(|n| n.servers.clone());
        let server = servers.and_then(|s| s.first().copied());
        match server {
            Some(server) if server == self.me.node => {
                self.transfers.own.insert(tag, io);
                self.out.push(Out::Disk(tag));
            }
            Some(peer) => {
                let remote = Remote {
                    peer,
                    io,
                    is_sent: false,
                };
                self.transfers.remote.insert(tag, remote);
                self.send_to_server(tag);
            }
            None => self.finish_io(io.done, Err(IoFailure::Unreachable)),
        }
    }

    fn send_to_server(&mut self, tag: Tag) {
        let Some(remote) = self.transfers.remote.get_mut(&tag) else {
            return;
        };
        if !self.links.contains(&remote.peer) {
            return;
        }
        remote.is_sent = true;
        let (count, bytes) = match (&remote.io.source, remote.io.kind) {
            (Source::Frames(frames), Kind::Read) => (frames.len() as u64, Vec::new()),
            (Source::Frames(frames), _) => {
                let spans = frames.iter().map(|f| Span::whole(*f));
                (0, spans.flat_map(|s| self.memory.read(s)).collect())
            }
            (Source::Bytes(bytes) | Source::Page(bytes), _) => (0, bytes.clone()),
            (Source::Count(count), _) => (*count, Vec::new()),
        };
        let asked = Asked {
            kind: remote.io.kind,
            at: remote.io.at,
            count,
            bytes,
        };
        let lane = Lane::Bulk(u8::try_from(tag.0 % 2).expect("below 2"));
        let peer = remote.peer;
        self.out.push(Out::Send(peer, lane, Wire::Ask(tag, asked)));
    }

    /// Sends what waits for its server.
    pub(super) fn resend_to_servers(&mut self) {
        let waiting = self.transfers.remote.iter().filter(|(_, r)| !r.is_sent);
        let waiting: Vec<Tag> = waiting.map(|(tag, _)| *tag).collect();
        for tag in waiting {
            self.send_to_server(tag);
        }
    }

    /// The link to a server broke: reads are sent again, the rest is lost or not.
    pub(super) fn on_server_down(&mut self, peer: NodeId) {
        let remote = &mut self.transfers.remote;
        for io in remote.values_mut().filter(|r| r.peer == peer) {
            if io.io.kind == Kind::Read {
                io.is_sent = false;
            }
        }
        let lost = remote.iter().filter(|(_, r)| r.peer == peer && r.is_sent);
        let lost: Vec<Tag> = lost.map(|(tag, _)| *tag).collect();
        for tag in lost {
            let remote = self.transfers.remote.remove(&tag).expect("found above");
            if let (Done::Store(..), Source::Frames(frames)) = (remote.io.done, &remote.io.source) {
                let count = u32::try_from(frames.len()).expect("a write is small");
                let at = remote.io.at;
                self.hands.with(|hands| hands.in_doubt(Run { at, count }));
            }
            self.finish_io(remote.io.done, Err(IoFailure::Unknown));
        }
    }

    /// A server answered.
    pub(super) fn on_server_answer(&mut self, tag: Tag, result: Result<(Vec<u8>, NodeLife), ()>) {
        let Some(remote) = self.transfers.remote.remove(&tag) else {
            return;
        };
        match result {
            Ok((bytes, life)) => {
                if remote.io.kind == Kind::Read {
                    self.fill(&remote.io.source, &bytes);
                }
                self.finish_io(remote.io.done, Ok((life, Vec::new())));
            }
            Err(()) => self.finish_io(remote.io.done, Err(IoFailure::Unreachable)),
        }
    }

    /// Does a peer's I/O.
    pub(super) fn serve(&mut self, from: NodeLife, tag: Tag, asked: Asked) {
        let source = match asked.kind {
            Kind::Read => Source::Count(asked.count),
            _ => Source::Bytes(asked.bytes),
        };
        self.sectors(asked.kind, asked.at, source, Done::Serve(from, tag));
    }

    /// A write of this life is on its way to an own disk.
    pub(super) fn serves_write_of(&self, life: NodeLife) -> bool {
        let is_its = |io: &DiskIo| matches!(io.done, Done::Serve(from, _) if from == life);
        let mut own = self.transfers.own.values();
        own.any(|io| is_its(io) && matches!(io.kind, Kind::Write | Kind::DurableWrite))
    }

    fn fill(&self, source: &Source, bytes: &[u8]) {
        let Source::Frames(frames) = source else {
            return;
        };
        for (frame, part) in frames.iter().zip(bytes.chunks(FRAME_SIZE)) {
            self.memory.store(Span::whole(*frame), part);
        }
    }

    /// I/O on an own disk that is under way.
    pub fn disk_io(&self, tag: Tag) -> Option<&DiskIo> {
        self.transfers.own.get(&tag)
    }

    /// All of it, for a crash.
    pub fn disk_ios(&self) -> impl Iterator<Item = &DiskIo> {
        self.transfers.own.values()
    }

    /// The bytes that a write has in memory now.
    pub fn written_bytes(&self, io: &DiskIo) -> Vec<u8> {
        match &io.source {
            Source::Frames(frames) => {
                let spans = frames.iter().map(|f| Span::whole(*f));
                spans.flat_map(|s| self.memory.read(s)).collect()
            }
            Source::Bytes(bytes) | Source::Page(bytes) => bytes.clone(),
            Source::Count(_) => Vec::new(),
        }
    }

    /// An own disk is done; `bytes` were read.
    pub fn on_disk(&mut self, tag: Tag, result: Result<Vec<u8>, ()>) {
        let io = self.transfers.own.remove(&tag).expect("ended once");
        match result {
            Ok(bytes) => {
                self.fill(&io.source, &bytes);
                self.finish_io(io.done, Ok((self.me, bytes)));
            }
            Err(()) => self.finish_io(io.done, Err(IoFailure::Unreachable)),
        }
        if let Done::Serve(from, _) = io.done {
            self.tell_fenced(from);
        }
    }

    fn finish_io(&mut self, done: Done, result: Result<(NodeLife, Vec<u8>), IoFailure>) {
        match done {
            Done::Load(io) => {
                let load = self.transfers.loads.get_mut(&io).expect("until its last");
                if load.on_read(result.map(|_| ())) {
                    self.loaded(io);
                }
            }
            Done::Store(io, nsd) => {
                self.note_refusing(nsd, result.as_ref().err());
                let store = self.transfers.stores.get_mut(&io).expect("until its last");
                if store.on_written(nsd, result.map(|(life, _)| life)) {
                    self.stored(io);
                }
            }
            Done::Flush(io, nsd) => {
                self.note_refusing(nsd, result.as_ref().err());
                let flushing = self.transfers.flushes.get_mut(&io).expect("until its last");
                let result = result.map(|(life, _)| life);
                if let Some(result) = flushing.on_flushed(nsd, result) {
                    self.transfers.flushes.remove(&io);
                    self.input(io.slice(), Input::Flushed(io, result));
                }
            }
            Done::Journal(id) => self.journal_written(id, result.is_ok()),
            Done::PageRead(id) => self.page_read(id, result.ok().map(|(_, bytes)| bytes)),
            Done::KeyRead(id) => self.key_read(id, result.ok().map(|(_, bytes)| bytes)),
            Done::PageWrite(of, page) => self.page_written(of, page, result.is_ok()),
            Done::PageFlush(nsd) => self.pages_flushed(nsd, result.is_ok()),
            Done::Serve(to, tag) => {
                let answer = result.map(|(life, bytes)| (bytes, life)).map_err(|_| ());
                let lane = Lane::Bulk(u8::try_from(tag.0 % 2).expect("below 2"));
                if self.peers.get(&to.node) == Some(&to) {
                    self.out
                        .push(Out::Send(to.node, lane, Wire::Answered(tag, answer)));
                }
            }
        }
    }

    /// What is written again goes to others.
    fn note_refusing(&mut self, nsd: NsdId, failure: Option<&IoFailure>) {
        if failure == Some(&IoFailure::Unreachable) {
            let now = self.now;
            self.hands.with(|hands| hands.note_refusing(now, nsd));
        }
    }

    /// Reads and verifies the pieces; the slice hears `Loaded`.
    pub(super) fn load(&mut self, io: IoId, pieces: Vec<LoadPiece>) {
        let crcs = self.transfers.crcs.get_or_insert_with(checksum_cache);
        let planned = Load::plan(&pieces, &self.memory, |key| crcs.get(key));
        let Some((load, requests)) = planned else {
            self.out.push(Out::Later(1, Later::Load(io, pieces)));
            return;
        };
        self.transfers.loads.insert(io, load);
        for Request { at, frames } in requests {
            self.sectors(Kind::Read, at, Source::Frames(frames), Done::Load(io));
        }
    }

    fn loaded(&mut self, io: IoId) {
        let load = self.transfers.loads.remove(&io).expect("it has just ended");
        let crcs = self.transfers.crcs.get_or_insert_with(checksum_cache);
        let result = load.end(&self.memory, |key, known| crcs.insert(key, known), |_| {});
        self.input(io.slice(), Input::Loaded(io, result));
    }

    /// Writes runs; the slice hears `Stored` with their extents.
    pub(super) fn store(&mut self, io: IoId, pieces: Vec<StorePiece>) {
        let (store, requests) = match Store::plan(pieces, &self.memory) {
            Ok(planned) => planned,
            Err(pieces) => return self.out.push(Out::Later(1, Later::Store(io, pieces))),
        };
        self.transfers.stores.insert(io, store);
        for Request { at, frames } in requests {
            let done = Done::Store(io, at.nsd);
            self.sectors(Kind::Write, at, Source::Frames(frames), done);
        }
    }

    fn stored(&mut self, io: IoId) {
        let store = self.transfers.stores.remove(&io).expect("just ended");
        let result = store.end(&self.memory).map(|(extents, written)| {
            if self.has_volatile_nsd {
                self.transfers.unflushed.insert(io, written);
            }
            extents
        });
        self.input(io.slice(), Input::Stored(io, result));
    }

    /// Makes stores durable; the slice hears `Flushed`.
    pub(super) fn flush_stores(&mut self, io: IoId, stores: &[IoId]) {
        let flushing = self.transfers.unflushed.take(stores);
        let nsds = flushing.nsds();
        if nsds.is_empty() {
            self.input(io.slice(), Input::Flushed(io, flushing.result()));
            return;
        }
        self.transfers.flushes.insert(io, flushing);
        for nsd in nsds {
            let at = Location { nsd, sector: 0 };
            let done = Done::Flush(io, nsd);
            self.sectors(Kind::Flush, at, Source::Bytes(Vec::new()), done);
        }
    }

    /// Drops the front end's references of a payload that it has handed over.
    pub fn release_payload(&self, span: Span) {
        client::slice::frames_of(span).for_each(|frame| self.memory.release(frame));
    }
}
