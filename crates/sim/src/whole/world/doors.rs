//! Files that applications of a node close and open again, and what their kernel is given meanwhile: a file that nobody has open may be put into
//! the page cache before it is opened (`client`'s `fill`).
//!
//! What is judged: what is read there afterwards, as any other read.

use client::Filled;
use client::request::{Handle, OpenFlags, Operation, Response, Ticket};
use types::{InodeId, Name, Span};

use super::super::front::{CELL_BYTES, cells_of, gather};
use super::{Machine, Power, Program, World};
use crate::kernel::KernelFile;
use crate::model::{Action, CELL_COUNT, PAGE_CELLS, Value};

/// One in so many chances an idle file is closed, and a closed one opened.
const CLOSE_ODDS: u64 = 8;
const OPEN_ODDS: u64 = 20;
/// One in so many chances a kernel goes on with a fill.
const FILL_ODDS: u64 = 60;

/// How the applications of a node have a file open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Door {
    /// For everything.
    #[default]
    Open,
    /// Not at all.
    Closed,
    /// Not at all, and the kernel has forgotten it.
    Forgotten,
    /// It is being looked up; whether it is opened for writing at once.
    Looking(Ticket, bool),
    /// These opens are on their way: of the reader, of the writer.
    Opening(Option<Ticket>, Option<Ticket>),
    /// For reading.
    Reading,
}

/// Bytes on their way into a page cache.
#[derive(Debug)]
pub(super) struct Filling {
    ino: InodeId,
    /// One of the kernel model's.
    file: Option<usize>,
    cells: Vec<Value>,
    spans: Vec<Span>,
    /// The next page, and where it ends.
    page: usize,
    page_end: usize,
}

impl World {
    /// A node wants the bytes of a file put into its kernel.
    pub(super) fn fill_begins(&mut self, index: usize, ino: InodeId, spans: Vec<Span>) {
        let machine = &mut self.machines[index];
        let file = machine.front.file_of(ino);
        let mut bytes = gather(&spans, &machine.node.memory);
        // The model ends there.
        bytes.truncate(CELL_COUNT * CELL_BYTES);
        let cells = match file {
            Some(_) => cells_of(&bytes, CELL_COUNT),
            None => Ok(Vec::new()),
        };
        self.fill_count += 1;
        match cells {
            Ok(mut cells) => {
                cells.truncate(bytes.len().div_ceil(CELL_BYTES));
                // Now and then there is no memory for the rest.
                let page_count = cells.len().div_ceil(PAGE_CELLS);
                let is_short = self.prng.chance(1, 8);
                let page_end = match is_short {
                    true => self.number(page_count + 1),
                    false => page_count,
                };
                self.machines[index].fillings.push(Filling {
                    ino,
                    file,
                    cells,
                    spans,
                    page: 0,
                    page_end,
                });
            }
            Err(text) => self.fail(format!("node {index}: fill of {ino:?}: {text}")),
        }
    }

    /// The kernel takes a page of one of them, or returns from it.
    pub(super) fn act_filling(&mut self, index: usize) -> bool {
        let machine = &mut self.machines[index];
        // Its thread may stand still.
        if machine.fillings.is_empty() || !self.prng.chance(1, FILL_ODDS) {
            return false;
        }
        let pick = self.prng.below(machine.fillings.len() as u64);
        let pick = usize::try_from(pick).expect("an index");
        let filling = &mut machine.fillings[pick];
        if let Some(file) = filling.file
            && filling.page < filling.page_end
        {
            let cells = &filling.cells;
            let is_taken = machine.kernel.fill_page(file, filling.page, cells);
            filling.page += usize::from(is_taken);
            return is_taken;
        }
        let filling = machine.fillings.swap_remove(pick);
        let ino = filling.ino;
        let is_whole = filling.page_end * PAGE_CELLS >= filling.cells.len();
        let filled = match filling.page_end {
            _ if is_whole => Filled::Whole,
            0 if self.prng.chance(1, 2) => Filled::Nothing,
            _ => Filled::Some,
        };
        machine.node.filled(ino, &filling.spans, filled);
        self.note(|| format!("node {index}: {ino:?} is filled"));
        true
    }

