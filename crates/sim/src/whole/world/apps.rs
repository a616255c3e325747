//! Applications, kernel threads and notify threads of a machine.

use std::ops::Range;

use super::{
    Answer, Context, Errno, Input, Machine, NAME_COUNT, Notifying, OWN_TICKET, Operation, Outcome,
    Program, Response, Step, Task, World, slice_of,
};
use crate::model::{Action, CELL_COUNT};

impl Machine {
    /// Threads, notifications, and: request reader, answer writer, starter of notifications, filler of page caches.
    pub(super) fn actor_count(&self) -> usize {
        self.threads.len() + self.notifying.len() + 4
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
        lines.push(format!("unwritten {:?}", self.unwritten));
        for (file, inode) in self.kernel.files.iter().enumerate() {
            lines.push(format!("kernel file {file}: {inode:?}"));
        }
        lines.extend(self.node.describe());
        lines
    }
}

impl World {
    /// Lets one actor of a machine act; false if it cannot.
    pub(super) fn act_at(&mut self, index: usize, actor: usize) -> bool {
        let machine = &mut self.machines[index];
        let thread_count = machine.threads.len();
        if actor < thread_count {
            return self.act_thread(index, actor);
        }
        let actor = actor - thread_count;
        if actor < machine.notifying.len() {
            return self.act_notifying(index, actor);
        }
        match actor - machine.notifying.len() {
            0 => self.read_request(index),
            1 => self.write_answer(index),
            2 => self.act_filling(index),
            _ => {
                let is_full = machine.notifying.len() >= self.options.notify_thread_count;
                if is_full || machine.notifications.is_empty() {
                    return false;
                }
                let (program, notify) = machine.notifications.remove(0);
                machine.notifying.push(Notifying {
                    task: Task::new(program),
                    notify,
                });
                true
            }
        }
    }

    /// A thread of the daemon reads a request and hands it to its slice.
    fn read_request(&mut self, index: usize) -> bool {
        let machine = &mut self.machines[index];
        let Some(request) = machine.kernel.queue.front() else {
            return false;
        };
        let Some(made) = machine.front.request(request, &machine.node.memory) else {
            return false;
        };
        let request = machine.kernel.queue.pop_front().expect("seen above");
        let payload = match made.operation {
            Operation::Write { payload, .. } => Some(payload),
            _ => None,
        };
        machine.node.request(made);
        if let Some(payload) = payload {
            machine.node.release_payload(payload);
        }
        self.note(|| format!("node {index}: read {request:?}"));
        true
    }

    /// Writes one of the answers that are made.
    fn write_answer(&mut self, index: usize) -> bool {
        let machine = &mut self.machines[index];
        if machine.unwritten.is_empty() {
            return false;
        }
        let pick = self.prng.below(machine.unwritten.len() as u64);
        let pick = usize::try_from(pick).expect("an index");
        let (ticket, response, pinned) = machine.unwritten.remove(pick);
        let is_opening = self.opened(index, ticket, &response);
        let machine = &mut self.machines[index];
        if is_opening {
            self.note(|| format!("node {index}: {response:?} while its files are opened"));
        } else if ticket.0 >= OWN_TICKET {
            machine.own_answers.insert(ticket, response);
        } else {
            let asked = machine.kernel.in_flight.get(&ticket.0);
            let Some((file, ask)) = asked.map(|asked| (asked.file, asked.ask.clone())) else {
                let text = format!("node {index}: {ticket:?} is answered twice: {response:?}");
                self.fail(text);
                return true;
            };
            let response = match self.is_told_loss(file, &ask, &response) {
                true => Response::Written(0),
                false => response,
            };
            let machine = &mut self.machines[index];
            let answer = machine.front.answer(&ask, &response, &machine.node.memory);
            if let Response::Data(spans) = &response {
                spans.iter().for_each(|span| machine.node.release(*span));
            }
            let answer = match answer {
                Ok(answer) => answer,
                Err(text) => {
                    self.fail(format!("node {index}: {text}"));
                    Answer::Failed
                }
            };
            self.machines[index].kernel.on_answer(ticket.0, answer);
            self.note(|| format!("node {index}: {ticket:?} is written"));
        }
        let machine = &mut self.machines[index];
        for pin in pinned {
            machine.node.input(slice_of(pin.ino()), Input::Replied(pin));
        }
        for (ino, handle) in std::mem::take(&mut machine.front.to_close) {
            for operation in [
                Operation::Flush {
                    ino,
                    handle,
                    lock_owner: 0,
                },
                Operation::Release { ino, handle },
            ] {
                let request = machine.front.own(operation);
                machine.node.request(request);
            }
        }
        true
    }

