//! The page index against a dumb twin: an array with three flags for each byte.

use std::cell::RefCell;

use stdx::Prng;

use super::*;

/// A pool of a few frames that counts references.
#[derive(Debug)]
struct Frames {
    bytes: RefCell<Vec<u8>>,
    references: RefCell<Vec<u32>>,
    /// Page that a frame was last put into.
    owners: RefCell<Vec<u64>>,
}

impl Frames {
    fn new(count: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; count * FRAME_SIZE]),
            references: RefCell::new(vec![0; count]),
            owners: RefCell::new(vec![u64::MAX; count]),
        }
    }

    fn begin(span: Span) -> usize {
        span.frame.0 as usize * FRAME_SIZE + span.offset as usize
    }

    fn held(&self) -> usize {
        self.references.borrow().iter().filter(|r| **r > 0).count()
    }
}

impl Pool for Frames {
    fn alloc(&self) -> Option<FrameRef> {
        let mut references = self.references.borrow_mut();
        let free = references.iter().position(|r| *r == 0)?;
        references[free] = 1;
        Some(FrameRef(u32::try_from(free).expect("few")))
    }

    fn alloc_slab(&self) -> Option<FrameRef> {
        None
    }

    fn retain(&self, frame: FrameRef) {
        let count = &mut self.references.borrow_mut()[frame.0 as usize];
        assert!(*count > 0);
        *count += 1;
    }

    fn release(&self, frame: FrameRef) {
        let count = &mut self.references.borrow_mut()[frame.0 as usize];
        assert!(*count > 0);
        *count -= 1;
    }

    fn own_run(&self, first: FrameRef, count: u32, _ino: InodeId, page: u64) {
        for (frame, page) in (first.0..first.0 + count).zip(page..) {
            self.owners.borrow_mut()[frame as usize] = page;
        }
    }

    fn is_shared(&self, frame: FrameRef) -> bool {
        self.references.borrow()[frame.0 as usize] > 1
    }

    fn copy(&self, source: Span, target: Span) {
        let begin = Self::begin(source);
        let source = begin..begin + source.length as usize;
        self.bytes
            .borrow_mut()
            .copy_within(source, Self::begin(target));
    }

    fn zero(&self, target: Span) {
        let begin = Self::begin(target);
        self.bytes.borrow_mut()[begin..begin + target.length as usize].fill(0);
    }

    fn load(&self, source: Span) -> SmallBytes {
        let begin = Self::begin(source);
        SmallBytes::new(&self.bytes.borrow()[begin..begin + source.length as usize])
    }

    fn store(&self, target: Span, bytes: &[u8]) {
        let begin = Self::begin(target);
        self.bytes.borrow_mut()[begin..begin + bytes.len()].copy_from_slice(bytes);
    }

    fn crc(&self, _source: Span) -> u32 {
        0
    }

    fn frame_counts(&self) -> (u64, u64) {
        let total = self.references.borrow().len();
        (total as u64, (total - self.held()) as u64)
    }
}

/// What is true of a byte, the obvious way.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Byte {
    value: u8,
    is_valid: bool,
    dirty_since: Option<u64>,
    flying_since: Option<u64>,
}

const FILE_PAGES: usize = 200;

struct Twin {
    pages: Pages,
    pool: Frames,
    bytes: Vec<Byte>,
    flights: Vec<Vec<DirtyPage>>,
    sequence: u64,
    prng: Prng,
    /// For tests that leave the pages as the disks would have them.
    disk: Vec<u8>,
}

fn bytes_of(range: &ByteRange) -> std::ops::Range<usize> {
    usize::try_from(range.begin).expect("small")..usize::try_from(range.end).expect("small")
}

impl Twin {
    fn new(seed: u64) -> Self {
        Self {
            pages: Pages::new(InodeId::ROOT),
            pool: Frames::new(3000),
            bytes: vec![Byte::default(); FILE_PAGES * FRAME_SIZE],
            flights: Vec::new(),
            sequence: 0,
            prng: Prng::new(seed),
            disk: vec![0; FILE_PAGES * FRAME_SIZE],
        }
    }

