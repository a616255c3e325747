//! Who gets a CPU first, and memory: those who serve take short turns, a command that can be started again gives way to all.

use std::io::Error;

/// As `nice` does.
const BACKGROUND: libc::c_int = 10;

/// From now on this process computes when others leave room for it.
///
/// # Errors
/// What the system says; then nothing has changed.
pub fn lower() -> Result<(), Error> {
    // SAFETY: the call takes three numbers and touches no memory.
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, BACKGROUND) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Where memory is exhausted this process ends before those that serve: half of all memory is counted on top of what it has
/// (proc_pid_oom_score_adj(5)). One that gives way to more already, as whoever started it wants, does so still.
///
/// # Errors
/// What the system says; then nothing has changed.
pub fn give_way_for_memory() -> Result<(), Error> {
    const PATH: &str = "/proc/self/oom_score_adj";
    const HALF: i32 = 500;
    let now = std::fs::read_to_string(PATH)?.trim().parse::<i32>();
    match now.map_err(Error::other)? {
        now if now < HALF => std::fs::write(PATH, HALF.to_string()),
        _ => Ok(()),
    }
}

/// The shortest turn that the kernel grants, in nanoseconds (kernel/sched/syscalls.c, `__setparam_fair`).
const SHORT: u64 = 100_000;

/// From now on this thread, and each that it starts, takes a CPU in short turns: one that wakes runs sooner where others compute, and
/// leaves sooner (EEVDF: the shorter the slice, the earlier the deadline). How much it gets in all stays as it is.
///
/// Kernels before Linux 6.12 take the slice and do nothing with it.
///
/// # Errors
/// What the system says; then nothing has changed.
pub fn take_short_turns() -> Result<(), Error> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: all fields are numbers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes `size` bytes at the most, which is what is there.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) } {
        0 => {}
        _ => return Err(Error::last_os_error()),
    }
    attributes.sched_runtime = SHORT;
    // SAFETY: the kernel reads as many bytes as the first field says: what it was told above.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In nanoseconds, of this thread; zero where the kernel does not say.
    fn turn() -> u64 {
        // SAFETY: all fields are numbers.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: the kernel writes `size` bytes at the most.
        let answer =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(answer, 0);
        attributes.sched_runtime
    }

    /// The tests' own process goes first, too: it can be started again.
    #[test]
    fn who_gives_way_for_memory_goes_first() {
        let read = || std::fs::read_to_string("/proc/self/oom_score_adj").expect("a number");
        give_way_for_memory().expect("anybody may");
        assert_eq!(read().trim(), "500");
    }

    #[test]
    fn threads_take_short_turns_as_who_started_them() {
        let before = std::thread::spawn(turn).join().expect("a turn");
        let (own, inherited) = std::thread::spawn(|| {
            take_short_turns().expect("short turns");
            (turn(), std::thread::spawn(turn).join().expect("a turn"))
        })
        .join()
        .expect("turns");
        // Kernels before 6.12 say nothing of turns.
        if before > 0 {
            assert!(own < before, "{own} of {before}");
        }
        assert_eq!(own, inherited);
        assert_eq!(std::thread::spawn(turn).join().expect("a turn"), before);
    }
}
