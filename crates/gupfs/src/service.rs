//! The daemon of a state directory seen from outside: is it there, start it, end it in any case.
//!
//! Invariants:
//! - Whoever waits here waits with a limit.
//! - `stop` succeeds from every state that a crash can leave: running, hung, dead with its mount left
//!   behind, dead without, never started.
//! - A mount is taken for one that a dead daemon has left only if the kernel says that its connection has ended. State directories
//!   do not know: a daemon serves mounts that none of them names, and one that does not answer may live.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::complain;
use crate::control::{self, Answer};
use crate::failure::{Failure, Result};
use crate::locate::{self, Serving};
use crate::state::{self, Place};
use crate::system::mounts::{self, Mount};
use crate::system::process;
use crate::{files, source};

/// How long a daemon may take until its mount answers.
pub const START_LIMIT: Duration = Duration::from_secs(30);
/// How long it may take to write back what it holds and end.
pub const STOP_LIMIT: Duration = Duration::from_secs(60);
/// How long a killed daemon may take to disappear: its memory is given back, and a machine may stand still for a while.
const KILL_LIMIT: Duration = Duration::from_secs(30);
/// Bytes without which a file system counts as full.
const LOG_ROOM: u64 = 16 << 10;
/// How often a starting daemon is asked.
const ASK_INTERVAL: Duration = Duration::from_millis(20);

/// What the daemon of a state directory is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Liveness {
    /// Mounted and answering.
    Mounted(Value),
    /// A process is there that does not (yet) answer `mounted`.
    Busy,
    /// No process.
    Absent,
}

/// Looks at the daemon of `place`.
pub fn look(place: &Place) -> Result<Liveness> {
    let answer = control::ask(&place.control(), "status", Duration::from_secs(2))?;
    if let Answer::Said(status) = answer {
        let is_mounted = status.get("mounted").and_then(Value::as_bool) == Some(true);
        return Ok(if is_mounted {
            Liveness::Mounted(status)
        } else {
            Liveness::Busy
        });
    }
    match process::daemons_of(place.root())?.is_empty() {
        true => Ok(Liveness::Absent),
        false => Ok(Liveness::Busy),
    }
}

/// Waits until the daemon of `place` is mounted, and what it says of itself then, or has ended. One that does neither is left alone.
pub fn settle(place: &Place) -> Result<Option<Value>> {
    let begin = Instant::now();
    loop {
        match look(place)? {
            Liveness::Mounted(status) => return Ok(Some(status)),
            Liveness::Absent => return Ok(None),
            Liveness::Busy if begin.elapsed() < START_LIMIT => std::thread::sleep(ASK_INTERVAL),
            Liveness::Busy => {
                let root = place.root().display();
                return Err(Failure::new(format!(
                    "{root} is in use: its daemon has not mounted, and not ended, within {} s",
                    START_LIMIT.as_secs()
                ))
                .help(format!(
                    "see the log in it; gupfs down --state {root} ends the daemon in any case"
                )));
            }
        }
    }
}

/// Whose turn it is to start the daemon of a state directory.
#[derive(Debug)]
pub enum Claim {
    /// Nobody's: it is mounted, and says this.
    Mounted(Value),
    /// The caller's, while it keeps this lock of the directory.
    Ours(File),
}

/// Waits until the daemon of `place` is mounted, or until nobody else runs or starts one. Others that mount at the same time are waited for.
pub fn claim(place: &Place) -> Result<Claim> {
    let begin = Instant::now();
    loop {
        if let Some(status) = settle(place)? {
            return Ok(Claim::Mounted(status));
        }
        match place.try_lock() {
            Ok(lock) => return Ok(Claim::Ours(lock)),
            Err(_) if begin.elapsed() < START_LIMIT => std::thread::sleep(ASK_INTERVAL),
            Err(failure) => return Err(failure),
        }
    }
}

/// A daemon that was started and may not be mounted yet.
#[derive(Debug)]
pub struct Starting {
    place: Place,
    child: Child,
    log_begin: u64,
}

/// Starts the daemon of `place`, with these arguments besides.
pub fn start(place: &Place, arguments: &[String]) -> Result<Starting> {
    let log = place.log();
    let log_begin = std::fs::metadata(&log).map_or(0, |m| m.len());
    // A socket that is there may be that of a daemon which others have just started: who has the lock replaces it.
    let child = process::start_daemon(place.root(), &log, arguments)?;
    Ok(Starting {
        place: place.clone(),
        child,
        log_begin,
    })
}

