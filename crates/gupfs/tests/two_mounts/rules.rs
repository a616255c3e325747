//! Each of the rules R1 to R12 (docs/decisions/0004-revocation.md) provoked on two real mounts.
//!
//! Threads of both nodes repeat their step for `TIME`. Data carries stamps: a writer draws a number, writes it,
//! and publishes it when the call has returned. Who reads afterwards must see it or a newer one, and nothing that
//! was not drawn yet. Without the rule the real kernel hangs or shows older bytes; the watchdog of the fixture
//! ends a hang, and every thread must have made progress.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::calls::Mapping;
use crate::fixture::Fixture;
use crate::{finish, lab};

/// How long each rule is provoked.
const TIME: Duration = Duration::from_millis(1200);
const PAGE: usize = 4096;
const STAMP: usize = 8;
/// Cached reads that may end too early in a row.
const TRIES: usize = 20;

type Outcome = Result<(), String>;
type Step<'a> = Box<dyn FnMut(u64) -> Outcome + Send + 'a>;

fn step<'a>(step: impl FnMut(u64) -> Outcome + Send + 'a) -> Step<'a> {
    Box::new(step)
}

/// Repeats all steps side by side, each with its own count from 1 on; says how often each ran.
fn race(fixture: &Fixture, steps: Vec<(&str, Step<'_>)>) -> Result<String, String> {
    let (begin, failed) = (Instant::now(), AtomicBool::new(false));
    let outcomes: Vec<Result<String, String>> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (name, mut step) in steps {
            let (name, slot, failed) = (name.to_owned(), fixture.slot(), &failed);
            threads.push(scope.spawn(move || {
                let mut count = 0;
                while (begin.elapsed() < TIME || count < 3) && !failed.load(Ordering::Relaxed) {
                    count += 1;
                    if let Err(fault) = slot.run(&name, || step(count)) {
                        failed.store(true, Ordering::Relaxed);
                        return Err(format!("{name}, round {count}: {fault}"));
                    }
                }
                Ok(format!("{name}: {count}"))
            }));
        }
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
        threads.into_iter().map(join).collect()
    });
    let faults: Vec<String> = outcomes.iter().filter_map(|o| o.clone().err()).collect();
    match faults.is_empty() {
        true => Ok(outcomes
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(", ")),
        false => Err(faults.join("\n")),
    }
}

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

/// Numbers of one writer at one place.
#[derive(Default)]
struct Stamps {
    drawn: AtomicU64,
    published: AtomicU64,
}

impl Stamps {
    /// Writes the next number with `write`, and publishes it.
    fn write(&self, write: impl FnOnce(u64) -> Outcome) -> Outcome {
        let stamp = self.drawn.fetch_add(1, Ordering::SeqCst) + 1;
        write(stamp)?;
        self.published.fetch_max(stamp, Ordering::SeqCst);
        Ok(())
    }

    /// Reads with `read`: every stamp must be one that could be there then.
    fn check(&self, read: impl FnOnce() -> Result<Vec<u8>, String>) -> Outcome {
        let low = self.published.load(Ordering::SeqCst);
        let bytes = read()?;
        let high = self.drawn.load(Ordering::SeqCst);
        for (at, stamp) in bytes.chunks_exact(STAMP).enumerate() {
            let stamp = u64::from_le_bytes(stamp.try_into().expect("8 bytes"));
            if !(low..=high).contains(&stamp) {
                let at = at * STAMP;
                return Err(format!("stamp {stamp} at +{at}, not {low} to {high}"));
            }
        }
        Ok(())
    }
}

/// `size` bytes full of one stamp.
fn stamped(stamp: u64, size: usize) -> Vec<u8> {
    stamp.to_le_bytes().repeat(size / STAMP)
}

fn make(fixture: &Fixture, name: &str, size: usize) {
    fs::write(fixture.path(1, name), vec![0; size]).expect("written");
}

fn direct(fixture: &Fixture, node: usize, name: &str) -> File {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(fixture.path(node, name));
    opened.expect("opened")
}

fn cached(fixture: &Fixture, node: usize, name: &str) -> File {
    File::open(fixture.path(node, name)).expect("opened")
}

/// For reading past the page cache.
fn uncached(fixture: &Fixture, node: usize, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECT);
    options.open(fixture.path(node, name)).expect("opened")
}

