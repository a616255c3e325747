//! The node without a valid lease: what waits for it, what the kernel drops meanwhile, and how a life ends (rule R8).
//!
//! Invariants
//! - Without a valid lease no request is begun, no reply is written, no other node is answered and none of
//!   its messages is looked at: all of that waits, in order, and goes on when the lease is there. Only what a
//!   notification to the kernel may wait for goes to the slices all the same (`is_gated`), and only what they
//!   yield is answered.
//! - A lapse begins and ends on the thread that ticks, and nowhere else.
//! - From its beginning on no page of an open file stays in the kernel's cache for longer than `DROP_LIMIT`: what
//!   does not go by then goes with the connection.
//!
//! ```text
//! lease valid --over--> gates suspended --pages dropped--> waits --lease--> gates resumed, requests go on
//!                   '--------- DROP_LIMIT ----------------> aborted, starts anew
//!                       declared dead at any time --> what waits fails, what is dirty is counted, starts anew
//! ```
//!
//! What this deliberately does not do: keep descriptors across an eviction. The connection ends with the life
//! (DESIGN section 7: never a silent re-attach), so each of them answers ENOTCONN until it is closed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use client::Pool as _;
use client::request::{Notice, Operation, Request, Response, Ticket, TicketPart};
use client::slice::{Effect, Input, Pinned, SLICE_COUNT, frames_of, home_slice};
use node::{Deferred, Message};
use types::{Duration, Errno, InodeId, NodeLife};

use super::work::Item;
use super::{Daemon, lock};
use crate::clock;

/// How long the kernel may take to drop what it has when the lease is over; then the connection is aborted.
const DROP_LIMIT: Duration = Duration::from_secs(5);
/// How long an evicted life waits for the kernel to drop what it has.
const DROP_PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Something that waits for the lease.
#[derive(Debug)]
pub(super) enum Parked {
    /// A request of the front end.
    Request(Request),
    /// A message of another node, in the life that sent it.
    Message(NodeLife, Box<Message>),
    /// A reply to the front end.
    Reply(Ticket, Response, Pinned),
    /// An answer to another node.
    Deferred(Box<Deferred>),
}

/// All that waits for the lease.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queue: VecDeque<Parked>,
    /// Messages of other nodes among them.
    message_count: usize,
    /// The slices know that the lease is over: requests that a notification may wait for go to them.
    is_lapsed: bool,
}

/// So many messages of other nodes wait at the most. Whoever sent one that is dropped says it again, as where a link drops it.
const MESSAGES_MAX: usize = 1 << 16;

impl Waiting {
    /// A message of another node. False: there is no room.
    fn push_message(&mut self, life: NodeLife, message: Box<Message>) -> bool {
        let has_room = self.message_count < MESSAGES_MAX;
        if has_room {
            self.message_count += 1;
            self.queue.push_back(Parked::Message(life, message));
        }
        has_room
    }

    /// All that waits; nothing does then.
    fn take(&mut self) -> VecDeque<Parked> {
        self.message_count = 0;
        std::mem::take(&mut self.queue)
    }
}

/// Requests that hold what a notification to the kernel waits for: locked folios, or write-back.
fn is_gated(operation: &Operation) -> bool {
    match operation {
        Operation::Read {
            fills_page_cache, ..
        } => *fills_page_cache,
        Operation::Write { is_write_back, .. } => *is_write_back,
        Operation::SetAttr { set, .. } => set.size.is_some(),
        Operation::Open { flags, .. } => flags.truncate,
        _ => false,
    }
}

impl Daemon {
    /// Whether something must wait for the lease. Not while the daemon stops: then nothing waits.
    pub(super) fn must_park(&self) -> bool {
        // Asked twice per request: what is seldom true first.
        if self.membership.is_alone() || self.lease_left() != Duration(0) {
            return false;
        }
        let may_end = self.stop.is_set() && !self.membership.is_evicted();
        !may_end
    }

    /// How many things wait for the lease, for `gupfs waiters`.
    pub(super) fn parked_count(&self) -> usize {
        lock(&self.membership.waiting).queue.len()
    }

    /// For how long there has been no lease, and how many open files the kernel still has pages of.
    pub(super) fn lapse_state(&self) -> Option<(Duration, usize)> {
        let since = (*lock(&self.membership.lapsed_at))?;
        let left = self.slices.iter().map(|s| lock(s).undropped_count()).sum();
        Some((clock::now().since(since), left))
    }

