//! Small files are put into the kernel's page cache before they are read: their bytes are right then and later, and reads that count for
//! their access times are still seen.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::node::Node;

const DIRECTORY_COUNT: u64 = 4;
const FILE_COUNT: u64 = 80;
const TOTAL: u64 = DIRECTORY_COUNT * FILE_COUNT;
/// A reader may be ahead of what is loaded for it: then he reads all anew after another start.
const TRIES: usize = 4;
const LIMIT: Duration = Duration::from_secs(20);

/// What files hold, by their paths.
type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn counter(node: &Node, name: &str) -> u64 {
    let counters = node.gupfs(&["dump", "counters", "--json"]);
    let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
    counters[name].as_u64().expect("a counter")
}

fn filled(node: &Node) -> u64 {
    counter(node, "files_filled")
}

fn make(node: &Node) -> Tree {
    let mut tree = Tree::new();
    for number in 0..DIRECTORY_COUNT {
        let directory = node.mount().join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        // The names are in another order than the inodes.
        for file in (0..FILE_COUNT).rev() {
            let length = usize::try_from(1 + 1_507 * (file % 11)).unwrap();
            let byte = u8::try_from((number * 40 + file) % 251 + 1).unwrap();
            let path = directory.join(format!("f{file}"));
            let bytes = vec![byte; length];
            fs::write(&path, &bytes).unwrap();
            tree.insert(path, bytes);
        }
    }
    tree
}

/// Reads all files, directory after directory, in the order of the listings.
fn read_through(node: &Node, tree: &Tree) {
    let mut count = 0;
    for number in 0..DIRECTORY_COUNT {
        for entry in fs::read_dir(node.mount().join(format!("d{number}"))).unwrap() {
            let path = entry.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            assert!(
                bytes == tree[&path],
                "{}: {} bytes",
                path.display(),
                bytes.len()
            );
            count += 1;
        }
    }
    assert_eq!(count, tree.len());
}

fn remount(node: &Node) {
    node.gupfs(&["down"]);
    node.up(&[]).unwrap();
}

