//! Operations over shards of several owners: two-phase commit, presumed abort.
//!
//! The owner of the operation's first directory coordinates; every remote shard with steps is a
//! participant. A participant is a shard, not a node, so that the protocol survives a change of owners.
//!
//! Invariants
//! - Every message and every finished answer that a call returns leaves only when the mutations returned
//!   beside it, and everything journaled before them, are durable.
//! - A participant that voted yes performs its steps if and only if the coordinator's `OutcomePut` is
//!   durable; it performs them once, however often messages arrive.
//! - What a prepared or running transaction will change is locked: operations that read or change it end
//!   in `Outcome::Wait`.
//! - Of two transactions that want the same, the older (by `Plan::now`, then id) waits for the younger,
//!   and the younger gives up and is executed again: waits have no cycle and somebody always gets through.
//!   (Without this rule three crossing renames that always gave up were seen to do so for ever.)
//!
//! Life cycle (coordinator): begun (volatile) -> all voted yes -> `OutcomePut` with its own steps in one
//! record -> every participant confirmed -> `OutcomeForget`. A coordinator that does not know a
//! transaction has aborted it, or forgotten it after every confirmation: whoever asks is told to drop it.
//!
//! Life cycle (participant): `Prepare` -> `Resolve` with its steps, remembered as done -> `DoneForget`
//! when the coordinator has durably forgotten. The memory of done transactions is what keeps a late
//! duplicate of a prepare, met by a repeated commit, from performing the steps twice.

use std::collections::{BTreeMap, BTreeSet};

use types::{Attr, Errno, InodeId, NodeLife, Run, ShardId, Timestamp, wire_enum, wire_struct};

use crate::execute::perform_steps;
use crate::locks::{Found, held};
use crate::message::Reply;
use crate::mutation::Mutation;
use crate::parts::held as parts;
use crate::parts::known_part;
use crate::shard::{Changes, Shard};
use crate::step::{Refusal, Step, lacking};
use crate::view::{Origin, View};

/// A transaction: who coordinates it, and random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransactionId {
    /// The coordinating shard.
    pub coordinator: ShardId,
    /// Random.
    pub number: u64,
}
wire_struct!(TransactionId {
    coordinator,
    number
});

/// How the answer is put together when all steps are performed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// Make, Create, Link.
    Made {
        /// Directory.
        directory: InodeId,
        /// What the name leads to.
        ino: InodeId,
        /// It was made by the operation.
        is_new: bool,
    },
    /// Unlink, Rmdir.
    Removed {
        /// Directory.
        directory: InodeId,
        /// What lost its name.
        ino: InodeId,
        /// The asking node counts as having it open.
        is_open: bool,
    },
    /// Rename.
    Renamed {
        /// Source directory.
        directory: InodeId,
        /// Target directory.
        new_directory: InodeId,
        /// What moved.
        ino: InodeId,
        /// What was replaced, or has the source's name now.
        replaced: Option<InodeId>,
        /// The asking node counts as having the replaced inode open.
        is_open: bool,
    },
}

/// An operation that needs other owners, resolved into steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Transaction; its coordinator is the operation's home shard.
    pub id: TransactionId,
    /// Stamps what changes.
    pub now: Timestamp,
    /// Steps on shards of the coordinator's owner, in order.
    pub local: Vec<Step>,
    /// Steps on each remote shard, in order, by shard.
    pub remote: BTreeMap<ShardId, Vec<Step>>,
    /// How to answer.
    pub finish: Finish,
    /// Who asked.
    pub from: NodeLife,
    /// Where the answer is kept.
    pub origin: Option<Origin>,
}

/// A participant's vote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// Prepared, durably.
    Yes {
        /// Attributes of the inodes concerned as they will be.
        attrs: Vec<Attr>,
    },
    /// The operation fails with this.
    No(Errno),
    /// What it needs is changing or has changed: abort, and execute again later.
    Busy,
}
wire_enum!(Vote { 1 => Yes { attrs }, 2 => No(errno), 3 => Busy {} });

