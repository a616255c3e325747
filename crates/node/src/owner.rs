//! The owner half: a shard with its token manager, and how a question runs on it.
//!
//! ```text
//! Question -> wants() -> covered? --no--> Manager::acquire -> parked .. Granted -> run again
//!                          | yes
//!                       execute -> NeedShards: the driver locks more and runs it again
//!                          |    -> NeedKeys: the driver reads them from the trees (`crate::fetch`) and runs it again
//!                          |    -> NeedFacts, NeedOwners: other owners (transaction)
//!                       one journal record (shards and space) -> Answer, after it is durable where it must be
//! ```
//!
//! Invariants
//! - A question that is not answered yet is in exactly one place: on the driver's stack, parked here under a
//!   ticket or a transaction, or among the driver's questions for facts.
//! - What changes is in the journal's buffer before the shards are unlocked.
//! - An answer to another node, and everything that a transaction says, leaves after what it shows is
//!   durable (commit on share).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use client::message::{Ask, Body};
use meta::view::{Context, Held};
use meta::{Executed, Op, Outcome, Reply, Shard, View, transaction};
use smallvec::SmallVec;
use token::message::{Acquire, Granted, Released};
use token::{Effect as TokenEffect, Manager};
use types::{
    ByteRange, Errno, FileKind, InodeId, InodeMode, Instant, Lsn, NodeId, NodeLife, Pattern,
    RangeMode, ShardId, TokenKind, TokenNumber, Want,
};

use crate::log::{OwnerLog, PieceRoom};
use crate::question::{ListingState, OwnerEffect, OwnerEnv, Question, Work};
use crate::steps::{attribute_want, progress_id};
use crate::supply;

mod acquire;
mod listing;
mod locks;
mod promises;
mod tend;
mod transactions;

/// What has been run so often, and has waited for so long, gives up: bounds what a storm of revokes can do, and transactions that are never
/// over. The time is far beyond that of an eviction and a grace period, for a program does not expect EAGAIN.
const TRIES_MAX: u32 = 1000;
const TRIES_PATIENCE: types::Duration = types::Duration::from_secs(120);
/// Lives that are remembered as over: no question is on its way for longer than so many deaths.
const LOST_COUNT_MAX: usize = 64;
/// How long an operation waits for the journal to move to its other half before it is told ENOSPC.
const ROOM_PATIENCE: types::Duration = types::Duration::from_secs(20);
/// A holder that is no node: what it wants, nobody else may hold.
const NOBODY: NodeLife = NodeLife {
    node: NodeId(0),
    incarnation: types::Incarnation(0),
};
/// Marks the tickets of operations among those of a node's own questions.
const OPERATION_TICKET: u64 = 1 << 63;

/// A shard as its owner keeps it.
#[derive(Debug)]
pub struct OwnerSlice {
    /// Metadata.
    pub shard: Shard,
    /// Tokens.
    pub tokens: Manager,
    /// Locks of applications.
    pub locks: token::Locks,
    /// The last record that changed it.
    pub last_lsn: Lsn,
    parked: BTreeMap<u64, Work>,
    /// What only time brings on, and what it waits for.
    waiting: Vec<(&'static str, Work)>,
    /// What gave way to older transactions at other owners, and until when it pauses.
    paused: Vec<(Instant, Work)>,
    /// Lives that are over, newest last: what they asked and is still on its way is not run any more, for
    /// nobody would ever give the tokens back that it takes.
    lost: VecDeque<NodeLife>,
    next_ticket: u64,
    /// In the grace period: what members that have begun to speak had open by the record, and have not named.
    pub(crate) unheard_opens: BTreeMap<NodeLife, BTreeSet<u64>>,
    /// What has no name, and is on record as open at a life that has said in the grace period that it is not.
    pub(crate) not_open: Vec<(InodeId, NodeLife)>,
    /// For effects of the token manager, kept so that it need not grow anew; empty between calls.
    effects: Vec<TokenEffect>,
}

/// Why work has not been run: nothing has changed.
#[derive(Debug)]
pub enum Need {
    /// More shards: lock all of them, in id order, and run the work again.
    Shards(Vec<ShardId>, Work),
    /// Inodes that are in the trees of their shards alone: have them read (`Fetches::want`), then run the work again.
    Keys(Vec<InodeId>, Work),
}

impl OwnerSlice {
    /// A shard as recovery left it.
    pub fn new(shard: Shard, tokens: Manager, last_lsn: Lsn) -> Self {
        Self {
            shard,
            tokens,
            locks: token::Locks::new(),
            last_lsn,
            parked: BTreeMap::new(),
            waiting: Vec::new(),
            paused: Vec::new(),
            lost: VecDeque::new(),
            next_ticket: OPERATION_TICKET,
            unheard_opens: BTreeMap::new(),
            not_open: Vec::new(),
            effects: Vec::new(),
        }
    }

