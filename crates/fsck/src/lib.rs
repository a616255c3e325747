//! Is what lies on the NSDs a file system? Findings as values, from what a start would load.
//!
//! ```text
//! labels -> check_head -> [Finding]
//! journal of each owner -> Loading::apply ... -> Owner (shards, roots, space, table)
//! all owners -> check -> [Finding]          names and inodes, sectors, regions, transactions
//! the same once more, and again, of a file system in use -> Doubts -> [Finding]
//! all files -> reads of all copies -> data::judge -> [Finding]
//! ```
//!
//! Invariants
//! - Foreign bytes end in findings, never in a panic.
//! - A finding says what is wrong on the NSDs. What follows from it alone (an inode that cannot be seen because its page is
//!   lost) is no finding: shards that are not whole are known, and nothing is concluded from what they lack.
//! - Of one kind no more than `COUNT_MAX` findings are kept; all are counted.
//!
//! Memory: all metadata of all owners, also what daemons leave on disks until it is used, and some 60 bytes for each name and run.
//!
//! What this deliberately does not do: I/O. Only `repair` changes anything, and that in memory.
#![forbid(unsafe_code)]

pub mod data;
pub mod doubt;
pub mod finding;
pub mod head;
pub mod inodes;
pub mod load;
pub mod names;
pub mod parts;
pub mod repair;
pub mod sectors;
pub mod transactions;

pub use doubt::Doubts;
pub use finding::{COUNT_MAX, Finding, Findings, Kind, Remedy};
pub use load::{Loading, Owner, Setup};
pub use names::Paths;

use node::meta::inode::Dirent;
use node::meta::shard::inspect::Seen;

/// Names by cookie.
pub type Names = std::collections::BTreeMap<u64, Dirent>;

/// What was loaded of all owners that could be, checked together.
#[derive(Debug)]
pub struct Image {
    /// What the cluster view and the labels say.
    pub setup: Setup,
    /// Those that were loaded.
    pub owners: Vec<Owner>,
    /// An owner, or a part of one, could not be loaded: nothing follows from what is not there.
    pub is_partial: bool,
    /// It is known from elsewhere that a daemon of the root directory's owner was started, so there must be one.
    pub was_started: bool,
}

impl Image {
    /// Of these owners; `is_partial`: others could not be loaded.
    pub fn new(setup: Setup, owners: Vec<Owner>, is_partial: bool) -> Self {
        let lacks = |owner: &Owner| owner.is_unread || !owner.partial.is_empty();
        let is_partial = is_partial || owners.iter().any(lacks);
        Self {
            setup,
            owners,
            is_partial,
            was_started: false,
        }
    }

    /// The shard, if it was loaded.
    pub fn shard(&self, id: types::ShardId) -> Option<&node::meta::Shard> {
        self.owners.iter().find_map(|owner| owner.shards.get(&id))
    }

    /// All shards, by owner and id.
    pub fn shards(&self) -> impl Iterator<Item = &node::meta::Shard> {
        self.owners.iter().flat_map(|owner| owner.shards.values())
    }

    /// The inode, if it was loaded.
    pub fn seen(&self, ino: types::InodeId) -> Option<Seen<'_>> {
        self.shard(ino.shard())?.seen(ino)
    }

    /// Who holds the names of a directory, itself and its parts, each once, in the order of their ranges, and what they hold.
    pub fn holders<'a>(&'a self, seen: &Seen<'a>) -> Vec<(types::InodeId, &'a Names)> {
        let directory = seen.attr.ino;
        let own = seen.entries.map(|entries| (directory, entries));
        let mut met = std::collections::BTreeSet::new();
        let parts = seen.parts.into_iter().flat_map(|parts| parts.values());
        let parts = parts.filter_map(|part| {
            let seen = self.shard(part.shard())?.seen_part(*part)?;
            let is_its = seen.directory == directory && met.insert(*part);
            is_its.then_some((*part, seen.entries))
        });
        own.into_iter().chain(parts).collect()
    }

    /// The names of a directory: who holds each, its cookie, and the entry.
    pub fn entries<'a>(
        &'a self,
        seen: &Seen<'a>,
    ) -> impl Iterator<Item = (types::InodeId, u64, &'a Dirent)> {
        let holders = self.holders(seen).into_iter();
        holders
            .flat_map(|(holder, names)| names.iter().map(move |(at, entry)| (holder, *at, entry)))
    }

    /// The entry that a directory or a part holds under this cookie.
    pub(crate) fn entry_at(&self, holder: types::InodeId, cookie: u64) -> Option<&Dirent> {
        let shard = self.shard(holder.shard())?;
        let entries = match shard.seen_part(holder) {
            Some(part) => part.entries,
            None => shard.seen(holder)?.entries?,
        };
        entries.get(&cookie)
    }

    /// The file system was made and never served: the root directory comes with the first start of its owner's daemon.
    pub fn is_new(&self) -> bool {
        let id = types::InodeId::ROOT.shard();
        let owner = self.owners.iter().find(|o| o.shards.contains_key(&id));
        // An older copy of the journal's disk does not hide what the others' shards have.
        !self.was_started
            && owner.is_some_and(|owner| owner.is_new)
            && self.shards().all(|shard| shard.inode_count() == 0)
    }

    /// The shard was loaded, and is whole.
    pub fn is_whole(&self, id: types::ShardId) -> bool {
        let owner = self.owners.iter().find(|o| o.shards.contains_key(&id));
        owner.is_some_and(|owner| !owner.partial.contains(&id))
    }

    /// Ends what was under way, as a start does, then checks everything but the bytes of files. The names that lead to
    /// inodes come back beside.
    pub fn check(&mut self, findings: &mut Findings) -> Paths {
        transactions::check(self, findings);
        inodes::check(self, findings);
        parts::check(self, findings);
        let paths = names::check(self, findings);
        sectors::check(self, findings);
        sectors::check_table(self, findings);
        paths
    }
}