impl Starting {
    /// Waits until the daemon's mount answers, or that of one which was started at the same time; on failure the message carries the end of its log, and
    /// nothing is left running.
    pub fn wait(mut self) -> Result<Value> {
        let begin = Instant::now();
        loop {
            if let Ok(Liveness::Mounted(status)) = look(&self.place) {
                return Ok(status);
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                // Another one that was started at the same time has the directory's lock.
                if let Some(status) = settle(&self.place)? {
                    return Ok(status);
                }
                return Err(self.explain(&format!("the daemon ended at its start ({status})")));
            }
            if begin.elapsed() >= START_LIMIT {
                let failure = self.explain(&format!(
                    "the daemon did not mount within {} s",
                    START_LIMIT.as_secs()
                ));
                let mount = self.place.load()?.map(|state| state.mount);
                stop_hard(&self.place, mount.as_deref())?;
                return Err(failure);
            }
            std::thread::sleep(ASK_INTERVAL);
        }
    }

    fn explain(&self, what: &str) -> Failure {
        let log = self.place.log();
        let said = log_since(&log, self.log_begin);
        let is_full = is_full(self.place.root());
        let told = match (said.is_empty(), is_full) {
            (false, _) => format!("the end of {}:\n{}", log.display(), indent(&said)),
            (true, true) => format!("why is not in {}: its file system is full", log.display()),
            (true, false) => format!("nothing is in {} about it", log.display()),
        };
        let failure = Failure::new(format!("{what}; {told}"));
        match is_full {
            true => failure.help(format!(
                "make room in the file system of {} (`df` says which) and run the command again; nothing is left running",
                self.place.root().display()
            )),
            false => failure
                .help("mend what the log names and run the command again; nothing is left running"),
        }
    }
}

/// Whether the file system of `directory` has no room for a log.
fn is_full(directory: &Path) -> bool {
    rustix::fs::statvfs(directory)
        .is_ok_and(|room| room.f_bfree.saturating_mul(room.f_frsize) < LOG_ROOM)
}

fn log_since(log: &Path, begin: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let begin = usize::try_from(begin).unwrap_or(0).min(bytes.len());
    let text = String::from_utf8_lossy(&bytes[begin..]);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

fn indent(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(|l| format!("    {l}")).collect();
    lines.join("\n")
}

/// What became of a daemon.
#[derive(Debug)]
pub struct Ended {
    /// What was done, for the user.
    pub done: Vec<String>,
    /// What is lost, as far as anybody knows.
    pub loss: Option<Failure>,
}

/// Ends the daemon of `place`, whatever state it is in, and unmounts.
pub fn stop(place: &Place, mount: Option<&Path>) -> Result<Ended> {
    let mounted = mounts_of(place)?;
    let mut ended = end(place)?;
    ended.done.extend(clear(place, mount)?);
    for mount in mounted {
        mounts::leave(&mount.point)?;
    }
    Ok(ended)
}

/// Ends the daemon of `place`, whatever state it is in. What a dead one has left mounted stays, for the next one to take its place.
pub fn end(place: &Place) -> Result<Ended> {
    let mut done = Vec::new();
    let was_running = !process::daemons_of(place.root())?.is_empty();
    let is_asked = ask_to_end(place)?;
    let has_ended = is_asked && wait_ended(place, STOP_LIMIT)?;
    let is_dead = was_running && has_died(place)?;
    let mut loss = take_lost(place)?;
    if is_dead {
        loss.get_or_insert_with(|| unsynced(place, "died"));
    } else if has_ended {
        done.push(match loss {
            None => "the daemon wrote back what it held, unmounted and ended".to_owned(),
            Some(_) => "the daemon unmounted and ended".to_owned(),
        });
    } else if is_asked {
        let seconds = STOP_LIMIT.as_secs();
        done.push(format!(
            "the daemon was asked to end and had not after {seconds} s"
        ));
    }
    let killed = kill(place)?;
    if !killed.is_empty() {
        loss.get_or_insert_with(|| unsynced(place, "was killed"));
    }
    done.extend(killed);
    Ok(Ended { done, loss })
}

/// The daemon of `place` has ended, and not in good order: it has left its number.
pub fn has_died(place: &Place) -> Result<bool> {
    Ok(place.pid().exists() && process::daemons_of(place.root())?.is_empty())
}

/// The daemon of `place` has ended in a way that tells nobody what it had not written back.
pub fn unsynced(place: &Place, how: &str) -> Failure {
    Failure::new(format!(
        "the daemon {how} before it had written back what it held: what was not synced may be lost"
    ))
    .help(format!(
        "the end of {} may say why; mount it again: what was synced is there",
        place.log().display()
    ))
}

/// Asks the daemon of `place` to end until it has heard it. It may not listen yet, and then mount and take in what programs write; or not any
/// more, as it is about to end. False: it does not hear, or there is none.
fn ask_to_end(place: &Place) -> Result<bool> {
    let begin = Instant::now();
    loop {
        match control::ask(&place.control(), "stop", STOP_LIMIT) {
            Ok(Answer::Said(_)) => return Ok(true),
            Ok(Answer::Absent) if begin.elapsed() < STOP_LIMIT => {}
            _ => return Ok(false),
        }
        if process::daemons_of(place.root())?.is_empty() {
            return Ok(false);
        }
        std::thread::sleep(ASK_INTERVAL);
    }
}

/// What the daemon of `place` could not write back when it was stopped; said once.
pub fn take_lost(place: &Place) -> Result<Option<Failure>> {
    let lost = read_lost(place)?;
    if lost.is_some() {
        files::remove(&place.lost())?;
    }
    Ok(lost)
}

fn read_lost(place: &Place) -> Result<Option<Failure>> {
    let path = place.lost();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::io("read", &path, &error)),
    };
    let (what, help) = text.trim_end().split_once('\n').unwrap_or((&text, ""));
    let failure = Failure::new(what);
    Ok(Some(match help {
        "" => failure,
        help => failure.help(help),
    }))
}

