//! Two clients, one server, one disk with a volatile cache, in random order: what a client was told
//! is durable must be on the medium at that moment, whatever failed, restarted or lost power before.
//!
//! One client comes through the server, the other is the server's own node and uses the disk
//! directly. Every write goes to its own sector, so the disk's model is a set of sectors.

use std::collections::{BTreeMap, BTreeSet};

use nsd::client::{FlushId, Path, Settled, WriteId, Writes};
use nsd::server::{DiskTag, Effect, Limits, Operation, Outbox, Server};
use nsd::{Reply, Request, Verifier};
use stdx::Prng;
use types::id::NodeLife;
use types::{
    ClusterId, ClusterView, Epoch, Errno, FrameRef, FsId, Incarnation, NodeId, NodeView, NsdId,
    RequestId, Span,
};

const NSD: NsdId = NsdId(1);
const REMOTE: Path = Path::Server { node: NodeId(1) };
const DIRECT: Path = Path::Direct { disk: 0 };

/// What a request or a direct I/O was for.
#[derive(Clone, Copy)]
enum Purpose {
    Write(WriteId),
    Flush(FlushId),
}

#[derive(Default)]
struct Disk {
    cache: BTreeSet<u64>,
    medium: BTreeSet<u64>,
    /// Flushes that have failed.
    losses: u64,
}

