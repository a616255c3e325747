//! The harness of the crash tests: a journal on a `testing::Disk`, and a twin that knows every state.
//!
//! Each key's state is a count and an order-sensitive hash of the operations applied to it, so that an
//! operation lost, repeated, reordered or half applied changes it. The twin keeps the state behind
//! every LSN; a recovered state must be the one of the LSN that recovery names, and that LSN must not
//! be older than what was acknowledged.
#![allow(clippy::cast_possible_truncation, reason = "test arithmetic is small")]

use std::collections::BTreeMap;

use types::{DecodeError, Epoch, FsId, Incarnation, Lsn, NodeId, NsdId, ShardId};

use crate::format::{Area, PartKey};
use crate::journal::{Config, Flush, FlushFailed, FlushId, Journal, Part, Refused, Urgency};
use crate::recovery::{Recovered, RecoveryError, Replay};
use crate::testing::{Disk, recover};

pub(crate) const FS: FsId = FsId(0xf5);
pub(crate) const OWNER: NodeId = NodeId(2);

pub(crate) const KEYS: [PartKey; 4] = [
    PartKey::Shard(ShardId(0)),
    PartKey::Shard(ShardId(7)),
    PartKey::Shard(ShardId(9)),
    PartKey::Space,
];

/// (operations applied, hash of them in order) by key.
pub(crate) type State = BTreeMap<PartKey, (u64, u64)>;

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn mix(hash: u64, operation: u64) -> u64 {
    Random(hash ^ operation.rotate_left(32)).next()
}

/// An operation's bytes: its number, then filler.
fn payload(operation: u64, size: usize) -> Vec<u8> {
    let mut bytes = operation.to_le_bytes().to_vec();
    let mut random = Random(operation);
    bytes.resize_with(8 + size, || random.next() as u8);
    bytes
}

fn number(bytes: &[u8]) -> Result<u64, DecodeError> {
    let what = "test payload";
    let head = bytes.get(..8).ok_or(DecodeError::Short { what })?;
    Ok(u64::from_le_bytes(head.try_into().expect("eight bytes")))
}

/// What a machine does with the parts it is given at recovery.
#[derive(Default)]
pub(crate) struct Machine {
    pub(crate) state: State,
    begun: std::collections::BTreeSet<PartKey>,
}

impl Machine {
    pub(crate) fn apply(&mut self, replay: Replay<'_>) -> Result<(), DecodeError> {
        if replay.is_snapshot {
            // The first piece begins the key's state anew; the count comes in one piece, the hash in
            // another, so that a lost piece shows.
            let begins = self.begun.insert(replay.key);
            let entry = self.state.entry(replay.key).or_default();
            let value = number(replay.bytes)?;
            if begins {
                *entry = (value, 0);
            } else {
                entry.1 = value;
            }
            return Ok(());
        }
        // An operation on a state that has not begun is what the snapshot contains already.
        let what = "operation before its snapshot";
        let entry = self.state.get_mut(&replay.key);
        let entry = entry.ok_or(DecodeError::Short { what })?;
        entry.0 += 1;
        entry.1 = mix(entry.1, number(replay.bytes)?);
        Ok(())
    }
}

/// A journal on a disk, and the states it went through.
pub(crate) struct Rig {
    pub(crate) area: Area,
    pub(crate) disk: Disk,
    pub(crate) journal: Journal,
    pub(crate) state: State,
    /// State behind LSN `base + index`.
    pub(crate) states: Vec<State>,
    pub(crate) base: u64,
    /// Newest LSN that was acknowledged.
    pub(crate) acknowledged: Lsn,
    in_flight: Vec<(FlushId, u64)>,
    /// Keys that the snapshot under way still lacks.
    snapshot: Vec<PartKey>,
    /// Segments completed.
    pub(crate) switches: u64,
}

pub(crate) fn small_area(sectors: u64) -> Area {
    Area {
        nsd: NsdId(1),
        begin: 64,
        count: sectors,
    }
}

