//! `gupfs du`: what trees use, summed from what the owners of their directories list, without the kernel.
//!
//! Directories that are left to be listed are kept here, deepest first; the daemon is asked for a page of a few at a time.
//!
//! Invariants
//! - An inode with several names, and a directory that moves meanwhile, counts once in all paths of one command.
//! - A directory's row is printed when all below it has been counted.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use types::InodeId;

use crate::failure::{Failure, Result};
use crate::locate;
use crate::state::Place;
use crate::{control, size};

/// Directories that one question names: as many as a daemon takes.
const DIRECTORY_COUNT: usize = 64;
/// Directories that are listed in JSON.
const ROWS_SHOWN_MAX: usize = 65_536;

/// Inodes that cannot be read which are named.
const UNREADABLE_SHOWN_MAX: usize = 16;

/// How long one question is waited for: longer than the daemon waits for owners, 16 s at the most.
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of `gupfs du`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct DuArgs {
    /// Anything on a GUPFS file system; links are not followed.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// A line for each path only, none for directories below.
    #[arg(short, long)]
    summarize: bool,
    /// Sizes as people read them: 1.5 GiB.
    #[arg(short, long)]
    human_readable: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// What is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sum {
    size: u64,
    allocated: u64,
    inodes: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.size = self.size.saturating_add(other.size);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

/// A directory that is not counted to its end.
#[derive(Debug)]
struct Open {
    name: PathBuf,
    parent: Option<usize>,
    sum: Sum,
    /// Its own listing, and directories right below it.
    left: u64,
}

/// A page that is to be listed: the directory, behind which cookie, and where its sums go.
#[derive(Clone, Copy, Debug)]
struct Left {
    ino: u64,
    cookie: u64,
    open: usize,
}

/// One path's walk.
#[derive(Debug)]
struct Walk<'a> {
    /// Rows are for directories below, too.
    has_rows: bool,
    left: Vec<Left>,
    opens: Vec<Option<Open>>,
    free: Vec<usize>,
    /// What counts once: inodes with several names, and directories.
    seen: &'a mut HashSet<u64>,
    inodes: u64,
    unreadable: Unreadable,
}

/// What could not be read, and is in no sum, nor is what lies below it.
#[derive(Debug, Default)]
struct Unreadable {
    count: u64,
    /// The first of them.
    named: Vec<String>,
}

impl Unreadable {
    /// `path` is as near as is known: without rows, of what lies deeper only the end.
    fn note(&mut self, ino: u64, path: &Path) {
        self.count += 1;
        if self.named.len() < UNREADABLE_SHOWN_MAX {
            let ino = InodeId::from_raw(ino);
            self.named
                .push(format!("inode {ino} at {}", path.display()));
        }
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.named.extend(other.named);
        self.named.truncate(UNREADABLE_SHOWN_MAX);
    }

    /// The end of the command, when all else has been said.
    fn end(self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let (count, named) = (self.count, self.named.join(", "));
        Err(Failure::new(format!(
            "{count} inodes cannot be read, and neither they nor what is below them is counted: {named}"
        ))
        .help("`gupfs status` and the log of their owner say why; `gupfs fsck --online` finds what is damaged"))
    }
}

impl<'a> Walk<'a> {
    fn new(seen: &'a mut HashSet<u64>, has_rows: bool) -> Self {
        Self {
            has_rows,
            left: Vec::new(),
            opens: Vec::new(),
            free: Vec::new(),
            seen,
            inodes: 0,
            unreadable: Unreadable::default(),
        }
    }

    fn open(&mut self, name: PathBuf, parent: Option<usize>, sum: Sum) -> usize {
        let open = Some(Open {
            name,
            parent,
            sum,
            left: 0,
        });
        match self.free.pop() {
            Some(at) => {
                self.opens[at] = open;
                at
            }
            None => {
                self.opens.push(open);
                self.opens.len() - 1
            }
        }
    }

    fn at(&mut self, at: usize) -> &mut Open {
        self.opens[at].as_mut().expect("what is left names it")
    }

    fn list_later(&mut self, ino: u64, cookie: u64, open: usize) {
        self.at(open).left += 1;
        self.left.push(Left { ino, cookie, open });
    }

