//! A listing that goes on after a change by either node shows what is there then, though the next names were asked for before it.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::fs::RawDir;

use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome<T = ()> = Result<T, String>;

const FILE_COUNT: usize = 200;
/// Of one getdents(2): the kernel asks for as much.
const BUFFER_SIZE: usize = 4096;
/// The next names have come by then, as a rule; where they have not the test shows less.
const UNTIL_THEY_ARE_HERE: Duration = Duration::from_millis(3);

fn text<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> Outcome<T> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// The names of `d` through `node`; `pause` is called with those that have come whenever the kernel will ask for more.
fn list(
    fixture: &Fixture,
    node: usize,
    mut pause: impl FnMut(&[String]) -> Outcome,
) -> Outcome<Vec<String>> {
    let directory = text("open", File::open(fixture.path(node, "d")))?;
    let mut buffer = vec![MaybeUninit::uninit(); BUFFER_SIZE];
    let mut entries = RawDir::new(&directory, &mut buffer);
    let mut names = Vec::new();
    loop {
        let Some(entry) = entries.next() else {
            return Ok(names);
        };
        let name = text("list", entry)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if !name.starts_with('.') {
            names.push(name);
        }
        if entries.is_buffer_empty() {
            std::thread::sleep(UNTIL_THEY_ARE_HERE);
            pause(&names)?;
        }
    }
}

/// The two names that come next are removed, and moved to a name that is known.
fn changed(fixture: &Fixture, reader: usize, changer: usize) -> Outcome<String> {
    let path = |name: &str| fixture.path(changer, &format!("d/{name}"));
    let order = list(fixture, reader, |_| Ok(()))?;
    let (mut gone, mut moved) = (Vec::new(), Vec::new());
    let names = list(fixture, reader, |names| {
        let next = order
            .iter()
            .skip_while(|name| !names.ends_with(&[(*name).clone()]));
        let next: Vec<_> = next.skip(1).take(2).collect();
        if let [first, second] = next[..] {
            text("remove", fs::remove_file(path(first)))?;
            text(
                "move",
                fs::rename(path(second), path(&format!("{second}.moved"))),
            )?;
            gone.extend([first.clone(), second.clone()]);
            moved.push(second.clone());
        }
        Ok(())
    })?;
    if gone.len() < 10 {
        return Err(format!("{} changes are too few: {order:?}", gone.len()));
    }
    if let Some(name) = gone.iter().find(|name| names.contains(name)) {
        return Err(format!(
            "node {reader} lists {name}, which {changer} took away"
        ));
    }
    let stayed = order.iter().filter(|name| !gone.contains(name));
    if let Some(name) = stayed.into_iter().find(|name| !names.contains(name)) {
        return Err(format!("node {reader} does not list {name}"));
    }
    for name in &gone {
        if moved.contains(name) {
            text(
                "back",
                fs::rename(path(&format!("{name}.moved")), path(name)),
            )?;
        } else {
            text("anew", File::create(path(name)))?;
        }
    }
    Ok(format!("{} taken away", gone.len()))
}

#[test]
fn what_is_taken_away_is_not_listed() {
    let fixture = lab!();
    let outcome = all(&fixture);
    finish(&fixture, outcome);
}

fn all(fixture: &Fixture) -> Outcome<String> {
    text("make", fs::create_dir(fixture.path(1, "d")))?;
    for number in 0..FILE_COUNT {
        let path = fixture.path(1, &format!("d/{number:03}"));
        text("create", File::create(path))?;
    }
    let mut said = Vec::new();
    for (reader, changer) in [(1, 1), (1, 2), (2, 2), (2, 1)] {
        for _ in 0..3 {
            said.push(changed(fixture, reader, changer)?);
        }
    }
    Ok(said.join(", "))
}
