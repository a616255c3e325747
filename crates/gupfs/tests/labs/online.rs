//! `gupfs fsck --online`: nothing is said of a healthy file system, whatever is done to it meanwhile, and damage is told while it
//! serves.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use stdx::prng::Prng;
use types::InodeId;

use crate::fsck::kinds;
use crate::lab::{LIMIT, Lab, bounded, can_run, fsck};
use crate::node::Node;
use crate::repair::{damage, plant};

const SECTOR: u64 = 4096;
/// Directories that all work in; every other one is node 2's.
const DIRECTORY_COUNT: u64 = 4;
/// Names that a worker has at most.
const NAME_COUNT_MAX: usize = 200;

/// One worker's names in directories of both owners: made, written, cut, linked, moved, removed until `is_over`.
fn work(mount: &Path, seed: u64, is_over: &AtomicBool, done: &AtomicU64) {
    let mut random = Prng::new(seed);
    let mut names: Vec<PathBuf> = Vec::new();
    for number in 0u64.. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let directory = mount.join(format!("d{}", random.below(DIRECTORY_COUNT)));
        let new = directory.join(format!("w{seed}-{number}"));
        let any = match names.len() {
            0 => 0,
            count => usize::try_from(random.below(count as u64)).unwrap(),
        };
        let result = match random.below(100) {
            _ if names.is_empty() => {
                names.push(new.clone());
                fs::write(&new, b"first")
            }
            _ if names.len() > NAME_COUNT_MAX => fs::remove_file(names.swap_remove(any)),
            0..30 => {
                let size =
                    [0, 100, 5_000, 70_000, 300_000][usize::try_from(random.below(5)).unwrap()];
                names.push(new.clone());
                fs::write(&new, vec![number.to_le_bytes()[0]; size])
            }
            30..45 => {
                let old = std::mem::replace(&mut names[any], new.clone());
                fs::rename(old, new)
            }
            45..60 => {
                names.push(new.clone());
                fs::hard_link(&names[any], new)
            }
            60..80 => fs::remove_file(names.swap_remove(any)),
            80..85 => {
                let moved = mount.join(format!("d{}/m{seed}-{number}", number % DIRECTORY_COUNT));
                fs::create_dir(&new)
                    .and_then(|()| fs::rename(&new, &moved))
                    .and_then(|()| fs::remove_dir(&moved))
            }
            85..93 => File::options()
                .write(true)
                .open(&names[any])
                .and_then(|file| {
                    file.write_all_at(&[7; 4_000], random.below(100_000))?;
                    if random.below(2) == 0 {
                        file.sync_all()
                    } else {
                        Ok(())
                    }
                }),
            _ => File::options()
                .write(true)
                .open(&names[any])
                .and_then(|file| file.set_len(random.below(50_000))),
        };
        // Nothing else can go wrong: names are the worker's own.
        assert!(
            result.is_ok()
                || result
                    .as_ref()
                    .is_err_and(|e| e.kind() == ErrorKind::StorageFull),
            "{result:?}"
        );
        done.fetch_add(1, Ordering::SeqCst);
    }
}

/// Does `act` while two workers on each mount work.
fn while_they_work<T>(mounts: [&Path; 2], act: impl FnOnce(&AtomicU64) -> T) -> T {
    let (is_over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    /// Also if `act` panics.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    for directory in 0..DIRECTORY_COUNT {
        let maker = mounts[usize::from(directory % 2 == 1)];
        let path = maker.join(format!("d{directory}"));
        fs::create_dir_all(path).unwrap();
    }
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (is_over, done) = (&is_over, &done);
            let mount = mounts[usize::from(seed % 2 == 1)];
            scope.spawn(move || work(mount, seed, is_over, done));
        }
        let _over = Over(&is_over);
        act(&done)
    })
}

/// NSD and sector of a file's first sector.
fn place(path: &Path) -> (u64, u64) {
    let words = [
        env!("CARGO_BIN_EXE_gupfs"),
        "stat",
        "--sync",
        "--json",
        path.to_str().unwrap(),
    ];
    let output = bounded(LIMIT, &words);
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let at = &value["extents"][0]["at"][0];
    (at["nsd"].as_u64().unwrap(), at["sector"].as_u64().unwrap())
}

/// Flips a byte in a sector as long as this lives.
struct Flipped(File, u64);

