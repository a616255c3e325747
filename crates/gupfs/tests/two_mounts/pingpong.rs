//! Random steps on a few files: each made through one mount and checked at once through the other.
//!
//! One thread, one seed, one model: what a step must lead to is known exactly, so any stale byte, size, mode or
//! name is a fault of the file system. Handles and mappings stay open over many steps on both nodes, which is
//! what makes tokens travel: most steps take away what the other node still caches.

use std::collections::{BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::calls::{self, Mapping};
use crate::fixture::{Fixture, Slot};
use crate::model::{FileId, Model, parent};

/// Files grow to this and not further.
const SIZE_MAX: usize = 300 << 10;
/// Handles, and mappings, that are open at a time on both nodes together.
const OPEN_COUNT_MAX: usize = 10;
/// Steps that are printed with a fault.
const TOLD_COUNT: usize = 50;
const FILE_NAMES: u64 = 5;
const DIRECTORY_NAMES: u64 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// O_RDWR: direct.
    Direct,
    /// O_RDWR | O_APPEND.
    Append,
    /// O_RDONLY: through the kernel's page cache.
    Cached,
}

struct Handle {
    node: usize,
    id: FileId,
    kind: Kind,
    file: File,
}

struct Mapped {
    node: usize,
    id: FileId,
    is_writable: bool,
    mapping: Mapping,
    file: File,
}

type Outcome<T = ()> = Result<T, String>;

pub struct PingPong<'a> {
    fixture: &'a Fixture,
    slot: Slot,
    prng: Prng,
    model: Model,
    handles: Vec<Handle>,
    mappings: Vec<Mapped>,
    steps: u64,
    told: VecDeque<String>,
    has_xattrs: bool,
    mix: Mix,
}

/// What the steps are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    /// All kinds.
    All,
    /// Mostly stores and loads through mappings of few files, which live long.
    Maps,
}

impl Mix {
    /// `GUPFS_PINGPONG_MIX=maps`, or all kinds.
    pub fn of_environment() -> Self {
        match std::env::var("GUPFS_PINGPONG_MIX").as_deref() {
            Err(_) => Self::All,
            Ok("maps") => Self::Maps,
            Ok(other) => panic!("GUPFS_PINGPONG_MIX={other}: only \"maps\" is known"),
        }
    }

    /// The number of a step in `PingPong::step`, from one below 100.
    const fn step(self, drawn: u64) -> u64 {
        match (self, drawn) {
            (Self::All, _) => drawn,
            (Self::Maps, 0..45) => 66 + drawn % 12,
            (Self::Maps, 45..60) => 12,
            (Self::Maps, 60..64) => 32,
            (Self::Maps, 64..70) => 42,
            (Self::Maps, 70..76) => 78,
            (Self::Maps, 76..84) => 90,
            (Self::Maps, 84..90) => 93,
            (Self::Maps, 90..94) => 96,
            (Self::Maps, 94..98) => 52,
            (Self::Maps, _) => drawn - 98,
        }
    }
}

trait Explained<T> {
    fn because(self, what: &str) -> Outcome<T>;
}

impl<T> Explained<T> for std::io::Result<T> {
    fn because(self, what: &str) -> Outcome<T> {
        self.map_err(|e| format!("{what}: {e}"))
    }
}

fn must_fail<T>(result: std::io::Result<T>, kind: ErrorKind, what: &str) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what}: succeeded, expected {kind:?}")),
        Err(e) if e.kind() == kind => Ok(()),
        Err(e) => Err(format!("{what}: {e}, expected {kind:?}")),
    }
}

fn usize_of(value: u64) -> usize {
    usize::try_from(value).expect("small")
}

impl<'a> PingPong<'a> {
    pub fn new(fixture: &'a Fixture, seed: u64) -> Self {
        let probe = fixture.path(1, "probe");
        fs::write(&probe, "x").expect("the mount works");
        let has_xattrs = calls::set_xattr(&probe, "user.a", b"x").is_ok();
        fs::remove_file(&probe).expect("removed");
        if !has_xattrs {
            eprintln!("no extended attributes are set here: that part is left out");
        }
        Self {
            fixture,
            slot: fixture.slot(),
            prng: Prng::new(seed),
            model: Model::default(),
            handles: Vec::new(),
            mappings: Vec::new(),
            steps: 0,
            told: VecDeque::new(),
            has_xattrs,
            mix: Mix::of_environment(),
        }
    }

