//! The name space across owners on two real mounts: what one node's directories get through the other's.
//!
//! A new directory belongs to the node that makes it, so `make` says through which mount, and every operation
//! here meets shards of both.

use std::fs::{self, File};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{RENAME_EXCHANGE, RENAME_NOREPLACE, rename_with};
use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome = Result<(), String>;

/// How long each race goes on.
const TIME: Duration = Duration::from_millis(2500);
/// A third of a second is waited at the most; this is for a machine that stands still.
const POLLED_MAX: Duration = Duration::from_secs(6);

fn text<T: std::fmt::Debug>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

fn make(fixture: &Fixture, node: usize, path: &str) -> Outcome {
    text(path, fs::create_dir(fixture.path(node, path)))
}

/// The names in a directory, sorted, as each node sees them; both must see the same.
fn listed(fixture: &Fixture, path: &str) -> Result<Vec<String>, String> {
    let list = |node| -> Result<Vec<String>, String> {
        let entries = text(path, fs::read_dir(fixture.path(node, path)))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = text(path, entry)?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    };
    let (one, two) = (list(1)?, list(2)?);
    if one != two {
        return Err(format!("{path}: node 1 lists {one:?}, node 2 {two:?}"));
    }
    Ok(one)
}

fn expect(what: &str, found: Vec<String>, expected: &[&str]) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: {found:?} instead of {expected:?}"))
}

/// Both at once; each says how its call ended.
fn both<A: Send, B: Send>(
    fixture: &Fixture,
    what: &str,
    one: impl FnOnce() -> A + Send,
    two: impl FnOnce() -> B + Send,
) -> (A, B) {
    let (first, second) = (fixture.slot(), fixture.slot());
    std::thread::scope(|scope| {
        let other = scope.spawn(move || second.run(&format!("{what} on node 2"), two));
        let mine = first.run(&format!("{what} on node 1"), one);
        (mine, other.join().expect("no panic"))
    })
}

/// The loser of two moves into one another: it would make a loop, or its names are gone already, or the kernel remembers another place of what it is to move (docs/tokens.md).
fn has_lost(error: &Error) -> bool {
    let is_loop = error.raw_os_error() == Some(libc::EINVAL);
    let is_moved = error.raw_os_error() == Some(libc::ESTALE);
    is_loop || is_moved || error.kind() == ErrorKind::NotFound
}

/// Moves a directory that another node has moved before, as mv(1) does: it is looked at first.
fn move_back(from: &Path, to: &Path) -> Result<(), String> {
    text("look", fs::symlink_metadata(from))?;
    text("back", fs::rename(from, to))
}

#[test]
fn two_moves_into_one_another() {
    let fixture = lab!();
    let outcome = cross(&fixture);
    finish(&fixture, outcome);
}

fn cross(fixture: &Fixture) -> Result<String, String> {
    make(fixture, 1, "p")?;
    make(fixture, 2, "q")?;
    // The directories that move belong to the other node than their parents.
    make(fixture, 2, "p/a")?;
    make(fixture, 1, "q/b")?;
    let (mut won, mut loops, begin) = ([0, 0], 0, Instant::now());
    while begin.elapsed() < TIME {
        let path = |node, path| fixture.path(node, path);
        let (one, two) = both(
            fixture,
            "moves into one another",
            || fs::rename(path(1, "p/a"), path(1, "q/b/a")),
            || fs::rename(path(2, "q/b"), path(2, "p/a/b")),
        );
        match (&one, &two) {
            (Ok(()), Err(error)) if has_lost(error) => {
                won[0] += 1;
                loops += u32::from(error.raw_os_error() == Some(libc::EINVAL));
                expect("p", listed(fixture, "p")?, &[])?;
                expect("q/b", listed(fixture, "q/b")?, &["a"])?;
                // Back through the other node.
                move_back(&path(2, "q/b/a"), &path(2, "p/a"))?;
            }
            (Err(error), Ok(())) if has_lost(error) => {
                won[1] += 1;
                loops += u32::from(error.raw_os_error() == Some(libc::EINVAL));
                expect("q", listed(fixture, "q")?, &[])?;
                expect("p/a", listed(fixture, "p/a")?, &["b"])?;
                move_back(&path(1, "p/a/b"), &path(1, "q/b"))?;
            }
            _ => return Err(format!("exactly one must win: {one:?}, {two:?}")),
        }
    }
    Ok(format!(
        "won by node {won:?}, {loops} times the other got EINVAL"
    ))
}