    fn range(&mut self) -> ByteRange {
        let end = (FILE_PAGES * FRAME_SIZE) as u64;
        let (mut begin, mut size) = (self.prng.below(end), 1 + self.prng.below(3 * PAGE_SIZE));
        if self.prng.below(3) == 0 {
            begin = begin / PAGE_SIZE * PAGE_SIZE;
            size = size.div_ceil(PAGE_SIZE) * PAGE_SIZE * (1 + self.prng.below(30));
        }
        ByteRange::new(begin, (begin + size).min(end))
    }

    fn write(&mut self) {
        let range = self.range();
        let value = u8::try_from(self.prng.below(256)).expect("a byte");
        let length = u32::try_from(range.length()).expect("small");
        // The payload: adjacent frames, at the end of the pool where `alloc` does not come.
        let count = length.div_ceil(4096) + 1;
        let first = FrameRef(u32::try_from(self.free_run(count as usize)).expect("few"));
        (first.0..first.0 + count).for_each(|f| self.pool.references.borrow_mut()[f as usize] = 1);
        let is_aligned = self.prng.below(2) == 0;
        let payload = Span {
            frame: first,
            offset: if is_aligned { 0 } else { 100 },
            length,
        };
        self.pool.store(payload, &vec![value; length as usize]);
        let newly = self.pages.newly_dirty_count(&range);
        let before = self.pages.dirty_count();
        let written = self.pages.write(range.begin, payload, &self.pool);
        assert_eq!(written, Ok(()), "the pool is large enough");
        assert_eq!((self.pages.dirty_count() - before) as u64, newly);
        (first.0..first.0 + count).for_each(|f| self.pool.release(FrameRef(f)));
        let since = self.page_dirtied();
        for number in pages_of(&range) {
            let part = part_of(&range, number);
            let since = since(&self.bytes, number).unwrap_or(self.sequence);
            for byte in &mut self.bytes[bytes_of(&ByteRange::at(
                number * PAGE_SIZE + part.begin,
                part.length(),
            ))] {
                let flying_since = byte.flying_since;
                *byte = Byte {
                    value,
                    is_valid: true,
                    dirty_since: Some(since),
                    flying_since,
                };
            }
        }
    }

