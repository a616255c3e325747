//! Files that are opened for reading only, and read past the kernel's page cache because they are large.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use stdx::Prng;

use crate::calls::{Mapping, send};
use crate::finish;
use crate::fixture::{Fixture, reason_to_skip};
use crate::pingpong::{self, PingPong};

/// Bytes of a file from which on it is read directly.
const SIZE: usize = 4 << 20;
const PAGE: usize = 4096;

/// A lab in which files of `size` bytes are large, if there can be one.
fn lab(size: usize) -> Option<Fixture> {
    if let Some(reason) = reason_to_skip() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(Fixture::with(&["--direct-from", &size.to_string()]))
}

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// A file of `SIZE` bytes, made by node 1.
fn large_file(fixture: &Fixture, name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; SIZE];
    Prng::new(1).fill(&mut bytes);
    io("make", std::fs::write(fixture.path(1, name), &bytes))?;
    Ok(bytes)
}

/// READs that node 2 was asked for.
fn reads(fixture: &Fixture) -> u64 {
    let counters = fixture.counters(2);
    counters["op_read"].as_u64().expect("a counter")
}

/// Reads `count` times `length` bytes at the same place, and says how many of these reads came to the daemon.
fn asked(fixture: &Fixture, file: &File, count: u64, length: usize) -> Result<u64, String> {
    let before = reads(fixture);
    let mut bytes = vec![0; length];
    for _ in 0..count {
        io("read", file.read_exact_at(&mut bytes, 0))?;
    }
    Ok(reads(fixture) - before)
}

