//! Directories in parts: who holds a name, and when its holder is split or joined with another.
//!
//! ```text
//! directory: own entries | table: first cookie -> part, first cookie -> part, ..
//!            [0 ..       | begin ..       begin ..       .. end of all cookies)
//! ```
//!
//! Invariants
//! - A name lies with the last holder whose range begins at its cookie or before: ranges cover all cookies and do not overlap,
//!   whatever the table says.
//! - All names of one hash have one holder. No part is empty. All parts are of the directory's owner.
//! - A step of `tend` moves a bounded number of entries, in one record, and shows nothing: cookies and attributes stay.
//!
//! What this deliberately does not do: it does not look for holders that became too large or small while nothing was noted (by
//! a replay). The next change of such a one notes it.
//!
//! [Decision 0016](../../../docs/decisions/0016-directories-in-parts.md).

use std::collections::{BTreeMap, BTreeSet};

use types::{Errno, InodeId, Name, ShardId};

use crate::inode::{Dirent, Inode};
use crate::mutation::Mutation;
use crate::name_hash::TIE_COUNT_MAX;
use crate::ops;
use crate::shard::Changes;
use crate::view::{Stop, View};

mod ahead;
pub(crate) mod held;

pub use ahead::{Ahead, ahead};
pub use held::{hold_prepared, parts_of_prepared};

/// Holders that are noted at a time in a shard. One more is noted by its next change.
const DUE_COUNT_MAX: usize = 64;

/// When holders of names are split and joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// A directory in one piece of more entries is split.
    pub whole: usize,
    /// One of several holders of more entries is split; half as many are moved at a time at the most, and may be together after a join.
    pub split: usize,
    /// One of fewer entries is joined with a neighbour.
    pub join: usize,
}

impl Bounds {
    /// A part of 1,024 names takes some 100 KB of memory, and half of it some 40 KiB of journal to move. A directory in one piece
    /// costs less of each operation, so it may have more.
    pub const DEFAULT: Self = Self {
        whole: 4096,
        split: 1024,
        join: 64,
    };

    /// The same for a directory in one piece as for parts.
    #[must_use]
    pub const fn of(split: usize, join: usize) -> Self {
        Self {
            whole: split,
            split,
            join,
        }
    }

    /// More entries than these are split. `is_split`: there are other holders of the directory.
    const fn most(self, is_split: bool) -> usize {
        if is_split { self.split } else { self.whole }
    }

    const fn moved(self) -> usize {
        self.split / 2
    }
}

/// Holders of a shard that should be looked at, not all that there are. Volatile.
#[derive(Debug, Default)]
pub(crate) struct Tending {
    bounds: Option<Bounds>,
    /// Names are looked for with the holder before theirs: for the simulator, which must notice.
    pub(crate) looks_before: bool,
    due: BTreeSet<u64>,
}

impl Tending {
    pub(crate) fn allow(&mut self, bounds: Bounds) {
        assert!(bounds.split >= 2 && bounds.join <= bounds.moved() && bounds.whole >= bounds.split);
        self.bounds = Some(bounds);
    }

    pub(crate) fn bounds(&self) -> Option<Bounds> {
        self.bounds
    }

    /// The holder at `index` has so many entries now. `is_split`: there are others of its directory.
    pub(crate) fn note(&mut self, index: u64, count: usize, is_split: bool) {
        if let Some(bounds) = self.bounds
            && (count > bounds.most(is_split) || is_split && count < bounds.join)
            && self.due.len() < DUE_COUNT_MAX
        {
            self.due.insert(index);
        }
    }

    pub(crate) fn forget(&mut self, index: u64) {
        if !self.due.is_empty() {
            self.due.remove(&index);
        }
    }

