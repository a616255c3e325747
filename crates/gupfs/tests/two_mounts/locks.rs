//! Locks of applications on two nodes: fcntl (POSIX and open file description) and flock.
//!
//! The applications are Python processes that do what they are told line by line, so that each has its own open files,
//! and can be killed. Waits are seen in `gupfs waiters` before what ends them is done.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::fixture::Fixture;
use crate::{finish, lab};

/// How long any answer is waited for.
const LIMIT: Duration = Duration::from_secs(20);
/// The same for an answer to a whole loop under locks that others want too.
const LOOP_LIMIT: Duration = Duration::from_secs(120);
const KINDS: [&str; 3] = ["posix", "ofd", "flock"];

/// An application.
struct App {
    child: Child,
    input: ChildStdin,
    said: Receiver<String>,
    name: &'static str,
}

type Checked = Result<(), String>;

impl App {
    fn new(name: &'static str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/two_mounts/locks.py");
        let mut command = Command::new("python3");
        command.arg(script).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            input: child.stdin.take().expect("piped"),
            child,
            said,
            name,
        }
    }

    fn begin(&mut self, code: &str) {
        writeln!(self.input, "{code}").expect("it reads");
    }

    fn end(&self) -> Result<String, String> {
        self.end_within(LIMIT)
    }

    fn end_within(&self, limit: Duration) -> Result<String, String> {
        let said = self.said.recv_timeout(limit);
        said.map_err(|error| format!("{}: no answer: {error}", self.name))
    }

    fn run(&mut self, code: &str) -> Result<String, String> {
        self.begin(code);
        self.end().map_err(|error| format!("{error} to {code}"))
    }

    /// Runs it, and says what is wrong unless it says `expected`.
    fn is(&mut self, code: &str, expected: &str) -> Checked {
        let said = self.run(code)?;
        match said == expected {
            true => Ok(()),
            false => Err(format!("{}: {code}: {said}, not {expected}", self.name)),
        }
    }

    /// The call that was begun has ended so.
    fn ended(&self, expected: &str) -> Checked {
        self.ended_within(LIMIT, expected)
    }

    fn ended_within(&self, limit: Duration, expected: &str) -> Checked {
        let said = self.end_within(limit)?;
        match said == expected {
            true => Ok(()),
            false => Err(format!("{}: {said}, not {expected}", self.name)),
        }
    }

    fn is_waiting(&self) -> Checked {
        match self.said.try_recv() {
            Ok(said) => Err(format!("{} does not wait: {said}", self.name)),
            Err(_) => Ok(()),
        }
    }

    fn kill(&mut self) {
        self.child.kill().expect("ours");
        self.child.wait().expect("ours");
    }
}

