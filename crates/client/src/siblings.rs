//! Small files of a directory that somebody reads one after the other, loaded before they are opened.
//!
//! Of a small file a reader waits for all there is: its tokens, where its bytes lie, the bytes; nothing is in sequence that could be
//! loaded ahead. What is in sequence is the files: `tar` and `grep -r` read those of a directory in the order in which it was listed, and so does whoever reads
//! as he lists; `cp -r` lists it whole and reads in the order of inode numbers, `rsync` and others in that of names. So the next ones are known.
//!
//! ```text
//! listed --> the first files of each order are watched --two of one are read--> two steps in this order are loaded, two files of each watched
//!   '--by a process whose directories are read-----------------^                          '--one is read--> the next step
//! ```
//!
//! Invariants
//! - What is loaded comes under tokens, as for any reader; those of the bytes are taken only if they are free: no node gives anything back for it. Where
//!   they were not, a slice asks for none for a while.
//! - What counts is a READ: for a file that the kernel has there is none, and nothing is loaded for who opens only those. Once files are loaded an open counts, too,
//!   of what was loaded and put into the kernel (`fill`); the files whose READs tell the order are not put there.
//! - Of a directory that is listed and not read no file is loaded, or two steps where those that its reader listed before were read: `Readers` has how often,
//!   and in which order.
//! - The order of a listing is found once, by its first reads: later the first files of every order have been read. Where it is listed anew meanwhile, what was loaded in
//!   an order tells it.
//! - Two steps of small files are ahead of a reader, and up to two more where he lists anew; `SCANS_MAX` directories with `LEFT_MAX` files in all, at most half of them in one, and `WATCHED_MAX` files whose
//!   reads tell something are remembered in a slice, the latest, and none for longer than `PATIENCE`.
//!
//! What this deliberately does not do: readers that go by yet another order (that of a language, of sizes, none) in a directory of more than two steps of files; files
//! behind the first `SCAN_LEFT_MAX` of a directory that is listed to its end before the first of them is read.

use std::cmp::Ordering;
use std::collections::VecDeque;

use types::{
    ByteRange, Duration, FileKind, InodeId, Instant, Pattern, RangeMode, SmallBytes, Want,
};

use crate::env::Env;
use crate::fill::Foreseen;
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
/// Files of a directory that are loaded at first.
pub(crate) const FIRST_LOADED: usize = STEPS_AHEAD as usize * STEP;
/// The first files of a directory that are watched, in each order, and how many of them must be read.
const FIRST_COUNT: usize = 3;
const READ_MIN: usize = 2;
/// Files that are remembered of a directory, and in a slice of all: some 1.5 MB, twice that with names of 40 bytes.
const SCAN_LEFT_MAX: usize = 16 << 10;
const LEFT_MAX: usize = 2 * SCAN_LEFT_MAX;
/// Directories of a slice that somebody may be reading.
const SCANS_MAX: usize = 8;
/// Files of a slice whose reads tell something.
const WATCHED_MAX: usize = 128;
/// Who has not read another file by then reads no more, or slowly.
const PATIENCE: Duration = Duration::from_millis(10_000);
/// After tokens were refused none are asked for.
pub(crate) const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// In which order the files of a directory are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// In which they were listed.
    Listed,
    /// Of their inode numbers.
    Inode,
    /// Of the bytes of their names.
    Name,
}

impl Order {
    /// Which is taken where several would do, the first.
    pub const ALL: [Self; 3] = [Self::Listed, Self::Inode, Self::Name];

    pub(crate) fn compare(self, a: &Member, b: &Member) -> Ordering {
        match self {
            Self::Listed => a.at.cmp(&b.at),
            Self::Inode => a.ino.cmp(&b.ino),
            Self::Name => a.name.cmp(&b.name),
        }
    }
}

