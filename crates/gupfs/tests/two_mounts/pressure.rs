//! A pagepool that is much smaller than what is written and read: it is slow at worst, and never fails.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use crate::finish;
use crate::fixture::{Fixture, reason_to_skip};

/// Small files: together more than the pool.
const SMALL_COUNT: usize = 4000;
/// Large writes of 1 MiB: twice the pool.
const LARGE_COUNT: usize = 64;
/// A large write needs a slab in one piece. It may wait for one, but not longer than this.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// So many large writes may take longer: a busy machine holds one or two up, a pool without slabs holds up most.
const HELD_UP_MAX: usize = 4;

fn small(index: usize) -> Vec<u8> {
    let value = u8::try_from(index % 251).expect("a byte");
    vec![value; 1 + index * 7919 % 14_000]
}

fn large(index: usize) -> Vec<u8> {
    vec![u8::try_from(index % 241).expect("a byte"); 1 << 20]
}

/// Small files scatter single frames over all slabs; then large writes want slabs in one piece, while old
/// files are read again.
#[test]
fn large_writes_find_slabs_in_a_scattered_pool() {
    if let Some(reason) = reason_to_skip() {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = Fixture::with(&["--pagepool", "32M"]);
    let outcome = scatter_and_write(&fixture);
    finish(&fixture, outcome);
}

fn scatter_and_write(fixture: &Fixture) -> Result<String, String> {
    let slot = fixture.slot();
    let path = |node, index: usize| {
        let name = format!("d{}/f{index}", index % 16);
        fixture.path(node, &name)
    };
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    for directory in 0..16 {
        let made = fs::create_dir(fixture.path(1, &format!("d{directory}")));
        made.map_err(|error| failed("mkdir", error))?;
    }
    for index in 0..SMALL_COUNT {
        slot.run("small write", || fs::write(path(1, index), small(index)))
            .map_err(|error| failed("small write", error))?;
    }
    let mut file = File::create(fixture.path(1, "large")).map_err(|e| failed("create", e))?;
    let mut times = Vec::with_capacity(LARGE_COUNT);
    for index in 0..LARGE_COUNT {
        let begin = Instant::now();
        slot.run("large write", || file.write_all(&large(index)))
            .map_err(|error| failed("large write", error))?;
        times.push(begin.elapsed());
        let again = index * 61 % SMALL_COUNT;
        let bytes = slot
            .run("small read", || fs::read(path(1, again)))
            .map_err(|error| failed("small read", error))?;
        if bytes != small(again) {
            return Err(format!("small file {again} has other bytes"));
        }
    }
    times.sort_unstable();
    times.reverse();
    if times[HELD_UP_MAX] > WAIT_MAX {
        let longest = &times[..=HELD_UP_MAX];
        return Err(format!("large writes took {longest:?}"));
    }
    slot.run("fsync", || file.sync_all())
        .map_err(|error| failed("fsync", error))?;
    let bytes = slot
        .run("read through node 2", || fs::read(fixture.path(2, "large")))
        .map_err(|error| failed("read", error))?;
    for (index, block) in bytes.chunks(1 << 20).enumerate() {
        if block != large(index) {
            return Err(format!("block {index} has other bytes on node 2"));
        }
    }
    if bytes.len() != LARGE_COUNT << 20 {
        return Err(format!("{} bytes on node 2", bytes.len()));
    }
    Ok(format!("the longest large write took {:?}", times[0]))
}
