//! `gupfs mount` and `umount`, and the same as helpers of mount(8) and umount(8).
//!
//! Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

#[path = "mount/endings.rs"]
mod endings;
#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/node.rs"]
mod node;
#[path = "labs/stopped.rs"]
mod stopped;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use node::Node;
use stopped::await_stopped;

/// The program under another name, as packages install it.
fn helper(node: &Node, name: &str) -> PathBuf {
    let path = node.state().with_file_name(name);
    if !path.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_gupfs"), &path).unwrap();
    }
    path
}

fn run(program: &Path, words: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(program).args(words);
    command.stdin(Stdio::null()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The words of the line that the kernel shows for the mount at `point`; `None`: nothing is mounted there.
fn line(point: &Path) -> Option<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut lines = mounts
        .lines()
        .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    lines.find(|words| Path::new(&words[1]) == point && words[2] == "fuse.gupfs")
}

/// The options of the mount at `point`.
fn options(point: &Path) -> Option<Vec<String>> {
    Some(line(point)?[3].split(',').map(str::to_owned).collect())
}

/// The options that mount(8) has for `point` in its own table: where there are none, umount(8) does not call a helper for a FUSE
/// mount, and returns before anything is written back.
fn entered(point: &Path) -> Option<String> {
    let table = fs::read_to_string("/run/mount/utab").unwrap_or_default();
    let target = format!(" TARGET={} ", point.display());
    let found = table.lines().find(|line| line.contains(&target))?;
    found.split("OPTS=").nth(1).map(str::to_owned)
}

#[test]
fn mount_8_and_umount_8_find_what_they_need() {
    let Some(node) = Node::new("1G") else { return };
    let mount = node.mount();
    let (state, point) = (node.state(), mount.to_str().unwrap());
    let state = state.to_str().unwrap();
    let (to_mount, to_umount) = (
        helper(&node, "mount.fuse.gupfs"),
        helper(&node, "umount.fuse.gupfs"),
    );
    fs::write(mount.join("kept"), "not synced").unwrap();

    // What is in use stays.
    let open = File::open(mount.join("kept")).unwrap();
    let output = run(&to_umount, &[point]);
    assert_eq!(output.status.code(), Some(32), "{}", said(&output));
    assert!(said(&output).contains("busy"), "{}", said(&output));
    assert!(options(&mount).is_some());
    drop(open);

    // When umount returns all is written back and the daemon has ended.
    let output = run(&to_umount, &[point, "-v"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("wrote back"));
    assert_eq!(options(&mount), None);
    assert!(!Path::new(state).join("control.sock").exists());
    let output = run(&to_umount, &[point]);
    assert_eq!(output.status.code(), Some(32));
    assert!(
        said(&output).contains("nothing is mounted"),
        "{}",
        said(&output)
    );

    // What fstab says for others is passed over, the rest holds.
    let words = "rw,nosuid,nodev,noatime,_netdev,nofail,x-systemd.automount,pagepool_size=64M";
    for _ in 0..2 {
        let output = run(&to_mount, &[state, point, "-o", words]);
        assert!(output.status.success(), "{}", said(&output));
    }
    assert_eq!(
        entered(&mount).as_deref(),
        Some("_netdev,x-systemd.automount")
    );
    let shown = options(&mount).unwrap();
    for option in ["rw", "nosuid", "nodev", "noatime"] {
        assert!(shown.iter().any(|o| o == option), "{option}: {shown:?}");
    }
    assert_eq!(
        fs::read_to_string(mount.join("kept")).unwrap(),
        "not synced"
    );
    let shown = node.gupfs(&["config", "get", "pagepool_size", "--json"]);
    assert!(shown.contains("\"running\":67108864"), "{shown}");

    // As mount(8) calls it for `-o remount,ro` and back.
    for (word, is_read_only) in [("ro", true), ("rw", false)] {
        let words = format!("rw,nosuid,noatime,user_id=0,allow_other,remount,{word}");
        let output = run(&to_mount, &[state, point, "-o", &words]);
        assert!(output.status.success(), "{}", said(&output));
        let shown = options(&mount).unwrap();
        assert!(shown.iter().any(|o| o == word), "{shown:?}");
        assert!(shown.iter().any(|o| o == "nosuid"), "{shown:?}");
        assert_eq!(fs::write(mount.join("new"), "x").is_err(), is_read_only);
    }

    // By its state directory, and read-only.
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let output = run(gupfs, &["umount", state]);
    assert!(output.status.success(), "{}", said(&output));
    let output = run(gupfs, &["mount", state, "-o", "ro"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(options(&mount).unwrap().iter().any(|o| o == "ro"));
    assert_eq!(
        fs::read_to_string(mount.join("kept")).unwrap(),
        "not synced"
    );
    let error = fs::write(mount.join("new"), "x").expect_err("read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert!(run(gupfs, &["umount", point]).status.success());

    bad_calls_change_nothing(&node, &to_mount);
}

/// Programs that look a mount up by its source find it by the one that was named: `mount -a`, findmnt, df, xfstests. umount(8) by source
/// works where that is no directory.
#[test]
fn a_mount_shows_the_source_that_was_named() {
    let Some(node) = Node::new("1G") else { return };
    let (state, mount) = (node.state(), node.mount());
    let settings = state.join("gupfs.toml");
    let to_mount = helper(&node, "mount.fuse.gupfs");
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let [state, settings, point] = [&state, &settings, &mount].map(|path| path.to_str().unwrap());
    assert_eq!(line(&mount).unwrap()[0], state);
    for source in [state, settings] {
        assert!(run(gupfs, &["umount", point]).status.success());
        assert_eq!(entered(&mount), None);
        let output = run(&to_mount, &[source, point, "-o", "rw,lazytime,allow_other"]);
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(line(&mount).unwrap()[0], source);
        assert_eq!(entered(&mount).as_deref(), Some("_netdev"));
        let output = run(Path::new("findmnt"), &["-n", "-o", "TARGET", "-S", source]);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), point);
    }
    let output = run(Path::new("umount"), &["-i", settings]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(line(&mount), None);
}

/// As any file system: what is done through one mount is seen through the other, and the last one takes the daemon along.
#[test]
fn a_file_system_can_be_mounted_twice() {
    let Some(node) = Node::new("1G") else { return };
    let (first, second) = (node.mount(), node.state().with_file_name("second"));
    fs::create_dir(&second).unwrap();
    let (state, socket) = (node.state(), node.state().join("control.sock"));
    let (to_mount, to_umount) = (
        helper(&node, "mount.fuse.gupfs"),
        helper(&node, "umount.fuse.gupfs"),
    );
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let mount = |point: &Path, options: &str| {
        let output = run(&to_mount, &[&text(&state), &text(point), "-o", options]);
        assert!(output.status.success(), "{}", said(&output));
    };
    let umount = |point: &Path| {
        let output = run(&to_umount, &[&text(point)]);
        assert!(output.status.success(), "{}", said(&output));
    };
    mount(&second, "nosuid");
    mount(&second, "nosuid");
    assert_eq!(line(&second).unwrap()[0], text(&state));
    assert!(options(&second).unwrap().iter().any(|o| o == "nosuid"));
    assert!(!options(&first).unwrap().iter().any(|o| o == "nosuid"));
    fs::write(first.join("file"), "bytes").unwrap();
    fs::rename(second.join("file"), second.join("moved")).unwrap();
    assert_eq!(fs::read_to_string(first.join("moved")).unwrap(), "bytes");

    // The first one goes, comes back and goes; the daemon stays.
    umount(&first);
    assert_eq!(fs::read_to_string(second.join("moved")).unwrap(), "bytes");
    mount(&first, "rw");
    assert_eq!(fs::read_to_string(first.join("moved")).unwrap(), "bytes");
    umount(&first);
    assert!(socket.exists());
    umount(&second);
    assert!(!socket.exists(), "the daemon has ended");
    assert_eq!((entered(&first), entered(&second)), (None, None));

    // What ends a mount in any case leaves no line in the table either.
    mount(&first, "rw");
    assert!(entered(&first).is_some());
    node.gupfs(&["down"]);
    assert_eq!(entered(&first), None);
}

/// `gupfs up` goes by what is mounted, not by what the state directory says.
#[test]
fn up_says_where_it_is_mounted() {
    let Some(node) = Node::new("1G") else { return };
    let (first, second) = (node.mount(), node.state().with_file_name("second"));
    fs::create_dir(&second).unwrap();
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let state = node.state();
    let [state, one, two] = [&state, &first, &second].map(|path| path.to_str().unwrap());
    let up = ["up", "--state", state];
    let up_on = |point| [&up[..], &["--mount", point]].concat();
    let says = |words: &[&str], is_done: bool, part: &str| {
        let output = run(gupfs, words);
        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output);
        assert_eq!(output.status.success(), is_done, "{words:?}: {told}");
        assert!(told.contains(part), "{words:?}: {told}");
    };
    let elsewhere = |there: &str, not: &str| format!("is mounted on {there}, not on {not}");
    says(&up, true, &format!("already mounted on {one}"));
    let link = second.with_file_name("link");
    std::os::unix::fs::symlink("mnt", &link).unwrap();
    says(&up_on(link.to_str().unwrap()), true, "already mounted on");
    says(&up_on(two), false, &elsewhere(one, two));
    // Settings are of the next start.
    node.gupfs(&["config", "set", "mount", two]);
    says(&up, false, &elsewhere(one, two));
    says(&up_on(one), true, &format!("already mounted on {one}"));
    says(&up, false, &format!("gupfs mount {state} {two}"));
    says(&["mount", state, two], true, "too");
    says(&up, true, &format!("already mounted on {two}"));
    says(&["umount", two], true, "the daemon goes on");
    says(&up, false, &elsewhere(one, two));
    says(&["umount", one], true, "wrote back");
    says(&up, true, &format!("mounted it on {two}"));
    assert!(line(&second).is_some() && line(&first).is_none());
}

fn bad_calls_change_nothing(node: &Node, to_mount: &Path) {
    let (state, mount) = (node.state(), node.mount());
    let (state, point) = (state.to_str().unwrap(), mount.to_str().unwrap());
    let empty = node.state().with_file_name("empty");
    fs::create_dir(&empty).unwrap();
    let nowhere = format!("{state}/none");
    let cases: [(&[&str], i32, &str); 7] = [
        (&[state], 1, "not two"),
        (&[state, point, "-N", "1"], 1, "-N is not known"),
        (
            &[state, point, "-o", "nosuit"],
            32,
            "\"nosuit\" is no mount option",
        ),
        (
            &[state, point, "-o", "pagepool_size=1M"],
            32,
            "pagepool_size cannot be",
        ),
        (&[state, &nowhere], 32, "does not exist"),
        (&[&nowhere, point], 32, &nowhere),
        (&[empty.to_str().unwrap(), point], 32, "empty"),
    ];
    for (words, code, part) in cases {
        let output = run(to_mount, words);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?}: {}",
            said(&output)
        );
        let said = said(&output);
        assert!(
            said.starts_with("mount.fuse.gupfs: ") && said.contains(part),
            "{said}"
        );
        assert_eq!(options(&mount), None);
    }
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "nothing is made");
    let output = run(to_mount, &[state, point, "-f"]);
    assert!(
        output.status.success() && options(&mount).is_none(),
        "-f: only as if"
    );
    let output = run(to_mount, &[state, point, "-s", "-o", "nosuit"]);
    assert!(output.status.success(), "-s: {}", said(&output));
    assert!(options(&mount).is_some());
}

