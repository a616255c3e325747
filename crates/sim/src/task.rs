//! Threads inside a node's kernel: system calls of applications, and notifications.
//!
//! A task is a program that is stepped; a step either does one thing that the kernel does at once, or finds itself
//! blocked on a lock, a folio or an answer. Everything it may be blocked on is looked at again, never signalled, so
//! the scheduler is free to take any order.

mod names;

use std::ops::Range;

use stdx::Prng;
use types::Errno;

use crate::kernel::{Dentry, Folio, Kernel};
use crate::model::{
    Action, Answer, Ask, Attributes, CELL_COUNT, NAME_COUNT, PAGE_CELLS, PAGE_COUNT, Value,
};

/// How far a step got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Waits for something.
    Blocked,
    /// Did something.
    Progress,
    /// Nothing is left to do.
    Done,
}

/// What the caller learns in the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It worked on these cells (an append).
    At(usize),
    /// It had nothing to do (a store behind the end).
    Nothing,
    /// EIO: it may have worked.
    Failed,
    /// EINTR: it had no effect.
    Interrupted,
    /// The names were not as it needs, or there was no room: it had no effect.
    Refused(Errno),
}

/// What a task runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Program {
    /// A system call on a file.
    Call(usize, Action),
    /// INVAL_INODE of pages of a file.
    NotifyPages(usize, Range<usize>),
    /// INVAL_ENTRY of every name.
    NotifyEntries,
    /// INVAL_ENTRY of one name.
    NotifyEntry(usize),
}

/// What surrounds a step.
#[derive(Debug)]
pub struct Context<'a> {
    /// Tick.
    pub now: u64,
    /// Draws.
    pub prng: &'a mut Prng,
    /// Of a hundred invalidations of a folio by a notification, how many fail (-EBUSY).
    pub busy_percent: u64,
    /// Pages that read-ahead adds at most.
    pub read_ahead: usize,
}

/// A part of a program that waits by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Frame {
    /// invalidate_inode_pages2_range.
    Invalidate {
        page: usize,
        end: usize,
        is_locked: bool,
        may_fail: bool,
    },
    /// filemap_write_and_wait_range.
    Clean { page: usize, end: usize },
    /// truncate_pagecache to this many cells.
    Cut { page: usize, size: usize },
    /// read_folio: its request, once sent.
    Fault { page: usize, request: Option<u64> },
    /// GETATTR: its request and the version at its start.
    GetAttr { request: Option<(u64, u64)> },
}

/// One thread.
#[derive(Debug)]
pub struct Task {
    /// What it runs.
    pub program: Program,
    /// Cells read; `None` where the model does not judge.
    pub result: Vec<Option<Value>>,
    /// How it ended.
    pub outcome: Outcome,
    file: usize,
    pc: u8,
    at: usize,
    frames: Vec<Frame>,
    request: u64,
    start_epoch: u64,
    start_version: u64,
    is_exclusive: bool,
    is_waiting: bool,
    is_size_uncertain: bool,
}

impl Task {
    /// A task at its start.
    pub fn new(program: Program) -> Self {
        let file = match &program {
            Program::Call(file, _) | Program::NotifyPages(file, _) => *file,
            Program::NotifyEntries | Program::NotifyEntry(_) => 0,
        };
        Self {
            program,
            result: Vec::new(),
            outcome: Outcome::Done,
            file,
            pc: 0,
            at: 0,
            frames: Vec::new(),
            request: 0,
            start_epoch: 0,
            start_version: 0,
            is_exclusive: false,
            is_waiting: false,
            is_size_uncertain: false,
        }
    }

    /// For dumps: where it stands.
    pub fn describe(&self) -> String {
        let Self {
            program,
            pc,
            frames,
            request,
            ..
        } = self;
        format!("{program:?} at {pc}, frames {frames:?}, request {request}")
    }

