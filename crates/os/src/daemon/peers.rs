//! Messages between nodes, and the NSD server's side: carries out what `node::{calls, facts, fences}` and
//! `nsd::{Server, Backlog}` decide.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use client::Pool as _;
use client::message::{Answer, Ask, Body};
use client::slice::{Input, slice_of};
use cluster::message::{KIND_TO_MANAGER, KIND_TO_MEMBER};
use node::message::FactResult;
use node::meta::view::{Fact, Origin, Query};
use node::moves::RENAME_TOKEN;
use node::{Find, Known, Message, Question, Work};
use nsd::message::{KIND_REPLY, KIND_REQUEST};
use nsd::server::{DiskTag, Effect as NsdEffect, Operation};
use types::frame::FRAME_SIZE;
use types::wire::{Flags, Header};
use types::{
    Decode, Encode, Epoch, Errno, Incarnation, NodeId, NodeLife, NsdId, RequestId, ShardId, Span,
};

use super::reclaim::FrameUser;
use super::sectors::SERVER_TAG;
use super::work::{EventTime, Item};
use super::{Daemon, Hub, lock};
use crate::clock;
use crate::disk::DiskError;
use crate::net::{self, Frame, Lane, Net};

/// Frame kind of `node::Message`.
pub(super) const KIND_NODE: u16 = 0x0401;

/// A reply of the NSD server that was refused is sent again after this.
const REPLY_PAUSE: types::Duration = types::Duration::from_millis(1);
/// Between two times that a link is broken because the peer says what cannot be read.
const BREAK_PAUSE: types::Duration = types::Duration::from_millis(5000);

/// A reply of the NSD server: to which life, and its lane.
#[derive(Debug)]
pub(super) struct NsdReply(NodeLife, u16, Frame);

impl Daemon {
    /// Makes the network, if there are other nodes, and begins when it is in hand: whoever is heard from then on is answered.
    pub(super) fn begin_network(&self, hub: &Arc<Hub>) -> Result<(), net::NetError> {
        let config = &self.config;
        if config.listen.is_none() && config.peers.is_empty() {
            return Ok(());
        }
        let peers = config.peers.iter().map(|peer| net::PeerAddress {
            node: peer.node,
            address: peer.address,
        });
        let own = net::Config {
            node: self.me.node,
            cluster: config.view.cluster,
            incarnation: self.me.incarnation,
            listen: config.listen,
            peers: peers.collect(),
            data_lane_count: config.loop_count.clamp(1, 4),
        };
        let made = Net::new(own, &self.loops, &self.pool, hub.clone())?;
        self.net.get_or_init(|| made).begin();
        Ok(())
    }

    /// Asks the owner of a shard: here directly, elsewhere by a message.
    pub(super) fn call_owner(
        self: &Arc<Self>,
        call: u64,
        shard: ShardId,
        ask: Ask,
        items: &mut VecDeque<Item>,
    ) {
        let owner = self.owner(shard);
        if owner == NodeId::default() {
            // No such shard: a file handle that was made up.
            let answer = Answer::bare(Body::Refused(Errno::ESTALE));
            return self.on_answer(call, Box::new(answer), items);
        }
        if owner == self.me.node {
            if call & super::DRIVER_CALL != 0 {
                lock(&self.calls).begin_own(call, shard);
            }
            self.ask_here(self.me, call, None, shard, ask, items);
            return;
        }
        let message = lock(&self.calls).begin(EventTime::get().now, call, (owner, shard), ask);
        if let Some(message) = message {
            self.send(owner, &message);
        }
    }

    /// A question has its answer: its slot goes to the next that waits. Returns the shard asked.
    pub(super) fn call_ended(&self, call: u64) -> Option<ShardId> {
        let (shard, next) = lock(&self.calls).ended(EventTime::get().now, call);
        if let Some((peer, message)) = next {
            self.send(peer, &message);
        }
        shard
    }

    fn ask_here(
        self: &Arc<Self>,
        from: NodeLife,
        call: u64,
        origin: Option<Origin>,
        shard: ShardId,
        ask: Ask,
        items: &mut VecDeque<Item>,
    ) {
        if matches!(ask, Ask::Space(_)) {
            self.take_regions(items);
        }
        let question =
            node::calls::question(EventTime::get().now, (from, call), origin, shard, ask);
        items.push_back(Item::Owner(question));
    }

