//! Appending to the journal: group commit, segment switch, back-pressure.
//!
//! Invariants
//! - `durable_lsn` only names operations whose record, and every record before it in its segment, is
//!   behind the device's cache, in the segment that recovery would choose.
//! - What was appended always fits its segment: room is checked before, padding included.
//! - A half is written again only when every write to it has ended and its successor is complete.
//! - After a failed flush the journal is poisoned: it refuses everything until recovery.
//!
//! Life cycle
//! 1. `Journal::start` (after recovery, always): a new segment without an older one of ours. The owner
//!    writes its whole state with `append_snapshot`, then `end_snapshot`; operations are accepted from
//!    then on.
//! 2. Running: `append`, `take_flush`, `on_flushed`.
//! 3. `needs_snapshot`: `begin_snapshot`, `append_snapshot` shard by shard, each under its shard's
//!    lock, operations going on (into both segments), `end_snapshot`. When the end is durable the old
//!    half is marked as retired and free.
//!
//! The end record is appended by `take_flush`, not by `end_snapshot`, once little of the snapshot is
//! left to write: operations behind the end wait for all before it.
//!
//! What this deliberately does not do: replicas of the journal (they come with replication), and
//! compaction (the overlay's state is the compaction).

mod segment;

use std::collections::BTreeSet;

use types::{Epoch, FsId, Incarnation, Location, Lsn, NodeId, SECTOR_SIZE};

use crate::format::{
    Area, HEADER_SECTORS, PartKey, RECORD_SIZE_MAX, RecordKind, SECTOR, SegmentHeader,
};
use crate::recovery::Recovered;
pub use segment::{FLUSH_SIZE_MAX, record_size};
use segment::{Segment, Spares};

/// Flushes of one segment that may be in flight.
pub const FLIGHT_COUNT_MAX: usize = 4;
/// The end record is appended when at most this much of the snapshot is not yet submitted.
const END_BACKLOG_MAX: usize = 256 << 10;
/// Bytes that `has_room` adds for headers.
const HEADER_SLACK: usize = 512;

/// Whose journal, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// File system.
    pub fs: FsId,
    /// Owner node.
    pub owner: NodeId,
    /// Life of this daemon; 128 random bits, never used before.
    pub incarnation: Incarnation,
    /// Where it lies.
    pub area: Area,
    /// Flushes in flight per segment, 1 to `FLIGHT_COUNT_MAX`.
    pub flight_count_max: usize,
}

/// A part of a record: one shard's or the space slice's mutations, encoded.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Whose.
    pub key: PartKey,
    /// Epoch of the shard; 0 for the space slice.
    pub epoch: Epoch,
    /// The mutations.
    pub bytes: &'a [u8],
}

/// Whether an operation may use the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// May be refused: create, write, setxattr...
    Normal,
    /// Frees something or ends something begun (unlink, truncate, outcome of a prepared transaction):
    /// may use the reserve.
    Urgent,
    /// Makes room for what makes the overlay smaller, and adds next to nothing to it: regions for the pages of checkpoints.
    Rescue,
}

/// What the overlay grows to must fit a segment of `size` and leave room to work in. What could never be written as a first snapshot is
/// never accepted: nobody could start with it.
const fn overlay_limit(size: u64, urgency: Urgency) -> u64 {
    let parts = match urgency {
        Urgency::Normal => 10,
        Urgency::Urgent => 14,
        Urgency::Rescue => 15,
    };
    size / 16 * parts
}

/// Why the journal does not take a record. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// No room: answer ENOSPC, or wait for the snapshot that is under way.
    #[error("the journal is full")]
    Full,
    /// The state that recovery found is not yet written and ended (`end_snapshot`).
    #[error("the journal has not been started")]
    Starting,
    /// A flush failed: give the shards up, recover.
    #[error("the journal failed to write and must be recovered")]
    Poisoned,
}

/// Names a flush.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FlushId(pub u64);

/// The disk did not confirm a flush; what it wrote is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushFailed;

