//! Small files that are put into the kernel's page cache as they are opened: their bytes, sizes and times are what they are, and what
//! changes afterwards, or meanwhile, on the other node or on this one, is seen at once.
#![allow(unsafe_code, reason = "truncate of a path is not in std")]

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::calls::{Mapping, send};
use crate::fixture::{Fixture, Slot};
use crate::{finish, lab};

const PAGE: usize = 4096;
const SIZE_MAX: usize = 64 << 10;
const SIZES: [usize; 6] = [1, 4095, 4096, 4097, 10_000, SIZE_MAX];
/// How long is waited for a close to be told.
const LIMIT: Duration = Duration::from_secs(20);

type Outcome = Result<(), String>;

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T, String> {
    result.map_err(|e| format!("{what}: {e}"))
}

fn count(fixture: &Fixture, name: &str) -> u64 {
    fixture.counters(1)[name].as_u64().expect("a counter")
}

fn open_with(path: &Path, flags: i32) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path)
}

/// One read of the whole file, which is not longer than what may be filled.
fn read_whole(file: &File) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; SIZE_MAX + PAGE];
    let length = io("read", file.read_at(&mut bytes, 0))?;
    bytes.truncate(length);
    Ok(bytes)
}

fn same(what: &str, seen: &[u8], expected: &[u8]) -> Outcome {
    if seen == expected {
        return Ok(());
    }
    let at = seen.iter().zip(expected).position(|(a, b)| a != b);
    let (length, whole) = (seen.len(), expected.len());
    Err(format!(
        "{what}: {length} bytes of {whole}, first other byte: {at:?}"
    ))
}