fn config(area: Area, flight_count_max: usize, life: u128) -> Config {
    Config {
        fs: FS,
        owner: OWNER,
        incarnation: Incarnation(life << 64 | life.wrapping_mul(0x1234_5678_9abc_def1)),
        area,
        flight_count_max,
    }
}

/// What came back from a disk.
pub(crate) fn recovered(disk: &Disk, area: Area) -> Result<(Recovered, State), RecoveryError> {
    let mut machine = Machine::default();
    let recovered = recover(disk, area, FS, OWNER, &mut |part| machine.apply(part))?;
    Ok((recovered, machine.state))
}

impl Rig {
    /// Recovers from `disk` and begins a new instance; its snapshot is not yet written.
    pub(crate) fn on(disk: Disk, area: Area, flight_count_max: usize, life: u128) -> Self {
        let (found, state) = recovered(&disk, area).expect("the disk is healthy");
        let config = config(area, flight_count_max, life);
        let state: State = KEYS
            .iter()
            .map(|key| (*key, state.get(key).copied().unwrap_or_default()))
            .collect();
        Self {
            area,
            disk,
            journal: Journal::start(config, &found),
            states: vec![state.clone()],
            base: found.last_lsn.0,
            acknowledged: found.last_lsn,
            state,
            in_flight: Vec::new(),
            snapshot: KEYS.to_vec(),
            switches: 0,
        }
    }

    pub(crate) fn fresh(sectors: u64, flight_count_max: usize) -> Self {
        let area = small_area(sectors);
        let mut disk = Disk::new();
        disk.format(config(area, flight_count_max, 0));
        Self::on(disk, area, flight_count_max, 1)
    }

    /// Appends an operation on one or two keys, with `size` bytes of filler each.
    pub(crate) fn operate(&mut self, random: &mut Random, size: usize) -> Result<Lsn, Refused> {
        let operation = random.next();
        let first = random.below(KEYS.len() as u64) as usize;
        let count = 1 + random.below(2) as usize;
        let keys: Vec<_> = (first..first + count)
            .map(|i| KEYS[i % KEYS.len()])
            .collect();
        let bytes = payload(operation, size);
        let part = |key: &PartKey| Part {
            key: *key,
            epoch: Epoch(3),
            bytes: &bytes,
        };
        let parts: Vec<_> = keys.iter().map(part).collect();
        let had_room = self.journal.has_room(count * bytes.len(), Urgency::Urgent);
        let lsn = self.journal.append(&parts);
        assert!(!had_room || lsn.is_ok(), "has_room promised it: {lsn:?}");
        let lsn = lsn?;
        for key in keys {
            let entry = self.state.get_mut(&key).expect("all keys are there");
            entry.0 += 1;
            entry.1 = mix(entry.1, operation);
        }
        self.states.push(self.state.clone());
        assert_eq!(lsn.0, self.base + self.states.len() as u64 - 1);
        Ok(lsn)
    }

    /// Appends the next key of the snapshot under way, or ends it.
    pub(crate) fn feed_snapshot(&mut self) -> bool {
        let Some(key) = self.snapshot.pop() else {
            return false;
        };
        let (count, hash) = self.state[&key];
        for (value, size) in [(count, 700), (hash, 2500)] {
            let part = Part {
                key,
                epoch: Epoch(3),
                bytes: &payload(value, size),
            };
            self.journal
                .append_snapshot(part)
                .expect("the snapshot fits");
        }
        if self.snapshot.is_empty() {
            self.journal.end_snapshot();
            self.switches += 1;
        }
        true
    }

    pub(crate) fn begin_snapshot(&mut self) {
        self.journal.begin_snapshot(4 * 3400);
        self.snapshot = KEYS.to_vec();
    }

