//! What commands tell of a mounted file system is true, and has the shape that docs/commands.md promises.
//!
//! Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "labs/left_out.rs"]
mod left_out;
#[path = "commands/limits.rs"]
mod limits;
#[path = "labs/node.rs"]
mod node;
#[path = "labs/stopped.rs"]
mod stopped;
#[path = "commands/trees.rs"]
mod trees;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use node::Node;
use rustix::fs::FallocateFlags;
use serde_json::Value;
use stopped::await_stopped;

impl Node {
    fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.push("--json");
        let said = self.gupfs(&words);
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        serde_json::from_str(&said).unwrap()
    }

    fn text(path: &Path) -> &str {
        path.to_str().unwrap()
    }
}

/// `gupfs` without a state directory.
fn gupfs(words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "25", env!("CARGO_BIN_EXE_gupfs")]);
    command.args(words).stdin(Stdio::null()).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let output = gupfs(&[words, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The command fails, and says all of `parts`.
fn refused(output: &Output, parts: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{parts:?}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is not in {said:?}");
    }
}

/// All names are there.
fn has(value: &Value, names: &[&str]) {
    for name in names {
        assert!(value.get(name).is_some(), "{name} is missing in {value}");
    }
}

#[test]
fn commands_tell_the_truth_about_a_mount() {
    let Some(node) = Node::new("1G") else { return };
    status_is_complete(&node);
    what_is_available_can_be_promised(&node);
    room_is_that_of_statfs(&node);
    extents_are_where_the_bytes_are(&node);
    trees::trees_are_summed(&node);
    trees::layouts_are_set_and_shown(&node);
    trees::a_mount_is_measured(&node);
    limits::names_and_paths_have_limits(&node);
    limits::names_that_are_not_text_are_shown(&node);
    limits::what_is_mounted_is_left_alone(&node);
    top_counts_what_happens(&node);
    settings_say_what_is_in_effect(&node);
    only_an_unused_file_system_is_destroyed(&node);
}

/// `(capacity, free, available)` in bytes as `stat -f` has them.
fn statfs(path: &Path) -> (u64, u64, u64) {
    let output = Command::new("stat")
        .args(["-f", "-c", "%S %b %f %a"])
        .arg(path)
        .output();
    let said = String::from_utf8(output.unwrap().stdout).unwrap();
    let numbers: Vec<u64> = said
        .split_whitespace()
        .map(|w| w.parse().unwrap())
        .collect();
    let bytes = |at: usize| numbers[0] * numbers[at];
    (bytes(1), bytes(2), bytes(3))
}

/// Available is what may be promised, and what other writes find beside promises.
fn what_is_available_can_be_promised(node: &Node) {
    let mount = node.mount();
    let [promised, other] = ["promised", "other"].map(|name| {
        let path = mount.join(name);
        (File::create(&path).unwrap(), path)
    });
    let promise = |end: u64| rustix::fs::fallocate(&promised.0, FallocateFlags::KEEP_SIZE, 0, end);
    let room = || statfs(&mount);
    let (_, _, available) = room();
    assert!(available > 64 << 20, "{available}");
    let refused = promise(available + 4096).unwrap_err();
    assert_eq!(refused, rustix::io::Errno::NOSPC);
    promise(available - (1 << 20)).expect("df shows that it is there");
    let (_, free, left) = room();
    assert_eq!((free, left), (6 << 20, 1 << 20));
    let piece = [1; 64 << 10];
    let mut written = 0;
    let refused = loop {
        match other.0.write_all_at(&piece, written) {
            Ok(()) => written += piece.len() as u64,
            Err(e) => break e,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    // Checksums of large runs take sectors, too.
    let all = (left - piece.len() as u64)..=left;
    assert!(all.contains(&written), "{written} of {left}");
    other.0.sync_all().unwrap();
    assert!(room().2 <= left - written, "{:?}", room());
    for (file, path) in [promised, other] {
        drop(file);
        fs::remove_file(path).unwrap();
    }
    let begin = Instant::now();
    while room().2 != available {
        let late = begin.elapsed() > Duration::from_secs(20);
        assert!(!late, "{:?} of {available} are back", room());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn room_is_that_of_statfs(node: &Node) {
    let mount = node.mount();
    let room = || {
        let all = json(&["df", Node::text(&mount)]);
        all["file_systems"][0].clone()
    };
    // Sectors in the journal's way are freed in the background: asked until nothing changed between the two.
    let agreed = || {
        let begin = Instant::now();
        loop {
            let (before, room, after) = (statfs(&mount), room(), statfs(&mount));
            if before == after {
                assert_eq!(room["capacity"], before.0);
                assert_eq!(room["free"], before.1, "{room}");
                assert_eq!(room["available"], before.2, "{room}");
                assert!(before.2 <= before.1, "{room}");
                assert_eq!(room["used"], before.0 - before.1);
                return room;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it never rests");
        }
    };
    let empty = agreed();
    has(
        &empty,
        &[
            "fs",
            "state",
            "mount",
            "inodes",
            "owners_silent",
            "owners_missing",
            "nsds",
        ],
    );
    let file = mount.join("large");
    let size = 64 << 20;
    fs::write(&file, vec![1; size]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let full = agreed();
    let used = |room: &Value| room["used"].as_u64().unwrap();
    assert!(used(&full) >= used(&empty) + size as u64, "{empty} {full}");
    // The owner keeps 1 MiB back, and 4 MiB once anything is promised.
    let kept = |name: &str| full[name].as_u64().unwrap();
    assert_eq!(kept("free") - kept("available"), 5 << 20, "{full}");
    let nsds = full["nsds"].as_array().unwrap();
    let sum = |name: &str| {
        nsds.iter()
            .map(|nsd| nsd[name].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(nsds.len(), 4);
    assert_eq!(sum("capacity"), full["capacity"].as_u64().unwrap());
    assert_eq!(sum("used"), sum("capacity") - sum("free"));
    // It lies on all of them.
    let least = nsds.iter().map(|nsd| nsd["used"].as_u64().unwrap()).min();
    assert!(least >= Some(8 << 20), "{nsds:?}");
    assert_eq!(
        json(&["df", "--state", Node::text(&node.state())])["file_systems"][0]["fs"],
        full["fs"]
    );
    // Daemons of others may come, go, and not answer meanwhile.
    let all: Value = serde_json::from_slice(&gupfs(&["df", "--json"]).stdout).unwrap();
    let listed = all["file_systems"].as_array().unwrap();
    assert!(listed.iter().any(|one| one["fs"] == full["fs"]), "{all}");
    let text = node.gupfs(&["df"]);
    assert!(text.contains("nsd4") && text.contains("direct"), "{text}");
    refused(
        &gupfs(&["df", "/proc"]),
        &["/proc is not on a GUPFS file system", "help:"],
    );
    refused(&gupfs(&["df", "/no/such"]), &["/no/such", "No such file"]);
}

fn extents_are_where_the_bytes_are(node: &Node) {
    let file = node.mount().join("file");
    // No two sectors are alike.
    let word = |i: usize| {
        (i as u64 + 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .to_le_bytes()
    };
    let bytes: Vec<u8> = (0..3 << 17).flat_map(word).collect();
    fs::write(&file, &bytes).unwrap();
    let seen = json(&["stat", "--sync", Node::text(&file)]);
    has(
        &seen,
        &[
            "path",
            "fs",
            "mount",
            "owner",
            "has_map",
            "layout",
            "committed_size",
            "inline_pieces",
            "inline_bytes",
            "more_extents",
            "extents",
            "inode",
            "kind",
            "mode",
            "uid",
            "gid",
            "links",
            "size",
            "allocated",
            "atime_ns",
            "mtime_ns",
            "ctime_ns",
            "btime_ns",
        ],
    );
    let metadata = fs::metadata(&file).unwrap();
    assert_eq!(seen["inode"], metadata.ino());
    assert_eq!(seen["allocated"], metadata.blocks() * 512);
    assert_eq!(
        (&seen["size"], &seen["committed_size"]),
        (&bytes.len().into(), &bytes.len().into())
    );
    let mut sectors = 0;
    for extent in seen["extents"].as_array().unwrap() {
        let number = |value: &Value| value.as_u64().unwrap();
        let (first, count) = (number(&extent["file_sector"]), number(&extent["sectors"]));
        let at = &extent["at"][0];
        let image = node.state().join(format!("nsd/{}.img", number(&at["nsd"])));
        let mut found = vec![0; usize::try_from(count * 4096).unwrap()];
        let place = number(&at["sector"]) * 4096;
        File::open(image)
            .unwrap()
            .read_exact_at(&mut found, place)
            .unwrap();
        let begin = usize::try_from(first * 4096).unwrap();
        assert!(found == bytes[begin..begin + found.len()], "{extent}");
        sectors += count;
    }
    assert_eq!(sectors * 4096, bytes.len() as u64);
    assert!(
        String::from_utf8_lossy(&gupfs(&["stat", Node::text(&file)]).stdout)
            .contains("layout: default")
    );
    let small = node.mount().join("small");
    fs::write(&small, [5; 100]).unwrap();
    let seen = json(&["stat", "--sync", Node::text(&small)]);
    assert_eq!(
        (&seen["inline_bytes"], &seen["inline_pieces"]),
        (&100.into(), &1.into())
    );
    assert_eq!(seen["extents"], Value::Array(Vec::new()));
    let seen = json(&["stat", Node::text(&node.mount())]);
    assert_eq!(seen["kind"], "directory");
    refused(
        &gupfs(&["stat", "/etc/passwd"]),
        &["/etc/passwd is not on a GUPFS file system"],
    );
    let none = node.mount().join("none");
    refused(
        &gupfs(&["stat", Node::text(&none)]),
        &[Node::text(&none), "No such file"],
    );
}

/// How often an operation was asked for in a second.
fn rate(top: &Value, name: &str) -> f64 {
    let rows = top["operations"].as_array().unwrap();
    let row = rows.iter().find(|row| row["name"] == name).unwrap();
    row["per_second"].as_f64().unwrap()
}

fn is_busy(top: &Value) -> bool {
    let journal = top["journal_bytes_per_second"].as_f64();
    rate(top, "fsync") > 0.0 && rate(top, "write") > 0.0 && journal > Some(0.0)
}

fn top_counts_what_happens(node: &Node) {
    let stop = std::sync::atomic::AtomicBool::new(false);
    let file = node.mount().join("busy");
    let value = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut file = File::create_new(&file).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::io::Write::write_all(&mut file, &[1; 4096]).unwrap();
                file.sync_data().unwrap();
            }
        });
        // On a busy machine a second may pass without a write.
        let mut value = node.json(&["top", "--once"]);
        for _ in 0..20 {
            if is_busy(&value) {
                break;
            }
            value = node.json(&["top", "--once"]);
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        value
    });
    has(
        &value,
        &[
            "seconds",
            "requests_per_second",
            "operations",
            "nsds",
            "messages_per_second",
            "revokes_per_second",
            "journal_bytes_per_second",
            "journal_flushes_per_second",
            "pagepool_frames",
            "pagepool_frames_free",
        ],
    );
    let rows = value["operations"].as_array().unwrap();
    assert!(is_busy(&value), "{value}");
    assert!(rows[0]["per_second"].as_f64() >= rows[1]["per_second"].as_f64());
}

fn only_an_unused_file_system_is_destroyed(node: &Node) {
    let state = node.state();
    let destroy = |words: &[&str]| {
        gupfs(&[&["fs", "destroy", "--state", Node::text(&state)], words].concat())
    };
    refused(
        &destroy(&["--yes"]),
        &["in use", Node::text(&node.mount()), "gupfs down"],
    );
    fs::write(node.mount().join("still"), "here").unwrap();
    let listed = json(&["fs", "list", "--state", Node::text(&state)]);
    assert_eq!(listed[0]["mounted"], true);
    assert_eq!(listed[0]["mount"], Node::text(&node.mount()));
    node.gupfs(&["down"]);
    let listed = json(&["fs", "list", "--state", Node::text(&state)]);
    assert_eq!(listed[0]["mounted"], false);
    refused(
        &destroy(&[]),
        &["no terminal", "nothing was destroyed", "--yes"],
    );
    assert!(state.join("gupfs.toml").exists() && state.join("nsd/4.img").exists());
    assert!(destroy(&["--yes"]).status.success());
    assert!(!state.exists());
}

/// A daemon that does not answer holds up nobody for ever.
#[test]
fn commands_do_not_hang_with_the_daemon() {
    struct Stopped(String);
    impl Drop for Stopped {
        fn drop(&mut self) {
            let _ = Command::new("kill").args(["-CONT", &self.0]).status();
        }
    }
    let Some(node) = Node::new("1G") else { return };
    let pid = node.json(&["status"])["pid"].to_string();
    let stopped = Stopped(pid.clone());
    assert!(
        Command::new("kill")
            .args(["-STOP", &pid])
            .status()
            .unwrap()
            .success()
    );
    await_stopped(&pid);
    let (state, file) = (node.state(), node.mount().join("never-seen"));
    let (state, file) = (Node::text(&state), Node::text(&file));
    let begin = Instant::now();
    let silent = ["did not answer within 10 s", "help:"];
    let mount = node.mount();
    let mount = Node::text(&mount);
    let cases: [(&[&str], &[&str]); 8] = [
        (&["status", "--state", state], &silent),
        (&["top", "--once", "--state", state], &silent),
        (
            &["config", "show", "--state", state],
            &["did not answer", "help:"],
        ),
        (&["df", "--state", state], &["did not answer", "help:"]),
        (&["df"], &["does not answer", "help:"]),
        (
            &["stat", file],
            &[file, "did not answer within 10 s", "gupfs waiters"],
        ),
        (&["bench", mount], &[mount, "did not answer within 10 s"]),
        (
            &["fs", "destroy", "--yes", "--state", state],
            &["in use", "help:"],
        ),
    ];
    std::thread::scope(|scope| {
        for (words, parts) in cases {
            scope.spawn(move || refused(&gupfs(words), parts));
        }
    });
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
    drop(stopped);
    fs::write(file, "goes on").unwrap();
    // Nor is one that has died taken for something else.
    let kill = Command::new("kill").args(["-9", &pid]).status();
    assert!(kill.unwrap().success());
    let until = Instant::now() + Duration::from_secs(20);
    while Path::new("/proc").join(&pid).exists() {
        assert!(Instant::now() < until, "{pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    for command in ["bench", "stat"] {
        refused(&gupfs(&[command, mount]), &[mount, "has died", "gupfs up"]);
    }
}

fn status_is_complete(node: &Node) {
    let status = node.json(&["status"]);
    has(
        &status,
        &[
            "mounted",
            "mount",
            "version",
            "pid",
            "uptime_ms",
            "node",
            "manager",
            "cluster",
            "fs",
            "epoch",
            "lease_ms",
            "evicted",
            "lapse",
            "shards_owned",
            "serving",
            "metrics",
            "journal",
            "space",
            "in_hand",
            "pagepool",
            "connection",
            "peers",
            "nsds",
        ],
    );
    assert_eq!(status["mounted"], true);
    assert_eq!(status["mount"], node.mount().to_str().unwrap());
    assert_eq!(status["nsds"].as_array().unwrap().len(), 4);
    for nsd in status["nsds"].as_array().unwrap() {
        has(nsd, &["nsd", "direct", "state", "failure_group", "servers"]);
        assert_eq!(nsd["state"], "direct");
    }
    let command = fs::read(format!("/proc/{}/cmdline", status["pid"])).unwrap();
    let words: Vec<&[u8]> = command.split(|b| *b == 0).collect();
    assert_eq!(words[1], b"daemon");
    for waiter in node.json(&["waiters"])["waiters"].as_array().unwrap() {
        has(waiter, &["waited_ms", "what"]);
    }
    has(&node.json(&["dump", "counters"]), &["requests", "op_read"]);
}

fn settings_say_what_is_in_effect(node: &Node) {
    let row = |key: &str| node.json(&["config", "get", key]);
    assert_eq!(row("pagepool_size")["in_effect"], true);
    assert_eq!(row("pagepool_size")["origin"], "default");
    let done = node.gupfs(&["config", "set", "pagepool_size", "64M"]);
    assert!(done.contains("gupfs up"), "{done}");
    let set = row("pagepool_size");
    assert_eq!(
        (&set["value"], &set["origin"]),
        (&(64 << 20).into(), &"file".into())
    );
    assert_eq!(set["in_effect"], false);
    assert_eq!(set["running"], 1 << 30);
    assert_eq!(
        node.gupfs(&["config", "get", "pagepool_size"]).trim(),
        "67108864"
    );
    let shown = node.gupfs(&["config", "show"]);
    assert!(
        shown.contains("after a restart (now 1073741824, default)"),
        "{shown}"
    );
    node.gupfs(&["down"]);
    assert!(row("pagepool_size")["in_effect"].is_null(), "nothing runs");
    node.up(&[]).expect("it comes up again");
    assert_eq!(row("pagepool_size")["in_effect"], true);
    assert_eq!(
        node.json(&["status"])["pagepool"]["frames"],
        (64 << 20) / 4096
    );
}
