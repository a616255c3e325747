//! Rows of one node: small requests at random places, what they leave behind, and mapped files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use stdx::prng::Prng;

use crate::Scale;
use crate::fio::Job;
use crate::load;
use crate::report::{Row, Turns};
use crate::rig::{Rig, drop_caches};

/// Bytes of a small request.
const SMALL: u64 = 4096;
/// How often each sector is written over, on the average, before a file counts as aged.
const AGE: u64 = 10;
/// Requests in flight where there are many.
const DEPTH: u32 = 32;

/// The requests of each turn fall into an own part of the file: none is read twice, so that nothing of it is
/// in memory.
fn part<'a>(path: &'a Path, pattern: &'static str, depth: u32, size: u64, turn: u64) -> Job<'a> {
    Job {
        path,
        pattern,
        request_size: SMALL,
        depth,
        offset: turn * size,
        size,
        is_mapped: false,
    }
}

/// 4 KiB reads at random places of a file that is not in memory, one or many at a time: against a raw device, and against a trivial
/// server that does each as a pread on a raw device, which is what FUSE leaves of it.
pub(crate) fn random_read(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let raw = rig.raw()?;
    let file = rig.gupfs()?.mount.join("large");
    load::write_file(&file, scale.file_size, false)?;
    let trivial = rig.trivial_on_disk()?.mount.join("read");
    fs::File::create(&trivial)?.set_len(scale.file_size)?;
    let of = Readers {
        ours: &file,
        raw: &raw,
        trivial: &trivial,
    };
    let plain = random_reads(rig, scale, of)?;
    rig.set_gupfs("async_direct_io", "on")?;
    let outcome = random_reads(rig, scale, of);
    rig.set_gupfs("async_direct_io", "default")?;
    let mut rows = Vec::new();
    for (with, measured) in [("", plain), (", async_direct_io on", outcome?)] {
        for (depth, of_depth) in [1, DEPTH].into_iter().zip(&measured) {
            let name = format!("4 KiB random read, cold, QD{depth}{with}");
            let row = Row::turns(&name, "1/s", &of_depth.raw, "R");
            rows.push(match (depth, with) {
                (1, "") => row.bounds(0.65, 0.75),
                (DEPTH, "") => row.bounds(0.3, 0.4),
                _ => row,
            });
            rows.push(Row::turns(name, "1/s", &of_depth.trivial, "Tp"));
            if with.is_empty() {
                let name = format!("Tp: 4 KiB random read, QD{depth}");
                rows.push(Row::turns(name, "1/s", &of_depth.ceiling, "R"));
            }
        }
    }
    rig.remount_gupfs()?;
    fs::remove_file(&file)?;
    fs::remove_file(&trivial)?;
    Ok(rows)
}

/// What is read by turns.
#[derive(Debug, Clone, Copy)]
struct Readers<'a> {
    ours: &'a Path,
    raw: &'a Path,
    trivial: &'a Path,
}

/// Of one depth: ours against the raw device, ours against the trivial server, and that against the raw device.
#[derive(Debug, Default)]
struct Reads {
    raw: Turns,
    trivial: Turns,
    ceiling: Turns,
}

/// Reads by turns after a start of G: one at a time, and many.
fn random_reads(rig: &mut Rig, scale: Scale, of: Readers<'_>) -> Result<[Reads; 2]> {
    let turns = scale.run_count as u64;
    // One turn of each depth is not counted: it brings tokens and the file's map.
    let part_size = scale.file_size / (2 * (turns + 1)) / SMALL * SMALL;
    rig.remount_gupfs()?;
    drop_caches()?;
    let mut measured = [Reads::default(), Reads::default()];
    for turn in 0..=turns {
        for (reads, depth) in measured.iter_mut().zip([1, DEPTH]) {
            let at = 2 * turn + u64::from(depth > 1);
            let rate = |path| -> Result<f64> {
                Ok(per_second(
                    part(path, "randread", depth, part_size, at).rate()?,
                ))
            };
            let (ours, raw, trivial) = (rate(of.ours)?, rate(of.raw)?, rate(of.trivial)?);
            if turn > 0 {
                reads.raw.push(ours, raw);
                reads.trivial.push(ours, trivial);
                reads.ceiling.push(trivial, raw);
            }
        }
    }
    Ok(measured)
}

fn per_second(bytes: f64) -> f64 {
    bytes / load::as_f64(SMALL)
}

