//! Rule R8 on two real mounts: a node whose lease is over shows nothing that may be old, loses nothing in silence,
//! and works again when it is back.
//!
//! Nothing here waits for a time: each step waits for a state that `status`, `waiters` or a call shows, bounded.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use crate::calls::{self, Mapping};
use crate::finish;
use crate::fixture::{self, Fixture};

/// Milliseconds of a lease: short, and long enough for a busy machine.
const LEASE_MS: &str = "8000";
/// How long any state is waited for: a lapse, three leases and a new life may follow one another.
const LIMIT: Duration = Duration::from_secs(60);
const SIZE: usize = 64 << 10;

fn lab() -> Option<Fixture> {
    if let Some(reason) = fixture::reason_to_skip() {
        eprintln!("skipped: {reason}");
        return None;
    }
    Some(Fixture::with(&["--lease-ms", LEASE_MS]))
}

/// Waits until `look` sees something.
fn wait_for<T>(fixture: &Fixture, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        if Instant::now() > until {
            fail(fixture, &format!("{what} never came"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ends the test. Files that are open on a node without a lease cannot be closed before the mounts are gone.
fn fail(fixture: &Fixture, fault: &str) -> ! {
    let waiters = fixture.waiters();
    fixture.end();
    panic!("{fault}\n{waiters}");
}

/// Node 2 has no lease, and its kernel holds no page of an open file.
fn wait_for_lapse(fixture: &Fixture) {
    wait_for(fixture, "the lapse of n2", || {
        let status = fixture.ask(2, "status")?;
        (status["lapse"]["open_files_left"].as_u64()? == 0).then_some(())
    });
}

fn wait_for_lease(fixture: &Fixture) {
    wait_for(fixture, "the lease of n2", || {
        let status = fixture.ask(2, "status")?;
        let is_there = status["lease_ms"].as_u64()? > 0 && status["mounted"].as_bool()?;
        (is_there && status["lapse"].is_null()).then_some(())
    });
}

type Seen = std::io::Result<Vec<u8>>;
type Look = Box<dyn FnOnce() -> Seen + Send>;

/// A call on node 2 that waits for the lease.
struct Call {
    name: &'static str,
    seen: Receiver<Seen>,
}

impl Call {
    fn start(name: &'static str, look: Look) -> Self {
        let (send, seen) = channel();
        std::thread::spawn(move || send.send(look()));
        Self { name, seen }
    }
}

/// The calls have reached the daemon and none has returned.
fn wait_until_parked(fixture: &Fixture, calls: &[Call]) {
    wait_for(fixture, "a request of each call", || {
        for call in calls {
            match call.seen.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(Ok(seen)) => {
                    let fault = format!("{} saw {} without a lease", call.name, seen[0]);
                    fail(fixture, &fault);
                }
                Ok(Err(error)) => {
                    fail(
                        fixture,
                        &format!("{} met {error} without a lease", call.name),
                    );
                }
                Err(TryRecvError::Disconnected) => fail(fixture, "a thread ended"),
            }
        }
        let waiters = fixture.ask(2, "waiters")?;
        let all = waiters["waiters"].as_array()?;
        let what = all.iter().filter_map(|w| w["what"].as_str());
        let count: usize = what
            .map(|what| match what.split_once(" requests, replies") {
                // The line that counts what waits in front of the slices.
                Some((count, _)) => count.parse().unwrap_or(0),
                None => usize::from(what.contains("Read {")),
            })
            .sum();
        (count >= calls.len()).then_some(())
    });
}

fn outcome(fixture: &Fixture, call: &Call) -> Seen {
    wait_for(fixture, call.name, || match call.seen.try_recv() {
        Ok(seen) => Some(seen),
        Err(TryRecvError::Empty) => None,
        Err(TryRecvError::Disconnected) => panic!("{} panicked", call.name),
    })
}

fn bytes(of: u8) -> Vec<u8> {
    vec![of; SIZE]
}

/// What node 2 has cached and open when its lease ends.
struct Held {
    cached: Arc<File>,
    sent: Arc<File>,
    mapped: Arc<Mapping>,
    written: File,
    stored: Arc<Mapping>,
}

const FILES: [&str; 5] = ["cached", "sent", "mapped", "written", "stored"];

impl Held {
    /// Files full of 1, all of them cached on node 2; `written` and `stored` full of 2 there, and not committed.
    fn new(fixture: &Fixture) -> Self {
        for name in FILES {
            fs::write(fixture.path(1, name), bytes(1)).expect("written");
        }
        let open = |name: &str| File::open(fixture.path(2, name)).expect("opened");
        let change = |name: &str| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true);
            options.open(fixture.path(2, name)).expect("opened")
        };
        let held = Self {
            cached: Arc::new(open("cached")),
            sent: Arc::new(open("sent")),
            mapped: Arc::new(Mapping::new(&open("mapped"), SIZE, false).expect("mapped")),
            written: change("written"),
            stored: Arc::new(Mapping::new(&change("stored"), SIZE, true).expect("mapped")),
        };
        for call in held.looks() {
            assert_eq!(call.1().expect("read"), bytes(1), "{}", call.0);
        }
        held.written.write_all_at(&bytes(2), 0).expect("written");
        held.stored.store(0, &bytes(2)).expect("stored");
        held
    }

    /// A read of each cached file, in the way that its name says.
    fn looks(&self) -> Vec<(&'static str, Look)> {
        let (cached, sent, mapped) = (self.cached.clone(), self.sent.clone(), self.mapped.clone());
        vec![
            (
                "a read through the page cache",
                Box::new(move || {
                    let mut bytes = bytes(0);
                    cached.read_exact_at(&mut bytes, 0).map(|()| bytes)
                }),
            ),
            ("a sendfile", Box::new(move || calls::send(&sent, SIZE))),
            (
                "a load from a mapping",
                Box::new(move || {
                    let mut bytes = bytes(0);
                    mapped.load(0, &mut bytes).map(|()| bytes)
                }),
            ),
        ]
    }

    fn calls(&self) -> Vec<Call> {
        let looks = self.looks().into_iter();
        looks.map(|(name, look)| Call::start(name, look)).collect()
    }
}

/// Node 2 is cut off; node 1 waits for the end of its lease, declares it dead, and changes all it had cached.
#[test]
fn r8_a_node_that_was_declared_dead_shows_nothing_old() {
    let Some(fixture) = lab() else { return };
    let held = Held::new(&fixture);
    fixture.link(2, false);
    wait_for_lapse(&fixture);
    for name in FILES {
        let file = OpenOptions::new().write(true).open(fixture.path(1, name));
        let file = file.expect("opened");
        file.write_all_at(&bytes(3), 0).expect("written");
        file.sync_all().expect("durable");
    }
    let calls = held.calls();
    wait_until_parked(&fixture, &calls);
    fixture.link(2, true);
    wait_for(&fixture, "a new life of n2", || {
        fixture.log(2).contains("starting anew").then_some(())
    });
    wait_for_lease(&fixture);
    for call in &calls {
        match outcome(&fixture, call) {
            Ok(seen) => assert_eq!(seen, bytes(3), "{} is old", call.name),
            Err(error) => eprintln!("{}: {error}", call.name),
        }
    }
    // Every descriptor of the old life answers an error; what it had not committed is not lost in silence.
    held.written.sync_all().expect_err("fsync of lost data");
    held.written.write_all_at(&[4], 0).expect_err("a write");
    held.stored.sync().expect_err("msync of lost data");
    let mut byte = [0];
    held.cached.read_exact_at(&mut byte, 0).expect_err("a read");
    held.mapped.load(0, &mut byte).expect_err("a load");
    let log = fixture.log(2);
    assert!(log.contains("what this life had written and not committed is lost"));
    // New opens work, both ways.
    let outcome = works(&fixture, &[3; 5]);
    finish(&fixture, outcome);
}

/// The cluster manager stands still for longer than a lease: nobody is declared dead, and node 2 goes on with its
/// tokens and all that it had written.
#[test]
fn r8_a_lease_that_comes_back_keeps_what_was_written() {
    let Some(fixture) = lab() else { return };
    let held = Held::new(&fixture);
    fixture.signal(1, "STOP");
    wait_for_lapse(&fixture);
    let calls = held.calls();
    wait_until_parked(&fixture, &calls);
    fixture.signal(1, "CONT");
    wait_for_lease(&fixture);
    for call in &calls {
        let seen = outcome(&fixture, call).expect("the tokens are valid again");
        assert_eq!(seen, bytes(1), "{}", call.name);
    }
    let mut seen = bytes(0);
    held.stored.load(0, &mut seen).expect("loaded");
    assert_eq!(seen, bytes(2), "stores of before the lapse");
    held.written.sync_all().expect("nothing was lost");
    assert!(!fixture.log(2).contains("starting anew"));
    let outcome = works(&fixture, &[1, 1, 1, 2, 2]);
    finish(&fixture, outcome);
}

/// Both nodes read the files as these bytes, and then what the other writes.
fn works(fixture: &Fixture, contents: &[u8; 5]) -> Result<String, String> {
    let check = |node: usize, name: &str, of: u8| -> Result<(), String> {
        let seen = fs::read(fixture.path(node, name)).map_err(|e| format!("{name}: {e}"))?;
        match seen == bytes(of) {
            true => Ok(()),
            false => Err(format!("n{node} reads {} in {name}, not {of}", seen[0])),
        }
    };
    for (name, of) in FILES.iter().zip(contents) {
        check(1, name, *of)?;
        check(2, name, *of)?;
        for (writer, reader) in [(2, 1), (1, 2)] {
            let of = 10 + u8::try_from(writer).expect("1 or 2");
            fs::write(fixture.path(writer, name), bytes(of)).map_err(|e| format!("{name}: {e}"))?;
            check(reader, name, of)?;
        }
    }
    Ok("both nodes work".to_owned())
}

/// The owner of dirty files is dead when their node is stopped: who stops it hears how much is lost, once, and nothing
/// hangs.
#[test]
fn a_stop_says_what_cannot_be_written_back() {
    let Some(fixture) = lab() else { return };
    fs::create_dir(fixture.path(1, "d")).expect("made");
    for index in 0..3 {
        let name = format!("d/f{index}");
        fs::write(fixture.path(1, &name), [1; 20_000]).expect("written");
        let file = OpenOptions::new().write(true).open(fixture.path(2, &name));
        let file = file.expect("opened");
        file.write_all_at(&[2; 8192], 0).expect("written");
    }
    fixture.lab(&["kill", "n1"]).expect("killed");
    let state = fixture.mount(2).parent().expect("n2").to_owned();
    let down = || {
        let mut command = Command::new("timeout");
        command.args([
            "-k",
            "5",
            "90",
            env!("CARGO_BIN_EXE_gupfs"),
            "down",
            "--state",
        ]);
        let output = command.arg(&state).output().expect("timeout(1)");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let (is_ok, said) = down();
    assert!(!is_ok, "{said}");
    assert!(said.contains("24576 bytes of 3 files"), "{said}");
    let (is_ok, said) = down();
    assert!(is_ok && said.is_empty(), "said once: {said}");
}
