//! Reading a journal back after a crash: which segment, up to where, and what to apply.
//!
//! Invariants
//! - Exactly one segment is replayed: the newest whose end record is there. An incomplete newer one
//!   held nothing that the older does not hold (journal.rs), so its bytes are never applied.
//! - A part is applied when its key's snapshot was seen in the segment, or the end was: what comes
//!   before its key's snapshot is contained in it.
//! - Records are applied in LSN order and none is left out; the first that does not fit its chain ends
//!   the segment. Where a later record proves that this one was once durable, that is damage, not a
//!   torn tail, and recovery fails and says where.
//! - Memory: one read of `READ_SECTORS_MAX` and one record.
//!
//! Life cycle: headers of both halves -> probe of the newest segment (is its end there?) -> replay of
//! the chosen one -> a look behind its tail -> `finish`. The driver reads what `next_read` asks for
//! until it asks for nothing.
//!
//! What this deliberately does not do: it repairs nothing, and it cannot tell a last flush that was
//! acknowledged and then rotted from one that was torn; only a second replica can.

use std::collections::BTreeSet;

use data::checksum::crc32c;
use types::{DecodeError, Epoch, FsId, Location, Lsn, NodeId, NsdId};

use crate::format::{
    Area, DecodedPart, HEADER_SECTORS, HeaderFault, HeaderSector, PartKey, RECORD_ALIGN,
    RECORD_HEADER_SIZE, RecordHeader, RecordKind, SECTOR, SegmentHeader, decode_part,
};

/// Sectors of a read.
pub const READ_SECTORS_MAX: u64 = 256;
/// Sectors behind the tail that are searched for proof of damage: more than all flushes that can have
/// been in flight at once.
const TAIL_SECTORS_MAX: u64 = 8192;

/// A read that recovery wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    /// First sector.
    pub at: Location,
    /// Sectors.
    pub count: u64,
}

/// A part of a record to apply.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// LSN of the operation; of a snapshot piece: of the last operation that it contains.
    pub lsn: Lsn,
    /// Piece of a snapshot: the key's state begins with the first one.
    pub is_snapshot: bool,
    /// Whose.
    pub key: PartKey,
    /// Epoch of the shard when it was written.
    pub epoch: Epoch,
    /// The mutations.
    pub bytes: &'a [u8],
}

/// How the journal goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// Last operation.
    pub last_lsn: Lsn,
    /// Half that the next segment goes into.
    pub next_half: u8,
    /// Its sequence number.
    pub next_sequence: u64,
    /// Sequence number of the segment that was replayed; 0 only while an area is formatted.
    pub previous: u64,
    /// Whose state was replayed.
    pub keys: BTreeSet<PartKey>,
    /// Operations replayed.
    pub operation_count: u64,
    /// Where the replayed segment's valid records end (for the log); none only while an area is formatted.
    pub tail: Option<Location>,
}

impl Recovered {
    /// What the first segment of an area continues: nothing.
    pub(crate) fn nothing() -> Self {
        Self {
            last_lsn: Lsn(0),
            next_half: 0,
            next_sequence: 1,
            previous: 0,
            keys: BTreeSet::new(),
            operation_count: 0,
            tail: None,
        }
    }
}

/// Why the journal cannot be recovered. Nothing was changed; a human (or a replica) must help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A structure is damaged that was once durable.
    #[error("journal of node {owner} on {nsd}, sector {sector}: {field} is damaged")]
    Corrupt {
        /// NSD.
        nsd: NsdId,
        /// Sector.
        sector: u64,
        /// Owner node.
        owner: NodeId,
        /// What is damaged.
        field: &'static str,
    },
    /// All places of headers are zero, which they never are from the creation of the file system on: what
    /// was there is gone.
    #[error(
        "journal of node {owner} on {nsd}, sector {sector}: there is nothing where the journal was"
    )]
    Blank {
        /// NSD.
        nsd: NsdId,
        /// First sector of the area.
        sector: u64,
        /// Owner node.
        owner: NodeId,
    },
    /// Written by a later version.
    #[error("journal on {nsd}, sector {sector}: format version {version} is not known")]
    Version {
        /// NSD.
        nsd: NsdId,
        /// Sector.
        sector: u64,
        /// The version found.
        version: u32,
    },
    /// A good journal of something else lies here.
    #[error("journal on {nsd}, sector {sector}: {field} is another one's")]
    Foreign {
        /// NSD.
        nsd: NsdId,
        /// Sector.
        sector: u64,
        /// Which field differs.
        field: &'static str,
    },
    /// A record is whole, but what it holds is not understood.
    #[error("journal on {nsd}, sector {sector}, {lsn}, {key:?}: {error}")]
    Payload {
        /// NSD.
        nsd: NsdId,
        /// Sector that the record begins in.
        sector: u64,
        /// Its LSN.
        lsn: Lsn,
        /// Part that could not be decoded, if it came that far.
        key: Option<PartKey>,
        /// What the decoder said.
        error: DecodeError,
    },
}

