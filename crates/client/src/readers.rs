//! Which opens for reading go past the kernel's page cache.
//!
//! A large file is read quickest directly: the kernel fills its page cache for us page by page, which costs more than all
//! the rest of a read (docs/performance.md). Reading in small pieces is the other way round: each direct read is a
//! request, where the page cache would have answered most of them.
//!
//! Invariants
//! - The mode decides about speed only: what a READ returns is under the same tokens in both.
//! - A file below the size limit, and one that is executed, is cached as ever.
//! - So is one that fits in memory and was read directly as many bytes as it has: who reads it again finds it there.
//! - A verdict is about the size of the reads an application makes, and is of the latest evidence.
//! - The table is of fixed size: a newer process takes the place of an older one.
//!
//! Life of a verdict
//! ```text
//! open of a large file --> direct --> of 16 READs 8 or more are small --> small --> the next opens are cached
//!                            ^ '----> a page is read into the cache: mapped --> cached while the inode is known
//!                            '------- the first READ of a cached open is large <--'
//! ```
//! The same tables have how processes go through the files (`siblings`) and the directories (`walk`) that they list: hints for what is loaded and
//! listed ahead, which cost speed only where they are wrong. What a thread has looked up last has tables of their kind (`passing`).
//!
//! What this deliberately does not do: change the mode of an open file, which the kernel has no means for.

use std::hash::{Hash, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::passing::Lookups;
use crate::request::{Caller, OpenFlags, Opened};
use crate::siblings::Order;
use crate::slice::{OpenFile, Slice};
use crate::walk::Course;
use types::InodeId;

/// Direct reads below this are slower than cached ones.
const SMALL_READ_MAX: u32 = 32 << 10;
/// Reads that a verdict is made of, and how many of them make it a small one.
const SAMPLE_COUNT: u8 = 16;
const SMALL_COUNT_MIN: u8 = 8;
/// The first READ of a cached open fills the initial read-ahead. From so many bytes on the application asked for 128 KiB or
/// more: the kernel takes four times up to 32 KiB, twice up to 256 KiB, and then all of the window of a block.
const LARGE_READAHEAD_MIN: u32 = 256 << 10;
/// Processes that are remembered.
const PROCESS_COUNT: u32 = 1024;
/// Of so many directories in a row may files have been loaded without that any was read.
const UNREAD_MAX: u64 = 4;

const COURSE_SHIFT: u32 = 16;
const COURSE_MASK: u64 = 3 << COURSE_SHIFT;

/// How an application reads, as far as its reads have shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Habit {
    /// It has not read enough.
    #[default]
    Unknown,
    /// In pieces that the page cache is quicker for.
    Small,
    /// In pieces that are quicker direct.
    Large,
    /// Through a mapping, or by sendfile (an inode only).
    Mapped,
}

impl Habit {
    /// Takes a verdict. A mapping may still be there: it stays one.
    pub(crate) fn update(&mut self, verdict: Self) {
        if *self != Self::Mapped {
            *self = verdict;
        }
    }
}

/// How the processes of this node read large files. Shared by all slices, without a lock: a verdict that is lost costs speed
/// only.
#[derive(Debug)]
pub struct Readers {
    size_min: u64,
    again_size_max: u64,
    /// Process number, 32 bits, above its habit; each process has one place.
    processes: Box<[AtomicU64]>,
    /// The same of processes whose directories are read: above the number of directories for which files were loaded since the last of which
    /// one was read, and one, eight bits for the order in which they are, and two for that in which directories are.
    scanners: Box<[AtomicU64]>,
    /// Process number, 32 bits, above those of the directory that it was taken to list next.
    guesses: Box<[AtomicU64]>,
    lookups: Lookups,
}

/// The place of a process in a table: those started one after the other do not meet.
pub(crate) fn place(table: &[AtomicU64], pid: u32) -> &AtomicU64 {
    &table[(pid % PROCESS_COUNT) as usize]
}

/// A process, and 32 bits of something of its.
pub(crate) fn guess(pid: u32, what: impl Hash) -> u64 {
    let mut hasher = rustc_hash::FxHasher::default();
    what.hash(&mut hasher);
    let hash = hasher.finish() ^ hasher.finish() >> 32;
    u64::from(pid) << 32 | hash & u64::from(u32::MAX)
}

