//! Mapped files under everything at once: two nodes, two threads each, stores and loads through mappings, msync, reads
//! through the page cache and past it, writes, truncates up and down, O_TRUNC, rename over, unlink while mapped.
//!
//! Each page has a place for each thread, which alone writes there, with growing numbers. What a read sees of a place
//! must be a number that could be there then, or zero if a truncate may have come after the last one. A number that a
//! truncate removed must not come back.
//!
//! One thing is left out: on one node a page is either stored to through mappings or written by write calls. All
//! writable descriptors are direct, and the kernel's own write-back of the page can undo a write that runs beside a
//! store to another part of it (docs/tokens.md, "Limits of the kernel").

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::calls::Mapping;
use crate::fixture::Fixture;
use crate::{finish, lab};

const PAGE: usize = 4096;
const PAGES: usize = 16;
/// Pages of the mapped file that no truncate cuts.
const KEPT_PAGES: usize = 2;
const THREADS: usize = 4;
/// Bytes between the places of a page.
const PLACE_DISTANCE: usize = PAGE / THREADS;
const STAMP: usize = 8;

type Outcome = Result<(), String>;

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// What may stand at one place.
#[derive(Default)]
struct Place {
    drawn: AtomicU64,
    published: AtomicU64,
    /// Moment at which the last published write began.
    since: AtomicU64,
}

/// The places of a file, and its truncates.
struct Places {
    places: Vec<Place>,
    clock: AtomicU64,
    cuts_running: AtomicU64,
    last_cut_end: AtomicU64,
    /// Numbers up to these were removed by truncates that have returned.
    dead: Vec<AtomicU64>,
}

/// What was known of a place when a read began.
struct Before {
    published: u64,
    since: u64,
    dead: u64,
}

