//! A thread that serves one caller stays on his CPU.
//!
//! Caller and server take turns: while one runs the other sleeps. On one CPU a turn is a switch; on two it is a wake-up of the other one, which
//! takes ten times as long on a virtual machine. The kernel keeps them together as a rule, but where other threads come and go (event loops, the
//! workers of disks) it moves one of the two now and then, and nothing brings them together again: each finds the CPU that it ran on last idle, and is woken
//! there. Measured with a source tree that is read cold: 85 us a file, and 49 with both on one CPU.
//!
//! So after each `LOOK_EACH` short requests of one caller the server looks where he ran last (`/proc/TID/task/TID/stat`), and moves there if it is elsewhere: it
//! restricts itself to that CPU and takes that back at once. Requests that keep the server for long, and those that were there before it asked for
//! one, count against it: who copies, or has work on its way, gains by a second CPU.
//!
//! It looks before it answers: the caller sleeps then, so his CPU is free as a rule and the move takes some microseconds, and his memory does not go while
//! the kernel reads in it for the text (the last to let go of it would have to write his mappings back, and wait for himself).
//!
//! Invariants
//! - The thread is restricted for the time of a move only, and never leaves the CPUs that it was allowed to use. (On the caller's CPU it waits for its turn before it can take the
//!   restriction back: behind a real-time thread that came there meanwhile, for as long as that runs.)
//! - Only a thread that serves alone moves: with several callers a server on another CPU is the point. Others are there to take its place.
//! - What cannot be found out (another name space of processes, a thread that has ended) changes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Requests of one caller from one look to the next: a look takes some 2 us.
const LOOK_EACH: u32 = 64;
/// The others keep the server longer than the wake-ups that would be spared.
const SHORT_MAX: Duration = Duration::from_micros(30);
/// Fields of proc_pid_stat(5), counted from what comes behind the name in parentheses: `processor` and `policy`.
const PROCESSOR: usize = 39 - 3;
const POLICY: usize = 41 - 3;
/// Room for what the file says: some 350 bytes.
const STAT_SIZE: usize = 1024;

/// What a serving thread knows of its caller.
#[derive(Debug)]
pub(super) struct Company {
    /// Threads have the numbers here that /proc knows them by.
    is_possible: bool,
    caller: u32,
    /// His short requests in a row, less the others.
    count: u32,
    /// His `/proc/TID/task/TID/stat`: that of the thread alone, which takes as long however many there are.
    stat: Option<File>,
    /// The CPUs that this thread may use and was not given back.
    owed: Option<CpuSet>,
}

impl Company {
    pub(super) fn new() -> Self {
        let own = std::fs::read_link("/proc/self");
        let number = std::process::id().to_string();
        Self {
            is_possible: own.is_ok_and(|own| own.as_os_str() == number.as_str()),
            caller: 0,
            count: 0,
            stat: None,
            owed: None,
        }
    }

    /// A request of `caller` was read and is not answered; `is_alone`: no other thread serves.
    pub(super) fn on_request(&mut self, caller: u32, is_alone: bool) {
        if let Some(owed) = self.owed.take() {
            self.owed = give_back(&owed);
        }
        if self.owed.is_some() {
            return;
        }
        if caller == 0 || caller != self.caller || self.count < LOOK_EACH || !is_alone {
            return;
        }
        self.count = 0;
        if let Some(cpu) = self.cpu_of_caller()
            && cpu != sched_getcpu()
        {
            self.owed = move_to(cpu);
        }
    }

    /// A request of `caller` has kept this thread so long, and was waited for or not.
    pub(super) fn on_handled(&mut self, caller: u32, (took, was_awaited): (Duration, bool)) {
        if caller == 0 || !self.is_possible {
            return;
        }
        if caller != self.caller {
            self.caller = caller;
            self.count = 0;
            self.stat = None;
        }
        match took <= SHORT_MAX && was_awaited {
            // Where others serve, too, it is full for as long as they do.
            true => self.count = LOOK_EACH.min(self.count + 1),
            false => self.count = self.count.saturating_sub(1),
        }
    }

