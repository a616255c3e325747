//! Nodes that die, restart, and stand still, seen through the mounts of a lab of two nodes.
//!
//! Needs root and /dev/fuse; passes without looking where these are missing. Every command is bounded by
//! `timeout`, and the lab is removed in any case.
#![allow(clippy::disallowed_methods, reason = "a test of mounts does I/O")]

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// Lease and margin, and some time for a busy machine, in seconds.
const DEAD_LIMIT: u32 = 40;
/// Any other command.
const LIMIT: u32 = 60;

fn can_run() -> bool {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    let is_able = is_root && Path::new("/dev/fuse").exists();
    if !is_able {
        eprintln!("passed without looking: needs root and /dev/fuse");
    }
    is_able
}

fn bounded(seconds: u32, words: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "2", &seconds.to_string()])
        .args(words)
        .output()
        .expect("coreutils are there")
}

/// A lab of two nodes, removed when it is dropped.
struct Lab {
    directory: tempfile::TempDir,
}

impl Lab {
    fn up() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let lab = Self { directory };
        lab.gupfs(&["up", "--nodes", "2", "--size", "2G", "--backing", "file"]);
        lab
    }

    fn root(&self) -> &str {
        self.directory.path().to_str().expect("a plain name")
    }

    fn try_gupfs(&self, words: &[&str]) -> Output {
        let mut all = vec![env!("CARGO_BIN_EXE_gupfs"), "lab"];
        all.extend(words);
        all.extend(["--dir", self.root()]);
        bounded(LIMIT, &all)
    }

    fn gupfs(&self, words: &[&str]) {
        let output = self.try_gupfs(words);
        assert!(output.status.success(), "lab {words:?}: {output:?}");
    }

    /// Runs a shell command with `$M1` and `$M2`, the mounts; returns what it says.
    fn sh(&self, seconds: u32, script: &str) -> String {
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
    fn reads(&self, file: &str, text: &str) {
        let script = format!("cat {file}");
        assert_eq!(
            self.sh(LIMIT, &script).trim_end(),
            text,
            "{file}\n{}",
            self.logs()
        );
    }

    /// Writes through one mount, reads through the other, both ways.
    fn works(&self, text: &str) {
        self.sh(
            LIMIT,
            &format!("echo {text}-1 >$M1/one; echo {text}-2 >$M2/two"),
        );
        self.reads("$M2/one", &format!("{text}-1"));
        self.reads("$M1/two", &format!("{text}-2"));
        self.sh(
            LIMIT,
            &format!("echo {text}-3 >$M2/one; echo {text}-4 >$M1/two"),
        );
        self.reads("$M1/one", &format!("{text}-3"));
        self.reads("$M2/two", &format!("{text}-4"));
    }

    fn logs(&self) -> String {
        let tails = [1, 2].map(|node| {
            let path = format!("{}/n{node}/log", self.root());
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("n{node}:\n{tail}\n")
        });
        tails.concat()
    }

    fn log_has(&self, node: u16, words: &str) -> bool {
        let path = format!("{}/n{node}/log", self.root());
        std::fs::read_to_string(path).is_ok_and(|text| text.contains(words))
    }

    fn signal(&self, node: u16, signal: &str) {
        let script = format!("kill -{signal} $(cat {}/n{node}/pid)", self.root());
        self.sh(LIMIT, &script);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A stopped daemon can be ended, but not asked; a test that failed may have left it stopped.
        for node in [1, 2] {
            let script = format!("kill -CONT $(cat {}/n{node}/pid)", self.root());
            let _ = bounded(5, &["sh", "-c", &script]);
        }
        let output = self.try_gupfs(&["down"]);
        if !std::thread::panicking() {
            assert!(output.status.success(), "lab down: {output:?}");
        }
    }
}

#[test]
fn restarted_owners_know_what_others_hold() {
    if !can_run() {
        return;
    }
    let lab = Lab::up();
    lab.works("begin");
    lab.sh(
        LIMIT,
        "mkdir $M1/d1 $M2/d2; for d in d1 d2; do echo 0 >$M1/$d/held; done",
    );
    for node in ["n2", "n1"] {
        // The other node holds write tokens with dirty data, and knows that a name is absent, in
        // directories of both owners.
        let (other, own) = if node == "n2" {
            ("$M1", "$M2")
        } else {
            ("$M2", "$M1")
        };
        for d in ["d1", "d2"] {
            lab.reads(&format!("{own}/{d}/held"), "0");
            lab.sh(
                LIMIT,
                &format!("echo {node} >{other}/{d}/held; ! ls {other}/{d}/new 2>&1"),
            );
        }
        lab.gupfs(&["kill", node]);
        lab.gupfs(&["start", node]);
        for d in ["d1", "d2"] {
            lab.reads(&format!("{own}/{d}/held"), node);
            lab.sh(LIMIT, &format!("echo made >{own}/{d}/new"));
            lab.reads(&format!("{other}/{d}/new"), "made");
            lab.sh(
                LIMIT,
                &format!("rm {own}/{d}/new; ! ls {other}/{d}/new 2>&1; echo 0 >{own}/{d}/held"),
            );
            lab.reads(&format!("{other}/{d}/held"), "0");
        }
        lab.works(node);
    }
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    // Neither waits for the other's former life once both are there.
    lab.gupfs(&["start", "n1", "n2"]);
    lab.works("both");
}

#[test]
fn a_silent_node_is_declared_dead_and_starts_anew() {
    if !can_run() {
        return;
    }
    let lab = Lab::up();
    lab.works("begin");
    // Shorter than the lease: nothing but a pause.
    lab.signal(2, "STOP");
    lab.sh(LIMIT, "sleep 2");
    lab.signal(2, "CONT");
    lab.works("pause");
    assert!(!lab.log_has(2, "starting anew"), "{}", lab.logs());
    // Longer: node 1 gets the tokens that node 2 holds.
    lab.sh(LIMIT, "mkdir $M1/d1; echo old >$M1/d1/held; echo held >$M2/d1/held; ls -l $M2/d1; cat $M2/d1/held");
    lab.signal(2, "STOP");
    lab.sh(DEAD_LIMIT, "echo after >$M1/d1/held; echo new >$M1/d1/new");
    lab.signal(2, "CONT");
    // Without a mount for a moment, as after a crash, but never with what was.
    let seen = lab.sh(
        LIMIT,
        "until cat $M2/d1/held $M2/d1/new 2>/dev/null; do sleep 0.05; done",
    );
    assert_eq!(seen.trim_end(), "after\nnew", "{}", lab.logs());
    assert!(lab.log_has(2, "starting anew"), "{}", lab.logs());
    lab.works("again");
    // Alone, after both were killed: the other one's former life is declared dead.
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    lab.gupfs(&["start", "n1"]);
    lab.sh(DEAD_LIMIT, "ls $M1 >/dev/null");
    lab.gupfs(&["start", "n2"]);
    lab.works("end");
}
