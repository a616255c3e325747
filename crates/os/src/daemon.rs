//! The daemon: joins FUSE, the client slices, the owner's shards, disks and the network of one node.
//!
//! Life cycle: disks opened and checked -> journal replayed into a new segment -> loops, network -> mounted
//! -> serving -> stop: connection unmounted, dirty data written back, journal flushed.
//!
//! Lock order: client slice (alone) | shards by id, then the journal and space. Nothing is performed under a
//! lock: effects go on a work list (`work`).

mod checkpoints;
mod clearing;
pub mod config;
mod control;
mod copies;
mod destage;
mod ending;
mod ends;
mod farewell;
mod free;
mod journal;
mod keys;
mod lapse;
mod latency;
mod limiter;
mod losses;
mod membership;
mod metrics;
mod moves;
mod peers;
mod reclaim;
mod replays;
mod report;
mod rewriting;
mod sectors;
mod shut_down;
mod slow;
mod space;
mod standing;
mod start;
mod stores;
mod tending;
mod transfer;
mod usage;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};

use client::request::{Operation, Request, Response, Ticket, TicketPart};
use client::rewrite::Rules;
use client::slice::{Input, SLICE_COUNT, Slice, home_slice};
use node::keeper::{Counters as Kept, PlainHost, ShardSize, checkpoint_now};
use node::message::CLASS_NAMES;
use node::{DestageState, OwnerLog, OwnerSlice, Work};
use rustc_hash::FxHashMap;
use types::id::NodeLife;
use types::{Duration, Errno, InodeId, NodeId, NsdId, ShardId, Span};

pub use config::{Config, DiskConfig, PeerConfig, Transport};
pub use start::format_journals;

use crate::disk::{self, DiskError, DiskQueue};
use crate::fuse::{
    Handler, InterruptOutcome, Replier, Session, SessionConfig, SessionError, TransportKind,
};
use crate::loops::Loops;
use crate::net::Net;
use crate::pool::Pagepool;
use crate::{clock, loops, netns};
use work::Item;

