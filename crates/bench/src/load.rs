//! Loads: loops of plain system calls, each giving microseconds per operation or megabytes per second.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use stdx::prng::Prng;

/// First argument of a process that shares the work of another.
pub(crate) const WORKER: &str = "--worker";
/// Bytes of one large write or read.
const BLOCK: usize = 1 << 20;
/// Bytes of a page of memory.
const PAGE: usize = 4096;
/// Bytes of the file for small reads and writes.
const SMALL_FILE: u64 = 16 << 20;

/// Small operations that are measured alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Small {
    /// open(O_CREAT|O_EXCL) and close.
    Create,
    /// unlink.
    Unlink,
    /// stat of a name that is not there, each another one.
    StatMiss,
    /// mkdir.
    Mkdir,
    /// pread of 4 KiB through a descriptor that is open for writing: each reaches the server.
    Read,
    /// pwrite of 4 KiB.
    Write,
}

impl Small {
    /// As the table calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::StatMiss => "stat-miss",
            Self::Mkdir => "mkdir",
            Self::Read => "4 KiB read",
            Self::Write => "4 KiB write",
        }
    }

    /// Microseconds per operation, of `count` of them below `directory`. What is needed before and what is
    /// left after is not counted.
    pub(crate) fn measure(self, directory: &Path, count: usize) -> Result<f64> {
        let directory = directory.join("small");
        fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let path = |index: usize| directory.join(format!("f{index:06}"));
        if self == Self::Unlink {
            (0..count).try_for_each(|index| File::create_new(path(index)).map(drop))?;
        }
        let file = match self {
            Self::Read | Self::Write => Some(small_file(&path(0))?),
            Self::Create | Self::Unlink | Self::StatMiss | Self::Mkdir => None,
        };
        if let Some(file) = &file {
            // Its write-back belongs to the preparation.
            file.sync_all()?;
        }
        let mut prng = Prng::new(7);
        let mut buffer = vec![1_u8; 4096];
        let begin = Instant::now();
        for index in 0..count {
            let offset = prng.below(SMALL_FILE / 4096) * 4096;
            match (self, &file) {
                (Self::Create, _) => drop(File::create_new(path(index))?),
                (Self::Unlink, _) => fs::remove_file(path(index))?,
                (Self::Mkdir, _) => fs::create_dir(path(index))?,
                (Self::StatMiss, _) => {
                    let missed = fs::symlink_metadata(path(index));
                    ensure!(
                        missed.is_err_and(|e| e.kind() == ErrorKind::NotFound),
                        "a name that is not there"
                    );
                }
                (Self::Read, Some(file)) => file.read_exact_at(&mut buffer, offset)?,
                (Self::Write, Some(file)) => file.write_all_at(&buffer, offset)?,
                (Self::Read | Self::Write, None) => bail!("the file was opened above"),
            }
        }
        let time = begin.elapsed().as_secs_f64();
        drop(file);
        fs::remove_dir_all(&directory)?;
        Ok(time * 1e6 / as_f64(count as u64))
    }
}

fn small_file(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)?;
    let block = vec![3; BLOCK];
    for offset in (0..SMALL_FILE).step_by(BLOCK) {
        file.write_all_at(&block, offset)?;
    }
    Ok(file)
}

/// Where in a page the memory of large reads and writes begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alignment {
    /// At its first byte: as dd, cp, fio and IOR have it.
    Page,
    /// 16 bytes into it: as malloc gives it.
    Malloc,
}

/// Memory of a large read or write.
#[derive(Debug)]
struct Block {
    memory: Vec<u8>,
    begin: usize,
}

impl Block {
    fn new(byte: u8, alignment: Alignment) -> Self {
        let memory = vec![byte; BLOCK + 2 * PAGE];
        let offset = match alignment {
            Alignment::Page => 0,
            Alignment::Malloc => 16,
        };
        let begin = memory.as_ptr().align_offset(PAGE) + offset;
        Self { memory, begin }
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..self.begin + BLOCK]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + BLOCK]
    }
}

/// A number for dividing.
#[allow(clippy::cast_precision_loss, reason = "a figure for a table")]
pub(crate) fn as_f64(number: u64) -> f64 {
    number as f64
}