    /// A holder says what is left.
    pub fn on_released(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        from: NodeLife,
        released: &Released,
        out: &mut Vec<OwnerEffect>,
    ) {
        let mut effects = Vec::new();
        // What does not go with our record is a late message of an earlier state: its sender holds no
        // more than what we have recorded, and has said since whether it has the inode open.
        let heard = self
            .tokens
            .on_released(env.now, from, released, &mut effects);
        if heard == Ok(true) {
            self.note_open(env, log, (released.ino, from, released.still_open), out);
        }
        self.on_token_effects(effects, out);
    }

    /// A life has an inode open, or has not any more: what is without a name goes with the last one.
    pub(crate) fn note_open(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        (ino, life, is_open): (InodeId, NodeLife, bool),
        out: &mut Vec<OwnerEffect>,
    ) {
        let changes = self.shard.note_open(ino, life, is_open);
        self.note_reaped(env, log, &changes, out);
    }

    /// Journals changes that may remove inodes.
    pub(crate) fn note_reaped(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        changes: &meta::Changes,
        out: &mut Vec<OwnerEffect>,
    ) {
        if !changes.mutations.is_empty() {
            self.last_lsn = log.append_changes(self.shard.id(), changes);
            log.note_promised(&self.shard);
        }
        for (_, mutation) in &changes.mutations {
            self.note_removal(env.now, mutation, out);
        }
    }

    /// A life is over: its tokens are free, its opens and answers are dropped.
    pub fn on_node_lost(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        life: NodeLife,
        out: &mut Vec<OwnerEffect>,
    ) {
        if self.lost.len() >= LOST_COUNT_MAX {
            self.lost.pop_front();
        }
        self.lost.push_back(life);
        self.unheard_opens.remove(&life);
        self.not_open.retain(|(_, of)| *of != life);
        let changes = self.shard.on_node_lost(life);
        if !changes.mutations.is_empty() {
            self.last_lsn = log.append_changes(self.shard.id(), &changes);
            log.note_promised(&self.shard);
        }
        for (_, mutation) in &changes.mutations {
            self.note_removal(env.now, mutation, out);
        }
        self.parked.retain(|_, work| match work {
            Work::Question(q) if q.from == life => {
                q.dropped(out);
                false
            }
            Work::Question(_) | Work::Transaction(_) | Work::Unreadable(_) | Work::Tend { .. } => {
                true
            }
        });
        self.lose_locks(life, out);
        let mut effects = Vec::new();
        self.tokens.on_node_lost(env.now, life, &mut effects);
        self.on_token_effects(effects, out);
    }

    /// Time has passed: repeats of revokes and transaction messages, waits that are over.
    pub fn on_tick(&mut self, env: &OwnerEnv<'_>, out: &mut Vec<OwnerEffect>) {
        if self.tokens.next_timeout().is_some_and(|at| at <= env.now) {
            let mut effects = Vec::new();
            self.tokens.on_timeout(env.now, &mut effects);
            self.on_token_effects(effects, out);
        }
        self.resume_waiting(out);
        self.resume_paused(env.now, out);
        self.begin_tending(out);
    }

    /// Runs again what has paused for long enough.
    pub fn resume_paused(&mut self, now: Instant, out: &mut Vec<OwnerEffect>) {
        let over = self.paused.extract_if(.., |(until, _)| *until <= now);
        out.extend(over.map(|(_, work)| OwnerEffect::Run(work)));
    }

