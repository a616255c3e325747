//! A naive POSIX name space, and the checks of a whole world against it.

use std::collections::{BTreeMap, BTreeSet};

use meta::inode::Dirent;
use meta::{Mutation, NewKind, Op, Reply};
use types::{Errno, FileKind, InodeId, Location, Name};

use super::world::World;

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub names: BTreeMap<Name, InodeId>,
    pub parent: InodeId,
    pub size: u64,
}

/// The tree as it should be.
#[derive(Clone, Debug)]
pub struct Model {
    pub nodes: BTreeMap<InodeId, Node>,
}

/// What the operation should answer.
pub type Expected = Result<(), Errno>;

impl Model {
    pub fn new() -> Self {
        let mut model = Self {
            nodes: BTreeMap::new(),
        };
        model.add(InodeId::ROOT, FileKind::Directory, InodeId::ROOT);
        model
    }

    fn add(&mut self, ino: InodeId, kind: FileKind, parent: InodeId) {
        let node = Node {
            kind,
            names: BTreeMap::new(),
            parent,
            size: 0,
        };
        assert!(
            self.nodes.insert(ino, node).is_none(),
            "a number is given once"
        );
    }

    pub fn of_kind(&self, kind: FileKind) -> Vec<InodeId> {
        let nodes = self.nodes.iter().filter(|(_, n)| n.kind == kind);
        nodes.map(|(ino, _)| *ino).collect()
    }

    fn find(&self, parent: InodeId, name: &Name) -> Option<InodeId> {
        self.nodes[&parent].names.get(name).copied()
    }

    fn is_dir(&self, ino: InodeId) -> bool {
        self.nodes[&ino].kind == FileKind::Directory
    }

    fn is_below(&self, mut ino: InodeId, above: InodeId) -> bool {
        while ino != above && ino != InodeId::ROOT {
            ino = self.nodes[&ino].parent;
        }
        ino == above
    }

    fn nlink(&self, ino: InodeId) -> u32 {
        if self.is_dir(ino) {
            let below = self.nodes[&ino].names.values().filter(|i| self.is_dir(**i));
            return 2 + u32::try_from(below.count()).unwrap();
        }
        let all = self.nodes.values().flat_map(|n| n.names.values());
        u32::try_from(all.filter(|i| **i == ino).count()).unwrap()
    }

    fn remove(&mut self, parent: InodeId, name: &Name) {
        let ino = self
            .nodes
            .get_mut(&parent)
            .unwrap()
            .names
            .remove(name)
            .unwrap();
        if self.is_dir(ino) || self.nlink(ino) == 0 {
            self.nodes.remove(&ino);
        }
    }