    /// An owner's table of tokens is nearly full: each slice gives its part of what is idle.
    pub(super) fn reclaim_tokens(&self, shard: ShardId, count: u64, items: &mut VecDeque<Item>) {
        tracing::info!(shard = shard.0, count, "an owner wants unused tokens back");
        items.extend(
            client::reclaims(shard, count).map(|(slice, input)| Item::Client(slice, input)),
        );
    }

    /// Sends a message; one that cannot go is lost, and repeated by whoever waits for its answer.
    pub(super) fn send(&self, peer: NodeId, message: &Message) {
        let (lane, frame) = self.message_frame(message);
        self.count_unsent(self.send_frame(peer, lane, frame));
    }

    /// As `send`, to this life of a node or to nobody: the one after it numbers its questions anew, and must not take an answer for its own.
    pub(super) fn send_to(&self, peer: NodeLife, message: &Message) {
        let (lane, frame) = self.message_frame(message);
        self.count_unsent(self.send_frame_to_life(peer, lane, frame));
    }

    fn message_frame(&self, message: &Message) -> (Lane, Frame) {
        let lane = match message {
            Message::Revoke(_) | Message::Released { .. } => Lane::Priority,
            _ => Lane::Data(0),
        };
        self.counters.messages[message.class()].fetch_add(1, Ordering::Relaxed);
        let frame = Frame {
            kind: KIND_NODE,
            flags: Flags::default(),
            request: RequestId(0),
            epoch: self.membership.epoch(),
            meta: message.to_bytes(),
            payload: Vec::new(),
        };
        (lane, frame)
    }