impl Flipped {
    fn at(disk: &Path, byte: u64) -> Self {
        let file = File::options().read(true).write(true).open(disk).unwrap();
        let flipped = Self(file, byte);
        flipped.flip();
        flipped
    }

    fn flip(&self) {
        let mut byte = [0];
        self.0.read_exact_at(&mut byte, self.1).unwrap();
        self.0.write_all_at(&[byte[0] ^ 0x10], self.1).unwrap();
        self.0.sync_all().unwrap();
    }
}

impl Drop for Flipped {
    fn drop(&mut self) {
        self.flip();
    }
}

/// A check whose looks begin when the test says so: each reads the view, which is a pipe.
struct Paced {
    directory: tempfile::TempDir,
    view: Vec<u8>,
    check: Child,
}

impl Paced {
    fn start(state: &Path, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let name = "gupfs.toml";
        fs::copy(state.join(name), directory.path().join(name)).unwrap();
        let view = fs::read(state.join("cluster.view")).unwrap();
        put_pipe(directory.path());
        let mut check = Command::new(env!("CARGO_BIN_EXE_gupfs"));
        check.args(["fsck", "--online", "--json"]).args(options);
        check.arg(directory.path());
        check.stdout(Stdio::piped()).stderr(Stdio::piped());
        let check = check.spawn().unwrap();
        Self {
            directory,
            view,
            check,
        }
    }

    /// Waits until a look begins, and lets it read these bytes when `act` is done.
    fn look(&mut self, bytes: &[u8], act: impl FnOnce(u32)) {
        let begin = Instant::now();
        let pipe = self.directory.path().join("cluster.view");
        let mut view = loop {
            let mut options = File::options();
            // Fails while nobody reads.
            let opened = options
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&pipe);
            if let Ok(view) = opened {
                break view;
            }
            assert!(begin.elapsed().as_secs() < u64::from(LIMIT));
            assert!(self.check.try_wait().unwrap().is_none(), "it is over");
            std::thread::sleep(Duration::from_millis(2));
        };
        // The next look reads another one.
        fs::remove_file(&pipe).unwrap();
        put_pipe(self.directory.path());
        act(self.check.id());
        view.write_all(bytes).unwrap();
    }

    /// So many looks at the file system.
    fn looks(&mut self, count: u32, mut act: impl FnMut()) {
        let view = self.view.clone();
        (0..count).for_each(|_| self.look(&view, |_| act()));
    }

    fn interrupted_look(&mut self) {
        let view = self.view.clone();
        self.look(&view, |pid| {
            let kill = bounded(5, &["sh", "-c", &format!("kill -INT {pid}")]);
            assert!(kill.status.success(), "{kill:?}");
        });
    }

    /// What it says, how it ends, and what it complains of.
    fn end(&mut self) -> (Value, i32, String) {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.check.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed().as_secs() < u64::from(LIMIT));
            std::thread::sleep(Duration::from_millis(2));
        };
        let (mut said, mut complaint) = (String::new(), String::new());
        let stdout = self.check.stdout.as_mut().unwrap();
        stdout.read_to_string(&mut said).unwrap();
        let stderr = self.check.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut complaint).unwrap();
        let value = serde_json::from_str(&said);
        let value = value.unwrap_or_else(|_| panic!("{status:?} {said} {complaint}"));
        (value, status.code().unwrap(), complaint)
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.check.kill();
        let _ = self.check.wait();
    }
}

fn put_pipe(directory: &Path) {
    let pipe = directory.join("cluster.view");
    let made = bounded(5, &["mkfifo", pipe.to_str().unwrap()]);
    assert!(made.status.success(), "{made:?}");
}

