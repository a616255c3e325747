//! Shards that an operation on a directory in parts is going to need, found before it runs.
//!
//! An operation that lacks a shard has changed nothing, and runs again from its start when that is locked: for a name in parts two
//! or three times, with the journal locked each time. What is found here is locked first, so that it runs once. It is advice: what
//! is not found here, execution asks for, and where no directory is in parts the look at one inode is all that it costs.

use std::ops::Bound;

use smallvec::SmallVec;
use types::{InodeId, Name, ShardId};

use crate::inode::Inode;
use crate::message::Op;
use crate::shard::Shard;
use crate::view::View;

/// Shards of this owner that are not locked yet; a name needs one more than its directory's at a time.
pub type Ahead = SmallVec<[ShardId; 2]>;

/// What `op` is going to need, as far as the locked shards tell. To be asked again when that is locked: a part tells where the
/// inodes of its names are.
pub fn ahead(view: &View<'_>, op: &Op) -> Ahead {
    let mut found = Found {
        view,
        shards: Ahead::new(),
    };
    match op {
        Op::Lookup { parent, name }
        | Op::Make { parent, name, .. }
        | Op::Create { parent, name, .. }
        | Op::Link { parent, name, .. }
        | Op::LinkNameless { parent, name, .. }
        | Op::Unlink { parent, name, .. }
        | Op::Rmdir { parent, name, .. } => found.name(*parent, name),
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => {
            found.name(*parent, name);
            found.name(*new_parent, new_name);
        }
        Op::ReadDir { ino, cookie, .. } => found.listing(*ino, *cookie),
        Op::LookupParent { .. }
        | Op::Ancestors { .. }
        | Op::GetAttr { .. }
        | Op::SetAttr { .. }
        | Op::Punch { .. }
        | Op::Allocate { .. }
        | Op::GetPromised { .. }
        | Op::CreateNameless { .. }
        | Op::ReadLink { .. }
        | Op::GetXattr { .. }
        | Op::SetXattr { .. }
        | Op::ListXattr { .. }
        | Op::RemoveXattr { .. }
        | Op::GetMap { .. }
        | Op::Commit(_)
        | Op::Destage { .. }
        | Op::Closed { .. }
        | Op::Accessed { .. }
        | Op::StatFs { .. } => {}
    }
    found.shards
}

struct Found<'v, 's> {
    view: &'v View<'s>,
    shards: Ahead,
}

impl<'v> Found<'v, '_> {
    /// Damage may name shards of other owners: execution says what that comes to.
    fn need(&mut self, shard: ShardId) {
        let is_new = self.view.shard(shard).is_none() && !self.shards.contains(&shard);
        if is_new && self.view.is_mine(shard) {
            self.shards.push(shard);
        }
    }

    /// A directory in parts, if it is at hand.
    fn directory(&self, ino: InodeId) -> Option<(&'v Shard, &'v Inode)> {
        let home = self.view.shard(ino.shard())?;
        let inode = home.peek(ino)?;
        inode.parts()?;
        Some((home, inode))
    }

    /// The part that holds the name, and what it leads to.
    fn name(&mut self, parent: InodeId, name: &Name) {
        let Some((home, directory)) = self.directory(parent) else {
            return;
        };
        let cookie = home.hash_key().first_cookie(name.bytes());
        let holder = directory.part_of(cookie).unwrap_or(parent);
        let Some(shard) = self.view.shard(holder.shard()) else {
            return self.need(holder.shard());
        };
        let entries = shard.peek(holder).and_then(Inode::entries);
        if let Some((_, entry)) = entries.and_then(|entries| shard.find(entries, name)) {
            self.need(entry.ino.shard());
        }
    }

    /// The part that a listing goes on in: behind the one of its last name, if that was the last there.
    fn listing(&mut self, ino: InodeId, cookie: u64) {
        let Some((_, directory)) = self.directory(ino) else {
            return;
        };
        let holder = directory.part_of(cookie).unwrap_or(ino);
        let Some(shard) = self.view.shard(holder.shard()) else {
            return self.need(holder.shard());
        };
        let behind = (Bound::Excluded(cookie), Bound::Unbounded);
        let entries = shard.peek(holder).and_then(Inode::entries);
        if entries.is_none_or(|entries| entries.range(behind).next().is_some()) {
            return;
        }
        let mut parts = directory.parts().into_iter().flat_map(|p| p.range(behind));
        if let Some((_, part)) = parts.next() {
            self.need(part.shard());
        }
    }
}
