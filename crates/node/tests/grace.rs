//! The grace period of a shard: what members say they hold and have open.
#![allow(clippy::unwrap_used, reason = "a test")]

use data::space::{Geometry, Levels, Space};
use meta::{HashKey, Mutation, Shard};
use node::log::replay_space;
use node::{OwnerLog, OwnerSlice};
use stdx::Prng;
use store::format::{Area, PartKey};
use store::journal::{Config, Journal, Part};
use store::testing::{Disk, recover};
use token::Reassert;
use types::id::NodeLife;
use types::{
    Epoch, FsId, Holding, InodeId, InodeMode, Instant, Lsn, NodeId, NsdId, ShardId, Timestamp,
    TokenKind, TokenNumber,
};

mod common;

use common::{file, life};

const EPOCH: Epoch = Epoch(2);
const OWNER: NodeLife = life(1);
const MEMBER: NodeLife = life(2);
const OTHER: NodeLife = life(3);
/// Files.
const NAMED: u64 = 10;
const NAMED_TOO: u64 = 11;
const NAMELESS: u64 = 12;
const NAMELESS_TOO: u64 = 13;

const fn ino(index: u64) -> InodeId {
    InodeId::new(ShardId(0), index)
}

/// The journal of an owner that has just begun.
fn log() -> OwnerLog {
    let area = Area {
        nsd: NsdId(1),
        begin: 0,
        count: 512,
    };
    let config = Config {
        fs: FsId(0),
        owner: OWNER.node,
        incarnation: OWNER.incarnation,
        area,
        flight_count_max: 1,
    };
    let geometry = Geometry {
        nsd: NsdId(2),
        data_begin: 0,
        sector_count: 1 << 19,
        region_sectors: 1 << 19,
    };
    let mut disk = Disk::new();
    disk.format(config);
    let mut space = Space::new(&[geometry], Levels { reserve: 0, low: 0 });
    let recovered = recover(
        &disk,
        area,
        FsId(0),
        OWNER.node,
        &mut |part| match part.key {
            PartKey::Space => replay_space(part.bytes, &mut space, &mut None),
            _ => Ok(()),
        },
    )
    .unwrap();
    space.on_durable(recovered.last_lsn);
    let journal = Journal::start(config, &recovered);
    let nsds = vec![NsdId(2)];
    let mut log = OwnerLog::new(journal, space, None, EPOCH, nsds, Prng::new(1));
    let part = Part {
        key: PartKey::Shard(ShardId(0)),
        epoch: EPOCH,
        bytes: &[],
    };
    log.journal.append_snapshot(part).unwrap();
    log.journal.end_snapshot();
    log
}

/// The owner as its journal left it: it takes the member to have `open` open.
fn owner(open: &[(u64, NodeLife)]) -> OwnerSlice {
    let mut shard = Shard::new(ShardId(0), HashKey(7));
    for (index, nlink) in [(NAMED, 1), (NAMED_TOO, 1), (NAMELESS, 0), (NAMELESS_TOO, 0)] {
        shard.apply(&file(ino(index), nlink));
    }
    for (index, life) in open {
        let (index, life) = (*index, *life);
        let is_open = true;
        shard.apply(&Mutation::OpenPut {
            index,
            life,
            is_open,
        });
    }
    let tokens = token::Manager::new(EPOCH, token::Options::default());
    OwnerSlice::new(shard, tokens, Lsn(0))
}

fn part(part: u32, is_last: bool, open: &[u64]) -> Reassert {
    Reassert {
        part,
        is_last,
        holdings: Vec::new(),
        open: open.to_vec(),
        locks: Vec::new(),
        lock_floor: 0,
    }
}

