//! A lab of two nodes for one test: made, watched for hangs, and removed again whatever happens.
//!
//! Invariants:
//! - A step that takes longer than `STEP_LIMIT` ends: the watchdog prints who waits for what on both nodes and
//!   where their threads are in the kernel, aborts the mounts, and kills the daemons if that did not help.
//! - The lab is gone when the fixture is dropped, also by a panic.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gupfs::control::{self, Answer};
use gupfs::lab::Lab;
use gupfs::{inspect, service};
use serde_json::Value;

use crate::stopped::await_stopped;

/// A step that takes longer hangs.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// So long after the abort the daemons are killed.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// What one thread of a test is doing, and until when it has time.
#[derive(Clone, Default)]
pub struct Slot(Arc<Mutex<Option<(String, Instant)>>>);

impl Slot {
    /// Does `step`, which the watchdog knows as `text`.
    pub fn run<T>(&self, text: &str, step: impl FnOnce() -> T) -> T {
        self.run_within(STEP_LIMIT, text, step)
    }

    /// The same for a step that may take so long.
    pub fn run_within<T>(&self, limit: Duration, text: &str, step: impl FnOnce() -> T) -> T {
        *self.0.lock().expect("never poisoned") = Some((text.to_owned(), Instant::now() + limit));
        let done = step();
        *self.0.lock().expect("never poisoned") = None;
        done
    }

    fn overdue(&self) -> Option<String> {
        let slot = self.0.lock().expect("never poisoned");
        let (text, until) = slot.as_ref()?;
        (Instant::now() >= *until).then(|| text.clone())
    }
}

#[derive(Default)]
struct Shared {
    slots: Mutex<Vec<Slot>>,
    dump: Mutex<Option<String>>,
}

/// Why tests on mounts cannot run here; `None` if they can.
pub fn reason_to_skip() -> Option<&'static str> {
    use std::os::unix::fs::MetadataExt as _;
    if !fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0) {
        return Some("needs root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("needs /dev/fuse")
}

/// Why fuse-over-io_uring cannot be used here; `None` if it can.
pub fn reason_without_ring() -> Option<&'static str> {
    // A daemon that is to use it switches it on.
    let is_there = Path::new("/sys/module/fuse/parameters/enable_uring").exists();
    (!is_there).then_some("this kernel has no fuse-over-io_uring")
}

/// Two nodes with one file system.
pub struct Fixture {
    root: PathBuf,
    shared: Arc<Shared>,
    shell: Mutex<Shell>,
    stop: Option<Sender<()>>,
    watchdog: Option<JoinHandle<()>>,
}