    /// Somebody closes a file or opens it again, or has it open now.
    pub(super) fn act_door(&mut self, index: usize) -> bool {
        let file = self.number(self.options.file_count);
        let machine = &mut self.machines[index];
        if !machine.has_files() {
            return false;
        }
        match machine.doors[file] {
            Door::Open => {
                // Where pages cannot be read an open may fail.
                let may_close = self.options.page_outage_ticks == 0 && self.may_begin;
                let may_close = may_close && machine.is_resting(file);
                if !may_close || !self.prng.chance(1, CLOSE_ODDS) {
                    return false;
                }
                self.close_file(index, file);
            }
            Door::Closed | Door::Reading => {
                if !self.prng.chance(1, OPEN_ODDS) {
                    return false;
                }
                let is_closed = self.machines[index].doors[file] == Door::Closed;
                let is_both = is_closed && self.prng.chance(1, 4);
                self.open_file(index, file, is_closed, is_both || !is_closed);
            }
            Door::Forgotten => {
                if !self.prng.chance(1, OPEN_ODDS) {
                    return false;
                }
                let is_both = self.prng.chance(1, 4);
                self.look_up_file(index, file, is_both);
            }
            Door::Looking(ticket, is_both) => {
                let machine = &mut self.machines[index];
                let Some(response) = machine.own_answers.remove(&ticket) else {
                    return false;
                };
                match response {
                    Response::Entry(Some(entry), _)
                        if entry.attr.ino == machine.front.files[file].ino =>
                    {
                        self.open_file(index, file, true, is_both);
                    }
                    other => self.fail(format!("node {index}: {other:?} of file {file}")),
                }
            }
            Door::Opening(reader, writer) => {
                let reader = reader.filter(|ticket| !self.take_opened(index, file, *ticket, false));
                let writer = writer.filter(|ticket| !self.take_opened(index, file, *ticket, true));
                let machine = &mut self.machines[index];
                let before = machine.doors[file];
                let has_writer = machine.front.files[file].writer != Handle(0);
                machine.doors[file] = match (reader, writer) {
                    (None, None) if has_writer => Door::Open,
                    (None, None) => Door::Reading,
                    _ => Door::Opening(reader, writer),
                };
                return machine.doors[file] != before;
            }
        }
        true
    }

    fn close_file(&mut self, index: usize, file: usize) {
        let machine = &mut self.machines[index];
        let open = &mut machine.front.files[file];
        let ino = open.ino;
        for handle in [
            std::mem::replace(&mut open.reader, Handle(0)),
            std::mem::replace(&mut open.writer, Handle(0)),
        ] {
            let request = machine.front.own(Operation::Release { ino, handle });
            machine.node.request(request);
        }
        machine.doors[file] = Door::Closed;
        if self.prng.chance(1, 2) && machine.may_forget(file) {
            machine.doors[file] = Door::Forgotten;
            machine.kernel.files[file] = KernelFile::default();
            let count = u64::MAX;
            let request = machine.front.own(Operation::Forget { ino, count });
            machine.node.request(request);
        }
        self.note(|| format!("node {index}: file {file} is closed"));
    }

    fn look_up_file(&mut self, index: usize, file: usize, is_both: bool) {
        let machine = &mut self.machines[index];
        let request = machine.front.own(Operation::Lookup {
            parent: machine.front.directory,
            name: Name::new(format!("f{file}").as_bytes()).expect("a name"),
        });
        machine.doors[file] = Door::Looking(request.ticket, is_both);
        machine.node.request(request);
    }