    /// The question about the next pages, and these.
    fn next(&mut self) -> Option<(String, Vec<Left>)> {
        let from = self.left.len().saturating_sub(DIRECTORY_COUNT);
        let some = self.left.split_off(from);
        if some.is_empty() {
            return None;
        }
        let names = if self.has_rows { " names" } else { "" };
        let places = some
            .iter()
            .map(|left| format!(" {}:{}", left.ino, left.cookie));
        Some((format!("usage{names}{}", places.collect::<String>()), some))
    }

    /// A page has been listed. `done` hears of each directory that is counted to its end, and what it uses.
    fn take(&mut self, of: Left, page: &Value, done: &mut dyn FnMut(PathBuf, Sum)) -> Option<()> {
        if page["unreadable"] == true {
            let path = self.path(of.open);
            self.unreadable.note(of.ino, &path);
        } else if page["gone"] != true {
            // A daemon of before fails as a whole instead.
            for row in page["unreadable"].as_array().into_iter().flatten() {
                let (ino, name) = (row[0].as_u64()?, from_hex(row[1].as_str()?)?);
                let path = self.path(of.open).join(name);
                self.unreadable.note(ino, &path);
            }
            let mut sum = Sum {
                size: page["size"].as_u64()?,
                allocated: page["allocated"].as_u64()?,
                inodes: page["inodes"].as_u64()?,
            };
            for row in page["links"].as_array()? {
                let (ino, own) = of_row(row)?;
                if self.seen.insert(ino) {
                    sum.add(own);
                }
            }
            let directories = page["directories"].as_array()?;
            // The nearest first: what is taken last is listed next.
            for row in directories.iter().rev() {
                let (ino, own) = of_row(row)?;
                if !self.seen.insert(ino) {
                    continue;
                }
                self.inodes += 1;
                if self.has_rows {
                    let name = from_hex(row[3].as_str()?)?;
                    let open = self.open(name, Some(of.open), own);
                    self.at(of.open).left += 1;
                    self.list_later(ino, 0, open);
                } else {
                    sum.add(own);
                    self.list_later(ino, 0, of.open);
                }
            }
            self.inodes += sum.inodes;
            self.at(of.open).sum.add(sum);
            if let Some(cookie) = page["next"].as_u64() {
                self.list_later(of.ino, cookie, of.open);
            }
        }
        self.end(of.open, done);
        Some(())
    }

    /// One less is left of a directory: when it was the last, its parent has one less.
    fn end(&mut self, open: usize, done: &mut dyn FnMut(PathBuf, Sum)) {
        let mut next = Some(open);
        while let Some(at) = next {
            let open = self.at(at);
            open.left -= 1;
            if open.left > 0 {
                return;
            }
            let path = self.path(at);
            let open = self.opens[at].take().expect("seen above");
            self.free.push(at);
            done(path, open.sum);
            if let Some(parent) = open.parent {
                self.at(parent).sum.add(open.sum);
            }
            next = open.parent;
        }
    }

    fn path(&mut self, at: usize) -> PathBuf {
        let mut names = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next {
            let open = self.at(at);
            names.push(open.name.clone());
            next = open.parent;
        }
        names.iter().rev().collect()
    }
}

/// `[inode, size, allocated, ...]`.
fn of_row(row: &Value) -> Option<(u64, Sum)> {
    let sum = Sum {
        size: row[1].as_u64()?,
        allocated: row[2].as_u64()?,
        inodes: 1,
    };
    Some((row[0].as_u64()?, sum))
}