    /// Steps until `duration` is over; returns their number, or the fault and the steps that led to it.
    pub fn run(&mut self, duration: Duration) -> Result<u64, String> {
        let begin = Instant::now();
        while begin.elapsed() < duration {
            self.steps += 1;
            let slot = self.slot.clone();
            let done = slot.run(&format!("step {}", self.steps), || self.step());
            if let Err(fault) = done {
                let told: Vec<String> = self.told.drain(..).collect();
                return Err(format!("{}\nfault: {fault}", told.join("\n")));
            }
            if self.fixture.hang().is_some() {
                return Err("it hung".to_owned());
            }
        }
        Ok(self.steps)
    }

    fn tell(&mut self, text: String) {
        if self.told.len() == TOLD_COUNT {
            self.told.pop_front();
        }
        self.told.push_back(format!("{:6} {text}", self.steps));
    }

    fn path(&self, node: usize, path: &str) -> PathBuf {
        self.fixture.path(node, path)
    }

    fn pick_node(&mut self) -> usize {
        usize_of(self.prng.between(1, 2))
    }

    /// A path for a file, in a directory that exists.
    fn pick_path(&mut self) -> String {
        let name = format!("f{}", self.prng.below(FILE_NAMES));
        let directory = format!("d{}", self.prng.below(DIRECTORY_NAMES));
        match self.model.directories.contains(&directory) && self.prng.chance(1, 2) {
            true => format!("{directory}/{name}"),
            false => name,
        }
    }

    fn pick_named(&mut self) -> Option<(String, FileId)> {
        let names: Vec<(String, FileId)> = self
            .model
            .names
            .iter()
            .map(|(p, i)| (p.clone(), *i))
            .collect();
        self.prng.pick(&names).cloned()
    }

    /// Offsets crowd around borders: of pieces, sectors, pages, the end.
    fn pick_offset(&mut self, size: usize) -> usize {
        let borders = [0, 512, 2048, 4096, 8192, 65536, 131_072, size];
        let border = *self.prng.pick(&borders).expect("not empty");
        let offset = match self.prng.below(3) {
            0 => usize_of(self.prng.below(size as u64 + 1)),
            1 => border,
            _ => (border + usize_of(self.prng.below(200))).saturating_sub(100),
        };
        offset.min(SIZE_MAX)
    }

    fn pick_length(&mut self) -> usize {
        let lengths = [1, 7, 100, 512, 2048, 4096, 4097, 8192, 47_008, 70_000];
        *self.prng.pick(&lengths).expect("not empty")
    }

    /// A handle of `kind` for the file on `node`, an old one or a new one; `None` when it has no name any more.
    fn open(&mut self, node: usize, id: FileId, kind: Kind) -> Outcome<Option<usize>> {
        let is_it = |h: &Handle| h.node == node && h.id == id && h.kind == kind;
        if let Some(at) = self.handles.iter().position(is_it)
            && self.prng.chance(3, 4)
        {
            return Ok(Some(at));
        }
        let named = self.model.names.iter().find(|(_, i)| **i == id);
        let Some(path) = named.map(|(path, _)| path.clone()) else {
            return Ok(self.handles.iter().position(is_it));
        };
        let mut options = OpenOptions::new();
        options.read(true);
        match kind {
            Kind::Direct => options.write(true),
            Kind::Append => options.append(true),
            Kind::Cached => &mut options,
        };
        let file = options.open(self.path(node, &path));
        let file = file.because(&format!("open of {path} on n{node} as {kind:?}"))?;
        if self.handles.len() >= OPEN_COUNT_MAX {
            let at = usize_of(self.prng.below(self.handles.len() as u64));
            self.handles.swap_remove(at);
        }
        self.handles.push(Handle {
            node,
            id,
            kind,
            file,
        });
        Ok(Some(self.handles.len() - 1))
    }

