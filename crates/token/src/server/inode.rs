//! One inode's tokens at the manager: who holds what, who waits, and what that means for a request.
//!
//! Decides, but neither numbers states nor sends; that is the manager's.

use std::borrow::Cow;

use types::id::NodeLife;
use types::{
    ByteRange, DirectoryMode, Duration, InodeId, InodeMode, Instant, Pattern, RangeMode,
    TokenNumber, Want,
};

use super::{Effect, Outbox};
use crate::compat;
use crate::message::{Busy, Revoke};
use crate::pattern::{Rounding, Shape};
use crate::rights::{Rights, wants_conflict};
use crate::set::PatternSet;

/// What one holder has of an inode.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) holder: NodeLife,
    pub(super) number: TokenNumber,
    /// Of the newest release under this number.
    pub(super) sequence: u64,
    /// Releases under this number up to this one were sent before the holder closed the inode.
    pub(super) closed_sequence: u64,
    pub(super) rights: Rights,
    /// A release named an older state: the next one will only name this state if none is added.
    pub(super) crossed: bool,
}

/// A holder that a request has asked to release.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) holder: NodeLife,
    pub(super) since: Instant,
    pub(super) reported: Instant,
    pub(super) is_answered: bool,
}

#[derive(Debug)]
pub(super) struct Waiter {
    /// Names its revokes.
    pub(super) id: u64,
    pub(super) holder: NodeLife,
    pub(super) ticket: u64,
    pub(super) wants: Vec<Want>,
    pub(super) transient: bool,
    pub(super) since: Instant,
    pub(super) asked: Vec<Asked>,
    pub(super) timer: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Inode {
    /// Sorted by holder.
    pub(super) entries: Vec<Entry>,
    /// In order of arrival.
    pub(super) queue: Vec<Waiter>,
    /// The last node that changed the directory and the last other one before it.
    pub(super) changed: [Option<(NodeLife, Instant)>; 2],
}

/// What to do with a waiting request.
pub(super) enum Verdict {
    Grant,
    /// Wait, and ask these.
    Wait(Vec<NodeLife>),
}

impl Entry {
    pub(super) fn new(holder: NodeLife, number: TokenNumber, rights: Rights) -> Self {
        Self {
            holder,
            number,
            sequence: 0,
            closed_sequence: 0,
            rights,
            crossed: false,
        }
    }
}

impl Inode {
    pub(super) fn find(&self, holder: NodeLife) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&holder, |e| e.holder)
    }

    pub(super) fn entry(&self, holder: NodeLife) -> Option<&Entry> {
        Some(&self.entries[self.find(holder).ok()?])
    }

    /// One of the first `count` waiting requests, of another node, conflicts with these wants.
    pub(super) fn is_behind_other(&self, holder: NodeLife, wants: &[Want], count: usize) -> bool {
        let conflicts = |w: &Waiter| {
            wants
                .iter()
                .any(|a| w.wants.iter().any(|b| wants_conflict(a, b)))
        };
        let earlier = &self.queue[..count];
        earlier.iter().any(|w| w.holder != holder && conflicts(w))
    }

    /// What the holder will have when its wants are granted: to read and share writing is to be alone.
    pub(super) fn effective_wants<'a>(&self, waiter: &'a Waiter) -> Cow<'a, [Want]> {
        let held = self.entry(waiter.holder).and_then(|e| e.rights.inode);
        let Some(held) = held.filter(|_| !waiter.transient) else {
            return Cow::Borrowed(&waiter.wants);
        };
        let mut wants = waiter.wants.clone();
        for want in &mut wants {
            if let Want::Inode { mode } = want {
                *mode = compat::inode_join(held, *mode);
            }
        }
        Cow::Owned(wants)
    }

    /// May the request, with `index` others before it, be granted; else whose release does it take.
    pub(super) fn judge(&self, waiter: &Waiter, index: usize, grace: bool) -> Verdict {
        if grace || self.is_behind_other(waiter.holder, &waiter.wants, index) {
            return Verdict::Wait(Vec::new());
        }
        if self.is_held_back(waiter) {
            return Verdict::Wait(Vec::new());
        }
        let wants = self.effective_wants(waiter);
        let mut holders = Vec::new();
        for entry in self.entries.iter().filter(|e| e.holder != waiter.holder) {
            let asked = waiter.asked.iter().find(|a| a.holder == entry.holder);
            let is_hard = wants.iter().any(|w| entry.rights.conflicts(w));
            // Strided writers settle because they ask for all of their stride at once.
            let is_soft = !waiter.transient
                && asked.is_none_or(|a| !a.is_answered)
                && wants
                    .iter()
                    .any(|w| is_in_the_way_of_stride(&entry.rights, w));
            if is_hard || is_soft {
                holders.push(entry.holder);
            }
        }
        if holders.is_empty() {
            Verdict::Grant
        } else {
            Verdict::Wait(holders)
        }
    }

    /// The waiter cannot be granted while this holder has what it has.
    pub(super) fn must_release(&self, waiter: &Waiter, holder: NodeLife) -> bool {
        let wants = self.effective_wants(waiter);
        let entry = self.entry(holder);
        entry.is_some_and(|e| wants.iter().any(|w| e.rights.conflicts(w)))
    }

    /// A release of this holder crossed a grant to it. Until it has answered, nothing more is granted to it
    /// here, or its answers could name old states for ever.
    pub(super) fn is_held_back(&self, waiter: &Waiter) -> bool {
        let is_asked = |w: &Waiter| {
            w.asked
                .iter()
                .any(|a| a.holder == waiter.holder && !a.is_answered)
        };
        self.entry(waiter.holder).is_some_and(|e| e.crossed) && self.queue.iter().any(is_asked)
    }

    /// What the waiter's node holds afterwards: what it held, what it requires, and what is free of what it
    /// desires; the first user of a file gets all of it.
    pub(super) fn rights_after(
        &self,
        waiter: &Waiter,
        old: Option<&Rights>,
        piece_count_max: usize,
    ) -> Result<Rights, Busy> {
        let mut rights = old.cloned().unwrap_or_default();
        for want in &waiter.wants {
            match want {
                Want::Directory { mode } => {
                    let held = rights.directory.unwrap_or(*mode);
                    rights.directory = Some(compat::directory_join(held, *mode));
                }
                Want::Inode { mode } => {
                    let mode = if *mode == InodeMode::SharedWrite && self.is_alone(waiter) {
                        InodeMode::Exclusive
                    } else {
                        *mode
                    };
                    let held = rights.inode.unwrap_or(mode);
                    rights.inode = Some(compat::inode_join(held, mode));
                }
                Want::Range {
                    mode,
                    required,
                    desired,
                } => {
                    let free = self.free(waiter, *mode, desired);
                    let Rights { read, write, .. } = &mut rights;
                    let set = match mode {
                        RangeMode::Read => &mut *read,
                        RangeMode::Write => &mut *write,
                    };
                    let before = set.clone();
                    set.add_set(&free);
                    if set.count() > piece_count_max {
                        *set = before;
                    }
                    if let Some(required) = Shape::of(required) {
                        set.add(required);
                    }
                    if set.count() > piece_count_max {
                        let count = u64::try_from(set.count()).expect("a count in memory");
                        return Err(Busy::Pieces { count });
                    }
                    read.forget_parts_of(write);
                }
            }
        }
        Ok(rights)
    }

    /// No other node has or wants an inode token.
    pub(super) fn is_alone(&self, waiter: &Waiter) -> bool {
        let wants = |w: &Waiter| w.wants.iter().any(|w| matches!(w, Want::Inode { .. }));
        let mut others = self.entries.iter().filter(|e| e.holder != waiter.holder);
        let mut waiting = self.queue.iter().filter(|w| w.holder != waiter.holder);
        others.all(|e| e.rights.inode.is_none()) && !waiting.any(wants)
    }

    /// The part of `desired` that no other node holds or waits for; all bytes if they have none at all. Who desires nothing gets nothing
    /// beside what he requires.
    pub(super) fn free(&self, waiter: &Waiter, mode: RangeMode, desired: &Pattern) -> PatternSet {
        let Some(desired) = Shape::of(desired) else {
            return PatternSet::new();
        };
        let everything = Shape::Plain(ByteRange::ALL);
        let others = self.entries.iter().filter(|e| e.holder != waiter.holder);
        let held = others.flat_map(|e| {
            let read = (mode == RangeMode::Write).then_some(&e.rights.read);
            [Some(&e.rights.write), read].into_iter().flatten()
        });
        let waiting = self.queue.iter().filter(|w| w.holder != waiter.holder);
        let awaited = waiting.flat_map(|w| &w.wants).filter_map(|w| match w {
            Want::Range {
                mode: other,
                required,
                ..
            } if !compat::range_compatible(mode, *other) => Shape::of(required),
            Want::Range { .. } | Want::Inode { .. } | Want::Directory { .. } => None,
        });
        let mut taken = held.flat_map(PatternSet::shapes).chain(awaited).peekable();
        if taken.peek().is_none() {
            return PatternSet::of(everything);
        }
        let mut free = PatternSet::of(desired);
        for shape in taken {
            free.remove(&shape, Rounding::Down);
        }
        free
    }

    pub(super) fn mark_answered(&mut self, revoke: u64, holder: NodeLife) {
        let waiters = self.queue.iter_mut().filter(|w| w.id == revoke);
        for asked in waiters.flat_map(|w| &mut w.asked) {
            asked.is_answered |= asked.holder == holder;
        }
    }

    /// Says a revoke again, naming the holder's newest state.
    pub(super) fn ask_again(
        &self,
        ino: InodeId,
        revoke: u64,
        (holder, number): (NodeLife, TokenNumber),
        out: &mut Outbox,
    ) {
        let is_meant = |a: &Asked| a.holder == holder && !a.is_answered;
        let mut waiters = self.queue.iter().filter(|w| w.id == revoke);
        if let Some(waiter) = waiters.find(|w| w.asked.iter().any(is_meant)) {
            let wants = self.effective_wants(waiter).into_owned();
            let message = Revoke {
                ino,
                number,
                revoke,
                wants,
            };
            out.push(Effect::Revoke {
                to: holder,
                message,
            });
        }
    }

    /// Remembers who changes a directory; true if nothing was remembered before.
    pub(super) fn note_change(&mut self, now: Instant, waiter: &Waiter) -> bool {
        let write = DirectoryMode::Write;
        if !waiter
            .wants
            .iter()
            .any(|w| matches!(w, Want::Directory { mode } if *mode == write))
        {
            return false;
        }
        let [last, before] = self.changed;
        let before = match last {
            Some((holder, at)) if holder != waiter.holder => Some((holder, at)),
            Some(_) | None => before,
        };
        self.changed = [Some((waiter.holder, now)), before];
        last.is_none()
    }

    pub(super) fn is_contended(&self, now: Instant, within: Duration) -> bool {
        let is_fresh =
            |change: Option<(NodeLife, Instant)>| change.is_some_and(|(_, at)| now < at + within);
        self.changed.into_iter().all(is_fresh)
    }
}

/// `rights` hold part of the stride that `want` desires.
fn is_in_the_way_of_stride(rights: &Rights, want: &Want) -> bool {
    match want {
        Want::Range { mode, desired, .. } => match Shape::of(desired) {
            Some(stride @ Shape::Strided(_)) => rights.conflicts_on(*mode, &stride),
            Some(Shape::Plain(_)) | None => false,
        },
        Want::Directory { .. } | Want::Inode { .. } => false,
    }
}