    /// What the answer should be. The directories named exist.
    pub fn expect(&self, op: &Op) -> Expected {
        let free = |parent: &InodeId, name: &Name| match self.find(*parent, name) {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(()),
        };
        let there = |parent: &InodeId, name: &Name| self.find(*parent, name).ok_or(Errno::ENOENT);
        match op {
            Op::Make { parent, name, .. }
            | Op::Link { parent, name, .. }
            | Op::LinkNameless { parent, name, .. } => free(parent, name),
            Op::Create {
                parent,
                name,
                exclusive,
                ..
            } => match self.find(*parent, name) {
                Some(_) if *exclusive => Err(Errno::EEXIST),
                Some(ino) if self.is_dir(ino) => Err(Errno::EISDIR),
                _ => Ok(()),
            },
            Op::Unlink { parent, name, .. } => match there(parent, name)? {
                ino if self.is_dir(ino) => Err(Errno::EISDIR),
                _ => Ok(()),
            },
            Op::Rmdir { parent, name, .. } => match there(parent, name)? {
                ino if !self.is_dir(ino) => Err(Errno::ENOTDIR),
                ino if !self.nodes[&ino].names.is_empty() => Err(Errno::ENOTEMPTY),
                _ => Ok(()),
            },
            Op::Rename {
                parent,
                name,
                new_parent,
                new_name,
                no_replace,
                exchange,
                ..
            } => {
                let moved = there(parent, name)?;
                let found = self.find(*new_parent, new_name);
                let is_moving = parent != new_parent;
                match found {
                    Some(_) if *no_replace => return Err(Errno::EEXIST),
                    None if *exchange => return Err(Errno::ENOENT),
                    Some(found) if found == moved => return Ok(()),
                    _ => {}
                }
                if is_moving && self.is_dir(moved) && self.is_below(*new_parent, moved) {
                    return Err(Errno::EINVAL);
                }
                let Some(found) = found else { return Ok(()) };
                if *exchange {
                    let cycles = is_moving && self.is_dir(found) && self.is_below(*parent, found);
                    return if cycles { Err(Errno::EINVAL) } else { Ok(()) };
                }
                match (self.is_dir(moved), self.is_dir(found)) {
                    (true, false) => Err(Errno::ENOTDIR),
                    (false, true) => Err(Errno::EISDIR),
                    (true, true) if !self.nodes[&found].names.is_empty() => Err(Errno::ENOTEMPTY),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Performs what succeeded.
    pub fn perform(&mut self, op: &Op, reply: &Reply) {
        match (op, reply) {
            (
                Op::Make { parent, name, .. } | Op::Create { parent, name, .. },
                Reply::Made { ino, is_new, .. },
            ) => {
                if !is_new {
                    assert_eq!(self.find(*parent, name), Some(*ino));
                    return;
                }
                let kind = match op {
                    Op::Make {
                        kind: NewKind::Directory { .. },
                        ..
                    } => FileKind::Directory,
                    Op::Make {
                        kind: NewKind::Symlink { .. },
                        ..
                    } => FileKind::Symlink,
                    _ => FileKind::File,
                };
                self.add(*ino, kind, *parent);
                let names = &mut self.nodes.get_mut(parent).unwrap().names;
                assert!(names.insert(name.clone(), *ino).is_none());
            }
            (Op::CreateNameless { parent, .. }, Reply::Made { ino, .. }) => {
                self.add(*ino, FileKind::File, *parent);
            }
            (
                Op::Link {
                    ino, parent, name, ..
                }
                | Op::LinkNameless { ino, parent, name },
                Reply::Made { .. },
            ) => {
                let names = &mut self.nodes.get_mut(parent).unwrap().names;
                assert!(names.insert(name.clone(), *ino).is_none());
            }
            (
                Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. },
                Reply::Removed { ino, .. },
            ) => {
                assert_eq!(self.find(*parent, name), Some(*ino));
                self.remove(*parent, name);
            }
            (
                Op::Rename {
                    parent,
                    name,
                    new_parent,
                    new_name,
                    exchange,
                    ..
                },
                Reply::Renamed { ino, .. },
            ) => {
                let moved = self.find(*parent, name).unwrap();
                assert_eq!(moved, *ino);
                let found = self.find(*new_parent, new_name);
                if found == Some(moved) {
                    return;
                }
                if !exchange && found.is_some() {
                    self.remove(*new_parent, new_name);
                }
                self.nodes.get_mut(parent).unwrap().names.remove(name);
                self.place(*new_parent, new_name, moved);
                if let (true, Some(found)) = (*exchange, found) {
                    self.place(*parent, name, found);
                }
            }
            (Op::Commit(commit), Reply::Attr(_)) => {
                let node = self.nodes.get_mut(&commit.ino).unwrap();
                node.size = node.size.max(commit.size.unwrap_or(0));
            }
            (
                Op::Punch {
                    ino,
                    end,
                    keeps_size,
                    ..
                }
                | Op::Allocate {
                    ino,
                    end,
                    keeps_size,
                    ..
                },
                Reply::Attr(_),
            ) => {
                let node = self.nodes.get_mut(ino).unwrap();
                if !keeps_size {
                    node.size = node.size.max(*end);
                }
            }
            (Op::SetAttr { ino, set, .. }, Reply::Attr(_)) => {
                let node = self.nodes.get_mut(ino).unwrap();
                node.size = set.size.unwrap_or(node.size);
            }
            other => panic!("{other:?} do not belong together"),
        }
    }

    fn place(&mut self, parent: InodeId, name: &Name, ino: InodeId) {
        self.nodes
            .get_mut(&parent)
            .unwrap()
            .names
            .insert(name.clone(), ino);
        let node = self.nodes.get_mut(&ino).unwrap();
        if node.kind == FileKind::Directory {
            node.parent = parent;
        }
    }

    /// Compares one answer; performs it when it is right.
    pub fn follow(&mut self, op: &Op, reply: &Reply) {
        match (self.expect(op), reply) {
            (Err(errno), Reply::Error(got)) => assert_eq!(*got, errno, "{op:?}"),
            (Ok(()), Reply::Error(got)) => panic!("{op:?} answers {got:?}"),
            (Err(errno), _) => panic!("{op:?} should answer {errno:?}, not {reply:?}"),
            (Ok(()), reply) => self.perform(op, reply),
        }
    }

    /// The world at rest is the model: names, kinds, link counts, parents, sizes, and no inode besides.
    pub fn check(&self, world: &World) {
        check_world(world);
        let mut count = 0;
        for (ino, node) in &self.nodes {
            let shard = world.shard(ino.shard());
            let attr = shard
                .attr(*ino)
                .unwrap_or_else(|| panic!("{ino} is missing"));
            assert_eq!(attr.kind, node.kind);
            assert_eq!(attr.nlink, self.nlink(*ino), "links of {ino}");
            if node.kind == FileKind::Directory {
                assert_eq!(shard.parent(*ino), Some(node.parent));
            }
            if node.kind == FileKind::File {
                assert_eq!(attr.size, node.size);
            }
            count += 1;
        }
        let names: BTreeSet<(InodeId, Name, InodeId)> = entries(world).into_iter().collect();
        let expected: BTreeSet<_> = self
            .nodes
            .iter()
            .flat_map(|(d, n)| n.names.iter().map(|(name, i)| (*d, name.clone(), *i)))
            .collect();
        assert_eq!(names, expected);
        let inodes: u64 = world
            .owners
            .iter()
            .flat_map(|o| o.shards.values())
            .map(|s| s.inode_count())
            .sum();
        assert_eq!(inodes, count, "no inode without a name");
    }
}

/// Every entry of the world: directory, name, inode.
pub fn entries(world: &World) -> Vec<(InodeId, Name, InodeId)> {
    let mut list = Vec::new();
    for shard in world.owners.iter().flat_map(|o| o.shards.values()) {
        for seen in shard.inspect() {
            let directory = seen.attr.ino;
            let mut put = |entries: &BTreeMap<u64, Dirent>, begin: u64, end: u64| {
                for (cookie, entry) in entries {
                    assert!((begin..end).contains(cookie), "in the range of its holder");
                    list.push((directory, entry.name.clone(), entry.ino));
                }
            };
            let begins: Vec<u64> = seen.parts.into_iter().flatten().map(|(b, _)| *b).collect();
            if let Some(entries) = seen.entries {
                put(entries, 0, begins.first().copied().unwrap_or(u64::MAX));
            }
            for (at, (begin, part)) in seen.parts.into_iter().flatten().enumerate() {
                let of = world.owner_of(part.shard());
                assert_eq!(of, world.owner_of(directory.shard()));
                let part = world.shard(part.shard()).seen_part(*part);
                let part = part.expect("a part is there");
                assert_eq!(part.directory, directory);
                assert!(!part.entries.is_empty());
                put(
                    part.entries,
                    *begin,
                    begins.get(at + 1).copied().unwrap_or(u64::MAX),
                );
            }
        }
    }
    list
}

/// Every part is named once.
fn check_parts(world: &World) {
    let shards = || world.owners.iter().flat_map(|o| o.shards.values());
    let made: u64 = shards().map(|s| s.part_count()).sum();
    let seen = shards().flat_map(|s| s.inspect_parts()).count() as u64;
    let inspected = shards().flat_map(|s| s.inspect());
    let named = inspected.filter_map(|seen| seen.parts);
    let named: Vec<InodeId> = named.flat_map(|parts| parts.values().copied()).collect();
    let different: BTreeSet<InodeId> = named.iter().copied().collect();
    assert_eq!((made, seen), (seen, named.len() as u64));
    assert_eq!(different.len(), named.len());
}

/// What must hold in any world at rest: each shard in itself; no entry without inode; link counts; every
/// nameless inode an open orphan; every sector in use in exactly one map.
pub fn check_world(world: &World) {
    check_parts(world);
    let mut links: BTreeMap<InodeId, u32> = BTreeMap::new();
    let mut below: BTreeMap<InodeId, u32> = BTreeMap::new();
    for (directory, name, ino) in entries(world) {
        let attr = world.shard(ino.shard()).attr(ino);
        let attr =
            attr.unwrap_or_else(|| panic!("{name:?} in {directory} leads to {ino}, which is not"));
        *links.entry(ino).or_default() += 1;
        if attr.kind == FileKind::Directory {
            *below.entry(directory).or_default() += 1;
            assert_eq!(world.shard(ino.shard()).parent(ino), Some(directory));
        }
    }
    for owner in &world.owners {
        let mut sectors: BTreeSet<Location> = BTreeSet::new();
        for shard in owner.shards.values() {
            shard.check();
            shard.snapshot(&mut |m| match m {
                Mutation::InodePut { record } => {
                    let attr = record.attr;
                    let names = links.get(&attr.ino).copied().unwrap_or(0);
                    let is_root = attr.ino == InodeId::ROOT;
                    if attr.kind == FileKind::Directory && (names > 0 || is_root) {
                        assert_eq!(names, u32::from(!is_root), "a directory has one name");
                        assert_eq!(attr.nlink, 2 + below.get(&attr.ino).copied().unwrap_or(0));
                    } else {
                        assert_eq!(attr.nlink, names, "links of {}", attr.ino);
                    }
                }
                Mutation::MapLoad { extents, .. } => {
                    for run in meta::map::runs_of(&extents) {
                        for i in 0..u64::from(run.count) {
                            let sector = run.at.sector + i;
                            sectors.insert(Location { sector, ..run.at });
                        }
                    }
                }
                _ => {}
            });
        }
        assert_eq!(
            sectors, owner.space,
            "sectors in use are those that maps reach"
        );
    }
}