fn rate(bytes: u64, begin: Instant) -> f64 {
    as_f64(bytes) / 1e6 / begin.elapsed().as_secs_f64()
}

/// Writes `size` bytes to the new file `path` by 1 MiB and fsyncs; MB/s. `is_read_write` opens it O_RDWR.
pub(crate) fn write_file(path: &Path, size: u64, is_read_write: bool) -> Result<f64> {
    write_file_from(path, size, is_read_write, Alignment::Malloc)
}

/// As [`write_file`], from memory that begins so.
pub(crate) fn write_file_from(
    path: &Path,
    size: u64,
    is_read_write: bool,
    alignment: Alignment,
) -> Result<f64> {
    let _ = fs::remove_file(path);
    let begin = Instant::now();
    let mut file = OpenOptions::new()
        .write(true)
        .read(is_read_write)
        .create_new(true)
        .open(path)?;
    let block = Block::new(0x5a, alignment);
    for _ in 0..size / BLOCK as u64 {
        file.write_all(block.bytes())?;
    }
    file.sync_all()?;
    Ok(rate(size, begin))
}

/// Reads the file `path` by 1 MiB through O_RDONLY; MB/s.
pub(crate) fn read_file(path: &Path) -> Result<f64> {
    let begin = Instant::now();
    let mut file = File::open(path)?;
    let mut block = Block::new(0, Alignment::Malloc);
    let mut size = 0;
    loop {
        match file.read(block.bytes_mut())? {
            0 => break,
            count => size += count as u64,
        }
    }
    ensure!(size > 0, "{} is empty", path.display());
    Ok(rate(size, begin))
}

/// 4 KiB writes, each followed by an fsync; writes per second.
pub(crate) fn write_fsync(path: &Path, count: usize) -> Result<f64> {
    let file = small_file(path)?;
    file.sync_all()?;
    let block = vec![9; 4096];
    let mut prng = Prng::new(11);
    let begin = Instant::now();
    for _ in 0..count {
        file.write_all_at(&block, prng.below(SMALL_FILE / 4096) * 4096)?;
        file.sync_all()?;
    }
    let time = begin.elapsed().as_secs_f64();
    drop(file);
    fs::remove_file(path)?;
    Ok(as_f64(count as u64) / time)
}

/// `process_count` processes write or read each its part of one file; MB/s of all together.
pub(crate) fn in_processes(
    path: &Path,
    size: u64,
    process_count: u64,
    is_write: bool,
) -> Result<f64> {
    let own = std::env::current_exe().context("cannot find myself")?;
    if is_write {
        let _ = fs::remove_file(path);
        File::create_new(path)?;
    }
    let part = size / process_count;
    let begin = Instant::now();
    let mut children = Vec::new();
    for index in 0..process_count {
        let child = Command::new(&own)
            .arg(WORKER)
            .arg(if is_write { "write" } else { "read" })
            .arg(path)
            .args([(index * part).to_string(), part.to_string()])
            .spawn()
            .context("cannot start a worker")?;
        children.push(child);
    }
    for mut child in children {
        ensure!(child.wait()?.success(), "a worker failed");
    }
    Ok(rate(part * process_count, begin))
}

/// `process_count` processes make `count` files of 4 KiB each, in one new directory below `directory` or each
/// in its own; files per second of all together.
pub(crate) fn make_files(
    directory: &Path,
    process_count: u64,
    count: u64,
    is_shared: bool,
) -> Result<f64> {
    let root = directory.join("files");
    fs::create_dir(&root)?;
    let rate = in_directories("files", &root, process_count, count, is_shared)?;
    fs::remove_dir_all(&root)?;
    Ok(rate)
}

/// `process_count` processes make `count` empty files each in an own directory, and then remove them; both in
/// operations per second of all together.
pub(crate) fn make_and_remove(
    directory: &Path,
    process_count: u64,
    count: u64,
) -> Result<(f64, f64)> {
    let root = directory.join("names");
    fs::create_dir(&root)?;
    let make = in_directories("create", &root, process_count, count, false)?;
    let remove = in_directories("unlink", &root, process_count, count, false)?;
    fs::remove_dir_all(&root)?;
    Ok((make, remove))
}