impl Places {
    fn new() -> Self {
        let count = PAGES * THREADS;
        Self {
            places: (0..count).map(|_| Place::default()).collect(),
            clock: AtomicU64::new(1),
            cuts_running: AtomicU64::new(0),
            last_cut_end: AtomicU64::new(0),
            dead: (0..count).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// Writes the next number of a place. `publishes`: it must be seen from now on.
    fn write(
        &self,
        (page, thread): (usize, usize),
        publishes: bool,
        write: impl FnOnce(&[u8]) -> Outcome,
    ) -> Outcome {
        let place = &self.places[page * THREADS + thread];
        let since = self.now();
        let stamp = place.drawn.fetch_add(1, SeqCst) + 1;
        write(&stamp.to_le_bytes())?;
        if publishes {
            // Only this thread publishes here; readers take `published` first.
            place.since.store(since, SeqCst);
            place.published.store(stamp, SeqCst);
        }
        Ok(())
    }

    /// Runs a truncate to `size`.
    fn cut(&self, size: usize, cut: impl FnOnce() -> Outcome) -> Outcome {
        self.cuts_running.fetch_add(1, SeqCst);
        let first = size.div_ceil(PLACE_DISTANCE);
        let removed: Vec<u64> = self.places[first.min(self.places.len())..]
            .iter()
            .map(|place| place.published.load(SeqCst))
            .collect();
        cut()?;
        for (dead, removed) in self.dead[first.min(self.dead.len())..].iter().zip(removed) {
            dead.fetch_max(removed, SeqCst);
        }
        self.last_cut_end.fetch_max(self.now(), SeqCst);
        self.cuts_running.fetch_sub(1, SeqCst);
        Ok(())
    }

    /// Reads a page and checks its places. What lies behind the end of what was read counts as zero if `is_exact`,
    /// else it is not judged; nor are zeros of pages that may be cut.
    fn read(
        &self,
        page: usize,
        is_exact: bool,
        read: impl FnOnce(&mut [u8]) -> Result<usize, String>,
    ) -> Outcome {
        let places = &self.places[page * THREADS..][..THREADS];
        let before: Vec<Before> = places
            .iter()
            .enumerate()
            .map(|(thread, place)| {
                // In this order: a write that is published in between makes zero likelier, not unlikelier.
                let since = place.since.load(SeqCst);
                let published = place.published.load(SeqCst);
                Before {
                    published,
                    since,
                    dead: self.dead[page * THREADS + thread].load(SeqCst),
                }
            })
            .collect();
        let mut bytes = vec![0; PAGE];
        let length = read(&mut bytes)?;
        let is_cut_running = self.cuts_running.load(SeqCst) > 0;
        let last_cut_end = self.last_cut_end.load(SeqCst);
        for (thread, before) in before.iter().enumerate() {
            let at = thread * PLACE_DISTANCE;
            let high = places[thread].drawn.load(SeqCst);
            let is_there = at + STAMP <= length;
            let number = match is_there {
                true => u64::from_le_bytes(bytes[at..][..STAMP].try_into().expect("8 bytes")),
                false => 0,
            };
            let may_be_zero = before.published == 0
                || is_cut_running
                || last_cut_end > before.since
                || (!is_exact && (!is_there || page >= KEPT_PAGES));
            let low = before.published.max(before.dead + 1);
            let is_fine = match number {
                0 => may_be_zero,
                number => (low..=high).contains(&number),
            };
            if !is_fine {
                return Err(format!(
                    "page {page}, place {thread}: {number}, not {low} to {high} (published {}, dead {}, {length} bytes)",
                    before.published, before.dead
                ));
            }
        }
        Ok(())
    }
}

/// One thread with its descriptors.
struct Actor<'a> {
    fixture: &'a Fixture,
    node: usize,
    thread: usize,
    prng: Prng,
    mapped: &'a Places,
    emptied: &'a Places,
    mapping: Mapping,
    file: File,
    cached: File,
    other: File,
    replaced: &'a AtomicU64,
    replaced_drawn: &'a AtomicU64,
    count: u64,
}

impl<'a> Actor<'a> {
    fn new(fixture: &'a Fixture, thread: usize, seed: u64, shared: &'a Shared) -> Self {
        let node = 1 + thread % 2;
        let open = |name: &str, is_writable: bool| {
            let mut options = OpenOptions::new();
            let opened = options.read(true).write(is_writable);
            opened.open(fixture.path(node, name)).expect("opened")
        };
        let file = open("mapped", true);
        Self {
            fixture,
            node,
            thread,
            prng: Prng::new(seed ^ thread as u64),
            mapped: &shared.mapped,
            emptied: &shared.emptied,
            mapping: Mapping::new(&file, PAGES * PAGE, true).expect("mapped"),
            cached: open("mapped", false),
            other: open("emptied", true),
            file,
            replaced: &shared.replaced,
            replaced_drawn: &shared.replaced_drawn,
            count: 0,
        }
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.prng.below(end as u64)).expect("small")
    }

    fn step(&mut self) -> (String, Outcome) {
        let page = self.below(PAGES);
        let choice = self.below(40);
        let outcome = match choice {
            0..=9 => self.change(page),
            10..=15 => self.load(page),
            16 => io("msync", self.mapping.sync()),
            17..=20 => {
                let file = &self.file;
                let read = |bytes: &mut [u8]| read_all(file, page * PAGE, bytes);
                self.mapped.read(page, true, read)
            }
            21..=24 => {
                let file = &self.cached;
                let read = |bytes: &mut [u8]| read_all(file, page * PAGE, bytes);
                self.mapped.read(page, false, read)
            }
            25..=27 => {
                let range = (PAGES - KEPT_PAGES) * PAGE / STAMP;
                let size = KEPT_PAGES * PAGE + self.below(range + 1) * STAMP;
                let file = &self.file;
                let cut = || io("ftruncate", file.set_len(size as u64));
                self.mapped.cut(size, cut)
            }
            28..=32 => self.write_emptied(page),
            33..=34 => {
                let file = &self.other;
                let read = |bytes: &mut [u8]| read_all(file, page * PAGE, bytes);
                self.emptied.read(page, true, read)
            }
            35 => {
                let path = self.fixture.path(self.node, "emptied");
                let cut = || io("open with O_TRUNC", File::create(path).map(drop));
                self.emptied.cut(0, cut)
            }
            36 => self.replace(),
            37..=38 => self.look_at_replaced(),
            _ => self.unlink_while_mapped(),
        };
        (format!("choice {choice}, page {page}"), outcome)
    }