/// Marks calls of the driver itself.
const DRIVER_CALL: u64 = 1 << 63;
/// Marks calls of the driver itself that ask for the rename token.
const MOVE_CALL: u64 = 1 << 61;
/// A read's time waits so long before the owner is told.
const ACCESS_PATIENCE: Duration = Duration::from_millis(5000);
/// A stop waits so long until owners have heard of reads.
const TELL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);
/// Between two rounds of what only time brings on.
const TICK: std::time::Duration = std::time::Duration::from_millis(20);
/// Journal records that nobody waits for are written after this many ticks.
const FLUSH_TICKS: u64 = 5;
/// Messages that were not answered are repeated after this many ticks.
const REPEAT_TICKS: u64 = 50;
/// Transaction messages are repeated after this many ticks.
const TRANSACTION_TICKS: u64 = 5;
/// Bytes of the pagepool that are touched at start.
const POPULATE_SIZE: u64 = 256 << 20;
/// A stop waits for so many leases until dirty data is with its owners (30 s by default). Of that the second limit goes by before the
/// unmount at most, as who goes on writing keeps data dirty; what the unmount brings has as long at least.
const STOP_LEASES: u64 = 3;
const UNMOUNT_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Why the daemon did not run, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A disk cannot be used.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A disk's label is not that of its NSD.
    #[error("{path}: {source}", path = path.display())]
    Label {
        /// The disk.
        path: PathBuf,
        /// What is wrong.
        source: nsd::LabelError,
    },
    /// One NSD is named twice.
    #[error("{nsd} is named twice")]
    Twice {
        /// The NSD.
        nsd: NsdId,
    },
    /// No disk of this node has its journal.
    #[error("none of this node's disks has the journal of node {node}: name the disk that has it")]
    NoJournal {
        /// The node.
        node: NodeId,
    },
    /// The journal cannot be replayed.
    #[error(transparent)]
    Recovery(#[from] node::store::recovery::RecoveryError),
    /// A shard cannot be replayed: its tree is damaged, or its journal.
    #[error(transparent)]
    Replay(#[from] node::replay::ReplayError),
    /// What was replayed does not fit the journal's other half.
    #[error("the state of {inode_count} inodes does not fit half of the journal")]
    JournalFull {
        /// Inodes.
        inode_count: u64,
    },
    /// No memory for the pagepool.
    #[error(transparent)]
    Pool(#[from] crate::pool::PoolError),
    /// No event loops.
    #[error(transparent)]
    Loops(#[from] loops::LoopError),
    /// The network did not start.
    #[error(transparent)]
    Net(#[from] crate::net::NetError),
    /// The name space cannot be entered.
    #[error(transparent)]
    Netns(#[from] netns::NetnsError),
    /// The mount failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The control socket cannot be made.
    #[error("{path}: {source}", path = path.display())]
    Control {
        /// Its path.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Metrics cannot be served.
    #[error("cannot serve metrics at {address}: {source}")]
    Metrics {
        /// Where.
        address: std::net::SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("starting a thread: {0}")]
    Thread(std::io::Error),
    /// The list of this state directory's lives cannot be kept.
    #[error("{path}: {source}", path = path.display())]
    Lives {
        /// Its path.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The daemon was stopped, and what was written could not be brought to the owners of these files in time: tell
    /// the user. All else is in order.
    #[error(
        "{bytes} bytes of {files} files could not be written back in time and are lost: is their owner away?"
    )]
    Lost {
        /// Files with data or times that no owner has.
        files: usize,
        /// Bytes of their dirty pages.
        bytes: u64,
    },
    /// What was written could not be stored, or its owner did not take it, while the daemon stopped: tell the user.
    #[error(
        "{pages} pages of files, written and not synced, are lost: disks or owners refused them"
    )]
    Refused {
        /// Pages of 4 KiB, some of them in part.
        pages: u64,
    },
    /// The journal failed, and these changes of names and files, which nobody had synced, are lost: tell the user.
    #[error(
        "the journal could not be written, and {changes} changes, which were not synced, are lost: its disk failed or is full"
    )]
    Unlogged {
        /// Records of the journal.
        changes: u64,
    },
    /// This life was declared dead by the cluster, and a new one cannot be started: start it by hand.
    #[error("this life of the node was declared dead, and starting anew failed: {0}")]
    Restart(std::io::Error),
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the daemon")
}

/// Counters that no part keeps by itself.
#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    replies: AtomicU64,
    notices: AtomicU64,
    /// Messages between halves of nodes, by `Message::class`.
    messages: [AtomicU64; CLASS_NAMES.len()],
    /// Revokes that this node's owner half asked for, here and elsewhere.
    revokes: AtomicU64,
    unsent: AtomicU64,
    /// Bytes that reads of the kernel asked for.
    read_size: AtomicU64,
    /// Bytes that writes of the kernel brought.
    write_size: AtomicU64,
    /// Reads of file data from NSDs, and writes to them, as the client half asks for them.
    loads: AtomicU64,
    stores: AtomicU64,
    journal_size: AtomicU64,
    journal_flushes: AtomicU64,
    operations: [AtomicU64; OPERATION_NAMES.len()],
}

const OPERATION_NAMES: [&str; 10] = [
    "lookup", "getattr", "create", "unlink", "open", "read", "write", "fsync", "readdir", "other",
];

fn operation_index(operation: &Operation) -> usize {
    match operation {
        Operation::Lookup { .. } => 0,
        Operation::GetAttr { .. } => 1,
        Operation::Create { .. } | Operation::CreateNameless { .. } => 2,
        Operation::Unlink { .. } => 3,
        Operation::Open { .. } => 4,
        Operation::Read { .. } => 5,
        Operation::Write { .. } => 6,
        Operation::Fsync { .. } => 7,
        Operation::ReadDir { .. } => 8,
        _ => 9,
    }
}

/// A flag that can be waited for.
#[derive(Debug, Default)]
struct Stop {
    is_set: Mutex<bool>,
    wake: Condvar,
}

impl Stop {
    fn set(&self) {
        *lock(&self.is_set) = true;
        self.wake.notify_all();
    }

    fn is_set(&self) -> bool {
        *lock(&self.is_set)
    }

    /// Waits for the flag, `TICK` at the most.
    fn wait_tick(&self) -> bool {
        let guard = lock(&self.is_set);
        if *guard {
            return true;
        }
        *self
            .wake
            .wait_timeout(guard, TICK)
            .expect("a panic ends the daemon")
            .0
    }
}

/// Hands events of loops, disks, network and FUSE to the daemon, which is made after them.
#[derive(Debug, Default)]
struct Hub {
    daemon: OnceLock<Weak<Daemon>>,
}

