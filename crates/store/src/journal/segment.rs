//! One segment as it is written: what waits, the chain, flushes in flight.
//!
//! Invariants
//! - What waits lies in batches, each of which becomes a flush as it is: no byte moves when one is taken, however much waits.
//! - Records are chained in the order of `push`; flushes take them in that order and end between two.
//! - What was pushed fits the half, however it is cut into flushes (`used_with`).
//! - `flushed` follows the flushes that have ended *in order*: it is a prefix.

use std::collections::VecDeque;

use data::checksum::crc32c;
use types::{Lsn, SECTOR_SIZE};

use super::{Flush, FlushId, Part};
use crate::format::{
    HEADER_SECTORS, PART_HEADER_SIZE, RECORD_ALIGN, RECORD_HEADER_SIZE, RECORD_SIZE_MAX,
    RecordHeader, RecordKind, SECTOR, SegmentHeader, encode_part,
};

/// A flush takes records until it holds this many bytes; the last one may go beyond.
pub const FLUSH_SIZE_MAX: usize = 1 << 20;
/// Memory of a flush beyond this size is not kept.
const SPARE_SIZE_MAX: usize = 4 << 20;
/// As many as may be on their way, and one that is filled, of two segments.
const SPARE_COUNT: usize = 2 * (super::FLIGHT_COUNT_MAX + 1);
/// Bytes that a record with parts of these lengths takes, alignment apart.
pub fn record_size(lengths: impl IntoIterator<Item = usize>) -> usize {
    lengths.into_iter().fold(RECORD_HEADER_SIZE, |sum, length| {
        sum + PART_HEADER_SIZE + length
    })
}

/// Memory that flushes no longer need, for the batches that follow: it has been touched already.
#[derive(Debug, Default)]
pub(super) struct Spares(Vec<Vec<u8>>);

impl Spares {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    pub(super) fn keep(&mut self, mut bytes: Vec<u8>) {
        if self.0.len() < SPARE_COUNT && (1..=SPARE_SIZE_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            self.0.push(bytes);
        }
    }
}

/// Records of one flush to be. Of all but the last of a segment `FLUSH_SIZE_MAX` bytes or more.
#[derive(Debug)]
struct Batch {
    bytes: Vec<u8>,
    lsn: Lsn,
    has_end: bool,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    id: FlushId,
    lsn: Lsn,
    has_end: bool,
    is_done: bool,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) half: u8,
    pub(super) header: SegmentHeader,
    tag: u64,
    chain: u32,
    batches: VecDeque<Batch>,
    /// Bytes in them.
    pending: usize,
    /// Sector of the half that the next flush begins at; 0 until the header is out.
    next_sector: u64,
    in_flight: VecDeque<InFlight>,
    /// Last operation durable in this segment.
    pub(super) flushed: Lsn,
    pub(super) last: Lsn,
    is_end_appended: bool,
    pub(super) is_end_durable: bool,
    /// Bytes used when the end was appended.
    pub(super) base_used: u64,
}

impl Segment {
    pub(super) fn new(half: u8, header: SegmentHeader) -> Self {
        Self {
            half,
            header,
            tag: header.tag(),
            chain: header.chain(),
            batches: VecDeque::new(),
            pending: 0,
            next_sector: 0,
            in_flight: VecDeque::new(),
            flushed: header.base,
            last: header.base,
            is_end_appended: false,
            is_end_durable: false,
            base_used: 0,
        }
    }

    /// Bytes that no flush has taken yet.
    pub(super) fn pending_size(&self) -> usize {
        self.pending
    }

    /// Bytes that are or will be taken when `more` bytes are appended, worst case of padding. Every
    /// flush but the last holds `FLUSH_SIZE_MAX` or more and wastes less than a sector, so taking a
    /// flush never makes this larger.
    pub(super) fn used_with(&self, more: usize) -> u64 {
        let pending = (self.pending + more.next_multiple_of(RECORD_ALIGN)) as u64;
        let padding = match pending {
            0 => 0,
            some => (some / FLUSH_SIZE_MAX as u64 + 1) * SECTOR_SIZE,
        };
        self.next_sector.max(HEADER_SECTORS) * SECTOR_SIZE + pending + padding
    }

    /// `more` bytes fit, and the end record where it is not yet appended: it may need a flush of its own.
    pub(super) fn fits(&self, more: usize) -> bool {
        let end = if self.is_end_appended {
            0
        } else {
            2 * SECTOR_SIZE
        };
        self.used_with(more) + end <= self.header.area.half_sectors() * SECTOR_SIZE
    }