impl Fixture {
    /// Makes the lab.
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// Makes the lab with these options of `lab up`.
    pub fn with(options: &[&str]) -> Self {
        let directory = tempfile::Builder::new().prefix("gupfs-two-").tempdir();
        let root = directory.expect("a directory").keep();
        let shared = Arc::new(Shared::default());
        let (stop, stopped) = channel();
        let (watched, lab_root) = (Arc::clone(&shared), root.clone());
        let watchdog = std::thread::spawn(move || {
            let look = Duration::from_millis(200);
            while stopped.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
                let slots = watched.slots.lock().expect("never poisoned").clone();
                let Some(text) = slots.iter().find_map(Slot::overdue) else {
                    continue;
                };
                let dump = format!("{text}: hangs\n{}", waiters(&lab_root));
                eprintln!("{dump}");
                *watched.dump.lock().expect("never poisoned") = Some(dump);
                abort(&lab_root);
                if stopped.recv_timeout(ABORT_LIMIT) == Err(RecvTimeoutError::Timeout) {
                    kill(&lab_root);
                }
                return;
            }
        });
        let fixture = Self {
            root,
            shared,
            shell: Mutex::new(Shell::new()),
            stop: Some(stop),
            watchdog: Some(watchdog),
        };
        let mut up = vec!["up", "--nodes", "2", "--size", "2G", "--backing", "file"];
        let direct_from = std::env::var("GUPFS_DIRECT_FROM");
        if let (Ok(size), false) = (&direct_from, options.contains(&"--direct-from")) {
            up.extend(["--direct-from", size.as_str()]);
        }
        up.extend(options);
        let said = fixture.lab(&up).expect("the lab comes up");
        assert!(said.contains("node n2 is up"), "{said}");
        fixture
    }

    /// The mount of node 1 or 2.
    pub fn mount(&self, node: usize) -> PathBuf {
        self.root.join(format!("n{node}/mnt"))
    }

    /// `path` as node 1 or 2 sees it.
    pub fn path(&self, node: usize, path: &str) -> PathBuf {
        self.mount(node).join(path)
    }

    /// A slot for one thread of the test.
    pub fn slot(&self) -> Slot {
        let slot = Slot::default();
        let mut slots = self.shared.slots.lock().expect("never poisoned");
        slots.push(slot.clone());
        slot
    }

    /// The dump of a hang, if there was one.
    pub fn hang(&self) -> Option<String> {
        self.shared.dump.lock().expect("never poisoned").clone()
    }

    /// Who waits for what on both nodes now.
    pub fn waiters(&self) -> String {
        waiters(&self.root)
    }

    /// Ends both daemons without warning, and starts them anew.
    pub fn restart(&self) -> Result<(), String> {
        for what in ["kill", "start"] {
            for node in ["n1", "n2"] {
                self.lab(&[what, node])?;
            }
        }
        Ok(())
    }

    /// Sets a setting of node 1 or 2, in effect from its next start on.
    pub fn set(&self, node: usize, key: &str, value: &str) {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "90", env!("CARGO_BIN_EXE_gupfs")]);
        command.args(["config", "set", key, value, "--state"]);
        let output = command.arg(self.root.join(format!("n{node}"))).output();
        let output = output.expect("timeout(1) runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{key}: {said}");
    }

    /// The counters of node 1 or 2.
    pub fn counters(&self, node: u16) -> Value {
        let place = lab(&self.root).place(node).expect("an absolute path");
        control::require(&place.control(), "counters").expect("the daemon runs")
    }

    /// What the owner knows of the inode at `path` (`gupfs dump inode`), whichever node that is.
    pub fn inode(&self, path: &Path) -> Value {
        use std::os::unix::fs::MetadataExt as _;
        let number = fs::metadata(path).expect("it is there").ino();
        let mut said = Vec::new();
        for node in [1, 2] {
            let place = lab(&self.root).place(node).expect("an absolute path");
            let answer = control::require(&place.control(), &format!("inode {number}"));
            let answer = answer.expect("the daemon runs");
            if answer["error"].is_null() {
                return answer;
            }
            said.push(answer);
        }
        panic!("no node owns inode {number}: {said:?}");
    }

    /// What the daemon of a node answers to `status` or `waiters`; nothing while it is away.
    pub fn ask(&self, node: u16, request: &str) -> Option<Value> {
        let place = lab(&self.root).place(node).expect("an absolute path");
        match control::ask(&place.control(), request, Duration::from_secs(3)) {
            Ok(Answer::Said(value)) => Some(value),
            Ok(Answer::Absent | Answer::Silent) | Err(_) => None,
        }
    }

    fn run(&self, command: &str) {
        self.shell.lock().expect("never poisoned").run(command);
    }

    /// The log of a node.
    pub fn log(&self, node: u16) -> String {
        fs::read_to_string(self.root.join(format!("n{node}/log"))).unwrap_or_default()
    }

    /// Cuts a node off from the other, or joins it again.
    pub fn link(&self, node: u16, is_up: bool) {
        let place = lab(&self.root).place(node).expect("an absolute path");
        let state = place.load().expect("readable").expect("a state directory");
        let name = state.netns.expect("a lab has name spaces");
        let state = if is_up { "up" } else { "down" };
        self.run(&format!("ip -n {name} link set lab0 {state}"));
    }

    /// Sends a signal to the daemon of a node. After "STOP" none of its threads runs.
    pub fn signal(&self, node: u16, signal: &str) {
        let place = lab(&self.root).place(node).expect("an absolute path");
        let pids = gupfs::system::process::daemons_of(place.root()).expect("readable");
        assert_eq!(pids.len(), 1, "one daemon of n{node}");
        let pid = pids[0].to_string();
        self.run(&format!("kill -{signal} {pid}"));
        if signal == "STOP" {
            await_stopped(&pid);
        }
    }

    /// Ends the mounts as a crash does, and waits until the daemons have ended: the kernel ends them when their last system call has.
    pub fn end(&self) {
        abort(&self.root);
        kill(&self.root);
        for node in [1, 2] {
            let place = lab(&self.root).place(node).expect("an absolute path");
            match service::wait_ended(&place, Duration::from_secs(20)) {
                Ok(true) => {}
                Ok(false) => eprintln!("the daemon of n{node} does not end although it was killed"),
                Err(failure) => eprintln!("whether the daemon of n{node} has ended: {failure}"),
            }
        }
    }

    /// Ends the lab as a user does: what is dirty is written back first.
    pub fn down(&self) -> Result<String, String> {
        self.lab(&["down"])
    }

    /// Checks what the daemons have left; what is wrong. They were killed a moment ago, and the kernel gives their disks
    /// free when their last request has ended.
    fn fsck(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let outcome = self.fsck_once();
            let is_in_use = |said: &String| said.contains("is in use by another process");
            if !outcome.as_ref().is_err_and(is_in_use) || Instant::now() > until {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn fsck_once(&self) -> Result<(), String> {
        let mut command = Command::new("timeout");
        command.args([
            "-k",
            "5",
            "90",
            env!("CARGO_BIN_EXE_gupfs"),
            "fsck",
            "--data",
        ]);
        let output = command.arg(&self.root).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("timeout(1): {e}"))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("{output:?}")),
        }
    }

    /// Runs `gupfs lab` on it; what it said, or why it failed.
    pub fn lab(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "90", env!("CARGO_BIN_EXE_gupfs"), "lab"]);
        command.arg(arguments[0]).arg("--dir").arg(&self.root);
        let output = command.args(&arguments[1..]).stdin(Stdio::null()).output();
        let output = output.map_err(|e| format!("timeout(1): {e}"))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(said + &String::from_utf8_lossy(&output.stderr)),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watchdog) = self.watchdog.take() {
            let _ = watchdog.join();
        }
        if std::thread::panicking() {
            for node in [1, 2] {
                let log = fs::read_to_string(self.root.join(format!("n{node}/log")));
                let log = log.unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                // From a panic on, if there is one.
                let panic = lines.iter().position(|line| line.contains("panicked"));
                let first = panic.unwrap_or(lines.len().saturating_sub(15));
                let tail = lines[first..lines.len().min(first + 40)].join("\n");
                eprintln!("end of the log of n{node}:\n{tail}");
            }
        }
        // What was written is of no use any more, and a daemon in trouble must not hold the others' tests up.
        self.end();
        if !self.root.exists() {
            return;
        }
        // As the end of both left it: it is a whole file system.
        let fsck = self.fsck();
        if let Err(said) = self.lab(&["down"]) {
            eprintln!("left behind: {}: {said}", self.root.display());
        }
        if !std::thread::panicking() {
            assert_eq!(fsck, Ok(()));
        }
        let _ = fs::remove_dir(&self.root);
    }
}