#[test]
fn flags_and_links_across_owners() {
    let fixture = lab!();
    let outcome = flags(&fixture)
        .and_then(|()| links(&fixture))
        .map(|()| String::new());
    finish(&fixture, outcome);
}

fn flags(fixture: &Fixture) -> Outcome {
    make(fixture, 1, "left")?;
    make(fixture, 2, "right")?;
    make(fixture, 2, "left/dir")?;
    make(fixture, 1, "left/dir/below")?;
    text("file", fs::write(fixture.path(1, "right/file"), b"file"))?;
    let swap = |node, a: &str, b: &str| {
        rename_with(
            &fixture.path(node, a),
            &fixture.path(node, b),
            RENAME_EXCHANGE,
        )
    };
    text("exchange", swap(1, "left/dir", "right/file"))?;
    expect("left", listed(fixture, "left")?, &["dir"])?;
    for node in [1, 2] {
        let bytes = text("read", fs::read(fixture.path(node, "left/dir")))?;
        if bytes != b"file" {
            return Err(format!("node {node} reads {bytes:?}"));
        }
    }
    expect("right/file", listed(fixture, "right/file")?, &["below"])?;
    text("back", swap(2, "right/file", "left/dir"))?;
    expect("left/dir", listed(fixture, "left/dir")?, &["below"])?;
    // Two directories of which one lies below the other cannot change places.
    let errno = |result: Result<(), Error>| result.err().and_then(|e| e.raw_os_error());
    if errno(swap(2, "left", "left/dir/below")) != Some(libc::EINVAL) {
        return Err("a directory changed places with one below it".to_owned());
    }
    let keep = |node, a: &str, b: &str| {
        rename_with(
            &fixture.path(node, a),
            &fixture.path(node, b),
            RENAME_NOREPLACE,
        )
    };
    if errno(keep(2, "left/dir", "right/file")) != Some(libc::EEXIST) {
        return Err("NOREPLACE replaced a name".to_owned());
    }
    text("no replace", keep(2, "left/dir", "right/dir"))?;
    expect("right", listed(fixture, "right")?, &["dir", "file"])?;
    expect("left", listed(fixture, "left")?, &[])
}

/// The kernel takes a name's time-out along when the name moves to another directory: it may be one that other nodes change. (Mostly a token comes
/// with the answer and takes that back when it goes; what is left where none came is shown by the simulator and `client::renames`.)
#[test]
fn what_moves_to_a_shared_directory_is_not_believed_there() {
    let fixture = lab!();
    let outcome = published(&fixture);
    finish(&fixture, outcome);
}

fn published(fixture: &Fixture) -> Result<String, String> {
    make(fixture, 1, "own")?;
    make(fixture, 2, "shared")?;
    let of = |node: usize, path: &str| fixture.path(node, path);
    let is_there = |node, path: &str| of(node, path).symlink_metadata().is_ok();
    for round in 0..40 {
        // Both nodes change it, so that its names are nobody's to keep.
        for node in [1, 2] {
            let path = of(node, &format!("shared/by{node}"));
            text("write", fs::write(&path, b""))?;
            text("remove", fs::remove_file(&path))?;
        }
        let [new, public, taken] = [
            format!("own/new{round}"),
            format!("shared/public{round}"),
            format!("shared/taken{round}"),
        ];
        text("new", fs::write(of(1, &new), new.as_bytes()))?;
        if !is_there(1, &new) {
            return Err(format!("{new} is not there"));
        }
        let exchanges = round % 2 == 1;
        if exchanges {
            text("public", fs::write(of(2, &public), public.as_bytes()))?;
            let swapped = rename_with(&of(1, &public), &of(1, &new), RENAME_EXCHANGE);
            text("exchange", swapped)?;
        } else {
            text("publish", fs::rename(of(1, &new), of(1, &public)))?;
        }
        text("take", fs::rename(of(2, &public), of(2, &taken)))?;
        if is_there(1, &public) {
            let how = if exchanges { "exchanged" } else { "moved" };
            return Err(format!("{public}, {how} by node 1, is there still"));
        }
        let bytes = text("read", fs::read(of(1, &taken)))?;
        if bytes != new.as_bytes() {
            return Err(format!("{taken} is {bytes:?}"));
        }
        if exchanges {
            text("back", fs::remove_file(of(1, &new)))?;
        }
        text("clean", fs::remove_file(of(2, &taken)))?;
    }
    Ok("40 names".to_owned())
}

