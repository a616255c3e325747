//! The suite `pjdfstest` (the crate): nothing fails, and what is skipped is skipped for a reason.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::node::Node;
use crate::tools;

/// Test cases of version 0.2.2 for Linux.
const CASE_COUNT: usize = 398;

/// Limits of links are known to the C library by the type of file system, and it does not know FUSE's.
const LIMIT_UNKNOWN: &[&str] = &["link::link_count_max"];

/// They remount the file system, which is busy: other cases of the suite leave files open (six of them fail on ext4 for
/// that). They are run for themselves.
const REMOUNTS: &[&str] = &[
    "chmod::erofs_named",
    "chown::erofs_named",
    "chown::lchown::erofs_named",
    "link::erofs_named",
    "mkdir::erofs_new_file",
    "mkfifo::erofs_new_file",
    "open::erofs_named",
    "open::erofs_new_file",
    "rename::erofs_named",
    "rmdir::erofs_named",
    "symlink::erofs_new_file",
    "truncate::erofs_named",
    "unlink::erofs_named",
];

/// All that the file system promises; users that every Debian has.
const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// The names of the cases that ended so.
fn cases<'a>(said: &'a str, how: &str) -> BTreeSet<&'a str> {
    let words = said.lines().map(|line| line.split_whitespace());
    let named = words.filter_map(|mut words| {
        let (name, end) = (words.next()?, words.next()?);
        (end == how && name.contains("::")).then_some(name)
    });
    named.collect()
}

/// Runs the cases whose names hold `pattern` (all: empty); what was said.
fn run(program: &Path, node: &Node, can_remount: bool, pattern: &str) -> String {
    let root = node.mount().parent().unwrap().to_owned();
    let config = root.join("pjdfstest.toml");
    fs::write(&config, CONFIG.replace("REMOUNT", &can_remount.to_string())).unwrap();
    // mount(8) asks a helper for FUSE's file systems, which has no part in a remount.
    let shims = root.join("shims");
    fs::create_dir_all(&shims).unwrap();
    let shim = shims.join("mount");
    fs::write(&shim, "#!/bin/sh\nexec /bin/mount -i \"$@\"\n").unwrap();
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = shims.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());

    // Outside of the mount, for what must not cross file systems.
    let other = root.join("other");
    fs::create_dir_all(&other).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(&config);
    command.arg("-p").arg(node.mount().join("suite"));
    command.arg("-s").arg(&other).env("PATH", path);
    if !pattern.is_empty() {
        command.arg("--").arg(pattern);
    }
    let (said, is_well) = tools::run(50, &command);
    assert!(is_well, "{said}");
    said
}

#[test]
fn nothing_fails() {
    let Some(program) = tools::find("pjdfstest") else {
        return;
    };
    let Some(node) = Node::new("2G") else { return };
    tools::open_directory(&node.mount(), "suite");

    let said = run(&program, &node, false, "");
    assert_eq!(cases(&said, "FAILED"), BTreeSet::new(), "{said}");
    let expected: BTreeSet<&str> = REMOUNTS.iter().chain(LIMIT_UNKNOWN).copied().collect();
    assert_eq!(cases(&said, "skipped"), expected, "{said}");
    let count = cases(&said, "ok").len();
    assert_eq!(count + expected.len(), CASE_COUNT, "{said}");

    let said = run(&program, &node, true, "erofs");
    let expected: BTreeSet<&str> = REMOUNTS.iter().copied().collect();
    assert_eq!(cases(&said, "ok"), expected, "{said}");
}