/// A directory that was listed and may be read.
#[derive(Debug)]
pub(crate) struct Scan {
    directory: InodeId,
    /// The process that listed it.
    reader: u32,
    /// Its files, in the order in which they are taken to be read.
    files: VecDeque<Member>,
    /// The next of them to load.
    next: usize,
    /// So many were listed.
    count: u32,
    /// It was listed to its end.
    is_whole: bool,
    /// The first files of each order, and whether they were read.
    first: Vec<(Order, InodeId, bool)>,
    /// In which order they are read was seen, not only taken from what this process did before.
    is_known: bool,
    state: State,
    /// When it was listed, or a watched file of it was read.
    at: Instant,
}

/// A file or a directory in a directory, as it was listed.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) ino: InodeId,
    /// Its place in the listing.
    pub(crate) at: u32,
    pub(crate) name: SmallBytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The listing is being answered.
    Listed,
    /// Its first files are watched.
    Watched,
    /// Files are loaded before they are opened: so many steps have been, and so many are to be as soon as more files are listed.
    Ahead {
        order: Order,
        done: u32,
        wanted: u32,
    },
}

/// Why a file is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// It is among the first of an order.
    First,
    /// It was loaded with this step, in this order.
    Step(Order, u32),
}

/// A file whose reads say that those of `directory` are being read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    directory: InodeId,
    mark: Mark,
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
    pub(crate) fn note_listed(
        &mut self,
        env: &Env<'_>,
        request: &Request,
        listed: &[Listed],
        is_end: bool,
    ) {
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
        let is_ahead = |scan: &Scan| matches!(scan.state, State::Ahead { .. });
        // Who only looks does not end what is loaded for a reader.
        if at.is_some_and(|at| self.scans[at].reader != reader && is_ahead(&self.scans[at])) {
            return;
        }
        let mut scan = match at.and_then(|at| self.scans.remove(at)) {
            Some(scan) if cookie != 0 => scan,
            None if cookie != 0 => return,
            _ => Scan {
                directory: ino,
                reader,
                files: VecDeque::new(),
                next: 0,
                count: 0,
                is_whole: false,
                first: Vec::new(),
                is_known: false,
                state: State::Listed,
                at: env.now,
            },
        };
        let mode = FileKind::File.mode_bits();
        let files = listed.iter().filter(|entry| entry.mode == mode);
        scan.at = env.now;
        let room = SCAN_LEFT_MAX.saturating_sub(scan.files.len());
        for entry in files.take(room) {
            scan.files.push_back(Member {
                ino: entry.ino,
                at: scan.count,
                name: entry.name.clone(),
            });
            scan.count += 1;
        }
        scan.is_whole |= is_end;
        self.scans.push_back(scan);
        while self.scans.len() > SCANS_MAX || self.remembered_file_count() > LEFT_MAX {
            self.scans.pop_front();
        }
        // With entries it begins when they are shown.
        if is_end && listed.is_empty() {
            self.begin_scan(env, ino);
        }
    }

    /// Files of all directories that somebody may be reading.
    pub(crate) fn remembered_file_count(&self) -> usize {
        self.scans.iter().map(|scan| scan.files.len()).sum()
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
        let is_begun = matches!(scan.state, State::Ahead { .. });
        let habit = match is_begun || scan.files.is_empty() {
            true => None,
            // Of an order that is not the listing's the first are known when all are there.
            false => env.readers.may_read_through(scan.reader, scan.is_whole),
        };
        // In a small one that is loaded whole the order tells nothing that is worth its watches.
        let is_small = scan.is_whole && scan.files.len() <= FIRST_LOADED;
        let first = match is_small && (is_begun || habit.is_some()) {
            true => Vec::new(),
            false => scan.next_first(),
        };
        if let Some(order) = habit {
            scan.load_ahead(order, None);
        } else if !is_begun {
            scan.state = State::Watched;
        }
        for ino in first {
            let input = Input::Watch(ino, directory, Mark::First);
            self.out.push(Effect::ForSlice(ino, input));
        }
        self.load_steps(directory);
    }

    /// Loads the next files of a directory, as many steps as are to be.
    fn load_steps(&mut self, directory: InodeId) {
        let Some(scan) = self.scan(directory) else {
            return;
        };
        let State::Ahead {
            order,
            done,
            wanted,
        } = &mut scan.state
        else {
            return;
        };
        let order = *order;
        let (mut watched, mut files) = (Vec::new(), Vec::new());
        while *done < *wanted && scan.next < scan.files.len() {
            let count = (scan.files.len() - scan.next).min(STEP);
            let step = scan.files.range(scan.next..scan.next + count);
            let step = step.map(|file| file.ino);
            scan.next += count;
            // Two: one of them may be empty, or be left out.
            let middle = files.len() + count / 2;
            files.extend(step);
            let last = files.len() - 1;
            let both = [(middle, true), (last, last != middle)];
            let some = both.into_iter().filter(|(_, is_one)| *is_one);
            watched.extend(some.map(|(at, _)| (files[at], *done)));
            *done += 1;
        }
        // They may still have to be put into another order.
        if scan.is_known || scan.files.len() >= SCAN_LEFT_MAX {
            scan.files.drain(..std::mem::take(&mut scan.next));
        }
        for (ino, step) in watched {
            let input = Input::Watch(ino, directory, Mark::Step(order, step));
            self.out.push(Effect::ForSlice(ino, input));
        }
        if !files.is_empty() {
            self.out.push(Effect::LoadFiles(files));
        }
    }

    /// A READ of a file will say that those of `directory` are being read.
    pub(crate) fn watch(&mut self, env: &Env<'_>, ino: InodeId, directory: InodeId, mark: Mark) {
        if self.watched.len() >= WATCHED_MAX {
            let oldest = self.watched.iter().min_by_key(|(_, watch)| watch.since);
            let oldest = oldest.map(|(ino, _)| *ino);
            oldest.and_then(|ino| self.watched.remove(&ino));
        }
        let since = env.now;
        let watch = Watch {
            directory,
            mark,
            since,
        };
        let known = self.watched.entry(ino).or_insert(watch);
        // That it was loaded in an order tells more.
        if known.directory != directory || mark != Mark::First {
            *known = watch;
        }
    }

    /// A request comes: if it reads a watched file, its directory's slice hears of it.
    pub(crate) fn note_watched_read(&mut self, operation: &Operation) {
        if let Operation::Read { ino, .. } = operation {
            self.note_watched(*ino);
        }
    }

    /// Whether and in which order the files of its directory are read is not known yet, and its READ may tell.
    pub(crate) fn is_telling_order(&self, ino: InodeId) -> bool {
        let watch = self.watched.get(&ino);
        watch.is_some_and(|watch| watch.mark == Mark::First)
    }

    /// A file is read, or one is opened that was put into the kernel for that.
    pub(crate) fn note_watched(&mut self, ino: InodeId) {
        if let Some(watch) = self.watched.remove(&ino) {
            let input = Input::WatchedRead(watch.directory, ino, watch.mark);
            self.out.push(Effect::ForSlice(watch.directory, input));
        }
    }

    /// A watched file of a directory is read.
    pub(crate) fn on_watched_read(
        &mut self,
        env: &Env<'_>,
        directory: InodeId,
        file: InodeId,
        mark: Mark,
    ) {
        let Some(scan) = self.scan(directory) else {
            return;
        };
        scan.at = env.now;
        let Some(order) = scan.on_read(file, mark) else {
            return;
        };
        env.readers.note_read_through(scan.reader, order);
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
            return self.fill_ahead(env, ino);
        }
        if inode.covers(RangeMode::Read, &range) {
            self.loaded_file_count += 1;
            self.inode(ino).foreseen = Foreseen::Loaded;
            self.load_ahead(env, ino, vec![range]);
            self.fill_foreseen(env, ino);
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
    /// The first files of each order of which they are known and were not told before: their reads tell which one it is.
    fn next_first(&mut self) -> Vec<InodeId> {
        if self.is_known {
            return Vec::new();
        }
        let mut found = Vec::new();
        for order in Order::ALL {
            let is_told = self.first.iter().any(|first| first.0 == order);
            if is_told || (order != Order::Listed && !self.is_whole) {
                continue;
            }
            // Of several names of one file one.
            let mut files: Vec<_> = self.files.iter().collect();
            let count = files.len().min(FIRST_COUNT + 1);
            if count < files.len() {
                files.select_nth_unstable_by(count, |a, b| order.compare(a, b));
            }
            files.truncate(count);
            files.sort_unstable_by(|a, b| order.compare(a, b));
            let mut first: Vec<_> = files.iter().map(|file| file.ino).collect();
            first.dedup();
            first.truncate(FIRST_COUNT);
            if first.len() < FIRST_COUNT && !self.is_whole {
                continue;
            }
            self.first
                .extend(first.iter().map(|ino| (order, *ino, false)));
            found.extend(first);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// A watched file is read: the order in which they are, as far as that is known now.
    fn on_read(&mut self, file: InodeId, mark: Mark) -> Option<Order> {
        let taken_for = match (self.state, mark) {
            (State::Ahead { order, .. }, _) => Some(order),
            // Somebody has listed it anew; who reads it goes on.
            (State::Watched, Mark::Step(order, _)) => {
                if !self.is_whole && order != Order::Listed {
                    return None;
                }
                self.is_known = true;
                self.load_ahead(order, Some(file));
                return Some(order);
            }
            (State::Watched, Mark::First) => None,
            (State::Listed, _) => return None,
        };
        let first = self.first.iter_mut().filter(|first| first.1 == file);
        first.for_each(|first| first.2 = true);
        let tells_another =
            |first: &(Order, InodeId, bool)| Some(first.0) != taken_for && first.1 == file;
        if let (Mark::Step(order, step), State::Ahead { wanted, .. }) = (mark, &mut self.state)
            && Some(order) == taken_for
        {
            // Of a listing before the last one a step may be named that has not been yet.
            let next = step.saturating_add(1 + STEPS_AHEAD);
            *wanted = next.clamp(*wanted, *wanted + STEPS_AHEAD);
            self.is_known |= !self.first.iter().any(tells_another);
        }
        if self.is_known {
            return taken_for.filter(|_| mark != Mark::First);
        }
        let read_count = |order: Order| {
            let is_read = |first: &&(Order, InodeId, bool)| first.0 == order && first.2;
            self.first.iter().filter(is_read).count()
        };
        let mut orders = taken_for.into_iter().chain(Order::ALL);
        let order = orders.find(|order| read_count(*order) >= READ_MIN)?;
        self.is_known = true;
        if taken_for != Some(order) {
            self.load_ahead(order, Some(file));
        }
        Some(order)
    }

    /// Its files are loaded from now on, in this order, those behind the one that has been read last.
    fn load_ahead(&mut self, order: Order, read: Option<InodeId>) {
        let files = self.files.make_contiguous();
        files.sort_unstable_by(|a, b| order.compare(a, b));
        let at = files.iter().position(|file| Some(file.ino) == read);
        self.next = at.map_or(0, |at| at + 1);
        self.state = State::Ahead {
            order,
            done: 0,
            wanted: STEPS_AHEAD,
        };
    }
}

#[cfg(test)]
impl Scan {
    /// The same, of another directory.
    pub(crate) fn of_another(&self, directory: InodeId) -> Self {
        let files = self.files.iter();
        Self {
            directory,
            files: files
                .map(|file| Member {
                    name: file.name.clone(),
                    ..*file
                })
                .collect(),
            first: self.first.clone(),
            ..*self
        }
    }
}