    fn step(&mut self) -> Outcome {
        let node = self.pick_node();
        match self.mix.step(self.prng.below(100)) {
            0..12 => self.step_create(node),
            12..32 => self.step_write(node),
            32..42 => self.step_append(node),
            42..52 => self.step_truncate(node),
            52..58 => self.step_rename(node),
            58..62 => self.step_unlink(node),
            62..66 => self.step_directory(node),
            66..78 => self.step_store(node),
            78..81 => self.step_sync(node),
            81..84 => self.step_mode(node),
            84..87 => self.step_xattr(node),
            87..90 => self.step_link(node),
            90..93 => self.step_close(),
            93..96 => self.step_fsync(node),
            96..99 => self.step_twins(),
            _ => self.check_all(),
        }
    }

    fn step_create(&mut self, node: usize) -> Outcome {
        let path = self.pick_path();
        let other = 3 - node;
        let exists = self.model.names.get(&path).copied();
        let mut options = OpenOptions::new();
        options.write(true).mode(0o640);
        match exists {
            Some(id) if self.prng.chance(1, 4) => {
                self.tell(format!("n{node}: O_TRUNC {path} (file {id})"));
                let opened = options.create(true).truncate(true);
                opened.open(self.path(node, &path)).because("O_TRUNC")?;
                self.model.files[id].data.clear();
                self.check_file(other, id)
            }
            Some(_) => {
                self.tell(format!("n{node}: O_EXCL {path}, which exists"));
                let opened = options.create_new(true).open(self.path(node, &path));
                must_fail(opened, ErrorKind::AlreadyExists, "O_EXCL")
            }
            None => {
                let before = fs::symlink_metadata(self.path(other, &path));
                must_fail(before, ErrorKind::NotFound, "stat before create")?;
                self.tell(format!(
                    "n{node}: create {path} as file {}",
                    self.model.files.len()
                ));
                let opened = options.create_new(true).open(self.path(node, &path));
                opened.because("create")?;
                let id = self.model.create(&path, 0o640);
                self.check_listing(other, parent(&path))?;
                self.check_file(other, id)
            }
        }
    }

    fn step_write(&mut self, node: usize) -> Outcome {
        let Some(id) = self.pick_file(node) else {
            return Ok(());
        };
        let size = self.model.files[id].data.len();
        let (offset, length) = (self.pick_offset(size), self.pick_length());
        let mut bytes = vec![0; length];
        self.prng.fill(&mut bytes);
        let Some(at) = self.open(node, id, Kind::Direct)? else {
            return Ok(());
        };
        self.tell(format!("n{node}: write file {id} at {offset} +{length}"));
        let written = self.handles[at].file.write_all_at(&bytes, offset as u64);
        written.because("write")?;
        self.model.write(id, offset, &bytes);
        self.check_range(3 - node, id, offset, length)?;
        self.check_stat(id)
    }

    fn step_append(&mut self, node: usize) -> Outcome {
        let Some(id) = self.pick_file(node) else {
            return Ok(());
        };
        let size = self.model.files[id].data.len();
        if size >= SIZE_MAX {
            return Ok(());
        }
        let length = self.pick_length();
        let mut bytes = vec![0; length];
        self.prng.fill(&mut bytes);
        let Some(at) = self.open(node, id, Kind::Append)? else {
            return Ok(());
        };
        self.tell(format!("n{node}: append file {id} +{length} at {size}"));
        let count = (&self.handles[at].file).write(&bytes).because("append")?;
        if count != length {
            return Err(format!("append: {count} of {length} bytes were taken"));
        }
        self.model.write(id, size, &bytes);
        let begin = size.saturating_sub(100);
        self.check_range(3 - node, id, begin, length + 200)?;
        self.check_stat(id)
    }