/// What coordinator and participants say to one another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TransactionMessage {
    /// To a participant: check, lock and record these steps.
    Prepare {
        /// Stamps what changes.
        now: Timestamp,
        /// The participant's steps.
        steps: Vec<Step>,
    },
    /// To the coordinator: the answer to `Prepare`.
    Voted(Vote),
    /// To a participant: perform.
    Commit,
    /// To a participant: drop.
    Abort,
    /// To the coordinator: performed, durably, and remembered as done until `Forget` comes.
    Confirm,
    /// To the coordinator: we are prepared, or keep something reserved, and have heard nothing since.
    AskOutcome,
    /// To a participant: forget that it is done.
    Forget,
}
wire_enum!(TransactionMessage {
    1 => Prepare { now, steps },
    2 => Voted(vote),
    3 => Commit {},
    4 => Abort {},
    5 => Confirm {},
    6 => AskOutcome {},
    7 => Forget {},
});

/// A transaction message on its way between two shards' owners.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// Transaction.
    pub id: TransactionId,
    /// Sending shard.
    pub from: ShardId,
    /// Receiving shard.
    pub to: ShardId,
    /// What is said.
    pub message: TransactionMessage,
}
wire_struct!(Envelope {
    id,
    from,
    to,
    message
});

/// The end of a transaction as its asker sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finished {
    /// Transaction.
    pub id: TransactionId,
    /// Who asked.
    pub from: NodeLife,
    /// From which slot.
    pub origin: Option<Origin>,
    /// The answer; `None`: aborted without one, execute the operation again from the start.
    pub reply: Option<Reply>,
}

/// What a call leaves to the caller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    /// What was changed, in order: to be journaled in one record with the space changes.
    pub mutations: Vec<(ShardId, Mutation)>,
    /// Runs that no file uses any more.
    pub freed: Vec<Run>,
    /// To be sent when all this is durable.
    pub messages: Vec<Envelope>,
    /// To be answered when all this is durable.
    pub finished: Option<Finished>,
}

/// A transaction at its coordinator before the outcome is recorded. Volatile: a crash aborts it.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    pub(crate) plan: Plan,
    pub(crate) votes: BTreeMap<ShardId, Vec<Attr>>,
}

/// How a message was taken.
#[allow(
    clippy::large_enum_variant,
    reason = "made once per call and moved, never kept; a box would cost an allocation per operation"
)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Handled {
    /// It is done.
    Done(Progress),
    /// Nothing happened yet: lock these shards (all of this owner) and pass the message again.
    NeedShards(Vec<ShardId>),
}

impl Plan {
    /// Shards of the coordinator's owner that take part, the coordinating one among them, in id order.
    pub fn local_shards(&self) -> Vec<ShardId> {
        let mut ids: BTreeSet<ShardId> = self.local.iter().map(Step::shard).collect();
        ids.insert(self.id.coordinator);
        ids.into_iter().collect()
    }

    fn say(&self, to: ShardId, message: TransactionMessage) -> Envelope {
        envelope(self.id, self.id.coordinator, to, message)
    }

    fn prepare(&self, to: ShardId) -> Envelope {
        let steps = self.remote[&to].clone();
        let now = self.now;
        self.say(to, TransactionMessage::Prepare { now, steps })
    }

    fn finished(&self, reply: Option<Reply>) -> Option<Finished> {
        Some(Finished {
            id: self.id,
            from: self.from,
            origin: self.origin,
            reply,
        })
    }
}

fn envelope(
    id: TransactionId,
    from: ShardId,
    to: ShardId,
    message: TransactionMessage,
) -> Envelope {
    Envelope {
        id,
        from,
        to,
        message,
    }
}

/// Begins what `execute` ended in `NeedOwners` with, on the same locked shards and in the same go: locks
/// what the local steps need and asks the participants to prepare. Nothing is journaled.
pub fn begin(view: &mut View<'_>, plan: Plan) -> Progress {
    for id in plan.local_shards() {
        let shard = view
            .shard_mut(id)
            .expect("the plan was made on these shards");
        assert!(
            shard.locks.conflict(&plan.local, id).is_none(),
            "execute has checked the locks"
        );
        shard.lock_for((plan.now, plan.id), &plan.local);
        parts::hold(view, id, plan.id, &plan.local);
    }
    let messages = plan.remote.keys().map(|to| plan.prepare(*to)).collect();
    let shard = view
        .shard_mut(plan.id.coordinator)
        .expect("locked just before");
    let active = Active {
        votes: BTreeMap::new(),
        plan,
    };
    let old = shard.active.insert(active.plan.id, active);
    assert!(
        old.is_none(),
        "the caller draws fresh random bits for every call"
    );
    Progress {
        messages,
        ..Progress::default()
    }
}

