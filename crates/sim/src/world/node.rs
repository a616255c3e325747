//! A node of the world: its kernel, its daemon, and the threads between them.

use types::id::NodeLife;

use super::{World, void_timeout};
use crate::daemon::Daemon;
use crate::history::Access;
use crate::kernel::Kernel;
use crate::model::{Action, Answer};
use crate::options::Options;
use crate::task::{Context, Outcome, Program, Step, Task};

use client::revoke::NotifyId;

/// A thread of an application.
#[derive(Debug)]
pub(super) struct Thread {
    /// The call under way, and the moment of its start.
    pub(super) task: Option<(Task, u64)>,
    /// Calls finished.
    pub(super) call_count: usize,
}

/// A notification being performed.
#[derive(Debug)]
struct Notifying {
    task: Task,
    file: Option<usize>,
    notify: NotifyId,
}

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kernel: Kernel,
    pub(super) daemon: Daemon,
    pub(super) threads: Vec<Thread>,
    /// Writes and appends that are over: file, start and end.
    written: Vec<(usize, u64, u64)>,
    /// Answers made and not written.
    pub(super) unwritten: Vec<(u64, Answer)>,
    /// Notifications asked for and not begun: what to run, the file, and their names.
    pub(super) notifications: Vec<(Program, Option<usize>, NotifyId)>,
    notifying: Vec<Notifying>,
    notify_thread_count: usize,
    request_thread_count: usize,
    has_notify_threads: bool,
}

impl Node {
    pub(super) fn new(daemon: Daemon, options: &Options) -> Self {
        let thread = |_| Thread {
            task: None,
            call_count: 0,
        };
        Self {
            kernel: Kernel::new(options.file_count),
            daemon,
            threads: (0..options.thread_count).map(thread).collect(),
            written: Vec::new(),
            unwritten: Vec::new(),
            notifications: Vec::new(),
            notifying: Vec::new(),
            notify_thread_count: options.notify_thread_count,
            request_thread_count: options.request_thread_count,
            has_notify_threads: options.rules.r1,
        }
    }

    /// Threads, notifications, and: request reader, answer writer, starter of notifications, write-behind.
    pub(super) fn actor_count(&self) -> usize {
        self.threads.len() + self.notifying.len() + 4
    }

    pub(super) fn is_done(&self, call_count: usize) -> bool {
        self.threads
            .iter()
            .all(|t| t.task.is_none() && t.call_count >= call_count)
    }

    /// A thread is between two calls.
    pub(super) fn may_begin(&self, call_count: usize) -> bool {
        self.threads
            .iter()
            .any(|t| t.task.is_none() && t.call_count < call_count)
    }

    /// The start of a read through the page cache, as far as it can be judged. Beside a write(2) of its own node it may see
    /// what was there before, even if somebody has seen the new bytes: a page that was READ between the first drop and the
    /// WRITE stays until the second drop, before the write returns.
    fn read_start(&self, file: usize, start: u64) -> u64 {
        let running = self.threads.iter().filter_map(|thread| {
            let (task, begun) = thread.task.as_ref()?;
            let Program::Call(other, Action::Write(..) | Action::Append(..)) = &task.program else {
                return None;
            };
            (*other == file).then_some(*begun)
        });
        let over = self.written.iter().filter(|w| w.0 == file && w.2 >= start);
        let beside = running.chain(over.map(|w| w.1));
        beside.min().unwrap_or(start).min(start)
    }

    /// The lease lapsed.
    pub(super) fn lapse(&mut self, now: u64, life: NodeLife) -> Vec<(usize, usize)> {
        for (_, answer) in &mut self.unwritten {
            void_timeout(answer);
        }
        self.kernel.answers.values_mut().for_each(void_timeout);
        self.kernel.epoch += 1;
        for file in 0..self.kernel.files.len() {
            self.kernel.drop_attributes(file);
        }
        // Requests for names wait in the daemon; they fail with it.
        let names = self.daemon.name_request_ids();
        let lost = self.daemon.lapse(now, life);
        self.unwritten
            .extend(names.into_iter().map(|id| (id, Answer::Failed)));
        self.notifications.retain(|(_, file, _)| file.is_some());
        lost
    }