    /// Node 1 maps even pages and writes odd ones, node 2 the other way round.
    fn change(&mut self, page: usize) -> Outcome {
        let offset = page * PAGE + self.thread * PLACE_DISTANCE;
        let is_kept = page < KEPT_PAGES;
        if page % 2 == self.node % 2 {
            let file = &self.file;
            let write = |bytes: &[u8]| io("pwrite", file.write_all_at(bytes, offset as u64));
            return self.mapped.write((page, self.thread), true, write);
        }
        let mapping = &self.mapping;
        let write = |bytes: &[u8]| match mapping.store(offset, bytes) {
            // Behind the end.
            Err(error) if !is_kept && error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            other => io("store", other),
        };
        // What is stored behind an end that only this kernel does not know shows or not.
        self.mapped.write((page, self.thread), is_kept, write)
    }

    fn load(&mut self, page: usize) -> Outcome {
        let mapping = &self.mapping;
        let read = |bytes: &mut [u8]| match mapping.load(page * PAGE, bytes) {
            Err(error) if page >= KEPT_PAGES && error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            other => io("load", other).map(|()| PAGE),
        };
        self.mapped.read(page, false, read)
    }

    fn write_emptied(&mut self, page: usize) -> Outcome {
        let offset = page * PAGE + self.thread * PLACE_DISTANCE;
        let file = &self.other;
        let write = |bytes: &[u8]| io("pwrite", file.write_all_at(bytes, offset as u64));
        self.emptied.write((page, self.thread), true, write)
    }

    /// Puts a new file in the place of `replaced`, whose bytes all have one number.
    fn replace(&mut self) -> Outcome {
        let number = self.replaced_drawn.fetch_add(1, SeqCst) + 1;
        let name = self.fixture.path(self.node, &format!("new-{number}"));
        io(
            "create",
            fs::write(&name, number.to_le_bytes().repeat(PAGE / 4)),
        )?;
        io(
            "rename",
            fs::rename(&name, self.fixture.path(self.node, "replaced")),
        )?;
        self.replaced.fetch_add(1, SeqCst);
        Ok(())
    }

    /// A file that was found by its name is whole, whatever takes its place meanwhile, for reads and through a mapping.
    fn look_at_replaced(&mut self) -> Outcome {
        let file = io("open", File::open(self.fixture.path(self.node, "replaced")))?;
        let mut read = vec![0; 2 * PAGE];
        if self.below(2) == 0 {
            io("read of a replaced file", file.read_exact_at(&mut read, 0))?;
        } else {
            let mapping = io("mmap", Mapping::new(&file, read.len(), false))?;
            io("load of a replaced file", mapping.load(0, &mut read))?;
        }
        let number = u64::from_le_bytes(read[..STAMP].try_into().expect("8 bytes"));
        let drawn = self.replaced_drawn.load(SeqCst);
        let is_whole = |bytes: &[u8]| bytes.chunks_exact(STAMP).all(|c| c == &read[..STAMP]);
        match is_whole(&read) && (1..=drawn).contains(&number) {
            true => Ok(()),
            false => Err(format!("a file of number {number} of {drawn} is not whole")),
        }
    }

