//! One TCP connection: a lane of a link, or on its way to become one.
//!
//! Life: connecting (ours) -> greeting (Hello sent or awaited) -> joined (its link waits for the other
//! lanes; nothing is read) -> open -> failed (shut down; on its loop it is then ended: forgotten by the
//! ring, its references dropped, its link told). A connection that is refused sends why and lingers
//! until the other side has read it, or the deadline.
//!
//! Invariants
//! - Its poll is added and removed, its bytes are read and it is ended on its loop's thread alone.
//! - It is ended once.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use types::wire::{
    Header, KIND_FIRST, KIND_HELLO, KIND_REFUSE, VERSION, WireError, incarnation_low,
};
use types::{Duration, Span};

use super::hello::{self, Answer, HELLO_SIZE_MAX, Hello, Refusal};
use super::input::{Fault, Flow, Input, Received, Sink};
use super::link::{Inner, Link};
use super::output::{Drained, Outgoing, Output, Refused};
use super::socket::{self, Moved};
use super::{add, class};
use crate::clock;
use crate::loops::{self, Loops, PollId, Source, lock};

/// Longest wait for the other side's handshake, and for all lanes of its link.
const HANDSHAKE_WAIT: Duration = Duration::from_secs(5);

/// Bytes of payload from which on a sender that is no loop leaves the writing to the connection's loop.
const LEFT_SIZE_MIN: usize = 128 << 10;

const fn mask(events: libc::c_short) -> u32 {
    events.cast_unsigned() as u32
}
const POLL_READ: u32 = mask(libc::POLLIN | libc::POLLRDHUP);
const POLL_WRITE: u32 = mask(libc::POLLOUT);
const POLL_BROKEN: u32 = mask(libc::POLLERR | libc::POLLHUP);
const POLL_END: u32 = mask(libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Connecting,
    Greeting,
    Joined,
    Refused,
}

/// Where it lives.
#[derive(Debug)]
struct Home {
    loop_index: usize,
    poll: Option<PollId>,
}

/// The connection.
pub(super) struct Connection {
    this: Weak<Self>,
    net: Arc<Inner>,
    stream: TcpStream,
    remote: IpAddr,
    home: Mutex<Home>,
    phase: Mutex<Phase>,
    /// Its link and lane: from the start when we connect, after the other side's Hello otherwise.
    link: OnceLock<(Arc<Link>, usize)>,
    input: Mutex<Input>,
    output: Output,
    is_failed: AtomicBool,
    /// Ended; while it is locked, the link is not set.
    is_ended: Mutex<bool>,
    /// Counts among the connections that have not shaken hands.
    is_stranger: AtomicBool,
}

impl Connection {
    /// A connection that we begin, as a lane of `link`.
    pub(super) fn connecting(
        net: &Arc<Inner>,
        link: &Arc<Link>,
        lane: usize,
        target: SocketAddr,
    ) -> std::io::Result<Arc<Self>> {
        let source = net.config.listen.map(|address| address.ip());
        let stream = socket::connect(target, source)?;
        let loop_index = net.lane_loop(link.peer().node, lane);
        let this = Self::new(net, stream, target.ip(), loop_index, Phase::Connecting);
        let set = this.link.set((Arc::clone(link), lane));
        set.expect("a new connection has no link");
        Ok(this)
    }

    /// A connection that another node began.
    pub(super) fn accepted(net: &Arc<Inner>, stream: TcpStream, remote: IpAddr) -> Arc<Self> {
        let this = Self::new(net, stream, remote, 0, Phase::Greeting);
        this.is_stranger.store(true, Ordering::Relaxed);
        net.strangers.fetch_add(1, Ordering::SeqCst);
        this
    }

