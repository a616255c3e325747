//! Rows of one node.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use stdx::prng::Prng;

use crate::Scale;
use crate::load::{self, Alignment, Small};
use crate::report::{Row, Turns, median};
use crate::rig::{Rig, Target, drop_caches, run, text};

/// Processes that share one file.
const PROCESS_COUNT: u64 = 4;
/// Files of the archive that is unpacked: as many as the one of the first measurements.
pub(crate) const ARCHIVE_FILE_COUNT: usize = 9_188;

/// `subject` and `comparator` in turn, `count` times each.
pub(crate) fn in_turn(
    count: usize,
    mut subject: impl FnMut() -> Result<f64>,
    mut comparator: impl FnMut() -> Result<f64>,
) -> Result<Turns> {
    let mut turns = Turns::default();
    for _ in 0..count {
        turns.push(subject()?, comparator()?);
    }
    Ok(turns)
}

/// As [`in_turn`], after a first turn of each that warms its caches and is not counted.
pub(crate) fn in_turn_warm(
    count: usize,
    mut subject: impl FnMut() -> Result<f64>,
    mut comparator: impl FnMut() -> Result<f64>,
) -> Result<Turns> {
    in_turn(1, &mut subject, &mut comparator)?;
    in_turn(count, subject, comparator)
}

/// T against T0: what our FUSE layer itself costs.
pub(crate) fn layer(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (t, t0) = (rig.trivial()?, rig.ceiling()?);
    let smalls = [
        Small::Create,
        Small::Unlink,
        Small::StatMiss,
        Small::Mkdir,
        Small::Read,
        Small::Write,
    ];
    let row = |small: Small| {
        let turns = compare_small(small, &t, &t0, scale)?;
        Ok(Row::turns(format!("T {}", small.name()), "us", &turns, "T0").bounds(1.05, 0.9))
    };
    smalls.into_iter().map(row).collect()
}

fn compare_small(
    small: Small,
    subject: &Target,
    comparator: &Target,
    scale: Scale,
) -> Result<Turns> {
    let measure = |target: &Target| small.measure(&target.mount, scale.turn_operation_count);
    in_turn_warm(
        scale.turn_count,
        || measure(subject),
        || measure(comparator),
    )
}

/// G against T: small operations.
pub(crate) fn small(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, t) = (rig.gupfs()?, rig.trivial()?);
    let smalls = [
        Small::Create,
        Small::Unlink,
        Small::StatMiss,
        Small::Read,
        Small::Write,
    ];
    let row = |small: Small| {
        let turns = compare_small(small, &g, &t, scale)?;
        Ok(Row::turns(small.name(), "us", &turns, "T").bounds(1.25, 1.1))
    };
    smalls.into_iter().map(row).collect()
}

/// Context switches of the server per operation, beyond those of T.
pub(crate) fn switches(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    /// Timers and the like, spread over the operations.
    const NOISE: f64 = 0.05;
    let (g, t) = (rig.gupfs()?, rig.trivial()?);
    let per_operation = |target: &Target, small: Small| {
        let pid = target.pid.context("a server has a pid")?;
        let before = load::switches(pid)?;
        small.measure(&target.mount, scale.operation_count)?;
        let count = load::switches(pid)? - before;
        Ok(load::as_f64(count) / load::as_f64(scale.operation_count as u64))
    };
    let row = |small: Small| {
        let turns = in_turn(
            scale.run_count,
            || per_operation(&g, small),
            || per_operation(&t, small),
        )?;
        let (ours, theirs) = (turns.ours(), turns.theirs());
        let name = format!("context switches per {}, more than T", small.name());
        Ok(Row::plain(name, "", ours - theirs)
            .bounds(NOISE, NOISE)
            .note(format!(
                "G {ours:.2}, T {theirs:.2}; preparing and cleaning up are counted in both"
            )))
    };
    [Small::Read, Small::Create].into_iter().map(row).collect()
}

