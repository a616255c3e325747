//! A lab of two nodes for one test, removed when it is dropped.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::stopped::await_stopped;

/// Seconds for any command.
pub(crate) const LIMIT: u32 = 60;

/// Whether labs can run here; says so if not.
pub(crate) fn can_run() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let is_able = is_root && Path::new("/dev/fuse").exists();
    if !is_able {
        crate::left_out::left_out("needs root and /dev/fuse");
    }
    is_able
}

/// Runs a command, which is killed after so many seconds.
pub(crate) fn bounded(seconds: u32, words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "2", &seconds.to_string()])
        .args(words)
        .output()
        .expect("coreutils are there")
}

/// What `gupfs fsck --json` says of `path`, and its exit code.
pub(crate) fn fsck(path: &Path, options: &[&str]) -> (Value, i32) {
    let mut words = vec![env!("CARGO_BIN_EXE_gupfs"), "fsck", "--json"];
    words.extend(options);
    words.push(path.to_str().unwrap());
    let begin = Instant::now();
    let output = loop {
        let output = bounded(60, &words);
        let said = String::from_utf8_lossy(&output.stderr);
        let patience = if said.contains("is in use by another process") {
            // Daemons that were killed a moment ago: the kernel gives their disks free when their last request has ended.
            Duration::from_secs(20)
        } else if said.contains("has moved on") {
            // An owner wrote new roots faster than a busy machine read its trees (docs/decisions/0015): nothing was found.
            Duration::from_secs(120)
        } else {
            Duration::ZERO
        };
        if begin.elapsed() >= patience {
            break output;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let code = output.status.code().expect("it ends by itself");
    let said = String::from_utf8_lossy(&output.stdout);
    let value = serde_json::from_str(&said);
    (value.unwrap_or_else(|_| panic!("{output:?}")), code)
}

/// A lab, of two nodes mostly, removed when it is dropped.
pub(crate) struct Lab {
    directory: tempfile::TempDir,
    node_count: usize,
}

impl Lab {
    pub(crate) fn up(size: &str, backing: &str) -> Self {
        Self::of_nodes(2, size, backing)
    }

    pub(crate) fn of_nodes(node_count: usize, size: &str, backing: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = Self {
            directory,
            node_count,
        };
        let nodes = node_count.to_string();
        lab.gupfs(&[
            "up",
            "--nodes",
            &nodes,
            "--size",
            size,
            "--backing",
            backing,
        ]);
        lab
    }

    pub(crate) fn root(&self) -> &str {
        self.directory.path().to_str().expect("a plain name")
    }

    /// What `gupfs lab` with these words says.
    pub(crate) fn try_gupfs(&self, words: &[&str]) -> Output {
        let mut all = vec![env!("CARGO_BIN_EXE_gupfs"), "lab"];
        all.extend(words);
        all.extend(["--dir", self.root()]);
        bounded(LIMIT, &all)
    }

    /// `gupfs lab` with these words, which must succeed.
    pub(crate) fn gupfs(&self, words: &[&str]) {
        let output = self.try_gupfs(words);
        assert!(output.status.success(), "lab {words:?}: {output:?}");
    }

    pub(crate) fn mount(&self, node: usize) -> PathBuf {
        self.directory.path().join(format!("n{node}/mnt"))
    }

    /// What `gupfs dump` of a node says.
    pub(crate) fn dump(&self, node: usize, what: &str) -> Value {
        let state = format!("{}/n{node}", self.root());
        let gupfs = env!("CARGO_BIN_EXE_gupfs");
        let output = bounded(LIMIT, &[gupfs, "dump", what, "--state", &state, "--json"]);
        assert!(output.status.success(), "dump {what}: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Runs a shell command with `$M1` and `$M2`, the mounts; returns what it says.
    pub(crate) fn sh(&self, seconds: u32, script: &str) -> String {
        let (m1, m2) = (
            format!("M1={}/n1/mnt", self.root()),
            format!("M2={}/n2/mnt", self.root()),
        );
        let output = bounded(seconds, &["env", &m1, &m2, "sh", "-ec", script]);
        assert!(
            output.status.success(),
            "{script}: {output:?}\n{}",
            self.logs()
        );
        String::from_utf8(output.stdout).expect("text")
    }

    /// `file` (`$M1/x` or the like) reads as `text`.
    pub(crate) fn reads(&self, file: &str, text: &str) {
        let found = self.sh(LIMIT, &format!("cat {file}"));
        assert_eq!(found.trim_end(), text, "{file}\n{}", self.logs());
    }

    /// The log of a node.
    pub(crate) fn log(&self, node: usize) -> String {
        fs::read_to_string(format!("{}/n{node}/log", self.root())).unwrap_or_default()
    }

    /// The end of all logs.
    pub(crate) fn logs(&self) -> String {
        let tails = (1..=self.node_count).map(|node| {
            let text = self.log(node);
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("n{node}:\n{tail}\n")
        });
        tails.collect()
    }

    pub(crate) fn signal(&self, node: usize, signal: &str) {
        let script = format!(
            "kill -{signal} $(cat {0}/n{node}/pid); cat {0}/n{node}/pid",
            self.root()
        );
        let pid = self.sh(LIMIT, &script);
        if signal == "STOP" {
            await_stopped(pid.trim());
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
        // A stopped daemon can be ended, but not asked; a test that failed may have left it stopped.
        for node in 1..=self.node_count {
            let script = format!("kill -CONT $(cat {}/n{node}/pid)", self.root());
            let _ = bounded(5, &["sh", "-c", &script]);
        }
        // As a crash leaves it, whatever the test did: it is a whole file system.
        let found = (!std::thread::panicking()).then(|| {
            for node in 1..=self.node_count {
                let _ = self.try_gupfs(&["kill", &format!("n{node}")]);
            }
            fsck(Path::new(self.root()), &["--data"])
        });
        let output = self.try_gupfs(&["down"]);
        if let Some((found, code)) = found {
            assert_eq!(code, 0, "{found:#}");
            assert!(output.status.success(), "lab down: {output:?}");
        }
    }
}