/// Parts of what a member says are lost with a link: what comes without them is no fault of the member's, and what it
/// says again is taken whole.
#[test]
fn a_lost_part_is_said_again() {
    let (mut slice, mut log) = (owner(&[(NAMELESS, OTHER), (NAMELESS_TOO, OTHER)]), log());
    let number = token::server::first_number(EPOCH);
    let held = |at: u32| Reassert {
        part: at,
        is_last: at == 1,
        holdings: vec![Holding {
            ino: ino(NAMED + u64::from(at)),
            number,
            kind: TokenKind::Inode {
                mode: InodeMode::Exclusive,
            },
        }],
        open: vec![NAMED + u64::from(at)],
        locks: Vec::new(),
        lock_floor: 0,
    };
    let is_open = |slice: &OwnerSlice, index| slice.shard.is_open_at(ino(index), MEMBER);
    slice.begin_grace(&[MEMBER]);
    assert_eq!(slice.on_reassert(&mut log, MEMBER, &held(1)), Ok(()));
    assert!(slice.is_missing(MEMBER), "the first part was lost");
    assert!(!is_open(&slice, NAMED_TOO), "it will be said again");
    assert_eq!(slice.on_reassert(&mut log, MEMBER, &held(0)), Ok(()));
    assert_eq!(slice.on_reassert(&mut log, MEMBER, &held(1)), Ok(()));
    assert!(!slice.is_missing(MEMBER));
    let mut wrong = held(0);
    wrong.holdings[0].number = TokenNumber(1);
    wrong.open.clear();
    assert_eq!(
        slice.on_reassert(&mut log, MEMBER, &wrong),
        Ok(()),
        "said before"
    );
    end_grace(&mut slice, &mut log);
    assert_eq!(slice.tokens.token_count(), 2);
    assert!(is_open(&slice, NAMED) && is_open(&slice, NAMED_TOO));
}

/// The record of a release went with the owner's former life: its sender says again what it has open, and it is on record
/// before anything is served.
#[test]
fn what_a_member_has_open_is_counted() {
    let open = [
        (NAMED_TOO, MEMBER),
        (NAMELESS, MEMBER),
        (NAMELESS_TOO, OTHER),
    ];
    let (mut slice, mut log) = (owner(&open), log());
    let before = log.journal.last_lsn();
    slice.begin_grace(&[MEMBER, OTHER]);
    assert_eq!(
        slice.on_reassert(&mut log, MEMBER, &part(0, false, &[NAMED])),
        Ok(())
    );
    let has_open = |slice: &OwnerSlice| -> Vec<u64> { slice.shard.opens_of(MEMBER).collect() };
    assert_eq!(has_open(&slice), [NAMED, NAMED_TOO, NAMELESS]);
    assert_eq!(
        slice.on_reassert(&mut log, MEMBER, &part(1, true, &[99])),
        Ok(()),
        "an inode that is gone"
    );
    // A close whose record was lost is made good too, but not where the member's own removal may be unanswered.
    assert_eq!(has_open(&slice), [NAMED, NAMELESS]);
    assert!(slice.last_lsn > before, "it is in the journal");
    // Nothing new: no record.
    let written = log.journal.last_lsn();
    let same = part(0, true, &[NAMELESS_TOO]);
    assert_eq!(slice.on_reassert(&mut log, OTHER, &same), Ok(()));
    assert_eq!(log.journal.last_lsn(), written);
    // What has no name goes when all have said that they do not have it open: its last close, or the answer that it was kept for, was heard.
    end_grace(&mut slice, &mut log);
    assert_eq!(slice.shard.attr(ino(NAMELESS)), None, "it is freed");
    assert_eq!(has_open(&slice), [NAMED]);
    assert!(
        slice.shard.attr(ino(NAMELESS_TOO)).is_some(),
        "that is open"
    );
    assert!(log.journal.last_lsn() > written, "it is in the journal");
    slice.shard.check();
}

fn env() -> node::OwnerEnv<'static> {
    node::OwnerEnv {
        now: Instant(1),
        timestamp: Timestamp::default(),
        me: OWNER,
        owners: &[NodeId(1)],
        random: 1,
    }
}

fn end_grace(slice: &mut OwnerSlice, log: &mut OwnerLog) {
    let mut out = Vec::new();
    slice.end_grace(&env(), log, &mut out);
    assert!(out.is_empty(), "{out:?}");
}

/// What a member had open goes with its life, also while it is telling.
#[test]
fn opens_of_a_lost_life_are_dropped() {
    let (mut slice, mut log) = (owner(&[(NAMELESS, MEMBER), (NAMELESS_TOO, OTHER)]), log());
    slice.begin_grace(&[MEMBER]);
    let first = part(0, false, &[NAMED, NAMELESS]);
    assert_eq!(slice.on_reassert(&mut log, MEMBER, &first), Ok(()));
    slice.on_node_lost(&env(), &mut log, MEMBER, &mut Vec::new());
    assert_eq!(slice.shard.opens_of(MEMBER).count(), 0);
    assert_eq!(slice.shard.attr(ino(NAMELESS)), None, "it is freed");
    let last = part(1, true, &[NAMED]);
    assert!(slice.on_reassert(&mut log, MEMBER, &last).is_err());
    assert_eq!(slice.shard.opens_of(MEMBER).count(), 0);
    end_grace(&mut slice, &mut log);
    slice.shard.check();
}
