//! What a daemon tells Prometheus: a strict parse of the page, exact counts of a known sequence, and hostile askers.
//!
//! Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "metrics/exposition.rs"]
mod exposition;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/node.rs"]
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::time::Duration;

use exposition::Page;
use node::Node;
use serde_json::Value;

/// A mounted node that serves metrics at any free port, and where.
fn node_with_metrics() -> Option<(Node, String)> {
    let node = Node::new("1G")?;
    node.gupfs(&["down"]);
    node.gupfs(&["config", "set", "metrics", "0"]);
    node.up(&[]).expect("it comes up");
    let address = address(&node);
    Some((node, address))
}

fn address(node: &Node) -> String {
    let status: Value = serde_json::from_str(&node.gupfs(&["status", "--json"])).unwrap();
    let url = status["metrics"].as_str().expect("served").to_owned();
    let address = url.strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/metrics").unwrap();
    assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"));
    address.to_owned()
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream
}

/// The answer to `request`, head and all.
fn ask(address: &str, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

fn scrape(address: &str) -> Page {
    let said = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let kind = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    Page::parse(body)
}

#[test]
fn metrics_tell_what_happens() {
    let Some((node, address)) = node_with_metrics() else {
        return;
    };
    the_page_is_what_the_documents_say(&node, &address);
    known_operations_are_counted_exactly(&node, &address);
    nsds_are_measured(&node, &address);
    hostile_askers_do_no_harm(&node, &address);
    a_taken_port_is_refused(&node);
}

fn the_page_is_what_the_documents_say(node: &Node, address: &str) {
    let page = scrape(address);
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = fs::read_to_string(document).unwrap();
    let mut expected = exposition::documented(&document);
    assert!(expected.len() > 40, "{expected:?}");
    // A cluster of one has no peers, and so no samples of them.
    let (_, peers) = expected.get_mut("gupfs_peer_connected").unwrap();
    peers.clear();
    assert_eq!(page.families(), expected);
    let mount = node.mount();
    let mount = mount.to_str().unwrap();
    assert_eq!(page.sum("gupfs_node_info", &[("mount", mount)]), 1.0);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(page.sum("gupfs_build_info", &[("version", version)]), 1.0);
    assert_eq!(page.sum("gupfs_mounted", &[]), 1.0);
    assert_eq!(
        page.sum("gupfs_pagepool_size_bytes", &[]),
        f64::from(1 << 30)
    );
    assert!(page.sum("gupfs_sample_age_seconds", &[]) < 20.0);
    assert!(page.sum("process_resident_memory_bytes", &[]) > 1e6);
    let help = page.help("gupfs_operation_duration_seconds");
    assert!(help.contains("SAMPLED: one request in eight"), "{help}");
}

/// How much a sample has grown between two pages.
fn grown(before: &Page, after: &Page, name: &str, labels: &[(&str, &str)]) -> f64 {
    after.sum(name, labels) - before.sum(name, labels)
}

fn known_operations_are_counted_exactly(node: &Node, address: &str) {
    const SECTOR: usize = 4096;
    let file = OpenOptions::new()
        .create_new(true)
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(node.mount().join("direct"))
        .unwrap();
    let memory = vec![7u8; 2 * SECTOR];
    let aligned = memory.as_ptr().align_offset(SECTOR);
    let mut memory = memory;
    let sector = &mut memory[aligned..aligned + SECTOR];
    let before = scrape(address);
    for index in 0..10 {
        file.write_all_at(sector, index * SECTOR as u64).unwrap();
        file.sync_all().unwrap();
    }
    for index in 0..5 {
        file.read_exact_at(sector, index * SECTOR as u64).unwrap();
    }
    let paths: Vec<_> = (0..7).map(|n| node.mount().join(n.to_string())).collect();
    for path in &paths {
        File::create_new(path).unwrap();
    }
    for path in &paths {
        fs::remove_file(path).unwrap();
    }
    let after = scrape(address);
    for (operation, count) in [
        ("write", 10),
        ("fsync", 10),
        ("read", 5),
        ("create", 7),
        ("unlink", 7),
    ] {
        let labels = [("operation", operation)];
        let seen = grown(&before, &after, "gupfs_operations_total", &labels);
        assert_eq!(seen, f64::from(count), "{operation}");
    }
    for (operation, size) in [("write", 10 * SECTOR), ("read", 5 * SECTOR)] {
        let labels = [("operation", operation)];
        let seen = grown(&before, &after, "gupfs_requested_bytes_total", &labels);
        assert_eq!(seen, size as f64, "{operation}");
    }
    let flushes = grown(&before, &after, "gupfs_journal_flushes_total", &[]);
    assert!((10.0..100.0).contains(&flushes), "{flushes}");
    assert!(grown(&before, &after, "gupfs_journal_written_bytes_total", &[]) > 0.0);
    assert!(grown(&before, &after, "gupfs_answers_total", &[]) >= 39.0);
    let timed = |page: &Page| page.sum("gupfs_operation_duration_seconds_count", &[]);
    assert!(timed(&after) <= after.sum("gupfs_operations_total", &[]));
    assert!(timed(&after) >= timed(&before));
}

fn nsds_are_measured(node: &Node, address: &str) {
    let size = 32 << 20;
    let before = scrape(address);
    let path = node.mount().join("large");
    fs::write(&path, vec![3; size]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    let after = scrape(address);
    let mut counted = 0.0;
    for nsd in ["1", "2", "3", "4"] {
        let labels = [("nsd", nsd), ("path", "direct"), ("io", "write")];
        let bytes = grown(&before, &after, "gupfs_nsd_io_bytes_total", &labels);
        assert!(bytes >= (size / 8) as f64, "nsd {nsd}: {bytes}");
        counted += bytes;
        let name = "gupfs_nsd_io_duration_seconds";
        let count = grown(&before, &after, &format!("{name}_count"), &labels);
        let time = grown(&before, &after, &format!("{name}_sum"), &labels);
        assert!(count > 0.0 && time > 0.0, "nsd {nsd}: {count} in {time} s");
    }
    assert!(
        counted >= size as f64 && counted < 2.0 * size as f64,
        "{counted}"
    );
    assert_eq!(after.sum("gupfs_nsd_io_errors_total", &[]), 0.0);
    assert!(grown(&before, &after, "gupfs_data_stores_total", &[]) > 0.0);
}

fn hostile_askers_do_no_harm(node: &Node, address: &str) {
    let mut idle: Vec<TcpStream> = (0..100).map(|_| connect(address)).collect();
    for stream in idle.iter_mut().step_by(3) {
        let _ = stream.write_all(b"GET /metrics HTT");
    }
    let path = node.mount().join("meanwhile");
    fs::write(&path, "written").unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "written");
    let fds = scrape(address).sum("process_open_fds", &[]);
    assert!(fds < 200.0, "{fds} descriptors: connections are bounded");
    let long = "x".repeat(1 << 20);
    for (request, status) in [
        ("\r\n\r\n\u{1}", "400"),
        ("DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        ("GET /../../etc/shadow HTTP/1.1\r\n\r\n", "404"),
        (&format!("GET /{long} HTTP/1.1\r\n\r\n"), "431"),
    ] {
        let said = ask(address, request);
        assert!(said.starts_with(&format!("HTTP/1.1 {status} ")), "{said}");
    }
    scrape(address);
}

fn a_taken_port_is_refused(node: &Node) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    node.gupfs(&["config", "set", "metrics", &port]);
    node.gupfs(&["down"]);
    let said = node.up(&[]).expect_err("the port is taken");
    for part in ["cannot serve metrics", &port, "gupfs config set metrics"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    drop(taken);
    node.up(&[]).expect("the port is free");
    assert_eq!(address(node), format!("127.0.0.1:{port}"));
    node.gupfs(&["down"]);
    node.gupfs(&["config", "set", "metrics", "off"]);
    node.up(&[]).expect("without");
    let status = node.gupfs(&["status", "--json"]);
    assert!(status.contains("\"metrics\":null"), "{status}");
    let error = TcpStream::connect(format!("127.0.0.1:{port}")).expect_err("nobody listens");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}

/// The names of samples that the documents promise, with the labels of each.
fn promised_samples() -> BTreeMap<String, BTreeSet<String>> {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let document = fs::read_to_string(document).unwrap();
    let mut all = BTreeMap::new();
    for (name, (kind, labels)) in exposition::documented(&document) {
        let suffixes: &[&str] = match kind.as_str() {
            "counter" => &["_total"],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        for suffix in suffixes {
            all.insert(format!("{name}{suffix}"), labels.clone());
        }
    }
    all
}

/// The words of a PromQL expression.
fn words(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| !word.is_empty())
}

#[test]
fn the_dashboard_is_made_of_metrics_that_exist() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../packaging/grafana/gupfs.json"
    );
    let board: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert!(
        board["schemaVersion"].as_u64() >= Some(36),
        "Grafana 9 and newer"
    );
    assert_eq!(
        (&board["uid"], &board["title"]),
        (&"gupfs".into(), &"GUPFS".into())
    );
    let samples = promised_samples();
    let is_metric = |word: &str| word.starts_with("gupfs_") || word.starts_with("process_");
    let mut used = BTreeSet::new();
    let mut cells = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{title}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(cells.insert((x, y)), "{title} lies over another panel");
            }
        }
        if panel["type"] == "row" {
            continue;
        }
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}");
        for target in targets {
            let expression = target["expr"].as_str().unwrap();
            let names: BTreeSet<&str> = words(expression).filter(|w| is_metric(w)).collect();
            assert!(!names.is_empty(), "{title}: {expression}");
            for name in names {
                let labels = samples
                    .get(name)
                    .unwrap_or_else(|| panic!("{title}: {name}"));
                let known = |label: &str| {
                    ["le", "job", "instance"].contains(&label) || labels.contains(label)
                };
                let grouped = expression.split(" by (").skip(1);
                let grouped = grouped.flat_map(|rest| words(rest.split(')').next().unwrap()));
                let legend = target["legendFormat"].as_str().unwrap().split("{{").skip(1);
                let shown = legend.map(|rest| rest.split("}}").next().unwrap());
                for label in grouped.chain(shown) {
                    assert!(known(label), "{title}: {name} has no label {label}");
                }
                used.insert(name.to_owned());
            }
            assert_eq!(
                expression.matches('(').count() + expression.matches('{').count(),
                expression.matches(')').count() + expression.matches('}').count(),
                "{expression}"
            );
        }
    }
    assert!(used.len() > 30, "{used:?}");
    let queries = board["templating"]["list"].as_array().unwrap();
    let queries = queries.iter().filter_map(|v| v["definition"].as_str());
    for word in queries.flat_map(words).filter(|w| is_metric(w)) {
        assert!(samples.contains_key(word), "{word}");
    }
}
