//! The rename token: in the whole cluster one directory at a time moves to another parent.
//!
//! A directory must not get below itself. Whether it would is seen by walking from the new parent up to the
//! root, over shards of several owners; two moves that walk at once (a/ into b/, b/ into a/) would each see
//! a tree without the other. So whoever moves a directory to another parent holds the rename token from
//! before the walk until the move is decided. What is decided then and not yet performed everywhere is
//! prepared there, and a walk waits for what is prepared (`Op::Ancestors`), so the next walk sees it.
//!
//! The token is an exclusive token of the token manager of shard 0, on a number that is no inode's: so its
//! manager's repeats, its grace period and what it does about dead nodes hold here too. The owner of the
//! source directory holds it, and keeps it until another owner wants it: moves through one owner cost no
//! message for it.
//!
//! Invariants
//! - One question of this node uses the token at a time, and only while the token is held.
//! - The token is released only when no question uses it.
//! - The questions that wait are bounded (`limits::MOVES_WAITING_MAX`).
//!
//! Life cycle of a move: `on_question` -> waits its turn, and for the token -> `MoveEffect::Walk`, once per
//! owner on the way up (`join`) -> run with the chain -> answered: `on_over`. An operation that was aborted
//! by another transaction walks again under the same token.
//!
//! What it does not do: it does not give up on a move whose participant is away. Other directories wait until
//! that owner is back, as every operation on its shards does; `waiters` names the move.

use std::collections::VecDeque;

use client::message::{Answer, Ask, Body};
use meta::view::Fact;
use token::message::{Released, Revoke};
use token::server::first_number;
use token::{Activity, Finish, Holder};
use types::{Epoch, Errno, Holding, InodeId, InodeMode, Instant, NodeLife, ShardId, Want, limits};

use crate::question::Question;

/// The number that stands for the token: index 0 of shard 0, which is no inode's.
pub const RENAME_TOKEN: InodeId = InodeId::new(ShardId(0), 0);

/// What is to be done.
#[derive(Debug)]
pub enum MoveEffect {
    /// Ask the owner of shard 0; its answer goes to [`MoveToken::on_answer`].
    Acquire(Ask),
    /// Tell the owner of shard 0.
    Release(Released),
    /// The question may walk: ask for the ancestors of the last of its `walk`.
    Walk(Box<Question>),
    /// Answer that the operation was not executed.
    Refuse(Box<Question>, Errno),
}

/// How a walk goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Walk {
    /// Ask the owner of this directory for its ancestors.
    Next(InodeId),
    /// The chain reaches the root and is among the question's facts: run it.
    Done,
    /// The chain cannot be: the answer is not one to what was asked, or it does not end.
    Broken,
}

/// One node's side of the rename token.
#[derive(Debug)]
pub struct MoveToken {
    is_on: bool,
    holder: Holder,
    user: Option<((NodeLife, u64), Instant)>,
    waiting: VecDeque<Box<Question>>,
    is_asked: bool,
    /// The releases to be finished when nobody uses the token: several owners may want it.
    releases: Vec<u64>,
}

impl Default for MoveToken {
    fn default() -> Self {
        Self::new(true)
    }
}

impl MoveToken {
    /// Holds nothing. `is_on` false: every move walks at once, without the token (a canary, to show that
    /// tests notice).
    pub const fn new(is_on: bool) -> Self {
        Self {
            is_on,
            holder: Holder::new(),
            user: None,
            waiting: VecDeque::new(),
            is_asked: false,
            releases: Vec::new(),
        }
    }

    /// An operation needs to know the ancestors of `directory`.
    pub fn on_question(
        &mut self,
        now: Instant,
        mut question: Box<Question>,
        directory: InodeId,
        out: &mut Vec<MoveEffect>,
    ) {
        question.walk = vec![directory];
        let key = (question.from, question.call);
        let is_user = self.user.is_some_and(|(user, _)| user == key);
        if is_user || !self.is_on {
            question.is_mover = is_user;
            return out.push(MoveEffect::Walk(question));
        }
        if self.waiting.len() >= limits::MOVES_WAITING_MAX {
            return out.push(MoveEffect::Refuse(question, Errno::EAGAIN));
        }
        self.waiting.push_back(question);
        self.pump(now, out);
    }

    /// The owner of shard 0 has answered.
    pub fn on_answer(&mut self, now: Instant, answer: Answer, out: &mut Vec<MoveEffect>) {
        self.is_asked = false;
        for granted in answer.grants.iter().filter(|g| g.ino == RENAME_TOKEN) {
            // A state that is void already is asked for again below.
            let _ = self.holder.on_granted(granted, true);
        }
        if let Body::Refused(errno) = answer.body {
            let refuse = |question| MoveEffect::Refuse(question, errno);
            out.extend(self.waiting.drain(..).map(refuse));
        }
        self.pump(now, out);
    }

