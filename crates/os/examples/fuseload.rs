//! A small load on one directory: microseconds per operation, for comparing FUSE servers.
//!
//! `fuseload DIRECTORY [--count N] [--pid SERVER]` prints one line `operation us` for each; with the
//! server's process id also the context switches per operation of its threads.
#![allow(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program of its own"
)]

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILE_SIZE: u64 = 16 << 20;

/// Context switches of all threads of a process.
fn switches(pid: Option<&str>) -> u64 {
    let Some(pid) = pid else {
        return 0;
    };
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let count = |text: String| -> u64 {
        let found = text.lines().filter(|line| line.contains("ctxt_switches"));
        found
            .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
            .sum()
    };
    lines.map(count).sum()
}

/// Runs `operation` for each number below `count` and prints its cost.
fn measure(name: &str, count: u64, pid: Option<&str>, mut operation: impl FnMut(u64)) {
    let before = switches(pid);
    let start = Instant::now();
    for index in 0..count {
        operation(index);
    }
    #[allow(clippy::cast_precision_loss, reason = "small counts")]
    let (us, switches) = (
        start.elapsed().as_secs_f64() * 1e6 / count as f64,
        (switches(pid) - before) as f64 / count as f64,
    );
    println!("{name:12} {us:8.2} {switches:6.2}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|word| word == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let directory = Path::new(arguments.get(1).expect("usage: fuseload DIRECTORY")).join("load");
    let count = value("--count").map_or(5000, |text| text.parse().expect("a number"));
    let pid = value("--pid");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("create_dir");
    let paths: Vec<PathBuf> = (0..count)
        .map(|i| directory.join(format!("file-{i:06}")))
        .collect();
    let path = |index: u64| &paths[usize::try_from(index).expect("64 bit")];

    measure("create", count, pid, |index| {
        File::create_new(path(index)).expect("create");
    });
    measure("unlink", count, pid, |index| {
        fs::remove_file(path(index)).expect("unlink");
    });
    measure("stat-miss", count, pid, |index| {
        let kind = fs::metadata(path(index)).map_err(|error| error.kind());
        assert_eq!(kind.err(), Some(ErrorKind::NotFound));
    });
    measure("mkdir", count, pid, |index| {
        fs::create_dir(path(index)).expect("mkdir");
    });
    measure("rmdir", count, pid, |index| {
        fs::remove_dir(path(index)).expect("rmdir");
    });

    let file = directory.join("data");
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&file);
    let file = file.expect("open");
    let mut buffer = vec![7_u8; 1 << 20];
    measure("write-1M", FILE_SIZE >> 20, pid, |index| {
        file.write_all_at(&buffer, index << 20).expect("write");
    });
    let place = |index: u64| index.wrapping_mul(0x9e37_79b9) % (FILE_SIZE / 4096) * 4096;
    measure("write-4K", count, pid, |index| {
        file.write_all_at(&buffer[..4096], place(index))
            .expect("write");
    });
    measure("read-4K", count, pid, |index| {
        file.read_exact_at(&mut buffer[..4096], place(index))
            .expect("read");
    });
    assert!(
        buffer.iter().all(|byte| *byte == 7),
        "other bytes came back"
    );
    measure("read-1M", FILE_SIZE >> 20, pid, |index| {
        file.read_exact_at(&mut buffer, index << 20).expect("read");
    });
    drop(file);
    fs::remove_dir_all(&directory).expect("remove_dir_all");
}
