//! Connections between nodes over TCP: frames with a header, a metadata part and a payload that goes
//! from pool frames to pool frames.
//!
//! Two nodes are joined by a **link**: one priority connection and some data connections (lanes), made
//! by the node with the lower id, all or none. The link comes up when every lane has shaken hands, and
//! goes down as a whole when any lane breaks; then it is made again, with bounded back-off.
//!
//! Invariants
//! - Frames of one lane of a link arrive in the order in which they were sent, none twice, none damaged
//!   (header and metadata part are checked; the payload when the sender asks for it). What a broken link
//!   lost is unknown: whoever sent repeats.
//! - For one peer, `on_peer_up`, any number of frames, and `on_peer_down` follow one another strictly;
//!   frames of different lanes may be handled at the same time on different loops.
//! - Nobody is heard before `begin`, so that who holds the network can answer; nobody after `stop`.
//! - Sending never blocks: queues are bounded, a full one refuses.
//! - A peer is known by address, node id and cluster id; nobody else gets beyond the handshake, for which
//!   at most `HANDSHAKE_COUNT_MAX` connections and 16 KiB each are kept.
//! - References on payload frames: `send` takes over one per frame and span from the caller and drops it
//!   when the bytes are with the kernel or lost; on an error the caller keeps them. `place` hands over one
//!   per frame and span, `on_frame` hands them back; they are dropped when the link breaks in between.
//!
//! Life of a link: dialing (or accepting) -> joining (lanes shake hands) -> up -> closing (each lane is
//! ended on its loop) -> gone.

mod connection;
mod hello;
mod input;
mod link;
mod output;
mod socket;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thiserror::Error;
use types::wire::{Flags, Header};
use types::{ClusterId, Epoch, Incarnation, NodeId, NodeLife, RequestId, Span};

use crate::loops::Loops;
use crate::pool::Pagepool;
use link::Inner;

/// Most data connections to one peer.
pub const DATA_LANE_COUNT_MAX: usize = 15;
/// Most frames that wait in one lane.
pub const QUEUE_COUNT_MAX: usize = 4096;
/// Most bytes that wait in one lane (one frame may exceed it when nothing else waits).
pub const QUEUE_SIZE_MAX: usize = 64 << 20;
/// Most connections that have not shaken hands yet.
pub const HANDSHAKE_COUNT_MAX: usize = 64;
/// Classes of kinds that counters tell apart: the upper byte of the kind, the last for all above.
pub const KIND_CLASS_COUNT: usize = 16;

/// Another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAddress {
    /// Its id.
    pub node: NodeId,
    /// Where it listens. Its connections come from this IP address too.
    pub address: SocketAddr,
}

/// What the network of a node is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// This node.
    pub node: NodeId,
    /// Its cluster.
    pub cluster: ClusterId,
    /// This life of its daemon.
    pub incarnation: Incarnation,
    /// Where to listen, also the source address of its connections. `None`: only lower ids connect out,
    /// so a node without it must have the lowest id of all its peers.
    pub listen: Option<SocketAddr>,
    /// All nodes that may connect or are to be connected to.
    pub peers: Vec<PeerAddress>,
    /// Data connections per peer, 1 to `DATA_LANE_COUNT_MAX`; the connecting node's number counts.
    pub data_lane_count: usize,
}

/// Which connection of a link a frame takes. Order is kept within a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Leases, revocations and what answers them: small, never behind data.
    Priority,
    /// The rest; equal numbers take the same connection.
    Data(u16),
}

/// A message to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// What the metadata part is; at least `wire::KIND_FIRST`.
    pub kind: u16,
    /// Properties; `PRIORITY` is set by the lane.
    pub flags: Flags,
    /// The request that this is, or answers.
    pub request: RequestId,
    /// Epoch of the view that the sender acts under.
    pub epoch: Epoch,
    /// The metadata part, at most `limits::WIRE_META_SIZE_MAX`.
    pub meta: Vec<u8>,
    /// The payload, at most `limits::WIRE_PAYLOAD_SIZE_MAX` in all; with a reference per frame and span.
    pub payload: Vec<Span>,
}

/// What the driver does with what arrives. Called on loop threads, without locks that `send` takes.
pub trait Handler: Send + Sync {
    /// Where the payload of a frame goes: spans of `header.data_length` bytes in all, with a reference
    /// per frame and span; none to have it thrown away (no memory, or the request is gone).
    fn place(&self, peer: NodeId, header: &Header, meta: &[u8]) -> Vec<Span>;
    /// A frame arrived. `payload` is what `place` gave, filled; empty if that was empty or there is none.
    fn on_frame(&self, peer: NodeId, header: &Header, meta: &[u8], payload: Vec<Span>);
    /// The peer can be reached, in this life of it.
    fn on_peer_up(&self, peer: NodeId, incarnation: Incarnation);
    /// The link broke. Frames queued, or sent and not answered, are lost or not: repeat them.
    fn on_peer_down(&self, peer: NodeId);
}

/// Why a frame was not sent; the caller has it back, with its references.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SendError {
    /// The lane's queue is full: push back.
    #[error("the queue to the node is full")]
    Full(Frame),
    /// There is no link: wait for `on_peer_up`.
    #[error("the node is not connected")]
    Down(Frame),
}