/// Waits until node 1 has nothing open. A close is told when nobody waits for it any more, and later than it is made where a child that
/// another test begins at that moment has a copy of the descriptor until it runs its program.
fn await_closed(fixture: &Fixture) -> Outcome {
    let until = Instant::now() + LIMIT;
    loop {
        let open_count = count(fixture, "open_handles_now");
        if open_count == 0 {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{open_count} files are open"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A file of these bytes, made by this node, that node 1 has in its pagepool and not in its kernel.
fn make(fixture: &Fixture, maker: usize, name: &str, bytes: &[u8]) -> Outcome {
    io("make", fs::write(fixture.path(maker, name), bytes))?;
    read_directly(fixture, name, bytes)
}

/// Has the file in the pagepool of node 1, and its access time later than its last change: the next read does not count.
fn read_directly(fixture: &Fixture, name: &str, bytes: &[u8]) -> Outcome {
    let until = Instant::now() + LIMIT;
    loop {
        // Beside who has it open otherwise the kernel would get pages of it.
        await_closed(fixture)?;
        let file = io("open", open_with(&fixture.path(1, name), libc::O_DIRECT))?;
        same("read directly", &read_whole(&file)?, bytes)?;
        let found = io("stat", file.metadata())?;
        let atime = (found.atime(), found.atime_nsec());
        let changed = (found.mtime(), found.mtime_nsec()).max((found.ctime(), found.ctime_nsec()));
        if atime > changed {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("read at {atime:?}, changed at {changed:?}"));
        }
    }
}

/// What `stat` says of a file that must not change when it is filled.
fn seen_by_stat(found: &fs::Metadata) -> [i64; 7] {
    let size = i64::try_from(found.size()).expect("small");
    let [mtime, ctime] = [
        [found.mtime(), found.mtime_nsec()],
        [found.ctime(), found.ctime_nsec()],
    ];
    let mode = i64::from(found.mode());
    let links = i64::try_from(found.nlink()).expect("small");
    [size, mtime[0], mtime[1], ctime[0], ctime[1], mode, links]
}

/// Opens a file that node 1 has in its pagepool and not in its kernel: it is filled, and no READ follows.
fn open_filled(fixture: &Fixture, name: &str, bytes: &[u8]) -> Result<File, String> {
    let path = fixture.path(1, name);
    await_closed(fixture)?;
    let before = seen_by_stat(&io("stat", fs::metadata(&path))?);
    let counts = || ["files_filled", "op_read"].map(|name| count(fixture, name));
    let [filled, reads] = counts();
    let file = io("open", File::open(&path))?;
    same("the filled file", &read_whole(&file)?, bytes)?;
    same("once more", &read_whole(&file)?, bytes)?;
    let [filled_now, reads_now] = counts();
    if (filled_now - filled, reads_now - reads) != (1, 0) {
        let (filled, reads) = (filled_now - filled, reads_now - reads);
        let found = io("stat", fs::metadata(&path))?;
        let times = [found.atime_nsec(), found.mtime_nsec(), found.ctime_nsec()];
        return Err(format!(
            "{name}: {filled} files filled, {reads} READs; read, written, changed: {times:?}"
        ));
    }
    for found in [file.metadata(), fs::metadata(&path)] {
        let after = seen_by_stat(&io("stat", found)?);
        if after != before {
            return Err(format!("{name}: {before:?} before, {after:?} after"));
        }
    }
    Ok(file)
}

/// Bytes of which each tells its place.
fn pattern(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Prng::new(seed).fill(&mut bytes);
    bytes
}

#[test]
fn small_files_are_filled_as_they_are_opened() {
    let fixture = lab!();
    let outcome = (|| {
        for (maker, size) in [1, 2].into_iter().flat_map(|n| SIZES.map(|size| (n, size))) {
            let (name, bytes) = (format!("f{maker}_{size}"), pattern(size as u64, size));
            make(&fixture, maker, &name, &bytes)?;
            let file = open_filled(&fixture, &name, &bytes)?;
            let mapping = io("map", Mapping::new(&file, size, false))?;
            let mut mapped = vec![0; size];
            io("load", mapping.load(0, &mut mapped))?;
            same("the mapping", &mapped, &bytes)?;
        }
        // One byte more is too much.
        let bytes = pattern(9, SIZE_MAX + 1);
        io("make", fs::write(fixture.path(1, "large"), &bytes))?;
        let direct = io("open", open_with(&fixture.path(1, "large"), libc::O_DIRECT))?;
        let mut seen = vec![0; bytes.len()];
        io("read", direct.read_exact_at(&mut seen, 0))?;
        drop(direct);
        await_closed(&fixture)?;
        let before = count(&fixture, "files_filled");
        let seen = io("read", fs::read(fixture.path(1, "large")))?;
        same("the large file", &seen, &bytes)?;
        match count(&fixture, "files_filled") - before {
            0 => Ok(String::new()),
            count => Err(format!("{count} large files filled")),
        }
    })();
    finish(&fixture, outcome);
}

/// What the other node does to a file that is filled here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    Rewrite,
    /// Longer by a write behind the end.
    Append,
    Shorter,
    Longer,
    /// The name goes, and comes again for another file.
    Anew,
}

impl Change {
    const ALL: [Self; 5] = [
        Self::Rewrite,
        Self::Append,
        Self::Shorter,
        Self::Longer,
        Self::Anew,
    ];

    /// Changes `path`, which holds `bytes`; what it holds then.
    fn make(self, path: &Path, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let other = pattern(u64::from(bytes[0]) + 1000, bytes.len());
        if self == Self::Anew {
            io("unlink", fs::remove_file(path))?;
            io("make anew", fs::write(path, &other))?;
            return Ok(other);
        }
        let mut options = OpenOptions::new();
        let file = io("open", options.read(true).write(true).open(path))?;
        let mut new = bytes.to_vec();
        match self {
            Self::Rewrite => {
                io("write", file.write_all_at(&other, 0))?;
                new = other;
            }
            Self::Append => {
                io("append", file.write_all_at(&other, bytes.len() as u64))?;
                new.extend_from_slice(&other);
            }
            Self::Shorter => {
                new.truncate(bytes.len() / 3 + 1);
                io("cut", file.set_len(new.len() as u64))?;
            }
            Self::Longer => {
                new.resize(bytes.len() * 2 + 1, 0);
                io("extend", file.set_len(new.len() as u64))?;
            }
            Self::Anew => unreachable!("done above"),
        }
        Ok(new)
    }
}

/// Node 1 has a file filled, open and mapped; node 2 changes it. Then node 1 looks in three ways, beginning with `first`.
fn change_elsewhere(fixture: &Fixture, change: Change, size: usize, first: usize) -> Outcome {
    let name = format!("{change:?}{size}_{first}");
    let bytes = pattern(size as u64, size);
    make(fixture, 1 + first % 2, &name, &bytes)?;
    let held = open_filled(fixture, &name, &bytes)?;
    let mapping = io("map", Mapping::new(&held, size, false))?;
    let load = |length: usize| {
        let mut mapped = vec![0; length];
        io("load", mapping.load(0, &mut mapped)).map(|()| mapped)
    };
    same("the mapping before", &load(size)?, &bytes)?;
    let new = change.make(&fixture.path(2, &name), &bytes)?;
    // What is unlinked is as it was for who has it open.
    let of_held = if change == Change::Anew { &bytes } else { &new };
    let length = of_held.len().min(size);
    for look in (first..first + 3).map(|look| look % 3) {
        match look {
            0 => same("through what was open", &read_whole(&held)?, of_held)?,
            1 => {
                let opened = io("open", File::open(fixture.path(1, &name)))?;
                same("through a new open", &read_whole(&opened)?, &new)?;
                let found = io("stat", opened.metadata())?.len();
                if found != new.len() as u64 {
                    return Err(format!("{found} bytes, not {}", new.len()));
                }
            }
            _ => same("through the mapping", &load(length)?, &of_held[..length])?,
        }
    }
    drop((held, mapping));
    // From who has it open the other node takes no more than it needs, and pages elsewhere in the file stay with the kernel.
    await_closed(fixture)?;
    // What has changed once more is filled again.
    let newer = Change::Rewrite.make(&fixture.path(2, &name), &new)?;
    read_directly(fixture, &name, &newer)?;
    open_filled(fixture, &name, &newer).map(drop)
}

#[test]
fn what_the_other_node_does_to_a_filled_file_is_seen_at_once() {
    let fixture = lab!();
    let outcome = (|| {
        for (change, size) in Change::ALL
            .into_iter()
            .flat_map(|change| [8, PAGE, 10_000, SIZE_MAX / 4].map(|size| (change, size)))
        {
            for first in 0..3 {
                let done = change_elsewhere(&fixture, change, size, first);
                done.map_err(|e| format!("{change:?} of {size} bytes, look {first} first: {e}"))?;
            }
        }
        Ok(String::new())
    })();
    finish(&fixture, outcome);
}

/// How long each load goes on, and how long at the most if too little was done by then.
const TIME: Duration = Duration::from_secs(6);
const TIME_MAX: Duration = Duration::from_secs(60);
const FILE_COUNT: usize = 4;
const READER_COUNT: u64 = 3;
const STAMP: usize = 8;
const FILLS_MIN: u64 = 50;
const STATES_MIN: u64 = 200;
/// The ways to read what is open; the last two do not look at attributes first, by which the kernel drops pages as well.
const LOOKS: [&str; 3] = ["by a read", "by sendfile", "by a mapping"];
/// Reads that may end at another size in a row.
const TRIES: usize = 20;

/// What a file is after a change: stamps up to somewhere, zeros behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    stamp: u64,
    stamped: usize,
    size: usize,
    /// Which file has the name.
    ino: u64,
}

