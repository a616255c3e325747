//! Locks of applications at their owner.
//!
//! They show nothing of the journal, so that their answers wait for nothing.

use client::message::{Ask, Body};
use token::locks::Ready;
use token::message::Reassert;
use token::server::Misbehaved;
use types::id::NodeLife;
use types::{Errno, Instant, Lock, LockKind};

use crate::owner::{Locked, OwnerSlice};
use crate::question::{OwnerEffect, OwnerEnv, Question};

impl Locked<'_> {
    /// A node asks about locks.
    pub(super) fn lock(
        &mut self,
        env: &OwnerEnv<'_>,
        question: Box<Question>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let Ask::Lock { ino, ask } = question.ask else {
            unreachable!("the caller matched it");
        };
        let slice = self.slice(question.shard);
        // That there is such an inode is all that counts: an unlock must not wait for a disk, nor fail with it.
        let Some(slice) = slice.filter(|slice| slice.shard.exists(ino)) else {
            out.push(question.refused(Errno::ESTALE));
            return;
        };
        let mut ready = Vec::new();
        let from = question.from;
        let answer = slice.locks.on_ask(env.now, from, (ino, &ask), &mut ready);
        out.push(question.answer(Body::Lock(answer), None));
        tell(ready, out);
    }
}

impl OwnerSlice {
    /// A life is over: its locks are free.
    pub(super) fn lose_locks(&mut self, life: NodeLife, out: &mut Vec<OwnerEffect>) {
        let mut ready = Vec::new();
        self.locks.on_node_lost(life, &mut ready);
        tell(ready, out);
    }

    /// In the grace period: what a member says that its applications hold.
    pub(crate) fn take_locks(&mut self, from: NodeLife, part: &Reassert) -> Result<(), Misbehaved> {
        let shard = &self.shard;
        let locks = part.locks.iter().map(|held| (held.ino, held.lock));
        // A file whose making was lost with the former life has nothing to be locked.
        let locks = locks.filter(|(ino, _)| shard.exists(*ino));
        match self.locks.reassert(from, part.lock_floor, locks) {
            None => Ok(()),
            Some((ino, first)) => Err(Misbehaved::Lock {
                ino,
                first,
                second: from,
            }),
        }
    }

    /// Who waits for locks, and for whom: for `gupfs waiters`.
    pub(super) fn lock_waiters(&self) -> impl Iterator<Item = (String, Instant)> {
        self.locks.waiters().map(|waiting| {
            let behind = match &waiting.behind {
                Some((life, lock)) => format!("waits for the {}", describe(life, lock)),
                None => "has been offered it and not claimed it yet".to_owned(),
            };
            let wanted = describe(&waiting.node, &waiting.lock);
            let what = format!("inode {}: the {wanted} {behind}", waiting.ino);
            (what, waiting.since)
        })
    }
}

fn describe(life: &NodeLife, lock: &Lock) -> String {
    let kind = match lock.owner.kind {
        LockKind::Posix => "fcntl",
        LockKind::Flock => "flock",
    };
    let (mode, range, pid) = (lock.mode, lock.range, lock.pid);
    let end = match range.end {
        u64::MAX => String::new(),
        end => end.to_string(),
    };
    let bytes = format!("{}..{end}", range.begin);
    format!(
        "{kind} {mode:?} lock of bytes {bytes} of process {pid} on {:?}",
        life.node
    )
}

fn tell(ready: Vec<Ready>, out: &mut Vec<OwnerEffect>) {
    out.extend(ready.into_iter().map(OwnerEffect::LockReady));
}