impl Drop for App {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats until it says `expected`: what ends by itself a moment later (RELEASE follows close).
fn soon(app: &mut App, code: &str, expected: &str) -> Checked {
    let until = Instant::now() + LIMIT;
    loop {
        let said = app.run(code)?;
        if said == expected {
            return Ok(());
        }
        if Instant::now() > until {
            return Err(format!("{}: {code}: {said}, never {expected}", app.name));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// So many waits for locks show at the owners, each with who is in the way.
fn wait_for_waiters(fixture: &Fixture, count: usize) -> Checked {
    let until = Instant::now() + LIMIT;
    loop {
        let seen: usize = [1, 2]
            .iter()
            .filter_map(|node| fixture.ask(*node, "waiters"))
            .map(|waiters| {
                let text = waiters.to_string();
                let kinds = ["waits for the fcntl", "waits for the flock"];
                kinds
                    .map(|kind| text.matches(kind).count())
                    .iter()
                    .sum::<usize>()
            })
            .sum();
        if seen == count {
            return Ok(());
        }
        if Instant::now() > until {
            let waiters = fixture.waiters();
            return Err(format!("{seen} waits instead of {count}\n{waiters}"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn open(app: &mut App, name: &str, path: &std::path::Path) -> Checked {
    app.is(&format!("open_as('{name}', '{}')", path.display()), "ok")
}

/// Two applications on node 1 and two on node 2, each with `a` and `b` open: two open files of one file.
fn apps(fixture: &Fixture, file: &str) -> Result<[App; 3], String> {
    let mut all = [App::new("n1"), App::new("n2"), App::new("n2 too")];
    for (app, node) in all.iter_mut().zip([1, 2, 2]) {
        let path = fixture.path(node, file);
        for name in ["a", "b"] {
            open(app, name, &path)?;
        }
    }
    Ok(all)
}

fn conflicts(fixture: &Fixture) -> Checked {
    let [mut one, mut two, mut three] = apps(fixture, "conflicts")?;
    for kind in KINDS {
        one.is(&format!("lock('{kind}', 'a', READ)"), "ok")?;
        two.is(&format!("lock('{kind}', 'a', READ)"), "ok")?;
        two.is(&format!("lock('{kind}', 'a', WRITE)"), "EAGAIN")?;
        if kind == "flock" {
            // flock(2): the conversion that failed gave the old lock up.
            one.is("lock('flock', 'a', WRITE)", "ok")?;
            three.is("lock('flock', 'a', READ)", "EAGAIN")?;
            one.is("lock('flock', 'a', UNLOCK)", "ok")?;
            two.is("lock('flock', 'a', WRITE)", "ok")?;
        } else {
            one.is(&format!("lock('{kind}', 'a', WRITE)"), "EAGAIN")?;
            one.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
            two.is(&format!("lock('{kind}', 'a', WRITE)"), "ok")?;
        }
        one.is(&format!("lock('{kind}', 'a', READ)"), "EAGAIN")?;
        three.is(&format!("lock('{kind}', 'a', READ)"), "EAGAIN")?;
        two.is(&format!("lock('{kind}', 'a', READ)"), "ok")?;
        one.is(&format!("lock('{kind}', 'a', READ)"), "ok")?;
        two.is(&format!("lock('{kind}', 'b', WRITE)"), "EAGAIN")?;
        for app in [&mut one, &mut two] {
            app.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        }
        // Another open file of the same process is an owner of its own, but for POSIX locks.
        let own = if kind == "posix" { "ok" } else { "EAGAIN" };
        two.is(&format!("lock('{kind}', 'a', WRITE)"), "ok")?;
        two.is(&format!("lock('{kind}', 'b', WRITE)"), own)?;
        two.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        two.is(&format!("lock('{kind}', 'b', UNLOCK)"), "ok")?;
    }
    // flock knows nothing of fcntl.
    one.is("lock('flock', 'a', WRITE)", "ok")?;
    two.is("lock('posix', 'a', WRITE)", "ok")?;
    three.is("lock('flock', 'a', READ)", "EAGAIN")?;
    // Of open file descriptions and processes it is one space.
    one.is("lock('ofd', 'a', READ)", "EAGAIN")?;
    two.is("lock('posix', 'a', UNLOCK)", "ok")
}

fn ranges(fixture: &Fixture) -> Checked {
    let [mut one, mut two, mut three] = apps(fixture, "ranges")?;
    one.is("lock('posix', 'a', WRITE, 0, 100)", "ok")?;
    one.is("lock('posix', 'a', UNLOCK, 40, 20)", "ok")?;
    two.is("lock('posix', 'a', WRITE, 40, 20)", "ok")?;
    two.is("lock('posix', 'a', WRITE, 39, 1)", "EAGAIN")?;
    two.is("lock('posix', 'a', READ, 60, 1)", "EAGAIN")?;
    three.is("test('posix', 'a', WRITE, 10, 100)", "write 0 40 0")?;
    three.is("test('posix', 'a', READ, 100, 0)", "free")?;
    two.is("lock('posix', 'a', UNLOCK, 40, 20)", "ok")?;
    one.is("lock('posix', 'a', WRITE, 40, 20)", "ok")?;
    two.is("test('posix', 'a', READ, 50, 1)", "write 0 100 0")?;
    one.is("lock('posix', 'a', READ, 50, 10)", "ok")?;
    two.is("lock('posix', 'a', READ, 50, 10)", "ok")?;
    one.is("lock('posix', 'a', WRITE, 55, 1)", "EAGAIN")?;
    two.is("test('posix', 'a', WRITE, 55, 1)", "read 50 10 0")?;
    // Of its own node the process is shown.
    let pid = three.run("os.getpid()")?;
    three.is("lock('posix', 'a', WRITE, 1000)", "ok")?;
    two.is(
        "test('posix', 'a', READ, 5000, 1)",
        &format!("write 1000 0 {pid}"),
    )?;
    one.is("test('posix', 'a', READ, 5000, 1)", "write 1000 0 0")?;
    one.is("lock('posix', 'a', READ, 0, 1001)", "EAGAIN")?;
    one.is("lock('posix', 'a', READ, 0, 1000)", "ok")
}

fn waits(fixture: &Fixture) -> Checked {
    let [mut one, mut two, mut three] = apps(fixture, "waits")?;
    for kind in KINDS {
        one.is(&format!("lock('{kind}', 'a', WRITE)"), "ok")?;
        two.begin(&format!("lock('{kind}', 'a', WRITE, wait=True)"));
        wait_for_waiters(fixture, 1)?;
        three.begin(&format!("lock('{kind}', 'a', WRITE, wait=True)"));
        wait_for_waiters(fixture, 2)?;
        two.is_waiting()?;
        one.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        // In the order of arrival.
        two.ended("ok")?;
        three.is_waiting()?;
        two.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        three.ended("ok")?;
        // A signal ends a wait, and nothing of it is left.
        let begin = Instant::now();
        one.is(
            &format!("alarm_while(0.2, '{kind}', 'a', WRITE, 0, 0, True)"),
            "interrupted",
        )?;
        if begin.elapsed() > Duration::from_secs(3) {
            return Err(format!("{kind}: interrupted after {:?}", begin.elapsed()));
        }
        wait_for_waiters(fixture, 0)?;
        three.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        two.is(&format!("lock('{kind}', 'a', WRITE)"), "ok")?;
        two.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
    }
    // Circles are refused.
    one.is("lock('posix', 'a', WRITE, 0, 1)", "ok")?;
    two.is("lock('posix', 'a', WRITE, 1, 1)", "ok")?;
    one.begin("lock('posix', 'a', WRITE, 1, 1, True)");
    wait_for_waiters(fixture, 1)?;
    two.is("lock('posix', 'a', WRITE, 0, 1, True)", "EDEADLK")?;
    two.is("lock('posix', 'a', UNLOCK)", "ok")?;
    one.ended("ok")
}

fn closes(fixture: &Fixture) -> Checked {
    let [mut one, mut two, mut three] = apps(fixture, "closes")?;
    // Any close drops a process's locks, at once.
    one.is("lock('posix', 'a', WRITE)", "ok")?;
    one.is("close('b')", "ok")?;
    two.is("lock('posix', 'a', WRITE)", "ok")?;
    two.is("lock('posix', 'a', UNLOCK)", "ok")?;
    // Locks of an open file go with its last descriptor.
    for kind in ["ofd", "flock"] {
        one.is(&format!("lock('{kind}', 'a', WRITE)"), "ok")?;
        one.is("dup('a', 'c')", "ok")?;
        one.is("close('a')", "ok")?;
        two.is(&format!("lock('{kind}', 'a', READ)"), "EAGAIN")?;
        one.is("close('c')", "ok")?;
        soon(&mut two, &format!("lock('{kind}', 'a', READ)"), "ok")?;
        two.is(&format!("lock('{kind}', 'a', UNLOCK)"), "ok")?;
        open(&mut one, "a", &fixture.path(1, "closes"))?;
    }
    // A child has the open files, and not the process's locks; its end drops neither.
    one.is("lock('posix', 'a', WRITE, 0, 10)", "ok")?;
    one.is("lock('flock', 'a', WRITE)", "ok")?;
    one.is(
        "fork_and(\"lock('posix', 'a', WRITE, 0, 10) == 'EAGAIN'\")",
        "0",
    )?;
    one.is("fork_and(\"lock('flock', 'a', WRITE) == 'ok'\")", "0")?;
    two.is("lock('posix', 'a', WRITE, 0, 10)", "EAGAIN")?;
    two.is("lock('flock', 'a', WRITE)", "EAGAIN")?;
    // Who is killed while he waits is gone.
    three.begin("lock('posix', 'a', WRITE, 0, 10, True)");
    wait_for_waiters(fixture, 1)?;
    three.kill();
    wait_for_waiters(fixture, 0)?;
    // Who is killed while he holds lets go.
    one.kill();
    soon(&mut two, "lock('posix', 'a', WRITE, 0, 10)", "ok")?;
    soon(&mut two, "lock('flock', 'a', WRITE)", "ok")?;
    // A file without a name.
    std::fs::remove_file(fixture.path(1, "closes")).map_err(|e| e.to_string())?;
    two.is("lock('posix', 'a', WRITE, 20, 10)", "ok")?;
    two.is("lock('posix', 'b', UNLOCK)", "ok")?;
    two.is("close('a')", "ok")?;
    two.is("close('b')", "ok")
}

/// Counters under locks: by hand, and SQLite's.
fn counters(fixture: &Fixture) -> Checked {
    const TIMES: usize = 150;
    let [mut one, mut two, _] = apps(fixture, "counter")?;
    for app in [&mut one, &mut two] {
        app.begin(&format!("count('a', {TIMES})"));
    }
    one.ended_within(LOOP_LIMIT, "ok")?;
    two.ended_within(LOOP_LIMIT, "ok")?;
    let text = std::fs::read_to_string(fixture.path(1, "counter")).map_err(|e| e.to_string())?;
    if text != format!("{:08}", 2 * TIMES) {
        return Err(format!("{text} instead of {}", 2 * TIMES));
    }
    let path = |node| fixture.path(node, "base.db");
    one.is(&format!("sqlite_make('{}')", path(1).display()), "ok")?;
    const ROUNDS: usize = 15;
    for (app, node) in [(&mut one, 1), (&mut two, 2)] {
        app.begin(&format!(
            "sqlite_count('{}', {ROUNDS})",
            path(node).display()
        ));
    }
    one.end_within(LOOP_LIMIT)?;
    two.end_within(LOOP_LIMIT)?;
    let all = (2 * ROUNDS).to_string();
    one.is(&format!("sqlite_count('{}', 0)", path(1).display()), &all)?;
    two.is(&format!("sqlite_count('{}', 0)", path(2).display()), &all)
}

fn all_of_it(fixture: &Fixture) {
    let mut outcome = Ok(String::new());
    type Part = fn(&Fixture) -> Checked;
    let parts: [(&str, Part); 5] = [
        ("conflicts", conflicts),
        ("ranges", ranges),
        ("waits", waits),
        ("closes", closes),
        ("counters", counters),
    ];
    for (name, part) in parts {
        let begin = Instant::now();
        if let Err(fault) = part(fixture) {
            outcome = Err(format!("{name}: {fault}"));
            break;
        }
        eprintln!("{name}: {} ms", begin.elapsed().as_millis());
    }
    finish(fixture, outcome);
}

#[test]
fn locks_hold_on_both_nodes() {
    let fixture = lab!();
    all_of_it(&fixture);
}

#[test]
fn locks_hold_on_both_nodes_over_the_ring() {
    if let Some(reason) = crate::fixture::reason_without_ring() {
        eprintln!("skipped: {reason}");
        return;
    }
    let fixture = lab!(Fixture::with(&["--transport", "ring"]));
    all_of_it(&fixture);
}

/// A file made on a node is its owner's there: who holds locks sees his owner killed, and the other way round.
fn kills(fixture: &Fixture) -> Checked {
    let [mut one, mut two, mut three] = apps(fixture, "by-one")?;
    // Node 1 owns it; node 2 holds and waits.
    two.is("lock('posix', 'a', WRITE, 0, 10)", "ok")?;
    two.is("lock('ofd', 'b', READ, 100, 10)", "ok")?;
    two.is("lock('flock', 'a', WRITE)", "ok")?;
    three.begin("lock('posix', 'a', WRITE, 5, 1, True)");
    wait_for_waiters(fixture, 1)?;
    drop(one);
    fixture.lab(&["kill", "n1"])?;
    three.is_waiting()?;
    fixture.lab(&["start", "n1"])?;
    one = App::new("n1 again");
    open(&mut one, "a", &fixture.path(1, "by-one"))?;
    one.is("lock('posix', 'a', WRITE, 0, 10)", "EAGAIN")?;
    one.is("lock('posix', 'a', WRITE, 100, 1)", "EAGAIN")?;
    one.is("lock('posix', 'a', READ, 100, 1)", "ok")?;
    one.is("lock('flock', 'a', READ)", "EAGAIN")?;
    // The wait goes on at the new owner.
    wait_for_waiters(fixture, 1)?;
    three.is_waiting()?;
    two.is("lock('posix', 'a', UNLOCK, 0, 10)", "ok")?;
    three.ended("ok")?;
    one.is("lock('posix', 'a', WRITE, 5, 1)", "EAGAIN")?;
    // The holders' node dies: its locks are free, at once where its daemon comes back.
    drop((two, three));
    fixture.lab(&["kill", "n2"])?;
    fixture.lab(&["start", "n2"])?;
    soon(&mut one, "lock('posix', 'a', WRITE)", "ok")?;
    soon(&mut one, "lock('flock', 'a', WRITE)", "ok")?;
    Ok(())
}

#[test]
fn locks_outlive_their_owner_and_not_their_holder() {
    let fixture = lab!();
    let outcome = kills(&fixture).map(|()| "kept".to_owned());
    finish(&fixture, outcome);
}