impl State {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = self.stamp.to_le_bytes().repeat(self.stamped / STAMP);
        bytes.resize(self.size, 0);
        bytes
    }
}

/// A file and all that it has been: who changes it says so before, and again when the call has returned.
struct Watched {
    name: String,
    states: Mutex<Vec<State>>,
    /// The index of the last state that must be seen.
    published: AtomicUsize,
}

/// The stamps that a reader has seen, by their places.
type Seen = Vec<u64>;

/// What one read was.
enum Verdict {
    Right,
    /// Right, but for where it ends.
    Length(String),
    Wrong(String),
}

impl Watched {
    /// What must be seen now of the file `ino`, if it still has the name.
    fn published_to(&self, ino: u64) -> Option<usize> {
        let published = self.published.load(SeqCst);
        let states = self.states.lock().expect("never poisoned");
        (states[published].ino == ino).then_some(published)
    }

    /// A read that ended now, begun when `low` was published, gave `bytes`.
    fn judge(&self, low: usize, bytes: &[u8], seen: &mut Seen, is_fixed: bool) -> Verdict {
        let states = self.states.lock().expect("never poisoned")[low..].to_vec();
        let (first, last) = (states[0], states[states.len() - 1]);
        if is_fixed && bytes.len() != first.size {
            return Verdict::Wrong(format!("{} bytes, not {}", bytes.len(), first.size));
        }
        let is_quiet = states.len() == 1;
        let expected = first.bytes();
        for (place, stamp) in bytes.chunks_exact(STAMP).enumerate() {
            let stamp = u64::from_le_bytes(stamp.try_into().expect("8 bytes"));
            let at = place * STAMP;
            let is_right = match stamp {
                0 => is_quiet && at >= first.stamped || !is_quiet && !is_fixed,
                _ if is_quiet => stamp == first.stamp && at < first.stamped,
                _ => (first.stamp..=last.stamp).contains(&stamp),
            };
            if !is_right {
                return Verdict::Wrong(format!("stamp {stamp} at +{at}: {states:?}"));
            }
            if stamp > 0 && stamp < seen[place] {
                let before = seen[place];
                return Verdict::Wrong(format!(
                    "stamp {stamp} at +{at} after {before}: {states:?}"
                ));
            }
            seen[place] = seen[place].max(stamp);
        }
        match is_quiet && bytes.len() != expected.len() {
            true => Verdict::Length(format!("{} bytes: {first:?}", bytes.len())),
            false => Verdict::Right,
        }
    }
}

