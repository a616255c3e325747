//! Moves of directories to another parent: carries out what `node::moves` decides (the twin of `os::daemon::moves`).

use std::collections::VecDeque;

use client::message::Answer;
use meta::view::Query;
use node::moves::{MoveEffect, RENAME_TOKEN, Walk, join};
use node::{MoveToken, Question, Work};
use token::message::Revoke;
use types::id::NodeLife;
use types::{Errno, InodeId};

use super::{DRIVER_CALL, Item, MOVE_CALL, Node};

type Items = VecDeque<Item>;

impl Node {
    fn with_moves(
        &mut self,
        items: &mut Items,
        act: impl FnOnce(&mut MoveToken, &mut Vec<MoveEffect>),
    ) {
        let mut out = Vec::new();
        act(&mut self.moves, &mut out);
        for effect in out {
            match effect {
                MoveEffect::Acquire(ask) => {
                    let call = self.draw_call() & !DRIVER_CALL | MOVE_CALL;
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
        &mut self,
        question: Box<Question>,
        directory: InodeId,
        items: &mut Items,
    ) {
        let now = self.now;
        self.with_moves(items, |moves, out| {
            moves.on_question(now, question, directory, out);
        });
    }

    /// Asks the owner of the last directory of the question's walk for its ancestors.
    fn walk_up(&mut self, question: Box<Question>, items: &mut Items) {
        let directory = *question.walk.last().expect("a walk has begun");
        let id = self.draw_call();
        let owner = self.owner(directory.shard());
        let query = Query::Ancestors { directory };
        let message = self.facts.ask(id, owner, query.clone(), question);
        if owner == self.me.node {
            self.find_fact(self.me, id, query, items);
        } else {
            self.send(owner, message);
        }
    }

    /// An owner has told a part of the chain.
    pub(super) fn walk_on(
        &mut self,
        mut question: Box<Question>,
        part: &[InodeId],
        items: &mut Items,
    ) {
        match join(&mut question, part) {
            Walk::Next(_) => self.walk_up(question, items),
            Walk::Done => items.push_back(Item::Owner(Work::Question(question))),
            Walk::Broken => items.push_back(Item::Owner(question.to_be_refused(Errno::ELOOP))),
        }
    }

    /// The owner of shard 0 has answered a question for the rename token.
    pub(super) fn on_rename_token(&mut self, answer: Answer, items: &mut Items) {
        let now = self.now;
        self.with_moves(items, |moves, out| moves.on_answer(now, answer, out));
    }

    /// Another owner wants the rename token.
    pub(super) fn revoke_moves(&mut self, revoke: &Revoke, items: &mut Items) {
        let now = self.now;
        self.with_moves(items, |moves, out| moves.on_revoke(now, revoke, out));
    }

    /// A move has its answer, or was dropped.
    pub(super) fn end_move(&mut self, key: (NodeLife, u64), items: &mut Items) {
        let now = self.now;
        self.with_moves(items, |moves, out| moves.on_over(now, key, out));
    }
}
