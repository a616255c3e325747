//! The command line against bad input: a clear message, a non-zero exit, nothing changed.
//!
//! Tests that need root or /dev/fuse say so and pass where these are missing.

#[path = "cli/creation.rs"]
mod creation;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "cli/output.rs"]
mod output;
#[path = "cli/read_only.rs"]
mod read_only;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

fn gupfs(arguments: &[&str]) -> Run {
    run(Command::new(env!("CARGO_BIN_EXE_gupfs")).args(arguments))
}

fn run(command: &mut Command) -> Run {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the binary runs");
    Run {
        code: status.code(),
        out: String::from_utf8(stdout).expect("text"),
        err: String::from_utf8(stderr).expect("text"),
    }
}

/// The command fails and its message has all of `words`.
fn refused(arguments: &[&str], words: &[&str]) {
    let run = gupfs(arguments);
    check_refused(&run, arguments, words);
}

fn check_refused(run: &Run, arguments: &[&str], words: &[&str]) {
    assert!(
        run.code.is_some_and(|c| c != 0),
        "{arguments:?} must fail: {}",
        run.out
    );
    assert!(!run.err.contains("panicked"), "{}", run.err);
    for word in words {
        assert!(
            run.err.contains(word),
            "{arguments:?}: {word:?} is not in {:?}",
            run.err
        );
    }
}

fn is_root() -> bool {
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let has_fuse = Path::new("/dev/fuse").exists();
    if !(is_root && has_fuse) {
        left_out::left_out("needs root and /dev/fuse");
    }
    is_root && has_fuse
}

fn text(path: &Path) -> &str {
    path.to_str()
        .expect("a temporary directory has a plain name")
}

/// All names below `root`, with sizes: what must not change.
fn listing(root: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("readable") {
        let entry = entry.expect("an entry");
        let metadata = entry.metadata().expect("metadata");
        found.push((
            entry.path().display().to_string(),
            if metadata.is_file() {
                metadata.len()
            } else {
                0
            },
        ));
        if metadata.is_dir() {
            found.extend(listing(&entry.path()));
        }
    }
    found.sort();
    found
}

#[test]
fn every_command_has_help_with_an_example() {
    for command in [
        "up",
        "down",
        "daemon",
        "status",
        "waiters",
        "dump",
        "demo",
        "nsd",
        "nsd create",
        "nsd list",
        "fs",
        "fs create",
        "fs list",
        "config",
        "fs destroy",
        "df",
        "du",
        "stat",
        "top",
        "bench",
        "mount",
        "umount",
        "fsck",
        "layout",
        "layout get",
        "layout set",
        "config show",
        "config get",
        "config set",
        "lab",
        "lab up",
        "lab status",
        "lab kill",
        "lab start",
        "lab down",
        "completion",
        "man",
    ] {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.push("--help");
        let run = gupfs(&arguments);
        assert_eq!(run.code, Some(0), "{command}: {}", run.err);
        assert!(run.out.contains("Example"), "{command}: {}", run.out);
    }
    assert_eq!(gupfs(&["--version"]).code, Some(0));
    refused(&[], &["Usage"]);
    refused(&["frobnicate"], &["frobnicate"]);
    refused(&["completion", "bash", "--json"], &["no JSON", "help"]);
    // What is wrong with a line is wrong before anything is looked at.
    for (line, word) in [
        ("inode", "needs a number"),
        ("inode --offline", "needs a number"),
        ("superblock more", "second word"),
        ("counters --offline", "--offline"),
    ] {
        let words = ["dump", "--state", "/no/such/state"].into_iter();
        let words: Vec<&str> = words.chain(line.split(' ')).collect();
        let run = gupfs(&words);
        check_refused(&run, &words, &[word, "Usage: gupfs dump"]);
        assert_eq!(run.code, Some(2), "{line}");
    }
}