fn links(fixture: &Fixture) -> Outcome {
    make(fixture, 1, "near")?;
    make(fixture, 2, "far")?;
    text("file", fs::write(fixture.path(1, "near/file"), b"1"))?;
    let (from, to) = (fixture.path(2, "near/file"), fixture.path(2, "far/link"));
    text("link", fs::hard_link(from, to))?;
    let count = |path: &str, expected: u64| -> Outcome {
        for node in [1, 2] {
            let attr = text(path, fs::metadata(fixture.path(node, path)))?;
            if attr.nlink() != expected {
                return Err(format!("node {node}: {path} has {} names", attr.nlink()));
            }
        }
        Ok(())
    };
    count("near/file", 2)?;
    text("write", fs::write(fixture.path(2, "far/link"), b"22"))?;
    let bytes = text("read", fs::read(fixture.path(1, "near/file")))?;
    if bytes != b"22" {
        return Err(format!("node 1 reads {bytes:?} through its name"));
    }
    text("unlink", fs::remove_file(fixture.path(1, "near/file")))?;
    count("far/link", 1)
}

#[test]
fn rmdir_against_create() {
    let fixture = lab!();
    let outcome = removals(&fixture);
    finish(&fixture, outcome);
}

fn removals(fixture: &Fixture) -> Result<String, String> {
    make(fixture, 1, "home")?;
    let (mut removed, mut created, begin) = (0, 0, Instant::now());
    while begin.elapsed() < TIME {
        // It belongs to node 2, its name to node 1; who removes it and who creates in it take turns.
        make(fixture, 2, "home/d")?;
        let (remover, creator) = if (removed + created) % 2 == 0 {
            (1, 2)
        } else {
            (2, 1)
        };
        let rmdir = || fs::remove_dir(fixture.path(remover, "home/d"));
        let create = || File::create_new(fixture.path(creator, "home/d/x")).map(drop);
        let (one, two) = if remover == 1 {
            both(fixture, "rmdir against create", rmdir, create)
        } else {
            let (two, one) = both(fixture, "create against rmdir", create, rmdir);
            (one, two)
        };
        match (one, two) {
            (Ok(()), Err(error)) if error.kind() == ErrorKind::NotFound => {
                removed += 1;
                expect("home", listed(fixture, "home")?, &[])?;
            }
            (Err(error), Ok(())) if error.kind() == ErrorKind::DirectoryNotEmpty => {
                created += 1;
                expect("home/d", listed(fixture, "home/d")?, &["x"])?;
                text("unlink", fs::remove_file(fixture.path(remover, "home/d/x")))?;
                text("rmdir", fs::remove_dir(fixture.path(creator, "home/d")))?;
            }
            ends => return Err(format!("rmdir and create ended in {ends:?}")),
        }
    }
    Ok(format!(
        "{removed} times removed, {created} times created first"
    ))
}

/// kill -9 of the node that owns half of the directories, and takes the token in turn with the other, while
/// directories move: afterwards each is there once.
#[test]
fn moves_survive_a_killed_node() {
    let fixture = lab!();
    let outcome = killed(&fixture);
    finish(&fixture, outcome);
}

/// A move waits while its owner is away: killed, started, its grace period.
const AWAY_LIMIT: Duration = Duration::from_secs(40);

