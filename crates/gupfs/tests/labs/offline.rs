//! `gupfs dump inode --offline`, `tree-page`, `journal-record` on good and damaged disks; what a missing disk takes along.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::lab::bounded;
use crate::node::Node;

fn gupfs(node: &Node, words: &[&str]) -> Output {
    let state = node.state();
    let mut all = vec![env!("CARGO_BIN_EXE_gupfs")];
    all.extend(words);
    all.extend(["--state", state.to_str().unwrap()]);
    bounded(60, &all)
}

fn json(node: &Node, words: &[&str]) -> Value {
    let output = gupfs(node, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{words:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(node: &Node, words: &[&str], parts: &[&str]) {
    let output = gupfs(node, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{words:?}");
    for part in parts {
        assert!(said.contains(part), "{words:?}: {part:?} is not in {said}");
    }
}

/// One byte of an NSD is another as long as this lives.
struct Flipped {
    disk: File,
    at: u64,
    old: [u8; 1],
}

impl Flipped {
    fn new(node: &Node, nsd: u64, at: u64) -> Self {
        let path = node.state().join(format!("nsd/{nsd}.img"));
        let disk = File::options().read(true).write(true).open(path).unwrap();
        let mut old = [0];
        disk.read_exact_at(&mut old, at).unwrap();
        disk.write_all_at(&[!old[0]], at).unwrap();
        disk.sync_all().unwrap();
        Self { disk, at, old }
    }
}

impl Drop for Flipped {
    fn drop(&mut self) {
        self.disk.write_all_at(&self.old, self.at).unwrap();
        self.disk.sync_all().unwrap();
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn inodes(node: &Node, file: u64) {
    let by_path = json(node, &["dump", "inode", "/dir/file", "--offline"]);
    assert_eq!(by_path["inode"], file);
    assert_eq!(
        (&by_path["size"], &by_path["path"]),
        (&(9 << 20).into(), &"/dir/file".into())
    );
    assert_eq!(by_path["damage"], Value::Array(Vec::new()));
    let extents = by_path["extents"].as_array().unwrap();
    let sectors: u64 = extents.iter().map(|e| number(&e["sectors"])).sum();
    assert_eq!(sectors, (9 << 20) / 4096);
    let by_number = json(node, &["dump", "inode", &file.to_string(), "--offline"]);
    assert_eq!(by_number, by_path);
    let root = json(node, &["dump", "inode", "/", "--offline"]);
    assert_eq!(root["kind"], "directory");
    assert_eq!(root["entries"][0]["name"], "dir");
    refused(
        node,
        &["dump", "inode", "/dir/none", "--offline"],
        &["\"none\"", "help:"],
    );
    refused(
        node,
        &["dump", "inode", "77777", "--offline"],
        &["no such inode", "help:"],
    );
    refused(
        node,
        &["dump", "inode", "dir", "--offline"],
        &["neither", "help:"],
    );
    refused(
        node,
        &["dump", "counters", "--offline"],
        &["--offline", "Usage: gupfs dump"],
    );
}

fn records(node: &Node) {
    let all = json(node, &["dump", "journal-record"]);
    let journal = &all["journals"][0];
    assert_eq!(journal["damage"], Value::Null);
    let (first, last) = (number(&journal["first_lsn"]), number(&journal["last_lsn"]));
    assert!(first <= last && !journal["parts"].is_null(), "{all}");
    let lsn = last.to_string();
    // The last one says that all before it was written.
    let closing = json(node, &["dump", "journal-record", &lsn]);
    let changes = |one: &Value| one["journals"][0]["parts"][0]["changes"].clone();
    assert_eq!(changes(&closing), Value::Array(Vec::new()), "{closing}");
    let before = (last - 1).to_string();
    let one = json(node, &["dump", "journal-record", &before]);
    assert_eq!(one["journals"][0]["lsn"], last - 1);
    let changes = changes(&one);
    assert!(!changes.as_array().unwrap().is_empty(), "{one}");
    let next = (last + 1).to_string();
    refused(
        node,
        &["dump", "journal-record", &next],
        &["no journal", &lsn],
    );
    refused(node, &["dump", "journal-record", "x"], &["no LSN", "help:"]);
    // The first record of each segment that a start could replay.
    let headers = json(node, &["dump", "journal"]);
    let rows = headers["headers"].as_array().unwrap().iter();
    let segments = rows.filter(|row| row["header"].is_object() && row["copy"] == 0);
    let flip = |row: &Value| {
        let begin = (number(&row["sector"]) + 2) * 4096;
        Flipped::new(node, number(&row["nsd"]), begin + 20)
    };
    let flipped: Vec<Flipped> = segments.map(flip).collect();
    assert!(!flipped.is_empty(), "{headers}");
    let output = gupfs(node, &["dump", "journal-record", "--json"]);
    let said = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(&said).unwrap();
    let journal = &found["journals"][0];
    assert!(
        journal["damage"]
            .as_str()
            .is_some_and(|d| d.contains("sector")),
        "{found}"
    );
    drop(flipped);
}

fn pages(node: &Node) {
    let roots = json(node, &["dump", "tree-page"]);
    let root = roots["roots"].as_array().unwrap().iter();
    let root = root
        .max_by_key(|root| root["entries"].as_u64())
        .expect("a checkpoint was made");
    let (nsd, sector) = (
        number(&root["at"][0]["nsd"]),
        number(&root["at"][0]["sector"]),
    );
    let of = format!("{nsd}:{sector}");
    let page = json(node, &["dump", "tree-page", &of]);
    assert_eq!(
        (&page["is_in_use"], &page["shard"]),
        (&true.into(), &root["shard"])
    );
    assert_eq!(page["copies"][0]["state"], "good");
    assert!(!page["entries"].as_array().unwrap().is_empty());
    let flipped = Flipped::new(node, nsd, sector * 4096 + 200);
    let page = json(node, &["dump", "tree-page", &of]);
    assert_eq!(page["copies"][0]["state"], "damaged: its checksum is wrong");
    assert_eq!(page["entries"], Value::Null, "nothing of it is shown");
    drop(flipped);
    let none = json(node, &["dump", "tree-page", "1:0"]);
    assert_eq!(
        (&none["is_in_use"], &none["what"]),
        (&false.into(), &"no page of a tree".into())
    );
    refused(
        node,
        &["dump", "tree-page", "1:99999999"],
        &["nsd1", "no sector", "help:"],
    );
    refused(node, &["dump", "tree-page", "9:1"], &["nsd9", "help:"]);
    refused(node, &["dump", "tree-page", "one"], &["NSD:SECTOR"]);
}

fn missing(node: &Node) {
    let mount = node.mount();
    let up = ["up", "--mount", mount.to_str().unwrap()];
    let degraded = [&up[..], &["--degraded"]].concat();
    let disk = node.state().join("nsd/3.img");
    let away = node.state().with_file_name("away.img");
    fs::rename(&disk, &away).unwrap();
    refused(node, &up, &["3.img", "nsd3 is missing", "--degraded"]);
    refused(
        node,
        &degraded,
        &["nsd3", "is missing", "of 1 files: /dir/file", "help:"],
    );
    fs::rename(&away, &disk).unwrap();
    let first = node.state().join("nsd/1.img");
    fs::rename(&first, &away).unwrap();
    refused(
        node,
        &degraded,
        &["nsd1", "is missing", "journal of", "all names"],
    );
    fs::rename(&away, &first).unwrap();
    node.up(&["--degraded"]).expect("all disks are there");
    let bytes = fs::read(mount.join("dir/file")).unwrap();
    assert!(bytes == content());
}

/// Small files until what they are made of has gone to trees.
fn make_until_checkpoint(node: &Node) {
    let is_made = || json(node, &["dump", "counters"])["checkpoints"].as_u64() > Some(0);
    for round in 0..100 {
        let directory = node.mount().join(format!("many-{round}"));
        fs::create_dir(&directory).unwrap();
        for number in 0..300 {
            fs::write(directory.join(number.to_string()), [1; 1500]).unwrap();
        }
        File::open(&directory).unwrap().sync_all().unwrap();
        if is_made() {
            return;
        }
    }
    panic!("30,000 files need no checkpoint");
}

fn content() -> Vec<u8> {
    (0..9 << 20)
        .map(|i: u32| (i / 4096).to_le_bytes()[0])
        .collect()
}

#[test]
fn what_lies_on_disks_is_shown_and_damage_is_named() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let directory = node.mount().join("dir");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("file"), content()).unwrap();
    File::open(directory.join("file"))
        .unwrap()
        .sync_all()
        .unwrap();
    let file = fs::metadata(directory.join("file")).unwrap().ino();
    for words in [
        &["dump", "inode", "/", "--offline"][..],
        &["dump", "tree-page"],
        &["dump", "journal-record"],
    ] {
        refused(&node, words, &["is mounted at", "gupfs down"]);
    }
    assert!(Path::new(&directory).exists());
    node.gupfs(&["down"]);
    inodes(&node, file);
    records(&node);
    missing(&node);
    make_until_checkpoint(&node);
    node.gupfs(&["down"]);
    pages(&node);
}