#[test]
fn not_root_is_said() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("opened");
    let program = directory.path().join("gupfs");
    // Not by this process: a child that another thread starts meanwhile would have it open to write, and it could not be run.
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_gupfs"))
        .arg(&program)
        .status();
    assert!(
        copied.expect("cp runs").success(),
        "copied to where it may be run"
    );
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("opened");
    let state = directory.path().join("state");
    let as_nobody = |arguments: &[&str]| {
        let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "--"];
        let mut command = Command::new("setpriv");
        run(command.args(nobody).arg(&program).args(arguments))
    };
    let arguments = ["up", "--mount", "/mnt", "--state", text(&state)];
    check_refused(&as_nobody(&arguments), &arguments, &["needs root", "help:"]);
    assert!(!state.exists());
    // What needs no root does without, and leaves nothing.
    let own = directory.path().join("own");
    fs::create_dir(&own).expect("made");
    let arguments = ["bench", text(&own), "--size", "1M", "--seconds", "1"];
    let denied = as_nobody(&arguments);
    check_refused(&denied, &arguments, &["Permission denied", "help:"]);
    fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).expect("opened");
    let measured = as_nobody(&arguments);
    assert_eq!(measured.code, Some(0), "{}", measured.err);
    assert!(measured.out.contains("unlink"), "{}", measured.out);
    assert!(listing(&own).is_empty());
}

#[test]
fn a_missing_fuse_device_is_said() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let arguments = [
        "up",
        "--mount",
        text(directory.path()),
        "--state",
        text(&state),
    ];
    let run = run(Command::new(env!("CARGO_BIN_EXE_gupfs"))
        .args(arguments)
        .env("GUPFS_FUSE_DEVICE", directory.path().join("no-fuse")));
    check_refused(&run, &arguments, &["no-fuse", "modprobe fuse"]);
    assert!(!state.exists());
}

#[test]
fn bad_mount_points_are_refused_and_nothing_is_made() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let state = directory.path().join("state");
    let file = directory.path().join("file");
    fs::write(&file, "x").expect("written");
    let full = directory.path().join("full");
    fs::create_dir(&full).expect("made");
    fs::write(full.join("thesis"), "x").expect("written");
    let before = listing(directory.path());
    for (mount, word) in [
        (directory.path().join("none"), "does not exist"),
        (file.clone(), "not a directory"),
        (full.clone(), "holds files"),
        (Path::new("/proc").to_owned(), "in use"),
    ] {
        refused(
            &["up", "--mount", text(&mount), "--state", text(&state)],
            &[text(&mount), word, "help:"],
        );
    }
    assert_eq!(listing(directory.path()), before);
}

