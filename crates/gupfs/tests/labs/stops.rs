//! Nodes that are stopped in good order while what they have written is with nobody but them.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{LIMIT, Lab, bounded, can_run};

/// Files that each node leaves unwritten in each directory.
const FILE_COUNT: u64 = 60;
/// Bytes of the largest: some blocks on the NSDs of both nodes.
const SIZE_MAX: usize = 12 << 20;

impl Lab {
    /// Begins to stop a node in good order.
    fn begin_down(&self, node: usize) -> Child {
        let state = format!("{}/n{node}", self.root());
        let gupfs = env!("CARGO_BIN_EXE_gupfs");
        let limit = (2 * LIMIT).to_string();
        Command::new("timeout")
            .args(["-k", "2", &limit, gupfs, "down", "--state", &state])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("coreutils are there")
    }

    /// The node has stopped with all that it held written.
    fn is_down(&self, node: usize, down: Child) {
        let output = down.wait_with_output().expect("a child of ours");
        assert!(
            output.status.success(),
            "n{node}: {output:?}\n{}",
            self.logs()
        );
    }

    /// A directory of each node, owned by it.
    fn make_directories(&self) {
        self.sh(LIMIT, "mkdir $M1/d1 $M2/d2; ls $M1 $M2");
    }

    fn file(&self, through: usize, directory: usize, writer: usize, number: u64) -> PathBuf {
        self.mount(through)
            .join(format!("d{directory}/by{writer}-{number}"))
    }

    /// `node` writes files in both directories, and syncs nothing.
    fn write_unsynced(&self, node: usize, round: u64) {
        for number in 0..FILE_COUNT {
            for directory in [1, 2] {
                let bytes = content(node, round, number);
                fs::write(self.file(node, directory, node, number), bytes).unwrap();
            }
        }
    }

    fn holds_all(&self, round: u64, writers: &[usize]) {
        for (writer, reader) in [(1, 2), (2, 1)] {
            if !writers.contains(&writer) {
                continue;
            }
            for number in 0..FILE_COUNT {
                for directory in [1, 2] {
                    let path = self.file(reader, directory, writer, number);
                    let found = fs::read(&path).unwrap();
                    let is_whole = found == content(writer, round, number);
                    assert!(is_whole, "{}\n{}", path.display(), self.logs());
                }
            }
        }
    }
}

/// What a file holds: most are small, a few have several blocks.
fn content(writer: usize, round: u64, number: u64) -> Vec<u8> {
    let size = match number % 20 {
        0 => SIZE_MAX,
        1 => 0,
        _ => 1000 + 700 * usize::try_from(number).unwrap(),
    };
    let word = format!("{writer} {round} {number} ");
    word.bytes().cycle().take(size).collect()
}

#[test]
fn nodes_that_stop_at_once_lose_nothing() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.make_directories();
    // In turn one of them has little to do, and would be gone before the other has written.
    for (round, writers) in [(0, &[1, 2][..]), (1, &[1]), (2, &[2]), (3, &[1, 2])] {
        for node in writers {
            lab.write_unsynced(*node, round);
        }
        let downs = [1, 2].map(|node| (node, lab.begin_down(node)));
        let begin = Instant::now();
        for (node, down) in downs {
            lab.is_down(node, down);
        }
        // Nobody waits for who has left before.
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.logs());
        lab.gupfs(&["start", "n1", "n2"]);
        lab.holds_all(round, writers);
    }
}

#[test]
fn a_node_that_stops_takes_what_others_have_for_it() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.make_directories();
    for (round, (first, second)) in [(0, (1, 2)), (1, (2, 1))] {
        lab.write_unsynced(1, round);
        lab.write_unsynced(2, round);
        for node in [first, second] {
            lab.is_down(node, lab.begin_down(node));
        }
        lab.gupfs(&["start", "n1", "n2"]);
        lab.holds_all(round, &[1, 2]);
    }
}

/// It is waited for, and no longer than it is a member.
#[test]
fn a_stop_does_not_wait_for_who_is_dead() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.make_directories();
    lab.write_unsynced(1, 0);
    lab.gupfs(&["kill", "n2"]);
    let begin = Instant::now();
    let output = lab.begin_down(1).wait_with_output().unwrap();
    let took = begin.elapsed();
    // What was for the dead node's shards and NSDs is lost, and said.
    assert!(!output.status.success(), "{output:?}");
    assert!(took < Duration::from_secs(LIMIT.into()), "{took:?}");
    lab.gupfs(&["start", "n1", "n2"]);
    let _ = bounded(LIMIT, &["ls", lab.mount(1).to_str().unwrap()]);
}