    /// A request that came without a lease. The front end drops a payload's frames when it has handed the
    /// request over.
    pub(super) fn park_request(self: &Arc<Self>, request: Request) {
        {
            let mut waiting = lock(&self.membership.waiting);
            if !waiting.is_lapsed || !is_gated(&request.operation) {
                if let Operation::Write { payload, .. } = request.operation
                    && payload.length > 0
                {
                    frames_of(payload).for_each(|frame| self.pool.retain(frame));
                }
                return waiting.queue.push_back(Parked::Request(request));
            }
        }
        self.take_request(request);
    }

    /// A reply made without a lease, or when it ended. The bytes of a READ may lock a page that the kernel is to
    /// drop, and may be old when the lease is back: that one fails.
    pub(super) fn park_reply(&self, ticket: Ticket, mut response: Response, pinned: Pinned) {
        // When it is written the tokens that cover what it says may have gone, and nobody has waited for it.
        super::work::clamp(&mut response, 0);
        let mut waiting = lock(&self.membership.waiting);
        if waiting.is_lapsed
            && let Response::Data(spans) = response
        {
            drop(waiting);
            return self.fail_data(ticket, spans);
        }
        waiting
            .queue
            .push_back(Parked::Reply(ticket, response, pinned));
    }

    fn fail_data(&self, ticket: Ticket, spans: Vec<types::Span>) {
        self.answer(ticket, &Response::Error(Errno::EIO));
        for span in spans {
            frames_of(span).for_each(|frame| self.pool.release(frame));
        }
    }

    /// Parks anything else.
    pub(super) fn park(&self, parked: Parked) {
        lock(&self.membership.waiting).queue.push_back(parked);
    }

    /// Parks what another node has said.
    pub(super) fn park_message(&self, life: NodeLife, message: Message) {
        let mut waiting = lock(&self.membership.waiting);
        if !waiting.push_message(life, Box::new(message)) {
            tracing::debug!(
                node = life.node.0,
                "too much waits for the lease: a message is dropped"
            );
        }
    }

    /// A request that waits for the lease is given up; it was found.
    pub(super) fn unpark(&self, part: TicketPart) -> bool {
        let found = {
            let queue = &mut lock(&self.membership.waiting).queue;
            let is_it = |p: &Parked| matches!(p, Parked::Request(r) if part.is_of(r.ticket));
            let at = queue.iter().position(is_it);
            at.and_then(|at| queue.remove(at))
        };
        let Some(Parked::Request(mut request)) = found else {
            return false;
        };
        self.release_payload(&request);
        self.answer(request.ticket, &Response::Error(Errno::EINTR));
        if matches!(request.operation, Operation::Flush { .. }) {
            // The descriptor is closed all the same, and nobody asks again: what a close does is done when the lease is back.
            request.ticket = fuse::NO_REPLY;
            self.park(Parked::Request(request));
        }
        true
    }

    fn release_payload(&self, request: &Request) {
        if let Operation::Write { payload, .. } = request.operation
            && payload.length > 0
        {
            frames_of(payload).for_each(|frame| self.pool.release(frame));
        }
    }

    /// Begins or ends a lapse when the lease says so, and lets what waits go on with it. Ticks only.
    pub(super) fn settle_lapse(self: &Arc<Self>) {
        let since = *lock(&self.membership.lapsed_at);
        let is_over = self.membership.has_lapsed();
        match since {
            None if is_over => self.begin_lapse(),
            Some(since) if is_over => {
                let has_time = clock::now().since(since) < DROP_LIMIT;
                let left = self.lapse_state().map_or(0, |(_, left)| left);
                if !has_time && left > 0 && !self.membership.is_evicted() {
                    tracing::error!(
                        open_files = left,
                        "the kernel does not drop what it has cached, and the lease is over: \
                         the mount is aborted"
                    );
                    self.membership.is_stuck.store(true, Ordering::Release);
                    self.stop.set();
                }
            }
            Some(since) => self.end_lapse(since),
            None => {}
        }
        if self.lease_left() > Duration(0) {
            self.resume_parked();
        }
    }

    /// The lease is over: the pages of all open files go; names end with their time-outs.
    fn begin_lapse(self: &Arc<Self>) {
        *lock(&self.membership.lapsed_at) = Some(clock::now());
        let mut gated: Vec<Vec<Request>> = vec![Vec::new(); SLICE_COUNT];
        let mut data = Vec::new();
        {
            let mut waiting = lock(&self.membership.waiting);
            waiting.is_lapsed = true;
            for parked in std::mem::take(&mut waiting.queue) {
                match parked {
                    Parked::Request(request) if is_gated(&request.operation) => {
                        gated[home_slice(&request.operation)].push(request);
                    }
                    Parked::Reply(ticket, Response::Data(spans), _) => data.push((ticket, spans)),
                    other => waiting.queue.push_back(other),
                }
            }
        }
        for (ticket, spans) in data {
            self.fail_data(ticket, spans);
        }
        for (slice, requests) in gated.into_iter().enumerate() {
            let copies = requests.clone();
            self.input(slice, Input::Lapsed(requests));
            copies.iter().for_each(|copy| self.release_payload(copy));
        }
        let left = self.lapse_state().map_or(0, |(_, left)| left);
        tracing::warn!(open_files = left, "the kernel drops what it has cached");
    }

