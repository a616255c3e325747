//! The log of slow operations on two real mounts, and the forms of the log.
//!
//! Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "labs/lab.rs"]
mod lab;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/node.rs"]
mod node;
#[path = "labs/stopped.rs"]
mod stopped;

use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab::Lab;
use node::Node;
use serde_json::Value;

/// Waits until `look` finds something.
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Lines about slow operations in the log of node 1 that hold all of `parts`.
fn slow_lines(lab: &Lab, parts: &[&str]) -> Vec<String> {
    let is_meant = |line: &&str| {
        line.contains("slow operation") && parts.iter().all(|part| line.contains(part))
    };
    let log = lab.log(1);
    log.lines().filter(is_meant).map(str::to_owned).collect()
}

/// The number behind `name=`.
fn number(line: &str, name: &str) -> u64 {
    let (_, rest) = line.split_once(&format!(" {name}=")).expect(line);
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect(line)
}

#[test]
fn an_operation_that_waits_for_a_stopped_node_says_so() {
    if !lab::can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    // Node 2 has changed them last, and holds the right to go on.
    lab.sh(
        lab::LIMIT,
        "mkdir $M1/d && for i in 1 2 3; do echo two > $M2/d/$i; done",
    );
    lab.reads("$M2/d/1", "two");
    // On a busy machine something may have been slow before.
    let before = slow_lines(&lab, &["it waits"]).len();
    assert!(lab.dump(1, "counters")["requests"].as_u64() > Some(0));
    lab.signal(2, "STOP");
    let path = lab.mount(1).join("d/1");
    let begin = Instant::now();
    let reader = std::thread::spawn(move || fs::read_to_string(path));
    let line = until("nobody says what is waited for", || {
        slow_lines(&lab, &["it waits"]).into_iter().nth(before)
    });
    // Ages count from the last tick, which may have been late.
    assert!(begin.elapsed() >= Duration::from_millis(500), "{line}");
    lab.signal(2, "CONT");
    assert_eq!(reader.join().unwrap().unwrap(), "two\n");
    let took = u64::try_from(begin.elapsed().as_millis()).unwrap();
    assert!(line.contains("of node 2: "), "{line}");
    assert!(
        line.contains("token of node 2") || line.contains("answer of node 2"),
        "{line}"
    );
    assert!(line.contains(" WARN gupfs::slow: "), "{line}");
    assert!(number(&line, "ms") >= 1000, "{line}");
    let inode = format!("inode={}", number(&line, "inode"));
    let ended = until("nobody says that it has ended", || {
        slow_lines(&lab, &["it has ended", &inode])
            .into_iter()
            .next()
    });
    assert!(ended.contains("of node 2: "), "{ended}");
    let ms = number(&ended, "ms");
    assert!(
        ms >= number(&line, "ms") && ms <= took + 5000,
        "{ended}: {took}"
    );
    // What is quick is not logged. Not each time is it quick on a busy machine.
    let is_silent = (0..5).any(|_| {
        let count = slow_lines(&lab, &[]).len();
        lab.sh(
            lab::LIMIT,
            "cat $M1/d/2 $M1/d/3; echo one > $M1/d/4; sync $M1/d/4",
        );
        slow_lines(&lab, &[]).len() == count
    });
    assert!(is_silent, "{}", lab.log(1));
}

#[test]
fn a_log_can_be_json_and_have_another_level() {
    let Some(node) = Node::new("1G") else { return };
    node.gupfs(&["down"]);
    let log = node.state().with_file_name("daemon.log");
    let run = |words: &[&str]| {
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_gupfs"))
            .args(["daemon", "--state"])
            .arg(node.state())
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let status =
            || -> Value { serde_json::from_str(&node.gupfs(&["status", "--json"])).unwrap() };
        until("it does not mount", || {
            let is_there = node.state().join("control.sock").exists();
            (is_there && status()["mounted"] == true).then_some(())
        });
        node.gupfs(&["down"]);
        assert!(daemon.wait().unwrap().success());
        fs::read_to_string(&log).unwrap()
    };
    let lines = run(&["--log-format", "json"]);
    let parsed: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let mounted = parsed.iter().find(|event| event["message"] == "mounted");
    let mounted = mounted.unwrap_or_else(|| panic!("{lines}"));
    assert_eq!(mounted["mount"], node.mount().to_str().unwrap());
    assert_eq!(mounted["level"], "INFO");
    assert!(mounted["timestamp"].is_string() && mounted["target"].is_string());
    assert_eq!(run(&["--log-level", "error"]), "");
    let text = run(&[]);
    assert!(
        text.contains(" INFO ") && text.contains("mounted"),
        "{text}"
    );
}
