//! `gupfs mount` and `umount`, and the same as helpers of mount(8) and umount(8).
//!
//! Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "labs/node.rs"]
mod node;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use node::Node;

/// The program under another name, as packages install it.
fn helper(node: &Node, name: &str) -> PathBuf {
    let path = node.state().with_file_name(name);
    if !path.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gupfs"), &path).unwrap();
    }
    path
}

fn run(program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(program).args(words);
    command.stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The options of the mount at `point`; `None`: nothing is mounted there.
fn options(point: &Path) -> Option<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut lines = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let found = lines.find(|words| Path::new(words[1]) == point && words[2] == "fuse.gupfs")?;
    Some(found[3].split(',').map(str::to_owned).collect())
}

#[test]
fn mount_8_and_umount_8_find_what_they_need() {
    let Some(node) = Node::new("1G") else { return };
    let mount = node.mount();
    let (state, point) = (node.state(), mount.to_str().unwrap());
    let state = state.to_str().unwrap();
    let (to_mount, to_umount) = (
        helper(&node, "mount.fuse.gupfs"),
        helper(&node, "umount.fuse.gupfs"),
    );
    fs::write(mount.join("kept"), "not synced").unwrap();

    // What is in use stays.
    let open = File::open(mount.join("kept")).unwrap();
    let output = run(&to_umount, &[point]);
    assert_eq!(output.status.code(), Some(32), "{}", said(&output));
    assert!(said(&output).contains("busy"), "{}", said(&output));
    assert!(options(&mount).is_some());
    drop(open);

    // When umount returns all is written back and the daemon has ended.
    let output = run(&to_umount, &[point, "-v"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("wrote back"));
    assert_eq!(options(&mount), None);
    assert!(!Path::new(state).join("control.sock").exists());
    let output = run(&to_umount, &[point]);
    assert_eq!(output.status.code(), Some(32));
    assert!(
        said(&output).contains("nothing is mounted"),
        "{}",
        said(&output)
    );

    // What fstab says for others is passed over, the rest holds.
    let words = "rw,nosuid,nodev,noatime,_netdev,nofail,x-systemd.automount,pagepool_size=64M";
    for _ in 0..2 {
        let output = run(&to_mount, &[state, point, "-o", words]);
        assert!(output.status.success(), "{}", said(&output));
    }
    let shown = options(&mount).unwrap();
    for option in ["rw", "nosuid", "nodev", "noatime"] {
        assert!(shown.iter().any(|o| o == option), "{option}: {shown:?}");
    }
    assert_eq!(
        fs::read_to_string(mount.join("kept")).unwrap(),
        "not synced"
    );
    let shown = node.gupfs(&["config", "get", "pagepool_size", "--json"]);
    assert!(shown.contains("\"running\":67108864"), "{shown}");
    let elsewhere = node.state().with_file_name("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let output = run(&to_mount, &[state, elsewhere.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(32));
    assert!(said(&output).contains("is mounted on"), "{}", said(&output));

    // As mount(8) calls it for `-o remount,ro` and back.
    for (word, is_read_only) in [("ro", true), ("rw", false)] {
        let words = format!("rw,nosuid,noatime,user_id=0,allow_other,remount,{word}");
        let output = run(&to_mount, &[state, point, "-o", &words]);
        assert!(output.status.success(), "{}", said(&output));
        let shown = options(&mount).unwrap();
        assert!(shown.iter().any(|o| o == word), "{shown:?}");
        assert!(shown.iter().any(|o| o == "nosuid"), "{shown:?}");
        assert_eq!(fs::write(mount.join("new"), "x").is_err(), is_read_only);
    }

    // By its state directory, and read-only.
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let output = run(gupfs, &["umount", state]);
    assert!(output.status.success(), "{}", said(&output));
    let output = run(gupfs, &["mount", state, "-o", "ro"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(options(&mount).unwrap().iter().any(|o| o == "ro"));
    assert_eq!(
        fs::read_to_string(mount.join("kept")).unwrap(),
        "not synced"
    );
    let error = fs::write(mount.join("new"), "x").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(run(gupfs, &["umount", point]).status.success());

    bad_calls_change_nothing(&node, &to_mount);
}

fn bad_calls_change_nothing(node: &Node, to_mount: &Path) {
    let (state, mount) = (node.state(), node.mount());
    let (state, point) = (state.to_str().unwrap(), mount.to_str().unwrap());
    let empty = node.state().with_file_name("empty");
    fs::create_dir(&empty).unwrap();
    let nowhere = format!("{state}/none");
    let cases: [(&[&str], i32, &str); 7] = [
        (&[state], 1, "not two"),
        (&[state, point, "-N", "1"], 1, "-N is not known"),
        (
            &[state, point, "-o", "nosuit"],
            32,
            "\"nosuit\" is no mount option",
        ),
        (
            &[state, point, "-o", "pagepool_size=1M"],
            32,
            "pagepool_size cannot be",
        ),
        (&[state, &nowhere], 32, "does not exist"),
        (&[&nowhere, point], 32, &nowhere),
        (&[empty.to_str().unwrap(), point], 32, "empty"),
    ];
    for (words, code, part) in cases {
        let output = run(to_mount, words);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?}: {}",
            said(&output)
        );
        let said = said(&output);
        assert!(
            said.starts_with("mount.fuse.gupfs: ") && said.contains(part),
            "{said}"
        );
        assert_eq!(options(&mount), None);
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "nothing is made");
    let output = run(to_mount, &[state, point, "-f"]);
    assert!(
        output.status.success() && options(&mount).is_none(),
        "-f: only as if"
    );
    let output = run(to_mount, &[state, point, "-s", "-o", "nosuit"]);
    assert!(output.status.success(), "-s: {}", said(&output));
    assert!(options(&mount).is_some());
}

/// A script that holds a lock while it starts a daemon gives the lock back with its own end.
#[test]
fn a_daemon_keeps_nothing_that_its_starter_has_open() {
    let Some(node) = Node::new("1G") else { return };
    let (state, gupfs) = (node.state(), Path::new(env!("CARGO_BIN_EXE_gupfs")));
    let (state, program) = (state.to_str().unwrap(), gupfs.to_str().unwrap());
    let lock = node.state().with_file_name("lock");
    let lock = lock.to_str().unwrap();
    assert!(run(gupfs, &["umount", state]).status.success());
    let flock = Path::new("flock");
    let output = run(flock, &[lock, program, "mount", state]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(options(&node.mount()).is_some());
    let output = run(flock, &["-n", lock, "true"]);
    assert!(output.status.success(), "the daemon holds the lock");
}
