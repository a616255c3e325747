//! What calls saw and did, for the checkers.

use super::super::boot;
use super::super::directory::Access as NameAccess;
use super::{Append, Crash, Errno, Outcome, Program, Task, World};
use crate::history::Access;
use crate::model::{Action, CELL_COUNT, CELL_SIZE, Value};
use client::slice::slice_of;
use store::tree::Fetch;

impl World {
    /// Notes what a call saw and did.
    pub(super) fn record(&mut self, who: usize, task: &Task, start: u64) {
        let Program::Call(file, action) = &task.program else {
            unreachable!("threads make calls");
        };
        let file = *file;
        let end = self.step_count;
        let has_failed = task.outcome == Outcome::Failed;
        let known = (start, (!has_failed).then_some(end));
        let seen = (start, Some(end));
        if matches!(action, Action::Write(..) | Action::Append(..))
            && matches!(task.outcome, Outcome::Refused(_))
        {
            // It has no effect: who sees its value sees what nobody wrote.
            return;
        }
        match action {
            Action::ReadDirect(cells) => {
                for (cell, value) in cells.clone().zip(&task.result) {
                    if let Some(value) = value {
                        self.saw((file, cell), *value, seen, who);
                    }
                }
                self.machines[who].last_direct_read = self.step_count;
            }
            Action::ReadCached(cells) | Action::Splice(cells) => {
                for (cell, value) in cells.clone().zip(&task.result) {
                    if let Some(value) = value.filter(|_| !self.is_seen_early(who, file, cell)) {
                        self.saw((file, cell), value, seen, who);
                    }
                }
            }
            Action::Load(cell) => {
                let value = task.result.first().copied().flatten();
                if let Some(value) = value.filter(|_| !self.is_seen_early(who, file, *cell)) {
                    self.saw((file, *cell), value, seen, who);
                }
            }
            Action::Write(cells, value) => {
                for cell in cells.clone() {
                    let access = Access::Write(*value);
                    self.history.add((file, cell), access, known, who);
                }
            }
            Action::Append(count, value) if task.outcome != Outcome::Nothing => {
                self.appends.push(Append {
                    file,
                    value: *value,
                    count: *count,
                    span: known,
                    who,
                });
            }
            Action::Truncate(size) if task.outcome != Outcome::Interrupted => {
                for cell in *size..CELL_COUNT {
                    self.history.add((file, cell), Access::Write(0), known, who);
                }
            }
            Action::Store(cell, value) if task.outcome != Outcome::Nothing => {
                if *cell as u64 * CELL_SIZE >= self.end_known_to(who, file) {
                    // Behind the end, which only this kernel did not know: what is stored there may show or not. So it
                    // is where another node has made the file longer and this one has not heard of it: its kernel
                    // should have refused the store, but goes by an append that it thinks went further.
                    self.history.forget((file, *cell));
                }
                let access = Access::Write(*value);
                self.history.add((file, *cell), access, known, who);
            }
            Action::Lookup(name) => {
                if let Some(Some(value)) = task.result.first() {
                    self.directory
                        .add(NameAccess::Lookup(*name, *value), seen, who);
                }
            }
            Action::Create(_) | Action::Remove(_) | Action::Move(..) => {
                self.record_change(action, task, known, who);
            }
            Action::Fsync => {
                if task.outcome == Outcome::Done {
                    self.syncs.push((who, file, start, end));
                }
            }
            Action::Append(..)
            | Action::Truncate(_)
            | Action::Store(..)
            | Action::Msync
            | Action::Stat => {}
            Action::Bind(..) => unreachable!("not in this world"),
        }
    }

    /// A write of this node that has not returned covers the cell, and a direct read may have seen it: the kernel drops the page once more
    /// only before it returns (docs/tokens.md, "Limits of the kernel"), so what the page cache shows is not judged.
    fn is_seen_early(&self, who: usize, file: usize, cell: usize) -> bool {
        let machine = &self.machines[who];
        machine.threads.iter().any(|thread| {
            let Some((task, begin)) = &thread.task else {
                return false;
            };
            let Program::Call(of, Action::Write(cells, _)) = &task.program else {
                return false;
            };
            *of == file && cells.contains(&cell) && machine.last_direct_read > *begin
        })
    }