    /// Submits one flush if there is one.
    pub(crate) fn submit(&mut self) -> Option<Flush> {
        let flush = self.journal.take_flush()?;
        assert!(flush.needs_flush);
        let write = self.disk.submit(flush.at, &flush.bytes);
        self.in_flight.push((flush.id, write));
        Some(flush)
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// One of the flushes in flight ends.
    pub(crate) fn complete(&mut self, index: usize) {
        let (flush, write) = self.in_flight.remove(index);
        self.disk.complete_flushed(write);
        self.journal.on_flushed(flush, Ok(()));
        self.acknowledged = self.journal.durable_lsn();
        self.journal.check();
    }

    pub(crate) fn fail(&mut self, index: usize) {
        let (flush, _) = self.in_flight.remove(index);
        self.journal.on_flushed(flush, Err(FlushFailed));
    }

    /// Until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        loop {
            while self.submit().is_some() {}
            if self.in_flight.is_empty() {
                break;
            }
            self.complete(0);
        }
        assert_eq!(self.journal.durable_lsn(), self.journal.last_lsn());
    }

    /// Writes the state that a new instance begins with.
    pub(crate) fn begin(&mut self) {
        while self.feed_snapshot() {}
        self.settle();
        assert!(self.journal.is_serving());
    }

    /// Asserts that what recovery finds on `disk` is right: a state that was, nothing acknowledged
    /// lost. Returns its LSN.
    pub(crate) fn verify(&self, disk: &Disk) -> Lsn {
        let (found, state) = recovered(disk, self.area).expect("a crash is no damage");
        let lsn = found.last_lsn;
        assert!(lsn >= self.acknowledged, "{lsn} of {}", self.acknowledged);
        let index = usize::try_from(lsn.0 - self.base).expect("not older than the instance");
        let expected = &self.states[index];
        let is_empty = expected.values().all(|s| *s == (0, 0));
        if found.keys.is_empty() {
            // The segment that the area was formatted with.
            assert!(is_empty);
        } else {
            for key in KEYS {
                assert_eq!(state.get(&key), expected.get(&key), "{key:?} at {lsn}");
            }
        }
        lsn
    }

    /// Tries crashes now: all subsets of the sectors at risk when they are few, else those that keep
    /// or lose one stretch, and some at random. Returns how many were tried.
    pub(crate) fn try_crashes(&self, random: &mut Random, visit: &mut dyn FnMut(Disk)) -> u64 {
        let risk = self.disk.at_risk();
        let mut tried = 0;
        let mut one = |survives: &dyn Fn(usize) -> bool| {
            let mut disk = self.disk.clone();
            disk.crash(survives);
            self.verify(&disk);
            visit(disk);
            tried += 1;
        };
        if risk <= 6 {
            for set in 0..1u32 << risk {
                one(&|index| set >> index & 1 == 1);
            }
        } else {
            for cut in 0..=risk {
                one(&|index| index < cut);
                one(&|index| index >= cut);
                one(&|index| index != cut);
            }
            for _ in 0..16 {
                let seed = random.next();
                one(&|index| Random(seed ^ index as u64).next() & 1 == 1);
            }
        }
        tried
    }
}

/// Runs a random schedule of `steps` and calls `at_step` after each that changes what a crash leaves.
pub(crate) fn schedule(
    rig: &mut Rig,
    random: &mut Random,
    steps: usize,
    at_step: &mut dyn FnMut(&Rig, &mut Random),
) {
    for _ in 0..steps {
        let mut is_changed = false;
        match random.below(10) {
            0..4 if rig.journal.is_serving() => {
                let size = [0, 30, 200, 1000, 3900, 6000][random.below(6) as usize];
                if rig.journal.has_room(2 * (size + 8), Urgency::Urgent) {
                    rig.operate(random, size).expect("there is room");
                }
            }
            0..4 => {
                rig.feed_snapshot();
            }
            4..7 => {
                is_changed = rig.submit().is_some();
            }
            7..9 => {
                if rig.in_flight() > 0 {
                    is_changed = true;
                    rig.complete(random.below(rig.in_flight() as u64) as usize);
                }
            }
            _ => {
                if rig.journal.needs_snapshot() {
                    rig.begin_snapshot();
                } else {
                    rig.feed_snapshot();
                }
            }
        }
        rig.journal.check();
        if is_changed {
            at_step(rig, random);
        }
    }
}
