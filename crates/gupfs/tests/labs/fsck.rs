//! `gupfs fsck` on real disks: clean after down and after kill -9, refused while mounted, damage named with path and place,
//! exit codes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::lab::{Lab, bounded, fsck};
use crate::node::Node;

const SECTOR: u64 = 4096;

/// Kinds of findings, sorted, each once.
pub(crate) fn kinds(value: &Value) -> Vec<&str> {
    let counts = value["counts"].as_object().unwrap();
    counts.keys().map(String::as_str).collect()
}

impl Lab {
    /// No daemon runs: what they have left is a whole file system.
    pub(crate) fn fsck(&self) {
        let (found, code) = fsck(Path::new(self.root()), &["--data"]);
        assert_eq!(code, 0, "{found:#}\n{}", self.logs());
    }
}

/// All types, links, holes, long names, attributes, a big directory, files in sectors, in pieces and inline.
fn fill(mount: &Path) {
    let path = |name: &str| mount.join(name);
    fs::create_dir_all(path("dir/sub/deep")).unwrap();
    fs::write(path("dir/small"), b"small").unwrap();
    fs::hard_link(path("dir/small"), path("dir/sub/linked")).unwrap();
    symlink("small", path("dir/symlink")).unwrap();
    fs::write(path(&format!("dir/{}", "n".repeat(255))), vec![7; 3000]).unwrap();
    let holes = File::create(path("dir/holes")).unwrap();
    holes.write_all_at(&[9; 70_000], 5 << 20).unwrap();
    let sectors: Vec<u8> = (0..1_200_000u32)
        .map(|i| (i / 4096).to_le_bytes()[0])
        .collect();
    fs::write(path("dir/sectors"), &sectors).unwrap();
    let over = File::options()
        .write(true)
        .open(path("dir/sectors"))
        .unwrap();
    over.write_all_at(b"over", 12_345).unwrap();
    over.set_len(1_100_001).unwrap();
    fs::create_dir(path("big")).unwrap();
    for number in 0..600 {
        fs::write(
            path(&format!("big/{number}")),
            format!("{number}").repeat(number),
        )
        .unwrap();
    }
    for number in (0..600).step_by(3) {
        fs::remove_file(path(&format!("big/{number}"))).unwrap();
    }
    fs::rename(path("dir/sub/deep"), path("deep")).unwrap();
    let words = ["mkfifo", path("dir/fifo").to_str().unwrap()].map(str::to_owned);
    assert!(
        bounded(5, &words.each_ref().map(String::as_str))
            .status
            .success()
    );
    over.sync_all().unwrap();
}

/// NSD and sector of a file's first sector.
fn place(node: &Node, name: &str) -> (u16, u64) {
    let path = node.mount().join(name);
    let words = ["stat", "--sync", "--json", path.to_str().unwrap()];
    let output = bounded(30, &[&[env!("CARGO_BIN_EXE_gupfs")], &words[..]].concat());
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let at = &value["extents"][0]["at"][0];
    let nsd = u16::try_from(at["nsd"].as_u64().unwrap()).unwrap();
    (nsd, at["sector"].as_u64().unwrap())
}

/// A disk that damage is planted on, and healed again.
struct Planter(File);

impl Planter {
    fn of(node: &Node, nsd: u16) -> Self {
        let path = node.state().join(format!("nsd/{nsd}.img"));
        Self(File::options().read(true).write(true).open(path).unwrap())
    }

    fn sector(&self, at: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(SECTOR).unwrap()];
        self.0.read_exact_at(&mut bytes, at * SECTOR).unwrap();
        bytes
    }

    /// What is found while the sector holds `bytes`: kinds and exit code.
    fn with(&self, node: &Node, at: u64, bytes: &[u8], options: &[&str]) -> (Value, i32) {
        let good = self.sector(at);
        assert_ne!(good, bytes, "it is damage");
        self.0.write_all_at(bytes, at * SECTOR).unwrap();
        self.0.sync_all().unwrap();
        let found = fsck(&node.state(), options);
        self.0.write_all_at(&good, at * SECTOR).unwrap();
        self.0.sync_all().unwrap();
        found
    }

    /// The same with one bit flipped.
    fn flipped(&self, node: &Node, at: u64, options: &[&str]) -> (Value, i32) {
        let mut bytes = self.sector(at);
        bytes[40] ^= 0x10;
        self.with(node, at, &bytes, options)
    }
}