    fn step_truncate(&mut self, node: usize) -> Outcome {
        let Some(id) = self.pick_file(node) else {
            return Ok(());
        };
        let old = self.model.files[id].data.len();
        let size = self.pick_offset(old);
        let Some(at) = self.open(node, id, Kind::Direct)? else {
            return Ok(());
        };
        self.tell(format!("n{node}: truncate file {id} from {old} to {size}"));
        self.handles[at]
            .file
            .set_len(size as u64)
            .because("truncate")?;
        self.model.files[id].data.resize(size, 0);
        let begin = size.min(old).saturating_sub(5000);
        self.check_range(3 - node, id, begin, size.max(old) - begin + 100)?;
        self.check_stat(id)
    }

    fn step_rename(&mut self, node: usize) -> Outcome {
        let other = 3 - node;
        if self.prng.chance(1, 4) {
            let (from, to) = match self.prng.chance(1, 2) {
                true => ("d0", "d1"),
                false => ("d1", "d0"),
            };
            let is_there = self.model.directories.contains(from);
            let is_full = !self.model.listing(to).is_empty();
            self.tell(format!("n{node}: rename directory {from} to {to}"));
            let renamed = fs::rename(self.path(node, from), self.path(node, to));
            if !is_there {
                return must_fail(renamed, ErrorKind::NotFound, "rename");
            }
            if is_full {
                return must_fail(renamed, ErrorKind::DirectoryNotEmpty, "rename");
            }
            renamed.because("rename")?;
            self.model.rename_directory(from, to);
            self.check_listing(other, "")?;
            return self.check_listing(other, to);
        }
        let (Some((from, id)), to) = (self.pick_named(), self.pick_path()) else {
            return Ok(());
        };
        let target = self.model.names.get(&to).copied();
        self.tell(format!(
            "n{node}: rename {from} ({id}) to {to} ({target:?})"
        ));
        fs::rename(self.path(node, &from), self.path(node, &to)).because("rename")?;
        self.model.rename(&from, &to);
        if !self.model.names.contains_key(&from) {
            let old = fs::symlink_metadata(self.path(other, &from));
            must_fail(old, ErrorKind::NotFound, "stat of the old name")?;
        }
        self.check_listing(other, parent(&from))?;
        self.check_listing(other, parent(&to))?;
        if let Some(target) = target {
            self.check_file(other, target)?;
        }
        self.check_file(other, id)
    }

    fn step_unlink(&mut self, node: usize) -> Outcome {
        let Some((path, id)) = self.pick_named() else {
            return Ok(());
        };
        self.tell(format!("n{node}: unlink {path} ({id})"));
        fs::remove_file(self.path(node, &path)).because("unlink")?;
        self.model.unlink(&path);
        let gone = File::open(self.path(3 - node, &path));
        must_fail(gone, ErrorKind::NotFound, "open of what was unlinked")?;
        self.check_listing(3 - node, parent(&path))?;
        self.check_file(3 - node, id)
    }

    fn step_directory(&mut self, node: usize) -> Outcome {
        let name = format!("d{}", self.prng.below(DIRECTORY_NAMES));
        let path = self.path(node, &name);
        let is_there = self.model.directories.contains(&name);
        let is_full = !self.model.listing(&name).is_empty();
        if is_there && self.prng.chance(1, 2) {
            self.tell(format!("n{node}: rmdir {name} (full: {is_full})"));
            let removed = fs::remove_dir(path);
            if is_full {
                return must_fail(removed, ErrorKind::DirectoryNotEmpty, "rmdir");
            }
            removed.because("rmdir")?;
            self.model.directories.remove(&name);
        } else {
            self.tell(format!("n{node}: mkdir {name} (there: {is_there})"));
            let made = fs::create_dir(path);
            if is_there {
                return must_fail(made, ErrorKind::AlreadyExists, "mkdir");
            }
            made.because("mkdir")?;
            self.model.directories.insert(name);
        }
        self.check_listing(3 - node, "")
    }

