//! A writer in a directory of its own: it notes, outside of the file system, what was acknowledged.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FallocateFlags;
use stdx::Prng;

use crate::block;
use crate::mapping::Mapping;
use crate::model::{Counts, Model, time};
use crate::rig::{Cut, THE_POWER_GOES};

/// Files of a writer at most.
const FILE_COUNT: usize = 24;
/// Errors that a message shows.
const END_COUNT: usize = 8;
/// Names that are replaced.
const TARGET_COUNT: u64 = 3;
/// Records of a list, about, before another one is begun.
const RECORD_COUNT_MAX: u64 = 20_000;
/// Bytes of a record of the list that is appended to.
const RECORD: usize = 100;

/// A file with its names: it has one of these.
#[derive(Debug)]
struct Named {
    model: Model,
    /// Below the writer's directory; the newest is the last.
    names: Vec<String>,
    /// An fsync has acknowledged it.
    must_be: bool,
    /// It was unlinked, which nobody has acknowledged.
    is_unlinked: bool,
}

/// A name that is replaced by renames: it leads to one of these, whole.
#[derive(Debug, Default)]
struct Target {
    /// `None`: to nothing.
    versions: Vec<Option<Model>>,
}

/// One writer.
#[derive(Debug)]
pub struct Writer {
    number: u64,
    node: usize,
    prng: Prng,
    files: Vec<Named>,
    targets: BTreeMap<String, Target>,
    /// Names unlinked and synced: they must not come back.
    gone: Vec<String>,
    made: u64,
    /// Records of the list that are acknowledged, and all that were ever begun.
    records: (u64, u64),
    is_new: bool,
    /// What ended its work of the last cycles, for the message of a fault.
    ends: VecDeque<String>,
    trouble: Option<String>,
}