/// Applies a part; an error ends the recovery.
pub type Visit<'a> = dyn FnMut(Replay<'_>) -> Result<(), DecodeError> + 'a;

/// Walks the records of one half.
#[derive(Debug)]
struct Walk {
    half: u8,
    header: SegmentHeader,
    tag: u64,
    chain: u32,
    lsn: Lsn,
    /// Nothing behind this LSN is read.
    limit: Lsn,
    /// Bytes from byte `begin` of the half on.
    buffer: Vec<u8>,
    begin: usize,
    /// Byte of the half that the next record begins at.
    at: usize,
    size: usize,
    is_end_seen: bool,
    keys: BTreeSet<PartKey>,
    operation_count: u64,
}

enum Step {
    /// More bytes are needed.
    Short,
    /// A record: header, and where its parts lie in the buffer.
    Record(RecordHeader, std::ops::Range<usize>),
    /// No further record.
    Over,
}

impl Walk {
    fn new(half: u8, header: SegmentHeader, limit: Lsn) -> Self {
        let sectors = usize::try_from(header.area.half_sectors()).expect("an area fits memory");
        let begin = 2 * SECTOR;
        assert_eq!(begin as u64, HEADER_SECTORS * SECTOR as u64);
        Self {
            half,
            header,
            tag: header.tag(),
            chain: header.chain(),
            lsn: header.base,
            limit,
            buffer: Vec::new(),
            begin,
            at: begin,
            size: sectors * SECTOR,
            is_end_seen: false,
            keys: BTreeSet::new(),
            operation_count: 0,
        }
    }

    fn location(&self, byte: usize) -> Location {
        let sector = (byte.min(self.size - 1) / SECTOR) as u64;
        self.header.area.at(self.half, sector)
    }

    fn next_read(&self) -> Option<Read> {
        let from = self.begin + self.buffer.len();
        let count = ((self.size - from) / SECTOR) as u64;
        (count > 0).then(|| Read {
            at: self.location(from),
            count: count.min(READ_SECTORS_MAX),
        })
    }

    fn on_read(&mut self, bytes: &[u8]) {
        let done = (self.at - self.begin).min(self.buffer.len()) / SECTOR * SECTOR;
        self.buffer.drain(..done);
        self.begin += done;
        self.buffer.extend_from_slice(bytes);
    }

    /// Looks for the next record; does not step over it.
    fn step(&mut self) -> Step {
        loop {
            let have = self.begin + self.buffer.len();
            if self.at >= self.size {
                return Step::Over;
            }
            if self.at + RECORD_ALIGN > have {
                return Step::Short;
            }
            let bytes = &self.buffer[self.at - self.begin..];
            if !self.at.is_multiple_of(SECTOR) && bytes[..4] == [0; 4] {
                // Padding: this sector was written with the record that ends in it.
                self.at = self.at.next_multiple_of(SECTOR);
                continue;
            }
            if self.at + RECORD_HEADER_SIZE > self.size {
                return Step::Over;
            }
            if bytes.len() < RECORD_HEADER_SIZE {
                return Step::Short;
            }
            let Some(header) = RecordHeader::read(&bytes[..RECORD_HEADER_SIZE]) else {
                return Step::Over;
            };
            let is_operation = header.kind == RecordKind::Operation;
            let fits = header.tag == self.tag
                && header.previous == self.chain
                && header.lsn.0 == self.lsn.0 + u64::from(is_operation)
                && header.lsn <= self.limit
                && header.length <= self.size - self.at;
            if !fits {
                return Step::Over;
            }
            if bytes.len() < header.length {
                return Step::Short;
            }
            if crc32c(&bytes[RECORD_HEADER_SIZE..header.length]) != header.body_crc {
                return Step::Over;
            }
            let begin = self.at - self.begin;
            return Step::Record(header, begin + RECORD_HEADER_SIZE..begin + header.length);
        }
    }

    fn step_over(&mut self, header: &RecordHeader) {
        self.chain = header.crc;
        self.lsn = header.lsn;
        self.at += header.length.next_multiple_of(RECORD_ALIGN);
        self.is_end_seen |= header.kind == RecordKind::End;
        self.operation_count += u64::from(header.kind == RecordKind::Operation);
    }

