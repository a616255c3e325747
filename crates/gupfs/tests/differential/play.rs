//! One thread's calls, on both sides by turns.
#![allow(unsafe_code, reason = "the rights of a thread are not in std")]

use std::collections::VecDeque;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::time::Instant;

use stdx::Prng;

use crate::call::{Answer, Call, SLOT_COUNT, Side};
use crate::draw::draw;

/// Calls that a failure lists.
const HISTORY_COUNT: usize = 100;
/// One of so many calls may hear ESTALE beside another node, at first.
const STALE_PART: u64 = 150;
/// Who hears it tries again so often, after a pause: a lock of the kernel is held for a third of a second at the most.
const STALE_TRIES: u32 = 4;
const STALE_PAUSE: Duration = Duration::from_millis(120);
/// Somebody without rights.
const NOBODY: u32 = 65_534;

/// A thread's directory on both sides, and its random calls.
pub struct Player {
    local: Side,
    /// The same directory through each mount.
    there: Vec<Side>,
    /// Through which mount each slot was opened.
    opened_at: [usize; SLOT_COUNT],
    prng: Prng,
    history: VecDeque<String>,
    /// Calls that have heard ESTALE at first.
    stale_count: u64,
}

fn make(path: &Path) {
    std::fs::create_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    set_mode(path, 0o777);
}

fn set_mode(path: &Path, mode: u32) {
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Everybody may go to `path`: test directories below the common one are their maker's at first.
fn open_way(path: &Path) {
    let common = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let above = path.ancestors().skip(1);
    for place in above.take_while(|place| common.iter().all(|c| place != c)) {
        set_mode(place, 0o755);
    }
}

/// Does `step` with the rights of nobody to files, or as the thread is.
fn with_rights<T>(is_nobody: bool, step: impl FnOnce() -> T) -> T {
    let become_user = |id: u32| {
        // SAFETY: no pointers; both change this thread alone, and how it meets files.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, id);
            libc::syscall(libc::SYS_setfsuid, id);
        }
    };
    if is_nobody {
        become_user(NOBODY);
    }
    let done = step();
    if is_nobody {
        become_user(0);
    }
    done
}

impl Player {
    /// A player in the directory `local` and the same directory through each mount.
    pub fn new(local: PathBuf, there: Vec<PathBuf>, seed: u64, thread: u64) -> Self {
        make(&local);
        make(&there[0]);
        open_way(&local);
        there.iter().for_each(|path| open_way(path));
        Self {
            local: Side::new(local),
            there: there.into_iter().map(Side::new).collect(),
            opened_at: [0; SLOT_COUNT],
            prng: Prng::new(seed.wrapping_mul(1000) + thread),
            history: VecDeque::new(),
            stale_count: 0,
        }
    }

    /// Calls until so many are done, or the time is over; how many were done.
    pub fn run(mut self, count: u64, until: Instant) -> u64 {
        // SAFETY: no pointers. All threads set the same.
        unsafe { libc::umask(0o022) };
        for done in 0..count {
            if Instant::now() >= until {
                return done;
            }
            self.step(done);
        }
        count
    }

    fn open_slots(&self) -> Vec<usize> {
        (0..SLOT_COUNT)
            .filter(|slot| self.local.slots[*slot].is_some())
            .collect()
    }

