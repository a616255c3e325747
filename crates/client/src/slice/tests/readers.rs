//! Large files are read directly, unless they are read in small pieces.

use super::*;
use crate::request::{Opened, Response};

const SIZE: u64 = types::limits::DIRECT_SIZE_MIN;

impl Story {
    /// Opens the file as process `pid`; the tokens are there.
    fn open_as(&mut self, pid: u32, flags: OpenFlags) -> Opened {
        self.ticket += 1;
        let effects = self.input(Input::Request(Request {
            ticket: Ticket(self.ticket),
            caller: Caller {
                pid,
                ..Caller::default()
            },
            operation: Operation::Open { ino: INO, flags },
        }));
        let opened = effects.iter().find_map(|effect| match effect {
            Effect::Reply(_, Response::Opened(opened), _) => Some(*opened),
            _ => None,
        });
        opened.expect("opened at once")
    }

    /// READs of `length` bytes through `opened`, none of which finds its sectors.
    fn read_all(&mut self, opened: Opened, count: u64, length: u32) {
        for index in 0..count {
            self.ask(Operation::Read {
                ino: INO,
                handle: opened.handle,
                offset: index * u64::from(length),
                length,
                fills_page_cache: !opened.direct,
            });
        }
    }

    fn large(size: u64) -> Self {
        let mut s = Self::new(size);
        s.open(InodeMode::Exclusive, ByteRange::ALL);
        assert_eq!(s.slice.inode(INO).size, size);
        s
    }
}

fn read_only() -> OpenFlags {
    OpenFlags {
        read: true,
        ..OpenFlags::default()
    }
}

/// A large file is read past the kernel's page cache; what the kernel has of it for others stays.
#[test]
fn only_plain_readers_of_large_files_are_direct() {
    for (size, is_direct) in [(0, false), (SIZE - 1, false), (SIZE, true)] {
        let mut s = Story::large(size);
        let opened = s.open_as(7, read_only());
        assert_eq!(opened.direct, is_direct, "{size} bytes");
        assert!(opened.keep_cache);
    }
    let mut s = Story::large(SIZE);
    let exec = OpenFlags {
        exec: true,
        ..read_only()
    };
    assert!(
        !s.open_as(7, exec).direct,
        "executed through the page cache"
    );
    let direct = OpenFlags {
        direct: true,
        ..read_only()
    };
    let opened = s.open_as(7, direct);
    assert!(opened.direct && !opened.keep_cache);
}

/// The process and the file are marked: the next opens are cached, until the kernel's first READ shows large pieces.
#[test]
fn a_small_reader_is_cached_from_its_next_open_on() {
    let mut s = Story::large(SIZE);
    let first = s.open_as(7, read_only());
    s.read_all(first, 15, 4096);
    assert!(s.open_as(7, read_only()).direct, "15 reads are not enough");
    s.read_all(first, 1, 4096);
    let cached = s.open_as(7, read_only());
    assert!(!cached.direct && cached.keep_cache);
    assert!(
        !s.open_as(8, read_only()).direct,
        "who has no habit of its own"
    );
    s.read_all(cached, 1, 16 << 10);
    s.read_all(cached, 4, 1 << 20);
    assert!(!s.open_as(7, read_only()).direct, "the kernel read ahead");
    let again = s.open_as(7, read_only());
    s.read_all(again, 1, 1 << 20);
    assert!(s.open_as(7, read_only()).direct);
    assert!(s.open_as(8, read_only()).direct);
}