/// 1 MiB writes and an fsync, against xfs.
pub(crate) fn sequential_write(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let measure = |is_read_write: bool, alignment: Alignment| {
        let write = |target: &Target| {
            let path = target.mount.join("large");
            load::write_file_from(&path, scale.file_size, is_read_write, alignment)
        };
        in_turn(scale.run_count, || write(&g), || write(&x))
    };
    let row = |(is_read_write, alignment): (bool, Alignment)| {
        let turns = measure(is_read_write, alignment)?;
        let mode = if is_read_write { "O_RDWR" } else { "O_WRONLY" };
        let name = format!("1 MiB write + fsync, {mode}");
        Ok(match alignment {
            Alignment::Malloc => Row::turns(name, "MB/s", &turns, "X").bounds(0.9, 1.2),
            Alignment::Page => Row::turns(format!("{name}, aligned memory"), "MB/s", &turns, "X"),
        })
    };
    let what = [
        (false, Alignment::Malloc),
        (true, Alignment::Malloc),
        (false, Alignment::Page),
    ];
    let rows = what.into_iter().map(row).collect();
    remove(&[&g, &x], "large")?;
    rows
}

/// 1 MiB reads, cold against xfs and warm against T.
pub(crate) fn sequential_read(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (x, t) = (rig.xfs()?, rig.trivial()?);
    let mut g = rig.gupfs()?;
    for target in [&g, &x, &t] {
        load::write_file(&target.mount.join("large"), scale.file_size, false)?;
    }
    let mut cold = Turns::default();
    for _ in 0..scale.run_count {
        g = rig.remount_gupfs()?;
        drop_caches()?;
        cold.push(
            load::read_file(&g.mount.join("large"))?,
            load::read_file(&x.mount.join("large"))?,
        );
    }
    let read = |target: &Target| load::read_file(&target.mount.join("large"));
    // The first read of each fills the caches.
    read(&g)?;
    read(&t)?;
    let warm = in_turn(scale.turn_count, || read(&g), || read(&t))?;
    remove(&[&g, &x, &t], "large")?;
    Ok(vec![
        Row::turns("1 MiB read, cold", "MB/s", &cold, "X").bounds(0.6, 0.8),
        Row::turns("1 MiB read, warm", "MB/s", &warm, "T").bounds(0.9, 1.0),
    ])
}

fn remove(targets: &[&Target], name: &str) -> Result<()> {
    for target in targets {
        fs::remove_file(target.mount.join(name))?;
    }
    Ok(())
}

/// Four processes share one file.
pub(crate) fn processes(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let row = |(is_write, name, must): (bool, &str, f64)| {
        let share = |target: &Target| {
            let path = target.mount.join("shared");
            load::in_processes(&path, scale.file_size, PROCESS_COUNT, is_write)
        };
        let turns = in_turn(scale.run_count, || share(&g), || share(&x))?;
        Ok(Row::turns(name, "MB/s", &turns, "X").bounds(must, 1.0))
    };
    let what = [
        (true, "4 processes writing one file, 1 MiB", 0.7),
        (false, "4 processes reading one file, 1 MiB", 0.6),
    ];
    let rows = what.into_iter().map(row).collect();
    remove(&[&g, &x], "shared")?;
    rows
}

/// 4 KiB write and fsync, one at a time.
pub(crate) fn small_fsync(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let count = scale.turn_operation_count / 2;
    let write = |target: &Target| load::write_fsync(&target.mount.join("synced"), count);
    let turns = in_turn(scale.turn_count, || write(&g), || write(&x))?;
    Ok(vec![
        Row::turns("4 KiB write + fsync, QD1", "1/s", &turns, "X").bounds(0.4, 0.8),
    ])
}

