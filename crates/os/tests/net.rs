//! Two networks in one process over loopback, and a hand-made peer that breaks every rule.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test, whose hand-made peer has a socket of its own"
)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use client::pool::Pool;
use os::loops::{self, Loops};
use os::net::{
    Config, Frame, Handler, Lane, Net, NetError, PeerAddress, QUEUE_COUNT_MAX, SendError,
};
use os::pool::Pagepool;
use stdx::Prng;
use types::codec::Encode;
use types::wire::{Flags, HEADER_SIZE, Header, KIND_HELLO, KIND_REFUSE};
use types::{
    ClusterId, Epoch, FrameRef, Incarnation, Instant, NodeId, NodeLife, RequestId, Span, crc32c,
};

const LIMIT: Duration = Duration::from_secs(30);
const CLUSTER: ClusterId = ClusterId(0xc1);
const KIND: u16 = 0x0234;

struct NoTimer;
impl loops::Handler for NoTimer {
    fn on_timer(&self, _now: Instant) {}
}

#[derive(Debug, PartialEq)]
enum Event {
    Up(NodeId, Incarnation),
    Down(NodeId),
    Frame {
        from: NodeId,
        header: Header,
        meta: Vec<u8>,
        payload: Vec<u8>,
    },
}

/// Tells the test what happens; may be told to hold frames back, or to have no place for payload.
struct Recorder {
    events: Mutex<Sender<Event>>,
    pool: Arc<Pagepool>,
    gate: Mutex<bool>,
    opened: Condvar,
    has_place: Mutex<bool>,
}

impl Handler for Recorder {
    fn place(&self, _peer: NodeId, header: &Header, _meta: &[u8]) -> Vec<Span> {
        if !*self.has_place.lock().unwrap() {
            return Vec::new();
        }
        // Odd spans, so that frames and pieces do not line up.
        let mut left = header.data_length;
        let mut spans = Vec::new();
        while left > 0 {
            let offset = left % 7 * 100;
            let length = left.min(4096 - offset);
            spans.push(Span {
                frame: self.pool.alloc().unwrap(),
                offset,
                length,
            });
            left -= length;
        }
        spans
    }
    fn on_frame(&self, from: NodeId, header: &Header, meta: &[u8], payload: Vec<Span>) {
        let mut gate = self.gate.lock().unwrap();
        while !*gate {
            gate = self.opened.wait(gate).unwrap();
        }
        drop(gate);
        let mut bytes = Vec::new();
        for span in payload {
            bytes.extend_from_slice(&self.pool.load(span));
            self.pool.release_span(span);
        }
        self.tell(Event::Frame {
            from,
            header: *header,
            meta: meta.to_vec(),
            payload: bytes,
        });
    }
    fn on_peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        self.tell(Event::Up(peer, incarnation));
    }
    fn on_peer_down(&self, peer: NodeId) {
        self.tell(Event::Down(peer));
    }
}

impl Recorder {
    fn tell(&self, event: Event) {
        // The test may have ended.
        let _ = self.events.lock().unwrap().send(event);
    }
    fn open_gate(&self, is_open: bool) {
        *self.gate.lock().unwrap() = is_open;
        self.opened.notify_all();
    }
}

struct Node {
    net: Arc<Net>,
    loops: Arc<Loops>,
    pool: Arc<Pagepool>,
    recorder: Arc<Recorder>,
    events: Receiver<Event>,
}

impl Node {
    fn start(config: Config) -> Self {
        let node = Self::new(config);
        node.net.begin();
        node
    }

    /// One that has not begun.
    fn new(config: Config) -> Self {
        let loops = Loops::start(2, Arc::new(NoTimer)).unwrap();
        let pool = Pagepool::new(64 << 20).unwrap();
        let (sender, events) = channel();
        let recorder = Arc::new(Recorder {
            events: Mutex::new(sender),
            pool: Arc::clone(&pool),
            gate: Mutex::new(true),
            opened: Condvar::new(),
            has_place: Mutex::new(true),
        });
        let net = Net::new(config, &loops, &pool, recorder.clone()).unwrap();
        Self {
            net: Arc::new(net),
            loops,
            pool,
            recorder,
            events,
        }
    }

