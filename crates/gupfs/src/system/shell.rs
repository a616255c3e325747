//! Running another program and taking its answer or its complaint.

use std::ffi::OsStr;
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};

/// How long a killed program may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(1);
/// From one look whether it has to the next.
const KILL_STEP: Duration = Duration::from_millis(5);

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
    Err(complaint(program, arguments, &output.stderr))
}

fn complaint<S: AsRef<OsStr>>(program: &str, arguments: &[S], said: &[u8]) -> Failure {
    let words: Vec<String> = arguments
        .iter()
        .map(|a| a.as_ref().to_string_lossy().into_owned())
        .collect();
    let said = String::from_utf8_lossy(said);
    Failure::new(format!(
        "`{program} {}` failed: {}",
        words.join(" "),
        said.trim()
    ))
}

/// The same for a program that may hang: every `step` it is asked whether to wait on. Who does not is told by `None`, and the program is
/// killed; one that waits for a file system that does not answer may end later.
pub fn run_while<S: AsRef<OsStr>>(
    program: &str,
    arguments: &[S],
    step: Duration,
    is_waited_for: &mut dyn FnMut() -> Result<bool>,
) -> Result<Option<String>> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| missing(program, &e))?;
    let mut said = child.stderr.take().expect("it is piped");
    let mut shown = child.stdout.take().expect("it is piped");
    let (told, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut out, mut err) = (String::new(), String::new());
        let heard = shown.read_to_string(&mut out);
        let heard = heard.and_then(|_| said.read_to_string(&mut err));
        // Nobody waits any longer: then nobody hears it.
        let _ = told.send(heard.map(|_| (out, err)));
    });
    let heard = loop {
        if let Ok(heard) = ended.recv_timeout(step) {
            break heard;
        }
        let waits = is_waited_for();
        if waits != Ok(true) {
            let _ = child.kill();
            let begin = Instant::now();
            // Where even that has to wait it is left to itself.
            while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < KILL_LIMIT {
                std::thread::sleep(KILL_STEP);
            }
            return waits.map(|_| None);
        }
    };
    let status = child.wait().map_err(|e| missing(program, &e))?;
    let (out, err) = heard.map_err(|e| Failure::new(format!("cannot hear {program}: {e}")))?;
    match status.success() {
        true => Ok(Some(out)),
        false => Err(complaint(program, arguments, err.as_bytes())),
    }
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
        let wait = |script: &str, count: u32| {
            let mut left = count;
            let mut goes_on = || {
                left = left.saturating_sub(1);
                Ok(left > 0)
            };
            let step = Duration::from_millis(20);
            run_while("sh", &["-c", script], step, &mut goes_on)
        };
        assert_eq!(wait("sleep 0.05; echo a", 1000), Ok(Some("a\n".to_owned())));
        assert_eq!(wait("exec sleep 100", 3), Ok(None));
        // Where nobody can say whether to wait it is not left running either.
        let file = tempfile::NamedTempFile::new().expect("a file");
        let script = format!("echo $$ > {}; exec sleep 100", file.path().display());
        let pid = || std::fs::read_to_string(file.path()).expect("there");
        let mut fails = || match pid().ends_with('\n') {
            true => Err(Failure::new("nobody can say")),
            false => Ok(true),
        };
        let step = Duration::from_millis(20);
        let ended = run_while("sh", &["-c", &script], step, &mut fails);
        assert_eq!(ended, Err(Failure::new("nobody can say")));
        assert!(!std::path::Path::new("/proc").join(pid().trim()).exists());
        let failure = wait("echo no >&2; exit 1", 1000).expect_err("it complains");
        assert!(failure.what().contains("no"), "{failure}");
        assert!(exists("sh"));
        assert!(!exists("gupfs-no-such-program"));
    }
}
