//! Executing an operation on the shards that are locked now.
//!
//! ```text
//! repeat of a kept request? -> answer again
//! ops::resolve (reads only) -> answer | mutations of one inode | steps
//! steps: all of ours locked and checked -> perform -> answer, kept in the same record
//!        some another owner's           -> NeedOwners(Plan)
//! ```

use std::collections::BTreeMap;

use types::{Attr, Errno, FileKind, InodeId, Run, ShardId, SmallBytes, limits};

use crate::inode::InodeRecord;
use crate::message::{Op, Reply};
use crate::mutation::Mutation;
use crate::ops;
use crate::shard::Changes;
use crate::step::{Refusal, Step, lacking};
use crate::transaction::{Finish, Plan, TransactionId};
use crate::view::{Context, Executed, Outcome, Stop, View};

/// What an operation comes down to on the state as it is.
#[allow(
    clippy::large_enum_variant,
    reason = "made once per call and moved, never kept; a box would cost an allocation per operation"
)]
#[derive(Debug)]
pub(crate) enum Resolved {
    /// Nothing to change.
    Answer(Reply),
    /// Mutations of one inode of the home shard; answered with its attributes.
    Inode {
        ino: InodeId,
        mutations: Vec<Mutation>,
        used: Vec<Run>,
    },
    /// The asking node has the inode no longer open.
    Closed { ino: InodeId },
    /// A new inode of the home shard without a name, which the asking node has open; `parent` is the directory that it
    /// would be in.
    Nameless {
        record: Box<InodeRecord>,
        xattrs: Vec<(SmallBytes, SmallBytes)>,
        parent: InodeId,
    },
    /// Steps, possibly on several shards.
    Steps { steps: Vec<Step>, finish: Finish },
}

/// Executes `op` on the shards of `view`. See `Outcome` for the ways it can end; all but `Done` have
/// changed nothing. The home shard is one that this owner owns (else ESTALE).
pub fn execute(view: &mut View<'_>, ctx: &Context<'_>, op: &Op) -> Outcome {
    if let Some(outcome) = answered(view, ctx, op) {
        return outcome;
    }
    drop(view.take_missed());
    let resolved = ops::resolve(view, ctx, op);
    // Whatever it came to, it was found without knowing these.
    let missed = view.take_missed();
    if !missed.is_empty() {
        return Outcome::NeedKeys(missed);
    }
    let result = resolved.and_then(|resolved| perform(view, ctx, op, resolved));
    // Only the checks before the first change look at what has not been looked at before.
    let missed = view.take_missed();
    if !missed.is_empty() {
        assert!(
            !matches!(&result, Ok(Outcome::Done(executed)) if !executed.mutations.is_empty()),
            "what changes has been looked at"
        );
        return Outcome::NeedKeys(missed);
    }
    match result {
        Ok(outcome) => outcome,
        Err(Stop::Fail(errno)) => refuse(view, ctx, op, Reply::Error(errno)),
        Err(Stop::Stale) => {
            let reply = resized(view, op).unwrap_or(Reply::Stale);
            refuse(view, ctx, op, reply)
        }
        Err(Stop::Shard(shard)) => Outcome::NeedShards(vec![shard]),
        Err(Stop::Shards(shards)) => Outcome::NeedShards(shards),
        Err(Stop::Fact(query)) => Outcome::NeedFacts(vec![query]),
        Err(Stop::Wait(id)) => Outcome::Wait(id),
    }
}

