//! What belongs to a user stays his, whatever the kernel of another node believes of its owner: the kernel decides by what it was shown last, and
//! the owner node asks once more.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{
    MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, fchown,
};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::calls::{as_user, with_capabilities};
use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome = std::result::Result<String, String>;

const ALICE: u32 = 1000;
const BOB: u32 = 1001;
/// Bits of sets of capabilities.
const CAP_CHOWN: u32 = 1 << 0;
const CAP_FOWNER: u32 = 1 << 3;
const TIME: Duration = Duration::from_millis(2500);
/// The longest race may go on for twenty times that.
const LIMIT: Duration = Duration::from_secs(120);

fn is_refused<T: std::fmt::Debug>(
    what: &str,
    result: &Result<T>,
) -> std::result::Result<(), String> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => Ok(()),
        other => Err(format!("{what}: {other:?} instead of EPERM")),
    }
}

fn text<T>(what: &str, result: Result<T>) -> std::result::Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// A directory that all may write.
fn open_directory(path: &Path, permissions: u32) -> Result<()> {
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(permissions))
}

/// A new file that nobody else may read.
fn make_own(path: &Path) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map(drop)
}

/// Users reach the mounts.
fn let_in(fixture: &Fixture) {
    for node in [1, 2] {
        let above: Vec<_> = fixture
            .mount(node)
            .ancestors()
            .skip(1)
            .take(2)
            .map(Path::to_owned)
            .collect();
        for directory in above {
            fs::set_permissions(directory, Permissions::from_mode(0o711)).unwrap();
        }
    }
}

/// What hangs is said, and ended.
fn check(fixture: &Fixture, steps: impl FnOnce(&Fixture) -> Outcome) {
    let_in(fixture);
    let outcome = fixture
        .slot()
        .run_within(LIMIT, "rights", || steps(fixture));
    finish(fixture, outcome);
}

#[test]
fn who_has_lost_a_file_gives_it_no_rights() {
    check(&lab!(), former);
}

fn former(fixture: &Fixture) -> Outcome {
    let (one, two) = (fixture.path(1, "program"), fixture.path(2, "program"));
    text("made", fs::write(&one, "x"))?;
    for round in 0..3 {
        text("given", chown(&one, Some(ALICE), Some(ALICE)))?;
        text(
            "bits",
            fs::set_permissions(&one, Permissions::from_mode(0o755)),
        )?;
        let open = || -> Result<File> {
            let file = File::open(&two)?;
            file.metadata().map(|_| file)
        };
        let file = text("opened by its owner", as_user(ALICE, open))?;
        text("taken", chown(&one, Some(0), Some(0)))?;
        // The kernel of node 2 was told that its attributes are old, and asks only for a path.
        let bits = || file.set_permissions(Permissions::from_mode(0o4755));
        is_refused("fchmod", &as_user(ALICE, bits))?;
        is_refused(
            "fchown",
            &as_user(ALICE, || fchown(&file, Some(ALICE), None)),
        )?;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        is_refused("futimens", &as_user(ALICE, || file.set_modified(time)))?;
        let found = text("stat", fs::metadata(&one))?;
        let owner = (found.uid(), found.gid(), found.mode() & 0o7777);
        if owner != (0, 0, 0o755) || found.mtime() == 5 {
            return Err(format!("round {round}: the file is {owner:?}"));
        }
        // Who may act for everybody may, and who may give files away does that.
        let bits = || file.set_permissions(Permissions::from_mode(0o711));
        is_refused(
            "with CAP_CHOWN",
            &with_capabilities((ALICE, CAP_CHOWN), bits),
        )?;
        text(
            "with CAP_FOWNER",
            with_capabilities((ALICE, CAP_FOWNER), bits),
        )?;
        let give = || fchown(&file, Some(BOB), None);
        text(
            "with CAP_CHOWN",
            with_capabilities((ALICE, CAP_CHOWN), give),
        )?;
        let found = text("stat", fs::metadata(&one))?;
        let found = (found.uid(), found.mode() & 0o7777);
        if found != (BOB, 0o711) {
            return Err(format!("round {round}: the file is {found:?}"));
        }
    }
    Ok("refused twelve times, and six times not".to_owned())
}

#[test]
fn who_creates_what_is_made_meanwhile_gets_no_rights_by_it() {
    check(&lab!(), made_meanwhile);
}