/// A mount over its own state directory or disks would take them from the daemon; one below them takes nothing.
#[test]
fn a_mount_point_over_what_it_needs_is_refused() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (state, mount, link) = (path("state"), path("mnt"), path("link"));
    fs::create_dir(&mount).expect("made");
    fs::create_dir(path("data")).expect("made");
    std::os::unix::fs::symlink("state", &link).expect("linked");
    let (text_of, disk) = (|path: &Path| text(path).to_owned(), path("data/1.img"));
    let succeed = |words: &[&str]| {
        let run = gupfs(words);
        assert_eq!(run.code, Some(0), "{words:?}: {}", run.err);
    };
    let before = listing(directory.path());
    let up = |mount: &Path| {
        let words = ["up", "--size", "512M", "--state", text(&state), "--mount"];
        refused(
            &[&words[..], &[text(mount)]].concat(),
            &["would hide", "help:"],
        );
    };
    let nsds = state.join("nsd");
    for point in [&state, &nsds, &directory.path().to_owned()] {
        up(point);
    }
    assert_eq!(listing(directory.path()), before);
    succeed(&["nsd", "create", "--size", "256M", text(&disk)]);
    let create = |point: &str, disk: &str| {
        let words = ["fs", "create", "--state", text(&state), "--mount"];
        gupfs(&[&words[..], &[point, disk]].concat())
    };
    let run = create(text(&path("data")), text(&disk));
    check_refused(&run, &["fs create"], &["would hide", "data/1.img"]);
    assert!(!state.exists());
    let run = create(text(&mount), text(&disk));
    assert_eq!(run.code, Some(0), "{}", run.err);
    fs::create_dir(&nsds).expect("made");
    let before = listing(directory.path());
    for point in [&state, &link, &nsds, &path("data"), &path("state/../state")] {
        let point = text_of(point);
        let words = ["would hide", "help:"];
        refused(
            &["config", "set", "mount", &point, "--state", text(&state)],
            &words,
        );
        refused(&["mount", text(&state), &point], &words);
        up(Path::new(&point));
    }
    refused(
        &[
            "config",
            "set",
            "mount",
            "/dev/null",
            "--state",
            text(&state),
        ],
        &["not a directory"],
    );
    assert_eq!(listing(directory.path()), before);
    let config = state.join("gupfs.toml");
    let good = fs::read_to_string(&config).expect("read");
    fs::write(&config, good.replace(text(&mount), text(&state))).expect("written");
    refused(&["daemon", "--state", text(&state)], &["would hide"]);
    fs::write(&config, good).expect("written");
    // Below the state directory is another matter.
    let inner = state.join("mnt");
    succeed(&[
        "config",
        "set",
        "mount",
        text(&inner),
        "--state",
        text(&state),
    ]);
    succeed(&["fs", "destroy", "--yes", "--state", text(&state)]);
}

#[test]
fn too_small_a_size_is_refused_and_nothing_is_made() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (state, mount) = (directory.path().join("state"), directory.path().join("mnt"));
    fs::create_dir(&mount).expect("made");
    let size = |size: &str, words: &[&str]| {
        refused(
            &[
                "up",
                "--mount",
                text(&mount),
                "--state",
                text(&state),
                "--size",
                size,
            ],
            words,
        );
    };
    size("64M", &["too small", "--size"]);
    size("much", &["is no size"]);
    assert!(!state.exists());
}

#[test]
fn a_state_directory_of_another_version_is_left_alone() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (state, mount) = (directory.path().join("state"), directory.path().join("mnt"));
    fs::create_dir(&state).expect("made");
    fs::create_dir(&mount).expect("made");
    fs::write(state.join("gupfs.toml"), "format = 99\nshape = \"new\"\n").expect("written");
    let before = listing(directory.path());
    let state = text(&state);
    refused(
        &["up", "--mount", text(&mount), "--state", state],
        &["format 99", state, "version"],
    );
    refused(&["down", "--state", state], &["format 99"]);
    refused(&["daemon", "--state", state], &["format 99"]);
    refused(&["status", "--state", state], &["format 99"]);
    assert_eq!(listing(directory.path()), before);
}

#[test]
fn a_directory_of_somebody_else_is_left_alone() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (home, mount) = (directory.path().join("home"), directory.path().join("mnt"));
    fs::create_dir(&home).expect("made");
    fs::create_dir(&mount).expect("made");
    fs::write(home.join("thesis.tex"), "x").expect("written");
    let before = listing(directory.path());
    let home = text(&home);
    refused(
        &["up", "--mount", text(&mount), "--state", home],
        &["thesis.tex"],
    );
    refused(&["down", "--state", home, "--destroy"], &["thesis.tex"]);
    refused(&["lab", "up", "--dir", home], &["thesis.tex"]);
    refused(&["lab", "down", "--dir", home], &["thesis.tex"]);
    refused(&["demo", "--dir", home], &["thesis.tex"]);
    assert_eq!(listing(directory.path()), before);
}

