//! The exerciser `fsx` (the crate): reads, writes, mappings, truncations, copies and closes of one file at random, each byte
//! checked against what must be there.
//!
//! `GUPFS_FSX_OPERATIONS=100000` is the long run, `GUPFS_FSX_SEED=n` repeats one.

use std::fs;
use std::process::Command;

use crate::node::Node;
use crate::tools;

/// All operations that the crate has and the file system serves.
const CONFIG: &str = "
flen = 1048576
[opsize]
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
copy_file_range = 5
sendfile = 3
posix_fallocate = 1
posix_fadvise = 1
punch_hole = 5
";

fn number(name: &str, default: u32) -> u32 {
    let said = std::env::var(name).ok();
    said.map_or(default, |said| said.parse().expect("a number"))
}

#[test]
fn nothing_is_lost() {
    let Some(program) = tools::find("fsx") else {
        return;
    };
    let Some(node) = Node::new("2G") else { return };
    let root = node.mount().parent().unwrap().to_owned();
    let config = root.join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    let count = number("GUPFS_FSX_OPERATIONS", 1000);
    let seed = number("GUPFS_FSX_SEED", 1);
    let mut command = Command::new(program);
    command.args(["-N", &count.to_string(), "-S", &seed.to_string()]);
    command.arg("-f").arg(&config).arg("-P").arg(&root);
    command.arg(node.mount().join("file"));
    let (said, is_well) = tools::run(50 + count / 20, &command);
    assert!(is_well && said.contains("A-OK"), "seed {seed}: {said}");
}
