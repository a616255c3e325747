//! Links between nodes: who connects, when a link is up, and what happens when it breaks.
//!
//! Invariants
//! - A peer has at most one link. A newer one (a higher attempt, or another life of the peer) waits until
//!   every lane of the old one has ended.
//! - `on_peer_up` is called once per link, after its last lane shook hands and before any of its lanes is
//!   read; `on_peer_down` once, if it was up, after all lanes have ended. So calls for a peer never cross.
//! - `held` counts the lanes that have not ended, and the call of `on_peer_up` while it lasts.
//! - No lock is held while the handler is called, but the input of the one connection that is read.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};

use types::wire::{Flags, Header, KIND_FIRST, incarnation_low};
use types::{Crc32c, Duration, Incarnation, NodeId, limits};

use super::connection::Connection;
use super::hello::{self, Hello, Refusal};
use super::output::{Outgoing, Refused};
use super::{
    Config, Counters, DATA_LANE_COUNT_MAX, Frame, HANDSHAKE_COUNT_MAX, Handler, Lane, NetError,
    PeerAddress, SendError, add, plain_ip, socket,
};
use crate::clock;
use crate::loops::{self, Loops, Source, lock};
use crate::pool::Pagepool;

/// Wait before the first new attempt; doubled with each that fails.
const BACK_OFF_MS_MIN: u64 = 10;
/// Longest wait between attempts.
const BACK_OFF_MS_MAX: u64 = 1000;
/// Connections that may wait for the end of an older link.
const WAITING_COUNT_MAX: usize = 2 * (DATA_LANE_COUNT_MAX + 1);

/// A node that may be linked to.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    address: SocketAddr,
    state: Mutex<PeerState>,
}

#[derive(Debug, Default)]
struct PeerState {
    link: Option<Arc<Link>>,
    /// The link is up: frames may be sent.
    is_open: bool,
    /// Lanes of a newer link.
    waiting: Vec<(Arc<Connection>, Hello)>,
    attempt: u64,
    failure_count: u32,
}

#[derive(Debug, Default)]
struct LinkState {
    ready: usize,
    held: usize,
    was_up: bool,
    is_closing: bool,
}

/// All connections of one attempt.
pub(super) struct Link {
    net: Weak<Inner>,
    peer: Arc<Peer>,
    attempt: u64,
    incarnation: OnceLock<Incarnation>,
    lane_count: usize,
    /// Emptied when the link is gone, because each lane holds the link.
    lanes: Mutex<Vec<Option<Arc<Connection>>>>,
    is_readable: AtomicBool,
    state: Mutex<LinkState>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "link to {} ({})", self.peer.node, self.attempt)
    }
}

impl Link {
    fn new(net: &Arc<Inner>, peer: &Arc<Peer>, attempt: u64, lane_count: usize) -> Arc<Self> {
        Arc::new(Self {
            net: Arc::downgrade(net),
            peer: Arc::clone(peer),
            attempt,
            incarnation: OnceLock::new(),
            lane_count,
            lanes: Mutex::new(vec![None; lane_count]),
            is_readable: AtomicBool::new(false),
            state: Mutex::default(),
        })
    }

    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(super) fn attempt(&self) -> u64 {
        self.attempt
    }

    pub(super) fn lane_count(&self) -> usize {
        self.lane_count
    }

    fn lanes(&self) -> Vec<Arc<Connection>> {
        lock(&self.lanes).iter().flatten().cloned().collect()
    }

    pub(super) fn is_readable(&self) -> bool {
        self.is_readable.load(Ordering::SeqCst)
    }