/// A script that holds a lock while it starts a daemon gives the lock back with its own end.
#[test]
fn a_daemon_keeps_nothing_that_its_starter_has_open() {
    let Some(node) = Node::new("1G") else { return };
    let (state, gupfs) = (node.state(), Path::new(env!("CARGO_BIN_EXE_gupfs")));
    let (state, program) = (state.to_str().unwrap(), gupfs.to_str().unwrap());
    let lock = node.state().with_file_name("lock");
    let lock = lock.to_str().unwrap();
    assert!(run(gupfs, &["umount", state]).status.success());
    let flock = Path::new("flock");
    let output = run(flock, &[lock, program, "mount", state]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(options(&node.mount()).is_some());
    let output = run(flock, &["-n", lock, "true"]);
    assert!(output.status.success(), "the daemon holds the lock");
}

/// `gupfs down` ends every mount of the file system, whichever was the first and whether it is used, and what any of them
/// acknowledged is there afterwards.
#[test]
fn down_ends_all_mounts_and_loses_nothing() {
    let Some(node) = Node::new("1G") else { return };
    let (first, second) = (node.mount(), node.state().with_file_name("second"));
    fs::create_dir(&second).unwrap();
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let (state, [one, two]) = (
        node.state(),
        [&first, &second].map(|path| path.to_str().unwrap()),
    );
    let state = state.to_str().unwrap();
    for (round, has_first, is_used) in [(0, true, false), (1, false, false), (2, true, true)] {
        let output = run(gupfs, &["mount", state, two]);
        assert!(output.status.success(), "{}", said(&output));
        if !has_first {
            let output = run(gupfs, &["umount", one]);
            assert!(output.status.success(), "{}", said(&output));
        }
        fs::write(second.join("kept"), format!("round {round}")).unwrap();
        let counting = is_used.then(|| Counting::begin(&second.join("counted")));
        let done = node.gupfs(&["down"]);
        assert!(
            done.contains("wrote back") && !done.contains("killed"),
            "round {round}: {done}"
        );
        assert_eq!((line(&first), line(&second)), (None, None), "round {round}");
        assert_eq!(
            (entered(&first), entered(&second)),
            (None, None),
            "round {round}"
        );

        node.up(&[]).unwrap();
        let kept = fs::read_to_string(first.join("kept")).unwrap();
        assert_eq!(kept, format!("round {round}"));
        if let Some(counting) = counting {
            let (count, bytes) = (counting.end(), fs::read(first.join("counted")).unwrap());
            let numbers = bytes.chunks_exact(8);
            let is_right = |(at, bytes): (u64, &[u8])| bytes == at.to_le_bytes();
            assert!(
                numbers.len() as u64 >= count,
                "{count} acknowledged, {} there",
                numbers.len()
            );
            assert!((0..).zip(numbers).all(is_right));
        }
    }
}

/// Writes numbers to a file until that fails.
struct Counting(std::thread::JoinHandle<u64>);

impl Counting {
    fn begin(path: &Path) -> Self {
        use std::io::Write as _;
        let mut file = File::create(path).unwrap();
        let (begun, wait) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            let mut count = 0u64;
            while file.write_all(&count.to_le_bytes()).is_ok() {
                count += 1;
                if count == 100 {
                    begun.send(()).unwrap();
                }
            }
            count
        });
        wait.recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        Self(writer)
    }

    /// How many writes were acknowledged.
    fn end(self) -> u64 {
        self.0.join().unwrap()
    }
}

