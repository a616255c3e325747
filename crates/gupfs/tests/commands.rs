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

#[path = "labs/node.rs"]
mod node;

use node::Node;
use serde_json::Value;

impl Node {
    fn json(&self, words: &[&str]) -> Value {
        let mut words = words.to_vec();
        words.push("--json");
        let said = self.gupfs(&words);
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        serde_json::from_str(&said).unwrap()
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
    settings_say_what_is_in_effect(&node);
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
    let command = std::fs::read(format!("/proc/{}/cmdline", status["pid"])).unwrap();
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