/// By default a large file that is read again comes through the page cache: the second reading fills it, the next ask
/// the daemon for nothing. What the other node writes is seen at once, and the next reading is direct.
#[test]
fn a_large_file_that_is_read_again_is_cached() {
    if let Some(reason) = reason_to_skip() {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = Fixture::with(&[]);
    let outcome = (|| {
        let (own, other) = (fixture.path(2, "large"), fixture.path(1, "large"));
        let length = types::limits::DIRECT_SIZE_MIN;
        let made = io("make", File::create(&own))?;
        io("make it long", made.set_len(length))?;
        drop(made);
        // The READs of a reading, and the first byte it finds.
        let read = || -> Result<(u64, u8), String> {
            let before = reads(&fixture);
            let mut file = io("open", File::open(&own))?;
            let mut bytes = vec![0; 1 << 20];
            let mut first = None;
            let mut total = 0;
            while total < length {
                io("read", file.read_exact(&mut bytes))?;
                first.get_or_insert(bytes[0]);
                total += bytes.len() as u64;
            }
            let first = first.ok_or("it is not empty")?;
            Ok((reads(&fixture) - before, first))
        };
        let direct = length >> 20;
        let slot = fixture.slot();
        slot.run("readings", || {
            assert_eq!(read()?, (direct, 0), "one READ for each MiB: direct");
            let (filling, _) = read()?;
            assert!(filling > 0, "the page cache had nothing");
            // On a machine with other work the kernel drops some of its pages at times, and nobody asks it to (one run in 60): those are
            // read once more.
            let mut again = Vec::new();
            while again.last() != Some(&0) {
                assert!(again.len() < 5, "it should have all of it: {again:?}");
                let (asked, first) = read()?;
                assert_eq!(first, 0);
                assert!(asked < direct, "it had nothing: {again:?}");
                again.push(asked);
            }
            let writer = io("open", OpenOptions::new().write(true).open(&other))?;
            io("write", writer.write_all_at(&[7], 0))?;
            let (_, first) = read()?;
            assert_eq!(first, 7, "the other node's byte");
            Ok(format!("{filling} READs filled the page cache"))
        })
    })();
    finish(&fixture, outcome);
}

/// The other node writes; a direct descriptor, a mapping made of it, and sendfile from it see each byte at once.
#[test]
fn a_direct_reader_sees_what_the_other_node_writes() {
    let Some(fixture) = lab(SIZE) else { return };
    let outcome = (|| {
        let mut model = large_file(&fixture, "file")?;
        let mut options = OpenOptions::new();
        let writer = io("open", options.write(true).open(fixture.path(1, "file")))?;
        let reader = io("open", File::open(fixture.path(2, "file")))?;
        assert!(asked(&fixture, &reader, 8, SIZE / 4)? >= 8, "it is direct");
        let mapped = io("open", File::open(fixture.path(2, "file")))?;
        let mapping = io("map", Mapping::new(&mapped, SIZE, false))?;
        let mut prng = Prng::new(2);
        let slot = fixture.slot();
        for round in 0..=u8::MAX {
            let mut place = |limit: usize| {
                let mut below =
                    |end: usize| usize::try_from(prng.below(end as u64)).expect("below a size");
                let length = 1 + below(limit);
                (below(SIZE - length), length)
            };
            let (at, length) = place(200_000);
            let (look, width) = place(10_000);
            model[at..at + length].fill(round);
            let seen = slot.run("a round of direct reads", || {
                io(
                    "write",
                    writer.write_all_at(&model[at..at + length], at as u64),
                )?;
                let mut seen = vec![0; length];
                io("read", reader.read_exact_at(&mut seen, at as u64))?;
                let mut loaded = vec![0; width];
                io("load", mapping.load(look, &mut loaded))?;
                Ok::<_, String>((seen, loaded))
            })?;
            if seen.0 != model[at..at + length] {
                return Err(format!("round {round}: {length} bytes at {at} are old"));
            }
            if seen.1 != model[look..look + width] {
                return Err(format!("round {round}: mapped bytes at {look} are old"));
            }
        }
        let sent = slot.run("sendfile", || io("sendfile", send(&reader, SIZE)))?;
        if sent != model {
            return Err("sendfile shows other bytes".to_owned());
        }
        Ok(String::new())
    })();
    finish(&fixture, outcome);
}

/// Who reads in small pieces is cached from its next open on, and goes direct again when its pieces are large.
#[test]
fn a_small_reader_is_cached_by_its_next_open() {
    let Some(fixture) = lab(SIZE) else { return };
    let outcome = (|| {
        large_file(&fixture, "file")?;
        let open = || io("open", File::open(fixture.path(2, "file")));
        let first = open()?;
        assert!(asked(&fixture, &first, 32, PAGE)? >= 32, "the first open");
        let cached = open()?;
        let count = asked(&fixture, &cached, 1000, PAGE)?;
        assert!(count < 10, "{count} READs of a cached page");
        // Both modes at once, while the first page changes.
        for round in 0..100 {
            let page = [round; PAGE];
            let file = OpenOptions::new().write(true).open(fixture.path(1, "file"));
            io("write", io("open", file)?.write_all_at(&page, 0))?;
            for (name, file) in [("direct", &first), ("cached", &cached)] {
                let mut seen = [0; PAGE];
                io(name, file.read_exact_at(&mut seen, 0))?;
                assert_eq!(seen, page, "{name}, round {round}");
            }
        }
        // Nothing is in the page cache now but the first page: the kernel asks for what a large read wants.
        let large = open()?;
        asked(&fixture, &large, 1, SIZE)?;
        assert!(asked(&fixture, &open()?, 8, SIZE)? >= 8, "direct again");
        Ok(String::new())
    })();
    finish(&fixture, outcome);
}

/// The ping-pong with every reading descriptor direct.
#[test]
fn ping_pong_with_direct_readers() {
    let Some(fixture) = lab(0) else { return };
    let (seed, duration) = (pingpong::seed(), pingpong::duration() / 4);
    let outcome = PingPong::new(&fixture, seed).run(duration);
    let outcome = outcome
        .map(|steps| format!("ping-pong seed {seed}: {steps} steps"))
        .map_err(|fault| format!("seed {seed}\n{fault}"));
    finish(&fixture, outcome);
}