    /// One step.
    pub fn step(&mut self, kernel: &mut Kernel, context: &mut Context<'_>) -> Step {
        if let Some(frame) = self.frames.pop() {
            return self.step_frame(frame, kernel, context);
        }
        match self.program.clone() {
            Program::Call(_, action) => self.step_call(&action, kernel, context),
            Program::NotifyPages(file, pages) => {
                if self.next_pc() == 0 {
                    kernel.drop_attributes(file);
                    self.invalidate(pages, true);
                    return Step::Progress;
                }
                Step::Done
            }
            Program::NotifyEntry(name) => {
                if !kernel.directory.try_write(&mut self.is_waiting) {
                    return Step::Blocked;
                }
                kernel.dentries[name] = None;
                kernel.directory.write_unlock();
                Step::Done
            }
            Program::NotifyEntries => {
                if self.at == NAME_COUNT {
                    return Step::Done;
                }
                if !kernel.directory.try_write(&mut self.is_waiting) {
                    return Step::Blocked;
                }
                kernel.dentries[self.at] = None;
                kernel.directory.write_unlock();
                self.at += 1;
                Step::Progress
            }
        }
    }

    fn step_call(
        &mut self,
        action: &Action,
        kernel: &mut Kernel,
        context: &mut Context<'_>,
    ) -> Step {
        match action {
            Action::ReadCached(cells) | Action::Splice(cells) => {
                let is_splice = matches!(action, Action::Splice(_));
                self.step_read(cells, is_splice, kernel, context)
            }
            Action::ReadDirect(cells) => self.step_read_direct(cells, kernel),
            Action::Write(cells, value) => {
                self.step_write(cells.clone(), *value, false, kernel, context)
            }
            Action::Append(count, value) => {
                self.step_write(0..*count, *value, true, kernel, context)
            }
            Action::Truncate(size) => self.step_truncate(*size, kernel, context),
            Action::Load(cell) => self.step_load(*cell, kernel),
            Action::Store(cell, value) => self.step_store(*cell, *value, kernel),
            Action::Msync => {
                if self.next_pc() == 0 {
                    self.frames.push(Frame::Clean {
                        page: 0,
                        end: PAGE_COUNT,
                    });
                    return Step::Progress;
                }
                Step::Done
            }
            Action::Stat => {
                if self.next_pc() == 0 {
                    if context.now >= kernel.files[self.file].valid_until {
                        self.frames.push(Frame::GetAttr { request: None });
                    }
                    return Step::Progress;
                }
                Step::Done
            }
            Action::Lookup(name) => self.step_lookup(*name, kernel, context),
            Action::Bind(name, value) => self.step_bind(*name, *value, kernel, context),
            Action::Fsync => self.step_fsync(kernel),
            Action::Create(_) | Action::Remove(_) | Action::Move(..) => {
                self.step_change(action, kernel, context)
            }
        }
    }

    /// filemap_read; with `is_splice` as filemap_splice_read does it, without a look at the attributes.
    fn step_read(
        &mut self,
        cells: &Range<usize>,
        is_splice: bool,
        kernel: &mut Kernel,
        context: &mut Context<'_>,
    ) -> Step {
        if self.pc == 0 {
            self.pc = 1;
            self.at = cells.start;
            if !is_splice && context.now >= kernel.files[self.file].valid_until {
                self.frames.push(Frame::GetAttr { request: None });
            }
            return Step::Progress;
        }
        let inode = &mut kernel.files[self.file];
        let behind = (!is_splice && !self.is_size_uncertain).then_some(0);
        if self.at >= cells.end || self.at >= inode.size {
            self.result.resize(cells.len(), behind);
            return Step::Done;
        }
        let page = self.at / PAGE_CELLS;
        match inode.folios.get(&page) {
            Some(folio) if folio.is_uptodate => {
                let end = cells.end.min((page + 1) * PAGE_CELLS);
                for cell in self.at..end {
                    let value = (cell < inode.size).then(|| folio.data[cell % PAGE_CELLS]);
                    self.result.push(value.or(behind));
                }
                self.at = end;
                Step::Progress
            }
            Some(folio) if folio.is_locked => Step::Blocked,
            Some(_) => {
                self.frames.push(Frame::Fault {
                    page,
                    request: None,
                });
                Step::Progress
            }
            None => {
                let extra = usize::try_from(context.prng.below(context.read_ahead as u64 + 1))
                    .expect("a few pages");
                let last = cells.end.div_ceil(PAGE_CELLS).max(page + 1) + extra;
                let last = last.min(inode.size.div_ceil(PAGE_CELLS)).max(page + 1);
                let end = (page..last)
                    .find(|p| inode.folios.contains_key(p))
                    .unwrap_or(last);
                for missing in page..end {
                    inode.folios.insert(
                        missing,
                        Folio {
                            is_locked: true,
                            ..Folio::default()
                        },
                    );
                }
                kernel.send(self.file, Ask::Read(page..end));
                Step::Progress
            }
        }
    }

