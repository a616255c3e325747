//! A disk that takes no more writes: what is written goes to the others.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::damage::disk;
use crate::lab::{Lab, can_run, fsck};
use crate::node::Node;

/// A copy of a disk where there is little room, in its place. Gone when it is dropped, at the latest when nobody uses it.
struct Cramped {
    directory: tempfile::TempDir,
    place: PathBuf,
}

fn run(words: &[&str]) {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

impl Cramped {
    /// So many bytes can be written to it beside what is there.
    fn of(place: &Path, room: u64) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let directory = tempfile::tempdir().unwrap();
        let cramped = Self {
            directory,
            place: place.to_owned(),
        };
        let there = fs::metadata(place).unwrap().blocks() * 512;
        let size = format!("size={}", there + room);
        let directory = cramped.directory.path().to_str().unwrap();
        run(&["mount", "-t", "tmpfs", "-o", &size, "cramped", directory]);
        let copy = cramped.directory.path().join("copy");
        let (copy, place) = (copy.to_str().unwrap(), place.to_str().unwrap());
        run(&["cp", "--sparse=always", place, copy]);
        run(&["mount", "--bind", copy, place]);
        cramped
    }

    /// What is on it lies in its place then.
    fn end(self) {
        let (place, copy) = (self.place.clone(), self.place.with_extension("copy"));
        run(&[
            "cp",
            "--sparse=always",
            place.to_str().unwrap(),
            copy.to_str().unwrap(),
        ]);
        drop(self);
        fs::rename(copy, place).unwrap();
    }
}

impl Drop for Cramped {
    fn drop(&mut self) {
        for path in [&self.place, self.directory.path()] {
            let _ = Command::new("umount").arg("--lazy").arg(path).output();
        }
    }
}

/// Nothing that was synced is lost, and nobody hears of it, while others have room. (Linux tells ENOSPC below a disk as any other error.)
#[test]
fn what_a_disk_refuses_goes_to_others() {
    let Some(node) = Node::new("512M") else {
        return;
    };
    node.gupfs(&["down"]);
    let cramped = Cramped::of(&disk(&node, 3), 2 << 20);
    node.up(&[]).expect("as before");
    let bytes_of = |number: u8| -> Vec<u8> {
        let all = (0..8_000_000u32).map(|n| n.to_le_bytes()[usize::from(number % 3)] ^ number);
        all.collect()
    };
    for number in 0..12 {
        let path = node.mount().join(number.to_string());
        let mut file = File::create(path).unwrap();
        file.write_all(&bytes_of(number)).unwrap();
        file.sync_all()
            .unwrap_or_else(|e| panic!("file {number}: {e}"));
    }
    node.gupfs(&["down"]);
    let (found, code) = fsck(&node.state(), &["--data"]);
    assert_eq!(code, 0, "{found:#}");
    node.up(&[]).expect("as before");
    for number in 0..12 {
        let read = fs::read(node.mount().join(number.to_string())).unwrap();
        assert!(read == bytes_of(number), "file {number}");
    }
    node.gupfs(&["down"]);
    drop(cramped);
}

/// One of two nodes has filled all disks and removed everything: it holds the regions of all but the one that refuses. The other gets some.
#[test]
fn a_node_whose_regions_are_all_refused_gets_others() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("512M", "file");
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    let cramped = Cramped::of(&Path::new(lab.root()).join("nsd/4.img"), 3 << 20);
    lab.gupfs(&["start", "n1"]);
    lab.gupfs(&["start", "n2"]);
    let directories = [1, 2].map(|node| lab.mount(node).join(format!("d{node}")));
    let write = |node: usize, name: &str, size: usize| {
        let mut file = File::create(directories[node - 1].join(name))?;
        file.write_all(&vec![7; size])?;
        file.sync_all()
    };
    directories
        .iter()
        .for_each(|path| fs::create_dir(path).unwrap());
    let count = (0..200)
        .take_while(|n| write(1, &n.to_string(), 4 << 20).is_ok())
        .count();
    assert!((20..200).contains(&count), "{count} files fill it");
    for entry in fs::read_dir(&directories[0]).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for n in 0..6 {
        for node in [2, 1] {
            write(node, &format!("file{n}"), 1 << 20)
                .unwrap_or_else(|e| panic!("node {node}, file {n}: {e}"));
        }
    }
    for node in ["n1", "n2"] {
        lab.gupfs(&["kill", node]);
    }
    // The lab is looked at, and removed, with a disk like any other.
    cramped.end();
}
