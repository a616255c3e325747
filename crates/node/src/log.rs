//! What all shards of an owner share: its journal, its space, and, at shard 0's owner, the region table.
//!
//! One record holds what an operation changed in shards and in space, so that sectors are a file's exactly
//! when its map says so, after every crash.

use std::collections::BTreeMap;

use data::SpaceAnswer;
use data::space::{self, RegionTable, Space, SpaceMutation, TableMutation};
use meta::{Changes, Mutation, Op, TransactionId};
use smallvec::{SmallVec, smallvec};
use store::format::PartKey;
use store::journal::{Journal, Part, Urgency};
use store::tree::Root;
use types::{
    Decode, DecodeError, Encode, Epoch, Errno, Grant, Lsn, NodeLife, NsdId, Promised, Reader, Run,
    ShardId, SmallBytes, wire_enum,
};

use crate::question::Question;
use crate::supply::SupplyCounters;

mod clearing;
mod evacuation;
mod refusal;
mod trees;

pub use refusal::Refusal;
pub(crate) use trees::PAGE_SECTORS;
use trees::Trees;

/// A change of an owner's space or of the region table, as the journal holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpaceRecord {
    /// Of its sectors.
    Space(SpaceMutation),
    /// Of the table of regions.
    Table(TableMutation),
}
wire_enum!(SpaceRecord { 1 => Space(mutation), 2 => Table(mutation) });

/// The journal and the space of one owner.
#[derive(Debug)]
pub struct OwnerLog {
    /// The journal.
    pub journal: Journal,
    /// Sectors.
    pub space: Space,
    /// What is promised to files, by shard: `space` holds it back.
    promised: BTreeMap<ShardId, Promised>,
    /// Who holds which region; at shard 0's owner.
    pub table: Option<RegionTable>,
    /// Questions whose transactions run, by transaction.
    pub transactions: BTreeMap<TransactionId, Box<Question>>,
    /// Epoch of the shards.
    pub epoch: Epoch,
    /// Bits for grant ids: drawn by the driver at start, stepped here.
    pub random: stdx::prng::Prng,
    /// The newest answer about sectors to each life, for repeats.
    pub(crate) space_answers: BTreeMap<NodeLife, (SpaceAnswer, Option<Lsn>)>,
    /// What was done about sectors.
    pub supply_counters: SupplyCounters,
    /// Whether pieces can be moved to sectors now.
    pub destage_state: DestageState,
    next_nsd: usize,
    pub(crate) nsds: Vec<NsdId>,
    /// NSDs that refuse what is written: what is free there is no supply while more can be had.
    pub(crate) refusing: Vec<NsdId>,
    /// Checkpoints and what they need.
    pub(crate) trees: Trees,
    evacuation: evacuation::Evacuation,
    clearing: clearing::Clearing,
    /// Tests: what is refused now.
    pub(crate) refusal: Option<Refusal>,
    /// Where records are encoded, kept so that it need not grow anew.
    encoded: Vec<u8>,
}

/// Keys of a record's parts, sorted, each with the end of its bytes.
type PartEnds = SmallVec<[(PartKey, usize); 4]>;

/// A larger buffer is not kept.
const ENCODED_SIZE_MAX: usize = 256 << 10;

/// Bytes of pieces that a shard has to move to sectors, beyond which Commits with pieces wait.
const PIECE_DEBT_MAX: u64 = 1 << 20;
/// The same for pieces of promised sectors, which take nothing of the room of others.
const PROMISED_DEBT_MAX: u64 = 2 << 20;

/// Whether pieces can be moved to sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DestageState {
    /// They can.
    Works,
    /// There are no sectors: Commits that bring more pieces than fit hear ENOSPC.
    NoSpace,
    /// There are no frames, or the disks fail: Commits do not wait for what does not happen.
    Stalled,
}

/// How much of the journal it may use.
fn urgency_of(op: &Op, freed: usize) -> Urgency {
    match op {
        // A Commit carries what was acknowledged: it may use the reserve too.
        Op::Unlink { .. } | Op::Rmdir { .. } | Op::Closed { .. } => Urgency::Urgent,
        Op::Commit(_) => Urgency::Urgent,
        Op::Punch { .. } if freed > 0 => Urgency::Urgent,
        Op::SetAttr { set, .. } if set.size.is_some() && freed > 0 => Urgency::Urgent,
        _ => Urgency::Normal,
    }
}

