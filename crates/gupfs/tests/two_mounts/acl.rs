//! Access control lists: what one node sets holds on the other at once, is inherited, and outlives crashes.

use std::fs::{self, File, Permissions};
use std::io::Error;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::calls::{as_user, get_xattr, remove_xattr, set_xattr};
use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome<T = ()> = Result<T, String>;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
/// Whom the lists name, and a group that nobody is in.
const USER: u32 = 1000;
const GROUP: u32 = 5000;

fn text<T>(what: &str, result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// Owner, the user, owning group, mask, others.
fn list(owner: u8, user: u8, group: u8, mask: u8, others: u8) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0];
    let none = u32::MAX;
    let entries = [
        (1, owner, none),
        (2, user, USER),
        (4, group, none),
        (16, mask, none),
        (32, others, none),
    ];
    for (tag, rights, id) in entries {
        out.extend([tag, 0, rights, 0]);
        out.extend(id.to_le_bytes());
    }
    out
}

fn mode(path: &Path) -> Outcome<u32> {
    Ok(text("stat", fs::metadata(path))?.mode() & 0o7777)
}

/// The list of that name; `None`: there is none.
fn acl(path: &Path, name: &str) -> Outcome<Option<Vec<u8>>> {
    match get_xattr(path, name) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.raw_os_error() == Some(libc::ENODATA) => Ok(None),
        Err(error) => Err(format!("{name} of {}: {error}", path.display())),
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, expected: &T) -> Outcome {
    if seen == expected {
        return Ok(());
    }
    Err(format!("{what}: {seen:?}, not {expected:?}"))
}