fn expect((found, code): (Value, i32), kind: &str) -> Value {
    assert_eq!(kinds(&found), [kind], "{found:#}");
    assert_eq!(code, 4, "{found:#}");
    found
}

#[test]
fn damage_is_named_and_a_healthy_file_system_is_clean() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let gupfs = env!("CARGO_BIN_EXE_gupfs");
    let state = node.state();
    let state_text = state.to_str().unwrap();
    fill(&node.mount());
    let file = place(&node, "dir/sectors");
    // In use; and nonsense.
    let output = bounded(30, &[gupfs, "fsck", state_text]);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("is mounted") && said.contains("gupfs down") && said.contains("--online"),
        "{said}"
    );
    let rates: [(&[&str], &str); 3] = [
        (&["--data", "--rate", "0"], "nothing is ever read"),
        (&["--data", "--rate", "fast"], "is no size"),
        (&["--rate", "64M"], "--data"),
    ];
    for (words, told) in rates {
        let output = bounded(30, &[&[gupfs, "fsck", state_text], words].concat());
        assert_eq!(output.status.code(), Some(16), "{words:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains(told), "{words:?}: {text}");
    }
    let usage = bounded(30, &[gupfs, "fsck", "--nonsense", state_text]);
    assert_eq!(usage.status.code(), Some(16), "{usage:?}");
    let nowhere = bounded(30, &[gupfs, "fsck", "/proc/self"]);
    assert_eq!(nowhere.status.code(), Some(8), "{nowhere:?}");
    node.gupfs(&["down"]);
    let (clean, code) = fsck(&state, &["--data"]);
    assert_eq!(code, 0, "{clean:#}");
    assert!(clean["inodes"].as_u64() > Some(400), "{clean}");
    assert!(
        clean["bytes_verified"].as_u64() > Some(1_000_000),
        "{clean}"
    );
    // Labels.
    let dump = |what: &str| -> Value {
        serde_json::from_str(&node.gupfs(&["dump", what, "--json"])).unwrap()
    };
    let first = Planter::of(&node, 1);
    let labels = dump("superblock");
    assert_eq!(labels["nsds"].as_array().unwrap().len(), 4, "{labels}");
    assert_eq!(
        labels["nsds"][0]["journals"][0]["first_sector"], 256,
        "{labels}"
    );
    assert_eq!(
        labels["nsds"][0]["bad_copies"],
        Value::Array(Vec::new()),
        "{labels}"
    );
    let headers = dump("journal");
    let headers = headers["headers"].as_array().unwrap();
    assert_eq!(headers.len(), 4, "two copies in each half: {headers:?}");
    let is_in_use = |row: &&Value| row["header"]["retired"] == false;
    assert!(headers.iter().any(|row| is_in_use(&row)), "{headers:?}");
    expect(first.flipped(&node, 0, &[]), "label-copy");
    expect(first.flipped(&node, 1, &[]), "label-copy");
    let slot = first.flipped(&node, 2, &[]);
    expect(slot, "view-copy");
    // The journal: both copies of its newest header, one, and a record.
    let area = 256;
    let half = (0..2).map(|half| area + half * journal_half(&first));
    for header in half {
        if first.sector(header)[..8] == *b"GUPFSSEG" {
            expect(first.flipped(&node, header, &[]), "journal-header");
        }
    }
    // Bytes of a file: flipped, zeroed, another sector's, an old one.
    let disk = Planter::of(&node, file.0);
    let found = expect(disk.flipped(&node, file.1 + 2, &["--data"]), "data-sector");
    let text = found["findings"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("/dir/sectors (inode "), "{text}");
    assert!(text.contains(", byte 8192: "), "{text}");
    assert_eq!(found["findings"][0]["path"], "/dir/sectors");
    expect(
        disk.with(&node, file.1 + 5, &[0; 4096], &["--data"]),
        "data-sector",
    );
    let other = disk.sector(file.1 + 7);
    expect(
        disk.with(&node, file.1 + 6, &other, &["--data"]),
        "data-sector",
    );
    // Without --data nobody looks there.
    assert_eq!(disk.flipped(&node, file.1 + 2, &[]).1, 0);
    // A label of another NSD, and none.
    let second = Planter::of(&node, 2);
    let (label, copy) = (first.sector(0), first.sector(1));
    let own = (second.sector(0), second.sector(1));
    for (sector, bytes) in [(0, &label), (1, &copy)] {
        second.0.write_all_at(bytes, sector * SECTOR).unwrap();
    }
    let (found, code) = fsck(&state, &[]);
    assert!(kinds(&found).contains(&"label-foreign"), "{found:#}");
    assert_eq!(code, 4);
    second.0.write_all_at(&[0; 8192], 0).unwrap();
    assert!(kinds(&fsck(&state, &[]).0).contains(&"label-lost"));
    for (sector, bytes) in [(0, &own.0), (1, &own.1)] {
        second.0.write_all_at(bytes, sector * SECTOR).unwrap();
    }
    // A disk that is cut, and one that is missing.
    let path = state.join("nsd/3.img");
    let size = fs::metadata(&path).unwrap().len();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(size - (1 << 20))
        .unwrap();
    assert!(kinds(&fsck(&state, &[]).0).contains(&"label-size"));
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(size)
        .unwrap();
    fs::rename(&path, state.join("away")).unwrap();
    let (found, code) = fsck(&state, &[]);
    assert!(kinds(&found).contains(&"nsd-missing"), "{found:#}");
    assert_eq!(code, 4);
    fs::rename(state.join("away"), &path).unwrap();
    assert_eq!(fsck(&state, &["--data"]).1, 0, "all is as it was");
    node.up(&[]).expect("and it comes up");
    assert_eq!(fs::read(node.mount().join("dir/small")).unwrap(), b"small");
}