impl SendError {
    /// The frame.
    #[must_use]
    pub fn into_frame(self) -> Frame {
        match self {
            Self::Full(frame) | Self::Down(frame) => frame,
        }
    }
}

/// Why the network did not start.
#[derive(Debug, Error)]
pub enum NetError {
    /// The address is in use or not this machine's: choose another, or stop who has it.
    #[error("listening on {address}: {source}")]
    Listen {
        /// Address asked for.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Between 1 and `DATA_LANE_COUNT_MAX` data connections are possible.
    #[error("{count} data connections per peer are not between 1 and {DATA_LANE_COUNT_MAX}")]
    Lanes {
        /// Number asked for.
        count: usize,
    },
    /// Two peers with one id, or this node among its peers.
    #[error("node {node} appears twice among the nodes")]
    Twice {
        /// The node.
        node: NodeId,
    },
}

/// What the network did since it started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NetCounters {
    /// Frames sent, by class of kind (see `KIND_CLASS_COUNT`); handshakes are in class 0.
    pub sent_counts: [u64; KIND_CLASS_COUNT],
    /// Frames received, by class of kind.
    pub received_counts: [u64; KIND_CLASS_COUNT],
    /// Bytes of frames sent, headers included.
    pub sent_size: u64,
    /// Bytes of frames received, headers included.
    pub received_size: u64,
    /// Frames whose sending had to wait for the socket.
    pub blocked_count: u64,
    /// Frames refused for full queues.
    pub full_count: u64,
    /// Payloads thrown away for want of a place.
    pub dropped_count: u64,
    /// Links that came up.
    pub up_count: u64,
    /// Connections refused, and connections of ours that were refused.
    pub refused_count: u64,
}

#[derive(Debug, Default)]
struct Counters {
    sent: [AtomicU64; KIND_CLASS_COUNT],
    received: [AtomicU64; KIND_CLASS_COUNT],
    sent_size: AtomicU64,
    received_size: AtomicU64,
    blocked: AtomicU64,
    full: AtomicU64,
    dropped: AtomicU64,
    up: AtomicU64,
    refused: AtomicU64,
}

fn class(kind: u16) -> usize {
    usize::from(kind >> 8).min(KIND_CLASS_COUNT - 1)
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

/// The network of a node. Dropping it stops it.
#[derive(Debug)]
pub struct Net {
    inner: Arc<Inner>,
}

impl Net {
    /// Takes the address to listen at. The handler hears of nobody before `begin`: who answers what it hears must be able to
    /// send.
    ///
    /// # Errors
    /// The configuration makes no sense, or the address cannot be had.
    pub fn new(
        config: Config,
        loops: &Arc<Loops>,
        pool: &Arc<Pagepool>,
        handler: Arc<dyn Handler>,
    ) -> Result<Self, NetError> {
        Ok(Self {
            inner: Inner::new(config, loops, pool, handler)?,
        })
    }

    /// Accepts connections, and connects to the peers with higher ids, from now until `stop`. Twice is as good as once.
    pub fn begin(&self) {
        self.inner.begin();
    }

    /// Where it listens (the port that was chosen, if the configuration said 0).
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.inner.local_address()
    }

    /// Sends `frame` to `peer`: at once when the lane is free, else queued behind what waits. From any
    /// thread; never blocks.
    pub fn send(&self, peer: NodeId, lane: Lane, frame: Frame) -> Result<(), SendError> {
        self.inner.send((peer, None), lane, frame)
    }

    /// As `send`, to this life of a peer or to nobody: not to the process that came after it.
    pub fn send_to_life(&self, peer: NodeLife, lane: Lane, frame: Frame) -> Result<(), SendError> {
        let to = (peer.node, Some(peer.incarnation));
        self.inner.send(to, lane, frame)
    }

    /// The life in which the peer is connected now.
    #[must_use]
    pub fn peer_incarnation(&self, peer: NodeId) -> Option<Incarnation> {
        self.inner.peer_incarnation(peer)
    }

    /// Breaks the link to `peer`, if there is one; it is made again. For who sees that a peer's life is
    /// over before TCP does.
    pub fn reset(&self, peer: NodeId) {
        self.inner.reset(peer);
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> NetCounters {
        let counters = &self.inner.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NetCounters {
            sent_counts: std::array::from_fn(|class| get(&counters.sent[class])),
            received_counts: std::array::from_fn(|class| get(&counters.received[class])),
            sent_size: get(&counters.sent_size),
            received_size: get(&counters.received_size),
            blocked_count: get(&counters.blocked),
            full_count: get(&counters.full),
            dropped_count: get(&counters.dropped),
            up_count: get(&counters.up),
            refused_count: get(&counters.refused),
        }
    }

    /// Ends all links (the handler hears `on_peer_down`), closes everything and waits for it. Not to be
    /// called on a loop. The loops must still run.
    pub fn stop(&self) {
        self.inner.stop();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.inner.stop();
    }
}

/// Addresses are compared without the IPv6 dress of IPv4 ones.
fn plain_ip(address: IpAddr) -> IpAddr {
    address.to_canonical()
}
