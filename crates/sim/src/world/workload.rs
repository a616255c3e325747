//! What applications do: random calls, each writing numbers that nobody else writes.

use std::ops::Range;

use super::World;
use crate::model::{Action, CELL_COUNT, NAME_COUNT};
use crate::task::{Program, Task};

impl World {
    pub(super) fn begin_call(&mut self, index: usize, actor: usize) {
        let file = self.number(self.options.file_count);
        let action = self.draw(index);
        let action = self.avoid_overlap(index, file, action);
        self.note(|| format!("node {index}: call {file} {action:?}"));
        let start = self.moment();
        let task = Task::new(Program::Call(file, action));
        self.nodes[index].threads[actor].task = Some((task, start));
    }

    fn draw(&mut self, index: usize) -> Action {
        self.next_value += 1;
        let value = self.next_value;
        if self.prng.chance(self.options.name_percent, 100) {
            let name = self.number(NAME_COUNT);
            let may_bind = !self.options.has_one_binder || index == 0;
            return if may_bind && self.prng.chance(1, 2) {
                Action::Bind(name, value)
            } else {
                Action::Lookup(name)
            };
        }
        let is_cut = self.options.has_mappings && self.options.has_truncate;
        if self.options.is_cutting && is_cut && self.prng.chance(2, 3) {
            return match self.prng.below(5) {
                0 => Action::Truncate(self.number(CELL_COUNT)),
                1 => Action::ReadDirect(self.range(1)),
                2 => Action::Stat,
                _ => Action::Store(self.begin(), value),
            };
        }
        match self.prng.below(12) {
            0..=2 => Action::ReadCached(self.range(CELL_COUNT)),
            3 => Action::ReadDirect(self.range(6)),
            4 | 5 => Action::Write(self.range(6), value),
            6 if self.options.has_append => Action::Append(self.number(3) + 1, value),
            7 if self.options.has_truncate => Action::Truncate(self.number(CELL_COUNT)),
            8 if self.options.has_splice => Action::Splice(self.range(CELL_COUNT)),
            9 if self.options.has_mappings => Action::Load(self.begin()),
            10 if self.options.has_mappings => Action::Store(self.begin(), value),
            11 if self.options.has_mappings && self.prng.chance(1, 2) => Action::Msync,
            9 => Action::Stat,
            10 => Action::Write(self.range(CELL_COUNT), value),
            _ => Action::ReadCached(self.range(4)),
        }
    }

    /// On one node, a store through a mapping and a write(2) that overlap in time may lose the write even on a local
    /// file (the page that is written back is older than the write beside it): not ours to judge.
    fn avoid_overlap(&self, index: usize, file: usize, action: Action) -> Action {
        let writes = |a: &Action| {
            matches!(
                a,
                Action::Write(..) | Action::Append(..) | Action::Truncate(_)
            )
        };
        let stores = |a: &Action| matches!(a, Action::Store(..));
        let running = self.nodes[index]
            .threads
            .iter()
            .filter_map(|t| match &t.task {
                Some((
                    Task {
                        program: Program::Call(other, action),
                        ..
                    },
                    _,
                )) if *other == file => Some(action),
                _ => None,
            });
        let mut running =
            running.filter(|a| (stores(a) && writes(&action)) || (writes(a) && stores(&action)));
        match (running.next(), &action) {
            (None, _) => action,
            (Some(_), Action::Store(cell, _)) => Action::Load(*cell),
            (Some(_), _) => Action::ReadCached(0..CELL_COUNT),
        }
    }

    /// Where a call begins.
    fn begin(&mut self) -> usize {
        (2 + self.number(self.options.begin_count)) % CELL_COUNT
    }

    fn range(&mut self, count_max: usize) -> Range<usize> {
        let start = self.begin();
        let count = self.number(count_max) + 1;
        start..(start + count).min(CELL_COUNT)
    }

    fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.prng.below(below as u64)).expect("below a usize")
    }
}
