//! One level of a tree that grows from left to right: up to two pages of entries that are not sealed yet.
//!
//! Invariants
//! - Entries ascend. What lies before `full` fits one page, so does what lies behind it, up to `second`.
//! - A page is given out when two are full, or at a boundary behind which old pages are shared. So at a boundary the
//!   last two pages can be cut where it is best, and a page of a quarter or less comes only at the end of a level.
//! - Memory: keys are held unshortened, at most `RAW_FACTOR` times the size of each page.

use super::page::{PageRef, REFERENCE_SIZE, Seal, common_prefix, page_size, seal};

/// A page holds keys and values of at most so many times its size, however well prefixes shorten them.
const RAW_FACTOR: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where its key begins in `bytes`; the value follows it, then the next entry.
    begin: usize,
    key: usize,
    /// Put by this apply, not taken over from the old tree.
    is_new: bool,
}

/// The page that is being filled.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    begin: usize,
    count: usize,
    prefix: usize,
    raw: usize,
}

/// One level.
#[derive(Debug)]
pub(super) struct Level {
    size: usize,
    entry_count_max: usize,
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    fill: Fill,
    full: Option<usize>,
    second: Option<usize>,
}

impl Level {
    /// Pages have `size` bytes, and at most `entry_count_max` entries.
    pub(super) fn new(size: usize, entry_count_max: usize) -> Self {
        Self {
            size,
            entry_count_max,
            bytes: Vec::new(),
            entries: Vec::new(),
            fill: Fill::default(),
            full: None,
            second: None,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Two pages are full: `take` the first before anything more is pushed.
    pub(super) const fn is_due(&self) -> bool {
        self.second.is_some()
    }

    /// It holds so little that it should not become a page, unless nothing follows.
    pub(super) fn is_underfull(&self) -> bool {
        self.full.is_none() && self.weight(0, self.count()) <= self.size / 4
    }

    pub(super) fn push(&mut self, key: &[u8], value: &[u8], is_new: bool) {
        assert!(!self.is_due());
        let raw = key.len() + value.len();
        let fill = self.fill;
        let prefix = match self.entries.get(fill.begin) {
            Some(_) => {
                let first = &self.key(fill.begin)[..fill.prefix];
                common_prefix(first, key)
            }
            None => key.len(),
        };
        let count = fill.count + 1;
        let fits = count <= self.entry_count_max
            && page_size(count, prefix, fill.raw + raw) <= self.size
            && fill.raw + raw <= self.size * RAW_FACTOR;
        if fits {
            self.fill = Fill {
                begin: fill.begin,
                count,
                prefix,
                raw: fill.raw + raw,
            };
        } else {
            if self.full.is_none() {
                self.full = Some(fill.count);
            } else {
                self.second = Some(fill.count);
            }
            self.fill = Fill {
                begin: fill.begin + fill.count,
                count: 1,
                prefix: key.len(),
                raw,
            };
            assert!(page_size(1, key.len(), raw) <= self.size);
        }
        self.entries.push(Entry {
            begin: self.bytes.len(),
            key: key.len(),
            is_new,
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    pub(super) fn key(&self, index: usize) -> &[u8] {
        let entry = &self.entries[index];
        &self.bytes[entry.begin..entry.begin + entry.key]
    }

    fn end(&self, index: usize) -> usize {
        (self.entries.get(index + 1)).map_or(self.bytes.len(), |next| next.begin)
    }

    pub(super) fn value(&self, index: usize) -> &[u8] {
        let entry = &self.entries[index];
        &self.bytes[entry.begin + entry.key..self.end(index)]
    }

    /// Bytes of a page of the entries from `begin` to `end`.
    fn page_size(&self, begin: usize, end: usize) -> usize {
        let raw = self.end(end - 1) - self.entries[begin].begin;
        let prefix = common_prefix(self.key(begin), self.key(end - 1));
        page_size(end - begin, prefix, raw)
    }

    /// How full a page of these entries is, in bytes of `size`; by their number, too, where that is the limit.
    fn weight(&self, begin: usize, end: usize) -> usize {
        let by_count = (end - begin) * self.size / self.entry_count_max;
        self.page_size(begin, end).max(by_count)
    }

    /// How many entries the next page should have. `is_last`: nothing follows in the tree.
    ///
    /// Two pages at a boundary become even ones, so that neither is soon too empty or too full. Where the second page
    /// has new entries only, somebody appends there (entries of a file that grows, names of a directory that is
    /// filled in order): then the first stays as full as it can.
    pub(super) fn cut(&self, is_last: bool) -> usize {
        let count = self.count();
        let Some(full) = self.full else { return count };
        if self.is_due() || is_last {
            return full;
        }
        let is_append = self.entries[full..].iter().all(|entry| entry.is_new);
        let mut at = full;
        while at > 1 {
            let right = self.weight(at, count);
            let is_enough = if is_append {
                right > self.size / 4
            } else {
                right >= self.weight(0, at)
            };
            if is_enough || self.weight(at - 1, count) > self.size {
                break;
            }
            at -= 1;
        }
        at
    }

    /// The bytes and the CRC of a page of the first `count` entries.
    pub(super) fn seal(&self, head: &Seal, count: usize) -> (Vec<u8>, u32) {
        seal(head, (0..count).map(|i| (self.key(i), self.value(i))))
    }

    /// Drops the first `count` entries, which have become a page.
    pub(super) fn take(&mut self, count: usize) {
        let begin = (self.entries.get(count)).map_or(self.bytes.len(), |entry| entry.begin);
        self.bytes.drain(..begin);
        self.entries.drain(..count);
        for entry in &mut self.entries {
            entry.begin -= begin;
        }
        if self.full == Some(count) {
            self.full = self.second.take();
            self.fill.begin -= count;
            return;
        }
        // Cut elsewhere: the rest, which fits a page, is being filled.
        let left = self.count();
        self.full = None;
        self.fill = Fill::default();
        if left > 0 {
            self.fill = Fill {
                begin: 0,
                count: left,
                prefix: common_prefix(self.key(0), self.key(left - 1)),
                raw: self.bytes.len(),
            };
        }
    }

    /// The newest page number among the first `count` children: those with numbers from `first` on.
    pub(super) fn newest_child(&self, count: usize, first: u64) -> Option<u64> {
        let number = |index| self.child(index).number;
        (0..count).map(number).filter(|n| *n >= first).max()
    }

    /// The page reference that entry `index` of an inner level holds.
    pub(super) fn child(&self, index: usize) -> PageRef {
        PageRef::decode(self.value(index)).expect("only references are pushed to inner levels")
    }

    /// A copy of a child lies elsewhere than was thought.
    pub(super) fn patch(&mut self, child: &PageRef) {
        let index = (0..self.count())
            .rev()
            .find(|index| self.child(*index).number == child.number)
            .expect("a page is sealed when all its children are written");
        let end = self.end(index);
        self.bytes[end - REFERENCE_SIZE..end].copy_from_slice(&child.encode());
    }
}