/// Changes a value, unless `change` gives none; what it was before.
fn update(place: &AtomicU64, change: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
    place
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
        .ok()
}

/// In which order the process reads the files of what it lists, if it does.
fn read_order(value: u64, pid: u32) -> Option<Order> {
    let is_reader = value >> 32 == u64::from(pid) && (1..=UNREAD_MAX).contains(&(value & 0xff));
    let order = Order::ALL.get(usize::try_from(value >> 8 & 0xff).expect("a byte"));
    order.copied().filter(|_| is_reader)
}

/// A table in which no process is.
pub(crate) fn blank() -> Box<[AtomicU64]> {
    (0..PROCESS_COUNT).map(|_| AtomicU64::new(0)).collect()
}

impl Readers {
    /// Files of `size_min` bytes and more are read directly, those up to `again_size_max` bytes only once.
    pub fn new(size_min: u64, again_size_max: u64) -> Self {
        Self {
            size_min,
            again_size_max,
            processes: blank(),
            scanners: blank(),
            guesses: blank(),
            lookups: Lookups::new(),
        }
    }

    /// What threads have looked up last.
    pub fn lookups(&self) -> &Lookups {
        &self.lookups
    }

    /// The process has listed a directory, wholly or to begin with: the order in which its files are to be loaded before they are opened, if they
    /// are, which is counted.
    pub(crate) fn may_read_through(&self, pid: u32, is_whole: bool) -> Option<Order> {
        let may_be = |order: Order| is_whole || order == Order::Listed;
        let counted = update(place(&self.scanners, pid), |value| {
            let order = read_order(value, pid).filter(|order| may_be(*order));
            order.map(|_| value + 1)
        });
        counted.and_then(|value| read_order(value, pid))
    }

    /// The files of a directory that the process has listed are being read. The kernel itself, 0, has no habit.
    pub(crate) fn note_read_through(&self, pid: u32, order: Order) {
        if pid != 0 {
            update(place(&self.scanners, pid), |known| {
                let is_known = known >> 32 == u64::from(pid);
                let course = if is_known { known & COURSE_MASK } else { 0 };
                Some(u64::from(pid) << 32 | course | (order as u64) << 8 | 1)
            });
        }
    }

    /// The process goes through the directories of a directory in this course, or in none that is known.
    pub(crate) fn note_course(&self, pid: u32, course: Option<Course>) {
        if pid == 0 {
            return;
        }
        update(place(&self.scanners, pid), |known| {
            let is_known = known >> 32 == u64::from(pid);
            // Nobody who may read nothing takes the place of who does.
            let is_taken = !is_known && (1..=UNREAD_MAX).contains(&(known & 0xff));
            let known = if is_known {
                known
            } else {
                u64::from(pid) << 32
            };
            let course = course.map_or(0, |course| course as u64);
            (!is_taken).then_some(known & !COURSE_MASK | course << COURSE_SHIFT)
        });
    }

    /// The process is taken to list this directory next.
    pub(crate) fn note_guess(&self, pid: u32, directory: InodeId) {
        place(&self.guesses, pid).store(guess(pid, directory), Ordering::Relaxed);
    }

    /// The process lists this directory from its beginning. False: another one was expected, and what was known of its course is not any more.
    pub(crate) fn was_expected(&self, pid: u32, directory: InodeId) -> bool {
        let is_own = |value: u64| value >> 32 == u64::from(pid);
        let expected = update(place(&self.guesses, pid), |value| {
            is_own(value).then_some(0)
        });
        let is_wrong = expected.is_some_and(|expected| expected != guess(pid, directory));
        if is_wrong {
            self.note_course(pid, None);
        }
        !is_wrong
    }

    /// How the process goes through a tree, if it reads the files of directories that it has listed, and as far as that is known.
    pub(crate) fn way(&self, pid: u32) -> Option<(Order, Option<Course>)> {
        let value = place(&self.scanners, pid).load(Ordering::Relaxed);
        let order = read_order(value, pid)?;
        let course = match (value & COURSE_MASK) >> COURSE_SHIFT {
            1 => Some(Course::Forward),
            2 => Some(Course::Backward),
            _ => None,
        };
        Some((order, course))
    }