#[test]
fn what_is_not_there_is_named() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let none = directory.path().join("none");
    let none = text(&none);
    refused(&["down", "--state", none], &[none, "does not exist"]);
    refused(&["status", "--state", none], &[none, "no gupfs.toml"]);
    refused(&["daemon", "--state", none], &[none, "no gupfs.toml"]);
    refused(&["up", "--state", none], &[none, "--mount"]);
    refused(&["lab", "status", "--dir", none], &[none, "no lab"]);
    refused(&["lab", "kill", "n1", "--dir", none], &[none, "no lab"]);
    refused(&["lab", "up", "--dir", none, "--nodes", "0"], &["0 nodes"]);
    refused(
        &["layout", "set", none],
        &["--nsds", "--block-size", "--default"],
    );
    refused(&["demo", "--on", none], &["two directories"]);
    assert!(!Path::new(none).exists());
}

#[test]
fn disks_that_cannot_be_used_are_refused_before_anything_is_written() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let make = |name: &str, size: u64| {
        File::create(path(name))
            .and_then(|f| f.set_len(size))
            .expect("made");
    };
    make("good", 256 << 20);
    make("small", 1 << 20);
    make("foreign", 256 << 20);
    use std::os::unix::fs::FileExt as _;
    let foreign = File::options()
        .write(true)
        .open(path("foreign"))
        .expect("opened");
    foreign.write_all_at(b"XFSB", 0).expect("looks like xfs");
    fs::hard_link(path("good"), path("good-again")).expect("linked");
    let state = path("state");
    let create = |disks: &[&str], words: &[&str]| {
        let paths: Vec<_> = disks.iter().map(|d| path(d)).collect();
        let mut arguments = vec!["fs", "create", "--state", text(&state), "--mount", "/mnt/x"];
        arguments.extend(paths.iter().map(|p| text(p)));
        refused(&arguments, words);
        assert!(!state.exists());
        refused(&["nsd", "create", text(&path("small"))], &["too small"]);
        let head = fs::read(path("good")).expect("read");
        assert!(
            head.iter().all(|b| *b == 0),
            "a good disk beside a bad one stays blank"
        );
    };
    create(&["good", "small"], &["small", "too small"]);
    create(&["good", "foreign"], &["foreign", "XFS", "--force"]);
    create(&["good", "missing"], &["missing"]);
    create(&["good", "good"], &["named twice"]);
    create(&["good", "good-again"], &["named twice", "good-again"]);
}

