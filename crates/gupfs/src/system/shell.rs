//! Running another program and taking its answer or its complaint.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::failure::{Failure, Result};

/// Runs `program` and returns what it printed.
///
/// Fails with the program's own complaint, so that the user sees what it said.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| missing(program, &e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<String> = arguments
        .iter()
        .map(|a| a.as_ref().to_string_lossy().into_owned())
        .collect();
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::new(format!(
        "`{program} {}` failed: {}",
        words.join(" "),
        said.trim()
    )))
}

/// Whether `program` can be found.
pub fn exists(program: &str) -> bool {
    let Some(path) = std::env::var_os("PATH") else {
        return false;
    };
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn missing(program: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot run {program}: {error}")).help(format!(
        "install the package that has {program} (apt-get install util-linux iproute2 mount)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_and_complaints_come_back() {
        assert_eq!(run("echo", &["a", "b"]).expect("echo"), "a b\n");
        let failure = run("ls", &["/no/such/place"]).expect_err("ls complains");
        assert!(failure.what().contains("/no/such/place"), "{failure}");
        let failure = run("gupfs-no-such-program", &["x"]).expect_err("not there");
        assert!(failure.to_string().contains("install"), "{failure}");
        assert!(exists("sh"));
        assert!(!exists("gupfs-no-such-program"));
    }
}