    /// Another owner wants the token.
    pub fn on_revoke(&mut self, now: Instant, revoke: &Revoke, out: &mut Vec<MoveEffect>) {
        let plan = self.holder.on_revoke(now, revoke, &Activity::default());
        let Some(plan) = plan else { return };
        if plan.is_empty() {
            // Nothing is held any more: the release was lost.
            return self.finish(plan.release, out);
        }
        self.releases.push(plan.release);
        self.pump(now, out);
    }

    /// A question that used the token has its answer, or is dropped.
    pub fn on_over(&mut self, now: Instant, key: (NodeLife, u64), out: &mut Vec<MoveEffect>) {
        if self.user.is_some_and(|(user, _)| user == key) {
            self.user = None;
            self.pump(now, out);
        }
    }

    /// What to tell the new owner of shard 0 (and nobody else) that asks under `epoch`.
    pub fn reassert(&mut self, epoch: Epoch) -> Vec<Holding> {
        if self.holder.seen() >= first_number(epoch) {
            return Vec::new();
        }
        self.holder.reassert(RENAME_TOKEN, epoch)
    }

    /// Moves that wait or use the token, and since when: for `gupfs waiters`.
    pub fn waiters(&self) -> Vec<(String, Instant)> {
        let user = self.user.map(|((life, call), since)| {
            let what = format!("move {call} of {:?} uses the rename token", life.node);
            (what, since)
        });
        let waiting = self.waiting.iter().map(|q| {
            let what = format!(
                "{:?} of {:?} waits for the rename token",
                q.ask, q.from.node
            );
            (what, q.since)
        });
        user.into_iter().chain(waiting).collect()
    }

    /// Asserts the invariants of this module.
    pub fn check(&self) {
        self.holder.check();
        assert!(self.waiting.len() <= limits::MOVES_WAITING_MAX);
        assert!(self.user.is_none() || self.holder.held().inode.is_some());
        assert!(
            self.user.is_some() || self.releases.is_empty(),
            "released when free"
        );
    }

    /// Gives the token back when it is wanted and free, else to the next that waits for it.
    fn pump(&mut self, now: Instant, out: &mut Vec<MoveEffect>) {
        if self.user.is_some() {
            return;
        }
        for release in std::mem::take(&mut self.releases) {
            self.finish(release, out);
        }
        if self.waiting.is_empty() {
            return;
        }
        if self.holder.covers_inode(InodeMode::Exclusive) {
            let mut question = self.waiting.pop_front().expect("just seen");
            question.is_mover = true;
            self.user = Some(((question.from, question.call), now));
            out.push(MoveEffect::Walk(question));
        } else if !self.is_asked {
            self.is_asked = true;
            let mode = InodeMode::Exclusive;
            out.push(MoveEffect::Acquire(Ask::Acquire {
                ino: RENAME_TOKEN,
                seen: self.holder.seen(),
                wants: vec![Want::Inode { mode }],
                only_free: false,
            }));
        }
    }

    fn finish(&mut self, release: u64, out: &mut Vec<MoveEffect>) {
        let mut release = release;
        loop {
            match self.holder.finish_release(release, false) {
                Finish::Release(released) => return out.push(MoveEffect::Release(released)),
                // A grant came in between; there is still nothing to stop or to flush.
                Finish::More(plan) => release = plan.release,
            }
        }
    }
}

/// Takes a part of the chain that a question is walking: `part` begins with the directory that was asked
/// about.
pub fn join(question: &mut Question, part: &[InodeId]) -> Walk {
    let asked = question.walk.last().copied();
    let (Some((first, rest)), Some(asked)) = (part.split_first(), asked) else {
        return Walk::Broken;
    };
    if *first != asked || (rest.is_empty() && asked != InodeId::ROOT) {
        return Walk::Broken;
    }
    question.walk.extend(rest);
    let (first, last) = (question.walk[0], question.walk.last().copied());
    match last {
        Some(InodeId::ROOT) => {
            let chain = std::mem::take(&mut question.walk);
            let is_old =
                |f: &Fact| matches!(f, Fact::Ancestors { directory, .. } if *directory == first);
            question.facts.retain(|f| !is_old(f));
            question.facts.push(Fact::Ancestors {
                directory: first,
                chain,
            });
            Walk::Done
        }
        Some(next) if question.walk.len() < limits::DEPTH_MAX => Walk::Next(next),
        Some(_) | None => Walk::Broken,
    }
}
