//! Names of a shard: entries, and the parts of directories that hold them.

use std::collections::BTreeMap;

use types::InodeId;

use super::{Shard, entries_of};
use crate::inode::{Body, Dirent, Inode, Parts};
use crate::mutation::Mutation;

impl Shard {
    pub(super) fn apply_name(&mut self, mutation: &Mutation) {
        match mutation {
            Mutation::EntryPut {
                directory,
                cookie,
                name,
                ino,
                kind,
            } => {
                let entry = Dirent {
                    name: name.clone(),
                    ino: *ino,
                    kind: *kind,
                };
                self.reweighed(*directory, |inode| {
                    entries_of(inode).insert(*cookie, entry);
                });
                self.note_count(*directory);
            }
            Mutation::EntryRemove { directory, cookie } => {
                let old = self.reweighed(*directory, |inode| entries_of(inode).remove(*cookie));
                assert!(old.is_some(), "an entry is removed once");
                self.note_count(*directory);
            }
            Mutation::PartMake { index, directory } => {
                let ino = InodeId::new(self.id, *index);
                self.put_resident(Inode::new_part(ino, *directory));
                self.part_count += 1;
            }
            Mutation::PartPut {
                directory,
                begin,
                part,
            } => {
                self.reweighed(*directory, |inode| {
                    let parts = parts_of(inode).get_or_insert_default();
                    parts.insert(*begin, *part);
                });
                // What it still holds itself may be more than one of several should.
                self.note_count(*directory);
            }
            Mutation::PartRemove { directory, begin } => self.reweighed(*directory, |inode| {
                let table = parts_of(inode);
                let parts = table.as_mut().expect("it has parts");
                assert!(parts.remove(begin).is_some(), "a part is removed once");
                if parts.is_empty() {
                    *table = None;
                }
            }),
            _ => unreachable!("the caller passes the mutations of names only"),
        }
    }

    /// The names that a directory or part holds have changed.
    fn note_count(&mut self, index: u64) {
        if self.tending.bounds().is_some() {
            let inode = &self.inodes[&index];
            let count = inode.entries().map_or(0, BTreeMap::len);
            let is_split = inode.is_part() || inode.parts().is_some();
            self.tending.note(index, count, is_split);
        }
    }
}

pub(super) fn parts_of(inode: &mut Inode) -> &mut Option<Box<Parts>> {
    match &mut inode.body {
        Body::Directory { parts, .. } => parts,
        Body::File(_) | Body::Part { .. } | Body::Symlink(_) | Body::Special => {
            panic!("only directories have parts")
        }
    }
}
