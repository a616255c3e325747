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
    assert!(
        is_well,
        "{script}\n{said}\nin {taken:?} of {seconds} s ran:\n{ran}"
    );
    said
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

/// Down and up again: what a program finds then is what the disks hold.
fn remount(node: &Node) {
    node.gupfs(&["down"]);
    node.up(&[]).expect("it comes up");
}