/// Takes a message to `envelope.to`, which is this owner's and locked.
pub fn on_message(view: &mut View<'_>, envelope: &Envelope) -> Handled {
    let Some(shard) = view.shard_mut(envelope.to) else {
        return Handled::NeedShards(vec![envelope.to]);
    };
    match &envelope.message {
        TransactionMessage::Prepare { now, steps } => on_prepare(view, envelope, *now, steps),
        TransactionMessage::Commit => on_commit(view, envelope),
        TransactionMessage::Abort => on_abort(view, envelope),
        TransactionMessage::Forget => Handled::Done(on_forget(shard, envelope.id)),
        TransactionMessage::Voted(vote) => on_vote(view, envelope, vote),
        TransactionMessage::Confirm => Handled::Done(on_confirm(shard, envelope)),
        TransactionMessage::AskOutcome => Handled::Done(on_ask_outcome(shard, envelope)),
    }
}

/// Cold inodes that the message is about: `on_message` must not be called before they are resident.
pub fn missing(view: &View<'_>, envelope: &Envelope) -> Vec<InodeId> {
    let Some(shard) = view.shard(envelope.to) else {
        return Vec::new();
    };
    let steps = match &envelope.message {
        TransactionMessage::Prepare { steps, .. } => Some(steps),
        TransactionMessage::Commit => shard.prepared.get(&envelope.id).map(|p| &p.steps),
        TransactionMessage::Voted(_) => shard.active.get(&envelope.id).map(|a| &a.plan.local),
        TransactionMessage::Abort
        | TransactionMessage::Forget
        | TransactionMessage::Confirm
        | TransactionMessage::AskOutcome => None,
    };
    let inodes = steps.into_iter().flatten().flat_map(|step| {
        let (ino, name) = held(step);
        let part = name.and_then(|name| known_part(view, ino, name));
        [Some(ino), part].into_iter().flatten()
    });
    let is_cold = |ino: &InodeId| view.shard(ino.shard()).is_some_and(|s| s.is_cold(*ino));
    let mut cold: Vec<InodeId> = inodes.filter(is_cold).collect();
    cold.sort_unstable();
    cold.dedup();
    cold
}

/// The answer to a prepare whose inodes cannot be read. One that is prepared or done has had them, and is answered as ever.
pub fn refuse(view: &mut View<'_>, request: &Envelope, errno: Errno) -> Progress {
    let shard = view
        .shard_mut(request.to)
        .expect("the receiving shard is locked");
    let id = request.id;
    if shard.done.contains(&id) {
        return confirm(shard, request);
    }
    if shard.prepared.contains_key(&id) {
        // A repeat finds its inodes where its locks keep them.
        return Progress::default();
    }
    vote_against(shard, request, Vote::No(errno))
}

/// The prepare locks nothing, and what it has reserved is free.
fn vote_against(shard: &mut Shard, request: &Envelope, vote_cast: Vote) -> Progress {
    let mut changes = Changes::default();
    shard.let_go(request.id, &mut changes);
    Progress {
        mutations: changes.mutations,
        freed: changes.freed,
        ..vote(shard, request, vote_cast)
    }
}

/// The message is a prepare that nothing is in the way of: executed now, it would lock what its steps change. Others are
/// answered, or wait, whoever caches what.
pub fn would_lock(shard: &Shard, envelope: &Envelope) -> bool {
    let TransactionMessage::Prepare { now, steps } = &envelope.message else {
        return false;
    };
    let age = (*now, envelope.id);
    !shard.prepared.contains_key(&envelope.id)
        && shard.locks.find(age, steps, shard.id()) == Found::Free
}

/// What to say again, as far as this shard knows: to be called every few milliseconds while the shard has
/// transactions under way (none: nothing is said), and after a restart. The messages leave when everything journaled so far is
/// durable, like all others.
pub fn repeat_messages(shard: &Shard) -> Vec<Envelope> {
    let mut messages = Vec::new();
    for active in shard.active.values() {
        let waiting = active
            .plan
            .remote
            .keys()
            .filter(|s| !active.votes.contains_key(s));
        messages.extend(waiting.map(|to| active.plan.prepare(*to)));
    }
    for (id, participants) in &shard.outcomes {
        let confirmed = shard.confirmed.get(id);
        let waiting = participants
            .iter()
            .filter(|p| !confirmed.is_some_and(|c| c.contains(p)));
        messages
            .extend(waiting.map(|to| envelope(*id, shard.id(), *to, TransactionMessage::Commit)));
    }
    for id in shard.prepared.keys().copied().chain(shard.locks.reserved()) {
        let ask = TransactionMessage::AskOutcome;
        messages.push(envelope(id, shard.id(), id.coordinator, ask));
    }
    for id in &shard.done {
        let confirm = TransactionMessage::Confirm;
        messages.push(envelope(*id, shard.id(), id.coordinator, confirm));
    }
    messages
}