    /// `spares`: memory for a batch that begins.
    pub(super) fn push(
        &mut self,
        kind: RecordKind,
        lsn: Lsn,
        durable: Lsn,
        parts: &[Part<'_>],
        spares: &mut Spares,
    ) {
        let length = record_size(parts.iter().map(|p| p.bytes.len()));
        assert!(length <= RECORD_SIZE_MAX);
        assert!(self.is_end_appended || kind != RecordKind::End || self.fits(0));
        assert!(kind == RecordKind::End || self.fits(length));
        assert_eq!(
            lsn.0,
            self.last.0 + u64::from(kind == RecordKind::Operation)
        );
        let is_full = |batch: &Batch| batch.bytes.len() >= FLUSH_SIZE_MAX;
        if self.batches.back().is_none_or(is_full) {
            self.batches.push_back(Batch {
                bytes: spares.take(),
                lsn,
                has_end: false,
            });
        }
        let batch = self.batches.back_mut().expect("one is there now");
        let begin = batch.bytes.len();
        batch.bytes.resize(begin + RECORD_HEADER_SIZE, 0);
        for part in parts {
            encode_part(part.key, part.epoch, part.bytes, &mut batch.bytes);
        }
        let header = RecordHeader {
            length,
            lsn,
            tag: self.tag,
            durable,
            kind,
            part_count: u16::try_from(parts.len()).expect("a record has few parts"),
            previous: self.chain,
            body_crc: crc32c(&batch.bytes[begin + RECORD_HEADER_SIZE..]),
            crc: 0,
        };
        assert_eq!(batch.bytes.len() - begin, length);
        self.chain = header.encode_over(&mut batch.bytes[begin..]);
        let end = batch.bytes.len().next_multiple_of(RECORD_ALIGN);
        batch.bytes.resize(end, 0);
        self.pending += end - begin;
        batch.lsn = lsn;
        self.last = lsn;
        if kind == RecordKind::End {
            batch.has_end = true;
            self.is_end_appended = true;
            self.base_used = self.used_with(0);
        }
    }

    /// The next write, if one is due and allowed.
    pub(super) fn take_flush(&mut self, id: FlushId, flight_count_max: usize) -> Option<Flush> {
        if self.in_flight.len() >= flight_count_max {
            return None;
        }
        let Batch {
            mut bytes,
            lsn,
            has_end,
        } = self.batches.pop_front()?;
        self.pending -= bytes.len();
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        if self.next_sector == 0 {
            // The header goes out in one write with the first records: until it is there, the bytes
            // behind it mean nothing.
            let mut with_header = Vec::with_capacity(bytes.len() + 2 * SECTOR);
            for _ in 0..HEADER_SECTORS {
                self.header.encode_to(&mut with_header);
            }
            with_header.extend_from_slice(&bytes);
            bytes = with_header;
        }
        let at = self.header.area.at(self.half, self.next_sector);
        self.next_sector += (bytes.len() / SECTOR) as u64;
        assert!(self.next_sector <= self.header.area.half_sectors());
        self.in_flight.push_back(InFlight {
            id,
            lsn,
            has_end,
            is_done: false,
        });
        Some(Flush {
            id,
            at,
            bytes,
            last_lsn: lsn,
            needs_flush: true,
        })
    }

    /// True when the flush was this segment's.
    pub(super) fn on_flushed(&mut self, id: FlushId) -> bool {
        let Some(flight) = self.in_flight.iter_mut().find(|f| f.id == id) else {
            return false;
        };
        assert!(!flight.is_done);
        flight.is_done = true;
        while let Some(flight) = self.in_flight.front().copied()
            && flight.is_done
        {
            self.flushed = flight.lsn;
            self.is_end_durable |= flight.has_end;
            self.in_flight.pop_front();
        }
        true
    }

    /// Writes of this segment that have not ended.
    pub(super) fn unfinished(&self) -> Vec<FlushId> {
        let flights = self.in_flight.iter();
        flights.filter(|f| !f.is_done).map(|f| f.id).collect()
    }

    /// Asserts the invariants.
    pub(super) fn check(&self, flight_count_max: usize) {
        assert!(self.flushed <= self.last);
        assert!(self.in_flight.len() <= flight_count_max);
        assert!(self.fits(0));
        let waiting = self.batches.iter().map(|batch| batch.bytes.len());
        assert_eq!(self.pending, waiting.sum::<usize>());
        let open = self.batches.len().saturating_sub(1);
        let closed = self.batches.iter().take(open);
        assert!(closed.into_iter().all(|b| b.bytes.len() >= FLUSH_SIZE_MAX));
    }
}
