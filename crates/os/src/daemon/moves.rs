//! Moves of directories to another parent: the driver's side of the rename token (`node::moves`).
//!
//! The token is asked for, revoked and released like any other token of shard 0; the walk up to the root
//! asks each owner on the way once (`Query::Ancestors`).

use std::collections::VecDeque;
use std::sync::Arc;

use client::message::Answer;
use node::meta::view::Query;
use node::moves::{MoveEffect, RENAME_TOKEN, Walk, join};
use node::token::message::Revoke;
use node::{MoveToken, Question, Work};
use types::{Errno, InodeId, NodeLife};

use super::work::Item;
use super::{Daemon, MOVE_CALL, lock};
use crate::clock;

impl Daemon {
    fn with_moves(
        self: &Arc<Self>,
        items: &mut VecDeque<Item>,
        act: impl FnOnce(&mut MoveToken, &mut Vec<MoveEffect>),
    ) {
        let mut out = Vec::new();
        act(&mut lock(&self.moves), &mut out);
        for effect in out {
            match effect {
                MoveEffect::Acquire(ask) => {
                    let call = self.draw_call() | MOVE_CALL;
                    self.call_owner(call, RENAME_TOKEN.shard(), ask, items);
                }
                MoveEffect::Release(released) => {
                    self.release_token(RENAME_TOKEN.shard(), released, items);
                }
                MoveEffect::Walk(question) => self.walk_up(question, items),
                MoveEffect::Refuse(question, errno) => {
                    items.push_back(Item::Owner(question.to_be_refused(errno)));
                }
            }
        }
    }

    /// An operation must know the ancestors of `directory`: it is a directory's move to another parent.
    pub(super) fn begin_move(
        self: &Arc<Self>,
        question: Box<Question>,
        directory: InodeId,
        items: &mut VecDeque<Item>,
    ) {
        let now = clock::now();
        self.with_moves(items, |moves, out| {
            moves.on_question(now, question, directory, out);
        });
    }

    /// Asks the owner of the last directory of the question's walk for its ancestors.
    fn walk_up(self: &Arc<Self>, question: Box<Question>, items: &mut VecDeque<Item>) {
        let directory = *question.walk.last().expect("a walk has begun");
        let id = self.draw_call();
        let owner = self.owner(directory.shard());
        let query = Query::Ancestors { directory };
        let message = lock(&self.facts).ask(id, owner, query.clone(), question);
        if owner == self.me.node {
            self.find_fact(self.me, id, query, items);
        } else {
            self.send(owner, &message);
        }
    }

    /// An owner has told a part of the chain.
    pub(super) fn walk_on(
        self: &Arc<Self>,
        mut question: Box<Question>,
        part: &[InodeId],
        items: &mut VecDeque<Item>,
    ) {
        match join(&mut question, part) {
            Walk::Next(_) => self.walk_up(question, items),
            Walk::Done => items.push_back(Item::Owner(Work::Question(question))),
            Walk::Broken => {
                tracing::error!(
                    chain = question.walk.len(),
                    "a directory has no way to the root"
                );
                items.push_back(Item::Owner(question.to_be_refused(Errno::ELOOP)));
            }
        }
    }

    /// The owner of shard 0 has answered a question for the rename token.
    pub(super) fn on_rename_token(self: &Arc<Self>, answer: Answer, items: &mut VecDeque<Item>) {
        let now = clock::now();
        self.with_moves(items, |moves, out| moves.on_answer(now, answer, out));
    }

    /// Another owner wants the rename token.
    pub(super) fn revoke_moves(self: &Arc<Self>, revoke: &Revoke, items: &mut VecDeque<Item>) {
        let now = clock::now();
        self.with_moves(items, |moves, out| moves.on_revoke(now, revoke, out));
    }

    /// A move has its answer, or was dropped.
    pub(super) fn end_move(self: &Arc<Self>, key: (NodeLife, u64), items: &mut VecDeque<Item>) {
        let now = clock::now();
        self.with_moves(items, |moves, out| moves.on_over(now, key, out));
    }
}