    /// A file keeps its contents for who has it mapped, when the other node removes its name.
    fn unlink_while_mapped(&mut self) -> Outcome {
        self.count += 1;
        let name = format!("gone-{}-{}", self.thread, self.count);
        let path = |node| self.fixture.path(node, &name);
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create_new(true);
        let file = io("create", opened.open(path(self.node)))?;
        io("write", file.write_all_at(&[1; PAGE], 0))?;
        let mapping = io("mmap", Mapping::new(&file, PAGE, true))?;
        drop(file);
        io("store", mapping.store(0, &[2; 100]))?;
        let mut expected = vec![1; PAGE];
        expected[..100].fill(2);
        let mut direct = OpenOptions::new();
        direct.read(true).custom_flags(libc::O_DIRECT);
        let other = io("open elsewhere", direct.open(path(3 - self.node)))?;
        let mut seen = vec![0; PAGE];
        io("read elsewhere", other.read_exact_at(&mut seen, 0))?;
        if seen != expected {
            return Err("the other node does not see what was stored".to_owned());
        }
        io("unlink elsewhere", fs::remove_file(path(3 - self.node)))?;
        io("store when unlinked", mapping.store(200, &[3; 100]))?;
        expected[200..300].fill(3);
        io("msync when unlinked", mapping.sync())?;
        io("load when unlinked", mapping.load(0, &mut seen))?;
        if seen != expected {
            return Err("an unlinked file lost what was stored".to_owned());
        }
        io("read when unlinked", other.read_exact_at(&mut seen, 0))?;
        match seen == expected {
            true => Ok(()),
            false => Err("the other node does not see what was stored after unlink".to_owned()),
        }
    }
}

fn read_all(file: &File, offset: usize, bytes: &mut [u8]) -> Result<usize, String> {
    io("read", file.read_at(bytes, offset as u64))
}

/// What the threads share.
struct Shared {
    mapped: Places,
    emptied: Places,
    /// Files put in the place of `replaced`, begun and finished.
    replaced_drawn: AtomicU64,
    replaced: AtomicU64,
}

/// `GUPFS_MAPS_SECONDS` for longer runs, `GUPFS_PINGPONG_SEED` for a seed: it fixes what each thread does, not how the
/// threads meet.
#[test]
fn mapped_files_under_everything() {
    let fixture = lab!();
    let seconds = std::env::var("GUPFS_MAPS_SECONDS").map_or(10, |s| s.parse().expect("seconds"));
    let seed = crate::pingpong::seed();
    eprintln!("mapped files, seed {seed}");
    fs::write(fixture.path(1, "mapped"), vec![0; PAGES * PAGE]).expect("written");
    fs::write(fixture.path(2, "emptied"), []).expect("written");
    fs::write(
        fixture.path(2, "replaced"),
        1u64.to_le_bytes().repeat(PAGE / 4),
    )
    .expect("written");
    let shared = Shared {
        mapped: Places::new(),
        emptied: Places::new(),
        replaced_drawn: AtomicU64::new(1),
        replaced: AtomicU64::new(1),
    };
    let (end, failed) = (
        Instant::now() + Duration::from_secs(seconds),
        AtomicBool::new(false),
    );
    let outcomes: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let mut actor = Actor::new(&fixture, thread, seed, &shared);
                let (slot, failed) = (fixture.slot(), &failed);
                scope.spawn(move || {
                    let mut steps = 0;
                    while (Instant::now() < end || steps < 3) && !failed.load(SeqCst) {
                        steps += 1;
                        let name = format!("thread {thread} on n{}", actor.node);
                        let (what, outcome) = slot.run(&name, || actor.step());
                        if let Err(fault) = outcome {
                            failed.store(true, SeqCst);
                            return Err(format!("{name}, step {steps}, {what}: {fault}"));
                        }
                    }
                    Ok(format!("thread {thread}: {steps}"))
                })
            })
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    let faults: Vec<String> = outcomes.iter().filter_map(|o| o.clone().err()).collect();
    let numbers: Vec<String> = outcomes.into_iter().flatten().collect();
    let outcome = match faults.is_empty() {
        true => Ok(numbers.join(", ")),
        false => Err(format!("seed {seed}\n{}", faults.join("\n"))),
    };
    finish(&fixture, outcome);
}
