//! Who waits for a write-back.
//!
//! A *goal* is somebody who waits until what is dirty now is committed: fsync, a revoke, a synchronous
//! write, a setattr or rename that must come after it, or age. Goals of applications end after two Commits
//! at the latest, so that a busy writer starves nobody; a revoke's goal ends when the range is clean (the
//! gate keeps new writes away).

use meta::Op;
use types::{InodeId, Instant};

use crate::env::Env;
use crate::errors::Hears;
use crate::message::Ask;
use crate::names::Continuation;
use crate::request::{Operation, Request, Response};
use crate::revoke::{FlushOutcome, RevokeId};
use crate::slice::{Effect, Input, Slice, slice_of};

/// Who waits for a write-back.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// fsync, or a synchronous write: answered when durable.
    Sync(Request),
    /// The tokens of a revoke go when it is done.
    Revoke(RevokeId),
    /// Written after the flush of a revoke that was about to end: the release waits for it.
    Late(RevokeId),
    /// A change by the owner (`Slice::ask_change`) that must come after what was written before it.
    Change(Box<(Op, Continuation)>),
    /// A rename that must come after its source's data.
    Rename(Box<Request>),
    /// Of a sweep (`crate::sweep`).
    Sweep(u64),
    /// Age or pressure.
    Background,
}

/// A write-back that somebody waits for.
#[derive(Debug)]
pub(crate) struct Goal {
    pub(crate) purpose: Purpose,
    /// What was dirty when it came (`Pages::mark_goal`).
    pub(crate) sequence: u64,
    /// Size and times were dirty: they go with this Commit of the inode, counted from its first.
    pub(crate) commit: u64,
    pub(crate) since: Instant,
}

impl Goal {
    /// Who waits, and what must come about: for `gupfs waiters`.
    pub(crate) fn what(&self) -> String {
        let Self {
            purpose,
            sequence,
            commit,
            ..
        } = self;
        format!("{purpose:?} (pages of sequence {sequence}, Commit {commit})")
    }

    /// The request that waits for it and may be given up.
    pub(crate) fn waiter(&self) -> Option<crate::request::Ticket> {
        match &self.purpose {
            // A synchronous write has happened: it is not told EINTR, or it would be done twice.
            Purpose::Sync(request) if !matches!(request.operation, Operation::Write { .. }) => {
                Some(request.ticket)
            }
            _ => None,
        }
    }
}

impl Slice {
    /// fsync, fsyncdir, syncfs.
    pub(crate) fn fsync(&mut self, env: &Env<'_>, request: Request) {
        match request.operation {
            Operation::Fsync { ino, .. } => self.flush_for(env, ino, request),
            _ => self.sync_journal(request.ticket, Response::Done),
        }
    }

    /// Answers when this node's journal is durable: then so are the names made through this node, for
    /// what other owners executed was durable when they answered.
    fn sync_journal(&mut self, ticket: crate::request::Ticket, response: Response) {
        let own = self.placements[0];
        self.call(own, Ask::Sync, Continuation::Synced(ticket, response));
    }

    /// Answers `request` (fsync or a synchronous write) when the inode's data is durable.
    pub(crate) fn flush_for(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        self.add_goal(env, ino, Purpose::Sync(request));
    }

    /// Has the owner change the inode when its dirty state is committed.
    pub(crate) fn flush_before(&mut self, env: &Env<'_>, ino: InodeId, op: Op, then: Continuation) {
        self.add_goal(env, ino, Purpose::Change(Box::new((op, then))));
    }

    /// Runs a rename when its source's data is committed.
    pub(crate) fn flush_then(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        // The file has another name from here on.
        env.readers.lookups().forget(request.caller.pid);
        let is_dirty = self.inodes.get(&ino).is_some_and(|i| i.is_dirty());
        if is_dirty {
            let purpose = Purpose::Rename(Box::new(request));
            self.add_goal(env, ino, purpose);
        } else {
            self.send_rename(env, request);
        }
    }