/// Who reads a file again that memory has room for finds it in the page cache, until it changes.
#[test]
fn a_large_file_is_cached_when_it_was_read_once() {
    const LIMIT: u64 = 1 << 20;
    let story = |size| {
        let mut s = Story::large(size);
        s.readers = crate::Readers::new(LIMIT, LIMIT);
        let all = ByteRange::new(0, size);
        // A hole.
        s.slice.inode(INO).map.learn(all, Vec::new(), Vec::new());
        s
    };
    let mut s = story(LIMIT);
    let first = s.open_as(7, read_only());
    s.read_all(first, 3, 256 << 10);
    assert!(s.open_as(8, read_only()).direct, "not all of it yet");
    s.read_all(first, 1, 256 << 10);
    let again = s.open_as(7, read_only());
    assert!(!again.direct && again.keep_cache);
    assert!(!s.open_as(8, read_only()).direct);
    s.write(1, false);
    assert!(s.open_as(7, read_only()).direct, "it has changed");

    // Another node's write takes the pages, and what is known of them.
    let mut s = story(LIMIT);
    let first = s.open_as(7, read_only());
    s.read_all(first, 4, 256 << 10);
    assert!(!s.open_as(7, read_only()).direct);
    s.slice.inode(INO).forget_map(&ByteRange::new(0, PAGE));
    assert!(s.open_as(7, read_only()).direct);

    // Memory has no room for it.
    let mut s = story(LIMIT + 1);
    let first = s.open_as(7, read_only());
    s.read_all(first, 5, 256 << 10);
    assert!(s.open_as(7, read_only()).direct);
}

/// A file somewhat larger than the pool is read again and again: most of it stays. By age each page would go just before it is
/// wanted.
#[test]
fn a_file_larger_than_the_pool_keeps_its_beginning_there() {
    const FRAMES: u64 = 4096;
    let size = 5 * FRAMES * PAGE / 4;
    let mut s = Story::large(size);
    s.memory.1 = Some(FRAMES);
    let opened = s.open_as(7, read_only());
    // The descriptor that has the tokens is closed, and the map says that all of it is a hole.
    s.slice.inode(INO).open_count = 1;
    let inode = s.slice.inode(INO);
    let all = ByteRange::new(0, size);
    inode.map.learn(all, Vec::new(), Vec::new());
    let mut loaded = Vec::new();
    for _ in 0..4 {
        let mut page_count = 0;
        for offset in (0..size).step_by(1 << 20) {
            let mut todo = s.ask(Operation::Read {
                ino: INO,
                handle: opened.handle,
                offset,
                length: 1 << 20,
                fills_page_cache: false,
            });
            let mut is_answered = false;
            while let Some(effect) = todo.pop() {
                match effect {
                    Effect::ForSlice(_, input) => {
                        page_count += 1;
                        todo.extend(s.input(input));
                    }
                    Effect::WantFrames => todo.extend(s.input(Input::Shrink)),
                    Effect::Reply(_, Response::Data(spans), _) => {
                        is_answered = true;
                        let frames = spans.iter().flat_map(|span| frames_of(*span));
                        frames.for_each(|frame| crate::Pool::release(&s.memory, frame));
                    }
                    _ => {}
                }
            }
            assert!(is_answered, "offset {offset}");
        }
        loaded.push(page_count);
    }
    let blocks = size >> 20;
    assert!(loaded[0] >= blocks, "{loaded:?}");
    // 13/16 of the pool are 13/20 of the file.
    assert!(
        loaded[1..].iter().all(|count| *count < blocks / 2),
        "{loaded:?} of {blocks} blocks were loaded"
    );
}

/// A file that somebody maps is cached for all, as long as the inode is known.
#[test]
fn a_mapped_file_is_cached() {
    let mut s = Story::large(SIZE);
    let opened = s.open_as(7, read_only());
    assert!(opened.direct);
    s.ask(Operation::Read {
        ino: INO,
        handle: opened.handle,
        offset: 0,
        length: 1 << 20,
        fills_page_cache: true,
    });
    let cached = s.open_as(7, read_only());
    assert!(!cached.direct);
    // The window around a fault says nothing of how the application reads.
    s.read_all(cached, 2, 1 << 20);
    s.read_all(opened, 32, 1 << 20);
    assert!(!s.open_as(8, read_only()).direct);
}