    fn record_change(
        &mut self,
        action: &Action,
        task: &Task,
        span: (u64, Option<u64>),
        who: usize,
    ) {
        let access = match (action, task.outcome) {
            (Action::Create(name), Outcome::Refused(Errno::EEXIST)) => NameAccess::Exists(*name),
            (Action::Remove(name) | Action::Move(name, _), Outcome::Refused(Errno::ENOENT)) => {
                NameAccess::Absent(*name)
            }
            (Action::Create(name), Outcome::Done) => {
                let made = task.result.first().copied().flatten();
                NameAccess::Create(*name, made.expect("it was answered with what it made"))
            }
            (Action::Remove(name), Outcome::Done | Outcome::Failed) => NameAccess::Remove(*name),
            (Action::Create(name), Outcome::Failed | Outcome::Refused(Errno::ESTALE)) => {
                NameAccess::CreateSome(*name)
            }
            (Action::Move(from, to), Outcome::Done | Outcome::Failed) => {
                NameAccess::Move(*from, *to)
            }
            (_, outcome) => return self.fail(format!("node {who}: {outcome:?} of {action:?}")),
        };
        self.directory.add(access, span, who);
    }

    /// A cell was read.
    pub(super) fn saw(
        &mut self,
        register: (usize, usize),
        value: Value,
        span: (u64, Option<u64>),
        who: usize,
    ) {
        let seen = self.seen.entry((register.0, value)).or_default();
        seen.insert(register.1);
        self.history.add(register, Access::Read(value), span, who);
    }

    /// Bytes of a file as a node knows them, at most those that it has.
    fn end_known_to(&self, who: usize, file: usize) -> u64 {
        let machine = &self.machines[who];
        let ino = machine.front.files[file].ino;
        let known = machine.node.slices[slice_of(ino)].known_size(ino);
        self.true_size(file).min(known.unwrap_or(0))
    }

    /// Bytes of a file, uncommitted growth included.
    fn true_size(&self, file: usize) -> u64 {
        let ino = self.machines[0].front.files[file].ino;
        // What a node believes that holds no token is of no account.
        let nodes = self.machines.iter().filter(|m| m.is_up());
        let sizes = nodes.filter_map(|m| m.node.slices[slice_of(ino)].size_grown(ino));
        let read = |fetch: &Fetch| boot::read_page(&self.disks, fetch);
        let owned = self.machines.iter();
        let owned = owned.filter_map(|m| m.node.owned_size(ino, &read));
        sizes.chain(owned).max().unwrap_or(0)
    }

    /// An append overwrites nothing: what it wrote was a hole before.
    pub(super) fn record_appends(&mut self) {
        for append in std::mem::take(&mut self.appends) {
            let Append {
                file,
                value,
                count,
                span,
                who,
            } = append;
            let Some(cells) = self.seen.get(&(file, value)).cloned() else {
                continue;
            };
            let (Some(first), Some(last)) = (cells.first(), cells.last()) else {
                continue;
            };
            if last - first >= count {
                let text = format!("an append of {count} cells of {value} was seen at {cells:?}");
                self.fail(text);
            }
            for cell in cells {
                self.history
                    .add((file, cell), Access::Append(value), span, who);
            }
        }
    }

    /// What a crash may have taken back: see `History::lose`, `directory::Access::Lose`.
    fn record_losses(&mut self) {
        for Crash { who, span } in std::mem::take(&mut self.crashes) {
            let syncs = self.syncs.iter();
            let syncs = syncs.filter(|(node, _, _, end)| *node == who && *end < span.0);
            let syncs: Vec<(usize, u64)> =
                syncs.map(|(_, file, start, _)| (*file, *start)).collect();
            self.history.lose(who, span, &syncs);
            // Another owner answers when it is durable.
            if who == self.options.home {
                let span = (span.0, Some(span.1));
                self.directory.add(NameAccess::Lose, span, who);
            }
        }
    }

    /// The checkers' verdict.
    pub(super) fn judge(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.record_appends();
        self.record_losses();
        if let Err(text) = self.history.check() {
            self.fail(text);
        }
        if let Err(text) = self.directory.check() {
            self.fail(text);
        }
    }
}
