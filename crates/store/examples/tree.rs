//! Speed of the tree in memory, by processor time: `cargo run --release -p store --example tree`. With `fuzz SECONDS [SEED]`:
//! foreign bytes for so long.
#![allow(clippy::print_stdout, reason = "a program for a terminal")]
#![allow(
    clippy::disallowed_methods,
    reason = "it measures time; no core runs here"
)]
#![allow(clippy::unwrap_used, reason = "a measuring program may stop")]

use std::time::{Duration, Instant};

use stdx::Prng;
use store::tree::testing::{TREE, fuzz};
use store::tree::{
    Applied, Apply, ApplyConfig, Arrival, Change, Copies, Get, Lookup, Pages, Progress, Root, Scan,
    ScanStep, Step, Waiter, lookup,
};
use types::{Epoch, Location, Lsn, NsdId};

/// As the daemon's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sectors of a page: 16 KiB.
const SECTORS: u8 = 4;
/// Entries of the large tree.
const COUNT: u64 = 10_000_000;

/// A disk in memory that was touched before: the cost of a read or write is one copy of the page.
struct Memory {
    disk: Vec<u8>,
    next_sector: u64,
}

impl Memory {
    /// Does all reads that are wanted.
    fn fetch(&self, pages: &mut Pages, mut arrived: impl FnMut(&Arrival)) {
        while let Some(fetch) = pages.next_fetch() {
            let begin = usize::try_from(fetch.at.sector).unwrap() * 4096;
            let bytes = &self.disk[begin..begin + usize::from(SECTORS) * 4096];
            if let Some(arrival) = pages.on_fetched(fetch.id, Ok(bytes.into())) {
                arrived(&arrival);
            }
        }
    }

    fn apply<'a>(
        &mut self,
        pages: &mut Pages,
        root: &Root,
        mut changes: impl Iterator<Item = ([u8; 15], Change<'a>)>,
    ) -> Box<Applied> {
        let config = ApplyConfig {
            tree: TREE,
            epoch: Epoch(1),
            lsn: Lsn(root.lsn.0 + 1),
            waiter: Waiter(1),
            ahead_max: 32,
            write_count_max: 32,
            entry_count_max: u32::MAX,
        };
        let mut apply = Apply::new(config, root);
        let mut is_over = false;
        loop {
            match apply.poll(pages).unwrap() {
                Step::Write(write) => {
                    let begin = usize::try_from(write.at.sector).unwrap() * 4096;
                    let bytes = write.page.bytes();
                    self.disk[begin..begin + bytes.len()].copy_from_slice(bytes);
                    apply.on_written(write.id, true);
                }
                Step::Used(_) | Step::Spent(_) | Step::Freed(_) => {}
                Step::NeedCopy(failed) => apply.on_copy(&failed, None),
                Step::NeedChanges => {
                    while apply.wants_changes() && !is_over {
                        match changes.next() {
                            Some((key, change)) => apply.push(&key, change),
                            None => is_over = true,
                        }
                    }
                    if is_over {
                        apply.end();
                    }
                }
                Step::NeedPlaces => {
                    for _ in 0..64 {
                        self.next_sector += u64::from(SECTORS);
                        apply.give(Copies::new(&[Location {
                            nsd: NsdId(1),
                            sector: self.next_sector,
                        }]));
                    }
                }
                Step::Waiting => self.fetch(pages, |arrival| apply.on_page(arrival)),
                Step::Done(applied) => return applied,
            }
        }
    }
}

/// As an inode's key is: index, kind, rest.
fn key(n: u64) -> [u8; 15] {
    let mut key = [0; 15];
    key[..6].copy_from_slice(&n.to_be_bytes()[2..]);
    key[6] = 0x10;
    key
}

/// Time on the processor, so that others on the machine do not count.
struct Timer(u64);

impl Timer {
    fn now() -> u64 {
        let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    }

    fn new() -> Self {
        Self(Self::now())
    }

    fn seconds(&self) -> f64 {
        (Self::now() - self.0) as f64 / 1e9
    }
}

fn report(what: &str, count: u64, begin: &Timer) {
    let seconds = begin.seconds();
    println!(
        "{what:44} {:7.2} M/s {:8.1} ns",
        count as f64 / seconds / 1e6,
        seconds * 1e9 / count as f64
    );
}