/// Unpacking an archive of many small files, then sync.
pub(crate) fn untar(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let archive = archive(rig.scratch())?;
    let (g, t, x) = (rig.gupfs()?, rig.trivial()?, rig.xfs()?);
    // Time until all is unpacked and synced, until each file's fsync has returned, and of removing it all.
    let unpack = |target: &Target| -> Result<(f64, f64, f64)> {
        let directory = target.mount.join("unpacked");
        fs::create_dir(&directory)?;
        let begin = Instant::now();
        run("tar", &["-xf", text(&archive), "-C", text(&directory)])?;
        run("sync", &["-f", text(&directory)])?;
        let time = begin.elapsed().as_secs_f64();
        let each = format!("find {} -type f -print0 | xargs -0 sync", text(&directory));
        run("sh", &["-c", &each])?;
        let durable = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        run("rm", &["-rf", text(&directory)])?;
        Ok((time, durable, begin.elapsed().as_secs_f64()))
    };
    let (mut turns, mut durable, mut local) = (Turns::default(), Turns::default(), Vec::new());
    let (mut removed, mut removed_local) = (Turns::default(), Vec::new());
    for _ in 0..scale.run_count {
        let (ours, theirs, xfs) = (unpack(&g)?, unpack(&t)?, unpack(&x)?);
        turns.push(ours.0, theirs.0);
        durable.push(ours.1, xfs.1);
        local.push(xfs.0);
        removed.push(ours.2, theirs.2);
        removed_local.push(xfs.2);
    }
    let note = format!(
        "X {:.2} s; no FUSE server hears of sync(2), so G may still hold data",
        median(&mut local)
    );
    let name = format!("untar of {ARCHIVE_FILE_COUNT} files");
    Ok(vec![
        Row::turns(format!("{name} + sync"), "s", &turns, "T")
            .bounds(1.3, 1.15)
            .note(note),
        Row::turns(format!("{name} + fsync of each"), "s", &durable, "X"),
        Row::turns("rm -rf of it", "s", &removed, "T")
            .bounds(1.3, 1.15)
            .note(format!("X {:.2} s", median(&mut removed_local))),
    ])
}

/// Four processes make small files, each in its own directory and all in one: against T, X beside it.
pub(crate) fn files(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, t, x) = (rig.gupfs()?, rig.trivial()?, rig.xfs()?);
    // T takes up to 2 MiB of memory for a file.
    let count = (scale.operation_count as u64 / 4).min(1_000);
    let row = |(is_shared, name): (bool, &str)| {
        let make =
            |target: &Target| load::make_files(&target.mount, PROCESS_COUNT, count, is_shared);
        let mut local = Vec::new();
        let mut turns = Turns::default();
        for _ in 0..scale.run_count {
            turns.push(make(&g)?, make(&t)?);
            local.push(make(&x)?);
        }
        let note = format!("X {:.2} 1/s", median(&mut local));
        Ok(Row::turns(name, "1/s", &turns, "T").note(note))
    };
    let what = [
        (false, "4 processes making 4 KiB files, own directories"),
        (true, "4 processes making 4 KiB files, one directory"),
    ];
    what.into_iter().map(row).collect()
}

/// The archive that is unpacked, made when first asked for.
pub(crate) fn archive(scratch: &Path) -> Result<PathBuf> {
    let archive = scratch.join("archive.tar");
    if !archive.exists() {
        make_archive(scratch, &archive)?;
    }
    Ok(archive)
}

/// An archive whose sizes are those of a source tree: most files below 8 KiB.
fn make_archive(scratch: &Path, archive: &Path) -> Result<()> {
    let tree = scratch.join("tree");
    let mut prng = Prng::new(9188);
    for index in 0..ARCHIVE_FILE_COUNT {
        let directory = tree.join(format!("d{:02}/e{:02}", index / 400, index / 20 % 20));
        if index % 20 == 0 {
            fs::create_dir_all(&directory)?;
        }
        let size = (1_u64 << prng.between(7, 14)) + prng.below(1 << 7);
        let mut bytes = vec![0; usize::try_from(size).context("below 20 KiB")?];
        prng.fill(&mut bytes);
        fs::write(directory.join(format!("f{index:05}")), &bytes)?;
    }
    run("tar", &["-cf", text(archive), "-C", text(&tree), "."])?;
    fs::remove_dir_all(&tree)?;
    Ok(())
}