    fn send_rename(&mut self, env: &Env<'_>, request: Request) {
        let Operation::Rename { parent, .. } = &request.operation else {
            return;
        };
        let parent = *parent;
        if slice_of(parent) as u64 == self.index {
            self.rename_now(env, request);
        } else {
            self.out.push(Effect::ForSlice(
                parent,
                Input::RenameNow(Box::new(request)),
            ));
        }
    }

    pub(crate) fn add_goal(&mut self, env: &Env<'_>, ino: InodeId, purpose: Purpose) {
        let inode = self.inode(ino);
        let is_background = |goal: &Goal| matches!(goal.purpose, Purpose::Background);
        if matches!(purpose, Purpose::Background) && inode.goals.iter().any(is_background) {
            return self.pump(env, ino);
        }
        // A Commit under way does not have the newest.
        let commit = if inode.is_changed() {
            inode.commit_count + 1 + u64::from(inode.is_committing)
        } else if inode.commit.as_ref().is_some_and(|c| c.is_rewrite) {
            // Its pages are clean, but tokens do not go and sizes do not change before it has ended.
            inode.commit_count + 1
        } else {
            0
        };
        let sequence = inode.pages.mark_goal();
        inode.goals.push(Goal {
            purpose,
            sequence,
            commit,
            since: env.now,
        });
        self.pump(env, ino);
    }

    /// Ends the goals that are reached.
    pub(crate) fn end_goals(&mut self, env: &Env<'_>, ino: InodeId) {
        let inode = self.inodes.get_mut(&ino).expect("the caller has it");
        if inode.goals.is_empty() {
            return;
        }
        let commit_count = inode.commit_count;
        let work = inode.work();
        let pages = &work.pages;
        let is_over =
            |goal: &mut Goal| pages.is_reached(goal.sequence) && goal.commit <= commit_count;
        let done: Vec<Goal> = work.goals.extract_if(.., is_over).collect();
        if done.is_empty() {
            return;
        }
        // What was written meanwhile was old before, and did not become a goal beside this one.
        if inode.goals.is_empty() && inode.is_dirty() {
            inode.list_as_dirty(&mut self.dirty, env.now);
        }
        let is_lost = inode.errors.is_untold();
        for goal in done {
            match goal.purpose {
                Purpose::Sync(request) => self.end_sync(env, ino, request),
                Purpose::Revoke(revoke) => {
                    let outcome = match is_lost {
                        false => FlushOutcome::Committed,
                        true => FlushOutcome::Lost,
                    };
                    self.on_revoke_flushed(env, ino, revoke, outcome);
                }
                Purpose::Late(revoke) => self.finish_release(env, ino, revoke),
                Purpose::Change(change) => {
                    let (op, then) = *change;
                    self.ask_change(ino, op, then);
                }
                // What it would replace may be good.
                Purpose::Rename(request) => match self.inode(ino).errors.take_untold() {
                    Some(errno) => self.fail(request.ticket, errno),
                    None => self.send_rename(env, *request),
                },
                Purpose::Sweep(sweep) => self.end_swept(env, sweep),
                Purpose::Background => {}
            }
        }
        self.retry(env, ino);
    }

    fn end_sync(&mut self, env: &Env<'_>, ino: InodeId, request: Request) {
        let error = match &request.operation {
            Operation::Fsync { handle, .. } | Operation::Write { handle, .. } => {
                self.tell_error(ino, *handle, Hears::Sync)
            }
            _ => self.inode(ino).errors.take_untold(),
        };
        if let Some(errno) = error {
            return self.reply_written(env, request.ticket, Response::Error(errno));
        }
        let response = match &request.operation {
            Operation::Write { payload, .. } => Response::Written(payload.length),
            _ => Response::Done,
        };
        self.sync_journal(request.ticket, response);
    }
}
