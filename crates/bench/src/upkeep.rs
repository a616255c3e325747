//! Rows of one node: what the daemon costs and keeps, and how it comes back.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::Scale;
use crate::load::{self, as_f64};
use crate::report::{Row, median};
use crate::rig::{Rig, Target, drop_caches, run};

/// Files of a directory, where there are many.
const DIRECTORY_COUNT: u64 = 1_000;
/// What a daemon may take beyond its pagepool.
const BEYOND_POOL: u64 = 256 << 20;
/// Quantile of the fsyncs, as one in so many.
const RARE: usize = 1_000;
/// Bytes of the file that is streamed into, over and over.
const STREAM_SIZE: u64 = 512 << 20;

/// CPU seconds of the daemon per GiB that is written and read, 1 MiB at a time.
pub(crate) fn cpu(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let mut g = rig.gupfs()?;
    let file = g.mount.join("large");
    let per_gib = |target: &Target, work: &mut dyn FnMut() -> Result<f64>| -> Result<f64> {
        let pid = target.pid.context("a daemon has a pid")?;
        let before = load::cpu_seconds(pid)?;
        work()?;
        let used = load::cpu_seconds(pid)? - before;
        Ok(used * as_f64(1 << 30) / as_f64(scale.file_size))
    };
    let (mut writes, mut cold, mut warm) = (Vec::new(), Vec::new(), Vec::new());
    load::write_file(&file, scale.file_size, false)?;
    for _ in 0..scale.run_count {
        writes.push(per_gib(&g, &mut || {
            load::write_file(&file, scale.file_size, false)
        })?);
        g = rig.remount_gupfs()?;
        drop_caches()?;
        cold.push(per_gib(&g, &mut || load::read_file(&file))?);
        warm.push(per_gib(&g, &mut || load::read_file(&file))?);
    }
    fs::remove_file(&file)?;
    let row = |name: &str, figures: &mut Vec<f64>| {
        let (low, high) = extremes(figures);
        Row::plain(
            format!("CPU of the daemon, {name}"),
            "s/GiB",
            median(figures),
        )
        .note(format!(
            "{low:.2} to {high:.2}; user and system of all its threads"
        ))
    };
    Ok(vec![
        row("1 MiB write + fsync", &mut writes).bounds(1.0, 0.75),
        row("1 MiB read, cold", &mut cold).bounds(0.9, 0.7),
        row("1 MiB read, warm", &mut warm).bounds(0.9, 0.7),
    ])
}

fn extremes(figures: &[f64]) -> (f64, f64) {
    let low = figures.iter().copied().fold(f64::INFINITY, f64::min);
    (low, figures.iter().copied().fold(0.0, f64::max))
}

/// The longest of 1,000 small synchronous writes against the median, while another process streams and a third makes small
/// files, so that checkpoints run.
pub(crate) fn tail(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    // Long enough for some rounds of checkpoints.
    let time = Duration::from_secs(10 + 4 * scale.run_count as u64);
    let rounds = rig.gupfs_counter(&["checkpoint_rounds"])?;
    let ours = tail_of(&g, time)?;
    let rounds = rig.gupfs_counter(&["checkpoint_rounds"])? - rounds;
    let theirs = tail_of(&x, time)?;
    let at = |times: &[f64], part: usize| times[times.len() - 1 - times.len() / part];
    let ratio = |times: &[f64]| at(times, RARE) / at(times, 2);
    ensure!(ours.len() > 2 * RARE, "{} writes are too few", ours.len());
    ensure!(rounds > 0, "no checkpoint ran");
    let note = format!(
        "{} writes, p99 {:.0} us, longest {:.0} us, {rounds} rounds of checkpoints; X {:.0} us, median {:.0} us: {:.1}",
        ours.len(),
        at(&ours, 100),
        at(&ours, usize::MAX),
        at(&theirs, RARE),
        at(&theirs, 2),
        ratio(&theirs),
    );
    let name = "p99.9 of 4 KiB write + fsync beside a stream and checkpoints";
    Ok(vec![
        Row::ratio(name, "us", at(&ours, RARE), ("median", at(&ours, 2)))
            .bounds(10.0, 4.0)
            .note(note),
    ])
}

fn tail_of(target: &Target, time: Duration) -> Result<Vec<f64>> {
    let (stream, churn) = (target.mount.join("stream"), target.mount.join("churn"));
    fs::create_dir(&churn)?;
    let workers = Workers(vec![
        load::worker("stream", &stream, 0, STREAM_SIZE)?.spawn()?,
        load::worker("churn", &churn, 0, DIRECTORY_COUNT)?.spawn()?,
    ]);
    let times = load::write_fsync_times(&target.mount.join("synced"), time);
    drop(workers);
    fs::remove_file(&stream)?;
    fs::remove_dir_all(&churn)?;
    times
}