    /// Where the caller ran last, if he sleeps there.
    fn cpu_of_caller(&mut self) -> Option<usize> {
        if self.stat.is_none() {
            let tid = self.caller;
            self.stat = File::open(format!("/proc/{tid}/task/{tid}/stat")).ok();
        }
        let mut text = [0; STAT_SIZE];
        let Ok(size) = self.stat.as_ref()?.read_at(&mut text, 0) else {
            // The thread has ended; the next one of this number has another file.
            self.stat = None;
            return None;
        };
        resting_place(&text[..size])
    }
}

/// The CPU in a text of proc_pid_stat(5), if the thread sleeps and lets others run there. A name may hold anything, parentheses too.
fn resting_place(stat: &[u8]) -> Option<usize> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let is_asleep = matches!(fields.next()?, "S" | "D");
    let processor = fields.nth(PROCESSOR - 1)?.parse().ok()?;
    let policy: i32 = fields.nth(POLICY - PROCESSOR - 1)?.parse().ok()?;
    let is_plain = [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy);
    (is_asleep && is_plain).then_some(processor)
}

/// Moves this thread to a CPU, if it may run there. The CPUs that it could not be given back.
fn move_to(cpu: usize) -> Option<CpuSet> {
    let allowed = sched_getaffinity(None).ok()?;
    if cpu >= CpuSet::MAX_CPU || !allowed.is_set(cpu) {
        return None;
    }
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).ok()?;
    let owed = give_back(&allowed);
    if owed.is_some() {
        tracing::warn!("a serving thread cannot leave CPU {cpu}; it tries again with each request");
    }
    owed
}

