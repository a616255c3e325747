//! Asynchronous direct reads (io_submit(2)): they go on beside one another, and where they read into mapped pages that are
//! written back and dropped meanwhile nobody waits for ever (docs/decisions/0019).
#![allow(unsafe_code, reason = "io_submit and its like are not in std")]

use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use stdx::Prng;

use crate::calls::Mapping;
use crate::finish;
use crate::fixture::{Fixture, reason_to_skip};

const PAGE: usize = 4096;
/// What a read of a page ends with.
const PAGE_I64: i64 = 4096;
/// How long a node is cut off at the most: less than half of a lease.
const CUT_TIME: Duration = Duration::from_secs(4);
/// How long the load below goes on, and how long at the most if too little was done by then.
const TIME: Duration = Duration::from_secs(6);
const TIME_MAX: Duration = Duration::from_secs(60);

/// struct iocb of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Default)]
struct Control {
    data: u64,
    key: u32,
    rw_flags: i32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    length: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// struct io_event of linux/aio_abi.h.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Event {
    data: u64,
    control: u64,
    result: i64,
    more: i64,
}

/// A context of asynchronous I/O.
struct Context(u64);

impl Context {
    fn new(depth: u32) -> Result<Self> {
        let mut context = 0_u64;
        // SAFETY: a pointer to the number that is set.
        let result = unsafe { libc::syscall(libc::SYS_io_setup, depth, &raw mut context) };
        (result == 0)
            .then_some(Self(context))
            .ok_or_else(Error::last_os_error)
    }

    /// Begins to read `length` bytes at `offset` to the address `buffer`.
    ///
    /// # Safety
    /// The kernel may write there until the event with this `data` has come, or the context is gone.
    unsafe fn read(
        &self,
        file: &File,
        data: u64,
        buffer: usize,
        length: usize,
        offset: u64,
    ) -> Result<()> {
        let mut control = Control {
            data,
            descriptor: file.as_raw_fd().cast_unsigned(),
            buffer: buffer as u64,
            length: length as u64,
            offset: offset.cast_signed(),
            ..Control::default()
        };
        let mut list = [&raw mut control];
        // SAFETY: one block, which the kernel copies; the caller answers for the buffer.
        let count = unsafe { libc::syscall(libc::SYS_io_submit, self.0, 1_i64, list.as_mut_ptr()) };
        (count == 1).then_some(()).ok_or_else(Error::last_os_error)
    }

    /// What has ended: one event at least.
    fn events(&self) -> Result<Vec<Event>> {
        let mut events = [Event::default(); 64];
        // SAFETY: room for as many events as are asked for, and no time-out.
        let count = unsafe {
            let (room, none) = (events.as_mut_ptr(), std::ptr::null::<libc::timespec>());
            libc::syscall(libc::SYS_io_getevents, self.0, 1_i64, 64_i64, room, none)
        };
        let count = usize::try_from(count).map_err(|_| Error::last_os_error())?;
        Ok(events[..count].to_vec())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: our context. It waits for what is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

fn text<T>(what: &str, result: Result<T>) -> std::result::Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn fixture() -> Option<Fixture> {
    if let Some(reason) = reason_to_skip() {
        eprintln!("skipped: {reason}");
        return None;
    }
    let fixture = Fixture::new();
    for node in [1, 2] {
        fixture.set(node, "async_direct_io", "on");
    }
    fixture.restart().expect("both start again");
    Some(fixture)
}

fn open_direct(fixture: &Fixture, name: &str) -> std::result::Result<File, String> {
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_DIRECT);
    text("open", options.open(fixture.path(1, name)))
}

/// Node 1 reads what only node 2 has, while it cannot reach it: all reads begin, none has ended. When the link is there again each
/// brings its bytes.
#[test]
fn asynchronous_reads_begin_beside_one_another() {
    const COUNT: usize = 32;
    let Some(fixture) = fixture() else { return };
    let outcome = (|| {
        let mut model = vec![0_u8; COUNT * PAGE];
        Prng::new(7).fill(&mut model);
        text("make", std::fs::write(fixture.path(2, "file"), &model))?;
        let file = open_direct(&fixture, "file")?;
        let mut room = vec![0_u8; (COUNT + 1) * PAGE];
        let begin = room.as_mut_ptr() as usize;
        let buffer = begin.next_multiple_of(PAGE);
        let context = text("io_setup", Context::new(64))?;
        let (tell, is_begun) = std::sync::mpsc::channel();
        let is_up = AtomicBool::new(false);
        let slot = fixture.slot();
        fixture.link(2, false);
        let begun = std::thread::scope(|scope| {
            // Who submits one after the other, as without FUSE_ASYNC_DIO, gets on when the link is there again.
            let (is_up, fixture) = (&is_up, &fixture);
            let joiner = scope.spawn(move || {
                let _ = is_begun.recv_timeout(CUT_TIME);
                is_up.store(true, Ordering::SeqCst);
                fixture.link(2, true);
            });
            let begun = slot.run("io_submit", || {
                for number in 0..COUNT {
                    let at = number * PAGE;
                    // SAFETY: pages of `room`, which outlives the context.
                    let read =
                        unsafe { context.read(&file, number as u64, buffer + at, PAGE, at as u64) };
                    text("io_submit", read)?;
                }
                Ok::<_, String>(!is_up.load(Ordering::SeqCst))
            });
            let _ = tell.send(());
            joiner.join().expect("no panic");
            begun
        })?;
        let mut ended = 0;
        while ended < COUNT {
            for event in slot.run("io_getevents", || text("io_getevents", context.events()))? {
                if event.result != PAGE_I64 {
                    return Err(format!("read {}: {}", event.data, event.result));
                }
                ended += 1;
            }
        }
        if !begun {
            return Err("each read waited for the one before".to_owned());
        }
        drop(context);
        if room[buffer - begin..][..COUNT * PAGE] != model {
            return Err("other bytes".to_owned());
        }
        Ok(String::new())
    })();
    finish(&fixture, outcome);
}

/// What the load below has done.
#[derive(Debug, Default)]
struct Done {
    reads: AtomicU64,
    stores: AtomicU64,
    writes: AtomicU64,
}

impl Done {
    fn counts(&self) -> [u64; 3] {
        [&self.reads, &self.stores, &self.writes].map(|count| count.load(Ordering::Relaxed))
    }