/// 4 KiB overwrites at random places, many at a time, and an fsync; against a trivial server that does the same
/// pwrite on a raw device.
pub(crate) fn random_write(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, t) = (rig.gupfs()?, rig.trivial_on_disk()?);
    let files = [g.mount.join("large"), t.mount.join("large")];
    let size = scale.file_size / 4;
    for file in &files {
        load::write_file(file, size, false)?;
    }
    let mut turns = Turns::default();
    for turn in 0..=scale.run_count {
        let rate = |file: &Path| part(file, "randwrite", DEPTH, size, 0).rate();
        let (ours, theirs) = (rate(&files[0])?, rate(&files[1])?);
        if turn > 0 {
            turns.push(per_second(ours), per_second(theirs));
        }
    }
    for file in files {
        fs::remove_file(file)?;
    }
    Ok(vec![
        Row::turns("4 KiB random overwrite, QD32, + fsync", "1/s", &turns, "Tp")
            .bounds(0.6, 0.8)
            .note("Tp: a trivial server that does each write as pwrite on a raw device, 8 threads"),
    ])
}

/// 1 MiB reads of a file that was written over at random ten times, against one that is as it was written; both cold. Once as it
/// is, and once after its blocks were rewritten.
pub(crate) fn ageing(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let size = scale.file_size / 4;
    rig.set_gupfs("rewrite_rate", "0")?;
    let mount = rig.remount_gupfs()?.mount;
    let (aged, fresh) = (mount.join("aged"), mount.join("fresh"));
    for file in [&aged, &fresh] {
        load::write_file(file, size, false)?;
    }
    let file = OpenOptions::new().write(true).open(&aged)?;
    let mut prng = Prng::new(10);
    let block = [0xa6; 4096];
    for count in 0..AGE * size / SMALL {
        file.write_all_at(&block, prng.below(size / SMALL) * SMALL)?;
        // As a program does that wants to keep what it has: not all at the end.
        if count % (size / SMALL) == 0 {
            file.sync_all()?;
        }
    }
    file.sync_all()?;
    drop(file);
    let (mut before, mut after) = (Turns::default(), Turns::default());
    let read = |rig: &mut Rig, turns: &mut Turns| -> Result<()> {
        for _ in 0..scale.run_count {
            rig.remount_gupfs()?;
            drop_caches()?;
            turns.push(load::read_file(&aged)?, load::read_file(&fresh)?);
        }
        Ok(())
    };
    read(rig, &mut before)?;
    rig.set_gupfs("rewrite_rate", "default")?;
    rig.remount_gupfs()?;
    // A reader finds them.
    load::read_file(&aged)?;
    let count = rewritten(rig)?;
    read(rig, &mut after)?;
    for file in [aged, fresh] {
        fs::remove_file(file)?;
    }
    let name = "1 MiB read, cold, after 10 x random overwriting";
    Ok(vec![
        Row::turns(format!("{name}, as it is"), "MB/s", &before, "fresh"),
        Row::turns(format!("{name}, rewritten"), "MB/s", &after, "fresh")
            .bounds(0.5, 0.8)
            .note(format!("{count} blocks rewritten")),
    ])
}

/// Waits until no block has been rewritten for longer than one rests: how many were.
fn rewritten(rig: &Rig) -> Result<u64> {
    const QUIET: Duration = Duration::from_secs(25);
    const LIMIT: Duration = Duration::from_secs(300);
    let begun = Instant::now();
    let (mut count, mut since) = (0, begun);
    while since.elapsed() < QUIET && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(500));
        let now = rig.gupfs_counter(&["rewrite_blocks"])?;
        if now != count {
            (count, since) = (now, Instant::now());
        }
    }
    Ok(count)
}

/// Reading through a mapping, cold and warm, against xfs.
pub(crate) fn mapped(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let (g, x) = (rig.gupfs()?, rig.xfs()?);
    let files = [g.mount.join("large"), x.mount.join("large")];
    let size = scale.file_size / 2;
    for file in &files {
        load::write_file(file, size, false)?;
    }
    let read = |file: &Path| -> Result<f64> {
        let job = Job {
            path: file,
            pattern: "read",
            request_size: 1 << 20,
            depth: 1,
            offset: 0,
            size,
            is_mapped: true,
        };
        Ok(job.rate()? / 1e6)
    };
    let (mut cold, mut warm) = (Turns::default(), Turns::default());
    for _ in 0..scale.run_count {
        rig.remount_gupfs()?;
        drop_caches()?;
        cold.push(read(&files[0])?, read(&files[1])?);
    }
    for _ in 0..scale.turn_count {
        warm.push(read(&files[0])?, read(&files[1])?);
    }
    for file in files {
        fs::remove_file(file)?;
    }
    Ok(vec![
        Row::turns("mmap read, cold", "MB/s", &cold, "X").bounds(0.5, 0.7),
        Row::turns("mmap read, warm", "MB/s", &warm, "X").bounds(0.95, 1.0),
    ])
}