/// Says on standard error what the last daemon of `place` could not write back, whatever becomes of the command; said once.
pub fn tell_lost(place: &Place) -> Result<()> {
    if let Some(lost) = read_lost(place)? {
        complain("gupfs: the last stop", &lost);
        files::remove(&place.lost())?;
    }
    Ok(())
}

/// For `take_lost` of whoever ends or starts the daemon of `place` next.
pub fn note_lost(place: &Place, lost: &Failure) -> Result<()> {
    let lines = format!("{}\n{}\n", lost.what(), lost.remedy().unwrap_or_default());
    files::replace(&place.lost(), lines.as_bytes())
}

/// The same without asking: the connection is aborted and the process killed.
pub fn stop_hard(place: &Place, mount: Option<&Path>) -> Result<Vec<String>> {
    let mut done = kill(place)?;
    done.extend(clear(place, mount)?);
    Ok(done)
}

fn kill(place: &Place) -> Result<Vec<String>> {
    let mut done = Vec::new();
    let pids = process::daemons_of(place.root())?;
    if !pids.is_empty() {
        abort_all(place)?;
    }
    for pid in pids {
        if process::kill_daemon(pid, place.root())? {
            done.push(format!("killed the daemon with pid {pid}"));
        }
    }
    if !wait_ended(place, KILL_LIMIT)? {
        return Err(Failure::new(format!(
            "the daemon of {} does not end although it was killed",
            place.root().display()
        ))
        .help("see its stack in /proc/PID/stack; it may wait for a disk that does not answer"));
    }
    for path in [place.control(), place.pid()] {
        files::remove(&path)?;
    }
    Ok(done)
}

/// Unmounts what the daemon of `place`, which has ended, has left: anywhere, and at `mount`. Returns what was done.
pub fn clear(place: &Place, mount: Option<&Path>) -> Result<Vec<String>> {
    let left = mounts_of(place)?.into_iter().map(|left| left.point);
    let points: Vec<PathBuf> = left.chain(mount.map(Path::to_owned)).collect();
    let mut done = Vec::new();
    for point in points.iter().rev() {
        done.extend(unmount_dead(point)?);
    }
    Ok(done)
}

/// The mounts of `place`, by what the kernel shows as their source, oldest first: of the daemon that runs and of those that have died.
pub fn mounts_of(place: &Place) -> Result<Vec<Mount>> {
    let mut all = mounts::list()?;
    all.retain(|mount| mount.is_gupfs() && source::is_of(&mount.source, place.root()));
    Ok(all)
}

/// Ends the FUSE connections of all mounts of `place`.
fn abort_all(place: &Place) -> Result<()> {
    mounts_of(place)?.iter().try_for_each(mounts::abort)
}