/// A shard's files are moved to sectors now, also those that have time: Commits to it would soon wait.
pub fn is_piece_debt_high(debt: meta::map::PieceDebt) -> bool {
    debt.promised > PROMISED_DEBT_MAX / 2 || debt.other > PIECE_DEBT_MAX / 2
}

/// What a Commit that brings pieces does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PieceRoom {
    /// It is executed.
    Go,
    /// It waits until some have been moved.
    Wait,
    /// There is no room, and none will be made.
    Full,
}

/// Runs granted in one answer.
const GRANT_RUN_COUNT_MAX: usize = 2048;

/// Bytes of one record of a snapshot.
const SNAPSHOT_RECORD_SIZE: usize = 64 << 10;
/// A record that will never be durable.
const NEVER: Lsn = Lsn(u64::MAX - 1);
/// Bytes of one freed run in a record, at the most.
const FREED_SIZE: usize = 32;
/// Freed runs in one record; more go to records before it.
const FREED_COUNT_MAX: usize = 32 << 10;

/// Bytes that a record of this operation takes at the most, but for the runs that it frees: the operation's own
/// and some inodes' worth.
fn record_estimate(op: &Op) -> usize {
    let payload = match op {
        Op::Commit(commit) => {
            commit.extents.len() * 256
                + commit
                    .pieces
                    .iter()
                    .map(|p| p.bytes.len() + 64)
                    .sum::<usize>()
        }
        Op::SetXattr { value, .. } => value.len(),
        Op::Destage { extents, .. } => extents.len() * 256,
        _ => 0,
    };
    payload * 2 + 4096
}

impl OwnerLog {
    /// After recovery.
    pub fn new(
        journal: Journal,
        space: Space,
        table: Option<RegionTable>,
        epoch: Epoch,
        nsds: Vec<NsdId>,
        random: stdx::prng::Prng,
    ) -> Self {
        let mut space = space;
        space.end_replay();
        Self {
            journal,
            space,
            promised: BTreeMap::new(),
            table,
            transactions: BTreeMap::new(),
            epoch,
            random,
            space_answers: BTreeMap::new(),
            supply_counters: SupplyCounters::default(),
            destage_state: DestageState::Works,
            next_nsd: 0,
            refusing: Vec::new(),
            nsds,
            trees: Trees::default(),
            evacuation: evacuation::Evacuation::default(),
            clearing: clearing::Clearing::default(),
            refusal: None,
            encoded: Vec::new(),
        }
    }

    /// There is room for the record of what takes `bytes` and frees `freed` runs, and for the records before it.
    fn has_room(&self, bytes: usize, freed: usize, urgency: Urgency) -> bool {
        if urgency == Urgency::Normal && (self.is_starved() || self.is_poor_of_pages()) {
            return false;
        }
        if freed <= FREED_COUNT_MAX {
            return self.journal.has_room(bytes + freed * FREED_SIZE, urgency);
        }
        let record_count = freed.div_ceil(FREED_COUNT_MAX) + 1;
        let bytes = bytes.saturating_add(freed.saturating_mul(FREED_SIZE));
        self.journal.has_room_in_all(bytes, record_count, urgency)
    }

    /// Whether the operation, which frees `freed` runs at the most, may execute: there is room in the journal, and
    /// the sectors it maps are granted to the asker.
    ///
    /// # Errors
    /// `ENOSPC`: no room. `EIO`: the journal failed. `ESTALE`: sectors that are not the asker's.
    /// `EINVAL`: a layout of NSDs that are not there.
    pub fn admit(&self, from: NodeLife, op: &Op, freed: usize) -> Result<(), Errno> {
        if !op.is_change() {
            return Ok(());
        }
        if self.journal.is_poisoned() {
            return Err(Errno::EIO);
        }
        let urgency = urgency_of(op, freed);
        if !self.has_room(record_estimate(op), freed, urgency) {
            return Err(Errno::ENOSPC);
        }
        self.check_layout(op)?;
        let runs = op.runs_used().unwrap_or_default();
        if runs.iter().all(|run| self.space.holds(from, *run)) {
            Ok(())
        } else {
            Err(Errno::ESTALE)
        }
    }

