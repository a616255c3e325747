//! Is what was found after a loss of power what it may be?
//!
//! - *Names and attributes* are those after some number of steps, no fewer than were made durable, no more than were begun:
//!   the journal is one, and its order is the order of calls.
//! - *Bytes* of a file: its durable changes and any of the others, each whole, for one request's bytes are one Commit. Nothing
//!   else is ever in a file.
//! - What replaced a file by a rename has all its bytes of before.

use std::collections::{BTreeMap, BTreeSet};

use super::posix::{Body, Change, Done, Fs, Number, ROOT};

/// The states that a run went through, and how.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Before the first step, and after each.
    pub states: Vec<Fs>,
    /// What each step did.
    pub done: Vec<Done>,
}

/// What is known at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Bounds {
    /// So many steps have been begun.
    pub begun: usize,
    /// Names and attributes of so many steps are durable.
    pub names: usize,
    /// Of these files the changes of so many steps are durable.
    pub data: BTreeMap<Number, usize>,
}

const PAGE: usize = 4096;

/// Files of the model and of what was found.
type Pairs = BTreeMap<Number, Number>;

impl History {
    /// Begins here.
    pub fn new(begin: Fs) -> Self {
        Self {
            states: vec![begin],
            done: Vec::new(),
        }
    }

    /// As it is now.
    pub fn now(&self) -> &Fs {
        self.states.last().expect("there is always a first")
    }

    /// Steps taken.
    pub fn count(&self) -> usize {
        self.done.len()
    }

    /// The last step, counted from one, of which `is_it` holds; 0 if there is none.
    pub fn last(&self, mut is_it: impl FnMut(&BTreeSet<Number>) -> bool) -> usize {
        let last = self.done.iter().rposition(|done| is_it(&done.touched));
        last.map_or(0, |index| index + 1)
    }

    /// The changes of a file's bytes, and which step made each.
    fn changes(&self, file: Number, begun: usize) -> Vec<(usize, &Change)> {
        let steps = self.done.iter().take(begun).zip(1..);
        let of_file = |(done, step)| -> Option<(usize, &Change)> {
            let done: &Done = done;
            let (number, change) = done.change.as_ref()?;
            (*number == file).then_some((step, change))
        };
        steps.filter_map(of_file).collect()
    }

    /// Judges what was found.
    ///
    /// # Errors
    /// In words: why it cannot be.
    pub fn judge(&self, found: &Fs, bounds: &Bounds) -> Result<(), String> {
        self.judge_readable(found, bounds, &BTreeSet::new())
    }

    /// The same, but nothing is known of the bytes of some files that were found.
    ///
    /// # Errors
    /// In words: why it cannot be.
    pub fn judge_readable(
        &self,
        found: &Fs,
        bounds: &Bounds,
        unreadable: &BTreeSet<Number>,
    ) -> Result<(), String> {
        let mut faults = Vec::new();
        for steps in (bounds.names..=bounds.begun).rev() {
            let judged = self.same_names(steps, found, bounds).and_then(|mut pairs| {
                pairs.retain(|_, other| !unreadable.contains(other));
                self.same_bytes(steps, found, bounds, &pairs)
            });
            match judged {
                Ok(()) => return Ok(()),
                Err(fault) => faults.push(format!("after {steps} steps: {fault}")),
            }
        }
        Err(faults.join("; "))
    }

    fn same_names(&self, steps: usize, found: &Fs, bounds: &Bounds) -> Result<Pairs, String> {
        let mut pairs = Pairs::from([(ROOT, ROOT)]);
        let mut back = Pairs::from([(ROOT, ROOT)]);
        let mut todo = vec![(String::new(), ROOT)];
        while let Some((path, number)) = todo.pop() {
            let expected = &self.states[steps].inodes[&number];
            let other = &found.inodes[&pairs[&number]];
            let is_told = self.knows_mtime(number, bounds);
            let with = |mut inode: super::posix::Inode| {
                inode.body = Body::Symlink(String::new());
                inode.mtime = inode.mtime.filter(|_| is_told && expected.mtime.is_some());
                inode
            };
            let attributes = (with(expected.clone()), with(other.clone()));
            if attributes.0 != attributes.1 {
                return Err(format!(
                    "/{path} is {:?}, not {:?}",
                    attributes.1, attributes.0
                ));
            }
            match (&expected.body, &other.body) {
                (Body::File(_), Body::File(_)) => {}
                (Body::Symlink(a), Body::Symlink(b)) if a == b => {}
                (Body::Directory(a), Body::Directory(b)) if a.keys().eq(b.keys()) => {
                    for (name, child) in a {
                        let other = b[name];
                        let old = pairs.insert(*child, other);
                        let old_back = back.insert(other, *child);
                        if old.is_some_and(|o| o != other) || old_back.is_some_and(|o| o != *child)
                        {
                            return Err(format!("/{path}/{name} leads to another inode"));
                        }
                        if old.is_none() {
                            todo.push((format!("{path}/{name}"), *child));
                        }
                    }
                }
                (a, b) => return Err(format!("/{path}: {}, not {}", kind(b), kind(a))),
            }
        }
        Ok(pairs)
    }

