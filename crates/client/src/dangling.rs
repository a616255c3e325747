//! Names that lead to inodes that are gone.
//!
//! Mostly another node has removed one a moment ago, and the name leads elsewhere by now or nowhere: it is looked up again at once. A name whose inode is missing at its owner (an NSD put
//! back from a backup, damage) leads there for ever: after `TRIES_MAX` it is looked up with pauses, and after `PATIENCE` and `LOOKS_MAX` looks whoever asks hears EIO.
//! `gupfs fsck` names it (`name-dangling`).
//!
//! Invariants
//! - A lookup that is tried again is in `Again::requests` or on its way, not both, and is known by its ticket in `Again::tries` until `KEPT` after its last try.

use rustc_hash::FxHashMap;
use types::{Duration, Errno, InodeId, Instant};

use crate::env::Env;
use crate::names::{directory_of, name_of};
use crate::opens::UNNAMED_LOOKS_MAX;
use crate::request::{Request, Ticket};
use crate::slice::Slice;

/// So often a name is looked up again at once.
const TRIES_MAX: u32 = 8;
/// Then so long after the last time.
const PAUSE: Duration = Duration::from_millis(50);
/// It has led to one inode that is gone for so long: it will not lead elsewhere.
const PATIENCE: Duration = Duration::from_secs(2);

/// And so often at least: an inode that only this node takes for gone is shown by then ([`UNNAMED_LOOKS_MAX`]), however long its owner takes.
const LOOKS_MAX: u32 = TRIES_MAX + UNNAMED_LOOKS_MAX as u32;
/// What has not led to one that is gone for so long was answered otherwise.
const KEPT: Duration = Duration::from_secs(30);

/// A lookup that is tried again.
#[derive(Clone, Copy, Debug)]
struct Tried {
    /// Where it has led.
    gone: InodeId,
    /// The first time, and the last.
    since: Instant,
    last: Instant,
    /// How often.
    count: u32,
}

/// Lookups that are tried again.
#[derive(Debug, Default)]
pub(crate) struct Again {
    tries: FxHashMap<Ticket, Tried>,
    /// Those that pause, and until when.
    requests: Vec<(Instant, Request)>,
}

enum Next {
    Now,
    Later,
    Never,
}

impl Again {
    fn next(&mut self, ticket: Ticket, gone: InodeId, now: Instant) -> Next {
        let first = Tried {
            gone,
            since: now,
            last: now,
            count: 0,
        };
        let known = self.tries.entry(ticket).or_insert(first);
        if known.gone != gone {
            *known = first;
        }
        known.last = now;
        known.count += 1;
        if known.count <= TRIES_MAX {
            return Next::Now;
        }
        if now.since(known.since) < PATIENCE || known.count <= LOOKS_MAX {
            return Next::Later;
        }
        self.tries.remove(&ticket);
        Next::Never
    }
}

impl Slice {
    /// Looks a name up again that led to an inode that is gone.
    pub(crate) fn look_again(&mut self, env: &Env<'_>, (request, gone): (Request, InodeId)) {
        if let (Some(parent), Some(name)) = (
            directory_of(&request.operation),
            name_of(&request.operation),
        ) && let Some(directory) = self.inodes.get_mut(&parent)
        {
            directory.forget_entry(name);
        }
        match self.again.next(request.ticket, gone, env.now) {
            Next::Now => self.start(env, request),
            Next::Later => self.again.requests.push((env.now + PAUSE, request)),
            Next::Never => self.fail(request.ticket, Errno::EIO),
        }
    }

    /// Time has passed.
    pub(crate) fn look_again_late(&mut self, env: &Env<'_>) {
        if self.again.tries.is_empty() {
            return;
        }
        let is_due = |(until, _): &mut (Instant, Request)| *until <= env.now;
        let due = self.again.requests.extract_if(.., is_due);
        for (_, request) in due.collect::<Vec<_>>() {
            self.start(env, request);
        }
        let is_kept = |tried: &Tried| env.now.since(tried.last) < KEPT;
        self.again.tries.retain(|_, tried| is_kept(tried));
    }

    /// Lookups that pause, for `gupfs waiters`: where the name leads, and since when.
    pub(crate) fn dangling(&self) -> impl Iterator<Item = (InodeId, String, Instant)> {
        self.again.requests.iter().filter_map(|(_, request)| {
            let tried = self.again.tries.get(&request.ticket)?;
            let (operation, count) = (&request.operation, tried.count);
            let what = format!("{operation:?} leads to an inode that is gone, {count} times");
            Some((tried.gone, what, tried.since))
        })
    }
}
