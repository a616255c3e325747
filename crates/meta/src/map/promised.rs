//! The ranges of a file that space is promised to.

use types::Promised;
use types::extent::{Checksums, Extent};

use super::{FileMap, SECTOR_END_MAX, SECTOR_SIZE};

/// Counts of promised sectors, and of bytes of pieces in them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Promises {
    total: u64,
    pub(super) unmapped: u64,
    unpaid: u64,
    pub(super) piece_bytes: u64,
}

impl FileMap {
    /// What is promised of it.
    pub fn promised(&self) -> Promised {
        Promised {
            unpaid: self.promises.unpaid,
            total: self.promises.total,
        }
    }

    /// The promised ranges that share a sector with `first..last`, clipped to it: first sector and end of each.
    pub fn promised_in(&self, first: u64, last: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let before = self.promised.range(..first).next_back();
        let from = before.filter(|(_, end)| **end > first);
        let from = from.map_or(first, |(begin, _)| *begin);
        let ranges = self.promised.range(from..last.max(from));
        ranges.map(move |(begin, end)| ((*begin).max(first), (*end).min(last)))
    }

    /// Where promised ranges begin, in order.
    pub(crate) fn promise_begins(&self) -> impl Iterator<Item = u64> + '_ {
        self.promised.keys().copied()
    }

    /// End of the promised range that begins at this sector.
    pub(crate) fn promise_from(&self, first: u64) -> Option<u64> {
        self.promised.get(&first).copied()
    }

    pub(super) fn is_promised(&self, sector: u64) -> bool {
        self.promised_in(sector, sector + 1).next().is_some()
    }

    /// What promising file sectors `first..last` adds to what is promised.
    pub fn promise_adds(&self, first: u64, last: u64) -> Promised {
        let mut adds = Promised::default();
        for (from, to) in self.unpromised_in(first, last) {
            adds.total += to - from;
            adds.unpaid += to - from - self.mapped_in(from, to).1;
        }
        adds
    }

    /// The parts of `first..last` that are not promised.
    fn unpromised_in(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut parts = Vec::new();
        let mut at = first;
        for (from, to) in self.promised_in(first, last) {
            parts.push((at, from));
            at = to;
        }
        parts.push((at, last));
        parts.retain(|(from, to)| from < to);
        parts
    }

    /// File sectors of `first..last` that extents map, and those that extents with inline checksums map.
    fn mapped_in(&self, first: u64, last: u64) -> (u64, u64) {
        let mut counts = (0, 0);
        for extent in self.extents_in(first, last) {
            let count = extent.file_sector_end().min(last) - extent.file_sector.max(first);
            counts.0 += count;
            counts.1 += if is_inline(extent) { count } else { 0 };
        }
        counts
    }

    /// File sectors `first..last` are promised from now on.
    pub fn promise(&mut self, first: u64, last: u64) {
        self.version += 1;
        self.add_promise(first, last);
    }

    /// Bytes of pieces in file sectors `first..last`.
    fn piece_bytes_in(&self, first: u64, last: u64) -> u64 {
        let pieces = self.pieces_in(
            first.saturating_mul(SECTOR_SIZE),
            last.saturating_mul(SECTOR_SIZE),
        );
        pieces.map(|(_, bytes)| bytes.len() as u64).sum()
    }

    fn add_promise(&mut self, first: u64, last: u64) {
        for (from, to) in self.unpromised_in(first, last) {
            let (mapped, inline) = self.mapped_in(from, to);
            self.promises.piece_bytes += self.piece_bytes_in(from, to);
            self.promises.total += to - from;
            self.promises.unmapped += to - from - mapped;
            self.promises.unpaid += to - from - inline;
        }
        // Joined with what it touches.
        let touched: Vec<(u64, u64)> = self
            .promised_in(first.saturating_sub(1), last + 1)
            .map(|(from, _)| from)
            .filter_map(|from| self.promised.range(..=from).next_back())
            .map(|(begin, end)| (*begin, *end))
            .collect();
        let begin = touched
            .first()
            .map_or(first, |(begin, _)| first.min(*begin));
        let end = touched.last().map_or(last, |(_, end)| last.max(*end));
        if touched == [(begin, end)] {
            return;
        }
        for (begin, _) in touched {
            self.promised.remove(&begin);
        }
        self.promised.insert(begin, end);
    }

    /// File sectors `first..last` are promised no more.
    pub(super) fn take_promise_back(&mut self, first: u64, last: u64) {
        if first >= last {
            return;
        }
        let parts: Vec<(u64, u64)> = self.promised_in(first, last).collect();
        for (from, to) in parts {
            let (mapped, inline) = self.mapped_in(from, to);
            self.promises.piece_bytes -= self.piece_bytes_in(from, to);
            self.promises.total -= to - from;
            self.promises.unmapped -= to - from - mapped;
            self.promises.unpaid -= to - from - inline;
            let whole = self.promised.range(..=from).next_back();
            let (begin, end) = whole.map(|(b, e)| (*b, *e)).expect("just listed");
            self.promised.remove(&begin);
            if begin < from {
                self.promised.insert(begin, from);
            }
            if to < end {
                self.promised.insert(to, end);
            }
        }
    }

    /// An extent maps file sectors `first..last` from now on (`is_mapped`), or no more.
    pub(super) fn note_mapped(
        &mut self,
        (first, last): (u64, u64),
        is_inline: bool,
        is_mapped: bool,
    ) {
        let promised = self.promised_in(first, last);
        let count: u64 = promised.map(|(from, to)| to - from).sum();
        let unpaid = if is_inline { count } else { 0 };
        if is_mapped {
            self.promises.unmapped -= count;
            self.promises.unpaid -= unpaid;
        } else {
            self.promises.unmapped += count;
            self.promises.unpaid += unpaid;
        }
    }

    /// Adds a promised range as it is. False: it is none, or not behind all that are there and apart from them.
    pub(crate) fn load_promise(&mut self, first: u64, last: u64) -> bool {
        let end = self.promised.last_key_value().map(|(_, end)| *end);
        let fits = first < last && last <= SECTOR_END_MAX && end.is_none_or(|end| end < first);
        if fits {
            self.add_promise(first, last);
        }
        fits
    }

    pub(super) fn check_promises(&self) {
        let mut promises = Promises::default();
        let mut before = None;
        for (begin, end) in self.promised.iter() {
            assert!(
                begin < end && before < Some(*begin),
                "promised ranges are apart"
            );
            before = Some(*end);
            let (mapped, inline) = self.mapped_in(*begin, *end);
            promises.total += end - begin;
            promises.unmapped += end - begin - mapped;
            promises.unpaid += end - begin - inline;
            promises.piece_bytes += self.piece_bytes_in(*begin, *end);
        }
        assert_eq!(promises, self.promises);
    }
}

pub(super) const fn is_inline(extent: &Extent) -> bool {
    matches!(extent.checksums, Checksums::Inline { .. })
}
