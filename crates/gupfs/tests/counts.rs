//! What an operation costs, in exact counts: allocations of cached operations, journal bytes of a small fsync.
//!
//! Rates are noisy, counts are not: who adds an allocation to a hot path, or a second write to an fsync, hears of
//! it here. Needs root and /dev/fuse; says so and passes where these are missing.
#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test at the OS boundary"
)]

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Instant;

#[path = "labs/left_out.rs"]
mod left_out;
#[path = "labs/node.rs"]
mod node;

use node::Node;

/// Operations of one measurement.
const COUNT: u64 = 2000;

impl Node {
    fn counter(&self, name: &str) -> u64 {
        let text = self.gupfs(&["dump", "counters", "--json"]);
        find(&serde_json::from_str(&text).unwrap(), name).expect("the counter is there")
    }

    /// How much the counter grew per operation, in hundredths, more than it grows in the same time without: what the daemon
    /// does with each tick would count for more the slower the machine is. The least of `pass_count` passes: on a busy machine
    /// requests wait and are woken, which only adds to it.
    fn per_operation(&self, name: &str, pass_count: u64, mut operation: impl FnMut(u64)) -> u64 {
        // Caches and lists have their size after these.
        (0..COUNT / 4).for_each(|index| operation(COUNT + index));
        let pass = |pass: u64| {
            let first = pass * 2 * COUNT;
            let (before, begin) = (self.counter(name), Instant::now());
            (first..first + COUNT).for_each(&mut operation);
            let (after, time) = (self.counter(name), begin.elapsed());
            std::thread::sleep(time);
            let idle = self.counter(name) - after;
            (after - before).saturating_sub(idle) * 100 / COUNT
        };
        (0..pass_count).map(pass).min().expect("there are some")
    }
}

fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
    let map = value.as_object()?;
    let own = map.get(name).and_then(serde_json::Value::as_u64);
    own.or_else(|| map.values().find_map(|inner| find(inner, name)))
}

/// Passes over allocations, of which the least counts.
const PASS_COUNT: u64 = 3;

/// A file of 1 MiB, committed.
fn megabyte(path: &Path) -> File {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).open(path);
    let file = file.unwrap();
    file.write_all_at(&vec![7; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    file
}

#[test]
fn cached_operations_allocate_little() {
    let Some(node) = Node::new("2G") else { return };
    let file = megabyte(&node.mount().join("file"));
    let read = node.per_operation("allocations", PASS_COUNT, |index| {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, index % 256 * 4096).unwrap();
    });
    let miss = node.per_operation("allocations", PASS_COUNT, |index| {
        let path = node.mount().join(format!("absent{index}"));
        fs::symlink_metadata(path).unwrap_err();
    });
    // create, getattr of the directory, flush, release.
    let create = node.per_operation("allocations", PASS_COUNT, |index| {
        File::create_new(node.mount().join(format!("made{index}"))).unwrap();
    });
    eprintln!("allocations in hundredths: read {read}, stat-miss {miss}, create {create}");
    assert!(
        read <= READ_MAX,
        "{read} hundredths of an allocation per read"
    );
    assert!(
        miss <= MISS_MAX,
        "{miss} hundredths of an allocation per miss"
    );
    assert!(
        create <= CREATE_MAX,
        "{create} hundredths of an allocation per create"
    );
}

/// Hundredths of allocations; lower them when the code needs fewer.
const READ_MAX: u64 = 120;
const MISS_MAX: u64 = 220;
const CREATE_MAX: u64 = 1600;

/// A 4 KiB write and fsync takes its record and its bytes: two sectors of journal. What earlier ones wrote is not
/// written again (it once was, up to 16 times).
#[test]
fn a_small_fsync_writes_what_is_new() {
    let Some(node) = Node::new("2G") else { return };
    let file = megabyte(&node.mount().join("file"));
    let bytes = node.per_operation("journal_bytes", 1, |index| {
        let offset = index * 101 % 256 * 4096;
        file.write_all_at(&[9; 4096], offset).unwrap();
        file.sync_all().unwrap();
    });
    assert!(
        bytes <= 12_288 * 100,
        "{} bytes of journal per fsync",
        bytes / 100
    );
    let mut seen = [0; 4096];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(seen, [9; 4096]);
}

/// A large write from memory that begins within a page, as malloc gives it, and a direct read into such memory are
/// one request each: they need one page more than their bytes fill.
#[test]
fn a_large_request_from_unaligned_memory_is_not_cut() {
    let Some(node) = Node::new("2G") else { return };
    let limit = fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").unwrap_or_default();
    let Ok(257..) = limit.trim().parse::<u32>() else {
        left_out::left_out(&format!("fs.fuse.max_pages_limit is {limit:?}"));
        return;
    };
    let mut options = OpenOptions::new();
    let path = node.mount().join("file");
    let options = options.read(true).write(true).create_new(true);
    let file = options.open(path).unwrap();
    let size = 1 << 20;
    let mut memory = vec![0_u8; size + 8192];
    let begin = memory.as_ptr().align_offset(4096) + 16;
    let bytes = &mut memory[begin..begin + size];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::try_from(index * 7 % 251).unwrap();
    }
    let count = 8;
    let before = (node.counter("op_write"), node.counter("op_read"));
    for index in 0..count {
        file.write_all_at(bytes, index << 20).unwrap();
    }
    let expected = bytes.to_vec();
    for index in 0..count {
        bytes.fill(0);
        file.read_exact_at(bytes, index << 20).unwrap();
        assert!(bytes == expected, "the bytes of write {index}");
    }
    assert_eq!(node.counter("op_write") - before.0, count);
    assert_eq!(node.counter("op_read") - before.1, count);
}

/// Where no other node can change anything the kernel is asked once: what was made and looked at is not looked up anew after the second
/// for which nodes of larger clusters may believe it.
#[test]
fn a_node_alone_is_not_asked_again() {
    let Some(node) = Node::new("2G") else { return };
    let path = |index: u64| node.mount().join(format!("made{index}"));
    (0..COUNT).for_each(|index| drop(File::create_new(path(index)).unwrap()));
    let look = || {
        (0..COUNT).for_each(|index| assert!(fs::symlink_metadata(path(index)).unwrap().is_file()));
        node.counter("op_lookup")
    };
    let before = look();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let after = look();
    assert!(after - before <= COUNT / 100, "{} lookups", after - before);
    // What changes through the node is seen at once.
    fs::write(path(0), b"bytes").unwrap();
    fs::remove_file(path(1)).unwrap();
    fs::rename(path(2), path(1)).unwrap();
    fs::hard_link(path(3), node.mount().join("link")).unwrap();
    assert_eq!(fs::symlink_metadata(path(0)).unwrap().len(), 5);
    assert!(fs::symlink_metadata(path(2)).is_err());
    assert!(fs::symlink_metadata(path(1)).unwrap().is_file());
    assert_eq!(fs::symlink_metadata(path(3)).unwrap().nlink(), 2);
}