/// The coordinator's caller waits no longer for the votes: the transaction is aborted, and finished
/// without an answer. Nothing happens when the outcome is there already.
pub fn give_up(view: &mut View<'_>, id: TransactionId) -> Handled {
    abort(view, id, None)
}

/// A `Voted` answer of the participant `shard` to the coordinator.
fn vote(shard: &Shard, to: &Envelope, vote: Vote) -> Progress {
    let voted = TransactionMessage::Voted(vote);
    Progress {
        messages: vec![envelope(to.id, shard.id(), to.from, voted)],
        ..Progress::default()
    }
}

fn on_prepare(view: &mut View<'_>, request: &Envelope, now: Timestamp, steps: &[Step]) -> Handled {
    let shard = view.shard(request.to).expect("looked up before");
    let is_own = steps.iter().all(|step| step.shard() == shard.id());
    let id = request.id;
    if shard.done.contains(&id) {
        return Handled::Done(confirm(shard, request));
    }
    if !is_own || request.from != id.coordinator {
        return Handled::Done(vote(shard, request, Vote::No(Errno::EPROTO)));
    }
    let lacking = lacking(view, steps);
    if !lacking.is_empty() {
        return Handled::NeedShards(lacking);
    }
    Handled::Done(prepare(view, request, now, steps))
}

fn prepare(view: &mut View<'_>, request: &Envelope, now: Timestamp, steps: &[Step]) -> Progress {
    let id = request.id;
    let shard = view.shard_mut(request.to).expect("looked up before");
    let attrs_after = |shard: &Shard, now| {
        let attrs = steps.iter().filter_map(|s| s.attr_after(shard, now));
        Vote::Yes {
            attrs: attrs.collect(),
        }
    };
    if let Some(prepared) = shard.prepared.get(&id) {
        return vote(shard, request, attrs_after(shard, prepared.now));
    }
    match shard.locks.find((now, id), steps, shard.id()) {
        Found::Free => {}
        Found::Older => return vote(shard, request, Vote::Busy),
        Found::Younger => {
            // No answer: the holder does not wait for this one, so a repeated prepare finds it gone.
            shard.locks.reserve((now, id), steps, shard.id());
            return Progress::default();
        }
    }
    let checked = steps.iter().try_for_each(|step| step.check(view));
    let shard = view.shard_mut(request.to).expect("looked up before");
    if let Err(refusal) = checked {
        let no = match refusal {
            Refusal::Fail(errno) => Vote::No(errno),
            Refusal::Changed => Vote::Busy,
        };
        return vote_against(shard, request, no);
    }
    let mut changes = Changes::default();
    let yes = attrs_after(shard, now);
    let steps = steps.to_vec();
    let progress = vote(shard, request, yes);
    let prepare = Mutation::Prepare {
        id,
        now,
        steps: steps.clone(),
    };
    shard.perform(prepare, &mut changes);
    parts::hold(view, request.to, id, &steps);
    Progress {
        mutations: changes.mutations,
        ..progress
    }
}

fn confirm(shard: &Shard, request: &Envelope) -> Progress {
    let (id, to) = (request.id, request.from);
    Progress {
        messages: vec![envelope(id, shard.id(), to, TransactionMessage::Confirm)],
        ..Progress::default()
    }
}

/// Performs a prepared transaction. One that is done, or was forgotten since, is confirmed again.
fn on_commit(view: &mut View<'_>, request: &Envelope) -> Handled {
    let id = request.id;
    let shard = view.shard(request.to).expect("looked up before");
    let Some(prepared) = shard.prepared.get(&id).cloned() else {
        return Handled::Done(confirm(shard, request));
    };
    let mut lacking = lacking(view, &prepared.steps);
    lacking.extend(parts::lacking(view, request.to, id));
    if !lacking.is_empty() {
        return Handled::NeedShards(lacking);
    }
    let mut changes = Changes::default();
    perform_steps(view, &prepared.steps, prepared.now, &mut changes);
    let is_commit = true;
    let shard = view.shard_mut(request.to).expect("looked up before");
    shard.perform(Mutation::Resolve { id, is_commit }, &mut changes);
    shard.reap_spared(&mut changes);
    let progress = confirm(shard, request);
    parts::let_go(view, request.to, id);
    Handled::Done(Progress {
        mutations: changes.mutations,
        freed: changes.freed,
        ..progress
    })
}