/// `process_count` processes do `what` to `count` files each, in directories below `root`; per second.
fn in_directories(
    what: &str,
    root: &Path,
    process_count: u64,
    count: u64,
    is_shared: bool,
) -> Result<f64> {
    let mut commands = Vec::new();
    for index in 0..process_count {
        let path = root.join(if is_shared { 0 } else { index }.to_string());
        fs::create_dir_all(&path)?;
        commands.push(worker(what, &path, index * count, count)?);
    }
    let begin = Instant::now();
    let started: Vec<_> = commands.iter_mut().map(Command::spawn).collect();
    for child in started {
        let mut child = child.context("cannot start a worker")?;
        ensure!(child.wait()?.success(), "a worker failed");
    }
    let time = begin.elapsed().as_secs_f64();
    Ok(as_f64(process_count * count) / time)
}

/// A process of our own that does `what`: see [`work`].
pub(crate) fn worker(what: &str, path: &Path, offset: u64, size: u64) -> Result<Command> {
    let own = std::env::current_exe().context("cannot find myself")?;
    let mut command = Command::new(own);
    let numbers = [offset.to_string(), size.to_string()];
    command.args([WORKER, what]).arg(path).args(numbers);
    Ok(command)
}

/// The work of one process of [`in_processes`], [`make_files`] or [`make_and_remove`], or one that goes on until it
/// is killed.
pub(crate) fn work(arguments: &[String]) -> Result<()> {
    let [what, path, offset, size] = arguments else {
        bail!(
            "a worker needs: write|read|stream PATH OFFSET SIZE, or files|create|unlink|churn DIRECTORY FIRST COUNT"
        );
    };
    let (offset, size): (u64, u64) = (offset.parse()?, size.parse()?);
    let name = |index: u64| Path::new(path).join(format!("f{index:06}"));
    match what.as_str() {
        "files" => {
            let block = [0x66; 4096];
            return (offset..offset + size)
                .try_for_each(|index| Ok(File::create_new(name(index))?.write_all(&block)?));
        }
        "create" => {
            return (offset..offset + size)
                .try_for_each(|index| Ok(File::create_new(name(index)).map(drop)?));
        }
        "unlink" => {
            return (offset..offset + size).try_for_each(|index| Ok(fs::remove_file(name(index))?));
        }
        "churn" => {
            let block = [0x63; 1500];
            for round in 0.. {
                let directory = Path::new(path).join(round.to_string());
                fs::create_dir(&directory)?;
                for index in offset..offset + size {
                    File::create_new(directory.join(index.to_string()))?.write_all(&block)?;
                }
            }
        }
        "stream" => {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)?;
            let block = Block::new(0x73, Alignment::Malloc);
            loop {
                for at in (offset..offset + size).step_by(BLOCK) {
                    file.write_all_at(block.bytes(), at)?;
                }
            }
        }
        "read" | "write" => {}
        other => bail!("a worker does not know {other:?}"),
    }
    let is_write = what == "write";
    let file = OpenOptions::new()
        .read(!is_write)
        .write(is_write)
        .open(path)?;
    let mut block = Block::new(0x6b, Alignment::Malloc);
    for at in (offset..offset + size).step_by(BLOCK) {
        if is_write {
            file.write_all_at(block.bytes(), at)?;
        } else {
            file.read_exact_at(block.bytes_mut(), at)?;
        }
    }
    if is_write {
        file.sync_all()?;
    }
    Ok(())
}

/// Reads every file below `path`, one after the other; how many there were, and their bytes.
pub(crate) fn read_tree(path: &Path) -> Result<(u64, u64)> {
    let (mut count, mut size) = (0, 0);
    let mut block = vec![0; BLOCK];
    let mut left = vec![path.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
                continue;
            }
            let mut file = File::open(entry.path())?;
            count += 1;
            loop {
                match file.read(&mut block)? {
                    0 => break,
                    bytes => size += bytes as u64,
                }
            }
        }
    }
    Ok((count, size))
}