    fn new(
        net: &Arc<Inner>,
        stream: TcpStream,
        remote: IpAddr,
        loop_index: usize,
        phase: Phase,
    ) -> Arc<Self> {
        net.on_connection_made();
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            net: Arc::clone(net),
            stream,
            remote,
            home: Mutex::new(Home {
                loop_index,
                poll: None,
            }),
            phase: Mutex::new(phase),
            link: OnceLock::new(),
            input: Mutex::new(Input::new()),
            output: Output::default(),
            is_failed: AtomicBool::new(false),
            is_ended: Mutex::new(false),
            is_stranger: AtomicBool::new(false),
        })
    }

    /// Lets it live: from now on its loop hears of it. The deadline of the handshake runs.
    pub(super) fn begin(self: &Arc<Self>) {
        let index = lock(&self.home).loop_index;
        let late = Arc::downgrade(self);
        self.net.loops.post_at(
            index,
            clock::now() + HANDSHAKE_WAIT,
            Box::new(move || {
                if let Some(this) = late.upgrade()
                    && !this.link.get().is_some_and(|(link, _)| link.is_readable())
                {
                    this.fail("no handshake in time");
                }
            }),
        );
        self.poll_on(index);
    }

    fn poll_on(self: &Arc<Self>, index: usize) {
        let this = Arc::clone(self);
        self.net.loops.post(
            index,
            Box::new(move || {
                if this.is_failed.load(Ordering::SeqCst) {
                    return;
                }
                let source: Arc<dyn Source> = this.clone();
                let events = POLL_READ | POLL_WRITE;
                let poll = loops::poll_add(this.stream.as_raw_fd(), events, source);
                lock(&this.home).poll = Some(poll);
            }),
        );
    }

    /// To another loop; on its present one.
    fn move_to(self: &Arc<Self>, index: usize) {
        let mut home = lock(&self.home);
        if home.loop_index == index {
            return;
        }
        home.loop_index = index;
        let poll = home.poll.take();
        drop(home);
        if let Some(poll) = poll {
            loops::poll_remove(poll);
        }
        self.poll_on(index);
    }

    /// Sends a frame, or gives it back.
    pub(super) fn send(self: &Arc<Self>, kind: u16, frame: Outgoing) -> Result<(), Refused> {
        let size = frame.size() as u64;
        // Sending a large payload takes longer than receiving the next request of an application: a thread that
        // serves these leaves it to the loop.
        let is_left = frame.payload_size() >= LEFT_SIZE_MIN && Loops::current().is_none();
        let drained = self
            .output
            .send(&self.stream, &self.net.pool, frame, is_left)?;
        let counters = &self.net.counters;
        add(&counters.sent[class(kind)], 1);
        add(&counters.sent_size, size);
        self.after_drain(drained);
        Ok(())
    }

    fn after_drain(self: &Arc<Self>, drained: Drained) {
        match drained {
            Drained::Done => {}
            Drained::Blocked => add(&self.net.counters.blocked, 1),
            Drained::Left => {
                let index = lock(&self.home).loop_index;
                let this = Arc::clone(self);
                let drain = move || {
                    this.after_drain(this.output.on_writable(&this.stream, &this.net.pool));
                };
                self.net.loops.post(index, Box::new(drain));
            }
            Drained::Broken => self.fail("sending failed"),
        }
    }

    fn send_answer(self: &Arc<Self>, answer: &Answer) {
        let (header, meta) = hello::encode(&self.net.config, answer);
        let payload = Vec::new();
        // Nothing waits in a new connection; a closed one is being ended anyway.
        let _ = self.send(
            KIND_HELLO,
            Outgoing {
                header,
                meta,
                payload,
            },
        );
    }

    /// Says why, and lets the other side read it.
    pub(super) fn refuse(self: &Arc<Self>, refusal: Refusal) {
        add(&self.net.counters.refused, 1);
        tracing::warn!(remote = %self.remote, %refusal, "connection refused");
        *lock(&self.phase) = Phase::Refused;
        self.send_answer(&Answer::Refuse(refusal));
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Accepted as lane of `link`: answers, and lives on the lane's loop from now on.
    pub(super) fn join(self: &Arc<Self>, link: &Arc<Link>, hello: &Hello) {
        self.on_known();
        *lock(&self.phase) = Phase::Joined;
        let answer = Hello {
            node: self.net.config.node,
            target: hello.node,
            cluster: self.net.config.cluster,
            incarnation: self.net.config.incarnation,
            features: hello::FEATURES & hello.features,
            required: hello::REQUIRED,
            ..*hello
        };
        self.send_answer(&Answer::Hello(answer));
        let index = self.net.lane_loop(hello.node, usize::from(hello.lane));
        let this = Arc::clone(self);
        let present = lock(&self.home).loop_index;
        // A connection that waited for the end of an older link is joined on some other thread.
        self.net
            .loops
            .post(present, Box::new(move || this.move_to(index)));
        link.on_lane_ready();
    }

    /// For the acceptor, under the lock of the peer's state: false when the connection has ended, so that
    /// it cannot be a lane.
    pub(super) fn set_link(&self, link: &Arc<Link>, lane: usize) -> bool {
        let is_ended = lock(&self.is_ended);
        if !*is_ended {
            let set = self.link.set((Arc::clone(link), lane));
            set.expect("a connection joins one link");
        }
        !*is_ended
    }

    fn on_known(&self) {
        if self.is_stranger.swap(false, Ordering::SeqCst) {
            self.net.strangers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn is_failed(&self) -> bool {
        self.is_failed.load(Ordering::SeqCst)
    }

    /// The link is up: read.
    pub(super) fn resume(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let index = lock(&self.home).loop_index;
        self.net
            .loops
            .post(index, Box::new(move || this.receive(true)));
    }

    /// It is of no more use; its link neither. From any thread.
    pub(super) fn fail(self: &Arc<Self>, why: &str) {
        if self.is_failed.swap(true, Ordering::SeqCst) {
            return;
        }
        tracing::debug!(remote = %self.remote, why, "connection ends");
        let _ = self.stream.shutdown(Shutdown::Both);
        self.post_end();
        if let Some((link, _)) = self.link.get() {
            link.fail();
        }
    }

    fn post_end(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let index = lock(&self.home).loop_index;
        self.net.loops.post(index, Box::new(move || this.end()));
    }

    fn end(self: &Arc<Self>) {
        let mut home = lock(&self.home);
        if Some(home.loop_index) != loops::current() {
            // It moved meanwhile.
            drop(home);
            self.post_end();
            return;
        }
        let poll = home.poll.take();
        drop(home);
        if std::mem::replace(&mut *lock(&self.is_ended), true) {
            return;
        }
        if let Some(poll) = poll {
            loops::poll_remove(poll);
        }
        lock(&self.input).close(&self.net.pool);
        self.output.close(&self.net.pool);
        self.on_known();
        if let Some((link, _)) = self.link.get() {
            // It may have joined after it failed.
            link.fail();
            link.leave();
        }
        self.net.on_connection_ended();
    }

    fn receive(self: &Arc<Self>, is_thorough: bool) {
        if self.is_failed() {
            return;
        }
        let phase = *lock(&self.phase);
        match phase {
            Phase::Connecting => return,
            Phase::Refused => return self.linger(),
            Phase::Joined if !self.link.get().is_some_and(|(link, _)| link.is_readable()) => return,
            Phase::Joined | Phase::Greeting => {}
        }
        let mut input = lock(&self.input);
        // It may have ended since: then its link's end has been told, and nothing may follow.
        if self.is_failed() {
            return;
        }
        let result = input.receive(&self.stream, &self.net.pool, self, is_thorough);
        drop(input);
        match result {
            Ok(Received::Waiting | Received::Paused) => {}
            Ok(Received::More) => self.resume(),
            Err(fault) => self.on_fault(phase, &fault),
        }
    }

    fn on_fault(self: &Arc<Self>, phase: Phase, fault: &Fault) {
        match fault {
            Fault::End | Fault::Socket(_) => {}
            Fault::Header(_) | Fault::Damaged { .. } | Fault::Unexpected { .. } => {
                tracing::warn!(remote = %self.remote, %fault, "connection broken");
                let is_foreign = matches!(fault, Fault::Header(WireError::Foreign { .. }));
                // Who speaks another protocol would not understand the refusal.
                if phase == Phase::Greeting && self.link.get().is_none() && !is_foreign {
                    self.refuse(Refusal::Version { version: VERSION });
                    return self.linger();
                }
            }
        }
        self.fail(&fault.to_string());
    }

    /// Throws away what comes until the other side has closed.
    fn linger(self: &Arc<Self>) {
        let mut bytes = [0_u8; 4096];
        loop {
            let mut pieces = [libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            }];
            // SAFETY: the piece is our own array.
            match unsafe { socket::receive(&self.stream, &mut pieces) } {
                Ok(Moved::Bytes(_)) => {}
                Ok(Moved::Blocked) => return,
                Ok(Moved::End) | Err(_) => return self.fail("refused"),
            }
        }
    }

    fn on_connected(self: &Arc<Self>) {
        match self.stream.take_error() {
            Ok(None) => {}
            Ok(Some(error)) | Err(error) => return self.fail(&error.to_string()),
        }
        *lock(&self.phase) = Phase::Greeting;
        let (link, lane) = self.link.get().expect("set before it connects");
        let config = &self.net.config;
        self.send_answer(&Answer::Hello(Hello {
            node: config.node,
            target: link.peer().node,
            cluster: config.cluster,
            incarnation: config.incarnation,
            features: hello::FEATURES,
            required: hello::REQUIRED,
            attempt: link.attempt(),
            lane: u16::try_from(*lane).expect("at most 15"),
            lane_count: u16::try_from(link.lane_count()).expect("at most 16"),
        }));
    }

    /// The first frame of the other side.
    fn on_greeting(self: &Arc<Self>, header: &Header, meta: &[u8]) -> Result<(), Fault> {
        let unexpected = Fault::Unexpected { kind: header.kind };
        let answer = hello::decode(header.kind, meta).map_err(|_| unexpected)?;
        let unexpected = Fault::Unexpected { kind: header.kind };
        match (answer, self.link.get()) {
            (Answer::Hello(hello), None) => match self.net.check_caller(self.remote, &hello) {
                Ok(()) => self.net.join(self, &hello),
                Err(refusal) => self.refuse(refusal),
            },
            (Answer::Hello(hello), Some((link, lane))) => {
                let is_ours = hello.node == link.peer().node
                    && hello.attempt == link.attempt()
                    && usize::from(hello.lane) == *lane
                    && usize::from(hello.lane_count) == link.lane_count()
                    && hello::check(&self.net.config, &hello).is_ok()
                    && link.is_life(hello.incarnation);
                if !is_ours {
                    return Err(unexpected);
                }
                *lock(&self.phase) = Phase::Joined;
                link.on_lane_ready();
            }
            (Answer::Refuse(refusal), Some(_)) => {
                add(&self.net.counters.refused, 1);
                tracing::warn!(remote = %self.remote, %refusal, "the other node refuses us");
                self.fail("refused");
            }
            (Answer::Refuse(_), None) => return Err(unexpected),
        }
        Ok(())
    }
}

impl Source for Connection {
    fn on_ready(&self, events: u32) {
        let this = self.this.upgrade().expect("the loop holds a reference");
        if this.is_failed() {
            return;
        }
        if *lock(&this.phase) == Phase::Connecting {
            if events & (POLL_WRITE | POLL_BROKEN) == 0 {
                return;
            }
            this.on_connected();
        }
        if events & POLL_WRITE != 0 {
            this.after_drain(this.output.on_writable(&this.stream, &this.net.pool));
        }
        if events & (POLL_READ | POLL_BROKEN) != 0 {
            this.receive(events & POLL_END != 0);
        }
    }
}

impl Sink for Arc<Connection> {
    fn on_header(&self, header: &Header) -> Result<(), Fault> {
        let is_expected = match self.link.get() {
            Some((link, _)) if *lock(&self.phase) == Phase::Joined => {
                let incarnation = link.incarnation().expect("joined lanes know the life");
                header.kind >= KIND_FIRST
                    && header.cluster == self.net.config.cluster
                    && header.incarnation == incarnation_low(incarnation)
            }
            _ => {
                (header.kind == KIND_HELLO || header.kind == KIND_REFUSE)
                    && header.meta_length <= HELLO_SIZE_MAX
                    && header.data_length == 0
            }
        };
        if is_expected {
            Ok(())
        } else {
            Err(Fault::Unexpected { kind: header.kind })
        }
    }

    fn place(&self, header: &Header, meta: &[u8]) -> Vec<Span> {
        let (link, _) = self.link.get().expect("only joined lanes carry payload");
        let spans = self.net.handler.place(link.peer().node, header, meta);
        if spans.is_empty() {
            add(&self.net.counters.dropped, 1);
        }
        spans
    }

    fn on_frame(&self, header: &Header, meta: &[u8], payload: Vec<Span>) -> Result<Flow, Fault> {
        let counters = &self.net.counters;
        add(&counters.received[class(header.kind)], 1);
        add(&counters.received_size, header.frame_size());
        if *lock(&self.phase) != Phase::Joined {
            self.on_greeting(header, meta)?;
            return Ok(Flow::Pause);
        }
        let (link, _) = self.link.get().expect("joined");
        self.net
            .handler
            .on_frame(link.peer().node, header, meta, payload);
        Ok(Flow::Continue)
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("remote", &self.remote)
            .field("phase", &self.phase)
            .finish_non_exhaustive()
    }
}