    fn count_unsent(&self, sent: Result<(), Box<Frame>>) {
        if sent.is_err() {
            self.counters.unsent.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Hands a frame to the network; gives it back when it cannot go.
    pub(super) fn send_frame(
        &self,
        peer: NodeId,
        lane: Lane,
        frame: Frame,
    ) -> Result<(), Box<Frame>> {
        self.hand_over(frame, |net, frame| net.send(peer, lane, frame))
    }

    /// As `send_frame`, to this life of the peer or to nobody.
    pub(super) fn send_frame_to_life(
        &self,
        peer: NodeLife,
        lane: Lane,
        frame: Frame,
    ) -> Result<(), Box<Frame>> {
        self.hand_over(frame, |net, frame| net.send_to_life(peer, lane, frame))
    }

    /// A node that is alone has no network.
    fn hand_over(
        &self,
        frame: Frame,
        send: impl FnOnce(&Net, Frame) -> Result<(), net::SendError>,
    ) -> Result<(), Box<Frame>> {
        match self.net.get() {
            Some(net) => send(net, frame).map_err(|e| Box::new(e.into_frame())),
            None => Err(Box::new(frame)),
        }
    }

    pub(super) fn peer_life(&self, peer: NodeId) -> Option<NodeLife> {
        let incarnation = *lock(&self.peers).get(&peer)?;
        Some(NodeLife {
            node: peer,
            incarnation,
        })
    }

    fn on_message(self: &Arc<Self>, peer: NodeId, message: Message) {
        let Some(life) = self.peer_life(peer) else {
            return;
        };
        if self.must_park() {
            self.park_message(life, message);
        } else {
            self.handle_message(life, message);
        }
    }

    /// Does what a message says.
    pub(super) fn handle_message(self: &Arc<Self>, life: NodeLife, message: Message) {
        if !self.is_heard(life) {
            return;
        }
        if !is_sound(&message) {
            tracing::error!(
                node = life.node.0,
                "a message names another shard than its own: dropped"
            );
            return;
        }
        if let Message::Question { call, .. } = &message
            && !lock(&self.in_progress).begin(life, *call)
        {
            // A repeat of what is being worked on.
            return;
        }
        let peer = life.node;
        let mut items = VecDeque::new();
        match message {
            Message::Question {
                call,
                origin,
                shard,
                ask,
            } => {
                self.ask_here(life, call, origin, shard, ask, &mut items);
            }
            Message::Answer { call, answer } => {
                self.on_answer(call, Box::new(answer), &mut items);
            }
            Message::Revoke(revoke) if revoke.ino == RENAME_TOKEN => {
                self.revoke_moves(&revoke, &mut items);
            }
            Message::Revoke(revoke) => {
                items.push_back(Item::Client(
                    slice_of(revoke.ino),
                    Input::Revoke(peer, revoke),
                ));
            }
            Message::Reclaim { shard, count } => self.reclaim_tokens(shard, count, &mut items),
            Message::LockReady { ino, wait } => {
                let input = Input::LockReady(ino, wait);
                items.push_back(Item::Client(slice_of(ino), input));
            }
            Message::Released { shard, released } => {
                self.on_released(life, shard, &released, &mut items);
            }
            Message::Transaction(envelope) => {
                items.push_back(Item::Owner(Work::Transaction(Box::new(envelope))));
            }
            Message::AskFact { id, query } => self.find_fact(life, id, query, &mut items),
            Message::Fact { id, result } => self.on_fact(id, result, &mut items),
            Message::TakeRegions { .. }
            | Message::Regions { .. }
            | Message::GiveRegions { .. }
            | Message::RegionsBack { .. } => {
                self.on_region_message(peer, &message, &mut items);
            }
            Message::RecallSpace { id } => self.on_recall(peer, id, &mut items),
            Message::AskFree { id } => {
                let free = self.own_free();
                self.send(peer, &Message::Free { id, free });
            }
            Message::Free { id, free } => self.on_free(peer, id, free),
            Message::AskHeld { epoch } => self.tell_held(peer, epoch),
            Message::Held { epoch, shard, part } => self.on_held(life, epoch, shard, &part),
            Message::Serving { epoch } => self.on_serving(peer, epoch),
            Message::AskFenced { life, epoch } => self.on_ask_fenced(peer, life, epoch),
            Message::Fenced { life } => self.on_fenced(peer, life),
            Message::Stopping { round } => self.on_stopping(life, round),
            Message::WrittenBack { round, is_last } => self.on_written_back(life, round, is_last),
        }
        self.run(items);
    }

    /// An operation needs to know something of another owner's shard.
    pub(super) fn ask_facts(
        self: &Arc<Self>,
        question: Box<Question>,
        queries: Vec<Query>,
        items: &mut VecDeque<Item>,
    ) {
        // One fact at a time: the next run asks for the next.
        let Some(query) = queries.into_iter().next() else {
            items.push_back(Item::Owner(Work::Question(question)));
            return;
        };
        let shard = match &query {
            Query::Entry { directory, .. } => directory.shard(),
            Query::Ancestors { directory } => return self.begin_move(question, *directory, items),
            Query::Number { shard } => *shard,
            Query::Attributes { ino } => ino.shard(),
        };
        let id = self.draw_call();
        let owner = self.owner(shard);
        let message = lock(&self.facts).ask(id, owner, query, question);
        self.send(owner, &message);
    }

    pub(super) fn find_fact(
        self: &Arc<Self>,
        from: NodeLife,
        id: u64,
        query: Query,
        items: &mut VecDeque<Item>,
    ) {
        let found = lock(&self.facts).find(EventTime::get().now, from, id, query);
        match found {
            Find::Run(work) => items.push_back(Item::Owner(work)),
            Find::Running => {}
            Find::Number(shard) => {
                let slice = self.shards.get(usize::from(shard.0));
                let result = match slice.and_then(Option::as_ref) {
                    Some(slice) => {
                        let ino = lock(slice).shard.reserve_index();
                        FactResult::Found(Fact::Number { ino })
                    }
                    None => FactResult::Failed(Errno::ESTALE),
                };
                self.send_to(from, &Message::Fact { id, result });
            }
        }
    }

    /// An operation that an owner runs for a fact has its answer.
    pub(super) fn answer_fact(
        self: &Arc<Self>,
        to: NodeLife,
        call: u64,
        answer: Answer,
        items: &mut VecDeque<Item>,
    ) {
        let Some((id, result)) = lock(&self.facts).answered(to, call, answer) else {
            return;
        };
        if to == self.me {
            self.on_fact(id, result, items);
        } else {
            self.send_to(to, &Message::Fact { id, result });
        }
    }

    fn on_fact(self: &Arc<Self>, id: u64, result: FactResult, items: &mut VecDeque<Item>) {
        let known = lock(&self.facts).on_fact(id, result);
        match known {
            Some(Known::Run(work)) => items.push_back(Item::Owner(work)),
            Some(Known::Walk(question, chain)) => self.walk_on(question, &chain, items),
            None => {}
        }
    }

    /// Says again what a broken link may have lost.
    fn repeat_to(self: &Arc<Self>, peer: NodeId) {
        if self.must_park() {
            // As below; what is stale by then is said when the lease is back.
            return;
        }
        let mut messages: Vec<Message> = lock(&self.calls).of_peer(peer).collect();
        for (owner, message) in lock(&self.facts).unanswered() {
            if owner == peer {
                messages.push(message.clone());
            }
        }
        for message in messages {
            self.send(peer, &message);
        }
    }

    /// Says again what has had no answer for long: a full queue drops messages, and so may the other side.
    pub(super) fn repeat_stale(self: &Arc<Self>) {
        if self.must_park() {
            // Nothing is answered without a lease, and others may have none, too: each copy would wait there.
            return;
        }
        let mut messages = lock(&self.calls).stale(clock::now());
        for (owner, message) in lock(&self.facts).unanswered() {
            if owner != self.me.node {
                messages.push((owner, message.clone()));
            }
        }
        messages.extend(self.region_repeats());
        self.ask_fences();
        for (peer, message) in messages {
            self.send(peer, &message);
        }
    }

    /// Allocates spans for `size` bytes: whole slabs, then single frames.
    fn alloc_spans(&self, size: usize) -> Vec<Span> {
        let slab = crate::pool::SLAB_SIZE;
        let mut spans = Vec::new();
        let mut left = size;
        while left > 0 {
            // Single frames where no whole slab is free.
            let whole = (left >= slab).then(|| self.pool.alloc_slab()).flatten();
            let (frame, length) = match whole {
                Some(frame) => (Some(frame), slab),
                None => (self.pool.alloc(), left.min(FRAME_SIZE)),
            };
            let Some(frame) = frame else {
                spans.iter().for_each(|span| self.pool.release_span(*span));
                return Vec::new();
            };
            let length = u32::try_from(length).expect("at most a slab");
            spans.push(Span {
                frame,
                offset: 0,
                length,
            });
            left -= length as usize;
        }
        spans
    }

    /// What the NSD server wants done.
    fn nsd_effects(self: &Arc<Self>, effects: Vec<NsdEffect>) {
        for effect in effects {
            match effect {
                NsdEffect::Disk { tag, operation, .. } => self.serve_disk(tag, operation),
                NsdEffect::Reply {
                    to,
                    request,
                    reply,
                    payload,
                } => {
                    let frame = Frame {
                        kind: KIND_REPLY,
                        flags: Flags::default(),
                        request,
                        epoch: Epoch(0),
                        meta: reply.to_bytes(),
                        payload,
                    };
                    let lane = u16::try_from(request.0 % 64).expect("below 64");
                    self.send_reply(NsdReply(to, lane, frame));
                }
                NsdEffect::Drop { payload } => {
                    payload
                        .iter()
                        .for_each(|span| self.pool.release_span(*span));
                }
                NsdEffect::Fenced { life, epoch } => {
                    tracing::info!(node = life.node.0, epoch = epoch.0, "fenced");
                    self.tell_fenced(life);
                }
            }
        }
    }

    /// Sends a reply of the NSD server to the life that asked: the one after it counts its requests anew. One that the link's queue has
    /// no room for waits until it has.
    fn send_reply(self: &Arc<Self>, NsdReply(life, lane, frame): NsdReply) {
        let net = self.net.get().expect("who asked came over the network");
        let to = life.node;
        let sent = net.send_to_life(life, Lane::Data(lane), frame);
        let frame = match sent {
            Ok(()) => return,
            // The asker repeats a read when the link is back, and takes other sectors for a write.
            Err(net::SendError::Down(frame)) => return self.drop_reply(&frame),
            Err(net::SendError::Full(frame)) => frame,
        };
        let kept = lock(&self.backlog).push(to, NsdReply(life, lane, frame));
        match kept {
            Ok(true) => {
                let daemon = Arc::clone(self);
                let at = clock::now() + REPLY_PAUSE;
                let again = Box::new(move || daemon.send_backlog(to));
                self.loops.post_at(0, at, again);
            }
            Ok(false) => {}
            Err(NsdReply(_, _, frame)) => {
                tracing::warn!(node = to.0, "too many replies wait: the link is broken");
                self.drop_reply(&frame);
                self.drop_backlog(to);
                net.reset(to);
            }
        }
    }

    fn send_backlog(self: &Arc<Self>, to: NodeId) {
        let waiting = lock(&self.backlog).take(to);
        for reply in waiting {
            self.send_reply(reply);
        }
    }

    /// The link to a node has broken: it repeats what it wants to know.
    fn drop_backlog(&self, to: NodeId) {
        let waiting = lock(&self.backlog).take(to);
        for NsdReply(_, _, frame) in waiting {
            self.drop_reply(&frame);
        }
    }

    fn drop_reply(&self, frame: &Frame) {
        let spans = frame.payload.iter();
        spans.for_each(|span| self.pool.release_span(*span));
    }

    /// An owner wants to use the sectors of a dead life again.
    fn on_ask_fenced(self: &Arc<Self>, from: NodeId, life: NodeLife, epoch: Epoch) {
        if life == self.me {
            tracing::error!(node = from.0, "asked to fence this life: ignored");
            return;
        }
        lock(&self.fences).on_ask(from, life);
        let mut out = Vec::new();
        lock(&self.server).on_fence(life, epoch, &mut out);
        self.nsd_effects(out);
    }

    fn tell_fenced(self: &Arc<Self>, life: NodeLife) {
        let askers = lock(&self.fences).drained(life);
        for to in askers {
            if to == self.me.node {
                self.on_fenced(to, life);
            } else {
                self.send(to, &Message::Fenced { life });
            }
        }
    }

    /// A server has fenced a dead life: with the last one's word its sectors are free.
    fn on_fenced(&self, from: NodeId, life: NodeLife) {
        if lock(&self.fences).on_fenced(from, life) {
            tracing::info!(node = life.node.0, "a former life's sectors are free");
            lock(&self.log).free_life(life);
        }
    }

    /// Asks NSD servers that have not fenced a dead life.
    pub(super) fn ask_fences(self: &Arc<Self>) {
        let asks = lock(&self.fences).asks();
        let epoch = self.membership.epoch();
        for (server, life) in asks {
            if server == self.me.node {
                self.on_ask_fenced(server, life, epoch);
            } else {
                self.send(server, &Message::AskFenced { life, epoch });
            }
        }
    }

    /// The asker tries again later.
    fn nsd_busy(self: &Arc<Self>, to: NodeLife, request: RequestId) {
        let reply = nsd::Reply::Failed {
            error: nsd::NsdError::Busy,
            verifier: nsd::Verifier::of(self.me.incarnation),
        };
        self.nsd_effects(vec![NsdEffect::Reply {
            to,
            request,
            reply,
            payload: Vec::new(),
        }]);
    }

    /// Later: the disk's queue was full.
    fn serve_disk_later(self: &Arc<Self>, tag: DiskTag, operation: Operation) {
        let daemon = Arc::clone(self);
        let at = clock::now() + types::Duration::from_millis(1);
        let again = Box::new(move || daemon.serve_disk(tag, operation));
        self.loops.post_at(0, at, again);
    }

    fn serve_disk(self: &Arc<Self>, tag: DiskTag, operation: Operation) {
        let nsd = lock(&self.server_nsds).get(&tag.0).copied();
        let Some(disk) = nsd.and_then(|nsd| self.disk(nsd)).map(Arc::clone) else {
            return;
        };
        let own = tag.0 | SERVER_TAG;
        let (spans, result) = match &operation {
            Operation::Read { sector, count } => {
                let spans = self.alloc_spans(*count as usize * FRAME_SIZE);
                if spans.is_empty() {
                    let again = move |daemon: &Arc<Self>| daemon.serve_disk(tag, operation);
                    return self.when_frames(FrameUser::Server, again);
                }
                lock(&self.server_spans).insert(tag.0, (spans.clone(), true));
                let result = disk.read(own, *sector, &spans);
                (spans, result)
            }
            Operation::Write {
                sector,
                payload,
                fua,
                ..
            } => {
                lock(&self.server_spans).insert(tag.0, (payload.clone(), false));
                let result = if *fua {
                    disk.write_durable(own, *sector, payload)
                } else {
                    disk.write(own, *sector, payload)
                };
                (Vec::new(), result)
            }
            Operation::Flush => (Vec::new(), disk.flush(own)),
        };
        if result.is_err() {
            lock(&self.server_spans).remove(&tag.0);
            spans.iter().for_each(|span| self.pool.release_span(*span));
            self.serve_disk_later(tag, operation);
        }
    }

    /// A disk has done work of the NSD server.
    pub(super) fn server_disk_done(self: &Arc<Self>, tag: u64, result: Result<(), DiskError>) {
        let held = lock(&self.server_spans).remove(&tag);
        let result = match (result, held) {
            (Ok(()), Some((spans, true))) => Ok(spans),
            (Ok(()), Some((spans, false))) => {
                spans.iter().for_each(|span| self.pool.release_span(*span));
                Ok(Vec::new())
            }
            (Ok(()), None) => Ok(Vec::new()),
            (Err(error), held) => {
                tracing::error!(%error, "disk I/O for another node failed");
                for span in held.into_iter().flat_map(|(spans, _)| spans) {
                    self.pool.release_span(span);
                }
                Err(Errno::EIO)
            }
        };
        self.server_ended(tag, result);
    }

    fn server_ended(self: &Arc<Self>, tag: u64, result: Result<Vec<Span>, Errno>) {
        let nsd = lock(&self.server_nsds).remove(&tag);
        let own = nsd.and_then(|nsd| Some((nsd, self.disks.get(&nsd)?.disk().loss_count())));
        let mut out = Vec::new();
        {
            let mut server = lock(&self.server);
            if let Some((nsd, losses)) = own {
                server.on_losses(nsd, losses);
            }
            server.on_disk_done(DiskTag(tag), result, &mut out);
        }
        self.note_nsds(&out);
        self.nsd_effects(out);
    }

    /// Which NSD each piece of the server's work is for.
    fn note_nsds(&self, effects: &[NsdEffect]) {
        let mut nsds = lock(&self.server_nsds);
        for effect in effects {
            if let NsdEffect::Disk { tag, disk, .. } = effect {
                let index = usize::try_from(*disk).expect("an index");
                if let Some(nsd) = self.disks.keys().nth(index) {
                    nsds.insert(tag.0, *nsd);
                }
            }
        }
    }
}

/// The inodes that a message is about lie in the shard that it names.
fn is_sound(message: &Message) -> bool {
    match message {
        Message::Question { shard, ask, .. } => match ask {
            Ask::Op { op, .. } => op.home() == *shard,
            Ask::Acquire { ino, .. } | Ask::Lock { ino, .. } => ino.shard() == *shard,
            Ask::Space(_) | Ask::Sync => true,
        },
        Message::Released { shard, released } => released.ino.shard() == *shard,
        Message::Held { shard, part, .. } => {
            let locked = part.locks.iter().map(|held| held.ino);
            let mut all = part.holdings.iter().map(|held| held.ino).chain(locked);
            all.all(|ino| ino.shard() == *shard)
        }
        _ => true,
    }
}

impl net::Handler for Hub {
    fn place(&self, _peer: NodeId, header: &Header, _meta: &[u8]) -> Vec<Span> {
        let Some(daemon) = self.daemon() else {
            return Vec::new();
        };
        if header.kind == KIND_REPLY {
            daemon.place_reply(header.request, header.data_length)
        } else {
            daemon.alloc_spans(header.data_length as usize)
        }
    }

    fn on_frame(&self, peer: NodeId, header: &Header, meta: &[u8], payload: Vec<Span>) {
        let Some(daemon) = self.daemon() else { return };
        match header.kind {
            KIND_REPLY => daemon.on_nsd_reply(header.request, meta, payload),
            KIND_REQUEST => {
                let request = nsd::Request::from_bytes(meta, "NSD request");
                let request = request.map_err(|error| daemon.break_link(peer, &error));
                let (Ok(request), Some(life)) = (request, daemon.peer_life(peer)) else {
                    payload
                        .iter()
                        .for_each(|span| daemon.pool.release_span(*span));
                    return;
                };
                if header.data_length > 0 && payload.is_empty() {
                    // No memory for the payload: push back.
                    return daemon.nsd_busy(life, header.request);
                }
                let mut out = Vec::new();
                lock(&daemon.server).on_request(life, header.request, request, payload, &mut out);
                daemon.note_nsds(&out);
                daemon.nsd_effects(out);
            }
            KIND_NODE => {
                payload
                    .iter()
                    .for_each(|span| daemon.pool.release_span(*span));
                match Message::from_bytes(meta, "message") {
                    Ok(message) => daemon.on_message(peer, message),
                    Err(error) => daemon.break_link(peer, &error),
                }
            }
            KIND_TO_MANAGER | KIND_TO_MEMBER => {
                payload
                    .iter()
                    .for_each(|span| daemon.pool.release_span(*span));
                daemon.on_membership_frame(peer, header.kind, meta);
            }
            kind => {
                payload
                    .iter()
                    .for_each(|span| daemon.pool.release_span(*span));
                daemon.break_link(peer, &format_args!("kind {kind} is not known"));
            }
        }
    }

    fn on_peer_up(&self, peer: NodeId, incarnation: Incarnation) {
        if let Some(daemon) = self.daemon() {
            daemon.peer_up(peer, incarnation);
        }
    }

    fn on_peer_down(&self, peer: NodeId) {
        if let Some(daemon) = self.daemon() {
            tracing::info!(node = peer.0, "the link is down");
            daemon.on_server_down(peer);
            daemon.drop_backlog(peer);
        }
    }
}

impl Daemon {
    /// A message of `peer` cannot be read: the link ends, so that the peer repeats what it has asked, and nothing is taken
    /// for done. One that comes again and again breaks the link once a `BREAK_PAUSE`.
    pub(super) fn break_link(&self, peer: NodeId, why: &dyn std::fmt::Display) {
        let now = clock::now();
        let former = {
            let mut breaks = lock(&self.breaks);
            let former = breaks.get(&peer).copied();
            if former.is_some_and(|at| now.since(at) < BREAK_PAUSE) {
                tracing::debug!(node = peer.0, %why, "another message that cannot be read");
                return;
            }
            breaks.insert(peer, now)
        };
        let is_first = former.is_none();
        tracing::error!(node = peer.0, %why, is_first, "a message cannot be read: the link is broken");
        if let Some(net) = self.net.get() {
            net.reset(peer);
        }
    }

    fn peer_up(self: &Arc<Self>, peer: NodeId, incarnation: Incarnation) {
        let former = lock(&self.peers).insert(peer, incarnation);
        tracing::info!(node = peer.0, "the link is up");
        self.membership_connected(peer);
        if former.is_some_and(|former| former != incarnation) {
            self.peer_began_anew(peer);
        }
        self.repeat_to(peer);
        self.resend_to_servers();
    }

    /// Another process of a node is there: the one before has ended, with the writes that it was sent; what it
    /// answered last may be lost.
    fn peer_began_anew(self: &Arc<Self>, peer: NodeId) {
        let served: Vec<NsdId> = (self.config.view.nsds.iter())
            .filter(|nsd| !self.disks.contains_key(&nsd.id) && nsd.servers.first() == Some(&peer))
            .map(|nsd| nsd.id)
            .collect();
        self.hands.with(|hands| {
            hands.server_ended(&served);
            hands.of(peer).on_owner_restarted();
        });
        if self.owner(ShardId(0)) == peer {
            let mut items = VecDeque::new();
            self.learn_regions(&mut items);
            self.run(items);
        }
    }

    /// A life is over: what it held here is free. Its sectors are kept apart, as it may still write to them; `is_gone`,
    /// its process has ended: they are free as soon as every NSD server has fenced it (`ask_fences`).
    pub(super) fn life_ended(
        self: &Arc<Self>,
        life: NodeLife,
        is_gone: bool,
        items: &mut VecDeque<Item>,
    ) {
        tracing::info!(
            node = life.node.0,
            is_gone,
            "a node's former life is over: its tokens are free"
        );
        let env = self.owner_env();
        let mut out = Vec::new();
        for slice in self.shards.iter().flatten() {
            let mut slice = lock(slice);
            let mut log = lock(&self.log);
            slice.on_node_lost(&env, &mut log, life, &mut out);
        }
        if is_gone {
            lock(&self.in_progress).life_ended(life);
        }
        lock(&self.log).quarantine_life(life);
        if is_gone {
            let nsds = self.config.view.nsds.iter();
            let servers = nsds.filter_map(|nsd| nsd.servers.first().copied());
            if lock(&self.fences).begin(env.now, life, servers) {
                lock(&self.log).free_life(life);
            }
        }
        self.gather_life_ended(life, items);
        lock(&self.facts).life_ended(life);
        lock(&self.farewells).ended(life);
        lock(&self.held_work).retain(|work| !matches!(work, Work::Question(q) if q.from == life));
        items.extend(out.into_iter().map(Item::OwnerEffect));
    }
}