    /// Whether a shard takes more bytes in pieces: they lie in memory and in the journal, which are bounded.
    pub(crate) fn room_for_pieces(&self, op: &Op, shard: &meta::Shard) -> PieceRoom {
        let Op::Commit(commit) = op else {
            return PieceRoom::Go;
        };
        let (brings, debt) = (shard.piece_bytes_of(commit), shard.piece_debt());
        let is_over = (brings.promised > 0 && debt.promised > PROMISED_DEBT_MAX)
            || (brings.other > 0 && debt.other > PIECE_DEBT_MAX);
        match self.destage_state {
            _ if self.refusal == Some(Refusal::Pieces) && brings.other > 0 => PieceRoom::Full,
            _ if !is_over => PieceRoom::Go,
            DestageState::Works => PieceRoom::Wait,
            // There are sectors for what is promised, or there will be.
            DestageState::NoSpace if brings.promised > 0 => PieceRoom::Wait,
            DestageState::NoSpace => PieceRoom::Full,
            DestageState::Stalled => PieceRoom::Go,
        }
    }

    /// Sectors are held back for what is promised to files of a shard: to be called after replay, and when something has
    /// changed in the shard, under its lock and this one.
    pub fn note_promised(&mut self, shard: &meta::Shard) {
        let old = self.promised.get(&shard.id()).copied();
        if old.unwrap_or_default() == shard.promised() {
            return;
        }
        self.promised.insert(shard.id(), shard.promised());
        self.space.hold_back(self.promised().held_back());
    }

    /// What is promised to files of this owner.
    pub fn promised(&self) -> Promised {
        let all = self.promised.values().copied();
        all.fold(Promised::default(), |sum, more| sum + more)
    }

    /// So much more can be promised now.
    pub(crate) fn can_promise(&self, adds: Promised) -> bool {
        let after = (self.promised() + adds).held_back();
        adds == Promised::default() || after - self.space.held_back() <= self.space.promisable()
    }

    /// The NSD is one of this file system.
    pub(crate) fn has_nsd(&self, nsd: NsdId) -> bool {
        self.nsds.contains(&nsd)
    }

    /// A layout names NSDs of this file system only.
    fn check_layout(&self, op: &Op) -> Result<(), Errno> {
        let Op::SetXattr { name, value, .. } = op else {
            return Ok(());
        };
        if name[..] != *types::layout::LAYOUT_XATTR {
            return Ok(());
        }
        let layout = types::Layout::parse(value).map_err(|_| Errno::EINVAL)?;
        let are_known = layout.nsds().iter().all(|nsd| self.has_nsd(*nsd));
        are_known.then_some(()).ok_or(Errno::EINVAL)
    }

    /// Journals an executed operation. One that was admitted has room.
    pub fn append(
        &mut self,
        from: NodeLife,
        mutations: &[(ShardId, Mutation)],
        used: &[Run],
        freed: &[Run],
    ) -> Lsn {
        let mut space = Vec::new();
        self.space
            .consume(from, used, &mut space)
            .expect("admitted before it was executed");
        let used_count = space.len();
        for run in freed {
            self.space
                .free(*run, &mut space)
                .expect("a run in a file's map is in use");
        }
        if freed.len() > FREED_COUNT_MAX {
            space.truncate(used_count);
            if !self.append_freeing(freed) {
                return self.refused();
            }
            space.push(SpaceMutation::FreeingEnds {});
        }
        let mut shards: SmallVec<[ShardId; 4]> = SmallVec::new();
        for (shard, _) in mutations {
            if let Err(at) = shards.binary_search(shard) {
                shards.insert(at, *shard);
            }
        }
        let mut bytes = std::mem::take(&mut self.encoded);
        let mut ends: PartEnds = SmallVec::new();
        for shard in shards {
            let own = mutations.iter().filter(|(of, _)| *of == shard);
            own.for_each(|(_, mutation)| mutation.encode(&mut bytes));
            ends.push((PartKey::Shard(shard), bytes.len()));
        }
        if !space.is_empty() {
            for mutation in space {
                SpaceRecord::Space(mutation).encode(&mut bytes);
            }
            ends.push((PartKey::Space, bytes.len()));
        }
        let lsn = self.append_parts(&bytes, &ends);
        if bytes.capacity() <= ENCODED_SIZE_MAX {
            bytes.clear();
            self.encoded = bytes;
        }
        lsn
    }

