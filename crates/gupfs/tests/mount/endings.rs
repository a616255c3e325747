//! The end of a daemon, whoever wants it, and what programs meet that go on meanwhile.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::node::Node;
use super::stopped::await_stopped;
use super::{await_end, line, run, said};

/// Many small files and a large one: their write-back takes a moment.
const FILE_COUNT: usize = 1500;
const LARGE: usize = 150 << 20;

fn write(node: &Node, round: usize) {
    let directory = node.mount().join(format!("round{round}"));
    fs::create_dir(&directory).unwrap();
    for number in 0..FILE_COUNT {
        fs::write(directory.join(format!("f{number}")), vec![b'y'; 20_000]).unwrap();
    }
    fs::write(directory.join("large"), vec![b'z'; LARGE]).unwrap();
}

fn check(node: &Node, round: usize, what: &str) {
    let directory = node.mount().join(format!("round{round}"));
    let size = |name: String| fs::metadata(directory.join(name)).map_or(0, |found| found.len());
    let short = (0..FILE_COUNT).filter(|number| size(format!("f{number}")) < 20_000);
    assert_eq!(
        (short.count(), size("large".to_owned())),
        (0, LARGE as u64),
        "{what}"
    );
    fs::remove_dir_all(&directory).unwrap();
}

/// A signal that asks a process to end, umount(8) and `gupfs down` are waited for, also by another `gupfs down`: it killed a daemon that was
/// writing back, and said that nothing was wrong.
#[test]
fn who_ends_in_good_order_is_not_killed() {
    let Some(node) = Node::new("1G") else { return };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let state = node.state();
    let down = ["down", "--state", state.to_str().unwrap()];
    for round in 0..3 {
        write(&node, round);
        let what = match round {
            0 => {
                // As where no helper is installed.
                let output = run(Path::new("umount"), &["-i", node.mount().to_str().unwrap()]);
                assert!(output.status.success(), "{}", said(&output));
                "umount(8)"
            }
            1 => {
                let mut first = Command::new(gupfs).args(down).spawn().unwrap();
                std::thread::sleep(Duration::from_millis(30));
                // Who asked is interrupted.
                first.kill().unwrap();
                first.wait().unwrap();
                "down"
            }
            _ => {
                let pid = fs::read_to_string(state.join("pid")).unwrap();
                let output = run(Path::new("kill"), &["-TERM", pid.trim()]);
                assert!(output.status.success(), "{}", said(&output));
                "SIGTERM"
            }
        };
        let output = run(gupfs, &down);
        let told = said(&output);
        assert!(output.status.success(), "{what}: {told}");
        assert!(!told.contains("killed"), "{what}: {told}");
        node.up(&[]).unwrap();
        check(&node, round, what);
    }
    for signal in ["-INT", "-HUP"] {
        write(&node, 9);
        let pid = fs::read_to_string(state.join("pid")).unwrap();
        run(Path::new("kill"), &[signal, pid.trim()]);
        await_end(pid.trim());
        assert_eq!(line(&node.mount()), None, "{signal}");
        node.up(&[]).unwrap();
        check(&node, 9, signal);
    }
}

/// A program that makes files and goes on after errors, while the daemon dies and another one comes: its files are in the file system, or it
/// hears an error. They were on the disk below the mount point, and no daemon came any more.
#[test]
fn nothing_is_written_below_the_mount_point() {
    let Some(node) = Node::new("1G") else { return };
    let (mount, state) = (node.mount(), node.state());
    let is_over = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let maker = scope.spawn(|| {
            let mut made = Vec::new();
            for number in 0_u64.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let path = mount.join(format!("f{number}"));
                let mut options = File::options();
                let file = options.write(true).create_new(true).mode(0o600).open(path);
                let outcome = file.and_then(|mut file| {
                    file.write_all(b"text")?;
                    file.sync_all()
                });
                if outcome.is_ok() {
                    made.push(number);
                }
            }
            made
        });
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(300));
            let pid = fs::read_to_string(state.join("pid")).unwrap();
            run(Path::new("kill"), &["-9", pid.trim()]);
            await_end(pid.trim());
            let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
            let word = if round % 2 == 0 { "up" } else { "mount" };
            let output = match word {
                "up" => run(gupfs, &["up", "--state", state.to_str().unwrap()]),
                _ => run(gupfs, &["mount", state.to_str().unwrap()]),
            };
            if !output.status.success() {
                is_over.store(true, Ordering::SeqCst);
                panic!("{word}: {}", said(&output));
            }
        }
        is_over.store(true, Ordering::SeqCst);
        maker.join().unwrap()
    });
    let missing = made
        .iter()
        .filter(|number| !mount.join(format!("f{number}")).exists());
    assert_eq!(missing.count(), 0, "of {}", made.len());
    node.gupfs(&["down"]);
    let below = fs::read_dir(&mount).unwrap().count();
    assert!(
        made.len() > 20 && below == 0,
        "{} made, {below} below",
        made.len()
    );
    // What lies there all the same, written while nothing was mounted, keeps nobody from mounting it.
    fs::write(mount.join("stray"), "x").unwrap();
    let output = run(
        Path::new(env!("CARGO_BIN_EXE_gupfs")),
        &["up", "--state", state.to_str().unwrap()],
    );
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("hides"),
        "{told} {}",
        said(&output)
    );
    node.gupfs(&["down"]);
    fs::remove_file(mount.join("stray")).unwrap();
}

