//! Directories of a tree that is read through are listed before they are opened, and show what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::node::Node;

/// Directories of the tree, in each of them, and files in these.
const OUTER: u64 = 6;
const INNER: u64 = 2;
const FILES: u64 = 8;
/// All but the tree's itself.
const ALL: u64 = OUTER * (1 + INNER);

/// Directories that were listed ahead, and those of them that were shown.
fn listed(node: &Node) -> (u64, u64) {
    let counters = node.gupfs(&["dump", "counters", "--json"]);
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    let count = |what: &str| counters[what].as_u64().expect("a counter");
    (
        count("directories_listed_ahead"),
        count("directories_shown_ahead"),
    )
}

/// Waits until so many have been listed; false if that does not happen: nobody lists ahead where something else is under way.
fn await_listed(node: &Node, count: u64) -> bool {
    let end = Instant::now() + Duration::from_secs(5);
    while listed(node).0 < count {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

fn make(tree: &Path) {
    for outer in 0..OUTER {
        for inner in 0..INNER {
            let directory = tree.join(format!("a{outer}/b{inner}"));
            fs::create_dir_all(&directory).unwrap();
            for file in 0..FILES {
                fs::write(directory.join(file.to_string()), bytes(&directory, file)).unwrap();
            }
        }
    }
}

fn bytes(directory: &Path, file: u64) -> Vec<u8> {
    let name = directory.file_name().unwrap().to_str().unwrap();
    format!("{name} {file} ").repeat(500).into_bytes()
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|e| e.file_name().into_string().unwrap())
        .collect()
}

/// Reads the tree, the directories that are left on a stack or not.
fn read_through(node: &Node, tree: &Path, is_stack: bool) {
    let mut left: Vec<PathBuf> = vec![tree.to_owned()];
    let (mut count, mut missing) = (0, 0);
    while let Some(directory) = left.pop() {
        // Made since it was listed ahead: it is shown.
        let fresh = directory.join("fresh");
        if count % 2 == 1 {
            fs::write(&fresh, "").unwrap();
        }
        let mut inside = Vec::new();
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(&directory).unwrap() {
            let entry = entry.unwrap();
            found.insert(entry.file_name().into_string().unwrap());
            if entry.file_type().unwrap().is_dir() {
                inside.push(entry.path());
            } else if entry.path() != fresh {
                let file = entry.file_name().to_str().unwrap().parse().unwrap();
                assert_eq!(fs::read(entry.path()).unwrap(), bytes(&directory, file));
            }
        }
        assert_eq!(found.contains("fresh"), count % 2 == 1, "{found:?}");
        if count % 2 == 1 {
            fs::remove_file(&fresh).unwrap();
        }
        if !is_stack {
            inside.reverse();
        }
        left.extend(inside);
        count += 1;
        // The second directory with files tells how he goes; the last one has none behind it.
        if (4..=ALL).contains(&count) {
            missing += u64::from(!await_listed(node, count - 3 - missing));
        }
    }
    let (listed, shown) = listed(node);
    assert!(
        missing < 4 && listed >= ALL - 3 - missing,
        "{listed} listed"
    );
    // Of those that were not changed since some at least.
    assert!(shown >= 3, "{shown} of {listed} shown");
    assert_eq!(count, ALL + 1);
}

#[test]
fn directories_of_a_tree_that_is_read_through_are_listed_ahead() {
    let Some(node) = Node::new("1G") else { return };
    let tree = node.mount().join("t");
    make(&tree);
    for is_stack in [false, true] {
        node.gupfs(&["down"]);
        node.up(&[]).unwrap();
        read_through(&node, &tree, is_stack);
    }
}

/// A directory that is listed ahead.
fn one_ahead(node: &Node, tree: &Path) -> PathBuf {
    let inside = |directory: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        entries.map(|entry| entry.path()).collect()
    };
    for _ in 0..5 {
        node.gupfs(&["down"]);
        node.up(&[]).unwrap();
        let outer = inside(tree);
        for directory in inside(&outer[0]) {
            for file in inside(&directory) {
                fs::read(file).unwrap();
            }
        }
        let is_seen = await_listed(node, 1);
        let next = inside(&outer[1]).swap_remove(0);
        if is_seen && await_listed(node, 2) {
            return next;
        }
    }
    panic!("nothing is listed ahead");
}

/// What happens to a directory between its listing ahead and its opening is seen.
#[test]
fn what_has_changed_since_is_shown() {
    let Some(node) = Node::new("1G") else { return };
    let tree = node.mount().join("t");
    make(&tree);

    // It is moved: its parent is another one.
    let directory = one_ahead(&node, &tree);
    let moved = node.mount().join("moved");
    fs::create_dir(&moved).unwrap();
    let target = moved.join("b");
    fs::rename(&directory, &target).unwrap();
    let dots = Command::new("ls").arg("-ai").arg(&target).output().unwrap();
    let dots = String::from_utf8(dots.stdout).unwrap();
    let mut lines = dots.lines().map(str::trim);
    let parent = lines.find_map(|line| line.strip_suffix(" ..")).unwrap();
    assert_eq!(parent, fs::metadata(&moved).unwrap().ino().to_string());
    fs::rename(&target, &directory).unwrap();

    // It is removed, and another one has its name.
    let directory = one_ahead(&node, &tree);
    fs::remove_dir_all(&directory).unwrap();
    fs::create_dir(&directory).unwrap();
    assert_eq!(names(&directory), BTreeSet::new());
    fs::remove_dir(&directory).unwrap();
    make(&tree);

    // Of its files one is replaced, one gets shorter, and one goes.
    let directory = one_ahead(&node, &tree);
    fs::write(directory.join("new"), "new").unwrap();
    fs::rename(directory.join("new"), directory.join("0")).unwrap();
    let one = OpenOptions::new().write(true).open(directory.join("1"));
    one.unwrap().set_len(7).unwrap();
    fs::remove_file(directory.join("2")).unwrap();
    let entries = fs::read_dir(&directory).unwrap().map(Result::unwrap);
    let sizes = entries.map(|entry| (entry.file_name(), entry.metadata().unwrap().len()));
    let sizes: BTreeMap<_, _> = sizes.collect();
    let size = |name: &str| sizes.get(OsStr::new(name)).copied();
    assert_eq!((size("0"), size("1"), size("2")), (Some(3), Some(7), None));
    assert_eq!(sizes.len() as u64, FILES - 1);
    assert_eq!(fs::read(directory.join("0")).unwrap(), b"new");
}