    /// The kernel forgets some inodes that no dentry leads to.
    pub(super) fn forget_some(&mut self, index: usize) {
        for ino in self.idle_inodes(index) {
            if self.prng.chance(1, 4) {
                self.forget_idle(index, ino);
            }
        }
    }

    /// The kernel is asked to forget these, and does so where it does not use them.
    pub(super) fn prune(&mut self, index: usize, inos: &[types::InodeId]) {
        let idle = self.idle_inodes(index);
        for ino in idle.into_iter().filter(|ino| inos.contains(ino)) {
            self.forget_idle(index, ino);
        }
    }

    fn forget_idle(&mut self, index: usize, ino: types::InodeId) {
        let machine = &mut self.machines[index];
        let count = machine.front.lookups.remove(&ino).expect("listed");
        let request = machine.front.own(Operation::Forget { ino, count });
        machine.node.request(request);
    }

    /// What the kernel knows and no dentry leads to.
    fn idle_inodes(&self, index: usize) -> Vec<types::InodeId> {
        let machine = &self.machines[index];
        let fixed: Vec<_> = machine.front.files.iter().map(|f| f.ino).collect();
        let is_known = |ino: types::InodeId| {
            let dentries = machine.kernel.dentries.iter().flatten();
            machine.front.directories().any(|d| d == ino)
                || fixed.contains(&ino)
                || dentries.into_iter().any(|d| d.value == ino.raw())
        };
        let idle = machine.front.lookups.keys().copied();
        idle.filter(|ino| !is_known(*ino)).collect()
    }

    fn act_notifying(&mut self, index: usize, actor: usize) -> bool {
        let machine = &mut self.machines[index];
        // A folio is busy where somebody has stored to it again.
        let is_stored_to = match &machine.notifying[actor].task.program {
            Program::NotifyPages(file, _) => machine.may_store(*file),
            _ => false,
        };
        let mut context = Context {
            now: self.now,
            prng: &mut self.prng,
            busy_percent: match is_stored_to {
                true => self.options.busy_percent,
                false => 0,
            },
            read_ahead: 0,
        };
        let notifying = &mut machine.notifying[actor];
        match notifying.task.step(&mut machine.kernel, &mut context) {
            Step::Blocked => false,
            Step::Progress => true,
            Step::Done => {
                let Notifying { notify, .. } = machine.notifying.remove(actor);
                if let Some(id) = notify {
                    machine.node.input(id.slice(), Input::Notified(id));
                }
                self.note(|| format!("node {index}: {notify:?} returned"));
                true
            }
        }
    }

