//! The exerciser `fsx` (the crate): reads, writes, mappings, truncations, copies and closes of one file at random, each byte
//! checked against what must be there; once as it is, once with O_DIRECT on every descriptor.
//!
//! Five seeds of 100,000 operations each, a quarter of an hour beside other work; `GUPFS_FSX_OPERATIONS=10000` is the short run, `GUPFS_FSX_SEEDS=n` has more or
//! fewer seeds, `GUPFS_FSX_SEED=n` begins with another one than 1.

use std::fs;
use std::path::{Path, PathBuf};
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

/// The crate has no O_DIRECT: a library before the C library's adds it to opens of the file, and counts them in the place
/// that `DIRECT_COUNT` names.
const DIRECT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    if (strcmp(path, getenv("DIRECT_FILE")) != 0)
        return next(path, flags, mode);
    int fd = next(path, flags | O_DIRECT, mode);
    int seen = next(getenv("DIRECT_COUNT"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (fd >= 0 && seen >= 0 && (fcntl(fd, F_GETFL) & O_DIRECT) && write(seen, ".", 1) != 1)
        abort();
    close(seen);
    return fd;
}
"#;

fn number(name: &str, default: u32) -> u32 {
    let said = std::env::var(name).ok();
    said.map_or(default, |said| said.parse().expect("a number"))
}

/// One run of `count` operations for each seed, of a file of its own.
fn exercise(program: &Path, node: &Node, change: impl Fn(&mut Command, &Path)) {
    let root = node.mount().parent().unwrap().to_owned();
    let config = root.join("fsx.toml");
    fs::write(&config, CONFIG).unwrap();
    let count = number("GUPFS_FSX_OPERATIONS", 100_000);
    let first = number("GUPFS_FSX_SEED", 1);
    for seed in first..first + number("GUPFS_FSX_SEEDS", 5) {
        let file = node.mount().join(format!("file{seed}"));
        let mut command = Command::new(program);
        command.args(["-N", &count.to_string(), "-S", &seed.to_string()]);
        command.arg("-f").arg(&config).arg("-P").arg(&root);
        command.arg(&file);
        change(&mut command, &file);
        let (said, is_well) = tools::run(50 + count / 20, &command);
        assert!(is_well && said.contains("A-OK"), "seed {seed}: {said}");
    }
}

#[test]
fn nothing_is_lost() {
    let Some(program) = tools::find("fsx") else {
        return;
    };
    let Some(node) = Node::new("2G") else { return };
    exercise(&program, &node, |_, _| {});
}

/// The library that adds O_DIRECT.
fn library(root: &Path) -> PathBuf {
    let (source, made) = (root.join("direct.c"), root.join("direct.so"));
    fs::write(&source, DIRECT).unwrap();
    let mut command = Command::new("gcc");
    command.args(["-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
    command.arg(&made).arg(&source);
    let (said, is_well) = tools::run(50, &command);
    assert!(is_well, "{said}");
    made
}

#[test]
fn nothing_is_lost_with_o_direct() {
    let Some(program) = tools::find("fsx") else {
        return;
    };
    let Some(node) = Node::new("2G") else { return };
    let root = node.mount().parent().unwrap().to_owned();
    let (library, counted) = (library(&root), root.join("count"));
    exercise(&program, &node, |command, file| {
        command.env("LD_PRELOAD", &library);
        command.env("DIRECT_FILE", file);
        command.env("DIRECT_COUNT", &counted);
    });
    let opened = fs::metadata(&counted).expect("files were opened").len();
    assert!(
        opened > 1,
        "the file was opened {opened} times with O_DIRECT"
    );
}
