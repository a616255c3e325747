//! Signals to who waits for an answer.
//!
//! Who calls a file system seldom expects EINTR, and disks never answer so; and a load through a mapping cannot fail so: the kernel makes
//! SIGBUS of it, or EFAULT where a system call copies from the mapping, whatever the signal was. So a wait goes on for `PATIENCE`
//! after a signal: tokens come in milliseconds, and where an owner is away the process can still be killed.

use types::{Duration, Errno};

use crate::env::Env;
use crate::inode::Inode;
use crate::request::{Response, Ticket};
use crate::slice::Slice;

/// How long a wait goes on when its caller got a signal.
const PATIENCE: Duration = Duration::from_secs(5);
/// Waits that are remembered so; of more the oldest are given up.
const SIGNALLED_COUNT_MAX: usize = 1024;

impl Slice {
    /// The caller of a request got a signal.
    pub(crate) fn on_interrupt(&mut self, env: &Env<'_>, ticket: Ticket) {
        self.signalled.push_back((env.now, ticket));
        if self.signalled.len() > SIGNALLED_COUNT_MAX
            && let Some((_, oldest)) = self.signalled.pop_front()
        {
            self.end_wait(env, oldest);
        }
    }

    /// Waits that have gone on for long enough after a signal end.
    pub(crate) fn end_signalled(&mut self, env: &Env<'_>) {
        while let Some((since, ticket)) = self.signalled.front().copied() {
            if env.now.since(since) < PATIENCE {
                return;
            }
            self.signalled.pop_front();
            self.end_wait(env, ticket);
        }
    }

    /// Gives a wait up. Only waits of which nothing has been done yet, and fsync's (the write-back goes on).
    fn end_wait(&mut self, env: &Env<'_>, ticket: Ticket) {
        let holds = |inode: &Inode| {
            inode
                .parked
                .iter()
                .any(|p| p.request.ticket == ticket && !p.is_admitted)
                || inode.gate.as_ref().is_some_and(|state| state.has(ticket))
                || inode.goals.iter().any(|goal| goal.is_for(ticket))
        };
        let found = self
            .inodes
            .iter()
            .find(|(_, inode)| holds(inode))
            .map(|(ino, _)| *ino);
        let Some(ino) = found else { return };
        let inode = self.inode(ino);
        let was_opening = inode.is_opening();
        inode
            .parked
            .retain(|p| p.request.ticket != ticket || p.is_admitted);
        for goal in inode.goals.iter_mut().filter(|goal| goal.is_for(ticket)) {
            goal.purpose = crate::flush::Purpose::Background;
        }
        self.misplaced.remove(&ticket);
        self.abandon(env, ino, ticket);
        if was_opening {
            // A close may have been left to it.
            self.tell_closed(ino);
        }
        // It tells nothing: also without a lease.
        self.yield_reply(ticket, Response::Error(Errno::EINTR));
    }
}