/// A shell that runs commands for the test. A process that the test itself starts would close the test's files
/// when it begins, and a close waits on a node without a lease.
struct Shell {
    child: std::process::Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Shell {
    fn new() -> Self {
        let script = "while read -r line; do eval \"$line\" >/dev/null 2>&1; echo $?; done";
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("a shell");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, said }
    }

    fn run(&mut self, command: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{command}").expect("the shell reads");
        let mut code = String::new();
        self.said.read_line(&mut code).expect("the shell answers");
        assert_eq!(code.trim(), "0", "{command}");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn lab(root: &Path) -> Lab {
    Lab::new(root).expect("an absolute path")
}

fn abort(root: &Path) {
    for node in [1, 2] {
        if let Err(failure) = service::abort(&lab(root).mount(node)) {
            eprintln!("abort of n{node}: {failure}");
        }
    }
}

/// Kills both daemons; each pid is checked to be the daemon of its directory.
fn kill(root: &Path) {
    for node in [1, 2] {
        let place = lab(root).place(node).expect("an absolute path");
        for pid in gupfs::system::process::daemons_of(place.root()).unwrap_or_default() {
            if let Err(failure) = gupfs::system::process::kill_daemon(pid, place.root()) {
                eprintln!("kill of n{node}, pid {pid}: {failure}");
            }
        }
    }
}

fn waiters(root: &Path) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for node in [1, 2] {
        let place = lab(root).place(node).expect("an absolute path");
        let answer = control::ask(&place.control(), "waiters", Duration::from_secs(3));
        let waiters = match answer {
            Ok(Answer::Said(waiters)) => inspect::to_text(&waiters),
            Ok(Answer::Absent) => "the daemon is gone\n".to_owned(),
            Ok(Answer::Silent) => "the daemon does not answer\n".to_owned(),
            Err(failure) => format!("{failure}\n"),
        };
        let _ = write!(text, "node n{node}: {waiters}");
        for pid in gupfs::system::process::daemons_of(place.root()).unwrap_or_default() {
            text += &stacks(&format!("daemon of n{node}"), &pid.to_string());
        }
    }
    text + &stacks("test", "self")
}

/// Where the threads of a process are in the kernel, of those that are inside of FUSE or the page cache.
fn stacks(what: &str, pid: &str) -> String {
    let mut text = String::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
    {
        let Ok(thread) = thread else { continue };
        let stack = fs::read_to_string(thread.path().join("stack")).unwrap_or_default();
        let frames: Vec<&str> = stack
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1)?.split('+').next())
            .collect();
        let is_waiting = |f: &&str| f.contains("folio") || f.contains("request_wait");
        if frames.iter().any(is_waiting) {
            let name = fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
            text += &format!("{what}, thread {}: {}\n", name.trim(), frames.join(" < "));
        }
    }
    text
}