/// Some files that are changed through `writers` and read through node 1 all the time.
struct Load<'a> {
    fixture: &'a Fixture,
    writers: &'static [usize],
    /// Files keep their sizes.
    is_fixed: bool,
    files: Vec<Watched>,
    is_over: AtomicBool,
    reads: AtomicU64,
    quiet: AtomicU64,
    /// Reads that ended where the file had ended before.
    short: AtomicU64,
}

impl<'a> Load<'a> {
    fn new(fixture: &'a Fixture, writers: &'static [usize], is_fixed: bool) -> Self {
        let file = |index: usize| {
            let size = [STAMP, PAGE, 10_000, SIZE_MAX][index];
            let mut state = State {
                stamp: 1,
                stamped: size,
                size,
                ino: 0,
            };
            let name = format!("f{index}");
            let path = fixture.path(1, &name);
            fs::write(&path, state.bytes()).expect("written");
            state.ino = fs::metadata(&path).expect("made").ino();
            Watched {
                name,
                states: Mutex::new(vec![state]),
                published: AtomicUsize::new(0),
            }
        };
        Self {
            fixture,
            writers,
            is_fixed,
            files: (0..FILE_COUNT).map(file).collect(),
            is_over: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            quiet: AtomicU64::new(0),
            short: AtomicU64::new(0),
        }
    }

