//! Small files of a directory that somebody reads one after the other, loaded before they are opened.
//!
//! Of a small file a reader waits for all there is: its tokens, where its bytes lie, the bytes; nothing is in sequence that could be
//! loaded ahead. What is in sequence is the files: `tar`, `cp -r`, `grep -r`, compilers and loaders of training data read those of a directory in the
//! order in which it was listed, so the next ones are known.
//!
//! ```text
//! listed --> the first files are watched --two are opened--> two steps are loaded, the middle one of each watched --opened--> the next step
//!   '--by a process that has read directories so-----------------^
//! ```
//!
//! Invariants
//! - What is loaded comes under tokens, as for any reader; those of the bytes are taken only if they are free: no node gives anything back for it.
//! - A process that lists and does not read costs the loads of `UNREAD_MAX` directories, two steps each, and none from then on.
//! - No more than two steps, of small files, are ahead of a reader; `SCANS_MAX` directories and `WATCHED_MAX` files are remembered in a slice, and
//!   none for longer than `PATIENCE`.
//! - What the kernel may have pages of is not loaded: it would not be asked for.
//!
//! What this deliberately does not do: readers that go by another order than the listing's in a directory of more than two steps of files; files behind the first
//! `LEFT_MAX` of a directory that is listed to its end before the first of them is opened.

use std::collections::VecDeque;

use types::{ByteRange, Duration, FileKind, InodeId, Instant, Pattern, RangeMode, Want};

use crate::env::Env;
use crate::inode::Inode;
use crate::pages::PAGE_SIZE;
use crate::request::{Listed, OpenFlags, Operation, Request};
use crate::slice::{Effect, Input, Slice};
use crate::tokens::Asker;

/// Files up to this size are loaded whole. Of larger ones the kernel's own read-ahead asks for more than it waits for.
const SIZE_MAX: u64 = 128 << 10;
/// Files that are loaded at once.
const STEP: usize = 16;
/// The first files of a directory that are watched, and how many of them must be opened.
const FIRST_COUNT: usize = 3;
const OPENED_MIN: u32 = 2;
/// Files of a directory that are remembered in their order.
const LEFT_MAX: usize = 1024;
/// Directories of a slice that somebody may be reading.
const SCANS_MAX: usize = 8;
/// Files of a slice whose opens tell something.
const WATCHED_MAX: usize = 64;
/// Who has not opened another file by then reads no more, or slowly.
const PATIENCE: Duration = Duration::from_millis(10_000);

/// A directory that was listed and may be read.
#[derive(Debug)]
pub(crate) struct Scan {
    directory: InodeId,
    /// The process that listed it.
    reader: u32,
    /// Files that were listed and not loaded, in this order.
    left: VecDeque<InodeId>,
    state: State,
    /// The reader is near the last of those that were listed.
    is_short: bool,
    /// When it was listed, or a watched file of it was opened.
    at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The listing is being answered.
    Listed,
    /// So many of the watched files were opened.
    Watched(u32),
    /// Files are loaded before they are opened.
    Ahead,
}

/// A file whose open says that the files of `directory` are being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    directory: InodeId,
    since: Instant,
}

impl Inode {
    /// It is loaded whole, also before it is opened.
    pub(crate) fn is_small(&self) -> bool {
        (1..=SIZE_MAX).contains(&self.size)
    }

