//! Calls of applications in words: `rename a d/b +dir, write x 0 4096 +none`, and all short sequences of them.
//!
//! A call is followed by what makes it durable: `+file` (fsync of what it changed), `+dir` (of the directory of its last
//! name), `+sync` (of everything) or `+none`.

use std::fmt;
use std::str::FromStr;

use super::posix::{Fs, Step};

/// The value of the one extended attribute.
pub const XATTR_VALUE: &[u8] = b"value";

/// A call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// creat(2).
    Create(String),
    /// mkdir(2).
    Mkdir(String),
    /// symlink(2).
    Symlink(String),
    /// pwrite(2): offset and length.
    Write(String, u64, u64),
    /// write(2) of so many bytes with O_APPEND.
    Append(String, u64),
    /// truncate(2).
    Truncate(String, u64),
    /// fallocate(2) with PUNCH_HOLE: from, to.
    Punch(String, u64, u64),
    /// fallocate(2) with ZERO_RANGE, which may make it longer.
    Zero(String, u64, u64),
    /// fallocate(2) without a mode: from, to.
    Allocate(String, u64, u64),
    /// fallocate(2) with KEEP_SIZE.
    Promise(String, u64, u64),
    /// link(2).
    Link(String, String),
    /// unlink(2).
    Unlink(String),
    /// rmdir(2).
    Rmdir(String),
    /// rename(2).
    Rename(String, String),
    /// renameat2(2) with RENAME_EXCHANGE.
    Exchange(String, String),
    /// chmod(2).
    Chmod(String, u32),
    /// chown(2).
    Chown(String, u32),
    /// utimensat(2).
    Times(String, u64),
    /// setxattr(2).
    SetXattr(String),
    /// removexattr(2).
    RemoveXattr(String),
    /// O_TMPFILE, a write of so many bytes, and linkat(2).
    Tmpfile(String, u64),
    /// What is in one file is written to a new one.
    Copy(String, String),
}

/// What is made durable after a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Persist {
    /// Nothing.
    None,
    /// fsync of the file, or the directory, that the call changed or made.
    File,
    /// fsync of the directory of the call's last name.
    Directory,
    /// fsync of every file, and of a directory.
    Sync,
}

/// Calls, each with what follows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sequence(pub Vec<(Op, Persist)>);

impl Persist {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::File, Self::Directory, Self::Sync];
}

impl Op {
    /// The last name that it is about.
    pub fn path(&self) -> &str {
        match self {
            Self::Link(_, path)
            | Self::Rename(_, path)
            | Self::Exchange(_, path)
            | Self::Copy(_, path)
            | Self::Create(path)
            | Self::Mkdir(path)
            | Self::Symlink(path)
            | Self::Write(path, ..)
            | Self::Append(path, _)
            | Self::Truncate(path, _)
            | Self::Punch(path, ..)
            | Self::Zero(path, ..)
            | Self::Allocate(path, ..)
            | Self::Promise(path, ..)
            | Self::Unlink(path)
            | Self::Rmdir(path)
            | Self::Chmod(path, _)
            | Self::Chown(path, _)
            | Self::Times(path, _)
            | Self::SetXattr(path)
            | Self::RemoveXattr(path)
            | Self::Tmpfile(path, _) => path,
        }
    }

    /// What it does, a step at a time; `tag` tells its bytes from those of others.
    pub fn steps(&self, fs: &Fs, tag: u64) -> Vec<Step> {
        let write = |path: &String, offset: u64, length: u64| {
            let bytes = pattern(tag, offset, length);
            Step::Write(path.clone(), offset, bytes)
        };
        match self.clone() {
            Self::Create(path) => vec![Step::Create(path)],
            Self::Mkdir(path) => vec![Step::Mkdir(path)],
            Self::Symlink(path) => vec![Step::Symlink(path, "a".to_owned())],
            Self::Write(path, offset, length) => vec![write(&path, offset, length)],
            Self::Append(path, length) => {
                let end = fs.content(&path).map_or(0, |bytes| bytes.len() as u64);
                vec![write(&path, end, length)]
            }
            Self::Truncate(path, size) => vec![Step::Truncate(path, size)],
            Self::Punch(path, begin, end) => vec![Step::Punch(path, begin, end, true)],
            Self::Zero(path, begin, end) => vec![Step::Punch(path, begin, end, false)],
            Self::Allocate(path, begin, end) => vec![Step::Allocate(path, begin, end, false)],
            Self::Promise(path, begin, end) => vec![Step::Allocate(path, begin, end, true)],
            Self::Link(from, to) => vec![Step::Link(from, to)],
            Self::Unlink(path) => vec![Step::Unlink(path)],
            Self::Rmdir(path) => vec![Step::Rmdir(path)],
            Self::Rename(from, to) => vec![Step::Rename(from, to)],
            Self::Exchange(from, to) => vec![Step::Exchange(from, to)],
            Self::Chmod(path, mode) => vec![Step::Chmod(path, mode)],
            Self::Chown(path, uid) => vec![Step::Chown(path, uid)],
            Self::Times(path, seconds) => vec![Step::Times(path, seconds)],
            Self::SetXattr(path) => vec![Step::SetXattr(path, XATTR_VALUE.to_vec())],
            Self::RemoveXattr(path) => vec![Step::RemoveXattr(path)],
            Self::Tmpfile(path, length) => vec![
                Step::CreateNameless,
                Step::WriteNameless(0, pattern(tag, 0, length)),
                Step::LinkNameless(path),
            ],
            Self::Copy(from, to) => {
                let bytes = fs.content(&from).unwrap_or_default().to_vec();
                vec![Step::Create(to.clone()), Step::Write(to, 0, bytes)]
            }
        }
    }

