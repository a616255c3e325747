//! `gupfs du`, `gupfs layout` and `gupfs bench` on a mounted node.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Node, gupfs, has, json, refused};

/// `(allocated, size, inodes)` of all below `path` and itself, as the kernel shows it, each inode once.
fn seen(path: &Path, known: &mut BTreeSet<u64>) -> (u64, u64, u64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    if !known.insert(metadata.ino()) {
        return (0, 0, 0);
    }
    let mut sum = (metadata.blocks() * 512, metadata.size(), 1);
    if metadata.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let below = seen(&entry.unwrap().path(), known);
            sum = (sum.0 + below.0, sum.1 + below.1, sum.2 + below.2);
        }
    }
    sum
}

fn told(row: &Value) -> (u64, u64, u64) {
    let number = |name: &str| row[name].as_u64().unwrap();
    (number("allocated"), number("size"), number("inodes"))
}

pub(super) fn trees_are_summed(node: &Node) {
    let top = node.mount().join("tree");
    let deep = top.join("a/b/c");
    let strange = top.join(OsStr::from_bytes(b"not \xff text"));
    fs::create_dir_all(&deep).unwrap();
    fs::create_dir(&strange).unwrap();
    fs::create_dir(top.join("empty")).unwrap();
    // Several pages of a listing.
    for index in 0..800 {
        fs::write(top.join(format!("a/file {index}")), vec![1; index]).unwrap();
    }
    fs::write(deep.join("large"), vec![2; 3 << 20]).unwrap();
    fs::hard_link(deep.join("large"), strange.join("again")).unwrap();
    std::os::unix::fs::symlink("nowhere", top.join("link")).unwrap();
    let hole = fs::File::create(top.join("hole")).unwrap();
    hole.set_len(1 << 40).unwrap();
    let wanted = |path: &Path| seen(path, &mut BTreeSet::new());
    // Write-behind commits within seconds, and what was committed as bytes of metadata moves to sectors later.
    let begin = Instant::now();
    let all = loop {
        let all = json(&["du", Node::text(&top)]);
        let (told, wanted) = (told(&all["paths"][0]), wanted(&top));
        if told == wanted {
            break all;
        }
        assert_eq!(told.2, wanted.2, "inodes are committed at once");
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{told:?} {wanted:?}"
        );
    };
    let row = &all["paths"][0];
    has(row, &["path", "directories", "more_directories"]);
    let directories = row["directories"].as_array().unwrap();
    assert_eq!(directories.len(), 5, "{directories:?}");
    // Two directories, and a file with a name in each.
    let pair = [&deep, &strange].map(|path| path.to_string_lossy());
    let pair = directories
        .iter()
        .filter(|of| pair.iter().any(|path| of["path"] == **path));
    assert_eq!(pair.map(|of| told(of).2).sum::<u64>(), 3, "{directories:?}");
    // What was counted in one path is not counted in the next.
    let both = json(&["du", "-s", Node::text(&deep), Node::text(&top)]);
    let (first, second) = (told(&both["paths"][0]), told(&both["paths"][1]));
    assert_eq!(first, wanted(&deep));
    assert_eq!(first.2 + second.2, wanted(&top).2);
    assert_eq!(both["paths"][1]["directories"], json!([]));
    let file = json(&["du", Node::text(&deep.join("large"))]);
    assert_eq!(told(&file["paths"][0]), wanted(&deep.join("large")));
    let text = gupfs(&["du", "-sh", Node::text(&top)]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("1.0 TiB") && text.lines().count() == 2,
        "{text}"
    );
    refused(
        &gupfs(&["du", "/etc"]),
        &["/etc is not on a GUPFS file system", "help:"],
    );
    let none = node.mount().join("none");
    refused(&gupfs(&["du", Node::text(&none)]), &["No such file"]);
    // The others are counted all the same.
    let said = gupfs(&[
        "du",
        "-s",
        "--json",
        Node::text(&none),
        Node::text(&top),
        "/etc",
    ]);
    refused(&said, &["No such file", "/etc is not on a GUPFS"]);
    let counted: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(counted["paths"].as_array().map(Vec::len), Some(1));
    assert_eq!(counted["paths"][0]["path"], Node::text(&top));
    // Nobody but `gupfs du` asks like this: bad words hear what is right.
    let socket = node.state().join("control.sock");
    let said = gupfs::control::require(&socket, "usage 1:x").unwrap();
    assert!(said["error"].as_str().unwrap().contains("INODE:COOKIE"));
    fs::remove_dir_all(&top).unwrap();
}

