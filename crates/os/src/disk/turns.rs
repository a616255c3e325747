//! Whose turn it is at a disk.
//!
//! A disk serves what it has in the order in which it came, more or less: a journal record that an fsync waits for, or a read, would
//! stand behind all that is being written back. So of large writes that nobody asked to be durable a disk has a few at a time, and the
//! others wait here: enough to keep it busy, and little to wait for. And small writes of write-behind, of which there may be thousands, stand
//! behind what somebody waits for: records of journals, flushes, reads.
//!
//! Invariants
//! - At most `count_max` parts are with the disk.
//! - Of bulk at most `BULK_SIZE_MAX` bytes are with it, or one part, whatever its size.
//! - Each kind goes in the order in which it came. Bulk goes after others, but one part of it is always under way, and where others wait
//!   all the time one goes for every `PASSED_COUNT_MAX` of them. Among the others small writes go after what is awaited, and one goes for every
//!   `PASSED_COUNT_MAX` of those.

use std::collections::VecDeque;

use types::{SECTOR_SIZE, limits};

/// Bytes of bulk that a disk has at a time, two blocks of the default size with their checksums: it works on one while the other's
/// end is told and the next one is on its way.
const BULK_SIZE_MAX: u64 = 2 * (limits::BLOCK_SIZE_DEFAULT as u64 + SECTOR_SIZE);
/// So many others may pass bulk, or a small write, that could go.
const PASSED_COUNT_MAX: u32 = 8;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Somebody waits for it: a record of a journal, a flush, a read.
    Awaited,
    /// A small write that need not be durable.
    Small,
    /// A part of so many bytes of a large one.
    Bulk(u64),
}

/// Parts that wait, and a count of those that do not.
#[derive(Debug)]
pub(super) struct Turns<T> {
    count_max: usize,
    in_flight: usize,
    bulk_in_flight: u64,
    /// Others that went since bulk did.
    passed_count: u32,
    /// Awaited ones that went since a small one did.
    small_passed_count: u32,
    awaited: VecDeque<T>,
    small: VecDeque<T>,
    bulk: VecDeque<(u64, T)>,
}

impl<T> Turns<T> {
    pub(super) const fn new(count_max: usize) -> Self {
        Self {
            count_max,
            in_flight: 0,
            bulk_in_flight: 0,
            passed_count: 0,
            small_passed_count: 0,
            awaited: VecDeque::new(),
            small: VecDeque::new(),
            bulk: VecDeque::new(),
        }
    }