    fn step_read_direct(&mut self, cells: &Range<usize>, kernel: &mut Kernel) -> Step {
        match self.pc {
            0 => {
                self.pc = 1;
                self.clean(cells);
            }
            1 => {
                self.pc = 2;
                self.request = kernel.send(self.file, Ask::DirectRead(cells.clone()));
            }
            _ => match kernel.answers.remove(&self.request) {
                None => return Step::Blocked,
                Some(Answer::Data(data)) => {
                    self.result = data.into_iter().map(Some).collect();
                    return Step::Done;
                }
                Some(_) => return self.fail(),
            },
        }
        Step::Progress
    }

    /// fuse_direct_write_iter: i_rwsem, launder, drop, WRITE, drop again.
    fn step_write(
        &mut self,
        cells: Range<usize>,
        value: Value,
        append: bool,
        kernel: &mut Kernel,
        context: &mut Context<'_>,
    ) -> Step {
        let inode = &mut kernel.files[self.file];
        match self.pc {
            0 => {
                self.is_exclusive |= append || cells.end > inode.size || self.is_waiting;
                self.is_exclusive |= context.prng.chance(1, 4);
                let has_lock = if self.is_exclusive {
                    inode.rwsem.try_write(&mut self.is_waiting)
                } else {
                    inode.rwsem.try_read()
                };
                if !has_lock {
                    return Step::Blocked;
                }
                self.at = if append { inode.size } else { cells.start };
                self.pc = 1;
                let guess = self.guess(&cells);
                self.clean(&guess);
            }
            1 => {
                self.pc = 2;
                let guess = self.guess(&cells);
                self.invalidate(pages_of(&guess), false);
            }
            2 => {
                self.pc = 3;
                let cells = self.at..self.at + cells.len();
                self.request = kernel.send(
                    self.file,
                    Ask::Write {
                        cells,
                        value,
                        append,
                    },
                );
            }
            3 => {
                match kernel.answers.remove(&self.request) {
                    None => return Step::Blocked,
                    Some(Answer::Written(at)) => {
                        self.outcome = Outcome::At(at);
                        kernel.drop_attributes(self.file);
                        let inode = &mut kernel.files[self.file];
                        inode.size = inode.size.max((self.at + cells.len()).min(CELL_COUNT));
                    }
                    Some(Answer::Interrupted) => self.outcome = Outcome::Nothing,
                    Some(Answer::Refused(errno)) => self.outcome = Outcome::Refused(errno),
                    Some(_) => self.outcome = Outcome::Failed,
                }
                self.pc = 4;
                let guess = self.guess(&cells);
                self.invalidate(pages_of(&guess), false);
            }
            _ => {
                if self.is_exclusive {
                    inode.rwsem.write_unlock();
                } else {
                    inode.rwsem.read_unlock();
                }
                return Step::Done;
            }
        }
        Step::Progress
    }