    /// Gives the parts of a record to `visit`, those that are not contained in a later snapshot.
    fn apply(
        &mut self,
        header: &RecordHeader,
        parts: std::ops::Range<usize>,
        visit: &mut Visit<'_>,
    ) -> Result<(), RecoveryError> {
        let place = self.location(self.at);
        let fault = |key, error| RecoveryError::Payload {
            nsd: place.nsd,
            sector: place.sector,
            lsn: header.lsn,
            key,
            error,
        };
        let is_snapshot = header.kind == RecordKind::Snapshot;
        let mut body = &self.buffer[parts];
        for _ in 0..header.part_count {
            let DecodedPart { key, epoch, bytes } =
                decode_part(&mut body).map_err(|e| fault(None, e))?;
            if is_snapshot || self.is_end_seen {
                self.keys.insert(key);
            }
            if self.keys.contains(&key) {
                let lsn = header.lsn;
                visit(Replay {
                    lsn,
                    is_snapshot,
                    key,
                    epoch,
                    bytes,
                })
                .map_err(|e| fault(Some(key), e))?;
            }
        }
        if body.is_empty() {
            Ok(())
        } else {
            let what = "journal record";
            let count = body.len();
            Err(fault(None, DecodeError::Trailing { what, count }))
        }
    }

    /// A record at a sector start of the buffer says that more was durable than was replayed.
    fn proves_damage(&self, from: usize) -> bool {
        let first = from.next_multiple_of(SECTOR).max(self.begin);
        let last = self.begin + self.buffer.len();
        (first..last).step_by(SECTOR).any(|at| {
            let bytes = &self.buffer[at - self.begin..][..RECORD_HEADER_SIZE];
            RecordHeader::read(bytes).is_some_and(|r| r.tag == self.tag && r.durable > self.lsn)
        })
    }
}

#[derive(Debug)]
enum Stage {
    Headers {
        half: u8,
    },
    /// Is the end record of the newest segment there?
    Probe(Walk),
    Replay(Walk),
    /// Searches behind byte `from` of the half.
    Tail {
        walk: Walk,
        from: usize,
    },
    Done,
}

/// The recovery of one journal.
#[derive(Debug)]
pub struct Recovery {
    area: Area,
    fs: FsId,
    owner: NodeId,
    headers: [Option<SegmentHeader>; 2],
    stage: Stage,
    recovered: Option<Recovered>,
}

impl Recovery {
    /// Begins to read the journal of `owner` in `area`.
    pub fn new(area: Area, fs: FsId, owner: NodeId) -> Self {
        Self {
            area,
            fs,
            owner,
            headers: [None; 2],
            stage: Stage::Headers { half: 0 },
            recovered: None,
        }
    }

    /// The read to do next; its bytes go to `on_read`. `None`: call `finish`.
    pub fn next_read(&self) -> Option<Read> {
        match &self.stage {
            Stage::Headers { half } => Some(Read {
                at: self.area.at(*half, 0),
                count: HEADER_SECTORS,
            }),
            Stage::Probe(walk) | Stage::Replay(walk) | Stage::Tail { walk, .. } => {
                Some(walk.next_read().expect("a walk at its end is not kept"))
            }
            Stage::Done => None,
        }
    }

