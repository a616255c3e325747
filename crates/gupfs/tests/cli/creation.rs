//! Creation that is refused, that fails and that is interrupted; disks that a state directory must not take.
#![allow(
    clippy::disallowed_methods,
    reason = "a test at the OS boundary; what it kills it kills at moments"
)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::read_only::Loop;
use super::{check_refused, gupfs, is_root, listing, refused, text};

/// Two blank disks and where a file system over them would go.
struct Rig {
    directory: tempfile::TempDir,
    disks: [PathBuf; 2],
}

impl Rig {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let disks = ["1.img", "2.img"].map(|name| directory.path().join(name));
        for path in &disks {
            let made = File::create(path).and_then(|file| file.set_len(128 << 20));
            made.expect("a sparse file");
        }
        fs::create_dir(directory.path().join("mnt")).expect("made");
        Self { directory, disks }
    }

    /// For what root alone may do; `None`: somebody else runs this.
    fn for_root() -> Option<Self> {
        is_root().then(Self::new)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The words of `gupfs fs create` over both disks.
    fn create<'a>(&'a self, state: &'a str, mount: &'a str) -> Vec<&'a str> {
        create_over(
            [&self.disks[0], &self.disks[1]].map(|path| text(path)),
            state,
            mount,
        )
    }

    /// Nothing was written to the disks.
    fn are_blank(&self) {
        for path in &self.disks {
            let mut head = vec![0; 1 << 20];
            let file = File::open(path).expect("opened");
            file.read_exact_at(&mut head, 0).expect("read");
            assert!(head.iter().all(|byte| *byte == 0), "{}", path.display());
        }
    }
}

/// The words of `gupfs fs create` over these disks.
fn create_over<'a>(disks: [&'a str; 2], state: &'a str, mount: &'a str) -> Vec<&'a str> {
    let words = ["fs", "create", "--state", state, "--mount", mount];
    words.into_iter().chain(disks).collect()
}

impl Drop for Rig {
    fn drop(&mut self) {
        for path in &self.disks {
            let words = ["-n", "-O", "NAME", "-j"];
            let Ok(found) = Command::new("losetup").args(words).arg(path).output() else {
                continue;
            };
            for device in String::from_utf8_lossy(&found.stdout).lines() {
                let _ = Command::new("losetup").args(["-d", device.trim()]).status();
            }
        }
    }
}

fn succeeds(words: &[&str]) -> String {
    let run = gupfs(words);
    assert_eq!(run.code, Some(0), "{words:?}: {}", run.err);
    run.out
}

#[test]
fn what_no_file_system_can_have_is_refused() {
    let rig = Rig::new();
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let before = listing(rig.directory.path());
    for size in ["3M", "32K", "32M", "0", "4G"] {
        let mut words = rig.create(text(&state), text(&mount));
        words.extend(["--block-size", size]);
        refused(&words, &["block size", "help:", "64.0 KiB to 16.0 MiB"]);
    }
    // A socket with a longer name than sockets have would be in it.
    let long = rig.path(&"d".repeat(120));
    refused(
        &rig.create(text(&long), text(&mount)),
        &["too long", "help:", "bytes less"],
    );
    for command in ["up", "down", "status"] {
        let mut words = vec![command, "--state", text(&long)];
        if command == "up" {
            words.extend(["--mount", text(&mount)]);
        }
        if command != "up" || is_root() {
            refused(&words, &["too long", "help:"]);
        }
    }
    let absent = rig.path(&"d".repeat(256));
    refused(&rig.create(text(&absent), text(&mount)), &["too long"]);
    let somebody = rig.path("somebody");
    fs::create_dir(&somebody).expect("made");
    fs::write(somebody.join("thesis.tex"), "x").expect("written");
    refused(&rig.create(text(&somebody), text(&mount)), &["thesis.tex"]);
    fs::remove_dir_all(&somebody).expect("removed");
    assert_eq!(listing(rig.directory.path()), before);
    rig.are_blank();
}

