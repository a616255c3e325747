//! Requests for locks: between a slice and `crate::locks`.
//!
//! Before an unlock nothing is written back: what one node has written another reads under tokens, lock or no lock.

use token::locks::message::{LockAction, LockAnswer, LockAsk};
use types::{Errno, InodeId, Instant, Lock, ShardId};

use crate::HeldLocks;
use crate::env::Env;
use crate::locks::{Asker, LockEffect};
use crate::message::{Answer, Ask, Body};
use crate::names::Continuation;
use crate::request::{Handle, Operation, Request, Response, Ticket, TicketPart};
use crate::slice::Slice;

impl Slice {
    /// GetLock, SetLock, ClearLock.
    pub(crate) fn lock_operation(&mut self, env: &Env<'_>, request: &Request) {
        let mut effects = Vec::new();
        let ticket = request.ticket;
        match request.operation {
            Operation::GetLock { ino, lock } => {
                let action = LockAction::Test { lock };
                let ask = LockAsk { number: 0, action };
                let then = Continuation::LockTest(Some(ticket));
                self.call(ino.shard(), Ask::Lock { ino, ask }, then);
            }
            Operation::SetLock {
                ino,
                handle,
                lock,
                waits,
            } => {
                let uid = request.caller.uid;
                let (at, wanted) = ((ino, handle), (lock, Asker { uid, waits }));
                self.locks.set(env.now, ticket, at, wanted, &mut effects);
                // The signal may have come before the request.
                let signalled = self.signalled.iter().map(|(_, part)| *part);
                if let Some(part) = signalled.clone().find(|part| part.is_of(ticket)) {
                    self.locks.on_interrupt(env.now, part, &mut effects);
                }
            }
            Operation::ClearLock { ino, owner, range } => {
                let (at, what) = ((ticket, ino), (owner, range));
                self.locks.clear(env.now, at, what, &mut effects);
            }
            _ => unreachable!("only these come here"),
        }
        self.perform_locks(effects);
    }

    fn perform_locks(&mut self, effects: Vec<LockEffect>) {
        for effect in effects {
            match effect {
                LockEffect::Ask(ino, ask) => {
                    let then = Continuation::Lock(ino);
                    self.call(ino.shard(), Ask::Lock { ino, ask }, then);
                }
                LockEffect::Done(ticket) => self.reply_locked(ticket),
                // It tells nothing: also without a lease.
                LockEffect::Failed(ticket, Errno::EINTR) => {
                    self.closing.remove(&ticket);
                    self.yield_reply(ticket, Response::Error(Errno::EINTR));
                }
                LockEffect::Failed(ticket, errno) => {
                    self.closing.remove(&ticket);
                    self.fail(ticket, errno);
                }
            }
        }
    }

    /// A request has what it wanted; a close tells of write-backs that failed, too.
    fn reply_locked(&mut self, ticket: Ticket) {
        match self.closing.remove(&ticket) {
            Some((ino, handle)) => self.reply_closed(ticket, ino, handle),
            None => self.reply(ticket, Response::Done),
        }
    }

    /// Drops the locks of who closes a descriptor. False: there are none.
    pub(crate) fn close_locks(&mut self, env: &Env<'_>, request: &Request) -> bool {
        let Operation::Flush {
            ino,
            handle,
            lock_owner,
        } = request.operation
        else {
            unreachable!("only close comes here");
        };
        if self.locks.is_empty() {
            return false;
        }
        let mut effects = Vec::new();
        let at = (request.ticket, ino);
        let has_locks = self.locks.close(env.now, at, lock_owner, &mut effects);
        // One that was given up before has its answer.
        if has_locks && request.ticket != Ticket(0) {
            self.closing.insert(request.ticket, (ino, handle));
        }
        self.perform_locks(effects);
        has_locks
    }

    /// Drops what was locked through an open file alone that is gone.
    pub(crate) fn release_locks(&mut self, env: &Env<'_>, ino: InodeId, handle: Handle) {
        if self.locks.is_empty() {
            return;
        }
        let mut effects = Vec::new();
        self.locks.release(env.now, (ino, handle), &mut effects);
        self.perform_locks(effects);
    }

    pub(crate) fn on_lock_answer(&mut self, env: &Env<'_>, ino: InodeId, answer: &Answer) {
        let mut effects = Vec::new();
        let heard = lock_answer(answer);
        self.locks.on_answer(env.now, ino, heard, &mut effects);
        self.perform_locks(effects);
    }

    pub(crate) fn on_lock_test(&mut self, env: &Env<'_>, ticket: Option<Ticket>, answer: &Answer) {
        let Some(ticket) = ticket else {
            return;
        };
        match lock_answer(answer) {
            Ok(LockAnswer::Held { node, lock }) => {
                // The kernel looks the process up among its own.
                let pid = if node == env.life.node { lock.pid } else { 0 };
                let lock = Lock { pid, ..lock };
                self.reply(ticket, Response::Lock(Some(lock)));
            }
            Ok(_) => self.reply(ticket, Response::Lock(None)),
            Err(errno) => self.fail(ticket, errno),
        }
    }

    /// The owner says that it is a wait's turn.
    pub(crate) fn on_lock_ready(&mut self, env: &Env<'_>, ino: InodeId, wait: u64) {
        let mut effects = Vec::new();
        self.locks.on_ready(env.now, ino, wait, &mut effects);
        self.perform_locks(effects);
    }

    pub(crate) fn interrupt_lock(&mut self, env: &Env<'_>, part: TicketPart) -> bool {
        let mut effects = Vec::new();
        let is_here = self.locks.on_interrupt(env.now, part, &mut effects);
        self.perform_locks(effects);
        is_here
    }

    pub(crate) fn tick_locks(&mut self, env: &Env<'_>) {
        let mut effects = Vec::new();
        self.locks.on_tick(env.now, &mut effects);
        self.perform_locks(effects);
    }

    /// Adds what applications hold on inodes of the shards that `is_asked` names, for the shards' new owner. What was asked of
    /// the owner before counts for nothing from now on.
    pub fn reassert_locks(&mut self, is_asked: impl Fn(ShardId) -> bool, told: &mut HeldLocks) {
        let number = self.locks.reassert(is_asked, &mut told.locks);
        told.floor = told.floor.max(number);
    }

    /// Locks held on `ino`: for checks from outside.
    pub fn locks_on(&self, ino: InodeId) -> Vec<Lock> {
        self.locks.held(ino)
    }

    pub(crate) fn lock_waiters(&self) -> impl Iterator<Item = (InodeId, String, Instant)> {
        self.locks.waiters()
    }
}

fn lock_answer(answer: &Answer) -> Result<LockAnswer, Errno> {
    match &answer.body {
        Body::Lock(answer) => Ok(*answer),
        Body::Refused(errno) => Err(*errno),
        _ => Err(Errno::EIO),
    }
}
