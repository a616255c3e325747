//! Blocks that consist of many extents are rewritten when they rest.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use serde_json::Value;
use stdx::prng::Prng;

use crate::lab::{LIMIT, Lab, bounded, can_run};

const PAGE: u64 = 4096;
const SIZE: u64 = 32 << 20;
const BLOCK_COUNT: u64 = SIZE >> 20;
/// What a block may consist of (`client::rewrite::PARTS_MAX`).
const PARTS_MAX: u64 = 8;

/// What `gupfs dump inode` of the owner says.
fn map_of(lab: &Lab, node: usize, ino: u64) -> Value {
    let state = format!("{}/n{node}", lab.root());
    let gupfs = env!("CARGO_BIN_EXE_gupfs");
    let ino = ino.to_string();
    let words = [gupfs, "dump", "inode", &ino, "--state", &state, "--json"];
    let output = bounded(LIMIT, &words);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn counter(lab: &Lab, name: &str) -> u64 {
    let value = lab.dump(1, "counters")[name].as_u64();
    value.unwrap_or_else(|| panic!("no counter {name}"))
}

fn remount(lab: &Lab, how: &str) {
    let point = lab.mount(1);
    let options = format!("remount,{how}");
    let words = ["mount", "-i", "-o", &options, point.to_str().unwrap()];
    let output = bounded(LIMIT, &words);
    assert!(output.status.success(), "{output:?}");
}

/// 32 MiB are written over at random, 4 KiB at a time, twice as often as they have pages; a while later their blocks are runs again,
/// the bytes are what was written last, and nobody can tell by the times. While the mount is
/// for reading only nothing happens.
#[test]
fn aged_blocks_are_rewritten_when_they_rest() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("1G", "ram");
    let path = lab.mount(1).join("aged");
    let mut bytes = vec![0x5a; usize::try_from(SIZE).unwrap()];
    fs::write(&path, &bytes).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut prng = Prng::new(11);
    for round in 0..2 {
        for number in 0..SIZE / PAGE {
            let at = prng.below(SIZE / PAGE) * PAGE;
            let page = [u8::try_from((round + number) % 251).unwrap(); 4096];
            file.write_all_at(&page, at).unwrap();
            let begin = usize::try_from(at).unwrap();
            bytes[begin..begin + page.len()].copy_from_slice(&page);
        }
        file.sync_all().unwrap();
    }
    let before = file.metadata().unwrap();
    drop(file);
    // Longer than a block rests.
    remount(&lab, "ro");
    std::thread::sleep(Duration::from_secs(13));
    assert_eq!(counter(&lab, "rewrite_blocks"), 0, "for reading only");
    remount(&lab, "rw");
    let until = Instant::now() + Duration::from_secs(180);
    while counter(&lab, "rewrite_blocks") < BLOCK_COUNT {
        let map = map_of(&lab, 1, before.ino());
        let said = format!("{} blocks: {map}", counter(&lab, "rewrite_blocks"));
        assert!(Instant::now() < until, "{said:.2000}");
        std::thread::sleep(Duration::from_millis(200));
    }
    let (many, few) = (
        counter(&lab, "rewrite_parts_before"),
        counter(&lab, "rewrite_parts_after"),
    );
    assert!(many > BLOCK_COUNT * PARTS_MAX, "{many} extents before");
    assert!(few < BLOCK_COUNT * 2, "{many} extents before, {few} after");
    let map = map_of(&lab, 1, before.ino());
    let left = map["extents"].as_array().unwrap().len() as u64;
    assert!(
        left <= BLOCK_COUNT * PARTS_MAX,
        "{left} extents: {map:.2000}"
    );
    let after = fs::metadata(&path).unwrap();
    assert_eq!(
        (
            after.mtime(),
            after.mtime_nsec(),
            after.ctime(),
            after.ctime_nsec()
        ),
        (
            before.mtime(),
            before.mtime_nsec(),
            before.ctime(),
            before.ctime_nsec()
        )
    );
    for mount in [lab.mount(1), lab.mount(2)] {
        assert!(
            fs::read(mount.join("aged")).unwrap() == bytes,
            "other bytes"
        );
    }
}