fn measure() {
    let value = [7_u8; 100];
    let mut memory = Memory {
        disk: vec![1; 2600 << 20],
        next_sector: 0,
    };
    let mut pages = Pages::new(64 << 20, 64);
    let empty = Root::empty(TREE.shard, SECTORS);

    let begin = Timer::new();
    let changes = (0..COUNT).map(|n| (key(n * 4), Change::Put(&value[..])));
    let root = memory.apply(&mut pages, &empty, changes).root;
    report(
        "bulk apply into an empty tree (115 B entries)",
        COUNT,
        &begin,
    );
    let size = root.pages * u64::from(SECTORS) * 4096;
    println!(
        "  {} pages, {} levels, {:.0} % of the bytes of pages are keys and values",
        root.pages,
        root.height(),
        (root.entries * 115) as f64 * 100.0 / size as f64
    );

    let last_sector = memory.next_sector;
    for (what, step, count) in [
        ("apply of adjacent keys at the end", 4, 1_000_000),
        ("apply, 1 new key in 10 old ones", 40, 1_000_000),
        ("apply, 1 new key in 100 old ones", 400, 100_000),
        ("apply, 1 new key in 1000 old ones", 4000, 10_000),
    ] {
        let first = if step == 4 { COUNT * 4 } else { 1 };
        let begin = Timer::new();
        let changes = (0..count).map(|n| (key(first + n * step), Change::Put(&value[..])));
        let applied = memory.apply(&mut pages, &root, changes);
        report(what, count, &begin);
        let written = applied.counters.written;
        let seconds = begin.seconds();
        println!(
            "  {} pages read, {written} written, {:.1} us a page",
            applied.counters.opened,
            seconds * 1e6 / written as f64
        );
        // The old tree is as it was: the next one begins with it, too.
        memory.next_sector = last_sector;
    }
    read(&memory, &root);
}

fn read(memory: &Memory, root: &Root) {
    let mut pages = Pages::new(2 << 30, 64);
    let mut prng = Prng::new(1);
    let hot: Vec<u64> = (0..1_000_000).map(|_| prng.below(COUNT) * 4).collect();
    let keys = || hot.iter().map(|n| key(*n).to_vec()).collect::<Vec<_>>();
    for what in ["get of a million keys at once, cold", "the same, hot"] {
        let begin = Timer::new();
        let mut get = Get::new(TREE, root, keys(), Waiter(1), 64);
        while get.poll(&mut pages) == Progress::Waiting {
            memory.fetch(&mut pages, |arrival| get.on_page(arrival));
        }
        assert!(get.finish().unwrap().iter().all(Option::is_some));
        report(what, hot.len() as u64, &begin);
    }
    let begin = Timer::new();
    for n in &hot {
        assert!(matches!(
            lookup(&mut pages, TREE, root, &key(*n)),
            Lookup::Found(_)
        ));
    }
    report(
        "point get, random, all pages cached",
        hot.len() as u64,
        &begin,
    );
    let near: Vec<u64> = (0..1_000_000).map(|_| prng.below(20_000) * 4).collect();
    let begin = Timer::new();
    for n in &near {
        assert!(matches!(
            lookup(&mut pages, TREE, root, &key(*n)),
            Lookup::Found(_)
        ));
    }
    report("point get among 20,000 keys", near.len() as u64, &begin);
    drop(pages);

    let mut pages = Pages::new(16 << 20, 64);
    for what in ["scan, every page fetched and verified", "again"] {
        let begin = Timer::new();
        let mut scan = Scan::new(TREE, root, (Vec::new(), None), Waiter(1), 32);
        let (mut count, mut sum) = (0, 0);
        loop {
            match scan.next(&mut pages).unwrap() {
                ScanStep::Entries(entries) => {
                    for (rest, value) in entries.iter() {
                        count += 1;
                        sum += rest.len() as u64 + u64::from(value[0]);
                    }
                }
                ScanStep::Waiting => memory.fetch(&mut pages, |arrival| scan.on_page(arrival)),
                ScanStep::Done => break,
            }
        }
        assert_eq!((count, sum > 0), (COUNT, true));
        report(what, count, &begin);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.get(1).map(String::as_str) {
        None => measure(),
        Some("fuzz") => {
            let seconds = arguments[2].parse().unwrap();
            let seed = arguments.get(3).map_or(1, |seed| seed.parse().unwrap());
            let begin = Instant::now();
            let mut round = seed;
            while begin.elapsed() < Duration::from_secs(seconds) {
                let good = fuzz(round, 10_000);
                println!("seed {round}: {good} of 10,000 were pages nevertheless");
                round += 1;
            }
        }
        Some(other) => panic!("{other}: fuzz SECONDS [SEED], or nothing"),
    }
}