fn read(file: &File, offset: usize, size: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; size];
    io("read", file.read_exact_at(&mut bytes, offset as u64))?;
    Ok(bytes)
}

/// As `read`, of a cached descriptor. A cached read asks for the size first, and the kernel disregards an answer that an
/// invalidation overtakes: then it ends at the size known before (docs/tokens.md, "Limits of the kernel"). Reading
/// again asks again.
fn read_by_size(file: &File, offset: usize, size: usize) -> Result<Vec<u8>, String> {
    for _ in 0..TRIES {
        let mut bytes = vec![0; size];
        if io("read", file.read_at(&mut bytes, offset as u64))? == size {
            return Ok(bytes);
        }
    }
    Err(format!("{TRIES} short reads of {size} bytes at {offset}"))
}

fn write(file: &File, offset: usize, bytes: &[u8]) -> Outcome {
    io("write", file.write_all_at(bytes, offset as u64))
}

fn load(mapping: &Mapping, offset: usize, size: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; size];
    io("load", mapping.load(offset, &mut bytes))?;
    Ok(bytes)
}

fn store(mapping: &Mapping, offset: usize, bytes: &[u8]) -> Outcome {
    io("store", mapping.store(offset, bytes))
}

fn map(fixture: &Fixture, node: usize, name: &str, size: usize) -> Mapping {
    Mapping::new(&direct(fixture, node, name), size, true).expect("mapped")
}

/// Many files are revoked at once while as many readers want them back: notifications that were made on the
/// threads that answer READs would wait for themselves.
#[test]
fn r1_notifications_do_not_hold_answers_up() {
    let fixture = lab!();
    let names: Vec<String> = (0..6).map(|n| format!("f{n}")).collect();
    let stamps: Vec<Stamps> = names.iter().map(|_| Stamps::default()).collect();
    let mut steps = Vec::new();
    for (name, stamps) in names.iter().zip(&stamps) {
        make(&fixture, name, 8 * PAGE);
        let (reader, writer) = (cached(&fixture, 1, name), direct(&fixture, 2, name));
        let reads = step(move |_| stamps.check(|| read(&reader, 0, 8 * PAGE)));
        let writes = move |_| stamps.write(|s| write(&writer, 0, &stamped(s, 8 * PAGE)));
        steps.push(("reader on n1", reads));
        steps.push(("writer on n2", step(writes)));
    }
    finish(&fixture, race(&fixture, steps));
}

/// One page, read through the page cache on one node and written on the other, as fast as it goes.
#[test]
fn r2_reads_during_a_notification_are_served() {
    let fixture = lab!();
    make(&fixture, "f", PAGE);
    let stamps = Stamps::default();
    let readers = [1, 1, 1].map(|node| cached(&fixture, node, "f"));
    let writer = direct(&fixture, 2, "f");
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for reader in &readers {
        let reads = |_| stamps_check(&stamps, reader);
        steps.push(("cached reader on n1", step(reads)));
    }
    let writes = |_| stamps.write(|s| write(&writer, 0, &stamped(s, PAGE)));
    steps.push(("writer on n2", step(writes)));
    finish(&fixture, race(&fixture, steps));
}

/// Both nodes read through the page cache and write the same page: each READ waits for a token with its folio
/// locked, while the other's revoke arrives.
#[test]
fn r3_pages_of_waiting_reads_are_left_out() {
    let fixture = lab!();
    make(&fixture, "f", PAGE);
    let stamps = [Stamps::default(), Stamps::default()];
    let files = [1, 2].map(|node| (cached(&fixture, node, "f"), direct(&fixture, node, "f")));
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for (index, (cached, direct)) in files.iter().enumerate() {
        let half = PAGE / 2;
        let (own, other) = (&stamps[index], &stamps[1 - index]);
        let begin = index * half;
        let reads = move |_| other.check(|| read(cached, half - begin, half));
        let writes = move |_| own.write(|s| write(direct, begin, &stamped(s, half)));
        steps.push(("cached reader", step(reads)));
        steps.push(("writer", step(writes)));
    }
    finish(&fixture, race(&fixture, steps));
}