pub(super) fn layouts_are_set_and_shown(node: &Node) {
    let directory = node.mount().join("laid out");
    fs::create_dir(&directory).unwrap();
    let path = Node::text(&directory);
    let get = |path: &str| json(&["layout", "get", path]);
    has(
        &get(path),
        &["path", "kind", "fs", "is_default", "nsds", "block_size"],
    );
    assert_eq!(get(path)["is_default"], true);
    let set = |words: &[&str]| gupfs(&[&["layout", "set"], words].concat());
    let done = set(&[path, "--nsds", "3,1", "--block-size", "256K"]);
    assert!(done.status.success(), "{done:?}");
    assert_eq!(get(path)["nsds"], json!([3, 1]));
    assert_eq!(get(path)["block_size"], 256 << 10);
    let text = String::from_utf8(gupfs(&["layout", "get", path]).stdout).unwrap();
    assert!(text.contains("nsd3, nsd1 in blocks of 256.0 KiB"), "{text}");
    let file = directory.join("file");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    let file = Node::text(&file);
    assert_eq!(get(file)["nsds"], json!([3, 1]), "inherited");
    let bad: [(&[&str], &[&str]); 7] = [
        (&[path], &["--default"]),
        (
            &[path, "--nsds", "9"],
            &["no NSD 9", "there are: 1, 2, 3, 4"],
        ),
        (&[path, "--nsds", "1,1"], &["named twice", "help:"]),
        (&[path, "--nsds", "1,2,3,4,5"], &["5 NSDs", "4 at most"]),
        (&[path, "--block-size", "3M"], &["64K to 1M"]),
        (&[file, "--nsds", "1"], &["it has bytes", "help:"]),
        (
            &["/etc", "--nsds", "1"],
            &["/etc is not on a GUPFS file system"],
        ),
    ];
    for (words, parts) in bad {
        refused(&set(words), parts);
    }
    assert_eq!(get(path)["nsds"], json!([3, 1]), "nothing was changed");
    assert_eq!(get(file)["nsds"], json!([3, 1]));
    assert!(set(&[path, "--default"]).status.success());
    assert_eq!(get(path)["is_default"], true);
    fs::remove_dir_all(&directory).unwrap();
}

pub(super) fn a_mount_is_measured(node: &Node) {
    let mount = node.mount();
    let directory = mount.join("measured");
    fs::create_dir(&directory).unwrap();
    let path = Node::text(&directory);
    let is_empty = || fs::read_dir(&directory).unwrap().count() == 0;
    let other = tempfile::tempdir().unwrap();
    let words = [
        "bench",
        path,
        "--size",
        "16M",
        "--seconds",
        "1",
        "--against",
    ];
    let value = json(&[&words[..], &[Node::text(other.path())]].concat());
    has(&value, &["directory", "against", "size", "seconds", "rows"]);
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 8, "{value}");
    for row in rows {
        has(row, &["name", "unit", "value", "against", "ratio"]);
        assert!(row["value"].as_f64() > Some(0.0), "{row}");
    }
    assert!(is_empty());
    // Ctrl-C: nothing stays.
    let mut command = Command::new(env!("CARGO_BIN_EXE_gupfs"));
    command.args(["bench", path, "--size", "64M", "--seconds", "60"]);
    let child = command.stderr(Stdio::piped()).stdout(Stdio::null());
    let child = child.spawn().unwrap();
    let begin = Instant::now();
    while is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "it begins");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    refused(
        &child.wait_with_output().unwrap(),
        &["interrupted", "removed"],
    );
    assert!(is_empty());
    refused(
        &gupfs(&["bench", path, "--size", "1T"]),
        &["free", "help:", "--size"],
    );
    refused(&gupfs(&["bench", "/etc/passwd"]), &["is no directory"]);
    refused(&gupfs(&["bench", path, "--size", "1K"]), &["1 MiB"]);
    assert!(is_empty());
    fs::remove_dir(&directory).unwrap();
}