#[test]
fn a_file_system_is_found_again_and_its_damage_is_named() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let (state, mount) = (directory.path().join("state"), directory.path().join("mnt"));
    fs::create_dir(&mount).expect("made");
    let disks = [
        directory.path().join("1.img"),
        directory.path().join("2.img"),
    ];
    let (first, second) = (text(&disks[0]), text(&disks[1]));
    let ok = |arguments: &[&str]| {
        let run = gupfs(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.err);
        run.out
    };
    ok(&["nsd", "create", "--size", "256M", first, second]);
    let again = ok(&["nsd", "create", "--size", "256M", first]);
    assert!(again.contains("is there as it would be made"), "{again}");
    refused(
        &["nsd", "create", "--size", "128M", first],
        &["exists already"],
    );
    refused(
        &["nsd", "list", "/no/such/disk"],
        &["/no/such/disk", "missing"],
    );
    refused(&["fs", "list", first], &["no label"]);
    ok(&[
        "fs",
        "create",
        "--state",
        text(&state),
        "--mount",
        text(&mount),
        first,
        second,
    ]);
    let again = [
        "fs",
        "create",
        "--state",
        text(&state),
        "--mount",
        text(&mount),
        first,
        second,
    ];
    refused(&again, &["already"]);
    let other = directory.path().join("other");
    refused(
        &[
            "fs",
            "create",
            "--state",
            text(&other),
            "--mount",
            "/mnt/x",
            second,
        ],
        &["another GUPFS file system"],
    );
    let listed: serde_json::Value =
        serde_json::from_str(&ok(&["nsd", "list", "--json", first, second])).expect("JSON");
    assert_eq!(listed[1]["name"], "nsd2");
    // What can be looked at is shown, and what cannot is named.
    for command in ["nsd", "fs"] {
        let none = ["/no/such/disk", "/nor/this"];
        let run = gupfs(&[&[command, "list", first], &none[..], &[second]].concat());
        check_refused(&run, &[command, "list"], &none);
        assert!(run.out.contains(first) && run.out.contains(second));
    }
    let listed: serde_json::Value =
        serde_json::from_str(&ok(&["fs", "list", "--json", first, second])).expect("JSON");
    assert_eq!(listed[0]["nsds"].as_array().map(Vec::len), Some(2));
    refused(&["status", "--state", text(&state)], &["no daemon listens"]);
    refused(
        &["config", "set", "lease", "1", "--state", text(&state)],
        &["\"lease\"", "did you mean lease_ms", "pagepool_size"],
    );
    refused(
        &["config", "get", "pagepol_size", "--state", text(&state)],
        &["\"pagepol_size\"", "did you mean pagepool_size"],
    );
    for set in ["99T", "9999999T", "31M"] {
        let words = ["config", "set", "pagepool_size", set, "--state"];
        let said = [set, "help:", "32M at least", "the machine's memory"];
        refused(&[&words[..], &[text(&state)]].concat(), &said);
    }
    let view = state.join("cluster.view");
    fs::rename(&view, directory.path().join("view")).expect("moved");
    let missing = ["cluster.view is missing", "help:", "backup"];
    refused(&["fsck", text(&state)], &missing);
    fs::rename(directory.path().join("view"), &view).expect("moved back");
    refused(
        &["daemon", "--state", text(&state), "--set", "lease_ms=1"],
        &["lease_ms", "1000 to 600000"],
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let config = state.join("gupfs.toml");
    let good = fs::read_to_string(&config).expect("read");
    fs::write(&config, format!("listen = \"{address}\"\n{good}")).expect("written");
    refused(
        &["daemon", "--state", text(&state)],
        &["cannot listen", &address.to_string()],
    );
    fs::write(&config, good).expect("restored");
    // Exchanged disks, a cut disk, a damaged label, a missing disk: the daemon refuses to start.
    let daemon = |words: &[&str]| refused(&["daemon", "--state", text(&state)], words);
    let exchanged = directory.path().join("x");
    fs::rename(first, &exchanged).expect("moved");
    daemon(&["1.img", "missing"]);
    fs::rename(second, first).expect("moved");
    fs::rename(&exchanged, second).expect("moved");
    daemon(&["1.img", "another NSD id"]);
    fs::rename(second, &exchanged).expect("moved");
    fs::rename(first, second).expect("moved");
    fs::rename(&exchanged, first).expect("moved back");
    File::options()
        .write(true)
        .open(second)
        .and_then(|f| f.set_len(100 << 20))
        .expect("cut");
    daemon(&["2.img", "sectors"]);
    File::options()
        .write(true)
        .open(second)
        .and_then(|f| f.set_len(256 << 20))
        .expect("restored");
    use std::os::unix::fs::FileExt as _;
    let disk = File::options().write(true).open(second).expect("opened");
    disk.write_all_at(&[0xff], 100)
        .expect("one copy is damaged");
    disk.write_all_at(&[0xff], 4196).expect("both are");
    daemon(&["2.img", "damaged"]);
    // Both copies lost: whoever reads that makes no other file system over it.
    disk.write_all_at(&[0; 8192], 0).expect("blank");
    let run = gupfs(&["daemon", "--state", text(&state)]);
    let said = ["2.img", "may be whole", "gupfs fsck", "from a copy"];
    check_refused(&run, &["daemon"], &said);
    assert!(
        !run.err.contains("--force") && !run.err.contains("nsd create"),
        "{}",
        run.err
    );
    let listed = ok(&["nsd", "list", second]);
    assert!(
        listed.contains("no GUPFS label") && !listed.contains("nsd create"),
        "{listed}"
    );
    assert!(!state.join("pid").exists() && !state.join("control.sock").exists());
}