    pub(super) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation.get().copied()
    }

    /// All lanes lead to the same life of the peer; the first one says which.
    pub(super) fn is_life(&self, incarnation: Incarnation) -> bool {
        *self.incarnation.get_or_init(|| incarnation) == incarnation
    }

    /// A lane shook hands; the last one brings the link up.
    pub(super) fn on_lane_ready(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.ready += 1;
        assert!(state.ready <= self.lane_count, "a lane is ready once");
        if state.is_closing || state.ready < self.lane_count {
            return;
        }
        state.was_up = true;
        state.held += 1;
        drop(state);
        let net = self.net.upgrade().expect("connections hold the network");
        let mut peer = lock(&self.peer.state);
        peer.failure_count = 0;
        peer.is_open = true;
        drop(peer);
        add(&net.counters.up, 1);
        let incarnation = self.incarnation().expect("ready lanes said it");
        tracing::info!(peer = %self.peer.node, %incarnation, "connected");
        net.handler.on_peer_up(self.peer.node, incarnation);
        self.is_readable.store(true, Ordering::SeqCst);
        for lane in self.lanes() {
            lane.resume();
        }
        self.leave();
    }

    /// A lane broke: end all of them.
    pub(super) fn fail(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_closing, true) {
            return;
        }
        drop(state);
        let mut peer = lock(&self.peer.state);
        if peer
            .link
            .as_ref()
            .is_some_and(|link| Arc::ptr_eq(link, self))
        {
            peer.is_open = false;
        }
        drop(peer);
        for lane in self.lanes() {
            lane.fail("another lane of the link ended");
        }
    }

    /// A lane has ended, or the call of `on_peer_up` has.
    pub(super) fn leave(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.held -= 1;
        let (is_gone, was_up) = (state.held == 0, state.was_up);
        assert!(
            !is_gone || state.is_closing,
            "lanes end when the link is closing"
        );
        drop(state);
        if !is_gone {
            return;
        }
        let net = self.net.upgrade().expect("connections hold the network");
        if was_up {
            tracing::info!(peer = %self.peer.node, "disconnected");
            net.handler.on_peer_down(self.peer.node);
        }
        net.on_link_gone(self, was_up);
    }
}

/// The listening socket; counts among the open connections, so that `stop` waits for its end.
struct Listener {
    net: Arc<Inner>,
    listener: Option<TcpListener>,
    /// It was said that a connection could not be accepted.
    was_refused: AtomicBool,
}

