//! A naive file system in memory: what POSIX says of each call, and no word of how GUPFS does it.

use std::collections::{BTreeMap, BTreeSet};

use types::Errno;

use super::ops::Op;

/// Names an inode.
pub type Number = u64;
/// The root.
pub const ROOT: Number = 1;

/// What an inode holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The bytes of a file.
    File(Vec<u8>),
    /// The names in a directory.
    Directory(BTreeMap<String, Number>),
    /// The target of a symbolic link.
    Symlink(String),
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// What it holds.
    pub body: Body,
    /// Permission bits.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// The value of the one extended attribute.
    pub xattr: Option<Vec<u8>>,
    /// Seconds of the modification time, where it was set and nothing was written since.
    pub mtime: Option<u64>,
    /// Links.
    pub nlink: u32,
}

/// Something that is done at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// A file that must not be there yet.
    Create(String),
    /// A directory.
    Mkdir(String),
    /// A symbolic link and its target.
    Symlink(String, String),
    /// Bytes at an offset.
    Write(String, u64, Vec<u8>),
    /// A new size.
    Truncate(String, u64),
    /// Zeros from, to; the size stays.
    Punch(String, u64, u64, bool),
    /// Space is promised from, to; the size stays.
    Allocate(String, u64, u64, bool),
    /// A further name.
    Link(String, String),
    /// A name goes.
    Unlink(String),
    /// An empty directory goes.
    Rmdir(String),
    /// A name moves.
    Rename(String, String),
    /// Two names change places.
    Exchange(String, String),
    /// Permission bits.
    Chmod(String, u32),
    /// The owner.
    Chown(String, u32),
    /// The modification time.
    Times(String, u64),
    /// The extended attribute.
    SetXattr(String, Vec<u8>),
    /// It goes.
    RemoveXattr(String),
    /// A file without a name.
    CreateNameless,
    /// Bytes of it.
    WriteNameless(u64, Vec<u8>),
    /// Its name.
    LinkNameless(String),
    /// It is closed, and gone.
    CloseNameless,
}

/// A change of a file's bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Bytes at an offset.
    Write(u64, Vec<u8>),
    /// A new size.
    Truncate(u64),
    /// Zeros from, to; the size stays.
    Punch(u64, u64, bool),
    /// It is at least as long as that.
    Lengthen(u64),
}

/// What a step did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// The inodes whose names, attributes or entries it changed.
    pub touched: BTreeSet<Number>,
    /// The file whose bytes it changed, and how.
    pub change: Option<(Number, Change)>,
    /// The inode that took the name of another file, which is no more there.
    pub replaces_by: Option<Number>,
}

/// The file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fs {
    /// Inodes by number.
    pub inodes: BTreeMap<Number, Inode>,
    /// The file without a name.
    pub nameless: Option<Number>,
    next: Number,
}

impl Change {
    /// Makes it.
    pub fn make(&self, bytes: &mut Vec<u8>) {
        let index = |at: u64| usize::try_from(at).expect("a small file");
        match self {
            Self::Write(offset, new) => {
                let (begin, end) = (index(*offset), index(*offset) + new.len());
                bytes.resize(bytes.len().max(end), 0);
                bytes[begin..end].copy_from_slice(new);
            }
            Self::Truncate(size) => bytes.resize(index(*size), 0),
            Self::Punch(begin, end, keeps_size) => {
                if !keeps_size {
                    bytes.resize(bytes.len().max(index(*end)), 0);
                }
                let end = index(*end).min(bytes.len());
                let begin = index(*begin).min(end);
                bytes[begin..end].fill(0);
            }
            Self::Lengthen(size) => bytes.resize(bytes.len().max(index(*size)), 0),
        }
    }
}

impl Inode {
    fn new(body: Body, permissions: u32) -> Self {
        let nlink = if matches!(body, Body::Directory(_)) {
            2
        } else {
            1
        };
        Self {
            body,
            permissions,
            uid: 0,
            xattr: None,
            mtime: None,
            nlink,
        }
    }
}