    /// A store through a mapping: the other node must see it without any msync.
    fn step_store(&mut self, node: usize) -> Outcome {
        let Some(id) = self.pick_file(node) else {
            return Ok(());
        };
        let Some(at) = self.map(node, id, true)? else {
            return Ok(());
        };
        let size = self.model.files[id].data.len();
        let size = size.min(self.mappings[at].mapping.size());
        if size == 0 {
            return Ok(());
        }
        let offset = self.pick_offset(size).min(size - 1);
        let length = self.pick_length().min(size - offset);
        let mut bytes = vec![0; length];
        self.prng.fill(&mut bytes);
        self.tell(format!("n{node}: store file {id} at {offset} +{length}"));
        let stored = self.mappings[at].mapping.store(offset, &bytes);
        stored.because("store into a mapping")?;
        self.model.write(id, offset, &bytes);
        if self.prng.chance(1, 4) {
            self.tell(format!("n{node}: msync file {id}"));
            self.mappings[at].mapping.sync().because("msync")?;
        }
        if self.prng.chance(1, 4) {
            // Left dirty: the next steps find it.
            return Ok(());
        }
        self.check_range(3 - node, id, offset, length)?;
        self.check_stat(id)
    }

    fn step_sync(&mut self, node: usize) -> Outcome {
        let is_it = |m: &Mapped| m.node == node && m.is_writable;
        let Some(at) = self.mappings.iter().position(is_it) else {
            return Ok(());
        };
        let id = self.mappings[at].id;
        self.tell(format!("n{node}: msync file {id}"));
        self.mappings[at].mapping.sync().because("msync")?;
        self.check_file(3 - node, id)
    }

    fn step_mode(&mut self, node: usize) -> Outcome {
        let Some((path, id)) = self.pick_named() else {
            return Ok(());
        };
        let mode = 0o600 | u32::try_from(self.prng.below(0o200)).expect("small");
        self.tell(format!("n{node}: chmod {path} ({id}) {mode:o}"));
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(self.path(node, &path), permissions).because("chmod")?;
        self.model.files[id].mode = mode;
        self.check_stat(id)
    }

    fn step_xattr(&mut self, node: usize) -> Outcome {
        let Some((path, id)) = self.pick_named().filter(|_| self.has_xattrs) else {
            return Ok(());
        };
        let name = format!("user.{}", self.prng.below(3));
        let mut value = vec![0; usize_of(self.prng.below(100))];
        self.prng.fill(&mut value);
        self.tell(format!("n{node}: setxattr {path} ({id}) {name}"));
        calls::set_xattr(&self.path(node, &path), &name, &value).because("setxattr")?;
        let seen = calls::get_xattr(&self.path(3 - node, &path), &name).because("getxattr")?;
        if seen != value {
            return Err(format!("{name} of {path} is {seen:?}, not {value:?}"));
        }
        self.model.files[id].xattrs.insert(name, value);
        Ok(())
    }

    fn step_link(&mut self, node: usize) -> Outcome {
        let (Some((from, id)), to) = (self.pick_named(), self.pick_path()) else {
            return Ok(());
        };
        self.tell(format!("n{node}: link {from} ({id}) to {to}"));
        let linked = fs::hard_link(self.path(node, &from), self.path(node, &to));
        if self.model.names.contains_key(&to) {
            return must_fail(linked, ErrorKind::AlreadyExists, "link");
        }
        linked.because("link")?;
        self.model.link(&to, id);
        self.check_listing(3 - node, parent(&to))?;
        self.check_file(3 - node, id)
    }

    fn step_close(&mut self) -> Outcome {
        if self.prng.chance(1, 2) && !self.mappings.is_empty() {
            let at = usize_of(self.prng.below(self.mappings.len() as u64));
            let gone = self.mappings.swap_remove(at);
            self.tell(format!("n{}: unmap file {}", gone.node, gone.id));
            drop(gone.mapping);
            return self.check_file(3 - gone.node, gone.id);
        }
        if !self.handles.is_empty() {
            let at = usize_of(self.prng.below(self.handles.len() as u64));
            let gone = self.handles.swap_remove(at);
            self.tell(format!("n{}: close file {}", gone.node, gone.id));
        }
        Ok(())
    }

    fn step_fsync(&mut self, node: usize) -> Outcome {
        let Some(handle) = self.handles.iter().position(|h| h.node == node) else {
            return Ok(());
        };
        let id = self.handles[handle].id;
        self.tell(format!("n{node}: fsync file {id}"));
        self.handles[handle].file.sync_all().because("fsync")?;
        self.check_file(3 - node, id)
    }