/// Names that are no text stand in no state directory: they are refused before anything is written, and shown as they can be.
#[test]
fn names_that_are_not_text_are_refused_or_shown() {
    let rig = Rig::new();
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let odd = rig.directory.path().join(OsStr::from_bytes(b"odd\xff"));
    fs::create_dir(&odd).expect("made");
    let disk = odd.join("1.img");
    fs::hard_link(&rig.disks[0], &disk).expect("linked");
    let before = listing(rig.directory.path());
    let run = |words: &[&OsStr]| super::run(Command::new(env!("CARGO_BIN_EXE_gupfs")).args(words));
    let create = |state: &Path, mount: &Path, disk: &Path| {
        let words = ["fs", "create", "--force", "--state"].map(OsStr::new);
        let rest = [state.as_os_str(), OsStr::new("--mount"), mount.as_os_str()];
        run(&[&words[..], &rest, &[disk.as_os_str()]].concat())
    };
    let said = ["odd\u{fffd}", "not UTF-8", "help:"];
    for (state, mount, disk) in [
        (&odd.join("state"), &mount, &rig.disks[0]),
        (&odd, &mount, &rig.disks[0]),
        (&state, &odd, &rig.disks[0]),
        (&state, &mount, &disk),
    ] {
        check_refused(&create(state, mount, disk), &["fs create"], &said);
    }
    assert_eq!(listing(rig.directory.path()), before);
    rig.are_blank();
    if is_root() {
        let words = ["up", "--state", text(&state), "--mount"].map(OsStr::new);
        let up = run(&[&words[..], &[odd.as_os_str()]].concat());
        check_refused(&up, &["up"], &said);
        let words = ["lab", "up", "--dir"].map(OsStr::new);
        let lab = run(&[&words[..], &[odd.join("lab").as_os_str()]].concat());
        check_refused(&lab, &["lab up"], &said);
        assert_eq!(listing(rig.directory.path()), before);
    }
    // What is only looked at is shown.
    succeeds(&rig.create(text(&state), text(&mount)));
    if is_root() {
        let words = ["mount", text(&state)].map(OsStr::new);
        let mounted = run(&[&words[..], &[odd.as_os_str()]].concat());
        check_refused(&mounted, &["mount"], &said);
    }
    for command in ["nsd", "fs"] {
        for words in [&["list"][..], &["list", "--json"]] {
            let words: Vec<_> = [&[command], words].concat();
            let words: Vec<_> = words.iter().map(OsStr::new).collect();
            let listed = run(&[&words[..], &[disk.as_os_str()]].concat());
            assert_eq!(listed.code, Some(0), "{}", listed.err);
            let shown = "odd\u{fffd}/1.img";
            assert!(listed.out.contains(shown), "{}", listed.out);
        }
    }
}

/// Killed at moments all over its run, `fs create` can be run again with the same words.
#[test]
fn an_interrupted_creation_is_repeated() {
    let rig = Rig::new();
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let words = rig.create(text(&state), text(&mount));
    let begin = Instant::now();
    succeeds(&words);
    let whole = begin.elapsed();
    let destroy = ["fs", "destroy", "--yes", "--state", text(&state)];
    let clean = || {
        if is_root() {
            succeeds(&destroy);
        } else {
            fs::remove_dir_all(&state).expect("removed");
            let force: Vec<&str> = ["nsd", "create", "--force"]
                .into_iter()
                .chain(rig.disks.iter().map(|path| text(path)))
                .collect();
            succeeds(&force);
        }
    };
    clean();
    for part in 1..=12 {
        let mut child = Command::new(env!("CARGO_BIN_EXE_gupfs"))
            .args(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(whole * part / 12);
        child.kill().expect("a child can be killed");
        let was_killed = !child.wait().expect("it ends").success();
        let is_made = state.join("gupfs.toml").exists();
        assert!(was_killed || is_made);
        if is_made {
            refused(&words, &["already"]);
        } else {
            succeeds(&words);
        }
        let disks: Vec<&str> = rig.disks.iter().map(|path| text(path)).collect();
        let listed = succeeds(&[&["fs", "list", "--json"], &disks[..]].concat());
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
        clean();
    }
}

/// A file system that `gupfs up` made, destroyed when it is dropped.
struct Ours<'a>(&'a Rig);

impl Ours<'_> {
    fn up(&self) -> super::Run {
        let (state, mount) = (self.0.path("state"), self.0.path("mnt"));
        let words = ["up", "--size", "512M", "--state", text(&state), "--mount"];
        gupfs(&[&words[..], &[text(&mount)]].concat())
    }
}

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        let state = self.0.path("state");
        gupfs(&["down", "--destroy", "--state", text(&state)]);
    }
}