fn from_hex(text: &str) -> Option<PathBuf> {
    let digit = |at: usize| {
        text.get(at..at + 2)
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    let bytes: Vec<u8> = (0..text.len())
        .step_by(2)
        .map(digit)
        .collect::<Option<_>>()?;
    Some(PathBuf::from(OsStr::from_bytes(&bytes)))
}

/// Prints what the paths use.
///
/// # Errors
/// A path that is not on a GUPFS file system, or an owner that does not answer: then nothing of that path is a total, and the other paths are
/// counted all the same. Inodes that cannot be read: then all else was counted.
pub fn run(args: &DuArgs, json: bool) -> Result<()> {
    let spinner = ProgressBar::new_spinner();
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    let (mut unreadable, mut failures) = (Unreadable::default(), Vec::new());
    if !json {
        say!("{}", line("ALLOCATED", "SIZE", "INODES", "PATH"));
    }
    for path in &args.paths {
        let mut rows = Vec::new();
        let mut print = |path: &Path, sum: Sum| match json {
            true if rows.len() < ROWS_SHOWN_MAX => rows.push(to_json(path, sum)),
            true => {}
            false => spinner.suspend(|| say!("{}", to_line(path, sum, args.human_readable))),
        };
        let (sum, missed) = match sum(path, !args.summarize, &mut seen, &spinner, &mut print) {
            Ok(counted) => counted,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        if json {
            let mut row = to_json(path, sum);
            row["unreadable"] = json!(missed.count);
            row["more_directories"] = json!(rows.len() == ROWS_SHOWN_MAX);
            row["directories"] = Value::Array(rows);
            all.push(row);
        } else {
            spinner.suspend(|| say!("{}", to_line(path, sum, args.human_readable)));
        }
        unreadable.add(missed);
    }
    spinner.finish_and_clear();
    if json {
        say!("{}", json!({ "paths": all }));
    }
    failures.extend(unreadable.end().err());
    Failure::join(&failures).map_or(Ok(()), Err)
}

/// What `path` and all below it use; `print` hears of the directories below.
fn sum(
    path: &Path,
    has_rows: bool,
    seen: &mut HashSet<u64>,
    spinner: &ProgressBar,
    print: &mut dyn FnMut(&Path, Sum),
) -> Result<(Sum, Unreadable)> {
    let (found, attr) = locate::of_path(path, false)?;
    let number = |name: &str| attr[name].as_u64().unwrap_or(0);
    let ino = number("inode");
    let is_new = seen.insert(ino) || attr["kind"] != "directory" && attr["links"] == 1;
    let own = Sum {
        size: number("size"),
        allocated: number("allocated"),
        inodes: 1,
    };
    if !is_new || attr["kind"] != "directory" {
        let sum = if is_new { own } else { Sum::default() };
        return Ok((sum, Unreadable::default()));
    }
    let mut walk = Walk::new(seen, has_rows);
    let root = walk.open(path.to_owned(), None, own);
    walk.list_later(ino, 0, root);
    let mut total = Sum::default();
    while let Some((question, pages)) = walk.next() {
        let said = ask(&found.place, &question, path)?;
        let rows = said["pages"].as_array().map_or(&[][..], Vec::as_slice);
        if rows.len() != pages.len() {
            return Err(not_understood(path));
        }
        for (page, row) in pages.into_iter().zip(rows) {
            // The last is the path itself.
            let mut done = |below: PathBuf, sum: Sum| {
                if below != path {
                    print(&below, sum);
                }
                total = sum;
            };
            walk.take(page, row, &mut done)
                .ok_or_else(|| not_understood(path))?;
        }
        spinner.set_message(format!(
            "{}: {} inodes so far, {} directories to list",
            path.display(),
            walk.inodes,
            walk.left.len()
        ));
        spinner.tick();
    }
    Ok((total, walk.unreadable))
}

fn ask(place: &Place, question: &str, path: &Path) -> Result<Value> {
    let said = control::require_within(&place.control(), question, PATIENCE)?;
    match said["error"].as_str() {
        None => Ok(said),
        Some("unknown request") => Err(Failure::new(format!(
            "the daemon of {} does not know this question",
            place.root().display()
        ))
        .help("it is of an older version: gupfs down, then gupfs up")),
        Some(error) => Err(Failure::new(format!("{}: {error}", path.display()))
            .help("run it again; `gupfs waiters` says what the daemon waits for")),
    }
}

fn not_understood(path: &Path) -> Failure {
    Failure::new(format!(
        "{}: the daemon's answer is not understood",
        path.display()
    ))
    .help("it is of another version: gupfs down, then gupfs up")
}

fn to_json(path: &Path, sum: Sum) -> Value {
    json!({
        "path": path.to_string_lossy(), "allocated": sum.allocated, "size": sum.size, "inodes": sum.inodes,
    })
}

fn line(allocated: &str, size: &str, inodes: &str, path: &str) -> String {
    format!("{allocated:>14} {size:>14} {inodes:>10}  {path}")
}

fn to_line(path: &Path, sum: Sum, is_for_people: bool) -> String {
    let bytes = |bytes: u64| match is_for_people {
        true => size::show(bytes),
        false => bytes.to_string(),
    };
    let path = path.to_string_lossy();
    line(
        &bytes(sum.allocated),
        &bytes(sum.size),
        &sum.inodes.to_string(),
        &path,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(next: Option<u64>, links: Value, directories: Value) -> Value {
        json!({
            "next": next, "inodes": 2, "size": 10, "allocated": 8192, "links": links, "directories": directories,
        })
    }

    /// Walks `/top` (inode 1) as the pages say it; returns what was done, in order.
    fn walk(has_rows: bool, answer: &dyn Fn(u64, u64) -> Value) -> Vec<(PathBuf, Sum)> {
        let mut seen = HashSet::from([1]);
        let mut walk = Walk::new(&mut seen, has_rows);
        let root = walk.open("/top".into(), None, Sum::default());
        walk.list_later(1, 0, root);
        let mut all = Vec::new();
        while let Some((question, pages)) = walk.next() {
            assert_eq!(question.contains("names"), has_rows);
            for left in pages {
                let page = answer(left.ino, left.cookie);
                let taken = walk.take(left, &page, &mut |path, sum| all.push((path, sum)));
                taken.expect("understood");
            }
        }
        assert!(walk.opens.iter().all(Option::is_none), "all are closed");
        all
    }

    fn answer(ino: u64, cookie: u64) -> Value {
        match (ino, cookie) {
            (1, 0) => page(
                Some(7),
                json!([[50, 100, 4096]]),
                json!([[2, 0, 0, "61"], [3, 0, 0, "ff"]]),
            ),
            // Another name of the link, and a directory that has moved meanwhile.
            (1, 7) => page(None, json!([[50, 100, 4096]]), json!([[2, 0, 0, "62"]])),
            (2, 0) => page(None, json!([]), json!([[4, 0, 0, "63"]])),
            (3, 0) => json!({ "gone": true }),
            (4, 0) => page(None, json!([]), json!([])),
            other => panic!("{other:?} is not asked"),
        }
    }

    #[test]
    fn what_counts_once_is_counted_once() {
        let all = walk(true, &answer);
        let of = |path: &str| {
            all.iter()
                .find(|(p, _)| p == Path::new(path))
                .map(|(_, s)| *s)
        };
        let sum = |size, allocated, inodes| {
            Some(Sum {
                size,
                allocated,
                inodes,
            })
        };
        assert_eq!(of("/top/a/c"), sum(10, 8192, 3));
        assert_eq!(of("/top/a"), sum(20, 16384, 6));
        let gone = PathBuf::from(OsStr::from_bytes(b"/top/\xff"));
        assert!(
            all.iter()
                .any(|(path, sum)| *path == gone && sum.inodes == 1)
        );
        // The test's top counts without its own inode.
        assert_eq!(
            all.last(),
            Some(&("/top".into(), sum(140, 36864, 12).unwrap()))
        );
        let short = walk(false, &answer);
        assert_eq!(short, [all.last().unwrap().clone()]);
    }

    /// What cannot be read is named, and all else is counted.
    #[test]
    fn what_cannot_be_read_is_named() {
        let answer = |ino: u64| match ino {
            1 => json!({
                "next": null, "inodes": 2, "size": 10, "allocated": 8192, "links": [],
                "directories": [[2, 0, 0, "61"], [3, 0, 0, "62"]], "unreadable": [[9, "63"]],
            }),
            2 => json!({ "unreadable": true }),
            3 => page(None, json!([]), json!([])),
            other => panic!("{other}"),
        };
        let mut seen = HashSet::from([1]);
        let mut walk = Walk::new(&mut seen, true);
        let root = walk.open("/top".into(), None, Sum::default());
        walk.list_later(1, 0, root);
        let mut last = Sum::default();
        while let Some((_, pages)) = walk.next() {
            for left in pages {
                let page = answer(left.ino);
                let taken = walk.take(left, &page, &mut |_, sum| last = sum);
                taken.expect("understood");
            }
        }
        assert_eq!((last.inodes, last.size), (6, 20));
        assert_eq!(walk.unreadable.count, 2);
        let failure = walk.unreadable.end().expect_err("something is missing");
        for path in ["/top/c", "/top/a"] {
            assert!(failure.what().contains(path), "{failure}");
        }
        assert_eq!(Unreadable::default().end(), Ok(()));
    }
}
