//! All directories are listed before they are opened, before each call: what is shown after it is what is there by then.
//!
//! The answers of the listings come before the call, while it is under way, or after it.

use std::collections::BTreeMap;

use client::Coming;
use client::request::{Listed, Operation, Response};
use client::siblings::Order;
use types::{FileKind, InodeId};

use super::calls::{Calls, Failed, odd, text};
use super::ops::Sequence;
use super::posix::{Body, Fs, Number, ROOT};
use super::{Bench, seed_of};

/// Of the requests, in bytes.
const SIZE: u32 = 4096;

/// The directories of a machine, each with its parent.
pub(super) type Directories = BTreeMap<InodeId, InodeId>;

impl Bench {
    /// A sequence, with listings ahead. How many there were.
    ///
    /// # Errors
    /// What is wrong.
    pub fn listed(&mut self, sequence: &Sequence) -> Result<u64, String> {
        let seed = seed_of(sequence);
        let mut count = 0;
        for pause_ms in [0, 1, 5] {
            let mut runner = self.runner(false)?;
            let directories = runner.calls.see_names(&self.begin)?;
            runner.ahead = Some((directories, pause_ms));
            runner.make_calls(sequence, seed)?;
            runner.end()?;
            count += runner.calls.machine.node.listed_directory_count();
        }
        self.counts.runs += 1;
        Ok(count)
    }
}

impl Calls {
    /// Lists these ahead, and lets so much time pass.
    pub(super) fn list_ahead(&mut self, directories: &Directories, pause_ms: u64) {
        for ino in directories.keys() {
            self.machine.node.list_soon(Coming {
                ino: *ino,
                size: SIZE,
                order: Order::Listed,
            });
        }
        self.machine.wait(pause_ms);
    }

    /// Lists all directories, which have what the model says; which there are.
    pub(super) fn see_names(&mut self, fs: &Fs) -> Result<Directories, String> {
        let mut found = Directories::new();
        self.see_names_in(fs, (InodeId::ROOT, InodeId::ROOT, ROOT), &mut found)?;
        Ok(found)
    }

    fn see_names_in(
        &mut self,
        fs: &Fs,
        (ino, parent, number): (InodeId, InodeId, Number),
        found: &mut Directories,
    ) -> Result<(), String> {
        found.insert(ino, parent);
        let Body::Directory(entries) = &fs.inodes[&number].body else {
            return Err(format!("{ino} is no directory"));
        };
        let listed = self.list_whole(ino);
        let listed = listed.map_err(|failed| format!("listing {ino}: {failed:?}"))?;
        let own: Vec<_> = listed.iter().take(2).map(|entry| entry.ino).collect();
        if own != [ino, parent] {
            return Err(format!("{ino} lies in {parent} and shows {own:?}"));
        }
        let mut names: Vec<_> = listed.iter().skip(2).map(|e| text(&e.name)).collect();
        names.sort_unstable();
        let expected: Vec<_> = entries.keys().cloned().collect();
        if names != expected {
            return Err(format!("{ino} shows {names:?} and has {expected:?}"));
        }
        let mode = FileKind::Directory.mode_bits();
        for entry in listed.iter().skip(2) {
            let number = entries[&text(&entry.name)];
            let is_directory = matches!(fs.inodes[&number].body, Body::Directory(_));
            if (entry.mode == mode) != is_directory {
                return Err(format!("{entry:?} is of another kind"));
            }
            if let Some(shown) = &entry.entry {
                let (nlink, size) = (fs.inodes[&number].nlink, shown.attr.size);
                if !is_directory && shown.attr.nlink != nlink {
                    return Err(format!("{entry:?} has {nlink} links"));
                }
                if let Body::File(bytes) = &fs.inodes[&number].body
                    && size != bytes.len() as u64
                {
                    return Err(format!("{entry:?} has {} bytes", bytes.len()));
                }
            }
            if is_directory {
                self.see_names_in(fs, (entry.ino, ino, number), found)?;
            }
        }
        Ok(())
    }

    fn list_whole(&mut self, ino: InodeId) -> Result<Vec<Listed>, Failed> {
        let handle = self.open_directory(ino)?;
        let mut found: Vec<Listed> = Vec::new();
        loop {
            let listing = self.ask(Operation::ReadDir {
                ino,
                handle,
                cookie: found.last().map_or(0, |last| last.cookie),
                size: SIZE,
                plus: true,
            })?;
            let Response::Listing(listed) = listing else {
                return Err(odd(&listing));
            };
            if listed.is_empty() {
                break;
            }
            for entry in listed.iter().filter(|entry| entry.entry.is_some()) {
                let (ino, count) = (entry.ino, 1);
                self.machine.tell(Operation::Forget { ino, count });
            }
            found.extend(listed);
        }
        self.done(Operation::ReleaseDir { ino, handle })?;
        Ok(found)
    }
}
