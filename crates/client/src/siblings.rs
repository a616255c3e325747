//! Small files of a directory that somebody reads one after the other, loaded before they are opened.
//!
//! Of a small file a reader waits for all there is: its tokens, where its bytes lie, the bytes; nothing is in sequence that could be
//! loaded ahead. What is in sequence is the files: `tar` and `grep -r` read those of a directory in the order in which it was listed, and so does whoever reads
//! as he lists; so the next ones are known. `cp -r` and `rsync` sort them first: of these a directory of no more than two steps of files is loaded.
//!
//! ```text
//! listed --> the first files are watched --two are read--> two steps of files are loaded, two of each watched --one is read--> the next step
//!   '--by a process whose directories are read-----------------^
//! ```
//!
//! Invariants
//! - What is loaded comes under tokens, as for any reader; those of the bytes are taken only if they are free: no node gives anything back for it. Where
//!   they were not, a slice asks for none for a while.
//! - What counts is a READ: for a file that the kernel has there is none, and nothing is loaded for who opens only those.
//! - A directory that is listed and not read costs nothing, or two steps where those that its reader listed before were read: `Readers` has how often.
//! - Two steps of small files are ahead of a reader, and up to two more where he lists anew; `SCANS_MAX` directories and `WATCHED_MAX` files are remembered in a slice, the
//!   latest, and none for longer than `PATIENCE`.
//!
//! What this deliberately does not do: readers that go by another order than the listing's in a directory of more than two steps of files; files behind the first
//! `LEFT_MAX` of a directory that is listed to its end before the first of them is read.

use std::collections::VecDeque;

use types::{ByteRange, Duration, FileKind, InodeId, Instant, Pattern, RangeMode, Want};

use crate::env::Env;
use crate::inode::Inode;
use crate::pages::PAGE_SIZE;
use crate::prefetch::has_spare_frames;
use crate::request::{Listed, Operation, Request};
use crate::slice::{Effect, Input, Slice};
use crate::tokens::Asker;

/// Files up to this size are loaded whole. Of larger ones the kernel's own read-ahead asks for more than it waits for.
const SIZE_MAX: u64 = 128 << 10;
/// Files that are loaded at once.
const STEP: usize = 16;
/// Steps that are loaded and not begun.
const STEPS_AHEAD: u32 = 2;
/// The first files of a directory that are watched, and how many of them must be read.
const FIRST_COUNT: usize = 3;
const READ_MIN: u32 = 2;
/// Files of a directory that are remembered in their order.
const LEFT_MAX: usize = 1024;
/// Directories of a slice that somebody may be reading.
const SCANS_MAX: usize = 8;
/// Files of a slice whose reads tell something.
const WATCHED_MAX: usize = 64;
/// Who has not read another file by then reads no more, or slowly.
const PATIENCE: Duration = Duration::from_millis(10_000);
/// After tokens were refused none are asked for.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// A directory that was listed and may be read.
#[derive(Debug)]
pub(crate) struct Scan {
    directory: InodeId,
    /// The process that listed it.
    reader: u32,
    /// Files that were listed and not loaded, in this order.
    left: VecDeque<InodeId>,
    state: State,
    /// When it was listed, or a watched file of it was read.
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The listing is being answered.
    Listed,
    /// So many of the watched files were read.
    Watched(u32),
    /// Files are loaded before they are opened: so many steps have been, and so many are to be as soon as more files are listed.
    Ahead { done: u32, wanted: u32 },
}

/// A file whose reads say that those of `directory` are being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    directory: InodeId,
    /// It was loaded with this one.
    step: u32,
    since: Instant,
}

impl Inode {
    /// It is loaded whole, also before it is opened.
    pub(crate) fn is_small(&self) -> bool {
        (1..=SIZE_MAX).contains(&self.size)
    }