    fn habit(&self, pid: u32) -> Habit {
        let value = place(&self.processes, pid).load(Ordering::Relaxed);
        match (value >> 32 == u64::from(pid), value & 0xff) {
            (true, 1) => Habit::Small,
            (true, 2) => Habit::Large,
            _ => Habit::Unknown,
        }
    }

    /// Notes how `pid` reads. The kernel itself, 0, has no habit.
    fn learn(&self, pid: u32, habit: Habit) {
        let value = match habit {
            Habit::Small => 1,
            Habit::Large => 2,
            Habit::Unknown | Habit::Mapped => return,
        };
        if pid != 0 {
            let value = u64::from(pid) << 32 | value;
            place(&self.processes, pid).store(value, Ordering::Relaxed);
        }
    }

    /// A file of `size` bytes that was read like `inode` so far is opened for reading by `pid`: past the page cache?
    fn is_direct(&self, size: u64, inode: Habit, pid: u32) -> bool {
        if size < self.size_min || inode == Habit::Mapped {
            return false;
        }
        match (self.habit(pid), inode) {
            (Habit::Small, _) | (Habit::Unknown, Habit::Small) => false,
            (Habit::Unknown | Habit::Large | Habit::Mapped, _) => true,
        }
    }
}

/// How an open file is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    is_watched: bool,
    is_direct: bool,
    opener: u32,
    count: u8,
    small_count: u8,
}

impl Sample {
    /// Takes a READ in; a verdict, if there is one now.
    fn note(&mut self, length: u32, fills_page_cache: bool) -> Option<Habit> {
        if self.is_direct && fills_page_cache {
            self.is_watched = false;
            return Some(Habit::Mapped);
        }
        if !self.is_direct {
            // Later ones tell of the kernel's read-ahead only.
            self.is_watched = false;
            let is_large = length >= LARGE_READAHEAD_MIN;
            return Some(if is_large { Habit::Large } else { Habit::Small });
        }
        self.count += 1;
        self.small_count += u8::from(length < SMALL_READ_MAX);
        if self.count < SAMPLE_COUNT {
            return None;
        }
        let is_small = self.small_count >= SMALL_COUNT_MIN;
        (self.count, self.small_count) = (0, 0);
        Some(if is_small { Habit::Small } else { Habit::Large })
    }
}

impl Slice {
    /// Opens a handle on `ino` for `caller`, large files directly.
    pub(crate) fn open_handle_for(
        &mut self,
        readers: &Readers,
        ino: InodeId,
        caller: Caller,
        flags: OpenFlags,
    ) -> Opened {
        let mut opened = self.open_handle(ino, flags);
        let inode = self.inode(ino);
        let is_plain = !opened.direct && !flags.exec && inode.size >= readers.size_min;
        if !is_plain {
            return opened;
        }
        if inode.size <= readers.again_size_max && inode.direct_bytes >= inode.size {
            return opened;
        }
        opened.direct = readers.is_direct(inode.size, inode.habit, caller.pid);
        // Of a mapped file the kernel's requests say nothing about those of the application.
        let is_watched = inode.habit != Habit::Mapped;
        let file = self.handles.get_mut(&opened.handle);
        file.expect("just opened").sample = Sample {
            is_watched,
            is_direct: opened.direct,
            opener: caller.pid,
            ..Sample::default()
        };
        opened
    }
}

impl OpenFile {
    /// It is a large file's, and read past the page cache.
    pub(crate) const fn is_direct_reader(&self) -> bool {
        self.sample.is_direct
    }