/// A state directory that has lost its file still has the disks: they are no place for a new file system.
#[test]
fn disks_that_are_there_are_not_made_anew() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, kept) = (rig.path("state"), rig.path("mnt").join("kept"));
    let ours = Ours(&rig);
    assert_eq!(ours.up().code, Some(0));
    fs::write(&kept, "bytes").expect("written");
    let down = ["down", "--state", text(&state)];
    succeeds(&down);
    for (round, lost) in [
        &["gupfs.toml", "lives"][..],
        &["gupfs.toml", "lives", "cluster.view"],
    ]
    .into_iter()
    .enumerate()
    {
        let away = rig.path(&format!("away{round}"));
        fs::create_dir(&away).expect("made");
        for name in lost {
            fs::rename(state.join(name), away.join(name)).expect("moved");
        }
        let before = listing(&state);
        let run = ours.up();
        let said = [
            "gupfs.toml is missing",
            "nsd/4.img (NSD 'nsd4'",
            "help:",
            "backup",
            "down --destroy",
        ];
        check_refused(&run, &["up"], &said);
        let words = rig.create(text(&state), "/mnt/x");
        refused(&words, &said);
        // The note of another creation says nothing of these.
        fs::write(state.join("creating"), "7".repeat(32)).expect("written");
        check_refused(&ours.up(), &["up"], &said);
        fs::remove_file(state.join("creating")).expect("there");
        assert_eq!(listing(&state), before);
        for name in lost {
            fs::rename(away.join(name), state.join(name)).expect("moved back");
        }
        let run = ours.up();
        assert_eq!(run.code, Some(0), "{}", run.err);
        assert_eq!(fs::read_to_string(&kept).expect("there"), "bytes");
        succeeds(&down);
    }
    // A daemon that starts has a whole directory: what a creation noted that was interrupted at its very end goes.
    let fs_id = succeeds(&["fs", "list", "--json", text(&state.join("nsd/1.img"))]);
    let fs_id: serde_json::Value = serde_json::from_str(&fs_id).expect("JSON");
    let note = || {
        fs::write(
            state.join("creating"),
            fs_id[0]["fs"].as_str().expect("an id"),
        )
    };
    note().expect("written");
    assert_eq!(ours.up().code, Some(0));
    assert!(!state.join("creating").exists());
    succeeds(&down);
    // What never came to its end is nobody's.
    for name in ["gupfs.toml", "lives"] {
        fs::remove_file(state.join(name)).expect("there");
    }
    note().expect("written");
    let run = ours.up();
    assert!(run.out.contains("made 4 NSDs"), "{}{}", run.out, run.err);
    assert!(!kept.exists());
    succeeds(&down);
    // And whoever says so destroys what has lost its file.
    fs::remove_file(state.join("gupfs.toml")).expect("there");
    succeeds(&["down", "--destroy", "--state", text(&state)]);
    assert!(!state.exists());
}

/// Killed at moments all over its run, `up` can be run again with the same words.
#[test]
fn an_interrupted_up_is_repeated() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let ours = Ours(&rig);
    let begin = Instant::now();
    let run = ours.up();
    assert_eq!(run.code, Some(0), "{}", run.err);
    let whole = begin.elapsed();
    for part in 1..=10 {
        succeeds(&["down", "--destroy", "--state", text(&state)]);
        let words = ["up", "--size", "512M", "--state", text(&state), "--mount"];
        let mut child = Command::new(env!("CARGO_BIN_EXE_gupfs"))
            .args(words)
            .arg(&mount)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(whole * part / 12);
        child.kill().expect("a child can be killed");
        child.wait().expect("it ends");
        let run = ours.up();
        assert_eq!(run.code, Some(0), "part {part}: {}", run.err);
        assert!(!state.join("creating").exists());
    }
}

/// A tmpfs, gone when it is dropped.
struct Full(PathBuf);

impl Full {
    fn new(path: &Path) -> Self {
        fs::create_dir(path).expect("made");
        let words = ["-t", "tmpfs", "-o", "size=64k", "gupfs-test", text(path)];
        let mounted = Command::new("mount").args(words).status();
        assert!(mounted.expect("mount(8) is there").success());
        Self(path.to_owned())
    }