    /// The bytes of the read asked for. Parts that became whole go to `visit`, in order; they arrive
    /// only after it is certain which segment is replayed, so nothing applied is ever taken back,
    /// except by an error: then the caller drops all it applied.
    pub fn on_read(&mut self, bytes: &[u8], visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
        let read = self.next_read().expect("on_read answers next_read");
        assert_eq!(bytes.len() as u64, read.count * SECTOR as u64);
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Headers { half } => self.on_header(half, bytes, visit),
            Stage::Probe(mut walk) => {
                walk.on_read(bytes);
                self.probe(walk, visit)
            }
            Stage::Replay(mut walk) => {
                walk.on_read(bytes);
                self.replay(walk, visit)
            }
            Stage::Tail { mut walk, from } => {
                // Each read is looked at alone.
                walk.begin += walk.buffer.len();
                walk.buffer = bytes.to_vec();
                self.tail(walk, from)
            }
            Stage::Done => unreachable!("next_read is none"),
        }
    }

    /// Sequence number of the segment whose records have all been given to `visit`, as soon as they have: also where what
    /// lies behind them is damage.
    pub fn replayed(&self) -> Option<u64> {
        Some(self.recovered.as_ref()?.previous)
    }

    /// How the journal goes on. Panics while `next_read` asks for something.
    pub fn finish(self) -> Recovered {
        self.recovered
            .expect("the driver reads until next_read asks for nothing")
    }

    fn corrupt(&self, at: Location, field: &'static str) -> RecoveryError {
        RecoveryError::Corrupt {
            nsd: at.nsd,
            sector: at.sector,
            owner: self.owner,
            field,
        }
    }

    fn on_header(
        &mut self,
        half: u8,
        bytes: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<(), RecoveryError> {
        let mut newest: Option<SegmentHeader> = None;
        let mut fault = None;
        for (index, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            match SegmentHeader::read(sector, self.fs, self.owner, self.area) {
                HeaderSector::Blank => {}
                HeaderSector::Valid(header) => {
                    if newest.is_none_or(|n| n.sequence < header.sequence) {
                        newest = Some(header);
                    }
                }
                HeaderSector::Bad(bad) => fault = Some((index as u64, bad)),
            }
        }
        if let (None, Some((index, bad))) = (&newest, fault) {
            let at = self.area.at(half, index);
            let (nsd, sector) = (at.nsd, at.sector);
            return Err(match bad {
                HeaderFault::Damaged => self.corrupt(at, "segment header"),
                HeaderFault::Version(version) => RecoveryError::Version {
                    nsd,
                    sector,
                    version,
                },
                HeaderFault::Foreign(field) => RecoveryError::Foreign { nsd, sector, field },
            });
        }
        self.headers[usize::from(half)] = newest;
        if half == 0 {
            self.stage = Stage::Headers { half: 1 };
            return Ok(());
        }
        self.choose(visit)
    }

    fn sequence_max(&self) -> u64 {
        let headers = self.headers.iter().flatten();
        headers.map(|h| h.sequence).max().unwrap_or(0)
    }

    fn live(&self, half: u8) -> Option<SegmentHeader> {
        self.headers[usize::from(half)].filter(|h| !h.is_retired)
    }

    /// Both headers are known: probe the newest live segment.
    fn choose(&mut self, visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
        let newest = (0..2u8)
            .filter_map(|half| Some((self.live(half)?, half)))
            .max_by_key(|(header, _)| header.sequence);
        let Some((header, half)) = newest else {
            let retired = (0..2u8).find(|half| self.headers[usize::from(*half)].is_some());
            let Some(half) = retired else {
                return Err(RecoveryError::Blank {
                    nsd: self.area.nsd,
                    sector: self.area.begin,
                    owner: self.owner,
                });
            };
            // Retired means that the other half was complete.
            return Err(self.corrupt(self.area.at(1 - half, 0), "segment header"));
        };
        self.probe(Walk::new(half, header, Lsn(u64::MAX)), visit)
    }

    fn probe(&mut self, mut walk: Walk, visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
        loop {
            match walk.step() {
                Step::Short if walk.next_read().is_some() => {
                    self.stage = Stage::Probe(walk);
                    return Ok(());
                }
                Step::Record(header, _) => {
                    walk.step_over(&header);
                    if walk.is_end_seen {
                        let walk = Walk::new(walk.half, walk.header, Lsn(u64::MAX));
                        return self.replay(walk, visit);
                    }
                }
                Step::Short | Step::Over => break,
            }
        }
        self.on_incomplete(&walk, visit)
    }

    /// The newest segment has no end: the one that it was to follow still holds everything.
    fn on_incomplete(&mut self, walk: &Walk, visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
        let broken = walk.location(walk.at);
        let other = 1 - walk.half;
        if let Some(header) = self.live(other)
            && header.sequence == walk.header.previous
        {
            return self.replay(Walk::new(other, header, walk.header.replayed_to), visit);
        }
        // The other half is retired, or is not the one that this segment was to follow, or this is the
        // area's first segment: it was complete once.
        Err(self.corrupt(broken, "journal record"))
    }

    fn replay(&mut self, mut walk: Walk, visit: &mut Visit<'_>) -> Result<(), RecoveryError> {
        loop {
            match walk.step() {
                Step::Short if walk.next_read().is_some() => {
                    self.stage = Stage::Replay(walk);
                    return Ok(());
                }
                Step::Record(header, parts) => {
                    walk.apply(&header, parts, visit)?;
                    walk.step_over(&header);
                }
                Step::Short | Step::Over => break,
            }
        }
        if !walk.is_end_seen {
            return Err(self.corrupt(walk.location(walk.at), "journal record"));
        }
        let from = walk.at;
        self.recovered = Some(Recovered {
            last_lsn: walk.lsn,
            next_half: 1 - walk.half,
            next_sequence: self.sequence_max() + 1,
            previous: walk.header.sequence,
            keys: std::mem::take(&mut walk.keys),
            operation_count: walk.operation_count,
            tail: Some(walk.location(from)),
        });
        self.tail(walk, from)
    }

    fn tail(&mut self, walk: Walk, from: usize) -> Result<(), RecoveryError> {
        if walk.lsn >= walk.limit {
            self.stage = Stage::Done;
            return Ok(());
        }
        if walk.proves_damage(from) {
            return Err(self.corrupt(walk.location(from), "journal record"));
        }
        let searched = (walk.begin + walk.buffer.len()).saturating_sub(from) / SECTOR;
        let is_over = walk.next_read().is_none() || searched as u64 > TAIL_SECTORS_MAX;
        self.stage = if is_over {
            Stage::Done
        } else {
            Stage::Tail { walk, from }
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
