//! The owner's side of questions for tokens.

use client::message::{Ask, Body};
use meta::view::Held;
use meta::{Executed, Op, Outcome, Reply};
use token::message::Acquire;
use types::{ByteRange, Errno, FileKind, Pattern, Want};

use super::{Locked, Missing, Need};
use crate::moves::RENAME_TOKEN;
use crate::question::{OwnerEffect, OwnerEnv, Question, Work};
use crate::steps::attribute_want;

impl Locked<'_> {
    /// A node asks for tokens. The attributes that come with them must not be about to change by a
    /// prepared transaction, so they are read as an operation would.
    pub(super) fn acquire(
        &mut self,
        env: &OwnerEnv<'_>,
        question: Box<Question>,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        let Ask::Acquire {
            ino,
            seen,
            wants,
            only_free,
        } = &question.ask
        else {
            unreachable!("the caller matched it");
        };
        let (ino, seen, mut wants, only_free) = (*ino, *seen, wants.clone(), *only_free);
        let holder = question.from;
        let home = question.shard;
        let is_move = ino == RENAME_TOKEN;
        if !is_move && self.slice(home).is_none_or(|s| !s.shard.has_inode(ino)) {
            if let Err(Missing::Keys(inodes)) = self.known() {
                return Err(Need::Keys(inodes, Work::Question(question)));
            }
            let after = Some(self.last_lsn());
            out.push(question.answer(Body::Acquired { attr: None }, after));
            return Ok(());
        }
        let slice = self.slice(home).expect("seen above");
        let attr = slice.shard.attr(ino);
        let is_directory = attr.is_some_and(|a| a.kind == FileKind::Directory);
        if is_directory && wants.iter().any(|w| matches!(w, Want::Inode { .. })) {
            // Who has only seen its name asks as for a file. Changes of a directory do not revoke inode tokens.
            wants = vec![attribute_want(FileKind::Directory)];
        }
        let is_granted = question.grants.iter().any(|g| g.ino == ino);
        let mut question = question;
        if !is_granted || !slice.tokens.is_covered(holder, ino, &wants) {
            if only_free {
                let errno = match slice.tokens.is_in_grace() {
                    // Who has what is not known yet.
                    true => Some(Errno::EBUSY),
                    false if slice.tokens.is_free(holder, ino, &wants) => None,
                    false => Some(Errno::EAGAIN),
                };
                if let Some(errno) = errno {
                    self.refuse(question, Body::Refused(errno), out);
                    return Ok(());
                }
                wants.iter_mut().for_each(desire_nothing);
            }
            let ticket = slice.draw_ticket();
            let acquire = Acquire {
                holder,
                ticket,
                ino,
                seen,
                wants,
                transient: false,
            };
            let Some(Work::Question(q)) =
                slice.acquire(env.now, acquire, Work::Question(question), out)
            else {
                return Ok(());
            };
            question = q;
        }
        if is_move {
            // No inode: there is nothing to show, and nothing that must be durable.
            out.push(question.answer(Body::Acquired { attr: None }, None));
            return Ok(());
        }
        match self.execute(env, &question, &Op::GetAttr { ino }, Held::Nothing) {
            Outcome::Done(Executed {
                reply: Reply::Attr(attr),
                ..
            }) => {
                let after = Some(self.last_lsn());
                out.push(question.answer(Body::Acquired { attr: Some(attr) }, after));
            }
            Outcome::Wait(_) => self.wait(home, "a transaction", Work::Question(question)),
            Outcome::NeedKeys(inodes) => return Err(Need::Keys(inodes, Work::Question(question))),
            _ => {
                let after = Some(self.last_lsn());
                out.push(question.answer(Body::Acquired { attr: None }, after));
            }
        }
        Ok(())
    }
}

/// No more is granted than what is required, however much is free: nobody is to have to take back what it was not asked for.
fn desire_nothing(want: &mut Want) {
    match want {
        Want::Range { desired, .. } => *desired = Pattern::plain(ByteRange::default()),
        Want::Inode { .. } | Want::Directory { .. } => {}
    }
}
