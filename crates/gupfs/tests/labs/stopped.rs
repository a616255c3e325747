//! Daemons that do not run.

use std::fs;
use std::time::{Duration, Instant};

/// Waits until SIGSTOP has stopped every thread of the process. The signal goes to one of them, which tells the others when
/// it runs: on a busy machine they go on for some time.
pub(crate) fn await_stopped(pid: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    let tasks = format!("/proc/{pid}/task");
    let states = || -> std::io::Result<String> {
        let mut states = String::new();
        for task in fs::read_dir(&tasks)? {
            // One that has ended since is not there to be read.
            let Ok(stat) = fs::read_to_string(task?.path().join("stat")) else {
                continue;
            };
            let state = stat
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            states.extend(state);
        }
        Ok(states)
    };
    loop {
        let seen = states().unwrap_or_else(|e| panic!("{tasks}: {e}"));
        if !seen.is_empty() && seen.chars().all(|state| state == 'T') {
            return;
        }
        assert!(Instant::now() < until, "{pid} is not stopped: {seen}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
