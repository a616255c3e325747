//! What applications saw, and whether one order of all operations explains it.
//!
//! Every cell and every name is a register of its own. For each, the checker walks through the starts and ends of its
//! operations and keeps all *configurations* that are possible so far: the register's value, and which of the
//! operations under way have taken effect already (just-in-time linearization, Lowe 2017). When none is left, no order exists.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::Value;

/// A register: file (or the directory, behind the last file) and cell (or name).
pub type Register = (usize, usize);

/// What was done to a register.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// This was read.
    Read(Value),
    /// This was written.
    Write(Value),
    /// This was written where a hole had been.
    Append(Value),
    /// A crash: any of these values (number of a list) may be there now, or what was.
    Lose(usize),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    access: Access,
    start: u64,
    /// `None`: nobody knows whether it ever took effect.
    end: Option<u64>,
    who: usize,
}

/// All accesses of a run.
#[derive(Debug, Default)]
pub struct History {
    registers: BTreeMap<Register, Vec<Entry>>,
    forgotten: BTreeSet<Register>,
    losses: Vec<Vec<Value>>,
}

/// Configurations kept at most; beyond, a register is not judged. Generous: a run stays far below.
const CONFIGURATION_COUNT_MAX: usize = 20_000;

impl History {
    /// Notes an access by node `who` between two moments.
    pub fn add(
        &mut self,
        register: Register,
        access: Access,
        (start, end): (u64, Option<u64>),
        who: usize,
    ) {
        let entry = Entry {
            access,
            start,
            end,
            who,
        };
        self.registers.entry(register).or_default().push(entry);
    }

    /// Node `who` crashed at `span.0` and what it had not committed was gone at `span.1`. `syncs`: files and begins of
    /// its fsyncs that returned before. A register may fall back as far as the last write that is surely durable:
    /// another node's, one that an fsync followed, or one that another node has seen.
    pub fn lose(&mut self, who: usize, span: (u64, u64), syncs: &[(usize, u64)]) {
        for (register, entries) in &mut self.registers {
            let is_over = |e: &Entry| e.end.is_some_and(|end| end < span.0);
            let is_synced = |end: u64| syncs.iter().any(|(f, s)| *f == register.0 && *s > end);
            let is_seen = |value: Value| {
                let mut others = entries.iter().filter(|e| e.who != who && is_over(e));
                value != 0 && others.any(|e| e.access == Access::Read(value))
            };
            let written = |e: &Entry| match e.access {
                Access::Write(value) | Access::Append(value) => Some(value),
                Access::Read(_) | Access::Lose(_) => None,
            };
            let writes = entries.iter().filter(|e| e.start < span.0);
            let writes: Vec<(Entry, Value)> =
                writes.filter_map(|e| Some((*e, written(e)?))).collect();
            let is_durable = |(e, value): &&(Entry, Value)| {
                is_over(e) && (e.who != who || e.end.is_some_and(is_synced) || is_seen(*value))
            };
            let durable = writes.iter().filter(is_durable);
            let last = durable.map(|(e, _)| e.start).max();
            // What was over before the last durable one began is overwritten for good.
            let may_be = |e: &Entry| last.is_none_or(|last| e.end.is_none_or(|end| end >= last));
            let lost = writes.iter().filter(|(e, _)| may_be(e));
            let mut values: Vec<Value> = lost.map(|(_, value)| *value).collect();
            if last.is_none() {
                values.push(0);
            }
            // A former crash may have taken the last durable one back already.
            let former = entries.iter().filter_map(|e| match e.access {
                Access::Lose(list) if last.is_none_or(|last| e.start > last) => Some(list),
                _ => None,
            });
            values.extend(former.flat_map(|list| self.losses[list].iter().copied()));
            let access = Access::Lose(self.losses.len());
            self.losses.push(values);
            entries.push(Entry {
                access,
                start: span.0,
                end: Some(span.1),
                who,
            });
        }
    }

    /// Leaves a register unjudged.
    pub fn forget(&mut self, register: Register) {
        self.forgotten.insert(register);
    }

    /// Accesses noted.
    pub fn count(&self) -> usize {
        self.registers.values().map(Vec::len).sum()
    }

    /// The first register that no order explains, with the access at which the last hope went.
    pub fn check(&self) -> Result<(), String> {
        let judged = self
            .registers
            .iter()
            .filter(|(r, _)| !self.forgotten.contains(r));
        for (register, entries) in judged {
            check_register(entries, &self.losses).map_err(|at| {
                let mut lines = vec![format!("register {register:?}: no order explains {at}")];
                let mut sorted: Vec<&Entry> = entries.iter().collect();
                sorted.sort_by_key(|e| e.start);
                lines.extend(sorted.iter().map(|e| describe(e)));
                lines.join("\n  ")
            })?;
        }
        Ok(())
    }
}

fn describe(entry: &Entry) -> String {
    let Entry {
        access,
        start,
        end,
        who,
    } = entry;
    let end = end.map_or("?".into(), |end| end.to_string());
    format!("{start}..{end} node {who} {access:?}")
}

fn check_register(entries: &[Entry], losses: &[Vec<Value>]) -> Result<(), String> {
    // (moment, is an end, entry): starts before ends of the same moment, which calls them concurrent.
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        moments.push((entry.start, false, index));
        moments.extend(entry.end.map(|end| (end, true, index)));
    }
    moments.sort_unstable();
    let mut open: BTreeSet<usize> = BTreeSet::new();
    let mut configurations: BTreeSet<(Value, BTreeSet<usize>)> = BTreeSet::new();
    configurations.insert((0, BTreeSet::new()));
    for (_, is_end, index) in moments {
        if !is_end {
            open.insert(index);
            continue;
        }
        expand((entries, losses), &open, &mut configurations);
        if configurations.len() > CONFIGURATION_COUNT_MAX {
            return Ok(());
        }
        let survivors = configurations
            .into_iter()
            .filter(|(_, done)| done.contains(&index));
        configurations = survivors
            .map(|(value, mut done)| {
                done.remove(&index);
                (value, done)
            })
            .collect();
        open.remove(&index);
        if configurations.is_empty() {
            return Err(describe(&entries[index]));
        }
    }
    Ok(())
}