/// Of damage that rests, but for the links of `small`: interrupted in the first look and in the fourth, and where the fourth fails.
fn ends_early(state: &Path, small: &Path, all: &[&str]) {
    let mut first = Paced::start(state, &["--data"]);
    first.interrupted_look();
    let (found, code, _) = first.end();
    assert_eq!((kinds(&found), code), (vec![], 32), "{found:#}");
    assert_eq!((&found["looks"], &found["inodes"]), (&0.into(), &0.into()));
    let mut mode = 0o600;
    let mut change = || {
        mode ^= 0o100;
        let file = File::open(small).unwrap();
        file.set_permissions(fs::Permissions::from_mode(mode))
            .unwrap();
        file.sync_all().unwrap();
    };
    let resting: Vec<&str> = all.iter().copied().filter(|k| *k != "link-count").collect();
    let mut fourth = Paced::start(state, &["--data"]);
    fourth.looks(3, &mut change);
    fourth.interrupted_look();
    let (found, code, _) = fourth.end();
    assert_eq!((kinds(&found), code), (resting.clone(), 36), "{found:#}");
    let mut failing = Paced::start(state, &[]);
    failing.looks(3, &mut change);
    failing.look(b"no view", |_| {});
    let (found, code, complaint) = failing.end();
    assert_eq!((kinds(&found), code), (resting, 12), "{found:#}");
    assert_eq!(
        (&found["looks"], &found["unsettled"]),
        (&3.into(), &1.into())
    );
    assert!(complaint.contains("cluster.view"), "{complaint}");
}

impl Lab {
    /// The disk that backs an NSD.
    fn disk(&self, nsd: u64) -> PathBuf {
        PathBuf::from(format!("{}/ram/{nsd}.img", self.root()))
    }

    fn rounds(&self) -> u64 {
        let of = |node| {
            self.dump(node, "counters")["checkpoint_rounds"]
                .as_u64()
                .unwrap()
        };
        of(1) + of(2)
    }
}

/// Where pages of trees lie on this disk, behind the LSN of their checkpoint and their number.
fn pages(disk: &Path) -> Vec<(u64, u64, u64)> {
    let bytes = fs::read(disk).unwrap();
    let field = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let places = (0..bytes.len()).step_by(4096);
    let pages = places.filter(|at| bytes[*at..].starts_with(b"GTPG"));
    pages
        .map(|at| (field(at + 32), field(at + 48), at as u64))
        .collect()
}