/// One write to the NSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Passed back to `on_flushed`.
    pub id: FlushId,
    /// First sector.
    pub at: Location,
    /// Whole sectors.
    pub bytes: Vec<u8>,
    /// Last operation in it, or before it.
    pub last_lsn: Lsn,
    /// Durable means behind the device's cache: write with FUA, or flush the device afterwards, where
    /// the NSD has a volatile cache.
    pub needs_flush: bool,
}

/// A half on its way to being free.
#[derive(Debug)]
struct Leaving {
    half: u8,
    /// Writes into it that have not ended.
    in_flight: Vec<FlushId>,
    /// The header that marks it, when the successor is complete and the mark is not yet submitted.
    mark: Option<SegmentHeader>,
    /// The mark in flight.
    marking: Option<FlushId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// One segment.
    Running,
    /// A snapshot is being appended.
    Snapshot,
    /// All of it is appended; the end record follows.
    Ending,
    /// The end record is appended and not yet durable.
    Ended,
}

/// Exact counts of what a journal did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Operations appended.
    pub operations: u64,
    /// Bytes of their records.
    pub operation_bytes: u64,
    /// Bytes of snapshot records.
    pub snapshot_bytes: u64,
    /// Snapshots completed.
    pub snapshots: u64,
    /// Writes submitted.
    pub flushes: u64,
    /// Bytes of those writes: the journal's share of the disk's work.
    pub flushed_bytes: u64,
}

/// The journal of one owner node and file system.
#[derive(Debug)]
pub struct Journal {
    config: Config,
    phase: Phase,
    /// What recovery would read; none while starting.
    active: Option<Segment>,
    /// What is being filled with a snapshot.
    next: Option<Segment>,
    leaving: Option<Leaving>,
    last: Lsn,
    durable: Lsn,
    sequence: u64,
    flush_id: u64,
    /// As the caller measured it last, if it ever did.
    overlay_size: Option<u64>,
    /// Bytes of operations that were appended since it was measured last, and between that and the time before: who measures goes over
    /// all that changes meanwhile.
    unmeasured: [u64; 2],
    /// Bytes of the snapshot that are still to come, as estimated at its begin.
    snapshot_left: u64,
    /// Whose state the active segment holds.
    keys: BTreeSet<PartKey>,
    /// Whose state the snapshot holds.
    snapshot_keys: BTreeSet<PartKey>,
    is_poisoned: bool,
    /// Tests: there is no room for what is no more urgent than this.
    refuses: Option<Urgency>,
    /// Bytes of the active segment that must be used before a snapshot that did not fit is tried again.
    retry_at: u64,
    /// Memory of flushes that have ended.
    spares: Spares,
    counters: Counters,
}

impl Journal {
    /// What must be written to an area, in this order and durably, before its first use: zeros over the
    /// places of headers, then a segment without any state. So an area that is in use is never blank,
    /// and one that is has lost what was there.
    pub fn format(config: Config) -> Vec<(Location, Vec<u8>)> {
        let zeros = vec![0; usize::try_from(HEADER_SECTORS).expect("two") * SECTOR];
        let place = |half| (config.area.at(half, 0), zeros.clone());
        let mut writes = vec![place(0), place(1)];
        let mut journal = Self::start(config, &Recovered::nothing());
        journal.end_snapshot();
        while let Some(flush) = journal.take_flush() {
            writes.push((flush.at, flush.bytes));
            journal.on_flushed(flush.id, Ok(()));
        }
        assert!(journal.is_serving(), "the first segment is complete");
        writes
    }