/// This thread may run on these CPUs again; they themselves, if that fails.
fn give_back(allowed: &CpuSet) -> Option<CpuSet> {
    // What a thread asks for stays a bound when its cpuset grows. So all are asked for, where that is what it had.
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    let is_same = |now: CpuSet| now == *allowed;
    if sched_setaffinity(None, &all).is_ok() && sched_getaffinity(None).is_ok_and(is_same) {
        return None;
    }
    sched_setaffinity(None, allowed).err().map(|_| *allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::gettid;
    use std::sync::mpsc;

    fn only(cpu: usize) -> CpuSet {
        let mut one = CpuSet::new();
        one.set(cpu);
        one
    }

    /// The CPUs that this thread may use.
    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(None).expect("own CPUs");
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| set.is_set(*cpu))
            .collect()
    }

    #[test]
    fn the_cpu_is_found_behind_any_name() {
        let numbers: Vec<String> = (4..60).map(|number| number.to_string()).collect();
        let text = |name: &str, state: &str, policy: &str| {
            let mut numbers = numbers.clone();
            numbers[41 - 4] = policy.to_owned();
            format!("77 ({name}) {state} {}\n", numbers.join(" "))
        };
        for name in ["cat", "", ") 1 2 3", "a (b) c)", "\u{fc}"] {
            let found = resting_place(text(name, "S", "0").as_bytes());
            assert_eq!(found, Some(39), "{name}");
        }
        for (state, policy, place) in [
            ("D", "0", Some(39)),
            ("S", "3", Some(39)),
            ("R", "0", None),
            ("Z", "0", None),
            ("S", "1", None),
            ("S", "2", None),
            ("S", "6", None),
        ] {
            let found = resting_place(text("cat", state, policy).as_bytes());
            assert_eq!(found, place, "{state} {policy}");
        }
        for short in ["", "77 (cat", "77 (cat)", "77 (cat) S 1 2 3"] {
            assert_eq!(resting_place(short.as_bytes()), None, "{short}");
        }
    }

    /// A caller who stands still on a CPU, and a server on another one; how often the server is on the caller's after so many requests of this kind,
    /// of 100 times.
    fn followed(requests: u32, (took, was_awaited): (Duration, bool), is_alone: bool) -> u32 {
        let all = allowed();
        let [first, .., last] = all[..] else {
            panic!("two CPUs are needed");
        };
        let before = sched_getaffinity(None).expect("own CPUs");
        let mut count = 0;
        std::thread::scope(|scope| {
            let (tell, told) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                sched_setaffinity(None, &only(last)).expect("an own CPU");
                let tid = u32::try_from(gettid().as_raw_nonzero().get()).expect("positive");
                tell.send(tid).expect("somebody listens");
                let _ = ended.recv();
            });
            let caller = told.recv().expect("a caller");
            let mut company = Company::new();
            for _ in 0..100 {
                sched_setaffinity(None, &only(first)).expect("an own CPU");
                sched_setaffinity(None, &before).expect("own CPUs");
                for _ in 0..requests {
                    company.on_request(caller, is_alone);
                    company.on_handled(caller, (took, was_awaited));
                }
                count += u32::from(sched_getcpu() == last);
                let after = sched_getaffinity(None).expect("own CPUs");
                assert_eq!(after, before, "it is not left restricted");
            }
            drop(end);
        });
        count
    }

    #[test]
    fn who_serves_one_caller_comes_to_his_cpu() {
        if allowed().len() < 2 {
            return eprintln!("not tried: there is one CPU");
        }
        let short = (Duration::from_micros(5), true);
        // The scheduler may move either of them at any time.
        assert!(followed(LOOK_EACH + 1, short, true) > 80);
        let others = [
            (LOOK_EACH + 1, short, false),
            (LOOK_EACH + 1, (SHORT_MAX * 2, true), true),
            (LOOK_EACH + 1, (short.0, false), true),
        ];
        for (requests, kind, is_alone) in others {
            let count = followed(requests, kind, is_alone);
            assert!(count < 20, "{kind:?} {is_alone}: {count}");
        }
    }

    #[test]
    fn a_caller_who_is_gone_changes_nothing() {
        let tid = std::thread::spawn(|| gettid().as_raw_nonzero().get());
        let tid = u32::try_from(tid.join().expect("it ends")).expect("positive");
        let mut company = Company::new();
        for _ in 0..3 * LOOK_EACH {
            company.on_request(tid, true);
            company.on_handled(tid, (Duration::from_micros(5), true));
        }
        assert_eq!(company.cpu_of_caller(), None);
    }

    #[test]
    fn requests_beside_other_servers_are_not_counted_without_end() {
        let mut company = Company::new();
        for _ in 0..3 * LOOK_EACH {
            company.on_request(1, false);
            company.on_handled(1, (Duration::from_micros(5), true));
        }
        assert_eq!(company.count, LOOK_EACH);
        // And as many others end it as ever.
        for _ in 0..LOOK_EACH {
            company.on_handled(1, (SHORT_MAX * 2, true));
        }
        assert_eq!(company.count, 0);
    }

    /// What could not be given back is, before anything else is done, whoever asks.
    #[test]
    fn what_is_owed_is_given_back_first() {
        let before = sched_getaffinity(None).expect("own CPUs");
        let mut company = Company::new();
        company.owed = Some(before);
        sched_setaffinity(None, &only(allowed()[0])).expect("an own CPU");
        company.on_request(0, false);
        assert_eq!(sched_getaffinity(None).expect("own CPUs"), before);
        assert!(company.owed.is_none());
        // No CPU of these is there: it stays owed.
        let mut others = CpuSet::new();
        others.set(CpuSet::MAX_CPU - 1);
        company.owed = Some(others);
        company.on_request(0, false);
        assert!(company.owed.is_some());
    }

    /// A CPU that a cpuset gives later is used, too: nothing is asked for but all, where there was no bound.
    #[test]
    fn what_was_restricted_by_others_stays_so() {
        let before = sched_getaffinity(None).expect("own CPUs");
        let own = allowed();
        assert!(move_to(own[0]).is_none());
        assert_eq!(sched_getaffinity(None).expect("own CPUs"), before);
        // By taskset(1), to one.
        sched_setaffinity(None, &only(own[0])).expect("an own CPU");
        for cpu in [own[0], own[own.len() - 1], CpuSet::MAX_CPU] {
            assert!(move_to(cpu).is_none());
            let after = sched_getaffinity(None).expect("own CPUs");
            assert_eq!(after, only(own[0]), "{cpu}");
        }
        sched_setaffinity(None, &before).expect("own CPUs");
    }
}