    fn act_thread(&mut self, index: usize, actor: usize) -> bool {
        let limit = self.options.call_count;
        let machine = &mut self.machines[index];
        let thread = &mut machine.threads[actor];
        let Some((task, _)) = &mut thread.task else {
            if !matches!(machine.power, super::Power::On)
                || !self.may_begin
                || thread.call_count >= limit
                || !self.prng.chance(1, 3)
            {
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
        match task.step(&mut machine.kernel, &mut context) {
            Step::Blocked => false,
            Step::Progress => true,
            Step::Done => {
                let (task, start) = thread.task.take().expect("it was stepped");
                thread.call_count += 1;
                self.last_finished = self.now;
                self.note(|| {
                    let (outcome, result) = (task.outcome, &task.result);
                    format!(
                        "node {index}: done {outcome:?} {result:?} {:?}",
                        task.program
                    )
                });
                self.may_fail(index, &task, start);
                self.record(index, &task, start);
                true
            }
        }
    }

    fn begin_call(&mut self, index: usize, actor: usize) {
        let file = self.number(self.options.file_count);
        let action = self.draw();
        let action = self.publish(index, action);
        let action = self.avoid_overlap(index, file, action);
        let action = self.as_open(index, file, action);
        self.note(|| format!("node {index}: call {file} {action:?}"));
        let task = Task::new(Program::Call(file, action));
        self.machines[index].threads[actor].task = Some((task, self.step_count));
    }

    /// Where one node publishes, it makes names in its own directory and moves them to the second one, from where the others take them.
    fn publish(&self, index: usize, action: Action) -> Action {
        let (last, names) = (NAME_COUNT - 1, self.options.names);
        match action {
            _ if !names.are_apart || !names.is_published => action,
            Action::Lookup(_) => Action::Lookup(last),
            Action::Create(name) if index == 0 => Action::Create(name % last),
            Action::Remove(name) | Action::Move(name, _) if index == 0 => {
                Action::Move(name % last, last)
            }
            Action::Create(_) => Action::Lookup(last),
            Action::Remove(_) | Action::Move(..) => Action::Remove(last),
            _ => action,
        }
    }

    fn draw(&mut self) -> Action {
        self.next_value += 1;
        let value = self.next_value;
        if self.prng.chance(self.options.name_percent, 100) {
            let name = self.number(NAME_COUNT);
            return match self.prng.below(8) {
                0..=2 => Action::Lookup(name),
                3 | 4 => Action::Create(name),
                5 => Action::Remove(name),
                _ => Action::Move(name, (name + 1 + self.number(NAME_COUNT - 1)) % NAME_COUNT),
            };
        }
        match self.prng.below(13) {
            0..=2 => Action::ReadCached(self.range(CELL_COUNT)),
            3 => Action::ReadDirect(self.range(6)),
            4 | 5 => Action::Write(self.range(6), value),
            6 if self.options.has_append => Action::Append(self.number(3) + 1, value),
            7 if self.options.has_truncate => Action::Truncate(self.number(CELL_COUNT)),
            8 if self.options.has_splice => Action::Splice(self.range(CELL_COUNT)),
            9 if self.options.has_mappings => Action::Load(self.number(CELL_COUNT)),
            10 if self.options.has_mappings => Action::Store(self.number(CELL_COUNT), value),
            11 if self.options.has_mappings && self.prng.chance(1, 2) => Action::Msync,
            12 if self.options.has_fsync => Action::Fsync,
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
        let threads = self.machines[index].threads.iter();
        let running = threads.filter_map(|t| match &t.task {
            Some((task, _)) => match &task.program {
                Program::Call(other, action) if *other == file => Some(action),
                _ => None,
            },
            None => None,
        });
        let mut running =
            running.filter(|a| (stores(a) && writes(&action)) || (writes(a) && stores(&action)));
        match (running.next(), &action) {
            (None, _) => action,
            (Some(_), Action::Store(cell, _)) => Action::Load(*cell),
            (Some(_), _) => Action::ReadCached(0..CELL_COUNT),
        }
    }

    fn range(&mut self, count_max: usize) -> Range<usize> {
        let start = self.number(CELL_COUNT);
        let count = self.number(count_max) + 1;
        start..(start + count).min(CELL_COUNT)
    }

    pub(super) fn number(&mut self, below: usize) -> usize {
        usize::try_from(self.prng.below(below as u64)).expect("below a usize")
    }

    /// A call that began in a step failed: why, and whether it may.
    pub(super) fn may_fail(&mut self, who: usize, task: &Task, start: u64) {
        if task.outcome == Outcome::Refused(Errno::ENOSPC) {
            self.no_space_count += 1;
            if self.was_full_at < start {
                let text = format!("node {who}: no room for {}", task.describe());
                let free = self.describe_space();
                self.fail(format!("{text}, and all the time most are free: {free}"));
            }
        }
        if task.outcome == Outcome::Failed {
            let error = &self.machines[who].front.last_error;
            let errno = error.as_ref().map(|(_, errno)| *errno);
            let text = format!("node {who}: {errno:?} from {} ({error:?})", task.describe());
            if errno != Some(Errno::EINTR) && !self.fails_for_pages(task, errno) {
                self.fail(text);
            }
        }
    }
}