    fn step_truncate(&mut self, size: usize, kernel: &mut Kernel, context: &Context<'_>) -> Step {
        let inode = &mut kernel.files[self.file];
        match self.pc {
            0 => {
                if !inode.rwsem.try_write(&mut self.is_waiting) {
                    return Step::Blocked;
                }
                inode.nowrite += 1;
                self.pc = 1;
            }
            1 => {
                if inode.writeback_count > 0 {
                    return Step::Blocked;
                }
                self.pc = 2;
                self.request = kernel.send(self.file, Ask::SetSize(size));
            }
            2 => {
                let Some(answer) = kernel.answers.remove(&self.request) else {
                    return Step::Blocked;
                };
                self.pc = 4;
                match answer {
                    Answer::Attributes(attributes) => {
                        inode.version += 1;
                        inode.size = attributes.size;
                        inode.mtime = attributes.mtime;
                        inode.valid_until = context.now + attributes.timeout;
                        self.frames.push(Frame::Cut {
                            page: 0,
                            size: attributes.size,
                        });
                        self.pc = 3;
                    }
                    Answer::Interrupted => self.outcome = Outcome::Interrupted,
                    Answer::Data(_)
                    | Answer::Written(_)
                    | Answer::Entry { .. }
                    | Answer::Done
                    | Answer::Refused(_)
                    | Answer::Failed => {
                        self.outcome = Outcome::Failed;
                    }
                }
                kernel.release_nowrite(self.file);
            }
            3 => {
                self.pc = 4;
                self.invalidate(0..PAGE_COUNT, false);
            }
            _ => {
                inode.rwsem.write_unlock();
                return Step::Done;
            }
        }
        Step::Progress
    }

    fn step_load(&mut self, cell: usize, kernel: &mut Kernel) -> Step {
        let inode = &kernel.files[self.file];
        if cell >= inode.size {
            self.result = vec![None];
            return Step::Done;
        }
        match inode.folios.get(&(cell / PAGE_CELLS)) {
            Some(folio) if folio.is_uptodate => {
                self.result = vec![Some(folio.data[cell % PAGE_CELLS])];
                Step::Done
            }
            _ => self.fault(cell / PAGE_CELLS),
        }
    }

    /// A store: page_mkwrite takes the folio's lock and waits for write-back, and asks nobody.
    fn step_store(&mut self, cell: usize, value: Value, kernel: &mut Kernel) -> Step {
        let inode = &mut kernel.files[self.file];
        if cell >= inode.size {
            self.outcome = Outcome::Nothing;
            return Step::Done;
        }
        match inode.folios.get_mut(&(cell / PAGE_CELLS)) {
            Some(folio) if folio.is_uptodate => {
                if folio.is_locked || folio.is_writeback {
                    return Step::Blocked;
                }
                folio.data[cell % PAGE_CELLS] = value;
                folio.is_dirty = true;
                Step::Done
            }
            _ => self.fault(cell / PAGE_CELLS),
        }
    }

    fn step_lookup(&mut self, name: usize, kernel: &mut Kernel, context: &mut Context<'_>) -> Step {
        match self.pc {
            0 => {
                if let Some(dentry) = kernel.dentries[name]
                    && context.now < dentry.valid_until
                    && dentry.epoch == kernel.epoch
                {
                    self.result = vec![Some(dentry.value)];
                    return Step::Done;
                }
                // A name that is cached is revalidated without the lock, a new one is looked up under it.
                self.is_exclusive = kernel.dentries[name].is_none();
                if self.is_exclusive && !kernel.directory.try_read() {
                    return Step::Blocked;
                }
                self.start_epoch = kernel.epoch;
                self.start_version = kernel.files[self.file].version;
                self.request = kernel.send(self.file, Ask::Lookup(name));
                self.pc = 1;
            }
            1 => {
                match kernel.answers.remove(&self.request) {
                    None => return Step::Blocked,
                    Some(Answer::Entry {
                        value,
                        timeout,
                        attributes,
                    }) => {
                        // Revalidation confirms the dentry or drops it; only a lookup under the lock makes one.
                        let now = kernel.dentries[name].map(|d| d.value);
                        if !self.is_exclusive && now != Some(value) {
                            kernel.dentries[name] = None;
                            self.pc = 0;
                            return Step::Progress;
                        }
                        self.result = vec![Some(value)];
                        self.instantiate(name, value, timeout, kernel, context);
                        if let Some(attributes) = attributes {
                            let version = self.start_version;
                            self.apply(attributes, version, kernel, context.now);
                        }
                    }
                    Some(_) => self.outcome = Outcome::Failed,
                }
                self.pc = 2;
            }
            _ => {
                if self.is_exclusive {
                    kernel.directory.read_unlock();
                }
                return Step::Done;
            }
        }
        Step::Progress
    }

