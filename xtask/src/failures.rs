//! What failing tests have said, kept from what `cargo test` prints, so that it can be shown once more at the end: a long run's log is
//! read from there, and what a program says of its first failure stands thousands of lines above.

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use crate::ci;

/// Lines kept of a failing test.
const LINES_MAX: usize = 30;

/// Characters kept of a line.
const LINE_MAX: usize = 1500;

/// Failing tests of which lines are kept.
const TESTS_MAX: usize = 10;

/// Runs `cargo` with `arguments`, a command that runs tests; the error has what the failing ones said.
pub(crate) fn cargo_test(root: &Path, arguments: &[&str]) -> Result<()> {
    let mut child = ci::cargo_command(root, arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let said = child.stdout.take().context("a pipe was asked for")?;
    let mut said = BufReader::new(said);
    // Locked for each line alone: what runs beside the tests is shown meanwhile.
    let mut out = std::io::stdout();
    let mut failures = Failures::default();
    // Bytes: what a test prints need not be text.
    let mut line = Vec::new();
    while said.read_until(b'\n', &mut line).context("from cargo")? > 0 {
        out.write_all(&line).context("to the standard output")?;
        failures.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("cargo {} failed\n{}", arguments.join(" "), failures.text());
    }
    Ok(())
}

/// Collects the sections `---- NAME stdout ----` of libtest's reports.
#[derive(Debug, Default)]
struct Failures {
    text: String,
    /// How many sections there were.
    tests: usize,
    /// Lines left of the section that is being read; none outside of one.
    room: Option<usize>,
}

impl Failures {
    fn line(&mut self, line: &str) {
        let line = line.trim_end();
        if line.starts_with("---- ") && line.ends_with(" ----") {
            self.tests += 1;
            self.room = Some(LINES_MAX);
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.room = None;
        }
        let Some(room) = self.room.as_mut() else {
            return;
        };
        if self.tests > TESTS_MAX || *room == 0 || line.is_empty() {
            return;
        }
        *room -= 1;
        self.text.extend(line.chars().take(LINE_MAX));
        self.text.push('\n');
    }

    /// What was kept, and how much was not.
    fn text(mut self) -> String {
        if self.tests > TESTS_MAX {
            let more = self.tests - TESTS_MAX;
            self.text.push_str(&format!("and {more} more\n"));
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(said: &str) -> String {
        let mut failures = Failures::default();
        said.lines().for_each(|line| failures.line(line));
        failures.text()
    }

    #[test]
    fn what_failing_tests_said_is_kept_and_nothing_else() {
        let said = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\n\n\
            thread 'b' panicked at b.rs:1:2:\nwhy\n\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed; 1 failed\n\nrunning 1 test\n";
        assert_eq!(
            kept(said),
            "---- b stdout ----\nthread 'b' panicked at b.rs:1:2:\nwhy\n"
        );
        assert_eq!(kept("test a ... ok\n\ntest result: ok.\n"), "");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let section = format!(
            "---- c stdout ----\n{}\n{}",
            "x".repeat(9000),
            "y\n".repeat(200)
        );
        let text = kept(&section.repeat(40));
        assert!(text.len() < TESTS_MAX * (LINE_MAX + LINES_MAX * 40));
        assert_eq!(text.matches("---- c").count(), TESTS_MAX);
        assert!(text.ends_with("and 30 more\n"), "{text}");
    }
}