    fn event(&self) -> Event {
        self.events.recv_timeout(LIMIT).unwrap()
    }

    fn frame(&self) -> (Header, Vec<u8>, Vec<u8>) {
        match self.event() {
            Event::Frame {
                header,
                meta,
                payload,
                ..
            } => (header, meta, payload),
            other => panic!("{other:?} instead of a frame"),
        }
    }

    /// Ends it and checks that nothing is left behind.
    fn stop(self) {
        self.net.stop();
        self.loops.stop();
        let (count, free) = self.pool.frame_counts();
        assert_eq!(count, free, "every reference came back");
    }
}

fn config(node: u16, listen: Option<SocketAddr>, peers: &[(u16, SocketAddr)]) -> Config {
    Config {
        node: NodeId(node),
        cluster: CLUSTER,
        incarnation: Incarnation(u128::from(node) << 64 | 77),
        listen,
        peers: peers
            .iter()
            .map(|(node, address)| PeerAddress {
                node: NodeId(*node),
                address: *address,
            })
            .collect(),
        data_lane_count: 2,
    }
}

fn any(ip: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, ip], 0))
}

/// Node 2 listens at 127.0.0.2, node 1 connects from 127.0.0.1.
fn pair() -> (Node, Node) {
    let second = Node::start(config(2, Some(any(2)), &[(1, any(1))]));
    let address = second.net.local_address().unwrap();
    let first = Node::start(config(1, Some(any(1)), &[(2, address)]));
    assert_eq!(
        first.event(),
        Event::Up(NodeId(2), Incarnation(2 << 64 | 77))
    );
    assert_eq!(
        second.event(),
        Event::Up(NodeId(1), Incarnation(1 << 64 | 77))
    );
    (first, second)
}

fn frame(request: u64, meta: &[u8], payload: Vec<Span>) -> Frame {
    Frame {
        kind: KIND,
        flags: Flags::NONE,
        request: RequestId(request),
        epoch: Epoch(5),
        meta: meta.to_vec(),
        payload,
    }
}

/// Payload of `size` random bytes in frames of their own.
fn payload(pool: &Pagepool, prng: &mut Prng, size: usize) -> (Vec<Span>, Vec<u8>) {
    let mut bytes = vec![0; size];
    prng.fill(&mut bytes);
    let spans = bytes
        .chunks(4096)
        .map(|part| {
            let frame = pool.alloc().unwrap();
            let span = Span::whole(frame).part(0, u32::try_from(part.len()).unwrap());
            pool.store(span, part);
            span
        })
        .collect();
    (spans, bytes)
}

#[test]
fn frames_of_all_sizes_arrive_whole_on_every_lane_in_both_directions() {
    let (first, second) = pair();
    let mut prng = Prng::new(3);
    let sizes = [
        0,
        1,
        63,
        4096,
        4097,
        16_384,
        70_000,
        1 << 20,
        (4 << 20) + 13,
    ];
    for round in 0..60_u64 {
        let meta_size = *prng.pick(&[0, 1, 100, 5000, 64 << 10, 3 << 20]).unwrap();
        let data_size = *prng.pick(&sizes).unwrap();
        let (from, to, target) = if round % 2 == 0 {
            (&first, &second, NodeId(2))
        } else {
            (&second, &first, NodeId(1))
        };
        let mut meta = vec![0; meta_size];
        prng.fill(&mut meta);
        let (spans, bytes) = payload(&from.pool, &mut prng, data_size);
        let mut sent = frame(round, &meta, spans);
        if prng.chance(1, 2) {
            sent.flags = Flags::DATA_COVERED.with(Flags::REPLY);
        }
        let flags = sent.flags;
        let lane = if round % 3 == 0 {
            Lane::Priority
        } else {
            Lane::Data(u16::try_from(round).unwrap())
        };
        from.net.send(target, lane, sent).unwrap();
        let (header, got_meta, got) = to.frame();
        assert_eq!(
            (header.kind, header.request.0, header.epoch),
            (KIND, round, Epoch(5))
        );
        assert_eq!(header.cluster, CLUSTER);
        assert!(header.flags.has(flags));
        assert_eq!(header.flags.has(Flags::PRIORITY), lane == Lane::Priority);
        assert!(got_meta == meta && got == bytes, "round {round}");
    }
    let (sent, received) = (first.net.counters(), second.net.counters());
    assert_eq!(sent.sent_counts[2], 30);
    assert_eq!(received.received_counts[2], 30);
    assert_eq!(sent.sent_size, received.received_size);
    assert_eq!((sent.up_count, sent.refused_count), (1, 0));
    first.stop();
    second.stop();
}