/// Ends the FUSE connection of the GUPFS mount at `point`, if there is one.
pub fn abort(point: &Path) -> Result<()> {
    match mounts::at(point)?.filter(Mount::is_gupfs) {
        Some(mount) => mounts::abort(&mount),
        None => Ok(()),
    }
}

/// Kills the daemon of `place` as a crash would: nothing is written back, its mount stays behind.
pub fn crash(place: &Place) -> Result<u32> {
    let pids = process::daemons_of(place.root())?;
    let Some(pid) = pids.first().copied() else {
        return Err(Failure::new(format!(
            "no daemon of {} is running",
            place.root().display()
        )));
    };
    for pid in pids {
        process::kill_daemon(pid, place.root())?;
    }
    if !wait_ended(place, KILL_LIMIT)? {
        // It holds a file of its own mount open: only an abort ends that.
        abort_all(place)?;
        if !wait_ended(place, KILL_LIMIT)? {
            return Err(Failure::new(format!(
                "pid {pid} does not end although it was killed"
            )));
        }
    }
    Ok(pid)
}

/// The daemon that serves `mount`: the one that says so, or that of the state directory that the mount shows, which may not
/// answer just now.
pub fn server_of(mount: &Mount) -> Result<Option<Place>> {
    // Where nobody can be asked, as one that ends just now says half a line, the source tells.
    if let Ok(Serving::By(found)) = locate::serving(mount) {
        return Ok(Some(found.place));
    }
    for (_, root) in process::daemons()? {
        if source::is_of(&mount.source, &root) {
            return Place::new(&root).map(Some);
        }
    }
    Ok(None)
}

/// Unmounts every GUPFS mount at `point` that a dead daemon left behind; one whose connection lives stays.
pub fn unmount_dead(point: &Path) -> Result<Vec<String>> {
    let mut done = Vec::new();
    while let Some(left) = mounts::at(point)?.filter(Mount::is_gupfs) {
        if !locate::is_ended(point)? {
            break;
        }
        mounts::remove(&left)?;
        done.push(format!(
            "unmounted {}, which a dead daemon had left",
            point.display()
        ));
    }
    mounts::leave(point)?;
    Ok(done)
}

/// The whole file system that root had mounted at `point` with a daemon that has ended, if that is what is seen there.
pub fn dead_at(point: &Path) -> Result<Option<Mount>> {
    let found = mounts::at(point)?
        .filter(|mount| mount.is_gupfs() && mount.is_whole() && mount.user == Some(0));
    match found {
        Some(found) if locate::is_ended(point)? => Ok(Some(found)),
        _ => Ok(None),
    }
}

/// Fails where a mount at `point` would hide the state directory or one of its `disks`, from the daemon first of all; or where there is
/// something else than a directory.
pub fn check_hides_nothing(place: &Place, disks: &[state::Disk], point: &Path) -> Result<()> {
    let real = mounts::follow(point)?;
    // What is mounted there may not answer.
    if mounts::at(&real)?.is_none() && std::fs::metadata(&real).is_ok_and(|found| !found.is_dir()) {
        return Err(mounts::no_directory(point));
    }
    let root = place.root();
    let own = state::DISK_DIRECTORIES.map(|name| root.join(name));
    let all = std::iter::once(root).chain(own.iter().map(PathBuf::as_path));
    for path in all.chain(disks.iter().map(|disk| disk.path.as_path())) {
        let is_hidden = path.starts_with(point)
            || path.starts_with(&real)
            || std::fs::canonicalize(path).is_ok_and(|path| path.starts_with(&real));
        if is_hidden {
            return Err(Failure::new(format!(
                "mount point {} cannot be: a mount there would hide {}, which the daemon needs",
                point.display(),
                path.display()
            ))
            .help(format!(
                "name a directory that holds neither the state directory nor a disk; one below it, as {}, can be",
                root.join("mnt").display()
            )));
        }
    }
    Ok(())
}

/// Whether files may lie where something is to be mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Below {
    /// No: who names a directory for the first time may have meant another one.
    Nothing,
    /// It was the mount point before: programs may have written there while nothing was mounted.
    Any,
}

/// What `clear_point` has done and seen.
#[derive(Debug)]
pub struct Cleared {
    /// For the user.
    pub done: Vec<String>,
    /// The mount will hide files.
    pub holds_files: bool,
}