impl Hub {
    fn daemon(&self) -> Option<Arc<Daemon>> {
        self.daemon.get()?.upgrade()
    }
}

impl loops::Handler for Hub {
    fn on_timer(&self, _now: types::Instant) {}
}

impl disk::Handler for Hub {
    fn on_disk(&self, tag: u64, result: Result<(), DiskError>) {
        if let Some(daemon) = self.daemon() {
            daemon.on_disk(tag, result);
        }
    }
}

impl Handler for Hub {
    fn on_request(&self, _replier: &Replier, request: Request) {
        if let Some(daemon) = self.daemon() {
            daemon.on_request(request);
        }
    }

    fn on_interrupt(&self, _replier: &Replier, part: TicketPart) -> InterruptOutcome {
        if let Some(daemon) = self.daemon() {
            if daemon.unpark(part) {
                return InterruptOutcome::Taken;
            }
            for slice in 0..SLICE_COUNT {
                daemon.input(slice, Input::Interrupt(part));
            }
        }
        InterruptOutcome::Taken
    }

    fn on_copy(&self, _replier: &Replier, copy: fuse::CopyRange) {
        if let Some(daemon) = self.daemon() {
            daemon.on_copy(copy);
        }
    }

    fn on_shut_down(&self, _replier: &Replier, asked: fuse::ShutDown) {
        if let Some(daemon) = self.daemon() {
            daemon.on_shut_down(asked);
        }
    }

    fn on_destroy(&self) {
        if let Some(daemon) = self.daemon() {
            daemon.stop.set();
        }
    }
}

/// One node's daemon.
#[derive(Debug)]
struct Daemon {
    me: NodeLife,
    config: Config,
    pool: Arc<Pagepool>,
    relief: reclaim::Relief,
    loops: Arc<Loops>,
    disks: BTreeMap<NsdId, Arc<DiskQueue>>,
    has_volatile_nsd: bool,
    readers: client::Readers,
    pace: client::Pace,
    mount_look: Mutex<rewriting::MountLook>,
    io: sectors::Sectors,
    transfers: transfer::Transfers,
    journal: journal::JournalDriver,
    checkpoints: checkpoints::Checkpoints,
    clearing: clearing::Clearing,
    keys: keys::Keys,
    hands: space::Hands,
    slices: Vec<Mutex<Slice>>,
    shards: Vec<Option<Mutex<OwnerSlice>>>,
    log: Mutex<OwnerLog>,
    calls: Mutex<node::Calls>,
    facts: Mutex<node::Facts>,
    moves: Mutex<node::MoveToken>,
    regions: Mutex<node::Regions>,
    nsds: Vec<NsdId>,
    free: free::FreeSums,
    usage: usage::Usage,
    destage: destage::Destage,
    /// Questions of other nodes that are being worked on.
    in_progress: Mutex<node::InProgress>,
    held_work: Mutex<Vec<Work>>,
    tending: tending::Tending,
    is_serving: AtomicBool,
    ends: ends::Ends,
    peers: Mutex<BTreeMap<NodeId, types::Incarnation>>,
    /// When a link was broken last because of what came over it.
    breaks: Mutex<BTreeMap<NodeId, types::Instant>>,
    net: OnceLock<Net>,
    server: Mutex<nsd::Server>,
    fences: Mutex<node::Fences>,
    farewells: Mutex<node::Farewells>,
    backlog: Mutex<nsd::Backlog<peers::NsdReply>>,
    server_nsds: Mutex<FxHashMap<u64, NsdId>>,
    server_spans: Mutex<FxHashMap<u64, (Vec<Span>, bool)>>,
    replier: OnceLock<Arc<Replier>>,
    notifier: OnceLock<Arc<crate::fuse::Notifier>>,
    connection: AtomicU64,
    next_call: AtomicU64,
    membership: membership::Membership,
    random: Mutex<stdx::prng::Prng>,
    counters: Counters,
    latencies: latency::Latencies,
    slow: slow::Slow,
    said_losses: losses::Said,
    gauges: metrics::Gauges,
    metrics_address: OnceLock<std::net::SocketAddr>,
    begun: types::Instant,
    /// Copies whose bytes are being read, by the ticket of the read.
    copies: Mutex<FxHashMap<Ticket, copies::Begun>>,
    shut_down: shut_down::ShutDown,
    stop: Stop,
    /// It is about to end, and answers nobody any more.
    is_deaf: AtomicBool,
}

