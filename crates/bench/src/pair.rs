//! Rows of two nodes, in a lab.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Scale;
use crate::load::{self, as_f64};
use crate::report::{Row, Turns, median};
use crate::rig::{Pair, Rig, run};

/// Bytes of an interleaved record: the documents' size, aligned to nothing.
const RECORD_SIZE: usize = 47_008;
/// Port of iperf3 in the lab.
const PORT: &str = "5201";
/// Says on which NSDs a directory's files lie.
const LAYOUT: &str = "trusted.gupfs.layout";

/// Messages of both nodes while node 2 works under tokens that it has.
pub(crate) fn messages(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let count = scale.operation_count.min(5_000);
    let directory = pair.mount(2).join("own");
    fs::create_dir(&directory).context("cannot make a directory of node 2")?;
    let path = |index: usize| directory.join(format!("f{index}"));
    let create =
        |from: usize| (from..from + count).try_for_each(|i| File::create_new(path(i)).map(drop));
    // The first operations bring the tokens.
    create(0)?;
    let created = counted(rig, &pair, || Ok(create(count)?))?;
    let removed = counted(rig, &pair, || {
        Ok((count..2 * count).try_for_each(|i| fs::remove_file(path(i)))?)
    })?;
    let file = path(0);
    fs::write(&file, vec![1; 1 << 20])?;
    let cached = || -> Result<()> {
        for _ in 0..count {
            let opened = File::open(&file)?;
            opened.metadata()?;
            opened.read_exact_at(&mut [0; 4096], 8192)?;
        }
        Ok(())
    };
    cached()?;
    let read = counted(rig, &pair, cached)?;
    // The same of a file that the other node made, in its directory, and wrote.
    let other = pair.mount(1).join("others");
    fs::create_dir(&other).context("cannot make a directory of node 1")?;
    fs::write(other.join("file"), vec![1; 1 << 20])?;
    let theirs = pair.mount(2).join("others/file");
    let cached = || -> Result<()> {
        for _ in 0..count {
            let opened = File::open(&theirs)?;
            opened.metadata()?;
            fs::symlink_metadata(&theirs)?;
            opened.read_exact_at(&mut [0; 4096], 8192)?;
        }
        Ok(())
    };
    cached()?;
    let read_theirs = counted(rig, &pair, cached)?;
    fs::remove_dir_all(&directory)?;
    fs::remove_dir_all(&other)?;
    let per = |messages: u64| as_f64(messages) / as_f64(count as u64);
    let zero = |name: &str, messages: u64| Row::plain(name, "", per(messages)).bounds(0.0, 0.0);
    Ok(vec![
        zero("messages per open, stat, read, close under a token", read),
        zero("the same, of a file of the other node's shard", read_theirs),
        zero("messages per create in an own directory", created),
        zero("messages per unlink in an own directory", removed),
    ])
}

/// Messages that both nodes send while `work` runs. Leases are renewed all the time and are not counted.
fn counted(rig: &Rig, pair: &Pair, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = pair.messages(rig)?;
    work()?;
    Ok(pair.messages(rig)? - before)
}

/// A directory made by `node`, whose files lie on the NSDs that `layout_of` reaches through the other's server.
fn laid_out(rig: &Rig, pair: &Pair, node: u16, layout_of: u16) -> Result<PathBuf> {
    let path = pair.mount(node).join(format!("laid-out-{node}"));
    fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
    let layout = pair.remote_layout(rig, layout_of)?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, LAYOUT, layout.as_bytes(), flags)
        .with_context(|| format!("cannot lay {} out on {layout}", path.display()))?;
    Ok(path)
}

/// Node 2 writes and reads files on node 1's NSDs, against the bare network.
pub(crate) fn remote(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    // Node 2 writes where only node 1's server can; what it reads node 1 has written there.
    let written = laid_out(rig, &pair, 2, 2)?.join("large");
    laid_out(rig, &pair, 1, 2)?;
    let (read, cold) = (
        pair.mount(1).join("laid-out-1/large"),
        pair.mount(2).join("laid-out-1/large"),
    );
    // The first turn brings tokens and directories, and is not counted.
    load::write_file(&written, 64 << 20, false)?;
    let (mut writes, mut reads) = (Turns::default(), Turns::default());
    for _ in 0..scale.run_count {
        let bare = network(rig, &pair)?;
        writes.push(load::write_file(&written, scale.file_size, false)?, bare);
        load::write_file(&read, scale.file_size, false)?;
        reads.push(load::read_file(&cold)?, bare);
    }
    fs::remove_file(&written)?;
    let work = || load::write_file(&written, scale.file_size, false).map(drop);
    let sent = counted(rig, &pair, work)?;
    fs::remove_dir_all(pair.mount(2).join("laid-out-2"))?;
    fs::remove_dir_all(pair.mount(1).join("laid-out-1"))?;
    let mebibytes = as_f64(scale.file_size >> 20);
    Ok(vec![
        Row::turns("1 MiB write through the server", "MB/s", &writes, "iperf3")
            .bounds(0.35, 0.55)
            .note("with fsync; all on the other node's two NSDs"),
        Row::turns(
            "1 MiB read through the server, cold",
            "MB/s",
            &reads,
            "iperf3",
        )
        .bounds(0.35, 0.55)
        .note("written by the other node, on its NSDs"),
        Row::plain("messages per MiB of it", "", as_f64(sent) / mebibytes)
            .bounds(2.0 + 8.0 / 64.0, 2.0 + 6.0 / 64.0)
            .note(format!(
                "{sent} in all for {mebibytes} MiB, create and fsync included"
            )),
    ])
}