    fn step(&mut self, number: u64) {
        let open = self.open_slots();
        let call = draw(&mut self.prng, &open);
        // Rights to files say nothing of CAP_SYS_ADMIN, by which Linux lists `trusted.`, and GUPFS by user number.
        let is_nobody = self.prng.chance(1, 6) && !matches!(call, Call::ListXattr { .. });
        let count = self.there.len() as u64;
        let mount = usize::try_from(self.prng.below(count)).expect("small");
        let slots = slots_of(&call);
        let is_opening = matches!(call, Call::Open { .. } | Call::Tmpfile { .. });
        let mount = match slots.first() {
            Some(slot) if !is_opening => self.opened_at[*slot],
            _ => mount,
        };
        // A pipe joins the programs of one node alone.
        let is_pipe =
            matches!(&call, Call::Mknod { mode, .. } if mode & libc::S_IFMT == libc::S_IFIFO);
        if is_pipe && self.there.len() > 1 {
            return;
        }
        // Both files of a copy lie behind one mount, or the kernel says EXDEV.
        let is_apart = slots.iter().any(|slot| self.opened_at[*slot] != mount);
        if is_opening {
            // What is in the slot goes first, on the mount where it is.
            let slot = slots[0];
            self.local.slots[slot] = None;
            self.there[self.opened_at[slot]].slots[slot] = None;
        } else if is_apart {
            return;
        }
        let who = if is_nobody { " (nobody)" } else { "" };
        let title = format!("{number}: {call:?}{who} by mount {}", mount + 1);
        let subjects = subjects(&call);
        let before = self
            .prng
            .chance(1, 3)
            .then(|| self.change_times(&subjects, mount));
        let expected = with_rights(is_nobody, || self.local.call(&call));
        let mut found = with_rights(is_nobody, || self.there[mount].call(&call));
        // A directory that the other node has moved, and that nobody here has looked at since, while the kernel's lock for moving it is taken; a file that
        // it has renamed just now (docs/tokens.md, "Limits of the kernel"). Who hears that looks again, as mv(1) does before.
        self.stale_count += u64::from(found == Err(libc::ESTALE));
        for _ in 0..STALE_TRIES {
            if found != Err(libc::ESTALE) || count == 1 {
                break;
            }
            std::thread::sleep(STALE_PAUSE);
            for subject in &subjects {
                if let Subject::Path(path) = subject {
                    let _ = self.there[mount].change_time(path);
                }
            }
            found = with_rights(is_nobody, || self.there[mount].call(&call));
        }
        if self.stale_count > 3 + number / STALE_PART {
            self.fail(&title, "too many stale answers");
        }
        if is_opening && found.is_ok() {
            self.opened_at[slots[0]] = mount;
        }
        if matches!(call, Call::Close { .. }) {
            self.opened_at[slots[0]] = 0;
        }
        if self.history.len() == HISTORY_COUNT {
            self.history.pop_front();
        }
        self.history
            .push_back(format!("{title}: {}", shown(&expected)));
        if expected != found {
            let outcome = format!("expected {}, found {}", shown(&expected), shown(&found));
            self.fail(&title, &outcome);
        }
        if let Some(before) = before.filter(|_| expected.is_ok() && changes_times(&call)) {
            let after = self.change_times(&subjects, mount);
            for (subject, (before, after)) in subjects.iter().zip(before.iter().zip(&after)) {
                let ((Some(local), Some(there)), (Some(local_now), Some(there_now))) =
                    (before, after)
                else {
                    continue;
                };
                let (expected, found) = (local_now > local, there_now > there);
                // Memory's clock is coarse: what changes there surely changes, what does not may.
                let is_reading = matches!(call, Call::Read { .. });
                if (expected && !found) || (found && is_reading) || there_now < there {
                    let outcome = format!(
                        "ctime of {subject:?}: expected to change: {expected}, {there} -> {there_now}"
                    );
                    self.fail(&title, &outcome);
                }
            }
        }
    }

    /// ctime of each subject on both sides.
    fn change_times(
        &self,
        subjects: &[Subject],
        mount: usize,
    ) -> Vec<(Option<i128>, Option<i128>)> {
        let time = |side: &Side, subject: &Subject| match subject {
            Subject::Path(path) => side.change_time(path),
            Subject::Slot(slot) => side.change_time_of(*slot),
        };
        let times = subjects.iter().map(|subject| {
            (
                time(&self.local, subject),
                time(&self.there[mount], subject),
            )
        });
        times.collect()
    }

    fn fail(&self, title: &str, outcome: &str) -> ! {
        let history: Vec<&str> = self.history.iter().map(String::as_str).collect();
        panic!(
            "{}\n{title}\n{outcome}\nin {}",
            history.join("\n"),
            self.there[0].root.display()
        );
    }
}

fn shown(answer: &Answer) -> String {
    match answer {
        Ok(text) if text.is_empty() => "done".to_owned(),
        Ok(text) => text.clone(),
        Err(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
    }
}

/// Slots that a call names.
fn slots_of(call: &Call) -> Vec<usize> {
    match call {
        Call::Copy { from, to, .. } => vec![*from, *to],
        Call::Open { slot, .. }
        | Call::Tmpfile { slot, .. }
        | Call::Close { slot }
        | Call::Read { slot, .. }
        | Call::Write { slot, .. }
        | Call::Store { slot, .. }
        | Call::Load { slot, .. }
        | Call::Cut { slot, .. }
        | Call::Allocate { slot, .. }
        | Call::Holes { slot, .. }
        | Call::Sync { slot, .. }
        | Call::Name { slot, .. }
        | Call::StatOpen { slot } => vec![*slot],
        _ => Vec::new(),
    }
}

/// Calls after which change times are compared.
fn changes_times(call: &Call) -> bool {
    !matches!(call, Call::Open { .. })
}

/// Something that has a change time.
#[derive(Debug)]
enum Subject {
    Path(String),
    Slot(usize),
}

/// What a call may change: the paths, the directories that they are in, the open file.
fn subjects(call: &Call) -> Vec<Subject> {
    let paths: Vec<&String> = match call {
        Call::Mkdir { path, .. }
        | Call::Mknod { path, .. }
        | Call::Symlink { path, .. }
        | Call::Unlink { path }
        | Call::Rmdir { path }
        | Call::Chmod { path, .. }
        | Call::Chown { path, .. }
        | Call::Utimes {
            path,
            follows: false,
            ..
        }
        | Call::SetXattr { path, .. }
        | Call::RemoveXattr { path, .. }
        | Call::Name { path, .. } => vec![path],
        Call::Link { from, to } | Call::Rename { from, to, .. } => vec![from, to],
        Call::Write { slot, .. } | Call::Read { slot, .. } | Call::Cut { slot, .. } => {
            return vec![Subject::Slot(*slot)];
        }
        _ => Vec::new(),
    };
    let mut subjects = Vec::new();
    for path in paths {
        let parent = path.trim_end_matches('/').rsplit_once('/');
        let parent = parent.map_or("", |(directory, _)| directory);
        subjects.push(Subject::Path(path.clone()));
        subjects.push(Subject::Path(parent.to_owned()));
    }
    subjects
}
