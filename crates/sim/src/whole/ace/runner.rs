//! Makes the calls of a sequence on a machine and on the model, and notes what is durable from when on.

use std::collections::BTreeSet;

use types::Errno;

use super::Run;
use super::calls::{Calls, Failed};
use super::judge::{Bounds, History};
use super::listed::Directories;
use super::ops::{Op, Persist, Sequence};
use super::posix::{Body, Fs, Number, ROOT, Step};
use super::tape::Tape;

/// Milliseconds in which everything is written back by itself.
const QUIET_MS: u64 = 8_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) calls: Calls,
    tape: Tape,
    pub(super) history: History,
    marks: Vec<Bounds>,
    bounds: Bounds,
    may_be_full: bool,
    /// Calls that found no room.
    pub(super) refused: Vec<Op>,
    /// Those of them, by their place, that would have cut a file which has no bytes.
    pub(super) cuts_of_nothing: Vec<usize>,
    /// Directories that are listed before each step, and the milliseconds that pass then.
    pub(super) ahead: Option<(Directories, u64)>,
}

impl Runner {
    /// Makes calls on what is `begin`.
    pub(super) fn new(calls: Calls, tape: Tape, begin: Fs, may_be_full: bool) -> Self {
        Self {
            calls,
            tape,
            history: History::new(begin),
            marks: Vec::new(),
            bounds: Bounds::default(),
            may_be_full,
            refused: Vec::new(),
            cuts_of_nothing: Vec::new(),
            ahead: None,
        }
    }

    /// Makes the calls of a sequence.
    pub(super) fn make_calls(&mut self, sequence: &Sequence, seed: u64) -> Result<(), String> {
        self.calls.machine.reseed(seed);
        let pause_ms = [0, 0, 5, 400][usize::try_from(seed % 4).expect("below 4")];
        for ((op, persist), tag) in sequence.0.iter().zip(1..) {
            self.call(op, tag).map_err(|text| format!("{op}: {text}"))?;
            let persisted = self.persist(op, *persist);
            persisted.map_err(|text| format!("{persist} of {op}: {text}"))?;
            self.calls.machine.wait(pause_ms);
        }
        Ok(())
    }

    /// Everything gets durable, most of it by time alone, and is what the model says.
    pub(super) fn end(&mut self) -> Result<(), String> {
        if self.calls.machine.quieten(QUIET_MS).is_err() {
            self.calls.machine.rest()?;
        }
        self.all_durable();
        self.calls.machine.let_rewrite()?;
        let seen = self.calls.observe();
        let (found, unreadable) = seen.map_err(|failed| format!("at the end: {failed:?}"))?;
        self.calls.machine.node.check();
        if !unreadable.is_empty() {
            return Err(format!("at the end, while it runs: {unreadable:?}"));
        }
        let judged = self.history.judge(&found, &self.bounds);
        judged.map_err(|text| format!("at the end, while it runs: {text}"))
    }

    /// What was run until now.
    pub(super) fn run(&mut self) -> Run {
        Run {
            events: self.tape.take(),
            marks: std::mem::take(&mut self.marks),
            history: self.history.clone(),
        }
    }

    fn mark(&mut self) {
        self.tape.mark(self.marks.len());
        self.marks.push(self.bounds.clone());
    }

    /// Makes a call, which does what the model says.
    pub(super) fn call(&mut self, op: &Op, tag: u64) -> Result<(), String> {
        for step in op.steps(self.history.now(), tag) {
            self.bounds.begun = self.history.count() + 1;
            self.mark();
            let mut fs = self.history.now().clone();
            let expected = fs.apply(&step);
            if let Some((directories, pause_ms)) = &self.ahead {
                self.calls.list_ahead(directories, *pause_ms);
            }
            match (expected, self.calls.step(&step)) {
                (Ok(done), Ok(())) => {
                    if let Some((directories, _)) = &mut self.ahead {
                        *directories = self.calls.see_names(&fs)?;
                    }
                    self.history.done.push(done);
                    self.history.states.push(fs);
                }
                (Err(expected), Err(Failed::Refused(errno))) if expected == errno => {
                    return self.nothing_done();
                }
                // Where two things are in its way, POSIX leaves open which one a call names.
                (_, Err(Failed::Refused(Errno::ENOSPC))) if self.may_be_full => {
                    if let Op::Truncate(path, 0) = op
                        && self
                            .history
                            .now()
                            .content(path)
                            .is_none_or(<[u8]>::is_empty)
                    {
                        self.cuts_of_nothing.push(self.refused.len());
                    }
                    self.refused.push(op.clone());
                    return self.nothing_done();
                }
                (expected, result) => {
                    let expected = expected.map(|_| ());
                    return Err(format!("{result:?}, not {expected:?}"));
                }
            }
        }
        Ok(())
    }

    /// The last step had no effect, and the rest of its call is not made.
    fn nothing_done(&mut self) -> Result<(), String> {
        self.bounds.begun = self.history.count();
        // It was never begun, as it turns out.
        if let Some(mark) = self.marks.last_mut() {
            mark.begun = self.bounds.begun;
        }
        self.mark();
        if self.history.now().nameless.is_some() {
            let step = Step::CloseNameless;
            let mut fs = self.history.now().clone();
            let done = fs.apply(&step).map_err(|errno| format!("{errno:?}"))?;
            self.calls
                .step(&step)
                .map_err(|failed| format!("{failed:?}"))?;
            self.history.done.push(done);
            self.history.states.push(fs);
            self.bounds.begun = self.history.count();
            self.mark();
        }
        Ok(())
    }

    /// Makes durable what is asked for; from its answer on it is.
    fn persist(&mut self, op: &Op, persist: Persist) -> Result<(), String> {
        let fs = self.history.now().clone();
        let path = op.path();
        let failed = |failed: Failed| format!("{failed:?}");
        match persist {
            Persist::None => {}
            Persist::File if fs.is_synced_by_name(path) => {
                let number = fs.find(path).expect("it can be opened");
                let is_directory = matches!(fs.inodes[&number].body, Body::Directory(_));
                self.calls.fsync(path, is_directory).map_err(failed)?;
                self.names_durable(&fs, path, number);
                self.bounds.data.insert(number, self.history.count());
            }
            Persist::File => {}
            Persist::Directory => {
                let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                let number = fs.find(parent).unwrap_or(ROOT);
                self.calls.fsync(parent, true).map_err(failed)?;
                self.names_durable(&fs, parent, number);
            }
            Persist::Sync => {
                for (path, _) in fs.files() {
                    self.calls.fsync(&path, false).map_err(failed)?;
                }
                self.calls.fsync("", true).map_err(failed)?;
                self.all_durable();
            }
        }
        self.mark();
        Ok(())
    }

    /// What was done to this inode, and to the directories on the way to it, survives.
    fn names_durable(&mut self, fs: &Fs, path: &str, number: Number) {
        let chain = fs.chain(path);
        let moved = |touched: &BTreeSet<Number>| {
            let mut links = chain.windows(2);
            links.any(|link| touched.contains(&link[0]) && touched.contains(&link[1]))
        };
        let last = self
            .history
            .last(|touched| touched.contains(&number) || moved(touched));
        self.bounds.names = self.bounds.names.max(last);
    }

    pub(super) fn all_durable(&mut self) {
        let count = self.history.count();
        self.bounds.names = count;
        let numbers = self.history.now().inodes.keys();
        self.bounds.data = numbers.map(|number| (*number, count)).collect();
        self.mark();
    }
}
