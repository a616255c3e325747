//! Damage as bad input: a disk that returns other bytes than were written, and state files that are not what they
//! were. The daemon says what is damaged and where, changes nothing, and goes on when it is mended.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::lab::fsck;
use crate::node::Node;

const SECTOR: usize = 4096;

/// Ends the daemon as a crash does, and waits for its end: until then it may write over what is done to its disks.
fn kill(node: &Node) {
    let state = gupfs::state::Place::new(&node.state()).expect("an absolute path");
    gupfs::service::crash(&state).expect("one that runs, and has ended now");
}

pub(crate) fn disk(node: &Node, number: u16) -> PathBuf {
    node.state().join(format!("nsd/{number}.img"))
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// A file that is acknowledged.
fn synced(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

/// `gupfs up` fails, its message has all of `words`, and the disks and the state files hold what they held.
fn stays_down(node: &Node, words: &[&str]) {
    let state = node.state();
    let mut paths: Vec<PathBuf> = (1..=4).map(|number| disk(node, number)).collect();
    paths.extend(["gupfs.toml", "cluster.view", "lives"].map(|name| state.join(name)));
    let read = || -> Vec<_> {
        let sums = paths.iter().map(|path| fs::read(path).map(|b| sum(&b)));
        sums.map(|sum| sum.map_err(|e| e.kind())).collect()
    };
    let before = read();
    let said = node.up(&[]).expect_err("it is damaged");
    assert!(!said.contains("panicked"), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert_eq!(read(), before, "something was written: {said}");
    assert!(!state.join("pid").exists() && !state.join("control.sock").exists());
}

fn sum(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Places of `pattern` on the disk, at multiples of 8.
fn find(disk: &File, pattern: &[u8]) -> Vec<usize> {
    let mut bytes = vec![0; usize::try_from(disk.metadata().unwrap().len()).unwrap()];
    disk.read_exact_at(&mut bytes, 0).unwrap();
    let places = (0..bytes.len() - pattern.len()).step_by(8);
    places
        .filter(|at| bytes[*at..].starts_with(pattern))
        .collect()
}

/// Puts other bytes there; returns what was there.
fn overwrite(disk: &File, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut old = vec![0; bytes.len()];
    disk.read_exact_at(&mut old, at as u64).unwrap();
    disk.write_all_at(bytes, at as u64).unwrap();
    old
}

#[test]
fn a_damaged_journal_is_named_and_left_alone() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let names: Vec<String> = (0..30).map(|n| format!("file{n}")).collect();
    for name in &names {
        synced(&node.mount().join(name), name.as_bytes());
    }
    let all_is_there = || {
        for name in &names {
            let found = fs::read(node.mount().join(name)).unwrap();
            assert_eq!(found, name.as_bytes());
        }
    };
    kill(&node);
    let journal = open(&disk(&node, 1));
    let records = find(&journal, b"GREC");
    let lsn = |at: &usize| {
        let mut lsn = [0; 8];
        journal.read_exact_at(&mut lsn, *at as u64 + 8).unwrap();
        u64::from_le_bytes(lsn)
    };
    // A byte of an operation that others follow.
    let last = records.iter().map(lsn).max().unwrap();
    let middle = *records.iter().find(|at| lsn(at) == last / 2).unwrap();
    let old = overwrite(&journal, middle + 70, &[0xa5]);
    let sector = format!("sector {}", middle / SECTOR);
    stays_down(
        &node,
        &[
            "journal of node n1",
            "nsd1",
            &sector,
            "record is damaged",
            "help:",
        ],
    );
    overwrite(&journal, middle + 70, &old);
    // No header is left: not a new file system.
    let headers = find(&journal, b"GUPFSSEG");
    assert_eq!(headers.len(), 4);
    let old: Vec<_> = headers
        .iter()
        .map(|at| (*at, overwrite(&journal, *at, &[0; SECTOR])))
        .collect();
    stays_down(
        &node,
        &[
            "journal of node n1",
            "nsd1",
            "nothing where the journal was",
            "help:",
        ],
    );
    for (at, old) in &old {
        overwrite(&journal, *at, old);
    }
    // A flush that a power cut tore, behind all that was acknowledged: no damage.
    let end = (records.iter().max_by_key(|at| lsn(at)).unwrap() / SECTOR + 1) * SECTOR;
    overwrite(&journal, end, &[0x5a; 3 * SECTOR]);
    node.up(&[]).expect("nothing acknowledged is damaged");
    all_is_there();
    // One copy of each header.
    kill(&node);
    for at in headers.iter().step_by(2) {
        overwrite(&journal, *at, &[0x77; SECTOR]);
    }
    node.up(&[]).expect("the other copies are good");
    all_is_there();
}

/// A sector of the journal that is lost after a stop in good order, whichever it is: files of its last flush were gone, and `gupfs fsck` said
/// that all is well.
#[test]
fn a_sector_that_a_stopped_journal_loses_is_missed() {
    const FILE_COUNT: usize = 200;
    let Some(node) = Node::new("256M") else {
        return;
    };
    for number in 0..FILE_COUNT {
        let path = node.mount().join(format!("f{number}"));
        fs::write(path, [7; 30_000]).unwrap();
    }
    node.gupfs(&["down"]);
    let dump: serde_json::Value =
        serde_json::from_str(&node.gupfs(&["dump", "journal", "--json"])).unwrap();
    let is_live = |header: &&serde_json::Value| header["header"]["retired"] == false;
    let live = dump["headers"].as_array().unwrap().iter().find(is_live);
    let live = usize::try_from(live.unwrap()["sector"].as_u64().unwrap()).unwrap();
    let journal = open(&disk(&node, 1));
    let check = || -> (u64, i32) {
        let (said, code) = fsck(&node.state(), &[]);
        (said["inodes"].as_u64().unwrap_or(0), code)
    };
    let whole = check();
    assert!(whole.0 > FILE_COUNT as u64 && whole.1 == 0, "{whole:?}");
    let read = |number: usize| -> Vec<u8> {
        let mut sector = vec![0; SECTOR];
        let at = (number * SECTOR) as u64;
        journal.read_exact_at(&mut sector, at).unwrap();
        sector
    };
    let is_used = |number: &usize| read(*number).iter().any(|byte| *byte != 0);
    let used: Vec<usize> = (live + 2..live + 1024).filter(is_used).collect();
    let last = &used[used.len().saturating_sub(40)..];
    let mut missed = 0;
    for number in last {
        let (sector, at) = (read(*number), (number * SECTOR) as u64);
        journal.write_all_at(&[0; SECTOR], at).unwrap();
        missed += usize::from(check().1 != 0);
        journal.write_all_at(&sector, at).unwrap();
    }
    // All but the record that says that what is before it was written.
    let count = last.len();
    assert!(count == 40 && missed + 1 == count, "{missed} of {count}");
    assert_eq!(check(), whole);
    node.up(&[]).unwrap();
}

#[test]
fn damaged_data_are_an_error_of_their_file_alone() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let pattern = b"a line that is on the disk once.";
    let mut bytes = vec![b'x'; 300_000];
    bytes[200_000..200_032].copy_from_slice(pattern);
    let (bad, good) = (node.mount().join("bad"), node.mount().join("good"));
    synced(&bad, &bytes);
    synced(&good, &vec![b'y'; 300_000]);
    node.gupfs(&["down"]);
    let found: Vec<(File, usize)> = (1..=4)
        .map(|number| open(&disk(&node, number)))
        .filter_map(|disk| {
            find(&disk, pattern)
                .first()
                .map(|at| (disk.try_clone().unwrap(), *at))
        })
        .collect();
    let [(disk, at)] = &found[..] else {
        panic!("{} places", found.len());
    };
    let old = overwrite(disk, *at, b"A");
    node.up(&[]).expect("data are read when they are asked for");
    let error = fs::read(&bad).expect_err("it is damaged");
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    let log = fs::read_to_string(node.state().join("log")).unwrap();
    let names = log
        .lines()
        .filter(|line| line.contains("not what was written"));
    let names: Vec<&str> = names.collect();
    assert!(!names.is_empty() && names.len() < 10, "{log}");
    assert!(
        names[0].contains("nsd=nsd") && names[0].contains("sector="),
        "{}",
        names[0]
    );
    assert_eq!(fs::read(&good).unwrap(), vec![b'y'; 300_000]);
    // What is not damaged of it can be had.
    let mut head = vec![0; 4096];
    File::open(&bad)
        .unwrap()
        .read_exact_at(&mut head, 0)
        .unwrap();
    assert_eq!(head, vec![b'x'; 4096]);
    // It was the cable.
    node.gupfs(&["down"]);
    overwrite(disk, *at, &old);
    node.up(&[]).expect("as before");
    assert_eq!(fs::read(&bad).unwrap(), bytes);
}

#[test]
fn damaged_state_files_are_named_and_left_alone() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    synced(&node.mount().join("file"), b"text");
    node.gupfs(&["down"]);
    let garbage: Vec<u8> = (0..200u8).map(|n| n.wrapping_mul(91) ^ 0x80).collect();
    for (name, words) in [
        ("gupfs.toml", ["gupfs.toml"].as_slice()),
        ("cluster.view", &["cluster.view", "help:"]),
    ] {
        let path = node.state().join(name);
        let good = fs::read(&path).unwrap();
        for bad in [&garbage[..], &good[..good.len() / 2], &[]] {
            fs::write(&path, bad).unwrap();
            stays_down(&node, words);
        }
        fs::remove_file(&path).unwrap();
        stays_down(&node, &[name]);
        fs::write(&path, good).unwrap();
    }
    // Former lives are known to the others too: a list that is lost costs the wait for a lease.
    fs::write(node.state().join("lives"), garbage).unwrap();
    node.up(&[]).expect("nothing is missing that counts");
    assert_eq!(fs::read(node.mount().join("file")).unwrap(), b"text");
}

/// `stays_down` but for one disk, which others have seen in later use.
#[test]
fn an_nsd_that_is_put_back_from_an_older_copy_is_named_and_left_alone() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let before: Vec<u8> = (0..12_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    synced(&node.mount().join("before"), &before);
    node.gupfs(&["down"]);
    let copies = tempfile::tempdir().unwrap();
    let copy_of = |number: u16| copies.path().join(number.to_string());
    let copy = |from: &Path, to: &Path| fs::copy(from, to).map(drop).unwrap();
    for number in 1..=4 {
        copy(&disk(&node, number), &copy_of(number));
    }
    node.up(&[]).expect("as before");
    synced(&node.mount().join("after"), &before);
    // What is seen of it is durable before anything changes.
    kill(&node);
    // Without the journal, and with it.
    for number in [3, 1] {
        let newest = fs::read(disk(&node, number)).unwrap();
        copy(&copy_of(number), &disk(&node, number));
        let name = format!("nsd/{number}.img");
        stays_down(
            &node,
            &[
                &name,
                "is an older copy",
                "in generation 2",
                "fsck --repair",
            ],
        );
        let (found, code) = fsck(&node.state(), &[]);
        assert!(found["counts"]["nsd-older"] == 1 && code == 4, "{found:#}");
        fs::write(disk(&node, number), newest).unwrap();
    }
    let (found, code) = fsck(&node.state(), &["--data"]);
    assert_eq!(code, 0, "{found:#}");
    node.up(&[]).expect("the newest");
    assert_eq!(fs::read(node.mount().join("after")).unwrap(), before);
    node.gupfs(&["down"]);
    // Nothing is repaired while what is lost might come back, and an older copy is none that counts then.
    let newest = fs::read(disk(&node, 3)).unwrap();
    copy(&copy_of(3), &disk(&node, 3));
    let journal = open(&disk(&node, 1));
    let headers = find(&journal, b"GUPFSSEG");
    let damage = |at: &usize| (*at, overwrite(&journal, *at, &[0xa5; 600]));
    let good: Vec<_> = headers.iter().map(damage).collect();
    for _ in 0..2 {
        let (found, code) = fsck(&node.state(), &["--repair", "--yes"]);
        assert!(code & 4 == 4, "{found:#}");
        assert_eq!(found["counts"]["nsd-older"], 1, "{found:#}");
    }
    for (at, bytes) in good {
        overwrite(&journal, at, &bytes);
    }
    drop(journal);
    stays_down(&node, &["is an older copy"]);
    fs::write(disk(&node, 3), newest).unwrap();
    node.up(&[]).expect("the newest");
    node.gupfs(&["down"]);
    // Who has no newer one goes on with what is left.
    copy(&copy_of(3), &disk(&node, 3));
    let (found, code) = fsck(&node.state(), &["--repair", "--yes"]);
    assert!(
        code & 1 == 1 && found["counts"]["nsd-older"] == 1,
        "{found:#}"
    );
    let (found, _) = fsck(&node.state(), &["--data"]);
    let left = found["findings"].as_array().unwrap().iter();
    let left: Vec<_> = left
        .map(|f| (&f["kind"].as_str().unwrap()[..5], f["path"].as_str()))
        .collect();
    assert!(!left.is_empty(), "bytes of it are lost");
    let is_its = |of: &(&str, Option<&str>)| *of == ("data-", Some("/after"));
    assert!(left.iter().all(is_its), "{left:?}");
    node.up(&[]).expect("repaired");
    assert_eq!(fs::read(node.mount().join("before")).unwrap(), before);
    let error = fs::read(node.mount().join("after")).expect_err("bytes of it are lost");
    assert_eq!(error.raw_os_error(), Some(5), "EIO: {error}");
    node.gupfs(&["down"]);
    // All of one moment: a backup.
    for number in 1..=4 {
        copy(&copy_of(number), &disk(&node, number));
    }
    node.up(&[]).expect("no disk is older than the others");
    assert_eq!(fs::read(node.mount().join("before")).unwrap(), before);
    assert!(!node.mount().join("after").exists());
}

/// A newer copy of another disk may be on the one that is not here.
#[test]
fn an_older_copy_is_not_accepted_while_a_disk_is_away() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    node.gupfs(&["down"]);
    let older = fs::read(disk(&node, 3)).unwrap();
    node.up(&[]).expect("as before");
    synced(&node.mount().join("after"), &[7; 5000]);
    node.gupfs(&["down"]);
    let newest = fs::read(disk(&node, 3)).unwrap();
    fs::write(disk(&node, 3), older).unwrap();
    let away = node.state().join("away");
    fs::rename(disk(&node, 2), &away).unwrap();
    let refused_twice = |more: &[&str]| {
        for _ in 0..2 {
            let (found, code) = fsck(&node.state(), &["--repair", "--yes"]);
            assert_eq!(code & 4, 4, "{found:#}");
            for kind in ["nsd-older", "nsd-missing"].iter().chain(more) {
                assert_eq!(found["counts"][kind], 1, "{found:#}");
            }
        }
    };
    refused_twice(&[]);
    // Also beside what could be repaired by itself.
    let journal = open(&disk(&node, 1));
    overwrite(&journal, find(&journal, b"GUPFSSEG")[0], &[0xa5; 600]);
    refused_twice(&["journal-header"]);
    fs::rename(&away, disk(&node, 2)).unwrap();
    stays_down(&node, &["nsd/3.img", "is an older copy"]);
    fs::write(disk(&node, 3), newest).unwrap();
    node.up(&[]).expect("the newest");
    assert_eq!(fs::read(node.mount().join("after")).unwrap(), [7; 5000]);
}

