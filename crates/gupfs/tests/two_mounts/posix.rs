//! POSIX's smaller promises, kept for who looks through the other mount, too.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::Duration;

use stdx::Prng;

use crate::calls::{Mapping, RENAME_EXCHANGE, allocate, get_xattr, rename_with, seek, set_xattr};
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

/// What one node writes and cuts, synced or not, the other finds by SEEK_DATA and SEEK_HOLE at once; and a hole of
/// petabytes takes no time.
#[test]
fn holes_are_where_nobody_has_written() {
    let fixture = lab!();
    let outcome = holes(&fixture).map(|count| format!("{count} seeks"));
    finish(&fixture, outcome);
}

const SECTOR: u64 = 4096;

/// The first byte from `offset` on that is data, or that is none; `None`: there is none.
fn expected(data: &BTreeSet<u64>, size: u64, offset: u64, is_hole: bool) -> Option<u64> {
    if offset >= size {
        return None;
    }
    let first = offset / SECTOR;
    let found = if is_hole {
        let hole = (first..).find(|sector| !data.contains(sector));
        hole.map(|sector| (sector * SECTOR).min(size))
    } else {
        data.range(first..).next().map(|sector| sector * SECTOR)
    };
    found.map(|at| at.max(offset))
}

fn holes(fixture: &Fixture) -> Result<u32, String> {
    let mut random = Prng::new(5);
    let (mut data, mut size) = (BTreeSet::new(), 1 << 50);
    text("file", File::create_new(fixture.path(1, "file")))?;
    let open = |node| {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(fixture.path(node, "file"));
        text("open", file)
    };
    let files = [open(1)?, open(2)?];
    text("long", files[0].set_len(size))?;
    let slot = fixture.slot();
    let mut count = 0;
    for round in 0..200 {
        let place = |random: &mut Prng| {
            let begin = [0, 1 << 30, 1 << 49][usize::try_from(random.below(3)).expect("small")];
            begin + random.below(1 << 20)
        };
        let one_of = |random: &mut Prng| &files[usize::try_from(random.below(2)).expect("small")];
        let writer = one_of(&mut random);
        match random.below(10) {
            0 => {
                // To whole sectors: what is left of one may be a hole or zeros.
                let end = size / SECTOR - random.below(1000);
                size = end * SECTOR;
                slot.run("cut", || text("cut", writer.set_len(size)))?;
                data.split_off(&end);
            }
            1 => {
                size = (size + random.below(1 << 20)).next_multiple_of(SECTOR);
                slot.run("grow", || text("grow", writer.set_len(size)))?;
            }
            kind => {
                let begin = place(&mut random);
                let length = [10, 5000, 300_000][usize::try_from(kind % 3).expect("small")];
                let bytes = vec![7; length];
                let end = begin + length as u64;
                slot.run("write", || {
                    text("write", writer.write_all_at(&bytes, begin))
                })?;
                size = size.max(end);
                data.extend(begin / SECTOR..end.div_ceil(SECTOR));
                if random.chance(1, 4) {
                    slot.run("sync", || text("sync", writer.sync_all()))?;
                }
            }
        }
        for is_hole in [false, true] {
            let (offset, reader) = (place(&mut random), one_of(&mut random));
            let found = slot.run("seek", || text("seek", seek(reader, offset, is_hole)))?;
            let right = expected(&data, size, offset, is_hole);
            if found != right {
                return Err(format!(
                    "round {round}: from {offset} (hole: {is_hole}) to {found:?}, not {right:?}"
                ));
            }
            count += 1;
        }
    }
    Ok(count)
}