    fn is_enough(&self) -> bool {
        let [reads, stores, writes] = self.counts();
        reads >= 100 && stores >= 10 && writes >= 10
    }

    fn text(&self) -> String {
        let [reads, stores, writes] = self.counts();
        format!("{reads} reads, {stores} stores, {writes} writes")
    }
}

/// Node 1 reads into pages of a mapping that it stores to all the time and that node 2 writes to all the time: they are written back and
/// dropped under locks that the ends of the reads wait for. Half of the reads are of a descriptor
/// without O_DIRECT that the daemon has opened as direct.
#[test]
fn reads_into_mapped_pages_that_are_dropped_end() {
    const PAGES: usize = 64;
    const DEPTH: usize = 48;
    let Some(fixture) = fixture() else { return };
    let outcome = (|| {
        let size = PAGES * PAGE;
        text(
            "make",
            std::fs::write(fixture.path(1, "mapped"), vec![1; size]),
        )?;
        text(
            "make",
            std::fs::write(fixture.path(1, "read"), vec![2; size]),
        )?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let mapped = text("open", options.open(fixture.path(1, "mapped")))?;
        let other = text("open", options.open(fixture.path(2, "mapped")))?;
        let mapping = text("map", Mapping::new(&mapped, size, true))?;
        let files = [
            open_direct(&fixture, "read")?,
            text("open", options.open(fixture.path(1, "read")))?,
        ];
        let (begin, done) = (Instant::now(), Done::default());
        let go_on = || {
            let limit = if done.is_enough() { TIME } else { TIME_MAX };
            begin.elapsed() < limit && fixture.hang().is_none()
        };
        let place =
            |prng: &mut Prng| usize::try_from(prng.below(PAGES as u64)).expect("small") * PAGE;
        std::thread::scope(|scope| {
            let storing = scope.spawn(|| {
                let (mut prng, slot) = (Prng::new(1), fixture.slot());
                while go_on() {
                    let at = place(&mut prng);
                    slot.run("a store", || text("store", mapping.store(at, &[3; 64])))?;
                    done.stores.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, String>(())
            });
            let writing = scope.spawn(|| {
                let (mut prng, slot) = (Prng::new(2), fixture.slot());
                while go_on() {
                    let at = place(&mut prng) as u64;
                    slot.run("a write", || {
                        text("write", other.write_all_at(&[4; 64], at))
                    })?;
                    done.writes.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, String>(())
            });
            let reading = scope.spawn(|| {
                let (mut prng, slot) = (Prng::new(3), fixture.slot());
                let context = text("io_setup", Context::new(64))?;
                let mut under_way = 0;
                while go_on() || under_way > 0 {
                    while under_way < DEPTH && go_on() {
                        let (to, from) = (place(&mut prng), place(&mut prng) as u64);
                        let buffer = mapping.address() + to;
                        slot.run("io_submit", || {
                            // SAFETY: pages of the mapping, which no Rust reference points into; it outlives the context.
                            let read = unsafe {
                                let file = &files[under_way % 2];
                                context.read(file, 0, buffer, PAGE, from)
                            };
                            text("io_submit", read)
                        })?;
                        under_way += 1;
                    }
                    if under_way == 0 {
                        break;
                    }
                    for event in
                        slot.run("io_getevents", || text("io_getevents", context.events()))?
                    {
                        if event.result != PAGE_I64 {
                            return Err(format!("a read ended with {}", event.result));
                        }
                        under_way -= 1;
                        done.reads.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok::<_, String>(())
            });
            let all = [storing, writing, reading].map(|thread| thread.join().expect("no panic"));
            let [stored, written, read] = all;
            stored.and(written).and(read)
        })?;
        if !done.is_enough() {
            return Err(format!("too little was done: {}", done.text()));
        }
        Ok(done.text())
    })();
    finish(&fixture, outcome);
}