/// IPv6, from a node that does not listen and from one that binds its source address.
#[test]
fn ipv6_does_as_well() {
    let any = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0));
    if std::net::TcpListener::bind(any).is_err() {
        return;
    }
    let second = Node::start(config(2, Some(any), &[(1, any)]));
    let address = second.net.local_address().unwrap();
    for listen in [None, Some(any)] {
        let first = Node::start(config(1, listen, &[(2, address)]));
        assert!(matches!(first.event(), Event::Up(NodeId(2), _)));
        assert!(matches!(second.event(), Event::Up(NodeId(1), _)));
        let sent = frame(1, b"six", Vec::new());
        first.net.send(NodeId(2), Lane::Priority, sent).unwrap();
        assert_eq!(second.frame().1, b"six");
        first.stop();
        assert_eq!(second.event(), Event::Down(NodeId(1)));
    }
    second.stop();
}

#[test]
fn each_lane_keeps_its_order_whoever_sends() {
    let (first, second) = pair();
    const COUNT: u64 = 3000;
    std::thread::scope(|scope| {
        for lane in 0..3_u16 {
            let (net, pool) = (Arc::clone(&first.net), Arc::clone(&first.pool));
            scope.spawn(move || {
                let mut prng = Prng::new(lane.into());
                let on = if lane == 0 {
                    Lane::Priority
                } else {
                    Lane::Data(lane)
                };
                for number in 0..COUNT {
                    let size = if prng.chance(1, 50) { 100_000 } else { 0 };
                    let (spans, _) = payload(&pool, &mut prng, size);
                    let mut next = frame(number, &lane.to_le_bytes(), spans);
                    while let Err(error) = net.send(NodeId(2), on, next) {
                        assert!(matches!(error, SendError::Full(_)));
                        next = error.into_frame();
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = BTreeMap::new();
        for _ in 0..3 * COUNT {
            let (header, meta, _) = second.frame();
            let expected = next.entry(meta).or_insert(0);
            assert_eq!(header.request.0, *expected);
            *expected += 1;
        }
        assert_eq!(next.len(), 3);
    });
    first.stop();
    second.stop();
}

#[test]
fn a_slow_receiver_pushes_back_and_loses_nothing() {
    let (first, second) = pair();
    second.recorder.open_gate(false);
    let meta = vec![7; 60_000];
    let mut count = 0_u64;
    let refused = loop {
        match first
            .net
            .send(NodeId(2), Lane::Data(0), frame(count, &meta, Vec::new()))
        {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 10 * QUEUE_COUNT_MAX as u64, "the queue is bounded");
    };
    assert!(matches!(&refused, SendError::Full(frame) if frame.meta == meta));
    // The other lanes go on: one of them on another loop of the receiver.
    first
        .net
        .send(NodeId(2), Lane::Priority, frame(1, b"now", Vec::new()))
        .unwrap();
    second.recorder.open_gate(true);
    let mut next = 0;
    for _ in 0..=count {
        let (header, got, _) = second.frame();
        if got != b"now" {
            assert_eq!(header.request.0, next);
            next += 1;
        }
    }
    assert_eq!(next, count);
    let counters = first.net.counters();
    assert!(counters.blocked_count > 0 && counters.full_count == 1);
    first.stop();
    second.stop();
}

#[test]
fn payload_without_a_place_is_skipped_and_the_next_frame_is_found() {
    let (first, second) = pair();
    let mut prng = Prng::new(8);
    for size in [1, 5000, 20_000, 3 << 20] {
        *second.recorder.has_place.lock().unwrap() = false;
        let (spans, _) = payload(&first.pool, &mut prng, size);
        first
            .net
            .send(NodeId(2), Lane::Data(0), frame(1, b"a", spans))
            .unwrap();
        let (header, meta, got) = second.frame();
        assert_eq!(
            (header.data_length as usize, &*meta, got.len()),
            (size, &b"a"[..], 0)
        );
        *second.recorder.has_place.lock().unwrap() = true;
        let (spans, bytes) = payload(&first.pool, &mut prng, size);
        first
            .net
            .send(NodeId(2), Lane::Data(0), frame(2, b"b", spans))
            .unwrap();
        assert!(second.frame().2 == bytes);
    }
    assert_eq!(second.net.counters().dropped_count, 4);
    first.stop();
    second.stop();
}

/// Links are cut at any time, by either side, under traffic: ups and downs alternate, and each link's
/// frames are the first ones that were sent on it, in order.
#[test]
fn cut_links_come_again_and_frames_never_cross_them() {
    let (first, second) = pair();
    let mut prng = Prng::new(21);
    for link in 0..40_u64 {
        for number in 0..prng.between(1, 60) {
            let size = if prng.chance(1, 4) { 300_000 } else { 10 };
            let (spans, _) = payload(&first.pool, &mut prng, size);
            let sent = frame(number, &link.to_le_bytes(), spans);
            if let Err(error) = first.net.send(NodeId(2), Lane::Data(0), sent) {
                for span in error.into_frame().payload {
                    first.pool.release_span(span);
                }
            }
        }
        if link % 2 == 0 {
            first.net.reset(NodeId(2));
        } else {
            second.net.reset(NodeId(1));
        }
        assert_eq!(first.event(), Event::Down(NodeId(2)));
        assert!(matches!(first.event(), Event::Up(NodeId(2), _)));
        let mut next = 0;
        loop {
            match second.event() {
                Event::Frame { header, meta, .. } => {
                    assert_eq!(meta, link.to_le_bytes(), "a frame of this link");
                    assert_eq!(header.request.0, next);
                    next += 1;
                }
                Event::Down(_) => break,
                other @ Event::Up(..) => panic!("{other:?} without a down"),
            }
        }
        assert!(matches!(second.event(), Event::Up(NodeId(1), _)));
    }
    first
        .net
        .send(NodeId(2), Lane::Data(0), frame(9, b"end", Vec::new()))
        .unwrap();
    assert_eq!(second.frame().1, b"end");
    first.stop();
    assert_eq!(second.event(), Event::Down(NodeId(1)));
    second.stop();
}

#[test]
fn a_node_that_comes_back_is_seen_in_its_new_life() {
    let (first, second) = pair();
    let address = second.net.local_address().unwrap();
    second.stop();
    assert_eq!(first.event(), Event::Down(NodeId(2)));
    assert_eq!(first.net.peer_incarnation(NodeId(2)), None);
    let refused = first
        .net
        .send(NodeId(2), Lane::Priority, frame(1, b"", Vec::new()));
    assert!(matches!(refused, Err(SendError::Down(_))));
    let mut again = config(2, Some(address), &[(1, any(1))]);
    again.incarnation = Incarnation(4321);
    let second = Node::start(again);
    assert_eq!(first.event(), Event::Up(NodeId(2), Incarnation(4321)));
    assert_eq!(
        first.net.peer_incarnation(NodeId(2)),
        Some(Incarnation(4321))
    );
    assert!(matches!(second.event(), Event::Up(NodeId(1), _)));
    // The caller comes back too.
    first.stop();
    assert_eq!(second.event(), Event::Down(NodeId(1)));
    let mut again = config(1, Some(any(1)), &[(2, address)]);
    again.incarnation = Incarnation(99);
    let first = Node::start(again);
    assert_eq!(second.event(), Event::Up(NodeId(1), Incarnation(99)));
    assert!(matches!(first.event(), Event::Up(NodeId(2), _)));
    first.stop();
    second.stop();
}

/// Who hears of a peer answers it: so nobody is heard before the owner of the network has it in hand.
#[test]
fn nobody_is_heard_before_the_network_begins() {
    let second = Node::new(config(2, Some(any(2)), &[(1, any(1))]));
    let address = second.net.local_address().unwrap();
    let first = Node::start(config(1, Some(any(1)), &[(2, address)]));
    let wait = Duration::from_millis(200);
    assert!(first.events.recv_timeout(wait).is_err());
    assert!(second.events.try_recv().is_err());
    second.net.begin();
    second.net.begin();
    assert!(matches!(first.event(), Event::Up(NodeId(2), _)));
    assert!(matches!(second.event(), Event::Up(NodeId(1), _)));
    first.stop();
    second.stop();
    // Nor is anything left of one that never began.
    Node::new(config(2, Some(any(2)), &[(1, any(1))])).stop();
}

#[test]
fn what_is_for_a_life_that_is_over_goes_to_nobody() {
    let second = Node::start(config(2, Some(any(2)), &[(1, any(1))]));
    let address = second.net.local_address().unwrap();
    let first = Node::start(config(1, Some(any(1)), &[(2, address)]));
    let Event::Up(node, incarnation) = first.event() else {
        panic!("it is the first event");
    };
    assert!(matches!(second.event(), Event::Up(..)));
    let life = NodeLife { node, incarnation };
    let over = NodeLife {
        incarnation: Incarnation(incarnation.0 ^ 1),
        ..life
    };
    let sent = first
        .net
        .send_to_life(over, Lane::Data(0), frame(1, b"old", Vec::new()));
    assert!(matches!(sent, Err(SendError::Down(_))));
    first
        .net
        .send_to_life(life, Lane::Data(0), frame(2, b"new", Vec::new()))
        .unwrap();
    assert_eq!(second.frame().1, b"new");
    first.stop();
    second.stop();
}

#[test]
fn what_cannot_start_says_why() {
    let loops = Loops::start(1, Arc::new(NoTimer)).unwrap();
    let pool = Pagepool::new(1 << 20).unwrap();
    let node = Node::start(config(2, Some(any(2)), &[]));
    let taken = node.net.local_address().unwrap();
    let start = |config| Net::new(config, &loops, &pool, node.recorder.clone());
    let error = start(config(3, Some(taken), &[])).unwrap_err();
    assert!(
        matches!(error, NetError::Listen { address, .. } if address == taken),
        "{error}"
    );
    let error = start(config(1, None, &[(1, any(1))])).unwrap_err();
    assert!(matches!(error, NetError::Twice { node: NodeId(1) }));
    let mut wrong = config(1, None, &[]);
    wrong.data_lane_count = 0;
    assert!(matches!(start(wrong), Err(NetError::Lanes { count: 0 })));
    node.stop();
    loops.stop();
}

/// A peer made by hand, at 127.0.0.1 unless told otherwise, as node 1.
struct Raw(TcpStream);

impl Raw {
    fn connect(target: SocketAddr) -> Self {
        let stream = TcpStream::connect(target).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    fn header(kind: u16, meta: &[u8], data_length: u32) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            request: RequestId(0),
            cluster: CLUSTER,
            epoch: Epoch(0),
            incarnation: 55,
            meta_length: u32::try_from(meta.len()).unwrap(),
            data_length,
            data_crc: crc32c(meta),
        }
    }

    fn send(&mut self, kind: u16, meta: &[u8]) {
        let mut bytes = Self::header(kind, meta, 0).encode().to_vec();
        bytes.extend_from_slice(meta);
        self.0.write_all(&bytes).unwrap();
    }

    /// A Hello as the protocol writes it down: this test fails when the bytes change.
    fn hello(
        node: u16,
        target: u16,
        cluster: ClusterId,
        required: u64,
        attempt: u64,
        lane: u16,
    ) -> Vec<u8> {
        let mut meta = Vec::new();
        NodeId(node).encode(&mut meta);
        NodeId(target).encode(&mut meta);
        cluster.encode(&mut meta);
        Incarnation(55).encode(&mut meta);
        for word in [0, required, attempt] {
            word.encode(&mut meta);
        }
        lane.encode(&mut meta);
        2_u16.encode(&mut meta);
        meta
    }

    /// The kind of the answer, and its metadata part; none when the connection ends instead.
    fn answer(&mut self) -> Option<(u16, Vec<u8>)> {
        let mut bytes = [0; HEADER_SIZE];
        self.0.read_exact(&mut bytes).ok()?;
        let header = Header::decode(&bytes).unwrap();
        let mut meta = vec![0; header.meta_length as usize];
        self.0.read_exact(&mut meta).unwrap();
        Some((header.kind, meta))
    }

    fn refusal(&mut self) -> u8 {
        let (kind, meta) = self.answer().expect("a refusal is said");
        assert_eq!(kind, KIND_REFUSE);
        assert!(self.answer().is_none(), "then the connection ends");
        meta[0]
    }

    fn assert_ended(&mut self) {
        assert!(self.answer().is_none());
    }
}

#[test]
fn who_does_not_belong_is_refused_with_the_reason() {
    let node = Node::start(config(2, Some(any(2)), &[(1, any(1)), (3, any(1))]));
    let target = node.net.local_address().unwrap();
    let refusal = |kind, meta: &[u8]| {
        let mut raw = Raw::connect(target);
        raw.send(kind, meta);
        raw.refusal()
    };
    let hello = Raw::hello;
    assert_eq!(
        refusal(KIND_HELLO, &hello(9, 2, CLUSTER, 0, 1, 0)),
        2,
        "an unknown node"
    );
    assert_eq!(
        refusal(KIND_HELLO, &hello(3, 2, CLUSTER, 0, 1, 0)),
        2,
        "a node that is called"
    );
    assert_eq!(
        refusal(KIND_HELLO, &hello(1, 5, CLUSTER, 0, 1, 0)),
        3,
        "meant for another"
    );
    assert_eq!(
        refusal(KIND_HELLO, &hello(1, 2, ClusterId(1), 0, 1, 0)),
        4,
        "another cluster"
    );
    assert_eq!(
        refusal(KIND_HELLO, &hello(1, 2, CLUSTER, 1 << 63, 1, 0)),
        6,
        "a feature"
    );
    assert_eq!(
        refusal(KIND_HELLO, &hello(1, 2, CLUSTER, 0, 1, 2)),
        7,
        "a lane too many"
    );
    assert_eq!(refusal(KIND_HELLO, &[1, 2, 3]), 5, "half a hello");
    assert_eq!(refusal(KIND, b"no hello"), 5, "a frame before the hello");
    assert_eq!(refusal(KIND_HELLO, &[0; 5000]), 5, "a hello too long");
    let mut raw = Raw::connect(target);
    let mut bytes = Raw::header(KIND_HELLO, b"", 1 << 20).encode();
    raw.0.write_all(&bytes).unwrap();
    assert_eq!(raw.refusal(), 5, "a hello with payload");
    let mut raw = Raw::connect(target);
    bytes[4] = 9;
    raw.0.write_all(&bytes).unwrap();
    assert_eq!(raw.refusal(), 5, "another version");
    // Lengths beyond all limits, and other protocols, end the connection.
    for foreign in [
        &[0xff; HEADER_SIZE][..],
        &b"GET / HTTP/1.1\r\nHost: "[..],
        &[0; 200],
    ] {
        let mut raw = Raw::connect(target);
        raw.0.write_all(foreign).unwrap();
        raw.0.write_all(&[b'x'; HEADER_SIZE]).unwrap();
        raw.assert_ended();
    }
    let count = node.net.counters().refused_count;
    assert!(count >= 11, "{count}");
    assert!(
        node.events.try_recv().is_err(),
        "the node's roles hear nothing of all this"
    );
    node.stop();
}

#[test]
fn an_unknown_address_hears_that_it_is_unknown() {
    let node = Node::start(config(2, Some(any(2)), &[(1, any(7))]));
    let mut raw = Raw::connect(node.net.local_address().unwrap());
    assert_eq!(raw.refusal(), 1);
    node.stop();
}

/// A link of two lanes made by hand.
fn raw_link(node: &Node, attempt: u64) -> [Raw; 2] {
    let target = node.net.local_address().unwrap();
    let mut lanes = [0, 1].map(|_| Raw::connect(target));
    for (lane, raw) in lanes.iter_mut().enumerate() {
        let lane = u16::try_from(lane).unwrap();
        raw.send(KIND_HELLO, &Raw::hello(1, 2, CLUSTER, 0, attempt, lane));
        assert_eq!(raw.answer().unwrap().0, KIND_HELLO);
    }
    assert_eq!(node.event(), Event::Up(NodeId(1), Incarnation(55)));
    lanes
}

#[test]
fn a_newer_attempt_replaces_a_link_and_an_older_one_is_refused() {
    let node = Node::start(config(2, Some(any(2)), &[(1, any(1))]));
    let mut old = raw_link(&node, 5);
    let mut late = Raw::connect(node.net.local_address().unwrap());
    late.send(KIND_HELLO, &Raw::hello(1, 2, CLUSTER, 0, 4, 0));
    assert_eq!(late.refusal(), 7);
    let mut twice = Raw::connect(node.net.local_address().unwrap());
    twice.send(KIND_HELLO, &Raw::hello(1, 2, CLUSTER, 0, 5, 1));
    assert_eq!(twice.refusal(), 7);
    // The old link is as good as dead when its node begins anew.
    let target = node.net.local_address().unwrap();
    let mut lanes = [0, 1].map(|lane| {
        let mut raw = Raw::connect(target);
        raw.send(KIND_HELLO, &Raw::hello(1, 2, CLUSTER, 0, 6, lane));
        raw
    });
    assert_eq!(node.event(), Event::Down(NodeId(1)));
    assert!(matches!(node.event(), Event::Up(NodeId(1), _)));
    old.iter_mut().for_each(Raw::assert_ended);
    for raw in &mut lanes {
        assert_eq!(raw.answer().unwrap().0, KIND_HELLO);
    }
    lanes[1].send(KIND, b"new");
    assert_eq!(node.frame().1, b"new");
    node.stop();
}

#[test]
fn bad_frames_of_a_peer_end_the_link_and_nothing_else() {
    let node = Node::start(config(2, Some(any(2)), &[(1, any(1))]));
    let good = Raw::header(KIND, b"meta", 0);
    let with = |change: fn(&mut Header)| {
        let mut header = good;
        change(&mut header);
        [&header.encode()[..], b"meta"].concat()
    };
    let mut flipped = with(|_| {});
    flipped[30] ^= 1;
    let cases = [
        with(|h| h.data_crc ^= 1),
        with(|h| h.kind = KIND_HELLO),
        with(|h| h.incarnation = 56),
        with(|h| h.cluster = ClusterId(0)),
        with(|h| h.meta_length = u32::MAX),
        with(|h| h.data_length = u32::MAX),
        flipped,
    ];
    for (attempt, bad) in (1..).zip(cases) {
        let mut lanes = raw_link(&node, attempt);
        // Cut into bytes at the worst place: between header and metadata part, and within both.
        for part in [
            &with(|_| {})[..],
            &with(|_| {})[..10],
            &with(|_| {})[10..65],
            &with(|_| {})[65..],
        ] {
            lanes[1].0.write_all(part).unwrap();
            lanes[1].0.flush().unwrap();
        }
        for _ in 0..2 {
            assert_eq!(node.frame().1, b"meta");
        }
        lanes[1].0.write_all(&bad).unwrap();
        assert_eq!(node.event(), Event::Down(NodeId(1)), "case {attempt}");
        lanes.iter_mut().for_each(Raw::assert_ended);
    }
    // A payload cut in its middle gives its place back.
    let mut lanes = raw_link(&node, 100);
    lanes[1]
        .0
        .write_all(&Raw::header(KIND, b"", 1 << 20).encode())
        .unwrap();
    lanes[1].0.write_all(&vec![1; 300_000]).unwrap();
    drop(lanes);
    assert_eq!(node.event(), Event::Down(NodeId(1)));
    node.stop();
}

#[test]
fn a_frame_that_cannot_be_sent_leaves_its_references_with_the_caller() {
    let node = Node::start(config(2, Some(any(2)), &[(1, any(1))]));
    let span = Span::whole(node.pool.alloc().unwrap());
    let error = node
        .net
        .send(NodeId(1), Lane::Data(0), frame(1, b"m", vec![span]))
        .unwrap_err();
    let back = error.into_frame();
    assert_eq!((back.payload, back.meta), (vec![span], b"m".to_vec()));
    let error = node
        .net
        .send(NodeId(8), Lane::Data(0), frame(1, b"m", vec![span]))
        .unwrap_err();
    assert!(matches!(error, SendError::Down(_)));
    assert!(!node.pool.is_shared(span.frame));
    assert_ne!(span.frame, FrameRef(u32::MAX));
    node.pool.release(span.frame);
    node.stop();
}
