//! Nothing is taken from a node because it has rewritten an aged block: what its rewriter was lent has gone back by then.

use std::fs::{self, File, OpenOptions};
use std::io::Error;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixture::Fixture;
use crate::{finish, lab};

const PAGE: u64 = 4096;
const BLOCK_COUNT: u64 = 2;
const SIZE: u64 = BLOCK_COUNT << 20;
/// Extents of a file that was just made, at most, and those of an aged one, at least.
const FEW: usize = 8;
const MANY: usize = 100;

/// Revokes that both owners have sent.
fn revokes(fixture: &Fixture) -> u64 {
    let count = |node| fixture.counters(node)["revokes"].as_u64().expect("a count");
    count(1) + count(2)
}

/// Extents of a file, by what its owner says. It asks for the attributes at node 1.
fn extents(fixture: &Fixture, name: &str) -> usize {
    let inode = fixture.inode(&fixture.path(1, name));
    let extents = inode["extents"].as_array();
    extents.unwrap_or_else(|| panic!("{inode:.500}")).len()
}

/// What of the pages of an aged file has been written over.
fn expected(is_aged: bool) -> Vec<u8> {
    let page = |number: u64| {
        let byte = if is_aged && number.is_multiple_of(2) {
            2
        } else {
            1
        };
        [byte; 4096]
    };
    (0..SIZE / PAGE).flat_map(page).collect()
}

/// A file that node `maker` has made, and written over page by page if it is to be an aged one.
fn make(fixture: &Fixture, maker: usize, name: &str, is_aged: bool) -> Result<(), Error> {
    let path = fixture.path(maker, name);
    fs::write(&path, expected(false))?;
    let file = OpenOptions::new().write(true).open(&path)?;
    file.sync_all()?;
    if is_aged {
        for number in (0..SIZE / PAGE).step_by(2) {
            file.write_all_at(&[2; 4096], number * PAGE)?;
        }
        file.sync_all()?;
    }
    Ok(())
}

/// Node 2 opens a file, reads all of it, and writes a page in each block: the revokes of each of these steps.
fn use_it(fixture: &Fixture, name: &str, is_aged: bool) -> Result<[u64; 3], Error> {
    let path = fixture.path(2, name);
    let mut seen = [revokes(fixture); 4];
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    assert_eq!(file.metadata()?.size(), SIZE);
    seen[1] = revokes(fixture);
    let mut bytes = vec![0; expected(false).len()];
    file.read_exact_at(&mut bytes, 0)?;
    assert!(bytes == expected(is_aged), "{name}: other bytes");
    seen[2] = revokes(fixture);
    for block in 0..BLOCK_COUNT {
        file.write_all_at(&[3; 4096], block << 20)?;
    }
    file.sync_all()?;
    seen[3] = revokes(fixture);
    Ok([1, 2, 3].map(|step| seen[step] - seen[step - 1]))
}

fn rewritten(counters: &Value) -> u64 {
    counters["rewrite_blocks"].as_u64().expect("a count")
}

/// Node 1 reads aged files and fresh ones, and rewrites the aged ones. Node 2 meets what node 1's readers have, in both kinds alike,
/// whoever owns the file.
#[test]
fn who_uses_a_file_that_was_rewritten_takes_nothing_from_the_rewriter() {
    let fixture = lab!();
    let names = |maker: usize| {
        [
            (format!("fresh{maker}"), false),
            (format!("aged{maker}"), true),
        ]
    };
    let set_rate = |rate: &str| {
        for node in [1, 2] {
            fixture.set(node, "rewrite_rate", rate);
        }
        fixture.restart().expect("they start");
    };
    let outcome = (|| -> Result<String, Error> {
        set_rate("0");
        for maker in [1, 2] {
            for (name, is_aged) in names(maker) {
                make(&fixture, maker, &name, is_aged)?;
            }
        }
        // Nobody has any token, or remembers any block.
        set_rate("32M");
        for maker in [1, 2] {
            for (name, is_aged) in names(maker) {
                let count = extents(&fixture, &name);
                assert!(if is_aged { count > MANY } else { count < FEW }, "{count}");
                let file = File::open(fixture.path(1, &name))?;
                let mut bytes = vec![0; expected(false).len()];
                file.read_exact_at(&mut bytes, 0)?;
                assert!(bytes == expected(is_aged), "{name}: other bytes");
            }
        }
        let until = Instant::now() + Duration::from_secs(90);
        while rewritten(&fixture.counters(1)) < 2 * BLOCK_COUNT {
            let counters = fixture.counters(1);
            assert!(Instant::now() < until, "{counters}");
            std::thread::sleep(Duration::from_millis(100));
        }
        // What was lent for the last one goes back with the next ticks: nothing tells when, so this is the time that it may take, also
        // where a busy machine lets the thread that ticks stand still for some seconds.
        std::thread::sleep(Duration::from_secs(8));
        let mut said = Vec::new();
        for maker in [1, 2] {
            let [(fresh, _), (aged, _)] = names(maker);
            assert!(extents(&fixture, &aged) < FEW, "{aged}");
            let as_ever = use_it(&fixture, &fresh, false)?;
            let seen = use_it(&fixture, &aged, true)?;
            assert_eq!(seen, as_ever, "{aged}: revokes of open, read, write");
            said.push(format!("{aged}: {seen:?} revokes"));
        }
        assert_eq!(rewritten(&fixture.counters(2)), 0);
        Ok(said.join(", "))
    })();
    finish(&fixture, outcome.map_err(|e| e.to_string()));
}