    /// A journal that goes on where recovery ended, in a new segment. The caller appends the whole
    /// recovered state (`append_snapshot`), then calls `end_snapshot`. No write of an earlier instance
    /// may be in flight any more (the driver makes sure: DESIGN.md section 4, quarantine).
    pub fn start(config: Config, recovered: &Recovered) -> Self {
        assert!((1..=FLIGHT_COUNT_MAX).contains(&config.flight_count_max));
        let header = SegmentHeader {
            is_retired: false,
            fs: config.fs,
            owner: config.owner,
            incarnation: config.incarnation,
            sequence: recovered.next_sequence,
            base: recovered.last_lsn,
            previous: recovered.previous,
            replayed_to: recovered.last_lsn,
            area: config.area,
        };
        Self {
            config,
            phase: Phase::Snapshot,
            active: None,
            next: Some(Segment::new(recovered.next_half, header)),
            leaving: None,
            last: recovered.last_lsn,
            durable: recovered.last_lsn,
            sequence: recovered.next_sequence,
            flush_id: 0,
            spares: Spares::default(),
            overlay_size: None,
            unmeasured: [0; 2],
            snapshot_left: 0,
            keys: recovered.keys.clone(),
            snapshot_keys: BTreeSet::new(),
            is_poisoned: false,
            refuses: None,
            retry_at: 0,
            counters: Counters::default(),
        }
    }

    /// What the journal did since it was started.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Operations are accepted.
    pub fn is_serving(&self) -> bool {
        !self.is_poisoned && (self.active.is_some() || self.phase == Phase::Ended)
    }