/// Changes some of the files, each in another way.
fn change(tree: &mut Tree) {
    for (index, (path, bytes)) in tree.iter_mut().enumerate() {
        match index % 6 {
            0 => {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                file.write_all(b"more").unwrap();
                bytes.extend_from_slice(b"more");
            }
            1 => {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                bytes.fill(252);
                file.write_all_at(bytes, 0).unwrap();
            }
            2 => {
                *bytes = vec![253; bytes.len() / 2 + 1];
                fs::write(path, bytes).unwrap();
            }
            3 => {
                let file = OpenOptions::new().write(true).open(path).unwrap();
                bytes.truncate(bytes.len() / 2);
                file.set_len(bytes.len() as u64).unwrap();
            }
            4 => fs::set_permissions(path, Permissions::from_mode(0o640)).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn files_of_a_tree_are_filled_before_they_are_read() {
    let Some(node) = Node::new("1G") else { return };
    let mut tree = make(&node);
    // From now on their access times are later than their changes.
    read_through(&node, &tree);
    let mut seen = Vec::new();
    let is_filled = (0..TRIES).any(|_| {
        remount(&node);
        let before = (filled(&node), counter(&node, "op_read"));
        read_through(&node, &tree);
        let filled = filled(&node) - before.0;
        let reads = counter(&node, "op_read") - before.1;
        seen.push((filled, reads));
        // What is filled is not asked for; a file that its reader opens while it is being loaded may be both.
        filled >= TOTAL / 2 && filled + reads <= TOTAL + TOTAL / 10
    });
    assert!(is_filled, "filled and READs of {TOTAL} files: {seen:?}");
    eprintln!("filled and READs of {TOTAL} files: {seen:?}");
    // What is filled now is changed, and is read from the kernel, then from the daemon, then filled anew.
    change(&mut tree);
    read_through(&node, &tree);
    read_through(&node, &tree);
    remount(&node);
    read_through(&node, &tree);
    for (index, (path, bytes)) in tree.iter().enumerate() {
        let found = fs::metadata(path).unwrap();
        assert_eq!(found.len(), bytes.len() as u64, "{}", path.display());
        if index % 6 == 4 {
            assert_eq!(found.mode() & 0o7777, 0o640, "{}", path.display());
        }
    }
}

/// Access time and the later of the times of change, in nanoseconds.
fn times(path: &Path) -> (i64, i64) {
    let found = fs::symlink_metadata(path).unwrap();
    let atime = found.atime() * 1_000_000_000 + found.atime_nsec();
    let mtime = found.mtime() * 1_000_000_000 + found.mtime_nsec();
    let ctime = found.ctime() * 1_000_000_000 + found.ctime_nsec();
    (atime, mtime.max(ctime))
}

/// Waits until nothing is open. A close is told when nobody waits for it any more, and later than it is made where a child that another
/// test begins at that moment has a copy of the descriptor until it runs its program.
fn await_closed(node: &Node) {
    let end = Instant::now() + LIMIT;
    loop {
        let open_count = counter(node, "open_handles_now");
        if open_count == 0 {
            return;
        }
        assert!(Instant::now() < end, "{open_count} files are open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How many files are filled while this one is opened and read, which must give these bytes.
fn fills(node: &Node, path: &Path, flags: i32, expected: &[u8]) -> u64 {
    await_closed(node);
    let before = filled(node);
    let mut bytes = Vec::new();
    let mut options = OpenOptions::new();
    let mut file: File = options.read(true).custom_flags(flags).open(path).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    drop(file);
    assert!(bytes == expected, "{}: {bytes:?}", path.display());
    filled(node) - before
}

fn remount_with(node: &Node, options: &str) {
    node.gupfs(&["down"]);
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", env!("CARGO_BIN_EXE_gupfs"), "mount"]);
    command.arg(node.state()).args(["-o", options]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// What could be filled is not where its read counts.
#[test]
fn reads_that_change_access_times_are_not_spared() {
    let Some(node) = Node::new("1G") else { return };
    let path = |name: &str| node.mount().join(name);
    // relatime: the first read after a change counts.
    for round in 0..3 {
        let bytes = format!("bytes {round}").into_bytes();
        let name = path(&format!("relatime{round}"));
        fs::write(&name, &bytes).unwrap();
        assert_eq!(fills(&node, &name, 0, &bytes), 0, "its first read counts");
        let (atime, changed) = times(&name);
        assert!(atime > changed, "{atime} is not after {changed}");
    }
    // The next one does not.
    let name = path("relatime");
    fs::write(&name, b"first").unwrap();
    assert_eq!(fills(&node, &name, libc::O_DIRECT, b"first"), 0);
    let (atime, _) = times(&name);
    assert_eq!(fills(&node, &name, 0, b"first"), 1);
    assert_eq!(times(&name).0, atime);
    // After another change it does again.
    fs::write(&name, b"other bytes").unwrap();
    assert_eq!(fills(&node, &name, 0, b"other bytes"), 0);
    let (atime, changed) = times(&name);
    assert!(atime > changed, "{atime} is not after {changed}");

    remount_with(&node, "strictatime");
    fs::write(path("strict"), b"strict").unwrap();
    let mut last = 0;
    for flags in [libc::O_DIRECT, 0, libc::O_DIRECT, 0] {
        assert_eq!(fills(&node, &path("strict"), flags, b"strict"), 0);
        let atime = times(&path("strict")).0;
        assert!(atime > last, "{atime} is not after {last}");
        last = atime;
    }

    remount_with(&node, "noatime");
    fs::write(path("never"), b"never").unwrap();
    let (atime, _) = times(&path("never"));
    assert_eq!(fills(&node, &path("never"), 0, b"never"), 1);
    assert_eq!(times(&path("never")).0, atime);
}
