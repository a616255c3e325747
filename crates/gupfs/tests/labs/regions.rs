//! A file system that one node has filled and mostly emptied again: the others get the room that df shows.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use stdx::prng::Prng;

use crate::lab::{LIMIT, Lab, can_run};

/// Bytes of each file.
const SIZE: usize = 100_000;
const SECTOR: u64 = 4096;
/// Sectors that df may still show when it is full.
const AVAILABLE_MAX: u64 = 1024;

/// Files below a mount, by name, with the seed of their bytes.
type Files = BTreeMap<String, u64>;

fn bytes(seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let words = (0..SIZE.div_ceil(8)).flat_map(|_| prng.next_u64().to_le_bytes());
    words.take(SIZE).collect()
}

fn write(directory: &Path, files: &mut Files, seed: u64) -> std::io::Result<()> {
    let name = format!("f{seed}");
    fs::write(directory.join(&name), bytes(seed))?;
    files.insert(name, seed);
    Ok(())
}

/// The node fills the disks, so that df shows nothing; what it has written then.
fn fill(lab: &Lab, directory: &Path) -> Files {
    let mut files = Files::new();
    for seed in 0.. {
        let Err(error) = write(directory, &mut files, seed) else {
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
        // A part of it may be there.
        fs::remove_file(directory.join(format!("f{seed}"))).ok();
        lab.sh(LIMIT, "sync -f $M1");
        // The other node hears of it a moment later.
        let is_full = |node| lab.stat_fs(node, "%a") <= AVAILABLE_MAX;
        let until = Instant::now() + Duration::from_secs(10);
        while is_full(1) && Instant::now() < until {
            if is_full(2) {
                return files;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        // What was set aside for more than came of it.
        assert!(seed < 20_000, "it is never full\n{}", lab.logs());
    }
    unreachable!("a disk is full some time")
}

/// Four of five, at random. df shows the room when all of it is free; sectors.
fn remove_most(lab: &Lab, directory: &Path, files: &mut Files) -> u64 {
    let mut prng = Prng::new(5);
    let gone: Vec<String> = files
        .keys()
        .filter(|_| prng.chance(4, 5))
        .cloned()
        .collect();
    for name in &gone {
        fs::remove_file(directory.join(name)).unwrap();
        files.remove(name);
    }
    lab.sh(LIMIT, "sync -f $M1");
    let freed = gone.len() as u64 * (SIZE as u64).div_ceil(SECTOR);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let available = lab.stat_fs(2, "%a");
        if available >= freed * 9 / 10 {
            return available;
        }
        assert!(
            Instant::now() < until,
            "{available} available, {freed} freed\n{}",
            lab.logs()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Each file has its bytes, on both nodes.
fn verify(lab: &Lab, all: &[(&str, &Files)]) {
    for (directory, files) in all {
        let expected = files.iter();
        let expected = expected.map(|(name, seed)| (name, bytes(*seed)));
        for (name, expected) in expected {
            for node in [1, 2] {
                let path: PathBuf = lab.mount(node).join(directory).join(name);
                let found = fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
                assert!(found == expected, "{path:?} has other bytes");
            }
        }
        let there = fs::read_dir(lab.mount(2).join(directory)).unwrap();
        assert_eq!(there.count(), files.len(), "names in {directory}");
    }
}

/// Whatever `act` waits for of the mounts ends after so long: then both nodes are killed.
fn bounded_by(lab: &Lab, most: Duration, act: impl FnOnce()) {
    std::thread::scope(|scope| {
        let (end, ended) = channel::<()>();
        scope.spawn(move || {
            if ended.recv_timeout(most) == Err(RecvTimeoutError::Timeout) {
                eprintln!("it takes too long: the nodes are killed");
                for node in ["n1", "n2"] {
                    let _ = lab.try_gupfs(&["kill", node]);
                }
            }
        });
        act();
        drop(end);
    });
}

/// Writes what df shows but for a seventh, and hears no error.
fn write_most(directory: &Path, available: u64) -> Files {
    let mut written = Files::new();
    let begin = Instant::now();
    let wanted = available * SECTOR * 85 / 100 / SIZE as u64;
    for seed in 1_000_000..1_000_000 + wanted {
        if let Err(error) = write(directory, &mut written, seed) {
            let (done, after) = (written.len(), begin.elapsed());
            panic!("file {done} of {wanted}, after {after:?}: {error}");
        }
    }
    eprintln!("{wanted} files written in {:?}", begin.elapsed());
    written
}

/// The room lies in regions of the first node, a fifth of each in use. The second one writes for as long as df says that there is room, and hears
/// no error; what the first one has kept is moved meanwhile, and stays what it was.
#[test]
fn what_one_node_frees_another_one_can_write() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "ram");
    let (first, second) = (lab.mount(1).join("a"), lab.mount(2).join("b"));
    bounded_by(&lab, Duration::from_secs(120), || {
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        let mut kept = fill(&lab, &first);
        let count = kept.len();
        let available = remove_most(&lab, &first, &mut kept);
        eprintln!(
            "{count} files, {} are kept: {available} sectors free",
            kept.len()
        );
        let written = write_most(&second, available);
        lab.sh(LIMIT, "sync -f $M2");
        let left = lab.dump(1, "counters")["rewrite_left"].as_u64().unwrap();
        assert!(left > 0, "there was room without that");
        let all = [("a", &kept), ("b", &written)];
        verify(&lab, &all);
        for node in ["n1", "n2"] {
            lab.gupfs(&["kill", node]);
        }
        lab.gupfs(&["start", "n1", "n2"]);
        verify(&lab, &all);
    });
}