    /// Writes until so many bytes are left.
    fn fill(&self, left: usize) {
        let size = (64 << 10) - left;
        fs::write(self.0.join("filler"), vec![1; size]).expect("it fits");
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_state_directory_is_said_and_nothing_is_made() {
    let Some(rig) = Rig::for_root() else { return };
    let full = Full::new(&rig.path("small"));
    let (state, mount) = (full.0.join("state"), rig.path("mnt"));
    // No page, one, two: the first file of the state directory fails, and later ones.
    for left in [0, 4096, 8192] {
        full.fill(left);
        let before = listing(&full.0);
        let words = rig.create(text(&state), text(&mount));
        refused(&words, &["No space left", text(&state), "nothing was made"]);
        assert_eq!(listing(&full.0), before, "{left} bytes left");
        rig.are_blank();
    }
    fs::remove_file(full.0.join("filler")).expect("there");
    // Sparse disks fit nothing but their labels.
    let up = ["up", "--state", text(&state), "--mount", text(&mount)];
    let before = listing(&full.0);
    refused(&[&up[..], &["--size", "512M"]].concat(), &["No space left"]);
    assert_eq!(listing(&full.0), before);
    assert_eq!(fs::read_dir(&mount).expect("there").count(), 0);
    // There is room again.
    succeeds(&rig.create(text(&state), text(&mount)));
    // A full directory later: settings stay what they are.
    full.fill(12 << 10);
    while fs::OpenOptions::new()
        .append(true)
        .open(full.0.join("filler"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, &[1; 4096]))
        .is_ok()
    {}
    let config = fs::read(state.join("gupfs.toml")).expect("there");
    let set = [
        "config",
        "set",
        "pagepool_size",
        "64M",
        "--state",
        text(&state),
    ];
    refused(&set, &["No space left", "gupfs.toml", "help: make room"]);
    assert_eq!(fs::read(state.join("gupfs.toml")).expect("there"), config);
    // The daemon cannot say why it does not start.
    let said = ["file system is full", "help: make room", text(&state)];
    refused(&up, &said);
    refused(&["mount", text(&state)], &said);
}

/// What fails is not in the way of the next try, and what an interrupted command has left is as good as new.
#[test]
fn files_for_nsds_are_made_all_or_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (first, second) = (path("1"), path("2"));
    let make = |size| ["nsd", "create", "--size", size, text(&first), text(&second)];
    // More than any file system has in a file.
    refused(&make("8000000T"), &["1: File too large", "smaller size"]);
    assert!(listing(directory.path()).is_empty());
    let missing = path("none/2");
    let words = ["nsd", "create", "--size", "128M", text(&first)];
    refused(&[&words[..], &[text(&missing)]].concat(), &["none/2"]);
    assert!(listing(directory.path()).is_empty());
    // One of two was made when it was interrupted.
    succeeds(&words);
    let said = succeeds(&make("128M"));
    assert!(
        said.contains("1 is there") && said.contains("made "),
        "{said}"
    );
    refused(&make("256M"), &["exists already"]);
    let file = File::options().write(true).open(&second).expect("opened");
    file.write_all_at(b"x", 77 << 20).expect("written");
    refused(&make("128M"), &["2 exists already"]);
    assert_eq!(fs::metadata(&first).expect("there").len(), 128 << 20);
}

#[test]
fn a_disk_without_a_size_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let said = |run: super::Run, words: &[&str]| {
        check_refused(&run, &["nsd create"], words);
        assert!(!run.err.contains("--size 0") && !run.err.contains("makes 1"));
    };
    for (name, size, word) in [
        ("empty", 0, "is empty"),
        ("small", 1 << 20, "it has 1.0 MiB"),
    ] {
        let made = File::create(path(name)).and_then(|file| file.set_len(size));
        made.expect("made");
        let run = gupfs(&["nsd", "create", text(&path(name))]);
        said(run, &[name, "too small", word, "help:"]);
    }
    let free = Command::new("losetup").arg("-f").output().expect("it runs");
    let free = String::from_utf8(free.stdout).expect("text");
    let free = free.trim();
    if is_root() && Path::new(free).exists() {
        let run = gupfs(&["nsd", "create", free]);
        said(run, &[free, "has no size", "nothing is attached", "help:"]);
    }
}