/// Makes `directory` in the mount of a node, if it is not there and the node has power: else it would be made below the mount point.
pub fn made_in(mount: &Path, directory: &Path, cut: &Cut) -> Result<(), Error> {
    cut.acknowledged()?;
    // That of a mount which has been removed meanwhile leads nowhere.
    let mount = File::open(mount)?;
    let name = directory.file_name().expect("below the mount");
    cut.acknowledged()?;
    match rustix::fs::mkdirat(&mount, name, rustix::fs::Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn record(writer: u64, number: u64) -> [u8; RECORD] {
    let mut bytes = [b'.'; RECORD];
    let text = format!(
        "writer {writer} record {number} {:016x}",
        stdx::prng::splitmix64((writer << 40) | number)
    );
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

impl Writer {
    pub fn new(number: u64, node: usize, prng: Prng) -> Self {
        Self {
            number,
            node,
            prng,
            files: Vec::new(),
            targets: BTreeMap::new(),
            gone: Vec::new(),
            made: 0,
            records: (0, 0),
            is_new: true,
            ends: VecDeque::new(),
            trouble: None,
        }
    }

    /// What ended its work of the last cycles.
    pub fn ends(&self) -> String {
        self.ends.iter().map(String::as_str).collect()
    }

    /// What ended its work in the last cycle, unless that was the loss of power.
    pub fn trouble(&mut self) -> Option<String> {
        self.trouble.take()
    }

    /// Index of its node.
    pub fn node(&self) -> usize {
        self.node
    }

    fn root(&self, mount: &Path) -> PathBuf {
        mount.join(format!("writer-{}", self.number))
    }

    /// Works until the power is gone.
    pub fn work(&mut self, mount: &Path, cut: &Cut) {
        let root = self.root(mount);
        if self.is_new {
            if made_in(mount, &root, cut).is_err() {
                return;
            }
            let made = File::open(&root).and_then(|d| d.sync_all());
            let made = made.and_then(|()| cut.acknowledged());
            self.is_new = made.is_err();
        }
        while !cut.is_over() {
            // An error is the end: the model says what may have happened.
            let drawn = self.prng.below(15);
            let done = match drawn {
                0 | 1 => self.create(&root, cut),
                2..5 => self.change(&root, cut),
                5 => self.rename(&root, cut),
                6 => self.unlink(&root, cut),
                7 | 8 => self.replace(&root, cut),
                12.. => self.store(&root, cut),
                _ => self.append(&root, cut),
            };
            if let Err(error) = done {
                if self.ends.len() == END_COUNT {
                    self.ends.pop_front();
                }
                let said = format!("{} {drawn}: {error}", time());
                self.ends.push_back(format!("  {said}\n"));
                let is_cut = error.to_string() == THE_POWER_GOES;
                self.trouble = Some(said).filter(|_| !is_cut);
                return;
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.made += 1;
        (self.number << 40) | self.made
    }

    fn create(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        if self.files.len() >= FILE_COUNT {
            return self.unlink(root, cut);
        }
        let id = self.id();
        let number = self.made;
        let name = match self.prng.below(3) {
            0 => {
                // One by one: nothing may be made in what lies below the mount point when that is not mounted any more.
                fs::create_dir(root.join(format!("d{number}")))?;
                fs::create_dir(root.join(format!("d{number}/e")))?;
                format!("d{number}/e/f{number}")
            }
            _ => format!("f{number}"),
        };
        let count = self.prng.below(20);
        let mut model = Model::new(id);
        let bytes = model.write(0, count);
        if count == 0 {
            model = Model::new(id);
        }
        let path = root.join(&name);
        self.files.push(Named {
            model,
            names: vec![name],
            must_be: false,
            is_unlinked: false,
        });
        let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
        file.write_all(&bytes)?;
        if self.prng.chance(2, 3) {
            file.sync_all()?;
            cut.acknowledged()?;
            let file = self.files.last_mut().expect("just made");
            file.model.synced();
            file.must_be = true;
        }
        Ok(())
    }

    /// A file that has a name, by chance.
    fn any(&mut self) -> Option<usize> {
        let living: Vec<usize> = (0..self.files.len())
            .filter(|n| !self.files[*n].is_unlinked)
            .collect();
        self.prng.pick(&living).copied()
    }

    /// Writes, cuts or punches; some of it is synced.
    fn change(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let Some(index) = self.any() else {
            return Ok(());
        };
        let named = &mut self.files[index];
        let path = root.join(named.names.last().expect("it has a name"));
        let is_dsync = self.prng.chance(1, 8);
        let flags = if is_dsync { libc::O_DSYNC } else { 0 };
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)?;
        let size = named.model.size();
        for _ in 0..1 + self.prng.below(4) {
            let first = self.prng.below(size + 4);
            let count = 1 + self.prng.below(6);
            match self.prng.below(10) {
                0 => {
                    named.model.cut(first);
                    file.set_len(first * block::SIZE as u64)?;
                }
                1 => {
                    named.model.punch(first, count);
                    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let unit = block::SIZE as u64;
                    rustix::fs::fallocate(&file, mode, first * unit, count * unit)?;
                }
                _ => {
                    let bytes = named.model.write(first, count);
                    file.write_all_at(&bytes, first * block::SIZE as u64)?;
                }
            }
        }
        if self.prng.chance(1, 2) {
            named.model.note(if is_dsync {
                "O_DSYNC, fsync comes"
            } else {
                "fsync comes"
            });
            match self.prng.chance(1, 2) {
                true => file.sync_all()?,
                false => file.sync_data()?,
            }
            cut.acknowledged()?;
            named.model.synced();
            named.must_be = true;
            let last = named.names.len() - 1;
            named.names.drain(..last);
        }
        Ok(())
    }

    /// Stores through a mapping; some of it is synced by msync, some by fsync, some is left to the end of the mapping.
    fn store(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let Some(index) = self.any() else {
            return Ok(());
        };
        let named = &mut self.files[index];
        let size = named.model.size();
        if size == 0 {
            return Ok(());
        }
        let path = root.join(named.names.last().expect("it has a name"));
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let at = |index: u64| usize::try_from(index).expect("small") * block::SIZE;
        let mapping = Mapping::new(&file, at(size), true)?;
        for _ in 0..1 + self.prng.below(4) {
            let first = self.prng.below(size);
            let count = 1 + self.prng.below(6.min(size - first));
            let bytes = named.model.store(first, count);
            // What is written back in between are blocks in part.
            let part = usize::try_from(self.prng.below(bytes.len() as u64)).expect("small");
            mapping.store(at(first), &bytes[..part])?;
            if self.prng.chance(1, 4) {
                mapping.sync_part(at(first), bytes.len())?;
            }
            mapping.store(at(first) + part, &bytes[part..])?;
            let mut there = vec![0; bytes.len()];
            mapping.load(at(first), &mut there)?;
            assert!(there == bytes, "what was just stored is not there");
            let how = self.prng.below(4);
            named.model.note(
                [
                    "msync of a part comes",
                    "msync comes",
                    "fsync after a store comes",
                    "is left",
                ][usize::try_from(how).expect("below 4")],
            );
            let is_part = match how {
                0 => mapping.sync_part(at(first), bytes.len()).map(|()| true)?,
                1 => mapping.sync().map(|()| false)?,
                2 => file.sync_all().map(|()| false)?,
                _ => continue,
            };
            cut.acknowledged()?;
            match is_part {
                true => named.model.part_synced(first, count),
                false => named.model.synced(),
            }
            named.must_be = true;
            named.names.drain(..named.names.len() - 1);
        }
        Ok(())
    }

    fn rename(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let Some(index) = self.any() else {
            return Ok(());
        };
        self.made += 1;
        let name = format!("m{}", self.made);
        let named = &mut self.files[index];
        let from = root.join(named.names.last().expect("it has a name"));
        named.names.push(name.clone());
        named.model.note("is renamed");
        fs::rename(from, root.join(&name))?;
        if self.prng.chance(1, 2) {
            File::open(root.join(name))?.sync_all()?;
            cut.acknowledged()?;
            named.names.drain(..named.names.len() - 1);
            named.model.synced();
            named.must_be = true;
        }
        Ok(())
    }

    /// Unlinks one; some directories are synced, and then it stays away.
    fn unlink(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let Some(index) = self.any() else {
            return Ok(());
        };
        let named = &mut self.files[index];
        named.is_unlinked = true;
        let path = root.join(named.names.last().expect("it has a name"));
        fs::remove_file(&path)?;
        if self.prng.chance(1, 3) {
            File::open(path.parent().expect("a directory"))?.sync_all()?;
            cut.acknowledged()?;
            let named = self.files.remove(index);
            self.gone.extend(named.names);
        }
        Ok(())
    }

    /// The way of editors: a new file goes over the old name, with fsync or without.
    fn replace(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let name = format!("t{}", self.prng.below(TARGET_COUNT));
        let id = self.id();
        let mut model = Model::new(id);
        let bytes = model.write(0, 1 + self.prng.below(10));
        let fresh = root.join(format!("{name}.new"));
        let mut file = File::create(&fresh)?;
        file.write_all(&bytes)?;
        if self.prng.chance(1, 3) {
            file.sync_all()?;
        }
        model.synced();
        let target = self.targets.entry(name.clone()).or_default();
        if target.versions.is_empty() {
            target.versions.push(None);
        }
        // The first rename replaces nothing: its data are safe only by an fsync.
        if let [None] = target.versions[..] {
            file.sync_all()?;
            cut.acknowledged()?;
        }
        target.versions.push(Some(model));
        fs::rename(&fresh, root.join(name))?;
        if self.prng.chance(1, 3) {
            file.sync_all()?;
            cut.acknowledged()?;
            target.versions.drain(..target.versions.len() - 1);
        }
        Ok(())
    }

    /// Small records at the end of a list.
    fn append(&mut self, root: &Path, cut: &Cut) -> Result<(), Error> {
        let flags = if self.prng.chance(1, 2) {
            libc::O_DSYNC
        } else {
            0
        };
        let path = root.join("list");
        let mut list = OpenOptions::new()
            .append(true)
            .create(true)
            .custom_flags(flags)
            .open(path)?;
        for _ in 0..1 + self.prng.below(6) {
            let count = 1 + self.prng.below(30);
            let numbers = self.records.1..self.records.1 + count;
            let bytes: Vec<u8> = numbers.flat_map(|n| record(self.number, n)).collect();
            self.records.1 += count;
            list.write_all(&bytes)?;
            if flags != 0 {
                cut.acknowledged()?;
                self.records.0 = self.records.1;
            }
        }
        if self.prng.chance(1, 2) {
            list.sync_data()?;
            cut.acknowledged()?;
            self.records.0 = self.records.1;
        }
        Ok(())
    }

    /// What is there is what may be there.
    pub fn check(&mut self, mount: &Path, counts: &mut Counts) -> Result<(), String> {
        let root = self.root(mount);
        if self.is_new {
            return Ok(());
        }
        let mut there = names(&root)?;
        let mut kept = Vec::new();
        for mut named in std::mem::take(&mut self.files) {
            let found: Vec<&String> = named.names.iter().filter(|n| there.contains(*n)).collect();
            let what = || {
                format!(
                    "file {} of {}: {:?}",
                    named.model.id,
                    root.display(),
                    named.names
                )
            };
            match found.as_slice() {
                [] if named.must_be && !named.is_unlinked => {
                    return Err(format!(
                        "{}: missing, and it was synced; there is {there:?}",
                        what()
                    ));
                }
                [] => counts.lost += u64::from(!named.is_unlinked),
                [name] => {
                    let name = (*name).clone();
                    named.model.check(&root.join(&name), counts)?;
                    counts.kept += u64::from(named.must_be);
                    counts.lost += u64::from(named.names.last() != Some(&name));
                    there.retain(|n| *n != name);
                    named = Named {
                        names: vec![name],
                        must_be: true,
                        is_unlinked: false,
                        ..named
                    };
                    kept.push(named);
                }
                more => return Err(format!("{}: it has {} names: {more:?}", what(), more.len())),
            }
        }
        self.files = kept;
        if let Some(back) = self.gone.iter().find(|n| there.contains(*n)) {
            return Err(format!(
                "{}/{back} is back, and its end was synced",
                root.display()
            ));
        }
        for (name, target) in &mut self.targets {
            target.check(&root.join(name), counts)?;
            there.retain(|n| n != name && *n != format!("{name}.new"));
        }
        self.check_list(&root, counts)?;
        there.retain(|n| n != "list");
        match there.first() {
            // The rename may not have happened: then there is no target.
            Some(more) if !more.ends_with(".new") => {
                Err(format!("{}/{more}: nobody made it", root.display()))
            }
            _ => Ok(()),
        }
    }

    /// Syncs all that `check` has found: where the node has lived on, that was the state of a moment.
    pub fn settle(&self, mount: &Path) -> Result<(), String> {
        if self.is_new {
            return Ok(());
        }
        let mut rest = vec![self.root(mount)];
        while let Some(place) = rest.pop() {
            let fault = |e: Error| format!("{}: {e}", place.display());
            File::open(&place)
                .and_then(|file| file.sync_all())
                .map_err(fault)?;
            if place.is_dir() {
                for entry in fs::read_dir(&place).map_err(fault)? {
                    rest.push(entry.map_err(fault)?.path());
                }
            }
        }
        Ok(())
    }

    fn check_list(&mut self, root: &Path, counts: &mut Counts) -> Result<(), String> {
        let path = root.join("list");
        let (acknowledged, begun) = self.records;
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if acknowledged == 0 && e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => {
                return Err(format!(
                    "{}: {e}, {acknowledged} records are synced",
                    path.display()
                ));
            }
        };
        let count = bytes.len() / RECORD;
        let mut whole = 0;
        for (number, found) in (0..).zip(bytes.chunks(RECORD)) {
            let expected = record(self.number, number);
            if found == expected {
                whole += u64::from(whole == number);
                continue;
            }
            let is_piece = found.iter().zip(expected).all(|(f, e)| *f == e || *f == 0);
            if number < acknowledged || number >= begun || !is_piece {
                let found = String::from_utf8_lossy(found).into_owned();
                return Err(format!(
                    "{}: record {number} is {found:?}; {acknowledged} of {begun} are synced, {count} there",
                    path.display()
                ));
            }
        }
        if whole < acknowledged {
            return Err(format!(
                "{}: {whole} records, {acknowledged} are synced",
                path.display()
            ));
        }
        counts.lost += u64::from(whole < begun);
        if bytes.len() != usize::try_from(whole).expect("small") * RECORD {
            // A piece of a record: goes, as a program that recovers does it.
            let list = OpenOptions::new()
                .write(true)
                .open(&path)
                .map_err(|e| e.to_string())?;
            list.set_len(whole * RECORD as u64)
                .map_err(|e| e.to_string())?;
            list.sync_all().map_err(|e| e.to_string())?;
        }
        self.records = (whole, whole);
        if whole > RECORD_COUNT_MAX {
            // A new one: a long run must not fill the file system.
            self.records = (0, 0);
            fs::remove_file(&path).map_err(|e| e.to_string())?;
            let directory = File::open(root).map_err(|e| e.to_string())?;
            directory.sync_all().map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl Target {
    fn check(&mut self, path: &Path, counts: &mut Counts) -> Result<(), String> {
        let is_there = path.exists();
        let mut faults = Vec::new();
        let newest = self.versions.len().saturating_sub(1);
        for (at, version) in self.versions.iter_mut().enumerate().rev() {
            let found = match version {
                None if is_there => Err("it was not there".to_owned()),
                None => Ok(()),
                Some(_) if !is_there => Err("it is missing".to_owned()),
                Some(model) => model.check(path, counts),
            };
            match found {
                Ok(()) => {
                    counts.lost += u64::from(at != newest);
                    counts.gained += u64::from(at == newest && newest > 0);
                    self.versions = vec![version.clone()];
                    return Ok(());
                }
                Err(fault) => faults.push(fault),
            }
        }
        Err(format!(
            "{} is none of its {} versions:\n{}",
            path.display(),
            newest + 1,
            faults.join("\n")
        ))
    }
}

/// All names below `root` that are no directories.
fn names(root: &Path) -> Result<Vec<String>, String> {
    let (mut found, mut rest) = (Vec::new(), vec![root.to_owned()]);
    while let Some(place) = rest.pop() {
        let fault = |e: Error| format!("{}: {e}", place.display());
        for entry in fs::read_dir(&place).map_err(fault)? {
            let entry = entry.map_err(fault)?;
            match entry.file_type().map_err(fault)?.is_dir() {
                true => rest.push(entry.path()),
                false => {
                    let path = entry.path();
                    let name = path.strip_prefix(root).expect("below it");
                    found.push(name.to_str().expect("ASCII").to_owned());
                }
            }
        }
    }
    Ok(found)
}