    /// In a state of the file system in which it cannot be done it is of little use.
    pub fn can_be_done(&self, fs: &Fs) -> bool {
        let mut after = fs.clone();
        let steps = self.steps(fs, 1);
        !steps.is_empty() && steps.iter().all(|step| after.apply(step).is_ok())
    }
}

/// Bytes of the call `tag`: no zero, and no two sectors alike.
pub fn pattern(tag: u64, offset: u64, length: u64) -> Vec<u8> {
    let byte = |at: u64| {
        let mixed = stdx::prng::splitmix64((tag << 40) + at / 8) >> (at % 8 * 8);
        u8::try_from(mixed % 255 + 1).expect("below 256")
    };
    (offset..offset + length).map(byte).collect()
}

const FILES: [&str; 4] = ["a", "d/b", "x", "d/x"];
const FREE: [&str; 2] = ["x", "d/x"];

/// The calls that sequences are made of.
fn all_ops() -> Vec<Op> {
    let mut all = Vec::new();
    for path in FREE {
        let path = || path.to_owned();
        all.extend([Op::Create(path()), Op::Mkdir(path()), Op::Symlink(path())]);
        all.extend([Op::Tmpfile(path(), 5000), Op::Copy("a".to_owned(), path())]);
    }
    for path in FILES {
        let path = || path.to_owned();
        all.extend([
            Op::Write(path(), 0, 4096),
            Op::Write(path(), 100, 200),
            Op::Write(path(), 4096, 12_288),
            Op::Write(path(), 20_480, 1000),
            Op::Append(path(), 300),
            Op::Append(path(), 5000),
            Op::Truncate(path(), 0),
            Op::Truncate(path(), 5000),
            Op::Truncate(path(), 20_000),
            Op::Punch(path(), 0, 4096),
            Op::Punch(path(), 50, 6000),
            Op::Zero(path(), 6000, 12_000),
            Op::Allocate(path(), 0, 16_384),
            Op::Promise(path(), 4096, 40_000),
            Op::Unlink(path()),
        ]);
    }
    for path in ["a", "x"] {
        let path = || path.to_owned();
        all.extend([Op::Chmod(path(), 0o600), Op::Chown(path(), 7)]);
        all.extend([Op::Times(path(), 1_000_000_000), Op::SetXattr(path())]);
        all.push(Op::RemoveXattr(path()));
    }
    all.extend([
        Op::Chmod("d".to_owned(), 0o700),
        Op::SetXattr("d".to_owned()),
    ]);
    all.extend([Op::Rmdir("e".to_owned()), Op::Rmdir("x".to_owned())]);
    let pairs = [
        ("a", "x"),
        ("a", "d/x"),
        ("a", "d/b"),
        ("d/b", "a"),
        ("x", "a"),
        ("x", "d/b"),
        ("x", "d/x"),
        ("x", "e"),
        ("d/x", "a"),
        ("e", "x"),
        ("e", "d/x"),
        ("d", "e"),
        ("d", "x"),
    ];
    // Directories go to another parent, and back.
    let moves = [("d", "e/x"), ("d/x", "x"), ("d/x", "e"), ("x", "e/x")];
    let of = |pairs: &[(&str, &str)], make: fn(String, String) -> Op| {
        let pairs = pairs.iter();
        pairs
            .map(move |(from, to)| make((*from).to_owned(), (*to).to_owned()))
            .collect::<Vec<Op>>()
    };
    all.extend(of(&pairs, Op::Rename));
    all.extend(of(&moves, Op::Rename));
    all.extend(of(&pairs, Op::Exchange));
    all.extend(of(&[("d/x", "e")], Op::Exchange));
    all.extend(of(&pairs, Op::Link));
    all
}

/// What may follow a call that leaves this: an fsync of what is gone may not.
fn persists(op: &Op, after: &Fs) -> impl Iterator<Item = Persist> {
    let has_file = after.is_synced_by_name(op.path());
    let all = Persist::ALL.into_iter();
    all.filter(move |persist| *persist != Persist::File || has_file)
}

/// Every sequence of one call.
pub fn singles(begin: &Fs) -> Vec<Sequence> {
    let mut found = Vec::new();
    for op in all_ops().into_iter().filter(|op| op.can_be_done(begin)) {
        let after = begin.after(&op);
        found.extend(persists(&op, &after).map(|p| Sequence(vec![(op.clone(), p)])));
    }
    found
}