/// The time of birth is one, whoever asks, and stays; attributes of the security name space are kept, but no labels.
#[test]
fn births_and_attributes() {
    let fixture = lab!();
    let outcome = births(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

fn births(fixture: &Fixture) -> Outcome {
    text("file", fs::write(fixture.path(1, "file"), b"1"))?;
    let shown = |node| {
        let attr = text("stat", fs::metadata(fixture.path(node, "file")))?;
        let born = text("statx", attr.created())?;
        Ok::<_, String>((born, attr.size(), attr.mtime(), attr.mode(), attr.nlink()))
    };
    let born = shown(1)?.0;
    let age = born.elapsed().map_err(|e| e.to_string())?;
    if age.as_secs() > 60 {
        return Err(format!("born {age:?} ago"));
    }
    for node in [2, 1] {
        let (path, link) = (
            fixture.path(node, "file"),
            fixture.path(node, &format!("l{node}")),
        );
        text("write", fs::write(&path, b"longer"))?;
        text("link", fs::hard_link(&path, &link))?;
        let (one, two) = (shown(1)?, shown(2)?);
        if one != two || one.0 != born || one.1 != 6 {
            return Err(format!("born {born:?}, then {one:?} and {two:?}"));
        }
    }
    let (one, two) = (fixture.path(1, "file"), fixture.path(2, "file"));
    text("set", set_xattr(&one, "security.test", b"value"))?;
    let value = text("get", get_xattr(&two, "security.test"))?;
    let label = get_xattr(&two, "security.selinux").map_err(|e| e.raw_os_error());
    if value != b"value" || label != Err(Some(libc::EOPNOTSUPP)) {
        return Err(format!("{value:?}, {label:?}"));
    }
    Ok(())
}

/// Holes that one node makes, among writes, truncations and mappings of both: either reads zeros there and what was
/// written everywhere else, at once and after both were killed; and what was in the holes is free.
#[test]
fn holes_are_zeros_and_take_no_space() {
    let fixture = lab!();
    let outcome = punches(&fixture).map(|()| String::new());
    finish(&fixture, outcome);
}

const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// `file` holds these bytes, by read(2) and through a mapping.
fn compare(what: &str, file: &File, bytes: &[u8]) -> Outcome {
    let mut read = vec![1; bytes.len() + 1];
    let count = text("read", file.read_at(&mut read, 0))?;
    read.truncate(count);
    let differs = |seen: &[u8]| seen.iter().zip(bytes).position(|(a, b)| a != b);
    if read != bytes {
        let (at, size) = (differs(&read), bytes.len());
        return Err(format!(
            "{what}: {count} bytes of {size}, the first wrong one: {at:?}"
        ));
    }
    if !bytes.is_empty() {
        // A mapping ends where this node's kernel takes the file to end (docs/tokens.md, "Limits of the kernel").
        text("stat", file.metadata())?;
        let mapping = text("map", Mapping::new(file, bytes.len(), false))?;
        text("load", mapping.load(0, &mut read))?;
        if read != bytes {
            return Err(format!("{what}, mapped: wrong from {:?}", differs(&read)));
        }
    }
    Ok(())
}

fn punches(fixture: &Fixture) -> Outcome {
    const SIZE_MAX: usize = 1 << 20;
    let mut random = Prng::new(11);
    let mut bytes: Vec<u8> = Vec::new();
    text("file", File::create_new(fixture.path(1, "file")))?;
    let open = |node, is_writer| {
        let path = fixture.path(node, "file");
        text(
            "open",
            OpenOptions::new().read(true).write(is_writer).open(path),
        )
    };
    let (writers, readers) = (
        [open(1, true)?, open(2, true)?],
        [open(1, false)?, open(2, false)?],
    );
    let below =
        |random: &mut Prng, end: usize| usize::try_from(random.below(end as u64)).expect("small");
    let slot = fixture.slot();
    for round in 0..150_u8 {
        let writer = &writers[below(&mut random, 2)];
        let most = [100, 9000, 400_000][below(&mut random, 3)];
        let begin = below(&mut random, SIZE_MAX - most);
        let length = 1 + below(&mut random, most);
        let (end, offset, count) = (begin + length, begin as u64, length as u64);
        match random.below(10) {
            0..4 => {
                let new = vec![round + 1; length];
                slot.run("write", || text("write", writer.write_all_at(&new, offset)))?;
                bytes.resize(bytes.len().max(end), 0);
                bytes[begin..end].copy_from_slice(&new);
            }
            4 => {
                slot.run("cut", || text("cut", writer.set_len(offset)))?;
                bytes.resize(begin, 0);
            }
            8.. => {
                let keeps = random.chance(1, 2);
                let mode = if keeps { libc::FALLOC_FL_KEEP_SIZE } else { 0 };
                let done = slot.run("promise", || allocate(writer, mode, offset, count));
                text("promise", done)?;
                if !keeps {
                    bytes.resize(bytes.len().max(end), 0);
                }
            }
            kind => {
                let mode = [PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE, PUNCH_HOLE];
                let mode = mode[usize::try_from(kind - 5).expect("small")];
                let done = slot.run("hole", || allocate(writer, mode, offset, count));
                text("hole", done)?;
                if mode != PUNCH_HOLE {
                    bytes.resize(bytes.len().max(end), 0);
                }
                let (begin, end) = (begin.min(bytes.len()), end.min(bytes.len()));
                bytes[begin..end].fill(0);
            }
        }
        if random.chance(1, 4) {
            slot.run("sync", || text("sync", writer.sync_all()))?;
        }
        let what = format!("round {round}");
        let node = below(&mut random, 2);
        slot.run("read", || compare(&what, &readers[node], &bytes))?;
        if random.chance(1, 4) {
            slot.run("direct read", || compare(&what, &writers[1 - node], &bytes))?;
        }
    }
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    for (mode, offset, length, error) in [
        (0, 0, 0, libc::EINVAL),
        (keep, 0, 0, libc::EINVAL),
        (0, i64::MAX as u64 - 10, 100, libc::EFBIG),
        (0, 0, 1 << 50, libc::ENOSPC),
        (keep, 0, 1 << 50, libc::ENOSPC),
        (libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096, libc::EOPNOTSUPP),
    ] {
        let before = text("stat", writers[0].metadata())?;
        let said = slot.run("refused", || allocate(&writers[0], mode, offset, length));
        let said = said.map_err(|e| e.raw_os_error());
        let after = text("stat", writers[0].metadata())?;
        let is_same = (before.len(), before.blocks()) == (after.len(), after.blocks());
        if said != Err(Some(error)) || !is_same {
            return Err(format!("fallocate of mode {mode}: {said:?}, {after:?}"));
        }
    }
    text("sync", writers[0].sync_all())?;
    text("sync", writers[1].sync_all())?;
    drop((writers, readers));
    slot.run_within(Duration::from_secs(60), "restart", || fixture.restart())?;
    for node in [1, 2] {
        slot.run("read", || {
            compare("after a restart", &open(node, false)?, &bytes)
        })?;
    }
    let done = slot.run("hole", || {
        allocate(&open(2, true).expect("there"), PUNCH_HOLE, 0, 1 << 40)
    });
    text("hole", done)?;
    bytes.fill(0);
    for node in [1, 2] {
        slot.run("read", || {
            compare("all a hole", &open(node, false)?, &bytes)
        })?;
        let attr = text("stat", fs::metadata(fixture.path(node, "file")))?;
        if attr.blocks() != 0 {
            return Err(format!("{} blocks are left", attr.blocks()));
        }
    }
    Ok(())
}

/// Both write to a file; then the node that made it asks for an extended attribute, and for its size.
#[test]
fn the_size_is_the_newest_whatever_was_asked_before() {
    let fixture = lab!();
    let outcome = (|| {
        // Names are believed for as long as they ever are where a directory was one node's for so long: attributes with them.
        text("file", fs::write(fixture.path(1, "first"), b""))?;
        std::thread::sleep(Duration::from_secs(3));
        for round in 0..10 {
            let name = format!("file{round}");
            let [one, two] = [1, 2].map(|node| fixture.path(node, &name));
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let maker = text("make", options.clone().create(true).open(&one))?;
            text("write", maker.write_all_at(&[1; 213_090], 0))?;
            let other = text("open", options.open(&two))?;
            text("write", other.write_all_at(&[2; 167], 167_936))?;
            text("write", maker.write_all_at(&[3; 73], 206_002))?;
            text("extend", other.write_all_at(&[4; 172], 234_563))?;
            let none = get_xattr(&one, "security.capability").map(drop);
            assert_eq!(none.unwrap_err().raw_os_error(), Some(libc::ENODATA));
            let size = text("stat", fs::metadata(&one))?.len();
            let length = text("read", fs::read(&one))?.len();
            if (size, length) != (234_735, 234_735) {
                return Err(format!("round {round}: {size} bytes, {length} read"));
            }
        }
        Ok(String::new())
    })();
    finish(&fixture, outcome);
}