    /// Transaction messages that were not answered: to be said again from time to time.
    pub fn repeats(&self, out: &mut Vec<OwnerEffect>) {
        for envelope in transaction::repeat_messages(&self.shard) {
            out.push(OwnerEffect::Transaction(Box::new(envelope), self.last_lsn));
        }
    }

    /// Some transaction has begun here and has not been confirmed by all.
    pub fn has_transactions(&self) -> bool {
        !transaction::repeat_messages(&self.shard).is_empty()
    }

    /// Nothing is under way here that only time brings on.
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty()
            && self.paused.is_empty()
            && self.tokens.next_timeout().is_none()
            && !self.shard.has_to_tend()
    }

    fn resume_waiting(&mut self, out: &mut Vec<OwnerEffect>) {
        for (_, work) in std::mem::take(&mut self.waiting) {
            out.push(OwnerEffect::Run(work));
        }
    }

    /// Tokens granted, and requests that wait for some. O(1).
    pub fn token_counts(&self) -> (usize, usize) {
        (self.tokens.token_count(), self.tokens.waiting_count())
    }

    /// Who has not answered a revoke of tokens for the longest time, and since when: of those on `ino`, where that is
    /// given, else of all of this shard.
    pub fn silent_holder(&self, ino: Option<InodeId>) -> Option<(Instant, NodeLife)> {
        self.tokens.silent_holder(ino)
    }

    /// Shards that transactions which have begun here wait for.
    pub fn transaction_targets(&self) -> Vec<ShardId> {
        let messages = transaction::repeat_messages(&self.shard);
        messages.iter().map(|envelope| envelope.to).collect()
    }

    /// Questions parked here, and since when: for `gupfs waiters`.
    pub fn waiters(&self) -> Vec<(String, Instant)> {
        let mut all = Vec::new();
        let parked = self.parked.values().map(|work| ("tokens", work));
        let waiting = self.waiting.iter().map(|(what, work)| (*what, work));
        let paused = self.paused.iter();
        let paused = paused.map(|(_, work)| {
            (
                "what a transaction of another owner holds or has changed",
                work,
            )
        });
        for (what, work) in parked.chain(waiting).chain(paused) {
            match work {
                Work::Question(q) => {
                    all.push((
                        format!("{:?} of {:?} waits for {what}", q.ask, q.from.node),
                        q.since,
                    ));
                }
                Work::Transaction(envelope) | Work::Unreadable(envelope) => {
                    all.push((
                        format!("transaction {:?} waits for {what}", envelope.id),
                        Instant(0),
                    ));
                }
                // Nobody waits for it.
                Work::Tend { .. } => {}
            }
        }
        for waiting in self.tokens.waiters() {
            let what = format!(
                "{:?} wants {:?} of {} and waits for {:?}",
                waiting.holder.node, waiting.wants, waiting.ino, waiting.waits_for
            );
            all.push((what, waiting.since));
        }
        all.extend(self.lock_waiters());
        all
    }

    /// Forgets the tokens of an inode that is gone.
    fn note_removal(
        &mut self,
        now: Instant,
        mutation: &meta::Mutation,
        out: &mut Vec<OwnerEffect>,
    ) {
        let meta::Mutation::InodeRemove { index } = mutation else {
            return;
        };
        let ino = InodeId::new(self.shard.id(), *index);
        self.locks.on_inode_gone(ino);
        let mut effects = Vec::new();
        self.tokens.on_inode_gone(now, ino, &mut effects);
        self.on_token_effects(effects, out);
    }

    fn on_token_effects(&mut self, effects: Vec<TokenEffect>, out: &mut Vec<OwnerEffect>) {
        for effect in effects {
            match effect {
                TokenEffect::Revoke { to, message } => out.push(OwnerEffect::Revoke(to, message)),
                TokenEffect::Granted { message, .. } => {
                    if let Some(mut work) = self.parked.remove(&message.ticket) {
                        if let Work::Question(question) = &mut work
                            && message.number != TokenNumber(0)
                        {
                            question.keep_grant(message);
                        }
                        out.push(OwnerEffect::Run(work));
                    }
                }
                TokenEffect::Refused { message, .. } => {
                    if let Some(Work::Question(q)) = self.parked.remove(&message.ticket) {
                        out.push(OwnerEffect::Run(q.to_be_refused(Errno::EAGAIN)));
                    }
                }
                TokenEffect::Silent { holder, since } => {
                    out.push(OwnerEffect::Silent(holder, since));
                }
                TokenEffect::Reclaim { to, message } => {
                    let shard = self.shard.id();
                    out.push(OwnerEffect::Reclaim(to, shard, message.count));
                }
            }
        }
    }

