//! What is mounted inside a mount stays there, and who stands in a directory stays in it, whatever the other node changes (docs/decisions/0031).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome<T = ()> = Result<T, String>;

fn text<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Outcome<T> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// A tmpfs with a file `marker`, until it is dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn at(path: PathBuf) -> Outcome<Self> {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "inside"])
            .arg(&path)
            .status();
        let made = Self(path);
        if !text("mount", status)?.success() {
            return Err(format!("mount on {}", made.0.display()));
        }
        text("marker", fs::write(made.0.join("marker"), b"here"))?;
        Ok(made)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status();
    }
}

/// Whether it is still there when `change` has been made by the other node.
fn stays(what: &str, point: &Path, change: impl FnOnce() -> Outcome) -> Outcome {
    change()?;
    match fs::read(point.join("marker")) {
        Ok(bytes) if bytes == b"here" => Ok(()),
        outcome => Err(format!("{what}: {outcome:?} at {}", point.display())),
    }
}

fn all(fixture: &Fixture) -> Outcome<String> {
    let here = |path: &str| fixture.path(1, path);
    let there = |path: &str| fixture.path(2, path);
    text("make", fs::create_dir_all(here("keep/a/point")))?;
    text("make", fs::create_dir(here("other")))?;
    text("make", fs::create_dir(here("keep/c")))?;
    let tmpfs = Tmpfs::at(here("keep/a/point"))?;
    let point = here("keep/a/point");
    for round in 0..4 {
        // Long enough for names to be believed.
        for _ in 0..10 {
            for directory in ["keep", "keep/a", "other"] {
                text("list", fs::read_dir(here(directory)))?.for_each(drop);
            }
            std::thread::sleep(Duration::from_millis(60));
        }
        stays("a create elsewhere", &point, || {
            let path = there(&format!("other/{round}"));
            text("create", fs::write(path, b"x"))
        })?;
        stays("a listing", &point, || {
            text("list", fs::read_dir(there("keep/a")))?.for_each(drop);
            Ok(())
        })?;
        stays("a create beside it", &point, || {
            let path = there(&format!("keep/a/{round}"));
            text("create", fs::write(path, b"x"))
        })?;
        // What the other one has changed is seen at once all the same.
        for (from, to) in [("keep/c", "other/c"), ("other/c", "keep/c")] {
            text("stat", fs::metadata(here(from)))?;
            stays("a rename beside it", &point, || {
                text("rename", fs::rename(there(from), there(to)))
            })?;
            if fs::metadata(here(from)).is_ok() {
                return Err(format!("{from} is still there"));
            }
            text("stat", fs::metadata(here(to)))?;
        }
    }
    drop(tmpfs);
    if here("keep/a/point/marker").exists() {
        return Err("it was not mounted".to_owned());
    }
    Ok("it stays".to_owned())
}

#[test]
fn mounted_inside_stays() {
    let fixture = lab!();
    let outcome = all(&fixture);
    finish(&fixture, outcome);
}

/// getcwd(2) all the time, while the other node changes a directory that this one has looked at, and this one walks down to where it stands.
fn standing(fixture: &Fixture) -> Outcome<String> {
    let deep = fixture.path(1, "x/y/z");
    text("make", fs::create_dir_all(&deep))?;
    text("make", fs::create_dir(fixture.path(1, "other")))?;
    let script = "import os, sys
count = 0
while not os.path.exists(sys.argv[1]):
    for _ in range(1000):
        try:
            os.getcwd()
        except OSError as error:
            print(error)
        count += 1
print(count, 'times', file=sys.stderr)";
    let stop = fixture.path(1, "stop");
    let child = Command::new("python3")
        .args(["-c", script])
        .arg(&stop)
        .current_dir(&deep)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = text("python3", child)?;
    let begun = Instant::now();
    let mut round = 0;
    while begun.elapsed() < Duration::from_secs(4) {
        round += 1;
        let path = fixture.path(2, &format!("other/{}", round % 50));
        text("change", fs::write(path, b"x"))?;
        for _ in 0..20 {
            text("list", fs::read_dir(fixture.path(1, "other")))?.for_each(drop);
            text("walk", fs::metadata(&deep))?;
        }
    }
    text("stop", fs::write(&stop, b""))?;
    let output = text("python3", child.wait_with_output())?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.is_empty() {
        true => Ok(String::from_utf8_lossy(&output.stderr).into_owned()),
        false => Err(said.lines().take(3).collect::<Vec<_>>().join("; ")),
    }
}

#[test]
fn who_stands_in_a_directory_is_in_it() {
    let fixture = lab!();
    let outcome = standing(&fixture);
    finish(&fixture, outcome);
}