/// Reads of many pages, again and again from several threads, while single pages among them are written.
#[test]
fn r4_pages_read_during_a_pass_are_notified_again() {
    let fixture = lab!();
    const PAGES: usize = 64;
    make(&fixture, "f", PAGES * PAGE);
    let stamps: Vec<Stamps> = (0..PAGES).map(|_| Stamps::default()).collect();
    let files = [1, 1, 1].map(|node| cached(&fixture, node, "f"));
    let writer = direct(&fixture, 2, "f");
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let stamps = &stamps;
        let reads = move |round: u64| {
            let page = usize::try_from(round).expect("small") * (2 * index + 1) % PAGES;
            stamps[page].check(|| {
                // The whole is read, so that the pages of others come in while they are taken away.
                let all = read(file, 0, PAGES * PAGE)?;
                Ok(all[page * PAGE..][..PAGE].to_vec())
            })
        };
        steps.push(("cached reader on n1", step(reads)));
    }
    let writes = |round: u64| {
        let page = usize::try_from(round).expect("small") * 7 % PAGES;
        stamps[page].write(|s| write(&writer, page * PAGE, &stamped(s, PAGE)))
    };
    steps.push(("writer on n2", step(writes)));
    finish(&fixture, race(&fixture, steps));
}

/// A page is stored to through a mapping on node 1 without msync; node 2 reads it and writes its other half.
#[test]
fn r5_dirty_mapped_pages_are_written_back_before_the_release() {
    let fixture = lab!();
    make(&fixture, "f", PAGE);
    let (mapping, file) = (map(&fixture, 1, "f", PAGE), direct(&fixture, 2, "f"));
    let half = PAGE / 2;
    let (stored, written) = (Stamps::default(), Stamps::default());
    let steps: Vec<(&str, Step<'_>)> = vec![
        (
            "store on n1",
            step(|_| {
                stored.write(|s| store(&mapping, 0, &stamped(s, STAMP)))?;
                stored.check(|| load(&mapping, 0, STAMP))?;
                written.check(|| load(&mapping, half, half))
            }),
        ),
        (
            "read and write on n2",
            step(|_| {
                stored.check(|| read(&file, 0, STAMP))?;
                written.write(|s| write(&file, half, &stamped(s, half)))
            }),
        ),
    ];
    finish(&fixture, race(&fixture, steps));
}

/// Several threads of both nodes store to the same pages all the time, which makes the kernel answer -EBUSY to
/// an invalidation and hide it: what it left must be found by the second pass.
#[test]
fn r6_a_page_that_is_dirtied_during_the_notification_is_found() {
    let fixture = lab!();
    make(&fixture, "f", 2 * PAGE);
    let mappings = [1, 2].map(|node| map(&fixture, node, "f", 2 * PAGE));
    let stamps: Vec<Stamps> = (0..4).map(|_| Stamps::default()).collect();
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for (index, own) in stamps.iter().enumerate() {
        let other = &stamps[(index + 1) % 4];
        let (begin, next) = (index * PAGE / 2, (index + 1) % 4 * PAGE / 2);
        let mapping = &mappings[index % 2];
        let stores = move |_| {
            own.write(|s| store(mapping, begin, &stamped(s, STAMP)))?;
            other.check(|| load(mapping, next, STAMP))
        };
        steps.push(("store and load", step(stores)));
    }
    finish(&fixture, race(&fixture, steps));
}

/// Names are looked up on node 1, there or not, while node 2 makes and removes them.
#[test]
fn r7_lookups_are_answered_while_names_are_dropped() {
    let fixture = lab!();
    fs::create_dir(fixture.path(1, "d")).expect("made");
    // Odd: the name is there; even: it is not.
    let stamps = Stamps::default();
    let path = |node| fixture.path(node, "d/name");
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for _ in 0..3 {
        let looks = |_| {
            let low = stamps.published.load(Ordering::SeqCst);
            let is_there = fs::symlink_metadata(path(1)).is_ok();
            let high = stamps.drawn.load(Ordering::SeqCst);
            match (low..=high).any(|s| (s % 2 == 1) == is_there) {
                true => Ok(()),
                false => Err(format!("there: {is_there} at {low} to {high}")),
            }
        };
        steps.push(("lookup on n1", step(looks)));
    }
    let changes = |_| {
        stamps.write(|stamp| match stamp % 2 {
            1 => io("create", File::create_new(path(2)).map(drop)),
            _ => io("unlink", fs::remove_file(path(2))),
        })
    };
    steps.push(("changes on n2", step(changes)));
    finish(&fixture, race(&fixture, steps));
}