/// The generation that the mark of the third disk names.
fn generation(node: &Node) -> u64 {
    let said = node.gupfs(&["dump", "superblock", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    said["nsds"][2]["generation"].as_u64().unwrap()
}

/// Also where the daemon has run all the time since.
#[test]
fn an_older_copy_of_a_disk_in_use_is_told_too() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    node.gupfs(&["down"]);
    let mut up = Command::new("timeout");
    up.args(["-k", "5", "90", env!("CARGO_BIN_EXE_gupfs"), "up"]);
    up.arg("--mount").arg(node.mount());
    up.arg("--state").arg(node.state());
    let output = up.env("GUPFS_MARK_INTERVAL_MS", "50").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    synced(&node.mount().join("before"), b"before");
    let copy = fs::read(disk(&node, 3)).unwrap();
    let (begin, since) = (generation(&node), Instant::now());
    while generation(&node) < begin + 2 {
        assert!(since.elapsed() < Duration::from_secs(30), "no new one");
        std::thread::sleep(Duration::from_millis(20));
    }
    synced(&node.mount().join("after"), b"after");
    kill(&node);
    let newest = fs::read(disk(&node, 3)).unwrap();
    fs::write(disk(&node, 3), copy).unwrap();
    stays_down(&node, &["nsd/3.img", "is an older copy"]);
    fs::write(disk(&node, 3), newest).unwrap();
    node.up(&[]).expect("the newest");
    assert_eq!(fs::read(node.mount().join("after")).unwrap(), b"after");
}