/// Lets every open operation take effect in every possible order.
fn expand(
    (entries, losses): (&[Entry], &[Vec<Value>]),
    open: &BTreeSet<usize>,
    configurations: &mut BTreeSet<(Value, BTreeSet<usize>)>,
) {
    let mut fresh: Vec<(Value, BTreeSet<usize>)> = configurations.iter().cloned().collect();
    while let Some((value, done)) = fresh.pop() {
        for index in open.difference(&done) {
            let nexts = match entries[*index].access {
                Access::Read(seen) if seen == value => vec![value],
                Access::Append(new) if value == 0 => vec![new],
                Access::Read(_) | Access::Append(_) => continue,
                Access::Write(new) => vec![new],
                Access::Lose(list) => losses[list].iter().copied().chain([value]).collect(),
            };
            for next in nexts {
                let mut done = done.clone();
                done.insert(*index);
                let configuration = (next, done);
                if configurations.len() <= CONFIGURATION_COUNT_MAX
                    && configurations.insert(configuration.clone())
                {
                    fresh.push(configuration);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(accesses: &[(Access, u64, Option<u64>)]) -> bool {
        let mut history = History::default();
        for (access, start, end) in accesses {
            history.add((0, 0), *access, (*start, *end), 0);
        }
        history.check().is_ok()
    }

    #[test]
    fn small_histories() {
        use Access::{Read, Write};
        assert!(judge(&[(Write(1), 0, Some(1)), (Read(1), 2, Some(3))]));
        assert!(!judge(&[(Write(1), 0, Some(1)), (Read(0), 2, Some(3))]));
        assert!(judge(&[
            (Write(1), 0, Some(5)),
            (Read(0), 2, Some(3)),
            (Read(1), 4, Some(5))
        ]));
        assert!(!judge(&[
            (Write(1), 0, Some(9)),
            (Read(1), 2, Some(3)),
            (Read(0), 4, Some(5))
        ]));
        // An unknown outcome may show late, but not come and go.
        assert!(judge(&[
            (Write(1), 0, None),
            (Read(0), 2, Some(3)),
            (Read(1), 7, Some(8))
        ]));
        assert!(!judge(&[
            (Write(1), 0, None),
            (Read(1), 2, Some(3)),
            (Read(0), 7, Some(8))
        ]));
    }

    #[test]
    fn a_crash_loses_what_nothing_made_durable() {
        use Access::{Read, Write};
        let judge = |read: Value, syncs: &[(usize, u64)]| {
            let mut history = History::default();
            history.add((0, 0), Write(1), (0, Some(1)), 0);
            history.add((0, 0), Write(2), (2, Some(3)), 0);
            history.add((0, 0), Write(3), (6, Some(7)), 0);
            history.lose(0, (8, 10), syncs);
            history.add((0, 0), Read(read), (12, Some(13)), 1);
            history.check().is_ok()
        };
        assert!((0..=3).all(|value| judge(value, &[])));
        assert!(!judge(4, &[]));
        // Another file's fsync, and one that began before the first write had ended.
        assert!((0..=3).all(|value| judge(value, &[(1, 5), (0, 1)])));
        assert!(judge(2, &[(0, 4)]) && judge(3, &[(0, 4)]));
        assert!(!judge(0, &[(0, 4)]) && !judge(1, &[(0, 4)]));
    }

    /// The same question answered by trying all orders.
    fn dumb(entries: &[(Access, u64, u64)], done: u32, value: Value) -> bool {
        if done == (1 << entries.len()) - 1 {
            return true;
        }
        let is_open = |i: usize| done & (1 << i) == 0;
        (0..entries.len()).filter(|i| is_open(*i)).any(|i| {
            let (access, start, _) = entries[i];
            let is_first = (0..entries.len()).all(|j| !is_open(j) || entries[j].2 >= start);
            let next = match access {
                Access::Read(seen) if seen != value => return false,
                Access::Append(_) if value != 0 => return false,
                Access::Read(_) | Access::Lose(_) => value,
                Access::Write(new) | Access::Append(new) => new,
            };
            is_first && dumb(entries, done | 1 << i, next)
        })
    }

    #[test]
    fn agrees_with_all_orders() {
        let mut prng = stdx::Prng::new(5);
        let mut outcomes = [0, 0];
        for _ in 0..4000 {
            let entries: Vec<(Access, u64, u64)> = (0..prng.between(1, 6))
                .map(|_| {
                    let value = prng.below(3);
                    let is_read = prng.chance(1, 2);
                    let access = if is_read {
                        Access::Read(value)
                    } else {
                        Access::Write(value)
                    };
                    let start = prng.below(12);
                    (access, start, prng.between(start, start + 6))
                })
                .collect();
            let with_end: Vec<_> = entries.iter().map(|(a, s, e)| (*a, *s, Some(*e))).collect();
            let expected = dumb(&entries, 0, 0);
            assert_eq!(judge(&with_end), expected, "{entries:?}");
            outcomes[usize::from(expected)] += 1;
        }
        assert!(outcomes[0] > 500 && outcomes[1] > 500, "{outcomes:?}");
    }
}