/// Where the daemon of another file system serves a mount, the point is in use: whether it is that daemon's first mount, and whether
/// the daemon answers.
#[test]
fn a_mount_of_a_living_daemon_is_not_taken_for_a_dead_one() {
    let (Some(node), Some(other)) = (Node::new("1G"), Node::new("1G")) else {
        return;
    };
    let shared = other.state().with_file_name("shared");
    fs::create_dir(&shared).unwrap();
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let [own, others] = [node.state(), other.state()].map(|p| p.to_str().unwrap().to_owned());
    let point = shared.to_str().unwrap();
    // That directory was the own daemon's, and is the other one's now.
    assert!(run(gupfs, &["umount", &own]).status.success());
    let output = run(gupfs, &["mount", &own, point]);
    assert!(output.status.success(), "{}", said(&output));
    node.gupfs(&["down"]);
    let output = run(gupfs, &["mount", &others, point]);
    assert!(output.status.success(), "{}", said(&output));
    fs::write(shared.join("kept"), "bytes").unwrap();

    let lives = |what: &str| {
        let seen = fs::read_to_string(other.mount().join("kept"));
        assert_eq!(seen.expect(what), "bytes", "{what}");
        assert_eq!(
            fs::read_to_string(shared.join("kept")).expect(what),
            "bytes"
        );
        assert_eq!(line(&shared).unwrap()[0], others, "{what}");
    };
    let refused = |words: &[&str]| {
        let output = run(gupfs, words);
        assert!(!output.status.success(), "{words:?}");
        assert!(said(&output).contains("in use"), "{}", said(&output));
    };
    let calls: [&[&str]; 3] = [
        &["mount", &own, point],
        &["up", "--state", &own, "--mount", point],
        &["daemon", "--state", &own],
    ];
    for words in calls {
        refused(words);
        lives(words[0]);
    }
    node.gupfs(&["down"]);
    lives("down");

    // One that does not answer lives, too.
    let pid = fs::read_to_string(other.state().join("pid")).unwrap();
    let signal = |name: &str| {
        let output = run(Path::new("kill"), &[name, pid.trim()]);
        assert!(output.status.success(), "{}", said(&output));
    };
    signal("-STOP");
    await_stopped(pid.trim());
    let output = run(gupfs, &["mount", &own, point]);
    signal("-CONT");
    assert!(!output.status.success());
    assert!(said(&output).contains("in use"), "{}", said(&output));
    lives("after a stop");

    // Elsewhere the own one can be mounted: one daemon for each, and both live.
    let output = run(gupfs, &["mount", &own, node.mount().to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    lives("both");
}

/// A second mount is the whole file system with the restrictions asked for, or none; and the last one waits for its daemon, whatever its
/// state directory is called.
#[test]
fn a_second_mount_is_whole_and_restricted_or_not_there() {
    let Some(node) = Node::new("1G") else { return };
    let beside = |name: &str| node.state().with_file_name(name);
    let (first, second, part) = (node.mount(), beside("second"), beside("part"));
    let state = beside("a state");
    std::os::unix::fs::symlink(node.state(), &state).unwrap();
    fs::create_dir(&second).unwrap();
    fs::create_dir(&part).unwrap();
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let [source, one, two, bound] =
        [&state, &first, &second, &part].map(|path| path.to_str().unwrap());
    let succeed = |program: &str, words: &[&str]| {
        let output = run(Path::new(program), words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let call = |words: &[&str]| succeed(gupfs.to_str().unwrap(), words);
    call(&["umount", one]);
    call(&["mount", source, one]);

    // A directory of it that somebody has bound is not it, and is not taken for one that is left.
    fs::create_dir(first.join("inner")).unwrap();
    let inner = first.join("inner");
    succeed("mount", &["--bind", inner.to_str().unwrap(), bound]);
    let output = run(gupfs, &["mount", source, bound]);
    assert!(!output.status.success(), "it is a part only");
    assert!(said(&output).contains("in use"), "{}", said(&output));
    succeed("umount", &["-i", bound]);

    // Options that cannot be set: no mount that allows more.
    let programs = beside("programs");
    fs::create_dir(&programs).unwrap();
    let real = succeed("sh", &["-c", "command -v mount"]);
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *bind,remount*) exit 32;; esac\nexec {} \"$@\"\n",
        real.trim()
    );
    fs::write(programs.join("mount"), script).unwrap();
    succeed("chmod", &["755", programs.join("mount").to_str().unwrap()]);
    let path = std::env::var("PATH").unwrap();
    let path = format!("PATH={}:{path}", programs.display());
    let words = [
        &path,
        gupfs.to_str().unwrap(),
        "mount",
        source,
        two,
        "-o",
        "nosuid",
    ];
    assert!(!run(Path::new("env"), &words).status.success());
    assert_eq!(line(&second), None);

    call(&["mount", source, two, "-o", "nosuid"]);
    assert!(options(&second).unwrap().iter().any(|o| o == "nosuid"));
    fs::write(second.join("kept"), "bytes").unwrap();
    assert!(call(&["umount", one]).contains("the daemon goes on"));
    let done = call(&["umount", two]);
    assert!(done.contains("wrote back"), "{done}");
    assert!(!state.join("control.sock").exists());
    // By the file of settings the kernel shows the directory that the link leads to, and the daemon's has the link's name.
    call(&["mount", state.join("gupfs.toml").to_str().unwrap(), one]);
    assert_eq!(fs::read_to_string(first.join("kept")).unwrap(), "bytes");
    call(&["umount", one]);
    node.up(&[]).unwrap();
    assert_eq!(fs::read_to_string(first.join("kept")).unwrap(), "bytes");
}

/// Commands that mount the same file system at the same time, with the service's own start, end in one daemon, which all of them can ask.
#[test]
fn who_mounts_at_the_same_time_meets_in_one_daemon() {
    let Some(node) = Node::new("1G") else { return };
    let (state, mount) = (node.state(), node.mount());
    let (state, mount) = (state.to_str().unwrap(), mount.to_str().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    fs::write(node.mount().join("kept"), "kept").unwrap();
    for _ in 0..3 {
        node.gupfs(&["down"]);
        // As systemd starts it; it may lose the lock to one that a command starts.
        let mut service = Command::new(program)
            .args(["daemon", "--state", state])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let outputs: Vec<Output> = std::thread::scope(|scope| {
            let up = || run(program, &["up", "--state", state, "--mount", mount]);
            let again = || run(program, &["mount", state, mount]);
            let begun = [
                scope.spawn(up),
                scope.spawn(again),
                scope.spawn(up),
                scope.spawn(again),
            ];
            begun.map(|one| one.join().unwrap()).into()
        });
        for output in &outputs {
            assert!(output.status.success(), "{}", said(output));
        }
        let status: serde_json::Value =
            serde_json::from_str(&node.gupfs(&["status", "--json"])).unwrap();
        assert_eq!(status["mounted"], true, "{status}");
        assert_eq!(fs::read(node.mount().join("kept")).unwrap(), b"kept");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_ours = |line: &&str| line.split(' ').nth(1) == Some(mount);
        assert_eq!(mounts.lines().filter(is_ours).count(), 1, "{mounts}");
        node.gupfs(&["down"]);
        // Whichever it was, it has ended by now.
        service.wait().unwrap();
        node.up(&[]).unwrap();
    }
}

/// What a daemon that died has left mounted elsewhere is there again as it was, however the next one is started.
#[test]
fn second_mounts_come_back_after_a_crash() {
    let Some(node) = Node::new("1G") else { return };
    let beside = |name: &str| {
        let path = node.state().with_file_name(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (first, state) = (node.mount(), node.state());
    let [second, bound, part] = ["second", "bound", "part"].map(beside);
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let [source, two] = [&state, &second].map(|path| path.to_str().unwrap());
    let succeed = |program: &Path, words: &[&str]| {
        let output = run(program, words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    };
    let bind = |from: &Path, to: &Path| {
        let [from, to] = [from, to].map(|path| path.to_str().unwrap());
        succeed(Path::new("mount"), &["--bind", from, to]);
    };
    succeed(
        gupfs,
        &["mount", source, two, "-o", "nosuid,noatime,x-mine=1"],
    );
    bind(&first, &bound);
    fs::create_dir(first.join("inner")).unwrap();
    bind(&first.join("inner"), &part);
    let before = (options(&second), options(&bound), entered(&second));
    assert!(before.2.as_ref().unwrap().contains("x-mine=1"));

    for round in 0..4 {
        let kept = format!("round {round}");
        fs::write(second.join("kept"), &kept).unwrap();
        File::open(second.join("kept")).unwrap().sync_all().unwrap();
        // Once somebody is in it: a directory that is used does not keep the mount from going and coming.
        let inside = (round == 2).then(|| Inside::begin(&second));
        let pid = fs::read_to_string(state.join("pid")).unwrap();
        succeed(Path::new("kill"), &["-9", pid.trim()]);
        await_end(pid.trim());
        match round {
            0 => node.up(&[]).unwrap(),
            // Elsewhere: what was first is a second one now.
            3 => succeed(gupfs, &["mount", source, bound.to_str().unwrap()]),
            _ => succeed(gupfs, &["mount", source]),
        }
        for path in [&first, &second, &bound] {
            let found = fs::read_to_string(path.join("kept")).unwrap();
            assert_eq!(found, kept, "{}, round {round}", path.display());
        }
        // Nobody writes to the disk below.
        let error = fs::write(part.join("lost"), "x").expect_err("it is dead");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
        assert_eq!(
            (options(&second), options(&bound)),
            (before.0.clone(), before.1.clone())
        );
        assert_eq!(entered(&second), before.2, "round {round}");
        drop(inside);
    }
    // They are whole mounts of the one that runs: it ends with the last of them.
    let done = node.gupfs(&["down"]);
    assert!(done.contains("wrote back"), "{done}");
    assert_eq!(
        (line(&first), line(&second), line(&bound)),
        (None, None, None)
    );
    assert_eq!(entered(&second), None);
    // What was unmounted in good order does not come back.
    succeed(gupfs, &["up", "--state", source]);
    assert!(line(&bound).is_some(), "where it was mounted last");
    assert_eq!((line(&first), line(&second)), (None, None));
}

fn await_end(pid: &str) {
    let begin = std::time::Instant::now();
    while Path::new("/proc").join(pid).exists() {
        assert!(begin.elapsed().as_secs() < 20, "{pid} does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A process whose working directory this is.
struct Inside(std::process::Child);

impl Inside {
    fn begin(directory: &Path) -> Self {
        let mut command = Command::new("sleep");
        command.arg("60").current_dir(directory);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