/// Whether the user of the lists, who is no owner and in no group of it, may read it.
fn may_read(path: &Path, user: u32) -> bool {
    let opened = as_user(user, || File::open(path).map(drop));
    match opened {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => false,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Both nodes use the list all the time, so that both kernels have it.
fn changes(fixture: &Fixture, maker: usize) -> Outcome {
    let name = format!("file{maker}");
    let [here, there] = [maker, 3 - maker].map(|node| fixture.path(node, &name));
    text("write", fs::write(&here, b"bytes"))?;
    text("chown", chown(&here, None, Some(GROUP)))?;
    text(
        "chmod",
        fs::set_permissions(&here, Permissions::from_mode(0o640)),
    )?;
    for round in 0..40_u8 {
        let (setter, other) = match round % 2 {
            0 => (&here, &there),
            _ => (&there, &here),
        };
        let user = [4, 0, 6, 2][usize::from(round % 4)];
        let wanted = list(6, user, 4, 6, 0);
        text("set", set_xattr(setter, ACCESS, &wanted))?;
        for path in [other, setter] {
            expect("list", &acl(path, ACCESS)?, &Some(wanted.clone()))?;
            expect("mode", &mode(path)?, &0o660)?;
            expect("the user", &may_read(path, USER), &(user & 4 != 0))?;
            expect("another", &may_read(path, USER + 1), &false)?;
        }
        // The mask takes it away again.
        text(
            "chmod",
            fs::set_permissions(other, Permissions::from_mode(0o602)),
        )?;
        for path in [setter, other] {
            expect("masked", &acl(path, ACCESS)?, &Some(list(6, user, 4, 0, 2)))?;
            expect("masked user", &may_read(path, USER), &false)?;
        }
        if round % 5 == 4 {
            text("remove", remove_xattr(setter, ACCESS))?;
            for path in [other, setter] {
                expect("removed", &acl(path, ACCESS)?, &None)?;
                expect("mode", &mode(path)?, &0o602)?;
            }
        }
    }
    // A list that says what a mode can say is not kept.
    let mut short = list(6, 0, 4, 0, 4);
    short.drain(28..36);
    short.drain(12..20);
    text("short", set_xattr(&there, ACCESS, &short))?;
    expect("short", &acl(&here, ACCESS)?, &None)?;
    expect("its mode", &mode(&here)?, &0o644)?;
    let refused = set_xattr(&here, ACCESS, b"rubbish, no list").err();
    let errno = refused.and_then(|e| e.raw_os_error());
    expect("rubbish", &errno, &Some(libc::EOPNOTSUPP))?;
    let refused = set_xattr(&here, DEFAULT, &list(7, 7, 7, 7, 7)).err();
    let errno = refused.and_then(|e| e.raw_os_error());
    expect("default of a file", &errno, &Some(libc::EACCES))
}

/// Makes a file, a directory and a FIFO in `directory` under a umask, by another process: a umask is a process's.
fn make_under(umask: &str, directory: &Path) -> Outcome {
    let script = format!("umask {umask}; : > file; mkdir sub; mkfifo fifo; ln -s x link");
    let mut command = Command::new("timeout");
    command.args(["-k", "2", "9", "sh", "-ec", &script]);
    let status = command.current_dir(directory).stdin(Stdio::null()).status();
    match text("sh", status)?.success() {
        true => Ok(()),
        false => Err(format!("making in {} failed", directory.display())),
    }
}

/// A directory of `maker`'s, whose default list `setter` sets; what `user` makes in it both see.
fn inheritance(fixture: &Fixture, [maker, setter, user]: [usize; 3]) -> Outcome {
    let name = format!("d{maker}{setter}{user}");
    text("mkdir", fs::create_dir(fixture.path(maker, &name)))?;
    let path = |node, below: &str| fixture.path(node, &name).join(below);
    make_under("027", &fixture.path(user, &name))?;
    for (below, expected) in [("file", 0o640), ("sub", 0o750), ("fifo", 0o640)] {
        expect(below, &mode(&path(setter, below))?, &expected)?;
        expect(below, &acl(&path(setter, below), ACCESS)?, &None)?;
        let gone = match below {
            "sub" => fs::remove_dir(path(setter, below)),
            _ => fs::remove_file(path(setter, below)),
        };
        text("remove", gone)?;
    }
    text("remove", fs::remove_file(path(setter, "link")))?;
    let default = list(7, 6, 5, 7, 4);
    text(
        "default",
        set_xattr(&fixture.path(setter, &name), DEFAULT, &default),
    )?;
    make_under("027", &fixture.path(user, &name))?;
    for node in [1, 2] {
        let file = path(node, "file");
        expect("file", &mode(&file)?, &0o664)?;
        expect("file", &acl(&file, ACCESS)?, &Some(list(6, 6, 5, 6, 4)))?;
        expect(
            "fifo",
            &acl(&path(node, "fifo"), ACCESS)?,
            &Some(list(6, 6, 5, 6, 4)),
        )?;
        let sub = path(node, "sub");
        expect("sub", &mode(&sub)?, &0o774)?;
        expect("sub", &acl(&sub, ACCESS)?, &Some(list(7, 6, 5, 7, 4)))?;
        expect("sub", &acl(&sub, DEFAULT)?, &Some(default.clone()))?;
        let link = text("lstat", fs::symlink_metadata(path(node, "link")))?;
        expect("link", &(link.mode() & 0o777), &0o777)?;
    }
    Ok(())
}

fn all(fixture: &Fixture) -> Outcome<String> {
    for node in [1, 2] {
        let mount = fixture.mount(node);
        // The user must get there: the mount, the node's directory, the lab's.
        for place in mount.ancestors().take(3) {
            let open = Permissions::from_mode(0o755);
            text("chmod", fs::set_permissions(place, open))?;
        }
    }
    let slot = fixture.slot();
    for maker in [1, 2] {
        slot.run("changes", || changes(fixture, maker))?;
    }
    for case in 0..8_usize {
        let nodes = [1 + case % 2, 1 + case / 2 % 2, 1 + case / 4];
        slot.run(&format!("{nodes:?}"), || inheritance(fixture, nodes))
            .map_err(|fault| format!("{nodes:?}: {fault}"))?;
    }
    Ok(String::new())
}

#[test]
fn lists_hold_on_both_nodes() {
    let fixture = lab!();
    finish(&fixture, all(&fixture));
}

#[test]
fn lists_hold_over_the_ring() {
    let skipped = crate::fixture::reason_to_skip();
    if let Some(reason) = skipped.or_else(crate::fixture::reason_without_ring) {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = Fixture::with(&["--transport", "ring"]);
    finish(&fixture, all(&fixture));
}

/// Files without a list are many, and `ls -l` asks each: that costs no message where the attributes are cached.
fn asking(fixture: &Fixture) -> Outcome<String> {
    const COUNT: usize = 100;
    text("mkdir", fs::create_dir(fixture.path(1, "d")))?;
    for file in 0..COUNT {
        let path = fixture.path(1, &format!("d/{file}"));
        text("write", fs::write(path, b"x"))?;
    }
    let path = |file: usize| fixture.path(2, &format!("d/{file}"));
    for file in 0..COUNT {
        text("stat", fs::metadata(path(file)))?;
    }
    let questions = || {
        fixture.counters(2)["sent_question"]
            .as_u64()
            .expect("a counter")
    };
    let before = questions();
    for file in 0..COUNT {
        expect("none", &acl(&path(file), ACCESS)?, &None)?;
    }
    let asked = questions() - before;
    if asked > 10 {
        return Err(format!(
            "{asked} questions for {COUNT} lists that are not there"
        ));
    }
    Ok(format!("{asked} questions"))
}

#[test]
fn lists_that_are_not_there_are_not_asked_for() {
    let fixture = lab!();
    finish(&fixture, asking(&fixture));
}

/// Lists that were inherited and set, after a crash of both nodes.
fn crash(fixture: &Fixture) -> Outcome {
    for maker in [1, 2] {
        let name = format!("d{maker}");
        text("mkdir", fs::create_dir(fixture.path(maker, &name)))?;
        let default = list(7, 6, 5, 7, 4);
        text(
            "set",
            set_xattr(&fixture.path(3 - maker, &name), DEFAULT, &default),
        )?;
        make_under("077", &fixture.path(3 - maker, &name))?;
        let directory = text("open", File::open(fixture.path(3 - maker, &name)))?;
        text("fsync", directory.sync_all())?;
    }
    fixture.restart()?;
    for (maker, node) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let path = |below: &str| fixture.path(node, &format!("d{maker}")).join(below);
        expect(
            "file",
            &acl(&path("file"), ACCESS)?,
            &Some(list(6, 6, 5, 6, 4)),
        )?;
        expect(
            "sub",
            &acl(&path("sub"), DEFAULT)?,
            &Some(list(7, 6, 5, 7, 4)),
        )?;
        expect("mode", &mode(&path("sub"))?, &0o774)?;
    }
    Ok(())
}

#[test]
fn lists_outlive_a_crash() {
    let fixture = lab!();
    let outcome = crash(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}