/// Every sequence of two calls.
pub fn pairs(begin: &Fs) -> Vec<Sequence> {
    let mut found = Vec::new();
    for Sequence(first) in singles(begin) {
        let between = begin.after(&first[0].0);
        for second in all_ops().into_iter().filter(|op| op.can_be_done(&between)) {
            let after = between.after(&second);
            found.extend(persists(&second, &after).map(|persist| {
                let mut both = first.clone();
                both.push((second.clone(), persist));
                Sequence(both)
            }));
        }
    }
    found
}

impl fmt::Display for Persist {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "+none",
            Self::File => "+file",
            Self::Directory => "+dir",
            Self::Sync => "+sync",
        })
    }
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(path) => write!(out, "create {path}"),
            Self::Mkdir(path) => write!(out, "mkdir {path}"),
            Self::Symlink(path) => write!(out, "symlink {path}"),
            Self::Write(path, offset, length) => write!(out, "write {path} {offset} {length}"),
            Self::Append(path, length) => write!(out, "append {path} {length}"),
            Self::Truncate(path, size) => write!(out, "truncate {path} {size}"),
            Self::Punch(path, begin, end) => write!(out, "punch {path} {begin} {end}"),
            Self::Zero(path, begin, end) => write!(out, "zero {path} {begin} {end}"),
            Self::Allocate(path, begin, end) => write!(out, "allocate {path} {begin} {end}"),
            Self::Promise(path, begin, end) => write!(out, "promise {path} {begin} {end}"),
            Self::Link(from, to) => write!(out, "link {from} {to}"),
            Self::Unlink(path) => write!(out, "unlink {path}"),
            Self::Rmdir(path) => write!(out, "rmdir {path}"),
            Self::Rename(from, to) => write!(out, "rename {from} {to}"),
            Self::Exchange(from, to) => write!(out, "exchange {from} {to}"),
            Self::Chmod(path, mode) => write!(out, "chmod {path} {mode}"),
            Self::Chown(path, uid) => write!(out, "chown {path} {uid}"),
            Self::Times(path, seconds) => write!(out, "times {path} {seconds}"),
            Self::SetXattr(path) => write!(out, "setxattr {path}"),
            Self::RemoveXattr(path) => write!(out, "removexattr {path}"),
            Self::Tmpfile(path, length) => write!(out, "tmpfile {path} {length}"),
            Self::Copy(from, to) => write!(out, "copy {from} {to}"),
        }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (op, persist)) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(out, "{comma}{op} {persist}")?;
        }
        Ok(())
    }
}

impl FromStr for Sequence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let calls = text.split(',').map(|call| {
            let words: Vec<&str> = call.split_whitespace().collect();
            let (last, words) = words.split_last().ok_or("an empty call")?;
            let persist = Persist::ALL.into_iter().find(|p| p.to_string() == *last);
            let persist = persist.ok_or_else(|| format!("{last}: +none, +file, +dir or +sync"))?;
            Ok((
                op(words).ok_or_else(|| format!("no call: {call}"))?,
                persist,
            ))
        });
        calls.collect::<Result<_, _>>().map(Self)
    }
}

fn op(words: &[&str]) -> Option<Op> {
    let path = |index: usize| words.get(index).map(|word| (*word).to_owned());
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<u64>().ok());
    let small = |index: usize| number(index).and_then(|n| u32::try_from(n).ok());
    Some(match *words.first()? {
        "create" => Op::Create(path(1)?),
        "mkdir" => Op::Mkdir(path(1)?),
        "symlink" => Op::Symlink(path(1)?),
        "write" => Op::Write(path(1)?, number(2)?, number(3)?),
        "append" => Op::Append(path(1)?, number(2)?),
        "truncate" => Op::Truncate(path(1)?, number(2)?),
        "punch" => Op::Punch(path(1)?, number(2)?, number(3)?),
        "zero" => Op::Zero(path(1)?, number(2)?, number(3)?),
        "allocate" => Op::Allocate(path(1)?, number(2)?, number(3)?),
        "promise" => Op::Promise(path(1)?, number(2)?, number(3)?),
        "link" => Op::Link(path(1)?, path(2)?),
        "unlink" => Op::Unlink(path(1)?),
        "rmdir" => Op::Rmdir(path(1)?),
        "rename" => Op::Rename(path(1)?, path(2)?),
        "exchange" => Op::Exchange(path(1)?, path(2)?),
        "chmod" => Op::Chmod(path(1)?, small(2)?),
        "chown" => Op::Chown(path(1)?, small(2)?),
        "times" => Op::Times(path(1)?, number(2)?),
        "setxattr" => Op::SetXattr(path(1)?),
        "removexattr" => Op::RemoveXattr(path(1)?),
        "tmpfile" => Op::Tmpfile(path(1)?, number(2)?),
        "copy" => Op::Copy(path(1)?, path(2)?),
        _ => return None,
    })
}