fn made_meanwhile(fixture: &Fixture) -> Outcome {
    text("directory", open_directory(&fixture.path(1, "d"), 0o777))?;
    let (one, two) = (fixture.path(1, "d/x"), fixture.path(2, "d/x"));
    let (mut refused, mut own, begin) = (0, 0, Instant::now());
    while begin.elapsed() < TIME || refused == 0 {
        if begin.elapsed() > 20 * TIME {
            return Err("bob's file was never there first".to_owned());
        }
        let truncates = (refused + own) % 2 == 0;
        let bob = || make_own(&one);
        let alice = || {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(truncates)
                .mode(0o666);
            options.open(&two)?.metadata()
        };
        let (first, opened) = std::thread::scope(|scope| {
            let bob = scope.spawn(|| as_user(BOB, bob));
            let alice = as_user(ALICE, alice);
            (bob.join().expect("no panic"), alice)
        });
        match (&first, &opened) {
            (_, Ok(found)) if found.uid() == ALICE => own += 1,
            (Ok(()), Err(error)) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
            // It looked twice, and what it found had changed again; its next open finds what is there.
            (Ok(()), Err(error)) if error.raw_os_error() == Some(libc::ESTALE) => {}
            other => return Err(format!("bob and alice: {other:?}")),
        }
        text("removed", fs::remove_file(&one))?;
    }
    Ok(format!(
        "alice was refused {refused} times, and had her own {own} times"
    ))
}

#[test]
fn a_sticky_directory_keeps_what_is_made_while_a_rename_waits() {
    check(&lab!(), sticky);
}

fn sticky(fixture: &Fixture) -> Outcome {
    text("directory", open_directory(&fixture.path(1, "t"), 0o1777))?;
    let (mut refused, mut replaced) = (0, 0);
    let content = vec![7; 32 << 20];
    for round in 0..40 {
        let (from, to) = (fixture.path(2, "t/from"), fixture.path(2, "t/to"));
        let other = fixture.path(1, "t/to");
        text("written", as_user(ALICE, || fs::write(&from, &content)))?;
        let (renamed, made) = std::thread::scope(|scope| {
            let alice = scope.spawn(|| as_user(ALICE, || fs::rename(&from, &to)));
            // What is dirty goes to its disks before the name moves: somewhere in there.
            std::thread::sleep(Duration::from_micros(300 * (round % 10)));
            let made = as_user(BOB, || make_own(&other));
            (alice.join().expect("no panic"), made)
        });
        let owner = text("stat", fs::metadata(&other))?.uid();
        match (&renamed, &made, owner) {
            (Err(error), Ok(()), BOB) if error.raw_os_error() == Some(libc::EPERM) => refused += 1,
            (Ok(()), Err(error), ALICE) if error.kind() == ErrorKind::AlreadyExists => {
                replaced += 1
            }
            other => {
                return Err(format!(
                    "round {round}: alice, bob, and whose it is: {other:?}"
                ));
            }
        }
        text("removed", fs::remove_file(&other))?;
        if let Err(error) = fs::remove_file(&from)
            && error.kind() != ErrorKind::NotFound
        {
            return text("removed", Err(error));
        }
        if refused >= 3 && round >= 12 {
            break;
        }
    }
    match refused {
        0 => Err(Error::other("bob's file was never there first").to_string()),
        _ => Ok(format!(
            "refused {refused} times, before bob {replaced} times"
        )),
    }
}

/// Directories go to shards of both nodes in turn.
#[test]
fn directories_in_a_sticky_directory_are_their_owners_on_whichever_node() {
    check(&lab!(), directories);
}

fn directories(fixture: &Fixture) -> Outcome {
    text("directory", open_directory(&fixture.path(1, "t"), 0o1777))?;
    for round in 0..24 {
        let (here, there) = (1 + round % 2, 2 - round % 2);
        let path = |node, name: &str| fixture.path(node, "t").join(name);
        for name in ["own", "new"] {
            text("made", as_user(ALICE, || fs::create_dir(path(here, name))))?;
        }
        text("made", as_user(BOB, || fs::create_dir(path(here, "other"))))?;
        // By the kernel, or by its owner.
        is_refused(
            "rmdir",
            &as_user(ALICE, || fs::remove_dir(path(there, "other"))),
        )?;
        let moved = as_user(ALICE, || {
            fs::rename(path(there, "own"), path(there, "other"))
        });
        is_refused("rename", &moved)?;
        text(
            "renamed",
            as_user(ALICE, || fs::rename(path(there, "own"), path(there, "new"))),
        )?;
        text(
            "removed",
            as_user(ALICE, || fs::remove_dir(path(here, "new"))),
        )?;
        // The kernel lets him, and the owner of the name is told that he may.
        let remove = || fs::remove_dir(path(there, "other"));
        text(
            "with CAP_FOWNER",
            with_capabilities((ALICE, CAP_FOWNER), remove),
        )?;
        let left = text("listed", fs::read_dir(path(here, "")))?.count();
        if left > 0 {
            return Err(format!("round {round}: {left} names are left"));
        }
    }
    Ok("24 rounds".to_owned())
}