    /// Nothing that is on its way could change the modification time.
    fn knows_mtime(&self, number: Number, bounds: &Bounds) -> bool {
        let last = self
            .changes(number, bounds.begun)
            .last()
            .map(|(index, _)| *index);
        last.is_none_or(|last| {
            bounds
                .data
                .get(&number)
                .is_some_and(|durable| *durable >= last)
        })
    }

    fn same_bytes(
        &self,
        steps: usize,
        found: &Fs,
        bounds: &Bounds,
        pairs: &Pairs,
    ) -> Result<(), String> {
        for (number, other) in pairs {
            let Body::File(bytes) = &found.inodes[other].body else {
                continue;
            };
            // A name was replaced by this file when all before it was committed.
            let mut before = self.done[..steps].iter();
            let replaced = before.rposition(|done| done.replaces_by == Some(*number));
            let durable = bounds.data.get(number).copied().unwrap_or_default();
            let durable = durable.max(replaced.map_or(0, |index| index + 1));
            let may = self.contents(*number, durable, bounds.begun);
            if !may.contains(bytes) {
                return Err(format!(
                    "the bytes of inode {number} are none that were written: {}",
                    describe(bytes, &may)
                ));
            }
        }
        Ok(())
    }

    /// What may be in a file.
    fn contents(&self, file: Number, durable: usize, begun: usize) -> Vec<Vec<u8>> {
        let first = match self.states[0].inodes.get(&file).map(|inode| &inode.body) {
            Some(Body::File(bytes)) => bytes.clone(),
            _ => Vec::new(),
        };
        let changes = self.changes(file, begun);
        let of = |index: &usize| changes[*index].0 > durable;
        let loose: Vec<usize> = (0..changes.len()).filter(of).collect();
        let subset = |chosen: u32| {
            let mut bytes = first.clone();
            for (index, (_, change)) in changes.iter().enumerate() {
                let place = loose.iter().position(|l| *l == index);
                if place.is_none_or(|place| chosen >> place & 1 == 1) {
                    change.make(&mut bytes);
                }
            }
            bytes
        };
        let mut all: Vec<Vec<u8>> = (0..1_u32 << loose.len()).map(subset).collect();
        // Promised bytes and others go with Commits of their own, in the order of the file: what makes it longer may be there in part, from
        // its beginning to the end of a page.
        let is_promised = changes
            .iter()
            .any(|(_, c)| matches!(c, Change::Lengthen(_)));
        let is_write = |(_, change): &(usize, &Change)| matches!(change, Change::Write(..));
        let is_last_loose = loose.last().is_some_and(|last| *last + 1 == changes.len());
        if is_promised && is_last_loose && changes.last().is_some_and(is_write) {
            let (without, with) = all.split_at(all.len() / 2);
            let cut = |(old, new): (&Vec<u8>, &Vec<u8>)| {
                let begins = (old.len() / PAGE + 1..).map(|page| page * PAGE);
                let cuts = begins.take_while(|end| *end < new.len());
                cuts.map(|end| new[..end].to_vec()).collect::<Vec<_>>()
            };
            let cuts: Vec<Vec<u8>> = without.iter().zip(with).flat_map(cut).collect();
            all.extend(cuts);
        }
        all
    }
}

fn kind(body: &Body) -> String {
    match body {
        Body::File(_) => "a file".to_owned(),
        Body::Symlink(target) => format!("a link to {target}"),
        Body::Directory(entries) => {
            let names: Vec<&str> = entries.keys().map(String::as_str).collect();
            format!("a directory of {names:?}")
        }
    }
}

fn describe(bytes: &[u8], may: &[Vec<u8>]) -> String {
    let first = |content: &Vec<u8>| {
        let differs = bytes.iter().zip(content).position(|(a, b)| a != b);
        let differs = differs.map_or("no byte".to_owned(), |at| format!("byte {at}"));
        format!("{} bytes, {differs} differs", content.len())
    };
    let all: Vec<String> = may.iter().map(first).collect();
    format!("{} bytes, of {all:?}", bytes.len())
}