    /// Threads that may read requests: without R1 notifications sit on them.
    fn has_reader(&self) -> bool {
        self.has_notify_threads || self.notifying.len() < self.request_thread_count
    }

    fn can_notify(&self) -> bool {
        let limit = if self.has_notify_threads {
            self.notify_thread_count
        } else {
            self.request_thread_count
        };
        !self.notifications.is_empty() && self.notifying.len() < limit
    }

    pub(super) fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for thread in &self.threads {
            lines.extend(thread.task.iter().map(|(task, _)| task.describe()));
        }
        for notifying in &self.notifying {
            lines.push(format!(
                "{:?} {}",
                notifying.notify,
                notifying.task.describe()
            ));
        }
        lines.push(format!("queued notifications {:?}", self.notifications));
        lines.push(format!("queue {:?}", self.kernel.queue));
        lines.push(format!("unanswered {:?}", self.kernel.in_flight));
        for (file, inode) in self.kernel.files.iter().enumerate() {
            lines.push(format!("kernel file {file}: {inode:?}"));
        }
        lines.extend(self.daemon.describe());
        lines
    }
}

impl World {
    /// Lets one actor of a node act; false if it cannot.
    pub(super) fn act_at(&mut self, index: usize, actor: usize) -> bool {
        let now = self.now;
        let node = &mut self.nodes[index];
        let thread_count = node.threads.len();
        if actor < thread_count {
            return self.act_thread(index, actor);
        }
        let actor = actor - thread_count;
        if actor < node.notifying.len() {
            return self.act_notifying(index, actor);
        }
        match actor - node.notifying.len() {
            0 => {
                if !node.has_reader() {
                    return false;
                }
                let Some(request) = node.kernel.queue.pop_front() else {
                    return false;
                };
                node.daemon.on_request(now, request.clone());
                self.note(|| format!("node {index}: read {request:?}"));
            }
            1 => {
                if node.unwritten.is_empty() {
                    return false;
                }
                let pick = self.prng.below(node.unwritten.len() as u64);
                let (id, answer) = node
                    .unwritten
                    .remove(usize::try_from(pick).expect("an index"));
                node.kernel.on_answer(id, answer);
                node.daemon.on_written(now, id);
                self.note(|| format!("node {index}: answer {id} written"));
            }
            2 => {
                if !node.can_notify() {
                    return false;
                }
                let (program, file, notify) = node.notifications.remove(0);
                node.notifying.push(Notifying {
                    task: Task::new(program),
                    file,
                    notify,
                });
            }
            _ => {
                let file = self.prng.below(node.kernel.files.len() as u64);
                if !self.prng.chance(1, 40) {
                    return false;
                }
                node.daemon
                    .write_behind(now, usize::try_from(file).expect("few files"));
            }
        }
        true
    }

    fn act_notifying(&mut self, index: usize, actor: usize) -> bool {
        let node = &mut self.nodes[index];
        let mut context = Context {
            now: self.now,
            prng: &mut self.prng,
            busy_percent: self.options.busy_percent,
            read_ahead: 0,
        };
        match node.notifying[actor]
            .task
            .step(&mut node.kernel, &mut context)
        {
            Step::Blocked => false,
            Step::Progress => true,
            Step::Done => {
                let Notifying { file, notify, .. } = node.notifying.remove(actor);
                match file {
                    Some(file) => node.daemon.on_notified(self.now, file, notify),
                    None => node.daemon.on_names_notified(self.now, notify),
                }
                self.note(|| format!("node {index}: {notify:?} returned"));
                true
            }
        }
    }

    fn act_thread(&mut self, index: usize, actor: usize) -> bool {
        let limit = self.options.call_count;
        let node = &mut self.nodes[index];
        let Some((task, _)) = &mut node.threads[actor].task else {
            if node.threads[actor].call_count >= limit || !self.prng.chance(1, 3) {
                return false;
            }
            self.begin_call(index, actor);
            return true;
        };
        let mut context = Context {
            now: self.now,
            prng: &mut self.prng,
            busy_percent: 0,
            read_ahead: self.options.read_ahead,
        };
        match task.step(&mut node.kernel, &mut context) {
            Step::Blocked => false,
            Step::Progress => true,
            Step::Done => {
                let (task, start) = node.threads[actor].task.take().expect("it was stepped");
                node.threads[actor].call_count += 1;
                self.finish();
                self.note(|| {
                    format!(
                        "node {index}: done {:?} {:?}",
                        task.outcome,
                        task.describe()
                    )
                });
                self.record(index, &task, start);
                true
            }
        }
    }