    fn step_bind(
        &mut self,
        name: usize,
        value: Value,
        kernel: &mut Kernel,
        context: &Context<'_>,
    ) -> Step {
        match self.pc {
            0 => {
                if !kernel.directory.try_write(&mut self.is_waiting) {
                    return Step::Blocked;
                }
                self.start_epoch = kernel.epoch;
                self.request = kernel.send(self.file, Ask::Bind(name, value));
                self.pc = 1;
            }
            _ => {
                match kernel.answers.remove(&self.request) {
                    None => return Step::Blocked,
                    Some(Answer::Entry { value, timeout, .. }) => {
                        self.instantiate(name, value, timeout, kernel, context);
                    }
                    Some(_) => self.outcome = Outcome::Failed,
                }
                kernel.directory.write_unlock();
                return Step::Done;
            }
        }
        Step::Progress
    }

    fn instantiate(
        &self,
        name: usize,
        value: Value,
        timeout: u64,
        kernel: &mut Kernel,
        context: &Context<'_>,
    ) {
        let epoch = self.start_epoch;
        let valid_until = context.now + timeout;
        kernel.dentries[name] = Some(Dentry {
            value,
            valid_until,
            epoch,
        });
    }

    /// fuse_change_attributes with AUTO_INVAL_DATA.
    fn apply(&mut self, new: Attributes, version: u64, kernel: &mut Kernel, now: u64) {
        let inode = &mut kernel.files[self.file];
        if inode.version > version {
            self.is_size_uncertain = true;
            return;
        }
        let is_changed = inode.size != new.size || inode.mtime != new.mtime;
        inode.size = new.size;
        inode.mtime = new.mtime;
        inode.valid_until = now + new.timeout;
        if is_changed {
            self.invalidate(0..PAGE_COUNT, false);
        }
    }

    fn step_frame(&mut self, frame: Frame, kernel: &mut Kernel, context: &mut Context<'_>) -> Step {
        match frame {
            Frame::Invalidate {
                page,
                end,
                is_locked,
                may_fail,
            } => {
                if page >= end {
                    return Step::Progress;
                }
                let is_busy = may_fail && context.prng.chance(context.busy_percent, 100);
                let (next, is_locked, step) =
                    invalidate_step(kernel, (self.file, page), is_locked, is_busy);
                self.frames.push(Frame::Invalidate {
                    page: next,
                    end,
                    is_locked,
                    may_fail,
                });
                step
            }
            Frame::Clean { page, end } => {
                if page >= end {
                    return Step::Progress;
                }
                let (next, step) = clean_step(kernel, self.file, page);
                self.frames.push(Frame::Clean { page: next, end });
                step
            }
            Frame::Cut { page, size } => {
                if page >= PAGE_COUNT {
                    return Step::Progress;
                }
                let (next, step) = cut_step(kernel, (self.file, page), size);
                self.frames.push(Frame::Cut { page: next, size });
                step
            }
            Frame::Fault { page, request } => self.step_fault(page, request, kernel),
            Frame::GetAttr { request: None } => {
                let version = kernel.files[self.file].version;
                let id = kernel.send(self.file, Ask::GetAttr);
                self.frames.push(Frame::GetAttr {
                    request: Some((id, version)),
                });
                Step::Progress
            }
            Frame::GetAttr {
                request: Some((id, version)),
            } => {
                match kernel.answers.remove(&id) {
                    None => {
                        self.frames.push(frame);
                        return Step::Blocked;
                    }
                    Some(Answer::Attributes(new)) => self.apply(new, version, kernel, context.now),
                    Some(_) => return self.fail(),
                }
                Step::Progress
            }
        }
    }