impl Disk {
    /// The device's end of an operation on `sector` (`None`: a flush). A failed flush drops what was
    /// in the cache and says so once.
    fn perform(&mut self, sector: Option<u64>, is_failing: bool) -> Result<(), Errno> {
        match (sector, is_failing) {
            (Some(sector), false) => {
                self.cache.insert(sector);
            }
            (None, false) => self.medium.append(&mut self.cache),
            (Some(_), true) => return Err(Errno::EIO),
            (None, true) => {
                self.cache.clear();
                self.losses += 1;
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Client {
    writes: Writes,
    asked: BTreeMap<RequestId, Purpose>,
    durable: usize,
    lost: usize,
}

struct World {
    prng: Prng,
    disk: Disk,
    life: Incarnation,
    server: Server,
    at_disk: Vec<(DiskTag, Option<u64>)>,
    direct: Vec<(Purpose, Option<u64>, Verifier)>,
    remote: Client,
    local: Client,
    next: u64,
    /// Canary: clients do not look at verifiers.
    is_blind: bool,
}

impl World {
    fn new(seed: u64, is_blind: bool) -> Self {
        Self {
            prng: Prng::new(seed),
            disk: Disk::default(),
            life: Incarnation(1),
            server: server(Incarnation(1)),
            at_disk: Vec::new(),
            direct: Vec::new(),
            remote: Client::default(),
            local: Client::default(),
            next: 1,
            is_blind,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn seen(&self, verifier: Verifier) -> Verifier {
        match self.is_blind {
            true => Verifier(0),
            false => verifier,
        }
    }

    fn ask(&mut self, purpose: Purpose) {
        let request = RequestId(self.number());
        self.remote.asked.insert(request, purpose);
        let epoch = Epoch(1);
        let (message, payload) = match purpose {
            Purpose::Write(id) => {
                let span = Span::whole(FrameRef(0));
                let message = Request::Write {
                    nsd: NSD,
                    sector: id.0,
                    count: 1,
                    epoch,
                    grant_mac: 0,
                    fua: false,
                };
                (message, vec![span])
            }
            Purpose::Flush(_) => (Request::Flush { nsd: NSD, epoch }, Vec::new()),
        };
        let from = NodeLife {
            node: NodeId(2),
            incarnation: Incarnation(7),
        };
        let mut out = Vec::new();
        self.server
            .on_request(from, request, message, payload, &mut out);
        self.perform(out);
    }

    fn perform(&mut self, out: Outbox) {
        for effect in out {
            match effect {
                Effect::Disk { tag, operation, .. } => {
                    let sector = match operation {
                        Operation::Write { sector, .. } => Some(sector),
                        Operation::Flush => None,
                        Operation::Read { .. } => panic!("nobody reads"),
                    };
                    self.at_disk.push((tag, sector));
                }
                Effect::Reply { request, reply, .. } => {
                    // Replies may be lost with the connection.
                    if self.prng.chance(9, 10) {
                        self.on_reply(request, reply);
                    }
                }
                Effect::Drop { .. } => {}
                Effect::Fenced { .. } => panic!("nobody is fenced"),
            }
        }
    }

    fn on_reply(&mut self, request: RequestId, reply: Reply) {
        let Some(purpose) = self.remote.asked.remove(&request) else {
            return;
        };
        match (purpose, reply) {
            (Purpose::Write(id), Reply::Written { verifier }) => {
                let verifier = self.seen(verifier);
                self.remote
                    .writes
                    .on_write_done(id, NSD, REMOTE, verifier, false);
            }
            (Purpose::Flush(flush), Reply::Flushed { verifier }) => {
                let verifier = self.seen(verifier);
                let settled = self.remote.writes.on_flush_done(flush, verifier);
                settle(&mut self.remote, settled, &self.disk);
            }
            // A failed write is written elsewhere by its caller; its sectors are burnt.
            (Purpose::Write(_), Reply::Failed { .. }) => {}
            (Purpose::Flush(flush), Reply::Failed { .. }) => {
                let settled = self.remote.writes.on_flush_failed(flush);
                settle(&mut self.remote, settled, &self.disk);
            }
            (_, other) => panic!("{other:?}"),
        }
    }

    fn end_disk_work(&mut self) {
        if self.at_disk.is_empty() {
            return;
        }
        let index = usize::try_from(self.prng.below(self.at_disk.len() as u64)).expect("small");
        let (tag, sector) = self.at_disk.swap_remove(index);
        let is_failing = self.prng.chance(1, 15);
        let result = self.disk.perform(sector, is_failing).map(|()| Vec::new());
        let mut out = Vec::new();
        self.server.on_losses(NSD, self.disk.losses);
        self.server.on_disk_done(tag, result, &mut out);
        self.perform(out);
    }

    /// What names the life of the disk's cache for its own node.
    fn own_verifier(&self) -> Verifier {
        Verifier::of(self.life).after(self.disk.losses)
    }

    fn begin_direct(&mut self, purpose: Purpose) {
        let verifier = self.own_verifier();
        let sector = match purpose {
            Purpose::Write(id) => Some(id.0),
            Purpose::Flush(_) => None,
        };
        self.direct.push((purpose, sector, verifier));
    }

    fn end_direct_work(&mut self) {
        if self.direct.is_empty() {
            return;
        }
        let index = usize::try_from(self.prng.below(self.direct.len() as u64)).expect("small");
        let (purpose, sector, at_begin) = self.direct.swap_remove(index);
        let is_failing = self.prng.chance(1, 15);
        let result = self.disk.perform(sector, is_failing);
        let at_end = self.own_verifier();
        let (at_begin, at_end) = (self.seen(at_begin), self.seen(at_end));
        match (purpose, result) {
            (Purpose::Write(id), Ok(())) => {
                let writes = &mut self.local.writes;
                writes.on_write_done(id, NSD, DIRECT, at_begin, false);
            }
            (Purpose::Write(_), Err(_)) => {}
            (Purpose::Flush(flush), Ok(())) => {
                let settled = self.local.writes.on_flush_done(flush, at_end);
                settle(&mut self.local, settled, &self.disk);
            }
            (Purpose::Flush(flush), Err(_)) => {
                let settled = self.local.writes.on_flush_failed(flush);
                settle(&mut self.local, settled, &self.disk);
            }
        }
    }

    /// The server's machine loses power: its cache is gone, its requests are never answered, and the
    /// node's own client is gone with it.
    fn power_loss(&mut self) {
        self.disk.cache.clear();
        self.at_disk.clear();
        self.direct.clear();
        self.local.writes = Writes::new();
        self.life = Incarnation(u128::from(self.prng.next_u64()) << 64);
        self.server = server(self.life);
    }

    fn step(&mut self) {
        match self.prng.below(12) {
            0..=2 => {
                let id = WriteId(self.number());
                self.ask(Purpose::Write(id));
            }
            3..=4 => {
                let id = WriteId(self.number());
                self.begin_direct(Purpose::Write(id));
            }
            5 => {
                for start in self.remote.writes.begin_flush(NSD) {
                    self.ask(Purpose::Flush(start.flush));
                }
            }
            6 => {
                for start in self.local.writes.begin_flush(NSD) {
                    self.begin_direct(Purpose::Flush(start.flush));
                }
            }
            7..=8 => self.end_disk_work(),
            9..=10 => self.end_direct_work(),
            _ => {
                if self.prng.chance(1, 20) {
                    self.power_loss();
                }
            }
        }
        self.server.check();
        self.remote.writes.check();
        self.local.writes.check();
    }
}

fn server(incarnation: Incarnation) -> Server {
    let life = NodeLife {
        node: NodeId(1),
        incarnation,
    };
    let limits = Limits {
        request_count_max: 8,
        bytes_max: 1 << 20,
    };
    let mut server = Server::new(life, limits);
    server.add_disk(NSD, 0, 1 << 30);
    let client = NodeView {
        id: NodeId(2),
        address: String::new(),
        incarnation: Incarnation(7),
    };
    server.on_view(&ClusterView {
        cluster: ClusterId(1),
        fs: FsId(1),
        epoch: Epoch(1),
        manager: NodeId(1),
        nodes: vec![client],
        nsds: Vec::new(),
        owners: Vec::new(),
        block_size: 1 << 20,
    });
    server
}

fn settle(client: &mut Client, settled: Settled, disk: &Disk) {
    for id in &settled.durable {
        assert!(disk.medium.contains(&id.0), "{id:?} is not on the medium");
    }
    client.durable += settled.durable.len();
    client.lost += settled.lost.len();
}

fn run(seed: u64, is_blind: bool) -> (usize, usize) {
    let mut world = World::new(seed, is_blind);
    for _ in 0..400 {
        world.step();
    }
    let durable = world.remote.durable + world.local.durable;
    (durable, world.remote.lost + world.local.lost)
}

#[test]
fn what_is_called_durable_is_on_the_medium() {
    let mut total = (0, 0);
    for seed in 0..1000 {
        let (durable, lost) = run(seed, false);
        total = (total.0 + durable, total.1 + lost);
    }
    assert!(total.0 > 5_000, "{total:?}");
    assert!(total.1 > 500, "{total:?}");
}

#[test]
fn clients_that_ignore_verifiers_are_found_out() {
    let is_caught = (0..50).any(|seed| std::panic::catch_unwind(|| run(seed, true)).is_err());
    assert!(is_caught);
}