    /// The bytes to load.
    fn small_content(&self, is_written_too: bool) -> Option<ByteRange> {
        let is_file = self.attr.is_some_and(|attr| attr.kind == FileKind::File);
        // Without an inode token an open asks the owner anyway, and the size may be an old one.
        let has_token = self.inode_mode().is_some() && !self.is_revoking();
        // What is written here is here.
        let is_written = !is_written_too && (self.writer_count > 0 || self.is_dirty());
        (is_file && self.is_small() && has_token && !is_written && self.may_be_opened())
            .then(|| ByteRange::new(0, self.size.next_multiple_of(PAGE_SIZE)))
    }
}

impl Slice {
    /// A listing is answered with these entries: the files among them may be read next.
    pub(crate) fn note_listed(&mut self, env: &Env<'_>, request: &Request, listed: &[Listed]) {
        let Operation::ReadDir {
            ino, cookie, plus, ..
        } = request.operation
        else {
            return;
        };
        // What would be loaded is loaded before an answer of which the transport says that it goes last.
        if !plus || self.has_late_answers {
            return;
        }
        let reader = request.caller.pid;
        let is_it = |scan: &Scan| scan.directory == ino && (cookie == 0 || scan.reader == reader);
        let at = self.scans.iter().position(is_it);
        let mut scan = match at.and_then(|at| self.scans.remove(at)) {
            Some(scan) if cookie != 0 => scan,
            None if cookie != 0 => return,
            _ => Scan {
                directory: ino,
                reader,
                left: VecDeque::new(),
                state: State::Listed,
                at: env.now,
            },
        };
        let file = FileKind::File.mode_bits();
        let files = listed.iter().filter(|entry| entry.mode == file);
        let room = LEFT_MAX.saturating_sub(scan.left.len());
        scan.left.extend(files.take(room).map(|entry| entry.ino));
        if self.scans.len() >= SCANS_MAX {
            self.scans.pop_front();
        }
        self.scans.push_back(scan);
    }

    /// The scan of a directory, which is the latest from now on.
    fn scan(&mut self, directory: InodeId) -> Option<&mut Scan> {
        let is_it = |scan: &Scan| scan.directory == directory;
        let at = self.scans.iter().position(is_it)?;
        let scan = self.scans.remove(at)?;
        self.scans.push_back(scan);
        self.scans.back_mut()
    }

    /// A listing was answered: what was listed is loaded where that is known to be of use, or watched.
    pub(crate) fn begin_scan(&mut self, env: &Env<'_>, directory: InodeId) {
        let Some(scan) = self.scan(directory) else {
            return;
        };
        if scan.left.is_empty() {
            return;
        }
        match scan.state {
            State::Listed if env.readers.may_read_through(scan.reader) => {
                scan.load_ahead();
                self.load_steps(directory);
            }
            State::Listed => {
                scan.state = State::Watched(0);
                let first: Vec<_> = scan.left.iter().take(FIRST_COUNT).copied().collect();
                for ino in first {
                    self.out
                        .push(Effect::ForSlice(ino, Input::Watch(ino, directory, 0)));
                }
            }
            State::Watched(_) => {}
            State::Ahead { .. } => self.load_steps(directory),
        }
    }

    /// Loads the next files of a directory, as many steps as are to be.
    fn load_steps(&mut self, directory: InodeId) {
        let Some(scan) = self.scan(directory) else {
            return;
        };
        let State::Ahead { done, wanted } = &mut scan.state else {
            return;
        };
        let (mut watched, mut files) = (Vec::new(), Vec::new());
        while *done < *wanted && !scan.left.is_empty() {
            let count = scan.left.len().min(STEP);
            let step = scan.left.drain(..count);
            // Two: one of them may be empty, or be left out.
            let middle = files.len() + count / 2;
            files.extend(step);
            let last = files.len() - 1;
            let both = [(middle, true), (last, last != middle)];
            let some = both.into_iter().filter(|(_, is_one)| *is_one);
            watched.extend(some.map(|(at, _)| (files[at], *done)));
            *done += 1;
        }
        for (ino, step) in watched {
            let input = Input::Watch(ino, directory, step);
            self.out.push(Effect::ForSlice(ino, input));
        }
        if !files.is_empty() {
            self.out.push(Effect::LoadFiles(files));
        }
    }