/// Sees to it that a daemon can mount at `point`: what a dead one has left there it will take the place of. Returns what is to be said.
pub fn ready_point(point: &Path, below: Below) -> Result<Vec<String>> {
    if dead_at(point)?.is_some() {
        return Ok(vec![format!(
            "a dead daemon had left {} mounted: it is mounted anew in its place",
            point.display()
        )]);
    }
    let Cleared {
        mut done,
        holds_files,
    } = clear_point(point, below)?;
    if holds_files {
        done.push(format!(
            "files lie in {}, written there while nothing was mounted: the mount hides them",
            point.display()
        ));
    }
    Ok(done)
}

/// Makes `point` ready to be mounted on: clears what a dead daemon left, and fails if it still cannot be mounted on, naming
/// who is in the way.
pub fn clear_point(point: &Path, below: Below) -> Result<Cleared> {
    let done = unmount_dead(point)?;
    let failure = match mounts::check_point(point) {
        Ok(holds_files) if !holds_files || below == Below::Any => {
            return Ok(Cleared { done, holds_files });
        }
        Ok(_) => {
            let what = format!(
                "mount point {} is in use: it holds files, which the mount would hide",
                point.display()
            );
            return Err(Failure::new(what).help("name an empty directory"));
        }
        Err(failure) => failure,
    };
    let Some(mount) = mounts::at(point)?.filter(Mount::is_gupfs) else {
        return Err(failure);
    };
    let in_use = |who: String| {
        Failure::new(format!(
            "mount point {} is in use: {who} serves it",
            point.display()
        ))
    };
    Err(match server_of(&mount)? {
        Some(place) => {
            let root = place.root().display();
            in_use(format!("the daemon of {root}"))
                .help(format!("gupfs down --state {root}, or another mount point"))
        }
        None => in_use("a daemon that is not seen from here".to_owned())
            .help("another mount point; or see in other containers what mounts there"),
    })
}

/// Waits until nobody holds the lock of the state directory, which a daemon does for its whole life.
pub fn wait_ended(place: &Place, limit: Duration) -> Result<bool> {
    let path: PathBuf = place.lock();
    if !path.exists() {
        return Ok(true);
    }
    let file = files::open_lock(&path)?;
    if file.try_lock().is_ok() {
        return Ok(true);
    }
    // The lock has no time-out; the thread ends with this process at the latest.
    let (ended, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = file.lock();
        let _ = ended.send(());
    });
    Ok(wait.recv_timeout(limit).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopping_what_never_ran_is_fine() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        assert_eq!(look(&place), Ok(Liveness::Absent));
        let ended = stop(&place, Some(Path::new("/no/such/mount"))).expect("nothing to do");
        assert_eq!((ended.done, ended.loss), (Vec::new(), None));
    }

    /// A daemon that replays a long journal is not ended by who mounts; it is waited for.
    #[test]
    fn a_daemon_that_starts_is_waited_for() {
        use std::io::{BufRead as _, BufReader, Write as _};
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        assert_eq!(settle(&place), Ok(None));
        let listener = std::os::unix::net::UnixListener::bind(place.control()).expect("bound");
        let server = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for is_mounted in [false, false, true] {
                let (mut stream, _) = listener.accept().expect("a caller");
                let mut line = String::new();
                let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
                reader.read_line(&mut line).expect("a request");
                asked.push(line);
                writeln!(stream, "{{\"mounted\":{is_mounted}}}").expect("answered");
            }
            asked
        });
        let status = settle(&place).expect("settled").expect("mounted");
        assert_eq!(status["mounted"], true);
        let asked = server.join().expect("served");
        assert!(asked.iter().all(|line| line == "status\n"), "{asked:?}");
    }

    #[test]
    fn the_end_of_a_daemon_is_the_end_of_its_lock() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = Place::new(directory.path()).expect("a place");
        let held = place.try_lock().expect("free");
        assert_eq!(wait_ended(&place, Duration::from_millis(1)), Ok(false));
        let waiter = std::thread::spawn(move || wait_ended(&place, Duration::from_secs(20)));
        drop(held);
        assert_eq!(waiter.join().expect("waited"), Ok(true));
    }

    #[test]
    fn a_log_is_shown_from_where_this_start_began() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("log");
        std::fs::write(&log, "old\nnew\n").expect("written");
        assert_eq!(log_since(&log, 4), "new");
        assert_eq!(log_since(&log, 99), "");
        assert_eq!(indent("a\nb"), "    a\n    b");
    }
}