impl Default for Fs {
    fn default() -> Self {
        let root = Inode::new(Body::Directory(BTreeMap::new()), 0o755);
        Self {
            inodes: BTreeMap::from([(ROOT, root)]),
            nameless: None,
            next: ROOT + 1,
        }
    }
}

impl Fs {
    /// The inode that a path leads to.
    pub fn find(&self, path: &str) -> Option<Number> {
        path.split('/')
            .filter(|part| !part.is_empty())
            .try_fold(ROOT, |at, part| match &self.inodes[&at].body {
                Body::Directory(entries) => entries.get(part).copied(),
                Body::File(_) | Body::Symlink(_) => None,
            })
    }

    /// The inodes on the way to a path, the root first.
    pub fn chain(&self, path: &str) -> Vec<Number> {
        let ends = path.match_indices('/').map(|(at, _)| at);
        let prefixes = ends.map(|at| &path[..at]).chain([path]);
        let found = prefixes.filter_map(|prefix| self.find(prefix));
        [ROOT].into_iter().chain(found).collect()
    }

    /// The bytes of the file.
    pub fn content(&self, path: &str) -> Option<&[u8]> {
        match &self.inodes[&self.find(path)?].body {
            Body::File(bytes) => Some(bytes),
            Body::Directory(_) | Body::Symlink(_) => None,
        }
    }

    /// An application can open it, and so sync it.
    pub fn is_synced_by_name(&self, path: &str) -> bool {
        let body = self.find(path).map(|number| &self.inodes[&number].body);
        body.is_some_and(|body| !matches!(body, Body::Symlink(_)))
    }

    /// The path leads to a directory.
    pub fn is_directory_at(&self, path: &str) -> bool {
        self.find(path)
            .is_some_and(|number| self.is_directory(number))
    }

    /// What it is when this has been done, where it can be.
    pub fn after(&self, op: &Op) -> Self {
        let mut after = self.clone();
        for step in op.steps(self, 1) {
            let _ = after.apply(&step);
        }
        after
    }

    /// All files, with a path that leads to each.
    pub fn files(&self) -> Vec<(String, Number)> {
        let mut found = Vec::new();
        self.visit("", ROOT, &mut |path, number| {
            if matches!(self.inodes[&number].body, Body::File(_)) {
                found.push((path.to_owned(), number));
            }
        });
        found
    }

