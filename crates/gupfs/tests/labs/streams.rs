//! Files that are written from their beginning to their end, and synced by nobody, when their node is killed.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lab::{Lab, can_run};

/// Bytes of a write; no divisor of a page, so that the end lies anywhere in one.
const PIECE: usize = 40_000;
const ROUND_COUNT: u64 = 4;
/// What a write hears while its mount ends, and after.
const GONE: [ErrorKind; 2] = [ErrorKind::ConnectionAborted, ErrorKind::NotConnected];

/// The bytes of a file from `begin` on: each word says where it is, and none is zero.
fn bytes_at(begin: u64, length: usize) -> Vec<u8> {
    let words = (begin..begin + length as u64).map(|at| (at / 8 + 1) << 8 | 0x5a);
    let pairs = words.zip(begin..);
    pairs
        .map(|(word, at)| word.to_le_bytes()[(at % 8) as usize].max(1))
        .collect()
}

/// Writes until it is told that the mount is gone.
fn stream(path: &Path, written: &AtomicU64) {
    let mut file = File::create(path).expect("made");
    // Its name, that is: nothing is written yet.
    file.sync_all().expect("synced");
    loop {
        let at = written.load(Ordering::Relaxed);
        match file.write_all(&bytes_at(at, PIECE)) {
            Ok(()) => written.store(at + PIECE as u64, Ordering::Relaxed),
            Err(error) if GONE.contains(&error.kind()) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The file is what was written, up to where it ends.
fn is_a_beginning(path: &Path) -> u64 {
    let mut file = File::open(path).expect("its name was synced");
    let (mut at, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        let count = file.read(&mut buffer).expect("readable");
        if count == 0 {
            return at;
        }
        let expected = bytes_at(at, count);
        let differs = (0..count).find(|i| buffer[*i] != expected[*i]);
        if let Some(i) = differs {
            let size = fs::metadata(path).expect("there").len();
            let zeros = buffer[i..count]
                .iter()
                .take_while(|byte| **byte == 0)
                .count();
            panic!(
                "byte {} of {size} is another one ({zeros} zeros at least)",
                at + i as u64
            );
        }
        at += count as u64;
    }
}

#[test]
fn a_file_that_nobody_synced_ends_where_its_bytes_do() {
    if !can_run() {
        return;
    }
    let lab = Lab::up("1G", "loop");
    let mut kept = 0;
    for round in 1..=ROUND_COUNT {
        let path = lab.mount(1).join(format!("stream{round}"));
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| stream(&path, &written));
            // In the middle of writing: the more, the later the round.
            while written.load(Ordering::Relaxed) < round * (40 << 20) && !writer.is_finished() {
                std::thread::yield_now();
            }
            lab.gupfs(&["kill", "n1"]);
        });
        lab.gupfs(&["start", "n1"]);
        let seen = is_a_beginning(&lab.mount(2).join(format!("stream{round}")));
        assert_eq!(is_a_beginning(&path), seen, "through both nodes");
        assert!(seen <= written.into_inner() + PIECE as u64);
        kept += seen;
        fs::remove_file(path).expect("removed");
    }
    assert!(
        kept > 0,
        "nothing was ever committed: this looked at nothing"
    );
    lab.check_walk();
}