impl Source for Listener {
    fn on_ready(&self, _events: u32) {
        let listener = self.listener.as_ref().expect("open until it is dropped");
        loop {
            match listener.accept() {
                Ok((stream, remote)) => self.net.on_accepted(stream, plain_ip(remote.ip())),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Who wanted in has given up meanwhile.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // No descriptor for it, as a rule: the next connection tells again.
                Err(error) => {
                    if !self.was_refused.swap(true, Ordering::Relaxed) {
                        tracing::warn!(%error, "another node cannot be let in; said once");
                    }
                    return;
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listener = None;
        self.net.on_connection_ended();
    }
}

/// The network: what `Net` holds.
pub(super) struct Inner {
    pub(super) config: Config,
    pub(super) loops: Arc<Loops>,
    pub(super) pool: Arc<Pagepool>,
    pub(super) handler: Arc<dyn Handler>,
    pub(super) counters: Counters,
    /// Connections that have not shaken hands.
    pub(super) strangers: AtomicUsize,
    /// By node id.
    peers: Vec<Arc<Peer>>,
    local_address: Option<SocketAddr>,
    /// Until `begin`.
    listener: Mutex<Option<TcpListener>>,
    listener_poll: Mutex<Option<loops::PollId>>,
    has_begun: AtomicBool,
    /// Accepted connections, so that `stop` finds those that belong to no link.
    accepted: Mutex<Vec<Weak<Connection>>>,
    is_stopped: AtomicBool,
    /// Connections that have not ended.
    open_count: Mutex<usize>,
    ended: Condvar,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Net")
            .field("node", &self.config.node)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(super) fn new(
        config: Config,
        loops: &Arc<Loops>,
        pool: &Arc<Pagepool>,
        handler: Arc<dyn Handler>,
    ) -> Result<Arc<Self>, NetError> {
        let count = config.data_lane_count;
        if count == 0 || count > DATA_LANE_COUNT_MAX {
            return Err(NetError::Lanes { count });
        }
        let mut peers: Vec<PeerAddress> = config.peers.clone();
        peers.sort_by_key(|peer| peer.node);
        let mut nodes: Vec<NodeId> = peers.iter().map(|peer| peer.node).collect();
        nodes.push(config.node);
        nodes.sort_unstable();
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(NetError::Twice { node: pair[0] });
        }
        let listener = config.listen.map(|address| {
            let failed = |source| NetError::Listen { address, source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let local = listener.local_addr().map_err(failed)?;
            Ok((listener, local))
        });
        let (listener, local_address) = listener.transpose()?.unzip();
        Ok(Arc::new(Self {
            config,
            loops: Arc::clone(loops),
            pool: Arc::clone(pool),
            handler,
            counters: Counters::default(),
            strangers: AtomicUsize::new(0),
            peers: peers
                .into_iter()
                .map(|peer| Arc::new(Peer::new(peer)))
                .collect(),
            local_address,
            listener: Mutex::new(listener),
            listener_poll: Mutex::new(None),
            has_begun: AtomicBool::new(false),
            accepted: Mutex::default(),
            is_stopped: AtomicBool::new(false),
            open_count: Mutex::new(0),
            ended: Condvar::new(),
        }))
    }

    pub(super) fn begin(self: &Arc<Self>) {
        if self.has_begun.swap(true, Ordering::SeqCst) {
            return;
        }
        let this = Arc::clone(self);
        let begin = move || this.begin_here();
        self.loops.post(0, Box::new(begin));
    }

    /// On the first loop.
    fn begin_here(self: &Arc<Self>) {
        if self.is_stopped() {
            return;
        }
        if let Some(listener) = lock(&self.listener).take() {
            self.on_connection_made();
            let fd = listener.as_raw_fd();
            let source = Arc::new(Listener {
                net: Arc::clone(self),
                listener: Some(listener),
                was_refused: AtomicBool::new(false),
            });
            let events = u32::from(libc::POLLIN.cast_unsigned());
            let poll = loops::poll_add(fd, events, source);
            *lock(&self.listener_poll) = Some(poll);
        }
        for peer in &self.peers {
            self.dial(peer);
        }
    }

    pub(super) fn local_address(&self) -> Option<SocketAddr> {
        self.local_address
    }

    /// The loop that reads a lane.
    pub(super) fn lane_loop(&self, peer: NodeId, lane: usize) -> usize {
        (usize::from(peer.0) + lane) % self.loops.count()
    }

    fn peer(&self, node: NodeId) -> Option<&Arc<Peer>> {
        let index = self.peers.binary_search_by_key(&node, |peer| peer.node);
        index.ok().map(|index| &self.peers[index])
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    pub(super) fn send(
        &self,
        (peer, life): (NodeId, Option<Incarnation>),
        lane: Lane,
        frame: Frame,
    ) -> Result<(), SendError> {
        let connection = self.peer(peer).and_then(|peer| peer.connection(lane, life));
        let Some(connection) = connection else {
            return Err(SendError::Down(frame));
        };
        let Frame {
            kind,
            request,
            epoch,
            ..
        } = frame;
        let flags = match lane {
            Lane::Priority => frame.flags.with(Flags::PRIORITY),
            Lane::Data(_) => frame.flags,
        };
        let header = self.header(&frame, flags).encode();
        let outgoing = Outgoing {
            header,
            meta: frame.meta,
            payload: frame.payload,
        };
        let back = |outgoing: Outgoing| Frame {
            kind,
            flags: frame.flags,
            request,
            epoch,
            meta: outgoing.meta,
            payload: outgoing.payload,
        };
        connection
            .send(kind, outgoing)
            .map_err(|refused| match refused {
                Refused::Full(outgoing) => {
                    add(&self.counters.full, 1);
                    SendError::Full(back(outgoing))
                }
                Refused::Closed(outgoing) => SendError::Down(back(outgoing)),
            })
    }

    fn header(&self, frame: &Frame, flags: Flags) -> Header {
        assert!(frame.kind >= KIND_FIRST, "lower kinds are the transport's");
        assert!(frame.meta.len() <= limits::WIRE_META_SIZE_MAX);
        let data_length: u64 = frame.payload.iter().map(|s| u64::from(s.length)).sum();
        assert!(data_length <= limits::WIRE_PAYLOAD_SIZE_MAX as u64);
        let mut crc = Crc32c::new();
        crc.update(&frame.meta);
        if flags.has(Flags::DATA_COVERED) {
            for span in &frame.payload {
                // SAFETY: the caller holds the frames, which are frozen while they are sent.
                crc.update(unsafe { self.pool.slice(*span) });
            }
        }
        Header {
            kind: frame.kind,
            flags,
            request: frame.request,
            cluster: self.config.cluster,
            epoch: frame.epoch,
            incarnation: incarnation_low(self.config.incarnation),
            meta_length: u32::try_from(frame.meta.len()).expect("within the limit"),
            data_length: u32::try_from(data_length).expect("within the limit"),
            data_crc: crc.finish(),
        }
    }

    pub(super) fn peer_incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let state = lock(&self.peer(node)?.state);
        state.link.as_ref().filter(|_| state.is_open)?.incarnation()
    }

    pub(super) fn reset(&self, node: NodeId) {
        let link = self
            .peer(node)
            .and_then(|peer| lock(&peer.state).link.clone());
        if let Some(link) = link {
            link.fail();
        }
    }

    /// Begins a link to `peer`, if it is for us to do so and there is none.
    fn dial(self: &Arc<Self>, peer: &Arc<Peer>) {
        if peer.node < self.config.node {
            return;
        }
        let mut state = lock(&peer.state);
        if state.link.is_some() || self.is_stopped() {
            return;
        }
        state.attempt += 1;
        let lane_count = self.config.data_lane_count + 1;
        let link = Link::new(self, peer, state.attempt, lane_count);
        let mut made = Vec::new();
        for lane in 0..lane_count {
            match Connection::connecting(self, &link, lane, peer.address) {
                Ok(connection) => made.push(connection),
                // No descriptor, or no route: those made are failed below.
                Err(error) => {
                    tracing::debug!(peer = %peer.node, %error, "cannot connect");
                    break;
                }
            }
        }
        if made.is_empty() {
            state.failure_count += 1;
            drop(state);
            return self.dial_later(peer);
        }
        lock(&link.state).held = made.len();
        for (place, connection) in lock(&link.lanes).iter_mut().zip(&made) {
            *place = Some(Arc::clone(connection));
        }
        state.link = Some(Arc::clone(&link));
        drop(state);
        for connection in &made {
            connection.begin();
        }
        if made.len() < lane_count {
            link.fail();
        }
    }

    fn dial_later(self: &Arc<Self>, peer: &Arc<Peer>) {
        let failure_count = lock(&peer.state).failure_count;
        let ms = (BACK_OFF_MS_MIN << failure_count.min(16)).min(BACK_OFF_MS_MAX);
        let (this, peer) = (Arc::downgrade(self), Arc::clone(peer));
        let at = clock::now() + Duration::from_millis(ms);
        let dial = move || {
            if let Some(this) = this.upgrade() {
                this.dial(&peer);
            }
        };
        self.loops.post_at(0, at, Box::new(dial));
    }

    fn on_accepted(self: &Arc<Self>, stream: std::net::TcpStream, remote: IpAddr) {
        if self.is_stopped() || socket::tune(&stream).is_err() {
            return;
        }
        let is_known = self
            .peers
            .iter()
            .any(|p| plain_ip(p.address.ip()) == remote);
        // Strangers cannot take the places of nodes.
        let count_max = if is_known {
            HANDSHAKE_COUNT_MAX
        } else {
            HANDSHAKE_COUNT_MAX / 4
        };
        if self.strangers.load(Ordering::SeqCst) >= count_max {
            add(&self.counters.refused, 1);
            return;
        }
        let connection = Connection::accepted(self, stream, remote);
        let mut accepted = lock(&self.accepted);
        accepted.retain(|other| other.strong_count() > 0);
        accepted.push(Arc::downgrade(&connection));
        drop(accepted);
        if !is_known {
            connection.refuse(Refusal::Address);
        }
        connection.begin();
        if self.is_stopped() {
            connection.fail("stopped");
        }
    }

    /// May the caller at `remote` be who it says it is?
    pub(super) fn check_caller(&self, remote: IpAddr, hello: &Hello) -> Result<(), Refusal> {
        let node = hello.node;
        let is_at = |peer: &Arc<Peer>| plain_ip(peer.address.ip()) == remote;
        // Nodes with higher ids wait to be called.
        if node > self.config.node || !self.peer(node).is_some_and(is_at) {
            return Err(Refusal::Node { node });
        }
        hello::check(&self.config, hello)
    }

    /// An accepted connection said who it is, and was checked: make it a lane.
    pub(super) fn join(self: &Arc<Self>, connection: &Arc<Connection>, hello: &Hello) {
        let peer = self.peer(hello.node).expect("checked");
        let mut state = lock(&peer.state);
        if connection.is_failed() {
            return;
        }
        if self.is_stopped() {
            drop(state);
            return connection.fail("stopped");
        }
        let lane = usize::from(hello.lane);
        let Some(link) = state.link.clone() else {
            let link = Link::new(self, peer, hello.attempt, usize::from(hello.lane_count));
            let is_life = link.is_life(hello.incarnation);
            assert!(is_life, "the first lane says which");
            if link.add(connection, lane) {
                state.link = Some(Arc::clone(&link));
                drop(state);
                connection.join(&link, hello);
            }
            return;
        };
        let is_same_life = link.is_life(hello.incarnation);
        if is_same_life && hello.attempt == link.attempt {
            let is_fit = usize::from(hello.lane_count) == link.lane_count()
                && lock(&link.lanes)[lane].is_none()
                && !lock(&link.state).is_closing;
            if !is_fit {
                drop(state);
                return connection.refuse(Refusal::Stale);
            }
            let is_added = link.add(connection, lane);
            drop(state);
            if is_added {
                connection.join(&link, hello);
            }
            return;
        }
        if (is_same_life && hello.attempt < link.attempt)
            || state.waiting.len() >= WAITING_COUNT_MAX
        {
            drop(state);
            return connection.refuse(Refusal::Stale);
        }
        // The peer has begun anew, so that the old link is dead even if TCP has not noticed.
        state.waiting.push((Arc::clone(connection), *hello));
        drop(state);
        link.fail();
    }

    fn on_link_gone(self: &Arc<Self>, link: &Arc<Link>, was_up: bool) {
        let peer = &link.peer;
        let mut state = lock(&peer.state);
        assert!(state.link.as_ref().is_some_and(|l| Arc::ptr_eq(l, link)));
        state.link = None;
        // Dropped last, without locks.
        let _lanes = std::mem::take(&mut *lock(&link.lanes));
        if !was_up {
            state.failure_count += 1;
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for (connection, hello) in waiting {
            self.join(&connection, &hello);
        }
        if peer.node > self.config.node && !self.is_stopped() {
            self.dial_later(peer);
        }
    }

    pub(super) fn on_connection_made(&self) {
        *lock(&self.open_count) += 1;
    }

    pub(super) fn on_connection_ended(&self) {
        let mut count = lock(&self.open_count);
        *count -= 1;
        if *count == 0 {
            self.ended.notify_all();
        }
    }

    pub(super) fn stop(self: &Arc<Self>) {
        if self.is_stopped.swap(true, Ordering::SeqCst) {
            return;
        }
        // The first loop makes and accepts connections: behind this message it makes none.
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let this = Arc::clone(self);
        let close = move || {
            if let Some(poll) = lock(&this.listener_poll).take() {
                loops::poll_remove(poll);
            }
            let _ = sender.send(());
        };
        self.loops.post(0, Box::new(close));
        // An error says that the loops have ended: nothing lives on them any more.
        if receiver.recv().is_err() {
            return;
        }
        for peer in &self.peers {
            let mut state = lock(&peer.state);
            let (link, waiting) = (state.link.clone(), std::mem::take(&mut state.waiting));
            drop(state);
            if let Some(link) = link {
                link.fail();
            }
            for (connection, _) in waiting {
                connection.fail("stopped");
            }
        }
        let accepted = std::mem::take(&mut *lock(&self.accepted));
        for connection in accepted.iter().filter_map(Weak::upgrade) {
            connection.fail("stopped");
        }
        let mut count = lock(&self.open_count);
        while *count > 0 {
            count = self
                .ended
                .wait(count)
                .expect("no code panics under this lock");
        }
    }
}

impl Peer {
    fn new(peer: PeerAddress) -> Self {
        Self {
            node: peer.node,
            address: peer.address,
            state: Mutex::default(),
        }
    }

    /// The lane of the link that is up, if that leads to `life`.
    fn connection(&self, lane: Lane, life: Option<Incarnation>) -> Option<Arc<Connection>> {
        let state = lock(&self.state);
        let link = state.link.as_ref().filter(|_| state.is_open)?;
        if life.is_some() && link.incarnation() != life {
            return None;
        }
        let index = match lane {
            Lane::Priority => 0,
            Lane::Data(number) => 1 + usize::from(number) % (link.lane_count - 1),
        };
        lock(&link.lanes)[index].clone()
    }
}

impl Link {
    /// A new lane, under the lock of the peer's state; false when the connection has ended already.
    fn add(self: &Arc<Self>, connection: &Arc<Connection>, lane: usize) -> bool {
        // Counted first: the connection may end, and leave, as soon as it knows the link.
        lock(&self.state).held += 1;
        if !connection.set_link(self, lane) {
            lock(&self.state).held -= 1;
            return false;
        }
        let old = lock(&self.lanes)[lane].replace(Arc::clone(connection));
        assert!(old.is_none(), "the lane is free");
        true
    }
}