/// Runs a daemon until it is told to stop, or its mount is gone. `on_mounted` is called once it is mounted, before anybody hears so.
///
/// # Errors
/// It could not start; nothing is mounted then.
pub fn run(config: Config, on_mounted: impl FnOnce()) -> Result<(), Error> {
    if let Some(name) = &config.netns {
        netns::enter(name)?;
    }
    let disks = start::open_disks(&config)?;
    let pool = Pagepool::new(config.pagepool_size)?;
    let populated = Arc::clone(&pool);
    // Beside the replay of the journal.
    let populate = std::thread::Builder::new()
        .name("populate".to_owned())
        .spawn(move || populated.populate(POPULATE_SIZE))
        .map_err(Error::Thread)?;
    let mut state = start::recover(&config, &disks)?;
    let shards = || state.shards.iter().flatten().map(|slice| &slice.shard);
    tracing::info!(
        operations = state.operation_count,
        inodes = shards().map(node::meta::Shard::inode_count).sum::<u64>(),
        in_memory = shards().map(node::meta::Shard::resident_count).sum::<u64>(),
        "journal replayed"
    );
    // All that can be damaged has been read before anything is written.
    start::mark_disks(&disks);
    let former = stores::add_life(&config.lives_path, config.incarnation)?;
    restart_journal(&config, &disks, &mut state)?;
    let hub = Arc::new(Hub::default());
    // Mounted means ready: the first reads and writes do not compete for memory that is touched for the
    // first time. A panic in the thread has been reported; the pool works without.
    let _ = populate.join();
    let loops = Loops::start(config.loop_count, hub.clone())?;
    let membership = membership::Membership::start(&config, former);
    let daemon = Daemon::new(config, disks, (state, membership), &pool, &loops, &hub);
    let _ = hub.daemon.set(Arc::downgrade(&daemon));
    let result = daemon.serve(&hub, on_mounted);
    if let Some(net) = daemon.net.get() {
        net.stop();
    }
    loops.stop();
    result
}

/// Writes the recovered state as the first records of a new segment.
fn restart_journal(
    config: &Config,
    disks: &start::Disks,
    state: &mut start::State,
) -> Result<(), Error> {
    checkpoint_if_large(disks, state);
    let log = &mut state.log;
    log.begin_first_snapshot();
    let mut is_full = false;
    let mut inode_count = 0;
    for slice in state.shards.iter().flatten() {
        inode_count += slice.shard.inode_count();
        is_full |= !log.append_shard_snapshot(&slice.shard);
        start::flush_blocking(disks, log)?;
    }
    is_full |= !log.append_space_snapshot();
    if is_full {
        return Err(Error::JournalFull { inode_count });
    }
    log.end_snapshot();
    start::flush_blocking(disks, log)?;
    // A new file system has its root made here; the record that makes it is durable before anybody asks.
    if config.view.owner(ShardId(0)) == Some(config.node)
        && let Some(Some(slice)) = state.shards.first_mut()
        && slice.shard.attr(InodeId::ROOT).is_none()
    {
        #[allow(
            clippy::cast_possible_truncation,
            reason = "any 64 of the 128 random bits do"
        )]
        let generation = config.incarnation.0 as u64;
        let changes = slice.shard.make_root(clock::timestamp(), 0o755, generation);
        slice.last_lsn = log.append_changes(ShardId(0), &changes);
        start::flush_blocking(disks, log)?;
    }
    Ok(())
}

/// The client half of a node that owns these shards: its directories go to them in turn.
fn slices(shards: &[Option<OwnerSlice>], config: &Config) -> Vec<Mutex<Slice>> {
    let own: Vec<ShardId> = (0u16..)
        .zip(shards)
        .filter(|(_, slice)| slice.is_some())
        .map(|(id, _)| ShardId(id))
        .collect();
    let placements = if own.is_empty() {
        vec![ShardId(0)]
    } else {
        own
    };
    (0..SLICE_COUNT)
        .map(|index| {
            let mut placements = placements.clone();
            let count = placements.len();
            placements.rotate_left(index * 5 % count);
            let mut slice = Slice::new(index, placements);
            slice.limit_inodes(config.inode_count_max);
            if config.view.nodes.len() <= 1 {
                slice.believe(Duration::from_millis(
                    types::limits::KERNEL_TIMEOUT_ALONE_MS,
                ));
            }
            let (kept, has_directories) = config.access_times();
            slice.keep_access_times(kept, has_directories, ACCESS_PATIENCE);
            if config.rewrite_rate > 0 {
                slice.rewrite_aged(Rules::new(config.view.block_size));
            }
            Mutex::new(slice)
        })
        .collect()
}

