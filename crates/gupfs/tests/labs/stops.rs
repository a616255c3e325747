//! Nodes that are stopped in good order while what they have written is with nobody but them.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::lab::{LIMIT, Lab, bounded, can_run};

/// Files that each node leaves unwritten in each directory.
const FILE_COUNT: u64 = 60;
/// How old dirty data becomes at most.
const DIRTY_AGE: Duration = Duration::from_secs(5);
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

    /// Waits until a node knows these, and no others, for owners that are away.
    fn await_away(&self, node: usize, away: &[u64]) {
        let begin = Instant::now();
        while self.dump(node, "space")["away"] != serde_json::json!(away) {
            let limit = Duration::from_secs(LIMIT.into());
            assert!(begin.elapsed() < limit, "n{node}: {}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
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
        for (node, down) in downs {
            lab.is_down(node, down);
        }
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

/// They are durable in metadata, and are not moved to sectors of an owner that is not there: its stop would count them as lost.
#[test]
fn small_files_that_were_synced_wait_for_nobody() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.make_directories();
    // Two pages each: no part of a page, which would stay in metadata.
    let bytes = vec![7; 8192];
    let synced = || {
        for number in 0..FILE_COUNT {
            // Of the other owner, and of its own: those may go to the other one's NSDs.
            for directory in [1, 2] {
                let mut file = fs::File::create(lab.file(2, directory, 2, number)).unwrap();
                file.write_all(&bytes).unwrap();
                file.sync_all().unwrap();
            }
        }
    };
    synced();
    lab.is_down(1, lab.begin_down(1));
    lab.await_away(2, &[1]);
    // As old as what is moved to sectors.
    std::thread::sleep(DIRTY_AGE + Duration::from_secs(2));
    lab.is_down(2, lab.begin_down(2));
    lab.gupfs(&["start", "n1", "n2"]);
    for number in 0..FILE_COUNT {
        for directory in [1, 2] {
            let path = lab.file(1, directory, 2, number);
            assert_eq!(fs::read(path).unwrap(), bytes);
        }
    }
    lab.await_away(1, &[]);
    lab.await_away(2, &[]);
    // Both are there again: what is synced now goes to sectors after a while.
    synced();
    let path = lab.file(2, 1, 2, 0);
    let pieces = || {
        let gupfs = env!("CARGO_BIN_EXE_gupfs");
        let output = bounded(LIMIT, &[gupfs, "stat", "--json", path.to_str().unwrap()]);
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        stat["inline_pieces"].as_u64().unwrap()
    };
    let begin = Instant::now();
    while pieces() > 0 {
        let limit = Duration::from_secs(LIMIT.into());
        assert!(begin.elapsed() < limit, "{}", lab.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_stop_does_not_wait_for_who_is_dead() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("2G", "file");
    lab.gupfs(&["kill", "n2"]);
    let begin = Instant::now();
    lab.is_down(1, lab.begin_down(1));
    // Not as long as for who may still write back: three leases.
    assert!(begin.elapsed() < Duration::from_secs(20), "{}", lab.logs());
    lab.gupfs(&["start", "n1", "n2"]);
}

/// The second node has work for the third, which is dead: that keeps the first from nothing.
#[test]
fn a_stop_does_not_wait_for_what_others_have_for_the_dead() {
    if !can_run() {
        return;
    }
    let lab = Lab::of_nodes(3, "3G", "file");
    lab.make_directories();
    let third = lab.mount(3).join("d3");
    fs::create_dir(third).unwrap();
    let seen = lab.mount(2).join("d3");
    fs::metadata(&seen).unwrap();
    for number in 0..20 {
        fs::write(seen.join(number.to_string()), content(2, 0, number)).unwrap();
    }
    lab.write_unsynced(2, 0);
    lab.gupfs(&["kill", "n3"]);
    let begin = Instant::now();
    lab.is_down(1, lab.begin_down(1));
    assert!(begin.elapsed() < Duration::from_secs(25), "{}", lab.logs());
    lab.gupfs(&["start", "n1", "n3"]);
    lab.holds_all(0, &[2]);
}