/// Recognises repeats and late duplicates of a remote node's request: to be asked before anything about the
/// request is checked, for its first execution may have changed what the check looks at.
pub fn answered(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Option<Outcome> {
    let origin = ctx.origin?;
    if !op.is_change() {
        return None;
    }
    let answer = |reply: Reply| Some(Outcome::Done(Executed::answer(reply, false)));
    if origin.slot >= limits::SLOTS_PER_SHARD {
        return answer(Reply::Error(Errno::EPROTO));
    }
    let Some(shard) = view.shard(op.home()) else {
        let is_mine = view.is_mine(op.home());
        return is_mine.then(|| Outcome::NeedShards(vec![op.home()]));
    };
    let kept = shard.answer(ctx.from, origin.slot);
    let refused = shard.refused(ctx.from, origin.slot);
    let mut known = [kept, refused].into_iter().flatten();
    if known.clone().any(|(request, _)| request > origin.request) {
        return Some(Outcome::Ignore);
    }
    if let Some((_, reply)) = known.find(|(request, _)| *request == origin.request) {
        return answer(reply.clone());
    }
    None
}

/// What a Commit is told that is refused for nothing but a change of size. Its sender may hold range tokens and no
/// inode token, so that it could not hear of the change, and its bytes are still its own.
fn resized(view: &View<'_>, op: &Op) -> Option<Reply> {
    let Op::Commit(commit) = op else {
        return None;
    };
    let attr = view.shard(commit.ino.shard())?.attr(commit.ino)?;
    let is_same_file = attr.generation == commit.generation;
    (is_same_file && attr.size_generation > commit.size_generation).then_some(Reply::Resized(attr))
}

fn refuse(view: &mut View<'_>, ctx: &Context<'_>, op: &Op, reply: Reply) -> Outcome {
    if let (Some(origin), true) = (ctx.origin, op.is_change())
        && let Some(shard) = view.shard_mut(op.home())
    {
        shard.note_refused(ctx.from, origin, reply.clone());
    }
    Outcome::Done(Executed::answer(reply, ctx.origin.is_none()))
}

fn perform(
    view: &mut View<'_>,
    ctx: &Context<'_>,
    op: &Op,
    resolved: Resolved,
) -> Result<Outcome, Stop> {
    let is_local = ctx.origin.is_none();
    let mut changes = Changes::default();
    let mut used = Vec::new();
    let reply = match resolved {
        // As an error: a copy of the request that comes late is not executed by the owner of then.
        Resolved::Answer(reply @ Reply::NotOwner { .. }) => {
            return Ok(refuse(view, ctx, op, reply));
        }
        Resolved::Answer(reply) => {
            return Ok(Outcome::Done(Executed::answer(reply, is_local)));
        }
        Resolved::Closed { ino } => {
            let shard = view.shard_mut(ino.shard()).expect("resolved on it");
            changes = shard.note_open(ino, ctx.from, false);
            match shard.exists(ino) {
                true => Reply::Done,
                false => Reply::Absent,
            }
        }
        Resolved::Inode {
            ino,
            mutations,
            used: runs,
        } => {
            used = runs;
            let shard = view.shard_mut(ino.shard()).expect("resolved on it");
            for mutation in mutations {
                shard.perform(mutation, &mut changes);
            }
            Reply::Attr(shard.attr(ino).expect("resolved on it"))
        }
        Resolved::Nameless {
            record,
            xattrs,
            parent,
        } => {
            let ino = record.attr.ino;
            let shard = view.shard_mut(ino.shard()).expect("resolved on it");
            let open = Mutation::OpenPut {
                index: ino.index(),
                life: ctx.from,
                is_open: true,
            };
            shard.perform(Mutation::InodePut { record: *record }, &mut changes);
            shard.perform(open, &mut changes);
            for (name, value) in xattrs {
                let index = ino.index();
                shard.perform(Mutation::XattrPut { index, name, value }, &mut changes);
            }
            let made = Finish::Made {
                directory: parent,
                ino,
                is_new: true,
            };
            made.reply(view, &BTreeMap::new())
        }
        Resolved::Steps { steps, finish } => {
            check_shards(view, &steps)?;
            if let Some(outcome) = plan_if_remote(view, ctx, op, &steps, finish)? {
                return Ok(outcome);
            }
            let missed = view.take_missed();
            if !missed.is_empty() {
                return Ok(Outcome::NeedKeys(missed));
            }
            perform_steps(view, &steps, ctx.now, &mut changes);
            finish.reply(view, &BTreeMap::new())
        }
    };
    if let Some(origin) = ctx.origin.filter(|_| op.is_change()) {
        let answer = Mutation::AnswerPut {
            life: ctx.from,
            slot: origin.slot,
            request: origin.request,
            reply: reply.clone(),
        };
        let shard = view
            .shard_mut(op.home())
            .expect("repeats are looked up in it");
        shard.perform(answer, &mut changes);
    }
    Ok(Outcome::Done(Executed {
        reply,
        mutations: changes.mutations,
        used,
        freed: changes.freed,
        durable_before_reply: !is_local,
    }))
}

/// Every step's shard is locked when it is ours, and known when it is not.
fn check_shards(view: &View<'_>, steps: &[Step]) -> Result<(), Stop> {
    for id in steps.iter().map(Step::shard) {
        if view.is_mine(id) && view.shard(id).is_none() {
            return Err(Stop::Shard(id));
        }
        if !view.is_known(id) {
            return Err(Stop::Fail(Errno::ESTALE));
        }
    }
    match lacking(view, steps).first() {
        Some(id) => Err(Stop::Shard(*id)),
        None => Ok(()),
    }
}

/// Locks and checks of our own steps; a plan when there are others'.
fn plan_if_remote(
    view: &View<'_>,
    ctx: &Context<'_>,
    op: &Op,
    steps: &[Step],
    finish: Finish,
) -> Result<Option<Outcome>, Stop> {
    let mut is_remote = false;
    for step in steps {
        match view.shard(step.shard()) {
            Some(shard) => {
                if let Some(id) = shard.locks.conflict(std::slice::from_ref(step), shard.id()) {
                    return Err(Stop::Wait(id));
                }
                step.check(view).map_err(|refusal| match refusal {
                    Refusal::Fail(errno) => Stop::Fail(errno),
                    // Our own steps were resolved on this very state; only a number that a client gave
                    // can be taken meanwhile.
                    Refusal::Changed => Stop::Fail(Errno::EAGAIN),
                })?;
            }
            None => is_remote = true,
        }
    }
    if !is_remote {
        return Ok(None);
    }
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the upper half of 128 bits"
    )]
    let number = (ctx.random >> 64) as u64;
    let mut remote: BTreeMap<ShardId, Vec<Step>> = BTreeMap::new();
    let mut local = Vec::new();
    for step in steps {
        if view.is_mine(step.shard()) {
            local.push(step.clone());
        } else {
            remote.entry(step.shard()).or_default().push(step.clone());
        }
    }
    let coordinator = op.home();
    Ok(Some(Outcome::NeedOwners(Box::new(Plan {
        id: TransactionId {
            coordinator,
            number,
        },
        now: ctx.now,
        local,
        remote,
        finish,
        from: ctx.from,
        origin: ctx.origin,
    }))))
}

