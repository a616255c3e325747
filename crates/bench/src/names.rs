//! Rows of one node: names, attributes, trees, and a directory of very many files.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

use crate::Scale;
use crate::load::{self, Small, as_f64};
use crate::report::{Row, Turns, median};
use crate::rig::{Rig, Target, drop_caches, run, text};
use crate::single;

/// Processes that make and remove files side by side.
const PROCESS_COUNT: u64 = 4;
/// Names that are looked at right after they were listed: they come with one or two calls.
const LISTED_COUNT: usize = 500;

/// Files made and removed per second, by one process against T and by four against X.
pub(crate) fn names(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, t, x) = (rig.gupfs()?, rig.trivial()?, rig.xfs()?);
    let mut rows = Vec::new();
    for small in [Small::Create, Small::Unlink] {
        let rate = |target: &Target| -> Result<f64> {
            Ok(1e6 / small.measure(&target.mount, scale.turn_operation_count)?)
        };
        let turns = single::in_turn_warm(scale.turn_count, || rate(&g), || rate(&t))?;
        let name = format!("{}, 1 process", small.name());
        rows.push(Row::turns(name, "1/s", &turns, "T").bounds(0.75, 0.9));
    }
    let count = scale.turn_operation_count as u64;
    let (mut made, mut removed) = (Turns::default(), Turns::default());
    let mut bare = (Vec::new(), Vec::new());
    for turn in 0..=scale.run_count {
        let ours = load::make_and_remove(&g.mount, PROCESS_COUNT, count)?;
        let theirs = load::make_and_remove(&x.mount, PROCESS_COUNT, count)?;
        let trivial = load::make_and_remove(&t.mount, PROCESS_COUNT, count)?;
        if turn > 0 {
            made.push(ours.0, theirs.0);
            removed.push(ours.1, theirs.1);
            bare.0.push(trivial.0);
            bare.1.push(trivial.1);
        }
    }
    let row = |name: &str, turns: &Turns, bare: &mut Vec<f64>| {
        let name = format!("{name}, 4 processes, own directories");
        Row::turns(name, "1/s", turns, "X")
            .bounds(0.35, 0.55)
            .note(format!("T {:.0} 1/s", median(bare)))
    };
    rows.push(row("create", &made, &mut bare.0));
    rows.push(row("unlink", &removed, &mut bare.1));
    Ok(rows)
}

/// lstat of names that the kernel has just heard of: what was made, and what was listed.
pub(crate) fn stat(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let count = scale.turn_operation_count;
    let both = |target: &Target| stat_made_and_listed(&target.mount.join("stat"), count);
    let (mut made, mut listed) = (Turns::default(), Turns::default());
    for turn in 0..=scale.turn_count {
        let (ours, theirs) = (both(&g)?, both(&x)?);
        if turn > 0 {
            made.push(ours.0, theirs.0);
            listed.push(ours.1, theirs.1);
        }
    }
    Ok(vec![
        Row::turns("stat of what was just made", "1/s", &made, "X").bounds(0.6, 0.8),
        Row::turns("stat of what was just listed", "1/s", &listed, "X").bounds(0.6, 0.8),
    ])
}

/// lstat per second of `count` files in the new `directory`: right after they were made; and, with nothing of them in the
/// kernel before, right behind each call that listed some of them.
fn stat_made_and_listed(directory: &Path, count: usize) -> Result<(f64, f64)> {
    fs::create_dir(directory)?;
    let paths: Vec<_> = (0..count)
        .map(|i| directory.join(format!("f{i:06}")))
        .collect();
    let (mut made, mut listed) = (0.0, 0.0);
    // Few at a time: what the kernel believes it believes for a second.
    for some in paths.chunks(LISTED_COUNT) {
        some.iter()
            .try_for_each(|path| File::create_new(path).map(drop))?;
        made += stat_all(some)?;
    }
    // The kernel's entries and attributes go, of X too.
    fs::write("/proc/sys/vm/drop_caches", "2").context("cannot drop the caches")?;
    let mut seen = Vec::with_capacity(LISTED_COUNT);
    let mut listing = fs::read_dir(directory)?;
    let mut found = 0;
    loop {
        seen.clear();
        for entry in listing.by_ref().take(LISTED_COUNT) {
            seen.push(entry?.path());
        }
        if seen.is_empty() {
            break;
        }
        found += seen.len();
        listed += stat_all(&seen)?;
    }
    ensure!(found == count, "{found} of {count} files were listed");
    fs::remove_dir_all(directory)?;
    let rate = |time: f64| as_f64(count as u64) / time;
    Ok((rate(made), rate(listed)))
}