/// Sectors of a half of the journal on this disk: the header says how many the area has.
fn journal_half(disk: &Planter) -> u64 {
    let header = disk.sector(256);
    assert_eq!(header[..8], *b"GUPFSSEG");
    u64::from_le_bytes(header[88..96].try_into().unwrap()) / 2
}

/// A check that runs beside the test: its end is this one's.
struct Check(Child);

impl Drop for Check {
    fn drop(&mut self) {
        // One that has ended is no failure here.
        let _ = self.0.kill();
        self.0.wait().expect("a child of this process");
    }
}

impl Check {
    /// Of data, slowly enough to be hit in the middle.
    fn begin(state: &Path, words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gupfs"));
        command.args(["fsck", "--data", "--rate", "4M"]).args(words);
        let child = command.arg(state).stdout(Stdio::null()).spawn();
        Self(child.expect("it starts"))
    }

    /// As soon as it has kept that it has read more than `since`: how it ended, and what it had read then.
    fn hit(mut self, signal: Signal, kept: &Path, since: u64) -> (ExitStatus, u64) {
        let read = || {
            let bytes = fs::read(kept).unwrap_or_default();
            let progress: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            progress["bytes"].as_u64().unwrap_or(0)
        };
        let begin = Instant::now();
        while read() <= since {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing is kept");
            assert_eq!(self.0.try_wait().expect("a child"), None, "it is over");
            std::thread::sleep(Duration::from_millis(20));
        }
        kill_process(Pid::from_child(&self.0), signal).expect("it runs");
        (self.0.wait().expect("a child"), read())
    }
}

#[test]
fn an_interrupted_check_of_data_goes_on() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let large: Vec<u8> = (0..60_000_000u32).map(|i| i.to_le_bytes()[2]).collect();
    fs::write(node.mount().join("large"), &large).unwrap();
    node.gupfs(&["down"]);
    let state = node.state();
    let kept = state.join("fsck.progress");
    // Killed, it leaves what it has kept; interrupted, all that it has read.
    let (_, first) = Check::begin(&state, &[]).hit(Signal::KILL, &kept, 0);
    let again = Check::begin(&state, &["--resume"]);
    let (ended, second) = again.hit(Signal::INT, &kept, first);
    assert_eq!(ended.code(), Some(32));
    assert!(second < 60_000_000, "it was over: {second}");
    // One more than were read: who begins anew does not know of it.
    let text = fs::read_to_string(&kept).unwrap();
    let known = |bytes: u64| format!("\"bytes\":{bytes},");
    let text = text.replace(&known(second), &known(second + 1));
    fs::write(&kept, text).unwrap();
    let verified = |words: &[&str]| {
        let (found, code) = fsck(&state, words);
        assert_eq!(code, 0, "{found:#}");
        found["bytes_verified"].as_u64().expect("a number")
    };
    let resumed = verified(&["--data", "--resume"]);
    assert_eq!(resumed, verified(&["--data"]) + 1);
    assert!(!kept.exists());
}
