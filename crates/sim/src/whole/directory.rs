//! What applications saw of one directory, and whether one order of all calls explains it.
//!
//! As in `history`, but the register is the directory as a whole: a rename changes two names at once.

use std::collections::BTreeSet;

use crate::model::{NAME_COUNT, Value};

/// What each name leads to; 0: nothing.
pub type State = [Value; NAME_COUNT];

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The name was seen to lead there.
    Lookup(usize, Value),
    /// The name was made.
    Create(usize, Value),
    /// It was not made, for it existed.
    Exists(usize),
    /// The name was removed.
    Remove(usize),
    /// The name was not there.
    Absent(usize),
    /// The first name became the second.
    Move(usize, usize),
    /// The name was made, or not: its maker has gone.
    CreateSome(usize),
    /// The owner crashed: what it did for its own node since another node heard of something may be undone, the newest first.
    Lose,
}

/// What a name leads to whose maker never heard of it.
const SOME: Value = Value::MAX;

impl Access {
    /// The state after it, if it may happen in `state`. `known`: what was made and reported.
    fn apply(self, mut state: State, known: &BTreeSet<Value>) -> Option<State> {
        let may = match self {
            Self::Lookup(name, value) if state[name] == SOME => {
                value != 0 && !known.contains(&value)
            }
            Self::Lookup(name, value) => state[name] == value,
            Self::Create(name, _) | Self::CreateSome(name) | Self::Absent(name) => state[name] == 0,
            Self::Exists(name) | Self::Remove(name) | Self::Move(name, _) => state[name] != 0,
            Self::Lose => true,
        };
        match self {
            Self::Create(name, value) => state[name] = value,
            Self::CreateSome(name) => state[name] = SOME,
            Self::Lookup(name, value) => state[name] = value,
            Self::Remove(name) => state[name] = 0,
            Self::Move(from, to) if from != to => {
                state[to] = state[from];
                state[from] = 0;
            }
            Self::Lose | Self::Exists(_) | Self::Absent(_) | Self::Move(..) => {}
        }
        may.then_some(state)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    access: Access,
    start: u64,
    /// `None`: nobody knows whether it ever took effect.
    end: Option<u64>,
    who: usize,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub struct Directory {
    /// Node that owns the directory.
    home: usize,
    entries: Vec<Entry>,
}

/// A state, those before it that a crash of the owner may bring back, and which open calls have taken effect.
type Configuration = (State, Vec<State>, BTreeSet<usize>);

/// Configurations kept at most; beyond, the directory is not judged.
const CONFIGURATION_COUNT_MAX: usize = 20_000;

impl Directory {
    /// A directory that node `home` owns.
    pub fn of(home: usize) -> Self {
        Self {
            home,
            entries: Vec::new(),
        }
    }

    /// Notes a call by node `who` between two moments.
    pub fn add(&mut self, access: Access, (start, end): (u64, Option<u64>), who: usize) {
        let entry = Entry {
            access,
            start,
            end,
            who,
        };
        self.entries.push(entry);
    }

    /// Calls noted.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Whether an order exists; else all calls, and that at which the last hope went.
    pub fn check(&self) -> Result<(), String> {
        let Err(at) = self.search() else {
            return Ok(());
        };
        let mut sorted: Vec<&Entry> = self.entries.iter().collect();
        sorted.sort_by_key(|e| e.start);
        let mut lines = vec![format!("names: no order explains {:?}", self.entries[at])];
        lines.extend(sorted.iter().map(|e| {
            let end = e.end.map_or("?".into(), |end| end.to_string());
            format!("{}..{end} node {} {:?}", e.start, e.who, e.access)
        }));
        Err(lines.join("\n  "))
    }

    fn search(&self) -> Result<(), usize> {
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for (index, entry) in self.entries.iter().enumerate() {
            moments.push((entry.start, false, index));
            moments.extend(entry.end.map(|end| (end, true, index)));
        }
        moments.sort_unstable();
        let mut open: BTreeSet<usize> = BTreeSet::new();
        let mut all: BTreeSet<Configuration> = BTreeSet::new();
        all.insert(([0; NAME_COUNT], Vec::new(), BTreeSet::new()));
        let made = self.entries.iter().filter_map(|e| match e.access {
            Access::Create(_, value) => Some(value),
            _ => None,
        });
        let known: BTreeSet<Value> = made.collect();
        for (_, is_end, index) in moments {
            if !is_end {
                open.insert(index);
                continue;
            }
            self.expand(&open, &known, &mut all);
            if all.len() > CONFIGURATION_COUNT_MAX {
                return Ok(());
            }
            all.retain(|(_, _, done)| done.contains(&index));
            all = all
                .into_iter()
                .map(|(state, before, mut done)| {
                    done.remove(&index);
                    (state, before, done)
                })
                .collect();
            open.remove(&index);
            if all.is_empty() {
                return Err(index);
            }
        }
        Ok(())
    }

    fn expand(
        &self,
        open: &BTreeSet<usize>,
        known: &BTreeSet<Value>,
        all: &mut BTreeSet<Configuration>,
    ) {
        let mut fresh: Vec<Configuration> = all.iter().cloned().collect();
        while let Some((state, before, done)) = fresh.pop() {
            for index in open.difference(&done) {
                let entry = &self.entries[*index];
                let Some(next) = entry.access.apply(state, known) else {
                    continue;
                };
                let mut done = done.clone();
                done.insert(*index);
                let found: Vec<Configuration> = match entry.access {
                    Access::Lose => {
                        let states = before.iter().copied().chain([next]);
                        states.map(|s| (s, Vec::new(), done.clone())).collect()
                    }
                    // Another node hears of nothing that is not durable, with all before it.
                    _ if entry.who != self.home => vec![(next, Vec::new(), done)],
                    _ if next == state => vec![(next, before.clone(), done)],
                    _ => {
                        let mut before = before.clone();
                        before.push(state);
                        vec![(next, before, done)]
                    }
                };
                for found in found {
                    if all.len() <= CONFIGURATION_COUNT_MAX && all.insert(found.clone()) {
                        fresh.push(found);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(calls: &[(Access, u64, Option<u64>)]) -> bool {
        let mut directory = Directory::default();
        for (access, start, end) in calls {
            directory.add(*access, (*start, *end), 0);
        }
        directory.check().is_ok()
    }

    #[test]
    fn a_rename_is_one_step() {
        let begin = [(Access::Create(0, 5), 0, Some(1))];
        let with = |rest: &[(Access, u64, Option<u64>)]| judge(&[&begin[..], rest].concat());
        assert!(with(&[
            (Access::Move(0, 1), 2, Some(9)),
            (Access::Lookup(0, 0), 3, Some(4)),
            (Access::Lookup(1, 5), 5, Some(6)),
        ]));
        // Gone from the one name and not yet at the other.
        assert!(!with(&[
            (Access::Move(0, 1), 2, Some(9)),
            (Access::Lookup(0, 0), 3, Some(4)),
            (Access::Lookup(1, 0), 5, Some(6)),
        ]));
        assert!(!with(&[
            (Access::Remove(0), 2, Some(3)),
            (Access::Exists(0), 4, Some(5)),
        ]));
        assert!(!with(&[
            (Access::Create(0, 6), 2, Some(3)),
            (Access::Lookup(0, 6), 4, Some(5)),
        ]));
        // Two that both make the name.
        assert!(!judge(&[
            (Access::Create(0, 5), 0, Some(9)),
            (Access::Create(0, 6), 0, Some(9)),
        ]));
        // A crash of the owner takes back the newest, until another node has heard of something.
        let made = (Access::Create(1, 6), 2, Some(3));
        let crash = (Access::Lose, 6, Some(7));
        assert!(with(&[made, crash, (Access::Lookup(1, 0), 8, Some(9))]));
        assert!(with(&[made, crash, (Access::Lookup(0, 0), 8, Some(9))]));
        let undone = [
            crash,
            (Access::Lookup(0, 0), 8, Some(9)),
            (Access::Lookup(1, 6), 10, Some(11)),
        ];
        assert!(!with(&[&[made][..], &undone].concat()));
        // An unknown outcome may show late.
        assert!(with(&[
            (Access::Remove(0), 2, None),
            (Access::Lookup(0, 5), 3, Some(4)),
            (Access::Lookup(0, 0), 5, Some(6)),
        ]));
    }

    #[test]
    fn who_has_heard_keeps_it() {
        let mut directory = Directory::default();
        directory.add(Access::Create(0, 5), (0, Some(1)), 0);
        directory.add(Access::Lookup(0, 5), (2, Some(3)), 1);
        directory.add(Access::Lose, (4, Some(5)), 0);
        directory.add(Access::Lookup(0, 0), (6, Some(7)), 0);
        assert!(directory.check().is_err());
    }
}