fn stat_all(paths: &[impl AsRef<Path>]) -> Result<f64> {
    let begin = Instant::now();
    for path in paths {
        // Not the standard library's: it asks for the time of birth, which the kernel does not keep for FUSE.
        rustix::fs::lstat(path.as_ref())?;
    }
    Ok(begin.elapsed().as_secs_f64())
}

/// The cold read of a tree of small files after a remount.
pub(crate) fn tree(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let archive = single::archive(rig.scratch())?;
    let (mut g, mut x) = (rig.gupfs()?, rig.xfs()?);
    for target in [&g, &x] {
        let directory = target.mount.join("unpacked");
        fs::create_dir(&directory)?;
        run("tar", &["-xf", text(&archive), "-C", text(&directory)])?;
        run("sync", &["-f", text(&directory)])?;
    }
    let read = |target: &Target| -> Result<f64> {
        let begin = Instant::now();
        let (count, _) = load::read_tree(&target.mount.join("unpacked"))?;
        ensure!(
            count == single::ARCHIVE_FILE_COUNT as u64,
            "{count} files were found"
        );
        Ok(begin.elapsed().as_secs_f64())
    };
    let mut turns = Turns::default();
    for _ in 0..scale.run_count {
        g = rig.remount_gupfs()?;
        x = rig.remount_xfs()?;
        drop_caches()?;
        turns.push(read(&g)?, read(&x)?);
    }
    for target in [&g, &x] {
        fs::remove_dir_all(target.mount.join("unpacked"))?;
    }
    let name = format!(
        "read of the {} files, cold, after a remount",
        single::ARCHIVE_FILE_COUNT
    );
    Ok(vec![Row::turns(name, "s", &turns, "X").bounds(1.5, 1.2)])
}

/// A directory of very many files: made, listed with attributes by `find` and `ls -l`, looked up, removed.
pub(crate) fn huge(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let count = scale.many_count;
    let directory = |target: &Target| target.mount.join("huge");
    let mut notes = Vec::new();
    for (name, target) in [("G", &g), ("X", &x)] {
        notes.push(format!("{name} {}", make_huge(&directory(target), count)?));
    }
    let find = |target: &Target| -> Result<f64> {
        let list = ["-c", "find \"$0\" -type f -printf '%s %T@ %p\\n' | wc -l"];
        listed_rate(&list, &directory(target), count)
    };
    let ls = |target: &Target| -> Result<f64> {
        let list = ["-c", "ls -l \"$0\" | grep -c ^-"];
        listed_rate(&list, &directory(target), count)
    };
    let runs = if count > HUGE { 2 } else { scale.run_count };
    let found = single::in_turn(runs, || find(&g), || find(&x))?;
    let looked = single::in_turn(runs, || ls(&g), || ls(&x))?;
    let mut removed = Vec::new();
    for target in [&g, &x] {
        let begin = Instant::now();
        run("rm", &["-rf", text(&directory(target))])?;
        removed.push(as_f64(count) / begin.elapsed().as_secs_f64());
    }
    let name = |what: &str| format!("{what} of a directory of {count} files");
    Ok(vec![
        Row::turns(name("find -printf"), "1/s", &found, "X").bounds(0.5, 0.7),
        Row::turns(name("ls -l"), "1/s", &looked, "X").bounds(0.2, 0.35),
        Row::ratio(name("rm -rf"), "1/s", removed[0], ("X", removed[1]))
            .note(format!("created by tenths, us: {}", notes.join("; "))),
    ])
}

/// Files of a directory from which on two turns must do.
const HUGE: u64 = 200_000;

/// Makes `count` files in the new `directory`; microseconds of each in the first, the fifth and the last tenth.
fn make_huge(directory: &Path, count: u64) -> Result<String> {
    fs::create_dir(directory)?;
    let tenth = count / 10;
    let mut times = Vec::new();
    for part in 0..10 {
        let begin = Instant::now();
        for index in part * tenth..(part + 1) * tenth {
            drop(File::create_new(directory.join(format!("f{index:08}")))?);
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / as_f64(tenth));
    }
    let (first, last) = (times[0], times[9]);
    Ok(format!("{first:.1} {:.1} {last:.1}", median(&mut times)))
}

/// Files per second that the shell's `list` of `directory` prints; it must print `count`.
fn listed_rate(list: &[&str], directory: &Path, count: u64) -> Result<f64> {
    let begin = Instant::now();
    let mut arguments = list.to_vec();
    arguments.push(text(directory));
    let listed: u64 = run("sh", &arguments)?.trim().parse()?;
    let time = begin.elapsed().as_secs_f64();
    ensure!(
        listed == count / 10 * 10,
        "{listed} of {count} files were listed"
    );
    Ok(as_f64(count) / time)
}
