//! Names and paths at and over the limits, and commands that must leave a mounted file system alone.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::{Node, gupfs, json, refused};

const ENAMETOOLONG: Option<i32> = Some(36);

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A directory below `top` whose name has `size` bytes; all above it are made.
fn deep(top: &Path, size: usize) -> PathBuf {
    let mut path = top.to_owned();
    loop {
        let left = size - path.as_os_str().len();
        match left {
            0 => return path,
            // A name less than 255 must be left, or none: a single '/' is no name.
            1..=256 => path.push("d".repeat(left - 1)),
            257 => path.push("d".repeat(200)),
            _ => path.push("d".repeat(255)),
        }
        fs::create_dir(&path).unwrap();
    }
}

pub(super) fn names_and_paths_have_limits(node: &Node) {
    let top = node.mount().join("limits");
    fs::create_dir(&top).unwrap();
    let name = |size: usize| top.join("n".repeat(size));
    let (longest, over) = (name(255), name(256));
    File::create_new(&longest).unwrap();
    assert_eq!(json(&["stat", Node::text(&longest)])["kind"], "file");
    fs::rename(&longest, top.join("short")).unwrap();
    fs::rename(top.join("short"), &longest).unwrap();
    let link = top.join("l".repeat(255));
    fs::hard_link(&longest, &link).unwrap();
    let before = fs::read_dir(&top).unwrap().count();
    let too_long = [
        errno(File::create_new(&over)),
        errno(fs::create_dir(&over)),
        errno(symlink("x", &over)),
        errno(fs::hard_link(&longest, &over)),
        errno(fs::rename(&longest, &over)),
        errno(fs::symlink_metadata(&over)),
        errno(symlink("t".repeat(4096), top.join("symlink"))),
    ];
    assert_eq!(too_long, [ENAMETOOLONG; 7]);
    assert_eq!(fs::read_dir(&top).unwrap().count(), before);
    let target = "t".repeat(4095);
    symlink(&target, top.join("symlink")).unwrap();
    assert_eq!(
        fs::read_link(top.join("symlink")).unwrap(),
        Path::new(&target)
    );
    // PATH_MAX counts the NUL.
    let path = deep(&top, 4095);
    assert_eq!(json(&["stat", Node::text(&path)])["kind"], "directory");
    let summed = json(&["du", "-s", Node::text(&path)]);
    assert_eq!(summed["paths"][0]["inodes"], 1);
    let over = format!("{}/x", Node::text(&path));
    assert_eq!(errno(File::create_new(&over)), ENAMETOOLONG);
    for command in [&["stat"][..], &["du"], &["df"], &["layout", "get"]] {
        refused(
            &gupfs(&[command, &[&over]].concat()),
            &["File name too long"],
        );
    }
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::remove_dir_all(&top).unwrap();
}

pub(super) fn what_is_mounted_is_left_alone(node: &Node) {
    let (state, mount) = (node.state(), node.mount());
    let (state, point) = (Node::text(&state), Node::text(&mount));
    let disk = node.state().join("nsd/1.img");
    let disk = Node::text(&disk);
    let file = mount.join("untouched");
    fs::write(&file, "as it was").unwrap();
    let other = node.state().with_file_name("other");
    let other = Node::text(&other);
    let create = ["fs", "create", "--force", "--mount", "/mnt/x", "--state"];
    let cases: [(&[&str], &[&str]); 6] = [
        (
            &["fsck", "--repair", "--yes", state],
            &["is mounted at", point, "nothing was checked", "gupfs down"],
        ),
        (
            &[&create[..], &[other, disk]].concat(),
            &[disk, "in use", "help:"],
        ),
        (
            &[&create[..], &[state, disk]].concat(),
            &["already", "help:"],
        ),
        (
            &["nsd", "create", "--force", disk],
            &[disk, "in use", "help:"],
        ),
        (&["daemon", "--state", state], &["in use", "help:"]),
        (
            &["up", "--state", other, "--mount", point],
            &[point, "in use"],
        ),
    ];
    for (words, parts) in cases {
        refused(&gupfs(words), parts);
    }
    assert!(!Path::new(other).exists());
    assert_eq!(fs::read_to_string(&file).unwrap(), "as it was");
    assert_eq!(node.json(&["status"])["mounted"], true);
    fs::remove_file(&file).unwrap();
}

/// Names are bytes: commands find what has one that is no text, and show it as it can be shown.
pub(crate) fn names_that_are_not_text_are_shown(node: &Node) {
    let path = node.mount().join(OsStr::from_bytes(b"odd\xff"));
    fs::write(&path, "x").unwrap();
    let run = |words: &[&OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gupfs"));
        let output = command.args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    let file = path.as_os_str();
    for words in [&["stat"][..], &["stat", "--json"], &["du", "-s"]] {
        let words: Vec<_> = words.iter().map(OsStr::new).collect();
        let said = run(&[&words[..], &[file]].concat());
        assert!(said.contains("odd\u{fffd}"), "{said}");
    }
    let state = node.state();
    let words = [OsStr::new("dump"), OsStr::new("inode"), file];
    let rest = [OsStr::new("--state"), state.as_os_str()];
    let said = run(&[words, [rest[0], rest[1], OsStr::new("--json")]].concat());
    let value: Value = serde_json::from_str(&said).unwrap();
    let ino = fs::metadata(&path).unwrap().ino();
    assert_eq!(value["inode"], ino, "{value}");
    node.gupfs(&["down"]);
    let name = OsStr::from_bytes(b"/odd\xff");
    let words = [OsStr::new("dump"), OsStr::new("inode"), name, rest[0]];
    let said = run(&[&words[..], &[rest[1], OsStr::new("--offline")]].concat());
    assert!(said.contains(&format!("inode: {ino}\n")), "{said}");
    node.up(&[]).unwrap();
    fs::remove_file(&path).unwrap();
}
