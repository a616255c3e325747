//! Far less memory for metadata than there is of it: what owners have in their trees leaves it all the time, and is read again
//! when it is used; through renames and removals, kill -9 and a check of everything.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::damage::disk;
use crate::lab::{LIMIT, Lab, bounded, can_run};
use crate::node::Node;

const DIRECTORY_COUNT: u64 = 20;
/// A few hundred files' worth.
const BOUND: &str = "100K";
const BOUND_SIZE: u64 = 100 << 10;

fn path(lab: &Lab, node: usize, number: u64) -> PathBuf {
    let directory = format!("r{}", number % DIRECTORY_COUNT);
    lab.mount(node).join(directory).join(format!("f{number}"))
}

fn text(number: u64) -> String {
    format!("file {number}\n").repeat(1 + usize::try_from(number % 5).unwrap())
}

/// Makes a file that is durable, and with it all that its owner's journal has before it.
fn make(path: &Path, text: &str) {
    let mut file = File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

impl Lab {
    /// A count of both nodes' owned metadata.
    fn metadata(&self, what: &str) -> u64 {
        let key = format!("metadata_{what}");
        let of = |node| self.dump(node, "counters")[&key].as_u64().unwrap();
        of(1) + of(2)
    }

    /// Once nobody asks for more, each has what its bound allows.
    fn await_bound(&self) {
        let begin = Instant::now();
        while self.metadata("resident_bytes_now") > 2 * BOUND_SIZE {
            assert!(
                begin.elapsed().as_secs() < u64::from(LIMIT),
                "{} bytes stay in memory: {}",
                self.metadata("resident_bytes_now"),
                self.logs()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A number of both nodes' that their logs say of the last replay.
    fn at_start(&self, what: &str) -> u64 {
        let of = |node| {
            let log = self.log(node);
            let mut lines = log.lines().rev();
            let line = lines.find(|line| line.contains("journal replayed"));
            let mut words = line.unwrap().split_whitespace();
            let count = words.find_map(|word| word.strip_prefix(what)?.strip_prefix('='));
            count.unwrap().parse::<u64>().unwrap()
        };
        of(1) + of(2)
    }

    fn restart_all(&self) {
        for name in ["n1", "n2"] {
            self.gupfs(&["kill", name]);
        }
        for name in ["n1", "n2"] {
            self.gupfs(&["start", name]);
        }
    }
}

/// All files are what they were last made, on both nodes: every third is gone, every fifth has another name.
fn verify(lab: &Lab, file_count: u64) {
    for number in 0..file_count {
        let reader = 1 + usize::try_from(number % 2).unwrap();
        let found = path(lab, reader, number);
        let moved = found.with_file_name(format!("moved{number}"));
        let (there, gone) = match number % 5 {
            0 => (&moved, &found),
            _ => (&found, &moved),
        };
        assert!(!gone.exists(), "{}", gone.display());
        if number % 3 == 0 {
            assert!(!there.exists(), "{}", there.display());
            continue;
        }
        let read = fs::read_to_string(there)
            .unwrap_or_else(|error| panic!("{}: {error}\n{}", there.display(), lab.logs()));
        assert_eq!(read, text(number), "{}", there.display());
    }
}

#[test]
fn metadata_beyond_its_bound_leaves_memory() {
    if !can_run() {
        return;
    }
    let many = std::env::var("GUPFS_MANY_FILES").map(|n| n.parse::<u64>().unwrap());
    let file_count = many.unwrap_or(2_000);
    let lab = Lab::up("256M", "ram");
    for node in [1, 2] {
        let state = format!("{}/n{node}", lab.root());
        let set = ["config", "set", "metadata_bytes_max", BOUND];
        let words = [
            &[env!("CARGO_BIN_EXE_gupfs")],
            &set[..],
            &["--state", &state],
        ];
        let output = bounded(LIMIT, &words.concat());
        assert!(output.status.success(), "{output:?}");
    }
    lab.restart_all();
    for directory in 0..DIRECTORY_COUNT {
        // Some of each node's.
        let maker = 1 + usize::try_from(directory % 2).unwrap();
        fs::create_dir(lab.mount(maker).join(format!("r{directory}"))).unwrap();
    }
    thread::scope(|scope| {
        for node in [1, 2] {
            let lab = &lab;
            scope.spawn(move || {
                for number in (0..file_count).filter(|n| n % 2 == node - 1) {
                    let node = usize::try_from(node).unwrap();
                    make(&path(lab, node, number), &text(number));
                }
            });
        }
    });
    for number in 0..file_count {
        let node = 1 + usize::try_from(number / 7 % 2).unwrap();
        let mut path = path(&lab, node, number);
        if number % 5 == 0 {
            let moved = path.with_file_name(format!("moved{number}"));
            fs::rename(&path, &moved).unwrap();
            path = moved;
        }
        if number % 3 == 0 {
            fs::remove_file(&path).unwrap();
        }
    }
    // However fast all that was: what is looked at now is read again.
    lab.await_bound();
    verify(&lab, file_count);
    let (evicted, missed) = (lab.metadata("evictions"), lab.metadata("misses"));
    let (resident, stale) = (
        lab.metadata("resident_bytes_now"),
        lab.metadata("stale_reads"),
    );
    eprintln!("{evicted} evicted, {missed} read again, {stale} stale, {resident} bytes resident");
    assert!(
        evicted > file_count / 2 && missed > file_count / 4,
        "{}",
        lab.logs()
    );
    assert_eq!(lab.metadata("read_failures"), 0, "{}", lab.logs());
    lab.await_bound();
    lab.check_walk();
    for directory in 0..DIRECTORY_COUNT {
        make(&lab.mount(1).join(format!("r{directory}/last")), "last");
    }
    lab.restart_all();
    // A start takes in no more than it may keep, and what the journal is about.
    let (inodes, in_memory) = (lab.at_start("inodes"), lab.at_start("in_memory"));
    eprintln!("{in_memory} of {inodes} inodes in memory after the start");
    assert!(in_memory < inodes * 3 / 4, "{}", lab.logs());
    verify(&lab, file_count);
    lab.check_walk();
    for name in ["n1", "n2"] {
        lab.gupfs(&["kill", name]);
    }
    lab.fsck();
}

impl Node {
    fn count(&self, what: &str) -> u64 {
        let counters = self.gupfs(&["dump", "counters", "--json"]);
        let counters: serde_json::Value = serde_json::from_str(&counters).unwrap();
        counters[format!("metadata_{what}")].as_u64().unwrap()
    }

    fn await_count(&self, what: &str, least: u64) {
        self.await_that(&format!("{what} < {least}"), || self.count(what) >= least);
    }

    fn await_that(&self, missing: &str, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            if begin.elapsed().as_secs() >= 20 {
                let log = fs::read_to_string(self.state().join("log")).unwrap();
                let (counters, waiters) = (["dump", "counters"], ["waiters"]);
                let (counters, waiters) = (self.gupfs(&counters), self.gupfs(&waiters));
                panic!("{missing}: {log}\n{counters}\n{waiters}");
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Disks that give nothing for a moment: what is not in memory is read again until it is there. Of two inodes in one page that are read
/// again at different times the second finds the page in memory, and hears of it although nothing is read for it (a wake-up that
/// was lost once in the daemon, where no simulator could see it).
#[test]
fn pages_that_no_disk_gives_for_a_moment_are_waited_for() {
    const COUNT: u64 = 100;
    let Some(node) = Node::new("256M") else {
        return;
    };
    node.gupfs(&["config", "set", "metadata_bytes_max", BOUND]);
    let directory = |number: u64| node.mount().join(format!("d{number}"));
    let mut shards: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for number in 0..COUNT {
        let path = directory(number);
        fs::create_dir(&path).unwrap();
        for file in 0..10 {
            fs::write(path.join(format!("f{file}")), "text").unwrap();
        }
        let shard = fs::metadata(&path).unwrap().ino() >> 48;
        shards.entry(shard).or_default().push(path);
    }
    // Some of them stay in memory: most do not.
    shards.retain(|_, paths| paths.len() > 1);
    let count = shards.len() as u64;
    assert!(count > 10, "{count}: there are 64 shards");
    node.gupfs(&["down"]);
    node.up(&[]).expect("and nobody knows anything");
    // Checkpoints may take their time: what is dirty stays. The names of the directories are used, and stay as well.
    node.await_that("too much stays in memory", || {
        node.count("evictions") >= COUNT * 10 && node.count("resident_bytes_now") <= BOUND_SIZE
    });
    fs::metadata(node.mount().join("none")).expect_err("there is none");
    let disks = (1..=4).map(|number| disk(&node, number));
    let disks = disks.map(|path| File::options().read(true).write(true).open(path).unwrap());
    let disks: Vec<(File, Vec<u8>)> = disks
        .map(|disk| {
            let mut bytes = vec![0; usize::try_from(disk.metadata().unwrap().len()).unwrap()];
            disk.read_exact_at(&mut bytes, 0).unwrap();
            (disk, bytes)
        })
        .collect();
    for (disk, _) in &disks {
        disk.set_len(0).unwrap();
    }
    let (tell, told) = mpsc::channel();
    for which in [0, 1] {
        for paths in shards.values() {
            let (path, tell) = (paths[which].clone(), tell.clone());
            thread::spawn(move || tell.send(fs::metadata(path).map(|m| m.is_dir())));
        }
        // The pauses grow: the second ones begin some 300 ms behind the first.
        node.await_count("read_failures", count * [2, 5][which]);
    }
    let waiters = node.gupfs(&["waiters"]);
    assert!(waiters.contains("reads have failed"), "{waiters}");
    assert_eq!(node.count("unreadable"), 0);
    for (disk, bytes) in &disks {
        disk.write_all_at(bytes, 0).unwrap();
    }
    for _ in 0..2 * count {
        let log = || fs::read_to_string(node.state().join("log")).unwrap();
        let found = told.recv_timeout(Duration::from_secs(10));
        let found = found.unwrap_or_else(|_| panic!("it waits: {}", log()));
        assert!(
            found.as_ref().is_ok_and(|is_dir| *is_dir),
            "{found:?}: {}",
            log()
        );
    }
}
