//! Daemons as processes: found by their command line, started in the background, killed by pid only.
//!
//! Invariant: a signal is sent only to a process whose command line is `gupfs daemon` with `--state DIR`, with
//! exactly that directory, checked right before.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::shell;
use crate::failure::{Failure, Result};

/// All daemons of this machine: pid and state directory.
pub fn daemons() -> Result<Vec<(u32, PathBuf)>> {
    let root = Path::new("/proc");
    let entries = fs::read_dir(root).map_err(|e| Failure::io("read", root, &e))?;
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, PathBuf::from(OsString::from_vec(state_of(pid)?)))))
        .collect();
    found.sort_unstable();
    Ok(found)
}

/// Pids of the daemons that serve the state directory `state`.
pub fn daemons_of(state: &Path) -> Result<Vec<u32>> {
    Ok(daemons()?
        .into_iter()
        .filter(|(_, s)| s == state)
        .map(|(pid, _)| pid)
        .collect())
}

/// The daemons whose state directory lies in `directory`.
pub fn daemons_below(directory: &Path) -> Result<Vec<(u32, PathBuf)>> {
    Ok(daemons()?
        .into_iter()
        .filter(|(_, s)| s.starts_with(directory))
        .collect())
}

/// The state directory of the daemon `pid`; `None` when it is no daemon of ours, or has ended.
fn state_of(pid: u32) -> Option<Vec<u8>> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    // A copy of the program may have another name.
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(Path::file_name);
    parse_command_line(&line, own.unwrap_or(OsStr::new("gupfs")))
}

/// The state directory in the command line of a daemon of a program called `own` or `gupfs`.
fn parse_command_line(line: &[u8], own: &OsStr) -> Option<Vec<u8>> {
    let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
    let program = Path::new(OsStr::from_bytes(words.first()?)).file_name()?;
    let is_daemon =
        (program == "gupfs" || program == own) && words.get(1) == Some(&b"daemon".as_slice());
    if !is_daemon {
        return None;
    }
    let mut words = words.iter().skip(2);
    while let Some(word) = words.next() {
        if *word == b"--state" {
            return words.next().map(|w| w.to_vec());
        }
        if let Some(state) = word.strip_prefix(b"--state=") {
            return Some(state.to_vec());
        }
    }
    None
}

/// Sends SIGKILL to `pid` if it is (still) the daemon of `state`; says whether it did.
pub fn kill_daemon(pid: u32, state: &Path) -> Result<bool> {
    if state_of(pid).as_deref() != Some(state.as_os_str().as_bytes()) {
        return Ok(false);
    }
    shell::run("sh", &["-c", "kill -9 \"$1\"", "sh", &pid.to_string()])?;
    Ok(true)
}

/// Starts `gupfs daemon --state STATE` in a session of its own, its output appended to `log`; `arguments` besides.
pub fn start_daemon(state: &Path, log: &Path, arguments: &[String]) -> Result<Child> {
    let program =
        std::env::current_exe().map_err(|e| Failure::new(format!("cannot find myself: {e}")))?;
    let open = || {
        use std::os::unix::fs::OpenOptionsExt as _;
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(log)
            .map_err(|e| Failure::io("open", log, &e))
    };
    Command::new("setsid")
        .arg(program)
        .arg("daemon")
        .arg("--state")
        .arg(state)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(open()?)
        .stderr(open()?)
        .spawn()
        .map_err(|e| {
            Failure::new(format!("cannot start the daemon through setsid: {e}"))
                .help("apt-get install util-linux")
        })
}

/// The last `count` lines of `path`.
pub fn tail(path: &Path, count: usize) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_daemons_are_recognised() {
        let state = |line: &[u8]| parse_command_line(line, OsStr::new("copy"));
        assert_eq!(
            state(b"/x/gupfs\0daemon\0--state\0/a b\0"),
            Some(b"/a b".to_vec())
        );
        assert_eq!(state(b"gupfs\0status\0--state\0/a\0"), None);
        assert_eq!(state(b"vi\0daemon\0--state\0/a\0"), None);
        assert_eq!(
            state(b"/y/copy\0daemon\0--state\0/a\0"),
            Some(b"/a".to_vec())
        );
        assert_eq!(state(b""), None);
        assert_eq!(state(b"gupfs\0daemon\0"), None);
        assert_eq!(
            state(b"gupfs\0daemon\0--set\0lease_ms=4000\0--state\0/a\0"),
            Some(b"/a".to_vec())
        );
        assert_eq!(state(b"gupfs\0daemon\0--state=/a\0"), Some(b"/a".to_vec()));
    }

    #[test]
    fn a_process_that_is_no_daemon_is_not_killed() {
        let killed = kill_daemon(std::process::id(), Path::new("/x")).expect("looked");
        assert!(!killed, "I live");
    }

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("log");
        fs::write(&path, "1\n2\n3\n").expect("written");
        assert_eq!(tail(&path, 2), "2\n3");
        assert_eq!(tail(&path, 9), "1\n2\n3");
        assert_eq!(tail(Path::new("/no/such"), 2), "");
    }
}