fn killed(fixture: &Fixture) -> Result<String, String> {
    const COUNT: usize = 4;
    make(fixture, 1, "p")?;
    make(fixture, 2, "q")?;
    for index in 0..COUNT {
        make(fixture, 1 + index % 2, &format!("p/d{index}"))?;
    }
    let sync = |node| {
        text(
            "sync",
            File::open(fixture.mount(node)).and_then(|d| d.sync_all()),
        )
    };
    sync(1)?;
    sync(2)?;
    let mut moves = 0;
    for victim in [2, 1] {
        let survivor = 3 - victim;
        let stop = AtomicBool::new(false);
        let done = std::thread::scope(|scope| {
            let mover = |node: usize| {
                let (stop, fixture, slot) = (&stop, &fixture, fixture.slot());
                move || {
                    let mut done = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        for index in 0..COUNT {
                            let (p, q) = (format!("p/d{index}"), format!("q/d{index}"));
                            let (from, to) = if done.is_multiple_of(2) {
                                (p, q)
                            } else {
                                (q, p)
                            };
                            // Where it is now, the other node decides as well; the dead mount answers errors.
                            let _ = slot.run_within(AWAY_LIMIT, "a move", || {
                                fs::rename(fixture.path(node, &from), fixture.path(node, &to))
                            });
                        }
                        done += 1;
                    }
                    done
                }
            };
            let (one, two) = (scope.spawn(mover(1)), scope.spawn(mover(2)));
            std::thread::sleep(Duration::from_millis(700));
            let name = format!("n{victim}");
            let killed = fixture.lab(&["kill", &name]);
            let started = fixture.lab(&["start", &name]);
            stop.store(true, Ordering::Relaxed);
            let count = one.join().expect("no panic") + two.join().expect("no panic");
            killed.and(started).map(|_| count)
        })?;
        moves += done;
        whole(fixture, COUNT)?;
        // Nobody keeps the token: both can move again.
        for node in [survivor, victim] {
            make(fixture, survivor, "p/free")?;
            let (from, to) = (fixture.path(node, "p/free"), fixture.path(node, "q/free"));
            text("a move afterwards", fs::rename(from, to))?;
            text("rmdir", fs::remove_dir(fixture.path(victim, "q/free")))?;
        }
    }
    Ok(format!("{moves} rounds of moves"))
}

/// Every directory has one name, and both nodes agree.
fn whole(fixture: &Fixture, count: usize) -> Outcome {
    let mut names = listed(fixture, "p")?;
    names.extend(listed(fixture, "q")?);
    names.sort();
    let expected: Vec<String> = (0..count).map(|index| format!("d{index}")).collect();
    if names != expected {
        return Err(format!("{names:?} are left of {expected:?}"));
    }
    for name in names {
        let found = ["p", "q"].map(|parent| Path::new(parent).join(&name));
        let found = found
            .iter()
            .find(|p| fixture.path(1, &p.to_string_lossy()).exists());
        let Some(path) = found else {
            return Err(format!("{name} is listed and not found"));
        };
        expect(&name, listed(fixture, &path.to_string_lossy())?, &[])?;
    }
    Ok(())
}

/// One node polls for a file, by its name or by listings, as scripts do; the other one makes it, and others, in the meantime.
#[test]
fn who_polls_a_directory_keeps_nobody_out() {
    let fixture = lab!();
    let outcome = polls(&fixture);
    finish(&fixture, outcome);
}

fn polls(fixture: &Fixture) -> Result<String, String> {
    make(fixture, 1, "polled")?;
    text("file", fs::write(fixture.path(1, "polled/first"), b""))?;
    let is_over = AtomicBool::new(false);
    let slot = fixture.slot();
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        let polls = scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                let _ = fs::symlink_metadata(fixture.path(1, "polled/flag"));
                let _ = fs::symlink_metadata(fixture.path(1, "polled"));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let mut act = || {
            // Names are believed for as long as they ever are.
            std::thread::sleep(Duration::from_secs(3));
            for round in 0..8 {
                let begin = Instant::now();
                let name = fixture.path(2, &format!("polled/new{round}"));
                let made = slot.run_within(POLLED_MAX, "make", || fs::write(name, b""));
                text("make", made)?;
                longest = longest.max(begin.elapsed());
                std::thread::sleep(Duration::from_millis(700));
            }
            Ok(())
        };
        let done = act();
        is_over.store(true, Ordering::SeqCst);
        polls.join().expect("no panic");
        done
    })
    .map(|()| format!("waited {longest:?}"))
}