/// Ends what is prepared on `shard` as its coordinator says it has ended, for who looks at it from outside; all shards of the
/// owner are locked. `None`: its steps do not fit, and nothing was changed.
pub fn end_prepared(
    view: &mut View<'_>,
    shard: ShardId,
    id: TransactionId,
    is_commit: bool,
) -> Option<Changes> {
    let prepared = view.shard(shard)?.prepared.get(&id)?.clone();
    let fits = |step: &Step| lacking(view, [step]).is_empty() && step.check(view).is_ok();
    if is_commit && !prepared.steps.iter().all(fits) {
        return None;
    }
    let mut changes = Changes::default();
    if is_commit {
        perform_steps(view, &prepared.steps, prepared.now, &mut changes);
    }
    let shard = view.shard_mut(shard)?;
    shard.perform(Mutation::Resolve { id, is_commit }, &mut changes);
    for step in &prepared.steps {
        // It was kept for a name that it does not get.
        if let Step::LinkNameless { ino } = step {
            shard.reap(ino.index(), &mut changes);
        }
    }
    Some(changes)
}

fn on_abort(view: &mut View<'_>, message: &Envelope) -> Handled {
    let (id, to) = (message.id, message.to);
    let lacking = parts::lacking(view, to, id);
    if !lacking.is_empty() {
        return Handled::NeedShards(lacking);
    }
    let shard = view.shard_mut(to).expect("looked up before");
    let mut changes = Changes::default();
    if shard.prepared.contains_key(&id) {
        let is_commit = false;
        shard.perform(Mutation::Resolve { id, is_commit }, &mut changes);
        shard.reap_spared(&mut changes);
        parts::let_go(view, to, id);
    } else if shard.locks.reserved().any(|reserver| reserver == id) {
        shard.let_go(id, &mut changes);
    }
    Handled::Done(Progress {
        mutations: changes.mutations,
        freed: changes.freed,
        ..Progress::default()
    })
}

fn on_forget(shard: &mut Shard, id: TransactionId) -> Progress {
    let mut changes = Changes::default();
    if shard.done.contains(&id) {
        shard.perform(Mutation::DoneForget { id }, &mut changes);
    }
    Progress {
        mutations: changes.mutations,
        ..Progress::default()
    }
}

fn on_vote(view: &mut View<'_>, envelope: &Envelope, vote: &Vote) -> Handled {
    let id = envelope.id;
    let shard = view.shard_mut(envelope.to).expect("looked up before");
    let Some(active) = shard.active.get_mut(&id) else {
        return Handled::Done(on_ask_outcome(shard, envelope));
    };
    if !active.plan.remote.contains_key(&envelope.from) {
        return Handled::Done(Progress::default());
    }
    let attrs = match vote {
        Vote::Yes { attrs } => attrs.clone(),
        Vote::No(errno) => return abort(view, id, Some(Reply::Error(*errno))),
        Vote::Busy => return abort(view, id, None),
    };
    active.votes.insert(envelope.from, attrs);
    if active.votes.len() < active.plan.remote.len() {
        return Handled::Done(Progress::default());
    }
    let needed = active.plan.local_shards();
    if needed.iter().any(|s| view.shard(*s).is_none()) {
        return Handled::NeedShards(needed);
    }
    let home = view.shard(envelope.to).expect("looked up before");
    let mut lacking = lacking(view, &home.active[&id].plan.local);
    let held = needed.iter().flat_map(|s| parts::lacking(view, *s, id));
    lacking.extend(held);
    if !lacking.is_empty() {
        return Handled::NeedShards(lacking);
    }
    Handled::Done(commit(view, id))
}