/// The root directory comes with the first start: nothing is wrong before, and what is lost later is found.
#[test]
fn what_was_just_made_is_clean() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    succeeds(&rig.create(text(&state), text(&mount)));
    let fsck = |words: &[&str]| gupfs(&[&["fsck", text(&state)], words].concat());
    for words in [&[][..], &["--online"], &["--data"], &["--repair", "--yes"]] {
        let run = fsck(words);
        let is_clean = run.out.contains("clean; 0 inodes");
        assert_eq!(
            (run.code, is_clean),
            (Some(0), true),
            "{words:?}{}",
            run.out
        );
    }
    // Disks as they were before the first start are no new file system after it.
    for path in &rig.disks {
        fs::copy(path, path.with_extension("old")).expect("copied");
    }
    let up = ["up", "--state", text(&state), "--mount", text(&mount)];
    succeeds(&up);
    succeeds(&["down", "--state", text(&state)]);
    let run = fsck(&[]);
    let is_clean = run.out.contains("clean; 1 inodes");
    assert_eq!((run.code, is_clean), (Some(0), true), "{}", run.out);
    for path in &rig.disks {
        fs::rename(path.with_extension("old"), path).expect("put back");
    }
    for words in [&[][..], &["--online"]] {
        let run = fsck(words);
        let is_found = run.out.contains("root-inode") && run.out.contains("Remedy: ");
        assert_eq!((run.code, is_found), (Some(4), true), "{}", run.out);
    }
}

#[test]
fn an_nsd_of_a_newer_version_is_refused_everywhere() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let create = rig.create(text(&state), text(&mount));
    succeeds(&create);
    // Version 2, in both copies, whole.
    let disk = File::options()
        .read(true)
        .write(true)
        .open(&rig.disks[1])
        .expect("opened");
    let mut label = [0; 4096];
    for copy in 0..2 {
        disk.read_exact_at(&mut label, copy * 4096).expect("read");
        label[8..12].copy_from_slice(&2_u32.to_le_bytes());
        let crc = types::crc32c(&label[..4092]);
        label[4092..].copy_from_slice(&crc.to_le_bytes());
        disk.write_all_at(&label, copy * 4096).expect("written");
    }
    let before = fs::read(&rig.disks[1]).expect("read");
    let second = text(&rig.disks[1]);
    let newer = [second, "format version 2", "knows up to 1", "help:"];
    refused(&["daemon", "--state", text(&state)], &newer);
    refused(&["fs", "list", second], &newer);
    refused(&["nsd", "create", second], &newer);
    let other = rig.path("other");
    let words = ["fs", "create", "--state", text(&other), "--mount", "/mnt/x"];
    refused(&[&words[..], &[second]].concat(), &newer);
    let up = ["up", "--state", text(&state), "--mount", text(&mount)];
    refused(&up, &newer[1..3]);
    let fsck = gupfs(&["fsck", "--repair", "--yes", text(&state)]);
    assert_ne!(fsck.code, Some(0), "{}", fsck.out);
    assert!(fsck.out.contains("version 2"), "{}", fsck.out);
    assert!(!other.exists());
    assert!(
        fs::read(&rig.disks[1]).expect("read") == before,
        "nothing was written to it"
    );
}

/// A loop device and the file behind it are one disk: who uses one of them has the other, too.
#[test]
fn a_disk_is_used_in_one_way() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let [first, second] = [&rig.disks[0], &rig.disks[1]];
    let devices = [first, second].map(|path| Loop::over(path));
    let [one, two] = [0, 1].map(|index: usize| text(&devices[index].0));
    let create = create_over([one, two], text(&state), text(&mount));
    succeeds(&create);
    let ours = Ours(&rig);
    assert_eq!(ours.up().code, Some(0));
    fs::write(mount.join("kept"), "bytes").expect("written");
    // The files behind, while it is mounted and later: also under another name.
    let other = rig.path("again");
    fs::hard_link(second, &other).expect("linked");
    let elsewhere = rig.path("elsewhere");
    let force = ["fs", "create", "--force", "--mount", "/mnt/x", "--state"];
    let force = [&force[..], &[text(&elsewhere)]].concat();
    let said = [one, "stands over", "help:", "losetup -d"];
    let check = || {
        refused(&["nsd", "create", "--force", text(first)], &said);
        refused(&[&force[..], &[text(first), text(&other)]].concat(), &said);
        refused(
            &[&force[..], &[text(&other)]].concat(),
            &[two, "stands over"],
        );
        assert!(!elsewhere.exists());
    };
    check();
    assert_eq!(
        fs::read_to_string(mount.join("kept")).expect("there"),
        "bytes"
    );
    succeeds(&["down", "--state", text(&state)]);
    check();
    // A state directory that names the files.
    let config = state.join("gupfs.toml");
    let by_device = fs::read_to_string(&config).expect("read");
    let by_file = by_device
        .replace(one, text(first))
        .replace(two, text(second));
    fs::write(&config, &by_file).expect("written");
    refused(&["daemon", "--state", text(&state)], &said);
    refused(&["mount", text(&state)], &said[..2]);
    let fsck = gupfs(&["fsck", text(&state)]);
    check_refused(&fsck, &["fsck"], &said);
    // Without the devices they are disks; and then the devices are none.
    drop(devices);
    assert_eq!(ours.up().code, Some(0));
    assert_eq!(
        fs::read_to_string(mount.join("kept")).expect("there"),
        "bytes"
    );
    let device = Loop::over(first);
    let said = [text(&device.0), "in use", text(first), "help:"];
    refused(&["nsd", "create", "--force", text(&device.0)], &said);
    refused(&[&force[..], &[text(&device.0)]].concat(), &said);
    drop(device);
    // Nor is a file attached that a daemon has open.
    let copy = rig.path("copy");
    fs::create_dir(&copy).expect("made");
    fs::copy(state.join("cluster.view"), copy.join("cluster.view")).expect("copied");
    let by_loop = by_file.replace("is_loop = false", "is_loop = true");
    assert_ne!(by_loop, by_file);
    let before = rig.path("before");
    fs::create_dir(&before).expect("made");
    let by_loop = by_loop.replace(text(&mount), text(&before));
    fs::write(copy.join("gupfs.toml"), by_loop).expect("written");
    refused(
        &["daemon", "--state", text(&copy)],
        &[text(first), "in use"],
    );
    succeeds(&["down", "--state", text(&state)]);
}