    pub(super) const fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.awaited.len() + self.small.len() + self.bulk.len()
    }

    /// Takes a part. `next` gives it when its turn has come.
    pub(super) fn enter(&mut self, part: T, class: Class) {
        match class {
            Class::Awaited => self.awaited.push_back(part),
            Class::Small => self.small.push_back(part),
            Class::Bulk(size) => self.bulk.push_back((size, part)),
        }
    }

    /// A part that `next` gave has ended.
    pub(super) const fn end(&mut self, class: Class) {
        self.in_flight -= 1;
        if let Class::Bulk(size) = class {
            self.bulk_in_flight -= size;
        }
    }

    /// The next one that is no bulk.
    fn next_other(&mut self) -> Option<T> {
        let small_goes = self.awaited.is_empty() || self.small_passed_count >= PASSED_COUNT_MAX;
        if small_goes && let Some(part) = self.small.pop_front() {
            self.small_passed_count = 0;
            return Some(part);
        }
        let part = self.awaited.pop_front()?;
        self.small_passed_count = match self.small.is_empty() {
            true => 0,
            false => self.small_passed_count + 1,
        };
        Some(part)
    }

    /// A part that goes to the disk now: ask until there is none.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.in_flight == self.count_max {
            return None;
        }
        let has_others = !(self.awaited.is_empty() && self.small.is_empty());
        let has_turn = !has_others || self.passed_count >= PASSED_COUNT_MAX;
        let bulk_goes = match self.bulk.front() {
            None => false,
            Some(_) if self.bulk_in_flight == 0 => true,
            Some((size, _)) => has_turn && self.bulk_in_flight + size <= BULK_SIZE_MAX,
        };
        let part = match bulk_goes.then(|| self.bulk.pop_front()).flatten() {
            Some((size, part)) => {
                self.bulk_in_flight += size;
                self.passed_count = 0;
                part
            }
            None => {
                let part = self.next_other()?;
                self.passed_count = self.passed_count.saturating_add(1);
                part
            }
        };
        self.in_flight += 1;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block of the default size and its checksums, as it is stored.
    const BLOCK: u64 = 257 * SECTOR_SIZE;

    fn all(turns: &mut Turns<char>) -> String {
        std::iter::from_fn(|| turns.next()).collect()
    }

    #[test]
    fn a_few_of_bulk_are_with_the_disk_and_others_pass_them() {
        let mut turns = Turns::new(8);
        for part in 'A'..='D' {
            turns.enter(part, Class::Bulk(BLOCK));
        }
        assert_eq!(all(&mut turns), "AB");
        turns.enter('j', Class::Awaited);
        turns.enter('k', Class::Awaited);
        assert_eq!(all(&mut turns), "jk");
        turns.end(Class::Awaited);
        assert_eq!(all(&mut turns), "");
        turns.end(Class::Bulk(BLOCK));
        assert_eq!(all(&mut turns), "C");
        assert_eq!((turns.in_flight_count(), turns.waiting_count()), (3, 1));
    }

    /// However many small writes wait, who waits for a record or a read goes first; and small ones go on meanwhile.
    #[test]
    fn what_is_awaited_passes_small_writes() {
        let mut turns = Turns::new(1);
        for part in ['s', 't', 'u'] {
            turns.enter(part, Class::Small);
        }
        assert_eq!(all(&mut turns), "s");
        for part in 'a'..='j' {
            turns.enter(part, Class::Awaited);
        }
        let mut order = String::new();
        while turns.waiting_count() > 0 {
            turns.end(Class::Small);
            order += &all(&mut turns);
        }
        assert_eq!(order, "abcdefghtiju");
    }

    #[test]
    fn nobody_starves() {
        let mut turns = Turns::new(2);
        turns.enter('j', Class::Awaited);
        turns.enter('A', Class::Bulk(BLOCK));
        turns.enter('B', Class::Bulk(BLOCK));
        turns.enter('k', Class::Awaited);
        turns.enter('l', Class::Awaited);
        // Of bulk one is always under way; others go first otherwise.
        assert_eq!(all(&mut turns), "Aj");
        turns.end(Class::Awaited);
        assert_eq!(all(&mut turns), "k");
        turns.end(Class::Bulk(BLOCK));
        assert_eq!(all(&mut turns), "B");
        turns.end(Class::Awaited);
        assert_eq!(all(&mut turns), "l");
    }

    #[test]
    fn bulk_has_its_share_of_a_disk_that_is_busy_all_the_time() {
        let mut turns = Turns::new(4);
        (0..3).for_each(|_| turns.enter('A', Class::Bulk(BLOCK)));
        (0..40).for_each(|_| turns.enter('j', Class::Awaited));
        assert_eq!(all(&mut turns), "Ajjj");
        let mut went = String::new();
        for _ in 0..8 {
            turns.end(Class::Awaited);
            went += &all(&mut turns);
        }
        assert_eq!(went, "jjjjjAjj");
        // Two of bulk are with the disk: the third waits for one of them.
        for _ in 0..20 {
            turns.end(Class::Awaited);
            assert_eq!(all(&mut turns), "j");
        }
        turns.end(Class::Bulk(BLOCK));
        assert_eq!(all(&mut turns), "A");
    }

    #[test]
    fn what_is_larger_than_all_that_may_go_goes_alone() {
        let mut turns = Turns::new(8);
        turns.enter('A', Class::Bulk(5 * BLOCK));
        turns.enter('B', Class::Bulk(BLOCK));
        assert_eq!(all(&mut turns), "A");
        turns.end(Class::Bulk(5 * BLOCK));
        assert_eq!(all(&mut turns), "B");
        turns.end(Class::Bulk(BLOCK));
        assert_eq!((turns.in_flight_count(), turns.waiting_count()), (0, 0));
    }

    #[test]
    fn no_more_than_so_many_parts_are_with_the_disk() {
        let mut turns = Turns::new(3);
        ('a'..='e').for_each(|part| turns.enter(part, Class::Awaited));
        turns.enter('A', Class::Bulk(1));
        assert_eq!(all(&mut turns), "Aab");
        turns.end(Class::Awaited);
        assert_eq!(all(&mut turns), "c");
    }
}