    /// More runs than fit one record: they are named in records before the operation's own, which alone makes them
    /// free. False: the journal refused one.
    fn append_freeing(&mut self, freed: &[Run]) -> bool {
        for runs in freed.chunks(FREED_COUNT_MAX) {
            let mut bytes = Vec::new();
            let runs = runs.to_vec();
            SpaceRecord::Space(SpaceMutation::Freeing { runs }).encode(&mut bytes);
            let part = Part {
                key: PartKey::Space,
                epoch: self.epoch,
                bytes: &bytes,
            };
            if self.journal.append(&[part]).is_err() {
                return false;
            }
        }
        true
    }

    /// Journals what a shard did by itself.
    pub fn append_changes(&mut self, shard: ShardId, changes: &Changes) -> Lsn {
        let mutations = &changes.mutations;
        debug_assert!(mutations.iter().all(|(s, _)| *s == shard));
        self.append(NodeLife::default(), mutations, &[], &changes.freed)
    }

    /// Appends one record: `bytes` of several keys, each with where its own end.
    fn append_parts(&mut self, bytes: &[u8], ends: &PartEnds) -> Lsn {
        let epoch = self.epoch;
        let mut begin = 0;
        let part = |(key, end): &(PartKey, usize)| {
            let own = &bytes[std::mem::replace(&mut begin, *end)..*end];
            Part {
                key: *key,
                epoch,
                bytes: own,
            }
        };
        let parts: SmallVec<[Part<'_>; 4]> = ends.iter().map(part).collect();
        match self.journal.append(&parts) {
            Ok(lsn) => {
                self.space.logged(lsn);
                lsn
            }
            Err(_) => self.refused(),
        }
    }

    /// The journal has refused what was executed: it was poisoned meanwhile, or a change that nobody admits (the end
    /// of a life) found it full. What the shards show now must not be shown to anybody: the journal is given up, who
    /// waits for it hears EIO, and the process that comes after finds the state before.
    fn refused(&mut self) -> Lsn {
        self.journal.give_up();
        // None of the freed sectors is granted again.
        self.space.logged(NEVER);
        NEVER
    }

    /// Grants up to `sectors` free sectors to a node, on `of` if these NSDs have room, and where they do not have
    /// all of `need`, on others.
    pub(crate) fn grant(
        &mut self,
        (life, is_promised): (NodeLife, bool),
        (need, sectors): (u64, u64),
        of: &[NsdId],
        mutations: &mut Vec<SpaceMutation>,
    ) -> Vec<Grant> {
        let all = std::mem::take(&mut self.nsds);
        let asked: Vec<NsdId> = all.iter().copied().filter(|n| of.contains(n)).collect();
        let mut grants = match asked.is_empty() {
            true => Vec::new(),
            false => self.grant_on((life, is_promised), (need, sectors), &asked, mutations),
        };
        let granted: u64 = grants.iter().map(|g| u64::from(g.run.count)).sum();
        // They are full: the bytes go elsewhere rather than nowhere.
        let wanted = if granted == 0 { sectors } else { need };
        let left = (need.saturating_sub(granted), wanted.saturating_sub(granted));
        grants.extend(self.grant_on((life, is_promised), left, &all, mutations));
        self.nsds = all;
        grants
    }

    /// A share on every one of `nsds`, so that files stripe over all of them; in regions that files are leaving only what is needed and
    /// not there elsewhere.
    fn grant_on(
        &mut self,
        from: (NodeLife, bool),
        (need, sectors): (u64, u64),
        nsds: &[NsdId],
        mutations: &mut Vec<SpaceMutation>,
    ) -> Vec<Grant> {
        let mut grants: Vec<Grant> = Vec::new();
        let left = self.grant_of(false, from, sectors, nsds, (mutations, &mut grants));
        let missing = need.saturating_sub(sectors - left);
        if missing > 0 && self.space.is_leaving() {
            self.grant_of(true, from, missing, nsds, (mutations, &mut grants));
        }
        self.next_nsd = self.next_nsd.wrapping_add(1);
        grants
    }

    /// How many are missing then.
    fn grant_of(
        &mut self,
        is_leaving: bool,
        (life, is_promised): (NodeLife, bool),
        sectors: u64,
        nsds: &[NsdId],
        (mutations, grants): (&mut Vec<SpaceMutation>, &mut Vec<Grant>),
    ) -> u64 {
        let mut nsds = nsds.to_vec();
        let mut left = sectors;
        let random = &mut self.random;
        let mut random =
            move || u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
        // Scattered free sectors make many small runs: again, until there are enough or no more.
        while left > 0 && grants.len() < GRANT_RUN_COUNT_MAX {
            let before = left;
            let count = nsds.len().max(1);
            let share = left.div_ceil(count as u64);
            let mut have_some = Vec::with_capacity(count);
            for step in 0..count {
                let Some(nsd) = nsds.get((self.next_nsd + step) % count).copied() else {
                    break;
                };
                let sectors = share.min(left);
                let ask = space::Ask {
                    life,
                    nsd,
                    sectors,
                    is_promised,
                    is_leaving,
                };
                if let Ok(more) = self.space.grant(ask, &mut random, mutations) {
                    left -= more.iter().map(|g| u64::from(g.run.count)).sum::<u64>();
                    grants.extend(more);
                    have_some.push(nsd);
                }
            }
            if left == before {
                break;
            }
            nsds = have_some;
        }
        left
    }

    /// Freed sectors are free when the journal has been written.
    pub fn has_pending_space(&self) -> bool {
        !self.journal.is_poisoned() && self.space.counts().pending > 0
    }

    /// The journal is full now and will have room when it has moved to its other half, or when the trees have got room that
    /// others may have.
    pub fn may_have_room_soon(&self) -> bool {
        self.may_have_room_soon_for(Urgency::Normal)
    }

    /// The same for this operation.
    pub(crate) fn may_take_soon(&self, op: &Op, freed: usize) -> bool {
        self.may_have_room_soon_for(urgency_of(op, freed))
    }

    fn may_have_room_soon_for(&self, urgency: Urgency) -> bool {
        !self.journal.is_poisoned()
            && (self.refusal == Some(Refusal::RecordsForNow)
                || !self.journal.can_begin_snapshot()
                || self.journal.needs_snapshot()
                || self.trees.is_checkpointing
                || self.journal.is_room_unmeasured(urgency)
                || self.may_page_room_come()
                || self.may_page_room_return())
    }

    /// A transaction's step, which frees `freed` runs at the most, fits the journal now.
    pub fn has_room_for_transaction(&self, freed: usize) -> bool {
        self.journal.is_poisoned() || self.has_room(64 << 10, freed, Urgency::Urgent)
    }

    /// A step that splits or joins parts of directories, whose record takes `bytes` at the most, fits the journal now.
    pub(crate) fn has_room_for_tending(&self, bytes: usize) -> bool {
        !self.journal.is_poisoned() && self.has_room(bytes, 0, Urgency::Normal)
    }

    /// Appends a record that says that all before it is durable, if it is. Without one the end that a disk loses later is taken for one
    /// that was never written (decision 0005); with it that is true of this record alone.
    pub fn close(&mut self) -> Option<Lsn> {
        let (key, epoch, bytes) = (PartKey::Space, self.epoch, &[][..]);
        let is_durable = self.journal.durable_lsn() >= self.journal.last_lsn();
        let closing = Part { key, epoch, bytes };
        is_durable.then(|| self.journal.append(&[closing]).ok())?
    }

    /// Journals changes of space alone.
    pub fn append_space(&mut self, mutations: Vec<SpaceMutation>) -> Lsn {
        self.append_records(mutations.into_iter().map(SpaceRecord::Space))
    }

    /// Journals changes of space and of the region table.
    pub(crate) fn append_records(&mut self, records: impl Iterator<Item = SpaceRecord>) -> Lsn {
        let mut bytes = Vec::new();
        for record in records {
            record.encode(&mut bytes);
        }
        let end = (PartKey::Space, bytes.len());
        self.append_parts(&bytes, &smallvec![end])
    }

    /// NSDs of which another region should be taken.
    pub fn short_nsds(&self) -> Vec<NsdId> {
        self.nsds
            .iter()
            .copied()
            .filter(|nsd| self.space.wants_region(*nsd))
            .collect()
    }

    /// A life is dead and none of its writes can be in flight: what it held is free.
    pub fn free_life(&mut self, life: NodeLife) -> Option<Lsn> {
        self.space_answers.remove(&life);
        let mut mutations = Vec::new();
        self.space.node_lost(life, &mut mutations);
        self.space.release_quarantine(life, &mut mutations);
        (!mutations.is_empty()).then(|| self.append_space(mutations))
    }

    /// A life is dead, and a write of it may still be in flight: what it held is not used again until
    /// `free_life`.
    pub fn quarantine_life(&mut self, life: NodeLife) -> Option<Lsn> {
        let mut mutations = Vec::new();
        self.space.node_lost(life, &mut mutations);
        (!mutations.is_empty()).then(|| self.append_space(mutations))
    }

    /// Appends the state of a shard to the snapshot that has begun, under the shard's lock and this one. False: it
    /// does not fit, or the journal has failed.
    pub fn append_shard_snapshot(&mut self, shard: &meta::Shard) -> bool {
        let (key, epoch) = (PartKey::Shard(shard.id()), self.epoch);
        let mut is_ok = true;
        let root = self.trees.roots.get(&shard.id());
        shard_snapshot(shard, root, SNAPSHOT_RECORD_SIZE, &mut |bytes| {
            let bytes = &bytes[..];
            let part = Part { key, epoch, bytes };
            is_ok &= self.journal.append_snapshot(part).is_ok();
        });
        is_ok
    }

    /// As `append_shard_snapshot`, for the space.
    pub fn append_space_snapshot(&mut self) -> bool {
        let (key, epoch) = (PartKey::Space, self.epoch);
        let mut pieces = Vec::new();
        self.space_snapshot(SNAPSHOT_RECORD_SIZE, &mut |bytes| pieces.push(bytes));
        self.note_space_size(
            pieces
                .iter()
                .map(|bytes: &Vec<u8>| bytes.len() as u64)
                .sum(),
        );
        pieces.iter().all(|bytes| {
            let part = Part { key, epoch, bytes };
            self.journal.append_snapshot(part).is_ok()
        })
    }

    /// The state of space and table as records of a snapshot, about `size_max` bytes each.
    pub fn space_snapshot(&self, size_max: usize, visit: &mut dyn FnMut(Vec<u8>)) {
        let mut bytes = Vec::new();
        let mut push = |record: SpaceRecord| {
            record.encode(&mut bytes);
            if bytes.len() >= size_max {
                visit(std::mem::take(&mut bytes));
            }
        };
        self.space.snapshot(&mut |m| push(SpaceRecord::Space(m)));
        if let Some(table) = &self.table {
            table.snapshot(&mut |m| push(SpaceRecord::Table(m)));
        }
        // One piece at least: the key must be in the snapshot.
        visit(bytes);
    }
}

/// Applies a journal part to space and table.
///
/// # Errors
/// The bytes are not what this version writes.
pub fn replay_space(
    bytes: &[u8],
    space: &mut Space,
    table: &mut Option<RegionTable>,
) -> Result<(), DecodeError> {
    let mut reader = Reader::new(bytes);
    while reader.remaining() > 0 {
        match SpaceRecord::decode(&mut reader)? {
            SpaceRecord::Space(mutation) => {
                let misfit = DecodeError::Unknown {
                    what: "space record",
                    value: 0,
                };
                space.apply(&mutation).map_err(|_| misfit)?;
            }
            SpaceRecord::Table(mutation) => {
                if let Some(table) = table {
                    table.apply(&mutation);
                }
            }
        }
    }
    Ok(())
}

/// The state of a shard, whose tree has this root, as records of a snapshot, about `size_max` bytes each.
pub fn shard_snapshot(
    shard: &meta::Shard,
    root: Option<&Root>,
    size_max: usize,
    visit: &mut dyn FnMut(Vec<u8>),
) {
    let mut bytes = Vec::new();
    let mut push = |mutation: Mutation| {
        mutation.encode(&mut bytes);
        if bytes.len() >= size_max {
            visit(std::mem::take(&mut bytes));
        }
    };
    match root {
        Some(root) => shard.snapshot_beside(SmallBytes::new(&root.encode()), &mut push),
        None => shard.snapshot(&mut push),
    }
    visit(bytes);
}