    /// All dirty bytes of a page have the time of the first.
    fn page_dirtied(&self) -> impl Fn(&[Byte], u64) -> Option<u64> + use<> {
        |bytes, number| {
            let page = bytes_of(&ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
            bytes[page].iter().find_map(|byte| byte.dirty_since)
        }
    }

    fn free_run(&self, count: usize) -> usize {
        let references = self.pool.references.borrow();
        let mut run = 0;
        for index in (0..references.len()).rev() {
            run = if references[index] == 0 { run + 1 } else { 0 };
            if run == count {
                return index;
            }
        }
        panic!("the pool is large enough")
    }

    fn read(&mut self) {
        let range = self.range();
        match self.pages.read(&range, &self.pool) {
            Found::All(spans) => {
                let mut found = Vec::new();
                for span in spans {
                    let mut left = span;
                    while left.length > 0 {
                        let part = left.length.min(1024);
                        found.extend_from_slice(&self.pool.load(left.part(0, part)));
                        left = left.part(part, left.length - part);
                    }
                    let count = (span.offset + span.length).div_ceil(4096);
                    (0..count).for_each(|i| self.pool.release(FrameRef(span.frame.0 + i)));
                }
                let bytes = &self.bytes[bytes_of(&range)];
                assert!(bytes.iter().all(|byte| byte.is_valid));
                assert!(found.iter().zip(bytes).all(|(f, b)| *f == b.value));
                assert_eq!(found.len(), bytes.len());
            }
            Found::Missing(missing) => {
                for number in pages_of(&range) {
                    let part = part_of(&range, number);
                    let page = ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
                    let wanted = ByteRange::at(page.begin + part.begin, part.length());
                    let mut bytes = self.bytes[bytes_of(&wanted)].iter();
                    assert_eq!(missing.contains(&page), bytes.any(|byte| !byte.is_valid));
                }
            }
        }
    }

    /// A load of a page: bytes that the disk has, where the page has none yet.
    fn fill(&mut self) {
        let number = self.prng.below(FILE_PAGES as u64);
        let frame = self.pool.alloc().expect("large enough");
        let base = bytes_of(&ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
        let disk = self.disk[base.clone()].to_vec();
        self.pool.store(Span::whole(frame), &disk);
        let mut covered = RangeSet::new();
        if self.prng.below(2) == 0 {
            let begin = self.prng.below(PAGE_SIZE);
            covered.insert(ByteRange::new(0, begin));
            covered.insert(ByteRange::new(begin + (PAGE_SIZE - begin) / 2, PAGE_SIZE));
        } else {
            covered.insert(ByteRange::new(0, PAGE_SIZE));
        }
        let argument = (!covered.contains(&ByteRange::new(0, PAGE_SIZE))).then_some(&covered);
        self.pages.fill(number, frame, argument, &self.pool);
        for range in covered.ranges() {
            for at in bytes_of(range) {
                let byte = &mut self.bytes[base.start + at];
                if !byte.is_valid {
                    (byte.value, byte.is_valid) = (disk[at], true);
                }
            }
        }
    }

    fn take(&mut self) {
        let range = self.range();
        let until = self.prng.below(self.sequence + 1);
        let most = usize::try_from(self.prng.below(60)).expect("small");
        let taken = self.pages.take_dirty(&range, most, until, &self.pool);
        assert!(taken.len() <= most);
        for page in &taken {
            let bytes = bytes_of(&ByteRange::at(page.number * PAGE_SIZE, PAGE_SIZE));
            let mut dirty = RangeSet::new();
            for (at, byte) in self.bytes[bytes].iter_mut().enumerate() {
                assert_eq!(byte.flying_since, None, "one flush at a time");
                if let Some(since) = byte.dirty_since.take() {
                    assert!(since <= until);
                    byte.flying_since = Some(since);
                    dirty.insert(ByteRange::at(at as u64, 1));
                }
            }
            assert_eq!(page.dirty(), dirty.ranges());
        }
        self.flights.push(taken);
    }

    fn land(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let flight = self.prng.below(self.flights.len() as u64);
        let flight = self
            .flights
            .swap_remove(usize::try_from(flight).expect("small"));
        let (is_ok, drop_failed) = (self.prng.below(2) == 0, self.prng.below(4) == 0);
        for page in &flight {
            self.pool.release(page.frame);
            let range = bytes_of(&ByteRange::at(page.number * PAGE_SIZE, PAGE_SIZE));
            let bytes = &mut self.bytes[range];
            let is_again = |byte: &Byte| byte.is_valid && !is_ok && !drop_failed;
            let times = bytes.iter().flat_map(|byte| {
                let again = byte.flying_since.filter(|_| is_again(byte));
                [again, byte.dirty_since]
            });
            let oldest = times.flatten().min();
            for byte in bytes {
                let is_flown = byte.flying_since.is_some() && is_again(byte);
                if is_flown || byte.dirty_since.is_some() {
                    byte.dirty_since = oldest;
                }
                byte.flying_since = None;
            }
        }
        let numbers: Vec<u64> = flight.iter().map(|page| page.number).collect();
        self.pages.on_flushed(&numbers, is_ok, drop_failed);
    }

    fn discard(&mut self) {
        let range = self.range();
        self.pages.discard(&range, &self.pool);
        for byte in &mut self.bytes[bytes_of(&range)] {
            (byte.is_valid, byte.dirty_since) = (false, None);
        }
    }

    fn redirty(&mut self) {
        let number = self.prng.below(FILE_PAGES as u64);
        let set = RangeSet::of(ByteRange::new(7, 2000));
        let bytes = bytes_of(&ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
        let bytes = &mut self.bytes[bytes];
        let is_busy = |byte: &Byte| byte.dirty_since.is_some() || byte.flying_since.is_some();
        let is_free = !bytes.iter().any(is_busy);
        let mut is_dirty = false;
        for byte in &mut bytes[7..2000] {
            if is_free && byte.is_valid {
                byte.dirty_since = Some(self.sequence);
                is_dirty = true;
            }
        }
        assert_eq!(self.pages.redirty(number, &set), is_dirty);
    }

    fn evict(&mut self) {
        let valid = |bytes: &[Byte], number: usize| {
            let page = &bytes[number * FRAME_SIZE..(number + 1) * FRAME_SIZE];
            (
                page.iter().any(|byte| byte.is_valid),
                page.iter()
                    .any(|byte| byte.dirty_since.is_some() || byte.flying_since.is_some()),
            )
        };
        let none = RangeSet::new();
        if self.prng.below(4) == 0 {
            let begin = self.prng.below(FILE_PAGES as u64);
            let end = begin + 1 + self.prng.below(FILE_PAGES as u64 - begin);
            let range = ByteRange::new(begin * PAGE_SIZE, end * PAGE_SIZE);
            self.pages.drop_clean(&range, &none, &self.pool);
        } else {
            self.pages.evict(20, &none, &self.pool);
        }
        for number in 0..FILE_PAGES {
            if self.pages.frame_of(number as u64).is_none() {
                let (_, is_busy) = valid(&self.bytes, number);
                assert!(!is_busy, "only clean pages are evicted");
                let page = &mut self.bytes[number * FRAME_SIZE..(number + 1) * FRAME_SIZE];
                page.iter_mut().for_each(|byte| byte.is_valid = false);
            }
        }
    }

    /// The pool wants some frames back.
    fn give_up(&mut self) {
        let may_move = self.prng.below(2) == 0;
        for number in 0..FILE_PAGES as u64 {
            let Some(frame) = self.pages.frame_of(number) else {
                continue;
            };
            if self.prng.below(3) > 0 {
                continue;
            }
            let range = bytes_of(&ByteRange::at(number * PAGE_SIZE, PAGE_SIZE));
            let bytes = &mut self.bytes[range];
            let is_busy = |b: &Byte| b.dirty_since.is_some() || b.flying_since.is_some();
            let is_dirty = bytes.iter().any(is_busy);
            let is_shared = self.pool.is_shared(frame);
            let other = FrameRef(frame.0 + 1);
            assert_eq!(
                self.pages.give_up(number, other, may_move, &self.pool),
                GivenUp::Gone
            );
            let given_up = self.pages.give_up(number, frame, may_move, &self.pool);
            let now = self.pages.frame_of(number);
            match given_up {
                GivenUp::Gone if now.is_none() => {
                    assert!(!is_dirty && !is_shared);
                    bytes.iter_mut().for_each(|byte| byte.is_valid = false);
                }
                GivenUp::Gone => assert_ne!(now, Some(frame)),
                GivenUp::InUse => assert!(is_shared && now == Some(frame)),
                GivenUp::Dirty => panic!("there is a frame to move it to"),
            }
        }
    }

    fn check(&mut self) {
        self.pages.check();
        for number in 0..FILE_PAGES as u64 {
            if let Some(frame) = self.pages.frame_of(number) {
                assert_eq!(self.pool.owners.borrow()[frame.0 as usize], number);
            }
        }
        let goal = self.prng.below(self.sequence + 1);
        let times = self
            .bytes
            .iter()
            .flat_map(|byte| [byte.dirty_since, byte.flying_since]);
        let mut older = times.flatten().filter(|since| *since <= goal);
        // A page cut while it was in flight counts until its flush has ended.
        assert!(!self.pages.is_reached(goal) || older.next().is_none());
        let range = self.range();
        let is_busy = |byte: &Byte| byte.dirty_since.is_some() || byte.flying_since.is_some();
        for number in pages_of(&range) {
            let part = part_of(&range, number);
            let wanted = ByteRange::at(number * PAGE_SIZE + part.begin, part.length());
            let is_in = self.bytes[bytes_of(&wanted)].iter().any(is_busy);
            assert_eq!(self.pages.busy(&range).contains(&number), is_in);
            assert!(!is_in || self.pages.is_busy(&range));
        }
        let zero = self.range();
        let page = pages_of(&zero).next_back().expect("a page");
        let gap = ByteRange::new(zero.end - 1, (page + 1) * PAGE_SIZE);
        if self.prng.below(8) == 0 && self.pages.frame_of(page).is_some() {
            self.pages.zero_gap(&gap, &self.pool).expect("frames");
            for byte in &mut self.bytes[bytes_of(&gap)] {
                if !byte.is_valid {
                    (byte.value, byte.is_valid) = (0, true);
                }
            }
        }
    }
}

#[test]
fn pages_do_what_an_array_of_bytes_does() {
    for seed in 0..6 {
        let mut twin = Twin::new(seed);
        for step in 0..400 {
            match twin.prng.below(17) {
                0..=4 => twin.write(),
                5..=6 => twin.read(),
                7..=8 => twin.fill(),
                9..=10 => twin.take(),
                11..=12 => twin.land(),
                13 => twin.discard(),
                14 => twin.redirty(),
                15 => twin.give_up(),
                _ if step % 2 == 0 => twin.evict(),
                _ => {
                    let goal = twin.pages.mark_goal();
                    assert_eq!(goal, twin.sequence);
                    twin.sequence += 1;
                }
            }
            twin.check();
        }
        while !twin.flights.is_empty() {
            twin.land();
        }
        twin.pages.truncate(0, &twin.pool);
        assert_eq!(
            (twin.pages.dirty_count(), twin.pages.is_reached(u64::MAX)),
            (0, true)
        );
        twin.pages.clear(&twin.pool);
        assert_eq!(twin.pool.held(), 0, "every reference was given back");
    }
}

/// What no flush wrote is not clean, whatever else of its page is written, until all of it is.
#[test]
fn a_page_is_lost_until_it_goes_or_is_written_as_a_whole() {
    let mut twin = Twin::new(1);
    let page = |number: u64| ByteRange::at(number * PAGE_SIZE, PAGE_SIZE);
    let flush = |twin: &mut Twin, range: &ByteRange, is_ok: bool| {
        let frame = twin.pool.alloc().expect("plenty");
        let length = u32::try_from(range.length()).expect("small");
        let payload = Span::whole(frame).part(0, length);
        twin.pages
            .write(range.begin, payload, &twin.pool)
            .expect("frames");
        let taken = (twin.pages).take_dirty(&ByteRange::ALL, 10, u64::MAX, &twin.pool);
        let numbers: Vec<u64> = taken.iter().map(|taken| taken.number).collect();
        twin.pages.on_flushed(&numbers, is_ok, !is_ok);
        taken
            .iter()
            .for_each(|taken| twin.pool.release(taken.frame));
        twin.pool.release(frame);
        twin.pages.check();
    };
    for number in [1, 2] {
        flush(&mut twin, &page(number), false);
        assert_eq!(twin.pages.clean_frame(number), None);
    }
    assert!(!twin.pages.has_lost(&page(0)) && !twin.pages.has_lost(&page(3)));
    flush(&mut twin, &ByteRange::at(PAGE_SIZE, 10), true);
    assert!(twin.pages.has_lost(&page(1)));
    flush(&mut twin, &page(1), true);
    assert!(!twin.pages.has_lost(&page(1)) && twin.pages.has_lost(&page(2)));
    assert!(twin.pages.clean_frame(1).is_some());
    twin.pages.discard(&page(2), &twin.pool);
    assert!(!twin.pages.has_lost(&ByteRange::ALL));
    twin.pages.check();
}