/// What recovery found may be more than half of the journal has room for beside what is to come: trees take it first.
fn checkpoint_if_large(disks: &start::Disks, state: &mut start::State) {
    let slices = state.shards.iter().flatten();
    let sizes: Vec<ShardSize> = slices.map(|slice| ShardSize::of(&slice.shard)).collect();
    let log = &mut state.log;
    log.measure_space();
    log.note_sizes(&sizes, false);
    if log.journal.overlay_size() <= log.journal.segment_size() / 2 {
        return;
    }
    let disk_of = |nsd| disks.disks.get(&nsd);
    let mut own = checkpoints::OwnDisks::new(&disk_of);
    let shards = &mut state.shards;
    let mut host = PlainHost { shards, log };
    let (done, failure) = checkpoint_now(clock::now(), &mut host, &mut own);
    if let Some((shard, failure)) = failure {
        tracing::error!(%shard, %failure, "a checkpoint failed at start");
    }
    let Kept {
        checkpoints, keys, ..
    } = done;
    tracing::info!(checkpoints, keys, "checkpoints at start");
}

impl Daemon {
    fn new(
        config: Config,
        disks: start::Disks,
        (state, membership): (start::State, membership::Membership),
        pool: &Arc<Pagepool>,
        loops: &Arc<Loops>,
        hub: &Arc<Hub>,
    ) -> Arc<Self> {
        let me = NodeLife {
            node: config.node,
            incarnation: config.incarnation,
        };
        let mut server = nsd::Server::new(me, nsd::server::Limits::default());
        let mut queues = BTreeMap::new();
        for (index, (nsd, disk)) in disks.disks.into_iter().enumerate() {
            let number = u32::try_from(index).expect("few disks");
            server.add_disk(nsd, number, disk.sector_count());
            queues.insert(nsd, DiskQueue::new(disk, loops, pool, index, hub.clone()));
        }
        let slices = slices(&state.shards, &config);
        let durable_lsn = state.log.journal.durable_lsn();
        let nsds: Vec<NsdId> = config.view.nsds.iter().map(|n| n.id).collect();
        let seed = u64::try_from(config.incarnation.0 >> 64).expect("half of 128 bits");
        let peers = config.peers.iter().map(|p| p.node);
        let gauges = metrics::Gauges::new(queues.keys().copied(), peers);
        let served = nsds.iter().filter(|nsd| !queues.contains_key(nsd));
        let io = sectors::Sectors::new(served.copied());
        let daemon = Arc::new(Self {
            me,
            pool: Arc::clone(pool),
            relief: reclaim::Relief::default(),
            loops: Arc::clone(loops),
            disks: queues,
            has_volatile_nsd: disks.has_volatile,
            readers: client::Readers::new(config.direct_size_min, config.again_size_max),
            pace: client::Pace::default(),
            mount_look: Mutex::default(),
            io,
            transfers: transfer::Transfers::default(),
            journal: journal::JournalDriver::default(),
            checkpoints: checkpoints::Checkpoints::default(),
            clearing: clearing::Clearing::default(),
            keys: keys::Keys::new(
                config.view.fs,
                node::meta::HashKey(config.hash_key),
                config.metadata_bytes_max,
            ),
            hands: space::Hands::new(&nsds, config.view.block_size),
            slices,
            shards: state
                .shards
                .into_iter()
                .map(|s| s.map(Mutex::new))
                .collect(),
            log: Mutex::new(state.log),
            calls: Mutex::default(),
            facts: Mutex::default(),
            moves: Mutex::default(),
            regions: Mutex::default(),
            nsds,
            free: free::FreeSums::default(),
            usage: usage::Usage::default(),
            destage: destage::Destage::default(),
            in_progress: Mutex::default(),
            held_work: Mutex::default(),
            tending: tending::Tending::default(),
            is_serving: AtomicBool::new(false),
            ends: ends::Ends::default(),
            peers: Mutex::default(),
            breaks: Mutex::default(),
            net: OnceLock::new(),
            server: Mutex::new(server),
            fences: Mutex::default(),
            farewells: Mutex::default(),
            backlog: Mutex::default(),
            server_nsds: Mutex::default(),
            server_spans: Mutex::default(),
            replier: OnceLock::new(),
            notifier: OnceLock::new(),
            connection: AtomicU64::new(0),
            next_call: AtomicU64::new(1),
            membership,
            random: Mutex::new(stdx::prng::Prng::new(seed)),
            counters: Counters::default(),
            latencies: latency::Latencies::default(),
            slow: slow::Slow::new(config.slow),
            said_losses: losses::Said::default(),
            gauges,
            metrics_address: OnceLock::new(),
            begun: clock::now(),
            copies: Mutex::default(),
            shut_down: shut_down::ShutDown::default(),
            stop: Stop::default(),
            is_deaf: AtomicBool::new(false),
            config,
        });
        daemon.set_durable(durable_lsn);
        daemon.watch_pool();
        daemon
    }