    /// Asks for tokens in a node's name and parks the work until they are there; hands the work back
    /// when they are there at once.
    fn acquire(
        &mut self,
        now: Instant,
        acquire: Acquire,
        work: Work,
        out: &mut Vec<OwnerEffect>,
    ) -> Option<Work> {
        let ticket = acquire.ticket;
        let mut effects = Vec::new();
        self.parked.insert(ticket, work);
        if self.tokens.acquire(now, acquire, &mut effects).is_err() {
            let work = self.parked.remove(&ticket);
            if let Some(Work::Question(q)) = work {
                out.push(OwnerEffect::Run(q.to_be_refused(Errno::EAGAIN)));
            }
            return None;
        }
        // A grant at once gives the work back to the caller instead of through the driver.
        let at = effects.iter().position(
            |e| matches!(e, TokenEffect::Granted { message, .. } if message.ticket == ticket),
        );
        let granted = at.map(|at| effects.remove(at));
        self.on_token_effects(effects, out);
        let Some(TokenEffect::Granted { message, .. }) = granted else {
            return None;
        };
        let mut work = self.parked.remove(&ticket)?;
        if let Work::Question(question) = &mut work
            && message.number != TokenNumber(0)
        {
            question.keep_grant(message);
        }
        Some(work)
    }

    /// The same message is waiting already: a repeat adds nothing, and each would ask for the tokens once more.
    fn is_waiting_for(&self, envelope: &meta::Envelope) -> bool {
        let waiting = self.waiting.iter().map(|(_, work)| work);
        let mut all = self.parked.values().chain(waiting);
        all.any(|work| matches!(work, Work::Transaction(other) if **other == *envelope))
    }

    fn draw_ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }

    /// Gives a node tokens on `ino` if nobody else stands against them.
    fn grant_if_clear(
        &mut self,
        now: Instant,
        holder: NodeLife,
        ino: InodeId,
        wants: Vec<Want>,
    ) -> Option<Granted> {
        if self.tokens.is_covered(holder, ino, &wants) || !self.tokens.is_clear(holder, ino, &wants)
        {
            return None;
        }
        let ticket = self.draw_ticket();
        let seen = TokenNumber(0);
        let acquire = Acquire {
            holder,
            ticket,
            ino,
            seen,
            wants,
            transient: false,
        };
        let mut effects = std::mem::take(&mut self.effects);
        let outcome = self.tokens.acquire(now, acquire, &mut effects);
        let granted = effects.drain(..).find_map(|e| match e {
            TokenEffect::Granted { message, .. } if message.ticket == ticket => Some(message),
            _ => None,
        });
        self.effects = effects;
        granted.filter(|_| outcome.is_ok())
    }
}

/// What has to be there before anything is decided.
enum Missing {
    Shards(Vec<ShardId>),
    Keys(Vec<InodeId>),
}

/// Locked slices; nearly every operation needs one or two.
pub type Slices<'a> = SmallVec<[&'a mut OwnerSlice; 4]>;

/// The shards that are locked now, by id.
pub struct Locked<'a> {
    slices: Slices<'a>,
}

impl std::fmt::Debug for Locked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids = self.slices.iter().map(|s| s.shard.id());
        f.debug_list().entries(ids).finish()
    }
}

impl<'a> Locked<'a> {
    /// The shards whose locks the caller holds.
    pub fn new(slices: impl IntoIterator<Item = &'a mut OwnerSlice>) -> Self {
        Self {
            slices: slices.into_iter().collect(),
        }
    }

    fn slice(&mut self, id: ShardId) -> Option<&mut OwnerSlice> {
        self.slices
            .iter_mut()
            .find(|s| s.shard.id() == id)
            .map(|s| &mut **s)
    }

