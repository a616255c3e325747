//! fallocate on real mounts: what is promised is there on a file system that others have filled to the last sector,
//! written again and again, by both nodes, and after a node was killed.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;

use crate::lab::{Lab, can_run};
use crate::space::{Filler, fill_both, frees, make_directories};

const SIZE: u64 = 12 << 20;
const SECTORS: u64 = SIZE / 4096;

fn allocate(file: impl AsFd, flags: FallocateFlags, size: u64) -> std::io::Result<()> {
    Ok(rustix::fs::fallocate(file, flags, 0, size)?)
}

fn open(lab: &Lab, node: usize, name: &str) -> File {
    let path = lab.mount(node).join(name);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true);
    options
        .open(&path)
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// Writes all of it in pieces of this size, which end in the middle of pages too.
fn write_all(lab: &Lab, file: &File, stamp: u8, piece: usize) {
    let bytes = vec![stamp; piece];
    let mut at = 0;
    while at < SIZE {
        let count = usize::try_from(SIZE - at).unwrap().min(piece);
        let wrote = file.write_all_at(&bytes[..count], at);
        wrote.unwrap_or_else(|e| panic!("{stamp}, at {at}: {e}\n{}", lab.logs()));
        at += count as u64;
    }
    let synced = file.sync_all();
    synced.unwrap_or_else(|e| panic!("{stamp}, sync: {e}\n{}", lab.logs()));
}

/// Writes single pages all over it.
fn write_pages(lab: &Lab, file: &File, stamp: u8) {
    let mut number = 1;
    for step in 0..400 {
        number = (number * 1_664_525 + 1_013_904_223) % SECTORS;
        let wrote = file.write_all_at(&[stamp; 4096], number * 4096);
        wrote.unwrap_or_else(|e| panic!("{stamp}, page {number}: {e}\n{}", lab.logs()));
        if step % 50 == 0 {
            let synced = file.sync_all();
            synced.unwrap_or_else(|e| panic!("{stamp}, sync: {e}\n{}", lab.logs()));
        }
    }
}

fn check_all(lab: &Lab, stamp: u8) {
    for node in [1, 2] {
        let found = fs::read(lab.mount(node).join("kept")).unwrap();
        let wrong = found.iter().position(|byte| *byte != stamp);
        assert_eq!((found.len() as u64, wrong), (SIZE, None), "node {node}");
    }
}

#[test]
fn what_is_promised_is_there_on_a_full_file_system() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("256M", "ram");
    make_directories(&lab);
    let begin = frees(&lab);
    let file = open(&lab, 1, "kept");
    allocate(&file, FallocateFlags::empty(), SIZE).expect("there is room");
    let attr = file.metadata().unwrap();
    assert_eq!((attr.len(), attr.blocks()), (SIZE, SIZE / 512));
    let promised = frees(&lab);
    assert_eq!(begin[0] - promised[0], SECTORS, "df counts it");
    check_all(&lab, 0);

    // A new name may find no room in metadata later.
    let other = open(&lab, 2, "other");
    let mut fillers = [Filler::new(&lab, 1), Filler::new(&lab, 2)];
    fill_both(&mut fillers);
    // More than there is: nothing changes.
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        let said = allocate(&other, flags, 64 << 20).map_err(|e| e.kind());
        assert_eq!(said, Err(ErrorKind::StorageFull));
        let attr = other.metadata().unwrap();
        assert_eq!((attr.len(), attr.blocks()), (0, 0));
    }
    // First writes, and the same sectors again and again.
    for (stamp, piece) in [(1, 1 << 20), (2, 1 << 20), (3, 100_000), (4, 65_536)] {
        write_all(&lab, &file, stamp, piece);
    }
    check_all(&lab, 4);
    write_pages(&lab, &file, 5);
    // The other node.
    let there = open(&lab, 2, "kept");
    for stamp in [6, 7] {
        write_all(&lab, &there, stamp, 1 << 20);
    }
    check_all(&lab, 7);
    write_pages(&lab, &there, 8);
    write_all(&lab, &file, 9, 1 << 20);
    check_all(&lab, 9);
    assert_eq!(file.metadata().unwrap().blocks(), SIZE / 512);

    // Each node dies once.
    drop((file, there, other));
    for (name, node, stamp) in [("n1", 2, 10), ("n2", 1, 20)] {
        lab.gupfs(&["kill", name]);
        lab.gupfs(&["start", name]);
        for node in [node, 3 - node] {
            let file = open(&lab, node, "kept");
            let stamp = stamp + u8::try_from(node).unwrap();
            write_all(&lab, &file, stamp, 1 << 20);
            write_pages(&lab, &file, stamp);
            check_all(&lab, stamp);
        }
    }
    lab.check_walk();

    // Half of it goes back, and all of it.
    let of = |node: usize, what: &str| lab.dump(node, "space")["promised"][what].as_u64();
    let sum = |what| of(1, what).unwrap() + of(2, what).unwrap();
    assert_eq!(sum("total"), SECTORS);
    // What was written last may lie in metadata.
    assert!(sum("unpaid") < 300, "{}", sum("unpaid"));
    open(&lab, 1, "kept").set_len(SIZE / 2).unwrap();
    for name in ["kept", "other"] {
        fs::remove_file(lab.mount(2).join(name)).unwrap();
    }
    for filler in &fillers {
        filler.remove_all();
    }
    // The last close of a removed file is told in the background.
    let until = Instant::now() + Duration::from_secs(20);
    while sum("total") > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
    }
    lab.settle();
    lab.check_walk();
    assert_eq!((sum("total"), sum("unpaid")), (0, 0));
    assert_eq!(frees(&lab), begin);
}