/// Nothing that is lost passes for written: a daemon that dies while `gupfs down` waits for its answer, and a disk that is full, where there
/// is no room for saying what is lost either.
#[test]
fn what_is_lost_at_the_end_is_said() {
    let Some(node) = Node::new("1G") else { return };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let state = node.state();
    let pid = fs::read_to_string(state.join("pid")).unwrap();
    run(Path::new("kill"), &["-STOP", pid.trim()]);
    await_stopped(pid.trim());
    let mut down = Command::new(gupfs);
    down.args(["down", "--state", state.to_str().unwrap()]);
    let down = down.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let down = down.unwrap();
    await_socket(down.id());
    run(Path::new("kill"), &["-9", pid.trim()]);
    let output = down.wait_with_output().unwrap();
    let told = said(&output);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("the daemon died before"), "{told}");
    // Once: who calls it again has nothing to end.
    node.gupfs(&["down"]);
}

/// What a daemon serves can be asked about and unmounted while another file system's daemon hangs, and nobody hears of that one.
#[test]
fn one_that_hangs_is_nothing_to_other_file_systems() {
    let (Some(node), Some(healthy)) = (Node::new("1G"), Node::new("1G")) else {
        return;
    };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let _going_on = GoingOn::after_a_stop(&node);
    let file = healthy.mount().join("file");
    fs::write(&file, "bytes").unwrap();
    let [file, state, root] =
        [&file, &healthy.state(), &healthy.mount()].map(|path| path.to_str().unwrap().to_owned());
    let begin = Instant::now();
    for words in [
        &["stat", "--sync", &file][..],
        &["df", &file],
        &["df", "--state", &state],
        &["du", "-s", &root],
        &["layout", "get", &root],
        &["fs", "list", "--state", &state],
        &["umount", &root],
        &["mount", &state],
    ] {
        let output = run(gupfs, words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        assert_eq!(said(&output), "", "{words:?}");
    }
    // Each would take 5 s and more.
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
}

/// A daemon that does not answer keeps umount for some seconds, and no process is left of it.
#[test]
fn umount_waits_with_a_limit() {
    let Some(node) = Node::new("1G") else { return };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    let mount = node.mount();
    fs::write(mount.join("file"), vec![1; 8 << 20]).unwrap();
    // It goes on before it is asked to end, also where this fails.
    let going_on = GoingOn::after_a_stop(&node);
    let output = run(gupfs, &["umount", mount.to_str().unwrap()]);
    let told = said(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let down = format!("gupfs down --state {}", node.state().display());
    assert!(
        told.contains("does not answer") && told.contains(&down),
        "{told}"
    );
    let words = format!("umount\0-i\0{}\0", mount.display());
    let left = fs::read_dir("/proc").unwrap().flatten().filter(|process| {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        line == words.as_bytes()
    });
    assert_eq!(left.count(), 0);
    drop(going_on);
    node.gupfs(&["down"]);
}

/// A process that goes on when this is dropped.
struct GoingOn(String);

impl GoingOn {
    fn after_a_stop(node: &Node) -> Self {
        let pid = fs::read_to_string(node.state().join("pid")).unwrap();
        let pid = pid.trim().to_owned();
        run(Path::new("kill"), &["-STOP", &pid]);
        let going_on = Self(pid);
        await_stopped(&going_on.0);
        going_on
    }
}

impl Drop for GoingOn {
    fn drop(&mut self) {
        run(Path::new("kill"), &["-CONT", &self.0]);
    }
}

/// The journal's disk is a file of a file system that is full, as is the state directory beside it.
#[test]
fn changes_that_a_full_disk_does_not_take_are_said() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    node.gupfs(&["down", "--destroy"]);
    let tmpfs = Tmpfs::new(&node.mount().with_file_name("small"), "64M");
    let (state, mount) = (tmpfs.0.join("state"), node.mount());
    let (state, mount) = (state.to_str().unwrap(), mount.to_str().unwrap());
    let up = ["up", "--state", state, "--mount", mount];
    let down = ["down", "--state", state];
    let destroy = Destroy(state.to_owned());
    let output = run(gupfs, &[&up[..], &["--size", "256M"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    for is_room_made in [false, true] {
        let filler = tmpfs.0.join("filler");
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        drop(file);
        let make = |number: u32| fs::write(node.mount().join(format!("f{number}")), "text");
        let refused = (0..20_000).find_map(|number| make(number).err());
        let refused = refused.expect("the disk is full");
        assert_eq!(refused.raw_os_error(), Some(libc::EIO), "{refused}");
        if is_room_made {
            fs::remove_file(&filler).unwrap();
        }
        let output = run(gupfs, &down);
        let told = said(&output);
        assert!(!output.status.success(), "{told}");
        let (words, others) = (
            "changes, which were not synced, are lost",
            "before it had written back",
        );
        let words = if is_room_made { words } else { others };
        assert!(told.contains(words), "{is_room_made}: {told}");
        let _ = fs::remove_file(&filler);
        let output = run(gupfs, &up);
        assert!(output.status.success(), "{}", said(&output));
    }
    drop(destroy);
}

/// Files were written and closed, and their disks are files that cannot grow where files have their bytes: whoever takes the file system down hears that they are lost.
#[test]
fn what_a_disk_refuses_at_the_end_is_said() {
    let Some(node) = Node::new("256M") else {
        return;
    };
    let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
    node.gupfs(&["down"]);
    let tmpfs = Tmpfs::new(&node.mount().with_file_name("small"), "40M");
    let state = node.state();
    let superblock = node.gupfs(&["dump", "superblock", "--json"]);
    let superblock: serde_json::Value = serde_json::from_str(&superblock).unwrap();
    let binds: Vec<Bind> = (1..=4)
        .map(|number: u64| {
            let name = format!("{number}.img");
            let (disk, copy) = (state.join("nsd").join(&name), tmpfs.0.join(name));
            // Labels and the journal can be written: files are lost, and nothing else fails.
            let nsd = &superblock["nsds"][usize::try_from(number - 1).unwrap()];
            let room = nsd["data_begin"].as_u64().unwrap() * 4096;
            Bind::new(&disk, &copy, room)
        })
        .collect();
    let (root, point) = (state.to_str().unwrap(), node.mount());
    let point = point.to_str().unwrap();
    // Who ends it by a signal leaves that to the next command, also to one that fails.
    let other = node.mount().with_file_name("other");
    fs::create_dir_all(other.join("occupied")).unwrap();
    let by_signal = ["mount", root, other.to_str().unwrap()];
    for words in [
        ["down", "--state", root].as_slice(),
        &["umount", point],
        &by_signal,
    ] {
        node.up(&[]).expect("it comes up");
        let directory = node.mount().join(words[0]);
        fs::create_dir(&directory).unwrap();
        let filler = tmpfs.0.join("filler");
        let mut file = File::create(&filler).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        drop(file);
        for number in 0..5 {
            fs::write(directory.join(format!("f{number}")), vec![number; 300_000]).unwrap();
        }
        if words == by_signal {
            let pid = fs::read_to_string(state.join("pid")).unwrap();
            run(Path::new("kill"), &["-TERM", pid.trim()]);
            await_end(pid.trim());
        }
        let output = run(gupfs, words);
        let told = said(&output);
        assert!(!output.status.success(), "{words:?}: {told}");
        let lost = "written and not synced, are lost";
        assert!(told.contains(lost), "{words:?}: {told}");
        let log = fs::read_to_string(state.join("log")).unwrap();
        assert!(log.contains("written bytes are lost"), "{words:?}: {log}");
        fs::remove_file(&filler).unwrap();
    }
    drop((binds, tmpfs));
}

/// A file in the place of another one while this lives.
struct Bind(PathBuf);

impl Bind {
    /// The first `room` bytes of it can be written in any case.
    fn new(file: &Path, copy: &Path, room: u64) -> Self {
        let (file_text, copy) = (file.to_str().unwrap(), copy.to_str().unwrap());
        let room = room.to_string();
        for (program, words) in [
            ("cp", ["--sparse=always", file_text, copy].as_slice()),
            ("fallocate", &["--length", &room, copy]),
            ("mount", &["--bind", copy, file_text]),
        ] {
            let output = run(Path::new(program), words);
            assert!(output.status.success(), "{}", said(&output));
        }
        Self(file.to_owned())
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        // Whoever has it open ends later, where the test fails.
        run(Path::new("umount"), &["--lazy", self.0.to_str().unwrap()]);
    }
}

/// A file system that is destroyed when this is dropped.
struct Destroy(String);

impl Drop for Destroy {
    fn drop(&mut self) {
        let gupfs = Path::new(env!("CARGO_BIN_EXE_gupfs"));
        run(gupfs, &["down", "--destroy", "--state", &self.0]);
    }
}

/// Mounted while this lives.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(point: &Path, size: &str) -> Self {
        fs::create_dir(point).unwrap();
        let words = ["-t", "tmpfs", "-o", &format!("size={size}"), "gupfs-test"];
        let output = run(
            Path::new("mount"),
            &[&words[..], &[point.to_str().unwrap()]].concat(),
        );
        assert!(output.status.success(), "{}", said(&output));
        Self(point.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run(Path::new("umount"), &[self.0.to_str().unwrap()]);
    }
}

/// Waits until the process has a socket open.
fn await_socket(pid: u32) {
    let until = Instant::now() + Duration::from_secs(20);
    let is_socket = |entry: std::io::Result<fs::DirEntry>| {
        let target = entry.and_then(|entry| fs::read_link(entry.path()));
        target.is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    let has_one =
        || fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|mut all| all.any(is_socket));
    while !has_one() {
        assert!(Instant::now() < until, "{pid} opens no socket");
        std::thread::sleep(Duration::from_millis(2));
    }
}
