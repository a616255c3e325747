//! Which tokens an operation needs before it may execute: the owner's token manager revokes what others
//! hold against them.
//!
//! Names may change while others are asked, so the caller asks again right before executing, on the locked
//! shards, and executes only when every want of *that* answer is covered.

use std::cell::Cell;

use smallvec::SmallVec;
use types::token::{DirectoryMode, InodeMode, RangeMode, Want};
use types::{ByteRange, FileKind, InodeId, Name, Pattern, ShardId};

use crate::execute::Target;
use crate::message::Op;
use crate::ops::entry;
use crate::view::{Context, Stop, View};

/// A token that an operation needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// On which inode. It may be another owner's: the token is asked there.
    pub ino: InodeId,
    /// Which.
    pub want: Want,
    /// Nobody else may hold a conflicting token when the operation executes, but the asking node does not
    /// want to keep it. Not transient: it is of use to the asking node, and granted with the answer.
    pub is_transient: bool,
    /// The inode's own data must be committed before the operation executes (a file that is renamed over
    /// another): other holders do so when they release, the asking node before it asks.
    pub commits_first: bool,
}

/// What an operation needs; hardly any needs more than two.
pub type Wants = SmallVec<[Wanted; 2]>;

/// What `op` needs, in inode order. Wants of names that lead to nothing, or that are another owner's and
/// not among the facts, are left out: execution ends accordingly.
///
/// # Errors
/// This shard of this owner must be locked first: it holds a name.
pub fn wants(view: &View<'_>, ctx: &Context<'_>, op: &Op) -> Result<Wants, ShardId> {
    let needed = Cell::new(None);
    let mut wants = list(view, ctx, op, &needed);
    wants.sort_by_key(|w| w.ino);
    match needed.get() {
        Some(shard) => Err(shard),
        None => Ok(wants),
    }
}

/// What a name leads to, as far as that is known.
fn find(
    view: &View<'_>,
    ctx: &Context<'_>,
    needed: &Cell<Option<ShardId>>,
    (parent, name): (InodeId, &Name),
) -> Option<Target> {
    match entry(view, ctx, parent, name) {
        Ok(found) => found,
        // That a directory's own shard is not locked is seen by its want.
        Err(Stop::Shard(shard)) if view.shard(parent.shard()).is_some() => {
            needed.set(Some(shard));
            None
        }
        Err(_) => None,
    }
}

/// The wants in any order; `needed`: a shard that must be locked first.
fn list(view: &View<'_>, ctx: &Context<'_>, op: &Op, needed: &Cell<Option<ShardId>>) -> Wants {
    let mut list = List {
        view,
        wants: Wants::new(),
    };
    let found = |parent: InodeId, name: &Name| find(view, ctx, needed, (parent, name));
    match op {
        Op::Lookup { parent, name } => {
            list.directory(*parent, DirectoryMode::Read, false);
            list.shown(found(*parent, name));
        }
        Op::ReadDir { ino, .. } | Op::LookupParent { ino } => {
            list.directory(*ino, DirectoryMode::Read, false);
        }
        Op::GetAttr { ino } | Op::GetXattr { ino, .. } | Op::ListXattr { ino } => {
            list.attributes(*ino, false);
        }
        Op::SetAttr { ino, set, .. } => {
            list.alone(*ino, false);
            if let Some(size) = set.size {
                list.cut(*ino, size);
            }
        }
        Op::Punch {
            ino, begin, end, ..
        }
        | Op::Allocate {
            ino, begin, end, ..
        } => {
            list.alone(*ino, false);
            if begin < end {
                list.range(*ino, ByteRange::new(*begin, *end));
            }
        }
        Op::SetXattr { ino, .. } | Op::RemoveXattr { ino, .. } => list.alone(*ino, true),
        Op::Make { parent, .. } => list.directory(*parent, DirectoryMode::Write, false),
        Op::Create {
            parent,
            name,
            exclusive,
            ..
        } => {
            let existing = found(*parent, name).filter(|_| !exclusive);
            let mode = match existing {
                Some(_) => DirectoryMode::Read,
                None => DirectoryMode::Write,
            };
            list.directory(*parent, mode, false);
            list.shown(existing);
        }
        Op::Link { ino, parent, .. } | Op::LinkNameless { ino, parent, .. } => {
            list.directory(*parent, DirectoryMode::Write, false);
            list.inode(*ino, InodeMode::Exclusive, true);
        }
        Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. } => {
            list.directory(*parent, DirectoryMode::Write, false);
            if let Some((ino, kind)) = found(*parent, name) {
                list.target(ino, kind);
            }
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => {
            list.directory(*parent, DirectoryMode::Write, false);
            if new_parent != parent {
                list.directory(*new_parent, DirectoryMode::Write, false);
            }
            let replaced = found(*new_parent, new_name);
            if let Some((ino, kind)) = found(*parent, name) {
                list.target(ino, kind);
                let last = list.wants.last_mut().expect("just added");
                last.commits_first = replaced.is_some() && kind == FileKind::File;
            }
            if let Some((ino, kind)) = replaced {
                list.target(ino, kind);
            }
        }
        // A file without a name changes nothing in a directory: many nodes may make them there at once. A symlink's target never changes. Commit, Destage and GetMap lean on the range tokens that the
        // node holds; asking for more could wait for the very node that commits (rule R10).
        Op::CreateNameless { .. }
        | Op::ReadLink { .. }
        | Op::GetMap { .. }
        | Op::GetPromised { .. }
        | Op::Commit(_)
        | Op::Destage { .. }
        | Op::Closed { .. }
        // Who believes to know the time may be behind.
        | Op::Accessed { .. }
        // The rename token keeps a parent what it is; nobody caches it.
        | Op::Ancestors { .. }
        | Op::StatFs { .. } => {}
    }
    list.wants
}