    fn view<'b>(&'b mut self, env: &OwnerEnv<'b>) -> View<'b> {
        let shards = self.slices.iter_mut().map(|s| &mut s.shard);
        View::new(shards, env.owners, env.me.node)
    }

    fn last_lsn(&self) -> Lsn {
        self.slices
            .iter()
            .map(|s| s.last_lsn)
            .max()
            .unwrap_or_default()
    }

    /// Mutations have been journaled in the record `lsn`.
    fn note_journaled(
        &mut self,
        env: &OwnerEnv<'_>,
        mutations: &[(ShardId, meta::Mutation)],
        lsn: Lsn,
        out: &mut Vec<OwnerEffect>,
    ) {
        for (shard, mutation) in mutations {
            if let Some(slice) = self.slice(*shard) {
                slice.last_lsn = lsn;
                slice.note_removal(env.now, mutation, out);
            }
        }
    }

    /// Runs a piece of work. `log` is there when `Work::needs_log`.
    ///
    /// # Errors
    /// More shards are needed; nothing has changed.
    pub fn run(
        &mut self,
        env: &OwnerEnv<'_>,
        log: Option<&mut OwnerLog>,
        work: Work,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        // What others looked for and could do without.
        let _others = self.known();
        match work {
            Work::Question(question) => self.question(env, log, question, out),
            Work::Transaction(envelope) => {
                let log = log.expect("a transaction needs the journal");
                self.transaction(env, log, envelope, out)
            }
            Work::Unreadable(envelope) => {
                let log = log.expect("a transaction needs the journal");
                let home = envelope.to;
                let progress = transaction::refuse(&mut self.view(env), &envelope, Errno::EIO);
                self.progress(env, log, home, progress, out);
                Ok(())
            }
            work @ Work::Tend { .. } => self.tend(env, log, work, out),
        }
    }

    fn question(
        &mut self,
        env: &OwnerEnv<'_>,
        log: Option<&mut OwnerLog>,
        mut question: Box<Question>,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        if self.slices.iter().any(|s| s.lost.contains(&question.from)) {
            question.dropped(out);
            return Ok(());
        }
        if question.is_unreadable {
            self.refuse(question, Body::Refused(Errno::EIO), out);
            return Ok(());
        }
        if let Some(errno) = question.refusal {
            self.refuse(question, Body::Refused(errno), out);
            return Ok(());
        }
        // What waits for no tokens is run again while it waits for room, which has a limit of its own: a Commit that is
        // refused loses what was acknowledged.
        let is_tried = match &question.ask {
            Ask::Op { op, .. } => waits_for_tokens(op),
            Ask::Acquire { .. } | Ask::Space(_) | Ask::Sync | Ask::Lock { .. } => true,
        };
        question.tries += u32::from(is_tried);
        if question.tries > TRIES_MAX && env.now.since(question.since) > TRIES_PATIENCE {
            self.refuse(question, Body::Refused(Errno::EAGAIN), out);
            return Ok(());
        }
        match &question.ask {
            Ask::Op { .. } => self.operation(env, log, question, out),
            Ask::Acquire { .. } => self.acquire(env, question, out),
            Ask::Lock { .. } => {
                self.lock(env, question, out);
                Ok(())
            }
            Ask::Sync => {
                // The driver knows the journal's last record; "after everything so far".
                out.push(question.answer(Body::Synced, Some(Lsn(u64::MAX))));
                Ok(())
            }
            Ask::Space(_) => {
                let log = log.expect("granting needs the journal");
                if let Some(work) = supply::answer(log, question, out) {
                    let home = work.shard();
                    self.wait(home, "the journal", work);
                }
                Ok(())
            }
        }
    }

    fn wait(&mut self, home: ShardId, what: &'static str, work: Work) {
        let slice = self.slice(home).expect("the home shard is locked");
        slice.waiting.push((what, work));
    }

    fn execute(
        &mut self,
        env: &OwnerEnv<'_>,
        question: &Question,
        op: &Op,
        held: Held<'_>,
    ) -> Outcome {
        let origin = question.origin;
        let ctx = Context {
            now: env.timestamp,
            from: question.from,
            origin,
            random: env.random,
            held,
            facts: &question.facts,
        };
        let mut view = self.view(env);
        meta::execute(&mut view, &ctx, op)
    }