/// What was given to `fs create` is blank after `fs destroy`, which leaves alone what is not the file system's.
#[test]
fn a_destroyed_file_system_leaves_blank_disks() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let (state, first, second) = (path("state"), path("1.img"), path("2.img"));
    let ok = |arguments: &[&str]| {
        let run = gupfs(arguments);
        assert_eq!(run.code, Some(0), "{arguments:?}: {}", run.err);
        run.out
    };
    ok(&[
        "nsd",
        "create",
        "--size",
        "256M",
        text(&first),
        text(&second),
    ]);
    let create = [
        "fs",
        "create",
        "--state",
        text(&state),
        "--mount",
        "/mnt/x",
        text(&first),
        text(&second),
    ];
    ok(&create);
    let destroy = ["fs", "destroy", "--yes", "--state", text(&state)];
    let before = listing(directory.path());
    fs::rename(&second, path("away")).expect("moved");
    refused(&destroy, &["2.img", "bring the disk back"]);
    fs::rename(path("away"), &second).expect("moved back");
    assert_eq!(listing(directory.path())[..2], before[..2]);
    ok(&["nsd", "list", text(&first)]);
    // A lab's node, and what is no file system, are refused.
    let config = state.join("gupfs.toml");
    let good = fs::read_to_string(&config).expect("read");
    let peer = "[[peers]]\nnode = 2\naddress = \"127.0.0.1:7\"\n";
    fs::write(&config, format!("{good}\n{peer}")).expect("written");
    refused(&destroy, &["cluster of 2", "lab down"]);
    fs::write(&config, good).expect("restored");
    refused(
        &["fs", "destroy", "--yes", "--state", text(&path("none"))],
        &["none", "no gupfs.toml"],
    );
    let said = ok(&["fs", "destroy", "--yes", "--json", "--state", text(&state)]);
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(said["done"].as_array().map(Vec::len), Some(3), "{said}");
    assert!(!state.exists());
    assert!(ok(&["nsd", "create", text(&first)]).contains("can be used"));
    ok(&create);
    // Nor is anything left of what crashes leave.
    for name in ["control.sock", "pid", "pid.new", "lives.new", "lost.new"] {
        fs::write(state.join(name), "1").expect("written");
    }
    ok(&destroy);
    assert!(!state.exists());
    ok(&create);
    // The second disk has become another file system's meanwhile.
    let other = path("other");
    let mut again = create;
    again[3] = text(&other);
    fs::copy(&second, path("copy")).expect("copied");
    fs::rename(path("copy"), &second).expect("exchanged");
    ok(&["nsd", "create", "--force", text(&first)]);
    refused(&["nsd", "create", text(&second)], &["is NSD"]);
    assert!(
        ok(&destroy).contains("left"),
        "the first disk was erased before"
    );
    ok(&again);
}

/// Both come from the definition of the commands: each command is in them.
#[test]
fn completion_and_man_pages_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = gupfs(&["completion", shell]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        for word in [
            "waiters",
            "lab",
            "direct-from",
            "du",
            "against",
            "layout",
            "nsds",
        ] {
            assert!(run.out.contains(word), "{shell}: {word} is missing");
        }
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("text");
    let run = gupfs(&["man", path]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    for page in [
        "gupfs.1",
        "gupfs-lab-up.1",
        "gupfs-nsd-create.1",
        "gupfs-du.1",
        "gupfs-layout-set.1",
        "gupfs-bench.1",
    ] {
        let text = fs::read_to_string(dir.path().join(page)).expect("a page");
        assert!(
            text.contains(".SH EXAMPLES") || text.contains("Example"),
            "{page}: {text}"
        );
    }
    refused(&["completion", "tcsh"], &["tcsh", "bash"]);
    refused(
        &["man", &format!("{path}/none")],
        &["none", "no directory", "help"],
    );
}
