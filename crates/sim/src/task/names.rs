//! System calls that change names, and fsync: as the VFS runs them, lookups first.

use types::Errno;

use super::{Context, Outcome, Step, Task};
use crate::kernel::Kernel;
use crate::model::{Action, Answer, Ask, PAGE_COUNT};

impl Task {
    /// fsync(2): mapped pages are written back, then FSYNC.
    pub(super) fn step_fsync(&mut self, kernel: &mut Kernel) -> Step {
        match self.pc {
            0 => {
                self.pc = 1;
                self.frames.push(super::Frame::Clean {
                    page: 0,
                    end: PAGE_COUNT,
                });
            }
            1 => {
                self.pc = 2;
                self.request = kernel.send(self.file, Ask::Fsync);
            }
            _ => match kernel.answers.remove(&self.request) {
                None => return Step::Blocked,
                Some(Answer::Done) => return Step::Done,
                Some(_) => return self.fail(),
            },
        }
        Step::Progress
    }

    /// open(O_CREAT | O_EXCL), unlink, rename: under the directory's lock each name is looked up unless a
    /// dentry is believed, and what cannot be is refused without asking.
    pub(super) fn step_change(
        &mut self,
        action: &Action,
        kernel: &mut Kernel,
        context: &Context<'_>,
    ) -> Step {
        let (names, ask) = match action {
            Action::Create(name) => (vec![*name], Ask::Create(*name)),
            Action::Remove(name) => (vec![*name], Ask::Remove(*name)),
            Action::Move(from, to) => (vec![*from, *to], Ask::Move(*from, *to)),
            _ => unreachable!("the caller matched it"),
        };
        match self.pc {
            0 => {
                if !kernel.directory.try_write(&mut self.is_waiting) {
                    return Step::Blocked;
                }
                self.pc = 1;
            }
            1 if self.at == names.len() => {
                let is_there = self.result[0] != Some(0);
                let refusal = match action {
                    Action::Create(_) if is_there => Some(Errno::EEXIST),
                    Action::Remove(_) | Action::Move(..) if !is_there => Some(Errno::ENOENT),
                    _ => None,
                };
                match refusal {
                    Some(errno) => {
                        self.outcome = Outcome::Refused(errno);
                        self.pc = 5;
                    }
                    None => {
                        self.start_epoch = kernel.epoch;
                        self.request = kernel.send(self.file, ask);
                        self.pc = 3;
                    }
                }
            }
            1 => {
                let name = names[self.at];
                match kernel.dentries[name] {
                    Some(dentry)
                        if context.now < dentry.valid_until && dentry.epoch == kernel.epoch =>
                    {
                        self.result.push(Some(dentry.value));
                        self.at += 1;
                    }
                    _ => {
                        self.start_epoch = kernel.epoch;
                        self.request = kernel.send(self.file, Ask::Lookup(name));
                        self.pc = 2;
                    }
                }
            }
            2 => match kernel.answers.remove(&self.request) {
                None => return Step::Blocked,
                Some(Answer::Entry { value, timeout, .. }) => {
                    self.instantiate(names[self.at], value, timeout, kernel, context);
                    self.result.push(Some(value));
                    self.at += 1;
                    self.pc = 1;
                }
                Some(_) => {
                    self.outcome = Outcome::Failed;
                    self.pc = 5;
                }
            },
            3 => {
                let Some(answer) = kernel.answers.remove(&self.request) else {
                    return Step::Blocked;
                };
                self.changed(&names, answer, kernel, context);
                self.pc = 5;
            }
            _ => {
                kernel.directory.write_unlock();
                return Step::Done;
            }
        }
        Step::Progress
    }

    /// What the kernel does with its dentries when the answer is there.
    fn changed(
        &mut self,
        names: &[usize],
        answer: Answer,
        kernel: &mut Kernel,
        context: &Context<'_>,
    ) {
        match answer {
            Answer::Entry { value, timeout, .. } => {
                self.instantiate(names[0], value, timeout, kernel, context);
                self.result = vec![Some(value)];
                return;
            }
            // d_move: the target's dentry goes, the source's takes its name.
            Answer::Done if names.len() == 2 => {
                kernel.dentries[names[1]] = kernel.dentries[names[0]].take();
                return;
            }
            Answer::Done => {}
            Answer::Refused(errno) => self.outcome = Outcome::Refused(errno),
            _ => self.outcome = Outcome::Failed,
        }
        for name in names {
            kernel.dentries[*name] = None;
        }
    }
}