    /// The answer that is kept for a repeated request.
    fn answered(&mut self, env: &OwnerEnv<'_>, question: &Question, op: &Op) -> Option<Outcome> {
        question.origin?;
        let ctx = Context {
            now: env.timestamp,
            from: question.from,
            origin: question.origin,
            random: env.random,
            held: Held::Nothing,
            facts: &question.facts,
        };
        meta::answered(&self.view(env), &ctx, op)
    }

    /// What the operation wants and is not there yet; `Err`: shards to lock first.
    fn first_missing(
        &mut self,
        env: &OwnerEnv<'_>,
        question: &Question,
        op: &Op,
    ) -> Result<Option<meta::Wanted>, Missing> {
        let ctx = Context {
            now: env.timestamp,
            from: question.from,
            origin: question.origin,
            random: env.random,
            held: Held::Nothing,
            facts: &question.facts,
        };
        let wanted = meta::wants(&self.view(env), &ctx, op);
        self.known()?;
        let wanted = wanted.map_err(|shard| Missing::Shards(vec![shard]))?;
        let from = question.from;
        for want in wanted {
            let shard = want.ino.shard();
            if env.owners.get(usize::from(shard.0)) != Some(&env.me.node) {
                // Another owner's: its part of the transaction sees to its tokens.
                continue;
            }
            let Some(slice) = self.slice(shard) else {
                return Err(Missing::Shards(vec![shard]));
            };
            if !slice.shard.has_inode(want.ino) {
                self.known()?;
                continue;
            }
            let wants = std::slice::from_ref(&want.want);
            let is_there = if want.is_transient {
                slice.tokens.is_clear(from, want.ino, wants)
            } else {
                slice.tokens.is_covered(from, want.ino, wants)
            };
            if !is_there {
                return Ok(Some(want));
            }
        }
        Ok(None)
    }

    /// What was found out since the last call was found out on resident inodes.
    fn known(&self) -> Result<(), Missing> {
        let mut missed = Vec::new();
        for slice in &self.slices {
            missed.append(&mut slice.shard.take_missed());
        }
        match missed.is_empty() {
            true => Ok(()),
            false => Err(Missing::Keys(missed)),
        }
    }

