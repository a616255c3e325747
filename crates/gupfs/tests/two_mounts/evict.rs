//! Far more files than the nodes may remember, changed and read by both in turn: what is forgotten is asked for again, and
//! nobody sees anything old.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::{finish, lab};

const FILE_COUNT: usize = 450;
const DIRECTORY_COUNT: usize = 9;
/// The least that can be set.
const INODE_COUNT_MAX: u64 = 256;
const ROUND_COUNT: usize = 4;
const FORGET_LIMIT: Duration = Duration::from_secs(15);

fn name(index: usize) -> String {
    format!("d{}/f{index}", index % DIRECTORY_COUNT)
}

fn content(index: usize, round: usize) -> String {
    format!(
        "{index} {round} {}",
        "x".repeat((index * 31 + round * 977) % 6000)
    )
}

/// Inodes that the client half of node 1 or 2 knows, and those that it has forgotten and its kernel knows.
fn known(fixture: &Fixture, node: u16) -> (u64, u64) {
    let counters = fixture.counters(node);
    let count = |name: &str| counters[name].as_u64().expect("a count");
    (count("inodes_known_now"), count("inodes_forgotten_now"))
}

#[test]
fn forgotten_inodes_are_never_old() {
    let fixture = lab!();
    for node in [1, 2] {
        fixture.set(node, "inode_count_max", &INODE_COUNT_MAX.to_string());
    }
    fixture.restart().expect("they start");
    let outcome = change_and_read(&fixture);
    finish(&fixture, outcome);
}

fn change_and_read(fixture: &Fixture) -> Result<String, String> {
    let slot = fixture.slot();
    let failed = |what: String, error: std::io::Error| format!("{what}: {error}");
    for directory in 0..DIRECTORY_COUNT {
        let path = fixture.path(1 + directory % 2, &format!("d{directory}"));
        fs::create_dir(path).map_err(|e| failed("mkdir".to_owned(), e))?;
    }
    fs::write(fixture.path(1, "held"), "held").map_err(|e| failed("held".to_owned(), e))?;
    let held = File::open(fixture.path(2, "held")).map_err(|e| failed("held".to_owned(), e))?;
    let special = |node, what: &str| fixture.path(node, &format!("d0/{what}"));
    std::os::unix::fs::symlink("there", special(1, "link")).expect("made");
    let made = Command::new("mkfifo").arg(special(1, "fifo")).status();
    assert!(made.expect("mkfifo runs").success());
    for round in 0..ROUND_COUNT {
        let (writer, reader) = (1 + round % 2, 2 - round % 2);
        for index in 0..FILE_COUNT {
            let path = fixture.path(writer, &name(index));
            let done = slot.run("write", || fs::write(&path, content(index, round)));
            done.map_err(|e| failed(format!("{}, round {round}", path.display()), e))?;
        }
        for index in 0..FILE_COUNT {
            let path = fixture.path(reader, &name(index));
            let expected = content(index, round);
            let size = slot.run("stat", || fs::metadata(&path)).map(|m| m.size());
            let read = slot.run("read", || fs::read_to_string(&path));
            let read = read.map_err(|e| failed(path.display().to_string(), e))?;
            let size = size.map_err(|e| failed(path.display().to_string(), e))?;
            if read != expected || size != expected.len() as u64 {
                let begin: String = read.chars().take(20).collect();
                let path = path.display();
                return Err(format!("{path}, round {round}: {size} bytes, {begin:?}"));
            }
        }
        let mut bytes = [0; 4];
        let read = slot.run("held", || held.read_exact_at(&mut bytes, 0));
        read.map_err(|e| failed("what is open".to_owned(), e))?;
        // What they are is known of forgotten ones, too.
        for what in ["link", "fifo"] {
            let (old, new) = (
                special(reader, what),
                special(reader, &format!("{what}{round}")),
            );
            let done = slot.run("link", || fs::hard_link(old, &new));
            done.map_err(|e| failed(new.display().to_string(), e))?;
            let kind = fs::symlink_metadata(special(writer, &format!("{what}{round}")));
            let kind = kind.map_err(|e| failed(what.to_owned(), e))?.file_type();
            if !(kind.is_symlink() || kind.is_fifo()) {
                return Err(format!("{what} is {kind:?}"));
            }
        }
    }
    let begin = Instant::now();
    loop {
        let counts = [known(fixture, 1), known(fixture, 2)];
        if counts.iter().all(|(known, _)| *known <= INODE_COUNT_MAX) {
            return Ok(format!(
                "of {FILE_COUNT} files known, forgotten: {counts:?}"
            ));
        }
        if begin.elapsed() > FORGET_LIMIT {
            return Err(format!("still known, forgotten: {counts:?}"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