/// Processes that go on until this is dropped.
#[derive(Debug)]
struct Workers(Vec<Child>);

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that has ended already has said why.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The time from a kill -9 until the file system is mounted again, after very many operations.
pub(crate) fn recovery(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let g = rig.gupfs()?;
    let empty = rig.recover_gupfs()?.as_secs_f64();
    let root = g.mount.join("operations");
    fs::create_dir(&root)?;
    let count = scale.many_count;
    // Two thirds make files, one third removes every second of them.
    let made = count * 2 / 3;
    let rounds = rig.gupfs_counter(&["checkpoint_rounds"])?;
    let begin = Instant::now();
    for directory in 0..made.div_ceil(DIRECTORY_COUNT) {
        let path = root.join(directory.to_string());
        fs::create_dir(&path)?;
        let name = |index: u64| path.join(format!("f{index}"));
        (0..DIRECTORY_COUNT).try_for_each(|i| File::create_new(name(i)).map(drop))?;
        (0..DIRECTORY_COUNT / 2).try_for_each(|i| fs::remove_file(name(2 * i)))?;
    }
    // What is durable is replayed.
    File::open(&root)?.sync_all()?;
    let time = begin.elapsed().as_secs_f64();
    let rounds = rig.gupfs_counter(&["checkpoint_rounds"])? - rounds;
    let taken = rig.recover_gupfs()?.as_secs_f64();
    let left: usize = directories(&root)?
        .iter()
        .map(|path| Ok(fs::read_dir(path)?.count()))
        .sum::<Result<usize>>()?;
    let expected = made.div_ceil(DIRECTORY_COUNT) * DIRECTORY_COUNT / 2;
    ensure!(
        left as u64 == expected,
        "{left} of {expected} files came back"
    );
    let replayed = rig.replayed()?;
    run("rm", &["-rf", crate::rig::text(&root)])?;
    let name = format!("kill -9 after {count} operations, until mounted");
    let scaled = Row::plain(name, "s", taken);
    let row = if count == MANY {
        scaled.bounds(5.0, 2.0)
    } else {
        scaled
    };
    Ok(vec![row.note(format!(
        "without any {empty:.2} s; {rounds} rounds of checkpoints in the {time:.0} s of the operations, {replayed} records were \
         left to replay"
    ))])
}

/// Operations and files that the rows speak of.
const MANY: u64 = 1_000_000;

/// Memory of the daemon while many files are made, listed and read, and the CPU time of a start that reads them all.
pub(crate) fn memory(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let count = scale.many_count;
    // The first start also fills the devices.
    rig.gupfs()?;
    let mut g = rig.remount_gupfs()?;
    let pid = |target: &Target| target.pid.context("a daemon has a pid");
    let empty = load::cpu_seconds(pid(&g)?)?;
    let pool: u64 = rig.gupfs_counter(&["pool_frames"])?;
    let free: u64 = rig.gupfs_counter(&["pool_frames_free"])?;
    // The first has the second in it: names are compared by their parts.
    let pool = (pool - free) << 12;
    let root = g.mount.join("many");
    make_many(&root, count)?;
    let mut figures = vec![("made", load::status_bytes(pid(&g)?, "VmRSS")?)];
    let listed: u64 = run(
        "sh",
        &[
            "-c",
            "find \"$0\" -type f -size -2 | wc -l",
            crate::rig::text(&root),
        ],
    )?
    .trim()
    .parse()?;
    ensure!(listed == count, "{listed} of {count} files were listed");
    figures.push(("listed", load::status_bytes(pid(&g)?, "VmRSS")?));
    let (read, _) = load::read_tree(&root)?;
    ensure!(read == count, "{read} of {count} files were read");
    figures.push(("read", load::status_bytes(pid(&g)?, "VmRSS")?));
    let highest = load::status_bytes(pid(&g)?, "VmHWM")?;
    let mebibytes = |bytes: u64| as_f64(bytes >> 20);
    let told: Vec<String> = figures
        .iter()
        .map(|(what, bytes)| format!("{what} {:.0}", mebibytes(*bytes)))
        .collect();
    g = rig.remount_gupfs()?;
    let start = load::cpu_seconds(pid(&g)?)? - empty;
    let started = load::status_bytes(pid(&g)?, "VmRSS")?;
    run("rm", &["-rf", crate::rig::text(&root)])?;
    let name = format!("RSS of the daemon, {count} files made, listed, read");
    Ok(vec![
        Row::ratio(
            name,
            "MiB",
            mebibytes(highest),
            ("allowed", mebibytes(pool + BEYOND_POOL)),
        )
        .bounds(1.0, 1.0)
        .note(format!(
            "MiB: {}, after a start {:.0}; the pagepool's are in it",
            told.join(", "),
            mebibytes(started)
        )),
        Row::plain(
            "CPU of a start per inode and name that it reads, cold",
            "us",
            start * 1e6 / as_f64(count),
        )
        .bounds(1.0, 0.5)
        .note(format!(
            "{start:.2} s beyond that of an empty file system ({empty:.2} s)"
        )),
    ])
}

/// Makes `count` files of 100 bytes, many in a directory.
fn make_many(root: &Path, count: u64) -> Result<()> {
    fs::create_dir(root)?;
    for index in 0..count {
        let directory = root.join((index / DIRECTORY_COUNT).to_string());
        if index % DIRECTORY_COUNT == 0 {
            fs::create_dir(&directory)?;
        }
        File::create_new(directory.join(format!("f{index}")))?.write_all(&[0x6d; 100])?;
    }
    Ok(())
}

fn directories(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(root)?;
    Ok(entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_files_lie_in_directories() {
        let root = std::env::temp_dir().join(format!("gupfs-bench-many-{}", std::process::id()));
        make_many(&root, 1_002).expect("made");
        assert_eq!(directories(&root).expect("list").len(), 2);
        assert_eq!(load::read_tree(&root).expect("read"), (1_002, 100_200));
        fs::remove_dir_all(&root).expect("removed");
    }
}
