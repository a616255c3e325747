//! POSIX's smaller promises, kept for who looks through the other mount, too.

use std::fs;
use std::io::Error;
use std::os::unix::fs::MetadataExt as _;

use crate::calls::{RENAME_EXCHANGE, rename_with};
use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome = Result<(), String>;

fn text<T>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// ctime of a path as one node shows it, in nanoseconds.
fn changed(fixture: &Fixture, node: usize, path: &str) -> Result<i64, String> {
    let found = text(path, fs::symlink_metadata(fixture.path(node, path)))?;
    Ok(found.ctime() * 1_000_000_000 + found.ctime_nsec())
}

/// Both nodes hold the attributes of what moves, and show its new ctime afterwards: also the node that moved it, from
/// which nothing was revoked.
#[test]
fn what_a_rename_moves_has_a_new_ctime() {
    let fixture = lab!();
    let outcome = renames(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

fn renames(fixture: &Fixture) -> Outcome {
    for node in [1, 2] {
        let directory = format!("d{node}");
        text("mkdir", fs::create_dir(fixture.path(node, &directory)))?;
    }
    let names = ["d1/file", "d2/file", "d1/dir", "d2/dir"];
    text("file", fs::write(fixture.path(1, names[0]), b"1"))?;
    text("file", fs::write(fixture.path(2, names[1]), b"2"))?;
    text("dir", fs::create_dir(fixture.path(1, names[2])))?;
    text("dir", fs::create_dir(fixture.path(2, names[3])))?;
    let slot = fixture.slot();
    for round in 0..8 {
        let (one, two) = (names[round % 4], names[(round + 1 + round / 4) % 4]);
        let mut before = 0;
        for (node, name) in [(1, one), (2, one), (1, two), (2, two)] {
            before = changed(fixture, node, name)?.max(before);
        }
        let path = |name| fixture.path(1 + round % 2, name);
        let moved = slot.run("exchange", || {
            rename_with(&path(one), &path(two), RENAME_EXCHANGE)
        });
        text("exchange", moved)?;
        let moved = slot.run("rename", || fs::rename(path(one), path("moved")));
        text("rename", moved)?;
        for name in ["moved", two] {
            let seen = [changed(fixture, 1, name)?, changed(fixture, 2, name)?];
            if seen[0] != seen[1] || seen[0] <= before {
                return Err(format!("round {round}, {name}: {seen:?} after {before}"));
            }
        }
        text("back", fs::rename(path("moved"), path(one)))?;
    }
    Ok(())
}
