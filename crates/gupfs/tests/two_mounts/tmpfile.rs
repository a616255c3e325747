//! O_TMPFILE: files that are made without a name, in directories of either owner, and get one or go.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::calls::link_descriptor;
use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome<T = ()> = Result<T, String>;

/// How long it may take until what nobody can reach is gone.
const PATIENCE: Duration = Duration::from_secs(10);

fn text<T>(what: &str, result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|e| format!("{what}: {e}"))
}

fn make(directory: &Path, extra: i32) -> Result<File, Error> {
    let mut options = OpenOptions::new();
    let flags = libc::O_TMPFILE | extra;
    options.read(true).write(true).mode(0o640);
    options.custom_flags(flags).open(directory)
}

fn errno<T>(result: Result<T, Error>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

/// Inodes without a name that the owners keep.
pub fn orphan_count(fixture: &Fixture) -> u64 {
    let count = |node| fixture.counters(node)["space_orphans_now"].as_u64();
    count(1).expect("a number") + count(2).expect("a number")
}

pub fn await_no_orphans(fixture: &Fixture) -> Outcome {
    let until = Instant::now() + PATIENCE;
    while orphan_count(fixture) > 0 {
        if Instant::now() > until {
            return Err(format!("{} inodes are kept", orphan_count(fixture)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A file without a name, in a directory that `maker` or the other node owns, and its name in one that either owns.
fn life(fixture: &Fixture, (maker, owner, to): (usize, usize, usize), round: u8) -> Outcome {
    let place = format!("d{owner}");
    let directory = fixture.path(maker, &place);
    let before = text("stat", fs::metadata(&directory))?;
    let mut file = text("make", make(&directory, 0))?;
    let bytes: Vec<u8> = (0..70_000_u32)
        .map(|i| (i / 3).to_le_bytes()[0] ^ round)
        .collect();
    text("write", file.write_all(&bytes))?;
    let meta = text("fstat", file.metadata())?;
    if (meta.nlink(), meta.size(), meta.mode()) != (0, 70_000, 0o100_640) {
        return Err(format!("{meta:?}"));
    }
    let after = text("stat", fs::metadata(fixture.path(3 - maker, &place)))?;
    if after.mtime_nsec() != before.mtime_nsec() || after.nlink() != before.nlink() {
        return Err("the directory has changed".into());
    }
    let listed = text("list", fs::read_dir(&directory))?.count();
    if listed != 0 || orphan_count(fixture) != 1 {
        return Err(format!("{listed} names, {} orphans", orphan_count(fixture)));
    }
    // Another descriptor of it, which stays when the first is closed.
    let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = text("open again", File::open(&fd))?;
    let name = format!("d{to}/name");
    text("taken", fs::write(fixture.path(maker, &name), b""))?;
    let taken = errno(link_descriptor(&file, &fixture.path(maker, &name)));
    text("unlink", fs::remove_file(fixture.path(3 - maker, &name)))?;
    if taken != Some(libc::EEXIST) {
        return Err(format!("a name that is taken: {taken:?}"));
    }
    text("link", link_descriptor(&file, &fixture.path(maker, &name)))?;
    drop(file);
    for node in [1, 2] {
        let seen = text("read", fs::read(fixture.path(node, &name)))?;
        let links = text("stat", fs::metadata(fixture.path(node, &name)))?.nlink();
        if seen != bytes || links != 1 {
            return Err(format!("node {node}: {} bytes, {links} links", seen.len()));
        }
    }
    // It lives on as others do: a second name, and none, and open.
    let second = fixture.path(3 - maker, &place).join("second");
    text(
        "second",
        fs::hard_link(fixture.path(3 - maker, &name), &second),
    )?;
    text("unlink", fs::remove_file(second))?;
    text("unlink", fs::remove_file(fixture.path(3 - maker, &name)))?;
    let mut seen = vec![0; bytes.len()];
    text("read", again.read_exact_at(&mut seen, 0))?;
    if seen != bytes {
        return Err("other bytes without a name".into());
    }
    // Not a second time.
    let late = errno(link_descriptor(&again, &fixture.path(maker, &name)));
    if late != Some(libc::ENOENT) {
        return Err(format!("named again: {late:?}"));
    }
    drop(again);
    await_no_orphans(fixture)
}

fn lives(fixture: &Fixture) -> Outcome<String> {
    for node in [1, 2] {
        let made = fs::create_dir(fixture.path(node, &format!("d{node}")));
        text("mkdir", made)?;
    }
    let slot = fixture.slot();
    let mut round = 0;
    for maker in [1, 2] {
        for (owner, to) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            round += 1;
            let case = (maker, owner, to);
            slot.run(&format!("{case:?}"), || life(fixture, case, round))
                .map_err(|fault| format!("{case:?}: {fault}"))?;
        }
    }
    slot.run("exclusive", || exclusive(fixture))?;
    slot.run("gone", || gone_directory(fixture))?;
    Ok(format!("{round} lives"))
}

/// O_EXCL: it never gets a name.
fn exclusive(fixture: &Fixture) -> Outcome {
    let file = text("make", make(&fixture.path(1, "d2"), libc::O_EXCL))?;
    let refused = errno(link_descriptor(&file, &fixture.path(1, "d2/x")));
    if refused != Some(libc::ENOENT) {
        return Err(format!("O_EXCL is linked: {refused:?}"));
    }
    drop(file);
    await_no_orphans(fixture)
}

/// A directory that the other node has removed has no room for files.
fn gone_directory(fixture: &Fixture) -> Outcome {
    text("mkdir", fs::create_dir(fixture.path(1, "gone")))?;
    let file = text("make", make(&fixture.path(2, "gone"), 0))?;
    text("rmdir", fs::remove_dir(fixture.path(1, "gone")))?;
    let refused = errno(make(&fixture.path(2, "gone"), 0));
    if refused != Some(libc::ENOENT) {
        return Err(format!("made in a directory that is gone: {refused:?}"));
    }
    text("link", link_descriptor(&file, &fixture.path(2, "saved")))?;
    drop(file);
    let mut seen = String::new();
    let mut file = text("open", File::open(fixture.path(1, "saved")))?;
    text("read", file.read_to_string(&mut seen))?;
    drop(file);
    await_no_orphans(fixture)
}

#[test]
fn files_are_made_without_a_name_and_get_one() {
    let fixture = lab!();
    finish(&fixture, lives(&fixture));
}

#[test]
fn files_are_made_without_a_name_over_the_ring() {
    let skipped = crate::fixture::reason_to_skip();
    if let Some(reason) = skipped.or_else(crate::fixture::reason_without_ring) {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = Fixture::with(&["--transport", "ring"]);
    finish(&fixture, lives(&fixture));
}

/// The daemons die: what had a name has it, with the bytes that were synced before; the rest is gone.
#[test]
fn what_has_no_name_goes_in_a_crash() {
    let fixture = lab!();
    let outcome = crash(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

fn crash(fixture: &Fixture) -> Outcome {
    let mut files = Vec::new();
    for node in [1, 2] {
        let made = fs::create_dir(fixture.path(node, &format!("d{node}")));
        text("mkdir", made)?;
    }
    for (maker, owner) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let mut named = text("make", make(&fixture.path(maker, &format!("d{owner}")), 0))?;
        text("write", named.write_all(&[7; 9000]))?;
        let name = fixture.path(maker, &format!("name{maker}{owner}"));
        text("link", link_descriptor(&named, &name))?;
        text("fsync", named.sync_all())?;
        let mut lost = text("make", make(&fixture.path(maker, &format!("d{owner}")), 0))?;
        text("write", lost.write_all(&[8; 9000]))?;
        text("fsync", lost.sync_all())?;
        files.extend([named, lost]);
    }
    if orphan_count(fixture) != 4 {
        return Err(format!("{} orphans before", orphan_count(fixture)));
    }
    fixture.restart()?;
    drop(files);
    await_no_orphans(fixture)?;
    for (maker, owner) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        for node in [1, 2] {
            let name = fixture.path(node, &format!("name{maker}{owner}"));
            let seen = text("read", fs::read(name))?;
            if seen != [7; 9000] {
                return Err(format!("name{maker}{owner}: {} bytes", seen.len()));
            }
        }
    }
    Ok(())
}