    fn end_lapse(self: &Arc<Self>, since: types::Instant) {
        let lapsed_ms = clock::now().since(since).0 / 1_000_000;
        tracing::info!(lapsed_ms, "tokens are valid again: requests go on");
        *lock(&self.membership.lapsed_at) = None;
        lock(&self.membership.waiting).is_lapsed = false;
        for slice in 0..SLICE_COUNT {
            self.input(slice, Input::Regained);
        }
    }

    /// The lease is there: what waited goes on.
    fn resume_parked(self: &Arc<Self>) {
        let mut queue = lock(&self.membership.waiting).take();
        while let Some(parked) = queue.pop_front() {
            if self.must_park() {
                // Lapsed again: the rest waits in its order, before what came meanwhile.
                queue.push_front(parked);
                let mut waiting = lock(&self.membership.waiting);
                let is_message = |parked: &&Parked| matches!(parked, Parked::Message(..));
                waiting.message_count += queue.iter().filter(is_message).count();
                queue.append(&mut waiting.queue);
                waiting.queue = queue;
                return;
            }
            match parked {
                Parked::Request(request) => {
                    let copy = request.clone();
                    self.take_request(request);
                    self.release_payload(&copy);
                }
                Parked::Message(from, message) => {
                    if self.peer_life(from.node) == Some(from) {
                        self.handle_message(from, *message);
                    }
                }
                Parked::Reply(ticket, response, pinned) => {
                    let effect = Effect::Reply(ticket, response, pinned);
                    self.run(VecDeque::from([Item::Effect(effect)]));
                }
                Parked::Deferred(deferred) => {
                    let mut items = VecDeque::new();
                    self.deliver(*deferred, &mut items);
                    self.run(items);
                }
            }
        }
    }

    /// The daemon stops without a lease: what waits fails.
    pub(super) fn fail_parked(&self) {
        let queue = lock(&self.membership.waiting).take();
        for parked in queue {
            let ticket = match parked {
                Parked::Request(request) => {
                    self.release_payload(&request);
                    request.ticket
                }
                Parked::Reply(ticket, _, _) => ticket,
                Parked::Message(..) | Parked::Deferred(_) => continue,
            };
            self.answer(ticket, &Response::Error(Errno::EIO));
        }
    }

    /// An evicted life ends: the kernel forgets what it has cached, so that files that stay open do not
    /// show it (the rest of rule R8: first what waits fails, then the kernel is told, and the end of the
    /// process ends the connection). Bounded.
    pub(super) fn drop_kernel_caches(&self) {
        let until = std::time::Instant::now() + DROP_PATIENCE;
        let outstanding = Arc::new(AtomicU64::new(0));
        let (mut lost_count, mut lost_size) = (0, 0);
        for slice in &self.slices {
            let (tickets, known, lost) = {
                let slice = lock(slice);
                let (tickets, known) = slice.expired();
                (tickets, known, slice.uncommitted())
            };
            lost_count += lost.0;
            lost_size += lost.1;
            for ticket in tickets {
                self.answer(ticket, &Response::Error(Errno::EIO));
            }
            for ino in known {
                if !self.drop_inode(ino, &outstanding, until) {
                    break;
                }
            }
        }
        while outstanding.load(Ordering::Acquire) > 0 && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if lost_count > 0 {
            tracing::error!(
                files = lost_count,
                bytes = lost_size,
                "what this life had written and not committed is lost: open descriptors answer errors"
            );
        }
    }

    /// Has the kernel drop an inode; false: not in time.
    pub(super) fn drop_inode(
        &self,
        ino: InodeId,
        outstanding: &Arc<AtomicU64>,
        until: std::time::Instant,
    ) -> bool {
        let notice = Notice::Data {
            ino,
            offset: 0,
            length: 0,
        };
        loop {
            outstanding.fetch_add(1, Ordering::AcqRel);
            let count = Arc::clone(outstanding);
            let done = move |_| {
                count.fetch_sub(1, Ordering::AcqRel);
            };
            if self.notifier().notify(&notice, Box::new(done)).is_ok() {
                return true;
            }
            outstanding.fetch_sub(1, Ordering::AcqRel);
            if std::time::Instant::now() > until {
                return false;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
