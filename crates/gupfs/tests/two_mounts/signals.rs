//! Signals to who waits for tokens: loads do not fail for them, and nobody is interrupted without one.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{self, Mapping};
use crate::fixture::Fixture;
use crate::{finish, lab};

const TIME: Duration = Duration::from_secs(2);
const PAGE: usize = 4096;

/// Node 1 loads a page through a mapping (a system call copies from it) while node 2 writes it, so that each load waits
/// for a token; a third thread sends signals to the first.
#[test]
fn a_signal_does_not_make_a_load_fail() {
    let fixture = lab!();
    calls::catch_signals();
    std::fs::write(fixture.path(1, "f"), vec![1; PAGE]).expect("written");
    let open = |node| {
        let mut options = std::fs::File::options();
        options.read(true).write(true).open(fixture.path(node, "f"))
    };
    let (file, other) = (open(1).expect("opened"), open(2).expect("opened"));
    let mapping = Mapping::new(&file, PAGE, false).expect("mapped");
    let (is_over, thread, loads) = (AtomicBool::new(false), AtomicI32::new(0), AtomicU64::new(0));
    let (slot, writer_slot) = (fixture.slot(), fixture.slot());
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            use std::os::unix::fs::FileExt as _;
            let mut round = 0_u8;
            while !is_over.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                let wrote =
                    writer_slot.run("write on n2", || other.write_all_at(&[round; PAGE], 0));
                wrote.expect("written");
            }
        });
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let thread = thread.load(Ordering::Relaxed);
                if thread != 0 {
                    calls::interrupt(thread);
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let loader = scope.spawn(|| {
            thread.store(calls::me(), Ordering::Relaxed);
            let begin = Instant::now();
            let mut outcome = Ok(());
            while begin.elapsed() < TIME && outcome.is_ok() {
                let mut bytes = [0; 8];
                let loaded = slot.run("load on n1", || mapping.load(0, &mut bytes));
                let count = loads.fetch_add(1, Ordering::Relaxed);
                outcome = loaded.map_err(|error| format!("load {count}: {error}"));
            }
            thread.store(0, Ordering::Relaxed);
            is_over.store(true, Ordering::Relaxed);
            outcome
        });
        loader.join().expect("no panic")
    });
    let count = loads.load(Ordering::Relaxed);
    finish(&fixture, outcome.map(|()| format!("{count} loads")));
}

/// Node 1 empties a file that it has mapped for writing, by opening it, while node 2 reads it; nobody sends a signal.
#[test]
fn an_open_that_truncates_is_not_interrupted_without_a_signal() {
    let fixture = lab!();
    const SIZE: usize = 4 * PAGE;
    std::fs::write(fixture.path(1, "f"), vec![1; SIZE]).expect("written");
    let open = |node| {
        let mut options = std::fs::File::options();
        options.read(true).write(true).open(fixture.path(node, "f"))
    };
    let (file, other) = (open(1).expect("opened"), open(2).expect("opened"));
    let mapping = Mapping::new(&file, SIZE, true).expect("mapped");
    let is_over = AtomicBool::new(false);
    let slots = [fixture.slot(), fixture.slot(), fixture.slot()];
    let mut opens = [0_u64; 2];
    std::thread::scope(|scope| {
        let (is_over, other, mapping) = (&is_over, &other, &mapping);
        let [slot, store_slot, read_slot] = &slots;
        scope.spawn(move || {
            use std::os::unix::fs::FileExt as _;
            let mut bytes = [0; PAGE];
            while !is_over.load(Ordering::Relaxed) {
                let _ = read_slot.run("read on n2", || other.read_at(&mut bytes, 0));
            }
        });
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = store_slot.run("store on n1", || mapping.store(0, &[1; 8]));
            }
        });
        let begin = Instant::now();
        while begin.elapsed() < TIME {
            slot.run("truncate on n1", || file.set_len(SIZE as u64))
                .expect("longer again");
            let is_open = slot.run("open on n1", || calls::open_cut(&fixture.path(1, "f")));
            opens[usize::from(!is_open)] += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let seen = format!("opens done, interrupted: {opens:?}");
    let outcome = match opens[1] {
        0 => Ok(seen),
        _ => Err(seen),
    };
    finish(&fixture, outcome);
}

/// Processes of node 1 wait for bytes whose token node 2 has, which is silent for longer than they have patience: by whichever
/// thread of the daemon their requests came, a signal ends them.
#[test]
fn who_waits_can_be_killed() {
    const LEASE_MS: &str = "60000";
    const READER_COUNT: usize = 16;
    let fixture = lab!(Fixture::with(&["--lease-ms", LEASE_MS]));
    std::fs::write(fixture.path(1, "f"), vec![1; PAGE]).expect("written");
    let other = std::fs::File::options()
        .write(true)
        .open(fixture.path(2, "f"));
    let other = other.expect("opened");
    let open = || std::fs::File::open(fixture.path(1, "f")).expect("opened");
    let files: Vec<_> = (0..READER_COUNT).map(|_| open()).collect();
    // The token is node 2's now, and it does not hear that it is wanted.
    std::os::unix::fs::FileExt::write_all_at(&other, &[2; PAGE], 0).expect("written");
    fixture.link(2, false);
    let start = |file| {
        let mut head = Command::new("head");
        head.args(["-c", "1"]).stdin(file).stdout(Stdio::null());
        head.spawn().expect("started")
    };
    let mut readers: Vec<Child> = files.into_iter().map(start).collect();
    let outcome = kill_waiting(&fixture, &mut readers);
    fixture.link(2, true);
    for reader in &mut readers {
        let _ = reader.wait();
    }
    finish(&fixture, outcome);
}

/// Kills them once all wait; each must be gone long before the lease of who is silent ends.
fn kill_waiting(fixture: &Fixture, readers: &mut [Child]) -> Result<String, String> {
    const LIMIT: Duration = Duration::from_secs(30);
    let look = Duration::from_millis(20);
    let begin = Instant::now();
    loop {
        let waiters = fixture.ask(1, "waiters").unwrap_or_default().to_string();
        if waiters.matches("Acquire {").count() >= readers.len() {
            break;
        }
        if begin.elapsed() > LIMIT {
            return Err(format!("they do not all wait: {waiters}"));
        }
        std::thread::sleep(look);
    }
    for reader in readers.iter_mut() {
        let ended = reader.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = ended {
            return Err(format!("{status} before the signal"));
        }
        reader.kill().map_err(|error| error.to_string())?;
    }
    let begin = Instant::now();
    loop {
        let is_left = |reader: &mut Child| matches!(reader.try_wait(), Ok(None));
        match readers
            .iter_mut()
            .filter_map(|r| is_left(r).then_some(()))
            .count()
        {
            0 => return Ok(format!("all gone after {:?}", begin.elapsed())),
            left if begin.elapsed() > LIMIT => {
                return Err(format!("{left} of {} live on", readers.len()));
            }
            _ => std::thread::sleep(look),
        }
    }
}