    /// Notes what a call saw and did.
    fn record(&mut self, who: usize, task: &Task, start: u64) {
        let Program::Call(file, action) = &task.program else {
            unreachable!("threads make calls");
        };
        let end = self.moment();
        let has_failed = task.outcome == Outcome::Failed;
        if has_failed && self.options.lapse_count == 0 {
            let text = format!("node {who}: EIO from {}", task.describe());
            self.violation.get_or_insert(text);
        }
        let known = (start, (!has_failed).then_some(end));
        let names = self.options.file_count;
        let node = &mut self.nodes[who];
        let read = match action {
            Action::ReadDirect(_) => (start, Some(end)),
            _ => (node.read_start(*file, start), Some(end)),
        };
        if matches!(action, Action::Write(..) | Action::Append(..)) {
            node.written.push((*file, start, end));
        }
        match action {
            Action::ReadCached(cells) | Action::Splice(cells) | Action::ReadDirect(cells) => {
                for (cell, value) in cells.clone().zip(&task.result) {
                    if let Some(value) = value {
                        self.history
                            .add((*file, cell), Access::Read(*value), read, who);
                    }
                }
            }
            Action::Load(cell) => {
                if let Some(Some(value)) = task.result.first() {
                    self.history
                        .add((*file, *cell), Access::Read(*value), read, who);
                }
            }
            Action::Write(cells, value) => {
                for cell in cells.clone() {
                    self.history
                        .add((*file, cell), Access::Write(*value), known, who);
                }
            }
            Action::Append(count, value) => {
                self.record_append((*file, *count, *value), task, known, who)
            }
            Action::Truncate(size) if task.outcome != Outcome::Interrupted => {
                for cell in *size..crate::model::CELL_COUNT {
                    self.history
                        .add((*file, cell), Access::Write(0), known, who);
                }
            }
            Action::Store(cell, value) if task.outcome != Outcome::Nothing => {
                if *cell >= self.true_size(*file) {
                    // Behind the end, which only this kernel did not know: what is stored there may show or not.
                    self.history.forget((*file, *cell));
                }
                self.history
                    .add((*file, *cell), Access::Write(*value), known, who);
            }
            Action::Lookup(name) => {
                if let Some(Some(value)) = task.result.first() {
                    self.history.add(
                        (names, *name),
                        Access::Read(*value),
                        (start, Some(end)),
                        who,
                    );
                }
            }
            Action::Bind(name, value) => {
                self.history
                    .add((names, *name), Access::Write(*value), known, who);
            }
            Action::Truncate(_)
            | Action::Store(..)
            | Action::Msync
            | Action::Stat
            | Action::Fsync
            | Action::Create(_)
            | Action::Remove(_)
            | Action::Move(..) => {}
        }
    }

    /// Cells of a file, uncommitted growth included.
    fn true_size(&self, file: usize) -> usize {
        let grown = self.nodes.iter().map(|n| n.daemon.files[file].grown());
        grown.max().unwrap_or(0).max(self.owner.files[file].size)
    }

    /// An append overwrites nothing: what it wrote was a hole before.
    fn record_append(
        &mut self,
        (file, count, value): (usize, usize, u64),
        task: &Task,
        span: (u64, Option<u64>),
        who: usize,
    ) {
        match task.outcome {
            Outcome::At(at) => {
                for cell in at..at + count {
                    self.history
                        .add((file, cell), Access::Append(value), span, who);
                }
            }
            Outcome::Failed => {
                // It may have gone anywhere.
                for cell in 0..crate::model::CELL_COUNT {
                    self.history
                        .add((file, cell), Access::Write(value), (span.0, None), who);
                }
            }
            Outcome::Done | Outcome::Nothing | Outcome::Interrupted | Outcome::Refused(_) => {}
        }
    }
}