#[test]
fn a_busy_file_system_is_clean_and_its_damage_is_told() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "ram");
    let root = Path::new(lab.root());
    // A bound of memory for metadata makes them write trees all the time.
    for node in ["n1", "n2"] {
        let state = format!("{}/{node}", lab.root());
        // What rests is left alone: pages are looked for at the end that nobody writes anew.
        for (key, value) in [("metadata_bytes_max", "100K"), ("rewrite_rate", "0")] {
            let words = ["config", "set", key, value, "--state", &state];
            let output = bounded(
                LIMIT,
                &[&[env!("CARGO_BIN_EXE_gupfs")], &words[..]].concat(),
            );
            assert!(output.status.success(), "{output:?}");
        }
        lab.gupfs(&["kill", node]);
        lab.gupfs(&["start", node]);
    }
    let mounts = [lab.mount(1), lab.mount(2)];
    let kept = mounts[0].join("kept");
    let bytes: Vec<u8> = (0..300_000u32).map(|i| i.to_le_bytes()[1]).collect();
    fs::write(&kept, &bytes).unwrap();
    let (nsd, sector) = place(&kept);
    let mut doubtful = 0;
    while_they_work([&mounts[0], &mounts[1]], |done| {
        let begin = lab.rounds();
        let until = Instant::now() + Duration::from_secs(120);
        let mut count = 0;
        // Owners are read at different moments: that there are doubts, and that they are refuted, is what is tried here.
        while count < 8 || doubtful < 3 || lab.rounds() < begin + 4 {
            let (found, code) = fsck(root, &["--online", "--data"]);
            assert_eq!(
                (kinds(&found), code),
                (vec![], 0),
                "{found:#}\n{}",
                lab.logs()
            );
            doubtful += u64::from(found["looks"].as_u64() > Some(1));
            count += 1;
            assert!(
                Instant::now() < until,
                "no checkpoints are made, or nothing is doubtful: {doubtful}"
            );
        }
        eprintln!(
            "{count} checks, {doubtful} with doubts, {} operations",
            done.load(Ordering::SeqCst)
        );
        let operations = done.load(Ordering::SeqCst);
        assert!(operations > count, "they work meanwhile");
        // Of a file that they leave alone; and a label.
        let data = Flipped::at(&lab.disk(nsd), (sector + 2) * SECTOR + 40);
        let (found, code) = fsck(root, &["--online", "--data"]);
        assert_eq!((kinds(&found), code), (vec!["data-sector"], 4), "{found:#}");
        assert_eq!(found["findings"][0]["path"], "/kept");
        assert_eq!(
            fsck(root, &["--online"]).1,
            0,
            "without --data nobody looks there"
        );
        drop(data);
        let label = Flipped::at(&lab.disk(nsd), SECTOR + 40);
        let (found, code) = fsck(root, &["--online"]);
        assert_eq!((kinds(&found), code), (vec!["label-copy"], 4), "{found:#}");
        drop(label);
        // It ends when it is told to, wherever that hits it and what it runs.
        for after in ["0.02", "0.04", "0.06", "0.08", "0.1", "0.15", "0.2"] {
            let gupfs = env!("CARGO_BIN_EXE_gupfs");
            let words = ["timeout", "-s", "INT", "--preserve-status", after, gupfs];
            let words = [&words[..], &["fsck", "--online", "--data", lab.root()]].concat();
            let output = bounded(LIMIT, &words);
            let code = output.status.code();
            let codes = [Some(0), Some(32), Some(130), None];
            assert!(codes.contains(&code), "{output:?}");
            assert!(!root.join("n1/fsck.progress").exists());
        }
    });
    assert!(fs::read(&kept).unwrap() == bytes);
    // Nobody works any more: what is in the trees stays where it is, until the damage is mended.
    // One is asked for a second after the last at the earliest, and later on a busy machine.
    let mut rounds = (lab.rounds(), Instant::now());
    let until = Instant::now() + Duration::from_secs(120);
    while rounds.1.elapsed() < Duration::from_secs(6) {
        assert!(
            Instant::now() < until,
            "rounds of checkpoints do not end: {rounds:?}"
        );
        std::thread::sleep(Duration::from_millis(500));
        let now = lab.rounds();
        if now != rounds.0 {
            rounds = (now, Instant::now());
        }
    }
    let disks = (1..).take_while(|nsd| lab.disk(*nsd).exists());
    let mut all: Vec<_> = disks
        .flat_map(|nsd| pages(&lab.disk(nsd)).into_iter().map(move |at| (at, nsd)))
        .collect();
    all.sort_unstable();
    // The newest are roots, but for those of checkpoints that were given up, which nobody reads.
    let is_told = |((_, _, at), nsd): ((u64, u64, u64), u64)| {
        let page = Flipped::at(&lab.disk(nsd), at + 300);
        let (found, code) = fsck(root, &["--online"]);
        assert_eq!(lab.rounds(), rounds.0, "another page may lie there now");
        drop(page);
        let is_told = kinds(&found).contains(&"tree-page-lost");
        assert_eq!(code, if is_told { 4 } else { 0 }, "{found:#}");
        is_told
    };
    let mut newest = all.into_iter().rev().take(50);
    assert!(newest.any(is_told));
    assert_eq!(fsck(root, &["--online", "--data"]).1, 0, "all is as it was");
}

#[test]
fn what_was_wrong_before_the_start_is_told_while_it_serves() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let (mount, state) = (node.mount(), node.state());
    fs::write(mount.join("small"), b"small").unwrap();
    let small = fs::metadata(mount.join("small")).unwrap().ino();
    let online = |options: &[&str]| fsck(&state, &[&["--online"], options].concat());
    assert_eq!(online(&["--data"]).1, 0);
    node.gupfs(&["down"]);
    assert_eq!(
        online(&[]).1,
        0,
        "nobody uses it, and nothing is in the way"
    );
    plant(&node, |owner| damage(owner, InodeId::from_raw(small)));
    let (offline, _) = fsck(&state, &[]);
    assert!(kinds(&offline).contains(&"link-count"), "{offline:#}");
    node.up(&[]).expect("it comes up");
    while_they_work([&mount, &mount], |_| {
        let (found, code) = online(&[]);
        assert_eq!((kinds(&found), code), (kinds(&offline), 4), "{found:#}");
        assert!(found["looks"].as_u64() >= Some(3), "{found:#}");
        assert_eq!(found["unsettled"], 0, "{found:#}");
    });
    ends_early(&state, &mount.join("small"), &kinds(&offline));
    // Nothing is repaired in use.
    let words = [env!("CARGO_BIN_EXE_gupfs"), "fsck", "--online"];
    let refused = |more: &[&str]| {
        let output = bounded(
            LIMIT,
            &[&words[..], more, &[state.to_str().unwrap()]].concat(),
        );
        assert_eq!(output.status.code(), Some(16), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused(&["--repair"]).contains("gupfs down"));
    refused(&["--data", "--resume"]);
}
