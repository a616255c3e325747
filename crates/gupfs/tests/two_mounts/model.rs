//! What the file system must hold: names, contents, modes and attributes, as plain values.

use std::collections::{BTreeMap, BTreeSet};

/// Index of a file in the model; stays valid after the last name is gone.
pub type FileId = usize;

#[derive(Default)]
pub struct FileModel {
    pub data: Vec<u8>,
    pub mode: u32,
    pub links: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Largest mtime seen by anybody (seconds, nanoseconds).
    pub mtime: (i64, i64),
}

#[derive(Default)]
pub struct Model {
    pub files: Vec<FileModel>,
    /// Files by path; directories are one level deep.
    pub names: BTreeMap<String, FileId>,
    pub directories: BTreeSet<String>,
}

/// Directory part of a path; empty for the root.
pub fn parent(path: &str) -> &str {
    path.split_once('/').map_or("", |(directory, _)| directory)
}

impl Model {
    pub fn create(&mut self, path: &str, mode: u32) -> FileId {
        self.files.push(FileModel {
            mode,
            links: 1,
            ..FileModel::default()
        });
        let id = self.files.len() - 1;
        let old = self.names.insert(path.to_owned(), id);
        assert_eq!(old, None, "{path} is new");
        id
    }

    pub fn unlink(&mut self, path: &str) {
        let id = self.names.remove(path).expect("it exists");
        self.files[id].links -= 1;
    }

    pub fn link(&mut self, path: &str, id: FileId) {
        self.files[id].links += 1;
        let old = self.names.insert(path.to_owned(), id);
        assert_eq!(old, None, "{path} is new");
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        let id = self.names[from];
        match self.names.get(to) {
            // Two names of one file: POSIX does nothing.
            Some(target) if *target == id => return,
            Some(_) => self.unlink(to),
            None => {}
        }
        self.names.remove(from);
        self.names.insert(to.to_owned(), id);
    }

    pub fn rename_directory(&mut self, from: &str, to: &str) {
        self.directories.remove(from);
        self.directories.insert(to.to_owned());
        let inside: Vec<String> = self.listing(from).into_iter().collect();
        for name in inside {
            let id = self.names.remove(&format!("{from}/{name}"));
            self.names
                .insert(format!("{to}/{name}"), id.expect("listed"));
        }
    }

    /// Names in `directory`.
    pub fn listing(&self, directory: &str) -> BTreeSet<String> {
        let mut listing: BTreeSet<String> = self
            .names
            .keys()
            .filter(|path| parent(path) == directory)
            .map(|path| path.rsplit('/').next().expect("a name").to_owned())
            .collect();
        if directory.is_empty() {
            listing.extend(self.directories.iter().cloned());
        }
        listing
    }

    pub fn write(&mut self, id: FileId, offset: usize, bytes: &[u8]) {
        let data = &mut self.files[id].data;
        let end = offset + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[offset..end].copy_from_slice(bytes);
    }
}