    /// A READ of a file will say that those of `directory` are being read.
    pub(crate) fn watch(&mut self, env: &Env<'_>, ino: InodeId, directory: InodeId, step: u32) {
        if self.watched.len() >= WATCHED_MAX {
            let oldest = self.watched.iter().min_by_key(|(_, watch)| watch.since);
            let oldest = oldest.map(|(ino, _)| *ino);
            oldest.and_then(|ino| self.watched.remove(&ino));
        }
        let since = env.now;
        let watch = Watch {
            directory,
            step,
            since,
        };
        self.watched.insert(ino, watch);
    }

    /// A request comes: if it reads a watched file, its directory's slice hears of it.
    pub(crate) fn note_watched_read(&mut self, operation: &Operation) {
        let Operation::Read { ino, .. } = operation else {
            return;
        };
        if let Some(watch) = self.watched.remove(ino) {
            let input = Input::WatchedRead(watch.directory, *ino, watch.step);
            self.out.push(Effect::ForSlice(watch.directory, input));
        }
    }

    /// A watched file of a directory is read, which was loaded with this step.
    pub(crate) fn on_watched_read(
        &mut self,
        env: &Env<'_>,
        directory: InodeId,
        file: InodeId,
        step: u32,
    ) {
        let Some(scan) = self.scan(directory) else {
            return;
        };
        scan.at = env.now;
        match &mut scan.state {
            State::Listed => return,
            State::Watched(count) => {
                *count += 1;
                let is_read = *count >= READ_MIN;
                if let Some(at) = scan.left.iter().position(|ino| *ino == file) {
                    scan.left.drain(..=at);
                }
                if !is_read {
                    return;
                }
                scan.load_ahead();
            }
            State::Ahead { wanted, .. } => {
                // Of a listing before the last one a step may be named that has not been yet.
                let next = step.saturating_add(1 + STEPS_AHEAD);
                *wanted = next.clamp(*wanted, *wanted + STEPS_AHEAD);
            }
        }
        env.readers.note_read_through(scan.reader);
        self.load_steps(directory);
    }

    /// What is being written here is loaded, too: for simulators, whose few files are written all the time.
    pub const fn load_written_files(&mut self) {
        self.loads_written_files = true;
    }

    /// A small file will be opened soon: loads it.
    pub(crate) fn load_file(&mut self, env: &Env<'_>, ino: InodeId) {
        if env.now >= self.next_file_ask {
            self.load_file_as(env, ino, true);
        }
    }

    /// An owner has answered whether the tokens for it are free.
    pub(crate) fn on_file_asked(&mut self, env: &Env<'_>, ino: InodeId, is_granted: bool) {
        match is_granted {
            true => self.load_file_as(env, ino, false),
            // Others use them, and may use those of the files beside it.
            false => self.next_file_ask = env.now + REFUSED_PAUSE,
        }
    }

    fn load_file_as(&mut self, env: &Env<'_>, ino: InodeId, may_ask: bool) {
        if self.is_lapsed || !has_spare_frames(env.pool) {
            return;
        }
        let Some(inode) = self.inodes.get(&ino) else {
            return;
        };
        let Some(range) = inode.small_content(self.loads_written_files) else {
            return;
        };
        if inode.pages.missing(&range).is_empty() {
            return;
        }
        if inode.covers(RangeMode::Read, &range) {
            self.loaded_file_count += 1;
            self.load_ahead(env, ino, vec![range]);
        } else if may_ask {
            let want = Want::Range {
                mode: RangeMode::Read,
                required: Pattern::plain(range),
                desired: Pattern::plain(range),
            };
            self.acquire_for(ino, vec![want], Asker::Ahead);
        }
    }

    /// Forgets directories and files that nobody has come back for.
    pub(crate) fn forget_scans(&mut self, env: &Env<'_>) {
        self.scans.retain(|scan| env.now.since(scan.at) < PATIENCE);
        self.watched
            .retain(|_, watch| env.now.since(watch.since) < PATIENCE);
    }
}

impl Scan {
    /// Its files are loaded from now on.
    const fn load_ahead(&mut self) {
        self.state = State::Ahead {
            done: 0,
            wanted: STEPS_AHEAD,
        };
    }
}