/// Everybody has voted yes: the outcome, our own steps and the answer go into one record.
fn commit(view: &mut View<'_>, id: TransactionId) -> Progress {
    let shard = view
        .shard_mut(id.coordinator)
        .expect("the caller locked it");
    let active = shard.active.remove(&id).expect("the caller found it");
    let plan = active.plan;
    for local in plan.local_shards() {
        for step in plan.local.iter().filter(|s| s.shard() == local) {
            assert_eq!(
                step.check(view),
                Ok(()),
                "what a transaction locks does not change"
            );
        }
        let shard = view.shard_mut(local).expect("the caller locked them");
        shard.locks.release(id);
    }
    let mut changes = Changes::default();
    perform_steps(view, &plan.local, plan.now, &mut changes);
    for local in plan.local_shards() {
        parts::let_go(view, local, id);
        let shard = view.shard_mut(local).expect("the caller locked them");
        shard.reap_spared(&mut changes);
    }
    let attrs = active
        .votes
        .into_values()
        .flatten()
        .map(|a| (a.ino, a))
        .collect();
    let reply = plan.finish.reply(view, &attrs);
    let shard = view.shard_mut(id.coordinator).expect("locked");
    let participants: Vec<ShardId> = plan.remote.keys().copied().collect();
    let messages = participants
        .iter()
        .map(|to| plan.say(*to, TransactionMessage::Commit))
        .collect();
    shard.perform(Mutation::OutcomePut { id, participants }, &mut changes);
    if let Some(origin) = plan.origin {
        let answer = Mutation::AnswerPut {
            life: plan.from,
            slot: origin.slot,
            request: origin.request,
            reply: reply.clone(),
        };
        shard.perform(answer, &mut changes);
    }
    Progress {
        mutations: changes.mutations,
        freed: changes.freed,
        messages,
        finished: plan.finished(Some(reply)),
    }
}

/// Drops an active transaction, tells every participant, and answers with `reply` (an error) if any.
fn abort(view: &mut View<'_>, id: TransactionId, reply: Option<Reply>) -> Handled {
    let Some(shard) = view.shard(id.coordinator) else {
        return Handled::NeedShards(vec![id.coordinator]);
    };
    let Some(active) = shard.active.get(&id) else {
        return Handled::Done(Progress::default());
    };
    let needed = active.plan.local_shards();
    if needed.iter().any(|s| view.shard(*s).is_none()) {
        return Handled::NeedShards(needed);
    }
    let lacking: Vec<ShardId> = needed
        .iter()
        .flat_map(|s| parts::lacking(view, *s, id))
        .collect();
    if !lacking.is_empty() {
        return Handled::NeedShards(lacking);
    }
    let mut changes = Changes::default();
    for local in needed {
        let shard = view.shard_mut(local).expect("just seen");
        shard.let_go(id, &mut changes);
        parts::let_go(view, local, id);
    }
    let shard = view.shard_mut(id.coordinator).expect("just seen");
    let plan = shard.active.remove(&id).expect("just seen").plan;
    if let (Some(origin), Some(reply)) = (plan.origin, &reply) {
        shard.note_refused(plan.from, origin, reply.clone());
    }
    let tell = |to: &ShardId| plan.say(*to, TransactionMessage::Abort);
    Handled::Done(Progress {
        mutations: changes.mutations,
        freed: changes.freed,
        messages: plan.remote.keys().map(tell).collect(),
        finished: plan.finished(reply),
    })
}

fn on_confirm(shard: &mut Shard, message: &Envelope) -> Progress {
    let id = message.id;
    let say_forget = |to: ShardId| envelope(id, message.to, to, TransactionMessage::Forget);
    let Some(participants) = shard.outcomes.get(&id).cloned() else {
        // Forgotten: so was every earlier `Forget` to it that got lost.
        return Progress {
            messages: vec![say_forget(message.from)],
            ..Progress::default()
        };
    };
    let confirmed = shard.confirmed.entry(id).or_default();
    confirmed.insert(message.from);
    if !participants.iter().all(|p| confirmed.contains(p)) {
        return Progress::default();
    }
    let mut changes = Changes::default();
    shard.perform(Mutation::OutcomeForget { id }, &mut changes);
    Progress {
        mutations: changes.mutations,
        messages: participants.into_iter().map(say_forget).collect(),
        ..Progress::default()
    }
}

/// A participant is prepared, or has something reserved, and wants to know. (One that is done never asks:
/// it remembers, and confirms, until the outcome is durably forgotten.)
fn on_ask_outcome(shard: &Shard, message: &Envelope) -> Progress {
    let id = message.id;
    if shard.active.contains_key(&id) {
        return Progress::default();
    }
    let is_committed = shard
        .outcomes
        .get(&id)
        .is_some_and(|p| p.contains(&message.from));
    let answer = if is_committed {
        TransactionMessage::Commit
    } else {
        TransactionMessage::Abort
    };
    Progress {
        messages: vec![envelope(id, message.to, message.from, answer)],
        ..Progress::default()
    }
}