    /// All names below an inode.
    pub(super) fn visit(&self, path: &str, at: Number, see: &mut dyn FnMut(&str, Number)) {
        if let Body::Directory(entries) = &self.inodes[&at].body {
            for (name, number) in entries {
                let path = format!("{path}/{name}");
                see(path.trim_start_matches('/'), *number);
                self.visit(&path, *number, see);
            }
        }
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(Number, &'a str), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.find(parent).ok_or(Errno::ENOENT)?;
        match self.inodes[&parent].body {
            Body::Directory(_) => Ok((parent, name)),
            Body::File(_) | Body::Symlink(_) => Err(Errno::ENOTDIR),
        }
    }

    fn entries(&mut self, directory: Number) -> &mut BTreeMap<String, Number> {
        match &mut self.inode(directory).body {
            Body::Directory(entries) => entries,
            Body::File(_) | Body::Symlink(_) => unreachable!("a directory is meant"),
        }
    }

    fn inode(&mut self, number: Number) -> &mut Inode {
        self.inodes
            .get_mut(&number)
            .expect("what names lead to is there")
    }

    fn is_directory(&self, number: Number) -> bool {
        matches!(self.inodes[&number].body, Body::Directory(_))
    }

    fn file(&mut self, path: &str) -> Result<Number, Errno> {
        let number = self.find(path).ok_or(Errno::ENOENT)?;
        match self.inodes[&number].body {
            Body::File(_) => Ok(number),
            Body::Directory(_) => Err(Errno::EISDIR),
            Body::Symlink(_) => Err(Errno::ELOOP),
        }
    }

    fn change(&mut self, number: Number, change: Change) -> Done {
        let inode = self.inode(number);
        if let Body::File(bytes) = &mut inode.body {
            change.make(bytes);
        }
        inode.mtime = None;
        Done {
            change: Some((number, change)),
            ..Done::default()
        }
    }

    fn make(&mut self, path: &str, body: Body, permissions: u32) -> Result<Done, Errno> {
        let (parent, name) = self.parent(path)?;
        if self.entries(parent).contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let number = self.next;
        self.next += 1;
        if matches!(body, Body::Directory(_)) {
            self.inode(parent).nlink += 1;
        }
        self.inodes.insert(number, Inode::new(body, permissions));
        self.entries(parent).insert(name.to_owned(), number);
        self.inode(parent).mtime = None;
        Ok(touched([parent, number]))
    }

    fn drop_link(&mut self, number: Number) {
        let inode = self.inode(number);
        inode.nlink -= 1;
        if inode.nlink == 0 || matches!(inode.body, Body::Directory(_)) {
            self.inodes.remove(&number);
        }
    }

    fn set(&mut self, path: &str, set: impl FnOnce(&mut Inode)) -> Result<Done, Errno> {
        let number = self.find(path).ok_or(Errno::ENOENT)?;
        set(self.inode(number));
        Ok(touched([number]))
    }

    /// Does a step.
    ///
    /// # Errors
    /// What the call answers instead; nothing has changed then.
    pub fn apply(&mut self, step: &Step) -> Result<Done, Errno> {
        match step {
            Step::Create(path) => self.make(path, Body::File(Vec::new()), 0o644),
            Step::Mkdir(path) => self.make(path, Body::Directory(BTreeMap::new()), 0o755),
            Step::Symlink(path, target) => self.make(path, Body::Symlink(target.clone()), 0o777),
            Step::Write(path, offset, bytes) => {
                let number = self.file(path)?;
                Ok(self.change(number, Change::Write(*offset, bytes.clone())))
            }
            Step::Truncate(path, size) => {
                let number = self.file(path)?;
                Ok(self.change(number, Change::Truncate(*size)))
            }
            Step::Punch(path, begin, end, keeps_size) => {
                let number = self.file(path)?;
                Ok(self.change(number, Change::Punch(*begin, *end, *keeps_size)))
            }
            Step::Allocate(path, _, end, keeps_size) => {
                let number = self.file(path)?;
                let size = if *keeps_size { 0 } else { *end };
                Ok(self.change(number, Change::Lengthen(size)))
            }
            Step::Link(from, to) => {
                let number = self.find(from).ok_or(Errno::ENOENT)?;
                if self.is_directory(number) {
                    return Err(Errno::EPERM);
                }
                self.link(number, to)
            }
            Step::Unlink(path) => self.remove(path, false),
            Step::Rmdir(path) => self.remove(path, true),
            Step::Rename(from, to) => self.rename(from, to),
            Step::Exchange(from, to) => self.exchange(from, to),
            Step::Chmod(path, mode) => self.set(path, |inode| inode.permissions = *mode),
            Step::Chown(path, uid) => self.set(path, |inode| inode.uid = *uid),
            Step::Times(path, seconds) => self.set(path, |inode| inode.mtime = Some(*seconds)),
            Step::SetXattr(path, value) => {
                self.set(path, |inode| inode.xattr = Some(value.clone()))
            }
            Step::RemoveXattr(path) => {
                let number = self.find(path).ok_or(Errno::ENOENT)?;
                let removed = self.inode(number).xattr.take();
                removed.map(|_| touched([number])).ok_or(Errno::ENODATA)
            }
            Step::CreateNameless => {
                let number = self.next;
                self.next += 1;
                let mut inode = Inode::new(Body::File(Vec::new()), 0o644);
                inode.nlink = 0;
                self.inodes.insert(number, inode);
                self.nameless = Some(number);
                Ok(touched([number]))
            }
            Step::WriteNameless(offset, bytes) => {
                let number = self.nameless.ok_or(Errno::EBADF)?;
                Ok(self.change(number, Change::Write(*offset, bytes.clone())))
            }
            Step::LinkNameless(path) => {
                let number = self.nameless.ok_or(Errno::EBADF)?;
                let done = self.link(number, path)?;
                self.nameless = None;
                Ok(done)
            }
            Step::CloseNameless => {
                let number = self.nameless.take().ok_or(Errno::EBADF)?;
                self.inodes.remove(&number);
                Ok(touched([number]))
            }
        }
    }

    fn link(&mut self, number: Number, to: &str) -> Result<Done, Errno> {
        let (parent, name) = self.parent(to)?;
        if self.entries(parent).contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.entries(parent).insert(name.to_owned(), number);
        self.inode(number).nlink += 1;
        Ok(touched([parent, number]))
    }

    fn remove(&mut self, path: &str, is_rmdir: bool) -> Result<Done, Errno> {
        let (parent, name) = self.parent(path)?;
        let number = *self.entries(parent).get(name).ok_or(Errno::ENOENT)?;
        match (self.is_directory(number), is_rmdir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !self.entries(number).is_empty() => return Err(Errno::ENOTEMPTY),
            (true, true) => self.inode(parent).nlink -= 1,
            (false, false) => {}
        }
        self.entries(parent).remove(name);
        self.drop_link(number);
        Ok(touched([parent, number]))
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<Done, Errno> {
        let (source, name) = self.parent(from)?;
        let number = *self.entries(source).get(name).ok_or(Errno::ENOENT)?;
        let (target, new_name) = self.parent(to)?;
        if format!("{to}/").starts_with(&format!("{from}/")) && from != to {
            return Err(Errno::EINVAL);
        }
        let old = self.entries(target).get(new_name).copied();
        if old == Some(number) {
            return Ok(Done::default());
        }
        let is_directory = self.is_directory(number);
        if let Some(old) = old {
            match (is_directory, self.is_directory(old)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                (true, true) if !self.entries(old).is_empty() => return Err(Errno::ENOTEMPTY),
                (true, true) => self.inode(target).nlink -= 1,
                (false, false) => {}
            }
            self.drop_link(old);
        }
        if is_directory {
            self.inode(source).nlink -= 1;
            self.inode(target).nlink += 1;
        }
        self.entries(source).remove(name);
        self.entries(target).insert(new_name.to_owned(), number);
        Ok(Done {
            replaces_by: old.filter(|_| !is_directory).map(|_| number),
            ..touched([source, target, number].into_iter().chain(old))
        })
    }

    fn exchange(&mut self, from: &str, to: &str) -> Result<Done, Errno> {
        let (source, name) = self.parent(from)?;
        let (target, new_name) = self.parent(to)?;
        let one = *self.entries(source).get(name).ok_or(Errno::ENOENT)?;
        let other = *self.entries(target).get(new_name).ok_or(Errno::ENOENT)?;
        let holds = |a: &str, b: &str| format!("{b}/").starts_with(&format!("{a}/"));
        if from != to && (holds(from, to) || holds(to, from)) {
            return Err(Errno::EINVAL);
        }
        for (number, leaves, enters) in [(one, source, target), (other, target, source)] {
            if self.is_directory(number) {
                self.inode(leaves).nlink -= 1;
                self.inode(enters).nlink += 1;
            }
        }
        self.entries(source).insert(name.to_owned(), other);
        self.entries(target).insert(new_name.to_owned(), one);
        Ok(touched([source, target, one, other]))
    }
}

fn touched(numbers: impl IntoIterator<Item = Number>) -> Done {
    Done {
        touched: numbers.into_iter().collect(),
        ..Done::default()
    }
}
