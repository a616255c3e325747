//! Whose turn it is at a disk.
//!
//! A disk serves what it has in the order in which it came, more or less: a journal record that an fsync waits for, or a read, would
//! stand behind all that is being written back. So of large writes that nobody asked to be durable a disk has a few at a time, and the
//! others wait here: enough to keep it busy, and little to wait for.
//!
//! Invariants
//! - At most `count_max` parts are with the disk.
//! - Of bulk at most `BULK_SIZE_MAX` bytes are with it, or one part, whatever its size.
//! - Each kind goes in the order in which it came. Bulk goes after all others, but one part of it is always under way.

use std::collections::VecDeque;

/// Bytes of bulk that a disk has at a time: some milliseconds of a slow one, and more than a fast one does between an end and what
/// follows it.
const BULK_SIZE_MAX: u64 = 2 << 20;

/// Parts that wait, and a count of those that do not.
#[derive(Debug)]
pub(super) struct Turns<T> {
    count_max: usize,
    in_flight: usize,
    bulk_in_flight: u64,
    waiting: VecDeque<T>,
    bulk: VecDeque<(u64, T)>,
}

impl<T> Turns<T> {
    pub(super) const fn new(count_max: usize) -> Self {
        Self {
            count_max,
            in_flight: 0,
            bulk_in_flight: 0,
            waiting: VecDeque::new(),
            bulk: VecDeque::new(),
        }
    }

    pub(super) const fn in_flight_count(&self) -> usize {
        self.in_flight
    }

    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len() + self.bulk.len()
    }

    /// Takes a part; `bulk`: its bytes if it is bulk, else 0. `next` gives it when its turn has come.
    pub(super) fn enter(&mut self, part: T, bulk: u64) {
        match bulk {
            0 => self.waiting.push_back(part),
            _ => self.bulk.push_back((bulk, part)),
        }
    }

    /// A part that `next` gave has ended, with the same `bulk`.
    pub(super) const fn end(&mut self, bulk: u64) {
        self.in_flight -= 1;
        self.bulk_in_flight -= bulk;
    }

    /// A part that goes to the disk now: ask until there is none.
    pub(super) fn next(&mut self) -> Option<T> {
        if self.in_flight == self.count_max {
            return None;
        }
        let is_idle = self.bulk_in_flight == 0;
        let bulk_goes = match self.bulk.front() {
            None => false,
            Some(_) if is_idle => true,
            Some((size, _)) => {
                self.waiting.is_empty() && self.bulk_in_flight + size <= BULK_SIZE_MAX
            }
        };
        let part = match bulk_goes.then(|| self.bulk.pop_front()).flatten() {
            Some((size, part)) => {
                self.bulk_in_flight += size;
                part
            }
            None => self.waiting.pop_front()?,
        };
        self.in_flight += 1;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn all(turns: &mut Turns<char>) -> String {
        std::iter::from_fn(|| turns.next()).collect()
    }

    #[test]
    fn a_few_of_bulk_are_with_the_disk_and_others_pass_them() {
        let mut turns = Turns::new(8);
        for part in 'A'..='D' {
            turns.enter(part, MIB);
        }
        assert_eq!(all(&mut turns), "AB");
        turns.enter('j', 0);
        turns.enter('k', 0);
        assert_eq!(all(&mut turns), "jk");
        turns.end(0);
        assert_eq!(all(&mut turns), "");
        turns.end(MIB);
        assert_eq!(all(&mut turns), "C");
        assert_eq!((turns.in_flight_count(), turns.waiting_count()), (3, 1));
    }

    #[test]
    fn nobody_starves() {
        let mut turns = Turns::new(2);
        turns.enter('j', 0);
        turns.enter('A', MIB);
        turns.enter('B', MIB);
        turns.enter('k', 0);
        turns.enter('l', 0);
        // Of bulk one is always under way; others go first otherwise.
        assert_eq!(all(&mut turns), "Aj");
        turns.end(0);
        assert_eq!(all(&mut turns), "k");
        turns.end(MIB);
        assert_eq!(all(&mut turns), "B");
        turns.end(0);
        assert_eq!(all(&mut turns), "l");
    }

    #[test]
    fn what_is_larger_than_all_that_may_go_goes_alone() {
        let mut turns = Turns::new(8);
        turns.enter('A', 5 * MIB);
        turns.enter('B', MIB);
        assert_eq!(all(&mut turns), "A");
        turns.end(5 * MIB);
        assert_eq!(all(&mut turns), "B");
        turns.end(MIB);
        assert_eq!((turns.in_flight_count(), turns.waiting_count()), (0, 0));
    }

    #[test]
    fn no_more_than_so_many_parts_are_with_the_disk() {
        let mut turns = Turns::new(3);
        ('a'..='e').for_each(|part| turns.enter(part, 0));
        turns.enter('A', 1);
        assert_eq!(all(&mut turns), "Aab");
        turns.end(0);
        assert_eq!(all(&mut turns), "c");
    }
}