/// Performs checked steps on locked shards.
pub(crate) fn perform_steps(
    view: &mut View<'_>,
    steps: &[Step],
    now: types::Timestamp,
    changes: &mut Changes,
) {
    for step in steps {
        step.perform(view, now, changes);
    }
}

impl Finish {
    /// The answer, when every step is performed. `attrs` are the attributes from other owners.
    pub(crate) fn reply(&self, view: &View<'_>, attrs: &BTreeMap<InodeId, Attr>) -> Reply {
        let find = |ino: InodeId| match view.shard(ino.shard()) {
            Some(shard) => shard.attr(ino),
            None => attrs.get(&ino).copied(),
        };
        let home = |ino: InodeId| find(ino).expect("the first directory is the coordinator's");
        let is_nameless = |ino: InodeId| find(ino).is_some_and(|attr| attr.nlink == 0);
        match *self {
            Self::Made {
                directory,
                ino,
                is_new,
            } => Reply::Made {
                attr: find(ino),
                ino,
                directory: home(directory),
                is_new,
            },
            Self::Removed {
                directory,
                ino,
                is_open,
            } => Reply::Removed {
                ino,
                attr: find(ino),
                kept_open: is_open && is_nameless(ino),
                directory: home(directory),
            },
            Self::Renamed {
                directory,
                new_directory,
                ino,
                replaced,
                is_open,
            } => Reply::Renamed {
                ino,
                replaced,
                kept_open: is_open && replaced.is_some_and(is_nameless),
                directory: home(directory),
                new_directory: find(new_directory).filter(|_| new_directory != directory),
            },
        }
    }
}

/// A name's target, or a directory that is looked for: number and kind.
pub(crate) type Target = (InodeId, FileKind);
