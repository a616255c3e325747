//! copy_file_range: what it sees of the other node, and copies in opposite directions.

use std::fs::{self, File, OpenOptions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use crate::fixture::Fixture;
use crate::{finish, lab};

type Outcome = Result<(), String>;

fn text<T>(what: &str, result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

fn open(path: &Path) -> Result<File, Error> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// One call: bytes copied.
fn copy_once(from: (&File, u64), to: (&File, u64), size: usize) -> Result<usize, Error> {
    let (mut input, mut output) = (from.1, to.1);
    let (source, target) = (from.0, to.0);
    let copied =
        rustix::fs::copy_file_range(source, Some(&mut input), target, Some(&mut output), size);
    Ok(copied?)
}

/// Calls until all is copied or the file ends.
fn copy(from: (&File, u64), to: (&File, u64), size: usize) -> Result<usize, Error> {
    let mut done = 0;
    while done < size {
        let offset = done as u64;
        let (from, to) = ((from.0, from.1 + offset), (to.0, to.1 + offset));
        match copy_once(from, to, size - done)? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

fn pattern(round: u8, size: usize) -> Vec<u8> {
    let byte = |at: usize| u8::try_from(at / 7 % 251).expect("below 251");
    (0..size).map(|at| byte(at) ^ round).collect()
}

#[test]
fn a_copy_sees_what_the_other_node_has_written_and_cut() {
    let fixture = lab!();
    let outcome = sees(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

fn sees(fixture: &Fixture) -> Outcome {
    const SIZE: usize = 3 << 20;
    let slot = fixture.slot();
    text("a", fs::write(fixture.path(1, "a"), pattern(0, SIZE)))?;
    text("b", fs::write(fixture.path(2, "b"), b""))?;
    let [a, b] = ["a", "b"].map(|name| open(&fixture.path(1, name)));
    let (a, b) = (text("open a", a)?, text("open b", b)?);
    let far = text("open there", open(&fixture.path(2, "a")))?;
    for round in 1..6 {
        let bytes = pattern(round, SIZE);
        text("write there", far.write_all_at(&bytes, 0))?;
        // Borders of neither pages nor blocks.
        let (from, to) = (usize::from(round) * 1000, u64::from(round) * 77_777);
        let copied = slot.run("copy", || copy((&a, from as u64), (&b, to), SIZE - from));
        let copied = text("copy", copied)?;
        let mut seen = vec![0; SIZE - from];
        let seen_there = text("open b", File::open(fixture.path(2, "b")))?;
        text("read there", seen_there.read_exact_at(&mut seen, to))?;
        if copied != SIZE - from || seen != bytes[from..] {
            return Err(format!(
                "round {round}: {copied} bytes, and others than there"
            ));
        }
    }
    // The kernel here still takes the file to be as long as it was.
    text("cut", far.set_len(5000))?;
    let copied = slot.run("copy", || copy((&a, 0), (&b, 0), SIZE));
    if text("copy", copied)? != 5000 {
        return Err("bytes behind the new end were copied".to_owned());
    }
    // Within one file.
    let copied = slot.run("copy", || copy((&a, 0), (&a, 1000), 1000));
    let mut seen = vec![0; 2000];
    text("read", far.read_exact_at(&mut seen, 0))?;
    if text("copy", copied)? != 1000 || seen[..1000] != seen[1000..] {
        return Err("a copy within one file".to_owned());
    }
    match slot.run("copy", || copy_once((&a, 0), (&a, 500), 1000)) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
        other => Err(format!("a copy onto itself: {other:?}")),
    }
}

/// Each node copies between the same two files, in its own direction, and within them.
#[test]
fn copies_in_opposite_directions_end() {
    let fixture = lab!();
    let outcome = opposite(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

fn opposite(fixture: &Fixture) -> Outcome {
    const SIZE: usize = 2 << 20;
    /// What one call copies at the most.
    const PIECE: usize = 1 << 20;
    const ROUNDS: usize = 12;
    // No byte is the same in both.
    let kinds = [9, 9 ^ 0xff].map(|round| pattern(round, SIZE));
    for (node, name, bytes) in [(1, "a", &kinds[0]), (2, "b", &kinds[1])] {
        text("write", fs::write(fixture.path(node, name), bytes))?;
    }
    std::thread::scope(|scope| {
        let directions = [(1, "a", "b"), (1, "b", "a"), (2, "b", "a"), (2, "a", "b")];
        let threads = directions.map(|(node, from, to)| {
            scope.spawn(move || -> Outcome {
                let slot = fixture.slot();
                let from = text("open", open(&fixture.path(node, from)))?;
                let to = text("open", open(&fixture.path(node, to)))?;
                for round in 0..ROUNDS {
                    let limit = Duration::from_secs(60);
                    let copied =
                        slot.run_within(limit, "copy", || copy((&from, 0), (&to, 0), SIZE));
                    if text("copy", copied)? != SIZE {
                        return Err(format!("round {round}: not all was copied"));
                    }
                }
                Ok(())
            })
        });
        threads
            .into_iter()
            .try_for_each(|thread| match thread.join() {
                Ok(outcome) => outcome,
                Err(_) => Err("a thread panicked".to_owned()),
            })
    })?;
    // Each piece was read and written as a whole: it is of one file or of the other, and both nodes see the same.
    for name in ["a", "b"] {
        let seen = [1, 2].map(|node| fs::read(fixture.path(node, name)));
        let [seen, there] = seen.map(|bytes| text("read", bytes));
        let seen = seen?;
        if seen != there? || seen.len() != SIZE {
            return Err(format!("{name} is not the same on both nodes"));
        }
        for (at, piece) in seen.chunks(PIECE).enumerate() {
            let range = at * PIECE..at * PIECE + piece.len();
            if !kinds.iter().any(|kind| piece == &kind[range.clone()]) {
                return Err(format!("{name}: piece {at} has bytes of both, or others"));
            }
        }
    }
    Ok(())
}