    /// Acquires the tokens that an operation needs. `None`: one is not granted yet, and the question waits for it.
    fn collect_tokens(
        &mut self,
        env: &OwnerEnv<'_>,
        mut question: Box<Question>,
        op: &Op,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<Option<Box<Question>>, Need> {
        // Commits and the like change only what the asker's tokens cover: they wait for nothing, so that
        // a revoke never waits for itself (rule R10).
        if !waits_for_tokens(op) || question.only_looks() {
            return Ok(Some(question));
        }
        loop {
            let missing = match self.first_missing(env, &question, op) {
                Ok(None) => return Ok(Some(question)),
                Ok(Some(missing)) => missing,
                Err(Missing::Shards(shards)) => {
                    return Err(Need::Shards(shards, Work::Question(question)));
                }
                Err(Missing::Keys(inodes)) => {
                    return Err(Need::Keys(inodes, Work::Question(question)));
                }
            };
            let slice = self
                .slice(missing.ino.shard())
                .expect("first_missing found it there");
            let acquire = Acquire {
                holder: question.from,
                ticket: slice.draw_ticket(),
                ino: missing.ino,
                seen: TokenNumber(0),
                wants: vec![missing.want],
                transient: missing.is_transient,
            };
            match slice.acquire(env.now, acquire, Work::Question(question), out) {
                Some(Work::Question(q)) => question = q,
                _ => return Ok(None),
            }
        }
    }

    fn operation(
        &mut self,
        env: &OwnerEnv<'_>,
        log: Option<&mut OwnerLog>,
        question: Box<Question>,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        let Ask::Op { op, durable } = question.ask.clone() else {
            unreachable!("the caller matched it");
        };
        if let Some(outcome) = self.answered(env, &question, &op) {
            return match outcome {
                Outcome::Done(executed) => {
                    let after = Some(self.last_lsn());
                    out.push(question.answer(Body::Op(executed.reply), after));
                    Ok(())
                }
                Outcome::NeedShards(shards) => Err(Need::Shards(shards, Work::Question(question))),
                _ => {
                    question.dropped(out);
                    Ok(())
                }
            };
        }
        if let Op::Closed { ino, after } = op
            && let Some(slice) = self.slice(ino.shard())
        {
            slice.tokens.on_closed(question.from, ino, after);
        }
        let Some(question) = self.collect_tokens(env, question, &op, out)? else {
            return Ok(());
        };
        let held_tokens = self.held_of(&question, &op);
        let question = match log.as_deref() {
            None => question,
            Some(log) => {
                let freed = meta::freed_at_most(&self.view(env), &op);
                if let Err(Missing::Keys(inodes)) = self.known() {
                    return Err(Need::Keys(inodes, Work::Question(question)));
                }
                match self.admit(env, log, question, (&op, freed), out) {
                    Some(question) => question,
                    None => return Ok(()),
                }
            }
        };
        let held = match &held_tokens {
            None => Held::Nothing,
            Some((inode, writes)) => Held::Tokens {
                inode: *inode,
                writes,
            },
        };
        let home = question.shard;
        let mut question = question;
        match self.execute(env, &question, &op, held) {
            Outcome::Done(executed) => {
                let cold = self.cold_in_listing(&question, &executed.reply);
                if !cold.is_empty() {
                    question.listed = ListingState::Reading;
                    return Err(Need::Keys(cold, Work::Question(question)));
                }
                self.done(env, log, question, durable, executed, out);
                if let (Op::Destage { .. }, Some(slice)) = (&op, self.slice(home)) {
                    // Commits may wait for the room that this has made.
                    slice.resume_waiting(out);
                }
                Ok(())
            }
            Outcome::NeedShards(shards) => Err(Need::Shards(shards, Work::Question(question))),
            Outcome::NeedKeys(inodes) => Err(Need::Keys(inodes, Work::Question(question))),
            Outcome::NeedFacts(queries) => {
                out.push(OwnerEffect::AskFacts(question, queries));
                Ok(())
            }
            Outcome::NeedOwners(plan) => {
                let log = log.expect("only changes need other owners");
                let progress = transaction::begin(&mut self.view(env), *plan);
                log.transactions.insert(progress_id(&progress), question);
                self.progress(env, log, home, progress, out);
                Ok(())
            }
            Outcome::Wait(_) => {
                self.wait(home, "a transaction", Work::Question(question));
                Ok(())
            }
            Outcome::Ignore => {
                question.dropped(out);
                Ok(())
            }
        }
    }

    /// Asks journal and space whether the operation may execute. `None`: it waits, or has been refused.
    fn admit(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &OwnerLog,
        question: Box<Question>,
        (op, freed): (&Op, usize),
        out: &mut Vec<OwnerEffect>,
    ) -> Option<Box<Question>> {
        let home = question.shard;
        // What makes room may take long; while it goes on, nobody hears ENOSPC.
        let may_wait = log.stalled_for(env.now, question.since) < ROOM_PATIENCE;
        let room = self
            .slice(home)
            .map_or(PieceRoom::Go, |slice| log.room_for_pieces(op, &slice.shard));
        let question = self.admit_promise(log, question, op, out)?;
        // Checkpoints make no room for pieces, however long they go on: nobody waits for them here.
        let may_wait_for_pieces = env.now.since(question.since) < ROOM_PATIENCE;
        match room {
            PieceRoom::Wait if may_wait_for_pieces => {
                self.wait(
                    home,
                    "pieces to be moved to sectors",
                    Work::Question(question),
                );
                return None;
            }
            PieceRoom::Full => {
                self.refuse(question, Body::Refused(Errno::ENOSPC), out);
                return None;
            }
            PieceRoom::Go | PieceRoom::Wait => {}
        }
        let Err(errno) = log.admit(question.from, op, freed) else {
            return Some(question);
        };
        if errno == Errno::ENOSPC && log.may_take_soon(op, freed) && may_wait {
            self.wait(home, "room in the journal", Work::Question(question));
            return None;
        }
        let body = match errno {
            Errno::ESTALE => Body::Op(Reply::Stale),
            _ => Body::Refused(errno),
        };
        self.refuse(question, body, out);
        None
    }

    /// Answers what was not executed. A repeat that is still on its way must not be executed after all: its sender has
    /// done something else by then.
    fn refuse(&mut self, question: Box<Question>, body: Body, out: &mut Vec<OwnerEffect>) {
        let reply = match &body {
            Body::Op(reply) => reply.clone(),
            Body::Refused(errno) => Reply::Error(*errno),
            Body::Acquired { .. } | Body::Space(_) | Body::Synced | Body::Lock(_) => {
                unreachable!("none of these refuses anything")
            }
        };
        if let (Ask::Op { op, .. }, Some(origin)) = (&question.ask, question.origin)
            && op.is_change()
            && let Some(slice) = self.slice(question.shard)
        {
            slice.shard.note_refused(question.from, origin, reply);
        }
        out.push(question.answer(body, None));
    }

    /// What the asker's tokens cover, for a Commit.
    fn held_of(
        &mut self,
        question: &Question,
        op: &Op,
    ) -> Option<(Option<InodeMode>, Vec<Pattern>)> {
        let (Op::Commit(meta::Commit { ino, .. }) | Op::Destage { ino, .. }) = op else {
            return None;
        };
        let slice = self.slice(ino.shard())?;
        let (_, rights) = slice.tokens.rights(question.from, *ino)?;
        let writes = rights.kinds().into_iter().find_map(|kind| match kind {
            TokenKind::Range {
                mode: RangeMode::Write,
                patterns,
            } => Some(patterns),
            _ => None,
        });
        Some((rights.inode, writes.unwrap_or_default()))
    }

    fn done(
        &mut self,
        env: &OwnerEnv<'_>,
        log: Option<&mut OwnerLog>,
        mut question: Box<Question>,
        durable: bool,
        executed: Executed,
        out: &mut Vec<OwnerEffect>,
    ) {
        if !executed.mutations.is_empty() {
            let log = log.expect("what changes something needs the journal");
            let lsn = log.append(
                question.from,
                &executed.mutations,
                &executed.used,
                &executed.freed,
            );
            self.note_journaled(env, &executed.mutations, lsn, out);
            self.begin_tending(out);
            self.note_promised(log);
        }
        if !question.only_looks() {
            self.grant_along(env, &mut question, &executed.reply);
        }
        let is_remote = question.from.node != env.me.node;
        let after = (durable || is_remote).then(|| self.last_lsn());
        out.push(question.answer(Body::Op(executed.reply), after));
    }

    /// Tokens that are of use to the asker and stand against nobody come with the answer.
    fn grant_along(&mut self, env: &OwnerEnv<'_>, question: &mut Question, reply: &Reply) {
        let from = question.from;
        let mut give = |this: &mut Self, ino: InodeId, wants: Vec<Want>| {
            let granted = this
                .slice(ino.shard())
                .and_then(|s| s.grant_if_clear(env.now, from, ino, wants));
            if let Some(granted) = granted {
                question.keep_grant(granted);
            }
        };
        match reply {
            Reply::Made {
                attr: Some(attr),
                is_new: true,
                ..
            } if attr.kind == FileKind::File => {
                let all = Pattern::plain(ByteRange::ALL);
                let range = Want::Range {
                    mode: RangeMode::Write,
                    required: all,
                    desired: all,
                };
                let inode = Want::Inode {
                    mode: InodeMode::Exclusive,
                };
                give(self, attr.ino, vec![inode, range]);
            }
            Reply::Made {
                attr: Some(attr), ..
            }
            | Reply::Entry {
                attr: Some(attr), ..
            } => {
                give(self, attr.ino, vec![attribute_want(attr.kind)]);
            }
            Reply::Listing { entries, .. } => {
                for attr in entries.iter().filter_map(|e| e.attr) {
                    give(self, attr.ino, vec![attribute_want(attr.kind)]);
                }
            }
            _ => {}
        }
    }
}

/// The operation waits until the tokens are there that it wants.
const fn waits_for_tokens(op: &Op) -> bool {
    !matches!(
        op,
        Op::Commit(_)
            | Op::Destage { .. }
            | Op::Closed { .. }
            | Op::Accessed { .. }
            | Op::GetMap { .. }
            | Op::Ancestors { .. }
    )
}