    fn open_file(&mut self, index: usize, file: usize, reads: bool, writes: bool) {
        let machine = &mut self.machines[index];
        let ino = machine.front.files[file].ino;
        let mut open = |write| {
            let flags = OpenFlags {
                read: true,
                write,
                ..OpenFlags::default()
            };
            let request = machine.front.own(Operation::Open { ino, flags });
            let ticket = request.ticket;
            machine.node.request(request);
            ticket
        };
        let tickets = (reads.then(|| open(false)), writes.then(|| open(true)));
        machine.doors[file] = Door::Opening(tickets.0, tickets.1);
        self.note(|| format!("node {index}: file {file} is opened ({reads}, {writes})"));
    }

    /// Takes the answer to an open, if there is one.
    fn take_opened(&mut self, index: usize, file: usize, ticket: Ticket, write: bool) -> bool {
        let machine = &mut self.machines[index];
        let Some(response) = machine.own_answers.remove(&ticket) else {
            return false;
        };
        match response {
            Response::Opened(opened) if write => {
                machine.front.files[file].writer = opened.handle;
            }
            Response::Opened(opened) => machine.front.files[file].reader = opened.handle,
            other => self.fail(format!(
                "node {index}: {other:?} of the open of file {file}"
            )),
        }
        self.last_finished = self.now;
        true
    }

    /// All files are open everywhere, as the end of a run needs it.
    pub(super) fn open_doors(&mut self) {
        self.last_finished = self.now;
        for index in 0..self.machines.len() {
            for file in 0..self.options.file_count {
                while self.violation.is_none() && self.machines[index].doors[file] != Door::Open {
                    if !self.act_door(index) {
                        self.step();
                    }
                }
            }
        }
    }

    /// What a call may do to a file as it is open.
    pub(super) fn as_open(&self, index: usize, file: usize, action: Action) -> Action {
        let is_of_names = matches!(
            action,
            Action::Lookup(_)
                | Action::Bind(..)
                | Action::Create(_)
                | Action::Remove(_)
                | Action::Move(..)
        );
        if is_of_names {
            return action;
        }
        match (self.machines[index].doors[file], action) {
            (Door::Open, action) => action,
            (Door::Forgotten | Door::Looking(..), _) => Action::Lookup(0),
            (_, action @ (Action::Truncate(_) | Action::Stat)) => action,
            (
                Door::Reading,
                action @ (Action::ReadCached(_) | Action::Splice(_) | Action::Load(_)),
            ) => action,
            // What looks at the attributes drops what is older by that.
            (Door::Reading, _) if self.options.has_splice => Action::Splice(0..CELL_COUNT),
            (Door::Reading, _) => Action::ReadCached(0..CELL_COUNT),
            (Door::Closed | Door::Opening(..), _) => Action::Stat,
        }
    }
}

impl Machine {
    /// Somebody may have a file mapped for writing.
    pub(super) fn may_store(&self, file: usize) -> bool {
        self.doors[file] == Door::Open
    }

    /// No notification is at work on a file, nor holds a fill its inode.
    fn may_forget(&self, file: usize) -> bool {
        let is_of_it =
            |program: &Program| matches!(program, Program::NotifyPages(of, _) if *of == file);
        let mut notifying = self.notifying.iter();
        !notifying.any(|n| is_of_it(&n.task.program))
            && !self
                .fillings
                .iter()
                .any(|f| f.file == Some(file) && f.page > 0)
    }

    /// Nobody does anything with a file, and its kernel has nothing to write.
    fn is_resting(&self, file: usize) -> bool {
        let is_of_it = |program: &Program| matches!(program, Program::Call(of, _) if *of == file);
        let mut tasks = self.threads.iter().filter_map(|t| t.task.as_ref());
        let is_used = tasks.any(|(task, _)| is_of_it(&task.program));
        let is_asking = self.kernel.in_flight.values().any(|r| r.file == file);
        let folios = &self.kernel.files[file].folios;
        let is_written = folios.values().any(|f| f.is_dirty || f.is_writeback);
        matches!(self.power, Power::On) && !is_used && !is_asking && !is_written
    }
}