/// 4 KiB writes at random places of the file `path`, each followed by an fsync, for at least `time`: how long each
/// took, in microseconds, shortest first.
pub(crate) fn write_fsync_times(path: &Path, time: Duration) -> Result<Vec<f64>> {
    let file = small_file(path)?;
    file.sync_all()?;
    let block = vec![9; 4096];
    let mut prng = Prng::new(12);
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < time {
        let one = Instant::now();
        file.write_all_at(&block, prng.below(SMALL_FILE / 4096) * 4096)?;
        file.sync_all()?;
        times.push(one.elapsed().as_secs_f64() * 1e6);
    }
    drop(file);
    fs::remove_file(path)?;
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// What a line of /proc/PID/status that begins with `name` says, in bytes.
pub(crate) fn status_bytes(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the daemon is gone")?;
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(number.with_context(|| format!("/proc has no {name}"))? << 10)
}

/// Seconds of CPU time, user and system, that the process `pid` has used so far with all its threads.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    /// Ticks of /proc per second, on every architecture that we build for.
    const TICKS: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the daemon is gone")?;
    // The name in brackets may hold anything; state is the first word behind it, utime the 12th.
    let behind = stat.rsplit_once(')').context("stat has a name")?.1;
    let words: Vec<&str> = behind.split_whitespace().collect();
    let [user, system] = words.get(11..13).context("stat has times")? else {
        bail!("stat has times");
    };
    Ok(as_f64(user.parse::<u64>()? + system.parse::<u64>()?) / TICKS)
}

/// Context switches so far of all threads of the process `pid`.
pub(crate) fn switches(pid: u32) -> Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .context("the server is gone")?
        .flatten()
    {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let counts = status.lines().filter(|line| line.contains("ctxt_switches"));
        total += counts
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .sum::<u64>();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_runs_on_a_local_directory_and_leaves_nothing() {
        let directory =
            std::env::temp_dir().join(format!("gupfs-bench-test-{}", std::process::id()));
        fs::create_dir(&directory).expect("made");
        for small in [
            Small::Create,
            Small::Unlink,
            Small::StatMiss,
            Small::Mkdir,
            Small::Read,
            Small::Write,
        ] {
            let time = small.measure(&directory, 20).expect("measured");
            assert!(time > 0.0);
        }
        let file = directory.join("file");
        assert!(write_file(&file, 4 << 20, true).expect("written") > 0.0);
        assert_eq!(fs::metadata(&file).expect("there").len(), 4 << 20);
        assert!(read_file(&file).expect("read") > 0.0);
        let words = |w: &[&str]| w.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let path = file.to_str().expect("text");
        work(&words(&["write", path, "1048576", "1048576"])).expect("a part");
        assert_eq!(fs::read(&file).expect("read")[1 << 20], 0x6b);
        work(&words(&["read", path, "0", "4194304"])).expect("all");
        work(&words(&["read", path])).expect_err("too few words");
        fs::remove_file(&file).expect("removed");
        let path = directory.to_str().expect("text");
        work(&words(&["files", path, "7", "3"])).expect("three files");
        for index in 7..10 {
            let file = directory.join(format!("f{index:06}"));
            assert_eq!(fs::metadata(&file).expect("there").len(), 4096);
            fs::remove_file(&file).expect("removed");
        }
        work(&words(&["create", path, "7", "3"])).expect("three empty files");
        assert_eq!(read_tree(&directory).expect("read"), (3, 0));
        work(&words(&["unlink", path, "7", "3"])).expect("three fewer");
        work(&words(&["dance", path, "7", "3"])).expect_err("no such work");
        assert!(write_fsync(&file, 3).expect("durable") > 0.0);
        let times = write_fsync_times(&file, Duration::from_millis(1)).expect("durable");
        assert!(times.first() <= times.last());
        assert!(status_bytes(std::process::id(), "VmRSS").expect("mine") > 0);
        status_bytes(std::process::id(), "Zebra").expect_err("no such line");
        assert!(cpu_seconds(std::process::id()).expect("mine") >= 0.0);
        assert!(switches(std::process::id()).expect("my own") > 0);
        assert_eq!(fs::read_dir(&directory).expect("list").count(), 0);
        fs::remove_dir(&directory).expect("removed");
    }
}
