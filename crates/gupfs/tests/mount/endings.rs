//! The end of a daemon, whoever wants it, and what programs meet that go on meanwhile.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use super::node::Node;
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
                std::thread::sleep(std::time::Duration::from_millis(30));
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
            std::thread::sleep(std::time::Duration::from_millis(300));
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
