//! A thread that serves one caller stays on his CPU.
//!
//! Caller and server take turns: while one runs the other sleeps. On one CPU a turn is a switch; on two it is a wake-up of the other one, which
//! takes ten times as long on a virtual machine. The kernel keeps them together as a rule, but where other threads come and go (event loops, the
//! workers of disks) it moves one of the two now and then, and nothing brings them together again: each finds the CPU that it ran on last idle, and is woken
//! there. Measured with a source tree that is read cold: 85 us a file, and 49 with both on one CPU.
//!
//! So after each `LOOK_EACH` short requests of one caller the server looks where he ran last (`/proc/TID/stat`), and moves there if it is elsewhere: it
//! restricts itself to that CPU and takes that back at once. Requests that take long, and those that were there before the server asked for
//! one, count against it: who copies, or has work on its way, gains by a second CPU (streams of 1 MiB: 10 % less on one).
//!
//! Invariants
//! - The thread is never left restricted, and never leaves the CPUs that it was allowed to use.
//! - Only a thread that serves alone moves: with several callers a server on another CPU is the point.
//! - What cannot be found out (another name space of processes, a thread that has ended) changes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Requests of one caller from one look to the next: a look takes some 3 us.
const LOOK_EACH: u32 = 64;
/// The others take longer than the wake-ups that would be spared.
const SHORT_MAX: Duration = Duration::from_micros(30);
/// `processor` in proc_pid_stat(5), counted from what comes behind the name in parentheses.
const PROCESSOR: usize = 39 - 3;
/// Room for what /proc/TID/stat says: some 350 bytes.
const STAT_SIZE: usize = 1024;

/// What a serving thread knows of its caller.
#[derive(Debug, Default)]
pub(super) struct Company {
    caller: u32,
    /// His short requests in a row, less the others.
    count: u32,
    /// `/proc/TID/stat` of his.
    stat: Option<File>,
}

impl Company {
    /// A request of `caller` took so long, and was waited for or not; `is_alone`: no other thread serves. True if it has looked, which takes a while.
    pub(super) fn on_handled(
        &mut self,
        caller: u32,
        (took, was_awaited): (Duration, bool),
        is_alone: bool,
    ) -> bool {
        if caller == 0 || !is_alone {
            return false;
        }
        if caller != self.caller {
            *self = Self {
                caller,
                ..Self::default()
            };
        }
        if took > SHORT_MAX || !was_awaited {
            self.count = self.count.saturating_sub(1);
            return false;
        }
        self.count += 1;
        if self.count < LOOK_EACH {
            return false;
        }
        self.count = 0;
        if let Some(cpu) = self.cpu_of_caller()
            && cpu != sched_getcpu()
        {
            move_to(cpu);
        }
        true
    }

    /// Where the caller ran last.
    fn cpu_of_caller(&mut self) -> Option<usize> {
        if self.stat.is_none() {
            self.stat = File::open(format!("/proc/{}/stat", self.caller)).ok();
        }
        let mut text = [0; STAT_SIZE];
        let Ok(size) = self.stat.as_ref()?.read_at(&mut text, 0) else {
            // The thread has ended; the next one of this number has another file.
            self.stat = None;
            return None;
        };
        processor(&text[..size])
    }
}

/// The CPU in a text of proc_pid_stat(5). A name may hold anything, parentheses too.
fn processor(stat: &[u8]) -> Option<usize> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    text.split_ascii_whitespace().nth(PROCESSOR)?.parse().ok()
}

/// Moves this thread to a CPU, if it may run there.
fn move_to(cpu: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    if cpu >= CpuSet::MAX_CPU || !allowed.is_set(cpu) {
        return;
    }
    let mut one = CpuSet::new();
    one.set(cpu);
    if sched_setaffinity(None, &one).is_ok() {
        // What was allowed a moment ago may not be now (cpuset): then the kernel has restricted the thread itself.
        let _ = sched_setaffinity(None, &allowed);
    }
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
        let text = |name: &str| format!("77 ({name}) S {}\n", numbers.join(" "));
        for name in ["cat", "", ") 1 2 3", "a (b) c)", "\u{fc}"] {
            assert_eq!(processor(text(name).as_bytes()), Some(39), "{name}");
        }
        for short in ["", "77 (cat", "77 (cat)", "77 (cat) S 1 2 3"] {
            assert_eq!(processor(short.as_bytes()), None, "{short}");
        }
        let own = std::fs::read("/proc/thread-self/stat").expect("procfs");
        assert!(allowed().contains(&processor(&own).expect("there")));
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
            let mut company = Company::default();
            for _ in 0..100 {
                sched_setaffinity(None, &only(first)).expect("an own CPU");
                sched_setaffinity(None, &before).expect("own CPUs");
                for _ in 0..requests {
                    company.on_handled(caller, (took, was_awaited), is_alone);
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
        assert!(followed(LOOK_EACH, short, true) > 80);
        let others = [
            (LOOK_EACH, short, false),
            (LOOK_EACH, (SHORT_MAX * 2, true), true),
            (LOOK_EACH, (short.0, false), true),
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
        let mut company = Company::default();
        for _ in 0..3 * LOOK_EACH {
            company.on_handled(tid, (Duration::from_micros(5), true), true);
        }
        assert!(company.stat.is_none() || company.cpu_of_caller().is_none());
    }
}