    /// A flush failed; nothing is accepted any more.
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned
    }

    /// LSN of the last operation appended.
    pub fn last_lsn(&self) -> Lsn {
        self.last
    }

    /// Everything up to this LSN survives a crash.
    pub fn durable_lsn(&self) -> Lsn {
        self.durable
    }

    /// The caller says how many bytes a snapshot of all it holds would take; asked by `has_room`.
    pub fn set_overlay_size(&mut self, bytes: u64) {
        self.overlay_size = Some(bytes);
        self.unmeasured = [0, self.unmeasured[0]];
    }

    /// What a snapshot takes at the most: each operation since it was measured may have added all of its bytes.
    pub fn overlay_bound(&self) -> u64 {
        self.overlay_size
            .map_or(0, |size| size + self.unmeasured.iter().sum::<u64>())
    }

    /// There was room for what is so urgent when it was measured last, and may not be now: the next measurement tells, and whoever needs
    /// room sees then that a checkpoint is due.
    pub fn is_room_unmeasured(&self, urgency: Urgency) -> bool {
        let limit = overlay_limit(self.segment_size(), urgency);
        let is_unmeasured = self.unmeasured != [0; 2] && self.overlay_size() <= limit;
        // With what is refused now.
        is_unmeasured && self.overlay_bound() > limit / 8 * 7
    }

    /// For tests of what a refusal does: until it is said otherwise there is no room for what is no more urgent than this.
    pub fn refuse(&mut self, most_urgent: Option<Urgency>) {
        self.refuses = most_urgent;
    }

    /// An operation whose parts take `bytes` would be accepted by `append`. Asked before the operation
    /// executes, under the same lock as its append.
    pub fn has_room(&self, bytes: usize, urgency: Urgency) -> bool {
        bytes + HEADER_SLACK <= RECORD_SIZE_MAX && self.has_room_in_all(bytes, 1, urgency)
    }

    /// As `has_room`, for parts of `bytes` in all that go to `record_count` records, one right after the other.
    pub fn has_room_in_all(&self, bytes: usize, record_count: usize, urgency: Urgency) -> bool {
        let bytes = bytes.saturating_add(record_count.saturating_mul(HEADER_SLACK));
        match (self.refuses, urgency) {
            (None, _) | (Some(Urgency::Normal), Urgency::Urgent | Urgency::Rescue) => {}
            (Some(Urgency::Urgent | Urgency::Rescue), _)
            | (Some(Urgency::Normal), Urgency::Normal) => return false,
        }
        if self.is_poisoned || bytes as u64 > self.config.area.segment_size() {
            return false;
        }
        let size = self.config.area.segment_size();
        let reserve = match urgency {
            Urgency::Normal => size / 16,
            Urgency::Urgent | Urgency::Rescue => 0,
        };
        let is_overlay_small = self.overlay_bound() + bytes as u64 <= overlay_limit(size, urgency);
        let fits = |segment: &Segment, kept: u64| {
            let kept = usize::try_from(kept.min(size)).expect("an area is far below 2^64 bytes");
            segment.fits(bytes + kept)
        };
        match self.phase {
            Phase::Running => {
                let active = self.active.as_ref().expect("running on a segment");
                is_overlay_small && fits(active, reserve)
            }
            Phase::Snapshot | Phase::Ending => {
                let next = self.next.as_ref().expect("a snapshot goes somewhere");
                self.active.as_ref().is_some_and(|active| {
                    is_overlay_small
                        && fits(active, reserve)
                        && fits(next, reserve + self.snapshot_left)
                })
            }
            Phase::Ended => {
                let next = self.next.as_ref().expect("a snapshot goes somewhere");
                is_overlay_small && fits(next, reserve)
            }
        }
    }

    /// Appends an operation; it is atomic, and durable when `durable_lsn` reaches the LSN returned.
    /// Called before the slices that it changed are unlocked, so that LSN order is execution order.
    pub fn append(&mut self, parts: &[Part<'_>]) -> Result<Lsn, Refused> {
        if self.is_poisoned {
            return Err(Refused::Poisoned);
        }
        if !self.is_serving() {
            return Err(Refused::Starting);
        }
        let length = record_size(parts.iter().map(|p| p.bytes.len()));
        let lsn = Lsn(self.last.0 + 1);
        let durable = self.durable;
        let to_active = self.phase != Phase::Ended;
        let to_next = self.phase != Phase::Running;
        let targets = [
            self.active.as_mut().filter(|_| to_active),
            self.next.as_mut().filter(|_| to_next),
        ];
        if length > RECORD_SIZE_MAX || targets.iter().flatten().any(|s| !s.fits(length)) {
            return Err(Refused::Full);
        }
        for segment in targets.into_iter().flatten() {
            segment.push(RecordKind::Operation, lsn, durable, parts, &mut self.spares);
        }
        for part in parts {
            // Between the snapshot and its end a key that the snapshot lacks would be lost.
            assert!(self.phase != Phase::Ending || self.snapshot_keys.contains(&part.key));
            self.keys.insert(part.key);
        }
        self.last = lsn;
        self.unmeasured[0] += length as u64;
        self.counters.operations += 1;
        self.counters.operation_bytes += length as u64;
        Ok(lsn)
    }

    /// An operation was executed that the journal refused: what the shards show is not what recovery would
    /// find. Nothing is accepted any more, as after a failed flush.
    pub fn give_up(&mut self) {
        self.is_poisoned = true;
    }

    /// Half of what the last snapshot left of the segment is used, and the other half is free:
    /// call `begin_snapshot`.
    pub fn needs_snapshot(&self) -> bool {
        let Some(active) = &self.active else {
            return false;
        };
        let size = self.config.area.half_sectors() * SECTOR_SIZE;
        let is_due = active.used_with(0) > active.base_used + (size - active.base_used) / 2;
        is_due && active.used_with(0) >= self.retry_at && self.can_begin_snapshot()
    }

    /// A snapshot would be of use though none is needed yet, and may begin: not so soon after one that did not fit.
    pub fn may_begin_snapshot(&self) -> bool {
        let used = self.active.as_ref().map(|active| active.used_with(0));
        used.is_some_and(|used| used >= self.retry_at) && self.can_begin_snapshot()
    }

    /// The last snapshot did not fit, and the next one is not tried yet.
    pub fn is_snapshot_held_back(&self) -> bool {
        let used = self.active.as_ref().map(|active| active.used_with(0));
        used.is_some_and(|used| used < self.retry_at)
    }

    /// The state has become smaller since a snapshot did not fit: it may be tried again.
    pub fn forget_abort(&mut self) {
        self.retry_at = 0;
    }

    /// Bytes of a half: what a segment has room for.
    pub fn segment_size(&self) -> u64 {
        self.config.area.segment_size()
    }

    /// Bytes that a snapshot of all the caller holds would take, as it said last.
    pub fn overlay_size(&self) -> u64 {
        self.overlay_size.unwrap_or(0)
    }

    /// Whose file system.
    pub fn fs(&self) -> FsId {
        self.config.fs
    }

    /// A snapshot may begin: none is under way, and the other half has no write in flight.
    pub fn can_begin_snapshot(&self) -> bool {
        !self.is_poisoned && self.phase == Phase::Running && self.leaving.is_none()
    }

    /// Begins a snapshot of about `size_estimate` bytes. Operations go on into both segments.
    pub fn begin_snapshot(&mut self, size_estimate: u64) {
        assert!(self.can_begin_snapshot());
        let active = self.active.as_ref().expect("running on a segment");
        self.sequence += 1;
        let header = SegmentHeader {
            sequence: self.sequence,
            base: self.last,
            previous: active.header.sequence,
            replayed_to: Lsn(u64::MAX),
            ..active.header
        };
        self.next = Some(Segment::new(1 - active.half, header));
        self.snapshot_left = size_estimate;
        self.snapshot_keys.clear();
        self.phase = Phase::Snapshot;
    }

    /// Appends a piece of the snapshot of one key. All pieces of a key are appended under the lock of
    /// the slice it belongs to, without an operation on it in between; an empty state is one piece of
    /// no bytes. `Full`: the state does not fit; call `abort_snapshot`.
    pub fn append_snapshot(&mut self, part: Part<'_>) -> Result<(), Refused> {
        if self.is_poisoned {
            return Err(Refused::Poisoned);
        }
        assert_eq!(self.phase, Phase::Snapshot);
        let next = self.next.as_mut().expect("a snapshot goes somewhere");
        let length = record_size([part.bytes.len()]);
        if length > RECORD_SIZE_MAX || !next.fits(length) {
            return Err(Refused::Full);
        }
        next.push(
            RecordKind::Snapshot,
            self.last,
            self.durable,
            &[part],
            &mut self.spares,
        );
        self.snapshot_left = self.snapshot_left.saturating_sub(length as u64);
        self.counters.snapshot_bytes += length as u64;
        self.snapshot_keys.insert(part.key);
        Ok(())
    }

    /// Bytes of the snapshot that are appended and not yet submitted: a caller that feeds it without
    /// holding locks waits when this is large.
    pub fn snapshot_backlog(&self) -> usize {
        self.next.as_ref().map_or(0, Segment::pending_size)
    }

    /// All of the snapshot is appended.
    pub fn end_snapshot(&mut self) {
        assert_eq!(self.phase, Phase::Snapshot);
        // Whose state the old segment holds must be in the new one, or recovery would lose it.
        assert!(self.keys.is_subset(&self.snapshot_keys));
        self.phase = Phase::Ending;
        self.snapshot_left = 0;
        self.append_end_if_due();
    }

    /// Gives up a snapshot that did not fit; `needs_snapshot` is quiet until a sixteenth of the segment
    /// more is used. Not while starting: then the journal is of no use.
    pub fn abort_snapshot(&mut self) {
        assert!(matches!(self.phase, Phase::Snapshot | Phase::Ending));
        let active = self.active.as_ref().expect("not while starting");
        self.retry_at = active.used_with(0) + self.config.area.segment_size() / 16;
        let next = self.next.take().expect("a snapshot goes somewhere");
        let in_flight: Vec<_> = next.unfinished();
        if !in_flight.is_empty() {
            self.leaving = Some(Leaving {
                half: next.half,
                in_flight,
                mark: None,
                marking: None,
            });
        }
        self.phase = Phase::Running;
        self.snapshot_left = 0;
    }

    fn append_end_if_due(&mut self) {
        if self.phase != Phase::Ending || self.is_poisoned {
            return;
        }
        let next = self.next.as_mut().expect("a snapshot goes somewhere");
        // While starting nothing waits behind the end; else operations before it are acknowledged by
        // the old segment, and those behind it wait for what is left.
        let is_small = next.pending_size() <= END_BACKLOG_MAX;
        if is_small || self.active.is_none() {
            next.push(
                RecordKind::End,
                self.last,
                self.durable,
                &[],
                &mut self.spares,
            );
            self.phase = Phase::Ended;
        }
    }

    /// The next write to submit; call until `None`, after each append and each completion.
    pub fn take_flush(&mut self) -> Option<Flush> {
        if self.is_poisoned {
            return None;
        }
        let id = FlushId(self.flush_id);
        let max = self.config.flight_count_max;
        let flush = self
            .active
            .as_mut()
            .and_then(|segment| segment.take_flush(id, max))
            .or_else(|| {
                let next = self.next.as_mut()?;
                let flush = next.take_flush(id, max);
                self.append_end_if_due();
                flush
            })
            .or_else(|| self.take_mark(id))?;
        self.flush_id += 1;
        self.counters.flushes += 1;
        self.counters.flushed_bytes += flush.bytes.len() as u64;
        Some(flush)
    }

    /// Gives the memory of a flush back whose bytes are no longer needed, for records that follow.
    pub fn reuse(&mut self, bytes: Vec<u8>) {
        self.spares.keep(bytes);
    }

    /// The write that marks the old half as free.
    fn take_mark(&mut self, id: FlushId) -> Option<Flush> {
        let leaving = self.leaving.as_mut()?;
        if !leaving.in_flight.is_empty() {
            return None;
        }
        let header = leaving.mark.take()?;
        leaving.marking = Some(id);
        let mut bytes = Vec::new();
        for _ in 0..HEADER_SECTORS {
            header.encode_to(&mut bytes);
        }
        Some(Flush {
            id,
            at: self.config.area.at(leaving.half, 0),
            bytes,
            last_lsn: self.durable,
            needs_flush: true,
        })
    }

    /// A flush has ended. `Ok` means behind the device's cache.
    pub fn on_flushed(&mut self, id: FlushId, result: Result<(), FlushFailed>) {
        if result.is_err() {
            self.is_poisoned = true;
        }
        if self.is_poisoned {
            return;
        }
        if let Some(leaving) = &mut self.leaving {
            leaving.in_flight.retain(|flight| *flight != id);
            if leaving.marking == Some(id) {
                leaving.marking = None;
            }
            if leaving.in_flight.is_empty() && leaving.mark.is_none() && leaving.marking.is_none() {
                self.leaving = None;
            }
        }
        for segment in [&mut self.active, &mut self.next].into_iter().flatten() {
            if segment.on_flushed(id) {
                break;
            }
        }
        if let Some(active) = &self.active {
            self.durable = self.durable.max(active.flushed);
        }
        if self.next.as_ref().is_some_and(|next| next.is_end_durable) {
            self.switch();
        }
        self.append_end_if_due();
    }

    /// The new segment is complete: recovery would read it from now on.
    fn switch(&mut self) {
        assert_eq!(self.phase, Phase::Ended);
        self.counters.snapshots += 1;
        let next = self.next.take().expect("its end is durable");
        self.durable = self.durable.max(next.flushed);
        let old = self.active.take();
        let mark = SegmentHeader {
            is_retired: true,
            ..next.header
        };
        // Also when there was no old segment of ours: the half may hold an earlier instance's, and a
        // half that says 'retired' proves that the other one was complete (recovery.rs).
        self.leaving = Some(Leaving {
            half: 1 - next.half,
            in_flight: old.as_ref().map_or_else(Vec::new, Segment::unfinished),
            mark: Some(mark),
            marking: None,
        });
        self.active = Some(next);
        self.retry_at = 0;
        self.phase = Phase::Running;
    }

    /// Asserts the invariants of this module.
    pub fn check(&self) {
        assert!(self.durable <= self.last);
        let is_running = self.phase == Phase::Running;
        assert_eq!(is_running, self.next.is_none());
        if let (Some(a), Some(b)) = (&self.active, &self.next) {
            assert_ne!(a.half, b.half);
            assert!(a.header.sequence < b.header.sequence);
            assert!(self.leaving.is_none());
        }
        if let (Some(a), Some(l)) = (&self.active, &self.leaving) {
            assert_ne!(a.half, l.half);
            assert!(l.mark.is_none() || l.marking.is_none());
        }
        for segment in self.active.iter().chain(&self.next) {
            segment.check(self.config.flight_count_max);
        }
    }
}

#[cfg(test)]
mod tests;