/// Both nodes write ranges that overlap in the middle, in both orders: a write that waits for its second token
/// must not keep the first.
#[test]
fn r9_a_request_that_waits_keeps_nothing() {
    let fixture = lab!();
    make(&fixture, "f", 3 * PAGE);
    let files = [1, 2].map(|node| direct(&fixture, node, "f"));
    let edges = [Stamps::default(), Stamps::default()];
    let reader = cached(&fixture, 1, "f");
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for (index, file) in files.iter().enumerate() {
        let (edge, other) = (&edges[index], &edges[1 - index]);
        let (begin, far) = (index * PAGE, 2 * (1 - index) * PAGE);
        let writes = move |_| {
            edge.write(|s| {
                // The high bit says whose it is.
                let mut bytes = stamped(s, 2 * PAGE);
                let middle = if index == 0 { PAGE } else { 0 };
                for stamp in bytes[middle..][..PAGE].chunks_exact_mut(STAMP) {
                    stamp[7] = u8::try_from(index).expect("0 or 1");
                }
                write(file, begin, &bytes)
            })
        };
        let reads = move |_| other.check(|| read(file, far, PAGE));
        steps.push(("writer", step(writes)));
        steps.push(("reader of the other's edge", step(reads)));
    }
    let torn = |_| {
        let page = read(&reader, PAGE, PAGE)?;
        // A page is written by one write or the other: it is never mixed.
        match page
            .chunks_exact(STAMP)
            .all(|stamp| *stamp == page[..STAMP])
        {
            true => Ok(()),
            false => Err("a page holds the bytes of two writes".to_owned()),
        }
    };
    steps.push(("reader of the middle", step(torn)));
    finish(&fixture, race(&fixture, steps));
}

/// Node 1 appends and does not flush; node 2 asks for the size and the bytes at once: what it is shown must have
/// been committed before.
#[test]
fn r10_commits_go_ahead_of_what_revokes_them() {
    let fixture = lab!();
    make(&fixture, "f", 0);
    let append = OpenOptions::new().append(true).open(fixture.path(1, "f"));
    let append = append.expect("opened");
    let (reader, direct) = (cached(&fixture, 2, "f"), uncached(&fixture, 2, "f"));
    let stamps = Stamps::default();
    let appends = |_| stamps.write(|s| io("append", (&append).write_all(&stamped(s, 1000))));
    let looks = |_| {
        let low = stamps.published.load(Ordering::SeqCst);
        let shown = io("stat", fs::symlink_metadata(fixture.path(2, "f")))?.len();
        let high = stamps.drawn.load(Ordering::SeqCst);
        if !(low * 1000..=high * 1000).contains(&shown) {
            return Err(format!("size {shown}, {low} to {high} appends"));
        }
        // Every append that the size shows is there with its bytes.
        let last = shown / 1000;
        if last == 0 {
            return Ok(());
        }
        let offset = usize::try_from((last - 1) * 1000).expect("small");
        let expected = stamped(last, 1000);
        if read(&direct, offset, 1000)? != expected {
            return Err(format!("append {last} is shown by the size and not there"));
        }
        match read_by_size(&reader, offset, 1000)? == expected {
            true => Ok(()),
            false => Err(format!("append {last} is there and not in the page cache")),
        }
    };
    let steps = vec![
        ("append on n1", step(appends)),
        ("stat and read on n2", step(looks)),
    ];
    finish(&fixture, race(&fixture, steps));
}