    /// Both nodes write at once, in ranges that share pages and no byte.
    fn step_twins(&mut self) -> Outcome {
        let Some((_, id)) = self.pick_named() else {
            return Ok(());
        };
        let size = self.model.files[id].data.len();
        let begin = self.pick_offset(size);
        let lengths = [self.pick_length(), self.pick_length()];
        self.tell(format!("both: write file {id} at {begin} +{lengths:?}"));
        let (Some(_), Some(_)) = (
            self.open(1, id, Kind::Direct)?,
            self.open(2, id, Kind::Direct)?,
        ) else {
            return Ok(());
        };
        let find = |node| {
            let mut all = self.handles.iter();
            all.find(|h| h.node == node && h.id == id && h.kind == Kind::Direct)
        };
        let (Some(one), Some(two)) = (find(1), find(2)) else {
            return Ok(());
        };
        let mut bytes = [vec![0; lengths[0]], vec![0; lengths[1]]];
        for bytes in &mut bytes {
            self.prng.fill(bytes);
        }
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| one.file.write_all_at(&bytes[0], begin as u64));
            let second = two
                .file
                .write_all_at(&bytes[1], (begin + lengths[0]) as u64);
            (first.join().expect("no panic"), second)
        });
        first.because("write of n1")?;
        second.because("write of n2")?;
        self.model.write(id, begin, &bytes[0]);
        self.model.write(id, begin + lengths[0], &bytes[1]);
        self.check_range(1, id, begin, lengths[0] + lengths[1])?;
        self.check_range(2, id, begin, lengths[0] + lengths[1])?;
        self.check_stat(id)
    }

    /// A file that `node` can reach: by a name, or by an open handle.
    fn pick_file(&mut self, node: usize) -> Option<FileId> {
        if self.prng.chance(1, 4) {
            let open: Vec<FileId> = self
                .handles
                .iter()
                .filter(|h| h.node == node)
                .map(|h| h.id)
                .collect();
            if let Some(id) = self.prng.pick(&open) {
                return Some(*id);
            }
        }
        self.pick_named().map(|(_, id)| id)
    }

    /// A mapping of the file on `node`, an old one or a new one.
    ///
    /// The kernel takes the size from the last attributes it saw when a page is touched, and asks nobody: whoever
    /// maps what other nodes make longer must stat first, and so does this.
    fn map(&mut self, node: usize, id: FileId, is_writable: bool) -> Outcome<Option<usize>> {
        let is_it = |m: &Mapped| m.node == node && m.id == id && m.is_writable == is_writable;
        if let Some(at) = self.mappings.iter().position(is_it)
            && self.prng.chance(4, 5)
        {
            let shown = self.mappings[at].file.metadata();
            shown.because(&format!("stat of file {id} on n{node}"))?;
            return Ok(Some(at));
        }
        let kind = if is_writable {
            Kind::Direct
        } else {
            Kind::Cached
        };
        let Some(handle) = self.open(node, id, kind)? else {
            return Ok(None);
        };
        let size = self.model.files[id].data.len().next_multiple_of(4096) + 8192;
        self.tell(format!("n{node}: map file {id}, writable: {is_writable}"));
        let file = self.handles[handle].file.try_clone().because("dup")?;
        file.metadata().because("stat before mmap")?;
        let mapping = Mapping::new(&file, size, is_writable).because("mmap")?;
        if self.mappings.len() >= OPEN_COUNT_MAX {
            let at = usize_of(self.prng.below(self.mappings.len() as u64));
            self.mappings.swap_remove(at);
        }
        self.mappings.push(Mapped {
            node,
            id,
            is_writable,
            mapping,
            file,
        });
        Ok(Some(self.mappings.len() - 1))
    }

    /// Reads the range on `node` in one of the ways there are, and compares.
    fn check_range(&mut self, node: usize, id: FileId, offset: usize, length: usize) -> Outcome {
        let size = self.model.files[id].data.len();
        let way = match self.mix {
            Mix::All => self.prng.below(4),
            Mix::Maps => *self.prng.pick(&[0, 1, 1, 3, 3, 3]).expect("not empty"),
        };
        let mut bytes = vec![0xEE; length];
        let count = if way == 3 {
            let is_writable = self.prng.chance(1, 2);
            let Some(at) = self.map(node, id, is_writable)? else {
                return Ok(());
            };
            let end = (offset + length)
                .min(size)
                .min(self.mappings[at].mapping.size());
            let length = end.saturating_sub(offset);
            let loaded = self.mappings[at]
                .mapping
                .load(offset.min(end), &mut bytes[..length]);
            loaded.because(&format!(
                "load of file {id} at {offset} +{length} on n{node}"
            ))?;
            bytes.truncate(length);
            length
        } else {
            let kind = [Kind::Cached, Kind::Direct, Kind::Append][usize_of(way)];
            let Some(at) = self.open(node, id, kind)? else {
                return Ok(());
            };
            let file = &self.handles[at].file;
            let mut count = 0;
            while count < length {
                match file.read_at(&mut bytes[count..], (offset + count) as u64) {
                    Ok(0) => break,
                    Ok(more) => count += more,
                    Err(e) if e.kind() == ErrorKind::Interrupted => {}
                    Err(e) => return Err(format!("read of file {id} on n{node}: {e}")),
                }
            }
            bytes.truncate(count);
            count
        };
        let ways = [
            "cached read",
            "direct read",
            "read of an append handle",
            "load",
        ];
        let what = format!("{} of file {id} on n{node}", ways[usize_of(way)]);
        let expected = &self.model.files[id].data[offset.min(size)..(offset + length).min(size)];
        if way != 3 && count != expected.len() {
            return Err(format!(
                "{what}: {count} bytes at {offset}, not {} (size {size})",
                expected.len()
            ));
        }
        let differs = (0..count).find(|at| bytes[*at] != expected[*at]);
        let Some(at) = differs else { return Ok(()) };
        let wrong = (0..count).filter(|at| bytes[*at] != expected[*at]).count();
        let last = (0..count).rev().find(|at| bytes[*at] != expected[*at]);
        let last = offset + last.unwrap_or(at);
        Err(format!(
            "{what}: {wrong} bytes of {count} at {offset} are wrong, from {} to {last}: {:?} .. where {:?} .. is right\n{}",
            offset + at,
            &bytes[at..(at + 8).min(count)],
            &expected[at..(at + 8).min(count)],
            self.all_ways(id, offset + at),
        ))
    }

    /// What every open handle and mapping shows of a few bytes, for a fault: mappings first, for they ask nobody.
    fn all_ways(&self, id: FileId, offset: usize) -> String {
        let mut bytes = [0; 8];
        let mut shown = Vec::new();
        for m in self.mappings.iter().filter(|m| m.id == id) {
            let end = (offset + bytes.len()).min(m.mapping.size());
            let length = end.saturating_sub(offset);
            let loaded = m.mapping.load(offset.min(end), &mut bytes[..length]);
            let seen = loaded.map(|()| &bytes[..length]);
            let is_writable = m.is_writable;
            let node = m.node;
            shown.push(format!(
                "n{node}, mapping (writable: {is_writable}): {seen:?}"
            ));
        }
        for h in self.handles.iter().filter(|h| h.id == id) {
            let seen = h.file.read_at(&mut bytes, offset as u64);
            let seen = seen.map(|count| &bytes[..count]);
            shown.push(format!("n{}, {:?}: {seen:?}", h.node, h.kind));
        }
        shown.join("\n")
    }

    /// Attributes as both nodes show them.
    fn check_stat(&mut self, id: FileId) -> Outcome {
        let first = self.pick_node();
        for attempt in 0.. {
            let mut shown = Vec::new();
            for node in [first, 3 - first] {
                let name = self.model.names.iter().find(|(_, i)| **i == id);
                let metadata = match name {
                    Some((path, _)) => fs::symlink_metadata(self.path(node, path)),
                    None => {
                        let open = self.handles.iter().find(|h| h.node == node && h.id == id);
                        let Some(open) = open else { continue };
                        open.file.metadata()
                    }
                };
                let metadata = metadata.because(&format!("stat of file {id} on n{node}"))?;
                let file = &self.model.files[id];
                let expected = (file.data.len() as u64, file.mode, file.links);
                let seen = (metadata.len(), metadata.mode() & 0o7777, metadata.nlink());
                if seen != expected {
                    return Err(format!(
                        "stat of file {id} on n{node}: (size, mode, links) {seen:?}, not {expected:?}"
                    ));
                }
                shown.push((metadata.mtime(), metadata.mtime_nsec()));
            }
            let may_be_dirty = self.mappings.iter().any(|m| m.id == id && m.is_writable);
            if shown.iter().any(|mtime| *mtime != shown[0]) {
                // What is dirty in a mapping may be written back between the two.
                if may_be_dirty && attempt < 3 {
                    continue;
                }
                return Err(format!("mtime of file {id} from n{first} on: {shown:?}"));
            }
            let Some(mtime) = shown.first().copied() else {
                return Ok(());
            };
            let before = self.model.files[id].mtime;
            if mtime < before {
                return Err(format!(
                    "mtime of file {id} went back: {before:?} to {mtime:?}"
                ));
            }
            self.model.files[id].mtime = mtime;
            return Ok(());
        }
        Ok(())
    }

    fn check_file(&mut self, node: usize, id: FileId) -> Outcome {
        let size = self.model.files[id].data.len();
        self.check_range(node, id, 0, size + 10)?;
        self.check_stat(id)
    }

    fn check_listing(&mut self, node: usize, directory: &str) -> Outcome {
        if !directory.is_empty() && !self.model.directories.contains(directory) {
            return Ok(());
        }
        let mut seen = BTreeSet::new();
        let what = format!("listing of {directory:?} on n{node}");
        for entry in fs::read_dir(self.path(node, directory)).because(&what)? {
            let name = entry
                .because(&what)?
                .file_name()
                .to_string_lossy()
                .into_owned();
            if !seen.insert(name.clone()) {
                return Err(format!("{what}: {name} twice"));
            }
        }
        let expected = self.model.listing(directory);
        match seen == expected {
            true => Ok(()),
            false => Err(format!("{what}: {seen:?}, not {expected:?}")),
        }
    }

    /// Everything, through both nodes.
    fn check_all(&mut self) -> Outcome {
        self.tell("check of everything".to_owned());
        for node in [1, 2] {
            self.check_listing(node, "")?;
            for directory in self.model.directories.clone() {
                self.check_listing(node, &directory)?;
            }
            for (path, id) in self.model.names.clone() {
                let mut bytes = Vec::new();
                let file = File::open(self.path(node, &path));
                let read = file.and_then(|mut file| file.read_to_end(&mut bytes));
                read.because(&format!("read of {path} on n{node}"))?;
                if bytes != self.model.files[id].data {
                    return Err(format!("contents of {path} ({id}) on n{node} are wrong"));
                }
                for (name, value) in &self.model.files[id].xattrs {
                    let seen =
                        calls::get_xattr(&self.path(node, &path), name).because("getxattr")?;
                    if seen != *value {
                        return Err(format!("{name} of {path} on n{node} is wrong"));
                    }
                }
                self.check_stat(id)?;
            }
        }
        Ok(())
    }
}

/// A seed from the environment, or a fresh one.
pub fn seed() -> u64 {
    match std::env::var("GUPFS_PINGPONG_SEED") {
        Ok(text) => text.parse().expect("GUPFS_PINGPONG_SEED is a number"),
        Err(_) => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let now = now.map_err(Error::other).expect("a clock after 1970");
            u64::from(now.subsec_nanos()) ^ (now.as_secs() << 32)
        }
    }
}

/// How long it runs.
pub fn duration() -> Duration {
    let seconds = std::env::var("GUPFS_PINGPONG_SECONDS");
    let seconds = seconds.map_or(60, |s| {
        s.parse().expect("GUPFS_PINGPONG_SECONDS is a number")
    });
    Duration::from_secs(seconds)
}