    pub(crate) fn next(&mut self) -> Option<u64> {
        self.due.pop_first()
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

/// How a call of `tend` has ended.
#[derive(Debug)]
pub enum Tended {
    /// It is done; nothing changed where nothing is to be done now. To be journaled in one record.
    Done(Changes),
    /// These shards of this owner are needed too: lock them and call again.
    NeedShards(Vec<ShardId>),
    /// These are in the trees of their shards alone: have them read and call again.
    NeedKeys(Vec<InodeId>),
    /// A transaction holds the directory, whose shard is locked: call again when it is over, before others take it. Under steady
    /// traffic there is always another.
    Wait(InodeId),
}

/// What is to be done.
enum Step {
    /// The entries from `begin` on go to a new part.
    Split { begin: u64, part: InodeId },
    /// What the part at `begin` holds goes to the holder before it.
    Join {
        left: InodeId,
        right: InodeId,
        begin: u64,
    },
}

impl View<'_> {
    /// The directory itself or the part of it that holds `name`, which is in a locked shard.
    pub(crate) fn holder(&self, directory: InodeId, name: &Name) -> Result<InodeId, Stop> {
        let home = ops::shard(self, directory.shard())?;
        let inode = ops::inode(self, directory)?;
        if inode.parts().is_none() {
            return Ok(directory);
        }
        let cookie = home.hash_key().first_cookie(name.bytes());
        let mut part = inode.part_of(cookie);
        if home.looks_before_parts()
            && let Some(parts) = inode.parts()
        {
            let before = parts.range(..=cookie).rev().nth(1);
            part = before.map(|(_, part)| *part);
        }
        match part {
            None => Ok(directory),
            Some(part) => self.part(directory, part).map(|_| part),
        }
    }

    /// A part that the directory's table names. EIO: it is not there, and nobody may take its names for gone.
    pub(crate) fn part(&self, directory: InodeId, part: InodeId) -> Result<&Inode, Stop> {
        if !self.is_mine(part.shard()) {
            return Err(Stop::Fail(Errno::EIO));
        }
        // A cold one is missed: it is read before anybody hears of this.
        let inode = ops::shard(self, part.shard())?.inode(part);
        let inode = inode.filter(|inode| inode.directory_of_part() == Some(directory));
        inode.ok_or(Stop::Fail(Errno::EIO))
    }

    /// The entry of `name` in a directory, and its cookie.
    pub(crate) fn entry(
        &self,
        directory: InodeId,
        name: &Name,
    ) -> Result<Option<(u64, &Dirent)>, Stop> {
        let holder = self.holder(directory, name)?;
        Ok(ops::shard(self, holder.shard())?.entry(holder, name))
    }
}

/// The part of a directory that holds `name`, as far as that is known without asking for anything.
pub(crate) fn known_part(view: &View<'_>, directory: InodeId, name: &Name) -> Option<InodeId> {
    let home = view.shard(directory.shard())?;
    let inode = home.peek(directory)?;
    inode.parts()?;
    inode.part_of(home.hash_key().first_cookie(name.bytes()))
}

/// Splits the holder, or joins it with a neighbour, by one step.
pub fn tend(view: &mut View<'_>, holder: InodeId) -> Tended {
    drop(view.take_missed());
    let step = plan(view, holder);
    let missed = view.take_missed();
    if !missed.is_empty() {
        return Tended::NeedKeys(missed);
    }
    match step {
        Ok(Some((directory, step))) => Tended::Done(perform(view, (directory, holder), &step)),
        Err(Hindrance::Stop(Stop::Shard(shard))) => Tended::NeedShards(vec![shard]),
        Err(Hindrance::Held(directory)) => Tended::Wait(directory),
        // Nothing to be done, or not there any more.
        Ok(None) | Err(Hindrance::Stop(_)) => Tended::Done(Changes::default()),
    }
}

/// Why nothing can be done.
enum Hindrance {
    Stop(Stop),
    /// This directory's names may not move: a transaction counts on where they are.
    Held(InodeId),
}

impl From<Stop> for Hindrance {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

fn plan(view: &View<'_>, holder: InodeId) -> Result<Option<(InodeId, Step)>, Hindrance> {
    let shard = ops::shard(view, holder.shard())?;
    let (Some(bounds), Some(inode)) = (shard.part_bounds(), shard.inode(holder)) else {
        return Ok(None);
    };
    let directory = inode.directory_of_part().unwrap_or(holder);
    let home = ops::inode(view, directory)?;
    let Some(entries) = inode.entries() else {
        return Ok(None);
    };
    // Who has it reserved alone has not looked at it yet.
    let is_over = entries.len() > bounds.most(home.parts().is_some());
    let is_due = is_over || entries.len() < bounds.join;
    if is_due
        && ops::shard(view, directory.shard())?
            .locks
            .is_held(directory)
    {
        return Err(Hindrance::Held(directory));
    }
    let step = if is_over {
        split(view, home, entries, bounds)?
    } else if entries.len() < bounds.join {
        join(view, home, (holder, entries), bounds)?
    } else {
        None
    };
    Ok(step.map(|step| (directory, step)))
}

/// A new part for the last half of `entries`.
fn split(
    view: &View<'_>,
    home: &Inode,
    entries: &BTreeMap<u64, Dirent>,
    bounds: Bounds,
) -> Result<Option<Step>, Stop> {
    let count = (entries.len() / 2).clamp(1, bounds.moved());
    let at = entries.keys().rev().nth(count - 1);
    let begin = at.expect("there are more") / TIE_COUNT_MAX * TIE_COUNT_MAX;
    // All of them may be of one hash.
    if entries.keys().next().is_none_or(|first| *first >= begin) {
        return Ok(None);
    }
    let shard = ops::shard(view, shard_of_new(view, home))?;
    let part = shard.next_number();
    Ok(Some(Step::Split { begin, part }))
}

/// Parts lie in the owner's shards in turn, beginning behind the directory's own.
fn shard_of_new(view: &View<'_>, home: &Inode) -> ShardId {
    let own: Vec<ShardId> = view.own_shards().collect();
    let home_at = own.iter().position(|id| *id == home.attr.ino.shard());
    let count = home.parts().map_or(0, BTreeMap::len);
    own[(home_at.unwrap_or(0) + 1 + count) % own.len()]
}

/// The holder and the one before it, or the one behind it, if they fit together.
fn join(
    view: &View<'_>,
    home: &Inode,
    (holder, entries): (InodeId, &BTreeMap<u64, Dirent>),
    bounds: Bounds,
) -> Result<Option<Step>, Stop> {
    let Some(parts) = home.parts() else {
        return Ok(None);
    };
    let directory = home.attr.ino;
    let begin = match entries.keys().next() {
        _ if holder == directory => None,
        Some(first) => parts.range(..=*first).next_back(),
        None => None,
    };
    let begin = match begin {
        None if holder != directory => return Ok(None),
        Some((_, part)) if *part != holder => return Ok(None),
        begin => begin.map(|(begin, _)| *begin),
    };
    let fits = |other: InodeId| -> Result<bool, Stop> {
        let inode = ops::shard(view, other.shard())?.inode(other);
        let count = inode.and_then(Inode::entries).map_or(0, BTreeMap::len);
        Ok(inode.is_some() && count + entries.len() <= bounds.moved())
    };
    if let Some(begin) = begin {
        let before = parts.range(..begin).next_back();
        let left = before.map_or(directory, |(_, part)| *part);
        if fits(left)? {
            let right = holder;
            return Ok(Some(Step::Join { left, right, begin }));
        }
    }
    let behind = begin.map_or(0, |begin| begin + 1);
    match parts.range(behind..).next() {
        Some((begin, right)) if fits(*right)? => Ok(Some(Step::Join {
            left: holder,
            right: *right,
            begin: *begin,
        })),
        _ => Ok(None),
    }
}

fn perform(view: &mut View<'_>, (directory, holder): (InodeId, InodeId), step: &Step) -> Changes {
    let mut changes = Changes::default();
    let index = directory.index();
    match *step {
        Step::Split { begin, part } => {
            let make = Mutation::PartMake {
                index: part.index(),
                directory,
            };
            change(view, part, make, &mut changes);
            move_entries(view, (holder, begin), part, &mut changes);
            let put = Mutation::PartPut {
                directory: index,
                begin,
                part,
            };
            change(view, directory, put, &mut changes);
        }
        Step::Join { left, right, begin } => {
            move_entries(view, (right, 0), left, &mut changes);
            remove(view, directory, (begin, right), &mut changes);
        }
    }
    changes
}

/// Takes an empty part away.
pub(crate) fn remove(
    view: &mut View<'_>,
    directory: InodeId,
    (begin, part): (u64, InodeId),
    changes: &mut Changes,
) {
    let cut = Mutation::PartRemove {
        directory: directory.index(),
        begin,
    };
    change(view, directory, cut, changes);
    let index = part.index();
    change(view, part, Mutation::InodeRemove { index }, changes);
}

fn change(view: &mut View<'_>, of: InodeId, mutation: Mutation, changes: &mut Changes) {
    let shard = view.shard_mut(of.shard());
    shard.expect("looked up before").perform(mutation, changes);
}

/// Moves the entries of `source` from `begin` on.
fn move_entries(
    view: &mut View<'_>,
    (source, begin): (InodeId, u64),
    target: InodeId,
    changes: &mut Changes,
) {
    let shard = view.shard(source.shard()).expect("looked up before");
    let entries = shard.inode(source).and_then(Inode::entries);
    let entries = entries.expect("looked up before").range(begin..);
    let entries: Vec<(u64, Dirent)> = entries.map(|(at, entry)| (*at, entry.clone())).collect();
    for (cookie, entry) in &entries {
        let put = Mutation::EntryPut {
            directory: target.index(),
            cookie: *cookie,
            name: entry.name.clone(),
            ino: entry.ino,
            kind: entry.kind,
        };
        change(view, target, put, changes);
    }
    let directory = source.index();
    for (cookie, _) in entries {
        let remove = Mutation::EntryRemove { directory, cookie };
        change(view, source, remove, changes);
    }
}
