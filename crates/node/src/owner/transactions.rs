//! The owner's side of operations of several owners: what other owners say of them, and what follows.

use client::message::Body;
use meta::{Mutation, transaction};
use token::Acquire;
use types::{Duration, FileKind, InodeId, InodeMode, ShardId, TokenNumber, Want};

use super::{Locked, NOBODY, Need, OwnerEffect, OwnerEnv, OwnerLog, Question, Work};
use crate::steps::inode_of;

/// A question gives way so often before it pauses.
const GIVES_WAY_AT_ONCE: u32 = 4;
/// The first pause; each is twice the one before, up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);

impl Locked<'_> {
    pub(super) fn transaction(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        envelope: Box<meta::Envelope>,
        out: &mut Vec<OwnerEffect>,
    ) -> Result<(), Need> {
        let mut envelope = envelope;
        let home = envelope.to;
        let slice = self.slice(home).expect("the receiving shard is locked");
        if slice.is_waiting_for(&envelope) {
            return Ok(());
        }
        let missing = transaction::missing(&self.view(env), &envelope);
        if !missing.is_empty() {
            return Err(Need::Keys(missing, Work::Transaction(envelope)));
        }
        let freed = meta::envelope_frees_at_most(&self.view(env), &envelope);
        if !log.has_room_for_transaction(freed) {
            self.wait(home, "room in the journal", Work::Transaction(envelope));
            return Ok(());
        }
        // Nobody may cache what the steps of a prepare change.
        while let Some((ino, want)) = self.cached_elsewhere(&envelope) {
            let slice = self.slice(home).expect("the receiving shard is locked");
            let acquire = Acquire {
                holder: NOBODY,
                ticket: slice.draw_ticket(),
                ino,
                seen: TokenNumber(0),
                wants: vec![want],
                transient: true,
            };
            match slice.acquire(env.now, acquire, Work::Transaction(envelope), out) {
                Some(Work::Transaction(e)) => envelope = e,
                _ => return Ok(()),
            }
        }
        let handled = transaction::on_message(&mut self.view(env), &envelope);
        match handled {
            transaction::Handled::Done(progress) => {
                self.progress(env, log, home, progress, out);
                Ok(())
            }
            transaction::Handled::NeedShards(shards) => {
                Err(Need::Shards(shards, Work::Transaction(envelope)))
            }
        }
    }

    fn cached_elsewhere(&mut self, envelope: &meta::Envelope) -> Option<(InodeId, Want)> {
        let transaction::TransactionMessage::Prepare { steps, .. } = &envelope.message else {
            return None;
        };
        let slice = self.slice(envelope.to)?;
        if !transaction::would_lock(&slice.shard, envelope) {
            // Who has to give way must not wait for tokens first: the one that waits for it may be what keeps them busy.
            return None;
        }
        steps.iter().find_map(|step| {
            let ino = inode_of(step)?;
            if ino.shard() != envelope.to {
                return None;
            }
            let attr = slice.shard.attr(ino)?;
            let want = if attr.kind == FileKind::Directory {
                Want::Directory {
                    mode: types::DirectoryMode::Write,
                }
            } else {
                Want::Inode {
                    mode: InodeMode::Exclusive,
                }
            };
            let is_clear = slice
                .tokens
                .is_clear(NOBODY, ino, std::slice::from_ref(&want));
            (!is_clear).then_some((ino, want))
        })
    }

    /// Journals what a transaction's step changed, and lets its messages follow.
    pub(super) fn progress(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        home: ShardId,
        progress: transaction::Progress,
        out: &mut Vec<OwnerEffect>,
    ) {
        if !progress.mutations.is_empty() {
            let lsn = log.append(env.me, &progress.mutations, &[], &progress.freed);
            self.note_journaled(env, &progress.mutations, lsn, out);
            self.begin_tending(out);
            self.note_promised(log);
            self.forget_the_dead(env, log, &progress.mutations, out);
        }
        let after = self.last_lsn();
        for envelope in progress.messages {
            out.push(OwnerEffect::Transaction(Box::new(envelope), after));
        }
        if let Some(finished) = progress.finished
            && let Some(mut question) = log.transactions.remove(&finished.id)
        {
            match finished.reply {
                Some(reply) => {
                    // Nobody would give back what a dead one is granted.
                    if !self.slices.iter().any(|s| s.lost.contains(&question.from)) {
                        self.grant_along(env, &mut question, &reply);
                    }
                    out.push(question.answer(Body::Op(reply), Some(after)));
                }
                None => {
                    // What it knew of other owners may be what made it fail.
                    question.facts.clear();
                    self.give_way(env, home, question, out);
                }
            }
        }
        // Whatever waited for a transaction looks again.
        if let Some(slice) = self.slice(home) {
            slice.resume_waiting(out);
        }
    }

    /// Whoever asked for it may have died since: what it has open by that, and its answer, go like all that it had.
    fn forget_the_dead(
        &mut self,
        env: &OwnerEnv<'_>,
        log: &mut OwnerLog,
        mutations: &[(ShardId, Mutation)],
        out: &mut Vec<OwnerEffect>,
    ) {
        for (shard, mutation) in mutations {
            let life = match mutation {
                Mutation::OpenPut { life, .. } | Mutation::AnswerPut { life, .. } => *life,
                _ => continue,
            };
            if let Some(slice) = self.slice(*shard)
                && slice.lost.contains(&life)
            {
                let changes = slice.shard.on_node_lost(life);
                slice.note_reaped(env, log, &changes, out);
            }
        }
    }

    /// A transaction found an older one in its way and was dropped: its question is run again. At once, for that one is over soon;
    /// and if it is not, because its owner is busy or away, after pauses: nothing but time brings it on.
    fn give_way(
        &mut self,
        env: &OwnerEnv<'_>,
        home: ShardId,
        mut question: Box<Question>,
        out: &mut Vec<OwnerEffect>,
    ) {
        question.gave_way += 1;
        let times = question.gave_way.checked_sub(GIVES_WAY_AT_ONCE);
        let work = Work::Question(question);
        match (times, self.slice(home)) {
            (Some(times), Some(slice)) => {
                let pause = Duration(PAUSE_MIN.0 << times.min(8)).min(PAUSE_MAX);
                let until = env.now + pause;
                slice.paused.push((until, work));
                out.push(OwnerEffect::WakeAt(home, until));
            }
            _ => out.push(OwnerEffect::Run(work)),
        }
    }
}
