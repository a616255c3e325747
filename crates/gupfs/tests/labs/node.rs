//! One mounted node for one test, gone when it is dropped.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// One mounted node.
pub(crate) struct Node {
    root: PathBuf,
}

impl Node {
    /// Makes a file system and mounts it. `None`: it cannot be done here.
    pub(crate) fn new(size: &str) -> Option<Self> {
        let is_root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
        if !is_root || !Path::new("/dev/fuse").exists() {
            crate::left_out::left_out("needs root and /dev/fuse");
            return None;
        }
        let directory = tempfile::Builder::new().prefix("gupfs-node-").tempdir();
        let node = Self {
            root: directory.unwrap().keep(),
        };
        fs::create_dir(node.mount()).unwrap();
        node.up(&["--size", size]).expect("it comes up");
        Some(node)
    }

    /// `gupfs up` with these options; what it says if it fails.
    pub(crate) fn up(&self, options: &[&str]) -> Result<(), String> {
        let mount = self.mount();
        let mut words = vec!["up", "--mount", mount.to_str().unwrap()];
        words.extend(options);
        let output = self.run(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(said)
    }

    pub(crate) fn mount(&self) -> PathBuf {
        self.root.join("mnt")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// What a command of `gupfs` on this node's state directory gives.
    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "90", env!("CARGO_BIN_EXE_gupfs")]);
        command.args(words).arg("--state").arg(self.state());
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// What a command of `gupfs` says, which must succeed.
    pub(crate) fn gupfs(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let mut down = Command::new("timeout");
        down.args(["-k", "5", "45", env!("CARGO_BIN_EXE_gupfs"), "down"]);
        let _ = down
            .arg("--destroy")
            .arg("--state")
            .arg(self.state())
            .output();
        let _ = fs::remove_dir_all(&self.root);
    }
}
