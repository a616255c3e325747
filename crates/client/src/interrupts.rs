//! Signals to who waits for an answer.
//!
//! Who calls a file system seldom expects EINTR, and disks never answer so; and a load through a mapping cannot fail so: the kernel makes
//! SIGBUS of it, or EFAULT where a system call copies from the mapping, whatever the signal was. So a wait goes on for `PATIENCE`
//! after a signal: tokens come in milliseconds, and where an owner is away the process can still be killed.

use types::{Duration, Errno, InodeId};

use crate::env::Env;
use crate::inode::Inode;
use crate::names::Continuation;
use crate::request::{Response, Ticket, TicketPart};
use crate::slice::Slice;

/// How long a wait goes on when its caller got a signal.
const PATIENCE: Duration = Duration::from_secs(5);
/// Signals that are remembered so. More are ignored: their callers wait on, and the kernel tells of a signal once.
const SIGNALLED_COUNT_MAX: usize = 4096;

impl Inode {
    /// Who may be given up: requests of which nothing has been done yet, and fsyncs (their write-back goes on).
    fn waiters(&self) -> impl Iterator<Item = Ticket> {
        let parked = self.parked.iter().filter(|p| !p.is_admitted);
        let gated = self.gate.iter().flat_map(|state| state.parked());
        parked
            .map(|p| p.request.ticket)
            .chain(gated.map(|request| request.ticket))
            .chain(self.goals.iter().filter_map(crate::goals::Goal::waiter))
    }
}

impl Slice {
    /// The caller of a request got a signal. The request need not be here.
    pub(crate) fn on_interrupt(&mut self, env: &Env<'_>, part: TicketPart) {
        // A lock may not come for ever: nobody waits for one with patience.
        if self.interrupt_lock(env, part) {
            return;
        }
        if self.signalled.len() < SIGNALLED_COUNT_MAX {
            self.signalled.push_back((env.now, part));
        }
    }

    /// Waits that have gone on for long enough after a signal end.
    pub(crate) fn end_signalled(&mut self, env: &Env<'_>) {
        let is_due = |(since, _): &(_, _)| env.now.since(*since) >= PATIENCE;
        let due_count = self.signalled.iter().take_while(|s| is_due(s)).count();
        if due_count == 0 {
            return;
        }
        let due: Vec<TicketPart> = self.signalled.drain(..due_count).map(|(_, p)| p).collect();
        // One look at all inodes for all of them.
        let found = self.inodes.iter().flat_map(|(ino, inode)| {
            let is_due = |ticket: &Ticket| due.iter().any(|part| part.is_of(*ticket));
            inode.waiters().filter(is_due).map(|ticket| (*ino, ticket))
        });
        for (ino, ticket) in found.collect::<Vec<(InodeId, Ticket)>>() {
            self.end_wait(env, ino, ticket);
        }
        self.end_questions(&due);
    }

    /// Nobody waits any more for attributes that an owner has been asked for; they are learnt all the same.
    fn end_questions(&mut self, due: &[TicketPart]) {
        let mut ended = Vec::new();
        for continuation in self.calls.values_mut() {
            if let Continuation::Attributes(_, ticket, ..) | Continuation::LockTest(ticket) =
                continuation
            {
                let is_due = |ticket: &mut Ticket| due.iter().any(|part| part.is_of(*ticket));
                ended.extend(ticket.take_if(is_due));
            }
        }
        for ticket in ended {
            self.yield_reply(ticket, Response::Error(Errno::EINTR));
        }
    }

    /// Gives a wait up.
    fn end_wait(&mut self, env: &Env<'_>, ino: InodeId, ticket: Ticket) {
        let Some(inode) = self.inodes.get_mut(&ino) else {
            return;
        };
        // What ended before this one may have ended it, too.
        if !inode.waiters().any(|waiter| waiter == ticket) {
            return;
        }
        let was_opening = inode.is_opening();
        inode
            .parked
            .retain(|p| p.request.ticket != ticket || p.is_admitted);
        for goal in &mut inode.goals {
            if goal.waiter() == Some(ticket) {
                goal.purpose = crate::goals::Purpose::Background;
            }
        }
        self.misplaced.remove(&ticket);
        self.abandon(env, ino, ticket);
        if was_opening {
            // A close may have been left to it.
            self.tell_closed(env, ino);
        }
        // It tells nothing: also without a lease.
        self.yield_reply(ticket, Response::Error(Errno::EINTR));
    }
}