/// Both nodes write files of their own and read, at the same time, the ones that the other wrote before.
pub(crate) fn both(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let size = scale.file_size / 2;
    let path = |node: u16, name: String| pair.mount(node).join(name);
    let (mut alone, mut shares) = (Turns::default(), Vec::new());
    for _ in 0..scale.run_count {
        for node in [1, 2] {
            load::write_file(&path(node, format!("read-{node}")), size, false)?;
        }
        let one = load::write_file(&path(1, "written-1".into()), size, false)?;
        let begin = Instant::now();
        let (alone_path, pair_path) = (&path, &pair);
        let rates = thread::scope(|scope| -> Result<Vec<f64>> {
            let writers = [1, 2].map(|node| {
                let path = alone_path(node, format!("written-{node}"));
                scope.spawn(move || load::write_file(&path, size, false))
            });
            let readers = [1, 2].map(|node| {
                let path = pair_path.mount(node).join(format!("read-{}", 3 - node));
                scope.spawn(move || load::read_file(&path))
            });
            let all = writers.into_iter().chain(readers);
            all.map(|t| t.join().expect("a load does not panic"))
                .collect()
        })?;
        let total = as_f64(4 * size) / 1e6 / begin.elapsed().as_secs_f64();
        alone.push(total, one);
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        shares.push(least / most);
        for node in [1, 2] {
            fs::remove_file(path(node, format!("read-{node}")))?;
            fs::remove_file(path(node, format!("written-{node}")))?;
        }
    }
    Ok(vec![
        Row::turns(
            "2 nodes write own and read each other's, all four",
            "MB/s",
            &alone,
            "1 writer",
        ),
        Row::plain(
            "slowest of the four against the quickest",
            "",
            median(&mut shares),
        ),
    ])
}

