//! An answer that cannot be written is an error; a reader that has gone away is none.

use std::fs::File;
use std::process::{Command, Stdio};

use super::{Run, gupfs, is_root, text};

fn with_output(words: &[&str], out: Stdio) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gupfs"));
    let child = command.args(words).stdout(out).stderr(Stdio::piped());
    let child = child.spawn().expect("it starts");
    let output = child.wait_with_output().expect("it ends");
    Run {
        code: output.status.code(),
        out: String::new(),
        err: String::from_utf8(output.stderr).expect("text"),
    }
}

/// With standard output on a full disk.
fn full(words: &[&str]) -> Run {
    let full = File::options().write(true).open("/dev/full");
    with_output(words, full.expect("opened").into())
}

/// With a reader of standard output that has gone before anything was written.
fn unheard(words: &[&str]) -> Run {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    with_output(words, writer.into())
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (disk, state) = (path("a"), path("state"));
    let made = gupfs(&["nsd", "create", "--size", "128M", text(&disk)]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let create = ["fs", "create", "--mount", "/mnt/x", "--state", text(&state)];
    let made = full(&[&create[..], &[text(&disk)]].concat());
    let lost = "cannot write to standard output: No space left";
    assert_eq!((made.code, made.err.contains(lost)), (Some(1), true));
    assert!(state.join("gupfs.toml").exists(), "it is made all the same");
    let commands: [&[&str]; 8] = [
        &["nsd", "list", text(&disk)],
        &["nsd", "list", "--json", text(&disk)],
        &["config", "show", "--state", text(&state)],
        &["config", "get", "lease_ms", "--state", text(&state)],
        &["dump", "superblock", "--json", "--state", text(&state)],
        &["completion", "bash"],
        &["--help"],
        &["--version"],
    ];
    for words in commands {
        let run = full(words);
        let is_said = run.err.contains(lost);
        assert_eq!((run.code, is_said), (Some(1), true), "{words:?}{}", run.err);
        let run = unheard(words);
        assert_eq!((&run.err[..], run.code), ("", Some(0)), "{words:?}");
    }
    if is_root() {
        let fsck = full(&["fsck", "--json", text(&state)]);
        assert_eq!((fsck.code, fsck.err.contains(lost)), (Some(8), true));
    }
}
