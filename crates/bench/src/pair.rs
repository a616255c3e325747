//! Rows of two nodes, in a lab.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Scale;
use crate::load::{self, as_f64};
use crate::report::{Row, median};
use crate::rig::{Pair, Rig, run};

/// Bytes of an interleaved record: the documents' size, aligned to nothing.
const RECORD_SIZE: usize = 47_008;
/// Port of iperf3 in the lab.
const PORT: &str = "5201";

/// Messages of node 2 while it works under tokens that it has.
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
    fs::remove_dir_all(&directory)?;
    let per = |messages: u64| as_f64(messages) / as_f64(count as u64);
    let zero = |name: &str, messages: u64| Row::plain(name, "", per(messages)).bounds(0.0, 0.0);
    Ok(vec![
        zero("messages per open, stat, read, close under a token", read),
        zero("messages per create in an own directory", created),
        zero("messages per unlink in an own directory", removed),
    ])
}

/// Messages that node 2 sends while `work` runs. Leases are renewed all the time and are not counted.
fn counted(rig: &Rig, pair: &Pair, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let total = || {
        let all = pair.counter(rig, 2, &["messages", "sent"])?;
        let leases = pair
            .counter(rig, 2, &["messages", "sent", "lease"])
            .unwrap_or(0);
        Ok::<_, anyhow::Error>(all - leases.min(all))
    };
    let before = total()?;
    work()?;
    Ok(total()? - before)
}

/// Large writes and reads of which half goes through the other node's server, against the bare network.
pub(crate) fn remote(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let (path, other) = (pair.mount(2).join("large"), pair.mount(1).join("large"));
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..scale.run_count {
        writes.push(load::write_file(&path, scale.file_size, false)?);
        reads.push(load::read_file(&other)?);
    }
    let before = pair.counter(rig, 2, &["messages", "sent"])?;
    load::write_file(&path, scale.file_size, false)?;
    let sent = pair.counter(rig, 2, &["messages", "sent"])? - before;
    fs::remove_file(&path)?;
    let network = network(rig, &pair)?;
    let note = "striped over all four NSDs: half of the blocks cross the network";
    let mebibytes = as_f64(scale.file_size >> 20);
    Ok(vec![
        Row::ratio(
            "1 MiB write, two of four NSDs remote",
            "MB/s",
            median(&mut writes),
            ("iperf3", network),
        )
        .bounds(0.35, 0.55)
        .note(note),
        Row::ratio(
            "1 MiB read by the other node",
            "MB/s",
            median(&mut reads),
            ("iperf3", network),
        )
        .bounds(0.35, 0.55)
        .note(note),
        Row::plain(
            "messages per MiB of a streaming write",
            "",
            as_f64(sent) / mebibytes,
        )
        .bounds(2.0 + 8.0 / 64.0, 2.0 + 6.0 / 64.0)
        .note(note),
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
        "3",
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

/// Two nodes write every other record of one file, against each its own file.
pub(crate) fn interleaved(rig: &mut Rig, scale: Scale) -> Result<Vec<Row>> {
    let pair = rig.pair()?;
    let count = usize::try_from(scale.file_size).context("a size in memory")? / RECORD_SIZE / 4;
    let (mut together, mut apart, mut late) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.run_count {
        let files = shared(&pair, "interleaved")?;
        // Each writer's first three records settle who has what.
        write_records(&files, 0..3, 2)?;
        let before = revokes(rig, &pair)?;
        together.push(write_records(&files, 3..count, 2)?);
        late.push(as_f64(revokes(rig, &pair)? - before));
        fs::remove_file(pair.mount(1).join("interleaved"))?;
        let own = [own(&pair.mount(1), "own-1")?, own(&pair.mount(2), "own-2")?];
        apart.push(write_records(&own, 3..count, 1)?);
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
        Row::ratio(
            "interleaved 47,008-byte records by two nodes",
            "MB/s",
            median(&mut together),
            ("own files", median(&mut apart)),
        )
        .bounds(0.3, 0.6),
    ])
}

fn own(mount: &Path, name: &str) -> Result<File> {
    Ok(OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.join(name))?)
}

/// Both nodes write records `range` at the same time and fsync; with `stride` 2 they interleave. MB/s.
fn write_records(files: &[File; 2], range: std::ops::Range<usize>, stride: usize) -> Result<f64> {
    let bytes = 2 * range.len() * RECORD_SIZE;
    let begin = Instant::now();
    let write = |who: usize| -> std::io::Result<()> {
        let record = vec![7; RECORD_SIZE];
        let first = if stride == 2 { who } else { 0 };
        for index in range.clone() {
            files[who].write_all_at(&record, ((index * stride + first) * RECORD_SIZE) as u64)?;
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

/// Revokes that both nodes have received.
fn revokes(rig: &Rig, pair: &Pair) -> Result<u64> {
    Ok(pair.counter(rig, 1, &["revoke"])? + pair.counter(rig, 2, &["revoke"])?)
}