    /// Takes a READ in. A verdict is about the file too: the caller notes it there.
    pub(crate) fn note_read(
        &mut self,
        readers: &Readers,
        length: u32,
        fills_page_cache: bool,
    ) -> Option<Habit> {
        if !self.sample.is_watched {
            return None;
        }
        let habit = self.sample.note(length, fills_page_cache)?;
        readers.learn(self.sample.opener, habit);
        Some(habit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: u32 = 1 << 20;
    const SIZE: u64 = types::limits::DIRECT_SIZE_MIN;

    fn direct() -> Sample {
        Sample {
            is_watched: true,
            is_direct: true,
            ..Sample::default()
        }
    }

    fn cached() -> Sample {
        Sample {
            is_watched: true,
            ..Sample::default()
        }
    }

    /// The verdicts that READs of these lengths give.
    fn verdicts(mut sample: Sample, lengths: impl IntoIterator<Item = u32>) -> Vec<Habit> {
        let note = |length| sample.note(length, !sample.is_direct);
        lengths.into_iter().filter_map(note).collect()
    }

    #[test]
    fn sixteen_direct_reads_make_a_verdict() {
        let small = |count: usize| [vec![4096; count], vec![LARGE; 16 - count]].concat();
        assert_eq!(verdicts(direct(), vec![4096; 15]), []);
        assert_eq!(verdicts(direct(), small(16)), [Habit::Small]);
        assert_eq!(verdicts(direct(), small(8)), [Habit::Small]);
        assert_eq!(verdicts(direct(), small(7)), [Habit::Large]);
        // The latest evidence counts.
        let changes = [small(16), small(0), small(9)].concat();
        let found = verdicts(direct(), changes);
        assert_eq!(found, [Habit::Small, Habit::Large, Habit::Small]);
        let edge = |length| verdicts(direct(), vec![length; 16]);
        assert_eq!(edge(SMALL_READ_MAX - 1), [Habit::Small]);
        assert_eq!(edge(SMALL_READ_MAX), [Habit::Large]);
    }

    /// Initial read-ahead for requests of 4 KiB to 1 MiB, as the kernel computes it with a window of 1 MiB.
    #[test]
    fn the_first_cached_read_tells_the_size_of_the_request() {
        for (request, first, habit) in [
            (4, 16, Habit::Small),
            (32, 128, Habit::Small),
            (64, 128, Habit::Small),
            (128, 256, Habit::Large),
            (1024, 1024, Habit::Large),
        ] {
            let mut sample = cached();
            assert_eq!(sample.note(first << 10, true), Some(habit), "{request} KiB");
            assert!(!sample.is_watched, "the second READ is the kernel's own");
        }
    }

    #[test]
    fn a_page_read_through_a_direct_handle_is_a_mapping() {
        let mut sample = direct();
        assert_eq!(sample.note(LARGE, true), Some(Habit::Mapped));
        assert!(!sample.is_watched);
    }

    #[test]
    fn small_readers_and_their_files_are_cached() {
        let readers = Readers::new(SIZE, 0);
        assert!(readers.is_direct(SIZE, Habit::Unknown, 7));
        assert!(!readers.is_direct(SIZE - 1, Habit::Unknown, 7));
        // What a process does outweighs what others do with the file, a mapping outweighs both.
        assert!(!readers.is_direct(SIZE, Habit::Small, 7));
        readers.learn(7, Habit::Large);
        assert!(readers.is_direct(SIZE, Habit::Small, 7));
        assert!(!readers.is_direct(SIZE, Habit::Mapped, 7));
        readers.learn(7, Habit::Small);
        assert!(!readers.is_direct(SIZE, Habit::Large, 7));
        // A mapping says nothing about a process.
        readers.learn(7, Habit::Mapped);
        assert_eq!(readers.habit(7), Habit::Small);
        // The kernel, and another process.
        readers.learn(0, Habit::Small);
        assert!(readers.is_direct(SIZE, Habit::Unknown, 0));
        assert!(readers.is_direct(SIZE, Habit::Unknown, 8));
    }

    #[test]
    fn an_older_process_makes_room_for_a_newer_one() {
        let readers = Readers::new(SIZE, 0);
        (1..=PROCESS_COUNT).for_each(|pid| readers.learn(pid, Habit::Small));
        assert!((1..=PROCESS_COUNT).all(|pid| readers.habit(pid) == Habit::Small));
        readers.learn(PROCESS_COUNT + 1, Habit::Large);
        assert_eq!(readers.habit(1), Habit::Unknown);
        assert_eq!(readers.habit(2), Habit::Small);
        assert_eq!(readers.habit(PROCESS_COUNT + 1), Habit::Large);
    }
}