    fn serve(self: &Arc<Self>, hub: &Arc<Hub>, on_mounted: impl FnOnce()) -> Result<(), Error> {
        let listener = control::listen(&self.config.control_socket)?;
        self.begin_network(hub)?;
        self.end_lives_of_this_node();
        if self.membership.is_alone() {
            self.begin_serving();
        }
        let _metrics = self.serve_metrics()?;
        let _ended = (self.start_checkpoints()?, self.start_keys()?);
        let _cleared = self.start_clearing()?;
        self.heed_signals()?;
        let mut session = self.mount()?;
        session.start(hub.clone())?;
        on_mounted();
        let (daemon, listener) = (Arc::clone(self), Arc::new(listener));
        let listening = Arc::clone(&listener);
        let control = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || control::serve(&daemon, &listening))
            .map_err(Error::Thread)?;
        tracing::info!(mount = %self.config.mount.display(), "mounted");
        crate::supervisor::ready();
        self.tick_until_stopped();
        let is_stuck = self.membership.is_stuck.load(Ordering::Acquire);
        if self.membership.is_evicted() || is_stuck {
            // Nothing of this life may be written or answered any more.
            self.fail_parked();
            if !is_stuck {
                self.drop_kernel_caches();
            }
            // A notification that waits for a page would keep the process from ending.
            if let Err(error) = session.connection().abort() {
                tracing::error!(%error, "the mount cannot be aborted");
            }
            // Who asks a daemon to end means the next life, too.
            if crate::interrupt::is_asked() {
                return self.loss(false, self.said_losses()).map_or(Ok(()), Err);
            }
            return Err(membership::start_anew());
        }
        self.fail_parked();
        self.connection.store(0, Ordering::Relaxed);
        let patience = std::time::Duration::from_nanos(STOP_LEASES * self.config.lease.0);
        let begin = std::time::Instant::now();
        let (until, said) = (begin + patience, self.said_losses());
        self.begin_farewell();
        self.write_all_back(until.min(begin + UNMOUNT_PATIENCE));
        // From here on nobody can write, through whichever mount.
        drop(session);
        let until = until.max(std::time::Instant::now() + UNMOUNT_PATIENCE);
        let is_written = self.write_all_back(until);
        self.await_farewell(until);
        // With what the others have brought.
        let lost = self.loss(is_written, said);
        // What a disk or an owner has refused is lost; all else is as durable as if nothing had been.
        if matches!(lost, None | Some(Error::Refused { .. })) {
            self.checkpoint_before_end();
            self.close_journal();
        }
        self.leave_cluster();
        self.is_deaf.store(true, Ordering::SeqCst);
        control::end_listening(&listener);
        let _ = control.join();
        tracing::info!("stopped");
        lost.map_or(Ok(()), Err)
    }

    fn mount(&self) -> Result<Session, Error> {
        let config = SessionConfig {
            transport: match self.config.transport {
                Transport::Device => TransportKind::Device,
                Transport::Ring => TransportKind::Ring,
            },
            thread_count: self.config.fuse_thread_count,
            replaces: self.config.replaces.clone(),
            mount_flags: self.config.mount_flags,
            source: self.config.source.clone(),
            async_direct_io: self.config.async_direct_io,
            ..SessionConfig::new(&self.config.mount)
        };
        let session = Session::mount(config, self.pool.clone())?;
        let _ = self.replier.set(Arc::clone(session.replier()));
        let _ = self.notifier.set(Arc::clone(session.notifier()));
        self.connection
            .store(u64::from(session.connection().number()), Ordering::Relaxed);
        self.suit(&session);
        Ok(session)
    }

    /// What former lives of this node held is free: the disks' locks say that they have ended.
    fn end_lives_of_this_node(self: &Arc<Self>) {
        let mut former: BTreeSet<NodeLife> = BTreeSet::new();
        for slice in self.shards.iter().flatten() {
            former.extend(lock(slice).shard.lives());
        }
        {
            let lives = lock(&self.log).space.lives();
            former.extend(
                lives
                    .granted
                    .iter()
                    .chain(&lives.quarantined)
                    .map(|(life, _)| *life),
            );
        }
        let mut items = VecDeque::new();
        for life in former {
            if life.node == self.me.node && life != self.me {
                self.life_ended(life, true, &mut items);
            }
        }
        self.run(items);
        self.ask_fences();
    }

    fn begin_serving(self: &Arc<Self>) {
        let held = {
            let mut held = lock(&self.held_work);
            self.is_serving.store(true, Ordering::Release);
            std::mem::take(&mut *held)
        };
        self.offer_clearing();
        let mut items: VecDeque<Item> = held.into_iter().map(Item::Owner).collect();
        self.learn_regions(&mut items);
        self.run(items);
    }

    /// What only time brings on, until the daemon is stopped.
    fn tick_until_stopped(self: &Arc<Self>) {
        let mut tick = 0u64;
        while !self.stop.wait_tick() {
            tick += 1;
            self.look_at_mount();
            self.tick_membership();
            self.look_at_gauges(tick);
            self.look_at_slow(tick);
            self.io.log_left_out();
            self.look_at_losses(tick);
            let mut items = VecDeque::new();
            for slice in 0..SLICE_COUNT {
                items.push_back(Item::Client(slice, Input::Tick));
            }
            self.tick_owners(tick, &mut items);
            self.top_up(&mut items);
            self.start_destage(&mut items);
            self.run(items);
            self.tick_checkpoints();
            self.snapshot_if_due();
            self.end_slow_sums();
            if tick.is_multiple_of(REPEAT_TICKS) {
                self.repeat_stale();
                self.tick_farewell();
            }
            if tick.is_multiple_of(FLUSH_TICKS) {
                self.kick_journal();
                self.resend_to_servers();
            }
            self.relieve_if_short();
        }
    }

    fn tick_owners(&self, tick: u64, items: &mut VecDeque<Item>) {
        let (env, mut out) = (self.owner_env(), Vec::new());
        let repeats = tick.is_multiple_of(TRANSACTION_TICKS) && !self.must_park();
        for slice in self.shards.iter().flatten() {
            let mut slice = lock(slice);
            if !slice.is_quiet() {
                slice.on_tick(&env, &mut out);
            }
            if repeats {
                slice.repeats(&mut out);
            }
        }
        items.extend(out.into_iter().map(Item::OwnerEffect));
    }

    /// What only time brings on while the daemon writes back for the last time. Without the lease this life would be
    /// declared dead, and nothing of what is left be taken from it.
    fn tick_stopping(self: &Arc<Self>, tick: u64) {
        self.renew_lease();
        self.look_at_slow(tick);
        self.io.log_left_out();
        self.look_at_losses(tick);
        self.kick_journal();
        // No pieces are moved to sectors any more: Commits do not wait for that.
        lock(&self.log).destage_state = DestageState::Stalled;
        let ticks = (0..SLICE_COUNT).map(|slice| Item::Client(slice, Input::Tick));
        let mut items: VecDeque<Item> = ticks.collect();
        self.tick_owners(tick, &mut items);
        self.top_up(&mut items);
        self.run(items);
        self.tick_checkpoints();
        self.snapshot_if_due();
        if tick.is_multiple_of(REPEAT_TICKS) {
            self.repeat_stale();
            self.tick_farewell();
        }
        if tick.is_multiple_of(FLUSH_TICKS) {
            self.resend_to_servers();
        }
        // Others' pages are stored through it.
        self.relieve_if_short();
    }

    /// Writes dirty data back and makes the journal durable; false when that is not done by `until`.
    fn write_all_back(self: &Arc<Self>, until: std::time::Instant) -> bool {
        let mut tick = 0u64;
        let mut ticked = std::time::Instant::now();
        let told_until = ticked + TELL_PATIENCE;
        for slice in 0..SLICE_COUNT {
            self.input(slice, Input::WriteBack);
        }
        self.kick_journal();
        loop {
            let seen = self.ends.count();
            let is_durable = self.is_all_durable();
            // Times of reads are nothing to lose a stop over.
            let is_telling = std::time::Instant::now() < told_until
                && self.slices.iter().any(|slice| lock(slice).is_telling());
            if is_durable && !is_telling {
                return true;
            }
            if std::time::Instant::now() > until {
                return false;
            }
            self.ends.wait(seen, TICK);
            if ticked.elapsed() >= TICK {
                ticked = std::time::Instant::now();
                tick += 1;
                self.tick_stopping(tick);
            }
        }
    }

    fn on_request(self: &Arc<Self>, request: Request) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        let index = operation_index(&request.operation);
        self.counters.operations[index].fetch_add(1, Ordering::Relaxed);
        self.count_bytes(&request.operation);
        self.readers.lookups().on_request(&request, clock::now);
        // Who waits for another's lock is not slow.
        if !matches!(request.operation, Operation::SetLock { waits: true, .. }) {
            self.latencies.begin(request.ticket, index, clock::now);
            self.slow.begin(&request, index);
        }
        self.admit(request);
        self.slow.leave();
    }

    fn admit(self: &Arc<Self>, request: Request) {
        if request.operation == Operation::StatFs {
            self.stat_fs(request.ticket);
            return;
        }
        if self.membership.is_evicted() || self.is_refused(&request.operation) {
            let response = Response::Error(Errno::EIO);
            self.answer(request.ticket, &response);
            return;
        }
        if self.must_park() {
            self.park_request(request);
            return;
        }
        self.take_request(request);
    }

    fn count_bytes(&self, operation: &Operation) {
        let (sum, size) = match operation {
            Operation::Read { length, .. } => (&self.counters.read_size, *length),
            Operation::Write { payload, .. } => (&self.counters.write_size, payload.length),
            _ => return,
        };
        sum.fetch_add(u64::from(size), Ordering::Relaxed);
    }

    fn take_request(self: &Arc<Self>, request: Request) {
        self.input(home_slice(&request.operation), Input::Request(request));
    }

    fn operation_counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = self
            .counters
            .operations
            .iter()
            .map(|c| c.load(Ordering::Relaxed));
        OPERATION_NAMES.into_iter().zip(counts)
    }

    fn owner(&self, shard: ShardId) -> NodeId {
        self.config.view.owner(shard).unwrap_or_default()
    }

    fn shard_of(&self, owner: NodeId) -> Option<ShardId> {
        let at = self.config.view.owners.iter().position(|o| *o == owner)?;
        u16::try_from(at).ok().map(ShardId)
    }

    fn draw_call(&self) -> u64 {
        self.next_call.fetch_add(1, Ordering::Relaxed) | DRIVER_CALL
    }

    fn random(&self) -> u128 {
        let mut random = lock(&self.random);
        u128::from(random.next_u64()) << 64 | u128::from(random.next_u64())
    }

    /// What is left of this node's lease. A cluster of one needs none.
    fn lease_left(&self) -> Duration {
        self.membership.lease_left()
    }

    fn is_serving(&self) -> bool {
        self.is_serving.load(Ordering::Acquire)
    }

    fn is_mounted(&self) -> bool {
        self.connection.load(Ordering::Relaxed) != 0
    }

    fn connection_number(&self) -> u64 {
        self.connection.load(Ordering::Relaxed)
    }

    /// Answers a request of the kernel, and takes its time.
    fn answer(&self, mut ticket: Ticket, response: &Response) {
        if fuse::ticket::is_inner(ticket) {
            ticket = self.end_copy(ticket);
        }
        self.latencies.end(ticket, clock::now);
        self.slow.answered(ticket);
        self.replier().reply(ticket, response);
    }

    fn replier(&self) -> &Arc<Replier> {
        self.replier.get().expect("requests come after the mount")
    }

    fn notifier(&self) -> &Arc<crate::fuse::Notifier> {
        self.notifier
            .get()
            .expect("notifications come after the mount")
    }
}