    /// Reads with `read` until it ends at the right size, and judges all of it.
    fn check(
        &self,
        file: &Watched,
        low: usize,
        seen: &mut Seen,
        read: impl Fn() -> Result<Vec<u8>, String>,
    ) -> Outcome {
        let mut said = String::new();
        for _ in 0..TRIES {
            let bytes = read()?;
            self.reads.fetch_add(1, SeqCst);
            match file.judge(low, &bytes, seen, self.is_fixed) {
                Verdict::Right => return Ok(()),
                Verdict::Wrong(fault) => return Err(fault),
                // docs/tokens.md, "Limits of the kernel": it asks for the size again.
                Verdict::Length(fault) => said = fault,
            }
            self.short.fetch_add(1, SeqCst);
        }
        Err(format!("{TRIES} reads in a row: {said}"))
    }

    /// Opens it on node 1, and says what must be seen through that. None: the name went to another file meanwhile.
    fn open(&self, file: &Watched, flags: i32) -> Result<Option<(File, usize)>, String> {
        let low = file.published.load(SeqCst);
        match open_with(&self.fixture.path(1, &file.name), flags) {
            Ok(opened) => Ok(Some((opened, low))),
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Ok(None),
            Err(error) => Err(format!("open: {error}")),
        }
    }

    /// Has a file in the pagepool, opens it, and reads it through the page cache.
    fn read_one(&self, prng: &mut Prng, seen: &mut [[Seen; 2]]) -> Outcome {
        let index = usize::try_from(prng.below(FILE_COUNT as u64)).expect("small");
        let file = &self.files[index];
        let [directly, through_cache] = &mut seen[index];
        let fault = |how: &'static str| {
            let name = &file.name;
            move |fault: String| format!("{name}, {how}: {fault}")
        };
        let Some((direct, low)) = self.open(file, libc::O_DIRECT)? else {
            return Ok(());
        };
        let done = self.check(file, low, directly, || read_whole(&direct));
        done.map_err(fault("directly"))?;
        drop(direct);
        if self.writers == [2] {
            // What a write of this node changes the kernel may still have while it goes on.
            let both = through_cache.iter_mut().zip(directly.iter());
            both.for_each(|(cached, direct)| *cached = (*cached).max(*direct));
        }
        std::thread::sleep(Duration::from_micros(prng.below(150)));
        // Who opens so is filled whatever the access time is.
        let flags = if prng.chance(1, 2) {
            libc::O_NOATIME
        } else {
            0
        };
        let Some((cached, low)) = self.open(file, flags)? else {
            return Ok(());
        };
        // What was written while it was opened must be there now. A name that stays the same file's is not asked about, for the kernel
        // drops pages by attributes as well.
        let ino = match self.is_fixed {
            true => file.states.lock().expect("never poisoned")[low].ino,
            false => io("stat", cached.metadata())?.ino(),
        };
        let mut low = low;
        for _ in 0..3 {
            low = file.published_to(ino).unwrap_or(low);
            let look = if self.is_fixed { prng.below(3) } else { 0 };
            self.look(file, low, look, through_cache, &cached)
                .map_err(fault(LOOKS[usize::try_from(look).expect("small")]))?;
        }
        let last = file.states.lock().expect("never poisoned").len() - 1;
        self.quiet.fetch_add(u64::from(last == low), SeqCst);
        Ok(())
    }

    /// Reads an open file in one of the ways in `LOOKS`.
    fn look(
        &self,
        file: &Watched,
        low: usize,
        look: u64,
        seen: &mut Seen,
        opened: &File,
    ) -> Outcome {
        let size = file.states.lock().expect("never poisoned")[low].size;
        match look {
            0 => self.check(file, low, seen, || read_whole(opened)),
            1 => self.check(file, low, seen, || io("sendfile", send(opened, size))),
            _ => {
                let mapping = io("map", Mapping::new(opened, size, false))?;
                self.check(file, low, seen, || {
                    let mut bytes = vec![0; size];
                    io("load", mapping.load(0, &mut bytes))?;
                    Ok(bytes)
                })
            }
        }
    }

    /// Changes a file through one of the writers.
    fn change_one(&self, prng: &mut Prng) -> Outcome {
        let index = usize::try_from(prng.below(FILE_COUNT as u64)).expect("small");
        let file = &self.files[index];
        let node = *prng.pick(self.writers).expect("there is one");
        let path = self.fixture.path(node, &file.name);
        let old = {
            let states = file.states.lock().expect("never poisoned");
            states[states.len() - 1]
        };
        let sizes = [8, 4088, 4096, 4104, 10_000, 16_384, SIZE_MAX];
        let size = *prng.pick(&sizes).expect("there are some");
        let kind = if self.is_fixed { 0 } else { prng.below(6) };
        let size = match kind {
            0 => old.size,
            1 => old.size.max(size),
            _ => size,
        };
        let is_cut = kind == 4 || kind == 5;
        let mut new = State {
            stamp: old.stamp + u64::from(!is_cut),
            stamped: if is_cut { old.stamped.min(size) } else { size },
            size,
            ino: old.ino,
        };
        let fresh = self.fixture.path(node, &format!("{}.new", file.name));
        if kind == 3 {
            io("make anew", fs::write(&fresh, new.bytes()))?;
            new.ino = io("stat", fs::metadata(&fresh))?.ino();
        }
        file.states.lock().expect("never poisoned").push(new);
        let mut options = OpenOptions::new();
        let options = options.write(true);
        let done = match kind {
            0 | 1 => options
                .read(true)
                .open(&path)
                .and_then(|opened| opened.write_all_at(&new.bytes(), 0)),
            // O_TRUNC.
            2 => fs::write(&path, new.bytes()),
            3 => fs::rename(&fresh, &path),
            4 => options
                .open(&path)
                .and_then(|opened| again(|| opened.set_len(size as u64))),
            _ => again(|| truncate(&path, size)),
        };
        let fault = |e| format!("{}, change {kind} on n{node}: {e}", file.name);
        done.map_err(fault)?;
        let last = file.states.lock().expect("never poisoned").len() - 1;
        file.published.store(last, SeqCst);
        Ok(())
    }

    fn read_on(&self, seed: u64, slot: &Slot) -> Outcome {
        let mut prng = Prng::new(seed);
        let nothing = || [vec![0; SIZE_MAX / STAMP + 1], vec![0; SIZE_MAX / STAMP + 1]];
        let mut seen: Vec<_> = (0..FILE_COUNT).map(|_| nothing()).collect();
        while !self.is_over.load(SeqCst) {
            slot.run("reader on n1", || self.read_one(&mut prng, &mut seen))?;
        }
        Ok(())
    }

    fn change_on(&self, seed: u64, slot: &Slot) -> Outcome {
        let mut prng = Prng::new(seed);
        while !self.is_over.load(SeqCst) {
            slot.run("writer", || self.change_one(&mut prng))?;
            // Many at once, and then none for as long as an open takes, or a whole reading.
            if prng.chance(2, 3) {
                std::thread::sleep(Duration::from_micros(prng.below(2500)));
            }
        }
        Ok(())
    }

    fn state_count(&self) -> u64 {
        let count = |file: &Watched| file.states.lock().expect("never poisoned").len() as u64;
        self.files.iter().map(count).sum()
    }

    /// Runs all of it until enough was done; what was.
    fn run(&self, seed: u64) -> Result<String, String> {
        let (begin, filled) = (Instant::now(), count(self.fixture, "files_filled"));
        let filled = || count(self.fixture, "files_filled") - filled;
        let is_enough = || filled() >= FILLS_MIN && self.state_count() >= STATES_MIN;
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let end = |outcome: Outcome| {
                // A fault ends the others.
                self.is_over.fetch_or(outcome.is_err(), SeqCst);
                outcome
            };
            for reader in 1..=READER_COUNT {
                let slot = self.fixture.slot();
                threads.push(scope.spawn(move || end(self.read_on(seed + reader, &slot))));
            }
            let slot = self.fixture.slot();
            threads.push(scope.spawn(move || end(self.change_on(seed, &slot))));
            while !self.is_over.load(SeqCst) && self.fixture.hang().is_none() {
                let time = begin.elapsed();
                if time >= TIME_MAX || time >= TIME && is_enough() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            self.is_over.store(true, SeqCst);
            let join = |t: std::thread::ScopedJoinHandle<'_, _>| t.join().expect("no panic");
            let outcomes: Vec<Outcome> = threads.into_iter().map(join).collect();
            let faults: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
            match faults.is_empty() {
                true => Ok(()),
                false => Err(format!("seed {seed}: {}", faults.join("\n"))),
            }
        })?;
        for file in &self.files {
            let states = file.states.lock().expect("never poisoned");
            let last = states[states.len() - 1].bytes();
            for node in [1, 2] {
                let seen = io("read", fs::read(self.fixture.path(node, &file.name)))?;
                same(
                    &format!("{} on n{node} at the end", file.name),
                    &seen,
                    &last,
                )?;
            }
        }
        let [reads, quiet, short] = [&self.reads, &self.quiet, &self.short].map(|n| n.load(SeqCst));
        let (filled, states, seconds) = (filled(), self.state_count(), begin.elapsed().as_secs());
        let numbers = format!(
            "seed {seed}, {seconds} s: {filled} filled, {states} states, {reads} reads, {quiet} rounds beside no change, {short} other lengths"
        );
        match is_enough() {
            true => Ok(numbers),
            false => Err(format!("too little was done: {numbers}")),
        }
    }
}