/// Both nodes make and remove names in one directory while both list it.
#[test]
fn r11_a_directory_moves_between_nodes_that_list_it() {
    let fixture = lab!();
    fs::create_dir(fixture.path(1, "d")).expect("made");
    let made = [Stamps::default(), Stamps::default()];
    let mut steps: Vec<(&str, Step<'_>)> = Vec::new();
    for index in 0..2 {
        let (fixture, made) = (&fixture, &made);
        let creates = move |_| {
            made[index].write(|stamp| {
                let name = fixture.path(index + 1, &format!("d/{index}-{stamp}"));
                io("create", File::create_new(name).map(drop))?;
                // The newest eight stay.
                let Some(old) = stamp.checked_sub(8).filter(|s| *s > 0) else {
                    return Ok(());
                };
                let name = fixture.path(2 - index, &format!("d/{index}-{old}"));
                io("unlink through the other", fs::remove_file(name))
            })
        };
        let lists = move |_| {
            let published = || [0, 1].map(|i: usize| made[i].published.load(Ordering::SeqCst));
            let drawn = || [0, 1].map(|i: usize| made[i].drawn.load(Ordering::SeqCst));
            let low = published();
            let mut seen = BTreeSet::new();
            for entry in io("opendir", fs::read_dir(fixture.path(index + 1, "d")))? {
                let entry = io("readdir", entry)?;
                if !seen.insert(entry.file_name()) {
                    return Err(format!("{:?} is listed twice", entry.file_name()));
                }
            }
            let high = drawn();
            for node in 0..2 {
                // Made before the listing began, and not removed before it ended.
                let must = (high[node].saturating_sub(8) + 1).max(1)..=low[node];
                let missing = must
                    .clone()
                    .find(|s| !seen.contains(format!("{node}-{s}").as_ref() as &std::ffi::OsStr));
                if let Some(stamp) = missing {
                    return Err(format!("{node}-{stamp} is missing; {must:?} are there"));
                }
            }
            Ok(())
        };
        steps.push(("create and unlink", step(creates)));
        steps.push(("list", step(lists)));
    }
    finish(&fixture, race(&fixture, steps));
}

/// Node 1 cuts a file whose mapped pages are dirty while node 2 reads them: the truncate holds write-back up, and
/// the read waits for the write-back.
#[test]
fn r12_a_truncate_gives_way_to_write_back() {
    let fixture = lab!();
    const SIZE: usize = 16 * PAGE;
    make(&fixture, "f", SIZE);
    let (mapping, cut) = (map(&fixture, 1, "f", SIZE), direct(&fixture, 1, "f"));
    let (reader, other) = (cached(&fixture, 2, "f"), direct(&fixture, 2, "f"));
    let stamps = Stamps::default();
    let stores = |_| stamps.write(|s| store(&mapping, 0, &stamped(s, STAMP)));
    let cuts = |round: u64| {
        let size = if round.is_multiple_of(2) {
            SIZE
        } else {
            2 * PAGE
        };
        io("truncate", cut.set_len(size as u64))
    };
    let reads = |_| {
        stamps.check(|| read(&reader, 0, STAMP))?;
        stamps.check(|| read(&other, 0, STAMP))
    };
    let others_cuts = |round: u64| {
        let size = if round.is_multiple_of(2) {
            SIZE - 100
        } else {
            2 * PAGE + 100
        };
        io("truncate", other.set_len(size as u64))
    };
    let steps = vec![
        ("store on n1", step(stores)),
        ("truncate on n1", step(cuts)),
        ("read on n2", step(reads)),
        ("truncate on n2", step(others_cuts)),
    ];
    finish(&fixture, race(&fixture, steps));
}

/// Node 1 writes the first page back while node 2 cuts the end, where pages of node 1 are dirty too. A truncate of node 1
/// waits for the WRITE of the first page before it is sent, and keeps back those of the others until then: the
/// notification, which waits for those, waits for the first one.
#[test]
fn r12_write_back_of_any_page_lets_truncates_begin() {
    let fixture = lab!();
    const SIZE: usize = 16 * PAGE;
    make(&fixture, "f", SIZE);
    let (mapping, cut) = (map(&fixture, 1, "f", SIZE), direct(&fixture, 1, "f"));
    let other = direct(&fixture, 2, "f");
    let stamps = Stamps::default();
    let stores = |_| {
        stamps.write(|s| store(&mapping, 0, &stamped(s, STAMP)))?;
        // Has the kernel write the page back first.
        stamps.check(|| read(&cut, 0, STAMP))
    };
    let stores_behind = |round: u64| {
        let page = 12 + usize::try_from(round % 4).expect("small");
        match mapping.store(page * PAGE, &stamped(round, STAMP)) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
            other => io("store", other),
        }
    };
    let cuts = |_| io("truncate", cut.set_len(SIZE as u64));
    let others_cuts = |round: u64| {
        let size = match round.is_multiple_of(2) {
            true => SIZE,
            false => 11 * PAGE + 100,
        };
        io("truncate", other.set_len(size as u64))
    };
    let steps = vec![
        ("store on n1", step(stores)),
        ("store behind on n1", step(stores_behind)),
        ("truncate on n1", step(cuts)),
        ("truncate on n2", step(others_cuts)),
    ];
    finish(&fixture, race(&fixture, steps));
}

fn stamps_check(stamps: &Stamps, file: &File) -> Outcome {
    stamps.check(|| read(file, 0, PAGE))
}