    /// read_folio: one page, and an error reaches the caller.
    fn step_fault(&mut self, page: usize, request: Option<u64>, kernel: &mut Kernel) -> Step {
        let inode = &mut kernel.files[self.file];
        let folio = inode.folios.entry(page).or_default();
        if let Some(id) = request {
            if kernel.in_flight.contains_key(&id) {
                self.frames.push(Frame::Fault { page, request });
                return Step::Blocked;
            }
            return if kernel.failed_reads.remove(&id) {
                self.fail()
            } else {
                Step::Progress
            };
        }
        if folio.is_uptodate {
            return Step::Progress;
        }
        if folio.is_locked {
            self.frames.push(Frame::Fault { page, request });
            return Step::Blocked;
        }
        folio.is_locked = true;
        let id = kernel.send(self.file, Ask::Read(page..page + 1));
        self.frames.push(Frame::Fault {
            page,
            request: Some(id),
        });
        Step::Progress
    }

    fn fault(&mut self, page: usize) -> Step {
        self.frames.push(Frame::Fault {
            page,
            request: None,
        });
        Step::Progress
    }

    fn clean(&mut self, cells: &Range<usize>) {
        let pages = pages_of(cells);
        self.frames.push(Frame::Clean {
            page: pages.start,
            end: pages.end,
        });
    }

    fn invalidate(&mut self, pages: Range<usize>, may_fail: bool) {
        self.frames.push(Frame::Invalidate {
            page: pages.start,
            end: pages.end,
            is_locked: false,
            may_fail,
        });
    }

    fn guess(&self, cells: &Range<usize>) -> Range<usize> {
        self.at.min(CELL_COUNT)..(self.at + cells.len()).min(CELL_COUNT)
    }

    fn fail(&mut self) -> Step {
        self.outcome = Outcome::Failed;
        self.result.clear();
        Step::Done
    }

    fn next_pc(&mut self) -> u8 {
        self.pc += 1;
        self.pc - 1
    }
}

fn pages_of(cells: &Range<usize>) -> Range<usize> {
    cells.start / PAGE_CELLS..cells.end.div_ceil(PAGE_CELLS)
}

/// One step of invalidating a folio: the page to go on with, whether its lock is ours, and what happened.
fn invalidate_step(
    kernel: &mut Kernel,
    (file, page): (usize, usize),
    is_locked: bool,
    is_busy: bool,
) -> (usize, bool, Step) {
    let inode = &mut kernel.files[file];
    let Some(folio) = inode.folios.get_mut(&page) else {
        return (page + 1, false, Step::Progress);
    };
    if !is_locked {
        if folio.is_locked {
            return (page, false, Step::Blocked);
        }
        folio.is_locked = true;
        return (page, true, Step::Progress);
    }
    if folio.is_writeback {
        return (page, true, Step::Blocked);
    }
    if folio.is_dirty {
        kernel.write_back(file, page);
        return (page, true, Step::Progress);
    }
    if is_busy && !folio.was_busy && folio.is_uptodate {
        folio.was_busy = true;
        folio.is_locked = false;
    } else {
        inode.folios.remove(&page);
    }
    (page + 1, false, Step::Progress)
}

fn clean_step(kernel: &mut Kernel, file: usize, page: usize) -> (usize, Step) {
    let Some(folio) = kernel.files[file].folios.get(&page) else {
        return (page + 1, Step::Progress);
    };
    if folio.is_writeback || (folio.is_dirty && folio.is_locked) {
        return (page, Step::Blocked);
    }
    if folio.is_dirty {
        kernel.write_back(file, page);
        return (page, Step::Progress);
    }
    (page + 1, Step::Progress)
}

fn cut_step(kernel: &mut Kernel, (file, page): (usize, usize), size: usize) -> (usize, Step) {
    let inode = &mut kernel.files[file];
    let Some(folio) = inode.folios.get_mut(&page) else {
        return (page + 1, Step::Progress);
    };
    if (page + 1) * PAGE_CELLS <= size {
        return (page + 1, Step::Progress);
    }
    if folio.is_locked || folio.is_writeback {
        return (page, Step::Blocked);
    }
    if page * PAGE_CELLS >= size {
        inode.folios.remove(&page);
    } else {
        folio.data[size % PAGE_CELLS..].fill(0);
    }
    (page + 1, Step::Progress)
}