/// Changes a size, again while it is answered EINTR: where a file is open for writing, or was a moment ago, and another node
/// wants it meanwhile (docs/tokens.md, "Limits of the kernel").
fn again(mut change: impl FnMut() -> std::io::Result<()>) -> std::io::Result<()> {
    let until = Instant::now() + LIMIT;
    loop {
        match change() {
            Err(error) if error.kind() == ErrorKind::Interrupted && Instant::now() < until => {}
            done => return done,
        }
    }
}

/// truncate(2).
fn truncate(path: &Path, size: usize) -> std::io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).expect("no NUL in a path of ours");
    let size = libc::off_t::try_from(size).expect("small");
    // SAFETY: a string that ends in NUL.
    match unsafe { libc::truncate(path.as_ptr(), size) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn seed() -> u64 {
    let given = std::env::var("GUPFS_PINGPONG_SEED").ok();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let drawn = now.map_or(0, |time| u64::from(time.subsec_nanos()));
    given.and_then(|seed| seed.parse().ok()).unwrap_or(drawn)
}

/// Whole versions of one size: also what mappings show is never older than what the other node's writes have left.
#[test]
fn fills_race_with_writes_of_the_other_node() {
    let fixture = lab!();
    let outcome = Load::new(&fixture, &[2], true).run(seed());
    finish(&fixture, outcome);
}

/// The same with O_TRUNC, ftruncate, truncate and names that get other files.
#[test]
fn fills_race_with_changes_of_size_of_the_other_node() {
    let fixture = lab!();
    let outcome = Load::new(&fixture, &[2], false).run(seed());
    finish(&fixture, outcome);
}

/// Both nodes write: node 2 has node 1 drop what it has, so that opens fill it again while node 1 writes.
#[test]
fn fills_race_with_writes_of_this_node() {
    let fixture = lab!();
    let outcome = Load::new(&fixture, &[1, 2], true).run(seed());
    finish(&fixture, outcome);
}

#[test]
fn fills_race_with_changes_of_size_of_this_node() {
    let fixture = lab!();
    let outcome = Load::new(&fixture, &[1, 2, 1], false).run(seed());
    finish(&fixture, outcome);
}