struct List<'v, 's> {
    view: &'v View<'s>,
    wants: Wants,
}

impl List<'_, '_> {
    fn push(&mut self, ino: InodeId, want: Want, is_transient: bool) {
        if self.wants.iter().any(|w| w.ino == ino && w.want == want) {
            return;
        }
        self.wants.push(Wanted {
            ino,
            want,
            is_transient,
            commits_first: false,
        });
    }

    fn directory(&mut self, ino: InodeId, mode: DirectoryMode, is_transient: bool) {
        self.push(ino, Want::Directory { mode }, is_transient);
    }

    fn inode(&mut self, ino: InodeId, mode: InodeMode, is_transient: bool) {
        self.push(ino, Want::Inode { mode }, is_transient);
    }

    fn is_directory(&self, ino: InodeId) -> bool {
        let attr = self.view.shard(ino.shard()).and_then(|s| s.attr(ino));
        attr.is_some_and(|a| a.kind == FileKind::Directory)
    }

    /// To read the attributes.
    fn attributes(&mut self, ino: InodeId, is_transient: bool) {
        if self.is_directory(ino) {
            self.directory(ino, DirectoryMode::Read, is_transient);
        } else {
            self.inode(ino, InodeMode::Read, is_transient);
        }
    }

    /// An inode whose attributes the answer shows, where this owner holds it.
    fn shown(&mut self, target: Option<(InodeId, FileKind)>) {
        if let Some((ino, kind)) = target.filter(|(ino, _)| self.view.is_mine(ino.shard())) {
            match kind {
                FileKind::Directory => self.directory(ino, DirectoryMode::Read, false),
                _ => self.inode(ino, InodeMode::Read, false),
            }
        }
    }

    /// To change the attributes.
    fn alone(&mut self, ino: InodeId, is_transient: bool) {
        if self.is_directory(ino) {
            self.directory(ino, DirectoryMode::Write, is_transient);
        } else {
            self.inode(ino, InodeMode::Exclusive, is_transient);
        }
    }

    /// To change the attributes of what a name leads to.
    fn target(&mut self, ino: InodeId, kind: FileKind) {
        if kind == FileKind::Directory {
            self.directory(ino, DirectoryMode::Write, true);
        } else {
            self.inode(ino, InodeMode::Exclusive, true);
        }
    }

    /// To change the size to this one.
    fn cut(&mut self, ino: InodeId, size: u64) {
        let attr = self.view.shard(ino.shard()).and_then(|s| s.attr(ino));
        let old = attr.map_or(0, |a| a.size);
        self.range(ino, ByteRange::new(size.min(old), u64::MAX));
    }

    /// To change these bytes.
    fn range(&mut self, ino: InodeId, range: ByteRange) {
        let required = Pattern::plain(range);
        let want = Want::Range {
            mode: RangeMode::Write,
            required,
            desired: required,
        };
        self.push(ino, want, true);
    }
}