/// A loop device that a crash has left over the file of a state directory is this one's.
#[test]
fn a_loop_device_that_was_left_is_used_again() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    let ours = Ours(&rig);
    let words = [
        "up",
        "--backing",
        "loop",
        "--size",
        "512M",
        "--state",
        text(&state),
    ];
    let up = [&words[..], &["--mount", text(&mount)]].concat();
    succeeds(&up);
    let pid = fs::read_to_string(state.join("pid")).expect("it runs");
    let killed = Command::new("kill").args(["-9", pid.trim()]).status();
    assert!(killed.expect("kill(1) is there").success());
    succeeds(&up);
    let attached = Command::new("losetup")
        .arg("-j")
        .arg(state.join("nsd/1.img"))
        .output();
    let attached = String::from_utf8(attached.expect("it runs").stdout).expect("text");
    assert_eq!(attached.lines().count(), 1, "{attached}");
    succeeds(&["down", "--state", text(&state)]);
    succeeds(&["fsck", text(&state)]);
    drop(ours);
}

#[test]
fn an_nsd_is_taken_once() {
    let Some(rig) = Rig::for_root() else { return };
    let (state, mount) = (rig.path("state"), rig.path("mnt"));
    succeeds(&rig.create(text(&state), text(&mount)));
    let config = state.join("gupfs.toml");
    let good = fs::read_to_string(&config).expect("read");
    let daemon = |words: &[&str]| refused(&["daemon", "--state", text(&state)], words);
    // A copy of the first where the second should be.
    fs::copy(&rig.disks[0], rig.path("copy")).expect("copied");
    let copied = good.replace(text(&rig.disks[1]), text(&rig.path("copy")));
    assert_ne!(copied, good);
    fs::write(&config, &copied).expect("written");
    daemon(&["copy", "another NSD id", "help:"]);
    // The same number twice, and the same disk under two names.
    fs::write(&config, good.replace("nsd = 2", "nsd = 1")).expect("written");
    daemon(&["nsd1 is named twice", "help:"]);
    fs::write(&config, &good).expect("written");
    fs::remove_file(&rig.disks[1]).expect("removed");
    fs::hard_link(&rig.disks[0], &rig.disks[1]).expect("linked");
    daemon(&["2.img", "another NSD id"]);
    // Gone.
    fs::remove_file(&rig.disks[1]).expect("removed");
    daemon(&["2.img", "nsd2 is missing", "help:"]);
    let up = ["up", "--state", text(&state), "--mount", text(&mount)];
    refused(&up, &["2.img", "nsd2 is missing"]);
    // The end of a command that never ends: it is refused before anything is started.
    let begin = Instant::now();
    refused(&["mount", text(&state)], &["nsd2 is missing"]);
    assert!(begin.elapsed() < Duration::from_secs(20));
}
