//! Signals to who waits for tokens: loads do not fail for them, and nobody is interrupted without one.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::calls::{self, Mapping};
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