/// MB/s of iperf3 -P 4 between the two name spaces.
fn network(rig: &Rig, pair: &Pair) -> Result<f64> {
    let (first, second) = (pair.netns(rig, 1)?, pair.netns(rig, 2)?);
    let mut server = Command::new("ip")
        .args(["netns", "exec", &first, "iperf3", "-s", "-1", "-p", PORT])
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start iperf3")?;
    let listens = || {
        run(
            "ip",
            &["netns", "exec", &first, "ss", "-Hltn", "sport", "=", PORT],
        )
    };
    let begin = Instant::now();
    while listens()?.is_empty() && begin.elapsed().as_secs() < 5 {
        thread::yield_now();
    }
    let client = [
        "netns",
        "exec",
        &second,
        "iperf3",
        "-c",
        "10.77.0.1",
        "-p",
        PORT,
        "-P",
        "4",
        "-t",
        "1",
        "-J",
    ];
    let answer = run("ip", &client);
    if answer.is_err() {
        let _ = server.kill();
    }
    server.wait()?;
    let answer: Value = serde_json::from_str(&answer?).context("iperf3 answers JSON")?;
    let bits = answer["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("iperf3 names a rate")? / 8e6)
}

/// Two nodes write one sector in turn.
pub(crate) fn ping_pong(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let files = shared(&pair, "ping-pong")?;
    let count = scale.operation_count / 20;
    let mut times = Vec::new();
    for _ in 0..scale.run_count {
        let begin = Instant::now();
        for index in 0..count {
            let mut seen = [0; 8];
            let value = (index as u64 + 1).to_le_bytes();
            files[index % 2].write_all_at(&[value, value].concat().repeat(256), 0)?;
            if index % 64 == 0 {
                files[1 - index % 2].read_exact_at(&mut seen, 0)?;
                ensure!(
                    seen == value,
                    "the other node reads {seen:?} instead of {value:?}"
                );
            }
        }
        times.push(begin.elapsed().as_secs_f64() * 1e6 / as_f64(count as u64));
    }
    fs::remove_file(pair.mount(1).join("ping-pong"))?;
    Ok(vec![
        Row::plain(
            "ping-pong write of one sector, per exchange",
            "us",
            median(&mut times),
        )
        .bounds(400.0, 200.0),
    ])
}

fn shared(pair: &Pair, name: &str) -> Result<[File; 2]> {
    let open = |node: u16| {
        let path = pair.mount(node).join(name);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        opened.with_context(|| format!("cannot open {}", path.display()))
    };
    Ok([open(1)?, open(2)?])
}

/// Two nodes write every other record of one file, against each its own file; then both read all of it back.
pub(crate) fn interleaved(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let count = usize::try_from(scale.file_size).context("a size in memory")? / RECORD_SIZE / 4;
    let (mut rates, mut late) = (Turns::default(), Vec::new());
    let mut reads = Vec::new();
    for _ in 0..scale.run_count {
        let files = shared(&pair, "interleaved")?;
        // Each writer's first three records settle who has what.
        write_records(&files, 0..3, 2)?;
        let before = revokes(rig, &pair)?;
        let together = write_records(&files, 3..count, 2)?;
        late.push(as_f64(revokes(rig, &pair)? - before));
        reads.push(verify_records(&pair, count)?);
        fs::remove_file(pair.mount(1).join("interleaved"))?;
        let own = [own(&pair.mount(1), "own-1")?, own(&pair.mount(2), "own-2")?];
        let apart = write_records(&own, 3..count, 1)?;
        rates.push(together, apart);
        for node in [1, 2] {
            fs::remove_file(pair.mount(node).join(format!("own-{node}")))?;
        }
    }
    Ok(vec![
        Row::plain(
            "revokes after each writer's third interleaved record",
            "",
            median(&mut late),
        )
        .bounds(0.0, 0.0),
        Row::turns(
            "interleaved 47,008-byte records by two nodes",
            "MB/s",
            &rates,
            "own files",
        )
        .bounds(0.3, 0.6),
        Row::plain(
            "all of it read back by both nodes",
            "MB/s",
            median(&mut reads),
        )
        .note("each byte compared"),
    ])
}

fn own(mount: &Path, name: &str) -> Result<File> {
    Ok(OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.join(name))?)
}

/// The bytes of a record: no two of them are alike.
fn fill(record: &mut [u8], number: usize) {
    for (index, word) in record.chunks_mut(8).enumerate() {
        let value = (number as u64) << 32 | index as u64;
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

/// Both nodes write records `range` at the same time and fsync; with `stride` 2 they interleave. MB/s.
fn write_records(files: &[File; 2], range: std::ops::Range<usize>, stride: usize) -> Result<f64> {
    let bytes = 2 * range.len() * RECORD_SIZE;
    let begin = Instant::now();
    let write = |who: usize| -> std::io::Result<()> {
        let mut record = vec![0; RECORD_SIZE];
        let first = if stride == 2 { who } else { 0 };
        for index in range.clone() {
            let number = index * stride + first;
            fill(&mut record, number);
            files[who].write_all_at(&record, (number * RECORD_SIZE) as u64)?;
        }
        files[who].sync_all()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| write(1));
        let own = write(0);
        own.and(other.join().expect("the writer does not panic"))
    })?;
    Ok(as_f64(bytes as u64) / 1e6 / begin.elapsed().as_secs_f64())
}

/// Both nodes read all of the interleaved file at once, each record as a whole; MB/s of both.
fn verify_records(pair: &Pair, count: usize) -> Result<f64> {
    let begin = Instant::now();
    let read = |node: u16| -> Result<()> {
        let file = File::open(pair.mount(node).join("interleaved"))?;
        let size = file.metadata()?.len();
        ensure!(
            size == (2 * count * RECORD_SIZE) as u64,
            "node {node} sees {size} bytes"
        );
        let (mut record, mut wanted) = (vec![0; RECORD_SIZE], vec![0; RECORD_SIZE]);
        for number in 0..2 * count {
            file.read_exact_at(&mut record, (number * RECORD_SIZE) as u64)?;
            fill(&mut wanted, number);
            ensure!(
                record == wanted,
                "node {node} reads other bytes in record {number}"
            );
        }
        Ok(())
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| read(2));
        let own = read(1);
        own.and(other.join().expect("the reader does not panic"))
    })?;
    let bytes = 2 * 2 * count * RECORD_SIZE;
    Ok(as_f64(bytes as u64) / 1e6 / begin.elapsed().as_secs_f64())
}

/// Revokes that both nodes as owners have asked for, also of themselves.
fn revokes(rig: &Rig, pair: &Pair) -> Result<u64> {
    Ok(pair.counter(rig, 1, &["revokes"])? + pair.counter(rig, 2, &["revokes"])?)
}
