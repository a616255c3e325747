//! The end of a run: everything is written back, everybody reads everything, and nothing is in use any more.

use client::request::{Operation, Response};
use client::slice::{Input, SLICE_COUNT};

use super::super::directory::Access;
use super::super::front::name;
use super::super::front::{cells_of, gather};
use super::{Errno, Front, Instant, Kernel, Machine, Network, Program, Task, World};
use crate::model::{Action, CELL_COUNT, CELL_SIZE, NAME_COUNT};

impl World {
    /// Lets the run come to rest and looks for what is left.
    pub(super) fn rest(&mut self) {
        self.end_locks();
        self.end_holds();
        self.open_doors();
        self.sync_mappings();
        self.end_outage();
        self.settle();
        self.read_all();
        self.look_up_all();
        self.settle();
        self.find_orphans();
        self.find_leaks();
        self.compare_space();
        self.compare_trees();
        self.restart_all();
        self.compare_trees();
        self.read_all();
        self.look_up_all();
        self.settle();
        self.find_orphans();
        self.find_leaks();
        self.compare_space();
        self.compare_trees();
        self.give_all_back();
    }

    /// Power fails everywhere at once. All that was written back must be there afterwards.
    pub(super) fn restart_all(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.note(|| "power fails everywhere".to_owned());
        for disk in self.disks.values_mut() {
            disk.lose_power(&mut self.prng);
        }
        self.network = Network::default();
        self.due.clear();
        let view = self.machines[0].node.view.clone();
        for index in 0..self.machines.len() {
            let node = match self.start_node(index, &view) {
                Ok(node) => node,
                Err(text) => return self.fail(format!("node {index}: {text}")),
            };
            self.count_checkpoints(index);
            let machine = &mut self.machines[index];
            machine.node = node;
            machine.node.now = Instant(self.now * 1_000_000);
            machine.kernel = Kernel::new(self.options.file_count);
            machine.front = Front::new();
            machine.own_answers.clear();
            machine.fillings.clear();
        }
        let lives: Vec<_> = self.machines.iter().map(|m| m.node.me).collect();
        for machine in &mut self.machines {
            machine.node.end_former_lives(&lives);
        }
        self.link_all();
        self.open_all();
    }

    /// What was stored through mappings is written back: until then only its own kernel shows it.
    fn sync_mappings(&mut self) {
        for file in 0..self.options.file_count {
            for machine in &mut self.machines {
                if let Some(thread) = machine.threads.first_mut() {
                    let task = Task::new(Program::Call(file, Action::Msync));
                    thread.task = Some((task, self.step_count));
                }
            }
            let is_done = |m: &Machine| m.threads.iter().all(|t| t.task.is_none());
            self.last_finished = self.now;
            while self.violation.is_none() && !self.machines.iter().all(is_done) {
                self.step();
            }
        }
    }

    /// Writes everything back and lets all that is under way end.
    pub(super) fn settle(&mut self) {
        self.last_finished = self.now;
        for machine in &mut self.machines {
            for slice in 0..SLICE_COUNT {
                machine.node.input(slice, Input::WriteBack);
            }
        }
        while self.violation.is_none() && !self.is_quiet() {
            self.step();
        }
    }

    fn is_quiet(&self) -> bool {
        let is_quiet = |m: &Machine| {
            m.unwritten.is_empty()
                && m.notifications.is_empty()
                && m.notifying.is_empty()
                && m.fillings.is_empty()
                && m.kernel.queue.is_empty()
                && m.kernel.in_flight.is_empty()
                && !m.node.is_busy()
                && !m.node.is_dirty()
                && m.node.is_idle()
        };
        self.network.is_quiet() && self.due.is_empty() && self.machines.iter().all(is_quiet)
    }

    /// Every node reads every file.
    fn read_all(&mut self) {
        let length = u32::try_from(CELL_COUNT as u64 * CELL_SIZE).expect("small");
        for index in 0..self.machines.len() {
            for file in 0..self.options.file_count {
                if self.violation.is_some() {
                    return;
                }
                let open = self.machines[index].front.files[file];
                let start = self.step_count;
                let operation = Operation::Read {
                    ino: open.ino,
                    handle: open.writer,
                    offset: 0,
                    length,
                    fills_page_cache: false,
                };
                let cells = match self.own_request(index, operation) {
                    Some(Response::Data(spans)) => {
                        let node = &self.machines[index].node;
                        let bytes = gather(&spans, &node.memory);
                        spans.iter().for_each(|span| node.release(*span));
                        cells_of(&bytes, CELL_COUNT)
                    }
                    response => Err(format!("{response:?}")),
                };
                match cells {
                    Ok(cells) => {
                        let span = (start, Some(self.step_count));
                        for (cell, value) in cells.into_iter().enumerate() {
                            self.saw((file, cell), value, span, index);
                        }
                    }
                    Err(text) => {
                        self.fail(format!("node {index}: the last read of {file}: {text}"))
                    }
                }
            }
        }
    }

    /// Every node looks every name up.
    fn look_up_all(&mut self) {
        for index in 0..self.machines.len() {
            for number in 0..NAME_COUNT {
                if self.violation.is_some() {
                    return;
                }
                let start = self.step_count;
                let operation = Operation::Lookup {
                    parent: self.machines[index].front.parent_of(number),
                    name: name(number),
                };
                let found = match self.own_request(index, operation) {
                    Some(Response::Entry(Some(entry), _)) => entry.attr.ino.raw(),
                    Some(Response::Entry(None, _) | Response::Error(Errno::ENOENT)) => 0,
                    response => {
                        let text = format!("node {index}: {response:?} of the last lookup");
                        return self.fail(text);
                    }
                };
                let span = (start, Some(self.step_count));
                self.directory
                    .add(Access::Lookup(number, found), span, index);
            }
        }
    }

    /// At rest the pagepool holds cached pages only, and no sector is set aside.
    fn find_leaks(&mut self) {
        for index in 0..self.machines.len() {
            let node = &self.machines[index].node;
            let cached: usize = node.slices.iter().map(|s| s.counts().1).sum();
            let used = node.memory.used();
            let reserved = node.hands.with(|hands| hands.reserved());
            if used > cached as u64 {
                self.fail(format!(
                    "node {index}: {used} frames are in use, {cached} of them by cached pages"
                ));
            } else if reserved > 0 {
                self.fail(format!(
                    "node {index}: {reserved} sectors are still reserved"
                ));
            } else if node.has_unflushed() {
                self.fail(format!("node {index}: a store waits for no flush"));
            }
        }
    }
}