    /// The bytes to load.
    fn small_content(&self) -> Option<ByteRange> {
        let is_file = self.attr.is_some_and(|attr| attr.kind == FileKind::File);
        // Under the inode token nobody else has changed its size.
        let has_token = self.inode_mode().is_some() && !self.is_revoking();
        (is_file && self.is_small() && has_token && self.may_be_opened())
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
        let at = self.scans.iter().position(|scan| scan.directory == ino);
        let mut scan = match at.and_then(|at| self.scans.remove(at)) {
            Some(scan) if cookie != 0 => scan,
            None if cookie != 0 => return,
            _ => Scan {
                directory: ino,
                reader: request.caller.pid,
                left: VecDeque::new(),
                state: State::Listed,
                is_short: false,
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

    /// A listing was answered: what was listed is loaded where that is known to be of use, or watched.
    pub(crate) fn begin_scan(&mut self, env: &Env<'_>, directory: InodeId) {
        let is_it = |scan: &&mut Scan| scan.directory == directory;
        let Some(scan) = self.scans.iter_mut().find(is_it) else {
            return;
        };
        if scan.left.is_empty() {
            return;
        }
        if std::mem::take(&mut scan.is_short) {
            return self.load_step(directory);
        }
        if scan.state != State::Listed {
            return;
        }
        if env.readers.may_read_through(scan.reader) {
            scan.state = State::Ahead;
            self.load_step(directory);
            return self.load_step(directory);
        }
        scan.state = State::Watched(0);
        let first: Vec<_> = scan.left.iter().take(FIRST_COUNT).copied().collect();
        for ino in first {
            let input = Input::Watch(ino, directory);
            self.out.push(Effect::ForSlice(ino, input));
        }
    }

    /// The next files of a directory are loaded.
    fn load_step(&mut self, directory: InodeId) {
        let is_it = |scan: &&mut Scan| scan.directory == directory;
        let Some(scan) = self.scans.iter_mut().find(is_it) else {
            return;
        };
        let count = scan.left.len().min(STEP);
        scan.is_short |= count == 0;
        let files: Vec<_> = scan.left.drain(..count).collect();
        if let Some(middle) = files.get(count / 2) {
            let input = Input::Watch(*middle, directory);
            self.out.push(Effect::ForSlice(*middle, input));
            self.out.push(Effect::LoadFiles(files));
        }
    }

    /// The open of a file will say that those of `directory` are being read.
    pub(crate) fn watch(&mut self, env: &Env<'_>, ino: InodeId, directory: InodeId) {
        if self.watched.len() < WATCHED_MAX {
            let since = env.now;
            self.watched.insert(ino, Watch { directory, since });
        }
    }

    /// A file is opened.
    pub(crate) fn note_opened(&mut self, ino: InodeId, flags: OpenFlags) {
        if self.watched.is_empty() || flags.write || flags.truncate {
            return;
        }
        if let Some(watch) = self.watched.remove(&ino) {
            let input = Input::WatchedOpened(watch.directory, ino);
            self.out.push(Effect::ForSlice(watch.directory, input));
        }
    }

    /// A watched file of a directory was opened.
    pub(crate) fn on_watched_opened(&mut self, env: &Env<'_>, directory: InodeId, file: InodeId) {
        let is_it = |scan: &&mut Scan| scan.directory == directory;
        let Some(scan) = self.scans.iter_mut().find(is_it) else {
            return;
        };
        scan.at = env.now;
        match &mut scan.state {
            State::Listed => {}
            State::Watched(opened) => {
                *opened += 1;
                let is_read = *opened >= OPENED_MIN;
                if let Some(at) = scan.left.iter().position(|ino| *ino == file) {
                    scan.left.drain(..=at);
                }
                if is_read {
                    scan.state = State::Ahead;
                    env.readers.note_read_through(scan.reader);
                    self.load_step(directory);
                    self.load_step(directory);
                }
            }
            State::Ahead => {
                env.readers.note_read_through(scan.reader);
                self.load_step(directory);
            }
        }
    }

    /// What the kernel may have pages of is loaded, too: for simulators, whose few files are read all the time.
    pub const fn load_read_files(&mut self) {
        self.loads_read_files = true;
    }

    /// A small file will be opened soon: loads it.
    pub(crate) fn load_file(&mut self, env: &Env<'_>, ino: InodeId) {
        self.load_file_as(env, ino, true);
    }

    /// The owner has answered whether the tokens for it are free.
    pub(crate) fn on_file_covered(&mut self, env: &Env<'_>, ino: InodeId) {
        self.load_file_as(env, ino, false);
    }

    fn load_file_as(&mut self, env: &Env<'_>, ino: InodeId, may_ask: bool) {
        let loads_all = self.loads_read_files;
        let inode = self.inodes.get(&ino).filter(|_| !self.is_lapsed);
        let inode = inode.filter(|inode| loads_all || !inode.may_have_pages);
        let Some(range) = inode.and_then(|inode| inode.small_content()) else {
            return;
        };
        if self.inode(ino).covers(RangeMode::Read, &range) {
            let is_there = self.inode(ino).pages.missing(&range).is_empty();
            self.loaded_file_count += u64::from(!is_there);
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
