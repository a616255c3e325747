//! Programs that people use, on one real mount: each does its work and checks it with its own means.
//!
//! Needs root and /dev/fuse; a program that is not installed is named and left out (`.ci/tools` installs them).
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "apps/builds.rs"]
mod builds;
#[path = "apps/fio.rs"]
mod fio;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/node.rs"]
mod node;
#[path = "apps/postgres.rs"]
mod postgres;
#[path = "apps/sqlite.rs"]
mod sqlite;
#[path = "posix/tools.rs"]
#[allow(dead_code, reason = "another test uses the rest")]
mod tools;

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use node::Node;

/// Runs a shell script in `directory`, which must succeed within so many seconds; its standard output. A failure tells the
/// commands that ran, too, with what each `test` was given.
fn sh(seconds: u32, directory: &Path, script: &str) -> String {
    let trace = tempfile::NamedTempFile::new().expect("a file for the trace");
    let traced = format!("exec 2>{}; set -x\n{script}", trace.path().display());
    let mut command = Command::new("sh");
    command.args(["-ec", &traced]).current_dir(directory);
    // Nothing of the developer's.
    command
        .env("HOME", directory)
        .env("GIT_CONFIG_NOSYSTEM", "1");
    // Under another make a make names its directory, too.
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        command.env_remove(name);
    }
    for name in ["CARGO_HOME", "RUSTUP_HOME"] {
        let default = std::env::var_os("HOME").map(|home| {
            let hidden = if name == "CARGO_HOME" {
                ".cargo"
            } else {
                ".rustup"
            };
            Path::new(&home).join(hidden).into_os_string()
        });
        if let Some(value) = std::env::var_os(name).or(default) {
            command.env(name, value);
        }
    }
    let begin = Instant::now();
    let (said, is_well) = tools::run(seconds, &command);
    let taken = begin.elapsed();
    let ran = std::fs::read(trace.path()).expect("the trace is there");
    let ran = String::from_utf8_lossy(&ran);
    let node = directory.parent().map(|root| root.join("state"));
    let node = match node.filter(|state| !is_well && state.exists()) {
        Some(state) => what_a_node_says(&state),
        None => String::new(),
    };
    assert!(
        is_well,
        "{script}\n{said}\nin {taken:?} of {seconds} s ran:\n{ran}\n{node}"
    );
    said
}

/// The losses of a daemon, and what it logged that is odd.
fn what_a_node_says(state: &Path) -> String {
    let mut dump = Command::new(env!("CARGO_BIN_EXE_gupfs"));
    dump.args(["dump", "counters", "--state"]).arg(state);
    let (counters, _) = tools::run(20, &dump);
    let log = std::fs::read_to_string(state.join("log")).unwrap_or_default();
    let of_losses = counters.lines().filter(|line| is_of_losses(line));
    let odd = log
        .lines()
        .filter(|line| line.contains("WARN") || line.contains("ERROR"));
    of_losses
        .chain(odd)
        .fold(String::new(), |all, line| all + line + "\n")
}

fn is_of_losses(line: &str) -> bool {
    line.starts_with("lost_") || line.starts_with("clipped_")
}

/// Whether all these programs are installed; says which is not.
fn have(programs: &[&str]) -> bool {
    programs
        .iter()
        .all(|program| tools::find(program).is_some())
}

/// A file system for a test, kept as small as the machine: tests run by turns.
fn mounted() -> Option<(Node, std::sync::MutexGuard<'static, ()>)> {
    static TURN: OnceLock<std::sync::Mutex<()>> = OnceLock::new();
    let turn = TURN.get_or_init(std::sync::Mutex::default).lock();
    let turn = turn.unwrap_or_else(std::sync::PoisonError::into_inner);
    Some((Node::new("3G")?, turn))
}

/// Down and up again: what a program finds then is what the disks hold. Nothing that was written has been lost.
fn remount(node: &Node) {
    let counters = node.gupfs(&["dump", "counters"]);
    let of_losses: Vec<&str> = counters.lines().filter(|line| is_of_losses(line)).collect();
    assert_eq!(of_losses.len(), 4, "{counters}");
    assert!(
        of_losses.iter().all(|line| line.ends_with(": 0")),
        "{of_losses:?}"
    );
    node.gupfs(&["down"]);
    node.up(&[]).expect("it comes up");
}
