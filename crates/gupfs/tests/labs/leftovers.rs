//! What a crash leaves of a lab is cleaned up or named; what somebody removed is named.

use std::fs;
use std::path::PathBuf;

use crate::lab::{LIMIT, Lab, bounded, can_run};

impl Lab {
    /// Ends both daemons as a crash of the machine's processes does: mounts, name spaces and loop devices stay.
    fn crash(&self) {
        for node in [1, 2] {
            gupfs::service::crash(&self.place(node)).expect("one that runs, and has ended now");
        }
    }

    fn place(&self, node: u16) -> gupfs::state::Place {
        let lab = gupfs::lab::Lab::new(self.root().as_ref()).expect("an absolute path");
        lab.place(node).expect("an absolute path")
    }

    fn name_space(&self, node: u16) -> String {
        let state = self.place(node).load().expect("readable").expect("there");
        state.netns.expect("a lab has name spaces")
    }

    /// `gupfs lab` with these words fails, and its message has all of `parts`.
    fn refuses(&self, words: &[&str], parts: &[&str]) {
        let output = self.try_gupfs(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{words:?}: {said}");
        for part in parts {
            assert!(said.contains(part), "{part:?} is not in: {said}");
        }
    }
}

/// Mounts below `root`, loop devices over files below it, and network name spaces with one of these names.
fn leftovers(root: &str, name_spaces: &[String]) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut found: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(root))
        .map(str::to_owned)
        .collect();
    let loops = bounded(LIMIT, &["losetup", "--list", "--output", "NAME,BACK-FILE"]);
    let loops = String::from_utf8(loops.stdout).unwrap();
    found.extend(
        loops
            .lines()
            .filter(|l| l.contains(root))
            .map(str::to_owned),
    );
    let paths = name_spaces
        .iter()
        .map(|name| PathBuf::from("/run/netns").join(name));
    found.extend(
        paths
            .filter(|p| p.exists())
            .map(|p| p.display().to_string()),
    );
    found
}

#[test]
fn what_a_crash_left_is_used_again_or_removed() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("512M", "loop");
    let names = [1, 2].map(|node| lab.name_space(node));
    lab.sh(
        LIMIT,
        "echo kept >$M1/kept; sync -f $M1/kept; sync $M1/kept",
    );
    // Dead mounts, name spaces, loop devices.
    lab.crash();
    lab.gupfs(&["up"]);
    lab.reads("$M2/kept", "kept");
    // Asked for another one, it says that it is as it was.
    let output = lab.try_gupfs(&["up", "--nodes", "3", "--size", "1G"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let as_made = "as it was made (2 nodes, 512.0 MiB in all, backing loop)";
    assert!(said.contains(as_made), "{said}");
    // Half of the name spaces is gone.
    lab.crash();
    let output = bounded(LIMIT, &["ip", "netns", "delete", &names[1]]);
    assert!(output.status.success(), "{output:?}");
    lab.gupfs(&["up"]);
    lab.reads("$M2/kept", "kept");
    // A node's directory is gone, with its log and its mount point: named, nothing is started.
    lab.crash();
    let node = PathBuf::from(lab.root()).join("n2");
    let output = bounded(
        LIMIT,
        &["umount", "--lazy", node.join("mnt").to_str().unwrap()],
    );
    assert!(output.status.success(), "{output:?}");
    fs::remove_dir_all(&node).unwrap();
    lab.refuses(&["up"], &["n2", "gupfs.toml is missing", "lab down"]);
    lab.refuses(&["start", "n2"], &["n2", "gupfs.toml", "help:"]);
    let running = gupfs::system::process::daemons_of(lab.place(1).root()).unwrap();
    assert!(running.is_empty(), "{running:?}");
    assert!(!leftovers(lab.root(), &names).is_empty());
    lab.gupfs(&["down"]);
    assert_eq!(leftovers(lab.root(), &names), [""; 0]);
    // Nothing is there any more.
    lab.refuses(&["status"], &["no lab"]);
    lab.gupfs(&["up", "--nodes", "2", "--size", "512M"]);
}
