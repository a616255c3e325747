//! Far less memory for metadata than there is of it: what owners have in their trees leaves it all the time, and is read again
//! when it is used; through renames and removals, kill -9 and a check of everything.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{LIMIT, Lab, bounded, can_run};

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
    verify(&lab, file_count);
    lab.check_walk();
    for name in ["n1", "n2"] {
        lab.gupfs(&["kill", name]);
    }
    lab.fsck();
}
